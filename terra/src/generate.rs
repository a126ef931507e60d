//! Workloads from a seed, shaped like published analytics benchmarks: how many coflows a job has, how large they are, how
//! widely their tasks are spread. The figures are fitted to the statistics of public traces, not copied from them.

use crate::coflow::Coflow;
use crate::id::{JobId, SiteId};
use crate::min_cct::{Effort, Solver, demands};
use crate::random::Random;
use crate::read::jobs::parts;
use crate::topology::Known;
use crate::wan::Wan;
use crate::workload::{Job, Stage, Workload, coflow_id};
use std::collections::BTreeMap;

/// What kind of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// BigBench queries: about 5 coflows a job, 179 MB in the median, wide tails.
    BigBench,
    /// TPC-DS queries: about 5.5 coflows a job, 750 MB.
    TpcDs,
    /// TPC-H queries: about 4.5 coflows a job, 1.1 GB, many tasks.
    TpcH,
    /// MapReduce jobs of one coflow each: 24 MB in the median, and a few that carry nearly all bytes.
    Facebook,
}

/// The numbers behind a kind.
struct Shape {
    coflows: (u64, u64),
    median_mb: f64,
    sigma: f64,
    largest_mb: f64,
    tasks_median: f64,
    tasks_sigma: f64,
    gap_s: f64,
}

/// Part of the sites that one job has its data at.
const HOME: f64 = 0.45;
/// Most tasks of one stage.
const MAX_TASKS: f64 = 200.0;

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::BigBench, Self::TpcDs, Self::TpcH, Self::Facebook];

    /// The name used in tables and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::BigBench => "bigbench",
            Self::TpcDs => "tpc-ds",
            Self::TpcH => "tpc-h",
            Self::Facebook => "facebook",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// By what the volumes are multiplied on a known network, so that it is loaded about as the published evaluations do.
    pub fn load(self, network: Known) -> f64 {
        let [swan, gscale, att] = match self {
            Self::BigBench => [3.5, 0.5, 1.0],
            Self::TpcDs => [2.0, 0.24, 0.5],
            Self::TpcH => [1.5, 0.2, 0.45],
            Self::Facebook => [1.0, 0.2, 0.5],
        };
        match network {
            Known::Swan => swan,
            Known::GScale => gscale,
            // The synthetic ones have links like those of AT&T.
            Known::Att | Known::Random40 | Known::Random100 => att,
        }
    }

    fn shape(self) -> Shape {
        // Coflows; MB: median, sigma, largest; tasks: median, sigma; gap.
        let (coflows, [median_mb, sigma, largest_mb], [tasks_median, tasks_sigma], gap_s) = match self {
            Self::BigBench => ((2, 8), [179.0, 2.0, 26e3], [2.2, 0.9], 5.7),
            Self::TpcDs => ((3, 8), [750.0, 1.5, 22e3], [2.0, 0.7], 5.7),
            Self::TpcH => ((2, 7), [1101.0, 1.4, 18e3], [4.0, 0.8], 5.7),
            Self::Facebook => ((1, 1), [24.0, 3.9, 6.5e6], [2.2, 1.2], 6.9),
        };
        Shape { coflows, median_mb, sigma, largest_mb, tasks_median, tasks_sigma, gap_s }
    }
}

/// Makes `jobs` jobs for a network. The same arguments always give the same workload.
///
/// # Panics
/// If the network has fewer than two sites.
pub fn workload(kind: Kind, wan: &Wan, jobs: u64, seed: u64) -> Workload {
    assert!(wan.sites().len() >= 2, "jobs over the wide area need two sites");
    let shape = kind.shape();
    let mut random = Random::new(seed);
    let mut arrival_s = 0.0;
    let mut workload = Workload::default();
    for id in 0..jobs {
        workload.jobs.push(job(&shape, wan, JobId(id), arrival_s, &mut random));
        arrival_s += random.exponential(shape.gap_s);
    }
    workload
}

fn job(shape: &Shape, wan: &Wan, id: JobId, arrival_s: f64, random: &mut Random) -> Job {
    let sites = wan.sites().len() as u64;
    let homes = ((sites as f64 * HOME).round() as u64).clamp(2, sites);
    // Distinct homes: a random sample without return.
    let mut all: Vec<SiteId> = (0..sites).map(|site| SiteId(site as u32)).collect();
    for index in 0..homes as usize {
        let other = index + random.below(sites - index as u64) as usize;
        all.swap(index, other);
    }
    all.truncate(homes as usize);
    let tasks = |random: &mut Random| {
        let count = random.log_normal(shape.tasks_median, shape.tasks_sigma).clamp(1.0, MAX_TASKS) as u32;
        let mut at: BTreeMap<SiteId, u32> = BTreeMap::new();
        for _ in 0..count {
            *at.entry(all[random.below(homes) as usize]).or_default() += 1;
        }
        at
    };
    let (least, most) = shape.coflows;
    let count = (least + random.below(most - least + 1)) as usize;
    let mut placed: Vec<BTreeMap<SiteId, u32>> = Vec::new();
    let mut stages: Vec<Stage> = Vec::new();
    for index in 0..count {
        let here = tasks(random);
        // A stage reads base data, or what one or two earlier stages made.
        let mut after: Vec<usize> = Vec::new();
        if index > 0 && random.chance(0.75) {
            after.push(index - 1);
            if index > 1 && random.chance(0.3) {
                after.push(random.below(index as u64 - 1) as usize);
            }
        }
        let sources: Vec<BTreeMap<SiteId, u32>> =
            if after.is_empty() { vec![tasks(random)] } else { after.iter().map(|&before| placed[before].clone()).collect() };
        let mb = random.log_normal(shape.median_mb, shape.sigma).min(shape.largest_mb) / sources.len() as f64;
        let parts: Vec<_> = sources.iter().flat_map(|from| parts(from, &here, mb)).collect();
        let coflow = Coflow::from_groups(coflow_id(id, index), parts).expect("volumes are positive and bounded");
        stages.push(Stage { coflow, name: format!("stage{index}"), after });
        placed.push(here);
    }
    Job { id, arrival_s, stages }
}

/// Gives a part of the coflows (chosen by `seed`) a deadline of `slack` times their least completion time alone on the network.
/// Coflows of less than `least_s` alone are left without: no deadline of milliseconds is meant by anyone.
///
/// # Panics
/// If `slack` is not a positive finite number, or the network is not connected.
pub fn with_deadlines(mut workload: Workload, wan: &Wan, part: f64, slack: f64, least_s: f64, seed: u64) -> Workload {
    let mut random = Random::new(seed);
    let mut solver = Solver::new(wan);
    for stage in workload.jobs.iter_mut().flat_map(|job| &mut job.stages) {
        let chosen = random.chance(part);
        if !chosen || stage.coflow.groups.is_empty() {
            continue;
        }
        let volumes: Vec<f64> = stage.coflow.groups.iter().map(|group| group.volume_gbit).collect();
        let wanted = demands(&stage.coflow, &volumes);
        let alone = solver.solve(wan, &wan.capacities(), &wanted, Effort::rushed()).expect("the network is connected");
        if alone.cct_s >= least_s {
            let coflow = stage.coflow.clone().with_deadline(slack * alone.cct_s).expect("slack is positive");
            stage.coflow = coflow;
        }
    }
    workload
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(kind: Kind, network: Known) -> (f64, f64, f64) {
        let wan = network.wan();
        let workload = workload(kind, &wan, 400, 1);
        workload.check(&wan).unwrap();
        let wide: Vec<&Coflow> =
            workload.coflows().map(|(_, coflow)| coflow).filter(|coflow| !coflow.groups.is_empty()).collect();
        let mut volumes: Vec<f64> = wide.iter().map(|coflow| coflow.volume_gbit() / 8e-3).collect();
        volumes.sort_by(f64::total_cmp);
        let groups = wide.iter().map(|coflow| coflow.groups.len()).sum::<usize>() as f64 / wide.len() as f64;
        (workload.coflows().count() as f64 / 400.0, volumes[volumes.len() / 2], groups)
    }

    #[test]
    fn shapes_are_near_the_published_statistics() {
        // Coflows per job, median MB over the wide area, FlowGroups per coflow, from the public traces.
        for (kind, network, coflows, median_mb, groups) in [
            (Kind::BigBench, Known::Swan, 5.0, 179.0, 1.8),
            (Kind::BigBench, Known::Att, 5.0, 301.0, 9.0),
            (Kind::TpcDs, Known::Swan, 5.5, 750.0, 1.5),
            (Kind::TpcDs, Known::Att, 5.5, 1592.0, 6.2),
            (Kind::TpcH, Known::Swan, 4.5, 1101.0, 2.7),
            (Kind::TpcH, Known::Att, 4.5, 2161.0, 21.4),
            (Kind::Facebook, Known::Swan, 1.0, 24.0, 1.6),
        ] {
            let made = figures(kind, network);
            let near = |a: f64, b: f64, factor: f64| a < b * factor && b < a * factor;
            assert!(near(made.0, coflows, 1.2), "{kind:?} on {network:?}: {made:?} coflows per job, not {coflows}");
            assert!(near(made.1, median_mb, 2.5), "{kind:?} on {network:?}: {made:?} median MB, not {median_mb}");
            assert!(near(made.2, groups, 2.0), "{kind:?} on {network:?}: {made:?} groups, not {groups}");
        }
    }

    #[test]
    fn the_seed_decides_all() {
        let wan = Known::GScale.wan();
        assert_eq!(workload(Kind::TpcDs, &wan, 20, 5), workload(Kind::TpcDs, &wan, 20, 5));
        assert_ne!(workload(Kind::TpcDs, &wan, 20, 5), workload(Kind::TpcDs, &wan, 20, 6));
    }

    #[test]
    fn deadlines_are_longer_than_the_coflow_alone() {
        let wan = Known::Swan.wan();
        let workload = with_deadlines(workload(Kind::BigBench, &wan, 30, 5), &wan, 0.5, 2.0, 0.1, 1);
        let with: Vec<_> = workload.coflows().filter_map(|(_, coflow)| coflow.deadline_s).collect();
        assert!(with.len() > 10 && with.iter().all(|deadline_s| *deadline_s >= 0.2), "{with:?}");
    }
}
