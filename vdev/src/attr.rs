//! Queue pair attributes between the control protocol and the core.
//!
//! Owns the translation of codes and the check that each code exists. Which attributes a transition needs or allows is the
//! core's to say. Attributes that the mask does not name are not looked at.

use emtt::Access;
use rnic::{AddressVector, QpAttr, QpAttrMask, QpCaps, QpState};
use roce::{Gid, Mtu, Psn, Qpn};
use vdev_abi::control as abi;

/// A code that does not exist; the text names attribute and value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{attribute} {value:#x} is not valid")]
pub struct BadAttr {
    attribute: &'static str,
    value: u64,
}

fn bad(attribute: &'static str, value: impl Into<u64>) -> BadAttr {
    BadAttr { attribute, value: value.into() }
}

/// Queue sizes for the core.
pub fn caps_to_core(caps: &abi::QpCaps) -> QpCaps {
    QpCaps {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline_data: caps.max_inline_data,
    }
}

fn caps_from_core(caps: &QpCaps) -> abi::QpCaps {
    abi::QpCaps {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline_data: caps.max_inline_data,
    }
}

fn state(name: &'static str, code: u32) -> Result<QpState, BadAttr> {
    QpState::from_code(code).ok_or_else(|| bad(name, code))
}

/// The mask and the attributes for the core.
///
/// # Errors
/// [`BadAttr`] for the first attribute named by the mask whose code does not exist.
pub fn to_core(mask: u32, attr: &abi::QpAttr) -> Result<(QpAttrMask, QpAttr), BadAttr> {
    let mask = QpAttrMask::from_bits(mask).ok_or_else(|| bad("attribute mask", mask))?;
    let mut out = QpAttr {
        state: QpState::Reset,
        cur_state: QpState::Reset,
        sqd_async_notify: attr.en_sqd_async_notify,
        access: Access::empty(),
        pkey_index: attr.pkey_index,
        port: attr.port,
        qkey: attr.qkey,
        address: AddressVector::default(),
        path_mtu: Mtu::B256,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        rq_psn: Psn::new(attr.rq_psn),
        sq_psn: Psn::new(attr.sq_psn),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        dest_qpn: Qpn::new(attr.dest_qpn),
        sq_draining: false,
        caps: caps_to_core(&attr.caps),
    };
    if mask.contains(QpAttrMask::STATE) {
        out.state = state("qp_state", attr.qp_state)?;
    }
    if mask.contains(QpAttrMask::CUR_STATE) {
        out.cur_state = state("cur_qp_state", attr.cur_qp_state)?;
    }
    if mask.contains(QpAttrMask::ACCESS_FLAGS) {
        out.access = Access::from_bits(attr.access).ok_or_else(|| bad("qp_access_flags", attr.access))?;
    }
    if mask.contains(QpAttrMask::PATH_MTU) {
        let code = u8::try_from(attr.path_mtu).ok().and_then(Mtu::from_code);
        out.path_mtu = code.ok_or_else(|| bad("path_mtu", attr.path_mtu))?;
    }
    // Sequence and queue pair numbers have 24 bits; libibverbs passes what the application gave, and devices drop the rest.
    if mask.contains(QpAttrMask::AV) {
        if !attr.ah_is_global {
            // Without a global route header there is no address to send to (RoCE has no LIDs).
            return Err(bad("ah_attr.is_global", 0u8));
        }
        if attr.ah_flow_label >= 1 << 20 {
            return Err(bad("ah_attr.grh.flow_label", attr.ah_flow_label));
        }
        out.address = AddressVector {
            dgid: Gid(attr.ah_dgid),
            sgid_index: attr.ah_sgid_index,
            traffic_class: attr.ah_traffic_class,
            hop_limit: attr.ah_hop_limit,
            flow_label: attr.ah_flow_label,
            service_level: attr.ah_sl,
            port: attr.ah_port,
        };
    }
    Ok((mask, out))
}

/// What a query answers.
pub fn from_core(attr: &QpAttr) -> abi::QpAttr {
    abi::QpAttr {
        qp_state: attr.state as u32,
        cur_qp_state: attr.cur_state as u32,
        en_sqd_async_notify: attr.sqd_async_notify,
        access: attr.access.bits(),
        pkey_index: attr.pkey_index,
        port: attr.port,
        qkey: attr.qkey,
        path_mtu: attr.path_mtu as u32,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        rq_psn: attr.rq_psn.get(),
        sq_psn: attr.sq_psn.get(),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        dest_qpn: attr.dest_qpn.get(),
        sq_draining: attr.sq_draining,
        caps: caps_from_core(&attr.caps),
        ah_dgid: attr.address.dgid.0,
        ah_sgid_index: attr.address.sgid_index,
        ah_traffic_class: attr.address.traffic_class,
        ah_hop_limit: attr.address.hop_limit,
        ah_flow_label: attr.address.flow_label,
        ah_sl: attr.address.service_level,
        ah_is_global: attr.address.dgid != Gid::ZERO,
        ah_port: attr.address.port,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> abi::QpAttr {
        abi::QpAttr {
            qp_state: 2,
            cur_qp_state: 1,
            en_sqd_async_notify: true,
            access: 15,
            port: 1,
            qkey: 3,
            path_mtu: 5,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 6,
            rq_psn: 0xABCDEF,
            sq_psn: 0x123456,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 15,
            min_rnr_timer: 12,
            dest_qpn: 0x77,
            ah_dgid: [9; 16],
            ah_sgid_index: 1,
            ah_traffic_class: 2,
            ah_hop_limit: 3,
            ah_flow_label: 4,
            ah_sl: 5,
            ah_is_global: true,
            ah_port: 1,
            ..abi::QpAttr::default()
        }
    }

    #[test]
    fn attributes_come_back() {
        let (mask, attr) = to_core(QpAttrMask::all().bits(), &full()).unwrap();
        assert_eq!(mask, QpAttrMask::all());
        assert_eq!(from_core(&attr), full());
    }

    #[test]
    fn codes_that_do_not_exist_are_refused_only_when_named() {
        type Spoil = fn(&mut abi::QpAttr);
        let cases: [(QpAttrMask, Spoil); 6] = [
            (QpAttrMask::STATE, |attr| attr.qp_state = 7),
            (QpAttrMask::CUR_STATE, |attr| attr.cur_qp_state = u32::MAX),
            (QpAttrMask::ACCESS_FLAGS, |attr| attr.access = 1 << 9),
            (QpAttrMask::PATH_MTU, |attr| attr.path_mtu = 256 + 3),
            (QpAttrMask::AV, |attr| attr.ah_is_global = false),
            (QpAttrMask::AV, |attr| attr.ah_flow_label = 1 << 20),
        ];
        for (bit, spoil) in cases {
            let mut attr = full();
            spoil(&mut attr);
            assert!(to_core(bit.bits(), &attr).is_err(), "{bit:?}");
            assert!(to_core((QpAttrMask::all() - bit).bits(), &attr).is_ok(), "{bit:?}");
        }
        assert!(to_core(1 << 30, &full()).is_err());
    }
}
