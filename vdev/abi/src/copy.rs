//! Moving payload bytes, in the daemon and in client processes: our own vector loop, which survives memory that disappears
//! under it.
//!
//! Why not `memcpy`: just above 2 KiB it turns into `rep movsb`, which on some CPUs is 15 to 30 times slower when the
//! destination lies 1 to 31 bytes ahead of the source modulo 4096. Why fault-safe: a client may truncate a file that the daemon
//! has mapped, and a program may unmap memory that is still registered; an access then ends in SIGBUS or SIGSEGV. Every access
//! to such memory therefore goes through a few routines of known extent (`x86_64`); a signal handler (`fault`) turns a fault
//! inside them into an error return.
//!
//! Bytes are stored in ascending order, the last one last: programs poll the last byte of a WRITE.

#[cfg(target_arch = "x86_64")]
mod fault;
// Compiled and tested everywhere, used where there is nothing better.
#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(not(target_arch = "x86_64"))]
use portable as routines;
#[cfg(target_arch = "x86_64")]
use x86_64 as routines;

/// An access hit memory that is not there (any more), or that must not be accessed in this way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory is not there any more")]
pub struct Fault;

/// The right to use the routines: whoever has one knows that the fault handler is installed and which instructions the CPU has.
#[derive(Clone, Copy, Debug)]
pub struct Copier {
    routines: routines::Routines,
}

impl Copier {
    /// Looks at the CPU; installs the handler of SIGBUS and SIGSEGV when called first in this process. Other faults go on to the
    /// handlers that were there before.
    pub fn new() -> Copier {
        Copier { routines: routines::Routines::detect() }
    }

    /// Copies `len` bytes in ascending order. Overlapping ranges give what a byte-wise ascending copy gives.
    ///
    /// # Errors
    /// [`Fault`] when a page of either range is not there; bytes before it have been copied.
    ///
    /// # Safety
    /// Both ranges lie in memory to which no reference is live (except `&[u8]`/`&mut [u8]` that the caller holds for this very
    /// purpose), or in addresses that stay reserved for client memory during the call. They need not be backed by pages.
    #[inline]
    pub unsafe fn copy(&self, dst: *mut u8, src: *const u8, len: usize) -> Result<(), Fault> {
        let (to, from) = (dst.addr(), src.addr());
        let overlap = to.wrapping_sub(from) < len || from.wrapping_sub(to) < len;
        // SAFETY: the caller's promise is what the routines need.
        let faulted = unsafe {
            if overlap { self.routines.copy_bytewise(dst, src, len) } else { self.routines.copy_disjoint(dst, src, len) }
        };
        if faulted { Err(Fault) } else { Ok(()) }
    }

    /// Adds to the word at `at` with one locked instruction; returns the value before.
    ///
    /// # Errors
    /// [`Fault`] when the page is not there.
    ///
    /// # Safety
    /// As [`Self::copy`], for 8 bytes at `at`, which is a multiple of 8.
    #[inline]
    pub unsafe fn fetch_add(&self, at: *mut u64, add: u64) -> Result<u64, Fault> {
        debug_assert!(at.is_aligned(), "an atomic at {at:p}");
        // SAFETY: the caller's promise is what the routine needs.
        unsafe { self.routines.fetch_add(at, add) }.ok_or(Fault)
    }

    /// Replaces the word at `at` by `swap` if it is `compare`, with one locked instruction; returns the value before.
    ///
    /// # Errors
    /// As [`Self::fetch_add`].
    ///
    /// # Safety
    /// As [`Self::fetch_add`].
    #[inline]
    pub unsafe fn compare_swap(&self, at: *mut u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        debug_assert!(at.is_aligned(), "an atomic at {at:p}");
        // SAFETY: the caller's promise is what the routine needs.
        unsafe { self.routines.compare_swap(at, compare, swap) }.ok_or(Fault)
    }
}

impl Default for Copier {
    fn default() -> Self {
        Copier::new()
    }
}
