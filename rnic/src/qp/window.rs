//! How many packets may be under way: doubled per round trip at first, then additive increase, halved on loss.
//!
//! This is not congestion control for a fabric; it keeps one queue pair from overrunning a peer's socket buffer again and again.

use crate::limits::WINDOW_PACKETS;

/// A window in packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    packets: u32,
    /// Packets acknowledged since the window grew.
    credit: u32,
    /// Below it the window doubles per round trip, above it grows by one part in eight.
    threshold: u32,
}

impl Window {
    const START: u32 = WINDOW_PACKETS.0;
    const LEAST: u32 = WINDOW_PACKETS.1;
    const MOST: u32 = WINDOW_PACKETS.2;

    pub fn new() -> Self {
        Window { packets: Self::START, credit: 0, threshold: Self::MOST }
    }

    #[inline]
    pub fn packets(&self) -> u32 {
        self.packets
    }

    /// `count` packets were acknowledged.
    #[inline]
    pub fn on_ack(&mut self, count: u32) {
        if self.packets >= Self::MOST {
            return;
        }
        self.credit += count;
        if self.packets < self.threshold {
            self.packets = (self.packets + self.credit).min(self.threshold);
            self.credit = 0;
        } else if self.credit >= self.packets {
            self.credit -= self.packets;
            self.packets = (self.packets + self.packets.div_ceil(32)).min(Self::MOST);
        }
    }

    /// A packet was lost.
    pub fn on_loss(&mut self) {
        self.packets = (self.packets / 2).max(Self::LEAST);
        self.threshold = self.packets;
        self.credit = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_its_bound_and_halves_to_its_floor() {
        let mut window = Window::new();
        for _ in 0..1000 {
            window.on_ack(64);
        }
        assert_eq!(window.packets(), Window::MOST);
        window.on_loss();
        assert_eq!(window.packets(), Window::MOST / 2);
        for _ in 0..20 {
            window.on_loss();
        }
        assert_eq!(window.packets(), Window::LEAST);
        for _ in 0..10_000 {
            window.on_ack(1);
        }
        assert!(window.packets() > 64);
    }
}
