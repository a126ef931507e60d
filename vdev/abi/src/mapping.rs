//! Shared memory: one mapping of one sealed memfd, reached only through bounds-checked atomics and copies.
//!
//! Owns the mapping's lifetime and the promise that it cannot shrink under us (a memfd without the shrink seal is refused, so no
//! access can raise SIGBUS). Never hands out a reference to plain bytes: the other side may write at any moment.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::copy::{Copier, Fault};
use crate::layout::{CompletionEntry, RecvEntry, SendEntry, Sge};

/// Types that are plain bytes: no padding, no invalid bit pattern, aligned to 8 bytes or less, a multiple of 8 bytes long.
///
/// # Safety
/// The implementer has all of these properties.
pub unsafe trait Pod: Copy + Default {}

// SAFETY: integers and integer arrays only; the sizes asserted in `layout` leave no room for padding.
unsafe impl Pod for SendEntry {}
// SAFETY: as above.
unsafe impl Pod for RecvEntry {}
// SAFETY: as above.
unsafe impl Pod for Sge {}
// SAFETY: as above.
unsafe impl Pod for CompletionEntry {}

/// A shared, writable mapping of a memfd.
///
/// Accessors take byte offsets and panic on one that is out of bounds or misaligned: offsets come from a layout that was
/// computed from checked sizes, never from the other side, so that is our own bug.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is not tied to a thread, and all access goes through atomics or raw copies that are documented as such.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Makes a zeroed memfd of `len` bytes (1 or more) that can neither shrink nor grow, and maps it. `name` is what
    /// `/proc/PID/maps` shows.
    ///
    /// # Errors
    /// The system's, chiefly `EMFILE` and `ENOMEM`.
    pub fn create(name: &CStr, len: usize) -> io::Result<(OwnedFd, Mapping)> {
        // SAFETY: `name` is a C string; the call touches nothing else.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and ours alone.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let size = libc::off_t::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: plain system calls on our descriptor.
        let sealed = unsafe {
            libc::ftruncate(fd.as_raw_fd(), size) == 0
                && libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL)
                    == 0
        };
        if !sealed {
            return Err(io::Error::last_os_error());
        }
        let mapping = Mapping::map(std::os::fd::AsFd::as_fd(&fd), len)?;
        Ok((fd, mapping))
    }

    /// Maps the first `len` bytes of a memfd that the other side made.
    ///
    /// # Errors
    /// `EINVAL` when the object is shorter than `len`, is no memfd, or can still be shrunk; otherwise the system's.
    pub fn map(fd: BorrowedFd<'_>, len: usize) -> io::Result<Mapping> {
        // SAFETY: an all-zero `stat` is valid, and fstat writes only into it.
        let mut stat: libc::stat = unsafe { core::mem::zeroed() };
        // SAFETY: `stat` is writable and of the right type.
        if unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: plain system call.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        let long_enough = u64::try_from(stat.st_size).is_ok_and(|size| size >= len as u64);
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 || !long_enough || len == 0 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe {
            libc::mmap(core::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Mapping { base, len })
    }

    /// First byte. The other side may write there at any moment: read and write through raw pointers only.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes mapped, 1 or more.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    fn at(&self, offset: usize, len: usize, align: usize) -> *mut u8 {
        let end = offset.checked_add(len).expect("an offset that does not overflow");
        assert!(end <= self.len && offset.is_multiple_of(align), "offset {offset} + {len} in a mapping of {}", self.len);
        // SAFETY: `offset` lies within the mapping, checked just above.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// The 32-bit word at `offset`, a multiple of 4.
    pub fn u32_at(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: in bounds and aligned (`at`; mmap aligns the base), lives as long as `self`, and is only ever used atomically.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4, 4).cast()) }
    }

    /// The 64-bit word at `offset`, a multiple of 8.
    pub fn u64_at(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as `u32_at`.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8, 8).cast()) }
    }

    /// `count` 64-bit words from `offset`, a multiple of 8.
    pub fn u64s_at(&self, offset: usize, count: usize) -> &[AtomicU64] {
        let bytes = count.checked_mul(8).expect("a count that does not overflow");
        // SAFETY: as `u32_at`, for each word; `AtomicU64` has the layout of `u64`.
        unsafe { core::slice::from_raw_parts(self.at(offset, bytes, 8).cast::<AtomicU64>(), count) }
    }

    /// Copies a value out, each of its words read exactly once.
    pub fn read<T: Pod>(&self, offset: usize) -> T {
        const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>() <= 8) };
        let mut value = T::default();
        let to = (&raw mut value).cast::<u64>();
        for (n, word) in self.u64s_at(offset, size_of::<T>() / 8).iter().enumerate() {
            // SAFETY: word `n` of a value that is a whole number of words long; `Pod` makes any bits valid.
            unsafe { to.add(n).write_unaligned(word.load(Ordering::Relaxed)) };
        }
        value
    }

    /// Copies a value in.
    pub fn write<T: Pod>(&self, offset: usize, value: &T) {
        const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>() <= 8) };
        let from = core::ptr::from_ref(value).cast::<u64>();
        for (n, word) in self.u64s_at(offset, size_of::<T>() / 8).iter().enumerate() {
            // SAFETY: word `n` of a value that is a whole number of words long and has no padding.
            word.store(unsafe { from.add(n).read_unaligned() }, Ordering::Relaxed);
        }
    }

    /// Copies bytes in. For memory that the other side does not look at before an index says so.
    ///
    /// # Errors
    /// [`Fault`] when a page of the source is not there; bytes before it have been copied.
    ///
    /// # Safety
    /// As [`Copier::copy`], for `len` bytes at `from`.
    pub unsafe fn copy_in(&self, copier: Copier, offset: usize, from: *const u8, len: usize) -> Result<(), Fault> {
        // SAFETY: the target is in bounds (`at`); the caller vouches for the source.
        unsafe { copier.copy(self.at(offset, len, 1), from, len) }
    }

    /// Copies bytes out; if the other side writes meanwhile, the copy may be a mixture.
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) {
        // SAFETY: the source is in bounds (`at`), `to` is ours alone.
        unsafe { core::ptr::copy_nonoverlapping(self.at(offset, to.len(), 1), to.as_mut_ptr(), to.len()) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `map` mapped; no reference outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn both_sides_see_the_same_bytes() {
        let (fd, ours) = Mapping::create(c"vrdma-test", 8192).unwrap();
        let theirs = Mapping::map(fd.as_fd(), 8192).unwrap();
        let sge = Sge { addr: 7, length: 8, lkey: 9 };
        ours.write(4096, &sge);
        assert_eq!(theirs.read::<Sge>(4096), sge);
        theirs.u32_at(8188).store(5, Ordering::Relaxed);
        assert_eq!(ours.u32_at(8188).load(Ordering::Relaxed), 5);
        // SAFETY: the source is a live array elsewhere.
        unsafe { ours.copy_in(Copier::new(), 3, b"abc".as_ptr(), 3) }.unwrap();
        let mut copy = [0; 3];
        theirs.copy_out(3, &mut copy);
        assert_eq!(&copy, b"abc");
    }

    #[test]
    fn the_size_is_fixed() {
        let (fd, _ours) = Mapping::create(c"vrdma-test", 4096).unwrap();
        // SAFETY: plain system call on our descriptor.
        assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), 0) }, -1);
        let refused = Mapping::map(fd.as_fd(), 4097).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
        assert_eq!(Mapping::map(fd.as_fd(), 0).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn memory_that_could_shrink_is_refused() {
        // SAFETY: plain system call with a C string.
        let fd = unsafe { libc::memfd_create(c"vrdma-test".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        // SAFETY: new and ours.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain system call on our descriptor.
        assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), 4096) }, 0);
        assert_eq!(Mapping::map(fd.as_fd(), 4096).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(Mapping::map(file.as_fd(), 1).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    #[should_panic(expected = "in a mapping of")]
    fn an_offset_outside_panics() {
        let (_fd, ours) = Mapping::create(c"vrdma-test", 4096).unwrap();
        let _ = ours.u64_at(4096);
    }
}
