//! An open device and its protection domain.

use std::ffi::CStr;
use std::net::Ipv6Addr;
use std::ptr::NonNull;
use std::rc::Rc;

use anyhow::{Context as _, Result, bail, ensure};

use super::{CallError, Library, sys};

/// Which device, port and address to use.
#[derive(Clone, Debug, Default)]
pub struct DeviceChoice {
    /// Device name; the first one if there is none.
    pub name: Option<String>,
    /// GID index; if there is none, the first IPv4 address, else index 0.
    pub gid_index: Option<u8>,
}

/// An open device. Closed when the last object made from it is gone.
pub struct Context {
    library: Library,
    raw: NonNull<sys::Context>,
    name: String,
}

/// Port 1 as it was when the device was opened.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// Code of `enum ibv_mtu`.
    pub mtu: u32,
    /// Which entry of the GID table is used.
    pub gid_index: u8,
    /// That entry.
    pub gid: [u8; 16],
}

/// The port that is used; devices with several ports are outside the scope.
const PORT: u8 = 1;

impl Context {
    /// Opens a device.
    pub fn open(choice: &DeviceChoice) -> Result<Rc<Context>> {
        let library = Library::load()?;
        let mut count = 0;
        // SAFETY: `count` is writable for the call.
        let list = unsafe { (library.get_device_list)(&mut count) };
        if list.is_null() {
            return Err(CallError::last("ibv_get_device_list")).context("the verbs library lists no devices");
        }
        let mut names = Vec::new();
        let mut found = None;
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` entries, which stay valid until it is freed; names are C strings in them.
            let (device, name) = unsafe {
                let device = *list.add(index);
                (device, CStr::from_ptr((library.get_device_name)(device)).to_string_lossy().into_owned())
            };
            if found.is_none() && choice.name.as_ref().is_none_or(|wanted| *wanted == name) {
                found = Some((device, name.clone()));
            }
            names.push(name);
        }
        let opened = found.map(|(device, name)| {
            // SAFETY: `device` is an entry of the list, which is not freed yet; an open device outlives the list.
            (NonNull::new(unsafe { (library.open_device)(device) }).ok_or_else(|| CallError::last("ibv_open_device")), name)
        });
        // SAFETY: the list came from ibv_get_device_list and is not used below.
        unsafe { (library.free_device_list)(list) };
        match opened {
            Some((raw, name)) => {
                let raw = raw.with_context(|| format!("cannot open device {name}"))?;
                Ok(Rc::new(Context { library, raw, name }))
            }
            None if names.is_empty() => bail!(
                "the verbs library lists no device: start this program with `vrdma run --dev NAME -- PROGRAM`, and see whether the \
                 daemon runs"
            ),
            None => bail!("there is no device {}: there are {}", choice.name.as_deref().unwrap_or_default(), names.join(", ")),
        }
    }

    /// Name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// State of the port, which must be active.
    pub fn port(&self, choice: &DeviceChoice) -> Result<Port> {
        let mut attr = sys::PortAttr::default();
        // SAFETY: the context is open; the function writes the 48-byte layout, which `attr` has.
        CallError::check("ibv_query_port", unsafe { (self.library.query_port)(self.raw.as_ptr(), PORT, &mut attr) })?;
        ensure!(attr.state == sys::PORT_ACTIVE, "the port of device {} is not active (state {})", self.name, attr.state);
        let count = u8::try_from(attr.gid_tbl_len).unwrap_or(u8::MAX);
        let gid_index = match choice.gid_index {
            Some(index) => index,
            None => (0..count).find(|&index| self.gid(index).is_ok_and(is_ipv4)).unwrap_or(0),
        };
        Ok(Port { mtu: attr.active_mtu, gid_index, gid: self.gid(gid_index)? })
    }

    fn gid(&self, index: u8) -> Result<[u8; 16], CallError> {
        let mut gid = sys::Gid::default();
        // SAFETY: the context is open and `gid` is writable for the call.
        let result = unsafe { (self.library.query_gid)(self.raw.as_ptr(), PORT, i32::from(index), &mut gid) };
        CallError::check("ibv_query_gid", result).map(|()| gid.0)
    }

    pub(super) fn library(&self) -> &Library {
        &self.library
    }

    pub(super) fn raw(&self) -> NonNull<sys::Context> {
        self.raw
    }
}

fn is_ipv4(gid: [u8; 16]) -> bool {
    Ipv6Addr::from(gid).to_ipv4_mapped().is_some_and(|ip| !ip.is_unspecified())
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: every object made from the context holds an `Rc` of it, so none is left.
        unsafe { (self.library.close_device)(self.raw.as_ptr()) };
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A protection domain.
#[derive(Debug)]
pub struct Pd {
    context: Rc<Context>,
    raw: NonNull<sys::Pd>,
}

impl Pd {
    /// A new domain.
    pub fn new(context: &Rc<Context>) -> Result<Rc<Pd>, CallError> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.library.alloc_pd)(context.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| CallError::last("ibv_alloc_pd"))?;
        Ok(Rc::new(Pd { context: context.clone(), raw }))
    }

    /// The device.
    pub fn context(&self) -> &Rc<Context> {
        &self.context
    }

    pub(super) fn raw(&self) -> NonNull<sys::Pd> {
        self.raw
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: regions and queue pairs hold an `Rc` of their domain, so none is left.
        unsafe { (self.context.library.dealloc_pd)(self.raw.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ipv4_addresses_are_preferred() {
        assert!(is_ipv4("192.0.2.1".parse::<std::net::Ipv4Addr>().unwrap().to_ipv6_mapped().octets()));
        assert!(!is_ipv4("fe80::1".parse::<Ipv6Addr>().unwrap().octets()));
        assert!(!is_ipv4([0; 16]));
    }
}
