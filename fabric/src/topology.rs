//! Clos networks: which switches there are, which links, and which hosts lie below each port.
//!
//! Hosts are numbered from 0, and the hosts below a switch are a range of numbers, so that a route downwards is a division and
//! needs no table. A plane is a network of its own; each host has a port in every plane.

use serde::Serialize;
use std::fmt;
use std::ops::Range;

/// A network to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Two tiers: every leaf has a link to every spine.
    LeafSpine {
        /// Switches with hosts.
        leaves: u32,
        /// Switches above them.
        spines: u32,
        /// Hosts per leaf.
        hosts_per_leaf: u32,
    },
    /// Three tiers of switches with K ports: K pods of K/2 leaves and K/2 aggregation switches, (K/2)^2 cores, K^3/4 hosts.
    FatTree {
        /// Ports per switch, an even number.
        k: u32,
    },
}

impl Shape {
    /// How many hosts it has.
    pub fn hosts(self) -> u32 {
        match self {
            Shape::LeafSpine { leaves, hosts_per_leaf, .. } => leaves * hosts_per_leaf,
            Shape::FatTree { k } => k * k * k / 4,
        }
    }

    /// How many links it has in each plane.
    pub fn links(self) -> u64 {
        let hosts = u64::from(self.hosts());
        match self {
            Shape::LeafSpine { leaves, spines, .. } => hosts + u64::from(leaves) * u64::from(spines),
            Shape::FatTree { .. } => 3 * hosts,
        }
    }

    /// How many switches it has in each plane.
    pub fn switches(self) -> u32 {
        match self {
            Shape::LeafSpine { leaves, spines, .. } => leaves + spines,
            Shape::FatTree { k } => k * k + k * k / 4,
        }
    }
}

/// Kinds of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// A host.
    Host,
    /// A switch with hosts (top of rack).
    Leaf,
    /// A switch of a pod's upper tier.
    Agg,
    /// A switch of the top tier of two.
    Spine,
    /// A switch of the top tier of three.
    Core,
}

impl Tier {
    /// As names of nodes spell it.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Host => "host",
            Tier::Leaf => "leaf",
            Tier::Agg => "agg",
            Tier::Spine => "spine",
            Tier::Core => "core",
        }
    }
}

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// A host, by number.
    Host(u32),
    /// A switch, by its index in [`Topology::switches`].
    Switch(u32),
}

/// One direction of a link: from a node's port to another node.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    /// Where it begins.
    pub from: Node,
    /// Where it ends.
    pub to: Node,
}

/// A switch.
#[derive(Clone, Debug)]
pub struct Switch {
    /// What it is.
    pub tier: Tier,
    /// Its number among those of its tier and plane.
    pub number: u32,
    /// Its plane.
    pub plane: u32,
    /// Hosts below it.
    pub below: Range<u32>,
    /// Wires to what is below it, in the order of hosts, each for as many of them.
    pub down: Range<u32>,
    /// Hosts per wire downwards.
    pub hosts_per_down: u32,
    /// Wires upwards.
    pub up: Range<u32>,
}

/// A network: its switches, and its wires by number. A link is two wires, see [`Topology::reverse`].
#[derive(Clone, Debug)]
pub struct Topology {
    /// Hosts.
    pub hosts: u32,
    /// Planes.
    pub planes: u32,
    /// Switches of all planes.
    pub switches: Vec<Switch>,
    /// Wires. Those from host `h` are `h * planes` and the following, one per plane.
    pub wires: Vec<Wire>,
    /// The wire in the other direction of each.
    pub reverse: Vec<u32>,
}

impl Topology {
    /// Builds so many planes of a shape.
    pub fn new(shape: Shape, planes: u32) -> Topology {
        let hosts = shape.hosts();
        let mut topology = Topology { hosts, planes, switches: Vec::new(), wires: Vec::new(), reverse: Vec::new() };
        for host in 0..hosts {
            for _ in 0..planes {
                // Their other ends are known when the leaves are.
                topology.wires.push(Wire { from: Node::Host(host), to: Node::Host(host) });
            }
        }
        for plane in 0..planes {
            topology.add_plane(shape, plane);
        }
        topology.pair_wires();
        topology
    }

    fn add_plane(&mut self, shape: Shape, plane: u32) {
        let first = self.switches.len() as u32;
        match shape {
            Shape::LeafSpine { leaves, spines, hosts_per_leaf } => {
                for n in 0..leaves {
                    let below = n * hosts_per_leaf..(n + 1) * hosts_per_leaf;
                    self.add_leaf(plane, n, below, (0..spines).map(|spine| first + leaves + spine));
                }
                for n in 0..spines {
                    self.add(Tier::Spine, plane, n, (0..self.hosts, hosts_per_leaf), first..first + leaves, 0..0);
                }
            }
            Shape::FatTree { k } => {
                let half = k / 2;
                let (leaves, pod_hosts) = (k * half, half * half);
                let (aggs, cores) = (first + leaves, first + 2 * leaves);
                for n in 0..leaves {
                    let pod = n / half;
                    self.add_leaf(plane, n, n * half..(n + 1) * half, (0..half).map(|agg| aggs + pod * half + agg));
                }
                for n in 0..leaves {
                    let (pod, place) = (n / half, n % half);
                    let leaves_below = first + pod * half..first + (pod + 1) * half;
                    let below = pod * pod_hosts..(pod + 1) * pod_hosts;
                    // The aggregation switches at one place of all pods share a group of cores.
                    self.add(
                        Tier::Agg,
                        plane,
                        n,
                        (below, half),
                        leaves_below,
                        cores + place * half..cores + (place + 1) * half,
                    );
                }
                for n in 0..half * half {
                    let group = n / half;
                    self.add(
                        Tier::Core,
                        plane,
                        n,
                        (0..self.hosts, pod_hosts),
                        (0..k).map(|pod| aggs + pod * half + group),
                        0..0,
                    );
                }
            }
        }
    }

    fn add_leaf(&mut self, plane: u32, number: u32, below: Range<u32>, up: impl Iterator<Item = u32>) {
        let leaf = self.switches.len() as u32;
        let from = Node::Switch(leaf);
        for host in below.clone() {
            self.wires[(host * self.planes + plane) as usize].to = from;
        }
        let down = self.add_wires(from, below.clone().map(Node::Host));
        let up = self.add_wires(from, up.map(Node::Switch));
        self.switches.push(Switch { tier: Tier::Leaf, number, plane, below, down, hosts_per_down: 1, up });
    }

    fn add(
        &mut self,
        tier: Tier,
        plane: u32,
        number: u32,
        (below, hosts_per_down): (Range<u32>, u32),
        down: impl Iterator<Item = u32>,
        up: Range<u32>,
    ) {
        let from = Node::Switch(self.switches.len() as u32);
        let down = self.add_wires(from, down.map(Node::Switch));
        let up = self.add_wires(from, up.map(Node::Switch));
        self.switches.push(Switch { tier, number, plane, below, down, hosts_per_down, up });
    }

    fn add_wires(&mut self, from: Node, to: impl Iterator<Item = Node>) -> Range<u32> {
        let start = self.wires.len() as u32;
        self.wires.extend(to.map(|to| Wire { from, to }));
        start..self.wires.len() as u32
    }

    fn pair_wires(&mut self) {
        let key = |node| match node {
            Node::Host(n) => u64::from(n),
            Node::Switch(n) => 1 << 32 | u64::from(n),
        };
        let mut ends = std::collections::HashMap::new();
        for (n, wire) in self.wires.iter().enumerate() {
            ends.insert((key(wire.from), key(wire.to)), n as u32);
        }
        self.reverse = self.wires.iter().map(|wire| ends[&(key(wire.to), key(wire.from))]).collect();
    }

    /// What a node is.
    pub fn tier(&self, node: Node) -> Tier {
        match node {
            Node::Host(_) => Tier::Host,
            Node::Switch(n) => self.switches[n as usize].tier,
        }
    }

    /// A node's name: its tier and number, and `@` and the plane if that is not the first.
    pub fn name(&self, node: Node) -> NodeName {
        match node {
            Node::Host(number) => NodeName { tier: Tier::Host, number, plane: 0 },
            Node::Switch(n) => {
                let switch = &self.switches[n as usize];
                NodeName { tier: switch.tier, number: switch.number, plane: switch.plane }
            }
        }
    }

    /// The node with this name, if there is one.
    pub fn find(&self, name: &str) -> Option<Node> {
        let (name, plane) = name.split_once('@').unwrap_or((name, "0"));
        let digits = name.find(|c: char| c.is_ascii_digit())?;
        let (tier, number) = (&name[..digits], name[digits..].parse::<u32>().ok()?);
        let plane = plane.parse::<u32>().ok()?;
        if tier == "host" {
            return (number < self.hosts && plane == 0).then_some(Node::Host(number));
        }
        let is_it = |switch: &Switch| (switch.number, switch.plane, switch.tier.name()) == (number, plane, tier);
        self.switches.iter().position(is_it).map(|n| Node::Switch(n as u32))
    }

    /// The wire from one node to another, if there is a link; of a host's, that in the plane of the switch.
    pub fn wire_between(&self, from: Node, to: Node) -> Option<u32> {
        let mut wires = match from {
            Node::Host(host) => (host * self.planes..(host + 1) * self.planes).chain(0..0),
            Node::Switch(n) => {
                let switch = &self.switches[n as usize];
                switch.down.clone().chain(switch.up.clone())
            }
        };
        wires.find(|&wire| self.wires[wire as usize].to == to)
    }
}

/// A node's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeName {
    tier: Tier,
    number: u32,
    plane: u32,
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.tier.name(), self.number)?;
        if self.plane > 0 { write!(f, "@{}", self.plane) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPES: [Shape; 4] = [
        Shape::LeafSpine { leaves: 1, spines: 1, hosts_per_leaf: 2 },
        Shape::LeafSpine { leaves: 3, spines: 5, hosts_per_leaf: 4 },
        Shape::FatTree { k: 2 },
        Shape::FatTree { k: 6 },
    ];

    #[test]
    fn every_way_down_leads_to_the_host() {
        for (shape, planes) in SHAPES.into_iter().flat_map(|shape| [(shape, 1), (shape, 2)]) {
            let topology = Topology::new(shape, planes);
            assert_eq!(topology.switches.len() as u32, shape.switches() * planes);
            assert_eq!(topology.wires.len() as u64, 2 * shape.links() * u64::from(planes));
            for start in 0..topology.switches.len() {
                for host in topology.switches[start].below.clone() {
                    let mut node = Node::Switch(start as u32);
                    while let Node::Switch(n) = node {
                        let switch = &topology.switches[n as usize];
                        assert!(switch.below.contains(&host));
                        let wire = switch.down.start + (host - switch.below.start) / switch.hosts_per_down;
                        assert!(switch.down.contains(&wire));
                        assert_eq!(topology.wires[wire as usize].from, node);
                        node = topology.wires[wire as usize].to;
                    }
                    assert_eq!(node, Node::Host(host));
                }
            }
        }
    }

    #[test]
    fn every_way_up_ends_where_all_hosts_are_below() {
        for shape in SHAPES {
            let topology = Topology::new(shape, 2);
            for switch in &topology.switches {
                let is_top = matches!(switch.tier, Tier::Spine | Tier::Core);
                assert_eq!(switch.up.is_empty(), is_top, "{:?} {}", switch.tier, switch.number);
                assert!(!is_top || switch.below == (0..topology.hosts));
                for wire in switch.up.clone() {
                    let Node::Switch(above) = topology.wires[wire as usize].to else { panic!("a host above a switch") };
                    let above = &topology.switches[above as usize];
                    assert_eq!(above.plane, switch.plane);
                    assert!(above.below.start <= switch.below.start && above.below.end >= switch.below.end);
                }
            }
        }
    }

    #[test]
    fn links_have_two_directions() {
        for shape in SHAPES {
            let topology = Topology::new(shape, 2);
            for (n, wire) in topology.wires.iter().enumerate() {
                let back = topology.reverse[n] as usize;
                assert_eq!((topology.wires[back].from, topology.wires[back].to), (wire.to, wire.from));
                assert_eq!(topology.reverse[back] as usize, n);
            }
        }
    }

    #[test]
    fn names_find_their_nodes() {
        let topology = Topology::new(Shape::FatTree { k: 4 }, 2);
        for n in 0..topology.switches.len() as u32 {
            let node = Node::Switch(n);
            assert_eq!(topology.find(&topology.name(node).to_string()), Some(node));
        }
        assert_eq!(topology.find("host15"), Some(Node::Host(15)));
        for wrong in ["host16", "host1@1", "leaf8", "spine0", "leaf", "7", "", "leaf0@2", "core0@x", "leaf-1"] {
            assert_eq!(topology.find(wrong), None, "{wrong}");
        }
    }
}
