//! Queue pair attributes between the C interface and the control protocol. Pure; what they mean is the device's business.

use crate::abi::codes::access;
use crate::abi::object::{ibv_ah_attr, ibv_qp_attr, ibv_qp_cap};
use vdev_abi::control::{QpAttr, QpCaps};

/// Bits of a flow label. Programs set more, to influence source ports, and devices drop them.
pub const FLOW_LABEL: u32 = 0xF_FFFF;

/// Sizes as the daemon takes them.
pub fn caps_in(cap: &ibv_qp_cap) -> QpCaps {
    QpCaps {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// Sizes as a program knows them.
pub fn caps_out(caps: &QpCaps) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline_data: caps.max_inline_data,
    }
}

/// Attributes as the daemon takes them; optional access flags are dropped.
pub fn attr_in(attr: &ibv_qp_attr) -> QpAttr {
    let [low, high] = attr.ah_attr.grh.dgid.map(u64::to_ne_bytes);
    let mut dgid = [0; 16];
    dgid[..8].copy_from_slice(&low);
    dgid[8..].copy_from_slice(&high);
    QpAttr {
        qp_state: attr.qp_state,
        cur_qp_state: attr.cur_qp_state,
        en_sqd_async_notify: attr.en_sqd_async_notify != 0,
        // Rights to operations that the device does not have change nothing.
        access: attr.qp_access_flags & !access::OPTIONAL & !access::FLUSH,
        pkey_index: attr.pkey_index,
        port: attr.port_num,
        qkey: attr.qkey,
        path_mtu: attr.path_mtu,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        dest_qpn: attr.dest_qp_num,
        sq_draining: attr.sq_draining != 0,
        caps: caps_in(&attr.cap),
        ah_dgid: dgid,
        ah_sgid_index: attr.ah_attr.grh.sgid_index,
        ah_traffic_class: attr.ah_attr.grh.traffic_class,
        ah_hop_limit: attr.ah_attr.grh.hop_limit,
        ah_flow_label: attr.ah_attr.grh.flow_label & FLOW_LABEL,
        ah_sl: attr.ah_attr.sl,
        ah_is_global: attr.ah_attr.is_global != 0,
        ah_port: attr.ah_attr.port_num,
    }
}

/// Attributes as a program knows them.
pub fn attr_out(attr: &QpAttr) -> ibv_qp_attr {
    let half = |at: usize| u64::from_ne_bytes(attr.ah_dgid[at..at + 8].try_into().unwrap_or_default());
    let mut ah = ibv_ah_attr { sl: attr.ah_sl, is_global: u8::from(attr.ah_is_global), ..ibv_ah_attr::default() };
    ah.port_num = attr.ah_port;
    ah.grh.dgid = [half(0), half(8)];
    ah.grh.sgid_index = attr.ah_sgid_index;
    ah.grh.traffic_class = attr.ah_traffic_class;
    ah.grh.hop_limit = attr.ah_hop_limit;
    ah.grh.flow_label = attr.ah_flow_label;
    ibv_qp_attr {
        qp_state: attr.qp_state,
        cur_qp_state: attr.cur_qp_state,
        path_mtu: attr.path_mtu,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qpn,
        qp_access_flags: attr.access,
        cap: caps_out(&attr.caps),
        ah_attr: ah,
        pkey_index: attr.pkey_index,
        en_sqd_async_notify: u8::from(attr.en_sqd_async_notify),
        sq_draining: u8::from(attr.sq_draining),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        ..ibv_qp_attr::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_survive_both_directions() {
        let mut attr = ibv_qp_attr { qp_state: 3, path_mtu: 5, rq_psn: 77, timeout: 14, ..ibv_qp_attr::default() };
        attr.ah_attr.grh.dgid = [1, u64::MAX - 5];
        attr.ah_attr.grh.sgid_index = 1;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.flow_label = u32::MAX;
        let back = attr_out(&attr_in(&attr));
        assert_eq!((back.qp_state, back.path_mtu, back.rq_psn, back.timeout), (3, 5, 77, 14));
        assert_eq!(back.ah_attr.grh.dgid, [1, u64::MAX - 5]);
        assert_eq!((back.ah_attr.grh.sgid_index, back.ah_attr.is_global), (1, 1));
        assert_eq!(back.ah_attr.grh.flow_label, FLOW_LABEL);
    }
}
