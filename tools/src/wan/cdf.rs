//! Distributions of completion times as an SVG: one plot per workload and network, one line per policy.

use std::path::Path;

use anyhow::{Context, Result};
use plotters::prelude::SeriesLabelPosition;
use terra::report::Report;

use crate::draw::{Chart, Line, svg};

/// Pixels of one plot.
const SIZE: (u32, u32) = (520, 340);
/// Plots side by side, at most.
const MAX_ACROSS: usize = 4;

/// One plot.
pub struct Panel<'a> {
    /// What it shows.
    pub title: String,
    /// By policy.
    pub reports: Vec<&'a Report>,
}

/// Draws all into one file.
pub fn draw(path: &Path, panels: &[Panel]) -> Result<()> {
    let svg = picture(panels).context("cannot draw the completion times")?;
    std::fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))
}

fn picture(panels: &[Panel]) -> Result<String> {
    let across = panels.len().clamp(1, MAX_ACROSS);
    let down = panels.len().div_ceil(across).max(1);
    svg((SIZE.0 * across as u32, SIZE.1 * down as u32), |area| {
        for (part, panel) in area.split_evenly((down, across)).iter().zip(panels) {
            let lines: Vec<Line> = panel.reports.iter().map(|report| line(report)).collect();
            let legend = SeriesLabelPosition::LowerRight;
            let (x, y) = ("completion time, s", "part of the coflows");
            Chart { title: &panel.title, x, y, log_x: true, legend }.draw(part, &lines)?;
        }
        Ok(())
    })
}

/// The part of the coflows that are done within a time. Coflows that need no network are left out.
fn line(report: &Report) -> Line {
    let ccts_s = report.ccts_s();
    let part = |(index, cct_s): (usize, &f64)| (*cct_s, (index + 1) as f64 / ccts_s.len() as f64);
    Line { name: report.policy.clone(), points: ccts_s.iter().enumerate().map(part).collect() }
}
