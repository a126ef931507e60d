//! Offline bound and heuristic: the time-indexed LP of "Near Optimal Coflow Scheduling in Networks" (SPAA 2019) over paths,
//! and its Stretch schedule. For small instances: the LP has a column per path and slot.
//!
//! The published relaxation holds for slotted time only: it counts whole slots. Ours holds in continuous time, and is made
//! stronger by link prices. With the prices that prove the least time `G` of a coflow alone, its priced progress `Y(t)` (from
//! 0 to 1) can never rise faster than `1 / G`. So up to its end `C` the integral of `Y` is at least `G / 2`, and
//! `C >= integral of (1 - Y) + G / 2`, where the integral over a slot is bounded from below by what progress at the slot's end
//! allows. A single coflow alone gets exactly `G`.

use crate::coflow::Coflow;
use crate::min_cct::{Demand, Effort, MinCct, NoPath, Solver};
use crate::path::{Path, k_shortest};
use crate::wan::Wan;
use microlp::{ComparisonOp, LinearExpr, OptimizationDirection, Problem, Variable};
use thiserror::Error;

/// Tangents that bound the square in the area that progress within a slot takes away.
const TANGENTS: [f64; 3] = [0.25, 0.6, 1.0];

/// Why there is no bound.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum BoundError {
    /// Some FlowGroup cannot be sent at all.
    #[error(transparent)]
    NoPath(#[from] NoPath),
    /// The LP solver failed, or the slots end too early.
    #[error("The time-indexed LP has no answer: {0}")]
    Lp(String),
}

/// The relaxed schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeIndexed {
    /// No schedule has a smaller sum of weight times completion time (from time 0, not from release). Holds for all schedules
    /// if [`TimeIndexed::all_paths`], else for those that use the paths that were allowed.
    pub weighted_completion_s: f64,
    /// Whether every simple path was allowed.
    pub all_paths: bool,
    /// Ends of the slots, seconds; the first begins at 0.
    pub slots_s: Vec<f64>,
    /// Part of each FlowGroup that the relaxed schedule has sent by the end of each slot: by coflow, FlowGroup, slot.
    pub sent: Vec<Vec<Vec<f64>>>,
}

/// Slot ends for some coflows: `count` slots that grow by the factor `growth` from one to the next (1 is uniform), cut
/// further at release times, up to when all would be done one after another.
///
/// # Errors
/// [`NoPath`] if some coflow cannot be sent.
///
/// # Panics
/// If `count` is 0 or `growth` below 1.
pub fn slots(wan: &Wan, coflows: &[Coflow], count: usize, growth: f64) -> Result<Vec<f64>, NoPath> {
    assert!(count > 0 && growth >= 1.0, "{count} slots that grow by {growth}");
    let alone = alone(wan, coflows)?;
    let last_release = coflows.iter().map(|coflow| coflow.release_s).fold(0.0, f64::max);
    // One after another at proven rates; a little more, so that the LP is feasible in spite of rounding.
    let horizon_s = (last_release + alone.iter().map(|answer| answer.cct_s).sum::<f64>()) * 1.01 + 1e-3;
    let units: f64 = (0..count).map(|k| growth.powi(k as i32)).sum();
    let mut ends: Vec<f64> = Vec::with_capacity(count + coflows.len());
    let mut at = 0.0;
    for k in 0..count {
        at += horizon_s * growth.powi(k as i32) / units;
        ends.push(at);
    }
    ends.extend(coflows.iter().map(|coflow| coflow.release_s).filter(|release_s| *release_s > 0.0));
    ends.sort_by(f64::total_cmp);
    ends.dedup_by(|b, a| *b - *a < 1e-9 * horizon_s);
    Ok(ends)
}

fn alone(wan: &Wan, coflows: &[Coflow]) -> Result<Vec<MinCct>, NoPath> {
    let mut solver = Solver::new(wan);
    let effort = Effort { target_gap: 1e-4, ..Effort::precise() };
    let demand = |group: &crate::FlowGroup| Demand { src: group.src, dst: group.dst, volume_gbit: group.volume_gbit };
    let mut solve = |coflow: &Coflow| {
        let demands: Vec<Demand> = coflow.groups.iter().map(demand).collect();
        solver.solve(wan, &wan.capacities(), &demands, effort)
    };
    coflows.iter().map(&mut solve).collect()
}

struct Columns {
    /// Gbit sent, by group, path, slot; `None` before release.
    sent: Vec<Vec<Vec<Option<Variable>>>>,
}

/// Solves the relaxation. Release times count from 0; at most `max_paths` shortest simple paths per FlowGroup are allowed.
///
/// # Errors
/// [`BoundError`].
///
/// # Panics
/// If the slots do not ascend from above 0.
pub fn solve(wan: &Wan, coflows: &[Coflow], slots_s: &[f64], max_paths: usize) -> Result<TimeIndexed, BoundError> {
    let starts: Vec<f64> = std::iter::once(0.0).chain(slots_s.iter().copied()).collect();
    assert!(starts.windows(2).all(|slot| slot[0] < slot[1]), "slots must ascend: {slots_s:?}");
    let lengths: Vec<f64> = starts.windows(2).map(|slot| slot[1] - slot[0]).collect();
    let alone = alone(wan, coflows)?;
    let capacity = wan.capacities();
    let mut all_paths = true;
    let mut problem = Problem::new(OptimizationDirection::Minimize);
    let mut on_link: Vec<Vec<Vec<Variable>>> = vec![vec![Vec::new(); lengths.len()]; capacity.len()];
    let mut columns = Vec::with_capacity(coflows.len());
    for (coflow, alone) in coflows.iter().zip(&alone) {
        let mut sent = Vec::with_capacity(coflow.groups.len());
        for group in &coflow.groups {
            let paths = usable_paths(wan, &capacity, group, max_paths);
            all_paths &= paths.len() < max_paths;
            let mut of_group = Vec::with_capacity(paths.len());
            let mut total = LinearExpr::empty();
            for path in &paths {
                let mut of_path = Vec::with_capacity(lengths.len());
                for (slot, end_s) in slots_s.iter().enumerate() {
                    let column = (*end_s > coflow.release_s).then(|| problem.add_var(0.0, (0.0, f64::INFINITY)));
                    if let Some(column) = column {
                        path.links().iter().for_each(|link| on_link[link.index()][slot].push(column));
                        total.add(column, 1.0);
                    }
                    of_path.push(column);
                }
                of_group.push(of_path);
            }
            problem.add_constraint(total, ComparisonOp::Eq, group.volume_gbit);
            sent.push(of_group);
        }
        let columns_of = Columns { sent };
        add_completion(&mut problem, coflow, alone, &columns_of, &lengths);
        columns.push(columns_of);
    }
    for (link, slots) in on_link.iter().enumerate() {
        for (users, length) in slots.iter().zip(&lengths).filter(|(users, _)| !users.is_empty()) {
            problem.add_constraint(users.iter().map(|&column| (column, 1.0)), ComparisonOp::Le, capacity[link] * length);
        }
    }
    let failed = |error: microlp::Error| BoundError::Lp(error.to_string());
    let outcome = problem.solve().map_err(failed)?;
    let solution = outcome.into_solution().map_err(|_| BoundError::Lp("it was interrupted".to_owned()))?;
    let cumulative = |paths: &Vec<Vec<Option<Variable>>>, volume_gbit: f64| -> Vec<f64> {
        let in_slot =
            |slot: usize| paths.iter().filter_map(|path| path[slot]).map(|column| solution.var_value(column)).sum::<f64>();
        let sum = |sum: &mut f64, slot: usize| {
            *sum += in_slot(slot) / volume_gbit;
            Some(*sum)
        };
        (0..lengths.len()).scan(0.0, sum).collect()
    };
    let by_group = |(columns, coflow): (&Columns, &Coflow)| {
        columns.sent.iter().zip(&coflow.groups).map(|(paths, group)| cumulative(paths, group.volume_gbit)).collect()
    };
    let sent = columns.iter().zip(coflows).map(by_group).collect();
    Ok(TimeIndexed { weighted_completion_s: solution.objective(), all_paths, slots_s: slots_s.to_vec(), sent })
}

fn usable_paths(wan: &Wan, capacity: &[f64], group: &crate::FlowGroup, max_paths: usize) -> Vec<Path> {
    let hop = |capacity: &f64| if *capacity > 0.0 { 1.0 } else { f64::INFINITY };
    let hops: Vec<f64> = capacity.iter().map(hop).collect();
    k_shortest(wan, group.src, group.dst, max_paths, &hops)
}

/// The completion time of one coflow, and all that bounds it from below.
fn add_completion(problem: &mut Problem, coflow: &Coflow, alone: &MinCct, columns: &Columns, lengths: &[f64]) {
    let least_s = alone.bound_s;
    let end = problem.add_var(coflow.weight, (coflow.release_s + least_s, f64::INFINITY));
    if coflow.groups.is_empty() {
        return;
    }
    let total_s: f64 = lengths.iter().sum();
    // Published: the slowest FlowGroup's progress X. Sum of lengths times (1 - X) is at most the end.
    let mut published = LinearExpr::empty();
    published.add(end, 1.0);
    // Ours: priced progress Y, and what it leaves within slots.
    let mut priced = LinearExpr::empty();
    priced.add(end, 1.0);
    let mut priced_weight: Vec<(Variable, f64)> = Vec::new();
    let remaining_s = |slot: usize| lengths[slot..].iter().sum::<f64>();
    for (slot, length) in lengths.iter().enumerate() {
        let slowest = problem.add_var(0.0, (0.0, 1.0));
        published.add(slowest, *length);
        for (paths, group) in columns.sent.iter().zip(&coflow.groups) {
            let mut row = LinearExpr::empty();
            row.add(slowest, group.volume_gbit);
            for column in paths.iter().flat_map(|path| &path[..=slot]).flatten() {
                row.add(*column, -1.0);
            }
            problem.add_constraint(row, ComparisonOp::Le, 0.0);
        }
        // The rise of Y in this slot, and at least half its square times the least time.
        let area = problem.add_var(0.0, (0.0, f64::INFINITY));
        priced.add(area, -1.0);
        let steepest = (length / least_s).min(1.0);
        let rise: Vec<(Variable, f64)> = columns
            .sent
            .iter()
            .zip(&alone.prices)
            .flat_map(|(paths, price)| paths.iter().filter_map(move |path| path[slot].map(|column| (column, price / least_s))))
            .collect();
        for tangent in TANGENTS.map(|part| part * steepest) {
            let mut row = LinearExpr::empty();
            row.add(area, 1.0);
            rise.iter().for_each(|(column, factor)| row.add(*column, -factor * least_s * tangent));
            problem.add_constraint(row, ComparisonOp::Ge, -least_s * tangent * tangent / 2.0);
        }
        // What is sent in a slot counts as sent from its end on: in this slot and all later ones.
        priced_weight.extend(rise.iter().map(|(column, factor)| (*column, factor * remaining_s(slot))));
    }
    problem.add_constraint(published, ComparisonOp::Ge, total_s);
    priced_weight.into_iter().for_each(|(column, factor)| priced.add(column, factor));
    problem.add_constraint(priced, ComparisonOp::Ge, total_s + least_s / 2.0);
}

impl TimeIndexed {
    /// Completion times of the Stretch schedule: the relaxed schedule slowed down by `1 / lambda`, each FlowGroup stopping when
    /// all of it is sent. `lambda` 1 plays the relaxed schedule as it is, which is what does best in practice.
    ///
    /// # Panics
    /// If `lambda` is not above 0 and at most 1.
    pub fn stretched_s(&self, lambda: f64) -> Vec<f64> {
        assert!(lambda > 0.0 && lambda <= 1.0, "lambda {lambda} is not within 0 to 1");
        let end = |groups: &Vec<Vec<f64>>| groups.iter().map(|sent| self.reached_s(sent, lambda) / lambda).fold(0.0, f64::max);
        self.sent.iter().map(end).collect()
    }

    /// When the relaxed schedule has sent this part of a FlowGroup, at a constant rate within each slot.
    fn reached_s(&self, sent: &[f64], part: f64) -> f64 {
        // The last bit of rounding is not waited for.
        let part = part * (1.0 - 1e-7);
        let slot = sent.iter().position(|sent| *sent >= part).unwrap_or(sent.len() - 1);
        let (before_s, before) = if slot == 0 { (0.0, 0.0) } else { (self.slots_s[slot - 1], sent[slot - 1]) };
        let share = if sent[slot] > before { ((part - before) / (sent[slot] - before)).min(1.0) } else { 1.0 };
        before_s + share * (self.slots_s[slot] - before_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coflow::Flow;
    use crate::id::{CoflowId, JobId};
    use crate::policy::terra::Terra;
    use crate::random::Random;
    use crate::sim::Simulation;
    use crate::topology::Known;
    use crate::workload::{Job, Workload};

    fn line() -> Wan {
        let mut wan = Wan::new();
        let (a, b) = (wan.add_site("a").unwrap(), wan.add_site("b").unwrap());
        wan.add_edge(a, b, 1.0).unwrap();
        wan
    }

    fn coflow(wan: &Wan, id: u64, flows: &[(&str, &str, f64)]) -> Coflow {
        let site = |name: &str| wan.site(name).unwrap();
        Coflow::new(CoflowId(id), flows.iter().map(|(src, dst, v)| Flow { src: site(src), dst: site(dst), volume_gbit: *v }))
            .unwrap()
    }

    fn bound(wan: &Wan, coflows: &[Coflow], count: usize) -> TimeIndexed {
        solve(wan, coflows, &slots(wan, coflows, count, 1.0).unwrap(), 40).unwrap()
    }

    #[test]
    fn one_coflow_alone_is_bounded_by_its_least_time() {
        let wan = Known::Swan.wan();
        // 10.24 Gbit/s leave HK: 2 s, whatever the slots.
        for count in [1, 3, 8] {
            let bound = bound(&wan, &[coflow(&wan, 1, &[("HK", "LA", 20.48)])], count);
            assert!((bound.weighted_completion_s - 2.0).abs() < 1e-3 && bound.all_paths, "{bound:?}");
        }
    }

    #[test]
    fn two_on_one_link_are_bounded_by_shortest_first() {
        let wan = line();
        // 1 Gbit, then 2 Gbit: ends at 1 s and 3 s.
        let coflows = [coflow(&wan, 1, &[("a", "b", 1.0)]), coflow(&wan, 2, &[("a", "b", 2.0)])];
        let bound = bound(&wan, &coflows, 12);
        assert!((3.8..=4.0 + 1e-6).contains(&bound.weighted_completion_s), "{}", bound.weighted_completion_s);
        // Released at 2 s, the second cannot end before 4 s.
        let late = [coflows[0].clone(), coflows[1].clone().with_release(2.0).unwrap()];
        let bound = super::tests::bound(&wan, &late, 12);
        assert!((4.99..=5.0 + 1e-6).contains(&bound.weighted_completion_s), "{}", bound.weighted_completion_s);
    }

    #[test]
    fn stretching_is_a_schedule() {
        let wan = line();
        let coflows = [coflow(&wan, 1, &[("a", "b", 1.0)]), coflow(&wan, 2, &[("a", "b", 2.0)])];
        let bound = bound(&wan, &coflows, 12);
        let ends = bound.stretched_s(1.0);
        assert!(ends.iter().sum::<f64>() >= 4.0 - 1e-5, "no schedule is below 4 s: {ends:?}");
        assert!(ends.iter().all(|end_s| *end_s <= 3.1), "all is done after 3 s of sending: {ends:?}");
        // Half as fast: nobody before half of it was sent in twice the time.
        assert!(bound.stretched_s(0.5).iter().sum::<f64>() >= 4.0 - 1e-5);
    }

    #[test]
    fn our_schedule_is_above_the_bound_and_near_it() {
        let wan = Known::Swan.wan();
        let (mut ours_sum, mut bound_sum) = (0.0, 0.0);
        for seed in 0..6 {
            let mut random = Random::new(seed);
            let names = ["HK", "LA", "NY", "FL", "BA"];
            let mut flow = || {
                let (src, dst) = (random.below(5) as usize, random.below(4) as usize);
                (names[src], names[if dst >= src { dst + 1 } else { dst }], random.log_normal(20.0, 0.8))
            };
            let coflows: Vec<Coflow> = (0..4).map(|id| coflow(&wan, id, &[flow(), flow()])).collect();
            let bound = bound(&wan, &coflows, 40);
            assert!(bound.all_paths);
            let jobs = coflows.iter().map(|coflow| Job::single(JobId(coflow.id.0), 0.0, coflow.clone())).collect();
            let workload = Workload { jobs };
            let report = Simulation::new(&wan, &workload).unwrap().run(&mut Terra::default()).unwrap();
            let ours_s = report.weighted_completion_s();
            let bound_s = bound.weighted_completion_s;
            assert!(ours_s >= bound_s * (1.0 - 1e-6), "seed {seed}: {ours_s} below the bound {bound_s}");
            assert!(bound.stretched_s(1.0).iter().sum::<f64>() >= bound_s * (1.0 - 1e-6), "seed {seed}");
            ours_sum += ours_s;
            bound_sum += bound_s;
        }
        // The bound itself lies below the optimum, the more so the fewer slots.
        assert!(ours_sum <= 1.10 * bound_sum, "ours {ours_sum} s, bounds {bound_sum} s");
    }
}
