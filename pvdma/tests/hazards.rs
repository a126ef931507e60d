//! The hazards of on-demand pinning, H1 to H6: each has been the undoing of somebody, so each has its tests.

mod guest;

use guest::{BLOCK, Guest, READ_WRITE, range};
use nix::errno::Errno;
use pvdma::{
    Call, Config, FakePinner, Gpa, Instant, LookupError, MapCache, PinError, PinnerError, Protection, UnmapError, Unpinnable,
};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;
use vm_memory::Bytes;

fn secs(seconds: u64) -> Instant {
    Instant::from_nanos(seconds * 1_000_000_000)
}

fn cache_with(config: Config) -> (MapCache, Arc<FakePinner>) {
    let pinner = Arc::new(FakePinner::new());
    (MapCache::new(config, pinner.clone()), pinner)
}

fn limit_of(what: &str) -> PinnerError {
    PinnerError { errno: Errno::ENOMEM, limit: true, hint: what.to_owned() }
}

/// H1: a doorbell page lies between RAM within one 2 MiB frame. Pinning the RAM must not sweep it in, and when its address
/// becomes RAM, the translation is the new RAM's.
#[test]
fn h1_doorbell_in_a_frame_of_ram_is_never_pinned() {
    const DOORBELL: u64 = 64 * 4096;
    let (cache, pinner) = cache_with(Config::default());
    let ram = Guest::new(BLOCK);
    let doorbells = Guest::new(4096);
    cache.keep_out(doorbells.file()).expect("it is an object");
    cache.map(ram.at(0, 0, DOORBELL)).expect("free");
    cache.map(doorbells.at(DOORBELL, 0, 4096)).expect("a VMM may map it, to no effect");
    cache.map(ram.at(DOORBELL + 4096, DOORBELL + 4096, BLOCK - DOORBELL - 4096)).expect("free");

    let below = cache.pin(secs(0), range(0, 4096), READ_WRITE).expect("RAM");
    let above = cache.pin(secs(0), range(BLOCK - 4096, 4096), READ_WRITE).expect("RAM");
    assert_eq!(pinner.pinned(), [range(0, DOORBELL), range(DOORBELL + 4096, BLOCK - DOORBELL - 4096)]);
    let kept_out = LookupError::Unpinnable { gpa: Gpa(DOORBELL), why: Unpinnable::KeptOut };
    for wanted in [range(DOORBELL, 8), range(DOORBELL - 4096, 3 * 4096), range(0, BLOCK)] {
        assert_eq!(cache.pin(secs(0), wanted, READ_WRITE).expect_err("the doorbell"), PinError::Lookup(kept_out));
    }

    cache.unmap(range(DOORBELL, 4096)).expect("it was mapped");
    cache.map(ram.at(DOORBELL, DOORBELL, 4096)).expect("free again");
    ram.write(DOORBELL, 77);
    let guard = cache.pin(secs(0), range(DOORBELL, 4096), READ_WRITE).expect("RAM now");
    let segment = guard.segments().next().expect("one");
    let inside = segment.region.enter().expect("mapped");
    let memory = inside.memory(&range(DOORBELL, 1), READ_WRITE).expect("within");
    assert_eq!(memory.read_obj::<u8>(0).expect("within"), 77);
    drop((below, above));
}

/// H2: other memory comes to the same guest address. Whoever holds the old translation gets nothing; the new one is right.
#[test]
fn h2_remapped_memory_makes_old_translations_stale() {
    let (cache, pinner) = cache_with(Config::default());
    let (old, new) = (Guest::new(BLOCK), Guest::new(BLOCK));
    old.write(0, 1);
    new.write(0, 2);
    let region = cache.map(old.flat(BLOCK)).expect("free");
    let guard = cache.pin(secs(0), range(0, 4096), READ_WRITE).expect("mapped");
    assert!(!guard.is_stale());

    assert_eq!(cache.unmap(range(0, BLOCK)), Ok(vec![region.generation()]));
    assert_eq!(pinner.pinned(), [], "unpinned before the reply, although the registration lives");
    assert_eq!(cache.stats().pinned_bytes, 0);
    assert!(guard.is_stale());
    assert!(region.enter().is_none());
    assert_eq!(cache.pin(secs(0), range(0, 1), READ_WRITE).unwrap_err(), LookupError::NotMapped(Gpa(0)).into());

    let successor = cache.map(new.flat(BLOCK)).expect("free again");
    assert!(successor.generation() > region.generation(), "numbers do not come back");
    assert!(region.enter().is_none(), "the old translation stays void");
    let fresh = cache.pin(secs(0), range(0, 4096), READ_WRITE).expect("mapped");
    // The late end of the old registration does not touch the new one's block.
    drop(guard);
    assert_eq!(pinner.pinned(), [range(0, BLOCK)]);
    assert_eq!(cache.stats().registered_bytes, 4096);
    let inside = successor.enter().expect("mapped");
    assert_eq!(inside.memory(&range(0, 1), READ_WRITE).expect("within").read_obj::<u8>(0).expect("within"), 2);
    drop(fresh);
}

/// H2: an unmap is answered only when no access can be under way any more.
#[test]
fn h2_unmap_waits_for_accesses_in_flight() {
    let (cache, pinner) = cache_with(Config::default());
    let guest = Guest::new(BLOCK);
    let region = cache.map(guest.flat(BLOCK)).expect("free");
    let _guard = cache.pin(secs(0), range(0, BLOCK), READ_WRITE).expect("mapped");
    let inside = region.enter().expect("mapped");
    std::thread::scope(|scope| {
        let (done, unmapped) = channel();
        let cache = &cache;
        scope.spawn(move || done.send(cache.unmap(range(0, BLOCK))).expect("somebody listens"));
        while region.enter().is_some() {
            std::thread::yield_now();
        }
        // Closed, but we are inside: our memory must still be there and pinned.
        assert!(unmapped.try_recv().is_err(), "the unmap waits");
        inside.memory(&range(0, 8), READ_WRITE).expect("within").write_obj(42u64, 0).expect("within");
        assert_eq!(pinner.pinned(), [range(0, BLOCK)]);
        drop(inside);
        assert_eq!(unmapped.recv().expect("it answers"), Ok(vec![region.generation()]));
    });
    assert_eq!(pinner.pinned(), []);
    assert_eq!(guest.read(0), 42);
}

/// H2: an unmap that comes while a block is being pinned waits, and nothing stays pinned.
#[test]
fn h2_unmap_waits_for_pins_in_flight() {
    let (started, entered) = channel();
    let (finish, go) = channel();
    let (started, go) = (std::sync::Mutex::new(started), std::sync::Mutex::new(go));
    let pinner = Arc::new(FakePinner::with_hook(move |call| {
        if let Call::Pin(_) = call {
            started.lock().unwrap().send(()).unwrap();
            go.lock().unwrap().recv().unwrap();
        }
    }));
    let cache = MapCache::new(Config::default(), pinner.clone());
    let guest = Guest::new(BLOCK);
    let region = cache.map(guest.flat(BLOCK)).expect("free");
    std::thread::scope(|scope| {
        let pinning = scope.spawn(|| cache.pin(secs(0), range(0, BLOCK), READ_WRITE));
        entered.recv().unwrap();
        let unmapping = scope.spawn(|| cache.unmap(range(0, BLOCK)));
        while !region.is_ended() {
            std::thread::yield_now();
        }
        assert!(!unmapping.is_finished(), "the unmap waits");
        finish.send(()).unwrap();
        let guard = pinning.join().unwrap().expect("it was mapped when it began");
        assert_eq!(unmapping.join().unwrap(), Ok(vec![region.generation()]));
        assert!(guard.is_stale());
    });
    assert_eq!(pinner.pinned(), []);
    assert_eq!(pinner.take_calls(), [Call::Pin(range(0, BLOCK)), Call::Unpin(range(0, BLOCK))]);
    assert_eq!(cache.stats().pinned_bytes, 0);
}

/// H2: when a device may still reach the memory, the one who unmaps is told.
#[test]
fn h2_unmap_tells_that_a_block_could_not_be_unpinned() {
    let (cache, pinner) = cache_with(Config::default());
    let guest = Guest::new(4 * BLOCK);
    cache.map(guest.flat(4 * BLOCK)).expect("free");
    let guard = cache.pin(secs(0), range(BLOCK, 2 * BLOCK), READ_WRITE).expect("mapped");
    pinner.fail_unpin(PinnerError { errno: Errno::EBUSY, limit: false, hint: String::new() });
    let error = UnmapError::StillPinned { block: range(BLOCK, BLOCK), errno: Errno::EBUSY };
    assert_eq!(cache.unmap_all(), Err(error));
    assert_eq!(error.errno(), libc::EIO);
    assert_eq!(pinner.pinned(), [range(BLOCK, BLOCK)], "the other block is unpinned all the same");
    let stats = cache.stats();
    assert_eq!((stats.regions, stats.pinned_bytes, stats.unpin_failures), (0, 0, 1));
    assert!(guard.is_stale());
}

/// H3: one page costs a block. It must not cost more, must be seen, and must not go beyond the region.
#[test]
fn h3_over_pinning_is_one_block_and_is_told() {
    let (cache, pinner) = cache_with(Config::default());
    let guest = Guest::new(8 * BLOCK);
    cache.map(guest.at(0, 0, 4 * BLOCK + 8192)).expect("free");
    assert_eq!(cache.stats().over_pin(), None);
    let page = cache.pin(secs(0), range(BLOCK + 4096, 4096), READ_WRITE).expect("mapped");
    assert_eq!(pinner.pinned(), [range(BLOCK, BLOCK)]);
    assert_eq!(cache.stats().over_pin(), Some(512.0));
    let rest = cache.pin(secs(0), range(BLOCK + 8192, BLOCK - 8192), READ_WRITE).expect("mapped");
    assert_eq!(cache.stats().pinned_bytes, BLOCK);
    assert_eq!(cache.stats().over_pin(), Some(BLOCK as f64 / (BLOCK - 4096) as f64));
    // The last block of the region is two pages only.
    let tail = cache.pin(secs(0), range(4 * BLOCK, 4096), READ_WRITE).expect("mapped");
    assert_eq!(cache.stats().pinned_bytes, BLOCK + 8192);
    drop((page, rest, tail));
    let stats = cache.stats();
    assert_eq!((stats.idle_bytes, stats.registered_bytes, stats.over_pin()), (BLOCK + 8192, 0, None));
}

/// H4: a cold block is slow. Whoever wants another block does not wait for it, and who wants it again does not pay again.
#[test]
fn h4_a_cold_block_holds_up_nobody_else() {
    let (started, entered) = channel();
    let (finish, go) = channel();
    let (started, go) = (std::sync::Mutex::new(started), std::sync::Mutex::new(go));
    let pinner = Arc::new(FakePinner::with_hook(move |call| {
        if call == Call::Pin(range(0, BLOCK)) {
            started.lock().unwrap().send(()).unwrap();
            go.lock().unwrap().recv().unwrap();
        }
    }));
    let cache = MapCache::new(Config::default(), pinner.clone());
    let guest = Guest::new(4 * BLOCK);
    cache.map(guest.flat(4 * BLOCK)).expect("free");
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| cache.pin(secs(0), range(0, 4096), READ_WRITE));
        entered.recv().unwrap();
        // The pinner is at work on block 0, and stays there. These would hang if anything was held meanwhile.
        let other = cache.pin(secs(0), range(BLOCK, 4096), READ_WRITE).expect("another block");
        drop(other);
        let again = cache.pin(secs(0), range(BLOCK, 4096), READ_WRITE).expect("a hit");
        assert_eq!((cache.stats().hits, cache.stats().misses), (1, 2));
        cache.map(guest.at(1 << 30, 0, BLOCK)).expect("free");
        cache.unmap(range(1 << 30, BLOCK)).expect("mapped");
        assert_eq!(cache.release_idle(secs(1000)), 0);
        finish.send(()).unwrap();
        slow.join().unwrap().expect("it was only slow");
        drop(again);
    });
    pinner.take_calls();
    for _ in 0..100 {
        cache.pin(secs(1), range(4096, BLOCK), READ_WRITE).expect("both are pinned still");
    }
    assert_eq!(pinner.take_calls(), [], "no call for what is pinned");
}

/// H5: a block is unpinned only when the last of its registrations is gone, whichever device they belong to.
#[test]
fn h5_a_block_is_held_until_its_last_registration_ends() {
    let (cache, pinner) = cache_with(Config { max_idle: Duration::ZERO, ..Config::default() });
    let guest = Guest::new(4 * BLOCK);
    cache.map(guest.flat(4 * BLOCK)).expect("free");
    // Two devices of one guest share its cache.
    let devices = [cache.clone(), cache.clone()];
    let mut guards: Vec<_> = (0..6)
        .map(|i| devices[i % 2].pin(secs(0), range(BLOCK - 4096, (1 + i as u64) * 4096), READ_WRITE).expect("mapped"))
        .collect();
    // The first is one page of block 0; the others reach into block 1.
    assert_eq!(cache.release_idle(secs(1)), 0);
    while guards.len() > 1 {
        assert_eq!(pinner.pinned(), [range(0, BLOCK), range(BLOCK, BLOCK)]);
        guards.pop();
        cache.release_idle(secs(2));
    }
    assert_eq!(pinner.pinned(), [range(0, BLOCK)]);
    guards.pop();
    assert_eq!(cache.release_idle(secs(3)), BLOCK);
    assert_eq!(pinner.pinned(), []);
}

/// H6: at a limit of the system, idle blocks make room; when none is idle, the error says which limit it is.
#[test]
fn h6_at_a_limit_idle_blocks_make_room() {
    let (cache, pinner) = cache_with(Config::default());
    pinner.limit(2);
    let guest = Guest::new(8 * BLOCK);
    cache.map(guest.flat(8 * BLOCK)).expect("free");
    let pin = |block: u64| cache.pin(secs(block), range(block * BLOCK, 1), READ_WRITE);
    let first = pin(0).expect("room");
    drop(pin(1).expect("room"));
    pinner.take_calls();
    let second = pin(2).expect("block 1 makes room");
    let block = |at: u64| range(at * BLOCK, BLOCK);
    assert_eq!(pinner.take_calls(), [Call::Pin(block(2)), Call::Unpin(block(1)), Call::Pin(block(2))]);
    assert_eq!(cache.stats().evictions_room, 1);

    let error = pin(3).expect_err("all are in use");
    let PinError::Pinner { block: refused, source } = error else { panic!("{error}") };
    assert_eq!((refused, source.errno, source.limit), (block(3), Errno::ENOSPC, true));
    assert_eq!(cache.stats().pin_failures, 1);
    assert_eq!(cache.stats().pinned_bytes, 2 * BLOCK);
    drop(first);
    let third = pin(3).expect("block 0 makes room");
    assert_eq!(pinner.pinned(), [block(2), block(3)]);
    drop((second, third));
}

/// H6: a registration that fails half way leaves nothing held, and what failed can be tried again.
#[test]
fn h6_a_failed_registration_holds_nothing() {
    let (cache, pinner) = cache_with(Config { budget_bytes: 3 * BLOCK, ..Config::default() });
    let guest = Guest::new(8 * BLOCK);
    cache.map(guest.flat(8 * BLOCK)).expect("free");
    let error = cache.pin(secs(0), range(0, 4 * BLOCK), READ_WRITE).expect_err("over the budget");
    assert_eq!(error, PinError::Budget { block: range(3 * BLOCK, BLOCK), budget_bytes: 3 * BLOCK });
    let stats = cache.stats();
    assert_eq!((stats.pinned_bytes, stats.idle_bytes, stats.registered_bytes), (3 * BLOCK, 3 * BLOCK, 0));

    pinner.fail_pin(limit_of("one"));
    pinner.take_calls();
    cache.pin(secs(0), range(3 * BLOCK, 1), READ_WRITE).expect("block 0 makes room, and again for the limit block 1");
    let block = |at: u64| range(at * BLOCK, BLOCK);
    assert_eq!(pinner.take_calls(), [Call::Unpin(block(0)), Call::Pin(block(3)), Call::Unpin(block(1)), Call::Pin(block(3))]);

    pinner.fail_pin(PinnerError { errno: Errno::EFAULT, limit: false, hint: "gone".to_owned() });
    let error = cache.pin(secs(0), range(4 * BLOCK, 1), READ_WRITE).expect_err("told to fail");
    assert!(matches!(error, PinError::Pinner { ref source, .. } if source.errno == Errno::EFAULT), "{error}");
    cache.pin(secs(0), range(4 * BLOCK, 1), READ_WRITE).expect("a second attempt");
    assert_eq!(cache.stats().pinned_bytes, 3 * BLOCK);
}

/// H6: a block that cannot be unpinned is not forgotten, and is not tried for ever.
#[test]
fn h6_a_block_that_cannot_be_unpinned_stays_accounted() {
    let (cache, pinner) = cache_with(Config { budget_bytes: BLOCK, max_idle: Duration::ZERO, ..Config::default() });
    let guest = Guest::new(8 * BLOCK);
    cache.map(guest.flat(8 * BLOCK)).expect("free");
    drop(cache.pin(secs(0), range(0, 1), READ_WRITE).expect("room"));
    pinner.fail_unpin(limit_of("mappings"));
    assert_eq!(cache.release_idle(secs(1)), 0);
    assert!(matches!(cache.pin(secs(1), range(BLOCK, 1), READ_WRITE), Err(PinError::Budget { .. })));
    let stats = cache.stats();
    assert_eq!((stats.pinned_bytes, stats.idle_bytes, stats.unpin_failures), (BLOCK, BLOCK, 1));
    // Its next use puts it in line again.
    drop(cache.pin(secs(2), range(0, 1), Protection::READ).expect("a hit"));
    cache.pin(secs(2), range(BLOCK, 1), READ_WRITE).expect("room");
    assert_eq!(pinner.pinned(), [range(BLOCK, BLOCK)]);
}
