//! The part of the public libibverbs ABI that the benchmarks use: structures and constants of 64-bit Linux.
//!
//! Written from the ABI's facts and independent of the definitions inside our own verbs library on purpose: the benchmarks run
//! on any libibverbs, and a mistake in either set of definitions shows when the two meet. Where a structure ends in members that
//! nobody here reads, padding keeps its size.

#![allow(missing_docs)] // The names are those of ibv_*(3).

use libc::{c_char, c_int, c_void};

#[repr(C)]
pub struct Device {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct Pd {
    pub context: *mut Context,
    pub handle: u32,
}

#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
    _rest: [u64; 15],
}

#[repr(C)]
pub struct Mr {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut Pd,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub handle: u32,
    pub qp_num: u32,
    _rest: [u64; 13],
}

pub type PollCq = unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int;
pub type PostSend = unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int;
pub type PostRecv = unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int;

/// `struct ibv_context`: the data path is reached through its operations, as the inline functions of verbs.h do.
#[repr(C)]
pub struct Context {
    pub device: *mut Device,
    _before_poll: [usize; 11],
    pub poll_cq: Option<PollCq>,
    _before_post: [usize; 13],
    pub post_send: Option<PostSend>,
    pub post_recv: Option<PostRecv>,
    _after_post: [usize; 5],
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    _rest: [u64; 6],
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: u32,
    pub send_flags: u32,
    pub imm_data: u32,
    /// Remote address of RDMA operations and atomics.
    pub remote_addr: u64,
    /// `wr.rdma.rkey` in the low half for RDMA operations, `wr.atomic.compare_add` for atomics.
    pub rkey_or_compare_add: u64,
    /// `wr.atomic.swap`.
    pub swap: u64,
    /// `wr.atomic.rkey`.
    pub atomic_rkey: u32,
    pub(super) _rest: [u64; 7],
}

impl SendWr {
    pub const EMPTY: SendWr = SendWr {
        wr_id: 0,
        next: std::ptr::null_mut(),
        sg_list: std::ptr::null_mut(),
        num_sge: 0,
        opcode: 0,
        send_flags: 0,
        imm_data: 0,
        remote_addr: 0,
        rkey_or_compare_add: 0,
        swap: 0,
        atomic_rkey: 0,
        _rest: [0; 7],
    };
}

#[repr(C)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Wc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub cap: QpCap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(8))]
pub struct Gid(pub [u8; 16]);

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct AhAttr {
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct QpAttr {
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// The first 48 bytes of `struct ibv_port_attr`, which is all that the function `ibv_query_port` writes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct PortAttr {
    pub state: u32,
    pub max_mtu: u32,
    pub active_mtu: u32,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    _rest: [u32; 8],
}

pub type GetDeviceList = unsafe extern "C" fn(*mut c_int) -> *mut *mut Device;
pub type FreeDeviceList = unsafe extern "C" fn(*mut *mut Device);
pub type GetDeviceName = unsafe extern "C" fn(*mut Device) -> *const c_char;
pub type OpenDevice = unsafe extern "C" fn(*mut Device) -> *mut Context;
pub type CloseDevice = unsafe extern "C" fn(*mut Context) -> c_int;
pub type QueryPort = unsafe extern "C" fn(*mut Context, u8, *mut PortAttr) -> c_int;
pub type QueryGid = unsafe extern "C" fn(*mut Context, u8, c_int, *mut Gid) -> c_int;
pub type AllocPd = unsafe extern "C" fn(*mut Context) -> *mut Pd;
pub type DeallocPd = unsafe extern "C" fn(*mut Pd) -> c_int;
pub type RegMr = unsafe extern "C" fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
pub type RegDmabufMr = unsafe extern "C" fn(*mut Pd, u64, usize, u64, c_int, c_int) -> *mut Mr;
pub type DeregMr = unsafe extern "C" fn(*mut Mr) -> c_int;
pub type CreateCq = unsafe extern "C" fn(*mut Context, c_int, *mut c_void, *mut c_void, c_int) -> *mut Cq;
pub type DestroyCq = unsafe extern "C" fn(*mut Cq) -> c_int;
pub type CreateQp = unsafe extern "C" fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
pub type ModifyQp = unsafe extern "C" fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
pub type DestroyQp = unsafe extern "C" fn(*mut Qp) -> c_int;
pub type WcStatusStr = unsafe extern "C" fn(u32) -> *const c_char;

pub const QPT_RC: u32 = 2;

pub const WR_RDMA_WRITE: u32 = 0;
pub const WR_SEND: u32 = 2;
pub const WR_RDMA_READ: u32 = 4;
pub const WR_ATOMIC_CMP_AND_SWP: u32 = 5;
pub const WR_ATOMIC_FETCH_AND_ADD: u32 = 6;

pub const SEND_SIGNALED: u32 = 1 << 1;
pub const SEND_INLINE: u32 = 1 << 3;

pub const ACCESS_LOCAL_WRITE: u32 = 1;
pub const ACCESS_REMOTE_WRITE: u32 = 1 << 1;
pub const ACCESS_REMOTE_READ: u32 = 1 << 2;
pub const ACCESS_REMOTE_ATOMIC: u32 = 1 << 3;

pub const QPS_INIT: u32 = 1;
pub const QPS_RTR: u32 = 2;
pub const QPS_RTS: u32 = 3;

pub const QP_STATE: c_int = 1;
pub const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub const QP_PKEY_INDEX: c_int = 1 << 4;
pub const QP_PORT: c_int = 1 << 5;
pub const QP_AV: c_int = 1 << 7;
pub const QP_PATH_MTU: c_int = 1 << 8;
pub const QP_TIMEOUT: c_int = 1 << 9;
pub const QP_RETRY_CNT: c_int = 1 << 10;
pub const QP_RNR_RETRY: c_int = 1 << 11;
pub const QP_RQ_PSN: c_int = 1 << 12;
pub const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub const QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub const QP_SQ_PSN: c_int = 1 << 16;
pub const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub const QP_DEST_QPN: c_int = 1 << 20;

pub const PORT_ACTIVE: u32 = 4;

const _: () = assert!(size_of::<Context>() == 328 && size_of::<Qp>() == 160 && size_of::<Cq>() == 128);
const _: () = assert!(std::mem::offset_of!(Context, cmd_fd) == 264);
const _: () = assert!(size_of::<Mr>() == 48 && size_of::<Pd>() == 16 && size_of::<Wc>() == 48);
const _: () = assert!(size_of::<SendWr>() == 128 && size_of::<RecvWr>() == 32 && size_of::<Sge>() == 16);
const _: () = assert!(size_of::<QpAttr>() == 144 && size_of::<QpInitAttr>() == 64 && size_of::<AhAttr>() == 32);
