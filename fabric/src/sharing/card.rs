//! What a card and the programs around it take: times and rates that the paper's measurements show.

use crate::time::Rate;
use isolation::{Config as Sharing, Policy};
use roce::Mtu;
use std::time::Duration;

/// Ethernet, IPv4 and UDP headers, check sum, preamble and gap: bytes on the link beside those of the core.
const FRAMING: u32 = 14 + 20 + 8 + 4 + 20;

/// What a card and its surroundings are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Card {
    /// Rate of every link.
    pub gbps: f64,
    /// Path MTU.
    pub mtu: Mtu,
    /// What a packet takes in the card, at least.
    pub packet_time: Duration,
    /// What posting a message takes a program.
    pub post_time: Duration,
    /// From the program's post to the card.
    pub post: Duration,
    /// From the card to the program that polls.
    pub complete: Duration,
    /// From one end of a link to the other.
    pub wire: Duration,
}

impl Card {
    /// The paper's InfiniBand card of 56 Gb/s: 16 bytes take 1.3 µs there and back, one program does 10.7 million
    /// messages per second, and the card 30.
    pub const IB56: Card = Card {
        gbps: 56.0,
        mtu: Mtu::B4096,
        packet_time: Duration::from_nanos(33),
        post_time: Duration::from_nanos(93),
        post: Duration::from_nanos(150),
        complete: Duration::from_nanos(200),
        wire: Duration::from_nanos(200),
    };

    /// Its RoCE card of 40 Gb/s.
    pub const ROCE40: Card = Card { gbps: 40.0, mtu: Mtu::B1024, ..Card::IB56 };

    /// Its RoCE card of 10 Gb/s.
    pub const ROCE10: Card = Card { gbps: 10.0, mtu: Mtu::B1024, packet_time: Duration::from_nanos(90), ..Card::IB56 };

    /// Picoseconds that bytes of the core take on a link.
    pub(super) fn on_link(&self, bytes: usize) -> u64 {
        on_wire(self.gbps, bytes)
    }

    /// What the arbiter has to know of it. `turn_bytes`: the longest turn while others wait; `None`: one packet.
    pub fn sharing(&self, policy: Policy, turn_bytes: Option<u32>) -> Sharing {
        let mtu = self.mtu.bytes() as u32;
        let turn = turn_bytes.unwrap_or(mtu).max(mtu);
        Sharing {
            policy,
            bytes_per_sec: (self.gbps * 1e9 / 8.0) as u64,
            packets_per_sec: 1_000_000_000 / self.packet_time.as_nanos() as u64,
            quantum_bytes: turn,
            short_quantum_bytes: turn,
            short_quantum_packets: turn / mtu,
            // Only ours asks senders to share the link.
            receive_bytes_per_sec: (policy == Policy::Shares).then_some((self.gbps * 1e9 / 8.0) as u64),
            ..Sharing::default()
        }
    }
}

/// Picoseconds that bytes of the core take on a link of so many Gb/s.
pub(super) fn on_wire(gbps: f64, bytes: usize) -> u64 {
    Rate::from_gbps(gbps).duration(bytes as u32 + FRAMING)
}
