//! Coflows over a real network of namespaces and links of little rate: SWAN with a daemon and an agent per site, and a controller. They end
//! about when computed, and nothing is lost when links, agents or the controller die. Figures are printed (`--nocapture`), not judged:
//! how long things take here depends on what else the machine does.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use terra::min_cct::{Effort, Solver, demands};
use terra::random::Random;
use terra::{Coflow, CoflowId, Flow, Wan};
use tests::{Daemon, DaemonOptions, Program, Sites, http, missing_program, need_root, one_at_a_time};

const NAMES: [&str; 5] = ["hk", "la", "ny", "fl", "ba"];
const LINKS: [(&str, &str); 7] =
    [("hk", "la"), ("hk", "ny"), ("la", "ny"), ("la", "fl"), ("ny", "fl"), ("ny", "ba"), ("fl", "ba")];
/// What a link carries, and what the schedule may use of it: packets have headers, and agents have something to say.
const LINK_MBIT: u32 = 40;
const USED: f64 = 0.95;
/// Paths that a site sends on at once.
const PATHS: usize = 8;
/// Bars of the figures.
const CCT_BAR: f64 = 0.15;
const MOVE_BAR_MS: f64 = 250.0;
/// For everything to be there, and for a coflow to end.
const START_LIMIT: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_secs(120);

/// SWAN at a small scale, with everything that runs on it.
struct Swan {
    sites: Sites,
    daemons: BTreeMap<&'static str, Daemon>,
    agents: BTreeMap<&'static str, Program>,
    controller: Option<Program>,
    started: u32,
}

impl Swan {
    fn new() -> Swan {
        let links = LINKS.map(|(a, b)| (a, b, LINK_MBIT));
        let sites = Sites::new(&NAMES, &links, PATHS + 1);
        let daemon = |&site: &&'static str| {
            let netns = Some(sites.netns(site));
            let mut daemon = Daemon::start_with(DaemonOptions { netns, ..DaemonOptions::default() });
            for number in 0..=PATHS {
                daemon.add_device(&device(number), &sites.address(site, number));
            }
            std::fs::create_dir(daemon.folder().join("files")).expect("the folder is new");
            (site, daemon)
        };
        let daemons = NAMES.iter().map(daemon).collect();
        let mut swan = Swan { sites, daemons, agents: BTreeMap::new(), controller: None, started: 0 };
        let mut topology: String = NAMES.iter().map(|name| format!("site {name}\n")).collect();
        topology.extend(LINKS.iter().map(|(a, b)| format!("edge {a} {b} {}\n", f64::from(LINK_MBIT) * USED / 1e3)));
        std::fs::write(swan.home().join("swan.links"), topology).expect("the folder is writable");
        swan.start_controller();
        for site in NAMES {
            swan.start_agent(site);
        }
        swan
    }

    /// Folder of the controller: that of the first daemon.
    fn home(&self) -> &Path {
        self.daemons["hk"].folder()
    }

    fn files(&self, site: &str) -> PathBuf {
        self.daemons[site].folder().join("files")
    }

    fn start_controller(&mut self) {
        self.started += 1;
        let topology = self.home().join("swan.links");
        let command = self.daemons["hk"].command(&["wan", "controller", "--topology", topology.to_str().expect("text")]);
        let mut program = Program::start(&format!("controller-{}", self.started), self.home(), command);
        program.wait_for_output("the controller serves", START_LIMIT);
        self.controller = Some(program);
    }

    /// Starts the agent of a site and waits until the controller and its neighbours know it.
    fn start_agent(&mut self, site: &'static str) {
        self.started += 1;
        let (controller, files) = (self.home().join("wan.sock"), self.files(site));
        let listen = format!("{}:4790", self.sites.address(site, 0));
        let mut words = vec!["wan", "agent", "--site", site, "--listen", &listen, "--device", "wan"];
        words.extend(["--controller", controller.to_str().expect("text"), "--files", files.to_str().expect("text")]);
        let devices: Vec<String> = (1..=PATHS).map(device).collect();
        devices.iter().for_each(|device| words.extend(["--path-device", device]));
        let daemon = &self.daemons[site];
        let mut command = daemon.command(&words);
        command.env("VRDMA_LOG", "info").env("NO_COLOR", "1");
        let mut agent = Program::start(&format!("agent-{}", self.started), daemon.folder(), command);
        agent.wait_for_output("listens on", START_LIMIT);
        self.agents.insert(site, agent);
    }

    fn status(&self) -> Option<Value> {
        let (status, body) = http(&self.home().join("wan.sock"), "GET", "/v1/status", "").ok()?;
        (status == 200).then(|| serde_json::from_str(&body).expect("the API answers in JSON"))
    }

    /// Waits until the controller says so of its status.
    fn wait_until(&mut self, what: &str, limit: Duration, is_so: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + limit;
        loop {
            let status = self.status();
            if let Some(status) = status.as_ref().filter(|status| is_so(status)) {
                return status.clone();
            }
            for (site, agent) in &mut self.agents {
                assert!(agent.is_running(), "the agent of {site} ended: {}", agent.output());
            }
            assert!(Instant::now() < deadline, "{what} after {limit:?}? {status:#?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until all agents are there and all links carry.
    fn wait_until_whole(&mut self) {
        self.wait_until("all agents and links", START_LIMIT, |status| {
            let agents = status["agents"].as_object().expect("agents").values();
            let links = status["links"].as_array().expect("links").iter();
            agents.into_iter().all(|there| there == true) && links.into_iter().all(|link| link[2].as_f64() > Some(0.0))
        });
    }

    /// Makes files of these bytes and submits a coflow that sends them.
    fn submit(&mut self, flows: &[(&'static str, &'static str, u64)]) -> Transfer {
        let mut random = Random::new(7);
        let mut list = Vec::new();
        for (number, &(from, to, bytes)) in flows.iter().enumerate() {
            let data: Vec<u8> = (0..bytes).map(|_| random.below(256) as u8).collect();
            std::fs::write(self.files(from).join(format!("out{number}")), data).expect("the folder is writable");
            list.push(json!({"from": from, "to": to, "bytes": bytes, "file": format!("out{number}"), "to_file": format!("in{number}")}));
        }
        let job = json!({"coflows": [{"flows": list}]}).to_string();
        let (status, body) = http(&self.home().join("wan.sock"), "POST", "/v1/jobs", &job).expect("the controller answers");
        assert_eq!(status, 201, "{body}");
        Transfer { flows: flows.to_vec(), computed_s: computed_s(flows) }
    }

    /// Waits until so much of the only coflow is done, as a fraction.
    fn wait_for_part(&mut self, part: f64) {
        self.wait_until("a part of the coflow", LIMIT, |status| {
            let coflow = &status["coflows"][0];
            coflow["left_gbit"].as_f64() < coflow["volume_gbit"].as_f64().map(|volume| volume * (1.0 - part))
        });
    }

    /// Waits for the end of the only coflow; what it took. Every byte is where it belongs then.
    fn wait_for_end(&mut self, transfer: &Transfer) -> f64 {
        let status = self.wait_until("the coflow is done", LIMIT, |status| {
            status["finished"].as_array().is_some_and(|list| list.len() == 1)
        });
        for (number, (from, to, bytes)) in transfer.flows.iter().enumerate() {
            let sent = std::fs::read(self.files(from).join(format!("out{number}"))).expect("what was sent");
            let received = std::fs::read(self.files(to).join(format!("in{number}"))).expect("what was received");
            assert_eq!(received.len() as u64, *bytes);
            let wrong = sent.iter().zip(&received).position(|(sent, received)| sent != received);
            assert_eq!(wrong, None, "byte of file {number} that is not what was sent");
        }
        let done = &status["finished"][0];
        done["done_s"].as_f64().expect("a time") - done["arrived_s"].as_f64().expect("a time")
    }

    /// When an agent first said something after some time, seconds of the day.
    fn said(&self, text: &str, after_s: f64) -> Option<f64> {
        let lines = self.agents.values().flat_map(|agent| agent.output().lines().map(str::to_owned).collect::<Vec<_>>());
        lines
            .filter(|line| line.contains(text))
            .filter_map(|line| second_of_day(&line))
            .filter(|at_s| *at_s > after_s)
            .reduce(f64::min)
    }
}

/// A coflow that was submitted.
struct Transfer {
    flows: Vec<(&'static str, &'static str, u64)>,
    /// The least time in which links of full rate could carry it.
    computed_s: f64,
}

fn device(number: usize) -> String {
    if number == 0 { "wan".to_owned() } else { format!("path{number}") }
}

/// The least completion time on links of the full rate.
fn computed_s(flows: &[(&str, &str, u64)]) -> f64 {
    let mut wan = Wan::new();
    let ids: BTreeMap<&str, _> = NAMES.iter().map(|name| (*name, wan.add_site(name).expect("a new site"))).collect();
    for (a, b) in LINKS {
        for (from, to) in [(a, b), (b, a)] {
            wan.add_link(ids[from], ids[to], f64::from(LINK_MBIT) / 1e3).expect("a new link");
        }
    }
    let flow = |&(from, to, bytes): &(&str, &str, u64)| Flow { src: ids[from], dst: ids[to], volume_gbit: bytes as f64 * 8e-9 };
    let coflow = Coflow::new(CoflowId(1), flows.iter().map(flow)).expect("a coflow");
    let volumes: Vec<f64> = coflow.groups.iter().map(|group| group.volume_gbit).collect();
    let solved = Solver::new(&wan).solve(&wan, &wan.capacities(), &demands(&coflow, &volumes), Effort::precise());
    solved.expect("all sites are connected").cct_s
}

/// The time at the start of a line of a log, `2026-01-02T03:04:05.678901Z`.
fn second_of_day(line: &str) -> Option<f64> {
    let (_, time) = line.split_whitespace().next()?.split_once('T')?;
    let mut parts = time.trim_end_matches('Z').split(':').map(|part| part.parse::<f64>().ok());
    Some(parts.next()?? * 3_600.0 + parts.next()?? * 60.0 + parts.next()??)
}

fn of_day(at: SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64() % 86_400.0
}

/// Prints a figure beside its bar.
fn figure(name: &str, value: String, meets: bool) {
    println!("{name:60} {value:>24}  {}", if meets { "meets" } else { "MISSES" });
}

fn figure_cct(name: &str, measured_s: f64, transfer: &Transfer) {
    let over = measured_s / transfer.computed_s - 1.0;
    let value = format!("{measured_s:.2} s of {:.2} s ({:+.1} %)", transfer.computed_s, over * 100.0);
    figure(&format!("{name}: completion, bar {:+.0} %", CCT_BAR * 100.0), value, over <= CCT_BAR);
}

fn cannot_be_done() -> bool {
    missing_program(&["ip", "tc", "nft"]) || need_root("network namespaces")
}

const MB: u64 = 1_000_000;
/// Several senders and receivers, most of them over relays too.
const MANY: [(&str, &str, u64); 5] = [
    ("hk", "ba", 30 * MB),
    ("hk", "fl", 20 * MB),
    ("la", "ba", 25 * MB + 1),
    ("ba", "la", 40 * MB + 77_777),
    ("ny", "hk", 15 * MB),
];

#[test]
fn a_coflow_ends_about_when_computed() {
    let _turn = one_at_a_time();
    if cannot_be_done() {
        return;
    }
    let mut swan = Swan::new();
    swan.wait_until_whole();
    let transfer = swan.submit(&MANY);
    let took_s = swan.wait_for_end(&transfer);
    figure_cct("five flows on SWAN", took_s, &transfer);
}

#[test]
fn a_link_that_dies_loses_nothing_and_its_traffic_moves() {
    let _turn = one_at_a_time();
    if cannot_be_done() {
        return;
    }
    let mut swan = Swan::new();
    swan.wait_until_whole();
    let transfer = swan.submit(&[("la", "ba", 60 * MB)]);
    swan.wait_for_part(0.3);
    // The way over fl is gone; that over hk, on which nothing was sent, takes its place.
    let watch = swan.sites.watch("hk");
    std::thread::sleep(Duration::from_millis(100));
    let cut_s = of_day(SystemTime::now());
    swan.sites.cut("la", "fl");
    let took_s = swan.wait_for_end(&transfer);
    let detected_s = swan.said("does not answer", cut_s).expect("the cut was noticed");
    let samples = watch.end();
    let before = samples[0].sent["ny"];
    // More than probes and acknowledgements.
    let moved_s = samples.iter().find(|sample| sample.sent["ny"] > before + 100_000).map(|sample| of_day(sample.at));
    let moved_s = moved_s.expect("hk relays what went over fl");
    figure_cct("a link is cut", took_s, &transfer);
    println!("{:60} {:>21.0} ms", "from the cut to its detection", (detected_s - cut_s) * 1e3);
    let moved_ms = (moved_s - detected_s) * 1e3;
    let value = format!("{moved_ms:.0} ms");
    figure(&format!("from the detection to data on the other way, bar {MOVE_BAR_MS} ms"), value, moved_ms <= MOVE_BAR_MS);
}

#[test]
fn the_controller_and_agents_may_be_killed() {
    let _turn = one_at_a_time();
    if cannot_be_done() {
        return;
    }
    // A sender, a relay and a receiver, and the controller.
    for victim in ["controller", "la", "fl", "ba"] {
        let mut swan = Swan::new();
        swan.wait_until_whole();
        let transfer = swan.submit(&[("la", "ba", 40 * MB), ("ba", "hk", 10 * MB)]);
        swan.wait_for_part(0.4);
        if let Some(site) = NAMES.into_iter().find(|site| *site == victim) {
            swan.agents.remove(site);
            std::thread::sleep(Duration::from_millis(300));
            swan.start_agent(site);
        } else {
            swan.controller = None;
            std::thread::sleep(Duration::from_millis(300));
            swan.start_controller();
        }
        let took_s = swan.wait_for_end(&transfer);
        println!("{:60} {:>21.2} s, {:.2} s computed without", format!("{victim} is killed"), took_s, transfer.computed_s);
    }
}

#[test]
fn strangers_and_what_cannot_be_sent_disturb_nobody() {
    let _turn = one_at_a_time();
    if cannot_be_done() {
        return;
    }
    let mut swan = Swan::new();
    swan.wait_until_whole();
    let flow = json!({"from": "la", "to": "ny", "bytes": 1, "file": "../agent-2.log"});
    let job = json!({"job": 99, "coflows": [{"flows": [flow]}]}).to_string();
    let (status, body) = http(&swan.home().join("wan.sock"), "POST", "/v1/jobs", &job).expect("the controller answers");
    assert_eq!(status, 201, "{body}");
    let status = swan
        .wait_until("the job is refused", LIMIT, |status| status["refused"].as_array().is_some_and(|list| !list.is_empty()));
    let reason = status["refused"][0]["reason"].as_str().expect("a reason");
    assert!(reason.contains("agent-2.log") && status["refused"][0]["coflow"] == 99_000, "{status}");

    // At a neighbour's address, and at one that is none.
    let hello = |from: &str, version: u32, sites: &[&str]| {
        let peer = json!({"qpn": u32::MAX, "psn": u32::MAX, "gid": vec![255; 16], "mtu": 99});
        json!({"version": version, "from": from, "sites": sites, "peer": peer}).to_string() + "\n"
    };
    let greetings = [
        String::new(),
        "\n".to_owned(),
        "{}\n".to_owned(),
        "x".repeat(5 << 20),
        hello("ny", 1, &["hk"]),
        hello("la", 2, &["hk"]),
        hello("la", 1, &["ny"]),
        hello("la", 1, &["hk", "hk"]),
        hello("la", 1, &["hk"]),
        hello("la", 1, &["hk", "nowhere"]),
    ];
    let to = format!("{}:4790", swan.sites.address("hk", 0));
    for at in ["la", "hk"] {
        swan.sites.at(at, || {
            for greeting in &greetings {
                let mut stream = TcpStream::connect(&to).expect("the agent listens");
                stream.set_read_timeout(Some(START_LIMIT)).expect("a socket");
                // It may have hung up before all was said.
                let _ = stream.write_all(greeting.as_bytes());
                let mut answer = Vec::new();
                let _ = stream.read_to_end(&mut answer);
                let answer = String::from_utf8_lossy(&answer);
                assert!(answer.is_empty() || answer.contains("refused"), "{greeting:.100} is answered by {answer}");
            }
            let probe = UdpSocket::bind("0.0.0.0:0").expect("a socket");
            for packet in [&b""[..], b"vrdmaws?", b"vrdmaws!", &[0; 1_000]] {
                probe.send_to(packet, &to).expect("it goes");
            }
        });
    }
    let transfer = swan.submit(&[("hk", "la", 5 * MB), ("la", "hk", 5 * MB)]);
    swan.wait_for_end(&transfer);
}
