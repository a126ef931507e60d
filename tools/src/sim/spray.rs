//! `vrdma sim spray`: what many paths per connection are worth. A sweep over their number, and one path beside many in the
//! fabrics of [`fabric::many_paths`], healthy and not.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use fabric::many_paths::{self, Mishap, PATHS, POLICIES, Paths, Policy, Trial};
use fabric::scenario::SprayKeys;
use fabric::{Report, Sim};
use plotters::prelude::SeriesLabelPosition;
use serde::Serialize;

use super::number;
use crate::args::SimSprayOptions;
use crate::cores::on_all_cores;
use crate::draw::{Chart, Line, svg};
use crate::output::{print, print_json, progress_bar, table};

/// Pixels of each plot.
const SIZE: (u32, u32) = (860, 300);
/// The part of the rate before that a fabric has to get back when one of sixteen uplinks dies.
const RECOVERED: f64 = 0.92;

/// What `--json` prints.
#[derive(Serialize)]
struct Answer {
    seed: u64,
    /// What connections do by default.
    policy: String,
    paths: u16,
    /// The least number of paths that is enough under that policy.
    knee: Option<u16>,
    rows: Vec<Row>,
    sweep: Vec<Point>,
}

/// A comparison.
#[derive(Clone, Debug, Serialize)]
struct Row {
    /// In which fabric.
    id: &'static str,
    /// What is compared.
    metric: &'static str,
    /// With one path per connection; of [`Mishap`]s, without it.
    one: f64,
    /// With many.
    many: f64,
    /// What is judged: a ratio, a part in per cent, or a time.
    value: Option<f64>,
    /// What it has to be.
    bar: f64,
    meets_bar: bool,
}

/// A point of the sweep.
#[derive(Clone, Copy, Debug, Serialize)]
struct Point {
    #[serde(serialize_with = "by_name")]
    policy: Policy,
    paths: u16,
    p50_us: f64,
    max_us: f64,
    deepest_bytes: u32,
}

fn by_name<S: serde::Serializer>(policy: &Policy, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(policy.name())
}

/// Runs everything and prints what came out.
pub fn carry_out(options: &SimSprayOptions, as_json: bool) -> Result<()> {
    let seed = options.seed;
    if !as_json {
        print(format!("seed {seed}\n"))?;
    }
    let both = |trial: fn(Paths, u64) -> Trial| [Paths::One, Paths::Many].map(|paths| trial(paths, seed));
    let crossing = |mishap| many_paths::crossing(Paths::Many, mishap, seed);
    let contests = [both(many_paths::large_permutation), both(many_paths::ring)];
    let mut trials = contests.concat();
    trials.extend(trials.clone().into_iter().map(many_paths::deep));
    trials.extend([Mishap::None, Mishap::DeadUplink, Mishap::Loss].map(crossing));
    let points: Vec<(Policy, u16)> = POLICIES.iter().flat_map(|&policy| PATHS.map(|paths| (policy, paths))).collect();
    let compared = trials.len();
    trials.extend(points.iter().map(|&(policy, paths)| many_paths::sweep(policy, paths, seed)));
    let bar = progress_bar(trials.len() as u64, "runs");
    let reports = on_all_cores(&trials, |trial| {
        let report = run(trial);
        bar.inc(1);
        report
    })?;
    bar.finish_and_clear();
    let (compared, swept) = reports.split_at(compared);
    let sweep: Vec<Point> =
        points.into_iter().zip(swept).map(|((policy, paths), report)| point(policy, paths, report)).collect();
    if let Some(path) = &options.plot {
        draw(path, &sweep).with_context(|| format!("cannot draw {}", path.display()))?;
    }
    let SprayKeys { policy, paths, .. } = SprayKeys::default();
    let of_default: Vec<(u16, f64)> =
        sweep.iter().filter(|point| point.policy.name() == policy).map(|point| (point.paths, point.max_us)).collect();
    let knee = many_paths::knee(&of_default);
    let answer = Answer { seed, policy, paths, knee, rows: rows(compared), sweep };
    if as_json { print_json(&answer) } else { print(text(&answer)) }
}

fn run(trial: &Trial) -> Result<Report> {
    let mut sim = Sim::new(&trial.scenario, trial.trace.as_deref())?;
    sim.run();
    let report = sim.report();
    ensure!(report.violation_count == 0, "violations of what must hold; the first: {}", report.violations[0]);
    let failed = report.failed + report.cancelled;
    ensure!(failed == 0, "{failed} transfers failed");
    Ok(report)
}

fn deepest(report: &Report) -> u32 {
    let of_switches = report.links.iter().filter(|group| group.from != fabric::topology::Tier::Host);
    of_switches.map(|group| group.deepest_bytes).max().unwrap_or(0)
}

fn point(policy: Policy, paths: u16, report: &Report) -> Point {
    let times = &report.completion_us;
    Point { policy, paths, p50_us: times.p50, max_us: times.max, deepest_bytes: deepest(report) }
}

/// The rate at which a flow gets its bytes, over all flows: proportional to one over the mean completion time.
fn goodput(report: &Report) -> f64 {
    1.0 / report.completion_us.mean
}

fn rows(reports: &[Report]) -> Vec<Row> {
    let [perm_one, perm_many, ring_one, ring_many, deep @ .., healthy, dead, lossy] = reports else {
        unreachable!("there are more trials")
    };
    let [deep_perm_one, deep_perm_many, deep_ring_one, deep_ring_many] = deep else { unreachable!("as many as before") };
    let row =
        |id, metric, (one, many), value: Option<f64>, bar: f64, meets_bar| Row { id, metric, one, many, value, bar, meets_bar };
    let at_least = |id, metric, pair, value: f64, bar: f64| row(id, metric, pair, Some(value), bar, value >= bar);
    let faster = |id, metric, one: f64, many: f64, bar| at_least(id, metric, (one, many), one / many, bar);
    let shallower = |id, one: &Report, many: &Report| {
        let (one, many) = (f64::from(deepest(one)), f64::from(deepest(many)));
        at_least(id, "deepest queue, bytes; % less", (one, many), 100.0 * (1.0 - many / one), 90.0)
    };
    let mut rows = Vec::new();
    for (id, one, many) in [("permutation", perm_one, perm_many), ("ring all-reduce", ring_one, ring_many)] {
        let (one, many) = (&one.completion_us, &many.completion_us);
        rows.push(faster(id, "median flow, µs; times faster", one.p50, many.p50, 1.9));
        rows.push(faster(id, "slowest flow, µs; times faster", one.max, many.max, 4.0));
    }
    rows.push(faster("ring all-reduce", "all of it, µs; times faster", ring_one.all_done_us, ring_many.all_done_us, 1.9));
    rows.push(shallower("permutation", deep_perm_one, deep_perm_many));
    rows.push(shallower("ring all-reduce", deep_ring_one, deep_ring_many));
    let recovery = many_paths::recovery(dead, RECOVERED);
    let pair = (healthy.completion_us.mean, dead.completion_us.mean);
    let rate = recovery.map(|recovery| 100.0 * recovery.goodput);
    let within = recovery.map(|recovery| recovery.after_us);
    let is_met = rate.is_some_and(|rate| rate >= 100.0 * RECOVERED);
    rows.push(row("1 of 16 uplinks dead", "rate afterwards, % of before", pair, rate, 100.0 * RECOVERED, is_met));
    rows.push(row(
        "1 of 16 uplinks dead",
        "recovered within, µs",
        pair,
        within,
        100.0,
        within.is_some_and(|after| after <= 100.0),
    ));
    let (without, with) = (healthy.completion_us.mean, lossy.completion_us.mean);
    rows.push(at_least("1 % loss", "mean flow, µs; rate, %", (without, with), 100.0 * goodput(lossy) / goodput(healthy), 90.0));
    rows
}

fn text(answer: &Answer) -> String {
    let lines = answer.rows.iter().map(|row| {
        [
            row.id.to_owned(),
            row.metric.to_owned(),
            number(row.one),
            number(row.many),
            row.value.map_or_else(|| "never".to_owned(), number),
            number(row.bar),
            if row.meets_bar { "yes" } else { "NO" }.to_owned(),
        ]
    });
    let header = ["FABRIC", "what", "one path / before", "many / after", "value", "bar", "met"];
    let mut text = table(header, lines, &[2, 3, 4, 5]);
    text += "\nIn a ring all wait for the slowest, whose links others then have for themselves: the median of its transfers takes what it would\n\
             take alone, whatever the paths. A dead link of 16 is 6.3 % of what there was.\n";
    let lines = PATHS.map(|paths| {
        let mut cells = vec![paths.to_string()];
        cells.extend(POLICIES.iter().map(|&policy| {
            let at = answer.sweep.iter().find(|point| (point.policy, point.paths) == (policy, paths));
            at.map_or_else(String::new, |point| format!("{:.0} / {:.0}", point.p50_us, point.max_us))
        }));
        <[String; 5]>::try_from(cells).expect("a number and four policies")
    });
    let header: Vec<&str> = std::iter::once("PATHS").chain(POLICIES.map(Policy::name)).collect();
    let header = <[&str; 5]>::try_from(header).expect("as above");
    text += "\nA permutation of 2 MB among 128 hosts: median and slowest flow, µs\n\n";
    text += &table(header, lines, &[0, 1, 2, 3, 4]);
    let knee = answer.knee.map_or_else(|| "none".to_owned(), |paths| paths.to_string());
    text += &format!(
        "\nThe least number of paths whose slowest flow is within 3 % of the best, by {}: {knee}. By default there are {}.\n",
        answer.policy, answer.paths
    );
    text
}

/// A plot of the median and one of the slowest flow, one below the other.
fn draw(path: &Path, sweep: &[Point]) -> Result<()> {
    type Figure = fn(&Point) -> f64;
    let panels: [(&str, Figure); 2] = [
        ("Median flow of a permutation among 128 hosts over the number of paths (simulated)", |point| point.p50_us),
        ("Slowest flow of a permutation among 128 hosts over the number of paths (simulated)", |point| point.max_us),
    ];
    let svg = svg((SIZE.0, SIZE.1 * 2), |area| {
        let areas = area.split_evenly((2, 1));
        areas.iter().zip(panels).try_for_each(|(area, (title, figure))| {
            let line = |policy: Policy| {
                let points = sweep.iter().filter(|point| point.policy == policy);
                Line { name: policy.name().to_owned(), points: points.map(|p| (f64::from(p.paths), figure(p))).collect() }
            };
            let chart = Chart { title, x: "paths", y: "µs", log_x: true, legend: SeriesLabelPosition::UpperRight };
            chart.draw(area, &POLICIES.map(line))
        })
    })?;
    std::fs::write(path, svg)?;
    Ok(())
}
