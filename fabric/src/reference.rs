//! The configuration of a published simulator's runs, to compare with: the UEC transport simulator's fat tree with one
//! permutation, as its own configuration files describe it, and what it gave.

use crate::fault::{FaultPlan, LinkFault};
use crate::scenario::{
    Placement, QueueKeys, ReportKeys, Scenario, SprayKeys, TopologyKeys, TopologyKind, TransportKeys, WorkloadKeys,
};
use crate::workload::{Operation, Pattern};
use spray::Policy;

/// Data packets that the reference simulates per second of its run with oblivious spray.
pub const PACKETS_PER_SEC: f64 = 13_700.0;

/// Names of the figures of [`Run::reference_us`].
pub const FIGURES: [&str; 5] = ["min", "p50", "p99", "max", "mean"];

/// One of the reference's runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// As tables name it.
    pub name: &'static str,
    /// How the paths of packets are chosen.
    pub policy: Policy,
    /// Eight links to core switches have a quarter of their rate.
    pub degraded: bool,
    /// Completion times of flows there in microseconds, in the order of [`FIGURES`].
    pub reference_us: [f64; 5],
}

const fn run(name: &'static str, policy: Policy, degraded: bool, reference_us: [f64; 5]) -> Run {
    Run { name, policy, degraded, reference_us }
}

/// All of them. The reference's connections have 128 entropies, and one for a single path.
pub const RUNS: [Run; 7] = [
    run("oblivious", Policy::Oblivious, false, [167.8, 200.1, 209.6, 212.8, 199.5]),
    run("single path", Policy::Single, false, [167.8, 385.6, 760.4, 882.5, 403.4]),
    run("bitmap", Policy::Bitmap, false, [167.7, 194.2, 199.2, 200.5, 193.5]),
    run("REPS", Policy::Reps, false, [169.3, 190.1, 194.9, 198.2, 189.5]),
    run("mixed", Policy::Mixed, false, [169.2, 188.6, 191.9, 193.2, 188.1]),
    run("oblivious, 8 slow links", Policy::Oblivious, true, [167.6, 200.5, 260.7, 280.8, 202.0]),
    run("mixed, 8 slow links", Policy::Mixed, true, [169.3, 188.7, 202.4, 211.8, 188.8]),
];

impl Run {
    /// The run in a fat tree of switches with `k` ports. The reference has 16; 4, 8 and 32 give 16, 128 and 8192 hosts.
    pub fn scenario(&self, k: u32, seed: u64) -> Scenario {
        let paths = if self.policy == Policy::Single { 1 } else { 128 };
        let half = k / 2;
        let slow = |n: u32| LinkFault {
            between: [format!("agg{n}"), format!("core{}", n * half)],
            from_us: 0.0,
            to_us: None,
            rate: Some(0.25),
            times: None,
            every_us: None,
        };
        let link = if self.degraded { (0..half.min(8)).map(slow).collect() } else { Vec::new() };
        Scenario {
            // The reference's window, of bytes in flight, is 1.5 bandwidth-delay products: 63 packets.
            spray: Some(SprayKeys { paths, policy: self.policy.name().to_owned(), flight: 63, ..SprayKeys::default() }),
            faults: FaultPlan { link, ..FaultPlan::default() },
            ..scenario(k, seed)
        }
    }
}

/// Hosts in three tiers of 100 Gb/s and 1 µs per link, queues of one bandwidth-delay product with marks and trimming, and a
/// permutation of flows of 2 MB, over plain connections.
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
