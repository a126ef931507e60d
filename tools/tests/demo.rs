//! The demo's JSON is an interface: its members, and that every measurement is there. How fast anything is is not tested here.

#[allow(dead_code)] // Each test file uses a part of it.
mod vrdma;

use serde_json::Value;
use vrdma::Vrdma;

#[test]
fn demo_reports_every_measurement() {
    let report = Vrdma::new().json(&["demo", "--json"]);
    let positive = |value: &Value| value.as_f64().is_some_and(|number| number > 0.0);
    assert!(positive(&report["device_create_us"]), "{report:#}");
    let rows = |list: &str, members: &[&str], figures: &[&str]| -> Vec<String> {
        let rows = report[list].as_array().unwrap_or_else(|| panic!("{list} in {report:#}"));
        let name = |row: &Value| members.iter().map(|member| row[member].to_string() + " ").collect();
        for row in rows {
            assert!(figures.iter().all(|figure| positive(&row[figure])), "{row}");
        }
        rows.iter().map(name).collect()
    };
    let figures = ["gbytes_per_sec", "ratio_memcpy", "ratio_process_vm"];
    let bandwidth = rows("bandwidth", &["op", "memory", "size_bytes"], &figures);
    for memory in ["heap", "shared"] {
        for size in [4096, 65536, 1_048_576] {
            for op in ["write", "read", "send"] {
                assert!(bandwidth.contains(&format!("\"{op}\" \"{memory}\" {size} ")), "{bandwidth:?}");
            }
        }
    }
    let latency = rows("latency", &["op", "size_bytes"], &["p50_us", "p99_us"]);
    assert_eq!(latency.len(), 6, "{latency:?}");
    assert!(latency.contains(&"\"write\" 8 ".to_owned()) && latency.contains(&"\"read\" 4096 ".to_owned()), "{latency:?}");
    let rates = rows("message_rate", &["op", "size_bytes"], &["million_per_sec"]);
    assert!(rates.contains(&"\"write\" 8 ".to_owned()), "{rates:?}");
    assert!(report.get("wire").is_none());
}
