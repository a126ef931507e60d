//! Address handles: where datagrams go. They live in this library alone; each send entry carries its destination, and the daemon
//! checks it there.

use crate::abi::codes::{WC_GRH, wr as opcode};
use crate::abi::device::ibv_context;
use crate::abi::object::{ibv_ah, ibv_ah_attr, ibv_pd};
use crate::abi::work::{ibv_send_wr, ibv_wc};
use crate::attr::FLOW_LABEL;
use crate::connection::Errno;
use crate::context::Context;
use crate::domain::Pd;
use crate::foreign::{code, minus_one, null, own_context, own_object, pointer, verbs};
use core::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering;
use vdev_abi::layout::{Destination, SendEntry};

const INVALID: Errno = Errno(libc::EINVAL);
/// Bytes in front of a received datagram.
const GRH_BYTES: usize = 40;
/// Of these, where an IPv4 header begins.
const IPV4_AT: usize = 20;
/// Hop limit of an answer, whatever is left of that of the question.
const ANSWER_HOP_LIMIT: u8 = 0xFF;

/// An address handle.
#[repr(C)]
struct Ah {
    ibv: ibv_ah,
    /// Without queue pair and Q_Key, which the request names.
    to: Destination,
}

fn bytes_of(gid: [u64; 2]) -> [u8; 16] {
    let [low, high] = gid.map(u64::to_ne_bytes);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&low);
    bytes[8..].copy_from_slice(&high);
    bytes
}

fn ip_of(gid: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}

/// The destination that attributes describe; without a GRH there is no address to send to (RoCE has no LIDs).
fn destination(gids: &[[u8; 16]], attr: &ibv_ah_attr) -> Result<Destination, Errno> {
    let (grh, dgid) = (&attr.grh, bytes_of(attr.grh.dgid));
    let source = gids.get(usize::from(grh.sgid_index)).map(|gid| ip_of(*gid)).ok_or(INVALID)?;
    let ip = ip_of(dgid);
    let is_good = attr.is_global != 0
        && attr.port_num == 1
        && (source.is_ipv4() == ip.is_ipv4() || ip.is_multicast())
        && !ip.is_unspecified()
        && ip != IpAddr::from([255; 4]);
    if !is_good {
        return Err(INVALID);
    }
    Ok(Destination {
        dgid,
        flow_label: grh.flow_label & FLOW_LABEL,
        sgid_index: grh.sgid_index,
        hop_limit: grh.hop_limit,
        traffic_class: grh.traffic_class,
        service_level: attr.sl,
        ..Destination::default()
    })
}

/// # Safety
/// The domain is live and ours.
unsafe fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah, Errno> {
    // SAFETY: per contract.
    let context = unsafe { Context::of((*pd).context) };
    context.check()?;
    let to = destination(&context.info.gids, attr)?;
    context.users.fetch_add(1, Ordering::AcqRel);
    // SAFETY: per contract.
    unsafe { Pd::of(pd) }.users.fetch_add(1, Ordering::AcqRel);
    let ibv = ibv_ah { context: context.as_ibv(), pd, handle: 0 };
    Ok(Box::into_raw(Box::new(Ah { ibv, to })).cast())
}

/// # Safety
/// The handle is live and ours.
unsafe fn destroy(ah: *mut ibv_ah) -> Result<(), Errno> {
    // SAFETY: per contract.
    let context = unsafe { Context::of((*ah).context) };
    context.users.fetch_sub(1, Ordering::AcqRel);
    // SAFETY: a domain outlives what names it.
    unsafe { Pd::of((*ah).pd) }.users.fetch_sub(1, Ordering::AcqRel);
    // SAFETY: `create` made it as a box, and the program gives it up.
    drop(unsafe { Box::from_raw(ah.cast::<Ah>()) });
    Ok(())
}

/// Writes the destination of a datagram into its entry.
///
/// # Safety
/// The request names no address handle or a live one.
pub unsafe fn address(request: &ibv_send_wr, entry: &mut SendEntry) -> Result<(), Errno> {
    let ah = request.remote_addr as *const ibv_ah;
    // SAFETY: per contract.
    if !matches!(request.opcode, opcode::SEND | opcode::SEND_WITH_IMM) || !unsafe { own_object(ah) } {
        return Err(INVALID);
    }
    let [a, b, c, d, e, f, g, h] = request.rkey_or_compare_add.to_ne_bytes();
    let (qpn, qkey) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
    // SAFETY: ours, so that it lies in an `Ah`.
    let to = unsafe { (*ah.cast::<Ah>()).to };
    entry.set_destination(&Destination { qpn, qkey, ..to });
    Ok(())
}

/// Attributes of the way back to the sender of a received datagram, whose first 40 bytes are given.
fn way_back(gids: &[[u8; 16]], wc: &ibv_wc, grh: &[u8; GRH_BYTES]) -> Result<ibv_ah_attr, Errno> {
    if wc.wc_flags & WC_GRH == 0 {
        return Err(INVALID);
    }
    let v4 = |at: usize| {
        let [a, b, c, d] = [grh[at], grh[at + 1], grh[at + 2], grh[at + 3]];
        Ipv4Addr::new(a, b, c, d).to_ipv6_mapped().octets()
    };
    let v6 = |at: usize| <[u8; 16]>::try_from(&grh[at..at + 16]).unwrap_or_default();
    let word = u32::from_be_bytes([grh[0], grh[1], grh[2], grh[3]]);
    let (from, to, traffic_class, flow_label) = match (grh[0] >> 4, grh[IPV4_AT] >> 4) {
        (6, _) => (v6(8), v6(24), (word >> 20) as u8, word & 0xF_FFFF),
        (_, 4) => (v4(IPV4_AT + 12), v4(IPV4_AT + 16), grh[IPV4_AT + 1], 0),
        _ => return Err(INVALID),
    };
    let sgid_index = gids.iter().position(|gid| *gid == to).and_then(|index| u8::try_from(index).ok()).ok_or(INVALID)?;
    let half = |at: usize| u64::from_ne_bytes(from[at..at + 8].try_into().unwrap_or_default());
    let mut attr = ibv_ah_attr { dlid: wc.slid, is_global: 1, port_num: 1, ..ibv_ah_attr::default() };
    attr.grh.dgid = [half(0), half(8)];
    (attr.grh.sgid_index, attr.grh.hop_limit) = (sgid_index, ANSWER_HOP_LIMIT);
    (attr.grh.traffic_class, attr.grh.flow_label) = (traffic_class, flow_label);
    Ok(attr)
}

/// # Safety
/// The completion is valid, and the 40 bytes readable if it says that they are there.
unsafe fn attributes_from(context: &Context, port: u8, wc: *const ibv_wc, grh: *const c_void) -> Result<ibv_ah_attr, Errno> {
    if port != 1 || grh.is_null() {
        return Err(INVALID);
    }
    // SAFETY: per contract.
    let (wc, grh) = unsafe { (&*wc, grh.cast::<[u8; GRH_BYTES]>().read()) };
    way_back(&context.info.gids, wc, &grh)
}

verbs! {
    /// Makes an address handle; `EINVAL` for one without a GRH, or to an address that cannot be reached from the GID it names.
    fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah,
        if own_object(pd) => {
            if attr.is_null() { null(libc::EINVAL) } else { pointer(create(pd, &*attr)) }
        } else null(libc::EINVAL);

    /// Attributes of an address handle that leads back to the sender of a datagram.
    fn ibv_init_ah_from_wc(context: *mut ibv_context, port: u8, wc: *mut ibv_wc, grh: *mut c_void,
        attr: *mut ibv_ah_attr) -> c_int,
        if own_context(context) => {
            match attributes_from(Context::of(context), port, wc, grh) {
                Ok(found) => {
                    attr.write(found);
                    0
                }
                Err(error) => minus_one(error.0),
            }
        } else minus_one(libc::EINVAL);

    /// An address handle that leads back to the sender of a datagram.
    fn ibv_create_ah_from_wc(pd: *mut ibv_pd, wc: *mut ibv_wc, grh: *mut c_void, port: u8) -> *mut ibv_ah,
        if own_object(pd) => {
            let attr = attributes_from(Context::of((*pd).context), port, wc, grh);
            pointer(attr.and_then(|attr| create(pd, &attr)))
        } else null(libc::EINVAL);

    /// Ends an address handle; requests that were posted with it have their own copy.
    fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int,
        if own_object(ah) => { code(destroy(ah)) } else libc::EINVAL;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gids() -> [[u8; 16]; 2] {
        [Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped().octets(), "2001:db8::1".parse::<Ipv6Addr>().unwrap().octets()]
    }

    fn attr(to: &str, sgid_index: u8) -> ibv_ah_attr {
        let gid = match to.parse().unwrap() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        let half = |at: usize| u64::from_ne_bytes(gid[at..at + 8].try_into().unwrap());
        let mut attr = ibv_ah_attr { is_global: 1, port_num: 1, ..ibv_ah_attr::default() };
        (attr.grh.dgid, attr.grh.sgid_index) = ([half(0), half(8)], sgid_index);
        attr
    }

    #[test]
    fn handles_need_an_address_that_can_be_reached() {
        let good = attr("192.0.2.9", 0);
        assert_eq!(destination(&gids(), &good).map(|to| ip_of(to.dgid)), Ok("192.0.2.9".parse().unwrap()));
        assert!(destination(&gids(), &attr("2001:db8::9", 1)).is_ok());
        assert!(destination(&gids(), &attr("224.0.0.5", 0)).is_ok(), "a group");
        for bad in [
            ibv_ah_attr { is_global: 0, ..good },
            ibv_ah_attr { port_num: 2, ..good },
            attr("192.0.2.9", 1),
            attr("192.0.2.9", 2),
            attr("0.0.0.0", 0),
            attr("255.255.255.255", 0),
        ] {
            assert_eq!(destination(&gids(), &bad), Err(INVALID));
        }
    }

    #[test]
    fn the_way_back_leads_to_the_sender() {
        // SAFETY: all zero is a valid completion.
        let wc = ibv_wc { wc_flags: WC_GRH, ..unsafe { core::mem::zeroed() } };
        let mut grh = [0; GRH_BYTES];
        grh[20..].copy_from_slice(&[0x45, 0xB8, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 198, 51, 100, 7, 192, 0, 2, 1]);
        let back = way_back(&gids(), &wc, &grh).ok().unwrap();
        assert_eq!((ip_of(bytes_of(back.grh.dgid)), back.grh.sgid_index), ("198.51.100.7".parse().unwrap(), 0));
        assert_eq!((back.grh.traffic_class, back.is_global, back.port_num), (0xB8, 1, 1));
        assert!(way_back(&gids(), &ibv_wc { wc_flags: 0, ..wc }, &grh).is_err());
        grh[39] = 2;
        assert!(way_back(&gids(), &wc, &grh).is_err(), "it was sent to another device");
        grh[..4].copy_from_slice(&(6 << 28 | 0x12 << 20 | 0xABCDE_u32).to_be_bytes());
        grh[8..24].copy_from_slice(&"2001:db8::7".parse::<Ipv6Addr>().unwrap().octets());
        grh[24..].copy_from_slice(&gids()[1]);
        let back = way_back(&gids(), &wc, &grh).ok().unwrap();
        assert_eq!((ip_of(bytes_of(back.grh.dgid)), back.grh.sgid_index), ("2001:db8::7".parse().unwrap(), 1));
        assert_eq!((back.grh.traffic_class, back.grh.flow_label), (0x12, 0xABCDE));
        assert!(way_back(&gids(), &wc, &[0; GRH_BYTES]).is_err());
    }
}
