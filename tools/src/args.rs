//! What the user typed, and nothing else: parsing here touches neither files nor sockets.

mod sim;
mod wan;

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

pub use sim::{SimCommand, SimIsolationOptions, SimPcieOptions, SimRunOptions, SimSprayOptions};
pub use wan::{WanAgentOptions, WanCommand, WanCompareOptions, WanControllerOptions, WanSimOptions};

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
    fn what_follows_the_program_is_its_own() {
        let args = Args::try_parse_from(["vrdma", "run", "--dev", "a", "--", "prog", "--json", "--dev", "b"]).unwrap();
        let Command::Run(options) = args.command else { panic!("not run") };
        assert!(!args.json);
        assert_eq!(options.devices, ["a"]);
        assert_eq!(options.program, ["prog", "--json", "--dev", "b"]);
    }
}
