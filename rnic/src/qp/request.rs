//! Request packets from the wire: sequence, duplicates, and what they ask for (IBA 9.7.4, 9.7.5.1).

use super::Qp;
use super::access::{Refusal, Remote};
use super::responder::{Echo, Ending, Fetch, Message, Reply, Resource};
use crate::attr::QpType;
use crate::dma::{AtomicOp, Dma};
use crate::limits::MAX_MSG;
use crate::shared::{Batch, Scratch, Shared};
use crate::vendor_err;
use crate::work::{Opcode, Status};
use core::ops::Range;
use emtt::Access;
use roce::Psn;
use roce::wire::{Bth, Headers, Kind, NakCode, Syndrome};

impl Qp {
    /// Takes a request packet. `payload` is a range of the bytes that the batch will be written from.
    pub fn handle_request(
        &mut self,
        shared: &mut Shared,
        scratch: &mut Scratch,
        dma: &mut impl Dma,
        headers: &Headers,
        payload: Range<usize>,
    ) {
        let bth = &headers.bth;
        let distance = bth.psn.distance_from(self.resp.expected_psn);
        if distance != 0 && matches!(bth.opcode.kind(), Kind::Send | Kind::Write) && self.is_sprayed_at() {
            // A straggler of the time before: it was answered then.
            shared.count(self.device, |counters| counters.duplicate_request += 1);
            return;
        }
        self.note_plain_request();
        if distance > 0 {
            shared.count(self.device, |counters| counters.out_of_seq_request += 1);
            if !self.resp.refusing {
                self.resp.refusing = true;
                self.resp.nak = Some((self.resp.expected_psn, Syndrome::Nak(NakCode::PsnSequenceError)));
                self.schedule(shared);
            }
            return;
        }
        if distance < 0 {
            shared.count(self.device, |counters| counters.duplicate_request += 1);
            self.handle_duplicate(shared, headers);
            return;
        }
        self.note_reception(shared);
        match self.execute(shared, scratch, dma, headers, payload, None) {
            Ok(psns) => {
                self.resp.expected_psn = bth.psn.plus(psns);
                // A NAK that is still waiting was about this packet, which has come after all.
                self.resp.refusing = false;
                self.resp.nak = None;
                self.resp.repeated = None;
                if bth.opcode.ends_message() {
                    self.resp.count_message();
                    // What it answers is as urgent as what it answers to.
                    self.flow.classifier.note(self.resp.received, 1);
                }
                if bth.ack_req {
                    // A reply to a READ or atomic acknowledges everything before it too.
                    self.resp.ack_due = matches!(bth.opcode.kind(), Kind::Send | Kind::Write);
                    self.schedule(shared);
                }
            }
            Err(refusal) => self.refuse_packet(shared, bth, refusal),
        }
    }

    pub(super) fn refuse_packet(&mut self, shared: &mut Shared, bth: &Bth, refusal: Refusal) {
        self.resp.refusing = true;
        self.resp.ack_due = false;
        match refusal {
            Refusal::NotReady => {
                if bth.opcode.starts_message() {
                    // It will begin anew.
                    self.resp.message = None;
                }
                self.resp.nak = Some((bth.psn, Syndrome::RnrNak { timer: self.attr.min_rnr_timer }));
            }
            Refusal::Nak { code, receive } => {
                self.resp.nak = Some((bth.psn, Syndrome::Nak(code)));
                self.refuse(shared, code, receive);
            }
        }
        self.schedule(shared);
    }

    /// Executes a packet that is next in sequence, and returns how many PSNs it takes. `echo` is what a reply to it echoes.
    pub(super) fn execute(
        &mut self,
        shared: &mut Shared,
        scratch: &mut Scratch,
        dma: &mut impl Dma,
        headers: &Headers,
        payload: Range<usize>,
        echo: Option<Echo>,
    ) -> Result<u32, Refusal> {
        if self.qp_type == QpType::XrcRecv {
            self.turn_to(shared, headers.xrceth)?;
        }
        match headers.bth.opcode.kind() {
            Kind::Send | Kind::Write => self.take_packet(shared, scratch, headers, payload).map(|()| 1),
            Kind::ReadRequest if self.resp.message.is_none() => self.accept_read(shared, headers, echo),
            Kind::CompareSwap | Kind::FetchAdd if self.resp.message.is_none() => {
                self.execute_atomic(shared, dma, headers, echo)
            }
            _ => Err(Refusal::INVALID),
        }
    }

    /// A packet of a SEND or WRITE.
    pub fn take_packet(
        &mut self,
        shared: &mut Shared,
        scratch: &mut Scratch,
        headers: &Headers,
        payload: Range<usize>,
    ) -> Result<(), Refusal> {
        let opcode = headers.bth.opcode;
        let (mtu, len) = (self.mtu(), payload.len() as u32);
        let has_good_length = match (opcode.is_first() || opcode.is_middle(), opcode.is_only()) {
            (true, _) => len == mtu,
            (false, true) => len <= mtu,
            (false, false) => len > 0 && len <= mtu,
        };
        if !has_good_length {
            return Err(Refusal::INVALID);
        }
        let message = self.message_of(shared, headers, len)?;
        let taken = scratch.pieces.len();
        let add = scratch.batch(shared, Batch::Requests, headers.bth.psn, payload.start);
        let placed = self.place(&shared.table, message, len, add);
        if placed.is_err() {
            scratch.pieces.truncate(taken);
        }
        placed?;
        self.resp.received += len;
        if opcode.ends_message() {
            let ending = Ending { imm: headers.imm, invalidate: headers.ieth, solicited: headers.bth.solicited };
            let finished = self.finish(shared, message, ending);
            if finished.is_err() {
                // The packet is taken again when it comes again.
                self.resp.received -= len;
                scratch.pieces.truncate(taken);
            }
            finished?;
        }
        Ok(())
    }

    /// The message that a packet belongs to: the open one, or one that it begins.
    fn message_of(&mut self, shared: &mut Shared, headers: &Headers, len: u32) -> Result<Message, Refusal> {
        let opcode = headers.bth.opcode;
        let received = self.resp.received;
        match (self.resp.message, opcode.starts_message(), opcode.kind(), headers.reth) {
            (None, true, Kind::Send, _) => self.begin_send(shared)?,
            (None, true, _, Some(reth)) => {
                let whole = reth.length == len && opcode.is_only() || reth.length > len && opcode.is_first();
                if !whole {
                    return Err(Refusal::INVALID);
                }
                self.begin_write(&shared.table, self.remote(reth.va, reth.rkey, reth.length), len)?;
            }
            (Some(Message::Send), false, Kind::Send, _) => {}
            (Some(Message::Write(remote)), false, Kind::Write, _) => {
                let left = remote.len - received;
                let fits = if opcode.is_last() { left == len } else { left > len };
                if !fits {
                    return Err(Refusal::INVALID);
                }
            }
            _ => return Err(Refusal::INVALID),
        }
        self.resp.message.ok_or(Refusal::INVALID)
    }

    /// Remembers a READ or atomic, and queues its reply.
    fn accept_fetch(&mut self, psn: Psn, packets: u32, kind: Fetch, echo: Option<Echo>) {
        // A sprayed READ is told by its own request when it is asked for again, and takes the place of no atomic.
        if echo.is_none() || matches!(kind, Fetch::Atomic(_)) {
            if self.resp.resources.len() >= usize::from(self.resp.depth) {
                self.resp.resources.pop_front();
            }
            self.resp.resources.push_back(Resource { psn, packets, kind });
        }
        let msn = (self.resp.msn + 1) & 0xFF_FFFF;
        self.resp.replies.push_back(Reply { psn, packets, sent: 0, msn, is_duplicate: false, kind, echo });
        // The reply acknowledges everything before it.
        self.resp.ack_due = false;
    }

    /// As many READs and atomics as were agreed on wait already (RC-15). Requests of the spray extension, which ask for a part each,
    /// are bounded by its window.
    fn has_no_resource(&self, echo: Option<Echo>) -> bool {
        let is_bounded = echo.is_some();
        !is_bounded && self.resp.replies.iter().filter(|reply| !reply.is_duplicate).count() >= usize::from(self.resp.depth)
    }

    fn accept_read(&mut self, shared: &mut Shared, headers: &Headers, echo: Option<Echo>) -> Result<u32, Refusal> {
        let reth = headers.reth.ok_or(Refusal::INVALID)?;
        let remote = self.remote(reth.va, reth.rkey, reth.length);
        self.begin_read(remote.len)?;
        self.check_region(&shared.table, Access::REMOTE_READ, remote)?;
        if self.has_no_resource(echo) {
            return Err(Refusal::INVALID);
        }
        let packets = remote.len.div_ceil(self.mtu()).max(1);
        self.accept_fetch(headers.bth.psn, packets, Fetch::Read(remote), echo);
        self.flow.classifier.note(remote.len, self.resp.replies.len() as u32);
        self.schedule(shared);
        Ok(packets)
    }

    fn execute_atomic(
        &mut self,
        shared: &mut Shared,
        dma: &mut impl Dma,
        headers: &Headers,
        echo: Option<Echo>,
    ) -> Result<u32, Refusal> {
        let atomic = headers.atomic.ok_or(Refusal::INVALID)?;
        let word = self.atomic_target(&shared.table, atomic.va, atomic.rkey)?;
        if self.has_no_resource(echo) {
            return Err(Refusal::INVALID);
        }
        let op = match headers.bth.opcode.kind() {
            Kind::CompareSwap => AtomicOp::CompareSwap { compare: atomic.compare, swap: atomic.swap_add },
            _ => AtomicOp::FetchAdd { add: atomic.swap_add },
        };
        let before = dma.atomic(word, op).map_err(|_| Refusal::operational(vendor_err::LOCAL_MEMORY))?;
        self.accept_fetch(headers.bth.psn, 1, Fetch::Atomic(before), echo);
        self.schedule(shared);
        Ok(1)
    }

    /// A request that was executed before: a SEND or WRITE is acknowledged again; a READ is read again and an atomic's old result
    /// sent again, if they are still remembered, and otherwise dropped (IBA 9.7.5.1.5).
    fn handle_duplicate(&mut self, shared: &mut Shared, headers: &Headers) {
        let psn = headers.bth.psn;
        // Once is a lost answer; a peer that begins again and has got nothing still is not reached from here.
        if self.resp.repeated.replace(psn).is_some_and(|before| psn.distance_from(before) <= 0) {
            self.leave_path(shared);
        }
        let kind = match headers.bth.opcode.kind() {
            Kind::Send | Kind::Write => {
                self.resp.ack_due = true;
                self.schedule(shared);
                return;
            }
            Kind::ReadRequest => headers.reth.and_then(|reth| {
                let remote = self.remote(reth.va, reth.rkey, reth.length);
                self.remembered_read(psn, remote)
            }),
            _ => self.resp.resources.iter().find_map(|resource| match resource.kind {
                Fetch::Atomic(_) if resource.psn == psn => Some((1, resource.kind)),
                _ => None,
            }),
        };
        let Some((packets, kind)) = kind else {
            shared.count(self.device, |counters| counters.lost_resource += 1);
            return;
        };
        // The peer went back to this PSN and will ask for everything after it again, so what waits beyond it is stale.
        self.resp.replies.retain(|reply| reply.psn.is_before(psn));
        if self.resp.replies.len() < usize::from(self.resp.depth) * 2 {
            self.resp.replies.push_back(Reply {
                psn,
                packets,
                sent: 0,
                msn: self.resp.msn,
                is_duplicate: true,
                kind,
                echo: None,
            });
            self.schedule(shared);
        }
    }

    /// Whether a READ request repeats a remembered one, or its tail. Returns the number of its packets.
    fn remembered_read(&self, psn: Psn, remote: Remote) -> Option<(u32, Fetch)> {
        if u64::from(remote.len) > MAX_MSG {
            return None;
        }
        let packets = remote.len.div_ceil(self.mtu()).max(1);
        self.resp.resources.iter().find_map(|resource| {
            let Fetch::Read(known) = resource.kind else { return None };
            let skipped = u32::try_from(psn.distance_from(resource.psn)).ok()?;
            let offset = skipped.checked_mul(self.mtu())?;
            let is_part = skipped + packets <= resource.packets
                && remote.len <= known.len - offset.min(known.len)
                && (remote.len == 0 || remote.rkey == known.rkey && remote.addr == known.addr.wrapping_add(u64::from(offset)));
            is_part.then_some((packets, Fetch::Read(Remote { pd: known.pd, ..remote })))
        })
    }

    /// Payload of requests that were taken could not be written: the queue pair fails, and the peer is told at the first packet
    /// that was lost.
    pub fn fail_requests(&mut self, shared: &mut Shared, first_psn: Psn) {
        let failed = fail_taken_receives(shared);
        // READs and atomics after the first lost packet must not be answered as if it had been written.
        self.resp.replies.retain(|reply| reply.psn.is_before(first_psn));
        self.resp.ack_due = false;
        self.resp.refusing = true;
        self.resp.nak = Some((first_psn, Syndrome::Nak(NakCode::RemoteOperationalError)));
        if failed {
            self.enter_error(shared);
        } else if self.can_receive() {
            let receive = match self.resp.message {
                Some(Message::Send) => Some((Status::LocalProtectionError, vendor_err::LOCAL_MEMORY)),
                _ => None,
            };
            self.refuse(shared, NakCode::RemoteOperationalError, receive);
        }
        self.schedule(shared);
    }
}

/// The batch could not be written: the first receive that it completed fails, those after it are flushed. False if it completed
/// none.
pub(super) fn fail_taken_receives(shared: &mut Shared) -> bool {
    let mut failed = false;
    shared.completions.release_changed(|completion| {
        let is_receive = matches!(completion.opcode, Opcode::Recv | Opcode::RecvWriteWithImm);
        if completion.status == Status::Success && is_receive {
            (completion.status, completion.vendor_err) = match failed {
                false => (Status::LocalProtectionError, vendor_err::LOCAL_MEMORY),
                true => (Status::FlushError, vendor_err::FLUSHED),
            };
            (completion.byte_len, completion.solicited) = (0, true);
            failed = true;
        }
    });
    failed
}
