//! The software RNIC of one host as one value: many virtual devices, their PDs, regions, CQs and QPs, one schedule.
//!
//! Sans-IO: work requests, packets, control calls and `now` go in; packets, completions, asynchronous events and the next
//! deadline come out. Never: sockets, clocks, threads, files. Memory is reached only through the caller's [`Dma`].
//!
//! [`cm`] is the connection manager of one device, a value of its own: its datagrams travel through QP1 of an [`Rnic`].

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod attr;
pub mod cm;
mod control;
mod counters;
mod cq;
mod device;
mod dma;
mod error;
mod event;
mod ids;
mod latency;
pub mod limits;
mod mad;
mod multicast;
mod qp;
mod rnic;
mod rx;
mod schedule;
mod shared;
mod srq;
mod timers;
mod trace;
pub mod vendor_err;
mod work;
mod xrc;

pub use attr::{AddressVector, DeviceInit, QpAttr, QpAttrMask, QpCaps, QpInit, QpState, QpType};
pub use control::{Mr, MrInit};
pub use counters::{Counters, DropCounters};
pub use dma::{AtomicOp, Dma, DmaError, Piece};
pub use emtt::WindowKind;
pub use error::{ControlError, PostError};
pub use event::{AsyncEvent, Transmit, Work};
pub use mad::{MAD_BYTES, Mad};
pub use rnic::{Config, MultipathConfig, Rnic};
pub use roce::rng;
pub use rx::RxMeta;
pub use srq::SrqAttr;
pub use trace::Trace;
pub use work::{
    BindWindow, Completion, CompletionFlags, CqId, Destination, DeviceId, LocalBuffer, Opcode, PdId, RecvRequest, SendFlags,
    SendOp, SendRequest, SrqId, Status, XrcdId,
};
