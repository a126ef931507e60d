//! What a registration pays: for blocks that are pinned already (hit), for the bookkeeping of one that is not (miss), and
//! for real memory, resident or not; what a guest pays to start; and what an access pays to enter a region.

#![allow(missing_docs, reason = "the macros of criterion define undocumented items")]

#[path = "../tests/guest/mod.rs"]
mod guest;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use guest::{BLOCK, Guest, READ_WRITE, range};
use nix::fcntl::{FallocateFlags, fallocate};
use pvdma::{Config, FakePinner, Instant, LockPinner, MapCache, Pinner};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

const GIB: u64 = 1 << 30;
const NOW: Instant = Instant::from_nanos(1);

fn cache_of(guest: &Guest, len: u64, pinner: impl Pinner + 'static) -> MapCache {
    let cache = MapCache::new(Config { max_idle: Duration::ZERO, ..Config::default() }, Arc::new(pinner));
    cache.map(guest.flat(len)).expect("free");
    cache
}

fn hit(c: &mut Criterion) {
    let mut group = c.benchmark_group("hit: pin and let go");
    for gib in [1, 16] {
        let guest = Guest::new(gib * GIB);
        let cache = cache_of(&guest, gib * GIB, FakePinner::new());
        drop(cache.pin(NOW, range(0, gib * GIB), READ_WRITE).expect("mapped"));
        let blocks = gib * GIB / BLOCK;
        let mut at = 0;
        group.bench_function(BenchmarkId::new("one block, guest GiB", gib), |b| {
            b.iter(|| {
                at = (at + 7919) % blocks;
                cache.pin(NOW, black_box(range(at * BLOCK + 4096, 65536)), READ_WRITE).expect("mapped")
            });
        });
        group.bench_function(BenchmarkId::new("one block held, guest GiB", gib), |b| {
            let _held = cache.pin(NOW, range(0, gib * GIB), READ_WRITE).expect("mapped");
            b.iter(|| {
                at = (at + 7919) % blocks;
                cache.pin(NOW, black_box(range(at * BLOCK + 4096, 65536)), READ_WRITE).expect("mapped")
            });
        });
        group.bench_function(BenchmarkId::new("all blocks, guest GiB", gib), |b| {
            b.iter(|| cache.pin(NOW, black_box(range(0, gib * GIB)), READ_WRITE).expect("mapped"));
        });
    }
    group.finish();
}

fn miss(c: &mut Criterion) {
    let mut group = c.benchmark_group("miss: pin one block");
    // A later moment each time, so that the block has aged by the time it is to be released.
    let mut now = 1;
    let guest = Guest::new(GIB);
    let cache = cache_of(&guest, GIB, FakePinner::new());
    group.bench_function("bookkeeping, with release", |b| {
        b.iter(|| {
            now += 1;
            drop(cache.pin(Instant::from_nanos(now), black_box(range(0, 4096)), READ_WRITE).expect("mapped"));
            assert_eq!(cache.release_idle(Instant::from_nanos(now)), BLOCK);
        });
    });
    for resident in [false, true] {
        let guest = Guest::new(BLOCK);
        let cache = cache_of(&guest, BLOCK, LockPinner);
        let prepare = || {
            cache.shrink(0);
            if !resident {
                let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                fallocate(guest.file(), hole, 0, BLOCK as i64).expect("a memfd can have holes");
            }
        };
        group.bench_function(if resident { "memfd, resident" } else { "memfd, cold" }, |b| {
            b.iter_batched(
                prepare,
                |()| cache.pin(NOW, black_box(range(0, 4096)), READ_WRITE).expect("mapped"),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

/// From the map of a guest to the end of its first registration. `vrdma bench pin` compares it with pinning all of the guest.
fn start(c: &mut Criterion) {
    let mut group = c.benchmark_group("start: map a guest and register 128 KiB");
    for gib in [1, 4, 16] {
        group.bench_function(BenchmarkId::new("on demand, guest GiB", gib), |b| {
            b.iter_batched_ref(
                || (Guest::new(gib * GIB), None),
                |(guest, kept)| {
                    let cache = cache_of(guest, gib * GIB, LockPinner);
                    let registered = cache.pin(NOW, black_box(range(gib * GIB / 2, 128 << 10)), READ_WRITE).expect("mapped");
                    // Its end is not measured.
                    *kept = Some((registered, cache));
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

fn enter(c: &mut Criterion) {
    let guest = Guest::new(BLOCK);
    let cache = MapCache::new(Config::default(), Arc::new(FakePinner::new()));
    let region = cache.map(guest.flat(BLOCK)).expect("free");
    c.bench_function("enter a region and find an address", |b| {
        b.iter(|| {
            let inside = region.enter().expect("mapped");
            inside.memory(black_box(&range(4096, 64)), READ_WRITE).expect("within").ptr_guard().as_ptr()
        });
    });
}

fn quick() -> Criterion {
    Criterion::default().sample_size(30).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2))
}

criterion_group! { name = benches; config = quick(); targets = hit, miss, start, enter }
criterion_main!(benches);
