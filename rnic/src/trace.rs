//! What a queue pair knows of its connection beside its attributes: for people who ask why it failed.

use crate::rnic::Rnic;
use roce::{Psn, Qpn};

/// Where a connection stands, or stood when it failed. Sequence numbers mean nothing on the local path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The last PSN that was sent.
    pub sent_psn: Psn,
    /// The last PSN that the peer acknowledged.
    pub acknowledged_psn: Psn,
    /// The last PSN of the peer's requests that was received in order.
    pub received_psn: Psn,
    /// Timeouts and sequence NAKs since the last progress.
    pub retries: u8,
    /// RNR NAKs since the last progress.
    pub rnr_retries: u8,
    /// Why the last packet that named the queue pair was dropped, if one was: the name of a field of
    /// [`DropCounters`](crate::DropCounters).
    pub last_drop: Option<&'static str>,
}

impl Rnic {
    /// The trace of a queue pair; `None` if there is no such one.
    pub fn trace(&self, qpn: Qpn) -> Option<Trace> {
        let qp = self.qps.get(qpn.get())?;
        Some(Trace {
            sent_psn: qp.req.sent_end.minus(1),
            acknowledged_psn: qp.req.unacked.minus(1),
            received_psn: qp.resp.expected_psn.minus(1),
            retries: qp.req.retries,
            rnr_retries: qp.req.rnr_retries,
            last_drop: qp.last_drop,
        })
    }
}
