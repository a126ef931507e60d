//! Event channels: the queue of events of some ids, and the descriptor that tells of them.
//!
//! The descriptor is an epoll set, so that programs can poll it and make it non-blocking. In it are a pipe from the daemon of each
//! device whose ids report here, and a bell that rings while events wait on this side. No thread is needed: whoever asks for an
//! event first takes everything that the daemons have.
//!
//! Programs end a channel while another thread of theirs still waits in it. That thread waits for ever then, as it does in the
//! kernel; the channel's memory stays for it.

use super::abi::{event, rdma_event_channel};
use super::devices::CmDevice;
use super::id::Id;
use crate::connection::{Errno, unexpected};
use crate::context::lock;
use core::ffi::c_void;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use vdev_abi::cm::{Address, CmEvent, CmEventKind, CmReply, CmRequest};
use vdev_abi::control::{Handle, Reply, Request};

/// An event channel.
#[repr(C)]
pub struct Channel {
    c: rdma_event_channel,
    set: Epoll,
    bell: EventFd,
    waiting: Mutex<Waiting>,
    is_closed: AtomicBool,
}

#[derive(Default)]
struct Waiting {
    events: VecDeque<Queued>,
    sources: Vec<Source>,
}

/// A daemon's end of the channel.
struct Source {
    device: &'static CmDevice,
    handle: Handle,
    pipe: OwnedFd,
}

/// An event that waits.
pub enum Queued {
    /// One that this library has made.
    Local {
        /// The id, held when the event is taken.
        id: *const Id,
        /// `enum rdma_cm_event_type`.
        event: u32,
        /// 0, or a negative error number.
        status: i32,
    },
    /// A multicast group was joined.
    Joined {
        /// As above.
        id: *const Id,
        /// Which.
        group: Address,
        /// The program's own value.
        context: *mut c_void,
    },
    /// One of a daemon.
    Daemon {
        /// Of which device.
        device: &'static CmDevice,
        /// What.
        event: CmEvent,
    },
}

// SAFETY: an id is purged from the queue before it ends, so that the pointer is good while it is queued; a program's value is only
// handed back.
unsafe impl Send for Queued {}

fn system(error: nix::Error) -> Errno {
    Errno(error as i32)
}

impl Channel {
    /// A channel without events, as programs know it.
    ///
    /// # Errors
    /// The system's.
    pub fn create() -> Result<*mut rdma_event_channel, Errno> {
        let set = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(system)?;
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(system)?;
        set.add(&bell, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(system)?;
        let c = rdma_event_channel { fd: set.0.as_raw_fd() };
        let channel = Channel { c, set, bell, waiting: Mutex::default(), is_closed: AtomicBool::new(false) };
        Ok(Arc::into_raw(Arc::new(channel)).cast_mut().cast())
    }

    /// The channel that a C pointer of ours names.
    ///
    /// # Safety
    /// It is live and ours.
    pub unsafe fn of<'a>(channel: *mut rdma_event_channel) -> &'a Channel {
        // SAFETY: per contract; the C struct is the first member.
        unsafe { &*channel.cast::<Channel>() }
    }

    /// The same, kept alive whatever the program does meanwhile.
    ///
    /// # Safety
    /// As [`Channel::of`].
    pub unsafe fn keep(channel: *mut rdma_event_channel) -> Arc<Channel> {
        let channel = channel.cast_const().cast::<Channel>();
        // SAFETY: per contract; `create` made it with this count.
        unsafe {
            Arc::increment_strong_count(channel);
            Arc::from_raw(channel)
        }
    }

    /// Ends a channel.
    ///
    /// # Safety
    /// It is ours, came from [`Channel::create`], and the program passes it to no call any more.
    pub unsafe fn close(channel: *mut rdma_event_channel) {
        // SAFETY: per contract.
        let channel = unsafe { Arc::from_raw(channel.cast_const().cast::<Channel>()) };
        channel.is_closed.store(true, Ordering::Release);
        for source in std::mem::take(&mut lock(&channel.waiting).sources) {
            let _ = channel.set.delete(&source.pipe);
            // If ids still report here, which programs must not let happen, it lives on with them in the daemon.
            let _ = source.device.call_done(CmRequest::DestroyChannel { channel: source.handle });
        }
    }

    /// The daemon's number of this channel, for endpoints of this device.
    ///
    /// # Errors
    /// The daemon's.
    pub fn source(&self, device: &'static CmDevice) -> Result<Handle, Errno> {
        let mut waiting = lock(&self.waiting);
        if let Some(known) = waiting.sources.iter().find(|source| core::ptr::eq(source.device, device)) {
            return Ok(known.handle);
        }
        let (reply, mut fds) = device.call(CmRequest::CreateChannel)?;
        let (CmReply::Channel(handle), Some(pipe)) = (&reply, fds.pop()) else {
            return Err(unexpected(&Request::Cm(CmRequest::CreateChannel), &Reply::Cm(reply)));
        };
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(system)?;
        self.set.add(&pipe, EpollEvent::new(EpollFlags::EPOLLIN, 1)).map_err(system)?;
        waiting.sources.push(Source { device, handle: *handle, pipe });
        Ok(*handle)
    }

    /// Queues an event of an id.
    pub fn push(&self, id: &Id, event: u32, status: i32) {
        self.queue(Queued::Local { id, event, status });
    }

    /// Queues an event.
    pub fn queue(&self, event: Queued) {
        let mut waiting = lock(&self.waiting);
        waiting.events.push_back(event);
        self.ring(&waiting);
    }

    /// Takes out the events that wait for an id with these endpoints, the daemons' included; with a listener also the requests to it.
    pub fn take_out(&self, id: &Id, endpoints: &[(&'static CmDevice, Handle)]) -> VecDeque<Queued> {
        let mut waiting = lock(&self.waiting);
        self.fetch(&mut waiting);
        let is_theirs = |queued: &Queued| match queued {
            Queued::Local { id: other, .. } | Queued::Joined { id: other, .. } => core::ptr::eq(*other, id),
            Queued::Daemon { device, event } => {
                let about = match event.kind {
                    CmEventKind::ConnectRequest { listener, .. } => listener,
                    _ => event.endpoint,
                };
                endpoints.iter().any(|&(of, endpoint)| core::ptr::eq(of, *device) && endpoint == about)
            }
        };
        let (theirs, others) = std::mem::take(&mut waiting.events).into_iter().partition(is_theirs);
        waiting.events = others;
        self.ring(&waiting);
        theirs
    }

    /// Puts events that were taken out of another channel before those that wait here.
    pub fn put_in(&self, events: VecDeque<Queued>) {
        let mut waiting = lock(&self.waiting);
        for queued in events.into_iter().rev() {
            waiting.events.push_front(queued);
        }
        self.ring(&waiting);
    }

    /// The oldest event. Waits for one, unless the program has made the descriptor non-blocking.
    ///
    /// # Errors
    /// `EAGAIN`.
    pub fn take(&self) -> Result<Queued, Errno> {
        loop {
            while self.is_closed.load(Ordering::Acquire) {
                std::thread::park();
            }
            let mut waiting = lock(&self.waiting);
            if waiting.events.is_empty() {
                self.fetch(&mut waiting);
            }
            let taken = waiting.events.pop_front();
            if let Some(Queued::Local { id, .. } | Queued::Joined { id, .. }) = &taken {
                // SAFETY: purged from the queue before it ends, which takes the lock that we have.
                unsafe { (**id).hold() };
            }
            self.ring(&waiting);
            drop(waiting);
            if let Some(taken) = taken {
                return Ok(taken);
            }
            let flags = fcntl(&self.set.0, FcntlArg::F_GETFL).map_err(system)?;
            if OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK) {
                return Err(Errno(libc::EAGAIN));
            }
            match poll(&mut [PollFd::new(self.set.0.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE) {
                Ok(_) | Err(nix::Error::EINTR) => {}
                Err(error) => return Err(system(error)),
            }
        }
    }

    /// Takes all that the daemons have. When one is gone, its ids learn that their device is.
    fn fetch(&self, waiting: &mut Waiting) {
        let Waiting { events, sources } = waiting;
        sources.retain(|source| {
            loop {
                let mut ticks = [0; 512];
                match nix::unistd::read(&source.pipe, &mut ticks) {
                    Err(nix::Error::EAGAIN) => return true,
                    Ok(1..) => {}
                    // The end of the pipe: the daemon is gone.
                    Ok(0) | Err(_) => break,
                }
                // Ticks are read before the events, and again after them: none is left for an event that has been taken, which
                // would make the descriptor readable for nothing, and none is lost for one that has not.
                let next = CmRequest::NextEvent { channel: source.handle };
                while let Ok((CmReply::Event(Some(event)), _)) = source.device.call(next.clone()) {
                    events.push_back(Queued::Daemon { device: source.device, event });
                }
            }
            let _ = self.set.delete(&source.pipe);
            for id in lock(&source.device.ids).values() {
                // SAFETY: live while it stands in the table.
                if unsafe { (*id.0).reports_to(self) } {
                    events.push_back(Queued::Local { id: id.0, event: event::DEVICE_REMOVAL, status: -libc::ENODEV });
                }
            }
            false
        });
    }

    /// Makes the descriptor readable exactly while events wait here.
    fn ring(&self, waiting: &Waiting) {
        // Neither can fail in a way that matters: the counter is small, and reading an empty one is no harm.
        let _ = self.bell.read();
        if !waiting.events.is_empty() {
            let _ = self.bell.write(1);
        }
    }
}
