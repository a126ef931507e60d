//! Huge pages under registered heap memory.
//!
//! The daemon reaches such memory through the kernel, which looks up every page of every copy: with pages of 2 MiB instead of
//! 4 KiB a copy of 1 MiB takes about half the time. Registered memory is meant to stay and to be moved in bulk, so its whole
//! blocks of 2 MiB are put together at registration. Contents and addresses stay; where the administrator or the program has
//! ruled huge pages out, so does everything else.

use core::ffi::c_void;
use core::ops::Range;
use core::ptr;
use std::sync::OnceLock;

/// A huge page on the CPUs that matter; where it is another size the kernel rounds or refuses.
const BLOCK: u64 = 2 << 20;
/// Bytes put together per registration at most: it takes tens of milliseconds where pages must be moved.
const MOST: u64 = 256 << 20;

/// Puts the whole blocks within `addr..addr + len` together where that is possible. Never fails: it only makes things faster.
pub fn put_together(addr: u64, len: u64) {
    let Some(range) = whole_blocks(addr, len).filter(|_| allowed()) else { return };
    let start = ptr::with_exposed_provenance_mut::<c_void>(range.start as usize);
    // SAFETY: moves pages of the program's memory below unchanged addresses and contents; the kernel checks the range.
    unsafe { libc::madvise(start, (range.end - range.start) as usize, libc::MADV_COLLAPSE) };
}

fn whole_blocks(addr: u64, len: u64) -> Option<Range<u64>> {
    let start = addr.checked_next_multiple_of(BLOCK)?;
    let end = addr.checked_add(len)? / BLOCK * BLOCK;
    (start < end).then(|| start..end.min(start + MOST))
}

/// The kernel would do as asked even where the administrator said "never".
fn allowed() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").is_ok_and(|modes| !modes.contains("[never]"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_blocks_and_not_too_many() {
        assert_eq!(whole_blocks(0, BLOCK), Some(0..BLOCK));
        assert_eq!(whole_blocks(1, BLOCK), None);
        assert_eq!(whole_blocks(1, 2 * BLOCK), Some(BLOCK..2 * BLOCK));
        assert_eq!(whole_blocks(BLOCK, 2 * BLOCK - 1), Some(BLOCK..2 * BLOCK));
        assert_eq!(whole_blocks(BLOCK, 2 * MOST), Some(BLOCK..BLOCK + MOST));
        assert_eq!(whole_blocks(u64::MAX - 5, 5), None);
        assert_eq!(whole_blocks(u64::MAX - 5, 10), None);
        assert_eq!(whole_blocks(4096, 0), None);
    }

    /// Kilobytes of huge pages in the mapping that holds `addr`.
    fn huge_kilobytes(addr: usize) -> u64 {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let hex = |digits: &str| usize::from_str_radix(digits, 16).ok();
        let holds = |line: &str| {
            let (start, end) = line.split(' ').next()?.split_once('-')?;
            Some((hex(start)?..hex(end)?).contains(&addr))
        };
        let mut lines = smaps.lines().skip_while(|line| holds(line) != Some(true));
        let huge = lines.find_map(|line| line.strip_prefix("AnonHugePages:")).unwrap();
        huge.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn pages_become_huge_and_keep_their_contents() {
        const LEN: usize = 4 * BLOCK as usize;
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(ptr::null_mut(), LEN, rights, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        // SAFETY: all of it is ours, and no other reference to it exists.
        let bytes = unsafe { core::slice::from_raw_parts_mut(base.cast::<u8>(), LEN) };
        for (n, byte) in bytes.iter_mut().enumerate() {
            *byte = (n / 4096) as u8 ^ n as u8;
        }
        put_together(base.expose_provenance() as u64, LEN as u64);
        assert!(bytes.iter().enumerate().all(|(n, &byte)| byte == (n / 4096) as u8 ^ n as u8));
        // SAFETY: a range of our own; the kernel says whether it can do this at all.
        let possible = unsafe { libc::madvise(base, 0, libc::MADV_COLLAPSE) } == 0;
        if allowed() && possible {
            assert!(huge_kilobytes(base.addr()) >= BLOCK >> 10);
        } else {
            println!("SKIP pages_become_huge_and_keep_their_contents: this kernel has or allows no huge pages on demand");
        }
        // SAFETY: what was mapped above; `bytes` is not used any more.
        unsafe { libc::munmap(base, LEN) };
    }
}
