//! Devices whose driver chooses queue pair numbers and keys: each has its own, and nothing else reaches its objects.

mod harness;

use emtt::{Access, Owner, Segment};
use harness::*;
use rnic::*;
use roce::{Lkey, Qpn, Rkey};

const NUMBER: u32 = 5;
const KEY: u32 = 0x100;

/// Both ends call their queue pair 5 and their memory 0x100, as two guests that have just started do.
fn pair(route: Route) -> (World, End, End) {
    let mut world = World::new(Setup { timeout: 6, retry_cnt: 2, ..Setup::new(route) });
    let ends = [world.end(), world.end()];
    for end in &ends {
        let core = &mut world.nics[end.nic];
        core.number_qp(end.qpn, Qpn::new(NUMBER)).unwrap();
        core.reg_mr_named(end.pd, region(end), Rkey(KEY)).unwrap();
    }
    let [a, b] = ends;
    // To the peer, the number that was chosen is the queue pair.
    let called = |end: End| End { qpn: Qpn::new(NUMBER), ..end };
    for (end, peer) in [(a, called(b)), (b, called(a))] {
        world.connect_one(&end, &peer);
    }
    (world, a, b)
}

fn region(end: &End) -> MrInit {
    let runs = vec![Segment { owner: Owner::Host(end.memory), addr: 0, len: MEMORY as u64 }];
    MrInit { iova: BASE, access: Access::all(), runs }
}

fn write(rkey: u32) -> SendOp {
    SendOp::Write { remote_addr: BASE + 4096, rkey: Rkey(rkey), imm: None }
}

fn local(key: u32) -> LocalBuffer {
    LocalBuffer::Keyed { lkey: Lkey(key), addr: BASE, len: 3000 }
}

#[test]
fn chosen_numbers_and_keys_carry_traffic_both_ways() {
    for route in BOTH {
        let (mut world, a, b) = pair(route);
        for (from, to) in [(a, b), (b, a)] {
            world.send(&from, 1, write(KEY), &[local(KEY)]);
            world.run();
            assert_eq!(world.sent(&from)[0].status, Status::Success, "{route:?}");
            let sent = world.bytes(&from, 0, 3000);
            assert_eq!(world.bytes(&to, 4096, 3000), sent, "{route:?}");
        }
    }
}

#[test]
fn what_has_a_chosen_name_answers_to_no_other() {
    for route in BOTH {
        let (mut world, a, b) = pair(route);
        let own = world.nics[b.nic].reg_mr_named(b.pd, region(&b), Rkey(0x200)).unwrap();
        world.send(&a, 1, write(own.rkey.0), &[local(KEY)]);
        world.run();
        assert_eq!(world.sent(&a)[0].status, Status::RemoteAccessError, "{route:?}: the core's own key");
        // The core's own number leads nowhere either.
        let (mut world, a, b) = pair(route);
        let core = &mut world.nics[b.nic];
        assert_eq!(core.queue_pair(b.device, Qpn::new(NUMBER)), Some(b.qpn));
        assert_eq!(core.queue_pair(b.device, b.qpn), None);
        world.set_state(&a, QpState::Reset);
        world.connect_one(&a, &b);
        world.send(&a, 1, write(KEY), &[local(KEY)]);
        world.run();
        assert_eq!(world.sent(&a)[0].status, Status::RetryExceededError, "{route:?}");
    }
}

/// HG-12: a number or key that is taken, or was given back, or is another device's.
#[test]
fn names_are_given_once_and_come_free() {
    let (mut world, a, b) = pair(Route::Local);
    let second = world.queue_pair(&a);
    let core = &mut world.nics[0];
    assert!(matches!(core.number_qp(second, Qpn::new(NUMBER)), Err(ControlError::Busy(_))));
    assert!(matches!(core.reg_mr_named(a.pd, region(&a), Rkey(KEY)), Err(ControlError::Invalid(_))));
    core.destroy_qp(world.now, a.qpn).unwrap();
    assert_eq!(core.queue_pair(a.device, Qpn::new(NUMBER)), None);
    assert_eq!(core.queue_pair(b.device, Qpn::new(NUMBER)), Some(b.qpn));
    core.number_qp(second, Qpn::new(NUMBER)).unwrap();
    assert!(matches!(core.number_qp(second, Qpn::new(9)), Err(ControlError::Busy(_))), "it has a number");
    let third = core.reg_mr_named(a.pd, region(&a), Rkey(0x300)).unwrap();
    core.dereg_mr(third.lkey).unwrap();
    core.reg_mr_named(a.pd, region(&a), Rkey(0x300)).expect("its name is free");
}

#[test]
fn a_peer_invalidates_by_the_chosen_key() {
    for route in BOTH {
        let (mut world, a, b) = pair(route);
        let named = world.nics[b.nic].reg_mr_named(b.pd, region(&b), Rkey(0x200)).unwrap();
        world.recv(&b, 7, &[local(KEY)]);
        world.send(&a, 1, SendOp::Send { imm: None, invalidate: Some(Rkey(0x200)) }, &[]);
        world.run();
        let got = world.received(&b)[0];
        assert_eq!((got.status, got.imm), (Status::Success, 0x200_u32.to_be_bytes()), "{route:?}");
        assert!(world.nics[b.nic].dereg_mr(named.lkey).is_err(), "{route:?}: it is gone");
    }
}
