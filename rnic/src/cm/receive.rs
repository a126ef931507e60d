//! Messages of peers.
//!
//! Every message but the first of a conversation names an endpoint of ours and comes from its peer, or is dropped (some are
//! answered, so that a peer that knows more than we do need not wait). What was received before is answered as before.

use super::endpoint::{Endpoint, State};
use super::{
    Cm, CmEvent, CmEventKind, ConnectRequest, Datagram, EndpointId, LONGEST_RESPONSE, LONGEST_SERVICE, MAX_RETRIES, Offer,
    READY_TIMEOUT, RESPONSE_TIMEOUT, SERVICE_TIMEOUT, coded,
};
use alloc::boxed::Box;
use core::net::IpAddr;
use roce::wire::cm::{Answered, Message, Rej, Rep, Req, SidrRep, SidrReq, Transport, reason, sidr_status};
use roce::wire::cma::{CMA_HEADER_LEN, CmaHeader, PortSpace};
use roce::wire::mad::MAD_LEN;
use roce::{Instant, Mtu, Psn, Qpn};

/// A message's way here.
#[derive(Clone, Copy)]
struct Arrival {
    now: Instant,
    /// The peer's address.
    src: IpAddr,
    /// Ours.
    dst: IpAddr,
    transaction: u64,
}

impl Cm {
    /// Takes a datagram that came to QP1 from the address `src` to our address `dst`. Bytes that are no message are dropped.
    pub fn handle_mad(&mut self, now: Instant, src: IpAddr, dst: IpAddr, bytes: &[u8]) {
        let Ok((transaction, message)) = Message::parse(bytes) else { return };
        let arrival = Arrival { now, src, dst, transaction };
        match message {
            Message::Req(req) => self.on_req(arrival, &req),
            Message::Mra { local_comm_id, remote_comm_id, answered, service_timeout } => {
                self.on_mra(arrival, local_comm_id, remote_comm_id, answered, service_timeout);
            }
            Message::Rej(rej) => self.on_rej(arrival, &rej),
            Message::Rep(rep) => self.on_rep(arrival, &rep),
            Message::Rtu { local_comm_id, remote_comm_id } => {
                if let Some((id, State::RepSent)) = self.addressee(arrival.src, remote_comm_id, local_comm_id) {
                    self.established(id);
                }
            }
            Message::Dreq { local_comm_id, remote_comm_id, remote_qpn } => {
                self.on_dreq(arrival, local_comm_id, remote_comm_id, remote_qpn);
            }
            Message::Drep { local_comm_id, remote_comm_id } => {
                if let Some((id, State::DreqSent)) = self.addressee(arrival.src, remote_comm_id, local_comm_id) {
                    self.disconnected(now, id);
                }
            }
            Message::SidrReq(req) => self.on_sidr_req(arrival, &req),
            Message::SidrRep(rep) => self.on_sidr_rep(arrival, &rep),
        }
    }

    /// The endpoint with our number `ours`, if `peer` knows it by `theirs`.
    fn addressee(&self, peer: IpAddr, ours: u32, theirs: u32) -> Option<(EndpointId, State)> {
        let endpoint = self.endpoints.get(ours)?;
        (endpoint.remote == peer && endpoint.remote_id == theirs).then_some((EndpointId(ours), endpoint.state))
    }

    /// Answers a message that belongs to no endpoint.
    fn answer(&mut self, arrival: Arrival, message: &Message) {
        let mut bytes = [0; MAD_LEN];
        message.emit(arrival.transaction, &mut bytes);
        self.outgoing.push_back(Datagram { src: arrival.dst, dst: arrival.src, bytes });
    }

    fn refuse(&mut self, arrival: Arrival, theirs: u32, answered: Answered, reason: u16) {
        let rej = Rej { local_comm_id: 0, remote_comm_id: theirs, answered, reason, private_data: [0; 148] };
        self.answer(arrival, &Message::Rej(rej));
    }

    /// The listener for a request, if one of its backlog is free.
    fn listener(&self, space: PortSpace, port: u16, ip: IpAddr) -> Result<EndpointId, u16> {
        let holders = self.ports.get(&(space, port)).ok_or(reason::INVALID_SERVICE_ID)?;
        let listening = holders.iter().find_map(|&id| match self.endpoints.get(id.0) {
            Some(endpoint) if endpoint.overlaps(Some(ip)) => match endpoint.state {
                State::Listening { backlog, waiting } => Some((id, waiting < backlog)),
                _ => None,
            },
            _ => None,
        });
        match listening {
            Some((id, true)) => Ok(id),
            Some((_, false)) => Err(reason::NO_RESOURCES),
            None => Err(reason::INVALID_SERVICE_ID),
        }
    }

    /// A new endpoint for a request that arrived at `listener`, to be completed by the caller.
    fn admit(&mut self, arrival: Arrival, listener: EndpointId, remote_id: u32) -> Option<&mut Endpoint> {
        let of = self.endpoints.get(listener.0)?;
        let (space, port, bound_to) = (of.space, of.port, of.bound_to);
        let endpoint = Endpoint {
            waits_at: Some(listener),
            local: arrival.dst,
            remote: arrival.src,
            remote_id,
            is_passive: true,
            transaction: arrival.transaction,
            service_id: space.service_id(port),
            retries: MAX_RETRIES,
            response_timeout: coded(RESPONSE_TIMEOUT, LONGEST_RESPONSE),
            ..Endpoint::new(space, port, bound_to)
        };
        let id = self.endpoints.insert_with(|_| endpoint).map(EndpointId)?;
        self.requests.insert((arrival.src, remote_id, space), id);
        if let Some(State::Listening { waiting, .. }) = self.endpoints.get_mut(listener.0).map(|of| &mut of.state) {
            *waiting += 1;
        }
        self.endpoints.get_mut(id.0)
    }

    fn on_req(&mut self, arrival: Arrival, req: &Req) {
        let theirs = req.local_comm_id;
        if let Some(&id) = self.requests.get(&(arrival.src, theirs, PortSpace::Tcp)) {
            return self.on_repeated_req(arrival, id, req);
        }
        let Some((PortSpace::Tcp, port)) = PortSpace::of_service_id(req.service_id) else {
            return self.refuse(arrival, theirs, Answered::Req, reason::INVALID_SERVICE_ID);
        };
        if !matches!(req.transport, Transport::Rc | Transport::Uc) {
            return self.refuse(arrival, theirs, Answered::Req, reason::INVALID_TRANSPORT);
        }
        let header = req.private_data.first_chunk::<CMA_HEADER_LEN>().and_then(CmaHeader::parse);
        let (Some(header), Some(path_mtu)) = (header, Mtu::from_code(req.path_mtu)) else {
            return self.refuse(arrival, theirs, Answered::Req, reason::INVALID_SERVICE_ID);
        };
        // A peer that asks with a queue pair that is connected has forgotten about that.
        if let Some(&old) = self.peer_qps.get(&(arrival.src, req.qpn)) {
            self.refuse(arrival, theirs, Answered::Req, reason::STALE_CONNECTION);
            return self.disconnected(arrival.now, old);
        }
        let listener = match self.listener(PortSpace::Tcp, port, arrival.dst) {
            Ok(listener) => listener,
            Err(reason) => return self.refuse(arrival, theirs, Answered::Req, reason),
        };
        let Some(endpoint) = self.admit(arrival, listener, theirs) else {
            return self.refuse(arrival, theirs, Answered::Req, reason::NO_RESOURCES);
        };
        endpoint.state = State::ReqReceived;
        endpoint.remote_qpn = req.qpn;
        endpoint.ack_timeout = req.path.ack_timeout;
        endpoint.response_timeout = coded(req.local_response_timeout, LONGEST_RESPONSE);
        endpoint.retries = req.max_cm_retries;
        let request = ConnectRequest {
            listener,
            space: PortSpace::Tcp,
            local: arrival.dst,
            remote: arrival.src,
            remote_port: header.port,
            peer: Offer {
                qpn: req.qpn,
                starting_psn: req.starting_psn,
                responder_resources: req.responder_resources,
                initiator_depth: req.initiator_depth,
                flow_control: req.flow_control,
                retry_count: req.retry_count,
                rnr_retry_count: req.rnr_retry_count,
                srq: req.srq,
            },
            transport: req.transport,
            path_mtu,
            ack_timeout: req.path.ack_timeout,
            traffic_class: req.path.traffic_class,
            private_data: req.private_data[CMA_HEADER_LEN..].to_vec(),
        };
        self.announce(arrival.src, theirs, request);
    }

    /// Tells the program of the endpoint that was just admitted.
    fn announce(&mut self, peer: IpAddr, theirs: u32, request: ConnectRequest) {
        let Some(&endpoint) = self.requests.get(&(peer, theirs, request.space)) else { return };
        if request.space == PortSpace::Tcp {
            self.note_peer_qp(endpoint);
        }
        self.events.push_back(CmEvent { endpoint, kind: CmEventKind::ConnectRequest(Box::new(request)) });
    }

    fn note_peer_qp(&mut self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get(id.0) else { return };
        // Numbers that no queue pair of a program has: the program has not told its own.
        if endpoint.remote_qpn > Qpn::GSI {
            self.peer_qps.insert((endpoint.remote, endpoint.remote_qpn), id);
        }
    }

    fn on_repeated_req(&mut self, arrival: Arrival, id: EndpointId, req: &Req) {
        let Some(endpoint) = self.endpoints.get(id.0) else { return };
        if endpoint.remote_qpn != req.qpn {
            // Not a copy: the peer has begun to count anew.
            self.refuse(arrival, req.local_comm_id, Answered::Req, reason::STALE_CONNECTION);
            let is_over = matches!(endpoint_state(self, id), State::Timewait | State::Answered);
            return if is_over { self.retire(id) } else { self.disconnected(arrival.now, id) };
        }
        match endpoint.state {
            State::ReqReceived => {
                let remote_comm_id = endpoint.remote_id;
                let mra = Message::Mra {
                    local_comm_id: id.0,
                    remote_comm_id,
                    answered: Answered::Req,
                    service_timeout: SERVICE_TIMEOUT,
                };
                self.answer(arrival, &mra);
            }
            State::RepSent | State::Answered => self.repeat(id),
            _ => {}
        }
    }

    fn on_mra(&mut self, arrival: Arrival, theirs: u32, ours: u32, answered: Answered, service_timeout: u8) {
        let Some(endpoint) = self.endpoints.get_mut(ours) else { return };
        let fits = match (endpoint.state, answered) {
            // The first that is heard of the peer.
            (State::ReqSent, Answered::Req) => endpoint.remote == arrival.src,
            (State::RepSent, Answered::Rep) => endpoint.remote == arrival.src && endpoint.remote_id == theirs,
            _ => false,
        };
        if fits {
            let until = arrival.now + coded(service_timeout, LONGEST_SERVICE) + endpoint.response_timeout;
            self.set_deadline(EndpointId(ours), Some(until));
        }
    }

    fn on_rej(&mut self, arrival: Arrival, rej: &Rej) {
        let theirs = rej.local_comm_id;
        // A peer that gives up before it has heard of us can only tell its own number.
        let id = match rej.remote_comm_id {
            0 => match self.requests.get(&(arrival.src, theirs, PortSpace::Tcp)) {
                Some(&id) => id,
                None => return,
            },
            ours => EndpointId(ours),
        };
        let Some(endpoint) = self.endpoints.get(id.0).filter(|endpoint| endpoint.remote == arrival.src) else { return };
        match endpoint.state {
            State::ReqSent => {}
            State::ReqReceived | State::RepSent | State::RepReceived if theirs == endpoint.remote_id || theirs == 0 => {}
            // The peer does not know of the connection.
            State::Established | State::DreqSent if rej.reason == reason::INVALID_COMM_ID => {
                return self.disconnected(arrival.now, id);
            }
            _ => return,
        }
        self.event(id, CmEventKind::Rejected { reason: rej.reason, private_data: rej.private_data.to_vec() });
        self.retire(id);
    }

    fn on_rep(&mut self, arrival: Arrival, rep: &Rep) {
        let ours = rep.remote_comm_id;
        let Some(endpoint) = self.endpoints.get_mut(ours).filter(|endpoint| endpoint.remote == arrival.src) else {
            return self.refuse(arrival, rep.local_comm_id, Answered::Rep, reason::INVALID_COMM_ID);
        };
        let id = EndpointId(ours);
        match endpoint.state {
            State::ReqSent => {
                endpoint.state = State::RepReceived;
                endpoint.remote_id = rep.local_comm_id;
                endpoint.remote_qpn = rep.qpn;
                let peer = Offer {
                    qpn: rep.qpn,
                    starting_psn: rep.starting_psn,
                    responder_resources: rep.responder_resources,
                    initiator_depth: rep.initiator_depth,
                    flow_control: rep.flow_control,
                    retry_count: 0,
                    rnr_retry_count: rep.rnr_retry_count,
                    srq: rep.srq,
                };
                self.note_peer_qp(id);
                self.set_deadline(id, None);
                self.event(id, CmEventKind::ConnectResponse { peer, private_data: rep.private_data.to_vec() });
            }
            State::RepReceived if endpoint.remote_id == rep.local_comm_id => {
                let mra = Message::Mra {
                    local_comm_id: ours,
                    remote_comm_id: rep.local_comm_id,
                    answered: Answered::Rep,
                    service_timeout: READY_TIMEOUT,
                };
                self.answer(arrival, &mra);
            }
            // It has not got the RTU.
            State::Established if endpoint.remote_id == rep.local_comm_id && !endpoint.is_passive => self.repeat(id),
            State::Idle | State::Listening { .. } => {
                self.refuse(arrival, rep.local_comm_id, Answered::Rep, reason::INVALID_COMM_ID);
            }
            _ => {}
        }
    }

    /// The peer is ready, or has shown that it is.
    pub(super) fn established(&mut self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get_mut(id.0) else { return };
        endpoint.state = State::Established;
        endpoint.was_connected = true;
        self.set_deadline(id, None);
        self.event(id, CmEventKind::Established);
    }

    fn on_dreq(&mut self, arrival: Arrival, theirs: u32, ours: u32, qpn: Qpn) {
        let reply = Message::Drep { local_comm_id: ours, remote_comm_id: theirs };
        let Some((id, state)) = self.addressee(arrival.src, ours, theirs) else {
            // We have forgotten; the peer need not ask again.
            return self.answer(arrival, &reply);
        };
        if self.endpoints.get(id.0).is_none_or(|endpoint| endpoint.local_qpn != qpn) {
            return;
        }
        match state {
            State::RepSent | State::RepReceived | State::Established | State::DreqSent => {
                if let Some(endpoint) = self.endpoints.get_mut(id.0) {
                    endpoint.was_connected = true;
                    endpoint.transaction = arrival.transaction;
                }
                self.send(id, &reply);
                self.disconnected(arrival.now, id);
            }
            _ => self.answer(arrival, &reply),
        }
    }

    fn on_sidr_req(&mut self, arrival: Arrival, req: &SidrReq) {
        let theirs = req.request_id;
        if let Some(&id) = self.requests.get(&(arrival.src, theirs, PortSpace::Udp)) {
            if endpoint_state(self, id) == State::Answered {
                self.repeat(id);
            }
            return;
        }
        let header = req.private_data.first_chunk::<CMA_HEADER_LEN>().and_then(CmaHeader::parse);
        let listener = match (PortSpace::of_service_id(req.service_id), header) {
            (Some((PortSpace::Udp, port)), Some(header)) => {
                self.listener(PortSpace::Udp, port, arrival.dst).ok().map(|listener| (listener, header))
            }
            _ => None,
        };
        let admitted = listener.and_then(|(listener, header)| {
            let endpoint = self.admit(arrival, listener, theirs)?;
            endpoint.state = State::SidrReqReceived;
            Some((listener, header))
        });
        let Some((listener, header)) = admitted else {
            let rep = SidrRep {
                request_id: theirs,
                status: sidr_status::NOT_SUPPORTED,
                qpn: Qpn::new(0),
                service_id: req.service_id,
                qkey: 0,
                private_data: [0; 136],
            };
            return self.answer(arrival, &Message::SidrRep(rep));
        };
        let nothing = Offer {
            qpn: Qpn::new(0),
            starting_psn: Psn::new(0),
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: false,
            retry_count: 0,
            rnr_retry_count: 0,
            srq: false,
        };
        let request = ConnectRequest {
            listener,
            space: PortSpace::Udp,
            local: arrival.dst,
            remote: arrival.src,
            remote_port: header.port,
            peer: nothing,
            transport: Transport::Rc,
            path_mtu: Mtu::B1024,
            ack_timeout: 0,
            traffic_class: 0,
            private_data: req.private_data[CMA_HEADER_LEN..].to_vec(),
        };
        self.announce(arrival.src, theirs, request);
    }

    fn on_sidr_rep(&mut self, arrival: Arrival, rep: &SidrRep) {
        let Some(endpoint) = self.endpoints.get_mut(rep.request_id) else { return };
        if endpoint.state != State::SidrReqSent || endpoint.remote != arrival.src {
            return;
        }
        let id = EndpointId(rep.request_id);
        let kind = match rep.status {
            sidr_status::VALID => {
                CmEventKind::Resolved { qpn: rep.qpn, qkey: rep.qkey, private_data: rep.private_data.to_vec() }
            }
            status => CmEventKind::NoService { status },
        };
        self.event(id, kind);
        self.retire(id);
    }
}

fn endpoint_state(cm: &Cm, id: EndpointId) -> State {
    cm.endpoints.get(id.0).map_or(State::Idle, |endpoint| endpoint.state)
}
