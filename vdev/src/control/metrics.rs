//! Counters as Prometheus text (exposition format 0.0.4).
//!
//! Names: `vrdma_` and the name that the API shows. Label values are device names, which hold nothing that would need escaping.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::api::{ClientView, DeviceView, LatencyView, MemoryView};

/// Everything that can be counted.
pub fn text(devices: &[DeviceView], drops: &[(&'static str, u64)]) -> String {
    let mut out = String::new();
    let mut counters: BTreeMap<&str, Vec<(&str, u64)>> = BTreeMap::new();
    for device in devices {
        for (&name, &value) in &device.counters {
            counters.entry(name).or_default().push((&device.name, value));
        }
    }
    gauge(&mut out, "devices", "Devices of this daemon", &[("", devices.len() as u64)]);
    let up: Vec<_> = devices.iter().map(|device| (device.name.as_str(), u64::from(device.state == "ACTIVE"))).collect();
    gauge(&mut out, "device_up", "Whether the port of the device is active", &up);
    let mut objects = |name: &str, help: &str, count: fn(&ClientView) -> usize| {
        let sum = |device: &DeviceView| device.clients.iter().map(|client| count(client) as u64).sum();
        let values: Vec<_> = devices.iter().map(|device| (device.name.as_str(), sum(device))).collect();
        gauge(&mut out, name, help, &values);
    };
    objects("clients", "Connections", |_| 1);
    objects("queue_pairs", "Queue pairs", |client| client.qps);
    objects("completion_queues", "Completion queues", |client| client.cqs);
    objects("memory_regions", "Memory regions", |client| client.mrs);
    objects("protection_domains", "Protection domains", |client| client.pds);
    let mut memory = |name: &str, help: &str, bytes: fn(&MemoryView) -> u64| {
        let of = |device: &DeviceView| device.vm.as_ref().map(|vm| bytes(&vm.memory));
        let values: Vec<_> = devices.iter().filter_map(|device| Some((device.name.as_str(), of(device)?))).collect();
        gauge(&mut out, name, help, &values);
    };
    memory("vm_mapped_bytes", "Memory of the virtual machine that its VMM has given", |memory| memory.mapped_bytes);
    memory("vm_pinned_bytes", "Of that, pinned", |memory| memory.pinned_bytes);
    memory("vm_registered_bytes", "Of that, needed by regions and queues", |memory| memory.registered_bytes);
    let quantiles = [("0.5", (|of| of.p50_us) as fn(&LatencyView) -> f64), ("0.99", |of| of.p99_us)];
    let measured: Vec<_> = devices.iter().filter_map(|device| Some((&device.name, device.latency.as_ref()?))).collect();
    if !measured.is_empty() {
        let name = "vrdma_message_latency_seconds";
        let _ =
            writeln!(out, "# HELP {name} What small messages took in the last half a minute or minute\n# TYPE {name} gauge");
        for (device, latency) in measured {
            for (quantile, us) in quantiles {
                let seconds = us(latency) / 1e6;
                let _ = writeln!(out, "{name}{{device=\"{device}\",quantile=\"{quantile}\"}} {seconds}");
            }
        }
    }
    for (name, values) in counters {
        family(&mut out, &format!("{name}_total"), "counter", &format!("Counter {name} of the device"), &values);
    }
    if !drops.is_empty() {
        let name = "vrdma_dropped_packets_total";
        // Writing to a String cannot fail.
        let _ = writeln!(out, "# HELP {name} Packets dropped before they reached a queue pair\n# TYPE {name} counter");
        for (reason, value) in drops {
            let _ = writeln!(out, "{name}{{reason=\"{reason}\"}} {value}");
        }
    }
    out
}

fn gauge(out: &mut String, name: &str, help: &str, values: &[(&str, u64)]) {
    family(out, name, "gauge", help, values);
}

/// One metric; a value with an empty device name has no label.
fn family(out: &mut String, name: &str, kind: &str, help: &str, values: &[(&str, u64)]) {
    if values.is_empty() {
        return;
    }
    let _ = writeln!(out, "# HELP vrdma_{name} {help}\n# TYPE vrdma_{name} {kind}");
    for (device, value) in values {
        let _ = match *device {
            "" => writeln!(out, "vrdma_{name} {value}"),
            device => writeln!(out, "vrdma_{name}{{device=\"{device}\"}} {value}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_a_head_and_one_line_per_device() {
        let mut out = String::new();
        family(&mut out, "x_total", "counter", "Help", &[("a", 1), ("b", 2)]);
        gauge(&mut out, "devices", "Devices", &[("", 2)]);
        gauge(&mut out, "none", "Nothing", &[]);
        assert_eq!(
            out,
            "# HELP vrdma_x_total Help\n# TYPE vrdma_x_total counter\nvrdma_x_total{device=\"a\"} 1\n\
             vrdma_x_total{device=\"b\"} 2\n# HELP vrdma_devices Devices\n# TYPE vrdma_devices gauge\nvrdma_devices 2\n"
        );
    }

    #[test]
    fn a_daemon_without_devices_says_so() {
        let text = text(&[], &[("icrc", 3)]);
        assert!(text.contains("vrdma_devices 0\n"), "{text}");
        assert!(text.contains("vrdma_dropped_packets_total{reason=\"icrc\"} 3\n"), "{text}");
    }
}
