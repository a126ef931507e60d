//! Own or foreign: decides it for any object, and hands foreign ones to the real library.
//!
//! The first member of every object is its context, and the first member of a context is its device; our devices carry the address
//! of a static of ours in a field that the interface does not use. The real library is whatever `dlsym` finds behind us, or one
//! that the program has loaded itself.

use crate::abi::device::{ibv_context, ibv_device};
use core::ffi::{CStr, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Its address marks our devices.
static MARK: u8 = 0;

/// The mark.
pub fn mark() -> *const c_void {
    (&raw const MARK).cast()
}

/// Whether a device is ours.
///
/// # Safety
/// `device` is null or a live `struct ibv_device`.
pub unsafe fn own_device(device: *const ibv_device) -> bool {
    // SAFETY: per contract.
    !device.is_null() && unsafe { (*device).ops[0] } == mark()
}

/// Whether a context is ours.
///
/// # Safety
/// `context` is null or a live `struct ibv_context`.
pub unsafe fn own_context(context: *const ibv_context) -> bool {
    // SAFETY: per contract; the device is the first member.
    !context.is_null() && unsafe { own_device((*context).device) }
}

/// Whether an object is ours.
///
/// # Safety
/// `object` is null or a live verbs object, whose first member is its context.
pub unsafe fn own_object<T>(object: *const T) -> bool {
    // SAFETY: per contract.
    !object.is_null() && unsafe { own_context(*object.cast::<*const ibv_context>()) }
}

/// Looks a function of the real library up, once.
pub struct Real {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Real {
    /// The function with this name.
    pub const fn new(name: &'static CStr) -> Real {
        Real { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Its address, if there is a real library that has it.
    pub fn get(&self) -> Option<*mut c_void> {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return Some(found);
        }
        // Not finding it is not remembered: a library that the program loads later may bring it.
        let address = find(self.name);
        self.found.store(address, Ordering::Relaxed);
        (!address.is_null()).then_some(address)
    }
}

/// The file that an address was loaded from, and where that begins.
pub fn origin(address: *const c_void) -> Option<(&'static CStr, usize)> {
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: room for the answer, which is read only if there is one; a name lives as long as what was loaded by it.
    unsafe {
        if libc::dladdr(address, info.as_mut_ptr()) == 0 {
            return None;
        }
        let info = info.assume_init();
        Some((CStr::from_ptr(info.dli_fname), info.dli_fbase as usize))
    }
}

/// In the place of the real library there is none behind.
#[cfg(versioned)]
fn find(_name: &CStr) -> *mut c_void {
    ptr::null_mut()
}

#[cfg(not(versioned))]
fn find(name: &CStr) -> *mut c_void {
    // SAFETY: a C string; the handle means "behind us in the search order".
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if !address.is_null() {
        return address;
    }
    // A program that loads the library itself, or a module that needs it, keeps it out of the search order; it is found by name,
    // never loaded by us.
    let library = if name.to_bytes().starts_with(b"rdma_") { c"librdmacm.so.1" } else { c"libibverbs.so.1" };
    // SAFETY: C strings; NOLOAD only finds what is there.
    unsafe {
        let handle = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() { ptr::null_mut() } else { libc::dlsym(handle, name.as_ptr()) }
    }
}

/// Defines exported verbs, whose first argument is an object: the block serves our objects, which the condition recognises; others go
/// to the real function of the same name. For no object, and where there is no real function, the answer is the expression after
/// `else`: a wrong argument.
macro_rules! verbs {
    ($($(#[$doc:meta])* fn $name:ident($object:ident: $object_type:ty $(, $arg:ident: $type:ty)*) -> $result:ty, if $own:expr => $body:block else $missing:expr;)*) => {
        $(
            $(#[$doc])*
            #[cfg_attr(not(versioned), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($object: $object_type $(, $arg: $type)*) -> $result {
                // SAFETY: the C interface demands that the caller pass live objects and valid pointers; the real function has
                // the same signature.
                unsafe {
                    if $own {
                        return $body;
                    }
                    const NAME: &core::ffi::CStr =
                        match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                            Ok(name) => name,
                            Err(_) => panic!("a name without a zero byte"),
                        };
                    static REAL: crate::foreign::Real = crate::foreign::Real::new(NAME);
                    #[cfg(not(versioned))]
                    let real = crate::shape::instead(NAME).or_else(|| REAL.get());
                    #[cfg(versioned)]
                    let real = REAL.get();
                    match real.filter(|_| !$object.is_null()) {
                        Some(real) => {
                            let real: unsafe extern "C" fn($object_type $(, $type)*) -> $result = core::mem::transmute(real);
                            real($object $(, $arg)*)
                        }
                        None => $missing,
                    }
                }
            }
        )*
    };
}
pub(crate) use verbs;

/// Sets `errno`.
pub fn set_errno(errno: i32) {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// `errno`.
pub fn errno() -> i32 {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() }
}

/// A null pointer, with `errno` set.
pub fn null<T>(errno: i32) -> *mut T {
    set_errno(errno);
    ptr::null_mut()
}

/// `-1`, with `errno` set.
pub fn minus_one(errno: i32) -> i32 {
    set_errno(errno);
    -1
}

/// What a verb returns that answers with an error number.
pub fn code(result: Result<(), crate::connection::Errno>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error.0);
            error.0
        }
    }
}

/// What a verb returns that answers with a pointer.
pub fn pointer<T>(result: Result<*mut T, crate::connection::Errno>) -> *mut T {
    result.unwrap_or_else(|error| null(error.0))
}
