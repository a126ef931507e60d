//! What tenants do: closed loops over one or more queue pairs.

use isolation::{Class, Settings};
use rnic::QpType;
use std::time::Duration;

/// The operation of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// WRITE to the peer.
    Write,
    /// READ from the peer.
    Read,
    /// SEND to the peer; a datagram on queue pairs of type UD.
    Send,
    /// Compare-and-swap at the peer; 8 bytes.
    CompareSwap,
    /// Fetch-and-add at the peer; 8 bytes.
    FetchAdd,
    /// SEND to the peer, which answers each message by one as long; it is complete when the answer has come.
    Echo,
}

/// What a peer has posted for messages that need a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receives {
    /// Always enough.
    Posted,
    /// Nothing, ever; it asks for patience by this RNR timer code.
    Missing(u8),
}

/// A tenant: a device on one host, whose queue pairs go to a device on another (or on the same).
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// As tables name it.
    pub name: &'static str,
    /// Host of the device.
    pub from: usize,
    /// Host of its peer.
    pub to: usize,
    /// The operation.
    pub op: Op,
    /// Transport service: RC, UC or UD.
    pub service: QpType,
    /// Bytes of each message; of the longest, if there are [`Self::sizes`].
    pub bytes: u32,
    /// Bytes of messages in turn, if they differ.
    pub sizes: Vec<u32>,
    /// Buffers that a message is gathered from.
    pub buffers: u32,
    /// Messages that are posted together, when all those before them are complete.
    pub batch: u32,
    /// Batches under way at once.
    pub depth: u32,
    /// Queue pairs, each with a loop of its own.
    pub qps: u32,
    /// Memory regions at each end, which messages use in turn.
    pub regions: u32,
    /// What its peer has posted.
    pub receives: Receives,
    /// When it begins.
    pub start: Duration,
    /// What it is promised. Its class is what Justitia is told; ours finds it by itself, unless [`Self::claims`].
    pub settings: Settings,
    /// Ours is told the class too, whether or not it is true.
    pub claims: bool,
}

impl Load {
    /// Small messages one at a time (L of the paper).
    pub fn latency(name: &'static str, bytes: u32) -> Load {
        Load { bytes, ..Load::of(name, Class::Latency) }
    }

    /// Small messages in batches of 64 (T of the paper).
    pub fn rate(name: &'static str) -> Load {
        Load { bytes: 16, batch: 64, depth: 2, ..Load::of(name, Class::MessageRate) }
    }

    /// Large messages (B of the paper).
    pub fn bulk(name: &'static str, bytes: u32) -> Load {
        Load { bytes, depth: 4, ..Load::of(name, Class::Bandwidth) }
    }

    fn of(name: &'static str, class: Class) -> Load {
        Load {
            name,
            from: 0,
            to: 1,
            op: Op::Write,
            service: QpType::Rc,
            bytes: 0,
            sizes: Vec::new(),
            buffers: 1,
            batch: 1,
            depth: 1,
            qps: 1,
            regions: 1,
            receives: Receives::Posted,
            start: Duration::ZERO,
            settings: Settings { class: Some(class), ..Settings::default() },
            claims: false,
        }
    }

    /// Its class, as the paper's applications declare it.
    pub fn class(&self) -> Class {
        self.settings.class.unwrap_or_default()
    }

    /// The same in the other direction.
    pub fn backwards(self) -> Load {
        Load { from: self.to, to: self.from, ..self }
    }
}

/// What a tenant got while it was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Got {
    /// Latencies of messages in picoseconds, in order of size; of loops that are after latency, and of echoes.
    pub latencies: Vec<u64>,
    /// Bytes of complete messages, parts of those under way included.
    pub bytes: u64,
    /// Complete messages.
    pub messages: u64,
    /// For how long, in seconds.
    pub seconds: f64,
    /// Which part of the time the busiest link or card of all hosts worked, whoever for.
    pub busiest: f64,
}

impl Got {
    /// A percentile of the latency in microseconds; NaN without any.
    pub fn percentile(&self, percent: f64) -> f64 {
        match self.latencies.len() {
            0 => f64::NAN,
            len => self.latencies[((len - 1) as f64 * percent / 100.0).round() as usize] as f64 / 1e6,
        }
    }

    /// Gb/s.
    pub fn gbps(&self) -> f64 {
        self.bytes as f64 * 8e-9 / self.seconds
    }

    /// Million messages per second.
    pub fn million_per_sec(&self) -> f64 {
        self.messages as f64 * 1e-6 / self.seconds
    }
}
