//! Our schedule: coflows in order of least remaining time, each with joint routes and rates on what those before it leave;
//! promised deadlines first; what is left is shared by max-min, so that no capacity idles while somebody could use it.
//!
//! The order key of a coflow is the certified bound of its remaining time alone on the network, divided by its weight. The
//! bound comes from link prices found once per coflow and network state, so that ordering costs no LP (see
//! [`MinCct::prices`](crate::min_cct::MinCct::prices)).
//!
//! Neighbours in this order change places if an estimate of both ends says that it is better on the sum (`exchange`): on a
//! network the shorter one may take, for little, what the longer one cannot do without.
//!
//! Incremental: the rates of a coflow depend only on what the coflows before it take. So after an event, everyone before the
//! first coflow that arrived, left, moved or finished a FlowGroup keeps its rates, and only those after it are solved again.
//! A capacity change re-plans all only if it is larger than [`Config::threshold`] or breaks the present rates.

mod exchange;
mod promises;

use super::{Active, Decision, Event, Policy, State};
use crate::RATE_FLOOR_GBPS;
use crate::allocation::{Allocation, GroupRates, PathRate, add_load};
use crate::id::CoflowId;
use crate::min_cct::{Effort, MinCct, NoPath, Solver, demands};
use crate::share::{Sharer, fill_network};
use crate::wan::Wan;
use exchange::{Neighbours, One, Outcome};
use promises::Promises;
use std::collections::{BTreeMap, BTreeSet};

/// Settings of the schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Fraction of every link kept free for starving coflows while there are any, 0 to 0.5.
    pub headroom: f64,
    /// A coflow starves if it got no rate for this many times its own remaining time, and for at least [`Config::patience_s`].
    pub patience: f64,
    /// See [`Config::patience`], seconds.
    pub patience_s: f64,
    /// Relative change of a capacity from which on everything is planned again.
    pub threshold: f64,
    /// How hard each coflow is solved on what the others leave.
    pub effort: Effort,
    /// How hard a deadline is tried before it is refused.
    pub admission: Effort,
    /// Coflows beyond this position in the order only share what is left. Bounds the work of one decision.
    pub max_planned: usize,
    /// Most neighbours in the order that are compared in one decision, whether they should change places.
    pub max_exchanges: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            headroom: 0.1,
            patience: 5.0,
            patience_s: 10.0,
            threshold: 0.25,
            effort: Effort::rushed(),
            admission: Effort::precise(),
            max_planned: 64,
            max_exchanges: 8,
        }
    }
}

/// Counts of what the decisions cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Solves of one coflow on what the others leave.
    pub solves: u64,
    /// Coflows whose rates were kept from the decision before.
    pub kept: u64,
    /// Decisions that planned everything anew.
    pub full: u64,
    /// Steps of all solves.
    pub steps: u64,
}

/// The schedule and what it remembers between decisions.
#[derive(Clone, Debug)]
pub struct Terra {
    config: Config,
    solver: Option<Solver>,
    promises: Promises,
    /// Link prices of each coflow, for the order.
    prices: BTreeMap<CoflowId, Vec<f64>>,
    /// The order of the last decision, with the rates of each coflow before sharing; `None` for one that was put aside.
    plan: Vec<(CoflowId, Option<GroupRates>)>,
    /// When each waiting coflow last had a rate.
    served_s: BTreeMap<CoflowId, f64>,
    starving: BTreeSet<CoflowId>,
    headroom_was: f64,
    is_new_network: bool,
    work: Work,
}

impl Default for Terra {
    fn default() -> Self {
        Self::new(Config::default())
    }
}

impl Policy for Terra {
    fn name(&self) -> &'static str {
        "terra"
    }

    fn schedule(&mut self, state: &State, events: &[Event]) -> Decision {
        let mut solver = self.solver.take().unwrap_or_else(|| Solver::new(state.wan));
        let decision = self.decide(&mut solver, state, events);
        self.solver = Some(solver);
        decision
    }
}

impl Terra {
    /// A schedule with these settings.
    ///
    /// # Panics
    /// If the headroom is not within 0 to 0.5.
    pub fn new(config: Config) -> Self {
        assert!((0.0..=0.5).contains(&config.headroom), "headroom {} is not within 0 to 0.5", config.headroom);
        Self {
            config,
            solver: None,
            promises: Promises::default(),
            prices: BTreeMap::new(),
            plan: Vec::new(),
            served_s: BTreeMap::new(),
            starving: BTreeSet::new(),
            headroom_was: 0.0,
            is_new_network: false,
            work: Work::default(),
        }
    }

    /// What the decisions have cost so far.
    pub fn work(&self) -> Work {
        self.work
    }

    /// Whether a coflow is promised its deadline.
    pub fn promised(&self, id: CoflowId) -> bool {
        self.promises.holds(id)
    }

    fn decide(&mut self, solver: &mut Solver, state: &State, events: &[Event]) -> Decision {
        self.note_pauses(events);
        self.forget_absent(state);
        let mut refused = Vec::new();
        let mut dirty: BTreeSet<CoflowId> = BTreeSet::new();
        let fell = self.is_new_network || events.iter().any(|event| matches!(event, Event::Capacity { .. }));
        let mut full = std::mem::take(&mut self.is_new_network) || fell && self.must_replan(state, events);
        if fell {
            let lost = self.promises.recheck(solver, state, self.config.admission);
            full |= !lost.is_empty();
            refused.extend(lost);
        }
        if full {
            // Prices of a network that is no more.
            self.prices.clear();
        }
        let arrivals = events.iter().filter_map(|event| if let Event::Arrival(id) = event { Some(*id) } else { None });
        let mut arrivals: Vec<CoflowId> = arrivals.filter(|id| state.active.contains_key(id)).collect();
        // Those that are back before those that are new, so that a promise that cannot be kept holds nothing back.
        arrivals.sort_by_key(|id| !self.promises.holds(*id));
        for id in arrivals {
            self.served_s.insert(id, state.now_s);
            let active = &state.active[&id];
            if active.coflow.deadline_s.is_some() {
                if self.promises.admit(solver, state, active, self.config.admission) {
                    full = true;
                } else {
                    refused.push(id);
                }
            }
        }
        dirty.extend(events.iter().filter_map(|event| if let Event::GroupDone(id, _) = event { Some(*id) } else { None }));
        self.promises.shrink(state);

        let order = self.order(solver, state);
        self.note_starving(state, &order);
        let headroom = if self.starving.is_empty() { 0.0 } else { self.config.headroom };
        full |= headroom != self.headroom_was;
        self.headroom_was = headroom;
        self.work.full += u64::from(full);
        let kept = if full { 0 } else { self.unchanged_prefix(&order, &dirty) };
        self.plan_from(solver, state, &order, kept, headroom);
        let allocation = self.share_rest(state);
        for (id, groups) in &allocation.coflows {
            if groups.iter().any(|paths| !paths.is_empty()) {
                self.served_s.insert(*id, state.now_s);
            }
        }
        Decision { allocation, wake_at_s: None, refused }
    }

    /// The network has got new sites or links. Promises are kept as far as its capacities allow; all else is planned anew.
    pub fn grow_network(&mut self) {
        self.solver = None;
        self.plan.clear();
        self.is_new_network = true;
    }

    /// The rates that are set aside for the deadline of a coflow, if it is promised.
    pub fn promise(&self, id: CoflowId) -> Option<&GroupRates> {
        self.promises.rates(id)
    }

    /// Goes on with a promise made before a restart, to a coflow that is paused and due at `deadline_at_s` seconds. The caller
    /// has checked that all promises together keep to the capacities.
    pub fn resume_promise(&mut self, id: CoflowId, deadline_at_s: f64, rates: GroupRates) {
        self.promises.resume(id, deadline_at_s, rates);
    }

    fn note_pauses(&mut self, events: &[Event]) {
        for event in events {
            match event {
                Event::Paused(id) => self.promises.pause(*id),
                Event::CoflowDone(id) => self.promises.end(*id),
                _ => {}
            }
        }
    }

    fn forget_absent(&mut self, state: &State) {
        let active = |id: &CoflowId| state.active.contains_key(id);
        self.promises.forget_absent(state);
        self.prices.retain(|id, _| active(id));
        self.served_s.retain(|id, _| active(id));
    }

    /// Whether capacity changes are large enough, or the present rates no longer fit.
    fn must_replan(&self, state: &State, events: &[Event]) -> bool {
        let large = |event: &Event| match event {
            Event::Capacity { link, before_gbps } => {
                let now_gbps = state.wan.links()[link.index()].capacity_gbps;
                (now_gbps - before_gbps).abs() > self.config.threshold * before_gbps
            }
            _ => false,
        };
        let mut loads = vec![0.0; state.wan.links().len()];
        self.promises.add_load(&mut loads);
        self.plan.iter().filter_map(|(_, rates)| rates.as_ref()).for_each(|rates| add_load(&mut loads, rates, 1.0));
        let broken = loads.iter().zip(state.wan.links()).any(|(load, link)| *load > link.capacity_gbps * (1.0 + 1e-9));
        broken || events.iter().any(large)
    }

    /// Coflows without promise, least remaining time per weight first.
    fn order(&mut self, solver: &mut Solver, state: &State) -> Vec<CoflowId> {
        let mut keyed: Vec<(f64, f64, CoflowId)> = Vec::new();
        for (id, active) in state.active.iter().filter(|(id, _)| !self.promises.holds(**id)) {
            let prices = match self.prices.get(id) {
                Some(prices) => prices,
                None => {
                    let demands = demands(&active.coflow, &active.remaining_gbit);
                    let answer = solver.solve(state.wan, &state.wan.capacities(), &demands, Effort::rough());
                    // Cut off: last in the order, until the network changes.
                    let prices = answer.map_or_else(|_| vec![f64::INFINITY; demands.len()], |answer| answer.prices);
                    self.prices.entry(*id).or_insert(prices)
                }
            };
            keyed.push((remaining_s(active, prices) / active.coflow.weight, active.arrived_s, *id));
        }
        keyed.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
        keyed.into_iter().map(|(.., id)| id).collect()
    }

    /// Notes who starves now; whoever once starved is helped until it is planned again.
    fn note_starving(&mut self, state: &State, order: &[CoflowId]) {
        let planned: BTreeSet<CoflowId> = self.plan.iter().filter(|(_, rates)| rates.is_some()).map(|(id, _)| *id).collect();
        self.starving.retain(|id| order.contains(id) && !planned.contains(id));
        for id in order {
            let waited_s = state.now_s - self.served_s.get(id).copied().unwrap_or(state.now_s);
            let alone_s = self.prices.get(id).map_or(0.0, |prices| remaining_s(&state.active[id], prices));
            if alone_s.is_finite() && waited_s > self.config.patience_s.max(self.config.patience * alone_s) {
                self.starving.insert(*id);
            }
        }
    }

    /// How many coflows at the front keep their rates: the same ones in the same order, none of them changed.
    fn unchanged_prefix(&self, order: &[CoflowId], dirty: &BTreeSet<CoflowId>) -> usize {
        let same = order.iter().zip(&self.plan).take_while(|(id, (planned, _))| *id == planned && !dirty.contains(id));
        same.count()
    }

    /// Solves everyone from position `kept` on, each on what those before it leave.
    fn plan_from(&mut self, solver: &mut Solver, state: &State, order: &[CoflowId], kept: usize, headroom: f64) {
        self.work.kept += kept as u64;
        self.plan.truncate(kept);
        let mut left: Vec<f64> = state.wan.links().iter().map(|link| link.capacity_gbps * (1.0 - headroom)).collect();
        let mut loads = vec![0.0; left.len()];
        self.promises.add_load(&mut loads);
        self.plan.iter().filter_map(|(_, rates)| rates.as_ref()).for_each(|rates| add_load(&mut loads, rates, 1.0));
        left.iter_mut().zip(&loads).for_each(|(left, load)| *left -= load);
        let mut order = order.to_vec();
        let mut exchanges = self.config.max_exchanges;
        // What the comparison before has found out about the next one.
        let mut known: Option<Result<MinCct, NoPath>> = None;
        for position in kept..order.len() {
            let id = order[position];
            if position >= self.config.max_planned {
                self.plan.push((id, None));
                continue;
            }
            let free = rounded(state.wan, &left);
            let effort = self.config.effort;
            let mut answer = known.take().unwrap_or_else(|| {
                self.work.solves += 1;
                let active = &state.active[&id];
                let answer = solver.solve(state.wan, &free, &demands(&active.coflow, &active.remaining_gbit), effort);
                self.work.steps += answer.as_ref().map_or(0, |answer| answer.steps);
                answer
            });
            if exchanges > 0
                && let (Ok(first), Some(next)) = (&answer, order.get(position + 1))
            {
                exchanges -= 1;
                let one = |id: &CoflowId| One { active: &state.active[id], prices: &self.prices[id] };
                let neighbours = Neighbours { wan: state.wan, free: &free, effort };
                match neighbours.compare(solver, one(&id), first, one(next), &mut self.work.steps) {
                    Outcome::Keep(next) => known = Some(next),
                    Outcome::Exchange(first) => {
                        answer = Ok(first);
                        order.swap(position, position + 1);
                    }
                }
            }
            let rates = answer.ok().map(|answer| {
                add_load(&mut left, &answer.rates, -1.0);
                answer.rates
            });
            self.plan.push((order[position], rates));
        }
    }

    /// Promised and planned rates, then what is left: first for the starving, then for those put aside, then for everyone.
    fn share_rest(&mut self, state: &State) -> Allocation {
        let mut allocation = Allocation::default();
        self.promises.fill(&mut allocation);
        for (id, rates) in &self.plan {
            if let Some(rates) = rates {
                allocation.coflows.insert(*id, without_done(&state.active[id], rates));
            }
        }
        let mut residual = allocation.residual(state.wan);
        let starving: Vec<Sharer> = self.starving.iter().flat_map(|id| state.active[id].sharers(|_| 1.0)).collect();
        fill_network(state.wan, &mut residual, &starving, &mut allocation);
        let aside = self.plan.iter().filter(|(_, rates)| rates.is_none()).map(|(id, _)| &state.active[id]);
        let aside: Vec<Sharer> = aside.flat_map(|active| active.sharers(|_| 1.0)).collect();
        fill_network(state.wan, &mut residual, &aside, &mut allocation);
        let all: Vec<Sharer> = state.active.values().flat_map(proportional).collect();
        fill_network(state.wan, &mut residual, &all, &mut allocation);
        allocation
    }
}

/// The groups of a coflow, weighed by what they have left: whatever they get, they end together.
fn proportional(active: &Active) -> impl Iterator<Item = Sharer> {
    let left = active.remaining_gbit.clone();
    let total = active.left_gbit();
    // Bounded below, so that small ones are not lost to rounding.
    active.sharers(move |group| (left[group] / total).max(1e-6))
}

fn remaining_s(active: &Active, prices: &[f64]) -> f64 {
    let priced = active.remaining_gbit.iter().zip(prices).filter(|(left, _)| **left > 0.0);
    priced.map(|(left, price)| left * price).sum()
}

/// What is left on each link, with remnants of rounding taken as nothing.
fn rounded(wan: &Wan, left: &[f64]) -> Vec<f64> {
    let usable = |(left, link): (&f64, &crate::wan::Link)| if *left > 1e-3 * link.capacity_gbps { *left } else { 0.0 };
    left.iter().zip(wan.links()).map(usable).collect()
}

fn without_done(active: &Active, rates: &GroupRates) -> GroupRates {
    let wanted = |(paths, left): (&Vec<PathRate>, &f64)| {
        let some = paths.iter().filter(|path| *left > 0.0 && path.rate_gbps > RATE_FLOOR_GBPS);
        some.cloned().collect()
    };
    rates.iter().zip(&active.remaining_gbit).map(wanted).collect()
}
