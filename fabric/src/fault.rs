//! What goes wrong, and when: chances for every packet on every link, and planned faults of single links and switches.

use crate::scenario::{ScenarioError, bad, number};
use crate::time::{Time, micros};
use crate::topology::{Node, Topology};
use roce::rng::Rng;
use serde::{Deserialize, Serialize};

/// Times that one link may fail, and all together.
const MAX_TIMES: u32 = 10_000;
const MAX_FAILURES: u64 = 1_000_000;

/// The table `faults`. Chances are per packet and link.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultPlan {
    /// Chance that a packet is lost.
    pub loss: f64,
    /// Chance that one bit of a packet is flipped.
    pub corruption: f64,
    /// Chance that a packet is late, and may be overtaken.
    pub delay: f64,
    /// How late at most.
    pub delay_max_us: f64,
    /// How long it takes until all switches know that a link is down or up again. Until then, and for ever if this is absent,
    /// only the switches at its ends do.
    pub reroute_us: Option<f64>,
    /// Links that fail or become slow.
    pub link: Vec<LinkFault>,
    /// Switches that die.
    pub switch: Vec<SwitchFault>,
}

/// An entry of `faults.link`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LinkFault {
    /// The nodes at its ends: `["leaf0", "spine1"]`, `["host3", "leaf0@1"]`.
    pub between: [String; 2],
    /// When it begins.
    #[serde(default)]
    pub from_us: f64,
    /// When it ends; absent: never.
    pub to_us: Option<f64>,
    /// The part of its rate that is left; absent: none, the link is down.
    pub rate: Option<f64>,
    /// How often this happens; absent: once.
    pub times: Option<u32>,
    /// From the beginning of one to that of the next.
    pub every_us: Option<f64>,
}

/// An entry of `faults.switch`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchFault {
    /// The switch: `"core3"`.
    pub name: String,
    /// When it dies.
    pub at_us: f64,
}

/// A step of a planned fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// The link of this wire, both directions, stops.
    Down(u32),
    /// It works again.
    Up(u32),
    /// It has this part of its rate.
    Rate(u32, f64),
}

impl FaultPlan {
    /// Whether each packet needs a look.
    pub fn has_chances(&self) -> bool {
        self.loss > 0.0 || self.corruption > 0.0 || self.delay > 0.0
    }

    /// Checks the values; names of nodes are checked by [`Self::schedule`].
    ///
    /// # Errors
    /// The first value that is out of range.
    pub fn check(&self) -> Result<(), ScenarioError> {
        number("faults.loss", self.loss, 0.0, 1.0)?;
        number("faults.corruption", self.corruption, 0.0, 1.0)?;
        number("faults.delay", self.delay, 0.0, 1.0)?;
        number("faults.delay_max_us", self.delay_max_us, 0.0, 1e6)?;
        number("faults.reroute_us", self.reroute_us.unwrap_or(0.0), 0.0, 1e9)?;
        for (n, fault) in self.link.iter().enumerate() {
            let key = |name: &str| format!("faults.link[{n}].{name}");
            number(&key("from_us"), fault.from_us, 0.0, 1e9)?;
            if let Some(to) = fault.to_us {
                number(&key("to_us"), to, fault.from_us, 1e9)?;
            }
            if let Some(rate) = fault.rate {
                number(&key("rate"), rate, 1e-6, 1.0)?;
            }
            let times = fault.times.unwrap_or(1);
            number(&key("times"), times.into(), 1.0, MAX_TIMES.into())?;
            if times > 1 {
                let Some(to) = fault.to_us else {
                    return Err(bad(key("times"), times, "1 without to_us, as the fault never ends"));
                };
                let every = fault.every_us.unwrap_or(f64::NAN);
                number(&key("every_us"), every, to - fault.from_us, 1e9)?;
            }
        }
        let failures: u64 = self.link.iter().map(|fault| u64::from(fault.times.unwrap_or(1))).sum();
        if failures > MAX_FAILURES {
            return Err(bad("faults.link", format!("a list of {failures} failures"), format!("one of at most {MAX_FAILURES}")));
        }
        for (n, fault) in self.switch.iter().enumerate() {
            number(&format!("faults.switch[{n}].at_us"), fault.at_us, 0.0, 1e9)?;
        }
        Ok(())
    }

    /// What happens when, in no order.
    ///
    /// # Errors
    /// A node or link that does not exist.
    pub fn schedule(&self, topology: &Topology) -> Result<Vec<(Time, Action)>, ScenarioError> {
        let mut steps = Vec::new();
        for (n, fault) in self.link.iter().enumerate() {
            let key = format!("faults.link[{n}].between");
            let wire = find_link(topology, &key, &fault.between)?;
            let (begin, end) = match fault.rate {
                None => (Action::Down(wire), Action::Up(wire)),
                Some(rate) => (Action::Rate(wire, rate), Action::Rate(wire, 1.0)),
            };
            for time in 0..fault.times.unwrap_or(1) {
                let shift = fault.every_us.unwrap_or(0.0) * f64::from(time);
                steps.push((Time::from_ps(micros(fault.from_us + shift)), begin));
                if let Some(to) = fault.to_us {
                    steps.push((Time::from_ps(micros(to + shift)), end));
                }
            }
        }
        for (n, fault) in self.switch.iter().enumerate() {
            let Some(node @ Node::Switch(_)) = topology.find(&fault.name) else {
                let wanted = format!("a switch, such as {:?}", topology.name(Node::Switch(0)).to_string());
                return Err(bad(format!("faults.switch[{n}].name"), format!("{:?}", fault.name), wanted));
            };
            // A dead switch is one whose links are all down.
            let at = Time::from_ps(micros(fault.at_us));
            let wires = (0_u32..).zip(&topology.wires).filter(|(_, wire)| wire.from == node);
            steps.extend(wires.map(|(wire, _)| (at, Action::Down(wire))));
        }
        Ok(steps)
    }

    /// A plan by chance for this network: of each kind of fault some plans have none. `span_us` is how long the run takes without
    /// faults, about.
    pub fn swarm(rng: &mut Rng, topology: &Topology, span_us: f64) -> FaultPlan {
        let mut plan = FaultPlan::default();
        let unit = |rng: &mut Rng| rng.below(1 << 20) as f64 / f64::from(1 << 20);
        let one_of = |rng: &mut Rng, n| rng.below(n) == 0;
        if one_of(rng, 2) {
            plan.loss = 0.02 * unit(rng) * unit(rng);
        }
        if one_of(rng, 3) {
            plan.corruption = 0.01 * unit(rng) * unit(rng);
        }
        if one_of(rng, 3) {
            plan.delay = 0.05 * unit(rng);
            plan.delay_max_us = 20.0 * unit(rng);
        }
        if one_of(rng, 2) {
            plan.reroute_us = Some(span_us * unit(rng));
        }
        let links = if one_of(rng, 2) { rng.below(4) } else { 0 };
        for _ in 0..links {
            let wire = topology.wires[rng.below(topology.wires.len() as u64) as usize];
            let from_us = span_us * unit(rng);
            let lasts = span_us * unit(rng);
            let is_flap = one_of(rng, 3);
            plan.link.push(LinkFault {
                between: [wire.from, wire.to].map(|node| topology.name(node).to_string()),
                from_us,
                // Some never end.
                to_us: (is_flap || !one_of(rng, 4)).then_some(from_us + lasts),
                rate: one_of(rng, 3).then(|| 0.05 + 0.9 * unit(rng)),
                times: is_flap.then(|| 2 + rng.below(5) as u32),
                every_us: is_flap.then(|| lasts * (1.0 + unit(rng)) + 0.1),
            });
        }
        if one_of(rng, 8) {
            let node = Node::Switch(rng.below(topology.switches.len() as u64) as u32);
            plan.switch.push(SwitchFault { name: topology.name(node).to_string(), at_us: span_us * unit(rng) });
        }
        plan
    }
}

fn find_link(topology: &Topology, key: &str, names: &[String; 2]) -> Result<u32, ScenarioError> {
    let find = |name: &str| {
        let node = topology.find(name);
        node.ok_or_else(|| bad(key, format!("{name:?}"), "names of nodes of this network, such as \"host0\" and \"leaf0\""))
    };
    let (from, to) = (find(&names[0])?, find(&names[1])?);
    topology
        .wire_between(from, to)
        .ok_or_else(|| bad(key, format!("{names:?}"), "two nodes, of one plane, with a link between them"))
}
