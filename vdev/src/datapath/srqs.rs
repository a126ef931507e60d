//! Control calls about shared receive queues. Their rings are read together with those of the queue pairs that take from them
//! ([`super::rings`]).

use rnic::{ControlError, Rnic, SrqAttr, SrqId};
use vdev_abi::control::{Handle, Refusal};
use vdev_abi::mapping::Mapping;
use vdev_abi::queue::RecvConsumer;

use super::calls::{Answer, charge, full, refused, unknown};
use super::clients::{Client, ClientId, SharedReceiveQueue};
use super::handles::Handles;
use super::{Datapath, limits};

impl Datapath {
    /// New shared receive queue over this memory.
    pub fn create_srq(
        &mut self,
        id: ClientId,
        pd: Handle,
        attr: SrqAttr,
        memory: Mapping,
        recv: RecvConsumer,
        cookie: u64,
    ) -> Answer<Handle> {
        let (_, client) = self.with_client(id)?;
        let &pd = client.pds.get(pd).ok_or_else(|| unknown("protection domain", pd))?;
        self.create_srq_with(id, memory, recv, (cookie, None), |rnic| rnic.create_srq(pd, attr)).map(|(handle, _)| handle)
    }

    /// New shared receive queue over this memory, which `make` makes in the core. Of the domain that is named, it counts as a user.
    pub(super) fn create_srq_with(
        &mut self,
        id: ClientId,
        memory: Mapping,
        recv: RecvConsumer,
        (cookie, xrcd): (u64, Option<Handle>),
        make: impl FnOnce(&mut Rnic) -> Result<SrqId, ControlError>,
    ) -> Answer<(Handle, SrqId)> {
        let (rnic, client) = self.with_client(id)?;
        if !client.srqs.has_room() {
            return Err(full("shared receive queues", limits::SRQS));
        }
        let bytes = memory.len();
        charge(&mut client.ring_bytes, bytes)?;
        let srq = match make(rnic) {
            Ok(srq) => srq,
            Err(error) => {
                client.ring_bytes -= bytes as u64;
                return Err(refused(&error));
            }
        };
        let index = client.srqs.next_index();
        let queue = SharedReceiveQueue { id: srq, memory, recv, cookie, xrcd };
        let handle = client.srqs.insert(queue).expect("room was checked");
        if client.use_domain(xrcd) {
            client.named_srqs.push(index);
        }
        self.srq_by_id.insert(srq, (id.index, index));
        Ok((handle, srq))
    }

    /// Moves a shared receive queue to this memory, and gives the old one back. What the old ring holds is posted before.
    pub fn resize_srq(
        &mut self,
        id: ClientId,
        handle: Handle,
        memory: Mapping,
        recv: RecvConsumer,
        max_wr: u32,
    ) -> Answer<Mapping> {
        let srq = self.drained_srq(id, handle)?;
        let (rnic, client) = self.with_client(id)?;
        let Client { srqs, ring_bytes, .. } = client;
        let queue = srqs.get_mut(handle).ok_or_else(|| unknown("shared receive queue", handle))?;
        let bytes = memory.len();
        charge(ring_bytes, bytes)?;
        if let Err(error) = rnic.resize_srq(srq, max_wr) {
            *ring_bytes -= bytes as u64;
            return Err(refused(&error));
        }
        *ring_bytes -= queue.memory.len() as u64;
        queue.recv = recv;
        Ok(std::mem::replace(&mut queue.memory, memory))
    }

    /// Sets the limit below which one event is sent. Receives that were posted before count.
    pub fn set_srq_limit(&mut self, id: ClientId, handle: Handle, limit: u32) -> Answer<()> {
        let srq = self.drained_srq(id, handle)?;
        self.rnic.set_srq_limit(srq, limit).map_err(|error| refused(&error))
    }

    /// Sizes and limit, 0 once its event was sent.
    pub fn query_srq(&mut self, id: ClientId, handle: Handle) -> Answer<SrqAttr> {
        let (rnic, client) = self.with_client(id)?;
        let srq = client.srqs.get(handle).ok_or_else(|| unknown("shared receive queue", handle))?.id;
        rnic.query_srq(srq).map_err(|error| refused(&error))
    }

    /// Ends a shared receive queue that no queue pair takes from alone. When this returns, no further completion of it will be written.
    pub fn destroy_srq(&mut self, id: ClientId, handle: Handle) -> Answer<impl Send + use<>> {
        // Completions that exist already are the client's.
        self.deliver_completions();
        let (rnic, client) = self.with_client(id)?;
        let srq = client.srqs.get(handle).ok_or_else(|| unknown("shared receive queue", handle))?;
        rnic.destroy_srq(srq.id).map_err(|error| refused(&error))?;
        let srq = client.srqs.remove(handle).expect("found above");
        let index = Handles::<SharedReceiveQueue>::index_of(handle);
        client.named_srqs.retain(|&other| other != index);
        client.unuse_domain(srq.xrcd);
        client.ring_bytes -= srq.memory.len() as u64;
        self.srq_by_id.remove(&srq.id);
        Ok(srq.memory)
    }

    /// The core's name of a queue, after everything posted to it has reached the core.
    fn drained_srq(&mut self, id: ClientId, handle: Handle) -> Result<SrqId, Refusal> {
        let (_, client) = self.with_client(id)?;
        let srq = client.srqs.get(handle).ok_or_else(|| unknown("shared receive queue", handle))?.id;
        self.drain_srq(srq);
        Ok(srq)
    }
}
