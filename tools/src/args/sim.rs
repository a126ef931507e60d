//! Options of `vrdma sim`.

use std::path::PathBuf;

use clap::Subcommand;

/// `vrdma sim …`.
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Simulate what a TOML file describes
    Run(SimRunOptions),
    /// Tenants that share a host: without isolation, under Justitia, and under ours
    Isolation(SimIsolationOptions),
    /// The way from a NIC to the memory of GPUs: through the host, with ATS, and with final addresses in the NIC's table
    Pcie(SimPcieOptions),
    /// What many paths per connection are worth: one path and many, side by side
    Spray(SimSprayOptions),
    /// Simulate the configuration of a published simulator, and compare
    Reference {
        /// Where all chance comes from
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
}

/// `vrdma sim isolation …`.
#[derive(Debug, clap::Args)]
pub struct SimIsolationOptions {
    /// Only these experiments, such as E1 [default: all]
    #[arg(value_name = "ID")]
    pub only: Vec<String>,
    /// Draw latency and bandwidth under each policy, or the matrix of --husky
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// Instead: every attacker of the Husky suite beside every victim; minutes
    #[arg(long, conflicts_with = "only")]
    pub husky: bool,
    /// The same without isolation
    #[arg(long, requires = "husky")]
    pub without: bool,
    /// Instead: draw N workloads at random and show those under which a victim falls under its bar
    #[arg(long, value_name = "N", conflicts_with_all = ["only", "husky", "plot"])]
    pub search: Option<u64>,
    /// The first workload's seed; those after it have the next ones
    #[arg(long, value_name = "N", default_value_t = 1, requires = "search")]
    pub seed: u64,
}

/// `vrdma sim pcie …`.
#[derive(Debug, clap::Args)]
pub struct SimPcieOptions {
    /// Parameters that differ from the built-in ones
    #[arg(value_name = "FILE.toml")]
    pub file: Option<PathBuf>,
    /// Draw the share of the link over working sets, message sizes and devices
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// `vrdma sim spray …`.
#[derive(Debug, clap::Args)]
pub struct SimSprayOptions {
    /// Where all chance comes from
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Draw completion times over numbers of paths
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// `vrdma sim run …`.
#[derive(Debug, clap::Args)]
pub struct SimRunOptions {
    /// The scenario
    #[arg(value_name = "FILE.toml")]
    pub file: PathBuf,
    /// Write a report with plots; of several runs, about the first
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Where all chance comes from [default: the file's seed, else 1]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Run so many seeds, the first one and those after it, on all processor cores
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub runs: Option<u32>,
}
