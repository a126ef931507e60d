//! A daemon of a test: speaks the control protocol, owns the rings, and does with what is posted as the test says.

use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind, listen, recv, sendmsg, socket,
};
use std::collections::HashMap;
use std::fs::File;
use std::io::{IoSlice, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use vdev_abi::completion::CqProducer;
use vdev_abi::control::*;
use vdev_abi::doorbell::Doorbell;
use vdev_abi::layout::*;
use vdev_abi::mapping::Mapping;
use vdev_abi::queue::{RecvConsumer, SendConsumer};

/// What the test looks at and changes.
#[derive(Default)]
pub struct State {
    page: Option<Mapping>,
    doorbell: Option<OwnedFd>,
    async_pipe: Option<File>,
    channels: Vec<File>,
    cqs: Vec<Cq>,
    qps: Vec<Qp>,
    pub staging: Option<Mapping>,
    /// Requests in the order in which they came.
    pub requests: Vec<Request>,
    /// Answers for requests of these kinds, instead of success.
    pub refuse: HashMap<&'static str, i32>,
    connection: Option<OwnedFd>,
}

struct Cq {
    map: Mapping,
    ring: CqProducer,
    channel: Option<u32>,
    cookie: u64,
}

struct Qp {
    map: Mapping,
    send: SendConsumer,
    recv: RecvConsumer,
    send_cq: u32,
    recv_cq: u32,
    cookie: u64,
    sent: u32,
    received: u32,
}

/// A send request as it was taken from the ring.
#[derive(Debug)]
pub struct Sent {
    pub entry: SendEntry,
    pub sges: Vec<Sge>,
    pub inline: Vec<u8>,
}

/// A running daemon of a test, with one device.
pub struct Daemon {
    pub path: PathBuf,
    state: Arc<Mutex<State>>,
}

/// Number of the n-th queue pair.
pub fn number(qp: usize) -> u32 {
    0x100 + qp as u32
}

impl Daemon {
    pub fn start() -> Daemon {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let n = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("vrdma-scripted-{}-{n}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&listener, Backlog::new(8).unwrap()).unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = state.clone();
        thread::spawn(move || {
            while let Ok(fd) = accept(&listener) {
                // Listing and opening connect in turn; only the last connection has objects.
                serve(fd, &shared);
            }
        });
        Daemon { path, state }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Ends the connection and the event pipes, as the death of a daemon does.
    pub fn die(&self) {
        let mut state = self.state();
        if let Some(connection) = state.connection.take() {
            // SAFETY: a plain system call on a descriptor of ours.
            unsafe { libc::shutdown(connection.as_raw_fd(), libc::SHUT_RDWR) };
        }
        state.async_pipe = None;
        state.channels.clear();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl State {
    /// Takes all send requests of a queue pair; its doorbell must have been rung.
    pub fn take_sends(&mut self, qp: usize) -> Vec<Sent> {
        assert!(self.rung().contains(&(qp as u32)), "the doorbell of queue pair {qp}");
        let qp = &mut self.qps[qp];
        qp.send.refresh(&qp.map).unwrap();
        let mut taken = Vec::new();
        let mut sges = [Sge::default(); 16];
        while let Some(send) = qp.send.take(&qp.map, &mut sges).unwrap() {
            let mut inline = vec![0; send.inline.as_ref().map_or(0, |range| range.len())];
            if let Some(range) = send.inline {
                qp.map.copy_out(range.start, &mut inline);
            }
            taken.push(Sent { sges: sges[..send.entry.num_sge as usize].to_vec(), entry: send.entry, inline });
        }
        taken
    }

    /// Takes all receive requests of a queue pair.
    pub fn take_recvs(&mut self, qp: usize) -> Vec<RecvEntry> {
        let qp = &mut self.qps[qp];
        qp.recv.refresh(&qp.map).unwrap();
        let mut sges = [Sge::default(); 16];
        std::iter::from_fn(|| qp.recv.take(&qp.map, &mut sges).unwrap()).collect()
    }

    fn rung(&self) -> Vec<u32> {
        let mut slots = Vec::new();
        Doorbell::of(self.page.as_ref().unwrap()).take(|slot| slots.push(slot));
        slots
    }

    /// Says that the daemon sleeps.
    pub fn sleep(&self) {
        assert!(Doorbell::of(self.page.as_ref().unwrap()).arm());
    }

    /// How often the doorbell's eventfd was written since the last look.
    pub fn wakes(&self) -> u64 {
        let mut count = 0u64;
        // SAFETY: eight writable bytes; the descriptor is non-blocking.
        unsafe { libc::read(self.doorbell.as_ref().unwrap().as_raw_fd(), (&raw mut count).cast(), 8) };
        count
    }

    /// Completes the next send request, or receive, of a queue pair.
    pub fn complete(&mut self, qp: usize, is_recv: bool, wr_id: u64, solicited: bool) {
        let queue = &mut self.qps[qp];
        let counter = if is_recv { &mut queue.received } else { &mut queue.sent };
        let queue_index = *counter;
        *counter += 1;
        let cq = &mut self.cqs[(if is_recv { queue.recv_cq } else { queue.send_cq }) as usize];
        let entry = CompletionEntry {
            wr_id,
            qpn: number(qp),
            slot: qp as u32,
            byte_len: 77,
            queue_index,
            opcode: if is_recv { 128 } else { 1 },
            is_recv: u8::from(is_recv),
            ..CompletionEntry::default()
        };
        cq.ring.push(&cq.map, entry).unwrap();
        if cq.ring.take_arm(&cq.map, solicited)
            && let Some(channel) = cq.channel
        {
            self.channels[channel as usize].write_all(&cq.cookie.to_ne_bytes()).unwrap();
        }
    }

    /// Writes an asynchronous event about a queue pair.
    pub fn qp_event(&mut self, qp: usize, event: u32) {
        let mut record = [0u8; 16];
        record[..4].copy_from_slice(&event.to_ne_bytes());
        record[8..].copy_from_slice(&self.qps[qp].cookie.to_ne_bytes());
        self.async_pipe.as_mut().unwrap().write_all(&record).unwrap();
    }

    fn answer(&mut self, request: Request) -> (Result<Reply, Refusal>, Vec<OwnedFd>) {
        self.requests.push(request.clone());
        let kind = format!("{request:?}");
        if let Some((_, &errno)) = self.refuse.iter().find(|(name, _)| kind.starts_with(*name)) {
            return (Err(Refusal { errno, message: "the test says so".into() }), Vec::new());
        }
        let port = PortInfo { state: 4, active_mtu: 3 };
        match request {
            Request::Hello { abi, .. } => {
                assert_eq!(abi, ABI_VERSION);
                // Objects of an earlier connection end.
                let (requests, connection) = (std::mem::take(&mut self.requests), self.connection.take());
                *self = State { requests, connection, ..State::default() };
                let (page_fd, page) = Mapping::create(c"page", ContextPage::BYTES).unwrap();
                // SAFETY: a plain system call that makes a descriptor.
                let doorbell = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_NONBLOCK)) };
                let (async_read, async_write) = nix::unistd::pipe().unwrap();
                let fds = vec![page_fd, doorbell.try_clone().unwrap(), async_read];
                (self.page, self.doorbell, self.async_pipe) = (Some(page), Some(doorbell), Some(async_write.into()));
                (Ok(Reply::Device(device(port))), fds)
            }
            Request::QueryPort => (Ok(Reply::Port(port)), vec![]),
            Request::AllocPd => (Ok(Reply::Handle(1)), vec![]),
            Request::RegMr { addr, length, .. } => {
                // Heap memory is "not mapped"; a range with a descriptor is.
                let mapped = !matches!(self.requests.last(), Some(Request::RegMr { shared, .. }) if shared.is_empty());
                let key = (addr >> 12) as u32 ^ length as u32 | 1;
                (Ok(Reply::Region { mr: 1, lkey: key, rkey: key, mapped }), vec![])
            }
            Request::CreateChannel => {
                let (read, write) = nix::unistd::pipe().unwrap();
                self.channels.push(write.into());
                (Ok(Reply::Channel(self.channels.len() as u32 - 1)), vec![read])
            }
            Request::CreateCq { depth, channel, cookie } => {
                let layout = CqLayout::new(depth).unwrap();
                let (fd, map) = Mapping::create(c"cq", layout.bytes).unwrap();
                self.cqs.push(Cq { map, ring: CqProducer::new(&layout), channel, cookie });
                (Ok(Reply::Cq { cq: self.cqs.len() as u32 - 1, depth: layout.depth }), vec![fd])
            }
            Request::CreateQp { send_cq, recv_cq, caps, cookie, .. } => {
                let layout = QpLayout::new(&caps).unwrap();
                let (fd, map) = Mapping::create(c"qp", layout.bytes).unwrap();
                let (send, recv) = (SendConsumer::new(&layout, &caps), RecvConsumer::new(&layout, &caps));
                self.qps.push(Qp { map, send, recv, send_cq, recv_cq, cookie, sent: 0, received: 0 });
                let qp = self.qps.len() as u32 - 1;
                (Ok(Reply::Qp { qp, qpn: number(qp as usize), doorbell: qp, caps }), vec![fd])
            }
            Request::ModifyQp { qp, mask, attr } => {
                let qp = &mut self.qps[qp as usize];
                if mask & 1 != 0 && attr.qp_state == 0 {
                    qp.send.skip_all(&qp.map);
                    qp.recv.skip_all(&qp.map);
                    (qp.sent, qp.received) = (0, 0);
                }
                (Ok(Reply::Done), vec![])
            }
            Request::QueryQp { .. } => (Ok(Reply::QpAttr(QpAttr { qp_state: 6, ..QpAttr::default() })), vec![]),
            Request::CreateStaging => {
                let (fd, map) = Mapping::create(c"staging", STAGING_BYTES).unwrap();
                self.staging = Some(map);
                (Ok(Reply::Staging), vec![fd])
            }
            _ => (Ok(Reply::Done), vec![]),
        }
    }
}

fn device(port: PortInfo) -> DeviceInfo {
    DeviceInfo {
        name: "scripted0".into(),
        fw_version: "1.2.3".into(),
        guid: 0x0102_0304_0506_0708,
        max_mr_size: 1 << 40,
        max_qp: 100,
        max_qp_wr: 128,
        max_sge: 16,
        max_inline_data: 256,
        max_cq: 100,
        max_cqe: 1024,
        max_mr: 100,
        max_mw: 100,
        max_pd: 100,
        max_mcast_grp: 10,
        max_mcast_qp_attach: 10,
        max_srq: 10,
        max_srq_wr: 128,
        max_qp_rd_atomic: 16,
        max_msg_size: 1 << 31,
        gids: vec![[1; 16], [2; 16]],
        port,
    }
}

fn serve(fd: OwnedFd, state: &Mutex<State>) {
    state.lock().unwrap().connection = Some(fd.try_clone().unwrap());
    let mut buffer = vec![0; MAX_MESSAGE];
    while let Ok(len) = recv(fd.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
        if len == 0 {
            break;
        }
        let (answer, fds) = state.lock().unwrap().answer(decode_request(&buffer[..len]).unwrap());
        let bytes = encode_answer(&answer).unwrap();
        let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control = if raw.is_empty() { &rights[..0] } else { &rights[..] };
        if sendmsg::<()>(fd.as_raw_fd(), &[IoSlice::new(&bytes)], control, MsgFlags::MSG_NOSIGNAL, None).is_err() {
            break;
        }
    }
}
