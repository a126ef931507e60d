//! How much may be under way on all paths of a connection together: one window, from congestion marks and round-trip times.
//!
//! Two laws, behind one type: [`Law::Proportional`] is our own, [`Law::Nscc`] that of Ultra Ethernet. Loss is the last resort of
//! both: with many paths it says more about a path than about the network.

mod nscc;
mod proportional;

use core::time::Duration;
use nscc::Nscc;
use proportional::Proportional;
use roce::Instant;

/// Which law makes the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Law {
    /// Grows by doubling, then by a constant per round; shrinks once per round in proportion to how far the mean queueing delay
    /// of the round is above the target, or to the share of marked packets.
    Proportional,
    /// Network signalled congestion control: per acknowledgement, four cases of marked or not and slow or not.
    Nscc,
}

/// Bounds of the window and what is known of the network, for both laws.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowLimits {
    /// Bytes of a full packet.
    pub packet: u32,
    /// The window at the start, at least and at most, in bytes.
    pub start: u64,
    /// The least.
    pub floor: u64,
    /// The most.
    pub ceiling: u64,
    /// Round-trip time without queues; measured if it is not given.
    pub base_rtt: Option<Duration>,
    /// The queueing delay that is aimed at, in units of the base round-trip time: 0.75 with switches that trim, else 1.
    pub target: f64,
    /// The least target, whatever the round-trip time: what timers and schedulers of the ends may add.
    pub target_floor: Duration,
    /// The bandwidth-delay product in bytes, by which NSCC scales its constants; the ceiling if it is not known.
    pub bdp: Option<u64>,
}

impl WindowLimits {
    /// 64 packets to start with, 4 at least, `window` at most. Delays up to `delay` are not counted: 50 µs are what a software end adds
    /// that has its processor for itself.
    pub fn for_software(packet: u32, window: u16, delay: Duration) -> WindowLimits {
        let bytes = |packets: u16| u64::from(packets) * u64::from(packet);
        WindowLimits {
            packet,
            start: bytes(window.min(64)),
            floor: bytes(window.min(4)),
            ceiling: bytes(window),
            base_rtt: None,
            target: 1.0,
            target_floor: delay,
            bdp: None,
        }
    }
}

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Acked {
    /// Bytes that it acknowledges for the first time.
    pub bytes: u64,
    /// Round-trip time of the packet that it echoes.
    pub rtt: Option<Duration>,
    /// That packet carried a congestion mark.
    pub marked: bool,
    /// The share of marked packets among those received since the last acknowledgement, 0 to 1.
    pub marked_share: f64,
    /// Bytes in flight after it.
    pub in_flight: u64,
}

/// The congestion window of a connection.
#[derive(Clone, Debug)]
pub struct Congestion {
    law: State,
    base: BaseRtt,
    limits: WindowLimits,
}

#[derive(Clone, Debug)]
enum State {
    Proportional(Proportional),
    Nscc(Nscc),
}

impl Congestion {
    /// A window as it is at the start.
    pub fn new(law: Law, limits: WindowLimits) -> Congestion {
        let law = match law {
            Law::Proportional => State::Proportional(Proportional::new(&limits)),
            Law::Nscc => State::Nscc(Nscc::new(&limits)),
        };
        Congestion { law, base: BaseRtt::default(), limits }
    }

    /// Bytes that may be in flight.
    pub fn window(&self) -> u64 {
        let window = match &self.law {
            State::Proportional(law) => law.window,
            State::Nscc(law) => law.window,
        };
        (window as u64).clamp(self.limits.floor, self.limits.ceiling)
    }

    /// The round-trip time without queues, given or measured.
    pub fn base_rtt(&self) -> Option<Duration> {
        self.limits.base_rtt.or(self.base.least())
    }

    /// The queueing delay that is aimed at.
    pub fn target(&self) -> Option<Duration> {
        let base = self.base_rtt()?;
        Some(Duration::from_nanos((base.as_nanos() as f64 * self.limits.target) as u64).max(self.limits.target_floor))
    }

    /// Takes an acknowledgement.
    pub fn on_ack(&mut self, now: Instant, acked: &Acked) {
        if let Some(rtt) = acked.rtt {
            self.base.take(now, rtt);
        }
        let delay = acked.rtt.zip(self.base_rtt()).map(|(rtt, base)| rtt.saturating_sub(base));
        let signal = Signal {
            now,
            acked,
            delay: delay.zip(self.target()).map(|(delay, target)| (seconds(delay), seconds(target))),
            base: self.base_rtt().map_or(0.0, seconds),
        };
        match &mut self.law {
            State::Proportional(law) => law.on_ack(&signal, &self.limits),
            State::Nscc(law) => law.on_ack(&signal, &self.limits),
        }
        self.clamp();
    }

    /// `bytes` were refused by the network (their payload was cut off), or are lost.
    pub fn on_loss(&mut self, now: Instant, bytes: u64, in_flight: u64) {
        match &mut self.law {
            State::Proportional(law) => law.on_loss(bytes),
            State::Nscc(law) => law.on_loss(now, bytes, in_flight, &self.limits),
        }
        self.clamp();
    }

    /// Nothing was heard for a whole time-out.
    pub fn on_silence(&mut self) {
        match &mut self.law {
            State::Proportional(law) => law.on_silence(&self.limits),
            State::Nscc(law) => law.window = self.limits.floor as f64,
        }
    }

    /// Everything that was given up for lost since the window last shrank had arrived: the window is as it was before.
    pub fn on_undo(&mut self) {
        match &mut self.law {
            State::Proportional(law) => law.on_undo(),
            State::Nscc(law) => law.on_undo(),
        }
        self.clamp();
    }

    fn clamp(&mut self) {
        let (floor, ceiling) = (self.limits.floor as f64, self.limits.ceiling as f64);
        let window = match &mut self.law {
            State::Proportional(law) => &mut law.window,
            State::Nscc(law) => &mut law.window,
        };
        *window = window.clamp(floor, ceiling);
    }
}

/// An acknowledgement as the laws see it. Times are in seconds.
struct Signal<'a> {
    now: Instant,
    acked: &'a Acked,
    /// Queueing delay, and the delay that is aimed at.
    delay: Option<(f64, f64)>,
    base: f64,
}

fn seconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e9
}

/// The least round-trip time of the last 10 to 20 seconds: routes change.
#[derive(Clone, Copy, Debug, Default)]
struct BaseRtt {
    since: Option<Instant>,
    current: Option<Duration>,
    before: Option<Duration>,
}

impl BaseRtt {
    const EPOCH: Duration = Duration::from_secs(10);

    fn take(&mut self, now: Instant, rtt: Duration) {
        let since = *self.since.get_or_insert(now);
        if now - since >= Self::EPOCH {
            self.since = Some(now);
            self.before = self.current.take();
        }
        self.current = Some(self.current.map_or(rtt, |least| least.min(rtt)));
    }

    fn least(&self) -> Option<Duration> {
        [self.current, self.before].into_iter().flatten().min()
    }
}
