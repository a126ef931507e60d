//! Completion channels: the pipe that tells of events of completion queues.
//!
//! An event is the 8-byte cookie of its completion queue. The program polls the descriptor itself and may make it non-blocking.

use crate::abi::device::ibv_context;
use crate::abi::object::{ibv_comp_channel, ibv_cq};
use crate::connection::{Errno, unexpected};
use crate::context::{Context, Object};
use crate::cq::Cq;
use crate::foreign::{code, minus_one, null, own_context, own_object, pointer, verbs};
use core::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use vdev_abi::control::{Reply, Request};

/// A completion channel.
#[repr(C)]
pub struct Channel {
    ibv: ibv_comp_channel,
    handle: u32,
    pipe: OwnedFd,
    /// Completion queues that report here.
    pub queues: AtomicU32,
}

impl Channel {
    /// The channel that a C pointer of ours names.
    ///
    /// # Safety
    /// It is live and ours.
    pub unsafe fn of<'a>(channel: *mut ibv_comp_channel) -> &'a Channel {
        // SAFETY: per contract; the C struct is the first member.
        unsafe { &*channel.cast::<Channel>() }
    }

    /// The daemon's number for it.
    pub fn handle(&self) -> u32 {
        self.handle
    }
}

fn create(context: &Context) -> Result<*mut ibv_comp_channel, Errno> {
    let request = Request::CreateChannel;
    let (reply, mut fds) = context.call(&request, &[])?;
    let (Reply::Channel(handle), Some(pipe)) = (&reply, fds.pop()) else { return Err(unexpected(&request, &reply)) };
    context.users.fetch_add(1, Ordering::AcqRel);
    let ibv = ibv_comp_channel { context: context.as_ibv(), fd: pipe.as_raw_fd(), refcnt: 0 };
    Ok(Box::into_raw(Box::new(Channel { ibv, handle: *handle, pipe, queues: AtomicU32::new(0) })).cast())
}

/// # Safety
/// The channel is live and ours.
unsafe fn destroy(channel: *mut ibv_comp_channel) -> Result<(), Errno> {
    // SAFETY: per contract.
    let (ours, context) = unsafe { (Channel::of(channel), Context::of((*channel).context)) };
    if ours.queues.load(Ordering::Acquire) != 0 {
        return Err(Errno(libc::EBUSY));
    }
    context.call_done(&Request::DestroyChannel { channel: ours.handle })?;
    context.users.fetch_sub(1, Ordering::AcqRel);
    // SAFETY: `create` made it as a box, and no queue names it.
    drop(unsafe { Box::from_raw(channel.cast::<Channel>()) });
    Ok(())
}

/// What reading one record from an event pipe gave.
pub enum Event<T> {
    /// A record.
    Record(T),
    /// The daemon is gone.
    End,
    /// No record, with the reason: `EAGAIN` where the program made the pipe non-blocking, `EINTR` where a signal came whose handler
    /// the program did not install with `SA_RESTART`: such programs want to be told.
    None(Errno),
}

/// Reads one record of `N` bytes. The daemon writes whole records, so that a pipe never holds a part of one.
pub fn read_record<const N: usize>(pipe: c_int) -> Event<[u8; N]> {
    let mut record = [0; N];
    // SAFETY: `N` writable bytes.
    let read = unsafe { libc::read(pipe, record.as_mut_ptr().cast(), N) };
    match usize::try_from(read) {
        Ok(len) if len == N => Event::Record(record),
        Ok(0) => Event::End,
        Ok(_) => Event::None(Errno(libc::EPROTO)),
        Err(_) => Event::None(Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))),
    }
}

/// # Safety
/// The channel is live and ours.
unsafe fn next_event(channel: *mut ibv_comp_channel) -> Result<(*mut ibv_cq, *mut c_void), Errno> {
    // SAFETY: per contract.
    let (ours, context) = unsafe { (Channel::of(channel), Context::of((*channel).context)) };
    loop {
        context.check()?;
        match read_record::<8>(ours.pipe.as_raw_fd()) {
            Event::Record(cookie) => {
                if let Some(Object::Cq(cq)) = context.event_for(u64::from_ne_bytes(cookie)) {
                    let cq = cq.cast::<ibv_cq>();
                    // SAFETY: the queue is live: destroying it waits for the acknowledgement that is owed from now on.
                    return Ok((cq, unsafe { (*cq).cq_context }));
                }
                // Of a queue that was destroyed meanwhile.
            }
            Event::End => {
                context.connection.look();
                return Err(crate::connection::GONE);
            }
            Event::None(error) => return Err(error),
        }
    }
}

verbs! {
    /// Makes a channel.
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel,
        if own_context(context) => { pointer(create(Context::of(context))) } else null(libc::EINVAL);

    /// Ends a channel; `EBUSY` while completion queues report to it.
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int,
        if own_object(channel) => { code(destroy(channel)) } else libc::EINVAL;

    /// Waits for an event (or does not, where the descriptor is non-blocking): the queue and the program's value for it.
    fn ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> c_int,
        if own_object(channel) => {
            match next_event(channel) {
                Ok((queue, value)) => {
                    *cq = queue;
                    *cq_context = value;
                    0
                }
                Err(error) => minus_one(error.0),
            }
        } else minus_one(libc::EINVAL);

    /// Acknowledges events, so that the queue may be destroyed.
    fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) -> (),
        if own_object(cq) => {
            let ours = Cq::of(cq);
            Context::of((*cq).context).acknowledge(ours.cookie(), u64::from(events));
        } else ();
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    use std::io::Write;
    use std::sync::mpsc;
    use std::time::Duration;

    extern "C" fn nothing(_: c_int) {}

    fn handle(flags: SaFlags) {
        let action = SigAction::new(SigHandler::Handler(nothing), flags, SigSet::empty());
        // SAFETY: the handler does nothing, and no other test uses this signal.
        unsafe { sigaction(Signal::SIGURG, &action) }.unwrap();
    }

    /// As the C library's calls: programs bound their waiting with an alarm.
    #[test]
    fn a_signal_ends_waiting_unless_its_handler_says_otherwise() {
        for restarts in [false, true] {
            handle(if restarts { SaFlags::SA_RESTART } else { SaFlags::empty() });
            let (pipe, mut writer) = std::io::pipe().unwrap();
            let (to_me, from_it) = mpsc::channel();
            let waiting = std::thread::spawn(move || {
                // SAFETY: it only tells this thread's number.
                to_me.send(unsafe { libc::pthread_self() }).unwrap();
                read_record::<8>(pipe.as_raw_fd())
            });
            let thread = from_it.recv().unwrap();
            // When it waits cannot be seen, so that one of several signals has to find it there.
            for _ in 0..if restarts { 50 } else { u32::MAX } {
                if waiting.is_finished() {
                    break;
                }
                // SAFETY: it has not been joined, so that its number is still its own.
                unsafe { libc::pthread_kill(thread, Signal::SIGURG as c_int) };
                std::thread::sleep(Duration::from_millis(1));
            }
            // Nobody reads any more where the wait has ended.
            let _ = writer.write_all(&[7; 8]);
            match waiting.join().unwrap() {
                Event::Record(record) => assert!(restarts && record == [7; 8]),
                Event::None(Errno(error)) => assert!(!restarts && error == libc::EINTR, "{error}"),
                Event::End => panic!("the pipe is open"),
            }
        }
    }
}
