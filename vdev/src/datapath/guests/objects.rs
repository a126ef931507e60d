//! What the driver of a guest makes, changes and unmakes, executed between two rounds of the loop.
//!
//! Each call takes the guest and numbers, finds objects in that guest's tables and nowhere else, and calls the core. Refusals
//! are texts for the log: the guest sees that its command has failed.

use std::sync::Arc;

use emtt::{Access, MemId, Owner, Segment};
use pvdma::Region;
use rnic::{ControlError, MrInit, QpAttr, QpAttrMask, QpCaps, QpInit, QpState, QpType};
use roce::{Gid, Mtu, Psn, Qpn, Rkey};

use super::events::{CompletionQueue, EventQueue};
use super::rings::{Queue, QueuePair, Ring};
use super::{Adopted, Guest, GuestId, MemoryRegion, NoGuest, ProtectionDomain, RingMemory};
use crate::datapath::Datapath;
use crate::pci::Run;
use crate::pci::erdma::command::{AddressVector, CreateQp, Failed, ModifyQp, QueuePairKind, failed};
use crate::pci::erdma::layout::{Context, LOCAL_DMA_LKEY, SEND_SGE};

/// Send requests of one queue pair that the core holds; the guest's ring holds the others.
const CORE_SENDS: u32 = 2048;
/// READs and atomics outstanding: the driver does not say how many.
const RD_ATOMIC: u8 = rnic::limits::MAX_RD_ATOMIC;
/// What the driver does not say: ACK timeout 67 ms, 7 retries, no end of RNR retries, RNR timer 0.64 ms.
const TIMEOUT: u8 = 14;
const RETRY_CNT: u8 = 7;
const RNR_RETRY: u8 = 7;
const MIN_RNR_TIMER: u8 = 12;

/// Owner of what is no memory: every access to it fails.
const NOBODY: Owner = Owner::Host(MemId(u32::MAX));

/// Memory of a queue and of its doorbell record.
#[derive(Debug)]
pub struct QueueRuns {
    /// The ring.
    pub ring: Vec<Run>,
    /// The record, 8 bytes.
    pub record: Vec<Run>,
}

/// A region to be registered.
#[derive(Debug)]
pub struct NewRegion {
    /// Index.
    pub index: u32,
    /// Its key.
    pub key: u32,
    /// Protection domain.
    pub pdn: u32,
    /// Address of the first byte.
    pub iova: u64,
    /// Rights.
    pub access: Access,
    /// Its memory.
    pub runs: Vec<Run>,
}

/// What QUERY_QP answers.
#[derive(Clone, Copy, Debug)]
pub struct QpStatus {
    /// Next PSN to be sent.
    pub sq_psn: Psn,
    /// Next PSN expected.
    pub rq_psn: Psn,
    /// State.
    pub state: QpState,
    /// Still draining.
    pub draining: bool,
}

fn refused(error: ControlError) -> Failed {
    failed(error)
}

fn unknown(what: &str, number: u32) -> Failed {
    failed(format_args!("the guest has no {what} {number}"))
}

impl Datapath {
    pub(super) fn guest(&mut self, id: GuestId) -> Result<&mut Guest, Failed> {
        self.guests.get_mut(id).ok_or_else(|| failed(NoGuest))
    }

    /// The protection domain that the guest calls `pdn`, made when first named. Followed by something in it, or by
    /// [`Self::leave_pd`].
    pub(super) fn enter_pd(&mut self, id: GuestId, pdn: u32) -> Result<rnic::PdId, Failed> {
        let device = self.guest(id)?.device;
        if !self.guest(id)?.pds.contains_key(&pdn) {
            let pd = self.rnic.alloc_pd(device).map_err(refused)?;
            let pd = ProtectionDomain { id: pd, users: 0, kernel_qps: 0, all_memory: None };
            self.guest(id)?.pds.insert(pdn, pd);
        }
        let pd = self.guest(id)?.pds.get_mut(&pdn).expect("made above");
        pd.users += 1;
        Ok(pd.id)
    }

    /// A queue pair of the guest's kernel in a protection domain: it may use all memory.
    fn enter_kernel(&mut self, id: GuestId, pdn: u32) -> Result<(), Failed> {
        let pd = self.guest(id)?.pds.get_mut(&pdn).ok_or_else(|| unknown("protection domain", pdn))?;
        if pd.kernel_qps == 0 {
            self.open_all_memory(id, pdn)?;
        }
        if let Some(pd) = self.guest(id)?.pds.get_mut(&pdn) {
            pd.kernel_qps += 1;
        }
        Ok(())
    }

    /// With the last of them the region goes: the guest may give the number to a process next.
    fn leave_kernel(&mut self, id: GuestId, pdn: u32) {
        let Some(pd) = self.guests.get_mut(id).and_then(|guest| guest.pds.get_mut(&pdn)) else { return };
        pd.kernel_qps -= 1;
        if pd.kernel_qps == 0 {
            self.close_all_memory(id, pdn);
        }
    }

    fn leave_pd(&mut self, id: GuestId, pdn: u32) {
        let Some(guest) = self.guests.get_mut(id) else { return };
        let Some(pd) = guest.pds.get_mut(&pdn) else { return };
        pd.users -= 1;
        if pd.users == 0
            && let Some(pd) = guest.pds.remove(&pdn)
            && let Err(error) = self.rnic.dealloc_pd(pd.id)
        {
            tracing::error!(%error, "a protection domain of a guest outlived what was in it");
        }
    }

    /// All of the guest's memory, by guest-physical address: what lies between its regions is no memory.
    fn adopt_all(&mut self, regions: &[Arc<Region>]) -> Adopted {
        let runs = regions.iter().map(|region| Run { region: region.clone(), offset: 0, len: region.range().len() });
        let mut adopted = self.adopt(runs.collect());
        let (mut at, mut segments) = (0, Vec::with_capacity(2 * regions.len()));
        for (region, segment) in regions.iter().zip(std::mem::take(&mut adopted.segments)) {
            let range = region.range();
            segments.push(Segment { owner: NOBODY, addr: 0, len: range.start().0 - at });
            segments.push(segment);
            at = range.end().0;
        }
        adopted.segments = segments;
        adopted
    }

    /// Gives a protection domain with queue pairs of the guest's kernel its region of all memory, or a new one.
    fn open_all_memory(&mut self, id: GuestId, pdn: u32) -> Result<(), Failed> {
        self.close_all_memory(id, pdn);
        let guest = self.guest(id)?;
        let Some(pd) = guest.pds.get(&pdn).map(|pd| pd.id) else { return Ok(()) };
        let regions = guest.memory.clone();
        let mut memory = self.adopt_all(&regions);
        let init = MrInit { iova: 0, access: Access::LOCAL_WRITE, runs: std::mem::take(&mut memory.segments) };
        match self.rnic.reg_mr_named(pd, init, Rkey(LOCAL_DMA_LKEY)) {
            Ok(mr) => {
                let pd = self.guest(id)?.pds.get_mut(&pdn).expect("found above");
                pd.all_memory = Some((mr.lkey, memory));
                Ok(())
            }
            Err(error) => {
                self.release(memory);
                Err(refused(error))
            }
        }
    }

    fn close_all_memory(&mut self, id: GuestId, pdn: u32) {
        let pd = self.guests.get_mut(id).and_then(|guest| guest.pds.get_mut(&pdn));
        if let Some((lkey, memory)) = pd.and_then(|pd| pd.all_memory.take()) {
            let _ = self.rnic.dereg_mr(lkey);
            self.release(memory);
        }
    }

    /// The guest has this memory now, in ascending order.
    pub fn set_guest_memory(&mut self, id: GuestId, regions: Vec<Arc<Region>>) {
        let Some(guest) = self.guests.get_mut(id) else { return };
        guest.memory = regions;
        let open: Vec<u32> = guest.pds.iter().filter(|(_, pd)| pd.all_memory.is_some()).map(|(&pdn, _)| pdn).collect();
        for pdn in open {
            if let Err(reason) = self.open_all_memory(id, pdn) {
                tracing::warn!(%reason, "a guest's kernel cannot reach its memory");
            }
        }
    }

    /// Registers all of the guest's memory, by guest-physical address, under a key of the guest's choice.
    ///
    /// # Errors
    /// Why not; nothing was changed.
    pub fn guest_reg_all(&mut self, id: GuestId, new: NewRegion) -> Result<(), Failed> {
        let regions = self.guest(id)?.memory.clone();
        let memory = self.adopt_all(&regions);
        self.reg_adopted(id, new, memory)
    }

    /// New address handle; one with this number is replaced.
    ///
    /// # Errors
    /// The device has been removed.
    pub fn guest_create_ah(&mut self, id: GuestId, ahn: u32, address: &AddressVector, sgid_index: u8) -> Result<(), Failed> {
        self.guest(id)?.ahs.insert(ahn, address_to_core(address, sgid_index));
        Ok(())
    }

    /// Ends an address handle.
    ///
    /// # Errors
    /// There is none.
    pub fn guest_destroy_ah(&mut self, id: GuestId, ahn: u32) -> Result<(), Failed> {
        self.guest(id)?.ahs.remove(&ahn).map(drop).ok_or_else(|| unknown("address handle", ahn))
    }

    /// Registers memory that is pinned.
    ///
    /// # Errors
    /// Why not; nothing was changed.
    pub fn guest_reg_mr(&mut self, id: GuestId, mut new: NewRegion) -> Result<(), Failed> {
        self.guest(id)?;
        let memory = self.adopt(std::mem::take(&mut new.runs));
        self.reg_adopted(id, new, memory)
    }

    fn reg_adopted(&mut self, id: GuestId, new: NewRegion, mut memory: Adopted) -> Result<(), Failed> {
        let NewRegion { index, key, pdn, iova, access, runs: _ } = new;
        let guest = self.guest(id)?;
        let entered = match guest.mrs.contains_key(&index) || guest.fast.contains_key(&index) {
            true => Err(failed(format_args!("region {index} exists"))),
            false => self.enter_pd(id, pdn),
        };
        let pd = match entered {
            Ok(pd) => pd,
            Err(refusal) => {
                self.release(memory);
                return Err(refusal);
            }
        };
        let segments = std::mem::take(&mut memory.segments);
        match self.rnic.reg_mr_named(pd, MrInit { iova, access, runs: segments }, Rkey(key)) {
            Ok(mr) => {
                self.guest(id)?.mrs.insert(index, MemoryRegion { lkey: mr.lkey, pdn, memory });
                Ok(())
            }
            Err(error) => {
                self.release(memory);
                self.leave_pd(id, pdn);
                Err(refused(error))
            }
        }
    }

    /// Ends a registration. When this returns, nothing reads or writes its memory any more.
    ///
    /// # Errors
    /// There is none with this index.
    pub fn guest_dereg_mr(&mut self, id: GuestId, index: u32) -> Result<(), Failed> {
        if let Some(region) = self.guest(id)?.fast.remove(&index) {
            let pdn = region.pdn;
            self.end_fast(region);
            self.leave_pd(id, pdn);
            return Ok(());
        }
        let region = self.guest(id)?.mrs.remove(&index).ok_or_else(|| unknown("region", index))?;
        // A peer may have invalidated it.
        let _ = self.rnic.dereg_mr(region.lkey);
        self.release(region.memory);
        self.leave_pd(id, region.pdn);
        Ok(())
    }

    /// New event queue; 0 is that of asynchronous events.
    ///
    /// # Errors
    /// It exists.
    pub fn guest_create_eq(&mut self, id: GuestId, eqn: usize, ring: Vec<Run>, depth: u32) -> Result<(), Failed> {
        if self.guest(id)?.eqs[eqn].is_some() {
            return Err(failed(format_args!("event queue {eqn} exists")));
        }
        let memory = RingMemory::new(self.adopt(ring));
        self.guest(id)?.eqs[eqn] = Some(EventQueue::new(memory, depth));
        Ok(())
    }

    /// Ends an event queue; completion queues that use it have no events any more.
    ///
    /// # Errors
    /// There is none.
    pub fn guest_destroy_eq(&mut self, id: GuestId, eqn: usize) -> Result<(), Failed> {
        let eq = self.guest(id)?.eqs[eqn].take().ok_or_else(|| unknown("event queue", eqn as u32))?;
        self.release(eq.memory.adopted);
        Ok(())
    }

    /// New completion queue.
    ///
    /// # Errors
    /// Why not; nothing was changed.
    pub fn guest_create_cq(
        &mut self,
        id: GuestId,
        cqn: u32,
        eqn: usize,
        context: Context,
        depth: u32,
        ring: Vec<Run>,
    ) -> Result<(), Failed> {
        let guest = self.guest(id)?;
        if guest.cqs.contains_key(&cqn) {
            return Err(failed(format_args!("completion queue {cqn} exists")));
        }
        if guest.eqs[eqn].is_none() {
            return Err(unknown("event queue", eqn as u32));
        }
        let device = guest.device;
        let cq = self.rnic.create_cq(device).map_err(refused)?;
        let memory = RingMemory::new(self.adopt(ring));
        self.guest(id)?.cqs.insert(cqn, CompletionQueue::new(cq, memory, context, eqn, depth));
        self.guests.cq_by_id.insert(cq, (id.index, cqn));
        Ok(())
    }

    /// Ends a completion queue that no queue pair uses. Nothing is written to its ring any more.
    ///
    /// # Errors
    /// There is none, or it is in use.
    pub fn guest_destroy_cq(&mut self, id: GuestId, cqn: u32) -> Result<(), Failed> {
        let cq = self.guest(id)?.cqs.get(&cqn).ok_or_else(|| unknown("completion queue", cqn))?;
        let core = cq.id;
        self.rnic.destroy_cq(core).map_err(refused)?;
        if let Some(cq) = self.guest(id)?.cqs.remove(&cqn) {
            self.release(cq.memory.adopted);
        }
        self.guests.cq_by_id.remove(&core);
        Ok(())
    }

    /// New queue pair.
    ///
    /// # Errors
    /// Why not; nothing was changed.
    pub fn guest_create_qp(&mut self, id: GuestId, create: &CreateQp, send: QueueRuns, recv: QueueRuns) -> Result<(), Failed> {
        let qp_type = match create.kind {
            QueuePairKind::Rc => QpType::Rc,
            QueuePairKind::Ud => QpType::Ud,
        };
        let guest = self.guest(id)?;
        if guest.qps.contains_key(&create.qpn) {
            return Err(failed(format_args!("queue pair {} exists", create.qpn)));
        }
        let cq = |cqn: u32| guest.cqs.get(&cqn).map(|cq| cq.id).ok_or_else(|| unknown("completion queue", cqn));
        let (send_cq, recv_cq) = (cq(create.send_cqn)?, cq(create.recv_cqn)?);
        let pd = self.enter_pd(id, create.pdn)?;
        let caps = QpCaps {
            max_send_wr: create.send.depth.min(CORE_SENDS),
            max_recv_wr: create.recv.depth,
            max_send_sge: SEND_SGE,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let made = self.rnic.create_qp(pd, QpInit { qp_type, send_cq, recv_cq, srq: None, caps, all_signaled: false });
        let made = made.and_then(|qpn| {
            self.rnic.number_qp(qpn, Qpn::new(create.qpn)).map(|()| qpn).inspect_err(|_| {
                let _ = self.rnic.destroy_qp(self.now, qpn);
            })
        });
        let made = made.map_err(refused).and_then(|qpn| {
            if create.is_kernel {
                self.enter_kernel(id, create.pdn).inspect_err(|_| {
                    let _ = self.rnic.destroy_qp(self.now, qpn);
                })?;
            }
            Ok(qpn)
        });
        let qpn = match made {
            Ok(qpn) => qpn,
            Err(refusal) => {
                self.leave_pd(id, create.pdn);
                return Err(refusal);
            }
        };
        let [send, recv] = [(send, create.send.depth), (recv, create.recv.depth)].map(|(runs, depth)| {
            let (ring, record) = (RingMemory::new(self.adopt(runs.ring)), RingMemory::new(self.adopt(runs.record)));
            Queue { queue: Ring { ring, record, depth, ci: 0 }, rung: 0 }
        });
        let qp = QueuePair {
            qpn,
            pdn: create.pdn,
            send_cqn: create.send_cqn,
            recv_cqn: create.recv_cqn,
            send,
            recv,
            context: create.context,
            is_kernel: create.is_kernel,
            is_ud: create.kind == QueuePairKind::Ud,
            state: QpState::Reset,
            queued: false,
            is_full: false,
        };
        let guest = self.guest(id)?;
        for cqn in [create.send_cqn, create.recv_cqn] {
            guest.cqs.get_mut(&cqn).expect("looked up above").users += 1;
        }
        guest.qps.insert(create.qpn, qp);
        self.guests.qp_by_number.insert(qpn, (id.index, create.qpn));
        Ok(())
    }

    /// Ends a queue pair. When this returns nothing of it is read or written any more.
    ///
    /// # Errors
    /// There is none.
    pub fn guest_destroy_qp(&mut self, id: GuestId, number: u32) -> Result<(), Failed> {
        if !self.guest(id)?.qps.contains_key(&number) {
            return Err(unknown("queue pair", number));
        }
        // Completions that exist already are the guest's.
        self.deliver_completions();
        let qp = self.guest(id)?.qps.remove(&number).ok_or_else(|| unknown("queue pair", number))?;
        self.guests.ready.retain(|&ready| ready != (id.index, number));
        self.guests.qp_by_number.remove(&qp.qpn);
        if let Err(error) = self.rnic.destroy_qp(self.now, qp.qpn) {
            tracing::error!(number, %error, "a guest's queue pair was unknown to the core");
        }
        let guest = self.guest(id)?;
        for cqn in [qp.send_cqn, qp.recv_cqn] {
            if let Some(cq) = guest.cqs.get_mut(&cqn) {
                cq.users -= 1;
            }
        }
        let (pdn, is_kernel) = (qp.pdn, qp.is_kernel);
        self.release_queue_pair(qp);
        if is_kernel {
            self.leave_kernel(id, pdn);
        }
        self.leave_pd(id, pdn);
        Ok(())
    }

    /// Changes a queue pair. `mtu` is what the guest's network device carries; the source address was found in its GID table.
    ///
    /// # Errors
    /// Why not; the queue pair is as it was.
    pub fn guest_modify_qp(&mut self, id: GuestId, modify: &ModifyQp, sgid_index: u8, mtu: Mtu) -> Result<(), Failed> {
        let number = modify.qpn;
        let qp = self.guest(id)?.qps.get(&number).ok_or_else(|| unknown("queue pair", number))?;
        let (qpn, is_ud) = (qp.qpn, qp.is_ud);
        if modify.state != QpState::Reset {
            // What was posted before counts as posted before.
            self.drain_guest_qp(id.index, number);
        }
        let current = self.rnic.query_qp(qpn).map_err(refused)?;
        let device = self.guest(id)?.device;
        let mtu = self.rnic.port_mtu(device).map_or(mtu, |port| port.min(mtu));
        let (mask, attr) = attributes(&current, modify, is_ud, sgid_index, mtu);
        self.rnic.modify_qp(self.now, qpn, mask, &attr).map_err(refused)?;
        // What the change has flushed is in the guest's rings when the command completes.
        self.deliver_completions();
        let super::Guests { table, ready, .. } = &mut self.guests;
        let qp = table[id.index as usize].as_deref_mut().and_then(|guest| guest.qps.get_mut(&number)).expect("found above");
        qp.state = modify.state;
        qp.is_full = false;
        if modify.state == QpState::Reset {
            for queue in [&mut qp.send, &mut qp.recv] {
                queue.queue.ci = if qp.is_kernel { 0 } else { queue.queue.recorded(&mut self.memories) };
                queue.rung = 0;
            }
        } else {
            // In RTS what was posted too early goes out; in ERR everything is flushed.
            qp.queue(ready, id.index, number);
        }
        Ok(())
    }

    /// Flushes what a kernel queue pair in error was given up to these indices.
    ///
    /// # Errors
    /// There is no such queue pair.
    pub fn guest_reflush(&mut self, id: GuestId, number: u32, send: u16, recv: u16) -> Result<(), Failed> {
        let qp = self.guest(id)?.qps.get_mut(&number).ok_or_else(|| unknown("queue pair", number))?;
        (qp.send.rung, qp.recv.rung) = (send, recv);
        self.drain_guest_qp(id.index, number);
        Ok(())
    }

    /// State and sequence numbers.
    ///
    /// # Errors
    /// There is no such queue pair.
    pub fn guest_query_qp(&mut self, id: GuestId, number: u32) -> Result<QpStatus, Failed> {
        let qpn = self.guest(id)?.qps.get(&number).ok_or_else(|| unknown("queue pair", number))?.qpn;
        let QpAttr { sq_psn, rq_psn, state, sq_draining: draining, .. } = self.rnic.query_qp(qpn).map_err(refused)?;
        Ok(QpStatus { sq_psn, rq_psn, state, draining })
    }
}

/// What the core needs for a change of state: what the driver gives, and our own values for what it does not say.
fn attributes(current: &QpAttr, modify: &ModifyQp, is_ud: bool, sgid_index: u8, mtu: Mtu) -> (QpAttrMask, QpAttr) {
    use QpAttrMask as Mask;
    let mut mask = Mask::STATE;
    let mut attr = QpAttr { state: modify.state, cur_state: current.state, ..*current };
    match (current.state, modify.state) {
        (QpState::Reset, QpState::Init) if is_ud => {
            mask |= Mask::PKEY_INDEX | Mask::PORT;
            (attr.pkey_index, attr.port) = (0, 1);
        }
        (QpState::Init, QpState::Rtr) | (QpState::Rtr, QpState::Rts) if is_ud => {}
        (QpState::Reset, QpState::Init) => {
            mask |= Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS;
            (attr.pkey_index, attr.port) = (0, 1);
            // Regions alone decide: the driver does not pass on what the queue pair allows.
            attr.access = Access::all();
        }
        (QpState::Init, QpState::Rtr) => {
            mask |= Mask::PATH_MTU | Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER;
            (attr.path_mtu, attr.max_dest_rd_atomic, attr.min_rnr_timer) = (mtu, RD_ATOMIC, MIN_RNR_TIMER);
        }
        (QpState::Rtr, QpState::Rts) => {
            mask |= Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::MAX_QP_RD_ATOMIC;
            (attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic) = (TIMEOUT, RETRY_CNT, RNR_RETRY, RD_ATOMIC);
        }
        _ => {}
    }
    if let Some(qkey) = modify.qkey
        && is_ud
    {
        mask |= Mask::QKEY;
        attr.qkey = qkey;
    }
    if let Some(address) = &modify.address {
        mask |= Mask::AV;
        attr.address = address_to_core(address, sgid_index);
    }
    if let Some(psn) = modify.sq_psn {
        mask |= Mask::SQ_PSN;
        attr.sq_psn = Psn::new(psn);
    }
    if let Some(psn) = modify.rq_psn {
        mask |= Mask::RQ_PSN;
        attr.rq_psn = Psn::new(psn);
    }
    if let Some(dest_qpn) = modify.dest_qpn {
        mask |= Mask::DEST_QPN;
        attr.dest_qpn = Qpn::new(dest_qpn);
    }
    (mask, attr)
}

fn address_to_core(address: &AddressVector, sgid_index: u8) -> rnic::AddressVector {
    let &AddressVector { dgid: Gid(dgid), traffic_class, hop_limit, flow_label, service_level, .. } = address;
    rnic::AddressVector { dgid: Gid(dgid), sgid_index, traffic_class, hop_limit, flow_label, service_level, port: 1 }
}
