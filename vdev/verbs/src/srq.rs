//! Shared receive queues: making, changing, asking, ending, posting.
//!
//! The ring is that of a queue pair's receive queue. Receives complete in any order, so that only their number is kept; that is
//! enough to know that a slot is free: the daemon reads the ring in order, and of a full ring's entries plus one, one that it has read
//! later than the slot's has completed. There is no doorbell of its own: one of the queue pairs that take from it is named, and all queues
//! that requests name (`xrc`) have one together.

use crate::abi::object::{ibv_cq, ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};
use crate::abi::work::ibv_recv_wr;
use crate::connection::{Errno, unexpected};
use crate::context::{Context, Object, lock};
use crate::cq::Cq;
use crate::domain::Pd;
use crate::foreign::{code, null, own_object, pointer, verbs};
use core::ffi::{c_int, c_void};
use core::ptr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use vdev_abi::control::{Reply, Request};
use vdev_abi::layout::{QpLayout, SRQ_SLOT};
use vdev_abi::mapping::Mapping;
use vdev_abi::queue::RingProducer;

/// `enum ibv_srq_attr_mask`.
const SRQ_MAX_WR: u32 = 1;
const SRQ_LIMIT: u32 = 2;

/// Our end of the ring, and the memory that it lies in.
pub struct SharedRing {
    /// Writes entries.
    pub producer: RingProducer,
    /// Where.
    pub map: Mapping,
}

impl SharedRing {
    fn new(memory: BorrowedFd<'_>, max_wr: u32, max_sge: u32) -> Result<SharedRing, Errno> {
        let (layout, _) = QpLayout::shared(max_wr, max_sge).ok_or(Errno(libc::EPROTO))?;
        let map = Mapping::map(memory, layout.bytes).map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EIO)))?;
        Ok(SharedRing { producer: RingProducer::recv(&layout), map })
    }
}

/// A shared receive queue.
#[repr(C)]
pub struct Srq {
    ibv: ibv_srq,
    handle: u32,
    cookie: u64,
    max_wr: AtomicU32,
    max_sge: u32,
    /// Held while posting.
    ring: Mutex<SharedRing>,
    /// Receives that have completed, modulo 2^32.
    completed: AtomicU32,
    /// Doorbell slots of the queue pairs that take from it.
    slots: Mutex<Vec<u32>>,
    /// What makes it one that requests name.
    named: Option<Named>,
}

/// What a shared receive queue has that requests of extended reliable connections name.
pub struct Named {
    /// Its number.
    pub number: u32,
    /// Its place in completions.
    pub slot: u32,
    /// Where it reports to, which outlives it.
    pub cq: *mut ibv_cq,
}

impl Srq {
    /// The queue that a C pointer of ours names.
    ///
    /// # Safety
    /// It is live and ours.
    pub unsafe fn of<'a>(srq: *mut ibv_srq) -> &'a Srq {
        // SAFETY: per contract; the C struct is the first member.
        unsafe { &*srq.cast::<Srq>() }
    }

    /// The daemon's number for it.
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// What its events carry.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// The number by which requests name it, if any can.
    pub fn number(&self) -> Option<u32> {
        self.named.as_ref().map(|named| named.number)
    }

    /// So many of its receives have completed.
    pub fn retire(&self, count: u32) {
        self.completed.fetch_add(count, Ordering::AcqRel);
    }

    /// A queue pair with this doorbell slot takes from it.
    pub fn attach(&self, slot: u32) {
        lock(&self.slots).push(slot);
    }

    /// The queue pair is gone.
    pub fn detach(&self, slot: u32) {
        lock(&self.slots).retain(|&other| other != slot);
    }

    /// Buffers per receive.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Room for one more, when `produced` were posted.
    pub fn has_room(&self, produced: u32) -> bool {
        produced.wrapping_sub(self.completed.load(Ordering::Acquire)) < self.max_wr.load(Ordering::Relaxed)
    }

    /// The shared ring.
    pub fn ring(&self) -> &Mutex<SharedRing> {
        &self.ring
    }

    /// Tells the daemon of receives, if a queue pair could wait for one.
    pub fn ring_doorbell(&self, context: &Context) {
        if self.named.is_some() {
            context.ring(SRQ_SLOT);
        } else if let Some(&slot) = lock(&self.slots).last() {
            context.ring(slot);
        }
    }
}

/// # Safety
/// The domain is live and ours, and the attributes are valid.
pub unsafe fn create(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> Result<*mut ibv_srq, Errno> {
    // SAFETY: per contract.
    let (context, pd_handle, init_attr) = unsafe { (Context::of((*pd).context), (*pd).handle, &mut *init) };
    let cookie = context.new_cookie();
    let ibv_srq_attr { max_wr, max_sge, .. } = init_attr.attr;
    // The limit is not an attribute of creation.
    let request = Request::CreateSrq { pd: pd_handle, max_wr, max_sge, limit: 0, cookie };
    // SAFETY: per contract.
    unsafe { give(context, pd, init_attr.srq_context, &mut init_attr.attr, &request, cookie, ptr::null_mut()) }
}

/// Asks the daemon for a queue, and makes it for the program. `cq` is that of one that requests name.
///
/// # Safety
/// The protection domain is live and ours, and the completion queue null or live and ours.
pub unsafe fn give(
    context: &Context,
    pd: *mut ibv_pd,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
    request: &Request,
    cookie: u64,
    cq: *mut ibv_cq,
) -> Result<*mut ibv_srq, Errno> {
    let (reply, fds) = context.call(request, &[])?;
    let (handle, max_wr, named, memory) = match (&reply, fds.as_slice()) {
        (Reply::Srq { srq, max_wr }, [memory]) => (srq, max_wr, None, memory),
        (Reply::XrcSrq { srq, max_wr, srqn, slot }, [memory]) if !cq.is_null() => {
            (srq, max_wr, Some(Named { number: *srqn, slot: *slot, cq }), memory)
        }
        _ => return Err(unexpected(request, &reply)),
    };
    let max_sge = attr.max_sge;
    let ring = SharedRing::new(memory.as_fd(), *max_wr, max_sge)?;
    let ibv = ibv_srq {
        context: context.as_ibv(),
        srq_context,
        pd,
        handle: *handle,
        mutex: [0; 5],
        cond: [0; 6],
        events_completed: 0,
    };
    let srq = Box::into_raw(Box::new(Srq {
        ibv,
        handle: *handle,
        cookie,
        max_wr: AtomicU32::new(*max_wr),
        max_sge,
        ring: Mutex::new(ring),
        completed: AtomicU32::new(0),
        slots: Mutex::new(Vec::new()),
        named,
    }));
    attr.max_wr = *max_wr;
    // SAFETY: just made.
    if let Some(Named { slot, .. }) = unsafe { &(*srq).named } {
        context.set_srq_slot(*slot, srq);
    }
    // SAFETY: per contract.
    unsafe { Pd::of(pd) }.users.fetch_add(1, Ordering::AcqRel);
    context.enter(cookie, Object::Srq(srq));
    context.users.fetch_add(1, Ordering::AcqRel);
    Ok(srq.cast())
}

/// Moves the queue to a ring of another size. Nobody posts meanwhile.
fn resize(context: &Context, srq: &Srq, max_wr: u32) -> Result<(), Errno> {
    let mut ring = lock(&srq.ring);
    let request = Request::ResizeSrq { srq: srq.handle, max_wr };
    let (reply, fds) = context.call(&request, &[])?;
    let (Reply::Srq { max_wr, .. }, [memory]) = (&reply, fds.as_slice()) else { return Err(unexpected(&request, &reply)) };
    // The new ring counts from zero; what is outstanding still counts.
    srq.completed.fetch_sub(ring.producer.produced(), Ordering::AcqRel);
    srq.max_wr.store(*max_wr, Ordering::Relaxed);
    *ring = SharedRing::new(memory.as_fd(), *max_wr, srq.max_sge)?;
    Ok(())
}

/// # Safety
/// The queue is live and ours, and the attributes are valid.
unsafe fn modify(srq: *mut ibv_srq, attr: *const ibv_srq_attr, mask: u32) -> Result<(), Errno> {
    // SAFETY: per contract.
    let (ours, context, attr) = unsafe { (Srq::of(srq), Context::of((*srq).context), &*attr) };
    if mask & !(SRQ_MAX_WR | SRQ_LIMIT) != 0 {
        return Err(Errno(libc::EINVAL));
    }
    if mask & SRQ_MAX_WR != 0 {
        // All of the attributes or none.
        if mask & SRQ_LIMIT != 0 && attr.srq_limit > attr.max_wr {
            return Err(Errno(libc::EINVAL));
        }
        resize(context, ours, attr.max_wr)?;
    }
    if mask & SRQ_LIMIT == 0 {
        return context.check();
    }
    context.call_done(&Request::SetSrqLimit { srq: ours.handle, limit: attr.srq_limit })
}

/// # Safety
/// The queue is live and ours, and the attributes are writable.
unsafe fn query(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> Result<(), Errno> {
    // SAFETY: per contract.
    let (ours, context) = unsafe { (Srq::of(srq), Context::of((*srq).context)) };
    let request = Request::QuerySrq { srq: ours.handle };
    match context.call(&request, &[])? {
        (Reply::SrqLimit(srq_limit), _) => {
            // SAFETY: per contract.
            unsafe {
                attr.write(ibv_srq_attr { max_wr: ours.max_wr.load(Ordering::Relaxed), max_sge: ours.max_sge, srq_limit })
            };
            Ok(())
        }
        (other, _) => Err(unexpected(&request, &other)),
    }
}

/// # Safety
/// The queue is live and ours.
unsafe fn destroy(srq: *mut ibv_srq) -> Result<(), Errno> {
    // SAFETY: per contract.
    let (ours, context) = unsafe { (Srq::of(srq), Context::of((*srq).context)) };
    context.call_done(&Request::DestroySrq { srq: ours.handle })?;
    if let Some(Named { number, slot, cq }) = &ours.named {
        // SAFETY: it outlives the queues that report to it.
        let cq = unsafe { Cq::of(*cq) };
        cq.withdraw(|entry| entry.srqn == *number);
        // From here on nobody finds it; polls that run already are waited for.
        context.set_srq_slot(*slot, ptr::null_mut());
        cq.settle();
    }
    context.forget(ours.cookie);
    context.users.fetch_sub(1, Ordering::AcqRel);
    // SAFETY: a domain is not ended while it has users.
    unsafe { Pd::of((*srq).pd) }.users.fetch_sub(1, Ordering::AcqRel);
    // SAFETY: `give` made it as a box, and the program gives it up.
    drop(unsafe { Box::from_raw(srq.cast::<Srq>()) });
    Ok(())
}

/// Posts a chain of receives; called through the context.
///
/// # Safety
/// The queue is live and ours, the chain valid, and `bad_wr` writable.
pub unsafe extern "C" fn post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: per contract.
    unsafe { crate::post::post_shared(Context::of((*srq).context), Srq::of(srq), wr, bad_wr) }
}

verbs! {
    /// Makes a shared receive queue; the size granted comes back in the attributes.
    fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq,
        if own_object(pd) => {
            if attr.is_null() { null(libc::EINVAL) } else { pointer(create(pd, attr)) }
        } else null(libc::EINVAL);

    /// Changes the size, sets the limit.
    fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int,
        if own_object(srq) => {
            if attr.is_null() { code(Err(Errno(libc::EINVAL))) } else { code(modify(srq, attr, mask.cast_unsigned())) }
        } else libc::EINVAL;

    /// Sizes and limit.
    fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int,
        if own_object(srq) => {
            if attr.is_null() { code(Err(Errno(libc::EINVAL))) } else { code(query(srq, attr)) }
        } else libc::EINVAL;

    /// Ends a shared receive queue, after waiting until its events were acknowledged; `EBUSY` while queue pairs take from it.
    fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int,
        if own_object(srq) => { code(destroy(srq)) } else libc::EINVAL;
}
