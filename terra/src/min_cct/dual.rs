//! The dual of the path-form LP: the lengths of links that prove the best bound, by row generation. Each path is a row; a path
//! that turns out shorter than its demand's distance is a row that was missing.

use super::Instance;
use crate::path::Path;
use microlp::{ComparisonOp, LinearExpr, OptimizationDirection, Problem, Solution, Variable};

/// Volumes below this fraction of the largest do not matter for the bound: it is computed anew with the true ones.
const LEAST_VOLUME: f64 = 1e-5;

/// More new rows than this at once are cheaper solved from scratch than added one by one.
const MAX_ADDED: usize = 6;

/// The LP between two rounds of adding rows.
pub(super) struct Dual {
    solution: Option<Solution>,
    /// Capacity times length, by link: the share of the link in the total weight. `None` for unusable links.
    shares: Vec<Option<Variable>>,
    distances: Vec<Variable>,
    new_rows: Vec<(usize, Path)>,
    guess: f64,
    unit: f64,
}

/// What the dual LP says over the known paths.
pub(super) struct Prices {
    /// The progress per second that these paths allow.
    pub alpha: f64,
    /// Lengths of the links; infinite for unusable ones.
    pub lengths: Vec<f64>,
    /// Distance of each demand.
    pub distances: Vec<f64>,
}

impl Dual {
    /// Starts from the known paths. `guess` is a progress per second known to be possible, used to scale the LP.
    pub fn new(instance: &Instance, paths: &[Vec<Path>], guess: f64) -> Self {
        let unit = largest(instance) * guess;
        let mut dual = Self { solution: None, shares: Vec::new(), distances: Vec::new(), new_rows: Vec::new(), guess, unit };
        dual.solve(instance, paths);
        dual
    }

    fn solve(&mut self, instance: &Instance, paths: &[Vec<Path>]) {
        let largest = largest(instance);
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        // A link without variable could never be lengthened, so every usable link has one.
        self.shares = (0..instance.capacity.len())
            .map(|link| instance.usable(link).then(|| problem.add_var(1.0, (0.0, f64::INFINITY))))
            .collect();
        self.distances.clear();
        let mut total = LinearExpr::empty();
        for demand in &instance.demands {
            let distance = problem.add_var(0.0, (0.0, f64::INFINITY));
            total.add(distance, (demand.volume_gbit / largest).max(LEAST_VOLUME));
            self.distances.push(distance);
        }
        problem.add_constraint(total, ComparisonOp::Ge, 1.0);
        for (group, paths) in paths.iter().enumerate() {
            for path in paths {
                let row = row(instance, &self.shares, self.distances[group], path, self.unit);
                problem.add_constraint(row, ComparisonOp::Ge, 0.0);
            }
        }
        self.solution = problem.solve().ok().and_then(|outcome| outcome.into_solution().ok());
    }

    /// Adds a path of a demand, which the list of paths given to [`Dual::prices`] must contain too.
    pub fn add_path(&mut self, group: usize, path: &Path) {
        self.new_rows.push((group, path.clone()));
    }

    /// Solves with the paths added since. `None` if the LP solver failed.
    pub fn prices(&mut self, instance: &Instance, paths: &[Vec<Path>]) -> Option<Prices> {
        if self.new_rows.len() > MAX_ADDED {
            self.new_rows.clear();
            self.solve(instance, paths);
        }
        let mut solution = self.solution.take()?;
        for (group, path) in self.new_rows.drain(..) {
            let row = row(instance, &self.shares, self.distances[group], &path, self.unit);
            solution = solution.add_constraint(row, ComparisonOp::Ge, 0.0).ok()?.into_solution().ok()?;
        }
        let length = |(link, share): (usize, &Option<Variable>)| match share {
            Some(share) => solution.var_value(*share).max(0.0) * self.unit / instance.capacity[link],
            None => f64::INFINITY,
        };
        let lengths = self.shares.iter().enumerate().map(length).collect();
        let distances = self.distances.iter().map(|distance| solution.var_value(*distance)).collect();
        let alpha = self.guess * solution.objective();
        self.solution = Some(solution);
        Some(Prices { alpha, lengths, distances })
    }
}

fn largest(instance: &Instance) -> f64 {
    instance.demands.iter().map(|demand| demand.volume_gbit).fold(0.0, f64::max)
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
