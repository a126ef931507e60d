//! `vrdma bench isolation`: a tenant that waits for small messages beside one that moves large ones, over one link.
//!
//! Owns: the order of measurements. The link is a veth pair of limited rate between two network namespaces, each with a daemon, and in each
//! daemon the two tenants have a device. The programs are Debian's, unmodified. What the tenants do to each other is measured three
//! times: as on a card without isolation, under Justitia, and under ours; all three in the same daemon, on the same link.

mod programs;
mod report;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use indicatif::ProgressBar;
use vdev::{Daemon, DaemonConfig, Isolation};

use crate::api::{Client, SharesChange};
use crate::args::BenchIsolationOptions;
use crate::output::{print, print_json, progress_bar};
use crate::place::Place;
use crate::stage::{self, ADDRESSES, Hosts};
use programs::{Bulk, Latency, latency};
use report::{Arm, Method, Policy, RateRow, Report};

/// The latency tenant's devices have the hosts' first addresses, the bulk tenant's these.
const BULK_ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 11), Ipv4Addr::new(192, 0, 2, 12)];
const DEVICES: [&str; 2] = ["quick", "bulk"];
/// Highest rates that are tried, in bits per second, if the link is as fast.
const RATES: [u64; 2] = [10_000_000, 1_000_000_000];
/// Time that a bulk transfer gets to be under way.
const START: Duration = Duration::from_secs(1);

/// Measures, and prints.
pub fn carry_out(options: &BenchIsolationOptions, json: bool) -> Result<()> {
    stage::check_hosts("bench isolation")?;
    ensure!(stage::is_installed("setpriv"), "bench isolation needs the program `setpriv`: install the package util-linux");
    for program in [programs::LATENCY, programs::BULK] {
        ensure!(stage::is_installed(program), "bench isolation needs the program `{program}`: install the package perftest");
    }
    let bench = Bench::new(options)?;
    let rounds = options.rounds;
    let rates: Vec<u64> = RATES.into_iter().filter(|&rate| rate <= options.link_rate).collect();
    let bar = progress_bar(u64::from(rounds) * 5 + rates.len() as u64, "measurements");
    let mut report = Report::new(Method::new(options, bench.hosts.has_split_cores()));
    for _ in 0..rounds {
        bench.round(&bar, &mut report)?;
    }
    let host = bench.start(Isolation::Vrdma)?;
    for rate in rates {
        say(&bar, &format!("highest rate of {} Mbit/s", rate / 1_000_000));
        report.rates.push(host.rate(rate)?);
    }
    bar.finish_and_clear();
    if json { print_json(&report.rows()) } else { print(report.rows().tables()) }
}

fn say(bar: &ProgressBar, next: &str) {
    if bar.is_hidden() {
        // Nobody looks at a terminal; a log line now and then tells that it goes on.
        eprintln!("vrdma: {next}");
    }
    bar.inc(1);
    bar.set_message(next.to_owned());
}

/// The two hosts and how long to measure.
struct Bench<'a> {
    options: &'a BenchIsolationOptions,
    hosts: Hosts,
    dir: tempfile::TempDir,
}

impl<'a> Bench<'a> {
    fn new(options: &'a BenchIsolationOptions) -> Result<Bench<'a>> {
        let dir = stage::private_dir()?;
        let mut hosts = Hosts::make()?;
        hosts.split_cores()?;
        hosts.limit_link(options.link_rate)?;
        for (index, address) in BULK_ADDRESSES.into_iter().enumerate() {
            hosts.add_address(index, address)?;
        }
        Ok(Bench { options, hosts, dir })
    }

    /// Each tenant alone, then both under each policy.
    fn round(&self, bar: &ProgressBar, report: &mut Report) -> Result<()> {
        let running = self.start(Isolation::Off)?;
        say(bar, "latency alone");
        let alone = running.latency(None)?;
        say(bar, "bandwidth alone");
        let bulk = running.bulk()?;
        std::thread::sleep(START);
        let start = running.sent()?;
        std::thread::sleep(Duration::from_secs(self.options.seconds));
        report.alone.push(Arm { latency: alone, bulk_bits_per_sec: Sent::rate(start, running.sent()?) });
        drop(bulk);
        say(bar, "both, without isolation");
        report.add(Policy::Off, running.both()?);
        drop(running);
        say(bar, "both, under Justitia");
        // The latency that a pair sees alone is what Justitia's target is taken from; perftest tells half the way there and back.
        let target = Duration::from_secs_f64(alone.p99_us * 2.0 / 1e6);
        let running = self.start(Isolation::Justitia { target })?;
        running.declare()?;
        report.add(Policy::Justitia, running.both()?);
        drop(running);
        say(bar, "both, under ours");
        report.add(Policy::Vrdma, self.start(Isolation::Vrdma)?.both()?);
        Ok(())
    }

    /// Daemons with this policy, and the devices.
    fn start(&self, isolation: Isolation) -> Result<Running<'_>> {
        let mut daemons = Vec::new();
        let dirs = [0, 1].map(|index| self.dir.path().join(format!("host{index}")));
        for (index, dir) in dirs.iter().enumerate() {
            let link_bytes_per_sec = Some(self.options.link_rate / 8);
            let config = DaemonConfig { isolation, link_bytes_per_sec, ..DaemonConfig::new(dir) };
            daemons.push(self.hosts.start_daemon(index, config)?);
            for (device, addresses) in DEVICES.into_iter().zip([ADDRESSES, BULK_ADDRESSES]) {
                stage::make_device(dir, device, addresses[index])?;
                stage::active_device(dir, device)?;
            }
        }
        Ok(Running { bench: self, dirs, _daemons: daemons })
    }
}

/// Two daemons.
struct Running<'a> {
    bench: &'a Bench<'a>,
    dirs: [PathBuf; 2],
    _daemons: Vec<Daemon>,
}

/// What the bulk tenant had sent at a time.
#[derive(Clone, Copy)]
struct Sent {
    at: Instant,
    bytes: u64,
}

impl Sent {
    /// Bits per second between two moments.
    fn rate(from: Sent, to: Sent) -> f64 {
        (to.bytes - from.bytes) as f64 * 8.0 / (to.at - from.at).as_secs_f64()
    }
}

impl Running<'_> {
    fn sockets(&self, device: &str) -> Result<[PathBuf; 2]> {
        let socket = |dir: &Path| Place::find(Some(dir))?.device_socket(device);
        Ok([socket(&self.dirs[0])?, socket(&self.dirs[1])?])
    }

    fn client(&self) -> Result<Client> {
        Client::new(Place::find(Some(&self.dirs[0]))?)
    }

    fn bulk(&self) -> Result<Bulk> {
        Bulk::start(&self.bench.hosts, &self.sockets(DEVICES[1])?, BULK_ADDRESSES[1])
    }

    /// As many messages as fit the time, whose length is found by a few; more of them take `bulk` into account.
    fn latency(&self, bulk: Option<&mut Bulk>) -> Result<Latency> {
        let time = Duration::from_secs(self.bench.options.seconds);
        let measured = latency(&self.bench.hosts, &self.sockets(DEVICES[0])?, ADDRESSES[1], time);
        if let Some(bulk) = bulk {
            bulk.check()?;
        }
        measured
    }

    fn sent(&self) -> Result<Sent> {
        let (client, before) = (self.client()?, Instant::now());
        let device = client.device(DEVICES[1])?;
        let names = ["latency_bytes", "message_rate_bytes", "bandwidth_bytes"];
        let count = |name: &str| device.counters.get(name).and_then(serde_json::Value::as_u64).context("a counter is missing");
        let bytes = names.iter().map(|name| count(name)).sum::<Result<u64>>()?;
        Ok(Sent { at: before + before.elapsed() / 2, bytes })
    }

    /// The latency tenant beside the bulk tenant.
    fn both(&self) -> Result<Arm> {
        let mut bulk = self.bulk()?;
        std::thread::sleep(START);
        let start = self.sent()?;
        let latency = self.latency(Some(&mut bulk))?;
        Ok(Arm { latency, bulk_bits_per_sec: Sent::rate(start, self.sent()?) })
    }

    /// Justitia knows classes only by what tenants declare, at both ends.
    fn declare(&self) -> Result<()> {
        for dir in &self.dirs {
            let client = Client::new(Place::find(Some(dir))?)?;
            for (device, class) in DEVICES.into_iter().zip(["latency", "bandwidth"]) {
                client.change(device, &SharesChange { class: Some(Some(class)), ..SharesChange::default() })?;
            }
        }
        Ok(())
    }

    /// How exactly a highest rate is kept, second by second.
    fn rate(&self, bits_per_sec: u64) -> Result<RateRow> {
        let change = |rate| SharesChange { max_bits_per_sec: Some(rate), ..SharesChange::default() };
        self.client()?.change(DEVICES[1], &change(Some(bits_per_sec)))?;
        let mut bulk = self.bulk()?;
        std::thread::sleep(START);
        let mut errors = Vec::new();
        let mut last = self.sent()?;
        for _ in 0..self.bench.options.seconds {
            std::thread::sleep(Duration::from_secs(1));
            let sent = self.sent()?;
            errors.push((Sent::rate(last, sent) / bits_per_sec as f64 - 1.0) * 100.0);
            last = sent;
        }
        bulk.check()?;
        self.client()?.change(DEVICES[1], &change(None))?;
        Ok(RateRow::new(bits_per_sec, &errors))
    }
}
