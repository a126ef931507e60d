//! What is pinned in all, what may be, and which idle block goes next.
//!
//! Idle blocks wait in a queue, least recently used first. A block that is used again stays in the queue with its old
//! stamp (a hit must not touch anything shared); only when it is taken out is its true place looked up, and it is put back
//! there if that is later. As a true stamp is never earlier than the queued one, the order of release is exact.

use crate::blocks::Stamp;
use crate::instant::Instant;
use crate::sync::{Condvar, Mutex, lock, wait};
use core::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// An entry of the queue. Stamps are unique, so they alone order it.
#[derive(Debug)]
pub(crate) struct Idle<B> {
    pub(crate) stamp: Stamp,
    pub(crate) block: B,
}

impl<B> Ord for Idle<B> {
    fn cmp(&self, other: &Idle<B>) -> Ordering {
        self.stamp.cmp(&other.stamp)
    }
}

impl<B> PartialOrd for Idle<B> {
    fn partial_cmp(&self, other: &Idle<B>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<B> PartialEq for Idle<B> {
    fn eq(&self, other: &Idle<B>) -> bool {
        self.stamp == other.stamp
    }
}

impl<B> Eq for Idle<B> {}

#[derive(Debug)]
struct Books<B> {
    pinned_bytes: u64,
    idle: BinaryHeap<Reverse<Idle<B>>>,
    /// Entries taken out whose fate is open.
    in_hand: usize,
    /// How often something became free.
    frees: u64,
}

#[derive(Debug)]
pub(crate) struct Ledger<B> {
    budget_bytes: u64,
    books: Mutex<Books<B>>,
    changed: Condvar,
}

/// What to do for room.
#[derive(Debug)]
pub(crate) enum Next<'a, B> {
    /// Release this one.
    Release(InHand<'a, B>),
    /// Try again: another thread freed something.
    Retry,
    /// Nothing can be released.
    Nothing,
}

impl<B> Ledger<B> {
    pub(crate) fn new(budget_bytes: u64) -> Ledger<B> {
        let books = Books { pinned_bytes: 0, idle: BinaryHeap::new(), in_hand: 0, frees: 0 };
        Ledger { budget_bytes, books: Mutex::new(books), changed: Condvar::new() }
    }

    pub(crate) fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    pub(crate) fn pinned_bytes(&self) -> u64 {
        lock(&self.books).pinned_bytes
    }

    /// Takes `len` bytes of the budget, else says what it has seen, for [`Ledger::next`].
    pub(crate) fn reserve(&self, len: u64) -> Result<(), u64> {
        let mut books = lock(&self.books);
        match books.pinned_bytes.checked_add(len) {
            Some(pinned) if pinned <= self.budget_bytes => books.pinned_bytes = pinned,
            _ => return Err(books.frees),
        }
        Ok(())
    }

    /// What there is to be seen now, for [`Ledger::next`].
    pub(crate) fn seen(&self) -> u64 {
        lock(&self.books).frees
    }

    /// Gives `len` bytes of the budget back.
    pub(crate) fn free(&self, len: u64) {
        let mut books = lock(&self.books);
        books.pinned_bytes -= len;
        books.frees += 1;
        drop(books);
        self.changed.notify_all();
    }

    /// Queues blocks that became idle.
    pub(crate) fn queue(&self, idle: impl IntoIterator<Item = Idle<B>>) {
        let mut books = lock(&self.books);
        books.idle.extend(idle.into_iter().map(Reverse));
        drop(books);
        self.changed.notify_all();
    }

    /// Removes the entries whose block `gone` names.
    pub(crate) fn purge(&self, gone: impl Fn(&B) -> bool) {
        lock(&self.books).idle.retain(|entry| !gone(&entry.0.block));
    }

    /// The oldest idle block. When there is none but others have some in hand, waits for what they do; `seen` is what
    /// [`Ledger::reserve`] or [`Ledger::seen`] said before the attempt that failed.
    pub(crate) fn next(&self, seen: u64) -> Next<'_, B> {
        let mut books = lock(&self.books);
        loop {
            if let Some(Reverse(entry)) = books.idle.pop() {
                books.in_hand += 1;
                return Next::Release(InHand { ledger: self, stamp: entry.stamp, block: Some(entry.block) });
            }
            if books.frees != seen {
                return Next::Retry;
            }
            if books.in_hand == 0 {
                return Next::Nothing;
            }
            books = wait(&self.changed, books);
        }
    }

    /// The oldest idle block, if it was queued at `before` or earlier and more than `keep_bytes` are pinned. Does not wait.
    pub(crate) fn next_due(&self, before: Instant, keep_bytes: u64) -> Option<InHand<'_, B>> {
        let mut books = lock(&self.books);
        if books.pinned_bytes <= keep_bytes || books.idle.peek()?.0.stamp.at > before {
            return None;
        }
        let Reverse(entry) = books.idle.pop()?;
        books.in_hand += 1;
        Some(InHand { ledger: self, stamp: entry.stamp, block: Some(entry.block) })
    }

    /// When the oldest entry was queued.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        Some(lock(&self.books).idle.peek()?.0.stamp.at)
    }
}

/// An entry taken out of the queue. Its fate is settled when it is dropped.
#[derive(Debug)]
pub(crate) struct InHand<'a, B> {
    ledger: &'a Ledger<B>,
    pub(crate) stamp: Stamp,
    block: Option<B>,
}

impl<B> InHand<'_, B> {
    pub(crate) fn block(&self) -> &B {
        self.block.as_ref().expect("taken only when it is put back")
    }

    /// Back into the queue, at the place of `stamp`.
    pub(crate) fn put_back(mut self, stamp: Stamp) {
        let block = self.block.take().expect("put back once");
        self.ledger.queue([Idle { stamp, block }]);
    }
}

impl<B> Drop for InHand<'_, B> {
    fn drop(&mut self) {
        let mut books = lock(&self.ledger.books);
        books.in_hand -= 1;
        drop(books);
        self.ledger.changed.notify_all();
    }
}
