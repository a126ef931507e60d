//! Unreliable datagrams: one packet a message, each to a destination of its own, and no answer (IBA 9.8.3).
//!
//! A send request completes when its packet is made. Whatever does not fit at the receiver is dropped, counted, and told to nobody:
//! anyone may send to such a queue pair, and must not be able to do more than that. Both paths bring a datagram, its GRH before it,
//! to `Scratch::values` and from there to the receive, so that a receiver cannot tell them apart.

use super::access::{BadBuffer, for_each_segment};
use super::burst::{Burst, packet_len};
use super::request::fail_taken_receives;
use super::{Path, Qp, SendWqe};
use crate::attr::{AddressVector, QpState, QpType};
use crate::dma::{Dma, Piece};
use crate::event::{Transmit, Work};
use crate::ids::IdTable;
use crate::limits::COPY_MESSAGES;
use crate::rnic::Rnic;
use crate::shared::{Batch, Scratch, Shared};
use crate::vendor_err;
use crate::work::{Completion, CompletionFlags, Destination, DeviceId, Opcode, SendFlags, SendOp, Status};
use alloc::boxed::Box;
use core::net::IpAddr;
use emtt::Access;
use roce::Qpn;
use roce::wire::icrc::Flow;
use roce::wire::{Bth, Deth, GRH_LEN, Grh, Headers, Opcode as WireOpcode};

fn opcode(imm: Option<[u8; 4]>) -> WireOpcode {
    if imm.is_some() { WireOpcode::UdSendOnlyWithImm } else { WireOpcode::UdSendOnly }
}

/// What a datagram says beside its bytes.
pub(crate) struct Arrival {
    pub src: IpAddr,
    pub dst: IpAddr,
    pub qkey: u32,
    pub src_qpn: Qpn,
    pub imm: Option<[u8; 4]>,
    pub solicited: bool,
}

impl Arrival {
    /// Bytes to stand before `payload` bytes of this datagram, which travelled along `address`.
    pub fn grh(&self, address: &AddressVector, payload: usize) -> [u8; GRH_LEN] {
        let grh = Grh {
            src: self.src,
            dst: self.dst,
            traffic_class: address.traffic_class,
            hop_limit: address.hop_limit(),
            flow_label: address.flow_label,
            payload_len: packet_len(opcode(self.imm), payload),
        };
        grh.to_bytes()
    }
}

/// Local path: brings the datagram that, with its GRH, stands at `at` and is the last of `scratch.values` to a queue pair of this
/// core. Whoever calls this writes the batch.
pub(crate) fn deliver(
    qps: &mut IdTable<Box<Qp>>,
    shared: &mut Shared,
    scratch: &mut Scratch,
    (device, number): (DeviceId, Qpn),
    arrival: &Arrival,
    at: usize,
) {
    let qpn = shared.queue_pair(device, number);
    match qps.get_mut(qpn.get()).filter(|qp| qp.device == device && qp.number == number) {
        None if number == Qpn::GSI => shared.take_mad(device, arrival, &scratch.values[at + GRH_LEN..]),
        None => shared.drops.unknown_qp += 1,
        Some(qp) if qp.qp_type != QpType::Ud => shared.drops.bad_service += 1,
        Some(qp) if !qp.can_receive() => shared.drops.bad_state += 1,
        Some(qp) => qp.take_datagram(shared, scratch, arrival, at),
    }
}

/// Local path: writes what [`deliver`] brought to a queue pair.
pub(crate) fn write_delivered(
    qps: &mut IdTable<Box<Qp>>,
    shared: &mut Shared,
    scratch: &mut Scratch,
    (device, number): (DeviceId, Qpn),
    dma: &mut impl Dma,
) {
    let qpn = shared.queue_pair(device, number);
    match qps.get_mut(qpn.get()) {
        Some(qp) if scratch.open_batch.is_some() => qp.write_batch(shared, scratch, dma, &[]),
        _ => scratch.values.clear(),
    }
}

impl Rnic {
    /// Sends datagrams of one queue pair: those at the head of its queue that go to one destination, up to a bound.
    pub(crate) fn datagram_step(&mut self, qpn: Qpn, dma: &mut impl Dma, buf: &mut [u8]) -> Option<Work> {
        let Rnic { qps, shared, scratch } = self;
        let qp = qps.get_mut(qpn.get())?;
        let &SendOp::Datagram { to, .. } = &qp.sq.front().filter(|_| qp.state == QpState::Rts)?.op else { return None };
        let work = match qp.route(shared, &to.address, to.qpn) {
            Path::Wire(_) if to.address.dgid.ip().is_multicast() => self.spread_datagrams(qpn, &to, dma),
            Path::Wire(flow) => qp.transmit_datagrams(shared, scratch, dma, buf, flow, &to).map(Work::Packets),
            Path::Local(peer) => self.copy_datagrams(qpn, peer, &to, dma),
            Path::Unset | Path::PerRequest => None,
        };
        let qp = self.qps.get_mut(qpn.get())?;
        qp.req.cursor.begun = qp.sq.head;
        if qp.state == QpState::Rts && !qp.sq.is_empty() {
            qp.schedule(&mut self.shared);
        }
        work
    }

    /// Executes datagrams to a multicast group: each goes to every queue pair that has joined.
    fn spread_datagrams(&mut self, qpn: Qpn, to: &Destination, dma: &mut impl Dma) -> Option<Work> {
        let Rnic { qps, shared, scratch } = self;
        let (mut messages, mut bytes) = (0, 0);
        let most = COPY_MESSAGES.min(u32::try_from(scratch.turn_packets).unwrap_or(u32::MAX));
        while messages < most {
            let Some((len, arrival)) = load_next(qps, shared, scratch, dma, qpn, to) else { break };
            scratch.datagram.clear();
            scratch.datagram.append(&mut scratch.values);
            messages += 1;
            bytes += u64::from(len);
            let up = qps.get(qpn.get()).is_some_and(|qp| shared.port_is_up(qp.device));
            for n in 0..if up { shared.groups.members(to.address.dgid).len() } else { 0 } {
                let member = shared.groups.members(to.address.dgid)[n];
                let Some(qp) = qps.get_mut(member.get()).filter(|qp| shared.port_is_up(qp.device)) else { continue };
                if !qp.can_receive() {
                    shared.drops.bad_state += 1;
                    continue;
                }
                scratch.values.extend_from_slice(&scratch.datagram);
                qp.take_datagram(shared, scratch, &arrival, 0);
                qp.write_batch(shared, scratch, dma, &[]);
                scratch.values.clear();
            }
        }
        scratch.values.clear();
        let qp = qps.get(qpn.get())?;
        count_copied(shared, qp.device, messages, bytes)
    }

    /// Executes datagrams to a queue pair of this core.
    fn copy_datagrams(&mut self, qpn: Qpn, peer: DeviceId, to: &Destination, dma: &mut impl Dma) -> Option<Work> {
        let Rnic { qps, shared, scratch } = self;
        let (mut messages, mut bytes) = (0, 0);
        let most = COPY_MESSAGES.min(u32::try_from(scratch.turn_packets).unwrap_or(u32::MAX));
        while messages < most {
            let at = scratch.values.len();
            let Some((len, arrival)) = load_next(qps, shared, scratch, dma, qpn, to) else { break };
            messages += 1;
            bytes += u64::from(len);
            if qps.get(qpn.get()).is_some_and(|qp| shared.port_is_up(qp.device)) && shared.port_is_up(peer) {
                deliver(qps, shared, scratch, (peer, to.qpn), &arrival, at);
            }
        }
        write_delivered(qps, shared, scratch, (peer, to.qpn), dma);
        let qp = qps.get(qpn.get())?;
        count_copied(shared, qp.device, messages, bytes)
    }
}

/// Local path: appends the oldest datagram, with its GRH, to `scratch.values`, and completes it. Its bytes, and what it says; `None` if
/// there is none for `to`, or it failed.
fn load_next(
    qps: &mut IdTable<Box<Qp>>,
    shared: &mut Shared,
    scratch: &mut Scratch,
    dma: &mut impl Dma,
    qpn: Qpn,
    to: &Destination,
) -> Option<(u32, Arrival)> {
    let qp = qps.get_mut(qpn.get())?;
    let wqe = qp.next_datagram(shared, to, qp.sq.head)?;
    let SendOp::Datagram { imm, .. } = wqe.op else { return None };
    let Flow { src, dst, .. } = shared.flow(qp.device, &to.address, (qp.qpn, to.qpn));
    let solicited = wqe.flags.contains(SendFlags::SOLICITED);
    let arrival = Arrival { src, dst, qkey: qp.qkey_for(to), src_qpn: qp.number, imm, solicited };
    scratch.values.extend_from_slice(&arrival.grh(&to.address, wqe.length as usize));
    if !qp.load_datagram(shared, scratch, dma, &wqe) {
        return None;
    }
    qp.complete_send(shared, Status::Success, vendor_err::NONE);
    Some((wqe.length, arrival))
}

fn count_copied(shared: &mut Shared, device: DeviceId, messages: u32, bytes: u64) -> Option<Work> {
    shared.count(device, |counters| {
        counters.local_bytes += bytes;
        counters.local_messages += u64::from(messages);
    });
    (messages > 0).then_some(Work::Copied { bytes, messages })
}

impl Qp {
    /// The datagram with this index, if it is posted and goes to `to`. One that no packet can hold is completed and not sent, without
    /// an error (IBA C10-93.1.1).
    fn next_datagram(&mut self, shared: &mut Shared, to: &Destination, index: u32) -> Option<SendWqe> {
        if index == self.sq.tail || self.state != QpState::Rts {
            return None;
        }
        let wqe = *self.sq.get(index);
        if !matches!(wqe.op, SendOp::Datagram { to: other, .. } if other == *to) {
            return None;
        }
        let mtu = shared.devices.get(self.device.0).and_then(|device| device.port).map_or(u32::MAX, |mtu| mtu.bytes() as u32);
        if wqe.length <= mtu {
            return Some(wqe);
        }
        if index == self.sq.head {
            shared.count(self.device, |counters| counters.dropped_too_long += 1);
            self.complete_send(shared, Status::Success, vendor_err::NONE);
        }
        None
    }

    fn qkey_for(&self, to: &Destination) -> u32 {
        if to.qkey >> 31 == 1 { self.attr.qkey } else { to.qkey }
    }

    /// Makes a burst of datagrams.
    fn transmit_datagrams(
        &mut self,
        shared: &mut Shared,
        scratch: &mut Scratch,
        dma: &mut impl Dma,
        buf: &mut [u8],
        flow: Flow,
        to: &Destination,
    ) -> Option<Transmit> {
        let psn = self.req.cursor.psn;
        let mut burst = Burst::new(buf, scratch.turn_packets, &mut scratch.pieces);
        self.fill_datagrams(shared, &mut burst, to, usize::MAX);
        if burst.gather(dma).is_err() {
            // Which request is to blame shows when the oldest is tried alone.
            self.req.cursor.psn = psn;
            burst.restart();
            self.fill_datagrams(shared, &mut burst, to, 1);
            if burst.gather(dma).is_err() {
                self.req.cursor.psn = psn;
                self.fail_send(shared, Status::LocalProtectionError, vendor_err::LOCAL_MEMORY);
                return None;
            }
        }
        if burst.is_empty() {
            return None;
        }
        burst.seal(&flow);
        for _ in 0..burst.packets() {
            self.complete_send(shared, Status::Success, vendor_err::NONE);
        }
        let (packets, lengths) = (burst.packets(), burst.lengths());
        shared.leave(self.device, packets, lengths.0).then(|| Transmit::new(self.device, &flow, &to.address, lengths))
    }

    /// Adds packets of up to `most` requests.
    fn fill_datagrams(&mut self, shared: &mut Shared, burst: &mut Burst<'_>, to: &Destination, most: usize) {
        while burst.packets() < most {
            let index = self.sq.head.wrapping_add(burst.packets() as u32);
            let Some(wqe) = self.next_datagram(shared, to, index) else { break };
            let SendOp::Datagram { imm, .. } = wqe.op else { break };
            let payload = wqe.length as usize;
            if !burst.fits(packet_len(opcode(imm), payload)) {
                break;
            }
            let add = burst.payload_of(opcode(imm));
            let range = (0, u64::from(wqe.length));
            let found = for_each_segment(&shared.table, self.pd, self.sq.buffers(index), range, Access::empty(), add);
            if let Err(BadBuffer) = found {
                burst.drop_payload();
                if burst.is_empty() {
                    self.fail_send(shared, Status::LocalProtectionError, vendor_err::LOCAL_KEY);
                }
                break;
            }
            let mut headers = Headers::new(Bth {
                solicited: wqe.flags.contains(SendFlags::SOLICITED),
                ..Bth::new(opcode(imm), to.qpn, self.req.cursor.psn)
            });
            headers.deth = Some(Deth { qkey: self.qkey_for(to), src_qpn: self.number });
            headers.imm = imm;
            burst.add(&mut headers, payload);
            self.req.cursor.psn = self.req.cursor.psn.plus(1);
        }
    }

    /// Local path: appends the bytes of the oldest datagram to `scratch.values`. False if it failed.
    fn load_datagram(&mut self, shared: &mut Shared, scratch: &mut Scratch, dma: &mut impl Dma, wqe: &SendWqe) -> bool {
        let mut at = scratch.values.len();
        scratch.values.resize(at + wqe.length as usize, 0);
        scratch.sources.clear();
        let sources = &mut scratch.sources;
        let add = |segment: emtt::Segment| {
            sources.push(Piece { segment, at });
            at += segment.len as usize;
        };
        let range = (0, u64::from(wqe.length));
        let found = for_each_segment(&shared.table, self.pd, self.sq.buffers(self.sq.head), range, Access::empty(), add);
        let cause = match found {
            Err(BadBuffer) => vendor_err::LOCAL_KEY,
            Ok(()) if scratch.sources.is_empty() => return true,
            Ok(()) if dma.gather(&scratch.sources, &mut scratch.values).is_ok() => return true,
            Ok(()) => vendor_err::LOCAL_MEMORY,
        };
        self.fail_send(shared, Status::LocalProtectionError, cause);
        false
    }

    /// Takes a datagram from the wire.
    pub fn handle_datagram(
        &mut self,
        shared: &mut Shared,
        scratch: &mut Scratch,
        flow: &Flow,
        headers: &Headers,
        payload: &[u8],
    ) {
        // The opcode demands one.
        let Some(deth) = headers.deth else { return };
        let (imm, solicited, at) = (headers.imm, headers.bth.solicited, scratch.values.len());
        let Deth { qkey, src_qpn } = deth;
        let arrival = Arrival { src: flow.src, dst: flow.dst, qkey, src_qpn, imm, solicited };
        // What the port does not tell is as an ordinary sender has it.
        scratch.values.extend_from_slice(&arrival.grh(&AddressVector::default(), payload.len()));
        scratch.values.extend_from_slice(payload);
        self.take_datagram(shared, scratch, &arrival, at);
    }

    /// Takes the datagram that, with its GRH, stands at `at` and is the last of `scratch.values`.
    fn take_datagram(&mut self, shared: &mut Shared, scratch: &mut Scratch, arrival: &Arrival, at: usize) {
        let len = (scratch.values.len() - at) as u32;
        if let Err(refuse) = self.accept_datagram(shared, scratch, arrival, at, len) {
            scratch.values.truncate(at);
            refuse(self, shared);
            // It waits for a datagram that fits, wherever that goes.
            self.give_receive_back(shared);
        }
    }

    /// The receive of a datagram, or what becomes of it without one.
    #[allow(clippy::type_complexity)]
    fn accept_datagram(
        &mut self,
        shared: &mut Shared,
        scratch: &mut Scratch,
        arrival: &Arrival,
        at: usize,
        len: u32,
    ) -> Result<(), fn(&mut Qp, &mut Shared)> {
        if arrival.qkey != self.attr.qkey {
            return Err(|qp, shared| shared.count(qp.device, |counters| counters.bad_qkey += 1));
        }
        if !self.has_receive(shared) {
            return Err(|qp, shared| shared.count(qp.device, |counters| counters.dropped_no_receive += 1));
        }
        if len > self.rq.get(self.rq.head).length {
            return Err(|qp, shared| shared.count(qp.device, |counters| counters.dropped_too_long += 1));
        }
        let taken = scratch.pieces.len();
        let add = scratch.batch(shared, Batch::Datagrams, self.resp.expected_psn, at);
        let (buffers, range) = (self.rq.buffers(self.rq.head), (0, u64::from(len)));
        if for_each_segment(&shared.table, self.recv_pd, buffers, range, Access::LOCAL_WRITE, add).is_err() {
            scratch.pieces.truncate(taken);
            // The receive is the program's own fault.
            return Err(|qp, shared| {
                qp.fail_receive(shared, Status::LocalProtectionError, vendor_err::LOCAL_KEY);
                qp.enter_error(shared);
            });
        }
        let (wr_id, queue_index) = self.take_receive(shared);
        let completion = Completion {
            wr_id,
            status: Status::Success,
            opcode: Opcode::Recv,
            qpn: self.qpn,
            src_qpn: arrival.src_qpn,
            byte_len: len,
            imm: arrival.imm.unwrap_or_default(),
            flags: CompletionFlags::GRH
                | if arrival.imm.is_some() { CompletionFlags::WITH_IMM } else { CompletionFlags::empty() },
            solicited: arrival.solicited,
            vendor_err: vendor_err::NONE,
            queue_index,
            srq: None,
        };
        shared.complete(self.recv_cq, completion);
        Ok(())
    }

    /// Datagrams that were taken could not be written to the receives.
    pub fn fail_datagrams(&mut self, shared: &mut Shared) {
        fail_taken_receives(shared);
        if self.state != QpState::Err {
            self.enter_error(shared);
        }
    }
}
