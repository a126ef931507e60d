//! One region of guest memory, as one DMA map brought it: bounds, rights, host address, blocks, and who uses it now.
//!
//! A region is never changed, only ended. Its [`Generation`] is never used again, so whoever holds a translation of an
//! ended region can be told apart from whoever holds one of its successor at the same address. Access goes through
//! [`Region::enter`]: while a [`RegionUse`] exists, the host memory stays mapped and the blocks that are pinned stay pinned;
//! once the region is being unmapped, nobody gets in.

use crate::address::{Gpa, GpaRange, Hva};
use crate::blocks::{BLOCKS_PER_CHUNK, Blocks};
use crate::gate::Gate;
use crate::mapping::Mapping;
use crate::protection::Protection;
use core::ops::Range;
use core::ptr::without_provenance_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use vm_memory::VolatileSlice;

/// The number of a DMA map. Never used again within one cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub(crate) u64);

impl Generation {
    /// The number, 1 or more.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// Why a region has no memory that could be pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpinnable {
    /// The DMA map came without a descriptor.
    NoDescriptor,
    /// It is an object that must not be pinned, such as a doorbell window.
    KeptOut,
}

/// Why a range of a region cannot be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The range is not within the region.
    #[error("{0} are not within the region")]
    Bounds(GpaRange),
    /// The region lacks these rights.
    #[error("the region does not allow {0:?}")]
    Protection(Protection),
    /// The region has no memory of this process behind it.
    #[error("no memory is mapped for the region: {0:?}")]
    Unpinnable(Unpinnable),
}

/// One region of the guest's DMA map.
#[derive(Debug)]
pub struct Region {
    generation: Generation,
    range: GpaRange,
    protection: Protection,
    /// Host address of the first byte.
    base: Result<Hva, Unpinnable>,
    /// Taken when the region has ended.
    mapping: Mutex<Option<Mapping>>,
    gate: Gate,
    /// The blocks, by GiB, made when the first of them is pinned: a region costs as good as nothing before.
    chunks: Box<[OnceLock<Box<Blocks>>]>,
    /// Bytes that guards ask for, summed over guards.
    pub(crate) registered: AtomicU64,
    /// Bytes of pinned blocks that at least one guard holds.
    pub(crate) busy: AtomicU64,
}

impl Region {
    pub(crate) fn new(
        generation: Generation,
        range: GpaRange,
        protection: Protection,
        mapping: Result<Mapping, Unpinnable>,
    ) -> Region {
        let (first, last) = range.frames();
        // At most one entry per GiB of a region whose length the map limits.
        let chunks = ((last - first) / BLOCKS_PER_CHUNK as u64 + 1) as usize;
        let base = mapping.as_ref().map(Mapping::base).map_err(|why| *why);
        Region {
            generation,
            range,
            protection,
            base,
            mapping: Mutex::new(mapping.ok()),
            gate: Gate::new(),
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            registered: AtomicU64::new(0),
            busy: AtomicU64::new(0),
        }
    }

    /// Its number.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Its guest-physical addresses.
    pub fn range(&self) -> GpaRange {
        self.range
    }

    /// What devices may do with it.
    pub fn protection(&self) -> Protection {
        self.protection
    }

    /// Whether it is being unmapped or was.
    pub fn is_ended(&self) -> bool {
        self.gate.is_closed()
    }

    /// Begins an access; `None` once the region is being unmapped. Unmapping waits for the end of every access: keep it
    /// as short as one copy, and never unmap while holding one.
    pub fn enter(&self) -> Option<RegionUse<'_>> {
        // Not `then_some`: a use that is made leaves when it is dropped.
        self.gate.enter().then(|| RegionUse { region: self })
    }

    /// Begins an access that lasts until what is returned is dropped; `None` once the region is being unmapped. For a data path
    /// that is told before an unmap and then lets go: an unmap waits for it as for any access.
    pub fn hold(self: &Arc<Region>) -> Option<RegionHold> {
        self.gate.enter().then(|| RegionHold { region: self.clone() })
    }

    /// Lets nobody in any more; false if another did that before.
    pub(crate) fn close(&self) -> bool {
        self.gate.close()
    }

    /// Waits until nobody is inside.
    pub(crate) fn drain(&self) {
        self.gate.drain();
    }

    /// Gives the host memory back. After [`Region::drain`] only.
    pub(crate) fn drop_mapping(&self) {
        assert!(self.is_ended(), "memory of a live region is kept");
        drop(lock_mapping(&self.mapping).take());
    }

    /// Numbers of the blocks that `part`, within this region, touches: 0 is the region's first.
    pub(crate) fn blocks_of(&self, part: &GpaRange) -> Range<u64> {
        let (first, last) = part.frames();
        let origin = self.range.frames().0;
        first - origin..last - origin + 1
    }

    /// Where block `index` lies.
    pub(crate) fn block(&self, index: u64) -> GpaRange {
        self.range.in_frame(self.range.frames().0 + index)
    }

    /// Host address of `gpa`, which lies in the region.
    pub(crate) fn hva(&self, gpa: Gpa) -> Result<Hva, Unpinnable> {
        self.base.map(|base| Hva(base.0 + (gpa.0 - self.range.start().0)))
    }

    /// The chunk that holds block `index`, and the number of the block in it.
    pub(crate) fn chunk(&self, index: u64) -> (&Blocks, usize) {
        let per_chunk = BLOCKS_PER_CHUNK as u64;
        let blocks = self.chunks[(index / per_chunk) as usize].get_or_init(|| Box::new(Blocks::new(BLOCKS_PER_CHUNK)));
        (blocks, (index % per_chunk) as usize)
    }

    /// Every chunk in use, with the number of its first block.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = (u64, &Blocks)> {
        let numbered = self.chunks.iter().enumerate();
        numbered.filter_map(|(at, chunk)| Some(((at * BLOCKS_PER_CHUNK) as u64, &**chunk.get()?)))
    }

    pub(crate) fn add_busy(&self, index: u64) {
        self.busy.fetch_add(self.block(index).len(), Ordering::Relaxed);
    }

    pub(crate) fn sub_busy(&self, index: u64) {
        self.busy.fetch_sub(self.block(index).len(), Ordering::Relaxed);
    }
}

fn lock_mapping(mapping: &Mutex<Option<Mapping>>) -> std::sync::MutexGuard<'_, Option<Mapping>> {
    mapping.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A lasting access to a region: while it lives, the region's memory stays where it is.
#[derive(Debug)]
pub struct RegionHold {
    region: Arc<Region>,
}

impl RegionHold {
    /// The region.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Host address of the region's first byte.
    ///
    /// # Errors
    /// The region has no memory.
    pub fn base(&self) -> Result<Hva, Unpinnable> {
        self.region.base
    }
}

impl Drop for RegionHold {
    fn drop(&mut self) {
        self.region.gate.leave();
    }
}

/// An access to a region in progress: while it lives, the region's memory stays where it is.
#[derive(Debug)]
pub struct RegionUse<'a> {
    region: &'a Region,
}

impl RegionUse<'_> {
    /// The memory of `range`, which must lie in the region and allow `need`. Whether it is pinned is the caller's to know:
    /// memory that is not pinned costs a page fault.
    ///
    /// # Errors
    /// Out of bounds, rights, no memory.
    pub fn memory(&self, range: &GpaRange, need: Protection) -> Result<VolatileSlice<'_>, AccessError> {
        if !self.region.range.contains(range) {
            return Err(AccessError::Bounds(*range));
        }
        if !self.region.protection.contains(need) {
            return Err(AccessError::Protection(need - self.region.protection));
        }
        let hva = self.region.hva(range.start()).map_err(AccessError::Unpinnable)?;
        // No longer than the mapping, whose length is a usize.
        let len = range.len() as usize;
        // SAFETY: within the mapping, which exists until every use has ended.
        Ok(unsafe { VolatileSlice::new(without_provenance_mut(hva.0 as usize), len) })
    }
}

impl Drop for RegionUse<'_> {
    fn drop(&mut self) {
        self.region.gate.leave();
    }
}
