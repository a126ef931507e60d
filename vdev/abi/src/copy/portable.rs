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
        let mut before = 0u64;
        // SAFETY: `before` is ours; the rest is the caller's promise.
        if unsafe { self.copy_disjoint((&raw mut before).cast(), at.cast(), 8) } {
            return None;
        }
        let after = change(before);
        // SAFETY: as above.
        let faulted = unsafe { self.copy_disjoint(at.cast(), (&raw const after).cast(), 8) };
        (!faulted).then_some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_and_updates_what_is_there() {
        let (routines, src, mut dst) = (Routines::detect(), vec![7u8; 10_000], vec![0u8; 10_000]);
        // SAFETY: both are ours.
        assert!(!unsafe { routines.copy_disjoint(dst.as_mut_ptr(), src.as_ptr(), src.len()) });
        assert_eq!(dst, src);
        let mut word = 5u64;
        // SAFETY: `word` is ours and aligned.
        unsafe {
            assert_eq!(routines.fetch_add(&raw mut word, u64::MAX), Some(5));
            assert_eq!(routines.compare_swap(&raw mut word, 3, 9), Some(4));
            assert_eq!(routines.compare_swap(&raw mut word, 4, 9), Some(4));
        }
        assert_eq!(word, 9);
    }

    #[test]
    fn what_is_not_there_is_a_fault() {
        let (routines, mut ours) = (Routines::detect(), [0u8; 64]);
        let nowhere = core::ptr::without_provenance_mut::<u8>(4096);
        // SAFETY: nothing is mapped at the bottom of the address space, and the kernel says so.
        unsafe {
            assert!(routines.copy_disjoint(ours.as_mut_ptr(), nowhere, 64));
            assert!(routines.copy_bytewise(nowhere, ours.as_ptr(), 64));
            assert_eq!(routines.fetch_add(nowhere.cast(), 1), None);
            assert_eq!(routines.compare_swap(nowhere.cast(), 0, 1), None);
        }
    }
}
