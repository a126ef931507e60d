//! Model of the index protocols between client and daemon: every interleaving, no lost wake-up.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p vdev-abi --release --test loom`.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;
use vdev_abi::completion::Notify;
use vdev_abi::doorbell::Doorbell;

/// The shared words: two words of bits, and one producer index per ring in use.
#[derive(Default)]
struct Page {
    armed: AtomicU32,
    summary: AtomicU64,
    bits: [AtomicU64; 2],
    index: [AtomicU32; 2],
    eventfd: AtomicU32,
}

impl Page {
    fn doorbell(&self) -> Doorbell<'_> {
        Doorbell::over(&self.armed, &self.summary, &self.bits)
    }

    /// What a post does: entry and index, then the doorbell, then the eventfd if asked.
    fn post(&self, ring: usize, slot: u32, index: u32) {
        self.index[ring].store(index, Ordering::Release);
        if self.doorbell().ring(slot) {
            self.eventfd.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// One round of the daemon: the indices seen, by slot.
    fn round(&self, slots: [u32; 2], seen: &mut [u32; 2]) {
        self.doorbell().take(|slot| {
            for ring in 0..2 {
                if slots[ring] == slot {
                    seen[ring] = self.index[ring].load(Ordering::Acquire);
                }
            }
        });
    }
}

/// The daemon has done one round and then goes to sleep; afterwards either it has seen all, or it does not sleep, or it was woken.
fn daemon_misses_nothing(page: &Page, slots: [u32; 2], want: [u32; 2], clients: Vec<thread::JoinHandle<()>>) {
    let mut seen = [0; 2];
    page.round(slots, &mut seen);
    let mut asleep = page.doorbell().arm();
    if !asleep {
        page.round(slots, &mut seen);
        asleep = page.doorbell().arm();
    }
    for client in clients {
        client.join().unwrap();
    }
    if asleep && page.eventfd.load(Ordering::SeqCst) == 0 {
        assert_eq!(seen, want, "asleep, not woken, and work is waiting");
    }
    page.round(slots, &mut seen);
    assert_eq!(seen, want, "work that no bit names");
}

#[test]
fn one_client_posting_twice() {
    loom::model(|| {
        let page = Arc::new(Page::default());
        let client = {
            let page = page.clone();
            thread::spawn(move || {
                page.post(0, 3, 1);
                page.post(0, 3, 2);
            })
        };
        daemon_misses_nothing(&page, [3, 127], [2, 0], vec![client]);
    });
}

#[test]
fn two_threads_with_slots_in_one_word() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let page = Arc::new(Page::default());
        let clients = [(0, 3), (1, 4)]
            .map(|(ring, slot)| {
                let page = page.clone();
                thread::spawn(move || page.post(ring, slot, 1))
            })
            .into();
        daemon_misses_nothing(&page, [3, 4], [1, 1], clients);
    });
}

#[test]
fn two_threads_with_slots_in_two_words() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let page = Arc::new(Page::default());
        let clients = [(0, 3), (1, 68)]
            .map(|(ring, slot)| {
                let page = page.clone();
                thread::spawn(move || page.post(ring, slot, 1))
            })
            .into();
        daemon_misses_nothing(&page, [3, 68], [1, 1], clients);
    });
}

#[test]
fn send_and_receive_ring_share_a_slot() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let page = Arc::new(Page::default());
        let clients = [0, 1]
            .map(|ring| {
                let page = page.clone();
                thread::spawn(move || page.post(ring, 5, 1))
            })
            .into();
        daemon_misses_nothing(&page, [5, 5], [1, 1], clients);
    });
}

#[test]
fn an_armed_completion_queue_gives_an_event_or_a_completion() {
    for solicited_only in [false, true] {
        loom::model(move || {
            let words = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
            let daemon = {
                let words = words.clone();
                thread::spawn(move || {
                    let mut events = 0;
                    for sequence in 1..=2 {
                        words.0.store(sequence, Ordering::Release);
                        events += u32::from(Notify::over(&words.1).take(true));
                    }
                    events
                })
            };
            Notify::over(&words.1).arm(solicited_only);
            let polled = words.0.load(Ordering::Acquire);
            let events = daemon.join().unwrap();
            assert!(events <= 1, "one event per arming");
            assert!(polled == 2 || events == 1, "a completion came after the poll, and no event");
        });
    }
}
