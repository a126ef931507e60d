//! States of a queue pair, attribute masks, posting and flushing (ST-01, ST-03, ST-05, QC-01, QC-03), draining, and events.

mod harness;

use harness::*;
use rnic::*;
use roce::{Gid, Mtu, Psn};

/// ST-05: on each transition every required attribute is required, every other one refused, and a refused call changes nothing.
#[test]
fn st_05_attribute_masks() {
    let mut world = World::new(Setup::new(Route::Local));
    let (a, b) = (world.end(), world.end());
    let optional = |state| match state {
        QpState::Init => QpAttrMask::empty(),
        QpState::Rtr => QpAttrMask::ACCESS_FLAGS | QpAttrMask::PKEY_INDEX,
        _ => QpAttrMask::ACCESS_FLAGS | QpAttrMask::MIN_RNR_TIMER | QpAttrMask::CUR_STATE,
    };
    for (state, required) in [(QpState::Init, INIT), (QpState::Rtr, RTR), (QpState::Rts, RTS)] {
        let before = world.nics[0].query_qp(a.qpn).unwrap();
        let attr = QpAttr { state, cur_state: before.state, ..world.attr(&b) };
        for bit in QpAttrMask::all().iter() {
            let mask = if required.contains(bit) { required - bit } else { required | bit };
            if bit == QpAttrMask::STATE || optional(state).contains(bit) {
                continue;
            }
            assert!(world.modify(&a, mask, &attr).is_err(), "to {state:?} with {bit:?} toggled");
            assert_eq!(world.nics[0].query_qp(a.qpn).unwrap(), before);
        }
        world.modify(&a, required | optional(state), &attr).unwrap();
        let after = world.nics[0].query_qp(a.qpn).unwrap();
        assert_eq!((after.state, after.cur_state), (state, state));
    }
    let after = world.nics[0].query_qp(a.qpn).unwrap();
    let wanted = world.attr(&b);
    assert_eq!((after.dest_qpn, after.address, after.path_mtu), (wanted.dest_qpn, wanted.address, wanted.path_mtu));
    assert_eq!((after.rq_psn, after.sq_psn, after.timeout), (wanted.rq_psn, wanted.sq_psn, wanted.timeout));
}

/// ST-05, TL-01, AD-01: values out of range are refused, whatever else is right.
#[test]
fn st_05_values_out_of_range() {
    type Change = fn(&mut QpAttr);
    let bad_rtr: [(&str, Change); 10] = [
        ("sgid_index", |attr| attr.address.sgid_index = 255),
        ("port of the address", |attr| attr.address.port = 2),
        ("no dgid", |attr| attr.address.dgid = Gid::ZERO),
        ("multicast dgid", |attr| attr.address.dgid = Gid::from("239.1.1.1".parse::<std::net::IpAddr>().unwrap())),
        ("family", |attr| attr.address.dgid = Gid::from("2001:db8::9".parse::<std::net::IpAddr>().unwrap())),
        ("flow label", |attr| attr.address.flow_label = 1 << 20),
        ("min_rnr_timer", |attr| attr.min_rnr_timer = 32),
        ("max_dest_rd_atomic", |attr| attr.max_dest_rd_atomic = limits::MAX_RD_ATOMIC + 1),
        ("path_mtu above the port's", |attr| attr.path_mtu = Mtu::B4096),
        ("pkey_index", |attr| attr.pkey_index = 1),
    ];
    let bad_rts: [(&str, Change); 4] = [
        ("timeout", |attr| attr.timeout = 32),
        ("retry_cnt", |attr| attr.retry_cnt = 8),
        ("rnr_retry", |attr| attr.rnr_retry = 8),
        ("max_rd_atomic", |attr| attr.max_rd_atomic = limits::MAX_RD_ATOMIC + 1),
    ];
    let mut world = World::new(Setup::new(Route::Local));
    let (a, b) = (world.end(), world.end());
    world.nics[0].set_port(world.now, a.device, Some(Mtu::B2048));
    let refused = |world: &mut World, mask, state, changes: &[(&str, Change)]| {
        let before = world.nics[0].query_qp(a.qpn).unwrap();
        for (name, change) in changes {
            let mut attr = QpAttr { state, ..world.attr(&b) };
            change(&mut attr);
            assert!(matches!(world.modify(&a, mask, &attr), Err(ControlError::Invalid(_))), "{name}");
            assert_eq!(world.nics[0].query_qp(a.qpn).unwrap(), before, "{name}");
        }
    };
    let port: [(&str, Change); 1] = [("port", |attr| attr.port = 2)];
    refused(&mut world, INIT, QpState::Init, &port);
    world.init(&a);
    refused(&mut world, RTR | QpAttrMask::PKEY_INDEX, QpState::Rtr, &bad_rtr);
    world.rtr(&a, &b);
    refused(&mut world, RTS, QpState::Rts, &bad_rts);
    world.rts(&a);
    let wrong = QpAttr { state: QpState::Rts, cur_state: QpState::Sqd, ..world.attr(&b) };
    assert!(world.modify(&a, QpAttrMask::STATE | QpAttrMask::CUR_STATE, &wrong).is_err());
    for state in [QpState::Init, QpState::Rtr, QpState::Sqe] {
        let attr = QpAttr { state, ..world.attr(&b) };
        assert!(world.modify(&a, QpAttrMask::STATE, &attr).is_err(), "RTS to {state:?}");
    }
}

/// ST-03, QC-03: what can be posted in which state.
#[test]
fn st_03_posting_by_state() {
    let mut world = World::new(Setup::new(Route::Local));
    let (a, b) = (world.end(), world.end());
    let posts = |world: &mut World| (world.try_send(&a, 1, send(), &[]).is_ok(), world.try_recv(&a, 1, &[]).is_ok());
    assert_eq!(posts(&mut world), (false, false), "RESET");
    world.init(&a);
    assert_eq!(posts(&mut world), (false, true), "INIT");
    world.rtr(&a, &b);
    assert_eq!(posts(&mut world), (false, true), "RTR");
    world.rts(&a);
    assert_eq!(posts(&mut world), (true, true), "RTS");
    world.set_state(&a, QpState::Sqd);
    assert_eq!(posts(&mut world), (true, true), "SQD");
    world.set_state(&a, QpState::Err);
    assert_eq!(posts(&mut world), (true, true), "ERR");
    assert_eq!(world.try_send(&End { qpn: roce::Qpn::new(77), ..a }, 1, send(), &[]), Err(PostError::State));
}

/// QC-01, QC-03, RC-14: full queues, too many buffers, too many bytes, and combinations that make no sense.
#[test]
fn qc_01_refused_posts() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup { depth: 5, sge: 2, ..Setup::new(route) });
        let posted: Vec<bool> = (0..8).map(|n| world.try_send(&a, n, write(&b, 0), &[a.at(0, 8)]).is_ok()).collect();
        assert_eq!(posted, [true, true, true, true, true, false, false, false]);
        assert_eq!(world.try_send(&a, 9, write(&b, 0), &[]), Err(PostError::Full));
        world.run();
        assert_eq!(world.sent(&a).len(), 5);
        for n in 0..5 {
            world.recv(&b, n, &[]);
        }
        assert_eq!(world.try_recv(&b, 9, &[]), Err(PostError::Full));
        let invalid = Err(PostError::Invalid);
        assert_eq!(world.try_send(&a, 1, send(), &[a.at(0, 1); 3]), invalid, "too many buffers");
        assert_eq!(world.try_recv(&a, 1, &[a.at(0, 1); 3]), invalid, "too many buffers");
        assert_eq!(world.try_send(&a, 1, send(), &[a.at(0, 1 << 31), a.at(0, 1)]), invalid, "more than 2^31 bytes");
        assert_eq!(world.try_send(&a, 1, fetch_add(&b, 0, 1), &[a.at(0, 7)]), invalid, "no room for the result");
        let direct = LocalBuffer::Direct(emtt::Segment { owner: emtt::Owner::Host(a.memory), addr: 0, len: 8 });
        assert_eq!(world.try_send(&a, 1, read(&b, 0), &[direct]), invalid, "READ into a direct buffer");
        assert_eq!(world.try_send(&a, 1, fetch_add(&b, 0, 1), &[direct]), invalid, "atomic into a direct buffer");
        assert_eq!(world.try_recv(&a, 1, &[direct]), invalid, "receive into a direct buffer");
        let both = SendOp::Send { imm: Some([0; 4]), invalidate: Some(b.mr.rkey) };
        assert_eq!(world.try_send(&a, 1, both, &[]), invalid, "immediate data and a key");
        world.send(&a, 1, write(&b, 0x100), &[direct]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::Success]);
        assert_eq!(world.bytes(&b, 0x100, 8), world.bytes(&a, 0, 8));
    }
}

/// ST-01: to ERR with both queues full: everything is flushed in order, and so is what is posted afterwards.
#[test]
fn st_01_flush_in_order() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup { depth: 100, ..Setup::new(route) });
        for n in 0..100 {
            world.recv(&a, n, &[a.at(0, 8)]);
            world.send(&a, n, write(&b, 0), &[a.at(0, 8)]);
        }
        world.set_state(&a, QpState::Err);
        world.send(&a, 100, send(), &[a.at(0, 8)]);
        world.recv(&a, 100, &[a.at(0, 8)]);
        world.run();
        for done in [world.sent(&a), world.received(&a)] {
            assert_eq!(ids(&done), (0..=100).collect::<Vec<_>>(), "{route:?}");
            assert!(done.iter().all(|done| done.status == Status::FlushError && done.vendor_err == vendor_err::FLUSHED));
            let indices: Vec<u32> = done.iter().map(|done| done.queue_index).collect();
            assert_eq!(indices, (0..=100).collect::<Vec<_>>());
        }
        assert_eq!(world.nics[b.nic].counters(b.device).unwrap().rcvd_pkts, 0);
    }
}

/// After RESET a queue pair is as new: nothing posted, no attributes, and it can be connected again.
#[test]
fn reset_forgets_everything() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup::new(route));
        world.recv(&b, 1, &[b.at(0, 8)]);
        world.send(&a, 1, send(), &[a.at(0, 8)]);
        world.send(&a, 2, send(), &[a.at(0, 8)]);
        world.run_for(std::time::Duration::from_millis(3));
        world.reconnect(&a, &b);
        world.run();
        assert_eq!(ids(&world.sent(&a)), [1], "{route:?}: request 2 is gone without a completion");
        world.recv(&b, 3, &[b.at(0, 8)]);
        world.send(&a, 4, send(), &[a.at(0, 8)]);
        world.run();
        assert_eq!(ids(&world.sent(&a)), [4]);
        let received = world.received(&b);
        assert_eq!(ids(&received), [1, 3]);
        assert_eq!(received[1].queue_index, 0, "counts start anew");
    }
}

/// SQD: what was begun completes, the event comes once, later posts wait; RTS resumes.
#[test]
fn sqd_drains_and_resumes() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup::new(route));
        world.send(&a, 1, write(&b, 0), &[a.at(0, 2 << 20)]);
        world.step_some(4);
        world.send(&a, 2, write(&b, 0), &[a.at(0, 8)]);
        let attr = QpAttr { state: QpState::Sqd, sqd_async_notify: true, ..world.attr(&b) };
        world.modify(&a, QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY, &attr).unwrap();
        assert!(world.nics[a.nic].query_qp(a.qpn).unwrap().sq_draining, "{route:?}");
        world.run();
        assert_eq!(ids(&world.sent(&a)), [1], "{route:?}");
        let drained = |world: &World| world.events.iter().filter(|event| **event == AsyncEvent::SqDrained(a.qpn)).count();
        assert_eq!(drained(&world), 1);
        assert!(!world.nics[a.nic].query_qp(a.qpn).unwrap().sq_draining);
        world.set_state(&a, QpState::Rts);
        world.run();
        assert_eq!(ids(&world.sent(&a)), [2]);
        // Nothing is under way: drained at once.
        world.modify(&a, QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY, &attr).unwrap();
        world.run();
        assert_eq!(drained(&world), 2);
    }
}

/// The first message that arrives in RTR raises one event; a queue pair in RTS gets none.
#[test]
fn communication_established() {
    for route in BOTH {
        let mut world = World::new(Setup::new(route));
        let (a, b) = (world.end(), world.end());
        world.connect_one(&a, &b);
        world.init(&b);
        world.rtr(&b, &a);
        for n in 0..3 {
            world.recv(&b, n, &[b.at(0, 8)]);
            world.send(&a, n, send(), &[a.at(0, 8)]);
        }
        world.run();
        assert_eq!(world.events, [AsyncEvent::CommunicationEstablished(b.qpn)], "{route:?}");
        assert_eq!(statuses(&world.sent(&a)), [Status::Success; 3]);
        world.rts(&b);
        world.recv(&a, 9, &[a.at(0, 8)]);
        world.send(&b, 9, send(), &[b.at(0, 8)]);
        world.run();
        assert_eq!(world.events.len(), 1);
    }
}

/// Queries tell the sequence numbers as they advance, the same on both paths.
#[test]
fn queries_tell_sequence_numbers() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup::new(route));
        world.send(&a, 1, write(&b, 0), &[a.at(0, 5000)]);
        world.send(&a, 2, read(&b, 0), &[a.at(0, 2049)]);
        world.send(&a, 3, fetch_add(&b, 0, 1), &[a.at(0, 8)]);
        world.run();
        let (mine, theirs) = (world.nics[a.nic].query_qp(a.qpn).unwrap(), world.nics[b.nic].query_qp(b.qpn).unwrap());
        assert_eq!((mine.sq_psn, theirs.rq_psn), (Psn::new(1009), Psn::new(1009)), "{route:?}");
    }
}
