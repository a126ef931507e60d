//! Two queue pairs of this process that are connected with each other.

use crate::Outcome;
use std::rc::Rc;
use tests::verbs::{Address, Cq, Patience, Qp, Session, access};

/// Two connected queue pairs.
pub struct Connection {
    /// Of the first and the second.
    pub cqs: [Rc<Cq>; 2],
    /// The first is the one that posts.
    pub qps: [Qp; 2],
}

impl Connection {
    /// In RTS, of one protection domain.
    pub fn new(session: &Rc<Session>) -> Outcome<Connection> {
        let cqs = [Cq::new(session, 64)?, Cq::new(session, 64)?];
        let qps = [Qp::new(session, &cqs[0], 64, access::ALL)?, Qp::new(session, &cqs[1], 64, access::ALL)?];
        let gid = session.gid()?;
        let patience = Patience { timeout: 10, retry_cnt: 3, rnr_retry: 3 };
        for (own, other) in [(0, 1), (1, 0)] {
            qps[own].connect(&Address { gid, qpn: qps[other].number(), psn: 3 }, 3, 3, patience)?;
        }
        Ok(Connection { cqs, qps })
    }

    /// Whether both are in this state.
    pub fn is_in(&self, wanted: u32) -> Outcome<bool> {
        Ok(self.qps[0].state()? == wanted && self.qps[1].state()? == wanted)
    }
}
