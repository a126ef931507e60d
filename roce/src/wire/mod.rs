//! RoCEv2 packets: everything between the UDP header and the end of the ICRC, as values and as bytes.
//!
//! [`Headers`] is the parsed form; [`icrc`] protects the packet together with the IP and UDP headers it travels under. [`cm`] are
//! the messages by which connections are made, the payload of datagrams between the general services interfaces of two ports.
//! Parsing takes any byte string without panicking and without allocation; emitting panics only on values that no correct
//! caller can build. Never: queue pair state; whether a packet makes sense for a connection is not decided here.
//!
//! Sources: IBA 9.2 to 9.6 (transport headers), annex A14 (extended reliable connections), annex A17 (RoCEv2), chapters 12 and 13 (communication
//! management, management datagrams), annex A11 (IP addresses in it).

mod aeth;
mod atomic_eth;
mod bth;
pub mod cm;
pub mod cma;
mod deth;
mod gf2;
mod grh;
mod headers;
pub mod icrc;
pub mod mad;
mod opcode;
mod reth;
pub mod spray_ext;

pub use aeth::{Aeth, NakCode, Syndrome};
pub use atomic_eth::AtomicEth;
pub use bth::Bth;
pub use deth::Deth;
pub use grh::{GRH_LEN, Grh};
pub use headers::Headers;
pub use opcode::{Kind, Opcode, Position, Service};
pub use reth::Reth;

/// UDP destination port of RoCEv2 (annex A17.4.5.3).
pub const UDP_PORT: u16 = 4791;
/// Bytes of the base transport header.
pub const BTH_LEN: usize = 12;
/// Bytes of the invariant CRC at the end of each packet.
pub const ICRC_LEN: usize = 4;
/// Bytes of the largest header that [`Headers::emit`] can write: BTH, XRCETH and AtomicETH.
pub const MAX_HEADERS_LEN: usize = BTH_LEN + 4 + AtomicEth::LEN;

/// Why a packet is not well formed. A receiver drops such packets silently and counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Shorter than the headers that it announces, its padding and the ICRC.
    #[error("packet of {len} bytes is too short, {need} are needed")]
    Truncated {
        /// Bytes present.
        len: usize,
        /// Bytes that headers, padding and ICRC take.
        need: usize,
    },
    /// Longer than an IP packet can be.
    #[error("packet of {0} bytes does not fit an IP packet")]
    TooLong(usize),
    /// Payload and padding together are not a multiple of 4 bytes.
    #[error("packet of {0} bytes is not padded to a multiple of 4")]
    Unaligned(usize),
    /// Transport header version other than 0.
    #[error("transport header version {0} is not 0")]
    Version(u8),
    /// An opcode that the architecture does not define, or an extension that is not supported.
    #[error("unknown opcode {0:#04x}")]
    UnknownOpcode(u8),
    /// An opcode of the reliable datagram service.
    #[error("opcode {0:#04x} belongs to an unsupported transport service")]
    UnsupportedService(u8),
    /// A reserved AETH syndrome.
    #[error("reserved AETH syndrome {0:#04x}")]
    Syndrome(u8),
    /// Payload under an opcode that carries none.
    #[error("opcode {0:?} carries no payload, but {1} bytes follow")]
    UnexpectedPayload(Opcode, usize),
    /// A field of the spray extension holds a value that it cannot have.
    #[error("spray extension field {0} has a value that it cannot have")]
    Extension(&'static str),
    /// The ICRC does not fit the packet: damaged on the way.
    #[error("ICRC mismatch")]
    Icrc,
}
