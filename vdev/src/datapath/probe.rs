//! How long messages of tenants after latency take: what Justitia's rate depends on. There only where that policy runs.
//!
//! Justitia probes each peer with a flow of its own. Here the declared tenants' own messages serve: as with the probe, one of each
//! queue pair is measured at a time, from the doorbell to the completion.

use std::time::Duration;

use roce::{Instant, Qpn};

use super::IdMap;

/// A message that is not completed by then, because its queue pair has gone, makes room for the next of that number.
const FORGOTTEN: Duration = Duration::from_secs(10);

/// Messages under way: at most one per queue pair.
#[derive(Debug, Default)]
pub(super) struct Probe(IdMap<Qpn, (u64, Instant)>);

impl Probe {
    /// A request with a completion was posted.
    pub fn posted(&mut self, qpn: Qpn, wr_id: u64, now: Instant) {
        let under_way = self.0.get(&qpn);
        if under_way.is_none_or(|&(_, posted)| now.saturating_since(posted) > FORGOTTEN) {
            self.0.insert(qpn, (wr_id, now));
        }
    }

    /// A request has completed: how long it took, if it is the one that is measured.
    pub fn completed(&mut self, qpn: Qpn, wr_id: u64, now: Instant) -> Option<Duration> {
        let &(measured, posted) = self.0.get(&qpn)?;
        if measured != wr_id {
            return None;
        }
        self.0.remove(&qpn);
        Some(now.saturating_since(posted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_at_a_time_is_measured() {
        let (mut probe, qpn) = (Probe::default(), Qpn::new(7));
        let at = |us: u64| Instant::from_nanos(us * 1000);
        assert_eq!(probe.completed(qpn, 1, at(0)), None, "nothing is under way");
        probe.posted(qpn, 1, at(0));
        probe.posted(qpn, 2, at(1));
        assert_eq!(probe.completed(qpn, 2, at(2)), None);
        assert_eq!(probe.completed(qpn, 1, at(5)), Some(Duration::from_micros(5)));
        assert_eq!(probe.completed(qpn, 1, at(6)), None, "once");
        probe.posted(qpn, 3, at(10));
        probe.posted(qpn, 4, at(20_000_000));
        assert_eq!(probe.completed(qpn, 4, at(20_000_001)), Some(Duration::from_micros(1)), "3 was forgotten");
    }
}
