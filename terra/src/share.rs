//! Max-min fair sharing by progressive filling: on fixed paths, and over all paths at once.

use crate::allocation::{Allocation, PathRate};
use crate::id::{CoflowId, LinkId, SiteId};
use crate::path::{Path, Tree};
use crate::wan::Wan;

/// A link with less than this fraction of its former capacity left, or less than this many Gbit/s, is full.
const FULL: f64 = 1e-9;

/// One that shares: a FlowGroup.
#[derive(Clone, Debug, PartialEq)]
pub struct Sharer {
    /// Its coflow.
    pub coflow: CoflowId,
    /// How many FlowGroups the coflow has.
    pub groups: usize,
    /// Which of them it is.
    pub group: usize,
    /// Where it sends from.
    pub src: SiteId,
    /// Where it sends to.
    pub dst: SiteId,
    /// Its share: twice the weight, twice the rate while both wait for the same link. Above 0.
    pub weight: f64,
}

/// Links that are full, and their residual set to exactly 0, so that no rounding error is ever shared out.
struct Left<'a> {
    residual: &'a mut [f64],
    floor: Vec<f64>,
}

impl<'a> Left<'a> {
    fn new(residual: &'a mut [f64]) -> Self {
        let floor = residual.iter().map(|left| (left * FULL).max(crate::RATE_FLOOR_GBPS)).collect();
        let mut all = Self { residual, floor };
        (0..all.residual.len()).for_each(|link| {
            all.close(link);
        });
        all
    }

    /// Marks a link full if it is; returns whether it is.
    fn close(&mut self, link: usize) -> bool {
        let full = self.residual[link] <= self.floor[link];
        if full {
            self.residual[link] = 0.0;
        }
        full
    }
}

/// Raises all sharers together, each on its given path and in proportion to its weight, until a link on the path is full.
/// Takes the rates off `residual` and adds them to `allocation`.
pub fn fill_paths(residual: &mut [f64], sharers: &[(Sharer, Path)], allocation: &mut Allocation) {
    let mut left = Left::new(residual);
    let mut weights = vec![0.0; left.residual.len()];
    let mut rising: Vec<usize> = (0..sharers.len()).collect();
    let mut rates = vec![0.0; sharers.len()];
    rising.retain(|&index| sharers[index].1.bottleneck(left.residual) > 0.0);
    while !rising.is_empty() {
        weights.fill(0.0);
        for &index in &rising {
            let (sharer, path) = &sharers[index];
            path.links().iter().for_each(|link| weights[link.index()] += sharer.weight);
        }
        let step = raise(&mut left, &weights);
        for &index in &rising {
            rates[index] += step * sharers[index].0.weight;
        }
        rising.retain(|&index| sharers[index].1.bottleneck(left.residual) > 0.0);
    }
    for ((sharer, path), rate) in sharers.iter().zip(rates) {
        allocation.add(sharer.coflow, sharer.groups, sharer.group, path, rate);
    }
}

/// Raises all sharers together in proportion to their weights, each on the way of fewest hops that has capacity left, moving
/// on to the next way when a link fills. When this returns, no sharer has any way with capacity left.
pub fn fill_network(wan: &Wan, residual: &mut [f64], sharers: &[Sharer], allocation: &mut Allocation) {
    let mut left = Left::new(residual);
    let mut tree = Tree::new(wan);
    let mut rising: Vec<Rising> = sharers.iter().map(|sharer| Rising { sharer, path: None, rate: 0.0 }).collect();
    rising.sort_by_key(|one| one.sharer.src);
    let mut weights = vec![0.0; left.residual.len()];
    loop {
        reroute(wan, &mut tree, left.residual, &mut rising, allocation);
        if rising.is_empty() {
            return;
        }
        weights.fill(0.0);
        for one in &rising {
            for link in one.path.as_ref().expect("those without a way were removed").links() {
                weights[link.index()] += one.sharer.weight;
            }
        }
        let step = raise(&mut left, &weights);
        rising.iter_mut().for_each(|one| one.rate += step * one.sharer.weight);
    }
}

struct Rising<'a> {
    sharer: &'a Sharer,
    path: Option<Path>,
    rate: f64,
}

/// Finds a new way for everyone whose way is full, books what was sent on the old one, and drops those without a way.
fn reroute(wan: &Wan, tree: &mut Tree, residual: &[f64], rising: &mut Vec<Rising>, allocation: &mut Allocation) {
    let mut searched: Option<SiteId> = None;
    rising.retain_mut(|one| {
        if one.path.as_ref().is_some_and(|path| path.bottleneck(residual) > 0.0) {
            return true;
        }
        let sharer = one.sharer;
        if let Some(path) = one.path.take() {
            allocation.add(sharer.coflow, sharer.groups, sharer.group, &path, std::mem::take(&mut one.rate));
        }
        if searched != Some(sharer.src) {
            searched = Some(sharer.src);
            let hop = |link: LinkId| if residual[link.index()] > 0.0 { 1.0 } else { f64::INFINITY };
            tree.shortest(wan, sharer.src, hop);
        }
        one.path = tree.path(wan, sharer.dst);
        one.path.is_some()
    });
}

/// Raises until the first link is full; returns by how much per unit of weight. At least one link fills.
fn raise(left: &mut Left, weights: &[f64]) -> f64 {
    let loaded = || (0..weights.len()).filter(|&link| weights[link] > 0.0);
    let tightest = loaded().min_by(|&a, &b| (left.residual[a] / weights[a]).total_cmp(&(left.residual[b] / weights[b])));
    let Some(tightest) = tightest else { return 0.0 };
    let step = left.residual[tightest] / weights[tightest];
    for (link, weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
        left.residual[link] -= step * weight;
        left.close(link);
    }
    left.residual[tightest] = 0.0;
    step
}

/// Serves one sharer alone with up to `limit_gbps` on one path; returns the rate it got.
pub fn take_path(residual: &mut [f64], path: &Path, limit_gbps: f64) -> Option<PathRate> {
    let rate_gbps = path.bottleneck(residual).min(limit_gbps);
    if rate_gbps <= crate::RATE_FLOOR_GBPS {
        return None;
    }
    for link in path.links() {
        residual[link.index()] = (residual[link.index()] - rate_gbps).max(0.0);
    }
    Some(PathRate { path: path.clone(), rate_gbps })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::fewest_hops;
    use crate::topology::Known;

    fn sharer(wan: &Wan, coflow: u64, src: &str, dst: &str, weight: f64) -> Sharer {
        let (src, dst) = (wan.site(src).unwrap(), wan.site(dst).unwrap());
        Sharer { coflow: CoflowId(coflow), groups: 1, group: 0, src, dst, weight }
    }

    #[test]
    fn fixed_paths_share_by_weight_and_use_what_others_cannot() {
        // a-b 10, b-c 4. a->c (weight 1) and b->c (weight 3) share b-c as 1 and 3; a->b then gets 10 - 1 = 9.
        let mut wan = Wan::new();
        let [a, b, c] = ["a", "b", "c"].map(|name| wan.add_site(name).unwrap());
        wan.add_edge(a, b, 10.0).unwrap();
        wan.add_edge(b, c, 4.0).unwrap();
        let mut residual = wan.capacities();
        let with_path = |one: Sharer| {
            let path = fewest_hops(&wan, &wan.capacities(), one.src, one.dst).unwrap();
            (one, path)
        };
        let sharers =
            [sharer(&wan, 1, "a", "c", 1.0), sharer(&wan, 2, "b", "c", 3.0), sharer(&wan, 3, "a", "b", 1.0)].map(with_path);
        let mut allocation = Allocation::default();
        fill_paths(&mut residual, &sharers, &mut allocation);
        let rates = [1, 2, 3].map(|id| (allocation.group_rate(CoflowId(id), 0) * 1e6).round() / 1e6);
        assert_eq!(rates, [1.0, 3.0, 9.0]);
    }

    #[test]
    fn the_network_is_filled_until_nobody_has_a_way() {
        let wan = Known::Swan.wan();
        let mut residual = wan.capacities();
        // Alone, HK reaches LA over both its links: 2 * 5.12.
        let mut allocation = Allocation::default();
        fill_network(&wan, &mut residual, &[sharer(&wan, 1, "HK", "LA", 1.0)], &mut allocation);
        assert!((allocation.group_rate(CoflowId(1), 0) - 10.24).abs() < 1e-6);
        // Two from HK share its 10.24 equally.
        let mut residual = wan.capacities();
        let mut allocation = Allocation::default();
        let two = [sharer(&wan, 1, "HK", "LA", 1.0), sharer(&wan, 2, "HK", "BA", 1.0)];
        fill_network(&wan, &mut residual, &two, &mut allocation);
        for id in [1, 2] {
            assert!((allocation.group_rate(CoflowId(id), 0) - 5.12).abs() < 1e-6, "{allocation:?}");
        }
    }
}
