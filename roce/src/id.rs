//! Identifiers of the transport. One type per meaning, so that a remote key can never be passed as a QP number.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A queue pair number: 24 bits (IBA 9.2.2, destination QP).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// The general services interface, QP1.
    pub const GSI: Qpn = Qpn(1);
    /// The number that addresses a multicast group.
    pub const MULTICAST: Qpn = Qpn(0xFF_FFFF);

    /// The low 24 bits of `raw`; higher bits are dropped, as a header field would drop them.
    pub const fn new(raw: u32) -> Self {
        Qpn(raw & 0xFF_FFFF)
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {:#08x}", self.0)
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// The number of a shared receive queue, by which requests of extended reliable connections name it: 24 bits (IBA annex A14.3,
/// XRCETH).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Srqn(u32);

impl Srqn {
    /// The low 24 bits of `raw`; higher bits are dropped, as a header field would drop them.
    pub const fn new(raw: u32) -> Self {
        Srqn(raw & 0xFF_FFFF)
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Srqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SRQ {:#08x}", self.0)
    }
}

/// A local memory key: names a region in the scatter/gather entries of the owner's own work requests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lkey(pub u32);

impl fmt::Debug for Lkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lkey {:#010x}", self.0)
    }
}

/// A remote memory key: names a region in the requests of a peer (IBA 9.3.3, RETH).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Rkey(pub u32);

impl fmt::Debug for Rkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rkey {:#010x}", self.0)
    }
}

/// A global identifier: the 16-byte address of a port. On RoCEv2 it is the IP address, an IPv4 address being written as
/// an IPv4-mapped IPv6 address (annex A17.4.5.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The all-zero GID, which is never a valid address.
    pub const ZERO: Gid = Gid([0; 16]);

    /// The IP address that this GID stands for.
    pub fn ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => v6.into(),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(ip: Ipv4Addr) -> Self {
        Gid(ip.to_ipv6_mapped().octets())
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(ip: Ipv6Addr) -> Self {
        Gid(ip.octets())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_24_bits() {
        assert_eq!(Qpn::new(0xAB12_3456).get(), 0x12_3456);
        assert_eq!(Srqn::new(0xAB12_3456).get(), 0x12_3456);
    }

    #[test]
    fn gid_and_ip_are_the_same_address() {
        let v4: IpAddr = "192.0.2.1".parse().unwrap();
        assert_eq!(Gid::from(v4).0[10..], [0xFF, 0xFF, 192, 0, 2, 1]);
        assert_eq!(Gid::from(v4).ip(), v4);
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!(Gid::from(v6).ip(), v6);
    }
}
