//! Socket addresses between C and Rust.

use crate::connection::Errno;
use core::ptr;
use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The address that a program passes.
///
/// # Errors
/// `EINVAL` for a null pointer, `EAFNOSUPPORT` for a family other than IPv4 and IPv6.
///
/// # Safety
/// `addr` is null or as long as its family says.
pub unsafe fn read(addr: *const sockaddr) -> Result<SocketAddr, Errno> {
    if addr.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: per contract; programs need not align addresses.
    unsafe {
        match i32::from((&raw const (*addr).sa_family).read_unaligned()) {
            libc::AF_INET => {
                let v4 = addr.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr));
                Ok(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)))
            }
            libc::AF_INET6 => {
                let v6 = addr.cast::<sockaddr_in6>().read_unaligned();
                // An IPv4 address in IPv6 clothes is the former to a device.
                let ip = Ipv6Addr::from_octets(v6.sin6_addr.s6_addr).to_canonical();
                Ok(SocketAddr::new(ip, u16::from_be(v6.sin6_port)))
            }
            _ => Err(Errno(libc::EAFNOSUPPORT)),
        }
    }
}

/// Writes an address where programs read it.
///
/// # Safety
/// `to` is writable.
pub unsafe fn write(address: SocketAddr, to: *mut sockaddr_storage) {
    // SAFETY: per contract; the storage holds either kind, and all of it is initialised.
    unsafe {
        ptr::write_bytes(to, 0, 1);
        match address.ip() {
            IpAddr::V4(ip) => {
                let v4 = to.cast::<sockaddr_in>();
                (*v4).sin_family = libc::AF_INET as u16;
                (*v4).sin_port = address.port().to_be();
                (*v4).sin_addr.s_addr = ip.to_bits().to_be();
            }
            IpAddr::V6(ip) => {
                let v6 = to.cast::<sockaddr_in6>();
                (*v6).sin6_family = libc::AF_INET6 as u16;
                (*v6).sin6_port = address.port().to_be();
                (*v6).sin6_addr.s6_addr = ip.octets();
            }
        }
    }
}

/// The GID of an address.
pub fn gid(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// A GID as the two words of the C union, in memory order.
pub fn gid_words(gid: [u8; 16]) -> [u64; 2] {
    let half = |at: usize| u64::from_ne_bytes(gid[at..at + 8].try_into().unwrap_or_default());
    [half(0), half(8)]
}

/// The address of a GID.
pub fn ip(gid: [u8; 16]) -> IpAddr {
    Ipv6Addr::from_octets(gid).to_canonical()
}

/// The address that stands for all of this family.
pub fn any(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back() {
        for text in ["192.0.2.1:7174", "[2001:db8::1]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            // SAFETY: all-zero storage is valid, and both calls get a pointer to it.
            let back = unsafe {
                let mut storage: sockaddr_storage = core::mem::zeroed();
                write(address, &mut storage);
                read((&raw const storage).cast())
            };
            assert_eq!(back, Ok(address));
        }
    }

    #[test]
    fn other_families_are_refused() {
        // SAFETY: null, or all-zero storage with another family.
        unsafe {
            assert_eq!(read(ptr::null()), Err(Errno(libc::EINVAL)));
            let mut storage: sockaddr_storage = core::mem::zeroed();
            storage.ss_family = libc::AF_UNIX as u16;
            assert_eq!(read((&raw const storage).cast()), Err(Errno(libc::EAFNOSUPPORT)));
        }
    }
}
