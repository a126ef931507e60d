//! What the datapath tells about itself to people.

use std::collections::BTreeMap;

use isolation::Settings;
use rnic::{ControlError, DeviceId};

use super::Datapath;
use super::clients::{ClientId, ObjectCounts};
use super::latencies::Percentiles;

/// A device at one moment.
pub struct DeviceStatus {
    /// Names and values of its counters.
    pub counters: BTreeMap<&'static str, u64>,
    /// What it is promised against the others.
    pub shares: Settings,
    /// What its small messages took lately.
    pub latency: Option<Percentiles>,
    /// Objects of the clients asked about, and how many of their regions are memory of devices, by driver; `None` for one that has
    /// ended.
    pub clients: Vec<Option<(ObjectCounts, BTreeMap<String, usize>)>>,
}

/// Names of what a device has had, by class.
const USAGE_NAMES: [[&str; 3]; 3] = [
    ["latency_turns", "latency_bytes", "latency_packets"],
    ["message_rate_turns", "message_rate_bytes", "message_rate_packets"],
    ["bandwidth_turns", "bandwidth_bytes", "bandwidth_packets"],
];

impl Datapath {
    /// Changes what a device is promised, as of the next turn.
    ///
    /// # Errors
    /// Why that cannot be; nothing has changed then.
    pub fn change_shares(&mut self, device: DeviceId, change: impl FnOnce(&Settings) -> Settings) -> Result<(), ControlError> {
        let before = self.rnic.shares(device).ok_or(ControlError::NotFound("device"))?;
        let settings = change(before);
        self.rnic.set_shares(self.now, device, settings)
    }

    /// Devices and their clients, all at this moment.
    pub fn statuses(&mut self, asked: &[(DeviceId, Vec<ClientId>)]) -> Vec<DeviceStatus> {
        asked
            .iter()
            .map(|(device, clients)| DeviceStatus {
                counters: self.counters(*device),
                shares: self.rnic.shares(*device).copied().unwrap_or_default(),
                latency: self.latencies.of(self.now, *device),
                clients: clients
                    .iter()
                    .map(|&client| Some((self.client_counts(client)?, self.windows.regions_of(client))))
                    .collect(),
            })
            .collect()
    }

    fn counters(&self, device: DeviceId) -> BTreeMap<&'static str, u64> {
        let mut counters: BTreeMap<_, _> =
            self.rnic.counters(device).into_iter().flat_map(|counters| counters.iter()).collect();
        if let Some((usage, pauses)) = self.rnic.usage(device) {
            for (names, usage) in USAGE_NAMES.into_iter().zip(usage) {
                counters.extend(names.into_iter().zip([usage.turns, usage.bytes, usage.packets]));
            }
            counters.insert("rate_pauses", pauses);
        }
        let port = self.port_counters(device);
        counters.extend([
            ("port_send_congested", port.send_congested),
            ("port_send_too_long", port.send_too_long),
            ("port_send_unreachable", port.send_unreachable),
            ("port_send_failed", port.send_failed),
            ("port_receive_overflow", port.receive_overflow),
        ]);
        counters
    }

    /// Packets dropped before they reached a queue pair of any device, by reason.
    pub fn drops(&self) -> Vec<(&'static str, u64)> {
        self.rnic.drop_counters().iter().chain([("device_left_the_wire", self.ports.without_port())]).collect()
    }
}
