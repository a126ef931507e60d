//! Devices, contexts, and what queries answer.

use super::extended::{
    ibv_cq_ex, ibv_cq_init_attr_ex, ibv_parent_domain_init_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_srq_init_attr_ex,
    ibv_td, ibv_td_init_attr, ibv_values_ex, ibv_xrcd, ibv_xrcd_init_attr,
};
use super::layout;
use super::object::{ibv_cq, ibv_mr, ibv_mw, ibv_pd, ibv_qp, ibv_srq};
use super::work::{ibv_mw_bind, ibv_recv_wr, ibv_send_wr, ibv_wc};
use core::ffi::{c_char, c_int, c_uint, c_void};

/// `struct ibv_device`.
#[repr(C)]
pub struct ibv_device {
    /// Two unused pointers, of which we use the first to know our own devices.
    pub ops: [*const c_void; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}
layout!(ibv_device: 664, node_type @ 16, transport_type @ 20, name @ 24, dev_name @ 88, dev_path @ 152, ibdev_path @ 408);

/// `struct ibv_context_ops`: what the inline functions of the C header call. The gaps belong to old library versions.
#[repr(C)]
pub struct ibv_context_ops {
    pub compat0: [*const c_void; 7],
    pub alloc_mw: unsafe extern "C" fn(*mut ibv_pd, c_uint) -> *mut ibv_mw,
    pub bind_mw: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int,
    pub dealloc_mw: unsafe extern "C" fn(*mut ibv_mw) -> c_int,
    pub compat1: [*const c_void; 1],
    pub poll_cq: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
    pub req_notify_cq: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int,
    pub compat2: [*const c_void; 7],
    pub post_srq_recv: unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    pub compat3: [*const c_void; 4],
    pub post_send: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
    pub post_recv: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    pub compat4: [*const c_void; 5],
}
layout!(ibv_context_ops: 256, alloc_mw @ 56, bind_mw @ 64, dealloc_mw @ 72, poll_cq @ 88, req_notify_cq @ 96,
    post_srq_recv @ 160, post_send @ 200, post_recv @ 208);

/// `struct ibv_context`.
#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    /// A `pthread_mutex_t`; all zero is an unlocked one.
    pub mutex: [u64; 5],
    pub abi_compat: *mut c_void,
}
layout!(ibv_context: 328, ops @ 8, cmd_fd @ 264, async_fd @ 268, num_comp_vectors @ 272, mutex @ 280, abi_compat @ 320);

/// `abi_compat` of a context that is part of a [`verbs_context`].
pub const EXTENDED: *mut c_void = usize::MAX as *mut c_void;

/// `struct verbs_context` as of rdma-core 65. It grows at the front, and callers compute offsets back from `context`, so that one
/// layout serves callers of all versions. Operations that we do not have stay null: the C header's wrappers turn these into
/// `EOPNOTSUPP`.
#[repr(C)]
pub struct verbs_context {
    pub newer: [*const c_void; 6],
    pub query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
    pub advise_mr: *const c_void,
    pub alloc_null_mr: Option<unsafe extern "C" fn(*mut ibv_pd) -> *mut ibv_mr>,
    pub others0: [*const c_void; 11],
    pub alloc_parent_domain: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd>,
    pub dealloc_td: Option<unsafe extern "C" fn(*mut ibv_td) -> c_int>,
    pub alloc_td: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td>,
    pub others1: [*const c_void; 7],
    pub query_rt_values: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int>,
    pub create_cq_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
    pub private: *const c_void,
    pub query_device_ex: Option<unsafe extern "C" fn(*mut ibv_context, *const c_void, *mut ibv_device_attr_ex, usize) -> c_int>,
    pub others2: [*const c_void; 4],
    pub open_qp: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp>,
    pub create_qp_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
    pub get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>,
    pub create_srq_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>,
    pub open_xrcd: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd>,
    pub close_xrcd: Option<unsafe extern "C" fn(*mut ibv_xrcd) -> c_int>,
    pub placeholder: u64,
    pub size: usize,
    pub context: ibv_context,
}
layout!(verbs_context: 696, query_port @ 48, alloc_null_mr @ 64, alloc_parent_domain @ 160, dealloc_td @ 168, alloc_td @ 176, query_rt_values @ 240,
    create_cq_ex @ 248, private @ 256 as "priv", query_device_ex @ 264, open_qp @ 304, create_qp_ex @ 312, get_srq_num @ 320,
    create_srq_ex @ 328, open_xrcd @ 336, close_xrcd @ 344, size @ 360 as "sz", context @ 368);

/// `struct ibv_device_attr`. GUIDs are in network byte order.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_device_attr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: i32,
    pub max_qp_wr: i32,
    pub device_cap_flags: u32,
    pub max_sge: i32,
    pub max_sge_rd: i32,
    pub max_cq: i32,
    pub max_cqe: i32,
    pub max_mr: i32,
    pub max_pd: i32,
    pub max_qp_rd_atom: i32,
    pub max_ee_rd_atom: i32,
    pub max_res_rd_atom: i32,
    pub max_qp_init_rd_atom: i32,
    pub max_ee_init_rd_atom: i32,
    pub atomic_cap: u32,
    pub max_ee: i32,
    pub max_rdd: i32,
    pub max_mw: i32,
    pub max_raw_ipv6_qp: i32,
    pub max_raw_ethy_qp: i32,
    pub max_mcast_grp: i32,
    pub max_mcast_qp_attach: i32,
    pub max_total_mcast_qp_attach: i32,
    pub max_ah: i32,
    pub max_fmr: i32,
    pub max_map_per_fmr: i32,
    pub max_srq: i32,
    pub max_srq_wr: i32,
    pub max_srq_sge: i32,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}
layout!(ibv_device_attr: 232, node_guid @ 64, vendor_id @ 96, max_qp @ 108, device_cap_flags @ 116, max_sge @ 120,
    max_cq @ 128, max_mr @ 136, max_qp_rd_atom @ 144, atomic_cap @ 164, max_mw @ 176, max_ah @ 200, max_srq @ 212,
    max_pkeys @ 224, local_ca_ack_delay @ 226, phys_port_cnt @ 227);

/// `struct ibv_device_attr_ex`. The gaps are features that our devices do not have, zero for us.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_device_attr_ex {
    pub orig_attr: ibv_device_attr,
    pub comp_mask: u32,
    pub odp_caps: [u64; 3],
    pub completion_timestamp_mask: u64,
    /// kHz.
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    pub none: [u64; 13],
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}
layout!(ibv_device_attr_ex: 400, comp_mask @ 232, odp_caps @ 240, completion_timestamp_mask @ 264, hca_core_clock @ 272,
    device_cap_flags_ex @ 280, xrc_odp_caps @ 392, phys_port_cnt_ex @ 396);

/// `struct ibv_port_attr` as of rdma-core 56. Callers give the length that they know.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct ibv_port_attr {
    pub state: u32,
    pub max_mtu: u32,
    pub active_mtu: u32,
    pub gid_tbl_len: i32,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    pub reserved: u16,
    pub active_speed_ex: u32,
}
layout!(ibv_port_attr: 56, gid_tbl_len @ 12, pkey_tbl_len @ 32, lmc @ 38, active_width @ 43, link_layer @ 46,
    port_cap_flags2 @ 48, active_speed_ex @ 52 as "");

/// Bytes of [`ibv_port_attr`] that the function `ibv_query_port` writes, for callers of any age.
pub const PORT_ATTR_COMPAT: usize = 48;

/// `struct ibv_gid_entry`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_gid_entry {
    /// Aligned to 8 bytes, as the C union has 64-bit parts.
    pub gid: [u64; 2],
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}
layout!(ibv_gid_entry: 32, gid_index @ 16, port_num @ 20, gid_type @ 24, ndev_ifindex @ 28);
