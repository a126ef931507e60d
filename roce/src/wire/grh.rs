//! What stands in the first 40 bytes of a received datagram: a GRH, or what RoCEv2 has in its place.

use core::net::IpAddr;

/// Bytes of a GRH.
pub const GRH_LEN: usize = 40;
/// Bytes of an IPv4 header without options.
const IPV4_LEN: usize = 20;
/// IP protocol number of UDP.
const UDP: u8 = 17;
/// Bytes of a UDP header.
const UDP_LEN: usize = 8;

/// The network header that a datagram came under, as far as it shows to whom received it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// Sender's address.
    pub src: IpAddr,
    /// Receiver's address, of the same family.
    pub dst: IpAddr,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes of the UDP payload, BTH to ICRC.
    pub payload_len: usize,
}

impl Grh {
    /// The 40 bytes: the IPv6 header, or 20 zero bytes and the IPv4 header (annex A17.4.5.2), whose checksum tells readers
    /// which of the two it is.
    pub fn to_bytes(&self) -> [u8; GRH_LEN] {
        let mut bytes = [0; GRH_LEN];
        let udp_len = UDP_LEN + self.payload_len;
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let header = &mut bytes[GRH_LEN - IPV4_LEN..];
                header[0] = 0x45;
                header[1] = self.traffic_class;
                header[2..4].copy_from_slice(&((IPV4_LEN + udp_len) as u16).to_be_bytes());
                // Don't fragment.
                header[6] = 0x40;
                header[8] = self.hop_limit;
                header[9] = UDP;
                header[12..16].copy_from_slice(&src.octets());
                header[16..20].copy_from_slice(&dst.octets());
                let checksum = checksum(header);
                header[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            (src, dst) => {
                let word = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xF_FFFF;
                bytes[..4].copy_from_slice(&word.to_be_bytes());
                bytes[4..6].copy_from_slice(&(udp_len as u16).to_be_bytes());
                bytes[6] = UDP;
                bytes[7] = self.hop_limit;
                bytes[8..24].copy_from_slice(&crate::Gid::from(src).0);
                bytes[24..40].copy_from_slice(&crate::Gid::from(dst).0);
            }
        }
        bytes
    }
}

/// The Internet checksum (RFC 1071) of a header whose checksum field is zero.
fn checksum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xFFFF) + (sum >> 16);
    !((folded & 0xFFFF) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_headers_stand_in_the_last_20_bytes() {
        let (src, dst) = ("192.0.2.1".parse().unwrap(), "198.51.100.9".parse().unwrap());
        let grh = Grh { src, dst, traffic_class: 0xB8, hop_limit: 63, flow_label: 5, payload_len: 100 };
        let bytes = grh.to_bytes();
        assert_eq!(bytes[..20], [0; 20]);
        assert_eq!(bytes[20..32], [0x45, 0xB8, 0, 128, 0, 0, 0x40, 0, 63, 17, bytes[30], bytes[31]]);
        assert_eq!(bytes[32..], [192, 0, 2, 1, 198, 51, 100, 9]);
        // A header with its checksum sums up to all ones.
        assert_eq!(checksum(&bytes[20..]), 0);
    }

    #[test]
    fn ipv6_headers_are_the_whole() {
        let (src, dst) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        let grh = Grh { src, dst, traffic_class: 0xB8, hop_limit: 63, flow_label: 0xABCDE, payload_len: 100 };
        let bytes = grh.to_bytes();
        assert_eq!(bytes[..8], [0x6B, 0x8A, 0xBC, 0xDE, 0, 108, 17, 63]);
        assert_eq!((bytes[8], bytes[23], bytes[24], bytes[39]), (0x20, 1, 0x20, 2));
    }
}
