//! Devices follow their interface: in a network namespace of the test's own, with the loopback interface.

#[allow(dead_code)]
#[path = "daemon/place.rs"]
mod place;
#[allow(dead_code)]
#[path = "daemon/raw.rs"]
mod raw;

use std::process::Command;

use nix::sched::{CloneFlags, unshare};
use place::{Place, wait_until};
use raw::Raw;
use vdev_abi::control::{Reply, Request};

fn ip(words: &str) -> bool {
    Command::new("ip").args(words.split(' ')).status().is_ok_and(|status| status.success())
}

fn event(raw: &Raw) -> (u32, u64) {
    let mut record = [0; 16];
    assert_eq!(nix::unistd::read(&raw.events, &mut record).unwrap(), 16);
    let (event, cookie) = record.split_at(8);
    (u32::from_ne_bytes(event[..4].try_into().unwrap()), u64::from_ne_bytes(cookie.try_into().unwrap()))
}

#[test]
fn port_goes_down_and_comes_back_with_the_interface() {
    // Before any thread of the daemon exists, so that all of them live there.
    if unshare(CloneFlags::CLONE_NEWNET).is_err() || !ip("link set lo up mtu 9000") {
        skip::skip("needs the right to make a network namespace, and the program ip");
        return;
    }
    assert!(ip("addr add 203.0.113.1/32 dev lo"));
    let place = Place::new();
    let made = place.add("a", "203.0.113.1");
    assert_eq!((&made["wire"]["interface"], &made["active_mtu"]), (&"lo".into(), &4096.into()));
    assert!(made["wire"]["reason"].is_null(), "{made}");
    let local = place.add("b", "203.0.113.2");
    assert!(local["wire"]["interface"].is_null());
    let (a, b) = (Raw::connect(&place.socket("a")), Raw::connect(&place.socket("b")));

    // IBV_EVENT_PORT_ERR, then IBV_EVENT_PORT_ACTIVE, of port 1.
    assert!(ip("link set lo down"));
    assert_eq!(event(&a), (10, 1));
    assert_eq!(place.device("a")["state"], "DOWN");
    let Ok(Reply::Port(port)) = a.call(&Request::QueryPort) else { panic!() };
    assert_eq!(port.state, 1);
    assert!(ip("link set lo up"));
    assert_eq!(event(&a), (9, 1));
    wait_until("the device is active", || place.device("a")["state"] == "ACTIVE");

    // A narrower interface: the path MTU follows.
    assert!(ip("link set lo mtu 1500"));
    assert_eq!(event(&a), (9, 1));
    assert_eq!(place.device("a")["active_mtu"], 1024);

    // Without its address a device that was on the wire is down; one that never was does not care.
    assert!(ip("addr del 203.0.113.1/32 dev lo"));
    assert_eq!(event(&a), (10, 1));
    assert!(place.device("a")["wire"]["reason"].as_str().unwrap().contains("lo"));
    assert!(ip("addr add 203.0.113.1/32 dev lo"));
    assert_eq!(event(&a), (9, 1));
    let Ok(Reply::Port(port)) = b.call(&Request::QueryPort) else { panic!() };
    assert_eq!((port.state, port.active_mtu), (4, 5));

    // And a local one joins the wire when its address comes.
    assert!(ip("addr add 203.0.113.2/32 dev lo"));
    assert_eq!(event(&b), (9, 1));
    assert_eq!((&place.device("b")["wire"]["interface"], &place.device("b")["active_mtu"]), (&"lo".into(), &1024.into()));
}
