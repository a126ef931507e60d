//! What a schedule of many coflows is, as a trait: a simulation or a live controller tells what happened, the policy answers
//! with rates. [`terra`] is ours; the others are comparators, each as strong as its publication lets it be.

pub mod fair;
pub mod ordered;
pub mod rapier;
pub mod swan;
pub mod terra;

use crate::allocation::Allocation;
use crate::coflow::Coflow;
use crate::id::{CoflowId, LinkId};
use crate::share::Sharer;
use crate::wan::Wan;
use std::collections::BTreeMap;

/// A coflow that has been released and is not done.
#[derive(Clone, Debug, PartialEq)]
pub struct Active {
    /// What it is.
    pub coflow: Coflow,
    /// What each FlowGroup still has to send, Gbit; 0 once it is done.
    pub remaining_gbit: Vec<f64>,
    /// When it was released, seconds.
    pub arrived_s: f64,
}

impl Active {
    /// A coflow released at `now_s` that has sent nothing.
    pub fn new(coflow: Coflow, now_s: f64) -> Self {
        let remaining_gbit = coflow.groups.iter().map(|group| group.volume_gbit).collect();
        Self { coflow, remaining_gbit, arrived_s: now_s }
    }

    /// What it still has to send in all, Gbit.
    pub fn left_gbit(&self) -> f64 {
        self.remaining_gbit.iter().sum()
    }

    /// When it should be done, seconds.
    pub fn deadline_at_s(&self) -> Option<f64> {
        self.coflow.deadline_s.map(|deadline_s| self.arrived_s + deadline_s)
    }

    /// Its FlowGroups that are not done, as ones that share; `weight` is asked for each group.
    pub fn sharers(&self, weight: impl Fn(usize) -> f64) -> impl Iterator<Item = Sharer> {
        let groups = self.coflow.groups.iter().zip(&self.remaining_gbit).enumerate();
        groups.filter(|(_, (_, left))| **left > 0.0).map(move |(group, (ends, _))| Sharer {
            coflow: self.coflow.id,
            groups: self.coflow.groups.len(),
            group,
            src: ends.src,
            dst: ends.dst,
            weight: weight(group),
        })
    }
}

/// All there is to know when rates are decided.
#[derive(Clone, Copy, Debug)]
pub struct State<'a> {
    /// Seconds since the beginning.
    pub now_s: f64,
    /// The network with the capacities of now.
    pub wan: &'a Wan,
    /// Coflows that are not done, by id.
    pub active: &'a BTreeMap<CoflowId, Active>,
}

/// What has happened since the last decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A coflow was released.
    Arrival(CoflowId),
    /// A FlowGroup is done, its coflow is not.
    GroupDone(CoflowId, usize),
    /// A coflow is done, or was cancelled, and will never be active again.
    CoflowDone(CoflowId),
    /// A coflow cannot send for a while, and is not active until it arrives again. What it was promised stays promised.
    Paused(CoflowId),
    /// A link carries another amount than it did.
    Capacity {
        /// The link.
        link: LinkId,
        /// What it carried before, Gbit/s.
        before_gbps: f64,
    },
    /// The time that the policy asked to be woken at.
    Wake,
}

/// What a policy wants from now on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Rates until the next event.
    pub allocation: Allocation,
    /// When the policy wants to be asked again even if nothing happens, seconds; later than now.
    pub wake_at_s: Option<f64>,
    /// Coflows whose deadline the policy does not promise, newly found out. They are served as far as possible.
    pub refused: Vec<CoflowId>,
}

/// A schedule. Deterministic: the same sequence of calls gives the same decisions.
pub trait Policy {
    /// Short name for tables.
    fn name(&self) -> &'static str;

    /// Decides after events. Called with every event once, in order of time.
    fn schedule(&mut self, state: &State, events: &[Event]) -> Decision;
}
