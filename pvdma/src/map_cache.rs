//! The map cache of one guest: pins blocks when a range is first wanted, counts who holds them, keeps them pinned for the
//! next time, and gives them back by age, under a byte budget, and before memory goes away.
//!
//! Who waits for whom: a pin waits for blocks in transition that it wants itself, and for releases in progress when it
//! needs room; an unmap waits for everybody inside the regions that it ends. The owner of a block in transition and the
//! owner of a release in progress never wait for a block, so no circle can form. No lock is held while the pinner works.

use crate::address::GpaRange;
use crate::blocks::{BLOCKS_PER_CHUNK, Blocks, Stamp, Verdict};
use crate::dma_map::{DmaMap, LookupError, MapError, MapLimits, Piece, RegionInit, UnmapError};
use crate::guard::PinGuard;
use crate::instant::Instant;
use crate::ledger::{Idle, InHand, Ledger, Next};
use crate::mapping::{Mapping, ObjectId};
use crate::pinner::{Block, Pinner, PinnerError};
use crate::protection::Protection;
use crate::region::{Generation, Region, Unpinnable};
use crate::stats::{Counters, Stats, count};
use core::time::Duration;
use nix::errno::Errno;
use std::collections::HashSet;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Rules of one cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most bytes pinned at a time, idle blocks included.
    pub budget_bytes: u64,
    /// How long a block that nobody holds stays pinned.
    pub max_idle: Duration,
    /// Limits of the DMA map.
    pub limits: MapLimits,
}

impl Default for Config {
    /// No budget, a minute, and the default limits.
    fn default() -> Config {
        Config { budget_bytes: u64::MAX, max_idle: Duration::from_secs(60), limits: MapLimits::default() }
    }
}

/// Why a range was not pinned. No block is held on its behalf.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// It is no memory that the guest gave for this use.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// The budget is used up by blocks in use.
    #[error(
        "{block} would exceed the guest's budget of {budget_bytes} pinned bytes, all in use: deregister memory or raise it"
    )]
    Budget {
        /// The block without room.
        block: GpaRange,
        /// [`Config::budget_bytes`].
        budget_bytes: u64,
    },
    /// The pinner failed.
    #[error("cannot pin {block}")]
    Pinner {
        /// The block.
        block: GpaRange,
        /// Why.
        source: PinnerError,
    },
}

/// Where an idle block is.
#[derive(Debug)]
struct IdleBlock {
    region: Arc<Region>,
    index: u64,
}

/// The cache, as it is shared with its guards.
#[derive(Debug)]
pub(crate) struct Shared {
    config: Config,
    pinner: Arc<dyn Pinner>,
    map: RwLock<DmaMap>,
    kept_out: Mutex<HashSet<ObjectId>>,
    ledger: Ledger<IdleBlock>,
    counters: Counters,
    generations: AtomicU64,
    /// Orders the moments at which blocks become idle.
    order: AtomicU64,
    /// The latest time heard of, for guards that are dropped.
    now_ns: AtomicU64,
}

/// The map cache of one guest. Cheap to clone: all clones are the same cache.
#[derive(Clone, Debug)]
pub struct MapCache {
    shared: Arc<Shared>,
}

impl MapCache {
    /// A cache without regions that pins with `pinner`.
    pub fn new(config: Config, pinner: Arc<dyn Pinner>) -> MapCache {
        let shared = Shared {
            config,
            pinner,
            map: RwLock::new(DmaMap::new(config.limits)),
            kept_out: Mutex::new(HashSet::new()),
            ledger: Ledger::new(config.budget_bytes),
            counters: Counters::default(),
            generations: AtomicU64::new(0),
            order: AtomicU64::new(0),
            now_ns: AtomicU64::new(0),
        };
        MapCache { shared: Arc::new(shared) }
    }

    /// Never pins the object behind `fd`, whatever the guest's DMA map says of it from now on: for the memory of doorbells.
    ///
    /// # Errors
    /// The system does not tell which object it is.
    pub fn keep_out(&self, fd: impl AsFd) -> Result<(), Errno> {
        let object = ObjectId::of(fd)?;
        self.shared.kept_out.lock().unwrap_or_else(PoisonError::into_inner).insert(object);
        Ok(())
    }

    /// Adds a region to the guest's DMA map. Nothing is pinned or populated.
    ///
    /// # Errors
    /// See [`MapError`]; the map is unchanged.
    pub fn map(&self, init: RegionInit) -> Result<Arc<Region>, MapError> {
        let range = self.shared.read_map().check(&init)?;
        let mapping = match init.backing {
            None => Err(Unpinnable::NoDescriptor),
            Some(backing) if self.is_kept_out(&backing.fd) => Err(Unpinnable::KeptOut),
            Some(backing) => Ok(Mapping::new(backing, range.len(), init.protection)?),
        };
        let generation = Generation(self.shared.generations.fetch_add(1, Ordering::Relaxed) + 1);
        let region = Arc::new(Region::new(generation, range, init.protection, mapping));
        // Checked again, as others may have mapped meanwhile.
        self.shared.write_map().insert(region.clone())?;
        Ok(region)
    }

    fn is_kept_out(&self, fd: impl AsFd) -> bool {
        // An object that cannot be told apart is refused as if it were one of them.
        ObjectId::of(fd)
            .map_or(true, |object| self.shared.kept_out.lock().unwrap_or_else(PoisonError::into_inner).contains(&object))
    }

    /// Ends every region in `range`, pinned or not: waits until all accesses and pins in progress there are over, unpins, and
    /// gives the host memory back. When it returns, no access can occur any more, and translations made before are refused.
    /// Returns the generations that ended. Never call it while holding a [`crate::RegionUse`].
    ///
    /// # Errors
    /// See [`UnmapError`]; but for [`UnmapError::StillPinned`], nothing has changed.
    pub fn unmap(&self, range: GpaRange) -> Result<Vec<Generation>, UnmapError> {
        let regions = self.shared.read_map().within(&range)?;
        let ended = self.shared.end(regions)?;
        if ended.is_empty() { Err(UnmapError::NotMapped(range)) } else { Ok(ended) }
    }

    /// Ends all regions, as [`MapCache::unmap`] does: the guest was reset or is gone.
    ///
    /// # Errors
    /// [`UnmapError::StillPinned`] only.
    pub fn unmap_all(&self) -> Result<Vec<Generation>, UnmapError> {
        let regions = self.shared.read_map().regions().cloned().collect();
        self.shared.end(regions)
    }

    /// Pins `range` for devices that need `need`, and holds it until the guard is dropped. Blocks that are pinned already
    /// cost no system call.
    ///
    /// # Errors
    /// See [`PinError`]; what was pinned on the way is held by nobody.
    pub fn pin(&self, now: Instant, range: GpaRange, need: Protection) -> Result<PinGuard, PinError> {
        self.shared.hear(now);
        // Nearly always one.
        let mut pieces = Vec::with_capacity(1);
        self.shared.read_map().lookup(&range, need, |piece| pieces.push(piece))?;
        let mut guard = PinGuard { shared: self.shared.clone(), pieces, held: 0 };
        for piece in &guard.pieces {
            self.shared.pin_piece(piece)?;
            guard.held += 1;
        }
        Ok(guard)
    }

    /// Whether `range` could be pinned as far as the guest's DMA map goes.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub fn check(&self, range: GpaRange, need: Protection) -> Result<(), LookupError> {
        self.shared.read_map().lookup(&range, need, drop)
    }

    /// Unpins blocks that nobody has held for [`Config::max_idle`], oldest first. Returns the bytes given back.
    pub fn release_idle(&self, now: Instant) -> u64 {
        self.shared.hear(now);
        let max_idle = u64::try_from(self.shared.config.max_idle.as_nanos()).unwrap_or(u64::MAX);
        let Some(before) = now.as_nanos().checked_sub(max_idle) else { return 0 };
        let mut released = 0;
        while let Some(block) = self.shared.ledger.next_due(Instant::from_nanos(before), 0) {
            released += self.shared.release(block, &self.shared.counters.evictions_age);
        }
        released
    }

    /// When [`MapCache::release_idle`] may next find something; `None` while no block is idle. Possibly too early, never
    /// too late.
    pub fn next_release(&self) -> Option<Instant> {
        Some(self.shared.ledger.oldest()?.after(self.shared.config.max_idle))
    }

    /// Unpins idle blocks, oldest first, until no more than `keep_bytes` are pinned or none is idle: the host is short of
    /// memory. Returns the bytes given back.
    pub fn shrink(&self, keep_bytes: u64) -> u64 {
        let mut released = 0;
        while let Some(block) = self.shared.ledger.next_due(Instant::from_nanos(u64::MAX), keep_bytes) {
            released += self.shared.release(block, &self.shared.counters.evictions_room);
        }
        released
    }

    /// Figures for people and for `/metrics`.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        let mut busy = 0;
        {
            let map = self.shared.read_map();
            for region in map.regions() {
                stats.regions += 1;
                stats.registered_bytes += region.registered.load(Ordering::Relaxed);
                busy += region.busy.load(Ordering::Relaxed);
            }
            stats.mapped_bytes = map.bytes();
        }
        stats.pinned_bytes = self.shared.ledger.pinned_bytes();
        stats.idle_bytes = stats.pinned_bytes.saturating_sub(busy);
        self.shared.counters.fill(&mut stats);
        stats
    }
}

impl Shared {
    fn read_map(&self) -> RwLockReadGuard<'_, DmaMap> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_map(&self) -> RwLockWriteGuard<'_, DmaMap> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, now: Instant) {
        // Most calls come within the clock's step or in order; only news is written.
        if self.now_ns.load(Ordering::Relaxed) < now.as_nanos() {
            self.now_ns.fetch_max(now.as_nanos(), Ordering::Relaxed);
        }
    }

    fn stamp(&self) -> Stamp {
        let at = Instant::from_nanos(self.now_ns.load(Ordering::Relaxed));
        Stamp { order: self.order.fetch_add(1, Ordering::Relaxed), at }
    }

    /// Holds all blocks of `piece`, or none.
    fn pin_piece(&self, piece: &Piece) -> Result<(), PinError> {
        let region = &*piece.region;
        let Some(_inside) = region.enter() else {
            return Err(LookupError::NotMapped(piece.range.start()).into());
        };
        let wanted = region.blocks_of(&piece.range);
        let mut held = Held { shared: self, region: &piece.region, from: wanted.start, to: wanted.start };
        while held.to < wanted.end {
            let (chunk, at) = region.chunk(held.to);
            // No more than the chunk holds, which is a usize.
            let end = (at as u64 + (wanted.end - held.to)).min(BLOCKS_PER_CHUNK as u64) as usize;
            let first = held.to - at as u64;
            let acquired = chunk.acquire(at..end, |at| region.add_busy(first + at as u64));
            held.to = first + acquired.reached as u64;
            count(&self.counters.hits, (acquired.reached - at) as u64);
            if acquired.claimed {
                let claim = Claim { shared: self, chunk, at: acquired.reached, reserved: 0, pinned: false };
                self.pin_block(region, held.to, claim)?;
                held.to += 1;
            }
        }
        region.registered.fetch_add(piece.range.len(), Ordering::Relaxed);
        held.keep();
        Ok(())
    }

    /// Pins the claimed block, with one reference.
    fn pin_block(&self, region: &Region, index: u64, mut claim: Claim<'_>) -> Result<(), PinError> {
        count(&self.counters.misses, 1);
        let part = region.block(index);
        let hva = region.hva(part.start()).map_err(|why| LookupError::Unpinnable { gpa: part.start(), why })?;
        let block = Block::new(part, hva, region.protection());
        while let Err(seen) = self.ledger.reserve(part.len()) {
            if !self.make_room(seen) {
                return Err(PinError::Budget { block: part, budget_bytes: self.ledger.budget_bytes() });
            }
        }
        claim.reserved = part.len();
        loop {
            let seen = self.ledger.seen();
            match self.pinner.pin(&block) {
                Ok(()) => break,
                Err(error) if error.limit && self.make_room(seen) => (),
                Err(source) => {
                    count(&self.counters.pin_failures, 1);
                    return Err(PinError::Pinner { block: part, source });
                }
            }
        }
        region.add_busy(index);
        claim.pinned = true;
        Ok(())
    }

    /// Releases the oldest idle block, or waits for one that another thread releases. False if there is none.
    fn make_room(&self, seen: u64) -> bool {
        loop {
            match self.ledger.next(seen) {
                Next::Release(block) => {
                    if self.release(block, &self.counters.evictions_room) > 0 {
                        return true;
                    }
                }
                Next::Retry => return true,
                Next::Nothing => return false,
            }
        }
    }

    /// Unpins the block in hand if it is still idle and was not used since it was queued. Returns the bytes given back.
    fn release(&self, in_hand: InHand<'_, IdleBlock>, counter: &AtomicU64) -> u64 {
        let region = in_hand.block().region.clone();
        let index = in_hand.block().index;
        // Whoever unmaps the region unpins it all.
        let Some(_inside) = region.enter() else { return 0 };
        let (chunk, at) = region.chunk(index);
        match chunk.begin_release(at, in_hand.stamp) {
            Verdict::Keep => 0,
            Verdict::Later(stamp) => {
                in_hand.put_back(stamp);
                0
            }
            Verdict::Release => {
                let mut ending = Ending { chunk, at, unpinned: false };
                ending.unpinned = self.unpin_block(&region, index).is_ok();
                if !ending.unpinned {
                    return 0;
                }
                count(counter, 1);
                region.block(index).len()
            }
        }
    }

    fn unpin_block(&self, region: &Region, index: u64) -> Result<(), PinnerError> {
        let part = region.block(index);
        let hva = region.hva(part.start()).expect("only memory is pinned");
        let unpinned = self.pinner.unpin(&Block::new(part, hva, region.protection()));
        match unpinned {
            Ok(()) => self.ledger.free(part.len()),
            Err(_) => count(&self.counters.unpin_failures, 1),
        }
        unpinned
    }

    /// Lets go of the blocks of `piece`, unless its region has ended and they are nobody's any more.
    pub(crate) fn unpin_piece(&self, piece: &Piece) {
        let Some(_inside) = piece.region.enter() else { return };
        piece.region.registered.fetch_sub(piece.range.len(), Ordering::Relaxed);
        let blocks = piece.region.blocks_of(&piece.range);
        self.let_go(&piece.region, blocks.start, blocks.end);
    }

    /// Gives back one reference on each block from `from` up to `to`. Inside the region only.
    fn let_go(&self, region: &Arc<Region>, from: u64, to: u64) {
        let mut idle = Vec::new();
        let mut index = from;
        while index < to {
            let (chunk, at) = region.chunk(index);
            let end = (at as u64 + (to - index)).min(BLOCKS_PER_CHUNK as u64) as usize;
            let first = index - at as u64;
            chunk.release(
                at..end,
                || self.stamp(),
                |at, queue| {
                    let index = first + at as u64;
                    region.sub_busy(index);
                    idle.extend(queue.map(|stamp| Idle { stamp, block: IdleBlock { region: region.clone(), index } }));
                },
            );
            index = first + end as u64;
        }
        if !idle.is_empty() {
            self.ledger.queue(idle);
        }
    }

    /// Ends those of `regions` that no other call is ending. Nobody is inside any of them when it returns.
    fn end(&self, regions: Vec<Arc<Region>>) -> Result<Vec<Generation>, UnmapError> {
        // All are closed before the first is waited for, so that the waits run side by side.
        let (ending, others): (Vec<_>, Vec<_>) = regions.into_iter().partition(|region| region.close());
        for region in ending.iter().chain(&others) {
            region.drain();
        }
        let mut still_pinned = None;
        for region in &ending {
            for (first, chunk) in region.chunks() {
                for at in chunk.end() {
                    let index = first + at as u64;
                    if let Err(error) = self.unpin_block(region, index) {
                        self.ledger.free(region.block(index).len());
                        still_pinned.get_or_insert(UnmapError::StillPinned { block: region.block(index), errno: error.errno });
                    }
                }
            }
            region.registered.store(0, Ordering::Relaxed);
            region.busy.store(0, Ordering::Relaxed);
            region.drop_mapping();
        }
        self.ledger.purge(|idle| idle.region.is_ended());
        // Only now may the addresses be mapped again: until here the pinner still knew the old memory by them.
        let mut map = self.write_map();
        for region in &ending {
            map.remove(region.generation(), region.range().start());
        }
        match still_pinned {
            Some(error) => Err(error),
            None => Ok(ending.iter().map(|region| region.generation()).collect()),
        }
    }
}

/// Blocks that a pin in progress holds; let go unless all went well.
struct Held<'a> {
    shared: &'a Shared,
    region: &'a Arc<Region>,
    from: u64,
    to: u64,
}

impl Held<'_> {
    fn keep(mut self) {
        self.to = self.from;
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.shared.let_go(self.region, self.from, self.to);
    }
}

/// A block being pinned; settled when this is dropped, also when the pinner panics.
struct Claim<'a> {
    shared: &'a Shared,
    chunk: &'a Blocks,
    at: usize,
    /// Bytes of the budget taken for it.
    reserved: u64,
    pinned: bool,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.pinned && self.reserved > 0 {
            self.shared.ledger.free(self.reserved);
        }
        self.chunk.settle_pin(self.at, self.pinned);
    }
}

/// A block being released; settled when this is dropped, also when the pinner panics.
struct Ending<'a> {
    chunk: &'a Blocks,
    at: usize,
    unpinned: bool,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.chunk.settle_release(self.at, self.unpinned);
    }
}
