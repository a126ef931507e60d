//! What lies where in the shared memories. Everything is in native byte order except immediate data.

use crate::control::QpCaps;

/// Bytes of a page: header pages and ring starts are aligned to it.
pub const PAGE: usize = 4096;
/// Bytes of the staging buffer of a connection.
pub const STAGING_BYTES: usize = 8 << 20;
/// The key that names the staging buffer in a send entry's buffers; their `addr` is then an offset into it. The daemon gives
/// this key to no region.
pub const STAGING_LKEY: u32 = 0xFFFF_FF00;
/// Bits of the doorbell page.
pub const DOORBELL_SLOTS: usize = 4096;
/// The bit of all shared receive queues that requests name; the others are those of queue pairs.
pub const SRQ_SLOT: u32 = DOORBELL_SLOTS as u32 - 1;
/// Queue pairs per connection.
pub const QP_SLOTS: usize = SRQ_SLOT as usize;
/// Shared receive queues per connection.
pub const SRQ_SLOTS: usize = 1024;

/// The context page: one per connection, one page long. See [`crate::doorbell`].
#[derive(Debug)]
pub struct ContextPage;

impl ContextPage {
    /// `u32`: 1 when the daemon will not look by itself and wants the eventfd written.
    pub const ARMED: usize = 0;
    /// `u64`: bit n says that word n of [`Self::BITS`] may be non-zero.
    pub const SUMMARY: usize = 64;
    /// `[u64; 64]`: bit per doorbell slot.
    pub const BITS: usize = 128;
    /// Bytes.
    pub const BYTES: usize = PAGE;
}

/// Memory of a queue pair: a header page, then the send ring, then the receive ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpLayout {
    /// Send entries, a power of two (or zero).
    pub sq_depth: u32,
    /// Bytes per send entry, a multiple of 64.
    pub sq_stride: usize,
    /// Offset of the send ring.
    pub sq_offset: usize,
    /// Receive entries, a power of two (or zero).
    pub rq_depth: u32,
    /// Bytes per receive entry, a multiple of 16.
    pub rq_stride: usize,
    /// Offset of the receive ring.
    pub rq_offset: usize,
    /// Bytes in all, a multiple of [`PAGE`].
    pub bytes: usize,
}

impl QpLayout {
    /// Header, `u32`: send entries ever posted, modulo 2^32; written by the client.
    pub const SQ_PRODUCER: usize = 0;
    /// Header, `u32`: receive entries ever posted, modulo 2^32; written by the client.
    pub const RQ_PRODUCER: usize = 64;

    /// The layout of a shared receive queue: a receive ring alone. `None` as for [`Self::new`].
    pub fn shared(max_wr: u32, max_sge: u32) -> Option<(QpLayout, QpCaps)> {
        let caps = QpCaps { max_recv_wr: max_wr, max_recv_sge: max_sge, ..QpCaps::default() };
        QpLayout::new(&caps).map(|layout| (layout, caps))
    }

    /// The layout for these sizes, or `None` if they overflow. Ring depths are the wanted numbers rounded up to powers of two;
    /// entries are as long as the larger of buffers and inline data needs.
    pub fn new(caps: &QpCaps) -> Option<QpLayout> {
        let sq_depth = depth(caps.max_send_wr)?;
        let rq_depth = depth(caps.max_recv_wr)?;
        let sge_bytes = (caps.max_send_sge as usize).checked_mul(size_of::<Sge>())?;
        let body = sge_bytes.max(caps.max_inline_data as usize);
        let sq_stride = size_of::<SendEntry>().checked_add(body)?.checked_next_multiple_of(64)?;
        let rq_sge = (caps.max_recv_sge as usize).checked_mul(size_of::<Sge>())?;
        let rq_stride = size_of::<RecvEntry>().checked_add(rq_sge)?;
        let sq_offset = PAGE;
        let rq_offset = (sq_depth as usize).checked_mul(sq_stride)?.checked_add(sq_offset)?.checked_next_multiple_of(PAGE)?;
        let bytes = (rq_depth as usize).checked_mul(rq_stride)?.checked_add(rq_offset)?.checked_next_multiple_of(PAGE)?;
        Some(QpLayout { sq_depth, sq_stride, sq_offset, rq_depth, rq_stride, rq_offset, bytes })
    }
}

/// Memory of a completion queue: a header page, then the ring of [`CompletionEntry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqLayout {
    /// Entries, a power of two.
    pub depth: u32,
    /// Bytes in all.
    pub bytes: usize,
}

impl CqLayout {
    /// Header, `u32`: completions ever consumed, modulo 2^32; written by the client.
    pub const CONSUMER: usize = 0;
    /// Header, `u32`: 0 no event wanted, 1 next completion, 2 next solicited one; set by the client, cleared by the daemon.
    pub const ARMED: usize = 64;
    /// Offset of the ring.
    pub const RING: usize = PAGE;

    /// The layout for at least `entries` entries, or `None` if that is zero or overflows.
    pub fn new(entries: u32) -> Option<CqLayout> {
        let depth = depth(entries).filter(|&depth| depth > 0)?;
        let ring = (depth as usize).checked_mul(size_of::<CompletionEntry>())?;
        Some(CqLayout { depth, bytes: ring.checked_add(Self::RING)?.checked_next_multiple_of(PAGE)? })
    }
}

fn depth(wanted: u32) -> Option<u32> {
    if wanted == 0 { Some(0) } else { wanted.checked_next_power_of_two() }
}

/// Head of a send entry. `num_sge` buffers ([`Sge`]) or `inline_len` bytes follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SendEntry {
    /// The poster's value.
    pub wr_id: u64,
    /// `enum ibv_wr_opcode`: 0 WRITE, 1 WRITE with immediate, 2 SEND, 3 SEND with immediate, 4 READ, 5 compare-and-swap,
    /// 6 fetch-and-add, 7 local invalidate, 8 bind window, 9 SEND with invalidate.
    pub opcode: u8,
    /// `enum ibv_send_flags`: 1 fence, 2 signaled, 4 solicited, 8 inline.
    pub flags: u8,
    /// Buffers that follow.
    pub num_sge: u16,
    /// Immediate data as it goes on the wire, or the key to invalidate in native order.
    pub imm: [u8; 4],
    /// Remote address.
    pub remote_addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Inline bytes that follow, when the flag is set.
    pub inline_len: u32,
    /// Compare value, or addend of a fetch-and-add.
    pub compare_add: u64,
    /// Swap value.
    pub swap: u64,
    /// Datagrams: the peer's port. The rest of their [`Destination`], as all of a [`WindowBinding`], lies in fields that such requests
    /// do not use otherwise. Extended reliable connections: the shared receive queue that is named.
    pub dgid: [u8; 16],
}

/// What a window is to be bound to: `struct ibv_mw_bind_info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowBinding {
    /// A key of the window.
    pub window: u32,
    /// Its key from now on.
    pub rkey: u32,
    /// The region.
    pub lkey: u32,
    /// `enum ibv_access_flags`: remote ones, and zero-based.
    pub access: u32,
    /// First byte, in the region's address space.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Destination {
    /// The peer's port.
    pub dgid: [u8; 16],
    /// The peer's queue pair.
    pub qpn: u32,
    /// The peer's Q_Key.
    pub qkey: u32,
    /// IPv6 flow label.
    pub flow_label: u32,
    /// Index of our GID.
    pub sgid_index: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Service level.
    pub service_level: u8,
}

impl SendEntry {
    /// Says where the datagram goes.
    pub fn set_destination(&mut self, to: &Destination) {
        self.dgid = to.dgid;
        self.rkey = to.qpn;
        self.remote_addr = u64::from(to.qkey) << 32 | u64::from(to.flow_label);
        let bytes = [to.sgid_index, to.hop_limit, to.traffic_class, to.service_level];
        self.compare_add = u32::from_le_bytes(bytes).into();
    }

    /// Names the peer's shared receive queue.
    pub fn set_srqn(&mut self, srqn: u32) {
        self.dgid[..4].copy_from_slice(&srqn.to_ne_bytes());
    }

    /// The peer's shared receive queue.
    pub fn srqn(&self) -> u32 {
        let [a, b, c, d, ..] = self.dgid;
        u32::from_ne_bytes([a, b, c, d])
    }

    /// Says what the window is to be bound to.
    pub fn set_binding(&mut self, binding: &WindowBinding) {
        self.imm = binding.window.to_ne_bytes();
        self.rkey = binding.rkey;
        self.remote_addr = binding.addr;
        self.compare_add = binding.length;
        self.swap = u64::from(binding.access) << 32 | u64::from(binding.lkey);
    }

    /// What the window is to be bound to.
    pub fn binding(&self) -> WindowBinding {
        WindowBinding {
            window: u32::from_ne_bytes(self.imm),
            rkey: self.rkey,
            lkey: self.swap as u32,
            access: (self.swap >> 32) as u32,
            addr: self.remote_addr,
            length: self.compare_add,
        }
    }

    /// Where the datagram goes.
    pub fn destination(&self) -> Destination {
        let [sgid_index, hop_limit, traffic_class, service_level, ..] = self.compare_add.to_le_bytes();
        Destination {
            dgid: self.dgid,
            qpn: self.rkey,
            qkey: (self.remote_addr >> 32) as u32,
            flow_label: self.remote_addr as u32,
            sgid_index,
            hop_limit,
            traffic_class,
            service_level,
        }
    }
}

/// Head of a receive entry. `num_sge` buffers ([`Sge`]) follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RecvEntry {
    /// The poster's value.
    pub wr_id: u64,
    /// Buffers that follow.
    pub num_sge: u32,
    /// Zero.
    pub reserved: u32,
}

/// One buffer, as `struct ibv_sge`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// First byte.
    pub addr: u64,
    /// Number of bytes.
    pub length: u32,
    /// Local key.
    pub lkey: u32,
}

/// One completion. Valid when `sequence` is the count of completions written before it plus one, modulo 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CompletionEntry {
    /// The poster's value.
    pub wr_id: u64,
    /// Local queue pair number.
    pub qpn: u32,
    /// Doorbell slot of the queue pair, or slot of the shared receive queue: an index the client can look up.
    pub slot: u32,
    /// Bytes moved.
    pub byte_len: u32,
    /// Immediate data as on the wire, or the invalidated key in native order.
    pub imm: [u8; 4],
    /// Remote queue pair number (datagrams).
    pub src_qp: u32,
    /// See `rnic::Completion::queue_index`.
    pub queue_index: u32,
    /// See `rnic::vendor_err`.
    pub vendor_err: u32,
    /// `enum ibv_wc_status`.
    pub status: u8,
    /// `enum ibv_wc_opcode`.
    pub opcode: u8,
    /// `enum ibv_wc_flags`.
    pub flags: u8,
    /// 1 for completions of the receive queue.
    pub is_recv: u8,
    /// When it was written, on the host's monotonic clock, in nanoseconds.
    pub timestamp_ns: u64,
    /// Number of the shared receive queue, if it is one that requests name; then the queue pair may be another client's. Otherwise 0.
    pub srqn: u32,
    /// Zero.
    pub reserved: [u32; 2],
    /// Written last.
    pub sequence: u32,
}

const _: () = assert!(size_of::<SendEntry>() == 64 && size_of::<RecvEntry>() == 16 && size_of::<Sge>() == 16);
const _: () = assert!(size_of::<CompletionEntry>() == 64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_do_not_overlap() {
        let caps = QpCaps { max_send_wr: 100, max_recv_wr: 3, max_send_sge: 4, max_recv_sge: 1, max_inline_data: 220 };
        let layout = QpLayout::new(&caps).unwrap();
        assert_eq!((layout.sq_depth, layout.rq_depth), (128, 4));
        assert_eq!(layout.sq_stride, 320);
        assert!(layout.sq_offset + 128 * layout.sq_stride <= layout.rq_offset);
        assert!(layout.rq_offset + 4 * layout.rq_stride <= layout.bytes);
    }

    #[test]
    fn destinations_come_back() {
        let to = Destination {
            dgid: [7; 16],
            qpn: 0x12_3456,
            qkey: 0x8001_0000,
            flow_label: 0xA_BCDE,
            sgid_index: 1,
            hop_limit: 64,
            traffic_class: 0xFF,
            service_level: 3,
        };
        let mut entry = SendEntry { wr_id: 5, imm: [1; 4], inline_len: 9, ..SendEntry::default() };
        entry.set_destination(&to);
        assert_eq!((entry.destination(), entry.wr_id, entry.imm, entry.inline_len), (to, 5, [1; 4], 9));
        let mut entry = SendEntry { remote_addr: 1, rkey: 2, compare_add: 3, swap: 4, ..SendEntry::default() };
        entry.set_srqn(0xAB_CDEF);
        assert_eq!((entry.srqn(), entry.remote_addr, entry.rkey, entry.compare_add, entry.swap), (0xAB_CDEF, 1, 2, 3, 4));
    }

    #[test]
    fn bindings_come_back() {
        let binding = WindowBinding { window: 1, rkey: 2, lkey: 3, access: 4, addr: u64::MAX, length: 6 };
        let mut entry = SendEntry { wr_id: 5, inline_len: 9, ..SendEntry::default() };
        entry.set_binding(&binding);
        assert_eq!((entry.binding(), entry.wr_id, entry.inline_len), (binding, 5, 9));
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let caps = QpCaps { max_send_wr: u32::MAX, ..QpCaps::default() };
        assert_eq!(QpLayout::new(&caps), None);
        assert_eq!(CqLayout::new(0), None);
        assert_eq!(CqLayout::new(u32::MAX), None);
    }
}
