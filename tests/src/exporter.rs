//! A stand-in for a GPU that exports its memory as a dma-buf: the kernel's `udmabuf` driver where this machine has it, and a plain
//! memfd where not. Which one it is, is told to whoever asks.

use crate::verbs::Buffer;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `struct udmabuf_create` of `linux/udmabuf.h`.
#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

mod ioctl {
    nix::ioctl_write_ptr!(udmabuf_create, b'u', 0x42, super::UdmabufCreate);
}

/// Memory of a device, and the buffer by which others reach it.
#[derive(Debug)]
pub struct Exporter {
    memory: OwnedFd,
    dma_buf: Option<OwnedFd>,
    view: Buffer,
}

impl Exporter {
    /// Exports `len` bytes of zeros, a multiple of the page size.
    ///
    /// # Errors
    /// The system's.
    pub fn new(len: usize) -> io::Result<Exporter> {
        let memory = memfd_create(c"device-memory", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        nix::unistd::ftruncate(&memory, i64::try_from(len).expect("a length fits"))?;
        let dma_buf = match OpenOptions::new().read(true).write(true).open("/dev/udmabuf") {
            Ok(driver) => {
                // The driver keeps the pages, and wants to know that they stay.
                fcntl(&memory, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK))?;
                let memfd = memory.as_raw_fd().cast_unsigned();
                let create = UdmabufCreate { memfd, flags: 1, offset: 0, size: len as u64 };
                // SAFETY: the structure is the one of this call, and the descriptor that it makes is new and ours.
                Some(unsafe { OwnedFd::from_raw_fd(ioctl::udmabuf_create(driver.as_raw_fd(), &raw const create)?) })
            }
            Err(_) => None,
        };
        let view = Buffer::of(&memory, len)?;
        Ok(Exporter { memory, dma_buf, view })
    }

    /// The driver, by the name that the daemon knows it by.
    pub fn name(&self) -> &'static str {
        if self.dma_buf.is_some() { "udmabuf" } else { "memfd" }
    }

    /// What is passed to `ibv_reg_dmabuf_mr`.
    pub fn buffer(&self) -> &OwnedFd {
        self.dma_buf.as_ref().unwrap_or(&self.memory)
    }

    /// The device's own view of its memory.
    pub fn view(&self) -> &Buffer {
        &self.view
    }

    /// Takes all memory away from whoever has the buffer; false if this driver does not do that.
    ///
    /// # Errors
    /// The system's.
    pub fn take_away(&self) -> io::Result<bool> {
        if self.dma_buf.is_none() {
            nix::unistd::ftruncate(&self.memory, 0)?;
        }
        Ok(self.dma_buf.is_none())
    }

    /// New memory, of zeros, in the place of what was taken away.
    ///
    /// # Errors
    /// The system's.
    pub fn bring_back(&self) -> io::Result<()> {
        Ok(nix::unistd::ftruncate(&self.memory, i64::try_from(self.view.len()).expect("a length fits"))?)
    }
}
