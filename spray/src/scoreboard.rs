//! What is under way: every packet that was sent and not acknowledged, with its path and time.
//!
//! A circle of slots, one per PSN, and per path a list of what is in flight on it in the order of sending. A path keeps the order
//! of its packets, mostly; so a packet that several later ones of its own path have overtaken is lost, whatever happens on other
//! paths. Loss by time is for the caller to judge ([`Scoreboard::oldest_on`]). Lost packets are sent again oldest first, which is what the receiver
//! waits for.
//!
//! A number can also stand for a packet that was asked for: one of the response to a READ, or that to an atomic. It is under way
//! from the request on, and acknowledged by nothing but its own arrival ([`Scoreboard::is_fetch`]).

use crate::{MAX_WINDOW, PathId};
use alloc::boxed::Box;
use alloc::vec;
use roce::{Instant, Psn};

/// No slot.
const NONE: u16 = u16::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not under way: acknowledged, or never sent.
    Done,
    InFlight,
    /// In flight for the second time or more.
    Resent,
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    sent_at: Instant,
    /// The next in the list of the path.
    next: u16,
    bytes: u16,
    path: PathId,
    /// The path that it was on before it was sent again.
    former: PathId,
    state: State,
    /// Later packets of the same path that were acknowledged.
    passed: u8,
}

/// A list of slots, in order.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u16,
    last: u16,
}

/// A packet that was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// The path that it was last sent on.
    pub path: PathId,
    /// The path that it was sent on before, if it was sent again.
    pub former: Option<PathId>,
    /// When it was last sent.
    pub sent_at: Instant,
    /// Its bytes.
    pub bytes: u16,
    /// It had been given up for lost, and was not sent again yet: it was not.
    pub was_lost: bool,
}

/// A packet that is given up for lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostPacket {
    /// Its number.
    pub psn: Psn,
    /// The path that lost it.
    pub path: PathId,
    /// Its bytes.
    pub bytes: u16,
    /// When it was last sent.
    pub sent_at: Instant,
}

/// The packets under way of one connection.
#[derive(Clone, Debug)]
pub struct Scoreboard {
    slots: Box<[Slot]>,
    paths: Box<[List]>,
    /// A bit per slot: it is lost; it is asked for, not sent.
    lost: Box<[u64]>,
    fetches: Box<[u64]>,
    /// Oldest PSN that is not acknowledged.
    oldest: Psn,
    /// The PSN of the next new packet.
    next: Psn,
    in_flight: u64,
    in_flight_packets: u32,
    lost_packets: u32,
}

impl List {
    const EMPTY: List = List { first: NONE, last: NONE };

    fn push(&mut self, slots: &mut [Slot], at: u16) {
        slots[usize::from(at)].next = NONE;
        if self.first == NONE {
            self.first = at;
        } else {
            slots[usize::from(self.last)].next = at;
        }
        self.last = at;
    }

    /// Takes out `at`, which follows `before` (`NONE` if it is the first).
    fn unlink(&mut self, slots: &mut [Slot], before: u16, at: u16) {
        let next = slots[usize::from(at)].next;
        if before == NONE {
            self.first = next;
        } else {
            slots[usize::from(before)].next = next;
        }
        if self.last == at {
            self.last = before;
        }
    }
}

impl Scoreboard {
    /// Room for `window` packets, rounded up to a power of two, on `paths` paths; the first has the number `first`.
    ///
    /// # Panics
    /// If the window is 0 or above [`MAX_WINDOW`]: a fault of the caller.
    pub fn new(window: u16, paths: u16, first: Psn) -> Scoreboard {
        assert!((1..=MAX_WINDOW).contains(&window), "a window of {window} packets");
        let slot = Slot {
            sent_at: Instant::ZERO,
            next: NONE,
            bytes: 0,
            path: PathId(0),
            former: PathId(0),
            state: State::Done,
            passed: 0,
        };
        Scoreboard {
            slots: vec![slot; usize::from(window.next_power_of_two())].into_boxed_slice(),
            paths: vec![List::EMPTY; usize::from(paths)].into_boxed_slice(),
            lost: vec![0; Self::bit_words(window)].into_boxed_slice(),
            fetches: vec![0; Self::bit_words(window)].into_boxed_slice(),
            oldest: first,
            next: first,
            in_flight: 0,
            in_flight_packets: 0,
            lost_packets: 0,
        }
    }

    /// Heap bytes that it takes.
    pub const fn heap_bytes(window: u16, paths: u16) -> usize {
        window.next_power_of_two() as usize * size_of::<Slot>()
            + paths as usize * size_of::<List>()
            + 2 * Self::bit_words(window) * 8
    }

    const fn bit_words(window: u16) -> usize {
        (window.next_power_of_two() as usize).div_ceil(64)
    }

    /// The oldest PSN that is not acknowledged.
    pub fn oldest(&self) -> Psn {
        self.oldest
    }

    /// The PSN of the next new packet.
    pub fn next(&self) -> Psn {
        self.next
    }

    /// Whether `psn` lies from the oldest PSN that is not acknowledged to the newest that was sent. The PSNs half the circle ahead
    /// are before neither end, and are not held.
    pub fn holds(&self, psn: Psn) -> bool {
        (0..self.next.distance_from(self.oldest)).contains(&psn.distance_from(self.oldest))
    }

    /// New packets that there is room for.
    pub fn room(&self) -> u32 {
        self.slots.len() as u32 - self.next.distance_from(self.oldest) as u32
    }

    /// Bytes in flight: sent, neither acknowledged nor lost.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Packets in flight.
    pub fn in_flight_packets(&self) -> u32 {
        self.in_flight_packets
    }

    /// Packets that are lost and not sent again yet.
    pub fn lost_packets(&self) -> u32 {
        self.lost_packets
    }

    /// A new packet was sent; returns its number.
    ///
    /// # Panics
    /// If there is no room for it: a fault of the caller.
    pub fn send(&mut self, now: Instant, path: PathId, bytes: u16) -> Psn {
        assert!(self.room() > 0, "more packets than the window holds");
        let psn = self.next;
        self.next = psn.plus(1);
        let at = usize::from(self.at(psn));
        self.fetches[at / 64] &= !(1 << (at % 64));
        self.launch(psn, now, path, bytes, State::InFlight);
        psn
    }

    /// A new packet was asked for, and is to come back on `path`; returns its number.
    ///
    /// # Panics
    /// If there is no room for it: a fault of the caller.
    pub fn fetch(&mut self, now: Instant, path: PathId, bytes: u16) -> Psn {
        let psn = self.send(now, path, bytes);
        let at = usize::from(self.at(psn));
        self.fetches[at / 64] |= 1 << (at % 64);
        psn
    }

    /// Whether `psn` stands for a packet that was asked for and has not come.
    pub fn is_fetch(&self, psn: Psn) -> bool {
        let at = usize::from(self.at(psn));
        self.holds(psn) && self.fetches[at / 64] & 1 << (at % 64) != 0 && self.slots[at].state != State::Done
    }

    /// The next new packet has the number `next`, as packets of another kind were sent.
    ///
    /// # Panics
    /// If anything is under way: a fault of the caller.
    pub fn restart(&mut self, next: Psn) {
        assert!(self.oldest == self.next, "packets are under way");
        (self.oldest, self.next) = (next, next);
    }

    /// The oldest lost packet, which is to be sent again.
    pub fn next_lost(&self) -> Option<LostPacket> {
        if self.lost_packets == 0 {
            return None;
        }
        // From the word of the oldest packet once around; in that word, what comes before it comes last.
        let start = usize::from(self.at(self.oldest));
        let (first, mask) = (start / 64, u64::MAX << (start % 64));
        let words = self.lost.len();
        let parts = (0..=words).map(|n| {
            let word = self.lost[(first + n) % words];
            let part = if n == 0 {
                word & mask
            } else if n == words {
                word & !mask
            } else {
                word
            };
            ((first + n) % words, part)
        });
        let (word, part) = parts.into_iter().find(|(_, part)| *part != 0)?;
        Some(self.lost_packet((word * 64) as u16 + part.trailing_zeros() as u16))
    }

    /// The packet that [`Scoreboard::next_lost`] told was sent again.
    ///
    /// # Panics
    /// If none is lost: a fault of the caller.
    pub fn resend(&mut self, now: Instant, path: PathId) {
        let LostPacket { psn, path: former, bytes, .. } = self.next_lost().expect("nothing is lost");
        let at = self.at(psn);
        self.clear_lost(at);
        self.launch(psn, now, path, bytes, State::Resent);
        self.slots[usize::from(at)].former = former;
    }

    fn launch(&mut self, psn: Psn, now: Instant, path: PathId, bytes: u16, state: State) {
        let at = self.at(psn);
        self.slots[usize::from(at)] = Slot { sent_at: now, next: NONE, bytes, path, former: path, state, passed: 0 };
        self.paths[path.index()].push(&mut self.slots, at);
        self.in_flight += u64::from(bytes);
        self.in_flight_packets += 1;
    }

    /// The packet `psn` has arrived. `None` if it is not under way: acknowledged before, or never sent. Packets sent before it on
    /// the same path that `limit` later ones have overtaken now are lost; `lost` is told of each.
    pub fn acknowledge(&mut self, psn: Psn, limit: u8, mut lost: impl FnMut(LostPacket)) -> Option<Delivered> {
        if !self.holds(psn) {
            return None;
        }
        let at = self.at(psn);
        let slot = self.slots[usize::from(at)];
        let delivered = Delivered {
            path: slot.path,
            former: (slot.state == State::Resent).then_some(slot.former),
            sent_at: slot.sent_at,
            bytes: slot.bytes,
            was_lost: slot.state == State::Lost,
        };
        match slot.state {
            State::Done => return None,
            State::Lost => self.clear_lost(at),
            State::InFlight | State::Resent => {
                self.overtake(at, limit, &mut lost);
                self.land(at);
            }
        }
        self.slots[usize::from(at)].state = State::Done;
        while self.oldest != self.next && self.slots[usize::from(self.at(self.oldest))].state == State::Done {
            self.oldest = self.oldest.plus(1);
        }
        Some(delivered)
    }

    /// Takes `at` out of the list of its path; each packet before it there is overtaken once more. A packet stays in the list for
    /// `limit` of them at most, so that this takes constant time per packet on average, whatever a peer acknowledges.
    fn overtake(&mut self, at: u16, limit: u8, lost: &mut impl FnMut(LostPacket)) {
        let path = self.slots[usize::from(at)].path.index();
        let (mut before, mut here) = (NONE, self.paths[path].first);
        while here != at {
            let next = self.slots[usize::from(here)].next;
            self.slots[usize::from(here)].passed += 1;
            if self.slots[usize::from(here)].passed >= limit {
                self.paths[path].unlink(&mut self.slots, before, here);
                lost(self.lose(here));
            } else {
                before = here;
            }
            here = next;
        }
        self.paths[path].unlink(&mut self.slots, before, at);
    }

    /// When the packet that has been in flight on `path` for longest was sent.
    pub fn oldest_on(&self, path: PathId) -> Option<Instant> {
        let at = self.paths[path.index()].first;
        (at != NONE).then(|| self.slots[usize::from(at)].sent_at)
    }

    /// Gives the packet that has been in flight on `path` for longest up for lost, if there is one.
    pub fn give_up(&mut self, path: PathId) -> Option<LostPacket> {
        let at = self.paths[path.index()].first;
        if at == NONE {
            return None;
        }
        self.paths[path.index()].unlink(&mut self.slots, NONE, at);
        Some(self.lose(at))
    }

    /// The receiver refuses the packet `psn`: it is lost, if it is in flight, and so are those that it has overtaken as one too
    /// many.
    pub fn refuse(&mut self, psn: Psn, limit: u8, mut lost: impl FnMut(LostPacket)) -> Option<LostPacket> {
        if !self.holds(psn) {
            return None;
        }
        let at = self.at(psn);
        if !matches!(self.slots[usize::from(at)].state, State::InFlight | State::Resent) {
            return None;
        }
        self.overtake(at, limit, &mut lost);
        Some(self.lose(at))
    }

    /// `at`, which is in no list any more, is lost.
    fn lose(&mut self, at: u16) -> LostPacket {
        self.land(at);
        self.slots[usize::from(at)].state = State::Lost;
        self.lost[usize::from(at) / 64] |= 1 << (at % 64);
        self.lost_packets += 1;
        self.lost_packet(at)
    }

    fn land(&mut self, at: u16) {
        self.in_flight -= u64::from(self.slots[usize::from(at)].bytes);
        self.in_flight_packets -= 1;
    }

    fn clear_lost(&mut self, at: u16) {
        self.lost[usize::from(at) / 64] &= !(1 << (at % 64));
        self.lost_packets -= 1;
    }

    fn lost_packet(&self, at: u16) -> LostPacket {
        let slot = &self.slots[usize::from(at)];
        // The slot's PSN is the one of the window that lies there.
        let ahead = at.wrapping_sub(self.at(self.oldest)) & (self.slots.len() as u16 - 1);
        LostPacket { psn: self.oldest.plus(u32::from(ahead)), path: slot.path, bytes: slot.bytes, sent_at: slot.sent_at }
    }

    fn at(&self, psn: Psn) -> u16 {
        (psn.get() as usize & (self.slots.len() - 1)) as u16
    }
}
