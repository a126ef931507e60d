//! Unmodified programs on two devices of one daemon: the local path.

use tests::matrix::{self, Row, Side};
use tests::{Daemon, missing_program, one_at_a_time};

fn row(row: &Row) {
    let _turn = one_at_a_time();
    if missing_program(&[row.program]) {
        return;
    }
    let mut daemon = two_devices();
    matrix::run(row, Side { daemon: &mut daemon, device: "a" }, "b", None, "127.0.0.1");
    for device in ["a", "b"] {
        daemon.wait_until_unused(device, std::time::Duration::from_secs(2));
    }
}

fn two_devices() -> Daemon {
    let mut daemon = Daemon::start();
    daemon.add_device("a", "203.0.113.1");
    daemon.add_device("b", "203.0.113.2");
    daemon
}

tests::test_each_row!(row);

#[test]
fn xsrq_pingpong_of_three_clients() {
    let _turn = one_at_a_time();
    if missing_program(&["ibv_xsrq_pingpong"]) {
        return;
    }
    let mut daemon = two_devices();
    let server = Side { daemon: &mut daemon, device: "a" };
    matrix::run_clients(&matrix::XSRQ_PINGPONG, &["-c", "3"], 3, server, "b", None, "127.0.0.1");
}

#[test]
fn ibv_devices_lists_the_device() {
    let _turn = one_at_a_time();
    if missing_program(&["ibv_devices"]) {
        return;
    }
    let mut daemon = two_devices();
    let output = daemon.run("a", &["ibv_devices"]).succeed(LIMIT);
    let guid = daemon.device("a")["guid"].as_str().expect("the API shows the GUID").replace([':', '-'], "");
    let lines: Vec<&str> =
        output.lines().filter(|line| line.split_whitespace().nth(1).is_some_and(|word| word == guid)).collect();
    assert_eq!(lines.len(), 1, "one line with GUID {guid} in:\n{output}");
    assert_eq!(lines[0].split_whitespace().next(), Some("a"));
}

#[test]
fn ibv_devinfo_tells_what_the_device_is() {
    let _turn = one_at_a_time();
    if missing_program(&["ibv_devinfo"]) {
        return;
    }
    let mut daemon = two_devices();
    let output = daemon.run("b", &["ibv_devinfo", "-v"]).succeed(LIMIT);
    for text in ["hca_id:\tb", "PORT_ACTIVE", "Ethernet", "ATOMIC_HCA", "::ffff:203.0.113.2"] {
        assert!(output.contains(text), "{text:?} is missing in:\n{output}");
    }
}

/// QC-05: an event for each arming, however arming, completion and polling fall.
#[test]
fn no_completion_is_missed_between_arming_and_polling() {
    let _turn = one_at_a_time();
    let mut daemon = two_devices();
    let client = env!("CARGO_BIN_EXE_verbs-client");
    let output = daemon.run("a", &[client, "events", "--rounds", "50000"]).succeed(std::time::Duration::from_secs(300));
    assert!(output.contains("OK 50000 rounds"), "{output}");
}

const LIMIT: std::time::Duration = std::time::Duration::from_secs(20);
