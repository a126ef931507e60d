//! Unmodified programs that find each other by address and port, over `rdma_cm`: between two devices of one daemon, and between two
//! daemons in two network namespaces.

use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tests::matrix::{End, meet};
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
    riostream: "riostream -S 4000 -C 20 -I 20", "riostream -S 4000 -C 20 -I 20 -s ADDR", "custom";
    rdma_xclient: "rdma_xserver -c r", "rdma_xclient -c r -s ADDR", "rdma_xclient: end 0";
    write_bw: "ib_write_bw -R -n 200", "ib_write_bw -R -n 200 ADDR", "#bytes";
    write_bw_4_qps: "ib_write_bw -R -q 4 -n 100", "ib_write_bw -R -q 4 -n 100 ADDR", "#bytes";
    write_bw_both_ways: "ib_write_bw -R -b -n 100", "ib_write_bw -R -b -n 100 ADDR", "#bytes";
    read_bw: "ib_read_bw -R -n 200", "ib_read_bw -R -n 200 ADDR", "#bytes";
    send_bw: "ib_send_bw -R -n 200", "ib_send_bw -R -n 200 ADDR", "#bytes";
    send_bw_shared_receives: "ib_send_bw -R --use-srq -q 4 -n 100", "ib_send_bw -R --use-srq -q 4 -n 100 ADDR", "#bytes";
    send_bw_ud: "ib_send_bw -R -c UD -n 200", "ib_send_bw -R -c UD -n 200 ADDR", "#bytes";
    send_lat: "ib_send_lat -R -n 200", "ib_send_lat -R -n 200 ADDR", "#bytes";
    atomic_bw: "ib_atomic_bw -R -n 200", "ib_atomic_bw -R -n 200 ADDR", "#bytes";
    write_lat_told_by_cm: "ib_write_lat -z -n 200", "ib_write_lat -z -n 200 ADDR", "#bytes";
    send_bw_told_by_cm: "ib_send_bw -z -n 200", "ib_send_bw -z -n 200 ADDR", "#bytes";
}

fn words(line: &str, address: &str) -> Vec<String> {
    line.split(' ').map(|word| if word == "ADDR" { address.to_owned() } else { word.to_owned() }).collect()
}

fn start(daemon: &mut Daemon, device: &str, line: &str, address: &str) -> Program {
    let words = words(line, address);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    daemon.run(device, &words)
}

fn run(row: &Row, server_at: &mut Daemon, mut client_at: Option<&mut Daemon>, address: &str) {
    let (mut server, report) = meet(|end| match end {
        End::Server => start(server_at, "a", row.server, address),
        End::Client => start(client_at.as_deref_mut().unwrap_or(&mut *server_at), "b", row.client, address),
    });
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

/// Its reliable datagrams, which are messages over connections.
#[test]
fn libfabric_reliable_datagrams() {
    wire(&Row {
        server: "fi_pingpong -p verbs;ofi_rxm -e rdm -I 50",
        client: "fi_pingpong -p verbs;ofi_rxm -e rdm -I 50 ADDR",
        report: "usec/xfer",
    });
}

/// Its unreliable datagrams, which it addresses by itself.
#[test]
fn libfabric_datagrams() {
    wire(&Row {
        server: "fi_pingpong -p verbs -e dgram -I 50",
        client: "fi_pingpong -p verbs -e dgram -I 50 ADDR",
        report: "usec/xfer",
    });
}

/// Servers that go on for ever.
#[test]
fn many_connections_and_a_copied_file() {
    let _turn = one_at_a_time();
    if missing_program(&["cmtime", "rcopy"]) {
        return;
    }
    let mut daemon = Daemon::start();
    daemon.add_device("a", "203.0.113.1");
    daemon.add_device("b", "203.0.113.2");
    let (server, report) = meet(|end| match end {
        End::Server => daemon.run("a", &["cmtime", "-c", "50"]),
        End::Client => daemon.run("b", &["cmtime", "-c", "50", "-s", "203.0.113.1"]),
    });
    assert!(report.contains("disconnect"), "{report}");
    drop(server);
    let (source, target) = (daemon.folder().join("source"), daemon.folder().join("target"));
    let bytes: Vec<u8> = (0..300_000u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
    std::fs::write(&source, &bytes).expect("the file can be written");
    let words = ["rcopy", source.to_str().expect("text"), &format!("203.0.113.1:{}", target.display())];
    let (server, _) = meet(|end| match end {
        End::Server => daemon.run("a", &["rcopy"]),
        End::Client => daemon.run("b", &words),
    });
    assert!(std::fs::read(target).is_ok_and(|copy| copy == bytes), "the copy differs");
    drop(server);
    for device in ["a", "b"] {
        daemon.wait_until_unused(device, Duration::from_secs(2));
    }
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
