//! Page lists: how the guest's driver says which memory an object has.
//!
//! A list is up to four addresses in the command itself, an array of addresses, or a tree of pages of addresses. Everything
//! about it is checked before anything is allocated, and addresses are copied once. What a list costs the daemon is bounded by
//! [`MAX_PAGES`]: a guest can make a list seem long by naming the same page of addresses again and again.

use pvdma::{Gpa, GpaRange};

use super::command::{Failed, failed};
use super::layout::{LOG_MR_SIZE, PAGE};
use crate::pci::memory::GuestMemory;

/// Most pages of one object.
pub const MAX_PAGES: u64 = 1 << 20;
/// Addresses in a page of a tree.
const PER_PAGE: u64 = PAGE / 8;

/// A list of pages, and the bytes within them that count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageList {
    level: u32,
    /// Pages, if level is 0; else the first is where the array or the root lies.
    inline: [u64; 4],
    count: u64,
    shift: u32,
    offset: u64,
    len: u64,
}

impl PageList {
    /// A list of `count` pages of `2^shift` bytes. Level 0: at most four, in line; 1: an array; 2 and 3: a tree.
    ///
    /// # Errors
    /// Nothing that can be.
    pub fn new(level: u32, inline: [u64; 4], count: u32, shift: u32) -> Result<PageList, Failed> {
        let most = match level {
            0 => 4,
            1 => MAX_PAGES,
            level => PER_PAGE.pow(level).min(MAX_PAGES),
        };
        let count = u64::from(count);
        if !(12..=30).contains(&shift) || level > 3 || count == 0 || count > most {
            return Err(failed(format_args!("a page list of level {level} with {count} pages of 2^{shift} bytes")));
        }
        Ok(PageList { level, inline, count, shift, offset: 0, len: 0 })
    }

    /// The same pages, of which `len` bytes from `offset` on count.
    ///
    /// # Errors
    /// No bytes, more than the pages hold, or more than the device takes.
    pub fn holding(self, offset: u64, len: u64) -> Result<PageList, Failed> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.room());
        if !fits || len == 0 || len > 1 << LOG_MR_SIZE || offset >= self.page_len() {
            let (count, shift) = (self.count, self.shift);
            return Err(failed(format_args!("{len:#x} bytes at offset {offset:#x} of {count} pages of 2^{shift} bytes")));
        }
        Ok(PageList { offset, len, ..self })
    }

    /// Bytes of one page.
    pub fn page_len(&self) -> u64 {
        1 << self.shift
    }

    /// Bytes of all pages.
    pub fn room(&self) -> u64 {
        self.count << self.shift
    }

    /// Bytes that count.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// The guest memory that it stands for, in order, neighbours merged. Addresses are multiples of 4096 and no more: the
    /// guest's kernel declares a queue that is one piece as one page, however large.
    ///
    /// # Errors
    /// The list cannot be read, or an address is none.
    pub fn ranges(&self, memory: &GuestMemory) -> Result<Vec<GpaRange>, Failed> {
        let mut runs =
            Runs { ranges: Vec::new(), start: 0, end: 0, skip: self.offset, left: self.len, page_len: self.page_len() };
        let needed = (self.offset + self.len).div_ceil(self.page_len());
        match self.level {
            0 => self.inline[..needed as usize].iter().try_for_each(|&page| runs.page(page))?,
            1 => array(memory, self.inline[0], needed, |page| runs.page(page))?,
            level => tree(memory, self.inline[0], level, needed, &mut |page| runs.page(page))?,
        }
        runs.finish()
    }
}

/// Calls `each` with `count` addresses that lie one after the other from `at` on.
fn array(memory: &GuestMemory, at: u64, count: u64, mut each: impl FnMut(u64) -> Result<(), Failed>) -> Result<(), Failed> {
    if !at.is_multiple_of(8) {
        return Err(failed(format_args!("a page list at {at:#x}")));
    }
    let mut bytes = [0; PAGE as usize];
    let mut done = 0;
    while done < count {
        let part = (count - done).min(PER_PAGE);
        let from = at.checked_add(8 * done).ok_or_else(|| failed("a page list beyond 2^64"))?;
        let bytes = &mut bytes[..8 * part as usize];
        memory.read(from, bytes).map_err(failed)?;
        for address in bytes.chunks_exact(8) {
            each(u64::from_le_bytes(address.try_into().expect("eight bytes")))?;
        }
        done += part;
    }
    Ok(())
}

/// The same for a tree: `level` pages lie between `at` and the addresses, counting both ends.
fn tree(
    memory: &GuestMemory,
    at: u64,
    level: u32,
    count: u64,
    each: &mut dyn FnMut(u64) -> Result<(), Failed>,
) -> Result<(), Failed> {
    if level == 1 {
        return array(memory, at, count, each);
    }
    let below = PER_PAGE.pow(level - 1);
    let mut left = count;
    array(memory, at, count.div_ceil(below), |page| {
        let part = left.min(below);
        left -= part;
        tree(memory, page, level - 1, part, each)
    })
}

/// Collects pages into ranges.
struct Runs {
    ranges: Vec<GpaRange>,
    /// The range that is growing; empty when both are equal.
    start: u64,
    end: u64,
    /// Bytes at the start that do not count.
    skip: u64,
    /// Bytes that are still to come.
    left: u64,
    page_len: u64,
}

impl Runs {
    fn page(&mut self, page: u64) -> Result<(), Failed> {
        if !page.is_multiple_of(PAGE) {
            return Err(failed(format_args!("a page at {page:#x}")));
        }
        let start = page.checked_add(self.skip).ok_or_else(|| failed("a page beyond 2^64"))?;
        let len = (self.page_len - self.skip).min(self.left);
        self.skip = 0;
        self.left -= len;
        let end = start.checked_add(len).ok_or_else(|| failed("a page beyond 2^64"))?;
        if start == self.end {
            self.end = end;
            return Ok(());
        }
        self.flush()?;
        (self.start, self.end) = (start, end);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failed> {
        if self.start < self.end {
            self.ranges.push(GpaRange::new(Gpa(self.start), self.end - self.start).map_err(failed)?);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<GpaRange>, Failed> {
        self.flush()?;
        if self.left > 0 { Err(failed("a page list is too short")) } else { Ok(self.ranges) }
    }
}
