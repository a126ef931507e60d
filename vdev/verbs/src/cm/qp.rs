//! Queue pairs of ids: made with completion queues where the program brings none, and moved through their states with what
//! both sides have said.

use super::abi::{UDP_QKEY, rdma_cm_id};
use super::event::ah_attr;
use super::id::{Connection, Id, QPT_UD};
use super::result;
use crate::abi::codes::{access, qp_state};
use crate::abi::device::ibv_context;
use crate::abi::extended::{ibv_qp_init_attr_ex, qp_init};
use crate::abi::object::{ibv_comp_channel, ibv_cq, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr};
use crate::channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::connection::Errno;
use crate::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::foreign::minus_one;
use crate::qp::{ibv_create_qp, ibv_destroy_qp, ibv_modify_qp};
use crate::qp_ex::create_qp_ex;
use core::ffi::{c_int, c_void};
use core::ptr;

const INIT: u32 = 1;
const RTR: u32 = 2;

/// `enum ibv_qp_attr_mask`.
mod mask {
    pub const STATE: u32 = 1;
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_CNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const DEST_QPN: u32 = 1 << 20;
    /// Only where a queue pair keeps count of what it sends and receives: not with an unreliable connection.
    pub const RELIABLE_RTR: u32 = MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
    pub const RELIABLE_RTS: u32 = TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC;
}

/// Time that a sender is asked to wait when no receive is posted, if it will ask for ever: 0.64 ms.
const SHORT_RNR_TIMER: u8 = 12;
/// The same for one that gives up after some times: 655 ms, as from the kernel's connection manager. Programs choose their number of
/// times with that in mind, and on a busy machine a receive may come many milliseconds late.
const LONG_RNR_TIMER: u8 = 0;
/// `rnr_retry_count`: for ever.
const FOR_EVER: u8 = 7;

/// Whether the id is for datagrams.
pub fn is_datagram(id: &Id) -> bool {
    // SAFETY: the C part is live.
    unsafe { (*id.c()).qp_type == QPT_UD }
}

/// Whether the program has made a queue pair for the id.
pub fn has_one(id: &Id) -> bool {
    // SAFETY: the C part is live.
    unsafe { !(*id.c()).qp.is_null() }
}

/// Attributes for a change to a state, with their mask.
///
/// # Errors
/// `EINVAL` if the state is none of INIT, RTR and RTS, or not enough is known yet.
pub fn attributes(id: &Id, state: u32) -> Result<(ibv_qp_attr, u32), Errno> {
    let mut attr = ibv_qp_attr { qp_state: state, port_num: 1, ..ibv_qp_attr::default() };
    if is_datagram(id) {
        let wanted = match state {
            INIT => {
                attr.qkey = UDP_QKEY;
                mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::QKEY
            }
            RTR => mask::STATE,
            qp_state::RTS => mask::STATE | mask::SQ_PSN,
            _ => return Err(Errno(libc::EINVAL)),
        };
        return Ok((attr, wanted));
    }
    if state == INIT {
        // What the peer may do is said once it is known who it is.
        return Ok((attr, mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS));
    }
    let connection = id.state().connection.ok_or(Errno(libc::EINVAL))?;
    let Connection { peer, ours, theirs: Some(theirs), is_passive } = connection else { return Err(Errno(libc::EINVAL)) };
    match state {
        RTR => {
            attr.ah_attr = ah_attr(id, &peer);
            attr.path_mtu = u32::from(peer.path_mtu);
            attr.dest_qp_num = theirs.qpn;
            attr.rq_psn = ours.starting_psn;
            attr.max_dest_rd_atomic = ours.responder_resources;
            // What was offered says how often the peer will try.
            let tries_for_ever = ours.rnr_retry_count == FOR_EVER;
            attr.min_rnr_timer = if tries_for_ever { SHORT_RNR_TIMER } else { LONG_RNR_TIMER };
            attr.qp_access_flags = access::REMOTE_WRITE;
            let mut wanted = mask::STATE | mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN | mask::ACCESS_FLAGS;
            if !peer.unreliable {
                wanted |= mask::RELIABLE_RTR;
                if ours.responder_resources > 0 {
                    attr.qp_access_flags |= access::REMOTE_READ | access::REMOTE_ATOMIC;
                }
            }
            Ok((attr, wanted))
        }
        qp_state::RTS => {
            attr.sq_psn = theirs.starting_psn;
            attr.timeout = peer.ack_timeout;
            attr.retry_cnt = if is_passive { theirs.retry_count } else { ours.retry_count };
            attr.rnr_retry = theirs.rnr_retry_count;
            attr.max_rd_atomic = ours.initiator_depth;
            Ok((attr, mask::STATE | mask::SQ_PSN | if peer.unreliable { 0 } else { mask::RELIABLE_RTS }))
        }
        _ => Err(Errno(libc::EINVAL)),
    }
}

fn modify(qp: *mut ibv_qp, mut attr: ibv_qp_attr, wanted: u32) -> Result<(), Errno> {
    // SAFETY: the queue pair of a live id.
    match unsafe { ibv_modify_qp(qp, &mut attr, wanted.cast_signed()) } {
        0 => Ok(()),
        error => Err(Errno(error)),
    }
}

fn modify_to(id: &Id, qp: *mut ibv_qp, state: u32) -> Result<(), Errno> {
    let (attr, wanted) = attributes(id, state)?;
    modify(qp, attr, wanted)
}

/// Connects the id's queue pair, if it has one: RTR, RTS.
///
/// # Errors
/// Those of `ibv_modify_qp`.
pub fn connect(id: &Id) -> Result<(), Errno> {
    // SAFETY: the C part is live.
    let qp = unsafe { (*id.c()).qp };
    if qp.is_null() {
        return Ok(());
    }
    modify_to(id, qp, RTR)?;
    modify_to(id, qp, qp_state::RTS)
}

/// Moves the id's queue pair, if it has one, to the error state, so that what is posted is flushed.
pub fn fail(id: &Id) {
    // SAFETY: the C part is live.
    let qp = unsafe { (*id.c()).qp };
    if !qp.is_null() && !is_datagram(id) {
        // It is in the error state already, or cannot be used any more.
        let _ = modify(qp, ibv_qp_attr { qp_state: qp_state::ERR, ..ibv_qp_attr::default() }, mask::STATE);
    }
}

/// One completion queue with its channel.
unsafe fn make_queue(
    context: *mut ibv_context,
    depth: u32,
    id: *mut rdma_cm_id,
) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), Errno> {
    let errno = || Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
    // SAFETY: the context is that of a device of ours.
    unsafe {
        let channel = ibv_create_comp_channel(context);
        if channel.is_null() {
            return Err(errno());
        }
        let cq = ibv_create_cq(context, c_int::try_from(depth.max(1)).unwrap_or(c_int::MAX), id.cast(), channel, 0);
        if cq.is_null() {
            let error = errno();
            ibv_destroy_comp_channel(channel);
            return Err(error);
        }
        Ok((channel, cq))
    }
}

/// Ends the completion queues that an id shows with their channels: those that were made for it, or that the program has put there,
/// where one may serve both directions.
unsafe fn end_queues(id: *mut rdma_cm_id) {
    // SAFETY: queues and channels that an id shows are live.
    unsafe {
        let send = (
            ptr::replace(&raw mut (*id).send_cq, ptr::null_mut()),
            ptr::replace(&raw mut (*id).send_cq_channel, ptr::null_mut()),
        );
        let recv = (
            ptr::replace(&raw mut (*id).recv_cq, ptr::null_mut()),
            ptr::replace(&raw mut (*id).recv_cq_channel, ptr::null_mut()),
        );
        for (cq, channel) in [Some(recv), (send.0 != recv.0).then_some(send)].into_iter().flatten() {
            if !cq.is_null() {
                ibv_destroy_cq(cq);
            }
            if !channel.is_null() && (ptr::eq(cq, recv.0) || channel != recv.1) {
                ibv_destroy_comp_channel(channel);
            }
        }
    }
}

/// Makes the queue pair of an id with `make`, which is given the domain.
///
/// # Safety
/// The id is live, and the attributes valid.
pub unsafe fn create(
    id: &Id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
    make: impl FnOnce(*mut ibv_pd) -> *mut ibv_qp,
) -> Result<(), Errno> {
    if attr.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    let c = id.c();
    // SAFETY: per contract.
    unsafe {
        if !(*c).qp.is_null() || (*c).verbs.is_null() || (*attr).qp_type == QPT_UD && !is_datagram(id) {
            return Err(Errno(libc::EINVAL));
        }
        let pd = if pd.is_null() { (*c).pd } else { pd };
        if pd.is_null() || (*pd).context != (*c).verbs {
            return Err(Errno(libc::EINVAL));
        }
        if (*attr).send_cq.is_null() && (*c).send_cq.is_null() {
            ((*c).send_cq_channel, (*c).send_cq) = make_queue((*c).verbs, (*attr).cap.max_send_wr, c)?;
        }
        if (*attr).recv_cq.is_null() && (*c).recv_cq.is_null() {
            match make_queue((*c).verbs, (*attr).cap.max_recv_wr, c) {
                Ok(made) => ((*c).recv_cq_channel, (*c).recv_cq) = made,
                Err(error) => {
                    end_queues(c);
                    return Err(error);
                }
            }
        }
        if (*attr).send_cq.is_null() {
            (*attr).send_cq = (*c).send_cq;
        }
        if (*attr).recv_cq.is_null() {
            (*attr).recv_cq = (*c).recv_cq;
        }
        if (*attr).srq.is_null() {
            (*attr).srq = (*c).srq;
        }
        let qp = make(pd);
        if qp.is_null() {
            let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
            end_queues(c);
            return Err(Errno(error));
        }
        let mut ready = modify_to(id, qp, INIT);
        if is_datagram(id) {
            ready = ready.and_then(|()| modify_to(id, qp, RTR)).and_then(|()| modify_to(id, qp, qp_state::RTS));
        }
        if let Err(error) = ready {
            ibv_destroy_qp(qp);
            end_queues(c);
            return Err(error);
        }
        (*c).qp_type = (*attr).qp_type;
        (*c).pd = pd;
        (*c).qp = qp;
    }
    Ok(())
}

/// Ends the queue pair of an id, and the completion queues that were made with it.
///
/// # Safety
/// The id is live.
pub unsafe fn destroy(id: &Id) {
    let c = id.c();
    // SAFETY: per contract; what an id shows is live.
    unsafe {
        let qp = ptr::replace(&raw mut (*c).qp, ptr::null_mut());
        if !qp.is_null() {
            ibv_destroy_qp(qp);
            end_queues(c);
        }
    }
}

unsafe fn init_attr(id: &Id, attr: *mut ibv_qp_attr, wanted: *mut c_int) -> Result<(), Errno> {
    if attr.is_null() || wanted.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: the caller's structs.
    unsafe {
        let (found, bits) = attributes(id, (*attr).qp_state)?;
        attr.write(found);
        wanted.write(bits.cast_signed());
    }
    Ok(())
}

calls! {
    /// Makes the queue pair of an id. Completion queues that are not given are made with it.
    fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> c_int,
        => {
            result(Id::of(id).and_then(|id| create(id, pd, attr, |pd| ibv_create_qp(pd, attr))))
        } else minus_one(libc::ENODEV);

    /// The same with extended attributes.
    fn rdma_create_qp_ex(id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> c_int,
        => {
            result(Id::of(id).and_then(|own| {
                if attr.is_null() {
                    return Err(Errno(libc::EINVAL));
                }
                let pd = if (*attr).comp_mask & qp_init::PD == 0 { ptr::null_mut() } else { (*attr).pd };
                create(own, pd, attr.cast(), |pd| {
                    (*attr).pd = pd;
                    (*attr).comp_mask |= qp_init::PD;
                    create_qp_ex((*id).verbs, attr)
                })
            }))
        } else minus_one(libc::ENODEV);

    /// Ends the queue pair of an id.
    fn rdma_destroy_qp(id: *mut rdma_cm_id) -> (),
        => {
            if let Ok(id) = Id::of(id) {
                destroy(id);
            }
        } else ();

    /// The attributes with which a program moves a queue pair of its own to the state that it names.
    fn rdma_init_qp_attr(id: *mut rdma_cm_id, attr: *mut ibv_qp_attr, mask: *mut c_int) -> c_int,
        => { result(Id::of(id).and_then(|id| init_attr(id, attr, mask))) } else minus_one(libc::ENODEV);

    /// Our devices offer no enhancements of connections.
    fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut c_void) -> c_int,
        => {
            let _ = (id, ece);
            minus_one(libc::EOPNOTSUPP)
        } else minus_one(libc::ENODEV);

    /// See `rdma_set_local_ece`.
    fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut c_void) -> c_int,
        => {
            let _ = (id, ece);
            minus_one(libc::EOPNOTSUPP)
        } else minus_one(libc::ENODEV);
}
