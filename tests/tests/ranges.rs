//! Regions and windows at their edges through the real verbs library, by the table that guests' drivers are held to
//! (`vdev/tests/guest/edges.rs`).

use std::time::Duration;
use tests::{Daemon, one_at_a_time};

const CLIENT: &str = env!("CARGO_BIN_EXE_verbs-client");

#[test]
fn ranges_rights_windows_and_registrations_anew() {
    let _turn = one_at_a_time();
    let mut daemon = Daemon::start();
    daemon.add_device("a", "203.0.113.1");
    let output = daemon.run("a", &[CLIENT, "ranges"]).succeed(Duration::from_secs(120));
    let cases = output.lines().filter(|line| line.starts_with("case ")).count();
    assert!(cases > 200, "{cases} cases:\n{output}");
    daemon.wait_until_unused("a", Duration::from_secs(10));
}
