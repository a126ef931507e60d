//! What the loop does when it finds nothing: look again, let others run, or sleep.
//!
//! With many CPUs it looks again at once. With few, every look is followed by a yield, as the very programs that are waited for
//! may need this CPU. A yield is the right answer only to neighbours that yield as well: a program that polls memory without ever
//! entering the kernel (as `ib_write_lat` does) gets the CPU and keeps it until its time slice ends, milliseconds later. Such
//! neighbours show by yields that take long. Then the loop sleeps at once instead, for a while: being woken takes the CPU from
//! them, which a yielding thread cannot. It also sleeps at once where something is due before a neighbour would give the CPU back, such
//! as the next turn on a link that is slower than the host.

use std::time::Duration;

use roce::Instant;

use super::clock;

/// How long the loop looks for work before it sleeps. A wake-up across cores costs about this much.
const SPIN: Duration = Duration::from_micros(50);
/// With this many CPUs or fewer, spinning takes time from the very programs that are waited for.
const SCARCE_CPUS: usize = 2;
/// A yield that takes longer than this went to a program that does not yield.
const LONG_YIELD: Duration = Duration::from_micros(300);
/// How long to sleep at once after such a yield: at first, and at most when they go on.
const SHY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// Time slice asked for, in nanoseconds: the shortest that Linux grants. A thread that wakes up with a shorter slice than the
/// running one takes the CPU from it (Linux 6.12).
const SLICE_NS: u64 = 100_000;

/// Whether a CPU for the data path alone would be one too many.
pub(super) fn cpus_are_scarce() -> bool {
    std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() <= SCARCE_CPUS)
}

/// What to do now that there is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Idle {
    /// Look again.
    Look,
    /// Sleep.
    Sleep,
}

/// How the loop waits.
#[derive(Debug)]
pub(super) struct Spin {
    scarce: bool,
    /// Sleep at once until then.
    shy_until: Instant,
    shy_for: Duration,
}

impl Spin {
    pub fn new() -> Spin {
        Spin { scarce: cpus_are_scarce(), shy_until: Instant::ZERO, shy_for: SHY.0 }
    }

    /// Nothing was found at `now`; the last work was at `last_work`, and something is due at `due`.
    pub fn nothing(&mut self, now: Instant, last_work: Instant, due: Option<Instant>) -> Idle {
        if now.saturating_since(last_work) >= SPIN {
            return Idle::Sleep;
        }
        if !self.scarce {
            std::hint::spin_loop();
            return Idle::Look;
        }
        if now < self.shy_until || due.is_some_and(|due| due.saturating_since(now) < LONG_YIELD) {
            return Idle::Sleep;
        }
        std::thread::yield_now();
        self.yielded(now, clock());
        Idle::Look
    }

    /// A yield took from `start` to `end`.
    fn yielded(&mut self, start: Instant, end: Instant) {
        if end.saturating_since(start) < LONG_YIELD {
            return;
        }
        // Soon after the last time: it goes on, so stay shy for longer.
        let again = start.saturating_since(self.shy_until) < self.shy_for;
        self.shy_for = if again { (self.shy_for * 2).min(SHY.1) } else { SHY.0 };
        self.shy_until = end + self.shy_for;
    }
}

/// Asks for the shortest time slice for this thread, and for timers that are not late. Older kernels ignore or refuse the former, which
/// only costs latency.
pub(super) fn ask_for_short_slice() {
    /// `struct sched_attr` in its first version.
    #[repr(C)]
    #[derive(Default)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    if let Err(error) = nix::sys::prctl::set_timerslack(1) {
        tracing::debug!(%error, "timers of the data path may be late");
    }
    let size = size_of::<SchedAttr>() as u32;
    let mut attr = SchedAttr::default();
    // SAFETY: both calls read or write one structure of the stated size, for the calling thread.
    let result = unsafe {
        match libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) {
            0 => {
                attr.size = size;
                attr.runtime = SLICE_NS;
                libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0)
            }
            failed => failed,
        }
    };
    if result != 0 {
        tracing::debug!(error = %std::io::Error::last_os_error(), "no shorter time slice for the data path");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    #[test]
    fn long_yields_make_it_sleep_at_once_for_longer_and_longer() {
        let mut spin = Spin { scarce: true, shy_until: Instant::ZERO, shy_for: SHY.0 };
        let start = at(10_000_000);
        spin.yielded(start, start + Duration::from_millis(3));
        let first = spin.shy_until;
        assert_eq!(first, start + Duration::from_millis(13));
        assert_eq!(spin.nothing(start + Duration::from_millis(5), start + Duration::from_millis(5), None), Idle::Sleep);
        let mut now = first;
        for _ in 0..10 {
            spin.yielded(now, now + Duration::from_millis(3));
            now = spin.shy_until;
        }
        assert_eq!(spin.shy_for, SHY.1);
        // Long after, it starts anew.
        now = now + Duration::from_secs(5);
        spin.yielded(now, now + Duration::from_millis(3));
        assert_eq!(spin.shy_for, SHY.0);
    }

    #[test]
    fn short_yields_change_nothing() {
        let mut spin = Spin { scarce: true, shy_until: Instant::ZERO, shy_for: SHY.0 };
        spin.yielded(at(1_000_000), at(1_000_299));
        assert_eq!(spin.shy_until, Instant::ZERO);
    }

    #[test]
    fn with_few_cpus_it_sleeps_at_once_until_what_is_due_soon() {
        let mut spin = Spin { scarce: true, shy_until: Instant::ZERO, shy_for: SHY.0 };
        assert_eq!(spin.nothing(at(1000), at(999), Some(at(1299))), Idle::Sleep);
        assert_eq!(spin.nothing(at(1000), at(999), Some(at(1300))), Idle::Look);
    }

    #[test]
    fn with_many_cpus_it_looks_until_the_spin_is_over() {
        let mut spin = Spin { scarce: false, shy_until: Instant::ZERO, shy_for: SHY.0 };
        assert_eq!(spin.nothing(at(149), at(100), Some(at(150))), Idle::Look);
        assert_eq!(spin.nothing(at(150), at(100), None), Idle::Sleep);
    }
}
