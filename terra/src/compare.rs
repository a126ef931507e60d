//! All policies on the same workloads: the rows of the comparison table.

use crate::generate::{self, Kind};
use crate::policy::Policy;
use crate::policy::fair::{Multipath, PerFlow};
use crate::policy::ordered::{Aalo, Sincronia, Varys};
use crate::policy::rapier::Rapier;
use crate::policy::swan::SwanMcf;
use crate::policy::terra::Terra;
use crate::report::{Report, mean, percentile};
use crate::sim::{SimError, Simulation};
use crate::topology::Known;
use crate::workload::Workload;

/// One workload on one network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Where.
    pub network: Known,
    /// What.
    pub kind: Kind,
    /// How many jobs.
    pub jobs: u64,
    /// Decides everything random.
    pub seed: u64,
    /// Part of the coflows that get a deadline, and how many times their least completion time that is.
    pub deadlines: Option<(f64, f64)>,
}

/// What one policy did with one workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The policy.
    pub policy: String,
    /// Mean completion time of coflows that used the network, seconds.
    pub mean_cct_s: f64,
    /// 95th percentile of the same.
    pub p95_cct_s: f64,
    /// Mean completion time of jobs, seconds.
    pub mean_jct_s: f64,
    /// Coflows with a deadline.
    pub deadlines: usize,
    /// How many of them met it.
    pub deadlines_met: usize,
    /// How many missed it without having been refused. For policies that admit (ours and Varys) these are broken promises, and
    /// there are none unless a capacity fell; the others refuse nothing, so all their misses are here.
    pub promises_broken: usize,
    /// How often rates were decided.
    pub decisions: u64,
}

/// Shortest least completion time of a coflow that is given a deadline, seconds.
const LEAST_DEADLINE_S: f64 = 1.0;

/// How often SWAN computes its rates; far more often than the 5 minutes of its publication, in its favour.
const SWAN_PERIOD_S: f64 = 1.0;

impl Plan {
    /// The workload, at the load of the published evaluations.
    pub fn workload(&self) -> Workload {
        let wan = self.network.wan();
        let load = self.kind.load(self.network);
        let workload = generate::workload(self.kind, &wan, self.jobs, self.seed).scaled(load);
        match self.deadlines {
            Some((part, slack)) => generate::with_deadlines(workload, &wan, part, slack, LEAST_DEADLINE_S, self.seed),
            None => workload,
        }
    }
}

impl From<&Report> for Row {
    fn from(report: &Report) -> Self {
        let ccts_s = report.ccts_s();
        let (deadlines, deadlines_met) = report.deadlines();
        Self {
            policy: report.policy.clone(),
            mean_cct_s: mean(&ccts_s),
            p95_cct_s: percentile(&ccts_s, 0.95),
            mean_jct_s: mean(&report.jcts_s()),
            deadlines,
            deadlines_met,
            promises_broken: report.broken_promises().len(),
            decisions: report.decisions,
        }
    }
}

/// Fresh policies, the one that all are measured against (per-flow) first.
pub fn policies() -> Vec<Box<dyn Policy>> {
    vec![
        Box::new(PerFlow),
        Box::new(Multipath),
        Box::new(SwanMcf::new(SWAN_PERIOD_S)),
        Box::new(Varys::default()),
        Box::new(Rapier::default()),
        Box::new(Aalo),
        Box::new(Sincronia),
        Box::new(Terra::default()),
    ]
}

/// Runs one policy on one plan.
///
/// # Errors
/// [`SimError`] if the policy breaks the rules.
pub fn run(plan: &Plan, policy: &mut dyn Policy) -> Result<Row, SimError> {
    let report = Simulation::new(&plan.network.wan(), &plan.workload())?.run(policy)?;
    Ok(Row::from(&report))
}
