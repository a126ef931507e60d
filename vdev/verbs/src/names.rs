//! Strings for codes, and conversions of rates. Needs no device, so that it also works where no RDMA library is installed.

use crate::foreign::{Real, minus_one};
use core::ffi::{CStr, c_char, c_int, c_void};

fn pick(names: &[&'static CStr], code: c_int, unknown: &'static CStr) -> *const c_char {
    usize::try_from(code).ok().and_then(|code| names.get(code)).unwrap_or(&unknown).as_ptr()
}

/// `enum ibv_wc_status` in words.
#[cfg_attr(not(versioned), unsafe(no_mangle))]
pub extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    let names = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    pick(&names, status, c"unknown")
}

/// `enum ibv_node_type` in words.
#[cfg_attr(not(versioned), unsafe(no_mangle))]
pub extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    let names = [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    pick(&names, node_type, c"unknown")
}

/// `enum ibv_port_state` in words; `ibv_devinfo` prints it in brackets.
#[cfg_attr(not(versioned), unsafe(no_mangle))]
pub extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    let names = [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    pick(&names, state, c"unknown")
}

/// `enum ibv_event_type` in words.
#[cfg_attr(not(versioned), unsafe(no_mangle))]
pub extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    let names = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    pick(&names, event, c"unknown")
}

/// `enum ibv_rate`, its multiple of 2.5 Gb/s (0 if it is none), and its Mb/s as the interface states it.
const RATES: [(c_int, c_int, c_int); 23] = [
    (2, 1, 2500),
    (3, 4, 10000),
    (4, 12, 30000),
    (5, 2, 5000),
    (6, 8, 20000),
    (7, 16, 40000),
    (8, 24, 60000),
    (9, 32, 80000),
    (10, 48, 120000),
    (11, 0, 14062),
    (12, 0, 56250),
    (13, 0, 112500),
    (14, 0, 168750),
    (15, 0, 25781),
    (16, 0, 103125),
    (17, 0, 206250),
    (18, 0, 309375),
    (19, 11, 28125),
    (20, 20, 53125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

/// Multiple of 2.5 Gb/s, or -1.
#[cfg_attr(not(versioned), unsafe(no_mangle))]
pub extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|entry| entry.0 == rate && entry.1 > 0).map_or(-1, |entry| entry.1)
}

/// The rate with this multiple of 2.5 Gb/s, or 0, no limit.
#[cfg_attr(not(versioned), unsafe(no_mangle))]
pub extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_int {
    RATES.iter().find(|entry| entry.1 == mult && mult > 0).map_or(0, |entry| entry.0)
}

/// Mb/s, or -1.
#[cfg_attr(not(versioned), unsafe(no_mangle))]
pub extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|entry| entry.0 == rate && entry.2 > 0).map_or(-1, |entry| entry.2)
}

/// The rate with these Mb/s, or 0, no limit.
#[cfg_attr(not(versioned), unsafe(no_mangle))]
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|entry| entry.2 == mbps && mbps > 0).map_or(0, |entry| entry.0)
}

/// Where sysfs is.
#[cfg_attr(not(versioned), unsafe(no_mangle))]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    static REAL: Real = Real::new(c"ibv_get_sysfs_path");
    match REAL.get() {
        // SAFETY: the real function of this name has this signature.
        Some(real) => unsafe { core::mem::transmute::<*mut c_void, extern "C" fn() -> *const c_char>(real)() },
        None => c"/sys".as_ptr(),
    }
}

/// Reads a small file below a directory, without the final line break; its length, or -1.
///
/// # Safety
/// C strings, and `size` writable bytes.
#[cfg_attr(not(versioned), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: the caller passes C strings.
    let (directory, file) = unsafe { (CStr::from_ptr(directory), CStr::from_ptr(file)) };
    let path = format!("{}/{}", directory.to_string_lossy(), file.to_string_lossy());
    let mut content = match std::fs::read(path) {
        Ok(content) => content,
        Err(error) => return minus_one(error.raw_os_error().unwrap_or(libc::EIO)),
    };
    content.truncate(size);
    if content.last() == Some(&b'\n') {
        content.pop();
    }
    // SAFETY: at most `size` bytes, to memory that the caller vouches for; a zero byte only where there is room.
    unsafe {
        core::ptr::copy_nonoverlapping(content.as_ptr(), buffer.cast::<u8>(), content.len());
        if content.len() < size {
            *buffer.add(content.len()) = 0;
        }
    }
    c_int::try_from(content.len()).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(name: *const c_char) -> &'static str {
        // SAFETY: the functions give static C strings.
        unsafe { CStr::from_ptr(name) }.to_str().unwrap()
    }

    #[test]
    fn codes_have_words() {
        assert_eq!(words(ibv_wc_status_str(12)), "transport retry counter exceeded");
        assert_eq!(words(ibv_wc_status_str(-1)), "unknown");
        assert_eq!(words(ibv_port_state_str(4)), "active");
        assert_eq!(words(ibv_event_type_str(19)), "WQ fatal");
        assert_eq!(words(ibv_node_type_str(99)), "unknown");
    }

    #[test]
    fn rates_convert_both_ways() {
        for (rate, mult, mbps) in RATES.into_iter().filter(|entry| entry.2 > 0) {
            assert_eq!(mbps_to_ibv_rate(ibv_rate_to_mbps(rate)), rate);
            assert_eq!(ibv_rate_to_mbps(rate), mbps);
            if mult > 0 {
                assert_eq!(mult_to_ibv_rate(mult), rate);
            }
        }
        assert_eq!((ibv_rate_to_mult(0), ibv_rate_to_mbps(99), mbps_to_ibv_rate(7)), (-1, -1, 0));
    }
}
