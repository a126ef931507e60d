//! Workloads: jobs, each a graph of coflows that wait for one another.

use crate::coflow::{Coflow, CoflowError};
use crate::id::{CoflowId, JobId};
use crate::wan::Wan;
use std::collections::BTreeSet;
use thiserror::Error;

/// Most stages of one job.
pub const MAX_STAGES: usize = 1_000;

/// One coflow of a job and those it waits for.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// The coflow. Its release time counts from the arrival of the job.
    pub coflow: Coflow,
    /// What this stage is called, for reports.
    pub name: String,
    /// Indices of the stages of the same job that must be done before it starts.
    pub after: Vec<usize>,
}

/// Coflows that arrive together and run in the order of their dependencies.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Who it is.
    pub id: JobId,
    /// When it arrives, seconds.
    pub arrival_s: f64,
    /// Its coflows.
    pub stages: Vec<Stage>,
}

/// All that a simulation is to run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Workload {
    /// The jobs, in any order.
    pub jobs: Vec<Job>,
}

/// Why a workload was refused.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum WorkloadError {
    /// A coflow is no good.
    #[error(transparent)]
    Coflow(#[from] CoflowError),
    /// Two jobs of one id.
    #[error("Job {0} appears twice")]
    DuplicateJob(JobId),
    /// A job that arrives at no proper time.
    #[error("Job {0}: arrival {1} s is not a finite number of at least 0")]
    Arrival(JobId, f64),
    /// A stage waits for one that does not exist.
    #[error("Job {0}: stage {1} waits for stage {2}, which does not exist")]
    UnknownStage(JobId, usize, usize),
    /// Stages wait for each other in a circle.
    #[error("Job {0}: stage {1} waits for itself through others")]
    Cycle(JobId, usize),
}

impl Job {
    /// A job of one coflow.
    pub fn single(id: JobId, arrival_s: f64, coflow: Coflow) -> Self {
        Self { id, arrival_s, stages: vec![Stage { coflow, name: String::new(), after: Vec::new() }] }
    }

    /// The stages in an order in which each comes after those it waits for.
    ///
    /// # Errors
    /// [`WorkloadError::UnknownStage`], [`WorkloadError::Cycle`].
    pub fn order(&self) -> Result<Vec<usize>, WorkloadError> {
        let count = self.stages.len();
        let mut waiting = vec![0usize; count];
        let mut followers = vec![Vec::new(); count];
        for (index, stage) in self.stages.iter().enumerate() {
            for &before in &stage.after {
                if before >= count {
                    return Err(WorkloadError::UnknownStage(self.id, index, before));
                }
                waiting[index] += 1;
                followers[before].push(index);
            }
        }
        let mut order: Vec<usize> = (0..count).filter(|&index| waiting[index] == 0).collect();
        let mut next = 0;
        while next < order.len() {
            for &follower in &followers[order[next]] {
                waiting[follower] -= 1;
                if waiting[follower] == 0 {
                    order.push(follower);
                }
            }
            next += 1;
        }
        match (0..count).find(|&index| waiting[index] > 0) {
            Some(index) => Err(WorkloadError::Cycle(self.id, index)),
            None => Ok(order),
        }
    }
}

impl Workload {
    /// Checks all of it against the network it is to run on.
    ///
    /// # Errors
    /// The first [`WorkloadError`] found.
    pub fn check(&self, wan: &Wan) -> Result<(), WorkloadError> {
        let (mut jobs, mut coflows) = (BTreeSet::new(), BTreeSet::new());
        for job in &self.jobs {
            if !jobs.insert(job.id) {
                return Err(WorkloadError::DuplicateJob(job.id));
            }
            if !(job.arrival_s >= 0.0 && job.arrival_s.is_finite()) {
                return Err(WorkloadError::Arrival(job.id, job.arrival_s));
            }
            job.order()?;
            for stage in &job.stages {
                stage.coflow.check_sites(wan)?;
                if !coflows.insert(stage.coflow.id) {
                    return Err(CoflowError::Duplicate(stage.coflow.id).into());
                }
            }
        }
        Ok(())
    }

    /// All coflows, with the index of their job.
    pub fn coflows(&self) -> impl Iterator<Item = (usize, &Coflow)> {
        self.jobs.iter().enumerate().flat_map(|(index, job)| job.stages.iter().map(move |stage| (index, &stage.coflow)))
    }

    /// The same workload with all volumes multiplied, to change its load.
    ///
    /// # Panics
    /// If the factor is not a positive finite number.
    pub fn scaled(mut self, factor: f64) -> Self {
        assert!(factor > 0.0 && factor.is_finite(), "volumes cannot be multiplied by {factor}");
        for group in self.jobs.iter_mut().flat_map(|job| &mut job.stages).flat_map(|stage| &mut stage.coflow.groups) {
            group.volume_gbit *= factor;
        }
        self
    }

    /// The first jobs by arrival.
    pub fn first_jobs(mut self, count: usize) -> Self {
        self.jobs.sort_by(|a, b| a.arrival_s.total_cmp(&b.arrival_s).then(a.id.cmp(&b.id)));
        self.jobs.truncate(count);
        self
    }
}

/// The ids of coflows of a workload made job by job: unique, and readable as job and stage.
pub fn coflow_id(job: JobId, stage: usize) -> CoflowId {
    CoflowId(job.0 * MAX_STAGES as u64 + stage as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coflow::Flow;
    use crate::id::SiteId;
    use crate::topology::Known;

    fn job(id: u64, after: &[&[usize]]) -> Job {
        let stage = |(index, after): (usize, &&[usize])| {
            let flow = Flow { src: SiteId(0), dst: SiteId(1), volume_gbit: 1.0 };
            let coflow = Coflow::new(coflow_id(JobId(id), index), [flow]).unwrap();
            Stage { coflow, name: String::new(), after: after.to_vec() }
        };
        Job { id: JobId(id), arrival_s: 0.0, stages: after.iter().enumerate().map(stage).collect() }
    }

    #[test]
    fn dependencies_are_ordered_and_circles_found() {
        assert_eq!(job(1, &[&[1, 2], &[], &[1]]).order().unwrap(), [1, 2, 0]);
        assert_eq!(job(1, &[&[1], &[0], &[]]).order(), Err(WorkloadError::Cycle(JobId(1), 0)));
        assert_eq!(job(1, &[&[0]]).order(), Err(WorkloadError::Cycle(JobId(1), 0)));
        assert_eq!(job(1, &[&[7]]).order(), Err(WorkloadError::UnknownStage(JobId(1), 0, 7)));
    }

    #[test]
    fn duplicates_are_found() {
        let wan = Known::Swan.wan();
        let twice = Workload { jobs: vec![job(1, &[&[]]), job(1, &[&[]])] };
        assert_eq!(twice.check(&wan), Err(WorkloadError::DuplicateJob(JobId(1))));
        let mut shared = Workload { jobs: vec![job(1, &[&[]]), job(2, &[&[]])] };
        shared.jobs[1].stages[0].coflow.id = coflow_id(JobId(1), 0);
        assert_eq!(shared.check(&wan), Err(CoflowError::Duplicate(CoflowId(1000)).into()));
        let late = Workload { jobs: vec![Job { arrival_s: f64::NAN, ..job(1, &[&[]]) }] };
        assert!(matches!(late.check(&wan), Err(WorkloadError::Arrival(..))));
    }
}
