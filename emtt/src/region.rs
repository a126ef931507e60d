//! One region: a range of addresses and the memory behind it.

use crate::table::{RegionInit, TableError};
use crate::{Access, PdId, Segment};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::iter::FusedIterator;

/// A piece of the region that is contiguous in memory.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Offset of its first byte from the start of the region.
    offset: u64,
    segment: Segment,
}

#[derive(Debug)]
enum Runs {
    /// Kept in place: most regions are one run, and a lookup then touches no other cache line.
    One(Run),
    Many(Box<[Run]>),
}

/// A registered region.
#[derive(Debug)]
pub struct Region {
    pd: PdId,
    access: Access,
    iova: u64,
    len: u64,
    runs: Runs,
    /// Windows that are bound to it.
    pub(crate) windows: u32,
}

impl Region {
    pub(crate) fn new(init: RegionInit) -> Result<Region, TableError> {
        if !init.access.is_consistent() {
            return Err(TableError::Access);
        }
        let mut runs: Vec<Run> = Vec::with_capacity(init.runs.len());
        let mut len = 0_u64;
        for segment in init.runs.into_iter().filter(|segment| segment.len > 0) {
            let end = segment.addr.checked_add(segment.len).ok_or(TableError::Wraps)?;
            let offset = len;
            len = len.checked_add(segment.len).ok_or(TableError::Wraps)?;
            match runs.last_mut() {
                Some(last) if last.segment.owner == segment.owner && last.segment.addr + last.segment.len == segment.addr => {
                    last.segment.len = end - last.segment.addr;
                }
                _ => runs.push(Run { offset, segment }),
            }
        }
        // The last address may be the last of the space, so it is the last byte that must not wrap, not the end.
        let last = len.checked_sub(1).ok_or(TableError::Empty)?;
        init.iova.checked_add(last).ok_or(TableError::Wraps)?;
        let runs = match runs[..] {
            [run] => Runs::One(run),
            _ => Runs::Many(runs.into_boxed_slice()),
        };
        Ok(Region { pd: init.pd, access: init.access, iova: init.iova, len, runs, windows: 0 })
    }

    /// Its protection domain.
    #[inline]
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// Its rights.
    #[inline]
    pub fn access(&self) -> Access {
        self.access
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

    #[inline]
    fn runs(&self) -> &[Run] {
        match &self.runs {
            Runs::One(run) => core::slice::from_ref(run),
            Runs::Many(runs) => runs,
        }
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
        let runs = self.runs();
        // The first run starts at offset 0, so there is always one at or before the offset.
        let first = match runs {
            [_] => 0,
            _ => runs.partition_point(|run| run.offset <= offset) - 1,
        };
        Some(Segments { skip: offset - runs[first].offset, runs: &runs[first..], left: len })
    }
}

/// The memory behind a range, in order. Yields no empty segments.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    runs: &'a [Run],
    /// Bytes of the first of the runs that come before the range.
    skip: u64,
    /// Bytes still to come.
    left: u64,
}

impl Segments<'_> {
    /// Bytes of all segments that are still to come.
    pub fn bytes(&self) -> u64 {
        self.left
    }
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        if self.left == 0 {
            return None;
        }
        let (run, rest) = self.runs.split_first()?;
        let Segment { owner, addr, len } = run.segment;
        let piece = Segment { owner, addr: addr + self.skip, len: (len - self.skip).min(self.left) };
        self.runs = rest;
        self.skip = 0;
        self.left -= piece.len;
        Some(piece)
    }
}

impl FusedIterator for Segments<'_> {}
