//! `vrdma bench pin`: what pinning on demand costs and saves, on this machine.
//!
//! Owns the order of measurements and what they are printed as. What is measured is the crate that the daemon uses (`pvdma`), with
//! guest memory in files as a VMM would make them. No daemon is needed, and nothing stays: memory and mounts are the process's own.

mod guest;
mod report;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use pvdma::{Config, Gpa, GpaRange, LockPinner, MapCache, Protection};

use crate::output::{print, print_json};
use guest::{Memory, Mounts, Pages};
use report::{Baseline, Method, Report, StartRow};

const GIB: u64 = 1 << 30;
/// Guest sizes measured unless others are asked for.
pub const GUEST_GIB: [u64; 3] = [1, 4, 16];
/// Pinning whole guests takes this much memory at a time: a larger guest is the sum of pieces, each given back before the next.
const PIECE: u64 = GIB;
/// Memory that has to be free before anything is pinned: a piece, and room for everybody else.
const FREE: u64 = 2 * GIB;
/// Bytes of the first registration: what `ib_write_bw` registers for messages of 64 KiB.
const REGISTRATION: u64 = 128 << 10;
/// Starts with pinning on demand per row.
const STARTS: usize = 15;
/// Blocks whose pinning is timed one by one.
const BLOCKS: u64 = 256;
/// Hits are timed in runs of this many, as one is shorter than the clock's step.
const HITS: u32 = 1000;
const HIT_RUNS: usize = 301;
const READ_WRITE: Protection = Protection::READ.union(Protection::WRITE);

/// Measures, and prints.
pub fn carry_out(guest_gib: &[u64], json: bool) -> Result<()> {
    let progress = ProgressBar::new(0).with_style(ProgressStyle::with_template("{msg}")?);
    let mounts = Mounts::new().context("guest memory needs a tmpfs of its own, hence root")?;
    let mut report = Report { method: Method::new(PIECE, REGISTRATION, STARTS), ..Report::default() };
    progress.set_message("hits and single blocks");
    report.hit_ns_p50 = hit_ns(&mounts)?;
    report.block_us_p50 = block_us(&mounts)?;
    for baseline in Baseline::ALL {
        for &gib in guest_gib {
            progress.set_message(format!("{} start of a guest of {gib} GiB", baseline.name()));
            let full = full_start(&mounts, baseline, gib * GIB)?;
            let on_demand = on_demand_start(&mounts, baseline, gib * GIB)?;
            report.start.push(StartRow::new(gib, baseline, full, on_demand));
        }
    }
    progress.finish_and_clear();
    if json { print_json(&report) } else { print(report.tables()) }
}

fn cache() -> MapCache {
    // Nothing ages here: what is pinned is given back when its cache goes.
    MapCache::new(Config::default(), Arc::new(LockPinner))
}

fn now() -> pvdma::Instant {
    pvdma::Instant::from_nanos(0)
}

fn range(start: u64, len: u64) -> Result<GpaRange> {
    Ok(GpaRange::new(Gpa(start), len)?)
}

fn median<T: PartialOrd + Copy>(values: &mut [T]) -> T {
    values.sort_by(|a, b| a.partial_cmp(b).expect("times are numbers"));
    values[values.len() / 2]
}

/// Registers and deregisters a range whose block is pinned already.
fn hit_ns(mounts: &Mounts) -> Result<f64> {
    let memory = Memory::new(mounts, Pages::Small, pvdma::BLOCK_LEN)?;
    let cache = cache();
    cache.map(memory.region())?;
    let held = cache.pin(now(), range(0, pvdma::BLOCK_LEN)?, READ_WRITE)?;
    let wanted = range(4096, REGISTRATION)?;
    let mut runs = Vec::with_capacity(HIT_RUNS);
    for _ in 0..HIT_RUNS {
        let start = Instant::now();
        for _ in 0..HITS {
            drop(cache.pin(now(), std::hint::black_box(wanted), READ_WRITE)?);
        }
        runs.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(HITS));
    }
    drop(held);
    cache.unmap_all()?;
    Ok(median(&mut runs))
}

/// Pins blocks that have no memory yet, in pages of 4 KiB.
fn block_us(mounts: &Mounts) -> Result<f64> {
    let memory = Memory::new(mounts, Pages::Small, BLOCKS * pvdma::BLOCK_LEN)?;
    let cache = cache();
    cache.map(memory.region())?;
    let mut times = Vec::new();
    for block in 0..BLOCKS {
        let start = Instant::now();
        let pinned = cache.pin(now(), range(block * pvdma::BLOCK_LEN, 4096)?, READ_WRITE)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
        drop(pinned);
    }
    cache.unmap_all()?;
    Ok(median(&mut times))
}

/// From the VMM's map to the end of pinning all of it, piece by piece.
fn full_start(mounts: &Mounts, baseline: Baseline, len: u64) -> Result<Duration> {
    let mut total = Duration::ZERO;
    let mut done = 0;
    while done < len {
        let free = guest::available()?;
        ensure!(free >= FREE, "pinning {PIECE} bytes at a time needs {FREE} bytes of free memory; {free} are free");
        let piece = PIECE.min(len - done);
        let memory = Memory::new(mounts, baseline.pages(), piece)?;
        if baseline.is_prefaulted() {
            memory.populate(0, piece)?;
        }
        let start = Instant::now();
        let cache = cache();
        cache.map(memory.region())?;
        let pinned = cache.pin(now(), range(0, piece)?, READ_WRITE)?;
        total += start.elapsed();
        memory.check_pages(piece)?;
        drop(pinned);
        cache.unmap_all()?;
        done += piece;
    }
    Ok(total)
}

/// From the VMM's map to the end of the first registration, which pins what it names. Median of several guests.
fn on_demand_start(mounts: &Mounts, baseline: Baseline, len: u64) -> Result<Duration> {
    let mut times = Vec::with_capacity(STARTS);
    // Towards the end, where nothing is near the start of a structure by chance.
    let at = len - 3 * pvdma::BLOCK_LEN;
    for _ in 0..STARTS {
        let memory = Memory::new(mounts, baseline.pages(), len)?;
        if baseline.is_prefaulted() {
            // Only what will be registered: the rest is not looked at, and need not be held.
            memory.populate(at, pvdma::BLOCK_LEN)?;
        }
        let start = Instant::now();
        let cache = cache();
        cache.map(memory.region())?;
        let registered = cache.pin(now(), range(at + 4096, REGISTRATION)?, READ_WRITE)?;
        times.push(start.elapsed());
        drop(registered);
        cache.unmap_all()?;
    }
    Ok(median(&mut times))
}
