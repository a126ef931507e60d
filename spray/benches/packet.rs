//! Time per packet: at the sender picking a path, recording and being acknowledged, by policy; at the receiver taking packets in
//! order and out of order, and telling of them.

#![allow(missing_docs, reason = "the macros of criterion define undocumented items")]

use core::time::Duration;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use roce::rng::Rng;
use roce::wire::spray_ext::{Sack, SackMap, Stamp};
use roce::{Instant, Psn};
use spray::{Arrived, Law, LossLimits, PathId, Policy, Receiver, Sender, SenderConfig, WindowLimits};
use std::hint::black_box;

const FIRST: Psn = Psn::new(1);
const BYTES: u16 = 4150;
const UNDER_WAY: u32 = 256;

fn config(policy: Policy, paths: u16) -> SenderConfig {
    SenderConfig {
        policy,
        paths,
        first_port: 0xC000,
        seed: 1,
        window: 512,
        first_psn: FIRST,
        law: Law::Proportional,
        limits: WindowLimits {
            start: 512 * u64::from(BYTES),
            ..WindowLimits::for_software(u32::from(BYTES), 512, Duration::from_micros(50))
        },
        loss: LossLimits::default(),
    }
}

fn sack(port: u16, time: Instant, received: u16, map: SackMap) -> Sack {
    Sack {
        stamp: Stamp { msn: 0, time: time.as_nanos() as u32 },
        port,
        marked: false,
        answers_probe: false,
        window: 512,
        received,
        received_marked: 0,
        duplicates: 0,
        rate: 0,
        map,
    }
}

/// A steady state: as many packets as one acknowledgement tells of leave for each.
fn send(c: &mut Criterion) {
    let mut group = c.benchmark_group("send_and_acknowledge");
    for (policy, per_sack) in Policy::ALL.into_iter().flat_map(|policy| [(policy, 1_u32), (policy, 4)]) {
        group.throughput(Throughput::Elements(u64::from(per_sack)));
        group.bench_function(BenchmarkId::new(policy.name(), per_sack), |b| {
            let mut sender = Sender::new(&config(policy, 128));
            let (mut now, mut received) = (Instant::from_nanos(1 << 20), 0_u16);
            let mut sent = std::collections::VecDeque::new();
            for _ in 0..UNDER_WAY {
                sent.push_back((sender.send(now, BYTES), now));
            }
            b.iter(|| {
                now = now + Duration::from_nanos(100 * u64::from(per_sack));
                received = received.wrapping_add(per_sack as u16);
                let newest = sent.drain(..per_sack as usize).next_back().expect("some are under way");
                let sack = sack(newest.0.port, newest.1, received, SackMap::EMPTY);
                black_box(sender.on_sack(now, newest.0.psn, &sack));
                for _ in 0..per_sack {
                    sent.push_back((sender.send(now, BYTES), now));
                }
            });
            assert_eq!(sender.counters().resent, 0, "nothing is lost");
        });
    }
    group.finish();
}

/// Packets of 256 in random order within 64 neighbours: what paths of unequal delay make of them.
fn shuffled() -> Vec<u32> {
    let mut rng = Rng::new(7);
    let mut keys: Vec<(u64, u32)> = (0..UNDER_WAY).map(|n| (u64::from(n) + rng.below(64), n)).collect();
    keys.sort();
    keys.into_iter().map(|(_, n)| n).collect()
}

fn receive(c: &mut Criterion) {
    let mut group = c.benchmark_group("receive");
    group.throughput(Throughput::Elements(u64::from(UNDER_WAY)));
    let in_order: Vec<u32> = (0..UNDER_WAY).collect();
    for (name, order) in [("in_order", in_order), ("shuffled", shuffled())] {
        for every in [1, 4] {
            group.bench_function(BenchmarkId::new(name, every), |b| {
                let make = || Receiver::new(512, FIRST, every, Duration::from_micros(10));
                b.iter_batched_ref(
                    make,
                    |receiver| {
                        for &n in &order {
                            let arrived = Arrived { port: 0xC000, time: n, marked: false, ack_req: false };
                            black_box(receiver.on_packet(Instant::ZERO, FIRST.plus(n), 1, arrived));
                            black_box(receiver.advance());
                            black_box(receiver.poll_sack(Instant::ZERO, 0));
                        }
                    },
                    BatchSize::SmallInput,
                );
            });
        }
    }
    group.finish();
}

/// A path from the port that an acknowledgement echoes.
fn port_to_path(c: &mut Criterion) {
    let ports = spray::Ports::new(128, 0xC000, 1);
    let port = ports.port(PathId(77));
    c.bench_function("port_to_path", |b| b.iter(|| black_box(&ports).path(black_box(port))));
}

criterion_group!(benches, send, receive, port_to_path);
criterion_main!(benches);
