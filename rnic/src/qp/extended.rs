//! Extended reliable connections: what is different for their queue pairs (IBA annex A14.3). All else is as for reliable
//! connections.

use super::Qp;
use super::access::Refusal;
use crate::shared::Shared;
use crate::work::SrqId;
use crate::xrc::{NO_CQ, NO_PD};
use roce::Srqn;
use roce::wire::NakCode;

impl Qp {
    /// A request for this target names a shared receive queue, which from now on stands in for what the target does not have: the
    /// receives and their protection domain, by which also remote keys are judged, and the completion queue.
    ///
    /// Refused, as an invalid request, for a queue that does not exist or is not of this target's domain, and for another one than
    /// that which the message began with.
    pub fn turn_to(&mut self, shared: &mut Shared, srqn: Option<Srqn>) -> Result<(), Refusal> {
        let id = SrqId::numbered(srqn.ok_or(Refusal::INVALID)?);
        let found = shared.srqs.get(id.0).and_then(|srq| Some((srq.pd, srq.extension?)));
        let Some((pd, extension)) = found.filter(|(_, extension)| self.xrcd == Some(extension.xrcd)) else {
            return Err(Refusal::INVALID);
        };
        if self.srq == Some(id) {
            return Ok(());
        }
        if self.resp.message.is_some() {
            return Err(Refusal::INVALID);
        }
        if shared.cqs.get(extension.cq.0).is_none_or(|cq| cq.error) {
            return Err(Refusal::Nak { code: NakCode::RemoteOperationalError, receive: None });
        }
        self.give_receive_back(shared);
        (self.srq, self.pd, self.recv_pd, self.recv_cq) = (Some(id), pd, pd, extension.cq);
        Ok(())
    }

    /// The shared receive queue that the last request named is gone. A message in the middle is refused when it goes on.
    pub fn lose_shared_queue(&mut self) {
        self.rq.clear();
        (self.srq, self.pd, self.recv_pd, self.recv_cq) = (None, NO_PD, NO_PD, NO_CQ);
    }
}
