//! The completion ring: written by the daemon, read by the client.
//!
//! An entry is valid when its sequence number says so, which is the last thing written; the client tells how far it has read in
//! one index, and asks for events in one word ([`Notify`]). Owns both sides' indices; never decides what a full ring means
//! (that is a completion queue error, the daemon's business) and writes no event itself.

use crate::sync::{AtomicU32, Ordering, fence};

/// The word by which the client asks for one event.
///
/// The client arms, then polls again; the daemon writes a completion, then looks whether the queue is armed. A sequentially
/// consistent fence between the two steps on both sides means that at least one of them sees the other (`tests/loom.rs`).
#[derive(Clone, Copy, Debug)]
pub struct Notify<'a> {
    armed: &'a AtomicU32,
}

const NOT_ARMED: u32 = 0;
const ANY: u32 = 1;
const SOLICITED: u32 = 2;

impl<'a> Notify<'a> {
    /// Over the armed word of a completion queue.
    pub fn over(armed: &'a AtomicU32) -> Notify<'a> {
        Notify { armed }
    }

    /// Client: asks for one event, at the next completion or at the next solicited one. A wish for any completion is not
    /// weakened by a later one for a solicited completion. After this the client has to poll once more.
    pub fn arm(&self, solicited_only: bool) {
        if solicited_only {
            let _ = self.armed.compare_exchange(NOT_ARMED, SOLICITED, Ordering::Relaxed, Ordering::Relaxed);
        } else {
            self.armed.store(ANY, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Daemon: after one or more completions were written, whether an event is due. `solicited` says that one of them was
    /// solicited or is an error. True at most once per arming.
    #[must_use]
    pub fn take(&self, solicited: bool) -> bool {
        fence(Ordering::SeqCst);
        match self.armed.load(Ordering::Relaxed) {
            NOT_ARMED => false,
            SOLICITED if !solicited => false,
            _ => self.armed.swap(NOT_ARMED, Ordering::AcqRel) != NOT_ARMED,
        }
    }
}

#[cfg(not(loom))]
pub use ring::{CqConsumer, CqProducer, PushError};

#[cfg(not(loom))]
mod ring {
    use super::Notify;
    use crate::layout::{CompletionEntry, CqLayout};
    use crate::mapping::Mapping;
    use core::sync::atomic::Ordering;

    /// Bytes of an entry before the word that holds its sequence number.
    const BODY_WORDS: usize = size_of::<CompletionEntry>() / 8 - 1;

    /// Why a completion was not written.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
    pub enum PushError {
        /// The client has not read enough: the ring is full.
        #[error("the completion ring is full")]
        Full,
        /// The client claims to have read completions that were never written.
        #[error("the client's consumer index {consumer} is ahead of producer index {producer}")]
        Corrupt {
            /// The client's index.
            consumer: u32,
            /// Ours.
            producer: u32,
        },
    }

    /// The daemon's end.
    #[derive(Debug)]
    pub struct CqProducer {
        depth: u32,
        produced: u32,
        /// The client's index as last read; read again only when the ring looks full.
        consumed: u32,
    }

    impl CqProducer {
        /// For a zeroed ring.
        pub fn new(layout: &CqLayout) -> CqProducer {
            CqProducer { depth: layout.depth, produced: 0, consumed: 0 }
        }

        /// Writes one completion; its `sequence` is filled in here.
        ///
        /// # Errors
        /// [`PushError::Full`] and [`PushError::Corrupt`]; nothing is written then.
        pub fn push(&mut self, map: &Mapping, mut entry: CompletionEntry) -> Result<(), PushError> {
            if self.produced.wrapping_sub(self.consumed) >= self.depth {
                // Acquire: the client has finished reading the slots that it gives back.
                let consumed = map.u32_at(CqLayout::CONSUMER).load(Ordering::Acquire);
                let unread = self.produced.wrapping_sub(consumed);
                if unread > self.depth {
                    return Err(PushError::Corrupt { consumer: consumed, producer: self.produced });
                }
                self.consumed = consumed;
                if unread == self.depth {
                    return Err(PushError::Full);
                }
            }
            let at = CqLayout::RING + (self.produced & (self.depth - 1)) as usize * size_of::<CompletionEntry>();
            self.produced = self.produced.wrapping_add(1);
            entry.sequence = self.produced;
            // SAFETY: both are 64 bytes without padding, and every bit pattern of the words is valid.
            let words: [u64; BODY_WORDS + 1] = unsafe { core::mem::transmute(entry) };
            let ring = map.u64s_at(at, BODY_WORDS + 1);
            for (slot, word) in ring.iter().zip(words).take(BODY_WORDS) {
                slot.store(word, Ordering::Relaxed);
            }
            ring[BODY_WORDS].store(words[BODY_WORDS], Ordering::Release);
            Ok(())
        }

        /// The end of another ring, to which the completions that the client has not read move, and its wish for an event. The
        /// client leaves both rings alone meanwhile, and goes on at the start of the new one.
        ///
        /// # Errors
        /// [`PushError::Full`] when the new ring has no room for them, and [`PushError::Corrupt`]; nothing has changed then.
        pub fn move_to(&self, from: &Mapping, to: &Mapping, layout: &CqLayout) -> Result<CqProducer, PushError> {
            let consumed = from.u32_at(CqLayout::CONSUMER).load(Ordering::Acquire);
            let unread = self.produced.wrapping_sub(consumed);
            if unread > self.depth {
                return Err(PushError::Corrupt { consumer: consumed, producer: self.produced });
            }
            if unread > layout.depth {
                return Err(PushError::Full);
            }
            let mut moved = CqProducer::new(layout);
            for n in 0..unread {
                let index = consumed.wrapping_add(n) & (self.depth - 1);
                let entry: CompletionEntry = from.read(CqLayout::RING + index as usize * size_of::<CompletionEntry>());
                moved.push(to, entry)?;
            }
            let armed = from.u32_at(CqLayout::ARMED).load(Ordering::Relaxed);
            to.u32_at(CqLayout::ARMED).store(armed, Ordering::Relaxed);
            Ok(moved)
        }

        /// Whether an event is due after completions were pushed; see [`Notify::take`].
        #[must_use]
        pub fn take_arm(&self, map: &Mapping, solicited: bool) -> bool {
            Notify::over(map.u32_at(CqLayout::ARMED)).take(solicited)
        }
    }

    /// The client's end.
    #[derive(Debug)]
    pub struct CqConsumer {
        depth: u32,
        consumed: u32,
    }

    impl CqConsumer {
        /// For a zeroed ring.
        pub fn new(layout: &CqLayout) -> CqConsumer {
            CqConsumer { depth: layout.depth, consumed: 0 }
        }

        fn slot(&self, index: u32) -> usize {
            CqLayout::RING + (index & (self.depth - 1)) as usize * size_of::<CompletionEntry>()
        }

        /// The `ahead`-th completion not yet given back (0 first), if it has been written.
        pub fn peek(&self, map: &Mapping, ahead: u32) -> Option<CompletionEntry> {
            if ahead >= self.depth {
                return None;
            }
            let index = self.consumed.wrapping_add(ahead);
            let at = self.slot(index);
            // Acquire: the rest of the entry was written before this word. The sequence is its upper half in memory order.
            let last = map.u64_at(at + BODY_WORDS * 8).load(Ordering::Acquire).to_ne_bytes();
            let sequence = u32::from_ne_bytes([last[4], last[5], last[6], last[7]]);
            (sequence == index.wrapping_add(1)).then(|| map.read(at))
        }

        /// Replaces the `ahead`-th completion, which [`Self::peek`] gave; for marking those of a queue pair that is gone.
        pub fn replace(&self, map: &Mapping, ahead: u32, entry: &CompletionEntry) {
            map.write(self.slot(self.consumed.wrapping_add(ahead)), entry);
        }

        /// Gives `count` completions back to the daemon, all of which [`Self::peek`] gave.
        pub fn advance(&mut self, map: &Mapping, count: u32) {
            self.consumed = self.consumed.wrapping_add(count);
            // Release: we have read the slots before the daemon writes there again.
            map.u32_at(CqLayout::CONSUMER).store(self.consumed, Ordering::Release);
        }

        /// Asks for one event; see [`Notify::arm`].
        pub fn arm(&self, map: &Mapping, solicited_only: bool) {
            Notify::over(map.u32_at(CqLayout::ARMED)).arm(solicited_only);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn queue(entries: u32) -> (Mapping, CqProducer, CqConsumer) {
            let layout = CqLayout::new(entries).unwrap();
            let (_fd, map) = Mapping::create(c"vrdma-test", layout.bytes).unwrap();
            (map, CqProducer::new(&layout), CqConsumer::new(&layout))
        }

        #[test]
        fn entries_come_out_as_they_went_in() {
            let (map, mut producer, mut consumer) = queue(4);
            assert_eq!(consumer.peek(&map, 0), None);
            for round in 0..1000u64 {
                for n in 0..3 {
                    let entry = CompletionEntry { wr_id: round * 3 + n, qpn: 17, status: 5, ..CompletionEntry::default() };
                    producer.push(&map, entry).unwrap();
                }
                for n in 0..3u32 {
                    let entry = consumer.peek(&map, n).unwrap();
                    assert_eq!((entry.wr_id, entry.qpn, entry.status), (round * 3 + u64::from(n), 17, 5));
                }
                assert_eq!(consumer.peek(&map, 3), None);
                consumer.advance(&map, 3);
            }
        }

        #[test]
        fn a_full_ring_refuses_and_recovers() {
            let (map, mut producer, mut consumer) = queue(1);
            producer.push(&map, CompletionEntry::default()).unwrap();
            assert_eq!(producer.push(&map, CompletionEntry::default()), Err(PushError::Full));
            assert!(consumer.peek(&map, 0).is_some());
            consumer.advance(&map, 1);
            assert_eq!(consumer.peek(&map, 0), None);
            producer.push(&map, CompletionEntry::default()).unwrap();
        }

        #[test]
        fn indices_wrap() {
            let (map, mut producer, mut consumer) = queue(2);
            producer.produced = u32::MAX;
            producer.consumed = u32::MAX;
            consumer.consumed = u32::MAX;
            for wr_id in 0..4 {
                producer.push(&map, CompletionEntry { wr_id, ..CompletionEntry::default() }).unwrap();
                assert_eq!(consumer.peek(&map, 0).unwrap().wr_id, wr_id);
                consumer.advance(&map, 1);
            }
        }

        #[test]
        fn an_impossible_consumer_index_is_seen() {
            let (map, mut producer, _) = queue(2);
            producer.push(&map, CompletionEntry::default()).unwrap();
            producer.push(&map, CompletionEntry::default()).unwrap();
            map.u32_at(CqLayout::CONSUMER).store(3, Ordering::Relaxed);
            let error = producer.push(&map, CompletionEntry::default()).unwrap_err();
            assert_eq!(error, PushError::Corrupt { consumer: 3, producer: 2 });
        }

        #[test]
        fn unread_completions_move_to_another_ring() {
            let (map, mut producer, mut consumer) = queue(4);
            for wr_id in 0..4 {
                producer.push(&map, CompletionEntry { wr_id, ..CompletionEntry::default() }).unwrap();
            }
            consumer.advance(&map, 2);
            producer.push(&map, CompletionEntry { wr_id: 4, ..CompletionEntry::default() }).unwrap();
            consumer.arm(&map, false);

            let small = CqLayout::new(2).unwrap();
            let (_fd, to) = Mapping::create(c"vrdma-test", small.bytes).unwrap();
            assert_eq!(producer.move_to(&map, &to, &small).unwrap_err(), PushError::Full);

            let large = CqLayout::new(8).unwrap();
            let (_fd, to) = Mapping::create(c"vrdma-test", large.bytes).unwrap();
            let mut moved = producer.move_to(&map, &to, &large).unwrap();
            let mut reader = CqConsumer::new(&large);
            assert!(moved.take_arm(&to, false), "the wish for an event moves too");
            moved.push(&to, CompletionEntry { wr_id: 5, ..CompletionEntry::default() }).unwrap();
            for wr_id in 2..6 {
                assert_eq!(reader.peek(&to, 0).unwrap().wr_id, wr_id);
                reader.advance(&to, 1);
            }
            assert_eq!(reader.peek(&to, 0), None);

            map.u32_at(CqLayout::CONSUMER).store(99, Ordering::Relaxed);
            assert_eq!(producer.move_to(&map, &to, &large).unwrap_err(), PushError::Corrupt { consumer: 99, producer: 5 });
        }

        #[test]
        fn one_event_per_arming() {
            let (map, producer, consumer) = queue(2);
            assert!(!producer.take_arm(&map, true));
            consumer.arm(&map, true);
            assert!(!producer.take_arm(&map, false));
            assert!(producer.take_arm(&map, true));
            assert!(!producer.take_arm(&map, true));
            consumer.arm(&map, false);
            consumer.arm(&map, true);
            assert!(producer.take_arm(&map, false), "the stronger wish stays");
        }
    }
}
