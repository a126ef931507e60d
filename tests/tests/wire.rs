//! Unmodified programs between two daemons in two network namespaces: the UDP path, with the path MTU that the interface
//! allows.

use tests::matrix::{self, Row, Side};
use tests::{Daemon, DaemonOptions, NetnsPair, missing_program, need_root, one_at_a_time};

/// Runs a row over a veth pair with this Ethernet MTU, on which the devices must show this path MTU.
fn row_over(row: &Row, ethernet_mtu: u32, path_mtu: u64) {
    let _turn = one_at_a_time();
    if missing_program(&[row.program, "ip"]) || need_root("network namespaces") {
        return;
    }
    let pair = NetnsPair::new(ethernet_mtu);
    let [mut server, mut client] = daemons(&pair);
    for (daemon, device) in [(&server, "a"), (&client, "b")] {
        assert_eq!(daemon.device(device)["active_mtu"], path_mtu, "{}", daemon.device(device));
    }
    let side = Side { daemon: &mut server, device: "a" };
    matrix::run(row, side, "b", Some(&mut client), NetnsPair::IPV4[0]);
}

fn daemons(pair: &NetnsPair) -> [Daemon; 2] {
    [0, 1].map(|end| {
        let netns = Some(pair.name(end).to_owned());
        let mut daemon = Daemon::start_with(DaemonOptions { netns, ..DaemonOptions::default() });
        daemon.add_device(["a", "b"][end], NetnsPair::IPV4[end]);
        daemon
    })
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
