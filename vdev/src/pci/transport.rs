//! One connection of a VMM: whole messages in, whole messages out, with their descriptors.
//!
//! Blocks in `poll` only, and always with an eye on the order to stop, so that a client that sends half a message or reads no
//! reply holds up nothing but its own device. Descriptors belong to the message whose bytes they came with.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;

use super::message::{BadHeader, HEADER, Header, MAX_BODY, MAX_FDS, header};
use crate::control::seqpacket::{self, Received};

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The client closed it, or was killed.
    #[error("the VMM has closed the connection")]
    Closed,
    /// The device goes.
    #[error("the device is removed")]
    Stopped,
    /// What came makes no sense.
    #[error(transparent)]
    Header(#[from] BadHeader),
    /// More descriptors than were announced.
    #[error("a message with more than {MAX_FDS} descriptors")]
    TooManyFds,
    /// The system's.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
}

/// A message from the client.
#[derive(Debug)]
pub struct Message {
    /// Its header.
    pub header: Header,
    /// What follows the header, as long as it says.
    pub body: Vec<u8>,
    /// What came with it.
    pub fds: Vec<OwnedFd>,
}

/// Waits until `fd` is ready for `events`, at most `timeout`; an error when `stop` is set first. False: the time is over.
///
/// # Errors
/// [`Ended::Stopped`], or the system's.
pub fn wait(fd: BorrowedFd<'_>, events: PollFlags, stop: &EventFd, timeout: PollTimeout) -> Result<bool, Ended> {
    wait_for_one([PollFd::new(fd, events), PollFd::new(stop.as_fd(), PollFlags::POLLIN)], timeout).map(|ready| ready.is_some())
}

/// Waits for one of several, of which the last is the order to stop: the first that is ready.
fn wait_for_one<const N: usize>(mut fds: [PollFd<'_>; N], timeout: PollTimeout) -> Result<Option<usize>, Ended> {
    loop {
        match poll(&mut fds, timeout) {
            Ok(0) => return Ok(None),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(io::Error::from(errno).into()),
        }
        if fds[N - 1].any() == Some(true) {
            return Err(Ended::Stopped);
        }
        if let Some(ready) = fds.iter().position(|fd| fd.any() == Some(true)) {
            return Ok(Some(ready));
        }
    }
}

/// What a wait has ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// A message begins, or the connection has ended.
    Message,
    /// The other descriptor is readable.
    Other,
    /// The time is over.
    Timeout,
}

/// A connection.
pub struct Connection<'a> {
    socket: OwnedFd,
    stop: &'a EventFd,
}

impl<'a> Connection<'a> {
    /// Over a connected, non-blocking stream socket.
    pub fn new(socket: OwnedFd, stop: &'a EventFd) -> Self {
        Connection { socket, stop }
    }

    /// Waits for the start of a message, or until `other` is readable, at most `timeout`.
    ///
    /// # Errors
    /// [`Ended`].
    pub fn wait_for_input(&self, other: BorrowedFd<'_>, timeout: PollTimeout) -> Result<Woken, Ended> {
        let fds = [self.socket.as_fd(), other, self.stop.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        Ok(match wait_for_one(fds, timeout)? {
            Some(0) => Woken::Message,
            Some(_) => Woken::Other,
            None => Woken::Timeout,
        })
    }

    /// The next message.
    ///
    /// # Errors
    /// [`Ended`]: there will be none.
    pub fn receive(&self) -> Result<Message, Ended> {
        let mut fds = Vec::new();
        let mut bytes = [0; HEADER];
        self.fill(&mut bytes, &mut fds)?;
        let header = header(&bytes)?;
        assert!(header.body <= MAX_BODY, "the parser bounds it");
        let mut body = vec![0; header.body];
        self.fill(&mut body, &mut fds)?;
        Ok(Message { header, body, fds })
    }

    fn fill(&self, mut buf: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<(), Ended> {
        while !buf.is_empty() {
            let received = match seqpacket::receive(self.socket.as_fd(), buf) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait(self.socket.as_fd(), PollFlags::POLLIN, self.stop, PollTimeout::NONE)?;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(Ended::Closed),
                Err(error) => return Err(error.into()),
            };
            let Received { len, fds: new, fds_cut, .. } = received;
            fds.extend(new);
            if fds_cut || fds.len() > MAX_FDS {
                return Err(Ended::TooManyFds);
            }
            if len == 0 {
                return Err(Ended::Closed);
            }
            buf = &mut buf[len..];
        }
        Ok(())
    }

    /// Sends a message, with a descriptor if one goes with it.
    ///
    /// # Errors
    /// [`Ended`].
    pub fn send(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<(), Ended> {
        let mut sent = 0;
        while sent < bytes.len() {
            // The descriptor goes with the first byte.
            let with = if sent == 0 { fd } else { None };
            match send_some(self.socket.as_fd(), &bytes[sent..], with) {
                Ok(len) => sent += len,
                Err(Errno::EAGAIN) => {
                    wait(self.socket.as_fd(), PollFlags::POLLOUT, self.stop, PollTimeout::NONE)?;
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EPIPE | Errno::ECONNRESET) => return Err(Ended::Closed),
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
        }
        Ok(())
    }
}

fn send_some(socket: BorrowedFd<'_>, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> nix::Result<usize> {
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    let raw = fd.map(|fd| [fd.as_raw_fd()]);
    let rights = raw.as_ref().map(|raw| [ControlMessage::ScmRights(raw)]);
    let control: &[ControlMessage<'_>] = rights.as_ref().map_or(&[], |rights| rights);
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    sendmsg::<()>(socket.as_raw_fd(), &[io::IoSlice::new(bytes)], control, flags, None)
}
