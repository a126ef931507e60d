//! `vrdma demo --wire`: the way between two hosts, played by two network namespaces with a veth pair, MTU 9000.
//!
//! Each namespace has a daemon of its own, so that every byte goes through UDP sockets and the kernel's network stack. What that
//! stack can do at best is measured in the same rounds: plain UDP with segmentation offload (which is the lower limit of
//! everything that the daemon has to do), and iperf3 over TCP if it is installed.

use std::ffi::OsString;
use std::fs::File;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CloneFlags, setns};
use serde_json::Value;
use vdev::{Daemon, DaemonConfig};

use super::measure::median;
use super::report::WireRow;
use super::side::Event;
use super::{Pair, make_device};
use crate::api::{Client, Device};
use crate::args::DemoSide;
use crate::place::Place;

/// Addresses of the two hosts. Their namespaces have no others.
pub const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
const ROUNDS: usize = 5;
/// The kinds of memory that are written from and to, with the names of their rows.
const STREAMERS: [(DemoSide, &str); 2] = [(DemoSide::HeapStreamer, "write_heap"), (DemoSide::SharedStreamer, "write_shared")];
const LINK_MTU: u32 = 9000;
/// Time for a new interface to come up and for the daemon to see it.
const LINK_START: Duration = Duration::from_secs(5);
/// Time for iperf3's server to listen.
const IPERF_START: Duration = Duration::from_secs(5);

/// Whether this user and machine can do it at all.
pub fn check() -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "--wire makes network namespaces, which needs root: run it as root or leave it out"
    );
    ensure!(runs("ip", "-V"), "--wire needs the program `ip`: install the package iproute2");
    Ok(())
}

/// Measures; the namespaces are gone afterwards.
pub fn measure(dir: &Path) -> Result<Vec<WireRow>> {
    let hosts = Hosts::make()?;
    let binary = std::env::current_exe().context("cannot find the running binary")?;
    let mut daemons = Vec::new();
    let mut sockets = Vec::new();
    for (index, ip) in ADDRESSES.into_iter().enumerate() {
        let dir = dir.join(format!("host{index}"));
        daemons.push(hosts.start_daemon(index, &dir)?);
        make_device(&dir, "d", ip)?;
        sockets.push(OsString::from(active_device(&dir, "d")?.socket));
    }
    let pair = |sides| Pair::start(sides, &sockets, |index| hosts.command(index, &binary))?.follow(|_| ());
    let iperf = runs("iperf3", "--version");
    if !iperf {
        eprintln!("iperf3 is not installed: TCP is left out of the comparison");
    }
    let (mut writes, mut udps, mut tcps) = ([const { Vec::new() }; STREAMERS.len()], Vec::new(), Vec::new());
    let (mut size_bytes, mut mtu_bytes) = (0, 0);
    for _ in 0..ROUNDS {
        for ((side, _), rates) in STREAMERS.into_iter().zip(&mut writes) {
            match pair([side, DemoSide::Target])? {
                Event::Write { size_bytes: size, mtu_bytes: mtu, bytes_per_sec } => {
                    (size_bytes, mtu_bytes) = (size, mtu);
                    rates.push(bytes_per_sec);
                }
                other => bail!("the streamer of the demo reported {other:?}"),
            }
        }
        match pair([DemoSide::UdpReceiver, DemoSide::UdpSender])? {
            Event::Udp { bytes_per_sec } => udps.push(bytes_per_sec),
            other => bail!("the receiver of the demo reported {other:?}"),
        }
        if iperf {
            tcps.push(hosts.iperf()?);
        }
    }
    let row = |what: &str, size_bytes, mtu_bytes, rates: &[f64]| WireRow {
        what: what.to_owned(),
        size_bytes,
        mtu_bytes,
        gbytes_per_sec: median(&mut rates.to_vec()) / 1e9,
        ratio_udp: None,
        ratio_tcp: None,
    };
    let mut rows = Vec::new();
    for ((_, what), rates) in STREAMERS.into_iter().zip(&writes) {
        let ratio = |peers: &[f64]| median(&mut rates.iter().zip(peers).map(|(write, peer)| write / peer).collect::<Vec<_>>());
        let ratio_tcp = iperf.then(|| ratio(&tcps));
        rows.push(WireRow { ratio_udp: Some(ratio(&udps)), ratio_tcp, ..row(what, size_bytes, mtu_bytes, rates) });
    }
    let burst = u32::try_from(super::udp::BURST).unwrap_or(u32::MAX);
    let segment = u32::try_from(super::udp::SEGMENT).unwrap_or(u32::MAX);
    rows.push(row("udp_segmentation_offload", burst, segment, &udps));
    if iperf {
        rows.push(row("iperf3_tcp", 128 << 10, LINK_MTU, &tcps));
    }
    Ok(rows)
}

/// The device, once the kernel has brought its interface up.
fn active_device(dir: &Path, name: &str) -> Result<Device> {
    let client = Client::new(Place::find(Some(dir))?)?;
    let deadline = Instant::now() + LINK_START;
    loop {
        let device = client.device(name)?;
        if device.state == "ACTIVE" {
            return Ok(device);
        }
        ensure!(Instant::now() < deadline, "the device at {} is {}: {:?}", device.ips.join(" "), device.state, device.wire);
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn runs(program: &str, argument: &str) -> bool {
    let status = Command::new(program).arg(argument).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Two network namespaces with a veth pair between them. Removed when dropped.
struct Hosts {
    names: [String; 2],
}

impl Hosts {
    fn make() -> Result<Hosts> {
        let hosts = Hosts { names: host_names() };
        let [a, b] = &hosts.names;
        for name in &hosts.names {
            ip(&["netns", "add", name])?;
        }
        let mtu = LINK_MTU.to_string();
        // The two interfaces live in different namespaces, so that they may have the same name there.
        ip(&["-n", a, "link", "add", "veth", "mtu", &mtu, "type", "veth", "peer", "name", "veth", "mtu", &mtu, "netns", b])?;
        for (name, address) in hosts.names.iter().zip(ADDRESSES) {
            ip(&["-n", name, "address", "add", &format!("{address}/24"), "dev", "veth"])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
            ip(&["-n", name, "link", "set", "veth", "up"])?;
        }
        Ok(hosts)
    }

    /// A daemon on one of the two hosts: threads have a network namespace of their own, which those that they start inherit.
    fn start_daemon(&self, index: usize, dir: &Path) -> Result<Daemon> {
        let path = Path::new("/run/netns").join(&self.names[index]);
        let config = DaemonConfig::new(dir);
        let start = move || -> Result<Daemon> {
            let namespace = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
            setns(namespace, CloneFlags::CLONE_NEWNET).with_context(|| format!("cannot enter {}", path.display()))?;
            Daemon::start(config).context("cannot start a daemon")
        };
        match std::thread::spawn(start).join() {
            Ok(daemon) => daemon,
            Err(_) => bail!("the thread that starts a daemon has failed"),
        }
    }

    /// A command that runs a program on one of the two hosts.
    fn command(&self, index: usize, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[index]]).arg(program.as_ref());
        command
    }

    /// One run of iperf3, in bytes per second received.
    fn iperf(&self) -> Result<f64> {
        let mut server = self.command(1, "iperf3");
        let mut server = server.args(["-s", "-1"]).stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        // It has no way to say that it listens; the client is simply started again until it does.
        let deadline = Instant::now() + IPERF_START;
        let outcome = loop {
            let output = self
                .command(0, "iperf3")
                .args(["-c", &ADDRESSES[1].to_string(), "-t", "1", "-J"])
                .stdin(Stdio::null())
                .output()?;
            let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            match answer["end"]["sum_received"]["bits_per_second"].as_f64() {
                Some(bits) => break Ok(bits / 8.0),
                None if Instant::now() > deadline => break Err(anyhow::anyhow!("iperf3 failed: {}", answer["error"])),
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        if outcome.is_err() {
            let _ = server.kill();
        }
        let _ = server.wait();
        outcome
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        remove_hosts();
    }
}

fn host_names() -> [String; 2] {
    ["a", "b"].map(|end| format!("vrdma-demo-{}-{end}", std::process::id()))
}

/// Removes the namespaces of this process, if there are any.
pub fn remove_hosts() {
    for name in host_names() {
        if Path::new("/run/netns").join(&name).exists() {
            // What cannot be removed is named after a process that is gone, and `ip netns` lists it.
            let _ = Command::new("ip").args(["netns", "delete", &name]).stdin(Stdio::null()).status();
        }
    }
}

fn ip(args: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(args).stdin(Stdio::null()).output().context("cannot run `ip`")?;
    let reason = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`ip {}` failed: {}", args.join(" "), reason.trim());
    Ok(())
}
