//! Results as people and programs read them: perftest's columns and units, or JSON.

use serde::Serialize;
use serde_json::{Value, json};

use crate::bandwidth::Bandwidth;
use crate::latency::Latency;

/// Bytes of perftest's MB.
const MB: f64 = 1_048_576.0;

/// One line of a result table.
#[derive(Clone, Debug)]
pub enum Row {
    /// Of a bandwidth benchmark.
    Bandwidth(Bandwidth),
    /// Of a latency benchmark.
    Latency(Latency),
}

impl Row {
    /// The titles of the columns.
    pub fn header(&self) -> &'static str {
        match self {
            Row::Bandwidth(_) => " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]",
            Row::Latency(_) => {
                " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
                 99% percentile[usec]   99.9% percentile[usec]"
            }
        }
    }

    /// The values below them.
    pub fn line(&self) -> String {
        match self {
            Row::Bandwidth(result) => {
                let mb = f64::from(result.size) / MB;
                format!(
                    " {:<10} {:<14} {:<18.2} {:<20.2} {:.6}",
                    result.size,
                    result.iterations,
                    result.peak_per_sec * mb,
                    result.messages_per_sec() * mb,
                    result.messages_per_sec() / 1e6
                )
            }
            Row::Latency(result) => {
                let times = Times::of(result);
                format!(
                    " {:<6} {:<14} {:<14.2} {:<12.2} {:<16.2} {:<14.2} {:<15.2} {:<22.2} {:.2}",
                    result.size,
                    result.histogram.len(),
                    times.t_min_us,
                    times.t_max_us,
                    times.t_typical_us,
                    times.t_avg_us,
                    times.t_stdev_us,
                    times.p99_us,
                    times.p99_9_us
                )
            }
        }
    }

    /// The same as a JSON object.
    pub fn json(&self) -> Value {
        match self {
            Row::Bandwidth(result) => json!({
                "size_bytes": result.size,
                "iterations": result.iterations,
                "gbytes_per_sec": result.bytes_per_sec() / 1e9,
                "peak_gbytes_per_sec": result.peak_per_sec * f64::from(result.size) / 1e9,
                "million_per_sec": result.messages_per_sec() / 1e6,
            }),
            Row::Latency(result) => {
                let mut value = json!(Times::of(result));
                value["size_bytes"] = json!(result.size);
                value["iterations"] = json!(result.histogram.len());
                value
            }
        }
    }
}

/// What perftest says of a latency run, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Times {
    t_min_us: f64,
    t_max_us: f64,
    t_typical_us: f64,
    t_avg_us: f64,
    t_stdev_us: f64,
    p99_us: f64,
    p99_9_us: f64,
}

impl Times {
    /// From the single times.
    pub fn of(latency: &Latency) -> Times {
        let histogram = &latency.histogram;
        Times {
            t_min_us: histogram.min() as f64 / 1000.0,
            t_max_us: histogram.max() as f64 / 1000.0,
            t_typical_us: latency.quantile_us(0.5),
            t_avg_us: histogram.mean() / 1000.0,
            t_stdev_us: histogram.stdev() / 1000.0,
            p99_us: latency.quantile_us(0.99),
            p99_9_us: latency.quantile_us(0.999),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_perftests() {
        let row = Row::Bandwidth(Bandwidth { size: 65536, iterations: 1600, seconds: 0.1, peak_per_sec: 32000.0 });
        let words: Vec<String> = row.line().split_whitespace().map(str::to_owned).collect();
        assert_eq!(words, ["65536", "1600", "2000.00", "1000.00", "0.016000"]);
        assert_eq!(row.json()["gbytes_per_sec"], 1.048576);
    }

    #[test]
    fn latency_rows_have_nine_columns() {
        let mut histogram = hdrhistogram::Histogram::new(3).unwrap();
        histogram.record_n(1000, 99).unwrap();
        histogram.record(2000).unwrap();
        let row = Row::Latency(Latency { size: 8, histogram });
        let words: Vec<String> = row.line().split_whitespace().map(str::to_owned).collect();
        assert_eq!(words.len(), 9);
        assert_eq!(words[..5], ["8", "100", "1.00", "2.00", "1.00"]);
    }
}
