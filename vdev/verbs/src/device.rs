//! The device list, and opening and closing devices.
//!
//! Our devices are the sockets named in `VRDMA_SOCKET` (several with `:` between them; a folder stands for the sockets in the device
//! folders in it, as containers have them); they come first, then those of the real
//! library if one is loaded. A device node lives for ever once seen, so that pointers to it stay good after the list is freed.

use crate::abi::codes;
use crate::abi::device::{ibv_context, ibv_device};
use crate::connection::Connection;
use crate::context::{Context, lock};
use crate::foreign::{Real, code, mark, minus_one, null, own_context, own_device, verbs};
use core::ffi::{c_char, c_int};
use core::fmt;
use core::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// Names the sockets of our devices.
const SOCKETS: &str = "VRDMA_SOCKET";

/// A device of ours. The C struct comes first, so that a pointer to it is a pointer to this.
#[repr(C)]
pub struct Device {
    ibv: ibv_device,
    path: String,
    /// Node GUID, host order; as last seen.
    guid: AtomicU64,
}

// SAFETY: the C struct is written once, before the device is shared.
unsafe impl Sync for Device {}
// SAFETY: as above.
unsafe impl Send for Device {}

static DEVICES: Mutex<Vec<&'static Device>> = Mutex::new(Vec::new());

/// Lists given out, so that freeing one also frees the real library's, and knows its length.
static LISTS: Mutex<Vec<List>> = Mutex::new(Vec::new());

struct List {
    /// Address of the array given to the program.
    array: usize,
    /// Entries, with the final null.
    len: usize,
    /// Address of the real library's array, or 0.
    real: usize,
}

/// Writes a line to standard error, for what a user has to know.
pub fn complain(message: fmt::Arguments<'_>) {
    eprintln!("vrdma: {message}");
}

/// Writes a line to standard error if `VRDMA_LOG` is set: refusals that a program may well expect.
pub fn log(message: fmt::Arguments<'_>) {
    static WANTED: OnceLock<bool> = OnceLock::new();
    if *WANTED.get_or_init(|| std::env::var_os("VRDMA_LOG").is_some_and(|value| !value.is_empty())) {
        complain(message);
    }
}

/// Whether this process was given devices of ours.
pub fn configured() -> bool {
    std::env::var_os(SOCKETS).is_some_and(|value| !value.is_empty())
}

impl Device {
    /// The socket.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// As programs know it.
    pub fn as_ibv(&self) -> *mut ibv_device {
        (&raw const self.ibv).cast_mut()
    }

    /// The device that a C pointer of ours names.
    ///
    /// # Safety
    /// `device` is one of ours.
    unsafe fn of(device: *mut ibv_device) -> &'static Device {
        // SAFETY: the C struct is the first member, and devices live for ever.
        unsafe { &*device.cast::<Device>() }
    }

    /// The device behind a socket: asks it for its name.
    fn find(path: &str) -> Option<&'static Device> {
        let (_connection, welcome) = match Connection::open(path) {
            Ok(opened) => opened,
            Err(error) => {
                complain(format_args!("{}", error.message));
                return None;
            }
        };
        let info = welcome.info;
        let mut devices = lock(&DEVICES);
        let name = text::<64>(&info.name);
        if let Some(known) = devices.iter().find(|known| known.path == path && known.ibv.name == name) {
            known.guid.store(info.guid, Ordering::Relaxed);
            return Some(known);
        }
        let device = Box::leak(Box::new(Device {
            ibv: ibv_device {
                ops: [mark(), ptr::null()],
                node_type: codes::NODE_CA,
                transport_type: codes::TRANSPORT_IB,
                name,
                dev_name: name,
                dev_path: text(&format!("/sys/class/infiniband_verbs/{}", info.name)),
                ibdev_path: text(&format!("/sys/class/infiniband/{}", info.name)),
            },
            path: path.to_owned(),
            guid: AtomicU64::new(info.guid),
        }));
        devices.push(device);
        Some(device)
    }
}

/// The sockets that an entry of [`SOCKETS`] stands for, in the order of their names.
fn sockets_of(entry: &str) -> Vec<String> {
    let Ok(folder) = std::fs::read_dir(entry) else { return vec![entry.to_owned()] };
    let sockets = folder.flatten().map(|device| device.path().join("sock")).filter(|socket| socket.exists());
    let mut sockets: Vec<String> = sockets.filter_map(|socket| socket.into_os_string().into_string().ok()).collect();
    sockets.sort();
    sockets
}

/// A C string in a fixed field, cut if it is too long.
pub fn text<const N: usize>(value: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, from) in field.iter_mut().take(N - 1).zip(value.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    field
}

static REAL_LIST: Real = Real::new(c"ibv_get_device_list");
static REAL_FREE: Real = Real::new(c"ibv_free_device_list");

type ListFn = unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device;
type FreeFn = unsafe extern "C" fn(*mut *mut ibv_device);

/// All devices: ours, then the real library's. The array ends with a null pointer.
#[cfg_attr(not(versioned), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    let sockets = std::env::var(SOCKETS).unwrap_or_default();
    let mut array: Vec<*mut ibv_device> = sockets
        .split(':')
        .filter(|entry| !entry.is_empty())
        .flat_map(sockets_of)
        .filter_map(|path| Device::find(&path))
        .map(Device::as_ibv)
        .collect();
    let mut real_count: c_int = 0;
    let real: *mut *mut ibv_device = match REAL_LIST.get() {
        // SAFETY: the real function of this name has this signature; it gets a valid counter.
        Some(list) => unsafe { core::mem::transmute::<*mut core::ffi::c_void, ListFn>(list)(&mut real_count) },
        None => ptr::null_mut(),
    };
    if real.is_null() && sockets.is_empty() && REAL_LIST.get().is_some() {
        // Nothing of ours was asked for: the program sees exactly what the real library says, with its errno.
        if !num_devices.is_null() {
            // SAFETY: the caller's counter.
            unsafe { *num_devices = 0 };
        }
        return ptr::null_mut();
    }
    if !real.is_null() {
        // SAFETY: the real list has as many entries as it says.
        array.extend((0..usize::try_from(real_count).unwrap_or(0)).map(|n| unsafe { *real.add(n) }));
    }
    if !num_devices.is_null() {
        // SAFETY: the caller's counter.
        unsafe { *num_devices = c_int::try_from(array.len()).unwrap_or(c_int::MAX) };
    }
    array.push(ptr::null_mut());
    let len = array.len();
    let array = Box::into_raw(array.into_boxed_slice()).cast::<*mut ibv_device>();
    lock(&LISTS).push(List { array: array as usize, len, real: real as usize });
    array
}

/// Frees a list, and the real library's that was merged into it.
#[cfg_attr(not(versioned), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    let mut lists = lock(&LISTS);
    let ours = lists.iter().position(|known| known.array == list as usize).map(|at| lists.swap_remove(at));
    drop(lists);
    let real = match &ours {
        // SAFETY: `ibv_get_device_list` made it as a boxed slice of this length.
        Some(known) => unsafe {
            drop(Box::from_raw(ptr::slice_from_raw_parts_mut(list, known.len)));
            known.real as *mut *mut ibv_device
        },
        None => list,
    };
    if let (false, Some(free)) = (real.is_null(), REAL_FREE.get()) {
        // SAFETY: the real function of this name has this signature, and the list is its own.
        unsafe { core::mem::transmute::<*mut core::ffi::c_void, FreeFn>(free)(real) };
    }
}

verbs! {
    /// The name, as in `vrdma dev list`.
    fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char,
        if own_device(device) => { (*device).name.as_ptr() } else ptr::null();

    /// Node GUID in network order.
    fn ibv_get_device_guid(device: *mut ibv_device) -> u64,
        if own_device(device) => { Device::of(device).guid.load(Ordering::Relaxed).to_be() } else 0;

    /// The kernel's index: our devices have none.
    fn ibv_get_device_index(device: *mut ibv_device) -> c_int,
        if own_device(device) => { -1 } else -1;

    /// Opens a device.
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context,
        if own_device(device) => {
            match Context::open(Device::of(device)) {
                Ok(context) => context,
                Err(error) => {
                    complain(format_args!("{}", error.message));
                    null(error.errno.0)
                }
            }
        } else null(libc::EINVAL);

    /// Closes a device. The daemon ends what the program has not destroyed.
    fn ibv_close_device(context: *mut ibv_context) -> c_int,
        if own_context(context) => {
            if Context::of(context).users.load(Ordering::Acquire) != 0 {
                // The kernel would let it go too, but objects that still point here would dangle.
                log(format_args!("ibv_close_device with live objects: their memory stays until the program ends"));
                Context::of(context).connection.hang_up();
                return 0;
            }
            Context::close(context);
            0
        } else minus_one(libc::EINVAL);
}

/// Imports a device of another process or of this one: never one of ours. A descriptor that is no device is not handed on to the
/// real library.
#[cfg_attr(not(versioned), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    static REAL: Real = Real::new(c"ibv_import_device");
    type Import = unsafe extern "C" fn(c_int) -> *mut ibv_context;
    // SAFETY: an all-zero value is valid.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: a writable struct.
    if unsafe { libc::fstat(cmd_fd, &mut stat) } != 0 {
        return null(libc::EBADF);
    }
    match REAL.get().filter(|_| stat.st_mode & libc::S_IFMT == libc::S_IFCHR) {
        // SAFETY: the real function of this name has this signature.
        Some(import) => unsafe { core::mem::transmute::<*mut core::ffi::c_void, Import>(import)(cmd_fd) },
        None => null(libc::EOPNOTSUPP),
    }
}

/// Children of `fork` do not disturb registered memory: the daemon reaches it by address space, and pins nothing.
#[cfg_attr(not(versioned), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_fork_init() -> c_int {
    static REAL: Real = Real::new(c"ibv_fork_init");
    let real = match REAL.get() {
        // SAFETY: the real function of this name has this signature.
        Some(init) => unsafe { core::mem::transmute::<*mut core::ffi::c_void, unsafe extern "C" fn() -> c_int>(init)() },
        None => 0,
    };
    // Where the real library has no devices its answer does not matter.
    if configured() { code(Ok(())) } else { real }
}

/// See [`ibv_fork_init`].
#[cfg_attr(not(versioned), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_is_fork_initialized() -> c_int {
    static REAL: Real = Real::new(c"ibv_is_fork_initialized");
    match (configured(), REAL.get()) {
        // SAFETY: the real function of this name has this signature.
        (false, Some(asked)) => unsafe {
            core::mem::transmute::<*mut core::ffi::c_void, unsafe extern "C" fn() -> c_int>(asked)()
        },
        _ => codes::FORK_UNNEEDED,
    }
}
