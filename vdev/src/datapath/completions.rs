//! From the core to clients: completions into rings, events into pipes.
//!
//! Owns: the format of entries and records, overrun, and events that wait for room in a pipe. Never blocks on a client: a full
//! ring is the client's overrun, a full pipe keeps one event per completion queue until there is room.

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use rnic::{AsyncEvent, Completion, CompletionFlags, CqId, Status};
use roce::{Instant, Qpn};
use vdev_abi::completion::PushError;
use vdev_abi::control::AsyncRecord;
use vdev_abi::layout::CompletionEntry;

use super::clients::{Channel, Client};
use super::wake::Source;
use super::{Datapath, clock};
use crate::pci::erdma::completion::AsyncKind;

/// `enum ibv_event_type`.
mod event {
    pub const CQ_ERR: u32 = 0;
    pub const QP_FATAL: u32 = 1;
    pub const QP_REQ_ERR: u32 = 2;
    pub const QP_ACCESS_ERR: u32 = 3;
    pub const COMM_EST: u32 = 4;
    pub const SQ_DRAINED: u32 = 5;
    pub const PORT_ACTIVE: u32 = 9;
    pub const PORT_ERR: u32 = 10;
    pub const SRQ_LIMIT_REACHED: u32 = 15;
    pub const QP_LAST_WQE_REACHED: u32 = 16;
}

/// The only port of a device.
const PORT: u64 = 1;

fn entry(completion: &Completion, slot: u32, timestamp_ns: u64) -> CompletionEntry {
    let mut imm = completion.imm;
    if completion.flags.contains(CompletionFlags::WITH_INV) {
        // The core speaks of keys as the wire does, the ring in native order.
        imm = u32::from_be_bytes(imm).to_ne_bytes();
    }
    CompletionEntry {
        wr_id: completion.wr_id,
        qpn: completion.qpn.get(),
        slot,
        byte_len: completion.byte_len,
        imm,
        src_qp: completion.src_qpn.get(),
        queue_index: completion.queue_index,
        vendor_err: completion.vendor_err,
        status: completion.status as u8,
        opcode: completion.opcode as u8,
        flags: completion.flags.bits(),
        is_recv: u8::from(completion.opcode as u8 >= 128),
        timestamp_ns,
        srqn: completion.srq.map_or(0, |srq| srq.number().get()),
        ..CompletionEntry::default()
    }
}

impl Datapath {
    /// Writes every completion that the core has, then sends the events that are due. True if there were completions.
    pub(super) fn deliver_completions(&mut self) -> bool {
        // One time for all of them, taken now: the round may have begun before a program posted.
        let mut time = None;
        while let Some((cq, completion)) = self.rnic.poll_completion() {
            let timestamp_ns = *time.get_or_insert_with(|| clock().as_nanos());
            if completion.status != Status::Success {
                self.note_completion(&completion);
            }
            if let Some(probe) = &mut self.probe
                && let Some(took) = probe.completed(completion.qpn, completion.wr_id, Instant::from_nanos(timestamp_ns))
            {
                self.rnic.note_latency(took);
            }
            self.write_completion(cq, &completion, timestamp_ns);
        }
        while let Some((device, took)) = self.rnic.poll_latency() {
            self.latencies.note(self.now, device, took);
        }
        while let Some((client, cq)) = self.touched.pop() {
            self.notify(client, cq);
        }
        time.is_some()
    }

    fn write_completion(&mut self, id: CqId, completion: &Completion, timestamp_ns: u64) {
        // A queue of a guest, or of a client that has been ended in this round.
        let Some(&(index, cq_index)) = self.cq_by_id.get(&id) else { return self.write_guest_completion(id, completion) };
        let slot = match completion.srq {
            // The queue pair that took it may be another client's.
            Some(srq) => self.srq_by_id.get(&srq),
            None => self.qp_by_number.get(&completion.qpn),
        };
        let Some(&(_, slot)) = slot else { return };
        let Some(cq) = self.clients[index as usize].as_deref_mut().and_then(|client| client.cqs.at_mut(cq_index)) else {
            return;
        };
        match cq.producer.push(&cq.ring, entry(completion, slot, timestamp_ns)) {
            Ok(()) => {
                cq.solicited |= completion.solicited || completion.status != Status::Success;
                if !cq.touched {
                    cq.touched = true;
                    self.touched.push((index, cq_index));
                }
            }
            Err(PushError::Full) => self.rnic.cq_overrun(self.now, id),
            Err(corrupt @ PushError::Corrupt { .. }) => self.condemn(index, corrupt),
        }
    }

    /// Sends the event of a completion queue that was written to, if the client asked for one.
    fn notify(&mut self, index: u32, cq_index: u32) {
        let Some(client) = self.clients[index as usize].as_deref_mut() else { return };
        let Client { cqs, channels, .. } = client;
        let Some(cq) = cqs.at_mut(cq_index) else { return };
        cq.touched = false;
        let solicited = std::mem::take(&mut cq.solicited);
        if !cq.producer.take_arm(&cq.ring, solicited) {
            return;
        }
        let Some(handle) = cq.channel else { return };
        let Some(channel) = channels.get_mut(handle) else { return };
        if cq.event_waits {
            // The event that waits stands for this one too.
            return;
        }
        if !channel.waiting.is_empty() || !write_record(channel.pipe.as_fd(), &cq.cookie.to_ne_bytes()) {
            cq.event_waits = true;
            channel.waiting.push(cq_index);
            let source = Source::Channel { client: index, channel: super::handles::Handles::<Channel>::index_of(handle) };
            if let Err(error) = self.epoll.add_output_once(channel.pipe.as_fd(), source) {
                self.condemn(index, format!("its completion events cannot be delivered: {error}"));
            }
        }
    }

    /// The pipe of a channel has room again.
    pub(super) fn resume_channel(&mut self, index: u32, channel_index: u32) {
        let Some(client) = self.clients.get_mut(index as usize).and_then(Option::as_deref_mut) else { return };
        let Client { cqs, channels, .. } = client;
        let Some(channel) = channels.at_mut(channel_index) else { return };
        while let Some(&cq_index) = channel.waiting.first() {
            if let Some(cq) = cqs.at_mut(cq_index) {
                if !write_record(channel.pipe.as_fd(), &cq.cookie.to_ne_bytes()) {
                    let source = Source::Channel { client: index, channel: channel_index };
                    if let Err(error) = self.epoll.add_output_once(channel.pipe.as_fd(), source) {
                        self.condemn(index, format!("its completion events cannot be delivered: {error}"));
                    }
                    return;
                }
                cq.event_waits = false;
            }
            channel.waiting.remove(0);
        }
    }

    /// Tells clients what the core reports.
    pub(super) fn deliver_events(&mut self) {
        while let Some(event) = self.rnic.poll_event() {
            self.note_event(&event);
            match event {
                AsyncEvent::CqError(cq) => {
                    if let Some(&(index, cq_index)) = self.cq_by_id.get(&cq) {
                        let cookie =
                            self.clients[index as usize].as_ref().and_then(|client| Some(client.cqs.at(cq_index)?.cookie));
                        self.send_event(index, event::CQ_ERR, cookie);
                    }
                }
                AsyncEvent::QpFatal(qpn) => self.send_qp_event(qpn, event::QP_FATAL),
                AsyncEvent::QpRequestError(qpn) => self.send_qp_event(qpn, event::QP_REQ_ERR),
                AsyncEvent::QpAccessError(qpn) => self.send_qp_event(qpn, event::QP_ACCESS_ERR),
                AsyncEvent::CommunicationEstablished(qpn) => self.send_qp_event(qpn, event::COMM_EST),
                AsyncEvent::SqDrained(qpn) => self.send_qp_event(qpn, event::SQ_DRAINED),
                AsyncEvent::QpLastWqe(qpn) => self.send_qp_event(qpn, event::QP_LAST_WQE_REACHED),
                AsyncEvent::SrqLimit(srq) => {
                    if let Some(&(index, srq_index)) = self.srq_by_id.get(&srq) {
                        let cookie =
                            self.clients[index as usize].as_ref().and_then(|client| Some(client.srqs.at(srq_index)?.cookie));
                        self.send_event(index, event::SRQ_LIMIT_REACHED, cookie);
                    }
                }
                AsyncEvent::PortActive(device, _) => self.send_port_event(device, event::PORT_ACTIVE),
                AsyncEvent::PortError(device) => self.send_port_event(device, event::PORT_ERR),
            }
        }
    }

    fn send_qp_event(&mut self, qpn: Qpn, event: u32) {
        let kind = match event {
            event::QP_FATAL => Some(AsyncKind::QpFatal),
            event::QP_REQ_ERR => Some(AsyncKind::QpRequest),
            event::QP_ACCESS_ERR => Some(AsyncKind::QpAccess),
            // Guests' drivers know no others.
            _ => None,
        };
        if self.send_guest_event(qpn, kind) {
            return;
        }
        if let Some(&place) = self.qp_by_number.get(&qpn) {
            self.send_event_at(place, event);
        }
        // All who have a target hear of it.
        for n in 0.. {
            let Some(&place) = self.targets.get(&qpn).and_then(|target| target.places.get(n)) else { return };
            self.send_event_at(place, event);
        }
    }

    fn send_event_at(&mut self, (index, slot): (u32, u32), event: u32) {
        let cookie = self.clients[index as usize].as_ref().and_then(|client| Some(client.qps.at(slot)?.cookie));
        self.send_event(index, event, cookie);
    }

    fn send_port_event(&mut self, device: rnic::DeviceId, event: u32) {
        for index in 0..self.clients.len() as u32 {
            if self.clients[index as usize].as_ref().is_some_and(|client| client.device == device) {
                self.send_event(index, event, Some(PORT));
            }
        }
    }

    fn send_event(&mut self, index: u32, event: u32, cookie: Option<u64>) {
        let (Some(client), Some(cookie)) = (self.clients[index as usize].as_ref(), cookie) else { return };
        let record = AsyncRecord { event, reserved: 0, cookie };
        let mut bytes = [0; size_of::<AsyncRecord>()];
        bytes[..4].copy_from_slice(&record.event.to_ne_bytes());
        bytes[8..].copy_from_slice(&record.cookie.to_ne_bytes());
        if !write_record(client.events.as_fd(), &bytes) {
            // Thousands are unread already: the client does not look at them.
            tracing::debug!(client = index, event, "asynchronous event dropped, the pipe is full");
        }
    }
}

/// Writes a record, which a pipe takes whole or not at all. False if there is no room. A pipe whose reader is gone takes
/// everything: the client has closed it and wants no events.
pub(super) fn write_record(pipe: BorrowedFd<'_>, record: &[u8]) -> bool {
    // SIGPIPE is ignored by the Rust runtime from the start of the process.
    nix::unistd::write(pipe, record) != Err(Errno::EAGAIN)
}
