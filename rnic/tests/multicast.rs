//! Multicast groups of datagram queue pairs on one host (`ibv_attach_mcast(3)`).

mod harness;

use harness::*;
use rnic::*;
use roce::{Gid, Qpn};
use std::net::IpAddr;

fn group(n: u8) -> Gid {
    Gid::from(IpAddr::from([239, 1, 2, n]))
}

fn to_group(group: Gid, qkey: u32) -> SendOp {
    let address = AddressVector { dgid: group, port: 1, ..Default::default() };
    SendOp::Datagram { to: Destination { address, qpn: Qpn::new(0xFF_FFFF), qkey }, imm: None }
}

/// Four ends of one core, each of a device of its own.
fn world() -> (World, [End; 4]) {
    let mut world = World::new(Setup { qp_type: QpType::Ud, ..Setup::new(Route::Local) });
    let ends = std::array::from_fn(|_| {
        let end = world.end();
        world.ready(&end);
        end
    });
    (world, ends)
}

#[test]
fn every_member_gets_a_datagram_once() {
    let (mut world, [a, b, c, d]) = world();
    // A second member on the device of `b`; the sender is one too; `d` is of another group.
    let b2 = End { qpn: world.queue_pair(&b), ..b };
    world.ready(&b2);
    for member in [&a, &b, &b, &b2, &c] {
        world.nics[0].attach_multicast(member.qpn, group(1)).unwrap();
    }
    world.nics[0].attach_multicast(d.qpn, group(2)).unwrap();
    for (n, end) in [a, b, b2, c, d].iter().enumerate() {
        for _ in 0..2 {
            world.recv(end, n as u64, &[end.at(0x1_0000 + 0x1000 * n as u64, 2000)]);
        }
    }
    world.send(&a, 50, to_group(group(1), QKEY), &[a.at(0, 700), a.at(5000, 300)]);
    world.send(&a, 51, datagram(&c), &[a.at(0, 1)]);
    let source = [world.bytes(&a, 0, 700), world.bytes(&a, 5000, 300)].concat();
    world.run();
    assert_eq!(ids(&world.sent(&a)), [50, 51]);
    for (n, end) in [a, b, b2, c].iter().enumerate() {
        let received = world.received(end);
        let lengths: Vec<u32> = received.iter().map(|done| done.byte_len).collect();
        assert_eq!(lengths, if n == 3 { vec![1040, 41] } else { vec![1040] }, "member {n}");
        assert_eq!((received[0].src_qpn, received[0].flags), (a.qpn, CompletionFlags::GRH));
        if n < 3 {
            assert_bytes(&world.bytes(end, 0x1_0000 + 0x1000 * n + 40, 1000), &source);
            assert_eq!(world.bytes(end, 0x1_0000 + 0x1000 * n + 36, 4), [239, 1, 2, 1], "the GRH names the group");
        }
    }
    assert!(world.received(&d).is_empty());
    assert!(world.link.next_arrival().is_none(), "nothing goes to the wire");
}

#[test]
fn members_come_and_go() {
    let (mut world, [a, b, c, _]) = world();
    let core = &mut world.nics[0];
    assert!(matches!(core.detach_multicast(b.qpn, group(1)), Err(ControlError::NotFound(_))));
    for member in [&b, &c] {
        core.attach_multicast(member.qpn, group(1)).unwrap();
    }
    core.detach_multicast(b.qpn, group(1)).unwrap();
    core.destroy_qp(world.now, c.qpn).unwrap();
    world.recv(&b, 1, &[b.at(0, 100)]);
    world.send(&a, 1, to_group(group(1), QKEY), &[a.at(0, 10)]);
    world.run();
    assert!(world.received(&b).is_empty());
    assert_eq!(statuses(&world.sent(&a)), [Status::Success], "nobody is there, which nobody is told");
}

/// What one member cannot take is that member's loss alone.
#[test]
fn members_are_apart() {
    let (mut world, [a, b, c, d]) = world();
    for member in [&b, &c, &d] {
        world.nics[0].attach_multicast(member.qpn, group(1)).unwrap();
    }
    world.memory.take_away(b.memory);
    world.recv(&b, 1, &[b.at(0, 100)]);
    world.recv(&d, 3, &[d.at(0, 100)]);
    world.send(&a, 1, to_group(group(1), QKEY), &[a.at(0, 10)]);
    world.send(&a, 2, to_group(group(1), QKEY + 1), &[a.at(0, 10)]);
    world.run();
    assert_eq!(statuses(&world.sent(&a)), [Status::Success; 2]);
    assert_eq!((statuses(&world.received(&b)), world.state(&b)), (vec![Status::LocalProtectionError], QpState::Err));
    assert_eq!((statuses(&world.received(&d)), world.counters(&d).bad_qkey), (vec![Status::Success], 1));
    assert_eq!((world.counters(&c).dropped_no_receive, world.counters(&c).bad_qkey), (1, 1));
    let port = |world: &mut World, up| {
        world.nics[0].set_port(world.now, d.device, up);
    };
    port(&mut world, None);
    world.recv(&d, 4, &[d.at(0, 100)]);
    world.send(&a, 3, to_group(group(1), QKEY), &[a.at(0, 10)]);
    world.run();
    assert!(world.received(&d).is_empty(), "its port is down");
    // The sender's memory.
    world.memory.take_away(a.memory);
    world.send(&a, 4, to_group(group(1), QKEY), &[a.at(0, 10)]);
    world.run();
    assert_eq!(statuses(&world.sent(&a)), [Status::Success, Status::LocalProtectionError]);
}

#[test]
fn who_may_join_what() {
    let (mut world, [a, ..]) = world();
    let unicast = Gid::from(IpAddr::from([192, 0, 2, 1]));
    let core = &mut world.nics[0];
    assert!(matches!(core.attach_multicast(a.qpn, unicast), Err(ControlError::Invalid(_))));
    assert!(matches!(core.detach_multicast(a.qpn, unicast), Err(ControlError::Invalid(_))));
    assert!(matches!(core.attach_multicast(Qpn::new(3), group(1)), Err(ControlError::NotFound(_))));
    // A group's name may be of the other family.
    let v6 = Gid::from("ff0e::1".parse::<IpAddr>().unwrap());
    core.attach_multicast(a.qpn, v6).unwrap();
    world.recv(&a, 1, &[a.at(0, 100)]);
    world.send(&a, 1, to_group(v6, QKEY), &[a.at(0, 10)]);
    world.run();
    assert_eq!(world.received(&a)[0].byte_len, 50);
    let (mut world, a, _) = World::pair(Setup::new(Route::Local));
    assert!(matches!(world.nics[0].attach_multicast(a.qpn, group(1)), Err(ControlError::Invalid(_))), "RC");
}
