//! Completion queues: making, resizing, ending, arming. Polling is in [`crate::poll`] and [`crate::cq_ex`].

use crate::abi::device::ibv_context;
use crate::abi::extended::ibv_cq_ex;
use crate::abi::object::{ibv_comp_channel, ibv_cq};
use crate::channel::Channel;
use crate::connection::{Errno, unexpected};
use crate::context::{Context, Object, lock};
use crate::cq_ex::{self, Current};
use crate::foreign::{code, null, own_context, own_object, pointer, verbs};
use crate::held::Held;
use core::ffi::{c_int, c_void};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use vdev_abi::completion::CqConsumer;
use vdev_abi::control::{Reply, Request};
use vdev_abi::layout::{CompletionEntry, CqLayout};
use vdev_abi::mapping::Mapping;

/// A completion queue.
#[repr(C)]
pub struct Cq {
    ibv: ibv_cq_ex,
    handle: u32,
    cookie: u64,
    state: Mutex<CqState>,
    current: Held<Current>,
}

/// What polling changes.
pub struct CqState {
    ring: Ring,
    /// Polls in a row that found nothing.
    pub empty_polls: u32,
}

/// The shared ring, and our end of it.
struct Ring {
    map: Mapping,
    consumer: CqConsumer,
    depth: c_int,
}

impl Ring {
    /// The ring that the daemon has just made.
    fn map(memory: &OwnedFd, depth: u32) -> Result<Ring, Errno> {
        let layout = CqLayout::new(depth).ok_or(Errno(libc::EPROTO))?;
        let map = Mapping::map(memory.as_fd(), layout.bytes).map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EIO)))?;
        let depth = c_int::try_from(layout.depth).map_err(|_| Errno(libc::EPROTO))?;
        Ok(Ring { map, consumer: CqConsumer::new(&layout), depth })
    }
}

impl CqState {
    /// The `ahead`-th completion not yet given back.
    pub fn peek(&self, ahead: u32) -> Option<CompletionEntry> {
        self.ring.consumer.peek(&self.ring.map, ahead)
    }

    /// Gives completions back that [`Self::peek`] gave.
    pub fn advance(&mut self, count: u32) {
        self.ring.consumer.advance(&self.ring.map, count);
        self.empty_polls = 0;
    }
}

/// The slot number that marks a completion as withdrawn: its queue is gone, or was reset.
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

    /// What polling changes.
    pub fn state(&self) -> &Mutex<CqState> {
        &self.state
    }

    /// The completion that a program reads field by field.
    pub fn current(&self) -> &Held<Current> {
        &self.current
    }

    /// Withdraws those completions that were written and not polled and are `of` what is gone. Returns how many of them were receives.
    pub fn withdraw(&self, of: impl Fn(&CompletionEntry) -> bool) -> u32 {
        let state = lock(&self.state);
        let mut receives = 0;
        for ahead in 0.. {
            let Some(mut entry) = state.peek(ahead) else { break };
            if of(&entry) && entry.slot != WITHDRAWN {
                receives += u32::from(entry.is_recv != 0);
                entry.slot = WITHDRAWN;
                state.ring.consumer.replace(&state.ring.map, ahead, &entry);
            }
        }
        receives
    }

    /// Waits until no poll that began before is still running.
    pub fn settle(&self) {
        drop(lock(&self.state));
    }
}

/// The depth that a program asks for, if the device has it.
fn depth(context: &Context, cqe: c_int) -> Result<u32, Errno> {
    u32::try_from(cqe).ok().filter(|depth| (1..=context.info.max_cqe).contains(depth)).ok_or(Errno(libc::EINVAL))
}

/// # Safety
/// `channel` is null or live and ours.
pub unsafe fn create(
    context: &Context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> Result<*mut ibv_cq, Errno> {
    let depth = depth(context, cqe)?;
    if vector != 0 {
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
    let ring = Ring::map(memory, *depth)?;
    let ibv = ibv_cq {
        context: context.as_ibv(),
        channel,
        cq_context,
        handle: *handle,
        cqe: ring.depth,
        mutex: [0; 5],
        cond: [0; 6],
        comp_events_completed: 0,
        async_events_completed: 0,
    };
    let state = Mutex::new(CqState { ring, empty_polls: 0 });
    let cq = Cq { ibv: cq_ex::extend(ibv), handle: *handle, cookie, state, current: Held::default() };
    let cq = Box::into_raw(Box::new(cq));
    context.enter(cookie, Object::Cq(cq));
    context.users.fetch_add(1, Ordering::AcqRel);
    if let Some(target) = target {
        target.queues.fetch_add(1, Ordering::AcqRel);
    }
    Ok(cq.cast())
}

/// Moves a queue to a ring of another depth, with the completions that wait and the wish for an event.
///
/// # Safety
/// The queue is live and ours.
unsafe fn resize(cq: *mut ibv_cq, cqe: c_int) -> Result<(), Errno> {
    // SAFETY: per contract.
    let (ours, context) = unsafe { (Cq::of(cq), Context::of((*cq).context)) };
    let depth = depth(context, cqe)?;
    // Nobody polls or arms while the ring changes.
    let mut state = lock(&ours.state);
    let request = Request::ResizeCq { cq: ours.handle, depth };
    let (reply, fds) = context.call(&request, &[])?;
    let (Reply::Cq { depth, .. }, [memory]) = (&reply, fds.as_slice()) else {
        return Err(unexpected(&request, &reply));
    };
    state.ring = Ring::map(memory, *depth)?;
    // SAFETY: programs read this field after they have resized.
    unsafe { (&raw mut (*cq).cqe).write(state.ring.depth) };
    Ok(())
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
    let state = lock(&ours.state);
    state.ring.consumer.arm(&state.ring.map, solicited_only != 0);
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
        } else null(libc::EINVAL);

    /// Changes the depth; `EINVAL` outside 1 to `max_cqe`, and for less than the completions that wait.
    fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int,
        if own_object(cq) => { code(resize(cq, cqe)) } else libc::EINVAL;

    /// Ends a completion queue, after waiting until its events were acknowledged; `EBUSY` while queues report to it.
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int,
        if own_object(cq) => { code(destroy(cq)) } else libc::EINVAL;
}
