//! Control calls of connection management: what `rdma_cm` asks of the daemon.
//!
//! An endpoint is what a program binds to a port, listens on, or connects. What happens to it is told by events, which wait in the
//! channel that the endpoint names; the channel's pipe holds a byte while there may be some. Addresses are GIDs, an IPv4 address
//! being written as an IPv4-mapped IPv6 address.

use crate::control::Handle;
use serde::{Deserialize, Serialize};

/// A GID.
pub type Address = [u8; 16];

/// What the client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CmRequest {
    /// New event channel. Answer: [`CmReply::Channel`].
    CreateChannel,
    /// Ends a channel that no endpoint names. Answer: [`CmReply::Done`].
    DestroyChannel {
        /// The channel.
        channel: Handle,
    },
    /// New endpoint with a port. Answer: [`CmReply::Endpoint`].
    Bind {
        /// Where its events go.
        channel: Handle,
        /// `enum rdma_port_space`: TCP (0x106) or UDP (0x111).
        space: u16,
        /// Address of the device; none for all of them.
        address: Option<Address>,
        /// The port, 0 for any.
        port: u16,
        /// Whether others that say so too may have the same port, while none of them listens.
        reuse: bool,
    },
    /// Takes requests from now on. Answer: [`CmReply::Done`].
    Listen {
        /// The endpoint.
        endpoint: Handle,
        /// Most requests that wait for an answer; 0 for as many as the daemon allows.
        backlog: u32,
    },
    /// Asks a peer. Answer: [`CmReply::Done`].
    Connect {
        /// The endpoint.
        endpoint: Handle,
        /// Whom, and over what path.
        to: Peer,
        /// The client's side; of no meaning for datagrams.
        offer: Offer,
        /// For the peer's program.
        private_data: Vec<u8>,
    },
    /// Accepts a connection. Answer: [`CmReply::Done`].
    Accept {
        /// The endpoint.
        endpoint: Handle,
        /// The client's side.
        offer: Offer,
        /// For the peer's program.
        private_data: Vec<u8>,
    },
    /// Accepts to serve datagrams. Answer: [`CmReply::Done`].
    Serve {
        /// The endpoint.
        endpoint: Handle,
        /// The queue pair.
        qpn: u32,
        /// Its queue key.
        qkey: u32,
        /// For the peer's program.
        private_data: Vec<u8>,
    },
    /// Refuses a request or a reply. Answer: [`CmReply::Done`].
    Reject {
        /// The endpoint.
        endpoint: Handle,
        /// For the peer's program.
        private_data: Vec<u8>,
    },
    /// The client's queue pair is ready. Answer: [`CmReply::Done`].
    Establish {
        /// The endpoint.
        endpoint: Handle,
    },
    /// Ends a connection. Answer: [`CmReply::Done`].
    Disconnect {
        /// The endpoint.
        endpoint: Handle,
    },
    /// Later events of an endpoint go to another channel. Answer: [`CmReply::Done`].
    Move {
        /// The endpoint.
        endpoint: Handle,
        /// The channel.
        channel: Handle,
    },
    /// Ends an endpoint; its events that were not taken are dropped. Answer: [`CmReply::Done`].
    Destroy {
        /// The endpoint.
        endpoint: Handle,
    },
    /// Takes the oldest event. Answer: [`CmReply::Event`].
    NextEvent {
        /// The channel.
        channel: Handle,
    },
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CmReply {
    /// Done.
    Done,
    /// A channel. Descriptors: the read end of its pipe.
    Channel(Handle),
    /// An endpoint.
    Endpoint {
        /// For later calls, and in events.
        endpoint: Handle,
        /// Its port.
        port: u16,
    },
    /// An event, if there is one.
    Event(Option<CmEvent>),
}

/// Whom to connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Address of the client's device.
    pub local: Address,
    /// The peer's address, of the same family.
    pub remote: Address,
    /// The peer's port.
    pub port: u16,
    /// Whether the connection is an unreliable one.
    pub unreliable: bool,
    /// `enum ibv_mtu` of the path.
    pub path_mtu: u8,
    /// Exponent of the local ACK timeout.
    pub ack_timeout: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// One side's queue pair and what it offers the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Offer {
    /// Number of the queue pair.
    pub qpn: u32,
    /// First PSN that it expects: where the other side begins to send (IBA 12.7.31).
    pub starting_psn: u32,
    /// READs and atomics that it can answer at a time.
    pub responder_resources: u8,
    /// READs and atomics that it wants to have outstanding.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// For the other's queue pair, 0 to 7.
    pub retry_count: u8,
    /// For the other's queue pair, 0 to 7.
    pub rnr_retry_count: u8,
    /// It has a shared receive queue.
    pub srq: bool,
}

/// What has happened to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmEvent {
    /// The endpoint; a new one with [`CmEventKind::ConnectRequest`].
    pub endpoint: Handle,
    /// What.
    pub kind: CmEventKind,
}

/// See [`CmEvent`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CmEventKind {
    /// A peer wants to connect.
    ConnectRequest {
        /// Where it asks.
        listener: Handle,
        /// The peer, and the path that it proposes, as the client sees them.
        peer: Peer,
        /// The peer's side.
        offer: Offer,
        /// The peer's private data.
        private_data: Vec<u8>,
    },
    /// The peer accepts.
    ConnectResponse {
        /// The peer's side.
        offer: Offer,
        /// The peer's private data.
        private_data: Vec<u8>,
    },
    /// The peer is ready.
    Established,
    /// A datagram service answers.
    Resolved {
        /// Its queue pair.
        qpn: u32,
        /// Its queue key.
        qkey: u32,
        /// Its private data.
        private_data: Vec<u8>,
    },
    /// The peer does not want.
    Rejected {
        /// Reason of the REJ message.
        reason: u16,
        /// The peer's private data.
        private_data: Vec<u8>,
    },
    /// No answer.
    Unreachable,
    /// A datagram service is not there, or refuses.
    NoService {
        /// Status of the SIDR_REP message.
        status: u8,
    },
    /// The connection has ended.
    Disconnected,
    /// The connection can be forgotten.
    TimewaitExit,
}
