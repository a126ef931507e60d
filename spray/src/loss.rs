//! When a packet is lost. A gap alone is no loss: paths differ in delay, so packets overtake each other all the time.
//!
//! A packet is lost when (a) several later packets of its own path were acknowledged; or (b) a packet that was sent later, on
//! whatever path, was acknowledged, and the packet has been under way for its path's round-trip time and a reorder window; or
//! (c) for a whole retransmission time-out. All three learn: from a packet that was sent again for nothing, (a) and (b) become more
//! patient; (c) follows RFC 6298, with a second round-trip time on top, as queues
//! fill faster than the deviation learns, and a floor for clocks and schedulers that are coarser than the network.

use core::time::Duration;
use roce::Instant;

/// Later packets of one path that make an earlier one lost, at first and at most.
const OVERTAKERS: (u8, u8) = (3, 96);
/// Doublings of the reorder window, and of the time-out, at most.
const MAX_DOUBLINGS: u8 = 6;
/// Acknowledged packets without one that was sent again for nothing, after which patience shrinks by one step.
const CALM_PACKETS: u32 = 4096;

/// Bounds of the retransmission time-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossLimits {
    /// The least. It has to cover how long the peer holds acknowledgements back and how late the own timers are.
    pub rto_floor: Duration,
    /// The first, before a round-trip time is known.
    pub rto_start: Duration,
    /// The most.
    pub rto_ceiling: Duration,
}

impl Default for LossLimits {
    /// 250 µs, 10 ms and 1 s. The floor is what hardware is reported to use; a program on a shared machine wants more.
    fn default() -> Self {
        LossLimits {
            rto_floor: Duration::from_micros(250),
            rto_start: Duration::from_millis(10),
            rto_ceiling: Duration::from_secs(1),
        }
    }
}

/// The rules of loss, and what they have learned.
#[derive(Clone, Debug)]
pub struct Loss {
    limits: LossLimits,
    /// Smoothed round-trip time and its mean deviation over all paths, in nanoseconds; 0 before the first sample.
    rtt_ns: u64,
    deviation_ns: u64,
    least_rtt_ns: u64,
    /// When the newest packet that was acknowledged was sent.
    newest: Option<Instant>,
    overtakers: u8,
    reorder_doublings: u8,
    rto_doublings: u8,
    calm: u32,
}

impl Loss {
    /// Rules that know nothing yet.
    pub fn new(limits: LossLimits) -> Loss {
        Loss {
            limits,
            rtt_ns: 0,
            deviation_ns: 0,
            least_rtt_ns: u64::MAX,
            newest: None,
            overtakers: OVERTAKERS.0,
            reorder_doublings: 0,
            rto_doublings: 0,
            calm: 0,
        }
    }

    /// A round-trip time was measured.
    pub fn on_rtt(&mut self, sample: Duration) {
        let sample = sample.as_nanos().clamp(1, 1 << 40) as u64;
        self.least_rtt_ns = self.least_rtt_ns.min(sample);
        if self.rtt_ns == 0 {
            (self.rtt_ns, self.deviation_ns) = (sample, sample / 2);
            return;
        }
        self.deviation_ns = (self.deviation_ns * 3 + self.rtt_ns.abs_diff(sample)) / 4;
        self.rtt_ns = (self.rtt_ns * 7 + sample) / 8;
    }

    /// A packet sent at `sent_at` was acknowledged.
    pub fn on_delivered(&mut self, sent_at: Instant) {
        self.newest = Some(self.newest.map_or(sent_at, |newest| newest.max(sent_at)));
        self.rto_doublings = 0;
        self.calm += 1;
        if self.calm >= CALM_PACKETS {
            self.calm = 0;
            self.overtakers = (self.overtakers / 2).max(OVERTAKERS.0);
            self.reorder_doublings = self.reorder_doublings.saturating_sub(1);
        }
    }

    /// A packet was sent again for nothing: the first had arrived, or was about to.
    pub fn on_spurious(&mut self) {
        self.calm = 0;
        self.overtakers = (self.overtakers * 2).min(OVERTAKERS.1);
        self.reorder_doublings = (self.reorder_doublings + 1).min(MAX_DOUBLINGS);
    }

    /// Nothing was heard for a whole time-out: the next one is twice as long.
    pub fn on_silence(&mut self) {
        self.rto_doublings = (self.rto_doublings + 1).min(MAX_DOUBLINGS);
    }

    /// Later packets of the same path that make a packet lost.
    pub fn overtakers(&self) -> u8 {
        self.overtakers
    }

    /// Smoothed round-trip time.
    pub fn rtt(&self) -> Option<Duration> {
        (self.rtt_ns != 0).then(|| Duration::from_nanos(self.rtt_ns))
    }

    /// The least round-trip time that was ever measured.
    pub fn least_rtt(&self) -> Option<Duration> {
        (self.rtt_ns != 0).then(|| Duration::from_nanos(self.least_rtt_ns))
    }

    /// The retransmission time-out.
    pub fn rto(&self) -> Duration {
        let LossLimits { rto_floor, rto_start, rto_ceiling } = self.limits;
        let base = match self.rtt_ns {
            0 => rto_start,
            rtt => Duration::from_nanos(2 * rtt + 4 * self.deviation_ns).max(rto_floor),
        };
        (base * (1 << self.rto_doublings)).min(rto_ceiling)
    }

    /// How much later than its path's round-trip time a packet may come while others overtake it.
    pub fn reorder_window(&self) -> Duration {
        let window = (self.rtt_ns / 2).max(4 * self.deviation_ns) << self.reorder_doublings;
        Duration::from_nanos(window).min(self.rto())
    }

    /// Whether a packet that was sent after `sent_at` has been acknowledged.
    pub fn is_overtaken(&self, sent_at: Instant) -> bool {
        self.newest.is_some_and(|newest| newest > sent_at)
    }

    /// Until when a packet sent at `sent_at` may arrive, on a path with this round-trip time. A path that was never measured is
    /// taken for one like the others: of many paths most are measured seldom, and a packet lost on one of those would hold the
    /// window up for a whole time-out.
    pub fn deadline(&self, sent_at: Instant, path_rtt: Option<Duration>) -> Instant {
        if self.is_overtaken(sent_at) { self.earliest_deadline(sent_at, path_rtt) } else { sent_at + self.rto() }
    }

    /// The earliest that [`Loss::deadline`] can become by acknowledgements that are still to come.
    pub fn earliest_deadline(&self, sent_at: Instant, path_rtt: Option<Duration>) -> Instant {
        let rto = self.rto();
        sent_at + path_rtt.or(self.rtt()).map_or(rto, |rtt| rto.min(rtt + self.reorder_window()))
    }
}
