//! The address space of one client process, read and written through the kernel.
//!
//! Two ways. `process_vm_readv` and its sibling are the faster ones, but name their target by process id: after an exec they
//! reach another program. So a daemon that may trace anyone uses them only on processes that cannot gain rights by exec (else a
//! client could point us at a set-user-id program); a daemon without that right is checked by the kernel at every call. The
//! other way is a descriptor of `/proc/PID/mem`, which stays with the address space it was opened on. The one that the client
//! passes proves by itself that the client may reach that memory.

use super::mapping::MappingCache;
use super::maps::Maps;
use super::peer::{Peer, Status};
use libc::iovec;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI64, Ordering};

/// A client process whose memory can be reached.
#[derive(Debug)]
pub struct Process {
    peer: Peer,
    way: Way,
    maps: Option<Maps>,
    pub(super) mappings: MappingCache,
    /// Coarse time at which the process was last seen alive, in nanoseconds.
    seen_alive: AtomicI64,
}

#[derive(Debug)]
enum Way {
    ProcessVm,
    Mem(OwnedFd),
}

/// The memory of a client cannot be reached.
#[derive(Debug, thiserror::Error)]
#[error(
    "Cannot reach the memory of process {pid}: process_vm_readv: {process_vm}; /proc/{pid}/mem: {mem}. Run the program and the \
     daemon as the same user, or the daemon as root; a program that changed its user or has file capabilities must run before \
     that as it will be, and kernel.yama.ptrace_scope must be below 2"
)]
pub struct ProcessError {
    pid: i32,
    process_vm: String,
    mem: String,
}

impl ProcessError {
    /// For the verbs caller.
    pub fn errno(&self) -> i32 {
        libc::EACCES
    }
}

/// A transfer stopped after this many bytes: what follows is not mapped, or the process is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stopped(pub(super) usize);

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the process to us.
    Read,
    /// From us to the process.
    Write,
}

impl Process {
    /// Finds a way to the memory of `peer`. `mem` is the `/proc/self/mem` that the client passed.
    ///
    /// # Errors
    /// Neither way is permitted; the text says what to do.
    pub fn open(peer: &Peer, mem: Option<OwnedFd>) -> Result<Process, ProcessError> {
        let pid = peer.pid;
        let refused = |process_vm: String, mem: String| ProcessError { pid, process_vm, mem };
        let way = match process_vm_permitted(peer) {
            Ok(()) => Way::ProcessVm,
            Err(process_vm) => match mem {
                Some(fd) => verify_mem(fd).map(Way::Mem),
                None => open_mem(peer).map(Way::Mem),
            }
            .map_err(|mem| refused(process_vm, mem.to_string()))?,
        };
        Process::new(peer, way).map_err(|error| refused(error.to_string(), error.to_string()))
    }

    fn new(peer: &Peer, way: Way) -> io::Result<Process> {
        let peer = peer.try_clone()?;
        // Without it (another user's process) registrations are checked by trying only.
        let maps = Maps::open(peer.pid).ok();
        Ok(Process { peer, way, maps, mappings: MappingCache::default(), seen_alive: AtomicI64::new(0) })
    }

    /// The second way even where the first is permitted.
    #[cfg(test)]
    pub(super) fn by_mem(peer: &Peer, mem: OwnedFd) -> Result<Process, ProcessError> {
        let refused = |mem: io::Error| ProcessError { pid: peer.pid, process_vm: "not tried".into(), mem: mem.to_string() };
        verify_mem(mem).and_then(|fd| Process::new(peer, Way::Mem(fd))).map_err(refused)
    }

    /// Process id in our namespace.
    pub fn pid(&self) -> i32 {
        self.peer.pid
    }

    pub(super) fn maps(&self) -> Option<&Maps> {
        self.maps.as_ref()
    }

    /// Moves bytes between `local` (ours) and `remote` (the process's), both taken as concatenations of equal length, in
    /// ascending order.
    ///
    /// # Errors
    /// How many bytes were moved before the first that could not.
    ///
    /// # Safety
    /// Every local range may be read or written (by `direction`) by the kernel: it is ours, or reserved for client memory.
    pub(super) unsafe fn transfer(&self, direction: Direction, local: &[iovec], remote: &[iovec]) -> Result<(), Stopped> {
        let wanted: usize = remote.iter().map(|range| range.iov_len).sum();
        debug_assert_eq!(wanted, local.iter().map(|range| range.iov_len).sum::<usize>());
        let done = match &self.way {
            Way::ProcessVm if !self.is_alive() => 0,
            // SAFETY: the caller's promise for the local side; the kernel checks the remote one.
            Way::ProcessVm => unsafe {
                let call = if direction == Direction::Read { libc::process_vm_readv } else { libc::process_vm_writev };
                let (locals, remotes) = (local.len() as libc::c_ulong, remote.len() as libc::c_ulong);
                usize::try_from(call(self.peer.pid, local.as_ptr(), locals, remote.as_ptr(), remotes, 0)).unwrap_or(0)
            },
            // SAFETY: as above.
            Way::Mem(fd) => unsafe { transfer_mem(fd, direction, local, remote) },
        };
        if done == wanted { Ok(()) } else { Err(Stopped(done)) }
    }

    /// Whether the process id still means our process. Looks once per tick of the coarse clock (a few milliseconds): an id comes
    /// round again only after tens of thousands of others.
    fn is_alive(&self) -> bool {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `now` is writable.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
        let now = now.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec);
        if self.seen_alive.load(Ordering::Relaxed) == now {
            return true;
        }
        let Some(pidfd) = self.peer.pidfd() else { return false };
        let mut ended = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, writable.
        let alive = unsafe { libc::poll(&raw mut ended, 1, 0) } == 0;
        if alive {
            self.seen_alive.store(now, Ordering::Relaxed);
        }
        alive
    }
}

/// Tries address 0: nothing is mapped there, so a permitted call fails with EFAULT and any other with its reason.
fn process_vm_permitted(peer: &Peer) -> Result<(), String> {
    if peer.pid == 0 {
        return Err("the process is not visible in this process id namespace".into());
    }
    let (ours, theirs) = Status::read(std::process::id() as i32)
        .and_then(|ours| Ok((ours, Status::read(peer.pid)?)))
        .map_err(|error| error.to_string())?;
    if ours.may_trace_anyone() && (!theirs.cannot_gain_rights() || theirs.uids != [peer.uid; 4]) {
        return Err("not used on a program that could gain rights by exec".into());
    }
    let mut byte = 0u8;
    let local = iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = iovec { iov_base: core::ptr::null_mut(), iov_len: 1 };
    // SAFETY: the local range is `byte`.
    let rc = unsafe { libc::process_vm_readv(peer.pid, &raw const local, 1, &raw const remote, 1, 0) };
    let error = io::Error::last_os_error();
    if rc >= 0 || error.raw_os_error() == Some(libc::EFAULT) { Ok(()) } else { Err(error.to_string()) }
}

/// Accepts only what reads and writes an address space: any other file could block us for ever.
fn verify_mem(fd: OwnedFd) -> io::Result<OwnedFd> {
    let refused = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why.to_owned()));
    if fstatfs(&fd)?.filesystem_type() != PROC_SUPER_MAGIC {
        return refused("the descriptor that the client passed is not of a proc file");
    }
    let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
    if path.file_name().is_none_or(|name| name != "mem") {
        return refused("the descriptor that the client passed is not of /proc/PID/mem");
    }
    let flags = OFlag::from_bits_truncate(fcntl(&fd, FcntlArg::F_GETFL)?);
    if flags & OFlag::O_ACCMODE != OFlag::O_RDWR {
        return refused("the descriptor that the client passed is not open for reading and writing");
    }
    Ok(fd)
}

/// Opens it ourselves. The user is looked at afterwards: if the process became a more powerful program before the open, it shows;
/// if after, the descriptor still means the old address space.
fn open_mem(peer: &Peer) -> io::Result<OwnedFd> {
    let file = OpenOptions::new().read(true).write(true).open(format!("/proc/{}/mem", peer.pid))?;
    if Status::read(peer.pid)?.uids != [peer.uid; 4] {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the process runs as several users"));
    }
    Ok(file.into())
}

/// One call per overlap of a local with a remote range; returns the bytes moved.
///
/// # Safety
/// As [`Process::transfer`].
unsafe fn transfer_mem(fd: &OwnedFd, direction: Direction, local: &[iovec], remote: &[iovec]) -> usize {
    let mut done = 0;
    let mut locals = local.iter().copied();
    let mut here = iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
    for range in remote {
        let (mut addr, mut left) = (range.iov_base.addr() as u64, range.iov_len);
        while left > 0 {
            if here.iov_len == 0 {
                let Some(next) = locals.next() else { return done };
                here = next;
                continue;
            }
            let len = left.min(here.iov_len);
            let Ok(offset) = i64::try_from(addr) else { return done };
            // SAFETY: `here` is within a local range.
            let moved = unsafe {
                match direction {
                    Direction::Read => libc::pread(fd.as_raw_fd(), here.iov_base, len, offset),
                    Direction::Write => libc::pwrite(fd.as_raw_fd(), here.iov_base, len, offset),
                }
            };
            let Some(moved) = usize::try_from(moved).ok().filter(|&moved| moved > 0) else { return done };
            here.iov_base = here.iov_base.wrapping_byte_add(moved);
            here.iov_len -= moved;
            addr += moved as u64;
            left -= moved;
            done += moved;
        }
    }
    done
}
