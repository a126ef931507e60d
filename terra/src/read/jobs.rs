//! Traces of geo-distributed analytics jobs, one job after another:
//!
//! ```text
//! STAGES JOB_ID ARRIVAL_S
//! STAGE_NAME TASKS SITE SITE ...        a line per stage; without sites they are chosen at random
//! SHUFFLES
//! FROM_STAGE TO_STAGE MB [DEADLINE_S]   a line per shuffle
//! ```
//!
//! A shuffle of V MB from M to N tasks is M*N flows of equal size. All shuffles into one stage are one coflow, which waits for
//! the coflows into the stages it comes from. Its deadline is the earliest of its shuffles.

use super::{ReadError, lines, number};
use crate::coflow::{Coflow, FlowGroup};
use crate::id::{JobId, SiteId};
use crate::random::Random;
use crate::wan::Wan;
use crate::workload::{Job, MAX_STAGES, Stage, Workload, coflow_id};
use std::collections::BTreeMap;

/// Gbit of one MB.
pub(super) const GBIT_PER_MB: f64 = 8e-3;
/// Smallest shuffle, MB; smaller ones are raised to it, as the traces' authors do.
const LEAST_MB: f64 = 1.0;
/// Most tasks of one stage.
const MAX_TASKS: usize = 100_000;
/// Most jobs of one trace.
const MAX_JOBS: usize = 1_000_000;

/// Reads a trace for a network. `seed` places the tasks of stages that name no sites.
///
/// # Errors
/// [`ReadError`] with the line of the trouble, for example an unknown site or stage.
pub fn parse(text: &str, wan: &Wan, seed: u64) -> Result<Workload, ReadError> {
    let mut lines = lines(text).peekable();
    let mut random = Random::new(seed);
    let mut workload = Workload::default();
    while lines.peek().is_some() {
        if workload.jobs.len() == MAX_JOBS {
            return Err(ReadError::new(0, format!("more than {MAX_JOBS} jobs")));
        }
        let job = job(&mut lines, wan, &mut random)?;
        workload.jobs.push(job);
    }
    workload.check(wan).map_err(|error| ReadError::new(0, error))?;
    Ok(workload)
}

/// How many tasks of a stage each site runs.
type Tasks = BTreeMap<SiteId, u32>;

struct Shuffle {
    from: usize,
    to: usize,
    mb: f64,
    deadline_s: Option<f64>,
}

fn job<'a>(lines: &mut impl Iterator<Item = (usize, &'a str)>, wan: &Wan, random: &mut Random) -> Result<Job, ReadError> {
    let mut next = |what: &str| lines.next().ok_or_else(|| ReadError::new(0, format!("the input ends before {what}")));
    let (line, head) = next("a job")?;
    let mut words = head.split_whitespace();
    let count: usize = number(line, "number of stages", words.next())?;
    let id = JobId(number(line, "job id", words.next())?);
    let arrival_s: f64 = number(line, "arrival", words.next())?;
    if count > MAX_STAGES || id.0 > u64::MAX / 10_000 {
        return Err(ReadError::new(line, format!("{count} stages or job id {id} is too large")));
    }
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    let mut stages: Vec<(&str, Tasks)> = Vec::new();
    for _ in 0..count {
        let (line, text) = next("a stage")?;
        let mut words = text.split_whitespace();
        let name = words.next().unwrap_or_default();
        if names.insert(name, stages.len()).is_some() {
            return Err(ReadError::new(line, format!("stage {name:?} appears twice")));
        }
        let wanted: usize = number(line, "number of tasks", words.next())?;
        if wanted == 0 || wanted > MAX_TASKS {
            return Err(ReadError::new(line, format!("{wanted} tasks: expected 1 to {MAX_TASKS}")));
        }
        stages.push((name, tasks(line, words, wanted, wan, random)?));
    }
    let (line, text) = next("the number of shuffles")?;
    let count: usize = number(line, "number of shuffles", Some(text))?;
    let mut shuffles = Vec::new();
    for _ in 0..count {
        let (line, text) = next("a shuffle")?;
        let mut words = text.split_whitespace();
        let mut stage = |what| {
            let name = words.next().ok_or_else(|| ReadError::new(line, format!("{what} stage is missing")))?;
            names.get(name).copied().ok_or_else(|| ReadError::new(line, format!("unknown stage {name:?}")))
        };
        let (from, to) = (stage("source")?, stage("destination")?);
        let mb: f64 = number(line, "volume", words.next())?;
        if !(mb >= 0.0 && mb.is_finite()) {
            return Err(ReadError::new(line, format!("volume {mb} MB is no finite number of at least 0")));
        }
        let deadline_s = words.next().map(|word| number(line, "deadline", Some(word))).transpose()?;
        shuffles.push(Shuffle { from, to, mb, deadline_s });
    }
    coflows(id, arrival_s, &stages, &shuffles).map_err(|error| ReadError::new(line, error))
}

fn tasks<'a>(
    line: usize,
    words: impl Iterator<Item = &'a str>,
    wanted: usize,
    wan: &Wan,
    random: &mut Random,
) -> Result<Tasks, ReadError> {
    let mut tasks = Tasks::new();
    let mut given = 0;
    for word in words {
        let site = wan.site(word).map_err(|error| ReadError::new(line, error))?;
        *tasks.entry(site).or_default() += 1;
        given += 1;
    }
    if given == 0 {
        for _ in 0..wanted {
            *tasks.entry(SiteId(random.below(wan.sites().len() as u64) as u32)).or_default() += 1;
        }
    } else if given != wanted {
        return Err(ReadError::new(line, format!("{given} sites for {wanted} tasks")));
    }
    Ok(tasks)
}

/// One coflow per stage that receives anything.
fn coflows(
    id: JobId,
    arrival_s: f64,
    stages: &[(&str, Tasks)],
    shuffles: &[Shuffle],
) -> Result<Job, crate::coflow::CoflowError> {
    let mut index_of: BTreeMap<usize, usize> = BTreeMap::new();
    let mut job = Job { id, arrival_s, stages: Vec::new() };
    for (stage, (name, _)) in stages.iter().enumerate() {
        let into: Vec<&Shuffle> = shuffles.iter().filter(|shuffle| shuffle.to == stage).collect();
        if into.is_empty() {
            continue;
        }
        let parts = into.iter().flat_map(|shuffle| parts(&stages[shuffle.from].1, &stages[shuffle.to].1, shuffle.mb));
        let coflow_id = coflow_id(id, stage);
        let mut coflow = Coflow::from_groups(coflow_id, parts)?;
        if let Some(deadline_s) = into.iter().filter_map(|shuffle| shuffle.deadline_s).min_by(f64::total_cmp) {
            coflow = coflow.with_deadline(deadline_s)?;
        }
        index_of.insert(stage, job.stages.len());
        job.stages.push(Stage { coflow, name: (*name).to_owned(), after: Vec::new() });
    }
    for shuffle in shuffles {
        if let (Some(&before), Some(&after)) = (index_of.get(&shuffle.from), index_of.get(&shuffle.to)) {
            let known = &mut job.stages[after].after;
            if !known.contains(&before) {
                known.push(before);
            }
        }
    }
    Ok(job)
}

/// A shuffle between two stages as FlowGroups: proportional to the tasks at either end.
pub(crate) fn parts<'a>(from: &'a Tasks, to: &'a Tasks, mb: f64) -> impl Iterator<Item = FlowGroup> + 'a {
    let flows = |tasks: &Tasks| f64::from(tasks.values().sum::<u32>());
    let per_flow_gbit = mb.max(LEAST_MB) * GBIT_PER_MB / (flows(from) * flows(to));
    from.iter().flat_map(move |(&src, &senders)| {
        to.iter().map(move |(&dst, &receivers)| {
            let flows = senders.saturating_mul(receivers);
            FlowGroup { src, dst, volume_gbit: per_flow_gbit * f64::from(senders) * f64::from(receivers), flows }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Known;

    #[test]
    fn shuffles_become_coflows_per_destination_stage() {
        // M1 runs twice in HK and once in LA, M2 once in NY; R1 in LA and NY, R2 in HK.
        let text = "# q1\n4 7 2.5\nM1 3 HK HK LA\nM2 1 NY\nR1 2 LA NY\nR2 1 HK\n3\nM1 R1 600 9\nM2 R1 100 8\nR1 R2 0.1\n";
        let wan = Known::Swan.wan();
        let workload = parse(text, &wan, 0).unwrap();
        let job = &workload.jobs[0];
        assert_eq!((job.id, job.arrival_s, job.stages.len()), (JobId(7), 2.5, 2));
        let groups = |stage: usize| -> Vec<(&str, &str, f64, u32)> {
            let groups = job.stages[stage].coflow.groups.iter();
            let round = |gbit: f64| (gbit * 1e6).round() / 1e6;
            groups.map(|g| (wan.name(g.src), wan.name(g.dst), round(g.volume_gbit), g.flows)).collect()
        };
        // 600 MB in 6 flows of 0.8 Gbit: HK to LA 2, HK to NY 2, LA to LA 1 (local), LA to NY 1.
        // 100 MB in 2 flows of 0.4 Gbit: NY to LA 1, NY to NY 1 (local).
        assert_eq!(groups(0), [("HK", "LA", 1.6, 2), ("HK", "NY", 1.6, 2), ("LA", "NY", 0.8, 1), ("NY", "LA", 0.4, 1)]);
        // 0.1 MB counts as 1 MB: two flows of 4 Mbit.
        assert_eq!(groups(1), [("LA", "HK", 0.004, 1), ("NY", "HK", 0.004, 1)]);
        assert_eq!(job.stages[0].coflow.deadline_s, Some(8.0));
        assert_eq!((job.stages[0].after.as_slice(), job.stages[1].after.as_slice()), (&[][..], &[0][..]));
    }

    #[test]
    fn tasks_without_sites_are_placed_by_the_seed() {
        let text = "2 1 0\nM 50\nR 50\n1\nM R 10\n";
        let wan = Known::Swan.wan();
        assert_eq!(parse(text, &wan, 3), parse(text, &wan, 3));
        assert_ne!(parse(text, &wan, 3), parse(text, &wan, 4));
        assert_eq!(parse(text, &wan, 3).unwrap().jobs[0].stages[0].coflow.groups.len(), 20);
    }

    #[test]
    fn bad_traces_name_their_line() {
        let wan = Known::Swan.wan();
        for (text, line, part) in [
            ("2 1 0\nM 1 HK\nR 1 XX\n1\nM R 1", 3, "Unknown site"),
            ("2 1 0\nM 1 HK\nR 2 LA\n1\nM R 1", 3, "1 sites for 2 tasks"),
            ("2 1 0\nM 1 HK\nR 1 LA\n1\nM Q 1", 5, "unknown stage"),
            ("2 1 0\nM 1 HK\nM 1 LA\n1\nM Q 1", 3, "twice"),
            ("2 1 0\nM 1 HK\nR 1 LA\n1\nM R -1", 5, "-1"),
            ("2 1 0\nM 1 HK\nR 1 LA\n2\nM R 1", 0, "ends before a shuffle"),
            ("2 1 0\nM 1 HK\nR 1 LA\n2\nM R 1\nR M 1", 0, "waits for itself"),
            ("2 1 0\nM 1 HK\nR 1 LA\n1\nM R 1 0", 4, "deadline 0"),
            ("1 1 0\nM 0\n0", 2, "0 tasks"),
            ("99999 1 0", 1, "too large"),
            ("1 1 NaN\nM 1 HK\n0", 0, "arrival"),
        ] {
            let error = parse(text, &wan, 0).unwrap_err();
            let reason = error.reason.to_lowercase();
            assert!(error.line == line && reason.contains(&part.to_lowercase()), "{text:?} gave {error}");
        }
    }
}
