//! Our own law. A round is one window of acknowledged bytes. At its end the window shrinks in proportion to how far the mean
//! queueing delay was above the target (as Swift does), or to the smoothed share of marked packets (as DCTCP does), whichever asks
//! for more. Below the target marks count for less, below half of it for nothing: they say which paths are crowded, which is for
//! the choice of paths to mend; the delay says whether all are. Beside that it grows by a constant. Lost bytes count as marked ones, so that one dead path of sixteen costs a few per cent, not half.

use super::{Signal, WindowLimits};

/// Weight of a round in the smoothed share of marks.
const GAIN: f64 = 1.0 / 16.0;
/// How strongly delay above the target shrinks the window, and the most that it does in one round.
const DELAY_GAIN: f64 = 0.8;
const MOST: f64 = 0.5;
/// Growth per round once the network has been felt, as a part of the largest window; at least a packet. It is the same for large
/// and small windows, so that connections which share a network come to equal ones.
const GROWTH: f64 = 1.0 / 128.0;

#[derive(Clone, Debug)]
pub(super) struct Proportional {
    pub window: f64,
    /// Doubling until the network is felt for the first time, and again after a silence.
    starting: bool,
    share: f64,
    acked: f64,
    marked: f64,
    lost: f64,
    /// Sums over the samples of the round: delay, target, and how many.
    delay: f64,
    target: f64,
    samples: f64,
    /// The window before it last shrank for a loss.
    before: Option<f64>,
}

impl Proportional {
    pub fn new(limits: &WindowLimits) -> Proportional {
        Proportional {
            window: limits.start as f64,
            starting: true,
            share: 0.0,
            acked: 0.0,
            marked: 0.0,
            lost: 0.0,
            delay: 0.0,
            target: 0.0,
            samples: 0.0,
            before: None,
        }
    }

    pub fn on_ack(&mut self, signal: &Signal<'_>, limits: &WindowLimits) {
        let bytes = signal.acked.bytes as f64;
        self.acked += bytes;
        self.marked += bytes * signal.acked.marked_share;
        if let Some((delay, target)) = signal.delay {
            self.delay += delay;
            self.target += target;
            self.samples += 1.0;
        }
        // What is not used says nothing about the network.
        let is_used = 2.0 * (signal.acked.in_flight as f64 + bytes) >= self.window;
        if self.starting && self.marked == 0.0 && self.lost == 0.0 && is_used {
            self.window += bytes;
        }
        if self.acked + self.lost >= self.window {
            self.end_round(is_used, limits);
        }
    }

    fn end_round(&mut self, is_used: bool, limits: &WindowLimits) {
        let share = ((self.marked + self.lost) / (self.acked + self.lost)).min(1.0);
        self.share += GAIN * (share - self.share);
        let for_marks = if share > 0.0 { self.share.max(share * share) / 2.0 } else { 0.0 };
        let (for_delay, weight) = match self.samples {
            0.0 => (0.0, 1.0),
            _ => {
                (DELAY_GAIN * (1.0 - self.target / self.delay).max(0.0), (2.0 * self.delay / self.target - 1.0).clamp(0.0, 1.0))
            }
        };
        let for_marks = for_marks * weight;
        let less = for_marks.max(for_delay).min(MOST);
        if less > 0.0 {
            self.starting = false;
            self.before = (self.lost > 0.0).then_some(self.window);
            self.window *= 1.0 - less;
        }
        // Among many packets on many paths there is nearly always one with a mark; growth does not wait for their end.
        if !self.starting && is_used && for_delay == 0.0 {
            self.window += (limits.ceiling as f64 * GROWTH).max(f64::from(limits.packet)) * (1.0 - share);
        }
        self.begin_round();
    }

    fn begin_round(&mut self) {
        (self.acked, self.marked, self.lost) = (0.0, 0.0, 0.0);
        (self.delay, self.target, self.samples) = (0.0, 0.0, 0.0);
    }

    pub fn on_loss(&mut self, bytes: u64) {
        self.lost += bytes as f64;
    }

    pub fn on_silence(&mut self, limits: &WindowLimits) {
        self.before = Some(self.before.unwrap_or(self.window).max(self.window));
        self.window = limits.floor as f64;
        self.starting = true;
        self.begin_round();
    }

    pub fn on_undo(&mut self) {
        self.lost = 0.0;
        if let Some(before) = self.before.take() {
            self.window = self.window.max(before);
        }
    }
}
