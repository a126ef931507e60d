//! Client memory: finding out how to reach it ([`resolve`], at registration) and moving payload in and out ([`Memories`], the
//! core's [`rnic::Dma`]).
//!
//! Memory is reached directly where the daemon has it mapped (rings, staging buffers, clients' shared objects, buffers of devices) and through the
//! kernel where not (ordinary heap memory), in few calls: ranges of one process that follow one another become one call.
//! Never: decides who may touch what; the core has looked the range up before.

mod batch;
mod dma;
mod dmabuf;
mod mapping;
mod maps;
mod peer;
mod process;
mod reaching;
mod register;
mod slab;
mod transfer;

#[cfg(test)]
mod tests;

pub use dmabuf::BufferError;
pub use mapping::SharedMapping;
pub use peer::Peer;
pub use process::{Process, ProcessError};
pub use reaching::Reaching;
pub use register::{Piece, Place, RegisterError, Resolved, mappings_of, probe, resolve, resolve_buffer};
pub use transfer::Memories;
