//! Network signalled congestion control of Ultra Ethernet: the cases, and the constants of its public reference simulator.
//!
//! No mark and below the target delay: grow in proportion to how far below. No mark and above: grow by a fair share. Mark and
//! above: shrink, once per round trip, in proportion to how far the mean delay is above. Mark and below: hold. Beyond that, once
//! per round trip and target, the window drops to what was delivered in that time if the delay is four times the target, or
//! something was lost, and little was delivered (quick adapt). The constants are scaled from a reference network of 100 Gb/s and
//! 12 µs.

use super::{Signal, WindowLimits};
use core::time::Duration;
use roce::Instant;

/// Bandwidth-delay product and round-trip time of the reference network.
const REFERENCE_BDP: f64 = 150_000.0;
const REFERENCE_RTT: f64 = 12e-6;
/// Shrinking: how strongly, and the most in one step.
const GAMMA: f64 = 0.8;
const MOST: f64 = 0.5;
/// Weight of a sample in the mean delay.
const DELAY_GAIN: f64 = 0.0125;
/// Proportional growth, fair growth and the growth per round trip, in packets.
const ALPHA: f64 = 4.0;
const FAIR: f64 = 5.0;
const ETA: f64 = 0.15;
/// Growth is applied at the latest after so many packets.
const ADJUST_PACKETS: f64 = 8.0;
/// Quick adapt: delay in targets, and the share of the largest window that counts as little.
const QUICK_DELAY: f64 = 4.0;
const QUICK_SHARE: f64 = 1.0 / 8.0;
/// Below this delay in seconds the network is idle, and the window grows by a quarter of what is acknowledged.
const IDLE_DELAY: f64 = 1e-6;
const IDLE_GROWTH: f64 = 0.25;

#[derive(Clone, Debug)]
pub(super) struct Nscc {
    pub window: f64,
    mean_delay: f64,
    /// Growth that is not applied yet, in bytes times bytes: divided by the window when it is.
    growth: f64,
    /// Bytes acknowledged since growth was applied, and when that was.
    unapplied: f64,
    applied_at: Option<Instant>,
    shrank_at: Option<Instant>,
    grew_at: Option<Instant>,
    /// Bytes acknowledged in a row with next to no delay.
    idle: f64,
    /// Quick adapt: what was delivered until then.
    delivered: f64,
    quick_at: Option<Instant>,
    /// A round trip and the target delay, in seconds.
    period: f64,
    /// Acknowledged bytes whose marks say nothing new, as they were under way when the window was cut.
    ignored: f64,
    /// The window before it last shrank for a loss.
    before: Option<f64>,
}

impl Nscc {
    pub fn new(limits: &WindowLimits) -> Nscc {
        Nscc {
            window: limits.start as f64,
            mean_delay: 0.0,
            growth: 0.0,
            unapplied: 0.0,
            applied_at: None,
            shrank_at: None,
            grew_at: None,
            idle: 0.0,
            delivered: 0.0,
            quick_at: None,
            period: 2.0 * REFERENCE_RTT,
            ignored: 0.0,
            before: None,
        }
    }

    pub fn on_ack(&mut self, signal: &Signal<'_>, limits: &WindowLimits) {
        let bytes = signal.acked.bytes as f64;
        self.delivered += bytes;
        self.unapplied += bytes;
        let Some((delay, target)) = signal.delay else { return };
        let (now, marked, base) = (signal.now, signal.acked.marked, signal.base);
        // Slow without a mark is another path's queue or the receiver: it counts as a quarter of a round trip.
        let sample = if !marked && delay > target { base / 4.0 } else { delay };
        self.mean_delay += DELAY_GAIN * (sample - self.mean_delay);
        self.period = base + target;
        if self.quick_adapt(now, delay > QUICK_DELAY * target, signal.acked.in_flight, limits) {
            return;
        }
        self.ignored = (self.ignored - bytes).max(0.0);
        let (packet, scale) = (f64::from(limits.packet), limits.bdp.unwrap_or(limits.ceiling) as f64 / REFERENCE_BDP);
        match (marked, delay < target) {
            (false, true) if self.grow_idle(bytes, delay) => {}
            (false, true) => {
                let alpha = ALPHA * packet * scale * (target / REFERENCE_RTT) / target;
                self.growth += alpha * bytes * (target - delay);
            }
            (false, false) => self.growth += FAIR * packet * scale * bytes,
            (true, false) if self.ignored == 0.0 => self.shrink(now, base, target),
            (true, _) => self.idle = 0.0,
        }
        if self.unapplied >= ADJUST_PACKETS * packet || is_over(now, &mut self.applied_at, base) {
            self.window += self.growth / self.window;
            (self.growth, self.unapplied, self.applied_at) = (0.0, 0.0, Some(now));
        }
        if is_over(now, &mut self.grew_at, base) {
            self.window += ETA * packet * scale;
            self.grew_at = Some(now);
        }
    }

    /// An idle network: once a window of bytes came with next to no delay.
    fn grow_idle(&mut self, bytes: f64, delay: f64) -> bool {
        self.idle = if delay < IDLE_DELAY { self.idle + bytes } else { 0.0 };
        let is_idle = self.idle > self.window;
        if is_idle {
            self.window += bytes * IDLE_GROWTH;
        }
        is_idle
    }

    fn shrink(&mut self, now: Instant, base: f64, target: f64) {
        self.idle = 0.0;
        if self.mean_delay > target && is_over(now, &mut self.shrank_at, base) {
            self.window *= (1.0 - GAMMA * (self.mean_delay - target) / self.mean_delay).max(MOST);
            self.shrank_at = Some(now);
        }
    }

    /// At the end of a period, cuts the window to what was delivered in it, if that was little and the network is in trouble.
    fn quick_adapt(&mut self, now: Instant, in_trouble: bool, in_flight: u64, limits: &WindowLimits) -> bool {
        if self.quick_at.is_some_and(|at| now < at) {
            return false;
        }
        let is_little = self.delivered < limits.ceiling as f64 * QUICK_SHARE;
        let cuts = self.quick_at.is_some() && in_trouble && is_little;
        if cuts {
            self.before = Some(self.window);
            self.window = self.window.min(self.delivered.max(f64::from(limits.packet)));
            self.ignored = in_flight as f64;
            (self.growth, self.unapplied) = (0.0, 0.0);
        }
        self.delivered = 0.0;
        self.quick_at = Some(now + Duration::from_nanos((self.period * 1e9) as u64));
        cuts
    }

    pub fn on_loss(&mut self, now: Instant, bytes: u64, in_flight: u64, limits: &WindowLimits) {
        if !self.quick_adapt(now, true, in_flight, limits) {
            self.before.get_or_insert(self.window);
            self.window -= bytes as f64;
        }
        self.idle = 0.0;
    }

    pub fn on_undo(&mut self) {
        if let Some(before) = self.before.take() {
            self.window = self.window.max(before);
        }
    }
}

/// Whether `period` seconds have passed since `since`, which begins now if it never did.
fn is_over(now: Instant, since: &mut Option<Instant>, period: f64) -> bool {
    now - *since.get_or_insert(now) > Duration::from_nanos((period * 1e9) as u64)
}
