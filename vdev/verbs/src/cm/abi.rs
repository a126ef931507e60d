//! The binary interface of librdmacm: the structs that programs read and write themselves, and the numbers in them.
//!
//! Written from the documented interface; sizes and offsets are asserted at compile time against the values that a C compiler gives
//! for the header of rdma-core 44 (x86-64).
#![allow(non_camel_case_types)]

use crate::abi::device::ibv_context;
use crate::abi::layout;
use crate::abi::object::{ibv_ah_attr, ibv_comp_channel, ibv_cq, ibv_pd, ibv_qp, ibv_srq};
use core::ffi::{c_char, c_int, c_void};
use libc::{sockaddr, sockaddr_storage, socklen_t};

/// `enum rdma_port_space`.
pub mod space {
    pub const TCP: u32 = 0x0106;
    pub const UDP: u32 = 0x0111;
}

/// `enum rdma_cm_event_type`.
pub mod event {
    pub const ADDR_RESOLVED: u32 = 0;
    pub const ROUTE_RESOLVED: u32 = 2;
    pub const CONNECT_REQUEST: u32 = 4;
    pub const CONNECT_RESPONSE: u32 = 5;
    pub const CONNECT_ERROR: u32 = 6;
    pub const UNREACHABLE: u32 = 7;
    pub const REJECTED: u32 = 8;
    pub const ESTABLISHED: u32 = 9;
    pub const DISCONNECTED: u32 = 10;
    pub const DEVICE_REMOVAL: u32 = 11;
    pub const MULTICAST_JOIN: u32 = 12;
    pub const TIMEWAIT_EXIT: u32 = 15;
}

/// `RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`: as many as the device can.
pub const MAX_DEPTH: u8 = 0xFF;
/// `RDMA_UDP_QKEY`.
pub const UDP_QKEY: u32 = 0x0123_4567;

/// `RAI_*` flags of [`rdma_addrinfo`].
pub mod rai {
    pub const PASSIVE: c_int = 1;
    pub const NUMERICHOST: c_int = 2;
    use core::ffi::c_int;
}

/// Levels and names of `rdma_set_option`.
pub mod option {
    pub const LEVEL_ID: i32 = 0;
    pub const LEVEL_IB: i32 = 1;
    pub const TOS: i32 = 0;
    pub const REUSEADDR: i32 = 1;
    pub const AFONLY: i32 = 2;
    pub const ACK_TIMEOUT: i32 = 3;
}

/// `struct rdma_event_channel`.
#[repr(C)]
pub struct rdma_event_channel {
    pub fd: c_int,
}
layout!(rdma_event_channel: 4);

/// `struct rdma_addr`; the last part is for native InfiniBand addresses.
#[repr(C)]
pub struct rdma_addr {
    pub src: sockaddr_storage,
    pub dst: sockaddr_storage,
    pub sgid: [u64; 2],
    pub dgid: [u64; 2],
    pub pkey: u16,
}
layout!(rdma_addr: 296, dst @ 128, sgid @ 256, dgid @ 272, pkey @ 288);

/// `struct ibv_sa_path_rec`.
#[derive(Default)]
#[repr(C)]
pub struct ibv_sa_path_rec {
    pub dgid: [u64; 2],
    pub sgid: [u64; 2],
    pub dlid: u16,
    pub slid: u16,
    pub raw_traffic: c_int,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reversible: c_int,
    pub numb_path: u8,
    pub pkey: u16,
    pub sl: u8,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}
layout!(ibv_sa_path_rec: 64, sgid @ 16, dlid @ 32, raw_traffic @ 36, flow_label @ 40, hop_limit @ 44, reversible @ 48,
    numb_path @ 52, pkey @ 54, mtu @ 58, rate @ 60, packet_life_time @ 62, preference @ 63);

/// `struct rdma_route`.
#[repr(C)]
pub struct rdma_route {
    pub addr: rdma_addr,
    pub path_rec: *mut ibv_sa_path_rec,
    pub num_paths: c_int,
}
layout!(rdma_route: 312, path_rec @ 296, num_paths @ 304);

/// `struct rdma_cm_id`.
#[repr(C)]
pub struct rdma_cm_id {
    pub verbs: *mut ibv_context,
    pub channel: *mut rdma_event_channel,
    pub context: *mut c_void,
    pub qp: *mut ibv_qp,
    pub route: rdma_route,
    pub ps: u32,
    pub port_num: u8,
    pub event: *mut rdma_cm_event,
    pub send_cq_channel: *mut ibv_comp_channel,
    pub send_cq: *mut ibv_cq,
    pub recv_cq_channel: *mut ibv_comp_channel,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub pd: *mut ibv_pd,
    pub qp_type: u32,
}
layout!(rdma_cm_id: 416, channel @ 8, context @ 16, qp @ 24, route @ 32, ps @ 344, port_num @ 348, event @ 352,
    send_cq_channel @ 360, send_cq @ 368, recv_cq_channel @ 376, recv_cq @ 384, srq @ 392, pd @ 400, qp_type @ 408);

/// `struct rdma_conn_param`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_conn_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}
layout!(rdma_conn_param: 24, private_data_len @ 8, srq @ 14, qp_num @ 16);

/// `struct rdma_ud_param`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_ud_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: ibv_ah_attr,
    pub qp_num: u32,
    pub qkey: u32,
}
layout!(rdma_ud_param: 56, private_data_len @ 8, ah_attr @ 16, qp_num @ 48, qkey @ 52);

/// The union in [`rdma_cm_event`].
#[derive(Clone, Copy)]
#[repr(C)]
pub union rdma_event_param {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
}

/// `struct rdma_cm_event`.
#[repr(C)]
pub struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: u32,
    pub status: c_int,
    pub param: rdma_event_param,
}
layout!(rdma_cm_event: 80, listen_id @ 8, event @ 16, status @ 20, param @ 24);

/// `struct rdma_addrinfo`.
#[repr(C)]
pub struct rdma_addrinfo {
    pub ai_flags: c_int,
    pub ai_family: c_int,
    pub ai_qp_type: c_int,
    pub ai_port_space: c_int,
    pub ai_src_len: socklen_t,
    pub ai_dst_len: socklen_t,
    pub ai_src_addr: *mut sockaddr,
    pub ai_dst_addr: *mut sockaddr,
    pub ai_src_canonname: *mut c_char,
    pub ai_dst_canonname: *mut c_char,
    pub ai_route_len: usize,
    pub ai_route: *mut c_void,
    pub ai_connect_len: usize,
    pub ai_connect: *mut c_void,
    pub ai_next: *mut rdma_addrinfo,
}
layout!(rdma_addrinfo: 96, ai_src_len @ 16, ai_src_addr @ 24, ai_route_len @ 56, ai_connect_len @ 72, ai_next @ 88);
