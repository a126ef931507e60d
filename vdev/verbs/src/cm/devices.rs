//! The devices that ids are bound to: each of ours is opened once for the whole process, with a protection domain that programs may
//! use as they find it in their ids.

use super::abi::rdma_cm_id;
use super::id::Id;
use crate::abi::device::ibv_context;
use crate::abi::object::ibv_pd;
use crate::connection::{Errno, unexpected};
use crate::context::{Context, lock};
use crate::device::{ibv_free_device_list, ibv_get_device_list, ibv_open_device};
use crate::domain::ibv_alloc_pd;
use crate::foreign::{null, own_device};
use core::ffi::{c_int, c_void};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use vdev_abi::cm::{CmReply, CmRequest};
use vdev_abi::control::{Handle, Reply, Request};

/// A device of ours, opened. It is never closed: ids and programs name it for as long as they like.
pub struct CmDevice {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    /// Its addresses, in the order of the GID table.
    pub ips: Vec<IpAddr>,
    /// Ids by the daemon's number of their endpoint.
    pub ids: Mutex<HashMap<Handle, IdPtr>>,
}

/// An id in a table: live as long as it stands there.
#[derive(Clone, Copy)]
pub struct IdPtr(pub *const Id);

// SAFETY: ids are used by any thread; the pointer is followed only while the table that holds it is locked.
unsafe impl Send for IdPtr {}

// SAFETY: the pointers are to objects that live for ever and may be used by any thread.
unsafe impl Send for CmDevice {}
// SAFETY: as above.
unsafe impl Sync for CmDevice {}

static DEVICES: Mutex<Vec<&'static CmDevice>> = Mutex::new(Vec::new());

impl CmDevice {
    fn open(context: *mut ibv_context) -> Option<&'static CmDevice> {
        // SAFETY: a context that was opened just now.
        let pd = unsafe { ibv_alloc_pd(context) };
        if pd.is_null() {
            return None;
        }
        // SAFETY: as above.
        let info = unsafe { &Context::of(context).info };
        let ips = info.gids.iter().map(|gid| Ipv6Addr::from(*gid).to_canonical()).collect();
        Some(Box::leak(Box::new(CmDevice { context, pd, ips, ids: Mutex::default() })))
    }

    /// The opened device.
    pub fn context(&self) -> &Context {
        // SAFETY: it is never closed by us; a program that closes it breaks the rules of `rdma_get_devices(3)`.
        unsafe { Context::of(self.context) }
    }

    /// One call of connection management.
    ///
    /// # Errors
    /// The daemon's.
    pub fn call(&self, request: CmRequest) -> Result<(CmReply, Vec<OwnedFd>), Errno> {
        let request = Request::Cm(request);
        match self.context().call(&request, &[])? {
            (Reply::Cm(reply), fds) => Ok((reply, fds)),
            (other, _) => Err(unexpected(&request, &other)),
        }
    }

    /// A call that is answered by [`CmReply::Done`].
    ///
    /// # Errors
    /// The daemon's.
    pub fn call_done(&self, request: CmRequest) -> Result<(), Errno> {
        self.call(request).map(|_| ())
    }
}

/// Our devices. Those whose daemon has gone are looked for anew.
///
/// # Errors
/// `ENODEV` if there is none.
pub fn devices() -> Result<Vec<&'static CmDevice>, Errno> {
    let mut known = lock(&DEVICES);
    known.retain(|device| !device.context().connection.look());
    if known.is_empty() {
        // SAFETY: the list is valid until it is freed, and so are the devices in it.
        unsafe {
            let mut count: c_int = 0;
            let list = ibv_get_device_list(&mut count);
            let len = usize::try_from(count).unwrap_or(0);
            for at in 0..if list.is_null() { 0 } else { len } {
                let device = *list.add(at);
                if !own_device(device) {
                    continue;
                }
                let context = ibv_open_device(device);
                if !context.is_null() {
                    known.extend(CmDevice::open(context));
                }
            }
            if !list.is_null() {
                ibv_free_device_list(list);
            }
        }
    }
    if known.is_empty() { Err(Errno(libc::ENODEV)) } else { Ok(known.clone()) }
}

/// The device with this address.
pub fn device_with(ip: IpAddr) -> Option<&'static CmDevice> {
    devices().ok()?.into_iter().find(|device| device.ips.contains(&ip))
}

/// Number of equal bits at the beginning of two addresses.
fn common_prefix(a: IpAddr, b: IpAddr) -> u32 {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        _ => 0,
    }
}

/// From which of our addresses to reach another: the one that has most in common with it.
///
/// # Errors
/// `ENODEV` if no device has an address of that family.
pub fn route_to(remote: IpAddr, among: &[&'static CmDevice]) -> Result<(&'static CmDevice, IpAddr), Errno> {
    let all = among.iter().flat_map(|&device| device.ips.iter().map(move |&ip| (device, ip)));
    let same_family = all.filter(|(_, ip)| ip.is_ipv4() == remote.is_ipv4());
    // The first of equals, so that the order of devices and of their addresses decides.
    let best = same_family.reduce(
        |best, other| {
            if common_prefix(other.1, remote) > common_prefix(best.1, remote) { other } else { best }
        },
    );
    best.ok_or(Errno(libc::ENODEV))
}

/// An array of contexts for the program.
fn list(devices: &[&'static CmDevice]) -> *mut *mut ibv_context {
    // SAFETY: room for the pointers and the null at the end; the memory goes to the program and back to `free`.
    unsafe {
        let array = libc::calloc(devices.len() + 1, size_of::<*mut c_void>()).cast::<*mut ibv_context>();
        if !array.is_null() {
            for (at, device) in devices.iter().enumerate() {
                *array.add(at) = device.context;
            }
        }
        array
    }
}

calls! {
    /// The contexts of our devices; the array ends with a null pointer.
    fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context,
        => {
            match devices() {
                Ok(found) => {
                    if !num_devices.is_null() {
                        num_devices.write(c_int::try_from(found.len()).unwrap_or(c_int::MAX));
                    }
                    list(&found)
                }
                Err(error) => null(error.0),
            }
        } else null(libc::ENODEV);

    /// Frees the array; the contexts stay open.
    fn rdma_free_devices(list: *mut *mut ibv_context) -> (),
        => { libc::free(list.cast()) } else ();
}

impl CmDevice {
    /// Makes an id show this device.
    ///
    /// # Safety
    /// The id is live.
    pub unsafe fn show_in(&self, id: *mut rdma_cm_id) {
        // SAFETY: per contract.
        unsafe {
            (*id).verbs = self.context;
            (*id).port_num = 1;
            if (*id).pd.is_null() {
                (*id).pd = self.pd;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr;

    fn device(ips: &[&str]) -> &'static CmDevice {
        Box::leak(Box::new(CmDevice {
            context: ptr::null_mut(),
            pd: ptr::null_mut(),
            ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
            ids: Mutex::default(),
        }))
    }

    #[test]
    fn the_nearest_address_leads_to_a_peer() {
        let devices = [device(&["192.0.2.1", "2001:db8::1"]), device(&["198.51.100.7", "192.0.2.129"])];
        let way = |remote: &str| route_to(remote.parse().unwrap(), &devices).map(|(_, ip)| ip.to_string());
        assert_eq!(way("192.0.2.2"), Ok("192.0.2.1".into()));
        assert_eq!(way("192.0.2.200"), Ok("192.0.2.129".into()));
        assert_eq!(way("198.51.100.1"), Ok("198.51.100.7".into()));
        assert_eq!(way("2001:db8::2"), Ok("2001:db8::1".into()));
        assert!(route_to("2001:db8::2".parse().unwrap(), &devices[1..]).is_err());
    }
}
