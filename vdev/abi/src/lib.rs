//! What a client process and the daemon share.
//!
//! Two channels: a `SOCK_SEQPACKET` Unix socket for control calls ([`control`], one message each way per call, descriptors
//! beside them) and sealed memfds for the data path ([`layout`] says what lies where, [`doorbell`] how the daemon learns of
//! work, [`queue`] and [`completion`] how entries are passed). The daemon treats every byte of both as hostile: it copies an
//! entry once and checks the copy.

pub mod control;
pub mod layout;
