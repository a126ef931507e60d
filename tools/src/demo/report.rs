//! What the demo measured: the JSON object, and the same as tables.

use perftest::verbs::{Operation, Placement};
use serde::{Deserialize, Serialize};

use crate::output::table;

/// The object that `demo --json` prints. Its names are an interface; new members may be added.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Time to make a device in the daemon, the slower of the two.
    pub device_create_us: f64,
    /// Bandwidth on the local path.
    pub bandwidth: Vec<BandwidthRow>,
    /// Latency on the local path.
    pub latency: Vec<LatencyRow>,
    /// Rate of small messages on the local path.
    pub message_rate: Vec<RateRow>,
    /// The UDP path between two network namespaces; only with `--wire`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wire: Vec<WireRow>,
    /// How it was measured.
    pub method: Method,
}

/// How it was measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Method {
    /// Bytes that messages cycle over, on each side; also of the copies that bandwidth is compared with.
    pub working_set_bytes: usize,
    /// Rounds; in each, all operations and both copies run once. Bandwidths and ratios are medians over the rounds.
    pub rounds: usize,
    /// Processor cores.
    pub cores: usize,
    /// The two programs share one core and leave the others to the daemon, as there are few.
    pub programs_share_a_core: bool,
}

/// One bandwidth.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BandwidthRow {
    /// Operation.
    pub op: Operation,
    /// Kind of memory at both ends.
    pub memory: Placement,
    /// Bytes per message.
    pub size_bytes: u32,
    /// 10^9 bytes per second.
    pub gbytes_per_sec: f64,
    /// Divided by memcpy.
    pub ratio_memcpy: f64,
    /// Divided by one `process_vm_writev` per message; absent where the system does not permit that call.
    pub ratio_process_vm: Option<f64>,
}

/// One latency: one way for WRITE and SEND, there and back for READ.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LatencyRow {
    /// Operation.
    pub op: Operation,
    /// Bytes per message.
    pub size_bytes: u32,
    /// Median in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
}

/// One message rate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RateRow {
    /// Operation.
    pub op: Operation,
    /// Bytes per message.
    pub size_bytes: u32,
    /// 10^6 messages per second.
    pub million_per_sec: f64,
}

/// One way of moving bytes over the wire of the test.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WireRow {
    /// `write_heap`, `write_shared`, or what these are compared with.
    pub what: String,
    /// Bytes per message.
    pub size_bytes: u32,
    /// Bytes per packet, without headers.
    pub mtu_bytes: u32,
    /// 10^9 payload bytes per second that arrived.
    pub gbytes_per_sec: f64,
    /// This divided by plain UDP with segmentation offload; only for WRITE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_udp: Option<f64>,
    /// This divided by TCP; only for WRITE, and where iperf3 is installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_tcp: Option<f64>,
}

impl Report {
    /// As tables for people.
    pub fn tables(&self) -> String {
        let Method { working_set_bytes, rounds, cores, programs_share_a_core } = self.method;
        let mib = working_set_bytes >> 20;
        let split = if programs_share_a_core { "; the programs share one of them" } else { "" };
        let mut text = format!(
            "Device creation: {:.0} µs. Two programs and the daemon on {cores} cores{split}.\n\n\
             Bandwidth, messages cycling over {mib} MiB on each side, medians of {rounds} rounds; the ratios compare with memcpy over\n\
             the same {mib} MiB and with one process_vm_writev per message, measured in the same rounds:\n",
            self.device_create_us
        );
        let rows = self.bandwidth.iter().map(|row| {
            [
                name(row.op).to_owned(),
                row.memory.to_string(),
                row.size_bytes.to_string(),
                format!("{:.2}", row.gbytes_per_sec),
                format!("{:.2}", row.ratio_memcpy),
                row.ratio_process_vm.map_or("not permitted".to_owned(), |ratio| format!("{ratio:.2}")),
            ]
        });
        let header = ["OPERATION", "MEMORY", "#bytes", "BW average[GB/sec]", "of memcpy", "of process_vm_writev"];
        text += &table(header, rows, &[2, 3, 4, 5]);
        text += "\nLatency, one way; READ there and back:\n";
        let rows = self.latency.iter().map(|row| {
            [name(row.op).to_owned(), row.size_bytes.to_string(), format!("{:.2}", row.p50_us), format!("{:.2}", row.p99_us)]
        });
        text += &table(["OPERATION", "#bytes", "t_typical[usec]", "99% percentile[usec]"], rows, &[1, 2, 3]);
        text += "\nMessage rate:\n";
        let rows = self
            .message_rate
            .iter()
            .map(|row| [name(row.op).to_owned(), row.size_bytes.to_string(), format!("{:.3}", row.million_per_sec)]);
        text += &table(["OPERATION", "#bytes", "MsgRate[Mpps]"], rows, &[1, 2]);
        if !self.wire.is_empty() {
            text += "\nBetween two network namespaces over veth (MTU 9000), medians:\n";
            let rows = self.wire.iter().map(|row| {
                [
                    row.what.clone(),
                    row.size_bytes.to_string(),
                    row.mtu_bytes.to_string(),
                    format!("{:.2}", row.gbytes_per_sec),
                    ratio(row.ratio_udp),
                    ratio(row.ratio_tcp),
                ]
            });
            text += &table(["WHAT", "#bytes", "packet", "BW average[GB/sec]", "of UDP", "of TCP"], rows, &[1, 2, 3, 4, 5]);
        }
        text
    }
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"))
}

fn name(operation: Operation) -> &'static str {
    match operation {
        Operation::Write => "WRITE",
        Operation::Read => "READ",
        Operation::Send => "SEND",
        Operation::FetchAdd => "FETCH_ADD",
        Operation::CompareSwap => "CMP_SWAP",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_names_are_the_interface() {
        let report = Report {
            device_create_us: 40.0,
            bandwidth: vec![BandwidthRow {
                op: Operation::Write,
                memory: Placement::Heap,
                size_bytes: 4096,
                gbytes_per_sec: 3.0,
                ratio_memcpy: 0.5,
                ratio_process_vm: Some(1.5),
            }],
            latency: vec![LatencyRow { op: Operation::Send, size_bytes: 8, p50_us: 3.0, p99_us: 9.0 }],
            message_rate: vec![RateRow { op: Operation::Read, size_bytes: 8, million_per_sec: 1.5 }],
            ..Report::default()
        };
        let value = serde_json::to_value(&report).unwrap();
        let bandwidth = serde_json::json!({"op": "write", "memory": "heap", "size_bytes": 4096, "gbytes_per_sec": 3.0,
            "ratio_memcpy": 0.5, "ratio_process_vm": 1.5});
        assert_eq!(value["bandwidth"][0], bandwidth);
        assert_eq!(value["latency"][0], serde_json::json!({"op": "send", "size_bytes": 8, "p50_us": 3.0, "p99_us": 9.0}));
        assert_eq!(value["message_rate"][0], serde_json::json!({"op": "read", "size_bytes": 8, "million_per_sec": 1.5}));
        assert_eq!(value["device_create_us"], 40.0);
        assert!(value.get("wire").is_none());
        assert!(report.tables().contains("WRITE"));
    }
}
