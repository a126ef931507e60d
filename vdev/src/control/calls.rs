//! What each request of a client needs before and after the datapath: memory, descriptors, a look at its process.
//!
//! Owns: sizes granted, descriptors made and passed, the check of values that are the daemon's own. Objects live in the datapath,
//! in the tables of the client.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use emtt::Access;
use nix::fcntl::OFlag;
use nix::sys::eventfd::{EfdFlags, EventFd};
use rnic::{QpType, SrqAttr, WindowKind, limits as core_limits};
use roce::{Gid, Mtu, Qpn};
use tokio::sync::mpsc;
use vdev_abi::cm::{CmReply, CmRequest};
use vdev_abi::control::{ABI_VERSION, DeviceInfo, Handle, PortInfo, QpAttr, QpCaps, Refusal, Reply, Request, SharedRange};
use vdev_abi::layout::{ContextPage, CqLayout, QP_SLOTS, QpLayout, STAGING_BYTES};
use vdev_abi::mapping::Mapping;
use vdev_abi::queue::RecvConsumer;

use super::devices::Device;
use super::session::Answer;
use crate::datapath::{
    Attachment, ClientId, ClientInit, Datapath, DatapathHandle, DomainFile, Ended, Gone, NewQp, QpRequest, clock, limits,
    no_rings, refuse,
};
use crate::memory::{self, Peer, Process, Resolved};
use crate::port::check_route;

/// Bytes kept of a program's name.
const PROGRAM_BYTES: usize = 64;

/// One connection's side of its calls.
pub struct Caller<'a> {
    device: Arc<Device>,
    datapath: DatapathHandle,
    peer: &'a Peer,
    ended: mpsc::UnboundedSender<Ended>,
    live: Option<Live>,
}

/// After Hello.
struct Live {
    attachment: Attachment,
    process: Arc<Process>,
    program: String,
}

/// `IBV_QP_AV` and `IBV_QP_PATH_MTU` of `enum ibv_qp_attr_mask`.
const IBV_QP_AV: u32 = 1 << 7;
const IBV_QP_PATH_MTU: u32 = 1 << 8;

/// What the system refused while an object was made.
fn system(what: &str) -> impl FnOnce(io::Error) -> Refusal + '_ {
    move |error| {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        refuse(errno, format!("the daemon cannot make {what}: {error}"))
    }
}

fn stopping(_: Gone) -> Refusal {
    refuse(libc::ENODEV, "the daemon is stopping")
}

impl<'a> Caller<'a> {
    /// A connection that has not said Hello.
    pub fn new(device: Arc<Device>, datapath: DatapathHandle, peer: &'a Peer, ended: mpsc::UnboundedSender<Ended>) -> Self {
        Caller { device, datapath, peer, ended, live: None }
    }

    /// In the datapath, once there has been a Hello.
    pub fn client(&self) -> Option<ClientId> {
        self.live.as_ref().map(|live| live.attachment.id())
    }

    /// Program name, once there has been a Hello.
    pub fn program(&self) -> Option<&str> {
        self.live.as_ref().map(|live| live.program.as_str())
    }

    /// Process ID.
    pub fn pid(&self) -> i32 {
        self.peer.pid
    }

    /// Executes a request. Descriptors that it does not want are closed.
    pub async fn execute(&mut self, request: Request, fds: Vec<OwnedFd>) -> Answer {
        let request = match request {
            Request::Hello { abi, program } => return self.hello(abi, &program, fds).await,
            other => other,
        };
        let Some(Live { attachment, process, .. }) = &self.live else {
            return Err(refuse(libc::EPROTO, "the first message has to be Hello"));
        };
        let (client, process) = (attachment.id(), process.clone());
        match request {
            Request::Hello { .. } => unreachable!("taken above"),
            Request::QueryPort => Ok((Reply::Port(self.port()), Vec::new())),
            Request::AllocPd => self.on_datapath(move |d| d.alloc_pd(client)).await.map(|pd| (Reply::Handle(pd), Vec::new())),
            Request::DeallocPd { pd } => self.done(move |d| d.dealloc_pd(client, pd)).await,
            Request::RegMr { pd, addr, length, iova, access, shared } => {
                self.reg_mr(client, &process, None, MrRequest { pd, addr, length, iova, access, shared }, fds).await
            }
            Request::ReregMr { mr, pd, addr, length, iova, access, shared } => {
                self.reg_mr(client, &process, Some(mr), MrRequest { pd, addr, length, iova, access, shared }, fds).await
            }
            Request::RegDmabufMr { mr, pd, offset, length, iova, access } => {
                let access = check_access(access)?;
                let writable = access.contains(Access::LOCAL_WRITE);
                let resolved = memory::resolve_buffer(&process, one(fds)?, (offset, length), writable);
                let resolved = resolved.map_err(|error| refuse(error.errno(), error.to_string()))?;
                self.register(client, mr, pd, iova, access, resolved).await
            }
            Request::RevokeDmabuf => {
                let mappings = memory::mappings_of(&process, one(fds)?);
                let mappings = mappings.map_err(|error| refuse(error.errno(), error.to_string()))?;
                // What the registrations held is let go of here, and the buffer with it, before the client is told.
                let revoke = move |d: &mut Datapath| {
                    let revoked = d.revoke_buffer(client, &mappings)?;
                    Ok((revoked, mappings))
                };
                let ((revoked, held), mappings) = self.on_datapath(revoke).await?;
                drop((held, mappings));
                Ok((Reply::Revoked(revoked), Vec::new()))
            }
            Request::DeregMr { mr } => self.done(move |d| d.dereg_mr(client, mr)).await,
            Request::AllocNullMr { pd } => {
                let region = self.on_datapath(move |d| d.alloc_null_mr(client, pd)).await?;
                Ok((Reply::Region { mr: region.handle, lkey: region.lkey, rkey: 0, mapped: true }, Vec::new()))
            }
            Request::AllocMw { pd, kind } => self.alloc_mw(client, pd, kind).await,
            Request::DeallocMw { mw } => self.done(move |d| d.dealloc_mw(client, mw)).await,
            Request::CreateChannel => self.create_channel(client).await,
            Request::DestroyChannel { channel } => self.done(move |d| d.destroy_channel(client, channel)).await,
            Request::CreateCq { depth, channel, cookie } => self.create_cq(client, depth, channel, cookie).await,
            Request::ResizeCq { cq, depth } => self.resize_cq(client, cq, depth).await,
            Request::DestroyCq { cq } => self.done(move |d| d.destroy_cq(client, cq)).await,
            Request::CreateSrq { pd, max_wr, max_sge, limit, cookie } => {
                self.create_srq(client, pd, SrqAttr { max_wr, max_sge, limit }, cookie).await
            }
            Request::OpenXrcd { create, exclusive } => self.open_xrcd(client, create, exclusive, fds).await,
            Request::CloseXrcd { xrcd } => self.done(move |d| d.close_xrcd(client, xrcd)).await,
            Request::CreateXrcSrq { pd, xrcd, cq, max_wr, max_sge, cookie } => {
                let (layout, fd, memory, recv) = receive_ring(max_wr, max_sge)?;
                let max_wr = layout.rq_depth;
                let attr = SrqAttr { max_wr, max_sge, limit: 0 };
                let srq = self.on_datapath(move |d| d.create_xrc_srq(client, pd, xrcd, cq, attr, memory, recv, cookie)).await?;
                Ok((Reply::XrcSrq { srq: srq.handle, max_wr, srqn: srq.srqn, slot: srq.slot }, vec![fd]))
            }
            Request::CreateXrcTarget { xrcd, cookie } => {
                self.give_target(move |d, memory| d.create_xrc_target(client, xrcd, memory, cookie)).await
            }
            Request::OpenXrcTarget { xrcd, qpn, cookie } => {
                let qpn = Qpn::new(qpn);
                self.give_target(move |d, memory| d.open_xrc_target(client, xrcd, qpn, memory, cookie)).await
            }
            Request::SetSrqLimit { srq, limit } => self.done(move |d| d.set_srq_limit(client, srq, limit)).await,
            Request::ResizeSrq { srq, max_wr } => self.resize_srq(client, srq, max_wr).await,
            Request::QuerySrq { srq } => {
                self.on_datapath(move |d| d.query_srq(client, srq)).await.map(|attr| (Reply::SrqLimit(attr.limit), Vec::new()))
            }
            Request::DestroySrq { srq } => self.done(move |d| d.destroy_srq(client, srq)).await,
            Request::CreateQp { pd, qp_type, send_cq, recv_cq, srq, caps, all_signaled, cookie } => {
                let qp_type = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend]
                    .into_iter()
                    .find(|&known| known as u32 == qp_type)
                    .ok_or_else(|| {
                        let message = format!(
                            "queue pairs of type {qp_type} are not made so, only RC (2), UC (3), UD (4) and XRC_SEND (9)"
                        );
                        refuse(libc::EOPNOTSUPP, message)
                    })?;
                self.create_qp(client, QpRequest { qp_type, pd, send_cq, recv_cq, srq, caps, all_signaled, cookie }).await
            }
            Request::ModifyQp { qp, mask, attr } => {
                self.check_path(mask, &attr)?;
                self.done(move |d| d.modify_qp(client, qp, mask, &attr)).await
            }
            Request::QueryQp { qp } => {
                self.on_datapath(move |d| d.query_qp(client, qp)).await.map(|attr| (Reply::QpAttr(attr), Vec::new()))
            }
            Request::DestroyQp { qp } => self.done(move |d| d.destroy_qp(client, qp)).await,
            Request::AttachMcast { qp, gid } => self.done(move |d| d.attach_multicast(client, qp, Gid(gid))).await,
            Request::DetachMcast { qp, gid } => self.done(move |d| d.detach_multicast(client, qp, Gid(gid))).await,
            Request::CreateStaging => self.create_staging(client).await,
            Request::Cm(CmRequest::CreateChannel) => self.create_event_channel(client).await,
            Request::Cm(request) => {
                let gids = self.device.gids();
                self.on_datapath(move |d| d.cm_call(client, &gids, request)).await.map(|reply| (Reply::Cm(reply), Vec::new()))
            }
        }
    }

    /// A path MTU that the route to the peer does not take would lose every long packet without a word.
    fn check_path(&self, mask: u32, attr: &QpAttr) -> Result<(), Refusal> {
        if mask & IBV_QP_AV == 0 || mask & IBV_QP_PATH_MTU == 0 {
            return Ok(());
        }
        let asked = u8::try_from(attr.path_mtu).ok().and_then(Mtu::from_code);
        let source = self.device.spec.ips.get(usize::from(attr.ah_sgid_index));
        // What is wrong with either is said by whoever checks all attributes.
        let (Some(asked), Some(&source)) = (asked, source) else { return Ok(()) };
        if !self.device.port().on_wire.contains(&source) {
            return Ok(());
        }
        let peer = Gid(attr.ah_dgid).ip();
        check_route(source, peer, asked).map_err(|narrow| refuse(libc::EINVAL, narrow.to_string()))
    }

    async fn on_datapath<R: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Datapath) -> Result<R, Refusal> + Send + 'static,
    ) -> Result<R, Refusal> {
        let turn = self.device.budget.turn().await;
        let (answer, took) = self.datapath.timed(call).await.map_err(stopping)?;
        turn.charge(took);
        answer
    }

    /// A call that answers Done; what it returns is dropped here, off the datapath.
    async fn done<R: Send + 'static>(&self, call: impl FnOnce(&mut Datapath) -> Result<R, Refusal> + Send + 'static) -> Answer {
        self.on_datapath(call).await.map(|_| (Reply::Done, Vec::new()))
    }

    fn port(&self) -> PortInfo {
        let view = self.device.port();
        // IBV_PORT_ACTIVE and IBV_PORT_DOWN.
        PortInfo { state: if view.is_up { 4 } else { 1 }, active_mtu: view.mtu as u32 }
    }

    async fn hello(&mut self, abi: u32, program: &str, fds: Vec<OwnedFd>) -> Answer {
        if self.live.is_some() {
            return Err(refuse(libc::EPROTO, "this connection has said Hello before"));
        }
        if abi != ABI_VERSION {
            return Err(refuse(
                libc::EPROTO,
                format!(
                    "the verbs library speaks version {abi}, this daemon version {ABI_VERSION}: use the library that came with it"
                ),
            ));
        }
        let mem = fds.into_iter().next();
        let process = Process::open(self.peer, mem).map_err(|error| refuse(error.errno(), error.to_string()))?;
        let process = Arc::new(process);
        let (page_fd, page) = Mapping::create(c"vrdma-context", ContextPage::BYTES).map_err(system("the context page"))?;
        let doorbell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|errno| system("the doorbell")(errno.into()))?;
        let their_doorbell = doorbell.as_fd().try_clone_to_owned().map_err(system("the doorbell"))?;
        let (their_events, events) = pipe().map_err(system("the event pipe"))?;
        let program = shortened(program);
        let init = ClientInit {
            device: self.device.id,
            pid: self.peer.pid,
            program: program.as_str().into(),
            page,
            doorbell,
            events,
            process: process.clone(),
            ended: self.ended.clone(),
        };
        let datapath = self.datapath.clone();
        let attach = move |d: &mut Datapath| {
            let id = d.attach(init).map_err(system("a place for the client"))?;
            Ok(Attachment::new(id, datapath))
        };
        let attachment = self.on_datapath(attach).await?;
        self.live = Some(Live { attachment, process, program });
        Ok((Reply::Device(self.device_info()), vec![page_fd, their_doorbell, their_events]))
    }

    fn device_info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.device.name.clone(),
            fw_version: env!("CARGO_PKG_VERSION").into(),
            guid: self.device.guid,
            max_mr_size: 1 << 47,
            max_qp: QP_SLOTS as u32,
            max_qp_wr: core_limits::MAX_QP_WR,
            max_sge: core_limits::MAX_SGE,
            max_inline_data: core_limits::MAX_INLINE,
            max_cq: limits::CQS as u32,
            max_cqe: limits::CQE,
            max_mr: limits::REGIONS as u32,
            max_mw: limits::WINDOWS as u32,
            max_pd: limits::PDS as u32,
            max_mcast_grp: core_limits::MAX_GROUPS as u32,
            max_mcast_qp_attach: core_limits::MAX_GROUP_QPS as u32,
            max_srq: limits::SRQS as u32,
            max_srq_wr: core_limits::MAX_SRQ_WR,
            max_qp_rd_atomic: core_limits::MAX_RD_ATOMIC.into(),
            max_msg_size: core_limits::MAX_MSG as u32,
            gids: self.device.gids().iter().map(|gid| gid.0).collect(),
            port: self.port(),
        }
    }

    /// Registers memory, in the place of an earlier registration if one is given.
    async fn reg_mr(
        &self,
        client: ClientId,
        process: &Arc<Process>,
        earlier: Option<Handle>,
        request: MrRequest,
        fds: Vec<OwnedFd>,
    ) -> Answer {
        let MrRequest { pd, addr, length, iova, access, shared } = request;
        let access = check_access(access)?;
        if fds.len() != shared.len() {
            let message = format!("{} shared ranges came with {} descriptors", shared.len(), fds.len());
            return Err(refuse(libc::EINVAL, message));
        }
        let writable = access.contains(Access::LOCAL_WRITE);
        let shared = shared.into_iter().zip(fds).collect();
        let turn = self.device.budget.turn().await;
        let begun = clock();
        let resolved = memory::resolve(process, addr, length, writable, shared);
        turn.charge(clock().saturating_since(begun));
        // What comes next may wait for a file system.
        drop(turn);
        let resolved = resolved.map_err(|error| refuse(error.errno(), error.to_string()))?;
        if !resolved.doubtful.is_empty() {
            // On a thread of its own: a file system in user space may never answer.
            let (process, doubtful) = (process.clone(), resolved.doubtful.clone());
            let probed = tokio::task::spawn_blocking(move || memory::probe(&process, &doubtful)).await;
            probed.map_err(|_| stopping(Gone))?.map_err(|error| refuse(error.errno(), error.to_string()))?;
        }
        self.register(client, earlier, pd, iova, access, resolved).await
    }

    /// Registers memory that was found.
    async fn register(
        &self,
        client: ClientId,
        earlier: Option<Handle>,
        pd: Handle,
        iova: u64,
        access: Access,
        resolved: Resolved,
    ) -> Answer {
        let mapped = resolved.fully_mapped;
        let region = match earlier {
            None => self.on_datapath(move |d| d.reg_mr(client, pd, iova, access, resolved)).await?,
            Some(mr) => {
                // What it named before comes back, to be let go of here.
                let (region, _before) = self.on_datapath(move |d| d.rereg_mr(client, mr, pd, iova, access, resolved)).await?;
                region
            }
        };
        Ok((Reply::Region { mr: region.handle, lkey: region.lkey, rkey: region.rkey, mapped }, Vec::new()))
    }

    async fn alloc_mw(&self, client: ClientId, pd: Handle, kind: u32) -> Answer {
        let kind = match kind {
            1 => WindowKind::One,
            2 => WindowKind::Two,
            other => return Err(refuse(libc::EINVAL, format!("memory windows are of type 1 or 2, not {other}"))),
        };
        let (mw, rkey) = self.on_datapath(move |d| d.alloc_mw(client, pd, kind)).await?;
        Ok((Reply::Window { mw, rkey }, Vec::new()))
    }

    async fn create_channel(&self, client: ClientId) -> Answer {
        let (theirs, ours) = pipe().map_err(system("a completion channel"))?;
        let channel = self.on_datapath(move |d| d.create_channel(client, ours)).await?;
        Ok((Reply::Channel(channel), vec![theirs]))
    }

    async fn create_event_channel(&self, client: ClientId) -> Answer {
        let (theirs, ours) = pipe().map_err(system("an event channel"))?;
        let channel = self.on_datapath(move |d| d.create_event_channel(client, ours)).await?;
        Ok((Reply::Cm(CmReply::Channel(channel)), vec![theirs]))
    }

    async fn create_cq(&self, client: ClientId, depth: u32, channel: Option<Handle>, cookie: u64) -> Answer {
        let (layout, fd, ring) = completion_ring(depth)?;
        let cq = self.on_datapath(move |d| d.create_cq(client, ring, &layout, channel, cookie)).await?;
        Ok((Reply::Cq { cq, depth: layout.depth }, vec![fd]))
    }

    async fn resize_cq(&self, client: ClientId, cq: Handle, depth: u32) -> Answer {
        let (layout, fd, ring) = completion_ring(depth)?;
        // The old ring comes back, to be unmapped here.
        self.on_datapath(move |d| d.resize_cq(client, cq, ring, &layout)).await?;
        Ok((Reply::Cq { cq, depth: layout.depth }, vec![fd]))
    }

    async fn create_srq(&self, client: ClientId, pd: Handle, wanted: SrqAttr, cookie: u64) -> Answer {
        let (layout, fd, memory, recv) = receive_ring(wanted.max_wr, wanted.max_sge)?;
        let attr = SrqAttr { max_wr: layout.rq_depth, ..wanted };
        let srq = self.on_datapath(move |d| d.create_srq(client, pd, attr, memory, recv, cookie)).await?;
        Ok((Reply::Srq { srq, max_wr: layout.rq_depth }, vec![fd]))
    }

    async fn resize_srq(&self, client: ClientId, srq: Handle, max_wr: u32) -> Answer {
        let max_sge = self.on_datapath(move |d| d.query_srq(client, srq)).await?.max_sge;
        let (layout, fd, memory, recv) = receive_ring(max_wr, max_sge)?;
        let max_wr = layout.rq_depth;
        // The old ring comes back, to be unmapped here.
        self.on_datapath(move |d| d.resize_srq(client, srq, memory, recv, max_wr)).await?;
        Ok((Reply::Srq { srq, max_wr }, vec![fd]))
    }

    async fn create_qp(&self, client: ClientId, request: QpRequest) -> Answer {
        let (max_recv_wr, max_recv_sge) = match request.srq {
            Some(_) => (0, 0),
            None => (request.caps.max_recv_wr, request.caps.max_recv_sge),
        };
        let (caps, layout) = grant(&QpCaps { max_recv_wr, max_recv_sge, ..request.caps })?;
        let request = QpRequest { caps, ..request };
        let (fd, memory) = Mapping::create(c"vrdma-qp", layout.bytes).map_err(system("the rings of a queue pair"))?;
        let memory = Arc::new(memory);
        let qp = self.on_datapath(move |d| d.create_qp(client, memory, &layout, &request)).await?;
        Ok((Reply::Qp { qp: qp.handle, qpn: qp.qpn, doorbell: qp.slot, caps }, vec![fd]))
    }

    async fn open_xrcd(&self, client: ClientId, create: bool, exclusive: bool, fds: Vec<OwnedFd>) -> Answer {
        let file = fds.into_iter().next().map(|file| {
            let found = nix::sys::stat::fstat(&file).map_err(|errno| system("a domain by this file")(errno.into()))?;
            Ok(DomainFile { inode: (found.st_dev, found.st_ino), file })
        });
        let file = file.transpose()?;
        let (xrcd, _unused) = self.on_datapath(move |d| d.open_xrcd(client, file, create, exclusive)).await?;
        Ok((Reply::Handle(xrcd), Vec::new()))
    }

    /// A queue pair without rings, which `call` makes or finds; it has a page of its own all the same, as all queue pairs do.
    async fn give_target(
        &self,
        call: impl FnOnce(&mut Datapath, Arc<Mapping>) -> Result<NewQp, Refusal> + Send + 'static,
    ) -> Answer {
        let (layout, caps) = no_rings();
        let (fd, memory) = Mapping::create(c"vrdma-qp", layout.bytes).map_err(system("the page of a queue pair"))?;
        let memory = Arc::new(memory);
        let qp = self.on_datapath(move |d| call(d, memory)).await?;
        Ok((Reply::Qp { qp: qp.handle, qpn: qp.qpn, doorbell: qp.slot, caps }, vec![fd]))
    }

    async fn create_staging(&self, client: ClientId) -> Answer {
        let (fd, memory) = Mapping::create(c"vrdma-staging", STAGING_BYTES).map_err(system("a staging buffer"))?;
        let memory = Arc::new(memory);
        self.on_datapath(move |d| d.create_staging(client, memory)).await?;
        Ok((Reply::Staging, vec![fd]))
    }
}

/// Rights as the client names them.
fn check_access(bits: u32) -> Result<Access, Refusal> {
    let access =
        Access::from_bits(bits).ok_or_else(|| refuse(libc::EINVAL, format!("access flags {bits:#x} are not supported")))?;
    if access.is_consistent() {
        Ok(access)
    } else {
        Err(refuse(libc::EINVAL, "remote write or atomic access needs local write access"))
    }
}

/// The one descriptor that a request comes with.
fn one(fds: Vec<OwnedFd>) -> Result<OwnedFd, Refusal> {
    let count = fds.len();
    let [fd] = <[OwnedFd; 1]>::try_from(fds)
        .map_err(|_| refuse(libc::EINVAL, format!("a buffer is one descriptor, and {count} came with the request")))?;
    Ok(fd)
}

struct MrRequest {
    pd: Handle,
    addr: u64,
    length: u64,
    iova: u64,
    access: u32,
    shared: Vec<SharedRange>,
}

/// Memory for a completion queue with at least this many entries.
fn completion_ring(depth: u32) -> Result<(CqLayout, OwnedFd, Mapping), Refusal> {
    if depth == 0 || depth > limits::CQE {
        return Err(refuse(libc::EINVAL, format!("a completion queue has 1 to {} entries, not {depth}", limits::CQE)));
    }
    let layout = CqLayout::new(depth).ok_or_else(|| refuse(libc::EINVAL, "no such completion queue"))?;
    let (fd, ring) = Mapping::create(c"vrdma-cq", layout.bytes).map_err(system("a completion ring"))?;
    Ok((layout, fd, ring))
}

/// Memory for a shared receive queue with at least this many receives, and our end of it.
fn receive_ring(max_wr: u32, max_sge: u32) -> Result<(QpLayout, OwnedFd, Mapping, RecvConsumer), Refusal> {
    if max_wr == 0 || max_wr > core_limits::MAX_SRQ_WR || max_sge > core_limits::MAX_SGE {
        let (wr, sge) = (core_limits::MAX_SRQ_WR, core_limits::MAX_SGE);
        let message = format!("a shared receive queue has 1 to {wr} receives of {sge} buffers, not {max_wr} of {max_sge}");
        return Err(refuse(libc::EINVAL, message));
    }
    let (layout, caps) =
        QpLayout::shared(max_wr, max_sge).ok_or_else(|| refuse(libc::EINVAL, "no such shared receive queue"))?;
    let (fd, memory) = Mapping::create(c"vrdma-srq", layout.bytes).map_err(system("a receive ring"))?;
    let recv = RecvConsumer::new(&layout, &caps);
    Ok((layout, fd, memory, recv))
}

/// Sizes granted for sizes wanted, and the layout for them. Checked before any memory is made.
fn grant(wanted: &QpCaps) -> Result<(QpCaps, QpLayout), Refusal> {
    for (name, value, limit) in [
        ("max_send_wr", wanted.max_send_wr, core_limits::MAX_QP_WR),
        ("max_recv_wr", wanted.max_recv_wr, core_limits::MAX_QP_WR),
        ("max_send_sge", wanted.max_send_sge, core_limits::MAX_SGE),
        ("max_recv_sge", wanted.max_recv_sge, core_limits::MAX_SGE),
        ("max_inline_data", wanted.max_inline_data, core_limits::MAX_INLINE),
    ] {
        if value > limit {
            return Err(refuse(libc::EINVAL, format!("{name} {value} is more than the device's {limit}")));
        }
    }
    let layout = QpLayout::new(wanted).ok_or_else(|| refuse(libc::EINVAL, "no such queue pair"))?;
    // Rings are powers of two; a client may use all of them.
    let caps = QpCaps { max_send_wr: layout.sq_depth, max_recv_wr: layout.rq_depth, ..*wanted };
    Ok((caps, layout))
}

/// Read end for the client, which may block on it; write end for us, which never does.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    nix::fcntl::fcntl(&write, nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((read, write))
}

/// What people are shown: printable, and short.
fn shortened(program: &str) -> String {
    let mut end = program.len().min(PROGRAM_BYTES);
    while !program.is_char_boundary(end) {
        end -= 1;
    }
    program[..end].chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_names_are_cut_at_a_character() {
        assert_eq!(shortened("ib_write_bw"), "ib_write_bw");
        assert_eq!(shortened(&"ü".repeat(40)), "ü".repeat(32));
        assert_eq!(shortened(&("x".to_owned() + &"ü".repeat(40))).len(), 63);
        assert_eq!(shortened("a\nb\x1b[0m"), "a?b?[0m");
    }

    #[test]
    fn granted_sizes_are_at_least_those_wanted_and_bounded() {
        let wanted = QpCaps { max_send_wr: 100, max_recv_wr: 0, max_send_sge: 3, max_recv_sge: 1, max_inline_data: 60 };
        let (caps, layout) = grant(&wanted).unwrap();
        assert_eq!((caps.max_send_wr, caps.max_recv_wr, caps.max_inline_data), (128, 0, 60));
        assert_eq!(QpLayout::new(&caps), Some(layout));
        let most = core_limits::MAX_QP_WR;
        assert!(grant(&QpCaps { max_send_wr: most, ..wanted }).is_ok());
        for spoiled in [
            QpCaps { max_send_wr: most + 1, ..wanted },
            QpCaps { max_recv_wr: u32::MAX, ..wanted },
            QpCaps { max_send_sge: core_limits::MAX_SGE + 1, ..wanted },
            QpCaps { max_recv_sge: 1 << 31, ..wanted },
            QpCaps { max_inline_data: u32::MAX, ..wanted },
        ] {
            assert_eq!(grant(&spoiled).unwrap_err().errno, libc::EINVAL);
        }
    }
}
