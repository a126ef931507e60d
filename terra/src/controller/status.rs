//! What the controller shows: the network, agents, coflows and how far they are.

use super::Controller;
use super::agents::waits_for;
use crate::id::{CoflowId, JobId};
use crate::policy::Active;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A coflow that is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// Its job.
    pub job: JobId,
    /// Who it is.
    pub coflow: CoflowId,
    /// Name of its stage.
    pub stage: String,
    /// What it sent, Gbit.
    pub volume_gbit: f64,
    /// When it was released, seconds.
    pub arrived_s: f64,
    /// When it was done, seconds.
    pub done_s: f64,
    /// By when it was to be done, seconds after its release.
    pub deadline_s: Option<f64>,
}

/// What a coflow is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CoflowState {
    /// It waits for other stages of its job, or its release time.
    Waiting,
    /// The agent of this site is not there.
    Paused(String),
    /// The agent of this site cannot send its part.
    Stuck(String),
    /// It sends, or would if there were capacity for it.
    Running,
}

/// A coflow that is not done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoflowStatus {
    /// Its job.
    pub job: JobId,
    /// Who it is.
    pub coflow: CoflowId,
    /// Name of its stage.
    pub stage: String,
    /// What it is doing.
    pub state: CoflowState,
    /// All of it, Gbit.
    pub volume_gbit: f64,
    /// What is left, Gbit.
    pub left_gbit: f64,
    /// What its agents have been told to send, Gbit/s.
    pub rate_gbps: f64,
    /// When it is done at these rates, seconds from now.
    pub ends_in_s: Option<f64>,
    /// When it should be done, seconds from now.
    pub deadline_in_s: Option<f64>,
    /// Whether that is promised; `None` without a deadline or as long as it does not run.
    pub promised: Option<bool>,
}

/// All there is to show.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The last epoch.
    pub epoch: u64,
    /// Whether every agent does what it is to do.
    pub settled: bool,
    /// Sites, and whether their agents are there.
    pub agents: BTreeMap<String, bool>,
    /// Links: from, to, capacity, and the most that may be sent on it now, Gbit/s.
    pub links: Vec<(String, String, f64, f64)>,
    /// Coflows that are not done, by job and stage.
    pub coflows: Vec<CoflowStatus>,
    /// Coflows that are done, the latest last.
    pub finished: Vec<Finished>,
}

impl Controller {
    /// How everything is now.
    pub fn status(&self) -> Status {
        let name = |site| self.wan.name(site).to_owned();
        let sites = (0..self.wan.sites().len() as u32).map(crate::SiteId);
        let most = self.most_gbps();
        let links = self.wan.links().iter().zip(most);
        let mut rates: BTreeMap<(CoflowId, usize), f64> = BTreeMap::new();
        for site in self.heard_s.keys() {
            for (&(coflow, group, _), rate) in self.grants.told(*site).into_iter().flat_map(|(_, rates)| rates) {
                *rates.entry((coflow, group)).or_default() += rate;
            }
        }
        let coflow = |(job, stage): (JobId, usize)| self.coflow_status(job, stage, &rates);
        let open = self.jobs.iter().flat_map(|(id, held)| {
            (0..held.job.stages.len()).filter(|stage| !held.done.contains(stage)).map(|stage| (*id, stage))
        });
        Status {
            epoch: self.grants.last().0,
            settled: self.settled(),
            agents: sites.map(|site| (name(site), self.heard_s.contains_key(&site))).collect(),
            links: links.map(|(link, most)| (name(link.from), name(link.to), link.capacity_gbps, most)).collect(),
            coflows: open.map(coflow).collect(),
            finished: self.finished.iter().cloned().collect(),
        }
    }

    fn coflow_status(&self, job: JobId, stage: usize, rates: &BTreeMap<(CoflowId, usize), f64>) -> CoflowStatus {
        let entry = &self.jobs[&job].job.stages[stage];
        let id = entry.coflow.id;
        let (running, paused) = (self.running.get(&id), self.paused.get(&id));
        let rate = |group: usize| rates.get(&(id, group)).copied().unwrap_or(0.0);
        let groups = |active: &Active| active.remaining_gbit.clone().into_iter().enumerate();
        let ends_in_s = running.map(|active| {
            let ends = groups(active).filter(|(_, left)| *left > 0.0).map(|(group, left)| left / rate(group));
            ends.fold(0.0, f64::max)
        });
        let released = running.or(paused);
        CoflowStatus {
            job,
            coflow: id,
            stage: entry.name.clone(),
            state: match (running, paused) {
                (Some(_), _) => CoflowState::Running,
                (None, Some(_)) if self.stuck.contains_key(&id) => {
                    CoflowState::Stuck(self.wan.name(self.stuck[&id]).to_owned())
                }
                (None, Some(active)) => CoflowState::Paused(
                    waits_for(active, &self.heard_s).map_or_else(String::new, |site| self.wan.name(site).to_owned()),
                ),
                (None, None) => CoflowState::Waiting,
            },
            volume_gbit: entry.coflow.volume_gbit(),
            left_gbit: released.map_or_else(|| entry.coflow.volume_gbit(), Active::left_gbit),
            rate_gbps: running.map_or(0.0, |active| groups(active).map(|(group, _)| rate(group)).sum()),
            ends_in_s: ends_in_s.filter(|ends_s| ends_s.is_finite()),
            deadline_in_s: released.and_then(Active::deadline_at_s).map(|at_s| at_s - self.now_s),
            promised: running.and(entry.coflow.deadline_s).map(|_| !self.refused.contains(&id)),
        }
    }
}
