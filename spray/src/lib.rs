//! Packet spray: one reliable connection over many paths, as data structures and rules.
//!
//! A path is a UDP source port, by which the switches' ECMP hash chooses the way. The sender picks one per packet ([`PathSet`]),
//! keeps what is under way ([`Scoreboard`]), judges what is lost ([`Loss`]) and how much may be under way on all paths together
//! ([`Congestion`]); [`Sender`] is the four at work. The receiver takes packets in any order ([`RxWindow`]) and says what it has
//! ([`Receiver`]). [`Negotiation`] decides when a connection may begin to do so. Their words on the wire are
//! [`roce::wire::spray_ext`]; format and negotiation are told in `spray/WIRE.md`.
//!
//! **Bytes may be placed in any order; effects are in order.** A packet's payload goes to its final place when it arrives, with
//! one exception: the last packet of a message, which may be all of it, is held back until every earlier PSN is in
//! ([`RxWindow::is_next`]). What a message does beyond its bytes (a completion, consuming a receive, an atomic, reading memory for a
//! READ, counting the message as complete) waits for the same ([`RxWindow::advance`]). So a flag that a later WRITE sets is never
//! seen before the data of an earlier one, and who polls the last byte of a message finds all of it; bytes before the last packet
//! may be seen in any order. Who holds the packets bounds them, and refuses what does not fit (`NoBuffer`).
//!
//! Never: packets, sockets, clocks, or allocation after construction. Everything of the peer that is given to these structures is
//! bounded by what was sent or by the window; nothing panics on it.
//!
//! Sources: the published descriptions of REPS, MP-RDMA, IRN and of the Ultra Ethernet transport (its network signalled
//! congestion control, NSCC, and path policies), RFC 6298 (RTO), RFC 8985 (loss by time).

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod congestion;
mod loss;
mod negotiation;
mod pace;
mod path_set;
mod ports;
mod receiver;
mod ring;
mod rx_window;
mod scoreboard;
mod sender;

pub use congestion::{Acked, Congestion, Law, WindowLimits};
pub use loss::{Loss, LossLimits};
pub use negotiation::Negotiation;
pub use path_set::{Evidence, PathId, PathSet, Policy};
pub use ports::Ports;
pub use receiver::{Arrived, Receiver};
pub use rx_window::{Arrival, RxWindow};
pub use scoreboard::{Delivered, LostPacket, Scoreboard};
pub use sender::{Sender, SenderConfig, SenderCounters, Sent};

/// Most paths of a connection.
pub const MAX_PATHS: u16 = 256;
/// Paths of a connection, if nobody says how many: the least that are enough in simulated fabrics of three tiers (`vrdma sim spray`).
pub const DEFAULT_PATHS: u16 = 64;
/// Most packets under way, which is also the largest receive window.
pub const MAX_WINDOW: u16 = roce::wire::spray_ext::MAX_WINDOW;

/// Heap bytes of one end of a connection, sending and receiving, with `paths` paths and `window` packets each way.
///
/// Oblivious with 128 paths and a window of 512 takes 11,072 bytes, with one of 4096 68 KiB; the receiver's share is `window / 8`.
pub fn memory_per_connection(policy: Policy, paths: u16, window: u16) -> usize {
    PathSet::heap_bytes(policy, paths) + Scoreboard::heap_bytes(window, paths) + RxWindow::heap_bytes(window)
}
