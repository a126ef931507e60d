//! Numbers of the verbs interface that this library compares or reports.

/// `enum ibv_qp_state`.
pub mod qp_state {
    pub const RESET: u32 = 0;
    pub const RTS: u32 = 3;
    pub const ERR: u32 = 6;
}

/// `enum ibv_qp_attr_mask`.
pub mod qp_mask {
    pub const STATE: u32 = 1;
}

/// `enum ibv_qp_type`.
pub const QPT_RC: u32 = 2;
pub const QPT_UC: u32 = 3;
pub const QPT_UD: u32 = 4;
pub const QPT_XRC_SEND: u32 = 9;
pub const QPT_XRC_RECV: u32 = 10;

/// `enum ibv_wc_flags`: a GRH is in the first 40 bytes of the receive.
pub const WC_GRH: u32 = 1;

/// `enum ibv_wr_opcode`.
pub mod wr {
    pub const RDMA_WRITE: u32 = 0;
    pub const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub const SEND: u32 = 2;
    pub const SEND_WITH_IMM: u32 = 3;
    pub const RDMA_READ: u32 = 4;
    pub const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub const ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub const LOCAL_INV: u32 = 7;
    pub const BIND_MW: u32 = 8;
    pub const SEND_WITH_INV: u32 = 9;
}

/// `enum ibv_send_flags`.
pub mod send_flags {
    #[cfg(not(versioned))]
    pub const FENCE: u32 = 1;
    #[cfg(not(versioned))]
    pub const SIGNALED: u32 = 2;
    pub const INLINE: u32 = 8;
    pub const KNOWN: u32 = 15;
}

/// `enum ibv_access_flags`.
pub mod access {
    pub const LOCAL_WRITE: u32 = 1;
    pub const REMOTE_WRITE: u32 = 1 << 1;
    pub const REMOTE_READ: u32 = 1 << 2;
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    /// What peers may be allowed.
    pub const REMOTE: u32 = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
    pub const MW_BIND: u32 = 1 << 4;
    pub const ZERO_BASED: u32 = 1 << 5;
    pub const ON_DEMAND: u32 = 1 << 6;
    pub const HUGETLB: u32 = 1 << 7;
    /// Of two kinds.
    pub const FLUSH: u32 = 1 << 8 | 1 << 9;
    /// Bits 20 to 29: wishes that a device may ignore, such as relaxed ordering.
    pub const OPTIONAL: u32 = 0x3FF0_0000;
}

/// `enum ibv_mw_type`: bound by `ibv_bind_mw`.
pub const MW_TYPE_1: u32 = 1;

/// `enum ibv_rereg_mr_flags` and `enum ibv_rereg_mr_err_code`; after both errors the region is as it was.
pub mod rereg {
    pub const CHANGE_TRANSLATION: u32 = 1;
    pub const CHANGE_PD: u32 = 2;
    pub const CHANGE_ACCESS: u32 = 4;
    pub const KNOWN: u32 = 7;
    pub const BAD_INPUT: i32 = -1;
    pub const FAILED: i32 = -4;
}

/// `enum ibv_event_type`.
pub mod event {
    pub const CQ_ERR: u32 = 0;
    pub const QP_FATAL: u32 = 1;
    pub const PATH_MIG_ERR: u32 = 7;
    pub const DEVICE_FATAL: u32 = 8;
    pub const PORT_ACTIVE: u32 = 9;
    pub const SM_CHANGE: u32 = 13;
    pub const SRQ_ERR: u32 = 14;
    pub const SRQ_LIMIT_REACHED: u32 = 15;
    pub const QP_LAST_WQE_REACHED: u32 = 16;
    pub const CLIENT_REREGISTER: u32 = 17;
    pub const GID_CHANGE: u32 = 18;
}

/// `enum ibv_node_type`: channel adapter.
pub const NODE_CA: i32 = 1;
/// `enum ibv_transport_type`: InfiniBand.
pub const TRANSPORT_IB: i32 = 0;
/// `enum ibv_atomic_cap`: atomic among the queue pairs of this device.
pub const ATOMIC_HCA: u32 = 1;
/// `enum ibv_device_cap_flags`.
pub mod device_cap {
    pub const SYS_IMAGE_GUID: u32 = 1 << 11;
    pub const RC_RNR_NAK_GEN: u32 = 1 << 12;
    pub const SRQ_RESIZE: u32 = 1 << 13;
    pub const MEM_WINDOW: u32 = 1 << 17;
    pub const XRC: u32 = 1 << 20;
    pub const MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
}
/// Link layer of a port.
pub const LINK_LAYER_ETHERNET: u8 = 2;
/// `enum ibv_port_state`.
pub const PORT_ACTIVE: u32 = 4;
/// `enum ibv_mtu`: 4096 bytes.
pub const MTU_4096: u32 = 5;
/// `enum ibv_gid_type`: RoCE version 2.
pub const GID_TYPE_ROCE_V2: u32 = 2;
/// The private `ibv_query_gid_type` counts InfiniBand and RoCE version 1 as one.
pub const GID_TYPE_SYSFS_ROCE_V2: u32 = 1;
/// `enum ibv_fork_status`: nothing to do.
pub const FORK_UNNEEDED: i32 = 2;
