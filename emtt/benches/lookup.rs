//! Time of a translation and of a registration, each beside a plain ordered map of ranges, which checks neither domain nor rights:
//! from few regions to 100,000 and from one piece to thousands. Both have to stay flat in the number of regions.

#![allow(missing_docs, reason = "the macros of criterion define undocumented items")]

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use emtt::{Access, GpuId, MemId, Owner, PdId, RegionInit, Segment, Table};
use nix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Duration;

const PD: PdId = PdId(1);
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Between the first bytes of two regions.
const STRIDE: u64 = 4 * MIB;

/// The reference: first byte of a range, and its end and memory.
type Ranges = BTreeMap<u64, (u64, Segment)>;

fn segment(addr: u64, len: u64) -> Segment {
    Segment { owner: Owner::Host(MemId(1)), addr, len }
}

/// A region of pieces that do not continue each other.
fn region(iova: u64, pieces: u64, piece: u64) -> RegionInit {
    let runs = (0..pieces).map(|n| segment((2 * n + 1) * piece, piece)).collect();
    RegionInit { pd: PD, iova, access: Access::all(), runs }
}

fn insert(ranges: &mut Ranges, init: &RegionInit) {
    let mut at = init.iova;
    for run in &init.runs {
        ranges.insert(at, (at + run.len, *run));
        at += run.len;
    }
}

/// Regions of one piece each, in both, and their keys in an order that the cache does not foresee.
fn filled(regions: u64) -> (Table, Ranges, Vec<(u32, u64)>) {
    let (mut table, mut ranges) = (Table::new(1), Ranges::new());
    let mut keys = Vec::new();
    for n in 0..regions {
        let init = region(n * STRIDE, 1, 2 * MIB);
        insert(&mut ranges, &init);
        keys.push((table.insert(init).expect("room for it"), n * STRIDE));
    }
    let shuffled = (0..keys.len()).map(|n| keys[n * 7919 % keys.len()]).collect();
    (table, ranges, shuffled)
}

/// What the reference finds, piece by piece.
fn look_up(ranges: &Ranges, addr: u64, len: u64, mut f: impl FnMut(Segment)) -> Option<()> {
    let (first, _) = ranges.range(..=addr).next_back()?;
    let mut at = addr;
    for (start, (end, segment)) in ranges.range(first..) {
        if at < *start || at >= *end {
            return None;
        }
        let take = (end - at).min(addr + len - at);
        f(Segment { addr: segment.addr + (at - start), len: take, ..*segment });
        at += take;
        if at == addr + len {
            return Some(());
        }
    }
    None
}

fn ours(table: &Table, key: u32, addr: u64, len: u64) {
    let found = table.translate(key, PD, addr, len, Access::REMOTE_WRITE);
    found.expect("it is registered").for_each(|segment| {
        black_box(segment);
    });
}

fn theirs(ranges: &Ranges, addr: u64, len: u64) {
    look_up(ranges, addr, len, |segment| {
        black_box(segment);
    })
    .expect("it is registered");
}

fn contiguous(c: &mut Criterion<CpuTime>) {
    let mut group = c.benchmark_group("4 KiB of a contiguous region");
    for regions in [1, 1000, 100_000] {
        let (table, ranges, keys) = filled(regions);
        let mut next = keys.iter().cycle();
        group.bench_function(BenchmarkId::new("emtt", regions), |b| {
            b.iter(|| {
                let (key, addr) = *next.next().expect("cycle");
                ours(&table, black_box(key), addr + 0x1000, 4096);
            });
        });
        group.bench_function(BenchmarkId::new("BTreeMap", regions), |b| {
            b.iter(|| {
                let (_, addr) = *next.next().expect("cycle");
                theirs(&ranges, black_box(addr) + 0x1000, 4096);
            });
        });
    }
    // What the machine needs for as many cache lines as the table has slots, in the same order: no lookup can be faster.
    let lines: Vec<[u64; 8]> = (0..100_000).map(|n| [n; 8]).collect();
    let order: Vec<(u32, u64)> = (0..lines.len()).map(|n| ((n * 7919 % lines.len()) as u32, 0)).collect();
    let mut next = order.iter().cycle();
    group.bench_function("limit: one cache line of 100000", |b| {
        b.iter(|| {
            let (line, _) = *next.next().expect("cycle");
            black_box(lines[black_box(line) as usize][0])
        });
    });
    let mut table = Table::new(1);
    let owner = Owner::Gpu { device: GpuId(0), window: MemId(2) };
    let runs = vec![Segment { owner, addr: 0, len: 64 * GIB }];
    let key = table.insert(RegionInit { runs, ..region(0, 1, 1) }).expect("room for it");
    group.bench_function("emtt/GPU window of 64 GiB", |b| b.iter(|| ours(&table, black_box(key), 63 * GIB, 4096)));
    group.finish();
}

fn scattered(c: &mut Criterion<CpuTime>) {
    let mut group = c.benchmark_group("scattered pages, time of all of them");
    // Of the second, the pages' addresses are 32 MiB, more than a cache holds.
    for (name, page, len, region_len) in [
        ("1 MiB over 4 KiB, of 1 GiB", 4096, MIB, GIB),
        ("1 MiB over 4 KiB, of 16 GiB", 4096, MIB, 16 * GIB),
        ("64 MiB over 2 MiB, of 16 GiB", 2 * MIB, 64 * MIB, 16 * GIB),
        ("8 GiB over 1 GiB, of 64 GiB", GIB, 8 * GIB, 64 * GIB),
    ] {
        let (mut table, mut ranges) = (Table::new(1), Ranges::new());
        let init = region(0, region_len / page, page);
        insert(&mut ranges, &init);
        let key = table.insert(init).expect("room for it");
        let mut at = 0;
        let mut next = || {
            at = (at + 12_345 * page) % (region_len - len);
            at / page * page
        };
        group.throughput(Throughput::Elements(len / page));
        // What the machine needs to read as many addresses in a row at the same places, and to hand each one on.
        let addrs: Vec<u64> = (0..region_len / page).collect();
        group.bench_function(BenchmarkId::new("limit: the addresses alone", name), |b| {
            b.iter(|| {
                let first = (next() / page) as usize;
                addrs[first..first + (len / page) as usize].iter().for_each(|addr| _ = black_box(*addr));
            });
        });
        group.bench_function(BenchmarkId::new("emtt", name), |b| b.iter(|| ours(&table, black_box(key), next(), len)));
        group.bench_function(BenchmarkId::new("BTreeMap", name), |b| b.iter(|| theirs(&ranges, next(), len)));
    }
    group.finish();
}

fn register(c: &mut Criterion<CpuTime>) {
    let mut group = c.benchmark_group("register and remove one piece");
    for regions in [0, 1000, 100_000] {
        let (mut table, mut ranges, _) = filled(regions);
        let new = || region((regions + 1) * STRIDE, 1, 2 * MIB);
        group.bench_function(BenchmarkId::new("emtt, among", regions), |b| {
            b.iter_batched(
                new,
                |init| {
                    let key = table.insert(init).expect("room for it");
                    table.remove(key)
                },
                BatchSize::SmallInput,
            );
        });
        group.bench_function(BenchmarkId::new("BTreeMap, among", regions), |b| {
            b.iter_batched(
                new,
                |init| {
                    insert(&mut ranges, &init);
                    ranges.remove(&init.iova)
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

/// Processor time of this thread: what others do on the machine is not counted, except for what they do to its caches.
struct CpuTime;

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux has this clock").into()
    }

    fn end(&self, start: Duration) -> Duration {
        self.start() - start
    }

    fn add(&self, a: &Duration, b: &Duration) -> Duration {
        *a + *b
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, time: &Duration) -> f64 {
        time.as_nanos() as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(CpuTime);
    targets = contiguous, scattered, register
}
criterion_main!(benches);
