//! `vrdma sim isolation --husky`: every attacker of Husky's beside every victim, as a table and as a map of colours.

use std::path::Path;

use anyhow::{Context, Result};
use fabric::sharing::husky::{Alone, Entry, Fares, KEPT, SLOWED, attackers, setup, victims};
use fabric::sharing::load::Load;
use isolation::{Class, Policy};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde::Serialize;

use crate::cores::on_all_cores;
use crate::draw::{Area, Drawn, svg};
use crate::output::{print, print_json, progress_bar, table};

/// Victims, and the column of attackers' names.
const COLUMNS: usize = 23;

/// What `--json` prints.
#[derive(Serialize)]
struct Answer {
    /// Nothing of this was measured on hardware.
    modelled: bool,
    isolation: bool,
    /// Part of its rate that a victim has to keep, and how many times as long as alone the latency may be.
    bars: [f64; 2],
    rows: Vec<Row>,
    not_applicable: Vec<NotApplicable>,
}

/// One pair.
#[derive(Serialize)]
struct Row {
    attacker: String,
    victim: String,
    #[serde(flatten)]
    fares: Fares,
}

/// An attacker that cannot be shown.
#[derive(Serialize)]
struct NotApplicable {
    attacker: String,
    reason: &'static str,
}

/// All pairs: attackers that apply, victims, and how each victim fares beside each attacker.
struct Matrix {
    attackers: Vec<Entry>,
    victims: Vec<Entry>,
    fares: Vec<Vec<Fares>>,
}

/// Runs all pairs and prints what came out. `without`: without isolation.
pub fn carry_out(without: bool, plot: Option<&Path>, as_json: bool) -> Result<()> {
    let policy = if without { Policy::Greedy } else { Policy::Shares };
    let (shown, missing): (Vec<Entry>, Vec<Entry>) = attackers().into_iter().partition(|entry| entry.load.is_ok());
    let victims = victims();
    let bar = progress_bar((shown.len() * victims.len()) as u64, "pairs");
    let loads = |entries: &[Entry]| entries.iter().filter_map(|entry| entry.load.clone().ok()).collect::<Vec<Load>>();
    let attacks = loads(&shown);
    let columns = on_all_cores(&loads(&victims), |victim| {
        let alone = Alone::run(&setup(), policy, victim);
        let fares = attacks.iter().map(|attack| {
            let fares = alone.beside(&setup(), policy, victim, std::slice::from_ref(attack));
            bar.inc(1);
            fares
        });
        Ok(fares.collect::<Vec<Fares>>())
    })?;
    bar.finish_and_clear();
    let fares = (0..shown.len()).map(|row| columns.iter().map(|column| column[row]).collect()).collect();
    let matrix = Matrix { attackers: shown, victims, fares };
    if let Some(path) = plot {
        let picture = matrix.picture(without)?;
        std::fs::write(path, picture).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let not_applicable = missing.into_iter().filter_map(|entry| {
        let reason = entry.load.err()?;
        Some(NotApplicable { attacker: entry.name, reason })
    });
    let not_applicable: Vec<NotApplicable> = not_applicable.collect();
    if !as_json {
        return print(matrix.text(&not_applicable));
    }
    let rows = matrix.pairs().map(|(attacker, victim, fares)| Row {
        attacker: attacker.name.clone(),
        victim: victim.name.clone(),
        fares,
    });
    print_json(&Answer { modelled: true, isolation: !without, bars: [KEPT, SLOWED], rows: rows.collect(), not_applicable })
}

impl Matrix {
    fn pairs(&self) -> impl Iterator<Item = (&Entry, &Entry, Fares)> {
        let rows = self.attackers.iter().zip(&self.fares);
        rows.flat_map(|(attacker, fares)| self.victims.iter().zip(fares).map(move |(victim, &fares)| (attacker, victim, fares)))
    }

    fn text(&self, not_applicable: &[NotApplicable]) -> String {
        let mut header = vec!["ATTACKER".to_owned()];
        header.extend((1..=self.victims.len()).map(|n| n.to_string()));
        let header: [String; COLUMNS] = header.try_into().expect("the victims are so many");
        let lines = self.attackers.iter().zip(&self.fares).map(|(attacker, fares)| {
            let mut cells = vec![attacker.name.clone()];
            cells.extend(fares.iter().map(|fares| format!("{:.2}{}", fares.value, if fares.meets_bar { "" } else { "!" })));
            <[String; COLUMNS]>::try_from(cells).expect("the victims are so many")
        });
        let right: Vec<usize> = (1..COLUMNS).collect();
        let mut text = table(header.each_ref().map(String::as_str), lines, &right);
        text += "\nVICTIMS\n";
        for (n, victim) in self.victims.iter().enumerate() {
            text += &format!("{:>3}  {}\n", n + 1, victim.name);
        }
        let missed: Vec<_> = self.pairs().filter(|(.., fares)| !fares.meets_bar).collect();
        text += &format!(
            "\nModelled: two hosts with links of 56 Gb/s, the cores the daemon's own. A victim's figure is the part that it keeps of what it gets\n\
             alone, or of half of what there is if it uses more than that alone: {KEPT} has to be left. That of the last one is how many times as\n\
             long as alone the 99th percentile of its latency is: {SLOWED} at most. {} of {} pairs miss that.\n",
            missed.len(),
            self.attackers.len() * self.victims.len()
        );
        for (attacker, victim, fares) in missed {
            text += &format!("  {:.2}  {} beside {}\n", fares.value, victim.name, attacker.name);
        }
        if !not_applicable.is_empty() {
            text += "\nNot among them:\n";
        }
        for NotApplicable { attacker, reason } in not_applicable {
            text += &format!("  {attacker}: {reason}\n");
        }
        text
    }

    /// A map of colours: a row for each attacker, a column for each victim.
    fn picture(&self, without: bool) -> Result<String> {
        const CELL: (i32, i32) = (34, 15);
        const ORIGIN: (i32, i32) = (300, 230);
        let size = |origin: i32, cell: i32, count: usize| (origin + cell * count as i32 + 12) as u32;
        let size = (size(ORIGIN.0, CELL.0, self.victims.len()), size(ORIGIN.1, CELL.1, self.attackers.len()));
        let how = if without { "without isolation" } else { "with isolation" };
        let title = format!("Part of its rate that a victim keeps beside an attacker, {how} (modelled)");
        svg(size, |area: &Area<'_>| -> Drawn {
            let black = |size: i32| ("sans-serif", size).into_font().color(&BLACK);
            area.draw_text(&title, &black(16), (12, 10))?;
            let upright = black(11).transform(FontTransform::Rotate270).pos(Pos::new(HPos::Left, VPos::Center));
            for (n, victim) in self.victims.iter().enumerate() {
                let name = match &victim.load {
                    Ok(load) if load.class() == Class::Latency => format!("p99 of {}, times alone", victim.name),
                    _ => victim.name.clone(),
                };
                area.draw_text(&name, &upright, (ORIGIN.0 + CELL.0 * n as i32 + CELL.0 / 2, ORIGIN.1 - 6))?;
            }
            let beside = black(11).pos(Pos::new(HPos::Right, VPos::Center));
            let within = black(10).pos(Pos::new(HPos::Center, VPos::Center));
            for (row, (attacker, fares)) in self.attackers.iter().zip(&self.fares).enumerate() {
                let top = ORIGIN.1 + CELL.1 * row as i32;
                area.draw_text(&attacker.name, &beside, (ORIGIN.0 - 6, top + CELL.1 / 2))?;
                for (column, (victim, fares)) in self.victims.iter().zip(fares).enumerate() {
                    let left = ORIGIN.0 + CELL.0 * column as i32;
                    let cell = [(left, top), (left + CELL.0 - 1, top + CELL.1 - 1)];
                    area.draw(&Rectangle::new(cell, colour(victim, *fares).filled()))?;
                    let at = (left + CELL.0 / 2, top + CELL.1 / 2);
                    area.draw_text(&format!("{:.2}", fares.value), &within, at)?;
                }
            }
            Ok(())
        })
    }
}

/// Red below the bar, the darker the further; green above.
fn colour(victim: &Entry, fares: Fares) -> RGBColor {
    let is_latency = victim.load.as_ref().is_ok_and(|load| load.class() == Class::Latency);
    let reached = if is_latency { SLOWED / fares.value } else { fares.value / KEPT };
    if fares.meets_bar {
        let light = (235.0 - 90.0 * (reached - 1.0).clamp(0.0, 1.0)) as u8;
        RGBColor(light, 240, light)
    } else {
        let light = (40.0 + 180.0 * reached.clamp(0.0, 1.0)) as u8;
        RGBColor(235, light, light)
    }
}
