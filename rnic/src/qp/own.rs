//! Requests that concern this side alone: binding a window, and invalidating a key. Nothing of them is sent, and they take no PSN.
//!
//! On the wire a request is done when its turn to be sent comes, so that what is sent after it finds it done, and completes once all
//! before it have. Taking a key back waits for those to complete first: they may have to be sent again, from memory that the key
//! names (IBA 10.6.5.1, the local invalidate fence, which is always on here).

use super::Qp;
use crate::attr::QpState;
use crate::shared::Shared;
use crate::vendor_err;
use crate::work::{BindWindow, SendFlags, SendOp, Status};
use emtt::Binding;

impl Qp {
    /// Does a request.
    pub fn do_own(&self, shared: &mut Shared, op: &SendOp) -> Result<(), (Status, u32)> {
        match *op {
            SendOp::BindWindow(BindWindow { window, rkey, lkey, addr, len, access, zero_based }) => {
                let binding = Binding { window: window.0, key: rkey.0, region: lkey.0, addr, len, access, zero_based };
                let bound = shared.table.bind_window(self.via(), &binding);
                bound.map_err(|_| (Status::MwBindError, vendor_err::BIND_WINDOW))
            }
            SendOp::LocalInvalidate { key } if !shared.invalidate(self.via(), key) => {
                Err((Status::LocalQpOperationError, vendor_err::INVALIDATE))
            }
            _ => Ok(()),
        }
    }

    /// Wire: does the requests of this kind that stand at the cursor and may start, and passes those that are done.
    pub fn do_own_requests(&mut self, shared: &mut Shared) {
        while self.req.cursor.index != self.sq.tail {
            let index = self.req.cursor.index;
            let wqe = *self.sq.get(index);
            if !wqe.op.is_local() {
                return;
            }
            if index == self.req.cursor.begun {
                let waits = wqe.flags.contains(SendFlags::FENCE) && self.req.fetches.len() > 0
                    || matches!(wqe.op, SendOp::LocalInvalidate { .. }) && index != self.sq.head;
                if waits || self.state != QpState::Rts || self.req.fault.is_some() {
                    return;
                }
                if let Err((status, cause)) = self.do_own(shared, &wqe.op) {
                    return self.set_fault(shared, status, cause);
                }
                self.sq.get_mut(index).first_psn = self.req.cursor.new_psn;
                self.req.cursor.begun = index.wrapping_add(1);
            }
            self.req.cursor.index = index.wrapping_add(1);
            self.complete_own_requests(shared);
        }
    }

    /// Wire: completes the oldest requests as long as they are of this kind and done.
    #[inline]
    pub fn complete_own_requests(&mut self, shared: &mut Shared) {
        while self.req.has_begun(&self.sq) && self.sq.get(self.sq.head).op.is_local() {
            self.complete_send(shared, Status::Success, vendor_err::NONE);
        }
    }
}
