//! Simulated time: whole picoseconds, so that a byte at 100 Gb/s (80 ps) and at 800 Gb/s (10 ps) is exact.

use roce::Instant;

/// A point in simulated time, in picoseconds since the start; it lasts for 213 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The start.
    pub const ZERO: Time = Time(0);
    /// Later than everything.
    pub const NEVER: Time = Time(u64::MAX);

    /// So many picoseconds after the start.
    pub const fn from_ps(ps: u64) -> Time {
        Time(ps)
    }

    /// Picoseconds since the start.
    pub const fn ps(self) -> u64 {
        self.0
    }

    /// Microseconds since the start.
    pub fn micros(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// This much later; the end of time stays the end.
    pub const fn after(self, ps: u64) -> Time {
        Time(self.0.saturating_add(ps))
    }

    /// Picoseconds since `earlier`; 0 if that is later.
    pub const fn since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// What the clock of a host shows: whole nanoseconds, rounded down.
    pub const fn instant(self) -> Instant {
        Instant::from_nanos(self.0 / 1000)
    }

    /// The first picosecond at which the clock of a host shows `instant`.
    pub const fn at_instant(instant: Instant) -> Time {
        Time(instant.as_nanos().saturating_mul(1000))
    }
}

/// Microseconds, as scenarios give them, in picoseconds. Negative values and values beyond the end of time are cut off.
pub fn micros(us: f64) -> u64 {
    (us * 1e6).round() as u64
}

/// The time that bytes take on a link: a rate, kept as picoseconds per byte with 20 binary places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(u64);

impl Rate {
    /// A rate in Gb/s, from 0.001 on.
    pub fn from_gbps(gbps: f64) -> Rate {
        Rate((8000.0 / gbps * f64::from(1 << 20)).round() as u64)
    }

    /// The fraction of this rate, above 0 and at most 1.
    pub fn scaled(self, fraction: f64) -> Rate {
        Rate((self.0 as f64 / fraction).round() as u64)
    }

    /// Picoseconds that a packet of so many bytes takes.
    #[inline]
    pub fn duration(self, bytes: u32) -> u64 {
        // A slow link that is degraded may take for ever.
        u64::try_from((u128::from(bytes) * u128::from(self.0)) >> 20).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_rates_are_exact() {
        for (gbps, ps) in [(10.0, 800), (25.0, 320), (100.0, 80), (400.0, 20), (800.0, 10)] {
            assert_eq!(Rate::from_gbps(gbps).duration(4158), 4158 * ps, "{gbps} Gb/s");
        }
        assert_eq!(Rate::from_gbps(100.0).scaled(0.25), Rate::from_gbps(25.0));
        assert_eq!(Rate::from_gbps(0.001).duration(9000), 9000 * 8_000_000);
        assert_eq!(Rate::from_gbps(0.001).scaled(1e-6).duration(9000), 9000 * 8_000_000_000_000);
    }

    #[test]
    fn clocks_round_down_and_deadlines_up() {
        assert_eq!(Time::from_ps(1999).instant(), Instant::from_nanos(1));
        assert_eq!(Time::at_instant(Instant::from_nanos(2)), Time::from_ps(2000));
        assert_eq!(micros(1.5), 1_500_000);
        assert_eq!(micros(-1.0), 0);
    }
}
