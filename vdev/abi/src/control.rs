//! Control calls between the verbs library and the daemon.
//!
//! One [`Request`] per datagram, answered by one `Result<Reply, Refusal>`, both in postcard encoding, in order. The
//! descriptors that a message carries are named in its documentation, in the order in which they are attached. Handles are
//! per connection: a client can name only what it made itself, and everything it made ends with the connection.

use crate::cm::{CmReply, CmRequest};
use serde::{Deserialize, Serialize};

/// Version of this protocol; the two sides must agree exactly.
pub const ABI_VERSION: u32 = 5;
/// Longest control message in bytes, either way. A longer one ends the connection.
pub const MAX_MESSAGE: usize = 16 * 1024;
/// Most descriptors in one message.
pub const MAX_FDS: usize = 16;
/// Most [`SharedRange`]s (and so descriptors) in one registration.
pub const MAX_SHARED_RANGES: usize = 8;

/// A handle of the client's connection.
pub type Handle = u32;

/// What the client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// First message. Descriptors: optionally the client's `/proc/self/mem`, opened for reading and writing, which lets the
    /// daemon reach the client's memory where `process_vm_readv` is not permitted. Answer: [`Reply::Device`].
    Hello {
        /// [`ABI_VERSION`].
        abi: u32,
        /// Name of the program, for people; cut to 64 bytes.
        program: String,
    },
    /// Present state of the port. Answer: [`Reply::Port`].
    QueryPort,
    /// New protection domain. Answer: [`Reply::Handle`].
    AllocPd,
    /// Ends a protection domain. Answer: [`Reply::Done`].
    DeallocPd {
        /// The domain.
        pd: Handle,
    },
    /// Registers memory. Descriptors: one per shared range, in order. Answer: [`Reply::Region`].
    RegMr {
        /// The domain.
        pd: Handle,
        /// First byte in the client's address space.
        addr: u64,
        /// Number of bytes.
        length: u64,
        /// Address by which peers and work requests name the first byte.
        iova: u64,
        /// `enum ibv_access_flags`, without the optional bits 20 to 29.
        access: u32,
        /// Parts of the range that are shared objects of which the client has a descriptor.
        shared: Vec<SharedRange>,
    },
    /// Registers other memory, with other rights or in another domain, under the keys of an earlier registration, which stays as it
    /// is if this fails. Descriptors and fields: as for [`Self::RegMr`]. Answer: [`Reply::Region`].
    #[allow(missing_docs)]
    ReregMr { mr: Handle, pd: Handle, addr: u64, length: u64, iova: u64, access: u32, shared: Vec<SharedRange> },
    /// Registers a part of a device's buffer, a GPU's above all. Descriptors: the buffer, a dma-buf, or an object in memory that stands
    /// in for one. Answer: [`Reply::Region`].
    RegDmabufMr {
        /// An earlier registration to be replaced, as by [`Self::ReregMr`].
        mr: Option<Handle>,
        /// The domain.
        pd: Handle,
        /// First byte in the buffer.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// Address by which peers and work requests name the first byte.
        iova: u64,
        /// As in [`Self::RegMr`].
        access: u32,
    },
    /// Takes the memory of a device's buffer back from all registrations of this connection: what touches it ends with an access or
    /// protection error, and when the answer comes, the daemon has let go of the buffer. The registrations stay until they are ended.
    /// Descriptors: the buffer. Answer: [`Reply::Revoked`].
    RevokeDmabuf,
    /// Ends a registration that no window is bound to. Answer: [`Reply::Done`].
    DeregMr {
        /// The region.
        mr: Handle,
    },
    /// New region of zeros, which forgets what is written to it: as long as all addresses, and for work requests only. Answer:
    /// [`Reply::Region`], without a remote key.
    AllocNullMr {
        /// The domain.
        pd: Handle,
    },
    /// New memory window, bound to nothing. Answer: [`Reply::Window`].
    AllocMw {
        /// The domain.
        pd: Handle,
        /// `enum ibv_mw_type`.
        kind: u32,
    },
    /// Ends a memory window. Answer: [`Reply::Done`].
    DeallocMw {
        /// The window.
        mw: Handle,
    },
    /// New completion channel. Answer: [`Reply::Channel`].
    CreateChannel,
    /// Ends a channel. Answer: [`Reply::Done`].
    DestroyChannel {
        /// The channel.
        channel: Handle,
    },
    /// New completion queue. Answer: [`Reply::Cq`].
    CreateCq {
        /// Completions that fit, 1 or more; rounded up to a power of two.
        depth: u32,
        /// Where events go.
        channel: Option<Handle>,
        /// The client's own value, sent in events.
        cookie: u64,
    },
    /// Gives a completion queue a ring of another depth, to which the unread completions move. Answer: [`Reply::Cq`]; until it
    /// comes the client leaves the old ring alone.
    ResizeCq {
        /// The queue.
        cq: Handle,
        /// As in [`Self::CreateCq`].
        depth: u32,
    },
    /// Ends a completion queue. Answer: [`Reply::Done`].
    DestroyCq {
        /// The queue.
        cq: Handle,
    },
    /// New shared receive queue. Answer: [`Reply::Srq`].
    CreateSrq {
        /// The domain.
        pd: Handle,
        /// Receives wanted.
        max_wr: u32,
        /// Buffers per receive.
        max_sge: u32,
        /// See [`Request::SetSrqLimit`].
        limit: u32,
        /// The client's own value, sent in asynchronous events.
        cookie: u64,
    },
    /// Opens a domain of extended reliable connections. Descriptors: optionally a file, by whose inode programs that open the device
    /// share the domain. Answer: [`Reply::Handle`].
    OpenXrcd {
        /// A domain that nobody has opened by this file is made; otherwise that is an error, `EAGAIN`.
        create: bool,
        /// It is an error, `EINVAL`, if somebody has.
        exclusive: bool,
    },
    /// Closes a domain, from which nothing has been made or all of it is gone. Answer: [`Reply::Done`].
    CloseXrcd {
        /// The domain.
        xrcd: Handle,
    },
    /// New shared receive queue that requests of extended reliable connections name. Answer: [`Reply::XrcSrq`].
    CreateXrcSrq {
        /// Protection domain, also for remote keys of requests that name the queue.
        pd: Handle,
        /// Domain of the targets that may take from it.
        xrcd: Handle,
        /// Where its receives complete.
        cq: Handle,
        /// Receives wanted.
        max_wr: u32,
        /// Buffers per receive.
        max_sge: u32,
        /// The client's own value, sent in asynchronous events.
        cookie: u64,
    },
    /// Sets the number of receives below which one event is sent; 0 for never. Answer: [`Reply::Done`].
    SetSrqLimit {
        /// The queue.
        srq: Handle,
        /// The number, at most the size of the queue.
        limit: u32,
    },
    /// Gives a shared receive queue a ring of another size; what is posted stays. Answer: [`Reply::Srq`]; until it comes the client
    /// leaves the old ring alone.
    ResizeSrq {
        /// The queue.
        srq: Handle,
        /// Receives wanted.
        max_wr: u32,
    },
    /// Asks for the limit: 0 once its event was sent. Answer: [`Reply::SrqLimit`].
    QuerySrq {
        /// The queue.
        srq: Handle,
    },
    /// Ends a shared receive queue that no queue pair takes from. Answer: [`Reply::Done`].
    DestroySrq {
        /// The queue.
        srq: Handle,
    },
    /// New queue pair. Answer: [`Reply::Qp`].
    CreateQp {
        /// The domain.
        pd: Handle,
        /// `enum ibv_qp_type`.
        qp_type: u32,
        /// Where send completions go.
        send_cq: Handle,
        /// Where receive completions go; `send_cq` again for a type that has no receives.
        recv_cq: Handle,
        /// Where receives come from, instead of a ring of its own.
        srq: Option<Handle>,
        /// Sizes wanted; with a shared receive queue those of receives are 0.
        caps: QpCaps,
        /// Every send request gives a completion.
        all_signaled: bool,
        /// The client's own value, sent in asynchronous events.
        cookie: u64,
    },
    /// New queue pair that takes requests of an extended reliable connection. Answer: [`Reply::Qp`], with sizes of 0.
    CreateXrcTarget {
        /// The domain.
        xrcd: Handle,
        /// The client's own value, sent in asynchronous events.
        cookie: u64,
    },
    /// Opens a queue pair that [`Self::CreateXrcTarget`] has made, perhaps for another client that has opened the domain; it ends when
    /// all have destroyed it. Answer: as there.
    OpenXrcTarget {
        /// The domain.
        xrcd: Handle,
        /// Its number.
        qpn: u32,
        /// The client's own value, sent in asynchronous events.
        cookie: u64,
    },
    /// Changes attributes and state. Answer: [`Reply::Done`].
    ModifyQp {
        /// The queue pair.
        qp: Handle,
        /// `enum ibv_qp_attr_mask`.
        mask: u32,
        /// Attributes named by `mask`; the rest is ignored.
        attr: QpAttr,
    },
    /// Reads all attributes. Answer: [`Reply::QpAttr`].
    QueryQp {
        /// The queue pair.
        qp: Handle,
    },
    /// Ends a queue pair; when the answer comes, no further completion of it will be written. Answer: [`Reply::Done`].
    DestroyQp {
        /// The queue pair.
        qp: Handle,
    },
    /// Lets a datagram queue pair join a multicast group. Answer: [`Reply::Done`].
    AttachMcast {
        /// The queue pair.
        qp: Handle,
        /// The group.
        gid: [u8; 16],
    },
    /// Lets a queue pair leave a multicast group. Answer: [`Reply::Done`].
    DetachMcast {
        /// The queue pair.
        qp: Handle,
        /// The group.
        gid: [u8; 16],
    },
    /// Makes the connection's staging buffer, which is [`crate::layout::STAGING_BYTES`] long; once per connection.
    /// Answer: [`Reply::Staging`].
    CreateStaging,
    /// Connection management. Answer: [`Reply::Cm`].
    Cm(CmRequest),
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Done,
    /// A new object.
    Handle(Handle),
    /// The device. Descriptors: the context page ([`crate::layout::ContextPage`], a memfd), the doorbell eventfd (written by
    /// the client), the read end of the asynchronous event pipe (records of [`AsyncRecord`]).
    Device(DeviceInfo),
    /// The port.
    Port(PortInfo),
    /// A region.
    Region {
        /// For [`Request::DeregMr`].
        mr: Handle,
        /// Local key.
        lkey: u32,
        /// Remote key.
        rkey: u32,
        /// Whether the daemon has mapped all of the memory; if not, it copies through the kernel and staging pays.
        mapped: bool,
    },
    /// Registrations that have lost memory just now.
    Revoked(u32),
    /// A memory window.
    Window {
        /// For [`Request::DeallocMw`].
        mw: Handle,
        /// Its first key. The upper 24 bits stay; binding sets the others.
        rkey: u32,
    },
    /// A channel. Descriptors: the read end of its event pipe, each event being the CQ's cookie (8 bytes, native order).
    Channel(Handle),
    /// A completion queue. Descriptors: its memory (a memfd laid out as [`crate::layout::CqLayout`]).
    Cq {
        /// The queue.
        cq: Handle,
        /// Entries, a power of two.
        depth: u32,
    },
    /// A shared receive queue. Descriptors: its memory (a memfd laid out as [`crate::layout::QpLayout::shared`] says). It has no
    /// doorbell: the client rings that of a queue pair that takes from it.
    Srq {
        /// The queue.
        srq: Handle,
        /// Receives, a power of two.
        max_wr: u32,
    },
    /// A shared receive queue that requests name. Descriptors: as of [`Self::Srq`]. Its doorbell is [`crate::layout::SRQ_SLOT`].
    XrcSrq {
        /// The queue.
        srq: Handle,
        /// Receives, a power of two.
        max_wr: u32,
        /// The number by which requests name it.
        srqn: u32,
        /// By which completions name it: [`crate::layout::CompletionEntry::slot`].
        slot: u32,
    },
    /// Limit of a shared receive queue.
    SrqLimit(u32),
    /// A queue pair. Descriptors: its memory (a memfd laid out as [`crate::layout::QpLayout`] for `caps`).
    Qp {
        /// The queue pair.
        qp: Handle,
        /// Its number.
        qpn: u32,
        /// Its slot in the doorbell page.
        doorbell: u32,
        /// Sizes granted, at least those wanted.
        caps: QpCaps,
    },
    /// Attributes.
    QpAttr(QpAttr),
    /// The staging buffer. Descriptors: its memory (a memfd).
    Staging,
    /// Connection management.
    Cm(CmReply),
}

/// Why a call was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The error number for the verbs caller.
    pub errno: i32,
    /// What failed, with values, and what to do next.
    pub message: String,
}

/// A part of a registration that is a shared object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedRange {
    /// First byte in the client's address space.
    pub addr: u64,
    /// Number of bytes.
    pub length: u64,
    /// Offset of the first byte in the object.
    pub offset: u64,
}

/// What `ibv_query_device` and `ibv_query_gid` tell. All limits are real.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Device name, as in `vrdma dev add`.
    pub name: String,
    /// Version of the daemon.
    pub fw_version: String,
    /// Node GUID, EUI-64, host order.
    pub guid: u64,
    /// Longest region in bytes.
    pub max_mr_size: u64,
    /// Queue pairs per connection.
    pub max_qp: u32,
    /// Requests per queue.
    pub max_qp_wr: u32,
    /// Buffers per request.
    pub max_sge: u32,
    /// Inline bytes per request.
    pub max_inline_data: u32,
    /// Completion queues per connection.
    pub max_cq: u32,
    /// Completions per queue.
    pub max_cqe: u32,
    /// Regions per connection.
    pub max_mr: u32,
    /// Memory windows per connection.
    pub max_mw: u32,
    /// Protection domains per connection.
    pub max_pd: u32,
    /// Multicast groups, of all devices together.
    pub max_mcast_grp: u32,
    /// Queue pairs per multicast group.
    pub max_mcast_qp_attach: u32,
    /// Shared receive queues per connection.
    pub max_srq: u32,
    /// Receives per shared receive queue.
    pub max_srq_wr: u32,
    /// READs and atomics per queue pair, each way.
    pub max_qp_rd_atomic: u32,
    /// Longest message in bytes.
    pub max_msg_size: u32,
    /// GID table; index 0 first.
    pub gids: Vec<[u8; 16]>,
    /// The port at this moment.
    pub port: PortInfo,
}

/// What `ibv_query_port` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortInfo {
    /// `enum ibv_port_state`: 1 down, 4 active.
    pub state: u32,
    /// `enum ibv_mtu` of the path.
    pub active_mtu: u32,
}

/// Queue sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QpCaps {
    /// Send requests.
    pub max_send_wr: u32,
    /// Receive requests.
    pub max_recv_wr: u32,
    /// Buffers per send request.
    pub max_send_sge: u32,
    /// Buffers per receive request.
    pub max_recv_sge: u32,
    /// Inline bytes per send request.
    pub max_inline_data: u32,
}

/// Attributes as in `struct ibv_qp_attr`; codes are those of verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct QpAttr {
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub en_sqd_async_notify: bool,
    pub access: u32,
    pub pkey_index: u16,
    pub port: u8,
    pub qkey: u32,
    pub path_mtu: u32,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub dest_qpn: u32,
    pub sq_draining: bool,
    pub caps: QpCaps,
    pub ah_dgid: [u8; 16],
    pub ah_sgid_index: u8,
    pub ah_traffic_class: u8,
    pub ah_hop_limit: u8,
    pub ah_flow_label: u32,
    pub ah_sl: u8,
    pub ah_is_global: bool,
    pub ah_port: u8,
}

/// One record of the asynchronous event pipe: 16 bytes, native order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct AsyncRecord {
    /// `enum ibv_event_type`.
    pub event: u32,
    /// Zero.
    pub reserved: u32,
    /// Cookie of the queue pair, completion queue or shared receive queue; the port number for port events.
    pub cookie: u64,
}

/// Why bytes are no message, or a message does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// Longer than [`MAX_MESSAGE`].
    #[error("a control message of {0} bytes is longer than {MAX_MESSAGE}")]
    TooLong(usize),
    /// Bytes after the message.
    #[error("{0} bytes follow the control message")]
    TrailingBytes(usize),
    /// More shared ranges than [`MAX_SHARED_RANGES`].
    #[error("{0} shared ranges are more than {MAX_SHARED_RANGES}")]
    TooManyRanges(usize),
    /// Not the encoding of any message.
    #[error("not a control message: {0}")]
    Encoding(postcard::Error),
}

fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, CodecError> {
    let bytes = postcard::to_stdvec(value).map_err(CodecError::Encoding)?;
    if bytes.len() > MAX_MESSAGE { Err(CodecError::TooLong(bytes.len())) } else { Ok(bytes) }
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, CodecError> {
    if bytes.len() > MAX_MESSAGE {
        return Err(CodecError::TooLong(bytes.len()));
    }
    match postcard::take_from_bytes(bytes).map_err(CodecError::Encoding)? {
        (value, []) => Ok(value),
        (_, rest) => Err(CodecError::TrailingBytes(rest.len())),
    }
}

/// The bytes of a request.
///
/// # Errors
/// [`CodecError::TooLong`].
pub fn encode_request(request: &Request) -> Result<Vec<u8>, CodecError> {
    encode(request)
}

/// A request from bytes of any origin.
///
/// # Errors
/// [`CodecError`], whatever the bytes are; never a panic.
pub fn decode_request(bytes: &[u8]) -> Result<Request, CodecError> {
    let request = decode(bytes)?;
    match &request {
        Request::RegMr { shared, .. } | Request::ReregMr { shared, .. } if shared.len() > MAX_SHARED_RANGES => {
            Err(CodecError::TooManyRanges(shared.len()))
        }
        _ => Ok(request),
    }
}

/// The bytes of an answer.
///
/// # Errors
/// [`CodecError::TooLong`].
pub fn encode_answer(answer: &Result<Reply, Refusal>) -> Result<Vec<u8>, CodecError> {
    encode(answer)
}

/// An answer from bytes of any origin.
///
/// # Errors
/// [`CodecError`], whatever the bytes are; never a panic.
pub fn decode_answer(bytes: &[u8]) -> Result<Result<Reply, Refusal>, CodecError> {
    decode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn registration(ranges: usize) -> Request {
        let shared = vec![SharedRange { addr: 1, length: 2, offset: 3 }; ranges];
        Request::RegMr { pd: 1, addr: u64::MAX, length: 5, iova: 6, access: 7, shared }
    }

    #[test]
    fn messages_come_back() {
        let hello = Request::Hello { abi: ABI_VERSION, program: "ib_write_bw".into() };
        let modify = Request::ModifyQp { qp: 3, mask: 9, attr: QpAttr { ah_dgid: [5; 16], ..QpAttr::default() } };
        let domain = Request::OpenXrcd { create: true, exclusive: false };
        for request in [hello, modify, registration(MAX_SHARED_RANGES), Request::CreateStaging, domain] {
            assert_eq!(decode_request(&encode_request(&request).unwrap()), Ok(request));
        }
        let refusal = Err(Refusal { errno: 12, message: "no room for a 5th queue pair".into() });
        for answer in [Ok(Reply::Region { mr: 1, lkey: 2, rkey: 3, mapped: true }), refusal] {
            assert_eq!(decode_answer(&encode_answer(&answer).unwrap()), Ok(answer));
        }
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let mut bytes = encode_request(&registration(1)).unwrap();
        for len in 0..bytes.len() {
            assert!(matches!(decode_request(&bytes[..len]), Err(CodecError::Encoding(_))), "cut to {len}");
        }
        bytes.push(0);
        assert_eq!(decode_request(&bytes), Err(CodecError::TrailingBytes(1)));
        assert_eq!(decode_request(&vec![0; MAX_MESSAGE + 1]), Err(CodecError::TooLong(MAX_MESSAGE + 1)));
        let long = Request::Hello { abi: 1, program: "x".repeat(MAX_MESSAGE) };
        assert!(matches!(encode_request(&long), Err(CodecError::TooLong(_))));
    }

    #[test]
    fn too_many_ranges_are_refused() {
        let bytes = encode_request(&registration(MAX_SHARED_RANGES + 1)).unwrap();
        assert_eq!(decode_request(&bytes), Err(CodecError::TooManyRanges(MAX_SHARED_RANGES + 1)));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_answer(&bytes);
            if let Ok(request) = decode_request(&bytes) {
                // Integers may come in longer forms than ours, so only the meaning is compared.
                prop_assert_eq!(decode_request(&encode_request(&request).unwrap()), Ok(request));
            }
        }
    }
}
