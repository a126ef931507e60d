//! Plots as SVG: the frame that all of them have in common.

use std::io;

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
