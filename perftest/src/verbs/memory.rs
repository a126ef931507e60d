//! Buffers and their registration.

use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::str::FromStr;

use anyhow::{Context as _, Result};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use serde::{Deserialize, Serialize};

use super::{CallError, Pd, cuda, sys};

/// What kind of memory a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Private memory, as the allocator gives it.
    Heap,
    /// A shared object (memfd), which a software device can map instead of copying through the kernel.
    Shared,
    /// Memory of the NVIDIA GPU of this number.
    Cuda(u32),
}

/// A word that names no kind of memory.
#[derive(Debug, thiserror::Error)]
#[error("memory is heap, shared, cuda or cuda:N, the latter of GPU N")]
pub struct UnknownPlacement;

impl FromStr for Placement {
    type Err = UnknownPlacement;

    fn from_str(word: &str) -> Result<Placement, UnknownPlacement> {
        match word {
            "heap" => Ok(Placement::Heap),
            "shared" => Ok(Placement::Shared),
            "cuda" => Ok(Placement::Cuda(0)),
            _ => {
                let number = word.strip_prefix("cuda:").and_then(|number| number.parse().ok());
                number.map(Placement::Cuda).ok_or(UnknownPlacement)
            }
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Heap => f.write_str("heap"),
            Placement::Shared => f.write_str("shared"),
            Placement::Cuda(gpu) => write!(f, "cuda:{gpu}"),
        }
    }
}

/// Page-aligned memory, populated, filled with a pattern.
#[derive(Debug)]
pub struct Buffer {
    memory: Memory,
    length: usize,
}

#[derive(Debug)]
enum Memory {
    Mapped {
        start: NonNull<libc::c_void>,
        // The library finds the object of a shared buffer through an open descriptor of the process.
        _object: Option<OwnedFd>,
    },
    Gpu(cuda::Memory),
}

/// Byte of every buffer at this offset.
fn pattern(offset: usize) -> u8 {
    (offset % 251) as u8
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
            Placement::Cuda(gpu) => {
                let content: Vec<u8> = (0..length).map(pattern).collect();
                return Ok(Buffer { memory: Memory::Gpu(cuda::Memory::new(gpu, &content)?), length });
            }
        };
        let start = start.with_context(|| format!("cannot map {length} bytes"))?;
        for offset in 0..length {
            // SAFETY: the offset is in the mapping, which nobody else knows yet.
            unsafe { start.as_ptr().cast::<u8>().add(offset).write(pattern(offset)) };
        }
        Ok(Buffer { memory: Memory::Mapped { start, _object: object }, length })
    }

    /// First byte, for the processor; `None` for memory that it does not reach.
    pub fn as_ptr(&self) -> Option<*mut u8> {
        if let Memory::Mapped { start, .. } = self.memory { Some(start.as_ptr().cast()) } else { None }
    }

    /// Copies bytes into the buffer.
    ///
    /// # Panics
    /// If they leave it, or the processor does not reach it.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let at = self.range(offset, bytes.len());
        // SAFETY: the range lies in the mapping, of which nobody has a reference.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
    }

    /// Copies bytes out of the buffer. A device may write to them meanwhile: then they are some bytes.
    ///
    /// # Panics
    /// If they leave it, or the processor does not reach it.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        let at = self.range(offset, bytes.len());
        // SAFETY: the range lies in the mapping, of which nobody has a reference.
        unsafe { std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Where a range begins, all of which lies in the buffer.
    fn range(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset <= self.length && length <= self.length - offset, "{length} bytes at {offset}");
        self.as_ptr().expect("memory that the processor reaches").wrapping_add(offset)
    }

    /// First byte as peers name it.
    pub fn address(&self) -> u64 {
        match &self.memory {
            Memory::Mapped { start, .. } => start.as_ptr() as u64,
            Memory::Gpu(memory) => memory.address(),
        }
    }

    /// Number of bytes, at least one.
    pub fn size(&self) -> usize {
        self.length
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Memory::Mapped { start, .. } = self.memory {
            // SAFETY: the mapping is ours and whole; its registration, if any, owns the buffer and has ended before.
            let _ = unsafe { munmap(start, self.length) };
        }
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
    pub fn new(pd: &Rc<Pd>, buffer: Buffer) -> Result<Mr> {
        let access = sys::ACCESS_LOCAL_WRITE | sys::ACCESS_REMOTE_WRITE | sys::ACCESS_REMOTE_READ | sys::ACCESS_REMOTE_ATOMIC;
        let (domain, length, access) = (pd.raw().as_ptr(), buffer.size(), access as i32);
        let library = pd.context().library();
        let (call, raw) = match &buffer.memory {
            Memory::Mapped { start, .. } => {
                // SAFETY: the domain is alive and the range is mapped for as long as the registration lasts.
                ("ibv_reg_mr", unsafe { (library.reg_mr)(domain, start.as_ptr(), length, access) })
            }
            Memory::Gpu(memory) => {
                let (register, fd) = (library.reg_dmabuf_mr()?, memory.buffer().as_raw_fd());
                // SAFETY: the domain is alive; the memory is the GPU's for as long as the registration lasts.
                ("ibv_reg_dmabuf_mr", unsafe { register(domain, 0, length, memory.address(), fd, access) })
            }
        };
        let raw = NonNull::new(raw).ok_or_else(|| CallError::last(call))?;
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
            assert_eq!(unsafe { buffer.as_ptr().unwrap().add(4999).read() }, (4999 % 251) as u8);
            buffer.write(4998, &[1, 2]);
            let mut bytes = [0; 3];
            buffer.read(4997, &mut bytes);
            assert_eq!(bytes, [(4997 % 251) as u8, 1, 2]);
            assert!(std::panic::catch_unwind(|| buffer.write(4999, &[1, 2])).is_err(), "it would leave the buffer");
        }
        assert!(Buffer::new(0, Placement::Heap).is_err());
    }

    #[test]
    fn kinds_of_memory_by_name() {
        let kinds = ["heap", "shared", "cuda", "cuda:3"].map(|word| word.parse::<Placement>().unwrap());
        assert_eq!(kinds, [Placement::Heap, Placement::Shared, Placement::Cuda(0), Placement::Cuda(3)]);
        assert_eq!(kinds.map(|kind| kind.to_string()), ["heap", "shared", "cuda:0", "cuda:3"]);
        for word in ["", "cuda:", "cuda:x", "cuda:-1", "cuda3", "gpu"] {
            assert!(word.parse::<Placement>().is_err(), "{word}");
        }
    }
}
