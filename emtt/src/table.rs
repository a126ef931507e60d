//! The table itself: keys, regions, and the lookup of the data path.
//!
//! A key is the number of a slot (upper 20 bits) and a variant (lower 12 bits) that changes each time the slot is used
//! again. Slots wait in a queue before they are used again, so that a key that was removed stays invalid for at least
//! [`QUARANTINE`] x 4096 registrations, as long as the table is not nearly full. Variants start at a seeded random value,
//! so keys can neither be counted up nor are they the same in two runs.
//!
//! A driver that chooses keys itself, as a virtual machine's does, has its regions inserted under names: a name is a key
//! within one protection domain only, and a region that has one is found by nothing else.

use crate::region::{Region, Segments};
use crate::{Access, PdId, Segment};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

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
    /// The region lacks these rights.
    #[error("the region does not allow {0:?}")]
    Access(Access),
    /// The range is not within the region.
    #[error("{len} bytes at {addr:#x} are not within the region")]
    Bounds {
        /// First byte asked for.
        addr: u64,
        /// Bytes asked for.
        len: u64,
    },
}

struct Slot {
    /// The key of the region, or the key that comes next while the slot is free.
    key: u32,
    /// What the variant advances by; odd, so that all 4096 variants come before one repeats.
    step: u32,
    region: Option<Region>,
    /// What the region is called within its protection domain, if it was given a name.
    name: Option<u32>,
}

/// Memory keys and their regions.
pub struct Table {
    slots: Vec<Slot>,
    free: VecDeque<u32>,
    /// Key of each region that has a name.
    named: BTreeMap<(PdId, u32), u32>,
    /// State of the generator that variants start from.
    random: u64,
}

impl Table {
    /// An empty table. Tables with the same seed and the same calls give the same keys.
    pub fn new(seed: u64) -> Table {
        Table { slots: Vec::new(), free: VecDeque::new(), named: BTreeMap::new(), random: seed }
    }

    /// Number of regions.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there are no regions.
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
        let index = self.free_slot()?;
        let slot = &mut self.slots[index];
        slot.region = Some(region);
        Ok(slot.key)
    }

    /// Adds a region as [`Self::insert`] does, but requests of its protection domain name it `name`, and only so. The key
    /// returned serves [`Self::get`] and [`Self::remove`].
    ///
    /// # Errors
    /// See [`TableError`].
    pub fn insert_named(&mut self, init: RegionInit, name: u32) -> Result<u32, TableError> {
        let at = (init.pd, name);
        if self.named.contains_key(&at) {
            return Err(TableError::NameTaken(name));
        }
        let key = self.insert(init)?;
        self.slots[slot_of(key)].name = Some(name);
        self.named.insert(at, key);
        Ok(key)
    }

    /// The key of the region that requests of this protection domain call `key`; `None` if there is none.
    pub fn resolve(&self, pd: PdId, key: u32) -> Option<u32> {
        match self.slots.get(slot_of(key)) {
            Some(Slot { key: own, region: Some(region), name: None, .. }) if *own == key && region.pd() == pd => Some(key),
            _ => self.named.get(&(pd, key)).copied(),
        }
    }

    /// Puts another region in the place of the one with this key, which stays as it is. Not for regions that have a name.
    ///
    /// # Errors
    /// See [`TableError`].
    pub fn replace(&mut self, key: u32, init: RegionInit) -> Result<(), TableError> {
        let slot = self.slots.get_mut(slot_of(key));
        match slot.filter(|slot| slot.key == key && slot.region.is_some() && slot.name.is_none()) {
            Some(slot) => {
                slot.region = Some(Region::new(init)?);
                Ok(())
            }
            None => Err(TableError::NotFound(key)),
        }
    }

    /// Removes a region; its key is invalid from here on.
    ///
    /// # Errors
    /// [`TableError::NotFound`].
    pub fn remove(&mut self, key: u32) -> Result<(), TableError> {
        let index = slot_of(key);
        match self.slots.get_mut(index) {
            Some(slot) if slot.key == key && slot.region.is_some() => {
                let region = slot.region.take();
                if let (Some(region), Some(name)) = (region, slot.name.take()) {
                    self.named.remove(&(region.pd(), name));
                }
                slot.key = next_key(slot.key, slot.step);
                self.free.push_back(key >> VARIANT_BITS);
                Ok(())
            }
            _ => Err(TableError::NotFound(key)),
        }
    }

    /// The region with this key.
    #[inline]
    pub fn get(&self, key: u32) -> Option<&Region> {
        self.slots.get(slot_of(key)).filter(|slot| slot.key == key)?.region.as_ref()
    }

    /// Finds the memory behind `len` bytes at `addr`, an address in the region's own space. All of the range is checked
    /// before any of it is returned. A range of 0 bytes has no segments, but everything about it is checked all the same;
    /// it may lie at the end of the region.
    ///
    /// # Errors
    /// See [`TranslateError`]; key, protection domain, rights and bounds are checked in this order.
    #[inline]
    pub fn translate(&self, key: u32, pd: PdId, addr: u64, len: u64, needs: Access) -> Result<Segments<'_>, TranslateError> {
        let region = match self.slots.get(slot_of(key)) {
            Some(Slot { key: own, region: Some(region), name: None, .. }) if *own == key && region.pd() == pd => region,
            _ => self.named_or_why(key, pd)?,
        };
        if !region.access().contains(needs) {
            return Err(TranslateError::Access(needs.difference(region.access())));
        }
        region.segments(addr, len).ok_or(TranslateError::Bounds { addr, len })
    }

    /// Off the usual way: a region by its name, or why there is none.
    fn named_or_why(&self, key: u32, pd: PdId) -> Result<&Region, TranslateError> {
        if let Some(region) = self.named.get(&(pd, key)).and_then(|key| self.get(*key)) {
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
        let random = self.next_random();
        let step = random as u32 | 1;
        let first = (index as u32) << VARIANT_BITS | (random >> 32) as u32 & VARIANT_MASK;
        self.slots.push(Slot { key: unreserved(first, step), step, region: None, name: None });
        Ok(index)
    }

    /// SplitMix64: a counter, well mixed.
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.random ^ self.random >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }
}

#[inline]
fn slot_of(key: u32) -> usize {
    (key >> VARIANT_BITS) as usize
}

/// The key with the variant that comes after that of `key`.
fn next_key(key: u32, step: u32) -> u32 {
    unreserved(key & !VARIANT_MASK | key.wrapping_add(step) & VARIANT_MASK, step)
}

/// `key`, or the next one if it is reserved. No slot has more than one reserved key.
fn unreserved(key: u32, step: u32) -> u32 {
    if RESERVED_KEYS.contains(&key) { key & !VARIANT_MASK | key.wrapping_add(step) & VARIANT_MASK } else { key }
}
