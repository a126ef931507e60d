//! Hosts, each a real core that sends one turn at a time: the next is asked for when the link is free again.
//!
//! A card takes [`Card::packet_time`] for each packet, and makes four of them while the one before is still on the link; a message takes
//! [`Card::post`] from the program to the card and [`Card::complete`] back. Copies between devices of one host take the card as long as the
//! link would have taken.

use super::card::Card;
use super::ends::{End, NoMemory, Side, owner_of};
use super::load::{Got, Load, Op};
use super::switch::{Hop, Switches, Uplink};
use crate::time::Time;
use isolation::{Class, Policy};
use rnic::*;
use roce::Qpn;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

/// What all runs of an experiment have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    /// The card of all hosts.
    pub card: Card,
    /// Longest turn while others wait, in bytes; `None`: one packet.
    pub turn_bytes: Option<u32>,
    /// Connections have a congestion window, by marks and delay. READs and atomics have none.
    pub congestion_control: bool,
    /// A link between two switches.
    pub uplink: Option<Uplink>,
}

impl Setup {
    /// Hosts with such cards on one switch.
    pub fn new(card: Card) -> Setup {
        Setup { card, turn_bytes: None, congestion_control: false, uplink: None }
    }
}

/// A probe of Justitia's every so often.
const PROBE_EVERY: Duration = Duration::from_micros(20);
/// Packets that a card has in the making while another one leaves.
const AHEAD: u64 = 4;
/// Queueing that the congestion window does not mind: what the programs at the ends may add.
const END_DELAY: Duration = Duration::from_micros(10);
/// Nothing is lost, so that no time-out may end: queues are long without congestion control.
const NO_LOSS: spray::LossLimits = spray::LossLimits {
    rto_floor: Duration::from_millis(500),
    rto_start: Duration::from_millis(500),
    rto_ceiling: Duration::from_secs(1),
};

enum Event {
    /// A loop posts a batch.
    Post { load: usize, qp: usize },
    /// The batch has reached the card.
    Doorbell { load: usize, qp: usize },
    /// The answer to a message has reached the peer's card.
    Answer { load: usize, qp: usize },
    /// The host's link may be free.
    Send { host: usize },
    /// A packet has reached a switch.
    AtSwitch(Packet),
    /// A packet has reached its host.
    Arrive(Packet),
    /// A message is complete, and its program knows.
    Complete { load: usize, qp: usize },
}

struct Packet {
    from: IpAddr,
    to: IpAddr,
    src_port: u16,
    bytes: Vec<u8>,
    has_crossed: bool,
    congested: bool,
}

struct Planned {
    at: Time,
    /// Of events at the same time, the one that was planned first comes first.
    sequence: u64,
    event: Event,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Planned {
    /// The heap gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

struct Host {
    rnic: Rnic,
    /// When its card is done with the last packet.
    card_free: Time,
    /// When its link is free.
    link_free: Time,
    /// The earliest [`Event::Send`] that is planned.
    planned: Time,
    /// How long card and link have worked while it was measured, in picoseconds.
    worked: [u64; 2],
}

/// A queue pair of a load.
struct Loop {
    qpn: Qpn,
    peer: Qpn,
    /// When each message under way was posted.
    posted: VecDeque<Time>,
    /// When its program has posted what it wanted to; and the peer's.
    program_free: [Time; 2],
    /// Messages that have reached the card.
    count: u64,
}

struct Running {
    load: Load,
    ends: [End; 2],
    loops: Vec<Loop>,
    got: Got,
    /// Bytes on the wire before they were measured.
    before: u64,
    is_probe: bool,
}

impl Running {
    fn end(&self, side: Side) -> &End {
        &self.ends[side as usize]
    }
}

/// What a completion is of: the load, the queue pair, the end, and whether it is a receive.
#[derive(Clone, Copy)]
struct WorkId {
    load: usize,
    qp: usize,
    side: Side,
    is_receive: bool,
}

impl WorkId {
    fn pack(self) -> u64 {
        u64::from(self.is_receive) << 63 | (self.side as u64) << 62 | (self.load as u64) << 32 | self.qp as u64
    }

    fn unpack(id: u64) -> WorkId {
        let side = if id >> 62 & 1 == 0 { Side::Own } else { Side::Peer };
        WorkId { load: (id >> 32 & 0xFFFF) as usize, qp: id as u32 as usize, side, is_receive: id >> 63 == 1 }
    }
}

/// A run.
pub struct Lab {
    setup: Setup,
    policy: Policy,
    now: Time,
    queue: BinaryHeap<Planned>,
    sequence: u64,
    hosts: Vec<Host>,
    switches: Switches,
    running: Vec<Running>,
    measuring: bool,
    buf: Vec<u8>,
}

impl Lab {
    /// Runs `loads` for `warm_up` and then for `measured`, and returns what each got in that time.
    ///
    /// # Panics
    /// If a load names more than the core has, or one of them fails: nothing is lost here, and nobody makes mistakes.
    pub fn run(setup: &Setup, policy: Policy, loads: &[Load], (warm_up, measured): (Duration, Duration)) -> Vec<Got> {
        let hosts = loads.iter().map(|load| load.from.max(load.to) + 1).max().unwrap_or(0);
        let multipath = MultipathConfig {
            policy: spray::Policy::Single,
            paths: 1,
            window: spray::MAX_WINDOW,
            flight: spray::MAX_WINDOW,
            delay: END_DELAY,
            loss: NO_LOSS,
            agreed: true,
            ..MultipathConfig::default()
        };
        let config = |n| Config {
            seed: n as u64,
            sharing: setup.card.sharing(policy, setup.turn_bytes),
            multipath: setup.congestion_control.then_some(multipath),
            ..Config::default()
        };
        let host = |n| Host {
            rnic: Rnic::new(config(n)),
            card_free: Time::ZERO,
            link_free: Time::ZERO,
            planned: Time::NEVER,
            worked: [0; 2],
        };
        let mut lab = Lab {
            setup: *setup,
            policy,
            now: Time::ZERO,
            queue: BinaryHeap::new(),
            sequence: 0,
            hosts: (0..hosts).map(host).collect(),
            switches: Switches::new(hosts, setup.card.gbps, setup.uplink),
            running: Vec::new(),
            measuring: false,
            buf: vec![0; 60 << 10],
        };
        for load in loads {
            lab.add(load.clone(), false);
        }
        if let Policy::Justitia(parameters) = policy {
            let may_be_slowed = |load: &Load| load.class() == Class::Latency || parameters.reported.is_some();
            let probed = loads.iter().filter(|load| may_be_slowed(load) && load.op != Op::Read);
            let mut pairs: Vec<(usize, usize)> = probed.map(|load| (load.from, load.to)).collect();
            pairs.dedup();
            for (from, to) in pairs {
                lab.add(Load { from, to, ..Load::latency("probe", 10) }, true);
            }
        }
        lab.until(Time::ZERO.after(ps(warm_up)));
        lab.measuring = true;
        for n in 0..lab.running.len() {
            lab.running[n].before = lab.moved(n);
        }
        lab.until(lab.now.after(ps(measured)));
        let worked = lab.hosts.iter().flat_map(|host| host.worked).max().unwrap_or(0);
        let busiest = worked as f64 / ps(measured) as f64;
        let results = (0..loads.len()).map(|n| {
            let bytes = lab.moved(n) - lab.running[n].before;
            let now = lab.now;
            let Running { load, loops, got, .. } = &mut lab.running[n];
            // What has not come back yet took at least so long.
            let waiting = loops.iter().flat_map(|one| &one.posted).map(|&posted| now.since(posted));
            if keeps_latencies(load) {
                got.latencies.extend(waiting);
            }
            got.latencies.sort_unstable();
            Got { bytes, seconds: measured.as_secs_f64(), busiest, ..std::mem::take(got) }
        });
        results.collect()
    }

    fn add(&mut self, load: Load, is_probe: bool) {
        let n = self.running.len();
        let tells = load.claims || !matches!(self.policy, Policy::Shares);
        let ends = [(Side::Own, load.from), (Side::Peer, load.to)]
            .map(|(side, host)| End::new(&mut self.hosts[host].rnic, n, side, &load, tells));
        let loops = (0..load.qps as usize).map(|qp| {
            let [qpn, peer] = ends.each_ref().map(|end| end.queue_pair(&mut self.hosts[end.host].rnic, &load));
            for (side, end, other, qpn, dest) in
                [(Side::Own, &ends[0], &ends[1], qpn, peer), (Side::Peer, &ends[1], &ends[0], peer, qpn)]
            {
                let rnic = &mut self.hosts[end.host].rnic;
                end.connect(rnic, qpn, other, dest, &load, self.setup.card.mtu);
                for _ in 0..end.receives(&load) {
                    end.post_receive(rnic, qpn, &load, WorkId { load: n, qp, side, is_receive: true }.pack());
                }
            }
            Loop { qpn, peer, posted: VecDeque::new(), program_free: [Time::ZERO; 2], count: 0 }
        });
        let loops: Vec<Loop> = loops.collect();
        let start = Time::ZERO.after(ps(load.start));
        for qp in 0..loops.len() {
            for _ in 0..load.depth {
                self.plan(start, Event::Post { load: n, qp });
            }
        }
        self.running.push(Running { load, ends, loops, got: Got::default(), before: 0, is_probe });
    }

    /// Bytes that a load has moved so far, those of messages under way too.
    fn moved(&self, n: usize) -> u64 {
        let Running { load, ends: [end, _], .. } = &self.running[n];
        let counters = self.hosts[end.host].rnic.counters(end.device).expect("devices stay");
        match load.op {
            _ if load.from == load.to => counters.local_bytes,
            Op::Read | Op::CompareSwap | Op::FetchAdd => counters.rcvd_bytes,
            Op::Write | Op::Send | Op::Echo => counters.sent_bytes,
        }
    }

    fn plan(&mut self, at: Time, event: Event) {
        self.sequence += 1;
        self.queue.push(Planned { at, sequence: self.sequence, event });
    }

    fn until(&mut self, end: Time) {
        while self.queue.peek().is_some_and(|planned| planned.at <= end) {
            let Some(Planned { at, event, .. }) = self.queue.pop() else { return };
            self.now = at;
            self.handle(event);
        }
        self.now = end;
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Post { load, qp } => {
                let batch = self.running[load].load.batch;
                let Loop { posted, program_free, .. } = &mut self.running[load].loops[qp];
                let begins = program_free[0].max(self.now);
                posted.extend((0..batch).map(|_| begins));
                let reaches = self.reaches_card(load, qp, Side::Own, batch);
                self.plan(reaches, Event::Doorbell { load, qp });
            }
            Event::Doorbell { load, qp } => {
                for _ in 0..self.running[load].load.batch {
                    self.post(load, qp, Side::Own);
                }
                self.send(self.running[load].load.from);
            }
            Event::Answer { load, qp } => {
                self.post(load, qp, Side::Peer);
                self.send(self.running[load].load.to);
            }
            Event::Send { host } => {
                if self.hosts[host].planned <= self.now {
                    self.hosts[host].planned = Time::NEVER;
                }
                self.send(host);
            }
            Event::AtSwitch(packet) => self.switch(packet),
            Event::Arrive(packet) => self.arrive(&packet),
            Event::Complete { load, qp } => self.complete(load, qp),
        }
    }

    /// When the card has what a program posts from now on.
    fn reaches_card(&mut self, load: usize, qp: usize, side: Side, messages: u32) -> Time {
        let free = &mut self.running[load].loops[qp].program_free[side as usize];
        *free = (*free).max(self.now).after(ps(self.setup.card.post_time) * u64::from(messages));
        free.after(ps(self.setup.card.post))
    }

    fn post(&mut self, n: usize, qp: usize, side: Side) {
        let Running { load, ends: [own, peer], loops, .. } = &mut self.running[n];
        let one = &mut loops[qp];
        let (end, other, numbers) = match side {
            Side::Own => (own, peer, (one.qpn, one.peer)),
            Side::Peer => (peer, own, (one.peer, one.qpn)),
        };
        let id = WorkId { load: n, qp, side, is_receive: false }.pack();
        end.post(&mut self.hosts[end.host].rnic, self.now.instant(), other, numbers, load, id, one.count);
        one.count += 1;
    }

    /// Lets a host do what it can: one turn if its link is free.
    fn send(&mut self, host: usize) {
        let (now, card) = (self.now.instant(), self.setup.card);
        let Host { rnic, card_free, link_free, worked, .. } = &mut self.hosts[host];
        if rnic.poll_timeout().is_some_and(|at| at <= now) {
            rnic.handle_timeout(now);
        }
        let mut next = None;
        // The card makes the next packets while the last one leaves.
        let packet_time = ps(card.packet_time);
        let may = |card: Time, link: Time| card.max(Time::from_ps(link.ps().saturating_sub(AHEAD * packet_time)));
        if may(*card_free, *link_free) > self.now {
            next = Some(may(*card_free, *link_free));
        } else if let Some(work) = rnic.poll_transmit(now, &mut NoMemory, &mut self.buf) {
            let mut used = [0; 2];
            match work {
                Work::Packets(burst) => {
                    for bytes in self.buf[..burst.len].chunks(burst.segment_len) {
                        *card_free = (*card_free).max(self.now).after(packet_time);
                        let begins = (*link_free).max(*card_free);
                        let took = card.on_link(bytes.len());
                        *link_free = begins.after(took);
                        used = [used[0] + packet_time, used[1] + took];
                        let packet = Packet {
                            from: burst.src,
                            to: burst.dst,
                            src_port: burst.src_port,
                            bytes: bytes.to_vec(),
                            has_crossed: false,
                            congested: false,
                        };
                        self.sequence += 1;
                        let reaches = begins.after(ps(card.wire));
                        self.queue.push(Planned { at: reaches, sequence: self.sequence, event: Event::AtSwitch(packet) });
                    }
                }
                Work::Copied { bytes, messages } => {
                    let took = card.on_link(bytes as usize).max(packet_time * u64::from(messages));
                    *card_free = (*card_free).max(self.now).after(took);
                    used[0] = took;
                }
            }
            if self.measuring {
                *worked = [worked[0] + used[0], worked[1] + used[1]];
            }
            next = Some(may(*card_free, *link_free));
        } else if let Some(at) = rnic.poll_timeout() {
            next = Some(Time::at_instant(at));
        }
        self.completions(host);
        if let Some(at) = next.map(|at| at.max(self.now.after(1)))
            && at < self.hosts[host].planned
        {
            self.hosts[host].planned = at;
            self.plan(at, Event::Send { host });
        }
    }

    fn switch(&mut self, mut packet: Packet) {
        let (from, to) = (self.host_of(packet.from), self.host_of(packet.to));
        let Hop { begins, ends, crosses, marks } =
            self.switches.pass(self.now, from, to, packet.bytes.len(), packet.has_crossed);
        packet.congested |= marks;
        let wire = ps(self.setup.card.wire);
        if crosses {
            packet.has_crossed = true;
            self.plan(begins.after(wire), Event::AtSwitch(packet));
        } else {
            self.plan(ends.after(wire), Event::Arrive(packet));
        }
    }

    fn arrive(&mut self, packet: &Packet) {
        let (n, side) = owner_of(packet.to);
        let End { host, device, .. } = *self.running[n].end(side);
        let meta = RxMeta {
            device,
            src: packet.from,
            dst: packet.to,
            src_port: packet.src_port,
            segment_len: packet.bytes.len(),
            congested: packet.congested,
            trimmed: false,
        };
        self.hosts[host].rnic.handle_burst(self.now.instant(), &meta, &packet.bytes, &mut NoMemory);
        self.send(host);
    }

    fn completions(&mut self, host: usize) {
        while let Some((_, completion)) = self.hosts[host].rnic.poll_completion() {
            assert_eq!(completion.status, Status::Success, "nothing is lost here");
            let id @ WorkId { load: n, qp, side, is_receive } = WorkId::unpack(completion.wr_id);
            let known = self.now.after(ps(self.setup.card.complete));
            let Running { load, loops, .. } = &self.running[n];
            let is_echo = load.op == Op::Echo;
            if is_receive {
                let qpn = if side == Side::Own { loops[qp].qpn } else { loops[qp].peer };
                let end = self.running[n].end(side);
                end.post_receive(&mut self.hosts[host].rnic, qpn, load, id.pack());
            }
            match (side, is_receive) {
                (Side::Peer, true) if is_echo => {
                    let reaches = self.reaches_card(n, qp, Side::Peer, 1).after(ps(self.setup.card.complete));
                    self.plan(reaches, Event::Answer { load: n, qp });
                }
                (Side::Own, is_receive) if is_receive == is_echo => self.plan(known, Event::Complete { load: n, qp }),
                _ => {}
            }
        }
    }

    fn complete(&mut self, n: usize, qp: usize) {
        let now = self.now;
        let Running { load, loops, got, is_probe, ends: [end, _], .. } = &mut self.running[n];
        let Some(posted) = loops[qp].posted.pop_front() else { unreachable!("what completes was posted") };
        let took = now.since(posted);
        if self.measuring {
            got.messages += 1;
            if keeps_latencies(load) {
                got.latencies.push(took);
            }
        }
        let mut next = now;
        if *is_probe {
            self.hosts[end.host].rnic.note_latency(Duration::from_nanos(took / 1000));
            next = now.max(posted.after(ps(PROBE_EVERY)));
        }
        // Those of a whole batch are complete.
        if (loops[qp].posted.len() as u32).is_multiple_of(load.batch) {
            self.plan(next, Event::Post { load: n, qp });
        }
    }

    fn host_of(&self, ip: IpAddr) -> usize {
        let (n, side) = owner_of(ip);
        self.running[n].end(side).host
    }
}

fn keeps_latencies(load: &Load) -> bool {
    load.class() == Class::Latency || load.op == Op::Echo
}

fn ps(time: Duration) -> u64 {
    time.as_nanos() as u64 * 1000
}
