//! The report of a simulation as one HTML file with plots: completion times, use of links, depth of queues.

use anyhow::Result;
use fabric::Report;
use plotters::prelude::SeriesLabelPosition;

use super::{group_name, tables};
use crate::draw::{Chart, Line, svg};

const SIZE: (u32, u32) = (860, 360);

/// The whole page.
pub fn html(title: &str, report: &Report) -> Result<String> {
    let times = &report.completion_us;
    let completion = Line { name: "transfers".to_owned(), points: times.points.clone() };
    let bits_per_us = report.rate_gbps * 1000.0;
    let over_time = |value: &dyn Fn(&fabric::Sample, f64, u32) -> f64| -> Vec<Line> {
        let line = |group: &fabric::Group| {
            let befores = std::iter::once(0.0).chain(group.samples.iter().map(|sample| sample.at_us));
            let points = group.samples.iter().zip(befores);
            let points = points.filter(|(sample, before)| sample.at_us > *before);
            let points = points.map(|(sample, before)| (sample.at_us, value(sample, sample.at_us - before, group.wires)));
            Line { name: group_name(group), points: points.collect() }
        };
        report.links.iter().map(line).collect()
    };
    let used = over_time(&|sample, us, wires| 100.0 * sample.bytes as f64 * 8.0 / (us * bits_per_us * f64::from(wires)));
    let deepest = over_time(&|sample, _, _| f64::from(sample.queue_max_bytes));
    let plots = [
        plot("Transfers completed within a time", "µs", "part of all", &[completion])?,
        plot("Use of links", "µs", "% of their rate", &used)?,
        plot("Longest queue", "µs", "bytes", &deepest)?,
    ];
    let title = escape(title);
    let tables = escape(&tables(report));
    let plots = plots.concat();
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
         <style>body {{ font-family: sans-serif; margin: 2em; }} svg {{ display: block; margin: 1em 0; }}</style></head>\n\
         <body><h1>{title}</h1>\n<pre>{tables}</pre>\n{plots}</body></html>\n"
    ))
}

/// A plot as SVG. Without points it is a sentence instead.
fn plot(title: &str, x: &str, y: &str, lines: &[Line]) -> Result<String> {
    if lines.iter().all(|line| line.points.is_empty()) {
        return Ok(format!("<p>{}: nothing was sampled (report.sample_us).</p>\n", escape(title)));
    }
    let chart = Chart { title, x, y, log_x: false, legend: SeriesLabelPosition::UpperRight };
    svg(SIZE, |area| chart.draw(area, lines))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(sample_us: f64) -> Report {
        let text = format!(
            "[topology]\nleaves = 2\nspines = 2\nhosts_per_leaf = 2\n[workload]\nbytes = 100000\n[report]\nsample_us = {sample_us}"
        );
        let mut sim = fabric::Sim::new(&fabric::Scenario::parse(&text).unwrap(), None).unwrap();
        sim.run();
        sim.report()
    }

    #[test]
    fn a_page_has_its_plots() {
        let page = html("a<b>.toml", &report(1.0)).unwrap();
        assert!(page.contains("<h1>a&lt;b&gt;.toml</h1>"));
        assert_eq!(page.matches("<svg").count(), 3);
        for part in ["host to leaf", "spine to leaf", "Longest queue", "DONE"] {
            assert!(page.contains(part), "{part}");
        }
    }

    #[test]
    fn what_was_not_sampled_is_said() {
        let page = html("x", &report(0.0)).unwrap();
        assert_eq!((page.matches("<svg").count(), page.matches("nothing was sampled").count()), (1, 2));
    }
}
