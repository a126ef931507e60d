//! The path-form LP, solved exactly: the greatest equal progress over given paths, and among the fastest answers one of few
//! hops, so that later coflows find more left.

use super::{Instance, settle};
use crate::allocation::{GroupRates, PathRate};
use crate::path::Path;
use microlp::{ComparisonOp, LinearExpr, OptimizationDirection, Problem, Variable};

/// What one hop of detour costs relative to progress. Small enough that speed is never traded for hops by more than about
/// this fraction.
const HOP_PRICE: f64 = 1e-3;
/// Volumes below this fraction of the largest are raised to it, to keep the coefficients of the LP within its range.
const LEAST_VOLUME: f64 = 1e-5;
/// LP work (columns times rows) that takes about as long as one shortest-path computation.
const WORK_PER_STEP: usize = 32;

/// What a solve is charged, in steps.
pub(super) fn steps(instance: &Instance, paths: &[Vec<Path>]) -> u64 {
    let columns: usize = paths.iter().map(Vec::len).sum();
    let rows = instance.demands.len() + instance.capacity.len();
    (columns * rows / WORK_PER_STEP) as u64
}

/// Rates over `paths` and their progress per second. `guess` is a progress known to be possible, used to scale the LP.
/// `None` if the LP solver fails, which numerically extreme inputs can make it do.
pub(super) fn solve(instance: &Instance, paths: &[Vec<Path>], guess: f64) -> Option<(f64, GroupRates)> {
    let largest = instance.demands.iter().map(|demand| demand.volume_gbit).fold(0.0, f64::max);
    // In these units the largest demand has rate about 1 and the progress is about 1.
    let unit = largest * guess;
    let volume = |group: usize| (instance.demands[group].volume_gbit / largest).max(LEAST_VOLUME);
    let least_hops = |paths: &[Path]| paths.iter().map(Path::hops).min().unwrap_or(0) as f64;
    let value: f64 = paths.iter().enumerate().map(|(group, paths)| volume(group) * least_hops(paths)).sum();

    let mut problem = Problem::new(OptimizationDirection::Maximize);
    let alpha = problem.add_var(1.0, (0.0, f64::INFINITY));
    let mut on_link: Vec<Vec<Variable>> = vec![Vec::new(); instance.capacity.len()];
    let mut columns: Vec<Vec<Variable>> = Vec::with_capacity(paths.len());
    for (group, paths) in paths.iter().enumerate() {
        let mut row = LinearExpr::empty();
        row.add(alpha, volume(group));
        let mut rates = Vec::with_capacity(paths.len());
        for path in paths {
            let rate = problem.add_var(-HOP_PRICE * path.hops() as f64 / value, (0.0, f64::INFINITY));
            row.add(rate, -1.0);
            path.links().iter().for_each(|link| on_link[link.index()].push(rate));
            rates.push(rate);
        }
        // Sending more than equal progress needs is allowed, never useful: so the origin is feasible, and no first phase.
        problem.add_constraint(row, ComparisonOp::Le, 0.0);
        columns.push(rates);
    }
    for (link, rates) in on_link.iter().enumerate().filter(|(_, rates)| !rates.is_empty()) {
        problem.add_constraint(rates.iter().map(|&rate| (rate, 1.0)), ComparisonOp::Le, instance.capacity[link] / unit);
    }
    let solution = problem.solve().ok()?.into_solution().ok()?;
    let rate = |(path, &column): (&Path, &Variable)| {
        let rate_gbps = solution.var_value(column) * unit;
        (rate_gbps > 1e-9 * unit).then(|| PathRate { path: path.clone(), rate_gbps })
    };
    let mut rates: GroupRates =
        paths.iter().zip(&columns).map(|(paths, columns)| paths.iter().zip(columns).filter_map(rate).collect()).collect();
    let alpha = settle(instance, &mut rates);
    (alpha > 0.0 && alpha.is_finite()).then_some((alpha, rates))
}
