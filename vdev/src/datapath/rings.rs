//! From the rings of clients into the core: doorbells, receive requests, send requests.
//!
//! What makes the order right: a send ring's producer index is read first, then the receive ring of the queue pair that the
//! sends go to is emptied, and only then are the sends posted, up to the index read. A receive that was posted before the send,
//! by whatever order the two programs agreed on, is therefore in the core before it; it need not be there before the send is, only
//! before the send is executed, so that the receivers of datagrams are looked at when all are known. Packets from the wire do the same with the
//! queue pair that they name ([`Datapath::drain_receives_of`]).
//!
//! Owns: reading of rings and what a bad entry means (the end of that client). Never writes to a ring.

use isolation::Class;
use rnic::{Destination, PostError, RecvRequest, SendFlags, SendOp, SrqId, limits::MAX_SGE};
use roce::{Qpn, Srqn};
use vdev_abi::layout::{SRQ_SLOT, Sge};
use vdev_abi::mapping::Mapping;
use vdev_abi::queue::RecvConsumer;

use super::Datapath;
use crate::sq::{self, Buffers, NO_BUFFER};

/// Send requests taken from one queue pair per round, so that no client keeps the others waiting.
const SENDS_PER_ROUND: u32 = 64;

/// Reused room for one entry.
pub(super) struct Scratch {
    sges: [Sge; MAX_SGE as usize],
    buffers: Buffers,
    /// Whom the datagrams that were just posted go to.
    pub(super) receivers: Vec<Qpn>,
    /// Where the last of them goes.
    last_destination: Option<Destination>,
    /// The shared receive queues of this daemon that requests which were just posted name.
    named: Vec<SrqId>,
    /// The last of them.
    last_named: Option<Srqn>,
}

impl Scratch {
    pub fn new() -> Self {
        Scratch {
            sges: [Sge { addr: 0, length: 0, lkey: 0 }; MAX_SGE as usize],
            buffers: [NO_BUFFER; MAX_SGE as usize],
            receivers: Vec::new(),
            last_destination: None,
            named: Vec::new(),
            last_named: None,
        }
    }
}

impl Datapath {
    /// Collects the queue pairs whose bell was rung. True if there are any.
    pub(super) fn take_doorbells(&mut self) -> bool {
        let mut rung = false;
        for &index in &self.polled {
            let Some(client) = self.clients[index as usize].as_deref_mut() else { continue };
            let bell = vdev_abi::doorbell::Doorbell::of(&client.page);
            if !bell.pending() {
                continue;
            }
            rung = true;
            client.last_ring = self.now;
            let (qps, ready) = (&mut client.qps, &mut self.ready);
            bell.take(|slot| {
                if slot == SRQ_SLOT {
                    ready.push((index, slot));
                }
                if let Some(qp) = qps.at_mut(slot)
                    && !qp.queued
                {
                    qp.queued = true;
                    ready.push((index, slot));
                }
            });
        }
        rung
    }

    /// Posts what the queue pairs collected have to post. True if something was.
    pub(super) fn post_ready(&mut self) -> bool {
        if self.ready.is_empty() {
            return false;
        }
        let mut again = std::mem::take(&mut self.ready_again);
        let ready = std::mem::take(&mut self.ready);
        for &(client, slot) in &ready {
            if self.post_queue_pair(client, slot, SENDS_PER_ROUND) {
                again.push((client, slot));
            }
        }
        // The two lists swap roles, so that neither is allocated anew.
        self.ready = again;
        self.ready_again = ready;
        self.ready_again.clear();
        true
    }

    /// Posts everything that a queue pair's rings hold at this moment.
    pub(super) fn drain_queue_pair(&mut self, client: u32, slot: u32) {
        self.post_queue_pair(client, slot, u32::MAX);
    }

    /// Receives first, then sends. True if sends are left for the next round.
    fn post_queue_pair(&mut self, client: u32, slot: u32, budget: u32) -> bool {
        if slot == SRQ_SLOT {
            if self.clients[client as usize].is_some() {
                self.drain_named_srqs(client);
            }
            return false;
        }
        self.drain_receives(client, slot);
        let Some(qp) = self.clients[client as usize].as_deref_mut().and_then(|client| client.qps.at_mut(slot)) else {
            return false;
        };
        qp.queued = false;
        let pending = match qp.send.refresh(&qp.memory) {
            Ok(pending) => pending,
            Err(corrupt) => {
                self.condemn(client, corrupt);
                return false;
            }
        };
        if pending == 0 {
            return false;
        }
        let local_peer = self.rnic.local_peer(qp.qpn);
        if let Some(peer) = local_peer {
            self.drain_receives_of(peer);
        }
        let mut probe = self.probe.as_mut().filter(|_| {
            let device = self.clients[client as usize].as_deref().map(|client| client.device);
            device.and_then(|device| self.rnic.shares(device)).is_some_and(|shares| shares.class == Some(Class::Latency))
        });
        let qp = self.clients[client as usize].as_deref_mut().and_then(|client| client.qps.at_mut(slot)).expect("found above");
        let scratch = &mut self.scratch;
        for _ in 0..pending.min(budget) {
            let taken = match qp.send.take(&qp.memory, &mut scratch.sges) {
                Ok(Some(taken)) => taken,
                Ok(None) => break,
                Err(corrupt) => {
                    self.condemn(client, corrupt);
                    return false;
                }
            };
            let sges = &scratch.sges[..usize::from(taken.entry.num_sge)];
            let posted = sq::send_request(qp.qp_type, &taken, sges, &qp.unkeyed, &mut scratch.buffers)
                .map_err(|bad| bad.to_string())
                .and_then(|request| {
                    if let SendOp::Datagram { to, .. } = request.op
                        && scratch.last_destination.replace(to) != Some(to)
                    {
                        scratch.receivers.extend(self.rnic.local_receivers(qp.qpn, &to));
                    }
                    if let Some(srqn) = request.srqn
                        && local_peer.is_some()
                        && scratch.last_named.replace(srqn) != Some(srqn)
                    {
                        scratch.named.push(SrqId::numbered(srqn));
                    }
                    if let Some(probe) = &mut probe
                        && request.flags.contains(SendFlags::SIGNALED)
                    {
                        probe.posted(qp.qpn, request.wr_id, self.now);
                    }
                    accepted(self.rnic.post_send(self.now, qp.qpn, &request))
                });
            if let Err(reason) = posted {
                self.condemn(client, reason);
                return false;
            }
        }
        let more = pending > budget;
        qp.queued = more;
        self.drain_receivers();
        more
    }

    /// Empties the receive rings of those whom datagrams that were just posted go to, and of the shared receive queues that requests name:
    /// a receive that was posted before a datagram is to be there when it is delivered.
    pub(super) fn drain_receivers(&mut self) {
        self.scratch.last_destination = None;
        self.scratch.last_named = None;
        while let Some(srq) = self.scratch.named.pop() {
            self.drain_srq(srq);
        }
        while let Some(receiver) = self.scratch.receivers.pop() {
            self.drain_receives_of(receiver);
        }
    }

    /// Empties the receive ring of a queue pair of this daemon, if there is one with this number.
    pub(super) fn drain_receives_of(&mut self, qpn: Qpn) {
        match self.qp_by_number.get(&qpn) {
            Some(&(client, slot)) => self.drain_receives(client, slot),
            None => self.drain_guest_receives_of(qpn),
        }
    }

    fn drain_receives(&mut self, index: u32, slot: u32) {
        let Some(client) = self.clients[index as usize].as_deref_mut() else { return };
        let Some(qp) = client.qps.at_mut(slot) else { return };
        if let Some(srq) = qp.srq {
            return self.drain_shared(index, srq);
        }
        let post = |request: RecvRequest<'_>| self.rnic.post_recv(self.now, qp.qpn, &request);
        if let Err(reason) = drain(&mut qp.recv, &qp.memory, &mut self.scratch, post) {
            self.condemn(index, reason);
        }
    }

    /// Empties the ring of a shared receive queue.
    pub(super) fn drain_srq(&mut self, srq: SrqId) {
        if let Some(&(client, index)) = self.srq_by_id.get(&srq) {
            self.drain_shared(client, index);
        }
    }

    pub(super) fn drain_shared(&mut self, index: u32, srq: u32) {
        let Some(srq) = self.clients[index as usize].as_deref_mut().and_then(|client| client.srqs.at_mut(srq)) else { return };
        let post = |request: RecvRequest<'_>| self.rnic.post_srq_recv(self.now, srq.id, &request);
        if let Err(reason) = drain(&mut srq.recv, &srq.memory, &mut self.scratch, post) {
            self.condemn(index, reason);
        }
    }
}

/// Posts everything that a receive ring holds.
fn drain(
    ring: &mut RecvConsumer,
    memory: &Mapping,
    scratch: &mut Scratch,
    mut post: impl FnMut(RecvRequest<'_>) -> Result<(), PostError>,
) -> Result<(), String> {
    let pending = ring.refresh(memory).map_err(|corrupt| corrupt.to_string())?;
    for _ in 0..pending {
        let Some(entry) = ring.take(memory, &mut scratch.sges).map_err(|corrupt| corrupt.to_string())? else { break };
        let request = sq::recv_request(&entry, &scratch.sges[..entry.num_sge as usize], &mut scratch.buffers);
        accepted(post(request.map_err(|bad| bad.to_string())?))?;
    }
    Ok(())
}

/// The library never posts more than a queue holds nor what the core calls invalid. It can post to a queue pair that another
/// thread resets at the same moment; that request is lost, as on any device.
fn accepted(result: Result<(), PostError>) -> Result<(), String> {
    match result {
        Ok(()) | Err(PostError::State) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}
