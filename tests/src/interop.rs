//! vrdma on the host against Linux soft-RoCE (`rdma_rxe`) in a guest: one bed for any number of runs of unmodified programs,
//! each judged by what both ends report and by the packets that passed.

use crate::matrix::{Row, free_port, judge, result_lines};
use crate::vm::{Capture, Guest, GuestOptions, Image, Job, Switch};
use crate::{Daemon, DaemonOptions, Ended, Program};
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long one run may take. Most take a few seconds; emulation on a loaded machine is slow, and so is recovery from loss.
const RUN_LIMIT: Duration = Duration::from_secs(300);
/// How long a server may take until it listens, and how long after the end of one side the other may go on.
const MEET_LIMIT: Duration = Duration::from_secs(120);
/// How long a look at either side may take after a failure.
const LOOK_LIMIT: Duration = Duration::from_secs(20);
/// How often a client that is refused tries again, a second apart: that a server of rdma_cm listens on vrdma shows only so.
const TRIES: u32 = 20;
/// What a client prints that was refused because nobody listens.
const REFUSALS: &[&str] = &["RDMA_CM_EVENT_REJECTED", "Unexpected CM event bl blka 8", "Connection refused"];
/// What perftest prints when `-R` lets it connect before the other side listens for its second connection. perftest before 26.04 goes
/// on with ids that it has freed, and crashes; such a run tells nothing of either side.
const LOST_RACE: &str = "RDMA_CM_EVENT_REJECTED; error: 8";
/// How often a row is run that perftest spoils so. Whether it does depends on how fast either side is.
const RACES: u32 = 8;
/// How often a client is looked at while it runs.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// State of the guest that tells why a run failed.
const GUEST_STATE: &str =
    "rdma resource show cm_id; rdma resource show qp; rdma statistic show; dmesg | tail -n 20; ps ax | tail -n 15";

/// The side that vrdma takes; rxe takes the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// vrdma listens.
    Server,
    /// vrdma connects.
    Client,
}

/// The way between the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// GIDs of IPv6 addresses rather than of IPv4 ones.
    pub ipv6: bool,
    /// Ethernet MTU.
    pub ethernet_mtu: u32,
    /// Share of packets lost.
    pub loss_per_mille: u32,
}

impl Path {
    /// IPv4 over plain Ethernet: path MTU 1024.
    pub const PLAIN: Path = Path { ipv6: false, ethernet_mtu: 1500, loss_per_mille: 0 };

    fn path_mtu(&self) -> u32 {
        if self.ethernet_mtu >= 4200 { 4096 } else { 1024 }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = if self.ipv6 { "IPv6" } else { "IPv4" };
        write!(f, "{family}, MTU {}", self.path_mtu())?;
        if self.loss_per_mille > 0 {
            write!(f, ", {}.{} % lost", self.loss_per_mille / 10, self.loss_per_mille % 10)?;
        }
        Ok(())
    }
}

/// One run and how it ended.
#[derive(Debug)]
pub struct Outcome {
    /// What was run.
    pub row: Row,
    /// The side that vrdma took.
    pub vrdma: Role,
    /// The way between.
    pub path: Path,
    /// Packets looked at.
    pub packets: usize,
    /// How often it was begun in vain, because perftest connected before the other side listened.
    pub lost_races: u32,
    /// What the client measured, or what went wrong.
    pub result: Result<String, Failure>,
}

/// What is known of a run that failed.
#[derive(Debug)]
pub struct Failure {
    /// In one line.
    pub reason: String,
    /// What both programs printed, and the state of both sides before the programs were ended.
    pub state: String,
    /// The capture, until the next run.
    pub capture: PathBuf,
}

/// A switch with the daemon on it and a guest with rxe.
#[derive(Debug)]
pub struct Bed {
    path: Path,
    gid_index: [u32; 2],
    guest: Guest,
    daemon: Daemon,
    switch: Switch,
    image: Image,
}

/// A program on either side.
enum Running {
    Host(Box<Program>),
    Guest(Job),
}

impl Running {
    fn wait(&mut self, limit: Duration) -> Option<Ended> {
        match self {
            Running::Host(program) => program.wait(limit),
            Running::Guest(job) => job.wait(limit),
        }
    }

    fn output(&self) -> String {
        match self {
            Running::Host(program) => program.output(),
            Running::Guest(job) => job.output(),
        }
    }
}

impl Bed {
    /// Boots the guest and starts the daemon, joined by [`Path::PLAIN`].
    pub fn new(image: &Image) -> Bed {
        let switch = Switch::new(1);
        let port = switch.port(0).clone();
        let guest = Guest::boot(image, Some((&switch, &port)), &GuestOptions::default());
        guest.succeed("modprobe -a rdma_rxe ib_uverbs rdma_ucm && rdma link add rxe0 type rxe netdev eth0");
        // The kernel makes a GID of each address of eth0, in no certain order.
        let gid_index = [mapped_gid(&port.ipv4), full_gid(&port.ipv6)].map(|gid| {
            let gids = "/sys/class/infiniband/rxe0/ports/1/gids";
            let found = guest.succeed(&format!("cd {gids} && until grep -lx {gid} *; do sleep 0.1; done 2>/dev/null"));
            found.trim().parse().unwrap_or_else(|_| panic!("index of GID {gid}: {found:?}"))
        });
        let netns = Some(switch.netns().to_owned());
        let mut daemon = Daemon::start_with(DaemonOptions { netns, ..DaemonOptions::default() });
        daemon.add_device("v4", Switch::IPV4);
        daemon.add_device("v6", Switch::IPV6);
        Bed { path: Path::PLAIN, gid_index, guest, daemon, switch, image: image.clone() }
    }

    /// Changes the way between the two; runs from now on take it.
    pub fn set_path(&mut self, path: Path) {
        if path.ethernet_mtu != self.path.ethernet_mtu {
            self.switch.set_mtu(path.ethernet_mtu);
            self.guest.succeed(&format!("ip link set eth0 mtu {}", path.ethernet_mtu));
        }
        self.switch.set_loss(&self.image, path.loss_per_mille);
        self.path = path;
        let wanted = u64::from(path.path_mtu());
        let deadline = Instant::now() + MEET_LIMIT;
        for device in ["v4", "v6"] {
            while self.daemon.device(device)["active_mtu"] != wanted {
                assert!(Instant::now() < deadline, "{device} did not come to MTU {wanted}: {}", self.daemon.device(device));
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    /// Runs a program on both sides to its end, and captures what passes.
    pub fn run(&mut self, row: &Row, vrdma: Role) -> Outcome {
        let capture = Capture::start(&self.image, &self.switch, self.switch.port(0), self.daemon.folder());
        let mut lost_races = 0;
        let ran = loop {
            let ran = self.run_both(row, vrdma);
            let lost = ran.as_ref().is_err_and(|(_, state)| by_perftest(row) && state.contains(LOST_RACE));
            if !lost || lost_races == RACES {
                break ran;
            }
            lost_races += 1;
        };
        let captured = capture.stop();
        let result = match (ran, &captured.complaints[..]) {
            (Err((reason, state)), _) => Err((format!("{reason}; {}", captured.story()), state)),
            (Ok(_), [first, ..]) => {
                Err((format!("{} unsound packets; {first}", captured.complaints.len()), captured.complaints.join("\n")))
            }
            (Ok(_), []) if captured.packets.is_empty() => Err(("no packet passed the guest's port".into(), String::new())),
            (Ok(figure), []) => Ok(figure),
        };
        let result = result.map_err(|(reason, state)| Failure { reason, state, capture: captured.file });
        Outcome { row: *row, vrdma, path: self.path, packets: captured.packets.len(), lost_races, result }
    }

    /// The figure, or what went wrong and the state of both sides then.
    fn run_both(&mut self, row: &Row, vrdma: Role) -> Result<String, (String, String)> {
        let port = free_port().to_string();
        let mut server = match vrdma {
            Role::Server => self.on_host(row, &port, None),
            Role::Client => self.in_guest(row, &port, None),
        };
        self.wait_until_listening(row, &mut server, &port).map_err(|reason| (reason, self.look(&[&server])))?;
        let mut client = self.start_client(row, vrdma, &port);
        let mut ended = wait_for_client(row, &mut client);
        for _ in 1..TRIES {
            let refused = |ended: &Ended| !ended.status.success() && REFUSALS.iter().any(|text| ended.output.contains(text));
            let again = is_by_cm(row) && vrdma == Role::Server && ended.as_ref().is_some_and(refused);
            if !again || server.wait(Duration::from_secs(1)).is_some() {
                break;
            }
            client = self.start_client(row, vrdma, &port);
            ended = wait_for_client(row, &mut client);
        }
        let server_ended = ended.as_ref().and_then(|_| server.wait(MEET_LIMIT));
        let report = client.output();
        let judged = match (&ended, &server_ended) {
            (None, _) if client.output().contains(LOST_RACE) => Err("the client was refused, and goes on all the same".into()),
            (None, _) => Err(format!("the client still ran after {RUN_LIMIT:?}")),
            (Some(ended), _) if !ended.status.success() => Err(format!("client: {}", ended.status)),
            (_, None) => Err(format!("the server still ran {MEET_LIMIT:?} after the client")),
            (_, Some(ended)) if !ended.status.success() => Err(format!("server: {}", ended.status)),
            _ => judge(row, &report),
        };
        match judged {
            Ok(()) => Ok(figure(&report)),
            Err(reason) => {
                let last = |program: &Running| one_line(&program.output());
                let reason = format!("{reason}; client: {}; server: {}", last(&client), last(&server));
                Err((reason, self.look(&[&client, &server])))
            }
        }
    }

    fn start_client(&mut self, row: &Row, vrdma: Role, port: &str) -> Running {
        let at = self.switch.port(0);
        let (host, guest) =
            if self.path.ipv6 && is_by_cm(row) { (Switch::IPV6, at.ipv6.clone()) } else { (Switch::IPV4, at.ipv4.clone()) };
        match vrdma {
            Role::Server => self.in_guest(row, port, Some(host)),
            Role::Client => self.on_host(row, port, Some(&guest)),
        }
    }

    /// What the programs printed, and what vrdma and the guest have to say.
    fn look(&mut self, programs: &[&Running]) -> String {
        let printed: Vec<String> = programs.iter().map(|program| program.output()).collect();
        let device = if self.path.ipv6 { "v6" } else { "v4" };
        let why = self.daemon.cli(&["dev", "why", device]).output;
        let shown = self.daemon.device(device);
        let guest = if self.guest.is_gone() {
            "the guest is gone".into()
        } else {
            let job = self.guest.start(GUEST_STATE);
            job.wait(LOOK_LIMIT);
            job.output()
        };
        format!("{}\n--- vrdma\n{why}\n{shown}\n--- guest\n{guest}", printed.join("\n---\n"))
    }

    fn on_host(&mut self, row: &Row, port: &str, peer: Option<&str>) -> Running {
        let own = if self.path.ipv6 { Switch::IPV6 } else { Switch::IPV4 };
        let mut words = words(row, port, own, 0, self.path.path_mtu(), peer);
        words.splice(..1, self.image.program(&words[0]));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Running::Host(Box::new(self.daemon.run(if self.path.ipv6 { "v6" } else { "v4" }, &words)))
    }

    fn in_guest(&self, row: &Row, port: &str, peer: Option<&str>) -> Running {
        let gid_index = self.gid_index[usize::from(self.path.ipv6)];
        let at = self.switch.port(0);
        let own = if self.path.ipv6 { &at.ipv6 } else { &at.ipv4 };
        let words = words(row, port, own, gid_index, self.path.path_mtu(), peer).join(" ");
        // Programs of rdma_cm find the device by address.
        let device = if matches!(row.program, "rping" | "rdma_client") { "" } else { "-d rxe0" };
        Running::Guest(self.guest.start(&format!("exec {words} {device}")))
    }

    /// Waits until a server listens, where that can be seen: not on vrdma's rdma_cm.
    fn wait_until_listening(&self, row: &Row, server: &mut Running, port: &str) -> Result<(), String> {
        let listens = match server {
            Running::Host(_) if is_by_cm(row) => return Ok(()),
            Running::Host(program) => {
                let deadline = Instant::now() + MEET_LIMIT;
                while !crate::matrix::is_listening(program.pid(), port) && program.is_running() && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(5));
                }
                crate::matrix::is_listening(program.pid(), port)
            }
            Running::Guest(_) => {
                let look = if is_by_cm(row) {
                    format!("rdma resource show cm_id | grep LISTEN | grep -q ':{port} '")
                } else {
                    format!("ss -Hltn sport = :{port} | grep -q .")
                };
                self.guest.start(&format!("until {look}; do sleep 0.05; done")).wait(MEET_LIMIT).is_some()
            }
        };
        if listens { Ok(()) } else { Err(format!("the server does not listen: {}", one_line(&server.output()))) }
    }
}

/// Program and options of one side: that at `own`, which listens if it has no peer.
pub(crate) fn words(row: &Row, port: &str, own: &str, gid_index: u32, path_mtu: u32, peer: Option<&str>) -> Vec<String> {
    let options = row.options;
    let all = match (row.program, peer) {
        ("rping", None) => format!("rping -s -a {own} -p {port} {options}"),
        ("rping", Some(peer)) => format!("rping -c -a {peer} -p {port} {options}"),
        ("rdma_client", None) => format!("rdma_server -p {port} {options}"),
        ("rdma_client", Some(peer)) => format!("rdma_client -s {peer} -p {port} {options}"),
        (program, peer) => {
            let pingpong = program.starts_with("ibv_");
            let gid = format!("{} {gid_index}", if pingpong { "-g" } else { "-x" });
            // perftest agrees on the smaller of both ends' MTUs; the pingpongs must be told.
            let told = pingpong && program != "ibv_ud_pingpong";
            let mtu = if told { format!("-m {path_mtu}") } else { String::new() };
            format!("{program} {options} -p {port} {gid} {mtu} {}", peer.unwrap_or_default())
        }
    };
    all.split_whitespace().map(str::to_owned).collect()
}

/// Whether perftest connects through rdma_cm.
fn by_perftest(row: &Row) -> bool {
    row.options.split(' ').any(|word| word == "-R")
}

/// Whether the two sides meet through rdma_cm rather than over TCP.
pub(crate) fn is_by_cm(row: &Row) -> bool {
    matches!(row.program, "rping" | "rdma_client") || by_perftest(row)
}

/// Waits for the end of a client; `None` if it hangs.
fn wait_for_client(row: &Row, client: &mut Running) -> Option<Ended> {
    let deadline = Instant::now() + RUN_LIMIT;
    loop {
        let ended = client.wait(LOOK_EVERY);
        let hangs = Instant::now() >= deadline || (by_perftest(row) && client.output().contains(LOST_RACE));
        if ended.is_some() || hangs {
            return ended;
        }
    }
}

/// The figure of a report that people compare: perftest's average bandwidth or typical latency, else the last line.
pub(crate) fn figure(report: &str) -> String {
    let lines = result_lines(report);
    let last = lines.last();
    match last {
        Some(columns) if report.contains("t_typical") => format!("{} µs at {} B", columns[4], columns[0]),
        // Megabytes with two digits are too coarse for the smallest messages.
        Some(columns) if columns[3] < 0.1 => format!("{} million/s of {} B", columns[4], columns[0]),
        Some(columns) => format!("{} MB/s at {} B", columns[3], columns[0]),
        None => report.lines().last().unwrap_or_default().trim().to_owned(),
    }
}

/// The end of an output as one line.
pub(crate) fn one_line(output: &str) -> String {
    let dashes = |line: &&str| !line.trim().is_empty() && !line.contains("-----");
    let lines: Vec<&str> = output.lines().filter(dashes).map(str::trim).collect();
    lines[lines.len().saturating_sub(3)..].join(" / ")
}

/// As the kernel prints a GID made of an IPv4 address.
pub(crate) fn mapped_gid(ipv4: &str) -> String {
    let address: std::net::Ipv4Addr = ipv4.parse().expect("an IPv4 address");
    full_gid(&address.to_ipv6_mapped().to_string())
}

/// As the kernel prints a GID: eight full groups.
fn full_gid(ipv6: &str) -> String {
    let address: std::net::Ipv6Addr = ipv6.parse().expect("an IPv6 address");
    address.segments().map(|group| format!("{group:04x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_are_written_as_the_kernel_does() {
        assert_eq!(mapped_gid("192.0.2.10"), "0000:0000:0000:0000:0000:ffff:c000:020a");
        assert_eq!(full_gid("2001:db8::10"), "2001:0db8:0000:0000:0000:0000:0000:0010");
    }
}
