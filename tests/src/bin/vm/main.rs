//! The long run with virtual machines: `tests/vm/run interop`.
//!
//! It prints a table and keeps it in a file beside `tests/vm/run`. The exit status is 0 if every row passed, 1 if one did not,
//! and 77 after `SKIP` and a reason if something that they need is absent.

mod interop;

use std::path::Path;
use std::process::{Command, ExitCode};
use tests::vm::Image;

/// Exit status of a run that was skipped.
const SKIPPED: u8 = 77;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let run = match words.first().map(String::as_str) {
        Some("interop") => interop::run,
        _ => {
            eprintln!("usage: tests/vm/run interop [PART OF A ROW]…");
            return ExitCode::from(2);
        }
    };
    Image::make();
    match Image::or_skip() {
        Some(image) => run(&image, &words[1..]),
        None => ExitCode::from(SKIPPED),
    }
}

/// What a table was measured with: date, and the versions of both ends.
fn circumstances(image: &Image) -> String {
    let says = |program: &str, words: &[&str]| {
        let output = Command::new(program).args(words).output();
        output.map_or_else(|_| "unknown".into(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = here.to_str().expect("the path of the sources is text");
    format!(
        "{}; vrdma {}; host kernel {}; guest kernel {} (`rdma_rxe`) under QEMU {} without hardware virtualisation; \
         rdma-core {}, perftest {} on both sides.",
        says("date", &["-u", "+%Y-%m-%d"]),
        says("git", &["-C", folder, "describe", "--always"]),
        says("uname", &["-r"]),
        image.kernel(),
        image.version("qemu-system-x86"),
        image.version("rdma-core"),
        image.version("perftest"),
    )
}

/// Prints a table and keeps it.
fn keep(name: &str, text: &str) {
    print!("{text}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("vm").join(name);
    std::fs::write(&path, text).unwrap_or_else(|error| eprintln!("{}: {error}", path.display()));
}
