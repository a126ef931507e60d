//! What a cache has done and holds, in figures.

use std::sync::atomic::{AtomicU64, Ordering};

/// The state of a cache at about one moment: threads at work may change it while it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Regions in the guest's DMA map.
    pub regions: u64,
    /// Bytes of these.
    pub mapped_bytes: u64,
    /// Bytes pinned, with those being pinned or released right now.
    pub pinned_bytes: u64,
    /// Of these, bytes of blocks that no guard holds any more.
    pub idle_bytes: u64,
    /// Bytes that live guards ask for; what two of them ask for counts twice.
    pub registered_bytes: u64,
    /// Blocks that were pinned already when a guard wanted them.
    pub hits: u64,
    /// Blocks that had to be pinned.
    pub misses: u64,
    /// Idle blocks released because of their age.
    pub evictions_age: u64,
    /// Idle blocks released because others needed room: the budget, a limit of the system, or [`crate::MapCache::shrink`].
    pub evictions_room: u64,
    /// Attempts to pin that failed.
    pub pin_failures: u64,
    /// Attempts to unpin that failed.
    pub unpin_failures: u64,
}

impl Stats {
    /// How many bytes are held for each byte registered: 1 is ideal, 512 is one page in a block of its own. Below 1 when
    /// guards overlap. `None` while nothing is registered.
    pub fn over_pin(&self) -> Option<f64> {
        let held = self.pinned_bytes.saturating_sub(self.idle_bytes);
        // Exact below 2^53 bytes.
        (self.registered_bytes > 0).then(|| held as f64 / self.registered_bytes as f64)
    }
}

/// Events counted since the cache was made.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) evictions_age: AtomicU64,
    pub(crate) evictions_room: AtomicU64,
    pub(crate) pin_failures: AtomicU64,
    pub(crate) unpin_failures: AtomicU64,
}

impl Counters {
    pub(crate) fn fill(&self, stats: &mut Stats) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        stats.hits = read(&self.hits);
        stats.misses = read(&self.misses);
        stats.evictions_age = read(&self.evictions_age);
        stats.evictions_room = read(&self.evictions_room);
        stats.pin_failures = read(&self.pin_failures);
        stats.unpin_failures = read(&self.unpin_failures);
    }
}

pub(crate) fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}
