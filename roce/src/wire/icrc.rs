//! The invariant CRC: a CRC-32 over everything between the Ethernet header and itself that no router may change.
//!
//! It covers eight bytes of ones (in the place of an InfiniBand routing header), the IP header, the UDP header and the
//! packet, with ones in the fields that routers change: IPv4 type of service, time to live and checksum; IPv6 traffic
//! class, flow label and hop limit; UDP checksum; the BTH's byte of congestion bits. It is stored little endian.
//!
//! IPv4's identification and don't-fragment bit are covered although a UDP socket does not show them to the receiver. The
//! check finds them from the CRC itself: a CRC is linear, so the difference between the CRC found and the one expected
//! for identification 0, followed backwards to the place of those fields, is the difference between the fields. A packet
//! is good if that difference lies within the identification and the don't-fragment bit and nowhere else. What this
//! costs is stated at [`check`].
//!
//! Sources: IBA 7.8.1 (ICRC), annex A17.3.3 (its fields under RoCEv2).

use super::{BTH_LEN, ICRC_LEN, UDP_PORT, WireError, gf2};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use crc32fast::Hasher;

/// Addresses and source port that a packet travels under; the destination port is always 4791.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Sender. An IPv4-mapped IPv6 address stands for IPv4, as on a socket that serves both.
    pub src: IpAddr,
    /// Receiver, of the same family.
    pub dst: IpAddr,
    /// UDP source port.
    pub src_port: u16,
}

/// The IPv4 fields that a receiving socket does not see, as recovered by [`Prefix::identify`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Fields {
    /// Identification.
    pub id: u16,
    /// Don't fragment.
    pub dont_fragment: bool,
}

const UDP_LEN: usize = 8;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const PROTOCOL_UDP: u8 = 17;
/// Offset of the congestion bits in the packet.
const BTH_CONGESTION: usize = 4;

/// Bytes of the prefix that follow IPv4's identification: fragment offset, TTL, protocol, checksum, addresses, UDP header.
const AFTER_ID: usize = 2 + 1 + 1 + 2 + 4 + 4 + UDP_LEN;
static ID_HIGH: [u32; 256] = gf2::contributions(AFTER_ID + 1);
static ID_LOW: [u32; 256] = gf2::contributions(AFTER_ID);

/// The CRC over the headers below the BTH, ready for any number of packets of one flow and one length: a burst that is
/// segmented or merged by the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Prefix {
    /// CRC for identification 0 and DF.
    crc: u32,
    is_ipv4: bool,
    /// Bytes of the packet, from BTH up to but without the ICRC.
    len: usize,
}

impl Prefix {
    /// For packets of `udp_payload_len` bytes, ICRC included.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::TooLong`] or [`WireError::Unaligned`] for lengths that no packet has;
    /// [`WireError::Icrc`] if the addresses are of different families.
    pub fn new(flow: &Flow, udp_payload_len: usize) -> Result<Prefix, WireError> {
        let need = BTH_LEN + ICRC_LEN;
        if udp_payload_len < need {
            return Err(WireError::Truncated { len: udp_payload_len, need });
        }
        if !udp_payload_len.is_multiple_of(4) {
            return Err(WireError::Unaligned(udp_payload_len));
        }
        let too_long = WireError::TooLong(udp_payload_len);
        let udp_len = u16::try_from(udp_payload_len + UDP_LEN).map_err(|_| too_long)?;
        let mut udp = [0xFF; UDP_LEN];
        udp[..2].copy_from_slice(&flow.src_port.to_be_bytes());
        udp[2..4].copy_from_slice(&UDP_PORT.to_be_bytes());
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
        let len = udp_payload_len - ICRC_LEN;
        match (flow.src.to_canonical(), flow.dst.to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let total_len = u16::try_from(usize::from(udp_len) + IPV4_LEN).map_err(|_| too_long)?;
                Ok(Prefix { crc: crc_ipv4(src, dst, total_len, udp), is_ipv4: true, len })
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => Ok(Prefix { crc: crc_ipv6(src, dst, udp_len, udp), is_ipv4: false, len }),
            _ => Err(WireError::Icrc),
        }
    }

    /// The ICRC of one packet, given without its last 4 bytes. `ip_id` is the IPv4 identification; IPv6 has none and takes
    /// no notice. The value is stored little endian.
    ///
    /// # Panics
    /// If the length is not that of the prefix.
    pub fn compute(&self, ip_id: u16, bth_to_payload: &[u8]) -> u32 {
        assert!(bth_to_payload.len() == self.len, "packet of {} bytes, ICRC prefix for {}", bth_to_payload.len(), self.len);
        crc_packet(self.crc_for(ip_id), bth_to_payload)
    }

    fn crc_for(&self, ip_id: u16) -> u32 {
        let [high, low] = ip_id.to_be_bytes();
        if self.is_ipv4 { self.crc ^ ID_HIGH[usize::from(high)] ^ ID_LOW[usize::from(low)] } else { self.crc }
    }

    /// Checks the ICRC at the end of `udp_payload`, see [`check`]. `likely_id` is the IPv4 identification that it probably
    /// has: with that one the check is faster, and with others it comes to the same.
    ///
    /// # Errors
    /// [`WireError::Icrc`] if it does not fit, or if the length is not that of the prefix.
    pub fn check(&self, likely_id: u16, udp_payload: &[u8]) -> Result<(), WireError> {
        self.identify(likely_id, udp_payload).map(drop)
    }

    /// Like [`Prefix::check`], and returns what IPv4's hidden fields must have been (`None` over IPv6). A receiver that
    /// knows how a peer numbers its packets can compare.
    ///
    /// # Errors
    /// Those of [`Prefix::check`].
    pub fn identify(&self, likely_id: u16, udp_payload: &[u8]) -> Result<Option<Ipv4Fields>, WireError> {
        let Some((packet, icrc)) = udp_payload.split_last_chunk::<ICRC_LEN>() else {
            return Err(WireError::Icrc);
        };
        if packet.len() != self.len {
            return Err(WireError::Icrc);
        }
        let difference = u32::from_le_bytes(*icrc) ^ crc_packet(self.crc_for(likely_id), packet);
        match (self.is_ipv4, difference) {
            (false, 0) => Ok(None),
            (false, _) => Err(WireError::Icrc),
            (true, 0) => Ok(Some(Ipv4Fields { id: likely_id, dont_fragment: true })),
            (true, _) => recover_ipv4(likely_id, difference, self.len).map(Some),
        }
    }
}

/// The fields that explain a difference between the ICRC found and the one for identification `id` with DF.
#[cold]
fn recover_ipv4(id: u16, difference: u32, len: usize) -> Result<Ipv4Fields, WireError> {
    // The word that holds identification, flags and fragment offset, and all that follows it, in 32-bit words: the
    // register has gone that far since the difference entered it.
    let words = (2 + AFTER_ID + len) / 4;
    let [id_high, id_low, flags, fragment] = gf2::over_words(difference, words).to_le_bytes();
    const DF: u8 = 0x40;
    if flags & !DF != 0 || fragment != 0 {
        return Err(WireError::Icrc);
    }
    Ok(Ipv4Fields { id: id ^ u16::from_be_bytes([id_high, id_low]), dont_fragment: flags & DF == 0 })
}

/// The ICRC of a packet, given from BTH to the end of the padding. `ip_id` is the IPv4 identification, and DF is set; IPv6
/// takes no notice. The value is stored little endian behind the packet. For several packets of one length, a [`Prefix`]
/// is cheaper.
///
/// # Panics
/// If the packet has no BTH, is no multiple of 4 bytes, does not fit an IP packet, or if the addresses of the flow are of
/// different families.
pub fn compute(flow: &Flow, ip_id: u16, bth_to_payload: &[u8]) -> u32 {
    match Prefix::new(flow, bth_to_payload.len() + ICRC_LEN) {
        Ok(prefix) => prefix.compute(ip_id, bth_to_payload),
        Err(error) => panic!("no ICRC for {flow:?}: {error}"),
    }
}

/// Checks the ICRC at the end of a UDP payload. Over IPv4 any identification, with or without DF, is accepted.
///
/// The identification being unknown leaves 15 of the 32 bits of the CRC as redundancy over IPv4: 1 of 32768 packets
/// damaged at random passes, where over IPv6 1 of 2^32 does. A single flipped bit is found everywhere but at two places of
/// packets longer than 173 bytes (there it looks like a certain identification without DF). Ethernet's own CRC and the UDP
/// checksum come before this check; a receiver that wants more compares what [`Prefix::identify`] finds.
///
/// # Errors
/// [`WireError::Icrc`] if it does not fit; the errors of [`Prefix::new`].
pub fn check(flow: &Flow, udp_payload: &[u8]) -> Result<(), WireError> {
    Prefix::new(flow, udp_payload.len())?.check(0, udp_payload)
}

fn crc_packet(prefix: u32, packet: &[u8]) -> u32 {
    let mut crc = Hasher::new_with_initial(prefix);
    let (bth, rest) = packet.split_at(BTH_LEN);
    let mut masked = [0; BTH_LEN];
    masked.copy_from_slice(bth);
    masked[BTH_CONGESTION] = 0xFF;
    crc.update(&masked);
    crc.update(rest);
    crc.finalize()
}

fn crc_ipv4(src: Ipv4Addr, dst: Ipv4Addr, total_len: u16, udp: [u8; UDP_LEN]) -> u32 {
    let mut bytes = [0xFF; 8 + IPV4_LEN + UDP_LEN];
    let (ip, udp_bytes) = bytes[8..].split_at_mut(IPV4_LEN);
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&total_len.to_be_bytes());
    ip[4..6].copy_from_slice(&[0, 0]);
    ip[6..8].copy_from_slice(&[0x40, 0]);
    ip[9] = PROTOCOL_UDP;
    ip[12..16].copy_from_slice(&src.octets());
    ip[16..20].copy_from_slice(&dst.octets());
    udp_bytes.copy_from_slice(&udp);
    crc32fast::hash(&bytes)
}

fn crc_ipv6(src: Ipv6Addr, dst: Ipv6Addr, udp_len: u16, udp: [u8; UDP_LEN]) -> u32 {
    let mut bytes = [0xFF; 8 + IPV6_LEN + UDP_LEN];
    let (ip, udp_bytes) = bytes[8..].split_at_mut(IPV6_LEN);
    ip[0] = 0x6F;
    ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
    ip[6] = PROTOCOL_UDP;
    ip[8..24].copy_from_slice(&src.octets());
    ip[24..40].copy_from_slice(&dst.octets());
    udp_bytes.copy_from_slice(&udp);
    crc32fast::hash(&bytes)
}
