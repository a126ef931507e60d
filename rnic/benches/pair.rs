//! What the core itself costs: per packet over a loop of two cores without a network, and per message on the local path.
//! Memory is one plain buffer per end, so that the copies are those of a daemon that has mapped its client's memory.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use emtt::{Access, MemId, Owner, Segment};
use isolation::Policy;
use rnic::*;
use roce::{Gid, Instant, Mtu, Psn, Qpn};
use std::hint::black_box;
use std::net::IpAddr;
use std::time::Duration;

const BYTES: usize = 2 << 20;

/// One space per end; the owner's number is the index.
struct PlainMemory(Vec<Vec<u8>>);

impl PlainMemory {
    fn slice(&mut self, segment: Segment) -> Result<&mut [u8], DmaError> {
        let MemId(id) = segment.owner.space();
        let (start, end) = (segment.addr as usize, (segment.addr + segment.len) as usize);
        self.0[id as usize].get_mut(start..end).ok_or(DmaError(segment))
    }
}

impl Dma for PlainMemory {
    fn gather(&mut self, pieces: &[Piece], buf: &mut [u8]) -> Result<(), DmaError> {
        for piece in pieces {
            let source = self.slice(piece.segment)?;
            buf[piece.at..piece.at + source.len()].copy_from_slice(source);
        }
        Ok(())
    }

    fn scatter(&mut self, pieces: &[Piece], buf: &[u8]) -> Result<(), DmaError> {
        for piece in pieces {
            let target = self.slice(piece.segment)?;
            target.copy_from_slice(&buf[piece.at..piece.at + target.len()]);
        }
        Ok(())
    }

    fn copy(&mut self, from: &[Segment], to: &[Segment]) -> Result<(), DmaError> {
        // Both lists have one segment here, of different owners.
        let (a, b) = (from[0].owner.space(), to[0].owner.space());
        let [source, target] = self.0.get_disjoint_mut([a.0 as usize, b.0 as usize]).map_err(|_| DmaError(from[0]))?;
        let (at, to, len) = (from[0].addr as usize, to[0].addr as usize, from[0].len as usize);
        target[to..to + len].copy_from_slice(&source[at..at + len]);
        Ok(())
    }

    fn atomic(&mut self, at: Segment, _op: AtomicOp) -> Result<u64, DmaError> {
        Err(DmaError(at))
    }
}

struct End {
    nic: usize,
    device: DeviceId,
    qpn: Qpn,
    mr: Mr,
    ip: IpAddr,
}

struct Pair {
    nics: Vec<Rnic>,
    ends: Vec<End>,
    memory: PlainMemory,
    buf: Vec<u8>,
    packets: u64,
    now: Instant,
}

impl Pair {
    /// With `paths`, connections between the cores are of the spray extension from their first packet on, with so many paths.
    fn new(cores: usize, paths: Option<u16>) -> Pair {
        Pair::under(Policy::Shares, cores, paths)
    }

    /// The same under another policy of the arbiter.
    fn under(policy: Policy, cores: usize, paths: Option<u16>) -> Pair {
        let multipath = paths.map(|paths| MultipathConfig {
            paths,
            delay: Duration::from_millis(1),
            agreed: true,
            ..MultipathConfig::default()
        });
        let sharing = isolation::Config { policy, ..isolation::Config::default() };
        let config = |n| Config { seed: n as u64, multipath, sharing, ..Config::default() };
        let mut nics: Vec<Rnic> = (0..cores).map(|n| Rnic::new(config(n))).collect();
        let mut ends = Vec::new();
        for n in 0..2 {
            let nic = n % cores;
            let core = &mut nics[nic];
            let ip: IpAddr = format!("192.0.2.{}", n + 1).parse().unwrap();
            let device = core.create_device(DeviceInit { gids: vec![Gid::from(ip)], mtu: Mtu::B4096 }).unwrap();
            let pd = core.alloc_pd(device).unwrap();
            let cq = core.create_cq(device).unwrap();
            let runs = vec![Segment { owner: Owner::Host(MemId(n as u32)), addr: 0, len: BYTES as u64 }];
            let mr = core.reg_mr(pd, MrInit { iova: 0, access: Access::all(), runs }).unwrap();
            let caps = QpCaps { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
            let init = QpInit { qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, caps, all_signaled: true };
            ends.push(End { nic, device, qpn: core.create_qp(pd, init).unwrap(), mr, ip });
        }
        for n in 0..2 {
            let (end, peer) = (&ends[n], &ends[1 - n]);
            connect(&mut nics[end.nic], end.qpn, peer);
        }
        Pair {
            nics,
            ends,
            memory: PlainMemory(vec![vec![1; BYTES]; 2]),
            buf: vec![0; 60 << 10],
            packets: 0,
            now: Instant::ZERO,
        }
    }

    fn post(&mut self, op: impl Fn(&End) -> SendOp, len: u32) {
        let (end, peer) = (&self.ends[0], &self.ends[1]);
        let buffers = [LocalBuffer::Keyed { lkey: end.mr.lkey, addr: 64, len }];
        let request = SendRequest { wr_id: 1, op: op(peer), flags: SendFlags::empty(), buffers: &buffers, srqn: None };
        self.nics[end.nic].post_send(self.now, end.qpn, &request).unwrap();
    }

    /// Runs until nothing moves, and returns the number of completions.
    fn run(&mut self) -> usize {
        let mut completions = 0;
        loop {
            let mut moved = false;
            for nic in 0..self.nics.len() {
                while let Some(work) = self.nics[nic].poll_transmit(self.now, &mut self.memory, &mut self.buf) {
                    moved = true;
                    let Work::Packets(burst) = work else { continue };
                    self.packets += burst.len.div_ceil(burst.segment_len) as u64;
                    let to = self.ends.iter().find(|end| end.ip == burst.dst).unwrap();
                    let meta = RxMeta {
                        device: to.device,
                        src: burst.src,
                        dst: burst.dst,
                        src_port: burst.src_port,
                        segment_len: burst.segment_len,
                        congested: false,
                        trimmed: false,
                    };
                    self.nics[to.nic].handle_burst(self.now, &meta, &self.buf[..burst.len], &mut self.memory);
                }
                while let Some(completion) = self.nics[nic].poll_completion() {
                    assert_eq!(black_box(completion).1.status, Status::Success);
                    completions += 1;
                }
            }
            if !moved {
                return completions;
            }
            self.now = self.now + Duration::from_micros(1);
        }
    }
}

fn connect(core: &mut Rnic, qpn: Qpn, peer: &End) {
    let mut attr = core.query_qp(qpn).unwrap();
    attr.access = Access::all();
    attr.path_mtu = Mtu::B4096;
    attr.dest_qpn = peer.qpn;
    attr.address = AddressVector { dgid: Gid::from(peer.ip), port: 1, ..Default::default() };
    attr.rq_psn = Psn::new(1);
    attr.sq_psn = Psn::new(1);
    attr.timeout = 14;
    (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (16, 16);
    use QpAttrMask as M;
    let steps = [
        (QpState::Init, M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
        (QpState::Rtr, M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER),
        (QpState::Rts, M::STATE | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC),
    ];
    for (state, mask) in steps {
        attr.state = state;
        core.modify_qp(Instant::ZERO, qpn, mask, &attr).unwrap();
    }
}

fn write(peer: &End) -> SendOp {
    SendOp::Write { remote_addr: 0, rkey: peer.mr.rkey, imm: None }
}

fn read(peer: &End) -> SendOp {
    SendOp::Read { remote_addr: 0, rkey: peer.mr.rkey }
}

/// 64 messages at a time; the figure is per message.
fn messages(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("message");
    group.throughput(Throughput::Elements(64));
    for (name, cores, paths) in
        [("local WRITE 8 B", 1, None), ("wire WRITE 8 B", 2, None), ("wire WRITE 8 B, 64 paths", 2, Some(64))]
    {
        let mut pair = Pair::new(cores, paths);
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                for _ in 0..64 {
                    pair.post(write, 8);
                }
                assert_eq!(pair.run(), 64);
            });
        });
    }
    group.finish();
}

/// 1 MiB in one message: 256 packets of 4096 B and their acknowledgements; the figure is per data packet.
fn packets(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("packet of 4096 B");
    group.throughput(Throughput::Elements(256));
    for (name, op, paths) in [
        ("WRITE", write as fn(&End) -> SendOp, None),
        ("WRITE, 1 path of the extension", write, Some(1)),
        ("WRITE, 64 paths", write, Some(64)),
        ("READ", read, None),
        ("READ, 64 paths", read, Some(64)),
    ] {
        let mut pair = Pair::new(2, paths);
        group.bench_function(name, |bencher| {
            bencher.iter_batched(
                || (),
                |()| {
                    pair.post(op, 1 << 20);
                    assert_eq!(pair.run(), 1);
                },
                BatchSize::SmallInput,
            );
        });
        println!("{name}: {} packets in all", pair.packets);
    }
    group.finish();
}

/// What isolation takes of the data path's time: the same work under the arbiter and message by message, in turns, so that what else the
/// machine does meets both.
fn isolation_beside_none(_: &mut Criterion) {
    const ROUNDS: usize = 41;
    /// The most that it may take, in percent.
    const BAR: f64 = 3.0;
    println!("what isolation takes of the data path's time (bar: {BAR} %)");
    for (name, cores, messages, bytes) in
        [("WRITE 1 MiB, wire", 2, 1, 1 << 20), ("WRITE 8 B, wire", 2, 64, 8), ("WRITE 8 B, local", 1, 64, 8)]
    {
        let mut pairs = [Policy::Greedy, Policy::Shares].map(|policy| Pair::under(policy, cores, None));
        let times = pairs.each_mut().map(|_| Vec::with_capacity(ROUNDS));
        let [mut without, mut with] = (0..ROUNDS).fold(times, |mut times, _| {
            for (pair, times) in pairs.iter_mut().zip(&mut times) {
                let begun = std::time::Instant::now();
                for _ in 0..(4 << 20) / (bytes.max(1024) as usize * messages) {
                    (0..messages).for_each(|_| pair.post(write, bytes));
                    assert_eq!(pair.run(), messages);
                }
                times.push(begun.elapsed().as_secs_f64());
            }
            times
        });
        let [without, with] = [&mut without, &mut with].map(|times| {
            times.sort_unstable_by(f64::total_cmp);
            times[ROUNDS / 4]
        });
        let percent = 100.0 * (with / without - 1.0);
        println!("{name:<20} {percent:>6.2} %{}", if percent <= BAR { "" } else { "   ABOVE" });
    }
}

criterion_group!(benches, messages, packets, isolation_beside_none);
criterion_main!(benches);
