//! Options of `vrdma wan`, and how topologies, workloads, policies and failures are named.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Subcommand;
use terra::compare::{Make, POLICIES};
use terra::generate::Kind;
use terra::topology::Known;

/// `vrdma wan …`.
#[derive(Debug, Subcommand)]
pub enum WanCommand {
    /// Simulate jobs on a network under one policy or several
    Sim(WanSimOptions),
    /// All policies on generated workloads: completion times and deadlines met, against the bars that ours is held to
    Compare(WanCompareOptions),
    /// Five sites on this host that send a coflow as the scheduler says; seconds, no root
    Demo,
    /// Schedule coflows: serve HTTP/JSON at wan.sock until SIGINT or SIGTERM
    Controller(WanControllerOptions),
    /// Send and receive a site's data as the controller says, with RDMA WRITEs, until SIGINT or SIGTERM
    Agent(WanAgentOptions),
    /// Give a job to the controller
    Submit {
        /// The job: JSON with coflows of flows in bytes
        #[arg(value_name = "FILE.json")]
        file: PathBuf,
        /// Stay until all of it is done, and show how far it is
        #[arg(long)]
        wait: bool,
    },
    /// What the controller has: agents, coflows and how far they are
    Status,
    /// End a job, whatever it has sent
    Cancel {
        /// Its number
        job: u64,
    },
    /// Tell the controller what a link carries from now on, in both directions
    Link {
        /// A site
        from: String,
        /// Another one
        to: String,
        /// Gbit/s; 0 if it has failed
        gbps: f64,
    },
}

/// `vrdma wan agent …`.
#[derive(Debug, clap::Args)]
pub struct WanAgentOptions {
    /// The site, as the network of the controller names it
    #[arg(long, value_name = "NAME")]
    pub site: String,
    /// Where other agents reach this one, TCP and UDP
    #[arg(long, value_name = "IP:PORT")]
    pub listen: SocketAddr,
    /// Device of the daemon that receives and relays
    #[arg(long, value_name = "NAME")]
    pub device: String,
    /// Devices that send, one path at a time each, at the rate of that path; repeat for several
    #[arg(long = "path-device", value_name = "NAME", required = true)]
    pub path_devices: Vec<String>,
    /// The controller's socket [default: wan.sock in the daemon's directory]
    #[arg(long, value_name = "SOCKET")]
    pub controller: Option<PathBuf>,
    /// Folder of the files that are sent and received; without it there are none
    #[arg(long, value_name = "DIR")]
    pub files: Option<PathBuf>,
    /// Folder in which is kept what has been received [default: wan-SITE in the daemon's directory]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// A neighbour that does not answer for so long counts as cut off, ms
    #[arg(long, value_name = "MS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    pub silent_ms: u64,
    /// End when the program that started this one does
    #[arg(long, hide = true)]
    pub with_parent: bool,
}

/// `vrdma wan controller …`.
#[derive(Debug, clap::Args)]
pub struct WanControllerOptions {
    /// Network: a name as for `vrdma wan sim`, or a file; needed the first time, and changes the network later
    #[arg(long, value_name = "NAME|FILE")]
    pub topology: Option<String>,
    /// Where the state is kept over a restart [default: wan.json beside the socket]
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// End when the program that started this one does
    #[arg(long, hide = true)]
    pub with_parent: bool,
}

/// `vrdma wan sim …`.
#[derive(Debug, clap::Args)]
pub struct WanSimOptions {
    /// Network: swan, gscale, att, random40, random100, or a file: GML if it is called so, else a list of links
    #[arg(long, value_name = "NAME|FILE", default_value = "swan")]
    pub topology: String,
    /// Jobs: bigbench, tpc-ds, tpc-h, facebook, or a file with a trace of jobs
    #[arg(long, value_name = "NAME|FILE", default_value = "bigbench")]
    pub workload: String,
    /// The workload's file is in the format of the Facebook trace of 2010, its racks spread over the sites
    #[arg(long)]
    pub fb2010: bool,
    /// Policies, by the names that `vrdma wan compare` prints
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "terra", value_parser = parse_policy)]
    pub policy: Vec<(&'static str, Make)>,
    /// How many jobs to make, or the first so many of a trace
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub jobs: Option<u64>,
    /// By what all volumes are multiplied [default: as the published evaluations do, and 1 for files]
    #[arg(long, value_name = "FACTOR", value_parser = parse_positive)]
    pub load: Option<f64>,
    /// Give a quarter of the coflows a deadline of so many times their least completion time
    #[arg(long, value_name = "TIMES", value_parser = parse_positive)]
    pub slack: Option<f64>,
    /// A link that fails in both directions for a while: sites and seconds, such as HK:LA:10:20; repeat for several
    #[arg(long, value_name = "A:B:FROM:TO", value_parser = parse_cut)]
    pub cut: Vec<Cut>,
    /// Where all chance comes from
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Draw the distribution of completion times
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// `vrdma wan compare …`.
#[derive(Debug, clap::Args)]
pub struct WanCompareOptions {
    /// Networks [default: the published ones, swan, gscale and att; random40 and random100 take longer]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = parse_network)]
    pub topology: Vec<Known>,
    /// Kinds of jobs [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = parse_kind)]
    pub workload: Vec<Kind>,
    /// Jobs of each workload
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub jobs: u64,
    /// Deadlines are so many times the least completion time
    #[arg(long, value_name = "TIMES", default_value_t = 2.0, value_parser = parse_positive)]
    pub slack: f64,
    /// Where all chance comes from
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Draw the distributions of completion times
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// A link that fails for a while.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// One end.
    pub a: String,
    /// The other.
    pub b: String,
    /// When it fails, seconds.
    pub from_s: f64,
    /// When it works again, seconds.
    pub to_s: f64,
}

fn parse_network(text: &str) -> Result<Known, String> {
    Known::from_name(text).ok_or_else(|| format!("there are {}", Known::ALL.map(Known::name).join(", ")))
}

fn parse_kind(text: &str) -> Result<Kind, String> {
    Kind::from_name(text).ok_or_else(|| format!("there are {}", Kind::ALL.map(Kind::name).join(", ")))
}

fn parse_policy(text: &str) -> Result<(&'static str, Make), String> {
    let found = POLICIES.into_iter().find(|(name, _)| *name == text);
    found.ok_or_else(|| format!("there are {}", POLICIES.map(|(name, _)| name).join(", ")))
}

fn parse_positive(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|number| (1e-6..=1e6).contains(number))
        .ok_or_else(|| "a number above 0, at most 1000000".to_owned())
}

fn parse_cut(text: &str) -> Result<Cut, String> {
    let words: Vec<&str> = text.split(':').collect();
    let wrong = || "two sites and two times in seconds, the second the later one, such as HK:LA:10:20".to_owned();
    let [a, b, from, to] = words[..] else { return Err(wrong()) };
    let second = |text: &str| text.parse().ok().filter(|second: &f64| (0.0..=1e9).contains(second));
    let (Some(from_s), Some(to_s)) = (second(from), second(to)) else { return Err(wrong()) };
    if from_s < to_s { Ok(Cut { a: a.to_owned(), b: b.to_owned(), from_s, to_s }) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_sites_and_an_interval() {
        let cut = Cut { a: "HK".into(), b: "LA".into(), from_s: 1.5, to_s: 20.0 };
        assert_eq!(parse_cut("HK:LA:1.5:20"), Ok(cut));
        for wrong in ["HK:LA:1", "HK:LA:20:1", "HK:LA:1:1", "HK:LA:-1:1", "HK:LA:1:NaN", "HK:LA:1:2:3", ""] {
            assert!(parse_cut(wrong).is_err(), "{wrong}");
        }
    }
}
