//! The library in the place of `libibverbs.so.1`: its symbol versions, and programs that find it in a folder of their library path
//! and are given nothing else but the device's socket.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tests::matrix::{free_port, wait_until_listening};
use tests::{Daemon, Program, binary, missing_program, one_at_a_time, skip};

const LIMIT: Duration = Duration::from_secs(60);
/// Where Debian has the distribution's libraries.
const SYSTEM: &str = "/usr/lib/x86_64-linux-gnu";

fn library() -> PathBuf {
    binary().with_file_name("libvrdma_ibverbs.so")
}

/// Dynamic symbols of a library that `nm` lists with this option, as `name@version`.
fn symbols(option: &str, file: &Path) -> BTreeSet<String> {
    let output = Command::new("nm").args(["-D", option]).arg(file).output().expect("nm can be started");
    assert!(output.status.success(), "nm {}: {}", file.display(), String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().filter_map(|line| line.split_whitespace().last()).map(|name| name.replace("@@", "@")).collect()
}

/// Every name has a version, and all that the distribution's programs and drivers ask of `libibverbs.so.1` is there.
#[test]
fn all_versioned_names_are_there() {
    if missing_program(&["nm", "readelf"]) {
        return;
    }
    let ours = symbols("--defined-only", &library());
    let bare: Vec<&String> = ours.iter().filter(|name| !name.contains('@')).collect();
    assert!(bare.is_empty(), "exported without a version: {bare:?}");
    for (node, least) in [("IBVERBS_1.0", 9), ("IBVERBS_1.1", 47), ("IBVERBS_PRIVATE_34", 73), ("IBVERBS_PRIVATE_65", 92)] {
        let count = ours.iter().filter(|name| name.ends_with(&format!("@{node}"))).count();
        assert!(count >= least, "{node} has {count} names, fewer than {least}");
    }
    let sections = Command::new("readelf").args(["-V", "-W"]).arg(library()).output().expect("readelf can be started");
    let sections = String::from_utf8_lossy(&sections.stdout).into_owned();
    assert!(sections.contains("Name: libibverbs.so.1"), "its name among the version definitions:\n{sections}");

    let real = Path::new(SYSTEM).join("libibverbs.so.1");
    if !real.is_file() {
        return skip("libibverbs is not installed, so there is no list to compare with");
    }
    // Version 1.0 names with a successor in 1.1 are the interface of 2005, with other structs.
    let theirs = symbols("--defined-only", &real);
    let old = |name: &str| name.ends_with("@IBVERBS_1.0") && theirs.contains(&name.replace("_1.0", "_1.1"));
    let absent: Vec<&String> = theirs
        .iter()
        .filter(|name| name.contains("@IBVERBS_") && !old(name) && !name.starts_with("IBVERBS_"))
        // The way in which drivers of the first releases said that they are there.
        .filter(|name| !name.starts_with("ibv_register_driver@") && !ours.contains(*name))
        .collect();
    assert!(absent.is_empty(), "not there: {absent:?}");
    for user in ["libmlx5.so.1", "libefa.so.1", "librdmacm.so.1"] {
        let user = Path::new(SYSTEM).join(user);
        if user.is_file() {
            let wanted = symbols("--undefined-only", &user);
            let absent: Vec<&String> =
                wanted.iter().filter(|name| name.contains("@IBVERBS_") && !ours.contains(*name)).collect();
            assert!(absent.is_empty(), "{} needs {absent:?}", user.display());
        }
    }
}

/// Two devices, and a folder in which the library has the names under which programs look for it.
struct Place {
    daemon: Daemon,
}

impl Place {
    fn new() -> Place {
        let mut daemon = Daemon::start();
        daemon.add_device("a", "203.0.113.1");
        daemon.add_device("b", "203.0.113.2");
        let folder = daemon.folder().join("lib");
        std::fs::create_dir(&folder).expect("the folder can be made");
        for name in ["libibverbs.so.1", "libibverbs.so"] {
            symlink(library(), folder.join(name)).expect("the link can be made");
        }
        Place { daemon }
    }

    fn run(&self, device: &str, words: &[&str]) -> Program {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env("LD_LIBRARY_PATH", self.daemon.folder().join("lib")).env_remove("LD_PRELOAD");
        command.env("VRDMA_SOCKET", self.daemon.device_socket(device));
        Program::start(&format!("{}-{device}", words[0]), self.daemon.folder(), command)
    }

    fn pair(&self, words: &[&str], expected: &str) {
        let port = free_port().to_string();
        let words: Vec<&str> = words.iter().copied().chain(["-p", &port]).collect();
        let mut server = self.run("a", &words);
        wait_until_listening(&mut server, &port);
        let words: Vec<&str> = words.iter().copied().chain(["127.0.0.1"]).collect();
        let output = self.run("b", &words).succeed(LIMIT);
        server.succeed(LIMIT);
        assert!(output.contains(expected), "{expected:?} is missing in:\n{output}");
    }
}

#[test]
fn programs_run_with_nothing_but_a_library_path() {
    let _turn = one_at_a_time();
    if missing_program(&["ib_write_bw", "ib_send_lat", "ibv_rc_pingpong", "ibv_devinfo"]) {
        return;
    }
    let place = Place::new();
    let output = place.run("a", &["ibv_devinfo", "-v"]).succeed(LIMIT);
    assert!(output.contains("hca_id:\ta") && output.contains("::ffff:203.0.113.1"), "{output}");
    place.pair(&["ibv_rc_pingpong", "-g", "0", "-n", "200"], "iters in");
    // These bring the distribution's drivers along, which need the private names.
    place.pair(&["ib_write_bw", "-n", "100"], "BW average");
    place.pair(&["ib_send_lat", "-n", "100"], "t_typical");
}

/// What a program loads at run time is ours too.
#[test]
fn a_library_loaded_at_run_time_is_this_one() {
    let _turn = one_at_a_time();
    let place = Place::new();
    let client = env!("CARGO_BIN_EXE_verbs-client");
    let mut command = Command::new(client);
    command.args(["lookup", "--library", "libibverbs.so"]).env("LD_LIBRARY_PATH", place.daemon.folder().join("lib"));
    command.env("VRDMA_SOCKET", place.daemon.device_socket("a"));
    let output = Program::start("lookup", place.daemon.folder(), command).succeed(LIMIT);
    assert!(output.contains("device a") && output.contains("opened"), "{output}");
}
