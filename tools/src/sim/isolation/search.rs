//! `vrdma sim isolation --search`: workloads drawn at random, until a victim falls under its bar.

use anyhow::Result;
use fabric::sharing::husky::{Fares, KEPT, SLOWED};
use fabric::sharing::search::Case;
use isolation::Policy;
use serde::Serialize;

use crate::cores::on_all_cores;
use crate::output::{print, print_json, progress_bar, table};

/// What `--json` prints.
#[derive(Serialize)]
struct Answer {
    modelled: bool,
    seed: u64,
    cases: u64,
    /// Those whose victim falls under its bar.
    rows: Vec<Row>,
}

/// A case whose victim falls under its bar.
#[derive(Serialize)]
struct Row {
    seed: u64,
    #[serde(flatten)]
    fares: Fares,
    what: String,
    repeat: String,
}

/// Draws `cases` cases from `seed` on and prints those that fail.
pub fn carry_out(cases: u64, seed: u64, as_json: bool) -> Result<()> {
    if !as_json {
        print(format!("seed {seed}\n"))?;
    }
    let seeds: Vec<u64> = (0..cases).map(|n| seed.wrapping_add(n)).collect();
    let bar = progress_bar(cases, "cases");
    let found = on_all_cores(&seeds, |&seed| {
        let case = Case::draw(seed);
        let fares = case.run(Policy::Shares);
        bar.inc(1);
        let repeat = format!("vrdma sim isolation --search 1 --seed {seed}");
        Ok((!fares.meets_bar).then(|| Row { seed, fares, what: case.describe(), repeat }))
    })?;
    bar.finish_and_clear();
    let rows: Vec<Row> = found.into_iter().flatten().collect();
    if as_json {
        return print_json(&Answer { modelled: true, seed, cases, rows });
    }
    let mut text = format!(
        "{} of {cases} cases have a victim under its bar: {KEPT} of its rate, or latency {SLOWED} times that alone.\n",
        rows.len()
    );
    if !rows.is_empty() {
        let lines = rows.iter().map(|row| [format!("{:.2}", row.fares.value), row.repeat.clone(), row.what.clone()]);
        text += &format!("\n{}", table(["VALUE", "AGAIN", "CASE"], lines, &[0]));
    }
    print(text)
}
