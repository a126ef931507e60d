//! Hosts on one switch, each a real core that sends one turn at a time: the next is asked for when the link is free again.
//!
//! A card takes [`Card::packet_time`] for each packet, and makes four of them while the one before is still on the link; a message takes [`Card::post`]
//! from the program to the card and [`Card::complete`] back. The switch sends a packet on while it arrives (cut-through), and has one
//! queue per host, without end.

use super::load::{Got, Load, Op};
use crate::time::{Rate, Time};
use emtt::{Access, MemId, Owner, Segment};
use isolation::{Class, Config as Sharing, Policy};
use rnic::*;
use roce::{Gid, Instant, Mtu, Psn, Qpn};
use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// What a card and its surroundings are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Card {
    /// Rate of every link.
    pub gbps: f64,
    /// Path MTU.
    pub mtu: Mtu,
    /// What a packet takes in the card, at least.
    pub packet_time: Duration,
    /// What posting a message takes a program.
    pub post_time: Duration,
    /// From the program's post to the card.
    pub post: Duration,
    /// From the card to the program that polls.
    pub complete: Duration,
    /// From one end of a link to the other.
    pub wire: Duration,
}

impl Card {
    /// The paper's InfiniBand card of 56 Gb/s: 16 bytes take 1.3 µs there and back, one program does 10.7 million
    /// messages per second, and the card 30.
    pub const IB56: Card = Card {
        gbps: 56.0,
        mtu: Mtu::B4096,
        packet_time: Duration::from_nanos(33),
        post_time: Duration::from_nanos(93),
        post: Duration::from_nanos(150),
        complete: Duration::from_nanos(200),
        wire: Duration::from_nanos(200),
    };

    /// Its RoCE card of 10 Gb/s.
    pub const ROCE10: Card = Card { gbps: 10.0, mtu: Mtu::B1024, packet_time: Duration::from_nanos(90), ..Card::IB56 };

    /// Picoseconds that bytes of the core take on a link.
    fn on_link(&self, bytes: usize) -> u64 {
        Rate::from_gbps(self.gbps).duration(bytes as u32 + FRAMING)
    }

    /// What the arbiter has to know of it.
    pub fn sharing(&self, policy: Policy) -> Sharing {
        let mtu = self.mtu.bytes() as u32;
        Sharing {
            policy,
            bytes_per_sec: (self.gbps * 1e9 / 8.0) as u64,
            packets_per_sec: 1_000_000_000 / self.packet_time.as_nanos() as u64,
            quantum_bytes: mtu,
            short_quantum_bytes: mtu,
            short_quantum_packets: 1,
            ..Sharing::default()
        }
    }
}

/// Bytes of every host's memory as the core sees it: none are kept.
const MEMORY: u64 = 1 << 32;
/// Ethernet, IPv4 and UDP headers, check sum, preamble and gap: bytes on the link beside those of the core.
const FRAMING: u32 = 14 + 20 + 8 + 4 + 20;
/// A probe of Justitia's every so often.
const PROBE_EVERY: Duration = Duration::from_micros(20);
/// Packets that a card has in the making while another one leaves.
const AHEAD: u64 = 4;
/// Requests on a queue pair.
const DEPTH: u32 = 1024;

/// Memory that takes and gives anything.
struct NoMemory;

impl Dma for NoMemory {
    fn gather(&mut self, _: &[Piece], _: &mut [u8]) -> Result<(), DmaError> {
        Ok(())
    }

    fn scatter(&mut self, _: &[Piece], _: &[u8]) -> Result<(), DmaError> {
        Ok(())
    }

    fn copy(&mut self, _: &[Segment], _: &[Segment]) -> Result<(), DmaError> {
        Ok(())
    }

    fn atomic(&mut self, _: Segment, _: AtomicOp) -> Result<u64, DmaError> {
        Ok(0)
    }
}

enum Event {
    /// A loop posts a batch.
    Post { load: usize, qp: usize },
    /// The batch has reached the card.
    Doorbell { load: usize, qp: usize },
    /// The host's link may be free.
    Send { host: usize },
    /// A packet has reached the switch.
    AtSwitch(Packet),
    /// A packet has reached its host.
    Arrive(Packet),
    /// A message is complete, and its program knows.
    Complete { load: usize, qp: usize },
}

struct Packet {
    from: IpAddr,
    to: IpAddr,
    src_port: u16,
    bytes: Vec<u8>,
}

struct Planned {
    at: Time,
    /// Of events at the same time, the one that was planned first comes first.
    sequence: u64,
    event: Event,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Planned {
    /// The heap gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

struct Host {
    rnic: Rnic,
    /// When its card is done with the last packet.
    card_free: Time,
    /// When its link is free.
    link_free: Time,
    /// When the switch's link to it is free.
    port_free: Time,
    /// The earliest [`Event::Send`] that is planned.
    planned: Time,
}

/// One end of a load's queue pairs.
#[derive(Clone, Copy)]
struct End {
    host: usize,
    device: DeviceId,
    ip: IpAddr,
    pd: PdId,
    cq: CqId,
    mr: Mr,
}

/// A queue pair of a load.
struct Loop {
    qpn: Qpn,
    /// When each message under way was posted.
    posted: VecDeque<Time>,
    /// When its program has posted what it wanted to.
    program_free: Time,
}

struct Running {
    load: Load,
    end: End,
    peer: End,
    loops: Vec<Loop>,
    got: Got,
    /// Bytes on the wire before they were measured.
    before: u64,
    is_probe: bool,
}

/// A run.
pub struct Lab {
    card: Card,
    policy: Policy,
    now: Time,
    queue: BinaryHeap<Planned>,
    sequence: u64,
    hosts: Vec<Host>,
    running: Vec<Running>,
    measuring: bool,
    buf: Vec<u8>,
}

impl Lab {
    /// Runs `loads` for `warm_up` and then for `measured`, and returns what each got in that time.
    ///
    /// # Panics
    /// If a load names more than the core has, or one of them fails: nothing is lost here, and nobody makes mistakes.
    pub fn run(card: Card, policy: Policy, loads: &[Load], (warm_up, measured): (Duration, Duration)) -> Vec<Got> {
        let hosts = loads.iter().map(|load| load.from.max(load.to) + 1).max().unwrap_or(0);
        let config = |n| Config { seed: n as u64, local_path: false, sharing: card.sharing(policy), ..Config::default() };
        let host = |n| Host {
            rnic: Rnic::new(config(n)),
            card_free: Time::ZERO,
            link_free: Time::ZERO,
            port_free: Time::ZERO,
            planned: Time::NEVER,
        };
        let mut lab = Lab {
            card,
            policy,
            now: Time::ZERO,
            queue: BinaryHeap::new(),
            sequence: 0,
            hosts: (0..hosts).map(host).collect(),
            running: Vec::new(),
            measuring: false,
            buf: vec![0; 60 << 10],
        };
        for load in loads {
            lab.add(load.clone(), false);
        }
        if matches!(policy, Policy::Justitia(_)) {
            let quick = loads.iter().filter(|load| load.class() == Class::Latency && load.op == Op::Write);
            let mut pairs: Vec<(usize, usize)> = quick.map(|load| (load.from, load.to)).collect();
            pairs.dedup();
            for (from, to) in pairs {
                lab.add(Load { from, to, ..Load::latency("probe", 10) }, true);
            }
        }
        lab.until(Time::ZERO.after(ps(warm_up)));
        lab.measuring = true;
        for n in 0..lab.running.len() {
            lab.running[n].before = lab.moved(n);
        }
        lab.until(lab.now.after(ps(measured)));
        let results = (0..loads.len()).map(|n| {
            let bytes = lab.moved(n) - lab.running[n].before;
            let now = lab.now;
            let Running { load, loops, got, .. } = &mut lab.running[n];
            // What has not come back yet took at least so long.
            let waiting = loops.iter().flat_map(|one| &one.posted).map(|&posted| now.since(posted));
            if load.class() == Class::Latency {
                got.latencies.extend(waiting);
            }
            got.latencies.sort_unstable();
            Got { bytes, seconds: measured.as_secs_f64(), ..std::mem::take(got) }
        });
        results.collect()
    }

    fn add(&mut self, load: Load, is_probe: bool) {
        let n = self.running.len();
        let end = self.end(load.from, n, 0, &load);
        let peer = self.end(load.to, n, 1, &load);
        let loops = (0..load.qps).map(|_| {
            let (qpn, dest) = (self.queue_pair(&end), self.queue_pair(&peer));
            self.connect(&end, qpn, &peer, dest);
            self.connect(&peer, dest, &end, qpn);
            Loop { qpn, posted: VecDeque::new(), program_free: Time::ZERO }
        });
        let loops: Vec<Loop> = loops.collect();
        let start = Time::ZERO.after(ps(load.start));
        for qp in 0..loops.len() {
            for _ in 0..load.depth {
                self.plan(start, Event::Post { load: n, qp });
            }
        }
        self.running.push(Running { load, end, peer, loops, got: Got::default(), before: 0, is_probe });
    }

    fn end(&mut self, host: usize, load: usize, side: u8, settings: &Load) -> End {
        let ip = IpAddr::from(Ipv4Addr::new(10, 100 + side, (load >> 8) as u8, load as u8));
        let rnic = &mut self.hosts[host].rnic;
        let device = rnic.create_device(DeviceInit { gids: vec![Gid::from(ip)], mtu: Mtu::B4096 }).expect("a device");
        // Ours finds classes by itself.
        let class = settings.settings.class.filter(|_| self.policy != Policy::Shares);
        let settings = isolation::Settings { class, ..settings.settings };
        rnic.set_shares(Instant::ZERO, device, settings).expect("settings that can be");
        let pd = rnic.alloc_pd(device).expect("a protection domain");
        let cq = rnic.create_cq(device).expect("a completion queue");
        let runs = vec![Segment { owner: Owner::Host(MemId(0)), addr: 0, len: MEMORY }];
        let mr = rnic.reg_mr(pd, MrInit { iova: 0, access: Access::all(), runs }).expect("a region");
        End { host, device, ip, pd, cq, mr }
    }

    fn queue_pair(&mut self, end: &End) -> Qpn {
        let caps = QpCaps { max_send_wr: DEPTH, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let init = QpInit { qp_type: QpType::Rc, send_cq: end.cq, recv_cq: end.cq, srq: None, caps, all_signaled: true };
        self.hosts[end.host].rnic.create_qp(end.pd, init).expect("a queue pair")
    }

    fn connect(&mut self, end: &End, qpn: Qpn, peer: &End, dest_qpn: Qpn) {
        use QpAttrMask as Mask;
        let rnic = &mut self.hosts[end.host].rnic;
        let mut attr = QpAttr {
            access: Access::all(),
            port: 1,
            address: AddressVector { dgid: Gid::from(peer.ip), port: 1, ..Default::default() },
            path_mtu: self.card.mtu,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            dest_qpn,
            ..rnic.query_qp(qpn).expect("it was just made")
        };
        let init = Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS;
        let rtr = Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN | Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER;
        let rts = Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::SQ_PSN | Mask::MAX_QP_RD_ATOMIC;
        for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
            attr.state = state;
            rnic.modify_qp(Instant::ZERO, qpn, mask | Mask::STATE, &attr).expect("the states in their order");
        }
    }

    /// Bytes that a load has moved over the wire so far, those of messages under way too.
    fn moved(&self, n: usize) -> u64 {
        let Running { load, end, .. } = &self.running[n];
        let counters = self.hosts[end.host].rnic.counters(end.device).expect("devices stay");
        if load.op == Op::Read { counters.rcvd_bytes } else { counters.sent_bytes }
    }

    fn plan(&mut self, at: Time, event: Event) {
        self.sequence += 1;
        self.queue.push(Planned { at, sequence: self.sequence, event });
    }

    fn until(&mut self, end: Time) {
        while self.queue.peek().is_some_and(|planned| planned.at <= end) {
            let Some(Planned { at, event, .. }) = self.queue.pop() else { return };
            self.now = at;
            self.handle(event);
        }
        self.now = end;
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Post { load, qp } => {
                let Running { load: Load { batch, .. }, loops, .. } = &mut self.running[load];
                let Loop { posted, program_free, .. } = &mut loops[qp];
                let begins = (*program_free).max(self.now);
                posted.extend((0..*batch).map(|_| begins));
                *program_free = begins.after(ps(self.card.post_time) * u64::from(*batch));
                let reaches = program_free.after(ps(self.card.post));
                self.plan(reaches, Event::Doorbell { load, qp });
            }
            Event::Doorbell { load, qp } => self.post(load, qp),
            Event::Send { host } => {
                if self.hosts[host].planned <= self.now {
                    self.hosts[host].planned = Time::NEVER;
                }
                self.send(host);
            }
            Event::AtSwitch(packet) => {
                let to = self.end_at(packet.to).host;
                let took = self.card.on_link(packet.bytes.len());
                let host = &mut self.hosts[to];
                host.port_free = host.port_free.max(self.now).after(took);
                let at = host.port_free.after(ps(self.card.wire));
                self.plan(at, Event::Arrive(packet));
            }
            Event::Arrive(packet) => self.arrive(&packet),
            Event::Complete { load, qp } => self.complete(load, qp),
        }
    }

    fn post(&mut self, n: usize, qp: usize) {
        let Running { load, end, peer, loops, .. } = &self.running[n];
        let op = match load.op {
            Op::Write => SendOp::Write { remote_addr: 0, rkey: peer.mr.rkey, imm: None },
            Op::Read => SendOp::Read { remote_addr: 0, rkey: peer.mr.rkey },
        };
        let buffers = [LocalBuffer::Keyed { lkey: end.mr.lkey, addr: 0, len: load.bytes }];
        let (host, qpn) = (end.host, loops[qp].qpn);
        // Which loop it belongs to.
        let wr_id = (n << 32 | qp) as u64;
        for _ in 0..load.batch {
            let request = SendRequest { wr_id, op, flags: SendFlags::empty(), buffers: &buffers, srqn: None };
            self.hosts[host].rnic.post_send(self.now.instant(), qpn, &request).expect("there is room");
        }
        self.send(host);
    }

    /// Lets a host do what it can: one turn if its link is free.
    fn send(&mut self, host: usize) {
        let (now, card) = (self.now.instant(), self.card);
        let Host { rnic, card_free, link_free, .. } = &mut self.hosts[host];
        if rnic.poll_timeout().is_some_and(|at| at <= now) {
            rnic.handle_timeout(now);
        }
        let mut next = None;
        // The card makes the next packets while the last one leaves.
        let packet_time = ps(card.packet_time);
        let may = |card: Time, link: Time| card.max(Time::from_ps(link.ps().saturating_sub(AHEAD * packet_time)));
        if may(*card_free, *link_free) > self.now {
            next = Some(may(*card_free, *link_free));
        } else if let Some(work) = rnic.poll_transmit(now, &mut NoMemory, &mut self.buf) {
            let Work::Packets(burst) = work else { unreachable!("there is no local path") };
            for bytes in self.buf[..burst.len].chunks(burst.segment_len) {
                *card_free = (*card_free).max(self.now).after(packet_time);
                let begins = (*link_free).max(*card_free);
                *link_free = begins.after(card.on_link(bytes.len()));
                let packet = Packet { from: burst.src, to: burst.dst, src_port: burst.src_port, bytes: bytes.to_vec() };
                self.sequence += 1;
                let reaches = begins.after(ps(card.wire));
                self.queue.push(Planned { at: reaches, sequence: self.sequence, event: Event::AtSwitch(packet) });
            }
            next = Some(may(*card_free, *link_free));
        } else if let Some(at) = rnic.poll_timeout() {
            next = Some(Time::at_instant(at));
        }
        self.completions(host);
        if let Some(at) = next.map(|at| at.max(self.now.after(1)))
            && at < self.hosts[host].planned
        {
            self.hosts[host].planned = at;
            self.plan(at, Event::Send { host });
        }
    }

    fn arrive(&mut self, packet: &Packet) {
        let End { host, device, .. } = *self.end_at(packet.to);
        let meta = RxMeta {
            device,
            src: packet.from,
            dst: packet.to,
            src_port: packet.src_port,
            segment_len: packet.bytes.len(),
            congested: false,
        };
        self.hosts[host].rnic.handle_burst(self.now.instant(), &meta, &packet.bytes, &mut NoMemory);
        self.send(host);
    }

    fn completions(&mut self, host: usize) {
        while let Some((_, completion)) = self.hosts[host].rnic.poll_completion() {
            assert_eq!(completion.status, Status::Success, "nothing is lost here");
            let (load, qp) = ((completion.wr_id >> 32) as usize, completion.wr_id as u32 as usize);
            self.plan(self.now.after(ps(self.card.complete)), Event::Complete { load, qp });
        }
    }

    fn complete(&mut self, n: usize, qp: usize) {
        let now = self.now;
        let Running { load, loops, got, is_probe, end, .. } = &mut self.running[n];
        let Some(posted) = loops[qp].posted.pop_front() else { unreachable!("what completes was posted") };
        let took = now.since(posted);
        if self.measuring {
            got.messages += 1;
            if load.class() == Class::Latency {
                got.latencies.push(took);
            }
        }
        let mut next = now;
        if *is_probe {
            self.hosts[end.host].rnic.note_latency(Duration::from_nanos(took / 1000));
            next = now.max(posted.after(ps(PROBE_EVERY)));
        }
        // Those of a whole batch are complete.
        if (loops[qp].posted.len() as u32).is_multiple_of(load.batch) {
            self.plan(next, Event::Post { load: n, qp });
        }
    }

    fn load_of(&self, ip: IpAddr) -> usize {
        let IpAddr::V4(ip) = ip else { unreachable!("all addresses are of IPv4") };
        let [_, _, high, low] = ip.octets();
        usize::from(high) << 8 | usize::from(low)
    }

    fn end_at(&self, ip: IpAddr) -> &End {
        let Running { end, peer, .. } = &self.running[self.load_of(ip)];
        if end.ip == ip { end } else { peer }
    }
}

fn ps(time: Duration) -> u64 {
    time.as_nanos() as u64 * 1000
}
