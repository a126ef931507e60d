//! A client that speaks the control protocol and the rings by itself, so that it can also say what the library never would.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, connect, recvmsg, sendmsg,
    socket,
};
use vdev_abi::completion::CqConsumer;
use vdev_abi::control::{
    ABI_VERSION, DeviceInfo, Handle, MAX_MESSAGE, QpAttr, QpCaps, Refusal, Reply, Request, decode_answer, encode_request,
};
use vdev_abi::doorbell::Doorbell;
use vdev_abi::layout::{CompletionEntry, ContextPage, CqLayout, QpLayout, RecvEntry, SendEntry, Sge};
use vdev_abi::mapping::Mapping;
use vdev_abi::queue::RingProducer;

/// Local write, remote write, remote read, remote atomic.
pub const ALL_ACCESS: u32 = 15;
/// `IBV_SEND_SIGNALED`.
pub const SIGNALED: u8 = 2;
/// `enum ibv_wr_opcode`.
pub const OP_WRITE: u8 = 0;
pub const OP_WRITE_IMM: u8 = 1;
pub const OP_SEND: u8 = 2;
pub const OP_READ: u8 = 4;
pub const OP_BIND_WINDOW: u8 = 8;
pub const OP_FETCH_ADD: u8 = 6;

pub const CAPS: QpCaps = QpCaps { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 };

/// A connection that has not said anything.
pub fn dial(path: &Path) -> OwnedFd {
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    connect(fd.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    fd
}

pub fn send_bytes(fd: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> nix::Result<usize> {
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let messages: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    sendmsg::<()>(fd.as_raw_fd(), &[IoSlice::new(bytes)], messages, MsgFlags::MSG_NOSIGNAL, None)
}

/// An answer with its descriptors; `None` when the daemon has closed the connection.
pub fn receive(fd: &OwnedFd) -> Option<(Result<Reply, Refusal>, Vec<OwnedFd>)> {
    let mut buf = vec![0; MAX_MESSAGE];
    let mut space = nix::cmsg_space!([RawFd; 16]);
    let mut iov = [IoSliceMut::new(&mut buf)];
    let message = recvmsg::<()>(fd.as_raw_fd(), &mut iov, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC);
    let message = match message {
        Ok(message) => message,
        Err(nix::errno::Errno::ECONNRESET) => return None,
        Err(error) => panic!("{error}"),
    };
    let mut fds = Vec::new();
    for control in message.cmsgs().unwrap() {
        if let ControlMessageOwned::ScmRights(raw) = control {
            // SAFETY: the kernel has just made these descriptors for us.
            fds.extend(raw.into_iter().map(|raw| unsafe { OwnedFd::from_raw_fd(raw) }));
        }
    }
    let len = message.bytes;
    if len == 0 { None } else { Some((decode_answer(&buf[..len]).unwrap(), fds)) }
}

/// A client.
pub struct Raw {
    pub socket: OwnedFd,
    pub page: Mapping,
    pub bell: OwnedFd,
    pub events: OwnedFd,
    pub info: DeviceInfo,
}

impl Raw {
    pub fn connect(path: &Path) -> Raw {
        let socket = dial(path);
        let hello = Request::Hello { abi: ABI_VERSION, program: "raw".into() };
        send_bytes(&socket, &encode_request(&hello).unwrap(), &[]).unwrap();
        let (answer, fds) = receive(&socket).unwrap();
        let Ok(Reply::Device(info)) = answer else { panic!("{answer:?}") };
        let [page, bell, events]: [OwnedFd; 3] = fds.try_into().unwrap();
        let page = Mapping::map(page.as_fd(), ContextPage::BYTES).unwrap();
        Raw { socket, page, bell, events, info }
    }

    pub fn call_with(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(Reply, Vec<OwnedFd>), Refusal> {
        send_bytes(&self.socket, &encode_request(request).unwrap(), fds).unwrap();
        let (answer, fds) = receive(&self.socket).expect("the daemon answers");
        answer.map(|reply| (reply, fds))
    }

    pub fn call(&self, request: &Request) -> Result<Reply, Refusal> {
        self.call_with(request, &[]).map(|(reply, _)| reply)
    }

    pub fn errno(&self, request: &Request) -> i32 {
        self.call(request).expect_err("this has to be refused").errno
    }

    /// Whether the daemon has closed the connection; waits until it does.
    pub fn is_ended(&self) -> bool {
        receive(&self.socket).is_none()
    }

    pub fn pd(&self) -> Handle {
        let Ok(Reply::Handle(pd)) = self.call(&Request::AllocPd) else { panic!() };
        pd
    }

    /// Registers memory of this process.
    pub fn register(&self, pd: Handle, memory: &[u8]) -> (Handle, u32) {
        let (addr, length) = (memory.as_ptr().addr() as u64, memory.len() as u64);
        let request = Request::RegMr { pd, addr, length, iova: addr, access: ALL_ACCESS, shared: Vec::new() };
        match self.call(&request) {
            Ok(Reply::Region { mr, lkey, rkey, .. }) => {
                assert_eq!(lkey, rkey);
                (mr, lkey)
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn cq(&self, depth: u32, channel: Option<Handle>, cookie: u64) -> Cq {
        let (reply, fds) = self.call_with(&Request::CreateCq { depth, channel, cookie }, &[]).unwrap();
        Cq::granted(&reply, &fds)
    }

    pub fn resized(&self, cq: &Cq, depth: u32) -> Cq {
        let (reply, fds) = self.call_with(&Request::ResizeCq { cq: cq.handle, depth }, &[]).unwrap();
        Cq::granted(&reply, &fds)
    }

    pub fn qp(&self, pd: Handle, cq: Handle, caps: QpCaps) -> Qp {
        let request =
            Request::CreateQp { pd, qp_type: 2, send_cq: cq, recv_cq: cq, srq: None, caps, all_signaled: false, cookie: 77 };
        let (reply, fds) = self.call_with(&request, &[]).unwrap();
        let Reply::Qp { qp, qpn, doorbell, caps } = reply else { panic!("{reply:?}") };
        let layout = QpLayout::new(&caps).unwrap();
        let memory = Mapping::map(fds[0].as_fd(), layout.bytes).unwrap();
        Qp { handle: qp, qpn, slot: doorbell, memory, send: RingProducer::send(&layout), recv: RingProducer::recv(&layout) }
    }

    /// INIT, RTR, RTS towards `qpn` at `gid`.
    pub fn connect_qp(&self, qp: &Qp, qpn: u32, gid: [u8; 16]) {
        let mut attr = QpAttr { qp_state: 1, access: ALL_ACCESS, port: 1, ..QpAttr::default() };
        // STATE, ACCESS_FLAGS, PKEY_INDEX, PORT.
        self.call(&Request::ModifyQp { qp: qp.handle, mask: 0x1 | 0x8 | 0x10 | 0x20, attr }).unwrap();
        attr = QpAttr {
            qp_state: 2,
            path_mtu: 3,
            dest_qpn: qpn,
            ah_dgid: gid,
            ah_is_global: true,
            ah_hop_limit: 64,
            ah_port: 1,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            ..attr
        };
        // STATE, AV, PATH_MTU, RQ_PSN, MIN_RNR_TIMER, MAX_DEST_RD_ATOMIC, DEST_QPN.
        let mask = 0x1 | 0x80 | 0x100 | 0x1000 | 0x8000 | 0x2_0000 | 0x10_0000;
        self.call(&Request::ModifyQp { qp: qp.handle, mask, attr }).unwrap();
        attr = QpAttr { qp_state: 3, timeout: 14, retry_cnt: 2, rnr_retry: 2, max_rd_atomic: 4, ..attr };
        // STATE, TIMEOUT, RETRY_CNT, RNR_RETRY, MAX_QP_RD_ATOMIC, SQ_PSN.
        let mask = 0x1 | 0x200 | 0x400 | 0x800 | 0x2000 | 0x1_0000;
        self.call(&Request::ModifyQp { qp: qp.handle, mask, attr }).unwrap();
    }

    pub fn ring(&self, slot: u32) {
        if Doorbell::of(&self.page).ring(slot) {
            nix::unistd::write(&self.bell, &1u64.to_ne_bytes()).unwrap();
        }
    }

    pub fn post_send(&self, qp: &mut Qp, entry: SendEntry, sges: &[Sge]) {
        let entry = SendEntry { num_sge: sges.len() as u16, ..entry };
        qp.send.push_send(&qp.memory, &entry, sges.iter().copied());
        qp.send.publish(&qp.memory);
        self.ring(qp.slot);
    }

    pub fn post_recv(&self, qp: &mut Qp, wr_id: u64, sges: &[Sge]) {
        let entry = RecvEntry { wr_id, num_sge: sges.len() as u32, reserved: 0 };
        qp.recv.push_recv(&qp.memory, &entry, sges.iter().copied());
        qp.recv.publish(&qp.memory);
        self.ring(qp.slot);
    }
}

/// A completion queue.
pub struct Cq {
    pub handle: Handle,
    pub ring: Mapping,
    pub consumer: CqConsumer,
}

impl Cq {
    fn granted(reply: &Reply, fds: &[OwnedFd]) -> Cq {
        let &Reply::Cq { cq, depth } = reply else { panic!("{reply:?}") };
        let layout = CqLayout::new(depth).unwrap();
        Cq { handle: cq, ring: Mapping::map(fds[0].as_fd(), layout.bytes).unwrap(), consumer: CqConsumer::new(&layout) }
    }

    pub fn poll(&mut self) -> Option<CompletionEntry> {
        let entry = self.consumer.peek(&self.ring, 0)?;
        self.consumer.advance(&self.ring, 1);
        Some(entry)
    }

    pub fn wait(&mut self) -> CompletionEntry {
        let mut found = None;
        super::place::wait_until("a completion comes", || {
            found = self.poll();
            found.is_some()
        });
        found.unwrap()
    }
}

/// A queue pair.
pub struct Qp {
    pub handle: Handle,
    pub qpn: u32,
    pub slot: u32,
    pub memory: Mapping,
    pub send: RingProducer,
    pub recv: RingProducer,
}

/// One end of a connection, with everything it needs.
pub struct End {
    pub raw: Raw,
    pub pd: Handle,
    pub cq: Cq,
    pub qp: Qp,
    pub memory: Vec<u8>,
    pub mr: Handle,
    pub key: u32,
}

impl End {
    pub fn new(path: &Path, bytes: usize) -> End {
        let raw = Raw::connect(path);
        let pd = raw.pd();
        let cq = raw.cq(64, None, 0);
        let qp = raw.qp(pd, cq.handle, CAPS);
        let memory = vec![0; bytes];
        let (mr, key) = raw.register(pd, &memory);
        End { raw, pd, cq, qp, memory, mr, key }
    }

    /// Two ends, connected.
    pub fn pair(a: &Path, b: &Path, bytes: usize) -> (End, End) {
        let (a, b) = (End::new(a, bytes), End::new(b, bytes));
        a.raw.connect_qp(&a.qp, b.qp.qpn, b.raw.info.gids[0]);
        b.raw.connect_qp(&b.qp, a.qp.qpn, a.raw.info.gids[0]);
        (a, b)
    }

    /// Address of a byte of the memory.
    pub fn at(&self, offset: usize) -> u64 {
        self.memory.as_ptr().addr() as u64 + offset as u64
    }

    pub fn sge(&self, offset: usize, length: u32) -> Sge {
        Sge { addr: self.at(offset), length, lkey: self.key }
    }

    pub fn send(&mut self, entry: SendEntry, sges: &[Sge]) {
        self.raw.post_send(&mut self.qp, entry, sges);
    }
}
