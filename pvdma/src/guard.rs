//! A registration's hold on its blocks.

use crate::address::{Gpa, GpaRange, Hva};
use crate::dma_map::Piece;
use crate::map_cache::Shared;
use crate::region::Region;
use core::fmt;
use std::sync::Arc;

/// Keeps the blocks of one range pinned until it is dropped. Afterwards they stay pinned as idle blocks, for the next
/// registration, until age, budget or pressure take them.
///
/// A guard does not hold up an unmap: then its memory is gone and its translations are void, which [`Region::enter`] tells.
pub struct PinGuard {
    pub(crate) shared: Arc<Shared>,
    pub(crate) pieces: Vec<Piece>,
    /// Pieces of which the blocks are held, from the first on.
    pub(crate) held: usize,
}

/// A part of a pinned range that lies in one region: the translation to store for it.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The region; to be kept with the address, as the address alone may come to mean other memory.
    pub region: &'a Arc<Region>,
    /// Its first byte as the guest knows it, and as a device behind an IOMMU does.
    pub gpa: Gpa,
    /// Its first byte in this process. To be used within [`Region::enter`] only.
    pub hva: Hva,
    /// Bytes, 1 or more.
    pub len: u64,
}

impl PinGuard {
    /// The translations of the range, in ascending order: one per region that it touches.
    pub fn segments(&self) -> impl Iterator<Item = Segment<'_>> {
        self.pieces.iter().map(|Piece { region, range }| Segment {
            region,
            gpa: range.start(),
            hva: region.hva(range.start()).expect("only memory is pinned"),
            len: range.len(),
        })
    }

    /// The whole range.
    pub fn range(&self) -> GpaRange {
        let (first, last) = (&self.pieces[0].range, &self.pieces[self.pieces.len() - 1].range);
        GpaRange::new(first.start(), last.end().0 - first.start().0).expect("a range was pinned")
    }

    /// Whether some of its memory was unmapped meanwhile.
    pub fn is_stale(&self) -> bool {
        self.pieces.iter().any(|piece| piece.region.is_ended())
    }
}

impl fmt::Debug for PinGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinGuard").field("range", &self.range()).field("stale", &self.is_stale()).finish_non_exhaustive()
    }
}

impl Drop for PinGuard {
    fn drop(&mut self) {
        for piece in &self.pieces[..self.held] {
            self.shared.unpin_piece(piece);
        }
    }
}
