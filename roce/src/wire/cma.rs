//! How IP addresses and ports travel in CM messages (IBA annex A11, RDMA IP CM service): a header before the consumer's private
//! data of REQ and SIDR_REQ, and service IDs made of a port space and a port.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of the header.
pub const CMA_HEADER_LEN: usize = 36;
/// Version of the header.
const VERSION: u8 = 0;

/// A port space: which service a port number names. The number is that of `enum rdma_port_space`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum PortSpace {
    /// Connections.
    Tcp = 0x0106,
    /// Datagrams.
    Udp = 0x0111,
}

impl PortSpace {
    /// The space with this number.
    pub fn from_code(code: u16) -> Option<PortSpace> {
        [PortSpace::Tcp, PortSpace::Udp].into_iter().find(|space| *space as u16 == code)
    }

    /// The service ID of a port in this space.
    pub fn service_id(self, port: u16) -> u64 {
        u64::from(self as u16) << 16 | u64::from(port)
    }

    /// Space and port of a service ID, if it is one of these.
    pub fn of_service_id(id: u64) -> Option<(PortSpace, u16)> {
        let code = u16::try_from(id >> 16).ok()?;
        Some((PortSpace::from_code(code)?, id as u16))
    }
}

/// Who wants to reach whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmaHeader {
    /// Address of the sender.
    pub src: IpAddr,
    /// Port of the sender.
    pub port: u16,
    /// Address of the receiver; of the same family as `src`.
    pub dst: IpAddr,
}

impl CmaHeader {
    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; CMA_HEADER_LEN]) {
        let version: u8 = if self.src.is_ipv4() { 4 } else { 6 };
        out[0] = VERSION;
        out[1] = version << 4;
        out[2..4].copy_from_slice(&self.port.to_be_bytes());
        out[4..20].copy_from_slice(&octets(self.src));
        out[20..36].copy_from_slice(&octets(self.dst));
    }

    /// Reads the header; `None` for another version of it or of IP.
    pub fn parse(bytes: &[u8; CMA_HEADER_LEN]) -> Option<CmaHeader> {
        let [version, ip_version, high, low, addresses @ ..] = bytes;
        let (src, dst) = addresses.split_at(16);
        let ip = |octets: &[u8]| -> Option<IpAddr> {
            let octets: [u8; 16] = octets.try_into().ok()?;
            match ip_version >> 4 {
                4 => Some(Ipv4Addr::from_octets([octets[12], octets[13], octets[14], octets[15]]).into()),
                6 => Some(Ipv6Addr::from_octets(octets).into()),
                _ => None,
            }
        };
        if *version != VERSION {
            return None;
        }
        Some(CmaHeader { src: ip(src)?, port: u16::from_be_bytes([*high, *low]), dst: ip(dst)? })
    }
}

/// An IPv4 address stands in the last four of sixteen bytes, after zeros.
fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V6(ip) => ip.octets(),
        IpAddr::V4(ip) => {
            let mut octets = [0; 16];
            octets[12..].copy_from_slice(&ip.octets());
            octets
        }
    }
}
