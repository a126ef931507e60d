//! How large and how fast everything is: a TOML file over the built-in one, `default.toml`, where each value has its reason.

use crate::scenario::{ScenarioError, bad, integer, number, syntax};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

const BUILT_IN: &str = include_str!("default.toml");
/// Bounds that keep a run within seconds.
const MAX_COUNT: u64 = 1 << 20;
const MAX_MIB: u64 = 1 << 20;
const MAX_MESSAGE: u64 = 64 << 20;

/// All parameters. Their meaning and unit: see `default.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the built-in file says it")]
pub struct Params {
    pub network: Network,
    pub link: Link,
    pub tree: Tree,
    pub switch: Switch,
    pub root: Root,
    pub iommu: Iommu,
    pub nic: Nic,
    pub sweep: Sweep,
}

macro_rules! tables {
    ($($(#[$doc:meta])* $name:ident { $($key:ident: $kind:ty),* })*) => { $(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(missing_docs, reason = "the built-in file says it")]
        pub struct $name { $(pub $key: $kind),* }
    )* };
}

tables! {
    /// The table `network`.
    Network { gbps: f64 }
    /// The table `link`.
    Link { gbps: f64, hop_ns: u64, tlp_payload_bytes: u32, tlp_overhead_bytes: u32 }
    /// The table `tree`.
    Tree { switches: u64, gpus_per_switch: u64 }
    /// The table `switch`.
    Switch { lut_bdfs: u64 }
    /// The table `root`.
    Root { peer_gbps: f64 }
    /// The table `iommu`.
    Iommu { page_bytes: u64, tlb_entries: u64, walkers: u64, walk_ns: u64 }
    /// The table `nic`.
    Nic { atc_entries: u64, ats_requests: u64, pieces: u64, message_ns: u64 }
    /// The table `sweep`.
    Sweep { working_set_mib: Vec<u64>, message_bytes: Vec<u64>, devices: Vec<u64>, at: At }
    /// The table `sweep.at`.
    At { working_set_mib: u64, message_bytes: u64, devices: u64 }
}

impl Default for Params {
    fn default() -> Params {
        Params::parse("").expect("the built-in parameters are sound")
    }
}

impl Params {
    /// The built-in parameters with what a file changes of them.
    ///
    /// # Errors
    /// Not TOML, a key that there is not, or a value out of range.
    pub fn parse(text: &str) -> Result<Params, ScenarioError> {
        let wrong = |text, error| ScenarioError::Syntax(syntax(text, &error));
        let mut all: Table = BUILT_IN.parse().map_err(|error| wrong(BUILT_IN, error))?;
        overlay(&mut all, text.parse().map_err(|error| wrong(text, error))?);
        let params: Params = all.try_into().map_err(|error| wrong(text, error))?;
        params.check()?;
        Ok(params)
    }

    fn check(&self) -> Result<(), ScenarioError> {
        let Params { network, link, tree, switch, root, iommu, nic, sweep } = self;
        for (key, gbps) in [("network.gbps", network.gbps), ("link.gbps", link.gbps), ("root.peer_gbps", root.peer_gbps)] {
            number(key, gbps, 1.0, 100_000.0)?;
        }
        integer("link.hop_ns", link.hop_ns, 0, 1_000_000)?;
        integer("link.tlp_payload_bytes", link.tlp_payload_bytes.into(), 64, 4096)?;
        integer("link.tlp_overhead_bytes", link.tlp_overhead_bytes.into(), 0, 4096)?;
        integer("tree.switches", tree.switches, 1, 64)?;
        integer("tree.gpus_per_switch", tree.gpus_per_switch, 1, 64)?;
        integer("switch.lut_bdfs", switch.lut_bdfs, 0, MAX_COUNT)?;
        integer("iommu.page_bytes", iommu.page_bytes, 4096, 1 << 30)?;
        if !iommu.page_bytes.is_power_of_two() {
            return Err(bad("iommu.page_bytes", iommu.page_bytes, "a power of two"));
        }
        integer("iommu.tlb_entries", iommu.tlb_entries, 1, MAX_COUNT)?;
        integer("iommu.walkers", iommu.walkers, 1, 1024)?;
        integer("iommu.walk_ns", iommu.walk_ns, 0, 1_000_000)?;
        integer("nic.atc_entries", nic.atc_entries, 1, MAX_COUNT)?;
        integer("nic.ats_requests", nic.ats_requests, 1, 1024)?;
        integer("nic.pieces", nic.pieces, 1, 65_536)?;
        integer("nic.message_ns", nic.message_ns, 0, 1_000_000)?;
        let list = |key: &str, values: &[u64], most: u64| {
            integer(&format!("the number of {key}"), values.len() as u64, 1, 64)?;
            values.iter().try_for_each(|&value| integer(key, value, 1, most))
        };
        list("sweep.working_set_mib", &sweep.working_set_mib, MAX_MIB)?;
        list("sweep.message_bytes", &sweep.message_bytes, MAX_MESSAGE)?;
        list("sweep.devices", &sweep.devices, 65_536)?;
        integer("sweep.at.working_set_mib", sweep.at.working_set_mib, 1, MAX_MIB)?;
        integer("sweep.at.message_bytes", sweep.at.message_bytes, 1, MAX_MESSAGE)?;
        integer("sweep.at.devices", sweep.at.devices, 1, 65_536)
    }
}

/// Puts what `over` has into `all`, table by table.
fn overlay(all: &mut Table, over: Table) {
    for (key, value) in over {
        match (all.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => overlay(below, above),
            (_, value) => {
                all.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_changes_what_it_names() {
        let params = Params::parse("[nic]\natc_entries = 64\n[sweep.at]\ndevices = 3").expect("sound");
        let mut expected = Params::default();
        expected.nic.atc_entries = 64;
        expected.sweep.at.devices = 3;
        assert_eq!(params, expected);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("[nic]\natc_entries = 0", "nic.atc_entries is 0; it must be from 1"),
            ("[nic]\nspeed = 1", "speed"),
            ("[iommu]\npage_bytes = 5000", "a power of two"),
            ("[network]\ngbps = nan", "network.gbps"),
            ("[sweep]\ndevices = []", "the number of sweep.devices is 0"),
            ("[sweep]\nmessage_bytes = [64, 0]", "sweep.message_bytes is 0"),
            ("network = 3", "expected struct Network"),
            ("[", "line 1"),
        ] {
            let error = Params::parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
