//! How long decisions take: the minimum-CCT solver on random coflows, and whole decisions of the schedule with many coflows.
//!
//! After the benchmarks of criterion, a table sets the 95th percentile over instances against the bars that the project has
//! for two cores, with the gaps that the solver proves. Each instance is timed several times and the least time counts, so that
//! a busy machine changes little.

#![allow(missing_docs, reason = "the macros of criterion define undocumented items")]

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;
use terra::generate::{self, Kind};
use terra::min_cct::{Demand, Effort, MinCct, Solver};
use terra::policy::terra::Terra;
use terra::policy::{Active, Event, Policy, State};
use terra::random::Random;
use terra::report::percentile;
use terra::topology::Known;
use terra::{CoflowId, SiteId, Wan};

/// Instances of each kind, and times that each is run for the table.
const INSTANCES: u64 = 20;
const RUNS: usize = 3;
/// Coflows that are active at once when the whole schedule is timed.
const ACTIVE: usize = 50;
/// FlowGroups of one coflow, and the bar for solving it, ms. On SWAN there are 20 pairs of sites.
const SIZES: [(Known, usize, f64); 5] =
    [(Known::Swan, 4, 20.0), (Known::Swan, 20, 50.0), (Known::Att, 10, 20.0), (Known::Att, 60, 50.0), (Known::Att, 200, 100.0)];
/// Bars for one decision with [`ACTIVE`] coflows, ms: everything anew, a coflow arrives, a coflow is done.
const DECISIONS: [(&str, f64); 3] = [("everything anew", 300.0), ("arrival", 300.0), ("finish", 50.0)];
/// The greatest gap with and without time to spare, percent.
const GAPS: [(&str, Effort, f64); 2] = [("precise", Effort::precise(), 1.0), ("rushed", Effort::rushed(), 5.0)];

fn coflow(wan: &Wan, groups: usize, random: &mut Random) -> Vec<Demand> {
    let sites = wan.sites().len() as u64;
    let mut demands: Vec<Demand> = Vec::new();
    while demands.len() < groups {
        let (src, dst) = (SiteId(random.below(sites) as u32), SiteId(random.below(sites) as u32));
        if src != dst && !demands.iter().any(|demand| (demand.src, demand.dst) == (src, dst)) {
            demands.push(Demand { src, dst, volume_gbit: random.log_normal(10.0, 1.0) });
        }
    }
    demands
}

fn solve(wan: &Wan, demands: &[Demand], effort: Effort) -> MinCct {
    Solver::new(wan).solve(wan, &wan.capacities(), demands, effort).expect("the network is connected")
}

/// A decision that is to be timed: the schedule as it is, coflows, what has happened.
struct Moment {
    wan: Wan,
    policy: Terra,
    active: BTreeMap<CoflowId, Active>,
    events: Vec<Event>,
}

impl Moment {
    fn decide(&self, mut policy: Terra) -> (Terra, terra::policy::Decision) {
        let decision = policy.schedule(&State { now_s: 0.0, wan: &self.wan, active: &self.active }, &self.events);
        (policy, decision)
    }
}

/// The three decisions of [`DECISIONS`] for one workload.
fn moments(network: Known, kind: Kind, seed: u64) -> [Moment; 3] {
    let wan = network.wan();
    let workload = generate::workload(kind, &wan, 2 * ACTIVE as u64, seed).scaled(kind.load(network));
    let wide = workload.coflows().map(|(_, coflow)| coflow).filter(|coflow| !coflow.groups.is_empty());
    let mut active: BTreeMap<CoflowId, Active> =
        wide.take(ACTIVE).map(|coflow| (coflow.id, Active::new(coflow.clone(), 0.0))).collect();
    assert_eq!(active.len(), ACTIVE);
    let arrivals = |active: &BTreeMap<CoflowId, Active>| active.keys().map(|id| Event::Arrival(*id)).collect();
    let anew = Moment { wan: wan.clone(), policy: Terra::default(), events: arrivals(&active), active: active.clone() };
    let (newest, last) = active.pop_last().expect("there are some");
    let but_one = Moment { wan: wan.clone(), policy: Terra::default(), events: arrivals(&active), active: active.clone() };
    let (policy, _) = but_one.decide(Terra::default());
    active.insert(newest, last);
    let arrival = Moment { wan: wan.clone(), policy, events: vec![Event::Arrival(newest)], active: active.clone() };
    let (policy, decision) = anew.decide(Terra::default());
    let end_s = |(id, active): &(&CoflowId, &Active)| {
        let ends = active.remaining_gbit.iter().enumerate();
        ends.map(|(group, left)| left / decision.allocation.group_rate(**id, group)).fold(0.0, f64::max)
    };
    let first = active.iter().min_by(|a, b| end_s(a).total_cmp(&end_s(b))).map(|(id, _)| *id).expect("there are some");
    active.remove(&first);
    let finish = Moment { wan, policy, events: vec![Event::CoflowDone(first)], active };
    [anew, arrival, finish]
}

fn min_cct(c: &mut Criterion) {
    let mut group = c.benchmark_group("min-cct");
    group.sample_size(20);
    for (network, groups, _) in SIZES {
        let wan = network.wan();
        let demands = coflow(&wan, groups, &mut Random::new(groups as u64));
        for (name, effort, _) in GAPS {
            let id = BenchmarkId::new(format!("{} {name}", network.name()), groups);
            group.bench_function(id, |b| b.iter(|| solve(&wan, black_box(&demands), effort)));
        }
    }
    group.finish();
}

fn schedule(c: &mut Criterion) {
    let mut group = c.benchmark_group(format!("schedule of {ACTIVE}"));
    group.sample_size(10);
    for network in [Known::Swan, Known::Att] {
        for (moment, (name, _)) in moments(network, Kind::BigBench, 1).iter().zip(DECISIONS) {
            group.bench_function(BenchmarkId::new(name, network.name()), |b| {
                b.iter_batched(|| moment.policy.clone(), |policy| moment.decide(policy), BatchSize::SmallInput);
            });
        }
    }
    group.finish();
}

/// The least time of several runs, ms.
fn least_ms<R>(mut run: impl FnMut() -> R) -> f64 {
    let mut timed = || {
        let start = Instant::now();
        black_box(run());
        start.elapsed().as_secs_f64() * 1e3
    };
    (0..RUNS).map(|_| timed()).fold(f64::INFINITY, f64::min)
}

fn row(what: &str, mut times_ms: Vec<f64>, bar_ms: f64, gap: Option<(f64, f64)>) {
    times_ms.sort_by(f64::total_cmp);
    let (p50, p95) = (percentile(&times_ms, 0.5), percentile(&times_ms, 0.95));
    let gap_text = gap.map_or(String::new(), |(worst, bar)| format!("gap at most {worst:.2} of {bar} %"));
    let met = p95 <= bar_ms && gap.is_none_or(|(worst, bar)| worst <= bar * (1.0 + 1e-6));
    let verdict = if met { "met" } else { "MISSED" };
    println!("{what:<44} p50 {p50:>7.2}  p95 {p95:>7.2} of {bar_ms:>3} ms  {verdict:<6}  {gap_text}");
}

/// Prints the table.
fn bars() {
    println!("Over {INSTANCES} instances, least of {RUNS} runs each; bars are for p95 on two cores");
    for (network, groups, bar_ms) in SIZES {
        let wan = network.wan();
        for (name, effort, gap_bar) in GAPS {
            let mut random = Random::new(groups as u64);
            let coflows: Vec<_> = (0..INSTANCES).map(|_| coflow(&wan, groups, &mut random)).collect();
            let times = coflows.iter().map(|demands| least_ms(|| solve(&wan, demands, effort))).collect();
            let worst = coflows.iter().map(|demands| 100.0 * solve(&wan, demands, effort).gap()).fold(0.0, f64::max);
            let what = format!("{} with {groups} FlowGroups, {name}", network.name());
            row(&what, times, bar_ms, Some((worst, gap_bar)));
        }
    }
    for network in [Known::Swan, Known::Att] {
        for kind in Kind::ALL {
            let mut times = [const { Vec::new() }; 3];
            for seed in 0..INSTANCES {
                for (moment, times) in moments(network, kind, seed).iter().zip(&mut times) {
                    times.push(least_ms(|| moment.decide(moment.policy.clone())));
                }
            }
            for ((name, bar_ms), times) in DECISIONS.into_iter().zip(times) {
                row(&format!("{} {}, {ACTIVE} active, {name}", network.name(), kind.name()), times, bar_ms, None);
            }
        }
    }
}

criterion_group!(benches, min_cct, schedule);

fn main() {
    benches();
    Criterion::default().configure_from_args().final_summary();
    // Not when cargo only tests that the benchmarks run.
    if std::env::args().any(|argument| argument == "--bench") {
        bars();
    }
}
