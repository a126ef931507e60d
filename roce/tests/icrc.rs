//! What the ICRC protects, bit by bit, and the recovery of IPv4's hidden fields.

mod ip;

use ip::{IpPacket, flow, id_with_df};
use proptest::prelude::*;
use roce::wire::icrc::{self, Flow, Ipv4Fields, Prefix};
use roce::wire::{BTH_LEN, WireError};

/// BTH of an RC SEND ONLY, and a payload of changing bytes.
fn send_only(payload: usize) -> Vec<u8> {
    let mut bytes = vec![0x04, 0x40, 0xFF, 0xFF, 0, 0, 0x12, 0x34, 0x80, 0, 0, 7];
    bytes.extend((0..payload).map(|i| (i * 31 + 5) as u8));
    bytes
}

fn accepted(packet: &IpPacket) -> bool {
    packet.receive().is_some_and(|(flow, udp_payload)| icrc::check(&flow, udp_payload) == Ok(()))
}

/// Flips each bit of a whole packet in turn; returns those (byte, bit) whose flip goes unnoticed.
fn unnoticed(packet: &IpPacket) -> Vec<(usize, u8)> {
    assert!(accepted(packet));
    let positions = (0..packet.0.len()).flat_map(|at| (0..8).map(move |bit| (at, bit)));
    let mut flipped = packet.clone();
    positions
        .filter(|&(at, bit)| {
            flipped.0[at] ^= 1 << bit;
            let accepted = accepted(&flipped);
            flipped.0[at] ^= 1 << bit;
            accepted
        })
        .collect()
}

fn all_bits(bytes: impl IntoIterator<Item = usize>) -> Vec<(usize, u8)> {
    bytes.into_iter().flat_map(|at| (0..8).map(move |bit| (at, bit))).collect()
}

/// Case AD-05: routers may change these fields, and nothing else.
#[test]
fn ipv4_only_what_routers_change_goes_unnoticed() {
    // Type of service; identification; time to live, then header checksum; UDP checksum; congestion bits of the BTH.
    let mut expected = all_bits([1, 4, 5]);
    // The reserved and the don't-fragment bit, which a socket does not see. The other bits of that word make a fragment.
    expected.extend([(6, 6), (6, 7)]);
    expected.extend(all_bits([8, 10, 11, 26, 27, 28 + 4]));
    for id in [0, 1, 0xBEEF] {
        let packet = IpPacket::new(&flow(false), id_with_df(id), &send_only(100));
        assert_eq!(unnoticed(&packet), expected, "identification {id:#x}");
    }
}

/// Case AD-03, AD-05 for IPv6.
#[test]
fn ipv6_only_what_routers_change_goes_unnoticed() {
    // Traffic class and flow label, without the version; hop limit; UDP checksum; congestion bits of the BTH.
    let mut expected: Vec<_> = (0..4).map(|bit| (0, bit)).collect();
    expected.extend(all_bits([1, 2, 3, 7, 46, 47, 48 + 4]));
    for payload in [0, 100, 4096] {
        let packet = IpPacket::new(&flow(true), 0, &send_only(payload));
        assert_eq!(unnoticed(&packet), expected, "payload of {payload}");
    }
}

/// The price of not seeing the identification, exactly: in the largest packet, a flip of one of two bits looks like an
/// identification without DF. A receiver that knows its peer to set DF sees even those.
#[test]
fn ipv4_flips_in_the_largest_packet() {
    let udp_payload = &IpPacket::new(&flow(false), id_with_df(0), &send_only(4096)).udp_payload().to_vec();
    let prefix = Prefix::new(&flow(false), udp_payload.len()).expect("a good length");
    let mut flipped = udp_payload.clone();
    let mut found = vec![];
    for (at, bit) in all_bits((0..udp_payload.len()).filter(|&at| at != 4)) {
        flipped[at] ^= 1 << bit;
        if let Ok(fields) = prefix.identify(0, &flipped) {
            found.push((at, bit, fields));
        }
        flipped[at] ^= 1 << bit;
    }
    let without_df = |id| Some(Ipv4Fields { id, dont_fragment: false });
    assert_eq!(found, [(173, 3, without_df(0x37B6)), (1834, 6, without_df(0x8108))]);
}

#[test]
fn every_identification_is_recovered() {
    for payload in [0, 64, 4096] {
        let mut packet = send_only(payload);
        let prefix = Prefix::new(&flow(false), packet.len() + 4).expect("a good length");
        let at = packet.len();
        packet.extend([0; 4]);
        for id in 0..=u16::MAX {
            let icrc = prefix.compute(id, &packet[..at]).to_le_bytes();
            packet[at..].copy_from_slice(&icrc);
            for likely in [0, id, !id, id.wrapping_sub(1)] {
                assert_eq!(prefix.identify(likely, &packet), Ok(Some(Ipv4Fields { id, dont_fragment: true })));
            }
        }
    }
}

proptest! {
    /// Against the slow reference over the whole packet, for any flow, length and identification.
    #[test]
    fn compute_is_the_reference(
        src: [u8; 4], dst: [u8; 4], src6: [u8; 16], dst6: [u8; 16], v6: bool, src_port: u16, id: u16,
        words in 0_usize..1100, fill: u8,
    ) {
        let flow = if v6 {
            Flow { src: src6.into(), dst: dst6.into(), src_port }
        } else {
            Flow { src: src.into(), dst: dst.into(), src_port }
        };
        // An IPv4-mapped address would be IPv4 to the code under test.
        prop_assume!(!v6 || (!src6.starts_with(&[0; 10]) && !dst6.starts_with(&[0; 10])));
        let mut bytes = send_only(words * 4);
        bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(fill | 1));
        let packet = IpPacket::new(&flow, id_with_df(id), &bytes);
        prop_assert_eq!(icrc::compute(&flow, id, &bytes), packet.reference_icrc());
        prop_assert_eq!(icrc::check(&flow, packet.udp_payload()), Ok(()));
    }

    /// A sender that put anything else than an identification and DF into that word sent a fragment or nonsense.
    #[test]
    fn other_flags_and_offsets_are_refused(word: u32, words in 0_usize..1100) {
        let packet = IpPacket::new(&flow(false), word, &send_only(words * 4));
        let expected = if word & 0xBFFF == 0 { Ok(()) } else { Err(WireError::Icrc) };
        prop_assert_eq!(icrc::check(&flow(false), packet.udp_payload()), expected);
    }

    #[test]
    fn no_panic_and_no_acceptance_of_noise_over_ipv6(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(icrc::check(&flow(true), &bytes).is_err());
        let _ = icrc::check(&flow(false), &bytes);
        let prefix = Prefix::new(&flow(false), 64).expect("a good length");
        if bytes.len() != 64 {
            prop_assert_eq!(prefix.check(0, &bytes), Err(WireError::Icrc));
        }
    }
}

/// Of packets damaged at random, 2^17 of 2^32 pass over IPv4: 1 in 32768. More would mean that the check got weaker.
#[test]
fn random_damage_passes_ipv4_no_more_often_than_documented() {
    let mut packet = IpPacket::new(&flow(false), id_with_df(0), &send_only(64)).udp_payload().to_vec();
    let prefix = Prefix::new(&flow(false), packet.len()).expect("a good length");
    let at = packet.len() - 4;
    // All values of an ICRC differ from the right one by each 32-bit number once; this takes an even sample of them.
    let samples = 1 << 22;
    let passed = (0..samples)
        .filter(|i: &u32| {
            packet[at..].copy_from_slice(&i.wrapping_mul(0x9E37_79B1).to_le_bytes());
            prefix.check(0, &packet).is_ok()
        })
        .count();
    assert!((64..=256).contains(&passed), "{passed} of {samples} passed, 128 were expected");
}

#[test]
fn mapped_addresses_are_ipv4() {
    let mapped = Flow {
        src: "::ffff:192.0.2.1".parse().expect("an address"),
        dst: "::ffff:198.51.100.2".parse().expect("an address"),
        ..flow(false)
    };
    assert_eq!(icrc::compute(&mapped, 9, &send_only(8)), icrc::compute(&flow(false), 9, &send_only(8)));
    let mixed = Flow { dst: flow(true).dst, ..flow(false) };
    assert_eq!(icrc::check(&mixed, &[0; 64]), Err(WireError::Icrc));
}

#[test]
fn lengths_are_checked() {
    let prefix = |len| Prefix::new(&flow(false), len).map(drop);
    assert_eq!(prefix(0), Err(WireError::Truncated { len: 0, need: BTH_LEN + 4 }));
    assert_eq!(prefix(15), Err(WireError::Truncated { len: 15, need: 16 }));
    assert_eq!(prefix(16), Ok(()));
    assert_eq!(prefix(17), Err(WireError::Unaligned(17)));
    // IPv4 counts its own header in a 16-bit length, IPv6 does not.
    assert_eq!(prefix(65504), Ok(()));
    assert_eq!(prefix(65508), Err(WireError::TooLong(65508)));
    assert_eq!(Prefix::new(&flow(true), 65524).map(drop), Ok(()));
    assert_eq!(Prefix::new(&flow(true), 65528).map(drop), Err(WireError::TooLong(65528)));
}

/// The longest packet needs the most steps back.
#[test]
fn identification_of_the_longest_ipv4_packet() {
    let packet = IpPacket::new(&flow(false), id_with_df(0x5AA5), &send_only(65504 - 16));
    let prefix = Prefix::new(&flow(false), 65504).expect("a good length");
    assert_eq!(prefix.identify(0, packet.udp_payload()), Ok(Some(Ipv4Fields { id: 0x5AA5, dont_fragment: true })));
}
