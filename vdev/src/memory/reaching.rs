//! Whose memory the datapath thread is reaching through the kernel at this moment.
//!
//! The one thing that can hold that thread up: a page that only another program can bring (of a file system in user space, or
//! under userfaultfd) lets the call wait for as long as that program likes, and nothing but the end of our own process would
//! interrupt it. So at least it can be said who is to blame.

use std::sync::atomic::{AtomicI32, Ordering};

/// Shared between the datapath thread and those who wait for it.
#[derive(Debug, Default)]
pub struct Reaching(AtomicI32);

impl Reaching {
    /// The process, if there is one right now.
    pub fn process(&self) -> Option<i32> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&pid| pid != 0)
    }

    /// Does what reaches into this process.
    #[inline]
    pub(super) fn during<R>(&self, pid: i32, reach: impl FnOnce() -> R) -> R {
        self.0.store(pid, Ordering::Relaxed);
        let reached = reach();
        self.0.store(0, Ordering::Relaxed);
        reached
    }
}
