//! The payload copy beside `memcpy`, over page offsets, and each pair of memory kinds beside `memcpy` and one-copy
//! `process_vm_writev` of the same size. A child process plays the client.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use emtt::{MemId, Owner, Segment};
use rnic::{Dma, Piece};
use std::hint::black_box;
use std::ptr::null_mut;
use std::sync::Arc;
use vdev::memory::{Memories, Peer, Process};
use vdev_abi::copy::Copier;
use vdev_abi::mapping::Mapping;

const REGION: usize = 8 << 20;

/// Anonymous memory, touched.
fn anonymous(len: usize) -> *mut u8 {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe { libc::mmap(null_mut(), len, rights, flags, -1, 0) };
    assert_ne!(base, libc::MAP_FAILED);
    // Small pages, as a heap usually has; huge ones would flatter the kernel's copies.
    // SAFETY: our own new mapping.
    unsafe {
        libc::madvise(base, len, libc::MADV_NOHUGEPAGE);
        base.cast::<u8>().write_bytes(1, len);
    }
    base.cast()
}

struct Child(i32);

impl Child {
    /// A child whose copy of `len` bytes at `base` is its own.
    fn fork(base: *mut u8, len: usize) -> Child {
        let (fd_read, fd_write) = nix::unistd::pipe().unwrap();
        // SAFETY: the child makes system calls and touches memory of its own only.
        match unsafe { libc::fork() } {
            // SAFETY: as above.
            0 => unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                base.write_bytes(2, len);
                let _ = nix::unistd::write(&fd_write, b"x");
                loop {
                    libc::pause();
                }
            },
            pid => {
                nix::unistd::read(&fd_read, &mut [0]).unwrap();
                Child(pid)
            }
        }
    }

    fn process(&self) -> Arc<Process> {
        Arc::new(Process::open(&Peer::by_pid(self.0).unwrap(), None).unwrap())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our own child.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, null_mut(), 0);
        }
    }
}

fn offsets(c: &mut Criterion) {
    let copier = Copier::new();
    let (src, dst) = (anonymous(REGION), anonymous(REGION));
    for len in [8usize, 64, 4096, 65536, 1 << 20] {
        let mut group = c.benchmark_group(format!("copy/{len}"));
        group.throughput(Throughput::Bytes(len as u64));
        for ahead in [0usize, 1, 8, 16, 31, 32, 64, 2048] {
            let to = dst.wrapping_add(ahead);
            group.bench_function(BenchmarkId::new("ours", ahead), |b| {
                // SAFETY: both ranges lie within the regions.
                b.iter(|| unsafe { copier.copy(black_box(to), black_box(src), black_box(len)) }.unwrap());
            });
            group.bench_function(BenchmarkId::new("memcpy", ahead), |b| {
                // SAFETY: as above, and the regions are distinct.
                b.iter(|| unsafe { std::ptr::copy_nonoverlapping(black_box(src), black_box(to), black_box(len)) });
            });
        }
        group.finish();
    }
}

fn kinds(c: &mut Criterion) {
    let base = anonymous(REGION);
    let (one, two) = (Child::fork(base, REGION), Child::fork(base, REGION));
    let mut memories = Memories::new();
    let ids: Vec<MemId> = [&one, &two].map(|child| memories.add_process(child.process())).into();
    let rings: Vec<MemId> = (0..2).map(|_| memories.add_ring(Arc::new(Mapping::create(c"bench", REGION).unwrap().1))).collect();
    let ours = anonymous(REGION);
    let segment = |id, addr, len: usize| Segment { owner: Owner::Host(id), addr, len: len as u64 };
    let heap = base.expose_provenance() as u64;
    for len in [8usize, 4096, 65536, 1 << 20] {
        let mut group = c.benchmark_group(format!("memory/{len}"));
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function("memcpy", |b| {
            let to = ours.wrapping_add(REGION / 2);
            // SAFETY: two halves of one region.
            b.iter(|| unsafe { std::ptr::copy_nonoverlapping(black_box(ours), black_box(to), black_box(len)) });
        });
        group.bench_function("process_vm_writev", |b| {
            let local = libc::iovec { iov_base: ours.cast(), iov_len: len };
            let remote = libc::iovec { iov_base: base.cast(), iov_len: len };
            // SAFETY: the local range is ours.
            b.iter(|| assert_eq!(unsafe { libc::process_vm_writev(one.0, &local, 1, &remote, 1, 0) }, len as isize));
        });
        for (name, from, to) in [
            ("mapped to mapped", segment(rings[0], 0, len), segment(rings[1], 0, len)),
            ("process to mapped", segment(ids[0], heap, len), segment(rings[1], 0, len)),
            ("mapped to process", segment(rings[0], 0, len), segment(ids[1], heap, len)),
            ("process to process", segment(ids[0], heap, len), segment(ids[1], heap, len)),
            ("process to process, 16 ahead", segment(ids[0], heap, len), segment(ids[1], heap + 16, len)),
        ] {
            group.bench_function(name, |b| b.iter(|| memories.copy(&[from], &[to]).unwrap()));
        }
        group.finish();
    }

    // A burst of 15 packets of 4 KiB, headers between.
    let mut group = c.benchmark_group("burst of 15 x 4 KiB");
    group.throughput(Throughput::Bytes(15 * 4096));
    let mut packets = vec![0; 15 * 4112];
    for (name, id, addr) in [("process", ids[0], heap), ("mapped", rings[0], 0)] {
        let pieces: Vec<Piece> =
            (0..15).map(|n| Piece { segment: segment(id, addr + n as u64 * 4096, 4096), at: n * 4112 + 12 }).collect();
        group.bench_function(BenchmarkId::new("gather", name), |b| {
            b.iter(|| memories.gather(&pieces, &mut packets).unwrap());
        });
        group.bench_function(BenchmarkId::new("scatter", name), |b| b.iter(|| memories.scatter(&pieces, &packets).unwrap()));
    }
    group.finish();
}

criterion_group!(benches, offsets, kinds);
criterion_main!(benches);
