//! READs and atomics of the requester on many paths. A READ is asked for in parts of a few packets, each on a path of its own; the
//! part comes back on the same one, each packet goes to its place when it comes, and what does not come is asked for again. The
//! requests count as what they ask for, so that who receives the data decides how much of it is under way.

use super::Qp;
use super::receive::Received;
use super::send::Plan;
use crate::attr::QpState;
use crate::dma::AtomicOp;
use crate::limits::SPRAYED_READ_PACKETS;
use crate::qp::SendWqe;
use crate::qp::access::{BadBuffer, for_each_segment};
use crate::shared::{Batch, Scratch, Shared};
use crate::vendor_err;
use crate::work::{SendOp, Status};
use emtt::Access;
use roce::Instant;
use roce::wire::spray_ext::{Code, Data, Ext, Packet, Stamp};
use roce::wire::{AtomicEth, Bth, ICRC_LEN, Reth};

/// What an answer brings.
pub(super) enum Answer {
    /// Payload of a READ.
    Bytes,
    /// The value before an atomic.
    Value(u64),
}

/// Bytes of the packet that answers packet `packet` of a request.
fn answer_len(wqe: &SendWqe, packet: u32, mtu: u32) -> u16 {
    let (code, payload) = match wqe.op {
        SendOp::Read { .. } => (Code::ReadResponse, (wqe.length - packet * mtu).min(mtu) as usize),
        _ => (Code::AtomicResponse, 0),
    };
    (code.headers_len() + payload + usize::from(Bth::pad_for(payload)) + ICRC_LEN) as u16
}

impl Qp {
    /// Packets that a request for packet `packet` of READ or atomic `index` asks for, and their bytes, which count as under way.
    pub(super) fn part_of(&self, index: u32, packet: u32) -> (u32, u16) {
        let (wqe, mtu) = (self.sq.get(index), self.mtu());
        let packets = (wqe.packets - packet).min(SPRAYED_READ_PACKETS);
        (packets, (0..packets).map(|n| answer_len(wqe, packet + n, mtu)).sum())
    }

    /// Makes a request for the planned packet of a READ and those after it, or for an atomic, up to its ICRC.
    pub(super) fn transmit_fetch(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        plan: &Plan,
        buf: &mut [u8],
    ) -> Option<(u16, usize)> {
        let (wqe, mtu) = (*self.sq.get(plan.index), self.mtu());
        let (most, _) = self.part_of(plan.index, plan.packet);
        let tx = self.tx()?;
        let (sent, count) = match plan.is_new {
            true => tx.sender.fetch(now, (0..most).map(|n| answer_len(&wqe, plan.packet + n, mtu))),
            false => tx.sender.resend_run(now, most)?,
        };
        let (msn, _) = tx.numbers_of(plan.index);
        let stamp = Stamp { msn, time: now.as_nanos() as u32 };
        let ext = match wqe.op {
            SendOp::Atomic { remote_addr, rkey, op } => {
                let (swap_add, compare) = match op {
                    AtomicOp::CompareSwap { compare, swap } => (swap, compare),
                    AtomicOp::FetchAdd { add } => (add, 0),
                };
                Ext::Atomic(stamp, AtomicEth { va: remote_addr, rkey, swap_add, compare })
            }
            SendOp::Read { remote_addr, rkey } => {
                let reth = Reth { va: remote_addr, rkey, length: wqe.length };
                // Of a READ request the sequence number of receives, of which it has none, tells how many packets it asks for.
                Ext::Data(Data { stamp, reth, offset: plan.packet * mtu, rsn: count, word: None })
            }
            _ => unreachable!("a READ or an atomic"),
        };
        let len = Packet { bth: self.extension_bth(plan.code, sent.psn, false), ext }.emit(buf);
        shared.count(self.device, |counters| {
            counters.sent_spray_pkts += 1;
            counters.completer_retry_err += u64::from(!plan.is_new);
        });
        if plan.is_new {
            self.advance_sprayed(plan, count);
        }
        self.rearm(shared, now);
        Some((sent.port, len + ICRC_LEN))
    }

    /// Takes the answer to a READ or an atomic.
    pub(super) fn take_answer(
        &mut self,
        shared: &mut Shared,
        scratch: &mut Scratch,
        now: Instant,
        received: &Received<'_>,
        (stamp, answer): (Stamp, Answer),
    ) {
        let Packet { bth, .. } = received.packet;
        let arrived = (bth.psn, received.src_port, stamp.time, bth.fecn || received.congested);
        let is_sending = self.sprays() && matches!(self.state, QpState::Rts | QpState::Sqd);
        let awaited = self.tx().filter(|tx| is_sending && tx.sender.board().is_fetch(bth.psn)).is_some();
        let Some((index, packet)) = self.packet_at(bth.psn).filter(|_| awaited) else {
            shared.count(self.device, |counters| counters.stray_response += 1);
            if is_sending {
                self.note_answer(now, arrived);
            }
            return;
        };
        match self.place_answer(shared, scratch, received, (index, packet), answer) {
            Ok(()) => {
                if !received.payload.is_empty() {
                    self.note_source(shared);
                }
                self.note_answer(now, arrived);
                self.complete_sprayed(shared, now);
            }
            Err((status, cause)) => self.fault_at(shared, index, status, cause),
        }
    }

    fn note_answer(&mut self, now: Instant, (psn, port, time, marked): (roce::Psn, u16, u32, bool)) {
        if let Some(tx) = self.tx() {
            tx.sender.on_response(now, psn, port, time, marked);
        }
    }

    /// Adds what an answer brings to the open batch, at its final place.
    fn place_answer(
        &self,
        shared: &mut Shared,
        scratch: &mut Scratch,
        received: &Received<'_>,
        (index, packet): (u32, u32),
        answer: Answer,
    ) -> Result<(), (Status, u32)> {
        let wqe = self.sq.get(index);
        let (psn, len) = (received.packet.bth.psn, received.payload.len() as u64);
        let offset = packet * self.mtu();
        let (batch, at, range) = match (wqe.op, answer) {
            (SendOp::Read { .. }, Answer::Bytes) if len == u64::from((wqe.length - offset).min(self.mtu())) => {
                (Batch::Responses, received.payload.start, (u64::from(offset), len))
            }
            (SendOp::Atomic { .. }, Answer::Value(before)) => (Batch::Values, scratch.keep_value(before), (0, 8)),
            _ => return Err((Status::BadResponseError, vendor_err::BAD_RESPONSE)),
        };
        let taken = scratch.pieces.len();
        let add = scratch.batch(shared, batch, psn, at);
        let placed = for_each_segment(&shared.table, self.pd, self.sq.buffers(index), range, Access::LOCAL_WRITE, add);
        placed.map_err(|BadBuffer| {
            scratch.pieces.truncate(taken);
            (Status::LocalProtectionError, vendor_err::LOCAL_KEY)
        })
    }

    /// The request `index`, which has begun, fails once all before it have completed; nothing new begins.
    pub fn fault_at(&mut self, shared: &mut Shared, index: u32, status: Status, cause: u32) {
        let is_first = self.req.fault.is_none_or(|(at, ..)| (index.wrapping_sub(at) as i32) < 0);
        if is_first {
            self.req.fault = Some((index, status, cause));
        }
        self.check_fault(shared);
    }
}
