//! The experiments of Justitia's paper that two hosts and one switch can show, with what it published and what ours has to reach.
//!
//! L is after latency (16 bytes, one at a time), T after a message rate (batches of 64), B after bandwidth (1 MB), each a tenant with
//! one connection and WRITEs, unless said otherwise. Figures are ratios to what the same tenant gets alone.

use super::lab::{Card, Lab};
use super::load::{Got, Load, Op};
use isolation::baseline::justitia::Parameters;
use isolation::{Class, Policy, Settings};
use std::time::Duration;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Metric {
    /// The worst 99th percentile of the latency of L tenants, of what it is alone.
    Latency99,
    /// The same of the median.
    Latency50,
    /// All bandwidth of B tenants together, of what the first gets alone.
    Bandwidth,
    /// All messages of T tenants together, of what the first gets alone.
    Rate,
    /// The shares of B and T added.
    Sum,
    /// Jain's index of fairness over all tenants of the class that there are most of; 1 is fair.
    Fairness,
    /// What the first tenant gets of what the second gets, by weight.
    Between,
}

impl Metric {
    /// As tables name it.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Latency99 => "L p99, times alone",
            Metric::Latency50 => "L median, times alone",
            Metric::Bandwidth => "B, share of alone",
            Metric::Rate => "T, share of alone",
            Metric::Sum => "B + T, shares",
            Metric::Fairness => "fairness (Jain)",
            Metric::Between => "first to second",
        }
    }
}

/// What ours has to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
    /// No more.
    AtMost(f64),
    /// No less.
    AtLeast(f64),
    /// Between.
    Within(f64, f64),
}

impl Bar {
    /// Whether a value reaches it.
    pub fn is_met(self, value: f64) -> bool {
        match self {
            Bar::AtMost(most) => value <= most,
            Bar::AtLeast(least) => value >= least,
            Bar::Within(least, most) => (least..=most).contains(&value),
        }
    }
}

impl std::fmt::Display for Bar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bar::AtMost(most) => write!(f, "≤ {most}"),
            Bar::AtLeast(least) => write!(f, "≥ {least}"),
            Bar::Within(least, most) => write!(f, "{least} to {most}"),
        }
    }
}

/// One line of the table to come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Question {
    /// What is measured.
    pub metric: Metric,
    /// What ours has to reach.
    pub bar: Bar,
    /// What the paper has: without isolation, if it has that, and with Justitia.
    pub published: Option<(Option<f64>, f64)>,
}

/// A set-up.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// As in the paper's order: E1 to E16.
    pub id: &'static str,
    /// In words.
    pub what: String,
    /// The card of all hosts.
    pub card: Card,
    /// What Justitia aims at.
    pub target: Duration,
    /// The tenants.
    pub loads: Vec<Load>,
    /// What is asked.
    pub questions: Vec<Question>,
}

/// What came out of an experiment: per question, alone (in its unit), without isolation, with Justitia, with ours.
pub type Outcome = Vec<(Question, [f64; 4])>;

const MB: u32 = 1_000_000;

fn question(metric: Metric, bar: Bar, published: impl Into<Option<(f64, f64)>>) -> Question {
    Question { metric, bar, published: published.into().map(|(off, justitia)| (Some(off), justitia)) }
}

/// A question whose figure without isolation the paper does not give.
fn half_published(metric: Metric, bar: Bar, justitia: f64) -> Question {
    Question { metric, bar, published: Some((None, justitia)) }
}

fn experiment(id: &'static str, what: impl Into<String>, loads: Vec<Load>, questions: Vec<Question>) -> Experiment {
    Experiment { id, what: what.into(), card: Card::IB56, target: Duration::from_micros(2), loads, questions }
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
    use Metric::{Bandwidth, Between, Fairness, Latency50, Latency99, Rate, Sum};
    let (l, t, b) = (Load::latency("L", 16), Load::rate("T"), Load::bulk("B", MB));
    let mut all = vec![
        experiment(
            "E1",
            "1 L, 1 B",
            vec![l.clone(), b.clone()],
            vec![question(Latency99, AtMost(1.5), (2.07, 1.5)), question(Bandwidth, AtLeast(0.9), (1.0, 0.49))],
        ),
        Experiment {
            target: Duration::from_micros(10),
            ..experiment(
                "E2",
                "1 L, 1 B with 4 connections; Justitia aims at 10 µs",
                vec![l.clone(), Load { qps: 4, ..b.clone() }],
                vec![question(Latency99, AtMost(2.3), (10.1, 2.3)), question(Bandwidth, AtLeast(0.95), (1.0, 0.87))],
            )
        },
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
    let backwards = |load: Load| Load { from: 1, to: 0, op: Op::Read, ..load };
    all.push(experiment(
        "E15",
        "L reads from the host that B writes from",
        vec![backwards(l.clone()), b.clone()],
        vec![question(Latency99, AtMost(2.0), (8.36, 2.5)), question(Bandwidth, AtLeast(0.9), (1.0, 0.47))],
    ));
    all.push(experiment(
        "E16",
        "L writes from the host that B reads from",
        vec![l, backwards(b)],
        vec![question(Latency99, AtMost(2.0), (10.1, 1.93)), question(Bandwidth, AtLeast(0.9), (1.0, 0.47))],
    ));
    all
}

/// Until everybody is known and Justitia has found its rate.
const WARM_UP_MS: u64 = 10;
/// For how long it is measured.
const MEASURED: Duration = Duration::from_millis(20);

impl Experiment {
    /// Runs it: every tenant alone (those alike once), then all together under each policy.
    pub fn run(&self) -> Outcome {
        let times = (Duration::from_millis(WARM_UP_MS), MEASURED);
        let run = |policy, loads: &[Load]| Lab::run(self.card, policy, loads, times);
        let mut known: Vec<(Load, Got)> = Vec::new();
        let alone: Vec<Got> = self
            .loads
            .iter()
            .map(|load| {
                let load = Load { start: Duration::ZERO, ..load.clone() };
                if let Some((_, got)) = known.iter().find(|(other, _)| *other == load) {
                    return got.clone();
                }
                let got = run(Policy::Greedy, std::slice::from_ref(&load)).remove(0);
                known.push((load, got.clone()));
                got
            })
            .collect();
        let justitia =
            Parameters { max_bytes_per_sec: (self.card.gbps * 1e9 / 8.0) as u64, target: self.target, ..Parameters::default() };
        let policies = [Policy::Greedy, Policy::Justitia(justitia), Policy::Shares];
        let shared = policies.map(|policy| run(policy, &self.loads));
        self.questions
            .iter()
            .map(|&question| {
                let [off, justitia, ours] = shared.each_ref().map(|got| self.answer(question.metric, &alone, got));
                (question, [self.unit(question.metric, &alone), off, justitia, ours])
            })
            .collect()
    }

    fn of<'a>(&'a self, class: Class, got: &'a [Got]) -> impl Iterator<Item = &'a Got> {
        self.loads.iter().zip(got).filter(move |(load, _)| load.class() == class).map(|(_, got)| got)
    }

    /// What it is alone: µs, Gb/s or million messages per second.
    fn unit(&self, metric: Metric, alone: &[Got]) -> f64 {
        let first = |class| self.of(class, alone).next();
        match metric {
            Metric::Latency99 => first(Class::Latency).map_or(f64::NAN, |got| got.percentile(99.0)),
            Metric::Latency50 => first(Class::Latency).map_or(f64::NAN, |got| got.percentile(50.0)),
            Metric::Bandwidth => first(Class::Bandwidth).map_or(f64::NAN, Got::gbps),
            Metric::Rate => first(Class::MessageRate).map_or(f64::NAN, Got::million_per_sec),
            Metric::Sum | Metric::Fairness | Metric::Between => f64::NAN,
        }
    }

    fn answer(&self, metric: Metric, alone: &[Got], shared: &[Got]) -> f64 {
        let worst = |percent: f64| {
            let pairs = self.of(Class::Latency, alone).zip(self.of(Class::Latency, shared));
            pairs.map(|(alone, shared)| shared.percentile(percent) / alone.percentile(percent)).fold(0.0, f64::max)
        };
        match metric {
            Metric::Latency99 => worst(99.0),
            Metric::Latency50 => worst(50.0),
            Metric::Bandwidth => self.of(Class::Bandwidth, shared).map(Got::gbps).sum::<f64>() / self.unit(metric, alone),
            Metric::Rate => {
                self.of(Class::MessageRate, shared).map(Got::million_per_sec).sum::<f64>() / self.unit(metric, alone)
            }
            Metric::Sum => self.answer(Metric::Bandwidth, alone, shared) + self.answer(Metric::Rate, alone, shared),
            Metric::Fairness => {
                let parts: Vec<f64> = shared.iter().map(|got| got.bytes as f64).collect();
                parts.iter().sum::<f64>().powi(2) / (parts.len() as f64 * parts.iter().map(|part| part * part).sum::<f64>())
            }
            Metric::Between => shared[0].bytes as f64 / shared[1].bytes as f64,
        }
    }
}
