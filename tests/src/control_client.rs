//! A client of a device socket without the library: speaks the control protocol directly, so that it can also say what no
//! library would.

use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, connect, recvmsg, sendmsg,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use vdev_abi::control::{
    ABI_VERSION, Handle, MAX_FDS, MAX_MESSAGE, QpAttr, QpCaps, Refusal, Reply, Request, decode_answer, encode_request,
};

/// An answer with its descriptors.
pub type Answer = (Result<Reply, Refusal>, Vec<OwnedFd>);

/// A connection to a device socket.
#[derive(Debug)]
pub struct ControlClient {
    socket: OwnedFd,
}

impl ControlClient {
    /// Connects without a greeting.
    pub fn connect(path: &Path) -> io::Result<ControlClient> {
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
        connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
        // An answer that does not come is a failure, not a hang.
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(10, 0))?;
        Ok(ControlClient { socket })
    }

    /// Connects and greets. The descriptors are those of the device: context page, doorbell, asynchronous events.
    pub fn open(path: &Path) -> io::Result<(ControlClient, Vec<OwnedFd>)> {
        let client = Self::connect(path)?;
        let (answer, fds) = client.call(&Request::Hello { abi: ABI_VERSION, program: "control-client".into() }, &[])?;
        answer.map_err(|refusal| io::Error::other(refusal.message))?;
        Ok((client, fds))
    }

    /// Sends these bytes and descriptors as one message.
    pub fn send(&self, bytes: &[u8], fds: &[RawFd]) -> io::Result<()> {
        let rights = [ControlMessage::ScmRights(fds)];
        let rights = if fds.is_empty() { &[][..] } else { &rights[..] };
        sendmsg::<()>(self.socket.as_raw_fd(), &[IoSlice::new(bytes)], rights, MsgFlags::MSG_NOSIGNAL, None)?;
        Ok(())
    }

    /// Receives one message; an empty one means that the daemon ended the connection.
    pub fn receive(&self) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        let mut bytes = vec![0; MAX_MESSAGE];
        let mut room = nix::cmsg_space!([RawFd; MAX_FDS]);
        let mut iov = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg::<()>(self.socket.as_raw_fd(), &mut iov, Some(&mut room), MsgFlags::MSG_CMSG_CLOEXEC);
        let received = match received {
            // A connection that is ended with unread messages is reset.
            Err(nix::errno::Errno::ECONNRESET) => return Ok((Vec::new(), Vec::new())),
            other => other?,
        };
        let mut fds = Vec::new();
        for message in received.cmsgs()? {
            if let ControlMessageOwned::ScmRights(numbers) = message {
                // SAFETY: the kernel made these descriptors for us with this message, and nobody else owns them.
                fds.extend(numbers.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) }));
            }
        }
        let len = received.bytes;
        bytes.truncate(len);
        Ok((bytes, fds))
    }

    /// One call.
    pub fn call(&self, request: &Request, fds: &[RawFd]) -> io::Result<Answer> {
        self.send(&encode_request(request).map_err(io::Error::other)?, fds)?;
        let (bytes, fds) = self.receive()?;
        if bytes.is_empty() {
            return Err(io::Error::other("the daemon ended the connection"));
        }
        Ok((decode_answer(&bytes).map_err(io::Error::other)?, fds))
    }

    /// One call that must be granted.
    ///
    /// # Panics
    /// When it is not.
    pub fn granted(&self, request: &Request) -> (Reply, Vec<OwnedFd>) {
        let (answer, fds) = self.call(request, &[]).unwrap_or_else(|error| panic!("{request:?}: {error}"));
        (answer.unwrap_or_else(|refusal| panic!("{request:?}: {refusal:?}")), fds)
    }

    /// One call that must be refused; returns the error number.
    ///
    /// # Panics
    /// When it is not, or when the refusal explains nothing.
    pub fn refused(&self, request: &Request) -> i32 {
        match self.call(request, &[]) {
            Ok((Err(refusal), _)) => {
                assert!(!refusal.message.is_empty(), "{request:?}: a refusal must say why");
                refusal.errno
            }
            other => panic!("{request:?} must be refused, got {other:?}"),
        }
    }

    /// Whether the daemon has ended the connection (waits for it).
    pub fn is_ended(&self) -> bool {
        self.receive().is_ok_and(|(bytes, _)| bytes.is_empty())
    }

    /// A new protection domain.
    pub fn alloc_pd(&self) -> Handle {
        match self.granted(&Request::AllocPd) {
            (Reply::Handle(pd), _) => pd,
            other => panic!("AllocPd gave {other:?}"),
        }
    }

    /// Registers memory of this process: handle, local key, remote key.
    pub fn reg_mr(&self, pd: Handle, addr: u64, length: u64) -> (Handle, u32, u32) {
        let request = Request::RegMr { pd, addr, length, iova: addr, access: 15, shared: Vec::new() };
        match self.granted(&request) {
            (Reply::Region { mr, lkey, rkey, .. }, _) => (mr, lkey, rkey),
            other => panic!("RegMr gave {other:?}"),
        }
    }

    /// A new completion queue: handle, entries, memory.
    pub fn create_cq(&self, depth: u32) -> (Handle, u32, OwnedFd) {
        match self.granted(&Request::CreateCq { depth, channel: None, cookie: 1 }) {
            (Reply::Cq { cq, depth }, mut fds) if fds.len() == 1 => (cq, depth, fds.remove(0)),
            other => panic!("CreateCq gave {other:?}"),
        }
    }

    /// A new reliable-connection queue pair.
    pub fn create_qp(&self, pd: Handle, cq: Handle, caps: QpCaps) -> HandQp {
        const RC: u32 = 2;
        let request =
            Request::CreateQp { pd, qp_type: RC, send_cq: cq, recv_cq: cq, srq: None, caps, all_signaled: true, cookie: 2 };
        match self.granted(&request) {
            (Reply::Qp { qp, qpn, doorbell, caps }, mut fds) if fds.len() == 1 => {
                HandQp { handle: qp, qpn, doorbell, caps, memory: fds.remove(0) }
            }
            other => panic!("CreateQp gave {other:?}"),
        }
    }

    /// Takes a queue pair from RESET to RTS towards this peer. Both sides begin with PSN `psn`.
    pub fn connect_qp(&self, qp: Handle, peer_gid: [u8; 16], peer_qpn: u32, psn: u32) {
        let mut attr = QpAttr { port: 1, access: 15, ..QpAttr::default() };
        attr.path_mtu = 3;
        attr.rq_psn = psn;
        attr.sq_psn = psn;
        attr.dest_qpn = peer_qpn;
        attr.max_dest_rd_atomic = 4;
        attr.max_rd_atomic = 4;
        attr.min_rnr_timer = 12;
        attr.timeout = 12;
        attr.retry_cnt = 3;
        attr.rnr_retry = 3;
        attr.ah_dgid = peer_gid;
        attr.ah_is_global = true;
        attr.ah_hop_limit = 64;
        attr.ah_port = 1;
        use crate::verbs::{mask, state};
        let steps = [(state::INIT, mask::TO_INIT), (state::RTR, mask::TO_RTR), (state::RTS, mask::TO_RTS)];
        for (state, mask) in steps {
            let mask = u32::try_from(mask).expect("masks are positive");
            self.granted(&Request::ModifyQp { qp, mask, attr: QpAttr { qp_state: state, ..attr } });
        }
    }

    /// State of a queue pair, `enum ibv_qp_state`.
    pub fn qp_state(&self, qp: Handle) -> u32 {
        match self.granted(&Request::QueryQp { qp }) {
            (Reply::QpAttr(attr), _) => attr.qp_state,
            other => panic!("QueryQp gave {other:?}"),
        }
    }
}

/// A queue pair made by hand.
#[derive(Debug)]
pub struct HandQp {
    /// For control calls.
    pub handle: Handle,
    /// Its number.
    pub qpn: u32,
    /// Its slot in the doorbell page.
    pub doorbell: u32,
    /// Sizes granted.
    pub caps: QpCaps,
    /// Its memory.
    pub memory: OwnedFd,
}
