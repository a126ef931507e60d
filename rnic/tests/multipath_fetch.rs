//! READs and atomics over many paths: whatever happens to their packets, data comes to its place, atomics happen once, and peers
//! that do not take them so are served in the plain way.

mod harness;

use harness::link::Faults;
use harness::*;
use rnic::*;
use roce::Mtu;
use roce::wire::icrc;
use roce::wire::spray_ext::{Code, Ext, Offer, Packet, feature, is_extension};
use spray::Policy;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

const AGREED: MultipathConfig = MultipathConfig { agreed: true, ..MULTIPATH };

/// Both ends know that they spray.
fn setup() -> Setup {
    Setup { multipath: [Some(AGREED); 2], timeout: 10, ..Setup::new(Route::Wire) }
}

/// Source ports of the recorded packets of a kind.
fn ports(world: &World, code: Code) -> BTreeSet<u16> {
    let record = world.link.record.as_ref().expect("it was recorded");
    record.iter().filter(|packet| packet.bytes[0] == code as u8).map(|packet| packet.src_port).collect()
}

/// A mixed stream of all operations from `a` to `b`, checked byte by byte. Returns how many messages of it were fetches.
fn mixed(world: &mut World, a: &End, b: &End, rounds: u64) {
    let before = world.word(b, 0x3F_0000);
    for n in 0..rounds {
        world.recv(b, 100 + n, &[b.at(0x30_0000 + n * 0x4000, 0x4000)]);
        world.send(a, n * 6, read(b, n * 0x4000), &[a.at(0x10_0000 + n * 0x8000, 30_001)]);
        world.send(a, n * 6 + 1, write(b, 0x20_0000 + n * 0x4000), &[a.at(n * 0x4000, 0x4000)]);
        world.send(a, n * 6 + 2, fetch_add(b, 0x3F_0000, 1), &[a.at(0x3F_8000 + n * 8, 8)]);
        world.send(a, n * 6 + 3, send_imm([n as u8; 4]), &[a.at(n * 0x4000, 9_001)]);
        world.send(a, n * 6 + 4, read(b, 5), &[]);
        world.send(a, n * 6 + 5, fetch_add(b, 0x3F_0000, 1), &[a.at(0x3F_9000 + n * 8, 8)]);
    }
    world.run();
    let sent = world.sent(a);
    assert_eq!(ids(&sent), (0..rounds * 6).collect::<Vec<_>>());
    assert_eq!(statuses(&sent), vec![Status::Success; rounds as usize * 6]);
    assert_eq!(ids(&world.received(b)), (100..100 + rounds).collect::<Vec<_>>());
    for n in 0..rounds {
        let remote = world.bytes(b, n as usize * 0x4000, 30_001);
        assert_bytes(&world.bytes(a, 0x10_0000 + n as usize * 0x8000, 30_001), &remote);
        let ours = world.bytes(a, n as usize * 0x4000, 0x4000);
        assert_bytes(&world.bytes(b, 0x20_0000 + n as usize * 0x4000, 0x4000), &ours);
        assert_bytes(&world.bytes(b, 0x30_0000 + n as usize * 0x4000, 9_001), &ours[..9_001]);
        // Each atomic saw those before it, and no other.
        assert_eq!(world.word(a, 0x3F_8000 + n as usize * 8), before.wrapping_add(2 * n));
        assert_eq!(world.word(a, 0x3F_9000 + n as usize * 8), before.wrapping_add(2 * n + 1));
    }
    assert_eq!(world.word(b, 0x3F_0000), before.wrapping_add(2 * rounds));
}

#[test]
fn reads_come_back_on_many_paths_in_any_order() {
    for mtu in [Mtu::B1024, Mtu::B4096] {
        let (mut world, a, b) = World::pair(Setup { mtu, psn: 0xFF_FF80, ..setup() });
        world.link.record = Some(vec![]);
        world.faults(Faults { reordering: 1.0, ..Faults::default() });
        let source = world.bytes(&b, 3, 1 << 20);
        for n in 0..4 {
            world.send(&a, n, read(&b, 3), &[a.at(0x10_0000, 1 << 20)]);
        }
        world.run();
        assert_eq!((ids(&world.sent(&a)), world.state(&a)), ((0..4).collect(), QpState::Rts));
        assert_bytes(&world.bytes(&a, 0x10_0000, 1 << 20), &source);
        for code in [Code::ReadRequest, Code::ReadResponse] {
            assert_eq!(ports(&world, code).len(), 16, "{code:?}");
        }
        let record = world.link.record.take().unwrap();
        assert!(record.iter().all(|packet| is_extension(&packet.bytes)), "nothing is plain");
        // A part is asked for on the path that it comes back on.
        let requests = record.iter().filter(|packet| packet.bytes[0] == Code::ReadRequest as u8).count();
        let packets = 4 * (1 << 20) / mtu.bytes();
        assert!(requests >= packets / 4 && requests < packets / 2, "{requests} requests for {packets} packets");
    }
}

/// Every kind of packet that there is, at a high rate: lost, duplicated, late.
#[test]
fn any_kind_of_packet_may_be_lost_or_come_twice_or_late() {
    let kinds = [0xE1, 0xE3, 0xE4, 0xE6, 0xE7, 0xE9, 0xEA, 0xEB, 0xEC];
    for (seed, kind) in (0..).zip(kinds) {
        for mtu in [Mtu::B1024, Mtu::B4096] {
            let (mut world, a, b) = World::pair(Setup { mtu, seed, psn: 0xFF_FFF0, ..setup() });
            let mut rng = world.link.rng.clone();
            let hit = Rc::new(RefCell::new(0));
            let hits = hit.clone();
            world.link.filter = Some(Box::new(move |packet| {
                let is_lost = packet.bytes[0] == kind && rng.chance(0.3);
                *hits.borrow_mut() += u32::from(is_lost);
                !is_lost
            }));
            mixed(&mut world, &a, &b, 8);
            // Every receive was there: nothing had to be refused.
            assert!(*hit.borrow() > 0 || kind == 0xEC, "kind {kind:#x}");
            world.link.filter = None;
            world.faults(Faults { reordering: 0.5, duplication: 0.3, ..Faults::default() });
            mixed(&mut world, &a, &b, 8);
        }
    }
}

#[test]
fn mixed_streams_over_a_bad_network() {
    for (seed, policy) in (0..).zip(Policy::ALL) {
        let config = MultipathConfig { policy, ..AGREED };
        let (mut world, a, b) = World::pair(Setup { seed, multipath: [Some(config); 2], ..setup() });
        world.faults(Faults { loss: 0.03, reordering: 0.5, duplication: 0.03, corruption: 0.01, ..Faults::default() });
        for _ in 0..3 {
            mixed(&mut world, &a, &b, 8);
        }
    }
}

/// No more READs are under way than was agreed on, however many are posted, and a fence waits for all of them.
#[test]
fn the_depth_and_the_fence_hold() {
    for depth in [1, 2, 4] {
        let (mut world, a, b) = World::pair(Setup { max_rd_atomic: depth, max_dest_rd_atomic: depth, ..setup() });
        let most = Rc::new(RefCell::new((0_i64, 0_i64)));
        let under_way = most.clone();
        world.link.filter = Some(Box::new(move |packet| {
            let mut count = under_way.borrow_mut();
            count.0 += match packet.bytes[0] {
                0xE6 | 0xE8 | 0xE9 => 1,
                0xE7 | 0xEA => -1,
                _ => 0,
            };
            count.1 = count.1.max(count.0);
            true
        }));
        for n in 0..16 {
            let op = if n % 3 == 0 { fetch_add(&b, 0x30_0000, 1) } else { read(&b, 0) };
            world.send(&a, n, op, &[a.at(0x10_0000, if n % 3 == 0 { 8 } else { 900 })]);
        }
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::Success; 16]);
        assert_eq!(most.borrow().1, i64::from(depth), "as many as may be, and no more");
    }
    let (mut world, a, b) = World::pair(setup());
    world.faults(Faults { reordering: 1.0, ..Faults::default() });
    for round in 0..20 {
        let source = world.bytes(&b, round * 100, 50_000);
        world.send(&a, 1, read(&b, round as u64 * 100), &[a.at(0x10_0000, 50_000)]);
        world.try_send_flags(&a, 2, write(&b, 0x20_0000), &[a.at(0x10_0000, 50_000)], SendFlags::FENCE).unwrap();
        world.run();
        assert_eq!(ids(&world.sent(&a)), [1, 2]);
        assert_bytes(&world.bytes(&b, 0x20_0000, 50_000), &source);
    }
}

/// Refusals are those of the plain way: what came before completes, also READs whose data is still on its way.
#[test]
fn refusals_wait_for_what_came_before() {
    for bytes in [0, 100, 50_000] {
        for lossy in [false, true] {
            let (mut world, a, b) = World::pair(setup());
            world.faults(Faults { reordering: 0.5, ..Faults::default() });
            if lossy {
                // The first packets of the READ's answer; those that are asked for again pass.
                let lost = RefCell::new(0);
                world.link.filter = Some(Box::new(move |packet| {
                    *lost.borrow_mut() += u32::from(packet.bytes[0] == Code::ReadResponse as u8);
                    packet.bytes[0] != Code::ReadResponse as u8 || *lost.borrow() > 2
                }));
            }
            world.send(&a, 1, write(&b, 0x20_0000), &[a.at(0, 30_000)]);
            world.send(&a, 2, read(&b, 0), &[a.at(0x10_0000, 30_000)]);
            if lossy {
                // A responder that has failed answers no more: the data has to be there before.
                world.run();
            }
            let bad = SendOp::Read { remote_addr: BASE, rkey: bad_rkey(&b) };
            world.send(&a, 3, bad, &[a.at(0x18_0000, bytes)]);
            world.send(&a, 4, write(&b, 0x20_0000), &[a.at(0, 30_000)]);
            world.run();
            // The key of nothing is not looked at.
            let expected = match bytes {
                0 => vec![Status::Success; 4],
                _ => vec![Status::Success, Status::Success, Status::RemoteAccessError, Status::FlushError],
            };
            assert_eq!(statuses(&world.sent(&a)), expected, "{bytes} bytes, {lossy}");
            let source = world.bytes(&b, 0, 30_000);
            assert_bytes(&world.bytes(&a, 0x10_0000, 30_000), &source);
        }
    }
}

/// The requester's own memory goes away while its READ is under way: that READ fails, after those before it.
#[test]
fn data_that_cannot_be_placed_fails_its_own_request() {
    for key_only in [false, true] {
        let (mut world, a, b) = World::pair(setup());
        world.send(&a, 1, write(&b, 0x20_0000), &[a.at(0, 3_000)]);
        world.send(&a, 2, read(&b, 0), &[a.at(0x10_0000, 1 << 20)]);
        world.send(&a, 3, write(&b, 0x20_0000), &[a.at(0, 3_000)]);
        world.run_for(Duration::from_micros(40));
        assert_eq!(statuses(&world.sent(&a)), [Status::Success]);
        match key_only {
            true => world.nics[a.nic].dereg_mr(a.mr.lkey).unwrap(),
            false => world.memory.take_away(a.memory),
        }
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::LocalProtectionError, Status::FlushError], "{key_only}");
    }
}

/// The memory that is read goes away: the requester is told, and what came before is complete.
#[test]
fn data_that_cannot_be_read_is_told() {
    let (mut world, a, b) = World::pair(setup());
    world.send(&a, 1, read(&b, 0), &[a.at(0x10_0000, 3_000)]);
    world.send(&a, 2, read(&b, 0), &[a.at(0x10_0000, 1 << 20)]);
    world.send(&a, 3, write(&b, 0x20_0000), &[a.at(0, 3_000)]);
    world.run_for(Duration::from_micros(40));
    world.memory.take_away(b.memory);
    world.run();
    let expected = [Status::Success, Status::RemoteOperationalError, Status::FlushError];
    assert_eq!(statuses(&world.sent(&a)), expected);
    assert_eq!([world.state(&a), world.state(&b)], [QpState::Err; 2]);
}

/// A READ behind a SEND that waits for a receive waits with it, for as long as that takes.
#[test]
fn a_read_waits_behind_a_send_that_waits() {
    let (mut world, a, b) = World::pair(setup());
    world.send(&a, 1, send(), &[a.at(0, 4_000)]);
    world.send(&a, 2, read(&b, 0), &[a.at(0x10_0000, 20_000)]);
    world.send(&a, 3, fetch_add(&b, 0x30_0000, 1), &[a.at(0x20_0000, 8)]);
    world.run_for(Duration::from_millis(500));
    assert!(world.sent(&a).is_empty());
    assert_eq!(world.state(&a), QpState::Rts);
    world.recv(&b, 9, &[b.at(0x20_0000, 4_000)]);
    world.run();
    assert_eq!(ids(&world.sent(&a)), [1, 2, 3]);
    let source = world.bytes(&b, 0, 20_000);
    assert_bytes(&world.bytes(&a, 0x10_0000, 20_000), &source);
}

/// A peer whose offer does not have the feature gets READs and atomics in the plain way, and the rest on many paths.
#[test]
fn a_peer_without_the_feature_is_asked_plainly() {
    let config = MULTIPATH;
    let (mut world, a, b) = World::pair(Setup { multipath: [Some(config); 2], ..setup() });
    world.link.record = Some(vec![]);
    world.link.filter = Some(Box::new(|packet| packet.bytes[0] != Code::Offer as u8));
    world.send(&a, 1, write(&b, 0x20_0000), &[a.at(0, 100 << 10)]);
    world.run();
    let record = world.link.record.as_ref().unwrap();
    let offer = record.iter().find(|packet| packet.bytes[0] == Code::Offer as u8).expect("one was made");
    let Packet { bth, ext: Ext::Offer(told) } = Packet::parse(&offer.bytes).unwrap().0 else { panic!("{:?}", offer.bytes) };
    assert_eq!(told.features & feature::FETCH, feature::FETCH, "this end has it");
    let mut bytes = vec![0; 64];
    let len = Packet { bth, ext: Ext::Offer(Offer { features: 0, ..told }) }.emit(&mut bytes);
    bytes.truncate(len);
    let flow = icrc::Flow { src: b.ip, dst: a.ip, src_port: 0xC123 };
    let sum = icrc::compute(&flow, 0, &bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    world.inject_bytes(&b, &a, &bytes);
    world.link.record = Some(vec![]);
    world.faults(Faults { reordering: 0.3, loss: 0.01, ..Faults::default() });
    world.sent(&a);
    mixed(&mut world, &a, &b, 8);
    let record = world.link.record.as_ref().unwrap();
    let has = |code: Code| record.iter().any(|packet| packet.bytes[0] == code as u8);
    assert!(has(Code::Write) && has(Code::Send), "the rest is sprayed");
    assert!(![Code::ReadRequest, Code::ReadResponse, Code::FetchAdd, Code::AtomicResponse].into_iter().any(has));
}

/// Answers never come: the limit of retries holds.
#[test]
fn answers_that_never_come_end_the_connection() {
    for kind in [Code::ReadResponse, Code::AtomicResponse] {
        let (mut world, a, b) = World::pair(setup());
        world.link.filter = Some(Box::new(move |packet| packet.bytes[0] != kind as u8));
        let op = if kind == Code::ReadResponse { read(&b, 0) } else { fetch_add(&b, 0x30_0000, 1) };
        let before = world.word(&b, 0x30_0000);
        world.send(&a, 1, op, &[a.at(0, if kind == Code::ReadResponse { 30_000 } else { 8 })]);
        world.send(&a, 2, write(&b, 0x20_0000), &[a.at(0, 8)]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::RetryExceededError, Status::FlushError], "{kind:?}");
        let added = u64::from(kind == Code::AtomicResponse);
        assert_eq!(world.word(&b, 0x30_0000), before.wrapping_add(added), "once, however often it was asked for");
    }
}

/// A switch cuts packets to their headers: each is sent again at once, on another path, and no time-out passes.
#[test]
fn what_a_switch_has_trimmed_is_sent_again_at_once() {
    for kind in [Code::Write, Code::ReadResponse] {
        let config = MultipathConfig { trimmed: true, ..AGREED };
        let (mut world, a, b) = World::pair(Setup { multipath: [Some(config); 2], ..setup() });
        world.link.record = Some(vec![]);
        world.faults(Faults { trimming: 0.2, ..Faults::default() });
        mixed(&mut world, &a, &b, 4);
        let (op, source, sink) = match kind {
            Code::Write => (write(&b, 0x20_0000), (&a, 0), (&b, 0x20_0000)),
            _ => (read(&b, 0), (&b, 0), (&a, 0x10_0000)),
        };
        let ours = if kind == Code::Write { 0 } else { 0x10_0000 };
        let expected = world.bytes(source.0, source.1, 1 << 20);
        world.link.record = Some(vec![]);
        let start = world.now;
        world.send(&a, 1000, op, &[a.at(ours, 1 << 20)]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::Success]);
        assert_bytes(&world.bytes(sink.0, sink.1, 1 << 20), &expected);
        let counters = world.counters(&a);
        assert_eq!(counters.ack_timeout, 0, "{counters:?}");
        assert!(counters.completer_retry_err > 30, "{counters:?}");
        // Of those sent more than once, each on another path than before.
        let record = world.link.record.take().unwrap();
        let sent = |psn| record.iter().filter(move |packet| packet.bytes[0] == kind as u8 && packet.bytes[9..12] == psn);
        let psns: BTreeSet<[u8; 3]> = record
            .iter()
            .filter(|packet| packet.bytes[0] == kind as u8)
            .map(|packet| packet.bytes[9..12].try_into().unwrap())
            .collect();
        for psn in psns {
            let ports: Vec<u16> = sent(psn).map(|packet| packet.src_port).collect();
            assert!(ports.windows(2).all(|pair| pair[0] != pair[1]), "PSN {psn:?} on {ports:?}");
        }
        println!("{kind:?}: 1 MiB in {:?}", world.completed_at - start);
    }
}

/// What is left of a packet, made up by anybody: at worst a packet is sent twice.
#[test]
fn made_up_remains_do_no_harm() {
    let config = MultipathConfig { trimmed: true, ..AGREED };
    let (mut world, a, b) = World::pair(Setup { multipath: [Some(config); 2], ..setup() });
    mixed(&mut world, &a, &b, 2);
    let mut rng = world.link.rng.clone();
    for round in 0..200 {
        let (from, to) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let mut bytes: Vec<u8> = (0..rng.below(40)).map(|_| rng.next() as u8).collect();
        if bytes.len() >= 12 && round % 3 > 0 {
            bytes[0] = [0xE1, 0xE3, 0xE7][rng.below(3) as usize];
            bytes[1..8].copy_from_slice(&[0x40, 0xFF, 0xFF, 0, 0, 0, 0]);
            bytes[5..8].copy_from_slice(&to.qpn.get().to_be_bytes()[1..]);
            bytes[8..12].copy_from_slice(&(1000 + rng.below(200) as u32).to_be_bytes());
        }
        let meta = RxMeta { trimmed: true, ..harness::link::meta(to.device, from.ip, to.ip, 0xC123, bytes.len()) };
        world.nics[to.nic].handle_burst(world.now, &meta, &bytes, &mut world.memory);
        world.send(&a, 1, write(&b, 0x20_0000), &[a.at(0, 5_000)]);
        world.send(&a, 2, read(&b, 0), &[a.at(0x10_0000, 5_000)]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::Success; 2], "round {round}");
    }
}
