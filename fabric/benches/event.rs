//! What an event costs: the calendar alone, against a binary heap over all events in the same run; and a whole fabric, hosts
//! included, per event.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use fabric::calendar::Calendar;
use fabric::time::Time;
use fabric::{Sim, reference};
use roce::rng::Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;

/// Events that are to come at any time: about as many as in a fabric of a thousand hosts.
const PENDING: u64 = 20_000;
/// Events taken, each followed by a new one, per measurement.
const TURNS: u64 = 100_000;
/// The longest delay: a packet and a wire.
const DELAY: u64 = 1_400_000;

fn calendar(c: &mut Criterion) {
    let mut group = c.benchmark_group("one event in, one out");
    group.throughput(Throughput::Elements(TURNS));
    group.bench_function("calendar", |b| {
        let mut rng = Rng::new(1);
        let mut calendar = Calendar::new();
        (0..PENDING).for_each(|n| calendar.add(Time::from_ps(rng.below(DELAY)), n));
        b.iter(|| {
            for _ in 0..TURNS {
                let (at, n) = calendar.take().expect("as many come as go");
                calendar.add(at.after(rng.below(DELAY)), black_box(n));
            }
        });
    });
    group.bench_function("binary heap", |b| {
        let mut rng = Rng::new(1);
        let mut heap = BinaryHeap::new();
        let mut made = 0_u64;
        (0..PENDING).for_each(|n| heap.push(Reverse((rng.below(DELAY), n, n))));
        b.iter(|| {
            for _ in 0..TURNS {
                let Reverse((at, _, n)) = heap.pop().expect("as many come as go");
                made += 1;
                heap.push(Reverse((at + rng.below(DELAY), PENDING + made, black_box(n))));
            }
        });
    });
    group.finish();
}

fn fabric(c: &mut Criterion) {
    // 128 hosts.
    let scenario = reference::scenario(8, 1);
    let new = || Sim::new(&scenario, None).expect("the reference's configuration is sound");
    let mut sim = new();
    sim.run();
    let mut group = c.benchmark_group("fabric of 128 hosts");
    group.throughput(Throughput::Elements(sim.events()));
    group.sample_size(10);
    group.bench_function("event", |b| b.iter_batched(new, |mut sim| sim.run(), BatchSize::PerIteration));
    group.finish();
}

criterion_group!(benches, calendar, fabric);
criterion_main!(benches);
