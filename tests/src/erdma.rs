//! Guests with the mainline `erdma` driver, unmodified, on devices of one daemon: a bed for runs of unmodified programs between
//! two of them, between one and a program on the host, and between one and Linux soft-RoCE (`rdma_rxe`) in another guest.

use crate::interop::{figure, is_by_cm, one_line, words};
use crate::matrix::{Row, free_port, is_listening, judge};
use crate::vm::{Guest, GuestOptions, Image, Job, Switch};
use crate::{Daemon, DaemonOptions, Ended, Program};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long one run may take.
const RUN_LIMIT: Duration = Duration::from_secs(300);
/// How long a server may take until it listens, and how long after the end of one side the other may go on.
const MEET_LIMIT: Duration = Duration::from_secs(60);
/// How often a client tries to reach a server whose listening cannot be seen from outside, a second apart.
const TRIES: u32 = 10;
/// Memory of a guest in MiB.
const MEMORY_MIB: u32 = 448;
/// Path MTU over plain Ethernet.
const PATH_MTU: u32 = 1024;

/// Where a side of a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// In this guest.
    Guest(usize),
    /// On the host, on the daemon's device for programs.
    Host,
}

/// What the second guest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Second {
    /// A virtual machine of the same daemon.
    Erdma,
    /// A host with soft-RoCE, beyond the network.
    Rxe,
    /// There is none, and the first guest's device is plugged in by [`Bed::plug`].
    Absent,
}

/// The module for the image's kernel, if `tests/vm/erdma` has built it.
pub fn module() -> Option<PathBuf> {
    build(&["--find"])
}

/// The module, built if need be: 250 MB are fetched.
pub fn make_module() -> Option<PathBuf> {
    build(&[])
}

fn build(words: &[&str]) -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("vm/erdma");
    let output = Command::new(script).args(words).stderr(std::process::Stdio::inherit()).output().ok()?;
    output.status.success().then(|| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end()))
}

/// A switch with the daemon on it, and one or two guests.
#[derive(Debug)]
pub struct Bed {
    gid_index: Vec<u32>,
    guests: Vec<Guest>,
    second: Second,
    daemon: Daemon,
    switch: Switch,
    image: Image,
    module: PathBuf,
}

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
    /// Boots the guests, with their drivers loaded and their ports up, unless the device is to be plugged in.
    pub fn new(image: &Image, module: &Path, second: Second) -> Bed {
        let switch = Switch::new(2);
        let netns = Some(switch.netns().to_owned());
        let mut daemon = Daemon::start_with(DaemonOptions { netns, ..DaemonOptions::default() });
        daemon.add_device("host", Switch::IPV4);
        let (image, module) = (image.clone(), module.to_owned());
        let mut bed = Bed { gid_index: Vec::new(), guests: Vec::new(), second, daemon, switch, image, module };
        if second == Second::Rxe {
            bed.steer();
        }
        for n in 0..if second == Second::Absent { 1 } else { 2 } {
            bed.boot(n);
        }
        bed
    }

    fn is_rxe(&self, n: usize) -> bool {
        n == 1 && self.second == Second::Rxe
    }

    fn boot(&mut self, n: usize) {
        let port = self.switch.port(n).clone();
        let mut options = GuestOptions { memory_mib: MEMORY_MIB, ..GuestOptions::default() };
        // A guest that restarts itself stays in its VMM.
        options.qemu = ["-action", "reboot=reset"].map(str::to_owned).to_vec();
        if !self.is_rxe(n) {
            let socket = self.socket(n);
            let place = socket.to_str().expect("the daemon's folder is text");
            let name = device_name(n);
            let added = self.daemon.cli(&["dev", "add", &name, "--ip", &port.ipv4, "--mac", &port.mac, "--vfio-user", place]);
            assert!(added.status.success(), "{}", added.output);
        }
        if self.second == Second::Absent {
            let qmp = format!("unix:{},server=on,wait=off", self.qmp().display());
            options.qemu.extend(["-device", "pcie-root-port,id=slot,chassis=9,slot=9", "-qmp", &qmp].map(str::to_owned));
        } else if !self.is_rxe(n) {
            options.qemu.extend(["-device".to_owned(), self.device(n).to_string()]);
        }
        let guest = Guest::boot(&self.image, Some((&self.switch, &port)), &options);
        std::fs::copy(&self.module, guest.folder().join("erdma.ko")).expect("the shared folder is writable");
        self.guests.push(guest);
        if self.second != Second::Absent {
            let gid_index = self.load(n);
            self.gid_index.push(gid_index);
        }
    }

    fn socket(&self, n: usize) -> PathBuf {
        self.daemon.folder().join(format!("vm{n}.vfio"))
    }

    fn qmp(&self) -> PathBuf {
        self.daemon.folder().join("qmp")
    }

    /// A guest's device as QEMU is told of it.
    fn device(&self, n: usize) -> Value {
        json!({"driver": "vfio-user-pci", "socket": {"type": "unix", "path": self.socket(n)}})
    }

    /// Plugs the device into the running guest, and loads its driver.
    ///
    /// # Errors
    /// QEMU's.
    pub fn plug(&mut self) -> Result<(), String> {
        let mut device = self.device(0);
        device["id"] = "rdma".into();
        device["bus"] = "slot".into();
        self.tell_qemu("device_add", device)?;
        self.guests[0].succeed("until grep -q 0x1ded /sys/bus/pci/devices/*/vendor; do sleep 0.1; done");
        self.gid_index = vec![self.load(0)];
        Ok(())
    }

    /// Takes it out again, and waits until the daemon sees that it is gone.
    ///
    /// # Errors
    /// QEMU's, or the guest keeps it.
    pub fn unplug(&mut self) -> Result<(), String> {
        self.tell_qemu("device_del", json!({"id": "rdma"}))?;
        let deadline = Instant::now() + MEET_LIMIT;
        while self.daemon.device(&device_name(0))["vm"]["connected"] != false {
            if Instant::now() > deadline {
                return Err(format!("the device is still in the guest after {MEET_LIMIT:?}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.guests[0].succeed("rmmod erdma");
        Ok(())
    }

    /// One command of QEMU's own protocol.
    fn tell_qemu(&self, command: &str, arguments: Value) -> Result<(), String> {
        let mut stream = UnixStream::connect(self.qmp()).map_err(|error| error.to_string())?;
        for (command, arguments) in [("qmp_capabilities", json!({})), (command, arguments)] {
            writeln!(stream, "{}", json!({"execute": command, "arguments": arguments})).map_err(|error| error.to_string())?;
        }
        let mut answers = 0;
        for line in BufReader::new(stream).lines() {
            let line: Value =
                serde_json::from_str(&line.map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
            if !line["error"].is_null() {
                return Err(format!("{command}: {}", line["error"]["desc"]));
            }
            answers += u32::from(!line["return"].is_null());
            if answers == 2 {
                return Ok(());
            }
        }
        Err(format!("{command}: QEMU has ended"))
    }

    /// Loads a guest's driver; returns the index of the GID that programs use there.
    fn load(&self, n: usize) -> u32 {
        let (guest, port) = (&self.guests[n], self.switch.port(n));
        let load = if self.is_rxe(n) {
            "modprobe -a rdma_rxe ib_uverbs rdma_ucm && rdma link add rxe0 type rxe netdev eth0"
        } else {
            "modprobe -a ib_uverbs rdma_ucm && insmod /mnt/job/erdma.ko"
        };
        guest.succeed(load);
        let gid = crate::interop::mapped_gid(&port.ipv4);
        let found = guest.succeed(&format!(
            "until ibv_devinfo | grep -q PORT_ACTIVE; do sleep 0.1; done
             cd /sys/class/infiniband/*/ports/1/gids && until grep -lx {gid} *; do sleep 0.1; done 2>/dev/null"
        ));
        found.trim().parse().unwrap_or_else(|_| panic!("index of GID {gid}: {found:?}"))
    }

    /// Packets of RoCEv2 for the first guest's address end at the daemon, which is that guest's RNIC; all else goes to the guest.
    /// On a real host this is the operator's to set up, where the guest's network device and the daemon share an address.
    fn steer(&self) {
        let (own, peer) = (self.switch.port(0), self.switch.port(1));
        let bridge = "02:00:00:00:00:01";
        self.switch.ip(&format!("link set bridge address {bridge}"));
        self.switch.ip(&format!("addr add {}/32 dev bridge", own.ipv4));
        self.switch.ip(&format!("neigh add {} lladdr {} dev bridge", peer.ipv4, peer.mac));
        let rules = format!(
            "table bridge steer {{
                chain in {{
                    type filter hook prerouting priority -300;
                    ether daddr {} udp dport 4791 ether daddr set {bridge} meta pkttype set host;
                }}
                chain out {{
                    type filter hook output priority 0;
                    arp saddr ip {} drop;
                }}
            }}",
            own.mac, own.ipv4
        );
        let words = [self.image.program("nft"), vec![rules]].concat();
        let output = self.switch.command(&words).output().expect("nft can be started");
        assert!(output.status.success(), "nft: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Runs a program on both sides to its end: what the client measured, or what went wrong.
    ///
    /// # Errors
    /// A line that says what, with the end of both outputs.
    pub fn run(&mut self, row: &Row, server_at: End, client_at: End) -> Result<String, String> {
        let port = free_port().to_string();
        let mut server = self.start(row, &port, server_at, None);
        self.wait_until_listening(row, &mut server, server_at, &port)?;
        let address = self.address(server_at);
        let mut client = self.start(row, &port, client_at, Some(&address));
        let mut ended = client.wait(RUN_LIMIT);
        for _ in 1..TRIES {
            let refused =
                is_by_cm(row) && server_at == End::Host && ended.as_ref().is_some_and(|ended| !ended.status.success());
            if !refused || server.wait(Duration::from_secs(1)).is_some() {
                break;
            }
            client = self.start(row, &port, client_at, Some(&address));
            ended = client.wait(RUN_LIMIT);
        }
        let server_ended = server.wait(MEET_LIMIT);
        let both = || format!("client: {}; server: {}", one_line(&client.output()), one_line(&server.output()));
        match (&ended, &server_ended) {
            (None, _) => return Err(format!("the client still ran after {RUN_LIMIT:?}; {}", both())),
            (Some(ended), _) if !ended.status.success() => return Err(format!("client: {}; {}", ended.status, both())),
            (_, None) => return Err(format!("the server still ran {MEET_LIMIT:?} after the client; {}", both())),
            (_, Some(ended)) if !ended.status.success() => return Err(format!("server: {}; {}", ended.status, both())),
            _ => {}
        }
        let report = client.output();
        judge(row, &report).map_err(|complaint| format!("{complaint}; {}", both()))?;
        Ok(figure(&report))
    }

    fn address(&self, end: End) -> String {
        match end {
            End::Guest(n) => self.switch.port(n).ipv4.clone(),
            End::Host => Switch::IPV4.to_owned(),
        }
    }

    fn start(&mut self, row: &Row, port: &str, at: End, peer: Option<&str>) -> Running {
        let own = self.address(at);
        match at {
            End::Host => {
                let mut words = words(row, port, &own, 0, PATH_MTU, peer);
                words.splice(..1, self.image.program(&words[0]));
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                Running::Host(Box::new(self.daemon.run("host", &words)))
            }
            End::Guest(n) => {
                let words = words(row, port, &own, self.gid_index[n], PATH_MTU, peer).join(" ");
                Running::Guest(self.guests[n].start(&format!("exec {words}")))
            }
        }
    }

    fn wait_until_listening(&self, row: &Row, server: &mut Running, at: End, port: &str) -> Result<(), String> {
        let listens = match (server, at) {
            (Running::Host(program), _) => {
                let deadline = Instant::now() + MEET_LIMIT;
                while !is_by_cm(row) && !is_listening(program.pid(), port) && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(5));
                }
                is_by_cm(row) || is_listening(program.pid(), port)
            }
            (Running::Guest(_), End::Guest(n)) => {
                let look = if is_by_cm(row) {
                    format!("rdma resource show cm_id | grep LISTEN | grep -q ':{port} '")
                } else {
                    format!("ss -Hltn sport = :{port} | grep -q .")
                };
                self.guests[n].start(&format!("until {look}; do sleep 0.05; done")).wait(MEET_LIMIT).is_some()
            }
            (Running::Guest(_), End::Host) => unreachable!("what runs in a guest is there"),
        };
        if listens { Ok(()) } else { Err("the server does not listen".into()) }
    }

    /// A guest, for commands.
    pub fn guest(&self, n: usize) -> &Guest {
        &self.guests[n]
    }

    /// Index of the GID that programs use in a guest.
    pub fn gid_index(&self, n: usize) -> u32 {
        self.gid_index[n]
    }

    /// The daemon.
    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// Restarts a guest without ending its VMM, and loads its driver again.
    pub fn reboot(&mut self, n: usize) {
        let port = self.switch.port(n).clone();
        self.guests[n].reboot(Some(&port));
        self.gid_index[n] = self.load(n);
    }

    /// Address of a guest.
    pub fn guest_address(&self, n: usize) -> &str {
        &self.switch.port(n).ipv4
    }
}

/// The daemon's name for a guest's device.
pub fn device_name(n: usize) -> String {
    format!("vm{n}")
}
