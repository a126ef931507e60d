//! Who may act next: a round robin over the queue pairs that have something to do. It is asked before every burst of packets
//! and before every step of the local path, for requests and responses alike.

use alloc::collections::VecDeque;
use roce::Qpn;

/// The ready queue. A queue pair is in it at most once; its own flag says whether it is.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    ready: VecDeque<Qpn>,
}

impl Schedule {
    /// Puts a queue pair at the end, unless it is queued already.
    #[inline]
    pub fn add(&mut self, qpn: Qpn, queued: &mut bool) {
        if !*queued {
            *queued = true;
            self.ready.push_back(qpn);
        }
    }

    /// The next queue pair; the caller clears its flag. It may be gone by now.
    #[inline]
    pub fn take(&mut self) -> Option<Qpn> {
        self.ready.pop_front()
    }
}
