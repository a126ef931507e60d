//! Completion queues: where completions of many queue pairs wait, in the order in which they came to be, for the front end.

use crate::work::{Completion, CqId, DeviceId, SrqId};
use alloc::collections::VecDeque;
use roce::Qpn;

/// A completion queue. Its depth lives with the front end.
#[derive(Debug)]
pub(crate) struct Cq {
    pub device: DeviceId,
    /// Overrun: completions are dropped.
    pub error: bool,
    /// Queue pairs that complete here, send and receive side counted apart, and shared receive queues that do.
    pub users: u32,
}

/// Completions of all queues, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Completions {
    ready: VecDeque<(CqId, Completion)>,
    /// Completions whose bytes are not in memory yet: see [`Completions::defer`].
    deferred: VecDeque<(CqId, Completion)>,
    deferring: bool,
}

impl Completions {
    #[inline]
    pub fn push(&mut self, cq: CqId, completion: Completion) {
        let queue = if self.deferring { &mut self.deferred } else { &mut self.ready };
        queue.push_back((cq, completion));
    }

    pub fn pop(&mut self) -> Option<(CqId, Completion)> {
        self.ready.pop_front()
    }

    /// From now on completions wait until [`Self::release`]: bytes that they promise are not in memory yet.
    pub fn defer(&mut self) {
        self.deferring = true;
    }

    /// The bytes are in memory.
    pub fn release(&mut self) {
        self.deferring = false;
        self.ready.append(&mut self.deferred);
    }

    /// The bytes could not be written: the completions that wait come out as `change` leaves them.
    pub fn release_changed(&mut self, mut change: impl FnMut(&mut Completion)) {
        for (_, completion) in &mut self.deferred {
            change(completion);
        }
        self.release();
    }

    pub fn forget_qp(&mut self, qpn: Qpn) {
        self.ready.retain(|(_, completion)| completion.qpn != qpn);
    }

    /// Forgets receives of a shared queue that requests name.
    pub fn forget_srq(&mut self, srq: SrqId) {
        self.ready.retain(|(_, completion)| completion.srq != Some(srq));
    }

    pub fn forget_cq(&mut self, cq: CqId) {
        self.ready.retain(|&(id, _)| id != cq);
    }
}
