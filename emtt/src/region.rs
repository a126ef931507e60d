//! One region: a range of addresses and the memory behind it.

use crate::runs::{Runs, Segments};
use crate::table::{RegionInit, TableError, TranslateError};
use crate::{Access, PdId};

/// Part of the rights of a region whose memory is there, so that a lookup finds out about both at once.
const LIVE: Access = Access::from_bits_retain(1 << 31);

/// A registered region.
#[derive(Debug)]
pub struct Region {
    pd: PdId,
    /// With [`LIVE`]; nothing once it is revoked.
    access: Access,
    iova: u64,
    len: u64,
    runs: Runs,
}

impl Region {
    pub(crate) fn new(init: RegionInit) -> Result<Region, TableError> {
        if !init.access.is_consistent() {
            return Err(TableError::Access);
        }
        let (runs, len) = Runs::new(init.runs)?;
        // The last address may be the last of the space, so it is the last byte that must not wrap, not the end.
        init.iova.checked_add(len - 1).ok_or(TableError::Wraps)?;
        Ok(Region { pd: init.pd, access: init.access | LIVE, iova: init.iova, len, runs })
    }

    /// Its protection domain.
    #[inline]
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// Its rights; none if it was revoked.
    #[inline]
    pub fn access(&self) -> Access {
        self.access - LIVE
    }

    /// Whether it has these rights, and its memory.
    #[inline]
    pub(crate) fn check(&self, needs: Access) -> Result<(), TranslateError> {
        if self.access.contains(needs | LIVE) {
            return Ok(());
        }
        Err(if self.access.contains(LIVE) { TranslateError::Access(needs - self.access) } else { TranslateError::Revoked })
    }

    /// Gives its memory up.
    pub(crate) fn revoke(&mut self) {
        self.access = Access::empty();
    }

    /// Address of its first byte, as requests name it.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Its length in bytes, at least 1.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The memory behind `len` bytes at `addr`, if all of it lies within the region.
    #[inline]
    pub(crate) fn segments(&self, addr: u64, len: u64) -> Option<Segments<'_>> {
        self.segments_at(addr.checked_sub(self.iova)?, len)
    }

    /// The memory behind `len` bytes at an offset, if all of it lies within the region.
    #[inline]
    pub(crate) fn segments_at(&self, offset: u64, len: u64) -> Option<Segments<'_>> {
        if len > self.len.checked_sub(offset)? {
            return None;
        }
        Some(self.runs.at(offset, len))
    }
}
