//! Deadlines that were promised: rates set aside for them, what remains over the time that remains.
//!
//! A promise once made can be kept as long as no capacity falls: rates only shrink, since what was sent in addition only
//! lowers what remains. When a capacity falls, what no longer fits is solved again, earliest deadline first; a promise that
//! cannot be kept is given up and reported, and its coflow joins the others.

use super::super::{Active, State};
use crate::allocation::{Allocation, GroupRates, add_load, rate_of};
use crate::id::CoflowId;
use crate::min_cct::{Effort, Solver, demands};
use std::collections::BTreeMap;

/// A promised coflow ends this fraction of its time before the deadline, for rounding.
const MARGIN: f64 = 1e-6;

#[derive(Clone, Debug)]
struct Promise {
    deadline_at_s: f64,
    rates: GroupRates,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Promises {
    held: BTreeMap<CoflowId, Promise>,
}

impl Promises {
    pub fn holds(&self, id: CoflowId) -> bool {
        self.held.contains_key(&id)
    }

    pub fn retain(&mut self, keep: impl Fn(&CoflowId) -> bool) {
        self.held.retain(|id, _| keep(id));
    }

    /// Promises the deadline of a coflow if it can be met beside all earlier promises.
    pub fn admit(&mut self, solver: &mut Solver, state: &State, active: &Active, effort: Effort) -> bool {
        let mut left = state.wan.capacities();
        for promise in self.held.values() {
            add_load(&mut left, &promise.rates, -1.0);
        }
        left.iter_mut().for_each(|left| *left = left.max(0.0));
        match promise(solver, state, active, &left, effort) {
            Some(promise) => {
                self.held.insert(active.coflow.id, promise);
                true
            }
            None => false,
        }
    }

    /// After a change of capacities: keeps what fits, solves the rest again, and returns what can no longer be kept.
    pub fn recheck(&mut self, solver: &mut Solver, state: &State, effort: Effort) -> Vec<CoflowId> {
        let mut loads = vec![0.0; state.wan.links().len()];
        self.add_load(&mut loads);
        let broken: Vec<bool> =
            loads.iter().zip(state.wan.links()).map(|(load, link)| *load > link.capacity_gbps * (1.0 + 1e-9)).collect();
        if !broken.contains(&true) {
            return Vec::new();
        }
        let crosses = |promise: &Promise| {
            let links = promise.rates.iter().flatten().flat_map(|path| path.path.links());
            links.into_iter().any(|link| broken[link.index()])
        };
        let mut again: Vec<(f64, CoflowId)> = self
            .held
            .iter()
            .filter(|(_, promise)| crosses(promise))
            .map(|(id, promise)| (promise.deadline_at_s, *id))
            .collect();
        again.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        for (_, id) in &again {
            self.held.remove(id);
        }
        let mut lost = Vec::new();
        for (_, id) in again {
            if !self.admit(solver, state, &state.active[&id], effort) {
                lost.push(id);
            }
        }
        lost
    }

    /// Lowers every rate to what remains over the time that remains.
    pub fn shrink(&mut self, state: &State) {
        for (id, promise) in &mut self.held {
            let active = &state.active[id];
            let time_s = (promise.deadline_at_s - state.now_s) * (1.0 - MARGIN);
            for (paths, left_gbit) in promise.rates.iter_mut().zip(&active.remaining_gbit) {
                let rate = rate_of(paths);
                // In the last instant the quotient means nothing; the rate of before does.
                let needed = if time_s > 0.0 { (left_gbit / time_s).min(rate) } else { rate };
                if *left_gbit == 0.0 {
                    paths.clear();
                } else if rate > 0.0 {
                    paths.iter_mut().for_each(|path| path.rate_gbps *= needed / rate);
                }
            }
        }
    }

    pub fn add_load(&self, loads: &mut [f64]) {
        self.held.values().for_each(|promise| add_load(loads, &promise.rates, 1.0));
    }

    pub fn fill(&self, allocation: &mut Allocation) {
        for (id, promise) in &self.held {
            allocation.coflows.insert(*id, promise.rates.clone());
        }
    }
}

/// Rates that end a coflow at its deadline and not before, if the capacities allow it.
fn promise(solver: &mut Solver, state: &State, active: &Active, left: &[f64], effort: Effort) -> Option<Promise> {
    let deadline_at_s = active.deadline_at_s()?;
    let time_s = (deadline_at_s - state.now_s) * (1.0 - MARGIN);
    let answer = solver.solve(state.wan, left, &demands(&active.coflow, &active.remaining_gbit), effort).ok()?;
    if answer.cct_s > time_s {
        return None;
    }
    let mut rates = answer.rates;
    let slower = answer.cct_s / time_s;
    rates.iter_mut().flatten().for_each(|path| path.rate_gbps *= slower);
    Some(Promise { deadline_at_s, rates })
}
