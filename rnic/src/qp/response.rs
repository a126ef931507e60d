//! The requester's other half: acknowledgements, NAKs and responses that come back.
//!
//! Everything is judged against the oldest PSN that is not acknowledged. An answer to a later PSN says that everything before
//! it arrived, except READs and atomics: those are answered by data, so one that is passed over has lost its response, and is
//! asked for again (IBA 9.7.5.1.3, implied NAK).

use super::access::{BadBuffer, for_each_segment, nak_status};
use super::requester::chunk_end;
use super::{Qp, Wait};
use crate::attr::QpState;
use crate::dma::Dma;
use crate::shared::{Batch, Scratch, Shared};
use crate::vendor_err;
use crate::work::{SendOp, Status};
use core::ops::Range;
use emtt::Access;
use roce::wire::{Headers, Kind, NakCode, Syndrome};
use roce::{Instant, Psn};

impl Qp {
    /// Takes a response packet. `payload` is a range of `bytes`.
    pub fn handle_response(
        &mut self,
        shared: &mut Shared,
        scratch: &mut Scratch,
        now: Instant,
        headers: &Headers,
        payload: Range<usize>,
    ) {
        let psn = headers.bth.psn;
        let is_expected = psn.distance_from(self.req.unacked) >= 0 && psn.is_before(self.req.sent_end);
        if !is_expected && self.take_hello(shared, headers) {
            return;
        }
        // What is on many paths is answered by packets of that kind only.
        if !matches!(self.state, QpState::Rts | QpState::Sqd) || !is_expected || self.sprays() {
            shared.count(self.device, |counters| counters.stray_response += 1);
            return;
        }
        let before = self.req.unacked;
        match (headers.bth.opcode.kind(), headers.aeth.map(|aeth| aeth.syndrome)) {
            (Kind::Ack, Some(Syndrome::Ack { .. })) => self.acknowledge(shared, psn.plus(1)),
            (Kind::Ack, Some(Syndrome::RnrNak { timer })) => self.handle_rnr_nak(shared, now, psn, timer),
            (Kind::Ack, Some(Syndrome::Nak(NakCode::PsnSequenceError))) => self.handle_sequence_nak(shared, psn),
            (Kind::Ack, Some(Syndrome::Nak(code))) => self.handle_nak(shared, psn, code),
            (Kind::ReadResponse, _) => self.handle_read_response(shared, scratch, headers, payload),
            (Kind::AtomicAck, _) => self.handle_atomic_response(shared, scratch, headers),
            _ => {}
        }
        if self.state != QpState::Err {
            self.after_answer(shared, now, before);
        }
    }

    /// Completes everything before `end`; stops at a READ or atomic whose response is missing, and goes back for it. Returns
    /// whether it got there in full.
    pub(super) fn acknowledge_all(&mut self, shared: &mut Shared, end: Psn) -> bool {
        self.complete_own_requests(shared);
        while end.distance_from(self.req.unacked) > 0 {
            debug_assert!(self.req.has_begun(&self.sq), "what is not acknowledged belongs to a begun request");
            let wqe = self.sq.get(self.sq.head);
            // On many paths each packet of a response is acknowledged by itself.
            if wqe.is_fetch() && !self.sprays() {
                shared.count(self.device, |counters| counters.implied_nak_err += 1);
                self.lose(shared);
                return false;
            }
            let next = wqe.last_psn().plus(1);
            if next.distance_from(end) > 0 {
                self.progress_to(end);
                return true;
            }
            self.progress_to(next);
            self.complete_send(shared, Status::Success, vendor_err::NONE);
            self.complete_own_requests(shared);
        }
        true
    }

    /// Everything before `psn` is acknowledged: a new budget of retries.
    #[inline]
    fn progress_to(&mut self, psn: Psn) {
        self.req.unacked = psn;
        self.req.retries = 0;
        self.req.rnr_retries = 0;
    }

    fn acknowledge(&mut self, shared: &mut Shared, end: Psn) {
        self.acknowledge_all(shared, end);
    }

    /// What was sent at the oldest unacknowledged PSN, or its response, is lost: goes back, once.
    fn lose(&mut self, shared: &mut Shared) -> bool {
        let news = self.req.went_back_to != Some(self.req.unacked);
        if news && self.wait != Wait::Rnr {
            self.go_back(shared);
        }
        news
    }

    /// Restarts the clocks if there was progress, and lets what waited for it go on.
    fn after_answer(&mut self, shared: &mut Shared, now: Instant, before: Psn) {
        let progress = self.req.unacked.distance_from(before);
        if progress > 0 {
            if self.req.went_back_to != Some(self.req.unacked) {
                self.req.went_back_to = None;
            }
            self.req.window.on_ack(progress as u32);
            if let Some(multipath) = &mut self.multipath {
                multipath.negotiation.on_acknowledged(progress as u32);
            }
            self.req.fetches.answered(self.req.unacked);
            if self.req.unacked.distance_from(self.req.cursor.psn) > 0 {
                // Answered although it was to be sent again.
                self.go_to(self.req.unacked);
            }
            if self.wait == Wait::Ack {
                self.stop_timer();
            }
            self.check_fault(shared);
            self.check_drained(shared);
        }
        if self.state == QpState::Err {
            return;
        }
        if self.wait == Wait::Nothing && self.req.cursor.psn != self.req.unacked {
            let deadline = self.ack_deadline(now);
            self.start_timer(shared, Wait::Ack, deadline);
        }
        if self.req.cursor.index != self.sq.tail || self.wants_hello() {
            self.schedule(shared);
        }
    }

    fn handle_rnr_nak(&mut self, shared: &mut Shared, now: Instant, psn: Psn, timer: u8) {
        if !self.acknowledge_all(shared, psn) || self.wait == Wait::Rnr {
            return;
        }
        self.req.went_back_to = None;
        self.go_to(psn);
        self.wait_for_receive(shared, now, timer);
    }

    fn handle_sequence_nak(&mut self, shared: &mut Shared, psn: Psn) {
        shared.count(self.device, |counters| counters.rcvd_seq_err += 1);
        let before = self.req.unacked;
        if self.acknowledge_all(shared, psn) && self.lose(shared) && self.req.unacked == before {
            if self.req.retries >= self.attr.retry_cnt {
                self.fail_send(shared, Status::RetryExceededError, vendor_err::SEQUENCE);
                return;
            }
            self.req.retries += 1;
        }
    }

    fn handle_nak(&mut self, shared: &mut Shared, psn: Psn, code: NakCode) {
        shared.count(self.device, |counters| counters.rcvd_nak_err += 1);
        if self.acknowledge_all(shared, psn) {
            let (status, cause) = nak_status(code);
            self.fail_send(shared, status, cause);
        }
    }

    fn handle_read_response(&mut self, shared: &mut Shared, scratch: &mut Scratch, headers: &Headers, payload: Range<usize>) {
        if !self.acknowledge_all(shared, headers.bth.psn) {
            return;
        }
        let index = self.sq.head;
        let wqe = *self.sq.get(index);
        let mtu = self.mtu();
        let packet = self.req.unacked.distance_from(wqe.first_psn) as u32;
        let SendOp::Read { .. } = wqe.op else {
            return self.fail_send(shared, Status::BadResponseError, vendor_err::BAD_RESPONSE);
        };
        let offset = packet * mtu;
        let len = (wqe.length - offset).min(mtu);
        let ends_chunk = packet + 1 == chunk_end(packet, wqe.packets);
        if headers.bth.opcode.ends_message() != ends_chunk || payload.len() != len as usize {
            return self.fail_send(shared, Status::BadResponseError, vendor_err::BAD_RESPONSE);
        }
        let (buffers, range) = (self.sq.buffers(index), (u64::from(offset), u64::from(len)));
        let add = scratch.batch(shared, Batch::Responses, self.req.unacked, payload.start);
        if let Err(BadBuffer) = for_each_segment(&shared.table, self.pd, buffers, range, Access::LOCAL_WRITE, add) {
            return self.fail_send(shared, Status::LocalProtectionError, vendor_err::LOCAL_KEY);
        }
        self.progress_to(self.req.unacked.plus(1));
        if packet + 1 == wqe.packets {
            self.complete_send(shared, Status::Success, vendor_err::NONE);
            self.complete_own_requests(shared);
        }
    }

    fn handle_atomic_response(&mut self, shared: &mut Shared, scratch: &mut Scratch, headers: &Headers) {
        if !self.acknowledge_all(shared, headers.bth.psn) {
            return;
        }
        let index = self.sq.head;
        let (SendOp::Atomic { .. }, Some(before)) = (self.sq.get(index).op, headers.atomic_ack) else {
            return self.fail_send(shared, Status::BadResponseError, vendor_err::BAD_RESPONSE);
        };
        let at = scratch.keep_value(before);
        let buffers = self.sq.buffers(index);
        let add = scratch.batch(shared, Batch::Values, self.req.unacked, at);
        if let Err(BadBuffer) = for_each_segment(&shared.table, self.pd, buffers, (0, 8), Access::LOCAL_WRITE, add) {
            return self.fail_send(shared, Status::LocalProtectionError, vendor_err::LOCAL_KEY);
        }
        self.progress_to(self.req.unacked.plus(1));
        self.complete_send(shared, Status::Success, vendor_err::NONE);
        self.complete_own_requests(shared);
    }

    /// Payload of responses that were taken could not be written: the first READ or atomic that says so fails.
    pub fn fail_responses(&mut self, shared: &mut Shared, first_psn: Psn) {
        let mut failed = false;
        shared.completions.release_changed(|completion| {
            let is_fetch = completion.opcode.is_fetch();
            if completion.status == Status::Success && (failed || is_fetch) {
                (completion.status, completion.vendor_err) = match failed {
                    false => (Status::LocalProtectionError, vendor_err::LOCAL_MEMORY),
                    true => (Status::FlushError, vendor_err::FLUSHED),
                };
                (completion.byte_len, completion.solicited) = (0, true);
                failed = true;
            }
        });
        match self.state {
            QpState::Err => {}
            _ if failed => {
                self.resp.forget_replies();
                self.enter_error(shared);
            }
            _ if self.sprays()
                && let Some((index, _)) = self.packet_at(first_psn) =>
            {
                self.fault_at(shared, index, Status::LocalProtectionError, vendor_err::LOCAL_MEMORY);
            }
            // It is the oldest, and not complete; an unsignaled one may be gone, and then the program is told by an event.
            _ if self.req.has_begun(&self.sq) && self.sq.get(self.sq.head).is_fetch() => {
                self.fail_send(shared, Status::LocalProtectionError, vendor_err::LOCAL_MEMORY);
            }
            _ => self.fail_silently(shared),
        }
    }

    /// Writes to memory what the open batch holds: pieces of `bytes`, values of atomics, or datagrams.
    pub fn write_batch(&mut self, shared: &mut Shared, scratch: &mut Scratch, dma: &mut impl Dma, bytes: &[u8]) {
        let Some((kind, first_psn)) = scratch.open_batch else { return };
        let source = if matches!(kind, Batch::Values | Batch::Datagrams) { &scratch.values[..] } else { bytes };
        let written = dma.scatter(&scratch.pieces, source);
        scratch.close_batch();
        match (written, kind) {
            (Ok(()), _) => shared.completions.release(),
            (Err(_), Batch::Requests) => {
                self.fail_requests(shared, first_psn);
                if self.is_unreliable() {
                    // Nobody is told.
                    self.resp.forget_replies();
                }
            }
            (Err(_), Batch::Datagrams) => self.fail_datagrams(shared),
            (Err(_), Batch::Responses | Batch::Values) => self.fail_responses(shared, first_psn),
        }
    }
}
