//! The routines for CPUs without assembly of their own: the kernel copies, and answers a missing page with an error.

use libc::iovec;

/// Nothing to choose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Routines;

impl Routines {
    pub(super) fn detect() -> Routines {
        Routines
    }

    /// Returns whether a fault ended the copy.
    pub(super) unsafe fn copy_disjoint(&self, dst: *mut u8, src: *const u8, len: usize) -> bool {
        let (mut dst, mut src, mut left) = (dst, src.cast_mut(), len);
        while left > 0 {
            let to = iovec { iov_base: dst.cast(), iov_len: left };
            let from = iovec { iov_base: src.cast(), iov_len: left };
            // SAFETY: the kernel checks both ranges; the caller answers for what lies there.
            let copied = unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) };
            let Some(copied) = usize::try_from(copied).ok().filter(|&copied| copied > 0) else { return true };
            dst = dst.wrapping_add(copied);
            src = src.wrapping_add(copied);
            left -= copied;
        }
        false
    }

    /// Returns whether a fault ended the copy. The kernel's order within an overlap is its own.
    pub(super) unsafe fn copy_bytewise(&self, dst: *mut u8, src: *const u8, len: usize) -> bool {
        // SAFETY: the same promise.
        unsafe { self.copy_disjoint(dst, src, len) }
    }

    pub(super) unsafe fn fetch_add(&self, at: *mut u64, add: u64) -> Option<u64> {
        // SAFETY: the same promise.
        unsafe { self.update(at, |before| before.wrapping_add(add)) }
    }

    pub(super) unsafe fn compare_swap(&self, at: *mut u64, compare: u64, swap: u64) -> Option<u64> {
        // SAFETY: the same promise.
        unsafe { self.update(at, |before| if before == compare { swap } else { before }) }
    }

    /// Atomic only among callers of one thread, which is all that the daemon promises.
    unsafe fn update(&self, at: *mut u64, change: impl Fn(u64) -> u64) -> Option<u64> {
        let mut word = 0u64;
        let place = (&raw mut word).cast::<u8>();
        // SAFETY: `word` is ours; the rest is the caller's promise.
        if unsafe { self.copy_disjoint(place, at.cast(), 8) } {
            return None;
        }
        let before = word;
        word = change(before);
        // SAFETY: as above.
        let faulted = unsafe { self.copy_disjoint(at.cast(), place, 8) };
        (!faulted).then_some(before)
    }
}
