//! What the connection manager knows of one endpoint.

use super::{Cm, CmError, EndpointId, PeerKey};
use alloc::boxed::Box;
use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use roce::wire::cma::PortSpace;
use roce::wire::mad::MAD_LEN;
use roce::{Instant, Qpn};

/// Where an endpoint stands (IBA 12.9.5 to 12.9.8, with the names of the messages in them).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing goes on.
    Idle,
    /// Takes requests.
    Listening {
        /// Most that may wait for the program's answer.
        backlog: u32,
        /// Those that do.
        waiting: u32,
    },
    /// A REQ is out.
    ReqSent,
    /// The program has to say whether it takes the request.
    ReqReceived,
    /// A REP is out.
    RepSent,
    /// The program has to say that it is ready.
    RepReceived,
    /// Connected.
    Established,
    /// A DREQ is out.
    DreqSent,
    /// Disconnected; late messages are still answered.
    Timewait,
    /// A SIDR_REQ is out.
    SidrReqSent,
    /// The program has to say whether it serves.
    SidrReqReceived,
    /// The last word was said (REJ or SIDR_REP); it is repeated when asked again.
    Answered,
}

impl State {
    /// For messages.
    pub fn name(self) -> &'static str {
        match self {
            State::Idle => "idle",
            State::Listening { .. } => "listening",
            State::ReqSent | State::RepReceived | State::SidrReqSent => "connecting",
            State::ReqReceived | State::SidrReqReceived => "asked to connect",
            State::RepSent => "accepting",
            State::Established => "connected",
            State::DreqSent => "disconnecting",
            State::Timewait => "disconnected",
            State::Answered => "answered",
        }
    }
}

/// An endpoint.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub space: PortSpace,
    /// Our port.
    pub port: u16,
    /// Our address, if it is bound to one.
    pub bound_to: Option<IpAddr>,
    /// May share its port with others that may, as long as nobody listens.
    pub reuse: bool,
    /// Stands in the table of ports. Endpoints that a request made have their listener's port.
    pub holds_port: bool,
    pub state: State,
    /// A program wants its events.
    pub owned: bool,
    /// Was connected, so that disconnecting it once more is no error.
    pub was_connected: bool,
    /// The listener at which it waits for the program's answer.
    pub waits_at: Option<EndpointId>,
    pub local: IpAddr,
    pub remote: IpAddr,
    /// The peer's number of the connection; 0 while it is not known.
    pub remote_id: u32,
    /// Made by the peer's request.
    pub is_passive: bool,
    pub local_qpn: Qpn,
    pub remote_qpn: Qpn,
    pub transaction: u64,
    pub service_id: u64,
    /// The last message sent.
    pub sent: Option<Box<[u8; MAD_LEN]>>,
    /// How often it may still be sent again.
    pub retries: u8,
    pub response_timeout: Duration,
    /// Exponent of the local ACK timeout.
    pub ack_timeout: u8,
    pub deadline: Option<Instant>,
}

impl Endpoint {
    /// An endpoint with a port, and nothing else.
    pub fn new(space: PortSpace, port: u16, bound_to: Option<IpAddr>) -> Endpoint {
        const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Endpoint {
            space,
            port,
            bound_to,
            reuse: false,
            holds_port: false,
            state: State::Idle,
            owned: true,
            was_connected: false,
            waits_at: None,
            local: NOWHERE,
            remote: NOWHERE,
            remote_id: 0,
            is_passive: false,
            local_qpn: Qpn::new(0),
            remote_qpn: Qpn::new(0),
            transaction: 0,
            service_id: 0,
            sent: None,
            retries: 0,
            response_timeout: Duration::ZERO,
            ack_timeout: 0,
            deadline: None,
        }
    }

    /// By what the peer's request is known.
    pub fn request_key(&self) -> Option<PeerKey> {
        self.is_passive.then_some((self.remote, self.remote_id, self.space))
    }

    pub fn is_listening(&self) -> bool {
        matches!(self.state, State::Listening { .. })
    }

    /// Whether two endpoints would take the same requests.
    pub fn overlaps(&self, ip: Option<IpAddr>) -> bool {
        match (self.bound_to, ip) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        }
    }
}

impl Cm {
    /// The endpoint, for a call of its owner.
    pub(super) fn owned(&mut self, id: EndpointId) -> Result<&mut Endpoint, CmError> {
        self.endpoints.get_mut(id.0).filter(|endpoint| endpoint.owned).ok_or(CmError::NotFound)
    }
}
