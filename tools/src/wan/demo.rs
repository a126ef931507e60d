//! `vrdma wan demo`: SWAN at a small scale on this host. One daemon, an agent for each of the five sites, a controller, and a coflow.
//!
//! Nothing needs root, and nothing is left behind. Links are not real here: the daemon holds each path to its rate, as it does between
//! hosts, and copies what the agents' devices send one another.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hyper::Method;
use serde::Serialize;
use serde_json::{Value, json};
use terra::min_cct::{Effort, Solver, demands};
use terra::read::links;
use terra::topology::Known;
use terra::{Coflow, CoflowId, Flow, LinkId, Wan};
use vdev::{Daemon, DaemonConfig};

use super::client::follow;
use super::controller::LiveStatus;
use crate::api::Client;
use crate::demo::free_network;
use crate::output::{print, print_json};
use crate::place::Place;
use crate::stage;

/// What each link carries, Gbit/s.
const LINK_GBPS: f64 = 0.1;
/// Paths that a site sends on at once.
const PATHS: usize = 4;
/// What is sent: from, to, bytes. Most of it goes over relays too.
const FLOWS: [(&str, &str, u64); 5] = [
    ("HK", "BA", 50_000_000),
    ("HK", "FL", 30_000_000),
    ("LA", "BA", 40_000_000),
    ("BA", "LA", 60_000_000),
    ("NY", "HK", 25_000_000),
];
/// How much longer than the least possible it may take.
const BAR: f64 = 0.15;
/// For all agents to be there.
const START: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(20);
const GBIT_PER_BYTE: f64 = 8e-9;

/// What came out.
#[derive(Serialize)]
struct Report {
    bytes: u64,
    computed_s: f64,
    measured_s: f64,
    over: f64,
    bar: f64,
    met: bool,
}

/// Programs that end with this one, and what each says.
struct Programs(Vec<(Child, PathBuf)>);

impl Drop for Programs {
    fn drop(&mut self) {
        // The controller last: agents would miss it.
        for (program, _) in self.0.iter_mut().rev() {
            // It may have ended by itself.
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}

impl Programs {
    fn start(&mut self, place: &Place, args: &[String]) -> Result<()> {
        let path = place.dir().join(format!("{}.log", self.0.len()));
        let log = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let mut command = Command::new("/proc/self/exe");
        command.arg("wan").args(args).env("VRDMA_DIR", place.dir()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.0.push((command.spawn().context("cannot start a program of the demo")?, path));
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        for (program, log) in &mut self.0 {
            if program.try_wait()?.is_some() {
                bail!("a program of the demo has ended: {}", fs::read_to_string(log)?.trim());
            }
        }
        Ok(())
    }
}

/// Runs the demo and prints what came out.
pub fn carry_out(as_json: bool) -> Result<()> {
    let dir = stage::private_dir()?;
    let place = Place::find(Some(dir.path()))?;
    let daemon = Daemon::start(DaemonConfig::new(dir.path())).context("cannot start a daemon")?;
    let mut programs = Programs(Vec::new());
    let result = run(&place, &mut programs);
    drop(programs);
    daemon.shutdown();
    let report = result?;
    if as_json {
        return print_json(&report);
    }
    print(format!(
        "{} MB between five sites, checked: {:.2} s; the least possible is {:.2} s ({:+.1} %; the bar is {:+.0} %: {})\n\n\
         Your own sites: start `vrdma daemon` on each host, `vrdma wan controller --topology FILE` on one, then `vrdma wan agent` for each.\n",
        report.bytes / 1_000_000,
        report.measured_s,
        report.computed_s,
        report.over * 100.0,
        report.bar * 100.0,
        if report.met { "meets" } else { "MISSES" }
    ))
}

fn run(place: &Place, programs: &mut Programs) -> Result<Report> {
    let wan = network()?;
    let topology = place.dir().join("swan.links");
    fs::write(&topology, links::write(&wan)).with_context(|| format!("cannot write {}", topology.display()))?;
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<String>>();
    programs.start(place, &words(&["controller", "--with-parent", "--topology", &topology.display().to_string()]))?;
    let [a, b, c] = free_network()?;
    // Nobody else's: a loopback network has room for every process.
    let [.., high, low] = std::process::id().to_be_bytes();
    let mut next = 1;
    for (index, site) in (1u8..).zip(wan.sites()) {
        let mut names = vec![site.clone()];
        names.extend((1..=PATHS).map(|path| format!("{site}-{path}")));
        for name in &names {
            stage::make_device(place.dir(), name, Ipv4Addr::new(a, b, c, next))?;
            next += 1;
        }
        let listen = format!("{}:{}", Ipv4Addr::new(127, high | 64, low, index), 4790);
        let mut args = words(&["agent", "--with-parent", "--site", site, "--listen", &listen, "--device", &names[0]]);
        names[1..].iter().for_each(|name| args.extend(words(&["--path-device", name])));
        programs.start(place, &args)?;
    }
    let client = Client::at(place.wan_socket()?, "vrdma wan demo")?;
    wait_until_whole(&client, programs)?;
    let flows: Vec<Value> = FLOWS.iter().map(|(from, to, bytes)| json!({"from": from, "to": to, "bytes": bytes})).collect();
    let job = serde_json::to_vec(&json!({"coflows": [{"name": "demo", "flows": flows}]}))?;
    let answer = client.call(Method::POST, "/v1/jobs", Some(job))?;
    let ids: Vec<CoflowId> = serde_json::from_value(answer["coflows"].clone()).context("the controller named no coflows")?;
    let done = follow(&client, &ids)?;
    let measured_s = done.iter().map(|one| one.done_s - one.arrived_s).fold(0.0, f64::max);
    let computed_s = computed_s(&wan)?;
    let over = measured_s / computed_s - 1.0;
    let bytes = FLOWS.iter().map(|(.., bytes)| bytes).sum();
    Ok(Report { bytes, computed_s, measured_s, over, bar: BAR, met: over <= BAR })
}

fn network() -> Result<Wan> {
    let mut wan = Known::Swan.wan();
    for link in 0..wan.links().len() as u32 {
        wan.set_capacity(LinkId(link), LINK_GBPS)?;
    }
    Ok(wan)
}

/// Waits for the controller, all agents, and neighbours that hear each other.
fn wait_until_whole(client: &Client, programs: &mut Programs) -> Result<()> {
    let deadline = Instant::now() + START;
    loop {
        programs.check()?;
        if let Ok(answer) = client.call(Method::GET, "/v1/status", None) {
            let LiveStatus { schedule, .. } = serde_json::from_value(answer)?;
            if schedule.agents.values().all(|there| *there) && schedule.links.iter().all(|(.., gbps, _)| *gbps > 0.0) {
                return Ok(());
            }
        }
        ensure!(Instant::now() < deadline, "not all agents are there after {} s", START.as_secs());
        std::thread::sleep(LOOK);
    }
}

/// The least time in which the network can carry the flows.
fn computed_s(wan: &Wan) -> Result<f64> {
    let flow = |&(from, to, bytes): &(&str, &str, u64)| {
        Ok(Flow { src: wan.site(from)?, dst: wan.site(to)?, volume_gbit: bytes as f64 * GBIT_PER_BYTE })
    };
    let coflow = Coflow::new(CoflowId(0), FLOWS.iter().map(flow).collect::<Result<Vec<_>>>()?)?;
    let volumes: Vec<f64> = coflow.groups.iter().map(|group| group.volume_gbit).collect();
    let solved = Solver::new(wan).solve(wan, &wan.capacities(), &demands(&coflow, &volumes), Effort::precise())?;
    Ok(solved.cct_s)
}
