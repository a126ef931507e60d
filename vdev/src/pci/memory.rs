//! The guest's memory as the device's own threads see it: the DMA map, pins, and copies of small structures.
//!
//! What lies there is the guest's to change at any moment, so that everything is copied out once and judged afterwards; and the
//! VMM's to take away, so that every copy survives a page that is gone. The data path has ways of its own to the same memory
//! (`crate::memory`), which this opens and closes.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use pvdma::{Backing, Gpa, GpaRange, LockPinner, MapCache, MapError, PinGuard, Protection, Region, RegionInit};

use vdev_abi::copy::Copier;

/// Memory that a device cannot use, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadMemory(pub String);

fn bad(error: impl std::fmt::Display) -> BadMemory {
    BadMemory(error.to_string())
}

/// A part of guest memory within one region of the DMA map.
#[derive(Clone, Debug)]
pub struct Run {
    /// The region.
    pub region: Arc<Region>,
    /// Bytes from its start.
    pub offset: u64,
    /// Bytes, 1 or more.
    pub len: u64,
}

/// Guest memory held for an object of the device: pinned until this is dropped.
#[derive(Debug)]
pub struct Pins {
    _guards: Vec<PinGuard>,
    /// Parts that are contiguous.
    pub runs: usize,
}

/// The memory of one guest.
#[derive(Debug)]
pub struct GuestMemory {
    cache: MapCache,
    /// By first address; the cache has the same ones.
    regions: BTreeMap<u64, Arc<Region>>,
    copier: Copier,
}

impl GuestMemory {
    /// No memory yet.
    pub fn new() -> GuestMemory {
        GuestMemory {
            cache: MapCache::new(pvdma::Config::default(), Arc::new(LockPinner)),
            regions: BTreeMap::new(),
            copier: Copier::new(),
        }
    }

    /// The cache, for figures and housekeeping.
    pub fn cache(&self) -> &MapCache {
        &self.cache
    }

    /// Follows a DMA_MAP message. Memory without an object is known, and nothing in it can be used.
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn map(&mut self, address: u64, size: u64, rights: u32, backing: Option<(OwnedFd, u64)>) -> Result<(), MapError> {
        let protection = Protection::from_bits_truncate(rights);
        let backing = backing.map(|(fd, offset)| Backing { fd, offset });
        let region = self.cache.map(RegionInit { gpa: Gpa(address), len: size, protection, backing })?;
        self.regions.insert(address, region);
        Ok(())
    }

    /// Regions that lie in `range`, or all.
    pub fn regions(&self, range: Option<GpaRange>) -> Vec<Arc<Region>> {
        let inside = |region: &&Arc<Region>| range.is_none_or(|range| range.contains(&region.range()));
        self.regions.values().filter(inside).cloned().collect()
    }

    /// Follows a DMA_UNMAP message. The data path must have let go of these regions before.
    ///
    /// # Errors
    /// The number for the reply.
    pub fn unmap(&mut self, range: Option<GpaRange>) -> Result<(), pvdma::UnmapError> {
        let unmapped = match range {
            Some(range) => self.cache.unmap(range),
            None => self.cache.unmap_all(),
        };
        self.regions.retain(|_, region| !region.is_ended());
        unmapped.map(drop)
    }

    /// Copies guest memory out.
    ///
    /// # Errors
    /// [`BadMemory`]: not mapped, not readable, or gone.
    pub fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), BadMemory> {
        let len = buf.len();
        let local = buf.as_mut_ptr();
        self.each_part(address, len, Protection::READ, |guest, at, part| {
            // SAFETY: `part` bytes of `buf` from `at` on; the guest's side is a mapping that is held during the call.
            unsafe { self.copier.copy(local.wrapping_add(at), guest, part) }
        })
    }

    /// Copies into guest memory.
    ///
    /// # Errors
    /// As [`Self::read`], for writing.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), BadMemory> {
        let local = bytes.as_ptr();
        self.each_part(address, bytes.len(), Protection::WRITE, |guest, at, part| {
            // SAFETY: as in `read`, the other way round.
            unsafe { self.copier.copy(guest, local.wrapping_add(at), part) }
        })
    }

    fn each_part(
        &self,
        address: u64,
        len: usize,
        need: Protection,
        mut copy: impl FnMut(*mut u8, usize, usize) -> Result<(), vdev_abi::copy::Fault>,
    ) -> Result<(), BadMemory> {
        let mut done = 0;
        while done < len {
            let at = address.checked_add(done as u64).ok_or_else(|| bad("an address beyond 2^64"))?;
            let not_mapped = || bad(format_args!("guest address {at:#x} is not mapped"));
            let (_, region) = self.regions.range(..=at).next_back().ok_or_else(not_mapped)?;
            let left = region.range().end().0.checked_sub(at).filter(|&left| left > 0).ok_or_else(not_mapped)?;
            let part = (len - done).min(usize::try_from(left).unwrap_or(usize::MAX));
            let range = GpaRange::new(Gpa(at), part as u64).map_err(bad)?;
            let inside = region.enter().ok_or_else(not_mapped)?;
            let memory = inside.memory(&range, need).map_err(bad)?;
            copy(memory.ptr_guard_mut().as_ptr(), done, part)
                .map_err(|_| bad(format_args!("the memory at guest address {at:#x} is gone")))?;
            done += part;
        }
        Ok(())
    }

    /// Pins ranges and says where they lie, region by region.
    ///
    /// # Errors
    /// [`BadMemory`]; nothing is held.
    pub fn pin(&self, ranges: &[GpaRange], need: Protection) -> Result<(Pins, Vec<Run>), BadMemory> {
        pin(&self.cache, ranges, need, || false)
    }
}

/// Bytes that are pinned at once: an unmap waits for so many.
const PIECE: u64 = 8 * pvdma::BLOCK_LEN;

/// Pins ranges in pieces and says where they lie, region by region. Gives up between two pieces when `stop` says so.
///
/// # Errors
/// [`BadMemory`]; nothing is held.
pub fn pin(
    cache: &MapCache,
    ranges: &[GpaRange],
    need: Protection,
    stop: impl Fn() -> bool,
) -> Result<(Pins, Vec<Run>), BadMemory> {
    let now = pvdma::Instant::from_nanos(crate::datapath::clock().as_nanos());
    let (mut guards, mut runs) = (Vec::with_capacity(ranges.len()), Vec::<Run>::with_capacity(ranges.len()));
    for range in ranges {
        let (mut start, end) = (range.start().0, range.end().0);
        while start < end {
            if stop() {
                return Err(bad("no longer wanted"));
            }
            let next = (start / PIECE + 1).saturating_mul(PIECE).min(end);
            let piece = GpaRange::new(Gpa(start), next - start).map_err(bad)?;
            let guard = cache.pin(now, piece, need).map_err(|error| match std::error::Error::source(&error) {
                Some(source) => bad(format_args!("{error}: {source}")),
                None => bad(error),
            })?;
            for segment in guard.segments() {
                let offset = segment.gpa.0 - segment.region.range().start().0;
                match runs.last_mut() {
                    Some(last) if Arc::ptr_eq(&last.region, segment.region) && last.offset + last.len == offset => {
                        last.len += segment.len;
                    }
                    _ => runs.push(Run { region: segment.region.clone(), offset, len: segment.len }),
                }
            }
            guards.push(guard);
            start = next;
        }
    }
    let pins = Pins { _guards: guards, runs: runs.len() };
    Ok((pins, runs))
}
