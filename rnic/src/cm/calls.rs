//! What programs ask: ports, listening, connecting, answering, ending.

use super::endpoint::{Endpoint, State};
use super::{
    Cm, CmError, EPHEMERAL, EndpointId, MAX_BACKLOG, MAX_RETRIES, Offer, REQ_PRIVATE, RESPONSE_TIMEOUT, SIDR_REQ_PRIVATE, coded,
};
use alloc::vec::Vec;
use core::net::IpAddr;
use roce::wire::cm::{self, Answered, CmPath, Message, Rep, Req, SidrRep, SidrReq, Transport, reason, sidr_status};
use roce::wire::cma::{CMA_HEADER_LEN, CmaHeader, PortSpace};
use roce::{Gid, Instant, Mtu, Qpn};

/// The default partition.
const PKEY: u16 = 0xFFFF;
/// Packet rate of a path record: 25 Gb/s. Peers over Ethernet do not look at it.
const RATE_25_GBPS: u8 = 15;
const HOP_LIMIT: u8 = 64;

/// Whom to connect to, and over what path.
#[derive(Clone, Copy, Debug)]
pub struct ConnectTo<'a> {
    /// Our address.
    pub local: IpAddr,
    /// The peer's; of the same family.
    pub remote: IpAddr,
    /// The peer's port.
    pub port: u16,
    /// Transport service of a connection.
    pub transport: Transport,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// Exponent of the local ACK timeout, 5 bits.
    pub ack_timeout: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// For the peer's program.
    pub private_data: &'a [u8],
}

/// A queue pair that serves datagrams.
#[derive(Clone, Copy, Debug)]
pub struct DatagramService {
    /// The queue pair.
    pub qpn: Qpn,
    /// Its queue key.
    pub qkey: u32,
}

/// Private data in a field that is `N` bytes long, from `at` on.
fn padded<const N: usize>(data: &[u8], at: usize) -> Result<[u8; N], CmError> {
    let mut field = [0; N];
    let room = &mut field[at..];
    match room.get_mut(..data.len()) {
        Some(part) => part.copy_from_slice(data),
        None => return Err(CmError::PrivateData { len: data.len(), limit: N - at }),
    }
    Ok(field)
}

impl Cm {
    /// Makes an endpoint with a port, one of our choice if `port` is 0. Without an address it stands for all of the device.
    ///
    /// # Errors
    /// `PortInUse`, `NoPort`, `Limit`.
    pub fn bind(&mut self, space: PortSpace, ip: Option<IpAddr>, port: u16, reuse: bool) -> Result<(EndpointId, u16), CmError> {
        let port = match port {
            0 => self.free_port(space)?,
            port if self.is_free(space, port, ip, reuse) => port,
            port => return Err(CmError::PortInUse(port)),
        };
        let endpoint = Endpoint { reuse, holds_port: true, ..Endpoint::new(space, port, ip) };
        let id = self.endpoints.insert_with(|_| endpoint).map(EndpointId).ok_or(CmError::Limit)?;
        self.ports.entry((space, port)).or_default().push(id);
        Ok((id, port))
    }

    fn is_free(&self, space: PortSpace, port: u16, ip: Option<IpAddr>, reuse: bool) -> bool {
        let holders = self.ports.get(&(space, port)).map_or(&[][..], Vec::as_slice);
        holders
            .iter()
            .filter_map(|id| self.endpoints.get(id.0))
            .all(|other| !other.overlaps(ip) || (reuse && other.reuse && !other.is_listening()))
    }

    fn free_port(&mut self, space: PortSpace) -> Result<u16, CmError> {
        let count = EPHEMERAL.end - EPHEMERAL.start;
        let start = (self.rng.next_u64() % u64::from(count)) as u16;
        let mut all = (0..count).map(|n| EPHEMERAL.start + (start + n) % count);
        all.find(|&port| !self.ports.contains_key(&(space, port))).ok_or(CmError::NoPort)
    }

    /// Takes requests from now on; a backlog of 0 stands for [`MAX_BACKLOG`].
    ///
    /// # Errors
    /// `NotFound`; `State` unless it is idle; `PortInUse` if another that shares its port listens.
    pub fn listen(&mut self, id: EndpointId, backlog: u32) -> Result<(), CmError> {
        let endpoint = self.owned(id)?;
        if endpoint.state != State::Idle || !endpoint.holds_port {
            return Err(CmError::State(endpoint.state.name()));
        }
        let (space, port, ip) = (endpoint.space, endpoint.port, endpoint.bound_to);
        let others = self.ports.get(&(space, port)).map_or(&[][..], Vec::as_slice).iter().filter(|other| **other != id);
        if others.filter_map(|id| self.endpoints.get(id.0)).any(|other| other.is_listening() && other.overlaps(ip)) {
            return Err(CmError::PortInUse(port));
        }
        let backlog = if backlog == 0 { MAX_BACKLOG } else { backlog.min(MAX_BACKLOG) };
        self.owned(id)?.state = State::Listening { backlog, waiting: 0 };
        Ok(())
    }

    /// Asks a peer for a connection, or for a datagram service, as the endpoint's port space says.
    ///
    /// # Errors
    /// `NotFound`; `State` unless it is idle; `PrivateData`.
    pub fn connect(&mut self, now: Instant, id: EndpointId, to: &ConnectTo<'_>, offer: &Offer) -> Result<(), CmError> {
        let guid = self.guid;
        let endpoint = self.owned(id)?;
        if endpoint.state != State::Idle {
            return Err(CmError::State(endpoint.state.name()));
        }
        let header = CmaHeader { src: to.local, port: endpoint.port, dst: to.remote };
        let service_id = endpoint.space.service_id(to.port);
        let message = match endpoint.space {
            PortSpace::Tcp => {
                let mut private_data = padded(to.private_data, CMA_HEADER_LEN)
                    .map_err(|_| CmError::PrivateData { len: to.private_data.len(), limit: REQ_PRIVATE })?;
                emit_header(&header, &mut private_data);
                Message::Req(Req {
                    local_comm_id: id.0,
                    service_id,
                    ca_guid: guid,
                    qkey: 0,
                    qpn: offer.qpn,
                    responder_resources: offer.responder_resources,
                    initiator_depth: offer.initiator_depth,
                    remote_response_timeout: RESPONSE_TIMEOUT,
                    transport: to.transport,
                    flow_control: offer.flow_control,
                    starting_psn: offer.starting_psn,
                    local_response_timeout: RESPONSE_TIMEOUT,
                    retry_count: offer.retry_count.min(7),
                    pkey: PKEY,
                    path_mtu: to.path_mtu as u8,
                    rnr_retry_count: offer.rnr_retry_count.min(7),
                    max_cm_retries: MAX_RETRIES,
                    srq: offer.srq,
                    path: CmPath {
                        local_gid: Gid::from(to.local),
                        remote_gid: Gid::from(to.remote),
                        flow_label: 0,
                        packet_rate: RATE_25_GBPS,
                        traffic_class: to.traffic_class,
                        hop_limit: HOP_LIMIT,
                        service_level: 0,
                        subnet_local: false,
                        ack_timeout: to.ack_timeout & 31,
                    },
                    private_data,
                })
            }
            PortSpace::Udp => {
                let mut private_data = padded(to.private_data, CMA_HEADER_LEN)
                    .map_err(|_| CmError::PrivateData { len: to.private_data.len(), limit: SIDR_REQ_PRIVATE })?;
                emit_header(&header, &mut private_data);
                Message::SidrReq(SidrReq { request_id: id.0, pkey: PKEY, service_id, private_data })
            }
        };
        endpoint.state = if endpoint.space == PortSpace::Tcp { State::ReqSent } else { State::SidrReqSent };
        endpoint.local = to.local;
        endpoint.remote = to.remote;
        endpoint.remote_id = 0;
        endpoint.is_passive = false;
        endpoint.was_connected = false;
        endpoint.local_qpn = offer.qpn;
        endpoint.remote_qpn = Qpn::new(0);
        endpoint.ack_timeout = to.ack_timeout & 31;
        endpoint.response_timeout = coded(RESPONSE_TIMEOUT, RESPONSE_TIMEOUT);
        endpoint.retries = MAX_RETRIES;
        let deadline = now + endpoint.response_timeout;
        let transaction = self.rng.next_u64();
        self.owned(id)?.transaction = transaction;
        self.send(id, &message);
        self.set_deadline(id, Some(deadline));
        Ok(())
    }

    /// Accepts a connection.
    ///
    /// # Errors
    /// `NotFound`; `State` unless the program was asked; `PrivateData`.
    pub fn accept(&mut self, now: Instant, id: EndpointId, offer: &Offer, private_data: &[u8]) -> Result<(), CmError> {
        let ca_guid = self.guid;
        let endpoint = self.owned(id)?;
        if endpoint.state != State::ReqReceived {
            return Err(CmError::State(endpoint.state.name()));
        }
        let message = Message::Rep(Rep {
            local_comm_id: id.0,
            remote_comm_id: endpoint.remote_id,
            qkey: 0,
            qpn: offer.qpn,
            starting_psn: offer.starting_psn,
            responder_resources: offer.responder_resources,
            initiator_depth: offer.initiator_depth,
            target_ack_delay: 0,
            flow_control: offer.flow_control,
            rnr_retry_count: offer.rnr_retry_count.min(7),
            srq: offer.srq,
            ca_guid,
            private_data: padded(private_data, 0)?,
        });
        endpoint.state = State::RepSent;
        endpoint.local_qpn = offer.qpn;
        let deadline = now + endpoint.response_timeout;
        self.leave_backlog(id);
        self.send(id, &message);
        self.set_deadline(id, Some(deadline));
        Ok(())
    }

    /// Answers a request for a datagram service.
    ///
    /// # Errors
    /// As [`Self::accept`].
    pub fn serve(
        &mut self,
        now: Instant,
        id: EndpointId,
        service: &DatagramService,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let endpoint = self.owned(id)?;
        if endpoint.state != State::SidrReqReceived {
            return Err(CmError::State(endpoint.state.name()));
        }
        let data = padded(private_data, 0)?;
        self.answer_sidr(now, id, sidr_status::VALID, service, data);
        Ok(())
    }

    fn answer_sidr(
        &mut self,
        now: Instant,
        id: EndpointId,
        status: u8,
        service: &DatagramService,
        private_data: [u8; cm::SIDR_REP_PRIVATE],
    ) {
        let Some(endpoint) = self.endpoints.get_mut(id.0) else { return };
        let message = Message::SidrRep(SidrRep {
            request_id: endpoint.remote_id,
            status,
            qpn: service.qpn,
            service_id: endpoint.service_id,
            qkey: service.qkey,
            private_data,
        });
        self.say_last_word(now, id, &message);
    }

    /// The message is all that the peer gets; it is repeated for as long as the peer may ask again.
    pub(super) fn say_last_word(&mut self, now: Instant, id: EndpointId, message: &Message) {
        self.leave_backlog(id);
        self.forget_peer_qp(id);
        self.send(id, message);
        let Some(endpoint) = self.endpoints.get_mut(id.0) else { return };
        endpoint.state = State::Answered;
        let until = now + endpoint.response_timeout * u32::from(MAX_RETRIES);
        self.set_deadline(id, Some(until));
    }

    /// Refuses a request, or a reply.
    ///
    /// # Errors
    /// `NotFound`; `State` unless the program was asked or the peer has accepted; `PrivateData`.
    pub fn reject(&mut self, now: Instant, id: EndpointId, private_data: &[u8]) -> Result<(), CmError> {
        let endpoint = self.owned(id)?;
        match endpoint.state {
            State::ReqReceived => {
                let message = self.rejection(id, reason::CONSUMER, private_data)?;
                self.say_last_word(now, id, &message);
            }
            State::RepReceived => {
                let message = self.rejection(id, reason::CONSUMER, private_data)?;
                self.send(id, &message);
                self.retire(id);
            }
            State::SidrReqReceived => {
                let data = padded(private_data, 0)?;
                let none = DatagramService { qpn: Qpn::new(0), qkey: 0 };
                self.answer_sidr(now, id, sidr_status::REJECTED, &none, data);
            }
            other => return Err(CmError::State(other.name())),
        }
        Ok(())
    }

    fn rejection(&self, id: EndpointId, reason: u16, private_data: &[u8]) -> Result<Message, CmError> {
        let endpoint = self.endpoints.get(id.0).ok_or(CmError::NotFound)?;
        Ok(Message::Rej(cm::Rej {
            local_comm_id: id.0,
            remote_comm_id: endpoint.remote_id,
            answered: match endpoint.state {
                State::ReqReceived => Answered::Req,
                State::RepReceived => Answered::Rep,
                _ => Answered::Other,
            },
            reason,
            private_data: padded(private_data, 0)?,
        }))
    }

    /// Sends a REJ that ends an attempt.
    pub(super) fn send_reject(&mut self, id: EndpointId, reason: u16, private_data: &[u8]) {
        if let Ok(message) = self.rejection(id, reason, private_data) {
            self.send(id, &message);
        }
    }

    /// The program's queue pair is ready. On the active side after a reply; on the passive side when data has arrived before the
    /// message that says so.
    ///
    /// # Errors
    /// `NotFound`; `State` in any other state.
    pub fn establish(&mut self, id: EndpointId) -> Result<(), CmError> {
        let endpoint = self.owned(id)?;
        let remote_comm_id = endpoint.remote_id;
        match endpoint.state {
            State::RepReceived => {
                endpoint.state = State::Established;
                endpoint.was_connected = true;
                self.send(id, &Message::Rtu { local_comm_id: id.0, remote_comm_id });
                Ok(())
            }
            State::RepSent => {
                self.established(id);
                Ok(())
            }
            State::Established => Ok(()),
            other => Err(CmError::State(other.name())),
        }
    }

    /// Ends a connection. One that has ended already is no error.
    ///
    /// # Errors
    /// `NotFound`; `State` if it was never connected.
    pub fn disconnect(&mut self, now: Instant, id: EndpointId) -> Result<(), CmError> {
        let endpoint = self.owned(id)?;
        match endpoint.state {
            State::Established | State::RepSent => {
                self.send_dreq(now, id);
                Ok(())
            }
            State::DreqSent | State::Timewait => Ok(()),
            State::Idle if endpoint.was_connected => Ok(()),
            other => Err(CmError::State(other.name())),
        }
    }

    fn send_dreq(&mut self, now: Instant, id: EndpointId) {
        let transaction = self.rng.next_u64();
        let Some(endpoint) = self.endpoints.get_mut(id.0) else { return };
        endpoint.state = State::DreqSent;
        endpoint.was_connected = true;
        endpoint.retries = MAX_RETRIES;
        endpoint.transaction = transaction;
        let (remote_comm_id, remote_qpn) = (endpoint.remote_id, endpoint.remote_qpn);
        let deadline = now + endpoint.response_timeout;
        self.send(id, &Message::Dreq { local_comm_id: id.0, remote_comm_id, remote_qpn });
        self.set_deadline(id, Some(deadline));
    }

    /// The program gives the endpoint up. The peer is told; what has to stay for late messages stays without an owner. Its
    /// events that were not polled yet are dropped. Requests that wait at a listener are endpoints of their own. Unknown endpoints
    /// are ignored.
    pub fn destroy(&mut self, now: Instant, id: EndpointId) {
        let Ok(endpoint) = self.owned(id) else { return };
        let state = endpoint.state;
        endpoint.owned = false;
        self.events.retain(|event| event.endpoint != id);
        self.release_port(id);
        match state {
            State::ReqReceived => {
                if let Ok(message) = self.rejection(id, reason::CONSUMER, &[]) {
                    self.say_last_word(now, id, &message);
                }
            }
            State::SidrReqReceived => {
                let none = DatagramService { qpn: Qpn::new(0), qkey: 0 };
                self.answer_sidr(now, id, sidr_status::REJECTED, &none, [0; cm::SIDR_REP_PRIVATE]);
            }
            State::ReqSent => {
                self.send_reject(id, reason::TIMEOUT, &[]);
                self.remove(id);
            }
            State::RepReceived => {
                self.send_reject(id, reason::CONSUMER, &[]);
                self.remove(id);
            }
            // The peer may be connected already, its message being on its way.
            State::RepSent | State::Established => self.send_dreq(now, id),
            State::DreqSent | State::Timewait | State::Answered => {}
            State::Idle | State::SidrReqSent | State::Listening { .. } => self.remove(id),
        }
    }
}

fn emit_header(header: &CmaHeader, private_data: &mut [u8]) {
    if let Some(part) = private_data.first_chunk_mut::<CMA_HEADER_LEN>() {
        header.emit(part);
    }
}
