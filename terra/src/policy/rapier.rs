//! Rapier: routing and scheduling together, one path per flow. The coflow that would end first on what is left is served
//! next, each of its FlowGroups on the widest path that the relaxed problem gives it.

use super::{Active, Decision, Event, Policy, State};
use crate::RATE_FLOOR_GBPS;
use crate::id::CoflowId;
use crate::min_cct::{Effort, Solver, demands};
use crate::path::{Path, Tree};
use crate::share::take_path;
use std::collections::BTreeMap;

/// A coflow that got nothing for this long goes first, seconds.
const PATIENCE_S: f64 = 5.0;

/// The policy and what it remembers.
#[derive(Clone, Debug, Default)]
pub struct Rapier {
    solver: Option<Solver>,
    served_s: BTreeMap<CoflowId, f64>,
}

/// One path per FlowGroup that is not done, and the time to send all over them.
struct Route {
    time_s: f64,
    paths: Vec<(usize, Path)>,
}

impl Policy for Rapier {
    fn name(&self) -> &'static str {
        "rapier"
    }

    fn schedule(&mut self, state: &State, _events: &[Event]) -> Decision {
        let mut solver = self.solver.take().unwrap_or_else(|| Solver::new(state.wan));
        self.served_s.retain(|id, _| state.active.contains_key(id));
        let mut left = state.wan.capacities();
        let mut decision = Decision::default();
        // Times only grow as capacity is taken, so an old time is a lower bound: only the first in the queue is computed anew.
        let mut queue: Vec<(bool, f64, CoflowId, Option<Route>)> = Vec::new();
        for (id, active) in state.active {
            let served_s = *self.served_s.entry(*id).or_insert(state.now_s);
            let starving = state.now_s - served_s > PATIENCE_S;
            if let Some(route) = route(&mut solver, state, active, &left) {
                queue.push((!starving, route.time_s, *id, Some(route)));
            }
        }
        loop {
            queue.sort_by(|a, b| b.0.cmp(&a.0).then(b.1.total_cmp(&a.1)).then(b.2.cmp(&a.2)));
            let Some((later, _, id, fresh)) = queue.pop() else { break };
            let active = &state.active[&id];
            let Some(route) = fresh else {
                if let Some(route) = route(&mut solver, state, active, &left) {
                    queue.push((later, route.time_s, id, Some(route)));
                }
                continue;
            };
            for (group, path) in &route.paths {
                if let Some(rate) = take_path(&mut left, path, active.remaining_gbit[*group] / route.time_s) {
                    decision.allocation.add(id, active.coflow.groups.len(), *group, path, rate.rate_gbps);
                }
            }
            queue.iter_mut().for_each(|entry| entry.3 = None);
        }
        top_up(state, &mut left, &mut decision);
        for id in decision.allocation.coflows.keys() {
            self.served_s.insert(*id, state.now_s);
        }
        self.solver = Some(solver);
        decision
    }
}

fn route(solver: &mut Solver, state: &State, active: &Active, left: &[f64]) -> Option<Route> {
    let usable = |(left, link): (&f64, &crate::wan::Link)| if *left > 1e-3 * link.capacity_gbps { *left } else { 0.0 };
    let usable: Vec<f64> = left.iter().zip(state.wan.links()).map(usable).collect();
    let answer = solver.solve(state.wan, &usable, &demands(&active.coflow, &active.remaining_gbit), Effort::rough()).ok()?;
    let widest = |(group, paths): (usize, &Vec<crate::allocation::PathRate>)| {
        let best = paths.iter().max_by(|a, b| a.rate_gbps.total_cmp(&b.rate_gbps));
        best.map(|best| (group, best.path.clone()))
    };
    let paths: Vec<(usize, Path)> = answer.rates.iter().enumerate().filter_map(widest).collect();
    let mut volume = vec![0.0; left.len()];
    for (group, path) in &paths {
        path.links().iter().for_each(|link| volume[link.index()] += active.remaining_gbit[*group]);
    }
    let times = volume.iter().zip(&usable).filter(|(volume, _)| **volume > 0.0).map(|(volume, left)| volume / left);
    let time_s = times.fold(0.0, f64::max);
    (time_s > 0.0 && time_s.is_finite()).then_some(Route { time_s, paths })
}

/// What is left goes to the largest FlowGroups first, each on its widest path.
fn top_up(state: &State, left: &mut [f64], decision: &mut Decision) {
    let groups = |active: &Active| active.sharers(|_| 1.0).collect::<Vec<_>>();
    let mut all: Vec<_> = state.active.values().flat_map(groups).collect();
    let volume = |one: &crate::share::Sharer| state.active[&one.coflow].remaining_gbit[one.group];
    all.sort_by(|a, b| volume(b).total_cmp(&volume(a)).then((a.coflow, a.group).cmp(&(b.coflow, b.group))));
    let mut tree = Tree::new(state.wan);
    for one in all {
        let free = &*left;
        let width = |link: crate::LinkId| if free[link.index()] > RATE_FLOOR_GBPS { free[link.index()] } else { 0.0 };
        tree.widest(state.wan, one.src, width);
        let Some(path) = tree.path(state.wan, one.dst) else { continue };
        if let Some(rate) = take_path(left, &path, f64::INFINITY) {
            decision.allocation.add(one.coflow, one.groups, one.group, &path, rate.rate_gbps);
        }
    }
}
