//! The memory of all hosts: each has one space that it sends from and one that it receives into.
//!
//! At scale there are no bytes. What is read from a source is a tag that says which space and offset it is, and zeros behind it;
//! what arrives is compared with the tag that belongs there. In small fabrics there are bytes, a pattern of their own for every
//! space. In both, every range of a sink is written exactly once, inside the transfer that it belongs to.

use crate::checker::{Checker, Violation};
use emtt::{MemId, Owner, Segment};
use rnic::{AtomicOp, Dma, DmaError, Piece};
use roce::rng::mix;

/// Bytes of a tag. Of a shorter piece it is the first ones.
pub const TAG_LEN: usize = 16;

/// The space that a host sends from.
pub fn source_of(host: u32) -> MemId {
    MemId(host * 2)
}

/// The space that a host receives into.
pub fn sink_of(host: u32) -> MemId {
    MemId(host * 2 + 1)
}

/// Whether packets carry bytes or what stands for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// A tag, and zeros.
    Synthetic,
    /// Bytes.
    Real,
}

/// What is to arrive in a range of a sink.
#[derive(Clone, Debug)]
struct Expected {
    transfer: u32,
    start: u64,
    len: u64,
    /// Where it comes from.
    from: (MemId, u64),
    placed: Ranges,
}

/// Disjoint ranges in ascending order, merged where they touch.
#[derive(Clone, Debug, Default)]
struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Adds a range; false if a part of it was there.
    fn add(&mut self, start: u64, end: u64) -> bool {
        let next = self.0.partition_point(|&(_, before)| before < start);
        // The first range that ends at or after `start`.
        match self.0.get(next).copied() {
            Some((_, e)) if e == start => {
                let limit = self.0.get(next + 1).map_or(u64::MAX, |&(s, _)| s);
                if limit < end {
                    return false;
                }
                self.0[next].1 = end;
                if limit == end {
                    self.0[next].1 = self.0[next + 1].1;
                    self.0.remove(next + 1);
                }
                true
            }
            Some((s, _)) if s < end => false,
            Some((s, _)) if s == end => {
                self.0[next].0 = start;
                true
            }
            _ => {
                self.0.insert(next, (start, end));
                true
            }
        }
    }

    fn is_all_of(&self, start: u64, len: u64) -> bool {
        len == 0 || self.0 == [(start, start + len)]
    }
}

#[derive(Clone, Debug, Default)]
struct Space {
    len: u64,
    bytes: Vec<u8>,
    expected: Vec<Expected>,
}

/// All memory.
#[derive(Debug)]
pub struct Memory {
    payload: Payload,
    spaces: Vec<Space>,
    /// Of each transfer: its sink, and its index among what is expected there.
    transfers: Vec<(MemId, usize)>,
    /// What was written wrongly.
    pub checker: Checker,
}

impl Memory {
    /// Two empty spaces for each of so many hosts.
    pub fn new(payload: Payload, hosts: u32) -> Memory {
        let spaces = vec![Space::default(); hosts as usize * 2];
        Memory { payload, spaces, transfers: Vec::new(), checker: Checker::default() }
    }

    /// What packets carry.
    pub fn payload(&self) -> Payload {
        self.payload
    }

    /// Makes room for the next transfer, and returns the offsets of its first byte in source and sink.
    pub fn add_transfer(&mut self, src: u32, dst: u32, len: u32) -> (u64, u64) {
        // The gap would show a byte written behind the end.
        const GAP: u64 = 64;
        let (source, sink) = (source_of(src), sink_of(dst));
        let len = u64::from(len);
        let mut room = |space: MemId| {
            let space = &mut self.spaces[space.0 as usize];
            let start = space.len;
            space.len = (start + len).next_multiple_of(GAP) + GAP;
            start
        };
        let (from, start) = (room(source), room(sink));
        let expected = &mut self.spaces[sink.0 as usize].expected;
        let transfer = self.transfers.len() as u32;
        self.transfers.push((sink, expected.len()));
        expected.push(Expected { transfer, start, len, from: (source, from), placed: Ranges::default() });
        (from, start)
    }

    /// Bytes of all spaces together.
    pub fn total(&self) -> u64 {
        self.spaces.iter().map(|space| space.len).sum()
    }

    /// Fills the spaces, if there are bytes; after the last transfer was added.
    pub fn fill(&mut self) {
        if self.payload == Payload::Synthetic {
            return;
        }
        for (n, space) in self.spaces.iter_mut().enumerate() {
            space.bytes.resize(space.len as usize, 0);
            if n % 2 == 0 {
                for (word, bytes) in space.bytes.chunks_mut(8).enumerate() {
                    bytes.copy_from_slice(&pattern(MemId(n as u32), word as u64)[..bytes.len()]);
                }
            }
        }
    }

    /// All of a space, as a segment; at least one byte, so that it can be registered.
    pub fn segment(&self, space: MemId) -> Segment {
        Segment { owner: Owner::Host(space), addr: 0, len: self.spaces[space.0 as usize].len.max(1) }
    }

    /// Notes it if not all bytes of a transfer are in their place; it was just said that they are.
    pub fn check_complete(&mut self, transfer: u32) {
        let (sink, index) = self.transfers[transfer as usize];
        let space = &self.spaces[sink.0 as usize];
        let expected = &space.expected[index];
        if !expected.placed.is_all_of(expected.start, expected.len) {
            self.checker.note(Violation::Incomplete { transfer });
            return;
        }
        if self.payload == Payload::Real {
            let (from, start) = (&self.spaces[expected.from.0.0 as usize], expected.from.1 as usize);
            let len = expected.len as usize;
            let (wanted, got) = (&from.bytes[start..start + len], &space.bytes[expected.start as usize..][..len]);
            if let Some(at) = wanted.iter().zip(got).position(|(a, b)| a != b) {
                self.checker.note(Violation::WrongBytes { transfer, offset: at as u64 });
            }
        }
    }

    fn space(&mut self, segment: Segment) -> Result<&mut Space, DmaError> {
        let MemId(id) = segment.owner.space();
        let space = self.spaces.get_mut(id as usize).ok_or(DmaError(segment))?;
        // A space that nobody uses is registered with one byte.
        if segment.addr + segment.len > space.len { Err(DmaError(segment)) } else { Ok(space) }
    }

    fn place(&mut self, segment: Segment, bytes: &[u8]) -> Result<(), DmaError> {
        let payload = self.payload;
        let id = segment.owner.space();
        let space = self.space(segment)?;
        if payload == Payload::Real {
            space.bytes[segment.addr as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        let (start, end) = (segment.addr, segment.addr + segment.len);
        let index = space.expected.partition_point(|expected| expected.start <= start);
        let violation = match space.expected[..index].last_mut().filter(|e| end <= e.start + e.len) {
            None => Some(Violation::Outside { space: id.0, offset: start, len: segment.len }),
            Some(expected) => {
                let (transfer, offset) = (expected.transfer, start - expected.start);
                let tag = tag(expected.from.0, expected.from.1 + offset);
                let compared = bytes.len().min(TAG_LEN);
                if payload == Payload::Synthetic && bytes[..compared] != tag[..compared] {
                    Some(Violation::WrongBytes { transfer, offset })
                } else if !expected.placed.add(start, end) {
                    Some(Violation::PlacedTwice { transfer, offset })
                } else {
                    None
                }
            }
        };
        if let Some(violation) = violation {
            self.checker.note(violation);
        }
        Ok(())
    }
}

impl Dma for Memory {
    fn gather(&mut self, pieces: &[Piece], buf: &mut [u8]) -> Result<(), DmaError> {
        let payload = self.payload;
        for &Piece { segment, at } in pieces {
            let id = segment.owner.space();
            let space = self.space(segment)?;
            let (start, len) = (segment.addr as usize, segment.len as usize);
            let target = &mut buf[at..at + len];
            match payload {
                Payload::Real => target.copy_from_slice(&space.bytes[start..start + len]),
                Payload::Synthetic => {
                    let (head, rest) = target.split_at_mut(len.min(TAG_LEN));
                    head.copy_from_slice(&tag(id, segment.addr)[..head.len()]);
                    rest.fill(0);
                }
            }
        }
        Ok(())
    }

    fn scatter(&mut self, pieces: &[Piece], buf: &[u8]) -> Result<(), DmaError> {
        pieces.iter().try_for_each(|piece| self.place(piece.segment, &buf[piece.at..][..piece.segment.len as usize]))
    }

    /// Never called: a host has one device, so that nothing is local.
    fn copy(&mut self, from: &[Segment], _to: &[Segment]) -> Result<(), DmaError> {
        from.first().map_or(Ok(()), |&segment| Err(DmaError(segment)))
    }

    /// No workload has atomics.
    fn atomic(&mut self, at: Segment, _op: AtomicOp) -> Result<u64, DmaError> {
        Err(DmaError(at))
    }
}

/// What stands for the bytes of a space from an offset on.
fn tag(space: MemId, offset: u64) -> [u8; TAG_LEN] {
    const MARK: u64 = 0x7AB5_FAB1 << 32;
    let mut tag = [0; TAG_LEN];
    tag[..8].copy_from_slice(&(MARK | u64::from(space.0)).to_le_bytes());
    tag[8..].copy_from_slice(&offset.to_le_bytes());
    tag
}

/// Eight bytes of a source.
fn pattern(space: MemId, word: u64) -> [u8; 8] {
    mix(u64::from(space.0) << 40 ^ word).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_are_as_marks_on_bytes(ranges in prop::collection::vec((0_u64..60, 1_u64..12), 1..40)) {
            let (mut set, mut marks) = (Ranges::default(), [false; 80]);
            for (start, len) in ranges {
                let bytes = start as usize..(start + len) as usize;
                let is_new = !marks[bytes.clone()].contains(&true);
                prop_assert_eq!(set.add(start, start + len), is_new);
                if is_new {
                    marks[bytes].fill(true);
                }
                let touching = set.0.windows(2).any(|pair| pair[0].1 >= pair[1].0);
                prop_assert!(!touching, "{:?}", set);
                let total: u64 = set.0.iter().map(|(start, end)| end - start).sum();
                prop_assert_eq!(total as usize, marks.iter().filter(|mark| **mark).count());
            }
        }
    }

    fn one_transfer(payload: Payload) -> (Memory, u64, u64) {
        let mut memory = Memory::new(payload, 2);
        memory.add_transfer(0, 1, 100);
        let (from, to) = memory.add_transfer(0, 1, 5000);
        memory.fill();
        (memory, from, to)
    }

    fn carry(memory: &mut Memory, from: u64, to: u64, len: u64) {
        let piece = |space, addr| Piece { segment: Segment { owner: Owner::Host(space), addr, len }, at: 3 };
        let mut buf = vec![7; len as usize + 3];
        memory.gather(&[piece(source_of(0), from)], &mut buf).unwrap();
        memory.scatter(&[piece(sink_of(1), to)], &buf).unwrap();
    }

    #[test]
    fn bytes_in_their_place_are_no_violation() {
        for payload in [Payload::Synthetic, Payload::Real] {
            let (mut memory, from, to) = one_transfer(payload);
            for (offset, len) in [(4096, 904), (0, 1000), (1000, 3096)] {
                carry(&mut memory, from + offset, to + offset, len);
            }
            memory.check_complete(1);
            assert_eq!(memory.checker.violations(), []);
            memory.check_complete(0);
            assert_eq!(memory.checker.violations(), [Violation::Incomplete { transfer: 0 }]);
        }
    }

    #[test]
    fn each_fault_is_found() {
        let find = |payload, from_by: u64, to_by: u64, len: u64| {
            let (mut memory, from, to) = one_transfer(payload);
            carry(&mut memory, from + from_by, to + to_by, len);
            if len == 5000 {
                memory.check_complete(1);
            }
            memory.checker.violations().first().cloned()
        };
        for payload in [Payload::Synthetic, Payload::Real] {
            let outside = find(payload, 0, 1, 5000);
            assert!(matches!(outside, Some(Violation::Outside { len: 5000, .. })), "{outside:?}");
            assert_eq!(find(payload, 0, 0, 5000), None);
            let (mut memory, from, to) = one_transfer(payload);
            carry(&mut memory, from, to, 5000);
            carry(&mut memory, from + 9, to + 9, 20);
            assert_eq!(memory.checker.violations(), [Violation::PlacedTwice { transfer: 1, offset: 9 }]);
        }
        let wrong = Some(Violation::WrongBytes { transfer: 1, offset: 0 });
        assert_eq!(find(Payload::Synthetic, 8, 0, 100), wrong);
        let (mut memory, from, to) = one_transfer(Payload::Real);
        carry(&mut memory, from + 8, to, 4992);
        carry(&mut memory, from, to + 4992, 8);
        memory.check_complete(1);
        assert_eq!(memory.checker.violations().first().cloned(), wrong);
    }
}
