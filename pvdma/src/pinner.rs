//! What pins a block, by the kind of DMA that will touch it.

mod fake;
mod lock;
mod vfio;

pub use fake::{Call, FakePinner};
pub use lock::{HugePages, LockPinner, shmem_huge_pages};
pub use vfio::VfioPinner;

use crate::address::{GpaRange, Hva};
use crate::protection::Protection;
use core::fmt;
use nix::errno::Errno;

/// A block to be pinned or unpinned: guest memory and where it lies in this process. Only the cache makes these, and only
/// for memory that stays mapped at this address from before it is pinned until after it is unpinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    range: GpaRange,
    hva: Hva,
    protection: Protection,
}

impl Block {
    pub(crate) fn new(range: GpaRange, hva: Hva, protection: Protection) -> Block {
        Block { range, hva, protection }
    }

    /// Its guest-physical addresses; at most [`crate::BLOCK_LEN`] bytes, page-aligned.
    pub fn range(&self) -> GpaRange {
        self.range
    }

    /// Its first byte in this process.
    pub fn hva(&self) -> Hva {
        self.hva
    }

    /// What devices may do with it.
    pub fn protection(&self) -> Protection {
        self.protection
    }
}

/// Why a block was not pinned or not unpinned; its state is as before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnerError {
    /// What the system says.
    pub errno: Errno,
    /// Whether a limit was met that fewer pinned blocks would keep: idle blocks are then released and pinning is tried again.
    pub limit: bool,
    /// What was tried, and what an operator can do.
    pub hint: String,
}

impl fmt::Display for PinnerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.errno, self.hint)
    }
}

impl std::error::Error for PinnerError {}

/// Something that pins blocks. Called without any lock held, from several threads at once, but never for one block at a time
/// from two of them: `pin` and `unpin` of a block alternate.
pub trait Pinner: fmt::Debug + Send + Sync {
    /// Makes the block resident and keeps its pages in place until `unpin`.
    ///
    /// # Errors
    /// It is not pinned, and nothing is left of the attempt.
    fn pin(&self, block: &Block) -> Result<(), PinnerError>;

    /// Undoes `pin`.
    ///
    /// # Errors
    /// It is still pinned.
    fn unpin(&self, block: &Block) -> Result<(), PinnerError>;
}
