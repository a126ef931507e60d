//! `vrdma dev why`: a queue pair that failed is explained, also after its program has ended.

use std::time::Duration;
use tests::{Daemon, NetnsPair, Streams, missing_program, need_root, one_at_a_time};

const CLIENT: &str = env!("CARGO_BIN_EXE_verbs-client");
const LIMIT: Duration = Duration::from_secs(30);

/// Number of the queue pair that failed last, and the line about it.
fn why(daemon: &mut Daemon, device: &str) -> (u64, String) {
    let listed = daemon.cli(&["--json", "dev", "why", device]);
    assert!(listed.status.success(), "{}", listed.output);
    let failures: serde_json::Value = serde_json::from_str(&listed.output).expect("JSON");
    let qpn = failures[0]["qpn"].as_u64().unwrap_or_else(|| panic!("a failure is remembered: {failures}"));
    let told = daemon.cli(&["dev", "why", device, &qpn.to_string()]);
    assert!(told.status.success(), "{}", told.output);
    assert_eq!(told.output.lines().count(), 1, "one line: {}", told.output);
    (qpn, told.output)
}

#[test]
fn a_peer_that_is_gone_is_named() {
    let _turn = one_at_a_time();
    if missing_program(&["ip"]) || need_root("network namespaces") {
        return;
    }
    let pair = NetnsPair::new(9000);
    let [mut a, mut b] = pair.daemons();
    let mut doomed = Streams::start(CLIENT, (&mut a, "a"), (Some(&mut b), "b"), NetnsPair::IPV4[0], &[]);
    a.process().kill();
    doomed.writer.succeed(LIMIT);
    let (qpn, line) = why(&mut b, "b");
    for part in
        [&format!("QP {qpn:#x} of verbs-client"), "RetryExceeded", "no answer from the peer", "7 of 7 retries", "192.0.2.1"]
    {
        assert!(line.contains(part), "{part:?} in {line}");
    }
    let unknown = b.cli(&["dev", "why", "b", &(qpn ^ 0x55).to_string()]);
    assert_eq!(unknown.status.code(), Some(1), "{}", unknown.output);
}

/// Both sides of a refused request are explained, on one host too.
#[test]
fn a_refused_request_is_explained_on_both_sides() {
    let _turn = one_at_a_time();
    let mut daemon = Daemon::start();
    daemon.add_device("a", "203.0.113.1");
    assert!(daemon.cli(&["dev", "why", "a"]).output.contains("No queue pair"));
    daemon.run("a", &[CLIENT, "refused"]).succeed(LIMIT);
    let (status, text) = daemon.http("GET", "/v1/devices/a/failures", "");
    assert_eq!(status, 200);
    for part in ["RemoteAccessError", "the peer refuses access to the memory", "a request of the peer had no right"] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    let (_, line) = why(&mut daemon, "a");
    assert!(line.contains("203.0.113.1"), "{line}");
}
