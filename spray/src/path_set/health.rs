//! What is known of each path: round-trip time, penalty, and whether it delivers at all.

use super::{Evidence, PathId};
use alloc::boxed::Box;
use alloc::vec;
use core::time::Duration;
use roce::Instant;

/// Packets lost in a row, without one delivered, after which a path is set aside.
const LOSSES: u8 = 3;
/// The first time that a path is set aside; it doubles with each probe that is not answered.
const ASIDE: Duration = Duration::from_millis(1);
/// Doublings: a dead path is probed about once a second in the end.
const MAX_DOUBLINGS: u8 = 10;
/// What each kind of evidence adds to a path's penalty, and the most that it can be.
const PENALTY_MARK: u8 = 1;
const PENALTY_REFUSED: u8 = 4;
const PENALTY_TIMEOUT: u8 = 15;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Good,
    /// Not to be used before [`Entry::until`].
    Aside,
    /// A probe is under way, which shall be answered before [`Entry::until`].
    Probed,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    until: Instant,
    /// Smoothed round-trip time in nanoseconds, 0 if it was never measured.
    rtt_ns: u32,
    state: State,
    losses: u8,
    doublings: u8,
    penalty: u8,
}

/// The health of all paths of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    entries: Box<[Entry]>,
    usable: u16,
}

impl Health {
    pub fn new(paths: u16) -> Health {
        let entry = Entry { until: Instant::ZERO, rtt_ns: 0, state: State::Good, losses: 0, doublings: 0, penalty: 0 };
        Health { entries: vec![entry; usize::from(paths)].into_boxed_slice(), usable: paths }
    }

    pub const fn heap_bytes(paths: u16) -> usize {
        paths as usize * size_of::<Entry>()
    }

    pub fn len(&self) -> u16 {
        self.entries.len() as u16
    }

    pub fn usable(&self) -> u16 {
        self.usable
    }

    pub fn is_usable(&self, path: PathId) -> bool {
        self.entries[path.index()].state == State::Good
    }

    pub fn rtt(&self, path: PathId) -> Option<Duration> {
        let ns = self.entries[path.index()].rtt_ns;
        (ns != 0).then(|| Duration::from_nanos(u64::from(ns)))
    }

    pub fn rtt_ns(&self, path: PathId) -> u32 {
        self.entries[path.index()].rtt_ns
    }

    pub fn penalty(&self, path: PathId) -> u8 {
        self.entries[path.index()].penalty
    }

    /// Takes one off a path's penalty; whether there was one.
    pub fn serve_penalty(&mut self, path: PathId) -> bool {
        let penalty = &mut self.entries[path.index()].penalty;
        let served = *penalty > 0;
        *penalty = penalty.saturating_sub(1);
        served
    }

    pub fn note(&mut self, now: Instant, path: PathId, evidence: Evidence) {
        let entry = &mut self.entries[path.index()];
        let penalty = match evidence {
            Evidence::Arrived { rtt } => {
                if let Some(rtt) = rtt {
                    let sample = u32::try_from(rtt.as_nanos()).unwrap_or(u32::MAX).max(1);
                    entry.rtt_ns = match entry.rtt_ns {
                        0 => sample,
                        // 7/8 of the old, 1/8 of the new (RFC 6298).
                        old => old - old / 8 + sample / 8,
                    };
                }
                self.delivers(path);
                0
            }
            Evidence::Delivered { marked, .. } => {
                self.delivers(path);
                if marked { PENALTY_MARK } else { 0 }
            }
            Evidence::Refused => PENALTY_REFUSED,
            Evidence::Missing | Evidence::TimedOut => {
                entry.losses = entry.losses.saturating_add(1);
                if entry.losses >= LOSSES && entry.state == State::Good {
                    self.set_aside(now, path);
                }
                if evidence == Evidence::TimedOut { PENALTY_TIMEOUT } else { PENALTY_REFUSED }
            }
        };
        let entry = &mut self.entries[path.index()];
        entry.penalty = (entry.penalty + penalty).min(PENALTY_TIMEOUT);
    }

    fn delivers(&mut self, path: PathId) {
        let entry = &mut self.entries[path.index()];
        (entry.losses, entry.doublings) = (0, 0);
        if entry.state != State::Good {
            // It was given up for packets that it lost, not for being slow.
            (entry.state, entry.penalty) = (State::Good, 0);
            self.usable += 1;
        }
    }

    fn set_aside(&mut self, now: Instant, path: PathId) {
        let least = self.len().div_ceil(4);
        if self.usable <= least {
            return;
        }
        let entry = &mut self.entries[path.index()];
        entry.state = State::Aside;
        entry.until = now + ASIDE * (1 << entry.doublings);
        self.usable -= 1;
    }

    pub fn poll_probe(&mut self, now: Instant) -> Option<PathId> {
        if self.usable == self.len() {
            return None;
        }
        let due = |entry: &Entry| entry.state != State::Good && entry.until <= now;
        let index = self.entries.iter().position(due)?;
        let entry = &mut self.entries[index];
        if entry.state == State::Probed {
            // Nobody answered the last one.
            entry.doublings = (entry.doublings + 1).min(MAX_DOUBLINGS);
        }
        entry.state = State::Probed;
        entry.until = now + ASIDE * (1 << entry.doublings);
        Some(PathId(index as u8))
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.usable == self.len() {
            return None;
        }
        self.entries.iter().filter(|entry| entry.state != State::Good).map(|entry| entry.until).min()
    }
}
