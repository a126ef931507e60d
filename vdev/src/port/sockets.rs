//! The sockets of a UDP port: one that receives on 4791, and one per UDP source port in use that sends.
//!
//! Sending sockets stay unconnected: then the kernel writes the identification 0 into a single IPv4 packet with DF and 0, 1, 2, …
//! into the packets of a segmented burst, which is what the sender's ICRC covers.

use super::PortError;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket, sockopt};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};

/// Takes packets over IPv6 whose UDP checksum is zero (`linux/udp.h`).
const UDP_NO_CHECK6_RX: i32 = 102;
/// Bytes that may wait in a receiving socket, if the system allows; none are set aside.
const RECEIVE_BYTES: usize = 16 << 20;
/// Bytes that may be on their way out of a sending socket.
const SEND_BYTES: usize = 4 << 20;
/// Sending sockets kept open; the one unused for longest makes room.
const MAX_SENDERS: usize = 256;
/// Neighbours tried when a source port is taken.
const NEIGHBOURS: u16 = 16;
/// First port of the range that RoCEv2 sources use.
const FIRST_SOURCE_PORT: u16 = 0xC000;

/// A local address, with the interface index that a link-local one needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Local {
    pub(super) ip: IpAddr,
    pub(super) scope: u32,
}

impl Local {
    pub(super) fn at(self, ip: IpAddr, port: u16) -> SocketAddr {
        match ip {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => SocketAddrV6::new(v6, port, 0, self.scope).into(),
            _ => SocketAddr::new(ip, port),
        }
    }
}

/// Sets an integer option that nix has no type for.
pub(super) fn set_option(fd: &OwnedFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: `value` is readable for `len` bytes.
    let rc = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn udp_socket(ip: IpAddr) -> io::Result<OwnedFd> {
    let family = if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
    if ip.is_ipv6() {
        setsockopt(&fd, sockopt::Ipv6V6Only, &true)?;
    }
    Ok(fd)
}

/// The socket that receives everything for `local`.
pub(super) fn receiver(local: Local) -> Result<OwnedFd, PortError> {
    let ip = local.ip;
    let failed = |what| move |source: io::Error| PortError::System { ip, what, source };
    let fd = udp_socket(ip).map_err(failed("socket"))?;
    set_option(&fd, libc::SOL_UDP, libc::UDP_GRO, 1).map_err(failed("UDP_GRO (Linux 5.0 or later is needed)"))?;
    set_option(&fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1).map_err(failed("SO_RXQ_OVFL"))?;
    let (level, class) =
        if ip.is_ipv4() { (libc::IPPROTO_IP, libc::IP_RECVTOS) } else { (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS) };
    set_option(&fd, level, class, 1).map_err(failed("traffic class of what is received"))?;
    if ip.is_ipv6() {
        // RoCEv2 senders leave the checksum out, over IPv6 as well, as the ICRC covers all that it would.
        set_option(&fd, libc::SOL_UDP, UDP_NO_CHECK6_RX, 1).map_err(failed("UDP_NO_CHECK6_RX"))?;
    }
    // Beyond the system's limit with the right to; else up to it.
    if setsockopt(&fd, sockopt::RcvBufForce, &RECEIVE_BYTES).is_err() {
        setsockopt(&fd, sockopt::RcvBuf, &RECEIVE_BYTES).map_err(|errno| failed("SO_RCVBUF")(errno.into()))?;
    }
    match bind(fd.as_raw_fd(), &SockaddrStorage::from(local.at(ip, roce::wire::UDP_PORT))) {
        Ok(()) => Ok(fd),
        Err(nix::errno::Errno::EADDRINUSE) => Err(PortError::InUse(ip)),
        Err(nix::errno::Errno::EADDRNOTAVAIL) => Err(PortError::NotLocal(ip)),
        Err(errno) => Err(failed("bind")(errno.into())),
    }
}

/// A socket that sends from one source port.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) fd: OwnedFd,
    /// The port that packets really come from: another than asked for if that was taken.
    pub(super) port: u16,
    traffic_class: Option<u8>,
    hop_limit: Option<u8>,
    last_used: u64,
}

impl Sender {
    fn open(local: Local, wanted: u16) -> io::Result<Sender> {
        let fd = udp_socket(local.ip)?;
        if local.ip.is_ipv4() {
            set_option(&fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        } else {
            set_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
        }
        if setsockopt(&fd, sockopt::SndBufForce, &SEND_BYTES).is_err() {
            setsockopt(&fd, sockopt::SndBuf, &SEND_BYTES)?;
        }
        // Nobody reads it: what strangers send to it must not take memory.
        setsockopt(&fd, sockopt::RcvBuf, &0)?;
        let range = u16::MAX - FIRST_SOURCE_PORT + 1;
        for step in 0..NEIGHBOURS {
            let port = FIRST_SOURCE_PORT + (wanted.wrapping_sub(FIRST_SOURCE_PORT) + step) % range;
            match bind(fd.as_raw_fd(), &SockaddrStorage::from(local.at(local.ip, port))) {
                Ok(()) => return Ok(Sender { fd, port, traffic_class: None, hop_limit: None, last_used: 0 }),
                Err(nix::errno::Errno::EADDRINUSE) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EADDRINUSE))
    }

    /// Sets what the header of the next packets shall say; a system call only when it changes.
    pub(super) fn mark(&mut self, is_ipv4: bool, traffic_class: u8, hop_limit: u8) -> io::Result<()> {
        let (level, class, hops) = if is_ipv4 {
            (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_UNICAST_HOPS)
        };
        if self.traffic_class != Some(traffic_class) {
            set_option(&self.fd, level, class, traffic_class.into())?;
            self.traffic_class = Some(traffic_class);
        }
        if self.hop_limit != Some(hop_limit) {
            // Zero means nothing in particular: the system's default.
            set_option(&self.fd, level, hops, if hop_limit == 0 { -1 } else { hop_limit.into() })?;
            self.hop_limit = Some(hop_limit);
        }
        Ok(())
    }
}

/// The sending sockets by wanted source port, opened when first used.
#[derive(Debug)]
pub(super) struct Senders {
    local: Local,
    open: HashMap<u16, Sender>,
    clock: u64,
}

impl Senders {
    pub(super) fn new(local: Local) -> Senders {
        Senders { local, open: HashMap::new(), clock: 0 }
    }

    pub(super) fn get(&mut self, port: u16) -> io::Result<&mut Sender> {
        self.clock += 1;
        if !self.open.contains_key(&port) {
            if self.open.len() >= MAX_SENDERS {
                let oldest = self.open.iter().min_by_key(|(_, sender)| sender.last_used).map(|(&port, _)| port);
                oldest.and_then(|port| self.open.remove(&port));
            }
            let sender = Sender::open(self.local, port)?;
            self.open.insert(port, sender);
        }
        let sender = self.open.get_mut(&port).expect("inserted just above");
        sender.last_used = self.clock;
        Ok(sender)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }
}
