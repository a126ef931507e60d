//! Endpoints as `rdma_create_ep(3)` knows them: synchronous ids with all that belongs to them made in one call.

use super::abi::{event, rai, rdma_addrinfo, rdma_cm_id};
use super::id::{self, Id, PdPtr};
use super::{qp, result};
use crate::abi::object::{ibv_pd, ibv_qp_init_attr, ibv_srq_init_attr};
use crate::connection::Errno;
use crate::foreign::minus_one;
use core::ffi::{c_char, c_int, c_void};
use core::ptr;

/// As long as the library that programs know waits.
const RESOLVE_MS: c_int = 2000;

/// # Safety
/// The arguments are as `rdma_create_ep(3)` wants them.
unsafe fn create(
    to: *mut *mut rdma_cm_id,
    info: *const rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: per contract.
    let info = unsafe { info.as_ref() }.ok_or(Errno(libc::EINVAL))?;
    if to.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    super::devices::devices()?;
    let id = Id::create(ptr::null_mut(), ptr::null_mut(), info.ai_port_space.cast_unsigned())?;
    // SAFETY: per contract; the id was made just now.
    unsafe {
        match prepare(id, info, pd, attr) {
            Ok(()) => {
                to.write(id.c());
                Ok(())
            }
            Err(error) => {
                qp::destroy(id);
                id::destroy(id);
                Err(error)
            }
        }
    }
}

unsafe fn prepare(id: &Id, info: &rdma_addrinfo, pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> Result<(), Errno> {
    let done = |code: c_int| match code {
        0 => Ok(()),
        _ => Err(Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))),
    };
    // SAFETY: the caller's, see `create`.
    unsafe {
        (*id.c()).qp_type = info.ai_qp_type.cast_unsigned();
        if info.ai_flags & rai::PASSIVE != 0 {
            done(super::resolve::rdma_bind_addr(id.c(), info.ai_src_addr))?;
            if !attr.is_null() {
                let mut wanted = *attr;
                wanted.qp_type = info.ai_qp_type.cast_unsigned();
                id.state().queue_pair = Some((PdPtr(pd), wanted));
            }
            if !pd.is_null() {
                (*id.c()).pd = pd;
            }
            return Ok(());
        }
        done(super::resolve::rdma_resolve_addr(id.c(), info.ai_src_addr, info.ai_dst_addr, RESOLVE_MS))?;
        done(super::resolve::rdma_resolve_route(id.c(), RESOLVE_MS))?;
        if !attr.is_null() {
            (*attr).qp_type = info.ai_qp_type.cast_unsigned();
            done(qp::rdma_create_qp(id.c(), pd, attr))?;
        }
        Ok(())
    }
}

/// # Safety
/// `to` is writable.
unsafe fn get_request(listener: &Id, to: *mut *mut rdma_cm_id) -> Result<(), Errno> {
    if to.is_null() || !listener.is_synchronous() {
        return Err(Errno(libc::EINVAL));
    }
    listener.drop_event();
    let event = super::event::next(listener.channel())?;
    // SAFETY: the event came just now, and its id is live.
    unsafe {
        if (*event).event != event::CONNECT_REQUEST {
            (*listener.c()).event = event;
            return Err(Errno(if (*event).status == 0 { libc::EINVAL } else { (*event).status.abs() }));
        }
        let id = (*event).id;
        let wanted = listener.state().queue_pair.as_ref().map(|(pd, attr)| (pd.0, *attr));
        if let Some((pd, mut attr)) = wanted {
            (*id).srq = (*listener.c()).srq;
            if qp::rdma_create_qp(id, pd, &mut attr) != 0 {
                let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
                super::event::acknowledge(event);
                id::destroy(Id::of(id)?);
                return Err(Errno(error));
            }
        }
        (*id).event = event;
        to.write(id);
    }
    Ok(())
}

calls! {
    /// Makes a synchronous id: bound, or with its route resolved, and with a queue pair.
    fn rdma_create_ep(id: *mut *mut rdma_cm_id, info: *mut rdma_addrinfo, pd: *mut ibv_pd,
        attr: *mut ibv_qp_init_attr) -> c_int,
        => { result(create(id, info, pd, attr)) } else minus_one(libc::ENODEV);

    /// Ends an id and its queue pair.
    fn rdma_destroy_ep(id: *mut rdma_cm_id) -> (),
        => {
            if let Ok(own) = Id::of(id) {
                qp::destroy(own);
                rdma_destroy_srq(id);
                id::destroy(own);
            }
        } else ();

    /// Waits for a request at a synchronous listener: a new id, with a queue pair if the listener was made with attributes for it.
    fn rdma_get_request(listener: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int,
        => {
            result(Id::of(listener).and_then(|listener| get_request(listener, id)))
        } else minus_one(libc::ENODEV);

    /// Makes the shared receive queue of an id.
    fn rdma_create_srq(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> c_int,
        => {
            if id.is_null() || !(*id).srq.is_null() || (pd.is_null() && (*id).pd.is_null()) {
                return minus_one(libc::EINVAL);
            }
            let pd = if pd.is_null() { (*id).pd } else { pd };
            let srq = crate::srq::ibv_create_srq(pd, attr);
            if srq.is_null() {
                return -1;
            }
            (*id).srq = srq;
            0
        } else minus_one(libc::ENODEV);

    /// Shared receive queues of the extended kinds do not exist here.
    fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut c_void) -> c_int,
        => {
            let _ = (id, attr);
            minus_one(libc::EOPNOTSUPP)
        } else minus_one(libc::ENODEV);

    /// Ends the shared receive queue of an id.
    fn rdma_destroy_srq(id: *mut rdma_cm_id) -> (),
        => {
            let srq = if id.is_null() { ptr::null_mut() } else { ptr::replace(&raw mut (*id).srq, ptr::null_mut()) };
            if !srq.is_null() {
                crate::srq::ibv_destroy_srq(srq);
            }
        } else ();

    /// Names are resolved by the program, with `rdma_getaddrinfo`.
    fn rdma_resolve_addrinfo(id: *mut rdma_cm_id, node: *const c_char, service: *const c_char,
        hints: *const rdma_addrinfo) -> c_int,
        => {
            let _ = (id, node, service, hints);
            minus_one(libc::EOPNOTSUPP)
        } else minus_one(libc::ENODEV);

    /// See `rdma_resolve_addrinfo`.
    fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int,
        => {
            let _ = (id, info);
            minus_one(libc::EOPNOTSUPP)
        } else minus_one(libc::ENODEV);

    /// Programs cannot make events of their own.
    fn rdma_write_cm_event(id: *mut rdma_cm_id, event: u32, status: c_int, value: u64) -> c_int,
        => {
            let _ = (id, event, status, value);
            minus_one(libc::EOPNOTSUPP)
        } else minus_one(libc::ENODEV);
}
