//! Work requests and completions, as verbs programs know them.

use crate::attr::AddressVector;
use bitflags::bitflags;
use emtt::{Access, Segment};
use roce::{Lkey, Qpn, Rkey, Srqn};

/// A virtual device of this [`crate::Rnic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u32);

/// A protection domain.
pub use emtt::PdId;

/// A completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CqId(pub u32);

/// A shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SrqId(pub u32);

impl SrqId {
    /// The number by which requests of extended reliable connections name it.
    pub fn number(self) -> Srqn {
        Srqn::new(self.0)
    }

    /// The queue with this number, if there is one.
    pub fn numbered(srqn: Srqn) -> SrqId {
        SrqId(srqn.get())
    }
}

/// A domain of extended reliable connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XrcdId(pub u32);

/// One entry of a scatter/gather list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalBuffer {
    /// A range of a registered region; checked when the request is executed.
    Keyed {
        /// The region.
        lkey: Lkey,
        /// First byte, in the region's address space (its iova).
        addr: u64,
        /// Number of bytes.
        len: u32,
    },
    /// Memory that the front end vouches for: inline data still lying in the queue's ring, or a staging buffer. It is valid
    /// until the request completes. No key is looked up. Only in send requests, as a source.
    Direct(Segment),
}

bitflags! {
    /// Flags of a send request; the values are those of `enum ibv_send_flags` (inline is a matter of the front end).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct SendFlags: u8 {
        /// Starts only after earlier READs and atomics of the queue have completed.
        const FENCE = 1;
        /// Gives a completion. Errors give one always.
        const SIGNALED = 1 << 1;
        /// Sets the solicited event bit for the receiver.
        const SOLICITED = 1 << 2;
    }
}

/// Where a datagram goes: what an address handle and the fields beside it in a work request say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The peer's port, and the way there.
    pub address: AddressVector,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// The peer's Q_Key. One with the highest bit set stands for the sending queue pair's own (IBA 10.2.5).
    pub qkey: u32,
}

/// What a window is to be bound to (`struct ibv_mw_bind_info`, with the window and its keys).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindWindow {
    /// Any key of the window.
    pub window: Rkey,
    /// Its key from now on; only the last 8 bits may differ.
    pub rkey: Rkey,
    /// The region.
    pub lkey: Lkey,
    /// First byte, in the region's address space.
    pub addr: u64,
    /// Bytes; 0 leaves a window of type 1 unbound.
    pub len: u64,
    /// Rights of peers: remote ones only.
    pub access: Access,
    /// Whether peers count addresses from the window's first byte (type 2 only).
    pub zero_based: bool,
}

/// What a send request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND. `invalidate` and `imm` exclude each other.
    Send {
        /// Immediate data, the four bytes as on the wire.
        imm: Option<[u8; 4]>,
        /// Key that the receiver is to invalidate.
        invalidate: Option<Rkey>,
    },
    /// RDMA WRITE.
    Write {
        /// Remote address of the first byte.
        remote_addr: u64,
        /// Remote key.
        rkey: Rkey,
        /// Immediate data, the four bytes as on the wire; consumes a receive at the peer.
        imm: Option<[u8; 4]>,
    },
    /// RDMA READ into the local buffers.
    Read {
        /// Remote address of the first byte.
        remote_addr: u64,
        /// Remote key.
        rkey: Rkey,
    },
    /// Atomic; the value before goes to the local buffers (8 bytes), in host byte order.
    Atomic {
        /// Remote address, a multiple of 8.
        remote_addr: u64,
        /// Remote key.
        rkey: Rkey,
        /// Which operation.
        op: crate::AtomicOp,
    },
    /// SEND of one datagram, the only operation of a queue pair of type UD.
    Datagram {
        /// Where to.
        to: Destination,
        /// Immediate data, the four bytes as on the wire.
        imm: Option<[u8; 4]>,
    },
    /// Binds a window to a part of a region. Starts in its turn, whether or not earlier requests have completed.
    BindWindow(BindWindow),
    /// Takes back what a window of type 2 or a region with a name gives. Starts when all earlier requests have completed.
    LocalInvalidate {
        /// The window's or the region's key.
        key: Rkey,
    },
    /// Does nothing, and completes in its turn: for what the poster has done itself.
    Nothing,
}

impl SendOp {
    /// Whether it is done by this side alone, without a message to the peer.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, SendOp::BindWindow(_) | SendOp::LocalInvalidate { .. } | SendOp::Nothing)
    }
}

/// A send request. The core copies it; the buffers it names stay with the poster until completion.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// The poster's own value, returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// Flags.
    pub flags: SendFlags,
    /// Local buffers, at most the queue pair's `max_send_sge`.
    pub buffers: &'a [LocalBuffer],
    /// The shared receive queue at the peer: of a message by a queue pair of type [`QpType::XrcSend`](crate::QpType::XrcSend), and of
    /// nothing else.
    pub srqn: Option<Srqn>,
}

/// A receive request.
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest<'a> {
    /// The poster's own value, returned in the completion.
    pub wr_id: u64,
    /// Local buffers, at most the queue pair's `max_recv_sge`; all `Keyed`.
    pub buffers: &'a [LocalBuffer],
}

/// Completion status; the values are those of `enum ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Success = 0,
    /// A receive was too short, or a message longer than 2^31 bytes.
    LocalLengthError = 1,
    /// The queue pair cannot do this.
    LocalQpOperationError = 2,
    /// A local buffer is not a valid range of a region with the right rights and PD.
    LocalProtectionError = 4,
    /// The queue pair went to the error state before this request ran.
    FlushError = 5,
    /// A window cannot be bound like this.
    MwBindError = 6,
    /// A response did not fit its request.
    BadResponseError = 7,
    /// The responder says that the request is invalid.
    RemoteInvalidRequestError = 9,
    /// The responder refuses access to its memory.
    RemoteAccessError = 10,
    /// The responder could not execute the request.
    RemoteOperationalError = 11,
    /// No answer within the retry budget.
    RetryExceededError = 12,
    /// The responder had no receive within the RNR retry budget.
    RnrRetryExceededError = 13,
}

/// What completed; the values are those of `enum ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// A SEND of any kind.
    Send = 0,
    /// A WRITE of any kind.
    Write = 1,
    /// A READ.
    Read = 2,
    /// A compare-and-swap.
    CompareSwap = 3,
    /// A fetch-and-add.
    FetchAdd = 4,
    /// A window was bound.
    BindWindow = 5,
    /// A key was invalidated by its owner.
    LocalInvalidate = 6,
    /// A receive, filled by a SEND.
    Recv = 128,
    /// A receive, consumed by a WRITE with immediate.
    RecvWriteWithImm = 129,
}

impl Opcode {
    /// A send request that is answered by data.
    pub(crate) fn is_fetch(self) -> bool {
        matches!(self, Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd)
    }
}

bitflags! {
    /// Flags of a completion; the values are those of `enum ibv_wc_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct CompletionFlags: u8 {
        /// A GRH lies in the first 40 bytes of the receive (datagrams only).
        const GRH = 1;
        /// [`Completion::imm`] holds immediate data.
        const WITH_IMM = 1 << 1;
        /// [`Completion::imm`] holds the key that was invalidated, big endian.
        const WITH_INV = 1 << 3;
    }
}

/// One completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// From the request.
    pub wr_id: u64,
    /// Outcome.
    pub status: Status,
    /// What it was; true also for failed requests.
    pub opcode: Opcode,
    /// The local queue pair.
    pub qpn: Qpn,
    /// The sender's queue pair (received datagrams only).
    pub src_qpn: Qpn,
    /// Bytes received, read, or moved; 0 for failed requests.
    pub byte_len: u32,
    /// Immediate data or invalidated key, see `flags`.
    pub imm: [u8; 4],
    /// Flags.
    pub flags: CompletionFlags,
    /// Whether the peer asked for a solicited event, or the status is an error.
    pub solicited: bool,
    /// Cause of an error in finer steps, see [`crate::vendor_err`]; 0 on success.
    pub vendor_err: u32,
    /// Count of requests of the same queue (send or receive) posted before this one since RESET, modulo 2^32: it and all
    /// before it are no longer held by the device. Of a shared receive queue, requests complete in any order, and this one
    /// alone is no longer held.
    pub queue_index: u32,
    /// Where the receive was posted, if a queue pair of type [`QpType::XrcRecv`](crate::QpType::XrcRecv) has taken it.
    pub srq: Option<SrqId>,
}
