//! The configuration of a published simulator's runs, to compare with: the UEC transport simulator's fat tree with one
//! permutation, as its own configuration files describe it, and what it gave here for a single path.

use crate::scenario::{Placement, QueueKeys, ReportKeys, Scenario, TopologyKeys, TopologyKind, TransportKeys, WorkloadKeys};
use crate::workload::{Operation, Pattern};

/// Completion times of flows in the reference's run with a single path, in microseconds: name of the figure, and the figure.
pub const SINGLE_PATH_US: [(&str, f64); 5] = [("min", 167.8), ("p50", 385.6), ("p99", 760.4), ("max", 882.5), ("mean", 403.4)];
/// Data packets that the reference simulates per second of its run with oblivious spray.
pub const PACKETS_PER_SEC: f64 = 13_700.0;

/// 1024 hosts in three tiers of 100 Gb/s and 1 µs per link, queues of one bandwidth-delay product with marks and trimming, and a
/// permutation of flows of 2 MB. The reference has K = 16; K = 4, 8 and 32 give 16, 128 and 8192 hosts.
pub fn scenario(k: u32, seed: u64) -> Scenario {
    Scenario {
        seed,
        topology: TopologyKeys { kind: TopologyKind::FatTree, k: Some(k), ..TopologyKeys::default() },
        queue: QueueKeys {
            limit_bytes: 178_450,
            mark_low_bytes: Some(37_350),
            mark_high_bytes: Some(145_250),
            trim: true,
            control_first: true,
            pfc_pause_bytes: None,
        },
        // 131 µs, the code next above the reference's least of 100.66 µs.
        transport: TransportKeys { mtu: 4096, ack_timeout: 5, retries: 7 },
        workload: WorkloadKeys {
            pattern: Pattern::Permutation,
            bytes: 2_000_000,
            hosts: None,
            placement: Placement::InOrder,
            operation: Operation::Write,
            file: None,
        },
        report: ReportKeys { sample_us: 0.0 },
        ..Scenario::default()
    }
}
