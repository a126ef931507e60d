//! Comparators without any notion of coflows: per-flow max-min on shortest paths, and multipath max-min.

use super::{Decision, Event, Policy, State};
use crate::allocation::Allocation;
use crate::path::{Path, Tree};
use crate::share::{Sharer, fill_network, fill_paths};

/// Every flow on the path of fewest hops, true max-min fair among flows: a FlowGroup weighs as many flows as it has.
#[derive(Clone, Debug, Default)]
pub struct PerFlow;

/// Every FlowGroup over all paths, max-min fair among FlowGroups.
#[derive(Clone, Debug, Default)]
pub struct Multipath;

/// The path of fewest hops of each sharer with the capacities of now; sharers without any are left out.
pub(super) fn on_shortest_paths(state: &State, mut sharers: Vec<Sharer>) -> Vec<(Sharer, Path)> {
    sharers.sort_by_key(|sharer| sharer.src);
    let mut tree = Tree::new(state.wan);
    let mut searched = None;
    let with_path = |sharer: Sharer| {
        if searched != Some(sharer.src) {
            searched = Some(sharer.src);
            let working = |link: crate::LinkId| state.wan.links()[link.index()].capacity_gbps > crate::RATE_FLOOR_GBPS;
            tree.shortest(state.wan, sharer.src, |link| if working(link) { 1.0 } else { f64::INFINITY });
        }
        tree.path(state.wan, sharer.dst).map(|path| (sharer, path))
    };
    sharers.into_iter().filter_map(with_path).collect()
}

impl Policy for PerFlow {
    fn name(&self) -> &'static str {
        "per-flow"
    }

    fn schedule(&mut self, state: &State, _events: &[Event]) -> Decision {
        let mut allocation = Allocation::default();
        let flows = |active: &super::Active| {
            let flows: Vec<f64> = active.coflow.groups.iter().map(|group| f64::from(group.flows)).collect();
            active.sharers(move |group| flows[group]).collect::<Vec<_>>()
        };
        let sharers = on_shortest_paths(state, state.active.values().flat_map(flows).collect());
        fill_paths(&mut state.wan.capacities(), &sharers, &mut allocation);
        Decision { allocation, ..Decision::default() }
    }
}

impl Policy for Multipath {
    fn name(&self) -> &'static str {
        "multipath"
    }

    fn schedule(&mut self, state: &State, _events: &[Event]) -> Decision {
        let mut allocation = Allocation::default();
        let sharers: Vec<Sharer> = state.active.values().flat_map(|active| active.sharers(|_| 1.0)).collect();
        fill_network(state.wan, &mut state.wan.capacities(), &sharers, &mut allocation);
        Decision { allocation, ..Decision::default() }
    }
}
