//! Routes: up by ECMP until the receiver is below, then the one way down.
//!
//! A switch knows at once when a link of its own is down, and leaves it out of its choice. What has become of links further away
//! it knows only if, and when, routes are spread (`faults.reroute_us`); until then packets that take such a way are lost.

use crate::network::Network;
use crate::topology::Node;

impl Network {
    /// The port of a host for a packet: the plane is chosen like any other of several ways.
    pub(crate) fn plane_for(&self, host: u32, id: u32) -> u32 {
        let planes = self.topology.planes;
        let first = host * planes;
        if planes == 1 {
            return first;
        }
        let dst = self.pool[id].dst;
        let salt = self.salts[self.topology.switches.len()];
        // With all links down, the packet is lost at any.
        self.choose(first..first + planes, id, salt, dst).unwrap_or(first)
    }

    /// The port of a switch for a packet, if it has one.
    #[inline]
    pub(crate) fn route(&self, number: u32, id: u32) -> Option<u32> {
        let switch = &self.topology.switches[number as usize];
        let dst = self.pool[id].dst;
        if switch.below.contains(&dst) {
            let wire = switch.down.start + (dst - switch.below.start) / switch.hosts_per_down;
            return self.ports[wire as usize].is_up().then_some(wire);
        }
        self.choose(switch.up.clone(), id, self.salts[number as usize], dst)
    }

    /// One of these ports, by the packet's hash, of those that lead to the receiver.
    #[inline]
    fn choose(&self, wires: std::ops::Range<u32>, id: u32, salt: u64, dst: u32) -> Option<u32> {
        let hash = self.pool[id].hash;
        if self.down_wires == 0 && self.known_down_wires == 0 {
            let ways = wires.end - wires.start;
            return (ways > 0).then(|| wires.start + hash.choose(salt, ways));
        }
        let leads_there = |wire: &u32| self.ports[*wire as usize].is_up() && self.leads_to(*wire, dst);
        let ways = wires.clone().filter(leads_there).count() as u32;
        if ways == 0 {
            // Nobody knows a way; those that are up may be better than is known.
            let up = |wire: &u32| self.ports[*wire as usize].is_up();
            let ways = wires.clone().filter(up).count() as u32;
            return if ways == 0 { None } else { wires.filter(up).nth(hash.choose(salt, ways) as usize) };
        }
        wires.filter(leads_there).nth(hash.choose(salt, ways) as usize)
    }

    /// Whether a packet to `dst` gets there from the end of this wire, as far as links further away are known.
    fn leads_to(&self, wire: u32, dst: u32) -> bool {
        if self.known_down_wires == 0 {
            return true;
        }
        let Node::Switch(next) = self.ports[wire as usize].to else { return true };
        let switch = &self.topology.switches[next as usize];
        let is_known_good = |wire: u32| !self.ports[wire as usize].known_down && self.leads_to(wire, dst);
        if switch.below.contains(&dst) {
            return is_known_good(switch.down.start + (dst - switch.below.start) / switch.hosts_per_down);
        }
        switch.up.clone().any(is_known_good)
    }
}
