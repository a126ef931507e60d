//! Chosen packets lost, repeated or late on the wire (RC-03, RC-05, RC-07, RC-08, RC-10).

mod harness;

use harness::link::Faults;
use harness::*;
use rnic::*;
use roce::rng::mix;
use roce::wire::{Kind, NakCode, Syndrome};
use std::cell::Cell;
use std::rc::Rc;

/// Drops the n-th packet (0 first) that `choose` picks.
fn drop_nth(world: &mut World, n: usize, choose: fn(Kind) -> bool) -> Rc<Cell<usize>> {
    let seen = Rc::new(Cell::new(0));
    let count = seen.clone();
    world.link.filter = Some(Box::new(move |packet| {
        if !choose(packet.headers().bth.opcode.kind()) {
            return true;
        }
        count.set(count.get() + 1);
        count.get() != n + 1
    }));
    seen
}

fn counted(world: &World, choose: impl Fn(&roce::wire::Headers) -> bool) -> usize {
    world.link.record.as_ref().unwrap().iter().filter(|packet| choose(&packet.headers())).count()
}

fn sequence_naks(world: &World) -> usize {
    let nak = Syndrome::Nak(NakCode::PsnSequenceError);
    counted(world, |headers| headers.aeth.is_some_and(|aeth| aeth.syndrome == nak))
}

/// RC-03: sequence numbers wrap inside a SEND, a WRITE, a READ and between messages, with and without loss.
#[test]
fn rc_03_sequence_numbers_wrap() {
    for psn in (0xFF_FFE0..=0xFF_FFFF).step_by(3) {
        for loss in [0.0, 0.03] {
            let (mut world, a, b) = World::pair(Setup { psn, seed: u64::from(psn), ..Setup::new(Route::Wire) });
            world.faults(Faults { loss, ..Faults::default() });
            world.recv(&b, 1, &[b.at(0x10_0000, 10_000)]);
            let (source, remote) = (world.bytes(&a, 3, 10_000), world.bytes(&b, 0x20_0000, 10_000));
            world.send(&a, 1, write(&b, 0), &[a.at(3, 10_000)]);
            world.send(&a, 2, read(&b, 0x20_0000), &[a.at(0x10_0000, 10_000)]);
            world.send(&a, 3, fetch_add(&b, 0x30_0000, 1), &[a.at(0x20_0000, 8)]);
            world.send(&a, 4, send(), &[a.at(3, 10_000)]);
            world.send(&a, 5, read(&b, 0x20_0000), &[a.at(0x18_0000, 10_000)]);
            world.run();
            assert_eq!(statuses(&world.sent(&a)), [Status::Success; 5], "psn {psn:#x}");
            assert_bytes(&world.bytes(&b, 0, 10_000), &source);
            assert_bytes(&world.bytes(&b, 0x10_0000, 10_000), &source);
            assert_bytes(&world.bytes(&a, 0x10_0000, 10_000), &remote);
            assert_bytes(&world.bytes(&a, 0x18_0000, 10_000), &remote);
            if loss == 0.0 {
                assert_eq!(world.counters(&a).completer_retry_err, 0, "psn {psn:#x}");
            }
        }
    }
}

/// RC-05: any one of the packets of a READ response is lost: the requester asks for the missing tail, and completes once with
/// the right bytes.
#[test]
fn rc_05_lost_read_response() {
    for n in 0..79 {
        let (mut world, a, b) = World::pair(Setup::new(Route::Wire));
        let seen = drop_nth(&mut world, n, |kind| kind == Kind::ReadResponse);
        let remote = world.bytes(&b, 0x10_0000, 80_000);
        world.send(&a, 1, read(&b, 0x10_0000), &[a.at(0, 80_000)]);
        world.send(&a, 2, write(&b, 0), &[a.at(0x20_0000, 8)]);
        world.run();
        assert!(seen.get() > n);
        assert_eq!(statuses(&world.sent(&a)), [Status::Success; 2], "response {n}");
        assert_bytes(&world.bytes(&a, 0, 80_000), &remote);
        assert!(world.counters(&a).completer_retry_err > 0);
    }
}

/// A lost READ request, also one in the middle of others.
#[test]
fn lost_read_request() {
    for n in 0..6 {
        let (mut world, a, b) = World::pair(Setup::new(Route::Wire));
        drop_nth(&mut world, n, |kind| kind == Kind::ReadRequest);
        let remote = world.bytes(&b, 0x10_0000, 70_000);
        for id in 0..3 {
            world.send(&a, id, read(&b, 0x10_0000), &[a.at(id * 0x10_0000, 70_000)]);
        }
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::Success; 3], "request {n}");
        for id in 0..3 {
            assert_bytes(&world.bytes(&a, id * 0x10_0000, 70_000), &remote);
        }
    }
}

/// RC-07: lost responses to atomics: memory changes once per request, and the value before is the one of the first execution.
#[test]
fn rc_07_atomics_happen_once() {
    for seed in 0..10 {
        let (mut world, a, b) = World::pair(Setup { seed, ..Setup::new(Route::Wire) });
        world.faults(Faults { loss: 0.05, ..Faults::default() });
        world.memory.space(b.memory)[..8].fill(0);
        for round in 0..20 {
            for n in 0..50 {
                world.send(&a, n, fetch_add(&b, 0, 1), &[a.at(n * 8, 8)]);
            }
            world.run();
            assert_eq!(statuses(&world.sent(&a)), [Status::Success; 50]);
            for n in 0..50 {
                assert_eq!(world.word(&a, n * 8), (round * 50 + n) as u64, "seed {seed}");
            }
        }
        assert_eq!(world.word(&b, 0), 1000, "seed {seed}");
        assert!(world.counters(&b).duplicate_request > 0, "responses were lost");
    }
}

/// RC-10: one gap gives one NAK, whatever comes behind it; the lost packet alone closes it.
#[test]
fn rc_10_one_nak_per_gap() {
    for n in [0, 1, 10, 30] {
        let (mut world, a, b) = World::pair(Setup::new(Route::Wire));
        world.link.record = Some(Vec::new());
        drop_nth(&mut world, n, |kind| kind == Kind::Write);
        let source = world.bytes(&a, 0, 40_000);
        world.send(&a, 1, write(&b, 0x10_0000), &[a.at(0, 40_000)]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::Success]);
        assert_bytes(&world.bytes(&b, 0x10_0000, 40_000), &source);
        assert_eq!(sequence_naks(&world), 1, "packet {n}");
        assert_eq!(world.counters(&a).ack_timeout, 0, "the NAK is enough");
    }
    let (mut world, a, b) = World::pair(Setup::new(Route::Wire));
    world.link.record = Some(Vec::new());
    world.faults(Faults { reordering: 0.05, ..Faults::default() });
    for n in 0..20 {
        world.send(&a, n, write(&b, 0x10_0000), &[a.at(0, 40_000)]);
    }
    world.run();
    assert_eq!(statuses(&world.sent(&a)), [Status::Success; 20]);
    let gaps = world.counters(&b).out_of_seq_request as usize;
    assert!(sequence_naks(&world) <= gaps && sequence_naks(&world) > 0);
}

/// Every kind of single loss in a mixed sequence: the n-th packet in either direction.
#[test]
fn any_single_loss_is_repaired() {
    for n in 0..60 {
        let (mut world, a, b) = World::pair(Setup { timeout: 5, ..Setup::new(Route::Wire) });
        drop_nth(&mut world, n, |_| true);
        for id in 0..2 {
            world.recv(&b, id, &[b.at(0x10_0000 + id * 0x1_0000, 5000)]);
        }
        let (source, remote) = (world.bytes(&a, 0, 5000), world.bytes(&b, 0x20_0000, 5000));
        let word = world.word(&b, 0x30_0000);
        world.send(&a, 1, send(), &[a.at(0, 5000)]);
        world.send(&a, 2, read(&b, 0x20_0000), &[a.at(0x10_0000, 5000)]);
        world.send(&a, 3, fetch_add(&b, 0x30_0000, 1), &[a.at(0x20_0000, 8)]);
        world.send(&a, 4, write_imm(&b, 0, [1; 4]), &[a.at(0, 5000)]);
        world.send(&a, 5, fetch_add(&b, 0x30_0000, 1), &[a.at(0x20_0008, 8)]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::Success; 5], "packet {n}");
        assert_eq!(ids(&world.received(&b)), [0, 1], "packet {n}");
        assert_bytes(&world.bytes(&b, 0x10_0000, 5000), &source);
        assert_bytes(&world.bytes(&b, 0, 5000), &source);
        assert_bytes(&world.bytes(&a, 0x10_0000, 5000), &remote);
        assert_eq!((world.word(&a, 0x20_0000), world.word(&a, 0x20_0008)), (word, word.wrapping_add(1)));
        assert_eq!(world.word(&b, 0x30_0000), word.wrapping_add(2), "packet {n}");
    }
}

/// A lost acknowledgement costs a repetition, not a second delivery.
#[test]
fn lost_acknowledgement() {
    let (mut world, a, b) = World::pair(Setup::new(Route::Wire));
    drop_nth(&mut world, 0, |kind| kind == Kind::Ack);
    world.recv(&b, 1, &[b.at(0, 100)]);
    world.recv(&b, 2, &[b.at(0, 100)]);
    world.send(&a, 1, send(), &[a.at(0, 100)]);
    world.run();
    assert_eq!(statuses(&world.sent(&a)), [Status::Success]);
    assert_eq!(ids(&world.received(&b)), [1]);
    assert_eq!((world.counters(&a).ack_timeout, world.counters(&b).duplicate_request), (1, 1));
}

/// A connection leaves a dead path, there and back: with a quarter of all UDP source ports leading nowhere, requests of all kinds
/// complete within its retries. On a sound path the source port never changes.
#[test]
fn a_dead_path_is_left() {
    let mut dropped = 0;
    for seed in 0..60 {
        for dead in [false, true] {
            let (mut world, a, b) = World::pair(Setup { seed, ..Setup::new(Route::Wire) });
            world.link.record = Some(Vec::new());
            world.link.filter = Some(Box::new(move |packet| !dead || mix(packet.src_port.into()) >> 62 != 0));
            let source = world.bytes(&a, 3, 20_000);
            for n in 0..3 {
                world.recv(&b, n, &[b.at(0x10_0000, 20_000)]);
                world.send(&a, n * 4, write(&b, n * 0x8000), &[a.at(3, 20_000)]);
                world.send(&a, n * 4 + 1, read(&b, 0x20_0000), &[a.at(0x10_0000, 20_000)]);
                world.send(&a, n * 4 + 2, fetch_add(&b, 0x30_0000, 1), &[a.at(0x20_0000, 8)]);
                world.send(&a, n * 4 + 3, send(), &[a.at(3, 20_000)]);
            }
            world.run();
            assert_eq!(statuses(&world.sent(&a)), [Status::Success; 12], "seed {seed}, dead {dead}");
            assert_bytes(&world.bytes(&b, 0x1_0000, 20_000), &source);
            dropped += world.link.dropped;
            let packets = world.link.record.take().unwrap();
            for end in [&a, &b] {
                let mut ports: Vec<u16> = packets.iter().filter(|p| p.src == end.ip).map(|p| p.src_port).collect();
                ports.dedup();
                assert!(dead || ports.len() == 1, "seed {seed}: packets on a sound path left from {ports:?}");
            }
        }
    }
    assert!(dropped > 0, "no connection began on a dead path");
}
