//! The local path: two queue pairs of the same core. A request is executed by copying from source to destination memory, with
//! the checks, completions, order and errors of the wire, and without packets.
//!
//! A peer that does not exist, is not ready to receive, is not connected back, or expects another PSN is silent, as it would be
//! on the wire: the retry timer decides. A missing receive starts the RNR wait, which posting one ends early.

mod run;

use super::access::{BadBuffer, Refusal, Remote, for_each_segment, local_right, nak_status};
use super::responder::{Ending, Message};
use super::retry::{rnr_retry_allowed, rnr_wait};
use super::{Path, Qp, QpType, SendWqe, Wait};
use crate::attr::QpState;
use crate::dma::{Dma, DmaError, Piece};
use crate::event::Work;
use crate::limits::COPY_MESSAGES;
use crate::rnic::Rnic;
use crate::shared::{Scratch, Shared};
use crate::vendor_err;
use crate::work::{DeviceId, SendFlags, SendOp, Status};
use alloc::boxed::Box;
use emtt::{Access, Segment};
use roce::{Instant, Psn, Qpn};

/// What became of the oldest request.
enum Step {
    /// It completed after moving so many bytes.
    Message(u32),
    /// So many bytes of it moved, and more are to come.
    Part(u32),
    /// It waits, it failed, or there is none.
    Stop,
}

/// Why the responder's half did not happen.
enum Fault {
    /// The requester's own memory cannot be reached.
    Ours,
    /// Nobody is there to take an unreliable message.
    Lost,
    Refused(Refusal),
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        Fault::Refused(refusal)
    }
}

impl Rnic {
    /// Executes requests of one queue pair until `quantum` bytes are moved. `None` if there was nothing to do.
    pub(crate) fn local_step(
        &mut self,
        now: Instant,
        qpn: Qpn,
        peer: DeviceId,
        dma: &mut impl Dma,
        quantum: u32,
    ) -> Option<Work> {
        let (mut bytes, mut messages) = (0, 0);
        let most = COPY_MESSAGES.min(u32::try_from(self.scratch.turn_packets).unwrap_or(u32::MAX));
        let more = loop {
            let (count, moved) = self.local_run(qpn, peer, dma, (most - messages, quantum - bytes));
            (bytes, messages) = (bytes + moved, messages + count);
            if bytes >= quantum || messages == most {
                break true;
            }
            match self.local_request(now, qpn, peer, dma, quantum - bytes) {
                Step::Message(moved) => {
                    bytes += moved;
                    messages += 1;
                    if bytes >= quantum || messages == most {
                        break true;
                    }
                }
                Step::Part(moved) => {
                    bytes += moved;
                    break true;
                }
                Step::Stop => break false,
            }
        };
        if bytes == 0 && messages == 0 {
            return None;
        }
        let qp = self.qps.get_mut(qpn.get())?;
        if more && !qp.sq.is_empty() {
            qp.schedule(&mut self.shared);
        }
        self.shared.count(qp.device, |counters| {
            counters.local_bytes += u64::from(bytes);
            counters.local_messages += u64::from(messages);
        });
        Some(Work::Copied { bytes: u64::from(bytes), messages })
    }

    fn local_request(&mut self, now: Instant, qpn: Qpn, peer_device: DeviceId, dma: &mut impl Dma, room: u32) -> Step {
        let Rnic { qps, shared, scratch } = self;
        let Some(qp) = qps.get_mut(qpn.get()) else { return Step::Stop };
        let may_run = match qp.state {
            QpState::Rts => true,
            QpState::Sqd => qp.req.has_begun(&qp.sq),
            _ => false,
        };
        if !may_run || qp.wait != Wait::Nothing || qp.sq.is_empty() {
            return Step::Stop;
        }
        let index = qp.sq.head;
        let wqe = *qp.sq.get(index);
        if wqe.op.is_local() {
            qp.req.cursor.begun = index.wrapping_add(1);
            return match qp.do_own(shared, &wqe.op) {
                Ok(()) => {
                    qp.finish_local(shared, &wqe);
                    Step::Message(0)
                }
                Err((status, cause)) => {
                    qp.fail_send(shared, status, cause);
                    Step::Stop
                }
            };
        }
        let moved = qp.req.moved;
        let len = (wqe.length - moved).min(room);
        if let Err((status, cause)) = qp.source(shared, scratch, &wqe, len) {
            qp.fail_send(shared, status, cause);
            return Step::Stop;
        }
        qp.req.cursor.begun = index.wrapping_add(1);
        let (call, unreliable) = (qp.call(peer_device), qp.is_unreliable());
        let dest = call.peer(shared);
        let reachable = |peer: &&mut Box<Qp>| {
            // It may have been reset in the middle of a message.
            peer.answers(&call) && (moved == 0 || wqe.is_fetch() || peer.resp.message.is_some())
        };
        let ports_are_up = call.ports_are_up(shared);
        let outcome = match qps.get_mut(dest.get()).filter(reachable) {
            Some(peer) if ports_are_up => {
                peer.resp.expected_psn = call.psn;
                peer.serve(shared, scratch, dma, &wqe, moved, len)
            }
            _ if unreliable => Err(Fault::Lost),
            _ => {
                let qp = qps.get_mut(qpn.get()).expect("looked up above");
                let deadline = qp.ack_deadline(now);
                qp.start_timer(shared, Wait::Peer, deadline);
                return Step::Stop;
            }
        };
        let not_ready_code = match outcome {
            Err(Fault::Refused(refusal)) if unreliable => {
                if let Some(peer) = qps.get_mut(dest.get()) {
                    peer.drop_message(shared, refusal);
                }
                None
            }
            Err(Fault::Refused(refusal)) => qps.get_mut(dest.get()).and_then(|peer| peer.refuse_local(shared, refusal)),
            _ => None,
        };
        let qp = qps.get_mut(qpn.get()).expect("looked up above");
        match outcome {
            Ok(()) if moved + len < wqe.length => {
                qp.req.moved = moved + len;
                Step::Part(len)
            }
            Ok(()) => {
                qp.finish_local(shared, &wqe);
                Step::Message(len)
            }
            Err(Fault::Lost | Fault::Refused(_)) if unreliable => {
                // A queue pair that talks to itself may be in error now, and this request flushed.
                if qp.state != QpState::Err {
                    qp.finish_local(shared, &wqe);
                }
                Step::Message(0)
            }
            Err(Fault::Lost) => unreachable!("only unreliable messages are lost"),
            Err(Fault::Ours) => {
                qp.fail_send(shared, Status::LocalProtectionError, vendor_err::LOCAL_MEMORY);
                Step::Stop
            }
            Err(Fault::Refused(Refusal::Nak { code, .. })) => {
                // A queue pair that talks to itself is in error already, and this request flushed.
                if qp.state != QpState::Err {
                    let (status, cause) = nak_status(code);
                    shared.count(qp.device, |counters| counters.rcvd_nak_err += 1);
                    qp.fail_send(shared, status, cause);
                }
                Step::Stop
            }
            Err(Fault::Refused(Refusal::NotReady)) => {
                qp.wait_for_receive(shared, now, not_ready_code.unwrap_or(0));
                Step::Stop
            }
        }
    }
}

/// What a request on the local path needs of its peer.
struct Call {
    device: DeviceId,
    number: Qpn,
    peer_device: DeviceId,
    peer_number: Qpn,
    qp_type: QpType,
    psn: Psn,
    /// An unreliable message may begin at any PSN.
    any_psn: bool,
}

impl Call {
    /// The queue pair that it goes to, if there is one.
    fn peer(&self, shared: &Shared) -> Qpn {
        shared.queue_pair(self.peer_device, self.peer_number)
    }

    fn ports_are_up(&self, shared: &Shared) -> bool {
        shared.port_is_up(self.device) && shared.port_is_up(self.peer_device)
    }
}

impl Qp {
    /// The oldest request's call.
    fn call(&self, peer_device: DeviceId) -> Call {
        let (peer_number, psn) = (self.attr.dest_qpn, self.req.cursor.psn);
        let any_psn = self.is_unreliable() && self.req.moved == 0;
        Call { device: self.device, number: self.number, peer_device, peer_number, qp_type: self.qp_type, psn, any_psn }
    }

    /// Whether this is the queue pair that is meant, connected back, ready to receive, and expecting this request.
    fn answers(&self, call: &Call) -> bool {
        self.can_receive()
            && self.device == call.peer_device
            && self.path == Path::Local(call.device)
            && self.number == call.peer_number
            && self.attr.dest_qpn == call.number
            && self.qp_type == call.qp_type.of_peer()
            && (self.resp.expected_psn == call.psn || call.any_psn)
    }

    /// Finds the memory behind the next `len` bytes of the oldest request.
    fn source(&self, shared: &Shared, scratch: &mut Scratch, wqe: &SendWqe, len: u32) -> Result<(), (Status, u32)> {
        let index = self.sq.head;
        let moved = self.req.moved;
        if wqe.is_fetch() && self.attr.max_rd_atomic == 0 {
            return Err((Status::LocalQpOperationError, vendor_err::NO_READ_DEPTH));
        }
        scratch.ours.clear();
        let range = (u64::from(moved), u64::from(len));
        let push = |segment| scratch.ours.push(segment);
        for_each_segment(&shared.table, self.pd, self.sq.buffers(index), range, local_right(wqe), push)
            .and_then(|()| {
                // The first part of a long message is not sent unless all of it could be.
                if moved == 0 && len < wqe.length { self.check_buffers(&shared.table, index) } else { Ok(()) }
            })
            .map_err(|BadBuffer| (Status::LocalProtectionError, vendor_err::LOCAL_KEY))
    }

    /// The responder's half: checks, moves bytes `moved..moved + len` of the peer's request, and completes the message if these
    /// are its last. The requester's memory stands in `scratch.ours`.
    fn serve(
        &mut self,
        shared: &mut Shared,
        scratch: &mut Scratch,
        dma: &mut impl Dma,
        wqe: &SendWqe,
        moved: u32,
        len: u32,
    ) -> Result<(), Fault> {
        self.note_reception(shared);
        if self.qp_type == QpType::XrcRecv {
            self.turn_to(shared, wqe.srqn)?;
        }
        let is_last = moved + len == wqe.length;
        let Scratch { ours, theirs, pieces, .. } = scratch;
        theirs.clear();
        match wqe.op {
            SendOp::Send { imm, invalidate } => {
                if moved == 0 {
                    self.begin_send(shared)?;
                }
                let ending = Ending { imm, invalidate, solicited: wqe.flags.contains(SendFlags::SOLICITED) };
                self.take(shared, (ours, theirs), dma, Message::Send, len, is_last.then_some(ending))?;
            }
            SendOp::Write { remote_addr, rkey, imm } => {
                let remote = self.remote(remote_addr, rkey, wqe.length);
                if moved == 0 {
                    self.begin_write(&shared.table, remote, len)?;
                }
                let ending = Ending { imm, invalidate: None, solicited: wqe.flags.contains(SendFlags::SOLICITED) };
                self.take(shared, (ours, theirs), dma, Message::Write(remote), len, is_last.then_some(ending))?;
            }
            SendOp::Read { remote_addr, rkey } => {
                let remote = self.remote(remote_addr, rkey, wqe.length);
                if moved == 0 {
                    self.begin_read(wqe.length)?;
                    if !is_last {
                        self.check_region(&shared.table, Access::REMOTE_READ, remote)?;
                    }
                }
                let part = Remote { addr: remote_addr.wrapping_add(u64::from(moved)), len, ..remote };
                self.remote_segments(&shared.table, Access::REMOTE_READ, part, |segment| theirs.push(segment))?;
                if len > 0 {
                    dma.copy(theirs, ours).map_err(|error| fault_of(ours, error))?;
                }
            }
            SendOp::Atomic { remote_addr, rkey, op } => {
                let word = self.atomic_target(&shared.table, remote_addr, rkey)?;
                let before = dma.atomic(word, op).map_err(|_| Refusal::operational(vendor_err::LOCAL_MEMORY))?;
                let mut at = 0;
                for &segment in ours.iter() {
                    pieces.push(Piece { segment, at });
                    at += segment.len as usize;
                }
                let written = dma.scatter(pieces, &before.to_ne_bytes());
                pieces.clear();
                written.map_err(|_| Fault::Ours)?;
            }
            SendOp::Datagram { .. } => unreachable!("posted to queue pairs of type UD only"),
            SendOp::BindWindow(_) | SendOp::LocalInvalidate { .. } | SendOp::Nothing => {
                unreachable!("done by the requester alone")
            }
        }
        if is_last {
            self.resp.expected_psn = self.resp.expected_psn.plus(wqe.packets);
            self.resp.count_message();
        }
        Ok(())
    }

    /// Takes `len` bytes of a SEND or WRITE.
    fn take(
        &mut self,
        shared: &mut Shared,
        (ours, theirs): (&[Segment], &mut alloc::vec::Vec<Segment>),
        dma: &mut impl Dma,
        message: Message,
        len: u32,
        ending: Option<Ending>,
    ) -> Result<(), Fault> {
        self.place(&shared.table, message, len, |segment| theirs.push(segment))?;
        if len > 0 {
            dma.copy(ours, theirs).map_err(|error| fault_of(ours, error))?;
        }
        self.resp.received += len;
        if let Some(ending) = ending {
            let finished = self.finish(shared, message, ending);
            if finished.is_err() {
                // The part is taken again when the request is tried again.
                self.resp.received -= len;
            }
            finished?;
        }
        Ok(())
    }

    /// The responder's side of a refusal. Returns the RNR timer code if the peer is to wait.
    fn refuse_local(&mut self, shared: &mut Shared, refusal: Refusal) -> Option<u8> {
        match refusal {
            Refusal::NotReady => {
                self.resp.starved_local_peer = true;
                if let Some(srq) = self.srq {
                    shared.srq(srq).note_starved(self.qpn);
                }
                shared.count(self.device, |counters| counters.send_rnr_err += 1);
                Some(self.attr.min_rnr_timer)
            }
            Refusal::Nak { code, receive } => {
                shared.count(self.device, |counters| counters.send_nak_err += 1);
                self.refuse(shared, code, receive);
                None
            }
        }
    }

    /// The requester's side of a success.
    fn finish_local(&mut self, shared: &mut Shared, wqe: &SendWqe) {
        self.req.cursor.psn = self.req.cursor.psn.plus(wqe.packets);
        self.req.moved = 0;
        self.req.retries = 0;
        self.req.rnr_retries = 0;
        self.complete_send(shared, Status::Success, vendor_err::NONE);
        self.check_drained(shared);
    }

    /// The peer has no receive posted: tries again after the time that `code` stands for, if the budget allows.
    pub(super) fn wait_for_receive(&mut self, shared: &mut Shared, now: Instant, code: u8) {
        shared.count(self.device, |counters| counters.rcvd_rnr_err += 1);
        if !rnr_retry_allowed(self.attr.rnr_retry, self.req.rnr_retries) {
            self.fail_send(shared, Status::RnrRetryExceededError, vendor_err::RECEIVER_NOT_READY);
            return;
        }
        self.req.rnr_retries = self.req.rnr_retries.saturating_add(1);
        self.start_timer(shared, Wait::Rnr, Some(now + rnr_wait(code)));
    }
}

/// Whose memory it was that could not be reached.
fn fault_of(ours: &[Segment], DmaError(bad): DmaError) -> Fault {
    let holds = |segment: &Segment| {
        segment.owner == bad.owner && segment.addr <= bad.addr && bad.addr - segment.addr < segment.len.max(1)
    };
    if ours.iter().any(holds) { Fault::Ours } else { Fault::Refused(Refusal::operational(vendor_err::LOCAL_MEMORY)) }
}
