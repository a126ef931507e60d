//! A link that many send to at once (incast): what each of them is asked to keep to, so that the queue before the link stays short.
//!
//! The network's congestion control cannot do that: with a sender for each packet that the link takes in a round trip, the least window of
//! each is too much already, and what waits before the link is the sum of those windows. Only who receives knows how many they are, and what
//! its link takes. So it tells every sender the rate that is fair among those who want more (max-min), found as RCP does (Dukkipati, 2007):
//! one rate for all, which follows the difference between what the link takes and what arrives. Senders space their packets by it.
//!
//! A *source* is one device of a peer, whatever the number of its connections: they share what it gets. Asking is all that can be done: who
//! does not listen is as fast as the network lets him, and leaves the others no less than an equal part each.

use alloc::collections::BTreeMap;
use roce::{Gid, Instant};

/// Part of the link that is given away, in 1/1000: what is left drains a queue that has come about.
const GIVEN: u64 = 994;
/// From this part of the link on, in 1/1000, it is taken to be full.
const FULL: u64 = 998;
/// What arrives is compared with what the link takes whenever so many bytes could have: a packet more or less is nothing then.
const PERIOD_BYTES: u64 = 512 << 10;
/// What the rate is multiplied by when the link is full all the same.
const STEP_BACK: f64 = 0.97;
/// By this part of the difference the rate follows it.
const GAIN: f64 = 0.4;

/// What is known of one connection that receives data; kept by its owner.
#[derive(Clone, Copy, Debug, Default)]
pub struct Source {
    /// The last period that data came in, counted from 1.
    period: u64,
    /// Connections of the same source in the period before.
    connections: u32,
}

/// The rates that a receiving host asks its senders to keep to.
#[derive(Debug)]
pub struct Incast {
    /// Bytes per second that the link takes, with all headers of its frames.
    link: u64,
    /// The running period, when it began, and what has arrived in it.
    period: u64,
    began: Instant,
    bytes: u64,
    /// How many connections of each source data came on, in this period and in the one before.
    active: BTreeMap<Gid, u32>,
    before: BTreeMap<Gid, u32>,
    /// What one source is asked to keep to, in bytes per second; `None` while the link is not full.
    rate: Option<f64>,
}

impl Incast {
    /// A link that takes so many bytes per second, all headers of its frames included.
    pub fn new(link_bytes_per_sec: u64) -> Incast {
        Incast {
            link: link_bytes_per_sec.max(1),
            period: 1,
            began: Instant::ZERO,
            bytes: 0,
            active: BTreeMap::new(),
            before: BTreeMap::new(),
            rate: None,
        }
    }

    /// So many bytes have come over the link, whoever from.
    pub fn on_arrival(&mut self, now: Instant, bytes: u64) {
        let passed = now.saturating_since(self.began).as_nanos() as u64;
        let could = u128::from(passed) * u128::from(self.link) / 1_000_000_000;
        if could >= u128::from(PERIOD_BYTES) {
            self.end_period(passed);
            (self.began, self.bytes) = (now, 0);
        }
        self.bytes += bytes;
    }

    /// Some of it was data that a source was the cause of, on one of its connections.
    pub fn on_data(&mut self, from: Gid, source: &mut Source) {
        if source.period != self.period {
            *source = Source { period: self.period, connections: self.before.get(&from).copied().unwrap_or(1) };
            *self.active.entry(from).or_insert(0) += 1;
        }
    }

    fn end_period(&mut self, passed_ns: u64) {
        let arrived = self.bytes as f64 * 1e9 / passed_ns as f64;
        let (given, full) = (self.link as f64 * GIVEN as f64 / 1e3, self.link as f64 * FULL as f64 / 1e3);
        let even = given / self.active.len().max(1) as f64;
        let is_full = arrived >= full;
        let rate = match self.rate {
            // An equal part each is never too much; from there it grows, as far as some want less than that.
            None => {
                if is_full {
                    even
                } else {
                    given
                }
            }
            // Of a full link nobody can see by how much it is overfull.
            Some(rate) if is_full => rate * STEP_BACK,
            Some(rate) => rate * (1.0 + GAIN * (given - arrived) / given),
        };
        // New ones make room for themselves.
        let rate = rate * (self.before.len() as f64 / self.active.len().max(1) as f64).clamp(f64::MIN_POSITIVE, 1.0);
        self.rate = (self.active.len() > 1 && rate < given).then_some(rate.max(even));
        core::mem::swap(&mut self.active, &mut self.before);
        self.active.clear();
        self.period += 1;
    }

    /// What the sender on this connection is asked to keep to, in bytes per second with all headers; `None`: nothing.
    pub fn asked(&self, source: &Source) -> Option<u64> {
        Some((self.rate? / f64::from(source.connections.max(1))) as u64)
    }
}
