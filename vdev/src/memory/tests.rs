//! A real other process as client: registration rules, and every pair of memory kinds by contents.

use super::*;
use core::ptr::null_mut;
use emtt::{MemId, Owner, Segment};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;
use rnic::{AtomicOp, Dma, DmaError};
use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use vdev_abi::control::SharedRange;
use vdev_abi::mapping::Mapping;

const PAGE: u64 = 4096;
const BYTES: usize = 1 << 20;

/// Private or shared memory that this process maps before it forks; the child has it at the same address.
struct Range {
    addr: u64,
    len: usize,
    fd: Option<OwnedFd>,
}

impl Range {
    fn new(len: usize, rights: i32, fd: Option<OwnedFd>) -> Range {
        let (flags, raw) = match &fd {
            Some(fd) => {
                ftruncate(fd, len as i64).unwrap();
                (libc::MAP_SHARED, fd.as_raw_fd())
            }
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(null_mut(), len, rights, flags, raw, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Range { addr: base.expose_provenance() as u64, len, fd }
    }

    fn heap() -> Range {
        Range::new(BYTES, libc::PROT_READ | libc::PROT_WRITE, None)
    }

    fn object() -> Range {
        let fd = memfd_create(c"memory-test", MFdFlags::MFD_CLOEXEC).unwrap();
        Range::new(BYTES, libc::PROT_READ | libc::PROT_WRITE, Some(fd))
    }

    fn fill(&self, seed: u8) {
        let base = core::ptr::with_exposed_provenance_mut::<u8>(self.addr as usize);
        for n in 0..self.len {
            // SAFETY: within the mapping, which nothing else uses yet.
            unsafe { base.add(n).write((n as u8).wrapping_mul(31).wrapping_add((n >> 8) as u8).wrapping_add(seed)) };
        }
    }

    fn shared(&self) -> Vec<(SharedRange, OwnedFd)> {
        let range = SharedRange { addr: self.addr, length: self.len as u64, offset: 0 };
        self.fd.iter().map(|fd| (range, fd.try_clone().unwrap())).collect()
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: what `new` mapped.
        unsafe { libc::munmap(core::ptr::with_exposed_provenance_mut(self.addr as usize), self.len) };
    }
}

/// A child that holds copies of all mappings, but of no descriptors, and does nothing, until dropped.
struct Child(i32);

impl Child {
    fn fork() -> Child {
        // SAFETY: the child makes plain system calls only.
        match unsafe { libc::fork() } {
            // SAFETY: as above. It goes with us, however we end.
            0 => unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // Of the mappings only: with copies of their descriptors the ends of other tests' sockets and pipes would not be seen.
                libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0);
                loop {
                    libc::pause();
                }
            },
            pid => {
                assert!(pid > 0);
                Child(pid)
            }
        }
    }

    fn process(&self) -> Arc<Process> {
        Arc::new(Process::open(&Peer::by_pid(self.0).unwrap(), None).unwrap())
    }

    fn end(&self) {
        // SAFETY: our own child.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        // SAFETY: as above.
        unsafe { libc::waitpid(self.0, null_mut(), 0) };
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

fn segment(id: MemId, addr: u64, len: u64) -> Segment {
    Segment { owner: Owner::Host(id), addr, len }
}

/// The segments of a resolved range.
fn segments(memories: &mut Memories, process: &Arc<Process>, resolved: &Resolved) -> Vec<Segment> {
    let pieces = resolved.pieces.iter();
    pieces
        .map(|piece| match &piece.place {
            Place::Process => segment(memories.add_process(process.clone()), piece.addr, piece.len),
            Place::Mapped { mapping, offset } => segment(memories.add_mapping(mapping.clone()), *offset, piece.len),
        })
        .collect()
}

fn read(memories: &mut Memories, at: Segment) -> Result<Vec<u8>, DmaError> {
    let mut bytes = vec![0; at.len as usize];
    memories.gather(&[rnic::Piece { segment: at, at: 0 }], &mut bytes)?;
    Ok(bytes)
}

fn part(whole: Segment, offset: u64, len: u64) -> Segment {
    Segment { addr: whole.addr + offset, len, ..whole }
}

/// Cuts a range into segments of uneven length.
fn cut(whole: Segment, lens: &[u64]) -> Vec<Segment> {
    let mut at = 0;
    lens.iter()
        .map(|&len| {
            at += len;
            part(whole, at - len, len)
        })
        .collect()
}

#[test]
fn every_pair_of_memory_kinds() {
    let (heap_a, heap_b, object) = (Range::heap(), Range::heap(), Range::object());
    heap_a.fill(1);
    heap_b.fill(2);
    object.fill(3);
    let (one, two) = (Child::fork(), Child::fork());
    let mut memories = Memories::new();
    let mut kinds = Vec::new();
    for (child, range) in [(&one, &heap_a), (&two, &heap_b), (&one, &heap_b), (&one, &object)] {
        let process = child.process();
        let resolved = resolve(&process, range.addr, range.len as u64, true, range.shared()).unwrap();
        assert_eq!(resolved.fully_mapped, range.fd.is_some());
        let whole = segments(&mut memories, &process, &resolved);
        assert_eq!(whole.len(), 1);
        kinds.push(whole[0]);
    }
    let (_fd, ring) = Mapping::create(c"memory-test", BYTES).unwrap();
    let ring = memories.add_ring(Arc::new(ring));
    kinds.push(segment(ring, 0, BYTES as u64));

    let mut round = 0;
    for &from in &kinds {
        for &to in &kinds {
            for (source, target) in [
                (vec![part(from, 5, 300_000)], vec![part(to, 400_001, 300_000)]),
                (vec![part(from, 8, 8)], vec![part(to, 400_064, 8)]),
                (cut(part(from, 3, 0), &[1, 0, 70_000, 4096, 9]), cut(part(to, 500_003, 0), &[4096, 60_000, 10_005, 5])),
                (cut(from, &[100; 130]), cut(part(to, 600_000, 0), &[130; 100])),
            ] {
                round += 1;
                let expected: Vec<u8> = source.iter().flat_map(|s| read(&mut memories, *s).unwrap()).collect();
                memories.copy(&source, &target).unwrap();
                let arrived: Vec<u8> = target.iter().flat_map(|s| read(&mut memories, *s).unwrap()).collect();
                assert_eq!(arrived, expected, "round {round} {from:?} {to:?}");
                let around = read(&mut memories, part(target[0], 0, 0)).unwrap();
                assert!(around.is_empty());
            }
        }
    }
}

/// Memory that is nowhere: zeros come out, and what goes in is gone, beside memory of every kind.
#[test]
fn null_memory_between_others() {
    let (heap, object) = (Range::heap(), Range::object());
    heap.fill(1);
    object.fill(2);
    let process = Child::fork();
    let process = process.process();
    let mut memories = Memories::new();
    let null = segment(Memories::NULL, 0, u64::MAX);
    for range in [&heap, &object] {
        let resolved = resolve(&process, range.addr, range.len as u64, true, range.shared()).unwrap();
        let whole = segments(&mut memories, &process, &resolved)[0];
        let mut wanted = read(&mut memories, part(whole, 0, 70_000)).unwrap();
        // 40,000 zeros from nowhere, in the middle of a copy.
        let source = [part(whole, 60_000, 1000), part(null, u64::MAX - 50_000, 40_000), part(whole, 61_000, 9000)];
        memories.copy(&source, &[part(whole, 0, 50_000)]).unwrap();
        wanted.copy_within(60_000..61_000, 0);
        wanted[1000..41_000].fill(0);
        wanted.copy_within(61_000..70_000, 41_000);
        assert!(read(&mut memories, part(whole, 0, 70_000)).unwrap() == wanted);
        // To nowhere: the first and the last part are forgotten.
        let target = [part(null, 5, 3000), part(whole, 0, 1000), part(null, 0, 5000)];
        memories.copy(&[part(whole, 60_000, 9000)], &target).unwrap();
        wanted.copy_within(63_000..64_000, 0);
        assert!(read(&mut memories, part(whole, 0, 70_000)).unwrap() == wanted);
        // And by packets.
        let mut buf = [7; 300];
        let pieces = [(part(whole, 0, 100), 0), (part(null, 9, 100), 100), (part(whole, 44_000, 100), 200)];
        let pieces = pieces.map(|(segment, at)| rnic::Piece { segment, at });
        memories.gather(&pieces, &mut buf).unwrap();
        assert_eq!(buf[..], [&wanted[..100], &[0; 100], &wanted[44_000..44_100]].concat());
        memories.scatter(&pieces, &[9; 300]).unwrap();
        assert_eq!(read(&mut memories, part(whole, 0, 100)).unwrap(), [9; 100]);
    }
    memories.copy(&[part(null, 0, 100)], &[part(null, 0, 100)]).unwrap();
    assert!(memories.atomic(part(null, 0, 8), rnic::AtomicOp::FetchAdd { add: 1 }).is_err());
}

#[test]
fn a_burst_of_pieces_goes_where_each_belongs() {
    let (heap, object) = (Range::heap(), Range::object());
    let child = Child::fork();
    let process = child.process();
    let mut memories = Memories::new();
    let mut homes = Vec::new();
    for range in [&heap, &object] {
        let resolved = resolve(&process, range.addr, range.len as u64, true, range.shared()).unwrap();
        homes.push(segments(&mut memories, &process, &resolved)[0]);
    }
    // 150 pieces, most in one process (more than one call takes), every fourth mapped, headers between them.
    let mut sent = vec![0; 150 * 1100];
    for (n, byte) in sent.iter_mut().enumerate() {
        *byte = (n * 13 + n / 256) as u8;
    }
    let pieces: Vec<rnic::Piece> = (0..150)
        .map(|n| {
            let home = homes[usize::from(n % 4 == 3)];
            rnic::Piece { segment: part(home, n * 2000 + n, 1024 - n), at: n as usize * 1100 + 58 }
        })
        .collect();
    memories.scatter(&pieces, &sent).unwrap();
    let mut back = vec![0; sent.len()];
    memories.gather(&pieces, &mut back).unwrap();
    for piece in &pieces {
        let range = piece.at..piece.at + piece.segment.len as usize;
        assert_eq!(back[range.clone()], sent[range.clone()]);
        assert_eq!(read(&mut memories, piece.segment).unwrap(), sent[range]);
    }
    assert!(back[..58].iter().all(|&byte| byte == 0), "bytes that no piece names stay");
}

#[test]
fn the_failed_segment_is_named() {
    let heap = Range::heap();
    let child = Child::fork();
    let process = child.process();
    let mut memories = Memories::new();
    let id = memories.add_process(process);
    let good = segment(id, heap.addr, 1000);
    let bad = segment(id, PAGE, 1000);
    let piece = |segment, at| rnic::Piece { segment, at };
    let mut buf = vec![0; 4000];
    let pieces = [piece(good, 0), piece(bad, 1000), piece(good, 2000)];
    assert_eq!(memories.gather(&pieces, &mut buf), Err(DmaError(bad)));
    assert_eq!(memories.scatter(&pieces, &buf), Err(DmaError(bad)));
    assert_eq!(memories.copy(&[good, bad], &[good, good]), Err(DmaError(bad)));
    assert_eq!(memories.copy(&[good, good], &[good, bad]), Err(DmaError(bad)));
    let past_the_end = segment(id, u64::MAX - 10, 10);
    assert_eq!(memories.copy(&[part(good, 0, 10)], &[past_the_end]), Err(DmaError(past_the_end)));
    let unknown = segment(MemId(77), 0, 1);
    assert_eq!(read(&mut memories, unknown), Err(DmaError(unknown)));

    let (_fd, ring) = Mapping::create(c"memory-test", PAGE as usize).unwrap();
    let ring = memories.add_ring(Arc::new(ring));
    for (addr, len) in [(PAGE - 1, 2), (u64::MAX, 1), (PAGE, 1)] {
        let outside = segment(ring, addr, len);
        assert_eq!(read(&mut memories, outside), Err(DmaError(outside)));
    }
    child.end();
    // The process is gone, its id may be anyone's.
    std::thread::sleep(core::time::Duration::from_millis(20));
    assert_eq!(read(&mut memories, good), Err(DmaError(good)));
    memories.remove(ring);
    memories.remove(id);
    assert!(memories.is_empty());
    assert_eq!(read(&mut memories, good), Err(DmaError(good)));
}

#[test]
fn atomics_on_both_kinds() {
    let (heap, object) = (Range::heap(), Range::object());
    let child = Child::fork();
    let process = child.process();
    let mut memories = Memories::new();
    for range in [&heap, &object] {
        let resolved = resolve(&process, range.addr, range.len as u64, true, range.shared()).unwrap();
        let word = part(segments(&mut memories, &process, &resolved)[0], 64, 8);
        assert_eq!(memories.atomic(word, AtomicOp::FetchAdd { add: 5 }), Ok(0));
        assert_eq!(memories.atomic(word, AtomicOp::CompareSwap { compare: 4, swap: 9 }), Ok(5));
        assert_eq!(memories.atomic(word, AtomicOp::CompareSwap { compare: 5, swap: 9 }), Ok(5));
        assert_eq!(read(&mut memories, word).unwrap(), 9u64.to_ne_bytes());
        let crooked = part(word, 1, 8);
        assert_eq!(memories.atomic(crooked, AtomicOp::FetchAdd { add: 1 }), Err(DmaError(crooked)));
    }
}

#[test]
fn a_client_that_truncates_its_object_gets_errors() {
    let (object, heap) = (Range::object(), Range::heap());
    let child = Child::fork();
    let process = child.process();
    let mut memories = Memories::new();
    let resolved = resolve(&process, object.addr, BYTES as u64, true, object.shared()).unwrap();
    assert!(resolved.fully_mapped);
    let whole = segments(&mut memories, &process, &resolved)[0];
    let private = segment(memories.add_process(process.clone()), heap.addr, BYTES as u64);
    ftruncate(object.fd.as_ref().unwrap(), PAGE as i64).unwrap();
    let gone = part(whole, 2 * PAGE, 3 * PAGE);
    let mut buf = vec![0; gone.len as usize];
    let piece = rnic::Piece { segment: gone, at: 0 };
    assert_eq!(memories.gather(&[piece], &mut buf), Err(DmaError(gone)));
    assert_eq!(memories.scatter(&[piece], &buf), Err(DmaError(gone)));
    assert_eq!(memories.atomic(part(gone, 0, 8), AtomicOp::FetchAdd { add: 1 }), Err(DmaError(part(gone, 0, 8))));
    assert!(memories.copy(&[gone], &[part(private, 0, gone.len)]).is_err());
    assert!(memories.copy(&[part(private, 0, gone.len)], &[gone]).is_err());
    assert_eq!(read(&mut memories, part(whole, 0, PAGE)).unwrap(), [0; PAGE as usize]);
}

/// A memfd as a device's buffer: its window is named when memory of it is gone, whatever it was that moved bytes, and nothing else is.
#[test]
fn a_window_that_loses_memory_is_remembered() {
    let heap = Range::heap();
    let child = Child::fork();
    let process = child.process();
    let private = |memories: &mut Memories| segment(memories.add_process(process.clone()), heap.addr, BYTES as u64);
    type Move = fn(&mut Memories, Segment, Segment) -> Result<(), DmaError>;
    let moves: [(&str, Move); 6] = [
        ("gather", |memories, gone, _| read(memories, gone).map(drop)),
        ("scatter", |memories, gone, _| memories.scatter(&[rnic::Piece { segment: gone, at: 0 }], &[1; 3 * PAGE as usize])),
        ("atomic", |memories, gone, _| memories.atomic(part(gone, 0, 8), AtomicOp::FetchAdd { add: 1 }).map(drop)),
        ("copy to a process", |memories, gone, private| memories.copy(&[gone], &[private])),
        ("copy from a process", |memories, gone, private| memories.copy(&[private], &[gone])),
        ("copy within", |memories, gone, _| memories.copy(&[gone], &[Segment { addr: 0, ..gone }])),
    ];
    for (what, move_bytes) in moves {
        let fd = memfd_create(c"memory-test", MFdFlags::MFD_CLOEXEC).unwrap();
        ftruncate(&fd, BYTES as i64).unwrap();
        let resolved = resolve_buffer(&process, fd.try_clone().unwrap(), (PAGE, 8 * PAGE), true).unwrap();
        let [Piece { place: Place::Mapped { mapping, offset: PAGE }, len, .. }] = &resolved.pieces[..] else {
            panic!("{resolved:?}")
        };
        assert_eq!((mapping.exporter().map(|name| &**name), *len), (Some("memfd"), 8 * PAGE));
        let mut memories = Memories::new();
        let window = memories.add_mapping(mapping.clone());
        let owner = Owner::Gpu { device: emtt::GpuId(0), window };
        let gone = Segment { owner, addr: 4 * PAGE, len: 3 * PAGE };
        let private = part(private(&mut memories), 100, gone.len);
        assert_eq!(move_bytes(&mut memories, gone, private), Ok(()), "{what}");
        assert_eq!(memories.take_lost(), None, "{what}");
        ftruncate(&fd, 5 * PAGE as i64).unwrap();
        let DmaError(bad) = move_bytes(&mut memories, gone, private).map_or_else(
            |bad| bad,
            |()| match what {
                // Its word is in the page that is there still.
                "atomic" => {
                    ftruncate(&fd, 0).unwrap();
                    move_bytes(&mut memories, gone, private).unwrap_err()
                }
                _ => panic!("{what} did not fail"),
            },
        );
        assert_eq!((bad.owner, memories.take_lost()), (owner, Some(window)), "{what}");
        assert_eq!(memories.take_lost(), None, "{what}: once");
        // What fails for other reasons says nothing about the window.
        let nowhere = Segment { addr: PAGE, ..private };
        ftruncate(&fd, BYTES as i64).unwrap();
        assert_eq!(memories.copy(&[nowhere], &[gone]), Err(DmaError(nowhere)), "{what}");
        assert_eq!(memories.take_lost(), None, "{what}");
    }
}

#[test]
fn registrations_of_one_buffer_share_one_mapping() {
    let child = Child::fork();
    let process = child.process();
    let fd = memfd_create(c"memory-test", MFdFlags::MFD_CLOEXEC).unwrap();
    ftruncate(&fd, 4 * PAGE as i64).unwrap();
    let mapping_of = |place, writable| {
        let resolved = resolve_buffer(&process, fd.try_clone().unwrap(), place, writable)?;
        let Place::Mapped { mapping, .. } = &resolved.pieces[0].place else { panic!("{resolved:?}") };
        Ok::<_, BufferError>(mapping.clone())
    };
    let first = mapping_of((0, 1), true).unwrap();
    assert!(Arc::ptr_eq(&first, &mapping_of((3 * PAGE, PAGE), false).unwrap()));
    assert_eq!(mappings_of(&process, fd.try_clone().unwrap()).unwrap().len(), 1);
    // It has grown: what is behind the first mapping is in another one.
    ftruncate(&fd, 8 * PAGE as i64).unwrap();
    let second = mapping_of((7 * PAGE, PAGE), true).unwrap();
    assert!(!Arc::ptr_eq(&first, &second));
    assert_eq!(mappings_of(&process, fd.try_clone().unwrap()).unwrap().len(), 2);
    for place in [(0, 8 * PAGE + 1), (8 * PAGE, 1), (u64::MAX, 2), (0, 0)] {
        let refused = mapping_of(place, true).unwrap_err();
        assert!(matches!(refused, BufferError::Outside { .. }) && refused.errno() == libc::EINVAL, "{refused}");
    }
    drop((first, second));
    assert!(mappings_of(&process, fd.try_clone().unwrap()).unwrap().is_empty(), "nothing is kept that nobody has registered");
}

#[test]
fn rights_and_holes() {
    let read_only = Range::new(4 * PAGE as usize, libc::PROT_READ, None);
    let none = Range::new(4 * PAGE as usize, libc::PROT_NONE, None);
    let holed = Range::heap();
    // SAFETY: a page of our own mapping that nothing uses.
    unsafe { libc::munmap(core::ptr::with_exposed_provenance_mut((holed.addr + 8 * PAGE) as usize), PAGE as usize) };
    let child = Child::fork();
    let process = child.process();
    let resolve = |addr, len, writable| resolve(&process, addr, len, writable, Vec::new());

    resolve(read_only.addr + 1, 100, false).unwrap();
    let refused = resolve(read_only.addr + 1, 100, true).unwrap_err();
    assert!(matches!(refused, RegisterError::NoRight { right: "writable", .. }), "{refused}");
    assert_eq!(refused.errno(), libc::EFAULT);
    let refused = resolve(none.addr, 1, false).unwrap_err();
    assert!(matches!(refused, RegisterError::NoRight { right: "readable", .. }), "{refused}");

    resolve(holed.addr, 8 * PAGE, true).unwrap();
    let refused = resolve(holed.addr, 10 * PAGE, true).unwrap_err();
    assert!(matches!(refused, RegisterError::NotMapped { at, .. } if at == holed.addr + 8 * PAGE), "{refused}");
    let refused = resolve(holed.addr + 8 * PAGE - 1, 2, true).unwrap_err();
    assert!(matches!(refused, RegisterError::NotMapped { .. }), "{refused}");
    assert_eq!(resolve(u64::MAX - 5, 10, true).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(resolve(0, 1, false).unwrap_err().errno(), libc::EFAULT);
    assert_eq!(resolve(1 << 63, 4096, false).unwrap_err().errno(), libc::EFAULT);

    let empty = resolve(12345, 0, true).unwrap();
    assert!(empty.pieces.is_empty() && empty.fully_mapped);
}

#[test]
fn registrations_of_one_object_share_one_mapping() {
    let object = Range::object();
    let child = Child::fork();
    let process = child.process();
    let mut memories = Memories::new();
    let mut ids = Vec::new();
    for n in 0..100 {
        let resolved = resolve(&process, object.addr + n * 100, 5000, n % 2 == 0, object.shared()).unwrap();
        ids.push(segments(&mut memories, &process, &resolved)[0].owner);
    }
    ids.dedup();
    assert_eq!(ids.len(), 1);
    assert_eq!(memories.len(), 1);
}

#[test]
fn descriptors_that_are_not_the_object_are_not_believed() {
    let (object, other) = (Range::object(), Range::object());
    object.fill(7);
    let child = Child::fork();
    let process = child.process();
    let claim = |range: &Range, offset| {
        let fd = range.fd.as_ref().unwrap().try_clone().unwrap();
        vec![(SharedRange { addr: object.addr, length: BYTES as u64, offset }, fd)]
    };
    for claims in [claim(&other, 0), claim(&object, PAGE)] {
        let resolved = resolve(&process, object.addr, BYTES as u64, true, claims).unwrap();
        // A privileged daemon maps the true object by itself; any other falls back to the kernel.
        let mut memories = Memories::new();
        let whole = segments(&mut memories, &process, &resolved);
        assert_eq!(read(&mut memories, part(whole[0], 0, 3)).unwrap(), [7, 38, 69]);
    }
}

#[test]
fn a_privileged_daemon_maps_without_descriptors() {
    if !nix::unistd::geteuid().is_root() || std::fs::read_dir("/proc/self/map_files").is_err() {
        skip::skip("needs root and /proc/self/map_files");
        return;
    }
    let object = Range::object();
    object.fill(9);
    let child = Child::fork();
    let process = child.process();
    let resolved = resolve(&process, object.addr + 4097, 9000, true, Vec::new()).unwrap();
    assert!(resolved.fully_mapped);
    let mut memories = Memories::new();
    let whole = segments(&mut memories, &process, &resolved);
    assert_eq!(whole[0].addr, 4097);
    memories.scatter(&[rnic::Piece { segment: part(whole[0], 0, 2), at: 0 }], b"ab").unwrap();
    let base = core::ptr::with_exposed_provenance::<u8>(object.addr as usize + 4097);
    // SAFETY: our own mapping of the same object; read as another process may write it.
    assert_eq!(unsafe { (base.read_volatile(), base.add(1).read_volatile()) }, (b'a', b'b'));
}

#[test]
fn through_proc_mem_all_is_the_same() {
    let heap = Range::heap();
    heap.fill(4);
    let child = Child::fork();
    let mem = OpenOptions::new().read(true).write(true).open(format!("/proc/{}/mem", child.0)).unwrap();
    let process = Arc::new(Process::by_mem(&Peer::by_pid(child.0).unwrap(), mem.into()).unwrap());
    let mut memories = Memories::new();
    let id = memories.add_process(process.clone());
    resolve(&process, heap.addr, BYTES as u64, true, Vec::new()).unwrap();
    let from = cut(segment(id, heap.addr + 1, 0), &[100, 5000, 70_000]);
    let to = cut(segment(id, heap.addr + 500_000, 0), &[70_000, 5000, 100]);
    let expected: Vec<u8> = from.iter().flat_map(|s| read(&mut memories, *s).unwrap()).collect();
    memories.copy(&from, &to).unwrap();
    let arrived: Vec<u8> = to.iter().flat_map(|s| read(&mut memories, *s).unwrap()).collect();
    assert_eq!(arrived, expected);
    let gone = segment(id, PAGE, 8);
    assert_eq!(read(&mut memories, gone), Err(DmaError(gone)));
    child.end();
    let ended = segment(id, heap.addr, 8);
    assert_eq!(read(&mut memories, ended), Err(DmaError(ended)));
}

#[test]
fn only_proc_mem_is_accepted_as_memory() {
    let child = Child::fork();
    let peer = Peer::by_pid(child.0).unwrap();
    let (pipe, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let maps = std::fs::File::open("/proc/self/maps").unwrap();
    let read_only = std::fs::File::open(format!("/proc/{}/mem", child.0)).unwrap();
    for fd in [OwnedFd::from(pipe), maps.into(), read_only.into()] {
        let refused = Process::by_mem(&peer, fd.as_fd().try_clone_to_owned().unwrap()).unwrap_err();
        assert!(refused.to_string().contains("the client passed"), "{refused}");
        assert_eq!(refused.errno(), libc::EACCES);
    }
}
