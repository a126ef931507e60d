//! What a run measured: completion times, what became of packets, and how full links and queues were over time.

use crate::checker::Violation;
use crate::network::{Network, NetworkCounters};
use crate::sim::Sim;
use crate::time::{Time, micros};
use crate::topology::{Tier, Topology};
use crate::transfer::Outcome;
use serde::Serialize;

/// Samples that are kept: when there are more, every two become one, and the interval doubles.
const MAX_SAMPLES: usize = 1024;
/// Points of a distribution that are reported.
const MAX_POINTS: usize = 200;

/// All wires from one tier to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// Tier at their beginning.
    pub from: Tier,
    /// Tier at their end.
    pub to: Tier,
    /// How many.
    pub wires: u32,
    /// Bytes that they carried, Ethernet header to FCS.
    pub bytes: u64,
    /// Most bytes that waited for any of them.
    pub deepest_bytes: u32,
    /// Most bytes that waited for each, ascending.
    #[serde(skip)]
    pub deepest_of_each: Vec<u32>,
    /// Over time.
    pub samples: Vec<Sample>,
}

/// A look at a group of wires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    /// When, in microseconds.
    pub at_us: f64,
    /// Bytes carried since the look before.
    pub bytes: u64,
    /// Bytes that waited for a wire, on average.
    pub queue_mean_bytes: f64,
    /// Most bytes that waited for any.
    pub queue_max_bytes: u32,
}

/// Looks at queues and links at even intervals.
#[derive(Clone, Debug)]
pub(crate) struct Sampler {
    interval: Option<u64>,
    groups: Vec<Group>,
    /// Of each wire, its group.
    group_of: Vec<u8>,
    /// Of each group, the bytes carried at the look before.
    before: Vec<u64>,
}

impl Sampler {
    pub fn new(topology: &Topology, sample_us: f64) -> Sampler {
        let mut groups: Vec<Group> = Vec::new();
        let mut group_of = Vec::with_capacity(topology.wires.len());
        for wire in &topology.wires {
            let (from, to) = (topology.tier(wire.from), topology.tier(wire.to));
            let found = groups.iter().position(|group| (group.from, group.to) == (from, to));
            let index = found.unwrap_or_else(|| {
                let (deepest_of_each, samples) = (Vec::new(), Vec::new());
                groups.push(Group { from, to, wires: 0, bytes: 0, deepest_bytes: 0, deepest_of_each, samples });
                groups.len() - 1
            });
            groups[index].wires += 1;
            // Three tiers of switches have six groups.
            group_of.push(index as u8);
        }
        let before = vec![0; groups.len()];
        Sampler { interval: (sample_us > 0.0).then(|| micros(sample_us)), groups, group_of, before }
    }

    /// Picoseconds to the next look, if there is to be one.
    pub fn interval(&self) -> Option<u64> {
        self.interval
    }

    pub fn sample(&mut self, network: &Network, now: Time) {
        let mut looks = vec![(0_u64, 0_u64, 0_u32); self.groups.len()];
        for (port, &group) in network.ports.iter().zip(&self.group_of) {
            let (bytes, queued, deepest) = &mut looks[usize::from(group)];
            *bytes += port.sent_bytes;
            *queued += u64::from(port.queue.bytes());
            *deepest = (*deepest).max(port.queue.bytes());
        }
        for (n, (group, (bytes, queued, deepest))) in self.groups.iter_mut().zip(looks).enumerate() {
            let queue_mean_bytes = queued as f64 / f64::from(group.wires);
            let bytes_since = bytes - std::mem::replace(&mut self.before[n], bytes);
            group.samples.push(Sample { at_us: now.micros(), bytes: bytes_since, queue_mean_bytes, queue_max_bytes: deepest });
        }
        if self.groups.first().is_some_and(|group| group.samples.len() >= MAX_SAMPLES) {
            self.thin();
        }
    }

    fn thin(&mut self) {
        self.interval = self.interval.map(|interval| interval * 2);
        for group in &mut self.groups {
            let pairs = group.samples.chunks(2).map(|pair| Sample {
                at_us: pair[pair.len() - 1].at_us,
                bytes: pair.iter().map(|sample| sample.bytes).sum(),
                queue_mean_bytes: pair.iter().map(|sample| sample.queue_mean_bytes).sum::<f64>() / pair.len() as f64,
                queue_max_bytes: pair.iter().map(|sample| sample.queue_max_bytes).max().unwrap_or(0),
            });
            group.samples = pairs.collect();
        }
    }

    pub fn finish(&mut self, network: &Network, now: Time) {
        if self.interval.is_some() {
            self.sample(network, now);
        }
        for (port, &group) in network.ports.iter().zip(&self.group_of) {
            let group = &mut self.groups[usize::from(group)];
            group.bytes += port.sent_bytes;
            group.deepest_of_each.push(port.queue.deepest);
        }
        for group in &mut self.groups {
            group.deepest_of_each.sort_unstable();
            group.deepest_bytes = group.deepest_of_each.last().copied().unwrap_or(0);
        }
    }
}

/// A distribution of times, in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    /// How many values.
    pub count: usize,
    /// Smallest.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
    /// Mean.
    pub mean: f64,
    /// Points of the cumulative distribution: value, and part of the values that are not above it.
    pub points: Vec<(f64, f64)>,
}

impl Distribution {
    /// The distribution of some values.
    pub fn new(mut values: Vec<f64>) -> Distribution {
        if values.is_empty() {
            return Distribution::default();
        }
        values.sort_unstable_by(f64::total_cmp);
        let count = values.len();
        let rank = |part: f64| values[((part * count as f64).ceil() as usize).clamp(1, count) - 1];
        let points = count.min(MAX_POINTS);
        Distribution {
            count,
            min: values[0],
            p50: rank(0.5),
            p99: rank(0.99),
            max: values[count - 1],
            mean: values.iter().sum::<f64>() / count as f64,
            points: (1..=points).map(|n| n as f64 / points as f64).map(|part| (rank(part), part)).collect(),
        }
    }
}

/// What the hosts' cores counted, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CoreCounters {
    /// Times that a connection went back to send again.
    pub went_back: u64,
    /// ACK timeouts.
    pub ack_timeouts: u64,
    /// Request packets that arrived beyond a gap.
    pub out_of_sequence: u64,
    /// Request packets that had been executed before.
    pub duplicates: u64,
    /// Packets with a bad ICRC.
    pub bad_icrc: u64,
    /// Packets that were not well formed, such as those that a switch has trimmed.
    pub malformed: u64,
}

/// What a run measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The scenario's seed.
    pub seed: u64,
    /// Hash of all events, in hexadecimal.
    pub event_hash: String,
    /// Events.
    pub events: u64,
    /// Simulated time, in microseconds.
    pub simulated_us: f64,
    /// Hosts.
    pub hosts: u32,
    /// Switches.
    pub switches: usize,
    /// Rate of links, in Gb/s.
    pub rate_gbps: f64,
    /// Transfers that succeeded.
    pub succeeded: usize,
    /// Transfers whose connection failed.
    pub failed: usize,
    /// Transfers that waited for one that never arrived.
    pub cancelled: usize,
    /// From ready to complete, of those that succeeded.
    pub completion_us: Distribution,
    /// When the last transfer ended.
    pub all_done_us: f64,
    /// Packets.
    pub packets: NetworkCounters,
    /// The cores.
    pub cores: CoreCounters,
    /// Links and queues, by tiers.
    pub links: Vec<Group>,
    /// Violations of what must hold: their number.
    pub violation_count: u64,
    /// The first ones.
    pub violations: Vec<String>,
}

impl Sim {
    /// What was measured so far; of links and queues only once the run is over.
    pub fn report(&self) -> Report {
        let ends = || self.progress.iter().filter_map(|progress| Some((progress, progress.end?)));
        let count = |wanted: fn(Outcome) -> bool| ends().filter(|(_, (_, outcome))| wanted(*outcome)).count();
        let times = ends().filter(|(_, (_, outcome))| *outcome == Outcome::Success);
        let times = times.filter_map(|(progress, (end, _))| Some(end.since(progress.ready_at?) as f64 / 1e6)).collect();
        let violations: Vec<&Violation> = self.checkers().flat_map(|checker| checker.violations()).collect();
        Report {
            seed: self.scenario.seed,
            event_hash: format!("{:016x}", self.event_hash()),
            events: self.events(),
            simulated_us: self.now().micros(),
            hosts: self.network.topology.hosts,
            switches: self.network.topology.switches.len(),
            rate_gbps: self.scenario.topology.rate_gbps,
            succeeded: count(|outcome| outcome == Outcome::Success),
            failed: count(|outcome| matches!(outcome, Outcome::Failed(_))),
            cancelled: count(|outcome| outcome == Outcome::Cancelled),
            completion_us: Distribution::new(times),
            all_done_us: ends().map(|(_, (end, _))| end).max().unwrap_or(Time::ZERO).micros(),
            packets: self.network.counters,
            cores: self.core_counters(),
            links: self.sampler.groups.clone(),
            violation_count: self.checkers().map(|checker| checker.count()).sum(),
            violations: violations.iter().map(ToString::to_string).collect(),
        }
    }

    /// Everything that must not have happened, and did.
    pub fn violations(&self) -> Vec<Violation> {
        self.checkers().flat_map(|checker| checker.violations().iter().cloned()).collect()
    }

    fn checkers(&self) -> impl Iterator<Item = &crate::checker::Checker> {
        [&self.checker, &self.memory.checker, &self.network.checker].into_iter()
    }

    fn core_counters(&self) -> CoreCounters {
        let mut sum = CoreCounters::default();
        for host in self.hosts.iter().flatten() {
            let drops = host.rnic.drop_counters();
            sum.bad_icrc += drops.icrc;
            sum.malformed += drops.malformed;
            if let Some(counters) = host.rnic.counters(host.device) {
                sum.went_back += counters.completer_retry_err;
                sum.ack_timeouts += counters.ack_timeout;
                sum.out_of_sequence += counters.out_of_seq_request;
                sum.duplicates += counters.duplicate_request;
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_of_the_distribution() {
        let distribution = Distribution::new((1..=100).rev().map(f64::from).collect());
        assert_eq!((distribution.min, distribution.p50, distribution.p99, distribution.max), (1.0, 50.0, 99.0, 100.0));
        assert_eq!(distribution.points.first(), Some(&(1.0, 0.01)));
        assert_eq!(distribution.points.last(), Some(&(100.0, 1.0)));
        assert_eq!(Distribution::new(vec![7.0]).p99, 7.0);
        assert_eq!(Distribution::new(Vec::new()), Distribution::default());
    }
}
