//! The host's interfaces as far as devices care: which address is where, and whether it works.
//!
//! Read whole at each look. A NETLINK_ROUTE socket only says that a look is due, so nothing of its messages is parsed and a quiet
//! host wakes nobody. Owns the verdict on a device's port; never changes it by itself.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};
use roce::Mtu;
use tokio::io::unix::AsyncFd;

use super::devices::Devices;
use super::spec::DeviceSpec;

/// Changes come in swarms (an interface, its addresses, its routes): one look for all of them.
const SETTLE: Duration = Duration::from_millis(50);

/// `RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR`.
const GROUPS: u32 = 0x1 | 0x10 | 0x100;

/// An interface with an address.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Link {
    interface: String,
    up: bool,
    /// In bytes; 0 if it could not be found out.
    mtu: u32,
}

/// All addresses of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links(BTreeMap<IpAddr, Link>);

/// The port of a device, judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortView {
    /// Whether it works, if only between devices of this daemon.
    pub is_up: bool,
    /// Largest path MTU.
    pub mtu: Mtu,
    /// Addresses by which other hosts reach it, with the bound on the MTU that each way has (none while it is not open).
    pub on_wire: BTreeMap<IpAddr, Option<Mtu>>,
    /// Interface of the first of them, also while it is down.
    pub interface: Option<String>,
    /// Why it is down or not on the wire.
    pub reason: Option<String>,
}

impl PortView {
    /// The way by this address is open and has this bound on the MTU.
    pub fn opened(&mut self, ip: IpAddr, bound: Mtu) {
        self.on_wire.insert(ip, Some(bound));
        self.mtu = self.mtu.min(bound);
    }
}

impl Links {
    /// The addresses at this moment.
    ///
    /// # Errors
    /// As `getifaddrs(3)`.
    pub fn read() -> io::Result<Links> {
        let mut links = BTreeMap::new();
        let probe = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        for entry in getifaddrs()? {
            let Some(address) = entry.address else { continue };
            let ip: IpAddr = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
                (Some(v4), _) => v4.ip().into(),
                (_, Some(v6)) => v6.ip().into(),
                _ => continue,
            };
            let up = entry.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING);
            let mtu = interface_mtu(&probe, &entry.interface_name).unwrap_or(0);
            links.insert(ip, Link { interface: entry.interface_name, up, mtu });
        }
        Ok(Links(links))
    }

    /// Reads anew; keeps what is known if that fails.
    pub fn fresh(&mut self) -> &Links {
        match Links::read() {
            Ok(links) => *self = links,
            Err(error) => tracing::warn!(%error, "cannot list the interfaces of this host"),
        }
        self
    }

    /// Whether an address is where it was before, with nothing about it changed.
    pub fn same(&self, before: &Links, ip: &IpAddr) -> bool {
        self.0.get(ip) == before.0.get(ip)
    }

    /// What these interfaces mean for a device whose port was judged `before`.
    ///
    /// A device none of whose addresses was ever on an interface works within the daemon. One that was on the wire is down while
    /// it is not: its peers are elsewhere.
    pub fn judge(&self, spec: &DeviceSpec, before: Option<&PortView>) -> PortView {
        let mtu = spec.mtu.unwrap_or(Mtu::B4096);
        let here: Vec<&Link> = spec.ips.iter().filter_map(|ip| self.0.get(ip)).collect();
        let on_wire = spec.ips.iter().filter(|ip| self.0.contains_key(ip)).map(|&ip| (ip, None)).collect();
        let Some(first) = here.first() else {
            let list = spec.ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
            return match before.and_then(|before| before.interface.clone()) {
                Some(interface) => {
                    let reason = Some(format!("{list} has left interface {interface}"));
                    PortView { is_up: false, mtu, on_wire, interface: Some(interface), reason }
                }
                None => {
                    let reason = Some(format!("no interface of this host has {list}: only devices of this daemon are reached"));
                    PortView { is_up: true, mtu, on_wire, interface: None, reason }
                }
            };
        };
        let down: Vec<&str> = here.iter().filter(|link| !link.up).map(|link| link.interface.as_str()).collect();
        let is_up = down.len() < here.len();
        let reason = (!down.is_empty()).then(|| format!("interface {} is down", down.join(", ")));
        let interface = Some(first.interface.clone());
        PortView { is_up, mtu, on_wire, interface, reason }
    }
}

/// By `SIOCGIFMTU`: sysfs may show another network namespace.
fn interface_mtu(socket: &OwnedFd, name: &str) -> Option<u32> {
    // SAFETY: all-zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: the request is live, its name ends in zero, and the call fills the MTU member.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) };
    // SAFETY: on success that member was written.
    if result == 0 { u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).ok() } else { None }
}

/// Has devices judged anew whenever an interface or address changes. Ends only with an error of the socket, which is logged.
pub async fn watch(devices: Arc<Devices>) {
    let events = match open_events() {
        Ok(events) => events,
        Err(error) => return tracing::warn!(%error, "changes of interfaces will not be noticed"),
    };
    loop {
        match events.readable().await {
            Ok(mut ready) => {
                tokio::time::sleep(SETTLE).await;
                drain(events.get_ref());
                ready.clear_ready();
            }
            Err(error) => return tracing::warn!(%error, "changes of interfaces will no longer be noticed"),
        }
        devices.links_changed().await;
    }
}

fn open_events() -> io::Result<AsyncFd<OwnedFd>> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let events = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
    bind(events.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
    AsyncFd::new(events)
}

/// Reads until nothing is left. An overflow (ENOBUFS) means that there was a change as well.
fn drain(events: &OwnedFd) {
    let mut buf = [0; 4096];
    loop {
        match recv(events.as_raw_fd(), &mut buf, MsgFlags::MSG_DONTWAIT) {
            Ok(0) | Err(nix::errno::Errno::EAGAIN) => return,
            Ok(_) | Err(nix::errno::Errno::ENOBUFS | nix::errno::Errno::EINTR) => {}
            Err(error) => return tracing::warn!(%error, "reading changes of interfaces failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(ips: &[&str]) -> DeviceSpec {
        let ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        DeviceSpec { ips, mtu: None, mode: 0o600, uid: None, gid: None }
    }

    fn links(entries: &[(&str, &str, bool)]) -> Links {
        let link = |interface: &str, up| Link { interface: interface.into(), up, mtu: 1500 };
        Links(entries.iter().map(|&(ip, interface, up)| (ip.parse().unwrap(), link(interface, up))).collect())
    }

    #[test]
    fn loopback_is_found() {
        let links = Links::read().unwrap();
        if let Some(lo) = links.0.get(&"127.0.0.1".parse().unwrap()) {
            assert_eq!(lo.interface, "lo");
            assert!(lo.mtu >= 1500);
        } else {
            eprintln!("SKIP: this network namespace has no 127.0.0.1");
        }
    }

    #[test]
    fn an_address_of_no_interface_is_local_and_up() {
        let view = links(&[]).judge(&spec(&["192.0.2.1"]), None);
        assert!(view.is_up && view.on_wire.is_empty() && view.interface.is_none());
        assert!(view.reason.unwrap().contains("192.0.2.1"));
    }

    #[test]
    fn a_link_goes_down_and_comes_back() {
        let spec = spec(&["192.0.2.1"]);
        let up = links(&[("192.0.2.1", "eth0", true)]).judge(&spec, None);
        assert_eq!((up.is_up, up.interface.as_deref(), up.reason.as_deref()), (true, Some("eth0"), None));
        let down = links(&[("192.0.2.1", "eth0", false)]).judge(&spec, Some(&up));
        assert_eq!((down.is_up, down.reason.as_deref()), (false, Some("interface eth0 is down")));
        // IPv6 addresses vanish with the link; the device must not become a local one.
        let gone = links(&[]).judge(&spec, Some(&down));
        assert_eq!((gone.is_up, gone.interface.as_deref()), (false, Some("eth0")));
        assert_eq!(links(&[("192.0.2.1", "eth0", true)]).judge(&spec, Some(&gone)), up);
    }

    #[test]
    fn one_working_address_is_enough() {
        let view = links(&[("192.0.2.1", "eth0", false), ("192.0.2.2", "eth1", true)]).judge(&spec(&["192.0.2.1", "192.0.2.2"]), None);
        assert!(view.is_up);
        assert_eq!(view.reason.as_deref(), Some("interface eth0 is down"));
    }
}
