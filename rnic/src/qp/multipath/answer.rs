//! READs and atomics of a peer that sprays: their requests wait for their turn as all others do, and the answers go back on the
//! ports that they came from, packet by packet. A READ that is asked for again is read again, an atomic's result is remembered.

use super::Qp;
use super::receive::{Held, Received};
use crate::dma::{Dma, Piece};
use crate::qp::access::{Refusal, Remote};
use crate::qp::responder::{Echo, Fetch, Reply};
use crate::shared::{Scratch, Shared};
use crate::vendor_err;
use emtt::{Access, Segment};
use roce::Psn;
use roce::wire::spray_ext::{Code, Data, Ext, Packet, Reason, Stamp};
use roce::wire::{Bth, Headers, ICRC_LEN, Kind, Opcode, Reth};
use spray::{Arrival, Arrived};

/// A request for data, beside the plain headers that ask for the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// Packets of the answer, each of which has a PSN.
    pub packets: u32,
    pub echo: Echo,
    /// The READ that it asks for a part of.
    pub whole: Option<Reth>,
    /// It asks for the last packet of its message.
    pub ends_message: bool,
}

impl Qp {
    /// Takes a request for data.
    pub(super) fn take_fetch(
        &mut self,
        shared: &mut Shared,
        scratch: &mut Scratch,
        dma: &mut impl Dma,
        received: &Received<'_>,
        arrived: Arrived,
    ) {
        let psn = received.packet.bth.psn;
        let expected = self.resp.expected_psn;
        let echo = Echo { port: arrived.port, time: arrived.time };
        let wanted = self.packets_wanted(received.packet);
        if psn.is_before(expected) {
            return self.answer_again(shared, received.packet, wanted.unwrap_or(0), echo);
        }
        let replies = self.resp.replies.len();
        let Some(rx) = self.rx_mut() else { return };
        let window = rx.receiver.window();
        // What is asked for may have been asked for in other parts since.
        let packets = wanted.map(|wanted| window.new_from(psn, wanted));
        match (window.classify(psn), packets) {
            (Arrival::Outside, _) => rx.refuse(psn, Reason::OutsideWindow, arrived),
            (Arrival::Duplicate, _) => shared.count(self.device, |counters| counters.duplicate_request += 1),
            // A request that makes no sense is refused when its turn comes, and not taken before.
            (Arrival::New, None) if psn == expected => self.refuse_early(shared, psn),
            (Arrival::New, None) => {}
            // A peer that keeps to the window never gets there, but for what it asks for again.
            (Arrival::New, Some(_)) if replies >= window.capacity() as usize => rx.refuse(psn, Reason::NoBuffer, arrived),
            (Arrival::New, Some(packets)) => {
                let (headers, asked) = self.asked(received.packet, packets, echo);
                let held = Held { headers, payload: [].into(), asked: Some(asked) };
                if psn != expected {
                    shared.count(self.device, |counters| counters.out_of_seq_request += 1);
                    if self.hold(psn, held, arrived)
                        && let Some(rx) = self.rx_mut()
                    {
                        rx.receiver.on_request(psn, packets);
                    }
                    return;
                }
                match self.execute_sprayed(shared, scratch, dma, &held) {
                    Ok(()) => {
                        if let Some(rx) = self.rx_mut() {
                            rx.receiver.on_request(psn, packets);
                        }
                        self.pass(packets, asked.ends_message);
                    }
                    Err(refusal) => self.refuse_packet(shared, &held.headers.bth, refusal),
                }
            }
        }
    }

    /// Packets that a request asks for; `None` if it makes no sense.
    fn packets_wanted(&self, packet: &Packet) -> Option<u32> {
        let Ext::Data(Data { reth, offset, rsn: packets, .. }) = packet.ext else { return Some(1) };
        let mtu = self.mtu();
        let left = reth.length.checked_sub(offset)?.div_ceil(mtu).max(u32::from(reth.length == 0));
        (offset.is_multiple_of(mtu) && (1..=left).contains(&packets)).then_some(packets)
    }

    /// The plain request that asks for the same, of which only the first `packets` packets, and what goes beyond it.
    fn asked(&self, packet: &Packet, packets: u32, echo: Echo) -> (Headers, Asked) {
        let Packet { bth, ext } = packet;
        let opcode = match bth.opcode {
            Code::CompareSwap => Opcode::RcCompareSwap,
            Code::FetchAdd => Opcode::RcFetchAdd,
            _ => Opcode::RcReadRequest,
        };
        let mut headers = Headers::new(self.extension_bth(opcode, bth.psn, false));
        let mut asked = Asked { packets, echo, whole: None, ends_message: true };
        match *ext {
            Ext::Data(Data { reth, offset, .. }) => {
                let length = reth.length.saturating_sub(offset).min(packets.saturating_mul(self.mtu()));
                headers.reth = Some(Reth { va: reth.va.wrapping_add(u64::from(offset)), length, ..reth });
                (asked.whole, asked.ends_message) = (Some(reth), offset + length == reth.length);
            }
            Ext::Atomic(_, atomic) => headers.atomic = Some(atomic),
            _ => unreachable!("a request for data"),
        }
        (headers, asked)
    }

    /// Executes a packet that is next, whose payload has been written before if it has any here.
    pub(super) fn execute_sprayed(
        &mut self,
        shared: &mut Shared,
        scratch: &mut Scratch,
        dma: &mut impl Dma,
        held: &Held,
    ) -> Result<(), Refusal> {
        let Held { headers, payload, asked } = held;
        if let Some(Reth { va, rkey, length }) = asked.and_then(|asked| asked.whole) {
            self.begin_read(length)?;
            self.check_region(&shared.table, Access::REMOTE_READ, self.remote(va, rkey, length))?;
        }
        self.execute(shared, scratch, dma, headers, 0..payload.len(), asked.map(|asked| asked.echo)).map(drop)
    }

    /// A request that was executed before: its answer was lost, if it is not still on its way out.
    fn answer_again(&mut self, shared: &mut Shared, packet: &Packet, wanted: u32, echo: Echo) {
        let psn = packet.bth.psn;
        let since = self.resp.expected_psn.distance_from(psn) as u32;
        shared.count(self.device, |counters| counters.duplicate_request += 1);
        let waits = |reply: &Reply| {
            let at = psn.distance_from(reply.psn);
            at >= reply.sent as i32 && at < reply.packets as i32
        };
        let capacity = self.rx().map_or(0, |rx| rx.receiver.window().capacity());
        if self.resp.replies.len() >= capacity as usize || self.resp.replies.iter().any(waits) {
            return;
        }
        let packets = wanted.min(since);
        let (headers, asked) = self.asked(packet, packets, echo);
        let kind = match (headers.bth.opcode.kind(), headers.reth, asked.whole) {
            // Nobody has more under way than the window. The memory is looked at when it is read.
            (Kind::ReadRequest, Some(part), Some(whole)) if packets > 0 && since <= capacity => {
                self.begin_read(whole.length).is_ok().then(|| Fetch::Read(self.remote(part.va, part.rkey, part.length)))
            }
            (Kind::ReadRequest, ..) => None,
            _ => self.remembered_atomic(psn),
        };
        let Some(kind) = kind else {
            return shared.count(self.device, |counters| counters.lost_resource += 1);
        };
        let msn = self.resp.msn;
        self.resp.replies.push_back(Reply { psn, packets, sent: 0, msn, is_duplicate: true, kind, echo: Some(echo) });
    }

    /// Makes a packet of the oldest reply up to its ICRC, if that answers a request of the extension.
    pub(super) fn transmit_answer(
        &mut self,
        shared: &mut Shared,
        scratch: &mut Scratch,
        dma: &mut impl Dma,
        buf: &mut [u8],
    ) -> Option<(u16, usize)> {
        let reply = *self.resp.replies.front()?;
        let Echo { port, time } = reply.echo?;
        let psn = reply.psn.plus(reply.sent);
        let stamp = Stamp { msn: self.resp.msn, time };
        let (code, ext, payload) = match reply.kind {
            Fetch::Atomic(before) => (Code::AtomicResponse, Ext::AtomicResponse(stamp, before), 0),
            Fetch::Read(remote) => match self.gather_answer(shared, scratch, dma, (remote, reply.sent), buf) {
                Ok(payload) => (Code::ReadResponse, Ext::Stamp(stamp), payload),
                Err(refusal) => {
                    self.fail_reply(shared, psn, refusal);
                    self.schedule(shared);
                    return None;
                }
            },
        };
        let mut bth = self.extension_bth(code, psn, false);
        bth.pad = Bth::pad_for(payload);
        let end = Packet { bth, ext }.emit(buf) + payload;
        let padded = end + usize::from(bth.pad);
        buf[end..padded].fill(0);
        self.resp.reply_sent();
        shared.count(self.device, |counters| counters.sent_spray_pkts += 1);
        Some((port, padded + ICRC_LEN))
    }

    /// Reads what packet `packet` of the answer to a READ brings, to behind its headers. Returns how many bytes that is.
    fn gather_answer(
        &self,
        shared: &Shared,
        scratch: &mut Scratch,
        dma: &mut impl Dma,
        (remote, packet): (Remote, u32),
        buf: &mut [u8],
    ) -> Result<usize, Refusal> {
        let offset = packet * self.mtu();
        let len = (remote.len - offset).min(self.mtu());
        let part = Remote { addr: remote.addr.wrapping_add(u64::from(offset)), len, ..remote };
        let start = Code::ReadResponse.headers_len();
        let end = start + len as usize;
        let mut at = start;
        let add = |segment: Segment| {
            scratch.pieces.push(Piece { segment, at });
            at += segment.len as usize;
        };
        let found = self.remote_segments(&shared.table, Access::REMOTE_READ, part, add);
        let gathered = match found {
            Ok(()) if !scratch.pieces.is_empty() => dma.gather(&scratch.pieces, &mut buf[..end]),
            _ => Ok(()),
        };
        scratch.pieces.clear();
        found?;
        gathered.map_err(|_| Refusal::operational(vendor_err::LOCAL_MEMORY))?;
        Ok(len as usize)
    }

    /// The result of an atomic that was executed before.
    fn remembered_atomic(&self, psn: Psn) -> Option<Fetch> {
        let mut known = self.resp.resources.iter().filter(|resource| resource.psn == psn);
        known.find_map(|resource| matches!(resource.kind, Fetch::Atomic(_)).then_some(resource.kind))
    }
}
