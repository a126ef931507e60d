//! The hash by which routers choose: every field counts, all ways are used evenly, and routers choose independently.

use fabric::ecmp::FlowHash;
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

fn address() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    prop_oneof![
        any::<(u32, u32)>().prop_map(|(a, b)| (Ipv4Addr::from_bits(a).into(), Ipv4Addr::from_bits(b).into())),
        any::<(u128, u128)>().prop_map(|(a, b)| (Ipv6Addr::from_bits(a).into(), Ipv6Addr::from_bits(b).into())),
    ]
}

/// How often each of `ways` ways is chosen by flows that differ in this way.
fn spread(ways: u32, flows: impl Iterator<Item = (FlowHash, u64)>) -> Vec<u32> {
    let mut counts = vec![0; ways as usize];
    flows.for_each(|(flow, salt)| counts[flow.choose(salt, ways) as usize] += 1);
    counts
}

/// Whether Pearson's statistic is one of an even spread: chance makes it larger once in 10^10 times (Laurent and Massart 2000).
fn is_even(counts: &[u32]) -> bool {
    const RARITY: f64 = 23.0;
    let mean = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
    let statistic: f64 = counts.iter().map(|&count| (f64::from(count) - mean).powi(2) / mean).sum();
    let freedom = (counts.len() - 1) as f64;
    statistic < freedom + 2.0 * (freedom * RARITY).sqrt() + 2.0 * RARITY
}

proptest! {
    #[test]
    fn a_choice_is_one_of_the_ways_and_the_same_every_time(
        (src, dst) in address(), port: u16, salt: u64, ways in 1_u32..200,
    ) {
        let flow = FlowHash::new(src, dst, port);
        let way = flow.choose(salt, ways);
        prop_assert!(way < ways);
        prop_assert_eq!(FlowHash::new(src, dst, port).choose(salt, ways), way);
    }

    /// Ways of a few flows in which one field differs at a time: that all 64 choose alike has no chance.
    #[test]
    fn every_field_counts((src, dst) in address(), port: u16, salt: u64) {
        let next = |address: IpAddr, n: u32| -> IpAddr {
            match address {
                IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits().wrapping_add(n)).into(),
                IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits().wrapping_add(u128::from(n))).into(),
            }
        };
        let flows: [Box<dyn Fn(u32) -> FlowHash>; 3] = [
            Box::new(|n| FlowHash::new(next(src, n), dst, port)),
            Box::new(|n| FlowHash::new(src, next(dst, n), port)),
            Box::new(|n| FlowHash::new(src, dst, port.wrapping_add(n as u16))),
        ];
        for flow in flows {
            let counts = spread(2, (0..64).map(|n| (flow(n), salt)));
            prop_assert!(counts.iter().all(|&count| count > 0), "{:?}", counts);
        }
        let counts = spread(2, (0..64).map(|n| (FlowHash::new(src, dst, port), salt.wrapping_add(n))));
        prop_assert!(counts.iter().all(|&count| count > 0), "{:?}", counts);
    }

    #[test]
    fn source_ports_spread_evenly((src, dst) in address(), salt: u64, ways in 2_u32..64) {
        let counts = spread(ways, (0xC000..=0xFFFF).map(|port| (FlowHash::new(src, dst, port), salt)));
        prop_assert!(is_even(&counts), "{} ways: {:?}", ways, counts);
    }

    /// Flows that chose alike at one router spread evenly at the next.
    #[test]
    fn routers_choose_independently((src, dst) in address(), salts: [u64; 2]) {
        prop_assume!(salts[0] != salts[1]);
        let flows = (0xC000..=0xFFFF).map(|port| FlowHash::new(src, dst, port));
        let alike = flows.filter(|flow| flow.choose(salts[0], 8) == 3);
        let counts = spread(8, alike.map(|flow| (flow, salts[1])));
        prop_assert!(is_even(&counts), "{:?}", counts);
    }
}
