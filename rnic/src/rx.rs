//! Packets from the wire: checks that need no queue pair, and the way to the queue pair.

use crate::attr::QpType;
use crate::counters::DropCounters;
use crate::dma::Dma;
use crate::event::link_bytes;
use crate::ids::IdTable;
use crate::qp::multipath::Received;
use crate::qp::{Path, Qp};
use crate::rnic::Rnic;
use crate::shared::{Batch, Scratch, Shared};
use crate::work::DeviceId;
use alloc::boxed::Box;
use core::net::IpAddr;
use roce::wire::icrc::{Flow, Prefix};
use roce::wire::spray_ext::{Code, Packet, is_extension, parse_trimmed};
use roce::wire::{Bth, Headers, Kind, Service};
use roce::{Instant, Qpn};

/// Bytes' worth of time that Ethernet needs between two frames. A link that is counted as full too early is a little less used; one that
/// is counted as full too late has a queue.
const PREAMBLE_AND_GAP: usize = 20;

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
    /// The network has cut their payload off, and says so by a mark that it uses for nothing else. There is no ICRC then.
    pub trimmed: bool,
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
        if let Some(incast) = &mut shared.schedule.incast {
            let packets = if meta.segment_len == 0 { 1 } else { bytes.len().div_ceil(meta.segment_len) };
            incast.on_arrival(now, (bytes.len() + packets * (link_bytes(&meta.src) + PREAMBLE_AND_GAP)) as u64);
        }
        let flow = Flow { src: meta.src.to_canonical(), dst: meta.dst.to_canonical(), src_port: meta.src_port };
        let segment_len = if meta.segment_len == 0 { bytes.len() } else { meta.segment_len };
        let (device, congested, trimmed) = (meta.device, meta.congested, meta.trimmed);
        let batch_qpn = Qpn::default();
        let mut receiver = Receiver { now, device, flow, segment_len, congested, trimmed, prefix: None, batch_qpn };
        let mut at = 0;
        while at < bytes.len() {
            let end = bytes.len().min(at + segment_len);
            receiver.packet(qps, shared, scratch, dma, (bytes, at, end));
            at = end;
        }
        receiver.write_batch(qps, shared, scratch, dma, bytes);
    }
}

/// Why a packet is dropped: as its queue pair remembers it, and what counts it.
struct Reason(&'static str, fn(&mut DropCounters) -> &mut u64);

const ICRC: Reason = Reason("icrc", |drops| &mut drops.icrc);
const BAD_PKEY: Reason = Reason("bad_pkey", |drops| &mut drops.bad_pkey);
const BAD_STATE: Reason = Reason("bad_state", |drops| &mut drops.bad_state);
const BAD_ADDRESS: Reason = Reason("bad_address", |drops| &mut drops.bad_address);
const BAD_SERVICE: Reason = Reason("bad_service", |drops| &mut drops.bad_service);

impl Reason {
    /// Counts the packet, and tells the queue pair that it names, whoever sent it.
    fn note(&self, qps: &mut IdTable<Box<Qp>>, shared: &mut Shared, qpn: Qpn) {
        let Reason(name, counter) = self;
        *counter(&mut shared.drops) += 1;
        if let Some(qp) = qps.get_mut(qpn.get()) {
            qp.last_drop = Some(name);
        }
    }
}

struct Receiver {
    now: Instant,
    device: DeviceId,
    flow: Flow,
    segment_len: usize,
    congested: bool,
    trimmed: bool,
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
        if self.trimmed {
            return self.remains(qps, shared, packet);
        }
        if is_extension(packet) {
            return self.extension(qps, shared, scratch, dma, (bytes, start, end));
        }
        let Ok((headers, payload)) = Headers::parse(packet) else {
            shared.drops.malformed += 1;
            return;
        };
        let bth = &headers.bth;
        let opcode = bth.opcode;
        let service = opcode.service();
        let admitted = self.admit(qps, shared, (start, packet), bth, |qp| match qp.qp_type {
            _ if service == Service::Cnp => true,
            QpType::XrcSend => service == Service::Xrc && opcode.is_response(),
            QpType::XrcRecv => service == Service::Xrc && !opcode.is_response(),
            own => service == own.service(),
        });
        let qpn = match admitted {
            Ok(Some(qpn)) => qpn,
            Ok(None) if bth.dest_qpn == Qpn::GSI => {
                return shared.take_mad_packet(self.device, &self.flow, &headers, &packet[payload]);
            }
            Ok(None) => return shared.drops.unknown_qp += 1,
            Err(reason) => return reason.note(qps, shared, bth.dest_qpn),
        };
        if service == Service::Cnp {
            return shared.count(self.device, |counters| counters.rcvd_cnp += 1);
        }
        self.enter(qps, shared, scratch, dma, (bytes, packet.len()), (qpn, bth, bth.opcode.kind()));
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
        let qpn = match self.admit(qps, shared, (start, bytes_of_packet), bth, |qp| qp.multipath.is_some()) {
            Ok(Some(qpn)) => qpn,
            Ok(None) => return shared.drops.unknown_qp += 1,
            Err(reason) => return reason.note(qps, shared, bth.dest_qpn),
        };
        let kind = match bth.opcode {
            Code::ReadResponse => Kind::ReadResponse,
            Code::AtomicResponse => Kind::AtomicAck,
            Code::CompareSwap | Code::FetchAdd => Kind::FetchAdd,
            code if code.is_write_or_send() => Kind::Write,
            _ => Kind::Ack,
        };
        self.enter(qps, shared, scratch, dma, (bytes, bytes_of_packet.len()), (qpn, bth, kind));
        let payload = start + payload.start..start + payload.end;
        let received = Received { packet: &packet, payload, bytes, src_port: self.flow.src_port, congested: self.congested };
        if let Some(qp) = qps.get_mut(qpn.get()).filter(|qp| qp.can_receive()) {
            qp.handle_extension(shared, scratch, self.now, dma, &received);
        }
    }

    /// What a switch has left of a packet: good for telling its sender, if it is of the extension, and for nothing else.
    fn remains(&mut self, qps: &mut IdTable<Box<Qp>>, shared: &mut Shared, packet: &[u8]) {
        let takes = shared.config.multipath.is_some_and(|config| config.trimmed);
        let Some((bth, stamp)) = parse_trimmed(packet).filter(|_| takes) else {
            shared.drops.malformed += 1;
            return;
        };
        match self.destination(qps, shared, &bth, |qp| qp.multipath.is_some()) {
            Ok(Some(qpn)) => {
                if let Some(qp) = qps.get_mut(qpn.get()) {
                    qp.handle_trimmed(shared, self.now, &bth, stamp, self.flow.src_port);
                }
            }
            Ok(None) => shared.drops.unknown_qp += 1,
            Err(reason) => reason.note(qps, shared, bth.dest_qpn),
        }
    }

    /// The queue pair that a packet is for, if it `takes` such packets and this one may come to it; `None`: there is none of that
    /// number.
    fn admit<O>(
        &mut self,
        qps: &IdTable<Box<Qp>>,
        shared: &Shared,
        (start, packet): (usize, &[u8]),
        bth: &Bth<O>,
        takes: impl FnOnce(&Qp) -> bool,
    ) -> Result<Option<Qpn>, Reason> {
        if !self.icrc_is_good(start, packet) {
            return Err(ICRC);
        }
        self.destination(qps, shared, bth, takes)
    }

    /// [`Self::admit`], whatever the ICRC says.
    fn destination<O>(
        &self,
        qps: &IdTable<Box<Qp>>,
        shared: &Shared,
        bth: &Bth<O>,
        takes: impl FnOnce(&Qp) -> bool,
    ) -> Result<Option<Qpn>, Reason> {
        // The membership bit of a partition key does not take part in the comparison; there is only the default partition.
        if bth.pkey & 0x7FFF != 0x7FFF {
            return Err(BAD_PKEY);
        }
        let qpn = shared.queue_pair(self.device, bth.dest_qpn);
        let Some(qp) = qps.get(qpn.get()).filter(|qp| qp.device == self.device && qp.number == bth.dest_qpn) else {
            return Ok(None);
        };
        let is_from_peer = match qp.path {
            Path::Wire(out) => out.dst == self.flow.src && out.src == self.flow.dst,
            Path::PerRequest => true,
            Path::Local(_) => false,
            Path::Unset => return Err(BAD_STATE),
        };
        if !is_from_peer {
            return Err(BAD_ADDRESS);
        }
        if !takes(qp) {
            return Err(BAD_SERVICE);
        }
        if !qp.can_receive() {
            return Err(BAD_STATE);
        }
        Ok(Some(qpn))
    }

    /// Counts a packet that is admitted, of `len` bytes, and makes the open batch one that it may join.
    fn enter<O>(
        &mut self,
        qps: &mut IdTable<Box<Qp>>,
        shared: &mut Shared,
        scratch: &mut Scratch,
        dma: &mut impl Dma,
        (bytes, len): (&[u8], usize),
        (qpn, bth, kind): (Qpn, &Bth<O>, Kind),
    ) {
        shared.count(self.device, |counters| {
            counters.rcvd_pkts += 1;
            counters.rcvd_bytes += len as u64;
            counters.rcvd_ecn += u64::from(bth.fecn || bth.becn || self.congested);
        });
        if !self.continues_batch(scratch, qpn, kind) {
            self.write_batch(qps, shared, scratch, dma, bytes);
        }
        self.batch_qpn = qpn;
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
