//! Memory of a device (a GPU's, exported as a dma-buf) through the real verbs library: moved, and taken back under live registrations.
//! Where there is no such device, the kernel's `udmabuf` or a memfd stands in for one, and the output says which.

use std::time::Duration;
use tests::{Daemon, one_at_a_time};

const CLIENT: &str = env!("CARGO_BIN_EXE_verbs-client");
const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn memory_of_a_device_is_moved_and_taken_back() {
    let _turn = one_at_a_time();
    let mut daemon = Daemon::start();
    daemon.add_device("a", "203.0.113.1");
    let descriptors = daemon.open_descriptors();
    let pid = daemon.process().pid().to_string();
    let output = daemon.run("a", &[CLIENT, "device-memory", "--daemon", &pid]).succeed(LIMIT);
    let exporter = output.lines().find_map(|line| line.strip_prefix("exporter ")).expect("it says who has exported");
    println!("the exporter was {exporter}");
    assert!(["memfd", "udmabuf"].contains(&exporter), "{output}");
    // Two of each case that is freed, and one of each that is taken away.
    let cases = |what: &str| output.lines().filter(|line| line.starts_with(what)).count() as u64;
    let (freed, taken) = (cases("freed "), cases("taken away "));
    assert_eq!((freed, taken), (8, if exporter == "memfd" { 4 } else { 0 }), "{output}");
    let counters = daemon.device("a")["counters"].clone();
    assert_eq!(counters["revoked_regions"], 2 * freed + taken, "{counters}");
    assert_eq!(counters["access_refused"], 4 + taken / 2, "{counters}");
    daemon.wait_until_unused("a", LIMIT);
    daemon.wait_until_descriptors(descriptors);
}
