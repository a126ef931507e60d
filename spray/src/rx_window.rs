//! The receiver's window: which of the next packets have arrived.
//!
//! A circle of bits, one per PSN from the expected one on. Nothing else is kept per packet: where its bytes go stands in the packet
//! itself.

use alloc::boxed::Box;
use alloc::vec;
use roce::Psn;
use roce::wire::spray_ext::{MAP_WORDS, SackMap};

/// What a PSN is to the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Not received before, and within the window.
    New,
    /// Received before.
    Duplicate,
    /// Beyond the window.
    Outside,
}

/// A receive window of up to [`crate::MAX_WINDOW`] packets.
///
/// Payload may be placed as soon as a packet is [`Arrival::New`]. Effects are in order: what a packet does beyond its bytes is
/// done when [`RxWindow::advance`] passes its PSN, never before.
#[derive(Clone, Debug)]
pub struct RxWindow {
    words: Box<[u64]>,
    /// Oldest PSN that has not arrived.
    expected: Psn,
    /// Packets from `expected` to behind the newest that arrived.
    span: u32,
}

impl RxWindow {
    /// A window of `packets` packets, from `expected` on. It is rounded up to a power of two, 64 at least.
    ///
    /// # Panics
    /// If `packets` is 0 or above [`crate::MAX_WINDOW`]: a fault of the caller.
    pub fn new(packets: u16, expected: Psn) -> RxWindow {
        assert!((1..=crate::MAX_WINDOW).contains(&packets), "a window of {packets} packets");
        RxWindow { words: vec![0; Self::words(packets)].into_boxed_slice(), expected, span: 0 }
    }

    /// Heap bytes that a window takes.
    pub const fn heap_bytes(packets: u16) -> usize {
        Self::words(packets) * 8
    }

    const fn words(packets: u16) -> usize {
        let bits = packets.next_power_of_two() as usize;
        if bits < 64 { 1 } else { bits / 64 }
    }

    /// How many packets from the expected one on are taken.
    pub fn capacity(&self) -> u32 {
        self.words.len() as u32 * 64
    }

    /// The oldest PSN that has not arrived.
    pub fn expected(&self) -> Psn {
        self.expected
    }

    /// The newest PSN before which, itself included, none is missing.
    pub fn cumulative(&self) -> Psn {
        self.expected.minus(1)
    }

    /// Whether packets are missing before one that has arrived.
    pub fn has_gap(&self) -> bool {
        self.span > 0
    }

    /// Whether everything before `psn` is in: a packet whose bytes must not be seen before others' is placed only then.
    pub fn is_next(&self, psn: Psn) -> bool {
        psn == self.expected
    }

    /// What `psn` is.
    pub fn classify(&self, psn: Psn) -> Arrival {
        match u32::try_from(psn.distance_from(self.expected)) {
            Err(_) => Arrival::Duplicate,
            Ok(distance) if distance >= self.capacity() => Arrival::Outside,
            Ok(_) if self.bit(psn) => Arrival::Duplicate,
            Ok(_) => Arrival::New,
        }
    }

    /// How many of the `count` PSNs from `psn` on are new, up to the first that is not.
    pub fn new_from(&self, psn: Psn, count: u32) -> u32 {
        (0..count.min(self.capacity())).take_while(|&n| self.classify(psn.plus(n)) == Arrival::New).count() as u32
    }

    /// Takes the packet `psn`, which stands for `count` PSNs (more than one for a READ request), if it is new and all of it lies
    /// within the window. A count of 0 is never taken.
    pub fn take(&mut self, psn: Psn, count: u32) -> Arrival {
        let arrival = self.classify(psn);
        if arrival != Arrival::New {
            return arrival;
        }
        let distance = psn.distance_from(self.expected) as u32;
        if count == 0 || count > self.capacity() - distance {
            return Arrival::Outside;
        }
        for n in 0..count {
            let (word, bit) = self.place(psn.plus(n));
            self.words[word] |= bit;
        }
        self.span = self.span.max(distance + count);
        Arrival::New
    }

    /// Whether the oldest PSN that was awaited has arrived, and waits to be passed.
    pub fn has_next(&self) -> bool {
        self.span > 0 && self.bit(self.expected)
    }

    /// Moves the window over the one PSN that [`RxWindow::has_next`] tells of: for those whose effects may fail. False if it has not
    /// arrived.
    pub fn pass(&mut self) -> bool {
        let has_next = self.has_next();
        if has_next {
            let (word, bit) = self.place(self.expected);
            self.words[word] &= !bit;
            self.expected = self.expected.plus(1);
            self.span -= 1;
        }
        has_next
    }

    /// Awaits `expected` next, as packets of another kind were taken.
    ///
    /// # Panics
    /// If packets are held beyond a gap: a fault of the caller.
    pub fn restart(&mut self, expected: Psn) {
        assert!(self.span == 0, "packets have arrived that were not passed");
        self.expected = expected;
    }

    /// Moves the window over everything that is complete. Returns how many PSNs that were: their effects may happen now, in
    /// order, the first at what [`RxWindow::expected`] was before.
    pub fn advance(&mut self) -> u32 {
        let mut passed = 0;
        while self.span > 0 {
            let (index, bit) = self.place(self.expected);
            let shift = bit.trailing_zeros();
            // The run of ones from here to the end of the word at most.
            let run = (self.words[index] >> shift).trailing_ones().min(64 - shift);
            if run == 0 {
                break;
            }
            let ones = if run == 64 { u64::MAX } else { ((1 << run) - 1) << shift };
            self.words[index] &= !ones;
            self.expected = self.expected.plus(run);
            self.span -= run;
            passed += run;
            if shift + run < 64 {
                break;
            }
        }
        passed
    }

    /// The map of a selective acknowledgement: what has arrived beyond [`RxWindow::cumulative`], all of it if it fits, else the
    /// part that holds `newest`, the packet that the acknowledgement is about.
    pub fn map(&self, newest: Psn) -> SackMap {
        let needed = (self.span as usize).div_ceil(64);
        let first = if needed <= MAP_WORDS {
            0
        } else {
            let word = newest.distance_from(self.expected).clamp(0, self.span as i32) as usize / 64;
            (word + 1).saturating_sub(MAP_WORDS)
        };
        let count = needed.saturating_sub(first).min(MAP_WORDS);
        let mut words = [0; MAP_WORDS];
        for (n, word) in words[..count].iter_mut().enumerate() {
            *word = self.bits_from(((first + n) * 64) as u32);
        }
        SackMap::new((first * 64) as u16, &words[..count])
    }

    /// 64 bits from `distance` after the expected PSN on.
    fn bits_from(&self, distance: u32) -> u64 {
        let (index, bit) = self.place(self.expected.plus(distance));
        let shift = bit.trailing_zeros();
        let low = self.words[index] >> shift;
        // Positions beyond the capacity wrap to the beginning of the window; they are cut off.
        let high = if shift == 0 { 0 } else { self.words[(index + 1) % self.words.len()] << (64 - shift) };
        let inside = self.capacity() - distance;
        let mask = if inside >= 64 { u64::MAX } else { (1 << inside) - 1 };
        (low | high) & mask
    }

    fn bit(&self, psn: Psn) -> bool {
        let (word, bit) = self.place(psn);
        self.words[word] & bit != 0
    }

    /// Where the bit of a PSN lies. The capacity divides the PSN space, so that this does not change as the window moves.
    fn place(&self, psn: Psn) -> (usize, u64) {
        let at = psn.get() as usize % (self.words.len() * 64);
        (at / 64, 1 << (at % 64))
    }
}
