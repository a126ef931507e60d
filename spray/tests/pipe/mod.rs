//! A small model of a network in virtual time: N paths between one sender and one receiver, each with a delay, a rate, a queue
//! that marks and drops, loss, reordering within the path, and a time during which it is dead. Acknowledgements travel on the
//! paths too. Packets are numbers; what is checked is who learns what, and when.

use core::time::Duration;
use roce::rng::Rng;
use roce::wire::spray_ext::Sack;
use roce::{Instant, Psn};
use spray::{Arrival, Arrived, LossLimits, Policy, Receiver, Sender, SenderConfig, WindowLimits};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

pub const PACKET: u16 = 4150;
pub const FIRST: Psn = Psn::new(0xFF_FF00);

pub fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

pub fn at(us: u64) -> Instant {
    Instant::from_nanos(us * 1000)
}

/// One path.
#[derive(Clone, Debug)]
pub struct Path {
    pub delay: Duration,
    /// Time that a packet takes to be put on the wire.
    pub per_packet: Duration,
    /// Queueing time from which packets are marked, and from which they are dropped.
    pub mark_after: Duration,
    pub drop_after: Duration,
    /// Of a million packets.
    pub loss_ppm: u64,
    /// A packet is late by a random time up to this, independently of its neighbours.
    pub jitter: Duration,
    pub dead: Range<Instant>,
    busy_until: Instant,
}

impl Path {
    pub fn new(delay_us: u64) -> Path {
        Path {
            delay: us(delay_us),
            per_packet: Duration::from_nanos(5000),
            mark_after: us(20),
            drop_after: us(200),
            loss_ppm: 0,
            jitter: Duration::ZERO,
            dead: Instant::ZERO..Instant::ZERO,
            busy_until: Instant::ZERO,
        }
    }

    /// When a packet sent now arrives, and whether it is marked; `None` if it is lost.
    fn carry(&mut self, now: Instant, rng: &mut Rng) -> Option<(Instant, bool)> {
        let start = self.busy_until.max(now);
        let waits = start - now;
        if self.dead.contains(&now) || waits > self.drop_after || rng.below(1_000_000) < self.loss_ppm {
            return None;
        }
        self.busy_until = start + self.per_packet;
        let late = Duration::from_nanos(rng.below(self.jitter.as_nanos() as u64 + 1));
        Some((self.busy_until + self.delay + late, waits > self.mark_after))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Data(Psn, Arrived),
    Probe(Arrived),
    Sack(Psn, Box<Sack>),
    /// Something may be due at an end.
    Wake,
}

pub struct Pipe {
    pub sender: Sender,
    pub receiver: Receiver,
    pub paths: Vec<Path>,
    pub now: Instant,
    /// Time between two packets of the sending host.
    pub host_gap: Duration,
    pub probes: u64,
    /// Data packets that the paths lost.
    pub dropped: u64,
    /// When each packet became complete at the receiver, in order.
    pub completed: Vec<Instant>,
    /// Most packets that the receiver held beyond a gap.
    pub held_most: u32,
    rng: Rng,
    events: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    bodies: Vec<Event>,
    turns: u64,
    sends_at: Instant,
    woken: Option<Instant>,
}

pub fn config(policy: Policy, paths: usize) -> SenderConfig {
    let mut limits = WindowLimits::for_software(u32::from(PACKET), 1024, Duration::from_micros(50));
    limits.target_floor = us(20);
    SenderConfig {
        policy,
        paths: paths as u16,
        first_port: 0xC111,
        seed: 42,
        window: 1024,
        first_psn: FIRST,
        law: spray::Law::Proportional,
        limits,
        loss: LossLimits::default(),
    }
}

impl Pipe {
    pub fn new(config: &SenderConfig, paths: Vec<Path>, sack_every: u16) -> Pipe {
        assert_eq!(usize::from(config.paths), paths.len());
        Pipe {
            sender: Sender::new(config),
            receiver: Receiver::new(config.window, FIRST, sack_every, us(10)),
            paths,
            now: Instant::ZERO,
            host_gap: Duration::from_nanos(350),
            probes: 0,
            dropped: 0,
            completed: vec![],
            held_most: 0,
            rng: Rng::new(config.seed ^ 0xF1BE),
            events: BinaryHeap::new(),
            bodies: vec![],
            turns: 0,
            sends_at: Instant::ZERO,
            woken: None,
        }
    }

    fn schedule(&mut self, at: Instant, event: Event) {
        self.turns += 1;
        self.bodies.push(event);
        self.events.push(Reverse((at, self.turns, self.bodies.len() - 1)));
    }

    /// Whether the packet survives.
    fn launch(&mut self, path: usize, event: impl FnOnce(bool) -> Event) -> bool {
        let carried = self.paths[path].carry(self.now, &mut self.rng);
        if let Some((arrives, marked)) = carried {
            self.schedule(arrives, event(marked));
        }
        carried.is_some()
    }

    /// Sends whatever may be sent now, one packet per gap of the host.
    fn transmit(&mut self, total: u64) {
        while let Some(port) = self.sender.poll_probe(self.now) {
            self.probes += 1;
            let path = self.sender.paths().path(port).expect("a port of this connection").index();
            let time = self.now.as_nanos() as u32;
            self.launch(path, |marked| Event::Probe(Arrived { port, time, marked, ack_req: true }));
        }
        if self.now < self.sends_at {
            return;
        }
        let mut sent = self.sender.resend(self.now);
        if sent.is_none() && self.sender.counters().sent < total && self.sender.may_send(PACKET) {
            sent = Some(self.sender.send(self.now, PACKET));
        }
        let Some(sent) = sent else { return };
        self.sends_at = self.now + self.host_gap;
        let is_last = sent.psn == FIRST.plus(total as u32 - 1);
        let time = self.now.as_nanos() as u32;
        let arrived = move |marked| Arrived { port: sent.port, time, marked, ack_req: is_last };
        let survives = self.launch(sent.path.index(), |marked| Event::Data(sent.psn, arrived(marked)));
        self.dropped += u64::from(!survives);
        self.schedule(self.sends_at, Event::Wake);
    }

    fn acknowledge(&mut self) {
        let Some((cumulative, sack)) = self.receiver.poll_sack(self.now, 0) else { return };
        // It goes back on the path of the packet that it echoes, whose other direction has no queue.
        let path = self.sender.paths().path(sack.port).expect("a port of this connection").index();
        if !self.paths[path].dead.contains(&self.now) {
            let arrives = self.now + self.paths[path].delay;
            self.schedule(arrives, Event::Sack(cumulative, Box::new(sack)));
        }
    }

    fn wake_at(&mut self, at: Option<Instant>) {
        if let Some(at) = at
            && self.woken.is_none_or(|woken| woken <= self.now || at < woken)
        {
            self.woken = Some(at.max(self.now));
            self.schedule(at.max(self.now), Event::Wake);
        }
    }

    /// Runs until `total` packets are complete and acknowledged. Returns how long that took from the start.
    pub fn run(&mut self, total: u64) -> Duration {
        let mut steps = 0_u64;
        self.transmit(total);
        while self.sender.board().oldest() != FIRST.plus(total as u32) {
            let wake = [self.sender.poll_timeout(), self.receiver.poll_timeout()].into_iter().flatten().min();
            self.wake_at(wake);
            let Reverse((at, _, body)) = self.events.pop().expect("something is under way or due");
            self.now = at;
            steps += 1;
            assert!(steps < 200 * total + 100_000, "no end: {:?}", self.sender.counters());
            match std::mem::replace(&mut self.bodies[body], Event::Wake) {
                Event::Data(psn, arrived) => {
                    let arrival = self.receiver.on_packet(self.now, psn, 1, arrived);
                    assert_ne!(arrival, Arrival::Outside, "the sender keeps to the window");
                    let passed = self.receiver.advance();
                    self.completed.extend((0..passed).map(|_| at));
                    let held = self.sender.board().next().distance_from(self.receiver.window().expected()).max(0) as u32;
                    self.held_most = self.held_most.max(held);
                }
                Event::Probe(arrived) => self.receiver.on_probe(arrived),
                Event::Sack(cumulative, sack) => {
                    self.sender.on_sack(self.now, cumulative, &sack);
                }
                Event::Wake => self.sender.on_timeout(self.now),
            }
            self.acknowledge();
            self.transmit(total);
        }
        assert_eq!(self.completed.len() as u64, total, "each packet was complete once");
        self.now - Instant::ZERO
    }
}
