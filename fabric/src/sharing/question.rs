//! What is asked of an experiment, and how the answers are found in what tenants got.

use super::load::{Got, Load};
use isolation::Class;

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
    /// How many times shorter the 99th percentile of the latency of L tenants is than without isolation; the least of all.
    Gain99,
    /// The same of the median.
    Gain50,
    /// How many times as many messages all T tenants get as without isolation.
    RateGain,
    /// Bandwidth of all tenants together, of what it is without isolation.
    Kept,
    /// Bandwidth of the B tenants of the first one's host, of an even part of what all B tenants get.
    Even,
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
            Metric::Gain99 => "L p99, times better",
            Metric::Gain50 => "L median, times better",
            Metric::RateGain => "T, times better",
            Metric::Kept => "all, share of off",
            Metric::Even => "B, share of an even part",
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

/// What tenants got in one way, beside what they are.
#[derive(Clone, Copy)]
pub(super) struct Gots<'a> {
    pub loads: &'a [Load],
    pub got: &'a [Got],
}

impl<'a> Gots<'a> {
    fn of(self, class: Class) -> impl Iterator<Item = &'a Got> {
        self.loads.iter().zip(self.got).filter(move |(load, _)| load.class() == class).map(|(_, got)| got)
    }

    fn gbps(self) -> f64 {
        self.of(Class::Bandwidth).map(Got::gbps).sum()
    }

    fn million_per_sec(self) -> f64 {
        self.of(Class::MessageRate).map(Got::million_per_sec).sum()
    }

    /// Of all L tenants, what each takes here against what it takes there.
    fn ratios(self, to: Gots<'a>, percent: f64) -> impl Iterator<Item = f64> {
        let pairs = self.of(Class::Latency).zip(to.of(Class::Latency));
        pairs.map(move |(here, there)| here.percentile(percent) / there.percentile(percent))
    }
}

impl Metric {
    /// What it is alone: µs, Gb/s or million messages per second; NaN where that means nothing.
    pub(super) fn unit(self, alone: Gots<'_>) -> f64 {
        let first = |class| alone.of(class).next();
        match self {
            Metric::Latency99 | Metric::Gain99 => first(Class::Latency).map_or(f64::NAN, |got| got.percentile(99.0)),
            Metric::Latency50 | Metric::Gain50 => first(Class::Latency).map_or(f64::NAN, |got| got.percentile(50.0)),
            Metric::Bandwidth | Metric::Kept | Metric::Even => first(Class::Bandwidth).map_or(f64::NAN, Got::gbps),
            Metric::Rate | Metric::RateGain => first(Class::MessageRate).map_or(f64::NAN, Got::million_per_sec),
            Metric::Sum | Metric::Fairness | Metric::Between => f64::NAN,
        }
    }

    /// The figure of a shared run, beside what tenants got alone, and without isolation.
    pub(super) fn answer(self, alone: Gots<'_>, off: Gots<'_>, shared: Gots<'_>) -> f64 {
        let worst = |percent| shared.ratios(alone, percent).fold(0.0, f64::max);
        let gain = |percent| off.ratios(shared, percent).fold(f64::INFINITY, f64::min);
        match self {
            Metric::Latency99 => worst(99.0),
            Metric::Latency50 => worst(50.0),
            Metric::Gain99 => gain(99.0),
            Metric::Gain50 => gain(50.0),
            Metric::Bandwidth => shared.gbps() / self.unit(alone),
            Metric::Rate => shared.million_per_sec() / self.unit(alone),
            Metric::RateGain => shared.million_per_sec() / off.million_per_sec(),
            Metric::Sum => Metric::Bandwidth.answer(alone, off, shared) + Metric::Rate.answer(alone, off, shared),
            Metric::Fairness => {
                let parts: Vec<f64> = shared.got.iter().map(|got| got.bytes as f64).collect();
                parts.iter().sum::<f64>().powi(2) / (parts.len() as f64 * parts.iter().map(|part| part * part).sum::<f64>())
            }
            Metric::Between => shared.got[0].bytes as f64 / shared.got[1].bytes as f64,
            Metric::Kept => {
                let all = |gots: Gots<'_>| gots.got.iter().map(Got::gbps).sum::<f64>();
                all(shared) / all(off)
            }
            Metric::Even => {
                let all = shared.loads.iter().zip(shared.got).filter(|(load, _)| load.class() == Class::Bandwidth);
                let host = all.clone().next().map(|(load, _)| load.from);
                let of_host = all.clone().filter(|(load, _)| Some(load.from) == host);
                let part = of_host.clone().count() as f64 / all.count() as f64;
                of_host.map(|(_, got)| got.gbps()).sum::<f64>() / (part * shared.gbps())
            }
        }
    }
}
