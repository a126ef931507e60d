//! Addresses and ranges of guest memory, with sums that cannot wrap.

use core::fmt;

/// Smallest unit of a DMA map, bytes.
pub const PAGE_LEN: u64 = 4096;

/// What is pinned at once, bytes: the guest memory between two multiples of this, as far as it lies in one region.
pub const BLOCK_LEN: u64 = 2 << 20;

/// A guest-physical address; for a guest without an IOMMU of its own also the address that its devices use (IOVA).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gpa(pub u64);

/// A virtual address of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hva(pub u64);

impl fmt::Display for Gpa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPA {:#x}", self.0)
    }
}

/// Why a start and a length are no range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// No bytes.
    #[error("a range of 0 bytes at {0}")]
    Empty(Gpa),
    /// The end does not lie below 2^64.
    #[error("{len:#x} bytes at {start} wrap around the end of the address space")]
    Wraps {
        /// First byte.
        start: Gpa,
        /// Bytes.
        len: u64,
    },
}

/// A range of guest-physical addresses: one byte or more, its end below 2^64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GpaRange {
    start: u64,
    end: u64,
}

impl GpaRange {
    /// `len` bytes from `start` on.
    ///
    /// # Errors
    /// No bytes, or an end that does not lie below 2^64.
    pub fn new(start: Gpa, len: u64) -> Result<GpaRange, RangeError> {
        match start.0.checked_add(len) {
            _ if len == 0 => Err(RangeError::Empty(start)),
            None => Err(RangeError::Wraps { start, len }),
            Some(end) => Ok(GpaRange { start: start.0, end }),
        }
    }

    /// First byte.
    pub fn start(&self) -> Gpa {
        Gpa(self.start)
    }

    /// First byte after it.
    pub fn end(&self) -> Gpa {
        Gpa(self.end)
    }

    /// Bytes, 1 or more.
    #[allow(clippy::len_without_is_empty, reason = "no range is empty")]
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Whether every byte of `other` lies in this range.
    pub fn contains(&self, other: &GpaRange) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The bytes that lie in both.
    pub fn common(&self, other: &GpaRange) -> Option<GpaRange> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(GpaRange { start, end })
    }

    /// Numbers of the first and the last 2 MiB frame of the guest's address space that it touches.
    pub(crate) fn frames(&self) -> (u64, u64) {
        (self.start / BLOCK_LEN, (self.end - 1) / BLOCK_LEN)
    }

    /// The part of it that lies in frame `frame`, one of [`GpaRange::frames`].
    pub(crate) fn in_frame(&self, frame: u64) -> GpaRange {
        let start = frame * BLOCK_LEN;
        // The last frame of the address space ends at 2^64, which no range reaches.
        let end = start.saturating_add(BLOCK_LEN);
        let part = GpaRange { start: self.start.max(start), end: self.end.min(end) };
        assert!(part.start < part.end, "frame {frame:#x} is not touched by {self}");
        part
    }
}

impl fmt::Display for GpaRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} bytes at {}", self.len(), self.start())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked() {
        assert_eq!(GpaRange::new(Gpa(5), 0), Err(RangeError::Empty(Gpa(5))));
        assert_eq!(GpaRange::new(Gpa(u64::MAX), 1), Err(RangeError::Wraps { start: Gpa(u64::MAX), len: 1 }));
        assert_eq!(GpaRange::new(Gpa(1), u64::MAX), Err(RangeError::Wraps { start: Gpa(1), len: u64::MAX }));
        let top = GpaRange::new(Gpa(u64::MAX - 1), 1).unwrap();
        assert_eq!((top.len(), top.end()), (1, Gpa(u64::MAX)));
        let last = u64::MAX / BLOCK_LEN;
        assert_eq!((top.frames(), top.in_frame(last)), ((last, last), top));
    }

    #[test]
    fn frames_are_clipped_to_the_range() {
        let range = GpaRange::new(Gpa(BLOCK_LEN - 4096), BLOCK_LEN + 8192).unwrap();
        assert_eq!(range.frames(), (0, 2));
        assert_eq!(range.in_frame(0), GpaRange::new(Gpa(BLOCK_LEN - 4096), 4096).unwrap());
        assert_eq!(range.in_frame(1), GpaRange::new(Gpa(BLOCK_LEN), BLOCK_LEN).unwrap());
        assert_eq!(range.in_frame(2), GpaRange::new(Gpa(2 * BLOCK_LEN), 4096).unwrap());
    }

    #[test]
    fn common_bytes() {
        let range = |start, len| GpaRange::new(Gpa(start), len).unwrap();
        assert_eq!(range(0, 10).common(&range(5, 10)), Some(range(5, 5)));
        assert_eq!(range(0, 10).common(&range(10, 10)), None);
        assert!(range(0, 10).contains(&range(9, 1)) && !range(0, 10).contains(&range(9, 2)));
    }
}
