//! What `bench pin` measured: the JSON object, and the same as a table.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::guest::Pages;
use crate::output::table;

/// State of the guest's memory when its VMM connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Baseline {
    /// No memory is there yet; it comes in pages of 4 KiB.
    #[serde(rename = "cold_4k")]
    Cold4k,
    /// No memory is there yet; it comes in pages of 2 MiB.
    #[serde(rename = "cold_huge")]
    ColdHuge,
    /// The VMM has made all of it resident before, in pages of 4 KiB.
    #[serde(rename = "prefaulted")]
    Prefaulted,
}

impl Baseline {
    /// All.
    pub const ALL: [Baseline; 3] = [Baseline::Cold4k, Baseline::ColdHuge, Baseline::Prefaulted];

    /// As in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            Baseline::Cold4k => "cold_4k",
            Baseline::ColdHuge => "cold_huge",
            Baseline::Prefaulted => "prefaulted",
        }
    }

    /// What the memory is made of.
    pub fn pages(self) -> Pages {
        if self == Baseline::ColdHuge { Pages::Huge } else { Pages::Small }
    }

    /// Whether it is resident at the start.
    pub fn is_prefaulted(self) -> bool {
        self == Baseline::Prefaulted
    }
}

/// The object that `bench pin --json` prints. Its names are an interface; new members may be added.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// A registration, and its end, in a block that is pinned already: median in nanoseconds.
    pub hit_ns_p50: f64,
    /// Pinning a block of 2 MiB that has no memory yet, in pages of 4 KiB: median in microseconds.
    pub block_us_p50: f64,
    /// Starts of guests.
    pub start: Vec<StartRow>,
    /// How it was measured.
    pub method: Method,
}

/// From the map that the VMM sends when it connects to the end of the first registration.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StartRow {
    /// Memory of the guest.
    pub guest_gib: u64,
    /// State of it at the start.
    pub baseline: Baseline,
    /// With all of it pinned first.
    pub full_ms: f64,
    /// With only what the registration names pinned.
    pub on_demand_ms: f64,
    /// How many times longer the former takes.
    pub ratio: f64,
}

impl StartRow {
    /// From two times.
    pub fn new(guest_gib: u64, baseline: Baseline, full: Duration, on_demand: Duration) -> StartRow {
        let [full_ms, on_demand_ms] = [full, on_demand].map(|time| time.as_secs_f64() * 1e3);
        StartRow { guest_gib, baseline, full_ms, on_demand_ms, ratio: full_ms / on_demand_ms }
    }
}

/// How it was measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Method {
    /// Bytes of the first registration.
    pub registration_bytes: u64,
    /// Whole guests are pinned in pieces of so many bytes: each is made, pinned, and given back before the next, so that no more
    /// is ever held. Times of the pieces are added up; making them and giving them back is not counted.
    pub piece_bytes: u64,
    /// Guests per row that start on demand, of which `on_demand_ms` is the median. Of these the memory is a sparse file of full
    /// length; with `prefaulted`, only what will be registered is resident.
    pub starts: usize,
    /// Messages between VMM and daemon are not counted, in either column.
    pub messages_counted: bool,
}

impl Method {
    /// With these numbers.
    pub fn new(piece_bytes: u64, registration_bytes: u64, starts: usize) -> Method {
        Method { registration_bytes, piece_bytes, starts, messages_counted: false }
    }
}

impl Report {
    /// As a table for people.
    pub fn tables(&self) -> String {
        let Method { registration_bytes, piece_bytes, starts, .. } = self.method;
        let mut text = format!(
            "Registration in a pinned block: {:.0} ns. Pinning a block of 2 MiB without memory: {:.0} µs.\n\n\
             From the VMM's map of a guest to its first registration ({} KiB). Whole guests are pinned in pieces of {} GiB, each\n\
             given back before the next; on demand is the median of {starts} guests:\n",
            self.hit_ns_p50,
            self.block_us_p50,
            registration_bytes >> 10,
            piece_bytes >> 30,
        );
        let rows = self.start.iter().map(|row| {
            [
                row.guest_gib.to_string(),
                row.baseline.name().to_owned(),
                format!("{:.1}", row.full_ms),
                format!("{:.3}", row.on_demand_ms),
                format!("{:.0}", row.ratio),
            ]
        });
        text += &table(["GUEST[GiB]", "MEMORY", "WHOLE[ms]", "ON DEMAND[ms]", "RATIO"], rows, &[0, 2, 3, 4]);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_names_are_the_interface() {
        let row = StartRow::new(16, Baseline::ColdHuge, Duration::from_secs(3), Duration::from_millis(2));
        let report = Report { hit_ns_p50: 90.0, block_us_p50: 1100.0, start: vec![row], ..Report::default() };
        let value = serde_json::to_value(&report).unwrap();
        let expected = serde_json::json!({"guest_gib": 16, "baseline": "cold_huge", "full_ms": 3000.0, "on_demand_ms": 2.0, "ratio": 1500.0});
        assert_eq!(value["start"][0], expected);
        assert_eq!((&value["hit_ns_p50"], &value["block_us_p50"]), (&90.0.into(), &1100.0.into()));
        assert!(report.tables().contains("1500"));
        for baseline in Baseline::ALL {
            assert_eq!(serde_json::to_value(baseline).unwrap(), baseline.name());
        }
    }
}
