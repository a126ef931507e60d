//! The preload library as the loader sees it: what it exports, what it needs, and that programs reach it whatever way they look
//! for libibverbs.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tests::{Daemon, binary, missing_program, need_root, one_at_a_time, skip};

const CLIENT: &str = env!("CARGO_BIN_EXE_verbs-client");
const LIMIT: Duration = Duration::from_secs(20);

fn library() -> PathBuf {
    binary().with_file_name("libvrdma_verbs.so")
}

fn output_of(program: &str, options: &[&str], file: &Path) -> String {
    let output = Command::new(program).args(options).arg(file).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {}: {}", file.display(), String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Names that a shared library defines, with their versions.
fn exports(file: &Path) -> Vec<String> {
    let table = output_of("nm", &["-D", "--defined-only"], file);
    table.lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect()
}

fn installed_libibverbs() -> Option<PathBuf> {
    let listing = Command::new("/sbin/ldconfig").arg("-p").output().ok()?;
    let text = String::from_utf8_lossy(&listing.stdout).into_owned();
    let line = text.lines().find(|line| line.trim_start().starts_with("libibverbs.so.1 "))?;
    line.rsplit("=> ").next().map(PathBuf::from)
}

/// A call that fell through to the real library with one of our objects would crash there.
#[test]
fn every_public_function_is_defined() {
    if missing_program(&["nm"]) {
        return;
    }
    let Some(real) = installed_libibverbs() else {
        return skip("libibverbs is not installed, so there is no list to compare with");
    };
    let ours: HashSet<String> = exports(&library()).into_iter().collect();
    assert!(ours.contains("dlvsym"), "programs that look verbs up with a version need our dlvsym");
    assert!(ours.contains("ibv_query_gid_type"), "ibv_devinfo calls this private function");
    let public: Vec<String> =
        exports(&real).iter().filter_map(|name| name.split_once("@@IBVERBS_1")).map(|(name, _)| name.to_owned()).collect();
    assert!(public.len() > 60, "{} lists its public functions: {public:?}", real.display());
    // These take no verbs object: numbers, texts and structures only.
    let without_object = ["rate", "_kern", "sysfs", "_str", "fork", "resolve_eth_l2"];
    let takes_object = |name: &&String| !without_object.iter().any(|part| name.contains(part));
    let absent: Vec<&String> = public.iter().filter(takes_object).filter(|name| !ours.contains(*name)).collect();
    assert!(absent.is_empty(), "not defined: {absent:?}");
}

#[test]
fn it_needs_no_rdma_library() {
    if missing_program(&["readelf"]) {
        return;
    }
    let dynamic = output_of("readelf", &["-d"], &library());
    let needed: Vec<&str> = dynamic.lines().filter(|line| line.contains("(NEEDED)")).collect();
    assert!(!needed.is_empty(), "it needs the C library at least:\n{dynamic}");
    for part in ["verbs", "rdma", "mlx", "efa", "umad"] {
        assert!(!needed.iter().any(|line| line.contains(part)), "{needed:?}");
    }
}

#[test]
fn programs_that_look_verbs_up_at_run_time_find_the_device() {
    let _turn = one_at_a_time();
    if installed_libibverbs().is_none() {
        return skip("libibverbs is not installed, and such a program opens it first");
    }
    let mut daemon = Daemon::start();
    daemon.add_device("a", "203.0.113.1");
    let output = daemon.run("a", &[CLIENT, "lookup", "--library", "libibverbs.so.1"]).succeed(LIMIT);
    assert!(output.contains("device a") && output.contains("opened"), "{output}");
}

#[test]
fn it_works_where_no_rdma_library_is_installed() {
    let _turn = one_at_a_time();
    if missing_program(&["unshare", "mount"]) || need_root("a mount namespace") {
        return;
    }
    let mut daemon = Daemon::start();
    daemon.add_device("a", "203.0.113.1");
    // An empty file hides the installed library from this program alone.
    let hide = installed_libibverbs().map_or("true".to_owned(), |real| format!("mount --bind /dev/null {}", real.display()));
    let run = format!("{hide} && exec '{}' run --dev a -- '{CLIENT}' registration --count 10", binary().display());
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &run]).env("VRDMA_DIR", daemon.folder());
    let output = tests::Program::start("hidden", daemon.folder(), command).succeed(LIMIT);
    assert!(output.contains("OK"), "{output}");
}

/// A program whose device cannot be reached is told why, on standard error.
#[test]
fn a_device_that_cannot_be_reached_is_explained() {
    let _turn = one_at_a_time();
    let mut daemon = Daemon::start();
    daemon.add_device("a", "203.0.113.1");
    let mut command = Command::new(CLIENT);
    command.args(["registration", "--count", "1"]).env("LD_PRELOAD", library());
    command.env("VRDMA_SOCKET", daemon.device_socket("gone"));
    let ended = tests::Program::start("gone", daemon.folder(), command).end(LIMIT);
    assert!(!ended.status.success(), "{}", ended.output);
    assert!(ended.output.contains("gone/sock"), "the message names the socket: {}", ended.output);
    // The command line looks before it starts the program.
    let ended = daemon.run("gone", &[CLIENT, "registration"]).end(LIMIT);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.output);
    assert!(ended.output.contains("gone"), "{}", ended.output);
}
