//! How the core reaches memory: the only place where it calls out.

use emtt::Segment;

/// A piece of a scatter or gather: `at..at + segment.len` of a packet buffer stands for `segment`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The memory.
    pub segment: Segment,
    /// Offset of its first byte in the buffer.
    pub at: usize,
}

/// An atomic operation on one aligned 64-bit word, in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Store `swap` if the word equals `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Add, wrapping.
    FetchAdd {
        /// Addend.
        add: u64,
    },
}

/// The memory could not be reached: unmapped under a live registration, or its process is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("registered memory cannot be reached at {:#x}, {} bytes of {:?}", .0.addr, .0.len, .0.owner)]
pub struct DmaError(pub Segment);

/// Access to memory at final addresses. Implementations check nothing about rights: the caller has looked the range up.
/// On an error any part of the bytes may have been moved.
pub trait Dma {
    /// Copies memory into a buffer: each piece's segment to `buf[at..]`. Implementations batch pieces of one owner.
    ///
    /// # Errors
    /// The first segment that could not be read.
    fn gather(&mut self, pieces: &[Piece], buf: &mut [u8]) -> Result<(), DmaError>;

    /// Copies a buffer into memory: `buf[at..]` to each piece's segment, in the order given.
    ///
    /// # Errors
    /// The first segment that could not be written.
    fn scatter(&mut self, pieces: &[Piece], buf: &[u8]) -> Result<(), DmaError>;

    /// Copies from memory to memory (local path): the concatenation of `from` to the concatenation of `to`, in ascending order.
    /// Both have the same total length. Overlap gives what a byte-wise copy in some order would give.
    ///
    /// # Errors
    /// The first segment that could not be read or written.
    fn copy(&mut self, from: &[Segment], to: &[Segment]) -> Result<(), DmaError>;

    /// Applies `op` to the aligned 8 bytes at `at` and returns the value before; atomic with respect to every other atomic
    /// of this daemon.
    ///
    /// # Errors
    /// The segment, if it could not be reached.
    fn atomic(&mut self, at: Segment, op: AtomicOp) -> Result<u64, DmaError>;
}
