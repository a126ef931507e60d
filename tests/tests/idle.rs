//! A daemon with a thousand devices that nobody uses: no CPU time, little memory, and nothing left when they are removed.

use std::collections::HashSet;
use std::time::Duration;
use tests::{Daemon, one_at_a_time};

const DEVICES: usize = 1000;
/// Memory that an idle device may cost.
const BYTES_PER_DEVICE: u64 = 16 << 10;

#[test]
fn a_thousand_idle_devices_cost_no_cpu_time_and_little_memory() {
    let _turn = one_at_a_time();
    let daemon = Daemon::start();
    // The first device and request set things up once.
    add(&daemon, DEVICES);
    delete(&daemon, DEVICES);
    let (descriptors, resident) = (daemon.open_descriptors(), daemon.resident_bytes());

    let mut create_us: Vec<f64> = (0..DEVICES).map(|number| add(&daemon, number)).collect();
    create_us.sort_by(f64::total_cmp);
    println!("create_us: median {}, worst {}", create_us[DEVICES / 2], create_us[DEVICES - 1]);

    let (status, list) = daemon.http("GET", "/v1/devices", "");
    assert_eq!(status, 200);
    let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    let guids: HashSet<&str> = list.as_array().expect("a list").iter().filter_map(|device| device["guid"].as_str()).collect();
    assert_eq!(guids.len(), DEVICES, "each device has a GUID of its own");

    let per_device = daemon.resident_bytes().saturating_sub(resident) / DEVICES as u64;
    println!("{per_device} bytes per device");
    assert!(per_device < BYTES_PER_DEVICE, "an idle device costs {per_device} bytes");

    // What the creation left to do is done after a moment.
    std::thread::sleep(Duration::from_millis(500));
    let before = daemon.cpu_ticks();
    std::thread::sleep(Duration::from_secs(10));
    assert_eq!(daemon.cpu_ticks() - before, 0, "an idle daemon uses no CPU time in 10 s");

    for number in 0..DEVICES {
        delete(&daemon, number);
    }
    daemon.wait_until_descriptors(descriptors);
    let (_, list) = daemon.http("GET", "/v1/devices", "");
    assert_eq!(list.trim(), "[]");
}

fn add(daemon: &Daemon, number: usize) -> f64 {
    let body = format!(r#"{{"ips":["2001:db8::1:{number:x}"]}}"#);
    let (status, answer) = daemon.http("PUT", &format!("/v1/devices/n{number}"), &body);
    assert_eq!(status, 201, "device {number}: {answer}");
    let device: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
    device["create_us"].as_f64().expect("the time it took")
}

fn delete(daemon: &Daemon, number: usize) {
    let (status, answer) = daemon.http("DELETE", &format!("/v1/devices/n{number}"), "");
    assert!((200..300).contains(&status), "device {number}: {status} {answer}");
}
