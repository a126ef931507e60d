//! The dual of the path-form LP: the lengths of links that prove the best bound, by row generation. Each path is a row; a path
//! that turns out shorter than its demand's distance is a row that was missing.

use super::Instance;
use crate::path::Path;
use microlp::{ComparisonOp, LinearExpr, OptimizationDirection, Problem, Solution, Variable};

/// Volumes below this fraction of the largest do not matter for the bound: it is computed anew with the true ones.
const LEAST_VOLUME: f64 = 1e-5;

/// The LP between two rounds of adding rows.
pub(super) struct Dual {
    solution: Option<Solution>,
    /// Capacity times length, by link: the share of the link in the total weight. `None` where no known path goes.
    shares: Vec<Option<Variable>>,
    distances: Vec<Variable>,
    new_rows: Vec<(usize, Path)>,
    unit: f64,
}

impl Dual {
    /// Starts from the known paths. `guess` is a progress per second known to be possible, used to scale the LP.
    pub fn new(instance: &Instance, paths: &[Vec<Path>], guess: f64) -> Self {
        let largest = instance.demands.iter().map(|demand| demand.volume_gbit).fold(0.0, f64::max);
        let unit = largest * guess;
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        // A link without variable could never be lengthened, so every usable link has one.
        let shares: Vec<Option<Variable>> = (0..instance.capacity.len())
            .map(|link| instance.usable(link).then(|| problem.add_var(1.0, (0.0, f64::INFINITY))))
            .collect();
        let mut distances = Vec::with_capacity(paths.len());
        let mut total = LinearExpr::empty();
        for demand in &instance.demands {
            let distance = problem.add_var(0.0, (0.0, f64::INFINITY));
            total.add(distance, (demand.volume_gbit / largest).max(LEAST_VOLUME));
            distances.push(distance);
        }
        problem.add_constraint(total, ComparisonOp::Ge, 1.0);
        for (group, paths) in paths.iter().enumerate() {
            for path in paths {
                problem.add_constraint(row(instance, &shares, distances[group], path, unit), ComparisonOp::Ge, 0.0);
            }
        }
        let solution = problem.solve().ok().and_then(|outcome| outcome.into_solution().ok());
        Self { solution, shares, distances, new_rows: Vec::new(), unit }
    }

    /// Adds a path of a demand.
    pub fn add_path(&mut self, _instance: &Instance, group: usize, path: &Path) {
        self.new_rows.push((group, path.clone()));
    }

    /// Lengths of the links (infinite for unusable ones) and the distance of each demand over the known paths. `None` if the
    /// LP solver failed.
    pub fn lengths(&mut self, instance: &Instance) -> Option<(Vec<f64>, Vec<f64>)> {
        let mut solution = self.solution.take()?;
        for (group, path) in self.new_rows.drain(..) {
            let row = row(instance, &self.shares, self.distances[group], &path, self.unit);
            solution = solution.add_constraint(row, ComparisonOp::Ge, 0.0).ok()?.into_solution().ok()?;
        }
        let scale = |link: usize| self.unit / instance.capacity[link];
        let length = |(link, share): (usize, &Option<Variable>)| match share {
            Some(share) => solution.var_value(*share).max(0.0) * scale(link),
            None => f64::INFINITY,
        };
        let lengths = self.shares.iter().enumerate().map(length).collect();
        let distances = self.distances.iter().map(|distance| solution.var_value(*distance)).collect();
        self.solution = Some(solution);
        Some((lengths, distances))
    }
}

/// The links of a path are together at least as long as the distance of its demand.
fn row(instance: &Instance, shares: &[Option<Variable>], distance: Variable, path: &Path, unit: f64) -> LinearExpr {
    let mut row = LinearExpr::empty();
    row.add(distance, -1.0);
    for link in path.links() {
        let share = shares[link.index()].expect("a path uses only usable links");
        row.add(share, unit / instance.capacity[link.index()]);
    }
    row
}
