//! Attributes of devices and queue pairs, as `ibv_create_qp(3)` and `ibv_modify_qp(3)` know them.

use crate::work::{CqId, SrqId};
use alloc::vec::Vec;
use bitflags::bitflags;
use emtt::Access;
use roce::wire::Service;
use roce::{Gid, Mtu, Psn, Qpn};

/// What a new device starts with.
#[derive(Clone, Debug)]
pub struct DeviceInit {
    /// The GID table: index 0 first. Entries of other devices of the same `Rnic` are refused.
    pub gids: Vec<Gid>,
    /// Largest path MTU of the port (`active_mtu`).
    pub mtu: Mtu,
}

/// Queue pair states (IBA 10.3); the values are those of `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QpState {
    /// Created or reset.
    Reset = 0,
    /// Receives can be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue draining or drained.
    Sqd = 4,
    /// Send queue in error.
    Sqe = 5,
    /// Error: everything is flushed.
    Err = 6,
}

impl QpState {
    /// The state with this value; `None` if there is none.
    pub fn from_code(code: u32) -> Option<QpState> {
        use QpState::*;
        [Reset, Init, Rtr, Rts, Sqd, Sqe, Err].into_iter().find(|&state| state as u32 == code)
    }
}

/// Transport service. Only what the core can do; the values are those of `enum ibv_qp_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QpType {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Extended reliable connection, the end that sends.
    XrcSend = 9,
    /// Extended reliable connection, the end that receives.
    XrcRecv = 10,
}

impl QpType {
    /// The type of the queue pair at the other end.
    pub(crate) fn of_peer(self) -> QpType {
        match self {
            QpType::XrcSend => QpType::XrcRecv,
            QpType::XrcRecv => QpType::XrcSend,
            QpType::Rc | QpType::Uc | QpType::Ud => self,
        }
    }

    /// The service that its packets are of.
    pub(crate) fn service(self) -> Service {
        match self {
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            QpType::Ud => Service::Ud,
            QpType::XrcSend | QpType::XrcRecv => Service::Xrc,
        }
    }
}

/// Queue sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct QpCaps {
    /// Send requests that can be outstanding.
    pub max_send_wr: u32,
    /// Receive requests that can be outstanding.
    pub max_recv_wr: u32,
    /// Buffers per send request.
    pub max_send_sge: u32,
    /// Buffers per receive request.
    pub max_recv_sge: u32,
    /// Bytes of inline data per send request; the front end's business, kept for queries.
    pub max_inline_data: u32,
}

/// What a new queue pair is made of.
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Transport service; any but [`QpType::XrcRecv`], for which there is [`Rnic::create_xrc_target`](crate::Rnic::create_xrc_target).
    pub qp_type: QpType,
    /// Where send completions go.
    pub send_cq: CqId,
    /// Where receive completions go. [`QpType::XrcSend`] has none, and this is used nevertheless: `send_cq` will do.
    pub recv_cq: CqId,
    /// Where receives come from instead of a queue of its own; not with [`QpType::XrcSend`].
    pub srq: Option<SrqId>,
    /// Queue sizes, within the device's limits; those of receives mean nothing with a shared receive queue.
    pub caps: QpCaps,
    /// Every send request gives a completion.
    pub all_signaled: bool,
}

/// The way to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AddressVector {
    /// The peer's port.
    pub dgid: Gid,
    /// Index of our own GID.
    pub sgid_index: u8,
    /// Becomes DSCP and ECN field of the IP header.
    pub traffic_class: u8,
    /// Becomes TTL or hop limit; 0 stands for 64.
    pub hop_limit: u8,
    /// Becomes the IPv6 flow label, 20 bits.
    pub flow_label: u32,
    /// Service level, kept for queries.
    pub service_level: u8,
    /// Port number; must be 1.
    pub port: u8,
}

impl AddressVector {
    /// TTL or hop limit of packets.
    pub(crate) fn hop_limit(&self) -> u8 {
        if self.hop_limit == 0 { 64 } else { self.hop_limit }
    }
}

bitflags! {
    /// Which attributes a call gives; the values are those of `enum ibv_qp_attr_mask`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct QpAttrMask: u32 {
        /// `state`.
        const STATE = 1;
        /// `cur_state`.
        const CUR_STATE = 1 << 1;
        /// `sqd_async_notify`.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `access`.
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        const PKEY_INDEX = 1 << 4;
        /// `port`.
        const PORT = 1 << 5;
        /// `qkey`.
        const QKEY = 1 << 6;
        /// `address`.
        const AV = 1 << 7;
        /// `path_mtu`.
        const PATH_MTU = 1 << 8;
        /// `timeout`.
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`.
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate path: not supported, refused.
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration: not supported, refused.
        const PATH_MIG_STATE = 1 << 18;
        /// Queue sizes: resizing is not supported, refused.
        const CAP = 1 << 19;
        /// `dest_qpn`.
        const DEST_QPN = 1 << 20;
    }
}

/// Attributes of a queue pair. Raw codes stay raw here so that a query returns what was set; they are checked when set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// State to go to, or the state found by a query.
    pub state: QpState,
    /// State assumed by the caller.
    pub cur_state: QpState,
    /// Ask for `AsyncEvent::SqDrained`.
    pub sqd_async_notify: bool,
    /// Rights of the peer on this connection: the remote bits of [`Access`].
    pub access: Access,
    /// Must be 0.
    pub pkey_index: u16,
    /// Must be 1.
    pub port: u8,
    /// Datagram Q_Key.
    pub qkey: u32,
    /// The way to the peer.
    pub address: AddressVector,
    /// Payload bytes per packet.
    pub path_mtu: Mtu,
    /// Local ACK timeout is 4.096 µs x 2^timeout, 0 for never; 5 bits.
    pub timeout: u8,
    /// How often a request is sent again after a timeout or a sequence NAK, 0 to 7.
    pub retry_cnt: u8,
    /// How often after an RNR NAK, 0 to 7; 7 is for ever.
    pub rnr_retry: u8,
    /// First PSN expected.
    pub rq_psn: Psn,
    /// First PSN sent.
    pub sq_psn: Psn,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics accepted as responder.
    pub max_dest_rd_atomic: u8,
    /// RNR timer code sent in an RNR NAK, 0 to 31.
    pub min_rnr_timer: u8,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// Whether the send queue is still draining (state SQD, queries only).
    pub sq_draining: bool,
    /// Queue sizes (queries only).
    pub caps: QpCaps,
}
