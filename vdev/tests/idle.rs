//! A daemon with many devices and clients that want nothing does nothing. A process of its own, as threads are looked at.

#[allow(dead_code)]
#[path = "daemon/place.rs"]
mod place;
#[allow(dead_code)]
#[path = "daemon/raw.rs"]
mod raw;

use std::collections::BTreeMap;
use std::time::Duration;

use place::{Place, http};
use raw::{End, OP_WRITE, SIGNALED};
use vdev_abi::layout::SendEntry;

const DEVICES: usize = 1000;

/// Times that each thread of the daemon went to sleep or was made to.
fn switches() -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let value =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap().trim().to_owned();
        let name = value("Name");
        if name.starts_with("vrdma-") {
            let count = |name| value(name).parse::<u64>().unwrap();
            found.insert(name, count("voluntary_ctxt_switches") + count("nonvoluntary_ctxt_switches"));
        }
    }
    found
}

/// Resident bytes that are the process's own.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

fn add_many(place: &Place, range: std::ops::Range<usize>) {
    for n in range {
        let body = format!("{{\"ips\":[\"198.18.{}.{}\"]}}", n / 250, n % 250 + 1);
        let (status, body) = http(&place.api(), "PUT", &format!("/v1/devices/d{n}"), &body).unwrap();
        assert_eq!(status, 201, "{body}");
    }
}

#[test]
fn idle_devices_and_clients_cost_no_wakeups_and_little_memory() {
    let place = Place::new();
    // What the first devices bring with them is not theirs: allocator arenas, the HTTP server's buffers.
    add_many(&place, 0..50);
    let before = resident();
    add_many(&place, 50..50 + DEVICES);
    let per_device = resident().saturating_sub(before) / DEVICES;
    assert!(per_device < 16 * 1024, "{per_device} bytes per device");

    // Clients that have worked and now rest.
    let mut pairs: Vec<(End, End)> = (0..5)
        .map(|n| End::pair(&place.socket(&format!("d{}", 2 * n)), &place.socket(&format!("d{}", 2 * n + 1)), 4096))
        .collect();
    let mut work = |wr_id| {
        for (a, b) in &mut pairs {
            let entry =
                SendEntry { wr_id, opcode: OP_WRITE, flags: SIGNALED, remote_addr: b.at(0), rkey: b.key, ..Default::default() };
            let sge = a.sge(0, 64);
            a.send(entry, &[sge]);
            assert_eq!(a.cq.wait().status, 0);
        }
    };
    work(1);
    // Long past every spin.
    std::thread::sleep(Duration::from_millis(300));
    let before = switches();
    assert_eq!(before.keys().collect::<Vec<_>>(), ["vrdma-control", "vrdma-datapath"]);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(before, switches(), "a thread of an idle daemon ran");
    // It has only slept.
    work(2);
}
