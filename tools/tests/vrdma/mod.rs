//! Runs the binary under test in a directory of its own.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use tempfile::TempDir;

/// One test's directory.
pub struct Vrdma {
    dir: TempDir,
}

/// What a run left behind.
#[derive(Debug)]
pub struct Outcome {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Vrdma {
    /// An empty directory; no daemon runs in it.
    pub fn new() -> Vrdma {
        Vrdma { dir: tempfile::tempdir().unwrap() }
    }

    pub fn dir(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    /// Runs to the end with this test's directory.
    pub fn run(&self, args: &[&str]) -> Outcome {
        self.run_in(self.dir.path(), args)
    }

    /// Runs to the end with another directory.
    pub fn run_in(&self, dir: &Path, args: &[&str]) -> Outcome {
        let output = command(dir).args(args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Outcome { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// The command, not yet started.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = command(self.dir.path());
        command.args(args);
        command
    }

    /// Runs what must succeed, silently apart from what it prints.
    pub fn succeed(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{args:?}");
        output.stdout
    }

    /// Runs what must succeed and print JSON.
    pub fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.succeed(args)).unwrap()
    }

    /// Runs what must fail with exit code 1 and one line that has these parts.
    pub fn fail(&self, args: &[&str], parts: &[&str]) {
        let output = self.run(args);
        assert_eq!(output.code, 1, "{args:?}: {output:?}");
        assert_eq!((output.stdout.as_str(), output.stderr.lines().count()), ("", 1), "{args:?}: {output:?}");
        for part in parts {
            assert!(output.stderr.contains(part), "{part} in {}", output.stderr);
        }
    }

    /// Starts a daemon; requests are answered when this returns.
    pub fn daemon(&self) -> Daemon {
        let mut child = self.command(&["daemon"]).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        assert!(line.starts_with("vrdma: serving at "), "{line}");
        // What it says later goes into the test's output.
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).for_each(|line| eprintln!("daemon: {line}")));
        Daemon { child }
    }
}

/// A daemon; stopped with SIGTERM when dropped.
pub struct Daemon {
    child: Child,
}

impl Daemon {
    /// Ends it without giving it a chance to tidy up.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM).unwrap();
            let status = self.child.wait().unwrap();
            if !std::thread::panicking() {
                assert!(status.success(), "the daemon ended with {status}");
            }
        }
    }
}

fn command(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrdma"));
    for variable in ["VRDMA_DIR", "VRDMA_SOCKET", "VRDMA_LIBRARY", "VRDMA_LOG", "RUST_LOG", "LD_PRELOAD", "XDG_RUNTIME_DIR"] {
        command.env_remove(variable);
    }
    command.env("VRDMA_DIR", dir).stdin(Stdio::null());
    command
}
