//! Pinning for software DMA: the block is locked into memory and populated, so that the data path meets no page fault.
//!
//! The lock comes first, without populating (`MLOCK_ONFAULT`): a limit is met before any memory is spent, and the pages
//! are walked once. Linux 5.14 or later.

use super::{Block, Pinner, PinnerError};
use crate::protection::Protection;
use core::ffi::c_void;
use core::ptr::without_provenance_mut;
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};
use std::fs::read_to_string;

const CAP_IPC_LOCK: u32 = 14;
const NO_MEMORY: &str = "no memory is left for it in the host, in the daemon's cgroup, or among the huge pages (nr_hugepages)";

/// Locks blocks into memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct LockPinner;

fn place(block: &Block) -> (*mut c_void, usize) {
    // A block is at most 2 MiB.
    (without_provenance_mut(block.hva().0 as usize), block.range().len() as usize)
}

/// Unlocks; the pages may be reclaimed again.
fn unlock(block: &Block) -> Result<(), Errno> {
    let (start, len) = place(block);
    // SAFETY: a range of a mapping of ours; unlocking does not change its contents.
    Errno::result(unsafe { libc::munlock(start, len) }).map(drop)
}

impl Pinner for LockPinner {
    fn pin(&self, block: &Block) -> Result<(), PinnerError> {
        let (start, len) = place(block);
        // SAFETY: a range of a mapping of ours; locking does not change its contents.
        let locked = Errno::result(unsafe { libc::mlock2(start, len, libc::MLOCK_ONFAULT) });
        locked.map_err(|errno| explain_lock(errno, block))?;
        let writable = block.protection().contains(Protection::WRITE);
        let advice = if writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        // SAFETY: as above; populating changes no contents, and where the object has no page it fails instead of raising
        // a signal.
        let populated = Errno::result(unsafe { libc::madvise(start, len, advice) });
        populated.map_err(|errno| {
            // It was locked, so the range is whole and unlocking it merges what locking split.
            let _unlocked = unlock(block);
            explain_populate(errno, block)
        })?;
        Ok(())
    }

    fn unpin(&self, block: &Block) -> Result<(), PinnerError> {
        unlock(block).map_err(|errno| explain_lock(errno, block))
    }
}

fn explain_populate(errno: Errno, block: &Block) -> PinnerError {
    let why = match errno {
        Errno::EFAULT => "its object has become shorter than its map",
        Errno::EINVAL => "madvise(MADV_POPULATE_WRITE) needs Linux 5.14",
        Errno::ENOMEM => NO_MEMORY,
        Errno::EHWPOISON => "a page of it has failed in hardware",
        _ => "the kernel gives no memory for it",
    };
    PinnerError { errno, limit: false, hint: format!("cannot populate {}: {why}", block.range()) }
}

fn explain_lock(errno: Errno, block: &Block) -> PinnerError {
    let status = Status::new(&read_to_string("/proc/self/status").unwrap_or_default());
    let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(u64::MAX, |(soft, _)| soft);
    let (why, limit) = match errno {
        Errno::ENOMEM | Errno::EPERM if status.exceeds(limit, block.range().len()) => {
            let locked = status.locked_bytes;
            let remedy = "raise it (ulimit -l, LimitMEMLOCK=) or give CAP_IPC_LOCK";
            (format!("{locked} bytes are locked and RLIMIT_MEMLOCK is {limit}: {remedy}"), true)
        }
        Errno::ENOMEM if at_map_limit() => {
            ("the number of mappings is at its limit: raise the sysctl vm.max_map_count".to_owned(), true)
        }
        // Memory on hugetlbfs is populated by locking it.
        Errno::ENOMEM => (NO_MEMORY.to_owned(), false),
        Errno::EAGAIN => ("the kernel could not lock all of its pages".to_owned(), true),
        _ => ("the kernel refuses".to_owned(), false),
    };
    PinnerError { errno, limit, hint: format!("cannot lock or unlock {}: {why}", block.range()) }
}

/// Whether this process has as many mappings as it may, or so many that splitting one is too much.
fn at_map_limit() -> bool {
    let most = read_to_string("/proc/sys/vm/max_map_count").ok().and_then(|text| text.trim().parse::<usize>().ok());
    let maps = read_to_string("/proc/self/maps").map_or(0, |text| text.lines().count());
    most.is_some_and(|most| maps + 2 >= most)
}

/// What `/proc/self/status` says about locked memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Status {
    locked_bytes: u64,
    /// CAP_IPC_LOCK is in force: there is no limit.
    unlimited: bool,
}

impl Status {
    fn new(text: &str) -> Status {
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let kib = field("VmLck:").and_then(|value| value.split(' ').next()).and_then(|kib| kib.parse::<u64>().ok());
        let capabilities = field("CapEff:").and_then(|hex| u64::from_str_radix(hex, 16).ok());
        Status {
            locked_bytes: kib.unwrap_or(0).saturating_mul(1024),
            unlimited: capabilities.is_some_and(|set| set & 1 << CAP_IPC_LOCK != 0),
        }
    }

    fn exceeds(self, limit: u64, more: u64) -> bool {
        !self.unlimited && self.locked_bytes.saturating_add(more) > limit
    }
}

/// Whether memfds and other tmpfs files get huge pages. They make a cold block about ten times cheaper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePages {
    /// Never: each block costs 512 page faults. Set `/sys/kernel/mm/transparent_hugepage/shmem_enabled` to `advise`, or use
    /// hugetlbfs for guest memory.
    Never,
    /// Where this crate asks for them, which it always does.
    OnRequest,
    /// The system does not tell.
    Unknown,
}

/// What the system does for guest memory in memfds.
pub fn shmem_huge_pages() -> HugePages {
    huge_pages(&read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default())
}

fn huge_pages(setting: &str) -> HugePages {
    match setting.split_once('[').and_then(|(_, rest)| rest.split_once(']')) {
        Some(("never" | "deny", _)) => HugePages::Never,
        Some(("always" | "within_size" | "advise" | "force", _)) => HugePages::OnRequest,
        _ => HugePages::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_read() {
        let text = "Name:\tx\nVmLck:\t    8192 kB\nCapEff:\t0000000000004000\n";
        let status = Status::new(text);
        assert_eq!(status, Status { locked_bytes: 8 << 20, unlimited: true });
        assert!(!status.exceeds(0, 1));
        let status = Status { unlimited: false, ..status };
        assert!(status.exceeds((8 << 20) + 4095, 4096) && !status.exceeds((8 << 20) + 4096, 4096));
        assert_eq!(Status::new("nothing"), Status { locked_bytes: 0, unlimited: false });
    }

    #[test]
    fn setting_of_huge_pages_is_read() {
        assert_eq!(huge_pages("always within_size advise [never] deny force\n"), HugePages::Never);
        assert_eq!(huge_pages("always within_size [advise] never deny force\n"), HugePages::OnRequest);
        assert_eq!(huge_pages(""), HugePages::Unknown);
    }
}
