//! The library in the place of `libibverbs.so.1` and `librdmacm.so.1`: its symbol versions, and programs that find it in a folder of
//! their library path and are given nothing else but the device's socket.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tests::matrix::{End, free_port, meet, wait_until_listening};
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

/// Every name has a version, and all that the distribution's programs and drivers ask of both libraries is there.
#[test]
fn all_versioned_names_are_there() {
    if missing_program(&["nm", "readelf"]) {
        return;
    }
    let ours = symbols("--defined-only", &library());
    let bare: Vec<&String> = ours.iter().filter(|name| !name.contains('@')).collect();
    assert!(bare.is_empty(), "exported without a version: {bare:?}");
    let nodes = [("IBVERBS_1.0", 9), ("IBVERBS_1.1", 47), ("IBVERBS_PRIVATE_34", 73), ("IBVERBS_PRIVATE_65", 92)];
    let cm_nodes =
        [("RDMACM_1.0", 62), ("RDMACM_1.1", 1), ("RDMACM_1.2", 2), ("RDMACM_1.3", 3), ("RDMACM_1.4", 3), ("RDMACM_1.5", 3)];
    for (node, least) in nodes.into_iter().chain(cm_nodes) {
        let count = ours.iter().filter(|name| name.ends_with(&format!("@{node}"))).count();
        assert!(count >= least, "{node} has {count} names, fewer than {least}");
    }
    let sections = Command::new("readelf").args(["-V", "-W"]).arg(library()).output().expect("readelf can be started");
    let sections = String::from_utf8_lossy(&sections.stdout).into_owned();
    assert!(sections.contains("Name: libibverbs.so.1"), "its name among the version definitions:\n{sections}");
    for (node, _) in nodes.into_iter().chain(cm_nodes) {
        assert!(sections.contains(&format!("Name: {node}\n")), "{node} is no version definition:\n{sections}");
    }

    let real = ["libibverbs.so.1", "librdmacm.so.1"].map(|name| Path::new(SYSTEM).join(name));
    if !real.iter().all(|file| file.is_file()) {
        return skip("libibverbs and librdmacm are not installed, so there is no list to compare with");
    }
    let theirs: BTreeSet<String> = real.iter().flat_map(|file| symbols("--defined-only", file)).collect();
    // Version 1.0 names with a successor in 1.1 are the interface of 2005, with other structs.
    let old = |name: &str| name.ends_with("@IBVERBS_1.0") && theirs.contains(&name.replace("_1.0", "_1.1"));
    let absent: Vec<&String> = theirs
        .iter()
        .filter(|name| name.contains('@') && !old(name))
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

/// Two devices, and a folder in which the library has all names under which programs look for it.
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
        for name in ["libibverbs.so.1", "libibverbs.so", "librdmacm.so.1"] {
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

    /// The same for programs that find each other by the devices' addresses.
    fn pair_by_address(&self, server: &str, client: &str, expected: &str) {
        let (mut server, output) = meet(|end| match end {
            End::Server => self.run("a", &server.split(' ').collect::<Vec<_>>()),
            End::Client => self.run("b", &client.split(' ').collect::<Vec<_>>()),
        });
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

/// Connections by address, and the distribution's rsockets on them.
#[test]
fn programs_of_rdma_cm_run_with_nothing_but_a_library_path() {
    let _turn = one_at_a_time();
    if missing_program(&["rping", "rstream", "rdma_server", "ib_write_bw"]) {
        return;
    }
    let place = Place::new();
    place.pair_by_address("rping -s -a 203.0.113.1 -C 5 -v", "rping -c -a 203.0.113.1 -C 5 -v", "rdma-ping-4");
    place.pair_by_address("rdma_server -s 203.0.113.1", "rdma_client -s 203.0.113.1", "rdma_client: end 0");
    place.pair_by_address("ib_write_bw -R -n 100", "ib_write_bw -R -n 100 203.0.113.1", "BW average");
    place.pair_by_address("rstream -S 4000 -C 10 -I 10", "rstream -S 4000 -C 10 -I 10 -s 203.0.113.1", "custom");
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
