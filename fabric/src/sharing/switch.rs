//! The switches between hosts: one that all hang on, or two with a link between them. A packet is sent on while it arrives
//! (cut-through); every port has one queue, without end, that marks packets once it is long.

use super::card::on_wire;
use crate::time::Time;

/// A queue longer than so many packets like the one that joins it marks it.
const MARKS_FROM: u64 = 16;

/// A second switch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Uplink {
    /// Hosts before this one hang on the first switch, all others on the second.
    pub first_far_host: usize,
    /// Rate of the link between them, in Gb/s.
    pub gbps: f64,
}

/// A port of a switch.
#[derive(Clone, Copy, Debug)]
struct Port {
    gbps: f64,
    /// When it is done with what waits.
    free: Time,
}

/// Where a packet is next.
pub(super) struct Hop {
    /// When its first byte leaves the port.
    pub begins: Time,
    /// When its last byte has.
    pub ends: Time,
    /// It goes to the other switch, not to its host.
    pub crosses: bool,
    /// The queue is long.
    pub marks: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Switches {
    /// To each host.
    ports: Vec<Port>,
    uplink: Option<Uplink>,
    /// To the far switch, and back.
    between: [Port; 2],
}

impl Switches {
    pub fn new(hosts: usize, gbps: f64, uplink: Option<Uplink>) -> Switches {
        let port = |gbps| Port { gbps, free: Time::ZERO };
        Switches { ports: vec![port(gbps); hosts], uplink, between: [port(uplink.map_or(gbps, |link| link.gbps)); 2] }
    }

    /// A packet of `bytes` bytes of the core joins the queue that it has to; `has_crossed`: it comes from the other switch.
    pub fn pass(&mut self, now: Time, from: usize, to: usize, bytes: usize, has_crossed: bool) -> Hop {
        let is_far = |host| self.uplink.is_some_and(|link| host >= link.first_far_host);
        let crosses = !has_crossed && is_far(from) != is_far(to);
        let port = if crosses { &mut self.between[usize::from(is_far(from))] } else { &mut self.ports[to] };
        let took = on_wire(port.gbps, bytes);
        let marks = port.free.since(now) > MARKS_FROM * took;
        let begins = port.free.max(now);
        port.free = begins.after(took);
        Hop { begins, ends: port.free, crosses, marks }
    }
}
