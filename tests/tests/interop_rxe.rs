//! A real peer: unmodified programs between vrdma and Linux soft-RoCE in a guest. The short form of `tests/vm/run interop`:
//! one boot, each kind of transport and operation once, both sides. vrdma offers to use many paths, which a plain peer must not notice.

use tests::interop::{Bed, Role};
use tests::matrix::{Report, Row};
use tests::one_at_a_time;
use tests::vm::Image;

const fn row(program: &'static str, options: &'static str, report: Report) -> Row {
    Row { program, options, report }
}

const ROWS: &[(Row, Role)] = &[
    (row("ibv_rc_pingpong", "-c -n 100", Report::Pingpong), Role::Server),
    (row("ibv_rc_pingpong", "-c -n 100", Report::Pingpong), Role::Client),
    (row("ib_write_bw", "-s 65536 -n 20", Report::ONE_SIZE), Role::Server),
    (row("ib_write_bw", "-s 65536 -n 20", Report::ONE_SIZE), Role::Client),
    (row("ib_read_bw", "-s 65536 -n 20 -o 16", Report::ONE_SIZE), Role::Client),
    (row("ib_atomic_lat", "-n 100 -o 16", Report::ONE_SIZE), Role::Server),
    (row("ibv_uc_pingpong", "-c -n 100", Report::Pingpong), Role::Server),
    (row("ibv_ud_pingpong", "-c -n 100 -s 1000", Report::Pingpong), Role::Client),
    (row("ibv_srq_pingpong", "-c -n 100", Report::Pingpong), Role::Server),
    (row("rping", "-v -C 10", Report::TEN_PINGS), Role::Server),
    (row("rping", "-v -C 10", Report::TEN_PINGS), Role::Client),
];

#[test]
fn programs_run_between_vrdma_and_rxe() {
    let _turn = one_at_a_time();
    let Some(image) = Image::or_skip() else { return };
    let mut bed = Bed::new(&image, &["--paths", "16"]);
    let outcomes = ROWS.iter().map(|(row, vrdma)| bed.run(row, *vrdma));
    let failed: Vec<String> = outcomes
        .filter_map(|outcome| {
            let (row, failure) = (outcome.row, outcome.result.err()?);
            let name = format!("{} {} with vrdma as {:?}", row.program, row.options, outcome.vrdma);
            Some(format!("{name}: {}\n{}", failure.reason, failure.state))
        })
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert_eq!(bed.counter("sent_spray_pkts"), 0, "soft-RoCE knows nothing of many paths");
}
