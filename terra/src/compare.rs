//! All policies on the same workloads: the rows of the comparison table, and the bars that ours is held to.
//!
//! Each policy runs each workload twice. Completion times are those of the run in which no coflow has a deadline; deadlines are
//! counted in the other one.

use crate::generate::{self, Kind};
use crate::policy::Policy;
use crate::policy::fair::{Multipath, PerFlow};
use crate::policy::ordered::{Aalo, Sincronia, Varys};
use crate::policy::rapier::Rapier;
use crate::policy::swan::SwanMcf;
use crate::policy::terra::Terra;
use crate::report::{Report, mean, percentile};
use crate::topology::Known;
use crate::workload::Workload;
use serde::Serialize;

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
    /// A deadline is this many times the coflow's least completion time; for [`DEADLINE_PART`] of the coflows. `None` for none.
    pub slack: Option<f64>,
}

/// What one policy did with one workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// The policy.
    pub policy: String,
    /// Coflows that used the network.
    pub coflows: usize,
    /// Mean completion time of these, seconds.
    pub mean_cct_s: f64,
    /// Median of the same.
    pub p50_cct_s: f64,
    /// 95th percentile of the same.
    pub p95_cct_s: f64,
    /// The longest of them.
    pub max_cct_s: f64,
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

/// All policies on one plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The network.
    pub topology: &'static str,
    /// The kind of jobs.
    pub workload: &'static str,
    /// How many times longer the mean completion time of per-flow fairness is than ours.
    pub gain_per_flow: f64,
    /// How many times more deadlines ours meets than per-flow fairness; `None` if that meets none.
    pub gain_deadlines: Option<f64>,
    /// By policy, in the order of [`POLICIES`].
    pub algorithms: Vec<Figures>,
    /// Bars that this row misses, in words.
    pub missed: Vec<String>,
}

/// Part of the coflows that get a deadline.
pub const DEADLINE_PART: f64 = 0.25;
/// Shortest least completion time of a coflow that is given a deadline, seconds.
pub const LEAST_DEADLINE_S: f64 = 1.0;
/// Times that ours must be faster than per-flow fairness on average: everywhere, and on the best row.
pub const GAIN_BAR: (f64, f64) = (1.55, 3.4);
/// Times more deadlines that ours must meet than per-flow fairness, unless it meets all there are.
pub const DEADLINE_BAR: f64 = 2.8;
/// Policies that ours must not be slower than on average.
pub const NOT_WORSE_THAN: [&str; 5] = ["multipath", "swan-mcf", "varys", "rapier", "sincronia"];

/// How often SWAN computes its rates; far more often than the 5 minutes of its publication, in its favour.
const SWAN_PERIOD_S: f64 = 1.0;

/// Makes a policy that remembers nothing yet.
pub type Make = fn() -> Box<dyn Policy>;

/// Name and maker of each policy: the one that all are measured against first, ours last.
pub const POLICIES: [(&str, Make); 8] = [
    ("per-flow", || Box::new(PerFlow)),
    ("multipath", || Box::new(Multipath)),
    ("swan-mcf", || Box::new(SwanMcf::new(SWAN_PERIOD_S))),
    ("varys", || Box::new(Varys::default())),
    ("rapier", || Box::new(Rapier::default())),
    ("aalo", || Box::new(Aalo)),
    ("sincronia", || Box::new(Sincronia)),
    ("terra", || Box::new(Terra::default())),
];

/// One of each policy.
pub fn policies() -> impl Iterator<Item = Box<dyn Policy>> {
    POLICIES.into_iter().map(|(_, make)| make())
}

impl Plan {
    /// The workload, at the load of the published evaluations.
    pub fn workload(&self) -> Workload {
        let wan = self.network.wan();
        let workload = generate::workload(self.kind, &wan, self.jobs, self.seed).scaled(self.kind.load(self.network));
        match self.slack {
            Some(slack) => generate::with_deadlines(workload, &wan, DEADLINE_PART, slack, LEAST_DEADLINE_S, self.seed),
            None => workload,
        }
    }
}

impl From<&Report> for Figures {
    fn from(report: &Report) -> Self {
        let ccts_s = report.ccts_s();
        let (deadlines, deadlines_met) = report.deadlines();
        Self {
            policy: report.policy.clone(),
            coflows: ccts_s.len(),
            mean_cct_s: mean(&ccts_s),
            p50_cct_s: percentile(&ccts_s, 0.5),
            p95_cct_s: percentile(&ccts_s, 0.95),
            max_cct_s: percentile(&ccts_s, 1.0),
            mean_jct_s: mean(&report.jcts_s()),
            deadlines,
            deadlines_met,
            promises_broken: report.broken_promises().len(),
            decisions: report.decisions,
        }
    }
}

impl Row {
    /// Compares. Of each policy, in the order of [`POLICIES`], the run without deadlines and the one with.
    ///
    /// # Panics
    /// If there are not as many runs as policies.
    pub fn new(network: Known, kind: Kind, runs: &[(Report, Report)]) -> Self {
        assert_eq!(runs.len(), POLICIES.len(), "each policy has its runs");
        let figures = |(plain, promised): &(Report, Report)| {
            let Figures { deadlines, deadlines_met, promises_broken, .. } = Figures::from(promised);
            Figures { deadlines, deadlines_met, promises_broken, ..Figures::from(plain) }
        };
        let algorithms: Vec<Figures> = runs.iter().map(figures).collect();
        let (base, ours) = (&algorithms[0], &algorithms[algorithms.len() - 1]);
        let gain_per_flow = base.mean_cct_s / ours.mean_cct_s;
        let gain_deadlines = (base.deadlines_met > 0).then(|| ours.deadlines_met as f64 / base.deadlines_met as f64);
        let missed = missed(&algorithms, gain_per_flow, gain_deadlines);
        Self { topology: network.name(), workload: kind.name(), gain_per_flow, gain_deadlines, algorithms, missed }
    }
}

fn missed(algorithms: &[Figures], gain_per_flow: f64, gain_deadlines: Option<f64>) -> Vec<String> {
    let ours = &algorithms[algorithms.len() - 1];
    let mut missed = Vec::new();
    if gain_per_flow < GAIN_BAR.0 {
        missed.push(format!("{gain_per_flow:.2} times faster than per-flow, not {}", GAIN_BAR.0));
    }
    for other in algorithms.iter().filter(|other| NOT_WORSE_THAN.contains(&other.policy.as_str())) {
        if ours.mean_cct_s > other.mean_cct_s {
            missed.push(format!("{:.2} % slower than {}", 100.0 * (ours.mean_cct_s / other.mean_cct_s - 1.0), other.policy));
        }
    }
    // Nobody meets more deadlines than there are.
    let met_all = ours.deadlines_met == ours.deadlines;
    if let Some(gain) = gain_deadlines.filter(|gain| *gain < DEADLINE_BAR && !met_all) {
        missed.push(format!("{gain:.2} times the deadlines of per-flow, not {DEADLINE_BAR}"));
    }
    if ours.promises_broken > 0 {
        missed.push(format!("{} promised deadlines missed", ours.promises_broken));
    }
    missed
}

/// The bar over all rows that these miss, in words.
pub fn missed_by_all(rows: &[Row]) -> Option<String> {
    let best = rows.iter().map(|row| row.gain_per_flow).fold(0.0, f64::max);
    (best < GAIN_BAR.1).then(|| format!("the best row is {best:.2} times faster than per-flow, not {}", GAIN_BAR.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{CoflowId, JobId};
    use crate::report::CoflowRecord;

    /// A report of one coflow that took so long and had to be done by 10 seconds.
    fn report(policy: &str, cct_s: f64) -> Report {
        let mut report = Report::new(policy);
        report.coflows.push(CoflowRecord {
            id: CoflowId(1),
            job: JobId(1),
            stage: String::new(),
            arrived_s: 0.0,
            done_s: cct_s,
            volume_gbit: 1.0,
            weight: 1.0,
            deadline_s: Some(10.0),
        });
        report
    }

    fn row(ccts_s: [f64; 8]) -> Row {
        let runs = |((name, _), cct_s)| (report(name, cct_s), report(name, cct_s));
        Row::new(Known::Swan, Kind::TpcH, &POLICIES.into_iter().zip(ccts_s).map(runs).collect::<Vec<_>>())
    }

    #[test]
    fn names_are_those_of_the_policies() {
        for (name, make) in POLICIES {
            assert_eq!(make().name(), name);
        }
    }

    #[test]
    fn every_missed_bar_is_named() {
        let good = row([12.0, 4.0, 4.0, 4.0, 4.0, 3.0, 4.0, 4.0]);
        assert_eq!((good.missed.as_slice(), good.gain_per_flow, good.gain_deadlines), (&[][..], 3.0, None));
        assert!(missed_by_all(std::slice::from_ref(&good)).unwrap().contains("3.00 times"), "Aalo alone may be faster");
        assert_eq!(missed_by_all(&[good, row([14.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0])]), None);
        let bad = row([12.0, 10.0, 20.0, 20.0, 9.0, 20.0, 20.0, 11.0]);
        let parts = ["1.09 times faster", "10.00 % slower than multipath", "22.22 % slower than rapier", "1 promised"];
        assert_eq!(bad.missed.len(), parts.len());
        assert!(bad.missed.iter().zip(parts).all(|(missed, part)| missed.contains(part)), "{:?}", bad.missed);
        let few = row([9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 5.0]);
        assert!(few.missed.is_empty() && few.gain_deadlines == Some(1.0), "no more deadlines can be met than all");
        let late = row([9.0, 30.0, 30.0, 30.0, 30.0, 30.0, 30.0, 11.0]);
        assert!(late.missed.contains(&"0.00 times the deadlines of per-flow, not 2.8".to_owned()), "{:?}", late.missed);
    }
}
