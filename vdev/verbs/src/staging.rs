//! The staging buffer: where the payload of a send waits when the daemon has no mapping of the program's memory.
//!
//! Without it the daemon reaches such memory through the kernel, and copies twice. Copying here costs the program's processor, once,
//! and leaves the daemon one copy from memory that it has mapped. Payloads that fit into the ring entry do not come here: they are
//! sent as inline data. Large ones stay where they are, and when there is no room the request goes its ordinary way.

use crate::abi::work::ibv_sge;
use crate::context::{Context, lock};
use crate::memory::Sources;
use std::os::fd::AsFd;
use std::sync::Mutex;
use vdev_abi::control::{Reply, Request};
use vdev_abi::layout::{STAGING_BYTES, STAGING_LKEY, Sge};
use vdev_abi::mapping::Mapping;

/// Bytes of a small slot.
const SMALL_SLOT: usize = 4 << 10;
/// Bytes of a large slot.
const SLOT: usize = 64 << 10;
/// Large slots of the buffer.
const SLOTS: u32 = (STAGING_BYTES / SLOT) as u32;
/// Small slots; they lie in the first large ones.
const SMALL_SLOTS: u32 = u128::BITS;
/// The large slots that are not cut into small ones, as clear bits.
const CUT: u128 = (1 << (SMALL_SLOTS as usize * SMALL_SLOT / SLOT)) - 1;
/// Most payload in bytes that is staged: larger ones are few, and gain little.
const MOST: u64 = 1 << 20;

const _: () = assert!(SLOTS == u128::BITS);

/// Where one payload lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// In a small slot.
    Small(u32),
    /// In adjacent large ones.
    Large {
        /// The first.
        first: u32,
        /// How many, 1 to 127.
        count: u32,
    },
}

impl Slots {
    fn bits(self) -> u128 {
        match self {
            Slots::Small(slot) => 1 << slot,
            Slots::Large { first, count } => ((1 << count) - 1) << first,
        }
    }

    /// Of the first byte, in the buffer.
    fn offset(self) -> usize {
        match self {
            Slots::Small(slot) => slot as usize * SMALL_SLOT,
            Slots::Large { first, .. } => first as usize * SLOT,
        }
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
        used: Used,
    },
    /// The daemon has none for us.
    Refused,
}

/// Slots in use, as set bits.
struct Used {
    small: u128,
    large: u128,
}

impl Used {
    const NONE: Used = Used { small: 0, large: CUT };

    /// Takes room for a payload, first fit.
    fn take(&mut self, total: usize) -> Option<Slots> {
        let slots = if total <= SMALL_SLOT {
            (self.small != u128::MAX).then(|| Slots::Small(self.small.trailing_ones()))?
        } else {
            find_room(self.large, u32::try_from(total.div_ceil(SLOT)).ok()?)?
        };
        *self.pool(slots) |= slots.bits();
        Some(slots)
    }

    fn free(&mut self, slots: Slots) {
        *self.pool(slots) &= !slots.bits();
    }

    fn pool(&mut self, slots: Slots) -> &mut u128 {
        match slots {
            Slots::Small(_) => &mut self.small,
            Slots::Large { .. } => &mut self.large,
        }
    }
}

/// First fit: where `count` adjacent clear bits lie.
fn find_room(used: u128, count: u32) -> Option<Slots> {
    let mut first = 0;
    while first + count <= SLOTS {
        let slots = Slots::Large { first, count };
        let blocked = used & slots.bits();
        if blocked == 0 {
            return Some(slots);
        }
        first = u128::BITS - blocked.leading_zeros();
    }
    None
}

impl Staging {
    /// Copies a payload into the buffer if that pays and is possible: where it lies, and the buffer that names it.
    pub fn stage(&self, context: &Context, pd: u32, list: &[ibv_sge], total: u64) -> Option<(Slots, Sge)> {
        if !(1..=MOST).contains(&total) {
            return None;
        }
        let mut sources = Sources::default();
        context.regions.locate(pd, list, &mut sources)?;
        let total = usize::try_from(total).ok()?;
        let (slots, target) = {
            let mut state = lock(&self.0);
            if matches!(*state, State::NotYet) {
                *state = create(context);
            }
            let State::Ready { map, used } = &mut *state else { return None };
            (used.take(total)?, map.as_ptr())
        };
        let mut at = slots.offset();
        for (source, buffer) in sources.iter().zip(list) {
            let len = buffer.length as usize;
            // SAFETY: the source is within a region that the program registered; the target is within slots that are ours alone
            // until they are freed, and the buffer lives as long as the context.
            let copied = unsafe { context.copier.copy(target.add(at), *source, len) };
            if copied.is_err() {
                // Unmapped while registered: the device finds that out, and the request ends as it says.
                self.free(slots);
                return None;
            }
            at += len;
        }
        let length = u32::try_from(total).ok()?;
        Some((slots, Sge { addr: slots.offset() as u64, length, lkey: STAGING_LKEY }))
    }

    /// Gives slots back: their request is complete.
    pub fn free(&self, slots: Slots) {
        if let State::Ready { used, .. } = &mut *lock(&self.0) {
            used.free(slots);
        }
    }
}

fn create(context: &Context) -> State {
    match context.call(&Request::CreateStaging, &[]) {
        Ok((Reply::Staging, fds)) => match fds.first().map(|fd| Mapping::map(fd.as_fd(), STAGING_BYTES)) {
            Some(Ok(map)) => State::Ready { map, used: Used::NONE },
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
        let large = |first, count| Some(Slots::Large { first, count });
        assert_eq!(find_room(0, 127), large(0, 127));
        assert_eq!(find_room(1, 127), large(1, 127));
        assert_eq!(find_room(2, 127), None);
        assert_eq!(find_room(0b1011, 1), large(2, 1));
        assert_eq!(find_room(0b1011, 2), large(4, 2));
        assert_eq!(find_room(u128::MAX, 1), None);
    }

    #[test]
    fn the_pools_lie_apart() {
        let mut used = Used::NONE;
        let small: Vec<_> = std::iter::from_fn(|| used.take(SMALL_SLOT)).collect();
        assert_eq!(small.len(), SMALL_SLOTS as usize);
        let end = small.iter().map(|slots| slots.offset() + SMALL_SLOT).max();
        let large = used.take(SMALL_SLOT + 1).unwrap();
        assert!(end.is_some_and(|end| end <= large.offset()), "{large:?}");
        used.free(small[5]);
        assert_eq!(used.take(1), Some(Slots::Small(5)));
    }

    #[test]
    fn slots_never_overlap() {
        let mut used = Used::NONE;
        let mut held: Vec<Slots> = Vec::new();
        for n in 0..1000usize {
            let before = used.large;
            match used.take((n % 7 + 1) * SLOT) {
                Some(slots) => {
                    assert_eq!(before & slots.bits(), 0);
                    held.push(slots);
                }
                None => used.free(held.swap_remove(n % held.len())),
            }
        }
        let bits = held.iter().map(|slots| slots.bits().count_ones()).sum::<u32>();
        assert_eq!(used.large.count_ones(), bits + CUT.count_ones());
    }
}
