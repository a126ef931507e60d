//! What many paths per connection are worth: scenarios that differ in nothing but that, and the figures that they are judged by.
//!
//! Connections with one path have the same law and the same window as those with many: what is compared is the paths. The fabric
//! is that of [`crate::reference`], or two leaves with sixteen spines between them, where every packet crosses.

use crate::fault::{FaultPlan, LinkFault};
use crate::reference;
use crate::report::Report;
use crate::scenario::{Placement, ReportKeys, Scenario, SprayKeys, TopologyKeys, WorkloadKeys};
use crate::topology::Tier;
use crate::workload::Pattern;
use serde::Serialize;
pub use spray::Policy;

/// Numbers of paths that are compared.
pub const PATHS: [u16; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// The policies that are compared over them.
pub const POLICIES: [Policy; 4] = [Policy::Oblivious, Policy::Bitmap, Policy::Reps, Policy::Mixed];
/// A number of paths is enough if the slowest flow is within this of the best number's.
pub const ENOUGH: f64 = 1.03;

/// Spines between the two leaves, as many as hosts per leaf: nothing is oversubscribed.
const SPINES: u32 = 16;
/// Bytes from each host to its counterpart on the other leaf: 1.7 ms of a link.
const CROSSING_BYTES: u32 = 20_000_000;
/// When a link between leaf and spine dies.
const DIES_US: f64 = 400.0;
/// The chance of loss per link that makes one in a hundred over the four links between two hosts.
const LOSS_PER_LINK: f64 = 0.002_509;
/// Queues in which even what one path piles up finds room.
const DEEP_BYTES: u32 = 4_000_000;

/// How connections use paths in a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Paths {
    /// One each.
    One,
    /// The default number of them, by the default policy.
    Many,
}

impl Paths {
    fn keys(self) -> SprayKeys {
        match self {
            Paths::One => spray_keys(Policy::Single, 1),
            Paths::Many => SprayKeys::default(),
        }
    }
}

fn spray_keys(policy: Policy, paths: u16) -> SprayKeys {
    SprayKeys { policy: policy.name().to_owned(), paths, ..SprayKeys::default() }
}

/// A scenario, and the trace if it has one.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// The scenario.
    pub scenario: Scenario,
    /// Its trace.
    pub trace: Option<String>,
}

/// A point of the sweep over policies and numbers of paths: a permutation among 128 hosts in three tiers.
pub fn sweep(policy: Policy, paths: u16, seed: u64) -> Trial {
    permutation(8, spray_keys(policy, paths), seed)
}

/// A permutation among 1024 hosts in three tiers.
pub fn large_permutation(paths: Paths, seed: u64) -> Trial {
    permutation(16, paths.keys(), seed)
}

/// The same trial with queues that hold all, so that they show how deep they get.
pub fn deep(mut trial: Trial) -> Trial {
    trial.scenario.queue.limit_bytes = DEEP_BYTES;
    trial
}

fn permutation(k: u32, keys: SprayKeys, seed: u64) -> Trial {
    Trial { scenario: Scenario { spray: Some(keys), ..reference::scenario(k, seed) }, trace: None }
}

/// A ring all-reduce of 16 MB among 64 hosts on eight leaves, in random order.
pub fn ring(paths: Paths, seed: u64) -> Trial {
    let mut scenario = two_tiers(8, 8, 8, paths, seed);
    scenario.workload = WorkloadKeys {
        pattern: Pattern::RingAllReduce,
        bytes: 16_000_000,
        placement: Placement::Random,
        ..WorkloadKeys::default()
    };
    Trial { scenario, trace: None }
}

/// What befalls [`crossing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// Nothing.
    None,
    /// One of the sixteen links from a leaf to its spines dies for good, and only the switches at its ends know.
    DeadUplink,
    /// One packet in a hundred is lost.
    Loss,
}

/// Each host of two leaves sends to its counterpart on the other.
pub fn crossing(paths: Paths, mishap: Mishap, seed: u64) -> Trial {
    let mut scenario = two_tiers(2, SPINES, SPINES, paths, seed);
    scenario.workload = WorkloadKeys { pattern: Pattern::Trace, file: Some("crossing".to_owned()), ..WorkloadKeys::default() };
    scenario.report = ReportKeys { sample_us: 5.0 };
    match mishap {
        Mishap::None => {}
        Mishap::DeadUplink => {
            let link = LinkFault {
                between: ["leaf0".to_owned(), "spine3".to_owned()],
                from_us: DIES_US,
                to_us: None,
                rate: None,
                times: None,
                every_us: None,
            };
            scenario.faults = FaultPlan { link: vec![link], ..FaultPlan::default() };
        }
        Mishap::Loss => scenario.faults = FaultPlan { loss: LOSS_PER_LINK, ..FaultPlan::default() },
    }
    let hosts = 2 * SPINES;
    let lines = (0..hosts).map(|host| format!("0,{host},{},{CROSSING_BYTES}\n", (host + SPINES) % hosts));
    Trial { scenario, trace: Some(lines.collect()) }
}

fn two_tiers(leaves: u32, spines: u32, hosts_per_leaf: u32, paths: Paths, seed: u64) -> Scenario {
    let topology = TopologyKeys {
        leaves: Some(leaves),
        spines: Some(spines),
        hosts_per_leaf: Some(hosts_per_leaf),
        ..TopologyKeys::default()
    };
    // Queues and time-outs are those of the reference.
    Scenario { topology, spray: Some(paths.keys()), ..reference::scenario(2, seed) }
}

/// How a run got over the death of a link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Recovery {
    /// The mean rate at which hosts received from then on, as part of the one before.
    pub goodput: f64,
    /// From the death of the link until then, in microseconds of simulated time.
    pub after_us: f64,
}

/// Looks at what hosts received before and after [`Mishap::DeadUplink`]: the earliest time from which on the mean rate is at least
/// the part `least` of the one before. `None` if there is none, or nothing was sampled.
pub fn recovery(report: &Report, least: f64) -> Option<Recovery> {
    let group = report.links.iter().find(|group| group.to == Tier::Host)?;
    let rate = |from_us: f64, to_us: f64| {
        let within = group.samples.iter().filter(|sample| (from_us..to_us).contains(&sample.at_us));
        let (bytes, count) = within.fold((0, 0), |(bytes, count), sample| (bytes + sample.bytes, count + 1));
        bytes as f64 / f64::from(count.max(1))
    };
    let before = rate(DIES_US / 2.0, DIES_US);
    // Until the flows that are ahead end.
    let until = report.completion_us.min;
    let times = group.samples.iter().map(|sample| sample.at_us).filter(|at| (DIES_US..until).contains(at));
    let recovery = |at_us| Recovery { goodput: rate(at_us, until) / before, after_us: at_us - DIES_US };
    times.map(recovery).find(|recovery| recovery.goodput >= least)
}

/// The least number of paths that is enough: its slowest flow is within [`ENOUGH`] of that of the best number. Points are numbers of
/// paths and completion times of the slowest flow, the numbers ascending.
pub fn knee(points: &[(u16, f64)]) -> Option<u16> {
    let best = points.iter().map(|point| point.1).min_by(f64::total_cmp)?;
    points.iter().find(|point| point.1 <= best * ENOUGH).map(|point| point.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_knee_is_the_first_that_is_enough() {
        assert_eq!(knee(&[(1, 600.0), (2, 300.0), (4, 205.0), (8, 200.0), (16, 201.0)]), Some(4));
        assert_eq!(knee(&[(1, 100.0)]), Some(1));
        assert_eq!(knee(&[]), None);
    }
}
