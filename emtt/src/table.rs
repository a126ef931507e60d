//! The table itself: keys, regions, and the lookup of the data path.
//!
//! A key is the number of a slot (upper 20 bits) and a variant (lower 12 bits) that changes each time the slot is used
//! again. Slots wait in a queue before they are used again, so that a region's key that was removed stays invalid for at least
//! [`QUARANTINE`] x 4096 registrations, as long as the table is not nearly full. Variants start at a seeded random value,
//! so keys can neither be counted up nor are they the same in two runs.
//!
//! A driver that chooses keys itself, as a virtual machine's does, has its regions inserted under names: a name is a key
//! within one protection domain only, and a region that has one is found by nothing else.
//!
//! A slot may hold a window instead, see [`crate::window`].
//!
//! Each slot is one cache line of 64 bytes, and a lookup of a region that is contiguous in memory touches nothing else; what only
//! control commands need, 16 bytes, lies elsewhere. Memory in pieces takes 8 bytes per page or 32 per piece beside that, see
//! [`crate::runs`].
//!
//! A table has one owner, the thread that looks up and also registers: there is no lock, no atomic and nothing to race with, and
//! what a lookup returns borrows the table, so that nothing can be registered, removed or revoked while it is in use.

use crate::region::Region;
use crate::runs::Segments;
use crate::window::Window;
use crate::{Access, PdId, Segment, Via};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use roce::rng::Rng;

const VARIANT_BITS: u32 = 12;
const VARIANT_MASK: u32 = (1 << VARIANT_BITS) - 1;

/// Regions that the table can hold.
pub const MAX_REGIONS: usize = 1 << (32 - VARIANT_BITS);

/// How many free slots wait before the oldest one is used again.
pub const QUARANTINE: usize = 64;

/// Keys never given out: 0, which programs take for "none", and the local key that stands for staging memory at the
/// boundary to client programs.
const RESERVED_KEYS: [u32; 2] = [0, 0xFFFF_FF00];

/// What a new region is made of.
#[derive(Clone, Debug)]
pub struct RegionInit {
    /// Its protection domain.
    pub pd: PdId,
    /// Address of its first byte, as requests will name it; 0 for a zero-based region.
    pub iova: u64,
    /// Rights.
    pub access: Access,
    /// The memory behind it, in order. The region is as long as these together.
    pub runs: Vec<Segment>,
}

/// Why a region cannot be inserted or removed. The table is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Rights to change memory without [`Access::LOCAL_WRITE`].
    #[error("remote write or atomic access needs local write access")]
    Access,
    /// No bytes.
    #[error("a region of 0 bytes cannot be registered")]
    Empty,
    /// The region, or one of its runs, does not fit a 64-bit address space.
    #[error("the region wraps around the end of its address space")]
    Wraps,
    /// [`MAX_REGIONS`] regions exist.
    #[error("the table is full")]
    Full,
    /// There is no region with this key.
    #[error("no region has key {0:#010x}")]
    NotFound(u32),
    /// The protection domain has a region of this name.
    #[error("the protection domain has a region named {0:#010x}")]
    NameTaken(u32),
    /// Windows are bound to the region.
    #[error("{0} windows are bound to the region")]
    Bound(u32),
}

/// Why a range may not be accessed. To the peer all of these are a remote access error, to the owner a local protection
/// error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TranslateError {
    /// There is no region with this key.
    #[error("no region has key {0:#010x}")]
    Key(u32),
    /// The region belongs to another protection domain.
    #[error("the region belongs to {0:?}")]
    Pd(PdId),
    /// The window is bound for another queue pair.
    #[error("the window is bound for another queue pair")]
    QueuePair,
    /// The memory behind the region has been taken back.
    #[error("the memory behind the region has been taken back")]
    Revoked,
    /// The region or window lacks these rights.
    #[error("the region does not allow {0:?}")]
    Access(Access),
    /// The range is not within the region.
    #[error("{len} bytes at {addr:#x} are not within the region or window")]
    Bounds {
        /// First byte asked for.
        addr: u64,
        /// Bytes asked for.
        len: u64,
    },
}

/// What a slot holds.
pub(crate) enum Entry {
    Free,
    Region(Region),
    Window(Window),
}

/// What a lookup needs of a slot.
#[repr(align(64))]
pub(crate) struct Slot {
    /// The key of the region or window, or the key that comes next while the slot is free.
    pub key: u32,
    /// Whether the region is found by its name alone.
    named: bool,
    pub entry: Entry,
}

const _: () = assert!(size_of::<Slot>() == 64, "a slot is a cache line");

impl Slot {
    fn region(&self) -> Option<&Region> {
        if let Entry::Region(region) = &self.entry { Some(region) } else { None }
    }

    fn region_mut(&mut self) -> Option<&mut Region> {
        if let Entry::Region(region) = &mut self.entry { Some(region) } else { None }
    }
}

/// What no lookup needs of a slot.
pub(crate) struct Upkeep {
    /// What the variant advances by; odd, so that all 4096 variants come before one repeats.
    step: u32,
    /// Windows that are bound to the region.
    pub windows: u32,
    /// What the region is called within its protection domain, if it was given a name.
    name: Option<u32>,
}

/// Memory keys and their regions and windows.
pub struct Table {
    pub(crate) slots: Vec<Slot>,
    /// As many as there are slots.
    pub(crate) upkeep: Vec<Upkeep>,
    free: VecDeque<u32>,
    /// Key of each region that has a name.
    names: BTreeMap<(PdId, u32), u32>,
    /// Where variants start from.
    random: Rng,
}

impl Table {
    /// An empty table. Tables with the same seed and the same calls give the same keys.
    pub fn new(seed: u64) -> Table {
        let (slots, upkeep) = (Vec::new(), Vec::new());
        Table { slots, upkeep, free: VecDeque::new(), names: BTreeMap::new(), random: Rng::new(seed) }
    }

    /// Number of regions and windows.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there are neither.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a region and returns its key, local and remote key in one. Runs that continue each other are merged, and runs
    /// of 0 bytes dropped. The cost depends on the number of runs, not on the number of regions.
    ///
    /// # Errors
    /// See [`TableError`].
    pub fn insert(&mut self, init: RegionInit) -> Result<u32, TableError> {
        let region = Region::new(init)?;
        self.enter(Entry::Region(region))
    }

    /// Puts something into a free slot and returns its key.
    pub(crate) fn enter(&mut self, entry: Entry) -> Result<u32, TableError> {
        let index = self.free_slot()?;
        let slot = &mut self.slots[index];
        slot.entry = entry;
        Ok(slot.key)
    }

    /// Adds a region as [`Self::insert`] does, but requests of its protection domain name it `name`, and only so. The key
    /// returned serves [`Self::get`] and [`Self::remove`].
    ///
    /// # Errors
    /// See [`TableError`].
    pub fn insert_named(&mut self, init: RegionInit, name: u32) -> Result<u32, TableError> {
        let at = (init.pd, name);
        if self.names.contains_key(&at) {
            return Err(TableError::NameTaken(name));
        }
        let key = self.insert(init)?;
        self.slots[slot_of(key)].named = true;
        self.upkeep[slot_of(key)].name = Some(name);
        self.names.insert(at, key);
        Ok(key)
    }

    /// The key of the region that has this name within the protection domain; `None` if there is none.
    pub fn named(&self, pd: PdId, name: u32) -> Option<u32> {
        self.names.get(&(pd, name)).copied()
    }

    /// The key of the region that requests of this protection domain call `key`; `None` if there is none.
    pub fn resolve(&self, pd: PdId, key: u32) -> Option<u32> {
        match self.slots.get(slot_of(key)) {
            Some(Slot { key: own, named: false, entry: Entry::Region(region) }) if *own == key && region.pd() == pd => {
                Some(key)
            }
            _ => self.named(pd, key),
        }
    }

    /// Puts another region in the place of the one with this key, which stays as it is. Not for regions that have a name, or
    /// that windows are bound to.
    ///
    /// # Errors
    /// See [`TableError`].
    pub fn replace(&mut self, key: u32, init: RegionInit) -> Result<(), TableError> {
        let slot = self.slots.get_mut(slot_of(key)).filter(|slot| slot.key == key && !slot.named);
        let region = slot.and_then(Slot::region_mut).ok_or(TableError::NotFound(key))?;
        match self.upkeep[slot_of(key)].windows {
            0 => {
                *region = Region::new(init)?;
                Ok(())
            }
            windows => Err(TableError::Bound(windows)),
        }
    }

    /// The memory behind a region is no longer the tenant's, as when a GPU's memory is freed under it: from here on nothing reaches it,
    /// through windows neither. Key, name and windows stay until it is removed or replaced.
    ///
    /// # Errors
    /// [`TableError::NotFound`].
    pub fn revoke(&mut self, key: u32) -> Result<(), TableError> {
        let slot = self.slots.get_mut(slot_of(key)).filter(|slot| slot.key == key);
        slot.and_then(Slot::region_mut).ok_or(TableError::NotFound(key))?.revoke();
        Ok(())
    }

    /// Removes a region; its key is invalid from here on.
    ///
    /// # Errors
    /// [`TableError::NotFound`]; [`TableError::Bound`] while windows are bound to it.
    pub fn remove(&mut self, key: u32) -> Result<(), TableError> {
        let pd = self.get(key).ok_or(TableError::NotFound(key))?.pd();
        let Upkeep { step, windows, name } = self.upkeep[slot_of(key)];
        if windows > 0 {
            return Err(TableError::Bound(windows));
        }
        if let Some(name) = name {
            self.names.remove(&(pd, name));
        }
        self.free(key, next_key(key, step));
        Ok(())
    }

    /// Empties the slot of `key`, which is to have the key `next` when it is used again.
    pub(crate) fn free(&mut self, key: u32, next: u32) {
        let upkeep = &mut self.upkeep[slot_of(key)];
        upkeep.name = None;
        self.slots[slot_of(key)] = Slot { key: unreserved(next, upkeep.step), named: false, entry: Entry::Free };
        self.free.push_back(key >> VARIANT_BITS);
    }

    /// The region with this key.
    #[inline]
    pub fn get(&self, key: u32) -> Option<&Region> {
        self.slots.get(slot_of(key)).filter(|slot| slot.key == key)?.region()
    }

    /// Finds the memory behind `len` bytes at `addr`, an address in the region's own space, for the owner's own requests: windows
    /// are not found. All of the range is checked
    /// before any of it is returned. A range of 0 bytes has no segments, but everything about it is checked all the same;
    /// it may lie at the end of the region.
    ///
    /// # Errors
    /// See [`TranslateError`]; key, protection domain, rights and bounds are checked in this order.
    #[inline]
    pub fn translate(&self, key: u32, pd: PdId, addr: u64, len: u64, needs: Access) -> Result<Segments<'_>, TranslateError> {
        let region = match self.slots.get(slot_of(key)) {
            Some(Slot { key: own, named: false, entry: Entry::Region(region) }) if *own == key && region.pd() == pd => region,
            _ => self.named_or_why(key, pd)?,
        };
        region.check(needs)?;
        region.segments(addr, len).ok_or(TranslateError::Bounds { addr, len })
    }

    /// As [`Self::translate`], for what a peer asks for through a queue pair: `key` may be a window's, and `addr` is then an address
    /// in the window's own space.
    ///
    /// # Errors
    /// See [`TranslateError`], in the order of [`Self::translate`]; that a window is for another queue pair comes before its rights.
    #[inline]
    pub fn translate_remote(
        &self,
        key: u32,
        via: Via,
        addr: u64,
        len: u64,
        needs: Access,
    ) -> Result<Segments<'_>, TranslateError> {
        match self.slots.get(slot_of(key)) {
            Some(Slot { key: own, entry: Entry::Window(window), .. }) if *own == key => {
                let (region, offset) = window.reach(key, via, addr, len, needs)?;
                // What a window is bound to stays as it is, and was found to hold all of the window.
                let region = self.get(region).ok_or(TranslateError::Key(key))?;
                region.check(Access::empty())?;
                region.segments_at(offset, len).ok_or(TranslateError::Bounds { addr, len })
            }
            _ => self.translate(key, via.pd, addr, len, needs),
        }
    }

    /// Off the usual way: a region by its name, or why there is none.
    #[cold]
    fn named_or_why(&self, key: u32, pd: PdId) -> Result<&Region, TranslateError> {
        if let Some(region) = self.names.get(&(pd, key)).and_then(|key| self.get(*key)) {
            return Ok(region);
        }
        match self.get(key) {
            Some(region) if region.pd() != pd => Err(TranslateError::Pd(region.pd())),
            _ => Err(TranslateError::Key(key)),
        }
    }

    /// A free slot whose key has not been in use for long.
    fn free_slot(&mut self) -> Result<usize, TableError> {
        if self.free.len() > QUARANTINE || self.slots.len() == MAX_REGIONS {
            return self.free.pop_front().map(|index| index as usize).ok_or(TableError::Full);
        }
        let index = self.slots.len();
        let random = self.random.next_u64();
        let step = random as u32 | 1;
        let first = (index as u32) << VARIANT_BITS | (random >> 32) as u32 & VARIANT_MASK;
        self.slots.push(Slot { key: unreserved(first, step), named: false, entry: Entry::Free });
        self.upkeep.push(Upkeep { step, windows: 0, name: None });
        Ok(index)
    }
}

#[inline]
pub(crate) fn slot_of(key: u32) -> usize {
    (key >> VARIANT_BITS) as usize
}

/// The key with the variant that comes `step` after that of `key`.
pub(crate) fn next_key(key: u32, step: u32) -> u32 {
    key & !VARIANT_MASK | key.wrapping_add(step) & VARIANT_MASK
}

/// `key`, or the next one if it is reserved. No slot has more than one reserved key.
fn unreserved(key: u32, step: u32) -> u32 {
    if RESERVED_KEYS.contains(&key) { next_key(key, step) } else { key }
}
