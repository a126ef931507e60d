//! `vrdma wan`: coflows over a wide-area network. Files are read and written here; what is in them is the business of `terra`.

mod agent;
mod cdf;
mod client;
mod compare;
mod controller;
mod demo;
mod job;
mod sim;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use indicatif::ProgressBar;
use terra::policy::Policy;
use terra::read::{MAX_INPUT_BYTES, gml, links};
use terra::report::Report;
use terra::sim::{CapacityChange, Simulation};
use terra::topology::Known;
use terra::workload::Workload;
use terra::{Wan, WanError};

use crate::args::WanCommand;
use crate::input::read;
use crate::output::progress_bar;
use crate::place::Place;

/// Carries a command out.
pub fn carry_out(place: impl Fn() -> Result<Place>, command: &WanCommand, as_json: bool) -> Result<()> {
    match command {
        WanCommand::Demo => demo::carry_out(as_json),
        WanCommand::Controller(options) => {
            end_with_parent(options.with_parent)?;
            controller::carry_out(&place()?, options)
        }
        WanCommand::Agent(options) => {
            end_with_parent(options.with_parent)?;
            agent::carry_out(&place()?, options)
        }
        WanCommand::Submit { file, wait } => client::submit(&place()?, file, *wait, as_json),
        WanCommand::Status => client::status(&place()?, as_json),
        WanCommand::Cancel { job } => client::cancel(&place()?, *job, as_json),
        WanCommand::Link { from, to, gbps } => client::set_link(&place()?, from, to, *gbps, as_json),
        WanCommand::Sim(options) => sim::carry_out(options, as_json),
        WanCommand::Compare(options) => compare::carry_out(options, as_json),
    }
}

/// Has the kernel kill this process when the one that started it is gone.
fn end_with_parent(wanted: bool) -> Result<()> {
    if wanted {
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).context("cannot end with the parent")?;
    }
    Ok(())
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

/// A network by name or from a file.
fn network(name: &str) -> Result<Wan> {
    if let Some(known) = Known::from_name(name) {
        return Ok(known.wan());
    }
    let path = Path::new(name);
    let none =
        || format!("{name} is neither a network that comes along ({}) nor a file", Known::ALL.map(Known::name).join(", "));
    let text = read(path, MAX_INPUT_BYTES as u64).with_context(none)?;
    let is_gml = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gml"));
    let wan = if is_gml { gml::parse(&text) } else { links::parse(&text) };
    wan.map_err(|error| anyhow!("{name}: {error}"))
}

/// Both directions of the link between two sites.
fn both_ways(wan: &Wan, a: &str, b: &str) -> Result<Vec<terra::LinkId>, WanError> {
    let (first, second) = (wan.site(a)?, wan.site(b)?);
    let links: Vec<_> = [(first, second), (second, first)].into_iter().filter_map(|(a, b)| wan.link_between(a, b)).collect();
    if links.is_empty() { Err(WanError::Disconnected(a.to_owned(), b.to_owned())) } else { Ok(links) }
}
