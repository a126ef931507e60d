//! The control socket: one request and its answer at a time, with descriptors beside them.
//!
//! Owns the socket and knows when the daemon is gone. Never retries: a call that fails because of the daemon says so at once.

use nix::cmsg_space;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, connect, getsockopt, recvmsg,
    sendmsg, socket, sockopt::PeerCredentials,
};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use vdev_abi::control::{self, ABI_VERSION, DeviceInfo, MAX_FDS, MAX_MESSAGE, Reply, Request};

/// A number for `errno`; what every verb fails with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// The daemon is gone.
pub const GONE: Errno = Errno(libc::ENODEV);

/// Longest socket path: what `struct sockaddr_un` holds besides the final zero.
const MAX_PATH: usize = 107;

/// A connection to the daemon, for one opened device.
pub struct Connection {
    socket: Mutex<OwnedFd>,
    /// The same descriptor, for looking at its state without waiting for a call in progress.
    raw: RawFd,
    gone: AtomicBool,
}

/// What the daemon sends with the device.
pub struct Welcome {
    /// The device.
    pub info: DeviceInfo,
    /// Context page, doorbell eventfd, asynchronous event pipe.
    pub fds: [OwnedFd; 3],
}

/// Why there is no connection: for the program, and for people.
pub struct ConnectError {
    /// For `errno`.
    pub errno: Errno,
    /// One line: what failed, and what to do.
    pub message: String,
}

impl Connection {
    /// Connects to a device socket and says hello.
    ///
    /// # Errors
    /// [`ConnectError`], with the cause in words.
    pub fn open(path: &str) -> Result<(Connection, Welcome), ConnectError> {
        let fail = |errno: i32, message: String| ConnectError { errno: Errno(errno), message };
        if path.len() > MAX_PATH {
            let message = format!(
                "the socket path {path} is {} bytes long and {MAX_PATH} is the most; use a shorter directory",
                path.len()
            );
            return Err(fail(libc::ENAMETOOLONG, message));
        }
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)
            .map_err(|e| fail(e as i32, format!("no socket: {e}")))?;
        let address = UnixAddr::new(path).map_err(|e| fail(e as i32, format!("bad socket path {path}: {e}")))?;
        connect(socket.as_raw_fd(), &address).map_err(|e| fail(e as i32, connect_advice(path, e)))?;
        let connection = Connection { raw: socket.as_raw_fd(), socket: Mutex::new(socket), gone: AtomicBool::new(false) };
        connection.let_daemon_reach_us();
        let hello = Request::Hello { abi: ABI_VERSION, program: program_name() };
        let memory = std::fs::OpenOptions::new().read(true).write(true).open("/proc/self/mem").ok();
        let fds: Vec<RawFd> = memory.iter().map(AsRawFd::as_raw_fd).collect();
        match connection.exchange(&hello, &fds) {
            Ok((Ok(Reply::Device(info)), fds)) => match <[OwnedFd; 3]>::try_from(fds) {
                Ok(fds) => Ok((connection, Welcome { info, fds })),
                Err(fds) => Err(fail(libc::EPROTO, format!("{path}: the daemon sent {} descriptors instead of 3", fds.len()))),
            },
            Ok((Err(refusal), _)) => Err(fail(refusal.errno, format!("{path}: {}", refusal.message))),
            Ok((Ok(other), _)) => {
                Err(fail(libc::EPROTO, format!("{path}: the daemon answered {other:?} to hello; are the versions equal?")))
            }
            Err(Errno(errno)) => {
                Err(fail(errno, format!("{path}: the daemon closed the connection during hello; its log says why")))
            }
        }
    }

    /// Allows the daemon to use `process_vm_readv` on us where the Yama module would not.
    fn let_daemon_reach_us(&self) {
        // SAFETY: the descriptor is open for as long as `self`.
        let socket = unsafe { BorrowedFd::borrow_raw(self.raw) };
        if let Ok(peer) = getsockopt(&socket, PeerCredentials) {
            // SAFETY: a plain system call; where it is not known it fails, and nothing depends on it.
            unsafe { libc::prctl(libc::PR_SET_PTRACER, peer.pid() as libc::c_ulong, 0, 0, 0) };
        }
    }

    /// The socket, for programs that look at the descriptor of a context's commands. What they may do with it is to duplicate it.
    pub fn as_raw(&self) -> RawFd {
        self.raw
    }

    /// Whether the daemon is known to be gone.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Looks whether the daemon is gone: a system call.
    pub fn look(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.raw, events: 0, revents: 0 };
        // SAFETY: one valid entry, no waiting.
        let ready = unsafe { libc::poll(&mut poll, 1, 0) };
        if ready == 1 && poll.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0 {
            self.gone.store(true, Ordering::Relaxed);
        }
        self.is_gone()
    }

    /// Ends the connection; the daemon ends all that was made over it.
    pub fn hang_up(&self) {
        self.gone.store(true, Ordering::Relaxed);
        // SAFETY: a plain system call on our descriptor.
        unsafe { libc::shutdown(self.raw, libc::SHUT_RDWR) };
    }

    /// One call: the daemon's answer, or why there is none.
    ///
    /// # Errors
    /// The daemon's error number, or [`GONE`].
    pub fn call(&self, request: &Request, fds: &[RawFd]) -> Result<(Reply, Vec<OwnedFd>), Errno> {
        match self.exchange(request, fds)? {
            (Ok(reply), fds) => Ok((reply, fds)),
            (Err(refusal), _) => {
                crate::device::log(format_args!("{}", refusal.message));
                Err(Errno(if refusal.errno > 0 { refusal.errno } else { libc::EIO }))
            }
        }
    }

    /// A call that is answered by [`Reply::Done`].
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn call_done(&self, request: &Request) -> Result<(), Errno> {
        match self.call(request, &[])? {
            (Reply::Done, _) => Ok(()),
            (other, _) => Err(unexpected(request, &other)),
        }
    }

    #[allow(clippy::type_complexity)]
    fn exchange(&self, request: &Request, fds: &[RawFd]) -> Result<(Result<Reply, control::Refusal>, Vec<OwnedFd>), Errno> {
        let bytes = control::encode_request(request).map_err(|_| Errno(libc::E2BIG))?;
        let socket = self.socket.lock().unwrap_or_else(|e| e.into_inner());
        if self.is_gone() {
            return Err(GONE);
        }
        let result = send(socket.as_raw_fd(), &bytes, fds).and_then(|()| receive(socket.as_raw_fd()));
        match result {
            Ok((answer, fds)) => match control::decode_answer(&answer) {
                Ok(answer) => Ok((answer, fds)),
                Err(error) => {
                    crate::device::complain(format_args!("an answer of the daemon is no message: {error}"));
                    self.gone.store(true, Ordering::Relaxed);
                    Err(Errno(libc::EPROTO))
                }
            },
            Err(_) => {
                self.gone.store(true, Ordering::Relaxed);
                Err(GONE)
            }
        }
    }
}

/// The error for an answer of the wrong kind.
pub fn unexpected(request: &Request, reply: &Reply) -> Errno {
    crate::device::complain(format_args!("the daemon answered {reply:?} to {request:?}"));
    Errno(libc::EPROTO)
}

fn send(socket: RawFd, bytes: &[u8], fds: &[RawFd]) -> nix::Result<()> {
    let rights = [ControlMessage::ScmRights(fds)];
    let control = if fds.is_empty() { &rights[..0] } else { &rights[..] };
    loop {
        match sendmsg::<()>(socket, &[IoSlice::new(bytes)], control, MsgFlags::MSG_NOSIGNAL, None) {
            Ok(_) => return Ok(()),
            Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

fn receive(socket: RawFd) -> nix::Result<(Vec<u8>, Vec<OwnedFd>)> {
    // One byte more than any message, so that a longer one is noticed.
    let mut bytes = vec![0; MAX_MESSAGE + 1];
    let mut space = cmsg_space!([RawFd; MAX_FDS]);
    loop {
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let message = match recvmsg::<()>(socket, &mut slices, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC) {
            Ok(message) => message,
            Err(nix::Error::EINTR) => continue,
            Err(error) => return Err(error),
        };
        let mut fds = Vec::new();
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(received) = control {
                // SAFETY: the kernel has just made these descriptors for us.
                fds.extend(received.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        let len = message.bytes;
        if len == 0 {
            return Err(nix::Error::ECONNRESET);
        }
        bytes.truncate(len);
        return Ok((bytes, fds));
    }
}

fn connect_advice(path: &str, error: nix::Error) -> String {
    let advice = match error {
        nix::Error::ENOENT => "there is no such device; `vrdma dev list` shows those that exist",
        nix::Error::ECONNREFUSED => "no daemon serves it; start one with `vrdma daemon`",
        nix::Error::EACCES | nix::Error::EPERM => "no permission; the device's socket decides who may use it",
        _ => "see `vrdma dev list`",
    };
    format!("{path}: {error}: {advice}")
}

fn program_name() -> String {
    let mut name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    name.truncate(name.trim_end().len());
    name
}
