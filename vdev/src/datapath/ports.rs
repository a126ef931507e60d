//! The datapath's ways to the wire: bursts out, arrivals in.
//!
//! Owns: the ports of all devices, the buffers that they share, and devices' comings and goings in the core. Out: what the core
//! makes in one round is gathered and handed to each port at once. In: before a burst reaches the core, the receive rings of the
//! queue pairs that it names are emptied, so that a receive posted before the peer sent is there.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;

use rnic::{DeviceId, DeviceInit, RxMeta, SrqId, Transmit};
use roce::wire::{BTH_LEN, Opcode};
use roce::{Mtu, Qpn, Srqn};

use super::Datapath;
use super::clients::Client;
use super::wake::Source;
use crate::port::{Arrival, Burst, MAX_BURST_BYTES, Port, PortCounters, ReceiveBuffers};

/// A way to the wire.
pub type BoxedPort = Box<dyn Port>;

/// Bursts gathered before they are handed on.
const BURSTS: usize = 32;
/// Room for them: while less than the longest burst is left, they are handed on.
const ARENA_BYTES: usize = 4 * MAX_BURST_BYTES;
/// Times that one port is asked per round while it has more.
const RECEIVES_PER_ROUND: u32 = 4;
/// More bytes than this in one round are part of a stream.
const STREAM_BYTES: usize = 32 << 10;
/// Offset and length of the destination QPN in a BTH (IBA 9.2).
const BTH_DEST_QPN: Range<usize> = 5..8;
/// Where an XRCETH lies (annex A14.3).
const XRCETH: Range<usize> = BTH_LEN..BTH_LEN + 4;

struct Entry {
    ip: IpAddr,
    device: DeviceId,
    port: BoxedPort,
}

/// A burst in the arena.
struct Pending {
    port: u32,
    transmit: Transmit,
    start: usize,
}

pub(super) struct Ports {
    entries: Vec<Option<Entry>>,
    by_ip: HashMap<IpAddr, u32>,
    /// Indices of ports that may have packets.
    readable: Vec<u32>,
    /// Bytes of the last round in which packets came in.
    last_bytes: usize,
    /// Taken out while it is in use.
    buffers: Option<Box<ReceiveBuffers>>,
    arena: Box<[u8]>,
    used: usize,
    pending: Vec<Pending>,
    /// Bursts for which there was no port: the device has left the wire.
    without_port: u64,
}

impl Ports {
    pub fn new() -> Ports {
        Ports {
            entries: Vec::new(),
            by_ip: HashMap::new(),
            readable: Vec::new(),
            last_bytes: 0,
            buffers: Some(Box::default()),
            // Zeroed memory costs nothing before it is used.
            arena: vec![0; ARENA_BYTES].into_boxed_slice(),
            used: 0,
            pending: Vec::with_capacity(BURSTS),
            without_port: 0,
        }
    }

    /// Where the core may put its next burst.
    pub fn burst_buffer(&mut self) -> &mut [u8] {
        if self.pending.len() == BURSTS || ARENA_BYTES - self.used < MAX_BURST_BYTES {
            self.flush();
        }
        &mut self.arena[self.used..]
    }

    /// Whether a stream of long bursts comes in.
    pub fn streams_in(&self) -> bool {
        self.last_bytes > STREAM_BYTES
    }

    pub fn without_port(&self) -> u64 {
        self.without_port
    }

    /// The core has put this into the burst buffer.
    pub fn push(&mut self, transmit: Transmit) {
        let Some(&port) = self.by_ip.get(&transmit.src) else {
            self.without_port += 1;
            return;
        };
        let start = self.used;
        self.used += transmit.len;
        self.pending.push(Pending { port, transmit, start });
    }

    /// Hands everything gathered to the ports, neighbours of one port together.
    pub fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let empty = Burst { transmit: &self.pending[0].transmit, bytes: &[] };
        for run in self.pending.chunk_by(|a, b| a.port == b.port) {
            let Some(entry) = self.entries[run[0].port as usize].as_mut() else { continue };
            let mut bursts = [empty; BURSTS];
            for (burst, Pending { transmit, start, .. }) in bursts.iter_mut().zip(run) {
                *burst = Burst { transmit, bytes: &self.arena[*start..start + transmit.len] };
            }
            entry.port.send(&bursts[..run.len()]);
        }
        self.pending.clear();
        self.used = 0;
    }

    pub fn mark_readable(&mut self, port: u32) {
        if !self.readable.contains(&port) {
            self.readable.push(port);
        }
    }
}

/// The shared receive queue that a request of an extended reliable connection names.
fn named_queue(packet: &[u8]) -> Option<Srqn> {
    Opcode::from_code(*packet.first()?).filter(|opcode| opcode.has_xrceth())?;
    let &[_, high, middle, low] = packet.get(XRCETH)? else { return None };
    Some(Srqn::new(u32::from_be_bytes([0, high, middle, low])))
}

impl Datapath {
    /// Takes packets from the ports that have some. True if there were any.
    pub(super) fn receive_packets(&mut self) -> bool {
        if self.ports.readable.is_empty() {
            return false;
        }
        let mut buffers = self.ports.buffers.take().expect("put back after each use");
        let mut received = 0;
        let mut any = false;
        let mut next = 0;
        while let Some(&index) = self.ports.readable.get(next) {
            let mut got = false;
            if let Some(mut entry) = self.ports.entries.get_mut(index as usize).and_then(Option::take) {
                let (device, dst) = (entry.device, entry.ip);
                for _ in 0..RECEIVES_PER_ROUND {
                    let more = entry.port.receive(&mut buffers, &mut |arrival, bytes| {
                        got = true;
                        received += bytes.len();
                        self.arrived(device, dst, arrival, bytes);
                    });
                    if !more {
                        break;
                    }
                }
                self.ports.entries[index as usize] = Some(entry);
            }
            any |= got;
            // A port that had something is asked again in the next round, without waiting for epoll to say so.
            if got {
                next += 1;
            } else {
                self.ports.readable.swap_remove(next);
            }
        }
        self.ports.buffers = Some(buffers);
        if any {
            self.ports.last_bytes = received;
        }
        any
    }

    fn arrived(&mut self, device: DeviceId, dst: IpAddr, arrival: &Arrival, bytes: &[u8]) {
        let mut last = None;
        // Only requests to targets name a queue.
        let has_targets = !self.targets.is_empty();
        for packet in bytes.chunks(arrival.segment_len) {
            // Too short ones are the core's to count.
            let Some(&[high, middle, low]) = packet.get(BTH_DEST_QPN) else { continue };
            let qpn = Qpn::new(u32::from_be_bytes([0, high, middle, low]));
            let srqn = if has_targets { named_queue(packet) } else { None };
            if last != Some((qpn, srqn)) {
                last = Some((qpn, srqn));
                match (self.rnic.queue_pair(device, qpn), srqn) {
                    (Some(qpn), Some(srqn)) if self.targets.contains_key(&qpn) => self.drain_srq(SrqId::numbered(srqn)),
                    (Some(qpn), _) => self.drain_receives_of(qpn),
                    (None, _) => {}
                }
            }
        }
        let meta = RxMeta {
            device,
            src: arrival.src,
            dst,
            src_port: arrival.src_port,
            segment_len: arrival.segment_len,
            congested: arrival.congested,
            trimmed: false,
        };
        self.rnic.handle_burst(self.now, &meta, bytes, &mut self.memories);
    }

    /// Makes a device in the core, with its ways to the wire and its connection manager; `guid` names its node.
    ///
    /// # Errors
    /// Why not; nothing was changed.
    pub fn add_device(
        &mut self,
        init: DeviceInit,
        guid: u64,
        is_up: bool,
        ports: Vec<(IpAddr, BoxedPort)>,
    ) -> Result<DeviceId, String> {
        let device = self.rnic.create_device(init).map_err(|error| error.to_string())?;
        self.connections.add(device, guid);
        if !is_up {
            self.rnic.set_port(self.now, device, None);
        }
        for (ip, port) in ports {
            self.open_port(device, ip, port);
        }
        Ok(device)
    }

    /// Ends a device, its clients and its ways to the wire. What the clients held is returned to be dropped elsewhere.
    pub fn remove_device(&mut self, device: DeviceId) -> (Vec<Client>, Vec<BoxedPort>) {
        let ended = self.detach_all_of(device);
        self.connections.remove(device);
        self.rnic.destroy_device(self.now, device);
        self.failures.forget(device);
        self.latencies.forget(device);
        let ips: Vec<IpAddr> =
            self.ports.entries.iter().flatten().filter(|entry| entry.device == device).map(|e| e.ip).collect();
        (ended, ips.into_iter().filter_map(|ip| self.close_port(ip)).collect())
    }

    /// The state of a device's port and its ways to the wire have changed.
    pub fn change_ports(&mut self, device: DeviceId, port: Option<Mtu>, closed: &[IpAddr], opened: Vec<(IpAddr, BoxedPort)>) {
        for &ip in closed {
            drop(self.close_port(ip));
        }
        for (ip, port) in opened {
            self.open_port(device, ip, port);
        }
        self.rnic.set_port(self.now, device, port);
    }

    fn open_port(&mut self, device: DeviceId, ip: IpAddr, port: BoxedPort) {
        let index = self.ports.entries.iter().position(Option::is_none).unwrap_or(self.ports.entries.len());
        if let Err(error) = self.epoll.add_input(port.receive_fd(), Source::Port(index as u32)) {
            // Sending works; what is received is noticed only while other work keeps the loop awake.
            tracing::error!(%ip, %error, "cannot watch a port");
        }
        if index == self.ports.entries.len() {
            self.ports.entries.push(None);
        }
        self.ports.entries[index] = Some(Entry { ip, device, port });
        self.ports.by_ip.insert(ip, index as u32);
    }

    fn close_port(&mut self, ip: IpAddr) -> Option<BoxedPort> {
        let index = self.ports.by_ip.remove(&ip)?;
        let entry = self.ports.entries[index as usize].take()?;
        self.epoll.remove(entry.port.receive_fd());
        self.ports.readable.retain(|&other| other != index);
        Some(entry.port)
    }

    /// What the ways of a device did so far, summed.
    pub fn port_counters(&self, device: DeviceId) -> PortCounters {
        let mut sum = PortCounters::default();
        for entry in self.ports.entries.iter().flatten().filter(|entry| entry.device == device) {
            let PortCounters {
                sent_packets,
                sent_bytes,
                received_packets,
                received_bytes,
                send_congested,
                send_too_long,
                send_unreachable,
                send_failed,
                receive_overflow,
            } = entry.port.counters();
            sum.sent_packets += sent_packets;
            sum.sent_bytes += sent_bytes;
            sum.received_packets += received_packets;
            sum.received_bytes += received_bytes;
            sum.send_congested += send_congested;
            sum.send_too_long += send_too_long;
            sum.send_unreachable += send_unreachable;
            sum.send_failed += send_failed;
            sum.receive_overflow += receive_overflow;
        }
        sum
    }
}
