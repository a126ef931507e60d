//! Which points are run: each scheme over working sets, over message sizes, and over numbers of devices.

use super::Scheme;
use super::dma::{Outcome, Point};
use super::params::Params;
use serde::Serialize;

/// What a sweep goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Over {
    /// Bytes that are written to.
    WorkingSet,
    /// Bytes of a message.
    Message,
    /// Virtual devices.
    Devices,
}

impl Over {
    /// All, in the order of tables.
    pub const ALL: [Over; 3] = [Over::WorkingSet, Over::Message, Over::Devices];

    /// The value of a point.
    pub fn of(self, point: &Point) -> u64 {
        match self {
            Over::WorkingSet => point.working_set,
            Over::Message => point.message,
            Over::Devices => point.devices,
        }
    }
}

/// A point of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Which sweep.
    pub over: Over,
    /// What came out.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// All points, sweep by sweep, value by value, scheme by scheme.
pub fn points(params: &Params) -> Vec<(Over, Point)> {
    let sweep = &params.sweep;
    let mib = |mib: u64| mib << 20;
    let at = Point {
        scheme: Scheme::Emtt,
        devices: sweep.at.devices,
        working_set: mib(sweep.at.working_set_mib),
        message: sweep.at.message_bytes,
    };
    // So that what is seen is not the ATC.
    let cached = params.nic.atc_entries.saturating_mul(params.iommu.page_bytes) / 2;
    let working_sets = sweep.working_set_mib.iter().map(|&n| (Over::WorkingSet, Point { working_set: mib(n), ..at }));
    let messages = sweep.message_bytes.iter().map(|&message| (Over::Message, Point { message, ..at }));
    let devices =
        sweep.devices.iter().map(|&devices| (Over::Devices, Point { devices, working_set: cached.min(at.working_set), ..at }));
    let all = working_sets.chain(messages).chain(devices);
    all.flat_map(|(over, point)| Scheme::ALL.map(|scheme| (over, Point { scheme, ..point }))).collect()
}
