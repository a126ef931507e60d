//! Asynchronous events. The daemon writes them to a pipe; its end is an event too: the one and only `IBV_EVENT_DEVICE_FATAL`.

use crate::abi::codes::event;
use crate::abi::device::ibv_context;
use crate::abi::object::{ibv_async_event, ibv_cq, ibv_qp, ibv_srq};
use crate::channel::{Event, read_record};
use crate::connection::{Errno, GONE};
use crate::context::{Context, Object};
use crate::cq::Cq;
use crate::foreign::{minus_one, own_context, own_object, verbs};
use crate::qp::Qp;
use crate::srq::Srq;
use core::ffi::{c_int, c_void};
use core::ptr;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

/// What an event of this type is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    Cq,
    Qp,
    Srq,
    Port,
    Device,
}

fn about(event_type: u32) -> Option<About> {
    match event_type {
        event::CQ_ERR => Some(About::Cq),
        event::QP_FATAL..=event::PATH_MIG_ERR | event::QP_LAST_WQE_REACHED => Some(About::Qp),
        event::PORT_ACTIVE..=event::SM_CHANGE | event::CLIENT_REREGISTER | event::GID_CHANGE => Some(About::Port),
        event::SRQ_ERR | event::SRQ_LIMIT_REACHED => Some(About::Srq),
        event::DEVICE_FATAL => Some(About::Device),
        _ => None,
    }
}

fn next_event(context: &Context) -> Result<ibv_async_event, Errno> {
    loop {
        // A lost daemon is noticed by the end of the pipe, after the events that it still wrote.
        if context.fatal_given.load(Ordering::Acquire) {
            return Err(GONE);
        }
        match context.check() {
            Err(error) if error != GONE => return Err(error),
            _ => {}
        }
        let record: [u8; 16] = match read_record(context.async_fd.as_raw_fd()) {
            Event::Record(record) => record,
            Event::End => {
                context.connection.hang_up();
                if context.fatal_given.swap(true, Ordering::AcqRel) {
                    return Err(GONE);
                }
                return Ok(ibv_async_event { element: ptr::null_mut(), event_type: event::DEVICE_FATAL });
            }
            Event::None(error) => return Err(error),
        };
        // `AsyncRecord`: event type, reserved, cookie.
        let [a, b, c, d, ..] = record;
        let event_type = u32::from_ne_bytes([a, b, c, d]);
        let cookie = u64::from_ne_bytes(record[8..].try_into().unwrap_or_default());
        let element: *mut c_void = match about(event_type) {
            Some(About::Port) => cookie as *mut c_void,
            Some(About::Device) => ptr::null_mut(),
            Some(About::Cq | About::Qp | About::Srq) => match context.event_for(cookie) {
                Some(Object::Cq(cq)) => cq.cast(),
                Some(Object::Qp(qp)) => qp.cast(),
                Some(Object::Srq(srq)) => srq.cast(),
                // Of an object that was destroyed meanwhile.
                None => continue,
            },
            None => continue,
        };
        return Ok(ibv_async_event { element, event_type });
    }
}

/// # Safety
/// The event came from [`next_event`] and was not acknowledged yet.
unsafe fn acknowledge(event: &ibv_async_event) {
    match about(event.event_type) {
        // SAFETY: objects with events that are not acknowledged are live.
        Some(About::Cq) => unsafe {
            let cq = event.element.cast::<ibv_cq>();
            Context::of((*cq).context).acknowledge(Cq::of(cq).cookie(), 1);
        },
        // SAFETY: as above.
        Some(About::Qp) => unsafe {
            let qp = event.element.cast::<ibv_qp>();
            Context::of((*qp).context).acknowledge(Qp::of(qp).cookie(), 1);
        },
        // SAFETY: as above.
        Some(About::Srq) => unsafe {
            let srq = event.element.cast::<ibv_srq>();
            Context::of((*srq).context).acknowledge(Srq::of(srq).cookie(), 1);
        },
        _ => {}
    }
}

/// Whether an event is about one of our objects.
///
/// # Safety
/// The event came from `ibv_get_async_event`.
unsafe fn own_event(event: *const ibv_async_event) -> bool {
    // SAFETY: per contract; an element of these types is an object.
    unsafe {
        match about((*event).event_type) {
            Some(About::Cq | About::Qp | About::Srq) => own_object((*event).element),
            // The real library has nothing to do for events without an object.
            Some(About::Port | About::Device) => true,
            None => false,
        }
    }
}

verbs! {
    /// Waits for an event (or does not, where the descriptor is non-blocking).
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int,
        if own_context(context) => {
            match next_event(Context::of(context)) {
                Ok(next) => {
                    event.write(next);
                    0
                }
                Err(error) => minus_one(error.0),
            }
        } else minus_one(libc::EINVAL);

    /// Acknowledges an event, so that its object may be destroyed.
    fn ibv_ack_async_event(event: *mut ibv_async_event) -> (),
        if own_event(event) => { acknowledge(&*event) } else ();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_types_name_their_objects() {
        let kinds: Vec<_> = (0..20).map(about).collect();
        assert_eq!(kinds[0], Some(About::Cq));
        assert_eq!((kinds[1], kinds[7], kinds[16]), (Some(About::Qp), Some(About::Qp), Some(About::Qp)));
        assert_eq!(kinds[8], Some(About::Device));
        assert_eq!((kinds[9], kinds[13], kinds[18]), (Some(About::Port), Some(About::Port), Some(About::Port)));
        assert_eq!((kinds[14], kinds[15]), (Some(About::Srq), Some(About::Srq)));
        assert_eq!(kinds[19], None, "work queues");
    }
}
