//! The newer ways to post and to poll, by function calls: requests are collected as those of our own devices are, and go the way of
//! `ibv_post_send`; completions are settled one by one.

use core::ffi::c_int;
use core::mem;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock};

use super::engine::{Engine, Verdict};
use super::stand_in::{FURTHER, make};
use super::{READY, Shaper, shaper};
use crate::abi::codes::QPT_XRC_SEND;
use crate::abi::device::{EXTENDED, ibv_context, verbs_context};
use crate::abi::extended::{
    ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_qp_ex, ibv_qp_init_attr_ex, qp_init, send_ops,
};
use crate::abi::object::{ibv_qp, ibv_qp_init_attr};
use crate::context::lock;
use crate::foreign::{code, null};
use crate::held::Held;
use crate::qp_ex::{self, Batch};

/// Kinds of requests that we collect.
const KNOWN_OPERATIONS: u64 = (send_ops::SEND_WITH_INV << 1) - 1;

type CreateCqEx = unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex;
type ReadByteLen = unsafe extern "C" fn(*mut ibv_cq_ex) -> u32;
type CreateQpEx = unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;

/// The newer functions of a device that ours stand in for.
#[derive(Clone, Copy)]
pub struct Newer {
    create_cq_ex: Option<CreateCqEx>,
    create_qp_ex: Option<CreateQpEx>,
}

/// A completion queue that is polled by function calls, as its device has them.
struct Polled {
    start_poll: unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int,
    next_poll: unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int,
    read_byte_len: Option<ReadByteLen>,
    /// Bytes of the READ in whose completion the poll is, or [`UNKNOWN`].
    read_bytes: AtomicU32,
}

const UNKNOWN: u32 = u32::MAX;

/// Objects with functions of their own, by address. What is known of one outlives it, as another thread may still look at it: some
/// hundred bytes for each that was ever made.
#[derive(Default)]
pub struct Objects {
    polled: RwLock<HashMap<usize, &'static Polled>>,
    batches: RwLock<HashMap<usize, &'static Held<Batch>>>,
}

impl Objects {
    /// It has gone.
    pub fn forget(&self, object: usize) {
        self.polled.write().unwrap_or_else(PoisonError::into_inner).remove(&object);
        self.batches.write().unwrap_or_else(PoisonError::into_inner).remove(&object);
    }
}

/// Takes the place of a new device's newer functions.
///
/// # Safety
/// A live context that nobody else uses yet.
pub unsafe fn adopt(context: *mut ibv_context) -> Newer {
    let mut newer = Newer { create_cq_ex: None, create_qp_ex: None };
    // SAFETY: per contract; a context that says so is part of the larger struct, which says how much of it there is.
    unsafe {
        if (*context).abi_compat != EXTENDED {
            return newer;
        }
        let larger = context.byte_sub(mem::offset_of!(verbs_context, context)).cast::<verbs_context>();
        if (*larger).size < size_of::<verbs_context>() - mem::offset_of!(verbs_context, create_cq_ex) {
            return newer;
        }
        newer.create_cq_ex = (*larger).create_cq_ex;
        newer.create_qp_ex = (*larger).create_qp_ex;
        if newer.create_cq_ex.is_some() {
            (*larger).create_cq_ex = Some(create_cq_ex);
        }
        if newer.create_qp_ex.is_some() {
            (*larger).create_qp_ex = Some(create_qp_ex);
        }
    }
    newer
}

/// # Safety
/// As the C interface demands.
unsafe extern "C" fn create_cq_ex(context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    let known = shaper().and_then(|shaper| Some((shaper, shaper.provider(context)?.newer.create_cq_ex?)));
    let Some((shaper, create)) = known else { return null(libc::EOPNOTSUPP) };
    // SAFETY: the device's own function, with the caller's attributes, whose length is put back; what it makes is new.
    unsafe {
        let asked = (*attr).cqe;
        let (mut further, mut cq) = (FURTHER, core::ptr::null_mut());
        if asked > 0 {
            (*attr).cqe = asked.saturating_add(further);
            cq = create(context, attr);
            (*attr).cqe = asked;
        }
        if cq.is_null() {
            (further, cq) = (0, create(context, attr));
        }
        if cq.is_null() {
            return cq;
        }
        let polled = Polled {
            start_poll: mem::replace(&mut (*cq).start_poll, start_poll),
            next_poll: mem::replace(&mut (*cq).next_poll, next_poll),
            // A queue that was made without lengths has no such function, and nobody asks for one.
            read_byte_len: (&raw mut (*cq).read_byte_len).cast::<Option<ReadByteLen>>().replace(Some(read_byte_len)),
            read_bytes: AtomicU32::new(UNKNOWN),
        };
        let polled = Box::leak(Box::new(polled));
        shaper.extended.polled.write().unwrap_or_else(PoisonError::into_inner).insert(cq as usize, polled);
        lock(&shaper.engine).add_cq(cq as usize, further);
        cq
    }
}

fn polled(cq: *mut ibv_cq_ex) -> Option<(&'static Shaper, &'static Polled)> {
    let shaper = shaper()?;
    let polled = shaper.extended.polled.read().unwrap_or_else(PoisonError::into_inner);
    Some((shaper, polled.get(&(cq as usize)).copied()?))
}

/// Settles the completion that the poll is at, or goes on to one that is the program's business. `code`: of the call that led to it.
///
/// # Safety
/// This thread polls the live queue.
unsafe fn settle(shaper: &'static Shaper, polled: &Polled, cq: *mut ibv_cq_ex, mut code: c_int) -> c_int {
    // SAFETY: per contract; the device has written these fields.
    unsafe {
        while code == 0 {
            polled.read_bytes.store(UNKNOWN, Ordering::Relaxed);
            let (wr_id, status) = ((*cq).wr_id, (*cq).status);
            if !Engine::is_tagged(shaper.tag, wr_id) {
                break;
            }
            let mut engine = lock(&shaper.engine);
            let verdict = engine.settle(wr_id, status);
            shaper.plan(&engine);
            drop(engine);
            match verdict {
                Verdict::Foreign => break,
                Verdict::Hidden => code = (polled.next_poll)(cq),
                Verdict::Told { wr_id, read_bytes } => {
                    (*cq).wr_id = wr_id;
                    polled.read_bytes.store(read_bytes.unwrap_or(UNKNOWN), Ordering::Relaxed);
                    break;
                }
            }
        }
    }
    code
}

/// # Safety
/// As the C interface demands.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    let Some((shaper, polled)) = polled(cq) else { return libc::EINVAL };
    shaper.catch_up();
    // SAFETY: the device's own function, with the caller's arguments; the queue is this thread's if it says 0.
    unsafe {
        let code = (polled.start_poll)(cq, attr);
        let settled = settle(shaper, polled, cq, code);
        if code == 0 && settled != 0 {
            // All were pieces: the program sees an empty queue, for which it does not end the poll.
            ((*cq).end_poll)(cq);
        }
        settled
    }
}

/// # Safety
/// As the C interface demands.
unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    let Some((shaper, polled)) = polled(cq) else { return libc::EINVAL };
    // SAFETY: the device's own function; this thread polls the queue.
    unsafe { settle(shaper, polled, cq, (polled.next_poll)(cq)) }
}

/// # Safety
/// As the C interface demands.
unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    let Some((_, polled)) = polled(cq) else { return 0 };
    match polled.read_bytes.load(Ordering::Relaxed) {
        // SAFETY: the device's own function; this thread polls the queue.
        UNKNOWN => polled.read_byte_len.map_or(0, |read| unsafe { read(cq) }),
        bytes => bytes,
    }
}

/// # Safety
/// As the C interface demands.
unsafe extern "C" fn create_qp_ex(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    let known = shaper().and_then(|shaper| Some((shaper, shaper.provider(context)?)));
    let Some((shaper, provider)) = known else { return null(libc::EOPNOTSUPP) };
    let Some(create) = provider.newer.create_qp_ex else { return null(libc::EOPNOTSUPP) };
    // SAFETY: the device's own function, with the caller's attributes; what it makes is new. They begin as the older attributes do,
    // up to a word that those do not use.
    unsafe {
        let mask = (*attr).comp_mask;
        let is_extended = mask & qp_init::SEND_OPS_FLAGS != 0;
        let is_unknown = (*attr).send_ops_flags & !KNOWN_OPERATIONS != 0 || (*attr).qp_type == QPT_XRC_SEND;
        if is_extended && is_unknown {
            return create(context, attr);
        }
        let mut older = mem::zeroed::<ibv_qp_init_attr>();
        let bytes = mem::offset_of!(ibv_qp_init_attr_ex, comp_mask);
        core::ptr::copy_nonoverlapping(attr.cast::<u8>(), (&raw mut older).cast::<u8>(), bytes);
        let (qp, is_shaped) = make(shaper, &provider, &mut older, |wanted| {
            core::ptr::copy_nonoverlapping((&raw const *wanted).cast::<u8>(), attr.cast::<u8>(), bytes);
            let qp = create(context, attr);
            wanted.cap = (*attr).cap;
            qp
        });
        core::ptr::copy_nonoverlapping((&raw const older).cast::<u8>(), attr.cast::<u8>(), bytes);
        if is_shaped && is_extended {
            let batch = Box::leak(Box::default());
            shaper.extended.batches.write().unwrap_or_else(PoisonError::into_inner).insert(qp as usize, batch);
            qp_ex::collect_in(qp.cast(), wr_start, wr_complete, wr_abort);
        }
        qp
    }
}

/// The requests that are collected for a queue pair of a foreign device.
pub fn batch(qp: *mut ibv_qp_ex) -> Option<&'static Held<Batch>> {
    let batches = &shaper()?.extended.batches;
    batches.read().unwrap_or_else(PoisonError::into_inner).get(&(qp as usize)).copied()
}

/// # Safety
/// As the C interface demands.
unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    if let Some(batch) = batch(qp) {
        batch.take();
        // SAFETY: just taken.
        unsafe { batch.get() }.clear();
    }
}

/// # Safety
/// As the C interface demands.
unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    let (Some(shaper), Some(batch)) = (shaper(), batch(qp)) else { return libc::EINVAL };
    // SAFETY: this thread has started the batch, and the queue pair is live; the program vouches for the buffers that it named.
    let result = unsafe {
        let is_ready = (*qp).qp_base.state >= READY;
        batch.get().chain().and_then(|first| {
            let refused = |(_, code)| crate::connection::Errno(code);
            if is_ready {
                shaper.post(qp.cast(), first, true).map_err(refused)
            } else {
                Err(crate::connection::Errno(libc::EINVAL))
            }
        })
    };
    batch.give_back();
    code(result)
}

/// # Safety
/// As the C interface demands.
unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    if let Some(batch) = batch(qp) {
        batch.give_back();
    }
}
