//! What `bench isolation` measured: the JSON object, and the same as tables.

use serde::Serialize;

use super::programs::{Latency, SIZES};
use crate::args::BenchIsolationOptions;
use crate::demo::median;
use crate::output::table;

/// How turns were given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// As on a card without isolation.
    Off,
    /// Justitia.
    Justitia,
    /// Ours.
    Vrdma,
}

impl Policy {
    /// As in the JSON.
    fn name(self) -> &'static str {
        match self {
            Policy::Off => "off",
            Policy::Justitia => "justitia",
            Policy::Vrdma => "vrdma",
        }
    }
}

/// One measurement of both tenants.
#[derive(Clone, Copy, Debug)]
pub struct Arm {
    /// Of the latency tenant.
    pub latency: Latency,
    /// Of the bulk tenant: RoCE packets, BTH to ICRC.
    pub bulk_bits_per_sec: f64,
}

/// All measurements.
pub struct Report {
    /// Each tenant with the link to itself, by round.
    pub alone: Vec<Arm>,
    shared: Vec<(Policy, Arm)>,
    /// How exactly highest rates were kept.
    pub rates: Vec<RateRow>,
    method: Method,
}

/// The object that `bench isolation --json` prints. Its names are an interface; new members may be added.
#[derive(Clone, Debug, Serialize)]
pub struct Rows {
    alone: Row,
    rows: Vec<SharedRow>,
    rates: Vec<RateRow>,
    method: Method,
}

/// Medians over the rounds.
#[derive(Clone, Debug, Serialize)]
struct Row {
    p50_us: f64,
    p99_us: f64,
    bulk_bits_per_sec: f64,
}

/// Medians over the rounds, of the figures and of their ratios to those of the same round alone.
#[derive(Clone, Debug, Serialize)]
struct SharedRow {
    policy: Policy,
    #[serde(flatten)]
    row: Row,
    p50_ratio: f64,
    p99_ratio: f64,
    bulk_share: f64,
}

/// How exactly a highest rate was kept over single seconds.
#[derive(Clone, Debug, Serialize)]
pub struct RateRow {
    /// The rate.
    pub rate_bits_per_sec: u64,
    /// Mean deviation from it, in percent; above 0: too much was sent.
    pub mean_error_percent: f64,
    /// The largest deviation of a second, in percent, without its sign.
    pub worst_error_percent: f64,
    /// Seconds measured.
    pub seconds: usize,
}

impl RateRow {
    /// From the deviation of each second; of at least one.
    pub fn new(rate_bits_per_sec: u64, errors_percent: &[f64]) -> RateRow {
        RateRow {
            rate_bits_per_sec,
            mean_error_percent: errors_percent.iter().sum::<f64>() / errors_percent.len() as f64,
            worst_error_percent: errors_percent.iter().map(|error| error.abs()).fold(0.0, f64::max),
            seconds: errors_percent.len(),
        }
    }
}

/// How it was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Method {
    link_bits_per_sec: u64,
    latency_message_bytes: u32,
    bulk_message_bytes: u32,
    rounds: u32,
    seconds: u64,
    /// Each host had a processor core to itself, with its daemon and its programs.
    core_per_host: bool,
}

impl Method {
    /// By these options.
    pub fn new(options: &BenchIsolationOptions, core_per_host: bool) -> Method {
        Method {
            link_bits_per_sec: options.link_rate,
            latency_message_bytes: SIZES[0],
            bulk_message_bytes: SIZES[1],
            rounds: options.rounds,
            seconds: options.seconds,
            core_per_host,
        }
    }
}

impl Row {
    fn of(arms: &[Arm]) -> Row {
        let middle = |value: fn(&Arm) -> f64| median(&mut arms.iter().map(value).collect::<Vec<_>>());
        Row {
            p50_us: middle(|arm| arm.latency.p50_us),
            p99_us: middle(|arm| arm.latency.p99_us),
            bulk_bits_per_sec: middle(|arm| arm.bulk_bits_per_sec),
        }
    }
}

impl Report {
    /// Nothing is measured yet.
    pub fn new(method: Method) -> Report {
        Report { alone: Vec::new(), shared: Vec::new(), rates: Vec::new(), method }
    }

    /// What both did in this round.
    pub fn add(&mut self, policy: Policy, arm: Arm) {
        self.shared.push((policy, arm));
    }

    /// Medians.
    pub fn rows(&self) -> Rows {
        let row = |policy| {
            let of_policy = self.shared.iter().filter(|(other, _)| *other == policy);
            let arms: Vec<Arm> = of_policy.map(|&(_, arm)| arm).collect();
            let ratio = |value: fn(&Arm) -> f64| {
                median(&mut arms.iter().zip(&self.alone).map(|(arm, alone)| value(arm) / value(alone)).collect::<Vec<_>>())
            };
            SharedRow {
                policy,
                row: Row::of(&arms),
                p50_ratio: ratio(|arm| arm.latency.p50_us),
                p99_ratio: ratio(|arm| arm.latency.p99_us),
                bulk_share: ratio(|arm| arm.bulk_bits_per_sec),
            }
        };
        Rows {
            alone: Row::of(&self.alone),
            rows: [Policy::Off, Policy::Justitia, Policy::Vrdma].into_iter().map(row).collect(),
            rates: self.rates.clone(),
            method: self.method.clone(),
        }
    }
}

impl Rows {
    /// As tables for people.
    pub fn tables(&self) -> String {
        let Method { link_bits_per_sec, rounds, .. } = self.method;
        let figures = |row: &Row| {
            [format!("{:.1}", row.p50_us), format!("{:.1}", row.p99_us), format!("{:.3}", row.bulk_bits_per_sec / 1e9)]
        };
        let mut rows = Vec::new();
        let [p50, p99, bulk] = figures(&self.alone);
        rows.push(["alone".to_owned(), p50, p99, "1".to_owned(), "1".to_owned(), bulk, "1".to_owned()]);
        for shared in &self.rows {
            let [p50, p99, bulk] = figures(&shared.row);
            let [p50_ratio, p99_ratio, share] =
                [shared.p50_ratio, shared.p99_ratio, shared.bulk_share].map(|ratio| format!("{ratio:.2}"));
            rows.push([shared.policy.name().to_owned(), p50, p99, p50_ratio, p99_ratio, bulk, share]);
        }
        let mut text = format!(
            "ib_write_lat ({} bytes) beside ib_write_bw (1 MiB) on a link of {} Gbit/s: latency one way, and what either has of its own \
             when alone. Medians of {rounds} rounds.\n\n",
            SIZES[0],
            link_bits_per_sec as f64 / 1e9,
        );
        let header = ["ISOLATION", "P50 µs", "P99 µs", "P50/ALONE", "P99/ALONE", "BULK Gbit/s", "SHARE"];
        text.push_str(&table(header, rows, &[1, 2, 3, 4, 5, 6]));
        text.push_str("\nHighest rates, over single seconds:\n\n");
        let rates = self.rates.iter().map(|row| {
            [
                format!("{}", row.rate_bits_per_sec as f64 / 1e6),
                format!("{:+.2} %", row.mean_error_percent),
                format!("{:.2} %", row.worst_error_percent),
            ]
        });
        text.push_str(&table(["RATE Mbit/s", "MEAN ERROR", "WORST SECOND"], rates, &[0, 1, 2]));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_deviate_by_their_worst_second() {
        let row = RateRow::new(1, &[0.5, -2.0, 0.0]);
        assert_eq!((row.mean_error_percent, row.worst_error_percent, row.seconds), (-0.5, 2.0, 3));
    }
}
