//! Calls of clients by device: one at a time, and of the daemon's time no more than a part.
//!
//! However many connections a device has, one call of it is carried out at a time, so that a call of another device waits for one of each
//! device at most. What a call takes is charged to a budget of time. Who has used it up waits until it has come back, as long as there
//! are others: registering and deregistering without end leaves them at least half of the time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use isolation::bucket::TokenBucket;
use roce::Instant;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::datapath::clock;

/// What a device may use at once after a pause, in parts of what it gains per second: a program that starts makes everything that it needs.
const BURST_PART: u64 = 5;

/// What all devices of a daemon have in common.
#[derive(Debug)]
pub struct Everybody {
    /// Connections, and VMMs.
    connections: AtomicU64,
    /// Nanoseconds of the daemon's time that a device gains per second for its calls, while there are others.
    ns_per_sec: u64,
}

impl Everybody {
    /// So much of the daemon's time for the calls of one device.
    pub fn new(percent: u8) -> Everybody {
        Everybody { connections: AtomicU64::new(0), ns_per_sec: u64::from(percent.clamp(1, 100)) * 10_000_000 }
    }

    fn burst_ns(&self) -> u64 {
        self.ns_per_sec / BURST_PART
    }
}

/// The budget of one device.
pub struct Budget {
    turn: Semaphore,
    time: Mutex<TokenBucket>,
    /// Connections of this device, and of all.
    connections: AtomicU64,
    everybody: Arc<Everybody>,
    calls: AtomicU64,
    waits: AtomicU64,
    busy_ns: AtomicU64,
}

impl Budget {
    /// A full one, beside connections of others.
    pub fn new(everybody: Arc<Everybody>) -> Budget {
        Budget {
            turn: Semaphore::new(1),
            time: Mutex::new(TokenBucket::new(everybody.ns_per_sec, everybody.burst_ns(), clock())),
            connections: AtomicU64::new(0),
            everybody,
            calls: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            busy_ns: AtomicU64::new(0),
        }
    }

    /// One more connection; returns how many there were.
    pub fn connected(&self) -> u64 {
        self.everybody.connections.fetch_add(1, Ordering::Relaxed);
        self.connections.fetch_add(1, Ordering::Relaxed)
    }

    /// One less.
    pub fn disconnected(&self) {
        self.everybody.connections.fetch_sub(1, Ordering::Relaxed);
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Waits until a call may be carried out. None else of this device is until the turn is dropped.
    pub async fn turn(&self) -> Turn<'_> {
        let mut waited = false;
        let permit = match self.turn.try_acquire() {
            Ok(permit) => permit,
            Err(_) => {
                waited = true;
                self.turn.acquire().await.expect("the semaphore is never closed")
            }
        };
        while let Some(wait) = self.wait(clock()) {
            waited = true;
            tokio::time::sleep(wait).await;
        }
        self.count_call(waited);
        Turn { budget: self, _permit: permit }
    }

    /// A call is carried out; it has waited for that, or not.
    pub fn count_call(&self, waited: bool) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.waits.fetch_add(u64::from(waited), Ordering::Relaxed);
    }

    /// How long a call has to wait for the budget at this moment, if at all.
    pub fn wait(&self, now: Instant) -> Option<Duration> {
        if self.is_alone() {
            return None;
        }
        let mut time = self.time();
        time.fill(now);
        (!time.is_open()).then(|| time.opens_at().saturating_since(now))
    }

    /// Something for this device took so long. While there are no others it takes nothing of theirs, and nothing is owed for it later.
    pub fn charge(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.busy_ns.fetch_add(ns, Ordering::Relaxed);
        if !self.is_alone() {
            let mut time = self.time();
            time.fill(clock());
            // A call that was held up, be it by others, does not shut the device out for long.
            time.take(ns.min(self.everybody.burst_ns()));
        }
    }

    fn is_alone(&self) -> bool {
        self.everybody.connections.load(Ordering::Relaxed) == self.connections.load(Ordering::Relaxed)
    }

    fn time(&self) -> MutexGuard<'_, TokenBucket> {
        // Every critical section leaves the value whole.
        self.time.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names and values of its counters.
    pub fn counters(&self) -> [(&'static str, u64); 3] {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("control_calls", value(&self.calls)),
            ("control_waits", value(&self.waits)),
            ("control_us", value(&self.busy_ns) / 1000),
        ]
    }
}

/// The right to carry out a call.
pub struct Turn<'a> {
    budget: &'a Budget,
    _permit: SemaphorePermit<'a>,
}

impl Turn<'_> {
    /// The call took so long.
    pub fn charge(&self, took: Duration) {
        self.budget.charge(took);
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    fn pair() -> (Rc<Budget>, Rc<Budget>) {
        let everybody = Arc::new(Everybody::new(50));
        (Rc::new(Budget::new(everybody.clone())), Rc::new(Budget::new(everybody)))
    }

    /// Connections of two devices that call without a pause; calls are executed one by one in the order in which they come, as on
    /// the data path. How many of the other device's were executed before `calls` of the one connection of the first.
    fn calls_of_the_other(connections: usize, calls: usize) -> usize {
        let (one, other) = pair();
        let executor = Rc::new(tokio::sync::Mutex::new(Vec::new()));
        let caller = |budget: Rc<Budget>, name: char| {
            let executor = executor.clone();
            async move {
                loop {
                    let _turn = budget.turn().await;
                    executor.lock().await.push(name);
                    tokio::task::yield_now().await;
                    if name == 'a' && executor.lock().await.iter().filter(|&&who| who == 'a').count() >= calls {
                        return;
                    }
                }
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let local = tokio::task::LocalSet::new();
        for _ in 0..connections {
            local.spawn_local(caller(other.clone(), 'b'));
        }
        local.block_on(&runtime, caller(one, 'a'));
        let order = executor.try_lock().unwrap();
        order.iter().filter(|&&who| who == 'b').count()
    }

    #[test]
    fn more_connections_do_not_get_more_calls() {
        let (few, many) = (calls_of_the_other(1, 1000), calls_of_the_other(64, 1000));
        assert!((500..3000).contains(&few), "{few}");
        assert!(many <= few * 5 / 4, "{many} calls of 64 connections, {few} of one");
    }

    #[test]
    fn who_has_used_up_the_budget_waits_while_there_are_others() {
        let (churner, other) = pair();
        churner.connected();
        let charge = || (0..10).for_each(|_| churner.charge(Duration::from_millis(50)));
        charge();
        assert_eq!(churner.wait(clock()), None, "nobody else is there");
        other.connected();
        assert_eq!(churner.wait(clock()), None, "nobody else was there");
        charge();
        let later = clock();
        let wait = churner.wait(later).expect("400 ms are owed");
        assert!(wait > Duration::from_millis(600) && wait <= Duration::from_millis(801), "{wait:?}");
        assert_eq!(other.wait(later), None, "the other owes nothing");
        assert_eq!(churner.wait(later + Duration::from_millis(802)), None, "it comes back");
        other.disconnected();
        assert_eq!(churner.wait(later), None);
        assert_eq!(churner.counters()[2], ("control_us", 1_000_000));
    }

    #[test]
    fn one_long_call_does_not_shut_a_device_out() {
        let (churner, other) = pair();
        churner.connected();
        other.connected();
        churner.charge(Duration::from_secs(1000));
        churner.charge(Duration::from_secs(1000));
        let wait = churner.wait(clock()).expect("it owes a burst");
        assert!(wait <= Duration::from_millis(200), "{wait:?}");
    }
}
