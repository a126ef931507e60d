//! Plots as SVG: the frame that all of them have in common, and lines over a linear or logarithmic axis.

use std::io;
use std::ops::Range;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;

/// What is drawn on.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// How drawing ends.
pub type Drawn = std::result::Result<(), DrawingAreaErrorKind<io::Error>>;

/// The text of a picture of `size` pixels, on white.
pub fn svg(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Drawn) -> Result<String> {
    let mut text = String::new();
    let on_white = |area: &Area<'_>| {
        area.fill(&WHITE)?;
        draw(area)?;
        area.present()
    };
    on_white(&SVGBackend::with_string(&mut text, size).into_drawing_area()).map_err(|error| anyhow!("drawing: {error}"))?;
    Ok(text)
}

/// A line of a plot.
pub struct Line {
    /// What it shows, for the legend.
    pub name: String,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

/// What a plot says beside its lines.
pub struct Chart<'a> {
    /// Above it.
    pub title: &'a str,
    /// Below it.
    pub x: &'a str,
    /// On its left.
    pub y: &'a str,
    /// Whether the horizontal axis is logarithmic; points at 0 and less are left out then.
    pub log_x: bool,
    /// Where the names of the lines stand.
    pub legend: SeriesLabelPosition,
}

impl Chart<'_> {
    /// Draws lines of at least one point.
    pub fn draw(&self, area: &Area<'_>, lines: &[Line]) -> Drawn {
        let log_x = self.log_x;
        let place = move |&(x, y): &(f64, f64)| if log_x { (x > 0.0).then(|| (x.log10(), y)) } else { Some((x, y)) };
        let points = || lines.iter().flat_map(|line| &line.points).filter_map(place);
        let top = axis(points().map(|point| point.1), 0.0);
        let across = if log_x {
            // Whole powers of ten, so that the axis has numbers at its ends.
            let range = axis(points().map(|point| point.0), f64::INFINITY);
            range.start.floor()..range.end.ceil().max(range.start.floor() + 1.0)
        } else {
            axis(points().map(|point| point.0), 0.0)
        };
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 18))
            .margin(8)
            .x_label_area_size(36)
            .y_label_area_size(70)
            .build_cartesian_2d(across, top)?;
        let name = |x: &f64| if log_x { format!("{}", 10f64.powf(*x) as f32) } else { format!("{}", *x as f32) };
        let whole = |x: &f64| if !log_x || (x - x.round()).abs() < 1e-9 { name(x) } else { String::new() };
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(self.x).y_desc(self.y).light_line_style(WHITE).x_label_formatter(&whole);
        mesh.draw()?;
        for (n, line) in lines.iter().enumerate() {
            let color = Palette99::pick(n).to_rgba();
            let series = LineSeries::new(line.points.iter().filter_map(place), color.stroke_width(2));
            let drawn = chart.draw_series(series)?;
            drawn.label(&line.name).legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
        }
        chart.configure_series_labels().position(self.legend.clone()).background_style(WHITE.mix(0.8)).draw()
    }
}

/// From the least value, or `start` if that is less, to a little above the greatest; never without length.
fn axis(values: impl Iterator<Item = f64>, start: f64) -> Range<f64> {
    let (least, most) = values.fold((start, f64::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)));
    if most > least { least..least + (most - least) * 1.02 } else { least.min(0.0)..1.0 }
}
