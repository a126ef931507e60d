//! The send and receive rings of a queue pair: written by the client, read by the daemon.
//!
//! The client writes an entry, then stores the producer index with release; the daemon reads the index with acquire, once per
//! round, copies each entry once and checks the copy. Slots come back to the client through completions (their `queue_index`), so
//! there is no consumer index in shared memory. Owns the indices and these checks; whether a request makes sense is for the core.
//!
//! RESET: neither side rewinds its index. The daemon skips what it has not read ([`SendConsumer::skip_all`]), and the client counts
//! `queue_index` from the producer index that it had then.

use crate::control::QpCaps;
use crate::layout::{QpLayout, RecvEntry, SendEntry, Sge};
use crate::mapping::Mapping;
use core::ops::Range;
use core::sync::atomic::Ordering;

/// Bit of [`SendEntry::flags`]: the data lie in the entry.
pub const FLAG_INLINE: u8 = 8;

/// What the client wrote cannot be; the connection is to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Corrupt {
    /// More entries than the ring has.
    #[error("the ring of {depth} entries claims {pending} pending ones")]
    Index {
        /// Entries of the ring.
        depth: u32,
        /// Entries claimed.
        pending: u32,
    },
    /// More buffers than an entry has room for.
    #[error("an entry names {num_sge} buffers where {max} fit")]
    Buffers {
        /// Buffers named.
        num_sge: u32,
        /// Room.
        max: u32,
    },
    /// More inline bytes than an entry has room for.
    #[error("an entry holds {inline_len} inline bytes where {max} fit")]
    Inline {
        /// Bytes claimed.
        inline_len: u32,
        /// Room.
        max: u32,
    },
}

/// Which of the two rings.
#[derive(Clone, Copy, Debug)]
struct Ring {
    depth: u32,
    stride: usize,
    offset: usize,
    producer_at: usize,
}

impl Ring {
    fn send(layout: &QpLayout) -> Ring {
        let producer_at = QpLayout::SQ_PRODUCER;
        Ring { depth: layout.sq_depth, stride: layout.sq_stride, offset: layout.sq_offset, producer_at }
    }

    fn recv(layout: &QpLayout) -> Ring {
        let producer_at = QpLayout::RQ_PRODUCER;
        Ring { depth: layout.rq_depth, stride: layout.rq_stride, offset: layout.rq_offset, producer_at }
    }

    /// Offset of the entry with this index. The ring has a depth, or no index would have passed the checks.
    fn entry(&self, index: u32) -> usize {
        self.offset + (index & (self.depth - 1)) as usize * self.stride
    }
}

/// The client's end of either ring. The caller keeps count of free slots: an entry must not be written before the completion of
/// the one `depth` before it.
#[derive(Debug)]
pub struct RingProducer {
    ring: Ring,
    produced: u32,
}

impl RingProducer {
    /// The send ring of a new queue pair.
    pub fn send(layout: &QpLayout) -> RingProducer {
        RingProducer { ring: Ring::send(layout), produced: 0 }
    }

    /// The receive ring of a new queue pair.
    pub fn recv(layout: &QpLayout) -> RingProducer {
        RingProducer { ring: Ring::recv(layout), produced: 0 }
    }

    /// Entries written so far, modulo 2^32, including those not yet published.
    pub fn produced(&self) -> u32 {
        self.produced
    }

    /// Entries of the ring: a power of two, or zero.
    pub fn depth(&self) -> u32 {
        self.ring.depth
    }

    /// Writes a send entry and its buffers. An inline entry has none, and its bytes go to the offset returned, at most
    /// as many as the queue pair's `max_inline_data`.
    ///
    /// # Panics
    /// When the buffers do not fit the mapping, or the ring has no entries.
    pub fn push_send(&mut self, map: &Mapping, head: &SendEntry, sges: impl Iterator<Item = Sge>) -> usize {
        self.push(map, head, size_of::<SendEntry>(), sges)
    }

    /// Writes a receive entry and its buffers.
    ///
    /// # Panics
    /// As [`Self::push_send`].
    pub fn push_recv(&mut self, map: &Mapping, head: &RecvEntry, sges: impl Iterator<Item = Sge>) {
        self.push(map, head, size_of::<RecvEntry>(), sges);
    }

    fn push<H: crate::mapping::Pod>(&mut self, map: &Mapping, head: &H, len: usize, sges: impl Iterator<Item = Sge>) -> usize {
        assert!(self.ring.depth > 0, "an entry for a ring without entries");
        let at = self.ring.entry(self.produced);
        map.write(at, head);
        for (n, sge) in sges.enumerate() {
            map.write(at + len + n * size_of::<Sge>(), &sge);
        }
        self.produced = self.produced.wrapping_add(1);
        at + len
    }

    /// Takes back the entries from index `start` on, none of which was published.
    pub fn rewind(&mut self, start: u32) {
        self.produced = start;
    }

    /// Shows the daemon all entries written so far. The doorbell is rung after this.
    pub fn publish(&self, map: &Mapping) {
        map.u32_at(self.ring.producer_at).store(self.produced, Ordering::Release);
    }
}

/// The daemon's position in either ring.
#[derive(Debug)]
struct Cursor {
    ring: Ring,
    consumed: u32,
    end: u32,
}

impl Cursor {
    fn new(ring: Ring) -> Cursor {
        Cursor { ring, consumed: 0, end: 0 }
    }

    fn refresh(&mut self, map: &Mapping) -> Result<u32, Corrupt> {
        let end = map.u32_at(self.ring.producer_at).load(Ordering::Acquire);
        let pending = end.wrapping_sub(self.consumed);
        if pending > self.ring.depth {
            return Err(Corrupt::Index { depth: self.ring.depth, pending });
        }
        self.end = end;
        Ok(pending)
    }

    fn next(&mut self) -> Option<usize> {
        if self.consumed == self.end {
            return None;
        }
        let at = self.ring.entry(self.consumed);
        self.consumed = self.consumed.wrapping_add(1);
        Some(at)
    }

    fn skip_all(&mut self, map: &Mapping) {
        self.end = map.u32_at(self.ring.producer_at).load(Ordering::Acquire);
        self.consumed = self.end;
    }
}

/// A send entry, copied and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenSend {
    /// The head. `num_sge` buffers lie in the scratch that was handed in; it is 0 for inline data.
    pub entry: SendEntry,
    /// For inline data: where the bytes lie in the mapping. They stay there until the request completes.
    pub inline: Option<Range<usize>>,
}

/// The daemon's end of a send ring.
#[derive(Debug)]
pub struct SendConsumer {
    cursor: Cursor,
    max_sge: u32,
    max_inline: u32,
}

impl SendConsumer {
    /// For a new queue pair; `caps` are those that `layout` was computed from.
    pub fn new(layout: &QpLayout, caps: &QpCaps) -> SendConsumer {
        let cursor = Cursor::new(Ring::send(layout));
        SendConsumer { cursor, max_sge: caps.max_send_sge, max_inline: caps.max_inline_data }
    }

    /// Reads the producer index once: how many entries may be taken now.
    ///
    /// # Errors
    /// [`Corrupt::Index`].
    pub fn refresh(&mut self, map: &Mapping) -> Result<u32, Corrupt> {
        self.cursor.refresh(map)
    }

    /// Copies the next entry that the last [`Self::refresh`] saw, its buffers into `sges`.
    ///
    /// # Errors
    /// [`Corrupt::Buffers`], [`Corrupt::Inline`].
    pub fn take(&mut self, map: &Mapping, sges: &mut [Sge]) -> Result<Option<TakenSend>, Corrupt> {
        let Some(at) = self.cursor.next() else { return Ok(None) };
        let mut entry: SendEntry = map.read(at);
        let body = at + size_of::<SendEntry>();
        if entry.flags & FLAG_INLINE != 0 {
            if entry.inline_len > self.max_inline {
                return Err(Corrupt::Inline { inline_len: entry.inline_len, max: self.max_inline });
            }
            entry.num_sge = 0;
            return Ok(Some(TakenSend { inline: Some(body..body + entry.inline_len as usize), entry }));
        }
        copy_buffers(map, body, u32::from(entry.num_sge), self.max_sge, sges)?;
        Ok(Some(TakenSend { entry, inline: None }))
    }

    /// Drops all entries not yet taken: the queue pair was reset.
    pub fn skip_all(&mut self, map: &Mapping) {
        self.cursor.skip_all(map);
    }
}

/// The daemon's end of a receive ring.
#[derive(Debug)]
pub struct RecvConsumer {
    cursor: Cursor,
    max_sge: u32,
}

impl RecvConsumer {
    /// For a new queue pair; `caps` are those that `layout` was computed from.
    pub fn new(layout: &QpLayout, caps: &QpCaps) -> RecvConsumer {
        RecvConsumer { cursor: Cursor::new(Ring::recv(layout)), max_sge: caps.max_recv_sge }
    }

    /// Reads the producer index once: how many entries may be taken now.
    ///
    /// # Errors
    /// [`Corrupt::Index`].
    pub fn refresh(&mut self, map: &Mapping) -> Result<u32, Corrupt> {
        self.cursor.refresh(map)
    }

    /// Copies the next entry that the last [`Self::refresh`] saw, its buffers into `sges`.
    ///
    /// # Errors
    /// [`Corrupt::Buffers`].
    pub fn take(&mut self, map: &Mapping, sges: &mut [Sge]) -> Result<Option<RecvEntry>, Corrupt> {
        let Some(at) = self.cursor.next() else { return Ok(None) };
        let entry: RecvEntry = map.read(at);
        copy_buffers(map, at + size_of::<RecvEntry>(), entry.num_sge, self.max_sge, sges)?;
        Ok(Some(entry))
    }

    /// Drops all entries not yet taken: the queue pair was reset.
    pub fn skip_all(&mut self, map: &Mapping) {
        self.cursor.skip_all(map);
    }
}

fn copy_buffers(map: &Mapping, body: usize, num_sge: u32, max: u32, sges: &mut [Sge]) -> Result<(), Corrupt> {
    let max = max.min(u32::try_from(sges.len()).unwrap_or(u32::MAX));
    if num_sge > max {
        return Err(Corrupt::Buffers { num_sge, max });
    }
    for (n, sge) in sges.iter_mut().take(num_sge as usize).enumerate() {
        *sge = map.read(body + n * size_of::<Sge>());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPS: QpCaps = QpCaps { max_send_wr: 4, max_recv_wr: 2, max_send_sge: 2, max_recv_sge: 3, max_inline_data: 100 };

    fn pair() -> (Mapping, QpLayout) {
        let layout = QpLayout::new(&CAPS).unwrap();
        let (_fd, map) = Mapping::create(c"vrdma-test", layout.bytes).unwrap();
        (map, layout)
    }

    fn sge(n: u64) -> Sge {
        Sge { addr: n, length: 10, lkey: 3 }
    }

    #[test]
    fn sends_pass_with_buffers_and_inline_data() {
        let (map, layout) = pair();
        let (mut producer, mut consumer) = (RingProducer::send(&layout), SendConsumer::new(&layout, &CAPS));
        let mut sges = [Sge::default(); 16];
        for round in 0..100u64 {
            let head = SendEntry { wr_id: round, num_sge: 2, ..SendEntry::default() };
            producer.push_send(&map, &head, [sge(round), sge(round + 1)].into_iter());
            let inline = SendEntry { wr_id: round, flags: FLAG_INLINE, inline_len: 100, num_sge: 9, ..SendEntry::default() };
            let at = producer.push_send(&map, &inline, std::iter::empty());
            // SAFETY: the source is a live array elsewhere.
            unsafe { map.copy_in(crate::copy::Copier::new(), at, [7u8; 100].as_ptr(), 100) }.unwrap();
            assert_eq!(consumer.refresh(&map), Ok(0), "nothing is published yet");
            producer.publish(&map);
            assert_eq!(consumer.refresh(&map), Ok(2));
            let taken = consumer.take(&map, &mut sges).unwrap().unwrap();
            assert_eq!((taken.entry, &sges[..2]), (head, &[sge(round), sge(round + 1)][..]));
            let taken = consumer.take(&map, &mut sges).unwrap().unwrap();
            let mut bytes = [0; 100];
            map.copy_out(taken.inline.unwrap().start, &mut bytes);
            assert_eq!((taken.entry.num_sge, bytes), (0, [7; 100]));
            assert_eq!(consumer.take(&map, &mut sges), Ok(None));
        }
    }

    #[test]
    fn receives_pass() {
        let (map, layout) = pair();
        let (mut producer, mut consumer) = (RingProducer::recv(&layout), RecvConsumer::new(&layout, &CAPS));
        let mut sges = [Sge::default(); 3];
        for wr_id in 0..100 {
            let head = RecvEntry { wr_id, num_sge: 3, reserved: 0 };
            producer.push_recv(&map, &head, (0..3).map(sge));
            producer.publish(&map);
            assert_eq!(consumer.refresh(&map), Ok(1));
            assert_eq!(consumer.take(&map, &mut sges), Ok(Some(head)));
            assert_eq!(sges, [sge(0), sge(1), sge(2)]);
        }
    }

    #[test]
    fn impossible_entries_are_seen() {
        let (map, layout) = pair();
        let mut sges = [Sge::default(); 16];
        map.u32_at(QpLayout::SQ_PRODUCER).store(5, Ordering::Relaxed);
        let mut consumer = SendConsumer::new(&layout, &CAPS);
        assert_eq!(consumer.refresh(&map), Err(Corrupt::Index { depth: 4, pending: 5 }));

        let mut producer = RingProducer::send(&layout);
        producer.push_send(&map, &SendEntry { num_sge: 3, ..SendEntry::default() }, std::iter::empty());
        let inline = SendEntry { flags: FLAG_INLINE, inline_len: 101, ..SendEntry::default() };
        producer.push_send(&map, &inline, std::iter::empty());
        producer.publish(&map);
        assert_eq!(consumer.refresh(&map), Ok(2));
        assert_eq!(consumer.take(&map, &mut sges), Err(Corrupt::Buffers { num_sge: 3, max: 2 }));
        assert_eq!(consumer.take(&map, &mut sges), Err(Corrupt::Inline { inline_len: 101, max: 100 }));

        let mut producer = RingProducer::recv(&layout);
        producer.push_recv(&map, &RecvEntry { num_sge: u32::MAX, ..RecvEntry::default() }, std::iter::empty());
        producer.publish(&map);
        let mut consumer = RecvConsumer::new(&layout, &CAPS);
        assert_eq!(consumer.refresh(&map), Ok(1));
        assert_eq!(consumer.take(&map, &mut sges), Err(Corrupt::Buffers { num_sge: u32::MAX, max: 3 }));
    }

    #[test]
    fn a_ring_without_entries_accepts_none() {
        let layout = QpLayout::new(&QpCaps { max_recv_wr: 0, ..CAPS }).unwrap();
        let (_fd, map) = Mapping::create(c"vrdma-test", layout.bytes).unwrap();
        let mut consumer = RecvConsumer::new(&layout, &CAPS);
        assert_eq!(consumer.refresh(&map), Ok(0));
        map.u32_at(QpLayout::RQ_PRODUCER).store(1, Ordering::Relaxed);
        assert_eq!(consumer.refresh(&map), Err(Corrupt::Index { depth: 0, pending: 1 }));
    }

    #[test]
    fn a_reset_skips_what_is_pending() {
        let (map, layout) = pair();
        let (mut producer, mut consumer) = (RingProducer::send(&layout), SendConsumer::new(&layout, &CAPS));
        for wr_id in 0..3 {
            producer.push_send(&map, &SendEntry { wr_id, ..SendEntry::default() }, std::iter::empty());
        }
        producer.publish(&map);
        consumer.skip_all(&map);
        producer.push_send(&map, &SendEntry { wr_id: 3, ..SendEntry::default() }, std::iter::empty());
        producer.publish(&map);
        assert_eq!(consumer.refresh(&map), Ok(1));
        assert_eq!(consumer.take(&map, &mut []).unwrap().unwrap().entry.wr_id, 3);
    }
}
