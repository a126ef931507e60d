//! Husky's pairs (NSDI 2023): 52 things that one tenant can do to a card, beside 21 things that another may be doing, and one that is
//! after latency. Both tenants weigh the same.
//!
//! A victim's rate is what it gets alone, but no more than half of whatever it uses most: the other half is the attacker's. It has to
//! keep [`KEPT`] of that; who is after latency may wait [`SLOWED`] times as long as alone.

use super::card::Card;
use super::lab::{Lab, Setup};
use super::load::{Got, Load, Op, Receives};
use isolation::{Class, Policy};
use rnic::QpType;
use std::time::Duration;

/// Husky's bar: so much of its rate has to be left.
pub const KEPT: f64 = 0.8;
/// So many times its 99th percentile alone may the latency be.
pub const SLOWED: f64 = 2.0;

const KIB: u32 = 1 << 10;
const MIB: u32 = 1 << 20;
const GIB: u32 = 1 << 30;
/// Queue pairs of the smallest attacks that have several processes: 8 each of 8.
const FLOOD: u32 = 64;
const TIMES: (Duration, Duration) = (Duration::from_micros(300), Duration::from_millis(1));

/// A row or a column.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// In words.
    pub name: String,
    /// What Husky counts it among.
    pub group: &'static str,
    /// What it does, or why that cannot be shown here.
    pub load: Result<Load, &'static str>,
}

fn verb(op: Op) -> &'static str {
    match op {
        Op::Write => "WRITE",
        Op::Read => "READ",
        Op::Send => "SEND",
        Op::CompareSwap => "CAS",
        Op::FetchAdd => "FAA",
        Op::Echo => "echo",
    }
}

fn size(bytes: u32) -> String {
    match bytes {
        GIB.. => format!("{} GiB", bytes / GIB),
        MIB.. => format!("{} MiB", bytes / MIB),
        KIB.. => format!("{} KiB", bytes / KIB),
        _ => format!("{bytes} B"),
    }
}

fn load(op: Op, bytes: u32, qps: u32, batch: u32) -> Load {
    Load { op, bytes, qps, batch, depth: 1, ..Load::bulk("husky", bytes) }
}

fn entry(group: &'static str, name: String, load: Load) -> Entry {
    Entry { name, group, load: Ok(load) }
}

/// One whose name says all.
fn plain(group: &'static str, op: Op, bytes: u32, qps: u32, batch: u32) -> Entry {
    entry(group, format!("{} {}, {qps} QPs", verb(op), size(bytes)), load(op, bytes, qps, batch))
}

const BASIC: [Op; 3] = [Op::Write, Op::Read, Op::Send];

/// The 52 attackers.
pub fn attackers() -> Vec<Entry> {
    let mut all = Vec::new();
    for (bytes, qps) in [(MIB, 16), (4 * KIB, 64)] {
        all.extend(BASIC.map(|op| plain("bandwidth", op, bytes, qps, 128)));
    }
    all.extend([257, 129].map(|bytes| plain("PCIe", Op::Write, bytes, 96, 1024)));
    for (host, at) in [(0, "sender"), (1, "receiver")] {
        let within = Load { from: host, to: host, ..load(Op::Write, MIB, 8, 128) };
        all.push(entry("PCIe", format!("loopback WRITE 1 MiB, 8 QPs, at the {at}"), within));
    }
    let unready = |name: &str, service, code| {
        let load = Load { service, receives: Receives::Missing(code), ..load(Op::Send, 4 * KIB, 1, 128) };
        entry("processing", format!("SEND without receives, {name}"), load)
    };
    all.push(unready("RC, longest RNR timer", QpType::Rc, 0));
    all.push(unready("RC, shortest RNR timer", QpType::Rc, 1));
    all.push(unready("UC", QpType::Uc, 0));
    all.push(unready("UD", QpType::Ud, 0));
    for op in [Op::Write, Op::Read, Op::Send, Op::CompareSwap, Op::FetchAdd] {
        let flood = load(op, 8, FLOOD, 8);
        all.push(entry("processing", format!("{} 8 B, {FLOOD} QPs", verb(op)), flood.clone()));
        all.push(entry("processing", format!("{} 8 B, {FLOOD} QPs, backward", verb(op)), flood.backwards()));
    }
    all.extend(BASIC.map(|op| plain("cache", op, 512, 512, 16)));
    for (regions, bytes) in [(4096, 512), (1, GIB), (1024, MIB)] {
        all.extend(BASIC.map(|op| {
            // What is sent of a large region is 1 MiB at a time.
            let load = Load { regions, ..load(op, bytes.min(MIB), 4, 16) };
            entry("cache", format!("{} over {regions} regions of {}", verb(op), size(bytes)), load)
        }));
    }
    for (regions, bytes) in [(4096, KIB), (1024, MIB), (1, GIB)] {
        for domains in ["one PD", "a PD each"] {
            for at in ["sender", "receiver"] {
                let name = format!("register and deregister {regions} × {}, {domains}, at the {at}", size(bytes));
                let reason = "control commands take no simulated time; the daemon has a budget for them";
                all.push(Entry { name, group: "cache", load: Err(reason) });
            }
        }
    }
    for (name, service, op, bytes) in [
        ("UD SEND 4 KiB", QpType::Ud, Op::Send, 4 * KIB),
        ("UC SEND 4 KiB", QpType::Uc, Op::Send, 4 * KIB),
        ("RC SEND 4 KiB", QpType::Rc, Op::Send, 4 * KIB),
        ("RC READ 16 KiB", QpType::Rc, Op::Read, 16 * KIB),
    ] {
        let pressure = Load { service, ..load(op, bytes, 32, 64) };
        all.push(entry("cache", format!("pressure on receives, {name}, 32 QPs"), pressure));
    }
    all
}

/// The 21 victims, and the one that is after latency.
pub fn victims() -> Vec<Entry> {
    let mut all = Vec::new();
    for (bytes, qps, batch) in [(64 * KIB, 1, 128), (8, 128, 16), (4 * KIB, 64, 16)] {
        all.extend(BASIC.map(|op| plain("traffic", op, bytes, qps, batch)));
    }
    for bytes in [512, 4 * KIB] {
        all.extend(BASIC.map(|op| {
            let one_each = load(op, bytes, 96, 1);
            entry("many queue pairs", format!("{} {}, 96 QPs, one each", verb(op), size(bytes)), one_each)
        }));
        all.extend(BASIC.map(|op| {
            let load = Load { regions: 16, ..load(op, bytes, 96, 16) };
            entry("many regions", format!("{} {}, 96 QPs, 16 regions", verb(op), size(bytes)), load)
        }));
    }
    all.push(entry("latency", "WRITE 16 B, one at a time".to_owned(), Load::latency("L", 16)));
    all
}

/// What a victim gets alone.
#[derive(Clone, Debug)]
pub struct Alone {
    got: Got,
}

impl Alone {
    /// Runs it.
    pub fn run(setup: &Setup, policy: Policy, victim: &Load) -> Alone {
        Alone { got: Lab::run(setup, policy, std::slice::from_ref(victim), TIMES).remove(0) }
    }

    /// How a victim fares beside `others`, each of whom weighs as much as it does.
    pub fn beside(&self, setup: &Setup, policy: Policy, victim: &Load, others: &[Load]) -> Fares {
        let mut loads = vec![victim.clone()];
        loads.extend_from_slice(others);
        let got = Lab::run(setup, policy, &loads, TIMES).remove(0);
        if victim.class() == Class::Latency {
            let value = got.percentile(99.0) / self.got.percentile(99.0);
            return Fares { value, meets_bar: value <= SLOWED };
        }
        let even = 1.0 / loads.len() as f64;
        let rate = self.got.gbps() * (even / self.got.busiest).min(1.0);
        let value = got.gbps() / rate;
        Fares { value, meets_bar: value >= KEPT }
    }
}

/// How a victim fares.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Fares {
    /// The part of its rate that it keeps, or how many times as long as alone the 99th percentile of its latency is.
    pub value: f64,
    /// Whether that is enough.
    pub meets_bar: bool,
}

/// The hosts of all pairs.
pub fn setup() -> Setup {
    Setup::new(Card::IB56)
}
