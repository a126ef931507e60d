//! Which attributes may and must be given on which change of state: the tables of `ibv_modify_qp(3)`, and the range of
//! each attribute. Nothing here changes anything, so a refused call leaves the queue pair as it was.

use crate::attr::{AddressVector, QpAttr, QpAttrMask as Mask, QpState, QpType};
use crate::device::Device;
use crate::error::ControlError;
use crate::limits::MAX_RD_ATOMIC;
use core::net::IpAddr;

/// What only a connection with acknowledgements has.
const RELIABILITY: Mask = Mask::TIMEOUT
    .union(Mask::RETRY_CNT)
    .union(Mask::RNR_RETRY)
    .union(Mask::MIN_RNR_TIMER)
    .union(Mask::MAX_QP_RD_ATOMIC)
    .union(Mask::MAX_DEST_RD_ATOMIC);

/// What only the end that receives has of an extended reliable connection, and what only the one that sends.
const OF_RESPONDER: Mask = Mask::MIN_RNR_TIMER.union(Mask::MAX_DEST_RD_ATOMIC);
const OF_REQUESTER: Mask = Mask::RETRY_CNT.union(Mask::RNR_RETRY).union(Mask::MAX_QP_RD_ATOMIC);

/// Required and optional attributes of a change of state, `STATE` apart; `None` if there is no such change.
fn attributes(qp_type: QpType, from: QpState, to: QpState) -> Option<(Mask, Mask)> {
    match qp_type {
        QpType::Rc => attributes_of_rc(from, to),
        QpType::Uc => attributes_of_rc(from, to).map(|(required, optional)| (required - RELIABILITY, optional - RELIABILITY)),
        QpType::Ud => attributes_of_ud(from, to),
        QpType::XrcSend => {
            attributes_of_rc(from, to).map(|(required, optional)| (required - OF_RESPONDER, optional - OF_RESPONDER))
        }
        QpType::XrcRecv => {
            attributes_of_rc(from, to).map(|(required, optional)| (required - OF_REQUESTER, optional - OF_REQUESTER))
        }
    }
}

fn attributes_of_ud(from: QpState, to: QpState) -> Option<(Mask, Mask)> {
    use QpState::*;
    let (none, init) = (Mask::empty(), Mask::PKEY_INDEX | Mask::PORT | Mask::QKEY);
    Some(match (from, to) {
        (_, Reset | Err) => (none, none),
        (Reset, Init) => (init, none),
        (Init, Init) => (none, init),
        (Init, Rtr) | (Sqd, Sqd) => (none, Mask::PKEY_INDEX | Mask::QKEY),
        (Rtr, Rts) => (Mask::SQ_PSN, Mask::CUR_STATE | Mask::QKEY),
        (Rts | Sqe | Sqd, Rts) => (none, Mask::CUR_STATE | Mask::QKEY),
        (Rts, Sqd) => (none, Mask::EN_SQD_ASYNC_NOTIFY),
        _ => return None,
    })
}

fn attributes_of_rc(from: QpState, to: QpState) -> Option<(Mask, Mask)> {
    use QpState::*;
    let none = Mask::empty();
    let path = Mask::ALT_PATH | Mask::PATH_MIG_STATE;
    Some(match (from, to) {
        (_, Reset | Err) => (none, none),
        (Reset, Init) => (Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS, none),
        (Init, Init) => (none, Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS),
        (Init, Rtr) => (
            Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN | Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER,
            Mask::ALT_PATH | Mask::ACCESS_FLAGS | Mask::PKEY_INDEX,
        ),
        (Rtr, Rts) => (
            Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::SQ_PSN | Mask::MAX_QP_RD_ATOMIC,
            path | Mask::CUR_STATE | Mask::ACCESS_FLAGS | Mask::MIN_RNR_TIMER,
        ),
        (Rts | Sqd, Rts) => (none, path | Mask::CUR_STATE | Mask::ACCESS_FLAGS | Mask::MIN_RNR_TIMER),
        (Sqe, Rts) => (none, Mask::CUR_STATE | Mask::ACCESS_FLAGS | Mask::MIN_RNR_TIMER),
        (Rts, Sqd) => (none, Mask::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => (
            none,
            path | Mask::PORT
                | Mask::AV
                | Mask::TIMEOUT
                | Mask::RETRY_CNT
                | Mask::RNR_RETRY
                | Mask::MAX_QP_RD_ATOMIC
                | Mask::MAX_DEST_RD_ATOMIC
                | Mask::ACCESS_FLAGS
                | Mask::PKEY_INDEX
                | Mask::MIN_RNR_TIMER,
        ),
        _ => return None,
    })
}

/// Checks a call of modify-QP and returns the state it leads to.
///
/// # Errors
/// `Invalid` or `Unsupported`, with the first reason found.
pub(crate) fn check(
    qp_type: QpType,
    from: QpState,
    mask: Mask,
    new: &QpAttr,
    device: &Device,
) -> Result<QpState, ControlError> {
    let to = if mask.contains(Mask::STATE) { new.state } else { from };
    let (required, optional) =
        attributes(qp_type, from, to).ok_or(ControlError::Invalid("no such change of the queue pair's state"))?;
    let given = mask - Mask::STATE;
    if !given.contains(required) {
        return Err(ControlError::Invalid("an attribute that this change of state requires is missing"));
    }
    if !(required | optional).contains(given) {
        return Err(ControlError::Invalid("an attribute is given that this change of state does not allow"));
    }
    if mask.contains(Mask::CUR_STATE) && new.cur_state != from {
        return Err(ControlError::Invalid("the queue pair is not in the state that cur_state says"));
    }
    check_values(mask, new, device)?;
    Ok(to)
}

fn check_values(mask: Mask, new: &QpAttr, device: &Device) -> Result<(), ControlError> {
    let given = |bit| mask.contains(bit);
    let refuse = |reason| Err(ControlError::Invalid(reason));
    if given(Mask::ALT_PATH) || given(Mask::PATH_MIG_STATE) {
        return Err(ControlError::Unsupported("alternate paths"));
    }
    if given(Mask::PKEY_INDEX) && new.pkey_index != 0 {
        return refuse("pkey_index must be 0");
    }
    if given(Mask::PORT) && new.port != 1 {
        return refuse("port must be 1");
    }
    if given(Mask::AV) {
        check_peer(&new.address, device)?;
    }
    if given(Mask::PATH_MTU) && device.port.is_some_and(|active| new.path_mtu > active) {
        return refuse("path_mtu is larger than the port's active MTU");
    }
    if given(Mask::TIMEOUT) && new.timeout > 31 {
        return refuse("timeout is longer than 5 bits");
    }
    if given(Mask::RETRY_CNT) && new.retry_cnt > 7 {
        return refuse("retry_cnt is above 7");
    }
    if given(Mask::RNR_RETRY) && new.rnr_retry > 7 {
        return refuse("rnr_retry is above 7");
    }
    if given(Mask::MIN_RNR_TIMER) && new.min_rnr_timer > 31 {
        return refuse("min_rnr_timer is longer than 5 bits");
    }
    if given(Mask::MAX_QP_RD_ATOMIC) && new.max_rd_atomic > MAX_RD_ATOMIC {
        return refuse("max_rd_atomic is above the device's limit");
    }
    if given(Mask::MAX_DEST_RD_ATOMIC) && new.max_dest_rd_atomic > MAX_RD_ATOMIC {
        return refuse("max_dest_rd_atomic is above the device's limit");
    }
    Ok(())
}

/// Whether packets can be sent to one peer along this address.
pub(crate) fn check_peer(address: &AddressVector, device: &Device) -> Result<(), ControlError> {
    check_address(address, device)?;
    if address.dgid.ip().is_multicast() { Err(ControlError::Invalid("dgid is not a unicast address")) } else { Ok(()) }
}

/// Whether datagrams can be sent to a peer or a group along this address.
pub(crate) fn check_address(address: &AddressVector, device: &Device) -> Result<(), ControlError> {
    let refuse = |reason| Err(ControlError::Invalid(reason));
    if address.port != 1 {
        return refuse("the port of the address vector must be 1");
    }
    let Some(source) = device.gids.get(usize::from(address.sgid_index)) else {
        return refuse("sgid_index names no GID of the device");
    };
    let (src, dst) = (source.ip(), address.dgid.ip());
    if dst.is_unspecified() || dst == IpAddr::from([255; 4]) {
        return refuse("dgid is not a unicast address");
    }
    // Groups are names, whatever their form.
    if src.is_ipv4() != dst.is_ipv4() && !dst.is_multicast() {
        return refuse("dgid and the GID at sgid_index are of different address families");
    }
    if address.flow_label >= 1 << 20 {
        return refuse("flow_label is longer than 20 bits");
    }
    Ok(())
}

/// Copies the attributes named by `mask`.
pub(crate) fn apply(attr: &mut QpAttr, mask: Mask, new: &QpAttr) {
    macro_rules! take {
        ($($bit:ident $field:ident),* $(,)?) => { $(if mask.contains(Mask::$bit) { attr.$field = new.$field; })* };
    }
    take!(
        EN_SQD_ASYNC_NOTIFY sqd_async_notify,
        ACCESS_FLAGS access,
        PKEY_INDEX pkey_index,
        PORT port,
        QKEY qkey,
        AV address,
        PATH_MTU path_mtu,
        TIMEOUT timeout,
        RETRY_CNT retry_cnt,
        RNR_RETRY rnr_retry,
        RQ_PSN rq_psn,
        MAX_QP_RD_ATOMIC max_rd_atomic,
        MIN_RNR_TIMER min_rnr_timer,
        SQ_PSN sq_psn,
        MAX_DEST_RD_ATOMIC max_dest_rd_atomic,
        DEST_QPN dest_qpn,
    );
}
