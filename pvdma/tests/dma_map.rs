//! The guest's DMA map against what a hostile VMM may send, and lookups at the edges of regions.

mod guest;

use guest::{BLOCK, Guest, READ_WRITE, range};
use nix::errno::Errno;
use pvdma::{
    Backing, BackingError, Config, FakePinner, Gpa, LookupError, MapCache, MapError, MapLimits, PinError, Protection,
    RangeError, RegionInit, UnmapError, Unpinnable,
};
use std::fs::File;
use std::sync::Arc;

const LEN: u64 = 16 * BLOCK;

fn cache_of(limits: MapLimits) -> MapCache {
    MapCache::new(Config { limits, ..Config::default() }, Arc::new(FakePinner::new()))
}

fn cache() -> MapCache {
    cache_of(MapLimits::default())
}

#[test]
fn maps_that_a_vmm_must_not_make_are_refused_and_change_nothing() {
    let guest = Guest::new(LEN);
    let cache = cache();
    let existing = cache.map(guest.at(BLOCK, BLOCK, BLOCK)).expect("it is free").range();
    let overlapping =
        |start, len| (guest.at(start, 0, len), MapError::Overlaps { range: range(start, len), existing }, libc::EEXIST);
    let unaligned = |start, len| (guest.at(start, 0, len), MapError::Unaligned(range(start, len)), libc::EINVAL);
    let wraps = |start, len| (guest.at(start, 0, len), RangeError::Wraps { start: Gpa(start), len }.into(), libc::EINVAL);
    let past_end = |offset, len| {
        let error = BackingError::PastEnd { offset, len, object_len: LEN };
        (guest.at(1 << 40, offset, len), error.into(), libc::EINVAL)
    };
    let cases: Vec<(RegionInit, MapError, i32)> = vec![
        (guest.at(0, 0, 0), RangeError::Empty(Gpa(0)).into(), libc::EINVAL),
        wraps(u64::MAX - 4095, 4096),
        wraps(4096, u64::MAX - 4095),
        wraps(u64::MAX - 4095, 8192),
        unaligned(1, 4096),
        unaligned(0, 4097),
        unaligned(4 * BLOCK + 512, 4096),
        (
            RegionInit { protection: Protection::empty(), ..guest.at(0, 0, 4096) },
            MapError::NoAccess(range(0, 4096)),
            libc::EINVAL,
        ),
        overlapping(BLOCK, BLOCK),
        overlapping(0, BLOCK + 4096),
        overlapping(0, 4 * BLOCK),
        overlapping(BLOCK + 4096, 4096),
        overlapping(2 * BLOCK - 4096, BLOCK),
        (guest.at(1 << 40, 511, 4096), BackingError::Unaligned(511).into(), libc::EINVAL),
        past_end(0, LEN + 4096),
        past_end(LEN, 4096),
        past_end(LEN - 4096, 8192),
        past_end(u64::MAX - 4095, 4096),
        (
            guest.at(1 << 40, 0, 1 << 45),
            MapError::TooManyBytes { range: range(1 << 40, 1 << 45), limit: 16 << 40 },
            libc::ENOSPC,
        ),
    ];
    let before = cache.stats();
    for (init, error, errno) in cases {
        let what = format!("{init:?}");
        assert_eq!(cache.map(init).expect_err(&what), error);
        assert_eq!(error.errno(), errno, "{what}");
    }
    assert_eq!(cache.stats(), before);
    cache.check(existing, READ_WRITE).expect("it is still there");
    // What adjoins does not overlap.
    cache.map(guest.at(0, 0, BLOCK)).expect("before it");
    cache.map(guest.at(2 * BLOCK, 2 * BLOCK, BLOCK)).expect("after it");
}

#[test]
fn rights_beyond_the_descriptor_s_are_refused() {
    let guest = Guest::new(BLOCK);
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(guest.file()));
    let open = || Some(Backing { fd: File::open(&path).expect("a memfd can be opened again").into(), offset: 0 });
    let init = |protection| RegionInit { gpa: Gpa(0), len: BLOCK, protection, backing: open() };
    let error = cache().map(init(READ_WRITE)).expect_err("the descriptor is read-only");
    assert_eq!(error, BackingError::System(Errno::EACCES).into());
    assert_eq!(error.errno(), libc::EACCES);
    cache().map(init(Protection::READ)).expect("reading is allowed");
    assert_eq!(Protection::from_bits(4), None, "unknown bits of a message are refused");
}

#[test]
fn objects_that_do_not_live_in_memory_are_refused() {
    let backing = || Backing { fd: File::open("/proc/self/status").expect("it exists").into(), offset: 0 };
    let init = RegionInit { gpa: Gpa(0), len: 4096, protection: Protection::READ, backing: Some(backing()) };
    let error = cache().map(init).expect_err("proc is no memory");
    assert!(matches!(error, MapError::Backing(BackingError::FileSystem(_))), "{error}");
}

#[test]
fn a_million_tiny_maps_end_at_the_limit() {
    let guest = Guest::new(4096);
    let cache = cache_of(MapLimits { regions: 100, ..MapLimits::default() });
    let init = |at: u64| match at {
        0..200 => guest.at(at * 8192, 0, 4096),
        _ => RegionInit { gpa: Gpa(at * 8192), len: 4096, protection: READ_WRITE, backing: None },
    };
    let made = (0..1_000_000).filter(|at| cache.map(init(*at)).is_ok()).count();
    assert_eq!(made, 100);
    assert_eq!(cache.map(guest.at(1 << 40, 0, 4096)).unwrap_err(), MapError::TooManyRegions(100));
    // No descriptor is kept: the mappings alone hold the memory.
    let links = std::fs::read_dir("/proc/self/fd").expect("proc is there").filter_map(Result::ok);
    let ours = links.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().contains("guest")));
    assert!(ours.count() < 50);
    assert_eq!(cache.unmap_all().expect("nothing is pinned").len(), 100);
    cache.map(guest.at(1 << 40, 0, 4096)).expect("there is room again");
}

#[test]
fn bytes_are_limited_in_sum() {
    let guest = Guest::new(LEN);
    let cache = cache_of(MapLimits { bytes: 3 * BLOCK, ..MapLimits::default() });
    cache.map(guest.at(0, 0, 2 * BLOCK)).expect("it fits");
    let error = cache.map(guest.at(8 * BLOCK, 0, BLOCK + 4096)).expect_err("more than is left");
    assert_eq!(error, MapError::TooManyBytes { range: range(8 * BLOCK, BLOCK + 4096), limit: 3 * BLOCK });
    cache.map(guest.at(8 * BLOCK, 0, BLOCK)).expect("exactly what is left");
    cache.unmap(range(0, 2 * BLOCK)).expect("it is mapped");
    cache.map(guest.at(0, 0, 2 * BLOCK)).expect("it was given back");
}

/// Three regions: two that adjoin, the second without descriptor, and one behind a hole; the last is read-only.
#[test]
fn lookups_span_adjoining_regions_only() {
    let guest = Guest::new(LEN);
    let cache = cache();
    cache.map(guest.at(BLOCK, 0, BLOCK)).expect("free");
    cache.map(guest.at(2 * BLOCK, 8 * BLOCK, BLOCK)).expect("free");
    cache.map(RegionInit { protection: Protection::READ, ..guest.at(4 * BLOCK, 0, BLOCK) }).expect("free");
    cache.map(RegionInit { backing: None, ..guest.at(6 * BLOCK, 0, BLOCK) }).expect("free");
    cache.map(guest.at(7 * BLOCK, 0, BLOCK)).expect("free");

    cache.check(range(BLOCK, 2 * BLOCK), READ_WRITE).expect("both regions in full");
    cache.check(range(2 * BLOCK - 1, 2), READ_WRITE).expect("one byte in each");
    cache.check(range(4 * BLOCK, BLOCK), Protection::READ).expect("readable");
    let not_mapped = |at| LookupError::NotMapped(Gpa(at));
    let unpinnable = LookupError::Unpinnable { gpa: Gpa(6 * BLOCK), why: Unpinnable::NoDescriptor };
    let read_only = LookupError::Protection { gpa: Gpa(4 * BLOCK + 5), missing: Protection::WRITE };
    let cases = [
        (range(0, 1), not_mapped(0)),
        (range(BLOCK - 1, 2), not_mapped(BLOCK - 1)),
        (range(3 * BLOCK - 1, 2), not_mapped(3 * BLOCK)),
        (range(BLOCK, 4 * BLOCK), not_mapped(3 * BLOCK)),
        (range(BLOCK, u64::MAX - BLOCK), not_mapped(3 * BLOCK)),
        (range(u64::MAX - 1, 1), not_mapped(u64::MAX - 1)),
        (range(4 * BLOCK + 5, 1), read_only),
        (range(6 * BLOCK, 2 * BLOCK), unpinnable),
    ];
    for (range, error) in cases {
        assert_eq!(cache.check(range, READ_WRITE), Err(error), "{range}");
        let pinned = cache.pin(pvdma::Instant::default(), range, READ_WRITE);
        assert_eq!(pinned.expect_err("as the lookup says"), PinError::Lookup(error), "{range}");
    }
    assert_eq!(cache.stats().pinned_bytes, 0);
}

#[test]
fn unmaps_take_whole_regions() {
    let guest = Guest::new(LEN);
    let cache = cache();
    let [a, b] = [BLOCK, 2 * BLOCK].map(|at| cache.map(guest.at(at, 0, BLOCK)).expect("free"));
    let splits = |range, region: &pvdma::Region| UnmapError::Splits { range, region: region.range() };
    let cases = [
        (range(0, BLOCK), UnmapError::NotMapped(range(0, BLOCK))),
        (range(3 * BLOCK, 1 << 50), UnmapError::NotMapped(range(3 * BLOCK, 1 << 50))),
        (range(BLOCK, 4096), splits(range(BLOCK, 4096), &a)),
        (range(BLOCK + 4096, BLOCK), splits(range(BLOCK + 4096, BLOCK), &a)),
        (range(0, 2 * BLOCK + 4096), splits(range(0, 2 * BLOCK + 4096), &b)),
        (range(2 * BLOCK + 4096, BLOCK), splits(range(2 * BLOCK + 4096, BLOCK), &b)),
    ];
    for (range, error) in cases {
        assert_eq!(cache.unmap(range), Err(error));
        assert!(error.errno() == libc::EINVAL || error == UnmapError::NotMapped(range));
    }
    assert_eq!(cache.stats().regions, 2);
    assert_eq!(cache.unmap(range(0, 1 << 60)), Ok(vec![a.generation(), b.generation()]));
    assert!(a.is_ended() && b.is_ended());
    assert_eq!((cache.stats().regions, cache.stats().mapped_bytes), (0, 0));
    assert_eq!(cache.unmap_all(), Ok(vec![]));
}
