//! The benchmark engine: bandwidth, latency and message rate through the verbs API.
//!
//! Two processes take part. The *initiator* measures; the *target* owns the memory that is written and read, receives, and plays
//! the other side of ping-pongs. They talk over a [`Link`] (TCP, or a socket pair that a parent made), as perftest's two ends do.
//!
//! Owns: [`verbs`] (a thin owner per verbs object), the benchmarks in [`bandwidth`] and [`latency`], what they are compared with
//! ([`baseline`]), and how results are printed ([`report`]). Never: knows which device runs it; the verbs functions are found at
//! run time, so that the same binary runs on our devices, on rxe and on hardware.

pub mod bandwidth;
pub mod baseline;
mod endpoint;
mod exchange;
mod initiator;
pub mod latency;
pub mod report;
mod target;
pub mod verbs;
mod wait;

pub use endpoint::{Endpoint, Shape};
pub use exchange::{Link, LinkError, PORT};
pub use initiator::Initiator;
pub use target::serve;
pub use wait::{Stalled, Wait, cores_are_few};
