//! vrdma on the host against Linux soft-RoCE (`rdma_rxe`) in a guest: one bed for any number of runs of unmodified programs,
//! each judged by what both ends report and by the packets that passed.

use crate::matrix::{End, Row, free_port};
use crate::vm::{Capture, Guest, GuestOptions, Image, Pair, Running, Switch, is_by_cm, words};
use crate::{Daemon, DaemonOptions};
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long the daemon may take to see another MTU.
const MTU_LIMIT: Duration = Duration::from_secs(30);
/// How long a look at either side may take after a failure.
const LOOK_LIMIT: Duration = Duration::from_secs(20);
/// How often a row is run that its programs spoil. Whether they do depends on how fast either side is, and on what is lost.
const RACES: u32 = 8;
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
    /// How often it was begun in vain, as its programs spoiled it ([`Pair::is_spoiled`]).
    pub begun_in_vain: u32,
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

impl Bed {
    /// Boots the guest and starts the daemon, with more words of `vrdma daemon`, joined by [`Path::PLAIN`].
    pub fn new(image: &Image, daemon: &[&str]) -> Bed {
        let switch = Switch::new(1);
        let port = switch.port(0).clone();
        let guest = Guest::boot(image, Some((&switch, &port)), &GuestOptions::default());
        guest.succeed("modprobe -a rdma_rxe ib_uverbs rdma_ucm && rdma link add rxe0 type rxe netdev eth0");
        let gid_index = [port.ipv4_gid(), port.ipv6_gid()].map(|gid| guest.gid_index(&gid));
        let netns = Some(switch.netns().to_owned());
        let words = daemon.iter().map(|&word| word.to_owned()).collect();
        let mut daemon = Daemon::start_with(DaemonOptions { netns, words, ..DaemonOptions::default() });
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
        let deadline = Instant::now() + MTU_LIMIT;
        for device in ["v4", "v6"] {
            while self.daemon.device(device)["active_mtu"] != wanted {
                assert!(Instant::now() < deadline, "{device} did not come to MTU {wanted}: {}", self.daemon.device(device));
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    /// A counter of vrdma's device with the IPv4 address.
    pub fn counter(&self, name: &str) -> u64 {
        self.daemon.device("v4")["counters"][name].as_u64().expect("a counter of this name")
    }

    /// Runs a program on both sides to its end, and captures what passes.
    pub fn run(&mut self, row: &Row, vrdma: Role) -> Outcome {
        let capture = Capture::start(&self.image, &self.switch, self.switch.port(0), self.daemon.folder());
        let mut begun_in_vain = 0;
        let ran = loop {
            let port = free_port().to_string();
            let pair = Pair::run(row, &port, |end| self.start(row, &port, vrdma, end));
            if begun_in_vain < RACES && pair.is_spoiled(row, self.path.loss_per_mille > 0) {
                begun_in_vain += 1;
                continue;
            }
            // Before the programs are ended.
            let state = if pair.result.is_err() { self.look(&pair) } else { String::new() };
            break pair.result.map_err(|reason| (reason, state));
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
        Outcome { row: *row, vrdma, path: self.path, packets: captured.packets.len(), begun_in_vain, result }
    }

    fn start(&mut self, row: &Row, port: &str, vrdma: Role, end: End) -> Running {
        let at = self.switch.port(0);
        let (host, guest) =
            if self.path.ipv6 && is_by_cm(row) { (Switch::IPV6, at.ipv6.clone()) } else { (Switch::IPV4, at.ipv4.clone()) };
        match (vrdma, end) {
            (Role::Server, End::Server) => self.on_host(row, port, None),
            (Role::Server, End::Client) => self.in_guest(row, port, Some(host)),
            (Role::Client, End::Server) => self.in_guest(row, port, None),
            (Role::Client, End::Client) => self.on_host(row, port, Some(&guest)),
        }
    }

    /// What the programs printed, and what vrdma and the guest have to say.
    fn look(&mut self, pair: &Pair) -> String {
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
        format!("{}\n--- vrdma\n{why}\n{shown}\n--- guest\n{guest}", pair.outputs().join("\n---\n"))
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
}
