//! A simulation: hosts, network and calendar, and the loop that carries events from one to the other.
//!
//! One run is one thread. Everything is numbered and every chance comes from the seed, so that the same scenario gives the same
//! events; [`Sim::event_hash`] covers their times, kinds and numbers, and the bytes of the packets that hosts receive.

use crate::calendar::Calendar;
use crate::checker::{Checker, Violation};
use crate::event::Event;
use crate::fault::Action;
use crate::host::{DEPTH, Host, Transport, address, host_at};
use crate::memory::{Memory, Payload, TAG_LEN};
use crate::network::{Network, NetworkRules};
use crate::packet::{frame_len, header_len};
use crate::report::Sampler;
use crate::scenario::{MAX_CONNECTIONS, Placement, Scenario, ScenarioError, bad};
use crate::time::{Rate, Time, micros};
use crate::topology::Topology;
use crate::transfer::{Dependents, Progress};
use crate::workload::{self, Operation, Pattern, Transfer};
use rnic::{RxMeta, Transmit, Work};
use roce::rng::{Rng, mix};
use roce::wire::ICRC_LEN;
use roce::{Psn, Qpn};
use std::collections::BTreeMap;

/// Bytes that one call of a core may make: one packet of the largest MTU.
const TRANSMIT_BYTES: usize = 4200;
/// The longest headers between BTH and payload, padding and ICRC.
const PACKET_OVERHEAD: u32 = 48;

/// A simulation.
pub struct Sim {
    pub(crate) scenario: Scenario,
    pub(crate) calendar: Calendar<Event>,
    pub(crate) network: Network,
    pub(crate) memory: Memory,
    /// Hosts that take part.
    pub(crate) hosts: Vec<Option<Box<Host>>>,
    pub(crate) transfers: Vec<Transfer>,
    pub(crate) progress: Vec<Progress>,
    pub(crate) dependents: Dependents,
    /// Transfers that have ended.
    pub(crate) ended: usize,
    pub(crate) checker: Checker,
    pub(crate) sampler: Sampler,
    /// Hosts that something has happened to.
    pub(crate) touched: Vec<u32>,
    schedule: Vec<(Time, Action)>,
    events: u64,
    hash: u64,
    is_over: bool,
    buf: Box<[u8]>,
}

impl Sim {
    /// Builds a simulation. `trace` is the text of the trace, if the scenario's pattern is one.
    ///
    /// # Errors
    /// What is wrong with the scenario or the trace.
    pub fn new(scenario: &Scenario, trace: Option<&str>) -> Result<Sim, ScenarioError> {
        scenario.check()?;
        let topology = Topology::new(scenario.shape()?, scenario.topology.planes);
        let schedule = scenario.faults.schedule(&topology)?;
        let transfers = transfers(scenario, topology.hosts, trace)?;
        let rules = NetworkRules {
            rate: Rate::from_gbps(scenario.topology.rate_gbps),
            delay: micros(scenario.topology.delay_us),
            queue: scenario.queue_rules(),
            pfc_pause: scenario.queue.pfc_pause_bytes,
            ipv6: scenario.topology.ip == 6,
            frame: frame_len(true, (scenario.transport.mtu + PACKET_OVERHEAD) as usize),
            faults: &scenario.faults,
            seed: mix(scenario.seed),
        };
        let hosts = topology.hosts;
        let mut sim = Sim {
            sampler: Sampler::new(&topology, scenario.report.sample_us),
            network: Network::new(topology, &rules),
            calendar: Calendar::new(),
            memory: Memory::new(scenario.payload(), hosts),
            hosts: (0..hosts).map(|_| None).collect(),
            dependents: Dependents::new(&transfers),
            progress: Vec::with_capacity(transfers.len()),
            transfers,
            ended: 0,
            checker: Checker::default(),
            touched: Vec::new(),
            schedule,
            events: 0,
            hash: 0,
            is_over: false,
            buf: vec![0; TRANSMIT_BYTES].into_boxed_slice(),
            scenario: scenario.clone(),
        };
        sim.lay_out_memory()?;
        sim.connect_hosts()?;
        sim.enter_first_events();
        Ok(sim)
    }

    fn lay_out_memory(&mut self) -> Result<(), ScenarioError> {
        for transfer in &self.transfers {
            let (source_offset, sink_offset) = self.memory.add_transfer(transfer.src, transfer.dst, transfer.bytes);
            let waits_for = transfer.after.len() as u32;
            self.progress.push(Progress { source_offset, sink_offset, waits_for, ..Progress::default() });
        }
        self.scenario.check_memory(self.memory.total())?;
        self.memory.fill();
        Ok(())
    }

    /// Makes the hosts that take part, and one connection for every two that have transfers.
    fn connect_hosts(&mut self) -> Result<(), ScenarioError> {
        let scenario = &self.scenario;
        let seed = scenario.seed;
        let transport = Transport {
            mtu: scenario.mtu()?,
            ack_timeout: scenario.transport.ack_timeout,
            retries: scenario.transport.retries,
            ipv6: scenario.topology.ip == 6,
            multipath: scenario.multipath()?,
        };
        let refused = |error: rnic::ControlError| bad("workload", error, "one that the hosts' cores can hold");
        let mut counts: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        for transfer in &self.transfers {
            *counts.entry(pair_of(transfer)).or_default() += 1;
        }
        if counts.len() > MAX_CONNECTIONS {
            let given = format!("one of {} connections", counts.len());
            return Err(bad("workload", given, format!("one of at most {MAX_CONNECTIONS}")));
        }
        let mut connections: BTreeMap<(u32, u32), (u32, u32)> = BTreeMap::new();
        for (&(a, b), &count) in &counts {
            let depth = count.min(DEPTH);
            let mut ends = [0; 2];
            for (end, number) in ends.iter_mut().zip([a, b]) {
                let host = &mut self.hosts[number as usize];
                if host.is_none() {
                    *host = Some(Box::new(Host::new(number, seed, &transport, &self.memory).map_err(refused)?));
                }
                *end = host.as_mut().expect("made just now").add_connection(depth).map_err(refused)?;
            }
            let [end_a, end_b] = ends;
            let (qpn_a, qpn_b) = (self.host(a).connections[end_a as usize].qpn, self.host(b).connections[end_b as usize].qpn);
            let psn = |qpn: Qpn| Psn::new(mix(seed ^ u64::from(qpn.get())) as u32);
            let (psn_a, psn_b) = (psn(qpn_a), psn(qpn_b));
            self.host(a).connect(end_a, (b, qpn_b), (psn_a, psn_b), &transport).map_err(refused)?;
            self.host(b).connect(end_b, (a, qpn_a), (psn_b, psn_a), &transport).map_err(refused)?;
            connections.insert((a, b), (end_a, end_b));
        }
        for (transfer, progress) in self.transfers.iter().zip(&mut self.progress) {
            let pair = pair_of(transfer);
            let (end_a, end_b) = connections[&pair];
            let end = |host| if host == pair.0 { end_a } else { end_b };
            let (initiator, target) = match transfer.operation {
                Operation::Read => (transfer.dst, transfer.src),
                Operation::Write | Operation::Send => (transfer.src, transfer.dst),
            };
            (progress.initiator, progress.target) = ((initiator, end(initiator)), (target, end(target)));
        }
        Ok(())
    }

    fn enter_first_events(&mut self) {
        for (transfer, number) in self.transfers.iter().zip(0..) {
            if transfer.after.is_empty() {
                self.calendar.add(Time::from_ps(micros(transfer.start_us)), Event::Start { transfer: number });
            }
        }
        for (&(at, _), index) in self.schedule.iter().zip(0..) {
            self.calendar.add(at, Event::Fault { index });
        }
        if let Some(interval) = self.sampler.interval() {
            self.calendar.add(Time::ZERO.after(interval), Event::Sample);
        }
    }

    pub(crate) fn host(&mut self, number: u32) -> &mut Host {
        self.hosts[number as usize].as_mut().expect("a host that takes part")
    }

    /// Runs to the end.
    pub fn run(&mut self) {
        while self.step(u64::MAX) {}
    }

    /// Runs so many events. False when there are no more, or time is up; the run is then over.
    pub fn step(&mut self, events: u64) -> bool {
        let limit = Time::from_ps(micros(self.scenario.limit_ms * 1000.0));
        for _ in 0..events {
            if self.is_over {
                return false;
            }
            match self.calendar.take() {
                Some((at, event)) if at <= limit => self.handle(at, event),
                _ => self.end(),
            }
        }
        !self.is_over
    }

    fn handle(&mut self, now: Time, event: Event) {
        self.events += 1;
        self.hash = fold(self.hash, now.ps() ^ event.code().rotate_left(20));
        match event {
            Event::Arrive { packet, wire } => {
                if let Some(host) = self.network.arrive(&mut self.calendar, wire, packet) {
                    self.deliver(host, packet);
                }
            }
            Event::Free { wire } => {
                let host = self.network.handle_free(&mut self.calendar, wire);
                self.touched.extend(host);
            }
            Event::Pause { wire, on } => {
                let host = self.network.handle_pause(&mut self.calendar, wire, on);
                self.touched.extend(host);
            }
            Event::Timer { host } => {
                let host_state = self.host(host);
                if host_state.timer == now {
                    host_state.timer = Time::NEVER;
                    host_state.rnic.handle_timeout(now.instant());
                    self.touched.push(host);
                }
            }
            Event::Start { transfer } => self.start(transfer),
            Event::Fault { index } => {
                let (_, action) = self.schedule[index as usize];
                let hosts = self.network.apply(&mut self.calendar, action);
                self.touched.extend(hosts.into_iter().flatten());
            }
            Event::Learn { wire } => self.network.handle_learn(wire),
            Event::Sample => self.sample(),
        }
        while let Some(host) = self.touched.pop() {
            if self.hosts[host as usize].is_some() {
                self.serve(host);
            }
        }
    }

    /// A packet is at its receiver: the core takes it.
    fn deliver(&mut self, number: u32, id: u32) {
        let packet = &self.network.pool[id];
        let kept = packet.kept();
        let tail = kept.last_chunk::<4>().copied().unwrap_or_default();
        self.hash = fold(self.hash, u64::from(u32::from_le_bytes(tail)));
        let ipv6 = self.network.ipv6;
        let len = packet.write_to(&mut self.buf);
        let (src, dst) = (address(packet.src, ipv6), address(packet.dst, ipv6));
        let (src_port, congested, trimmed) = (packet.src_port, packet.marked, packet.trimmed);
        self.network.pool.give_back(id);
        // A host without a core has sent nothing, so that nobody answers it.
        let Some(host) = &mut self.hosts[number as usize] else { return };
        let meta = RxMeta { device: host.device, src, dst, src_port, segment_len: len, congested, trimmed };
        host.rnic.handle_burst(self.calendar.now().instant(), &meta, &self.buf[..len], &mut self.memory);
        self.touched.push(number);
    }

    /// Takes what a host's core has to say, and the packets that its ports can send.
    fn serve(&mut self, number: u32) {
        let now = self.calendar.now();
        self.take_completions(number);
        while self.network.wants_packets(number, now) {
            let Sim { hosts, memory, buf, .. } = self;
            let Some(host) = &mut hosts[number as usize] else { return };
            match host.rnic.poll_transmit(now.instant(), memory, buf) {
                None => break,
                Some(Work::Packets(burst)) => self.send(number, &burst),
                Some(Work::Copied { .. }) => {
                    self.checker.note(Violation::Refused { host: number, error: "a local copy".to_owned() });
                    break;
                }
            }
        }
        self.take_completions(number);
        let host = self.host(number);
        if let Some(at) = host.rnic.poll_timeout() {
            let at = Time::at_instant(at).max(now);
            if at < host.timer {
                host.timer = at;
                self.calendar.add(at, Event::Timer { host: number });
            }
        }
    }

    /// Puts the packets that lie in the buffer on the network.
    fn send(&mut self, number: u32, burst: &Transmit) {
        let (now, ipv6) = (self.calendar.now(), self.network.ipv6);
        for bytes in self.buf[..burst.len].chunks(burst.segment_len) {
            let id = self.network.pool.take();
            let packet = &mut self.network.pool[id];
            let header_len = header_len(bytes);
            let payload_end = bytes.len() - ICRC_LEN;
            let tag_end = header_len + TAG_LEN;
            match self.memory.payload() {
                Payload::Synthetic if payload_end > tag_end => packet.fill(bytes, tag_end, payload_end - tag_end),
                _ => packet.fill(bytes, header_len, 0),
            }
            packet.header_len = header_len as u32;
            packet.frame_len = frame_len(ipv6, bytes.len());
            (packet.src, packet.dst, packet.src_port) = (number, host_at(burst.dst), burst.src_port);
            packet.hash = crate::ecmp::FlowHash::new(burst.src, burst.dst, burst.src_port);
            packet.ecn_capable = burst.traffic_class & 3 != 0;
            (packet.marked, packet.trimmed) = (false, false);
            packet.is_control = payload_end == header_len;
            packet.sent_at = now;
            self.network.send(&mut self.calendar, number, id);
        }
    }

    fn sample(&mut self) {
        let now = self.calendar.now();
        self.network.audit(now);
        self.sampler.sample(&self.network, now);
        if self.ended < self.transfers.len()
            && let Some(interval) = self.sampler.interval()
        {
            self.calendar.add(now.after(interval), Event::Sample);
        }
    }

    /// Nothing is to come, or time is up: what has not ended never will.
    fn end(&mut self) {
        self.is_over = true;
        let at = self.calendar.now();
        for (progress, transfer) in self.progress.iter().zip(0..) {
            if progress.end.is_none() {
                self.checker.note(Violation::Unfinished { transfer, at });
            }
        }
        self.network.audit(at);
        self.sampler.finish(&self.network, at);
    }

    /// Simulated time.
    pub fn now(&self) -> Time {
        self.calendar.now()
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Transfers that have ended, and all.
    pub fn ended(&self) -> (usize, usize) {
        (self.ended, self.transfers.len())
    }

    /// A hash of all events so far. The same scenario gives the same one.
    pub fn event_hash(&self) -> u64 {
        self.hash
    }
}

#[inline]
fn fold(hash: u64, value: u64) -> u64 {
    (hash.rotate_left(23) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn pair_of(transfer: &Transfer) -> (u32, u32) {
    (transfer.src.min(transfer.dst), transfer.src.max(transfer.dst))
}

/// The transfers of a scenario's workload.
fn transfers(scenario: &Scenario, hosts: u32, trace: Option<&str>) -> Result<Vec<Transfer>, ScenarioError> {
    let keys = &scenario.workload;
    if keys.pattern == Pattern::Trace {
        let text = trace.ok_or(ScenarioError::Missing { key: "workload.file", why: "the pattern is a trace" })?;
        return Ok(workload::parse_trace(text, hosts, keys.operation)?);
    }
    let mut rng = Rng::new(mix(scenario.seed ^ 0x776F_726B));
    let mut all: Vec<u32> = (0..hosts).collect();
    if keys.placement == Placement::Random {
        for i in (1..all.len()).rev() {
            all.swap(i, rng.below(i as u64 + 1) as usize);
        }
    }
    all.truncate(keys.hosts.unwrap_or(hosts) as usize);
    Ok(workload::generate(keys.pattern, &all, keys.bytes, keys.operation, &mut rng))
}
