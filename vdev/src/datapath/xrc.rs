//! Extended reliable connections: domains that clients share, and the queue pairs that they may share in them.
//!
//! Clients that open a domain by the same file have the same one. A target, the queue pair that takes requests, is of its domain and
//! lives as long as one of the clients that have it; its shared receive queues are each one client's. Whoever may open both the
//! device and the file may let peers of the others fill its own queues, and change or end their connections: so it is on any device.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rnic::{DeviceId, QpType, SrqAttr, XrcdId};
use roce::Qpn;
use vdev_abi::control::{Handle, QpCaps};
use vdev_abi::layout::{QP_SLOTS, QpLayout, SRQ_SLOT};
use vdev_abi::mapping::Mapping;
use vdev_abi::queue::{RecvConsumer, SendConsumer};

use super::calls::{Answer, NewQp, charge, full, refuse, refused, unknown};
use super::clients::{Client, ClientId, OpenDomain, QueuePair, SharedReceiveQueue};
use super::handles::Handles;
use super::{Datapath, limits};

/// A file by which a domain is shared.
#[derive(Debug)]
pub struct DomainFile {
    /// Device and number of its inode.
    pub inode: (u64, u64),
    /// Kept open, so that the inode is not another file's meanwhile.
    pub file: OwnedFd,
}

/// A domain, and how many clients have opened it, each time counted.
#[derive(Debug)]
pub(super) struct Domain {
    device: DeviceId,
    file: Option<DomainFile>,
    openings: u32,
}

/// A target, and where it stands in the tables of the clients that have it.
#[derive(Debug)]
pub(super) struct Target {
    xrcd: XrcdId,
    pub places: Vec<(u32, u32)>,
}

/// A new shared receive queue that requests can name.
pub struct NewXrcSrq {
    /// Its handle.
    pub handle: Handle,
    /// The number by which requests name it.
    pub srqn: u32,
    /// Its index.
    pub slot: u32,
}

impl Client {
    /// Something is made of a domain. False if none is named.
    pub(super) fn use_domain(&mut self, xrcd: Option<Handle>) -> bool {
        let domain = xrcd.and_then(|xrcd| self.xrcds.get_mut(xrcd));
        domain.map(|domain| domain.users += 1).is_some()
    }

    /// What was made of a domain, if one is named, is gone.
    pub(super) fn unuse_domain(&mut self, xrcd: Option<Handle>) {
        if let Some(domain) = xrcd.and_then(|xrcd| self.xrcds.get_mut(xrcd)) {
            domain.users -= 1;
        }
    }

    fn domain(&self, xrcd: Handle) -> Answer<XrcdId> {
        self.xrcds.get(xrcd).map(|domain| domain.id).ok_or_else(|| unknown("domain of extended connections", xrcd))
    }
}

impl Datapath {
    /// Opens a domain: with a file, that which others have opened by it, or a new one if `create` allows. The file comes back if
    /// the domain has one already, to be closed elsewhere.
    pub fn open_xrcd(
        &mut self,
        id: ClientId,
        file: Option<DomainFile>,
        create: bool,
        exclusive: bool,
    ) -> Answer<(Handle, Option<DomainFile>)> {
        let (_, client) = self.with_client(id)?;
        if !client.xrcds.has_room() {
            return Err(full("domains of extended connections", limits::XRCDS));
        }
        let device = client.device;
        let same = |domain: &Domain| {
            let inode = domain.file.as_ref().map(|file| file.inode);
            domain.device == device && inode.is_some() && inode == file.as_ref().map(|file| file.inode)
        };
        let found = self.domains.iter().find(|(_, domain)| same(domain)).map(|(&xrcd, _)| xrcd);
        let (xrcd, unused) = match found {
            Some(_) if exclusive => {
                return Err(refuse(libc::EINVAL, "a domain of extended connections is open by this file already"));
            }
            Some(xrcd) => (xrcd, file),
            None if file.is_some() && !create => {
                return Err(refuse(libc::EAGAIN, "nobody has opened a domain of extended connections by this file"));
            }
            None => {
                let xrcd = self.rnic.alloc_xrcd(device).map_err(|error| refused(&error))?;
                self.domains.insert(xrcd, Domain { device, file, openings: 0 });
                (xrcd, None)
            }
        };
        self.domains.get_mut(&xrcd).expect("found or made above").openings += 1;
        let client = self.client(id).expect("found above");
        Ok((client.xrcds.insert(OpenDomain { id: xrcd, users: 0 }).expect("room was checked"), unused))
    }

    /// Closes a domain; its file is returned to be closed elsewhere when nobody has it open any more.
    pub fn close_xrcd(&mut self, id: ClientId, handle: Handle) -> Answer<Option<OwnedFd>> {
        let (_, client) = self.with_client(id)?;
        let xrcd = client.domain(handle)?;
        let users = client.xrcds.get(handle).map_or(0, |domain| domain.users);
        if users > 0 {
            let message =
                format!("{users} queues or queue pairs of this domain of extended connections live: destroy them first");
            return Err(refuse(libc::EBUSY, message));
        }
        client.xrcds.remove(handle);
        Ok(self.leave_domain(xrcd))
    }

    /// A client has closed a domain.
    pub(super) fn leave_domain(&mut self, xrcd: XrcdId) -> Option<OwnedFd> {
        let domain = self.domains.get_mut(&xrcd)?;
        domain.openings -= 1;
        if domain.openings > 0 {
            return None;
        }
        let domain = self.domains.remove(&xrcd)?;
        if let Err(error) = self.rnic.dealloc_xrcd(xrcd) {
            tracing::error!(%error, "a domain of extended connections outlived its clients");
        }
        domain.file.map(|file| file.file)
    }

    /// New shared receive queue over this memory, which requests can name.
    #[expect(clippy::too_many_arguments, reason = "what the call names, and its memory")]
    pub fn create_xrc_srq(
        &mut self,
        id: ClientId,
        pd: Handle,
        xrcd: Handle,
        cq: Handle,
        attr: SrqAttr,
        memory: Mapping,
        recv: RecvConsumer,
        cookie: u64,
    ) -> Answer<NewXrcSrq> {
        let (_, client) = self.with_client(id)?;
        let &pd = client.pds.get(pd).ok_or_else(|| unknown("protection domain", pd))?;
        let cq = client.cqs.get(cq).ok_or_else(|| unknown("completion queue", cq))?.id;
        let domain = client.domain(xrcd)?;
        let make = |rnic: &mut rnic::Rnic| rnic.create_xrc_srq(pd, attr, domain, cq);
        let (handle, srq) = self.create_srq_with(id, memory, recv, (cookie, Some(xrcd)), make)?;
        Ok(NewXrcSrq { handle, srqn: srq.number().get(), slot: Handles::<SharedReceiveQueue>::index_of(handle) })
    }

    /// New target.
    pub fn create_xrc_target(&mut self, id: ClientId, xrcd: Handle, memory: Arc<Mapping>, cookie: u64) -> Answer<NewQp> {
        let (rnic, client) = self.with_client(id)?;
        let domain = client.domain(xrcd)?;
        client.make_room_for_target(&memory)?;
        let qpn = match rnic.create_xrc_target(domain) {
            Ok(qpn) => qpn,
            Err(error) => {
                client.ring_bytes -= memory.len() as u64;
                return Err(refused(&error));
            }
        };
        self.targets.insert(qpn, Target { xrcd: domain, places: Vec::new() });
        self.give_target(id, xrcd, qpn, memory, cookie)
    }

    /// Gives a client a target of a domain that it has opened.
    pub fn open_xrc_target(
        &mut self,
        id: ClientId,
        xrcd: Handle,
        qpn: Qpn,
        memory: Arc<Mapping>,
        cookie: u64,
    ) -> Answer<NewQp> {
        let (_, client) = self.with_client(id)?;
        let domain = client.domain(xrcd)?;
        if self.targets.get(&qpn).is_none_or(|target| target.xrcd != domain) {
            return Err(refuse(libc::EINVAL, format!("this domain of extended connections has no queue pair {qpn}")));
        }
        let (_, client) = self.with_client(id)?;
        client.make_room_for_target(&memory)?;
        self.give_target(id, xrcd, qpn, memory, cookie)
    }

    /// Room for it was made.
    fn give_target(&mut self, id: ClientId, xrcd: Handle, qpn: Qpn, memory: Arc<Mapping>, cookie: u64) -> Answer<NewQp> {
        let ring = self.memories.add_ring(memory.clone());
        let client = self.client(id).expect("found by the callers");
        client.use_domain(Some(xrcd));
        let slot = client.qps.next_index();
        let (layout, caps) = no_rings();
        let qp = QueuePair {
            qpn,
            qp_type: QpType::XrcRecv,
            memory,
            unkeyed: client.unkeyed(ring),
            send: SendConsumer::new(&layout, &caps),
            recv: RecvConsumer::new(&layout, &caps),
            srq: None,
            xrcd: Some(xrcd),
            queued: false,
            cookie,
        };
        let handle = client.qps.insert(qp).expect("room was made");
        self.targets.get_mut(&qpn).expect("found or made by the callers").places.push((id.index, slot));
        Ok(NewQp { handle, qpn: qpn.get(), slot })
    }

    /// A client has a target no more; it ends when nobody has it.
    pub(super) fn leave_target(&mut self, qpn: Qpn, place: (u32, u32)) {
        let Some(target) = self.targets.get_mut(&qpn) else { return };
        target.places.retain(|&other| other != place);
        if !target.places.is_empty() {
            return;
        }
        self.targets.remove(&qpn);
        if let Err(error) = self.rnic.destroy_qp(self.now, qpn) {
            tracing::error!(%qpn, %error, "a target was unknown to the core");
        }
    }

    /// Empties the rings of those shared receive queues of a client that requests can name: it has posted to one of them.
    pub(super) fn drain_named_srqs(&mut self, index: u32) {
        for n in 0.. {
            let client = self.clients[index as usize].as_deref();
            let Some(&srq) = client.and_then(|client| client.named_srqs.get(n)) else { return };
            self.drain_shared(index, srq);
        }
    }
}

impl Client {
    fn make_room_for_target(&mut self, memory: &Mapping) -> Answer<()> {
        if !self.qps.has_room() {
            return Err(full("queue pairs", QP_SLOTS));
        }
        charge(&mut self.ring_bytes, memory.len())
    }
}

/// The layout of a queue pair without rings, and its sizes.
pub fn no_rings() -> (QpLayout, QpCaps) {
    let caps = QpCaps::default();
    (QpLayout::new(&caps).expect("nothing fits"), caps)
}

const _: () = assert!(QP_SLOTS <= SRQ_SLOT as usize, "no queue pair has the doorbell of the shared receive queues");
