//! Models of the protocols between threads: every interleaving, no lost wake-up, no access without order.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p pvdma --lib --release`. What the pinner does is a cell that loom watches:
//! two accesses to it that nothing orders are an error.

use crate::blocks::{Blocks, Stamp, Verdict};
use crate::gate::Gate;
use crate::instant::Instant;
use crate::ledger::{Idle, Ledger, Next};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const OLD: Stamp = Stamp { order: 0, at: Instant::from_nanos(0) };
const LATER: Stamp = Stamp { order: 1, at: Instant::from_nanos(1) };

/// Memory that is there until it is unmapped.
struct Region {
    gate: Gate,
    mapped: UnsafeCell<bool>,
}

#[test]
fn nobody_is_inside_when_a_region_has_ended() {
    // With two users all interleavings are too many; those with up to three preemptions are not.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let region = Arc::new(Region { gate: Gate::new(), mapped: UnsafeCell::new(true) });
        let users: Vec<_> = (0..2)
            .map(|_| {
                let region = region.clone();
                thread::spawn(move || {
                    if region.gate.enter() {
                        // SAFETY: shared access only; loom fails the test if the write below can overlap.
                        assert!(region.mapped.with(|mapped| unsafe { *mapped }), "unmapped under a user");
                        region.gate.leave();
                    }
                })
            })
            .collect();
        assert!(region.gate.close());
        region.gate.drain();
        // SAFETY: nobody is inside; loom fails the test if a read above can overlap.
        region.mapped.with_mut(|mapped| unsafe { *mapped = false });
        assert!(!region.gate.enter());
        for user in users {
            user.join().unwrap();
        }
    });
}

/// Blocks, and for each whether its memory is pinned: only the owner of a transition touches that, or who holds it reads.
struct Pinned {
    blocks: Blocks,
    memory: Vec<UnsafeCell<bool>>,
}

impl Pinned {
    fn new(count: usize) -> Arc<Pinned> {
        Arc::new(Pinned { blocks: Blocks::new(count), memory: (0..count).map(|_| UnsafeCell::new(false)).collect() })
    }

    fn set(&self, at: usize, pinned: bool) {
        self.memory[at].with_mut(|memory| {
            // SAFETY: exclusive to the owner of a transition; loom fails the test otherwise.
            let before = unsafe { core::mem::replace(&mut *memory, pinned) };
            assert_ne!(before, pinned, "block {at} is pinned or unpinned twice");
        });
    }

    /// Holds blocks `0..count`; every one must be pinned then.
    fn hold(&self, count: usize) {
        let mut at = 0;
        while at < count {
            let acquired = self.blocks.acquire(at..count, |_| ());
            at = acquired.reached;
            if acquired.claimed {
                self.set(at, true);
                self.blocks.settle_pin(at, true);
                at += 1;
            }
        }
        for memory in &self.memory[..count] {
            // SAFETY: shared access while a reference is held; loom fails the test if a release can overlap.
            assert!(memory.with(|memory| unsafe { *memory }), "held, but not pinned");
        }
    }

    fn let_go(&self, count: usize, stamp: Stamp) {
        self.blocks.release(0..count, || stamp, |_, _| ());
    }

    /// What a release does with an entry of the queue; true if it was put back as used later.
    fn evict(&self, at: usize, queued: Stamp) -> Option<Stamp> {
        match self.blocks.begin_release(at, queued) {
            Verdict::Keep => None,
            Verdict::Later(stamp) => Some(stamp),
            Verdict::Release => {
                self.set(at, false);
                self.blocks.settle_release(at, true);
                None
            }
        }
    }
}

#[test]
fn of_two_that_want_a_block_one_pins_it_and_the_other_waits() {
    loom::model(|| {
        let pinned = Pinned::new(2);
        let other = {
            let pinned = pinned.clone();
            thread::spawn(move || pinned.hold(2))
        };
        pinned.hold(2);
        other.join().unwrap();
        pinned.let_go(2, OLD);
        pinned.let_go(2, OLD);
    });
}

#[test]
fn a_failed_pin_passes_the_block_on_to_who_waits() {
    loom::model(|| {
        let pinned = Pinned::new(1);
        let failing = {
            let pinned = pinned.clone();
            thread::spawn(move || {
                if pinned.blocks.acquire(0..1, |_| ()).claimed {
                    pinned.blocks.settle_pin(0, false);
                } else {
                    pinned.let_go(1, LATER);
                }
            })
        };
        pinned.hold(1);
        failing.join().unwrap();
        pinned.let_go(1, LATER);
    });
}

#[test]
fn a_block_is_never_released_under_a_holder() {
    loom::model(|| {
        let pinned = Pinned::new(1);
        pinned.hold(1);
        pinned.let_go(1, OLD);
        let user = {
            let pinned = pinned.clone();
            thread::spawn(move || {
                pinned.hold(1);
                pinned.let_go(1, LATER);
            })
        };
        let evictor = {
            let pinned = pinned.clone();
            thread::spawn(move || pinned.evict(0, OLD))
        };
        user.join().unwrap();
        if let Some(stamp) = evictor.join().unwrap() {
            assert_eq!(stamp, LATER);
            assert_eq!(pinned.evict(0, stamp), None);
        }
    });
}

#[test]
fn all_who_need_room_find_what_is_idle() {
    loom::model(|| {
        // Two bytes of budget, both taken by idle blocks.
        let ledger = Arc::new(Ledger::new(2));
        ledger.reserve(2).unwrap();
        ledger.queue([OLD, LATER].map(|stamp| Idle { stamp, block: stamp.order }));
        let need = |ledger: &Ledger<u64>| {
            while let Err(seen) = ledger.reserve(1) {
                match ledger.next(seen) {
                    Next::Release(in_hand) => {
                        ledger.free(1);
                        drop(in_hand);
                    }
                    Next::Retry => (),
                    Next::Nothing => panic!("no room although a block was idle"),
                }
            }
        };
        let other = {
            let ledger = ledger.clone();
            thread::spawn(move || need(&ledger))
        };
        need(&ledger);
        other.join().unwrap();
        assert_eq!(ledger.pinned_bytes(), 2);
    });
}

#[test]
fn who_waits_for_a_release_is_woken_when_it_comes_to_nothing() {
    loom::model(|| {
        let ledger = Arc::new(Ledger::new(1));
        ledger.reserve(1).unwrap();
        ledger.queue([Idle { stamp: OLD, block: 0u64 }]);
        // Finds the block in use again, and drops the entry.
        let evictor = {
            let ledger = ledger.clone();
            thread::spawn(move || drop(ledger.next_due(Instant::from_nanos(0), 0)))
        };
        let seen = ledger.reserve(1).unwrap_err();
        match ledger.next(seen) {
            Next::Release(in_hand) => drop(in_hand),
            Next::Nothing => (),
            Next::Retry => panic!("nothing was freed or queued"),
        }
        evictor.join().unwrap();
    });
}
