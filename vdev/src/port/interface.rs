//! Which interface holds an address, and what fits through it.

use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, socket};
use roce::Mtu;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

/// An interface that holds an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name, as in `ip link`.
    pub name: String,
    /// Index.
    pub index: u32,
    /// Longest IP packet in bytes.
    pub mtu: u32,
    /// Administratively up and with a carrier.
    pub up: bool,
}

/// All addresses of this network namespace at one moment.
#[derive(Clone, Debug, Default)]
pub struct Interfaces {
    by_ip: HashMap<IpAddr, Interface>,
}

impl Interfaces {
    /// Looks at the system.
    ///
    /// # Errors
    /// The system's.
    pub fn now() -> io::Result<Interfaces> {
        let asking = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        let mut by_name: HashMap<String, Interface> = HashMap::new();
        let mut by_ip = HashMap::new();
        for entry in getifaddrs()? {
            let Some(ip) = entry.address.as_ref().and_then(ip) else { continue };
            let name = entry.interface_name;
            let known = by_name.get(&name).cloned();
            let up = entry.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING);
            // An interface may go away between the two questions: then it has no addresses either.
            let asked = || {
                let mtu = mtu(std::os::fd::AsFd::as_fd(&asking), &name).ok()?;
                Some(Interface { index: if_nametoindex(name.as_str()).ok()?, name: name.clone(), mtu, up })
            };
            if let Some(interface) = known.or_else(asked) {
                by_ip.entry(ip).or_insert_with(|| interface.clone());
                by_name.insert(name, interface);
            }
        }
        Ok(Interfaces { by_ip })
    }

    /// The interface that holds `ip`.
    pub fn holding(&self, ip: IpAddr) -> Option<&Interface> {
        self.by_ip.get(&ip)
    }
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

fn mtu(socket: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    // SAFETY: an all-zero `ifreq` is valid.
    let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: SIOCGIFMTU reads the name and writes the number into `request`.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: SIOCGIFMTU has set this member.
    u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).map_err(io::Error::other)
}

/// The largest path MTU whose longest packet fits an interface MTU of `interface_mtu` bytes, or `None` if not even the smallest
/// does. The longest packet is a WRITE with immediate: IP, UDP 8, BTH 12, RETH 16, immediate 4, payload, ICRC 4.
pub fn path_mtu(interface_mtu: u32, is_ipv6: bool) -> Option<Mtu> {
    let headers = if is_ipv6 { 40 } else { 20 } + 8 + 12 + 16 + 4 + 4;
    Mtu::at_most((interface_mtu as usize).checked_sub(headers)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_mtu_is_exact_to_the_byte() {
        for (interface, v4, v6) in [
            (319, None, None),
            (320, Some(Mtu::B256), None),
            (339, Some(Mtu::B256), None),
            (340, Some(Mtu::B256), Some(Mtu::B256)),
            (1500, Some(Mtu::B1024), Some(Mtu::B1024)),
            (4159, Some(Mtu::B2048), Some(Mtu::B2048)),
            (4160, Some(Mtu::B4096), Some(Mtu::B2048)),
            (4179, Some(Mtu::B4096), Some(Mtu::B2048)),
            (4180, Some(Mtu::B4096), Some(Mtu::B4096)),
            (65536, Some(Mtu::B4096), Some(Mtu::B4096)),
            (0, None, None),
        ] {
            assert_eq!((path_mtu(interface, false), path_mtu(interface, true)), (v4, v6), "{interface}");
        }
    }

    #[test]
    fn loopback_is_found() {
        let interfaces = Interfaces::now().unwrap();
        let lo = interfaces.holding("127.0.0.1".parse().unwrap()).unwrap();
        assert_eq!(lo.name, "lo");
        assert!(lo.up && lo.mtu >= 1500 && lo.index > 0, "{lo:?}");
        assert_eq!(interfaces.holding("203.0.113.77".parse().unwrap()), None);
    }
}
