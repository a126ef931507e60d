//! What comes out of the core besides completions.

use crate::attr::AddressVector;
use crate::work::{CqId, DeviceId, SrqId};
use core::net::IpAddr;
use roce::wire::icrc::Flow;
use roce::{Mtu, Qpn};

/// Asynchronous events, as `ibv_get_async_event(3)` knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// A completion queue overran; its queue pairs are in error.
    CqError(CqId),
    /// A queue pair went to the error state for a reason that no completion tells.
    QpFatal(Qpn),
    /// The peer sent an invalid request; the queue pair is in error.
    QpRequestError(Qpn),
    /// The peer violated access rights; the queue pair is in error.
    QpAccessError(Qpn),
    /// The first packet arrived on a queue pair that is still in RTR.
    CommunicationEstablished(Qpn),
    /// The send queue is drained (SQD).
    SqDrained(Qpn),
    /// The queue pair, which takes from a shared receive queue, is in error, and will not take any more; its last completion
    /// was made before this.
    QpLastWqe(Qpn),
    /// Fewer receives wait in the queue than the limit that was set.
    SrqLimit(SrqId),
    /// The port works again.
    PortActive(DeviceId, Mtu),
    /// The port stopped working.
    PortError(DeviceId),
}

impl AsyncEvent {
    /// The queue pair that the event is about.
    pub fn queue_pair(&self) -> Option<Qpn> {
        match *self {
            AsyncEvent::QpFatal(qpn)
            | AsyncEvent::QpRequestError(qpn)
            | AsyncEvent::QpAccessError(qpn)
            | AsyncEvent::CommunicationEstablished(qpn)
            | AsyncEvent::SqDrained(qpn)
            | AsyncEvent::QpLastWqe(qpn) => Some(qpn),
            AsyncEvent::CqError(_) | AsyncEvent::SrqLimit(_) | AsyncEvent::PortActive(..) | AsyncEvent::PortError(_) => None,
        }
    }
}

/// A burst of packets for one peer, ready for segmentation offload: `len` bytes of the buffer hold UDP payloads (BTH to
/// ICRC), each `segment_len` bytes long, the last one possibly shorter. The ICRC of the n-th packet over IPv4 assumes
/// identification n (0 first) and the don't-fragment flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Sending device.
    pub device: DeviceId,
    /// Our address.
    pub src: IpAddr,
    /// The peer's address; the destination port is 4791.
    pub dst: IpAddr,
    /// UDP source port: entropy for ECMP, stable per queue pair, within 0xC000 to 0xFFFF.
    pub src_port: u16,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label.
    pub flow_label: u32,
    /// Bytes used of the buffer.
    pub len: usize,
    /// Bytes per packet.
    pub segment_len: usize,
}

/// Bytes that a link adds to a packet: an Ethernet header and its check, a UDP header, and an IP header without options.
pub(crate) const fn link_bytes(ip: &IpAddr) -> usize {
    14 + 4 + 8 + if ip.is_ipv4() { 20 } else { 40 }
}

impl Transmit {
    /// How many packets it is.
    pub fn packets(&self) -> usize {
        self.len.div_ceil(self.segment_len.max(1))
    }

    /// Bytes on an Ethernet link, in frames of their own with all their headers.
    pub fn bytes_on_link(&self) -> usize {
        self.len + self.packets() * link_bytes(&self.src)
    }

    /// A burst of `len` bytes in packets of `segment_len`, along `flow`, with headers as `address` wants them.
    pub(crate) fn new(device: DeviceId, flow: &Flow, address: &AddressVector, (len, segment_len): (usize, usize)) -> Transmit {
        Transmit {
            device,
            src: flow.src,
            dst: flow.dst,
            src_port: flow.src_port,
            traffic_class: address.traffic_class,
            hop_limit: address.hop_limit(),
            flow_label: address.flow_label,
            len,
            segment_len,
        }
    }
}

/// One step of work that `Rnic::poll_transmit` did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Packets lie in the buffer and are to be sent.
    Packets(Transmit),
    /// Bytes were copied between two local queue pairs, or a request without bytes was executed.
    Copied {
        /// How many.
        bytes: u64,
        /// Requests that were executed to their end.
        messages: u32,
    },
}
