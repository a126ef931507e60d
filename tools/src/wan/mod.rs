//! `vrdma wan`: coflows over a wide-area network. Files are read and written here; what is in them is the business of `terra`.

mod cdf;
mod compare;
mod sim;

use std::time::Duration;

use anyhow::{Result, anyhow};
use indicatif::ProgressBar;
use terra::policy::Policy;
use terra::report::Report;
use terra::sim::{CapacityChange, Simulation};
use terra::workload::Workload;
use terra::{Wan, WanError};

use crate::args::WanCommand;
use crate::output::progress_bar;

/// Carries a command out.
pub fn carry_out(command: &WanCommand, as_json: bool) -> Result<()> {
    match command {
        WanCommand::Sim(options) => sim::carry_out(options, as_json),
        WanCommand::Compare(options) => compare::carry_out(options, as_json),
    }
}

/// Counts coflows; shown on a terminal only.
fn coflow_bar(coflows: usize) -> ProgressBar {
    let bar = progress_bar(coflows as u64, "coflows");
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Runs one policy over a workload and shows how far it is.
fn simulate(
    wan: &Wan,
    workload: &Workload,
    changes: &[CapacityChange],
    policy: &mut dyn Policy,
    bar: &ProgressBar,
) -> Result<Report> {
    let name = policy.name();
    let mut shown = 0;
    let progress = |done: usize, _: usize| {
        bar.inc((done - shown) as u64);
        shown = done;
    };
    let simulation = Simulation::new(wan, workload)?.with_changes(changes.to_vec())?.with_progress(progress);
    simulation.run(policy).map_err(|error| anyhow!("{name}: {error}"))
}

/// Both directions of the link between two sites.
fn both_ways(wan: &Wan, a: &str, b: &str) -> Result<Vec<terra::LinkId>, WanError> {
    let (first, second) = (wan.site(a)?, wan.site(b)?);
    let links: Vec<_> = [(first, second), (second, first)].into_iter().filter_map(|(a, b)| wan.link_between(a, b)).collect();
    if links.is_empty() { Err(WanError::Disconnected(a.to_owned(), b.to_owned())) } else { Ok(links) }
}
