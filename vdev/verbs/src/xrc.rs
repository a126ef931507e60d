//! Extended reliable connections: domains, the shared receive queues that requests name, and the queue pairs that take requests.
//!
//! The queue pairs that send them are made and posted to as others are ([`crate::qp`], [`crate::post`]). All of this is called through
//! the context. That a domain is in use, the daemon knows: what this process has made of it, and what others have.

use crate::abi::codes::QPT_XRC_RECV;
use crate::abi::device::ibv_context;
use crate::abi::extended::{
    SRQT_BASIC, SRQT_XRC, XRCD_INIT_ALL, ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_srq_init_attr_ex, ibv_xrcd,
    ibv_xrcd_init_attr, qp_open, srq_init,
};
use crate::abi::object::{ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_srq};
use crate::connection::{Errno, unexpected};
use crate::context::Context;
use crate::cq::Cq;
use crate::foreign::{code, own_object, pointer};
use crate::srq::Srq;
use crate::{qp, srq};
use core::ffi::{c_int, c_void};
use core::ptr;
use std::sync::atomic::Ordering;
use vdev_abi::control::{Reply, Request};

const INVALID: Errno = Errno(libc::EINVAL);

/// A domain of extended reliable connections.
#[repr(C)]
struct Xrcd {
    ibv: ibv_xrcd,
    handle: u32,
}

/// The daemon's number of a domain that a program names, if it is one of this context.
///
/// # Safety
/// `xrcd` is null or live.
unsafe fn handle_of(context: *mut ibv_context, xrcd: *mut ibv_xrcd) -> Result<u32, Errno> {
    // SAFETY: per contract; the C struct is the first member.
    unsafe { if own_object(xrcd) && (*xrcd).context == context { Ok((*xrcd.cast::<Xrcd>()).handle) } else { Err(INVALID) } }
}

/// # Safety
/// The context is live and ours.
unsafe fn open(context: *mut ibv_context, attr: &ibv_xrcd_init_attr) -> Result<*mut ibv_xrcd, Errno> {
    if attr.comp_mask & !XRCD_INIT_ALL != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    if attr.comp_mask != XRCD_INIT_ALL {
        return Err(INVALID);
    }
    // SAFETY: per contract.
    let ours = unsafe { Context::of(context) };
    let fds = if attr.fd == -1 { &[][..] } else { &[attr.fd][..] };
    // SAFETY: it only asks whether there is such a descriptor.
    if fds.iter().any(|&fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0) {
        return Err(Errno(libc::EBADF));
    }
    let (create, exclusive) = (attr.oflags & libc::O_CREAT != 0, attr.oflags & libc::O_EXCL != 0);
    let request = Request::OpenXrcd { create, exclusive };
    match ours.call(&request, fds)? {
        (Reply::Handle(handle), _) => {
            ours.users.fetch_add(1, Ordering::AcqRel);
            Ok(Box::into_raw(Box::new(Xrcd { ibv: ibv_xrcd { context }, handle })).cast())
        }
        (other, _) => Err(unexpected(&request, &other)),
    }
}

/// `ibv_open_xrcd`.
///
/// # Safety
/// The context is live and ours, and the attributes null or valid.
pub unsafe extern "C" fn open_xrcd(context: *mut ibv_context, attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd {
    // SAFETY: per contract.
    pointer(unsafe { attr.as_ref().ok_or(INVALID).and_then(|attr| open(context, attr)) })
}

/// `ibv_close_xrcd`; `EBUSY` while what this process has made of it lives.
///
/// # Safety
/// The domain is live and ours.
pub unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: per contract.
    let (context, handle) = unsafe { (Context::of((*xrcd).context), (*xrcd.cast::<Xrcd>()).handle) };
    code(context.call_done(&Request::CloseXrcd { xrcd: handle }).map(|()| {
        context.users.fetch_sub(1, Ordering::AcqRel);
        // SAFETY: `open` made it as a box, and the program gives it up.
        drop(unsafe { Box::from_raw(xrcd.cast::<Xrcd>()) });
    }))
}

/// # Safety
/// The context is live and ours, and the objects in the attributes are live.
unsafe fn create_srq(context: *mut ibv_context, attr: &mut ibv_srq_init_attr_ex) -> Result<*mut ibv_srq, Errno> {
    let mask = attr.comp_mask;
    if mask & !srq_init::KNOWN != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    // SAFETY: per contract.
    if mask & srq_init::PD == 0 || !unsafe { own_object(attr.pd) && (*attr.pd).context == context } {
        return Err(INVALID);
    }
    match if mask & srq_init::TYPE != 0 { attr.srq_type } else { SRQT_BASIC } {
        // SAFETY: per contract; the attributes begin as the plain ones do.
        SRQT_BASIC => return unsafe { srq::create(attr.pd, ptr::from_mut(attr).cast()) },
        SRQT_XRC => {}
        _ => return Err(Errno(libc::EOPNOTSUPP)),
    }
    if mask & srq_init::XRCD == 0 || mask & srq_init::CQ == 0 {
        return Err(INVALID);
    }
    // SAFETY: per contract.
    let (xrcd, cq) = unsafe {
        if !own_object(attr.cq) || (*attr.cq).context != context {
            return Err(INVALID);
        }
        (handle_of(context, attr.xrcd)?, Cq::of(attr.cq).handle())
    };
    // SAFETY: per contract.
    let (ours, pd) = unsafe { (Context::of(context), (*attr.pd).handle) };
    let cookie = ours.new_cookie();
    let (max_wr, max_sge) = (attr.attr.max_wr, attr.attr.max_sge);
    let request = Request::CreateXrcSrq { pd, xrcd, cq, max_wr, max_sge, cookie };
    // SAFETY: per contract, and found to be ours.
    unsafe { srq::give(ours, attr.pd, attr.srq_context, &mut attr.attr, &request, cookie, attr.cq) }
}

/// `ibv_create_srq_ex`.
///
/// # Safety
/// The context is live and ours, and the attributes null or valid.
pub unsafe extern "C" fn create_srq_ex(context: *mut ibv_context, attr: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq {
    // SAFETY: per contract.
    pointer(unsafe { attr.as_mut().ok_or(INVALID).and_then(|attr| create_srq(context, attr)) })
}

/// `ibv_get_srq_num`; `EINVAL` for a queue that no request can name.
///
/// # Safety
/// The queue is live and ours, and `number` null or writable.
pub unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: per contract.
    let (found, number) = unsafe { (Srq::of(srq).number(), number.as_mut()) };
    code(found.zip(number).map(|(found, number)| *number = found).ok_or(INVALID))
}

/// The queue pair that takes requests, for the program.
fn give_target(context: &Context, qp_context: *mut c_void, request: &Request, cookie: u64) -> Result<*mut ibv_qp, Errno> {
    let nothing = ibv_qp_init_attr {
        qp_context,
        send_cq: ptr::null_mut(),
        recv_cq: ptr::null_mut(),
        srq: ptr::null_mut(),
        cap: ibv_qp_cap::default(),
        qp_type: QPT_XRC_RECV,
        sq_sig_all: 0,
    };
    qp::give(context, &nothing, ptr::null_mut(), request, cookie, false).map(|(qp, _)| qp)
}

/// Makes the queue pair that takes requests; of the attributes, the domain and the program's own value count.
///
/// # Safety
/// The context is live and ours, and the domain null or live.
pub unsafe fn create_target(context: *mut ibv_context, wanted: &ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: per contract.
    let (ours, xrcd) = unsafe { (Context::of(context), handle_of(context, wanted.xrcd)?) };
    let cookie = ours.new_cookie();
    give_target(ours, wanted.qp_context, &Request::CreateXrcTarget { xrcd, cookie }, cookie)
}

/// # Safety
/// The context is live and ours, and the domain null or live.
unsafe fn open_target(context: *mut ibv_context, wanted: &ibv_qp_open_attr) -> Result<*mut ibv_qp, Errno> {
    let mask = wanted.comp_mask;
    if mask & !qp_open::KNOWN != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    if mask & qp_open::REQUIRED != qp_open::REQUIRED || wanted.qp_type != QPT_XRC_RECV {
        return Err(INVALID);
    }
    // SAFETY: per contract.
    let (ours, xrcd) = unsafe { (Context::of(context), handle_of(context, wanted.xrcd)?) };
    let cookie = ours.new_cookie();
    let qp_context = if mask & qp_open::CONTEXT != 0 { wanted.qp_context } else { ptr::null_mut() };
    give_target(ours, qp_context, &Request::OpenXrcTarget { xrcd, qpn: wanted.qp_num, cookie }, cookie)
}

/// `ibv_open_qp`: another handle of a queue pair that takes requests, which another process may have made.
///
/// # Safety
/// The context is live and ours, and the attributes null or valid.
pub unsafe extern "C" fn open_qp(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    // SAFETY: per contract.
    pointer(unsafe { attr.as_ref().ok_or(INVALID).and_then(|attr| open_target(context, attr)) })
}
