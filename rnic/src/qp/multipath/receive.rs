//! The responder of a connection that is sprayed at. Middle packets of WRITEs are placed when they come. What begins or ends a
//! message, and SENDs, is held until everything before it is in, and then taken as a plain packet would be; so effects are in
//! order, and the last bytes of a message are never seen before what came earlier.

use super::Qp;
use super::answer::Asked;
use super::fetch::Answer;
use crate::dma::Dma;
use crate::limits::{HELD_PACKETS, REFUSALS};
use crate::qp::access::Refusal;
use crate::qp::responder::Message;
use crate::shared::{Batch, Scratch, Shared};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use core::ops::Range;
use core::time::Duration;
use emtt::Access;
use roce::wire::spray_ext::{Code, Data, Ext, Packet, Reason, Stamp};
use roce::wire::{Bth, Headers, Opcode, Reth};
use roce::{Instant, Psn, Rkey};
use spray::{Arrival, Arrived, Receiver};

/// Packets per acknowledgement, when they come alone.
const SACK_EVERY: u16 = 4;

/// A responder that has offered to be sprayed at.
#[derive(Debug)]
pub(super) struct Rx {
    pub receiver: Receiver,
    /// Packets that wait for those before them, by PSN.
    held: BTreeMap<u32, Held>,
    /// A packet of the extension has come.
    pub has_begun: bool,
    /// The last request was a plain one, a READ or atomic: so is what is said of it.
    pub answers_plain: bool,
    /// Packets that are to be refused, beside what the plain responder refuses.
    pub refused: VecDeque<(Psn, Reason, Arrived)>,
    /// The newest packet: what refusals echo.
    pub last: Arrived,
}

/// A packet as the plain responder takes it.
#[derive(Debug)]
pub(super) struct Held {
    pub headers: Headers,
    pub payload: Box<[u8]>,
    /// Of a request for data.
    pub asked: Option<Asked>,
}

impl Rx {
    pub fn new(window: u16, expected: Psn) -> Rx {
        Rx {
            // What arrives together is acknowledged together; nothing is held back beyond that.
            receiver: Receiver::new(window, expected, SACK_EVERY, Duration::ZERO),
            held: BTreeMap::new(),
            has_begun: false,
            answers_plain: false,
            refused: VecDeque::new(),
            last: Arrived { port: 0xC000, time: 0, marked: false, ack_req: false },
        }
    }
}

impl Rx {
    /// Refuses a packet. What is too much to be told at once is found out by its sender.
    pub fn refuse(&mut self, psn: Psn, reason: Reason, arrived: Arrived) {
        if self.refused.len() < REFUSALS {
            self.refused.push_back((psn, reason, arrived));
        }
    }
}

/// A received packet of the extension.
pub(crate) struct Received<'a> {
    pub packet: &'a Packet,
    /// Where its payload lies in `bytes`, which the open batch is written from.
    pub payload: Range<usize>,
    pub bytes: &'a [u8],
    pub src_port: u16,
    /// The network marked it as having met congestion.
    pub congested: bool,
}

impl Qp {
    /// Whether packets of the extension have come.
    pub fn is_sprayed_at(&self) -> bool {
        self.rx().is_some_and(|rx| rx.has_begun)
    }

    /// A plain request came.
    pub fn note_plain_request(&mut self) {
        if let Some(rx) = self.rx_mut() {
            rx.answers_plain = true;
        }
    }

    pub(super) fn rx(&self) -> Option<&Rx> {
        self.multipath.as_ref()?.rx.as_deref()
    }

    pub(super) fn rx_mut(&mut self) -> Option<&mut Rx> {
        self.multipath.as_mut()?.rx.as_deref_mut()
    }

    /// Takes a packet of the extension.
    pub fn handle_extension(
        &mut self,
        shared: &mut Shared,
        scratch: &mut Scratch,
        now: Instant,
        dma: &mut impl Dma,
        received: &Received<'_>,
    ) {
        let Packet { bth, ext } = received.packet;
        let stamp_of = |ext: &Ext| match ext {
            Ext::Data(Data { stamp, .. }) | Ext::Atomic(stamp, _) => Some(*stamp),
            Ext::Stamp(stamp) if bth.opcode == Code::Probe => Some(*stamp),
            _ => None,
        };
        let arrived = stamp_of(ext).map(|stamp| Arrived {
            port: received.src_port,
            time: stamp.time,
            marked: bth.fecn || received.congested,
            ack_req: bth.ack_req,
        });
        match (ext, arrived) {
            (Ext::Offer(offer), _) => self.handle_offer(shared, bth.psn, offer),
            (Ext::Sack(sack), _) => self.handle_sack(shared, now, bth.psn, sack),
            (Ext::Nack(nack), _) => self.handle_refusal(shared, now, bth.psn, nack),
            (Ext::Stamp(stamp), None) => self.take_answer(shared, scratch, now, received, (*stamp, Answer::Bytes)),
            (&Ext::AtomicResponse(stamp, before), _) => {
                self.take_answer(shared, scratch, now, received, (stamp, Answer::Value(before)));
            }
            (_, Some(arrived)) if self.rx().is_some() => {
                self.note_reception(shared);
                self.begin_sprayed(arrived);
                if !received.payload.is_empty() {
                    self.note_source(shared);
                }
                match ext {
                    Ext::Atomic(..) => self.take_fetch(shared, scratch, dma, received, arrived),
                    Ext::Data(_) if bth.opcode == Code::ReadRequest => self.take_fetch(shared, scratch, dma, received, arrived),
                    Ext::Data(data) => self.take_sprayed(shared, scratch, now, dma, received, data, arrived),
                    _ => self.rx_mut().into_iter().for_each(|rx| rx.receiver.on_probe(arrived)),
                }
                self.take_held(shared, scratch, dma, received.bytes);
                self.schedule(shared);
            }
            // Nothing was offered, or not that.
            _ => shared.drops.bad_service += 1,
        }
    }

    /// A switch has cut the payload of a packet off: its sender is told, or, if it is an answer, it is asked for again. Nothing vouches
    /// for what is left, so that it moves nothing else.
    pub fn handle_trimmed(&mut self, shared: &mut Shared, now: Instant, bth: &Bth<Code>, stamp: Stamp, port: u16) {
        if bth.opcode == Code::ReadResponse {
            if self.sprays()
                && let Some(tx) = self.tx()
            {
                tx.sender.on_trimmed_response(now, bth.psn);
                self.rearm(shared, now);
            }
        } else if let Some(rx) =
            self.rx_mut().filter(|rx| rx.has_begun && rx.receiver.window().classify(bth.psn) == Arrival::New)
        {
            rx.refuse(bth.psn, Reason::Trimmed, Arrived { port, time: stamp.time, marked: true, ack_req: false });
        }
        self.schedule(shared);
    }

    /// The window follows what was taken in the plain way while it was empty.
    fn begin_sprayed(&mut self, arrived: Arrived) {
        let expected = self.resp.expected_psn;
        let Some(rx) = self.rx_mut() else { return };
        (rx.has_begun, rx.answers_plain, rx.last) = (true, false, arrived);
        if !rx.receiver.window().has_gap() && rx.receiver.window().expected() != expected {
            rx.receiver.restart(expected);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what the data path has at hand")]
    fn take_sprayed(
        &mut self,
        shared: &mut Shared,
        scratch: &mut Scratch,
        now: Instant,
        dma: &mut impl Dma,
        received: &Received<'_>,
        data: &Data,
        arrived: Arrived,
    ) {
        let psn = received.packet.bth.psn;
        let expected = self.resp.expected_psn;
        let Some(rx) = self.rx_mut() else { return };
        match rx.receiver.window().classify(psn) {
            Arrival::Outside => rx.refuse(psn, Reason::OutsideWindow, arrived),
            Arrival::Duplicate => {
                rx.receiver.on_packet(now, psn, 1, arrived);
                shared.count(self.device, |counters| counters.duplicate_request += 1);
            }
            Arrival::New if psn == expected => {
                let headers = plain_headers(&received.packet.bth, data, received.payload.len());
                match self.execute(shared, scratch, dma, &headers, received.payload.clone(), None) {
                    Ok(_) => {
                        if let Some(rx) = self.rx_mut() {
                            rx.receiver.on_packet(now, psn, 1, arrived);
                        }
                        self.pass(1, headers.bth.opcode.ends_message());
                    }
                    Err(refusal) => self.refuse_packet(shared, &headers.bth, refusal),
                }
            }
            Arrival::New => {
                shared.count(self.device, |counters| counters.out_of_seq_request += 1);
                let is_taken = if is_middle_of_write(received.packet.bth.opcode, data, received.payload.len()) {
                    self.place_early(shared, scratch, received, data)
                } else {
                    let headers = plain_headers(&received.packet.bth, data, received.payload.len());
                    let payload = received.bytes[received.payload.clone()].into();
                    self.hold(psn, Held { headers, payload, asked: None }, arrived)
                };
                if is_taken && let Some(rx) = self.rx_mut() {
                    rx.receiver.on_packet(now, psn, 1, arrived);
                }
            }
        }
    }

    /// The expected packet, which stands for so many PSNs, has had its effect.
    pub(super) fn pass(&mut self, psns: u32, ends_message: bool) {
        self.resp.expected_psn = self.resp.expected_psn.plus(psns);
        (self.resp.refusing, self.resp.nak) = (false, None);
        if ends_message {
            self.resp.count_message();
        }
        if let Some(rx) = self.rx_mut() {
            for _ in 0..psns {
                rx.receiver.pass();
            }
        }
    }

    /// Places a middle packet of a WRITE before its turn, if it may be. What is wrong with it is told when its turn comes.
    fn place_early(&mut self, shared: &mut Shared, scratch: &mut Scratch, received: &Received<'_>, data: &Data) -> bool {
        let Reth { va, rkey, length } = data.reth;
        let len = received.payload.len() as u32;
        let whole = self.remote(va, rkey, length);
        let part = self.remote(va.wrapping_add(u64::from(data.offset)), rkey, len);
        let is_allowed = len == self.mtu()
            && self.check_connection(Access::REMOTE_WRITE, length).is_ok()
            && self.check_region(&shared.table, Access::REMOTE_WRITE, whole).is_ok();
        if !is_allowed {
            return false;
        }
        let taken = scratch.pieces.len();
        let add = scratch.batch(shared, Batch::Requests, received.packet.bth.psn, received.payload.start);
        let placed = self.remote_segments(&shared.table, Access::REMOTE_WRITE, part, add).is_ok();
        if !placed {
            scratch.pieces.truncate(taken);
        }
        placed
    }

    /// Keeps a packet until its turn, if there is room.
    pub(super) fn hold(&mut self, psn: Psn, held: Held, arrived: Arrived) -> bool {
        let Some(rx) = self.rx_mut() else { return false };
        if rx.held.len() >= HELD_PACKETS {
            rx.refuse(psn, Reason::NoBuffer, arrived);
            return false;
        }
        rx.held.insert(psn.get(), held);
        true
    }

    /// Takes what was held, or placed early, and is next now. `bytes` is what the open batch is written from.
    fn take_held(&mut self, shared: &mut Shared, scratch: &mut Scratch, dma: &mut impl Dma, bytes: &[u8]) {
        while self.can_receive() {
            let psn = self.resp.expected_psn;
            let Some(rx) = self.rx_mut().filter(|rx| rx.receiver.window().has_next()) else { return };
            let Some(held) = rx.held.remove(&psn.get()) else {
                let mtu = self.mtu();
                match self.resp.message {
                    Some(Message::Write(remote)) if remote.len - self.resp.received > mtu => self.resp.received += mtu,
                    // It came as the middle of a WRITE that was never begun.
                    _ => return self.refuse_early(shared, psn),
                }
                self.pass(1, false);
                continue;
            };
            // Its payload lies elsewhere, and goes after all that came before it.
            self.write_batch(shared, scratch, dma, bytes);
            if !self.can_receive() {
                return;
            }
            match self.execute_sprayed(shared, scratch, dma, &held) {
                Ok(()) => {
                    self.write_batch(shared, scratch, dma, &held.payload);
                    if self.can_receive() {
                        let ends_message = held.headers.bth.opcode.ends_message();
                        let (psns, ends) = held.asked.map_or((1, ends_message), |asked| (asked.packets, asked.ends_message));
                        self.pass(psns, ends);
                    }
                }
                Err(refusal) => {
                    let bth = held.headers.bth;
                    if let Some(rx) = self.rx_mut() {
                        // It has been acknowledged selectively, so that it will not come again.
                        rx.held.insert(psn.get(), held);
                    }
                    return self.refuse_packet(shared, &bth, refusal);
                }
            }
        }
    }

    pub(super) fn refuse_early(&mut self, shared: &mut Shared, psn: Psn) {
        let bth = self.extension_bth(Opcode::RcWriteMiddle, psn, false);
        self.refuse_packet(shared, &bth, Refusal::INVALID);
    }
}

/// Whether it is a packet that neither begins nor ends its WRITE.
fn is_middle_of_write(code: Code, data: &Data, payload: usize) -> bool {
    let end = u64::from(data.offset) + payload as u64;
    code == Code::Write && data.offset > 0 && end < u64::from(data.reth.length)
}

/// The plain packet that does the same.
fn plain_headers(bth: &Bth<Code>, data: &Data, payload: usize) -> Headers {
    let is_first = data.offset == 0;
    let is_last = u64::from(data.offset) + payload as u64 >= u64::from(data.reth.length);
    let is_write = matches!(bth.opcode, Code::Write | Code::WriteWithImm);
    let opcode = match (is_write, is_first, is_last) {
        (true, true, true) if data.word.is_some() => Opcode::RcWriteOnlyWithImm,
        (true, true, true) => Opcode::RcWriteOnly,
        (true, false, true) if data.word.is_some() => Opcode::RcWriteLastWithImm,
        (true, false, true) => Opcode::RcWriteLast,
        (true, true, false) => Opcode::RcWriteFirst,
        (true, false, false) => Opcode::RcWriteMiddle,
        (false, true, true) if bth.opcode == Code::SendWithImm => Opcode::RcSendOnlyWithImm,
        (false, true, true) if bth.opcode == Code::SendWithInvalidate => Opcode::RcSendOnlyWithInvalidate,
        (false, true, true) => Opcode::RcSendOnly,
        (false, false, true) if bth.opcode == Code::SendWithImm => Opcode::RcSendLastWithImm,
        (false, false, true) if bth.opcode == Code::SendWithInvalidate => Opcode::RcSendLastWithInvalidate,
        (false, false, true) => Opcode::RcSendLast,
        (false, true, false) => Opcode::RcSendFirst,
        (false, false, false) => Opcode::RcSendMiddle,
    };
    let &Bth { solicited, mig_req, pad, pkey, fecn, becn, dest_qpn, ack_req, psn, .. } = bth;
    let mut headers = Headers::new(Bth { opcode, solicited, mig_req, pad, pkey, fecn, becn, dest_qpn, ack_req, psn });
    headers.reth = opcode.has_reth().then_some(data.reth);
    headers.imm = data.word.filter(|_| opcode.has_imm());
    headers.ieth = data.word.filter(|_| opcode.has_ieth()).map(|key| Rkey(u32::from_be_bytes(key)));
    headers
}
