//! Buffers and their registration.

use std::ptr::NonNull;
use std::rc::Rc;

use anyhow::{Context as _, Result};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use serde::{Deserialize, Serialize};

use super::{CallError, Pd, sys};

/// What kind of memory a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Private memory, as the allocator gives it.
    Heap,
    /// A shared object (memfd), which a software device can map instead of copying through the kernel.
    Shared,
}

/// Page-aligned memory, populated, filled with a pattern.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<libc::c_void>,
    length: usize,
    // The library finds the object of a shared buffer through an open descriptor of the process.
    _object: Option<std::os::fd::OwnedFd>,
}

impl Buffer {
    /// A buffer of at least one byte.
    pub fn new(length: usize, placement: Placement) -> Result<Buffer> {
        let size = std::num::NonZeroUsize::new(length).context("a buffer of no bytes")?;
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let (start, object) = match placement {
            Placement::Heap => {
                // SAFETY: a new private mapping of no particular place.
                (unsafe { mmap_anonymous(None, size, prot, MapFlags::MAP_PRIVATE | MapFlags::MAP_POPULATE) }, None)
            }
            Placement::Shared => {
                let object = memfd_create(c"perftest", MFdFlags::MFD_CLOEXEC).context("cannot make a memfd")?;
                nix::unistd::ftruncate(&object, i64::try_from(length)?).context("cannot size a memfd")?;
                // SAFETY: a new mapping of no particular place; nobody shrinks the object, which is ours.
                (unsafe { mmap(None, size, prot, MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE, &object, 0) }, Some(object))
            }
        };
        let start = start.with_context(|| format!("cannot map {length} bytes"))?;
        let buffer = Buffer { start, length, _object: object };
        for (index, byte) in (0u64..).zip(buffer.as_ptr_range()) {
            // SAFETY: the range is the mapping, which nobody else knows yet.
            unsafe { byte.write((index % 251) as u8) };
        }
        Ok(buffer)
    }

    fn as_ptr_range(&self) -> impl Iterator<Item = *mut u8> {
        let start = self.as_ptr();
        // SAFETY: every offset lies inside the mapping.
        (0..self.length).map(move |offset| unsafe { start.add(offset) })
    }

    /// First byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr().cast()
    }

    /// First byte as peers name it.
    pub fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// Number of bytes, at least one.
    pub fn size(&self) -> usize {
        self.length
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and whole; its registration, if any, owns the buffer and has ended before.
        let _ = unsafe { munmap(self.start, self.length) };
    }
}

/// A registered buffer.
#[derive(Debug)]
pub struct Mr {
    raw: NonNull<sys::Mr>,
    pd: Rc<Pd>,
    // Unmapped after the registration has ended: fields are dropped after `drop`.
    buffer: Buffer,
}

impl Mr {
    /// Registers a buffer for everything that benchmarks do.
    pub fn new(pd: &Rc<Pd>, buffer: Buffer) -> Result<Mr, CallError> {
        let access = sys::ACCESS_LOCAL_WRITE | sys::ACCESS_REMOTE_WRITE | sys::ACCESS_REMOTE_READ | sys::ACCESS_REMOTE_ATOMIC;
        let start = buffer.as_ptr().cast();
        // SAFETY: the domain is alive and the range is mapped for as long as the registration lasts.
        let raw = unsafe { (pd.context().library().reg_mr)(pd.raw().as_ptr(), start, buffer.size(), access as i32) };
        let raw = NonNull::new(raw).ok_or_else(|| CallError::last("ibv_reg_mr"))?;
        Ok(Mr { raw, pd: pd.clone(), buffer })
    }

    /// The memory.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Key for own work requests.
    pub fn lkey(&self) -> u32 {
        // SAFETY: the object is alive, and its keys do not change.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    /// Key for peers.
    pub fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw.as_ptr()).rkey }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: the region came from ibv_reg_mr and nothing uses it after this.
        unsafe { (self.pd.context().library().dereg_mr)(self.raw.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_both_kinds_are_mapped_and_filled() {
        for placement in [Placement::Heap, Placement::Shared] {
            let buffer = Buffer::new(5000, placement).unwrap();
            assert_eq!(buffer.address() % 4096, 0);
            // SAFETY: offset 4999 lies in the buffer.
            assert_eq!(unsafe { buffer.as_ptr().add(4999).read() }, (4999 % 251) as u8);
        }
        assert!(Buffer::new(0, Placement::Heap).is_err());
    }
}
