//! Unmodified programs between two daemons in two network namespaces: the UDP path, with the path MTU that the interface
//! allows.

use std::time::Duration;
use tests::matrix::{self, Report, Row, Side};
use tests::{NetnsPair, missing_program, need_root, one_at_a_time};

/// Runs a row over a veth pair with this Ethernet MTU, on which the devices must show this path MTU.
fn row_over(row: &Row, ethernet_mtu: u32, path_mtu: u64) {
    let _turn = one_at_a_time();
    if missing_program(&[row.program, "ip"]) || need_root("network namespaces") {
        return;
    }
    let pair = NetnsPair::new(ethernet_mtu);
    let [mut server, mut client] = pair.daemons();
    for (daemon, device) in [(&server, "a"), (&client, "b")] {
        assert_eq!(daemon.device(device)["active_mtu"], path_mtu, "{}", daemon.device(device));
    }
    let side = Side { daemon: &mut server, device: "a" };
    matrix::run(row, side, "b", Some(&mut client), NetnsPair::IPV4[0]);
}

#[test]
fn xsrq_pingpong_of_three_clients() {
    let _turn = one_at_a_time();
    if missing_program(&["ibv_xsrq_pingpong", "ip"]) || need_root("network namespaces") {
        return;
    }
    let pair = NetnsPair::new(1500);
    let [mut server, mut client] = pair.daemons();
    let server = Side { daemon: &mut server, device: "a" };
    matrix::run_clients(&matrix::XSRQ_PINGPONG, &["-c", "3"], 3, server, "b", Some(&mut client), NetnsPair::IPV4[0]);
}

/// AD-01 and AD-03: each address of a device is a GID that works, IPv6 as well as IPv4, and one that is not there is refused.
#[test]
fn every_gid_works() {
    let _turn = one_at_a_time();
    if missing_program(&["ibv_rc_pingpong", "ip"]) || need_root("network namespaces") {
        return;
    }
    let pair = NetnsPair::new(9000);
    let [mut server, mut client] = [0, 1].map(|end| {
        let mut daemon = pair.daemon(end);
        let words = ["dev", "add", ["a", "b"][end], "--ip", NetnsPair::IPV6[end], "--ip", NetnsPair::IPV4[end]];
        let added = daemon.cli(&words);
        assert!(added.status.success(), "{}", added.output);
        daemon
    });
    for options in ["-g 0 -n 200 -c", "-g 1 -n 200 -c", "-g 0 -n 200 -m 4096 -s 100000"] {
        let row = Row { program: "ibv_rc_pingpong", options, report: Report::Pingpong };
        let side = Side { daemon: &mut server, device: "a" };
        matrix::run(&row, side, "b", Some(&mut client), NetnsPair::IPV4[0]);
    }
    let ended = client.run("b", &["ibv_rc_pingpong", "-g", "2", NetnsPair::IPV4[0]]).end(Duration::from_secs(20));
    assert!(!ended.status.success(), "{}", ended.output);
}

/// UD-09: where the route takes less than the interface, a path MTU that does not fit is refused when the queue pair is connected,
/// and one that fits works.
#[test]
fn the_route_to_the_peer_bounds_the_path_mtu() {
    let _turn = one_at_a_time();
    if missing_program(&["ibv_rc_pingpong", "ip"]) || need_root("network namespaces") {
        return;
    }
    let pair = NetnsPair::new(1500);
    let [here, there] = NetnsPair::IPV4;
    pair.ip(0, &format!("route replace {there}/32 dev wire src {here} mtu 1000"));
    let [mut server, mut client] = pair.daemons();
    let port = matrix::free_port().to_string();
    let words = ["ibv_rc_pingpong", "-g", "0", "-n", "100", "-p", &port, "-m", "1024"];
    let mut refused = server.run_with("a", &words, |command| {
        command.env("VRDMA_LOG", "1");
    });
    matrix::wait_until_listening(&mut refused, &port);
    let mut other = client.run("b", &[&words[..], &[here]].concat());
    let ended = refused.end(Duration::from_secs(20));
    assert!(!ended.status.success() && ended.output.contains("512 or less"), "{}", ended.output);
    other.kill();
    let row = Row { program: "ibv_rc_pingpong", options: "-g 0 -n 100 -m 512 -c", report: Report::Pingpong };
    matrix::run(&row, Side { daemon: &mut server, device: "a" }, "b", Some(&mut client), here);
}

/// UD-12: a path MTU of 4096 is told from the interface MTU on that the longest packet needs (a WRITE with immediate: 64 bytes of
/// headers with IPv4, 84 with IPv6), to the byte, and works there.
#[test]
fn the_interface_bounds_the_path_mtu_to_the_byte() {
    let _turn = one_at_a_time();
    if missing_program(&["ib_write_bw", "ibv_rc_pingpong", "ip"]) || need_root("network namespaces") {
        return;
    }
    let pair = NetnsPair::new(9000);
    let mut daemons = [0, 1].map(|end| pair.daemon(end));
    for (ips, fits) in [(NetnsPair::IPV4, 4096 + 64), (NetnsPair::IPV6, 4096 + 84)] {
        for mtu in (4096..4224).step_by(4).chain([fits - 1, fits + 1]) {
            pair.ip(0, &format!("link set wire mtu {mtu}"));
            daemons[0].add_device("a", ips[0]);
            let told = &daemons[0].device("a")["active_mtu"];
            assert_eq!(*told, if mtu >= fits { 4096 } else { 2048 }, "interface MTU {mtu}, {}", ips[0]);
            assert!(daemons[0].cli(&["dev", "del", "a"]).status.success());
        }
        for (end, device) in ["a", "b"].into_iter().enumerate() {
            pair.ip(end, &format!("link set wire mtu {fits}"));
            daemons[end].add_device(device, ips[end]);
        }
        for row in [
            Row { program: "ib_write_bw", options: "-m 4096 -s 4096 -n 500", report: Report::Results { lines: 1 } },
            Row { program: "ib_write_bw", options: "-m 4096 -s 100000 -n 100", report: Report::Results { lines: 1 } },
            Row { program: "ibv_rc_pingpong", options: "-g 0 -m 4096 -s 100000 -n 100 -c", report: Report::Pingpong },
        ] {
            let [server, client] = &mut daemons;
            matrix::run(&row, Side { daemon: server, device: "a" }, "b", Some(client), NetnsPair::IPV4[0]);
        }
        for (end, device) in ["a", "b"].into_iter().enumerate() {
            assert_eq!(daemons[end].device(device)["counters"]["port_send_too_long"], 0);
            assert!(daemons[end].cli(&["dev", "del", device]).status.success());
        }
    }
}

mod mtu_1024 {
    fn row(row: &tests::matrix::Row) {
        super::row_over(row, 1500, 1024);
    }

    tests::test_each_row!(row);
}

mod mtu_4096 {
    fn row(row: &tests::matrix::Row) {
        super::row_over(row, 9000, 4096);
    }

    tests::test_each_row!(row);
}
