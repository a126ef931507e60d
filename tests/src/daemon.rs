//! A daemon under test, in a private directory, optionally in a network namespace.

use crate::program::Program;
use crate::{Ended, binary};
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a daemon may take to come up or to end.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How long a command of the command line may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(20);

/// How a daemon is started.
#[derive(Clone, Debug, Default)]
pub struct DaemonOptions {
    /// Network namespace to run in; also that of programs that [`Daemon::run`] starts.
    pub netns: Option<String>,
    /// More environment variables of the daemon.
    pub env: Vec<(String, String)>,
    /// More words of `vrdma daemon`.
    pub words: Vec<String>,
    /// Words put before the command, such as `prlimit --nofile=64`.
    pub wrapper: Vec<String>,
}

/// A running daemon. Dropping it kills it and removes its directory.
#[derive(Debug)]
pub struct Daemon {
    folder: PathBuf,
    options: DaemonOptions,
    process: Program,
    started: u32,
}

impl Daemon {
    /// A daemon in the namespace of the test.
    pub fn start() -> Daemon {
        Self::start_with(DaemonOptions::default())
    }

    /// A daemon that is ready when this returns.
    pub fn start_with(options: DaemonOptions) -> Daemon {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let id = COUNT.fetch_add(1, Ordering::Relaxed);
        // Short on purpose: a Unix socket path has 107 bytes.
        let folder = std::env::temp_dir().join(format!("vrdma-test-{}-{id}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the temporary directory is writable");
        let process = Self::launch(&folder, &options, "daemon");
        let mut daemon = Daemon { folder, options, process, started: 0 };
        daemon.wait_until_ready();
        daemon
    }

    /// Starts the daemon again in the same directory, after it was killed.
    pub fn restart(&mut self) {
        self.process.kill();
        self.process = Self::launch(&self.folder, &self.options, "daemon-again");
        self.wait_until_ready();
    }

    fn launch(folder: &Path, options: &DaemonOptions, name: &str) -> Program {
        let mut words = options.wrapper.clone();
        words.push(binary().to_str().expect("the build path is text").to_owned());
        words.push("daemon".to_owned());
        words.extend(options.words.iter().cloned());
        let mut command = in_netns(options.netns.as_deref(), &words);
        command.env("VRDMA_DIR", folder);
        command.envs(options.env.iter().map(|(name, value)| (name, value)));
        Program::start(name, folder, command)
    }

    fn wait_until_ready(&mut self) {
        let deadline = Instant::now() + START_LIMIT;
        while UnixStream::connect(self.api_socket()).is_err() {
            assert!(self.process.is_running(), "the daemon ended at its start:\n{}", self.process.output());
            assert!(Instant::now() < deadline, "the daemon is not ready after {START_LIMIT:?}:\n{}", self.process.output());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Its directory (`VRDMA_DIR`); logs of its programs lie there too.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Program {
        &mut self.process
    }

    /// Its control socket.
    pub fn api_socket(&self) -> PathBuf {
        self.folder.join("api.sock")
    }

    /// The socket of a device.
    pub fn device_socket(&self, device: &str) -> PathBuf {
        self.folder.join("dev").join(device).join("sock")
    }

    /// A command of the `vrdma` command line for this daemon, not yet started.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut all = vec![binary().to_str().expect("the build path is text").to_owned()];
        all.extend(words.iter().map(|&word| word.to_owned()));
        let mut command = in_netns(self.options.netns.as_deref(), &all);
        command.env("VRDMA_DIR", &self.folder);
        command
    }

    /// Runs a command of the `vrdma` command line to its end.
    pub fn cli(&mut self, words: &[&str]) -> Ended {
        self.started += 1;
        let name = format!("{}-{}", words.iter().take(2).copied().collect::<Vec<_>>().join("-"), self.started);
        Program::start(&name, &self.folder, self.command(words)).end(COMMAND_LIMIT)
    }

    /// `vrdma dev add NAME --ip IP`, which must succeed.
    pub fn add_device(&mut self, name: &str, ip: &str) {
        let ended = self.cli(&["dev", "add", name, "--ip", ip]);
        assert!(ended.status.success(), "dev add {name} --ip {ip}: {}\n{}", ended.output, self.process.output());
    }

    /// Starts `vrdma run --dev DEVICE -- WORDS`.
    pub fn run(&mut self, device: &str, words: &[&str]) -> Program {
        self.run_with(device, words, |_| {})
    }

    /// The same with more settings of the command, such as environment variables.
    pub fn run_with(&mut self, device: &str, words: &[&str], settings: impl FnOnce(&mut Command)) -> Program {
        self.started += 1;
        let program = Path::new(words[0]).file_name().expect("a program has a name").to_string_lossy();
        let name = format!("{program}-{device}-{}", self.started);
        let mut command = self.command(&[&["run", "--dev", device, "--"], words].concat());
        // perftest writes reports and looks for files in the working directory.
        command.current_dir(&self.folder);
        settings(&mut command);
        Program::start(&name, &self.folder, command)
    }

    /// One HTTP request over the control socket: status and body.
    pub fn http(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        http(&self.api_socket(), method, path, body).expect("the control API answers")
    }

    /// The device as the API shows it.
    pub fn device(&self, name: &str) -> Value {
        let (status, body) = self.http("GET", &format!("/v1/devices/{name}"), "");
        assert_eq!(status, 200, "GET device {name}: {body}");
        serde_json::from_str(&body).expect("the API answers in JSON")
    }

    /// Waits until a device has no client and so no object left. Panics after `limit`.
    pub fn wait_until_unused(&self, device: &str, limit: Duration) {
        let deadline = Instant::now() + limit;
        loop {
            let clients = self.device(device)["clients"].clone();
            if clients.as_array().is_some_and(Vec::is_empty) {
                return;
            }
            assert!(Instant::now() < deadline, "device {device} still has clients after {limit:?}: {clients}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Number of open descriptors of the daemon, once it is the same for a while: the connection of the last request to the API
    /// is closed a moment after the answer.
    pub fn open_descriptors(&self) -> usize {
        let count = || std::fs::read_dir(format!("/proc/{}/fd", self.process.pid())).expect("the daemon runs").count();
        let (mut found, mut same) = (count(), 0);
        while same < 5 {
            std::thread::sleep(Duration::from_millis(5));
            let now = count();
            same = if now == found { same + 1 } else { 0 };
            found = now;
        }
        found
    }

    /// Waits until the daemon has as many open descriptors as before. Panics after a few seconds.
    pub fn wait_until_descriptors(&self, before: usize) {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let found = self.open_descriptors();
            if found == before {
                return;
            }
            assert!(Instant::now() < deadline, "open descriptors: {before} before, {found} after {START_LIMIT:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Number of lines of the daemon's memory map.
    pub fn mappings(&self) -> usize {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.process.pid())).expect("the daemon runs");
        maps.lines().count()
    }

    /// Resident memory of the daemon in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.pid())).expect("the daemon runs");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS is shown");
        let kib: u64 = line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("VmRSS is a number");
        kib * 1024
    }

    /// CPU time of the daemon so far, user and system, in clock ticks of the kernel.
    pub fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.pid())).expect("the daemon runs");
        // The program's name may hold blanks; fields are counted after its closing parenthesis.
        let rest = &stat[stat.rfind(')').expect("stat names the program") + 1..];
        let field = |number: usize| rest.split_whitespace().nth(number).and_then(|word| word.parse::<u64>().ok());
        field(11).expect("utime") + field(12).expect("stime")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.process.kill();
        if std::thread::panicking() {
            eprintln!("--- the daemon in {} ---\n{}", self.folder.display(), self.process.output());
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// One HTTP request over a Unix socket: status and body.
pub fn http(socket: &Path, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(COMMAND_LIMIT))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: vrdma\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    let status = status.ok_or_else(|| std::io::Error::other(format!("not an HTTP answer: {head:?}")))?;
    Ok((status, body.to_owned()))
}

fn in_netns(netns: Option<&str>, words: &[String]) -> Command {
    let prefix: &[&str] = match netns {
        Some(name) => &["ip", "netns", "exec", name],
        None => &[],
    };
    let mut all = prefix.iter().copied().chain(words.iter().map(String::as_str));
    let mut command = Command::new(all.next().expect("a command has a first word"));
    command.args(all);
    command
}
