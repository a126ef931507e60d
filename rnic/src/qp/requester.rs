//! The requester: what is under way, and sending it.
//!
//! A request takes a range of PSNs when it is begun and keeps it. What to send is a cursor over requests and packets; going
//! back is moving the cursor. Payload is read when a packet is built, and read again when it is sent again.
//!
//! A long READ is asked for in chunks that begin at fixed places of the message, so that a chunk asked for again is the same
//! chunk, or its tail, which is what a responder's resources allow.

use super::access::{BadBuffer, for_each_segment};
use super::burst::{Burst, packet_len};
use super::window::Window;
use super::{Qp, Ring, SendWqe, Wait};
use crate::attr::QpState;
use crate::dma::Dma;
use crate::limits::{ACK_INTERVAL, MAX_RD_ATOMIC, READ_CHUNK_PACKETS};
use crate::shared::{Scratch, Shared};
use crate::vendor_err;
use crate::work::{SendFlags, SendOp, Status};
use emtt::Access;
use roce::wire::{AtomicEth, Bth, Headers, Opcode, Reth, Service};
use roce::{Instant, Psn};

/// Where sending stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    /// The request to send from, a count as in [`Ring`].
    pub index: u32,
    /// Its next packet.
    pub packet: u32,
    /// Requests before this one have PSNs.
    pub begun: u32,
    /// PSN of the next packet.
    pub psn: Psn,
    /// First PSN that no request has.
    pub new_psn: Psn,
    /// Packets since the last one that asked for an acknowledgement.
    unasked: u32,
}

/// A queue pair's state as requester.
#[derive(Debug)]
pub(crate) struct Requester {
    pub cursor: Cursor,
    /// Oldest PSN that is not acknowledged.
    pub unacked: Psn,
    /// The PSN after the newest that was ever sent.
    pub sent_end: Psn,
    /// READs and atomics under way.
    pub fetches: Fetches,
    /// A request that cannot be sent; it fails when all before it have completed.
    pub fault: Option<(u32, Status, u32)>,
    /// Went back to this PSN for a loss, and nothing was acknowledged since: the same loss told again is no news.
    pub went_back_to: Option<Psn>,
    /// Timeouts and sequence NAKs since the last progress.
    pub retries: u8,
    /// RNR NAKs since the last progress.
    pub rnr_retries: u8,
    /// State SQD, before the last begun request has completed.
    pub draining: bool,
    pub window: Window,
    /// Bytes of the oldest message that have been moved (local path).
    pub moved: u32,
    /// Messages begun since RTS, and those of them that consume a receive.
    pub messages: (u32, u32),
}

impl Requester {
    pub fn new() -> Self {
        let zero = Psn::new(0);
        Requester {
            cursor: Cursor { index: 0, packet: 0, begun: 0, psn: zero, new_psn: zero, unasked: 0 },
            unacked: zero,
            sent_end: zero,
            fetches: Fetches::default(),
            fault: None,
            went_back_to: None,
            retries: 0,
            rnr_retries: 0,
            draining: false,
            window: Window::new(),
            moved: 0,
            messages: (0, 0),
        }
    }

    /// The queue pair becomes ready to send.
    pub fn start(&mut self, psn: Psn) {
        (self.cursor.psn, self.cursor.new_psn) = (psn, psn);
        (self.unacked, self.sent_end) = (psn, psn);
    }

    /// Whether a request was begun that has not completed.
    pub fn has_begun(&self, sq: &Ring<SendWqe>) -> bool {
        self.cursor.begun.wrapping_sub(sq.head) as i32 > 0
    }

    /// The send queue is in error, and empty. Whatever was begun keeps its PSNs, which the peer will miss.
    pub fn give_up(&mut self, sq: &Ring<SendWqe>) {
        self.abandon();
        let psn = self.cursor.new_psn;
        self.cursor = Cursor { index: sq.tail, packet: 0, begun: sq.tail, psn, new_psn: psn, unasked: 0 };
        self.unacked = psn;
    }

    /// The queue pair is in error: nothing is under way any more.
    pub fn abandon(&mut self) {
        self.draining = false;
        self.moved = 0;
        self.fault = None;
    }

    fn in_flight(&self) -> u32 {
        self.cursor.psn.distance_from(self.unacked).max(0) as u32
    }
}

/// PSN ranges of READ and atomic requests that were sent and not answered, oldest first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fetches {
    ends: [Psn; MAX_RD_ATOMIC as usize],
    first: u8,
    len: u8,
}

impl Fetches {
    fn slot(&self, n: u8) -> usize {
        usize::from((self.first + n) % MAX_RD_ATOMIC)
    }

    pub fn len(&self) -> u8 {
        self.len
    }

    pub fn push(&mut self, end: Psn) {
        assert!(self.len < MAX_RD_ATOMIC);
        self.ends[self.slot(self.len)] = end;
        self.len += 1;
    }

    /// Everything before `psn` was answered.
    #[inline]
    pub fn answered(&mut self, psn: Psn) {
        while self.len > 0 && psn.distance_from(self.ends[self.slot(0)]) >= 0 {
            self.first = (self.first + 1) % MAX_RD_ATOMIC;
            self.len -= 1;
        }
    }

    /// Everything from `psn` on will be sent again.
    pub fn cut(&mut self, psn: Psn) {
        while self.len > 0 && self.ends[self.slot(self.len - 1)].distance_from(psn) > 0 {
            self.len -= 1;
        }
    }
}

/// The next packet to send.
struct Plan {
    opcode: Opcode,
    /// Bytes of payload, from this offset of the message.
    payload: u32,
    offset: u32,
    /// PSNs that the packet takes: more than one for a READ request.
    psns: u32,
    is_last: bool,
}

impl Qp {
    /// Makes a burst of request packets in `burst`.
    pub fn transmit_requests<'a>(
        &mut self,
        shared: &mut Shared,
        scratch: &'a mut Scratch,
        now: Instant,
        dma: &mut impl Dma,
        buf: &'a mut [u8],
    ) -> Option<Burst<'a>> {
        if self.wait == Wait::Rnr || !matches!(self.state, QpState::Rts | QpState::Sqd) || self.sprays() {
            return None;
        }
        self.do_own_requests(shared);
        if self.state == QpState::Err {
            return None;
        }
        let before = (self.req.cursor, self.req.fetches);
        let mut burst = Burst::new(buf, scratch.turn_packets, &mut scratch.pieces);
        self.fill(shared, &mut burst, u32::MAX);
        if burst.gather(dma).is_err() {
            // Which request is to blame shows when the oldest is tried alone.
            (self.req.cursor, self.req.fetches) = before;
            burst.restart();
            self.fill(shared, &mut burst, 1);
            if burst.gather(dma).is_err() {
                (self.req.cursor, self.req.fetches) = before;
                self.set_fault(shared, Status::LocalProtectionError, vendor_err::LOCAL_MEMORY);
                return None;
            }
        }
        // A fault of the oldest request has failed the queue pair meanwhile.
        if burst.is_empty() || self.state == QpState::Err {
            return None;
        }
        if self.is_unreliable() {
            self.complete_sent(shared);
            return Some(burst);
        }
        let psn = self.req.cursor.psn;
        if psn.distance_from(self.req.sent_end) > 0 {
            self.req.sent_end = psn;
        }
        if self.wait == Wait::Nothing {
            let deadline = self.ack_deadline(now);
            self.start_timer(shared, Wait::Ack, deadline);
        }
        Some(burst)
    }

    /// Adds packets of up to `messages` requests.
    fn fill(&mut self, shared: &mut Shared, burst: &mut Burst<'_>, messages: u32) {
        let first = self.req.cursor.index;
        while self.req.cursor.index.wrapping_sub(first) < messages {
            let Some(plan) = self.plan(shared) else { break };
            if !burst.fits(packet_len(plan.opcode, plan.payload as usize)) {
                break;
            }
            let index = self.req.cursor.index;
            let range = (u64::from(plan.offset), u64::from(plan.payload));
            let add = burst.payload_of(plan.opcode);
            let found = for_each_segment(&shared.table, self.pd, self.sq.buffers(index), range, Access::empty(), add);
            if let Err(BadBuffer) = found {
                burst.drop_payload();
                self.set_fault(shared, Status::LocalProtectionError, vendor_err::LOCAL_KEY);
                break;
            }
            let mut headers = self.headers(&plan);
            burst.add(&mut headers, plan.payload as usize);
            self.advance(&plan);
        }
    }

    /// What the packet at the cursor is; `None` if nothing may be sent now. Begins the request if it was not begun.
    fn plan(&mut self, shared: &mut Shared) -> Option<Plan> {
        let Cursor { index, packet, begun, .. } = self.req.cursor;
        if index == self.sq.tail || self.req.fault.is_some_and(|(at, ..)| at == index) {
            return None;
        }
        if self.sq.get(index).op.is_local() {
            // Its turn comes when what stands before it is sent.
            return None;
        }
        let (in_flight, window) = (self.req.in_flight(), self.req.window.packets());
        if in_flight >= window {
            return None;
        }
        if index == begun && (self.awaits_many_paths() || !self.begin(shared)) {
            return None;
        }
        let wqe = self.sq.get(index);
        let mtu = self.mtu();
        let is_last = packet + 1 == wqe.packets;
        let service = self.qp_type.service();
        let (kind, psns) = match wqe.op {
            SendOp::Send { imm, invalidate } => {
                (send_opcode(packet == 0, is_last, imm.is_some(), invalidate.is_some()).of_service(service), 1)
            }
            SendOp::Write { imm, .. } => (write_opcode(packet == 0, is_last, imm.is_some()).of_service(service), 1),
            SendOp::Read { .. } => {
                let chunk = chunk_end(packet, wqe.packets) - packet;
                if self.req.fetches.len() >= self.attr.max_rd_atomic || (in_flight > 0 && in_flight + chunk > window) {
                    return None;
                }
                (Opcode::RcReadRequest.of_service(service), chunk)
            }
            SendOp::Atomic { op, .. } => {
                if self.req.fetches.len() >= self.attr.max_rd_atomic {
                    return None;
                }
                let opcode = match op {
                    crate::AtomicOp::CompareSwap { .. } => Opcode::RcCompareSwap,
                    crate::AtomicOp::FetchAdd { .. } => Opcode::RcFetchAdd,
                };
                (opcode.of_service(service), 1)
            }
            SendOp::Datagram { .. } => unreachable!("posted to queue pairs of type UD only"),
            SendOp::BindWindow(_) | SendOp::LocalInvalidate { .. } | SendOp::Nothing => unreachable!("done, not sent"),
        };
        let offset = packet * mtu;
        let payload = if wqe.is_fetch() { 0 } else { (wqe.length - offset).min(mtu) };
        Some(Plan { opcode: kind, payload, offset, psns, is_last: packet + psns == wqe.packets })
    }

    /// Gives the request at the cursor its PSNs, if it may start: false if it must wait or cannot be sent.
    pub(super) fn begin(&mut self, shared: &mut Shared) -> bool {
        let index = self.req.cursor.index;
        let wqe = self.sq.get(index);
        if self.state != QpState::Rts {
            return false;
        }
        if wqe.flags.contains(SendFlags::FENCE) && self.req.fetches.len() > 0 {
            return false;
        }
        if wqe.is_fetch() && self.attr.max_rd_atomic == 0 {
            self.set_fault(shared, Status::LocalQpOperationError, vendor_err::NO_READ_DEPTH);
            return false;
        }
        // A request that fits one packet is checked when the packet is built; nothing of it is sent if that fails.
        if (wqe.packets > 1 || wqe.is_fetch()) && self.check_buffers(&shared.table, index).is_err() {
            self.set_fault(shared, Status::LocalProtectionError, vendor_err::LOCAL_KEY);
            return false;
        }
        let psn = self.req.cursor.new_psn;
        let wqe = self.sq.get_mut(index);
        wqe.first_psn = psn;
        self.req.cursor.new_psn = psn.plus(wqe.packets);
        self.req.cursor.begun = index.wrapping_add(1);
        let consumes = matches!(wqe.op, SendOp::Send { .. } | SendOp::Write { imm: Some(_), .. });
        let (messages, receives) = self.req.messages;
        self.req.messages = (messages.wrapping_add(1), receives.wrapping_add(u32::from(consumes)));
        true
    }

    fn headers(&mut self, plan: &Plan) -> Headers {
        let cursor = &mut self.req.cursor;
        let fills_window = cursor.psn.distance_from(self.req.unacked) + 1 >= self.req.window.packets() as i32;
        let wants_ack = plan.is_last || fills_window || cursor.unasked + 1 >= ACK_INTERVAL;
        let ack_req = wants_ack && matches!(plan.opcode.service(), Service::Rc | Service::Xrc);
        cursor.unasked = if ack_req { 0 } else { cursor.unasked + 1 };
        let wqe = self.sq.get(cursor.index);
        let carries_event = matches!(wqe.op, SendOp::Send { .. } | SendOp::Write { imm: Some(_), .. });
        let mut headers = Headers::new(Bth {
            solicited: plan.is_last && carries_event && wqe.flags.contains(SendFlags::SOLICITED),
            ack_req,
            ..Bth::new(plan.opcode, self.attr.dest_qpn, cursor.psn)
        });
        headers.xrceth = wqe.srqn;
        match wqe.op {
            SendOp::Send { imm, invalidate } if plan.is_last => (headers.imm, headers.ieth) = (imm, invalidate),
            SendOp::Send { .. } => {}
            SendOp::Write { remote_addr, rkey, imm } => {
                if cursor.packet == 0 {
                    headers.reth = Some(Reth { va: remote_addr, rkey, length: wqe.length });
                }
                if plan.is_last {
                    headers.imm = imm;
                }
            }
            SendOp::Read { remote_addr, rkey } => {
                let mtu = 128_u32 << self.attr.path_mtu as u32;
                // Only the last chunk of a message is not a whole number of packets.
                let length = (wqe.length - plan.offset).min(plan.psns.saturating_mul(mtu));
                headers.reth = Some(Reth { va: remote_addr.wrapping_add(u64::from(plan.offset)), rkey, length });
            }
            SendOp::Atomic { remote_addr, rkey, op } => {
                let (swap_add, compare) = match op {
                    crate::AtomicOp::CompareSwap { compare, swap } => (swap, compare),
                    crate::AtomicOp::FetchAdd { add } => (add, 0),
                };
                headers.atomic = Some(AtomicEth { va: remote_addr, rkey, swap_add, compare });
            }
            SendOp::Datagram { .. } => unreachable!("posted to queue pairs of type UD only"),
            SendOp::BindWindow(_) | SendOp::LocalInvalidate { .. } | SendOp::Nothing => unreachable!("done, not sent"),
        }
        headers
    }

    /// The planned packet was added: moves the cursor behind it.
    fn advance(&mut self, plan: &Plan) {
        let cursor = &mut self.req.cursor;
        cursor.psn = cursor.psn.plus(plan.psns);
        cursor.packet += plan.psns;
        if self.sq.get(cursor.index).is_fetch() {
            self.req.fetches.push(cursor.psn);
        }
        if plan.is_last {
            cursor.index = cursor.index.wrapping_add(1);
            cursor.packet = 0;
        }
    }

    /// Moves the cursor to `psn`, which lies in what was begun and not acknowledged: everything from there is sent again.
    pub fn go_to(&mut self, psn: Psn) {
        let mut index = self.sq.head;
        let mut packet = 0;
        while index != self.req.cursor.begun {
            let wqe = self.sq.get(index);
            let offset = psn.distance_from(wqe.first_psn).max(0) as u32;
            // What is done rather than sent has no packets.
            if offset < wqe.packets {
                packet = offset;
                break;
            }
            index = index.wrapping_add(1);
        }
        let cursor = &mut self.req.cursor;
        (cursor.index, cursor.packet, cursor.psn, cursor.unasked) = (index, packet, psn, 0);
        self.req.fetches.cut(psn);
    }

    /// The request at the cursor cannot be sent. It fails once all before it have completed.
    pub fn set_fault(&mut self, shared: &mut Shared, status: Status, cause: u32) {
        self.req.fault = Some((self.req.cursor.index, status, cause));
        self.check_fault(shared);
    }

    pub fn check_fault(&mut self, shared: &mut Shared) {
        if let Some((index, status, cause)) = self.req.fault
            && index == self.sq.head
        {
            self.fail_send(shared, status, cause);
        }
    }

    /// The timer ran out.
    pub fn handle_timeout(&mut self, shared: &mut Shared, now: Instant) {
        if self.sprays() && self.wait == Wait::Ack {
            return self.handle_sprayed_timeout(shared, now);
        }
        let wait = core::mem::replace(&mut self.wait, Wait::Nothing);
        if matches!(wait, Wait::Ack | Wait::Peer) {
            shared.count(self.device, |counters| counters.ack_timeout += 1);
            if self.req.retries >= self.attr.retry_cnt {
                let cause = if wait == Wait::Peer { vendor_err::LOCAL_PEER } else { vendor_err::TIMEOUT };
                self.fail_send(shared, Status::RetryExceededError, cause);
                return;
            }
            self.req.retries += 1;
        }
        if wait == Wait::Ack {
            self.leave_path(shared);
            self.go_back(shared);
        }
        self.schedule(shared);
    }

    /// Sends everything that is not acknowledged again, after a loss.
    pub fn go_back(&mut self, shared: &mut Shared) {
        shared.count(self.device, |counters| counters.completer_retry_err += 1);
        self.req.window.on_loss();
        self.req.went_back_to = Some(self.req.unacked);
        self.go_to(self.req.unacked);
    }
}

/// End of the READ chunk that `packet` lies in.
pub(crate) fn chunk_end(packet: u32, packets: u32) -> u32 {
    packets.min((packet / READ_CHUNK_PACKETS + 1) * READ_CHUNK_PACKETS)
}

fn send_opcode(is_first: bool, is_last: bool, imm: bool, invalidate: bool) -> Opcode {
    match (is_first, is_last) {
        (true, true) if imm => Opcode::RcSendOnlyWithImm,
        (true, true) if invalidate => Opcode::RcSendOnlyWithInvalidate,
        (true, true) => Opcode::RcSendOnly,
        (true, false) => Opcode::RcSendFirst,
        (false, false) => Opcode::RcSendMiddle,
        (false, true) if imm => Opcode::RcSendLastWithImm,
        (false, true) if invalidate => Opcode::RcSendLastWithInvalidate,
        (false, true) => Opcode::RcSendLast,
    }
}

fn write_opcode(is_first: bool, is_last: bool, imm: bool) -> Opcode {
    match (is_first, is_last) {
        (true, true) if imm => Opcode::RcWriteOnlyWithImm,
        (true, true) => Opcode::RcWriteOnly,
        (true, false) => Opcode::RcWriteFirst,
        (false, false) => Opcode::RcWriteMiddle,
        (false, true) if imm => Opcode::RcWriteLastWithImm,
        (false, true) => Opcode::RcWriteLast,
    }
}
