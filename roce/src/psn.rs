//! Packet sequence numbers: 24-bit serial numbers that wrap (IBA 9.7.2).

use core::fmt;

/// A packet sequence number. There is deliberately no `Ord`: "older" only has a meaning between two numbers less than
/// half the number space (2^23) apart, which [`Psn::distance_from`] expresses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    const MASK: u32 = 0xFF_FFFF;

    /// The low 24 bits of `raw`.
    pub const fn new(raw: u32) -> Self {
        Psn(raw & Self::MASK)
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number `count` packets later, modulo 2^24.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Psn(self.0.wrapping_add(count) & Self::MASK)
    }

    /// The number `count` packets earlier, modulo 2^24.
    #[must_use]
    pub const fn minus(self, count: u32) -> Self {
        Psn(self.0.wrapping_sub(count) & Self::MASK)
    }

    /// How many packets `self` lies after `other`: negative when it is older. The range is -2^23 to 2^23 - 1.
    pub const fn distance_from(self, other: Psn) -> i32 {
        // Shifting the 24-bit difference to the top of the word makes the sign bit that of the serial comparison.
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }

    /// Whether `self` comes before `other`.
    pub const fn is_before(self, other: Psn) -> bool {
        self.distance_from(other) < 0
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PSN {:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wraps_at_24_bits() {
        assert_eq!(Psn::new(0xFF_FFFF).plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).minus(1), Psn::new(0xFF_FFFF));
        assert_eq!(Psn::new(0x0100_0005), Psn::new(5));
    }

    #[test]
    fn distance_is_signed_over_half_the_space() {
        assert_eq!(Psn::new(2).distance_from(Psn::new(0xFF_FFFE)), 4);
        assert_eq!(Psn::new(0xFF_FFFE).distance_from(Psn::new(2)), -4);
        assert_eq!(Psn::new(0x7F_FFFF).distance_from(Psn::new(0)), 0x7F_FFFF);
        assert_eq!(Psn::new(0x80_0000).distance_from(Psn::new(0)), -0x80_0000);
        assert!(Psn::new(0xFF_FFFF).is_before(Psn::new(0)));
        assert!(!Psn::new(7).is_before(Psn::new(7)));
    }
}
