//! What the tests of the whole product share: daemons in private directories, programs with time limits, network
//! namespaces, and the table of perftest runs.
//!
//! Everything started here ends when its value is dropped, also when the test panics. Nothing here knows how the product
//! works inside: it is driven by its command line, its HTTP API and its environment, as a user would.
//!
//! A test that lacks something on this machine (root, a Debian package) says so with [`skip()`], which prints one line
//! `SKIP test: reason` and counts it; `./test` installs what is missing and reports the count.

mod built;
pub mod container;
mod control_client;
mod daemon;
pub mod erdma;
pub mod exporter;
pub mod fuzz;
pub mod interop;
pub mod matrix;
mod netns;
mod program;
mod raw_peer;
mod sites;
mod streams;
pub mod verbs;
pub mod vm;

pub use built::binary;
pub use control_client::{ControlClient, HandQp};
pub use daemon::{Daemon, DaemonOptions, http};
pub use netns::NetnsPair;
pub use program::{Ended, Program};
pub use raw_peer::{RawPeer, headers};
pub use sites::{Sample, Sites, Watch};
pub use skip::{missing_program, need_root, skip};
pub use streams::Streams;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tests of the whole product run one at a time in a test binary: each keeps two or three busy-polling processes running, and
/// two tests at once on two cores would mostly measure the scheduler. Hold the guard for the length of the test.
pub fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
