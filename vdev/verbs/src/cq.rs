//! Completion queues: making, ending, arming. Polling is in [`crate::poll`].

use crate::abi::device::ibv_context;
use crate::abi::object::{ibv_comp_channel, ibv_cq};
use crate::channel::Channel;
use crate::connection::{Errno, unexpected};
use crate::context::{Context, Object, lock};
use crate::foreign::{code, null, own_context, own_object, pointer, verbs};
use core::ffi::{c_int, c_void};
use core::ptr;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use vdev_abi::completion::CqConsumer;
use vdev_abi::control::{Reply, Request};
use vdev_abi::layout::CqLayout;
use vdev_abi::mapping::Mapping;

/// A completion queue.
#[repr(C)]
pub struct Cq {
    ibv: ibv_cq,
    handle: u32,
    cookie: u64,
    map: Mapping,
    state: Mutex<CqState>,
}

/// What polling changes.
pub struct CqState {
    /// Our end of the ring.
    pub consumer: CqConsumer,
    /// Polls in a row that found nothing.
    pub empty_polls: u32,
}

/// The slot number that marks a completion as withdrawn: its queue pair was reset.
pub const WITHDRAWN: u32 = u32::MAX;

impl Cq {
    /// The queue that a C pointer of ours names.
    ///
    /// # Safety
    /// It is live and ours.
    pub unsafe fn of<'a>(cq: *mut ibv_cq) -> &'a Cq {
        // SAFETY: per contract; the C struct is the first member.
        unsafe { &*cq.cast::<Cq>() }
    }

    /// The daemon's number for it.
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// What its events carry.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// The shared ring.
    pub fn map(&self) -> &Mapping {
        &self.map
    }

    /// What polling changes.
    pub fn state(&self) -> &Mutex<CqState> {
        &self.state
    }

    /// Withdraws the completions of a queue pair that were written and not polled.
    pub fn withdraw(&self, qpn: u32) {
        let state = lock(&self.state);
        for ahead in 0.. {
            let Some(mut entry) = state.consumer.peek(&self.map, ahead) else { return };
            if entry.qpn == qpn {
                entry.slot = WITHDRAWN;
                state.consumer.replace(&self.map, ahead, &entry);
            }
        }
    }

    /// Waits until no poll that began before is still running.
    pub fn settle(&self) {
        drop(lock(&self.state));
    }
}

/// # Safety
/// `channel` is null or live and ours.
unsafe fn create(
    context: &Context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> Result<*mut ibv_cq, Errno> {
    let depth = u32::try_from(cqe).map_err(|_| Errno(libc::EINVAL))?;
    if depth == 0 || depth > context.info.max_cqe || vector != 0 {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: per contract.
    let target = (!channel.is_null()).then(|| unsafe { Channel::of(channel) });
    let cookie = context.new_cookie();
    let request = Request::CreateCq { depth, channel: target.map(Channel::handle), cookie };
    let (reply, fds) = context.call(&request, &[])?;
    let (Reply::Cq { cq: handle, depth }, [memory]) = (&reply, fds.as_slice()) else {
        return Err(unexpected(&request, &reply));
    };
    let layout = CqLayout::new(*depth).ok_or(Errno(libc::EPROTO))?;
    let map = Mapping::map(memory.as_fd(), layout.bytes).map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EIO)))?;
    let ibv = ibv_cq {
        context: context.as_ibv(),
        channel,
        cq_context,
        handle: *handle,
        cqe: c_int::try_from(layout.depth).unwrap_or(c_int::MAX),
        mutex: [0; 5],
        cond: [0; 6],
        comp_events_completed: 0,
        async_events_completed: 0,
    };
    let state = Mutex::new(CqState { consumer: CqConsumer::new(&layout), empty_polls: 0 });
    let cq = Box::into_raw(Box::new(Cq { ibv, handle: *handle, cookie, map, state }));
    context.enter(cookie, Object::Cq(cq));
    context.users.fetch_add(1, Ordering::AcqRel);
    if let Some(target) = target {
        target.queues.fetch_add(1, Ordering::AcqRel);
    }
    Ok(cq.cast())
}

/// # Safety
/// The queue is live and ours.
unsafe fn destroy(cq: *mut ibv_cq) -> Result<(), Errno> {
    // SAFETY: per contract.
    let (ours, context) = unsafe { (Cq::of(cq), Context::of((*cq).context)) };
    context.call_done(&Request::DestroyCq { cq: ours.handle })?;
    context.forget(ours.cookie);
    // SAFETY: the field is only set when the queue is made.
    let channel = unsafe { (*cq).channel };
    if !channel.is_null() {
        // SAFETY: a channel outlives the queues that report to it.
        unsafe { Channel::of(channel) }.queues.fetch_sub(1, Ordering::AcqRel);
    }
    context.users.fetch_sub(1, Ordering::AcqRel);
    // SAFETY: `create` made it as a box, and the program gives it up.
    drop(unsafe { Box::from_raw(cq.cast::<Cq>()) });
    Ok(())
}

/// Asks for one event; called through the context.
///
/// # Safety
/// The queue is live and ours.
pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: per contract.
    let (ours, context) = unsafe { (Cq::of(cq), Context::of((*cq).context)) };
    if let Err(error) = context.check() {
        return code(Err(error));
    }
    lock(&ours.state).consumer.arm(&ours.map, solicited_only != 0);
    0
}

verbs! {
    /// Makes a completion queue; `EINVAL` for a depth outside 1 to `max_cqe` and for a vector other than 0.
    fn ibv_create_cq(context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel,
        comp_vector: c_int) -> *mut ibv_cq,
        if own_context(context) => {
            if !channel.is_null() && (*channel).context != context {
                return null(libc::EINVAL);
            }
            pointer(create(Context::of(context), cqe, cq_context, channel, comp_vector))
        } else ptr::null_mut();

    /// The depth of a queue is fixed.
    fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int,
        if own_object(cq) => { let _ = cqe; libc::EOPNOTSUPP } else libc::ENOSYS;

    /// Ends a completion queue, after waiting until its events were acknowledged; `EBUSY` while queue pairs report to it.
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int,
        if own_object(cq) => { code(destroy(cq)) } else libc::ENOSYS;
}
