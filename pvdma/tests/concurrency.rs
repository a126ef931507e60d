//! Many threads on one cache: each block is pinned once at a time, nobody sees memory that is not pinned, and nothing is
//! left over.

mod guest;

use guest::{BLOCK, Guest, READ_WRITE, range};
use pvdma::{Block, Call, Config, FakePinner, GpaRange, Instant, MapCache, Pinner, PinnerError};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::Duration;
use vm_memory::Bytes;

const NOW: Instant = Instant::from_nanos(0);

/// Numbers that differ from call to call and from thread to thread.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % sides
    }
}

/// The pinner waits until two blocks are being pinned at the same time: it would wait for ever if they came one by one.
#[test]
fn distinct_blocks_are_pinned_side_by_side() {
    let together = Arc::new(Barrier::new(2));
    let pinner = {
        let together = together.clone();
        FakePinner::with_hook(move |_| {
            together.wait();
        })
    };
    let cache = MapCache::new(Config::default(), Arc::new(pinner));
    let guest = Guest::new(2 * BLOCK);
    cache.map(guest.flat(2 * BLOCK)).expect("free");
    std::thread::scope(|scope| {
        for block in 0..2 {
            let cache = &cache;
            scope.spawn(move || cache.pin(NOW, range(block * BLOCK, 1), READ_WRITE).expect("mapped"));
        }
    });
}

#[test]
fn one_block_wanted_by_many_is_pinned_once() {
    let pinner = Arc::new(FakePinner::with_hook(|_| std::thread::yield_now()));
    let cache = MapCache::new(Config::default(), pinner.clone());
    let guest = Guest::new(BLOCK);
    cache.map(guest.flat(BLOCK)).expect("free");
    let start = Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                start.wait();
                let guard = cache.pin(NOW, range(0, BLOCK), READ_WRITE).expect("mapped");
                assert_eq!(pinner.pinned(), [range(0, BLOCK)]);
                drop(guard);
            });
        }
    });
    assert_eq!(pinner.take_calls(), [Call::Pin(range(0, BLOCK))]);
    let stats = cache.stats();
    assert_eq!((stats.misses, stats.hits, stats.registered_bytes, stats.idle_bytes), (1, 7, 0, BLOCK));
}

/// When the one that pins fails, those that waited try for themselves.
#[test]
fn a_failure_is_nobody_elses() {
    let waiting = Arc::new((Mutex::new(0), Condvar::new()));
    let pinner = {
        let waiting = waiting.clone();
        Arc::new(FakePinner::with_hook(move |_| {
            // Not before all have come near.
            let (count, changed) = &*waiting;
            drop(changed.wait_while(count.lock().unwrap(), |count| *count < 4).unwrap());
        }))
    };
    pinner.fail_pin(PinnerError { errno: nix::errno::Errno::EIO, limit: false, hint: String::new() });
    let cache = MapCache::new(Config::default(), pinner.clone());
    let guest = Guest::new(BLOCK);
    cache.map(guest.flat(BLOCK)).expect("free");
    let failed = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                *waiting.0.lock().unwrap() += 1;
                waiting.1.notify_all();
                let pinned = cache.pin(NOW, range(0, 1), READ_WRITE);
                failed.fetch_add(u32::from(pinned.is_err()), Ordering::Relaxed);
            });
        }
    });
    assert_eq!(failed.into_inner(), 1);
    assert_eq!(pinner.take_calls().len(), 2);
}

#[test]
fn a_pinner_that_panics_leaves_the_block_to_others() {
    let pinner = Arc::new(FakePinner::with_hook({
        let first = AtomicBool::new(true);
        move |_| assert!(!first.swap(false, Ordering::Relaxed), "told to")
    }));
    let cache = MapCache::new(Config { budget_bytes: BLOCK, ..Config::default() }, pinner.clone());
    let guest = Guest::new(BLOCK);
    let region = cache.map(guest.flat(BLOCK)).expect("free");
    let pin = || cache.pin(NOW, range(0, 1), READ_WRITE);
    std::thread::scope(|scope| scope.spawn(pin).join().expect_err("the pinner panicked"));
    let guard = pin().expect("the block and the budget are free again");
    assert_eq!(cache.unmap(region.range()).expect("nobody is inside"), [region.generation()]);
    drop(guard);
}

/// For each block whether it is pinned, as a device would find out: by looking while it is told that it is.
#[derive(Debug)]
struct Watched {
    pinned: Vec<AtomicBool>,
}

impl Watched {
    fn slot(&self, block: GpaRange) -> &AtomicBool {
        &self.pinned[(block.start().0 / BLOCK) as usize]
    }
}

impl Pinner for Watched {
    fn pin(&self, block: &Block) -> Result<(), PinnerError> {
        assert!(!self.slot(block.range()).swap(true, Ordering::SeqCst), "pinned twice");
        Ok(())
    }

    fn unpin(&self, block: &Block) -> Result<(), PinnerError> {
        assert!(self.slot(block.range()).swap(false, Ordering::SeqCst), "unpinned twice");
        std::thread::yield_now();
        Ok(())
    }
}

/// Registrations, accesses, housekeeping, pressure, unmaps and remaps at random, all at once. Who is inside a region and
/// holds a range must find each of its blocks pinned, and its own generation's mark in memory.
#[test]
fn everything_at_once() {
    const BLOCKS: u64 = 24;
    const REGIONS: u64 = 3;
    const REGION: u64 = BLOCKS / REGIONS * BLOCK;
    const MOST_ROUNDS: u32 = 3_000_000;
    let watched = Arc::new(Watched { pinned: (0..BLOCKS).map(|_| AtomicBool::new(false)).collect() });
    let config = Config { budget_bytes: 20 * BLOCK, max_idle: Duration::from_nanos(50), ..Config::default() };
    let cache = MapCache::new(config, watched.clone());
    // Each generation of a region is another object with its own mark in the last byte of every block.
    let fresh = |at: u64| {
        let guest = Guest::new(REGION);
        let region = cache.map(guest.at(at * REGION, 0, REGION)).expect("free");
        let mark = region.generation().get() as u8;
        (0..REGION / BLOCK).for_each(|block| guest.write((block + 1) * BLOCK - 1, mark));
    };
    (0..REGIONS).for_each(fresh);
    let clock = AtomicU64::new(0);
    let now = || Instant::from_nanos(clock.fetch_add(1, Ordering::Relaxed));
    let busy = AtomicU32::new(4);
    let [pins, accesses, refused] = [const { AtomicU64::new(0) }; 3];
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (cache, watched, busy, now) = (&cache, &watched, &busy, &now);
            let (pins, accesses, refused) = (&pins, &accesses, &refused);
            scope.spawn(move || {
                let mut dice = Dice(seed);
                let mut guards = Vec::new();
                // At least so often, and until an unmap and an eviction have come between: how soon is up to the scheduler.
                for round in 0..MOST_ROUNDS {
                    if round >= 3000 {
                        let stats = cache.stats();
                        if refused.load(Ordering::Relaxed) > 0 && stats.evictions_age + stats.evictions_room > 0 {
                            break;
                        }
                        std::thread::yield_now();
                    }
                    let first = dice.roll(BLOCKS);
                    let wanted = range(first * BLOCK + 7, (dice.roll(3.min(BLOCKS - first)) + 1) * BLOCK - 7);
                    if let Ok(guard) = cache.pin(now(), wanted, READ_WRITE) {
                        pins.fetch_add(1, Ordering::Relaxed);
                        guards.push(guard);
                    }
                    if guards.len() > 2 {
                        guards.swap_remove(dice.roll(3) as usize);
                    }
                    for guard in &guards {
                        for segment in guard.segments() {
                            let Some(inside) = segment.region.enter() else {
                                refused.fetch_add(1, Ordering::Relaxed);
                                continue;
                            };
                            accesses.fetch_add(1, Ordering::Relaxed);
                            let mark = segment.region.generation().get() as u8;
                            let (from, to) = (segment.gpa.0, segment.gpa.0 + segment.len);
                            for block in from / BLOCK..to.div_ceil(BLOCK) {
                                assert!(watched.slot(range(block * BLOCK, 1)).load(Ordering::SeqCst), "in use, but not pinned");
                            }
                            let last = to / BLOCK * BLOCK - 1;
                            let memory = inside.memory(&range(last, 1), READ_WRITE).expect("within");
                            let found = memory.read_obj::<u8>(0).expect("within");
                            // Written just after the region was mapped, so it may be missing yet; never another's.
                            assert!(found == mark || found == 0, "memory of another generation: {found}, not {mark}");
                        }
                    }
                }
                busy.fetch_sub(1, Ordering::Relaxed);
            });
        }
        scope.spawn(|| {
            let mut dice = Dice(99);
            while busy.load(Ordering::Relaxed) > 0 {
                let at = dice.roll(REGIONS);
                cache.unmap(range(at * REGION, REGION)).expect("mapped");
                for block in at * REGION / BLOCK..(at + 1) * REGION / BLOCK {
                    assert!(!watched.slot(range(block * BLOCK, 1)).load(Ordering::SeqCst), "pinned after the unmap");
                }
                fresh(at);
                for _ in 0..20 {
                    cache.release_idle(now());
                    std::thread::yield_now();
                }
            }
        });
        scope.spawn(|| {
            while busy.load(Ordering::Relaxed) > 0 {
                cache.shrink(10 * BLOCK);
                assert!(cache.stats().pinned_bytes <= 20 * BLOCK);
                std::thread::yield_now();
            }
        });
    });
    let stats = cache.stats();
    assert_eq!((stats.registered_bytes, stats.pinned_bytes), (0, stats.idle_bytes));
    let [pins, accesses, refused] = [pins, accesses, refused].map(AtomicU64::into_inner);
    // Otherwise this has tested nothing.
    assert!(pins > 1000 && accesses > 1000 && refused > 0, "{pins} pins, {accesses} accesses, {refused} refused: {stats:?}");
    assert!(stats.evictions_age + stats.evictions_room > 0 && stats.hits > 0, "{stats:?}");
    cache.unmap_all().expect("all can be unpinned");
    assert_eq!(cache.stats().pinned_bytes, 0);
    assert!(watched.pinned.iter().all(|pinned| !pinned.load(Ordering::SeqCst)), "left pinned");
}
