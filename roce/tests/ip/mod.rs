//! Whole IP packets for tests: a slow, independent ICRC over one, and what a receiving UDP socket makes of one.

// Each test file uses its own part of this.
#![allow(dead_code)]

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use roce::wire::icrc::Flow;
use roce::wire::{ICRC_LEN, UDP_PORT};

/// An IP packet as bytes, from the version nibble to the ICRC.
#[derive(Clone, Debug)]
pub struct IpPacket(pub Vec<u8>);

impl IpPacket {
    /// Puts IP and UDP headers before `bth_to_payload` and the reference ICRC behind. `id_and_flags` is the 32-bit word of
    /// IPv4's identification, flags and fragment offset.
    pub fn new(flow: &Flow, id_and_flags: u32, bth_to_payload: &[u8]) -> IpPacket {
        let udp_len = (8 + bth_to_payload.len() + ICRC_LEN) as u16;
        let mut bytes = Vec::new();
        match (flow.src, flow.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                bytes.extend([0x45, 0xB8]);
                bytes.extend((udp_len + 20).to_be_bytes());
                bytes.extend(id_and_flags.to_be_bytes());
                bytes.extend([61, 17, 0x12, 0x34]);
                bytes.extend(src.octets());
                bytes.extend(dst.octets());
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                bytes.extend([0x6A, 0xBC, 0xDE, 0xF1]);
                bytes.extend(udp_len.to_be_bytes());
                bytes.extend([17, 61]);
                bytes.extend(src.octets());
                bytes.extend(dst.octets());
            }
            _ => panic!("addresses of two families"),
        }
        bytes.extend(flow.src_port.to_be_bytes());
        bytes.extend(UDP_PORT.to_be_bytes());
        bytes.extend(udp_len.to_be_bytes());
        bytes.extend([0x56, 0x78]);
        bytes.extend(bth_to_payload);
        bytes.extend([0; ICRC_LEN]);
        let mut packet = IpPacket(bytes);
        let icrc = packet.reference_icrc().to_le_bytes();
        let at = packet.0.len() - ICRC_LEN;
        packet.0[at..].copy_from_slice(&icrc);
        packet
    }

    pub fn is_ipv4(&self) -> bool {
        self.0[0] >> 4 == 4
    }

    /// Where the BTH begins.
    pub fn bth_at(&self) -> usize {
        if self.is_ipv4() { 28 } else { 48 }
    }

    pub fn udp_payload(&self) -> &[u8] {
        &self.0[self.bth_at()..]
    }

    /// The ICRC straight from its definition: mask a copy of the packet, then divide bit by bit. Shares nothing with the
    /// code under test.
    pub fn reference_icrc(&self) -> u32 {
        let mut bytes = self.0[..self.0.len() - ICRC_LEN].to_vec();
        let bth = self.bth_at();
        if self.is_ipv4() {
            for at in [1, 8, 10, 11] {
                bytes[at] = 0xFF;
            }
        } else {
            bytes[0] |= 0x0F;
            bytes[1..4].fill(0xFF);
            bytes[7] = 0xFF;
        }
        bytes[bth - 2..bth].fill(0xFF);
        bytes[bth + 4] = 0xFF;
        let mut register = u32::MAX;
        for byte in [0xFF; 8].into_iter().chain(bytes) {
            for bit in 0..8 {
                let out = register ^ u32::from(byte >> bit);
                register >>= 1;
                if out & 1 != 0 {
                    register ^= 0xEDB8_8320;
                }
            }
        }
        !register
    }

    /// What the kernel's receive path gives to a UDP socket on port 4791, or `None` if it gives nothing: bad lengths, other
    /// protocols, fragments. IP and UDP checksums are taken as rewritten on the way and not checked.
    pub fn receive(&self) -> Option<(Flow, &[u8])> {
        let bytes = &self.0;
        let be16 = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let (src, dst, udp) = match bytes[0] {
            0x45 => {
                let whole = be16(6) & 0x3FFF == 0;
                if !whole || usize::from(be16(2)) != bytes.len() || bytes[9] != 17 {
                    return None;
                }
                let ip = |at: usize| IpAddr::V4(Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]));
                (ip(12), ip(16), 20)
            }
            0x60..=0x6F => {
                if usize::from(be16(4)) + 40 != bytes.len() || bytes[6] != 17 {
                    return None;
                }
                let ip = |at: usize| {
                    let octets: [u8; 16] = bytes[at..at + 16].try_into().expect("16 bytes");
                    IpAddr::V6(Ipv6Addr::from(octets))
                };
                (ip(8), ip(24), 40)
            }
            _ => return None,
        };
        if be16(udp + 2) != UDP_PORT || usize::from(be16(udp + 4)) != bytes.len() - udp {
            return None;
        }
        Some((Flow { src, dst, src_port: be16(udp) }, self.udp_payload()))
    }
}

/// A flow between documentation addresses.
pub fn flow(v6: bool) -> Flow {
    let ip = |text: &str| -> IpAddr { text.parse().expect("an address") };
    let (src, dst) = if v6 { (ip("2001:db8::1"), ip("2001:db8:1::2")) } else { (ip("192.0.2.1"), ip("198.51.100.2")) };
    Flow { src, dst, src_port: 0xC123 }
}

/// The word of IPv4's identification, flags and fragment offset with DF set.
pub fn id_with_df(id: u16) -> u32 {
    u32::from(id) << 16 | 0x4000
}
