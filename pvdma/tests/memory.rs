//! Real memory: memfds as a VMM passes them, locked and populated by [`LockPinner`].

mod guest;

use guest::{BLOCK, Guest, MIB, READ_WRITE, range};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect};
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Uid, setuid};
use pvdma::{AccessError, Config, Gpa, Instant, LockPinner, MapCache, PinError, Protection, Region, RegionInit, Unpinnable};
use std::num::NonZeroUsize;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use vm_memory::Bytes;

const NOW: Instant = Instant::from_nanos(0);

fn cache() -> MapCache {
    MapCache::new(Config { max_idle: Duration::ZERO, ..Config::default() }, Arc::new(LockPinner))
}

/// Bytes that the kernel says are locked within the addresses of `region`.
fn locked(region: &Region) -> u64 {
    let (from, to) = {
        let inside = region.enter().expect("mapped");
        let memory = inside.memory(&region.range(), Protection::READ).expect("the whole region");
        let start = memory.ptr_guard().as_ptr() as u64;
        (start, start + region.range().len())
    };
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("proc is there");
    let (mut locked, mut ours) = (0, false);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().expect("no line is empty");
        if let Some((start, end)) = first.split_once('-') {
            let address = |hex| u64::from_str_radix(hex, 16).expect("an address");
            ours = address(start) >= from && address(end) <= to;
        } else if ours && first == "Locked:" {
            locked += words.next().and_then(|kib| kib.parse::<u64>().ok()).expect("KiB") * 1024;
        }
    }
    locked
}

/// Whether this process may lock `bytes` more; says so if not.
fn may_lock(bytes: u64) -> bool {
    let guest = Guest::new(bytes);
    let cache = cache();
    cache.map(guest.flat(bytes)).expect("free");
    match cache.pin(NOW, range(0, bytes), READ_WRITE) {
        Err(PinError::Pinner { source, .. }) if source.limit => {
            skip::skip(&format!("memory cannot be locked here: {source}"));
            false
        }
        pinned => {
            pinned.expect("nothing but a limit is in the way");
            true
        }
    }
}

#[test]
fn only_what_is_registered_becomes_resident_and_locked() {
    if !may_lock(4 * BLOCK) {
        return;
    }
    let guest = Guest::new(1 << 40);
    let cache = cache();
    let region = cache.map(guest.flat(1 << 40)).expect("free");
    assert_eq!((guest.resident(), locked(&region)), (0, 0), "mapping a TiB costs no memory");
    let guard = cache.pin(NOW, range((1 << 39) - 1, 2), READ_WRITE).expect("mapped");
    assert_eq!((guest.resident(), locked(&region)), (2 * BLOCK, 2 * BLOCK));

    // What the device writes, the guest reads, and the other way round.
    let segment = guard.segments().next().expect("one");
    {
        let inside = segment.region.enter().expect("mapped");
        let memory = inside.memory(&range((1 << 39) - 1, 2), READ_WRITE).expect("within");
        assert_eq!(memory.ptr_guard().as_ptr() as u64, segment.hva.0);
        memory.write_obj(7u8, 1).expect("within");
        guest.write((1 << 39) - 1, 8);
        assert_eq!((guest.read(1 << 39), memory.read_obj::<u8>(0).expect("within")), (7, 8));
    }
    drop(guard);
    assert_eq!(locked(&region), 2 * BLOCK, "lazily");
    assert_eq!(cache.release_idle(NOW), 2 * BLOCK);
    assert_eq!(locked(&region), 0);
    assert_eq!(guest.read(1 << 39), 7, "unpinning keeps the guest's data");

    let held = cache.pin(NOW, range(0, BLOCK), READ_WRITE).expect("mapped");
    cache.unmap(range(0, 1 << 40)).expect("it is unlocked");
    drop(held);
    assert_eq!(guest.resident(), 3 * BLOCK);
}

#[test]
fn read_only_memory_is_populated_but_not_writable() {
    if !may_lock(BLOCK) {
        return;
    }
    let guest = Guest::new(BLOCK);
    guest.write(5, 55);
    let cache = cache();
    let region = cache.map(RegionInit { protection: Protection::READ, ..guest.flat(BLOCK) }).expect("free");
    let _guard = cache.pin(NOW, range(0, 6), Protection::READ).expect("mapped");
    assert_eq!(locked(&region), BLOCK);
    let inside = region.enter().expect("mapped");
    let memory = inside.memory(&range(5, 1), Protection::READ).expect("within");
    assert_eq!(memory.read_obj::<u8>(0).expect("within"), 55);
    let refused = |range, need| inside.memory(&range, need).map(|memory| memory.len()).expect_err("not allowed");
    assert_eq!(refused(range(5, 1), READ_WRITE), AccessError::Protection(Protection::WRITE));
    assert_eq!(refused(range(BLOCK - 1, 2), Protection::READ), AccessError::Bounds(range(BLOCK - 1, 2)));
}

#[test]
fn a_region_without_descriptor_has_no_memory() {
    let cache = cache();
    let rom = RegionInit { gpa: Gpa(0), len: 4096, protection: Protection::READ, backing: None };
    let region = cache.map(rom).expect("QEMU maps ROM like this");
    let inside = region.enter().expect("mapped");
    let refused = inside.memory(&range(0, 1), Protection::READ).map(|memory| memory.len());
    assert_eq!(refused, Err(AccessError::Unpinnable(Unpinnable::NoDescriptor)));
}

/// H2: the VMM shrinks the object under the region. Pinning fails with an error, not with a signal, and nothing stays locked.
#[test]
fn h2_a_truncated_object_is_an_error() {
    if !may_lock(2 * BLOCK) {
        return;
    }
    let guest = Guest::new(4 * BLOCK);
    let cache = cache();
    let region = cache.map(guest.flat(4 * BLOCK)).expect("free");
    guest.file().set_len(BLOCK + MIB).expect("nothing forbids it");
    cache.pin(NOW, range(0, BLOCK), READ_WRITE).expect("still there");
    for gone in [range(BLOCK, 1), range(3 * BLOCK, 1)] {
        let error = cache.pin(NOW, gone, READ_WRITE).expect_err("no memory is there");
        let PinError::Pinner { source, .. } = error else { panic!("{error}") };
        assert_eq!((source.errno, source.limit), (Errno::EFAULT, false));
        assert!(source.hint.contains("shorter than its map"), "{source}");
    }
    assert_eq!(locked(&region), BLOCK);
    assert_eq!(cache.stats().pinned_bytes, BLOCK);
}

/// H2: a balloon takes pages out of a pinned block. The guest and the device go on seeing the same memory.
#[test]
fn h2_a_hole_punched_into_a_pinned_block_stays_coherent() {
    if !may_lock(BLOCK) {
        return;
    }
    let guest = Guest::new(BLOCK);
    let cache = cache();
    let region = cache.map(guest.flat(BLOCK)).expect("free");
    let _guard = cache.pin(NOW, range(0, BLOCK), READ_WRITE).expect("mapped");
    guest.write(MIB, 1);
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(guest.file(), hole, 0, BLOCK as i64).expect("a memfd can have holes");
    let inside = region.enter().expect("mapped");
    let memory = inside.memory(&range(MIB, 2), READ_WRITE).expect("within");
    assert_eq!(memory.read_obj::<u8>(0).expect("within"), 0, "the old page is gone here too");
    memory.write_obj(9u8, 1).expect("within");
    assert_eq!(guest.read(MIB + 1), 9);
}

/// Whether the host has huge pages to spare or not, there is memory or an error, never a signal.
#[test]
fn huge_pages_are_pinned_or_named_as_missing() {
    let guest = Guest::huge(2 * BLOCK);
    let cache = cache();
    cache.map(guest.flat(2 * BLOCK)).expect("mapping takes no huge page");
    match cache.pin(NOW, range(BLOCK - 1, 2), READ_WRITE) {
        Ok(guard) => {
            let segment = guard.segments().next().expect("one");
            let inside = segment.region.enter().expect("mapped");
            let memory = inside.memory(&range(BLOCK - 1, 2), READ_WRITE).expect("within");
            memory.write_obj(7u16, 0).expect("within");
            assert_eq!(memory.read_obj::<u16>(0).expect("within"), 7);
        }
        Err(PinError::Pinner { source, .. }) => {
            assert_eq!((source.errno, source.limit), (Errno::ENOMEM, false));
            assert!(source.hint.contains("nr_hugepages"), "{source}");
            let stats = cache.stats();
            assert_eq!(stats.pinned_bytes, stats.idle_bytes);
        }
        Err(error) => panic!("{error}"),
    }
}

const AGAIN: &str = "PVDMA_TEST_AGAIN";

/// Runs the test `name` in a process of its own, which it may spoil; false in that process.
fn ran_on_its_own(name: &str) -> bool {
    if std::env::var_os(AGAIN).is_some() {
        return false;
    }
    let program = std::env::current_exe().expect("we run");
    let output = Command::new(program).args(["--exact", name, "--nocapture"]).env(AGAIN, "1").output();
    let output = output.expect("we can run again");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("limit reached"), "{text}{}", String::from_utf8_lossy(&output.stderr));
    true
}

/// H6: every locked block in the midst of others costs two mappings. When there are no more, the error says so.
#[test]
fn h6_the_limit_on_mappings_is_named() {
    if !may_lock(3 * BLOCK) || ran_on_its_own("h6_the_limit_on_mappings_is_named") {
        return;
    }
    let guest = Guest::new(8 * BLOCK);
    let cache = MapCache::new(Config::default(), Arc::new(LockPinner));
    cache.map(guest.flat(8 * BLOCK)).expect("free");
    let pin = |block: u64| cache.pin(NOW, range(block * BLOCK, 1), READ_WRITE);
    drop(pin(1).expect("mappings are left"));
    // Pages that alternate in their rights are a mapping each.
    let most: usize = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().expect("a number");
    let len = NonZeroUsize::new(most * 8192).expect("a limit");
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_ANONYMOUS | MapFlags::MAP_NORESERVE;
    // SAFETY: a new mapping, which nothing else uses.
    let base = unsafe { mmap_anonymous(None, len, ProtFlags::PROT_NONE, flags) }.expect("address space is left");
    for at in 0.. {
        // SAFETY: a page of that mapping.
        let page = unsafe { base.byte_add(at * 8192) };
        // SAFETY: as above.
        if unsafe { mprotect(page, 4096, ProtFlags::PROT_READ) }.is_err() {
            break;
        }
    }
    // Idle block 1 was a mapping of its own, between two more: its release gives back two.
    let held = pin(3).expect("block 1 makes room");
    assert_eq!(cache.stats().evictions_room, 1);
    let error = pin(5).expect_err("no mapping is left");
    let PinError::Pinner { source, .. } = &error else { panic!("{error}") };
    assert_eq!((source.errno, source.limit), (Errno::ENOMEM, true));
    assert!(source.hint.contains("vm.max_map_count"), "{source}");
    drop(held);
    println!("limit reached");
}

/// H6: at RLIMIT_MEMLOCK idle blocks make room, and when none is idle the error names the limit. Runs itself again as a
/// process without the right to lock what it likes.
#[test]
fn h6_the_limit_on_locked_memory_is_named() {
    if ran_on_its_own("h6_the_limit_on_locked_memory_is_named") {
        return;
    }
    let limit = 2 * BLOCK + BLOCK / 2;
    let guest = Guest::new(8 * BLOCK);
    setrlimit(Resource::RLIMIT_MEMLOCK, limit, limit).expect("it only becomes lower");
    if Uid::effective().is_root() {
        // Takes every capability away.
        setuid(Uid::from_raw(65534)).expect("root may");
    }
    let cache = MapCache::new(Config::default(), Arc::new(LockPinner));
    let region = cache.map(guest.flat(8 * BLOCK)).expect("free");
    let pin = |block: u64| cache.pin(NOW, range(block * BLOCK, 1), READ_WRITE);
    let first = pin(0).expect("within the limit");
    drop(pin(1).expect("within the limit"));
    let second = pin(2).expect("block 1 makes room");
    assert_eq!((locked(&region), cache.stats().evictions_room), (2 * BLOCK, 1));
    let error = pin(3).expect_err("over the limit");
    let PinError::Pinner { source, .. } = &error else { panic!("{error}") };
    assert_eq!((source.errno, source.limit), (Errno::ENOMEM, true));
    for part in ["RLIMIT_MEMLOCK", &limit.to_string(), &(2 * BLOCK).to_string(), "CAP_IPC_LOCK"] {
        assert!(source.hint.contains(part), "{source} lacks {part}");
    }
    assert_eq!(guest.resident(), 3 * BLOCK, "no memory is spent on what cannot be locked");
    drop((first, second));
    pin(3).expect("there is room again");
    println!("limit reached");
}

#[test]
fn locked_blocks_may_alternate_with_unlocked_ones() {
    if !may_lock(8 * BLOCK) {
        return;
    }
    let guest = Guest::new(16 * BLOCK);
    let cache = cache();
    let region = cache.map(guest.flat(16 * BLOCK)).expect("free");
    let mut guards: Vec<_> = (0..8).map(|at| cache.pin(NOW, range(2 * at * BLOCK, 1), READ_WRITE).expect("mapped")).collect();
    assert_eq!(locked(&region), 8 * BLOCK);
    while let Some(guard) = guards.pop() {
        drop(guard);
        assert_eq!(cache.release_idle(NOW), BLOCK);
        assert_eq!(locked(&region), guards.len() as u64 * BLOCK);
    }
}
