//! Connections over many paths: agreement, also with peers that know nothing of it; order of effects; loss and refusals.

mod harness;

use harness::link::Faults;
use harness::*;
use rnic::*;
use roce::wire::spray_ext::{Code, Ext, Packet, is_extension};
use roce::wire::{Headers, Kind};
use spray::Policy;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

fn setup(multipath: [bool; 2]) -> Setup {
    Setup { multipath: multipath.map(|on| on.then_some(MULTIPATH)), ..Setup::new(Route::Wire) }
}

/// A pair that has agreed, after enough packets of another message.
fn agreed(setup: Setup) -> (World, End, End) {
    let (mut world, a, b) = World::pair(setup);
    world.link.record = Some(vec![]);
    world.send(&a, 1, write(&b, 0), &[a.at(0, 100 << 10)]);
    world.run();
    assert_eq!(statuses(&world.sent(&a)), [Status::Success]);
    (world, a, b)
}

/// Packets of the extension among those recorded, and all others.
fn kinds(world: &World) -> (Vec<Packet>, Vec<Headers>) {
    let (mut sprayed, mut plain) = (vec![], vec![]);
    for packet in world.link.record.as_ref().expect("it was recorded") {
        match is_extension(&packet.bytes) {
            true => sprayed.push(Packet::parse(&packet.bytes).expect("well formed").0),
            false => plain.push(packet.headers()),
        }
    }
    (sprayed, plain)
}

fn ports(world: &World) -> BTreeSet<u16> {
    let record = world.link.record.as_ref().expect("it was recorded");
    let data = record.iter().filter(|packet| matches!(packet.bytes[0], 0xE1..=0xE5));
    data.map(|packet| packet.src_port).collect()
}

#[test]
fn two_ends_that_know_agree_and_use_many_paths() {
    let (mut world, a, b) = agreed(setup([true, true]));
    world.faults(Faults { reordering: 1.0, ..Faults::default() });
    let source = world.bytes(&a, 5, 1 << 20);
    for n in 0..4 {
        world.send(&a, n, write(&b, 0x10_0000), &[a.at(5, 1 << 20)]);
    }
    world.run();
    assert_eq!(ids(&world.sent(&a)), [0, 1, 2, 3]);
    assert_bytes(&world.bytes(&b, 0x10_0000, 1 << 20), &source);
    assert_eq!(ports(&world).len(), 16);
    let (sprayed, plain) = kinds(&world);
    let hellos = plain.iter().filter(|headers| headers.bth.opcode.kind() == Kind::Ack && headers.bth.dest_qpn == b.qpn).count();
    assert_eq!(hellos, 1, "one hello was enough");
    assert_eq!(sprayed.iter().filter(|packet| packet.bth.opcode == Code::Offer).count(), 1);
    let data = sprayed.iter().filter(|packet| packet.bth.opcode.is_write_or_send()).count();
    assert!(data >= 4096, "{data}");
    // Every packet was late by its own time, and yet hardly any was sent twice: those that waited too long for room.
    let counters = world.counters(&a);
    assert!(counters.completer_retry_err < 400, "{counters:?}");
    assert_eq!(world.counters(&b).duplicate_request, counters.completer_retry_err, "each for nothing, or for want of room");
}

#[test]
fn a_plain_peer_hears_four_stale_acknowledgements_and_nothing_else() {
    for multipath in [[true, false], [false, true]] {
        let (mut world, a, b) = World::pair(setup(multipath));
        world.link.record = Some(vec![]);
        for round in 0..12 {
            for n in 0..16 {
                world.send(&a, n, write(&b, 0x10_0000), &[a.at(0, 64 << 10)]);
            }
            world.run();
            assert_eq!(statuses(&world.sent(&a)), [Status::Success; 16], "round {round}");
        }
        let (sprayed, _) = kinds(&world);
        assert!(sprayed.is_empty(), "{sprayed:?}");
        let expected = if multipath[0] { 4 } else { 0 };
        assert_eq!(world.counters(&b).stray_response, expected);
        assert_eq!(world.counters(&a).completer_retry_err, 0);
        assert!(world.nics.iter().all(|nic| nic.drop_counters().iter().all(|(_, count)| count == 0)));
    }
}

/// Without the option nothing is said at all.
#[test]
fn off_is_off() {
    let (mut world, a, b) = World::pair(setup([false, false]));
    world.link.record = Some(vec![]);
    world.send(&a, 1, write(&b, 0), &[a.at(0, 1 << 20)]);
    world.run();
    let (sprayed, plain) = kinds(&world);
    assert!(sprayed.is_empty());
    assert!(plain.iter().all(|headers| headers.bth.dest_qpn == a.qpn || headers.bth.opcode.kind() == Kind::Write));
}

/// An end that only receives may stay in RTR, and has no sequence number of its own then: it offers all the same.
#[test]
fn an_end_that_never_sends_is_sprayed_at() {
    for psn in [0, 1 << 20, 1 << 22, 5 << 20, 1 << 23, 0xFF_FFFF] {
        let mut world = World::new(Setup { psn, ..setup([true, true]) });
        let (a, b) = (world.end(), world.end());
        world.init(&a);
        world.init(&b);
        world.rtr(&a, &b);
        world.rtr(&b, &a);
        world.rts(&a);
        world.link.record = Some(vec![]);
        for _ in 0..2 {
            world.send(&a, 1, write(&b, 0), &[a.at(0, 100 << 10)]);
            world.run();
            assert_eq!(statuses(&world.sent(&a)), [Status::Success]);
        }
        assert_eq!(ports(&world).len(), 16, "{psn:#x}");
        assert_eq!(world.counters(&b).stray_response, 0, "{psn:#x}");
    }
}

/// The n-th packet of the negotiation is lost: the ends agree later, and nothing else is lost by it.
#[test]
fn any_packet_of_the_negotiation_may_be_lost() {
    for lost in 0..3 {
        let (mut world, a, b) = World::pair(setup([true, true]));
        world.link.record = Some(vec![]);
        let (to, seen) = (b.qpn, Rc::new(RefCell::new(0_usize)));
        let count = seen.clone();
        world.link.filter = Some(Box::new(move |packet| {
            let is_offer = packet.bytes[0] == Code::Offer as u8;
            let is_hello = !is_extension(&packet.bytes)
                && packet.headers().bth.opcode.kind() == Kind::Ack
                && packet.headers().bth.dest_qpn == to;
            if is_offer || is_hello {
                *count.borrow_mut() += 1;
            }
            !(is_offer || is_hello) || *count.borrow() != lost + 1
        }));
        let source = world.bytes(&a, 0, 512 << 10);
        for n in 0..4 {
            world.send(&a, n, write(&b, 0x10_0000), &[a.at(0, 512 << 10)]);
        }
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::Success; 4], "{lost}");
        assert_bytes(&world.bytes(&b, 0x10_0000, 512 << 10), &source);
        assert_eq!(*seen.borrow(), [3, 4, 2][lost], "hellos and offers, {lost} lost");
        assert!(ports(&world).len() > 1, "they agreed, {lost} lost");
        assert_eq!(world.counters(&a).ack_timeout, 0, "{lost}: {:?}", world.counters(&a));
    }
}

/// All operations, both ways, over a bad network: in the order of posting, with the right bytes.
#[test]
fn everything_works_over_loss_reordering_and_duplication() {
    for (seed, policy) in (0..).zip(Policy::ALL) {
        let config = MultipathConfig { policy, ..MULTIPATH };
        // The numbers wrap inside.
        let setup = Setup { multipath: [Some(config); 2], seed, psn: 0xFF_FF00, timeout: 10, ..Setup::new(Route::Wire) };
        let (mut world, a, b) = agreed(setup);
        world.faults(Faults { loss: 0.02, reordering: 0.5, duplication: 0.02, corruption: 0.005, ..Faults::default() });
        for (from, to) in [(&a, &b), (&b, &a)] {
            for n in 0..8 {
                world.recv(from, 100 + n, &[from.at(0x30_0000 + n * 0x8000, 0x8000)]);
                let big = 0x20_0000 + n * 0x8000;
                world.send(to, n * 5, write(from, big), &[to.at(n * 0x8000, 0x8000)]);
                world.send(to, n * 5 + 1, send_imm([n as u8; 4]), &[to.at(n * 0x8000, 20_001)]);
                world.send(to, n * 5 + 2, read(from, n * 0x8000), &[to.at(0x10_0000 + n * 0x8000, 9_000)]);
                world.send(to, n * 5 + 3, fetch_add(from, 0x3F_0000, 1), &[to.at(0x3F_8000, 8)]);
                world.send(to, n * 5 + 4, write(from, 0x3E_0000 + n * 8), &[to.at(n * 8, 8)]);
            }
        }
        let before = world.word(&b, 0x3F_0000);
        world.run();
        for (from, to) in [(&a, &b), (&b, &a)] {
            let sent = world.sent(to);
            assert_eq!(ids(&sent), (0..40).collect::<Vec<_>>(), "{policy:?}");
            assert_eq!(statuses(&sent), [Status::Success; 40], "{policy:?}");
            let received = world.received(from);
            assert_eq!(ids(&received), (100..108).collect::<Vec<_>>(), "{policy:?}");
            for (n, done) in received.iter().enumerate() {
                assert_eq!((done.imm, done.byte_len), ([n as u8; 4], 20_001));
                let source = world.bytes(to, n * 0x8000, 0x8000);
                assert_bytes(&world.bytes(from, 0x20_0000 + n * 0x8000, 0x8000), &source);
                assert_bytes(&world.bytes(from, 0x30_0000 + n * 0x8000, 20_001), &source[..20_001]);
                let remote = world.bytes(from, n * 0x8000, 9_000);
                assert_bytes(&world.bytes(to, 0x10_0000 + n * 0x8000, 9_000), &remote);
            }
        }
        assert_eq!(world.word(&b, 0x3F_0000), before.wrapping_add(8), "each atomic was executed once");
        assert!(ports(&world).len() > 1 || policy == Policy::Single);
    }
}

/// SP-01: data, then a flag in a WRITE of its own, and the last byte of each message after the others: whenever the memory is
/// looked at, what the flag stands for is there.
#[test]
fn sp_01_a_flag_is_never_seen_before_its_data() {
    let (mut world, a, b) = agreed(setup([true, true]));
    world.faults(Faults { reordering: 0.7, loss: 0.01, ..Faults::default() });
    const ROUNDS: u64 = 200;
    const BYTES: usize = 20_000;
    let mut seen = 0;
    for round in 1..=ROUNDS {
        world.memory.space(a.memory)[..BYTES].fill(round as u8);
        world.memory.space(a.memory)[BYTES..BYTES + 8].copy_from_slice(&round.to_ne_bytes());
        world.memory.space(b.memory)[0x20_0000..0x20_0000 + BYTES].fill(0);
        world.send(&a, round * 2, write(&b, 0x20_0000), &[a.at(0, BYTES as u32)]);
        world.send(&a, round * 2 + 1, write(&b, 0x30_0000), &[a.at(BYTES as u64, 8)]);
        while world.word(&b, 0x30_0000) != round {
            let data = world.bytes(&b, 0x20_0000, BYTES);
            if data[BYTES - 1] == round as u8 {
                assert!(data.iter().all(|byte| *byte == round as u8), "the last byte of round {round} came before others");
                seen += 1;
            }
            world.run_for(Duration::from_micros(1));
        }
        assert!(
            world.bytes(&b, 0x20_0000, BYTES).iter().all(|byte| *byte == round as u8),
            "the flag of round {round} came early"
        );
        world.run();
    }
    assert!(seen > 10, "the memory was looked at in between");
    assert!(world.counters(&b).out_of_seq_request > 1000, "packets did come out of order");
}

/// No receive is posted: the peer waits and tries again, also for messages that were held; then all complete in order.
#[test]
fn messages_wait_for_receives() {
    let (mut world, a, b) = agreed(setup([true, true]));
    world.faults(Faults { reordering: 0.5, ..Faults::default() });
    for n in 0..20 {
        world.send(&a, n, send(), &[a.at(n * 4000, 4000)]);
    }
    for n in 0..20 {
        world.run_for(Duration::from_millis(3));
        assert_eq!(world.received(&b).len(), usize::from(n > 0));
        world.recv(&b, n, &[b.at(0x20_0000 + n * 4000, 4000)]);
    }
    world.run();
    assert_eq!(ids(&world.sent(&a)), (0..20).collect::<Vec<_>>());
    let source = world.bytes(&a, 0, 80_000);
    assert_bytes(&world.bytes(&b, 0x20_0000, 80_000), &source);
    assert!(world.counters(&b).send_rnr_err > 10);
}

/// Receives never come: the limit of RNR retries holds.
#[test]
fn rnr_retries_have_a_limit() {
    let (mut world, a, b) = agreed(Setup { rnr_retry: 3, ..setup([true, true]) });
    world.send(&a, 1, send(), &[a.at(0, 100)]);
    world.run();
    assert_eq!(statuses(&world.sent(&a)), [Status::RnrRetryExceededError]);
    assert_eq!(world.counters(&b).send_rnr_err, 4);
}

/// A key that allows nothing: what came before is complete, the request fails as on one path, and so does the responder.
#[test]
fn refusals_are_those_of_the_plain_way() {
    for bytes in [100, 50_000] {
        let (mut world, a, b) = agreed(setup([true, true]));
        world.faults(Faults { reordering: 0.5, ..Faults::default() });
        world.send(&a, 1, write(&b, 0), &[a.at(0, 30_000)]);
        let bad = SendOp::Write { remote_addr: BASE, rkey: bad_rkey(&b), imm: None };
        world.send(&a, 2, bad, &[a.at(0, bytes)]);
        world.send(&a, 3, write(&b, 0), &[a.at(0, 30_000)]);
        world.run();
        assert_eq!(
            statuses(&world.sent(&a)),
            [Status::Success, Status::RemoteAccessError, Status::FlushError],
            "{bytes} bytes"
        );
        assert_eq!([world.state(&a), world.state(&b)], [QpState::Err; 2]);
        assert_eq!(world.events, [AsyncEvent::QpAccessError(b.qpn)]);
        let (sprayed, _) = kinds(&world);
        assert!(sprayed.iter().any(|packet| matches!(packet.ext, Ext::Nack(nack) if nack.reason.is_fatal())));
    }
}

/// Requests that send nothing, in every neighbourhood, complete in their turn and hold nothing up.
#[test]
fn requests_of_this_side_alone_take_their_turn() {
    let (mut world, a, b) = agreed(setup([true, true]));
    let word = [a.at(0, 8)];
    for round in 0..20 {
        let (first, second) = (round % 5, round / 5);
        for (n, kind) in [first, 0, second, 0, first, second, 0].into_iter().enumerate() {
            match kind {
                0 => world.send(&a, n as u64, SendOp::Nothing, &[]),
                1 | 4 => world.send(&a, n as u64, write(&b, 0), &[a.at(0, 5000)]),
                2 => world.send(&a, n as u64, read(&b, 0), &word),
                _ => world.send(&a, n as u64, fetch_add(&b, 0x30_0000, 1), &word),
            }
        }
        world.run();
        let sent = world.sent(&a);
        assert_eq!((ids(&sent), statuses(&sent)), ((0..7).collect(), vec![Status::Success; 7]), "{first} {second}");
    }
}

/// A local buffer with a wrong key fails its own request, after those before it.
#[test]
fn local_faults_wait_for_what_is_under_way() {
    let (mut world, a, b) = agreed(setup([true, true]));
    world.send(&a, 1, write(&b, 0), &[a.at(0, 30_000)]);
    world.send(&a, 2, write(&b, 0), &[bad_lkey(&a)]);
    world.run();
    assert_eq!(statuses(&world.sent(&a)), [Status::Success, Status::LocalProtectionError]);
}

#[test]
fn a_dead_peer_is_given_up() {
    let (mut world, a, b) = agreed(setup([true, true]));
    world.faults(Faults { loss: 1.0, ..Faults::default() });
    world.send(&a, 1, write(&b, 0), &[a.at(0, 30_000)]);
    world.send(&a, 2, write(&b, 0), &[a.at(0, 8)]);
    world.run();
    assert_eq!(statuses(&world.sent(&a)), [Status::RetryExceededError, Status::FlushError]);
    assert_eq!(world.counters(&a).ack_timeout, 8, "seven retries");
}

/// One of sixteen paths loses everything: it is found out and left, and comes back when it works again.
#[test]
fn a_dead_path_is_left_and_found_again() {
    let (mut world, a, b) = agreed(setup([true, true]));
    let dead = Rc::new(RefCell::new(None));
    let (chosen, lost) = (dead.clone(), Rc::new(RefCell::new(0_u64)));
    let losses = lost.clone();
    world.link.filter = Some(Box::new(move |packet| {
        let mut chosen = chosen.borrow_mut();
        if packet.bytes[0] == Code::Write as u8 && chosen.is_none() {
            *chosen = Some(packet.src_port);
        }
        let passes = *chosen != Some(packet.src_port);
        *losses.borrow_mut() += u64::from(!passes);
        passes
    }));
    let source = world.bytes(&a, 0, 1 << 20);
    for n in 0..8 {
        world.send(&a, n, write(&b, 0x10_0000), &[a.at(0, 1 << 20)]);
    }
    world.run();
    assert_eq!(statuses(&world.sent(&a)), [Status::Success; 8]);
    assert_bytes(&world.bytes(&b, 0x10_0000, 1 << 20), &source);
    let lost = *lost.borrow();
    assert!(lost > 0 && lost < 200, "{lost} of 8192 packets were tried on it");
    world.link.filter = None;
    world.link.record = Some(vec![]);
    let dead = dead.borrow().expect("one was chosen");
    // Unanswered probes come less and less often.
    let is_used = (0..20).any(|n| {
        world.send(&a, n, write(&b, 0x10_0000), &[a.at(0, 2 << 20)]);
        world.run();
        ports(&world).contains(&dead)
    });
    assert!(is_used, "it is used again");
}

/// A reset connection begins plain again.
#[test]
fn a_new_connection_begins_plain() {
    let (mut world, a, b) = agreed(setup([true, true]));
    world.reconnect(&a, &b);
    world.link.record = Some(vec![]);
    world.send(&a, 1, write(&b, 0), &[a.at(0, 20_000)]);
    world.run();
    assert_eq!(statuses(&world.sent(&a)), [Status::Success]);
    assert!(kinds(&world).0.is_empty());
}
