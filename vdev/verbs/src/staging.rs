//! The staging buffer: where the payload of a send waits when the daemon has no mapping of the program's memory.
//!
//! Without it the daemon reaches such memory through the kernel, and copies twice. Copying here costs the program's processor, once,
//! and leaves the daemon one copy from memory that it has mapped. Only for payloads large enough to gain and small enough to fit in
//! numbers; when there is no room the request goes its ordinary way.

use crate::abi::work::ibv_sge;
use crate::context::{Context, lock};
use std::os::fd::AsFd;
use std::sync::Mutex;
use vdev_abi::control::{Reply, Request};
use vdev_abi::layout::{STAGING_BYTES, STAGING_LKEY, Sge};
use vdev_abi::mapping::Mapping;

/// Bytes of a slot.
const SLOT: usize = 64 << 10;
/// Slots of the buffer.
const SLOTS: u32 = (STAGING_BYTES / SLOT) as u32;
/// Least payload in bytes that is staged: below it the daemon's system call costs more than the copy.
const LEAST: u64 = 4 << 10;
/// Most payload in bytes that is staged.
const MOST: u64 = 1 << 20;

const _: () = assert!(SLOTS == u128::BITS);

/// Adjacent slots of one payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    first: u32,
    count: u32,
}

impl Slots {
    fn bits(self) -> u128 {
        let low = if self.count >= SLOTS { u128::MAX } else { (1 << self.count) - 1 };
        low << self.first
    }
}

/// The staging buffer of a connection, made when first needed.
#[derive(Default)]
pub struct Staging(Mutex<State>);

#[derive(Default)]
enum State {
    #[default]
    NotYet,
    Ready {
        map: Mapping,
        used: u128,
    },
    /// The daemon has none for us.
    Refused,
}

/// First fit: where `count` adjacent clear bits lie.
fn find_room(used: u128, count: u32) -> Option<Slots> {
    let mut first = 0;
    while first + count <= SLOTS {
        let blocked = used & Slots { first, count }.bits();
        if blocked == 0 {
            return Some(Slots { first, count });
        }
        first = u128::BITS - blocked.leading_zeros();
    }
    None
}

impl Staging {
    /// Copies a payload into the buffer if that pays and is possible: where it lies, and the buffer that names it.
    pub fn stage(&self, context: &Context, pd: u32, list: &[ibv_sge], total: u64) -> Option<(Slots, Sge)> {
        if !(LEAST..=MOST).contains(&total) {
            return None;
        }
        let mut sources = [core::ptr::null(); 16];
        for (source, buffer) in sources.get_mut(..list.len())?.iter_mut().zip(list) {
            *source = context.regions.find(pd, buffer.lkey, buffer.addr, buffer.length)?;
        }
        let (slots, target) = {
            let mut state = lock(&self.0);
            if matches!(*state, State::NotYet) {
                *state = create(context);
            }
            let State::Ready { map, used } = &mut *state else { return None };
            let count = u32::try_from(total.div_ceil(SLOT as u64)).ok()?;
            let slots = find_room(*used, count)?;
            *used |= slots.bits();
            (slots, map.as_ptr())
        };
        let offset = slots.first as usize * SLOT;
        let mut at = offset;
        for (source, buffer) in sources.iter().zip(list) {
            let len = buffer.length as usize;
            // SAFETY: the source is within a region that the program registered and has to keep; the target is within slots
            // that are ours alone until they are freed, and the buffer lives as long as the context.
            unsafe { crate::copy::copy(*source, target.add(at), len) };
            at += len;
        }
        let length = u32::try_from(total).ok()?;
        Some((slots, Sge { addr: offset as u64, length, lkey: STAGING_LKEY }))
    }

    /// Gives slots back: their request is complete.
    pub fn free(&self, slots: Slots) {
        if let State::Ready { used, .. } = &mut *lock(&self.0) {
            *used &= !slots.bits();
        }
    }
}

fn create(context: &Context) -> State {
    match context.call(&Request::CreateStaging, &[]) {
        Ok((Reply::Staging, fds)) => match fds.first().map(|fd| Mapping::map(fd.as_fd(), STAGING_BYTES)) {
            Some(Ok(map)) => State::Ready { map, used: 0 },
            _ => State::Refused,
        },
        _ => State::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_found_first_fit() {
        assert_eq!(find_room(0, 128), Some(Slots { first: 0, count: 128 }));
        assert_eq!(find_room(1, 128), None);
        assert_eq!(find_room(0b1011, 1), Some(Slots { first: 2, count: 1 }));
        assert_eq!(find_room(0b1011, 2), Some(Slots { first: 4, count: 2 }));
        assert_eq!(find_room(u128::MAX >> 1, 1), Some(Slots { first: 127, count: 1 }));
        assert_eq!(find_room(u128::MAX, 1), None);
    }

    #[test]
    fn slots_never_overlap() {
        let mut used = 0u128;
        let mut held = Vec::new();
        for n in 0..1000u32 {
            match find_room(used, n % 7 + 1) {
                Some(slots) => {
                    assert_eq!(used & slots.bits(), 0);
                    used |= slots.bits();
                    held.push(slots);
                }
                None => {
                    let freed = held.swap_remove(n as usize % held.len());
                    used &= !freed.bits();
                }
            }
        }
        assert_eq!(used.count_ones(), held.iter().map(|slots| slots.count).sum());
    }
}
