//! Extended completion queues: read completion by completion and field by field, with the time of each.
//!
//! Every completion queue of ours is an extended one; `ibv_create_cq` only does not tell. From `ibv_start_poll` to `ibv_end_poll`
//! one thread holds the queue, as the completion at hand lies in the queue's own struct.

use crate::abi::device::ibv_context;
use crate::abi::extended::{cq_init, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr};
use crate::abi::work::ibv_wc;
use crate::clock::{monotonic_ns, realtime_ns};
use crate::connection::{Errno, GONE};
use crate::context::{Context, lock};
use crate::cq::{self, Cq};
use crate::foreign::{null, own_object, pointer};
use crate::poll::{found_nothing, take_one};
use core::ffi::{c_int, c_uint};
use core::ptr;

/// The completion at hand.
#[derive(Clone, Copy, Default)]
pub struct Current {
    wc: ibv_wc,
    /// When it was written, on the daemon's monotonic clock.
    timestamp_ns: u64,
}

/// The functions by which programs read a queue.
pub fn extend(cq: crate::abi::object::ibv_cq) -> ibv_cq_ex {
    ibv_cq_ex {
        cq,
        comp_mask: 0,
        status: 0,
        wr_id: 0,
        start_poll,
        next_poll,
        end_poll,
        read_opcode,
        read_vendor_err,
        read_byte_len,
        read_imm_data,
        read_qp_num,
        read_src_qp,
        read_wc_flags,
        read_slid,
        read_sl,
        read_dlid_path_bits,
        read_completion_ts,
        none: [ptr::null(); 3],
        read_completion_wallclock_ns,
    }
}

/// # Safety
/// The context is live and ours, and the attributes' objects are live.
unsafe fn create(context: *mut ibv_context, attr: &ibv_cq_init_attr_ex) -> Result<*mut ibv_cq_ex, Errno> {
    let ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain } = *attr;
    if comp_mask & !(cq_init::MASK_FLAGS | cq_init::MASK_PD) != 0 {
        return Err(Errno(libc::EINVAL));
    }
    let flags = if comp_mask & cq_init::MASK_FLAGS != 0 { flags } else { 0 };
    if wc_flags & !cq_init::WC_KNOWN != 0 || flags & !cq_init::SINGLE_THREADED != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    // A domain changes nothing here, but it has to be one of this device.
    // SAFETY: per contract.
    let same =
        unsafe { comp_mask & cq_init::MASK_PD == 0 || (own_object(parent_domain) && (*parent_domain).context == context) };
    // SAFETY: per contract.
    if !same || !(channel.is_null() || unsafe { (*channel).context == context }) {
        return Err(Errno(libc::EINVAL));
    }
    let number = |value: u32| c_int::try_from(value).map_err(|_| Errno(libc::EINVAL));
    // SAFETY: per contract.
    unsafe { cq::create(Context::of(context), number(cqe)?, cq_context, channel, number(comp_vector)?) }.map(|cq| cq.cast())
}

/// `ibv_create_cq_ex`, called through the context.
///
/// # Safety
/// The context is live and ours, and the attributes valid.
pub unsafe extern "C" fn create_cq_ex(context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    if attr.is_null() {
        return null(libc::EINVAL);
    }
    // SAFETY: per contract.
    pointer(unsafe { create(context, &*attr) })
}

/// Makes the next completion the one at hand; false if there is none. The caller holds the queue.
///
/// # Safety
/// The queue is live and ours.
unsafe fn advance(cq: *mut ibv_cq_ex) -> bool {
    // SAFETY: per contract.
    let (ours, context) = unsafe { (Cq::of(cq.cast()), Context::of((*cq).cq.context)) };
    let taken = take_one(context, &mut lock(ours.state()));
    let Some((wc, timestamp_ns)) = taken else { return false };
    // SAFETY: the caller holds the queue; programs read these two fields themselves, in the thread that polls.
    unsafe {
        *ours.current().get() = Current { wc, timestamp_ns };
        (&raw mut (*cq).status).write(wc.status);
        (&raw mut (*cq).wr_id).write(wc.wr_id);
    }
    true
}

/// # Safety
/// The queue is live and ours.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: per contract.
    let (ours, context) = unsafe { (Cq::of(cq.cast()), Context::of((*cq).cq.context)) };
    // SAFETY: per contract.
    if !attr.is_null() && unsafe { (*attr).comp_mask } != 0 {
        return libc::EINVAL;
    }
    ours.current().take();
    // SAFETY: per contract.
    if unsafe { advance(cq) } {
        return 0;
    }
    ours.current().give_back();
    if found_nothing(context, lock(ours.state())) < 0 { GONE.0 } else { libc::ENOENT }
}

/// # Safety
/// The queue is live and ours, and this thread polls it.
unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: per contract.
    if unsafe { advance(cq) } { 0 } else { libc::ENOENT }
}

/// # Safety
/// The queue is live and ours, and this thread polls it.
unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: per contract.
    unsafe { Cq::of(cq.cast()) }.current().give_back();
}

/// # Safety
/// The queue is live and ours, and this thread polls it.
unsafe fn current(cq: *mut ibv_cq_ex) -> Current {
    // SAFETY: per contract.
    unsafe { *Cq::of(cq.cast()).current().get() }
}

/// Defines functions that read one field of the completion at hand.
macro_rules! readers {
    ($($name:ident -> $type:ty = |$current:ident| $value:expr;)*) => {
        $(
            /// # Safety
            /// The queue is live and ours, and this thread polls it.
            unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
                // SAFETY: per contract.
                let $current = unsafe { current(cq) };
                $value
            }
        )*
    };
}

readers! {
    read_opcode -> u32 = |current| current.wc.opcode;
    read_vendor_err -> u32 = |current| current.wc.vendor_err;
    read_byte_len -> u32 = |current| current.wc.byte_len;
    read_imm_data -> u32 = |current| u32::from_ne_bytes(current.wc.imm);
    read_qp_num -> u32 = |current| current.wc.qp_num;
    read_src_qp -> u32 = |current| current.wc.src_qp;
    read_wc_flags -> c_uint = |current| current.wc.wc_flags;
    read_slid -> u32 = |current| u32::from(current.wc.slid);
    read_sl -> u8 = |current| current.wc.sl;
    read_dlid_path_bits -> u8 = |current| current.wc.dlid_path_bits;
    read_completion_ts -> u64 = |current| current.timestamp_ns;
    // The time of day then, as the two clocks stand to each other now.
    read_completion_wallclock_ns -> u64 =
        |current| realtime_ns().wrapping_sub(monotonic_ns().wrapping_sub(current.timestamp_ns));
}
