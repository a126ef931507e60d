//! The memory behind a region, as it is kept: pieces that continue each other are one.
//!
//! Three forms, of which a region has the smallest that holds it. One run: nothing but the owner and the first address. Pages, of one
//! size from 4 KiB to 1 GiB and one owner: 8 bytes each, and the page of an offset is found by a shift. Runs of any length and owner:
//! 32 bytes each, found by halving.

use crate::table::TableError;
use crate::{Owner, Segment};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::iter::FusedIterator;

/// Sizes of pages, as powers of two.
const PAGE_SHIFTS: core::ops::RangeInclusive<u32> = 12..=30;

/// A piece of the region that is contiguous in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Offset of its first byte from the start of the region.
    offset: u64,
    segment: Segment,
}

const _: () = assert!(size_of::<Run>() == 32, "as the documentation says");

#[derive(Debug)]
pub(crate) struct Pages {
    owner: Owner,
    shift: u32,
    /// Bytes of the first page that come before the region.
    skip: u64,
    addrs: Box<[u64]>,
}

/// All memory of a region.
#[derive(Debug)]
pub(crate) enum Runs {
    /// Kept in place: most regions are one run, and a lookup then touches no other cache line.
    One {
        owner: Owner,
        addr: u64,
    },
    Pages(Box<Pages>),
    Many(Box<[Run]>),
}

impl Runs {
    /// The smallest form of these pieces, and how many bytes they are together.
    pub fn new(segments: Vec<Segment>) -> Result<(Runs, u64), TableError> {
        let mut runs: Vec<Run> = Vec::new();
        let mut last: Option<Run> = None;
        let mut len = 0_u64;
        for segment in segments.into_iter().filter(|segment| segment.len > 0) {
            segment.addr.checked_add(segment.len).ok_or(TableError::Wraps)?;
            let offset = len;
            len = len.checked_add(segment.len).ok_or(TableError::Wraps)?;
            match &mut last {
                Some(run) if run.segment.is_continued_by(&segment) => run.segment.len += segment.len,
                _ => runs.extend(last.replace(Run { offset, segment })),
            }
        }
        let last = last.ok_or(TableError::Empty)?;
        if runs.is_empty() {
            return Ok((Runs::One { owner: last.segment.owner, addr: last.segment.addr }, len));
        }
        runs.push(last);
        let runs = match Pages::new(&runs, len) {
            Some(pages) => Runs::Pages(Box::new(pages)),
            None => Runs::Many(runs.into_boxed_slice()),
        };
        Ok((runs, len))
    }

    /// The memory behind `len` bytes at an offset, all of which has been found to lie within the region.
    #[inline]
    pub fn at(&self, offset: u64, len: u64) -> Segments<'_> {
        let run = match self {
            Runs::One { .. } | Runs::Pages(_) => 0,
            // The first run starts at offset 0, so there is always one at or before the offset.
            Runs::Many(runs) => runs.partition_point(|run| run.offset <= offset) - 1,
        };
        Segments { runs: self, run, offset, left: len }
    }
}

impl Run {
    /// The part of it from an offset in the region on, `most` bytes at most.
    #[inline]
    fn from(&self, offset: u64, most: u64) -> Segment {
        let skip = offset - self.offset;
        let Segment { owner, addr, len } = self.segment;
        Segment { owner, addr: addr + skip, len: (len - skip).min(most) }
    }
}

impl Pages {
    /// The pages of these runs, of which there are several, if there is a size for which all runs meet at the bounds of pages, and
    /// pages are then the smaller form.
    fn new(runs: &[Run], len: u64) -> Option<Pages> {
        let first = runs.first()?.segment;
        let bounds = runs.windows(2).fold(0, |bounds, pair| {
            let [before, after] = [pair[0].segment, pair[1].segment];
            bounds | (before.addr + before.len) | after.addr
        });
        let shift = bounds.trailing_zeros().min(*PAGE_SHIFTS.end());
        if shift < *PAGE_SHIFTS.start() || runs.iter().any(|run| run.segment.owner != first.owner) {
            return None;
        }
        let size = 1 << shift;
        let skip = first.addr % size;
        let count = skip.checked_add(len)?.div_ceil(size);
        if count > (size_of_val(runs) / size_of::<u64>()) as u64 {
            return None;
        }
        let addrs = runs.iter().flat_map(|run| {
            let Segment { addr, len, .. } = run.segment;
            let start = addr - addr % size;
            (0..(addr - start + len).div_ceil(size)).map(move |n| start + n * size)
        });
        Some(Pages { owner: first.owner, shift, skip, addrs: addrs.collect() })
    }

    /// The pages from the one that an offset lies in.
    #[inline]
    fn at(&self, offset: u64) -> PagesFrom<'_> {
        // Does not wrap: the sum for the end of the region was found not to.
        let at = offset + self.skip;
        let size = 1 << self.shift;
        PagesFrom { owner: self.owner, size, skip: at & (size - 1), addrs: &self.addrs[(at >> self.shift) as usize..] }
    }
}

/// Pages that are still to come.
struct PagesFrom<'a> {
    owner: Owner,
    size: u64,
    /// Bytes of the first one that come before.
    skip: u64,
    addrs: &'a [u64],
}

impl PagesFrom<'_> {
    /// What comes next and is contiguous, `most` bytes at most. There is something: a range lies within its region.
    #[inline]
    fn next(&mut self, most: u64) -> Segment {
        let (page, mut rest) = self.addrs.split_first().expect("the pages of a region are as long as it is");
        let addr = page + self.skip;
        let mut len = self.size - self.skip;
        while len < most
            && let Some((next, others)) = rest.split_first()
            && *next == addr + len
        {
            len += self.size;
            rest = others;
        }
        self.skip = 0;
        self.addrs = rest;
        Segment { owner: self.owner, addr, len: len.min(most) }
    }
}

/// The memory behind a range, in order. Yields no empty segments.
// Few words, and no more than one of them per store: what a lookup returns is then read back without a stall.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    runs: &'a Runs,
    /// The run that the next byte is in, of many.
    run: usize,
    /// Where the next byte is in the region.
    offset: u64,
    /// Bytes still to come.
    left: u64,
}

impl Segments<'_> {
    /// Bytes of all segments that are still to come.
    #[inline]
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
        let piece = match self.runs {
            Runs::One { owner, addr } => Segment { owner: *owner, addr: addr + self.offset, len: self.left },
            Runs::Pages(pages) => pages.at(self.offset).next(self.left),
            Runs::Many(runs) => runs[self.run].from(self.offset, self.left),
        };
        self.run += 1;
        self.offset += piece.len;
        self.left -= piece.len;
        Some(piece)
    }

    /// What kind of runs there are is looked at once, not for each.
    #[inline]
    fn fold<B, F: FnMut(B, Segment) -> B>(self, init: B, mut f: F) -> B {
        let Segments { runs, run, offset, left } = self;
        match runs {
            _ if left == 0 => init,
            Runs::One { owner, addr } => f(init, Segment { owner: *owner, addr: addr + offset, len: left }),
            Runs::Pages(pages) => {
                let mut pages = pages.at(offset);
                fold(left, init, f, |left| pages.next(left))
            }
            Runs::Many(runs) => {
                let mut runs = runs[run..].iter();
                fold(left, init, f, |left| {
                    let run = runs.next().expect("the runs of a region are as long as it is");
                    run.from(offset.max(run.offset), left)
                })
            }
        }
    }
}

/// Folds the pieces that `next` gives, each of which may have so many bytes at most.
#[inline]
fn fold<B>(mut left: u64, init: B, mut f: impl FnMut(B, Segment) -> B, mut next: impl FnMut(u64) -> Segment) -> B {
    let mut done = init;
    while left > 0 {
        let segment = next(left);
        left -= segment.len;
        done = f(done, segment);
    }
    done
}

impl FusedIterator for Segments<'_> {}
