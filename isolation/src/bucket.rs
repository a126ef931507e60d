//! A token bucket: tokens come at a rate, up to a burst; who takes more than there are owes the rest.

use core::time::Duration;
use roce::Instant;

/// Fractions of a token: the clock ticks in nanoseconds, and slow rates give far less than one token per tick.
const SCALE: i128 = 1_000_000_000;

/// A token bucket. It starts full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    rate_per_sec: u64,
    burst: u64,
    /// In units of 1 / [`SCALE`] token; negative while tokens are owed.
    level: i128,
    filled: Instant,
}

impl TokenBucket {
    /// A bucket that gains `rate_per_sec` tokens per second (at least 1) and holds at most `burst`.
    pub fn new(rate_per_sec: u64, burst: u64, now: Instant) -> Self {
        TokenBucket { rate_per_sec: rate_per_sec.max(1), burst, level: i128::from(burst) * SCALE, filled: now }
    }

    /// Adds what has come since the last time.
    pub fn fill(&mut self, now: Instant) {
        let passed = now.saturating_since(self.filled).as_nanos() as i128;
        if passed > 0 {
            let gained = passed.saturating_mul(i128::from(self.rate_per_sec));
            self.level = self.level.saturating_add(gained).min(i128::from(self.burst) * SCALE);
            self.filled = now;
        }
    }

    /// Changes rate and burst; what was owed stays owed.
    pub fn set(&mut self, rate_per_sec: u64, burst: u64, now: Instant) {
        self.fill(now);
        (self.rate_per_sec, self.burst) = (rate_per_sec.max(1), burst);
        self.level = self.level.min(i128::from(burst) * SCALE);
    }

    /// Whether there is anything, as of the last [`Self::fill`].
    pub fn is_open(&self) -> bool {
        self.level > 0
    }

    /// Takes tokens, those that are not there yet too.
    pub fn take(&mut self, tokens: u64) {
        self.level -= i128::from(tokens) * SCALE;
    }

    /// When the bucket is open (again).
    pub fn opens_at(&self) -> Instant {
        if self.is_open() {
            return self.filled;
        }
        let ns = -self.level / i128::from(self.rate_per_sec) + 1;
        self.filled + Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_at_once_and_then_the_rate_holds() {
        let mut bucket = TokenBucket::new(1000, 100, Instant::ZERO);
        let (mut now, mut taken) = (Instant::ZERO, 0);
        while now < Instant::from_nanos(1_000_000_000) {
            bucket.fill(now);
            if bucket.is_open() {
                bucket.take(7);
                taken += 7;
            } else {
                now = bucket.opens_at();
            }
        }
        // The burst, a second at the rate, and one message more at most.
        assert!((1093..=1107).contains(&taken), "{taken}");
    }

    #[test]
    fn what_is_owed_is_paid_first() {
        let mut bucket = TokenBucket::new(1_000_000, 10, Instant::ZERO);
        bucket.take(1_000_010);
        assert_eq!(bucket.opens_at(), Instant::from_nanos(1_000_000_001));
        bucket.fill(Instant::from_nanos(1_000_000_000));
        assert!(!bucket.is_open());
        bucket.fill(Instant::from_nanos(1_000_001_000));
        assert!(bucket.is_open());
    }

    #[test]
    fn extremes_do_not_overflow() {
        let mut bucket = TokenBucket::new(u64::MAX, u64::MAX, Instant::ZERO);
        bucket.fill(Instant::from_nanos(u64::MAX));
        bucket.take(u64::MAX);
        bucket.take(u64::MAX);
        bucket.fill(Instant::from_nanos(u64::MAX));
        let mut slow = TokenBucket::new(0, 0, Instant::ZERO);
        slow.take(u64::MAX);
        assert_eq!(slow.opens_at(), Instant::from_nanos(u64::MAX), "at the end of the clock");
    }
}
