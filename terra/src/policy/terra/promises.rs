//! Deadlines that were promised: rates set aside for them, what remains over the time that remains.
//!
//! A promise once made can be kept as long as no capacity falls: rates only shrink, since what was sent in addition only
//! lowers what remains. When a capacity falls, what no longer fits is solved again, earliest deadline first; a promise that
//! cannot be kept is given up and reported, and its coflow joins the others.
//!
//! While a coflow is paused, its rates stay set aside against later admissions, but whoever can use them may. When it is back,
//! it has less time for what it has left; it is solved again only if that is more than the rates of before allow.

use super::super::{Active, State};
use crate::allocation::{Allocation, GroupRates, PathRate, add_load, rate_of};
use crate::id::CoflowId;
use crate::min_cct::{Effort, Solver, demands};
use std::collections::BTreeMap;

/// A promised coflow ends this fraction of its time before the deadline, for rounding.
const MARGIN: f64 = 1e-6;

#[derive(Clone, Debug)]
struct Promise {
    deadline_at_s: f64,
    rates: GroupRates,
    is_paused: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Promises {
    held: BTreeMap<CoflowId, Promise>,
}

impl Promises {
    pub fn holds(&self, id: CoflowId) -> bool {
        self.held.contains_key(&id)
    }

    pub fn rates(&self, id: CoflowId) -> Option<&GroupRates> {
        self.held.get(&id).map(|promise| &promise.rates)
    }

    /// Forgets promises to those that are gone; paused ones may be back until their deadline.
    pub fn forget_absent(&mut self, state: &State) {
        self.held.retain(|id, promise| match promise.is_paused {
            true => promise.deadline_at_s > state.now_s,
            false => state.active.contains_key(id),
        });
    }

    pub fn pause(&mut self, id: CoflowId) {
        if let Some(promise) = self.held.get_mut(&id) {
            promise.is_paused = true;
        }
    }

    pub fn end(&mut self, id: CoflowId) {
        self.held.remove(&id);
    }

    pub fn resume(&mut self, id: CoflowId, deadline_at_s: f64, rates: GroupRates) {
        self.held.insert(id, Promise { deadline_at_s, rates, is_paused: true });
    }

    /// Promises the deadline of a coflow if it can be met beside all earlier promises. One that was promised before it was
    /// paused keeps its rates if they still suffice.
    pub fn admit(&mut self, solver: &mut Solver, state: &State, active: &Active, effort: Effort) -> bool {
        if let Some(mut kept) = self.held.remove(&active.coflow.id)
            && suffices(&kept, state, active)
        {
            kept.is_paused = false;
            self.held.insert(active.coflow.id, kept);
            return true;
        }
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
        self.held.values().for_each(|promise| add_load(&mut loads, &promise.rates, 1.0));
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
        // Those that are paused are admitted anew when they are back.
        for (active, id) in again.iter().filter_map(|(_, id)| Some((state.active.get(id)?, id))) {
            if !self.admit(solver, state, active, effort) {
                lost.push(*id);
            }
        }
        lost
    }

    /// Lowers every rate to what remains over the time that remains.
    pub fn shrink(&mut self, state: &State) {
        for (id, promise) in self.held.iter_mut().filter(|(_, promise)| !promise.is_paused) {
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

    /// Adds what is sent for promises now.
    pub fn add_load(&self, loads: &mut [f64]) {
        self.sending().for_each(|(_, promise)| add_load(loads, &promise.rates, 1.0));
    }

    fn sending(&self) -> impl Iterator<Item = (&CoflowId, &Promise)> {
        self.held.iter().filter(|(_, promise)| !promise.is_paused)
    }

    pub fn fill(&self, allocation: &mut Allocation) {
        for (id, promise) in self.sending() {
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
    Some(Promise { deadline_at_s, rates, is_paused: false })
}

/// Whether the rates of a promise still send what is left in time.
fn suffices(promise: &Promise, state: &State, active: &Active) -> bool {
    let time_s = (promise.deadline_at_s - state.now_s) * (1.0 - MARGIN);
    let in_time = |(paths, left_gbit): (&Vec<PathRate>, &f64)| *left_gbit <= rate_of(paths) * time_s;
    promise.rates.iter().zip(&active.remaining_gbit).all(in_time)
}
