//! What agents may send: rates by epoch, acknowledged, lowered before others are raised.
//!
//! For each path the most that its agent may be sending is known: the greatest rate of what it acknowledged and what was issued to
//! it since. A rate is lowered at once. It is raised only if every link of its path could carry the greater of what may be sent
//! and what is wanted, of everybody: so at no time, whatever is under way or lost, can more be sent than the links carry.

use crate::RATE_FLOOR_GBPS;
use crate::allocation::Allocation;
use crate::id::{CoflowId, Epoch, SiteId};
use crate::path::Path;
use crate::policy::Active;
use crate::wan::Wan;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// A path of a FlowGroup.
pub type Lane = (CoflowId, usize, Path);
/// Rates of some paths, Gbit/s.
pub type Rates = BTreeMap<Lane, f64>;

/// By how much, relatively, a link may be overbooked by rounding.
const TOLERANCE: f64 = 1e-6;

/// What one agent has been told.
#[derive(Clone, Debug, Default)]
struct Agent {
    /// The last that it acknowledged.
    done: Epoch,
    /// The last that it was told, and what.
    epoch: Epoch,
    told: Rates,
    /// The most that it may be sending.
    most: Rates,
}

/// Rates of all agents.
#[derive(Clone, Debug, Default)]
pub(super) struct Grants {
    last: Epoch,
    wanted: BTreeMap<SiteId, Rates>,
    agents: BTreeMap<SiteId, Agent>,
}

impl Grants {
    /// Nobody sends anything; epochs go on after `last`.
    pub fn new(last: Epoch) -> Self {
        Self { last, ..Self::default() }
    }

    /// The last epoch that was issued.
    pub fn last(&self) -> Epoch {
        self.last
    }

    /// An agent that sends nothing is there.
    pub fn join(&mut self, site: SiteId, wan: &Wan) {
        self.agents.insert(site, Agent::default());
        self.advance(wan);
    }

    /// An agent that sends nothing any more is gone.
    pub fn leave(&mut self, site: SiteId, wan: &Wan) {
        self.agents.remove(&site);
        self.advance(wan);
    }

    /// What is wanted from now on.
    pub fn want(&mut self, allocation: &Allocation, active: &BTreeMap<CoflowId, Active>, wan: &Wan) {
        self.wanted.clear();
        for (&id, groups) in &allocation.coflows {
            let ends = active[&id].coflow.groups.iter();
            for (group, (ends, paths)) in ends.zip(groups).enumerate() {
                let rates = self.wanted.entry(ends.src).or_default();
                rates.extend(paths.iter().map(|path| ((id, group, path.path.clone()), path.rate_gbps)));
            }
        }
        self.advance(wan);
    }

    /// What an agent should be doing.
    pub fn told(&self, site: SiteId) -> Option<(Epoch, &Rates)> {
        self.agents.get(&site).map(|agent| (agent.epoch, &agent.told))
    }

    /// The epochs that an agent may be at: from the last that it acknowledged to the last that it was told.
    pub fn window(&self, site: SiteId) -> Option<RangeInclusive<Epoch>> {
        self.agents.get(&site).map(|agent| agent.done..=agent.epoch)
    }

    /// An agent says that it does what it was told in this epoch, which is in its window. One that is behind has acknowledged
    /// nothing: what it does lies within what it may do.
    pub fn acknowledge(&mut self, site: SiteId, epoch: Epoch, wan: &Wan) {
        let Some(agent) = self.agents.get_mut(&site) else { return };
        if agent.epoch == epoch && agent.done != epoch {
            agent.done = epoch;
            agent.most = agent.told.clone();
            self.advance(wan);
        }
    }

    /// Whether everybody has acknowledged what is wanted.
    pub fn settled(&self) -> bool {
        let nothing = Rates::new();
        self.agents
            .iter()
            .all(|(site, agent)| agent.done == agent.epoch && agent.told == *self.wanted.get(site).unwrap_or(&nothing))
    }

    /// The most that may be sent on each link, Gbit/s.
    pub fn most(&self, wan: &Wan) -> Vec<f64> {
        let mut loads = vec![0.0; wan.links().len()];
        self.agents.values().flat_map(|agent| &agent.most).for_each(|((.., path), rate)| load(&mut loads, path, *rate));
        loads
    }

    /// Tells every agent what it can be told now.
    fn advance(&mut self, wan: &Wan) {
        let nothing = Rates::new();
        let mut loads = vec![0.0; wan.links().len()];
        for (site, agent) in &self.agents {
            let wanted = self.wanted.get(site).unwrap_or(&nothing);
            for (lane, rate) in wanted {
                load(&mut loads, &lane.2, rate.max(agent.most.get(lane).copied().unwrap_or(0.0)));
            }
            agent
                .most
                .iter()
                .filter(|(lane, _)| !wanted.contains_key(lane))
                .for_each(|(lane, rate)| load(&mut loads, &lane.2, *rate));
        }
        let fits: Vec<bool> = loads
            .iter()
            .zip(wan.links())
            .map(|(load, link)| *load <= link.capacity_gbps * (1.0 + TOLERANCE) + RATE_FLOOR_GBPS)
            .collect();
        for (site, agent) in &mut self.agents {
            let wanted = self.wanted.get(site).unwrap_or(&nothing);
            let mut next = Rates::new();
            for (lane, &rate) in wanted {
                let most = agent.most.get(lane).copied().unwrap_or(0.0);
                let may_rise = lane.2.links().iter().all(|link| fits[link.index()]);
                let rate = if may_rise { rate } else { rate.min(most) };
                if rate > 0.0 {
                    next.insert(lane.clone(), rate);
                }
            }
            if next == agent.told {
                continue;
            }
            self.last = Epoch(self.last.0 + 1);
            for (lane, rate) in &next {
                let most = agent.most.entry(lane.clone()).or_default();
                *most = most.max(*rate);
            }
            (agent.epoch, agent.told) = (self.last, next);
        }
    }
}

fn load(loads: &mut [f64], path: &Path, rate_gbps: f64) {
    path.links().iter().for_each(|link| loads[link.index()] += rate_gbps);
}
