//! Multicast groups of datagram ids (`rdma_join_multicast(3)`): joining is the daemon's at once, and told by an event.

use super::abi::{UDP_QKEY, rdma_cm_id, rdma_ud_param};
use super::channel::Queued;
use super::event::ah_attr;
use super::id::Id;
use super::{address, qp, result};
use crate::connection::Errno;
use crate::foreign::minus_one;
use crate::qp::{ibv_attach_mcast, ibv_detach_mcast};
use core::ffi::{c_int, c_void};
use core::ptr;
use libc::sockaddr;
use vdev_abi::cm::{Address, Peer};

/// `struct rdma_cm_join_mc_attr_ex`.
#[repr(C)]
pub struct rdma_cm_join_mc_attr_ex {
    comp_mask: u32,
    join_flags: u32,
    addr: *const sockaddr,
}

/// `enum rdma_cm_join_mc_attr_mask`: address and flags, which both have to be given.
const MASK_ALL: u32 = 3;
/// `enum rdma_cm_mc_join_flags`.
const FULL_MEMBER: u32 = 0;
const SEND_ONLY: u32 = 1;
/// The queue pair number that stands for all of a group (IBA 9.6.1.4).
const GROUP_QPN: u32 = 0xFF_FFFF;

/// A group that an id has joined.
pub struct Membership {
    group: Address,
    /// Not only to send.
    receives: bool,
}

/// What is told of a join: where the group is, and the program's own value.
///
/// # Safety
/// The C part of the id is live.
pub unsafe fn joined(id: &Id, group: Address, context: *mut c_void) -> rdma_ud_param {
    let (local, traffic_class) = {
        let state = id.state();
        (state.local.map_or(group, |local| address::gid(local.ip())), state.traffic_class)
    };
    let path = Peer { local, remote: group, port: 0, unreliable: true, path_mtu: 0, ack_timeout: 0, traffic_class };
    let ah_attr = ah_attr(id, &path);
    rdma_ud_param { private_data: context, private_data_len: 0, ah_attr, qp_num: GROUP_QPN, qkey: UDP_QKEY }
}

/// The group that an address names, for a datagram id that has a device.
///
/// # Safety
/// The address is null or valid.
unsafe fn group_of(id: &Id, addr: *const sockaddr) -> Result<Address, Errno> {
    // SAFETY: per contract.
    let ip = unsafe { address::read(addr) }?.ip();
    if !ip.is_multicast() || !qp::is_datagram(id) || id.state().device.is_none() {
        return Err(Errno(libc::EINVAL));
    }
    Ok(address::gid(ip))
}

/// # Safety
/// The address is null or valid.
unsafe fn join(id: &Id, addr: *const sockaddr, flags: u32, context: *mut c_void) -> Result<(), Errno> {
    // SAFETY: per contract.
    let group = unsafe { group_of(id, addr) }?;
    if id.state().groups.iter().any(|membership| membership.group == group) {
        return Err(Errno(libc::EADDRINUSE));
    }
    // SAFETY: the C part is live, and so is its queue pair.
    let qp = unsafe { (*id.c()).qp };
    let receives = flags == FULL_MEMBER && !qp.is_null();
    if receives {
        // SAFETY: as above.
        done(unsafe { ibv_attach_mcast(qp, &group, 0) })?;
    }
    id.state().groups.push(Membership { group, receives });
    id.channel().queue(Queued::Joined { id: ptr::from_ref(id), group, context });
    id.complete()
}

/// # Safety
/// The address is null or valid.
unsafe fn leave(id: &Id, addr: *const sockaddr) -> Result<(), Errno> {
    // SAFETY: per contract.
    let group = unsafe { group_of(id, addr) }?;
    let membership = {
        let groups = &mut id.state().groups;
        let at = groups.iter().position(|membership| membership.group == group);
        groups.remove(at.ok_or(Errno(libc::EADDRNOTAVAIL))?)
    };
    // SAFETY: the C part is live, and so is its queue pair.
    let qp = unsafe { (*id.c()).qp };
    if membership.receives && !qp.is_null() {
        // SAFETY: as above.
        done(unsafe { ibv_detach_mcast(qp, &group, 0) })?;
    }
    Ok(())
}

fn done(code: c_int) -> Result<(), Errno> {
    if code == 0 { Ok(()) } else { Err(Errno(code)) }
}

calls! {
    /// Joins a group, to send and to receive.
    fn rdma_join_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr, context: *mut c_void) -> c_int,
        => { result(Id::of(id).and_then(|id| join(id, addr, FULL_MEMBER, context))) } else minus_one(libc::ENODEV);

    /// Joins a group, perhaps only to send.
    fn rdma_join_multicast_ex(id: *mut rdma_cm_id, attr: *mut rdma_cm_join_mc_attr_ex, context: *mut c_void) -> c_int,
        => {
            result(Id::of(id).and_then(|id| match attr.as_ref() {
                Some(attr) if attr.comp_mask == MASK_ALL && attr.join_flags <= SEND_ONLY => {
                    join(id, attr.addr, attr.join_flags, context)
                }
                _ => Err(Errno(libc::EINVAL)),
            }))
        } else minus_one(libc::ENODEV);

    /// Leaves a group.
    fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int,
        => { result(Id::of(id).and_then(|id| leave(id, addr))) } else minus_one(libc::ENODEV);
}
