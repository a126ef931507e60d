//! The connection manager of one device: how programs that know only an IP address and a port come by connected queue pairs.
//!
//! Sans-IO, like the rest of the core: calls of programs, datagrams and `now` go in; datagrams for the peer's QP1, events for
//! programs and the next deadline come out. It speaks the messages of [`roce::wire::cm`] with the states and timeouts of IBA 12.9,
//! in the dialect of Linux's `rdma_cm` (service IDs made of ports, IP addresses in the private data), so that such a host is a
//! peer. Owns: ports, endpoints, retransmission, duplicates, timewait. Never: queue pairs; their attributes come from the
//! program and go to the peer, and back.
//!
//! A peer is not trusted. It can make endpoints only through a listener and only as many as its backlog; what it says is passed
//! on to the program as it came.

mod calls;
mod endpoint;
mod receive;
#[cfg(test)]
mod tests;

use crate::ids::IdTable;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;
use endpoint::{Endpoint, State};
use roce::rng::{Rng, mix};
use roce::wire::cm::{Message, Transport};
use roce::wire::cma::PortSpace;
use roce::wire::mad::MAD_LEN;
use roce::{Instant, Mtu, Psn, Qpn};

pub use calls::{ConnectTo, DatagramService};

/// Endpoints of a device, of all programs together, with those that only wait for late datagrams.
const MAX_ENDPOINTS: u32 = 1 << 15;
/// Most requests that a listener lets wait; what a backlog of 0 or less stands for.
pub const MAX_BACKLOG: u32 = 1024;
/// Ports given to those who do not ask for one.
const EPHEMERAL: core::ops::Range<u16> = 32768..61000;
/// Exponent of the time within which we answer and expect an answer: 1.07 s.
const RESPONSE_TIMEOUT: u8 = 18;
/// How often a message is sent again.
const MAX_RETRIES: u8 = 15;
/// Exponent of the time that a program may take to answer a request, as we tell a peer that asks again: 69 s.
const SERVICE_TIMEOUT: u8 = 24;
/// The same for a program that has to say that it is ready: 8.6 s. Should what it says be lost, the peer asks for it no sooner.
const READY_TIMEOUT: u8 = 21;
/// The longest response timeout that a peer can make us use (8.6 s), and the longest service timeout (137 s).
const LONGEST_RESPONSE: u8 = 21;
const LONGEST_SERVICE: u8 = 25;
/// Bytes of a program's private data in a connection request, beside the addresses.
pub const REQ_PRIVATE: usize = roce::wire::cm::REQ_PRIVATE - roce::wire::cma::CMA_HEADER_LEN;
/// The same in a request for a datagram service.
pub const SIDR_REQ_PRIVATE: usize = roce::wire::cm::SIDR_REQ_PRIVATE - roce::wire::cma::CMA_HEADER_LEN;

/// A time as the architecture codes it: 4.096 µs times two to the power of the exponent.
fn coded(exponent: u8, longest: u8) -> Duration {
    Duration::from_nanos(4096 << exponent.min(longest))
}

/// Names an endpoint of one device: what a program binds, listens on, or connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub(crate) u32);

/// Why a call was refused; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CmError {
    /// No such endpoint.
    #[error("no such endpoint")]
    NotFound,
    /// The call does not fit the state of the endpoint.
    #[error("an endpoint that is {0} cannot do this")]
    State(&'static str),
    /// The port is taken.
    #[error("port {0} is in use")]
    PortInUse(u16),
    /// No port is left.
    #[error("no port is left")]
    NoPort,
    /// The device has as many endpoints as it may.
    #[error("no endpoint is left")]
    Limit,
    /// More private data than the message holds.
    #[error("{len} bytes of private data are more than the {limit} that the message holds")]
    PrivateData {
        /// Bytes given.
        len: usize,
        /// Bytes that fit.
        limit: usize,
    },
}

/// One side's queue pair and what it offers the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The queue pair.
    pub qpn: Qpn,
    /// First PSN that it expects: where the other side begins to send (IBA 12.7.31).
    pub starting_psn: Psn,
    /// READs and atomics that it can answer at a time.
    pub responder_resources: u8,
    /// READs and atomics that it wants to have outstanding.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// For the other's queue pair, 0 to 7; of no meaning in an answer.
    pub retry_count: u8,
    /// For the other's queue pair, 0 to 7.
    pub rnr_retry_count: u8,
    /// It has a shared receive queue.
    pub srq: bool,
}

/// What has happened to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmEvent {
    /// To which endpoint.
    pub endpoint: EndpointId,
    /// What.
    pub kind: CmEventKind,
}

/// See [`CmEvent`]. Private data is as long as the message that brought it allows, zeros behind what the peer gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmEventKind {
    /// A peer wants to connect: the endpoint is new and waits to be accepted or rejected.
    ConnectRequest(Box<ConnectRequest>),
    /// The peer accepts: the endpoint waits to be established.
    ConnectResponse {
        /// The peer's side.
        peer: Offer,
        /// Its private data.
        private_data: Vec<u8>,
    },
    /// The peer knows that it is connected.
    Established,
    /// A datagram service answers.
    Resolved {
        /// Its queue pair.
        qpn: Qpn,
        /// Its queue key.
        qkey: u32,
        /// Its private data.
        private_data: Vec<u8>,
    },
    /// The peer does not want.
    Rejected {
        /// Of [`roce::wire::cm::reason`].
        reason: u16,
        /// Its private data.
        private_data: Vec<u8>,
    },
    /// No answer.
    Unreachable,
    /// A datagram service is not there, or refuses.
    NoService {
        /// Of [`roce::wire::cm::sidr_status`].
        status: u8,
    },
    /// The connection has ended.
    Disconnected,
    /// No packet of the connection can be on its way any more.
    TimewaitExit,
}

/// A peer's wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// Where it arrived.
    pub listener: EndpointId,
    /// Connections or datagrams.
    pub space: PortSpace,
    /// Our address, as the peer knows it.
    pub local: IpAddr,
    /// Its address.
    pub remote: IpAddr,
    /// Its port.
    pub remote_port: u16,
    /// Its side; of no meaning for datagrams.
    pub peer: Offer,
    /// Transport service.
    pub transport: Transport,
    /// Path MTU that it wants to use.
    pub path_mtu: Mtu,
    /// Exponent of the local ACK timeout that it proposes.
    pub ack_timeout: u8,
    /// Traffic class that it uses.
    pub traffic_class: u8,
    /// Its private data.
    pub private_data: Vec<u8>,
}

/// A message for the QP1 of a peer, one of this host included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Our address.
    pub src: IpAddr,
    /// The peer's.
    pub dst: IpAddr,
    /// The management datagram.
    pub bytes: [u8; MAD_LEN],
}

/// Which endpoint of ours a peer's number stands for.
type PeerKey = (IpAddr, u32, PortSpace);

/// The connection manager. See the module's documentation.
#[derive(Debug)]
pub struct Cm {
    guid: u64,
    rng: Rng,
    endpoints: IdTable<Endpoint>,
    /// Who has a port.
    ports: BTreeMap<(PortSpace, u16), Vec<EndpointId>>,
    /// Endpoints that a peer's request has made, by the peer's number: duplicates are known by it.
    requests: BTreeMap<PeerKey, EndpointId>,
    /// Connections by the peer's queue pair: one that asks again with it has forgotten.
    peer_qps: BTreeMap<(IpAddr, Qpn), EndpointId>,
    deadlines: BTreeSet<(Instant, EndpointId)>,
    outgoing: VecDeque<Datagram>,
    events: VecDeque<CmEvent>,
}

impl Cm {
    /// The connection manager of the node `guid`. The seed decides the numbers of connections and the ports that are given.
    pub fn new(guid: u64, seed: u64) -> Cm {
        Cm {
            guid,
            rng: Rng::new(mix(seed ^ mix(guid))),
            endpoints: IdTable::new(MAX_ENDPOINTS, 32, mix(seed.wrapping_add(1)) ^ guid),
            ports: BTreeMap::new(),
            requests: BTreeMap::new(),
            peer_qps: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// The next datagram to be sent.
    pub fn poll_transmit(&mut self) -> Option<Datagram> {
        self.outgoing.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<CmEvent> {
        self.events.pop_front()
    }

    /// When [`Self::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Number of endpoints, with those that nobody owns any more.
    pub fn endpoints(&self) -> usize {
        self.endpoints.iter().count()
    }

    /// Does everything whose time has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(_, id)) = self.deadlines.first().filter(|(at, _)| *at <= now) {
            self.set_deadline(id, None);
            self.expire(now, id);
        }
    }

    fn expire(&mut self, now: Instant, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get_mut(id.0) else { return };
        match endpoint.state {
            State::ReqSent | State::RepSent | State::SidrReqSent | State::DreqSent => {
                if endpoint.retries > 0 {
                    endpoint.retries -= 1;
                    let deadline = now + endpoint.response_timeout;
                    self.repeat(id);
                    self.set_deadline(id, Some(deadline));
                } else {
                    self.give_up(now, id);
                }
            }
            State::Timewait => {
                self.event(id, CmEventKind::TimewaitExit);
                self.retire(id);
            }
            State::Answered => self.retire(id),
            State::Idle
            | State::Listening { .. }
            | State::ReqReceived
            | State::RepReceived
            | State::Established
            | State::SidrReqReceived => {}
        }
    }

    /// The peer does not answer.
    fn give_up(&mut self, now: Instant, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get(id.0) else { return };
        match endpoint.state {
            State::DreqSent => self.disconnected(now, id),
            State::SidrReqSent => {
                self.event(id, CmEventKind::Unreachable);
                self.retire(id);
            }
            _ => {
                self.send_reject(id, roce::wire::cm::reason::TIMEOUT, &[]);
                self.event(id, CmEventKind::Unreachable);
                self.retire(id);
            }
        }
    }

    /// The connection has ended on either side's wish: tells the program, and stays to answer what is still on its way.
    fn disconnected(&mut self, now: Instant, id: EndpointId) {
        self.event(id, CmEventKind::Disconnected);
        let Some(endpoint) = self.endpoints.get_mut(id.0) else { return };
        endpoint.state = State::Timewait;
        let until = now + coded(endpoint.ack_timeout.saturating_add(1), LONGEST_RESPONSE);
        self.forget_peer_qp(id);
        self.set_deadline(id, Some(until));
    }

    /// Nothing goes on with this endpoint any more. It stays as long as it has an owner.
    fn retire(&mut self, id: EndpointId) {
        self.forget_peer(id);
        self.set_deadline(id, None);
        let Some(endpoint) = self.endpoints.get_mut(id.0) else { return };
        endpoint.state = State::Idle;
        endpoint.sent = None;
        if !endpoint.owned {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: EndpointId) {
        self.forget_peer(id);
        self.set_deadline(id, None);
        self.release_port(id);
        self.endpoints.remove(id.0);
    }

    fn release_port(&mut self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get_mut(id.0) else { return };
        let key = (endpoint.space, endpoint.port);
        if !core::mem::take(&mut endpoint.holds_port) {
            return;
        }
        if let Some(holders) = self.ports.get_mut(&key) {
            holders.retain(|&other| other != id);
            if holders.is_empty() {
                self.ports.remove(&key);
            }
        }
    }

    /// The peer's number and queue pair no longer lead here, and it no longer waits at its listener.
    fn forget_peer(&mut self, id: EndpointId) {
        self.leave_backlog(id);
        self.forget_peer_qp(id);
        let Some(endpoint) = self.endpoints.get(id.0) else { return };
        if let Some(key) = endpoint.request_key()
            && self.requests.get(&key) == Some(&id)
        {
            self.requests.remove(&key);
        }
    }

    fn forget_peer_qp(&mut self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get(id.0) else { return };
        let key = (endpoint.remote, endpoint.remote_qpn);
        if self.peer_qps.get(&key) == Some(&id) {
            self.peer_qps.remove(&key);
        }
    }

    /// The program has answered the request, or it is void.
    fn leave_backlog(&mut self, id: EndpointId) {
        let Some(listener) = self.endpoints.get_mut(id.0).and_then(|endpoint| endpoint.waits_at.take()) else { return };
        if let Some(State::Listening { waiting, .. }) = self.endpoints.get_mut(listener.0).map(|e| &mut e.state) {
            *waiting -= 1;
        }
    }

    fn set_deadline(&mut self, id: EndpointId, deadline: Option<Instant>) {
        let Some(endpoint) = self.endpoints.get_mut(id.0) else { return };
        if let Some(before) = core::mem::replace(&mut endpoint.deadline, deadline) {
            self.deadlines.remove(&(before, id));
        }
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, id));
        }
    }

    /// Tells the owner, if there still is one.
    fn event(&mut self, id: EndpointId, kind: CmEventKind) {
        if self.endpoints.get(id.0).is_some_and(|endpoint| endpoint.owned) {
            self.events.push_back(CmEvent { endpoint: id, kind });
        }
    }

    /// Sends a message to the peer of an endpoint, and keeps it to be sent again.
    fn send(&mut self, id: EndpointId, message: &Message) {
        let Some(endpoint) = self.endpoints.get_mut(id.0) else { return };
        let mut bytes = Box::new([0; MAD_LEN]);
        message.emit(endpoint.transaction, &mut bytes);
        self.outgoing.push_back(Datagram { src: endpoint.local, dst: endpoint.remote, bytes: *bytes });
        endpoint.sent = Some(bytes);
    }

    /// Sends the last message once more.
    fn repeat(&mut self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get(id.0) else { return };
        if let Some(bytes) = &endpoint.sent {
            self.outgoing.push_back(Datagram { src: endpoint.local, dst: endpoint.remote, bytes: **bytes });
        }
    }
}
