//! The vrdma daemon: what Linux sees of the software RNIC.
//!
//! Owns: the control API, the device sockets and their clients, the shared rings, the ways to memory and to the wire, and the
//! datapath loop that joins them to the sans-IO core. Never: decides anything about the transport; that is the core's.

pub mod copy;
pub mod memory;
pub mod port;
