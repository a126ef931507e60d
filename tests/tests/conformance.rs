//! Test suites that others wrote, run as they are.

use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tests::{Program, binary, one_at_a_time, skip};

const LIMIT: Duration = Duration::from_secs(600);

/// Another release of Debian, whose packages `./test` unpacks beside this machine's.
const RELEASE: &str = "trixie";

/// A script of `conformance/`, told where the product's binaries are.
fn script(name: &str) -> Command {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance").join(name));
    command.env("VRDMA_BIN_DIR", binary().parent().expect("the binary lies in a folder"));
    command
}

/// Runs a script to its end.
fn run(name: &str, mut command: Command, words: &[&str]) {
    command.args(words);
    let folder = std::env::temp_dir().join(format!("vrdma-conformance-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let report = Program::start(name, &folder, command).succeed(LIMIT);
    println!("{report}");
    std::fs::remove_dir_all(&folder).expect("the temporary folder is ours");
}

/// Whether the packages of [`RELEASE`] are not there; the test is skipped then.
fn no_release() -> bool {
    let found = script("release").args([RELEASE, "--find"]).output().is_ok_and(|output| output.status.success());
    if !found {
        skip("not unpacked: packages of Debian trixie (tests/conformance/release trixie does it, and ./test)");
    }
    !found
}

/// rdma-core's Python tests, as Debian's package has them. `tests/conformance/pyverbs` says what counts as passed.
#[test]
fn rdma_core_python_tests() {
    let _turn = one_at_a_time();
    if !Path::new("/usr/share/doc/rdma-core/tests").is_dir() {
        return skip("not installed: python3-pyverbs (./test as root installs it)");
    }
    run("pyverbs", script("pyverbs"), &[]);
}

/// The same of a newer release.
#[test]
fn rdma_core_python_tests_of_another_release() {
    let _turn = one_at_a_time();
    if !no_release() {
        run("pyverbs-release", script("pyverbs"), &["--release", RELEASE]);
    }
}

/// perftest of a newer release: its tools over each of their transports.
#[test]
fn perftest_of_another_release() {
    let _turn = one_at_a_time();
    if !no_release() {
        run("perftest-release", script("perftest"), &[RELEASE]);
    }
}
