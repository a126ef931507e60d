//! Messages with descriptors over `SOCK_SEQPACKET` Unix sockets: listen, accept, receive, send.
//!
//! Never blocks and never allocates for what a peer claims: the caller brings the buffer, descriptors are counted by the size
//! of the control buffer, and whatever did not fit is reported so that the caller ends the connection.
//!
//! nix's `recvmsg` gives up the descriptors of a message whose control data was cut, which would leak them; hence own calls.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use nix::sys::socket::SockType;
use vdev_abi::control::MAX_FDS;

/// Longest path of a Unix socket: `sun_path` without its final zero.
pub const MAX_SOCKET_PATH: usize = 107;

/// Connections that may wait to be accepted.
const BACKLOG: libc::c_int = 64;

/// Room for the descriptors of one message, aligned as `cmsghdr` wants.
#[repr(C, align(8))]
struct ControlBuffer([MaybeUninit<u8>; CONTROL_BYTES]);

const FD_BYTES: usize = MAX_FDS * size_of::<RawFd>();
// SAFETY: CMSG_SPACE only computes a size.
const CONTROL_BYTES: usize = unsafe { libc::CMSG_SPACE(FD_BYTES as u32) } as usize;

/// What one receive gave.
pub struct Received {
    /// Bytes in the buffer. 0 is the end of the connection (or an empty message, which no peer has reason to send).
    pub len: usize,
    /// Descriptors, in the order attached, close-on-exec.
    pub fds: Vec<OwnedFd>,
    /// The message was longer than the buffer.
    pub bytes_cut: bool,
    /// The message carried more descriptors than [`MAX_FDS`].
    pub fds_cut: bool,
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn address(path: &Path) -> io::Result<libc::sockaddr_un> {
    use std::os::unix::ffi::OsStrExt;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() > MAX_SOCKET_PATH || bytes.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: all-zero is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok(address)
}

/// A socket bound to `path` that does not listen yet: until [`listen`] nobody can connect, so that owner and mode can be set.
///
/// # Errors
/// As `socket(2)` and `bind(2)`; an over-long path is `InvalidInput`.
pub fn bind(path: &Path, kind: SockType) -> io::Result<OwnedFd> {
    let address = address(path)?;
    let kind = kind as libc::c_int | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is passed; the result is checked and then owned once.
    let fd = unsafe { OwnedFd::from_raw_fd(check(libc::socket(libc::AF_UNIX, kind, 0))?) };
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: `address` is an initialised sockaddr_un of `length` bytes.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) })?;
    Ok(fd)
}

/// Lets peers connect.
///
/// # Errors
/// As `listen(2)`.
pub fn listen(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain call on an open descriptor.
    check(unsafe { libc::listen(fd.as_raw_fd(), BACKLOG) }).map(drop)
}

/// Takes one waiting connection; `WouldBlock` when there is none.
///
/// # Errors
/// As `accept4(2)`.
pub fn accept(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: null address pointers ask for no address; the result is checked and owned once.
    unsafe {
        Ok(OwnedFd::from_raw_fd(check(libc::accept4(fd.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags))?))
    }
}

/// Receives one message into `buf`; `WouldBlock` when there is none.
///
/// # Errors
/// As `recvmsg(2)`.
pub fn receive(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<Received> {
    let mut control = ControlBuffer([MaybeUninit::uninit(); CONTROL_BYTES]);
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header names one buffer and one control buffer, both live and of the stated sizes.
    let len = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags) };
    if len < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut fds = Vec::new();
    // SAFETY: the kernel filled the control buffer and set msg_controllen; the CMSG macros walk within it. Each descriptor is
    // new to this process and owned once. Data may be unaligned, hence read_unaligned.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header);
                let bytes = (*header).cmsg_len - (data.offset_from(header.cast::<u8>()) as usize);
                for index in 0..bytes / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(data.cast::<RawFd>().add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    Ok(Received {
        len: len as usize,
        fds,
        bytes_cut: message.msg_flags & libc::MSG_TRUNC != 0,
        fds_cut: message.msg_flags & libc::MSG_CTRUNC != 0,
    })
}

/// Sends one message with descriptors; `WouldBlock` when the peer does not read.
///
/// # Errors
/// As `sendmsg(2)`; no signal is raised for a closed connection.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    assert!(fds.len() <= MAX_FDS, "a message carries at most {MAX_FDS} descriptors");
    let mut control = ControlBuffer([MaybeUninit::zeroed(); CONTROL_BYTES]);
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    if !fds.is_empty() {
        let data_bytes = std::mem::size_of_val(fds) as u32;
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: the macros only compute sizes and addresses within the control buffer, which holds MAX_FDS descriptors.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(data_bytes) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(data_bytes) as usize;
            for (index, fd) in fds.iter().enumerate() {
                libc::CMSG_DATA(header).cast::<RawFd>().add(index).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    // SAFETY: the header names one buffer, which is only read, and the control buffer.
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use std::os::fd::AsFd;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap()
    }

    #[test]
    fn message_and_descriptors_arrive_in_order() {
        let (a, b) = pair();
        let (r, w) = nix::unistd::pipe().unwrap();
        send(a.as_fd(), b"hello", &[r.as_fd(), w.as_fd()]).unwrap();
        let mut buf = [0; 16];
        let got = receive(b.as_fd(), &mut buf).unwrap();
        assert_eq!(&buf[..got.len], b"hello");
        assert!(!got.bytes_cut && !got.fds_cut);
        nix::unistd::write(&got.fds[1], b"x").unwrap();
        assert_eq!(nix::unistd::read(&got.fds[0], &mut buf).unwrap(), 1);
    }

    #[test]
    fn long_message_is_reported_as_cut() {
        let (a, b) = pair();
        send(a.as_fd(), &[7; 40], &[]).unwrap();
        let got = receive(b.as_fd(), &mut [0; 16]).unwrap();
        assert!(got.bytes_cut);
        assert_eq!(got.len, 16);
    }

    #[test]
    fn surplus_descriptors_are_reported_and_closed() {
        let (a, b) = pair();
        let (r, w) = nix::unistd::pipe().unwrap();
        // More than MAX_FDS in one message, which `send` would refuse: through nix.
        let raw = vec![w.as_raw_fd(); MAX_FDS + 5];
        let rights = [nix::sys::socket::ControlMessage::ScmRights(&raw)];
        let iov = [io::IoSlice::new(b"x")];
        nix::sys::socket::sendmsg::<()>(a.as_raw_fd(), &iov, &rights, nix::sys::socket::MsgFlags::empty(), None).unwrap();
        let got = receive(b.as_fd(), &mut [0; 16]).unwrap();
        assert!(got.fds_cut);
        drop((got, w));
        // Every copy of the write end is closed, so the read end is at its end.
        assert_eq!(nix::unistd::read(&r, &mut [0]).unwrap(), 0);
    }

    #[test]
    fn closed_peer_and_full_buffer_are_errors() {
        let (a, b) = pair();
        loop {
            match send(a.as_fd(), &[0; 4096], &[]) {
                Ok(()) => continue,
                Err(error) => break assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        drop(b);
        // Unread messages make the first error a reset.
        assert_eq!(send(a.as_fd(), b"x", &[]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(send(a.as_fd(), b"x", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
