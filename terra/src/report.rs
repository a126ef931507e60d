//! What a simulation has found out.

use crate::id::{CoflowId, JobId};
use std::collections::BTreeSet;

/// One coflow that is done.
#[derive(Clone, Debug, PartialEq)]
pub struct CoflowRecord {
    /// Who it is.
    pub id: CoflowId,
    /// Its job.
    pub job: JobId,
    /// Name of its stage in the job.
    pub stage: String,
    /// When it was released, seconds.
    pub arrived_s: f64,
    /// When it was done, seconds.
    pub done_s: f64,
    /// What it sent, Gbit; 0 if all its flows were local.
    pub volume_gbit: f64,
    /// Its weight.
    pub weight: f64,
    /// Its deadline, seconds after release.
    pub deadline_s: Option<f64>,
}

/// One job that is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JobRecord {
    /// Who it is.
    pub id: JobId,
    /// When it arrived, seconds.
    pub arrived_s: f64,
    /// When its last coflow was done, seconds.
    pub done_s: f64,
}

/// All records of one run, in order of completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The policy.
    pub policy: String,
    /// Coflows done.
    pub coflows: Vec<CoflowRecord>,
    /// Jobs done.
    pub jobs: Vec<JobRecord>,
    /// Coflows whose deadline the policy said it could not promise.
    pub refused: BTreeSet<CoflowId>,
    /// How often rates were decided.
    pub decisions: u64,
    /// What was sent in all, Gbit.
    pub sent_gbit: f64,
}

impl CoflowRecord {
    /// Completion time, seconds.
    pub fn cct_s(&self) -> f64 {
        self.done_s - self.arrived_s
    }

    /// Whether it has a deadline and met it.
    pub fn met_deadline(&self) -> bool {
        // One part in a million for rounding.
        self.deadline_s.is_some_and(|deadline_s| self.cct_s() <= deadline_s * (1.0 + 1e-6))
    }
}

impl Report {
    pub(crate) fn new(policy: &str) -> Self {
        let policy = policy.to_owned();
        Self { policy, coflows: Vec::new(), jobs: Vec::new(), refused: BTreeSet::new(), decisions: 0, sent_gbit: 0.0 }
    }

    /// Completion times of all coflows that used the network, ascending, seconds.
    pub fn ccts_s(&self) -> Vec<f64> {
        sorted(self.coflows.iter().filter(|record| record.volume_gbit > 0.0).map(CoflowRecord::cct_s))
    }

    /// Completion times of all jobs, ascending, seconds.
    pub fn jcts_s(&self) -> Vec<f64> {
        sorted(self.jobs.iter().map(|record| record.done_s - record.arrived_s))
    }

    /// Weighted sum of completion times from 0 on, as offline bounds have it.
    pub fn weighted_completion_s(&self) -> f64 {
        self.coflows.iter().map(|record| record.weight * record.done_s).sum()
    }

    /// Coflows with a deadline, and how many of them met it.
    pub fn deadlines(&self) -> (usize, usize) {
        let with = self.coflows.iter().filter(|record| record.deadline_s.is_some());
        (with.clone().count(), with.filter(|record| record.met_deadline()).count())
    }

    /// Coflows that missed their deadline without having been refused: broken promises of a policy that admits; all misses of
    /// one that does not.
    pub fn broken_promises(&self) -> Vec<CoflowId> {
        let broken = |record: &&CoflowRecord| {
            record.deadline_s.is_some() && !record.met_deadline() && !self.refused.contains(&record.id)
        };
        self.coflows.iter().filter(broken).map(|record| record.id).collect()
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The mean; 0 of nothing.
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// The value below which `fraction` (0 to 1) of the ascending values lie (nearest rank); 0 of nothing.
pub fn percentile(sorted: &[f64], fraction: f64) -> f64 {
    let rank = (fraction * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0.0)
}
