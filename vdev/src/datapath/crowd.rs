//! Leaving a crowded CPU.
//!
//! On a machine with few CPUs Linux often wakes the data path on the CPU that the waker goes on using, and leaves it there for
//! many milliseconds although another CPU is idle half of the time: to the kernel those idle moments are too short to be worth
//! a move. Two daemons that stream to each other then take turns on one CPU. The thread sees this as time in which it was
//! ready to run and did not. Then it moves itself, once; if that did not help, it is a while before it tries again.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;
use roce::Instant;

use super::spin;

/// How often a busy thread looks how long it had to wait.
const PERIOD: Duration = Duration::from_millis(2);
/// One part in so many of that time is too much.
const TOO_MUCH: u32 = 5;
/// How long to stay after a move: at first, and at most when moves do not help.
const STAY: (Duration, Duration) = (Duration::from_millis(8), Duration::from_secs(1));

/// Watches how long this thread waits for its CPU.
#[derive(Debug)]
pub(super) struct Crowd {
    /// The kernel's account of this thread; absent where CPUs are plenty or the kernel keeps none.
    account: Option<File>,
    last: Instant,
    waited: Duration,
    wait: Wait,
}

/// What to do about it.
#[derive(Debug)]
struct Wait {
    stay_until: Instant,
    stay_for: Duration,
}

impl Wait {
    /// Of the `period` that ended `now`, the thread had to wait for `waited`. True if it shall move.
    fn is_too_long(&mut self, now: Instant, period: Duration, waited: Duration) -> bool {
        if waited < period / TOO_MUCH || now < self.stay_until {
            return false;
        }
        // Soon after the last move: it did not help, so the next one can wait for longer.
        let again = now.saturating_since(self.stay_until) < self.stay_for;
        self.stay_for = if again { (self.stay_for * 2).min(STAY.1) } else { STAY.0 };
        self.stay_until = now + self.stay_for;
        true
    }
}

impl Crowd {
    /// Watches the calling thread.
    pub fn new() -> Crowd {
        let account = if spin::cpus_are_scarce() { File::open("/proc/thread-self/schedstat").ok() } else { None };
        let wait = Wait { stay_until: Instant::ZERO, stay_for: STAY.0 };
        Crowd { account, last: Instant::ZERO, waited: Duration::ZERO, wait }
    }

    /// Called often while there is work; looks from time to time.
    #[inline]
    pub fn look(&mut self, now: Instant) {
        if now.saturating_since(self.last) >= PERIOD {
            self.account(now);
        }
    }

    #[cold]
    fn account(&mut self, now: Instant) {
        let Some(account) = &self.account else { return };
        let period = now.saturating_since(self.last);
        self.last = now;
        let Some(waited) = waited(account) else { return };
        let new = waited.saturating_sub(self.waited);
        self.waited = waited;
        // After an idle time nothing is known about the busy time before it.
        if period < 2 * PERIOD && self.wait.is_too_long(now, period, new) {
            match leave() {
                Ok(cpu) => tracing::debug!(from_cpu = cpu, ?new, ?period, "left a crowded CPU"),
                Err(error) => tracing::debug!(%error, "cannot leave a crowded CPU"),
            }
        }
    }
}

/// How long the thread was ready to run and did not, since it began.
fn waited(account: &File) -> Option<Duration> {
    let mut text = [0; 64];
    let len = account.read_at(&mut text, 0).ok()?;
    // Time on a CPU, time waited for one, number of turns.
    let second = std::str::from_utf8(&text[..len]).ok()?.split(' ').nth(1)?;
    second.parse().ok().map(Duration::from_nanos)
}

/// Moves this thread to any other CPU that it may use; returns which one it left.
fn leave() -> nix::Result<usize> {
    let this_thread = Pid::from_raw(0);
    let allowed = sched_getaffinity(this_thread)?;
    let mut others = allowed;
    let cpu = sched_getcpu()?;
    others.unset(cpu)?;
    if (0..CpuSet::count()).any(|cpu| others.is_set(cpu).unwrap_or(false)) {
        sched_setaffinity(this_thread, &others)?;
        sched_setaffinity(this_thread, &allowed)?;
    }
    Ok(cpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn it_moves_once_and_tries_again_later_and_later() {
        let mut wait = Wait { stay_until: Instant::ZERO, stay_for: STAY.0 };
        let (mut moves, mut last) = (Vec::new(), None);
        for ms in (1000..6000).step_by(2) {
            if wait.is_too_long(at(ms), PERIOD, PERIOD / 2) {
                moves.push(ms - last.unwrap_or(ms));
                last = Some(ms);
            }
        }
        assert_eq!(moves, [0, 8, 16, 32, 64, 128, 256, 512, 1000, 1000, 1000]);
    }

    #[test]
    fn short_waits_move_nothing() {
        let mut wait = Wait { stay_until: Instant::ZERO, stay_for: STAY.0 };
        assert!(!wait.is_too_long(at(1000), PERIOD, PERIOD / 6));
    }

    #[test]
    fn a_move_that_helped_is_forgotten() {
        let mut wait = Wait { stay_until: Instant::ZERO, stay_for: STAY.0 };
        assert!(wait.is_too_long(at(1000), PERIOD, PERIOD));
        assert!(wait.is_too_long(at(1008), PERIOD, PERIOD));
        assert!(wait.is_too_long(at(2000), PERIOD, PERIOD));
        assert_eq!(wait.stay_for, STAY.0);
    }

    #[test]
    fn leaving_keeps_what_the_thread_may_use() {
        std::thread::spawn(|| {
            let before = sched_getaffinity(Pid::from_raw(0)).unwrap();
            leave().unwrap();
            assert_eq!(sched_getaffinity(Pid::from_raw(0)).unwrap(), before);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_that_shares_its_cpu_has_waited() {
        let one_cpu = {
            let mut one = CpuSet::new();
            one.set(sched_getcpu().unwrap()).unwrap();
            one
        };
        let busy = move || {
            sched_setaffinity(Pid::from_raw(0), &one_cpu).unwrap();
            let account = File::open("/proc/thread-self/schedstat").unwrap();
            let (start, mut looks) = (waited(&account).unwrap(), 0);
            while waited(&account).unwrap() == start && looks < 10_000_000 {
                looks += 1;
            }
            assert!(waited(&account).unwrap() > start, "two busy threads on one CPU and none had to wait");
        };
        let [a, b] = [std::thread::spawn(busy), std::thread::spawn(busy)];
        a.join().unwrap();
        b.join().unwrap();
    }
}
