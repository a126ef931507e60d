//! Guest memory mapped into this process from the descriptor that came with a DMA map.
//!
//! Only objects that live in memory (memfds and other tmpfs files, hugetlbfs): a page of any other file system may take for
//! ever to come, and pinning it would hold up the daemon. The descriptor is closed once the object is mapped, so that a
//! guest cannot use up the daemon's descriptors.

use crate::address::{Hva, PAGE_LEN};
use crate::protection::Protection;
use core::num::NonZeroUsize;
use core::ptr::NonNull;
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use nix::sys::stat::fstat;
use nix::sys::statfs::{HUGETLBFS_MAGIC, TMPFS_MAGIC, fstatfs};
use std::os::fd::{AsFd, OwnedFd};

/// Where the memory of a region comes from.
#[derive(Debug)]
pub struct Backing {
    /// The object: a memfd, a file on tmpfs or on hugetlbfs.
    pub fd: OwnedFd,
    /// Where in the object the region begins, bytes.
    pub offset: u64,
}

/// Why an object cannot serve as guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackingError {
    /// The offset is no multiple of [`PAGE_LEN`].
    #[error("the file offset {0:#x} is no multiple of 4096")]
    Unaligned(u64),
    /// It does not live in memory.
    #[error("guest memory must be a memfd or a file on tmpfs or hugetlbfs; this object's file system is {0:#x}")]
    FileSystem(i64),
    /// The region ends behind the end of the object.
    #[error("{len:#x} bytes at file offset {offset:#x} end behind the end of the object, {object_len:#x} bytes long")]
    PastEnd {
        /// Where the region begins.
        offset: u64,
        /// Bytes of the region.
        len: u64,
        /// Bytes of the object.
        object_len: u64,
    },
    /// The system refuses.
    #[error("cannot map the object: {0}")]
    System(#[from] Errno),
}

/// Device and inode: what makes two descriptors the same object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ObjectId(u64, u64);

impl ObjectId {
    pub(crate) fn of(fd: impl AsFd) -> Result<ObjectId, Errno> {
        let stat = fstat(fd)?;
        Ok(ObjectId(stat.st_dev, stat.st_ino))
    }
}

/// One shared mapping. The object's owner may shrink it at any time: an access beyond its end then raises SIGBUS.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a range of addresses, not tied to a thread; nothing is accessed through a reference.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(backing: Backing, len: u64, protection: Protection) -> Result<Mapping, BackingError> {
        let Backing { fd, offset } = backing;
        if !offset.is_multiple_of(PAGE_LEN) {
            return Err(BackingError::Unaligned(offset));
        }
        let kind = fstatfs(&fd)?.filesystem_type();
        if kind != TMPFS_MAGIC && kind != HUGETLBFS_MAGIC {
            return Err(BackingError::FileSystem(kind.0));
        }
        let object_len = u64::try_from(fstat(&fd)?.st_size).unwrap_or(0);
        if offset.checked_add(len).is_none_or(|end| end > object_len) {
            return Err(BackingError::PastEnd { offset, len, object_len });
        }
        // Neither fails: both lie below the length of the object, which is positive as an i64.
        let offset = libc::off_t::try_from(offset).map_err(|_| Errno::EOVERFLOW)?;
        let len = usize::try_from(len).ok().and_then(NonZeroUsize::new).ok_or(Errno::EINVAL)?;
        let mut rights = ProtFlags::PROT_NONE;
        rights.set(ProtFlags::PROT_READ, protection.contains(Protection::READ));
        rights.set(ProtFlags::PROT_WRITE, protection.contains(Protection::WRITE));
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe { mmap(None, len, rights, flags, &fd, offset) }?;
        let mapping = Mapping { base: base.cast(), len: len.get() };
        mapping.advise();
        Ok(mapping)
    }

    /// Wishes only: that none of them is granted changes nothing but speed and the size of a core dump.
    fn advise(&self) {
        // Huge pages: a block then costs one fault instead of 512 (with shmem_enabled "advise"). No guest memory in core
        // dumps and in child processes.
        for advice in [MmapAdvise::MADV_HUGEPAGE, MmapAdvise::MADV_DONTDUMP, MmapAdvise::MADV_DONTFORK] {
            // SAFETY: our own mapping; none of these changes its contents.
            let _refused = unsafe { madvise(self.base.cast(), self.len, advice) };
        }
    }

    pub(crate) fn base(&self) -> Hva {
        Hva(self.base.as_ptr() as u64)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped. The region lets nobody in when it drops this, and hands out no address that
        // outlives its users.
        let unmapped = unsafe { munmap(self.base.cast(), self.len) };
        assert_eq!(unmapped, Ok(()), "a mapping of our own can be unmapped");
    }
}
