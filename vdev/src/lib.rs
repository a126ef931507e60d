//! The vrdma daemon: what Linux sees of the software RNIC.
//!
//! Owns: the control API, the device sockets and their clients, the shared rings, the ways to memory and to the wire, and the
//! datapath loop that joins them to the sans-IO core. Never: decides anything about the transport; that is the core's.
//!
//! Two threads, and two more for each virtual machine (`pci`). The control thread (`control`) runs the HTTP API, the device
//! sockets and one task per client connection on one tokio runtime; it makes memory and descriptors, and hands closures to the data path. The datapath thread (`datapath`)
//! owns the core, the rings and the sockets on the wire; it polls while there is work and sleeps otherwise.

mod attr;
mod control;
mod daemon;
mod datapath;
pub mod memory;
pub mod pci;
pub mod port;
mod sharing;
mod sq;

pub use daemon::{API_SOCKET, DEVICE_FOLDER, DEVICE_SOCKET, Daemon, DaemonConfig, StartError, run_until_signal};
pub use sharing::Isolation;
pub use spray::{DEFAULT_PATHS, MAX_PATHS};
