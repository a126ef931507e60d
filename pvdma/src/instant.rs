//! Time as plain data: the cache is told what time it is and never asks, so that ageing can be tested.

use core::time::Duration;

/// A point on a monotonic clock of the caller's choice, in nanoseconds since an arbitrary start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The instant `ns` nanoseconds after the start of the clock.
    pub const fn from_nanos(ns: u64) -> Instant {
        Instant(ns)
    }

    /// Nanoseconds since the start of the clock.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// `delay` later, at most the end of the clock (584 years).
    pub fn after(self, delay: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX)))
    }
}
