//! Memory windows: remote keys of parts of regions, bound and taken back by requests of a queue pair.
//!
//! `ibv_bind_mw` posts a request like any other and tells the new key at once; whether it may be used shows when the request completes.

use crate::abi::codes::{MW_TYPE_1, access, wr as opcode};
use crate::abi::object::{ibv_mw, ibv_pd, ibv_qp};
use crate::abi::work::{ibv_mw_bind, ibv_send_wr};
use crate::connection::{Errno, unexpected};
use crate::context::Context;
use crate::domain::Pd;
use crate::foreign::{code, null, own_object, pointer};
use crate::post::post_send;
use core::ffi::{c_int, c_uint};
use core::ptr;
use std::sync::atomic::Ordering;
use vdev_abi::control::{Reply, Request};
use vdev_abi::layout::WindowBinding;

const INVALID: Errno = Errno(libc::EINVAL);

/// # Safety
/// The domain is live and ours.
unsafe fn alloc(pd: *mut ibv_pd, kind: c_uint) -> Result<*mut ibv_mw, Errno> {
    // SAFETY: per contract.
    let (context, domain) = unsafe { (Context::of((*pd).context), Pd::of(pd)) };
    let request = Request::AllocMw { pd: domain.handle(), kind };
    let (reply, _) = context.call(&request, &[])?;
    let Reply::Window { mw: handle, rkey } = reply else { return Err(unexpected(&request, &reply)) };
    context.users.fetch_add(1, Ordering::AcqRel);
    domain.users.fetch_add(1, Ordering::AcqRel);
    Ok(Box::into_raw(Box::new(ibv_mw { context: context.as_ibv(), pd, rkey, handle, kind })))
}

/// `ibv_alloc_mw`, called through the context.
///
/// # Safety
/// The domain is live and ours.
pub unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw {
    // SAFETY: per contract.
    if unsafe { own_object(pd) } { pointer(unsafe { alloc(pd, kind) }) } else { null(libc::EINVAL) }
}

/// `ibv_dealloc_mw`, called through the context.
///
/// # Safety
/// The window is live and ours.
pub unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: per contract.
    if !unsafe { own_object(mw) } {
        return code(Err(INVALID));
    }
    // SAFETY: per contract; a domain is not ended while it has users.
    let (context, domain, handle) = unsafe { (Context::of((*mw).context), Pd::of((*mw).pd), (*mw).handle) };
    code(context.call_done(&Request::DeallocMw { mw: handle }).map(|()| {
        context.users.fetch_sub(1, Ordering::AcqRel);
        domain.users.fetch_sub(1, Ordering::AcqRel);
        // SAFETY: `alloc` made it as a box, and the program gives it up.
        drop(unsafe { Box::from_raw(mw) });
    }))
}

/// The next key of a window, as `ibv_inc_rkey` has it.
fn next_key(rkey: u32) -> u32 {
    rkey & !0xFF | rkey.wrapping_add(1) & 0xFF
}

/// # Safety
/// The queue pair is live and ours, and the rest null or valid.
unsafe fn bind(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *const ibv_mw_bind) -> Result<(), Errno> {
    // SAFETY: per contract.
    let valid = unsafe { own_object(mw) && (*mw).context == (*qp).context && (*mw).kind == MW_TYPE_1 && !bind.is_null() };
    if !valid {
        return Err(INVALID);
    }
    // SAFETY: per contract.
    let ibv_mw_bind { wr_id, send_flags, bind_info } = unsafe { *bind };
    if bind_info.mr.is_null() && bind_info.length != 0 || bind_info.mw_access_flags & access::ZERO_BASED != 0 {
        return Err(INVALID);
    }
    // SAFETY: a region is null or live. Parent domains stand for one and the same.
    let of_another_domain = unsafe {
        let domain = Pd::of((*mw).pd).handle();
        Pd::of((*qp).pd).handle() != domain || bind_info.mr.as_ref().is_some_and(|mr| Pd::of(mr.pd).handle() != domain)
    };
    if of_another_domain {
        return Err(Errno(libc::EPERM));
    }
    // SAFETY: per contract.
    let mw_rkey = next_key(unsafe { (*mw).rkey });
    let mut request =
        ibv_send_wr { wr_id, opcode: opcode::BIND_MW, send_flags, mw, mw_rkey, bind_info, ..ibv_send_wr::default() };
    let mut refused = ptr::null_mut();
    // SAFETY: a chain of one request.
    match unsafe { post_send(qp, &raw mut request, &raw mut refused) } {
        0 => {
            // SAFETY: per contract; programs bind a window in one thread at a time.
            unsafe { (*mw).rkey = mw_rkey };
            Ok(())
        }
        errno => Err(Errno(errno)),
    }
}

/// `ibv_bind_mw`, called through the context.
///
/// # Safety
/// The queue pair and the window are live and ours, and the attributes valid.
pub unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, attr: *mut ibv_mw_bind) -> c_int {
    // SAFETY: per contract.
    if unsafe { own_object(qp) } { code(unsafe { bind(qp, mw, attr) }) } else { code(Err(INVALID)) }
}

/// What a request binds a window to.
///
/// # Safety
/// Window and region are null or live.
pub unsafe fn binding(context: &Context, request: &ibv_send_wr) -> Result<WindowBinding, Errno> {
    let info = &request.bind_info;
    // SAFETY: per contract.
    let (mw, mr) = unsafe { (request.mw.as_ref(), info.mr.as_ref()) };
    let mw = mw.filter(|mw| mw.context == context.as_ibv()).ok_or(INVALID)?;
    if mr.is_some_and(|mr| mr.context != context.as_ibv()) {
        return Err(INVALID);
    }
    // That the program itself may write there is the region's affair, but programs say so.
    let flags = info.mw_access_flags & !access::OPTIONAL & !access::LOCAL_WRITE;
    if flags & !(access::REMOTE | access::ZERO_BASED) != 0 {
        return Err(INVALID);
    }
    Ok(WindowBinding {
        window: mw.rkey,
        rkey: request.mw_rkey,
        lkey: mr.map_or(0, |mr| mr.lkey),
        access: flags,
        addr: info.addr,
        length: info.length,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_round_within_their_last_byte() {
        assert_eq!([0x1234_5600, 0x1234_56FF].map(next_key), [0x1234_5601, 0x1234_5600]);
    }
}
