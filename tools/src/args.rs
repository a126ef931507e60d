//! What the user typed, and nothing else: parsing here touches neither files nor sockets.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use terra::compare::{Make, POLICIES};
use terra::generate::Kind;
use terra::topology::Known;

/// RDMA devices in software, for every container and virtual machine, on any Linux host.
#[derive(Debug, Parser)]
#[command(name = "vrdma", version, arg_required_else_help = true, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 done, 1 the operation failed, 2 the command line is wrong.\n\
    First steps: `vrdma demo`, then `vrdma daemon` and, beside it, `vrdma dev add a --ip 192.0.2.1`.")]
pub struct Args {
    /// Directory of the daemon's sockets [default: /run/vrdma for root, else $XDG_RUNTIME_DIR/vrdma]
    #[arg(long, global = true, env = "VRDMA_DIR", value_name = "DIR", hide_env_values = true)]
    pub dir: Option<PathBuf>,
    /// Print JSON instead of tables
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what RDMA in software does on this machine: no root, nothing to install, 10 to 20 seconds
    Demo(DemoOptions),
    /// Serve devices until SIGINT or SIGTERM
    Daemon(DaemonOptions),
    /// Make, remove and look at devices
    #[command(subcommand)]
    Dev(DevCommand),
    /// Run a program that uses a device: its libibverbs calls go there
    Run(RunOptions),
    /// Specifications by which container engines give devices to containers
    #[command(subcommand)]
    Cdi(CdiCommand),
    /// Measure parts of the daemon on this machine
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Simulate a whole fabric whose hosts are the daemon's own core
    #[command(subcommand)]
    Sim(SimCommand),
    /// Routes and rates for coflows over a wide-area network
    #[command(subcommand)]
    Wan(WanCommand),
    /// A child process of the demo
    #[command(hide = true)]
    DemoSide {
        /// Which one
        #[arg(value_enum)]
        side: DemoSide,
    },
}

/// `vrdma daemon …`.
#[derive(Debug, clap::Args)]
pub struct DaemonOptions {
    /// UDP source ports, and so paths of an ECMP network, that one connection spreads its packets over, if the peer's daemon
    /// offers the same; 64 if no number is given
    #[arg(long, value_name = "N", num_args = 0..=1, value_parser = clap::value_parser!(u16).range(1..=i64::from(vdev::MAX_PATHS)))]
    pub paths: Option<Option<u16>>,
    /// What the link carries where that is less than this host can send, in bits per second with all headers, such as 2.5G; without it
    /// packets queue below the daemon, where nothing goes ahead of anything. What arrives is held to it too: senders on many paths (`--paths`)
    /// are asked to share it evenly
    #[arg(long, value_name = "RATE", value_parser = parse_link)]
    pub link_rate: Option<u64>,
    /// Who goes first when several want more than there is; all but `vrdma` are for comparison, and keep nothing that `vrdma dev set`
    /// promises
    #[arg(long, value_enum, default_value = "vrdma")]
    pub isolation: IsolationChoice,
    /// Latency from post to completion that `--isolation justitia` steers the 99th percentile of declared devices to, in microseconds
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub justitia_target: u64,
}

/// Policies of the daemon's arbiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum IsolationChoice {
    /// By weights and rates, small sparse messages ahead.
    Vrdma,
    /// Message by message, each to its end, as a card without isolation.
    Off,
    /// Justitia (NSDI 2022) in front of such a card; devices after latency have to be declared with `dev set --class latency`.
    Justitia,
}

/// `vrdma demo …`.
#[derive(Debug, clap::Args)]
pub struct DemoOptions {
    /// Measure the way between two hosts too: two network namespaces, which needs root and iproute2
    #[arg(long)]
    pub wire: bool,
}

/// `vrdma bench …`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// What it costs to pin a guest's memory on demand, and what pinning all of it would cost; needs root and 2 GiB of free memory
    Pin {
        /// Sizes of the guests in GiB
        #[arg(long, value_name = "GIB", value_delimiter = ',', default_values_t = crate::bench::pin::GUEST_GIB,
            value_parser = clap::value_parser!(u64).range(1..=256))]
        guest_gib: Vec<u64>,
    },
    /// What a bulk transfer does to another device's latency on one link: without isolation, under Justitia, and under ours; and how well
    /// highest rates are kept. Two network namespaces (root, iproute2), unmodified ib_write_lat and ib_write_bw (perftest)
    Isolation(BenchIsolationOptions),
}

/// `vrdma bench isolation`.
#[derive(Debug, clap::Args)]
pub struct BenchIsolationOptions {
    /// What the link between the two hosts carries, in bits per second
    #[arg(long, value_name = "RATE", default_value = "2G", value_parser = parse_link)]
    pub link_rate: u64,
    /// Time of one measurement, about
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub seconds: u64,
    /// How often everything is repeated; medians are printed
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
}

/// The child processes of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DemoSide {
    /// The passive end.
    Target,
    /// Measures everything on one host.
    Initiator,
    /// Measures WRITE bandwidth only, with ordinary memory.
    HeapStreamer,
    /// Measures WRITE bandwidth only, with shared memory.
    SharedStreamer,
    /// Sends plain UDP with segmentation offload.
    UdpSender,
    /// Receives that.
    UdpReceiver,
}

impl DemoSide {
    /// As the command line spells it.
    pub fn name(self) -> &'static str {
        match self {
            DemoSide::Target => "target",
            DemoSide::Initiator => "initiator",
            DemoSide::HeapStreamer => "heap-streamer",
            DemoSide::SharedStreamer => "shared-streamer",
            DemoSide::UdpSender => "udp-sender",
            DemoSide::UdpReceiver => "udp-receiver",
        }
    }
}

/// `vrdma dev …`.
#[derive(Debug, Subcommand)]
pub enum DevCommand {
    /// Make a device; making it again with the same settings changes nothing
    Add(AddOptions),
    /// Remove a device; removing one that is not there changes nothing
    #[command(visible_alias = "delete")]
    Del {
        /// Device
        name: String,
    },
    /// All devices
    #[command(visible_alias = "ls")]
    List,
    /// One device: addresses, port, clients, counters
    Show {
        /// Device
        name: String,
    },
    /// Change what a device gets where several want more than there is: from the next packet on
    Set(SetOptions),
    /// Why queue pairs failed: one line each, the latest first
    Why {
        /// Device
        name: String,
        /// Number of one queue pair, decimal or 0x…
        #[arg(value_parser = parse_qpn)]
        qpn: Option<u32>,
    },
}

/// `vrdma dev add …`.
#[derive(Debug, clap::Args)]
pub struct AddOptions {
    /// Device name, as programs will see it
    pub name: String,
    /// Address of the device, its GID; repeat for several, the first is GID index 0
    #[arg(long = "ip", value_name = "IP", required = true)]
    pub ips: Vec<IpAddr>,
    /// Path MTU in payload bytes [default: the largest that the interface of the first address allows]
    #[arg(long, value_name = "BYTES", value_parser = parse_mtu)]
    pub mtu: Option<u32>,
    /// Who may open the device, as the mode of its socket
    #[arg(long, value_name = "OCTAL", value_parser = parse_mode)]
    pub mode: Option<String>,
    /// Owner of the socket
    #[arg(long)]
    pub uid: Option<u32>,
    /// Group of the socket
    #[arg(long)]
    pub gid: Option<u32>,
    /// Make it for a virtual machine, whose VMM connects to this vfio-user socket
    #[arg(long, value_name = "SOCKET")]
    pub vfio_user: Option<PathBuf>,
    /// MAC address of the virtual machine's network device [default: made up from the device's name]
    #[arg(long, value_name = "MAC", requires = "vfio_user")]
    pub mac: Option<String>,
}

/// `vrdma dev set …`.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("change").required(true).multiple(true)))]
pub struct SetOptions {
    /// Device
    pub name: String,
    /// Its part against the weights of the others that want it, 1 to 10000 [at first: 100]
    #[arg(long, group = "change")]
    pub weight: Option<u32>,
    /// Never more than this, in bits per second, such as 500M or 2.5G; `none` for no bound
    #[arg(long, value_name = "RATE", value_parser = parse_bound, group = "change")]
    pub rate: Option<Bound>,
    /// Ahead of others until it has had this much, in bits per second, such as 1G; 0 for no guarantee
    #[arg(long, value_name = "RATE", value_parser = parse_rate, group = "change")]
    pub min_rate: Option<u64>,
    /// What it may send at once after a pause before --rate holds, in bytes, such as 256k
    #[arg(long, value_name = "BYTES", value_parser = parse_rate, group = "change")]
    pub burst: Option<u64>,
    /// Treat its traffic as this [at first: auto, found for each queue pair from what it posts]
    #[arg(long, value_enum, group = "change")]
    pub class: Option<ClassChoice>,
}

/// A bound, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound(pub Option<u64>);

/// What traffic is treated as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ClassChoice {
    /// Found for each queue pair from what it posts.
    Auto,
    /// Small and sparse: goes first, as long as that takes little.
    Latency,
    /// Small and many.
    MessageRate,
    /// Large.
    Bandwidth,
}

/// `vrdma run …`.
#[derive(Debug, clap::Args)]
pub struct RunOptions {
    /// Device that the program gets; repeat for several
    #[arg(long = "dev", value_name = "NAME", required_unless_present = "shape")]
    pub devices: Vec<String>,
    /// Shape what the program sends through the system's own devices, hardware or soft-RoCE: never more than `rate` bits per second,
    /// `burst` bytes at once after a pause [default: 1 ms, at least 64 KiB], long WRITEs and READs in pieces of `piece` bytes
    /// [default: 65536]; only `device`, if there is one
    #[arg(long, value_name = "rate=RATE[,burst=BYTES][,piece=BYTES][,device=NAME]", value_parser = parse_shape)]
    pub shape: Option<Shape>,
    /// Say at the end how much was shaped: a line of JSON on standard error
    #[arg(long, requires = "shape")]
    pub stats: bool,
    /// Show the devices in /sys/class/infiniband and /dev/infiniband too, in a mount namespace of the program's own (root)
    #[arg(long)]
    pub view: bool,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub program: Vec<OsString>,
}

/// What the preload library is told about shaping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape(pub String);

/// `vrdma cdi …`.
#[derive(Debug, Subcommand)]
pub enum CdiCommand {
    /// Write the specification of each device; then, for example, `podman run --device vrdma.local/rdma=NAME …`
    Generate {
        /// Which devices, and where.
        #[command(flatten)]
        options: CdiOptions,
        /// Let containers see the device in /sys/class/infiniband too, where NCCL and others look for kinds of GIDs; they then
        /// see the host's other classes of devices in /sys/class as well, and of several devices of ours only the last
        #[arg(long)]
        sysfs: bool,
    },
    /// Remove specifications; containers that run keep their devices
    Remove {
        /// Which devices, and where.
        #[command(flatten)]
        options: CdiOptions,
    },
}

/// Which devices, and where their specifications lie.
#[derive(Debug, clap::Args)]
pub struct CdiOptions {
    /// Devices [default: all]
    #[arg(value_name = "NAME")]
    pub devices: Vec<String>,
    /// Folder of the specifications, where the container engine looks for them
    #[arg(long, value_name = "DIR", default_value = "/var/run/cdi")]
    pub spec_dir: PathBuf,
}

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
    pub listen: std::net::SocketAddr,
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

/// A number with an optional k, M, G or T: thousands.
fn parse_rate(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1e3),
        Some((at, 'M')) => (&text[..at], 1e6),
        Some((at, 'G')) => (&text[..at], 1e9),
        Some((at, 'T')) => (&text[..at], 1e12),
        _ => (text, 1.0),
    };
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let value = digits.parse::<f64>().ok().filter(|_| plain).map(|number| (number * unit).round());
    // Above, not every integer has a number of its own.
    let value = value.filter(|&value| value < 9e15).map(|value| value as u64);
    value.ok_or_else(|| "a number such as 1000000, 500M or 2.5G, below 9000T".to_owned())
}

/// The members of `--shape`, as the preload library reads them: plain numbers.
fn parse_shape(text: &str) -> Result<Shape, String> {
    let mut members = Vec::new();
    for member in text.split(',') {
        let (name, value) = member.split_once('=').ok_or_else(|| format!("`{member}` is not NAME=VALUE"))?;
        if members.iter().any(|(known, _)| *known == name) {
            return Err(format!("{name} is there twice"));
        }
        let number = |least: u64, most: u64| {
            let number = parse_rate(value).map_err(|error| format!("{name} is {error}"))?;
            let fits = (least..=most).contains(&number);
            if fits { Ok(number.to_string()) } else { Err(format!("{name} is {least} to {most}, not {number}")) }
        };
        let value = match name {
            "rate" => number(1_000_000, 1_000_000_000_000)?,
            "burst" => number(1, 1 << 32)?,
            "piece" => number(4096, 1 << 30)?,
            "device" if !value.is_empty() => value.to_owned(),
            _ => return Err(format!("`{member}` is none of rate=RATE, burst=BYTES, piece=BYTES, device=NAME")),
        };
        members.push((name, value));
    }
    if !members.iter().any(|(name, _)| *name == "rate") {
        return Err("rate=RATE is missing, in bits per second, such as rate=2.5G".to_owned());
    }
    Ok(Shape(members.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")))
}

/// The rate of a link.
fn parse_link(text: &str) -> Result<u64, String> {
    let rate = parse_rate(text)?;
    if rate >= 1_000_000 { Ok(rate) } else { Err("a link carries at least 1M".to_owned()) }
}

fn parse_bound(text: &str) -> Result<Bound, String> {
    if text == "none" { Ok(Bound(None)) } else { parse_rate(text).map(|rate| Bound(Some(rate))) }
}

fn parse_qpn(text: &str) -> Result<u32, String> {
    let number = text.strip_prefix("0x").map_or_else(|| text.parse(), |digits| u32::from_str_radix(digits, 16));
    number.ok().filter(|&qpn| qpn < 1 << 24).ok_or_else(|| "a queue pair number is below 2^24, decimal or 0x…".to_owned())
}

fn parse_mtu(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(mtu @ (256 | 512 | 1024 | 2048 | 4096)) => Ok(mtu),
        _ => Err("a path MTU is 256, 512, 1024, 2048 or 4096".to_owned()),
    }
}

fn parse_mode(text: &str) -> Result<String, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(format!("{mode:04o}")),
        _ => Err("a mode is an octal number of at most 0777, for example 0660".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn definition_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn modes_are_octal_and_bounded() {
        assert_eq!(parse_mode("660").unwrap(), "0660");
        assert!(parse_mode("0888").is_err());
        assert!(parse_mode("1000").is_err());
        assert!(parse_mode("-1").is_err());
    }

    #[test]
    fn cuts_are_sites_and_an_interval() {
        let cut = Cut { a: "HK".into(), b: "LA".into(), from_s: 1.5, to_s: 20.0 };
        assert_eq!(parse_cut("HK:LA:1.5:20"), Ok(cut));
        for wrong in ["HK:LA:1", "HK:LA:20:1", "HK:LA:1:1", "HK:LA:-1:1", "HK:LA:1:NaN", "HK:LA:1:2:3", ""] {
            assert!(parse_cut(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_follows_the_program_is_its_own() {
        let args = Args::try_parse_from(["vrdma", "run", "--dev", "a", "--", "prog", "--json", "--dev", "b"]).unwrap();
        let Command::Run(options) = args.command else { panic!("not run") };
        assert!(!args.json);
        assert_eq!(options.devices, ["a"]);
        assert_eq!(options.program, ["prog", "--json", "--dev", "b"]);
    }
}
