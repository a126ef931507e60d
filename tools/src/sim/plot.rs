//! The report of a simulation as one HTML file with plots: completion times, use of links, depth of queues.

use std::ops::Range;

use anyhow::Result;
use fabric::Report;
use plotters::prelude::*;

use super::{group_name, tables};
use crate::draw::svg;

const SIZE: (u32, u32) = (860, 360);

/// A line of a plot.
struct Line {
    name: String,
    points: Vec<(f64, f64)>,
}

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
    let points = || lines.iter().flat_map(|line| &line.points);
    if points().count() == 0 {
        return Ok(format!("<p>{}: nothing was sampled (report.sample_us).</p>\n", escape(title)));
    }
    let end = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(0.0, f64::max);
    // An axis needs a length.
    let axis = |end: f64| -> Range<f64> { 0.0..if end > 0.0 { end * 1.02 } else { 1.0 } };
    svg(SIZE, |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 18))
            .margin(8)
            .x_label_area_size(36)
            .y_label_area_size(70)
            .build_cartesian_2d(axis(end(|point| point.0)), axis(end(|point| point.1)))?;
        chart.configure_mesh().x_desc(x).y_desc(y).light_line_style(WHITE).draw()?;
        for (n, line) in lines.iter().enumerate() {
            let color = Palette99::pick(n).to_rgba();
            let series = LineSeries::new(line.points.iter().copied(), color.stroke_width(2));
            let drawn = chart.draw_series(series)?;
            drawn.label(&line.name).legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
        }
        chart.configure_series_labels().position(SeriesLabelPosition::UpperRight).background_style(WHITE.mix(0.8)).draw()
    })
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
