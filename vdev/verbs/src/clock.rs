//! The clocks that programs compare completion times with.
//!
//! Completions carry the daemon's monotonic clock in nanoseconds, which is the same in every process of the host outside time
//! namespaces.

use crate::abi::device::ibv_context;
use crate::abi::extended::{VALUES_RAW_CLOCK, ibv_values_ex};
use crate::connection::Errno;
use crate::foreign::code;
use core::ffi::c_int;

/// Frequency of the raw clock in kHz: nanoseconds.
pub const RAW_CLOCK_KHZ: u64 = 1_000_000;

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a writable struct; both clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.cast_unsigned())
}

/// The clock that completions are stamped with.
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Time of day.
pub fn realtime_ns() -> u64 {
    clock_ns(libc::CLOCK_REALTIME)
}

/// `ibv_query_rt_values_ex`, called through the context: the raw clock now, in ticks. The answer's mask says what was given.
///
/// # Safety
/// The context is live and ours, and the values are readable and writable.
pub unsafe extern "C" fn query_rt_values(_context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    // SAFETY: per contract.
    let values = unsafe { &mut *values };
    if values.comp_mask & !VALUES_RAW_CLOCK != 0 {
        return code(Err(Errno(libc::EINVAL)));
    }
    if values.comp_mask & VALUES_RAW_CLOCK != 0 {
        // Ticks, for which the interface uses the nanoseconds of a `timespec` whatever a tick is.
        values.raw_clock = [0, monotonic_ns().cast_signed()];
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr;

    #[test]
    fn only_what_is_known_is_answered() {
        let mut values = ibv_values_ex { comp_mask: 2, raw_clock: [7; 2] };
        // SAFETY: the context is not looked at.
        assert_eq!(unsafe { query_rt_values(ptr::null_mut(), &mut values) }, libc::EINVAL);
        values.comp_mask = VALUES_RAW_CLOCK;
        let before = monotonic_ns();
        // SAFETY: as above.
        assert_eq!(unsafe { query_rt_values(ptr::null_mut(), &mut values) }, 0);
        assert_eq!(values.raw_clock[0], 0);
        assert!((before..=monotonic_ns()).contains(&values.raw_clock[1].cast_unsigned()));
    }
}
