//! The long runs with virtual machines: `tests/vm/run interop`, `side-by-side`, `shape`, `erdma`.
//!
//! Each prints a table and keeps it in a file beside `tests/vm/run`. The exit status is 0 if every row passed, 1 if one did not,
//! and 77 after `SKIP` and a reason if something that they need is absent.

mod erdma;
mod interop;
mod shape;
mod side_by_side;

use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use tests::vm::Image;

/// Exit status of a run that was skipped.
const SKIPPED: u8 = 77;

/// The long runs with virtual machines.
#[derive(Parser)]
#[command(name = "tests/vm/run")]
struct Arguments {
    #[command(subcommand)]
    run: Run,
}

#[derive(Subcommand)]
enum Run {
    /// vrdma against Linux soft-RoCE: all programs, both sides, all paths; keeps interop.md.
    Interop(interop::Options),
    /// vrdma and Linux soft-RoCE in the same guest, as ratios; keeps side-by-side.md.
    SideBySide(side_by_side::Options),
    /// `vrdma run --shape` on soft-RoCE: rates kept, latency beside bulk; keeps shape.md.
    Shape(shape::Options),
    /// Guests with the mainline erdma driver on devices of vrdma; keeps erdma.md.
    Erdma {
        /// Only rows that hold one of these words; the kept table stays as it is.
        #[arg(value_name = "PART OF A ROW")]
        parts: Vec<String>,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let Some(image) = Image::make_or_skip() else {
        println!("0 passed, 0 failed, 1 skipped");
        return ExitCode::from(SKIPPED);
    };
    match arguments.run {
        Run::Interop(options) => interop::run(&image, &options),
        Run::SideBySide(options) => side_by_side::run(&image, &options),
        Run::Shape(options) => shape::run(&image, &options),
        Run::Erdma { parts } => erdma::run(&image, &parts),
    }
}

/// What a table was measured with: the versions of both ends.
fn circumstances(image: &Image) -> String {
    let says = |program: &str, words: &[&str]| {
        let output = Command::new(program).args(words).output();
        output.map_or_else(|_| "unknown".into(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let git = |words: &[&str]| {
        // Tests are no part of what is measured, and neither are the tables.
        let product = ["--", ":/", ":(top,exclude)tests"];
        says("git", &[&["-C", env!("CARGO_MANIFEST_DIR")], words, &product].concat())
    };
    let changed = if git(&["status", "--porcelain"]).is_empty() { "" } else { " with changes" };
    format!(
        "vrdma {}{changed}; host kernel {}; guest kernel {} (`rdma_rxe`) under QEMU {} without hardware virtualisation; \
         rdma-core {}, perftest {} on both sides",
        git(&["log", "-1", "--format=%h"]),
        says("uname", &["-r"]),
        image.kernel(),
        image.version("qemu-system-x86"),
        image.version("rdma-core"),
        image.version("perftest"),
    )
}

/// Today, in UTC.
fn today() -> String {
    let output = Command::new("date").args(["-u", "+%Y-%m-%d"]).output();
    output.map_or_else(|_| "unknown date".into(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Where a table is kept.
fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vm").join(name)
}

/// Keeps a table.
fn keep(name: &str, text: &str) {
    let path = place(name);
    std::fs::write(&path, text).unwrap_or_else(|error| eprintln!("{}: {error}", path.display()));
}
