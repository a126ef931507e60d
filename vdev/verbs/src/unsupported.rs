//! Verbs that our devices do not have. They are defined so that a call with one of our objects is refused here, with the error that
//! the interface documents, instead of reaching the real library, which would take the object for its own.

use crate::abi::object::{ibv_mr, ibv_pd, ibv_qp};
use crate::foreign::{null, own_context, own_object, set_errno, verbs};
use core::ffi::{c_int, c_void};

const NO: c_int = libc::EOPNOTSUPP;

fn no() -> c_int {
    set_errno(NO);
    NO
}

/// Verbs that answer with an error number.
macro_rules! refuse_code {
    ($($name:ident($object:ident: $own:ident $(, $arg:ident: $type:ty)*);)*) => {
        verbs! {
            $(
                /// Not available for our objects.
                fn $name($object: *mut c_void $(, $arg: $type)*) -> c_int,
                    if $own($object.cast_const().cast()) => { $(let _ = $arg;)* no() } else libc::EINVAL;
            )*
        }
    };
}

/// Verbs that answer with a pointer.
macro_rules! refuse_pointer {
    ($($name:ident($object:ident: $own:ident $(, $arg:ident: $type:ty)*);)*) => {
        verbs! {
            $(
                /// Not available for our objects.
                fn $name($object: *mut c_void $(, $arg: $type)*) -> *mut c_void,
                    if $own($object.cast_const().cast()) => { $(let _ = $arg;)* null(NO) } else null(libc::EINVAL);
            )*
        }
    };
}

/// An object of any kind.
unsafe fn own(object: *const c_void) -> bool {
    // SAFETY: the callers pass what the program passed as a live object.
    unsafe { own_object(object) }
}

refuse_code! {
    ibv_resolve_eth_l2_from_gid(context: own_context, attr: *mut c_void, mac: *mut u8, vlan: *mut u16);
    ibv_set_ece(qp: own, ece: *mut c_void);
    ibv_dealloc_dmah(dmah: own);
    ibv_dm_export_dmabuf_fd(dm: own);
    ibv_export_buf_dmabuf_fd(buf: own, offset: *mut c_void);
    ibv_destroy_comp_cntr(counter: own);
    ibv_set_comp_cntr(counter: own, value: u64);
    ibv_set_err_comp_cntr(counter: own, value: u64);
    ibv_inc_comp_cntr(counter: own, amount: u64);
    ibv_inc_err_comp_cntr(counter: own, amount: u64);
    ibv_read_comp_cntr(counter: own, value: *mut u64);
    ibv_read_err_comp_cntr(counter: own, value: *mut u64);
    ibv_qp_attach_comp_cntr(qp: own, counter: *mut c_void, attr: *mut c_void);
    _ibv_query_comp_cntr_caps(context: own_context, caps: *mut c_void, size: usize);
}

refuse_pointer! {
    ibv_reg_mr_ex(pd: own, attr: *mut c_void);
    ibv_import_pd(context: own_context, handle: u32);
    ibv_import_mr(pd: own, handle: u32);
    ibv_import_dm(context: own_context, handle: u32);
    ibv_alloc_dmah(context: own_context, attr: *mut c_void);
    ibv_alloc_buf(pd: own, size: usize, buf: *mut *mut c_void);
    ibv_reg_buf_mr(pd: own, buf: *mut c_void, addr: *mut c_void, length: usize, access: c_int);
    ibv_create_comp_cntr(context: own_context, attr: *mut c_void);
}

verbs! {
    /// There are no enhanced connection options, which an empty answer says too.
    fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut [u32; 3]) -> c_int,
        if own_object(qp) => {
            if !ece.is_null() {
                ece.write([0; 3]);
            }
            no()
        } else libc::EINVAL;

    /// Our objects are never imported, so there is nothing to let go of.
    fn ibv_unimport_pd(pd: *mut ibv_pd) -> (), if own_object(pd) => { } else ();

    /// See `ibv_unimport_pd`.
    fn ibv_unimport_mr(mr: *mut ibv_mr) -> (), if own_object(mr) => { } else ();

    /// See `ibv_unimport_pd`.
    fn ibv_unimport_dm(dm: *mut c_void) -> (), if own_object(dm) => { } else ();

    /// Our devices make no such buffers.
    fn ibv_free_buf(buf: *mut c_void) -> (), if own_object(buf) => { } else ();
}
