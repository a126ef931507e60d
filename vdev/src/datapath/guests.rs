//! Virtual machines in the datapath: the objects that a guest's driver made, and their end.
//!
//! A guest is one device of one VMM, as a client is one connection of a program. The guest chooses the numbers of its objects;
//! here they are found by these, within the guest alone. Owns: the tables and the order of destruction. The threads of
//! [`crate::pci`] judge commands, pin memory and keep it pinned; [`objects`] makes and unmakes what they ask for, [`rings`]
//! posts what the rings hold, [`fast`] registers what these ask for, [`events`] writes completions and events.

pub mod events;
pub mod fast;
pub mod objects;
pub mod rings;

use std::sync::Arc;

use emtt::{MemId, Owner, Segment};
use pvdma::Region;
use rnic::{AddressVector, CqId, DeviceId, PdId};
use roce::{Lkey, Qpn};

use super::{Datapath, IdMap};
use crate::pci::{Interrupts, Run};
use events::{CompletionQueue, EventQueue};
use fast::FastRegion;
use rings::QueuePair;

/// Event queues of a guest: 0 is for asynchronous events, others for completions.
const EVENT_QUEUES: usize = crate::pci::erdma::layout::EVENT_QUEUES;

/// Names a guest of the datapath; never reused for another within 2^32 guests of the same index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestId {
    index: u32,
    generation: u32,
}

/// Guest memory that an object uses: where it is, and what is to be given back at the end.
#[derive(Debug, Default)]
pub struct Adopted {
    segments: Vec<Segment>,
    spaces: Vec<MemId>,
}

/// A registered region.
#[derive(Debug)]
struct MemoryRegion {
    lkey: Lkey,
    pdn: u32,
    memory: Adopted,
}

/// A protection domain: there is no command that makes one, so it lives as long as it has something in it.
#[derive(Debug)]
struct ProtectionDomain {
    id: PdId,
    users: u32,
    /// Queue pairs of the guest's kernel: with these in it, it has a region of all memory.
    kernel_qps: u32,
    all_memory: Option<(Lkey, Adopted)>,
}

/// A guest.
pub struct Guest {
    generation: u32,
    device: DeviceId,
    interrupts: Arc<Interrupts>,
    /// Whether datagrams come over IPv6.
    ipv6: bool,
    /// All of its memory, in ascending order.
    memory: Vec<Arc<Region>>,
    ahs: IdMap<u32, AddressVector>,
    pds: IdMap<u32, ProtectionDomain>,
    mrs: IdMap<u32, MemoryRegion>,
    /// Regions for fast registration, by the same numbers.
    fast: IdMap<u32, FastRegion>,
    cqs: IdMap<u32, CompletionQueue>,
    qps: IdMap<u32, QueuePair>,
    eqs: [Option<EventQueue>; EVENT_QUEUES],
}

/// All guests, and their objects by the core's names.
#[derive(Default)]
pub struct Guests {
    table: Vec<Option<Box<Guest>>>,
    free: Vec<u32>,
    generation: u32,
    qp_by_number: IdMap<Qpn, (u32, u32)>,
    cq_by_id: IdMap<CqId, (u32, u32)>,
    /// Guest and number of queue pairs to be looked at in this round.
    ready: Vec<(u32, u32)>,
    ready_again: Vec<(u32, u32)>,
}

/// Objects of a guest, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestCounts {
    /// Queue pairs.
    pub qps: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Regions.
    pub mrs: usize,
}

/// The guest has been ended: its device was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device is removed")]
pub struct NoGuest;

impl Guests {
    fn get(&self, id: GuestId) -> Option<&Guest> {
        self.table.get(id.index as usize)?.as_deref().filter(|guest| guest.generation == id.generation)
    }

    /// The device that a queue pair of a guest belongs to.
    pub fn device_of_qp(&self, qpn: Qpn) -> Option<DeviceId> {
        let &(index, _) = self.qp_by_number.get(&qpn)?;
        self.table[index as usize].as_deref().map(|guest| guest.device)
    }

    fn get_mut(&mut self, id: GuestId) -> Option<&mut Guest> {
        self.at(id.index).filter(|guest| guest.generation == id.generation)
    }

    fn at(&mut self, index: u32) -> Option<&mut Guest> {
        self.table.get_mut(index as usize)?.as_deref_mut()
    }
}

impl Guest {
    fn new(generation: u32, device: DeviceId, ipv6: bool, interrupts: Arc<Interrupts>) -> Guest {
        Guest {
            generation,
            device,
            interrupts,
            ipv6,
            memory: Vec::new(),
            ahs: IdMap::default(),
            pds: IdMap::default(),
            mrs: IdMap::default(),
            fast: IdMap::default(),
            cqs: IdMap::default(),
            qps: IdMap::default(),
            eqs: Default::default(),
        }
    }
}

impl Datapath {
    /// Takes a guest that has nothing yet.
    pub fn attach_guest(&mut self, device: DeviceId, ipv6: bool, interrupts: Arc<Interrupts>) -> GuestId {
        let guests = &mut self.guests;
        guests.generation = guests.generation.wrapping_add(1);
        let generation = guests.generation;
        let guest = Guest::new(generation, device, ipv6, interrupts);
        let index = guests.free.pop().unwrap_or(guests.table.len() as u32);
        if index as usize == guests.table.len() {
            guests.table.push(None);
        }
        guests.table[index as usize] = Some(Box::new(guest));
        GuestId { index, generation }
    }

    /// Ends everything that a guest made; the guest stays.
    pub fn reset_guest(&mut self, id: GuestId) {
        let Some(guest) = self.guests.get_mut(id) else { return };
        let mut empty = Guest::new(guest.generation, guest.device, guest.ipv6, guest.interrupts.clone());
        empty.memory = std::mem::take(&mut guest.memory);
        let old = std::mem::replace(guest, empty);
        self.take_apart_guest(id.index, old);
    }

    /// Ends a guest.
    pub fn detach_guest(&mut self, id: GuestId) {
        if self.guests.get(id).is_none() {
            return;
        }
        if let Some(guest) = self.guests.table[id.index as usize].take() {
            self.guests.free.push(id.index);
            self.take_apart_guest(id.index, *guest);
        }
    }

    fn take_apart_guest(&mut self, index: u32, guest: Guest) {
        self.guests.ready.retain(|&(other, _)| other != index);
        for qp in guest.qps.into_values() {
            self.guests.qp_by_number.remove(&qp.qpn);
            // The device may have been removed from the core before, with all that it had.
            let _ = self.rnic.destroy_qp(self.now, qp.qpn);
            self.release_queue_pair(qp);
        }
        for cq in guest.cqs.into_values() {
            self.guests.cq_by_id.remove(&cq.id);
            let _ = self.rnic.destroy_cq(cq.id);
            self.release(cq.memory.adopted);
        }
        for mr in guest.mrs.into_values() {
            let _ = self.rnic.dereg_mr(mr.lkey);
            self.release(mr.memory);
        }
        for region in guest.fast.into_values() {
            self.end_fast(region);
        }
        for pd in guest.pds.into_values() {
            if let Some((lkey, memory)) = pd.all_memory {
                let _ = self.rnic.dereg_mr(lkey);
                self.release(memory);
            }
            let _ = self.rnic.dealloc_pd(pd.id);
        }
        for eq in guest.eqs.into_iter().flatten() {
            self.release(eq.memory.adopted);
        }
    }

    fn release_queue_pair(&mut self, qp: QueuePair) {
        let QueuePair { send, recv, .. } = qp;
        for queue in [send.queue, recv.queue] {
            self.release(queue.ring.adopted);
            self.release(queue.record.adopted);
        }
    }

    /// Opens guest memory to the data path.
    fn adopt(&mut self, runs: Vec<Run>) -> Adopted {
        let mut adopted = Adopted { segments: Vec::with_capacity(runs.len()), spaces: Vec::new() };
        let mut last: Option<(Arc<Region>, MemId)> = None;
        for Run { region, offset, len } in runs {
            let id = match &last {
                Some((before, id)) if Arc::ptr_eq(before, &region) => *id,
                _ => {
                    let id = self.memories.add_guest(&region);
                    adopted.spaces.push(id);
                    last = Some((region, id));
                    id
                }
            };
            adopted.segments.push(Segment { owner: Owner::Host(id), addr: offset, len });
        }
        adopted
    }

    /// The object that used it is gone from the core.
    fn release(&mut self, memory: Adopted) {
        for space in memory.spaces {
            self.memories.remove(space);
        }
    }

    /// Takes regions of guest memory away from whatever uses them: when this returns nothing accesses them any more.
    pub fn end_guest_memory(&mut self, id: GuestId, regions: &[Arc<Region>]) {
        for region in regions {
            self.memories.end_guest(region);
        }
        if let Some(guest) = self.guests.get_mut(id) {
            guest.memory.retain(|kept| !regions.iter().any(|ended| Arc::ptr_eq(kept, ended)));
        }
    }

    /// Objects of a guest.
    pub fn guest_counts(&self, id: GuestId) -> GuestCounts {
        let counts =
            |guest: &Guest| GuestCounts { qps: guest.qps.len(), cqs: guest.cqs.len(), mrs: guest.mrs.len() + guest.fast.len() };
        self.guests.get(id).map(counts).unwrap_or_default()
    }
}

/// Memory of a ring or a record, found by offset.
#[derive(Debug, Default)]
pub struct RingMemory {
    adopted: Adopted,
    /// Offset of the first byte of each segment.
    starts: Vec<u64>,
}

impl RingMemory {
    fn new(adopted: Adopted) -> RingMemory {
        let mut end = 0;
        let starts = adopted.segments.iter().map(|segment| {
            let start = end;
            end += segment.len;
            start
        });
        let starts = starts.collect();
        RingMemory { adopted, starts }
    }

    /// The one segment that holds `len` bytes from `offset` on. Entries of rings never lie across two pages.
    fn at(&self, offset: u64, len: u64) -> Option<Segment> {
        let index = self.starts.partition_point(|&start| start <= offset).checked_sub(1)?;
        let (segment, skip) = (self.adopted.segments[index], offset - self.starts[index]);
        let fits = skip + len <= segment.len;
        fits.then_some(Segment { owner: segment.owner, addr: segment.addr + skip, len })
    }
}
