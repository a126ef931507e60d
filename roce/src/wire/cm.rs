//! Messages of communication management (IBA 12.6 to 12.11), as management datagrams.
//!
//! Alternate paths and the reliable datagram fields are sent as zero and not looked at. What a message means to a connection is
//! decided elsewhere.

use super::mad::{Fields, FieldsMut, HEADER_LEN, MAD_LEN, MadError, emit_header, parse_header};
use crate::{Gid, Psn, Qpn};

const REQ: u16 = 0x10;
const MRA: u16 = 0x11;
const REJ: u16 = 0x12;
const REP: u16 = 0x13;
const RTU: u16 = 0x14;
const DREQ: u16 = 0x15;
const DREP: u16 = 0x16;
const SIDR_REQ: u16 = 0x17;
const SIDR_REP: u16 = 0x18;

/// Where the private data of each message begins, after the header; it goes to the end of the datagram.
const REQ_DATA: usize = 140;
const REP_DATA: usize = 36;
const REJ_DATA: usize = 84;
const SIDR_REQ_DATA: usize = 16;
const SIDR_REP_DATA: usize = 96;

/// Bytes of private data of a REQ.
pub const REQ_PRIVATE: usize = 92;
/// Bytes of private data of a REP.
pub const REP_PRIVATE: usize = 196;
/// Bytes of private data of a REJ.
pub const REJ_PRIVATE: usize = 148;
/// Bytes of private data of a SIDR_REQ.
pub const SIDR_REQ_PRIVATE: usize = 216;
/// Bytes of private data of a SIDR_REP.
pub const SIDR_REP_PRIVATE: usize = 136;

/// Reasons of a REJ (IBA 12.6.7.2); others may be received.
pub mod reason {
    #![allow(missing_docs)]
    pub const NO_QP: u16 = 1;
    pub const NO_RESOURCES: u16 = 3;
    pub const TIMEOUT: u16 = 4;
    pub const INVALID_COMM_ID: u16 = 6;
    pub const INVALID_SERVICE_ID: u16 = 8;
    pub const INVALID_TRANSPORT: u16 = 9;
    pub const STALE_CONNECTION: u16 = 10;
    pub const CONSUMER: u16 = 28;
}

/// Status of a SIDR_REP (IBA 12.11.2).
pub mod sidr_status {
    #![allow(missing_docs)]
    pub const VALID: u8 = 0;
    pub const NOT_SUPPORTED: u8 = 1;
    pub const REJECTED: u8 = 2;
    pub const NO_QP: u8 = 3;
}

/// Transport service of a REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Transport {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Reliable datagram.
    Rd = 2,
    /// An extended type: XRC.
    Extended = 3,
}

/// The path that a REQ proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmPath {
    /// Port of the sender.
    pub local_gid: Gid,
    /// Port of the receiver.
    pub remote_gid: Gid,
    /// 20 bits.
    pub flow_label: u32,
    /// Encoded as in a path record, 6 bits.
    pub packet_rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// Whether both are in one subnet.
    pub subnet_local: bool,
    /// Exponent of the local ACK timeout, 5 bits.
    pub ack_timeout: u8,
}

/// Request for communication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Req {
    /// The sender's number of the connection.
    pub local_comm_id: u32,
    /// What is to be connected to.
    pub service_id: u64,
    /// The sender's node.
    pub ca_guid: u64,
    /// Queue key of the sender's queue pair.
    pub qkey: u32,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// READs and atomics that the sender can answer at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender will have outstanding.
    pub initiator_depth: u8,
    /// Exponent of the time within which the receiver shall answer, 5 bits.
    pub remote_response_timeout: u8,
    /// Transport service.
    pub transport: Transport,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// First PSN that the receiver of this message will use towards its sender (IBA 12.7.31).
    pub starting_psn: Psn,
    /// Exponent of the time within which the sender will answer, 5 bits.
    pub local_response_timeout: u8,
    /// For the receiver's queue pair, 3 bits.
    pub retry_count: u8,
    /// Partition key.
    pub pkey: u16,
    /// Code of the path MTU, 4 bits.
    pub path_mtu: u8,
    /// For the receiver's queue pair, 3 bits.
    pub rnr_retry_count: u8,
    /// How often either side sends a message again, 4 bits.
    pub max_cm_retries: u8,
    /// The sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// The path.
    pub path: CmPath,
    /// Private data.
    pub private_data: [u8; REQ_PRIVATE],
}

/// Which message an [`Message::Mra`] or [`Message::Rej`] answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Answered {
    /// A REQ.
    Req = 0,
    /// A REP.
    Rep = 1,
    /// Another, or none.
    Other = 2,
}

impl Answered {
    fn decode(bits: u8) -> Result<Answered, MadError> {
        match bits {
            0 => Ok(Answered::Req),
            1 => Ok(Answered::Rep),
            2 => Ok(Answered::Other),
            _ => Err(MadError::Field("message answered")),
        }
    }
}

/// Reply to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rep {
    /// The sender's number of the connection.
    pub local_comm_id: u32,
    /// The receiver's.
    pub remote_comm_id: u32,
    /// Queue key of the sender's queue pair.
    pub qkey: u32,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// First PSN that the receiver of this message will use towards its sender (IBA 12.7.31).
    pub starting_psn: Psn,
    /// READs and atomics that the sender can answer at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender will have outstanding.
    pub initiator_depth: u8,
    /// Exponent of the delay before the sender acknowledges, 5 bits.
    pub target_ack_delay: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// For the receiver's queue pair, 3 bits.
    pub rnr_retry_count: u8,
    /// The sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// The sender's node.
    pub ca_guid: u64,
    /// Private data.
    pub private_data: [u8; REP_PRIVATE],
}

/// Refusal, or the end of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rej {
    /// The sender's number of the connection, 0 if it has none.
    pub local_comm_id: u32,
    /// The receiver's, 0 if the sender does not know it.
    pub remote_comm_id: u32,
    /// What is refused.
    pub answered: Answered,
    /// See [`reason`].
    pub reason: u16,
    /// Private data.
    pub private_data: [u8; REJ_PRIVATE],
}

/// Service ID resolution request: who serves it with datagrams?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrReq {
    /// The sender's number of the request.
    pub request_id: u32,
    /// Partition key.
    pub pkey: u16,
    /// What is looked for.
    pub service_id: u64,
    /// Private data.
    pub private_data: [u8; SIDR_REQ_PRIVATE],
}

/// Service ID resolution response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrRep {
    /// The receiver's number of the request.
    pub request_id: u32,
    /// See [`sidr_status`].
    pub status: u8,
    /// The queue pair that serves it.
    pub qpn: Qpn,
    /// What was looked for.
    pub service_id: u64,
    /// Its queue key.
    pub qkey: u32,
    /// Private data.
    pub private_data: [u8; SIDR_REP_PRIVATE],
}

/// A message of communication management. Private data that no consumer sends (RTU, MRA, DREQ, DREP) is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)]
pub enum Message {
    /// Request for communication.
    Req(Req),
    /// Message receipt acknowledged: the answer takes longer.
    Mra {
        /// The sender's number of the connection.
        local_comm_id: u32,
        /// The receiver's.
        remote_comm_id: u32,
        /// What was received.
        answered: Answered,
        /// Exponent of the time within which the answer will come, 5 bits.
        service_timeout: u8,
    },
    /// Refusal.
    Rej(Rej),
    /// Reply.
    Rep(Rep),
    /// Ready to use.
    Rtu {
        /// The sender's number of the connection.
        local_comm_id: u32,
        /// The receiver's.
        remote_comm_id: u32,
    },
    /// Request for communication release.
    Dreq {
        /// The sender's number of the connection.
        local_comm_id: u32,
        /// The receiver's.
        remote_comm_id: u32,
        /// The receiver's queue pair.
        remote_qpn: Qpn,
    },
    /// Reply to it.
    Drep {
        /// The sender's number of the connection.
        local_comm_id: u32,
        /// The receiver's.
        remote_comm_id: u32,
    },
    /// Service ID resolution request.
    SidrReq(SidrReq),
    /// Service ID resolution response.
    SidrRep(SidrRep),
}

impl Message {
    /// Writes the whole datagram. Bits beyond the width of a field are dropped.
    pub fn emit(&self, transaction: u64, out: &mut [u8; MAD_LEN]) {
        emit_header(transaction, self.attribute(), out);
        let mut fields = FieldsMut(&mut out[HEADER_LEN..]);
        match self {
            Message::Req(req) => req.emit(&mut fields),
            Message::Rep(rep) => rep.emit(&mut fields),
            Message::Rej(rej) => {
                fields.u32(0, rej.local_comm_id);
                fields.u32(4, rej.remote_comm_id);
                fields.u8(8, (rej.answered as u8) << 6);
                fields.u16(10, rej.reason);
                fields.bytes(REJ_DATA, &rej.private_data);
            }
            &Message::Mra { local_comm_id, remote_comm_id, answered, service_timeout } => {
                fields.u32(0, local_comm_id);
                fields.u32(4, remote_comm_id);
                fields.u8(8, (answered as u8) << 6);
                fields.u8(9, service_timeout << 3);
            }
            &Message::Rtu { local_comm_id, remote_comm_id } | &Message::Drep { local_comm_id, remote_comm_id } => {
                fields.u32(0, local_comm_id);
                fields.u32(4, remote_comm_id);
            }
            &Message::Dreq { local_comm_id, remote_comm_id, remote_qpn } => {
                fields.u32(0, local_comm_id);
                fields.u32(4, remote_comm_id);
                fields.u24_u8(8, remote_qpn.get(), 0);
            }
            Message::SidrReq(req) => {
                fields.u32(0, req.request_id);
                fields.u16(4, req.pkey);
                fields.u64(8, req.service_id);
                fields.bytes(SIDR_REQ_DATA, &req.private_data);
            }
            Message::SidrRep(rep) => {
                fields.u32(0, rep.request_id);
                fields.u8(4, rep.status);
                fields.u24_u8(8, rep.qpn.get(), 0);
                fields.u64(12, rep.service_id);
                fields.u32(20, rep.qkey);
                fields.bytes(SIDR_REP_DATA, &rep.private_data);
            }
        }
    }

    /// Transaction and message of a datagram.
    ///
    /// # Errors
    /// [`MadError`], whatever the bytes are; never a panic.
    pub fn parse(bytes: &[u8]) -> Result<(u64, Message), MadError> {
        let (transaction, attribute, fields) = parse_header(bytes)?;
        let (local_comm_id, remote_comm_id) = (fields.u32(0), fields.u32(4));
        let message = match attribute {
            REQ => Message::Req(Req::parse(&fields)?),
            REP => Message::Rep(Rep::parse(&fields)),
            REJ => Message::Rej(Rej {
                local_comm_id,
                remote_comm_id,
                answered: Answered::decode(fields.0[8] >> 6)?,
                reason: fields.u16(10),
                private_data: fields.bytes(REJ_DATA),
            }),
            MRA => Message::Mra {
                local_comm_id,
                remote_comm_id,
                answered: Answered::decode(fields.0[8] >> 6)?,
                service_timeout: fields.0[9] >> 3,
            },
            RTU => Message::Rtu { local_comm_id, remote_comm_id },
            DREQ => Message::Dreq { local_comm_id, remote_comm_id, remote_qpn: Qpn::new(fields.u24_u8(8).0) },
            DREP => Message::Drep { local_comm_id, remote_comm_id },
            SIDR_REQ => Message::SidrReq(SidrReq {
                request_id: local_comm_id,
                pkey: fields.u16(4),
                service_id: fields.u64(8),
                private_data: fields.bytes(SIDR_REQ_DATA),
            }),
            SIDR_REP => Message::SidrRep(SidrRep {
                request_id: local_comm_id,
                status: fields.0[4],
                qpn: Qpn::new(fields.u24_u8(8).0),
                service_id: fields.u64(12),
                qkey: fields.u32(20),
                private_data: fields.bytes(SIDR_REP_DATA),
            }),
            other => return Err(MadError::Attribute(other)),
        };
        Ok((transaction, message))
    }

    fn attribute(&self) -> u16 {
        match self {
            Message::Req(_) => REQ,
            Message::Mra { .. } => MRA,
            Message::Rej(_) => REJ,
            Message::Rep(_) => REP,
            Message::Rtu { .. } => RTU,
            Message::Dreq { .. } => DREQ,
            Message::Drep { .. } => DREP,
            Message::SidrReq(_) => SIDR_REQ,
            Message::SidrRep(_) => SIDR_REP,
        }
    }
}

impl Req {
    fn emit(&self, fields: &mut FieldsMut<'_>) {
        fields.u32(0, self.local_comm_id);
        fields.u64(8, self.service_id);
        fields.u64(16, self.ca_guid);
        fields.u32(28, self.qkey);
        fields.u24_u8(32, self.qpn.get(), self.responder_resources);
        fields.u24_u8(36, 0, self.initiator_depth);
        let flow_control = u8::from(self.flow_control);
        fields.u24_u8(40, 0, self.remote_response_timeout << 3 | (self.transport as u8) << 1 | flow_control);
        fields.u24_u8(44, self.starting_psn.get(), self.local_response_timeout << 3 | self.retry_count & 7);
        fields.u16(48, self.pkey);
        fields.u8(50, self.path_mtu << 4 | self.rnr_retry_count & 7);
        fields.u8(51, self.max_cm_retries << 4 | u8::from(self.srq) << 3);
        let path = &self.path;
        fields.bytes(56, &path.local_gid.0);
        fields.bytes(72, &path.remote_gid.0);
        fields.u32(88, path.flow_label << 12 | u32::from(path.packet_rate & 0x3F));
        fields.u8(92, path.traffic_class);
        fields.u8(93, path.hop_limit);
        fields.u8(94, path.service_level << 4 | u8::from(path.subnet_local) << 3);
        fields.u8(95, path.ack_timeout << 3);
        fields.bytes(REQ_DATA, &self.private_data);
    }

    fn parse(fields: &Fields<'_>) -> Result<Req, MadError> {
        let (qpn, responder_resources) = fields.u24_u8(32);
        let (_, service) = fields.u24_u8(40);
        let (starting_psn, retry) = fields.u24_u8(44);
        let [mtu, retries] = fields.bytes(50);
        let route = fields.u32(88);
        let [traffic_class, hop_limit, level, ack] = fields.bytes(92);
        Ok(Req {
            local_comm_id: fields.u32(0),
            service_id: fields.u64(8),
            ca_guid: fields.u64(16),
            qkey: fields.u32(28),
            qpn: Qpn::new(qpn),
            responder_resources,
            initiator_depth: fields.u24_u8(36).1,
            remote_response_timeout: service >> 3,
            transport: match service >> 1 & 3 {
                0 => Transport::Rc,
                1 => Transport::Uc,
                2 => Transport::Rd,
                _ => Transport::Extended,
            },
            flow_control: service & 1 != 0,
            starting_psn: Psn::new(starting_psn),
            local_response_timeout: retry >> 3,
            retry_count: retry & 7,
            pkey: fields.u16(48),
            path_mtu: mtu >> 4,
            rnr_retry_count: mtu & 7,
            max_cm_retries: retries >> 4,
            srq: retries & 8 != 0,
            path: CmPath {
                local_gid: Gid(fields.bytes(56)),
                remote_gid: Gid(fields.bytes(72)),
                flow_label: route >> 12,
                packet_rate: (route & 0x3F) as u8,
                traffic_class,
                hop_limit,
                service_level: level >> 4,
                subnet_local: level & 8 != 0,
                ack_timeout: ack >> 3,
            },
            private_data: fields.bytes(REQ_DATA),
        })
    }
}

impl Rep {
    fn emit(&self, fields: &mut FieldsMut<'_>) {
        fields.u32(0, self.local_comm_id);
        fields.u32(4, self.remote_comm_id);
        fields.u32(8, self.qkey);
        fields.u24_u8(12, self.qpn.get(), 0);
        fields.u24_u8(20, self.starting_psn.get(), 0);
        fields.u8(24, self.responder_resources);
        fields.u8(25, self.initiator_depth);
        fields.u8(26, self.target_ack_delay << 3 | u8::from(self.flow_control));
        fields.u8(27, self.rnr_retry_count << 5 | u8::from(self.srq) << 4);
        fields.u64(28, self.ca_guid);
        fields.bytes(REP_DATA, &self.private_data);
    }

    fn parse(fields: &Fields<'_>) -> Rep {
        let [responder_resources, initiator_depth, delay, retry] = fields.bytes(24);
        Rep {
            local_comm_id: fields.u32(0),
            remote_comm_id: fields.u32(4),
            qkey: fields.u32(8),
            qpn: Qpn::new(fields.u24_u8(12).0),
            starting_psn: Psn::new(fields.u24_u8(20).0),
            responder_resources,
            initiator_depth,
            target_ack_delay: delay >> 3,
            flow_control: delay & 1 != 0,
            rnr_retry_count: retry >> 5,
            srq: retry & 0x10 != 0,
            ca_guid: fields.u64(28),
            private_data: fields.bytes(REP_DATA),
        }
    }
}
