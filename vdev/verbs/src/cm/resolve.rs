//! Addresses of ids: binding, finding the device that reaches a peer, ports, options.

use super::abi::{event, ibv_sa_path_rec, option, rdma_cm_id};
use super::devices::{CmDevice, device_with, devices, route_to};
use super::id::Id;
use super::{address, qp, result};
use crate::connection::{Errno, unexpected};
use crate::foreign::minus_one;
use core::ffi::{c_int, c_void};
use libc::sockaddr;
use std::net::{IpAddr, SocketAddr};
use vdev_abi::cm::{CmReply, CmRequest};
use vdev_abi::control::{Reply, Request};

/// Exponent of the time that a packet may be under way: 268 ms. The path record and, unless the program says otherwise, the
/// local ACK timeout of connections have it.
pub const PACKET_LIFETIME: u8 = 16;
/// Selector of a path record: exactly this value.
const EXACTLY: u8 = 2;
/// 25 Gb/s, as path records code it.
const RATE_25_GBPS: u8 = 15;
const PKEY: u16 = 0xFFFF;

/// A loopback address stands for the first address of its family that a device of ours has.
fn not_loopback(address: SocketAddr) -> Result<SocketAddr, Errno> {
    if !address.ip().is_loopback() {
        return Ok(address);
    }
    let mut all = devices()?.into_iter().flat_map(|device| device.ips.clone());
    let ip = all.find(|ip| ip.is_ipv4() == address.is_ipv4()).ok_or(Errno(libc::ENODEV))?;
    Ok(SocketAddr::new(ip, address.port()))
}

/// Makes the endpoint of an id on a device; the port that it got.
fn bind_on(id: &Id, device: &'static CmDevice, ip: Option<IpAddr>, port: u16) -> Result<u16, Errno> {
    // SAFETY: the C part is live.
    let space = unsafe { (*id.c()).ps };
    let channel = id.channel().source(device)?;
    let mut state = id.state();
    let request = CmRequest::Bind {
        channel,
        space: u16::try_from(space).unwrap_or(0),
        address: ip.map(address::gid),
        port,
        reuse: state.reuse_address,
    };
    match device.call(request.clone())? {
        (CmReply::Endpoint { endpoint, port }, _) => {
            id.enter(&mut state, device, endpoint);
            Ok(port)
        }
        (other, _) => Err(unexpected(&Request::Cm(request), &Reply::Cm(other))),
    }
}

/// Binds an id to an address of a device, or to all addresses of all devices.
fn bind(id: &Id, address: SocketAddr) -> Result<(), Errno> {
    if id.state().local.is_some() {
        return Err(Errno(libc::EINVAL));
    }
    let address = not_loopback(address)?;
    let mut port = address.port();
    if address.ip().is_unspecified() {
        for device in devices()? {
            // The first decides on the port.
            port = match bind_on(id, device, None, port) {
                Ok(port) => port,
                Err(error) => {
                    id.leave(&mut id.state(), |_| false);
                    return Err(error);
                }
            };
        }
    } else {
        let device = device_with(address.ip()).ok_or(Errno(libc::ENODEV))?;
        port = bind_on(id, device, Some(address.ip()), port)?;
        attach(id, device);
    }
    id.set_local(&mut id.state(), SocketAddr::new(address.ip(), port));
    Ok(())
}

/// From here on the id belongs to one device.
fn attach(id: &Id, device: &'static CmDevice) {
    let mut state = id.state();
    id.leave(&mut state, |other| core::ptr::eq(other, device));
    state.device = Some(device);
    // SAFETY: the C part is live.
    unsafe { device.show_in(id.c()) };
}

/// # Safety
/// Addresses are null or valid.
unsafe fn resolve_addr(id: &Id, source: *const sockaddr, target: *const sockaddr) -> Result<(), Errno> {
    // SAFETY: per contract.
    let remote = not_loopback(unsafe { address::read(target) }?)?;
    if id.state().remote.is_some() {
        return Err(Errno(libc::EINVAL));
    }
    // A group is resolved to the device that it is to be joined on.
    if remote.ip().is_unspecified() || remote.ip().is_multicast() && !qp::is_datagram(id) {
        return Err(Errno(libc::EINVAL));
    }
    if !source.is_null() && id.state().local.is_none() {
        // SAFETY: per contract.
        bind(id, unsafe { address::read(source) }?)?;
    }
    let bound = id.state().local;
    let (device, ip) = match bound {
        Some(local) if !local.ip().is_unspecified() => {
            let device = id.state().device.ok_or(Errno(libc::ENODEV))?;
            (device, local.ip())
        }
        _ => route_to(remote.ip(), &devices()?)?,
    };
    if ip.is_ipv4() != remote.is_ipv4() {
        return Err(Errno(libc::EINVAL));
    }
    let port = match bound {
        Some(local) => local.port(),
        None => bind_on(id, device, Some(ip), 0)?,
    };
    attach(id, device);
    let mut state = id.state();
    id.set_local(&mut state, SocketAddr::new(ip, port));
    id.set_remote(&mut state, remote);
    drop(state);
    id.channel().push(id, event::ADDR_RESOLVED, 0);
    id.complete()
}

fn resolve_route(id: &Id) -> Result<(), Errno> {
    let (device, local, remote, traffic_class) = {
        let state = id.state();
        match (state.device, state.local, state.remote) {
            (Some(device), Some(local), Some(remote)) => (device, local, remote, state.traffic_class),
            _ => return Err(Errno(libc::EINVAL)),
        }
    };
    let port = device.context().port()?;
    let record = ibv_sa_path_rec {
        dgid: address::gid_words(address::gid(remote.ip())),
        sgid: address::gid_words(address::gid(local.ip())),
        hop_limit: 64,
        traffic_class,
        reversible: 1,
        numb_path: 1,
        pkey: PKEY.to_be(),
        mtu_selector: EXACTLY,
        mtu: u8::try_from(port.active_mtu).unwrap_or(0),
        rate_selector: EXACTLY,
        rate: RATE_25_GBPS,
        packet_life_time_selector: EXACTLY,
        packet_life_time: PACKET_LIFETIME,
        ..ibv_sa_path_rec::default()
    };
    // SAFETY: the C part is live; the record is the C library's memory, as an earlier one is.
    unsafe {
        let c = id.c();
        let memory = libc::malloc(size_of::<ibv_sa_path_rec>()).cast::<ibv_sa_path_rec>();
        if memory.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        memory.write(record);
        libc::free((*c).route.path_rec.cast());
        (*c).route.path_rec = memory;
        (*c).route.num_paths = 1;
    }
    id.channel().push(id, event::ROUTE_RESOLVED, 0);
    id.complete()
}

/// Makes sure that an id has a port.
///
/// # Errors
/// Those of binding.
pub fn bind_if_unbound(id: &Id) -> Result<(), Errno> {
    if id.state().local.is_some() {
        return Ok(());
    }
    bind(id, SocketAddr::new(address::any(IpAddr::from([0, 0, 0, 0])), 0))
}

/// # Safety
/// `len` bytes at `value` are readable, or it is null.
unsafe fn set_option(id: &Id, level: c_int, name: c_int, value: *const c_void, len: usize) -> Result<(), Errno> {
    let byte = || match len {
        // SAFETY: per contract.
        1 if !value.is_null() => Ok(unsafe { *value.cast::<u8>() }),
        _ => Err(Errno(libc::EINVAL)),
    };
    let int = || match len {
        // SAFETY: per contract.
        4 if !value.is_null() => Ok(unsafe { value.cast::<c_int>().read_unaligned() }),
        _ => Err(Errno(libc::EINVAL)),
    };
    let mut state = id.state();
    match (level, name) {
        (option::LEVEL_ID, option::TOS) => state.traffic_class = byte()?,
        (option::LEVEL_ID, option::REUSEADDR) => {
            let wanted = int()? != 0;
            if state.local.is_some() {
                return Err(Errno(libc::EINVAL));
            }
            state.reuse_address = wanted;
        }
        // Listeners here never take the requests of another family.
        (option::LEVEL_ID, option::AFONLY) => drop(int()?),
        (option::LEVEL_ID, option::ACK_TIMEOUT) => {
            state.ack_timeout = Some(byte()?).filter(|exponent| *exponent < 32);
            state.ack_timeout.ok_or(Errno(libc::EINVAL))?;
        }
        // Routes are not the program's to set: there is one path.
        (option::LEVEL_IB, _) => return Err(Errno(libc::ENOSYS)),
        _ => return Err(Errno(libc::ENOSYS)),
    }
    Ok(())
}

fn port(address: Option<SocketAddr>) -> u16 {
    address.map_or(0, |address| address.port().to_be())
}

calls! {
    /// Binds an id to an address and a port; to all addresses of all our devices if it is the one that stands for all.
    fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int,
        => {
            result(Id::of(id).and_then(|id| bind(id, address::read(addr)?)))
        } else minus_one(libc::ENODEV);

    /// Finds the device that reaches an address, at once.
    fn rdma_resolve_addr(id: *mut rdma_cm_id, source: *mut sockaddr, target: *mut sockaddr, timeout_ms: c_int) -> c_int,
        => {
            let _ = timeout_ms;
            result(Id::of(id).and_then(|id| resolve_addr(id, source, target)))
        } else minus_one(libc::ENODEV);

    /// Finds the path to that address, at once.
    fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int,
        => {
            let _ = timeout_ms;
            result(Id::of(id).and_then(resolve_route))
        } else minus_one(libc::ENODEV);

    /// Port of an id in network order, 0 while it has none.
    fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16,
        => { Id::of(id).map_or(0, |id| port(id.state().local)) } else 0;

    /// The peer's port in network order.
    fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16,
        => { Id::of(id).map_or(0, |id| port(id.state().remote)) } else 0;

    /// Sets an option of an id.
    fn rdma_set_option(id: *mut rdma_cm_id, level: c_int, name: c_int, value: *mut c_void, len: usize) -> c_int,
        => {
            result(Id::of(id).and_then(|id| set_option(id, level, name, value, len)))
        } else minus_one(libc::ENODEV);
}
