//! The output queue of one port: finite, with marks for congestion, and with trimming if the switch can do that.
//!
//! Packets without payload may have a queue of their own that goes first; trimmed packets always go there. So that neither
//! starves, a data packet goes after ten of them.

use crate::packet::{NONE, Packet, Pool};
use roce::rng::Rng;

/// Packets of the control queue in a row while data waits.
const CONTROL_RUN: u8 = 10;

/// What all queues of a fabric are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueRules {
    /// Bytes that the data queue holds, and as many the control queue.
    pub limit: u32,
    /// Bytes in the data queue from which packets may be marked, and from which all are: in between the probability grows
    /// evenly.
    pub mark: Option<(u32, u32)>,
    /// Whether data packets over the limit are cut to their headers instead of dropped.
    pub trim: bool,
    /// Whether packets without payload have a queue of their own that goes first.
    pub control_first: bool,
}

/// What became of a packet that was offered to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is queued.
    Queued,
    /// It was cut to its headers and is queued.
    Trimmed,
    /// There was no room.
    Full,
}

/// Packets in the order of their coming: a list through the pool.
#[derive(Clone, Copy, Debug)]
struct Fifo {
    head: u32,
    tail: u32,
    bytes: u32,
}

impl Fifo {
    const EMPTY: Fifo = Fifo { head: NONE, tail: NONE, bytes: 0 };

    fn push(&mut self, pool: &mut Pool, id: u32) {
        pool[id].next = NONE;
        match self.tail {
            NONE => self.head = id,
            tail => pool[tail].next = id,
        }
        self.tail = id;
        self.bytes += pool[id].frame_len;
    }

    fn pop(&mut self, pool: &Pool) -> Option<u32> {
        let id = self.head;
        if id == NONE {
            return None;
        }
        let packet = &pool[id];
        self.head = packet.next;
        self.bytes -= packet.frame_len;
        if self.head == NONE {
            self.tail = NONE;
        }
        Some(id)
    }
}

/// The packets that wait for a port.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    data: Fifo,
    control: Fifo,
    /// Control packets since the last data packet.
    run: u8,
    /// Most bytes that were ever in the data queue.
    pub deepest: u32,
}

impl Default for Queue {
    fn default() -> Self {
        Queue { data: Fifo::EMPTY, control: Fifo::EMPTY, run: 0, deepest: 0 }
    }
}

impl Queue {
    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.data.head == NONE && self.control.head == NONE
    }

    /// Bytes of data packets that wait.
    pub fn bytes(&self) -> u32 {
        self.data.bytes
    }

    /// Takes a packet in, if there is room. One that finds none stays with the caller.
    pub fn offer(&mut self, pool: &mut Pool, id: u32, rules: &QueueRules, ipv6: bool) -> Admission {
        let packet = &mut pool[id];
        let goes_first = packet.trimmed || rules.control_first && packet.is_control;
        if !goes_first {
            if self.data.bytes.saturating_add(packet.frame_len) <= rules.limit {
                self.data.push(pool, id);
                self.deepest = self.deepest.max(self.data.bytes);
                return Admission::Queued;
            }
            if !rules.trim || packet.is_control {
                return Admission::Full;
            }
        }
        let cut = |packet: &Packet| !packet.trimmed && !packet.is_control;
        let trimmed_len = crate::packet::frame_len(ipv6, packet.header_len as usize);
        let len = if cut(packet) { trimmed_len } else { packet.frame_len };
        if self.control.bytes.saturating_add(len) > rules.limit {
            return Admission::Full;
        }
        let admission = if cut(packet) { Admission::Trimmed } else { Admission::Queued };
        if admission == Admission::Trimmed {
            packet.trim(ipv6);
        }
        self.control.push(pool, id);
        admission
    }

    /// Takes the next packet out, and marks it if the queue that it leaves is long.
    pub fn next(&mut self, pool: &mut Pool, rules: &QueueRules, rng: &mut Rng) -> Option<u32> {
        let data_waits = self.data.head != NONE;
        if self.control.head != NONE && (self.run < CONTROL_RUN || !data_waits) {
            self.run = self.run.saturating_add(1);
            return self.control.pop(pool);
        }
        self.run = 0;
        let depth = self.data.bytes;
        let id = self.data.pop(pool)?;
        if let Some((low, high)) = rules.mark
            && depth > low
            && pool[id].ecn_capable
        {
            let over = u64::from(depth.min(high) - low);
            let span = u64::from(high - low);
            pool[id].marked |= over >= span || rng.below(span) < over;
        }
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};
    use std::collections::VecDeque;

    const RULES: QueueRules = QueueRules { limit: 10_000, mark: None, trim: false, control_first: false };
    const HEADER: u32 = 12;

    fn packet(pool: &mut Pool, len: usize, is_control: bool) -> u32 {
        let id = pool.take();
        let packet = &mut pool[id];
        packet.fill(&vec![0; len], HEADER as usize, 0);
        packet.header_len = HEADER;
        packet.frame_len = crate::packet::frame_len(false, len);
        (packet.is_control, packet.trimmed, packet.marked, packet.ecn_capable) = (is_control, false, false, true);
        id
    }

    /// The queue as one would write it down: two lists of what is in them.
    #[derive(Default)]
    struct Model {
        data: VecDeque<(u32, u32)>,
        control: VecDeque<(u32, u32)>,
        run: u8,
    }

    fn sum(list: &VecDeque<(u32, u32)>) -> u32 {
        list.iter().map(|(_, len)| len).sum()
    }

    impl Model {
        fn offer(&mut self, id: u32, len: u32, is_control: bool, rules: &QueueRules) -> Admission {
            if !(is_control && rules.control_first) {
                if sum(&self.data) + len <= rules.limit {
                    self.data.push_back((id, len));
                    return Admission::Queued;
                }
                if is_control || !rules.trim {
                    return Admission::Full;
                }
            }
            let len = if is_control { len } else { 64 };
            if sum(&self.control) + len > rules.limit {
                return Admission::Full;
            }
            self.control.push_back((id, len));
            if is_control { Admission::Queued } else { Admission::Trimmed }
        }

        fn next(&mut self) -> Option<u32> {
            if !self.control.is_empty() && (self.run < 10 || self.data.is_empty()) {
                self.run = self.run.saturating_add(1);
                return self.control.pop_front().map(|(id, _)| id);
            }
            self.run = 0;
            self.data.pop_front().map(|(id, _)| id)
        }
    }

    proptest! {
        #[test]
        fn packets_go_as_in_two_lists(
            trim: bool,
            control_first: bool,
            limit in 100_u32..12_000,
            steps in prop::collection::vec((any::<bool>(), 16_usize..4200, any::<bool>()), 1..300),
        ) {
            let rules = QueueRules { limit, trim, control_first, mark: None };
            let (mut pool, mut queue, mut model) = (Pool::default(), Queue::default(), Model::default());
            let mut rng = Rng::new(1);
            for (arrives, len, is_control) in steps {
                if arrives {
                    let len = if is_control { 20 } else { len.next_multiple_of(4) };
                    let id = packet(&mut pool, len, is_control);
                    let wanted = model.offer(id, crate::packet::frame_len(false, len), is_control, &rules);
                    prop_assert_eq!(queue.offer(&mut pool, id, &rules, false), wanted);
                    prop_assert_eq!(pool[id].trimmed, wanted == Admission::Trimmed);
                } else {
                    prop_assert_eq!(queue.next(&mut pool, &rules, &mut rng), model.next());
                }
                prop_assert_eq!(queue.bytes(), sum(&model.data));
                prop_assert_eq!(queue.is_empty(), model.data.is_empty() && model.control.is_empty());
                prop_assert!(queue.deepest <= limit);
            }
        }
    }

    #[test]
    fn marks_begin_at_the_low_threshold_and_are_certain_at_the_high_one() {
        let rules = QueueRules { limit: 1_000_000, mark: Some((2_000, 6_000)), ..RULES };
        let (mut pool, mut queue, mut rng) = (Pool::default(), Queue::default(), Rng::new(1));
        let mut between = [0, 0];
        for _ in 0..500 {
            for _ in 0..9 {
                let id = packet(&mut pool, 954, false);
                assert_eq!(queue.offer(&mut pool, id, &rules, false), Admission::Queued);
            }
            for _ in 0..9 {
                let depth = queue.bytes();
                let id = queue.next(&mut pool, &rules, &mut rng).unwrap();
                match depth {
                    0..=2_000 => assert!(!pool[id].marked),
                    6_000.. => assert!(pool[id].marked),
                    _ => between[usize::from(pool[id].marked)] += 1,
                }
            }
        }
        // Depths of 3000, 4000 and 5000 bytes: a quarter, a half, three quarters.
        let share = f64::from(between[1]) / f64::from(between[0] + between[1]);
        assert!((0.4..0.6).contains(&share), "{between:?}");
    }

    #[test]
    fn senders_that_do_not_know_marks_get_none() {
        let rules = QueueRules { mark: Some((0, 1)), ..RULES };
        let (mut pool, mut queue) = (Pool::default(), Queue::default());
        let id = packet(&mut pool, 1000, false);
        pool[id].ecn_capable = false;
        queue.offer(&mut pool, id, &rules, false);
        queue.next(&mut pool, &rules, &mut Rng::new(1));
        assert!(!pool[id].marked);
    }
}
