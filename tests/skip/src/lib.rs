//! Skipping a test, loudly: one line per skipped test on standard error, and one in the file named by `VRDMA_SKIP_LOG`, where
//! `./test` counts it. For the tests of every crate of the workspace; never part of the product.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// Says that the running test is skipped, and why. The line goes past the capture of the test runner, so that it is seen
/// when the test "passes".
pub fn skip(reason: &str) {
    let test = std::thread::current().name().unwrap_or("test").to_owned();
    let line = format!("SKIP {test}: {reason}\n");
    // `std::io::stderr()` is not captured by the test runner; `eprintln!` would be.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(log) = std::env::var_os("VRDMA_SKIP_LOG") {
        let mut file = OpenOptions::new().create(true).append(true).open(&log).expect("VRDMA_SKIP_LOG can be opened");
        file.write_all(line.as_bytes()).expect("VRDMA_SKIP_LOG can be written");
    }
}

/// Skips the running test if one of these programs is not installed. Returns whether it was skipped.
pub fn missing_program(names: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places: Vec<_> = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).collect();
    let absent: Vec<&str> =
        names.iter().copied().filter(|name| !places.iter().any(|place| Path::new(place).join(name).is_file())).collect();
    if !absent.is_empty() {
        skip(&format!("not installed: {} (./test as root installs it)", absent.join(", ")));
    }
    !absent.is_empty()
}

/// Skips the running test if it does not run as root. Returns whether it was skipped.
pub fn need_root(what_for: &str) -> bool {
    let absent = !nix::unistd::geteuid().is_root();
    if absent {
        skip(&format!("needs root for {what_for}"));
    }
    absent
}
