//! Least completion time of one coflow alone on given capacities: rates such that all FlowGroups progress equally and end
//! together as early as possible (maximum concurrent flow).
//!
//! Four stages, each optional once the answer is good enough: `weights` approximates and harvests paths, `exact` solves the
//! LP over the harvested paths, `sharpen` proves how near the optimum is, and where it cannot, `dual` does with an LP, adding the
//! paths that the proof finds missing. A feasible answer exists after the first stage; the later ones only improve it.
//!
//! The certificate: for any lengths `l >= 0` of the links, no schedule is faster than
//! `sum_g V_g dist_l(s_g, t_g) / sum_e c_e l_e`. [`MinCct::bound_s`] is the best such bound found.

mod dual;
mod exact;
mod sharpen;
mod weights;

use crate::allocation::{GroupRates, PathRate, rate_of};
use crate::coflow::Coflow;
use crate::id::SiteId;
use crate::path::{Path, Tree};
use crate::wan::Wan;
use std::collections::BTreeMap;
use thiserror::Error;

/// Links with less than this many Gbit/s (10 kbit/s) are taken as full.
pub const USABLE_GBPS: f64 = 1e-5;
/// Most paths remembered per pair of sites between solves.
const MAX_POOL: usize = 24;
/// Most rounds of adding paths that the dual bound finds missing.
const MAX_COLUMN_ROUNDS: usize = 8;
/// Two lengths this near, relatively, are the same.
const LENGTH_TOLERANCE: f64 = 1e-6;

/// What one FlowGroup still has to send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// Sending site.
    pub src: SiteId,
    /// Receiving site, another one than `src`.
    pub dst: SiteId,
    /// Remaining volume, Gbit; a demand of 0 is done and gets no rate.
    pub volume_gbit: f64,
}

/// How hard to try. All limits are counts, never clocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Stop as soon as the answer is proven to be within this fraction of the optimum.
    pub target_gap: f64,
    /// Gap at which the approximation hands over to the LP.
    pub harvest_gap: f64,
    /// Most steps (shortest-path computations; an LP is charged by its size). When they are spent, the best answer so far
    /// is returned with the gap it has.
    pub max_steps: u64,
    /// Whether the exact LP may be used at all.
    pub exact: bool,
}

impl Effort {
    /// Within 1 % of the optimum, proven.
    pub const fn precise() -> Self {
        Self { target_gap: 0.01, harvest_gap: 0.08, max_steps: 200_000, exact: true }
    }

    /// Within 5 % of the optimum, proven, as far as the steps last: they do for 200 FlowGroups on tens of sites.
    pub const fn rushed() -> Self {
        Self { target_gap: 0.05, harvest_gap: 0.15, max_steps: 40_000, exact: true }
    }

    /// An approximation good enough to order coflows.
    pub const fn rough() -> Self {
        Self { target_gap: 0.08, harvest_gap: 0.08, max_steps: 2_000, exact: false }
    }
}

/// The answer for one coflow.
#[derive(Clone, Debug, PartialEq)]
pub struct MinCct {
    /// Completion time with these rates, seconds; 0 if nothing was left to send.
    pub cct_s: f64,
    /// No schedule can be faster than this, seconds.
    pub bound_s: f64,
    /// Paths and rates, by demand.
    pub rates: GroupRates,
    /// Distance of each demand under the lengths that prove the bound, scaled so that
    /// `sum_g volume_g * price_g` is the bound. The same prices bound any other volumes of the same pairs.
    pub prices: Vec<f64>,
    /// Steps spent.
    pub steps: u64,
}

impl MinCct {
    /// How much slower than the optimum it can be at most, as a fraction: 0.01 is 1 %.
    pub fn gap(&self) -> f64 {
        if self.cct_s == 0.0 { 0.0 } else { (self.cct_s / self.bound_s - 1.0).max(0.0) }
    }
}

/// Some demand has no path with free capacity, so the coflow as a whole cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("Demand {demand} has no path with free capacity from site {src} to site {dst}")]
pub struct NoPath {
    /// Index of the first such demand.
    pub demand: usize,
    /// Where it starts.
    pub src: SiteId,
    /// Where it should arrive.
    pub dst: SiteId,
}

/// Solves for one network; remembers the paths that were worth something.
#[derive(Clone, Debug)]
pub struct Solver {
    tree: Tree,
    pool: BTreeMap<(SiteId, SiteId), Vec<Path>>,
}

/// One instance: what all stages look at. Lengths of unusable links are infinite, so that no search takes them.
struct Instance<'a> {
    wan: &'a Wan,
    capacity: &'a [f64],
    /// Demands with something left, sorted by source.
    demands: Vec<Demand>,
}

/// Lengths and the bound they prove.
struct Certificate {
    /// Upper bound of `1 / cct`.
    alpha: f64,
    /// `1 / (sum_e c_e l_e)` times the distance of each demand.
    prices: Vec<f64>,
    /// The lengths themselves, in any unit; infinite for unusable links.
    lengths: Vec<f64>,
}

impl Instance<'_> {
    fn usable(&self, link: usize) -> bool {
        self.capacity[link] > USABLE_GBPS
    }

    /// The bound that some lengths prove, and the shortest path of each demand under them. One step per source.
    fn certify(&self, tree: &mut Tree, lengths: &[f64], steps: &mut u64) -> (Certificate, Vec<(f64, Path)>) {
        let weight: f64 = (0..lengths.len()).filter(|&e| self.usable(e)).map(|e| self.capacity[e] * lengths[e]).sum();
        let mut shortest = Vec::with_capacity(self.demands.len());
        let mut source = None;
        for demand in &self.demands {
            if source != Some(demand.src) {
                source = Some(demand.src);
                *steps += 1;
                tree.shortest(self.wan, demand.src, |link| lengths[link.index()]);
            }
            let path = tree.path(self.wan, demand.dst).expect("reachability was checked first");
            shortest.push((tree.distance(demand.dst), path));
        }
        let total: f64 = self.demands.iter().zip(&shortest).map(|(demand, (distance, _))| demand.volume_gbit * distance).sum();
        let prices = shortest.iter().map(|(distance, _)| distance / weight).collect();
        (Certificate { alpha: weight / total, prices, lengths: lengths.to_vec() }, shortest)
    }
}

/// The demands of a coflow, with given remaining volumes.
pub fn demands(coflow: &Coflow, remaining_gbit: &[f64]) -> Vec<Demand> {
    let one = |(group, &volume_gbit): (&crate::FlowGroup, &f64)| Demand { src: group.src, dst: group.dst, volume_gbit };
    coflow.groups.iter().zip(remaining_gbit).map(one).collect()
}

impl Solver {
    /// A solver for a network of these sites and links (capacities may change later).
    pub fn new(wan: &Wan) -> Self {
        Self { tree: Tree::new(wan), pool: BTreeMap::new() }
    }

    /// Finds rates on `capacity` (Gbit/s by link, for example what other coflows leave).
    ///
    /// # Errors
    /// [`NoPath`] if some demand cannot be served at all.
    pub fn solve(&mut self, wan: &Wan, capacity: &[f64], demands: &[Demand], effort: Effort) -> Result<MinCct, NoPath> {
        let mut order: Vec<usize> = (0..demands.len()).filter(|&index| demands[index].volume_gbit > 0.0).collect();
        order.sort_by_key(|&index| (demands[index].src, index));
        let instance = Instance { wan, capacity, demands: order.iter().map(|&index| demands[index]).collect() };
        let mut answer = if instance.demands.is_empty() {
            MinCct { cct_s: 0.0, bound_s: 0.0, rates: Vec::new(), prices: Vec::new(), steps: 0 }
        } else {
            self.check_reachable(&instance, &order)?;
            self.solve_instance(&instance, effort)
        };
        let mut rates = vec![Vec::new(); demands.len()];
        let mut prices = vec![0.0; demands.len()];
        for ((index, paths), price) in order.into_iter().zip(answer.rates).zip(answer.prices) {
            rates[index] = paths;
            prices[index] = price;
        }
        (answer.rates, answer.prices) = (rates, prices);
        Ok(answer)
    }

    fn check_reachable(&mut self, instance: &Instance, order: &[usize]) -> Result<(), NoPath> {
        let mut source = None;
        for (demand, &index) in instance.demands.iter().zip(order) {
            if source != Some(demand.src) {
                source = Some(demand.src);
                self.tree.shortest(
                    instance.wan,
                    demand.src,
                    |link| if instance.usable(link.index()) { 1.0 } else { f64::INFINITY },
                );
            }
            if self.tree.distance(demand.dst) == f64::INFINITY {
                return Err(NoPath { demand: index, src: demand.src, dst: demand.dst });
            }
        }
        Ok(())
    }

    fn solve_instance(&mut self, instance: &Instance, effort: Effort) -> MinCct {
        let mut steps = 0;
        let harvest = weights::run(instance, &mut self.tree, effort.harvest_gap, effort.max_steps, &mut steps);
        let mut best = harvest.rates;
        let mut alpha = harvest.alpha;
        let mut proof = harvest.certificate;
        let mut paths = harvest.paths;
        let far = |alpha: f64, proof: &Certificate| proof.alpha > alpha * (1.0 + effort.target_gap);
        if effort.exact {
            self.add_remembered(instance, &mut paths);
            let mut is_exact = false;
            if exact::steps(instance, &paths) + steps <= effort.max_steps {
                steps += exact::steps(instance, &paths);
                if let Some((better, rates)) = exact::solve(instance, &paths, alpha) {
                    // Equal rates are replaced too: the LP takes fewer hops for them.
                    if better >= alpha * (1.0 - 1e-3) {
                        (alpha, best, is_exact) = (better, rates, true);
                    }
                }
            }
            if far(alpha, &proof) {
                let limits = (effort.target_gap, effort.max_steps);
                proof = sharpen::run(instance, &mut self.tree, &proof, (alpha, &best, is_exact), limits, &mut steps)
                    .unwrap_or(proof);
            }
            let known: usize = paths.iter().map(Vec::len).sum();
            self.close_gap(instance, &mut paths, alpha, &mut proof, effort, &mut steps);
            let added = paths.iter().map(Vec::len).sum::<usize>() > known;
            if added
                && far(alpha, &proof)
                && let Some((better, rates)) = exact::solve(instance, &paths, alpha)
                && better > alpha
            {
                steps += exact::steps(instance, &paths);
                (alpha, best) = (better, rates);
            }
            self.remember(instance, &best);
        }
        MinCct { cct_s: 1.0 / alpha, bound_s: 1.0 / proof.alpha, rates: best, prices: proof.prices, steps }
    }

    /// Proves the best answer over the known paths to be within the target, adding paths as long as the proof finds shorter
    /// ones. What these are worth is known from the dual LP, so the primal one is solved only once, by the caller.
    fn close_gap(
        &mut self,
        instance: &Instance,
        paths: &mut [Vec<Path>],
        mut alpha: f64,
        proof: &mut Certificate,
        effort: Effort,
        steps: &mut u64,
    ) {
        let far = |alpha: f64, proof: &Certificate| proof.alpha > alpha * (1.0 + effort.target_gap);
        // The primal solve that follows is part of the budget.
        let affordable = |paths: &[Vec<Path>], steps: u64| steps + 2 * exact::steps(instance, paths) <= effort.max_steps;
        if !far(alpha, proof) || !affordable(paths, *steps) {
            return;
        }
        let mut dual = dual::Dual::new(instance, paths, alpha);
        for _ in 0..MAX_COLUMN_ROUNDS {
            if !far(alpha, proof) || !affordable(paths, *steps) {
                return;
            }
            *steps += exact::steps(instance, paths);
            let Some(prices) = dual.prices(instance, paths) else { return };
            alpha = alpha.max(prices.alpha);
            let (certificate, shortest) = instance.certify(&mut self.tree, &prices.lengths, steps);
            if certificate.alpha < proof.alpha {
                *proof = certificate;
            }
            let mut news = false;
            for (group, (distance, path)) in shortest.into_iter().enumerate() {
                if distance < prices.distances[group] * (1.0 - LENGTH_TOLERANCE) && !paths[group].contains(&path) {
                    dual.add_path(group, &path);
                    paths[group].push(path);
                    news = true;
                }
            }
            if !news {
                return;
            }
        }
    }

    fn add_remembered(&self, instance: &Instance, paths: &mut [Vec<Path>]) {
        for (demand, paths) in instance.demands.iter().zip(paths) {
            for path in self.pool.get(&(demand.src, demand.dst)).into_iter().flatten() {
                if path.bottleneck(instance.capacity) > USABLE_GBPS && !paths.contains(path) {
                    paths.push(path.clone());
                }
            }
        }
    }

    /// Paths that carry something move to the front of what is known for their pair.
    fn remember(&mut self, instance: &Instance, rates: &[Vec<PathRate>]) {
        for (demand, used) in instance.demands.iter().zip(rates) {
            let known = self.pool.entry((demand.src, demand.dst)).or_default();
            for path in used {
                known.retain(|other| *other != path.path);
                known.insert(0, path.path.clone());
            }
            known.truncate(MAX_POOL);
        }
    }
}

/// Brings rates to equal progress within the capacities. Returns the progress per second, `1 / cct`.
fn settle(instance: &Instance, rates: &mut [Vec<PathRate>]) -> f64 {
    let progress = |paths: &[PathRate], demand: &Demand| rate_of(paths) / demand.volume_gbit;
    let alpha =
        rates.iter().zip(&instance.demands).map(|(paths, demand)| progress(paths, demand)).fold(f64::INFINITY, f64::min);
    if alpha.is_nan() || alpha <= 0.0 {
        return 0.0;
    }
    for (paths, demand) in rates.iter_mut().zip(&instance.demands) {
        let factor = alpha / progress(paths, demand);
        paths.iter_mut().for_each(|path| path.rate_gbps *= factor);
    }
    let mut loads = vec![0.0; instance.capacity.len()];
    crate::allocation::add_load(&mut loads, rates, 1.0);
    let over = loads.iter().zip(instance.capacity).filter(|(load, _)| **load > 0.0).map(|(load, capacity)| load / capacity);
    let factor = over.fold(1.0, f64::max).recip();
    rates.iter_mut().flatten().for_each(|path| path.rate_gbps *= factor);
    alpha * factor
}

#[cfg(test)]
mod tests;
