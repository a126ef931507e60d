//! Where measurements take place: a directory of their own, and, for what goes over the wire, two hosts, played by two network
//! namespaces with a veth pair between them. All of it goes with the process, also when a signal ends it.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CloneFlags, CpuSet, sched_getaffinity, sched_setaffinity, setns};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};
use vdev::{Daemon, DaemonConfig};

use crate::api::{Client, Device, DeviceSettings};
use crate::place::Place;

/// First addresses of the two hosts.
pub const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
/// MTU of the link between them.
pub const LINK_MTU: u32 = 9000;
/// Name of its interface, on both.
const INTERFACE: &str = "veth";
/// Time for a new interface to come up and for the daemon to see it.
const LINK_START: Duration = Duration::from_secs(5);
/// Bytes that may wait for a link of limited rate: more than any daemon sends ahead, so that none are lost.
const LINK_QUEUE: u32 = 64 << 20;
/// Bytes that such a link takes at once.
const LINK_BURST: u32 = 16 << 10;

/// A directory that goes with the process, also when a signal ends it: a thread waits for the signals that people send. Signals are
/// caught and not blocked, as child processes would inherit that.
pub fn private_dir() -> Result<TempDir> {
    let dir = tempfile::Builder::new().prefix("vrdma-stage-").tempdir().context("cannot make a temporary directory")?;
    let path = dir.path().to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    let (mut interrupt, mut terminate, mut hangup) = runtime.block_on(async {
        Ok::<_, std::io::Error>((
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ))
    })?;
    std::thread::Builder::new().name("stage-signals".to_owned()).spawn(move || {
        let number = runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => SignalKind::interrupt(),
                _ = terminate.recv() => SignalKind::terminate(),
                _ = hangup.recv() => SignalKind::hangup(),
            }
        });
        remove_hosts();
        // What cannot be removed is a few sockets in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&path);
        // As a shell counts. Child processes end with their link, or their device.
        std::process::exit(128 + number.as_raw_value());
    })?;
    Ok(dir)
}

/// Whether this user and machine can have two hosts; `what` needs them.
pub fn check_hosts(what: &str) -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "{what} makes network namespaces, which needs root: run it as root or leave it out"
    );
    ensure!(runs("ip", "-V"), "{what} needs the program `ip`: install the package iproute2");
    Ok(())
}

/// Whether a program is there and takes this argument.
pub fn runs(program: &str, argument: &str) -> bool {
    let status = Command::new(program).arg(argument).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Whether a program is in the search path.
pub fn is_installed(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

/// Makes a device of the daemon in `dir`.
pub fn make_device(dir: &Path, name: &str, ip: Ipv4Addr) -> Result<Device> {
    let settings = DeviceSettings { ips: vec![ip.into()], ..DeviceSettings::default() };
    Client::new(Place::find(Some(dir))?)?.add(name, &settings).context("cannot make a device")
}

/// The device, once the kernel has brought its interface up.
pub fn active_device(dir: &Path, name: &str) -> Result<Device> {
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

/// Two network namespaces with a veth pair between them. Removed when dropped.
pub struct Hosts {
    names: [String; 2],
    /// Processor core of each, where they are not to share.
    cores: Option<[usize; 2]>,
}

impl Hosts {
    /// Two hosts that use all processor cores.
    pub fn make() -> Result<Hosts> {
        let hosts = Hosts { names: host_names(), cores: None };
        let [a, b] = &hosts.names;
        for name in &hosts.names {
            ip(&["netns", "add", name])?;
        }
        let mtu = LINK_MTU.to_string();
        // The two interfaces live in different namespaces, so that they may have the same name there.
        ip(&[
            "-n", a, "link", "add", INTERFACE, "mtu", &mtu, "type", "veth", "peer", "name", INTERFACE, "mtu", &mtu, "netns", b,
        ])?;
        for (index, address) in ADDRESSES.into_iter().enumerate() {
            hosts.add_address(index, address)?;
            ip(&["-n", &hosts.names[index], "link", "set", "lo", "up"])?;
            ip(&["-n", &hosts.names[index], "link", "set", INTERFACE, "up"])?;
        }
        Ok(hosts)
    }

    /// Gives each host one of two cores, if there are two or three: then they take as little from each other as two machines.
    pub fn split_cores(&mut self) -> Result<()> {
        let all = sched_getaffinity(this_thread()).context("cannot ask for the processor cores")?;
        let cores: Vec<usize> = (0..CpuSet::count()).filter(|&cpu| all.is_set(cpu).unwrap_or(false)).collect();
        if let [a, b] | [a, b, _] = cores[..] {
            self.cores = Some([a, b]);
        }
        Ok(())
    }

    /// Whether each host has a core to itself.
    pub fn has_split_cores(&self) -> bool {
        self.cores.is_some()
    }

    /// One more address of a host.
    pub fn add_address(&self, index: usize, address: Ipv4Addr) -> Result<()> {
        ip(&["-n", &self.names[index], "address", "add", &format!("{address}/24"), "dev", INTERFACE])
    }

    /// Limits what either host sends.
    pub fn limit_link(&self, bits_per_sec: u64) -> Result<()> {
        for index in 0..self.names.len() {
            let (rate, burst, limit) = (format!("{bits_per_sec}bit"), LINK_BURST.to_string(), LINK_QUEUE.to_string());
            let mut tc = self.command(index, "tc");
            tc.args(["qdisc", "replace", "dev", INTERFACE, "root", "tbf", "rate", &rate, "burst", &burst, "limit", &limit]);
            execute(&mut tc)?;
        }
        Ok(())
    }

    /// A daemon on one of the two hosts: threads have a network namespace of their own, which those that they start inherit.
    pub fn start_daemon(&self, index: usize, config: DaemonConfig) -> Result<Daemon> {
        let path = Path::new("/run/netns").join(&self.names[index]);
        let core = self.cores.map(|cores| cores[index]);
        let start = move || -> Result<Daemon> {
            let namespace = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
            setns(namespace, CloneFlags::CLONE_NEWNET).with_context(|| format!("cannot enter {}", path.display()))?;
            if let Some(core) = core {
                use_core(core)?;
            }
            Daemon::start(config).context("cannot start a daemon")
        };
        match std::thread::spawn(start).join() {
            Ok(daemon) => daemon,
            Err(_) => bail!("the thread that starts a daemon has failed"),
        }
    }

    /// A command that runs a program on one of the two hosts.
    pub fn command(&self, index: usize, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[index]]).arg(program.as_ref());
        command
    }

    /// Does something, such as the start of a program, with the core of one of the two hosts: what it starts inherits that.
    pub fn on_core_of<T>(&self, index: usize, action: impl FnOnce() -> Result<T>) -> Result<T> {
        let Some(cores) = self.cores else { return action() };
        let before = sched_getaffinity(this_thread())?;
        use_core(cores[index])?;
        let result = action();
        sched_setaffinity(this_thread(), &before)?;
        result
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        remove_hosts();
    }
}

fn this_thread() -> Pid {
    Pid::from_raw(0)
}

fn use_core(core: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(core)?;
    sched_setaffinity(this_thread(), &only).context("cannot choose a processor core")
}

fn host_names() -> [String; 2] {
    ["a", "b"].map(|end| format!("vrdma-stage-{}-{end}", std::process::id()))
}

/// Removes the namespaces of this process, if there are any.
fn remove_hosts() {
    for name in host_names() {
        if Path::new("/run/netns").join(&name).exists() {
            // What cannot be removed is named after a process that is gone, and `ip netns` lists it.
            let _ = Command::new("ip").args(["netns", "delete", &name]).stdin(Stdio::null()).status();
        }
    }
}

fn ip(args: &[&str]) -> Result<()> {
    execute(Command::new("ip").args(args))
}

/// Runs a short command to its end.
fn execute(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))?;
    let reason = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {}", reason.trim());
    Ok(())
}
