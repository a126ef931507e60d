//! Several SENDs, WRITEs or READs with one copy.
//!
//! Into the memory of another process a copy is a system call, which costs as much as ten kilobytes of it. Requests of one kind
//! that stand behind one another are therefore checked one by one and copied together. Where that does not end well, none of
//! them counts as executed, and each is executed by itself, which tells which one is to blame; bytes may be written twice
//! then, as on the wire. SENDs go into receives of the peer's own queue; from a shared one each takes its receive by itself.

use super::super::access::{BadBuffer, Refusal, for_each_segment, local_right};
use super::super::responder::{Ending, Message};
use super::super::{Qp, SendWqe, Wait};
use crate::attr::{QpState, QpType};
use crate::dma::Dma;
use crate::limits::RUN_BYTES;
use crate::rnic::Rnic;
use crate::shared::{Scratch, Shared};
use crate::work::{DeviceId, SendFlags, SendOp};
use emtt::{Access, Segment, Table};
use roce::Qpn;

/// What the requests of a run do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Send,
    Write,
    Read,
}

/// The kind of run that a request may be one of.
fn kind_of(wqe: &SendWqe) -> Option<Kind> {
    let kind = match wqe.op {
        SendOp::Send { invalidate: None, .. } => Kind::Send,
        SendOp::Write { imm: None, .. } => Kind::Write,
        SendOp::Read { .. } => Kind::Read,
        _ => return None,
    };
    (wqe.length <= RUN_BYTES).then_some(kind)
}

/// Requests that are executed together.
#[derive(Clone, Copy, Default)]
struct Run {
    count: u32,
    bytes: u32,
}

impl Rnic {
    /// Executes the requests of one kind at the head of the queue, at most as many and of as many bytes together as `most` says.
    /// Returns how many, and their bytes; 0 if there are fewer than two or anything about them is out of the ordinary.
    pub(super) fn local_run(&mut self, qpn: Qpn, peer_device: DeviceId, dma: &mut impl Dma, most: (u32, u32)) -> (u32, u32) {
        let Rnic { qps, shared, scratch } = self;
        let Some((qp, kind)) = qps.get(qpn.get()).and_then(|qp| Some((&**qp, qp.kind_of_run()?))) else { return (0, 0) };
        let call = qp.call(peer_device);
        let dest = call.peer(shared);
        let Some(peer) = qps.get(dest.get()).filter(|peer| peer.answers(&call) && call.ports_are_up(shared)) else {
            return (0, 0);
        };
        let run = qp.collect_run(kind, peer, &shared.table, scratch, most);
        let (from, to) = match kind {
            Kind::Send | Kind::Write => (&scratch.ours, &scratch.theirs),
            Kind::Read => (&scratch.theirs, &scratch.ours),
        };
        if run.count < 2 || (run.bytes > 0 && dma.copy(from, to).is_err()) {
            return (0, 0);
        }
        if let Some(peer) = qps.get_mut(dest.get()) {
            peer.resp.expected_psn = call.psn;
            peer.note_reception(shared);
        }
        for _ in 0..run.count {
            let Some(qp) = qps.get_mut(qpn.get()) else { break };
            qp.req.cursor.begun = qp.sq.head.wrapping_add(1);
            let wqe = *qp.sq.get(qp.sq.head);
            if let Some(peer) = qps.get_mut(dest.get()) {
                peer.finish_one_of_run(shared, &wqe);
            }
            if let Some(qp) = qps.get_mut(qpn.get()) {
                qp.finish_local(shared, &wqe);
            }
        }
        (run.count, run.bytes)
    }
}

impl Qp {
    /// The kind of the run that the oldest request begins: nothing may be under way, and another one must wait behind it.
    fn kind_of_run(&self) -> Option<Kind> {
        let is_at_rest = self.state == QpState::Rts && self.wait == Wait::Nothing && self.req.moved == 0;
        // Each request of an extended connection may name another queue, and with it other memory.
        if !is_at_rest || self.sq.len() < 2 || self.qp_type == QpType::XrcSend {
            return None;
        }
        let kind = kind_of(self.sq.get(self.sq.head))?;
        (kind != Kind::Read || self.attr.max_rd_atomic > 0).then_some(kind)
    }

    /// Gathers in `scratch` the memory of the requests of a run, up to the first that does not belong to it or fails a check.
    fn collect_run(&self, kind: Kind, peer: &Qp, table: &Table, scratch: &mut Scratch, most: (u32, u32)) -> Run {
        let Scratch { ours, theirs, .. } = scratch;
        ours.clear();
        theirs.clear();
        let mut run = Run::default();
        let waiting = self.sq.len();
        while run.count < waiting.min(most.0) {
            let index = self.sq.head.wrapping_add(run.count);
            let wqe = self.sq.get(index);
            if kind_of(wqe) != Some(kind) || wqe.length > most.1 - run.bytes {
                break;
            }
            let before = (ours.len(), theirs.len());
            let range = (0, u64::from(wqe.length));
            let own = for_each_segment(table, self.pd, self.sq.buffers(index), range, local_right(wqe), |s| ours.push(s));
            let far = peer.memory_of(table, wqe, run.count, |segment| theirs.push(segment));
            if own.is_err() || far.is_err() {
                ours.truncate(before.0);
                theirs.truncate(before.1);
                break;
            }
            (run.count, run.bytes) = (run.count + 1, run.bytes + wqe.length);
        }
        run
    }

    /// Calls `f` with this side's memory for request `n` of a peer's run.
    fn memory_of(&self, table: &Table, wqe: &SendWqe, n: u32, f: impl FnMut(Segment)) -> Result<(), Refusal> {
        let len = wqe.length;
        match wqe.op {
            SendOp::Write { remote_addr, rkey, .. } => {
                self.check_connection(Access::REMOTE_WRITE, len)?;
                self.remote_segments(table, Access::REMOTE_WRITE, self.remote(remote_addr, rkey, len), f)
            }
            SendOp::Read { remote_addr, rkey } => {
                self.begin_read(len)?;
                self.remote_segments(table, Access::REMOTE_READ, self.remote(remote_addr, rkey, len), f)
            }
            SendOp::Send { .. } if n < self.rq.len() => {
                let index = self.rq.head.wrapping_add(n);
                if len > self.rq.get(index).length {
                    return Err(Refusal::INVALID);
                }
                let (buffers, range) = (self.rq.buffers(index), (0, u64::from(len)));
                for_each_segment(table, self.recv_pd, buffers, range, Access::LOCAL_WRITE, f)
                    .map_err(|BadBuffer| Refusal::INVALID)
            }
            _ => Err(Refusal::NotReady),
        }
    }

    /// The responder's side of the next request of a run, whose bytes are there.
    fn finish_one_of_run(&mut self, shared: &mut Shared, wqe: &SendWqe) {
        if let SendOp::Send { imm, .. } = wqe.op {
            self.resp.received = wqe.length;
            let ending = Ending { imm, invalidate: None, solicited: wqe.flags.contains(SendFlags::SOLICITED) };
            assert!(self.finish(shared, Message::Send, ending).is_ok(), "its receive is there, and it invalidates nothing");
        }
        self.resp.expected_psn = self.resp.expected_psn.plus(wqe.packets);
        self.resp.count_message();
    }
}
