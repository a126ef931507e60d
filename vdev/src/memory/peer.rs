//! Who is at the other end of a socket, as the kernel vouches for it, and what that says about reaching its memory.

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `SO_PEERPIDFD` (Linux 6.5).
const SO_PEERPIDFD: libc::c_int = 77;
/// Bit of `CAP_SYS_PTRACE` in capability sets.
const CAP_SYS_PTRACE: u64 = 1 << 19;

/// The process that connected. Taken when the connection is accepted: a process id alone may later mean another process, the
/// descriptor never does.
#[derive(Debug)]
pub struct Peer {
    /// Process id in our namespace; 0 when it is not visible from here.
    pub pid: i32,
    /// Effective user when it connected.
    pub uid: u32,
    /// Effective group when it connected.
    pub gid: u32,
    pidfd: Option<OwnedFd>,
}

impl Peer {
    /// The peer of a connected Unix socket.
    ///
    /// # Errors
    /// The system's; `ESRCH` if the process has already ended.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Peer> {
        let credentials = getsockopt(&socket, PeerCredentials)?;
        let (pid, uid, gid) = (credentials.pid(), credentials.uid(), credentials.gid());
        let pidfd = if pid == 0 { None } else { Some(pidfd_of(socket).or_else(|_| pidfd_open(pid))?) };
        Ok(Peer { pid, uid, gid, pidfd })
    }

    /// A process of which only the id is known: for tests and for children of our own.
    ///
    /// # Errors
    /// The system's, `ESRCH` for one.
    pub fn by_pid(pid: i32) -> io::Result<Peer> {
        let pidfd = Some(pidfd_open(pid)?);
        let uid = Status::read(pid)?.uids[1];
        Ok(Peer { pid, uid, gid: nix::unistd::getegid().as_raw(), pidfd })
    }

    /// Becomes readable when the process ends. `None` when the process is not visible from here.
    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn try_clone(&self) -> io::Result<Peer> {
        let pidfd = self.pidfd.as_ref().map(OwnedFd::try_clone).transpose()?;
        Ok(Peer { pidfd, ..*self })
    }
}

fn pidfd_of(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: value and length are writable and belong together.
    let rc =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut fd).cast(), &raw mut len) };
    if rc != 0 || fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The lines of `/proc/PID/status` that matter here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    /// Real, effective, saved, file system.
    pub(super) uids: [u32; 4],
    pub(super) no_new_privs: bool,
    effective_capabilities: u64,
}

impl Status {
    /// # Errors
    /// The system's; `InvalidData` if the text has another form than expected.
    pub(super) fn read(pid: i32) -> io::Result<Status> {
        Status::parse(&std::fs::read_to_string(format!("/proc/{pid}/status"))?)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/PID/status has an unknown form"))
    }

    fn parse(text: &str) -> Option<Status> {
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let mut uids = value("Uid")?.split_whitespace().map(|uid| uid.parse().ok());
        Some(Status {
            uids: [uids.next()??, uids.next()??, uids.next()??, uids.next()??],
            no_new_privs: value("NoNewPrivs").is_some_and(|v| v.trim() == "1"),
            effective_capabilities: u64::from_str_radix(value("CapEff")?.trim(), 16).ok()?,
        })
    }

    /// Whether the kernel lets this process reach into every other one.
    pub(super) fn may_trace_anyone(&self) -> bool {
        self.effective_capabilities & CAP_SYS_PTRACE != 0
    }

    /// Whether a program that this process turns into by exec can never have more rights than the process has now.
    pub(super) fn cannot_gain_rights(&self) -> bool {
        self.no_new_privs || self.uids == [0; 4]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_lines() {
        let text = "Name:\tx\nUid:\t1\t2\t3\t4\nCapEff:\t0000000000080000\nNoNewPrivs:\t1\n";
        let status = Status::parse(text).unwrap();
        assert_eq!(status.uids, [1, 2, 3, 4]);
        assert!(status.no_new_privs && status.may_trace_anyone() && status.cannot_gain_rights());
        let plain = Status::parse("Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n").unwrap();
        assert!(!plain.may_trace_anyone() && !plain.cannot_gain_rights());
        assert_eq!(Status::parse("Uid:\t1\nCapEff:\t0\n"), None);
    }

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let peer = Peer::of(ours.as_fd()).unwrap();
        assert_eq!(peer.pid, std::process::id() as i32);
        assert_eq!(peer.uid, nix::unistd::geteuid().as_raw());
        assert!(peer.pidfd().is_some());
    }
}
