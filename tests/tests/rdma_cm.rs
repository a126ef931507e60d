//! Unmodified programs that find each other by address and port, over `rdma_cm`: between two devices of one daemon, and between two
//! daemons in two network namespaces.

use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tests::matrix::until_served;
use tests::{Daemon, NetnsPair, Program, missing_program, need_root, one_at_a_time, skip};

/// How long a program may run. It takes a second or two; the rest is for a loaded machine.
const LIMIT: Duration = Duration::from_secs(120);

/// One row: a program and what its two sides are told, `ADDR` standing for the server's address.
struct Row {
    server: &'static str,
    client: &'static str,
    /// What the client prints when all went well.
    report: &'static str,
}

/// Makes one test per row and place.
macro_rules! rows {
    ($($name:ident: $server:literal, $client:literal, $report:literal;)*) => {
        mod local {
            $(
                #[test]
                fn $name() {
                    super::local(&super::Row { server: $server, client: $client, report: $report });
                }
            )*
        }

        mod wire {
            $(
                #[test]
                fn $name() {
                    super::wire(&super::Row { server: $server, client: $client, report: $report });
                }
            )*
        }
    };
}

rows! {
    rping: "rping -s -a ADDR -C 10 -v", "rping -c -a ADDR -C 10 -v", "ping data: rdma-ping-9:";
    rping_checked: "rping -s -a ADDR -C 50 -S 60000 -V", "rping -c -a ADDR -C 50 -S 60000 -V -d", "rdma_connect successful";
    ucmatose: "ucmatose -C 50 -S 500", "ucmatose -s ADDR -C 50 -S 500", "return status 0";
    rdma_client: "rdma_server -s ADDR", "rdma_client -s ADDR", "rdma_client: end 0";
    udaddy: "udaddy", "udaddy -s ADDR", "return status 0";
    rstream: "rstream -S 4000 -C 20 -I 20", "rstream -S 4000 -C 20 -I 20 -s ADDR", "custom";
    write_bw: "ib_write_bw -R -n 200", "ib_write_bw -R -n 200 ADDR", "#bytes";
    send_lat: "ib_send_lat -R -n 200", "ib_send_lat -R -n 200 ADDR", "#bytes";
}

fn words(line: &str, address: &str) -> Vec<String> {
    line.split(' ').map(|word| if word == "ADDR" { address.to_owned() } else { word.to_owned() }).collect()
}

fn start(daemon: &mut Daemon, device: &str, line: &str, address: &str) -> Program {
    let words = words(line, address);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    daemon.run(device, &words)
}

fn run(row: &Row, server_at: &mut Daemon, client_at: Option<&mut Daemon>, address: &str) {
    let mut server = start(server_at, "a", row.server, address);
    let client_at = match client_at {
        Some(daemon) => daemon,
        None => server_at,
    };
    let report = until_served(&mut server, || start(client_at, "b", row.client, address));
    assert!(report.contains(row.report), "{:?} is missing in:\n{report}", row.report);
    server.succeed(LIMIT);
}

fn program(row: &Row) -> &str {
    row.server.split(' ').next().unwrap_or_default()
}

fn local(row: &Row) {
    let _turn = one_at_a_time();
    if missing_program(&[program(row)]) {
        return;
    }
    let mut daemon = Daemon::start();
    daemon.add_device("a", "203.0.113.1");
    daemon.add_device("b", "203.0.113.2");
    run(row, &mut daemon, None, "203.0.113.1");
    for device in ["a", "b"] {
        daemon.wait_until_unused(device, Duration::from_secs(2));
    }
}

/// libfabric's connected endpoints; it looks for devices whose address is on an interface.
#[test]
fn libfabric_messages() {
    wire(&Row {
        server: "fi_pingpong -p verbs -e msg -I 50",
        client: "fi_pingpong -p verbs -e msg -I 50 ADDR",
        report: "usec/xfer",
    });
}

fn wire(row: &Row) {
    let _turn = one_at_a_time();
    if missing_program(&[program(row), "ip"]) || need_root("network namespaces") {
        return;
    }
    let pair = NetnsPair::new(1500);
    let [mut server, mut client] = pair.daemons();
    run(row, &mut server, Some(&mut client), NetnsPair::IPV4[0]);
}

/// What the manual pages promise, asked by a C program through the system's header.
#[test]
fn manual_pages_hold() {
    const HEADER: &str = "/usr/include/rdma/rdma_cma.h";
    let _turn = one_at_a_time();
    if missing_program(&["cc"]) {
        return;
    }
    if !Path::new(HEADER).exists() {
        return skip(&format!("{HEADER} is absent (apt-get install librdmacm-dev)"));
    }
    let mut daemon = Daemon::start();
    daemon.add_device("a", "203.0.113.1");
    let program = daemon.folder().join("rdma_cm");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/rdma_cm.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&program).arg(source).args(["-lrdmacm", "-libverbs"]);
    let compiled = compiler.output().expect("cc can be started");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let program = program.to_str().expect("the path is text").to_owned();
    let report = daemon.run("a", &[&program, "203.0.113.1"]).succeed(LIMIT);
    assert!(report.contains("all held"), "{report}");
    daemon.wait_until_unused("a", Duration::from_secs(2));
}
