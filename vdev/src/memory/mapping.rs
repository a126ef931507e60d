//! Shared objects of clients, mapped into the daemon: the whole mapping of the client at once, so that any number of
//! registrations within it share one of ours; and buffers of devices ([`super::dmabuf`]), each as a whole for the same reason.
//!
//! Of what clients have mapped only objects that live in memory (tmpfs, which includes memfds, System V and anonymous shared memory;
//! hugetlbfs): a page of any other file system may take for ever to come.

use super::dmabuf::{Buffer, BufferError, Driver, Exported};
use super::maps::Vma;
use core::ptr::{NonNull, null_mut};
use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, Mode, fstat, major, minor};
use nix::sys::statfs::{FsType, HUGETLBFS_MAGIC, TMPFS_MAGIC, fstatfs};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Mappings of ours per client; what goes beyond is copied through the kernel.
const MAX_MAPPINGS: usize = 1024;
/// Bytes of address space of ours per client.
const MAX_BYTES: usize = 1 << 42;

/// One mapped range of one shared object. The client may shrink the object at any time: accesses go through
/// [`vdev_abi::copy::Copier`] or the kernel only.
#[derive(Debug)]
pub struct SharedMapping {
    base: NonNull<u8>,
    len: usize,
    /// Of a device's memory.
    exported: Option<Exported>,
}

// SAFETY: a range of addresses, not tied to a thread; nothing is accessed through a reference.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    fn map(fd: BorrowedFd<'_>, key: &Key) -> io::Result<SharedMapping> {
        let rights = if key.writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let offset = libc::off_t::try_from(key.offset).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe { libc::mmap(null_mut(), key.len, rights, flags, fd.as_raw_fd(), offset) };
        match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast::<libc::c_void>() != libc::MAP_FAILED => {
                Ok(SharedMapping { base, len: key.len, exported: None })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// First byte.
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes mapped, 1 or more.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Who has exported it, if it is a device's memory, or stands in for that.
    pub fn exporter(&self) -> Option<&Arc<str>> {
        self.exported.as_ref().map(|exported| &exported.exporter)
    }

    /// Who has to hear of every access.
    pub(super) fn driver(&self) -> Option<&Driver> {
        self.exported.as_ref()?.driver.as_ref()
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `map` mapped; no reference to it exists.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// What makes two mappings the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    dev: (u32, u32),
    inode: u64,
    offset: u64,
    len: usize,
    writable: bool,
    /// A device's buffer rather than what the process has mapped.
    is_buffer: bool,
}

/// The mappings made for one process, as long as registrations hold them.
#[derive(Debug, Default)]
pub(super) struct MappingCache {
    live: Mutex<HashMap<Key, Weak<SharedMapping>>>,
    /// Set once the kernel has refused `/proc/PID/map_files`: it will go on refusing.
    no_map_files: AtomicBool,
}

impl MappingCache {
    /// Our mapping of the object behind `vma`, a mapping of process `pid`. `passed` are descriptors that may be of that object.
    /// `None` when the object cannot or should not be mapped.
    pub(super) fn mapping(&self, pid: i32, vma: &Vma, writable: bool, passed: &[BorrowedFd<'_>]) -> Option<Arc<SharedMapping>> {
        if !vma.shared || vma.inode == 0 {
            return None;
        }
        let len = usize::try_from(vma.end - vma.start).ok()?;
        // As the client has it, whatever this registration needs: then the next one finds it.
        let key = Key { dev: vma.dev, inode: vma.inode, offset: vma.offset, len, writable: vma.writable, is_buffer: false };
        let read_only = Key { writable: false, ..key };
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let found = |key: &Key| live.get(key).and_then(Weak::upgrade);
        if let Some(mapping) = found(&key).or_else(|| if writable { None } else { found(&read_only) }) {
            return Some(mapping);
        }
        make_room(&mut live, len).ok()?;
        let mut make = |key: Key| {
            let ours = self.open_map_file(pid, vma, key.writable);
            let fd =
                ours.as_ref().map(AsFd::as_fd).into_iter().chain(passed.iter().copied()).find(|fd| is_object(*fd, &key))?;
            let mapping = Arc::new(SharedMapping::map(fd, &key).ok()?);
            live.insert(key, Arc::downgrade(&mapping));
            Some(mapping)
        };
        // A sealed object cannot be mapped for writing once more, and need not be for a registration that only reads.
        make(key).or_else(|| if writable || !key.writable { None } else { make(read_only) })
    }

    /// Our mapping of all of a device's buffer, of which there is at least a byte. If its descriptor lets it be written to, so does the
    /// mapping, unless it is sealed and nobody `writes`.
    ///
    /// # Errors
    /// [`BufferError`].
    pub(super) fn buffer(&self, buffer: Buffer, writes: bool) -> Result<Arc<SharedMapping>, BufferError> {
        let no_room = |(buffers, bytes)| BufferError::NoRoom { buffers, bytes, wanted: buffer.size };
        let len = usize::try_from(buffer.size).unwrap_or(usize::MAX);
        let (dev, inode) = buffer.object;
        let key = Key { dev: numbers(dev), inode, offset: 0, len, writable: buffer.writable, is_buffer: true };
        let read_only = Key { writable: false, ..key };
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let found = |key: &Key| live.get(key).and_then(Weak::upgrade);
        if let Some(mapping) = found(&key).or_else(|| if writes { None } else { found(&read_only) }) {
            return Ok(mapping);
        }
        make_room(&mut live, len).map_err(no_room)?;
        let map = |key: Key| Ok((key, SharedMapping::map(buffer.fd.as_fd(), &key)?));
        let mapped = map(key).or_else(|error| if writes || !key.writable { Err(error) } else { map(read_only) });
        let (key, mut mapping) =
            mapped.map_err(|error| BufferError::NotMappable { exporter: buffer.exporter.clone(), error })?;
        mapping.exported = Some(buffer.exported());
        let mapping = Arc::new(mapping);
        live.insert(key, Arc::downgrade(&mapping));
        Ok(mapping)
    }

    /// Our mappings of a device's buffer: of one that changes its size there may be several.
    pub(super) fn of_buffer(&self, buffer: &Buffer) -> Vec<Arc<SharedMapping>> {
        let (dev, inode) = buffer.object;
        let is_it = |key: &Key| key.is_buffer && key.inode == inode && key.dev == numbers(dev);
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.iter().filter(|(key, _)| is_it(key)).filter_map(|(_, mapping)| mapping.upgrade()).collect()
    }

    /// The object through the entry that the kernel shows to privileged processes.
    fn open_map_file(&self, pid: i32, vma: &Vma, writable: bool) -> Option<OwnedFd> {
        if self.no_map_files.load(Ordering::Relaxed) {
            return None;
        }
        let access = if writable { OFlag::O_RDWR } else { OFlag::O_RDONLY };
        let path = format!("/proc/{pid}/map_files/{:x}-{:x}", vma.start, vma.end);
        match nix::fcntl::open(path.as_str(), access | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK, Mode::empty()) {
            Ok(fd) => Some(fd),
            Err(nix::errno::Errno::EPERM) => {
                self.no_map_files.store(true, Ordering::Relaxed);
                None
            }
            Err(_) => None,
        }
    }
}

/// Major and minor number of a file system, as `/proc/PID/maps` has them.
fn numbers(dev: u64) -> (u32, u32) {
    let number = |half| u32::try_from(half).unwrap_or(u32::MAX);
    (number(major(dev)), number(minor(dev)))
}

/// Whether one more mapping of so many bytes may be made; if not, how many there are, and of how many bytes.
fn make_room(live: &mut HashMap<Key, Weak<SharedMapping>>, len: usize) -> Result<(), (usize, usize)> {
    live.retain(|_, mapping| mapping.strong_count() > 0);
    let bytes: usize = live.keys().map(|key| key.len).sum();
    if live.len() >= MAX_MAPPINGS || len > MAX_BYTES.saturating_sub(bytes) { Err((live.len(), bytes)) } else { Ok(()) }
}

/// Whether `fd` is the object of `key` and one that lives in memory.
fn is_object(fd: BorrowedFd<'_>, key: &Key) -> bool {
    let same = |stat: FileStat| numbers(stat.st_dev) == key.dev && stat.st_ino == key.inode;
    let in_memory = |kind: FsType| kind == TMPFS_MAGIC || kind == HUGETLBFS_MAGIC;
    fstat(fd).is_ok_and(same) && fstatfs(fd).is_ok_and(|fs| in_memory(fs.filesystem_type()))
}
