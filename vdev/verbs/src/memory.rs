//! Memory regions.
//!
//! Owns the table of regions that staging consults. Never touches registered memory itself, and never locks it: where the pages
//! are is the daemon's business.

use crate::abi::codes::{access, rereg};
use crate::abi::device::ibv_context;
use crate::abi::object::{ibv_mr, ibv_pd};
use crate::abi::work::ibv_sge;
use crate::connection::{Errno, unexpected};
use crate::context::Context;
use crate::domain::Pd;
use crate::foreign::{code, null, own_context, own_object, pointer, set_errno, verbs};
use core::ffi::{c_int, c_uint, c_void};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::RwLock;
use std::sync::atomic::Ordering;
use vdev_abi::control::{Reply, Request};

/// Regions of which the daemon has no mapping, by lkey.
#[derive(Default)]
pub struct Regions(RwLock<HashMap<u32, Region, BuildHasherDefault<KeyHasher>>>);

/// First bytes of the buffers of a request; as many as a device of ours takes at most.
pub type Sources = [*const u8; 16];

/// Keys come from the daemon, which draws them at random: spreading their bits over the word is enough.
#[derive(Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, key: u32) {
        self.0 = (self.0 ^ u64::from(key)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// A region as staging needs to know it.
#[derive(Clone, Copy)]
pub struct Region {
    /// The protection domain.
    pub pd: u32,
    /// First byte in our memory.
    pub addr: u64,
    /// Number of bytes.
    pub len: u64,
    /// Address by which requests name the first byte.
    pub iova: u64,
}

impl Regions {
    /// Where in our memory the buffers lie, if each is within a region of this domain that the daemon has not mapped.
    pub fn locate(&self, pd: u32, list: &[ibv_sge], sources: &mut Sources) -> Option<()> {
        let regions = self.0.read().unwrap_or_else(|e| e.into_inner());
        for (source, buffer) in sources.get_mut(..list.len())?.iter_mut().zip(list) {
            let region = regions.get(&buffer.lkey).filter(|region| region.pd == pd)?;
            let offset = buffer.addr.checked_sub(region.iova)?;
            let end = offset.checked_add(u64::from(buffer.length))?;
            *source = (end <= region.len).then(|| (region.addr + offset) as *const u8)?;
        }
        Some(())
    }

    fn insert(&self, lkey: u32, region: Region) {
        self.0.write().unwrap_or_else(|e| e.into_inner()).insert(lkey, region);
    }

    fn remove(&self, lkey: u32) {
        self.0.write().unwrap_or_else(|e| e.into_inner()).remove(&lkey);
    }
}

/// Access flags as the daemon takes them, or why they are refused.
fn check_access(flags: u32) -> Result<u32, Errno> {
    let flags = flags & !access::OPTIONAL & !access::HUGETLB;
    if flags & access::ON_DEMAND != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let rights = access::LOCAL_WRITE | access::REMOTE | access::MW_BIND;
    let writes = flags & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
    if flags & !(rights | access::ZERO_BASED) != 0 || (writes && flags & access::LOCAL_WRITE == 0) {
        return Err(Errno(libc::EINVAL));
    }
    Ok(flags)
}

/// A memory region.
#[repr(C)]
struct Mr {
    ibv: ibv_mr,
    /// What is registered.
    range: Range,
    /// The device's buffer that it is a part of; `range.addr` is then the offset in it.
    buffer: Option<OwnedFd>,
}

/// What a registration names.
#[derive(Clone, Copy)]
struct Range {
    addr: u64,
    length: u64,
    iova: u64,
    /// Access flags as the program gave them.
    flags: u32,
    /// Of no memory: it cannot be registered anew.
    is_null: bool,
}

/// Asks the daemon for a registration, of the program's memory or of a device's buffer, in the place of an earlier one if its handle
/// is given: its handle, lkey and rkey.
fn register(
    context: &Context,
    earlier: Option<u32>,
    pd: u32,
    range: Range,
    buffer: Option<&OwnedFd>,
) -> Result<(u32, u32, u32), Errno> {
    let Range { addr, length, iova, flags, .. } = range;
    let flags = check_access(flags)?;
    let iova = if flags & access::ZERO_BASED != 0 { 0 } else { iova };
    if addr.checked_add(length).is_none() || iova.checked_add(length).is_none() {
        return Err(Errno(libc::EINVAL));
    }
    let access = flags & !access::ZERO_BASED;
    let found = if buffer.is_some() { Vec::new() } else { crate::shared_ranges::find(addr, length) };
    let shared = found.iter().map(|(range, _)| *range).collect();
    let request = match (buffer, earlier) {
        (Some(_), mr) => Request::RegDmabufMr { mr, pd, offset: addr, length, iova, access },
        (None, None) => Request::RegMr { pd, addr, length, iova, access, shared },
        (None, Some(mr)) => Request::ReregMr { mr, pd, addr, length, iova, access, shared },
    };
    let fds: Vec<_> = found.iter().map(|(_, fd)| fd).chain(buffer).map(AsRawFd::as_raw_fd).collect();
    let (reply, _) = context.call(&request, &fds)?;
    let Reply::Region { mr, lkey, rkey, mapped } = reply else { return Err(unexpected(&request, &reply)) };
    if mapped {
        context.regions.remove(lkey);
    } else {
        context.regions.insert(lkey, Region { pd, addr, len: length, iova });
    }
    Ok((mr, lkey, rkey))
}

/// # Safety
/// The domain is live and ours.
unsafe fn reg_mr(pd: *mut ibv_pd, addr: *mut c_void, range: Range, buffer: Option<OwnedFd>) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: per contract.
    let (context, pd_handle) = unsafe { (Context::of((*pd).context), (*pd).handle) };
    let (handle, lkey, rkey) = register(context, None, pd_handle, range, buffer.as_ref())?;
    // SAFETY: per contract.
    Ok(unsafe { give(pd, (handle, lkey, rkey), addr, range, buffer) })
}

/// Makes what the program gets of a registration: handle, lkey and rkey.
///
/// # Safety
/// The domain is live and ours.
unsafe fn give(
    pd: *mut ibv_pd,
    (handle, lkey, rkey): (u32, u32, u32),
    addr: *mut c_void,
    range: Range,
    buffer: Option<OwnedFd>,
) -> *mut ibv_mr {
    // SAFETY: per contract.
    let context = unsafe { Context::of((*pd).context) };
    context.users.fetch_add(1, Ordering::AcqRel);
    // SAFETY: per contract.
    unsafe { Pd::of(pd) }.users.fetch_add(1, Ordering::AcqRel);
    let length = usize::try_from(range.length).unwrap_or(usize::MAX);
    let ibv = ibv_mr { context: context.as_ibv(), pd, addr, length, handle, lkey, rkey };
    Box::into_raw(Box::new(Mr { ibv, range, buffer })).cast()
}

/// # Safety
/// The domain is live and ours.
unsafe fn null_mr(pd: *mut ibv_pd) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: per contract.
    let (context, domain) = unsafe { (Context::of((*pd).context), Pd::of(pd)) };
    let request = Request::AllocNullMr { pd: domain.handle() };
    let (reply, _) = context.call(&request, &[])?;
    let Reply::Region { mr, lkey, rkey, .. } = reply else { return Err(unexpected(&request, &reply)) };
    let range = Range { addr: 0, length: u64::MAX, iova: 0, flags: access::LOCAL_WRITE, is_null: true };
    // SAFETY: per contract.
    Ok(unsafe { give(pd, (mr, lkey, rkey), core::ptr::null_mut(), range, None) })
}

/// `ibv_alloc_null_mr`, called through the context.
///
/// # Safety
/// The domain is live and ours.
pub unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    // SAFETY: per contract.
    if unsafe { own_object(pd) } { pointer(unsafe { null_mr(pd) }) } else { null(libc::EINVAL) }
}

/// Registers memory of this process.
///
/// # Safety
/// The domain is live and ours.
unsafe fn reg_own(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, flags: u32) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: per contract.
    unsafe { reg_mr(pd, addr, Range { addr: addr as u64, length: length as u64, iova, flags, is_null: false }, None) }
}

/// A descriptor of our own for what the program's stands for: the program may close its own at any time.
fn own_copy(fd: c_int) -> Result<OwnedFd, Errno> {
    // SAFETY: a plain system call.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EBADF)));
    }
    // SAFETY: new and ours.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Registers a part of a device's buffer, if the daemon can map it. Without a descriptor it is the question whether there are such
/// registrations for GPUs' memory, which mostly cannot be mapped: so the answer is no.
///
/// # Safety
/// The domain is live and ours.
unsafe fn reg_fd(pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, flags: u32) -> Result<*mut ibv_mr, Errno> {
    if fd < 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    if length == 0 || check_access(flags)? & access::ZERO_BASED != 0 {
        return Err(Errno(libc::EINVAL));
    }
    let range = Range { addr: offset, length: length as u64, iova, flags, is_null: false };
    // SAFETY: per contract. The address that a program sees is the offset, as with other devices.
    unsafe { reg_mr(pd, offset as *mut c_void, range, Some(own_copy(fd)?)) }
}

/// The program takes the memory of a device's buffer back from all its registrations on this device: how many there were.
fn revoke_fd(context: &Context, fd: c_int) -> Result<c_int, Errno> {
    let buffer = own_copy(fd)?;
    match context.call(&Request::RevokeDmabuf, &[buffer.as_raw_fd()])? {
        (Reply::Revoked(count), _) => Ok(c_int::try_from(count).unwrap_or(c_int::MAX)),
        (other, _) => Err(unexpected(&Request::RevokeDmabuf, &other)),
    }
}

/// Changes what a registration names; the keys stay.
///
/// # Safety
/// The region is live and ours, and the domain too if it is to change.
unsafe fn rereg_mr(
    mr: *mut ibv_mr,
    flags: u32,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: u32,
) -> Result<(), Errno> {
    const INVALID: Errno = Errno(libc::EINVAL);
    // SAFETY: per contract.
    let ours = unsafe { &mut *mr.cast::<Mr>() };
    // SAFETY: per contract.
    let context = unsafe { Context::of(ours.ibv.context) };
    if flags == 0 || flags & !rereg::KNOWN != 0 || ours.range.is_null {
        return Err(INVALID);
    }
    let mut range = ours.range;
    let mut new_pd = ours.ibv.pd;
    if flags & rereg::CHANGE_TRANSLATION != 0 {
        if addr.is_null() || length == 0 || ours.buffer.is_some() {
            return Err(INVALID);
        }
        range = Range { addr: addr as u64, length: length as u64, iova: addr as u64, ..range };
    }
    if flags & rereg::CHANGE_PD != 0 {
        // SAFETY: per contract.
        if !unsafe { own_object(pd) && (*pd).context == ours.ibv.context } {
            return Err(INVALID);
        }
        new_pd = pd;
    }
    if flags & rereg::CHANGE_ACCESS != 0 {
        range.flags = access;
    }
    // SAFETY: domains that are named by a region are live.
    let (before, after) = unsafe { (Pd::of(ours.ibv.pd), Pd::of(new_pd)) };
    register(context, Some(ours.ibv.handle), after.handle(), range, ours.buffer.as_ref())?;
    before.users.fetch_sub(1, Ordering::AcqRel);
    after.users.fetch_add(1, Ordering::AcqRel);
    ours.range = range;
    ours.ibv.pd = new_pd;
    if flags & rereg::CHANGE_TRANSLATION != 0 {
        (ours.ibv.addr, ours.ibv.length) = (addr, length);
    }
    Ok(())
}

/// # Safety
/// The region is live and ours.
unsafe fn dereg_mr(mr: *mut ibv_mr) -> Result<(), Errno> {
    // SAFETY: per contract.
    let (context, handle, lkey) = unsafe { (Context::of((*mr).context), (*mr).handle, (*mr).lkey) };
    // First out of the table: the key may come back for another region as soon as the daemon has let go of it.
    context.check()?;
    let kept = context.regions.0.read().unwrap_or_else(|e| e.into_inner()).get(&lkey).copied();
    context.regions.remove(lkey);
    if let Err(error) = context.call_done(&Request::DeregMr { mr: handle }) {
        if let Some(region) = kept {
            context.regions.insert(lkey, region);
        }
        return Err(error);
    }
    context.users.fetch_sub(1, Ordering::AcqRel);
    // SAFETY: a domain is not ended while it has users.
    unsafe { Pd::of((*mr).pd) }.users.fetch_sub(1, Ordering::AcqRel);
    // SAFETY: `reg_mr` made it as a box, and the program gives it up.
    drop(unsafe { Box::from_raw(mr.cast::<Mr>()) });
    Ok(())
}

verbs! {
    /// Registers memory under its own addresses.
    fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, flags: c_int) -> *mut ibv_mr,
        if own_object(pd) => { pointer(reg_own(pd, addr, length, addr as u64, flags.cast_unsigned())) } else null(libc::EINVAL);

    /// Registers memory under addresses of the program's choice.
    fn ibv_reg_mr_iova(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, flags: c_int) -> *mut ibv_mr,
        if own_object(pd) => { pointer(reg_own(pd, addr, length, iova, flags.cast_unsigned())) } else null(libc::EINVAL);

    /// As `ibv_reg_mr_iova`; the C header calls it where flags may be optional ones.
    fn ibv_reg_mr_iova2(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, flags: c_uint) -> *mut ibv_mr,
        if own_object(pd) => { pointer(reg_own(pd, addr, length, iova, flags)) } else null(libc::EINVAL);

    /// Registers a part of the buffer that a descriptor stands for; `EOPNOTSUPP` where it cannot be mapped.
    fn ibv_reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, flags: c_int) -> *mut ibv_mr,
        if own_object(pd) => { pointer(reg_fd(pd, offset, length, iova, fd, flags.cast_unsigned())) } else null(libc::EINVAL);

    /// Our own addition, for a program that is about to free the memory behind a dma-buf: takes it back from all that the program has
    /// registered of it on this device. Requests that touch it from now on, or are under way, fail with an access or protection error;
    /// when this returns, the daemon has let go of the buffer. The registrations have still to be ended. Returns how many there were,
    /// or -1 and `errno`.
    fn vrdma_revoke_dmabuf(context: *mut ibv_context, fd: c_int) -> c_int,
        if own_context(context) => {
            match revoke_fd(Context::of(context), fd) {
                Ok(count) => count,
                Err(error) => { set_errno(error.0); -1 }
            }
        } else { set_errno(libc::EINVAL); -1 };

    /// Changes the memory, the rights or the domain of a registration, and answers 0 or `enum ibv_rereg_mr_err_code`.
    fn ibv_rereg_mr(mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, length: usize,
        access: c_int) -> c_int,
        if own_object(mr) => {
            match rereg_mr(mr, flags.cast_unsigned(), pd, addr, length, access.cast_unsigned()) {
                Ok(()) => 0,
                Err(error) => {
                    set_errno(error.0);
                    if error.0 == libc::EINVAL { rereg::BAD_INPUT } else { rereg::FAILED }
                }
            }
        } else { set_errno(libc::EINVAL); rereg::BAD_INPUT };

    /// Ends a registration; `EBUSY` while windows are bound to it.
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int,
        if own_object(mr) => { code(dereg_mr(mr)) } else libc::EINVAL;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_flags_are_checked() {
        assert_eq!(check_access(0x0010_0003), Ok(3), "relaxed ordering is a wish");
        assert_eq!(check_access(0), Ok(0));
        assert_eq!(check_access(access::MW_BIND | 1), Ok(17));
        for flags in [access::REMOTE_WRITE, access::REMOTE_ATOMIC, 1 << 10, 1 << 30] {
            assert_eq!(check_access(flags), Err(Errno(libc::EINVAL)), "{flags:#x}");
        }
        assert_eq!(check_access(access::ON_DEMAND | 1), Err(Errno(libc::EOPNOTSUPP)));
    }

    #[test]
    fn buffers_are_found_only_within_their_region() {
        let regions = Regions::default();
        regions.insert(7, Region { pd: 1, addr: 0x10_0000, len: 100, iova: 0 });
        let find = |pd, addr, length| {
            let mut sources = Sources::default();
            let list = [ibv_sge { addr: 0, length: 1, lkey: 7 }, ibv_sge { addr, length, lkey: 7 }];
            regions.locate(pd, &list, &mut sources).map(|()| sources[1])
        };
        assert_eq!(find(1, 10, 90), Some(0x10_000A as *const u8));
        assert_eq!(find(1, 10, 91), None);
        assert_eq!(find(1, u64::MAX, 2), None);
        assert_eq!(find(1, u64::MAX - 7, 7), None, "as far from the region as it can be");
        assert_eq!(find(2, 10, 1), None, "another domain");
        regions.remove(7);
        assert_eq!(find(1, 10, 1), None);
    }
}
