//! RoCEv2 bytes, and the vocabulary that every other crate speaks.
//!
//! Owns: identifiers ([`Qpn`], [`Srqn`], [`Lkey`], [`Rkey`], [`Gid`]), packet sequence numbers ([`Psn`]), time as plain data
//! ([`Instant`]), seeded random numbers ([`rng`]), path MTUs ([`Mtu`]) and, in [`wire`], parsing and emitting of packets with their invariant CRC.
//! Never: queue-pair state, sockets, clocks.
//!
//! Sources: InfiniBand Architecture Specification volume 1, chapters 9 (transport) and 5 (packet format); its annex A17
//! (RoCEv2).

#![no_std]
#![forbid(unsafe_code)]

mod id;
mod mtu;
mod psn;
pub mod rng;
mod time;
pub mod wire;

pub use id::{Gid, Lkey, Qpn, Rkey, Srqn};
pub use mtu::Mtu;
pub use psn::Psn;
pub use time::Instant;
