//! Who may send next: the arbiter between all queue pairs of all devices of one software RNIC.
//!
//! The RNIC asks it before every burst of packets and every copy of the local path, for requests, responses and retransmissions
//! alike, and tells it afterwards what that cost. So whatever a tenant makes the RNIC do counts against its own share.
//!
//! - A [`tenant`] has a weight, and may have a guaranteed rate, a highest rate and a burst. Among those with work the one goes
//!   first that has had the least of what it uses most, counted by weight (dominant resource fair queueing: Ghodsi et al., SIGCOMM
//!   2012). Queue pairs of one tenant share what the tenant has: more of them give no more.
//! - A [`class`] is found for each queue pair from what it posts. Small sparse messages go before everything else, as long as
//!   all of them together need no more than [`Config::lane_percent`] of what there is; what is beyond waits its turn. All of it
//!   counts against the tenant's share: claiming to be small and sparse gives no more to who is not.
//! - While others wait, a turn is short ([`Config::quantum_bytes`]): nobody waits behind a whole message of another. Justitia (NSDI
//!   2022), which has to bypass a scheduler it cannot change, splits messages and gives away half the link for that; here the turn
//!   is the RNIC's own.
//!
//! Sans-IO: time goes in; grants and the next time at which something may send come out. No allocation once queues have grown.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod arbiter;
pub mod baseline;
pub mod bucket;
pub mod class;
pub mod incast;
mod shares;
mod table;
pub mod tenant;
mod waiting;

pub use arbiter::{Arbiter, Config, Cost, Flow, Grant, Policy};
pub use class::Class;
pub use tenant::{Settings, SettingsError, TenantId, Usage};
