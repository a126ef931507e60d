//! Time of a translation and of a registration, from few regions to 100,000 and from one run to thousands: both have to
//! stay flat in the number of regions.

#![allow(missing_docs, reason = "the macros of criterion define undocumented items")]

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use emtt::{Access, MemId, Owner, PdId, RegionInit, Segment, Table};
use std::hint::black_box;

const PD: PdId = PdId(1);
const RUN_LEN: u64 = 1 << 21;

/// A region of `runs` runs that do not continue each other.
fn region(runs: u64) -> RegionInit {
    let runs = (0..runs).map(|i| Segment { owner: Owner::Host(MemId(1)), addr: i * 2 * RUN_LEN, len: RUN_LEN }).collect();
    RegionInit { pd: PD, iova: 0x1000, access: Access::all(), runs }
}

fn filled(regions: usize, runs: u64) -> (Table, Vec<u32>) {
    let mut table = Table::new(1);
    let keys = (0..regions).map(|_| table.insert(region(runs)).expect("room for it")).collect();
    (table, keys)
}

/// Keys in an order that the cache does not foresee.
fn shuffled(keys: &[u32]) -> Vec<u32> {
    (0..keys.len()).map(|i| keys[i * 7919 % keys.len()]).collect()
}

fn translate(c: &mut Criterion) {
    let mut group = c.benchmark_group("translate 4 KiB");
    for regions in [1, 1000, 100_000] {
        let (table, keys) = filled(regions, 1);
        let keys = shuffled(&keys);
        let mut next = keys.iter().cycle();
        group.bench_function(BenchmarkId::new("regions", regions), |b| {
            b.iter(|| {
                let key = *next.next().expect("cycle");
                table.translate(black_box(key), PD, 0x2000, 4096, Access::REMOTE_WRITE).map(Iterator::last)
            });
        });
    }
    for runs in [16, 4096] {
        let (table, keys) = filled(1, runs);
        let mut at = 0;
        group.bench_function(BenchmarkId::new("runs", runs), |b| {
            b.iter(|| {
                at = (at + 12_345_678) % (runs * RUN_LEN - 4096);
                table.translate(black_box(keys[0]), PD, 0x1000 + at, 4096, Access::REMOTE_WRITE).map(Iterator::last)
            });
        });
    }
    group.finish();
}

fn register(c: &mut Criterion) {
    let mut group = c.benchmark_group("register and remove");
    for regions in [0, 1000, 100_000] {
        let (mut table, _) = filled(regions, 1);
        group.bench_function(BenchmarkId::new("among", regions), |b| {
            b.iter_batched(
                || region(1),
                |init| {
                    let key = table.insert(init).expect("room for it");
                    table.remove(key)
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, translate, register);
criterion_main!(benches);
