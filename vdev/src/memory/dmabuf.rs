//! Buffers of devices: memory that the driver of a GPU, or of anything else, has exported as a dma-buf, and that the daemon maps.
//!
//! Owns: which descriptors are taken for such a buffer, who has exported it, and that a driver hears of every access. Objects in
//! memory (memfd, hugetlbfs) are taken as well, and go the same way: they stand in for a device where there is none. Never waits: a
//! driver that has work under way in a buffer is not asked to finish it, as a network card would not do that either.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::{SFlag, fstat};
use nix::sys::statfs::{FsType, HUGETLBFS_MAGIC, TMPFS_MAGIC, fstatfs};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// `DMA_BUF_MAGIC` of `linux/magic.h`: the file system of all dma-bufs, and of nothing else.
const DMA_BUF_MAGIC: FsType = FsType(0x444d_4142);

nix::ioctl_write_ptr!(dma_buf_sync, b'b', 0, u64);

/// Why a buffer cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum BufferError {
    /// A socket, a file on a disk, and so on.
    #[error("The descriptor is neither a dma-buf nor an object in memory, so there is no device memory behind it")]
    NotABuffer,
    /// The range.
    #[error("{length} bytes at {offset:#x} are not within the buffer, which has {size}")]
    Outside {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        length: u64,
        /// Bytes there are.
        size: u64,
    },
    /// The descriptor.
    #[error("The descriptor of the buffer of {exporter} is read-only; ask for fewer access rights or export it for writing")]
    ReadOnly {
        /// Who exported it.
        exporter: Arc<str>,
    },
    /// The driver.
    #[error("{exporter} does not let the buffer be mapped ({error}), and nothing else reaches its memory")]
    NotMappable {
        /// Who exported it.
        exporter: Arc<str>,
        /// What it said.
        error: io::Error,
    },
    /// The connection has as many mappings as it may.
    #[error(
        "This connection has {buffers} shared objects and buffers of {bytes} bytes mapped, and there is no room for {wanted} more"
    )]
    NoRoom {
        /// Objects.
        buffers: usize,
        /// Bytes of all of them.
        bytes: usize,
        /// Bytes of this one.
        wanted: u64,
    },
    /// The system.
    #[error("Cannot look at the buffer: {0}")]
    System(#[from] io::Error),
}

impl BufferError {
    /// For the verbs caller.
    pub fn errno(&self) -> i32 {
        match self {
            BufferError::NotABuffer | BufferError::NotMappable { .. } => libc::EOPNOTSUPP,
            BufferError::Outside { .. } => libc::EINVAL,
            BufferError::ReadOnly { .. } => libc::EACCES,
            BufferError::NoRoom { .. } => libc::ENOMEM,
            BufferError::System(error) => error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// A descriptor that is one of a buffer.
pub(super) struct Buffer {
    pub(super) fd: OwnedFd,
    /// Device and inode of the file system: the same for all descriptors of one buffer.
    pub(super) object: (u64, u64),
    /// Bytes. Those of an object in memory may become fewer at any time.
    pub(super) size: u64,
    pub(super) writable: bool,
    pub(super) exporter: Arc<str>,
    is_dma_buf: bool,
}

impl Buffer {
    /// Looks at a descriptor.
    ///
    /// # Errors
    /// [`BufferError::NotABuffer`], [`BufferError::System`].
    pub(super) fn new(fd: OwnedFd) -> Result<Buffer, BufferError> {
        let kind = fstatfs(&fd).map_err(io::Error::from)?.filesystem_type();
        let is_dma_buf = kind == DMA_BUF_MAGIC;
        let stat = fstat(&fd).map_err(io::Error::from)?;
        let exporter = match kind {
            DMA_BUF_MAGIC => exporter(&fd)?,
            // Nodes of devices lie in such file systems too, and anything may be behind them.
            TMPFS_MAGIC | HUGETLBFS_MAGIC if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG => {
                "memfd".into()
            }
            _ => return Err(BufferError::NotABuffer),
        };
        let flags = fcntl(&fd, FcntlArg::F_GETFL).map_err(io::Error::from)?;
        let writable = OFlag::from_bits_truncate(flags) & OFlag::O_ACCMODE == OFlag::O_RDWR;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        Ok(Buffer { fd, object: (stat.st_dev, stat.st_ino), size, writable, exporter, is_dma_buf })
    }

    /// What becomes of it once it is mapped.
    pub(super) fn exported(self) -> Exported {
        let Buffer { fd, exporter, is_dma_buf, .. } = self;
        Exported { exporter, driver: is_dma_buf.then_some(Driver(fd)) }
    }
}

/// Who has exported the memory of a mapping.
#[derive(Debug)]
pub(super) struct Exported {
    /// Name of the driver, as the kernel tells it; `memfd` for one that stands in.
    pub(super) exporter: Arc<str>,
    /// None for one that stands in, which need not hear of accesses.
    pub(super) driver: Option<Driver>,
}

/// The driver behind a dma-buf.
#[derive(Debug)]
pub(super) struct Driver(OwnedFd);

/// When a driver is told of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// Before the first byte.
    Start = 0,
    /// After the last.
    End = 1 << 2,
}

impl Driver {
    /// Tells it of an access by the processor. While the device is at work in the buffer this is left out: it would wait for that,
    /// and on processors like x86, which see what devices write, nothing else is lost.
    ///
    /// # Errors
    /// The driver's: the device is gone.
    pub(super) fn tell(&self, moment: Moment, writes: bool) -> nix::Result<()> {
        const READ: u64 = 1;
        const WRITE: u64 = 2;
        let all_done = if writes { PollFlags::POLLOUT } else { PollFlags::POLLIN };
        if !is_ready(self.0.as_fd(), all_done) {
            return Ok(());
        }
        let flags = moment as u64 | if writes { WRITE } else { READ };
        loop {
            // SAFETY: the kernel reads `flags`, as long as a `struct dma_buf_sync`, which is one such word.
            match unsafe { dma_buf_sync(self.0.as_raw_fd(), &raw const flags) } {
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                told => return told.map(drop),
            }
        }
    }
}

fn is_ready(fd: BorrowedFd<'_>, events: PollFlags) -> bool {
    let mut asked = [PollFd::new(fd, events)];
    poll(&mut asked, PollTimeout::ZERO).is_ok() && asked[0].revents().is_some_and(|ready| ready.contains(events))
}

/// The driver's name, from what the kernel tells about the descriptor.
fn exporter(fd: &OwnedFd) -> io::Result<Arc<str>> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
    exporter_of(&text).ok_or_else(|| io::Error::other("the kernel does not say who has exported a dma-buf"))
}

fn exporter_of(text: &str) -> Option<Arc<str>> {
    Some(text.lines().find_map(|line| line.strip_prefix("exp_name:"))?.trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_exporter_counts() {
        // The last line is a name that any program may have given the buffer.
        let text = "pos:\t0\nflags:\t02\nino:\t5\nsize:\t4096\ncount:\t2\nexp_name:\tamdgpu\nname:\tx\nexp_name:\tother\n";
        assert_eq!(exporter_of(text).as_deref(), Some("amdgpu"));
        assert_eq!(exporter_of("pos:\t0\n"), None);
    }

    #[test]
    fn what_is_no_buffer_is_refused() {
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let proc = std::fs::File::open("/proc/self/maps").unwrap();
        for fd in [OwnedFd::from(socket), null.into(), proc.into()] {
            assert!(matches!(Buffer::new(fd), Err(BufferError::NotABuffer)));
        }
    }
}
