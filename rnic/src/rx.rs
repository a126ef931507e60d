//! Packets from the wire: checks that need no queue pair, and the way to the queue pair.

use crate::dma::Dma;
use crate::rnic::Rnic;
use crate::work::DeviceId;
use core::net::IpAddr;
use roce::Instant;

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
}

impl Rnic {
    /// Takes received packets: `bytes` holds one or more UDP payloads of `meta.segment_len` bytes each, the last possibly
    /// shorter, as UDP_GRO gives them.
    pub fn handle_burst(&mut self, _now: Instant, meta: &RxMeta, bytes: &[u8], _dma: &mut impl Dma) {
        if meta.segment_len > 0 {
            self.shared.drops.unknown_qp += bytes.chunks(meta.segment_len).count() as u64;
        }
    }
}
