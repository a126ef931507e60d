//! What a client process and the daemon share.
//!
//! Two channels: a `SOCK_SEQPACKET` Unix socket for control calls ([`control`], one message each way per call, descriptors
//! beside them; [`cm`] are those of connection management) and sealed memfds for the data path ([`layout`] says what lies where,
//! [`mapping`] reaches it, [`doorbell`] is how the daemon learns of work, [`queue`] and [`completion`] how entries are passed,
//! [`copy`] moves payload on either side). The daemon treats every byte of both as hostile: it copies an entry once and checks the
//! copy.
//!
//! Built with `--cfg loom` only the index protocols remain, over loom's atomics, for the model test in `tests/loom.rs`.

pub mod cm;
pub mod completion;
pub mod control;
#[cfg(not(loom))]
pub mod copy;
pub mod doorbell;
pub mod layout;
#[cfg(not(loom))]
pub mod mapping;
#[cfg(not(loom))]
pub mod queue;
mod sync;
