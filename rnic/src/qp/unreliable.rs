//! Unreliable connections: SEND and WRITE in packets of one connection, never answered and never sent again (IBA 9.8.2).
//!
//! The requester's queue, PSNs and bursts, and what a message does to the responder, are those of reliable connections. Here is what
//! differs: a request is complete when its last packet was made, and of a message that a packet is missing from, or that may not be
//! executed, the rest is dropped and counted. Only what is this side's own fault fails the queue pair.

use super::access::Refusal;
use super::{Qp, QpType};
use crate::shared::{Scratch, Shared};
use crate::vendor_err;
use crate::work::Status;
use core::ops::Range;
use roce::wire::{Headers, NakCode};

impl Qp {
    /// Whether requests are sent once and not answered.
    #[inline]
    pub fn is_unreliable(&self) -> bool {
        matches!(self.qp_type, QpType::Uc | QpType::Ud)
    }

    /// Requests whose packets were all made are complete.
    pub fn complete_sent(&mut self, shared: &mut Shared) {
        while self.sq.head != self.req.cursor.index {
            self.complete_send(shared, Status::Success, vendor_err::NONE);
        }
        self.req.unacked = self.req.cursor.psn;
        self.check_fault(shared);
        self.check_drained(shared);
    }

    /// Takes a request packet. `payload` is a range of the bytes that the batch will be written from.
    pub fn handle_unreliable(&mut self, shared: &mut Shared, scratch: &mut Scratch, headers: &Headers, payload: Range<usize>) {
        let (psn, opcode) = (headers.bth.psn, headers.bth.opcode);
        let in_sequence = psn == self.resp.expected_psn;
        self.resp.expected_psn = psn.plus(1);
        if !in_sequence {
            shared.count(self.device, |counters| counters.out_of_seq_request += 1);
        }
        if opcode.starts_message() {
            // If one is open, its end was lost, and its receive is filled anew.
            self.resp.message = None;
        } else if !in_sequence || self.resp.message.is_none() {
            self.resp.message = None;
            return;
        }
        self.note_reception(shared);
        if let Err(refusal) = self.take_packet(shared, scratch, headers, payload) {
            self.drop_message(shared, refusal);
        }
    }

    /// A message may not be executed: the rest of it is dropped.
    pub fn drop_message(&mut self, shared: &mut Shared, refusal: Refusal) {
        match refusal {
            Refusal::Nak { code: code @ NakCode::RemoteOperationalError, receive } => {
                return self.refuse(shared, code, receive);
            }
            Refusal::NotReady => shared.count(self.device, |counters| counters.dropped_no_receive += 1),
            Refusal::Nak { receive: Some(_), .. } => shared.count(self.device, |counters| counters.dropped_too_long += 1),
            Refusal::Nak { .. } => shared.count(self.device, |counters| counters.dropped_refused += 1),
        }
        self.resp.message = None;
    }
}
