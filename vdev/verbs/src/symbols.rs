//! `dlvsym`, for programs that load libibverbs at run time.
//!
//! Such a program asks for versioned names in the handle of the library that it loaded, which leads past a preloaded library.
//! Versions that begin with `IBVERBS_` are answered with our functions where we have them; all else goes to the C library. It goes
//! there by a jump and not by a call: for `RTLD_NEXT` the C library looks at the return address to learn who asks, and interposing
//! libraries that ask for the function behind them must not be taken for us.

use crate::foreign::{Real, origin};
use core::ffi::{CStr, c_char, c_void};
use core::ptr;
use std::sync::OnceLock;

/// Where a call of `dlvsym` goes on.
#[repr(C)]
struct Choice {
    /// The answer, if it is one of our functions.
    ours: *mut c_void,
    /// The C library's `dlvsym`, for all else.
    real: *mut c_void,
}

/// As in the C library, except for the verbs that this library has.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlvsym(handle: *mut c_void, symbol: *const c_char, version: *const c_char) -> *mut c_void {
    // The arguments are kept for the jump; three pushes also align the stack for the call. The choice comes back in two registers.
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "call {choose}",
        "mov r11, rdx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "ret",
        "2:",
        "jmp r11",
        choose = sym choose,
    )
}

/// As in the C library, except for the verbs that this library has. `RTLD_NEXT` means "behind this library" here.
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlvsym(handle: *mut c_void, symbol: *const c_char, version: *const c_char) -> *mut c_void {
    // SAFETY: the arguments are the caller's; the C library's function of this name has this signature.
    unsafe {
        let choice = choose(symbol, version);
        if !choice.ours.is_null() {
            return choice.ours;
        }
        let real: unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void =
            core::mem::transmute(choice.real);
        real(handle, symbol, version)
    }
}

/// # Safety
/// Both texts are null or C strings.
unsafe extern "C" fn choose(symbol: *const c_char, version: *const c_char) -> Choice {
    static REAL: Real = Real::new(c"dlvsym");
    let mut ours = ptr::null_mut();
    if !symbol.is_null() && !version.is_null() {
        // SAFETY: per contract.
        let (name, version) = unsafe { (CStr::from_ptr(symbol), CStr::from_ptr(version)) };
        if version.to_bytes().starts_with(b"IBVERBS_") {
            ours = own(name);
        }
    }
    Choice { ours, real: REAL.get().unwrap_or(nothing as *mut c_void) }
}

/// Stands in where the C library has no `dlvsym`.
extern "C" fn nothing(_handle: *mut c_void, _symbol: *const c_char, _version: *const c_char) -> *mut c_void {
    ptr::null_mut()
}

/// Our function with this name.
fn own(name: &CStr) -> *mut c_void {
    static HANDLE: OnceLock<usize> = OnceLock::new();
    let handle = *HANDLE.get_or_init(|| {
        let Some((file, _)) = origin(own as *const c_void) else { return 0 };
        // SAFETY: a C string. NOLOAD only finds what is there: the library that holds that address.
        unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) as usize }
    });
    let is_verb = [b"ibv_".as_slice(), b"_ibv_", b"mult_to_ibv", b"mbps_to_ibv"].iter().any(|p| name.to_bytes().starts_with(p));
    if handle == 0 || !is_verb {
        return ptr::null_mut();
    }
    // SAFETY: a live handle and a C string. The search also covers the C library, which has no such names.
    unsafe { libc::dlsym(handle as *mut c_void, name.as_ptr()) }
}
