//! `vrdma sim isolation`: tenants that share a host, without isolation, under Justitia, and under ours, in the set-ups of Justitia's
//! paper. All of it is modelled; its published figures were measured on cards, and stand beside.

mod husky;
mod search;

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use fabric::sharing::experiments::Experiment;
use fabric::sharing::paper;
use fabric::sharing::table::{Row, rows};
use plotters::prelude::*;
use serde::Serialize;

use crate::args::SimIsolationOptions;
use crate::cores::on_all_cores;
use crate::draw::{Area, Drawn, svg};
use crate::output::{print, print_json, progress_bar, table};

/// What `--json` prints.
#[derive(Serialize)]
struct Answer {
    rows: Vec<Row>,
}

/// Runs what was asked for and prints what came out.
pub fn carry_out(options: &SimIsolationOptions, as_json: bool) -> Result<()> {
    match options.search {
        Some(cases) => search::carry_out(cases, options.seed, as_json),
        None if options.husky => husky::carry_out(options.without, options.plot.as_deref(), as_json),
        None => experiments(options, as_json),
    }
}

fn experiments(options: &SimIsolationOptions, as_json: bool) -> Result<()> {
    let chosen: Vec<Experiment> = paper::all()
        .into_iter()
        .filter(|experiment| options.only.is_empty() || options.only.iter().any(|id| id.eq_ignore_ascii_case(experiment.id)))
        .collect();
    if chosen.is_empty() {
        let mut ids: Vec<&str> = paper::all().iter().map(|experiment| experiment.id).collect();
        ids.dedup();
        return Err(anyhow!("there is no such experiment: there are {}", ids.join(", ")));
    }
    let bar = progress_bar(chosen.len() as u64, "experiments");
    let found = on_all_cores(&chosen, |experiment| {
        let found = rows(experiment, &experiment.run());
        bar.inc(1);
        Ok(found)
    })?;
    bar.finish_and_clear();
    let rows: Vec<Row> = found.into_iter().flatten().collect();
    if let Some(path) = &options.plot {
        draw(path, &rows).with_context(|| format!("cannot draw {}", path.display()))?;
    }
    if as_json { print_json(&Answer { rows }) } else { print(text(&rows)) }
}

fn text(rows: &[Row]) -> String {
    let optional = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
    let lines = rows.iter().map(|row| {
        [
            row.id.to_owned(),
            row.what.clone(),
            row.metric.to_owned(),
            optional(row.alone),
            number(row.off),
            optional(row.published_off),
            number(row.justitia),
            optional(row.published_justitia),
            number(row.ours),
            row.bar.clone(),
            if row.meets_bar { "yes" } else { "NO" }.to_owned(),
        ]
    });
    let header = ["ID", "TENANTS", "METRIC", "alone", "off", "(paper)", "Justitia", "(paper)", "ours", "bar", "met"];
    let missed = rows.iter().filter(|row| !row.meets_bar).count();
    format!(
        "{}\nModelled: hosts with links of 56 Gb/s on one switch (E17, E19, E20: 10 Gb/s, E18: 40), the cores the daemon's own. L is after\n\
         latency, T after a message rate, B after bandwidth; `alone` is in µs, million messages per second or Gb/s. What the paper\n\
         measured on a card is in brackets; the modelled one without isolation does one message after the other, which is worse\n\
         than a card is. {missed} of {} lines miss their bar.\n",
        table(header, lines, &[3, 4, 5, 6, 7, 8]),
        rows.len()
    )
}

/// Three digits or so.
fn number(value: f64) -> String {
    match value.abs() {
        big if big >= 100.0 => format!("{value:.0}"),
        some if some >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Three plots, one below the other: latency, bandwidth, and what isolation gains, under each policy.
fn draw(path: &Path, rows: &[Row]) -> Result<()> {
    let latency: Vec<&Row> = rows.iter().filter(|row| row.metric == "L p99, times alone").collect();
    let bandwidth: Vec<&Row> = rows.iter().filter(|row| row.metric == "B, share of alone").collect();
    let better: Vec<&Row> = rows.iter().filter(|row| row.metric.ends_with("times better")).collect();
    let svg = svg((1000, 1140), |area| {
        let (above, rest) = area.split_vertically(380);
        let (below, last) = rest.split_vertically(380);
        let (upper, lower) = (SeriesLabelPosition::UpperMiddle, SeriesLabelPosition::LowerMiddle);
        let title = "How many times better than without isolation: latency, or messages per second (modelled)";
        panel(&last, SeriesLabelPosition::UpperLeft, title, &better, 0.5..30_000.0)?;
        panel(&above, upper, "Latency of small messages, 99th percentile, times alone (modelled)", &latency, 0.8..30_000.0)?;
        panel(&below, lower, "Bandwidth that large messages keep, part of alone (modelled)", &bandwidth, 0.2..1.3)
    })?;
    std::fs::write(path, svg)?;
    Ok(())
}

fn panel(area: &Area<'_>, place: SeriesLabelPosition, title: &str, rows: &[&Row], range: std::ops::Range<f64>) -> Drawn {
    let last = rows.len().max(1) as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(8)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(-0.5..last - 0.5, range.log_scale())?;
    let name = |x: &f64| {
        let at = x.round();
        let is_whole = (x - at).abs() < 1e-9 && at >= 0.0;
        rows.get(at as usize).filter(|_| is_whole).map_or_else(String::new, |row| row.id.to_owned())
    };
    let mut mesh = chart.configure_mesh();
    mesh.x_labels(rows.len() + 1).x_label_formatter(&name).x_desc("experiment").light_line_style(WHITE);
    mesh.draw()?;
    type Pick = fn(&Row) -> f64;
    let series: [(&str, RGBColor, Pick); 3] = [
        ("without isolation", RGBColor(200, 60, 50), |row| row.off),
        ("Justitia", RGBColor(230, 160, 40), |row| row.justitia),
        ("ours", RGBColor(30, 110, 180), |row| row.ours),
    ];
    for (label, color, pick) in series {
        let points = rows.iter().enumerate().map(|(n, row)| Circle::new((n as f64, pick(row)), 5, color.filled()));
        let drawn = chart.draw_series(points)?;
        drawn.label(label).legend(move |(x, y)| Circle::new((x + 8, y), 5, color.filled()));
    }
    chart.configure_series_labels().position(place).background_style(WHITE.mix(0.8)).border_style(BLACK).draw()
}
