//! PVDMA: guest memory is pinned on demand, in blocks of 2 MiB, when a registration first names it.
//!
//! Owns: the guest's DMA map (which guest-physical ranges are memory, and where this process sees them) and the map cache
//! (which blocks are pinned, for how many registrations, and since when idle). Never: knows RDMA, reads a clock, or makes
//! the data path wait: a hit takes a lock for a few instructions and makes no system call.
//!
//! - [`MapCache::map`] and [`MapCache::unmap`] follow the DMA_MAP and DMA_UNMAP messages of the VMM. Mapping costs the same
//!   for a guest of any size; nothing is pinned.
//! - [`MapCache::pin`] belongs to a registration, as does the [`PinGuard`] that it returns. It takes milliseconds for a
//!   cold block and nanoseconds for one that is pinned.
//! - [`Region::enter`] belongs to each access of the data path. An unmap lets nobody in any more, waits for those inside,
//!   and ends the region for good: a translation names its region by [`Generation`], so one that is stale is refused even
//!   if other memory has come to the same address since.
//! - [`MapCache::release_idle`] and [`MapCache::shrink`] are for the owner's housekeeping.
//!
//! What a [`Pinner`] does depends on who does the DMA: [`LockPinner`] for this process itself, [`VfioPinner`] for a real
//! device behind an IOMMU, [`FakePinner`] for tests.
//!
//! ```
//! # use nix::sys::memfd::{MFdFlags, memfd_create};
//! # use pvdma::*;
//! # use std::{fs::File, sync::Arc};
//! # use vm_memory::Bytes;
//! # let file = File::from(memfd_create("guest", MFdFlags::MFD_CLOEXEC)?);
//! # file.set_len(1 << 30)?;
//! # let (fd, now) = (file.into(), Instant::from_nanos(0));
//! let cache = MapCache::new(Config::default(), Arc::new(FakePinner::new()));
//! let rights = Protection::READ | Protection::WRITE;
//! // DMA_MAP: a GiB, of which nothing is pinned.
//! let backing = Some(Backing { fd, offset: 0 });
//! let region = cache.map(RegionInit { gpa: Gpa(0), len: 1 << 30, protection: rights, backing })?;
//! // A registration of one page pins its block.
//! let page = GpaRange::new(Gpa(0x5000), 4096)?;
//! let registration = cache.pin(now, page, rights)?;
//! assert_eq!(cache.stats().pinned_bytes, BLOCK_LEN);
//! // The data path finds the memory, as long as the region exists.
//! let inside = region.enter().expect("mapped");
//! inside.memory(&page, rights)?.write_slice(b"hello", 0)?;
//! drop(inside);
//! // DMA_UNMAP: from here on, nobody gets in, although the registration was not ended.
//! cache.unmap(region.range())?;
//! assert!(region.enter().is_none() && registration.is_stale());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Source: the mechanism called PVDMA of Alibaba's Stellar (SIGCOMM 2025). Where it left hazards, the tests under
//! `tests/hazards.rs` name them H1 to H6.

mod address;
mod blocks;
mod dma_map;
mod gate;
mod guard;
mod instant;
mod ledger;
#[cfg(all(test, loom))]
mod loom_tests;
mod map_cache;
mod mapping;
mod pinner;
mod protection;
mod region;
mod stats;
mod sync;

pub use address::{BLOCK_LEN, Gpa, GpaRange, Hva, PAGE_LEN, RangeError};
pub use dma_map::{LookupError, MapError, MapLimits, RegionInit, UnmapError};
pub use guard::{PinGuard, Segment};
pub use instant::Instant;
pub use map_cache::{Config, MapCache, PinError};
pub use mapping::{Backing, BackingError};
pub use pinner::{Block, Call, FakePinner, HugePages, LockPinner, Pinner, PinnerError, VfioPinner, shmem_huge_pages};
pub use protection::Protection;
pub use region::{AccessError, Generation, Region, RegionHold, RegionUse, Unpinnable};
pub use stats::Stats;
