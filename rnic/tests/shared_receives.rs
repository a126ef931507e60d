//! Shared receive queues on both paths: RC and UD queue pairs take from one queue, events tell of its end and of theirs (QC-08).

mod harness;

use harness::*;
use rnic::*;

fn setup(route: Route) -> Setup {
    Setup { srq: true, ..Setup::new(route) }
}

/// Two connections into one end, which share its receive queue.
fn two_into_one(route: Route) -> (World, [End; 2], [End; 2]) {
    let mut world = World::new(setup(route));
    let (a, b) = (world.end(), world.end());
    let second = |world: &mut World, end: &End| End { qpn: world.queue_pair(end), ..*end };
    let (c, d) = (second(&mut world, &a), second(&mut world, &b));
    world.connect(&a, &b);
    world.connect(&c, &d);
    (world, [a, c], [b, d])
}

#[test]
fn receives_go_to_whoever_needs_one() {
    for route in BOTH {
        let (mut world, from, to) = two_into_one(route);
        let [b, d] = to;
        for wr_id in 0..6 {
            world.recv(&b, wr_id, &[b.at(0x10_0000 * wr_id / 8, 8192)]);
        }
        for (n, op) in [(0, send()), (1, send()), (1, write_imm(&d, 0, [1; 4])), (0, send_imm([2; 4]))] {
            world.send(&from[n], 1, op, &[from[n].at(7, 3000)]);
            world.run();
        }
        let (first, second) = (world.received(&b), world.received(&d));
        let shown =
            |done: &[Completion]| done.iter().map(|done| (done.wr_id, done.queue_index, done.opcode)).collect::<Vec<_>>();
        assert_eq!(shown(&first), [(0, 0, Opcode::Recv), (3, 3, Opcode::Recv)], "{route:?}");
        assert_eq!(shown(&second), [(1, 1, Opcode::Recv), (2, 2, Opcode::RecvWriteWithImm)]);
        let source = world.bytes(&from[1], 7, 3000);
        assert_bytes(&world.bytes(&d, 0x10_0000 / 8, 3000), &source);
    }
}

/// Full is full, whether receives wait or are being filled; and only its own queue takes receives.
#[test]
fn the_queue_is_bounded() {
    let (mut world, from, [b, _]) = two_into_one(Route::Wire);
    let depth = u64::from(world.setup.depth);
    for wr_id in 0..depth {
        world.recv(&b, wr_id, &[b.at(0, 100_000)]);
    }
    assert_eq!(world.try_recv(&b, 99, &[]), Err(PostError::Full));
    // One is taken by a message that has begun and not ended.
    world.send(&from[0], 1, send(), &[from[0].at(0, 100_000)]);
    world.step_some(1);
    assert_eq!(world.try_recv(&b, 99, &[]), Err(PostError::Full));
    world.run();
    world.recv(&b, 99, &[]);
    let recv = RecvRequest { wr_id: 1, buffers: &[] };
    let now = world.now;
    assert_eq!(world.nics[b.nic].post_recv(now, b.qpn, &recv), Err(PostError::Invalid));
    let buffers = vec![b.at(0, 1); world.setup.sge as usize + 1];
    assert_eq!(world.try_recv(&b, 1, &buffers), Err(PostError::Invalid));
}

/// A sender waits for a receive in the shared queue as it does for one in the peer's own.
#[test]
fn an_empty_queue_makes_senders_wait() {
    for route in BOTH {
        let (mut world, from, to) = two_into_one(route);
        for end in &from {
            world.send(end, 1, send(), &[end.at(0, 100)]);
        }
        world.run_for(std::time::Duration::from_millis(5));
        assert!(world.sent(&from[0]).is_empty() && world.sent(&from[1]).is_empty(), "{route:?}");
        for wr_id in 0..2 {
            world.recv(&to[0], wr_id, &[to[0].at(0, 100)]);
        }
        world.run();
        for (from, to) in from.iter().zip(&to) {
            assert_eq!(statuses(&world.sent(from)), [Status::Success]);
            assert_eq!(statuses(&world.received(to)), [Status::Success]);
        }
    }
}

#[test]
fn datagrams_take_from_the_shared_queue() {
    for route in BOTH {
        let mut world = World::new(Setup { qp_type: QpType::Ud, ..setup(route) });
        let (a, b) = (world.end(), world.end());
        let c = End { qpn: world.queue_pair(&b), ..b };
        for end in [&a, &b, &c] {
            world.ready(end);
        }
        world.recv(&b, 100, &[b.at(0, 40 + 8)]);
        // It does not fit; the receive stays for the other queue pair.
        world.send(&a, 1, datagram(&b), &[a.at(0, 9)]);
        world.send(&a, 2, datagram(&c), &[a.at(0, 8)]);
        world.send(&a, 3, datagram(&b), &[a.at(0, 8)]);
        world.run();
        assert_eq!(ids(&world.received(&c)), [100], "{route:?}");
        assert!(world.received(&b).is_empty());
        let counters = world.counters(&b);
        assert_eq!((counters.dropped_too_long, counters.dropped_no_receive), (1, 1));
    }
}

/// The limit's event comes once, when fewer receives than that wait, or at once if fewer wait already.
#[test]
fn the_limit_is_told_once() {
    for route in BOTH {
        let (mut world, from, [b, _]) = two_into_one(route);
        let srq = b.srq.unwrap();
        for wr_id in 0..4 {
            world.recv(&b, wr_id, &[b.at(0, 100)]);
        }
        world.nics[b.nic].set_srq_limit(srq, 3).unwrap();
        assert_eq!(world.nics[b.nic].query_srq(srq).unwrap().limit, 3);
        world.send(&from[0], 1, send(), &[]);
        world.run();
        assert!(world.events.is_empty(), "three are not fewer than three");
        for wr_id in 2..4 {
            world.send(&from[0], wr_id, send(), &[]);
        }
        world.run();
        assert_eq!(world.events, [AsyncEvent::SrqLimit(srq)], "{route:?}");
        assert_eq!(world.nics[b.nic].query_srq(srq).unwrap().limit, 0);
        world.nics[b.nic].set_srq_limit(srq, 5).unwrap();
        assert_eq!(world.nics[b.nic].poll_event(), Some(AsyncEvent::SrqLimit(srq)));
        let depth = world.setup.depth;
        assert!(matches!(world.nics[b.nic].set_srq_limit(srq, depth + 1), Err(ControlError::Invalid(_))));
    }
}

/// QC-08: a queue pair in error says once that it takes no more, after its last completion; no receive is lost.
#[test]
fn qc_08_the_last_receive_of_a_queue_pair_is_told() {
    for route in BOTH {
        let (mut world, from, [b, d]) = two_into_one(route);
        for wr_id in 0..3 {
            world.recv(&b, wr_id, &[b.at(0, 1 << 20)]);
        }
        // One receive is being filled when the queue pair fails.
        world.send(&from[0], 1, send(), &[from[0].at(0, 1 << 20)]);
        world.step_some(3);
        world.set_state(&b, QpState::Err);
        world.set_state(&b, QpState::Err);
        world.run();
        assert_eq!(statuses(&world.received(&b)), [Status::FlushError], "{route:?}");
        let told = world.events.iter().filter(|event| **event == AsyncEvent::QpLastWqe(b.qpn)).count();
        assert_eq!(told, 1);
        // The others are there for the other queue pair.
        for wr_id in 2..4 {
            world.send(&from[1], wr_id, send(), &[]);
        }
        world.run();
        assert_eq!(ids(&world.received(&d)), [1, 2]);
        world.set_state(&b, QpState::Reset);
        assert!(world.received(&b).is_empty());
    }
}

/// A queue pair that goes away in the middle of a message gives its receive back, as the oldest.
#[test]
fn a_receive_in_hand_comes_back() {
    for route in BOTH {
        for destroy in [false, true] {
            let (mut world, from, [b, d]) = two_into_one(route);
            for wr_id in 0..2 {
                world.recv(&b, wr_id, &[b.at(0, 1 << 20)]);
            }
            world.send(&from[0], 1, send(), &[from[0].at(0, 1 << 20)]);
            world.step_some(3);
            if destroy {
                let now = world.now;
                world.nics[b.nic].destroy_qp(now, b.qpn).unwrap();
            } else {
                world.set_state(&b, QpState::Reset);
            }
            world.send(&from[1], 2, send(), &[]);
            world.send(&from[1], 3, send(), &[]);
            world.run();
            assert_eq!(ids(&world.received(&d)), [0, 1], "{route:?}");
        }
    }
}

/// Who uses what: neither a protection domain nor a shared queue ends while it is used.
#[test]
fn queues_and_domains_outlive_their_users() {
    let (mut world, _, [b, d]) = two_into_one(Route::Local);
    let (srq, now) = (b.srq.unwrap(), world.now);
    let core = &mut world.nics[0];
    assert_eq!(core.destroy_srq(srq), Err(ControlError::Busy("shared receive queue")));
    core.destroy_qp(now, b.qpn).unwrap();
    core.destroy_qp(now, d.qpn).unwrap();
    core.dereg_mr(b.mr.lkey).unwrap();
    assert_eq!(core.dealloc_pd(b.pd), Err(ControlError::Busy("protection domain")));
    core.destroy_srq(srq).unwrap();
    assert_eq!(core.destroy_srq(srq), Err(ControlError::NotFound("shared receive queue")));
    core.dealloc_pd(b.pd).unwrap();
    let attr = SrqAttr { max_wr: 1, max_sge: 1, limit: 0 };
    let pd = core.alloc_pd(b.device).unwrap();
    for bad in [
        SrqAttr { max_wr: 0, ..attr },
        SrqAttr { max_wr: limits::MAX_SRQ_WR + 1, ..attr },
        SrqAttr { max_sge: limits::MAX_SGE + 1, ..attr },
        SrqAttr { limit: 2, ..attr },
    ] {
        assert!(matches!(core.create_srq(pd, bad), Err(ControlError::Invalid(_))), "{bad:?}");
    }
    core.create_srq(pd, attr).unwrap();
    core.destroy_device(now, b.device);
}

/// Another size: what is posted and what queue pairs hold stays, and both count against it.
#[test]
fn a_queue_changes_its_size() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup { srq: true, depth: 6, ..Setup::new(route) });
        let srq = b.srq.unwrap();
        for n in 0..6 {
            world.recv(&b, n, &[b.at(0x1000 * n, 4000)]);
        }
        assert_eq!(world.try_recv(&b, 6, &[]), Err(PostError::Full));
        let core = &mut world.nics[b.nic];
        for size in [0, 5, limits::MAX_SRQ_WR + 1] {
            assert!(matches!(core.resize_srq(srq, size), Err(ControlError::Invalid(_))), "{route:?} {size}");
        }
        core.set_srq_limit(srq, 6).unwrap();
        core.resize_srq(srq, 9).unwrap();
        assert_eq!(core.query_srq(srq).unwrap(), SrqAttr { max_wr: 9, max_sge: 4, limit: 6 });
        world.recv(&b, 6, &[b.at(0x6000, 4000)]);
        let source = world.bytes(&a, 0, 3000);
        for n in 0..5 {
            world.send(&a, n, send(), &[a.at(0, 3000)]);
        }
        world.run();
        assert_eq!(ids(&world.received(&b)), [0, 1, 2, 3, 4], "{route:?}");
        let core = &mut world.nics[b.nic];
        core.resize_srq(srq, 2).unwrap();
        assert_eq!(world.try_recv(&b, 9, &[]), Err(PostError::Full));
        for n in 5..7 {
            world.send(&a, n, send(), &[a.at(0, 3000)]);
        }
        world.run();
        assert_eq!(ids(&world.received(&b)), [5, 6], "{route:?}");
        assert_bytes(&world.bytes(&b, 0x6000, 3000), &source);
        world.recv(&b, 9, &[]);
        let core = &mut world.nics[b.nic];
        core.set_srq_limit(srq, 1).unwrap();
        assert!(matches!(core.set_srq_limit(srq, 3), Err(ControlError::Invalid(_))));
    }
}
