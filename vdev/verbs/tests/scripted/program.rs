//! A verbs program: loads the library and calls it through the C interface.

use crate::abi::codes::{QPT_RC, qp_state, wr};
use crate::abi::device::{ibv_context, ibv_device, ibv_port_attr, verbs_context};
use crate::abi::object::*;
use crate::abi::work::*;
use crate::daemon::Daemon;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::{offset_of, transmute_copy, zeroed};
use std::ptr::{self, null_mut};
use std::sync::{Mutex, OnceLock};

/// A queue pair of the program, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpIndex(usize);

/// A program with one context, one domain and one channel; every queue pair has a completion queue of its own but the second,
/// which shares that of the first.
pub struct Program {
    context: *mut ibv_context,
    name: String,
    guid: u64,
    pd: *mut ibv_pd,
    channel: *mut ibv_comp_channel,
    cqs: Vec<*mut ibv_cq>,
    qps: Vec<*mut ibv_qp>,
}

fn function<F: Copy>(name: &str) -> F {
    static HANDLE: OnceLock<usize> = OnceLock::new();
    let handle = *HANDLE.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let folder = test.parent().unwrap();
        let path = [folder, folder.parent().unwrap()]
            .map(|folder| folder.join("libvrdma_verbs.so"))
            .into_iter()
            .find(|path| path.exists())
            .expect("the library lies beside the test");
        let path = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a C string; the library has no initialisers of its own.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{path:?} cannot be loaded");
        handle as usize
    });
    let symbol = CString::new(name).unwrap();
    // SAFETY: a live handle and a C string.
    let address = unsafe { libc::dlsym(handle as *mut c_void, symbol.as_ptr()) };
    assert!(!address.is_null(), "{name} is not exported");
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
    // SAFETY: the callers name the function's type.
    unsafe { transmute_copy(&address) }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn code(value: c_int) -> Result<(), i32> {
    if value == 0 { Ok(()) } else { Err(value) }
}

impl Program {
    pub fn start(daemon: &Daemon) -> Program {
        // The variable is the process's: listing is done by one test at a time.
        static LISTING: Mutex<()> = Mutex::new(());
        let turn = LISTING.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: only here is the environment changed and, by the library, read; by one thread at a time.
        unsafe { std::env::set_var("VRDMA_SOCKET", &daemon.path) };
        // SAFETY: C signatures; the objects are used as the interface demands.
        unsafe {
            let list: unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device = function("ibv_get_device_list");
            let free: unsafe extern "C" fn(*mut *mut ibv_device) = function("ibv_free_device_list");
            let name: unsafe extern "C" fn(*mut ibv_device) -> *const c_char = function("ibv_get_device_name");
            let guid: unsafe extern "C" fn(*mut ibv_device) -> u64 = function("ibv_get_device_guid");
            let open: unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context = function("ibv_open_device");
            let mut count = -1;
            let devices = list(&mut count);
            assert!(count >= 1 && !devices.is_null(), "{count} devices");
            let device = *devices;
            let context = open(device);
            assert!(!context.is_null(), "{}", std::io::Error::last_os_error());
            let (name, guid) = (CStr::from_ptr(name(device)).to_str().unwrap().to_owned(), u64::from_be(guid(device)));
            free(devices);
            drop(turn);
            let async_fd = (*context).async_fd;
            libc::fcntl(async_fd, libc::F_SETFL, libc::O_NONBLOCK);
            let alloc: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd = function("ibv_alloc_pd");
            let make: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_comp_channel = function("ibv_create_comp_channel");
            let (pd, channel) = (alloc(context), make(context));
            assert!(!pd.is_null() && !channel.is_null());
            libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK);
            Program { context, name, guid, pd, channel, cqs: Vec::new(), qps: Vec::new() }
        }
    }

    pub fn device_name(&self) -> &str {
        &self.name
    }

    pub fn device_guid(&self) -> u64 {
        self.guid
    }

    /// Through the context, as the C header does.
    pub fn query_port(&self) -> ibv_port_attr {
        let mut attr = ibv_port_attr::default();
        // SAFETY: the context is extended, so that the operations lie before it.
        unsafe {
            assert_eq!((*self.context).abi_compat as usize, usize::MAX);
            let verbs = self.context.byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
            assert_eq!((*verbs).query_port.unwrap()(self.context, 1, &mut attr, 52), 0);
        }
        attr
    }

    pub fn try_cq(&self, cqe: c_int, vector: c_int) -> Result<*mut ibv_cq, i32> {
        let create: unsafe extern "C" fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq =
            function("ibv_create_cq");
        // SAFETY: live objects.
        let cq = unsafe { create(self.context, cqe, null_mut(), self.channel, vector) };
        if cq.is_null() { Err(errno()) } else { Ok(cq) }
    }

    pub fn qp(&mut self, max_send_wr: u32, max_recv_wr: u32) -> QpIndex {
        let cq = if self.qps.len() == 1 { self.cqs[0] } else { self.try_cq(64, 0).unwrap() };
        self.cqs.push(cq);
        let cap = ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 100 };
        let mut attr = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq: null_mut(),
            cap,
            qp_type: QPT_RC,
            sq_sig_all: 0,
        };
        let create: unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp = function("ibv_create_qp");
        // SAFETY: live objects and valid attributes.
        let qp = unsafe { create(self.pd, &mut attr) };
        assert!(!qp.is_null(), "{}", std::io::Error::last_os_error());
        assert_eq!(attr.cap.max_inline_data, 256, "what an entry holds, not what was asked for");
        self.qps.push(qp);
        QpIndex(self.qps.len() - 1)
    }

    /// A queue pair in RTS.
    pub fn ready_qp(&mut self, max_send_wr: u32) -> QpIndex {
        let qp = self.qp(max_send_wr, 4);
        self.modify(qp, qp_state::RTS).unwrap();
        qp
    }

    pub fn modify(&self, qp: QpIndex, state: u32) -> Result<(), i32> {
        let modify: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int = function("ibv_modify_qp");
        let mut attr = ibv_qp_attr { qp_state: state, ..ibv_qp_attr::default() };
        // SAFETY: a live queue pair and valid attributes.
        code(unsafe { modify(self.qps[qp.0], &mut attr, 1) })
    }

    pub fn sge(&self, bytes: &[u8], lkey: u32) -> ibv_sge {
        ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey }
    }

    /// A signaled WRITE of these buffers, which have to live until it is posted.
    pub fn write(&self, wr_id: u64, list: &[ibv_sge]) -> ibv_send_wr {
        // The list is leaked, so that requests can be made in passing.
        let list = Box::leak(list.to_vec().into_boxed_slice());
        // SAFETY: all zero is a valid request.
        let zero: ibv_send_wr = unsafe { zeroed() };
        ibv_send_wr {
            wr_id,
            sg_list: list.as_ptr(),
            num_sge: list.len() as c_int,
            opcode: wr::RDMA_WRITE,
            send_flags: 2,
            remote_addr: 0x1234,
            rkey_or_compare_add: 0x77,
            ..zero
        }
    }

    /// The error, and the request that it is about.
    pub fn post_send(&self, qp: QpIndex, request: &ibv_send_wr) -> Result<(), (i32, u64)> {
        let mut bad = null_mut();
        let request = ptr::from_ref(request).cast_mut();
        // SAFETY: a live context and queue pair, a valid chain.
        match unsafe { ((*self.context).ops.post_send)(self.qps[qp.0], request, &mut bad) } {
            0 => Ok(()),
            // SAFETY: on an error it points into the chain.
            errno => Err((errno, unsafe { (*bad).wr_id })),
        }
    }

    pub fn post_recv(&self, qp: QpIndex, wr_id: u64, list: &[ibv_sge]) -> Result<(), i32> {
        let mut request = ibv_recv_wr { wr_id, next: null_mut(), sg_list: list.as_ptr(), num_sge: list.len() as c_int };
        let mut bad = null_mut();
        // SAFETY: a live context and queue pair, a valid request.
        code(unsafe { ((*self.context).ops.post_recv)(self.qps[qp.0], &mut request, &mut bad) })
    }

    pub fn poll(&self, qp: QpIndex, count: usize) -> Result<Vec<ibv_wc>, ()> {
        // SAFETY: all zero is a valid completion.
        let mut wcs = vec![unsafe { zeroed::<ibv_wc>() }; count];
        // SAFETY: a live queue, and room for `count` completions.
        let got = unsafe { ((*self.context).ops.poll_cq)(self.cqs[qp.0], count as c_int, wcs.as_mut_ptr()) };
        wcs.truncate(usize::try_from(got).map_err(|_| ())?);
        Ok(wcs)
    }

    pub fn arm(&self, qp: QpIndex, solicited_only: bool) {
        // SAFETY: a live queue.
        assert_eq!(unsafe { ((*self.context).ops.req_notify_cq)(self.cqs[qp.0], c_int::from(solicited_only)) }, 0);
    }

    /// The queue pair whose completion queue has an event.
    pub fn get_event(&self) -> Result<QpIndex, i32> {
        let get: unsafe extern "C" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int =
            function("ibv_get_cq_event");
        let (mut cq, mut value) = (null_mut(), null_mut());
        // SAFETY: a live channel and places for the answer.
        match unsafe { get(self.channel, &mut cq, &mut value) } {
            0 => Ok(QpIndex(self.cqs.iter().position(|&known| known == cq).unwrap())),
            _ => Err(errno()),
        }
    }

    pub fn ack_events(&self, qp: QpIndex, count: u32) {
        let ack: unsafe extern "C" fn(*mut ibv_cq, u32) = function("ibv_ack_cq_events");
        // SAFETY: a live queue.
        unsafe { ack(self.cqs[qp.0], count) };
    }

    pub fn destroy_qp(&self, qp: QpIndex) -> Result<(), i32> {
        let destroy: unsafe extern "C" fn(*mut ibv_qp) -> c_int = function("ibv_destroy_qp");
        // SAFETY: live, and not used again.
        code(unsafe { destroy(self.qps[qp.0]) })
    }

    pub fn destroy_cq(&self, qp: QpIndex) -> Result<(), i32> {
        let destroy: unsafe extern "C" fn(*mut ibv_cq) -> c_int = function("ibv_destroy_cq");
        // SAFETY: live, and not used again.
        code(unsafe { destroy(self.cqs[qp.0]) })
    }

    /// Waits until there is an asynchronous event or the end of them. The end comes only when no copy of the daemon's end is open
    /// any more, and a child that another test has forked holds one until it ends.
    pub fn await_async(&self) {
        // SAFETY: a live context.
        let mut poll = libc::pollfd { fd: unsafe { (*self.context).async_fd }, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        assert_eq!(unsafe { libc::poll(&mut poll, 1, 60_000) }, 1, "no asynchronous event");
    }

    pub fn async_event(&self) -> Result<ibv_async_event, i32> {
        let get: unsafe extern "C" fn(*mut ibv_context, *mut ibv_async_event) -> c_int = function("ibv_get_async_event");
        let mut event = ibv_async_event { element: null_mut(), event_type: u32::MAX };
        // SAFETY: a live context and a place for the answer.
        match unsafe { get(self.context, &mut event) } {
            0 => Ok(event),
            _ => Err(errno()),
        }
    }

    pub fn ack_async_event(&self, mut event: ibv_async_event) {
        let ack: unsafe extern "C" fn(*mut ibv_async_event) = function("ibv_ack_async_event");
        // SAFETY: an event that was got.
        unsafe { ack(&mut event) };
    }

    pub fn qp_pointer(&self, qp: QpIndex) -> *mut c_void {
        self.qps[qp.0].cast()
    }

    /// Registers memory for good: its lkey.
    pub fn reg_mr(&self, memory: &[u8], flags: u32) -> Result<u32, i32> {
        let reg: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, u64, u32) -> *mut ibv_mr = function("ibv_reg_mr_iova2");
        let addr = memory.as_ptr().cast_mut().cast();
        // SAFETY: a live domain; the memory is only read.
        let mr = unsafe { reg(self.pd, addr, memory.len(), addr as u64, flags) };
        // SAFETY: live when not null.
        if mr.is_null() { Err(errno()) } else { Ok(unsafe { (*mr).lkey }) }
    }
}
