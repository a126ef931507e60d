//! Hand-computed schedules of our policy and of the fair ones.

mod networks;

use networks::{diamond, pair};
use std::collections::BTreeMap;
use terra::id::{CoflowId, JobId, LinkId};
use terra::policy::fair::PerFlow;
use terra::policy::terra::{Config, Terra};
use terra::policy::{Active, Event, Policy, State};
use terra::report::Report;
use terra::sim::{CapacityChange, SimError, Simulation};
use terra::workload::{Job, Stage, Workload};
use terra::{Coflow, Flow, Wan};

fn coflow(wan: &Wan, id: u64, flows: &[(&str, &str, f64)]) -> Coflow {
    let flow = |&(src, dst, volume_gbit): &(&str, &str, f64)| Flow {
        src: wan.site(src).unwrap(),
        dst: wan.site(dst).unwrap(),
        volume_gbit,
    };
    Coflow::new(CoflowId(id), flows.iter().map(flow)).unwrap()
}

fn workload(coflows: Vec<(f64, Coflow)>) -> Workload {
    let jobs = coflows.into_iter().map(|(at_s, coflow)| Job::single(JobId(coflow.id.0), at_s, coflow)).collect();
    Workload { jobs }
}

fn run(wan: &Wan, workload: &Workload, changes: Vec<CapacityChange>, policy: &mut dyn Policy) -> Report {
    Simulation::new(wan, workload).unwrap().with_changes(changes).unwrap().run(policy).unwrap()
}

/// Completion times by coflow id, rounded to microseconds.
fn ccts(report: &Report) -> BTreeMap<u64, f64> {
    report.coflows.iter().map(|record| (record.id.0, (record.cct_s() * 1e6).round() / 1e6)).collect()
}

#[test]
fn the_shorter_one_goes_first_and_interrupts() {
    let wan = pair(1.0);
    let work = workload(vec![(0.0, coflow(&wan, 1, &[("a", "b", 10.0)])), (1.0, coflow(&wan, 2, &[("a", "b", 2.0)]))]);
    // Ours: 1 runs alone till 1 s, 2 interrupts it till 3 s, 1 ends at 12 s.
    assert_eq!(ccts(&run(&wan, &work, vec![], &mut Terra::default())), BTreeMap::from([(1, 12.0), (2, 2.0)]));
    // Fair: from 1 s on half each, so 2 takes 4 s; 1 ends at 12 s all the same.
    assert_eq!(ccts(&run(&wan, &work, vec![], &mut PerFlow)), BTreeMap::from([(1, 12.0), (2, 4.0)]));
}

#[test]
fn weights_decide_who_is_shorter() {
    let wan = pair(1.0);
    let heavy = coflow(&wan, 1, &[("a", "b", 4.0)]).with_weight(3.0).unwrap();
    let work = workload(vec![(0.0, heavy), (0.0, coflow(&wan, 2, &[("a", "b", 2.0)]))]);
    // 4 / 3 is less than 2 / 1: the heavy one goes first.
    assert_eq!(ccts(&run(&wan, &work, vec![], &mut Terra::default())), BTreeMap::from([(1, 4.0), (2, 6.0)]));
}

#[test]
fn per_flow_fairness_counts_flows() {
    let wan = pair(1.0);
    let three = coflow(&wan, 1, &[("a", "b", 1.0), ("a", "b", 1.0), ("a", "b", 1.0)]);
    let work = workload(vec![(0.0, three), (0.0, coflow(&wan, 2, &[("a", "b", 1.0)]))]);
    // Four flows of 1 Gbit share 1 Gbit/s: all end at 4 s.
    assert_eq!(ccts(&run(&wan, &work, vec![], &mut PerFlow)), BTreeMap::from([(1, 4.0), (2, 4.0)]));
}

#[test]
fn two_ways_are_better_than_one() {
    let wan = diamond();
    let work = workload(vec![(0.0, coflow(&wan, 1, &[("a", "d", 10.0)]))]);
    assert_eq!(ccts(&run(&wan, &work, vec![], &mut Terra::default())), BTreeMap::from([(1, 5.0)]));
    assert_eq!(ccts(&run(&wan, &work, vec![], &mut PerFlow)), BTreeMap::from([(1, 10.0)]));
}

#[test]
fn what_the_first_leaves_serves_the_second() {
    let mut wan = Wan::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| wan.add_site(name).unwrap());
    wan.add_edge(a, b, 1.0).unwrap();
    wan.add_edge(b, c, 1.0).unwrap();
    // 1 takes 2 s because of b->c, so it needs only half of a->b. 2 is longer and gets the other half: 1 Gbit until 2 s, then
    // the other 11 alone.
    let work = workload(vec![
        (0.0, coflow(&wan, 1, &[("a", "b", 1.0), ("b", "c", 2.0)])),
        (0.0, coflow(&wan, 2, &[("a", "b", 12.0)])),
    ]);
    assert_eq!(ccts(&run(&wan, &work, vec![], &mut Terra::default())), BTreeMap::from([(1, 2.0), (2, 13.0)]));
}

#[test]
fn a_short_one_takes_no_detour_over_what_a_long_one_needs() {
    let mut wan = Wan::new();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| wan.add_site(name).unwrap());
    for (from, to, gbps) in [(a, b, 9.0), (a, c, 100.0), (c, d, 1.0), (d, b, 100.0)] {
        wan.add_link(from, to, gbps).unwrap();
    }
    let work = workload(vec![(0.0, coflow(&wan, 1, &[("a", "b", 45.0)])), (0.0, coflow(&wan, 2, &[("c", "d", 10.0)]))]);
    let ends = |max_exchanges| ccts(&run(&wan, &work, vec![], &mut Terra::new(Config { max_exchanges, ..Config::default() })));
    // By least time alone, 1 goes first over both its ways: 4.5 s, in which 2 waits for its only one.
    assert_eq!(ends(0), BTreeMap::from([(1, 4.5), (2, 14.5)]));
    // The other way round 1 takes half a second longer, and 2 ends 4.5 s earlier.
    assert_eq!(ends(8), BTreeMap::from([(1, 5.0), (2, 10.0)]));
}

#[test]
fn deadlines_are_promised_as_far_as_they_fit() {
    let wan = pair(1.0);
    let with = |id, volume, deadline| coflow(&wan, id, &[("a", "b", volume)]).with_deadline(deadline).unwrap();
    // 4 Gbit in 8 s is 0.5 Gbit/s; 5 Gbit in 8 s is more than the other half, 3.9 is not.
    let work = workload(vec![(0.0, with(1, 4.0, 8.0)), (0.0, with(2, 5.0, 8.0)), (0.0, with(3, 3.9, 8.0))]);
    let report = run(&wan, &work, vec![], &mut Terra::default());
    assert_eq!(report.refused.iter().map(|id| id.0).collect::<Vec<_>>(), [2]);
    assert_eq!(report.broken_promises(), []);
    assert_eq!(report.deadlines(), (3, 2));
    // Fair sharing takes a third each, and the largest two end after 8 s.
    assert!(run(&wan, &work, vec![], &mut PerFlow).deadlines().1 < 2);
}

#[test]
fn promises_are_checked_again_when_a_link_fails() {
    let wan = diamond();
    let link = wan.link_between(wan.site("a").unwrap(), wan.site("b").unwrap()).unwrap();
    let with = |deadline_s| workload(vec![(0.0, coflow(&wan, 1, &[("a", "d", 10.0)]).with_deadline(deadline_s).unwrap())]);
    let failure = vec![CapacityChange { at_s: 2.0, link, capacity_gbps: 0.0 }];
    // Alone it is topped up to 2 Gbit/s, so 4 Gbit are through at 2 s; the other 6 take 6 s over what is left.
    let report = run(&wan, &with(9.0), failure.clone(), &mut Terra::default());
    assert_eq!((ccts(&report)[&1], report.refused.len()), (8.0, 0));
    // A deadline at 7 s was promised too, cannot be kept any more, and this is said.
    let report = run(&wan, &with(7.0), failure, &mut Terra::default());
    assert_eq!((ccts(&report)[&1], report.refused.len(), report.deadlines()), (8.0, 1, (1, 0)));
}

#[test]
fn small_changes_of_capacity_plan_nothing_anew() {
    let wan = pair(1.0);
    let work = workload(vec![(0.0, coflow(&wan, 1, &[("a", "b", 10.0)])), (0.0, coflow(&wan, 2, &[("a", "b", 20.0)]))]);
    let solves = |capacity_gbps| {
        let mut policy = Terra::default();
        run(&wan, &work, vec![CapacityChange { at_s: 1.0, link: LinkId(0), capacity_gbps }], &mut policy);
        policy.work().full
    };
    assert_eq!([1.1, 1.3, 0.9].map(solves), [0, 1, 1], "10 % more, 30 % more, and less than what is in use");
}

#[test]
fn those_before_a_newcomer_keep_their_rates() {
    let wan = pair(1.0);
    let mut policy = Terra::default();
    let coflows = [1.0, 2.0, 3.0, 4.0].iter().enumerate();
    let work =
        workload(coflows.map(|(id, volume)| (0.1 * id as f64, coflow(&wan, id as u64, &[("a", "b", *volume)]))).collect());
    run(&wan, &work, vec![], &mut policy);
    // Each newcomer is longer than all before it: when the second arrives 1 is kept, then 2, then 3.
    assert!(policy.work().kept >= 6, "{:?}", policy.work());
}

#[test]
fn headroom_serves_the_starving() {
    let wan = pair(1.0);
    // A long one under a stream of short ones that take all capacity for a minute.
    let mut coflows = vec![(0.0, coflow(&wan, 0, &[("a", "b", 20.0)]))];
    coflows.extend((1..80).map(|id| (0.75 * (id - 1) as f64, coflow(&wan, id, &[("a", "b", 1.0)]))));
    let work = workload(coflows);
    let sent_at_50_s = |headroom| {
        let mut policy =
            Watched { policy: Terra::new(Config { headroom, patience: 0.5, ..Config::default() }), left_gbit: 20.0 };
        run(&wan, &work, vec![], &mut policy);
        20.0 - policy.left_gbit
    };
    assert_eq!(sent_at_50_s(0.0), 0.0);
    // Patience is 10 s (half of its own 20 s). A tenth from then on would be 4 Gbit at 50 s; some of it goes to short ones,
    // which starve too once the queue is long.
    let sent_gbit = sent_at_50_s(0.1);
    assert!((1.0..4.1).contains(&sent_gbit), "{sent_gbit}");
}

/// Notes what coflow 0 has left at 50 seconds.
struct Watched {
    policy: Terra,
    left_gbit: f64,
}

impl Policy for Watched {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn schedule(&mut self, state: &State, events: &[Event]) -> terra::policy::Decision {
        if state.now_s < 50.0
            && let Some(active) = state.active.get(&CoflowId(0))
        {
            self.left_gbit = active.left_gbit();
        }
        self.policy.schedule(state, events)
    }
}

#[test]
fn stages_wait_for_one_another_and_local_ones_take_no_time() {
    let wan = pair(1.0);
    let stage = |id, flows: &[(&str, &str, f64)], after: &[usize]| Stage {
        coflow: coflow(&wan, id, flows),
        name: format!("s{id}"),
        after: after.to_vec(),
    };
    let stages =
        vec![stage(0, &[("a", "b", 2.0)], &[]), stage(1, &[("a", "a", 9.0)], &[0]), stage(2, &[("b", "a", 3.0)], &[1, 0])];
    let work = Workload { jobs: vec![Job { id: JobId(1), arrival_s: 5.0, stages }] };
    let report = run(&wan, &work, vec![], &mut Terra::default());
    assert_eq!(ccts(&report), BTreeMap::from([(0, 2.0), (1, 0.0), (2, 3.0)]));
    assert!((report.jobs[0].done_s - 10.0).abs() < 1e-6, "{:?}", report.jobs);
    assert_eq!(report.ccts_s().len(), 2, "local ones do not count");
}

#[test]
fn a_network_that_stays_cut_is_reported_not_waited_for() {
    let wan = pair(1.0);
    let work = workload(vec![(0.0, coflow(&wan, 1, &[("a", "b", 10.0)]))]);
    let cut = vec![CapacityChange { at_s: 1.0, link: LinkId(0), capacity_gbps: 0.0 }];
    let result = Simulation::new(&wan, &work).unwrap().with_changes(cut).unwrap().run(&mut Terra::default());
    assert_eq!(result, Err(SimError::Stalled { at_s: 1.0, left: 1, first: CoflowId(1) }));
    let unknown = vec![CapacityChange { at_s: 1.0, link: LinkId(77), capacity_gbps: 0.0 }];
    assert!(matches!(Simulation::new(&wan, &work).unwrap().with_changes(unknown), Err(SimError::Wan(_))));
}

#[test]
fn a_coflow_beyond_the_planned_ones_still_moves() {
    let wan = diamond();
    let coflows = (0..6).map(|id| (0.0, coflow(&wan, id, &[("a", "d", 1.0 + id as f64)]))).collect();
    let mut policy = Terra::new(Config { max_planned: 1, ..Config::default() });
    let report = run(&wan, &workload(coflows), vec![], &mut policy);
    assert_eq!(report.coflows.len(), 6);
    let active = Active::new(coflow(&wan, 9, &[("a", "d", 1.0)]), 0.0);
    assert_eq!(active.left_gbit(), 1.0);
}
