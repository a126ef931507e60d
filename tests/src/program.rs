//! One program under test: its own process group, output in a file, a time limit, and an end that is certain.

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How often a wait looks again.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A running program. Dropping it kills its whole process group.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    log: PathBuf,
    status: Option<ExitStatus>,
}

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit status.
    pub status: ExitStatus,
    /// All that it printed, both streams together.
    pub output: String,
}

impl Program {
    /// Starts `command` with both streams in `folder/name.log`.
    pub fn start(name: &str, folder: &Path, mut command: Command) -> Program {
        let log = folder.join(format!("{name}.log"));
        let file = File::create(&log).expect("the log file can be made");
        let errors = file.try_clone().expect("the log file can be shared");
        command.stdin(Stdio::null()).stdout(file).stderr(errors).process_group(0);
        // SAFETY: prctl(PR_SET_PDEATHSIG) is async-signal-safe and touches no memory.
        unsafe {
            // A killed test run must not leave busy-polling programs behind.
            command.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?));
        }
        let child = command.spawn().unwrap_or_else(|error| panic!("{name} ({command:?}) cannot be started: {error}"));
        Program { name: name.to_owned(), child, log, status: None }
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it printed so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Whether it is still running.
    pub fn is_running(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("a child can be waited for");
        }
        self.status.is_none()
    }

    /// Waits until its output contains `text`. Panics when it ends before or `limit` passes.
    pub fn wait_for_output(&mut self, text: &str, limit: Duration) {
        let deadline = Instant::now() + limit;
        loop {
            let running = self.is_running();
            if self.output().contains(text) {
                return;
            }
            assert!(running, "{} ended before it printed {text:?}; output:\n{}", self.name, self.output());
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{} did not print {text:?} in {limit:?}; output:\n{}", self.name, self.output());
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits for its end, or `None` after `limit`.
    pub fn wait(&mut self, limit: Duration) -> Option<Ended> {
        let deadline = Instant::now() + limit;
        while self.is_running() {
            if Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        self.status.map(|status| Ended { status, output: self.output() })
    }

    /// Waits for its end. Panics, with its output, when it takes longer than `limit` (a hang).
    pub fn end(&mut self, limit: Duration) -> Ended {
        self.wait(limit)
            .unwrap_or_else(|| panic!("{} still runs after {limit:?} (hang); output:\n{}", self.name, self.output()))
    }

    /// Waits for a successful end and returns its output. Panics on a failure or when it takes longer than `limit`.
    pub fn succeed(&mut self, limit: Duration) -> String {
        let ended = self.end(limit);
        assert!(ended.status.success(), "{} ended with {}; output:\n{}", self.name, ended.status, ended.output);
        ended.output
    }

    /// Sends a signal to the program alone.
    pub fn signal(&self, signal: Signal) {
        nix::sys::signal::kill(self.group(), signal)
            .unwrap_or_else(|error| panic!("{} cannot be signalled: {error}", self.name));
    }

    /// SIGKILL, then waits for the end.
    pub fn kill(&mut self) {
        if self.is_running() {
            let _ = killpg(self.group(), Signal::SIGKILL);
            self.status = Some(self.child.wait().expect("a killed child ends"));
        }
    }

    fn group(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a process id is positive"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- {} ---\n{}", self.name, self.output());
        }
    }
}
