//! `vrdma wan compare`: all policies on generated workloads, and which bars ours misses.

use anyhow::Result;
use serde::Serialize;
use terra::compare::{DEADLINE_BAR, DEADLINE_PART, GAIN_BAR, NOT_WORSE_THAN, POLICIES, Plan, Row, missed_by_all};
use terra::generate::Kind;
use terra::report::Report;
use terra::topology::Known;

use super::cdf::{self, Panel};
use super::{coflow_bar, simulate};
use crate::args::WanCompareOptions;
use crate::cores::on_all_cores;
use crate::output::{print, print_json, table};

/// What `--json` prints.
#[derive(Serialize)]
struct Answer {
    jobs: u64,
    seed: u64,
    slack: f64,
    rows: Vec<Row>,
    /// The bar over all rows, if it is missed.
    missed: Option<String>,
}

/// Runs all and prints what came out.
pub fn carry_out(options: &WanCompareOptions, as_json: bool) -> Result<()> {
    let &WanCompareOptions { jobs, seed, slack, .. } = options;
    let networks = if options.topology.is_empty() { Known::PUBLISHED.to_vec() } else { options.topology.clone() };
    let kinds = if options.workload.is_empty() { Kind::ALL.to_vec() } else { options.workload.clone() };
    let pairs: Vec<(Known, Kind)> =
        networks.iter().flat_map(|network| kinds.iter().map(move |kind| (*network, *kind))).collect();
    let runs = run_all(&pairs, options)?;
    let rows: Vec<Row> = pairs.iter().zip(&runs).map(|((network, kind), runs)| Row::new(*network, *kind, runs)).collect();
    if let Some(path) = &options.plot {
        cdf::draw(path, &rows.iter().zip(&runs).map(panel).collect::<Vec<_>>())?;
    }
    let missed = missed_by_all(&rows);
    let answer = Answer { jobs, seed, slack, rows, missed };
    if as_json { print_json(&answer) } else { print(answer.text()) }
}

fn panel<'a>((row, runs): (&Row, &'a Vec<(Report, Report)>)) -> Panel<'a> {
    let title = format!("{} on {}", row.workload, row.topology);
    Panel { title, reports: runs.iter().map(|(plain, _)| plain).collect() }
}

/// Of each pair and each policy the run without deadlines and the one with.
fn run_all(pairs: &[(Known, Kind)], options: &WanCompareOptions) -> Result<Vec<Vec<(Report, Report)>>> {
    let &WanCompareOptions { jobs, seed, slack, .. } = options;
    let workloads = on_all_cores(pairs, |&(network, kind)| {
        Ok([None, Some(slack)].map(|slack| Plan { network, kind, jobs, seed, slack }.workload()))
    })?;
    let coflows: usize = workloads.iter().flatten().map(|workload| workload.coflows().count()).sum();
    let bar = coflow_bar(coflows * POLICIES.len());
    let pieces: Vec<(usize, usize)> =
        (0..pairs.len()).flat_map(|pair| (0..POLICIES.len()).map(move |policy| (pair, policy))).collect();
    let reports = on_all_cores(&pieces, |&(pair, policy)| {
        let wan = pairs[pair].0.wan();
        let run = |workload| simulate(&wan, workload, &[], POLICIES[policy].1().as_mut(), &bar);
        let [plain, promised] = &workloads[pair];
        Ok((run(plain)?, run(promised)?))
    })?;
    bar.finish_and_clear();
    let mut reports = reports.into_iter();
    Ok(pairs.iter().map(|_| reports.by_ref().take(POLICIES.len()).collect()).collect())
}

impl Answer {
    fn text(&self) -> String {
        let lines = self.rows.iter().flat_map(|row| {
            let base = &row.algorithms[0];
            row.algorithms.iter().map(move |figures| {
                [
                    row.topology.to_owned(),
                    row.workload.to_owned(),
                    figures.policy.clone(),
                    format!("{:.2}", figures.mean_cct_s),
                    format!("{:.2}", figures.p95_cct_s),
                    format!("{:.2}", base.mean_cct_s / figures.mean_cct_s),
                    format!("{}/{}", figures.deadlines_met, figures.deadlines),
                ]
            })
        });
        let header = ["TOPOLOGY", "WORKLOAD", "ALGORITHM", "mean CCT[s]", "p95 CCT[s]", "gain", "deadlines met"];
        let Answer { jobs, seed, slack, .. } = self;
        let mut text = format!(
            "{}\n{jobs} jobs of each workload, seed {seed}, simulated. CCT: completion time of coflows without deadlines; gain: how many\n\
             times less of it than per-flow fairness. Deadlines, {slack} times the least completion time for {} % of the coflows, are counted\n\
             in runs of their own.\n\n\
             Bars: gain at least {} everywhere and {} somewhere; never slower on average than {};\n\
             {DEADLINE_BAR} times the deadlines of per-flow, or all there are; no promised deadline missed.\n",
            table(header, lines, &[3, 4, 5, 6]),
            DEADLINE_PART * 100.0,
            GAIN_BAR.0,
            GAIN_BAR.1,
            NOT_WORSE_THAN.join(", "),
        );
        let of_row = |row: &Row| -> Vec<String> {
            row.missed.iter().map(|missed| format!("MISSED {} {}: {missed}\n", row.topology, row.workload)).collect()
        };
        let missed: Vec<String> = self
            .rows
            .iter()
            .flat_map(of_row)
            .chain(self.missed.iter().map(|missed| format!("MISSED all: {missed}\n")))
            .collect();
        text += &if missed.is_empty() { "No bar is missed.\n".to_owned() } else { missed.concat() };
        text
    }
}
