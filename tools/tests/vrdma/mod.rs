//! Runs the binary under test in a directory of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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
        let output = command(dir).args(args).stdin(Stdio::null()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Outcome { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

fn command(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrdma"));
    for variable in ["VRDMA_DIR", "VRDMA_SOCKET", "VRDMA_LIBRARY", "VRDMA_LOG", "RUST_LOG", "LD_PRELOAD", "XDG_RUNTIME_DIR"] {
        command.env_remove(variable);
    }
    command.env("VRDMA_DIR", dir);
    command
}
