//! `vrdma sim pcie`: the way from a NIC to the memory of GPUs, modelled for three ways to find out where that memory is.

use std::path::Path;

use anyhow::{Context, Result};
use fabric::pcie::Scheme;
use fabric::pcie::params::Params;
use fabric::pcie::sweep::{Over, Row, points};
use plotters::prelude::SeriesLabelPosition;
use serde::Serialize;

use super::{MAX_SCENARIO, on_all_cores, read};
use crate::args::SimPcieOptions;
use crate::draw::{Area, Chart, Drawn, Line, svg};
use crate::output::{print, print_json, progress_bar, table};

const MIB: f64 = 1_048_576.0;
/// Pixels of each plot.
const SIZE: (u32, u32) = (860, 300);

/// What `--json` prints.
#[derive(Serialize)]
struct Answer {
    /// Nothing of this was measured on hardware.
    modelled: bool,
    parameters: Params,
    rows: Vec<Row>,
}

/// Runs all points and prints what came out.
pub fn carry_out(options: &SimPcieOptions, as_json: bool) -> Result<()> {
    let params = match &options.file {
        None => Params::default(),
        Some(file) => Params::parse(&read(file, MAX_SCENARIO)?).with_context(|| file.display().to_string())?,
    };
    let points = points(&params);
    let bar = progress_bar(points.len() as u64, "runs");
    let rows = on_all_cores(&points, |&(over, point)| {
        let outcome = point.run(&params);
        bar.inc(1);
        Ok(Row { over, outcome })
    })?;
    bar.finish_and_clear();
    if let Some(path) = &options.plot {
        draw(path, &rows).with_context(|| format!("cannot draw {}", path.display()))?;
    }
    if as_json { print_json(&Answer { modelled: true, parameters: params, rows }) } else { print(text(&params, &rows)) }
}

/// A number of bytes, in the unit that leaves few digits.
fn bytes(value: f64) -> String {
    let unit = |(size, name): (f64, &str)| format!("{} {name}", (value / size * 10.0).round() / 10.0);
    let units = [(f64::from(1 << 30), "GiB"), (MIB, "MiB"), (1024.0, "KiB")];
    units.into_iter().find(|(size, _)| value >= *size).map_or_else(|| format!("{value} B"), unit)
}

fn text(params: &Params, rows: &[Row]) -> String {
    let lines = rows.iter().map(|Row { over, outcome }| {
        let point = outcome.point;
        [
            match over {
                Over::WorkingSet => "working set",
                Over::Message => "message",
                Over::Devices => "devices",
            }
            .to_owned(),
            bytes(point.working_set as f64),
            bytes(point.message as f64),
            point.devices.to_string(),
            point.scheme.name().to_owned(),
            format!("{:.2}", outcome.hops),
            format!("{:.0}", outcome.iommu_visits_per_mib),
            format!("{:.0}", outcome.atc_misses_per_mib),
            outcome.direct_devices.to_string(),
            format!("{:.0}", outcome.gbps),
            format!("{:.0}", outcome.share * 100.0),
        ]
    });
    let header = [
        "OVER",
        "working set",
        "message",
        "devices",
        "ADDRESSES",
        "hops",
        "IOMMU/MiB",
        "ATC misses/MiB",
        "direct",
        "Gb/s",
        "share[%]",
    ];
    format!(
        "{}\nModelled: a NIC of {} Gb/s behind a PCIe switch writes to GPUs there, with {} translations in its ATC, {} functions in the\n\
         switch's table, and {} Gb/s from port to port of the root complex. The first is a standard's, the others are assumptions;\n\
         fabric/src/pcie/default.toml has all of them, and a file may change any.\n",
        table(header, lines, &[1, 2, 3, 5, 6, 7, 8, 9, 10]),
        params.network.gbps,
        params.nic.atc_entries,
        params.switch.lut_bdfs,
        params.root.peer_gbps,
    )
}

/// A plot per sweep, one below the other.
fn draw(path: &Path, rows: &[Row]) -> Result<()> {
    let height = SIZE.1 * Over::ALL.len() as u32;
    let svg = svg((SIZE.0, height), |area| {
        let areas = area.split_evenly((Over::ALL.len(), 1));
        areas.iter().zip(Over::ALL).try_for_each(|(area, over)| panel(area, over, rows))
    })?;
    std::fs::write(path, svg)?;
    Ok(())
}

fn panel(area: &Area<'_>, over: Over, rows: &[Row]) -> Drawn {
    let (title, x, unit) = match over {
        Over::WorkingSet => {
            ("Share of the network's rate over the memory that is written to (modelled)", "working set, MiB", MIB)
        }
        Over::Message => ("Share of the network's rate over the size of messages (modelled)", "message, bytes", 1.0),
        Over::Devices => ("Share of the network's rate over the number of virtual devices (modelled)", "devices", 1.0),
    };
    let line = |scheme: Scheme| {
        let outcomes = rows.iter().filter(|row| row.over == over).map(|row| row.outcome);
        let points = outcomes.filter(|outcome| outcome.point.scheme == scheme);
        let points = points.map(|outcome| (over.of(&outcome.point) as f64 / unit, outcome.share));
        Line { name: scheme.name().to_owned(), points: points.collect() }
    };
    Chart { title, x, y: "share", log_x: true, legend: SeriesLabelPosition::MiddleLeft }.draw(area, &Scheme::ALL.map(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_readable() {
        for (value, text) in
            [(256.0, "256 B"), (1024.0, "1 KiB"), (1536.0, "1.5 KiB"), (1_048_576.0, "1 MiB"), (17_179_869_184.0, "16 GiB")]
        {
            assert_eq!(bytes(value), text);
        }
    }
}
