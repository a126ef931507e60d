//! Looks the verbs up at run time with versions, as programs do that do not link with libibverbs: the names are those that NCCL
//! asks for, and the steps those of its start.

use crate::{Outcome, Words, say};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr;

/// One that is missing makes NCCL go without RDMA.
const MANDATORY: [&CStr; 23] = [
    c"ibv_get_device_list",
    c"ibv_free_device_list",
    c"ibv_get_device_name",
    c"ibv_open_device",
    c"ibv_close_device",
    c"ibv_get_async_event",
    c"ibv_ack_async_event",
    c"ibv_query_device",
    c"ibv_query_port",
    c"ibv_query_gid",
    c"ibv_query_qp",
    c"ibv_alloc_pd",
    c"ibv_dealloc_pd",
    c"ibv_reg_mr",
    c"ibv_dereg_mr",
    c"ibv_create_cq",
    c"ibv_destroy_cq",
    c"ibv_create_qp",
    c"ibv_modify_qp",
    c"ibv_destroy_qp",
    c"ibv_fork_init",
    c"ibv_event_type_str",
    c"ibv_query_pkey",
];
/// Asked for, and done without.
const OPTIONAL: [(&CStr, &CStr); 5] = [
    (c"ibv_reg_mr_iova2", c"IBVERBS_1.8"),
    (c"ibv_reg_dmabuf_mr", c"IBVERBS_1.12"),
    (c"ibv_query_ece", c"IBVERBS_1.10"),
    (c"ibv_set_ece", c"IBVERBS_1.10"),
    (c"ibv_query_port_speed", c"IBVERBS_1.16"),
];

/// `--library FILE`: opened with `dlopen`; devices are listed, and the first is opened, through what `dlvsym` finds in it.
pub fn run(words: &Words) -> Outcome<()> {
    let library = CString::new(words.text("library").unwrap_or("libibverbs.so.1"))?;
    // SAFETY: a C string; the library's initialisers are those of every verbs program.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        return Err(format!("{library:?} cannot be opened").into());
    }
    let find = |name: &CStr, version: &CStr| -> Outcome<*mut c_void> {
        // SAFETY: the handle is open and both texts are C strings.
        let found = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
        if found.is_null() { Err(format!("{name:?} is not found").into()) } else { Ok(found) }
    };
    let verb = |name: &CStr| find(name, c"IBVERBS_1.1");
    for name in MANDATORY {
        verb(name)?;
    }
    for (name, version) in OPTIONAL {
        find(name, version)?;
    }
    let mut count: c_int = 0;
    // SAFETY: the functions of these names have these signatures; the list is valid and has `count` entries.
    unsafe {
        let list: unsafe extern "C" fn(*mut c_int) -> *mut *mut c_void = transmute(verb(c"ibv_get_device_list")?);
        let name_of: unsafe extern "C" fn(*mut c_void) -> *const c_char = transmute(verb(c"ibv_get_device_name")?);
        let open: unsafe extern "C" fn(*mut c_void) -> *mut c_void = transmute(verb(c"ibv_open_device")?);
        let alloc_pd: unsafe extern "C" fn(*mut c_void) -> *mut c_void = transmute(verb(c"ibv_alloc_pd")?);
        let devices = list(&mut count);
        for index in 0..usize::try_from(count)? {
            say(&format!("device {}", CStr::from_ptr(name_of(*devices.add(index))).to_string_lossy()));
        }
        if count == 0 {
            return Err("no device".into());
        }
        let context = open(*devices);
        let pd = if context.is_null() { ptr::null_mut() } else { alloc_pd(context) };
        if pd.is_null() {
            return Err("the first device cannot be used".into());
        }
        // Asking for a registration without a descriptor is how NCCL finds out whether there may be one with a descriptor of a GPU.
        type RegDmabuf = unsafe extern "C" fn(*mut c_void, u64, usize, u64, c_int, c_int) -> *mut c_void;
        let reg_dmabuf: RegDmabuf = transmute(find(c"ibv_reg_dmabuf_mr", c"IBVERBS_1.12")?);
        let region = reg_dmabuf(pd, 0, 0, 0, -1, 0);
        let error = std::io::Error::last_os_error().raw_os_error();
        if !region.is_null() || error != Some(libc::EOPNOTSUPP) {
            return Err(format!("GPU memory seems to be possible: {region:?}, errno {error:?}").into());
        }
    }
    say("opened");
    Ok(())
}
