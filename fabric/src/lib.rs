//! A simulator of whole fabrics: thousands of hosts, each the very core that the daemon runs, which speak RoCEv2 to each other
//! over simulated links and switches.
//!
//! A [`Scenario`] says what is simulated; [`Sim`] runs it; a [`Report`] is what came out. Hosts are [`rnic::Rnic`] values: their
//! headers, keys, retransmissions and completions are real, only the payload is a tag at scale ([`memory`]). Switches hash the
//! real header fields ([`ecmp`]), mark, trim, drop or pause ([`queue`], [`network`]); faults come from chance or a plan
//! ([`fault`]); and in every run is checked what must always hold ([`checker`]). [`swarm`] makes scenarios from seeds.
//!
//! [`sharing`] is a smaller laboratory beside it, of tenants that share a host; [`pcie`] another, of the way from a NIC to GPUs.
//!
//! Deterministic: one run is one thread, and the same scenario gives the same events. Never: files, clocks, threads; whoever
//! wants several runs at once has several [`Sim`] values.

#![forbid(unsafe_code)]

pub mod calendar;
pub mod checker;
pub mod ecmp;
mod event;
pub mod fault;
mod host;
pub mod many_paths;
pub mod memory;
pub mod network;
pub mod packet;
pub mod pcie;
pub mod queue;
pub mod reference;
mod report;
mod route;
pub mod scenario;
pub mod sharing;
mod sim;
pub mod swarm;
pub mod time;
pub mod topology;
mod transfer;
pub mod workload;

pub use checker::Violation;
pub use event::Event;
pub use report::{CoreCounters, Distribution, Group, Report, Sample};
pub use scenario::{Scenario, ScenarioError};
pub use sim::Sim;
pub use transfer::Outcome;
