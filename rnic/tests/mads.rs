//! QP1 of each device: management datagrams between devices, on both paths.

mod harness;

use harness::*;
use rnic::*;
use roce::wire::{Bth, Deth, Headers, Opcode as Wire};
use roce::{Gid, Psn, Qpn};

fn mad(from: &End, to: &End, first: u8) -> Mad {
    let mut bytes = [0; MAD_BYTES];
    (bytes[0], bytes[255]) = (first, 7);
    Mad { device: from.device, local: Gid::from(from.ip), remote: Gid::from(to.ip), remote_qpn: Qpn::GSI, bytes }
}

fn world(route: Route) -> (World, End, End) {
    let mut world = World::new(Setup::new(route));
    let (a, b) = (world.end(), world.end());
    (world, a, b)
}

#[test]
fn mads_go_from_qp1_to_qp1() {
    for route in BOTH {
        let (mut world, a, b) = world(route);
        world.nics[a.nic].send_mad(&mad(&a, &b, 1)).unwrap();
        world.nics[a.nic].send_mad(&mad(&a, &b, 2)).unwrap();
        world.run();
        for first in [1, 2] {
            let got = world.nics[b.nic].poll_mad().unwrap();
            let Mad { bytes, .. } = mad(&a, &b, first);
            let wanted = Mad { device: b.device, local: Gid::from(b.ip), remote: Gid::from(a.ip), remote_qpn: Qpn::GSI, bytes };
            assert_eq!(got, wanted, "{route:?}");
        }
        assert_eq!(world.nics[b.nic].poll_mad(), None);
        // What came in is answered by turning it round.
        world.nics[b.nic].send_mad(&mad(&b, &a, 3)).unwrap();
        world.run();
        assert_eq!(world.nics[a.nic].poll_mad().map(|mad| mad.bytes[0]), Some(3));
    }
}

#[test]
fn senders_must_have_the_address_they_send_from() {
    let (mut world, a, b) = world(Route::Wire);
    let good = mad(&a, &b, 1);
    let core = &mut world.nics[a.nic];
    assert!(matches!(core.send_mad(&Mad { local: good.remote, ..good.clone() }), Err(ControlError::Invalid(_))));
    let v6 = "2001:db8::1".parse::<std::net::IpAddr>().unwrap();
    assert!(matches!(core.send_mad(&Mad { remote: Gid::from(v6), ..good.clone() }), Err(ControlError::Invalid(_))));
    assert!(matches!(core.send_mad(&Mad { remote: Gid::ZERO, ..good.clone() }), Err(ControlError::Invalid(_))));
    assert!(matches!(core.send_mad(&Mad { device: DeviceId(0), ..good }), Err(ControlError::NotFound(_))));
}

/// Nobody takes them: as many as the bound wait, on either side, and none outlives its device.
#[test]
fn mads_that_nobody_takes_are_bounded() {
    for route in BOTH {
        let (mut world, a, b) = world(route);
        for round in 0..3 {
            for n in 0..limits::MAX_MADS / 2 {
                world.nics[a.nic].send_mad(&mad(&a, &b, (round * 100 + n) as u8)).unwrap();
            }
            world.run();
        }
        assert_eq!(world.counters(&b).dropped_mads, limits::MAX_MADS as u64 / 2, "{route:?}");
        let now = world.now;
        world.nics[b.nic].destroy_device(now, b.device);
        assert_eq!(world.nics[b.nic].poll_mad(), None);
    }
    let (mut world, a, b) = world(Route::Wire);
    let results: Vec<_> = (0..=limits::MAX_MADS).map(|_| world.nics[a.nic].send_mad(&mad(&a, &b, 1))).collect();
    assert!(results[..limits::MAX_MADS].iter().all(Result::is_ok));
    assert!(matches!(results[limits::MAX_MADS], Err(ControlError::Limit(_))));
}

/// Only datagrams of the right length with QP1's Q_Key are MADs.
#[test]
fn packets_that_are_no_mads_are_dropped() {
    let (mut world, a, b) = world(Route::Wire);
    let headers = |opcode, qkey| {
        let mut headers = Headers::new(Bth { mig_req: false, ..Bth::new(opcode, Qpn::GSI, Psn::new(0)) });
        headers.deth = (opcode == Wire::UdSendOnly).then_some(Deth { qkey, src_qpn: Qpn::new(9) });
        headers
    };
    world.inject(&a, &b, &headers(Wire::UdSendOnly, 0x8001_0001), &[0; MAD_BYTES]);
    world.inject(&a, &b, &headers(Wire::UdSendOnly, 0x8001_0000), &[0; MAD_BYTES - 4]);
    world.inject(&a, &b, &headers(Wire::UdSendOnly, 0x8001_0000), &[0; MAD_BYTES + 4]);
    world.inject(&a, &b, &headers(Wire::RcSendOnly, 0), &[0; MAD_BYTES]);
    assert_eq!(world.nics[b.nic].poll_mad(), None);
    assert_eq!(world.counters(&b).bad_qkey, 1);
    let drops = world.nics[b.nic].drop_counters();
    assert_eq!((drops.malformed, drops.bad_service), (2, 1));
    world.inject(&a, &b, &headers(Wire::UdSendOnly, 0x8001_0000), &[5; MAD_BYTES]);
    assert_eq!(world.nics[b.nic].poll_mad().map(|mad| (mad.remote_qpn, mad.bytes[9])), Some((Qpn::new(9), 5)));
}
