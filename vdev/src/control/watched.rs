//! Descriptors watched by the control thread's runtime.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Watches a descriptor for input.
///
/// # Errors
/// The system's.
pub fn watch_input(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the value owns the descriptor, so that it stays open for as long as it is registered.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(|error| error.into_parts().1)
}
