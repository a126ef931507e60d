//! What an agent sends of one FlowGroup: which chunks are in place, under way, or still to go, and over which paths at what rates.

use super::{CHUNK_BYTES, Chunks, Part, Route, StreamId};
use std::collections::{BTreeMap, BTreeSet};

/// How much later than the others, seconds, a path may be done with a chunk that it takes.
const TAIL_S: f64 = 0.02;
/// Bytes per second of one Gbit/s.
pub(super) const BYTES_PER_GBPS: f64 = 1.25e8;

/// A FlowGroup at its source.
#[derive(Clone, Debug)]
pub(super) struct Sending {
    /// What it consists of.
    pub parts: Vec<Part>,
    /// What is in place at the destination.
    pub chunks: Chunks,
    /// Paths and rates, Gbit/s.
    pub rates: BTreeMap<Route, f64>,
    /// Why it cannot be read, or the destination does not take it.
    pub refused: Option<String>,
    /// Chunks from here on were not sent yet; of those before, these have to be sent again.
    next: u64,
    again: BTreeSet<u64>,
    flying: BTreeMap<u64, StreamId>,
}

impl Sending {
    /// Nothing is known to be in place.
    pub fn new(parts: Vec<Part>, chunks: Chunks, rates: BTreeMap<Route, f64>) -> Self {
        Self { parts, chunks, rates, refused: None, next: 0, again: BTreeSet::new(), flying: BTreeMap::new() }
    }

    /// The next chunk to send over a stream, from now on under way there.
    pub fn take(&mut self, stream: StreamId) -> Option<u64> {
        let chunk = loop {
            let chunk = self.again.pop_first().or_else(|| {
                let next = self.next;
                self.next += u64::from(next < self.chunks.count());
                (next < self.chunks.count()).then_some(next)
            })?;
            if !self.chunks.has(chunk) && !self.flying.contains_key(&chunk) {
                break chunk;
            }
        };
        self.flying.insert(chunk, stream);
        Some(chunk)
    }

    /// Whether there is a chunk to take.
    pub fn has_more(&self) -> bool {
        self.refused.is_none() && (self.next < self.chunks.count() || !self.again.is_empty())
    }

    /// A chunk is in place.
    pub fn placed(&mut self, chunk: u64) {
        self.flying.remove(&chunk);
        self.chunks.add(chunk);
    }

    /// A stream has failed: what was under way there has to be sent again, unless it turns out to be in place.
    pub fn lose(&mut self, stream: StreamId) {
        let lost = self.flying.extract_if(.., |_, over| *over == stream);
        self.again.extend(lost.map(|(chunk, _)| chunk));
    }

    /// Whether a path should take a chunk now, with so many bytes before it: not if the other paths would be done with everything
    /// well before.
    pub fn is_worth(&self, route: &Route, before_bytes: u64) -> bool {
        let rate_gbps = self.rates.get(route).copied().unwrap_or(0.0);
        let others_gbps: f64 = self.rates.iter().filter(|(other, _)| *other != route).map(|(_, rate)| rate).sum();
        let left_bytes = (self.chunks.bytes() - self.chunks.held_bytes()) as f64;
        let own_s = (before_bytes + CHUNK_BYTES) as f64 / (rate_gbps * BYTES_PER_GBPS);
        others_gbps == 0.0 || own_s <= left_bytes / ((rate_gbps + others_gbps) * BYTES_PER_GBPS) + TAIL_S
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_go_once_and_again_only_when_lost() {
        let rates = BTreeMap::from([(vec!["a".to_owned(), "b".to_owned()], 1.0)]);
        let mut sending = Sending::new(Vec::new(), Chunks::none(3 * CHUNK_BYTES).unwrap(), rates);
        sending.placed(1);
        assert_eq!([0; 3].map(|_| sending.take(StreamId(1))), [Some(0), Some(2), None]);
        assert!(!sending.has_more());
        sending.placed(0);
        sending.lose(StreamId(1));
        assert!(sending.has_more());
        assert_eq!([0; 2].map(|_| sending.take(StreamId(2))), [Some(2), None]);
    }

    #[test]
    fn slow_paths_leave_the_end_to_fast_ones() {
        let [fast, slow] = ["f", "s"].map(|name| vec![name.to_owned()]);
        let rates = BTreeMap::from([(fast.clone(), 1.0), (slow.clone(), 0.001)]);
        let mut sending = Sending::new(Vec::new(), Chunks::none(100 * CHUNK_BYTES).unwrap(), rates);
        assert!(sending.is_worth(&fast, 0) && !sending.is_worth(&slow, 0));
        sending.rates.remove(&fast);
        assert!(sending.is_worth(&slow, 0), "it is the only one");
    }
}
