//! The way into one region: open until the region is unmapped, then closed for good once the last user has left.
//!
//! One word holds who is inside and whether it is closed, so that entering and leaving cost one atomic operation each and
//! [`Gate::close`] cannot miss anybody: an operation that comes before it in the order of that word is counted, one that
//! comes after it sees the mark.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex, lock, wait};

const CLOSED: u64 = 1 << 63;

#[derive(Debug)]
pub(crate) struct Gate {
    /// [`CLOSED`] and the number of users inside.
    word: AtomicU64,
    empty: Mutex<()>,
    left: Condvar,
}

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate { word: AtomicU64::new(0), empty: Mutex::new(()), left: Condvar::new() }
    }

    /// Goes in; false when closed. A true must be followed by [`Gate::leave`].
    pub(crate) fn enter(&self) -> bool {
        let open = self.word.fetch_add(1, Ordering::Acquire) & CLOSED == 0;
        if !open {
            self.leave();
        }
        open
    }

    pub(crate) fn leave(&self) {
        // Release: what was done inside happens before what follows `drain`.
        if self.word.fetch_sub(1, Ordering::AcqRel) == CLOSED + 1 {
            // With the lock held, the one that drains has either not looked yet or waits already.
            let _empty = lock(&self.empty);
            self.left.notify_all();
        }
    }

    /// Closes it; false if it was closed before. Those inside stay until they leave.
    pub(crate) fn close(&self) -> bool {
        self.word.fetch_or(CLOSED, Ordering::AcqRel) & CLOSED == 0
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.word.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Waits until nobody is inside. After [`Gate::close`] only; never from inside.
    pub(crate) fn drain(&self) {
        let mut empty = lock(&self.empty);
        while self.word.load(Ordering::Acquire) != CLOSED {
            empty = wait(&self.left, empty);
        }
    }
}
