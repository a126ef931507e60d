//! Ids: what a program binds, listens on, or connects; making, moving and ending them.
//!
//! An id has an endpoint in the daemon of its device, or of every device while it stands for all addresses. It is never used after
//! `rdma_destroy_id` has returned, which waits until the program has acknowledged its events.

use super::abi::{rdma_cm_id, rdma_event_channel, space};
use super::channel::{Channel, Queued};
use super::devices::{CmDevice, IdPtr};
use super::multicast::Membership;
use super::{address, result};
use crate::abi::codes::QPT_RC;
use crate::abi::object::{ibv_pd, ibv_qp_init_attr};
use crate::connection::Errno;
use crate::context::lock;
use crate::foreign::minus_one;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ptr;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex};
use vdev_abi::cm::{CmEvent, CmEventKind, CmRequest, Offer, Peer};
use vdev_abi::control::Handle;

/// `enum ibv_qp_type`: unreliable datagrams.
pub const QPT_UD: u32 = 4;

/// An id.
#[repr(C)]
pub struct Id {
    c: UnsafeCell<rdma_cm_id>,
    reserved: [u64; 4],
    /// 1 if the id has a channel of its own, and each call waits for its event. The system's rsockets look behind the public part of
    /// the ids that they get from here, for this flag at this place (rdma-core 44); what lies between they do not touch.
    is_synchronous: AtomicU32,
    state: Mutex<State>,
    /// Events that the program has got and not yet acknowledged.
    held: Mutex<u32>,
    released: Condvar,
}

const _: () = assert!(core::mem::offset_of!(Id, is_synchronous) == 448);

// SAFETY: the C part is the program's and ours together, as the interface has it; all else is behind locks.
unsafe impl Sync for Id {}
// SAFETY: as above.
unsafe impl Send for Id {}

/// What this library knows of an id.
#[derive(Default)]
pub struct State {
    /// Its endpoint; one per device while it stands for all addresses.
    pub endpoints: Vec<(&'static CmDevice, Handle)>,
    /// The device, once it is known.
    pub device: Option<&'static CmDevice>,
    /// Its own address and port.
    pub local: Option<SocketAddr>,
    /// The peer's.
    pub remote: Option<SocketAddr>,
    /// Of `rdma_set_option`.
    pub reuse_address: bool,
    /// Of `rdma_set_option`.
    pub traffic_class: u8,
    /// Of `rdma_set_option`.
    pub ack_timeout: Option<u8>,
    /// The connection, once it is asked for.
    pub connection: Option<Connection>,
    /// Groups that it has joined.
    pub groups: Vec<Membership>,
    /// A listener's queue pair attributes for ids that `rdma_get_request` gives.
    pub queue_pair: Option<(PdPtr, ibv_qp_init_attr)>,
}

/// The domain of [`State::queue_pair`].
pub struct PdPtr(pub *mut ibv_pd);

// SAFETY: the pointers in it are only handed back.
unsafe impl Send for State {}

/// What both sides have said.
#[derive(Clone, Copy)]
pub struct Connection {
    /// The path.
    pub peer: Peer,
    /// Our side; `responder_resources` and `initiator_depth` are what we use.
    pub ours: Offer,
    /// The peer's side, once it has spoken.
    pub theirs: Option<Offer>,
    /// The peer has asked.
    pub is_passive: bool,
}

impl Id {
    /// A new id that reports to a channel, or to one of its own.
    ///
    /// # Errors
    /// The system's.
    pub fn create(channel: *mut rdma_event_channel, context: *mut c_void, port_space: u32) -> Result<&'static Id, Errno> {
        let (channel, is_synchronous) = match channel.is_null() {
            true => (Channel::create()?, true),
            false => (channel, false),
        };
        let qp_type = if port_space == space::UDP { QPT_UD } else { QPT_RC };
        // SAFETY: null pointers and zeros are valid in every field.
        let c = rdma_cm_id { channel, context, ps: port_space, qp_type, ..unsafe { core::mem::zeroed() } };
        Ok(Box::leak(Box::new(Id {
            c: UnsafeCell::new(c),
            reserved: [0; 4],
            is_synchronous: AtomicU32::new(u32::from(is_synchronous)),
            state: Mutex::default(),
            held: Mutex::new(0),
            released: Condvar::new(),
        })))
    }

    /// The id that a C pointer of ours names.
    ///
    /// # Errors
    /// `EINVAL` for a null pointer.
    ///
    /// # Safety
    /// It is null, or live and ours.
    pub unsafe fn of<'a>(id: *mut rdma_cm_id) -> Result<&'a Id, Errno> {
        // SAFETY: per contract; the C struct is the first member.
        unsafe { id.cast::<Id>().as_ref() }.ok_or(Errno(libc::EINVAL))
    }

    /// The C part.
    pub fn c(&self) -> *mut rdma_cm_id {
        self.c.get()
    }

    /// Whether each call waits for its event.
    pub fn is_synchronous(&self) -> bool {
        self.is_synchronous.load(Ordering::Relaxed) != 0
    }

    /// What is known of it.
    pub fn state(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Where its events go.
    pub fn channel(&self) -> &Channel {
        // SAFETY: an id has a channel for life, and a program keeps it as long.
        unsafe { Channel::of((*self.c()).channel) }
    }

    /// Whether it reports there.
    pub fn reports_to(&self, channel: &Channel) -> bool {
        ptr::eq(self.channel(), channel)
    }

    /// Its one endpoint.
    ///
    /// # Errors
    /// `EINVAL` if it has none.
    pub fn endpoint(&self) -> Result<(&'static CmDevice, Handle), Errno> {
        self.state().endpoints.first().copied().ok_or(Errno(libc::EINVAL))
    }

    /// Enters an endpoint: its events lead here from now on.
    pub fn enter(&self, state: &mut State, device: &'static CmDevice, endpoint: Handle) {
        state.endpoints.push((device, endpoint));
        lock(&device.ids).insert(endpoint, IdPtr(self));
    }

    /// Lets go of the endpoints that `keep` does not want.
    pub fn leave(&self, state: &mut State, keep: impl Fn(&'static CmDevice) -> bool) {
        state.endpoints.retain(|&(device, endpoint)| {
            if keep(device) {
                return true;
            }
            lock(&device.ids).remove(&endpoint);
            // The daemon is gone if it refuses, and the endpoint with it.
            let _ = device.call_done(CmRequest::Destroy { endpoint });
            false
        });
    }

    /// Notes its own address, for itself and for the program.
    pub fn set_local(&self, state: &mut State, address: SocketAddr) {
        state.local = Some(address);
        // SAFETY: the C part is live.
        unsafe { address::write(address, &raw mut (*self.c()).route.addr.src) };
    }

    /// Notes the peer's address.
    pub fn set_remote(&self, state: &mut State, address: SocketAddr) {
        state.remote = Some(address);
        // SAFETY: the C part is live.
        unsafe { address::write(address, &raw mut (*self.c()).route.addr.dst) };
    }

    /// The program owes an acknowledgement.
    pub fn hold(&self) {
        *lock(&self.held) += 1;
    }

    /// It has acknowledged.
    pub fn release(&self) {
        let mut held = lock(&self.held);
        *held = held.saturating_sub(1);
        self.released.notify_all();
    }

    fn wait_until_released(&self) {
        let mut held = lock(&self.held);
        while *held > 0 {
            held = self.released.wait(held).unwrap_or_else(|e| e.into_inner());
        }
    }

    /// Acknowledges the event that a synchronous id shows.
    pub fn drop_event(&self) {
        // SAFETY: the C part is live, and an event in it came from this library and was not acknowledged.
        unsafe {
            let event = ptr::replace(&raw mut (*self.c()).event, ptr::null_mut());
            if !event.is_null() {
                super::event::acknowledge(event);
            }
        }
    }

    /// The event that a synchronous call has brought about; other ids go on at once.
    ///
    /// # Errors
    /// What the event says went wrong.
    pub fn complete(&self) -> Result<(), Errno> {
        if !self.is_synchronous() {
            return Ok(());
        }
        self.drop_event();
        let event = super::event::next(self.channel())?;
        // SAFETY: the C part is live; the event came just now.
        unsafe {
            (*self.c()).event = event;
            match (*event).status {
                0 => Ok(()),
                _ if (*event).event == super::abi::event::REJECTED => Err(Errno(libc::ECONNREFUSED)),
                status => Err(Errno(status.abs())),
            }
        }
    }
}

fn check_space(port_space: u32) -> Result<(), Errno> {
    match port_space {
        space::TCP | space::UDP => Ok(()),
        // Native InfiniBand addresses and IP over InfiniBand do not exist here.
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// # Safety
/// The channel is null or live, and `to` writable.
unsafe fn create(
    channel: *mut rdma_event_channel,
    to: *mut *mut rdma_cm_id,
    context: *mut c_void,
    port_space: u32,
) -> Result<(), Errno> {
    if to.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    check_space(port_space)?;
    super::devices::devices()?;
    let id = Id::create(channel, context, port_space)?;
    // SAFETY: per contract.
    unsafe { to.write(id.c()) };
    Ok(())
}

/// Ends an id.
///
/// # Safety
/// It is live and ours, and the program uses it no more.
pub unsafe fn destroy(id: &Id) {
    id.drop_event();
    // From here on no event finds it.
    let mut state = id.state();
    let endpoints = state.endpoints.clone();
    id.leave(&mut state, |_| false);
    drop(state);
    // What had arrived before is dropped; requests among it were taken from the daemon, which does not know that nobody has seen them.
    for queued in id.channel().take_out(id, &endpoints) {
        if let Queued::Daemon { device, event: CmEvent { endpoint, kind: CmEventKind::ConnectRequest { .. } } } = queued {
            let _ = device.call_done(CmRequest::Destroy { endpoint });
        }
    }
    id.wait_until_released();
    // SAFETY: `Id::create` leaked the box, and nothing leads here any more. The path record was allocated with the C library.
    unsafe {
        let c = id.c();
        if id.is_synchronous() {
            Channel::close((*c).channel);
        }
        libc::free((*c).route.path_rec.cast());
        drop(Box::from_raw(c.cast::<Id>()));
    }
}

/// Moves an id to a channel, or to one of its own.
///
/// # Errors
/// The daemon's; the id stays where it was.
///
/// # Safety
/// The channel is null or live.
pub unsafe fn migrate(id: &Id, channel: *mut rdma_event_channel) -> Result<(), Errno> {
    let becomes_synchronous = channel.is_null();
    let target = if becomes_synchronous { Channel::create()? } else { channel };
    id.drop_event();
    let endpoints = id.state().endpoints.clone();
    // SAFETY: just made, or live per contract.
    let to = unsafe { Channel::of(target) };
    for &(device, endpoint) in &endpoints {
        let channel = to.source(device)?;
        device.call_done(CmRequest::Move { endpoint, channel })?;
    }
    to.put_in(id.channel().take_out(id, &endpoints));
    let was_synchronous = id.is_synchronous.swap(becomes_synchronous.into(), Ordering::Relaxed) != 0;
    // SAFETY: the C part is live; a channel of the id's own is used by nobody else.
    unsafe {
        let before = ptr::replace(&raw mut (*id.c()).channel, target);
        if was_synchronous {
            Channel::close(before);
        }
    }
    id.wait_until_released();
    Ok(())
}

calls! {
    /// Makes an event channel.
    fn rdma_create_event_channel() -> *mut rdma_event_channel,
        => {
            match super::devices::devices().and_then(|_| Channel::create()) {
                Ok(channel) => channel,
                Err(error) => crate::foreign::null(error.0),
            }
        } else crate::foreign::null(libc::ENODEV);

    /// Ends an event channel, whose ids have been destroyed or moved.
    fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) -> (),
        => {
            if !channel.is_null() {
                Channel::close(channel);
            }
        } else ();

    /// Makes an id; without a channel every call on it waits for its event.
    fn rdma_create_id(channel: *mut rdma_event_channel, id: *mut *mut rdma_cm_id, context: *mut c_void, ps: u32) -> c_int,
        => { result(create(channel, id, context, ps)) } else minus_one(libc::ENODEV);

    /// Ends an id, after waiting until its events were acknowledged.
    fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int,
        => { result(Id::of(id).map(|id| destroy(id))) } else minus_one(libc::ENODEV);

    /// Moves an id, with its events, to another channel.
    fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int,
        => { result(Id::of(id).and_then(|id| migrate(id, channel))) } else minus_one(libc::ENODEV);
}
