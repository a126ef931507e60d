//! Looks the verbs up at run time with a version, as programs do that do not link with libibverbs.

use crate::{Outcome, Words, say};
use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// `--library FILE`: opened with `dlopen`; device names are listed through what `dlvsym` finds in it.
pub fn run(words: &Words) -> Outcome<()> {
    let library = CString::new(words.text("library").unwrap_or("libibverbs.so.1"))?;
    // SAFETY: a C string; the library's initialisers are those of every verbs program.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        return Err(format!("{library:?} cannot be opened").into());
    }
    let find = |name: &CStr| -> Outcome<*mut c_void> {
        // SAFETY: the handle is open and both texts are C strings.
        let found = unsafe { libc::dlvsym(handle, name.as_ptr(), c"IBVERBS_1.1".as_ptr()) };
        if found.is_null() { Err(format!("{name:?} is not found").into()) } else { Ok(found) }
    };
    let mut count: c_int = 0;
    // SAFETY: the functions of these names have these signatures; the list is valid and has `count` entries.
    unsafe {
        let list: unsafe extern "C" fn(*mut c_int) -> *mut *mut c_void = std::mem::transmute(find(c"ibv_get_device_list")?);
        let name_of: unsafe extern "C" fn(*mut c_void) -> *const c_char = std::mem::transmute(find(c"ibv_get_device_name")?);
        let devices = list(&mut count);
        for index in 0..usize::try_from(count)? {
            say(&format!("device {}", CStr::from_ptr(name_of(*devices.add(index))).to_string_lossy()));
        }
    }
    Ok(())
}
