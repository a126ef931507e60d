//! A guest that has commands executed without end: each is, and after a while only as fast as its part of the daemon's time allows.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::driver::{Body, Driver, Region};
use super::place::Place;
use super::verbs::IOVA;
use super::vmm::add;

const REG_MR: u8 = 8;
const DEREG_MR: u8 = 9;
const LIMIT: Duration = Duration::from_secs(60);
/// Less than what gets a thread of its own.
const BYTES: u64 = 4 << 20;

/// Commands that wait in the guest's queue together, so that the daemon is never without one.
const TOGETHER: u32 = 8;

/// A guest and commands that register a region of so many bytes under several numbers, and end them.
struct Churn {
    driver: Driver,
    registrations: Vec<Body>,
}

impl Churn {
    fn new(socket: &Path, bytes: u64) -> Churn {
        let mut driver = Driver::start(socket, 4 * BYTES);
        let region = Region::scattered(&driver, IOVA, bytes);
        let registrations = (1..=TOGETHER).map(|index| driver.reg_mr(index, 5, &region)).collect();
        Churn { driver, registrations }
    }

    /// All of them once; none is refused.
    fn round(&mut self) {
        for body in &self.registrations {
            self.driver.submit(0, REG_MR, body.clone());
        }
        (1..=TOGETHER).for_each(|index| self.driver.submit(0, DEREG_MR, Body::new().u32(8, index)));
        for _ in 0..2 * TOGETHER {
            assert_eq!(self.driver.completion().2, 0);
        }
    }
}

#[test]
fn a_guest_that_registers_without_end_waits_while_there_are_others() {
    // Little, so that it is used up on a busy machine too.
    let place = Place::with(|config| config.control_percent = 2);
    let (socket, other) = (add(&place, "churner", "203.0.113.1"), add(&place, "other", "203.0.113.2"));
    let count = |device: &str, name: &str| place.device(device)["counters"][name].as_u64().expect("a counter");
    let (rounds, enough) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut churn = Churn::new(&socket, BYTES);
            while !enough.load(Ordering::Relaxed) {
                churn.round();
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(500) || (rounds.load(Ordering::Relaxed) == 0 && begun.elapsed() < LIMIT) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let before = count("churner", "control_waits");
        let mut honest = Churn::new(&other, 4096);
        while count("churner", "control_waits") < 3 && begun.elapsed() < LIMIT {
            honest.round();
            std::thread::sleep(Duration::from_millis(20));
        }
        // Those that wait are executed too, and so the last.
        enough.store(true, Ordering::Relaxed);
        assert_eq!(before, 0, "nobody else was there");
    });
    assert!(count("churner", "control_waits") >= 3, "it does not wait: {}", place.device("churner"));
    let rounds = rounds.into_inner();
    let calls = count("churner", "control_calls");
    let each = u64::from(2 * TOGETHER);
    assert!(calls >= each * rounds && calls < each * rounds + 100, "{calls} calls for {rounds} rounds and the commands before");
    assert!(count("churner", "control_us") > 0);
}
