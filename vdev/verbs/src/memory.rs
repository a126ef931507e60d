//! Memory regions.
//!
//! Owns the table of regions that staging consults. Never touches registered memory itself, and never locks it: where the pages
//! are is the daemon's business.

use crate::abi::codes::access;
use crate::abi::object::{ibv_mr, ibv_pd};
use crate::abi::work::ibv_sge;
use crate::connection::{Errno, unexpected};
use crate::context::Context;
use crate::domain::Pd;
use crate::foreign::{code, own_object, pointer, verbs};
use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::AsRawFd;
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
            *source = (end <= region.len).then_some((region.addr + offset) as *const u8)?;
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
    if flags & (access::MW_BIND | access::ON_DEMAND) != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let rights = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
    let writes = flags & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
    if flags & !(rights | access::ZERO_BASED) != 0 || (writes && flags & access::LOCAL_WRITE == 0) {
        return Err(Errno(libc::EINVAL));
    }
    Ok(flags)
}

/// # Safety
/// The domain is live and ours.
unsafe fn reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, flags: u32) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: per contract.
    let (context, pd_handle) = unsafe { (Context::of((*pd).context), (*pd).handle) };
    let flags = check_access(flags)?;
    let iova = if flags & access::ZERO_BASED != 0 { 0 } else { iova };
    let start = addr as u64;
    let len = length as u64;
    if start.checked_add(len).is_none() || iova.checked_add(len).is_none() {
        return Err(Errno(libc::EINVAL));
    }
    let shared = crate::shared_ranges::find(start, len);
    let fds: Vec<_> = shared.iter().map(|(_, fd)| fd.as_raw_fd()).collect();
    let ranges = shared.iter().map(|(range, _)| *range).collect();
    let access = flags & !access::ZERO_BASED;
    let request = Request::RegMr { pd: pd_handle, addr: start, length: len, iova, access, shared: ranges };
    let (reply, _) = context.call(&request, &fds)?;
    let Reply::Region { mr: handle, lkey, rkey, mapped } = reply else { return Err(unexpected(&request, &reply)) };
    if !mapped {
        context.regions.insert(lkey, Region { pd: pd_handle, addr: start, len, iova });
    }
    context.users.fetch_add(1, Ordering::AcqRel);
    // SAFETY: per contract.
    unsafe { Pd::of(pd) }.users.fetch_add(1, Ordering::AcqRel);
    Ok(Box::into_raw(Box::new(ibv_mr { context: context.as_ibv(), pd, addr, length, handle, lkey, rkey })))
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
    drop(unsafe { Box::from_raw(mr) });
    Ok(())
}

verbs! {
    /// Registers memory under its own addresses.
    fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, flags: c_int) -> *mut ibv_mr,
        if own_object(pd) => { pointer(reg_mr(pd, addr, length, addr as u64, flags.cast_unsigned())) } else ptr::null_mut();

    /// Registers memory under addresses of the program's choice.
    fn ibv_reg_mr_iova(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, flags: c_int) -> *mut ibv_mr,
        if own_object(pd) => { pointer(reg_mr(pd, addr, length, iova, flags.cast_unsigned())) } else ptr::null_mut();

    /// As `ibv_reg_mr_iova`; the C header calls it where flags may be optional ones.
    fn ibv_reg_mr_iova2(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, flags: c_uint) -> *mut ibv_mr,
        if own_object(pd) => { pointer(reg_mr(pd, addr, length, iova, flags)) } else ptr::null_mut();

    /// Ends a registration.
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int,
        if own_object(mr) => { code(dereg_mr(mr)) } else libc::ENOSYS;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_flags_are_checked() {
        assert_eq!(check_access(0x0010_0003), Ok(3), "relaxed ordering is a wish");
        assert_eq!(check_access(0), Ok(0));
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
        assert_eq!(find(2, 10, 1), None, "another domain");
        regions.remove(7);
        assert_eq!(find(1, 10, 1), None);
    }
}
