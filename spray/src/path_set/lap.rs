//! Permuted round robin: every path once per lap, in an order that is drawn anew for each.

use super::PathId;
use alloc::boxed::Box;
use roce::rng::Rng;

/// The order of one lap, and how far it went.
#[derive(Clone, Debug)]
pub(super) struct Lap {
    order: Box<[PathId]>,
    at: usize,
}

impl Lap {
    pub fn new(paths: u16) -> Lap {
        Lap { order: (0..paths).map(|path| PathId(path as u8)).collect(), at: 0 }
    }

    pub const fn heap_bytes(paths: u16) -> usize {
        paths as usize * size_of::<PathId>()
    }

    /// Whether a lap is about to begin.
    pub fn begins(&self) -> bool {
        self.at == 0
    }

    /// The next path. The shuffle is spread over the lap: one exchange per packet (Fisher and Yates).
    pub fn next(&mut self, rng: &mut Rng) -> PathId {
        let left = self.order.len() - self.at;
        let drawn = self.at + rng.below(left as u64) as usize;
        self.order.swap(self.at, drawn);
        let path = self.order[self.at];
        self.at = if left == 1 { 0 } else { self.at + 1 };
        path
    }
}
