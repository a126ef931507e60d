//! The states of the blocks of one chunk, and who may change them.
//!
//! ```text
//!   Unpinned --claimed by the first that wants it--> Pinning --> Pinned <--> (references 0, 1, ..)
//!      ^                                                |          |
//!      |<------------------- failed --------------------+          | no references, chosen for release
//!      +<--------------------------- Releasing <-------------------+
//! ```
//! The lock is held only to look and to change a state, never while the pinner works: whoever moves a block to `Pinning` or
//! `Releasing` owns it until it settles the outcome; everybody else who wants that block waits for that, and all other
//! blocks go on.

use crate::instant::Instant;
use crate::sync::{Condvar, Mutex, lock, wait};
use core::fmt;
use core::ops::Range;

/// Blocks per chunk: 1 GiB of guest memory.
pub(crate) const BLOCKS_PER_CHUNK: usize = 512;

/// When a block lost its last reference. The order is strict, so that the oldest block is always a definite one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Stamp {
    pub(crate) order: u64,
    pub(crate) at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum State {
    #[default]
    Unpinned,
    Pinning,
    Pinned,
    Releasing,
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    state: State,
    /// Whether the ledger's queue has an entry for it. It has one at most, with this or an earlier stamp.
    queued: bool,
    refs: u32,
    idle_since: Stamp,
}

/// What [`Blocks::acquire`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acquired {
    /// References were taken on the blocks up to here, all of them pinned.
    pub(crate) reached: usize,
    /// Block `reached` is now `Pinning` and the caller's to settle with [`Blocks::settle_pin`].
    pub(crate) claimed: bool,
}

/// What [`Blocks::begin_release`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// In use, or gone: there is nothing to release, and its entry in the queue is void.
    Keep,
    /// It was used since it was queued, and is idle since this later moment: its entry belongs there.
    Later(Stamp),
    /// It is `Releasing` and the caller's to settle with [`Blocks::settle_release`].
    Release,
}

pub(crate) struct Blocks {
    blocks: Mutex<Box<[Block]>>,
    settled: Condvar,
}

impl fmt::Debug for Blocks {
    /// In short: a chunk has hundreds of blocks.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks = lock(&self.blocks);
        let pinned = blocks.iter().filter(|block| block.state == State::Pinned).count();
        f.debug_struct("Blocks").field("count", &blocks.len()).field("pinned", &pinned).finish()
    }
}

impl Blocks {
    pub(crate) fn new(count: usize) -> Blocks {
        Blocks { blocks: Mutex::new(vec![Block::default(); count].into()), settled: Condvar::new() }
    }

    /// Takes a reference on each block of `range` up to the first that is not pinned, which it claims for the caller. Waits
    /// for blocks that others are pinning or releasing. `busy` is told of each block that had no reference before.
    pub(crate) fn acquire(&self, range: Range<usize>, mut busy: impl FnMut(usize)) -> Acquired {
        let mut blocks = lock(&self.blocks);
        for at in range.clone() {
            loop {
                let block = &mut blocks[at];
                match block.state {
                    State::Pinned => {
                        block.refs += 1;
                        if block.refs == 1 {
                            busy(at);
                        }
                        break;
                    }
                    State::Unpinned => {
                        block.state = State::Pinning;
                        return Acquired { reached: at, claimed: true };
                    }
                    State::Pinning | State::Releasing => blocks = wait(&self.settled, blocks),
                }
            }
        }
        Acquired { reached: range.end, claimed: false }
    }

    /// Ends a claim: pinned with one reference, or unpinned again.
    pub(crate) fn settle_pin(&self, at: usize, pinned: bool) {
        let mut blocks = lock(&self.blocks);
        let block = &mut blocks[at];
        assert_eq!((block.state, block.refs), (State::Pinning, 0), "only a claim is settled");
        (block.state, block.refs) = if pinned { (State::Pinned, 1) } else { (State::Unpinned, 0) };
        drop(blocks);
        self.settled.notify_all();
    }

    /// Gives back one reference on each block of `range`. `idle` is told of each block without any left, and whether it must
    /// be queued.
    pub(crate) fn release(
        &self,
        range: Range<usize>,
        mut stamp: impl FnMut() -> Stamp,
        mut idle: impl FnMut(usize, Option<Stamp>),
    ) {
        let mut blocks = lock(&self.blocks);
        for at in range {
            let block = &mut blocks[at];
            assert!(block.state == State::Pinned && block.refs > 0, "a reference holds a pinned block");
            block.refs -= 1;
            if block.refs == 0 {
                block.idle_since = stamp();
                idle(at, (!block.queued).then_some(block.idle_since));
                block.queued = true;
            }
        }
    }

    /// The queue's entry of block `at`, with the stamp `queued`, was taken out: may the block be released?
    pub(crate) fn begin_release(&self, at: usize, queued: Stamp) -> Verdict {
        let mut blocks = lock(&self.blocks);
        let block = &mut blocks[at];
        if block.state != State::Pinned || block.refs > 0 {
            block.queued = false;
            return Verdict::Keep;
        }
        if block.idle_since != queued {
            return Verdict::Later(block.idle_since);
        }
        (block.state, block.queued) = (State::Releasing, false);
        Verdict::Release
    }

    /// Ends a release. A block that could not be unpinned stays pinned, without a place in the queue until its next use.
    pub(crate) fn settle_release(&self, at: usize, unpinned: bool) {
        let mut blocks = lock(&self.blocks);
        let block = &mut blocks[at];
        assert_eq!((block.state, block.refs), (State::Releasing, 0), "only a release is settled");
        block.state = if unpinned { State::Unpinned } else { State::Pinned };
        drop(blocks);
        self.settled.notify_all();
    }

    /// Forgets all pins, whoever holds references: the region ends and nobody else can be here. Returns the blocks that were
    /// pinned.
    pub(crate) fn end(&self) -> Vec<usize> {
        let mut blocks = lock(&self.blocks);
        let mut pinned = Vec::new();
        for (at, block) in blocks.iter_mut().enumerate() {
            match core::mem::take(block).state {
                State::Pinned => pinned.push(at),
                State::Unpinned => (),
                state => panic!("block {at} is {state:?} although nobody is inside the region"),
            }
        }
        pinned
    }
}
