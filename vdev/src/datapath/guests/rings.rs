//! From the rings of guests into the core.
//!
//! The order is that of [`crate::datapath::rings`]: receives of a queue pair, and of the one that its sends go to, are taken
//! before its sends. A ring stays the guest's store of requests: what the core has no room for is left there until it has. An
//! index beyond the ring's size, or an entry that makes no sense, costs that queue pair: it completes with an error.

use rnic::{PostError, QpAttrMask, QpState, SendOp};
use roce::Qpn;

use super::{GuestId, RingMemory};
use crate::datapath::Datapath;
use crate::memory::Memories;
use crate::pci::erdma::completion::AsyncKind;
use crate::pci::erdma::entry::{self, SEND_BYTES, SendHeader, Ticket, Transport};
use crate::pci::erdma::layout::{BLOCK, Context, SEND_BLOCKS};
use crate::sq::{Buffers, NO_BUFFER};

/// Send requests taken from one queue pair per round, so that no guest keeps the others waiting.
const SENDS_PER_ROUND: u32 = 64;

/// One queue of a queue pair.
#[derive(Debug)]
pub struct Ring {
    pub(super) ring: RingMemory,
    pub(super) record: RingMemory,
    /// Blocks or entries, a power of two up to 2^15.
    pub(super) depth: u32,
    /// What was taken, modulo 2^16.
    pub(super) ci: u16,
}

impl Ring {
    fn at(&self, index: u16) -> Option<emtt::Segment> {
        self.ring.at(u64::from(u32::from(index) & (self.depth - 1)) * BLOCK, BLOCK)
    }

    /// Copies a block or entry out; false if it is not in memory.
    fn read(&self, memories: &mut Memories, index: u16, to: &mut [u8]) -> bool {
        self.at(index).is_some_and(|at| memories.read(at, to).is_ok())
    }

    /// Producer index as the record in guest memory has it; ours if the record is gone.
    pub(super) fn recorded(&self, memories: &mut Memories) -> u16 {
        let mut word = [0; 8];
        match self.record.at(0, 8).map(|at| memories.read(at, &mut word)) {
            Some(Ok(())) => u64::from_le_bytes(word) as u16,
            _ => self.ci,
        }
    }
}

/// A queue and what was last heard of it.
#[derive(Debug)]
pub struct Queue {
    pub(super) queue: Ring,
    /// Producer index of the last doorbell. The only word on a queue of the guest's kernel, whose record may be stale after a
    /// reset; processes keep counting, and their records are looked at instead.
    pub(super) rung: u16,
}

impl Queue {
    /// Requests, in entries or blocks, that wait; `None` if the guest says more than there can be.
    fn pending(&self, is_kernel: bool, memories: &mut Memories) -> Option<u16> {
        let pi = if is_kernel { self.rung } else { self.queue.recorded(memories) };
        let pending = pi.wrapping_sub(self.queue.ci);
        (u32::from(pending) <= self.queue.depth).then_some(pending)
    }
}

/// A queue pair.
#[derive(Debug)]
pub struct QueuePair {
    pub(super) qpn: Qpn,
    pub(super) pdn: u32,
    pub(super) send_cqn: u32,
    pub(super) recv_cqn: u32,
    pub(super) send: Queue,
    pub(super) recv: Queue,
    pub(super) context: Context,
    pub(super) is_kernel: bool,
    pub(super) is_ud: bool,
    pub(super) state: QpState,
    /// In the list of queue pairs to be looked at.
    pub(super) queued: bool,
    /// The core had no room for a request: it is looked at again after the next completion.
    pub(super) is_full: bool,
}

impl QueuePair {
    /// Puts it into the list of those to be looked at.
    pub(super) fn queue(&mut self, ready: &mut Vec<(u32, u32)>, guest: u32, number: u32) {
        if !std::mem::replace(&mut self.queued, true) {
            ready.push((guest, number));
        }
    }
}

/// What became of taking one send.
enum Taken {
    Posted,
    /// Nothing is left, or it has to wait.
    Stop,
    Bad(Ticket, String),
}

impl Datapath {
    /// Posts what guests' queue pairs have to post. True if there were any.
    pub(in crate::datapath) fn post_guests(&mut self) -> bool {
        if self.guests.ready.is_empty() {
            return false;
        }
        let mut again = std::mem::take(&mut self.guests.ready_again);
        let ready = std::mem::take(&mut self.guests.ready);
        for &(index, number) in &ready {
            if let Some(qp) = self.guest_qp(index, number) {
                qp.queued = false;
                if self.post_guest_qp(index, number, SENDS_PER_ROUND) {
                    again.push((index, number));
                }
            }
        }
        let super::Guests { table, ready: list, .. } = &mut self.guests;
        for (index, number) in again.drain(..) {
            let guest = table.get_mut(index as usize).and_then(Option::as_deref_mut);
            if let Some(qp) = guest.and_then(|guest| guest.qps.get_mut(&number)) {
                qp.queue(list, index, number);
            }
        }
        self.guests.ready_again = again;
        true
    }

    fn guest_qp(&mut self, index: u32, number: u32) -> Option<&mut QueuePair> {
        self.guests.at(index)?.qps.get_mut(&number)
    }

    /// A send queue's doorbell on a page of `context`.
    pub fn guest_send_doorbell(&mut self, id: GuestId, context: Context, value: u64) {
        self.guest_doorbell(id, context, (value >> 32) as u32 & 0xF_FFFF, |qp| qp.send.rung = value as u16);
    }

    /// A receive queue's doorbell on a page of `context`.
    pub fn guest_recv_doorbell(&mut self, id: GuestId, context: Context, value: u64) {
        self.guest_doorbell(id, context, (value >> 32) as u32 & 0xF_FFFF, |qp| qp.recv.rung = value as u16);
    }

    fn guest_doorbell(&mut self, id: GuestId, context: Context, number: u32, heard: impl FnOnce(&mut QueuePair)) {
        let super::Guests { table, ready, .. } = &mut self.guests;
        let guest = table.get_mut(id.index as usize).and_then(Option::as_deref_mut);
        let Some(guest) = guest.filter(|guest| guest.generation == id.generation) else { return };
        // Another process's queue pair is not rung.
        if let Some(qp) = guest.qps.get_mut(&number).filter(|qp| qp.context == context) {
            heard(qp);
            qp.queue(ready, id.index, number);
        }
    }

    /// Posts everything that a queue pair's rings hold at this moment.
    pub(super) fn drain_guest_qp(&mut self, index: u32, number: u32) {
        self.post_guest_qp(index, number, u32::MAX);
    }

    /// Empties the receive ring of a guest's queue pair, if it is one's.
    pub(in crate::datapath) fn drain_guest_receives_of(&mut self, qpn: Qpn) {
        if let Some(&(index, number)) = self.guests.qp_by_number.get(&qpn) {
            self.drain_guest_receives(index, number);
        }
    }

    /// Receives first, then sends. True if sends are left for the next round.
    fn post_guest_qp(&mut self, index: u32, number: u32, budget: u32) -> bool {
        self.drain_guest_receives(index, number);
        let Some(qp) = self.guest_qp(index, number) else { return false };
        let (qpn, state) = (qp.qpn, qp.state);
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return false;
        }
        if let Some(peer) = self.rnic.local_peer(qpn) {
            self.drain_receives_of(peer);
        }
        for _ in 0..budget {
            match self.take_guest_send(index, number) {
                Taken::Posted => {}
                Taken::Stop => return false,
                Taken::Bad(ticket, reason) => {
                    tracing::debug!(number, reason, "a guest's queue pair fails for a send entry");
                    self.fail_guest_send(index, number, ticket);
                }
            }
        }
        true
    }

    fn take_guest_send(&mut self, index: u32, number: u32) -> Taken {
        let Some(qp) = self.guests.at(index).and_then(|guest| guest.qps.get_mut(&number)) else { return Taken::Stop };
        let Some(pending) = qp.send.pending(qp.is_kernel, &mut self.memories) else {
            self.fail_guest_qp(index, number, "its send index is beyond its queue");
            return Taken::Stop;
        };
        if pending == 0 {
            return Taken::Stop;
        }
        let start = qp.send.queue.ci;
        let mut bytes = [0; SEND_BYTES];
        if !qp.send.queue.read(&mut self.memories, start, &mut bytes[..BLOCK as usize]) {
            self.fail_guest_qp(index, number, "its send queue is not in memory");
            return Taken::Stop;
        }
        let header = SendHeader(u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")));
        let blocks = header.blocks();
        let ticket = Ticket { index: start, opcode: header.opcode() };
        if blocks > SEND_BLOCKS || blocks > usize::from(pending) {
            // Where the next one begins is not known: all that is there goes with it.
            qp.send.queue.ci = start.wrapping_add(pending);
            return Taken::Bad(ticket, format!("{blocks} blocks of {pending}"));
        }
        for block in 1..blocks {
            // Each block is read once: the first is not looked at again, though it may say something else by now.
            let to = &mut bytes[block * BLOCK as usize..][..BLOCK as usize];
            if !qp.send.queue.read(&mut self.memories, start.wrapping_add(block as u16), to) {
                self.fail_guest_qp(index, number, "its send queue is not in memory");
                return Taken::Stop;
            }
        }
        if qp.is_kernel && !qp.is_ud && header.opcode() == entry::opcode::REG_MR {
            let pdn = qp.pdn;
            if let Err(reason) = self.fast_register(index, pdn, &bytes) {
                if let Some(qp) = self.guest_qp(index, number) {
                    qp.send.queue.ci = start.wrapping_add(blocks as u16);
                }
                return Taken::Bad(ticket, reason.to_string());
            }
        }
        let Some(super::Guest { qps, ahs, .. }) = self.guests.at(index) else { return Taken::Stop };
        let Some(qp) = qps.get_mut(&number) else { return Taken::Stop };
        let queue = &qp.send.queue;
        let inline = |at: usize, len: usize, buffers: &mut Buffers| {
            let pieces = (at..at + len).step_by(8).map(|from| (from, 8.min(at + len - from)));
            let segments = pieces.filter_map(|(from, len)| {
                let block = queue.at(start.wrapping_add((from / BLOCK as usize) as u16))?;
                Some(emtt::Segment { addr: block.addr + from as u64 % BLOCK, len: len as u64, ..block })
            });
            entry::inline_buffers(segments, buffers)
        };
        let mut buffers = [NO_BUFFER; rnic::limits::MAX_SGE as usize];
        let next = start.wrapping_add(blocks as u16);
        let find = |handle| ahs.get(&handle).copied();
        let transport = match (qp.is_ud, qp.is_kernel) {
            (true, _) => Transport::Ud(&find),
            (false, true) => Transport::KernelRc,
            (false, false) => Transport::Rc,
        };
        let request = match entry::send_request(&bytes, start, transport, inline, &mut buffers) {
            Ok(request) if header.qpn() == number => request,
            Ok(_) => {
                qp.send.queue.ci = next;
                return Taken::Bad(ticket, format!("it names queue pair {}", header.qpn()));
            }
            Err(bad) => {
                qp.send.queue.ci = next;
                return Taken::Bad(ticket, bad.to_string());
            }
        };
        if let SendOp::Datagram { to, .. } = request.op {
            self.scratch.receivers.extend(self.rnic.local_receivers(qp.qpn, &to));
        }
        match self.rnic.post_send(self.now, qp.qpn, &request) {
            Ok(()) => {
                qp.send.queue.ci = next;
                self.drain_receivers();
                Taken::Posted
            }
            Err(PostError::Full) => {
                qp.is_full = true;
                Taken::Stop
            }
            Err(PostError::State) => Taken::Stop,
            Err(error @ PostError::Invalid) => {
                qp.send.queue.ci = next;
                Taken::Bad(ticket, error.to_string())
            }
        }
    }

    fn drain_guest_receives(&mut self, index: u32, number: u32) {
        let Some(qp) = self.guests.at(index).and_then(|guest| guest.qps.get_mut(&number)) else { return };
        if qp.state == QpState::Reset {
            return;
        }
        let Some(pending) = qp.recv.pending(qp.is_kernel, &mut self.memories) else {
            return self.fail_guest_qp(index, number, "its receive index is beyond its queue");
        };
        let mut buffers = [NO_BUFFER; rnic::limits::MAX_SGE as usize];
        for _ in 0..pending {
            let at = qp.recv.queue.ci;
            let mut bytes = [0; BLOCK as usize];
            if !qp.recv.queue.read(&mut self.memories, at, &mut bytes) {
                return self.fail_guest_qp(index, number, "its receive queue is not in memory");
            }
            // One that the core has no room for waits in the ring: it is asked for before each arrival.
            match self.rnic.post_recv(self.now, qp.qpn, &entry::recv_request(&bytes, at, &mut buffers)) {
                Ok(()) => qp.recv.queue.ci = at.wrapping_add(1),
                Err(_) => return,
            }
        }
    }

    /// A queue pair fails at a send entry: what was posted before it is flushed, then it completes, and what follows is flushed.
    fn fail_guest_send(&mut self, index: u32, number: u32, ticket: Ticket) {
        self.fail_guest_core_qp(index, number);
        // In the order of posting.
        self.deliver_completions();
        if let Some(cqn) = self.guest_qp(index, number).map(|qp| qp.send_cqn) {
            self.complete_bad_send(index, number, cqn, ticket);
        }
    }

    /// A queue pair fails for what no completion can tell.
    fn fail_guest_qp(&mut self, index: u32, number: u32, reason: &str) {
        let Some(qp) = self.guest_qp(index, number) else { return };
        let (qpn, before) = (qp.qpn, qp.state);
        if before == QpState::Err {
            return;
        }
        tracing::debug!(number, reason, "a guest's queue pair fails");
        self.fail_guest_core_qp(index, number);
        self.send_guest_event(qpn, Some(AsyncKind::QpFatal));
    }

    fn fail_guest_core_qp(&mut self, index: u32, number: u32) {
        let Some(qp) = self.guest_qp(index, number) else { return };
        qp.state = QpState::Err;
        let qpn = qp.qpn;
        if let Ok(attr) = self.rnic.query_qp(qpn) {
            let attr = rnic::QpAttr { state: QpState::Err, ..attr };
            // From any state there is a way to this one.
            let _ = self.rnic.modify_qp(self.now, qpn, QpAttrMask::STATE, &attr);
        }
    }
}
