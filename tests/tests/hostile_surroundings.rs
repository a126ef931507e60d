//! Bad surroundings: paths that are too long, a directory already served, missing permission, exhausted limits, and bad requests
//! to the control API. Each gives a clear error in the right place, and the daemon goes on.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tests::{ControlClient, Daemon, DaemonOptions, Program, binary, http, missing_program, need_root, one_at_a_time};

const CLIENT: &str = env!("CARGO_BIN_EXE_verbs-client");
const LIMIT: Duration = Duration::from_secs(20);

fn error_of(body: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("an error is JSON: {body}"));
    value["error"].as_str().unwrap_or_else(|| panic!("an error says why: {body}")).to_owned()
}

/// DM-01: 107 bytes are the longest path of a Unix socket.
#[test]
fn a_socket_path_that_is_too_long_is_refused_with_the_limit() {
    let _turn = one_at_a_time();
    let long = std::env::temp_dir().join("x".repeat(120));
    let mut command = Command::new(binary());
    command.arg("daemon").env("VRDMA_DIR", &long);
    let ended = Program::start("too-long", &std::env::temp_dir(), command).end(LIMIT);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.output);
    assert!(ended.output.contains("107"), "the message names the limit: {}", ended.output);
    assert!(!long.exists(), "nothing was made");

    let daemon = Daemon::start();
    let room = 108 - daemon.device_socket("x").as_os_str().len();
    for (len, status) in [(room, 201), (room + 1, 400)] {
        let name = "n".repeat(len);
        let (got, body) = daemon.http("PUT", &format!("/v1/devices/{name}"), r#"{"ips":["203.0.113.1"]}"#);
        // A limit of names may come first; then nothing is to be seen here.
        if got == 400 && len == room {
            assert!(!error_of(&body).is_empty());
            continue;
        }
        assert_eq!(got, status, "a path of {} bytes: {body}", 107 - room + len);
        if status == 400 {
            assert!(!error_of(&body).is_empty());
            assert!(!daemon.device_socket(&name).exists());
        }
        daemon.http("DELETE", &format!("/v1/devices/{name}"), "");
    }
}

#[test]
fn a_directory_that_is_served_is_refused_and_the_first_daemon_goes_on() {
    let _turn = one_at_a_time();
    let mut daemon = Daemon::start();
    daemon.add_device("a", "203.0.113.1");
    let ended = daemon.cli(&["daemon"]);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.output);
    assert!(ended.output.contains(daemon.folder().to_str().expect("text")), "the message names the place: {}", ended.output);
    assert_eq!(daemon.device("a")["state"], "ACTIVE");
    assert!(ControlClient::open(&daemon.device_socket("a")).is_ok());
}

#[test]
fn stale_sockets_of_a_killed_daemon_are_replaced() {
    let _turn = one_at_a_time();
    let mut daemon = Daemon::start();
    daemon.add_device("a", "203.0.113.1");
    daemon.restart();
    daemon.add_device("a", "203.0.113.1");
    assert!(ControlClient::open(&daemon.device_socket("a")).is_ok());
}

/// Copies the product to where another user may read it, whatever the rights of the checkout are.
fn for_everybody(folder: &Path) -> HashMap<&'static str, String> {
    use std::os::unix::fs::PermissionsExt;
    let readable = folder.join("bin");
    std::fs::create_dir_all(&readable).expect("a folder");
    std::fs::set_permissions(&readable, std::fs::Permissions::from_mode(0o755)).expect("rights");
    let product = binary().parent().expect("a folder");
    let files = [
        ("vrdma", binary().to_owned()),
        ("libvrdma_verbs.so", product.join("libvrdma_verbs.so")),
        ("verbs-client", CLIENT.into()),
    ];
    let copy = |(name, from): (&'static str, std::path::PathBuf)| {
        let to = readable.join(name);
        std::fs::copy(&from, &to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o755)).expect("rights");
        (name, to.to_str().expect("text").to_owned())
    };
    files.into_iter().map(copy).collect()
}

/// Runs the registration test as another user; `own_limit` words go before it.
fn as_nobody(daemon: &Daemon, files: &HashMap<&str, String>, name: &str) -> tests::Ended {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    command.args([&files["vrdma"], "run", "--dev", "a", "--", &files["verbs-client"], "registration", "--count", "10"]);
    command.env("VRDMA_DIR", daemon.folder()).current_dir("/");
    Program::start(name, daemon.folder(), command).end(LIMIT)
}

/// DM-09 and OS-10: who may open the socket may use the device, and nobody else.
#[test]
fn another_user_needs_permission_and_nothing_more() {
    let _turn = one_at_a_time();
    if missing_program(&["setpriv"]) || need_root("another user") {
        return;
    }
    let mut daemon = Daemon::start();
    let files = for_everybody(daemon.folder());
    daemon.add_device("a", "203.0.113.1");
    let refused = as_nobody(&daemon, &files, "nobody-refused");
    assert!(!refused.status.success(), "{}", refused.output);
    assert!(refused.output.to_lowercase().contains("permission"), "the message says why: {}", refused.output);
    assert!(daemon.device("a")["clients"].as_array().is_some_and(Vec::is_empty));

    assert!(daemon.cli(&["dev", "del", "a"]).status.success());
    let added = daemon.cli(&["dev", "add", "a", "--ip", "203.0.113.1", "--mode", "0600", "--uid", "65534"]);
    assert!(added.status.success(), "{}", added.output);
    let granted = as_nobody(&daemon, &files, "nobody-granted");
    assert!(granted.status.success() && granted.output.contains("OK"), "{}", granted.output);

    // The control API stays with the daemon's owner.
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    command.args([&files["vrdma"], "dev", "del", "a"]).env("VRDMA_DIR", daemon.folder()).current_dir("/");
    let ended = Program::start("nobody-del", daemon.folder(), command).end(LIMIT);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.output);
    assert!(ended.output.contains("permission"), "{}", ended.output);
}

/// OS-07: programs in namespaces of their own, without `/dev/shm` or with nothing writable, work as any other: what they share
/// with the daemon comes over its socket. So they do when the daemon cannot see their processes.
#[test]
fn namespaces_do_not_matter() {
    let _turn = one_at_a_time();
    if missing_program(&["unshare", "mount"]) || need_root("namespaces") {
        return;
    }
    let hidden_by = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"].map(str::to_owned).to_vec();
    for wrapper in [Vec::new(), hidden_by] {
        let mut daemon = Daemon::start_with(DaemonOptions { wrapper, ..DaemonOptions::default() });
        daemon.add_device("a", "203.0.113.1");
        let read_only = format!("mount -t tmpfs -o ro none /dev/shm && mount -o remount,bind,ro / && exec {CLIENT} \"$@\"");
        for words in [
            "unshare --ipc",
            "unshare --ipc --pid --fork --kill-child --mount-proc",
            "unshare --user --map-root-user",
            "unshare --net --uts --cgroup",
            "unshare --mount",
        ] {
            let mut command: Vec<&str> = words.split(' ').collect();
            match words {
                "unshare --mount" => command.extend(["sh", "-c", &read_only, "sh"]),
                _ => command.push(CLIENT),
            }
            command.extend(["registration", "--count", "10"]);
            let output = daemon.run("a", &command).succeed(LIMIT);
            assert!(output.contains("OK"), "{words}: {output}");
        }
    }
}

/// OS-01: a small limit of locked memory is no obstacle, as nothing is pinned.
#[test]
fn a_small_memlock_limit_does_not_matter() {
    let _turn = one_at_a_time();
    let mut daemon = Daemon::start();
    daemon.add_device("a", "203.0.113.1");
    let words = ["prlimit", "--memlock=65536:65536", CLIENT, "registration", "--count", "10"];
    let output = daemon.run("a", &words).succeed(LIMIT);
    assert!(output.contains("OK"), "{output}");
}

/// DM-03: out of descriptors, the daemon says so, goes on, and does not spin.
#[test]
fn a_daemon_without_descriptors_says_so_and_goes_on() {
    let _turn = one_at_a_time();
    let wrapper = ["prlimit", "--nofile=64:64"].map(str::to_owned).to_vec();
    let daemon = Daemon::start_with(DaemonOptions { wrapper, ..DaemonOptions::default() });
    let mut made = 0;
    let refusal = loop {
        let body = format!(r#"{{"ips":["198.51.100.{made}"]}}"#);
        match http(&daemon.api_socket(), "PUT", &format!("/v1/devices/n{made}"), &body) {
            Ok((201, _)) => made += 1,
            Ok((status, body)) => break format!("{status} {}", error_of(&body)),
            Err(error) => panic!("the API must still answer: {error}"),
        }
        assert!(made < 64, "64 descriptors cannot serve 64 devices");
    };
    assert!(refusal.starts_with('5'), "{refusal}");
    assert!(refusal.contains("descriptors") || refusal.contains("open files"), "the message names what ran out: {refusal}");
    assert!(made > 4, "{made} devices before: {refusal}");
    // Connections that wait for a descriptor must not keep the daemon busy.
    let waiting: Vec<_> = (0..40).map(|_| ControlClient::connect(&daemon.device_socket("n0"))).collect();
    std::thread::sleep(Duration::from_millis(300));
    let before = daemon.cpu_ticks();
    std::thread::sleep(Duration::from_secs(1));
    let spent = daemon.cpu_ticks() - before;
    assert!(spent < 20, "{spent} ticks of CPU time in a second without descriptors");
    drop(waiting);
    // A client needs a handful of descriptors.
    for number in 1..made.min(11) {
        let (status, _) = daemon.http("DELETE", &format!("/v1/devices/n{number}"), "");
        assert!((200..300).contains(&status));
    }
    let client = ControlClient::open(&daemon.device_socket("n0"));
    assert!(client.is_ok(), "a running device takes clients again: {client:?}");
    drop(client);
    let (status, body) = daemon.http("PUT", "/v1/devices/again", r#"{"ips":["198.51.100.200"]}"#);
    assert_eq!(status, 201, "{body}");
}

/// DM-04: many clients want the same name at once.
#[test]
fn of_many_creations_of_one_name_exactly_one_wins() {
    let _turn = one_at_a_time();
    let daemon = Daemon::start();
    let socket = daemon.api_socket();
    for _ in 0..5 {
        let at_once = |request: fn(usize, &Path) -> u16| -> Vec<u16> {
            let threads: Vec<_> = (0..16)
                .map(|number| {
                    let socket = socket.clone();
                    std::thread::spawn(move || request(number, &socket))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("a thread ends well")).collect()
        };
        let created = at_once(|number, socket| {
            let body = format!(r#"{{"ips":["198.51.100.{number}"]}}"#);
            http(socket, "PUT", "/v1/devices/same", &body).expect("an answer").0
        });
        assert_eq!(created.iter().filter(|status| **status == 201).count(), 1, "{created:?}");
        assert_eq!(created.iter().filter(|status| **status == 409).count(), 15, "{created:?}");
        let deleted = at_once(|_, socket| http(socket, "DELETE", "/v1/devices/same", "").expect("an answer").0);
        assert!(deleted.iter().all(|status| (200..300).contains(status)), "{deleted:?}");
        assert!(!daemon.device_socket("same").exists());
    }
}

#[test]
fn creating_twice_is_fine_only_with_the_same_settings() {
    let _turn = one_at_a_time();
    let daemon = Daemon::start();
    let put = |name: &str, body: &str| daemon.http("PUT", &format!("/v1/devices/{name}"), body);
    assert_eq!(put("a", r#"{"ips":["203.0.113.1"]}"#).0, 201);
    assert_eq!(put("a", r#"{"ips":["203.0.113.1"]}"#).0, 200);
    let (status, body) = put("a", r#"{"ips":["203.0.113.9"]}"#);
    assert_eq!(status, 409, "{body}");
    assert!(error_of(&body).contains('a'));
    let (status, body) = put("b", r#"{"ips":["203.0.113.1"]}"#);
    assert!((400..500).contains(&status), "an address has one device: {status} {body}");
    assert!(error_of(&body).contains("203.0.113.1"), "{body}");
}

#[test]
fn bad_requests_to_the_api_are_refused_with_a_reason() {
    let _turn = one_at_a_time();
    let daemon = Daemon::start();
    let long_name = format!("/v1/devices/{}", "n".repeat(300));
    let many_ips = format!(r#"{{"ips":[{}]}}"#, vec![r#""203.0.113.1""#; 5000].join(","));
    let good = r#"{"ips":["203.0.113.1"]}"#;
    let cases = [
        ("PUT", "/v1/devices/a", "", "no body"),
        ("PUT", "/v1/devices/a", "{", "broken JSON"),
        ("PUT", "/v1/devices/a", "[]", "no object"),
        ("PUT", "/v1/devices/a", r#"{"ips":[]}"#, "no address"),
        ("PUT", "/v1/devices/a", r#"{"ips":["300.1.1.1"]}"#, "no IP address"),
        ("PUT", "/v1/devices/a", r#"{"ips":["0.0.0.0"]}"#, "not an address of one host"),
        ("PUT", "/v1/devices/a", r#"{"ips":["224.0.0.1"]}"#, "a multicast address"),
        ("PUT", "/v1/devices/a", r#"{"ips":["203.0.113.1","203.0.113.1"]}"#, "an address twice"),
        ("PUT", "/v1/devices/a", r#"{"ips":["203.0.113.1"],"mtu":1000}"#, "no path MTU"),
        ("PUT", "/v1/devices/a", r#"{"ips":["203.0.113.1"],"mode":"999"}"#, "no mode"),
        ("PUT", "/v1/devices/a", r#"{"ips":["203.0.113.1"],"colour":"red"}"#, "an unknown setting"),
        ("PUT", "/v1/devices/a", &many_ips, "too many addresses"),
        ("PUT", "/v1/devices/..%2Fescape", good, "a path in a name"),
        ("PUT", "/v1/devices/a%00b", good, "a zero byte in a name"),
        ("PUT", "/v1/devices/a%3Ab", good, "a colon in a name"),
        ("PUT", &long_name, good, "a long name"),
        ("GET", "/v1/devices/none", "", "no such device"),
        ("GET", "/v2/devices", "", "no such path"),
    ];
    for (method, path, body, about) in cases {
        let (status, answer) = daemon.http(method, path, body);
        assert!((400..500).contains(&status), "{about}: {status} {answer}");
        if path != "/v2/devices" {
            assert!(error_of(&answer).len() > 8, "{about}: {answer}");
        }
    }
    let (status, _) = daemon.http("POST", "/v1/devices/a", good);
    assert!((400..500).contains(&status), "an unknown method: {status}");
    // A body without end is cut off, not collected.
    let huge = "x".repeat(8 << 20);
    let before = daemon.resident_bytes();
    let _ = http(&daemon.api_socket(), "PUT", "/v1/devices/a", &huge);
    assert!(daemon.resident_bytes() < before + (4 << 20), "a huge body is collected");
    assert_eq!(daemon.http("GET", "/v1/devices", "").1.trim(), "[]", "nothing was made");
    assert!(daemon.folder().parent().is_some_and(|parent| !parent.join("escape").exists()));
}
