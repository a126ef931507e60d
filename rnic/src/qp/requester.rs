//! The requester: what is under way, and sending it.

use super::window::Window;
use super::{Qp, Ring, SendWqe, Wait};
use crate::dma::Dma;
use crate::event::Transmit;
use crate::shared::{Scratch, Shared};
use crate::vendor_err;
use crate::work::Status;
use roce::wire::icrc::Flow;
use roce::{Instant, Psn};

/// A queue pair's state as requester.
#[derive(Debug)]
pub(crate) struct Requester {
    /// PSN of the next packet to send.
    pub next_psn: Psn,
    /// Requests before this one (a count as in [`Ring`]) have been begun.
    pub begun: u32,
    /// Bytes of the oldest message that have been moved (local path).
    pub moved: u32,
    /// Timeouts and sequence NAKs since the last progress.
    pub retries: u8,
    /// RNR NAKs since the last progress.
    pub rnr_retries: u8,
    /// State SQD, before the last begun request has completed.
    pub draining: bool,
    pub window: Window,
}

impl Requester {
    pub fn new() -> Self {
        Requester {
            next_psn: Psn::new(0),
            begun: 0,
            moved: 0,
            retries: 0,
            rnr_retries: 0,
            draining: false,
            window: Window::new(),
        }
    }

    /// The queue pair becomes ready to send.
    pub fn start(&mut self, psn: Psn) {
        self.next_psn = psn;
    }

    /// Whether a request was begun that has not completed.
    pub fn has_begun(&self, sq: &Ring<SendWqe>) -> bool {
        self.begun.wrapping_sub(sq.head) as i32 > 0
    }

    /// The queue pair is in error: nothing is under way any more.
    pub fn abandon(&mut self) {
        self.draining = false;
        self.moved = 0;
    }
}

impl Qp {
    /// Makes one burst of packets.
    pub fn transmit(
        &mut self,
        _shared: &mut Shared,
        _scratch: &mut Scratch,
        _now: Instant,
        _flow: Flow,
        _dma: &mut impl Dma,
        _buf: &mut [u8],
    ) -> Option<Transmit> {
        None
    }

    /// The timer ran out.
    pub fn handle_timeout(&mut self, shared: &mut Shared) {
        let wait = core::mem::replace(&mut self.wait, Wait::Nothing);
        match wait {
            Wait::Nothing | Wait::Rnr => {}
            Wait::Ack | Wait::Peer => {
                shared.count(self.device, |counters| counters.ack_timeout += 1);
                if self.req.retries >= self.attr.retry_cnt {
                    let cause = if wait == Wait::Peer { vendor_err::LOCAL_PEER } else { vendor_err::TIMEOUT };
                    self.fail_send(shared, Status::RetryExceededError, cause);
                    return;
                }
                self.req.retries += 1;
            }
        }
        self.schedule(shared);
    }
}
