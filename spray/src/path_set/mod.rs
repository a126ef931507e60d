//! The paths of one connection: which one the next packet takes, and how each of them is doing.
//!
//! A policy proposes, health disposes: a path that lost several packets in a row and delivered none is set aside, whatever the
//! policy, until a probe on it is answered. At least a quarter of the paths stays in use, as more than that failing at once is
//! not a matter of paths.

mod health;
mod lap;
mod policy;
mod reps;

use crate::{MAX_PATHS, Ports};
use core::time::Duration;
use health::Health;
use policy::Chooser;
use roce::Instant;
use roce::rng::Rng;

/// A path of a connection: its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(pub u8);

impl PathId {
    /// The number as an index.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// How the path of a packet is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Always the first.
    Single,
    /// Round robin in an order that changes each lap; keeps nothing about paths.
    Oblivious,
    /// Deficit weighted round robin; the faster a path answers, the more bytes it gets.
    Dwrr,
    /// The path with the least smoothed round-trip time; every 64th packet goes anywhere.
    BestRtt,
    /// A packet follows an acknowledgement on the path of that; marked ones count half, slow ones nothing.
    MpRdma,
    /// Round robin that skips a path as often as its penalty says: 1 for a mark, 4 for a refusal, 15 for a time-out.
    Bitmap,
    /// Recycles the last 8 paths that delivered without a mark, else explores; reuses them after a time-out.
    Reps,
    /// Recycles paths that delivered without a mark, else [`Policy::Bitmap`].
    Mixed,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 8] = [
        Policy::Single,
        Policy::Oblivious,
        Policy::Dwrr,
        Policy::BestRtt,
        Policy::MpRdma,
        Policy::Bitmap,
        Policy::Reps,
        Policy::Mixed,
    ];

    /// A name for command lines and tables.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Single => "single",
            Policy::Oblivious => "oblivious",
            Policy::Dwrr => "dwrr",
            Policy::BestRtt => "best-rtt",
            Policy::MpRdma => "mp-rdma",
            Policy::Bitmap => "bitmap",
            Policy::Reps => "reps",
            Policy::Mixed => "mixed",
        }
    }

    /// The policy of this name.
    pub fn from_name(name: &str) -> Option<Policy> {
        Policy::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// What became of a packet on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// It, or a probe, arrived; whether it carried a mark is not known.
    Arrived {
        /// Its round-trip time, if it is known.
        rtt: Option<Duration>,
    },
    /// It arrived.
    Delivered {
        /// It carried a congestion mark.
        marked: bool,
        /// Packets of the connection sent after it that had been acknowledged before it: how far the path is behind.
        behind: u32,
    },
    /// It was refused, as a switch had cut its payload off.
    Refused,
    /// It is missing, while later ones arrived.
    Missing,
    /// Nothing was heard of it for a whole RTO.
    TimedOut,
}

/// The paths of one connection.
#[derive(Clone, Debug)]
pub struct PathSet {
    ports: Ports,
    health: Health,
    chooser: Chooser,
    rng: Rng,
}

impl PathSet {
    /// `paths` paths, 1 to 256, with ports drawn with `seed`; the port of the first is `first_port`.
    ///
    /// # Panics
    /// If the number of paths is out of range: a fault of the caller.
    pub fn new(policy: Policy, paths: u16, first_port: u16, seed: u64) -> PathSet {
        assert!((1..=MAX_PATHS).contains(&paths), "{paths} paths");
        PathSet {
            ports: Ports::new(paths, first_port, seed),
            health: Health::new(paths),
            chooser: Chooser::new(policy, paths),
            rng: Rng::new(seed ^ 0x5EED),
        }
    }

    /// Heap bytes that `paths` paths take.
    pub const fn heap_bytes(policy: Policy, paths: u16) -> usize {
        Health::heap_bytes(paths) + Chooser::heap_bytes(policy, paths)
    }

    /// How many paths there are.
    pub fn len(&self) -> u16 {
        self.ports.len()
    }

    /// Never true: there is at least one path.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The UDP source port of a path.
    pub fn port(&self, path: PathId) -> u16 {
        self.ports.port(path)
    }

    /// The path of a UDP source port, as a peer echoes it.
    pub fn path(&self, port: u16) -> Option<PathId> {
        self.ports.path(port)
    }

    /// Smoothed round-trip time of a path, if it was ever measured.
    pub fn rtt(&self, path: PathId) -> Option<Duration> {
        self.health.rtt(path)
    }

    /// Paths that are not set aside.
    pub fn usable(&self) -> u16 {
        self.health.usable()
    }

    /// Whether a path is not set aside.
    pub fn is_usable(&self, path: PathId) -> bool {
        self.health.is_usable(path)
    }

    /// The path of the next packet, which has `bytes` bytes. With `avoid`, the path that lost it before, another one if there is
    /// one.
    pub fn pick(&mut self, now: Instant, bytes: u32, avoid: Option<PathId>) -> PathId {
        let PathSet { health, chooser, rng, .. } = self;
        let choice = chooser.pick(now, bytes, health, rng);
        if Some(choice) != avoid || self.ports.len() == 1 {
            return choice;
        }
        // Any other will do: the policy counts the packet where it wanted it.
        let start = self.rng.below(u64::from(self.ports.len())) as u16;
        let others = (0..self.ports.len()).map(|n| PathId(((start + n) % self.ports.len()) as u8));
        let other = others.filter(|&path| Some(path) != avoid).find(|&path| self.health.is_usable(path));
        other.unwrap_or(choice)
    }

    /// Takes note of what became of a packet on `path`.
    pub fn note(&mut self, now: Instant, path: PathId, evidence: Evidence) {
        if path.0 as u16 >= self.ports.len() {
            return;
        }
        self.health.note(now, path, evidence);
        self.chooser.note(now, path, evidence);
    }

    /// A path that was set aside and shall be tried: a probe is to be sent on it now.
    pub fn poll_probe(&mut self, now: Instant) -> Option<PathId> {
        self.health.poll_probe(now)
    }

    /// When [`PathSet::poll_probe`] wants to be asked again.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.health.poll_timeout()
    }
}
