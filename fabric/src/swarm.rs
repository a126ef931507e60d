//! Scenarios by chance: small fabrics, each different in size, traffic, queues and faults, all from one number.
//!
//! Each kind of fault is absent from some of them, so that none hides another (swarm testing).

use crate::fault::FaultPlan;
use crate::scenario::{
    Placement, QueueKeys, ReportKeys, Scenario, SprayKeys, TopologyKeys, TopologyKind, TransportKeys, WorkloadKeys,
};
use crate::topology::Topology;
use crate::workload::{Operation, Pattern};
use roce::rng::{Rng, mix};
use spray::Policy;

/// The scenario of a seed.
pub fn scenario(seed: u64) -> Scenario {
    let mut rng = Rng::new(mix(seed ^ 0x7377_6172));
    let topology = topology(&mut rng);
    let mtu = [256, 1024, 4096][rng.below(3) as usize];
    let mut scenario = Scenario {
        spray: one_of(&mut rng, 2).then(|| spray(&mut rng)),
        seed,
        limit_ms: 60_000.0,
        real_payload: one_of(&mut rng, 3),
        queue: queue(&mut rng, mtu),
        // Short timeouts come too early where queues are long; that, too, must end.
        transport: TransportKeys { mtu, ack_timeout: 3 + rng.below(6) as u8, retries: 3 + rng.below(5) as u8 },
        workload: workload(&mut rng, mtu),
        report: ReportKeys { sample_us: if one_of(&mut rng, 4) { 5.0 } else { 0.0 } },
        topology,
        faults: FaultPlan::default(),
    };
    if !one_of(&mut rng, 4) {
        // The shape was made from allowed values just now.
        let shape = scenario.shape().expect("a shape within bounds");
        let topology = Topology::new(shape, scenario.topology.planes);
        scenario.faults = FaultPlan::swarm(&mut rng, &topology, 150.0);
    }
    if scenario.faults.corruption > 0.0 {
        scenario.topology.ip = 6;
    }
    scenario
}

fn spray(rng: &mut Rng) -> SprayKeys {
    SprayKeys {
        paths: [1, 2, 4, 16, 128][rng.below(5) as usize],
        policy: Policy::ALL[rng.below(Policy::ALL.len() as u64) as usize].name().to_owned(),
        law: ["nscc", "proportional"][rng.below(2) as usize].to_owned(),
        window: between(rng, 1, 256) as u16,
        flight: between(rng, 1, 256) as u16,
        rto_us: between(rng, 50, 1000),
    }
}

fn one_of(rng: &mut Rng, n: u64) -> bool {
    rng.below(n) == 0
}

fn between(rng: &mut Rng, least: u32, most: u32) -> u32 {
    least + rng.below(u64::from(most - least) + 1) as u32
}

fn topology(rng: &mut Rng) -> TopologyKeys {
    let common = TopologyKeys {
        planes: if one_of(rng, 4) { 2 } else { 1 },
        rate_gbps: [10.0, 25.0, 100.0, 400.0][rng.below(4) as usize],
        delay_us: [0.0, 0.1, 1.0, 5.0][rng.below(4) as usize],
        ip: if one_of(rng, 3) { 6 } else { 4 },
        ..TopologyKeys::default()
    };
    if one_of(rng, 2) {
        TopologyKeys { kind: TopologyKind::FatTree, k: Some([2, 4, 4, 6][rng.below(4) as usize]), ..common }
    } else {
        TopologyKeys {
            kind: TopologyKind::LeafSpine,
            leaves: Some(between(rng, 1, 4)),
            spines: Some(between(rng, 1, 4)),
            hosts_per_leaf: Some(between(rng, 2, 5)),
            ..common
        }
    }
}

fn queue(rng: &mut Rng, mtu: u32) -> QueueKeys {
    let frame = mtu + 150;
    let pfc = one_of(rng, 4);
    let marks = one_of(rng, 2);
    QueueKeys {
        limit_bytes: frame * between(rng, 2, 60),
        mark_low_bytes: marks.then_some(frame * 2),
        mark_high_bytes: marks.then_some(frame * 8),
        trim: !pfc && one_of(rng, 3),
        control_first: one_of(rng, 2),
        pfc_pause_bytes: pfc.then(|| frame * between(rng, 2, 20)),
    }
}

fn workload(rng: &mut Rng, mtu: u32) -> WorkloadKeys {
    use Pattern::*;
    let pattern = [Permutation, Incast, AllToAll, RingAllReduce, TreeAllReduce][rng.below(5) as usize];
    // Every host has as many transfers as there are others.
    let packets = between(rng, 0, if pattern == AllToAll { 5 } else { 40 });
    WorkloadKeys {
        pattern,
        bytes: packets * mtu + between(rng, 0, 3) * between(rng, 0, mtu),
        hosts: one_of(rng, 2).then_some(2),
        placement: if one_of(rng, 2) { Placement::Random } else { Placement::InOrder },
        operation: [Operation::Write, Operation::Write, Operation::Send, Operation::Read][rng.below(4) as usize],
        file: None,
    }
}
