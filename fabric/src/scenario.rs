//! A simulation as a user writes it down: a TOML file, read into plain values and checked before anything is built.
//!
//! Whoever wrote the file is told the name of the key that is wrong, what it is, and what it may be.

use crate::fault::FaultPlan;
use crate::memory::Payload;
use crate::queue::QueueRules;
use crate::topology::Shape;
use crate::workload::{MAX_TRANSFERS, Operation, Pattern};
use rnic::MultipathConfig;
use roce::Mtu;
use serde::{Deserialize, Serialize};
use spray::{Law, LossLimits, Policy};
use std::time::Duration;

/// Hosts of the largest fabric.
pub const MAX_HOSTS: u32 = 65_536;
/// Links of the largest fabric, all planes together.
const MAX_LINKS: u64 = 2_000_000;
/// Connections of all hosts.
pub(crate) const MAX_CONNECTIONS: usize = 1_000_000;
/// Delay that connections over many paths do not take for congestion.
const END_DELAY: Duration = Duration::from_micros(50);
/// Bytes of memory that hosts may have together when payload is real.
const MAX_REAL_BYTES: u64 = 1 << 30;

/// Why a scenario cannot be simulated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScenarioError {
    /// Not the TOML that a scenario is: the text says which line, and why.
    #[error("{0}")]
    Syntax(String),
    /// A value is out of range.
    #[error("{key} is {value}; it must be {wanted}")]
    Value {
        /// The key, with its tables.
        key: String,
        /// What was given.
        value: String,
        /// What is allowed.
        wanted: String,
    },
    /// A key is missing.
    #[error("{key} is missing: {why}")]
    Missing {
        /// The key, with its tables.
        key: &'static str,
        /// Who needs it.
        why: &'static str,
    },
    /// The trace is wrong.
    #[error(transparent)]
    Trace(#[from] crate::workload::TraceError),
}

/// Makes the error for a value out of range.
pub(crate) fn bad(key: impl Into<String>, value: impl ToString, wanted: impl Into<String>) -> ScenarioError {
    ScenarioError::Value { key: key.into(), value: value.to_string(), wanted: wanted.into() }
}

/// A simulation.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// Where all chance comes from.
    pub seed: u64,
    /// Simulated milliseconds after which a run that has not ended is given up.
    pub limit_ms: f64,
    /// Whether packets carry real bytes instead of tags.
    pub real_payload: bool,
    /// The network.
    pub topology: TopologyKeys,
    /// The switches' queues.
    pub queue: QueueKeys,
    /// Connections.
    pub transport: TransportKeys,
    /// How they use many paths; absent: each has one.
    pub spray: Option<SprayKeys>,
    /// Traffic.
    pub workload: WorkloadKeys,
    /// Faults.
    pub faults: FaultPlan,
    /// Measurements.
    pub report: ReportKeys,
}

impl Default for Scenario {
    fn default() -> Self {
        Scenario {
            seed: 1,
            limit_ms: 10_000.0,
            real_payload: false,
            topology: TopologyKeys::default(),
            queue: QueueKeys::default(),
            transport: TransportKeys::default(),
            spray: None,
            workload: WorkloadKeys::default(),
            faults: FaultPlan::default(),
            report: ReportKeys::default(),
        }
    }
}

/// Kinds of networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TopologyKind {
    /// Two tiers: `leaves`, `spines`, `hosts_per_leaf`.
    LeafSpine,
    /// Three tiers: `k`.
    FatTree,
}

/// The table `topology`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct TopologyKeys {
    /// Two tiers or three.
    pub kind: TopologyKind,
    /// Ports per switch of a fat tree.
    pub k: Option<u32>,
    /// Switches with hosts.
    pub leaves: Option<u32>,
    /// Switches above them.
    pub spines: Option<u32>,
    /// Hosts per leaf.
    pub hosts_per_leaf: Option<u32>,
    /// Networks of this kind side by side; every host has a port in each.
    pub planes: u32,
    /// Rate of all links.
    pub rate_gbps: f64,
    /// Delay of all links, switch included.
    pub delay_us: f64,
    /// IP version: 4 or 6.
    pub ip: u8,
}

impl Default for TopologyKeys {
    fn default() -> Self {
        TopologyKeys {
            kind: TopologyKind::LeafSpine,
            k: None,
            leaves: None,
            spines: None,
            hosts_per_leaf: None,
            planes: 1,
            rate_gbps: 100.0,
            delay_us: 1.0,
            ip: 4,
        }
    }
}

/// The table `queue`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueueKeys {
    /// Bytes that a port's queue holds. Without PFC only.
    pub limit_bytes: u32,
    /// Bytes from which packets may be marked.
    pub mark_low_bytes: Option<u32>,
    /// Bytes from which all packets are marked.
    pub mark_high_bytes: Option<u32>,
    /// Whether packets over the limit are cut to their headers.
    pub trim: bool,
    /// Whether packets without payload go first.
    pub control_first: bool,
    /// Bytes from one link, waiting in a switch, at which it asks the other end to pause (PFC). Absent: no PFC.
    pub pfc_pause_bytes: Option<u32>,
}

impl Default for QueueKeys {
    fn default() -> Self {
        QueueKeys {
            limit_bytes: 200_000,
            mark_low_bytes: None,
            mark_high_bytes: None,
            trim: false,
            control_first: false,
            pfc_pause_bytes: None,
        }
    }
}

/// The table `transport`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransportKeys {
    /// Path MTU.
    pub mtu: u32,
    /// ACK timeout of 4.096 µs x 2^n.
    pub ack_timeout: u8,
    /// How often a request is sent again before its connection fails.
    pub retries: u8,
}

impl Default for TransportKeys {
    fn default() -> Self {
        TransportKeys { mtu: 4096, ack_timeout: 6, retries: 7 }
    }
}

/// The table `spray`: all hosts are known to understand it, so that connections begin that way.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct SprayKeys {
    /// Paths of each connection: UDP source ports, which switches hash.
    pub paths: u16,
    /// How the path of a packet is chosen: a name of [`spray::Policy`].
    pub policy: String,
    /// The congestion window's law: `proportional`, our own, or `nscc`, Ultra Ethernet's.
    pub law: String,
    /// Packets of a connection from the oldest that is not acknowledged to the newest that was sent.
    pub window: u16,
    /// Packets of a connection in flight: sent, and neither acknowledged nor taken for lost.
    pub flight: u16,
    /// The least retransmission time-out, and the first.
    pub rto_us: u32,
}

impl Default for SprayKeys {
    fn default() -> Self {
        SprayKeys {
            paths: spray::DEFAULT_PATHS,
            policy: Policy::Mixed.name().to_owned(),
            law: "nscc".to_owned(),
            window: 256,
            flight: 64,
            rto_us: 250,
        }
    }
}

/// Which hosts take part, and in which order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// The first ones, in their order.
    #[default]
    InOrder,
    /// Any, in any order.
    Random,
}

/// The table `workload`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkloadKeys {
    /// Pattern.
    pub pattern: Pattern,
    /// Bytes per transfer; of the ring all-reduce, bytes to be reduced.
    pub bytes: u32,
    /// How many hosts take part; absent: all.
    pub hosts: Option<u32>,
    /// Which, and in which order.
    pub placement: Placement,
    /// Verb.
    pub operation: Operation,
    /// The trace's file, for that pattern.
    pub file: Option<String>,
}

impl Default for WorkloadKeys {
    fn default() -> Self {
        WorkloadKeys {
            pattern: Pattern::Permutation,
            bytes: 1 << 20,
            hosts: None,
            placement: Placement::InOrder,
            operation: Operation::Write,
            file: None,
        }
    }
}

/// The table `report`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReportKeys {
    /// Simulated time between two looks at queues and links; 0 for none.
    pub sample_us: f64,
}

impl Default for ReportKeys {
    fn default() -> Self {
        ReportKeys { sample_us: 10.0 }
    }
}

impl Scenario {
    /// Reads and checks a scenario. Names of nodes in faults are checked when the simulation is built.
    ///
    /// # Errors
    /// See [`ScenarioError`].
    pub fn parse(text: &str) -> Result<Scenario, ScenarioError> {
        let scenario: Scenario = toml::from_str(text).map_err(|error| ScenarioError::Syntax(syntax(text, &error)))?;
        scenario.check()?;
        Ok(scenario)
    }

    /// How the hosts' cores use many paths.
    ///
    /// # Errors
    /// A key of `spray` that is out of range.
    pub fn multipath(&self) -> Result<Option<MultipathConfig>, ScenarioError> {
        let Some(keys) = &self.spray else { return Ok(None) };
        integer("spray.paths", keys.paths.into(), 1, spray::MAX_PATHS as u64)?;
        integer("spray.window", keys.window.into(), 1, spray::MAX_WINDOW as u64)?;
        integer("spray.flight", keys.flight.into(), 1, spray::MAX_WINDOW as u64)?;
        integer("spray.rto_us", keys.rto_us.into(), 1, 1_000_000)?;
        let names = || Policy::ALL.map(Policy::name).join(", ");
        let policy = Policy::from_name(&keys.policy).ok_or_else(|| bad("spray.policy", &keys.policy, names()))?;
        let law = match keys.law.as_str() {
            "nscc" => Law::Nscc,
            "proportional" => Law::Proportional,
            other => return Err(bad("spray.law", other, "nscc or proportional")),
        };
        let rto = Duration::from_micros(keys.rto_us.into());
        let loss = LossLimits { rto_floor: rto, rto_start: rto, ..LossLimits::default() };
        Ok(Some(MultipathConfig {
            policy,
            paths: keys.paths,
            window: keys.window,
            flight: keys.flight,
            law,
            delay: END_DELAY,
            loss,
            agreed: true,
            trimmed: self.queue.trim,
        }))
    }

    /// Checks the values.
    ///
    /// # Errors
    /// The first one that is out of range.
    pub fn check(&self) -> Result<(), ScenarioError> {
        number("limit_ms", self.limit_ms, 0.001, 1e7)?;
        let shape = self.shape()?;
        let hosts = shape.hosts();
        let topology = &self.topology;
        integer("topology.planes", topology.planes.into(), 1, 8)?;
        let links = shape.links() * u64::from(topology.planes);
        if links > MAX_LINKS {
            return Err(bad("topology", format!("a network of {links} links"), format!("one of at most {MAX_LINKS}")));
        }
        number("topology.rate_gbps", topology.rate_gbps, 0.001, 10_000.0)?;
        number("topology.delay_us", topology.delay_us, 0.0, 1e6)?;
        if ![4, 6].contains(&topology.ip) {
            return Err(bad("topology.ip", topology.ip, "4 or 6"));
        }
        self.mtu()?;
        self.check_queue()?;
        integer("transport.ack_timeout", self.transport.ack_timeout.into(), 1, 31)?;
        integer("transport.retries", self.transport.retries.into(), 0, 7)?;
        self.multipath()?;
        self.check_workload(hosts)?;
        if self.report.sample_us != 0.0 {
            number("report.sample_us", self.report.sample_us, 0.01, 1e9)?;
        }
        self.faults.check()?;
        if self.faults.corruption > 0.0 && topology.ip == 4 {
            // The ICRC over IPv4 leaves fields open that a receiver does not see.
            return Err(bad(
                "topology.ip",
                4,
                "6 with faults.corruption, as the ICRC over IPv4 does not find every flipped bit",
            ));
        }
        Ok(())
    }

    fn check_queue(&self) -> Result<(), ScenarioError> {
        let queue = &self.queue;
        let frame = u64::from(self.transport.mtu) + 150;
        integer("queue.limit_bytes", queue.limit_bytes.into(), frame, 1 << 30)?;
        match (queue.mark_low_bytes, queue.mark_high_bytes) {
            (None, None) => {}
            (Some(low), Some(high)) => {
                integer("queue.mark_low_bytes", low.into(), 0, (1 << 30) - 1)?;
                integer("queue.mark_high_bytes", high.into(), u64::from(low) + 1, 1 << 30)?;
            }
            (Some(_), None) => {
                return Err(ScenarioError::Missing { key: "queue.mark_high_bytes", why: "mark_low_bytes is given" });
            }
            (None, Some(_)) => {
                return Err(ScenarioError::Missing { key: "queue.mark_low_bytes", why: "mark_high_bytes is given" });
            }
        }
        if let Some(pause) = queue.pfc_pause_bytes {
            integer("queue.pfc_pause_bytes", pause.into(), 2 * frame, 1 << 28)?;
            if queue.trim {
                return Err(bad("queue.trim", true, "false with queue.pfc_pause_bytes, as nothing is over a limit then"));
            }
        }
        Ok(())
    }

    fn check_workload(&self, hosts: u32) -> Result<(), ScenarioError> {
        let workload = &self.workload;
        integer("workload.bytes", workload.bytes.into(), 0, 1 << 31)?;
        let n = workload.hosts.unwrap_or(hosts);
        integer("workload.hosts", n.into(), 2, hosts.into())?;
        let n = u64::from(n);
        let count = match workload.pattern {
            Pattern::Permutation | Pattern::Incast => n,
            Pattern::AllToAll => n * (n - 1),
            Pattern::RingAllReduce => 2 * n * (n - 1),
            Pattern::TreeAllReduce => 2 * n,
            Pattern::Trace => 0,
        };
        integer("workload.hosts (as a number of transfers)", count, 0, MAX_TRANSFERS as u64)?;
        match (workload.pattern, &workload.file) {
            (Pattern::Trace, None) => Err(ScenarioError::Missing { key: "workload.file", why: "the pattern is a trace" }),
            (Pattern::Trace, Some(_)) | (_, None) => Ok(()),
            (_, Some(file)) => Err(bad("workload.file", file, "absent unless workload.pattern is \"trace\"")),
        }
    }

    /// Checks how much memory the hosts need.
    pub(crate) fn check_memory(&self, total: u64) -> Result<(), ScenarioError> {
        if self.real_payload && total > MAX_REAL_BYTES {
            return Err(bad("real_payload", true, format!("false with {total} bytes to be held, more than {MAX_REAL_BYTES}")));
        }
        Ok(())
    }

    /// The network's shape.
    ///
    /// # Errors
    /// A key that is missing, does not belong to the kind, or is out of range.
    pub fn shape(&self) -> Result<Shape, ScenarioError> {
        let TopologyKeys { kind, k, leaves, spines, hosts_per_leaf, .. } = self.topology;
        let unused =
            |key: &str, value: Option<u32>| value.map_or(Ok(()), |n| Err(bad(key, n, "absent for this topology.kind")));
        let shape = match kind {
            TopologyKind::FatTree => {
                unused("topology.leaves", leaves)?;
                unused("topology.spines", spines)?;
                unused("topology.hosts_per_leaf", hosts_per_leaf)?;
                let k = k.ok_or(ScenarioError::Missing { key: "topology.k", why: "a fat-tree has switches of K ports" })?;
                integer("topology.k", k.into(), 2, 64)?;
                if k % 2 != 0 {
                    return Err(bad("topology.k", k, "even"));
                }
                Shape::FatTree { k }
            }
            TopologyKind::LeafSpine => {
                unused("topology.k", k)?;
                let get = |key: &'static str, value: Option<u32>| -> Result<u32, ScenarioError> {
                    let value = value.ok_or(ScenarioError::Missing { key, why: "a leaf-spine network has so many" })?;
                    integer(key, value.into(), 1, 4096)?;
                    Ok(value)
                };
                Shape::LeafSpine {
                    leaves: get("topology.leaves", leaves)?,
                    spines: get("topology.spines", spines)?,
                    hosts_per_leaf: get("topology.hosts_per_leaf", hosts_per_leaf)?,
                }
            }
        };
        if !(2..=MAX_HOSTS).contains(&shape.hosts()) {
            return Err(bad("topology", format!("a network of {} hosts", shape.hosts()), format!("one of 2 to {MAX_HOSTS}")));
        }
        Ok(shape)
    }

    /// The path MTU.
    ///
    /// # Errors
    /// If there is no such one.
    pub fn mtu(&self) -> Result<Mtu, ScenarioError> {
        let mtu = self.transport.mtu;
        let found = Mtu::ALL.into_iter().find(|known| known.bytes() == mtu as usize);
        found.ok_or_else(|| bad("transport.mtu", mtu, "256, 512, 1024, 2048 or 4096"))
    }

    /// What queues of switches are like.
    pub fn queue_rules(&self) -> QueueRules {
        let queue = &self.queue;
        // With PFC the room is counted per incoming link instead.
        let limit = if queue.pfc_pause_bytes.is_some() { 1 << 30 } else { queue.limit_bytes };
        let mark = queue.mark_low_bytes.zip(queue.mark_high_bytes);
        QueueRules { limit, mark, trim: queue.trim, control_first: queue.control_first }
    }

    /// What packets carry.
    pub fn payload(&self) -> Payload {
        if self.real_payload { Payload::Real } else { Payload::Synthetic }
    }
}

/// An error of the TOML reader in one line: where, the line itself, and what is wrong with it.
pub(crate) fn syntax(text: &str, error: &toml::de::Error) -> String {
    const SHOWN: usize = 60;
    let reason = error.message().lines().collect::<Vec<_>>().join(" ");
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else { return reason };
    let number = before.matches('\n').count();
    let line: String = text.lines().nth(number).unwrap_or_default().trim().chars().take(SHOWN).collect();
    format!("line {}, {line:?}: {reason}", number + 1)
}

/// Checks a number; one that is none (NaN) is in no range.
pub(crate) fn number(key: &str, value: f64, least: f64, most: f64) -> Result<(), ScenarioError> {
    if (least..=most).contains(&value) { Ok(()) } else { Err(bad(key, value, format!("from {least} to {most}"))) }
}

pub(crate) fn integer(key: &str, value: u64, least: u64, most: u64) -> Result<(), ScenarioError> {
    if (least..=most).contains(&value) { Ok(()) } else { Err(bad(key, value, format!("from {least} to {most}"))) }
}
