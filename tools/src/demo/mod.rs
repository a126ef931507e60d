//! `vrdma demo`: a daemon, two devices and two programs in a private directory, and what they reach.
//!
//! The two programs are child processes that use RDMA as any program does, through the preloaded verbs library. Nothing needs
//! root or an installed package, and nothing is left behind. [`wire`] is the exception: it needs root, for namespaces.

mod cores;
mod measure;
mod report;
mod side;
mod udp;
mod wire;

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use indicatif::ProgressBar;
use vdev::{Daemon, DaemonConfig};

use self::cores::Cores;
pub use self::measure::median;
use self::report::Report;
use self::side::Event;
pub use self::side::carry_out as carry_out_side;
use crate::args::{DemoOptions, DemoSide};
use crate::output::{print, print_json, progress_bar};
use crate::{run, stage};

/// Networks that are for documentation, so that they are nobody's. The devices get addresses from one of them.
const NETWORKS: [[u8; 3]; 3] = [[192, 0, 2], [198, 51, 100], [203, 0, 113]];

/// Runs the demo and prints its report.
pub fn carry_out(options: &DemoOptions, as_json: bool) -> Result<()> {
    if options.wire {
        stage::check_hosts("--wire")?;
    }
    let dir = stage::private_dir()?;
    let mut report = on_one_host(dir.path())?;
    if options.wire {
        report.wire = wire::measure(dir.path())?;
    }
    if as_json {
        return print_json(&report);
    }
    print(report.tables())?;
    print(
        "\nYour own program: start `vrdma daemon`, then `vrdma dev add a --ip 192.0.2.1` and `vrdma run --dev a -- PROGRAM`.\n",
    )
}

fn on_one_host(dir: &Path) -> Result<Report> {
    let cores = Cores::find()?;
    cores.start_daemon()?;
    let daemon = Daemon::start(DaemonConfig::new(dir)).context("cannot start a daemon")?;
    cores.start_programs()?;
    let mut slowest: f64 = 0.0;
    let mut sockets = Vec::new();
    for (name, ip) in ["a", "b"].into_iter().zip(addresses()?) {
        let device = stage::make_device(dir, name, ip)?;
        slowest = slowest.max(device.create_us);
        sockets.push(OsString::from(device.socket));
    }
    let pair = Pair::start([DemoSide::Initiator, DemoSide::Target], &sockets, |_| Command::new(own_binary()))?;
    let bar = progress_bar(0, "steps");
    let result = pair.follow(|progress| show(&bar, progress));
    bar.finish_and_clear();
    daemon.shutdown();
    cores.start_anything()?;
    match result? {
        Event::Report(mut report) => {
            report.device_create_us = slowest;
            report.method.cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            report.method.programs_share_a_core = cores.split;
            Ok(*report)
        }
        other => bail!("the initiator of the demo reported {other:?}"),
    }
}

/// Addresses for two devices.
fn addresses() -> Result<[Ipv4Addr; 2]> {
    let [a, b, c] = free_network()?;
    Ok([1, 2].map(|host| Ipv4Addr::new(a, b, c, host)))
}

/// A network of addresses that no interface has, lest a daemon elsewhere on this host uses them on the wire.
pub fn free_network() -> Result<[u8; 3]> {
    let mut taken = Vec::new();
    for interface in nix::ifaddrs::getifaddrs().context("cannot list the interfaces")? {
        if let Some(address) = interface.address.as_ref().and_then(|address| address.as_sockaddr_in()) {
            let [a, b, c, _] = address.ip().octets();
            taken.push([a, b, c]);
        }
    }
    Ok(NETWORKS.into_iter().find(|network| !taken.contains(network)).unwrap_or(NETWORKS[0]))
}

/// Two child processes with a link between them; the first one reports.
struct Pair {
    first: Child,
    second: Child,
    events: BufReader<ChildStdout>,
}

impl Pair {
    /// Starts both, each with its own device. `command` makes the command of each up to the arguments of this binary.
    fn start(sides: [DemoSide; 2], sockets: &[OsString], command: impl Fn(usize) -> Command) -> Result<Pair> {
        let (ours, theirs) = UnixStream::pair().context("cannot make a socket pair")?;
        let spawn = |index: usize, link: UnixStream, out: Stdio| -> Result<Child> {
            let mut command = command(index);
            run::equip(&mut command, &sockets[index])?;
            command.args(["demo-side", sides[index].name()]).stdin(Stdio::from(OwnedFd::from(link))).stdout(out);
            command.spawn().context("cannot start a child process of the demo")
        };
        let mut first = spawn(0, ours, Stdio::piped())?;
        let second = spawn(1, theirs, Stdio::null());
        match (first.stdout.take(), second) {
            (Some(output), Ok(second)) => Ok(Pair { first, second, events: BufReader::new(output) }),
            (_, second) => {
                let _ = first.kill();
                let _ = first.wait();
                Err(second.err().context("a child process of the demo has no output")?)
            }
        }
    }

    /// Follows the first process to its result. Both have ended when this returns.
    fn follow(mut self, progress: impl Fn(&Event)) -> Result<Event> {
        let mut result = None;
        let mut line = String::new();
        while self.events.read_line(&mut line).context("cannot follow a child process of the demo")? > 0 {
            let event = serde_json::from_str(&line).context("a child process of the demo said something unknown")?;
            match event {
                Event::Progress { .. } => progress(&event),
                other => result = Some(other),
            }
            line.clear();
        }
        let status = self.first.wait()?;
        ensure!(status.success(), "a child process of the demo failed ({status}): its reason is above");
        result.context("a child process of the demo ended without a result")
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // After a proper end the first has gone, and these calls do nothing. The second ends with its link.
        let _ = self.first.kill();
        let _ = self.first.wait();
        let _ = self.second.wait();
    }
}

fn show(bar: &ProgressBar, event: &Event) {
    if let Event::Progress { done, total, next } = event {
        bar.set_length(*total as u64);
        bar.set_position(*done as u64);
        bar.set_message(next.clone());
    }
}

/// The binary that runs, even if its file has been replaced meanwhile.
fn own_binary() -> &'static Path {
    Path::new("/proc/self/exe")
}
