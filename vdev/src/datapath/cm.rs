//! Connection management on the datapath: the connection managers of all devices, between their programs and QP1.
//!
//! Owns: which client has which endpoint, the channels in which events wait for programs, the clock of the managers. What
//! messages mean is in `rnic::cm`; datagrams come from and go to QP1 of the core. A channel is bounded by its endpoints: each
//! has but a few events to tell in its life, and a client can have only so many endpoints.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use rnic::cm::{self, Cm, CmError, ConnectTo, DatagramService, EndpointId};
use rnic::{DeviceId, Mad};
use roce::wire::cm::Transport;
use roce::wire::cma::PortSpace;
use roce::{Gid, Instant, Mtu, Psn, Qpn};
use vdev_abi::cm::{CmEvent, CmEventKind, CmReply, CmRequest, Offer, Peer};
use vdev_abi::control::{Handle, Refusal};

use super::calls::refuse;
use super::clients::{Client, ClientId};
use super::handles::Handles;
use super::{Datapath, limits};

/// A client's event channel.
#[derive(Debug)]
pub(super) struct EventChannel {
    /// Write end, non-blocking: holds a byte while there may be events.
    pipe: OwnedFd,
    events: VecDeque<CmEvent>,
    /// Endpoints that name it.
    endpoints: u32,
}

/// A client's endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientEndpoint {
    id: EndpointId,
    channel: Handle,
}

/// A client's part of this.
#[derive(Debug)]
pub(super) struct ClientCm {
    channels: Handles<EventChannel>,
    endpoints: Handles<ClientEndpoint>,
}

impl ClientCm {
    pub fn new() -> ClientCm {
        ClientCm { channels: Handles::new(limits::CHANNELS), endpoints: Handles::new(limits::ENDPOINTS) }
    }
}

/// The connection manager of a device.
struct DeviceCm {
    cm: Cm,
    /// Client and handle of each endpoint that has an owner.
    owners: HashMap<EndpointId, (u32, Handle)>,
    /// Something has happened since its outputs were taken.
    touched: bool,
}

/// The connection managers of all devices.
pub(super) struct ConnectionManagers {
    seed: u64,
    devices: Vec<(DeviceId, DeviceCm)>,
    /// The earliest of their deadlines.
    deadline: Option<Instant>,
}

impl ConnectionManagers {
    pub fn new(seed: u64) -> Self {
        ConnectionManagers { seed, devices: Vec::new(), deadline: None }
    }

    /// A new device with this node GUID.
    pub fn add(&mut self, device: DeviceId, guid: u64) {
        let cm = Cm::new(guid, self.seed);
        self.devices.push((device, DeviceCm { cm, owners: HashMap::new(), touched: false }));
    }

    /// A device is gone, and its clients were before.
    pub fn remove(&mut self, device: DeviceId) {
        self.devices.retain(|(id, _)| *id != device);
        self.find_deadline();
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    fn of(&mut self, device: DeviceId) -> Option<&mut DeviceCm> {
        self.devices.iter_mut().find_map(|(id, cm)| (*id == device).then_some(cm))
    }

    /// The same, to be changed.
    fn touch(&mut self, device: DeviceId) -> Option<&mut DeviceCm> {
        let found = self.of(device)?;
        found.touched = true;
        Some(found)
    }

    fn find_deadline(&mut self) {
        self.deadline = self.devices.iter().filter_map(|(_, device)| device.cm.poll_timeout()).min();
    }

    /// A client is gone: peers are told by the next round.
    pub fn forget(&mut self, now: Instant, device: DeviceId, client: &ClientCm) {
        let Some(manager) = self.touch(device) else { return };
        for (_, endpoint) in client.endpoints.iter() {
            manager.owners.remove(&endpoint.id);
            manager.cm.destroy(now, endpoint.id);
        }
    }
}

fn refused(error: &CmError) -> Refusal {
    let errno = match error {
        CmError::NotFound | CmError::State(_) | CmError::PrivateData { .. } => libc::EINVAL,
        CmError::PortInUse(_) => libc::EADDRINUSE,
        CmError::NoPort => libc::EADDRNOTAVAIL,
        CmError::Limit => libc::ENOMEM,
    };
    refuse(errno, error.to_string())
}

fn unknown(kind: &str, handle: Handle) -> Refusal {
    refuse(libc::EINVAL, format!("this connection has no {kind} {handle:#x}"))
}

/// An endpoint of a call's client, its manager, and its number there.
struct Called<'a> {
    client: &'a mut Client,
    manager: &'a mut DeviceCm,
    now: Instant,
}

impl Called<'_> {
    fn endpoint(&self, handle: Handle) -> Result<ClientEndpoint, Refusal> {
        self.client.cm.endpoints.get(handle).copied().ok_or_else(|| unknown("endpoint", handle))
    }

    fn id(&self, handle: Handle) -> Result<EndpointId, Refusal> {
        self.endpoint(handle).map(|endpoint| endpoint.id)
    }

    fn channel(&mut self, handle: Handle) -> Result<&mut EventChannel, Refusal> {
        self.client.cm.channels.get_mut(handle).ok_or_else(|| unknown("event channel", handle))
    }

    fn execute(&mut self, index: u32, gids: &[Gid], request: CmRequest) -> Result<CmReply, Refusal> {
        let now = self.now;
        let done = |result: Result<(), CmError>| result.map(|()| CmReply::Done).map_err(|error| refused(&error));
        match request {
            CmRequest::CreateChannel => Err(refuse(libc::EPROTO, "a channel needs a pipe")),
            CmRequest::DestroyChannel { channel } => {
                if self.channel(channel)?.endpoints > 0 {
                    return Err(refuse(libc::EBUSY, "endpoints report to this event channel"));
                }
                self.client.cm.channels.remove(channel);
                Ok(CmReply::Done)
            }
            CmRequest::Bind { channel, space, address, port, reuse } => {
                let space = PortSpace::from_code(space)
                    .ok_or_else(|| refuse(libc::EPROTONOSUPPORT, format!("port space {space:#x} is not supported")))?;
                let address = address.map(|address| own_address(gids, address)).transpose()?;
                self.channel(channel)?;
                if !self.client.cm.endpoints.has_room() {
                    let message = format!("this connection has {} endpoints, which is the limit", limits::ENDPOINTS);
                    return Err(refuse(libc::ENOMEM, message));
                }
                let (id, port) = self.manager.cm.bind(space, address, port, reuse).map_err(|error| refused(&error))?;
                let endpoint = self.insert(index, ClientEndpoint { id, channel });
                Ok(CmReply::Endpoint { endpoint, port })
            }
            CmRequest::Listen { endpoint, backlog } => done(self.manager.cm.listen(self.id(endpoint)?, backlog)),
            CmRequest::Connect { endpoint, to, offer, private_data } => {
                let id = self.id(endpoint)?;
                let to = connect_to(gids, &to, &private_data)?;
                done(self.manager.cm.connect(now, id, &to, &offer_to_core(&offer)))
            }
            CmRequest::Accept { endpoint, offer, private_data } => {
                let id = self.id(endpoint)?;
                done(self.manager.cm.accept(now, id, &offer_to_core(&offer), &private_data))
            }
            CmRequest::Serve { endpoint, qpn, qkey, private_data } => {
                let id = self.id(endpoint)?;
                done(self.manager.cm.serve(now, id, &DatagramService { qpn: Qpn::new(qpn), qkey }, &private_data))
            }
            CmRequest::Reject { endpoint, private_data } => {
                done(self.manager.cm.reject(now, self.id(endpoint)?, &private_data))
            }
            CmRequest::Establish { endpoint } => done(self.manager.cm.establish(self.id(endpoint)?)),
            CmRequest::Disconnect { endpoint } => done(self.manager.cm.disconnect(now, self.id(endpoint)?)),
            CmRequest::Move { endpoint, channel } => {
                let from = self.endpoint(endpoint)?.channel;
                self.channel(channel)?.endpoints += 1;
                self.channel(from)?.endpoints -= 1;
                if let Some(entry) = self.client.cm.endpoints.get_mut(endpoint) {
                    entry.channel = channel;
                }
                Ok(CmReply::Done)
            }
            CmRequest::Destroy { endpoint } => {
                self.id(endpoint)?;
                self.destroy(endpoint);
                Ok(CmReply::Done)
            }
            CmRequest::NextEvent { channel } => Ok(CmReply::Event(self.channel(channel)?.events.pop_front())),
        }
    }

    /// Enters an endpoint; room was checked.
    fn insert(&mut self, index: u32, endpoint: ClientEndpoint) -> Handle {
        let ClientEndpoint { id, channel } = endpoint;
        let handle = self.client.cm.endpoints.insert(endpoint).expect("room was checked");
        self.manager.owners.insert(id, (index, handle));
        if let Some(channel) = self.client.cm.channels.get_mut(channel) {
            channel.endpoints += 1;
        }
        handle
    }

    /// Ends an endpoint, and with a listener the requests that the program has not yet seen.
    fn destroy(&mut self, handle: Handle) {
        let mut unseen = vec![handle];
        while let Some(handle) = unseen.pop() {
            let Some(ClientEndpoint { id, channel }) = self.client.cm.endpoints.remove(handle) else { continue };
            self.manager.owners.remove(&id);
            self.manager.cm.destroy(self.now, id);
            let Some(channel) = self.client.cm.channels.get_mut(channel) else { continue };
            channel.endpoints -= 1;
            channel.events.retain(|event| match event.kind {
                CmEventKind::ConnectRequest { listener, .. } if listener == handle => {
                    unseen.push(event.endpoint);
                    false
                }
                _ => event.endpoint != handle,
            });
        }
    }
}

/// An address that a client names as the device's.
fn own_address(gids: &[Gid], address: [u8; 16]) -> Result<IpAddr, Refusal> {
    let gid = Gid(address);
    if !gids.contains(&gid) {
        return Err(refuse(libc::EADDRNOTAVAIL, format!("{} is no address of this device", gid.ip())));
    }
    Ok(gid.ip())
}

fn connect_to<'a>(gids: &[Gid], to: &Peer, private_data: &'a [u8]) -> Result<ConnectTo<'a>, Refusal> {
    let (local, remote) = (own_address(gids, to.local)?, Gid(to.remote).ip());
    if local.is_ipv4() != remote.is_ipv4() || remote.is_unspecified() || remote.is_multicast() {
        return Err(refuse(libc::EINVAL, format!("{remote} cannot be reached from {local}")));
    }
    let path_mtu = Mtu::from_code(to.path_mtu)
        .ok_or_else(|| refuse(libc::EINVAL, format!("there is no path MTU with code {}", to.path_mtu)))?;
    Ok(ConnectTo {
        local,
        remote,
        port: to.port,
        transport: if to.unreliable { Transport::Uc } else { Transport::Rc },
        path_mtu,
        ack_timeout: to.ack_timeout,
        traffic_class: to.traffic_class,
        private_data,
    })
}

fn offer_to_core(offer: &Offer) -> cm::Offer {
    cm::Offer {
        qpn: Qpn::new(offer.qpn),
        starting_psn: Psn::new(offer.starting_psn),
        responder_resources: offer.responder_resources,
        initiator_depth: offer.initiator_depth,
        flow_control: offer.flow_control,
        retry_count: offer.retry_count,
        rnr_retry_count: offer.rnr_retry_count,
        srq: offer.srq,
    }
}

fn offer_of_core(offer: &cm::Offer) -> Offer {
    Offer {
        qpn: offer.qpn.get(),
        starting_psn: offer.starting_psn.get(),
        responder_resources: offer.responder_resources,
        initiator_depth: offer.initiator_depth,
        flow_control: offer.flow_control,
        retry_count: offer.retry_count,
        rnr_retry_count: offer.rnr_retry_count,
        srq: offer.srq,
    }
}

/// An event as clients get it; `listener` is that of a request.
fn event_for_client(kind: cm::CmEventKind, listener: Handle) -> CmEventKind {
    match kind {
        cm::CmEventKind::ConnectRequest(request) => CmEventKind::ConnectRequest {
            listener,
            peer: Peer {
                local: Gid::from(request.local).0,
                remote: Gid::from(request.remote).0,
                port: request.remote_port,
                unreliable: request.transport == Transport::Uc,
                path_mtu: request.path_mtu as u8,
                ack_timeout: request.ack_timeout,
                traffic_class: request.traffic_class,
            },
            offer: offer_of_core(&request.peer),
            private_data: request.private_data,
        },
        cm::CmEventKind::ConnectResponse { peer, private_data } => {
            CmEventKind::ConnectResponse { offer: offer_of_core(&peer), private_data }
        }
        cm::CmEventKind::Established => CmEventKind::Established,
        cm::CmEventKind::Resolved { qpn, qkey, private_data } => CmEventKind::Resolved { qpn: qpn.get(), qkey, private_data },
        cm::CmEventKind::Rejected { reason, private_data } => CmEventKind::Rejected { reason, private_data },
        cm::CmEventKind::Unreachable => CmEventKind::Unreachable,
        cm::CmEventKind::NoService { status } => CmEventKind::NoService { status },
        cm::CmEventKind::Disconnected => CmEventKind::Disconnected,
        cm::CmEventKind::TimewaitExit => CmEventKind::TimewaitExit,
    }
}

impl Datapath {
    /// A client's event channel, its pipe being made by the caller.
    pub fn create_event_channel(&mut self, id: ClientId, pipe: OwnedFd) -> Result<Handle, Refusal> {
        let client = self.client(id).ok_or_else(|| refuse(libc::EIO, "the daemon has ended this connection"))?;
        let channel = EventChannel { pipe, events: VecDeque::new(), endpoints: 0 };
        client.cm.channels.insert(channel).map_err(|_| {
            refuse(libc::ENOMEM, format!("this connection has {} event channels, which is the limit", limits::CHANNELS))
        })
    }

    /// A call of connection management. `gids` are the addresses of the client's device.
    pub fn cm_call(&mut self, id: ClientId, gids: &[Gid], request: CmRequest) -> Result<CmReply, Refusal> {
        let client = self.clients.get_mut(id.index as usize).and_then(Option::as_deref_mut).filter(|client| client.is(id));
        let client = client.ok_or_else(|| refuse(libc::EIO, "the daemon has ended this connection"))?;
        let manager = self.connections.touch(client.device).ok_or_else(|| refuse(libc::ENODEV, "the device is gone"))?;
        let reply = Called { client, manager, now: self.now }.execute(id.index, gids, request);
        self.take_cm_outputs();
        reply
    }

    /// Takes what came for QP1 of any device, and does what is due. True if there was anything.
    pub(super) fn manage_connections(&mut self) -> bool {
        let mut worked = false;
        while let Some(mad) = self.rnic.poll_mad() {
            worked = true;
            if let Some(manager) = self.connections.touch(mad.device) {
                manager.cm.handle_mad(self.now, mad.remote.ip(), mad.local.ip(), &mad.bytes);
            }
        }
        if self.connections.deadline.is_some_and(|deadline| deadline <= self.now) {
            worked = true;
            for (_, manager) in &mut self.connections.devices {
                manager.cm.handle_timeout(self.now);
                manager.touched = true;
            }
        }
        if worked {
            self.take_cm_outputs();
        }
        worked
    }

    /// Sends what the managers have to send, and tells programs what there is to tell.
    pub(super) fn take_cm_outputs(&mut self) {
        let Datapath { rnic, connections, clients, now, .. } = self;
        for (device, manager) in &mut connections.devices {
            if !std::mem::take(&mut manager.touched) {
                continue;
            }
            // What it sends is taken last: an event that finds no room gives rise to an answer.
            while let Some(event) = manager.cm.poll_event() {
                deliver(manager, clients, *now, event);
            }
            while let Some(datagram) = manager.cm.poll_transmit() {
                let (local, remote) = (Gid::from(datagram.src), Gid::from(datagram.dst));
                let mad = Mad { device: *device, local, remote, remote_qpn: Qpn::GSI, bytes: datagram.bytes };
                if let Err(error) = rnic.send_mad(&mad) {
                    // As if lost on the way: it is sent again, or the peer is unreachable in the end.
                    tracing::debug!(%local, %remote, %error, "a connection management message was not sent");
                }
            }
        }
        connections.find_deadline();
    }
}

/// Puts an event into its owner's channel.
fn deliver(manager: &mut DeviceCm, clients: &mut [Option<Box<Client>>], now: Instant, event: cm::CmEvent) {
    let request_at = match &event.kind {
        cm::CmEventKind::ConnectRequest(request) => Some(request.listener),
        _ => None,
    };
    let owner = manager.owners.get(&request_at.unwrap_or(event.endpoint)).copied();
    let client = owner.and_then(|(index, _)| clients.get_mut(index as usize)?.as_deref_mut());
    let (Some((index, owner)), Some(client)) = (owner, client) else {
        return manager.cm.destroy(now, event.endpoint);
    };
    let Some(&ClientEndpoint { channel, .. }) = client.cm.endpoints.get(owner) else { return };
    let (endpoint, listener) = match request_at {
        Some(_) if !client.cm.endpoints.has_room() => return manager.cm.destroy(now, event.endpoint),
        Some(_) => {
            let mut called = Called { client, manager, now };
            (called.insert(index, ClientEndpoint { id: event.endpoint, channel }), owner)
        }
        None => (owner, 0),
    };
    let Some(channel) = client.cm.channels.get_mut(channel) else { return };
    channel.events.push_back(CmEvent { endpoint, kind: event_for_client(event.kind, listener) });
    // A full pipe says all that a byte says.
    super::completions::write_record(channel.pipe.as_fd(), &[1]);
}
