//! Work requests and completions.

use super::layout;
use super::object::{ibv_mr, ibv_mw};
use core::ffi::{c_int, c_uint};

/// `struct ibv_sge`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}
layout!(ibv_sge: 16, length @ 8, lkey @ 12);

/// `struct ibv_send_wr`. The union `wr` is spelt as its 64-bit words, of which RDMA uses (remote address, rkey) and atomics
/// (remote address, compare or add, swap, rkey); datagrams lay (address handle; queue pair number, Q_Key) over the first two.
/// `bind_mw` is the window, its new key in the first half of a word, and [`ibv_mw_bind_info`].
#[repr(C)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *const ibv_sge,
    pub num_sge: c_int,
    pub opcode: u32,
    pub send_flags: u32,
    /// Immediate data in network order, or the key to invalidate.
    pub imm: [u8; 4],
    pub remote_addr: u64,
    /// The rkey of RDMA in its first half in memory; compare or add of an atomic.
    pub rkey_or_compare_add: u64,
    pub swap: u64,
    pub atomic_rkey: u32,
    pub padding: u32,
    /// Extended reliable connections: the shared receive queue at the peer.
    pub remote_srqn: u32,
    pub mw: *mut ibv_mw,
    pub mw_rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}

/// `struct ibv_mw_bind_info`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_mw_bind_info {
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: c_uint,
}
layout!(ibv_mw_bind_info: 32, addr @ 8, length @ 16, mw_access_flags @ 24);

/// `struct ibv_mw_bind`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_mw_bind {
    pub wr_id: u64,
    pub send_flags: c_uint,
    pub bind_info: ibv_mw_bind_info,
}
layout!(ibv_mw_bind: 48, send_flags @ 8, bind_info @ 16);

impl Default for ibv_send_wr {
    fn default() -> Self {
        // SAFETY: null pointers and zeros.
        unsafe { core::mem::zeroed() }
    }
}
layout!(ibv_send_wr: 128, next @ 8, sg_list @ 16, num_sge @ 24, opcode @ 28, send_flags @ 32, imm @ 36 as "imm_data",
    remote_addr @ 40 as "wr.rdma.remote_addr", rkey_or_compare_add @ 48 as "wr.rdma.rkey", swap @ 56 as "wr.atomic.swap",
    atomic_rkey @ 64 as "wr.atomic.rkey", remote_srqn @ 72 as "qp_type.xrc.remote_srqn", mw @ 80 as "bind_mw.mw", mw_rkey @ 88 as "bind_mw.rkey",
    bind_info @ 96 as "bind_mw.bind_info");

/// `struct ibv_recv_wr`.
#[repr(C)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *const ibv_sge,
    pub num_sge: c_int,
}
layout!(ibv_recv_wr: 32, next @ 8, sg_list @ 16, num_sge @ 24);

/// `struct ibv_wc`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm: [u8; 4],
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}
layout!(ibv_wc: 48, status @ 8, opcode @ 12, vendor_err @ 16, byte_len @ 20, imm @ 24 as "imm_data", qp_num @ 28, src_qp @ 32,
    wc_flags @ 36, pkey_index @ 40, slid @ 42, sl @ 44);
