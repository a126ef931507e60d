//! The requester on many paths: one packet per turn, each on a path of its own; what comes back decides what is sent again.

use super::{Qp, Wait, code_of};
use crate::attr::QpState;
use crate::dma::{AtomicOp, Dma, Piece};
use crate::limits::MAX_PACKET;
use crate::qp::SendWqe;
use crate::qp::access::{BadBuffer, for_each_segment, nak_status};
use crate::shared::{Scratch, Shared};
use crate::vendor_err;
use crate::work::{SendFlags, SendOp, Status};
use alloc::boxed::Box;
use alloc::vec;
use emtt::Access;
use roce::wire::spray_ext::{Code, Data, Ext, Nack, Packet, Reason, Sack, Stamp, feature};
use roce::wire::{Bth, ICRC_LEN, NakCode, Reth};
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
    /// The peer has failed at this packet. What comes before it completes first, as far as it still can.
    refusal: Option<(Psn, NakCode)>,
}

impl Tx {
    fn slot(&self, index: u32) -> usize {
        index as usize & (self.numbers.len() - 1)
    }

    /// Message and receive sequence number of a request that has begun.
    pub fn numbers_of(&self, index: u32) -> (u32, u32) {
        self.numbers[self.slot(index)]
    }
}

/// A packet that may leave now.
pub(super) struct Plan {
    pub index: u32,
    pub packet: u32,
    pub code: Code,
    headers: usize,
    payload: usize,
    pub is_new: bool,
    is_last: bool,
}

impl Plan {
    fn len(&self) -> usize {
        self.headers + self.payload + usize::from(Bth::pad_for(self.payload)) + ICRC_LEN
    }
}

impl Qp {
    pub(super) fn tx(&mut self) -> Option<&mut Tx> {
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
        self.has_agreed() && cursor.index != self.sq.tail && self.goes_on_many_paths(self.sq.get(cursor.index))
    }

    /// Whether a request is sent as packets of the extension, once that is agreed.
    fn goes_on_many_paths(&self, wqe: &SendWqe) -> bool {
        let offer = self.multipath.as_ref().and_then(|multipath| multipath.negotiation.offer());
        match wqe.op {
            SendOp::Send { .. } | SendOp::Write { .. } => true,
            SendOp::Read { .. } | SendOp::Atomic { .. } => offer.is_some_and(|offer| offer.features & feature::FETCH != 0),
            _ => false,
        }
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
                limits: WindowLimits::for_software(packet, config.flight.min(window), config.delay),
                loss: config.loss,
            });
            multipath.tx =
                Some(Tx { sender, numbers: vec![(0, 0); slots].into_boxed_slice(), active: true, asks: false, refusal: None });
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
    fn plan_sprayed(&mut self, shared: &mut Shared, now: Instant) -> Option<Plan> {
        let cursor = self.req.cursor;
        let lost = self.tx()?.sender.next_resend();
        let (index, packet) = match lost {
            Some(psn) => self.packet_at(psn)?,
            None => {
                let has_failed = self.req.fault.is_some_and(|(at, ..)| cursor.index.wrapping_sub(at) as i32 >= 0);
                let is_refused = self.tx()?.refusal.is_some();
                let may = cursor.index != self.sq.tail && self.goes_on_many_paths(self.sq.get(cursor.index));
                if !may || has_failed || is_refused {
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
            SendOp::Read { .. } => Code::ReadRequest,
            SendOp::Atomic { op: AtomicOp::CompareSwap { .. }, .. } => Code::CompareSwap,
            SendOp::Atomic { op: AtomicOp::FetchAdd { .. }, .. } => Code::FetchAdd,
            _ => Code::Write,
        };
        let is_fetch = wqe.is_fetch();
        let payload = if is_fetch { 0 } else { (wqe.length - offset).min(mtu) as usize };
        let plan = Plan { index, packet, code, headers: code.headers_len(), payload, is_new: lost.is_none(), is_last };
        let len = plan.len() as u16;
        let (packets, bytes) = if is_fetch { self.part_of(index, packet) } else { (1, len) };
        let sender = &mut self.tx()?.sender;
        if plan.is_new && !sender.may_fetch(packets, bytes) {
            return None;
        }
        if sender.pauses(now, is_fetch) {
            shared.count(self.device, |counters| counters.paused_for_link += 1);
            self.rearm(shared, now);
            return None;
        }
        if plan.is_new && index == cursor.begun {
            let depth = self.attr.max_rd_atomic;
            // Without any depth the request fails as it begins.
            if is_fetch && depth > 0 && self.req.fetches.len() >= depth {
                return None;
            }
            let numbers = self.req.messages;
            if !self.begin(shared) {
                return None;
            }
            if is_fetch {
                self.req.fetches.push(self.req.cursor.new_psn);
            }
            let tx = self.tx()?;
            let slot = tx.slot(index);
            tx.numbers[slot] = numbers;
        }
        Some(plan)
    }

    /// The request and packet that has this PSN, if it has begun and is not complete.
    pub fn packet_at(&self, psn: Psn) -> Option<(u32, u32)> {
        let mut index = self.sq.head;
        while index != self.req.cursor.begun {
            let wqe = self.sq.get(index);
            let packet = psn.distance_from(wqe.first_psn);
            // What is done rather than sent has no packets.
            if packet >= 0 && (packet as u32) < wqe.packets {
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
        let plan = self.plan_sprayed(shared, now)?;
        if self.sq.get(plan.index).is_fetch() {
            return self.transmit_fetch(shared, now, &plan, buf);
        }
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
        let (msn, rsn) = tx.numbers_of(plan.index);
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
            self.advance_sprayed(&plan, 1);
        }
        self.rearm(shared, now);
        Some((sent.port, len))
    }

    fn data_packet(&self, plan: &Plan, psn: Psn, ack_req: bool) -> Packet {
        let wqe = self.sq.get(plan.index);
        let (remote, word, carries_event) = match wqe.op {
            SendOp::Write { remote_addr, rkey, imm } => ((remote_addr, rkey), imm, imm.is_some()),
            SendOp::Send { imm, invalidate } => ((0, Rkey(0)), imm.or(invalidate.map(|key| key.0.to_be_bytes())), true),
            _ => unreachable!("READs and atomics are asked for elsewhere, datagrams not on many paths"),
        };
        let mut bth = self.extension_bth(plan.code, psn, ack_req);
        bth.pad = Bth::pad_for(plan.payload);
        bth.solicited = plan.is_last && carries_event && wqe.flags.contains(SendFlags::SOLICITED);
        let reth = Reth { va: remote.0, rkey: remote.1, length: wqe.length };
        let word = word.filter(|_| plan.code.has_word());
        Packet { bth, ext: Ext::Data(Data { stamp: Stamp::default(), reth, offset: 0, rsn: 0, word }) }
    }

    /// The planned packet was sent, or so many from it on were asked for.
    pub(super) fn advance_sprayed(&mut self, plan: &Plan, packets: u32) {
        let end = self.sq.get(plan.index).packets;
        let cursor = &mut self.req.cursor;
        cursor.psn = cursor.psn.plus(packets);
        cursor.packet += packets;
        if cursor.packet == end {
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
        self.complete_sprayed(shared, now);
    }

    /// Completes what the sender knows to be complete.
    pub(super) fn complete_sprayed(&mut self, shared: &mut Shared, now: Instant) {
        let Some(end) = self.tx().map(|tx| tx.sender.complete()) else { return };
        if end.distance_from(self.req.unacked) > 0 {
            self.acknowledge_all(shared, end);
            self.req.fetches.answered(self.req.unacked);
            self.check_fault(shared);
            self.check_drained(shared);
        }
        self.check_refusal(shared);
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
            if let Some(code) = code_of(nack.reason) {
                tx.refusal.get_or_insert((psn, code));
            }
        }
        shared.count(self.device, |counters| counters.rcvd_nak_err += u64::from(nack.reason.is_fatal()));
        self.complete_sprayed(shared, now);
        if let Reason::NotReady(timer) = nack.reason
            && self.state != QpState::Err
            && self.wait != Wait::Rnr
        {
            // It may have been acknowledged selectively, and then only the peer's effects are to come: asking brings them about.
            if let Some(tx) = self.tx() {
                tx.asks = true;
            }
            self.wait_for_receive(shared, now, timer);
        }
    }

    /// The request that the peer has refused fails, once all before it have completed.
    fn check_refusal(&mut self, shared: &mut Shared) {
        let Some((psn, code)) = self.tx().and_then(|tx| tx.refusal) else { return };
        if self.state != QpState::Err && self.packet_at(psn).is_some_and(|(index, _)| index == self.sq.head) {
            let (status, cause) = nak_status(code);
            self.fail_send(shared, status, cause);
        }
    }

    pub fn handle_sprayed_timeout(&mut self, shared: &mut Shared, now: Instant) {
        self.wait = Wait::Nothing;
        let limit = self.attr.retry_cnt;
        let Some(tx) = self.tx() else { return };
        let (before, is_waiting) = (tx.sender.silences(), tx.sender.board().oldest() != tx.sender.board().next());
        tx.sender.on_timeout(now);
        let is_silent = tx.sender.silences() > before;
        // Nothing is in flight, yet not all is complete, and nothing else is about to be sent.
        let asks = !tx.sender.end_pause(now) && !is_waiting;
        tx.asks |= asks;
        if is_silent || asks {
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
