//! Libraries that applications sit on, with the distribution's own programs for them.

use std::time::Duration;
use tests::matrix::{free_port, wait_until_listening};
use tests::{Daemon, NetnsPair, binary, missing_program, need_root, one_at_a_time};

const LIMIT: Duration = Duration::from_secs(90);

fn two_devices() -> Daemon {
    let mut daemon = Daemon::start();
    daemon.add_device("a", "203.0.113.1");
    daemon.add_device("b", "203.0.113.2");
    daemon
}

#[test]
fn libfabric_lists_the_device() {
    let _turn = one_at_a_time();
    if missing_program(&["fi_info"]) {
        return;
    }
    let mut daemon = two_devices();
    let output = daemon.run("a", &["fi_info", "-p", "verbs"]).succeed(LIMIT);
    for line in ["provider: verbs", "domain: a-dgram", "type: FI_EP_DGRAM"] {
        assert!(output.contains(line), "{line:?} is missing in:\n{output}");
    }
}

/// UCX over datagrams, and over reliable connections that it makes by way of datagrams. It asks for the device's nodes and files, which
/// `--view` shows.
#[test]
fn ucx_runs_over_datagrams_and_connections() {
    let _turn = one_at_a_time();
    if missing_program(&["ucx_info", "ucx_perftest"]) || need_root("the view of the devices in sysfs") {
        return;
    }
    let daemon = two_devices();
    let start = |transport: &str, device: &str, words: &[&str]| {
        let mut command = std::process::Command::new(binary());
        command.args(["run", "--view", "--dev", device, "--"]).args(words).env("VRDMA_DIR", daemon.folder());
        command.env("UCX_TLS", transport).env("UCX_NET_DEVICES", format!("{device}:1"));
        tests::Program::start(&format!("{}-{device}", words[0]), daemon.folder(), command)
    };
    let output = start("all", "a", &["ucx_info", "-d"]).succeed(LIMIT);
    for line in ["Transport: ud_verbs", "Transport: rc_verbs", "Device: a:1"] {
        assert!(output.contains(line), "{line:?} is missing in:\n{output}");
    }
    for (transport, test) in [("ud_verbs", "tag_bw"), ("ud_verbs", "tag_lat"), ("rc_v", "tag_bw"), ("rc_v", "tag_lat")] {
        let port = free_port().to_string();
        let mut server = start(transport, "a", &["ucx_perftest", "-p", &port]);
        wait_until_listening(&mut server, &port);
        let client = ["ucx_perftest", "-p", &port, "127.0.0.1", "-t", test, "-s", "4096", "-n", "1000", "-w", "10"];
        let output = start(transport, "b", &client).succeed(LIMIT);
        server.succeed(LIMIT);
        assert!(output.contains("Final:"), "no result in:\n{output}");
    }
}

/// qperf's tests of connections. It tells the other side no GID, without which there are no addresses on Ethernet, so that its queue
/// pairs must find each other by `rdma_cm` (`-cm1`), as on any RoCE device; its tests of unreliable services cannot. Its own messages
/// go over TCP to the same address. It ends its waiting for completions by signals.
fn qperf(server_at: &mut Daemon, client_at: Option<&mut Daemon>, address: &str) {
    const TESTS: [&str; 12] = [
        "rc_bw",
        "rc_bi_bw",
        "rc_lat",
        "rc_rdma_read_bw",
        "rc_rdma_read_lat",
        "rc_rdma_write_bw",
        "rc_rdma_write_lat",
        "rc_rdma_write_poll_lat",
        "rc_compare_swap_mr",
        "rc_fetch_add_mr",
        "ver_rc_compare_swap",
        "ver_rc_fetch_add",
    ];
    let port = free_port().to_string();
    let mut server = server_at.run("a", &["qperf", "-lp", &port]);
    wait_until_listening(&mut server, &port);
    let client_at = match client_at {
        Some(daemon) => daemon,
        None => server_at,
    };
    for test in TESTS {
        let words = ["qperf", address, "-lp", &port, "-cm1", "-to", "60", "-t", "1", test];
        let output = client_at.run("b", &words).succeed(LIMIT);
        assert!(output.contains(&format!("{test}:")) && output.contains(" = "), "{test}: no figure in:\n{output}");
    }
    let ended = client_at.run("b", &["qperf", address, "-lp", &port, "-t", "1", "rc_lat"]).end(LIMIT);
    assert!(!ended.status.success() && ended.output.contains("failed to modify QP to RTR"), "without a GID:\n{}", ended.output);
    client_at.run("b", &["qperf", address, "-lp", &port, "quit"]).succeed(LIMIT);
    server.succeed(LIMIT);
}

#[test]
fn qperf_between_devices_of_one_daemon() {
    let _turn = one_at_a_time();
    if missing_program(&["qperf", "ip"]) || need_root("a network namespace, in which the device's address is an interface's") {
        return;
    }
    let pair = NetnsPair::new(1500);
    let mut daemon = pair.daemon(0);
    daemon.add_device("a", NetnsPair::IPV4[0]);
    daemon.add_device("b", "203.0.113.2");
    qperf(&mut daemon, None, NetnsPair::IPV4[0]);
}

#[test]
fn qperf_between_hosts() {
    let _turn = one_at_a_time();
    if missing_program(&["qperf", "ip"]) || need_root("network namespaces") {
        return;
    }
    let pair = NetnsPair::new(1500);
    let [mut server, mut client] = pair.daemons();
    qperf(&mut server, Some(&mut client), NetnsPair::IPV4[0]);
}
