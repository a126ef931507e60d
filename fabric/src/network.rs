//! The network between the hosts: ports, wires and switches, and what each does with a packet.
//!
//! A port is the beginning of a wire: a queue, a rate, a delay. A switch takes a packet whole, finds the port for its receiver
//! by ECMP, and queues it there. With PFC a switch that holds too much of what came by one wire pauses the port at
//! the wire's beginning. Every packet that hosts sent is received, dropped for a counted cause, or under way.

use crate::calendar::Calendar;
use crate::checker::{Checker, Violation};
use crate::event::Event;
use crate::fault::{Action, FaultPlan};
use crate::packet::{NONE, Pool};
use crate::queue::{Admission, Queue, QueueRules};
use crate::time::{Rate, Time, micros};
use crate::topology::{Node, Topology};
use roce::rng::{Rng, mix};
use serde::Serialize;

/// The beginning of a wire.
#[derive(Clone, Debug)]
pub struct Port {
    /// Where the wire ends.
    pub to: Node,
    /// What waits.
    pub queue: Queue,
    /// Bytes that were sent, Ethernet header to FCS.
    pub sent_bytes: u64,
    rate: Rate,
    full_rate: Rate,
    /// When it has sent its packet.
    busy_until: Time,
    /// An [`Event::Free`] is to come.
    wakes: bool,
    /// The other end said so.
    paused: bool,
    /// Faults that hold the link down.
    downs: u32,
    /// Whether switches that are not at its ends think that it is down.
    pub(crate) known_down: bool,
    /// When it last went down.
    down_at: Option<Time>,
    /// Bytes that came by this wire and wait in the switch at its end.
    held: u32,
    /// That switch has asked this port to pause.
    asked: bool,
}

impl Port {
    /// Whether the link works.
    #[inline]
    pub fn is_up(&self) -> bool {
        self.downs == 0
    }
}

/// Pausing by priority flow control.
#[derive(Clone, Copy, Debug)]
struct Pfc {
    /// Bytes of one wire at which it is asked to pause, to go on, and at which there is no more room.
    pause: u32,
    resume: u32,
    limit: u32,
}

/// What became of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NetworkCounters {
    /// Packets that hosts sent.
    pub sent: u64,
    /// Packets that hosts received.
    pub received: u64,
    /// Those among them that carried payload.
    pub received_data: u64,
    /// Dropped as there was no room.
    pub dropped_full: u64,
    /// Lost by chance.
    pub dropped_loss: u64,
    /// Lost on a link that was down.
    pub dropped_down: u64,
    /// Dropped as there was no way to the receiver.
    pub dropped_no_route: u64,
    /// Cut to their headers.
    pub trimmed: u64,
    /// Received with a congestion mark.
    pub marked: u64,
    /// Bits flipped by chance.
    pub corrupted: u64,
    /// Packets made late by chance.
    pub delayed: u64,
    /// Times that a port was paused.
    pub pauses: u64,
}

impl NetworkCounters {
    /// Dropped for any cause.
    pub fn dropped(&self) -> u64 {
        self.dropped_full + self.dropped_loss + self.dropped_down + self.dropped_no_route
    }
}

/// Chances of a packet on a wire, as thresholds for 64 random bits.
#[derive(Clone, Copy, Debug)]
struct Chances {
    loss: u64,
    corruption: u64,
    delay: u64,
    delay_max: u64,
}

/// The network.
#[derive(Debug)]
pub struct Network {
    /// What it is made of.
    pub topology: Topology,
    /// The port at the beginning of each wire.
    pub ports: Vec<Port>,
    /// Packets under way.
    pub pool: Pool,
    /// What became of them.
    pub counters: NetworkCounters,
    /// What went wrong here.
    pub checker: Checker,
    rules: QueueRules,
    /// Queues of hosts: these take from their cores only what a port can send.
    host_rules: QueueRules,
    pfc: Option<Pfc>,
    delay: u64,
    pub(crate) ipv6: bool,
    chances: Option<Chances>,
    /// Time until all switches know of a link's state.
    reroute: Option<u64>,
    /// Links down, as wires: while there are none, all routes are open.
    pub(crate) down_wires: u32,
    /// Wires that switches further away think to be down.
    pub(crate) known_down_wires: u32,
    pub(crate) salts: Vec<u64>,
    rng: Rng,
}

/// What a network is made of, besides its topology.
#[derive(Clone, Copy, Debug)]
pub struct NetworkRules<'a> {
    /// Rate of links.
    pub rate: Rate,
    /// Delay of links, in picoseconds.
    pub delay: u64,
    /// Queues of switches.
    pub queue: QueueRules,
    /// Bytes at which a wire is paused.
    pub pfc_pause: Option<u32>,
    /// Whether packets travel over IPv6.
    pub ipv6: bool,
    /// Bytes of the largest frame.
    pub frame: u32,
    /// What goes wrong.
    pub faults: &'a FaultPlan,
    /// Where chance comes from.
    pub seed: u64,
}

impl Network {
    /// An empty network.
    pub fn new(topology: Topology, rules: &NetworkRules<'_>) -> Network {
        let NetworkRules { rate, delay, queue, ipv6, frame, faults, seed, .. } = *rules;
        let port = |to| Port {
            to,
            queue: Queue::default(),
            sent_bytes: 0,
            rate,
            full_rate: rate,
            busy_until: Time::ZERO,
            wakes: false,
            paused: false,
            downs: 0,
            known_down: false,
            down_at: None,
            held: 0,
            asked: false,
        };
        // What may still come after a wire was asked to pause: the way there and back, and a packet begun at each end.
        let on_the_way = u32::try_from(2 * delay / rate.duration(1).max(1)).unwrap_or(u32::MAX).saturating_add(4 * frame);
        let pfc = rules.pfc_pause.map(|pause| Pfc { pause, resume: pause / 2, limit: pause.saturating_add(on_the_way) });
        let threshold = |chance: f64| if chance >= 1.0 { u64::MAX } else { (chance * 2_f64.powi(64)) as u64 };
        let chances = faults.has_chances().then(|| Chances {
            loss: threshold(faults.loss),
            corruption: threshold(faults.corruption),
            delay: threshold(faults.delay),
            delay_max: micros(faults.delay_max_us),
        });
        Network {
            ports: topology.wires.iter().map(|wire| port(wire.to)).collect(),
            salts: (0..(topology.switches.len() as u64 + 1)).map(|n| mix(seed ^ mix(n + 1))).collect(),
            topology,
            pool: Pool::default(),
            counters: NetworkCounters::default(),
            checker: Checker::default(),
            rules: queue,
            host_rules: QueueRules { limit: u32::MAX, mark: None, trim: false, ..queue },
            pfc,
            delay,
            ipv6,
            chances,
            reroute: faults.reroute_us.map(micros),
            down_wires: 0,
            known_down_wires: 0,
            rng: Rng::new(mix(seed ^ 0x6E65_7477)),
        }
    }

    /// The ports of a host, one per plane.
    fn ports_of(&self, host: u32) -> std::ops::Range<u32> {
        let planes = self.topology.planes;
        host * planes..(host + 1) * planes
    }

    /// Whether a host should make another packet: a port of its waits for work, and none has much left.
    #[inline]
    pub fn wants_packets(&self, host: u32, now: Time) -> bool {
        let mut idle = false;
        for wire in self.ports_of(host) {
            let port = &self.ports[wire as usize];
            let is_open = !port.paused || !port.is_up();
            idle |= is_open && port.busy_until <= now && port.queue.is_empty();
            // With several planes a packet may be for one that is busy.
            if port.queue.bytes() > 64 << 10 {
                return false;
            }
        }
        idle
    }

    /// A host sends a packet.
    pub fn send(&mut self, calendar: &mut Calendar<Event>, host: u32, id: u32) {
        self.counters.sent += 1;
        let wire = self.plane_for(host, id);
        self.pool[id].ingress = NONE;
        self.offer(calendar, wire, id);
    }

    /// A packet has come to the end of a wire; the host that has received it, if it was one. The packet is then its.
    #[inline]
    pub fn arrive(&mut self, calendar: &mut Calendar<Event>, wire: u32, id: u32) -> Option<u32> {
        let port = &self.ports[wire as usize];
        let packet = &mut self.pool[id];
        if !port.is_up() || port.down_at.is_some_and(|at| at >= packet.sent_at) {
            self.counters.dropped_down += 1;
            self.pool.give_back(id);
            return None;
        }
        match port.to {
            Node::Host(host) => {
                self.counters.received += 1;
                self.counters.received_data += u64::from(!packet.is_control);
                self.counters.marked += u64::from(packet.marked);
                Some(host)
            }
            Node::Switch(switch) => {
                match self.route(switch, id) {
                    Some(out) => {
                        self.pool[id].ingress = wire;
                        self.offer(calendar, out, id);
                    }
                    None => {
                        self.counters.dropped_no_route += 1;
                        self.pool.give_back(id);
                    }
                }
                None
            }
        }
    }

    /// Queues a packet at a port.
    fn offer(&mut self, calendar: &mut Calendar<Event>, wire: u32, id: u32) {
        let is_host = self.is_host_port(wire);
        if !self.ports[wire as usize].is_up() {
            self.counters.dropped_down += 1;
            self.pool.give_back(id);
            return;
        }
        if !self.has_room(id) {
            self.counters.dropped_full += 1;
            self.pool.give_back(id);
            return;
        }
        let rules = if is_host { &self.host_rules } else { &self.rules };
        match self.ports[wire as usize].queue.offer(&mut self.pool, id, rules, self.ipv6) {
            Admission::Queued => {}
            Admission::Trimmed => self.counters.trimmed += 1,
            Admission::Full => {
                self.counters.dropped_full += 1;
                self.pool.give_back(id);
                return;
            }
        }
        self.hold(calendar, id);
        self.transmit(calendar, wire);
    }

    /// Sends the next packet, if the port can.
    fn transmit(&mut self, calendar: &mut Calendar<Event>, wire: u32) {
        let now = calendar.now();
        let is_host = self.is_host_port(wire);
        let port = &mut self.ports[wire as usize];
        if now >= port.busy_until && !port.paused && port.is_up() {
            let rules = if is_host { &self.host_rules } else { &self.rules };
            if let Some(id) = port.queue.next(&mut self.pool, rules, &mut self.rng) {
                let packet = &mut self.pool[id];
                packet.sent_at = now;
                port.busy_until = now.after(port.rate.duration(packet.frame_len));
                port.sent_bytes += u64::from(packet.frame_len);
                let arrival = port.busy_until.after(self.delay);
                self.release(calendar, id);
                self.put_on_wire(calendar, wire, id, arrival);
            }
        }
        let port = &mut self.ports[wire as usize];
        if !port.wakes && port.busy_until > now && (is_host || !port.queue.is_empty()) {
            port.wakes = true;
            calendar.add(port.busy_until, Event::Free { wire });
        }
        self.check_port(wire, now);
    }

    /// The packet is on its way, unless chance has it otherwise.
    #[inline]
    fn put_on_wire(&mut self, calendar: &mut Calendar<Event>, wire: u32, id: u32, mut arrival: Time) {
        if let Some(chances) = self.chances {
            if self.rng.next_u64() < chances.loss {
                self.counters.dropped_loss += 1;
                self.pool.give_back(id);
                return;
            }
            if self.rng.next_u64() < chances.corruption {
                self.counters.corrupted += 1;
                let random = self.rng.next_u64();
                self.pool[id].corrupt(random);
            }
            if self.rng.next_u64() < chances.delay {
                self.counters.delayed += 1;
                arrival = arrival.after(self.rng.below(chances.delay_max));
            }
        }
        calendar.add(arrival, Event::Arrive { packet: id, wire });
    }

    /// A port has sent its packet; the host, if the port is one's and it may send more.
    pub fn handle_free(&mut self, calendar: &mut Calendar<Event>, wire: u32) -> Option<u32> {
        self.ports[wire as usize].wakes = false;
        self.transmit(calendar, wire);
        self.host_of(wire)
    }

    /// A port is told to stop or to go on; the host, if the port is one's.
    pub fn handle_pause(&mut self, calendar: &mut Calendar<Event>, wire: u32, on: bool) -> Option<u32> {
        self.counters.pauses += u64::from(on);
        self.ports[wire as usize].paused = on;
        self.transmit(calendar, wire);
        self.host_of(wire)
    }

    /// All switches have learnt what a link's state is.
    pub fn handle_learn(&mut self, wire: u32) {
        for wire in [wire, self.topology.reverse[wire as usize]] {
            let port = &mut self.ports[wire as usize];
            self.known_down_wires -= u32::from(port.known_down);
            port.known_down = !port.is_up();
            self.known_down_wires += u32::from(port.known_down);
        }
    }

    /// A step of a planned fault; the hosts at the link, which may send again.
    pub fn apply(&mut self, calendar: &mut Calendar<Event>, action: Action) -> [Option<u32>; 2] {
        let (Action::Down(wire) | Action::Up(wire) | Action::Rate(wire, _)) = action;
        let wires = [wire, self.topology.reverse[wire as usize]];
        for wire in wires {
            let port = &mut self.ports[wire as usize];
            match action {
                Action::Rate(_, part) => port.rate = port.full_rate.scaled(part),
                Action::Down(_) => {
                    port.downs += 1;
                    port.down_at = Some(calendar.now());
                    self.down_wires += u32::from(port.downs == 1);
                    self.flush(calendar, wire);
                }
                Action::Up(_) => {
                    port.downs -= 1;
                    self.down_wires -= u32::from(port.downs == 0);
                    self.transmit(calendar, wire);
                }
            }
        }
        if let (Some(delay), Action::Down(_) | Action::Up(_)) = (self.reroute, action) {
            calendar.add(calendar.now().after(delay), Event::Learn { wire });
        }
        wires.map(|wire| self.host_of(wire))
    }

    /// The link is down: what waits for it is lost.
    fn flush(&mut self, calendar: &mut Calendar<Event>, wire: u32) {
        while let Some(id) = self.ports[wire as usize].queue.next(&mut self.pool, &self.host_rules, &mut self.rng) {
            self.release(calendar, id);
            self.counters.dropped_down += 1;
            self.pool.give_back(id);
        }
    }

    /// With PFC: whether the switch has room for a packet of this wire.
    fn has_room(&self, id: u32) -> bool {
        let packet = &self.pool[id];
        match self.pfc {
            Some(pfc) if packet.ingress != NONE => {
                self.ports[packet.ingress as usize].held.saturating_add(packet.frame_len) <= pfc.limit
            }
            _ => true,
        }
    }

    /// With PFC: a packet was queued in a switch.
    #[inline]
    fn hold(&mut self, calendar: &mut Calendar<Event>, id: u32) {
        let Some(pfc) = self.pfc else { return };
        let (wire, len) = (self.pool[id].ingress, self.pool[id].frame_len);
        if wire == NONE {
            return;
        }
        let port = &mut self.ports[wire as usize];
        port.held += len;
        if port.held > pfc.pause && !port.asked {
            port.asked = true;
            calendar.add(calendar.now().after(self.delay), Event::Pause { wire, on: true });
        }
    }

    /// With PFC: a packet left a switch.
    #[inline]
    fn release(&mut self, calendar: &mut Calendar<Event>, id: u32) {
        let Some(pfc) = self.pfc else { return };
        let (wire, len) = (self.pool[id].ingress, self.pool[id].frame_len);
        if wire == NONE {
            return;
        }
        let port = &mut self.ports[wire as usize];
        port.held -= len;
        if port.held <= pfc.resume && port.asked {
            port.asked = false;
            calendar.add(calendar.now().after(self.delay), Event::Pause { wire, on: false });
        }
    }

    #[inline]
    fn is_host_port(&self, wire: u32) -> bool {
        wire < self.topology.hosts * self.topology.planes
    }

    #[inline]
    fn host_of(&self, wire: u32) -> Option<u32> {
        self.is_host_port(wire).then(|| wire / self.topology.planes)
    }

    /// Work conservation: a port with packets and a link sends, and will be told when it can send the next.
    #[inline]
    fn check_port(&mut self, wire: u32, now: Time) {
        let port = &self.ports[wire as usize];
        let may_send = !port.queue.is_empty() && !port.paused && port.is_up();
        if may_send && !(port.wakes && port.busy_until > now) {
            self.checker.note(Violation::Idle { wire, at: now });
        }
    }

    /// Checks all ports and the sum of all packets.
    pub fn audit(&mut self, now: Time) {
        for wire in 0..self.ports.len() as u32 {
            // At the very instant at which a port becomes free, the event that says so may be still to come.
            if self.ports[wire as usize].busy_until != now {
                self.check_port(wire, now);
            }
        }
        let NetworkCounters { sent, received, .. } = self.counters;
        let (dropped, queued) = (self.counters.dropped(), self.pool.in_use() as u64);
        if sent != received + dropped + queued {
            self.checker.note(Violation::Conservation { sent, received, dropped, queued });
        }
    }
}
