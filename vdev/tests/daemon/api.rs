//! Devices through the API.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};

use super::place::{Place, http, wait_until};
use super::raw::Raw;

#[test]
fn a_device_is_made_shown_listed_and_removed() {
    let place = Place::new();
    let made = place.add("a", "203.0.113.1");
    assert_eq!(made["name"], "a");
    assert_eq!(made["state"], "ACTIVE");
    assert_eq!(made["active_mtu"], 4096);
    assert_eq!(made["ips"][0], "203.0.113.1");
    assert_eq!(made["socket"], place.socket("a").to_str().unwrap());
    assert!(made["wire"]["interface"].is_null());
    assert!(made["wire"]["reason"].as_str().unwrap().contains("203.0.113.1"));
    assert!(made["create_us"].is_u64());
    assert_eq!(made["clients"].as_array().unwrap().len(), 0);
    assert_eq!(made["counters"]["sent_pkts"], 0);
    let metadata = std::fs::metadata(place.socket("a")).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    let shown = place.device("a");
    assert_eq!(shown["guid"], made["guid"]);
    let (_, list) = place.http("GET", "/v1/devices", "");
    assert_eq!(serde_json::from_str::<serde_json::Value>(&list).unwrap()[0]["name"], "a");
    for _ in 0..2 {
        assert_eq!(place.http("DELETE", "/v1/devices/a", "").0, 204);
        assert!(!place.socket("a").exists());
    }
    assert_eq!(place.http("GET", "/v1/devices/a", "").0, 404);
}

#[test]
fn put_is_idempotent_and_conflicts_are_named() {
    let place = Place::new();
    place.add("a", "203.0.113.1");
    let same = r#"{"ips":["203.0.113.1"]}"#;
    assert_eq!(place.http("PUT", "/v1/devices/a", same).0, 200);
    let (status, body) = place.http("PUT", "/v1/devices/a", r#"{"ips":["203.0.113.9"]}"#);
    assert_eq!(status, 409);
    assert!(body.contains("other settings"), "{body}");
    let (status, body) = place.http("PUT", "/v1/devices/b", same);
    assert_eq!(status, 409);
    assert!(body.contains("device a"), "{body}");
    assert!(!place.socket("b").exists());
    // Removed, its address is free.
    place.http("DELETE", "/v1/devices/a", "");
    assert_eq!(place.http("PUT", "/v1/devices/b", same).0, 201);
}

#[test]
fn mode_and_mtu_are_as_asked() {
    let place = Place::new();
    let (status, body) = place.http("PUT", "/v1/devices/a", r#"{"ips":["203.0.113.1"],"mtu":1024,"mode":"0666"}"#);
    assert_eq!(status, 201, "{body}");
    assert_eq!(place.device("a")["active_mtu"], 1024);
    let mode = std::fs::metadata(place.socket("a")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o666);
    assert_eq!(Raw::connect(&place.socket("a")).info.port.active_mtu, 3);
}

#[test]
fn bad_requests_are_answered_in_json() {
    let place = Place::new();
    let long = format!("{{\"ips\":[\"203.0.113.1\"],\"mode\":\"{}\"}}", "7".repeat(100_000));
    for (method, path, body, expected) in [
        ("PUT", "/v1/devices/a", "{", 400),
        ("PUT", "/v1/devices/a", r#"{"ips":[]}"#, 400),
        ("PUT", "/v1/devices/a.b", r#"{"ips":["203.0.113.1"]}"#, 400),
        ("PUT", "/v1/devices/%2e%2e%2fx", r#"{"ips":["203.0.113.1"]}"#, 400),
        ("PUT", "/v1/devices/a", &long, 413),
        ("POST", "/v1/devices/a", "", 405),
        ("GET", "/v1/devices/a", "", 404),
        ("GET", "/v2", "", 404),
    ] {
        let (status, body) = place.http(method, path, body);
        assert_eq!(status, expected, "{method} {path}: {body}");
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert!(!body["error"].as_str().unwrap().is_empty());
    }
    assert_eq!(std::fs::read_dir(place.folder.path().join("dev")).unwrap().count(), 0);
}

#[test]
fn of_many_callers_one_makes_the_device() {
    let place = Place::new();
    for round in 0..5 {
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let calls: Vec<_> = (0..16)
                .map(|n| {
                    let place = &place;
                    // Different settings: only one of them can win.
                    let body = format!("{{\"ips\":[\"203.0.113.{}\"]}}", n + 1);
                    scope.spawn(move || place.http("PUT", "/v1/devices/same", &body).0)
                })
                .collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        assert_eq!(statuses.iter().filter(|&&status| status == 201).count(), 1, "{statuses:?}");
        assert_eq!(statuses.iter().filter(|&&status| status == 409).count(), 15, "{statuses:?}");
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let calls: Vec<_> = (0..16).map(|_| scope.spawn(|| place.http("DELETE", "/v1/devices/same", "").0)).collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        assert!(statuses.iter().all(|&status| status == 204), "round {round}: {statuses:?}");
        assert!(!place.socket("same").exists());
    }
}

#[test]
fn metrics_count_devices_clients_and_drops() {
    let place = Place::with_two_devices();
    let raw = Raw::connect(&place.socket("a"));
    raw.pd();
    place.wait_for_clients("a", 1);
    let (status, text) = place.http("GET", "/metrics", "");
    assert_eq!(status, 200);
    for line in [
        "vrdma_devices 2",
        "vrdma_device_up{device=\"a\"} 1",
        "vrdma_clients{device=\"a\"} 1",
        "vrdma_clients{device=\"b\"} 0",
        "vrdma_protection_domains{device=\"a\"} 1",
        "vrdma_sent_pkts_total{device=\"b\"} 0",
        "vrdma_dropped_packets_total{reason=\"icrc\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
    }
}

#[test]
fn version_names_api_and_abi() {
    let place = Place::new();
    let (_, body) = place.http("GET", "/v1/version", "");
    let version: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(version["api"], 1);
    assert_eq!(version["abi"], vdev_abi::control::ABI_VERSION);
    assert_eq!(version["pid"], std::process::id());
}

#[test]
fn what_a_device_is_promised_can_be_changed() {
    let place = Place::with_two_devices();
    let shares = |body: &str| {
        let device: serde_json::Value = serde_json::from_str(body).unwrap();
        device["shares"].clone()
    };
    let (_, body) = place.http("GET", "/v1/devices/a", "");
    let plain = serde_json::json!({
        "weight": 100, "min_bits_per_sec": 0, "max_bits_per_sec": null, "burst_bytes": 262_144, "class": null
    });
    assert_eq!(shares(&body), plain);
    let change = r#"{"weight": 300, "max_bits_per_sec": 2000000000, "class": "latency"}"#;
    let (status, body) = place.http("PATCH", "/v1/devices/a", change);
    let changed = serde_json::json!({
        "weight": 300, "min_bits_per_sec": 0, "max_bits_per_sec": 2_000_000_000, "burst_bytes": 262_144, "class": "latency"
    });
    assert_eq!((status, shares(&body)), (200, changed.clone()), "{body}");
    assert!(body.contains("change_us"), "{body}");
    // Whoever makes it again finds it.
    let device: serde_json::Value = serde_json::from_str(&body).unwrap();
    let same = serde_json::json!({ "ips": device["ips"] }).to_string();
    assert_eq!(place.http("PUT", "/v1/devices/a", &same).0, 200);
    for (body, word) in [
        (r#"{"weight": 0}"#, "1 to 10000, not 0"),
        (r#"{"min_bits_per_sec": 8000000000}"#, "above the highest rate"),
        (r#"{"max_bits_per_sec": 0}"#, "port down"),
        (r#"{"class": "fast"}"#, "message-rate"),
        (r#"{"ips": []}"#, "ips"),
    ] {
        let (status, answer) = place.http("PATCH", "/v1/devices/a", body);
        assert_eq!(status, 400, "{body}: {answer}");
        assert!(answer.contains(word), "{body}: {answer}");
    }
    let (_, body) = place.http("GET", "/v1/devices/a", "");
    assert_eq!(shares(&body), changed, "refusals change nothing");
    assert_eq!(place.http("PATCH", "/v1/devices/nobody", "{}").0, 404);
}

#[test]
fn removing_a_device_ends_its_clients() {
    let place = Place::with_two_devices();
    let (a, b) = (Raw::connect(&place.socket("a")), Raw::connect(&place.socket("b")));
    a.pd();
    place.http("DELETE", "/v1/devices/a", "");
    assert!(a.is_ended());
    // The other device goes on.
    b.pd();
    wait_until("the list shows one device", || {
        let (_, list) = http(&place.api(), "GET", "/v1/devices", "").unwrap();
        serde_json::from_str::<serde_json::Value>(&list).unwrap().as_array().unwrap().len() == 1
    });
}

/// Paths and methods of the served API and of its description are the same.
#[test]
fn description_and_api_agree() {
    let text = include_str!("../../openapi.yaml");
    let mut described = Vec::new();
    let mut path = None;
    for line in text.lines().skip_while(|line| *line != "paths:").skip(1) {
        match line.strip_prefix("  ") {
            Some(rest) if rest.starts_with('/') => path = rest.strip_suffix(':'),
            Some(rest) if rest.starts_with("  ") && !rest.starts_with("   ") => {
                let method = rest.trim().trim_end_matches(':');
                if ["get", "put", "post", "delete", "patch"].contains(&method) {
                    described.push((method.to_uppercase(), path.unwrap().to_owned()));
                }
            }
            None if !line.is_empty() => break,
            _ => {}
        }
    }
    let place = Place::new();
    let mut served = Vec::new();
    for path in ["/v1/version", "/v1/devices", "/v1/devices/{name}", "/v1/devices/{name}/failures", "/metrics"] {
        for method in ["GET", "PUT", "POST", "DELETE", "PATCH"] {
            let (status, body) = place.http(method, &path.replace("{name}", "x"), "");
            // 404 of an existing path speaks of the device.
            assert!(!body.contains("no such path"), "{method} {path}");
            if status != 405 {
                served.push((method.to_owned(), path.to_owned()));
            }
        }
    }
    described.sort();
    served.sort();
    assert_eq!(described, served);
}
