//! Clients of the datapath: what each made, and how it is taken apart.
//!
//! A client is one connection to a device socket. Everything it made hangs on its [`Client`], so that ending it, whoever asks,
//! is one function. Owns: the tables, their bounds, the order of destruction. Never: the meaning of requests ([`super::calls`])
//! or the rings' traffic ([`super::rings`]).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use emtt::MemId;
use nix::sys::eventfd::EventFd;
use rnic::{CqId, DeviceId, PdId, QpType, SrqId, XrcdId};
use roce::{Instant, Lkey, Qpn, Rkey};
use tokio::sync::mpsc;
use vdev_abi::completion::CqProducer;
use vdev_abi::control::Handle;
use vdev_abi::doorbell::Doorbell;
use vdev_abi::layout::{QP_SLOTS, STAGING_BYTES};
use vdev_abi::mapping::Mapping;
use vdev_abi::queue::{RecvConsumer, SendConsumer};

use super::cm::ClientCm;
use super::handles::Handles;
use super::wake::Source;
use super::{Datapath, limits};
use crate::memory::{Process, SharedMapping};
use crate::sq::Unkeyed;

/// Names a client of the datapath; never reused for another within 2^32 clients of the same index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientId {
    pub(super) index: u32,
    generation: u32,
}

/// What a connection brings.
pub struct ClientInit {
    /// The device of its socket.
    pub device: DeviceId,
    /// Its process, 0 when it is not visible from here.
    pub pid: i32,
    /// Name of its program, as that gave it.
    pub program: Arc<str>,
    /// Our mapping of the context page.
    pub page: Mapping,
    /// Written by the client when the page says that we sleep.
    pub doorbell: EventFd,
    /// Write end of the asynchronous event pipe, non-blocking.
    pub events: OwnedFd,
    /// How to reach the memory of the process.
    pub process: Arc<Process>,
    /// Told when the datapath ends the client.
    pub ended: mpsc::UnboundedSender<Ended>,
}

/// The datapath has ended a client.
pub struct Ended {
    /// Why.
    pub reason: String,
    /// What it held, to be dropped outside the datapath.
    pub client: Box<Client>,
}

/// A registered region.
#[derive(Debug)]
pub(super) struct Region {
    pub lkey: Lkey,
    /// Shared objects in it. Held here too, so that the last one to let go is whoever drops the region, not the datapath.
    pub mappings: Vec<(MemId, Arc<SharedMapping>)>,
    /// What it had to give up, for the same reason.
    pub lost: Vec<Arc<SharedMapping>>,
}

impl Region {
    pub fn new(lkey: Lkey, mappings: Vec<(MemId, Arc<SharedMapping>)>) -> Region {
        Region { lkey, mappings, lost: Vec::new() }
    }
}

/// A completion channel.
#[derive(Debug)]
pub(super) struct Channel {
    /// Write end, non-blocking.
    pub pipe: OwnedFd,
    /// CQs that use it.
    pub cqs: u32,
    /// Indices of CQs whose event waits for room in the pipe, each at most once.
    pub waiting: Vec<u32>,
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    pub id: CqId,
    pub ring: Mapping,
    pub producer: CqProducer,
    pub channel: Option<Handle>,
    pub cookie: u64,
    /// Written to in this round: an event may be due.
    pub touched: bool,
    /// One of this round's completions is solicited or an error.
    pub solicited: bool,
    /// In [`Channel::waiting`].
    pub event_waits: bool,
}

/// A shared receive queue.
#[derive(Debug)]
pub(super) struct SharedReceiveQueue {
    pub id: SrqId,
    pub memory: Mapping,
    pub recv: RecvConsumer,
    pub cookie: u64,
    /// The domain by which requests may name it, if any may.
    pub xrcd: Option<Handle>,
}

/// A domain of extended reliable connections, as one client has opened it.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenDomain {
    pub id: XrcdId,
    /// What it has made of it: shared receive queues and queue pairs.
    pub users: u32,
}

/// A queue pair: its index in the table is its doorbell slot.
#[derive(Debug)]
pub(super) struct QueuePair {
    pub qpn: Qpn,
    pub qp_type: QpType,
    pub memory: Arc<Mapping>,
    pub unkeyed: Unkeyed,
    pub send: SendConsumer,
    pub recv: RecvConsumer,
    /// Where its receives come from instead: index in [`Client::srqs`], which outlives it.
    pub srq: Option<u32>,
    /// Of a target of extended reliable connections: the domain by which the client has it.
    pub xrcd: Option<Handle>,
    /// In the list of queue pairs to be looked at.
    pub queued: bool,
    pub cookie: u64,
}

/// One connection.
pub struct Client {
    generation: u32,
    pub(super) device: DeviceId,
    pub(super) pid: i32,
    pub(super) program: Arc<str>,
    pub(super) page: Mapping,
    pub(super) doorbell: EventFd,
    pub(super) events: OwnedFd,
    ended: mpsc::UnboundedSender<Ended>,
    pub(super) process: MemId,
    pub(super) staging: Option<(Arc<Mapping>, MemId)>,
    pub(super) pds: Handles<PdId>,
    pub(super) regions: Handles<Region>,
    /// Windows, each with the domain and the key that it was made with.
    pub(super) windows: Handles<(PdId, Rkey)>,
    pub(super) channels: Handles<Channel>,
    pub(super) cqs: Handles<CompletionQueue>,
    pub(super) srqs: Handles<SharedReceiveQueue>,
    pub(super) qps: Handles<QueuePair>,
    pub(super) xrcds: Handles<OpenDomain>,
    /// Indices in [`Self::srqs`] of those that requests can name.
    pub(super) named_srqs: Vec<u32>,
    pub(super) cm: ClientCm,
    /// Of domains that ended with it, to be closed outside the datapath.
    files: Vec<OwnedFd>,
    /// Bytes of rings, bounded by [`limits::RING_BYTES`].
    pub(super) ring_bytes: u64,
    /// Last round in which it rang.
    pub(super) last_ring: Instant,
    /// Polled by the loop; otherwise armed, and heard through its eventfd.
    pub(super) polled: bool,
}

/// Objects of a client, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Protection domains.
    pub pds: usize,
    /// Regions.
    pub mrs: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Queue pairs.
    pub qps: usize,
}

impl Client {
    pub(super) fn is(&self, id: ClientId) -> bool {
        self.generation == id.generation
    }

    pub(super) fn bell(&self) -> Doorbell<'_> {
        Doorbell::of(&self.page)
    }

    pub(super) fn unkeyed(&self, ring: MemId) -> Unkeyed {
        Unkeyed { ring, staging: self.staging.as_ref().map(|&(_, id)| (id, STAGING_BYTES as u64)) }
    }

    fn counts(&self) -> ObjectCounts {
        ObjectCounts { pds: self.pds.len(), mrs: self.regions.len(), cqs: self.cqs.len(), qps: self.qps.len() }
    }
}

impl Datapath {
    /// Takes a new client; it is heard from now on.
    pub fn attach(&mut self, init: ClientInit) -> std::io::Result<ClientId> {
        let index = self.free_clients.pop().unwrap_or(self.clients.len() as u32);
        if let Err(error) = self.epoll.add_doorbell(init.doorbell.as_fd(), Source::Doorbell(index)) {
            // An index beyond the table is simply not used.
            if (index as usize) < self.clients.len() {
                self.free_clients.push(index);
            }
            return Err(error);
        }
        self.client_generation = self.client_generation.wrapping_add(1);
        let generation = self.client_generation;
        let process = self.memories.add_process(init.process);
        let client = Client {
            generation,
            device: init.device,
            pid: init.pid,
            program: init.program,
            page: init.page,
            doorbell: init.doorbell,
            events: init.events,
            ended: init.ended,
            process,
            staging: None,
            pds: Handles::new(limits::PDS),
            regions: Handles::new(limits::REGIONS),
            windows: Handles::new(limits::WINDOWS),
            channels: Handles::new(limits::CHANNELS),
            cqs: Handles::new(limits::CQS),
            srqs: Handles::new(limits::SRQS),
            qps: Handles::new(QP_SLOTS),
            xrcds: Handles::new(limits::XRCDS),
            named_srqs: Vec::new(),
            cm: ClientCm::new(),
            files: Vec::new(),
            ring_bytes: 0,
            last_ring: Instant::ZERO,
            polled: false,
        };
        // Nothing can have rung yet: the page reaches the client with the answer.
        let _ = client.bell().arm();
        if index as usize == self.clients.len() {
            self.clients.push(None);
        }
        self.clients[index as usize] = Some(Box::new(client));
        Ok(ClientId { index, generation })
    }

    pub(super) fn client(&mut self, id: ClientId) -> Option<&mut Client> {
        self.clients.get_mut(id.index as usize)?.as_deref_mut().filter(|client| client.generation == id.generation)
    }

    /// Ends a client and everything it made. What it held is returned so that the caller unmaps it outside the data path;
    /// `None` if the datapath has ended it before.
    pub fn detach(&mut self, id: ClientId) -> Option<Box<Client>> {
        self.client(id)?;
        self.take_apart(id.index)
    }

    /// Ends every client of a device.
    pub(super) fn detach_all_of(&mut self, device: DeviceId) -> Vec<Client> {
        let of_device = |(index, client): (usize, &Option<Box<Client>>)| {
            client.as_ref().is_some_and(|client| client.device == device).then_some(index as u32)
        };
        let indices: Vec<u32> = self.clients.iter().enumerate().filter_map(of_device).collect();
        indices.into_iter().filter_map(|index| self.take_apart(index)).map(|client| *client).collect()
    }

    fn take_apart(&mut self, index: u32) -> Option<Box<Client>> {
        let mut client = self.clients.get_mut(index as usize)?.take()?;
        self.free_clients.push(index);
        self.epoll.remove(client.doorbell.as_fd());
        if client.polled {
            self.polled.retain(|&other| other != index);
        }
        self.ready.retain(|&(other, _)| other != index);
        self.touched.retain(|&(other, _)| other != index);
        // First, so that peers learn of it before their requests time out.
        self.connections.forget(self.now, client.device, &client.cm);
        self.take_cm_outputs();
        for (slot, qp) in client.qps.iter() {
            self.end_queue_pair(qp, (index, slot));
        }
        for (_, srq) in client.srqs.iter() {
            self.srq_by_id.remove(&srq.id);
            if let Err(error) = self.rnic.destroy_srq(srq.id) {
                tracing::error!(%error, "a shared receive queue outlived its client");
            }
        }
        for (_, domain) in client.xrcds.iter() {
            client.files.extend(self.leave_domain(domain.id));
        }
        for (_, cq) in client.cqs.iter() {
            self.cq_by_id.remove(&cq.id);
            if let Err(error) = self.rnic.destroy_cq(cq.id) {
                tracing::error!(%error, "a completion queue outlived its client");
            }
        }
        for (_, &(pd, key)) in client.windows.iter() {
            if let Err(error) = self.rnic.dealloc_mw(pd, key) {
                tracing::error!(%error, "a memory window was unknown to the core");
            }
        }
        for (region_index, region) in client.regions.iter() {
            self.windows.leave(region_index, &region.mappings);
            if let Err(error) = self.rnic.dereg_mr(region.lkey) {
                tracing::error!(%error, "a region was unknown to the core");
            }
            for &(mapping, _) in &region.mappings {
                self.memories.remove(mapping);
            }
        }
        for (_, &pd) in client.pds.iter() {
            if let Err(error) = self.rnic.dealloc_pd(pd) {
                tracing::error!(%error, "a protection domain outlived its client");
            }
        }
        for (_, channel) in client.channels.iter() {
            self.epoll.remove(channel.pipe.as_fd());
        }
        if let Some((_, staging)) = client.staging.take() {
            self.memories.remove(staging);
        }
        self.memories.remove(client.process);
        Some(client)
    }

    /// Ends a client at the end of the round, for something that it wrote.
    pub(super) fn condemn(&mut self, index: u32, reason: impl ToString) {
        if !self.condemned.iter().any(|&(other, _)| other == index) {
            self.condemned.push((index, reason.to_string()));
        }
    }

    /// Ends the clients that this round has condemned.
    pub(super) fn end_condemned(&mut self) {
        while let Some((index, reason)) = self.condemned.pop() {
            self.end_client(index, reason);
        }
    }

    /// Its connection is closed by the control thread, which is told why.
    fn end_client(&mut self, index: u32, reason: String) {
        if let Some(client) = self.take_apart(index) {
            // If the session is gone already, nobody needs to know.
            let _ = client.ended.clone().send(Ended { reason, client });
        }
    }

    /// Objects of a client.
    pub fn client_counts(&mut self, id: ClientId) -> Option<ObjectCounts> {
        self.client(id).map(|client| client.counts())
    }
}
