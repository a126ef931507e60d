//! `dlvsym`, for programs that load libibverbs at run time.
//!
//! Such a program asks for versioned names in the handle of the library that it loaded, which leads past a preloaded library.
//! Versions that begin with `IBVERBS_` are answered with our functions where we have them; all else goes to the C library.

use crate::foreign::Real;
use core::ffi::{CStr, c_char, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use std::sync::OnceLock;

type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// As in the C library, except for the verbs that this library has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlvsym(handle: *mut c_void, symbol: *const c_char, version: *const c_char) -> *mut c_void {
    if !symbol.is_null() && !version.is_null() {
        // SAFETY: the caller passes C strings.
        let (name, version) = unsafe { (CStr::from_ptr(symbol), CStr::from_ptr(version)) };
        if version.to_bytes().starts_with(b"IBVERBS_") {
            let ours = own(name);
            if !ours.is_null() {
                return ours;
            }
        }
    }
    static REAL: Real = Real::new(c"dlvsym");
    match REAL.get() {
        // SAFETY: the C library's function of this name has this signature; the arguments are the caller's.
        Some(real) => unsafe { core::mem::transmute::<*mut c_void, Dlvsym>(real)(handle, symbol, version) },
        None => ptr::null_mut(),
    }
}

/// Our function with this name.
fn own(name: &CStr) -> *mut c_void {
    static HANDLE: OnceLock<usize> = OnceLock::new();
    let handle = *HANDLE.get_or_init(|| {
        let mut info = MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: an address of ours, and room for the answer, which is read only if there is one. NOLOAD only finds what is
        // there: the library that holds that address.
        unsafe {
            if libc::dladdr(own as *const c_void, info.as_mut_ptr()) == 0 {
                return 0;
            }
            libc::dlopen(info.assume_init().dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) as usize
        }
    });
    if handle == 0 || !name.to_bytes().windows(4).any(|part| part == b"ibv_" || part == b"_ibv") {
        return ptr::null_mut();
    }
    // SAFETY: a live handle and a C string. The search also covers the C library, which has no such names.
    unsafe { libc::dlsym(handle as *mut c_void, name.as_ptr()) }
}
