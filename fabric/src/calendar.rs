//! The calendar: events in the order of their time, and of their making where times are equal.
//!
//! A wheel of buckets, each 1 ns wide, holds the events of the next 16 µs as lists through one slab; a bitmap finds the next
//! bucket in use. A bucket is sorted when its turn comes. Events further away wait in a heap; those are few, as they are the
//! timers of hosts. An event so costs a few memory accesses, however many there are. Never: what an event means.

use crate::time::Time;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A bucket's width in picoseconds, as a power of two.
const WIDTH_BITS: u32 = 10;
/// Buckets of the wheel; a power of two, and a multiple of 64 x 64.
const BUCKETS: usize = 1 << 14;
/// End of a list.
const NONE: u32 = u32::MAX;

/// Order of events.
type Key = (Time, u64);

#[derive(Clone, Copy, Debug)]
struct Entry<E> {
    key: Key,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

#[derive(Clone, Copy, Debug)]
struct Node<E> {
    entry: Entry<E>,
    next: u32,
}

/// Events that are to come.
#[derive(Debug)]
pub struct Calendar<E> {
    now: Time,
    /// Events made so far.
    made: u64,
    len: usize,
    /// Number of the bucket whose events are in `due`.
    bucket: u64,
    /// Events of the current bucket, the next one last.
    due: Vec<Entry<E>>,
    /// First node of each bucket's list.
    heads: Vec<u32>,
    nodes: Vec<Node<E>>,
    free: u32,
    /// A bit per bucket, and a bit per word of those.
    used: [u64; BUCKETS / 64],
    used_words: [u64; BUCKETS / 64 / 64],
    far: BinaryHeap<Reverse<Entry<E>>>,
}

impl<E: Copy> Default for Calendar<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E: Copy> Calendar<E> {
    /// An empty calendar, at the start of time.
    pub fn new() -> Self {
        Calendar {
            now: Time::ZERO,
            made: 0,
            len: 0,
            bucket: 0,
            due: Vec::new(),
            heads: vec![NONE; BUCKETS],
            nodes: Vec::new(),
            free: NONE,
            used: [0; BUCKETS / 64],
            used_words: [0; BUCKETS / 64 / 64],
            far: BinaryHeap::new(),
        }
    }

    /// The time of the event that was taken last.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Events that are to come.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is to come.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Enters an event.
    ///
    /// # Panics
    /// If `at` has passed.
    #[inline]
    pub fn add(&mut self, at: Time, event: E) {
        assert!(at >= self.now, "an event at {at:?} is entered at {:?}", self.now);
        let entry = Entry { key: (at, self.made), event };
        self.made += 1;
        self.len += 1;
        let bucket = at.ps() >> WIDTH_BITS;
        if bucket <= self.bucket {
            let place = self.due.partition_point(|other| other.key > entry.key);
            self.due.insert(place, entry);
        } else if bucket - self.bucket < BUCKETS as u64 {
            self.link(bucket, entry);
        } else {
            self.far.push(Reverse(entry));
        }
    }

    /// Takes the next event.
    #[inline]
    pub fn take(&mut self) -> Option<(Time, E)> {
        if self.due.is_empty() {
            self.turn()?;
        }
        let entry = self.due.pop()?;
        self.len -= 1;
        self.now = entry.key.0;
        Some((self.now, entry.event))
    }

    #[inline]
    fn link(&mut self, bucket: u64, entry: Entry<E>) {
        let slot = bucket as usize % BUCKETS;
        let node = Node { entry, next: self.heads[slot] };
        let index = match self.free {
            NONE => {
                self.nodes.push(node);
                // Every event has an object of the simulation behind it, and these are counted in 32 bits.
                u32::try_from(self.nodes.len() - 1).expect("fewer than 2^32 events")
            }
            free => {
                self.free = std::mem::replace(&mut self.nodes[free as usize], node).next;
                free
            }
        };
        self.heads[slot] = index;
        self.used[slot / 64] |= 1 << (slot % 64);
        self.used_words[slot / 4096] |= 1 << (slot / 64 % 64);
    }

    /// Makes the next bucket that has events the current one.
    fn turn(&mut self) -> Option<()> {
        let near = self.next_used();
        let far = self.far.peek().map(|Reverse(entry)| entry.key.0.ps() >> WIDTH_BITS);
        self.bucket = match (near, far) {
            (Some(near), Some(far)) => near.min(far),
            (near, far) => near.or(far)?,
        };
        while let Some(Reverse(entry)) = self.far.peek() {
            let bucket = entry.key.0.ps() >> WIDTH_BITS;
            if bucket - self.bucket >= BUCKETS as u64 {
                break;
            }
            let Some(Reverse(entry)) = self.far.pop() else { break };
            self.link(bucket, entry);
        }
        let slot = self.bucket as usize % BUCKETS;
        let mut index = std::mem::replace(&mut self.heads[slot], NONE);
        while index != NONE {
            let node = &mut self.nodes[index as usize];
            self.due.push(node.entry);
            let next = std::mem::replace(&mut node.next, self.free);
            self.free = index;
            index = next;
        }
        self.used[slot / 64] &= !(1 << (slot % 64));
        if self.used[slot / 64] == 0 {
            self.used_words[slot / 4096] &= !(1 << (slot / 64 % 64));
        }
        self.due.sort_unstable_by_key(|entry| Reverse(entry.key));
        Some(())
    }

    /// Number of the first bucket after the current one that has events in the wheel.
    fn next_used(&self) -> Option<u64> {
        let start = (self.bucket as usize + 1) % BUCKETS;
        let slot = self.used_from(start).or_else(|| self.used_from(0))?;
        let ahead = (slot + BUCKETS - start) % BUCKETS;
        Some(self.bucket + 1 + ahead as u64)
    }

    /// The first slot in use from `start` to the end of the wheel.
    fn used_from(&self, start: usize) -> Option<usize> {
        let word = start / 64;
        let rest = self.used[word] & (u64::MAX << (start % 64));
        if rest != 0 {
            return Some(word * 64 + rest.trailing_zeros() as usize);
        }
        let mut block = word / 64;
        let mut words = self.used_words[block] & (u64::MAX << (word % 64)) & !(1 << (word % 64));
        while words == 0 {
            block += 1;
            words = *self.used_words.get(block)?;
        }
        let word = block * 64 + words.trailing_zeros() as usize;
        Some(word * 64 + self.used[word].trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Enters events at these delays, each followed by taking so many, in both the calendar and an ordered map.
    fn same_as_a_map(steps: &[(u64, u8)]) {
        let (mut calendar, mut map) = (Calendar::new(), BTreeMap::new());
        let mut now = Time::ZERO;
        for (n, &(delay, takes)) in steps.iter().enumerate() {
            let at = now.after(delay);
            calendar.add(at, n);
            map.insert((at, n), n);
            for _ in 0..takes {
                let wanted = map.pop_first().map(|((at, _), n)| (at, n));
                now = wanted.map_or(now, |(at, _)| at);
                assert_eq!(calendar.take(), wanted);
            }
            assert_eq!(calendar.len(), map.len());
        }
        for ((at, _), n) in map {
            assert_eq!(calendar.take(), Some((at, n)));
        }
        assert_eq!(calendar.take(), None);
        assert!(calendar.is_empty());
    }

    proptest! {
        #[test]
        fn events_come_as_from_an_ordered_map(steps in prop::collection::vec(
            (prop_oneof![Just(0), 0..3_000_u64, 0..20_000_000_u64, 0..100_000_000_000_u64], 0..4_u8), 0..400)) {
            same_as_a_map(&steps);
        }
    }

    #[test]
    fn events_of_one_instant_come_in_the_order_of_their_making() {
        same_as_a_map(&[(0, 0), (0, 0), (0, 1), (0, 2), (1024, 0), (1024, 0), (0, 0), (1023, 4)]);
    }

    #[test]
    fn the_edges_of_the_wheel_are_no_edges_of_time() {
        let span = (BUCKETS as u64) << WIDTH_BITS;
        for delay in [span - 1025, span - 1024, span - 1, span, span + 1, span + 1024, 2 * span, 10 * span] {
            same_as_a_map(&[(delay, 0), (5, 1), (delay, 1), (delay, 0), (delay + 1, 2)]);
        }
    }

    #[test]
    #[should_panic(expected = "is entered at")]
    fn the_past_is_closed() {
        let mut calendar = Calendar::new();
        calendar.add(Time::from_ps(10), ());
        calendar.take();
        calendar.add(Time::from_ps(9), ());
    }
}
