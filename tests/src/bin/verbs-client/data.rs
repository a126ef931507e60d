//! Random messages of every kind between two programs, contents compared byte by byte.
//!
//! Both sides derive the same plan from the seed: operation, size, place in which memory, cuts of the buffer lists. In each
//! round the sink surrounds the place with guard bytes, the source writes a pattern that only this round has, and after the
//! operation the sink compares the message and the guards.

use crate::meet::Peer;
use crate::{Outcome, Words, completion, say};
use std::rc::Rc;
use tests::verbs::{Address, Buffer, Cq, Patience, Qp, Region, Session, Sge, Wc, Window, Work, access, opcode, send_flag};

/// Longest message.
const MAX_MESSAGE: usize = 64 << 20;
/// Guard bytes before and after a message, and the room for gaps in it.
const GUARD: usize = 64;
/// What guard bytes hold.
const GUARD_BYTE: u8 = 0xA5;
/// Number of the requests that bind windows.
const BIND_ID: u64 = 50;
/// Most pieces of a buffer list.
const MAX_PIECES: usize = 8;
/// Sizes where implementations go wrong: nothing, one byte, around each path MTU and around copy thresholds.
const EDGES: [usize; 19] = [0, 1, 7, 8, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 2049, 4095, 4096, 4097, 8193, 65537];

/// xorshift64*: the plan and the patterns must be the same on both sides, nothing more.
struct Random(u64);

impl Random {
    fn new(seed: u64, round: u64) -> Random {
        let mut random = Random((seed ^ round.wrapping_mul(0x9E37_79B9_7F4A_7C15)) | 1);
        for _ in 0..8 {
            random.next();
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Write,
    WriteImm,
    Send,
    SendImm,
    SendInvalidate,
    Read,
    CompareSwap,
    FetchAdd,
}

const OPS: [Op; 8] =
    [Op::Write, Op::WriteImm, Op::Send, Op::SendImm, Op::SendInvalidate, Op::Read, Op::CompareSwap, Op::FetchAdd];

/// A piece of a message: offset in the memory, length.
type Piece = (usize, usize);

/// What happens in one round.
#[derive(Debug)]
struct Round {
    op: Op,
    len: usize,
    /// Which memory of the requester and of the responder: 0 private, 1 shared.
    memory: [usize; 2],
    /// Where the message lies at the requester (a buffer list, possibly with gaps).
    local: Vec<Piece>,
    /// Where it lies at the responder: a buffer list for receives, one piece for RDMA.
    remote: Vec<Piece>,
    /// How many pieces of `local` each work request takes.
    groups: Vec<usize>,
    inline: bool,
    imm: [u8; 4],
}

impl Round {
    fn plan(seed: u64, number: u64, max: usize) -> Round {
        let mut random = Random::new(seed, number);
        let op = OPS[random.below(OPS.len())];
        let len = match op {
            Op::CompareSwap | Op::FetchAdd => 8,
            _ => size(&mut random, number, max),
        };
        let takes_receive = matches!(op, Op::Send | Op::SendImm | Op::SendInvalidate);
        let local = place(&mut random, len, MAX_PIECES, op == Op::Read);
        let mut remote = place(&mut random, len, if takes_receive { MAX_PIECES } else { 1 }, true);
        if matches!(op, Op::CompareSwap | Op::FetchAdd) {
            remote[0].0 &= !7;
        }
        // Only plain WRITEs and READs can be cut into several requests without changing what the other side sees.
        let mut groups = Vec::new();
        let mut left = local.len();
        while matches!(op, Op::Write | Op::Read) && left > 1 && random.below(2) == 0 {
            groups.push(1);
            left -= 1;
        }
        groups.push(left);
        let sends_bytes = !matches!(op, Op::Read | Op::CompareSwap | Op::FetchAdd);
        let inline = sends_bytes && groups.len() == 1 && len <= Qp::INLINE as usize && random.below(2) == 0;
        let memory = [random.below(2), random.below(2)];
        Round { op, len, memory, local, remote, groups, inline, imm: (random.next() as u32).to_be_bytes() }
    }

    /// Whether a receive of the responder is consumed.
    fn takes_receive(&self) -> bool {
        matches!(self.op, Op::WriteImm | Op::Send | Op::SendImm | Op::SendInvalidate)
    }

    fn is_atomic(&self) -> bool {
        matches!(self.op, Op::CompareSwap | Op::FetchAdd)
    }
}

/// Every fourth message has a size of [`EDGES`]; the others are spread evenly over the powers of two up to `max`. Rounds 5 and
/// 6 have the largest size, so that both sides have sent it.
fn size(random: &mut Random, number: u64, max: usize) -> usize {
    let edge = random.below(EDGES.len());
    if number == 5 || number == 6 {
        return max;
    }
    if random.below(4) == 0 {
        return EDGES[edge].min(max);
    }
    // Large messages are rare: they take most of the time and tell little more.
    let largest = if random.below(16) == 0 { max } else { max.min(1 << 20) };
    let bits = random.below(largest.ilog2() as usize + 1);
    ((1 << bits) + random.below(1 << bits)).min(largest)
}

/// Cuts `len` bytes into pieces of a random list at a random place. Pieces of a sink get gaps between them, where guards lie.
fn place(random: &mut Random, len: usize, max_pieces: usize, is_sink: bool) -> Vec<Piece> {
    let count = 1 + random.below(max_pieces);
    let mut cuts: Vec<usize> = (1..count).map(|_| random.below(len + 1)).collect();
    cuts.extend([0, len]);
    cuts.sort_unstable();
    let slack = memory_len() - len - GUARD * (MAX_PIECES + 2);
    let mut at = GUARD + random.below(slack);
    let mut pieces = Vec::new();
    for pair in cuts.windows(2) {
        pieces.push((at, pair[1] - pair[0]));
        at += pair[1] - pair[0] + if is_sink { random.below(GUARD) } else { 0 };
    }
    pieces
}

fn memory_len() -> usize {
    MAX_MESSAGE + (1 << 20)
}

/// The bytes of a round.
fn pattern(seed: u64, number: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(!seed, number);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// One side.
struct Side {
    session: Rc<Session>,
    memories: [Buffer; 2],
    regions: [Region; 2],
    cq: Rc<Cq>,
    qp: Qp,
    peer: Peer,
    /// Keys and first addresses of the peer's memories.
    peer_regions: [(u32, u64); 2],
    seed: u64,
}

pub fn run(words: &Words) -> Outcome<()> {
    let seed = words.number("seed", 1)?;
    let rounds = words.number("rounds", 100)?;
    let max = usize::try_from(words.number("max", MAX_MESSAGE as u64)?)?;
    let mtu_code = u32::try_from(words.number("mtu-code", 3)?)?;
    let mut side = Side::new(Peer::meet(words)?, seed, mtu_code)?;
    let mut bytes = 0;
    for number in 0..rounds {
        let round = Round::plan(seed, number, max);
        let requests = side.peer.is_server == (number % 2 == 0);
        let outcome = if requests { side.request(&round, number) } else { side.respond(&round, number) };
        outcome.map_err(|error| format!("seed {seed}, round {number} ({requests}): {error}; {round:?}"))?;
        bytes += round.len as u64;
    }
    say(&format!("OK {rounds} rounds, {bytes} bytes compared"));
    Ok(())
}

impl Side {
    fn new(mut peer: Peer, seed: u64, mtu_code: u32) -> Outcome<Side> {
        let session = Session::open(None)?;
        let memories = [Buffer::private(memory_len())?, Buffer::shared(memory_len())?];
        let region = |memory: &Buffer| Region::new(&session, memory, memory.len(), access::ALL);
        let regions = [region(&memories[0])?, region(&memories[1])?];
        let cq = Cq::new(&session, 64)?;
        let qp = Qp::new(&session, &cq, 16, access::ALL)?;
        // The PSN wraps during the test.
        let own = Address { gid: session.gid()?, qpn: qp.number(), psn: 0xFF_FFF0 };
        let other = peer.swap_address(&own)?;
        qp.connect(&other, own.psn, mtu_code, Patience { timeout: 12, retry_cnt: 7, rnr_retry: 7 })?;
        let addresses = [memories[0].addr(0), memories[1].addr(0)];
        let [key0, addr0, key1, addr1] =
            peer.swap([regions[0].rkey().into(), addresses[0], regions[1].rkey().into(), addresses[1]])?;
        let peer_regions = [(u32::try_from(key0)?, addr0), (u32::try_from(key1)?, addr1)];
        Ok(Side { session, memories, regions, cq, qp, peer, peer_regions, seed })
    }

    fn request(&mut self, round: &Round, number: u64) -> Outcome<()> {
        let memory = &self.memories[round.memory[0]];
        let bytes = pattern(self.seed, number, round.len);
        let reads = matches!(round.op, Op::Read);
        if reads || round.is_atomic() {
            guard(memory, &round.local);
        } else {
            fill(memory, &round.local, &bytes);
        }
        let ready = self.peer.hear()?;
        let key: u32 = ready.strip_prefix("ready ").ok_or_else(|| format!("expected ready, got {ready}"))?.parse()?;
        let works = self.works(round, key, &bytes);
        let last = works.last().expect("at least one request").wr_id;
        self.qp.post_send(&works)?;
        if round.inline {
            // What was inline may be overwritten as soon as the call returns.
            fill(&self.memories[round.memory[0]], &round.local, &vec![0; round.len]);
        }
        let wc = completion(&self.cq)?;
        // `enum ibv_wc_opcode`.
        let wc_opcode = match round.op {
            Op::Send | Op::SendImm | Op::SendInvalidate => 0,
            Op::Write | Op::WriteImm => 1,
            Op::Read => 2,
            Op::CompareSwap => 3,
            Op::FetchAdd => 4,
        };
        expect_wc(&wc, last, wc_opcode)?;
        let memory = &self.memories[round.memory[0]];
        if reads {
            compare(memory, &round.local, &bytes)?;
        } else if round.is_atomic() {
            compare(memory, &round.local, &before_atomic(&bytes))?;
        }
        self.peer.say("done")?;
        match self.peer.hear()?.as_str() {
            "ok" => Ok(()),
            complaint => Err(complaint.into()),
        }
    }

    fn works(&self, round: &Round, invalidate: u32, bytes: &[u8]) -> Vec<Work> {
        let memory = &self.memories[round.memory[0]];
        // The key of an inline request is not looked at.
        let lkey = if round.inline { 0xDEAD_BEEF } else { self.regions[round.memory[0]].lkey() };
        let (rkey, first) = self.peer_regions[round.memory[1]];
        let mut remote_addr = first + round.remote[0].0 as u64;
        let mut pieces = round.local.iter();
        let mut works = Vec::new();
        for (index, &count) in round.groups.iter().enumerate() {
            let sges: Vec<Sge> = pieces.by_ref().take(count).map(|piece| sge(memory, piece, lkey)).collect();
            let len: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
            let is_last = index + 1 == round.groups.len();
            let signaled = if is_last { send_flag::SIGNALED } else { 0 };
            let (opcode, imm) = match round.op {
                Op::Write => (opcode::WRITE, [0; 4]),
                Op::WriteImm => (opcode::WRITE_WITH_IMM, round.imm),
                Op::Send => (opcode::SEND, [0; 4]),
                Op::SendImm => (opcode::SEND_WITH_IMM, round.imm),
                Op::SendInvalidate => (opcode::SEND_WITH_INV, invalidate.to_ne_bytes()),
                Op::Read => (opcode::READ, [0; 4]),
                Op::CompareSwap => (opcode::COMPARE_SWAP, [0; 4]),
                Op::FetchAdd => (opcode::FETCH_ADD, [0; 4]),
            };
            let flags = signaled | if round.inline { send_flag::INLINE } else { 0 };
            let mut work = Work { wr_id: index as u64 + 100, opcode, flags, imm, remote_addr, rkey, sges, ..Work::default() };
            match round.op {
                Op::CompareSwap => {
                    work.compare_add = u64::from_ne_bytes(before_atomic(bytes));
                    work.swap = word(bytes);
                }
                Op::FetchAdd => work.compare_add = word(bytes).wrapping_sub(u64::from_ne_bytes(before_atomic(bytes))),
                _ => {}
            }
            works.push(work);
            remote_addr += len;
        }
        works
    }

    /// A window over a buffer, for the peer to invalidate.
    fn window(&self, buffer: &Buffer) -> Outcome<Window> {
        let region = Region::new(&self.session, buffer, buffer.len(), access::ALL | access::MW_BIND)?;
        let window = Window::new(&self.session, region)?;
        self.qp.post_send(&[window.bind(BIND_ID)])?;
        // `enum ibv_wc_opcode`.
        expect_wc(&completion(&self.cq)?, BIND_ID, 5)?;
        Ok(window)
    }

    fn respond(&mut self, round: &Round, number: u64) -> Outcome<()> {
        let memory = &self.memories[round.memory[1]];
        let bytes = pattern(self.seed, number, round.len);
        guard(memory, &round.remote);
        match round.op {
            Op::Read => fill(memory, &round.remote, &bytes),
            Op::CompareSwap | Op::FetchAdd => fill(memory, &round.remote, &before_atomic(&bytes)),
            _ => {}
        }
        if round.takes_receive() {
            let lkey = self.regions[round.memory[1]].lkey();
            let to_receive: &[Piece] = if round.op == Op::WriteImm { &[] } else { &round.remote };
            let sges: Vec<Sge> = to_receive.iter().map(|piece| sge(memory, piece, lkey)).collect();
            self.qp.post_recv(number, &sges)?;
        }
        let page = Buffer::private(4096)?;
        let revocable = match round.op {
            Op::SendInvalidate => Some(self.window(&page)?),
            _ => None,
        };
        let key = revocable.as_ref().map_or(0, Window::rkey);
        self.peer.say(&format!("ready {key}"))?;
        let received = if round.takes_receive() { Some(completion(&self.cq)?) } else { None };
        match self.peer.hear()?.as_str() {
            "done" => {}
            other => return Err(other.into()),
        }
        let outcome = received
            .map_or(Ok(()), |wc| expect_receive(&wc, round, number, key))
            .and_then(|()| compare(&self.memories[round.memory[1]], &round.remote, &bytes));
        match outcome {
            Ok(()) => self.peer.say("ok"),
            Err(complaint) => {
                self.peer.say(&complaint)?;
                Err(complaint.into())
            }
        }
    }
}

/// What an atomic finds: a value that has nothing in common with what it leaves.
fn before_atomic(after: &[u8]) -> [u8; 8] {
    (!word(after).rotate_left(17)).to_ne_bytes()
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes.try_into().expect("atomics move 8 bytes"))
}

fn sge(memory: &Buffer, &(at, len): &Piece, lkey: u32) -> Sge {
    Sge { addr: memory.addr(at), length: u32::try_from(len).expect("messages are below 2^31"), lkey }
}

/// The range of the pieces with their guards.
fn around(pieces: &[Piece]) -> (usize, usize) {
    let (first, last) = (pieces[0], pieces[pieces.len() - 1]);
    (first.0 - GUARD, last.0 + last.1 + GUARD)
}

fn guard(memory: &Buffer, pieces: &[Piece]) {
    let (start, end) = around(pieces);
    memory.write(start, &vec![GUARD_BYTE; end - start]);
}

fn fill(memory: &Buffer, pieces: &[Piece], bytes: &[u8]) {
    let mut from = 0;
    for &(at, len) in pieces {
        memory.write(at, &bytes[from..from + len]);
        from += len;
    }
}

/// Compares the message in its pieces, and that nothing else was touched.
fn compare(memory: &Buffer, pieces: &[Piece], bytes: &[u8]) -> Result<(), String> {
    let (start, end) = around(pieces);
    let mut expected = vec![GUARD_BYTE; end - start];
    let mut from = 0;
    for &(at, len) in pieces {
        expected[at - start..at - start + len].copy_from_slice(&bytes[from..from + len]);
        from += len;
    }
    let found = memory.read(start, end - start);
    match found.iter().zip(&expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(at) => {
            let wrong = found.iter().zip(&expected).filter(|(found, expected)| found != expected).count();
            Err(format!("{wrong} bytes differ, the first at offset {} of the message's place {start}", at))
        }
    }
}

fn expect_wc(wc: &Wc, wr_id: u64, opcode: u32) -> Result<(), String> {
    if (wc.status, wc.wr_id, wc.opcode) == (0, wr_id, opcode) {
        Ok(())
    } else {
        Err(format!("expected success of request {wr_id} with opcode {opcode}, got {wc:?}"))
    }
}

fn expect_receive(wc: &Wc, round: &Round, number: u64, key: u32) -> Result<(), String> {
    const WITH_IMM: u32 = 2;
    const WITH_INVALIDATE: u32 = 8;
    expect_wc(wc, number, if round.op == Op::WriteImm { 129 } else { 128 })?;
    let (flag, value) = match round.op {
        Op::WriteImm | Op::SendImm => (WITH_IMM, round.imm),
        Op::SendInvalidate => (WITH_INVALIDATE, key.to_ne_bytes()),
        _ => (0, wc.imm),
    };
    if (wc.byte_len as usize, wc.wc_flags & (WITH_IMM | WITH_INVALIDATE), wc.imm) != (round.len, flag, value) {
        return Err(format!("expected {} bytes, flags {flag}, immediate {value:02x?}; got {wc:?}", round.len));
    }
    Ok(())
}
