//! Contents at all offsets and lengths, order of stores, and what a truncated file does.

use super::*;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU8, Ordering};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;
use std::os::fd::{AsRawFd, OwnedFd};

const PAGE: usize = 4096;

fn copiers() -> Vec<Copier> {
    #[cfg(target_arch = "x86_64")]
    return vec![Copier::new(), Copier { routines: routines::Routines::sse2() }];
    #[cfg(not(target_arch = "x86_64"))]
    vec![Copier::new()]
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 251) as u8 | 1).collect()
}

/// Copies `len` bytes from `src[from..]` to `dst[to..]` and checks every byte of `dst`, also those around.
fn check(copier: Copier, src: &[u8], from: usize, dst: &mut [u8], to: usize, len: usize) {
    dst.fill(0);
    let (target, source) = (dst[to..to + len].as_mut_ptr(), src[from..from + len].as_ptr());
    // SAFETY: both ranges are slices that we hold.
    unsafe { copier.copy(target, source, len) }.unwrap();
    assert_eq!(dst[to..to + len], src[from..from + len], "from {from} to {to} length {len}");
    assert!(dst[..to].iter().chain(&dst[to + len..]).all(|&b| b == 0), "outside, from {from} to {to} length {len}");
}

#[test]
fn every_offset_and_short_length() {
    let src = pattern(512);
    let mut dst = vec![0; 512];
    for copier in copiers() {
        for from in 0..64 {
            for to in 0..64 {
                for len in (0..=70).chain([127, 128, 129, 159, 160, 191, 255, 256, 257, 290]) {
                    check(copier, &src, from, &mut dst, to, len);
                }
            }
        }
    }
}

#[test]
fn page_offset_differences_where_string_moves_are_slow() {
    let src = pattern(64 * 1024 + 2 * PAGE);
    let mut dst = vec![0; src.len()];
    let skew = (dst.as_ptr().addr().wrapping_sub(src.as_ptr().addr())) % PAGE;
    for copier in copiers() {
        for ahead in (0..=40).chain([64, 4095]) {
            // Page offset of the destination minus that of the source is `ahead`.
            let to = (ahead + PAGE - skew) % PAGE;
            for len in [2048, 2049, 3000, 4096, 4097, 9000, 65536] {
                check(copier, &src, 0, &mut dst, to, len);
            }
        }
    }
}

#[test]
fn overlap_is_a_bytewise_ascending_copy() {
    for copier in copiers() {
        for (from, to, len) in [(0, 1, 300), (1, 0, 300), (0, 64, 400), (64, 0, 400), (5, 5, 100), (0, 8, 200)] {
            let mut bytes = pattern(512);
            let mut expected = bytes.clone();
            for n in 0..len {
                expected[to + n] = expected[from + n];
            }
            let base = bytes.as_mut_ptr();
            // SAFETY: both ranges lie in `bytes`, which nothing else uses.
            unsafe { copier.copy(base.add(to), base.add(from), len) }.unwrap();
            if cfg!(target_arch = "x86_64") {
                assert_eq!(bytes, expected, "from {from} to {to} length {len}");
            }
        }
    }
}

/// A mapping of a memfd that can be made shorter.
struct Shrinking {
    fd: OwnedFd,
    base: *mut u8,
    len: usize,
}

impl Shrinking {
    fn new(len: usize) -> Shrinking {
        let fd = memfd_create(c"copy-test", MFdFlags::MFD_CLOEXEC).unwrap();
        ftruncate(&fd, len as i64).unwrap();
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(null_mut(), len, rights, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Shrinking { fd, base: base.cast(), len }
    }
}

impl Drop for Shrinking {
    fn drop(&mut self) {
        // SAFETY: what `new` mapped; nothing refers to it any more.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

#[test]
fn a_truncated_file_is_an_error() {
    let memory = Shrinking::new(4 * PAGE);
    let mut heap = pattern(4 * PAGE);
    for copier in copiers() {
        ftruncate(&memory.fd, 4 * PAGE as i64).unwrap();
        // SAFETY: the mapping and `heap` are ours.
        unsafe { copier.copy(memory.base, heap.as_ptr(), heap.len()) }.unwrap();
        ftruncate(&memory.fd, PAGE as i64).unwrap();
        for len in [1, 8, 31, 100, PAGE, 3 * PAGE] {
            // SAFETY: as above; missing pages are what the routine is for.
            let (read, write) = unsafe {
                let gone = memory.base.add(PAGE);
                (copier.copy(heap.as_mut_ptr(), gone, len), copier.copy(gone, heap.as_ptr(), len))
            };
            assert_eq!((read, write), (Err(Fault), Err(Fault)), "length {len}");
        }
        // SAFETY: as above.
        let (overlapping, before) = unsafe {
            let last = memory.base.add(PAGE - 8);
            (copier.copy(last, memory.base.add(PAGE - 16), 32), copier.copy(heap.as_mut_ptr(), last, 8))
        };
        assert_eq!((overlapping, before), (Err(Fault), Ok(())));
    }
}

#[test]
fn atomics_act_and_fault() {
    let memory = Shrinking::new(2 * PAGE);
    for copier in copiers() {
        ftruncate(&memory.fd, PAGE as i64).unwrap();
        let word = memory.base.cast::<u64>();
        // SAFETY: the mapping is ours and aligned.
        unsafe {
            word.write_volatile(5);
            assert_eq!(copier.fetch_add(word, 7), Ok(5));
            assert_eq!(copier.compare_swap(word, 11, 1), Ok(12));
            assert_eq!(copier.compare_swap(word, 12, 1), Ok(12));
            assert_eq!(copier.fetch_add(word, u64::MAX), Ok(1));
            assert_eq!(word.read_volatile(), 0);
            let gone = memory.base.add(PAGE).cast::<u64>();
            assert_eq!(copier.fetch_add(gone, 1), Err(Fault));
            assert_eq!(copier.compare_swap(gone, 0, 1), Err(Fault));
        }
    }
}

/// A reader that sees the last byte of a message sees all of it.
#[test]
fn the_last_byte_comes_last() {
    const LEN: usize = 5000;
    let memory = Shrinking::new(2 * PAGE);
    let base = memory.base.expose_provenance();
    for (copier, offset) in copiers().into_iter().flat_map(|copier| [(copier, 0), (copier, 13)]) {
        // SAFETY: the mapping is ours.
        unsafe { memory.base.write_bytes(0, 2 * PAGE) };
        let seen = AtomicU8::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let at = |n: usize| core::ptr::with_exposed_provenance::<u8>(base + offset + n);
                for round in 1..=200 {
                    // SAFETY: the mapping outlives the scope; a program that polls its memory reads in this way.
                    unsafe {
                        while at(LEN - 1).read_volatile() != round {
                            core::hint::spin_loop();
                        }
                        let late = (0..LEN).filter(|&n| at(n).read_volatile() != round).count();
                        assert_eq!(late, 0, "round {round}");
                    }
                    seen.store(round, Ordering::Release);
                }
            });
            let mut message = vec![0; LEN];
            for round in 1..=200 {
                message.fill(round);
                // SAFETY: the mapping is ours; the reader only reads.
                unsafe { copier.copy(memory.base.add(offset), message.as_ptr(), LEN) }.unwrap();
                while seen.load(Ordering::Acquire) != round {
                    std::thread::yield_now();
                }
            }
        });
    }
}
