//! Queue pairs: making, changing, asking, ending. Posting is in [`crate::post`] and [`crate::qp_ex`].
//!
//! Keeps a shadow of the state, so that posting in a wrong state is refused without asking the daemon. The daemon may move a queue
//! pair to ERR by itself; posting is allowed in both, so that the shadow may lag there.

use crate::abi::codes::{QPT_RC, QPT_UC, QPT_UD, QPT_XRC_RECV, QPT_XRC_SEND, qp_mask, qp_state};
use crate::abi::extended::ibv_qp_ex;
use crate::abi::object::{ibv_cq, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr};
use crate::attr::{attr_in, attr_out, caps_in, caps_out};
use crate::connection::{Errno, unexpected};
use crate::context::{Context, Object, lock};
use crate::cq::Cq;
use crate::domain::Pd;
use crate::foreign::{code, null, own_object, pointer, verbs};
use crate::held::Held;
use crate::qp_ex::{self, Batch};
use crate::srq::Srq;
use crate::staging::Slots;
use core::ffi::c_int;
use core::ptr;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use vdev_abi::control::{QpCaps, Reply, Request};
use vdev_abi::layout::QpLayout;
use vdev_abi::mapping::Mapping;
use vdev_abi::queue::RingProducer;

/// A queue pair.
#[repr(C)]
pub struct Qp {
    ibv: ibv_qp_ex,
    /// Made with the operations that it is to be posted to by calls.
    is_extended: bool,
    handle: u32,
    pd_handle: u32,
    cookie: u64,
    slot: u32,
    /// What the program got. A ring entry holds at least [`SMALL`] bytes of inline data, whatever the program asked for.
    caps: QpCaps,
    all_signaled: bool,
    map: Mapping,
    state: AtomicU32,
    send: Queue,
    recv: Queue,
    /// Send requests whose payload lies in the staging buffer, in order of posting.
    staged: Mutex<VecDeque<Staged>>,
    any_staged: AtomicBool,
    batch: Held<Batch>,
}

/// The client's end of one of the two queues.
pub struct Queue {
    /// Our end of the ring; held while posting.
    pub ring: Mutex<RingProducer>,
    /// Producer index at the last RESET: completions count from there.
    base: AtomicU32,
    /// Index of the first entry that the device may still hold.
    retired: AtomicU32,
}

/// Payloads up to this many bytes are worth room in each ring entry.
const SMALL: u32 = 256;

struct Staged {
    index: u32,
    slots: Slots,
}

impl Queue {
    fn new(ring: RingProducer) -> Queue {
        Queue { ring: Mutex::new(ring), base: AtomicU32::new(0), retired: AtomicU32::new(0) }
    }

    /// Entries that the device may still hold, when `produced` were posted.
    pub fn outstanding(&self, produced: u32) -> u32 {
        produced.wrapping_sub(self.retired.load(Ordering::Acquire))
    }

    fn reset(&self, produced: u32) {
        self.base.store(produced, Ordering::Release);
        self.retired.store(produced, Ordering::Release);
    }

    /// Gives back all entries up to the one with this `queue_index`; the index after it.
    fn retire(&self, queue_index: u32) -> u32 {
        let end = self.base.load(Ordering::Acquire).wrapping_add(queue_index).wrapping_add(1);
        self.retired.store(end, Ordering::Release);
        end
    }
}

impl Qp {
    /// The queue pair that a C pointer of ours names.
    ///
    /// # Safety
    /// It is live and ours.
    pub unsafe fn of<'a>(qp: *mut ibv_qp) -> &'a Qp {
        // SAFETY: per contract; the C struct is the first member.
        unsafe { &*qp.cast::<Qp>() }
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.ibv.qp_base.qp_num
    }

    /// Whether each of its sends names its destination.
    pub fn is_datagram(&self) -> bool {
        self.ibv.qp_base.qp_type == QPT_UD
    }

    /// Whether its requests are acknowledged, so that they can be answered with data.
    pub fn is_reliable(&self) -> bool {
        matches!(self.ibv.qp_base.qp_type, QPT_RC | QPT_XRC_SEND)
    }

    /// Whether its messages name a shared receive queue of the peer.
    pub fn names_queues(&self) -> bool {
        self.ibv.qp_base.qp_type == QPT_XRC_SEND
    }

    /// What its events carry.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Whether it was made for posting by calls.
    pub fn is_extended(&self) -> bool {
        self.is_extended
    }

    /// The requests that a program collects by calls.
    pub fn batch(&self) -> &Held<Batch> {
        &self.batch
    }

    /// Its place in the doorbell page.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Sizes granted.
    pub fn caps(&self) -> &QpCaps {
        &self.caps
    }

    /// Whether type and state allow to post sends.
    pub fn may_send(&self) -> bool {
        self.ibv.qp_base.qp_type != QPT_XRC_RECV
            && (qp_state::RTS..=qp_state::ERR).contains(&self.state.load(Ordering::Relaxed))
    }

    /// Whether type and state allow to post receives.
    pub fn may_receive(&self) -> bool {
        let has_queue = !matches!(self.ibv.qp_base.qp_type, QPT_XRC_SEND | QPT_XRC_RECV);
        has_queue && self.state.load(Ordering::Relaxed) != qp_state::RESET
    }

    /// The shared rings.
    pub fn map(&self) -> &Mapping {
        &self.map
    }

    /// The send queue.
    pub fn send(&self) -> &Queue {
        &self.send
    }

    /// The receive queue.
    pub fn recv(&self) -> &Queue {
        &self.recv
    }

    /// The daemon's number of its protection domain.
    pub fn pd_handle(&self) -> u32 {
        self.pd_handle
    }

    /// Notes that the send request with this index has its payload in the staging buffer. The send queue is locked.
    pub fn note_staged(&self, index: u32, slots: Slots) {
        lock(&self.staged).push_back(Staged { index, slots });
        self.any_staged.store(true, Ordering::Release);
    }

    /// Frees the slots of requests from `start` on, which are not posted after all. The send queue is locked.
    pub fn forget_staged(&self, context: &Context, start: u32) {
        let mut staged = lock(&self.staged);
        while let Some(last) = staged.pop_back_if(|last| last.index.wrapping_sub(start).cast_signed() >= 0) {
            context.staging.free(last.slots);
        }
    }

    /// A completion says that the device holds nothing up to this request.
    pub fn retire(&self, context: &Context, is_recv: bool, queue_index: u32) {
        if is_recv {
            match self.srq() {
                Some(srq) => srq.retire(1),
                None => drop(self.recv.retire(queue_index)),
            }
            return;
        }
        let end = self.send.retire(queue_index);
        if self.any_staged.load(Ordering::Acquire) {
            self.free_staged(context, Some(end));
        }
    }

    /// Frees the staging slots of requests before `end`, or of all.
    fn free_staged(&self, context: &Context, end: Option<u32>) {
        let mut staged = lock(&self.staged);
        while let Some(first) = staged.front() {
            if end.is_some_and(|end| end.wrapping_sub(first.index).cast_signed() <= 0) {
                return;
            }
            context.staging.free(first.slots);
            staged.pop_front();
        }
        self.any_staged.store(false, Ordering::Release);
    }

    fn set_state(&self, state: u32) {
        self.state.store(state, Ordering::Relaxed);
        // SAFETY: programs may read this field at any time, as they may with the real library, which writes it likewise.
        unsafe { (&raw const self.ibv.qp_base.state).cast_mut().write_volatile(state) };
    }

    /// Where its receives come from instead of its own queue.
    pub fn srq(&self) -> Option<&Srq> {
        // SAFETY: null, or a queue that outlives the queue pairs that take from it.
        (!self.ibv.qp_base.srq.is_null()).then(|| unsafe { Srq::of(self.ibv.qp_base.srq) })
    }

    /// Withdraws its completions that were not polled. The daemon writes no more of them.
    fn withdraw_completions(&self) {
        let receives = self.cqs().map(|cq| cq.withdraw(|entry| entry.qpn == self.number() && entry.srqn == 0)).sum();
        if let Some(srq) = self.srq() {
            srq.retire(receives);
        }
    }

    fn cqs(&self) -> impl Iterator<Item = &Cq> {
        let both = [self.ibv.qp_base.send_cq, self.ibv.qp_base.recv_cq];
        // SAFETY: completion queues outlive the queue pairs that report to them.
        both.into_iter().filter(|cq| !cq.is_null()).map(|cq| unsafe { Cq::of(cq) })
    }
}

/// # Safety
/// The domain is live and ours, and the attributes are valid.
pub unsafe fn create(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr, is_extended: bool) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: per contract.
    let (context, mut wanted) = unsafe { (Context::of((*pd).context), *attr) };
    match wanted.qp_type {
        QPT_RC | QPT_UC | QPT_UD => {}
        QPT_XRC_SEND => {
            // It has no receives, whatever the program says of them.
            (wanted.cap.max_recv_wr, wanted.cap.max_recv_sge, wanted.srq) = (0, 0, ptr::null_mut());
            wanted.recv_cq = wanted.send_cq;
        }
        QPT_XRC_RECV => return Err(Errno(libc::EINVAL)),
        _ => return Err(Errno(libc::EOPNOTSUPP)),
    }
    // SAFETY: completion queues are null or live.
    let own = |cq: *mut ibv_cq| unsafe { own_object(cq) && (*cq).context == (*pd).context };
    if !own(wanted.send_cq) || !own(wanted.recv_cq) {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: null or live.
    let srq = match unsafe { wanted.srq.as_ref() } {
        None => None,
        // SAFETY: live.
        Some(srq) if unsafe { own_object(srq) && srq.context == (*pd).context } => Some(unsafe { Srq::of(wanted.srq) }),
        Some(_) => return Err(Errno(libc::EINVAL)),
    };
    let cookie = context.new_cookie();
    // SAFETY: live and ours, checked just above.
    let (send_cq, recv_cq, pd_handle) =
        unsafe { (Cq::of(wanted.send_cq).handle(), Cq::of(wanted.recv_cq).handle(), (*pd).handle) };
    let all_signaled = wanted.sq_sig_all != 0;
    let wanted_caps = caps_in(&wanted.cap);
    let max_inline_data = wanted_caps.max_inline_data.max(SMALL.min(context.info.max_inline_data));
    let caps = QpCaps { max_inline_data, ..wanted_caps };
    let qp_type = wanted.qp_type;
    let srq_handle = srq.map(Srq::handle);
    let request = Request::CreateQp { pd: pd_handle, qp_type, send_cq, recv_cq, srq: srq_handle, caps, all_signaled, cookie };
    let (qp, caps) = give(context, &wanted, pd, &request, cookie, is_extended)?;
    // SAFETY: the caller's attributes, which this verb also writes.
    unsafe { (*attr).cap = caps_out(&caps) };
    Ok(qp)
}

/// Asks the daemon for a queue pair, and makes it for the program. Returns it and the sizes granted. `pd` is null for one that is not of
/// a protection domain.
pub fn give(
    context: &Context,
    wanted: &ibv_qp_init_attr,
    pd: *mut ibv_pd,
    request: &Request,
    cookie: u64,
    is_extended: bool,
) -> Result<(*mut ibv_qp, QpCaps), Errno> {
    let (reply, fds) = context.call(request, &[])?;
    let (Reply::Qp { qp: handle, qpn, doorbell, caps }, [memory]) = (&reply, fds.as_slice()) else {
        return Err(unexpected(request, &reply));
    };
    let layout = QpLayout::new(caps).ok_or(Errno(libc::EPROTO))?;
    let map = Mapping::map(memory.as_fd(), layout.bytes).map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EIO)))?;
    let ibv = ibv_qp {
        context: context.as_ibv(),
        qp_context: wanted.qp_context,
        pd,
        send_cq: wanted.send_cq,
        recv_cq: wanted.recv_cq,
        srq: wanted.srq,
        handle: *handle,
        qp_num: *qpn,
        state: qp_state::RESET,
        qp_type: wanted.qp_type,
        mutex: [0; 5],
        cond: [0; 6],
        events_completed: 0,
    };
    let qp = Box::into_raw(Box::new(Qp {
        ibv: qp_ex::extend(ibv),
        is_extended,
        handle: *handle,
        // SAFETY: null or live.
        pd_handle: unsafe { pd.as_ref() }.map_or(0, |pd| pd.handle),
        cookie,
        slot: *doorbell,
        caps: *caps,
        all_signaled: wanted.sq_sig_all != 0,
        map,
        state: AtomicU32::new(qp_state::RESET),
        send: Queue::new(RingProducer::send(&layout)),
        recv: Queue::new(RingProducer::recv(&layout)),
        staged: Mutex::new(VecDeque::new()),
        any_staged: AtomicBool::new(false),
        batch: Held::default(),
    }));
    if !pd.is_null() {
        // SAFETY: live and ours.
        unsafe { Pd::of(pd) }.users.fetch_add(1, Ordering::AcqRel);
    }
    context.set_slot(*doorbell, qp);
    // SAFETY: just made.
    if let Some(srq) = unsafe { (*qp).srq() } {
        srq.attach(*doorbell);
    }
    context.enter(cookie, Object::Qp(qp));
    context.users.fetch_add(1, Ordering::AcqRel);
    Ok((qp.cast(), *caps))
}

/// # Safety
/// The queue pair is live and ours.
unsafe fn destroy(qp: *mut ibv_qp) -> Result<(), Errno> {
    // SAFETY: per contract.
    let (ours, context) = unsafe { (Qp::of(qp), Context::of((*qp).context)) };
    context.call_done(&Request::DestroyQp { qp: ours.handle })?;
    ours.withdraw_completions();
    if let Some(srq) = ours.srq() {
        srq.detach(ours.slot);
    }
    // From here on nobody finds it; polls that run already are waited for.
    context.set_slot(ours.slot, ptr::null_mut());
    for cq in ours.cqs() {
        cq.settle();
    }
    context.forget(ours.cookie);
    ours.free_staged(context, None);
    context.users.fetch_sub(1, Ordering::AcqRel);
    // SAFETY: a domain is not ended while it has users.
    unsafe {
        if !(*qp).pd.is_null() {
            Pd::of((*qp).pd).users.fetch_sub(1, Ordering::AcqRel);
        }
    }
    // SAFETY: `give` made it as a box, the program gives it up, and nothing leads to it any more.
    drop(unsafe { Box::from_raw(qp.cast::<Qp>()) });
    Ok(())
}

/// # Safety
/// The queue pair is live and ours, and the attributes are valid.
unsafe fn modify(qp: *mut ibv_qp, attr: *const ibv_qp_attr, mask: c_int) -> Result<(), Errno> {
    // SAFETY: per contract.
    let (ours, context, attr) = unsafe { (Qp::of(qp), Context::of((*qp).context), &*attr) };
    let mask = mask.cast_unsigned();
    let request = Request::ModifyQp { qp: ours.handle, mask, attr: attr_in(attr) };
    if mask & qp_mask::STATE == 0 {
        return context.call_done(&request);
    }
    if attr.qp_state != qp_state::RESET {
        context.call_done(&request)?;
        ours.set_state(attr.qp_state);
        return Ok(());
    }
    // Nobody posts while both sides forget what was posted.
    let (send, recv) = (lock(&ours.send.ring), lock(&ours.recv.ring));
    context.call_done(&request)?;
    ours.set_state(qp_state::RESET);
    ours.withdraw_completions();
    ours.send.reset(send.produced());
    ours.recv.reset(recv.produced());
    ours.free_staged(context, None);
    Ok(())
}

/// # Safety
/// The queue pair is live and ours, and both structs are writable.
unsafe fn query(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, init: *mut ibv_qp_init_attr) -> Result<(), Errno> {
    // SAFETY: per contract.
    let (ours, context) = unsafe { (Qp::of(qp), Context::of((*qp).context)) };
    let request = Request::QueryQp { qp: ours.handle };
    let (reply, _) = context.call(&request, &[])?;
    let Reply::QpAttr(found) = &reply else { return Err(unexpected(&request, &reply)) };
    ours.set_state(found.qp_state);
    // SAFETY: per contract.
    unsafe {
        attr.write(ibv_qp_attr { cap: caps_out(&ours.caps), ..attr_out(found) });
        init.write(ibv_qp_init_attr {
            qp_context: (*qp).qp_context,
            send_cq: (*qp).send_cq,
            recv_cq: (*qp).recv_cq,
            srq: (*qp).srq,
            cap: caps_out(&ours.caps),
            qp_type: (*qp).qp_type,
            sq_sig_all: c_int::from(ours.all_signaled),
        });
    }
    Ok(())
}

/// # Safety
/// The queue pair is live and ours, and the GID null or readable.
unsafe fn group_call(qp: *mut ibv_qp, gid: *const [u8; 16], call: fn(u32, [u8; 16]) -> Request) -> Result<(), Errno> {
    // SAFETY: per contract.
    let (ours, context, gid) = unsafe { (Qp::of(qp), Context::of((*qp).context), gid.as_ref()) };
    context.call_done(&call(ours.handle, *gid.ok_or(Errno(libc::EINVAL))?))
}

verbs! {
    /// Makes a queue pair; the sizes granted come back in the attributes.
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp,
        if own_object(pd) => {
            if attr.is_null() { null(libc::EINVAL) } else { pointer(create(pd, attr, false)) }
        } else null(libc::EINVAL);

    /// Lets a datagram queue pair join a multicast group; a LID means nothing on Ethernet.
    fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const [u8; 16], lid: u16) -> c_int,
        if own_object(qp) => { let _ = lid; code(group_call(qp, gid, |qp, gid| Request::AttachMcast { qp, gid })) } else libc::EINVAL;

    /// Lets a queue pair leave a multicast group.
    fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const [u8; 16], lid: u16) -> c_int,
        if own_object(qp) => { let _ = lid; code(group_call(qp, gid, |qp, gid| Request::DetachMcast { qp, gid })) } else libc::EINVAL;

    /// Changes attributes and state.
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int,
        if own_object(qp) => {
            if attr.is_null() { code(Err(Errno(libc::EINVAL))) } else { code(modify(qp, attr, mask)) }
        } else libc::EINVAL;

    /// Reads all attributes, whatever the mask says.
    fn ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr) -> c_int,
        if own_object(qp) => {
            let _ = mask;
            if attr.is_null() || init.is_null() {
                return code(Err(Errno(libc::EINVAL)));
            }
            code(query(qp, attr, init))
        } else libc::EINVAL;

    /// Ends a queue pair, after waiting until its events were acknowledged; completions not yet polled vanish.
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int,
        if own_object(qp) => { code(destroy(qp)) } else libc::EINVAL;

    /// No promise is made of the order in which bytes arrive.
    fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, op: c_int, flags: u32) -> c_int,
        if own_object(qp) => {
            let _ = (op, flags);
            0
        } else 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_counts_from_its_last_reset() {
        let layout = QpLayout::new(&QpCaps { max_send_wr: 4, max_send_sge: 1, ..QpCaps::default() }).unwrap();
        let queue = Queue::new(RingProducer::send(&layout));
        assert_eq!(queue.outstanding(3), 3);
        queue.retire(1);
        assert_eq!(queue.outstanding(3), 1);
        queue.reset(3);
        assert_eq!(queue.outstanding(5), 2);
        queue.retire(0);
        assert_eq!(queue.outstanding(5), 1);
    }
}
