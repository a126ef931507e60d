//! `vrdma demo --wire`: the way between two hosts, played by two network namespaces with a veth pair, MTU 9000.
//!
//! Each namespace has a daemon of its own, so that every byte goes through UDP sockets and the kernel's network stack. What that
//! stack can do at best is measured in the same rounds: plain UDP with segmentation offload (which is the lower limit of
//! everything that the daemon has to do), and iperf3 over TCP if it is installed.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use vdev::DaemonConfig;

use super::Pair;
use super::measure::median;
use super::report::WireRow;
use super::side::Event;
use crate::args::DemoSide;
use crate::stage::{ADDRESSES, Hosts, LINK_MTU, active_device, make_device, runs};

const ROUNDS: usize = 5;
/// The kinds of memory that are written from and to, with the names of their rows.
const STREAMERS: [(DemoSide, &str); 2] = [(DemoSide::HeapStreamer, "write_heap"), (DemoSide::SharedStreamer, "write_shared")];
/// Time for iperf3's server to listen.
const IPERF_START: Duration = Duration::from_secs(5);

/// Measures; the namespaces are gone afterwards.
pub fn measure(dir: &Path) -> Result<Vec<WireRow>> {
    let hosts = Hosts::make()?;
    let binary = std::env::current_exe().context("cannot find the running binary")?;
    let mut daemons = Vec::new();
    let mut sockets = Vec::new();
    for (index, ip) in ADDRESSES.into_iter().enumerate() {
        let dir = dir.join(format!("host{index}"));
        daemons.push(hosts.start_daemon(index, DaemonConfig::new(&dir))?);
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
            tcps.push(iperf3(&hosts)?);
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

/// One run of iperf3, in bytes per second received.
fn iperf3(hosts: &Hosts) -> Result<f64> {
    let mut server = hosts.command(1, "iperf3");
    let mut server = server.args(["-s", "-1"]).stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    // It has no way to say that it listens; the client is simply started again until it does.
    let deadline = Instant::now() + IPERF_START;
    let outcome = loop {
        let output = hosts
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
