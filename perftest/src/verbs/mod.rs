//! The verbs API, loaded at run time, and the CUDA driver for those who ask for memory of a GPU.
//!
//! Owns: finding libibverbs, and one small owner per verbs object, dropped in the right order. Never: links against an RDMA
//! library or CUDA; a machine without them must build and start this program.

mod context;
mod cuda;
mod library;
mod memory;
mod queue;
pub mod sys;

pub use context::{Context, DeviceChoice, Pd, Port};
pub use cuda::CudaError;
pub use library::{Library, LoadError};
pub use memory::{Buffer, Mr, Placement, UnknownPlacement};
pub use queue::{CompletionError, Cq, Operation, POLL_BATCH, POST_BATCH, Peer, Qp, QpSizes, Remote, Send};

/// A verbs call that failed.
#[derive(Debug, thiserror::Error)]
#[error("{call} failed: {source}")]
pub struct CallError {
    /// The call.
    pub call: &'static str,
    /// Its error number.
    pub source: std::io::Error,
}

impl CallError {
    /// From `errno`, as calls that return a pointer leave it.
    fn last(call: &'static str) -> CallError {
        CallError { call, source: std::io::Error::last_os_error() }
    }

    /// From the value of a call that returns an error number (or -1 with `errno`).
    fn check(call: &'static str, result: libc::c_int) -> Result<(), CallError> {
        match result {
            0 => Ok(()),
            -1 => Err(CallError::last(call)),
            errno => Err(CallError { call, source: std::io::Error::from_raw_os_error(errno) }),
        }
    }
}
