//! The extended verbs: completion queues that are read field by field, queue pairs that are posted to by function calls, domains
//! of threads, and the clock.

use super::device::ibv_context;
use super::layout;
use super::object::{ibv_comp_channel, ibv_cq, ibv_mw, ibv_pd, ibv_qp, ibv_qp_cap, ibv_srq_attr};
use super::work::{ibv_mw_bind_info, ibv_sge};
use core::ffi::{c_int, c_uint, c_void};

/// `struct ibv_cq_ex`.
#[repr(C)]
pub struct ibv_cq_ex {
    pub cq: ibv_cq,
    pub comp_mask: u32,
    pub status: u32,
    pub wr_id: u64,
    pub start_poll: unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int,
    pub next_poll: unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int,
    pub end_poll: unsafe extern "C" fn(*mut ibv_cq_ex),
    pub read_opcode: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    pub read_vendor_err: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    pub read_byte_len: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    pub read_imm_data: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    pub read_qp_num: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    pub read_src_qp: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    pub read_wc_flags: unsafe extern "C" fn(*mut ibv_cq_ex) -> c_uint,
    pub read_slid: unsafe extern "C" fn(*mut ibv_cq_ex) -> u32,
    pub read_sl: unsafe extern "C" fn(*mut ibv_cq_ex) -> u8,
    pub read_dlid_path_bits: unsafe extern "C" fn(*mut ibv_cq_ex) -> u8,
    pub read_completion_ts: unsafe extern "C" fn(*mut ibv_cq_ex) -> u64,
    /// VLAN, flow tag, tag matching: queues that would carry these are refused.
    pub none: [*const c_void; 3],
    pub read_completion_wallclock_ns: unsafe extern "C" fn(*mut ibv_cq_ex) -> u64,
}
layout!(ibv_cq_ex: 288, status @ 132, wr_id @ 136, start_poll @ 144, read_opcode @ 168, read_imm_data @ 192, read_wc_flags @ 216,
    read_completion_ts @ 248, read_completion_wallclock_ns @ 280);

/// `struct ibv_poll_cq_attr`.
#[repr(C)]
pub struct ibv_poll_cq_attr {
    pub comp_mask: u32,
}

/// `struct ibv_cq_init_attr_ex`.
#[repr(C)]
pub struct ibv_cq_init_attr_ex {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut ibv_pd,
}
layout!(ibv_cq_init_attr_ex: 56, cq_context @ 8, comp_vector @ 24, wc_flags @ 32, comp_mask @ 40, flags @ 44, parent_domain @ 48);

/// Bits of [`ibv_cq_init_attr_ex`].
pub mod cq_init {
    /// `comp_mask`: `flags` is given.
    pub const MASK_FLAGS: u32 = 1;
    /// `comp_mask`: `parent_domain` is given.
    pub const MASK_PD: u32 = 2;
    /// `flags`: only one thread polls, which is a wish.
    pub const SINGLE_THREADED: u32 = 1;
    /// `wc_flags`: byte length, immediate, queue pair numbers and the LIDs; the completion's time, raw and as time of day.
    pub const WC_KNOWN: u64 = 0x7F | 1 << 7 | 1 << 11;
}

/// `struct ibv_qp_init_attr_ex`.
#[repr(C)]
pub struct ibv_qp_init_attr_ex {
    /// The first 60 bytes are those of `ibv_qp_init_attr`; the last word of that is padding and is the mask here.
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut c_void,
    pub cap: ibv_qp_cap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut ibv_xrcd,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut c_void,
    pub rx_hash_conf: [u64; 3],
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}
layout!(ibv_qp_init_attr_ex: 136, cap @ 32, comp_mask @ 60, pd @ 64, xrcd @ 72, create_flags @ 80, max_tso_header @ 84,
    rwq_ind_tbl @ 88, rx_hash_conf @ 96, source_qpn @ 120, send_ops_flags @ 128);

/// Bits of `comp_mask` of [`ibv_qp_init_attr_ex`]: the field is given.
pub mod qp_init {
    pub const PD: u32 = 1;
    pub const XRCD: u32 = 1 << 1;
    pub const CREATE_FLAGS: u32 = 1 << 2;
    pub const SEND_OPS_FLAGS: u32 = 1 << 6;
}

/// `struct ibv_xrcd`.
#[repr(C)]
pub struct ibv_xrcd {
    pub context: *mut ibv_context,
}

/// `struct ibv_xrcd_init_attr`.
#[repr(C)]
pub struct ibv_xrcd_init_attr {
    pub comp_mask: u32,
    pub fd: c_int,
    pub oflags: c_int,
}
layout!(ibv_xrcd_init_attr: 12, fd @ 4, oflags @ 8);

/// `enum ibv_xrcd_init_attr_mask`: the descriptor and the flags, both of which must be given.
pub const XRCD_INIT_ALL: u32 = 3;

/// `struct ibv_srq_init_attr_ex`. It begins as [`super::object::ibv_srq_init_attr`] does.
#[repr(C)]
pub struct ibv_srq_init_attr_ex {
    pub srq_context: *mut c_void,
    pub attr: ibv_srq_attr,
    pub comp_mask: u32,
    pub srq_type: u32,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut ibv_xrcd,
    pub cq: *mut ibv_cq,
    pub tm_cap: [u32; 2],
}
layout!(ibv_srq_init_attr_ex: 64, attr @ 8, comp_mask @ 20, srq_type @ 24, pd @ 32, xrcd @ 40, cq @ 48, tm_cap @ 56);

/// Bits of `comp_mask` of [`ibv_srq_init_attr_ex`]: the field is given.
pub mod srq_init {
    pub const TYPE: u32 = 1;
    pub const PD: u32 = 1 << 1;
    pub const XRCD: u32 = 1 << 2;
    pub const CQ: u32 = 1 << 3;
    /// All but tag matching.
    pub const KNOWN: u32 = 15;
}

/// `enum ibv_srq_type`.
pub const SRQT_BASIC: u32 = 0;
pub const SRQT_XRC: u32 = 1;

/// `struct ibv_qp_open_attr`.
#[repr(C)]
pub struct ibv_qp_open_attr {
    pub comp_mask: u32,
    pub qp_num: u32,
    pub xrcd: *mut ibv_xrcd,
    pub qp_context: *mut c_void,
    pub qp_type: u32,
}
layout!(ibv_qp_open_attr: 32, qp_num @ 4, xrcd @ 8, qp_context @ 16, qp_type @ 24);

/// Bits of `comp_mask` of [`ibv_qp_open_attr`]: those that must be given, the program's own value, and both.
pub mod qp_open {
    pub const REQUIRED: u32 = 1 | 1 << 1 | 1 << 3;
    pub const CONTEXT: u32 = 1 << 2;
    pub const KNOWN: u32 = REQUIRED | CONTEXT;
}

/// `enum ibv_qp_create_send_ops_flags`.
pub mod send_ops {
    pub const RDMA_WRITE: u64 = 1;
    pub const RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
    pub const SEND: u64 = 1 << 2;
    pub const SEND_WITH_IMM: u64 = 1 << 3;
    pub const RDMA_READ: u64 = 1 << 4;
    pub const ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
    pub const ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
    pub const LOCAL_INV: u64 = 1 << 7;
    pub const BIND_MW: u64 = 1 << 8;
    pub const SEND_WITH_INV: u64 = 1 << 9;
}

/// `struct ibv_qp_ex` as of rdma-core 56; it grows at the end, and only queue pairs that we made are read through it.
#[repr(C)]
pub struct ibv_qp_ex {
    pub qp_base: ibv_qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub wr_atomic_cmp_swp: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64),
    pub wr_atomic_fetch_add: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64),
    pub wr_bind_mw: unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_mw, u32, *const ibv_mw_bind_info),
    pub wr_local_inv: unsafe extern "C" fn(*mut ibv_qp_ex, u32),
    pub wr_rdma_read: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64),
    pub wr_rdma_write: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64),
    pub wr_rdma_write_imm: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32),
    pub wr_send: unsafe extern "C" fn(*mut ibv_qp_ex),
    pub wr_send_imm: unsafe extern "C" fn(*mut ibv_qp_ex, u32),
    pub wr_send_inv: unsafe extern "C" fn(*mut ibv_qp_ex, u32),
    /// Segmentation offload: queue pairs that ask for it are refused.
    pub wr_send_tso: *const c_void,
    pub wr_set_ud_addr: unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, u32, u32),
    pub wr_set_xrc_srqn: unsafe extern "C" fn(*mut ibv_qp_ex, u32),
    pub wr_set_inline_data: unsafe extern "C" fn(*mut ibv_qp_ex, *const c_void, usize),
    pub wr_set_inline_data_list: unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_data_buf),
    pub wr_set_sge: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32),
    pub wr_set_sge_list: unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge),
    pub wr_start: unsafe extern "C" fn(*mut ibv_qp_ex),
    pub wr_complete: unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int,
    pub wr_abort: unsafe extern "C" fn(*mut ibv_qp_ex),
    /// Atomic write and flush: queue pairs that ask for them are refused.
    pub none: [*const c_void; 2],
}
layout!(ibv_qp_ex: 360, comp_mask @ 160, wr_id @ 168, wr_flags @ 176, wr_atomic_cmp_swp @ 184, wr_rdma_read @ 216, wr_send @ 240,
    wr_set_ud_addr @ 272, wr_set_xrc_srqn @ 280, wr_set_inline_data @ 288, wr_start @ 320, wr_abort @ 336, none @ 344 as "wr_atomic_write");

/// `struct ibv_data_buf`.
#[repr(C)]
pub struct ibv_data_buf {
    pub addr: *const c_void,
    pub length: usize,
}
layout!(ibv_data_buf: 16, length @ 8);

/// `struct ibv_td`.
#[repr(C)]
pub struct ibv_td {
    pub context: *mut ibv_context,
}

/// `struct ibv_td_init_attr`.
#[repr(C)]
pub struct ibv_td_init_attr {
    pub comp_mask: u32,
}

/// `struct ibv_parent_domain_init_attr`.
#[repr(C)]
pub struct ibv_parent_domain_init_attr {
    pub pd: *mut ibv_pd,
    pub td: *mut ibv_td,
    pub comp_mask: u32,
    pub alloc: *const c_void,
    pub free: *const c_void,
    pub pd_context: *mut c_void,
}
layout!(ibv_parent_domain_init_attr: 48, td @ 8, comp_mask @ 16, alloc @ 24, pd_context @ 40);

/// Bits of `comp_mask` of [`ibv_parent_domain_init_attr`]: allocators, and a value for them.
pub const PARENT_DOMAIN_KNOWN: u32 = 3;

/// `struct ibv_values_ex`.
#[repr(C)]
pub struct ibv_values_ex {
    pub comp_mask: u32,
    /// Of a `struct timespec`: seconds, nanoseconds.
    pub raw_clock: [i64; 2],
}
layout!(ibv_values_ex: 24, raw_clock @ 8);

/// `comp_mask` of [`ibv_values_ex`].
pub const VALUES_RAW_CLOCK: u32 = 1;
