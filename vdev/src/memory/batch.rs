//! Ranges collected for one system call: local ones beside remote ones, neighbours merged.

use super::process::{Direction, Process, Stopped};
use super::reaching::Reaching;
use libc::iovec;
use std::sync::Arc;

/// Ranges per call, each side. A burst of packets has at most about 60; more per call gains nothing measurable.
const MAX_RANGES: usize = 64;
const EMPTY: iovec = iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };

/// One side of a call.
#[derive(Debug)]
struct Side {
    ranges: [iovec; MAX_RANGES],
    used: usize,
}

impl Side {
    const fn new() -> Side {
        Side { ranges: [EMPTY; MAX_RANGES], used: 0 }
    }

    fn push(&mut self, base: *mut u8, len: usize) {
        if let Some(last) = self.ranges[..self.used].last_mut()
            && last.iov_base.wrapping_byte_add(last.iov_len) == base.cast()
        {
            last.iov_len += len;
            return;
        }
        self.ranges[self.used] = iovec { iov_base: base.cast(), iov_len: len };
        self.used += 1;
    }

    fn ranges(&self) -> &[iovec] {
        &self.ranges[..self.used]
    }
}

/// A call in the making.
#[derive(Debug)]
pub(super) struct Batch {
    local: Side,
    remote: Side,
    bytes: usize,
    reaching: Arc<Reaching>,
}

impl Batch {
    pub(super) fn new(reaching: Arc<Reaching>) -> Batch {
        Batch { local: Side::new(), remote: Side::new(), bytes: 0, reaching }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether one more range may not fit.
    pub(super) fn is_full(&self) -> bool {
        self.local.used.max(self.remote.used) == MAX_RANGES
    }

    /// Adds `len` bytes at `local` (ours) that stand for those at `remote` (the process's). Not when full.
    pub(super) fn push(&mut self, local: *mut u8, remote: u64, len: usize) {
        if len > 0 {
            self.local.push(local, len);
            self.remote.push(core::ptr::without_provenance_mut(remote as usize), len);
            self.bytes += len;
        }
    }

    /// Makes the call and empties the batch.
    ///
    /// # Errors
    /// As [`Process::transfer`].
    ///
    /// # Safety
    /// As [`Process::transfer`], for all that was pushed.
    pub(super) unsafe fn run(&mut self, process: &Process, direction: Direction) -> Result<(), Stopped> {
        let moved = match self.bytes {
            0 => Ok(()),
            _ => self.reaching.during(process.pid(), || {
                // SAFETY: the caller's promise.
                unsafe { process.transfer(direction, self.local.ranges(), self.remote.ranges()) }
            }),
        };
        (self.local.used, self.remote.used, self.bytes) = (0, 0, 0);
        moved
    }
}
