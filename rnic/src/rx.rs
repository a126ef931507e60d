//! Packets from the wire: checks that need no queue pair, and the way to the queue pair.

use crate::attr::QpType;
use crate::counters::DropCounters;
use crate::dma::Dma;
use crate::ids::IdTable;
use crate::qp::multipath::Received;
use crate::qp::{Path, Qp};
use crate::rnic::Rnic;
use crate::shared::{Batch, Scratch, Shared};
use crate::work::DeviceId;
use alloc::boxed::Box;
use core::net::IpAddr;
use roce::wire::icrc::{Flow, Prefix};
use roce::wire::spray_ext::{Packet, is_extension};
use roce::wire::{Headers, Kind, Service};
use roce::{Instant, Qpn};

/// What a port knows about a burst of packets beyond its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxMeta {
    /// The device whose port received it.
    pub device: DeviceId,
    /// The sender's address.
    pub src: IpAddr,
    /// The address it was sent to.
    pub dst: IpAddr,
    /// The sender's UDP port.
    pub src_port: u16,
    /// Bytes per packet; the last may be shorter.
    pub segment_len: usize,
    /// The network marked them as having met congestion (CE in the field of the IP header, RFC 3168).
    pub congested: bool,
}

impl Rnic {
    /// Takes received packets: `bytes` holds one or more UDP payloads of `meta.segment_len` bytes each, the last possibly
    /// shorter, as UDP_GRO gives them. Payload is in memory, and completions can be polled, when this returns.
    pub fn handle_burst(&mut self, now: Instant, meta: &RxMeta, bytes: &[u8], dma: &mut impl Dma) {
        let Rnic { qps, shared, scratch } = self;
        shared.schedule.now = now;
        if !shared.port_is_up(meta.device) {
            shared.drops.port_down += 1;
            return;
        }
        let flow = Flow { src: meta.src.to_canonical(), dst: meta.dst.to_canonical(), src_port: meta.src_port };
        let segment_len = if meta.segment_len == 0 { bytes.len() } else { meta.segment_len };
        let (device, congested) = (meta.device, meta.congested);
        let mut receiver = Receiver { now, device, flow, segment_len, congested, prefix: None, batch_qpn: Qpn::default() };
        let mut at = 0;
        while at < bytes.len() {
            let end = bytes.len().min(at + segment_len);
            receiver.packet(qps, shared, scratch, dma, (bytes, at, end));
            at = end;
        }
        receiver.write_batch(qps, shared, scratch, dma, bytes);
    }
}

/// Remembers at the queue pair that a packet names, whoever sent it, why the packet was dropped.
fn note_drop(qps: &mut IdTable<Box<Qp>>, qpn: Qpn, reason: &'static str) {
    if let Some(qp) = qps.get_mut(qpn.get()) {
        qp.last_drop = Some(reason);
    }
}

struct Receiver {
    now: Instant,
    device: DeviceId,
    flow: Flow,
    segment_len: usize,
    congested: bool,
    /// ICRC of the headers below the BTH, for packets of this length.
    prefix: Option<(usize, Prefix)>,
    /// Whose packets the open batch holds.
    batch_qpn: Qpn,
}

impl Receiver {
    fn packet(
        &mut self,
        qps: &mut IdTable<Box<Qp>>,
        shared: &mut Shared,
        scratch: &mut Scratch,
        dma: &mut impl Dma,
        (bytes, start, end): (&[u8], usize, usize),
    ) {
        let packet = &bytes[start..end];
        if is_extension(packet) {
            return self.extension(qps, shared, scratch, dma, (bytes, start, end));
        }
        let Ok((headers, payload)) = Headers::parse(packet) else {
            shared.drops.malformed += 1;
            return;
        };
        if !self.icrc_is_good(start, packet) {
            shared.drops.icrc += 1;
            note_drop(qps, headers.bth.dest_qpn, "icrc");
            return;
        }
        let bth = &headers.bth;
        // The membership bit of a partition key does not take part in the comparison; there is only the default partition.
        if bth.pkey & 0x7FFF != 0x7FFF {
            shared.drops.bad_pkey += 1;
            note_drop(qps, bth.dest_qpn, "bad_pkey");
            return;
        }
        let qpn = shared.queue_pair(self.device, bth.dest_qpn);
        let Some(qp) = qps.get(qpn.get()).filter(|qp| qp.device == self.device && qp.number == bth.dest_qpn) else {
            match bth.dest_qpn {
                Qpn::GSI => shared.take_mad_packet(self.device, &self.flow, &headers, &packet[payload]),
                _ => shared.drops.unknown_qp += 1,
            }
            return;
        };
        let is_from_peer = match qp.path {
            Path::Wire(out) => out.dst == self.flow.src && out.src == self.flow.dst,
            Path::PerRequest => true,
            Path::Local(_) => false,
            Path::Unset => {
                shared.drops.bad_state += 1;
                note_drop(qps, bth.dest_qpn, "bad_state");
                return;
            }
        };
        if !is_from_peer {
            shared.drops.bad_address += 1;
            note_drop(qps, bth.dest_qpn, "bad_address");
            return;
        }
        match (bth.opcode.service(), qp.qp_type) {
            (Service::Cnp, _) => return shared.count(self.device, |counters| counters.rcvd_cnp += 1),
            (Service::Rc, QpType::Rc) | (Service::Uc, QpType::Uc) | (Service::Ud, QpType::Ud) => {}
            _ => {
                shared.drops.bad_service += 1;
                note_drop(qps, bth.dest_qpn, "bad_service");
                return;
            }
        }
        if !qp.can_receive() {
            shared.drops.bad_state += 1;
            note_drop(qps, bth.dest_qpn, "bad_state");
            return;
        }
        shared.count(self.device, |counters| {
            counters.rcvd_pkts += 1;
            counters.rcvd_bytes += packet.len() as u64;
            counters.rcvd_ecn += u64::from(bth.fecn || bth.becn || self.congested);
        });
        if !self.continues_batch(scratch, qpn, bth.opcode.kind()) {
            self.write_batch(qps, shared, scratch, dma, bytes);
        }
        self.batch_qpn = qpn;
        let Some(qp) = qps.get_mut(qpn.get()).filter(|qp| qp.can_receive()) else { return };
        if qp.qp_type == QpType::Ud {
            return qp.handle_datagram(shared, scratch, &self.flow, &headers, &packet[payload]);
        }
        let payload = start + payload.start..start + payload.end;
        if qp.qp_type == QpType::Uc {
            return qp.handle_unreliable(shared, scratch, &headers, payload);
        }
        if bth.opcode.is_response() {
            qp.handle_response(shared, scratch, self.now, &headers, payload);
        } else {
            qp.handle_request(shared, scratch, dma, &headers, payload);
        }
    }

    /// A packet of the spray extension: for connections that may use many paths, and no others.
    fn extension(
        &mut self,
        qps: &mut IdTable<Box<Qp>>,
        shared: &mut Shared,
        scratch: &mut Scratch,
        dma: &mut impl Dma,
        (bytes, start, end): (&[u8], usize, usize),
    ) {
        let bytes_of_packet = &bytes[start..end];
        let Some(Ok((packet, payload))) = shared.config.multipath.map(|_| Packet::parse(bytes_of_packet)) else {
            shared.drops.malformed += 1;
            return;
        };
        let bth = &packet.bth;
        if !self.icrc_is_good(start, bytes_of_packet) {
            shared.drops.icrc += 1;
            return note_drop(qps, bth.dest_qpn, "icrc");
        }
        if bth.pkey & 0x7FFF != 0x7FFF {
            shared.drops.bad_pkey += 1;
            return note_drop(qps, bth.dest_qpn, "bad_pkey");
        }
        let qpn = shared.queue_pair(self.device, bth.dest_qpn);
        let Some(qp) = qps.get(qpn.get()).filter(|qp| qp.device == self.device && qp.number == bth.dest_qpn) else {
            shared.drops.unknown_qp += 1;
            return;
        };
        let is_from_peer = matches!(qp.path, Path::Wire(out) if out.dst == self.flow.src && out.src == self.flow.dst);
        let (count, reason): (fn(&mut DropCounters) -> &mut u64, _) = match () {
            _ if qp.path == Path::Unset || !qp.can_receive() => (|drops| &mut drops.bad_state, "bad_state"),
            _ if !is_from_peer => (|drops| &mut drops.bad_address, "bad_address"),
            _ if qp.multipath.is_none() => (|drops| &mut drops.bad_service, "bad_service"),
            _ => {
                shared.count(self.device, |counters| {
                    counters.rcvd_pkts += 1;
                    counters.rcvd_bytes += bytes_of_packet.len() as u64;
                    counters.rcvd_ecn += u64::from(bth.fecn || bth.becn || self.congested);
                });
                let kind = if bth.opcode.is_write_or_send() { Kind::Write } else { Kind::Ack };
                if !self.continues_batch(scratch, qpn, kind) {
                    self.write_batch(qps, shared, scratch, dma, bytes);
                }
                self.batch_qpn = qpn;
                let payload = start + payload.start..start + payload.end;
                let received =
                    Received { packet: &packet, payload, bytes, src_port: self.flow.src_port, congested: self.congested };
                if let Some(qp) = qps.get_mut(qpn.get()).filter(|qp| qp.can_receive()) {
                    qp.handle_extension(shared, scratch, self.now, dma, &received);
                }
                return;
            }
        };
        *count(&mut shared.drops) += 1;
        note_drop(qps, bth.dest_qpn, reason);
    }

    /// `start` is the packet's offset in the burst: segments of one send are numbered from 0.
    fn icrc_is_good(&mut self, start: usize, packet: &[u8]) -> bool {
        let prefix = match self.prefix {
            Some((len, prefix)) if len == packet.len() => Ok(prefix),
            _ => Prefix::new(&self.flow, packet.len()),
        };
        let Ok(prefix) = prefix else { return false };
        self.prefix = Some((packet.len(), prefix));
        prefix.check((start / self.segment_len) as u16, packet).is_ok()
    }

    /// Whether the packet can be taken before the open batch is written.
    fn continues_batch(&self, scratch: &Scratch, qpn: Qpn, kind: Kind) -> bool {
        let Some((batch, _)) = scratch.open_batch else { return true };
        let fits = match kind {
            Kind::Send | Kind::Write => matches!(batch, Batch::Requests | Batch::Datagrams),
            Kind::ReadResponse => batch == Batch::Responses,
            Kind::AtomicAck => batch == Batch::Values,
            // It may depend on, or change, memory that the batch is about to write.
            Kind::CompareSwap | Kind::FetchAdd => false,
            Kind::Ack | Kind::ReadRequest | Kind::Cnp => true,
        };
        fits && qpn == self.batch_qpn
    }

    fn write_batch(
        &self,
        qps: &mut IdTable<Box<Qp>>,
        shared: &mut Shared,
        scratch: &mut Scratch,
        dma: &mut impl Dma,
        bytes: &[u8],
    ) {
        if scratch.open_batch.is_some()
            && let Some(qp) = qps.get_mut(self.batch_qpn.get())
        {
            qp.write_batch(shared, scratch, dma, bytes);
        }
    }
}
