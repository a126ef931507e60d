//! Two devices in virtual time: in one core (local path), or in two whose packets cross a simulated link (wire).

#![allow(dead_code)]

pub mod link;
pub mod memory;

use emtt::{Access, MemId, Owner, Segment};
use link::{Faults, Link, Packet};
use memory::SimMemory;
use rnic::*;
use roce::{Gid, Instant, Lkey, Mtu, Psn, Qpn, Rkey, Srqn};
use spray::{Law, LossLimits, Policy};
use std::net::IpAddr;
use std::time::Duration;

/// How the two devices reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Local,
    Wire,
}

/// Both, for tests that hold on either.
pub const BOTH: [Route; 2] = [Route::Local, Route::Wire];

/// Bytes of memory per end, registered from [`BASE`].
pub const MEMORY: usize = 4 << 20;
/// Address of the first registered byte in work requests.
pub const BASE: u64 = 0x10_0000_1000;

/// Many paths over links as short as these, agreed with the peer; packets that are late are sent again soon.
pub const MULTIPATH: MultipathConfig = MultipathConfig {
    policy: Policy::Oblivious,
    paths: 16,
    window: 256,
    flight: 256,
    law: Law::Proportional,
    delay: Duration::from_micros(50),
    loss: LossLimits {
        rto_floor: Duration::from_micros(250),
        rto_start: Duration::from_millis(2),
        rto_ceiling: Duration::from_millis(100),
    },
    agreed: false,
    trimmed: false,
};

/// Bursts or copies that a core does between two looks at what has arrived, and how long they take.
const STEPS_PER_ROUND: u32 = 3;
const ROUND: Duration = Duration::from_micros(2);

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Which core.
    pub nic: usize,
    pub device: DeviceId,
    pub pd: PdId,
    pub send_cq: CqId,
    pub recv_cq: CqId,
    pub srq: Option<SrqId>,
    pub qpn: Qpn,
    pub memory: MemId,
    pub mr: Mr,
    pub ip: IpAddr,
}

impl End {
    /// A buffer at an offset of the registered memory.
    pub fn at(&self, offset: u64, len: u32) -> LocalBuffer {
        LocalBuffer::Keyed { lkey: self.mr.lkey, addr: BASE + offset, len }
    }
}

/// What a pair is made of.
#[derive(Clone, Copy)]
pub struct Setup {
    pub route: Route,
    pub qp_type: QpType,
    pub seed: u64,
    pub mtu: Mtu,
    pub depth: u32,
    pub sge: u32,
    pub all_signaled: bool,
    pub access: Access,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub psn: u32,
    pub ipv6: bool,
    /// Whether each end has a shared receive queue, which its queue pairs take from.
    pub srq: bool,
    /// The shared receive queue that sends name.
    pub srqn: Option<Srqn>,
    /// Whether each of two cores may use many paths.
    pub multipath: [Option<MultipathConfig>; 2],
}

impl Setup {
    pub fn new(route: Route) -> Self {
        Setup {
            route,
            qp_type: QpType::Rc,
            seed: 1,
            mtu: Mtu::B1024,
            depth: 64,
            sge: 4,
            all_signaled: true,
            access: Access::all(),
            timeout: 8,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            psn: 1000,
            ipv6: false,
            srq: false,
            srqn: None,
            multipath: [None; 2],
        }
    }
}

pub struct World {
    pub now: Instant,
    pub nics: Vec<Rnic>,
    pub memory: SimMemory,
    pub link: Link,
    /// Completions by core, not yet taken by a test.
    pub completions: Vec<(CqId, Completion)>,
    pub events: Vec<AsyncEvent>,
    /// When the last completion came.
    pub completed_at: Instant,
    pub setup: Setup,
    ends: Vec<End>,
    buf: Vec<u8>,
}

impl World {
    /// An empty world with the cores that the route needs.
    pub fn new(setup: Setup) -> Self {
        let cores = if setup.route == Route::Local { 1 } else { 2 };
        let config = |n: u64| {
            let multipath = setup.multipath[n as usize];
            Config { seed: setup.seed * 2 + n, local_path: true, multipath, ..Config::default() }
        };
        World {
            now: Instant::from_nanos(1_000_000),
            nics: (0..cores).map(|n| Rnic::new(config(n))).collect(),
            memory: SimMemory::default(),
            link: Link::new(setup.seed),
            completions: Vec::new(),
            events: Vec::new(),
            completed_at: Instant::ZERO,
            setup,
            ends: Vec::new(),
            buf: vec![0; 60 << 10],
        }
    }

    /// Two connected ends, in RTS.
    pub fn pair(setup: Setup) -> (World, End, End) {
        let mut world = World::new(setup);
        let a = world.end();
        let b = world.end();
        world.connect(&a, &b);
        (world, a, b)
    }

    /// A new device with one of everything; the queue pair is in RESET.
    pub fn end(&mut self) -> End {
        let n = self.ends.len();
        let nic = n % self.nics.len();
        let ip: IpAddr = match self.setup.ipv6 {
            true => format!("2001:db8::{}", n + 1).parse().unwrap(),
            false => format!("192.0.2.{}", n + 1).parse().unwrap(),
        };
        let core = &mut self.nics[nic];
        let device = core.create_device(DeviceInit { gids: vec![Gid::from(ip)], mtu: Mtu::B4096 }).unwrap();
        let pd = core.alloc_pd(device).unwrap();
        let send_cq = core.create_cq(device).unwrap();
        let recv_cq = core.create_cq(device).unwrap();
        let memory = self.memory.add(MEMORY);
        self.memory.space(memory).copy_from_slice(&pattern()[n..n + MEMORY]);
        let (max_wr, max_sge) = (self.setup.depth, self.setup.sge);
        let core = &mut self.nics[nic];
        let srq = self.setup.srq.then(|| core.create_srq(pd, SrqAttr { max_wr, max_sge, limit: 0 }).unwrap());
        let mr = core.reg_mr(pd, MrInit { iova: BASE, access: Access::all(), runs: runs(memory, MEMORY) }).unwrap();
        let mut end = End { nic, device, pd, send_cq, recv_cq, srq, qpn: Qpn::default(), memory, mr, ip };
        end.qpn = self.queue_pair(&end);
        self.ends.push(end);
        end
    }

    /// Another queue pair beside that of `end`.
    pub fn queue_pair(&mut self, end: &End) -> Qpn {
        let Setup { depth, sge, .. } = self.setup;
        let caps = QpCaps { max_send_wr: depth, max_recv_wr: depth, max_send_sge: sge, max_recv_sge: sge, max_inline_data: 0 };
        let init = QpInit {
            qp_type: self.setup.qp_type,
            send_cq: end.send_cq,
            recv_cq: end.recv_cq,
            srq: end.srq,
            caps,
            all_signaled: self.setup.all_signaled,
        };
        self.nics[end.nic].create_qp(end.pd, init).unwrap()
    }

    pub fn connect(&mut self, a: &End, b: &End) {
        for (from, to) in [(a, b), (b, a)] {
            self.init(from);
            self.rtr(from, to);
        }
        self.rts(a);
        self.rts(b);
    }

    /// Connects one end to a peer that is taken care of elsewhere.
    pub fn connect_one(&mut self, end: &End, peer: &End) {
        self.init(end);
        self.rtr(end, peer);
        self.rts(end);
    }

    pub fn attr(&self, peer: &End) -> QpAttr {
        let setup = &self.setup;
        QpAttr {
            state: QpState::Reset,
            cur_state: QpState::Reset,
            sqd_async_notify: false,
            access: setup.access,
            pkey_index: 0,
            port: 1,
            qkey: QKEY,
            address: AddressVector { dgid: Gid::from(peer.ip), port: 1, ..Default::default() },
            path_mtu: setup.mtu,
            timeout: setup.timeout,
            retry_cnt: setup.retry_cnt,
            rnr_retry: setup.rnr_retry,
            rq_psn: Psn::new(setup.psn),
            sq_psn: Psn::new(setup.psn),
            max_rd_atomic: setup.max_rd_atomic,
            max_dest_rd_atomic: setup.max_dest_rd_atomic,
            min_rnr_timer: setup.min_rnr_timer,
            dest_qpn: peer.qpn,
            sq_draining: false,
            caps: QpCaps::default(),
        }
    }

    pub fn modify(&mut self, end: &End, mask: QpAttrMask, attr: &QpAttr) -> Result<(), ControlError> {
        self.nics[end.nic].modify_qp(self.now, end.qpn, mask, attr)
    }

    pub fn set_state(&mut self, end: &End, state: QpState) {
        let attr = QpAttr { state, ..self.attr(end) };
        self.modify(end, QpAttrMask::STATE, &attr).unwrap();
    }

    pub fn init(&mut self, end: &End) {
        let attr = QpAttr { state: QpState::Init, ..self.attr(end) };
        self.modify(end, INIT, &attr).unwrap();
    }

    pub fn rtr(&mut self, end: &End, peer: &End) {
        let attr = QpAttr { state: QpState::Rtr, ..self.attr(peer) };
        let mask = if self.setup.qp_type == QpType::Uc { RTR_UC } else { RTR };
        self.modify(end, mask, &attr).unwrap();
    }

    pub fn rts(&mut self, end: &End) {
        let attr = QpAttr { state: QpState::Rts, ..self.attr(end) };
        let mask = if self.setup.qp_type == QpType::Uc { RTS_UC } else { RTS };
        self.modify(end, mask, &attr).unwrap();
    }

    pub fn state(&self, end: &End) -> QpState {
        self.nics[end.nic].query_qp(end.qpn).unwrap().state
    }

    pub fn try_send(&mut self, end: &End, wr_id: u64, op: SendOp, buffers: &[LocalBuffer]) -> Result<(), PostError> {
        self.try_send_flags(end, wr_id, op, buffers, SendFlags::empty())
    }

    pub fn try_send_flags(
        &mut self,
        end: &End,
        wr_id: u64,
        op: SendOp,
        buffers: &[LocalBuffer],
        flags: SendFlags,
    ) -> Result<(), PostError> {
        self.nics[end.nic].post_send(self.now, end.qpn, &SendRequest { wr_id, op, flags, buffers, srqn: self.setup.srqn })
    }

    pub fn send(&mut self, end: &End, wr_id: u64, op: SendOp, buffers: &[LocalBuffer]) {
        self.try_send(end, wr_id, op, buffers).unwrap();
    }

    pub fn try_recv(&mut self, end: &End, wr_id: u64, buffers: &[LocalBuffer]) -> Result<(), PostError> {
        let request = RecvRequest { wr_id, buffers };
        match end.srq {
            Some(srq) => self.nics[end.nic].post_srq_recv(self.now, srq, &request),
            None => self.nics[end.nic].post_recv(self.now, end.qpn, &request),
        }
    }

    pub fn recv(&mut self, end: &End, wr_id: u64, buffers: &[LocalBuffer]) {
        self.try_recv(end, wr_id, buffers).unwrap();
    }

    pub fn bytes(&mut self, end: &End, offset: usize, len: usize) -> Vec<u8> {
        self.memory.space(end.memory)[offset..offset + len].to_vec()
    }

    pub fn word(&mut self, end: &End, offset: usize) -> u64 {
        u64::from_ne_bytes(self.bytes(end, offset, 8).try_into().unwrap())
    }

    /// Completions of an end's queue pair so far; takes them.
    pub fn take(&mut self, cq: CqId, qpn: Qpn) -> Vec<Completion> {
        let (mine, rest) =
            std::mem::take(&mut self.completions).into_iter().partition(|(id, done)| *id == cq && done.qpn == qpn);
        self.completions = rest;
        let mine: Vec<(CqId, Completion)> = mine;
        mine.into_iter().map(|(_, completion)| completion).collect()
    }

    pub fn sent(&mut self, end: &End) -> Vec<Completion> {
        self.take(end.send_cq, end.qpn)
    }

    pub fn received(&mut self, end: &End) -> Vec<Completion> {
        self.take(end.recv_cq, end.qpn)
    }

    /// One round of a loop as the daemon's: a bounded number of bursts or copies per core, so that packets also arrive while
    /// more wait to be sent. True if there may be more to do at once.
    fn settle(&mut self) -> bool {
        let mut more = false;
        for nic in 0..self.nics.len() {
            self.nics[nic].handle_timeout(self.now);
            let mut steps = 0;
            while steps < STEPS_PER_ROUND
                && let Some(work) = self.nics[nic].poll_transmit(self.now, &mut self.memory, &mut self.buf)
            {
                steps += 1;
                if let Work::Packets(burst) = work {
                    self.put_on_link(&burst);
                }
            }
            more |= steps == STEPS_PER_ROUND;
            while let Some(completion) = self.nics[nic].poll_completion() {
                self.completed_at = self.now;
                self.completions.push(completion);
            }
            while let Some(event) = self.nics[nic].poll_event() {
                self.events.push(event);
            }
        }
        more
    }

    fn put_on_link(&mut self, burst: &Transmit) {
        assert!(burst.len > 0 && burst.segment_len > 0 && burst.src_port >= 0xC000);
        for bytes in self.buf[..burst.len].chunks(burst.segment_len) {
            let packet =
                Packet { src: burst.src, dst: burst.dst, src_port: burst.src_port, bytes: bytes.to_vec(), trimmed: false };
            self.link.send(self.now, packet);
        }
    }

    fn deliver(&mut self) {
        for (src, dst, src_port, segment_len, bytes, trimmed) in self.link.arrivals(self.now) {
            let Some(end) = self.ends.iter().find(|end| end.ip == dst) else { continue };
            let meta = RxMeta { trimmed, ..link::meta(end.device, src, dst, src_port, segment_len) };
            self.nics[end.nic].handle_burst(self.now, &meta, &bytes, &mut self.memory);
        }
    }

    /// Two ends of type UD, in RTS.
    pub fn datagram_pair(route: Route) -> (World, End, End) {
        let mut world = World::new(Setup { qp_type: QpType::Ud, ..Setup::new(route) });
        let (a, b) = (world.end(), world.end());
        world.ready(&a);
        world.ready(&b);
        (world, a, b)
    }

    /// Brings a queue pair of type UD to RTS.
    pub fn ready(&mut self, end: &End) {
        for (state, mask) in [
            (QpState::Init, QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY),
            (QpState::Rtr, QpAttrMask::empty()),
            (QpState::Rts, QpAttrMask::SQ_PSN),
        ] {
            let attr = QpAttr { state, ..self.attr(end) };
            self.modify(end, mask | QpAttrMask::STATE, &attr).unwrap();
        }
    }

    /// Runs until nothing is left to happen, or for `limit` of virtual time.
    pub fn run_for(&mut self, limit: Duration) {
        let end = self.now + limit;
        loop {
            self.deliver();
            if self.settle() {
                self.now = self.now + ROUND;
                continue;
            }
            let timeouts = self.nics.iter().filter_map(|nic| nic.poll_timeout());
            let next = timeouts.chain(self.link.next_arrival()).min();
            match next {
                Some(at) if at <= end => self.now = self.now.max(at),
                Some(_) => {
                    self.now = end;
                    return;
                }
                None => return,
            }
        }
    }

    /// Lets so many bursts or copy quanta happen, and packets arrive in between.
    pub fn step_some(&mut self, steps: usize) {
        for n in 0..steps {
            let nic = n % self.nics.len();
            if let Some(Work::Packets(burst)) = self.nics[nic].poll_transmit(self.now, &mut self.memory, &mut self.buf) {
                self.put_on_link(&burst);
                self.now = self.now + self.link.delay;
                self.deliver();
            }
        }
    }

    /// Resets both ends and connects them again.
    pub fn reconnect(&mut self, a: &End, b: &End) {
        self.set_state(a, QpState::Reset);
        self.set_state(b, QpState::Reset);
        self.connect(a, b);
    }

    /// Runs until nothing is left to happen; a minute of virtual time must suffice.
    pub fn run(&mut self) {
        let start = self.now;
        self.run_for(Duration::from_secs(60));
        assert!(self.now - start < Duration::from_secs(60), "work did not end");
    }

    /// Sends a packet to `to` as if it came from its peer `from`.
    pub fn inject(&mut self, from: &End, to: &End, headers: &roce::wire::Headers, payload: &[u8]) {
        let mut headers = *headers;
        headers.bth.pad = roce::wire::Bth::pad_for(payload.len());
        let mut bytes = vec![0; headers.len()];
        headers.emit(&mut bytes);
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len() + usize::from(headers.bth.pad), 0);
        let flow = roce::wire::icrc::Flow { src: from.ip, dst: to.ip, src_port: 0xC123 };
        let icrc = roce::wire::icrc::compute(&flow, 0, &bytes);
        bytes.extend_from_slice(&icrc.to_le_bytes());
        self.inject_bytes(from, to, &bytes);
    }

    /// Delivers bytes to `to` at once.
    pub fn inject_bytes(&mut self, from: &End, to: &End, bytes: &[u8]) {
        let meta = link::meta(to.device, from.ip, to.ip, 0xC123, bytes.len());
        self.nics[to.nic].handle_burst(self.now, &meta, bytes, &mut self.memory);
    }

    pub fn ends(&self) -> Vec<End> {
        self.ends.clone()
    }

    pub fn counters(&self, end: &End) -> Counters {
        *self.nics[end.nic].counters(end.device).unwrap()
    }

    pub fn faults(&mut self, faults: Faults) {
        self.link.faults = faults;
    }
}

pub const INIT: QpAttrMask =
    QpAttrMask::STATE.union(QpAttrMask::PKEY_INDEX).union(QpAttrMask::PORT).union(QpAttrMask::ACCESS_FLAGS);
pub const RTR: QpAttrMask = QpAttrMask::STATE
    .union(QpAttrMask::AV)
    .union(QpAttrMask::PATH_MTU)
    .union(QpAttrMask::DEST_QPN)
    .union(QpAttrMask::RQ_PSN)
    .union(QpAttrMask::MAX_DEST_RD_ATOMIC)
    .union(QpAttrMask::MIN_RNR_TIMER);
/// To RTR and RTS, for a connection without acknowledgements.
pub const RTR_UC: QpAttrMask =
    QpAttrMask::STATE.union(QpAttrMask::AV).union(QpAttrMask::PATH_MTU).union(QpAttrMask::DEST_QPN).union(QpAttrMask::RQ_PSN);
pub const RTS_UC: QpAttrMask = QpAttrMask::STATE.union(QpAttrMask::SQ_PSN);
pub const RTS: QpAttrMask = QpAttrMask::STATE
    .union(QpAttrMask::TIMEOUT)
    .union(QpAttrMask::RETRY_CNT)
    .union(QpAttrMask::RNR_RETRY)
    .union(QpAttrMask::SQ_PSN)
    .union(QpAttrMask::MAX_QP_RD_ATOMIC);

/// Q_Key of the ends of type UD.
pub const QKEY: u32 = 0x1111_1111;

/// A datagram to the queue pair of an end.
pub fn datagram(to: &End) -> SendOp {
    let address = AddressVector { dgid: Gid::from(to.ip), port: 1, ..Default::default() };
    SendOp::Datagram { to: Destination { address, qpn: to.qpn, qkey: QKEY }, imm: None }
}

/// What fills the memory of the ends, each from another place on.
fn pattern() -> &'static [u8] {
    static PATTERN: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    PATTERN.get_or_init(|| (0..MEMORY + 64).map(|n| (n * 7 + n / 251) as u8).collect())
}

/// The memory of a space in several runs, so that ranges cross them.
pub fn runs(memory: MemId, bytes: usize) -> Vec<Segment> {
    let owner = Owner::Host(memory);
    let cut = 12 << 10;
    vec![Segment { owner, addr: 0, len: cut }, Segment { owner, addr: cut, len: bytes as u64 - cut }]
}

pub fn send() -> SendOp {
    SendOp::Send { imm: None, invalidate: None }
}

pub fn send_imm(imm: [u8; 4]) -> SendOp {
    SendOp::Send { imm: Some(imm), invalidate: None }
}

/// WRITE to an offset of the peer's registered memory.
pub fn write(peer: &End, offset: u64) -> SendOp {
    SendOp::Write { remote_addr: BASE + offset, rkey: peer.mr.rkey, imm: None }
}

pub fn write_imm(peer: &End, offset: u64, imm: [u8; 4]) -> SendOp {
    SendOp::Write { remote_addr: BASE + offset, rkey: peer.mr.rkey, imm: Some(imm) }
}

pub fn read(peer: &End, offset: u64) -> SendOp {
    SendOp::Read { remote_addr: BASE + offset, rkey: peer.mr.rkey }
}

pub fn fetch_add(peer: &End, offset: u64, add: u64) -> SendOp {
    SendOp::Atomic { remote_addr: BASE + offset, rkey: peer.mr.rkey, op: AtomicOp::FetchAdd { add } }
}

pub fn compare_swap(peer: &End, offset: u64, compare: u64, swap: u64) -> SendOp {
    SendOp::Atomic { remote_addr: BASE + offset, rkey: peer.mr.rkey, op: AtomicOp::CompareSwap { compare, swap } }
}

/// Status of each completion.
pub fn statuses(completions: &[Completion]) -> Vec<Status> {
    completions.iter().map(|completion| completion.status).collect()
}

/// `wr_id` of each completion.
pub fn ids(completions: &[Completion]) -> Vec<u64> {
    completions.iter().map(|completion| completion.wr_id).collect()
}

pub fn bad_lkey(end: &End) -> LocalBuffer {
    LocalBuffer::Keyed { lkey: Lkey(end.mr.lkey.0 ^ 1), addr: BASE, len: 8 }
}

pub fn bad_rkey(end: &End) -> Rkey {
    Rkey(end.mr.rkey.0 ^ 1)
}

/// Compares bytes and names the first difference only.
#[track_caller]
pub fn assert_bytes(got: &[u8], wanted: &[u8]) {
    assert_eq!(got.len(), wanted.len());
    if got == wanted {
        return;
    }
    if let Some(at) = (0..got.len()).find(|&at| got[at] != wanted[at]) {
        panic!("byte {at} of {} is {:#04x}, not {:#04x}", got.len(), got[at], wanted[at]);
    }
}
