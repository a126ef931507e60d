//! The requester on many paths: one packet per turn, each on a path of its own; what comes back decides what is sent again.

use super::{Qp, Wait, code_of};
use crate::attr::QpState;
use crate::dma::{Dma, Piece};
use crate::limits::MAX_PACKET;
use crate::qp::SendWqe;
use crate::qp::access::{BadBuffer, for_each_segment, nak_status};
use crate::shared::{Scratch, Shared};
use crate::vendor_err;
use crate::work::{SendFlags, SendOp, Status};
use alloc::boxed::Box;
use alloc::vec;
use emtt::Access;
use roce::wire::spray_ext::{Code, Data, Ext, Nack, Packet, Reason, Sack, Stamp};
use roce::wire::{Bth, ICRC_LEN, Reth};
use roce::{Instant, Psn, Rkey};
use spray::{Sender, SenderConfig, WindowLimits};

/// A requester that has begun to send on many paths.
#[derive(Debug)]
pub(super) struct Tx {
    pub sender: Sender,
    /// Message and receive sequence numbers of the begun requests, by their slot in the send queue.
    numbers: Box<[(u32, u32)]>,
    /// What is under way is on many paths; else it is a READ or atomic, in the plain way.
    active: bool,
    /// The peer is to be asked where it stands.
    asks: bool,
}

/// A packet that may leave now.
struct Plan {
    index: u32,
    packet: u32,
    code: Code,
    headers: usize,
    payload: usize,
    is_new: bool,
    is_last: bool,
}

impl Plan {
    fn len(&self) -> usize {
        self.headers + self.payload + usize::from(Bth::pad_for(self.payload)) + ICRC_LEN
    }
}

impl Qp {
    fn tx(&mut self) -> Option<&mut Tx> {
        self.multipath.as_mut()?.tx.as_mut()
    }

    /// Whether what is under way is on many paths.
    pub fn sprays(&self) -> bool {
        self.multipath.as_ref().and_then(|multipath| multipath.tx.as_ref()).is_some_and(|tx| tx.active)
    }

    fn has_agreed(&self) -> bool {
        let negotiation = self.multipath.as_ref().map(|multipath| &multipath.negotiation);
        negotiation.is_some_and(|negotiation| negotiation.is_agreed() || negotiation.has_begun())
    }

    /// Whether the request at the cursor, which is not begun, is to be sent on many paths: it waits until nothing is under way.
    pub fn awaits_many_paths(&self) -> bool {
        let cursor = &self.req.cursor;
        self.has_agreed() && cursor.index != self.sq.tail && goes_on_many_paths(self.sq.get(cursor.index))
    }

    /// Changes between many paths and the plain way, at a boundary between messages with nothing under way. Returns whether it is
    /// on many paths now.
    fn choose_lane(&mut self, home: u16) -> bool {
        let cursor = self.req.cursor;
        let sprays = self.sprays();
        let is_idle = self.req.unacked == cursor.psn && cursor.index == cursor.begun && cursor.packet == 0;
        let wants = self.awaits_many_paths();
        if !is_idle || cursor.index == self.sq.tail || sprays == wants {
            return sprays;
        }
        let slots = self.attr.caps.max_send_wr.next_power_of_two() as usize;
        let (qpn, packet) = (self.qpn, MAX_PACKET.min(self.mtu() + 104));
        let Some(multipath) = &mut self.multipath else { return false };
        if let Some(offer) = multipath.negotiation.begin() {
            let config = multipath.config;
            let window = config.window.min(offer.window);
            let sender = Sender::new(&SenderConfig {
                policy: config.policy,
                paths: config.paths,
                first_port: home,
                seed: u64::from(qpn.get()) << 24 | u64::from(cursor.psn.get()),
                window,
                first_psn: cursor.psn,
                law: config.law,
                limits: WindowLimits::for_software(packet, window, config.delay),
                loss: config.loss,
            });
            multipath.tx = Some(Tx { sender, numbers: vec![(0, 0); slots].into_boxed_slice(), active: true, asks: false });
            return true;
        }
        let Some(tx) = &mut multipath.tx else { return false };
        // All is acknowledged, perhaps before the sender's own view of it was.
        tx.active = wants && tx.sender.board().oldest() == tx.sender.board().next();
        if tx.active {
            tx.sender.restart(cursor.psn);
        }
        tx.active
    }

    /// The next packet: one that was lost, else a new one. Begins the request if it was not begun.
    fn plan_sprayed(&mut self, shared: &mut Shared) -> Option<Plan> {
        let cursor = self.req.cursor;
        let lost = self.tx()?.sender.next_resend();
        let (index, packet) = match lost {
            Some(psn) => self.packet_at(psn)?,
            None => {
                let is_at_fault = self.req.fault.is_some_and(|(at, ..)| at == cursor.index);
                if cursor.index == self.sq.tail || is_at_fault || !goes_on_many_paths(self.sq.get(cursor.index)) {
                    return None;
                }
                (cursor.index, cursor.packet)
            }
        };
        let wqe = self.sq.get(index);
        let mtu = self.mtu();
        let offset = packet * mtu;
        let is_last = packet + 1 == wqe.packets;
        let code = match wqe.op {
            SendOp::Send { imm: Some(_), .. } if is_last => Code::SendWithImm,
            SendOp::Send { invalidate: Some(_), .. } if is_last => Code::SendWithInvalidate,
            SendOp::Send { .. } => Code::Send,
            SendOp::Write { imm: Some(_), .. } if is_last => Code::WriteWithImm,
            _ => Code::Write,
        };
        let payload = (wqe.length - offset).min(mtu) as usize;
        let plan = Plan { index, packet, code, headers: code.headers_len(), payload, is_new: lost.is_none(), is_last };
        let len = plan.len() as u16;
        if plan.is_new && !self.tx()?.sender.may_send(len) {
            return None;
        }
        if plan.is_new && index == cursor.begun {
            let numbers = self.req.messages;
            if !self.begin(shared) {
                return None;
            }
            let tx = self.tx()?;
            let slot = index as usize & (tx.numbers.len() - 1);
            tx.numbers[slot] = numbers;
        }
        Some(plan)
    }

    /// The request and packet that has this PSN.
    fn packet_at(&self, psn: Psn) -> Option<(u32, u32)> {
        let mut index = self.sq.head;
        while index != self.req.cursor.begun {
            let wqe = self.sq.get(index);
            let packet = psn.distance_from(wqe.first_psn);
            if packet >= 0 && (packet as u32) < wqe.packets && goes_on_many_paths(wqe) {
                return Some((index, packet as u32));
            }
            index = index.wrapping_add(1);
        }
        None
    }

    /// Makes the next data packet up to its ICRC, which is left out.
    pub(super) fn transmit_sprayed(
        &mut self,
        shared: &mut Shared,
        scratch: &mut Scratch,
        now: Instant,
        home: u16,
        dma: &mut impl Dma,
        buf: &mut [u8],
    ) -> Option<(u16, usize)> {
        if self.wait == Wait::Rnr || !matches!(self.state, QpState::Rts | QpState::Sqd) || !self.has_agreed() {
            return None;
        }
        self.do_own_requests(shared);
        if self.state == QpState::Err || !self.choose_lane(home) {
            return None;
        }
        let plan = self.plan_sprayed(shared)?;
        let offset = plan.packet * self.mtu();
        let end = plan.headers + plan.payload;
        let mut at = plan.headers;
        let add = |segment: emtt::Segment| {
            scratch.pieces.push(Piece { segment, at });
            at += segment.len as usize;
        };
        let range = (u64::from(offset), plan.payload as u64);
        let found = for_each_segment(&shared.table, self.pd, self.sq.buffers(plan.index), range, Access::empty(), add);
        let gathered = match found {
            Err(BadBuffer) => Err(vendor_err::LOCAL_KEY),
            Ok(()) if scratch.pieces.is_empty() => Ok(()),
            Ok(()) => dma.gather(&scratch.pieces, &mut buf[..end]).map_err(|_| vendor_err::LOCAL_MEMORY),
        };
        scratch.pieces.clear();
        if let Err(cause) = gathered {
            self.req.fault = Some((plan.index, Status::LocalProtectionError, cause));
            self.check_fault(shared);
            return None;
        }
        let len = plan.len();
        let tx = self.tx()?;
        let sent = if plan.is_new { tx.sender.send(now, len as u16) } else { tx.sender.resend(now)? };
        let (msn, rsn) = tx.numbers[plan.index as usize & (tx.numbers.len() - 1)];
        // The peer answers at once when nothing more can come before its answer.
        let ack_req = plan.is_last || !plan.is_new || !tx.sender.may_send(len as u16);
        let mut packet = self.data_packet(&plan, sent.psn, ack_req);
        if let Ext::Data(data) = &mut packet.ext {
            (data.stamp, data.offset, data.rsn) = (Stamp { msn, time: now.as_nanos() as u32 }, offset, rsn);
        }
        packet.emit(buf);
        buf[end..len - ICRC_LEN].fill(0);
        shared.count(self.device, |counters| {
            counters.sent_spray_pkts += 1;
            counters.completer_retry_err += u64::from(!plan.is_new);
        });
        if plan.is_new {
            self.advance_sprayed(&plan);
        }
        self.rearm(shared, now);
        Some((sent.port, len))
    }

    fn data_packet(&self, plan: &Plan, psn: Psn, ack_req: bool) -> Packet {
        let wqe = self.sq.get(plan.index);
        let (remote, word, carries_event) = match wqe.op {
            SendOp::Write { remote_addr, rkey, imm } => ((remote_addr, rkey), imm, imm.is_some()),
            SendOp::Send { imm, invalidate } => ((0, Rkey(0)), imm.or(invalidate.map(|key| key.0.to_be_bytes())), true),
            _ => unreachable!("READs, atomics and datagrams do not go on many paths"),
        };
        let mut bth = self.extension_bth(plan.code, psn, ack_req);
        bth.pad = Bth::pad_for(plan.payload);
        bth.solicited = plan.is_last && carries_event && wqe.flags.contains(SendFlags::SOLICITED);
        let reth = Reth { va: remote.0, rkey: remote.1, length: wqe.length };
        let word = word.filter(|_| plan.code.has_word());
        Packet { bth, ext: Ext::Data(Data { stamp: Stamp::default(), reth, offset: 0, rsn: 0, word }) }
    }

    fn advance_sprayed(&mut self, plan: &Plan) {
        let cursor = &mut self.req.cursor;
        cursor.psn = cursor.psn.plus(1);
        cursor.packet += 1;
        if plan.is_last {
            cursor.index = cursor.index.wrapping_add(1);
            cursor.packet = 0;
        }
        self.req.sent_end = cursor.psn;
    }

    /// The UDP source port of a probe that is due.
    pub(super) fn next_probe(&mut self, now: Instant, home: u16) -> Option<u16> {
        if self.wait == Wait::Rnr || !self.sprays() {
            return None;
        }
        let tx = self.tx()?;
        if core::mem::take(&mut tx.asks) {
            return Some(home);
        }
        tx.sender.poll_probe(now)
    }

    pub(super) fn handle_sack(&mut self, shared: &mut Shared, now: Instant, cumulative: Psn, sack: &Sack) {
        if !self.sprays() || !matches!(self.state, QpState::Rts | QpState::Sqd) {
            shared.count(self.device, |counters| counters.stray_response += 1);
            return;
        }
        if let Some(tx) = self.tx() {
            tx.sender.on_sack(now, cumulative, sack);
        }
        self.complete_sprayed(shared, now, cumulative);
    }

    /// Everything up to `cumulative` has had its effect.
    fn complete_sprayed(&mut self, shared: &mut Shared, now: Instant, cumulative: Psn) {
        let end = cumulative.plus(1);
        let is_under_way = end.distance_from(self.req.unacked) > 0 && self.req.sent_end.distance_from(end) >= 0;
        if is_under_way {
            self.acknowledge_all(shared, end);
            self.check_fault(shared);
            self.check_drained(shared);
        }
        if self.state == QpState::Err {
            return;
        }
        self.rearm(shared, now);
        self.schedule(shared);
    }

    pub(super) fn handle_refusal(&mut self, shared: &mut Shared, now: Instant, psn: Psn, nack: &Nack) {
        let is_under_way = psn.distance_from(self.req.unacked) >= 0 && psn.is_before(self.req.sent_end);
        if !self.sprays() || !matches!(self.state, QpState::Rts | QpState::Sqd) || !is_under_way {
            shared.count(self.device, |counters| counters.stray_response += 1);
            return;
        }
        if let Some(tx) = self.tx() {
            tx.sender.on_nack(now, psn, nack);
        }
        self.complete_sprayed(shared, now, nack.cumulative);
        if self.state == QpState::Err {
            return;
        }
        if let Some(code) = code_of(nack.reason) {
            shared.count(self.device, |counters| counters.rcvd_nak_err += 1);
            self.acknowledge_all(shared, psn);
            let (status, cause) = nak_status(code);
            self.fail_send(shared, status, cause);
        } else if let Reason::NotReady(timer) = nack.reason
            && self.wait != Wait::Rnr
        {
            // It may have been acknowledged selectively, and then only the peer's effects are to come: asking brings them about.
            if let Some(tx) = self.tx() {
                tx.asks = true;
            }
            self.wait_for_receive(shared, now, timer);
        }
    }

    pub fn handle_sprayed_timeout(&mut self, shared: &mut Shared, now: Instant) {
        self.wait = Wait::Nothing;
        let limit = self.attr.retry_cnt;
        let Some(tx) = self.tx() else { return };
        let (before, is_waiting) = (tx.sender.silences(), tx.sender.board().oldest() != tx.sender.board().next());
        tx.sender.on_timeout(now);
        let is_silent = tx.sender.silences() > before;
        // Nothing is in flight, yet not all is complete.
        tx.asks |= !is_waiting;
        if is_silent || !is_waiting {
            shared.count(self.device, |counters| counters.ack_timeout += 1);
            if self.req.retries >= limit {
                return self.fail_send(shared, Status::RetryExceededError, vendor_err::TIMEOUT);
            }
            self.req.retries += 1;
        }
        self.rearm(shared, now);
        self.schedule(shared);
    }
}

/// Whether a request is sent as packets of the extension.
fn goes_on_many_paths(wqe: &SendWqe) -> bool {
    matches!(wqe.op, SendOp::Send { .. } | SendOp::Write { .. })
}
