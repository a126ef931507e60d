//! Random operations against an arbiter that looks at everything each time.

use isolation::{Arbiter, Config, Cost, Flow, Policy, Settings, TenantId};
use proptest::prelude::*;
use roce::{Instant, Qpn};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[derive(Clone, Debug)]
enum Step {
    AddTenant {
        weight: u32,
        max: Option<u64>,
    },
    RemoveTenant(usize),
    SetTenant {
        tenant: usize,
        weight: u32,
        max: Option<u64>,
    },
    /// A queue pair of a tenant has work.
    Ready {
        tenant: usize,
        qp: u32,
    },
    /// A turn that costs so much.
    Turn {
        bytes: u64,
        packets: u64,
    },
    Wait {
        ns: u64,
    },
}

fn rate() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![3 => Just(None), 1 => (1_000u64..1_000_000_000).prop_map(Some)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => (1u32..500, rate()).prop_map(|(weight, max)| Step::AddTenant { weight, max }),
        1 => (0usize..8).prop_map(Step::RemoveTenant),
        1 => (0usize..8, 1u32..500, rate()).prop_map(|(tenant, weight, max)| Step::SetTenant { tenant, weight, max }),
        8 => (0usize..8, 0u32..6).prop_map(|(tenant, qp)| Step::Ready { tenant, qp }),
        8 => (0u64..100_000, 1u64..20).prop_map(|(bytes, packets)| Step::Turn { bytes, packets }),
        2 => (0u64..1_000_000).prop_map(|ns| Step::Wait { ns }),
    ]
}

const CONFIG: Config = Config {
    policy: Policy::Shares,
    bytes_per_sec: 1_000_000_000,
    packets_per_sec: 1_000_000,
    quantum_bytes: 4096,
    short_quantum_bytes: 4096,
    short_quantum_packets: 1,
    lane_percent: 10,
    link_bytes_per_sec: None,
    receive_bytes_per_sec: None,
};

/// What the model knows of a tenant: who waits, and what a cap of `max` with `burst` still allows, in bytes times nanoseconds per second.
#[derive(Debug)]
struct Known {
    waiting: BTreeSet<Qpn>,
    cap: Option<(u64, i128)>,
}

const BURST: u64 = 8192;
const SECOND: i128 = 1_000_000_000;

fn settings(weight: u32, max: Option<u64>) -> Settings {
    Settings { weight, max_bytes_per_sec: max, burst_bytes: BURST, ..Settings::default() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Nobody waits while something may go (work conservation), only who waits is served, no cap is broken, and a time to wake up at is
    /// given exactly while something waits that may not go yet.
    #[test]
    fn turns_go_to_who_waits_and_may(steps in prop::collection::vec(step(), 1..200)) {
        let mut arbiter = Arbiter::new(CONFIG);
        let mut now = Instant::ZERO;
        let mut tenants: BTreeMap<TenantId, Known> = BTreeMap::new();
        let mut flows: BTreeMap<Qpn, Flow> = BTreeMap::new();
        let pick = |tenants: &BTreeMap<TenantId, Known>, n: usize| tenants.keys().nth(n % tenants.len().max(1)).copied();
        for step in steps {
            match step {
                Step::AddTenant { weight, max } => {
                    let id = arbiter.add_tenant(settings(weight, max), now).unwrap();
                    let cap = max.map(|rate| (rate, i128::from(BURST) * SECOND));
                    let before = tenants.insert(id, Known { waiting: BTreeSet::new(), cap });
                    prop_assert!(before.is_none(), "{:?} is somebody else's", id);
                }
                Step::RemoveTenant(n) => {
                    let Some(id) = pick(&tenants, n) else { continue };
                    arbiter.remove_tenant(id);
                    tenants.remove(&id);
                    flows.retain(|_, flow| flow.tenant != id);
                }
                Step::SetTenant { tenant, weight, max } => {
                    let Some(id) = pick(&tenants, tenant) else { continue };
                    arbiter.set_tenant(id, settings(weight, max), now).unwrap();
                    let known = tenants.get_mut(&id).unwrap();
                    known.cap = match (known.cap, max) {
                        (Some((_, left)), Some(rate)) => Some((rate, left)),
                        (None, Some(rate)) => Some((rate, i128::from(BURST) * SECOND)),
                        (_, None) => None,
                    };
                }
                Step::Ready { tenant, qp } => {
                    let Some(id) = pick(&tenants, tenant) else { continue };
                    let qpn = Qpn::new(id.0 * 16 + qp + 1);
                    let flow = flows.entry(qpn).or_insert_with(|| Flow::new(id));
                    flow.classifier.note(if qp == 0 { 16 } else { 1 << 20 }, 1);
                    arbiter.add(qpn, flow, now);
                    tenants.get_mut(&id).unwrap().waiting.insert(qpn);
                }
                Step::Turn { bytes, packets } => {
                    let may = |known: &Known| !known.waiting.is_empty() && known.cap.is_none_or(|(_, left)| left > 0);
                    let somebody = tenants.values().any(may);
                    let waits = tenants.values().any(|known| !known.waiting.is_empty());
                    let Some(grant) = arbiter.take(now) else {
                        prop_assert!(!somebody, "nobody was chosen of {:?}", tenants);
                        match arbiter.poll_timeout() {
                            Some(at) => prop_assert!(waits && at > now),
                            None => prop_assert!(!waits),
                        }
                        continue;
                    };
                    let known = tenants.get_mut(&grant.tenant).unwrap();
                    prop_assert!(may(known), "{:?} may not go: {:?}", grant, known);
                    prop_assert!(known.waiting.remove(&grant.qpn));
                    flows.get_mut(&grant.qpn).unwrap().begin_turn();
                    if let Some((_, left)) = &mut known.cap {
                        *left -= i128::from(bytes) * SECOND;
                    }
                    arbiter.charge(&grant, Cost { bytes, packets, within_message: false }, now);
                }
                Step::Wait { ns } => {
                    now = now + Duration::from_nanos(ns);
                    for (rate, left) in tenants.values_mut().filter_map(|known| known.cap.as_mut()) {
                        *left = (*left + i128::from(ns) * i128::from(*rate)).min(i128::from(BURST) * SECOND);
                    }
                }
            }
        }
    }
}
