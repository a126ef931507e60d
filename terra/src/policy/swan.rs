//! SWAN-MCF: traffic engineering per pair of sites, blind to coflows. Approximate max-min fairness by a few LPs: in round `k`
//! total throughput is maximised while nobody may exceed `2^k` times the fair share; who stays below is frozen.

use super::{Decision, Event, Policy, State};
use crate::RATE_FLOOR_GBPS;
use crate::allocation::{Allocation, PathRate, rate_of};
use crate::id::SiteId;
use crate::min_cct::{Demand, Effort, Solver};
use crate::path::{Path, k_shortest};
use crate::share::{Sharer, fill_network};
use crate::wan::Wan;
use microlp::{ComparisonOp, LinearExpr, OptimizationDirection, Problem, Variable};
use std::collections::BTreeMap;

/// Tunnels of each of two kinds per pair: of fewest hops, and of most capacity.
const TUNNELS: usize = 4;
/// By how much the limit grows from round to round.
const FACTOR: f64 = 2.0;
/// Most rounds.
const MAX_ROUNDS: u32 = 7;
/// Price of a hop relative to throughput.
const HOP_PRICE: f64 = 1e-3;

type Pair = (SiteId, SiteId);

/// The policy and what it remembers.
#[derive(Clone, Debug)]
pub struct SwanMcf {
    period_s: f64,
    tunnels: BTreeMap<Pair, Vec<Path>>,
    rates: BTreeMap<Pair, Vec<PathRate>>,
    computed_s: Option<f64>,
}

impl SwanMcf {
    /// Rates are computed anew at most once per `period_s` seconds, and at once when the network changes. In between, pairs
    /// keep their rates, and what is new shares what is left.
    pub fn new(period_s: f64) -> Self {
        Self { period_s, tunnels: BTreeMap::new(), rates: BTreeMap::new(), computed_s: None }
    }

    fn compute(&mut self, wan: &Wan, pairs: &BTreeMap<Pair, usize>) {
        let capacity = wan.capacities();
        let mut open: BTreeMap<Pair, Vec<Path>> = BTreeMap::new();
        for pair in pairs.keys() {
            let known = self.tunnels.entry(*pair).or_insert_with(|| tunnels(wan, *pair));
            let working: Vec<Path> =
                known.iter().filter(|path| path.bottleneck(&capacity) > RATE_FLOOR_GBPS).cloned().collect();
            if !working.is_empty() {
                open.insert(*pair, working);
            }
        }
        self.rates.clear();
        // The fair share that everyone can have: the first limit.
        let demand = |(pair, _): (&Pair, &Vec<Path>)| Demand { src: pair.0, dst: pair.1, volume_gbit: pairs[pair] as f64 };
        let demands: Vec<Demand> = open.iter().map(demand).collect();
        let Ok(fair) = Solver::new(wan).solve(wan, &capacity, &demands, Effort::rough()) else { return };
        if demands.is_empty() {
            return;
        }
        let share = 1.0 / fair.cct_s;
        let mut limit = share;
        let mut frozen: BTreeMap<Pair, f64> = BTreeMap::new();
        for index in 0..MAX_ROUNDS {
            let Some(rates) = round(&open, pairs, &frozen, limit, index == 0, &capacity) else { break };
            for (pair, paths) in &rates {
                if rate_of(paths) < limit * pairs[pair] as f64 * (1.0 - 1e-3) {
                    frozen.entry(*pair).or_insert_with(|| rate_of(paths));
                }
            }
            self.rates = rates;
            if frozen.len() == open.len() {
                break;
            }
            limit *= FACTOR;
        }
    }
}

impl Policy for SwanMcf {
    fn name(&self) -> &'static str {
        "swan-mcf"
    }

    fn schedule(&mut self, state: &State, events: &[Event]) -> Decision {
        let mut members: BTreeMap<Pair, Vec<Sharer>> = BTreeMap::new();
        for sharer in state.active.values().flat_map(|active| active.sharers(|_| 1.0).collect::<Vec<_>>()) {
            members.entry((sharer.src, sharer.dst)).or_default().push(sharer);
        }
        let changed = events.iter().any(|event| matches!(event, Event::Capacity { .. }));
        let due_s = self.computed_s.map_or(0.0, |at_s| at_s + self.period_s);
        if changed || state.now_s >= due_s {
            self.computed_s = Some(state.now_s);
            self.compute(state.wan, &members.iter().map(|(pair, members)| (*pair, members.len())).collect());
        }
        let mut allocation = Allocation::default();
        for (pair, sharers) in &members {
            for path in self.rates.get(pair).into_iter().flatten() {
                let rate_gbps = path.rate_gbps / sharers.len() as f64;
                sharers.iter().for_each(|one| allocation.add(one.coflow, one.groups, one.group, &path.path, rate_gbps));
            }
        }
        let mut residual = allocation.residual(state.wan);
        let all: Vec<Sharer> = members.values().flatten().cloned().collect();
        fill_network(state.wan, &mut residual, &all, &mut allocation);
        let stale = members.keys().any(|pair| !self.rates.contains_key(pair));
        let next_s = self.computed_s.map_or(state.now_s, |at_s| at_s + self.period_s);
        Decision { allocation, wake_at_s: (stale && next_s > state.now_s).then_some(next_s), refused: Vec::new() }
    }
}

fn tunnels(wan: &Wan, (src, dst): Pair) -> Vec<Path> {
    let hops = vec![1.0; wan.links().len()];
    let narrow: Vec<f64> = wan.links().iter().map(|link| 1.0 / link.capacity_gbps.max(crate::wan::MIN_CAPACITY_GBPS)).collect();
    let mut paths = k_shortest(wan, src, dst, TUNNELS, &hops);
    for path in k_shortest(wan, src, dst, TUNNELS, &narrow) {
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths
}

/// One round: most throughput with at most `limit` per member, the frozen exactly as they are, the others at least half the
/// limit unless it is the first. `None` if the LP solver fails.
fn round(
    open: &BTreeMap<Pair, Vec<Path>>,
    pairs: &BTreeMap<Pair, usize>,
    frozen: &BTreeMap<Pair, f64>,
    limit: f64,
    first: bool,
    capacity: &[f64],
) -> Option<BTreeMap<Pair, Vec<PathRate>>> {
    let mut problem = Problem::new(OptimizationDirection::Maximize);
    let mut on_link: Vec<Vec<Variable>> = vec![Vec::new(); capacity.len()];
    let mut columns: Vec<(Pair, Vec<Variable>)> = Vec::new();
    for (pair, paths) in open {
        let mut total = LinearExpr::empty();
        let mut own = Vec::new();
        for path in paths {
            let rate = problem.add_var(1.0 - HOP_PRICE * path.hops() as f64, (0.0, f64::INFINITY));
            total.add(rate, 1.0);
            path.links().iter().for_each(|link| on_link[link.index()].push(rate));
            own.push(rate);
        }
        let most = limit * pairs[pair] as f64;
        match frozen.get(pair) {
            // A little less than before, so that rounding cannot make the round infeasible.
            Some(rate) => {
                problem.add_constraint(total.clone(), ComparisonOp::Ge, rate * (1.0 - 1e-4));
                problem.add_constraint(total, ComparisonOp::Le, *rate);
            }
            None => {
                // The first limit is fair over all paths; over the tunnels alone it may be too much for somebody.
                if !first && most / FACTOR > RATE_FLOOR_GBPS {
                    problem.add_constraint(total.clone(), ComparisonOp::Ge, most / FACTOR * (1.0 - 1e-2));
                }
                problem.add_constraint(total, ComparisonOp::Le, most);
            }
        }
        columns.push((*pair, own));
    }
    for (link, rates) in on_link.iter().enumerate().filter(|(_, rates)| !rates.is_empty()) {
        problem.add_constraint(rates.iter().map(|&rate| (rate, 1.0)), ComparisonOp::Le, capacity[link]);
    }
    let solution = problem.solve().ok()?.into_solution().ok()?;
    let mut rates: BTreeMap<Pair, Vec<PathRate>> = BTreeMap::new();
    let mut loads = vec![0.0; capacity.len()];
    for (pair, columns) in columns {
        let rate = |(path, column): (&Path, Variable)| PathRate { path: path.clone(), rate_gbps: solution.var_value(column) };
        let used = open[&pair].iter().zip(columns).map(rate).filter(|path| path.rate_gbps > RATE_FLOOR_GBPS).collect();
        crate::allocation::add_load(&mut loads, std::slice::from_ref(&used), 1.0);
        rates.insert(pair, used);
    }
    let over = loads.iter().zip(capacity).filter(|(load, _)| **load > 0.0).map(|(load, c)| load / c).fold(1.0, f64::max);
    rates.values_mut().flatten().for_each(|path| path.rate_gbps /= over);
    Some(rates)
}
