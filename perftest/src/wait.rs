//! Waiting for the other side without starving it.

use std::time::{Duration, Instant};

/// Nothing happened for too long.
#[derive(Debug, thiserror::Error)]
#[error("nothing arrived for {} s: has the other side ended, or its daemon?", LIMIT.as_secs())]
pub struct Stalled;

const LIMIT: Duration = Duration::from_secs(10);
/// Looks between two readings of the clock.
const CLOCK_EVERY: u32 = 1 << 16;
/// Cores from which on initiator, target and a software device can each have one.
const ENOUGH_CORES: usize = 4;
/// Looks before the core is offered to others, where cores are scarce: the answer comes at once when the peer runs on another
/// core, and only after we have left when it needs ours. Measured on two cores, where 16 and 32 are both half as slow again.
const LOOKS: u32 = 24;

/// Pause between looks of a wait that naps: about what a message of 1 MiB takes. Each look takes the core from whoever carries it.
const NAP: Duration = Duration::from_micros(300);

/// Whether both ends and a software device have to share cores.
pub fn cores_are_few() -> bool {
    !std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= ENOUGH_CORES)
}

/// Counts looks that found nothing.
#[derive(Clone, Debug)]
pub struct Wait {
    looks_before_yield: u32,
    naps: bool,
    looks: u32,
    since: Option<Instant>,
}

impl Wait {
    /// For polling memory: yields the core after a few looks if there are few cores.
    pub fn for_memory() -> Wait {
        Wait { looks_before_yield: if cores_are_few() { LOOKS } else { u32::MAX }, naps: false, looks: 0, since: None }
    }

    /// For polling a completion queue of long messages without keeping a core.
    pub fn with_naps() -> Wait {
        Wait { naps: true, ..Wait::for_completions() }
    }

    /// For polling a completion queue: a software device's library yields by itself, and hardware needs no core.
    pub fn for_completions() -> Wait {
        Wait { looks_before_yield: u32::MAX, naps: false, looks: 0, since: None }
    }

    /// There was something.
    pub fn found(&mut self) {
        self.looks = 0;
        self.since = None;
    }

    /// There was nothing. Fails when that has lasted 10 s.
    pub fn nothing(&mut self) -> Result<(), Stalled> {
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(self.looks_before_yield) {
            // SAFETY: no arguments, no memory.
            unsafe { libc::sched_yield() };
        } else if self.naps {
            std::thread::sleep(NAP);
        } else {
            std::hint::spin_loop();
        }
        if self.naps || self.looks.is_multiple_of(CLOCK_EVERY) {
            let now = Instant::now();
            if now.duration_since(*self.since.get_or_insert(now)) > LIMIT {
                return Err(Stalled);
            }
        }
        Ok(())
    }
}
