//! Functions in the place of the real library's: those that open devices, and make, change and end queues.
//!
//! Queues are made longer than the program asked for, for further pieces, and tell it the lengths that it asked for. Send queues
//! complete silently by default, whatever the program asked for: the engine asks for what it wants to see.

use core::ffi::{CStr, c_int, c_void};
use core::mem;
use std::sync::PoisonError;

use super::engine::Made;
use super::{Provider, Shaper, bind_mw, extended, poll_cq, post_send, shaper};
use crate::abi::codes::{QPT_RC, QPT_XRC_RECV, qp_mask, qp_state};
use crate::abi::device::{ibv_context, ibv_device};
use crate::abi::object::{ibv_comp_channel, ibv_cq, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr};
use crate::context::lock;
use crate::device::log;
use crate::foreign::{Real, null};

/// Further places of each send queue and each completion queue.
pub const FURTHER: u32 = 1024;

/// The function that stands in for the real library's with this name.
pub fn stand_in(name: &CStr) -> Option<*mut c_void> {
    Some(match name.to_bytes() {
        b"ibv_open_device" => open_device as *mut c_void,
        b"ibv_close_device" => close_device as *mut c_void,
        b"ibv_create_cq" => create_cq as *mut c_void,
        b"ibv_resize_cq" => resize_cq as *mut c_void,
        b"ibv_destroy_cq" => destroy_cq as *mut c_void,
        b"ibv_create_qp" => create_qp as *mut c_void,
        b"ibv_modify_qp" => modify_qp as *mut c_void,
        b"ibv_query_qp" => query_qp as *mut c_void,
        b"ibv_destroy_qp" => destroy_qp as *mut c_void,
        _ => return None,
    })
}

/// Calls the real library's function, or answers as if the arguments were wrong.
macro_rules! real {
    ($name:literal($($arg:ident: $type:ty),*) -> $result:ty, else $missing:expr) => {{
        static REAL: Real = Real::new($name);
        match REAL.get() {
            Some(real) => mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $result>(real)($($arg),*),
            None => $missing,
        }
    }};
}

/// Takes the place of a new device's functions.
///
/// # Safety
/// A live context of a foreign device that nobody else uses yet.
unsafe fn adopt(shaper: &Shaper, context: *mut ibv_context) {
    // SAFETY: per contract.
    unsafe {
        let newer = extended::adopt(context);
        let ops = &mut (*context).ops;
        let provider = Provider { post_send: ops.post_send, poll_cq: ops.poll_cq, bind_mw: ops.bind_mw, newer };
        shaper.providers.write().unwrap_or_else(PoisonError::into_inner).insert(context as usize, provider);
        ops.post_send = post_send;
        ops.poll_cq = poll_cq;
        ops.bind_mw = bind_mw;
    }
}

unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: the real function of this name has this signature; its context is new, and the name ends with a zero byte.
    unsafe {
        let context = real!(c"ibv_open_device"(device: *mut ibv_device) -> *mut ibv_context, else null(libc::EINVAL));
        let Some(shaper) = shaper().filter(|_| !context.is_null()) else { return context };
        let name = CStr::from_ptr((*device).name.as_ptr()).to_bytes();
        if shaper.shape.device.as_ref().is_none_or(|only| only.as_bytes() == name) {
            adopt(shaper, context);
        }
        context
    }
}

unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    if let Some(shaper) = shaper() {
        shaper.providers.write().unwrap_or_else(PoisonError::into_inner).remove(&(context as usize));
    }
    // SAFETY: the real function of this name has this signature.
    unsafe { real!(c"ibv_close_device"(context: *mut ibv_context) -> c_int, else libc::EINVAL) }
}

/// The shaper, if a device is shaped.
///
/// # Safety
/// A live object, whose first member is its context.
unsafe fn shaped<T>(object: *mut T) -> Option<(&'static Shaper, Provider)> {
    let shaper = shaper()?;
    // SAFETY: per contract.
    let context = unsafe { *object.cast::<*mut ibv_context>() };
    Some((shaper, shaper.provider(context)?))
}

unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    let create = |cqe: c_int| {
        // SAFETY: the real function of this name has this signature.
        unsafe {
            real!(c"ibv_create_cq"(context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void,
                channel: *mut ibv_comp_channel, vector: c_int) -> *mut ibv_cq, else null(libc::EINVAL))
        }
    };
    // A wrong length stays wrong.
    let Some(shaper) = shaper().filter(|shaper| shaper.provider(context).is_some() && cqe > 0) else { return create(cqe) };
    let (mut further, mut cq) = (FURTHER, create(cqe.saturating_add_unsigned(FURTHER)));
    if cq.is_null() {
        (further, cq) = (0, create(cqe));
    }
    if !cq.is_null() {
        lock(&shaper.engine).add_cq(cq as usize, further);
    }
    cq
}

/// The new length is the program's, so that there is no place for further pieces any more.
unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    if let Some(shaper) = shaper() {
        let mut engine = lock(&shaper.engine);
        if engine.knows_cq(cq as usize) {
            engine.add_cq(cq as usize, 0);
        }
    }
    // SAFETY: the real function of this name has this signature.
    unsafe { real!(c"ibv_resize_cq"(cq: *mut ibv_cq, cqe: c_int) -> c_int, else libc::EINVAL) }
}

unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the real function of this name has this signature.
    let code = unsafe { real!(c"ibv_destroy_cq"(cq: *mut ibv_cq) -> c_int, else libc::EINVAL) };
    if let (0, Some(shaper)) = (code, shaper()) {
        lock(&shaper.engine).remove_cq(cq as usize);
        shaper.extended.forget(cq as usize);
    }
    code
}

/// Makes a queue pair by `create`, which is given attributes for a longer send queue than the program asked for; they come back with
/// what the program is to see. Whether the queue pair is shaped is the second answer.
///
/// # Safety
/// `attr` is valid, and `create` makes a queue pair of the device.
pub unsafe fn make(
    shaper: &Shaper,
    provider: &Provider,
    attr: &mut ibv_qp_init_attr,
    mut create: impl FnMut(&mut ibv_qp_init_attr) -> *mut ibv_qp,
) -> (*mut ibv_qp, bool) {
    if attr.qp_type == QPT_XRC_RECV || !lock(&shaper.engine).knows_cq(attr.send_cq as usize) {
        return (create(attr), false);
    }
    let (asked, mut further) = (*attr, FURTHER);
    (attr.sq_sig_all, attr.cap.max_send_wr) = (0, asked.cap.max_send_wr.saturating_add(further));
    let mut qp = create(attr);
    if qp.is_null() {
        (*attr, further) = (asked, 0);
        attr.sq_sig_all = 0;
        qp = create(attr);
    }
    attr.sq_sig_all = asked.sq_sig_all;
    if qp.is_null() {
        *attr = asked;
        return (qp, false);
    }
    attr.cap.max_send_wr = attr.cap.max_send_wr.saturating_sub(further);
    let made = Made {
        post: provider.post_send,
        fail,
        cq: attr.send_cq as usize,
        depth: attr.cap.max_send_wr,
        further,
        max_sge: attr.cap.max_send_sge,
        max_inline: attr.cap.max_inline_data,
        splits: attr.qp_type == QPT_RC,
        signals_all: asked.sq_sig_all != 0,
    };
    let is_shaped = lock(&shaper.engine).add_queue(qp, made);
    (qp, is_shaped)
}

unsafe extern "C" fn create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    let create = |attr: *mut ibv_qp_init_attr| {
        // SAFETY: the real function of this name has this signature.
        unsafe { real!(c"ibv_create_qp"(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp, else null(libc::EINVAL)) }
    };
    // SAFETY: the C interface demands a live domain and valid attributes.
    let (shaped, attr) = unsafe { (shaped(pd), attr.as_mut()) };
    match (shaped, attr) {
        (Some((shaper, provider)), Some(attr)) => {
            // SAFETY: as above.
            let (qp, is_shaped) = unsafe { make(shaper, &provider, attr, |attr| create(attr)) };
            if !qp.is_null() && !is_shaped {
                log(format_args!("a queue pair whose completion queue is not known is not shaped"));
            }
            qp
        }
        (_, attr) => create(attr.map_or(core::ptr::null_mut(), |attr| attr)),
    }
}

unsafe fn real_modify(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the real function of this name has this signature.
    unsafe { real!(c"ibv_modify_qp"(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int, else libc::EINVAL) }
}

/// Moves a queue pair to the error state.
unsafe fn fail(qp: *mut ibv_qp) {
    let mut attr = ibv_qp_attr { qp_state: qp_state::ERR, ..ibv_qp_attr::default() };
    // SAFETY: a live queue pair and valid attributes.
    unsafe { real_modify(qp, &mut attr, qp_mask::STATE as c_int) };
}

unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the C interface demands a live queue pair.
    let Some((shaper, _)) = (unsafe { shaped(qp) }) else {
        // SAFETY: the caller's arguments.
        return unsafe { real_modify(qp, attr, mask) };
    };
    // Nothing may be posted between the change and what follows from it.
    let mut engine = lock(&shaper.engine);
    // SAFETY: the caller's arguments; the interface demands valid attributes.
    let (code, state) = unsafe { (real_modify(qp, attr, mask), attr.as_ref().map(|attr| attr.qp_state)) };
    if code == 0 && mask as u32 & qp_mask::STATE != 0 {
        match state {
            Some(qp_state::RESET) => engine.reset(qp),
            Some(qp_state::RTS) => engine.recover(qp),
            Some(qp_state::ERR) => engine.push_through(qp, true),
            _ => {}
        }
    }
    code
}

unsafe extern "C" fn query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr) -> c_int {
    // SAFETY: the real function of this name has this signature; the caller's attributes are filled by it.
    unsafe {
        let code = real!(c"ibv_query_qp"(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr) -> c_int,
            else libc::EINVAL);
        let made = shaped(qp).and_then(|(shaper, _)| lock(&shaper.engine).made(qp));
        if let (0, Some(made)) = (code, made) {
            (*attr).cap.max_send_wr = made.depth;
            (*init).cap.max_send_wr = made.depth;
            (*init).sq_sig_all = c_int::from(made.signals_all);
        }
        code
    }
}

unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the C interface demands a live queue pair.
    let made = unsafe { shaped(qp) }.and_then(|(shaper, _)| Some((shaper, lock(&shaper.engine).remove_queue(qp)?)));
    // SAFETY: the real function of this name has this signature.
    let code = unsafe { real!(c"ibv_destroy_qp"(qp: *mut ibv_qp) -> c_int, else libc::EINVAL) };
    match (code, made, shaper()) {
        (0, _, Some(shaper)) => shaper.extended.forget(qp as usize),
        // Still there.
        (_, Some((shaper, made)), _) => _ = lock(&shaper.engine).add_queue(qp, made),
        _ => {}
    }
    code
}
