//! Scenarios from files that may say anything: what is right is read, and what is wrong is refused with the name of the key.

use fabric::{Scenario, Sim};
use proptest::prelude::*;

const TWO_TIERS: &str = "[topology]\nleaves = 2\nspines = 2\nhosts_per_leaf = 2\n";

/// The message for a scenario that cannot be read or built.
fn refusal(text: &str) -> String {
    let result = Scenario::parse(text).and_then(|scenario| Sim::new(&scenario, Some("0,0,1,1")).map(drop));
    result.expect_err(text).to_string()
}

#[test]
fn every_key_can_be_given() {
    let text = r#"
        seed = 9
        limit_ms = 50
        real_payload = true
        [topology]
        kind = "fat-tree"
        k = 4
        planes = 2
        rate_gbps = 25
        delay_us = 0.5
        ip = 6
        [queue]
        limit_bytes = 50000
        mark_low_bytes = 10000
        mark_high_bytes = 40000
        trim = true
        control_first = true
        [transport]
        mtu = 1024
        ack_timeout = 7
        retries = 5
        [workload]
        pattern = "ring-all-reduce"
        bytes = 30000
        hosts = 5
        placement = "random"
        operation = "send"
        [faults]
        loss = 0.001
        corruption = 0.001
        delay = 0.01
        delay_max_us = 5
        reroute_us = 20
        [[faults.link]]
        between = ["leaf0@1", "agg1@1"]
        from_us = 5
        to_us = 10
        times = 3
        every_us = 12
        [[faults.link]]
        between = ["host1", "leaf0"]
        rate = 0.5
        [[faults.switch]]
        name = "core3"
        at_us = 8
        [report]
        sample_us = 1
    "#;
    let scenario = Scenario::parse(text).unwrap();
    let mut sim = Sim::new(&scenario, None).unwrap();
    sim.run();
    let report = sim.report();
    assert_eq!((report.violation_count, report.hosts, report.switches), (0, 16, 40));
    assert_eq!(report.succeeded, 40);
    assert!(report.links.iter().all(|group| group.samples.len() > 3));
    assert!(report.packets.dropped_down + report.packets.dropped_loss > 0);
}

#[test]
fn without_values_there_are_defaults() {
    let scenario = Scenario::parse(TWO_TIERS).unwrap();
    assert_eq!(scenario, Scenario { topology: scenario.topology.clone(), ..Scenario::default() });
}

#[test]
fn wrong_values_are_named() {
    for (key, line) in [
        ("limit_ms", "limit_ms = 0"),
        ("limit_ms", "limit_ms = nan"),
        ("limit_ms", "limit_ms = 1e300"),
        ("topology.planes", "topology.planes = 0"),
        ("topology.rate_gbps", "topology.rate_gbps = -1.0"),
        ("topology.rate_gbps", "topology.rate_gbps = inf"),
        ("topology.delay_us", "topology.delay_us = 1e9"),
        ("topology.ip", "topology.ip = 5"),
        ("topology.k", "topology.k = 4"),
        ("queue.limit_bytes", "queue.limit_bytes = 100"),
        ("queue.mark_high_bytes", "queue.mark_low_bytes = 5"),
        ("queue.mark_low_bytes", "queue.mark_high_bytes = 5"),
        ("queue.mark_high_bytes", "queue.mark_low_bytes = 5\nqueue.mark_high_bytes = 5"),
        ("queue.pfc_pause_bytes", "queue.pfc_pause_bytes = 1"),
        ("queue.trim", "queue.pfc_pause_bytes = 100000\nqueue.trim = true"),
        ("transport.mtu", "transport.mtu = 1500"),
        ("transport.ack_timeout", "transport.ack_timeout = 0"),
        ("transport.retries", "transport.retries = 8"),
        ("workload.bytes", "workload.bytes = 3000000000"),
        ("workload.hosts", "workload.hosts = 1"),
        ("workload.hosts", "workload.hosts = 5"),
        ("workload.file", "workload.pattern = \"trace\""),
        ("workload.file", "workload.file = \"x\""),
        ("faults.loss", "faults.loss = 1.5"),
        ("topology.ip", "faults.corruption = 0.1"),
        ("faults.link[0].between", "faults.link = [{ between = [\"leaf0\", \"leaf1\"] }]"),
        ("faults.link[0].between", "faults.link = [{ between = [\"leaf0\", \"agg0\"] }]"),
        ("faults.link[0].to_us", "faults.link = [{ between = [\"leaf0\", \"spine0\"], from_us = 5, to_us = 4 }]"),
        ("faults.link[0].rate", "faults.link = [{ between = [\"leaf0\", \"spine0\"], rate = 0 }]"),
        ("faults.link[0].times", "faults.link = [{ between = [\"leaf0\", \"spine0\"], times = 2 }]"),
        (
            "faults.link[0].every_us",
            "faults.link = [{ between = [\"leaf0\", \"spine0\"], to_us = 4, times = 2, every_us = 3 }]",
        ),
        ("faults.switch[0].name", "faults.switch = [{ name = \"host0\", at_us = 1 }]"),
        ("faults.switch[0].at_us", "faults.switch = [{ name = \"leaf0\", at_us = -1 }]"),
        ("report.sample_us", "report.sample_us = 0.001"),
        // What TOML itself finds: the message shows the line.
        ("seed", "seed = -1"),
        ("fast", "fast = true"),
        ("wokload", "wokload.bytes = 1"),
        ("topology.rate", "topology.rate = 1"),
        ("operation", "workload.operation = \"atomic\""),
        ("bytes", "workload.bytes = \"many\""),
        ("between", "faults.link = [{ between = [\"leaf0\"] }]"),
        ("at_us", "faults.switch = [{ name = \"leaf0\" }]"),
    ] {
        let topology = "topology.leaves = 2\ntopology.spines = 2\ntopology.hosts_per_leaf = 2\n";
        let message = refusal(&format!("{topology}{line}\n"));
        assert!(message.contains(key), "{line}: {message}");
    }
}

#[test]
fn networks_too_large_or_incomplete_are_refused() {
    for (part, text) in [
        ("topology.leaves is missing", ""),
        ("topology.spines is missing", "topology.leaves = 1"),
        ("topology.k is missing", "topology.kind = \"fat-tree\""),
        ("topology.k is 3", "topology.kind = \"fat-tree\"\ntopology.k = 3"),
        ("topology.k is 66", "topology.kind = \"fat-tree\"\ntopology.k = 66"),
        ("topology.leaves is 2", "topology.kind = \"fat-tree\"\ntopology.k = 2\ntopology.leaves = 2"),
        ("16777216 hosts", "topology.leaves = 4096\ntopology.spines = 1\ntopology.hosts_per_leaf = 4096"),
        ("links", "topology.leaves = 4096\ntopology.spines = 4096\ntopology.hosts_per_leaf = 1"),
        ("1 hosts", "topology.leaves = 1\ntopology.spines = 1\ntopology.hosts_per_leaf = 1"),
        ("transfers", "topology.kind = \"fat-tree\"\ntopology.k = 32\nworkload.pattern = \"all-to-all\""),
        (
            "real_payload",
            "topology.leaves = 2\ntopology.spines = 1\ntopology.hosts_per_leaf = 1\nreal_payload = true\nworkload.bytes = 2000000000",
        ),
    ] {
        let message = refusal(text);
        assert!(message.contains(part), "{text}: {message}");
    }
}

#[test]
fn what_is_no_toml_is_refused_without_panic() {
    for text in ["[", "\0", "seed", "seed = ", "= 1", "[topology]\n[topology]", "a.b.c.d.e = 1", "seed = 1\nseed = 2"] {
        assert!(!refusal(text).is_empty());
    }
    let deep = format!("seed = {}1{}", "[".repeat(50_000), "]".repeat(50_000));
    assert!(!refusal(&deep).is_empty());
}

/// A number as a file may give it: usual, at an edge, absurd.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        (0_u64..10).prop_map(|n| n.to_string()),
        any::<i64>().prop_map(|n| n.to_string()),
        any::<f64>().prop_map(|n| format!("{n:e}")),
        prop::sample::select(vec![
            "1e-6",
            "0.001",
            "1e6",
            "1e9",
            "4096",
            "65536",
            "2147483648",
            "nan",
            "inf",
            "true",
            "[]",
            "\"x\""
        ])
        .prop_map(str::to_owned),
    ]
}

const KEYS: &[&str] = &[
    "seed",
    "limit_ms",
    "topology.planes",
    "topology.rate_gbps",
    "topology.delay_us",
    "topology.ip",
    "queue.limit_bytes",
    "queue.mark_low_bytes",
    "queue.mark_high_bytes",
    "queue.pfc_pause_bytes",
    "transport.mtu",
    "transport.ack_timeout",
    "transport.retries",
    "workload.bytes",
    "workload.hosts",
    "faults.loss",
    "faults.delay",
    "faults.delay_max_us",
    "faults.reroute_us",
    "report.sample_us",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// Whatever values a file has, it is refused, or it can be built and run.
    #[test]
    fn no_value_makes_it_panic(values in prop::collection::btree_map(prop::sample::select(KEYS), value(), 0..5)) {
        let mut text = "topology.leaves = 2\ntopology.spines = 2\ntopology.hosts_per_leaf = 2\n".to_owned();
        values.iter().for_each(|(key, value)| text += &format!("{key} = {value}\n"));
        if let Ok(scenario) = Scenario::parse(&text) {
            let mut sim = Sim::new(&scenario, None).expect("it was checked");
            sim.step(3000);
        }
    }

    #[test]
    fn no_text_makes_it_panic(text in "[a-z_\\[\\]=\"0-9.\n{},# -]{0,200}") {
        let _ = Scenario::parse(&text);
    }
}
