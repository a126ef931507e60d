//! What the datapath tells about itself to people.

use std::collections::BTreeMap;

use rnic::DeviceId;

use super::Datapath;
use super::clients::{ClientId, ObjectCounts};

/// A device at one moment.
pub struct DeviceStatus {
    /// Names and values of its counters.
    pub counters: BTreeMap<&'static str, u64>,
    /// Objects of the clients asked about; `None` for one that has ended.
    pub clients: Vec<Option<ObjectCounts>>,
}

impl Datapath {
    /// Devices and their clients, all at this moment.
    pub fn statuses(&mut self, asked: &[(DeviceId, Vec<ClientId>)]) -> Vec<DeviceStatus> {
        asked
            .iter()
            .map(|(device, clients)| DeviceStatus {
                counters: self.counters(*device),
                clients: clients.iter().map(|&client| self.client_counts(client)).collect(),
            })
            .collect()
    }

    fn counters(&self, device: DeviceId) -> BTreeMap<&'static str, u64> {
        let mut counters: BTreeMap<_, _> =
            self.rnic.counters(device).into_iter().flat_map(|counters| counters.iter()).collect();
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
