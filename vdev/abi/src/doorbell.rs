//! How the daemon learns which queue pairs have work, and when it may sleep.
//!
//! One bit per queue pair, a summary bit per word of bits, and a word that says whether the daemon sleeps. Owns the order of the
//! accesses; never touches a ring, and writes no eventfd: [`Doorbell::ring`] only says that one is due. The daemon treats the
//! words as hints: whatever a client writes there costs it a look at an empty ring at worst.
//!
//! Three races matter, each closed by a sequentially consistent fence on both sides (modelled in `tests/loom.rs`):
//! - *index against bit*: a client publishes an index, then finds its bit still set and leaves it. The daemon clears the bit, then
//!   reads the index. Either the daemon sees the index or the client sees the bit cleared.
//! - *bit against summary*: no fence needed, as both are read-modify-writes in opposite orders.
//! - *bit against sleep*: a client sets its bit, then looks whether the daemon sleeps. The daemon says that it will sleep, then
//!   looks for bits.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The doorbell words of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Doorbell<'a> {
    armed: &'a AtomicU32,
    summary: &'a AtomicU64,
    bits: &'a [AtomicU64],
}

impl<'a> Doorbell<'a> {
    /// The doorbell in a context page.
    ///
    /// # Panics
    /// When the mapping is shorter than [`crate::layout::ContextPage::BYTES`].
    #[cfg(not(loom))]
    pub fn of(page: &'a crate::mapping::Mapping) -> Doorbell<'a> {
        use crate::layout::{ContextPage, DOORBELL_SLOTS};
        Doorbell {
            armed: page.u32_at(ContextPage::ARMED),
            summary: page.u64_at(ContextPage::SUMMARY),
            bits: page.u64s_at(ContextPage::BITS, DOORBELL_SLOTS / 64),
        }
    }

    /// A doorbell over any words, at most 64 words of bits.
    #[cfg(loom)]
    pub fn over(armed: &'a AtomicU32, summary: &'a AtomicU64, bits: &'a [AtomicU64]) -> Doorbell<'a> {
        Doorbell { armed, summary, bits }
    }

    /// Client: tells the daemon to look at the queue pair in `slot`, whose producer index was stored before. True when the
    /// caller has to write the eventfd.
    ///
    /// # Panics
    /// When `slot` is outside the page.
    #[must_use]
    pub fn ring(&self, slot: u32) -> bool {
        let word = &self.bits[slot as usize / 64];
        let bit = 1u64 << (slot % 64);
        let summary_bit = 1u64 << (slot / 64);
        fence(Ordering::SeqCst);
        // A bit still set needs no second write: the daemon has yet to clear it, and reads the index after that. This keeps the
        // line shared while a burst is posted.
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::AcqRel);
            self.summary.fetch_or(summary_bit, Ordering::AcqRel);
            fence(Ordering::SeqCst);
        }
        // One of several ringing threads is enough to wake the daemon.
        self.armed.load(Ordering::Relaxed) != 0 && self.armed.swap(0, Ordering::AcqRel) != 0
    }

    /// Daemon: whether some slot may have work. One load.
    #[must_use]
    pub fn pending(&self) -> bool {
        self.summary.load(Ordering::Relaxed) != 0
    }

    /// Daemon: clears all bits that are set and calls `visit` with each slot, in ascending order. An index read in or after
    /// `visit` is at least the one that was published before the ring. Slots may be named for which there is no queue pair.
    pub fn take(&self, mut visit: impl FnMut(u32)) {
        if !self.pending() {
            return;
        }
        let mut summary = self.summary.swap(0, Ordering::AcqRel);
        while summary != 0 {
            let n = summary.trailing_zeros();
            summary &= summary - 1;
            let Some(word) = self.bits.get(n as usize) else { return };
            let mut bits = word.swap(0, Ordering::AcqRel);
            fence(Ordering::SeqCst);
            while bits != 0 {
                visit(n * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    /// Daemon: says that from now on the eventfd has to be written. True when nothing is pending, so that the daemon may sleep
    /// on the eventfd; on false it is disarmed again and work is waiting.
    #[must_use]
    pub fn arm(&self) -> bool {
        // A swap, as in `ring` and `disarm`: all writes to this word are read-modify-writes, so that a late one of a ringing thread
        // cannot undo this one.
        self.armed.swap(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        if self.pending() {
            self.disarm();
            return false;
        }
        true
    }

    /// Daemon: says that it looks by itself again.
    pub fn disarm(&self) {
        self.armed.swap(0, Ordering::AcqRel);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::layout::ContextPage;
    use crate::mapping::Mapping;

    fn taken(doorbell: Doorbell<'_>) -> Vec<u32> {
        let mut slots = Vec::new();
        doorbell.take(|slot| slots.push(slot));
        slots
    }

    #[test]
    fn each_ring_is_taken_once() {
        let (_fd, page) = Mapping::create(c"vrdma-test", ContextPage::BYTES).unwrap();
        let doorbell = Doorbell::of(&page);
        for slot in [4095, 0, 63, 64, 64] {
            assert!(!doorbell.ring(slot));
        }
        assert_eq!(taken(doorbell), [0, 63, 64, 4095]);
        assert!(taken(doorbell).is_empty());
    }

    #[test]
    fn the_eventfd_is_due_once_per_sleep() {
        let (_fd, page) = Mapping::create(c"vrdma-test", ContextPage::BYTES).unwrap();
        let doorbell = Doorbell::of(&page);
        assert!(doorbell.arm());
        assert!(doorbell.ring(9));
        assert!(!doorbell.ring(10));
        assert!(!doorbell.arm(), "work is pending");
        assert!(!doorbell.ring(11), "the refused arming left nothing behind");
        assert_eq!(taken(doorbell), [9, 10, 11]);
        assert!(doorbell.arm());
        doorbell.disarm();
        assert!(!doorbell.ring(9));
    }

    #[test]
    fn a_client_that_sets_everything_costs_one_round() {
        let (_fd, page) = Mapping::create(c"vrdma-test", ContextPage::BYTES).unwrap();
        for offset in (0..ContextPage::BYTES).step_by(8) {
            page.u64_at(offset).store(u64::MAX, Ordering::Relaxed);
        }
        let doorbell = Doorbell::of(&page);
        assert_eq!(taken(doorbell).len(), 4096);
        assert!(taken(doorbell).is_empty());
    }
}
