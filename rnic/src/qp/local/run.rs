//! Several WRITEs, or READs, with one copy.
//!
//! Into the memory of another process a copy is a system call, which costs as much as ten kilobytes of it. Requests of one kind
//! that stand behind one another are therefore checked one by one and copied together. Where that does not end well, none of
//! them counts as executed, and each is executed by itself, which tells which one is to blame; bytes may be written twice
//! then, as on the wire.

use super::super::access::{Refusal, Remote, for_each_segment, local_right};
use super::super::{Qp, SendWqe, Wait};
use crate::attr::QpState;
use crate::dma::Dma;
use crate::limits::RUN_BYTES;
use crate::rnic::Rnic;
use crate::shared::{Scratch, Shared};
use crate::work::{DeviceId, SendOp};
use emtt::{Access, Table};
use roce::Qpn;

/// What the requests of a run do to the peer's memory; they complete nothing there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    Read,
}

/// What a request does to which memory, if it may be one of a run.
fn part_of_run(wqe: &SendWqe) -> Option<(Kind, Remote)> {
    let (kind, addr, rkey) = match wqe.op {
        SendOp::Write { remote_addr, rkey, imm: None } => (Kind::Write, remote_addr, rkey),
        SendOp::Read { remote_addr, rkey } => (Kind::Read, remote_addr, rkey),
        _ => return None,
    };
    (wqe.length <= RUN_BYTES).then_some((kind, Remote { addr, rkey, len: wqe.length }))
}

/// Requests that are executed together.
#[derive(Clone, Copy, Default)]
struct Run {
    count: u32,
    bytes: u32,
    packets: u32,
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
            Kind::Write => (&scratch.ours, &scratch.theirs),
            Kind::Read => (&scratch.theirs, &scratch.ours),
        };
        if run.count < 2 || (run.bytes > 0 && dma.copy(from, to).is_err()) {
            return (0, 0);
        }
        if let Some(peer) = qps.get_mut(dest.get()) {
            peer.resp.expected_psn = call.psn;
            peer.count_run(shared, run);
        }
        if let Some(qp) = qps.get_mut(qpn.get()) {
            qp.finish_run(shared, run);
        }
        (run.count, run.bytes)
    }
}

impl Qp {
    /// The kind of the run that the oldest request begins: nothing may be under way, and another one must wait behind it.
    fn kind_of_run(&self) -> Option<Kind> {
        let is_at_rest = self.state == QpState::Rts && self.wait == Wait::Nothing && self.req.moved == 0;
        if !is_at_rest || self.sq.len() < 2 {
            return None;
        }
        let (kind, _) = part_of_run(self.sq.get(self.sq.head))?;
        (kind == Kind::Write || self.attr.max_rd_atomic > 0).then_some(kind)
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
            let Some((_, remote)) = part_of_run(wqe).filter(|&(other, _)| other == kind && wqe.length <= most.1 - run.bytes)
            else {
                break;
            };
            let before = (ours.len(), theirs.len());
            let range = (0, u64::from(wqe.length));
            let own = for_each_segment(table, self.pd, self.sq.buffers(index), range, local_right(wqe), |s| ours.push(s));
            let right = if kind == Kind::Write { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
            let far = peer
                .allows(kind, remote.len)
                .and_then(|()| peer.remote_segments(table, right, remote, |segment| theirs.push(segment)));
            if own.is_err() || far.is_err() {
                ours.truncate(before.0);
                theirs.truncate(before.1);
                break;
            }
            (run.count, run.bytes, run.packets) = (run.count + 1, run.bytes + wqe.length, run.packets + wqe.packets);
        }
        run
    }

    fn allows(&self, kind: Kind, len: u32) -> Result<(), Refusal> {
        match kind {
            Kind::Write => self.check_connection(Access::REMOTE_WRITE, len),
            Kind::Read => self.begin_read(len),
        }
    }

    /// The responder's side of a run.
    fn count_run(&mut self, shared: &mut Shared, run: Run) {
        self.note_reception(shared);
        self.resp.expected_psn = self.resp.expected_psn.plus(run.packets);
        for _ in 0..run.count {
            self.resp.count_message();
        }
    }

    /// The requester's side of a run.
    fn finish_run(&mut self, shared: &mut Shared, run: Run) {
        self.req.cursor.begun = self.sq.head.wrapping_add(run.count);
        for _ in 0..run.count {
            let wqe = *self.sq.get(self.sq.head);
            self.finish_local(shared, &wqe);
        }
    }
}
