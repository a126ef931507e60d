//! Random operations under random faults: every byte is checked against what in-order execution would leave, every request
//! completes once and in order, and all work ends.

mod harness;

use harness::link::{Faults, Rng};
use harness::*;
use rnic::*;
use roce::Mtu;
use spray::Policy;
use std::collections::VecDeque;

/// The memory of each end is split, so that what one operation reads no other one in flight writes: sources and counters for
/// READ and atomics at the bottom, then one private slot per request.
const SOURCE: u64 = 0;
const SOURCE_LEN: u64 = 512 << 10;
const COUNTERS: u64 = SOURCE + SOURCE_LEN;
const SLOTS: u64 = 1 << 20;
const SLOT: u64 = 128 << 10;
const SLOT_COUNT: u64 = 16;

struct Sent {
    wr_id: u64,
    opcode: Opcode,
    len: u32,
}

/// What a message of the peer will bring: length, immediate data, and the bytes that land in the receive.
type Expected = (u32, Option<[u8; 4]>, Option<Vec<u8>>);

struct Side {
    end: End,
    posted: VecDeque<Sent>,
    receives: VecDeque<(u64, u64)>,
    expected: VecDeque<Expected>,
    /// Bytes that must lie in memory in the end: offset and bytes.
    checks: Vec<(u64, Vec<u8>)>,
    /// The whole memory as in-order execution would leave it: nothing else may be written.
    shadow: Vec<u8>,
    next_id: u64,
    added: u64,
    completed: u64,
}

fn length(rng: &mut Rng, mtu: u64) -> u32 {
    let len = match rng.below(6) {
        0 => 0,
        1 => rng.below(64),
        2 => mtu * rng.below(5),
        3 => (mtu * (1 + rng.below(4))).saturating_add(rng.below(3)).saturating_sub(1),
        4 => rng.below(8 * mtu),
        _ => rng.below(SLOT / 2),
    };
    len.min(SLOT / 2) as u32
}

/// A scatter/gather list over one contiguous range, cut at random places.
fn buffers(rng: &mut Rng, end: &End, offset: u64, len: u32) -> Vec<LocalBuffer> {
    let mut list = Vec::new();
    let mut at = 0;
    for _ in 0..rng.below(3) {
        let part = rng.below(u64::from(len - at) + 1) as u32;
        list.push(end.at(offset + u64::from(at), part));
        at += part;
    }
    list.push(end.at(offset + u64::from(at), len - at));
    list
}

fn run(route: Route, seed: u64, faults: Faults, rounds: usize) -> (World, u64) {
    run_with(route, None, seed, faults, rounds)
}

fn run_with(route: Route, multipath: Option<MultipathConfig>, seed: u64, faults: Faults, rounds: usize) -> (World, u64) {
    println!("{route:?} seed {seed}");
    let mut rng = Rng::new(seed ^ 0xABCD);
    let mtu = Mtu::ALL[rng.below(5) as usize];
    let setup = Setup {
        seed,
        mtu,
        psn: 0xFF_FFF0 - rng.below(200) as u32,
        max_rd_atomic: 1 + rng.below(4) as u8,
        timeout: 7,
        ipv6: true,
        multipath: [multipath; 2],
        ..Setup::new(route)
    };
    let (mut world, a, b) = World::pair(setup);
    world.faults(faults);
    let side = |end| Side {
        end,
        posted: VecDeque::new(),
        receives: VecDeque::new(),
        expected: VecDeque::new(),
        checks: Vec::new(),
        shadow: Vec::new(),
        next_id: 1,
        added: 0,
        completed: 0,
    };
    let mut sides = [side(a), side(b)];
    for end in [a, b] {
        world.memory.space(end.memory)[COUNTERS as usize..COUNTERS as usize + 8].fill(0);
    }
    for side in &mut sides {
        side.shadow = world.bytes(&side.end, 0, MEMORY);
    }
    let mut requests = 0;
    for round in 0..rounds {
        // A batch of at most SLOT_COUNT / 2 requests per side, so that no slot is used twice in flight.
        for me in [0, 1] {
            let batch = 1 + rng.below(SLOT_COUNT / 2);
            for n in 0..batch {
                post(&mut world, &mut sides, me, n, &mut rng, mtu.bytes() as u64);
                requests += 1;
            }
        }
        world.run();
        for me in [0, 1] {
            let added = sides[1 - me].added.to_ne_bytes().to_vec();
            sides[me].checks.push((COUNTERS, added));
            check(&mut world, &mut sides[me], round);
        }
    }
    for side in &sides {
        assert_eq!(world.state(&side.end), QpState::Rts, "seed {seed}");
    }
    (world, requests)
}

fn post(world: &mut World, sides: &mut [Side; 2], me: usize, n: u64, rng: &mut Rng, mtu: u64) {
    let (here, there) = (sides[me].end, sides[1 - me].end);
    let len = length(rng, mtu);
    // Mine at both ends: the lower slots for side 0, the upper for side 1.
    let slot = SLOTS + (n + me as u64 * (SLOT_COUNT / 2)) * SLOT;
    let source = rng.below(SOURCE_LEN - u64::from(len));
    let bytes = world.bytes(&here, source as usize, len as usize);
    let wr_id = sides[me].next_id;
    sides[me].next_id += 1;
    let imm = rng.chance(0.5).then(|| (rng.next() as u32).to_le_bytes());
    let (op, list, opcode, len) = match rng.below(6) {
        0 | 1 => {
            let op = SendOp::Write { remote_addr: BASE + slot, rkey: there.mr.rkey, imm };
            sides[1 - me].checks.push((slot, bytes));
            if imm.is_some() {
                receive(world, &mut sides[1 - me], slot + SLOT / 2, 0, rng);
                sides[1 - me].expected.push_back((len, imm, None));
            }
            (op, buffers(rng, &here, source, len), Opcode::Write, len)
        }
        2 | 3 => {
            let op = SendOp::Send { imm, invalidate: None };
            receive(world, &mut sides[1 - me], slot, len + rng.below(100) as u32, rng);
            sides[1 - me].expected.push_back((len, imm, Some(bytes)));
            (op, buffers(rng, &here, source, len), Opcode::Send, len)
        }
        4 => {
            let from = rng.below(SOURCE_LEN - u64::from(len));
            let bytes = world.bytes(&there, from as usize, len as usize);
            sides[me].checks.push((slot + SLOT / 2, bytes));
            (read(&there, from), buffers(rng, &here, slot + SLOT / 2, len), Opcode::Read, len)
        }
        _ => {
            let add = rng.below(1000);
            // The value before is known: atomics of one side come in order and are the only ones at the peer.
            let before = sides[me].added;
            sides[me].added += add;
            sides[me].checks.push((slot + SLOT / 2, before.to_ne_bytes().to_vec()));
            (fetch_add(&there, COUNTERS, add), buffers(rng, &here, slot + SLOT / 2, 8), Opcode::FetchAdd, 8)
        }
    };
    world.send(&here, wr_id, op, &list);
    sides[me].posted.push_back(Sent { wr_id, opcode, len });
}

fn receive(world: &mut World, side: &mut Side, offset: u64, len: u32, rng: &mut Rng) {
    let wr_id = side.next_id + (1 << 32);
    side.next_id += 1;
    let end = side.end;
    let list = buffers(rng, &end, offset, len);
    world.recv(&end, wr_id, &list);
    side.receives.push_back((wr_id, offset));
}

fn check(world: &mut World, side: &mut Side, round: usize) {
    let end = side.end;
    let sent = world.sent(&end);
    assert_eq!(sent.len(), side.posted.len(), "round {round}: each request completes once");
    for done in sent {
        let posted = side.posted.pop_front().unwrap();
        assert_eq!((done.wr_id, done.status), (posted.wr_id, Status::Success), "round {round}: {done:?}");
        assert_eq!((done.opcode, done.byte_len), (posted.opcode, posted.len));
        side.completed += 1;
    }
    let received = world.received(&end);
    assert_eq!(received.len(), side.receives.len(), "round {round}: each receive completes once");
    for done in received {
        let (wr_id, offset) = side.receives.pop_front().unwrap();
        let (len, imm, bytes) = side.expected.pop_front().unwrap();
        assert_eq!((done.wr_id, done.status, done.byte_len), (wr_id, Status::Success, len));
        assert_eq!(imm.map_or([0; 4], |imm| imm), done.imm);
        if let Some(bytes) = bytes {
            side.checks.push((offset, bytes));
        }
    }
    for (offset, bytes) in side.checks.drain(..) {
        side.shadow[offset as usize..offset as usize + bytes.len()].copy_from_slice(&bytes);
    }
    assert_bytes(&world.bytes(&end, 0, MEMORY), &side.shadow);
}

#[test]
fn without_faults_nothing_is_sent_twice() {
    for route in BOTH {
        for seed in 1..6 {
            let (world, _) = run(route, seed, Faults::default(), 20);
            for end in world.ends() {
                let counters = world.counters(&end);
                assert_eq!(counters.completer_retry_err, 0, "{counters:?}");
                assert_eq!(counters.duplicate_request + counters.out_of_seq_request + counters.stray_response, 0);
            }
        }
    }
}

#[test]
fn loss_from_1_to_10_percent() {
    for (seed, loss) in [(11, 0.01), (12, 0.02), (13, 0.05), (14, 0.1), (15, 0.01), (16, 0.02)] {
        let (world, _) = run(Route::Wire, seed, Faults { loss, ..Faults::default() }, 10);
        assert!(world.link.dropped > 0);
    }
}

#[test]
fn duplication_reordering_and_corruption() {
    for seed in 21..25 {
        run(Route::Wire, seed, Faults { duplication: 0.05, ..Faults::default() }, 10);
        run(Route::Wire, seed + 10, Faults { reordering: 0.05, ..Faults::default() }, 10);
        run(Route::Wire, seed + 20, Faults { corruption: 0.02, ..Faults::default() }, 10);
        let all = Faults { loss: 0.01, duplication: 0.02, reordering: 0.02, corruption: 0.01, ..Faults::default() };
        run(Route::Wire, seed + 30, all, 10);
    }
}

/// The same over many paths: packets that overtake each other are the rule there.
#[test]
fn many_paths_are_no_different() {
    let mut sprayed = 0;
    for (seed, policy) in (40..).zip(Policy::ALL.into_iter().cycle().take(16)) {
        let config = MultipathConfig {
            policy,
            paths: 1 + seed as u16 % 40,
            window: [16, 64, 256][seed as usize % 3],
            flight: [256, 32][seed as usize % 2],
            agreed: seed % 4 != 0,
            trimmed: true,
            ..MULTIPATH
        };
        let mut rng = Rng::new(seed);
        let mut rate = |most: u64| rng.below(most) as f64 / 1000.0;
        let faults =
            Faults { loss: rate(40), duplication: rate(40), reordering: rate(900), corruption: rate(20), trimming: rate(100) };
        let (world, _) = run_with(Route::Wire, Some(config), seed, faults, 8);
        sprayed += world.ends().iter().map(|end| world.counters(end).sent_spray_pkts).sum::<u64>();
    }
    assert!(sprayed > 5_000, "{sprayed} packets on many paths");
}

/// One core with 20 % loss: some requests run out of retries; then everything after them is flushed, in order, and all ends.
#[test]
fn all_work_ends_at_20_percent_loss() {
    let mut exhausted = 0;
    for seed in 0..20 {
        let (mut world, a, b) = World::pair(Setup { seed, retry_cnt: 3, timeout: 6, ..Setup::new(Route::Wire) });
        world.faults(Faults { loss: 0.2, ..Faults::default() });
        for n in 0..40 {
            world.send(&a, n, write(&b, n * 0x1000), &[a.at(n * 0x1000, 3000)]);
        }
        world.run();
        let sent = world.sent(&a);
        assert_eq!(ids(&sent), (0..40).collect::<Vec<_>>(), "seed {seed}");
        let good = sent.iter().take_while(|done| done.status == Status::Success).count();
        if let Some(failed) = sent.get(good) {
            exhausted += 1;
            assert_eq!(failed.status, Status::RetryExceededError);
            assert!(sent[good + 1..].iter().all(|done| done.status == Status::FlushError));
        }
        for n in 0..good {
            let wanted = world.bytes(&a, n * 0x1000, 3000);
            assert_bytes(&world.bytes(&b, n * 0x1000, 3000), &wanted);
        }
    }
    assert!(exhausted < 20, "some seeds get through");
}

/// More seeds on demand: `RNIC_SEEDS=1000..2000 cargo test -p rnic --test random more_seeds`. Without it, a few.
#[test]
fn more_seeds() {
    let range = std::env::var("RNIC_SEEDS").unwrap_or_else(|_| "100..110".to_owned());
    let (from, to) = range.split_once("..").expect("RNIC_SEEDS is FROM..TO");
    for seed in from.parse().unwrap()..to.parse::<u64>().unwrap() {
        let mut rng = Rng::new(seed);
        let mut rate = |most: u64| rng.below(most) as f64 / 1000.0;
        let faults =
            Faults { loss: rate(40), duplication: rate(40), reordering: rate(60), corruption: rate(20), ..Faults::default() };
        let (world, requests) = run(Route::Wire, seed, faults, 6);
        println!("{requests} requests, {} packets, {} dropped", world.link.sent, world.link.dropped);
    }
}
