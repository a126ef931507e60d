//! Equal-cost multipath: which of several links a packet takes. The choice depends on the packet's own header fields, the
//! 5-tuple, of which the UDP source port is what a sender can vary (RFC 2992; annex A17 of the architecture, source port).

use roce::rng::mix;
use std::net::IpAddr;

/// What routers hash of a RoCEv2 packet. Protocol (17) and destination port (4791) are the same for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowHash(u64);

const PROTOCOL_UDP: u64 = 17;

impl FlowHash {
    /// The hash of a packet's addresses and source port.
    pub fn new(src: IpAddr, dst: IpAddr, src_port: u16) -> FlowHash {
        let ports = u64::from(src_port) << 32 | u64::from(roce::wire::UDP_PORT) << 16 | PROTOCOL_UDP;
        let hash = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => mix(ports ^ mix(u64::from(src.to_bits()) << 32 | u64::from(dst.to_bits()))),
            _ => [bits(src), bits(dst)].into_iter().fold(ports, |hash, address| {
                let hash = mix(hash ^ (address >> 64) as u64);
                mix(hash ^ address as u64)
            }),
        };
        FlowHash(hash)
    }

    /// One of `ways` ways (at least one), for a router with this salt. Routers have salts of their own, so that flows that met
    /// on one link do not all meet again on the next.
    #[inline]
    pub fn choose(self, salt: u64, ways: u32) -> u32 {
        // High half of the product, as for any uniform number below a bound.
        ((u64::from((mix(self.0 ^ salt) >> 32) as u32) * u64::from(ways)) >> 32) as u32
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}
