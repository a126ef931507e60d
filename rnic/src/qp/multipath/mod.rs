//! A reliable connection over many paths: agreement, and what both ends send beside data (`spray/WIRE.md`).
//!
//! A connection begins as any other. Once the peer has offered, the requester lets what is under way complete, and then sends
//! packets of the spray extension ([`send`]), and asks with such for what READs and atomics bring ([`fetch`]). To a peer that does not
//! take those, a READ or atomic is sent in the plain way, with nothing else under way.
//! The responder takes packets of the extension once it has offered ([`receive`], [`answer`]); what they do to it in the end is what
//! plain packets do, in order.

mod answer;
mod fetch;
mod receive;
mod send;

use super::{Qp, Wait};
use crate::MultipathConfig;
use crate::attr::QpState;
use crate::dma::Dma;
use crate::shared::{Scratch, Shared};
use alloc::boxed::Box;
use core::time::Duration;
use isolation::incast::Source;
pub(crate) use receive::Received;
use receive::Rx;
use roce::wire::spray_ext::{
    Code, Ext, Nack, Offer, Packet, RATE_UNIT, Reason, Stamp, VERSION, feature, hello_msn, hello_psn, is_hello,
};
use roce::wire::{Aeth, Bth, Headers, ICRC_LEN, Kind, NakCode, Opcode, Syndrome};
use roce::{Instant, Psn};
use send::Tx;
use spray::{Arrived, Negotiation};

/// The timer runs at least so long.
const LEAST_WAIT: Duration = Duration::from_micros(100);

/// What a connection that may use many paths keeps for it.
#[derive(Debug)]
pub(crate) struct Multipath {
    config: MultipathConfig,
    pub negotiation: Negotiation,
    /// PSN of the hello that an offer is due for.
    offer_due: Option<Psn>,
    /// Since it began to send on many paths.
    tx: Option<Tx>,
    /// Since it made an offer.
    rx: Option<Box<Rx>>,
    /// Of the data that comes on it.
    source: Source,
}

impl Multipath {
    /// Of a connection whose first packet from the peer is to have the PSN `expected`.
    pub fn new(config: MultipathConfig, expected: Psn) -> Multipath {
        let (negotiation, rx) = match config.agreed {
            true => (Negotiation::agreed(offer(&config)), Some(Box::new(Rx::new(config.window, expected)))),
            false => (Negotiation::new(), None),
        };
        Multipath { config, negotiation, offer_due: None, tx: None, rx, source: Source::default() }
    }
}

/// What this end takes.
fn offer(config: &MultipathConfig) -> Offer {
    let features = feature::FETCH | if config.trimmed { feature::TRIMMED } else { 0 };
    let window = config.window;
    Offer { lowest: VERSION, highest: VERSION, features, window, ack_delay_us: 0 }
}

impl Qp {
    /// Whether a hello is to be said.
    pub fn wants_hello(&self) -> bool {
        self.multipath.as_ref().is_some_and(|multipath| multipath.negotiation.wants_hello())
    }

    /// Takes an acknowledgement that fits nothing for a hello, if it is one.
    pub fn take_hello(&mut self, shared: &mut Shared, headers: &Headers) -> bool {
        let Some(multipath) = &mut self.multipath else { return false };
        let bth = &headers.bth;
        let Some(Aeth { syndrome: Syndrome::Ack { .. }, msn }) = headers.aeth.filter(|_| bth.opcode.kind() == Kind::Ack) else {
            return false;
        };
        let oldest = (self.state != QpState::Rtr).then_some(self.req.unacked);
        if !is_hello(bth.psn, msn, oldest, self.attr.dest_qpn, self.number) {
            return false;
        }
        let window = multipath.config.window;
        multipath.rx.get_or_insert_with(|| Box::new(Rx::new(window, self.resp.expected_psn)));
        multipath.offer_due = Some(bth.psn);
        self.schedule(shared);
        true
    }

    /// Takes an offer.
    fn handle_offer(&mut self, shared: &mut Shared, psn: Psn, offer: &Offer) {
        let Some(multipath) = &mut self.multipath else { return };
        if multipath.negotiation.on_offer(psn, offer) {
            self.schedule(shared);
        }
    }

    /// Makes one packet of the extension, or a hello, up to its ICRC, which is left out. Returns its UDP source port and its length.
    pub fn transmit_multipath(
        &mut self,
        shared: &mut Shared,
        scratch: &mut Scratch,
        now: Instant,
        home: u16,
        dma: &mut impl Dma,
        buf: &mut [u8],
    ) -> Option<(u16, usize)> {
        if let Some((port, packet)) = self.next_answer(shared, now, home) {
            return Some((port, packet.emit(buf) + ICRC_LEN));
        }
        if self.wants_hello() {
            return Some((home, self.emit_hello(buf)));
        }
        // Replies take turns with requests.
        let replies_first = self.resp.has_replies() && !self.requests_first;
        for replies in [replies_first, !replies_first] {
            let sent = match replies {
                true => self.transmit_answer(shared, scratch, dma, buf),
                false => self.transmit_sprayed(shared, scratch, now, home, dma, buf),
            };
            if sent.is_some() {
                self.requests_first = replies;
                return sent;
            }
            if replies && self.resp.has_replies() {
                // It cannot be answered, and the peer is told; or it is the turn of plain ones.
                let (port, packet) = self.next_answer(shared, now, home)?;
                return Some((port, packet.emit(buf) + ICRC_LEN));
            }
        }
        None
    }

    fn emit_hello(&mut self, buf: &mut [u8]) -> usize {
        let psn = hello_psn(self.resp.expected_psn);
        let mut headers = Headers::new(self.extension_bth(Opcode::RcAck, psn, false));
        let msn = hello_msn(psn, self.number, self.attr.dest_qpn);
        headers.aeth = Some(Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn });
        if let Some(multipath) = &mut self.multipath {
            multipath.negotiation.on_hello_sent(psn);
        }
        headers.emit(buf) + ICRC_LEN
    }

    /// What is to be said beside data, if anything: its source port, and the packet.
    fn next_answer(&mut self, shared: &mut Shared, now: Instant, home: u16) -> Option<(u16, Packet)> {
        let packet = |qp: &Qp, code, psn, ext| Packet { bth: qp.extension_bth(code, psn, false), ext };
        let multipath = self.multipath.as_mut()?;
        if let Some(psn) = multipath.offer_due.take() {
            let offer = offer(&multipath.config);
            return Some((home, packet(self, Code::Offer, psn, Ext::Offer(offer))));
        }
        if let Some(rx) = multipath.rx.as_mut().filter(|rx| rx.has_begun) {
            // The plain responder's refusal leaves in the extension's words, after the replies: it came after them.
            let waits = rx.answers_plain || !self.resp.replies.is_empty();
            let plain = if waits { None } else { self.resp.nak.take() };
            let plain = plain.and_then(|(psn, syndrome)| Some((psn, reason_of(syndrome)?, rx.last)));
            let refused = plain.or_else(|| rx.refused.pop_front());
            let cumulative = rx.receiver.window().cumulative();
            if let Some((psn, reason, Arrived { port, time, .. })) = refused {
                let stamp = Stamp { msn: self.resp.msn, time };
                shared.count(self.device, |counters| match reason {
                    Reason::NotReady(_) => counters.send_rnr_err += 1,
                    _ => counters.send_nak_err += 1,
                });
                let nack = Nack { stamp, port, reason, cumulative };
                return Some((port, packet(self, Code::Nack, psn, Ext::Nack(nack))));
            }
            if let Some((psn, mut sack)) = rx.receiver.poll_sack(now, self.resp.msn) {
                let asked = shared.schedule.incast.as_ref().and_then(|incast| incast.asked(&multipath.source));
                // What is asked for is never rounded down to nothing, which would mean as much as they like.
                sack.rate = asked.map_or(0, |rate| u32::try_from(rate / RATE_UNIT).unwrap_or(u32::MAX).max(1));
                return Some((sack.port, packet(self, Code::Sack, psn, Ext::Sack(sack))));
            }
        }
        let port = self.next_probe(now, home)?;
        let stamp = Stamp { msn: 0, time: now.as_nanos() as u32 };
        Some((port, packet(self, Code::Probe, self.req.cursor.psn, Ext::Stamp(stamp))))
    }

    /// Data came from the peer, which it sent or was asked for: it is one of those that share this end's link.
    fn note_source(&mut self, shared: &mut Shared) {
        let Some((incast, multipath)) = shared.schedule.incast.as_mut().zip(self.multipath.as_mut()) else { return };
        incast.on_data(self.attr.address.dgid, &mut multipath.source);
        if let Some(tx) = &mut multipath.tx {
            tx.sender.ask_at(incast.asked(&multipath.source).unwrap_or(0));
        }
    }

    fn extension_bth<O>(&self, opcode: O, psn: Psn, ack_req: bool) -> Bth<O> {
        Bth { ack_req, ..Bth::new(opcode, self.attr.dest_qpn, psn) }
    }

    /// Waits as long as the sender of packets on many paths says.
    fn rearm(&mut self, shared: &mut Shared, now: Instant) {
        let Some(tx) = self.multipath.as_ref().and_then(|multipath| multipath.tx.as_ref()) else { return };
        if self.wait == Wait::Rnr {
            return;
        }
        let is_complete = self.req.unacked == self.req.cursor.psn;
        // Everything may have arrived, and a message's effects wait for a receive: the peer is asked again.
        let again = || (!is_complete).then(|| now + tx.sender.loss().rto());
        // A probe that is due now leaves at the next turn: the timer need not tell of it, and must not do so again at once.
        let look = tx.sender.poll_timeout().or_else(again).map(|at| at.max(now + LEAST_WAIT));
        match [look, tx.sender.paused_until()].into_iter().flatten().min() {
            Some(at) => self.start_timer(shared, Wait::Ack, Some(at)),
            None => self.stop_timer(),
        }
    }
}

/// The extension's word for a refusal of the plain responder.
fn reason_of(syndrome: Syndrome) -> Option<Reason> {
    match syndrome {
        Syndrome::RnrNak { timer } => Some(Reason::NotReady(timer)),
        Syndrome::Nak(NakCode::RemoteAccessError) => Some(Reason::RemoteAccessError),
        Syndrome::Nak(NakCode::RemoteOperationalError) => Some(Reason::RemoteOperationalError),
        Syndrome::Nak(NakCode::PsnSequenceError) | Syndrome::Ack { .. } => None,
        Syndrome::Nak(_) => Some(Reason::InvalidRequest),
    }
}

/// The plain NAK code of a fatal refusal.
fn code_of(reason: Reason) -> Option<NakCode> {
    match reason {
        Reason::InvalidRequest => Some(NakCode::InvalidRequest),
        Reason::RemoteAccessError => Some(NakCode::RemoteAccessError),
        Reason::RemoteOperationalError => Some(NakCode::RemoteOperationalError),
        Reason::Trimmed | Reason::OutsideWindow | Reason::NotReady(_) | Reason::NoBuffer => None,
    }
}
