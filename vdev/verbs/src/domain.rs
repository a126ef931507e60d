//! Protection domains, parent domains and thread domains.
//!
//! A parent domain is another name of its protection domain: the daemon knows only the latter. A thread domain is a promise of the
//! program that objects are used by one thread at a time; nothing here depends on it. Allocators of a parent domain are for memory
//! that a library takes from the program's heap for its queues: ours lie in memory shared with the daemon, and none is called.

use crate::abi::device::ibv_context;
use crate::abi::extended::{PARENT_DOMAIN_KNOWN, ibv_parent_domain_init_attr, ibv_td, ibv_td_init_attr};
use crate::abi::object::ibv_pd;
use crate::connection::{Errno, unexpected};
use crate::context::Context;
use crate::foreign::{code, null, own_context, own_object, pointer, verbs};
use core::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use vdev_abi::control::{Reply, Request};

/// A protection domain or a parent domain.
#[repr(C)]
pub struct Pd {
    ibv: ibv_pd,
    /// What a parent domain stands for.
    stands_for: Option<Parts>,
    /// Objects of this process that name it.
    pub users: AtomicU32,
}

/// The parts of a parent domain.
struct Parts {
    pd: *mut ibv_pd,
    td: *mut ibv_td,
}

/// A thread domain.
#[repr(C)]
struct Td {
    ibv: ibv_td,
    /// Parent domains that name it.
    users: AtomicU32,
}

impl Pd {
    /// The domain that a C pointer of ours names.
    ///
    /// # Safety
    /// It is live and ours.
    pub unsafe fn of<'a>(pd: *mut ibv_pd) -> &'a Pd {
        // SAFETY: per contract; the C struct is the first member.
        unsafe { &*pd.cast::<Pd>() }
    }

    /// The daemon's number for the protection domain.
    pub fn handle(&self) -> u32 {
        self.ibv.handle
    }

    fn give(context: &Context, handle: u32, stands_for: Option<Parts>) -> *mut ibv_pd {
        context.users.fetch_add(1, Ordering::AcqRel);
        let ibv = ibv_pd { context: context.as_ibv(), handle };
        Box::into_raw(Box::new(Pd { ibv, stands_for, users: AtomicU32::new(0) })).cast()
    }
}

fn alloc_pd(context: &Context) -> Result<*mut ibv_pd, Errno> {
    match context.call(&Request::AllocPd, &[])? {
        (Reply::Handle(handle), _) => Ok(Pd::give(context, handle, None)),
        (other, _) => Err(unexpected(&Request::AllocPd, &other)),
    }
}

/// # Safety
/// The domain is live and ours.
unsafe fn dealloc_pd(pd: *mut ibv_pd) -> Result<(), Errno> {
    // SAFETY: per contract.
    let (ours, context) = unsafe { (Pd::of(pd), Context::of((*pd).context)) };
    if ours.users.load(Ordering::Acquire) != 0 {
        return Err(Errno(libc::EBUSY));
    }
    match &ours.stands_for {
        None => context.call_done(&Request::DeallocPd { pd: ours.ibv.handle })?,
        Some(Parts { pd, td }) => {
            context.check()?;
            // SAFETY: both outlive the parent domain, which they count as a user.
            unsafe {
                Pd::of(*pd).users.fetch_sub(1, Ordering::AcqRel);
                if let Some(td) = td.cast::<Td>().as_ref() {
                    td.users.fetch_sub(1, Ordering::AcqRel);
                }
            }
        }
    }
    context.users.fetch_sub(1, Ordering::AcqRel);
    // SAFETY: `give` made it as a box, and the program gives it up.
    drop(unsafe { Box::from_raw(pd.cast::<Pd>()) });
    Ok(())
}

/// # Safety
/// The context is live and ours, and the attributes' objects are live.
unsafe fn join(context: *mut ibv_context, attr: &ibv_parent_domain_init_attr) -> Result<*mut ibv_pd, Errno> {
    let ibv_parent_domain_init_attr { pd, td, comp_mask, .. } = *attr;
    // SAFETY: per contract; objects begin with their context.
    let (pd_fits, td_fits) = unsafe { (own_object(pd) && (*pd).context == context, td.is_null() || (*td).context == context) };
    // SAFETY: found to be ours.
    if comp_mask & !PARENT_DOMAIN_KNOWN != 0 || !pd_fits || !td_fits || unsafe { Pd::of(pd) }.stands_for.is_some() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: per contract.
    let (context, handle) = unsafe { (Context::of(context), (*pd).handle) };
    context.check()?;
    // SAFETY: per contract.
    unsafe {
        Pd::of(pd).users.fetch_add(1, Ordering::AcqRel);
        if let Some(td) = td.cast::<Td>().as_ref() {
            td.users.fetch_add(1, Ordering::AcqRel);
        }
    }
    Ok(Pd::give(context, handle, Some(Parts { pd, td })))
}

/// `ibv_alloc_parent_domain`, called through the context.
///
/// # Safety
/// The context is live and ours, and the attributes valid.
pub unsafe extern "C" fn alloc_parent_domain(context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd {
    if attr.is_null() {
        return null(libc::EINVAL);
    }
    // SAFETY: per contract.
    pointer(unsafe { join(context, &*attr) })
}

/// `ibv_alloc_td`, called through the context.
///
/// # Safety
/// The context is live and ours, and the attributes valid.
pub unsafe extern "C" fn alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    if attr.is_null() {
        return null(libc::EINVAL);
    }
    // SAFETY: per contract.
    let (ours, comp_mask) = unsafe { (Context::of(context), (*attr).comp_mask) };
    let allowed = ours.check().and(if comp_mask == 0 { Ok(()) } else { Err(Errno(libc::EINVAL)) });
    pointer(allowed.map(|()| {
        ours.users.fetch_add(1, Ordering::AcqRel);
        Box::into_raw(Box::new(Td { ibv: ibv_td { context }, users: AtomicU32::new(0) })).cast()
    }))
}

/// `ibv_dealloc_td`, called through the context; `EBUSY` while a parent domain names it.
///
/// # Safety
/// The domain is live and ours.
pub unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: per contract; `alloc_td` made it as a box, and the program gives it up.
    unsafe {
        if (*td.cast::<Td>()).users.load(Ordering::Acquire) != 0 {
            return code(Err(Errno(libc::EBUSY)));
        }
        let td = Box::from_raw(td.cast::<Td>());
        Context::of(td.ibv.context).users.fetch_sub(1, Ordering::AcqRel);
    }
    0
}

verbs! {
    /// Makes a protection domain.
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd,
        if own_context(context) => { pointer(alloc_pd(Context::of(context))) } else null(libc::EINVAL);

    /// Ends a protection domain or a parent domain; `EBUSY` while it is in use.
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int,
        if own_object(pd) => { code(dealloc_pd(pd)) } else libc::EINVAL;
}
