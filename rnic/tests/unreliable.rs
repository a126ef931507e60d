//! Unreliable connections on both paths: requests complete when they are sent; what is incomplete or not allowed is dropped
//! silently (UD-08), and the rest arrives whole.

mod harness;

use harness::link::Faults;
use harness::*;
use rnic::*;
use std::time::Duration;

fn pair(route: Route) -> (World, End, End) {
    World::pair(Setup { qp_type: QpType::Uc, ..Setup::new(route) })
}

#[test]
fn sends_and_writes_move_their_bytes() {
    for route in BOTH {
        let (mut world, a, b) = pair(route);
        world.recv(&b, 100, &[b.at(0x8000, 3000)]);
        world.recv(&b, 101, &[b.at(0xA000, 5000)]);
        world.recv(&b, 102, &[]);
        world.send(&a, 1, write(&b, 5), &[a.at(1, 5000)]);
        world.send(&a, 2, send(), &[a.at(11, 2500)]);
        world.send(&a, 3, send_imm([1, 2, 3, 4]), &[a.at(9000, 4096)]);
        world.send(&a, 4, write_imm(&b, 0x7000, [9, 8, 7, 6]), &[a.at(100, 33)]);
        world.send(&a, 5, write(&b, 0x20_0000), &[a.at(0, 1 << 20)]);
        world.send(&a, 6, write(&b, 0), &[]);
        let source = world.bytes(&a, 0, 1 << 20);
        world.run();
        let sent = world.sent(&a);
        assert_eq!((ids(&sent), statuses(&sent)), (vec![1, 2, 3, 4, 5, 6], vec![Status::Success; 6]), "{route:?}");
        let received = world.received(&b);
        let shown: Vec<_> = received.iter().map(|done| (done.wr_id, done.opcode, done.byte_len, done.imm)).collect();
        let wanted = [
            (100, Opcode::Recv, 2500, [0; 4]),
            (101, Opcode::Recv, 4096, [1, 2, 3, 4]),
            (102, Opcode::RecvWriteWithImm, 33, [9, 8, 7, 6]),
        ];
        assert_eq!(shown, wanted);
        assert_bytes(&world.bytes(&b, 5, 5000), &source[1..5001]);
        assert_bytes(&world.bytes(&b, 0x8000, 2500), &source[11..2511]);
        assert_bytes(&world.bytes(&b, 0xA000, 4096), &source[9000..13096]);
        assert_bytes(&world.bytes(&b, 0x20_0000, 1 << 20), &source);
    }
}

/// UD-08: no receive, a receive too short, no right, a wrong key, a range that leaves the region: dropped, and both go on.
#[test]
fn ud_08_what_may_not_be_is_dropped_silently() {
    for route in BOTH {
        let (mut world, a, b) = pair(route);
        world.send(&a, 1, send(), &[a.at(0, 3000)]);
        world.run();
        assert_eq!(world.counters(&b).dropped_no_receive, 1, "{route:?}");
        world.recv(&b, 100, &[b.at(0, 2000)]);
        world.send(&a, 2, send(), &[a.at(0, 3000)]);
        world.run();
        assert_eq!(world.counters(&b).dropped_too_long, 1);
        let before = world.bytes(&b, 0x8000, 3000);
        let SendOp::Write { remote_addr, rkey, .. } = write(&b, 0x8000) else { unreachable!() };
        let wrong_key = SendOp::Write { remote_addr, rkey: bad_rkey(&b), imm: None };
        let outside = SendOp::Write { remote_addr: BASE + MEMORY as u64 - 2999, rkey, imm: None };
        for (wr_id, op) in [(3, wrong_key), (4, outside)] {
            world.send(&a, wr_id, op, &[a.at(0, 3000)]);
        }
        world.run();
        let attr = QpAttr { access: emtt::Access::empty(), ..world.attr(&a) };
        world.modify(&b, QpAttrMask::ACCESS_FLAGS, &attr).unwrap();
        world.send(&a, 5, write(&b, 0x8000), &[a.at(0, 3000)]);
        world.run();
        assert_eq!(world.counters(&b).dropped_refused, 3);
        assert_bytes(&world.bytes(&b, 0x8000, 3000), &before);
        assert!(world.received(&b).is_empty());
        world.send(&a, 6, send(), &[a.at(0, 2000)]);
        world.run();
        assert_eq!(ids(&world.received(&b)), [100], "the receive was kept");
        assert_eq!(statuses(&world.sent(&a)), [Status::Success; 6]);
        assert_eq!((world.state(&a), world.state(&b)), (QpState::Rts, QpState::Rts));
        assert!(world.events.is_empty());
    }
}

/// Nobody is there: what is sent is lost.
#[test]
fn a_peer_that_is_not_there_is_not_missed() {
    for route in BOTH {
        let (mut world, a, b) = pair(route);
        world.set_state(&b, QpState::Reset);
        world.send(&a, 1, send(), &[a.at(0, 1 << 20)]);
        world.send(&a, 2, write(&b, 0), &[a.at(0, 8)]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::Success; 2], "{route:?}");
    }
}

/// A message that one packet is missing from is dropped as a whole, whichever packet it is; its receive takes the next message.
#[test]
fn a_message_with_a_gap_is_dropped() {
    for lost in 0..4 {
        let (mut world, a, b) = pair(Route::Wire);
        world.recv(&b, 100, &[b.at(0, 8192)]);
        let mut count = 0;
        world.link.filter = Some(Box::new(move |_| {
            count += 1;
            count - 1 != lost
        }));
        world.send(&a, 1, send(), &[a.at(0, 4096)]);
        world.send(&a, 2, send(), &[a.at(5000, 3000)]);
        let source = world.bytes(&a, 5000, 3000);
        world.run();
        let received = world.received(&b);
        assert_eq!(received.iter().map(|done| (done.wr_id, done.byte_len)).collect::<Vec<_>>(), [(100, 3000)], "packet {lost}");
        assert_bytes(&world.bytes(&b, 0, 3000), &source);
        assert_eq!(statuses(&world.sent(&a)), [Status::Success; 2]);
    }
}

/// Whatever the network does, what is received was sent like that.
#[test]
fn messages_arrive_whole_or_not_at_all() {
    for seed in 0..20 {
        let mut world = World::new(Setup { qp_type: QpType::Uc, seed, ..Setup::new(Route::Wire) });
        let (a, b) = (world.end(), world.end());
        world.connect(&a, &b);
        world.faults(Faults { loss: 0.02, duplication: 0.01, reordering: 0.02, corruption: 0.01, ..Faults::default() });
        let mut sent = Vec::new();
        for n in 0..40_u64 {
            let len = 1 + (n * 997) % 6000;
            world.recv(&b, n, &[b.at(n << 13, 8192)]);
            world.send(&a, n, send_imm([n as u8; 4]), &[a.at(n * 100, len as u32)]);
            sent.push(world.bytes(&a, n as usize * 100, len as usize));
        }
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::Success; 40]);
        let received = world.received(&b);
        assert!(received.len() > 10, "seed {seed}: {} of 40", received.len());
        for done in received {
            let bytes = world.bytes(&b, (done.wr_id as usize) << 13, done.byte_len as usize);
            assert_bytes(&bytes, &sent[usize::from(done.imm[0])]);
        }
    }
}

/// A local fault stops the send queue only, in the middle of a queue; what was begun is lost to the peer.
#[test]
fn a_bad_send_buffer_stops_the_send_queue_only() {
    for route in BOTH {
        let (mut world, a, b) = pair(route);
        for wr_id in 100..104 {
            world.recv(&b, wr_id, &[b.at(0, 8192)]);
        }
        world.recv(&a, 50, &[a.at(0, 100)]);
        world.send(&a, 1, send(), &[a.at(0, 3000)]);
        world.send(&a, 2, send(), &[a.at(0, 3000), bad_lkey(&a)]);
        world.send(&a, 3, send(), &[a.at(0, 8)]);
        world.run();
        let wanted = [Status::Success, Status::LocalProtectionError, Status::FlushError];
        assert_eq!(statuses(&world.sent(&a)), wanted, "{route:?}");
        assert_eq!(world.state(&a), QpState::Sqe);
        world.send(&b, 1, send(), &[b.at(0, 100)]);
        world.run();
        assert_eq!(ids(&world.received(&a)), [50]);
        world.set_state(&a, QpState::Rts);
        world.send(&a, 4, send(), &[a.at(0, 5000)]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::Success]);
        let lengths: Vec<u32> = world.received(&b).iter().map(|done| done.byte_len).collect();
        assert_eq!(lengths, [3000, 5000]);
    }
}

/// The receiver's own fault fails the receiver; the sender does not notice.
#[test]
fn a_bad_receive_buffer_fails_the_receiver() {
    for route in BOTH {
        let (mut world, a, b) = pair(route);
        world.recv(&b, 100, &[bad_lkey(&b)]);
        world.recv(&b, 101, &[b.at(0, 100)]);
        world.send(&a, 1, send(), &[a.at(0, 8)]);
        world.send(&a, 2, send(), &[a.at(0, 8)]);
        world.run_for(Duration::from_secs(1));
        assert_eq!(statuses(&world.sent(&a)), [Status::Success; 2], "{route:?}");
        assert_eq!(statuses(&world.received(&b)), [Status::LocalProtectionError, Status::FlushError]);
        assert_eq!(world.state(&b), QpState::Err);
        let (mut world, a, b) = pair(route);
        world.recv(&b, 100, &[b.at(0, 100)]);
        world.memory.take_away(b.memory);
        world.send(&a, 1, send(), &[a.at(0, 8)]);
        world.run_for(Duration::from_secs(1));
        assert_eq!(statuses(&world.received(&b)), [Status::LocalProtectionError]);
        assert_eq!(statuses(&world.sent(&a)), [Status::Success]);
        world.link.record = Some(Vec::new());
        world.run();
        assert!(world.link.record.take().unwrap().is_empty(), "nobody is told");
    }
}

#[test]
fn what_needs_an_answer_is_refused() {
    let (mut world, a, b) = pair(Route::Wire);
    let invalidate = SendOp::Send { imm: None, invalidate: Some(b.mr.rkey) };
    for op in [read(&b, 0), fetch_add(&b, 0, 1), invalidate, datagram(&b)] {
        assert_eq!(world.try_send(&a, 1, op, &[a.at(0, 8)]), Err(PostError::Invalid));
    }
}

#[test]
fn connections_without_acknowledgements_have_their_own_steps() {
    let mut world = World::new(Setup { qp_type: QpType::Uc, ..Setup::new(Route::Local) });
    let (a, b) = (world.end(), world.end());
    world.init(&a);
    let attr = QpAttr { state: QpState::Rtr, ..world.attr(&b) };
    assert!(world.modify(&a, RTR, &attr).is_err(), "it has no READs and no RNR NAKs");
    for missing in [QpAttrMask::AV, QpAttrMask::PATH_MTU, QpAttrMask::DEST_QPN, QpAttrMask::RQ_PSN] {
        assert!(world.modify(&a, RTR_UC - missing, &attr).is_err(), "{missing:?}");
    }
    world.modify(&a, RTR_UC, &attr).unwrap();
    let attr = QpAttr { state: QpState::Rts, ..world.attr(&b) };
    assert!(world.modify(&a, RTS, &attr).is_err(), "it has no timeouts");
    world.modify(&a, RTS_UC, &attr).unwrap();
}
