//! rsockets, for the library in the place of `librdmacm.so.1`: those of the distribution, on connections of ours.
//!
//! The distribution's library makes sockets out of the public calls of connection management and verbs, and finds those here, as
//! this library stands before it in the search order. So it is loaded from beside the C library when the first socket is made, and
//! each call goes on to it. Where it is not installed, or this library was put in its very place, there are no rsockets.

use crate::foreign::{origin, set_errno};
use core::ffi::{CStr, c_void};
use core::mem::transmute;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

/// The distribution's library, as a handle of the loader.
fn system() -> Option<*mut c_void> {
    static HANDLE: OnceLock<Option<usize>> = OnceLock::new();
    let handle = HANDLE.get_or_init(|| {
        let (c_library, _) = origin(libc::getpid as *const c_void)?;
        let path = Path::new(OsStr::from_bytes(c_library.to_bytes())).with_file_name("librdmacm.so.1");
        let path = CString::new(path.into_os_string().into_encoded_bytes()).ok()?;
        // SAFETY: C strings. Loading the distribution's library runs what it does on being loaded, as in any program that uses it.
        let (handle, socket) = unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            if handle.is_null() {
                return None;
            }
            (handle, libc::dlsym(handle, c"rsocket".as_ptr()))
        };
        let is_this = || origin(socket).map(|(_, base)| base) == origin(system as *const c_void).map(|(_, base)| base);
        (!socket.is_null() && !is_this()).then_some(handle as usize)
    });
    handle.map(|handle| handle as *mut c_void)
}

/// Any function of rsockets: at most six arguments, each in a register of its own, and a number as the answer. What is in the
/// registers goes on as it is, so that one type stands for all of them.
type Call = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> isize;

fn find(name: &CStr) -> Option<Call> {
    let handle = system()?;
    // SAFETY: a live handle and a C string.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    // SAFETY: a function of this name is one of rsockets, which `Call` stands for.
    (!address.is_null()).then(|| unsafe { transmute::<*mut c_void, Call>(address) })
}

macro_rules! sockets {
    ($($name:ident)*) => {
        $(
            /// As in the distribution's library; -1 with `ENOSYS` where that is absent.
            pub unsafe extern "C" fn $name(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
                static REAL: OnceLock<Option<Call>> = OnceLock::new();
                let name = const {
                    match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a name without a zero byte"),
                    }
                };
                match REAL.get_or_init(|| find(name)) {
                    // SAFETY: the arguments are the caller's.
                    Some(real) => unsafe { real(a, b, c, d, e, f) },
                    None => {
                        set_errno(libc::ENOSYS);
                        -1
                    }
                }
            }
        )*
    };
}

sockets! {
    raccept rbind rclose rconnect repoll_create repoll_ctl repoll_wait rfcntl rgetpeername rgetsockname rgetsockopt riomap riounmap
    riowrite rlisten rpoll rread rreadv rrecv rrecvfrom rrecvmsg rselect rsend rsendmsg rsendto rsetsockopt rshutdown rsocket
    rwrite rwritev
}
