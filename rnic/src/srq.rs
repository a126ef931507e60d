//! Shared receive queues: receives that many queue pairs take from (IBA 10.2.9).
//!
//! A queue pair moves the oldest receive to its own queue, which holds one, when a message begins, and gives it back if the message
//! comes to nothing because the queue pair is reset or destroyed. Everything that happens to a receive in between is as without a
//! shared queue.

use crate::error::{ControlError, PostError};
use crate::event::AsyncEvent;
use crate::limits;
use crate::qp::queue::{RecvWqe, Ring};
use crate::rnic::Rnic;
use crate::shared::Shared;
use crate::work::{DeviceId, PdId, RecvRequest, SrqId};
use crate::xrc::Extension;
use alloc::vec::Vec;
use roce::{Instant, Qpn};

/// Attributes of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Receives that can be outstanding.
    pub max_wr: u32,
    /// Buffers per receive.
    pub max_sge: u32,
    /// When fewer receives than this wait, [`AsyncEvent::SrqLimit`] says so, once, and this becomes 0; 0 is for never.
    pub limit: u32,
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    pub id: SrqId,
    pub device: DeviceId,
    pub pd: PdId,
    queue: Ring<RecvWqe>,
    attr: SrqAttr,
    /// Receives that queue pairs hold and have not completed.
    held: u32,
    /// Queue pairs that take from it and no other.
    pub users: u32,
    /// What makes it one that requests can name.
    pub extension: Option<Extension>,
    /// Queue pairs whose local peer waits for a receive.
    starved: Vec<Qpn>,
}

impl Srq {
    /// Buffers per receive.
    pub fn max_sge(&self) -> u32 {
        self.attr.max_sge
    }

    /// Moves the oldest receive to a queue pair's own queue, which is empty. False if there is none.
    pub fn take(&mut self, into: &mut Ring<RecvWqe>, events: &mut impl Extend<AsyncEvent>) -> bool {
        let Some(&receive) = self.queue.front() else { return false };
        into.push(receive, self.queue.buffers(self.queue.head));
        self.queue.pop();
        self.held += 1;
        self.check_limit(events);
        true
    }

    /// Takes a receive back; it is the oldest again.
    pub fn give_back(&mut self, from: &mut Ring<RecvWqe>) {
        if let Some(&receive) = from.front() {
            self.queue.push_front(receive, from.buffers(from.head));
            from.pop();
            self.held -= 1;
        }
    }

    /// A receive that a queue pair held is complete.
    pub fn completed(&mut self) {
        self.held -= 1;
    }

    /// The queue pair could not serve its local peer for want of a receive.
    pub fn note_starved(&mut self, qpn: Qpn) {
        if !self.starved.contains(&qpn) {
            self.starved.push(qpn);
        }
    }

    fn check_limit(&mut self, events: &mut impl Extend<AsyncEvent>) {
        if self.queue.len() < self.attr.limit {
            self.attr.limit = 0;
            events.extend([AsyncEvent::SrqLimit(self.id)]);
        }
    }
}

impl Shared {
    /// A shared receive queue that a queue pair takes from; it outlives the queue pair.
    pub fn srq(&mut self, srq: SrqId) -> &mut Srq {
        self.srqs.get_mut(srq.0).expect("a shared receive queue outlives its queue pairs")
    }
}

impl Rnic {
    /// Makes a shared receive queue.
    ///
    /// # Errors
    /// `NotFound` for the PD; `Invalid` for sizes of 0, above the limits, or a limit above `max_wr`; `Limit`.
    pub fn create_srq(&mut self, pd: PdId, attr: SrqAttr) -> Result<SrqId, ControlError> {
        self.create_srq_with(pd, attr, None)
    }

    pub(crate) fn create_srq_with(
        &mut self,
        pd: PdId,
        attr: SrqAttr,
        extension: Option<Extension>,
    ) -> Result<SrqId, ControlError> {
        let device = crate::device::device_of(self, pd)?;
        check_size(attr.max_wr)?;
        if attr.max_sge > limits::MAX_SGE {
            return Err(ControlError::Invalid("more buffers than a work request can have"));
        }
        check_limit(attr.limit, &attr)?;
        let queue = Ring::for_receives(attr.max_wr, attr.max_sge);
        let srq = |id| Srq { id: SrqId(id), device, pd, queue, attr, held: 0, users: 0, extension, starved: Vec::new() };
        let id = self.shared.srqs.insert_with(srq).ok_or(ControlError::Limit("shared receive queues"))?;
        self.shared.pds.get_mut(pd.0).expect("looked up above").srqs += 1;
        Ok(SrqId(id))
    }

    /// Changes how many receives can be outstanding. Those that are stay.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for a size of 0, above the limits, below the limit that is set, or below what is outstanding.
    pub fn resize_srq(&mut self, srq: SrqId, max_wr: u32) -> Result<(), ControlError> {
        let srq = self.shared.srqs.get_mut(srq.0).ok_or(ControlError::NotFound("shared receive queue"))?;
        check_size(max_wr)?;
        let attr = SrqAttr { max_wr, ..srq.attr };
        check_limit(attr.limit, &attr)?;
        if srq.queue.len() + srq.held > max_wr {
            return Err(ControlError::Invalid("more receives than that are outstanding"));
        }
        srq.queue = srq.queue.resized(max_wr);
        srq.attr = attr;
        Ok(())
    }

    /// Sets the limit, and reports at once if fewer receives wait.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for a limit above `max_wr`.
    pub fn set_srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<(), ControlError> {
        let Shared { srqs, events, .. } = &mut self.shared;
        let srq = srqs.get_mut(srq.0).ok_or(ControlError::NotFound("shared receive queue"))?;
        check_limit(limit, &srq.attr)?;
        srq.attr.limit = limit;
        srq.check_limit(events);
        Ok(())
    }

    /// Sizes, and the limit if it was not reached yet.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn query_srq(&self, srq: SrqId) -> Result<SrqAttr, ControlError> {
        self.shared.srqs.get(srq.0).map(|srq| srq.attr).ok_or(ControlError::NotFound("shared receive queue"))
    }

    /// Ends a shared receive queue; receives that wait in it are dropped, and messages that name it are refused from now on.
    ///
    /// # Errors
    /// `NotFound`; `Busy` while queue pairs take from it alone.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), ControlError> {
        let found = self.shared.srqs.get(srq.0).ok_or(ControlError::NotFound("shared receive queue"))?;
        if found.users > 0 {
            return Err(ControlError::Busy("shared receive queue"));
        }
        let (pd, extension) = (found.pd, found.extension);
        if let Some(pd) = self.shared.pds.get_mut(pd.0) {
            pd.srqs -= 1;
        }
        self.shared.srqs.remove(srq.0);
        if let Some(extension) = extension {
            self.end_extension(srq, &extension);
        }
        self.shared.events.retain(|event| *event != AsyncEvent::SrqLimit(srq));
        Ok(())
    }

    /// Posts a receive to a shared queue.
    ///
    /// # Errors
    /// `State` if there is no such queue; `Full` if as many receives as it holds are outstanding, those that queue pairs have
    /// taken and not completed among them; `Invalid` for too many buffers or one that is not `Keyed`.
    pub fn post_srq_recv(&mut self, _now: Instant, srq: SrqId, request: &RecvRequest<'_>) -> Result<(), PostError> {
        let srq = self.shared.srqs.get_mut(srq.0).ok_or(PostError::State)?;
        let receive = RecvWqe::new(request, &srq.queue)?;
        if srq.queue.len() + srq.held >= srq.attr.max_wr {
            return Err(PostError::Full);
        }
        srq.queue.push(receive, request.buffers);
        for qpn in core::mem::take(&mut srq.starved) {
            self.wake_local_peer(qpn);
        }
        Ok(())
    }
}

fn check_size(max_wr: u32) -> Result<(), ControlError> {
    if max_wr == 0 || max_wr > limits::MAX_SRQ_WR {
        return Err(ControlError::Invalid("a shared receive queue cannot hold so many requests"));
    }
    Ok(())
}

fn check_limit(limit: u32, attr: &SrqAttr) -> Result<(), ControlError> {
    if limit > attr.max_wr { Err(ControlError::Invalid("the limit is above the size of the queue")) } else { Ok(()) }
}
