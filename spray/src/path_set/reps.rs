//! Recycled entropies: paths that delivered without a mark, once each, oldest first; after a time-out the last good ones again and
//! again, and then a spell of exploring. The state is that of the REPS paper: below 25 bytes per connection.

use super::{Evidence, PathId};
use core::time::Duration;
use roce::Instant;

/// Good paths that are remembered.
const GOOD: usize = 8;
/// How long only good paths are used after a time-out.
const FREEZE: Duration = Duration::from_millis(10);
/// Packets that go anywhere after a freeze.
const EXPLORE: u8 = 16;

#[derive(Clone, Debug)]
pub(super) struct Reps {
    /// A circle in the order of arrival; the fresh ones are the `fresh` before `next`.
    good: [PathId; GOOD],
    len: u8,
    next: u8,
    fresh: u8,
    /// Where a frozen circle is being reused.
    reuse: u8,
    explore: u8,
    frozen_until: Option<Instant>,
}

impl Reps {
    pub fn new() -> Reps {
        Reps { good: [PathId(0); GOOD], len: 0, next: 0, fresh: 0, reuse: 0, explore: 0, frozen_until: None }
    }

    /// The path to recycle; `None`: any.
    pub fn pick(&mut self, now: Instant) -> Option<PathId> {
        if self.frozen_until.is_some_and(|until| until <= now) {
            self.frozen_until = None;
            self.explore = EXPLORE;
        }
        if self.explore > 0 {
            self.explore -= 1;
            return None;
        }
        if self.fresh > 0 {
            let at = (usize::from(self.next) + GOOD - usize::from(self.fresh)) % GOOD;
            self.fresh -= 1;
            return Some(self.good[at]);
        }
        if self.frozen_until.is_none() || self.len == 0 {
            return None;
        }
        self.reuse = (self.reuse + 1) % self.len;
        Some(self.good[usize::from(self.reuse)])
    }

    pub fn note(&mut self, now: Instant, path: PathId, evidence: Evidence) {
        match evidence {
            Evidence::Delivered { marked: false, .. } => {
                self.good[usize::from(self.next)] = path;
                self.next = (self.next + 1) % GOOD as u8;
                self.len = (self.len + 1).min(GOOD as u8);
                self.fresh = (self.fresh + 1).min(GOOD as u8);
            }
            Evidence::TimedOut if self.explore == 0 => {
                self.frozen_until.get_or_insert(now + FREEZE);
            }
            _ => {}
        }
    }
}
