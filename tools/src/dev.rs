//! `vrdma dev`: devices as tables.

use std::fmt::Write;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::api::{Client, Device, DeviceSettings, DeviceVm, Failure, Latency, Shares, SharesChange, VmMemory};
use crate::args::{Bound, ClassChoice, DevCommand};
use crate::output::{print, print_json, table};

/// Carries out one command and prints the outcome.
pub fn carry_out(client: &Client, command: DevCommand, as_json: bool) -> Result<()> {
    match command {
        DevCommand::Add(options) => {
            let settings = DeviceSettings {
                ips: options.ips,
                mtu: options.mtu,
                mode: options.mode,
                uid: options.uid,
                gid: options.gid,
                // The daemon runs elsewhere.
                vfio_user: options.vfio_user.map(std::path::absolute).transpose()?,
                mac: options.mac,
            };
            let device = client.add(&options.name, &settings)?;
            if as_json { print_json(&device.raw) } else { print(added(&device)) }
        }
        DevCommand::Del { name } => {
            client.delete(&name)?;
            if as_json { print_json(&json!({ "name": name, "deleted": true })) } else { Ok(()) }
        }
        DevCommand::List => {
            let devices = client.devices()?;
            if as_json {
                return print_json(&devices.iter().map(|device| &device.raw).collect::<Vec<_>>());
            }
            if devices.is_empty() {
                return print("There are no devices: add one with `vrdma dev add NAME --ip IP`.\n");
            }
            print(list(&devices))
        }
        DevCommand::Why { name, qpn } => {
            let failures = client.failures(&name)?;
            let asked = |failure: &&Failure| qpn.is_none_or(|qpn| failure.qpn == qpn);
            let failures: Vec<&Failure> = failures.iter().filter(asked).collect();
            if as_json {
                return print_json(&failures.iter().map(|failure| &failure.raw).collect::<Vec<_>>());
            }
            match (failures.is_empty(), qpn) {
                (true, Some(qpn)) => bail!(
                    "queue pair {qpn:#x} of device {name} has not failed, as far as is remembered: the last 64 failures of each \
                     device are, until it is removed"
                ),
                (true, None) => print("No queue pair of this device has failed.\n"),
                _ => print(failures.into_iter().map(why).collect::<String>()),
            }
        }
        DevCommand::Set(options) => {
            let change = SharesChange {
                weight: options.weight,
                min_bits_per_sec: options.min_rate,
                max_bits_per_sec: options.rate.map(|Bound(rate)| rate),
                burst_bytes: options.burst,
                class: options.class.map(|class| match class {
                    ClassChoice::Auto => None,
                    ClassChoice::Latency => Some("latency"),
                    ClassChoice::MessageRate => Some("message-rate"),
                    ClassChoice::Bandwidth => Some("bandwidth"),
                }),
            };
            let device = client.change(&options.name, &change)?;
            if as_json { print_json(&device.raw) } else { print(changed(&device)) }
        }
        DevCommand::Show { name } => {
            let device = client.device(&name)?;
            if as_json { print_json(&device.raw) } else { print(show(&device)) }
        }
    }
}

fn added(device: &Device) -> String {
    if let Some(vm) = &device.vm {
        return added_for_vm(device, vm);
    }
    format!(
        "{} is {} with {} ({:.0} µs in the daemon): use it with `vrdma run --dev {} -- PROGRAM`\n",
        device.name,
        device.state,
        device.ips.join(" "),
        device.create_us,
        device.name
    )
}

/// The arguments that a VMM needs, beside those that it has: the guest's driver looks for a network device with this address,
/// and the daemon reaches only memory that is shared.
fn added_for_vm(device: &Device, vm: &DeviceVm) -> String {
    let (name, socket, mac) = (&device.name, device.socket.display(), &vm.mac);
    format!(
        "{name} is {} with {} ({:.0} µs in the daemon). Give the virtual machine, beside what it has:\n\
         \x20 QEMU 10.1 or later, with all of its memory in a shared object:\n\
         \x20   -machine memory-backend=mem -object memory-backend-memfd,id=mem,share=on,size=…\n\
         \x20   -netdev …,id=net0 -device virtio-net-pci,netdev=net0,mac={mac}\n\
         \x20   -device '{}'\n\
         \x20 Cloud Hypervisor:\n\
         \x20   --memory size=…,shared=on --net mac={mac},… --user-device socket={socket}\n",
        device.state,
        device.ips.join(" "),
        device.create_us,
        json!({ "driver": "vfio-user-pci", "socket": { "type": "unix", "path": device.socket } }),
    )
}

fn changed(device: &Device) -> String {
    let shares = device.shares.as_ref().map(shares).unwrap_or_default();
    format!("{}: {shares} ({:.0} µs in the daemon)\n", device.name, device.change_us.unwrap_or_default())
}

fn shares(shares: &Shares) -> String {
    let mut text = format!("weight {}", shares.weight);
    // Writing to a string cannot fail.
    if shares.min_bits_per_sec > 0 {
        let _ = write!(text, ", at least {}bit/s", thousands(shares.min_bits_per_sec));
    }
    if let Some(rate) = shares.max_bits_per_sec {
        let _ = write!(text, ", at most {}bit/s in bursts of {}B", thousands(rate), thousands(shares.burst_bytes));
    }
    let _ = match &shares.class {
        Some(class) => write!(text, ", treated as {class}"),
        None => write!(text, ", classes found from what is posted"),
    };
    text
}

/// A number with three digits or more, and its thousands as a letter.
fn thousands(number: u64) -> String {
    let (unit, name) = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")]
        .into_iter()
        .find(|(unit, _)| number as f64 >= *unit)
        .unwrap_or((1.0, ""));
    let text = format!("{:.3}", number as f64 / unit);
    format!("{} {name}", text.trim_end_matches('0').trim_end_matches('.'))
}

fn list(devices: &[Device]) -> String {
    let rows = devices.iter().map(|device| {
        let qps: u64 = device.clients.iter().map(|client| client.qps).chain(device.vm.iter().map(|vm| vm.qps)).sum();
        [
            device.name.clone(),
            device.state.clone(),
            device.active_mtu.to_string(),
            (device.clients.len() + usize::from(device.vm.as_ref().is_some_and(|vm| vm.connected))).to_string(),
            qps.to_string(),
            wire(device),
            device.ips.join(" "),
        ]
    });
    table(["NAME", "STATE", "MTU", "CLIENTS", "QPS", "WIRE", "ADDRESSES"], rows, &[2, 3, 4])
}

fn show(device: &Device) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<12} {value}");
    };
    line("name", &device.name);
    line("state", &device.state);
    line("guid", &device.guid);
    for (index, ip) in device.ips.iter().enumerate() {
        line(&format!("gid {index}"), ip);
    }
    line("path mtu", &device.active_mtu.to_string());
    line("wire", &wire(device));
    if let Some(promised) = &device.shares {
        line("shares", &shares(promised));
    }
    if let Some(Latency { measured, p50_us, p99_us }) = &device.latency {
        line("latency", &format!("{p50_us:.1} µs, 99 %: {p99_us:.1} µs ({measured} small messages measured lately)"));
    }
    line("socket", &device.socket.display().to_string());
    line("made in", &format!("{:.0} µs", device.create_us));
    if let Some(vm) = &device.vm {
        let VmMemory { mapped_bytes, pinned_bytes, idle_bytes, registered_bytes, over_pin, hits, misses, evictions } =
            &vm.memory;
        let mib = |bytes: &u64| format!("{:.1} MiB", *bytes as f64 / f64::from(1 << 20));
        line("vm mac", &vm.mac);
        line("vm", if vm.connected { "connected" } else { "not connected" });
        line("vm objects", &format!("{} queue pairs, {} completion queues, {} regions", vm.qps, vm.cqs, vm.mrs));
        line("vm memory", &format!("{}, registered {}", mib(mapped_bytes), mib(registered_bytes)));
        let over = over_pin.map_or("-".to_owned(), |factor| format!("{factor:.2}"));
        line("pinned", &format!("{} ({} of it idle), {over} bytes per registered byte", mib(pinned_bytes), mib(idle_bytes)));
        line("pin blocks", &format!("{hits} hits, {misses} misses, {evictions} evictions"));
    }
    text.push('\n');
    if device.vm.is_some() {
        // A virtual machine's device has no programs of this host.
    } else if device.clients.is_empty() {
        text.push_str("No program has it open.\n");
    } else {
        let rows = device.clients.iter().map(|client| {
            let count = |n: u64| n.to_string();
            let program = client.program.escape_debug().to_string();
            [count(client.pid), program, count(client.qps), count(client.cqs), count(client.mrs), count(client.pds)]
        });
        text.push_str(&table(["PID", "PROGRAM", "QPS", "CQS", "MRS", "PDS"], rows, &[0, 2, 3, 4, 5]));
    }
    if !device.counters.is_empty() {
        text.push('\n');
        let rows = device.counters.iter().map(|(name, value)| [name.clone(), plain(value)]);
        text.push_str(&table(["COUNTER", "VALUE"], rows, &[1]));
    }
    text
}

/// One line about a queue pair that failed.
fn why(failure: &Failure) -> String {
    let Failure { qpn, pid, program, seconds_ago, status, vendor_err, cause, peer_ip, peer_qpn, .. } = failure;
    let program = program.escape_debug();
    let drop = match &failure.last_drop {
        Some(reason) => format!("last packet dropped for {reason}"),
        None => "no packet dropped".to_owned(),
    };
    format!(
        "QP {qpn:#x} of {program} ({pid}), {seconds_ago:.1} s ago: {status}, {cause} (vendor_err {vendor_err:#x}); peer {peer_ip} QP \
         {peer_qpn:#x}, last PSN sent {:#x}, acknowledged up to {:#x}, received up to {:#x}, {} of {} retries, {drop}\n",
        failure.sent_psn, failure.acknowledged_psn, failure.received_psn, failure.retries, failure.retry_limit
    )
}

/// The interface, or why packets cannot leave the host.
fn wire(device: &Device) -> String {
    let Some(Value::Object(wire)) = &device.wire else { return "-".to_owned() };
    match (wire.get("interface"), wire.get("reason")) {
        (Some(Value::String(interface)), _) => interface.clone(),
        (_, Some(Value::String(reason))) => format!("none ({reason})"),
        _ => "-".to_owned(),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Device {
        serde_json::from_value(json!({
            "name": "a", "guid": "0200:c0ff:fe00:0201", "ips": ["192.0.2.1", "2001:db8::1"], "socket": "/d/dev/a/sock",
            "active_mtu": 4096, "state": "ACTIVE", "wire": {"interface": "eth0"}, "create_us": 41.7,
            "clients": [{"pid": 7, "program": "ib_write_bw", "qps": 2, "cqs": 1, "mrs": 1, "pds": 1}],
            "counters": {"rcvd_pkts": 12}
        }))
        .unwrap()
    }

    #[test]
    fn list_has_one_row_per_device() {
        let text = list(&[sample()]);
        assert_eq!(text.lines().count(), 2);
        assert!(text.lines().nth(1).unwrap().starts_with("a     ACTIVE  4096"), "{text}");
        assert!(text.ends_with("eth0  192.0.2.1 2001:db8::1\n"), "{text}");
    }

    #[test]
    fn show_names_clients_counters_and_gids() {
        let text = show(&sample());
        for part in ["gid 1        2001:db8::1", "made in      42 µs", "ib_write_bw", "rcvd_pkts"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn a_virtual_machines_device_shows_what_is_pinned_and_how_to_attach_it() {
        let mut device = sample();
        device.socket = "/run/vm0.sock".into();
        device.vm = serde_json::from_value(json!({
            "mac": "52:54:00:00:00:01", "connected": true, "qps": 3, "cqs": 2, "mrs": 1,
            "memory": {"mapped_bytes": 1 << 30, "pinned_bytes": 4 << 20, "registered_bytes": 1 << 20, "over_pin": 4.0, "hits": 5}
        }))
        .unwrap();
        let text = show(&device);
        for part in ["vm mac       52:54:00:00:00:01", "1024.0 MiB, registered 1.0 MiB", "4.00 bytes per", "5 hits, 0 misses"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let text = added(&device);
        for part in [r#"'{"driver":"vfio-user-pci","socket":{"path":"/run/vm0.sock","type":"unix"}}'"#, "share=on", "shared=on"]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn a_device_without_wire_says_why() {
        let device = Device { wire: Some(json!({"interface": null, "reason": "no interface has it"})), ..Device::default() };
        assert_eq!(wire(&device), "none (no interface has it)");
    }
}
