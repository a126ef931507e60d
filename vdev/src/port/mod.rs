//! Ways to the wire. A port sends and receives bursts of RoCEv2 packets for one local address; what is in them is the core's
//! business.
//!
//! [`UdpPort`] goes through kernel UDP sockets with segmentation offload; [`FaultyPort`] wraps another port and loses, repeats,
//! reorders and damages what it receives, for tests.

mod faulty;
mod interface;
mod receive;
mod route;
mod sockets;
mod udp;

use std::net::IpAddr;
use std::os::fd::BorrowedFd;

pub use faulty::{Faults, FaultsError, FaultyPort};
pub use interface::{Interface, Interfaces, path_mtu};
pub use receive::ReceiveBuffers;
pub use route::{TooNarrow, check_route};
pub use udp::UdpPort;

use rnic::Transmit;

/// Most bytes of a burst: what one UDP datagram over IPv4 can carry before segmentation.
pub const MAX_BURST_BYTES: usize = 65507;
/// Most packets of a burst that every kernel with segmentation offload takes.
pub const MAX_BURST_PACKETS: usize = 64;

/// A burst to send: packets of `transmit.segment_len` bytes, the last one possibly shorter.
#[derive(Clone, Copy, Debug)]
pub struct Burst<'a> {
    /// Where it goes and how it is cut.
    pub transmit: &'a Transmit,
    /// UDP payloads, `transmit.len` bytes.
    pub bytes: &'a [u8],
}

/// Packets that arrived together from one peer, from BTH to ICRC, each `segment_len` bytes long, the last one possibly shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The peer.
    pub src: IpAddr,
    /// Its UDP source port.
    pub src_port: u16,
    /// Bytes per packet, 1 or more.
    pub segment_len: usize,
    /// The network marked them as having met congestion (CE, RFC 3168).
    pub congested: bool,
}

/// What a port did. Only ever grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Packets given to the system.
    pub sent_packets: u64,
    /// Their bytes, from BTH to ICRC.
    pub sent_bytes: u64,
    /// Packets received.
    pub received_packets: u64,
    /// Their bytes, from BTH to ICRC.
    pub received_bytes: u64,
    /// Bursts not sent because the interface stayed behind.
    pub send_congested: u64,
    /// Bursts not sent because a packet is longer than the path allows.
    pub send_too_long: u64,
    /// Bursts not sent because there is no way to the peer, or the interface is down.
    pub send_unreachable: u64,
    /// Bursts not sent for any other reason.
    pub send_failed: u64,
    /// Datagrams that the system dropped because nobody fetched them in time.
    pub receive_overflow: u64,
}

/// One local address on the wire.
pub trait Port: Send + core::fmt::Debug {
    /// Sends bursts in order. What cannot be sent is dropped and counted: to the transport it is loss.
    fn send(&mut self, bursts: &[Burst<'_>]);

    /// Fetches what has arrived, at most one set of buffers, and hands it on. Returns whether there may be more.
    fn receive(&mut self, buffers: &mut ReceiveBuffers, deliver: &mut dyn FnMut(&Arrival, &[u8])) -> bool;

    /// Readable when something has arrived.
    fn receive_fd(&self) -> BorrowedFd<'_>;

    /// What it did so far.
    fn counters(&self) -> PortCounters;
}

/// Why a port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// No interface has the address.
    #[error("No interface of this host has the address {0}; add it to one (ip address add {0}/… dev …) or choose another")]
    NotLocal(IpAddr),
    /// Somebody receives RoCEv2 there already.
    #[error(
        "UDP port 4791 of {0} is taken: another daemon uses this address, or the kernel's rdma_rxe is loaded; choose another \
         address or remove that one"
    )]
    InUse(IpAddr),
    /// A system call failed.
    #[error("Cannot open a RoCEv2 port on {ip}: {what}: {source}")]
    System {
        /// The address.
        ip: IpAddr,
        /// The step.
        what: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// `VRDMA_FAULTS` makes no sense.
    #[error("{0}")]
    Faults(#[from] FaultsError),
}

/// Opens the port of `ip`; with the faults that the environment variable `VRDMA_FAULTS` asks for, if any.
///
/// # Errors
/// Why not.
pub fn open(ip: IpAddr) -> Result<Box<dyn Port>, PortError> {
    let port = UdpPort::open(ip)?;
    Ok(match Faults::from_env()? {
        Some(faults) => Box::new(FaultyPort::new(port, faults)),
        None => Box::new(port),
    })
}
