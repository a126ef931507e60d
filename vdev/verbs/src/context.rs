//! An opened device: the connection, the shared memories, and the tables that lead from numbers to objects.
//!
//! Owns everything that ends with `ibv_close_device`. The C struct lies inside, so that a context pointer of a program leads here.

use crate::abi::device::{EXTENDED, ibv_context, ibv_context_ops, verbs_context};
use crate::connection::{ConnectError, Connection, Errno, GONE};
use crate::cq::Cq;
use crate::device::Device;
use crate::memory::Regions;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::staging::Staging;
use core::ptr;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, Once};
use vdev_abi::control::{DeviceInfo, PortInfo, Reply, Request};
use vdev_abi::copy::Copier;
use vdev_abi::doorbell::Doorbell;
use vdev_abi::layout::{ContextPage, QP_SLOTS, SRQ_SLOTS};
use vdev_abi::mapping::Mapping;

/// Locks; a panic elsewhere ends the process before the lock could matter.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Counts forks in this process's ancestry since the library was first used: objects of an earlier count are a parent's.
static FORKS: AtomicU32 = AtomicU32::new(0);
static COUNT_FORKS: Once = Once::new();

extern "C" fn after_fork_in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// An opened device. The fields before `verbs` cannot exist: programs compute the address of `verbs` from its end.
#[repr(C)]
pub struct Context {
    verbs: verbs_context,
    forks: u32,
    /// The control socket.
    pub connection: Connection,
    /// What the daemon said of the device.
    pub info: DeviceInfo,
    page: Mapping,
    doorbell: OwnedFd,
    /// The pipe of asynchronous events.
    pub async_fd: OwnedFd,
    /// Whether the one fatal event of a lost daemon was given.
    pub fatal_given: AtomicBool,
    /// Queue pairs by doorbell slot, which completions carry.
    slots: Box<[AtomicPtr<Qp>]>,
    /// Shared receive queues that requests name, by the slot that completions carry.
    srq_slots: Box<[AtomicPtr<Srq>]>,
    /// Objects by the cookie that events carry.
    cookies: Mutex<Cookies>,
    /// Signalled when a program acknowledges an event.
    acknowledged: Condvar,
    /// Reads the program's memory, which may be gone although it is still registered.
    pub copier: Copier,
    /// Registered memory, for staging.
    pub regions: Regions,
    /// The staging buffer.
    pub staging: Staging,
    /// Objects that name this context.
    pub users: AtomicU32,
    /// What completions of datagrams have in the place of a service level; see [`datagram_sl`].
    pub datagram_sl: u8,
    /// Processors that this process may use, when it was opened.
    pub cpus: u32,
}

/// Objects that events name, and the count of events that a program has got and not yet acknowledged.
#[derive(Default)]
struct Cookies {
    next: u64,
    live: HashMap<u64, Live>,
}

struct Live {
    object: Object,
    unacknowledged: u64,
}

/// What an event is about.
#[derive(Clone, Copy)]
pub enum Object {
    /// A completion queue.
    Cq(*mut Cq),
    /// A queue pair.
    Qp(*mut Qp),
    /// A shared receive queue.
    Srq(*mut Srq),
}

// SAFETY: the pointers are only handed back to the program, or followed while the object is in the table.
unsafe impl Send for Object {}

impl Context {
    /// Connects to the daemon and makes the context; what the program gets is a pointer to the C part.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn open(device: &'static Device) -> Result<*mut ibv_context, ConnectError> {
        COUNT_FORKS.call_once(|| {
            // SAFETY: the handler only touches an atomic.
            unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
        });
        let (connection, welcome) = Connection::open(device.path())?;
        let [page, doorbell, async_fd] = welcome.fds;
        let page = Mapping::map(page.as_fd(), ContextPage::BYTES).map_err(|error| ConnectError {
            errno: Errno(error.raw_os_error().unwrap_or(libc::EIO)),
            message: format!("the daemon's context page cannot be mapped: {error}"),
        })?;
        let context = Box::new(Context {
            verbs: verbs(device, connection.as_raw(), async_fd.as_raw_fd()),
            forks: FORKS.load(Ordering::Relaxed),
            connection,
            datagram_sl: datagram_sl(&welcome.info.gids),
            info: welcome.info,
            page,
            doorbell,
            async_fd,
            fatal_given: AtomicBool::new(false),
            slots: no_objects(QP_SLOTS),
            srq_slots: no_objects(SRQ_SLOTS),
            cookies: Mutex::new(Cookies { next: 1, ..Cookies::default() }),
            acknowledged: Condvar::new(),
            copier: Copier::new(),
            regions: Regions::default(),
            staging: Staging::default(),
            users: AtomicU32::new(0),
            cpus: allowed_cpus(),
        });
        let context = Box::into_raw(context);
        // SAFETY: just made; the C part lies within.
        Ok(unsafe { &raw mut (*context).verbs.context })
    }

    /// The context that a C pointer of one of our objects names.
    ///
    /// # Safety
    /// `context` came from [`Context::open`] and was not closed.
    pub unsafe fn of<'a>(context: *mut ibv_context) -> &'a Context {
        // SAFETY: `open` gave out the address of this field, and the caller says that it is live.
        unsafe { &*context.byte_sub(core::mem::offset_of!(verbs_context, context)).cast::<Context>() }
    }

    /// Ends a context.
    ///
    /// # Safety
    /// As [`Context::of`], and the caller is the last user.
    pub unsafe fn close(context: *mut ibv_context) {
        let context = context.wrapping_byte_sub(core::mem::offset_of!(verbs_context, context)).cast::<Context>();
        // SAFETY: `open` made it as a box, and the caller is the last user.
        drop(unsafe { Box::from_raw(context) });
    }

    /// The C part, as objects name it.
    pub fn as_ibv(&self) -> *mut ibv_context {
        (&raw const self.verbs.context).cast_mut()
    }

    /// Fails when this process is a child of the one that opened the device, or the daemon is known to be gone.
    pub fn check(&self) -> Result<(), Errno> {
        if self.forks != FORKS.load(Ordering::Relaxed) {
            return Err(Errno(libc::EPERM));
        }
        if self.connection.is_gone() { Err(GONE) } else { Ok(()) }
    }

    /// One call to the daemon.
    ///
    /// # Errors
    /// The daemon's, or [`Context::check`]'s.
    pub fn call(&self, request: &Request, fds: &[i32]) -> Result<(Reply, Vec<OwnedFd>), Errno> {
        self.check()?;
        self.connection.call(request, fds)
    }

    /// One call that is answered by [`Reply::Done`].
    ///
    /// # Errors
    /// As [`Context::call`].
    pub fn call_done(&self, request: &Request) -> Result<(), Errno> {
        self.check()?;
        self.connection.call_done(request)
    }

    /// The port as it is now.
    ///
    /// # Errors
    /// As [`Context::call`].
    pub fn port(&self) -> Result<PortInfo, Errno> {
        match self.call(&Request::QueryPort, &[])? {
            (Reply::Port(port), _) => Ok(port),
            (other, _) => Err(crate::connection::unexpected(&Request::QueryPort, &other)),
        }
    }

    /// Tells the daemon of work on a queue pair.
    pub fn ring(&self, slot: u32) {
        if Doorbell::of(&self.page).ring(slot) {
            let one = 1u64;
            // SAFETY: eight readable bytes. It cannot fail in a way that matters: a full counter wakes as well.
            unsafe { libc::write(self.doorbell.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }

    /// Enters a queue pair under its slot.
    pub fn set_slot(&self, slot: u32, qp: *mut Qp) {
        if let Some(entry) = self.slots.get(slot as usize) {
            entry.store(qp, Ordering::Release);
        }
    }

    /// The queue pair in a slot with this number. The caller holds the lock of a completion queue that it reports to, and
    /// `ibv_destroy_qp` takes that lock after it has cleared the slot: so the queue pair lives on meanwhile.
    pub fn qp_in_slot(&self, slot: u32, qpn: u32) -> Option<&Qp> {
        let qp = self.slots.get(slot as usize)?.load(Ordering::Acquire);
        // SAFETY: see above.
        let qp = unsafe { qp.as_ref() }?;
        (qp.number() == qpn).then_some(qp)
    }

    /// Enters a shared receive queue that requests name under its slot.
    pub fn set_srq_slot(&self, slot: u32, srq: *mut Srq) {
        if let Some(entry) = self.srq_slots.get(slot as usize) {
            entry.store(srq, Ordering::Release);
        }
    }

    /// The shared receive queue in a slot with this number; as [`Self::qp_in_slot`], with `ibv_destroy_srq`.
    pub fn srq_in_slot(&self, slot: u32, srqn: u32) -> Option<&Srq> {
        let srq = self.srq_slots.get(slot as usize)?.load(Ordering::Acquire);
        // SAFETY: see above.
        let srq = unsafe { srq.as_ref() }?;
        (srq.number() == Some(srqn)).then_some(srq)
    }

    /// A fresh cookie for an object that is about to be made.
    pub fn new_cookie(&self) -> u64 {
        let mut cookies = lock(&self.cookies);
        cookies.next += 1;
        cookies.next
    }

    /// Makes an object known to events.
    pub fn enter(&self, cookie: u64, object: Object) {
        lock(&self.cookies).live.insert(cookie, Live { object, unacknowledged: 0 });
    }

    /// The object of an event that is handed to the program, which owes an acknowledgement from then on. `None` when the object
    /// is gone: events that were still in the pipe are dropped.
    pub fn event_for(&self, cookie: u64) -> Option<Object> {
        let mut cookies = lock(&self.cookies);
        let live = cookies.live.get_mut(&cookie)?;
        live.unacknowledged += 1;
        Some(live.object)
    }

    /// Acknowledges events.
    pub fn acknowledge(&self, cookie: u64, count: u64) {
        if let Some(live) = lock(&self.cookies).live.get_mut(&cookie) {
            live.unacknowledged = live.unacknowledged.saturating_sub(count);
        }
        self.acknowledged.notify_all();
    }

    /// Forgets an object, after waiting until all its events were acknowledged, as the destroying verbs promise.
    pub fn forget(&self, cookie: u64) {
        let mut cookies = lock(&self.cookies);
        while cookies.live.get(&cookie).is_some_and(|live| live.unacknowledged > 0) {
            cookies = self.acknowledged.wait(cookies).unwrap_or_else(|e| e.into_inner());
        }
        cookies.live.remove(&cookie);
    }
}

/// The completion of a RoCEv2 datagram says by which network protocol it came (annex A17.4.5.1), and the usual devices say so in the
/// place of the service level, which Ethernet does not have: 8 for UDP, with 1 for IPv6 or 2 for IPv4. Readers, UCX for one, need it to
/// find the address in the first 40 bytes. Known as long as a device's addresses are of one family; else zero.
fn datagram_sl(gids: &[[u8; 16]]) -> u8 {
    let is_ipv4 = |gid: &&[u8; 16]| gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF];
    match gids.iter().filter(is_ipv4).count() {
        0 if !gids.is_empty() => 8 | 1,
        count if count == gids.len() && count > 0 => 8 | 2,
        _ => 0,
    }
}

/// The C part: what programs read, and the functions that the C header calls through it.
fn verbs(device: &'static Device, cmd_fd: i32, async_fd: i32) -> verbs_context {
    let ops = ibv_context_ops {
        compat0: [ptr::null(); 7],
        alloc_mw: crate::window::alloc_mw,
        bind_mw: crate::window::bind_mw,
        dealloc_mw: crate::window::dealloc_mw,
        compat1: [ptr::null(); 1],
        poll_cq: crate::poll::poll_cq,
        req_notify_cq: crate::cq::req_notify_cq,
        compat2: [ptr::null(); 7],
        post_srq_recv: crate::srq::post_srq_recv,
        compat3: [ptr::null(); 4],
        post_send: crate::post::post_send,
        post_recv: crate::post::post_recv,
        compat4: [ptr::null(); 5],
    };
    verbs_context {
        newer: [ptr::null(); 6],
        query_port: Some(crate::query::query_port),
        advise_mr: ptr::null(),
        alloc_null_mr: Some(crate::memory::alloc_null_mr),
        others0: [ptr::null(); 11],
        alloc_parent_domain: Some(crate::domain::alloc_parent_domain),
        dealloc_td: Some(crate::domain::dealloc_td),
        alloc_td: Some(crate::domain::alloc_td),
        others1: [ptr::null(); 7],
        query_rt_values: Some(crate::clock::query_rt_values),
        create_cq_ex: Some(crate::cq_ex::create_cq_ex),
        private: ptr::null(),
        query_device_ex: Some(crate::query::query_device_ex),
        others2: [ptr::null(); 4],
        open_qp: Some(crate::xrc::open_qp),
        create_qp_ex: Some(crate::qp_ex::create_qp_ex),
        get_srq_num: Some(crate::xrc::get_srq_num),
        create_srq_ex: Some(crate::xrc::create_srq_ex),
        open_xrcd: Some(crate::xrc::open_xrcd),
        close_xrcd: Some(crate::xrc::close_xrcd),
        placeholder: 0,
        size: size_of::<verbs_context>(),
        context: ibv_context {
            device: device.as_ibv(),
            ops,
            cmd_fd,
            async_fd,
            num_comp_vectors: 1,
            mutex: [0; 5],
            abi_compat: EXTENDED,
        },
    }
}

fn no_objects<T>(count: usize) -> Box<[AtomicPtr<T>]> {
    (0..count).map(|_| AtomicPtr::new(ptr::null_mut())).collect()
}

fn allowed_cpus() -> u32 {
    // SAFETY: an all-zero set is valid, and the call writes only into it.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: as above.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0 {
        return 1;
    }
    // SAFETY: the set is initialised.
    u32::try_from(unsafe { libc::CPU_COUNT(&set) }).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_tell_their_network_protocol() {
        let v4 = core::net::Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped().octets();
        let v6 = [0x20; 16];
        assert_eq!([datagram_sl(&[v4]), datagram_sl(&[v6, v6]), datagram_sl(&[v4, v6]), datagram_sl(&[])], [10, 9, 0, 0]);
    }
}
