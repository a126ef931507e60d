//! The experiments of Justitia's paper (NSDI 2022), with what it published and what ours has to reach.
//!
//! L is after latency (16 bytes, one at a time), T after a message rate (batches of 64), B after bandwidth (1 MB), each a tenant with
//! one connection and WRITEs, unless said otherwise. Figures are ratios to what the same tenant gets alone, or without isolation.

use super::card::Card;
use super::experiments::{Experiment, WARM_UP_MS};
use super::lab::Setup;
use super::load::{Load, Op};
use super::question::{Bar, Metric, Question};
use super::switch::Uplink;
use isolation::{Class, Settings};
use std::time::Duration;

const MB: u32 = 1_000_000;

fn question(metric: Metric, bar: Bar, published: impl Into<Option<(f64, f64)>>) -> Question {
    Question { metric, bar, published: published.into().map(|(off, justitia)| (Some(off), justitia)) }
}

/// A question whose figure without isolation the paper does not give.
fn half_published(metric: Metric, bar: Bar, justitia: f64) -> Question {
    Question { metric, bar, published: Some((None, justitia)) }
}

fn experiment(id: &'static str, what: impl Into<String>, loads: Vec<Load>, questions: Vec<Question>) -> Experiment {
    Experiment::new(id, what.into(), Setup::new(Card::IB56), loads, questions)
}

fn several(load: Load, count: usize) -> Vec<Load> {
    vec![load; count]
}

fn weighted(load: Load, weight: u32) -> Load {
    Load { settings: Settings { weight, ..load.settings }, ..load }
}

/// All of them.
pub fn all() -> Vec<Experiment> {
    use Bar::{AtLeast, AtMost, Within};
    use Metric::{Bandwidth, Between, Fairness, Gain50, Gain99, Latency50, Latency99, Rate, RateGain, Sum};
    let (l, t, b) = (Load::latency("L", 16), Load::rate("T"), Load::bulk("B", MB));
    let mut all = vec![
        experiment(
            "E1",
            "1 L, 1 B",
            vec![l.clone(), b.clone()],
            vec![question(Latency99, AtMost(1.5), (2.07, 1.5)), question(Bandwidth, AtLeast(0.9), (1.0, 0.49))],
        ),
        experiment(
            "E2",
            "1 L, 1 B with 4 connections; Justitia aims at 10 µs",
            vec![l.clone(), Load { qps: 4, ..b.clone() }],
            vec![question(Latency99, AtMost(2.3), (10.1, 2.3)), question(Bandwidth, AtLeast(0.95), (1.0, 0.87))],
        )
        .with_target(Duration::from_micros(10)),
    ];
    for (n, published) in [(1, 2.07), (2, 8.0), (4, 10.0), (8, 68.0), (16, 139.0)] {
        let loads = [vec![l.clone()], several(b.clone(), n)].concat();
        all.push(experiment(
            "E3",
            format!("1 L, {n} B"),
            loads,
            vec![question(Latency99, AtMost(2.0), (published, 1.57)), question(Bandwidth, AtLeast(0.9), None)],
        ));
    }
    let mixed = [MB, 10 * MB, 100 * MB, 1_000 * MB].into_iter().flat_map(|bytes| several(Load::bulk("B", bytes), 2));
    all.push(experiment(
        "E4",
        "8 L, 8 B of 1 MB to 1 GB",
        several(l.clone(), 8).into_iter().chain(mixed).collect(),
        vec![
            question(Latency50, AtMost(6.3), (71.4, 2.7)),
            question(Latency99, AtMost(6.3), (79.8, 6.3)),
            question(Gain50, AtLeast(26.5), (1.0, 26.5)),
            question(Gain99, AtLeast(12.7), (1.0, 12.7)),
            question(Bandwidth, AtLeast(0.893), (1.0, 0.893)),
        ],
    ));
    for (bytes, bar, published) in [
        (16, 1.5, (2.07, 1.5)),
        (64, 1.5, (2.2, 1.77)),
        (256, 1.5, (2.45, 1.6)),
        (1024, 1.5, (2.5, 1.42)),
        (4096, 2.0, (2.7, 1.97)),
    ] {
        all.push(experiment(
            "E5",
            format!("1 L of {bytes} bytes, 1 B"),
            vec![Load::latency("L", bytes), b.clone()],
            vec![question(Latency99, AtMost(bar), published)],
        ));
    }
    all.push(experiment(
        "E6",
        "1 T, 1 B",
        vec![t.clone(), b.clone()],
        vec![
            question(Rate, AtLeast(0.5), (0.3, 0.5)),
            question(Bandwidth, AtLeast(0.5), (1.0, 0.52)),
            question(Sum, AtLeast(1.02), (1.3, 1.02)),
        ],
    ));
    all.push(experiment(
        "E7",
        "1 L, 1 T",
        vec![l.clone(), t.clone()],
        vec![question(Latency99, AtMost(1.25), (1.21, 1.21)), question(Rate, AtLeast(0.99), (0.99, 0.98))],
    ));
    all.push(experiment(
        "E8",
        "B of 1 MB, B of 1 GB",
        vec![b.clone(), Load::bulk("B", 1_000 * MB)],
        vec![question(Between, Within(0.98, 1.02), (0.7, 0.99)), question(Bandwidth, AtLeast(0.98), (1.0, 0.99))],
    ));
    all.push(experiment(
        "E9",
        "B with 1 connection, B with 16",
        vec![b.clone(), Load { qps: 16, ..b.clone() }],
        vec![half_published(Between, Within(0.98, 1.02), 0.995), question(Bandwidth, AtLeast(0.98), None)],
    ));
    for n in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
        all.push(experiment(
            "E10",
            format!("{n} B"),
            several(b.clone(), n),
            vec![question(Fairness, AtLeast(0.99), None), half_published(Bandwidth, AtLeast(0.96), 0.96)],
        ));
    }
    for n in [1, 2, 4, 8, 16, 32] {
        all.push(experiment("E11", format!("{n} T"), several(t.clone(), n), vec![question(Fairness, AtLeast(0.99), None)]));
    }
    for (weight, part) in [(100, 4.0 / 5.0), (150, 6.0 / 7.0), (200, 8.0 / 9.0)] {
        let loads = [vec![l.clone()], several(weighted(b.clone(), weight), 4)].concat();
        all.push(experiment(
            "E12",
            format!("1 L, 4 B of weight {weight}"),
            loads,
            vec![question(Latency99, AtMost(2.0), None), question(Bandwidth, AtLeast(part * 0.98), (1.0, part))],
        ));
    }
    for (chunk, p99, kept) in [(1_000, 1.36, 0.8), (5_000, 1.71, 0.87), (10_000, 1.79, 0.87), (50_000, 3.43, 0.87)] {
        // A message waits for the turn under way, and for what the card has made ahead; see the bound in `quantum_bar`.
        let loads = [vec![l.clone()], several(weighted(b.clone(), 200), 4)].concat();
        let bars =
            vec![half_published(Latency99, AtMost(quantum_bar(chunk)), p99), half_published(Bandwidth, AtLeast(0.9), kept)];
        let what = format!("1 L, 4 B of weight 200, turns of {} KB", chunk / 1000);
        all.push(experiment("E13", what, loads, bars).with_turns(chunk));
    }
    let later = |load: Load, ms| Load { start: Duration::from_millis(ms), ..load };
    all.push(experiment(
        "E14",
        "1 L, 1 B, then 3 B more one after the other",
        vec![
            l.clone(),
            b.clone(),
            later(b.clone(), WARM_UP_MS + 5),
            later(b.clone(), WARM_UP_MS + 10),
            later(b.clone(), WARM_UP_MS + 15),
        ],
        vec![half_published(Latency99, AtMost(1.6), 1.56)],
    ));
    let reads_back = |load: Load| Load { op: Op::Read, ..load.backwards() };
    all.push(experiment(
        "E15",
        "L reads from the host that B writes from",
        vec![reads_back(l.clone()), b.clone()],
        vec![
            question(Latency99, AtMost(2.0), (8.36, 2.5)),
            question(Gain99, AtLeast(3.3), (1.0, 3.3)),
            question(Bandwidth, AtLeast(0.9), (1.0, 0.47)),
        ],
    ));
    all.push(experiment(
        "E16",
        "L writes from the host that B reads from",
        vec![l.clone(), reads_back(b.clone())],
        vec![
            question(Latency99, AtMost(2.0), (10.1, 1.93)),
            question(Gain99, AtLeast(5.2), (1.0, 5.2)),
            question(Bandwidth, AtLeast(0.9), (1.0, 0.47)),
        ],
    ));
    all.extend(networks());
    let store = b;
    let rpc = |class, batch, depth, qps| {
        let settings = Settings { class: Some(class), ..Settings::default() };
        Load { name: "RPC", op: Op::Echo, bytes: 32, batch, depth, qps, settings, ..l.clone() }
    };
    all.push(experiment(
        "E21",
        "RPC echo one at a time in 2 threads, blob store of 1 MB",
        vec![rpc(Class::Latency, 1, 1, 2), store.clone()],
        vec![
            question(Gain50, AtLeast(56.9), (1.0, 56.9)),
            question(Gain99, AtLeast(32.2), (1.0, 32.2)),
            question(Latency99, AtMost(2.0), (40.0, 1.23)),
            question(Bandwidth, AtLeast(0.9), (1.0, 0.47)),
        ],
    ));
    all.push(experiment(
        "E21",
        "RPC echo in batches of 8 in 4 threads, blob store of 1 MB",
        vec![rpc(Class::MessageRate, 8, 2, 4), store],
        vec![question(RateGain, AtLeast(9.7), (1.0, 9.7)), question(Rate, AtLeast(0.5), (0.07, 0.63))],
    ));
    all
}

/// Those with congestion control, hardware priorities, or more than two hosts: E17 to E20.
fn networks() -> Vec<Experiment> {
    use Bar::{AtLeast, AtMost};
    use Metric::{Even, Gain50, Gain99, Kept, Latency99, RateGain};
    let (l, t, b) = (Load::latency("L", 16), Load::rate("T"), Load::bulk("B", MB));
    let controlled = Setup { congestion_control: true, ..Setup::new(Card::ROCE10) };
    let mut all = Vec::new();
    for (what, loads, questions) in [
        (
            "1 L, 1 B, congestion control on",
            vec![l.clone(), b.clone()],
            vec![question(Gain99, AtLeast(5.9), (1.0, 5.9)), question(Gain50, AtLeast(8.6), (1.0, 8.6))],
        ),
        ("1 T, 1 B, congestion control on", vec![t.clone(), b.clone()], vec![question(RateGain, AtLeast(2.6), (1.0, 2.6))]),
        ("1 L, 1 T, congestion control on", vec![l.clone(), t.clone()], vec![question(Latency99, AtMost(1.4), (1.37, 1.4))]),
    ] {
        all.push(Experiment::new("E17", what.to_owned(), controlled, loads, questions));
    }
    let priorities = Experiment::new(
        "E18",
        "L before T and B by hardware priorities".to_owned(),
        Setup::new(Card::ROCE40),
        vec![l.clone(), t, b.clone()],
        vec![question(RateGain, AtLeast(1.9), (1.0, 1.9)), question(Latency99, AtMost(1.5), (1.29, 1.35))],
    );
    all.push(priorities.with_priorities());
    let to_one = |load: Load, from| Load { from, to: 33, ..load };
    let incast = (0..32).map(|from| to_one(b.clone(), from)).chain([to_one(l.clone(), 32)]);
    let incast = Experiment::new(
        "E19",
        "32 B and 1 L to one host, congestion control on".to_owned(),
        controlled,
        incast.collect(),
        vec![question(Gain99, AtLeast(4.4), (1.0, 4.4)), question(Kept, AtLeast(0.977), (1.0, 0.977))],
    );
    all.push(incast.with_reports(32));
    // 8 of 32 flows had 5.7 Gb/s of it.
    let uplink = Some(Uplink { first_far_host: 25, gbps: 23.0 });
    let across = |load: Load, from| Load { from, to: 25 + from, ..load };
    let mut pairs = vec![across(l, 0)];
    pairs.extend(several(across(b.clone(), 0), 8));
    pairs.extend((1..25).map(|from| across(b.clone(), from)));
    all.push(Experiment::new(
        "E20",
        "1 L, 8 B of one host, 24 B of others over one uplink".to_owned(),
        Setup { uplink, ..controlled },
        pairs,
        vec![question(Gain99, AtLeast(1.8), (1.0, 1.8)), question(Even, AtLeast(0.98), (1.0, 1.0))],
    ));
    all
}

/// The latency that a turn of so many bytes allows, times alone: two packets may have left before it, and one of 4 KB is the least.
fn quantum_bar(turn_bytes: u32) -> f64 {
    let (alone_us, bytes_per_us) = (1.3, 7000.0);
    let bar = 1.0 + (f64::from(turn_bytes.max(4096)) + 2.0 * 4096.0) / bytes_per_us / alone_us;
    (bar * 100.0).round() / 100.0
}
