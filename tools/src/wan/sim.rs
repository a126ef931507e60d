//! `vrdma wan sim`: jobs on a network, generated or from files, under chosen policies.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use terra::compare::{DEADLINE_PART, Figures, LEAST_DEADLINE_S, Make};
use terra::generate::{self, Kind};
use terra::read::{MAX_INPUT_BYTES, fb2010, jobs};
use terra::report::Report;
use terra::sim::CapacityChange;
use terra::topology::Known;
use terra::workload::Workload;
use terra::{SiteId, Wan};

use super::cdf::{self, Panel};
use super::{both_ways, coflow_bar, network, simulate};
use crate::args::WanSimOptions;
use crate::cores::on_all_cores;
use crate::input::read;
use crate::output::{print, print_json, table};

/// Jobs that are made if nobody says how many.
const JOBS: u64 = 100;

/// What `--json` prints.
#[derive(Serialize)]
struct Answer {
    topology: String,
    workload: String,
    seed: u64,
    /// By what the volumes were multiplied.
    load: f64,
    policies: Vec<Figures>,
}

/// Runs it and prints what came out.
pub fn carry_out(options: &WanSimOptions, as_json: bool) -> Result<()> {
    let wan = network(&options.topology)?;
    let (workload, load) = workload(options, &wan)?;
    let changes = changes(options, &wan)?;
    let bar = coflow_bar(workload.coflows().count() * options.policy.len());
    let run = |(_, make): &(&'static str, Make)| simulate(&wan, &workload, &changes, make().as_mut(), &bar);
    let reports = on_all_cores(&options.policy, run);
    bar.finish_and_clear();
    let reports = reports?;
    if let Some(path) = &options.plot {
        let title = format!("{} on {}", options.workload, options.topology);
        cdf::draw(path, &[Panel { title, reports: reports.iter().collect() }])?;
    }
    let policies = reports.iter().map(Figures::from).collect();
    let (topology, workload) = (options.topology.clone(), options.workload.clone());
    let answer = Answer { topology, workload, seed: options.seed, load, policies };
    if as_json { print_json(&answer) } else { print(answer.text(&reports)) }
}

/// The jobs, and by what their volumes were multiplied.
fn workload(options: &WanSimOptions, wan: &Wan) -> Result<(Workload, f64)> {
    let (name, seed) = (&options.workload, options.seed);
    let kind = Kind::from_name(name);
    let workload = match kind {
        Some(kind) => generate::workload(kind, wan, options.jobs.unwrap_or(JOBS), seed),
        None => {
            let none =
                || format!("{name} is neither a workload that is made ({}) nor a file", Kind::ALL.map(Kind::name).join(", "));
            let text = read(Path::new(name), MAX_INPUT_BYTES as u64).with_context(none)?;
            let sites: Vec<SiteId> = (0..wan.sites().len() as u32).map(SiteId).collect();
            let trace = if options.fb2010 { fb2010::parse(&text, &sites) } else { jobs::parse(&text, wan, seed) };
            let trace = trace.map_err(|error| anyhow!("{name}: {error}"))?;
            let most = options.jobs.map_or(usize::MAX, |jobs| usize::try_from(jobs).unwrap_or(usize::MAX));
            trace.first_jobs(most)
        }
    };
    let published = kind.zip(Known::from_name(&options.topology)).map_or(1.0, |(kind, network)| kind.load(network));
    let load = options.load.unwrap_or(published);
    let workload = workload.scaled(load);
    Ok((
        match options.slack {
            Some(slack) => generate::with_deadlines(workload, wan, DEADLINE_PART, slack, LEAST_DEADLINE_S, seed),
            None => workload,
        },
        load,
    ))
}

/// What happens to links.
fn changes(options: &WanSimOptions, wan: &Wan) -> Result<Vec<CapacityChange>> {
    let mut changes = Vec::new();
    for cut in &options.cut {
        for link in
            both_ways(wan, &cut.a, &cut.b).with_context(|| format!("no link to cut between {:?} and {:?}", cut.a, cut.b))?
        {
            let capacity_gbps = wan.links()[link.index()].capacity_gbps;
            changes.push(CapacityChange { at_s: cut.from_s, link, capacity_gbps: 0.0 });
            changes.push(CapacityChange { at_s: cut.to_s, link, capacity_gbps });
        }
    }
    Ok(changes)
}

impl Answer {
    fn text(&self, reports: &[Report]) -> String {
        let seconds = |value: f64| format!("{value:.2}");
        let lines = self.policies.iter().zip(reports).map(|(figures, report)| {
            [
                figures.policy.clone(),
                figures.coflows.to_string(),
                seconds(figures.mean_cct_s),
                seconds(figures.p50_cct_s),
                seconds(figures.p95_cct_s),
                seconds(figures.max_cct_s),
                seconds(figures.mean_jct_s),
                format!("{}/{}", figures.deadlines_met, figures.deadlines),
                report.refused.len().to_string(),
                figures.decisions.to_string(),
            ]
        });
        let header = [
            "ALGORITHM",
            "COFLOWS",
            "mean[s]",
            "p50[s]",
            "p95[s]",
            "max[s]",
            "jobs, mean[s]",
            "deadlines met",
            "refused",
            "decisions",
        ];
        let Answer { topology, workload, seed, load, .. } = self;
        format!(
            "{workload} on {topology}, volumes times {load}, seed {seed}\n\n{}",
            table(header, lines, &[1, 2, 3, 4, 5, 6, 7, 8, 9])
        )
    }
}
