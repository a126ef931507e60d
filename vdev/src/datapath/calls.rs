//! Control calls of clients, executed between two rounds of the loop.
//!
//! Each takes the client and handles, finds the objects in that client's tables and nowhere else, and calls the core. Memory is
//! made and unmade by the control thread: what a call takes away from a client is returned to be dropped there.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use emtt::{Access, MemId, Owner, Segment};
use rnic::{ControlError, MrInit, QpInit, QpState, QpType, Rnic, WindowKind};
use roce::Gid;
use vdev_abi::completion::CqProducer;
use vdev_abi::control::{Handle, QpAttr, QpCaps, Refusal};
use vdev_abi::layout::{CqLayout, QpLayout};
use vdev_abi::mapping::Mapping;
use vdev_abi::queue::{RecvConsumer, SendConsumer};

use super::Datapath;
use super::clients::{Channel, Client, ClientId, CompletionQueue, QueuePair, Region, SharedReceiveQueue};
use super::handles::Handles;
use super::limits;
use crate::attr;
use crate::memory::{Memories, Piece, Place, Resolved, SharedMapping};

/// A refusal with this error number.
pub fn refuse(errno: i32, message: impl Into<String>) -> Refusal {
    Refusal { errno, message: message.into() }
}

pub(super) fn refused(error: &ControlError) -> Refusal {
    let errno = match error {
        ControlError::Invalid(_) | ControlError::NotFound(_) | ControlError::Shares(_) => libc::EINVAL,
        ControlError::Busy(_) => libc::EBUSY,
        ControlError::Limit(_) => libc::ENOMEM,
        ControlError::Unsupported(_) => libc::EOPNOTSUPP,
    };
    refuse(errno, error.to_string())
}

pub(super) fn unknown(kind: &str, handle: Handle) -> Refusal {
    refuse(libc::EINVAL, format!("this connection has no {kind} {handle:#x}"))
}

pub(super) fn full(kind: &str, limit: usize) -> Refusal {
    refuse(libc::ENOMEM, format!("this connection has {limit} {kind}, which is the limit"))
}

/// The client was ended by the datapath while the call was under way.
fn gone() -> Refusal {
    refuse(libc::EIO, "the daemon has ended this connection")
}

/// What a call answers.
pub(super) type Answer<T> = Result<T, Refusal>;

/// A new region.
pub struct NewRegion {
    /// Its handle.
    pub handle: Handle,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
}

/// A new queue pair.
pub struct NewQp {
    /// Its handle.
    pub handle: Handle,
    /// Its number.
    pub qpn: u32,
    /// Its doorbell slot.
    pub slot: u32,
}

/// What a new queue pair is made of, besides its memory.
#[derive(Clone, Copy, Debug)]
pub struct QpRequest {
    /// Transport service.
    pub qp_type: QpType,
    /// Protection domain.
    pub pd: Handle,
    /// Where send completions go.
    pub send_cq: Handle,
    /// Where receive completions go.
    pub recv_cq: Handle,
    /// Where receives come from instead of a ring of its own.
    pub srq: Option<Handle>,
    /// Sizes granted.
    pub caps: QpCaps,
    /// Every send request gives a completion.
    pub all_signaled: bool,
    /// The client's value for events.
    pub cookie: u64,
}

impl Datapath {
    /// The client and the core, which most calls need together.
    pub(super) fn with_client(&mut self, id: ClientId) -> Answer<(&mut Rnic, &mut Client)> {
        let client = self.clients.get_mut(id.index as usize).and_then(Option::as_deref_mut).filter(|client| client.is(id));
        Ok((&mut self.rnic, client.ok_or_else(gone)?))
    }

    /// New protection domain.
    pub fn alloc_pd(&mut self, id: ClientId) -> Answer<Handle> {
        let (rnic, client) = self.with_client(id)?;
        if !client.pds.has_room() {
            return Err(full("protection domains", limits::PDS));
        }
        let pd = rnic.alloc_pd(client.device).map_err(|error| refused(&error))?;
        Ok(client.pds.insert(pd).expect("room was checked"))
    }

    /// Ends a protection domain that nothing uses.
    pub fn dealloc_pd(&mut self, id: ClientId, handle: Handle) -> Answer<()> {
        let (rnic, client) = self.with_client(id)?;
        let &pd = client.pds.get(handle).ok_or_else(|| unknown("protection domain", handle))?;
        rnic.dealloc_pd(pd).map_err(|error| refused(&error))?;
        client.pds.remove(handle);
        Ok(())
    }

    /// Registers memory that [`crate::memory::resolve`] has resolved.
    pub fn reg_mr(&mut self, id: ClientId, pd: Handle, iova: u64, access: Access, resolved: Resolved) -> Answer<NewRegion> {
        let client = self.client(id).ok_or_else(gone)?;
        let &pd = client.pds.get(pd).ok_or_else(|| unknown("protection domain", pd))?;
        if !client.regions.has_room() {
            return Err(full("memory regions", limits::REGIONS));
        }
        let process = client.process;
        let (runs, mappings) = self.enter(process, resolved);
        let mr = match self.rnic.reg_mr(pd, MrInit { iova, access, runs }) {
            Ok(mr) => mr,
            Err(error) => {
                self.forget(&mappings);
                return Err(refused(&error));
            }
        };
        let client = self.clients[id.index as usize].as_deref_mut().expect("found above");
        self.windows.enter(id, client.regions.next_index(), &mappings);
        let handle = client.regions.insert(Region::new(mr.lkey, mappings)).expect("room was checked");
        Ok(NewRegion { handle, lkey: mr.lkey.0, rkey: mr.rkey.0 })
    }

    /// New region of zeros that forgets what is written to it, for the client's own requests.
    pub fn alloc_null_mr(&mut self, id: ClientId, pd: Handle) -> Answer<NewRegion> {
        let (rnic, client) = self.with_client(id)?;
        let &pd = client.pds.get(pd).ok_or_else(|| unknown("protection domain", pd))?;
        if !client.regions.has_room() {
            return Err(full("memory regions", limits::REGIONS));
        }
        let runs = vec![Segment { owner: Owner::Host(Memories::NULL), addr: 0, len: u64::MAX }];
        let mr = rnic.reg_mr(pd, MrInit { iova: 0, access: Access::LOCAL_WRITE, runs }).map_err(|error| refused(&error))?;
        let handle = client.regions.insert(Region::new(mr.lkey, Vec::new())).expect("room was checked");
        Ok(NewRegion { handle, lkey: mr.lkey.0, rkey: mr.rkey.0 })
    }

    /// Registers other memory under the keys of a region, and gives back what it held before.
    pub fn rereg_mr(
        &mut self,
        id: ClientId,
        handle: Handle,
        pd: Handle,
        iova: u64,
        access: Access,
        resolved: Resolved,
    ) -> Answer<(NewRegion, impl Send + use<>)> {
        let client = self.client(id).ok_or_else(gone)?;
        let &pd = client.pds.get(pd).ok_or_else(|| unknown("protection domain", pd))?;
        let lkey = client.regions.get(handle).ok_or_else(|| unknown("memory region", handle))?.lkey;
        let process = client.process;
        let (runs, mappings) = self.enter(process, resolved);
        if let Err(error) = self.rnic.rereg_mr(lkey, pd, MrInit { iova, access, runs }) {
            self.forget(&mappings);
            return Err(refused(&error));
        }
        let client = self.clients[id.index as usize].as_deref_mut().expect("found above");
        let index = Handles::<Region>::index_of(handle);
        let region = client.regions.get_mut(handle).expect("found above");
        self.windows.leave(index, &region.mappings);
        self.windows.enter(id, index, &mappings);
        let before = std::mem::replace(region, Region::new(lkey, mappings));
        self.forget(&before.mappings);
        Ok((NewRegion { handle, lkey: lkey.0, rkey: lkey.0 }, before))
    }

    /// Makes resolved memory known to the core: its segments, and the mappings among them.
    fn enter(&mut self, process: MemId, resolved: Resolved) -> (Vec<Segment>, Vec<(MemId, Arc<SharedMapping>)>) {
        let mut mappings = Vec::new();
        let mut runs = Vec::with_capacity(resolved.pieces.len());
        for Piece { addr, len, place } in resolved.pieces {
            let (owner, addr) = match place {
                Place::Process => (Owner::Host(process), addr),
                Place::Mapped { mapping, offset } => {
                    let mapped = self.memories.add_mapping(mapping.clone());
                    let owner = self.windows.owner(mapped, &mapping);
                    mappings.push((mapped, mapping));
                    (owner, offset)
                }
            };
            runs.push(Segment { owner, addr, len });
        }
        (runs, mappings)
    }

    fn forget(&mut self, mappings: &[(MemId, Arc<SharedMapping>)]) {
        for &(mapping, _) in mappings {
            self.memories.remove(mapping);
        }
    }

    /// Ends a registration. When this returns, nothing reads or writes the memory any more.
    pub fn dereg_mr(&mut self, id: ClientId, handle: Handle) -> Answer<impl Send + use<>> {
        let (rnic, client) = self.with_client(id)?;
        let lkey = client.regions.get(handle).ok_or_else(|| unknown("memory region", handle))?.lkey;
        rnic.dereg_mr(lkey).map_err(|error| refused(&error))?;
        let region = client.regions.remove(handle).expect("found above");
        self.windows.leave(Handles::<Region>::index_of(handle), &region.mappings);
        self.forget(&region.mappings);
        Ok(region)
    }

    /// New memory window: its handle and its key.
    pub fn alloc_mw(&mut self, id: ClientId, pd: Handle, kind: WindowKind) -> Answer<(Handle, u32)> {
        let (rnic, client) = self.with_client(id)?;
        let &pd = client.pds.get(pd).ok_or_else(|| unknown("protection domain", pd))?;
        if !client.windows.has_room() {
            return Err(full("memory windows", limits::WINDOWS));
        }
        let key = rnic.alloc_mw(pd, kind).map_err(|error| refused(&error))?;
        Ok((client.windows.insert((pd, key)).expect("room was checked"), key.0))
    }

    /// Ends a memory window. When this returns, nobody reaches anything by it.
    pub fn dealloc_mw(&mut self, id: ClientId, handle: Handle) -> Answer<()> {
        let (rnic, client) = self.with_client(id)?;
        let (pd, key) = client.windows.remove(handle).ok_or_else(|| unknown("memory window", handle))?;
        rnic.dealloc_mw(pd, key).map_err(|error| refused(&error))
    }

    /// New completion channel with this write end.
    pub fn create_channel(&mut self, id: ClientId, pipe: OwnedFd) -> Answer<Handle> {
        let client = self.client(id).ok_or_else(gone)?;
        let channel = Channel { pipe, cqs: 0, waiting: Vec::new() };
        client.channels.insert(channel).map_err(|_| full("completion channels", limits::CHANNELS))
    }

    /// Ends a channel that no completion queue uses.
    pub fn destroy_channel(&mut self, id: ClientId, handle: Handle) -> Answer<OwnedFd> {
        let (_, client) = self.with_client(id)?;
        let channel = client.channels.get(handle).ok_or_else(|| unknown("completion channel", handle))?;
        if channel.cqs > 0 {
            return Err(refuse(libc::EBUSY, format!("{} completion queues use this channel: destroy them first", channel.cqs)));
        }
        let channel = client.channels.remove(handle).expect("found above");
        self.epoll.remove(channel.pipe.as_fd());
        Ok(channel.pipe)
    }

    /// New completion queue over this memory.
    pub fn create_cq(
        &mut self,
        id: ClientId,
        ring: Mapping,
        layout: &CqLayout,
        channel: Option<Handle>,
        cookie: u64,
    ) -> Answer<Handle> {
        let (rnic, client) = self.with_client(id)?;
        if let Some(channel) = channel
            && client.channels.get(channel).is_none()
        {
            return Err(unknown("completion channel", channel));
        }
        if !client.cqs.has_room() {
            return Err(full("completion queues", limits::CQS));
        }
        charge(&mut client.ring_bytes, layout.bytes)?;
        let cq_id = match rnic.create_cq(client.device) {
            Ok(cq_id) => cq_id,
            Err(error) => {
                client.ring_bytes -= layout.bytes as u64;
                return Err(refused(&error));
            }
        };
        let index = client.cqs.next_index();
        let producer = CqProducer::new(layout);
        let cq = CompletionQueue {
            id: cq_id,
            ring,
            producer,
            channel,
            cookie,
            touched: false,
            solicited: false,
            event_waits: false,
        };
        let handle = client.cqs.insert(cq).expect("room was checked");
        if let Some(channel) = channel.and_then(|channel| client.channels.get_mut(channel)) {
            channel.cqs += 1;
        }
        self.cq_by_id.insert(cq_id, (id.index, index));
        Ok(handle)
    }

    /// Moves a completion queue to this memory, and gives the old one back.
    pub fn resize_cq(&mut self, id: ClientId, handle: Handle, ring: Mapping, layout: &CqLayout) -> Answer<Mapping> {
        // What was posted before and needs nobody else has completed before, as on a card: else a queue could be made too small for
        // completions that a program counts on.
        let (_, client) = self.with_client(id)?;
        let slots: Vec<u32> = client.qps.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.drain_queue_pair(id.index, slot);
        }
        self.transmit();
        // They are in the old ring before it is read.
        self.deliver_completions();
        let (_, client) = self.with_client(id)?;
        let Client { cqs, ring_bytes, .. } = client;
        let cq = cqs.get_mut(handle).ok_or_else(|| unknown("completion queue", handle))?;
        charge(ring_bytes, layout.bytes)?;
        match cq.producer.move_to(&cq.ring, &ring, layout) {
            Ok(producer) => {
                *ring_bytes -= cq.ring.len() as u64;
                cq.producer = producer;
                Ok(std::mem::replace(&mut cq.ring, ring))
            }
            Err(error) => {
                *ring_bytes -= layout.bytes as u64;
                Err(refuse(libc::EINVAL, format!("a completion queue of {} entries: {error}", layout.depth)))
            }
        }
    }

    /// Ends a completion queue that no queue pair uses.
    pub fn destroy_cq(&mut self, id: ClientId, handle: Handle) -> Answer<impl Send + use<>> {
        let (rnic, client) = self.with_client(id)?;
        let cq = client.cqs.get(handle).ok_or_else(|| unknown("completion queue", handle))?;
        rnic.destroy_cq(cq.id).map_err(|error| refused(&error))?;
        let cq = client.cqs.remove(handle).expect("found above");
        let index = Handles::<CompletionQueue>::index_of(handle);
        client.ring_bytes -= cq.ring.len() as u64;
        if let Some(channel) = cq.channel.and_then(|channel| client.channels.get_mut(channel)) {
            channel.cqs -= 1;
            channel.waiting.retain(|&waiting| waiting != index);
        }
        self.cq_by_id.remove(&cq.id);
        self.touched.retain(|&touched| touched != (id.index, index));
        Ok(cq.ring)
    }

    /// New queue pair over this memory.
    pub fn create_qp(&mut self, id: ClientId, memory: Arc<Mapping>, layout: &QpLayout, request: &QpRequest) -> Answer<NewQp> {
        let (rnic, client) = self.with_client(id)?;
        let QpRequest { qp_type, pd, send_cq, recv_cq, srq, caps, all_signaled, cookie } = *request;
        let &pd = client.pds.get(pd).ok_or_else(|| unknown("protection domain", pd))?;
        let send_cq = client.cqs.get(send_cq).ok_or_else(|| unknown("completion queue", send_cq))?.id;
        let recv_cq = client.cqs.get(recv_cq).ok_or_else(|| unknown("completion queue", recv_cq))?.id;
        let srq_id = match srq {
            None => None,
            Some(srq) => Some(client.srqs.get(srq).ok_or_else(|| unknown("shared receive queue", srq))?.id),
        };
        if !client.qps.has_room() {
            return Err(full("queue pairs", vdev_abi::layout::QP_SLOTS));
        }
        charge(&mut client.ring_bytes, layout.bytes)?;
        let init = QpInit { qp_type, send_cq, recv_cq, srq: srq_id, caps: attr::caps_to_core(&caps), all_signaled };
        let qpn = match rnic.create_qp(pd, init) {
            Ok(qpn) => qpn,
            Err(error) => {
                client.ring_bytes -= layout.bytes as u64;
                return Err(refused(&error));
            }
        };
        let ring = self.memories.add_ring(memory.clone());
        let client = self.client(id).expect("found above");
        let slot = client.qps.next_index();
        let qp = QueuePair {
            qpn,
            qp_type,
            memory,
            unkeyed: client.unkeyed(ring),
            send: SendConsumer::new(layout, &caps),
            recv: RecvConsumer::new(layout, &caps),
            srq: srq.map(Handles::<SharedReceiveQueue>::index_of),
            xrcd: None,
            queued: false,
            cookie,
        };
        let handle = client.qps.insert(qp).expect("room was checked");
        self.qp_by_number.insert(qpn, (id.index, slot));
        Ok(NewQp { handle, qpn: qpn.get(), slot })
    }

    /// Changes attributes and state. What was posted before counts as posted before.
    pub fn modify_qp(&mut self, id: ClientId, handle: Handle, mask: u32, attr: &QpAttr) -> Answer<()> {
        let client = self.client(id).ok_or_else(gone)?;
        let qpn = client.qps.get(handle).ok_or_else(|| unknown("queue pair", handle))?.qpn;
        let (mask, attr) = attr::to_core(mask, attr).map_err(|error| refuse(libc::EINVAL, error.to_string()))?;
        let slot = Handles::<QueuePair>::index_of(handle);
        self.drain_queue_pair(id.index, slot);
        self.rnic.modify_qp(self.now, qpn, mask, &attr).map_err(|error| refused(&error))?;
        // The client may just have been ended for what its rings hold.
        let Some(qp) = self.client(id).and_then(|client| client.qps.get_mut(handle)) else { return Err(gone()) };
        if mask.contains(rnic::QpAttrMask::STATE) && attr.state == QpState::Reset {
            qp.send.skip_all(&qp.memory);
            qp.recv.skip_all(&qp.memory);
        }
        Ok(())
    }

    /// All attributes.
    pub fn query_qp(&mut self, id: ClientId, handle: Handle) -> Answer<QpAttr> {
        let (rnic, client) = self.with_client(id)?;
        let qp = client.qps.get(handle).ok_or_else(|| unknown("queue pair", handle))?;
        rnic.query_qp(qp.qpn).map(|attr| attr::from_core(&attr)).map_err(|error| refused(&error))
    }

    /// Ends a queue pair. When this returns, no further completion of it will be written.
    pub fn destroy_qp(&mut self, id: ClientId, handle: Handle) -> Answer<impl Send + use<>> {
        let client = self.client(id).ok_or_else(gone)?;
        client.qps.get(handle).ok_or_else(|| unknown("queue pair", handle))?;
        // Completions that exist already are the client's.
        self.deliver_completions();
        let client = self.client(id).ok_or_else(gone)?;
        let qp = client.qps.remove(handle).expect("found above");
        client.ring_bytes -= qp.memory.len() as u64;
        client.unuse_domain(qp.xrcd);
        let slot = Handles::<QueuePair>::index_of(handle);
        self.ready.retain(|&ready| ready != (id.index, slot));
        self.end_queue_pair(&qp, (id.index, slot));
        Ok(qp.memory)
    }

    /// A client has a queue pair no more, at this place: it ends, unless others have it too.
    pub(super) fn end_queue_pair(&mut self, qp: &QueuePair, place: (u32, u32)) {
        self.memories.remove(qp.unkeyed.ring);
        if qp.qp_type == QpType::XrcRecv {
            return self.leave_target(qp.qpn, place);
        }
        self.qp_by_number.remove(&qp.qpn);
        if let Err(error) = self.rnic.destroy_qp(self.now, qp.qpn) {
            tracing::error!(qpn = %qp.qpn, %error, "a queue pair was unknown to the core");
        }
    }

    /// Lets a queue pair join a multicast group.
    pub fn attach_multicast(&mut self, id: ClientId, handle: Handle, group: Gid) -> Answer<()> {
        let (rnic, client) = self.with_client(id)?;
        let qp = client.qps.get(handle).ok_or_else(|| unknown("queue pair", handle))?;
        rnic.attach_multicast(qp.qpn, group).map_err(|error| refused(&error))
    }

    /// Lets a queue pair leave a multicast group.
    pub fn detach_multicast(&mut self, id: ClientId, handle: Handle, group: Gid) -> Answer<()> {
        let (rnic, client) = self.with_client(id)?;
        let qp = client.qps.get(handle).ok_or_else(|| unknown("queue pair", handle))?;
        rnic.detach_multicast(qp.qpn, group).map_err(|error| refused(&error))
    }

    /// Gives the connection its staging buffer.
    pub fn create_staging(&mut self, id: ClientId, memory: Arc<Mapping>) -> Answer<()> {
        if self.client(id).ok_or_else(gone)?.staging.is_some() {
            return Err(refuse(libc::EEXIST, "this connection has its staging buffer already"));
        }
        let staging = self.memories.add_ring(memory.clone());
        let client = self.client(id).expect("found above");
        client.staging = Some((memory, staging));
        let live: Vec<u32> = client.qps.iter().map(|(index, _)| index).collect();
        for index in live {
            let ring = client.qps.at(index).expect("listed above").unkeyed.ring;
            let unkeyed = client.unkeyed(ring);
            client.qps.at_mut(index).expect("listed above").unkeyed = unkeyed;
        }
        Ok(())
    }
}

pub(super) fn charge(ring_bytes: &mut u64, bytes: usize) -> Answer<()> {
    let wanted = *ring_bytes + bytes as u64;
    if wanted > limits::RING_BYTES {
        return Err(refuse(
            libc::ENOMEM,
            format!("queues of this connection would take {wanted} bytes of {}: use fewer or smaller ones", limits::RING_BYTES),
        ));
    }
    *ring_bytes = wanted;
    Ok(())
}
