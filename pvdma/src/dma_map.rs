//! The guest's DMA map: which guest-physical ranges are memory, and lookups that cannot leave them.
//!
//! What comes from the VMM is hostile: every range is checked with sums that cannot wrap, nothing overlaps, and the number
//! of regions and their bytes are limited. Neither a map nor a lookup that fails changes anything.

use crate::address::{Gpa, GpaRange, PAGE_LEN, RangeError};
use crate::mapping::{Backing, BackingError};
use crate::protection::Protection;
use crate::region::{Generation, Region, Unpinnable};
use nix::errno::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A DMA map to be made.
#[derive(Debug)]
pub struct RegionInit {
    /// First byte, a multiple of [`PAGE_LEN`].
    pub gpa: Gpa,
    /// Bytes, a multiple of [`PAGE_LEN`], 1 page or more.
    pub len: u64,
    /// What devices may do with it; at least one right.
    pub protection: Protection,
    /// Its memory; without, the range is known but nothing in it can be pinned (ROM, memory of other devices).
    pub backing: Option<Backing>,
}

/// Limits of one guest's DMA map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapLimits {
    /// Regions at a time. Each costs one mapping of this process (`vm.max_map_count`).
    pub regions: usize,
    /// Bytes of all regions. They cost address space, and 16 bytes of memory per GiB before anything is pinned.
    pub bytes: u64,
}

impl Default for MapLimits {
    /// 4096 regions, 16 TiB.
    fn default() -> MapLimits {
        MapLimits { regions: 4096, bytes: 16 << 40 }
    }
}

/// Why a DMA map is refused. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// No bytes, or wrapping.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// Address or length is no multiple of [`PAGE_LEN`].
    #[error("address and length of {0} must be multiples of 4096")]
    Unaligned(GpaRange),
    /// Neither readable nor writable.
    #[error("{0} are neither readable nor writable")]
    NoAccess(GpaRange),
    /// Some of it is mapped already.
    #[error("{range} overlap with {existing}, which are mapped")]
    Overlaps {
        /// What was to be mapped.
        range: GpaRange,
        /// A region that has bytes of it.
        existing: GpaRange,
    },
    /// [`MapLimits::regions`] regions exist.
    #[error("{0} regions are mapped, the limit of one guest: unmap some, or let the VMM use larger ones")]
    TooManyRegions(usize),
    /// [`MapLimits::bytes`] would be exceeded.
    #[error("with {range} more than {limit:#x} bytes would be mapped, the limit of one guest")]
    TooManyBytes {
        /// What was to be mapped.
        range: GpaRange,
        /// The limit.
        limit: u64,
    },
    /// Its object cannot serve.
    #[error(transparent)]
    Backing(#[from] BackingError),
}

impl MapError {
    /// The error number for the reply to the VMM.
    pub fn errno(&self) -> i32 {
        match self {
            MapError::Overlaps { .. } => libc::EEXIST,
            MapError::TooManyRegions(_) | MapError::TooManyBytes { .. } => libc::ENOSPC,
            MapError::Backing(BackingError::System(errno)) => *errno as i32,
            _ => libc::EINVAL,
        }
    }
}

/// Why a range cannot be used for DMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// A byte of it is not mapped.
    #[error("{0} is not mapped")]
    NotMapped(Gpa),
    /// Part of it lacks these rights.
    #[error("the guest does not let devices have {missing:?} at {gpa}")]
    Protection {
        /// First byte without.
        gpa: Gpa,
        /// What is missing.
        missing: Protection,
    },
    /// Part of it has no memory that could be pinned.
    #[error("nothing at {gpa} can be pinned: {why:?}")]
    Unpinnable {
        /// First such byte.
        gpa: Gpa,
        /// Why.
        why: Unpinnable,
    },
}

/// Why a range was not unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnmapError {
    /// No bytes, or wrapping.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// No region lies in the range, or all that do are being unmapped by another call.
    #[error("no region lies in {0}")]
    NotMapped(GpaRange),
    /// A region lies in the range with some of its bytes only.
    #[error("{range} would split {region}: regions are unmapped whole")]
    Splits {
        /// What was to be unmapped.
        range: GpaRange,
        /// The region that would be split.
        region: GpaRange,
    },
    /// The regions are gone, but the pinner could not undo a pin: a device that does the DMA itself may still reach this
    /// memory and has to be stopped.
    #[error("{block} were unmapped, but could not be unpinned: {errno}")]
    StillPinned {
        /// The first such block.
        block: GpaRange,
        /// Why.
        errno: Errno,
    },
}

impl UnmapError {
    /// The error number for the reply to the VMM.
    pub fn errno(&self) -> i32 {
        match self {
            UnmapError::NotMapped(_) => libc::ENOENT,
            UnmapError::StillPinned { .. } => libc::EIO,
            _ => libc::EINVAL,
        }
    }
}

/// A part of one region.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) region: Arc<Region>,
    pub(crate) range: GpaRange,
}

/// Regions by first byte; no two overlap.
#[derive(Debug)]
pub(crate) struct DmaMap {
    limits: MapLimits,
    regions: BTreeMap<Gpa, Arc<Region>>,
    bytes: u64,
}

impl DmaMap {
    pub(crate) fn new(limits: MapLimits) -> DmaMap {
        DmaMap { limits, regions: BTreeMap::new(), bytes: 0 }
    }

    /// Checks all of `init` but its object, as far as it can be told without it.
    pub(crate) fn check(&self, init: &RegionInit) -> Result<GpaRange, MapError> {
        let range = GpaRange::new(init.gpa, init.len)?;
        if !init.gpa.0.is_multiple_of(PAGE_LEN) || !init.len.is_multiple_of(PAGE_LEN) {
            return Err(MapError::Unaligned(range));
        }
        if init.protection.is_empty() {
            return Err(MapError::NoAccess(range));
        }
        self.check_room(&range)?;
        Ok(range)
    }

    fn check_room(&self, range: &GpaRange) -> Result<(), MapError> {
        // Of the regions that begin before its end, only the last can reach into it.
        if let Some((_, last)) = self.regions.range(..range.end()).next_back()
            && last.range().common(range).is_some()
        {
            return Err(MapError::Overlaps { range: *range, existing: last.range() });
        }
        if self.regions.len() >= self.limits.regions {
            return Err(MapError::TooManyRegions(self.regions.len()));
        }
        if range.len() > self.limits.bytes.saturating_sub(self.bytes) {
            return Err(MapError::TooManyBytes { range: *range, limit: self.limits.bytes });
        }
        Ok(())
    }

    pub(crate) fn insert(&mut self, region: Arc<Region>) -> Result<(), MapError> {
        self.check_room(&region.range())?;
        self.bytes += region.range().len();
        self.regions.insert(region.range().start(), region);
        Ok(())
    }

    pub(crate) fn remove(&mut self, generation: Generation, start: Gpa) {
        if self.regions.get(&start).is_some_and(|region| region.generation() == generation) {
            let region = self.regions.remove(&start).expect("just seen");
            self.bytes -= region.range().len();
        }
    }

    /// All regions, in ascending order.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &Arc<Region>> {
        self.regions.values()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The regions that lie in `range`, of which none may lie in it only in part.
    pub(crate) fn within(&self, range: &GpaRange) -> Result<Vec<Arc<Region>>, UnmapError> {
        let before = self.regions.range(..range.start()).next_back().map(|(_, region)| region);
        let from_start = self.regions.range(range.start()..range.end()).map(|(_, region)| region);
        let mut found = Vec::new();
        for region in before.into_iter().chain(from_start) {
            match region.range().common(range) {
                None => (),
                Some(part) if part == region.range() => found.push(region.clone()),
                Some(_) => return Err(UnmapError::Splits { range: *range, region: region.range() }),
            }
        }
        if found.is_empty() { Err(UnmapError::NotMapped(*range)) } else { Ok(found) }
    }

    /// Calls `visit` with the parts of `range`, in ascending order: one, or several where regions adjoin. All are mapped,
    /// allow `need` and have memory, else none is visited.
    pub(crate) fn lookup(&self, range: &GpaRange, need: Protection, mut visit: impl FnMut(Piece)) -> Result<(), LookupError> {
        self.walk(range, need, |_, _| ())?;
        self.walk(range, need, |region, range| visit(Piece { region: region.clone(), range }))
    }

    fn walk(
        &self,
        range: &GpaRange,
        need: Protection,
        mut visit: impl FnMut(&Arc<Region>, GpaRange),
    ) -> Result<(), LookupError> {
        let mut at = range.start();
        let first = self.regions.range(..=at).next_back();
        let mut regions =
            first.into_iter().chain(self.regions.range((core::ops::Bound::Excluded(at), core::ops::Bound::Unbounded)));
        while at < range.end() {
            let mapped = regions.next().and_then(|(_, region)| Some((region, region.range().common(range)?)));
            let Some((region, part)) = mapped.filter(|(_, part)| part.start() == at) else {
                return Err(LookupError::NotMapped(at));
            };
            let missing = need - region.protection();
            if !missing.is_empty() {
                return Err(LookupError::Protection { gpa: at, missing });
            }
            if let Err(why) = region.hva(at) {
                return Err(LookupError::Unpinnable { gpa: at, why });
            }
            visit(region, part);
            at = part.end();
        }
        Ok(())
    }
}
