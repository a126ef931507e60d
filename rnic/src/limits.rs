//! Bounds of the core. Every one of them is enforced, and reported by the front ends as the device's capability.

/// Buffers per work request.
pub const MAX_SGE: u32 = 16;
/// Requests outstanding per queue.
pub const MAX_QP_WR: u32 = 16384;
/// Receives outstanding per shared receive queue.
pub const MAX_SRQ_WR: u32 = MAX_QP_WR;
/// Refusals that wait to be told to a peer that sprays.
pub const REFUSALS: usize = 64;
/// READs and atomics outstanding per queue pair, as requester and as responder.
pub const MAX_RD_ATOMIC: u8 = 16;
/// Longest message in bytes (IBA 9.7.8).
pub const MAX_MSG: u64 = 1 << 31;
/// Bytes of inline data per send request. The front end holds them; the core only keeps the number for queries.
pub const MAX_INLINE: u32 = 1024;
/// GIDs per device.
pub const MAX_GIDS: usize = 16;
/// Devices per [`crate::Rnic`].
pub const MAX_DEVICES: u32 = 16384;
/// Protection domains per [`crate::Rnic`].
pub const MAX_PDS: u32 = 1 << 18;
/// Completion queues per [`crate::Rnic`].
pub const MAX_CQS: u32 = 1 << 18;
/// Shared receive queues per [`crate::Rnic`].
pub const MAX_SRQS: u32 = 1 << 16;
/// Bits of the numbers of shared receive queues (IBA annex A14.3, XRCETH).
pub const SRQN_BITS: u32 = 24;
/// Domains of extended reliable connections per [`crate::Rnic`].
pub const MAX_XRCDS: u32 = 1 << 16;
/// Queue pairs per [`crate::Rnic`].
pub const MAX_QPS: u32 = 1 << 16;

/// Bits of the numbers that the core gives to queue pairs: 24 would do on the wire, but the driver of a virtual machine can only
/// name peers of 20 bits.
pub const QPN_BITS: u32 = 20;
/// Multicast groups per [`crate::Rnic`].
pub const MAX_GROUPS: usize = 8192;
/// Queue pairs per multicast group.
pub const MAX_GROUP_QPS: usize = 256;
/// Management datagrams that wait to be taken by the front end, and as many that wait to be sent.
pub const MAX_MADS: usize = 1024;

/// Longest packet, BTH to ICRC, that is sent: the largest MTU and the longest headers.
pub const MAX_PACKET: u32 = 4200;
/// Bytes of packets in one burst: below the 64 KiB of one UDP datagram train.
pub const MAX_BURST_BYTES: usize = 60 << 10;
/// Packets in one burst: what UDP segmentation offload takes at once on every kernel that has it.
pub const MAX_BURST_PACKETS: usize = 64;
/// Bytes of one step on the local path.
pub const COPY_QUANTUM: u32 = 256 << 10;
/// Messages of one step on the local path.
pub const COPY_MESSAGES: u32 = 32;
/// Bytes of a WRITE or READ that is copied together with its neighbours on the local path, at most.
pub const RUN_BYTES: u32 = 64 << 10;
/// Packets between two requests for an acknowledgement inside a message.
pub const ACK_INTERVAL: u32 = 32;
/// Packets of READ response that one READ request on the wire asks for. A longer READ is cut into several, so that the
/// requester decides how much is under way to it.
pub const READ_CHUNK_PACKETS: u32 = 32;
/// The same on many paths: each part may take another one.
pub const SPRAYED_READ_PACKETS: u32 = 4;
/// Packets that may be unacknowledged: at start, least and most.
pub const WINDOW_PACKETS: (u32, u32, u32) = (64, 4, 512);
/// Packets that the receiving end of a connection over many paths holds until those before them are in: the first and last ones of
/// messages, and all of SENDs. What does not fit is refused, and comes again.
pub const HELD_PACKETS: usize = 64;
