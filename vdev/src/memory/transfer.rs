//! Moving bytes: gather, scatter, copy, atomic.
//!
//! Every transfer is split into runs that are reached in the same way. A run between mapped memories is a vector copy; one
//! between a process and mapped memory (or a packet buffer) is one system call straight between the two; one between processes
//! goes in pieces through a buffer that stays in the cache.

use super::batch::Batch;
use super::mapping::SharedMapping;
use super::process::{Direction, Process, Stopped};
use super::reaching::Reaching;
use super::slab::{Memory, Slab};
use emtt::{MemId, Segment};
use pvdma::Region;
use rnic::{AtomicOp, DmaError, Piece};
use std::sync::Arc;
use vdev_abi::copy::Copier;
use vdev_abi::mapping::Mapping;

/// Bytes per step of a copy between processes: both steps together stay in the second-level cache.
const STAGING_BYTES: usize = 128 * 1024;
const PAGE: usize = 4096;
/// The kernel copies with string moves, which some CPUs make 15 to 30 times slower when the destination lies fewer than so many
/// bytes ahead of the source, modulo the page size.
const SLOW_AHEAD: usize = 64;

/// All memory spaces that the datapath thread can reach.
#[derive(Debug)]
pub struct Memories {
    pub(super) slab: Slab,
    copier: Copier,
    batch: Batch,
    staging: Box<[u8]>,
    /// Windows of devices of which memory was found not to be there any more.
    pub(super) lost: Vec<MemId>,
}

/// Where a segment's bytes are.
#[derive(Clone, Copy)]
enum Site<'a> {
    Process(&'a Process, u64),
    Mapped(*mut u8),
    /// Nowhere: zeros to read, and nothing kept of what is written.
    Null,
}

/// What is read from nowhere, a piece at a time.
static ZEROS: [u8; 16 << 10] = [0; 16 << 10];

impl Memories {
    /// A memory space that is there always: all addresses hold zeros, and what is written is forgotten (`ibv_alloc_null_mr`).
    pub const NULL: MemId = MemId(u32::MAX);

    /// No memory yet. Installs the fault handler of [`Copier`].
    pub fn new() -> Memories {
        Memories::watched(Arc::default())
    }

    /// No memory yet; `reaching` says at any time whose memory is being reached through the kernel.
    pub fn watched(reaching: Arc<Reaching>) -> Memories {
        Memories {
            slab: Slab::default(),
            copier: Copier::new(),
            batch: Batch::new(reaching),
            staging: vec![0; STAGING_BYTES + PAGE].into_boxed_slice(),
            lost: Vec::new(),
        }
    }

    /// Adds an address space; its segments' addresses are those of the process. Adding it again gives the same id, which must be
    /// removed as often.
    pub fn add_process(&mut self, process: Arc<Process>) -> MemId {
        self.slab.add_process(process)
    }

    /// Adds a client's shared object; its segments' addresses are offsets in the mapping. Repeats as [`Self::add_process`].
    pub fn add_mapping(&mut self, mapping: Arc<SharedMapping>) -> MemId {
        self.slab.add_mapping(mapping)
    }

    /// Adds a ring or staging buffer; its segments' addresses are offsets in it. Repeats as [`Self::add_process`].
    pub fn add_ring(&mut self, mapping: Arc<Mapping>) -> MemId {
        self.slab.add_ring(mapping)
    }

    /// Adds a region of a guest's DMA map; its segments' addresses are offsets in it. Repeats as [`Self::add_process`].
    pub fn add_guest(&mut self, region: &Arc<Region>) -> MemId {
        self.slab.add_guest(region)
    }

    /// Takes a guest's region away, whoever has it: accesses fail from here on, and it can be unmapped.
    pub fn end_guest(&mut self, region: &Arc<Region>) {
        self.slab.end_guest(region);
    }

    /// Copies a structure out of mapped memory.
    ///
    /// # Errors
    /// The memory is not there any more, or is a process's.
    pub fn read(&mut self, at: Segment, buf: &mut [u8]) -> Result<(), DmaError> {
        let len = buf.len().min(to_usize(at.len));
        match site(&self.slab, &at)? {
            // SAFETY: in a mapping that the slab keeps; `buf` is ours to write.
            Site::Mapped(memory) => unsafe { self.copier.copy(buf.as_mut_ptr(), memory, len) }.map_err(|_| DmaError(at)),
            Site::Process(..) | Site::Null => Err(DmaError(at)),
        }
    }

    /// Copies a structure into mapped memory.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn write(&mut self, at: Segment, bytes: &[u8]) -> Result<(), DmaError> {
        let len = bytes.len().min(to_usize(at.len));
        match site(&self.slab, &at)? {
            // SAFETY: in a mapping that the slab keeps; `bytes` is only read.
            Site::Mapped(memory) => unsafe { self.copier.copy(memory, bytes.as_ptr(), len) }.map_err(|_| DmaError(at)),
            Site::Process(..) | Site::Null => Err(DmaError(at)),
        }
    }

    /// The memory space of a client's shared object or a device's buffer, if it is one at present.
    pub fn id_of(&self, mapping: &Arc<SharedMapping>) -> Option<MemId> {
        self.slab.id_of(mapping)
    }

    /// Undoes one `add`. No segment of the core may name it any more.
    ///
    /// # Panics
    /// If `id` is not in use.
    pub fn remove(&mut self, id: MemId) {
        self.slab.remove(id);
    }

    /// Memory spaces in use.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for Memories {
    fn default() -> Self {
        Memories::new()
    }
}

/// Finds the memory and checks the bounds of mapped memory: segments come from the core, which knows nothing of its size.
#[inline]
fn site<'a>(slab: &'a Slab, segment: &Segment) -> Result<Site<'a>, DmaError> {
    let id = segment.owner.space();
    match slab.get(id) {
        Some(Memory::Process(process)) => Ok(Site::Process(process, segment.addr)),
        Some(Memory::Mapped { base, len, .. }) if segment.addr.checked_add(segment.len).is_some_and(|end| end <= *len) => {
            Ok(Site::Mapped(base.wrapping_add(segment.addr as usize)))
        }
        None if id == Memories::NULL => Ok(Site::Null),
        _ => Err(DmaError(*segment)),
    }
}

fn is_same(a: &Process, b: &Process) -> bool {
    core::ptr::eq(a, b)
}

/// The segment that holds byte `stopped` of the concatenation.
fn failed(mut segments: impl Iterator<Item = Segment>, stopped: Stopped) -> DmaError {
    let mut passed = 0;
    let mut last = None;
    let at = segments.find(|segment| {
        passed += segment.len;
        last = Some(*segment);
        passed > stopped.0 as u64
    });
    DmaError(at.or(last).expect("a failed transfer has a segment"))
}

impl Memories {
    /// Gather and scatter are the same walk: `buf` stands for a packet buffer of `len` bytes.
    ///
    /// # Safety
    /// `buf` is readable for `len` bytes, and writable if `direction` reads from memory.
    pub(super) unsafe fn walk(
        &mut self,
        direction: Direction,
        pieces: &[Piece],
        buf: *mut u8,
        len: usize,
    ) -> Result<(), DmaError> {
        let Memories { slab, copier, batch, .. } = self;
        let mut pending: Option<(&Process, usize)> = None;
        let segments = |from: usize| pieces[from..].iter().map(|piece| piece.segment);
        for (index, Piece { segment, at }) in pieces.iter().enumerate() {
            let bytes = usize::try_from(segment.len).map_err(|_| DmaError(*segment))?;
            assert!(at.checked_add(bytes).is_some_and(|end| end <= len), "piece {at}+{bytes} of a buffer of {len}");
            let local = buf.wrapping_add(*at);
            let place = site(slab, segment)?;
            if let Some((process, first)) = pending
                && (batch.is_full() || !matches!(place, Site::Process(p, _) if is_same(p, process)))
            {
                // SAFETY: the batch holds parts of `buf` only.
                unsafe { batch.run(process, direction) }.map_err(|stopped| failed(segments(first), stopped))?;
                pending = None;
            }
            match place {
                Site::Process(process, addr) => {
                    batch.push(local, addr, bytes);
                    pending.get_or_insert((process, index));
                }
                Site::Mapped(memory) => {
                    let (dst, src) = if direction == Direction::Read { (local, memory) } else { (memory, local) };
                    // SAFETY: `local` is part of `buf`, `memory` of a mapping that the slab keeps.
                    unsafe { copier.copy(dst, src, bytes) }.map_err(|_| DmaError(*segment))?;
                }
                // SAFETY: `local` is part of `buf`, which is writable when it is read into.
                Site::Null if direction == Direction::Read => unsafe { local.write_bytes(0, bytes) },
                Site::Null => {}
            }
        }
        let Some((process, first)) = pending else { return Ok(()) };
        // SAFETY: as above.
        unsafe { batch.run(process, direction) }.map_err(|stopped| failed(segments(first), stopped))
    }
}

/// The concatenation of segments from byte `stopped` on, as far as the segment that holds it goes.
fn rest_at(segments: impl Iterator<Item = Segment>, stopped: Stopped) -> Option<Segment> {
    let mut skip = stopped.0 as u64;
    for Segment { owner, addr, len } in segments {
        match skip.checked_sub(len) {
            None => return Some(Segment { owner, addr: addr + skip, len: len - skip }),
            Some(rest) => skip = rest,
        }
    }
    None
}

/// Whether the first byte of mapped memory can be read.
fn is_there(slab: &Slab, copier: &Copier, segment: &Segment) -> bool {
    let mut byte = 0u8;
    // SAFETY: from a mapping that the slab keeps to `byte`.
    matches!(site(slab, segment), Ok(Site::Mapped(memory)) if unsafe { copier.copy(&raw mut byte, memory, 1) }.is_ok())
}

/// A position in a list of segments.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    segments: &'a [Segment],
    offset: u64,
}

impl<'a> Cursor<'a> {
    fn new(segments: &'a [Segment]) -> Self {
        Cursor { segments, offset: 0 }
    }

    /// What is left of the segment at the position.
    fn rest(&mut self) -> Option<Segment> {
        loop {
            let (first, others) = self.segments.split_first()?;
            if self.offset < first.len {
                return Some(Segment { owner: first.owner, addr: first.addr + self.offset, len: first.len - self.offset });
            }
            *self = Cursor::new(others);
        }
    }

    fn advance(&mut self, bytes: u64) {
        self.offset += bytes;
    }

    /// The segments from here on.
    fn rests(mut self) -> impl Iterator<Item = Segment> {
        core::iter::from_fn(move || {
            let rest = self.rest()?;
            self.advance(rest.len);
            Some(rest)
        })
    }
}

/// `len` bounded by what fits in memory at once.
fn to_usize(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX / 2)
}

/// Page offset at which bytes are staged so that neither the copy in nor the copy out is a slow one: that of the source, unless
/// the target lies just ahead of it.
fn staging_offset(from: &mut Cursor<'_>, to: &mut Cursor<'_>) -> usize {
    let addr = |cursor: &mut Cursor<'_>| cursor.rest().map_or(0, |segment| segment.addr as usize);
    let (source, target) = (addr(from), addr(to));
    let ahead = target.wrapping_sub(source) % PAGE;
    let shift = if (1..SLOW_AHEAD).contains(&ahead) { PAGE / 2 } else { 0 };
    source.wrapping_add(shift) % PAGE
}

impl Memories {
    /// One run between `process` (at `theirs`) and mapped memory (at `mapped`), as long as both sides stay what they are.
    fn run_mapped(
        &mut self,
        direction: Direction,
        process: MemId,
        theirs: &mut Cursor<'_>,
        mapped: &mut Cursor<'_>,
    ) -> Result<(), DmaError> {
        let Memories { slab, batch, copier, .. } = self;
        let Some(Memory::Process(process)) = slab.get(process) else { unreachable!("looked up by the caller") };
        let (start, mapped_start) = (*theirs, *mapped);
        while !batch.is_full()
            && let (Some(remote), Some(local)) = (theirs.rest(), mapped.rest())
            && let (Site::Process(p, addr), Site::Mapped(memory)) = (site(slab, &remote)?, site(slab, &local)?)
            && is_same(p, process)
        {
            let bytes = remote.len.min(local.len);
            batch.push(memory, addr, to_usize(bytes));
            theirs.advance(bytes);
            mapped.advance(bytes);
        }
        // SAFETY: the local side lies in mappings that the slab keeps.
        unsafe { batch.run(process, direction) }.map_err(|stopped| {
            // The kernel does not say which side it was.
            let gone = rest_at(mapped_start.rests(), stopped).filter(|rest| !is_there(slab, copier, rest));
            gone.map_or_else(|| failed(start.rests(), stopped), DmaError)
        })
    }

    /// One step between processes: up to a staging buffer of bytes from `from` (process `source`) to wherever `to` goes.
    fn run_staged(&mut self, source: MemId, from: &mut Cursor<'_>, to: &mut Cursor<'_>) -> Result<(), DmaError> {
        let Memories { slab, batch, staging, copier, .. } = self;
        let Some(Memory::Process(source)) = slab.get(source) else { unreachable!("looked up by the caller") };
        let offset = staging_offset(from, to);
        let base = staging.as_mut_ptr();
        let base = base.wrapping_add(base.addr().wrapping_neg().wrapping_add(offset) % PAGE);
        let start = *from;
        while !batch.is_full()
            && batch.bytes() < STAGING_BYTES
            && let Some(segment) = from.rest()
            && let Site::Process(process, addr) = site(slab, &segment)?
            && is_same(process, source)
        {
            let bytes = to_usize(segment.len).min(STAGING_BYTES - batch.bytes());
            batch.push(base.wrapping_add(batch.bytes()), addr, bytes);
            from.advance(bytes as u64);
        }
        let staged = batch.bytes();
        // SAFETY: the local side is the staging buffer.
        unsafe { batch.run(source, Direction::Read) }.map_err(|stopped| failed(start.rests(), stopped))?;

        let mut done = 0;
        while done < staged {
            let start = *to;
            let Some(segment) = to.rest() else { return Ok(()) };
            match site(slab, &segment)? {
                Site::Mapped(memory) => {
                    let bytes = to_usize(segment.len).min(staged - done);
                    // SAFETY: staging buffer to a mapping that the slab keeps.
                    unsafe { copier.copy(memory, base.wrapping_add(done), bytes) }.map_err(|_| DmaError(segment))?;
                    to.advance(bytes as u64);
                    done += bytes;
                }
                Site::Null => {
                    let bytes = to_usize(segment.len).min(staged - done);
                    to.advance(bytes as u64);
                    done += bytes;
                }
                Site::Process(target, _) => {
                    while !batch.is_full()
                        && done + batch.bytes() < staged
                        && let Some(segment) = to.rest()
                        && let Site::Process(process, addr) = site(slab, &segment)?
                        && is_same(process, target)
                    {
                        let at = done + batch.bytes();
                        let bytes = to_usize(segment.len).min(staged - at);
                        batch.push(base.wrapping_add(at), addr, bytes);
                        to.advance(bytes as u64);
                    }
                    done += batch.bytes();
                    // SAFETY: the local side is the staging buffer.
                    unsafe { batch.run(target, Direction::Write) }.map_err(|stopped| failed(start.rests(), stopped))?;
                }
            }
        }
        Ok(())
    }
}

impl Memories {
    pub(super) fn copy_segments(&mut self, from: &[Segment], to: &[Segment]) -> Result<(), DmaError> {
        let (mut from, mut to) = (Cursor::new(from), Cursor::new(to));
        while let (Some(source), Some(target)) = (from.rest(), to.rest()) {
            let (source_id, target_id) = (source.owner.space(), target.owner.space());
            match (site(&self.slab, &source)?, site(&self.slab, &target)?) {
                (_, Site::Null) => {
                    let bytes = source.len.min(target.len);
                    from.advance(bytes);
                    to.advance(bytes);
                }
                (Site::Null, site) => {
                    let bytes = source.len.min(target.len).min(ZEROS.len() as u64);
                    let zeros = ZEROS.as_ptr();
                    match site {
                        Site::Process(process, addr) => {
                            self.batch.push(zeros.cast_mut(), addr, to_usize(bytes));
                            // SAFETY: the local side is `ZEROS`, which a write to the process only reads.
                            unsafe { self.batch.run(process, Direction::Write) }.map_err(|_| DmaError(target))?;
                        }
                        Site::Mapped(dst) => {
                            // SAFETY: from `ZEROS` to a mapping that the slab keeps.
                            unsafe { self.copier.copy(dst, zeros, to_usize(bytes)) }.map_err(|_| DmaError(target))?;
                        }
                        Site::Null => {}
                    }
                    from.advance(bytes);
                    to.advance(bytes);
                }
                (Site::Mapped(src), Site::Mapped(dst)) => {
                    let bytes = source.len.min(target.len);
                    // SAFETY: both lie in mappings that the slab keeps.
                    unsafe { self.copier.copy(dst, src, to_usize(bytes)) }.map_err(|_| DmaError(target))?;
                    from.advance(bytes);
                    to.advance(bytes);
                }
                (Site::Process(..), Site::Mapped(_)) => self.run_mapped(Direction::Read, source_id, &mut from, &mut to)?,
                (Site::Mapped(_), Site::Process(..)) => self.run_mapped(Direction::Write, target_id, &mut to, &mut from)?,
                (Site::Process(..), Site::Process(..)) => self.run_staged(source_id, &mut from, &mut to)?,
            }
        }
        Ok(())
    }

    pub(super) fn atomic_at(&mut self, at: Segment, op: AtomicOp) -> Result<u64, DmaError> {
        if at.len != 8 || !at.addr.is_multiple_of(8) {
            return Err(DmaError(at));
        }
        match site(&self.slab, &at)? {
            // SAFETY: in a mapping that the slab keeps, which starts at a page.
            Site::Mapped(memory) => unsafe {
                match op {
                    AtomicOp::FetchAdd { add } => self.copier.fetch_add(memory.cast(), add),
                    AtomicOp::CompareSwap { compare, swap } => self.copier.compare_swap(memory.cast(), compare, swap),
                }
            }
            .map_err(|_| DmaError(at)),
            Site::Null => Err(DmaError(at)),
            Site::Process(process, addr) => {
                let mut before = 0u64;
                self.batch.push((&raw mut before).cast(), addr, 8);
                // SAFETY: the local side is `before`.
                unsafe { self.batch.run(process, Direction::Read) }.map_err(|_| DmaError(at))?;
                let mut after = match op {
                    AtomicOp::FetchAdd { add } => before.wrapping_add(add),
                    AtomicOp::CompareSwap { compare, swap } if before == compare => swap,
                    AtomicOp::CompareSwap { .. } => return Ok(before),
                };
                self.batch.push((&raw mut after).cast(), addr, 8);
                // SAFETY: the local side is `after`.
                unsafe { self.batch.run(process, Direction::Write) }.map_err(|_| DmaError(at))?;
                Ok(before)
            }
        }
    }
}
