//! The unreliable datagram service on both paths: what arrives (UD-01, UD-06), what is dropped silently (UD-04), and what a local
//! fault does to the sender.

mod harness;

use harness::*;
use rnic::*;
use roce::wire::{Bth, Headers, Opcode as Wire};
use roce::{Gid, Mtu, Psn, Qpn};
use std::net::IpAddr;

fn with_imm(op: SendOp, imm: [u8; 4]) -> SendOp {
    match op {
        SendOp::Datagram { to, .. } => SendOp::Datagram { to, imm: Some(imm) },
        other => other,
    }
}

fn to(op: SendOp, change: impl FnOnce(&mut Destination)) -> SendOp {
    match op {
        SendOp::Datagram { mut to, imm } => {
            change(&mut to);
            SendOp::Datagram { to, imm }
        }
        other => other,
    }
}

fn drops(world: &World, end: &End, name: &str) -> u64 {
    world.counters(end).iter().find(|(found, _)| *found == name).unwrap().1
}

/// UD-01: 40 bytes of GRH before the payload, the IPv4 header in the last 20 of them; byte_len counts both.
#[test]
fn ud_01_datagrams_arrive_behind_a_grh() {
    for route in BOTH {
        for ipv6 in [false, true] {
            let mut world = World::new(Setup { qp_type: QpType::Ud, ipv6, ..Setup::new(route) });
            let (a, b) = (world.end(), world.end());
            world.ready(&a);
            world.ready(&b);
            world.recv(&b, 100, &[b.at(0x8000, 20), b.at(0x9000, 5000)]);
            world.recv(&b, 101, &[b.at(0xB000, 40 + 33)]);
            world.send(&a, 1, datagram(&b), &[a.at(11, 1000), a.at(5000, 24)]);
            world.send(&a, 2, with_imm(datagram(&b), [1, 2, 3, 4]), &[a.at(7, 33)]);
            let source = world.bytes(&a, 0, 8192);
            world.run();

            let sent = world.sent(&a);
            assert_eq!((ids(&sent), statuses(&sent)), (vec![1, 2], vec![Status::Success; 2]), "{route:?}");
            let received = world.received(&b);
            assert_eq!(ids(&received), [100, 101]);
            assert!(received.iter().all(|done| done.src_qpn == a.qpn && done.opcode == Opcode::Recv));
            assert_eq!((received[0].byte_len, received[0].flags), (40 + 1024, CompletionFlags::GRH));
            assert_eq!((received[1].byte_len, received[1].imm), (40 + 33, [1, 2, 3, 4]));
            assert_eq!(received[1].flags, CompletionFlags::GRH | CompletionFlags::WITH_IMM);

            let grh = [world.bytes(&b, 0x8000, 20), world.bytes(&b, 0x9000, 20)].concat();
            match (a.ip, b.ip) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => {
                    assert_eq!(grh[..20], [0; 20]);
                    assert_eq!((grh[20], grh[29]), (0x45, 17));
                    assert_eq!(grh[32..], [src.octets(), dst.octets()].concat());
                }
                (src, dst) => {
                    assert_eq!((grh[0] >> 4, grh[6]), (6, 17));
                    assert_eq!(grh[8..], [Gid::from(src).0, Gid::from(dst).0].concat());
                }
            }
            assert_bytes(&world.bytes(&b, 0x9000 + 20, 1000), &source[11..1011]);
            assert_bytes(&world.bytes(&b, 0x9000 + 1020, 24), &source[5000..5024]);
            assert_bytes(&world.bytes(&b, 0xB000 + 40, 33), &source[7..40]);
        }
    }
}

/// UD-06: a datagram without payload.
#[test]
fn ud_06_a_datagram_may_be_empty() {
    for route in BOTH {
        let (mut world, a, b) = World::datagram_pair(route);
        world.recv(&b, 100, &[b.at(0, 40)]);
        world.send(&a, 1, datagram(&b), &[]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::Success]);
        assert_eq!(world.received(&b).iter().map(|done| done.byte_len).collect::<Vec<_>>(), [40]);
    }
}

/// UD-04: a wrong Q_Key, no receive, or one too short: dropped and counted; the sender succeeds, the receiver goes on.
#[test]
fn ud_04_what_does_not_fit_is_dropped_silently() {
    for route in BOTH {
        let (mut world, a, b) = World::datagram_pair(route);
        world.send(&a, 1, datagram(&b), &[a.at(0, 8)]);
        world.run();
        assert_eq!(drops(&world, &b, "dropped_no_receive"), 1, "{route:?}");
        world.recv(&b, 100, &[b.at(0, 40 + 8)]);
        world.send(&a, 2, to(datagram(&b), |to| to.qkey += 1), &[a.at(0, 8)]);
        world.run();
        assert_eq!(drops(&world, &b, "bad_qkey"), 1);
        world.send(&a, 3, datagram(&b), &[a.at(0, 9)]);
        world.run();
        assert_eq!(drops(&world, &b, "dropped_too_long"), 1);
        world.send(&a, 4, to(datagram(&b), |to| to.qpn = Qpn::new(to.qpn.get() ^ 1)), &[a.at(0, 8)]);
        world.run();
        assert_eq!(world.nics[b.nic].drop_counters().unknown_qp, 1);
        assert!(world.received(&b).is_empty());
        world.send(&a, 5, datagram(&b), &[a.at(0, 8)]);
        world.run();
        assert_eq!(ids(&world.received(&b)), [100], "the receive was kept for a datagram that fits");
        assert_eq!(statuses(&world.sent(&a)), [Status::Success; 5]);
        assert_eq!((world.state(&a), world.state(&b)), (QpState::Rts, QpState::Rts));
        assert!(world.events.is_empty());
    }
}

/// A message that is longer than the port's MTU is not sent, and that is no error (IBA C10-93.1.1).
#[test]
fn a_datagram_is_one_packet() {
    for route in BOTH {
        let (mut world, a, b) = World::datagram_pair(route);
        let now = world.now;
        world.nics[a.nic].set_port(now, a.device, Some(Mtu::B1024));
        world.recv(&b, 100, &[b.at(0, 8192)]);
        for (wr_id, len) in [(1, 1024), (2, 1025), (3, 7)] {
            world.send(&a, wr_id, datagram(&b), &[a.at(0, len)]);
        }
        world.recv(&b, 101, &[b.at(0, 8192)]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::Success; 3]);
        let lengths: Vec<u32> = world.received(&b).iter().map(|done| done.byte_len).collect();
        assert_eq!(lengths, [40 + 1024, 40 + 7], "{route:?}");
        assert_eq!(drops(&world, &a, "dropped_too_long"), 1);
    }
}

/// A Q_Key with its highest bit set stands for the sender's own (IBA 10.2.5).
#[test]
fn controlled_qkeys_stand_for_the_own_one() {
    for route in BOTH {
        let (mut world, a, b) = World::datagram_pair(route);
        world.recv(&b, 100, &[b.at(0, 100)]);
        world.send(&a, 1, to(datagram(&b), |to| to.qkey = 1 << 31 | 5), &[a.at(0, 8)]);
        world.run();
        assert_eq!(ids(&world.received(&b)), [100]);
    }
}

/// A local fault stops the send queue and leaves the receive queue alone (SQE); the program brings it back.
#[test]
fn a_bad_send_buffer_stops_the_send_queue_only() {
    for route in BOTH {
        let (mut world, a, b) = World::datagram_pair(route);
        world.recv(&a, 50, &[a.at(0, 100)]);
        world.recv(&b, 100, &[b.at(0, 100)]);
        world.send(&a, 1, datagram(&b), &[a.at(0, 8)]);
        world.send(&a, 2, datagram(&b), &[bad_lkey(&a)]);
        world.send(&a, 3, datagram(&b), &[a.at(0, 8)]);
        world.run();
        let sent = world.sent(&a);
        assert_eq!(statuses(&sent), [Status::Success, Status::LocalProtectionError, Status::FlushError], "{route:?}");
        assert_eq!(world.state(&a), QpState::Sqe);
        world.send(&a, 4, datagram(&b), &[a.at(0, 8)]);
        assert_eq!(ids(&world.received(&b)), [100]);
        world.send(&b, 5, datagram(&a), &[b.at(0, 8)]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::FlushError]);
        assert_eq!(ids(&world.received(&a)), [50], "it still receives");
        world.set_state(&a, QpState::Rts);
        world.recv(&b, 101, &[b.at(0, 100)]);
        world.send(&a, 6, datagram(&b), &[a.at(0, 8)]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::Success]);
        assert_eq!(ids(&world.received(&b)), [101]);
    }
}

/// A receive with a bad buffer is the receiver's own fault, and fails it; the sender does not notice.
#[test]
fn a_bad_receive_buffer_fails_the_receiver() {
    for route in BOTH {
        let (mut world, a, b) = World::datagram_pair(route);
        let LocalBuffer::Keyed { lkey, addr, .. } = bad_lkey(&b) else { unreachable!() };
        world.recv(&b, 100, &[b.at(0, 40)]);
        world.recv(&b, 101, &[LocalBuffer::Keyed { lkey, addr, len: 100 }]);
        world.recv(&b, 102, &[b.at(0, 100)]);
        for wr_id in 1..4 {
            world.send(&a, wr_id, datagram(&b), &[]);
        }
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::Success; 3]);
        let received = world.received(&b);
        assert_eq!(statuses(&received), [Status::Success, Status::LocalProtectionError, Status::FlushError], "{route:?}");
        assert_eq!(world.state(&b), QpState::Err);
    }
}

/// Memory that its owner took away: the sender's stops its send queue, the receiver's its queue pair.
#[test]
fn memory_that_is_gone_fails_whose_it_was() {
    for route in BOTH {
        let (mut world, a, b) = World::datagram_pair(route);
        world.recv(&b, 100, &[b.at(0, 100)]);
        world.recv(&b, 101, &[b.at(0, 100)]);
        world.memory.take_away(b.memory);
        world.send(&a, 1, datagram(&b), &[a.at(0, 8)]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::Success]);
        assert_eq!(statuses(&world.received(&b)), [Status::LocalProtectionError, Status::FlushError], "{route:?}");
        world.memory.take_away(a.memory);
        world.send(&a, 2, datagram(&b), &[a.at(0, 8)]);
        world.send(&a, 3, datagram(&b), &[a.at(0, 8)]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::LocalProtectionError, Status::FlushError]);
        assert_eq!(world.state(&a), QpState::Sqe);
    }
}

/// One queue pair talks to many, itself among them, in any order of destinations and lengths.
#[test]
fn one_queue_pair_talks_to_many() {
    for route in BOTH {
        let (mut world, a, b) = World::datagram_pair(route);
        let mut ends = vec![a, b];
        for _ in 0..3 {
            let end = world.end();
            world.ready(&end);
            ends.push(end);
        }
        let mut wanted = vec![Vec::new(); ends.len()];
        let mut rng = harness::link::Rng::new(7);
        for round in 0..20 {
            for wr_id in round * 64..(round + 1) * 64 {
                let n = rng.below(ends.len() as u64) as usize;
                let len = rng.below(1025) as u32;
                world.recv(&ends[n], wr_id, &[ends[n].at(0x10_0000, 40 + 1024)]);
                world.send(&a, wr_id, datagram(&ends[n]), &[a.at(rng.below(4096), len)]);
                wanted[n].push((wr_id, 40 + len));
            }
            world.run();
        }
        assert_eq!(world.sent(&a).len(), 20 * 64);
        for (end, wanted) in ends.iter().zip(wanted) {
            let got: Vec<(u64, u32)> = world.received(end).iter().map(|done| (done.wr_id, done.byte_len)).collect();
            assert_eq!(got, wanted, "{route:?}");
        }
    }
}

/// Operations belong to their service, and a datagram needs an address that can be reached.
#[test]
fn requests_that_cannot_be_are_refused_at_once() {
    let (mut world, a, b) = World::datagram_pair(Route::Wire);
    let buffers = [a.at(0, 8)];
    for op in [send(), write(&b, 0), read(&b, 0), fetch_add(&b, 0, 1)] {
        assert_eq!(world.try_send(&a, 1, op, &buffers), Err(PostError::Invalid));
    }
    let spoil: [fn(&mut Destination); 5] = [
        |to| to.address.sgid_index = 1,
        |to| to.address.port = 2,
        |to| to.address.dgid = Gid::ZERO,
        |to| to.address.dgid = Gid::from("2001:db8::1".parse::<IpAddr>().unwrap()),
        |to| to.address.flow_label = 1 << 20,
    ];
    for spoil in spoil {
        assert_eq!(world.try_send(&a, 1, to(datagram(&b), spoil), &buffers), Err(PostError::Invalid));
    }
    let (mut world, a, b) = World::pair(Setup::new(Route::Wire));
    assert_eq!(world.try_send(&a, 1, datagram(&b), &[a.at(0, 8)]), Err(PostError::Invalid));
}

/// The steps of `ibv_modify_qp(3)` for UD: a Q_Key to INIT, a PSN to RTS, and no connection.
#[test]
fn datagram_queue_pairs_have_their_own_steps() {
    let mut world = World::new(Setup { qp_type: QpType::Ud, ..Setup::new(Route::Local) });
    let a = world.end();
    let step = |world: &mut World, state, mask| {
        let attr = QpAttr { state, ..world.attr(&a) };
        world.modify(&a, mask | QpAttrMask::STATE, &attr)
    };
    use QpAttrMask as Mask;
    let init = Mask::PKEY_INDEX | Mask::PORT;
    assert!(step(&mut world, QpState::Init, init).is_err(), "no Q_Key");
    assert!(step(&mut world, QpState::Init, init | Mask::ACCESS_FLAGS | Mask::QKEY).is_err());
    step(&mut world, QpState::Init, init | Mask::QKEY).unwrap();
    assert!(step(&mut world, QpState::Rtr, Mask::AV).is_err());
    step(&mut world, QpState::Rtr, Mask::QKEY).unwrap();
    assert!(step(&mut world, QpState::Rts, Mask::empty()).is_err(), "no PSN");
    assert!(step(&mut world, QpState::Rts, Mask::SQ_PSN | Mask::TIMEOUT).is_err());
    step(&mut world, QpState::Rts, Mask::SQ_PSN).unwrap();
    step(&mut world, QpState::Sqd, Mask::EN_SQD_ASYNC_NOTIFY).unwrap();
    step(&mut world, QpState::Sqd, Mask::QKEY).unwrap();
    step(&mut world, QpState::Rts, Mask::CUR_STATE).unwrap_err();
    step(&mut world, QpState::Rts, Mask::QKEY).unwrap();
    let attr = world.nics[0].query_qp(a.qpn).unwrap();
    assert_eq!((attr.state, attr.qkey), (QpState::Rts, QKEY));
}

/// Packets of another service do not reach a queue pair of type UD.
#[test]
fn packets_of_other_services_are_dropped() {
    let (mut world, a, b) = World::datagram_pair(Route::Wire);
    world.recv(&b, 100, &[b.at(0, 100)]);
    for opcode in [Wire::RcSendOnly, Wire::UcSendOnly, Wire::RcSendMiddle] {
        let headers = Headers::new(Bth { ack_req: true, ..Bth::new(opcode, b.qpn, Psn::new(0)) });
        world.inject(&a, &b, &headers, &[0; 8]);
    }
    world.run();
    assert_eq!(world.nics[b.nic].drop_counters().bad_service, 3);
    assert!(world.received(&b).is_empty());
}
