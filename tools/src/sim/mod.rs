//! `vrdma sim`: whole fabrics in simulated time. Files are read and written here; what is in them is the business of `fabric`.

mod isolation;
mod pcie;
mod plot;
mod reference;
mod spray;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fabric::{Group, Report, Scenario, Sim};
use indicatif::ProgressBar;

use crate::args::{SimCommand, SimRunOptions};
use crate::cores::on_all_cores;
use crate::input::read;
use crate::output::{print, print_json, progress_bar, table};

/// Bytes of a scenario and of a trace, at most.
const MAX_SCENARIO: u64 = 1 << 20;
const MAX_TRACE: u64 = 256 << 20;
/// Events between two looks at the progress.
const EVENTS_PER_LOOK: u64 = 200_000;

/// Carries a command out.
pub fn carry_out(command: &SimCommand, as_json: bool) -> Result<()> {
    match command {
        SimCommand::Run(options) => run(options, as_json),
        SimCommand::Isolation(options) => isolation::carry_out(options, as_json),
        SimCommand::Pcie(options) => pcie::carry_out(options, as_json),
        SimCommand::Reference { seed } => reference::carry_out(*seed, as_json),
        SimCommand::Spray(options) => spray::carry_out(options, as_json),
    }
}

fn run(options: &SimRunOptions, as_json: bool) -> Result<()> {
    let file = options.file.display().to_string();
    let text = read(&options.file, MAX_SCENARIO)?;
    let mut scenario = Scenario::parse(&text).with_context(|| file.clone())?;
    scenario.seed = options.seed.unwrap_or(scenario.seed);
    let first = scenario.seed;
    if as_json {
        eprintln!("seed {first}");
    } else {
        print(format!("seed {first}\n"))?;
    }
    let trace = match &scenario.workload.file {
        None => None,
        Some(name) => {
            // As people expect: beside the file that names it.
            let path = options.file.parent().map_or_else(|| PathBuf::from(name), |dir| dir.join(name));
            Some(read(&path, MAX_TRACE).with_context(|| format!("{file}: workload.file"))?)
        }
    };
    let runs = options.runs.unwrap_or(1);
    let scenarios: Vec<Scenario> =
        (0..u64::from(runs)).map(|n| Scenario { seed: first.wrapping_add(n), ..scenario.clone() }).collect();
    let reports = run_all(&scenarios, trace.as_deref()).with_context(|| file.clone())?;
    if let Some(path) = &options.report {
        let title = format!("{file}, seed {first}");
        let html = plot::html(&title, &reports[0]).context("cannot draw the report")?;
        std::fs::write(path, html).with_context(|| format!("cannot write {}", path.display()))?;
    }
    match (as_json, options.runs) {
        (true, None) => print_json(&reports[0])?,
        (true, Some(_)) => print_json(&reports)?,
        (false, None) => print(tables(&reports[0]))?,
        (false, Some(_)) => print(comparison(&reports))?,
    }
    let wrong: Vec<&Report> = reports.iter().filter(|report| report.violation_count > 0).collect();
    if let Some(report) = wrong.first() {
        bail!(
            "seed {}: {} violations of what must hold; the first: {}",
            report.seed,
            report.violation_count,
            report.violations[0]
        );
    }
    Ok(())
}

/// Runs independent simulations, one per processor core at a time; reports in the order of the scenarios.
fn run_all(scenarios: &[Scenario], trace: Option<&str>) -> Result<Vec<Report>> {
    let bar = progress_bar(0, "transfers");
    bar.enable_steady_tick(Duration::from_millis(200));
    let reports = on_all_cores(scenarios, |scenario| run_one(scenario, trace, &bar));
    bar.finish_and_clear();
    reports
}

/// Runs one simulation and shows how far it is.
fn run_one(scenario: &Scenario, trace: Option<&str>, bar: &ProgressBar) -> Result<Report> {
    let mut sim = Sim::new(scenario, trace)?;
    let mut shown = 0;
    bar.inc_length(sim.ended().1 as u64);
    loop {
        let goes_on = sim.step(EVENTS_PER_LOOK);
        let ended = sim.ended().0;
        bar.inc((ended - shown) as u64);
        bar.set_message(format!("{:.0} µs simulated", sim.now().micros()));
        shown = ended;
        if !goes_on {
            return Ok(sim.report());
        }
    }
}

/// Shown on a terminal only.
fn number(value: f64) -> String {
    format!("{value:.1}")
}

/// One run, as tables for people.
fn tables(report: &Report) -> String {
    let Report { hosts, switches, events, simulated_us, event_hash, .. } = report;
    let mut text =
        format!("{hosts} hosts, {switches} switches; {events} events in {simulated_us:.1} µs, hash {event_hash}\n\n");
    let times = &report.completion_us;
    let row = [
        report.succeeded.to_string(),
        report.failed.to_string(),
        report.cancelled.to_string(),
        number(times.min),
        number(times.p50),
        number(times.p99),
        number(times.max),
        number(times.mean),
        number(report.all_done_us),
    ];
    let header = ["DONE", "FAILED", "CANCELLED", "min[usec]", "p50[usec]", "p99[usec]", "max[usec]", "mean[usec]", "all[usec]"];
    text += &table(header, [row], &[0, 1, 2, 3, 4, 5, 6, 7, 8]);
    let packets = &report.packets;
    let counts = [
        ("sent", packets.sent),
        ("received", packets.received),
        ("dropped, queue full", packets.dropped_full),
        ("dropped, lost by chance", packets.dropped_loss),
        ("dropped, link down", packets.dropped_down),
        ("dropped, no route", packets.dropped_no_route),
        ("trimmed", packets.trimmed),
        ("received with a mark", packets.marked),
        ("corrupted", packets.corrupted),
        ("late by chance", packets.delayed),
        ("ports paused", packets.pauses),
        ("went back to send again", report.cores.went_back),
        ("ACK timeouts", report.cores.ack_timeouts),
    ];
    let rows = counts.into_iter().filter(|(_, count)| *count > 0);
    text += "\n";
    text += &table(["PACKETS", ""], rows.map(|(name, count)| [name.to_owned(), count.to_string()]), &[1]);
    text += "\n";
    let rows = report.links.iter().map(|group| {
        [
            group_name(group),
            group.wires.to_string(),
            format!("{:.1}", 100.0 * part_used(group, report.all_done_us, report.rate_gbps)),
            group.deepest_bytes.to_string(),
        ]
    });
    text += &table(["LINKS", "wires", "used[%]", "deepest queue[bytes]"], rows, &[1, 2, 3]);
    text
}

/// Several runs, one line each.
fn comparison(reports: &[Report]) -> String {
    let rows = reports.iter().map(|report| {
        let times = &report.completion_us;
        [
            report.seed.to_string(),
            report.succeeded.to_string(),
            (report.failed + report.cancelled).to_string(),
            number(times.p50),
            number(times.p99),
            number(times.max),
            number(report.all_done_us),
            report.event_hash.clone(),
        ]
    });
    let header = ["SEED", "DONE", "NOT DONE", "p50[usec]", "p99[usec]", "max[usec]", "all[usec]", "hash"];
    table(header, rows, &[0, 1, 2, 3, 4, 5, 6])
}

/// Wires of a group: `leaf to spine`.
fn group_name(group: &Group) -> String {
    format!("{} to {}", group.from.name(), group.to.name())
}

/// Which part of what a group of wires could have carried it has carried.
fn part_used(group: &Group, us: f64, gbps: f64) -> f64 {
    if us == 0.0 { 0.0 } else { group.bytes as f64 * 8.0 / (us * 1000.0 * gbps * f64::from(group.wires)) }
}
