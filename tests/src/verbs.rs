//! The verbs API as a C program sees it, reached through run-time symbols: `libvrdma_verbs.so` when it is preloaded.
//!
//! Bindings for the few calls that the test client needs, written from the manual pages and the public structure layouts (x86-64), as
//! those of the benchmarks are, whose structures serve here too: the product's own definitions are checked by a second reading of
//! them. The thin owners below
//! ([`Session`], [`Region`], [`Cq`], [`Qp`]) free what they hold; errors are the error numbers that the calls return.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::Duration;

#[allow(missing_docs)]
mod raw {
    use super::*;
    pub use perftest::verbs::sys::{Gid, Mr, QpAttr, QpCap, QpInitAttr, RecvWr, Sge};

    pub type Obj = *mut c_void;

    #[repr(C)]
    pub struct Context {
        pub device: Obj,
        pub ops: [Obj; 32],
        pub cmd_fd: c_int,
        pub async_fd: c_int,
    }

    /// `struct ibv_cq` and `struct ibv_qp` begin with the context.
    #[repr(C)]
    pub struct CqHead {
        pub context: *mut Context,
    }

    #[repr(C)]
    pub struct CompChannel {
        pub context: *mut Context,
        pub fd: c_int,
    }

    #[repr(C)]
    pub struct QpHead {
        pub context: *mut Context,
        pub qp_context: Obj,
        pub pd: Obj,
        pub send_cq: Obj,
        pub recv_cq: Obj,
        pub srq: Obj,
        pub handle: u32,
        pub qp_num: u32,
    }

    #[repr(C)]
    pub struct Mw {
        pub context: *mut Context,
        pub pd: Obj,
        pub rkey: u32,
        pub handle: u32,
        pub kind: u32,
    }

    /// What of a request says what a window is bound to.
    #[repr(C)]
    #[derive(Clone, Copy)]
    pub struct Bind {
        pub mw: *mut Mw,
        pub rkey: u32,
        pub mr: *mut Mr,
        pub addr: u64,
        pub length: u64,
        pub access: u32,
    }

    #[repr(C)]
    pub struct SendWr {
        pub wr_id: u64,
        pub next: *mut SendWr,
        pub sg_list: *const Sge,
        pub num_sge: c_int,
        pub opcode: u32,
        pub send_flags: u32,
        pub imm: [u8; 4],
        /// RDMA: address, key. Atomic: address, compare or addend, swap, key.
        pub wr: [u64; 4],
        pub qp_type: u64,
        pub bind: Bind,
    }

    #[repr(C)]
    #[derive(Clone, Copy, Debug, Default)]
    pub struct Wc {
        pub wr_id: u64,
        pub status: u32,
        pub opcode: u32,
        pub vendor_err: u32,
        pub byte_len: u32,
        pub imm: [u8; 4],
        pub qp_num: u32,
        pub src_qp: u32,
        pub wc_flags: u32,
        pub pkey_index: u16,
        pub slid: u16,
        pub sl: u8,
        pub dlid_path_bits: u8,
    }

    #[repr(C)]
    #[derive(Clone, Copy)]
    pub struct AsyncEvent {
        pub element: Obj,
        pub event_type: u32,
    }

    const _: () = assert!(size_of::<SendWr>() == 128 && size_of::<Wc>() == 48);
    const _: () = assert!(size_of::<Mw>() == 32 && std::mem::offset_of!(SendWr, bind) == 80);
    const _: () = assert!(size_of::<AsyncEvent>() == 16 && std::mem::offset_of!(QpHead, qp_num) == 52);
}

pub use raw::{QpAttr, Sge, Wc};

macro_rules! symbols {
    ($($name:ident: fn($($arg:ty),*) -> $result:ty;)*) => {
        struct Symbols { $($name: unsafe extern "C" fn($($arg),*) -> $result,)* }

        fn symbols() -> &'static Symbols {
            static SYMBOLS: OnceLock<Symbols> = OnceLock::new();
            SYMBOLS.get_or_init(|| Symbols { $(
                // SAFETY: the symbol of this name has this C signature (its manual page).
                $name: unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> $result>(symbol(stringify!($name))) },
            )* })
        }
    };
}

symbols! {
    ibv_get_device_list: fn(*mut c_int) -> *mut raw::Obj;
    ibv_free_device_list: fn(*mut raw::Obj) -> ();
    ibv_get_device_name: fn(raw::Obj) -> *const c_char;
    ibv_open_device: fn(raw::Obj) -> *mut raw::Context;
    ibv_close_device: fn(*mut raw::Context) -> c_int;
    ibv_query_gid: fn(*mut raw::Context, u8, c_int, *mut [u8; 16]) -> c_int;
    ibv_alloc_pd: fn(*mut raw::Context) -> raw::Obj;
    ibv_dealloc_pd: fn(raw::Obj) -> c_int;
    ibv_reg_mr_iova2: fn(raw::Obj, *mut c_void, usize, u64, u32) -> *mut raw::Mr;
    ibv_reg_dmabuf_mr: fn(raw::Obj, u64, usize, u64, c_int, c_int) -> *mut raw::Mr;
    ibv_dereg_mr: fn(*mut raw::Mr) -> c_int;
    ibv_rereg_mr: fn(*mut raw::Mr, c_int, raw::Obj, *mut c_void, usize, c_int) -> c_int;
    ibv_create_cq: fn(*mut raw::Context, c_int, *mut c_void, raw::Obj, c_int) -> *mut raw::CqHead;
    ibv_destroy_cq: fn(*mut raw::CqHead) -> c_int;
    ibv_create_comp_channel: fn(*mut raw::Context) -> *mut raw::CompChannel;
    ibv_destroy_comp_channel: fn(*mut raw::CompChannel) -> c_int;
    ibv_get_cq_event: fn(*mut raw::CompChannel, *mut *mut raw::CqHead, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut raw::CqHead, c_uint) -> ();
    ibv_create_qp: fn(raw::Obj, *mut raw::QpInitAttr) -> *mut raw::QpHead;
    ibv_modify_qp: fn(*mut raw::QpHead, *mut raw::QpAttr, c_int) -> c_int;
    ibv_query_qp: fn(*mut raw::QpHead, *mut raw::QpAttr, c_int, *mut raw::QpInitAttr) -> c_int;
    ibv_destroy_qp: fn(*mut raw::QpHead) -> c_int;
    ibv_get_async_event: fn(*mut raw::Context, *mut raw::AsyncEvent) -> c_int;
    ibv_ack_async_event: fn(*mut raw::AsyncEvent) -> ();
}

fn symbol(name: &str) -> *mut c_void {
    let name = std::ffi::CString::new(name).expect("a symbol name has no zero byte");
    // SAFETY: the name is a C string; the handle is the one for all loaded objects.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?} is not loaded: run this program with `vrdma run`");
    found
}

/// Position of `alloc_mw` among the operations of a context.
const ALLOC_MW: usize = 7;
/// Position of `dealloc_mw`.
const DEALLOC_MW: usize = 9;
/// Position of `poll_cq`.
const POLL_CQ: usize = 11;
/// Position of `req_notify_cq`.
const REQ_NOTIFY_CQ: usize = 12;
/// Position of `post_send`.
const POST_SEND: usize = 25;
/// Position of `post_recv`.
const POST_RECV: usize = 26;

/// `enum ibv_access_flags`.
#[allow(missing_docs)]
pub mod access {
    pub const LOCAL_WRITE: u32 = 1;
    pub const REMOTE_WRITE: u32 = 2;
    pub const REMOTE_READ: u32 = 4;
    pub const REMOTE_ATOMIC: u32 = 8;
    pub const MW_BIND: u32 = 16;
    pub const ALL: u32 = 15;
}

/// `enum ibv_qp_state`.
#[allow(missing_docs)]
pub mod state {
    pub const INIT: u32 = 1;
    pub const RTR: u32 = 2;
    pub const RTS: u32 = 3;
    pub const ERR: u32 = 6;
}

/// `enum ibv_wr_opcode`.
#[allow(missing_docs)]
pub mod opcode {
    pub const WRITE: u32 = 0;
    pub const WRITE_WITH_IMM: u32 = 1;
    pub const SEND: u32 = 2;
    pub const SEND_WITH_IMM: u32 = 3;
    pub const READ: u32 = 4;
    pub const COMPARE_SWAP: u32 = 5;
    pub const FETCH_ADD: u32 = 6;
    pub const BIND_MW: u32 = 8;
    pub const SEND_WITH_INV: u32 = 9;
}

/// `enum ibv_send_flags`.
#[allow(missing_docs)]
pub mod send_flag {
    pub const FENCE: u32 = 1;
    pub const SIGNALED: u32 = 2;
    pub const INLINE: u32 = 8;
}

/// `enum ibv_qp_attr_mask` bits of one step.
pub mod mask {
    /// RESET to INIT: state, access flags, P_Key index, port.
    pub const TO_INIT: c_int = 1 | 1 << 3 | 1 << 4 | 1 << 5;
    /// INIT to RTR: state, address vector, path MTU, RNR timer, first PSN, READ depth, peer's QP.
    pub const TO_RTR: c_int = 1 | 1 << 7 | 1 << 8 | 1 << 15 | 1 << 12 | 1 << 17 | 1 << 20;
    /// RTR to RTS: state, timeout, retries, RNR retries, READ depth, first PSN.
    pub const TO_RTS: c_int = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;
    /// Any to ERR: state.
    pub const STATE: c_int = 1;
    use std::ffi::c_int;
}

fn check(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        // Verbs return the error number; some calls return -1 and set errno.
        -1 => Err(io::Error::last_os_error()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

fn made<T>(object: *mut T) -> io::Result<*mut T> {
    if object.is_null() { Err(io::Error::last_os_error()) } else { Ok(object) }
}

/// A protection domain.
#[derive(Clone, Copy, Debug)]
pub struct Pd(raw::Obj);

/// An open device with one protection domain.
#[derive(Debug)]
pub struct Session {
    context: *mut raw::Context,
    pd: Pd,
}

impl Session {
    /// Opens the first device of this name, or the first one.
    pub fn open(name: Option<&str>) -> io::Result<Rc<Session>> {
        let verbs = symbols();
        let mut count = 0;
        // SAFETY: the list is valid until freed; every entry of it is a device.
        unsafe {
            let list = made((verbs.ibv_get_device_list)(&mut count))?;
            let devices = std::slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0));
            let named = |device: &&raw::Obj| {
                let found = CStr::from_ptr((verbs.ibv_get_device_name)(**device));
                name.is_none_or(|name| found.to_bytes() == name.as_bytes())
            };
            let device = devices.iter().find(named).copied();
            let opened = device.map(|device| made((verbs.ibv_open_device)(device)));
            (verbs.ibv_free_device_list)(list);
            let context = opened.unwrap_or_else(|| Err(io::Error::other("no such device")))?;
            let pd = made((verbs.ibv_alloc_pd)(context))?;
            Ok(Rc::new(Session { context, pd: Pd(pd) }))
        }
    }

    /// Its protection domain.
    pub fn pd(&self) -> Pd {
        self.pd
    }

    /// Another protection domain, never freed by the program: the daemon does it.
    pub fn another_pd(&self) -> io::Result<Pd> {
        // SAFETY: the context is open.
        made(unsafe { (symbols().ibv_alloc_pd)(self.context) }).map(Pd)
    }

    /// Takes a device's buffer back from all registrations of this session: how many there were.
    pub fn revoke_buffer(&self, buffer: &OwnedFd) -> io::Result<u32> {
        // SAFETY: the function of this name has this signature; only our own library has it.
        let count = unsafe {
            let revoke: unsafe extern "C" fn(*mut raw::Context, c_int) -> c_int =
                std::mem::transmute(symbol("vrdma_revoke_dmabuf"));
            revoke(self.context, buffer.as_raw_fd())
        };
        u32::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// GID 0 of the port.
    pub fn gid(&self) -> io::Result<[u8; 16]> {
        let mut gid = [0; 16];
        // SAFETY: the context is open and the GID has 16 bytes.
        check(unsafe { (symbols().ibv_query_gid)(self.context, 1, 0, &mut gid) })?;
        Ok(gid)
    }

    /// The descriptor that is readable when an asynchronous event waits.
    pub fn async_fd(&self) -> c_int {
        // SAFETY: the context is open.
        unsafe { (*self.context).async_fd }
    }

    /// Waits for an asynchronous event, acknowledges it and returns its type.
    pub fn async_event(&self) -> io::Result<u32> {
        let mut event = raw::AsyncEvent { element: null_mut(), event_type: 0 };
        // SAFETY: the context is open and the event has room.
        unsafe {
            check((symbols().ibv_get_async_event)(self.context, &mut event))?;
            (symbols().ibv_ack_async_event)(&mut event);
        }
        Ok(event.event_type)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: everything made from the session holds an `Rc` of it, so nothing is left.
        unsafe {
            let _ = (symbols().ibv_dealloc_pd)(self.pd.0);
            let _ = (symbols().ibv_close_device)(self.context);
        }
    }
}

/// Memory of the program that devices may change at any time, so it is only ever copied in and out.
#[derive(Debug)]
pub struct Buffer {
    start: *mut u8,
    len: usize,
}

impl Buffer {
    /// Ordinary private memory, zeroed.
    pub fn private(len: usize) -> io::Result<Buffer> {
        Self::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// A shared object (memfd), zeroed.
    pub fn shared(len: usize) -> io::Result<Buffer> {
        let fd = nix::sys::memfd::memfd_create(c"buffer", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)?;
        nix::unistd::ftruncate(&fd, i64::try_from(len).expect("a length fits"))?;
        Self::of(&fd, len)
    }

    /// The first bytes of an object.
    pub fn of(object: &OwnedFd, len: usize) -> io::Result<Buffer> {
        Self::map(len, libc::MAP_SHARED, object.as_raw_fd())
    }

    fn map(len: usize, flags: c_int, fd: c_int) -> io::Result<Buffer> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
        if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Buffer { start: start.cast(), len }) }
    }

    /// Number of bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Address of the byte at this offset, which may be the end.
    pub fn addr(&self, offset: usize) -> u64 {
        assert!(offset <= self.len);
        self.start as u64 + offset as u64
    }

    /// Copies bytes in.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.len && bytes.len() <= self.len - offset);
        // SAFETY: the range was checked; the mapping is ours and lives as long as `self`.
        unsafe { self.start.add(offset).copy_from(bytes.as_ptr(), bytes.len()) }
    }

    /// Copies bytes out.
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset <= self.len && len <= self.len - offset);
        let mut bytes = vec![0; len];
        // SAFETY: the range was checked; the mapping is ours and lives as long as `self`.
        unsafe { self.start.add(offset).copy_to(bytes.as_mut_ptr(), len) };
        bytes
    }

    /// Lets whoever touches the memory from now on wait, until what is returned is closed (userfaultfd).
    pub fn hold_back(&self) -> io::Result<OwnedFd> {
        const UFFD_API: u64 = 0xAA;
        const MODE_MISSING: u64 = 1;
        // Fresh pages: only missing ones are held back.
        self.take_away()?;
        // SAFETY: our own mapping; a descriptor that is made is new and ours; both structures have the sizes that the calls know
        // (`struct uffdio_api`, `struct uffdio_register`).
        unsafe {
            let done = |result: i64| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) };
            done(libc::mprotect(self.start.cast(), self.len, libc::PROT_READ | libc::PROT_WRITE).into())?;
            let fd = done(libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC))?;
            let fd = OwnedFd::from_raw_fd(c_int::try_from(fd).expect("a descriptor is small"));
            let mut api = [UFFD_API, 0, 0];
            done(libc::ioctl(fd.as_raw_fd(), nix::request_code_readwrite!(0xAA, 0x3F, size_of_val(&api)), &mut api).into())?;
            let mut range = [self.start as u64, self.len as u64, MODE_MISSING, 0];
            let register = nix::request_code_readwrite!(0xAA, 0, size_of_val(&range));
            done(libc::ioctl(fd.as_raw_fd(), register, &mut range).into())?;
            Ok(fd)
        }
    }

    /// Takes all pages away, as `munmap` does. The addresses stay reserved, so that nothing else comes to lie there.
    pub fn take_away(&self) -> io::Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: it replaces our own mapping; its bytes are only ever copied in and out, by whoever calls `read` or `write`.
        let start = unsafe { libc::mmap(self.start.cast(), self.len, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// A registration of a buffer.
#[derive(Debug)]
pub struct Region {
    mr: *mut raw::Mr,
    /// Held because the registration ends before the device is closed.
    _session: Rc<Session>,
}

impl Region {
    /// Registers `len` bytes of a buffer from its beginning, named by their addresses.
    pub fn new(session: &Rc<Session>, buffer: &Buffer, len: usize, access: u32) -> io::Result<Region> {
        Self::in_pd(session, session.pd, buffer, len, buffer.addr(0), access)
    }

    /// Registers in another protection domain, or with another address for the first byte.
    pub fn in_pd(session: &Rc<Session>, pd: Pd, buffer: &Buffer, len: usize, iova: u64, access: u32) -> io::Result<Region> {
        // SAFETY: the domain is live; the call checks the range itself.
        let mr = made(unsafe { (symbols().ibv_reg_mr_iova2)(pd.0, buffer.start.cast(), len, iova, access) })?;
        Ok(Region { mr, _session: session.clone() })
    }

    /// Gives it other memory, or other rights, under the same keys; memory is named by its addresses from then on.
    pub fn change(&self, memory: Option<(&Buffer, usize)>, access: Option<u32>) -> io::Result<()> {
        const TRANSLATION: c_int = 1;
        const ACCESS: c_int = 4;
        let flags = memory.map_or(0, |_| TRANSLATION) | access.map_or(0, |_| ACCESS);
        let (start, len) = memory.map_or((null_mut(), 0), |(buffer, len)| (buffer.start.cast(), len));
        // SAFETY: the region lives; the call checks the range itself. Its errors are codes of its own, beside `errno`.
        match unsafe { (symbols().ibv_rereg_mr)(self.mr, flags, null_mut(), start, len, access.unwrap_or(0).cast_signed()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Registers `len` bytes of a device's buffer from `offset` on, with this address for the first byte.
    pub fn of_buffer(
        session: &Rc<Session>,
        buffer: &OwnedFd,
        (offset, len): (u64, usize),
        iova: u64,
        access: u32,
    ) -> io::Result<Region> {
        let (pd, fd) = (session.pd.0, buffer.as_raw_fd());
        // SAFETY: the domain is live; the call checks the rest itself.
        let mr = made(unsafe { (symbols().ibv_reg_dmabuf_mr)(pd, offset, len, iova, fd, access.cast_signed()) })?;
        Ok(Region { mr, _session: session.clone() })
    }

    /// Local key.
    pub fn lkey(&self) -> u32 {
        // SAFETY: the region lives.
        unsafe { (*self.mr).lkey }
    }

    /// Remote key.
    pub fn rkey(&self) -> u32 {
        // SAFETY: the region lives.
        unsafe { (*self.mr).rkey }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the region lives until here.
        let _ = unsafe { (symbols().ibv_dereg_mr)(self.mr) };
    }
}

/// A memory window of type 2 over all of a region.
#[derive(Debug)]
pub struct Window {
    mw: *mut raw::Mw,
    /// Its key once it is bound.
    rkey: u32,
    /// Ends after the window.
    region: Region,
}

impl Window {
    /// A window that nothing is bound to yet.
    pub fn new(session: &Rc<Session>, region: Region) -> io::Result<Window> {
        const TYPE_2: c_int = 2;
        // SAFETY: the operation of this position has this signature; context and domain live.
        let mw = made(unsafe {
            let alloc: unsafe extern "C" fn(raw::Obj, c_int) -> *mut raw::Mw =
                std::mem::transmute((*session.context).ops[ALLOC_MW]);
            alloc(session.pd.0, TYPE_2)
        })?;
        // SAFETY: just made.
        let first = unsafe { (*mw).rkey };
        Ok(Window { mw, rkey: first & !0xFF | first.wrapping_add(1) & 0xFF, region })
    }

    /// The request that binds it, for peers to read and write.
    pub fn bind(&self, wr_id: u64) -> Work {
        Work { wr_id, opcode: opcode::BIND_MW, flags: send_flag::SIGNALED, bind: Some(self.binding()), ..Work::default() }
    }

    fn binding(&self) -> Binding {
        // SAFETY: the region lives.
        let (addr, length) = unsafe { ((*self.region.mr).addr as u64, (*self.region.mr).length as u64) };
        self.part(addr, length, access::REMOTE_WRITE | access::REMOTE_READ)
    }

    /// What binds it to a part of its region, with these rights.
    pub fn part(&self, addr: u64, length: u64, access: u32) -> Binding {
        Binding(raw::Bind { mw: self.mw, rkey: self.rkey, mr: self.region.mr, addr, length, access })
    }

    /// Remote key, once it is bound.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the operation of this position has this signature; the window lives until here.
        let _ = unsafe {
            let op = (*(*self.mw).context).ops[DEALLOC_MW];
            let dealloc: unsafe extern "C" fn(*mut raw::Mw) -> c_int = std::mem::transmute(op);
            dealloc(self.mw)
        };
    }
}

/// What a window is bound to.
#[derive(Clone)]
pub struct Binding(raw::Bind);

impl std::fmt::Debug for Binding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Binding({:#x})", self.0.rkey)
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    cq: *mut raw::CqHead,
    /// Null for a queue that is only polled.
    channel: *mut raw::CompChannel,
    _session: Rc<Session>,
}

impl Cq {
    /// A queue for at least this many completions, to be polled.
    pub fn new(session: &Rc<Session>, entries: c_int) -> io::Result<Rc<Cq>> {
        Self::on_channel(session, entries, null_mut())
    }

    /// A queue with a completion channel of its own.
    pub fn with_events(session: &Rc<Session>, entries: c_int) -> io::Result<Rc<Cq>> {
        // SAFETY: the context is open.
        let channel = made(unsafe { (symbols().ibv_create_comp_channel)(session.context) })?;
        Self::on_channel(session, entries, channel)
    }

    fn on_channel(session: &Rc<Session>, entries: c_int, channel: *mut raw::CompChannel) -> io::Result<Rc<Cq>> {
        // SAFETY: the context is open, and the channel is live or null.
        let cq = made(unsafe { (symbols().ibv_create_cq)(session.context, entries, null_mut(), channel.cast(), 0) })?;
        Ok(Rc::new(Cq { cq, channel, _session: session.clone() }))
    }

    /// Asks for an event at the next completion.
    pub fn arm(&self) -> io::Result<()> {
        // SAFETY: the operation of this position has this signature; the queue lives.
        check(unsafe {
            let op = (*(*self.cq).context).ops[REQ_NOTIFY_CQ];
            let arm: unsafe extern "C" fn(*mut raw::CqHead, c_int) -> c_int = std::mem::transmute(op);
            arm(self.cq, 0)
        })
    }

    /// Waits for an event and acknowledges it; false if none comes in time.
    ///
    /// # Panics
    /// If the queue has no channel, or the event is of another queue.
    pub fn event(&self, limit: Duration) -> io::Result<bool> {
        assert!(!self.channel.is_null(), "a queue without a channel");
        let timeout = c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX);
        // SAFETY: channel and queue live, and everything that is written to has room.
        unsafe {
            let mut fd = libc::pollfd { fd: (*self.channel).fd, events: libc::POLLIN, revents: 0 };
            if libc::poll(&mut fd, 1, timeout) <= 0 {
                return Ok(false);
            }
            let (mut cq, mut context) = (null_mut(), null_mut());
            check((symbols().ibv_get_cq_event)(self.channel, &mut cq, &mut context))?;
            assert_eq!(cq, self.cq);
            (symbols().ibv_ack_cq_events)(cq, 1);
        }
        Ok(true)
    }

    /// One completion, if there is one.
    pub fn poll(&self) -> io::Result<Option<Wc>> {
        let mut wc = Wc::default();
        // SAFETY: the operation of this position has this signature; the queue lives and the completion has room.
        let count = unsafe {
            let op = (*(*self.cq).context).ops[POLL_CQ];
            let poll: unsafe extern "C" fn(*mut raw::CqHead, c_int, *mut Wc) -> c_int = std::mem::transmute(op);
            poll(self.cq, 1, &mut wc)
        };
        match count {
            0 => Ok(None),
            1 => Ok(Some(wc)),
            error => Err(io::Error::other(format!("poll_cq gave {error}"))),
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: the queue pairs that use it hold an `Rc` of it, so none is left.
        let _ = unsafe { (symbols().ibv_destroy_cq)(self.cq) };
        if !self.channel.is_null() {
            // SAFETY: its only queue is gone.
            let _ = unsafe { (symbols().ibv_destroy_comp_channel)(self.channel) };
        }
    }
}

/// What a queue pair must know of its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The peer's port.
    pub gid: [u8; 16],
    /// The peer's queue pair.
    pub qpn: u32,
    /// First PSN that the peer sends.
    pub psn: u32,
}

/// How patient a connection is.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Local ACK timeout is 4.096 µs x 2^timeout.
    pub timeout: u8,
    /// Repetitions after a timeout.
    pub retry_cnt: u8,
    /// Repetitions when the receiver is not ready; 7 is for ever.
    pub rnr_retry: u8,
}

/// A work request to send.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// Returned in the completion.
    pub wr_id: u64,
    /// See [`opcode`].
    pub opcode: u32,
    /// See [`send_flag`].
    pub flags: u32,
    /// Immediate data, or the key to invalidate in native order.
    pub imm: [u8; 4],
    /// Remote address.
    pub remote_addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Compare value or addend.
    pub compare_add: u64,
    /// Swap value.
    pub swap: u64,
    /// Local buffers.
    pub sges: Vec<Sge>,
    /// See [`Window::bind`].
    pub bind: Option<Binding>,
}

/// A reliable-connection queue pair.
#[derive(Debug)]
pub struct Qp {
    qp: *mut raw::QpHead,
    _cq: Rc<Cq>,
}

impl Qp {
    /// Inline bytes that [`Qp::new`] asks for.
    pub const INLINE: u32 = 64;

    /// A queue pair in state INIT with this queue for both kinds of completions, `depth` requests each way and 16 buffers per
    /// request.
    pub fn new(session: &Rc<Session>, cq: &Rc<Cq>, depth: u32, access: u32) -> io::Result<Qp> {
        let caps = raw::QpCap {
            max_send_wr: depth,
            max_recv_wr: depth,
            max_send_sge: 16,
            max_recv_sge: 16,
            max_inline_data: Self::INLINE,
        };
        const RC: u32 = 2;
        let mut init = raw::QpInitAttr {
            qp_context: null_mut(),
            send_cq: cq.cq.cast(),
            recv_cq: cq.cq.cast(),
            srq: null_mut(),
            cap: caps,
            qp_type: RC,
            sq_sig_all: 0,
        };
        // SAFETY: the domain and the queue live.
        let qp = made(unsafe { (symbols().ibv_create_qp)(session.pd.0, &mut init) })?;
        let qp = Qp { qp, _cq: cq.clone() };
        qp.modify(QpAttr { qp_state: state::INIT, qp_access_flags: access, port_num: 1, ..QpAttr::default() }, mask::TO_INIT)?;
        Ok(qp)
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair lives.
        unsafe { (*self.qp).qp_num }
    }

    /// Connects: RTR, then RTS.
    pub fn connect(&self, peer: &Address, own_psn: u32, mtu_code: u32, patience: Patience) -> io::Result<()> {
        let mut attr =
            QpAttr { qp_state: state::RTR, path_mtu: mtu_code, rq_psn: peer.psn, dest_qp_num: peer.qpn, ..QpAttr::default() };
        attr.max_dest_rd_atomic = 8;
        attr.min_rnr_timer = 1;
        attr.ah_attr.dgid = raw::Gid(peer.gid);
        attr.ah_attr.hop_limit = 64;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        self.modify(attr, mask::TO_RTR)?;
        attr.qp_state = state::RTS;
        attr.sq_psn = own_psn;
        attr.timeout = patience.timeout;
        attr.retry_cnt = patience.retry_cnt;
        attr.rnr_retry = patience.rnr_retry;
        attr.max_rd_atomic = 8;
        self.modify(attr, mask::TO_RTS)
    }

    /// `ibv_modify_qp`.
    pub fn modify(&self, mut attr: QpAttr, mask: c_int) -> io::Result<()> {
        // SAFETY: the queue pair lives.
        check(unsafe { (symbols().ibv_modify_qp)(self.qp, &mut attr, mask) })
    }

    /// State as `ibv_query_qp` tells it.
    pub fn state(&self) -> io::Result<u32> {
        let mut attr = QpAttr::default();
        let caps = raw::QpCap::default();
        let mut init = raw::QpInitAttr {
            qp_context: null_mut(),
            send_cq: null_mut(),
            recv_cq: null_mut(),
            srq: null_mut(),
            cap: caps,
            qp_type: 0,
            sq_sig_all: 0,
        };
        // SAFETY: the queue pair lives and both structures have room.
        check(unsafe { (symbols().ibv_query_qp)(self.qp, &mut attr, mask::STATE, &mut init) })?;
        Ok(attr.qp_state)
    }

    /// Posts a chain of requests in one call.
    pub fn post_send(&self, works: &[Work]) -> io::Result<()> {
        let mut chain: Vec<raw::SendWr> = works.iter().map(send_wr).collect();
        link(&mut chain, |wr, next| wr.next = next);
        let mut bad = null_mut();
        // SAFETY: the operation of this position has this signature; the chain and its lists live until it returns.
        check(unsafe {
            let op = (*(*self.qp).context).ops[POST_SEND];
            let post: unsafe extern "C" fn(*mut raw::QpHead, *mut raw::SendWr, *mut *mut raw::SendWr) -> c_int =
                std::mem::transmute(op);
            post(self.qp, chain.as_mut_ptr(), &mut bad)
        })
    }

    /// Posts one receive.
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> io::Result<()> {
        let num_sge = c_int::try_from(sges.len()).expect("a short list");
        let mut wr = raw::RecvWr { wr_id, next: null_mut(), sg_list: sges.as_ptr().cast_mut(), num_sge };
        let mut bad = null_mut();
        // SAFETY: the operation of this position has this signature; the request and its list live until it returns.
        check(unsafe {
            let op = (*(*self.qp).context).ops[POST_RECV];
            let post: unsafe extern "C" fn(*mut raw::QpHead, *mut raw::RecvWr, *mut *mut raw::RecvWr) -> c_int =
                std::mem::transmute(op);
            post(self.qp, &mut wr, &mut bad)
        })
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: the queue pair lives until here.
        let _ = unsafe { (symbols().ibv_destroy_qp)(self.qp) };
    }
}

fn send_wr(work: &Work) -> raw::SendWr {
    let key = u64::from(work.rkey);
    let is_atomic = matches!(work.opcode, opcode::COMPARE_SWAP | opcode::FETCH_ADD);
    raw::SendWr {
        wr_id: work.wr_id,
        next: null_mut(),
        sg_list: work.sges.as_ptr(),
        num_sge: c_int::try_from(work.sges.len()).expect("a short list"),
        opcode: work.opcode,
        send_flags: work.flags,
        imm: work.imm,
        wr: if is_atomic { [work.remote_addr, work.compare_add, work.swap, key] } else { [work.remote_addr, key, 0, 0] },
        qp_type: 0,
        bind: work.bind.as_ref().map_or(NO_BINDING, |binding| binding.0),
    }
}

const NO_BINDING: raw::Bind = raw::Bind { mw: null_mut(), rkey: 0, mr: null_mut(), addr: 0, length: 0, access: 0 };

fn link<T>(chain: &mut [T], set_next: impl Fn(&mut T, *mut T)) {
    for index in 1..chain.len() {
        let next: *mut T = &mut chain[index];
        set_next(&mut chain[index - 1], next);
    }
}
