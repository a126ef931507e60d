//! An allocation: for each FlowGroup its paths and their rates; and the check that it keeps to the capacities.

use crate::RATE_FLOOR_GBPS;
use crate::coflow::Coflow;
use crate::id::{CoflowId, LinkId};
use crate::path::Path;
use crate::wan::Wan;
use std::collections::BTreeMap;
use thiserror::Error;

/// By how much, relatively, a link may be overbooked by rounding.
const TOLERANCE: f64 = 1e-6;

/// One path of a FlowGroup and what it sends there.
#[derive(Clone, Debug, PartialEq)]
pub struct PathRate {
    /// The way.
    pub path: Path,
    /// Gbit/s, above 0.
    pub rate_gbps: f64,
}

/// Rates of one coflow: for each FlowGroup, by its index, paths and rates. A group that is done or waits has none.
pub type GroupRates = Vec<Vec<PathRate>>;

/// Rates of all coflows. A coflow that is absent waits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allocation {
    /// By coflow.
    pub coflows: BTreeMap<CoflowId, GroupRates>,
}

/// How an allocation breaks the rules: always a bug of the policy that made it.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Fault {
    /// A link carries more than it can.
    #[error("Link {link} carries {load_gbps} of {capacity_gbps} Gbit/s")]
    Overload {
        /// The link.
        link: LinkId,
        /// Sum of the rates on it.
        load_gbps: f64,
        /// What it can carry.
        capacity_gbps: f64,
    },
    /// A rate that is not positive and finite.
    #[error("Coflow {0}: a path has the rate {1}")]
    Rate(CoflowId, f64),
    /// A path that does not lead from the group's source to its destination.
    #[error("Coflow {0}: a path of group {1} has the wrong ends")]
    WrongEnds(CoflowId, usize),
    /// Rates for a coflow or group that does not exist.
    #[error("Coflow {0} is unknown, or has another number of groups")]
    Unknown(CoflowId),
}

impl Allocation {
    /// Rate of one FlowGroup over all its paths, Gbit/s.
    pub fn group_rate(&self, coflow: CoflowId, group: usize) -> f64 {
        self.coflows.get(&coflow).and_then(|groups| groups.get(group)).map_or(0.0, |paths| rate_of(paths))
    }

    /// Load of each link, by [`LinkId`], Gbit/s.
    pub fn loads(&self, wan: &Wan) -> Vec<f64> {
        let mut loads = vec![0.0; wan.links().len()];
        for groups in self.coflows.values() {
            add_load(&mut loads, groups, 1.0);
        }
        loads
    }

    /// What each link has left, by [`LinkId`], Gbit/s; never below 0.
    pub fn residual(&self, wan: &Wan) -> Vec<f64> {
        let loads = self.loads(wan);
        wan.links().iter().zip(loads).map(|(link, load)| (link.capacity_gbps - load).max(0.0)).collect()
    }

    /// Adds a rate to a path of a group, merging it with what the path has.
    pub fn add(&mut self, coflow: CoflowId, groups: usize, group: usize, path: &Path, rate_gbps: f64) {
        let rates = self.coflows.entry(coflow).or_insert_with(|| vec![Vec::new(); groups]);
        add_rate(&mut rates[group], path, rate_gbps);
    }
}

/// Sum of the rates of some paths, Gbit/s.
pub fn rate_of(paths: &[PathRate]) -> f64 {
    paths.iter().map(|path| path.rate_gbps).sum()
}

/// Adds a rate to a path, merging it with what the path has. Rates at the floor or below are dropped.
pub(crate) fn add_rate(paths: &mut Vec<PathRate>, path: &Path, rate_gbps: f64) {
    if rate_gbps <= RATE_FLOOR_GBPS {
        return;
    }
    match paths.iter_mut().find(|known| known.path == *path) {
        Some(known) => known.rate_gbps += rate_gbps,
        None => paths.push(PathRate { path: path.clone(), rate_gbps }),
    }
}

/// Adds `factor` times the rates to the loads of the links.
pub(crate) fn add_load(loads: &mut [f64], groups: &[Vec<PathRate>], factor: f64) {
    for path in groups.iter().flatten() {
        for link in path.path.links() {
            loads[link.index()] += factor * path.rate_gbps;
        }
    }
}

/// Proves that an allocation is one: known coflows, right ends, positive rates, no link above its capacity.
///
/// # Errors
/// The first [`Fault`] found.
pub fn check<'a>(wan: &Wan, coflows: impl IntoIterator<Item = &'a Coflow>, allocation: &Allocation) -> Result<(), Fault> {
    let known: BTreeMap<CoflowId, &Coflow> = coflows.into_iter().map(|coflow| (coflow.id, coflow)).collect();
    for (&id, groups) in &allocation.coflows {
        let coflow = known.get(&id).filter(|coflow| coflow.groups.len() == groups.len()).ok_or(Fault::Unknown(id))?;
        for (index, (group, paths)) in coflow.groups.iter().zip(groups).enumerate() {
            for path in paths {
                if !(path.rate_gbps > 0.0 && path.rate_gbps.is_finite()) {
                    return Err(Fault::Rate(id, path.rate_gbps));
                }
                let same =
                    Path::from_links(wan, path.path.links()).is_some_and(|path| path.ends(wan) == (group.src, group.dst));
                if !same {
                    return Err(Fault::WrongEnds(id, index));
                }
            }
        }
    }
    for (index, (link, load_gbps)) in wan.links().iter().zip(allocation.loads(wan)).enumerate() {
        let capacity_gbps = link.capacity_gbps;
        if load_gbps > capacity_gbps * (1.0 + TOLERANCE) + RATE_FLOOR_GBPS {
            return Err(Fault::Overload { link: LinkId(index as u32), load_gbps, capacity_gbps });
        }
    }
    Ok(())
}
