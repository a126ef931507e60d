//! Extended reliable connections (IBA annex A14) on both paths: what requests name, whose memory and completions it brings, and
//! what hostile peers may try.

mod harness;

use emtt::Access;
use harness::link::Faults;
use harness::*;
use rnic::*;
use roce::wire::{Aeth, Bth, Headers, NakCode, Opcode as Wire, Reth, Syndrome};
use roce::{Qpn, Srqn};
use std::time::Duration;

/// An initiator, and a target with one shared receive queue in its domain.
struct Pair {
    world: World,
    a: End,
    b: End,
    xrcd: XrcdId,
}

const SRQ: SrqAttr = SrqAttr { max_wr: 64, max_sge: 4, limit: 0 };

fn pair(route: Route) -> Pair {
    pair_of(Setup::new(route))
}

fn pair_of(setup: Setup) -> Pair {
    let mut world = World::new(setup);
    let (a, b) = (world.end(), world.end());
    let caps = QpCaps { max_send_wr: 64, max_send_sge: 4, ..QpCaps::default() };
    let init = QpInit { qp_type: QpType::XrcSend, send_cq: a.send_cq, recv_cq: a.send_cq, srq: None, caps, all_signaled: true };
    let a = End { qpn: world.nics[a.nic].create_qp(a.pd, init).unwrap(), ..a };
    let core = &mut world.nics[b.nic];
    let xrcd = core.alloc_xrcd(b.device).unwrap();
    let srq = core.create_xrc_srq(b.pd, SRQ, xrcd, b.recv_cq).unwrap();
    let b = End { qpn: core.create_xrc_target(xrcd).unwrap(), srq: Some(srq), ..b };
    connect(&mut world, &a, &b);
    world.setup.srqn = Some(srq.number());
    Pair { world, a, b, xrcd }
}

const RTS_TARGET: QpAttrMask = QpAttrMask::STATE.union(QpAttrMask::TIMEOUT).union(QpAttrMask::SQ_PSN);

fn connect(world: &mut World, initiator: &End, target: &End) {
    for (end, peer, rtr, rts) in [(initiator, target, RTR_UC, RTS), (target, initiator, RTR, RTS_TARGET)] {
        world.init(end);
        let attr = world.attr(peer);
        world.modify(end, rtr, &QpAttr { state: QpState::Rtr, ..attr }).unwrap();
        world.modify(end, rts, &QpAttr { state: QpState::Rts, ..attr }).unwrap();
    }
}

/// Another shared receive queue at the target's device, with a domain of protection, a region and a completion queue of its own.
fn other_queue(world: &mut World, b: &End, xrcd: XrcdId) -> End {
    let core = &mut world.nics[b.nic];
    let pd = core.alloc_pd(b.device).unwrap();
    let recv_cq = core.create_cq(b.device).unwrap();
    let srq = Some(core.create_xrc_srq(pd, SRQ, xrcd, recv_cq).unwrap());
    let mr = core.reg_mr(pd, MrInit { iova: BASE, access: Access::all(), runs: runs(b.memory, MEMORY) }).unwrap();
    End { pd, recv_cq, srq, mr, ..*b }
}

fn name(world: &mut World, end: &End) {
    world.setup.srqn = end.srq.map(SrqId::number);
}

#[test]
fn every_operation_works() {
    for (route, loss) in [(Route::Local, 0.0), (Route::Wire, 0.0), (Route::Wire, 0.05)] {
        let Pair { mut world, a, b, .. } = pair_of(Setup { seed: 5, ..Setup::new(route) });
        world.faults(Faults { loss, duplication: loss, reordering: loss, ..Faults::default() });
        for wr_id in 0..3 {
            world.recv(&b, wr_id, &[b.at(0x10_0000 + wr_id * 0x1_0000, 30_000)]);
        }
        let (source, remote) = (world.bytes(&a, 7, 20_000), world.bytes(&b, 0x20_0000, 20_000));
        let before = world.word(&b, 0x28_0000);
        world.send(&a, 1, send(), &[a.at(7, 20_000)]);
        world.send(&a, 2, write(&b, 0x30_0000), &[a.at(7, 20_000)]);
        world.send(&a, 3, read(&b, 0x20_0000), &[a.at(0x10_0000, 20_000)]);
        world.send(&a, 4, fetch_add(&b, 0x28_0000, 5), &[a.at(0x20_0000, 8)]);
        world.send(&a, 5, compare_swap(&b, 0x28_0000, before.wrapping_add(5), 9), &[a.at(0x20_0008, 8)]);
        world.send(&a, 6, write_imm(&b, 0x38_0000, [1, 2, 3, 4]), &[a.at(7, 5000)]);
        world.send(&a, 7, send_imm([4, 3, 2, 1]), &[]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::Success; 7], "{route:?} {loss}");
        let got = world.received(&b);
        assert_eq!(statuses(&got), [Status::Success; 3]);
        assert!(got.iter().all(|done| (done.qpn, done.srq) == (b.qpn, b.srq)));
        assert_eq!(ids(&got), [0, 1, 2]);
        let shown: Vec<_> = got.iter().map(|done| (done.opcode, done.byte_len, done.imm)).collect();
        let with_imm = (Opcode::RecvWriteWithImm, 5000, [1, 2, 3, 4]);
        assert_eq!(shown, [(Opcode::Recv, 20_000, [0; 4]), with_imm, (Opcode::Recv, 0, [4, 3, 2, 1])]);
        assert_bytes(&world.bytes(&b, 0x10_0000, 20_000), &source);
        assert_bytes(&world.bytes(&b, 0x30_0000, 20_000), &source);
        assert_bytes(&world.bytes(&b, 0x38_0000, 5000), &source[..5000]);
        assert_bytes(&world.bytes(&a, 0x10_0000, 20_000), &remote);
        let values = [world.word(&a, 0x20_0000), world.word(&a, 0x20_0008), world.word(&b, 0x28_0000)];
        assert_eq!(values, [before, before.wrapping_add(5), 9]);
        assert!(!world.events.contains(&AsyncEvent::QpLastWqe(b.qpn)));
    }
}

/// One target serves many queues: each brings its own receives, its own completion queue and its own protection domain.
#[test]
fn a_request_is_served_by_the_queue_that_it_names() {
    for route in BOTH {
        let Pair { mut world, a, b, xrcd } = pair(route);
        let c = other_queue(&mut world, &b, xrcd);
        let payload = world.bytes(&a, 0, 3000);
        for (n, end) in [b, c, c, b].iter().enumerate() {
            let wr_id = 10 + n as u64;
            world.recv(end, wr_id, &[end.at(0x1_0000 * n as u64, 4000)]);
            name(&mut world, end);
            world.send(&a, wr_id, send(), &[a.at(0, 3000)]);
            world.send(&a, 99, write(end, 0x8_0000 + 0x1_0000 * n as u64), &[a.at(0, 3000)]);
        }
        world.run();
        assert_eq!(ids(&world.received(&b)), [10, 13], "{route:?}");
        assert_eq!(ids(&world.received(&c)), [11, 12]);
        for n in 0..4 {
            assert_bytes(&world.bytes(&b, 0x1_0000 * n, 3000), &payload);
            assert_bytes(&world.bytes(&b, 0x8_0000 + 0x1_0000 * n, 3000), &payload);
        }
        assert_eq!(statuses(&world.sent(&a)), [Status::Success; 8]);
        // A key of the other queue's protection domain.
        name(&mut world, &b);
        world.send(&a, 1, read(&c, 0), &[a.at(0, 8)]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::RemoteAccessError], "{route:?}");
        assert!(world.events.contains(&AsyncEvent::QpAccessError(b.qpn)));
    }
}

/// A number of no queue, of one of another domain, of one that cannot be named, of one that is gone: the request is invalid.
#[test]
fn queues_that_may_not_be_named() {
    for route in BOTH {
        for operation in 0..4 {
            for case in 0..4 {
                let Pair { mut world, a, b, .. } = pair(route);
                world.recv(&b, 1, &[b.at(0, 4000)]);
                let before = world.bytes(&b, 0, MEMORY);
                let core = &mut world.nics[b.nic];
                let wrong = match case {
                    0 => Srqn::new(b.srq.unwrap().number().get() ^ 0x10_0000),
                    1 => {
                        let foreign = core.alloc_xrcd(b.device).unwrap();
                        core.create_xrc_srq(b.pd, SRQ, foreign, b.recv_cq).unwrap().number()
                    }
                    2 => core.create_srq(b.pd, SRQ).unwrap().number(),
                    _ => {
                        core.destroy_srq(b.srq.unwrap()).unwrap();
                        b.srq.unwrap().number()
                    }
                };
                world.setup.srqn = Some(wrong);
                let op = [send(), write(&b, 0), read(&b, 0), fetch_add(&b, 0, 1)][operation];
                world.send(&a, 1, op, &[a.at(0, 8)]);
                world.run();
                let text = format!("{route:?}, {op:?}, case {case}");
                assert_eq!(statuses(&world.sent(&a)), [Status::RemoteInvalidRequestError], "{text}");
                assert!(world.received(&b).is_empty(), "{text}");
                assert!(world.events.contains(&AsyncEvent::QpRequestError(b.qpn)), "{text}");
                assert_eq!((world.state(&a), world.state(&b)), (QpState::Err, QpState::Err), "{text}");
                assert_bytes(&world.bytes(&b, 0, MEMORY), &before);
            }
        }
    }
}

/// The queue goes away, or its completion queue overruns, in the middle of a message.
#[test]
fn a_queue_that_ends_under_a_message() {
    for route in BOTH {
        for overrun in [false, true] {
            let Pair { mut world, a, b, .. } = pair(route);
            world.recv(&b, 1, &[b.at(0, 2 << 20)]);
            world.send(&a, 1, send(), &[a.at(0, 2 << 20)]);
            world.step_some(3);
            let now = world.now;
            let core = &mut world.nics[b.nic];
            if overrun {
                core.cq_overrun(now, b.recv_cq);
            } else {
                core.destroy_srq(b.srq.unwrap()).unwrap();
                core.destroy_cq(b.recv_cq).unwrap_err();
            }
            world.run();
            assert!(world.received(&b).is_empty(), "{route:?}");
            // A target in error is silent, as any queue pair.
            let status = if overrun { Status::RetryExceededError } else { Status::RemoteInvalidRequestError };
            assert_eq!(statuses(&world.sent(&a)), [status], "{route:?}");
            assert_eq!(world.state(&b), QpState::Err);
            world.set_state(&b, QpState::Reset);
        }
    }
}

#[test]
fn a_completion_queue_in_error_serves_nobody() {
    for route in BOTH {
        let Pair { mut world, a, b, .. } = pair(route);
        world.recv(&b, 1, &[b.at(0, 100)]);
        let now = world.now;
        world.nics[b.nic].cq_overrun(now, b.recv_cq);
        world.send(&a, 1, send(), &[a.at(0, 8)]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::RemoteOperationalError], "{route:?}");
    }
}

/// A target without a receive makes its peer wait; a receive in the queue that was named ends that.
#[test]
fn initiators_wait_for_a_receive() {
    for route in BOTH {
        let Pair { mut world, a, b, xrcd } = pair(route);
        let c = other_queue(&mut world, &b, xrcd);
        world.send(&a, 1, send(), &[a.at(0, 5000)]);
        world.recv(&c, 9, &[c.at(0, 5000)]);
        world.run_for(Duration::from_millis(5));
        assert!(world.sent(&a).is_empty(), "{route:?}");
        world.recv(&b, 2, &[b.at(0, 5000)]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::Success], "{route:?}");
        assert_eq!(ids(&world.received(&b)), [2]);
        assert!(world.received(&c).is_empty());
    }
}

/// A receive in hand goes back to its queue when the target goes away; and it is flushed, to the queue's owner, when it fails.
#[test]
fn a_receive_in_hand() {
    for route in BOTH {
        for ends in 0..3 {
            let Pair { mut world, a, b, xrcd } = pair(route);
            world.recv(&b, 1, &[b.at(0, 2 << 20)]);
            world.send(&a, 1, send(), &[a.at(0, 2 << 20)]);
            world.step_some(3);
            let now = world.now;
            match ends {
                0 => world.nics[b.nic].destroy_qp(now, b.qpn).unwrap(),
                1 => world.set_state(&b, QpState::Reset),
                _ => world.set_state(&b, QpState::Err),
            }
            world.run();
            world.sent(&a);
            let flushed = world.received(&b);
            assert_eq!(statuses(&flushed), [Status::FlushError; 1][..usize::from(ends == 2)], "{route:?} {ends}");
            assert!(flushed.iter().all(|done| done.srq == b.srq));
            if ends != 2 {
                let again = End { qpn: world.nics[b.nic].create_xrc_target(xrcd).unwrap(), ..b };
                world.set_state(&a, QpState::Reset);
                connect(&mut world, &a, &again);
                world.send(&a, 2, send(), &[a.at(0, 8)]);
                world.run();
                assert_eq!(ids(&world.received(&again)), [1], "{route:?}");
            }
        }
    }
}

/// A packet for a target whose initiator is taken care of by the test.
fn request(code: Wire, psn: u32, target: &End, srq: &End) -> Headers {
    let mut headers = Headers::new(Bth { ack_req: true, ..Bth::new(code, target.qpn, roce::Psn::new(psn)) });
    headers.xrceth = srq.srq.map(SrqId::number);
    headers
}

fn answers(world: &mut World) -> Vec<Headers> {
    world.run();
    world.link.record.as_mut().unwrap().drain(..).map(|packet| packet.headers()).collect()
}

#[test]
fn packets_of_one_message_name_one_queue() {
    let Pair { mut world, a, b, xrcd } = pair(Route::Wire);
    let c = other_queue(&mut world, &b, xrcd);
    world.link.record = Some(Vec::new());
    world.recv(&b, 1, &[b.at(0, 4000)]);
    world.recv(&c, 2, &[c.at(0, 4000)]);
    world.inject(&a, &b, &request(Wire::XrcSendFirst, 1000, &b, &b), &[7; 1024]);
    world.inject(&a, &b, &request(Wire::XrcSendLast, 1001, &b, &c), &[8; 4]);
    let nak = answers(&mut world).last().copied().unwrap();
    assert_eq!(nak.bth.opcode, Wire::XrcAck);
    assert_eq!(nak.aeth.map(|Aeth { syndrome, .. }| syndrome), Some(Syndrome::Nak(NakCode::InvalidRequest)));
    // The receive that was being filled is its owner's again.
    assert_eq!(statuses(&world.received(&b)), [Status::FlushError]);
    assert!(world.received(&c).is_empty());
}

/// A READ is answered by the rights of the queue that it named, whatever the next request names, and again when it is asked again.
#[test]
fn replies_remember_their_protection_domain() {
    let Pair { mut world, a, b, xrcd } = pair(Route::Wire);
    let c = other_queue(&mut world, &b, xrcd);
    world.link.record = Some(Vec::new());
    let mut read = request(Wire::XrcReadRequest, 1000, &b, &b);
    read.reth = Some(Reth { va: BASE, rkey: b.mr.rkey, length: 4 });
    world.recv(&c, 1, &[]);
    world.inject(&a, &b, &read, &[]);
    world.inject(&a, &b, &request(Wire::XrcSendOnly, 1001, &b, &c), &[]);
    let codes = |world: &mut World| answers(world).iter().map(|headers| headers.bth.opcode).collect::<Vec<_>>();
    assert_eq!(codes(&mut world), [Wire::XrcReadResponseOnly, Wire::XrcAck]);
    assert_eq!(ids(&world.received(&c)), [1]);
    world.nics[b.nic].destroy_srq(b.srq.unwrap()).unwrap();
    world.inject(&a, &b, &read, &[]);
    assert_eq!(codes(&mut world), [Wire::XrcReadResponseOnly]);
}

/// Packets of other services, and packets for the other end, are dropped without an answer.
#[test]
fn packets_of_the_wrong_kind_are_dropped() {
    let Pair { mut world, a, b, .. } = pair(Route::Wire);
    let plain = World::end;
    let (c, d) = (plain(&mut world), plain(&mut world));
    world.connect(&c, &d);
    world.recv(&b, 1, &[b.at(0, 100)]);
    let rc = Headers { xrceth: None, ..request(Wire::RcSendOnly, 1000, &b, &b) };
    let ack = Some(Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 0 });
    let response = |target: &End| Headers { xrceth: None, aeth: ack, ..request(Wire::XrcAck, 1000, target, &b) };
    for (headers, from, to) in [
        (rc, &a, &b),
        (response(&b), &a, &b),
        (request(Wire::XrcSendOnly, 1000, &a, &b), &b, &a),
        (request(Wire::XrcSendOnly, 1000, &d, &b), &c, &d),
        (response(&d), &c, &d),
    ] {
        let (before, sent) = (world.nics[to.nic].drop_counters().bad_service, world.link.sent);
        world.inject(from, to, &headers, &[]);
        world.run();
        assert_eq!((world.nics[to.nic].drop_counters().bad_service, world.link.sent), (before + 1, sent), "{headers:?}");
    }
    world.send(&a, 1, send(), &[a.at(0, 100)]);
    world.run();
    assert_eq!(statuses(&world.received(&b)), [Status::Success]);
}

/// Attributes that the one end or the other does not have; and what cannot be posted.
#[test]
fn each_end_has_its_own_attributes() {
    let Pair { mut world, a, b, .. } = pair(Route::Local);
    let recv = RecvRequest { wr_id: 1, buffers: &[] };
    let now = world.now;
    for end in [&a, &b] {
        assert_eq!(world.nics[0].post_recv(now, end.qpn, &recv), Err(PostError::Invalid));
    }
    assert_eq!(world.try_send(&b, 1, send(), &[]), Err(PostError::Invalid));
    world.setup.srqn = None;
    assert_eq!(world.try_send(&a, 1, send(), &[]), Err(PostError::Invalid));
    assert_eq!(world.try_send(&b, 1, send(), &[]), Err(PostError::Invalid));
    for end in [&a, &b] {
        world.set_state(end, QpState::Reset);
        world.init(end);
    }
    let cases = [
        (&a, &b, RTR_UC, [RTR_UC | QpAttrMask::MIN_RNR_TIMER, RTR_UC - QpAttrMask::RQ_PSN], RTS),
        (&b, &a, RTR, [RTR - QpAttrMask::MAX_DEST_RD_ATOMIC, RTR | QpAttrMask::RNR_RETRY], RTS_TARGET),
    ];
    for (end, peer, rtr, wrong, rts) in cases {
        let attr = world.attr(peer);
        for mask in wrong {
            let refused = world.modify(end, mask, &QpAttr { state: QpState::Rtr, ..attr });
            assert!(matches!(refused, Err(ControlError::Invalid(_))), "{mask:?}");
        }
        world.modify(end, rtr, &QpAttr { state: QpState::Rtr, ..attr }).unwrap();
        let other = if rts == RTS { RTS_TARGET } else { RTS };
        assert!(world.modify(end, other, &QpAttr { state: QpState::Rts, ..attr }).is_err());
        world.modify(end, rts, &QpAttr { state: QpState::Rts, ..attr }).unwrap();
    }
}

/// Who uses what: nothing ends while it is used, and everything ends with the device.
#[test]
fn domains_outlive_their_users() {
    let Pair { mut world, a, b, xrcd } = pair(Route::Local);
    let now = world.now;
    let core = &mut world.nics[0];
    let busy = |result: Result<(), ControlError>| assert!(matches!(result, Err(ControlError::Busy(_))), "{result:?}");
    let invalid = |result: Result<Qpn, ControlError>| assert!(matches!(result, Err(ControlError::Invalid(_))), "{result:?}");
    busy(core.dealloc_xrcd(xrcd));
    core.destroy_qp(now, b.qpn).unwrap();
    busy(core.dealloc_xrcd(xrcd));
    busy(core.destroy_cq(b.recv_cq));
    let caps = QpCaps { max_send_wr: 4, max_send_sge: 1, ..QpCaps::default() };
    let init = |qp_type, srq| QpInit { qp_type, send_cq: b.send_cq, recv_cq: b.send_cq, srq, caps, all_signaled: false };
    invalid(core.create_qp(b.pd, init(QpType::Rc, b.srq)));
    invalid(core.create_qp(b.pd, init(QpType::XrcSend, b.srq)));
    invalid(core.create_qp(b.pd, init(QpType::XrcRecv, None)));
    let receiving = QpCaps { max_recv_wr: 1, ..caps };
    invalid(core.create_qp(b.pd, QpInit { caps: receiving, ..init(QpType::XrcSend, None) }));
    core.destroy_srq(b.srq.unwrap()).unwrap();
    core.dealloc_xrcd(xrcd).unwrap();
    for gone in [core.dealloc_xrcd(xrcd), core.create_xrc_target(xrcd).map(drop)] {
        assert!(matches!(gone, Err(ControlError::NotFound(_))));
    }
    // Of another device.
    let foreign = core.alloc_xrcd(a.device).unwrap();
    assert!(matches!(core.create_xrc_srq(b.pd, SRQ, foreign, b.recv_cq), Err(ControlError::NotFound(_))));
    let xrcd = core.alloc_xrcd(b.device).unwrap();
    assert!(matches!(core.create_xrc_srq(b.pd, SRQ, xrcd, a.recv_cq), Err(ControlError::NotFound(_))));
    core.create_xrc_srq(b.pd, SRQ, xrcd, b.recv_cq).unwrap();
    let target = core.create_xrc_target(xrcd).unwrap();
    core.destroy_device(now, b.device);
    assert!(matches!(core.dealloc_xrcd(xrcd), Err(ControlError::NotFound(_))));
    assert!(core.query_qp(target).is_err());
    core.dealloc_xrcd(foreign).unwrap();
}
