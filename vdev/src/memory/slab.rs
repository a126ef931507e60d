//! The table behind `MemId`: which memory a segment's owner is.

use super::dmabuf::Driver;
use super::mapping::SharedMapping;
use super::process::Process;
use emtt::MemId;
use pvdma::{Region, RegionHold};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use vdev_abi::mapping::Mapping;

/// Ids that wait before they are given out again, so that a segment that outlives its memory meets nothing rather than another
/// tenant's memory. The core's own bookkeeping is what prevents such segments; this bounds the harm of a bug there.
const RESTING: usize = 1024;

/// One memory space.
#[derive(Debug)]
pub(super) enum Memory {
    /// Reached through the kernel; addresses are the process's.
    Process(Arc<Process>),
    /// Reached directly; addresses are offsets.
    Mapped {
        base: *mut u8,
        len: u64,
        /// Keeps `base..base + len` mapped.
        keep: Keep,
    },
    /// Has no memory, or was taken away while segments may still name it. A region that is kept keeps its address.
    Ended { _region: Option<Arc<Region>> },
}

impl Memory {
    fn driver(&self) -> Option<&Driver> {
        if let Memory::Mapped { keep: Keep::Shared(mapping), .. } = self { mapping.driver() } else { None }
    }
}

// SAFETY: `base` belongs to `keep`, which may be sent.
unsafe impl Send for Memory {}

#[derive(Debug)]
pub(super) enum Keep {
    Shared(Arc<SharedMapping>),
    Ring { _mapping: Arc<Mapping> },
    Guest { _hold: RegionHold },
}

/// All memory spaces. Adding one that is there already gives the same id and counts.
#[derive(Debug, Default)]
pub(super) struct Slab {
    entries: Vec<Option<Entry>>,
    resting: VecDeque<u32>,
    /// Of these, memory spaces whose driver has to hear of accesses.
    driven: usize,
    by_address: HashMap<usize, MemId>,
}

#[derive(Debug)]
struct Entry {
    memory: Memory,
    users: usize,
    /// Where the shared value lies: tells whether it is already here.
    address: usize,
}

impl Slab {
    pub(super) fn add_process(&mut self, process: Arc<Process>) -> MemId {
        let address = Arc::as_ptr(&process).addr();
        self.add(address, || Memory::Process(process))
    }

    pub(super) fn add_mapping(&mut self, mapping: Arc<SharedMapping>) -> MemId {
        let (base, len) = (mapping.as_ptr(), mapping.len() as u64);
        let address = Arc::as_ptr(&mapping).addr();
        let driven = usize::from(mapping.driver().is_some() && !self.by_address.contains_key(&address));
        let id = self.add(address, || Memory::Mapped { base, len, keep: Keep::Shared(mapping) });
        self.driven += driven;
        id
    }

    pub(super) fn add_ring(&mut self, mapping: Arc<Mapping>) -> MemId {
        let (base, len) = (mapping.as_ptr(), mapping.len() as u64);
        let address = Arc::as_ptr(&mapping).addr();
        self.add(address, || Memory::Mapped { base, len, keep: Keep::Ring { _mapping: mapping } })
    }

    /// A region of a guest's DMA map; addresses are offsets in it. One that has no memory, or has ended, is there as well, and
    /// every access to it fails.
    pub(super) fn add_guest(&mut self, region: &Arc<Region>) -> MemId {
        let len = region.range().len();
        self.add(Arc::as_ptr(region).addr(), || match region.hold().map(|hold| (hold.base(), hold)) {
            Some((Ok(base), hold)) => {
                let base = std::ptr::without_provenance_mut(base.0 as usize);
                Memory::Mapped { base, len, keep: Keep::Guest { _hold: hold } }
            }
            _ => Memory::Ended { _region: Some(region.clone()) },
        })
    }

    /// Lets go of a guest's region: from here on every access to it fails. Its id stays with those who have it.
    pub(super) fn end_guest(&mut self, region: &Arc<Region>) {
        if let Some(id) = self.by_address.remove(&Arc::as_ptr(region).addr()) {
            self.entries[id.0 as usize].as_mut().expect("an entry for every address").memory = Memory::Ended { _region: None };
        }
    }

    fn add(&mut self, address: usize, memory: impl FnOnce() -> Memory) -> MemId {
        if let Some(&id) = self.by_address.get(&address) {
            self.entries[id.0 as usize].as_mut().expect("an entry for every address").users += 1;
            return id;
        }
        let entry = Some(Entry { memory: memory(), users: 1, address });
        let id = if self.resting.len() > RESTING {
            let id = self.resting.pop_front().expect("more than none");
            self.entries[id as usize] = entry;
            MemId(id)
        } else {
            self.entries.push(entry);
            MemId(u32::try_from(self.entries.len() - 1).expect("fewer than 2^32 memory spaces"))
        };
        self.by_address.insert(address, id);
        id
    }

    /// Undoes one `add`. Panics on an id that is not in use: our own bug.
    pub(super) fn remove(&mut self, id: MemId) {
        let slot = &mut self.entries[id.0 as usize];
        let entry = slot.as_mut().expect("a memory space in use");
        entry.users -= 1;
        if entry.users == 0 {
            // Something else may lie at the address of a region that has ended.
            if self.by_address.get(&entry.address) == Some(&id) {
                self.by_address.remove(&entry.address);
            }
            let is_driven = entry.memory.driver().is_some();
            *slot = None;
            self.driven -= usize::from(is_driven);
            self.resting.push_back(id.0);
        }
    }

    #[inline]
    pub(super) fn get(&self, id: MemId) -> Option<&Memory> {
        self.entries.get(id.0 as usize)?.as_ref().map(|entry| &entry.memory)
    }

    /// The memory space of a mapping, if it is one.
    pub(super) fn id_of(&self, mapping: &Arc<SharedMapping>) -> Option<MemId> {
        self.by_address.get(&Arc::as_ptr(mapping).addr()).copied()
    }

    /// Who has to hear of accesses to a memory space.
    pub(super) fn driver(&self, id: MemId) -> Option<&Driver> {
        self.get(id)?.driver()
    }

    /// Whether [`Self::driver`] has an answer for any.
    pub(super) fn has_drivers(&self) -> bool {
        self.driven > 0
    }

    /// Memory spaces in use.
    pub(super) fn len(&self) -> usize {
        self.by_address.len()
    }
}
