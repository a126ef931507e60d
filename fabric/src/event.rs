//! What can happen in a simulation.

/// An event. Everything is named by number, so that an event is 12 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A packet reaches the end of a wire.
    Arrive {
        /// Packet.
        packet: u32,
        /// Wire.
        wire: u32,
    },
    /// A port has sent its packet.
    Free {
        /// The wire that begins at the port.
        wire: u32,
    },
    /// A port is told to stop, or to go on.
    Pause {
        /// The wire that begins at the port.
        wire: u32,
        /// Stop.
        on: bool,
    },
    /// The clock of a host reaches a deadline of its core.
    Timer {
        /// Host.
        host: u32,
    },
    /// A transfer may start.
    Start {
        /// Transfer.
        transfer: u32,
    },
    /// A planned fault begins or ends.
    Fault {
        /// Index in the plan's schedule.
        index: u32,
    },
    /// All switches have learnt what has become of a link.
    Learn {
        /// One of its wires.
        wire: u32,
    },
    /// Time to look at queues and links.
    Sample,
}

impl Event {
    /// All of it, as a number.
    pub fn code(self) -> u64 {
        let (kind, a, b) = match self {
            Event::Arrive { packet, wire } => (1, packet, wire),
            Event::Free { wire } => (2, wire, 0),
            Event::Pause { wire, on } => (3, wire, u32::from(on)),
            Event::Timer { host } => (4, host, 0),
            Event::Start { transfer } => (5, transfer, 0),
            Event::Fault { index } => (6, index, 0),
            Event::Learn { wire } => (7, wire, 0),
            Event::Sample => (8, 0, 0),
        };
        (kind << 60) ^ u64::from(a) << 30 ^ u64::from(b)
    }
}
