//! One guest: QEMU without hardware virtualisation, and the jobs that run in it.
//!
//! The host and `tests/vm/init` in the guest share a folder: a job is a script in it, and its output lies beside it. Over a
//! virtio port go only the number of a job to start and, back, its number and exit status.

use super::{Image, Port, Switch};
use crate::{Ended, Program};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// From the start of QEMU to the first job; 6 to 10 seconds on an idle machine.
const BOOT_LIMIT: Duration = Duration::from_secs(600);
/// How long a command that is not under test may take in the guest.
const COMMAND_LIMIT: Duration = Duration::from_secs(180);

/// At what nice value QEMU runs.
const NICE: i32 = 10;

/// What a guest has.
#[derive(Clone, Debug)]
pub struct GuestOptions {
    /// Memory in MiB. It lies in a shared memfd, as vfio-user devices need it.
    pub memory_mib: u32,
    /// Processors.
    pub cpus: u32,
    /// More words for QEMU, such as devices.
    pub qemu: Vec<String>,
    /// More words on the kernel's command line.
    pub kernel: String,
    /// A folder of the host to be seen, read only, as `/mnt/bin`.
    pub bin: Option<PathBuf>,
}

impl Default for GuestOptions {
    fn default() -> Self {
        GuestOptions { memory_mib: 1024, cpus: 1, qemu: Vec::new(), kernel: String::new(), bin: None }
    }
}

/// A running guest. Dropping it ends it at once.
#[derive(Debug)]
pub struct Guest {
    qemu: Program,
    line: Arc<Line>,
}

/// The way to a guest, for it and for its jobs.
#[derive(Debug)]
struct Line {
    folder: PathBuf,
    port: UnixStream,
    jobs: Jobs,
    next: AtomicU32,
}

impl Line {
    /// Starts a script of bash.
    fn start(self: &Arc<Self>, script: &str) -> std::io::Result<Job> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        std::fs::write(self.folder.join(format!("{id}.sh")), script)?;
        writeln!(&self.port, "{id}")?;
        Ok(Job { id, line: self.clone() })
    }

    /// Takes down what the guest says, until it is gone.
    fn follow(&self) {
        for line in BufReader::new(&self.port).lines().map_while(Result::ok) {
            let mut state = self.jobs.state();
            match line.split_once(' ').map(|(job, status)| (job.parse(), status.parse())) {
                Some((Ok(job), Ok(status))) => drop(state.ended.insert(job, status)),
                _ => state.ready |= line == "ready",
            }
            self.jobs.changed.notify_all();
        }
        self.jobs.state().gone = true;
        self.jobs.changed.notify_all();
    }
}

/// What is known about ended jobs.
#[derive(Debug, Default)]
struct Jobs {
    state: Mutex<JobsState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct JobsState {
    ready: bool,
    ended: BTreeMap<u32, i32>,
    gone: bool,
}

impl Jobs {
    fn state(&self) -> MutexGuard<'_, JobsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `found` finds something; `None` once the guest is gone or after `limit`.
    fn wait<T>(&self, limit: Duration, found: impl Fn(&JobsState) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + limit;
        let mut state = self.state();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match found(&state) {
                Some(value) => return Some(value),
                None if state.gone || left.is_zero() => return None,
                None => state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            }
        }
    }
}

impl Guest {
    /// Boots a guest; with a port of a switch, that is its `eth0`, up and with its addresses. Panics with the console when it
    /// does not come up.
    pub fn boot(image: &Image, network: Option<(&Switch, &Port)>, options: &GuestOptions) -> Guest {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let id = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("vrdma-vm-{}-{id}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the temporary directory is writable");
        let listener = UnixListener::bind(folder.join("port.sock")).expect("a socket can be made in the temporary directory");
        let words = qemu_words(image, network.map(|(_, port)| port), options, &folder);
        let mut command = match network {
            Some((switch, _)) => switch.command(&words),
            None => {
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]);
                command
            }
        };
        command.env("QEMU_MODULE_DIR", image.root().join("usr/lib/x86_64-linux-gnu/qemu"));
        let mut qemu = Program::start("qemu", &folder, command);
        let port = accept(&listener, &mut qemu);
        let line = Arc::new(Line { folder, port, jobs: Jobs::default(), next: AtomicU32::new(1) });
        let follower = line.clone();
        std::thread::spawn(move || follower.follow());
        let guest = Guest { qemu, line };
        let ready = guest.line.jobs.wait(BOOT_LIMIT, |state| state.ready.then_some(()));
        assert!(ready.is_some(), "the guest did not come up in {BOOT_LIMIT:?}; {}", guest.last_words());
        guest.bring_up(network.map(|(_, port)| port));
        guest
    }

    fn bring_up(&self, port: Option<&Port>) {
        if let Some(port) = port {
            self.succeed(&format!(
                "ip link set eth0 up && ip addr add {}/24 dev eth0 && ip addr add {}/64 dev eth0 nodad",
                port.ipv4, port.ipv6
            ));
        }
    }

    /// Lets the guest restart, and waits until it is up again. QEMU must have been given `-action reboot=reset`.
    pub fn reboot(&self, port: Option<&Port>) {
        self.line.jobs.state().ready = false;
        let _restart = std::mem::ManuallyDrop::new(self.start("busybox reboot -f"));
        let ready = self.line.jobs.wait(BOOT_LIMIT, |state| state.ready.then_some(()));
        assert!(ready.is_some(), "the guest did not come up again in {BOOT_LIMIT:?}; {}", self.last_words());
        self.bring_up(port);
    }

    /// Starts a script of bash in the guest.
    pub fn start(&self, script: &str) -> Job {
        self.line.start(script).unwrap_or_else(|error| panic!("the guest is gone: {error}; {}", self.last_words()))
    }

    /// Runs a script to its end. Panics when it takes longer than `limit`.
    pub fn run(&self, script: &str, limit: Duration) -> Ended {
        let job = self.start(script);
        let ended = job.wait(limit);
        ended.unwrap_or_else(|| {
            panic!("{script:?} still runs after {limit:?} or the guest is gone:\n{}\n{}", job.output(), self.last_words())
        })
    }

    /// Runs a script that is to succeed within three minutes, and returns its output.
    pub fn succeed(&self, script: &str) -> String {
        let ended = self.run(script, COMMAND_LIMIT);
        assert!(ended.status.success(), "{script:?} in the guest: {}\n{}", ended.status, ended.output);
        ended.output
    }

    /// Index of a GID of the guest's only device; the kernel makes one of each address of the interface, in no certain order.
    pub fn gid_index(&self, gid: &str) -> u32 {
        let gids = "/sys/class/infiniband/*/ports/1/gids";
        let found = self.succeed(&format!("cd {gids} && until grep -lx {gid} *; do sleep 0.1; done 2>/dev/null"));
        found.trim().parse().unwrap_or_else(|_| panic!("index of GID {gid}: {found:?}"))
    }

    /// Whether it has ended, or lost touch.
    pub fn is_gone(&self) -> bool {
        self.line.jobs.state().gone
    }

    /// What its VMM printed.
    pub fn qemu_output(&self) -> String {
        self.qemu.output()
    }

    /// A folder that host and guest share; the guest sees it as `/mnt/job`.
    pub fn folder(&self) -> &Path {
        &self.line.folder
    }

    fn last_words(&self) -> String {
        let console = std::fs::read(self.folder().join("console")).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        let lines: Vec<&str> = console.lines().collect();
        let last = lines[lines.len().saturating_sub(30)..].join("\n");
        format!("QEMU:\n{}\nconsole:\n{last}", self.qemu.output())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.qemu.kill();
        if std::thread::panicking() {
            eprintln!("--- the guest ---\n{}", self.last_words());
        }
        let _ = std::fs::remove_dir_all(self.folder());
    }
}

/// A script that was started in a guest. Dropping it kills it.
#[derive(Debug)]
pub struct Job {
    id: u32,
    line: Arc<Line>,
}

impl Job {
    /// What it printed so far.
    pub fn output(&self) -> String {
        let output = std::fs::read(self.line.folder.join(format!("{}.out", self.id))).unwrap_or_default();
        String::from_utf8_lossy(&output).into_owned()
    }

    /// Starts another script in the same guest.
    ///
    /// # Errors
    /// The guest is gone.
    pub fn beside(&self, script: &str) -> std::io::Result<Job> {
        self.line.start(script)
    }

    /// Waits for its end, or `None` after `limit` or when the guest is gone.
    pub fn wait(&self, limit: Duration) -> Option<Ended> {
        let status = self.line.jobs.wait(limit, |state| state.ended.get(&self.id).copied())?;
        Some(Ended { status: ExitStatus::from_raw((status & 0xFF) << 8), output: self.output() })
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.line.jobs.state().ended.contains_key(&self.id) {
            let kill = format!("kill -KILL -- -$(cat /mnt/job/{}.pid)", self.id);
            let name = format!("kill{}", self.id);
            let written = std::fs::write(self.line.folder.join(format!("{name}.sh")), kill);
            // A guest that is gone runs nothing any more.
            let _ = written.and_then(|()| writeln!(&self.line.port, "{name}"));
            let _ = self.wait(COMMAND_LIMIT);
        }
    }
}

/// The guest's end of the virtio port: QEMU connects to it before the guest starts.
fn accept(listener: &UnixListener, qemu: &mut Program) -> UnixStream {
    listener.set_nonblocking(true).expect("a socket can be nonblocking");
    let deadline = Instant::now() + BOOT_LIMIT;
    loop {
        if let Ok((port, _)) = listener.accept() {
            port.set_nonblocking(false).expect("a socket can be blocking");
            return port;
        }
        assert!(qemu.is_running(), "QEMU ended at its start:\n{}", qemu.output());
        assert!(Instant::now() < deadline, "QEMU does not come up:\n{}", qemu.output());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn qemu_words(image: &Image, port: Option<&Port>, options: &GuestOptions, folder: &Path) -> Vec<String> {
    let root = image.root();
    let root = root.display();
    let folder = folder.display();
    // Emulation takes all the time it gets; whoever else is on the machine comes first, but no more so than asked for already.
    // SAFETY: getpriority has no memory effects.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let mut words: Vec<String> = ["nice".into(), "-n".into(), (NICE - nice).max(0).to_string()].to_vec();
    words.extend(image.program("qemu-system-x86_64"));
    let mut add = |option: &str, value: String| words.extend([option.to_owned(), value]);
    for data in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
        add("-L", format!("{root}/{data}"));
    }
    add("-machine", "q35,memory-backend=memory".into());
    add("-object", format!("memory-backend-memfd,id=memory,size={}M,share=on", options.memory_mib));
    add("-m", format!("{}M", options.memory_mib));
    add("-smp", options.cpus.to_string());
    add("-accel", "tcg,thread=multi".into());
    add("-cpu", "max".into());
    add("-display", "none".into());
    add("-serial", format!("file:{folder}/console"));
    add("-kernel", image.file("vmlinuz").display().to_string());
    add("-initrd", image.file("initramfs").display().to_string());
    let kernel = &options.kernel;
    add("-append", format!("console=ttyS0 quiet no_timer_check panic=-1 mitigations=off net.ifnames=0 {kernel}"));
    let mut share = |tag: &str, path: String, access: &str| {
        add("-fsdev", format!("local,id={tag},path={path},security_model=none,multidevs=remap{access}"));
        add("-device", format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"));
    };
    share("root", root.to_string(), ",readonly=on");
    share("job", folder.to_string(), "");
    if let Some(bin) = &options.bin {
        share("bin", bin.display().to_string(), ",readonly=on");
    }
    add("-device", "virtio-serial-pci".into());
    add("-chardev", format!("socket,id=port,path={folder}/port.sock"));
    add("-device", "virtserialport,chardev=port,name=port".into());
    if let Some(Port { tap, mac, .. }) = port {
        add("-netdev", format!("tap,id=net,ifname={tap},script=no,downscript=no"));
        // Without segmentation offload a capture at the tap shows the packets of the wire, not bursts of them.
        let offloads = "host_uso=off,guest_uso4=off,guest_uso6=off,guest_tso4=off,guest_tso6=off,mrg_rxbuf=on";
        add("-device", format!("virtio-net-pci,netdev=net,mac={mac},romfile=,{offloads}"));
    }
    words.extend(["-nodefaults", "-no-reboot"].map(str::to_owned));
    words.extend(options.qemu.iter().cloned());
    words
}
