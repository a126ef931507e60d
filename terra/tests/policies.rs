//! What must hold for every policy on any input: no link above its capacity (the simulation checks each decision), all work
//! ends, nobody is faster than the bound of being alone, same input same result; and work conservation where it is promised.

use proptest::prelude::*;
use std::collections::BTreeMap;
use terra::compare::{Figures, Plan, policies};
use terra::generate::{self, Kind};
use terra::id::{CoflowId, JobId, LinkId, SiteId};
use terra::min_cct::{Effort, Solver, demands};
use terra::path::fewest_hops;
use terra::policy::fair::Multipath;
use terra::policy::terra::Terra;
use terra::policy::{Decision, Event, Policy, State};
use terra::random::Random;
use terra::report::Report;
use terra::sim::{CapacityChange, Simulation};
use terra::topology::{self, Known};
use terra::workload::{Job, Workload};
use terra::{Coflow, Flow, Wan};

/// Coflows of up to 4 flows between random sites, arriving over a few seconds.
fn small_workload(wan: &Wan, coflows: u64, random: &mut Random) -> Workload {
    let mut workload = Workload::default();
    let mut at_s = 0.0;
    for id in 0..coflows {
        let site = |random: &mut Random| SiteId(random.below(wan.sites().len() as u64) as u32);
        let mut flow = || Flow { src: site(random), dst: site(random), volume_gbit: random.log_normal(20.0, 1.5) };
        let flows: Vec<Flow> = (0..4).map(|_| flow()).collect();
        let count = 1 + random.below(4) as usize;
        let mut coflow = Coflow::new(CoflowId(id), flows.into_iter().take(count)).unwrap();
        if random.chance(0.3) {
            coflow = coflow.with_deadline(random.log_normal(20.0, 1.0)).unwrap();
        }
        if random.chance(0.3) {
            coflow = coflow.with_weight(1.0 + random.below(5) as f64).unwrap();
        }
        workload.jobs.push(Job::single(JobId(id), at_s, coflow));
        at_s += random.exponential(1.0);
    }
    workload
}

/// Links that change to a part of what they had, never to nothing: so all work can end.
fn changes(wan: &Wan, random: &mut Random) -> Vec<CapacityChange> {
    let one = |random: &mut Random| {
        let link = LinkId(random.below(wan.links().len() as u64) as u32);
        let capacity_gbps = wan.links()[link.index()].capacity_gbps * (0.05 + 0.95 * random.unit());
        CapacityChange { at_s: random.unit() * 20.0, link, capacity_gbps }
    };
    (0..6).map(|_| one(random)).collect()
}

fn run(wan: &Wan, workload: &Workload, changes: &[CapacityChange], policy: &mut dyn Policy) -> Report {
    let name = policy.name();
    let simulation = Simulation::new(wan, workload).unwrap().with_changes(changes.to_vec()).unwrap();
    simulation.run(policy).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Certified bounds of each coflow alone on the network at its best.
fn bounds(wan: &Wan, workload: &Workload) -> BTreeMap<CoflowId, f64> {
    let mut solver = Solver::new(wan);
    let mut bound = |coflow: &Coflow| {
        let volumes: Vec<f64> = coflow.groups.iter().map(|group| group.volume_gbit).collect();
        solver.solve(wan, &wan.capacities(), &demands(coflow, &volumes), Effort::precise()).unwrap().bound_s
    };
    workload.coflows().map(|(_, coflow)| (coflow.id, bound(coflow))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn all_work_ends_and_nobody_beats_the_bound(seed in 0u64..1_000_000) {
        let mut random = Random::new(seed);
        let wan = topology::random(6 + random.below(5) as usize, 14, seed);
        let workload = small_workload(&wan, 12, &mut random);
        let changes = changes(&wan, &mut random);
        let bounds = bounds(&wan, &workload);
        for mut policy in policies() {
            let report = run(&wan, &workload, &changes, policy.as_mut());
            prop_assert_eq!(report.coflows.len(), 12);
            let volume: f64 = workload.coflows().map(|(_, coflow)| coflow.volume_gbit()).sum();
            prop_assert!((report.sent_gbit - volume).abs() < 1e-6 * volume, "{} sent {} of {volume}", report.policy, report.sent_gbit);
            for record in &report.coflows {
                let bound_s = bounds[&record.id];
                prop_assert!(record.cct_s() >= bound_s * (1.0 - 1e-6) - 1e-6, "{}: {record:?} beats {bound_s}", report.policy);
            }
        }
    }

    #[test]
    fn promises_hold_while_no_capacity_falls(seed in 0u64..1_000_000) {
        let mut random = Random::new(seed);
        let wan = topology::random(6, 10, seed);
        let workload = small_workload(&wan, 15, &mut random);
        let report = run(&wan, &workload, &[], &mut Terra::default());
        prop_assert_eq!(report.broken_promises(), Vec::<CoflowId>::new());
    }

    #[test]
    fn no_capacity_idles_while_somebody_could_use_it(seed in 0u64..1_000_000) {
        let mut random = Random::new(seed);
        let wan = topology::random(7, 12, seed);
        let workload = small_workload(&wan, 10, &mut random);
        let changes = changes(&wan, &mut random);
        run(&wan, &workload, &changes, &mut Conserving(Terra::default()));
        run(&wan, &workload, &changes, &mut Conserving(Multipath));
    }
}

/// Checks after each decision that no unfinished FlowGroup has a path with capacity left.
struct Conserving<P>(P);

impl<P: Policy> Policy for Conserving<P> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn schedule(&mut self, state: &State, events: &[Event]) -> Decision {
        let decision = self.0.schedule(state, events);
        let residual = decision.allocation.residual(state.wan);
        let left: Vec<f64> = residual.iter().map(|left| if *left > 1e-5 { *left } else { 0.0 }).collect();
        for active in state.active.values() {
            for (group, _) in active.coflow.groups.iter().zip(&active.remaining_gbit).filter(|(_, left)| **left > 0.0) {
                let idle = fewest_hops(state.wan, &left, group.src, group.dst);
                assert!(idle.is_none(), "{} at {} s leaves {idle:?} idle for {group:?}", self.name(), state.now_s);
            }
        }
        decision
    }
}

#[test]
fn same_input_same_report() {
    let wan = Known::GScale.wan();
    let workload = generate::workload(Kind::BigBench, &wan, 8, 3);
    for (mut once, mut again) in policies().zip(policies()) {
        let mut random = Random::new(1);
        let changes = changes(&wan, &mut random);
        assert_eq!(run(&wan, &workload, &changes, once.as_mut()), run(&wan, &workload, &changes, again.as_mut()));
    }
}

#[test]
fn a_link_that_fails_and_comes_back_loses_nothing() {
    let wan = Known::Swan.wan();
    let workload = generate::workload(Kind::TpcH, &wan, 8, 5);
    // HK is cut off completely for 20 seconds.
    let out = wan.out(wan.site("HK").unwrap()).to_vec();
    let failing = out.iter().map(|&link| CapacityChange { at_s: 3.0, link, capacity_gbps: 0.0 });
    let healing = out.iter().map(|&link| CapacityChange { at_s: 23.0, link, capacity_gbps: 5.12 });
    let changes: Vec<CapacityChange> = failing.chain(healing).collect();
    let stages = workload.coflows().count();
    for mut policy in policies() {
        assert_eq!(run(&wan, &workload, &changes, policy.as_mut()).coflows.len(), stages, "{}", policy.name());
    }
}

#[test]
fn ours_is_not_worse_than_any_comparator_on_average() {
    for (network, kind) in [(Known::Swan, Kind::TpcDs), (Known::Swan, Kind::BigBench), (Known::GScale, Kind::TpcH)] {
        let workload = Plan { network, kind, jobs: 15, seed: 2, slack: None }.workload();
        let figures = |mut policy: Box<dyn Policy>| Figures::from(&run(&network.wan(), &workload, &[], policy.as_mut()));
        let rows: Vec<Figures> = policies().map(figures).collect();
        let ours = rows.iter().find(|row| row.policy == "terra").unwrap().mean_cct_s;
        for row in &rows {
            assert!(
                ours <= row.mean_cct_s * 1.005,
                "{network:?} {kind:?}: {ours} s against {} s of {}",
                row.mean_cct_s,
                row.policy
            );
        }
        assert!(rows[0].mean_cct_s >= 1.55 * ours, "{network:?} {kind:?}: per-flow {} s, ours {ours} s", rows[0].mean_cct_s);
    }
}
