//! Guests with the mainline `erdma` driver, unmodified, on devices of one daemon: a bed for runs of unmodified programs between
//! two of them, between one and a program on the host, and between one and Linux soft-RoCE (`rdma_rxe`) in another guest.

use crate::container::{Container, ContainerOptions};
use crate::matrix::{self, Row, free_port};
use crate::vm::{Guest, GuestOptions, Image, Pair, Running, Switch, words};
use crate::{Daemon, DaemonOptions};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long QEMU may take for a command, and the guest to let go of a device.
const QMP_LIMIT: Duration = Duration::from_secs(60);
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
    /// On the host, in a container with the same device.
    Container,
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
    containers: Option<Containers>,
}

/// What containers are made of.
#[derive(Debug)]
struct Containers {
    root: PathBuf,
    started: u32,
}

impl Bed {
    /// Boots the guests, with their drivers loaded and their ports up, unless the device is to be plugged in.
    pub fn new(image: &Image, module: &Path, second: Second) -> Bed {
        let switch = Switch::new(2);
        let netns = Some(switch.netns().to_owned());
        let mut daemon = Daemon::start_with(DaemonOptions { netns, ..DaemonOptions::default() });
        daemon.add_device(&host_device(), Switch::IPV4);
        let (image, module) = (image.clone(), module.to_owned());
        let (gid_index, guests, containers) = (Vec::new(), Vec::new(), None);
        let mut bed = Bed { gid_index, guests, second, daemon, switch, image, module, containers };
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
            // The firmware keeps 2 MiB for a port that is empty, too little for the device's first BAR.
            let port = "pcie-root-port,id=plug,chassis=9,slot=9,mem-reserve=8M";
            options.qemu.extend(["-device", port, "-qmp", &qmp].map(str::to_owned));
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
        device["bus"] = "plug".into();
        self.tell_qemu("device_add", device, None)?;
        self.guests[0].succeed("until grep -q 0x1ded /sys/bus/pci/devices/*/vendor; do sleep 0.1; done");
        self.gid_index = vec![self.load(0)];
        Ok(())
    }

    /// Takes it out again.
    ///
    /// # Errors
    /// QEMU's, or the guest keeps it, or QEMU ended: then the end of what it said.
    pub fn unplug(&mut self) -> Result<(), String> {
        self.tell_qemu("device_del", json!({"id": "rdma"}), Some("DEVICE_DELETED"))?;
        self.guests[0].succeed("rmmod erdma");
        Ok(())
    }

    /// One command of QEMU's own protocol, and what is to happen then.
    fn tell_qemu(&self, command: &str, arguments: Value, event: Option<&str>) -> Result<(), String> {
        let broken = |error: std::io::Error| format!("{command}: {error}; QEMU: {}", self.guests[0].qemu_output());
        let mut stream = UnixStream::connect(self.qmp()).map_err(broken)?;
        stream.set_read_timeout(Some(QMP_LIMIT)).map_err(broken)?;
        for (command, arguments) in [("qmp_capabilities", json!({})), (command, arguments)] {
            writeln!(stream, "{}", json!({"execute": command, "arguments": arguments})).map_err(broken)?;
        }
        let mut answers = 0;
        let mut happened = event.is_none();
        for line in BufReader::new(stream).lines() {
            let line: Value = serde_json::from_str(&line.map_err(broken)?).map_err(|error| error.to_string())?;
            if !line["error"].is_null() {
                return Err(format!("{command}: {}", line["error"]["desc"]));
            }
            answers += u32::from(!line["return"].is_null());
            happened |= event.is_some_and(|event| line["event"] == event);
            if answers == 2 && happened {
                return Ok(());
            }
        }
        Err(broken(std::io::ErrorKind::UnexpectedEof.into()))
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
        guest.succeed(
            "for n in $(seq 300); do ibv_devinfo | grep -q PORT_ACTIVE && exit; sleep 0.1; done 2>/dev/null
             dmesg | tail -n 20; exit 1",
        );
        guest.gid_index(&port.ipv4_gid())
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
        let address = self.address(server_at);
        let pair = Pair::run(row, &port, |end| match end {
            matrix::End::Server => self.start(row, &port, server_at, None),
            matrix::End::Client => self.start(row, &port, client_at, Some(&address)),
        });
        pair.result
    }

    fn address(&self, end: End) -> String {
        match end {
            End::Guest(n) => self.switch.port(n).ipv4.clone(),
            End::Host | End::Container => Switch::IPV4.to_owned(),
        }
    }

    fn start(&mut self, row: &Row, port: &str, at: End, peer: Option<&str>) -> Running {
        let own = self.address(at);
        match at {
            End::Host | End::Container => {
                let mut words = words(row, port, &own, 0, PATH_MTU, peer);
                words.splice(..1, self.image.program(&words[0]));
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                if at == End::Host { self.on_host(&words) } else { self.in_container(&words) }
            }
            End::Guest(n) => {
                let words = words(row, port, &own, self.gid_index[n], PATH_MTU, peer).join(" ");
                Running::Guest(self.guests[n].start(&format!("exec {words}")))
            }
        }
    }

    fn on_host(&mut self, words: &[&str]) -> Running {
        Running::Host(Box::new(self.daemon.run(&host_device(), words)))
    }

    fn in_container(&mut self, words: &[&str]) -> Running {
        let containers = self.containers.as_mut().expect("the bed was opened to containers");
        containers.started += 1;
        let name = format!("vrdma-{}-{}", std::process::id(), containers.started);
        let device = format!("vrdma.local/rdma={}", host_device());
        let image = self.image.root();
        let image = image.to_str().expect("the path of the image is text");
        let options = ContainerOptions { devices: &[&device], files: &[image], netns: Some(self.switch.netns()) };
        Running::Container(Box::new(Container::start(&containers.root, self.daemon.folder(), &name, &options, words)))
    }

    /// Lets runs have a side in a container over `root`.
    pub fn open_to_containers(&mut self, root: PathBuf) {
        let generated = self.daemon.cli(&["cdi", "generate", &host_device()]);
        assert!(generated.status.success(), "{}", generated.output);
        self.containers = Some(Containers { root, started: 0 });
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

impl Drop for Bed {
    fn drop(&mut self) {
        if self.containers.is_some() {
            self.daemon.cli(&["cdi", "remove", &host_device()]);
        }
    }
}

/// The daemon's name for the device of programs. Container engines know it by that name, all over the host.
fn host_device() -> String {
    format!("host{}", std::process::id())
}

/// The daemon's name for a guest's device.
pub fn device_name(n: usize) -> String {
    format!("vm{n}")
}
