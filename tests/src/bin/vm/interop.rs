//! vrdma against rxe: every row on every path, as server and as client.

use std::fmt::Write;
use std::process::ExitCode;
use tests::interop::{Bed, Outcome, Path, Role};
use tests::matrix::{ALL_SIZES, Report, Row};
use tests::vm::Image;

const ONE: Report = Report::Results { lines: 1 };
const ALL: Report = Report::Results { lines: ALL_SIZES };

/// Run over plain IPv4.
const BASE: &[(&str, &str, Report)] = &[
    ("ibv_rc_pingpong", "-c -n 100", Report::Pingpong),
    ("ibv_rc_pingpong", "-e -n 100", Report::Pingpong),
    ("ib_write_bw", "-s 1 -n 100", ONE),
    ("ib_write_bw", "-a -n 5", ALL),
    ("ib_write_lat", "-s 1 -n 100", ONE),
    ("ib_write_lat", "-s 1048576 -n 5", ONE),
    ("ib_read_bw", "-s 1 -n 100 -o 16", ONE),
    ("ib_read_bw", "-s 1048576 -n 5 -o 16", ONE),
    ("ib_read_lat", "-s 1 -n 100 -o 16", ONE),
    ("ib_read_lat", "-s 1048576 -n 5 -o 16", ONE),
    ("ib_send_bw", "-s 1 -n 100", ONE),
    ("ib_send_bw", "-s 1048576 -n 5", ONE),
    ("ib_send_bw", "-e -s 4096 -n 100", ONE),
    ("ib_send_lat", "-s 1 -n 100", ONE),
    ("ib_send_lat", "-s 1048576 -n 5", ONE),
    ("ib_atomic_bw", "-A FETCH_AND_ADD -n 100 -o 16", ONE),
    ("ib_atomic_bw", "-A CMP_AND_SWAP -n 100 -o 16", ONE),
    ("ib_atomic_lat", "-A FETCH_AND_ADD -n 100 -o 16", ONE),
    ("ib_atomic_lat", "-A CMP_AND_SWAP -n 100 -o 16", ONE),
    ("ibv_uc_pingpong", "-c -n 100", Report::Pingpong),
    ("ibv_ud_pingpong", "-c -n 100 -s 1000", Report::Pingpong),
    ("ibv_srq_pingpong", "-c -n 100", Report::Pingpong),
    ("rping", "-v -C 10", Report::Prints { text: "ping data: rdma-ping-9" }),
    ("rdma_client", "", Report::Prints { text: "end 0" }),
    ("ib_write_bw", "-R -s 65536 -n 50", ONE),
    ("ib_send_lat", "-R -n 100", ONE),
];

/// Run over each other path.
const SHORT: &[(&str, &str, Report)] = &[
    ("ibv_rc_pingpong", "-c -n 100", Report::Pingpong),
    ("ib_write_bw", "-s 65536 -n 50", ONE),
    ("ib_read_bw", "-s 65536 -n 50 -o 16", ONE),
    ("ib_send_bw", "-s 65536 -n 50", ONE),
    ("ib_atomic_lat", "-n 100 -o 16", ONE),
];

const OTHER_PATHS: &[Path] = &[
    Path { ethernet_mtu: 9000, ..Path::PLAIN },
    Path { ipv6: true, ..Path::PLAIN },
    Path { ipv6: true, ethernet_mtu: 9000, ..Path::PLAIN },
    Path { loss_per_mille: 10, ..Path::PLAIN },
    Path { ethernet_mtu: 9000, loss_per_mille: 10, ..Path::PLAIN },
    Path { ipv6: true, loss_per_mille: 10, ..Path::PLAIN },
];

/// Runs the rows that hold one of the words, all if there are none, and keeps the table of a full run.
pub fn run(image: &Image, words: &[String]) -> ExitCode {
    let mut bed = Bed::new(image);
    let mut outcomes = Vec::new();
    for (path, rows) in [(&Path::PLAIN, BASE)].into_iter().chain(OTHER_PATHS.iter().map(|path| (path, SHORT))) {
        for &(program, options, report) in rows {
            let name = format!("{program} {options} {path}");
            if !words.is_empty() && !words.iter().any(|word| name.contains(word.as_str())) {
                continue;
            }
            bed.set_path(*path);
            for role in [Role::Server, Role::Client] {
                let outcome = bed.run(&Row { program, options, report }, role);
                println!("{}", line(&outcome));
                outcomes.push(outcome);
            }
        }
    }
    let failed = outcomes.iter().filter(|outcome| outcome.result.is_err()).count();
    let table = table(image, &outcomes);
    if words.is_empty() {
        crate::keep("interop.md", &table);
    }
    println!("{} passed, {failed} failed", outcomes.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn table(image: &Image, outcomes: &[Outcome]) -> String {
    let mut text = String::from("# vrdma against Linux soft-RoCE\n\n");
    let _ = writeln!(text, "Written by `tests/vm/run interop`. {}\n", crate::circumstances(image));
    text.push_str(
        "Each row is one run of an unmodified program on both ends. tshark found every packet captured (the first 20 000\n",
    );
    text.push_str(
        "of a run) well formed, and every ICRC right, where a row has passed. Figures say that it ran; under emulation,\n",
    );
    text.push_str("on a machine shared with others, they say nothing about speed.\n\n");
    text.push_str("| program | vrdma is | path | packets seen | result |\n|---|---|---|---|---|\n");
    for outcome in outcomes {
        let _ = writeln!(text, "{}", line(outcome));
    }
    text
}

fn line(outcome: &Outcome) -> String {
    let Outcome { row, vrdma, path, result, packets } = outcome;
    let role = match vrdma {
        Role::Server => "server",
        Role::Client => "client",
    };
    let result = match result {
        Ok(figure) => format!("passed: {figure}"),
        Err(reason) => format!("FAILED: {}", reason.replace('|', "/")),
    };
    format!("| `{} {}` | {role} | {path} | {} | {result} |", row.program, row.options, packets.len())
}
