//! Start, stop, and what remains of a client that is gone.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use vdev::{Daemon, DaemonConfig, StartError};

use super::place::{Folder, Place, http, wait_until};
use super::raw::{ALL_ACCESS, CAPS, End, OP_WRITE, Raw, SIGNALED};
use vdev_abi::control::Request;
use vdev_abi::layout::SendEntry;

#[test]
fn a_second_daemon_is_refused_and_changes_nothing() {
    let place = Place::with_two_devices();
    let error = Daemon::start(DaemonConfig::new(place.folder.path())).unwrap_err();
    let StartError::AlreadyServed { pid, .. } = &error else { panic!("{error}") };
    assert_eq!(*pid, std::process::id().to_string());
    Raw::connect(&place.socket("a"));
}

#[test]
fn sockets_of_a_killed_daemon_are_replaced() {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path().join("dev/old")).unwrap();
    let stale = [folder.path().join("api.sock"), folder.path().join("dev/old/sock")];
    for path in &stale {
        drop(UnixListener::bind(path).unwrap());
    }
    std::fs::write(folder.path().join("dev/kept.txt"), "not a socket").unwrap();
    let daemon = Daemon::start(DaemonConfig::new(folder.path())).unwrap();
    assert!(!stale[1].exists());
    assert!(folder.path().join("dev/kept.txt").exists());
    assert_eq!(http(&stale[0], "GET", "/v1/version", "").unwrap().0, 200);
    daemon.shutdown();
    assert!(!stale[0].exists());
}

#[test]
fn shutdown_removes_every_socket_and_ends_every_client() {
    let mut place = Place::with_two_devices();
    let end = End::new(&place.socket("a"), 4096);
    place.daemon.take().unwrap().shutdown();
    assert!(end.raw.is_ended());
    assert!(!place.api().exists());
    assert_eq!(std::fs::read_dir(place.folder.path().join("dev")).unwrap().count(), 0);
    // The directory can be served again at once.
    Daemon::start(DaemonConfig::new(place.folder.path())).unwrap();
}

#[test]
fn shutdown_during_many_creations_leaves_nothing() {
    for _ in 0..3 {
        let mut place = Place::new();
        let api = place.api();
        std::thread::scope(|scope| {
            for n in 0..4 {
                let api = &api;
                scope.spawn(move || {
                    for m in 0..25 {
                        let body = format!("{{\"ips\":[\"198.51.100.{}\"]}}", n * 25 + m + 1);
                        // Once the daemon is going, connections fail.
                        let _ = http(api, "PUT", &format!("/v1/devices/d{n}-{m}"), &body);
                    }
                });
            }
            place.daemon.take().unwrap().shutdown();
        });
        assert!(!api.exists());
        assert_eq!(std::fs::read_dir(place.folder.path().join("dev")).unwrap().count(), 0);
    }
}

/// A directory whose device sockets have paths of `len` bytes for a name of one letter.
fn folder_for(len: usize) -> (Folder, PathBuf) {
    let folder = Folder::new();
    let fixed = folder.path().as_os_str().as_bytes().len() + "/".len() + "/dev/x/sock".len();
    let path = folder.path().join("y".repeat(len - fixed));
    (folder, path)
}

#[test]
fn socket_path_of_107_bytes_works_and_108_is_refused_by_name() {
    let (_folder, dir) = folder_for(107);
    let daemon = Daemon::start(DaemonConfig::new(&dir)).unwrap();
    let put = |name: &str, ip: &str| {
        let body = format!("{{\"ips\":[\"{ip}\"]}}");
        http(&daemon.api_socket(), "PUT", &format!("/v1/devices/{name}"), &body).unwrap()
    };
    assert_eq!(put("x", "203.0.113.1").0, 201);
    Raw::connect(&dir.join("dev/x/sock"));
    let (status, body) = put("xx", "203.0.113.2");
    assert_eq!(status, 400);
    assert!(body.contains("108 bytes") && body.contains("107"), "{body}");
    // Nothing of it was made: the address is free.
    assert!(!dir.join("dev/xx").exists());
    assert_eq!(put("y", "203.0.113.2").0, 201);
}

#[test]
fn relative_directory_with_trailing_slash_is_served_under_its_absolute_path() {
    let folder = Folder::new();
    let absolute = folder.path().join("inner");
    // Relative to wherever the test runs.
    let depth = std::env::current_dir().unwrap().components().count();
    let relative = "../".repeat(depth) + absolute.to_str().unwrap().trim_start_matches('/') + "/";
    let daemon = Daemon::start(DaemonConfig::new(&relative)).unwrap();
    assert!(daemon.dir().is_absolute());
    assert_eq!(http(&absolute.join("api.sock"), "GET", "/v1/version", "").unwrap().0, 200);
}

#[test]
fn objects_of_a_client_end_with_its_connection() {
    let place = Place::with_two_devices();
    for _ in 0..20 {
        let (a, b) = End::pair(&place.socket("a"), &place.socket("b"), 4096);
        place.wait_for_clients("a", 1);
        let client = place.device("a")["clients"][0].clone();
        assert_eq!(
            (&client["qps"], &client["cqs"], &client["mrs"], &client["pds"]),
            (&1.into(), &1.into(), &1.into(), &1.into())
        );
        assert_eq!(client["program"], "raw");
        assert_eq!(client["pid"], std::process::id());
        drop((a, b));
        place.wait_for_clients("a", 0);
        place.wait_for_clients("b", 0);
    }
}

/// What [`killed_process_leaves_nothing_and_its_peer_gets_an_error`] runs in another process.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn victim() {
    let Ok(path) = std::env::var("VDEV_TEST_VICTIM") else { return };
    let end = End::new(path.as_ref(), 1 << 20);
    for _ in 0..50 {
        end.raw.qp(end.pd, end.cq.handle, CAPS);
    }
    println!("qpn {} address {} key {}", end.qp.qpn, end.at(0), end.key);
    // The peer's number comes on stdin; after that the process waits to be killed.
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let mut words = line.split_whitespace();
    let qpn = words.next().unwrap().parse().unwrap();
    let gid: std::net::Ipv4Addr = words.next().unwrap().parse().unwrap();
    end.raw.connect_qp(&end.qp, qpn, gid.to_ipv6_mapped().octets());
    println!("connected");
    // A child that keeps the connection open must not keep the client alive.
    // SAFETY: the child makes system calls only.
    unsafe {
        if libc::fork() == 0 {
            libc::close_range(0, 2, 0);
            libc::sleep(5);
            libc::_exit(0);
        }
    }
    std::thread::park();
}

#[test]
fn killed_process_leaves_nothing_and_its_peer_gets_an_error() {
    use std::io::{BufRead, BufReader, Write};
    let place = Place::with_two_devices();
    for _ in 0..3 {
        let mut end = End::new(&place.socket("b"), 1 << 20);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "lifecycle::victim", "--ignored", "--nocapture"])
            .env("VDEV_TEST_VICTIM", place.socket("a"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut line_with = |word: &str| {
            let found = lines.by_ref().map(Result::unwrap).find(|line| line.contains(word)).unwrap();
            // The harness writes the name of the test before the first line.
            found[found.find(word).unwrap()..].to_owned()
        };
        let line = line_with("qpn ");
        let words: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [qpn, address, key] = words[..] else { panic!("{line}") };
        end.raw.connect_qp(&end.qp, qpn as u32, "203.0.113.1".parse::<std::net::Ipv4Addr>().unwrap().to_ipv6_mapped().octets());
        writeln!(child.stdin.as_mut().unwrap(), "{} 203.0.113.2", end.qp.qpn).unwrap();
        line_with("connected");
        assert_eq!(place.device("a")["clients"][0]["qps"], 51);

        let write =
            SendEntry { opcode: OP_WRITE, flags: SIGNALED, remote_addr: address, rkey: key as u32, ..Default::default() };
        let sge = end.sge(0, 4096);
        end.send(SendEntry { wr_id: 1, ..write }, &[sge]);
        assert_eq!(end.cq.wait().status, 0);
        child.kill().unwrap();
        place.wait_for_clients("a", 0);
        child.wait().unwrap();
        end.send(SendEntry { wr_id: 2, ..write }, &[sge]);
        let failed = end.cq.wait();
        assert_eq!(failed.wr_id, 2);
        assert_ne!(failed.status, 0);
        drop(end);
        place.wait_for_clients("b", 0);
    }
}

#[test]
fn handles_and_memory_are_reused_without_growth() {
    let place = Place::with_two_devices();
    let raw = Raw::connect(&place.socket("a"));
    let pd = raw.pd();
    let memory = vec![0; 8192];
    let maps = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains("vrdma-")).count();
    let round = || {
        let cq = raw.cq(16, None, 0);
        let qp = raw.qp(pd, cq.handle, CAPS);
        let (mr, _) = raw.register(pd, &memory);
        raw.call(&Request::DestroyQp { qp: qp.handle }).unwrap();
        raw.call(&Request::DestroyCq { cq: cq.handle }).unwrap();
        raw.call(&Request::DeregMr { mr }).unwrap();
    };
    for _ in 0..200 {
        round();
    }
    wait_until("objects are gone", || {
        let client = &place.device("a")["clients"][0];
        (&client["qps"], &client["cqs"], &client["mrs"]) == (&0.into(), &0.into(), &0.into())
    });
    // Other tests of this process have mappings of their own, but not hundreds.
    assert!(maps() < 200, "{} mappings", maps());
    let bad = Request::RegMr { pd, addr: 0x1000, length: 4096, iova: 0, access: ALL_ACCESS, shared: Vec::new() };
    for _ in 0..100 {
        assert_eq!(raw.errno(&bad), libc::EFAULT);
    }
    assert_eq!(place.device("a")["clients"][0]["mrs"], 0);
}
