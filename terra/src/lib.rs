//! Joint routing and scheduling of coflows on a wide-area network: which paths each coflow takes and at what rates.
//!
//! Pure functions from state to decisions: no sockets, clocks, threads or random devices. A time budget is given in *steps*
//! (shortest-path computations), so that the same input always gives the same answer.
//!
//! - [`Wan`] is the graph, [`Coflow`] the demand, [`Allocation`] the answer; [`check`] proves an allocation feasible.
//! - [`min_cct::Solver`] finds the least completion time of one coflow, with a certified gap.
//! - [`policy::Policy`] is a schedule of many coflows: [`policy::terra::Terra`] is ours, the other modules of [`policy`] hold
//!   the comparators.
//! - [`sim::Simulation`] runs a policy over a [`workload::Workload`] without any clock; [`compare`] runs all of them; [`lp_bound`]
//!   is what no schedule can beat.
//! - [`controller::Controller`] is the live scheduler, as a state machine.
//! - [`agent::Agent`] is what carries its decisions out at each site, as a state machine too.
//! - [`read`] holds the input formats; [`topology`] and [`generate`] make networks and workloads.
//!
//! Units everywhere: volumes in Gbit, rates and capacities in Gbit/s, times in seconds, all `f64` and named so.
#![forbid(unsafe_code)]

pub mod agent;
pub mod allocation;
pub mod coflow;
pub mod compare;
pub mod controller;
pub mod generate;
pub mod id;
pub mod lp_bound;
pub mod min_cct;
pub mod path;
pub mod policy;
pub mod random;
pub mod read;
mod release;
pub mod report;
pub mod share;
pub mod sim;
pub mod topology;
pub mod wan;
pub mod workload;

pub use allocation::{Allocation, Fault, check};
pub use coflow::{Coflow, CoflowError, Flow, FlowGroup};
pub use id::{CoflowId, Epoch, JobId, LinkId, SiteId};
pub use path::Path;
pub use wan::{Wan, WanError};

/// Rates below this many Gbit/s (0.1 kbit/s) are not worth a path: they are rounding, not service.
pub const RATE_FLOOR_GBPS: f64 = 1e-7;
