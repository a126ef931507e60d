//! The host's interfaces as far as devices care: which address is where, and whether it works.
//!
//! Read whole at each look. A NETLINK_ROUTE socket only says that a look is due, so nothing of its messages is parsed and a quiet
//! host wakes nobody. Owns the verdict on a device's port; never changes it by itself.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket};
use roce::Mtu;
use tokio::io::unix::AsyncFd;

use super::devices::Devices;
use super::spec::DeviceSpec;
use super::watched::watch_input;
use crate::port::{Interface, path_mtu};

/// Changes come in swarms (an interface, its addresses, its routes): one look for all of them.
const SETTLE: Duration = Duration::from_millis(50);

/// `RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR`.
const GROUPS: u32 = 0x1 | 0x10 | 0x100;

/// The port of a device, judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortView {
    /// Whether it works, if only between devices of this daemon.
    pub is_up: bool,
    /// Largest path MTU.
    pub mtu: Mtu,
    /// Addresses by which other hosts reach it.
    pub on_wire: BTreeSet<IpAddr>,
    /// Interface of the first of them, also while it is down.
    pub interface: Option<String>,
    /// Why it is down or not on the wire.
    pub reason: Option<String>,
}

impl PortView {
    /// An address that an interface has cannot be used all the same.
    pub fn refuse(&mut self, ip: IpAddr, error: &impl std::fmt::Display) {
        self.on_wire.remove(&ip);
        self.is_up &= !self.on_wire.is_empty();
        self.reason = Some(format!("cannot use {ip} on the wire: {error}"));
    }
}

/// What the host's interfaces mean for a device whose port was judged `before`; `holding` finds the interface of an address.
///
/// A device none of whose addresses was ever on an interface works within the daemon. One that was on the wire is down while it
/// is not: its peers are elsewhere.
pub fn judge<'a>(spec: &DeviceSpec, before: Option<&PortView>, holding: impl Fn(IpAddr) -> Option<&'a Interface>) -> PortView {
    let mut mtu = spec.mtu.unwrap_or(Mtu::B4096);
    let here: Vec<(IpAddr, &Interface)> = spec.ips.iter().filter_map(|&ip| Some((ip, holding(ip)?))).collect();
    let Some(&(_, first)) = here.first() else {
        let list = spec.ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
        let interface = before.and_then(|before| before.interface.clone());
        let reason = match &interface {
            Some(interface) => format!("{list} has left interface {interface}"),
            None => format!("no interface of this host has {list}: only devices of this daemon are reached"),
        };
        return PortView { is_up: interface.is_none(), mtu, on_wire: BTreeSet::new(), interface, reason: Some(reason) };
    };
    let mut on_wire = BTreeSet::new();
    let mut reason = None;
    let mut is_up = false;
    for &(ip, link) in &here {
        let Some(bound) = path_mtu(link.mtu, ip.is_ipv6()) else {
            reason = Some(format!("interface {} has an MTU of {}, too small for 256 bytes of payload", link.name, link.mtu));
            continue;
        };
        mtu = mtu.min(bound);
        on_wire.insert(ip);
        is_up |= link.up;
        if !link.up {
            reason = Some(format!("interface {} is down", link.name));
        }
    }
    PortView { is_up, mtu, on_wire, interface: Some(first.name.clone()), reason }
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
    watch_input(events)
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
        DeviceSpec { ips, mtu: None, mode: 0o600, uid: None, gid: None, vm: None }
    }

    fn judged(spec: &DeviceSpec, before: Option<&PortView>, entries: &[(&str, &str, u32, bool)]) -> PortView {
        let link = |name: &str, mtu, up| Interface { name: name.into(), index: 1, mtu, up };
        let links: Vec<(IpAddr, Interface)> =
            entries.iter().map(|&(ip, name, mtu, up)| (ip.parse().unwrap(), link(name, mtu, up))).collect();
        judge(spec, before, |ip| links.iter().find(|(other, _)| *other == ip).map(|(_, link)| link))
    }

    #[test]
    fn an_address_of_no_interface_is_local_and_up() {
        let view = judged(&spec(&["192.0.2.1"]), None, &[]);
        assert!(view.is_up && view.on_wire.is_empty() && view.interface.is_none());
        assert_eq!(view.mtu, Mtu::B4096);
        assert!(view.reason.unwrap().contains("192.0.2.1"));
    }

    #[test]
    fn a_link_goes_down_and_comes_back() {
        let spec = spec(&["192.0.2.1"]);
        let up = judged(&spec, None, &[("192.0.2.1", "eth0", 1500, true)]);
        assert_eq!((up.is_up, up.interface.as_deref(), up.reason.as_deref()), (true, Some("eth0"), None));
        let down = judged(&spec, Some(&up), &[("192.0.2.1", "eth0", 1500, false)]);
        assert_eq!((down.is_up, down.reason.as_deref()), (false, Some("interface eth0 is down")));
        // IPv6 addresses vanish with the link; the device must not become a local one.
        let gone = judged(&spec, Some(&down), &[]);
        assert_eq!((gone.is_up, gone.interface.as_deref()), (false, Some("eth0")));
        assert_eq!(judged(&spec, Some(&gone), &[("192.0.2.1", "eth0", 1500, true)]), up);
    }

    #[test]
    fn one_working_address_is_enough_and_the_smallest_mtu_holds() {
        let links = [("192.0.2.1", "eth0", 9000, false), ("192.0.2.2", "eth1", 1500, true)];
        let view = judged(&spec(&["192.0.2.1", "192.0.2.2"]), None, &links);
        assert_eq!((view.is_up, view.mtu), (true, Mtu::B1024));
        assert_eq!(view.reason.as_deref(), Some("interface eth0 is down"));
        let asked = DeviceSpec { mtu: Some(Mtu::B512), ..spec(&["192.0.2.2"]) };
        assert_eq!(judged(&asked, None, &links).mtu, Mtu::B512);
    }

    #[test]
    fn an_interface_too_narrow_is_no_way() {
        let view = judged(&spec(&["192.0.2.1"]), None, &[("192.0.2.1", "eth0", 300, true)]);
        assert!(!view.is_up && view.on_wire.is_empty());
        assert!(view.reason.unwrap().contains("300"));
    }
}
