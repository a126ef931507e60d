//! A link in virtual time with seeded faults. Packets arrive as single packets or, when several arrive in the same instant,
//! merged as UDP_GRO would merge them.

use rnic::RxMeta;
use roce::Instant;
use roce::wire::Headers;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::time::Duration;

/// A seeded generator (xorshift64*), apart from the one under test.
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Rng(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 8
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn chance(&mut self, probability: f64) -> bool {
        (self.below(1 << 32) as f64) < probability * (1_u64 << 32) as f64
    }
}

/// Fault rates, each a probability per packet.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    pub loss: f64,
    pub duplication: f64,
    pub reordering: f64,
    pub corruption: f64,
    /// Packets of the spray extension with payload that lose it on the way, as in a switch that trims.
    pub trimming: f64,
}

/// A packet under way.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Packet {
    pub src: IpAddr,
    pub dst: IpAddr,
    pub src_port: u16,
    pub bytes: Vec<u8>,
    pub trimmed: bool,
}

impl Packet {
    pub fn headers(&self) -> Headers {
        Headers::parse(&self.bytes).expect("a well-formed packet").0
    }
}

/// Source, destination, source port, bytes per packet, all bytes, and whether the payload was cut off.
pub type Burst = (IpAddr, IpAddr, u16, usize, Vec<u8>, bool);

/// Decides about one packet: `true` lets it pass (to the random faults).
pub type Filter = Box<dyn FnMut(&Packet) -> bool>;

pub struct Link {
    pub faults: Faults,
    pub filter: Option<Filter>,
    pub delay: Duration,
    pub rng: Rng,
    /// Everything that was sent, when recording.
    pub record: Option<Vec<Packet>>,
    /// Packets sent, and dropped by filter or faults.
    pub sent: u64,
    pub dropped: u64,
    sequence: u64,
    queue: BinaryHeap<Reverse<(Instant, u64, Packet)>>,
}

impl Link {
    pub fn new(seed: u64) -> Self {
        Link {
            faults: Faults::default(),
            filter: None,
            delay: Duration::from_micros(5),
            rng: Rng::new(seed),
            record: None,
            sent: 0,
            dropped: 0,
            sequence: 0,
            queue: BinaryHeap::new(),
        }
    }

    pub fn send(&mut self, now: Instant, mut packet: Packet) {
        self.sent += 1;
        if let Some(record) = &mut self.record {
            record.push(packet.clone());
        }
        let passes = self.filter.as_mut().is_none_or(|filter| filter(&packet));
        if !passes || self.rng.chance(self.faults.loss) {
            self.dropped += 1;
            return;
        }
        // Nothing is drawn where nothing can happen, so that other tests keep their numbers.
        let has_payload = matches!(packet.bytes[0], 0xE1..=0xE5 | 0xE7);
        if self.faults.trimming > 0.0 && has_payload && self.rng.chance(self.faults.trimming) {
            packet.bytes.truncate(20);
            packet.trimmed = true;
        }
        if self.rng.chance(self.faults.duplication) {
            let extra = self.jitter();
            self.queue_at(now + self.delay + extra, packet.clone());
        }
        if self.rng.chance(self.faults.corruption) {
            let bit = self.rng.below(packet.bytes.len() as u64 * 8) as usize;
            packet.bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let extra = if self.rng.chance(self.faults.reordering) { self.jitter() } else { Duration::ZERO };
        self.queue_at(now + self.delay + extra, packet);
    }

    fn jitter(&mut self) -> Duration {
        Duration::from_nanos(self.rng.below(50_000))
    }

    fn queue_at(&mut self, at: Instant, packet: Packet) {
        self.sequence += 1;
        self.queue.push(Reverse((at, self.sequence, packet)));
    }

    pub fn next_arrival(&self) -> Option<Instant> {
        self.queue.peek().map(|Reverse((at, ..))| *at)
    }

    /// Takes what has arrived by `now`, merged into bursts.
    pub fn arrivals(&mut self, now: Instant) -> Vec<Burst> {
        let mut bursts: Vec<Burst> = Vec::new();
        while self.next_arrival().is_some_and(|at| at <= now) {
            let Some(Reverse((_, _, packet))) = self.queue.pop() else { break };
            match bursts.last_mut() {
                Some((src, dst, port, segment, bytes, trimmed))
                    if (*src, *dst, *port) == (packet.src, packet.dst, packet.src_port)
                        && *trimmed == packet.trimmed
                        && bytes.len().is_multiple_of(*segment)
                        && packet.bytes.len() <= *segment
                        && bytes.len() + packet.bytes.len() <= 60 << 10 =>
                {
                    bytes.extend_from_slice(&packet.bytes);
                }
                _ => {
                    let len = packet.bytes.len();
                    bursts.push((packet.src, packet.dst, packet.src_port, len, packet.bytes, packet.trimmed));
                }
            }
        }
        bursts
    }
}

/// Makes the meta data of a received burst.
pub fn meta(device: rnic::DeviceId, src: IpAddr, dst: IpAddr, src_port: u16, segment_len: usize) -> RxMeta {
    RxMeta { device, src, dst, src_port, segment_len, congested: false, trimmed: false }
}
