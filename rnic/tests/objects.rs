//! Objects and who holds whom: creation, limits, busy objects, destruction with work under way, CQ overrun, ports.

mod harness;

use emtt::Access;
use harness::*;
use rnic::*;
use roce::{Gid, Mtu};
use std::collections::BTreeSet;
use std::net::IpAddr;

fn gid(ip: &str) -> Gid {
    Gid::from(ip.parse::<IpAddr>().unwrap())
}

#[test]
fn devices_need_their_own_unicast_addresses() {
    let mut core = Rnic::new(Config::default());
    let mut create =
        |gids: &[&str]| core.create_device(DeviceInit { gids: gids.iter().map(|ip| gid(ip)).collect(), mtu: Mtu::B1024 });
    let first = create(&["192.0.2.1", "fe80::1"]).unwrap();
    for bad in [&[][..], &["0.0.0.0"], &["239.0.0.1"], &["192.0.2.1"], &["192.0.2.9", "192.0.2.9"]] {
        assert!(matches!(create(bad), Err(ControlError::Invalid(_))), "{bad:?}");
    }
    create(&["192.0.2.9"]).expect("a refused device leaves nothing behind");
    core.destroy_device(roce::Instant::ZERO, first);
    core.create_device(DeviceInit { gids: vec![gid("fe80::1")], mtu: Mtu::B1024 }).expect("its addresses are free again");
}

#[test]
fn objects_in_use_cannot_go() {
    let (mut world, a, _) = World::pair(Setup::new(Route::Local));
    let core = &mut world.nics[0];
    assert_eq!(core.dealloc_pd(a.pd), Err(ControlError::Busy("protection domain")));
    assert_eq!(core.destroy_cq(a.send_cq), Err(ControlError::Busy("completion queue")));
    core.destroy_qp(world.now, a.qpn).unwrap();
    assert_eq!(core.destroy_qp(world.now, a.qpn), Err(ControlError::NotFound("queue pair")));
    assert_eq!(core.dealloc_pd(a.pd), Err(ControlError::Busy("protection domain")), "its region is left");
    core.dereg_mr(a.mr.lkey).unwrap();
    core.dealloc_pd(a.pd).unwrap();
    core.destroy_cq(a.send_cq).unwrap();
    core.destroy_cq(a.recv_cq).unwrap();
    assert_eq!(core.destroy_cq(a.recv_cq), Err(ControlError::NotFound("completion queue")));
    assert_eq!(core.dealloc_pd(a.pd), Err(ControlError::NotFound("protection domain")));
}

/// HG-12: objects of one device cannot be put together with those of another.
#[test]
fn devices_do_not_share_objects() {
    let (mut world, a, b) = World::pair(Setup::new(Route::Local));
    let init = |send_cq, recv_cq| QpInit {
        qp_type: QpType::Rc,
        send_cq,
        recv_cq,
        srq: None,
        caps: QpCaps { max_send_wr: 1, ..QpCaps::default() },
        all_signaled: false,
    };
    let core = &mut world.nics[0];
    assert!(core.create_qp(a.pd, init(a.send_cq, b.recv_cq)).is_err());
    assert!(core.create_qp(a.pd, init(b.send_cq, a.recv_cq)).is_err());
    assert!(core.create_qp(PdId(a.pd.0 ^ 1 << 31), init(a.send_cq, a.recv_cq)).is_err());
    assert!(core.create_qp(a.pd, init(CqId(0), CqId(u32::MAX))).is_err());
    for caps in [
        QpCaps { max_send_wr: limits::MAX_QP_WR + 1, ..QpCaps::default() },
        QpCaps { max_recv_wr: u32::MAX, ..QpCaps::default() },
        QpCaps { max_send_sge: limits::MAX_SGE + 1, ..QpCaps::default() },
        QpCaps { max_recv_sge: u32::MAX, ..QpCaps::default() },
        QpCaps { max_inline_data: u32::MAX, ..QpCaps::default() },
    ] {
        assert!(matches!(core.create_qp(a.pd, QpInit { caps, ..init(a.send_cq, a.recv_cq) }), Err(ControlError::Invalid(_))));
    }
    core.destroy_qp(world.now, a.qpn).unwrap();
    core.dereg_mr(a.mr.lkey).unwrap();
    core.dealloc_pd(a.pd).expect("refused calls hold nothing");
}

/// QPNs are unique, not in a row, never reserved, and do not come back at once.
#[test]
fn queue_pair_numbers() {
    let (mut world, a, _) = World::pair(Setup::new(Route::Local));
    let mut seen = BTreeSet::new();
    let mut in_a_row = 0;
    let mut last = 0;
    for _ in 0..3000 {
        let qpn = world.queue_pair(&a);
        assert!(qpn.get() > 1 && qpn.get() < 0xFF_FFFF);
        assert!(seen.insert(qpn.get()), "{qpn} came back");
        in_a_row += usize::from(qpn.get() == last + 1);
        last = qpn.get();
        world.nics[0].destroy_qp(world.now, qpn).unwrap();
    }
    // Slots follow one another; of 20 bits, 16 name the slot, so that one number in 15 follows its predecessor.
    assert!(in_a_row < 3000 / 8, "{in_a_row}");
}

/// When a queue pair is destroyed nothing of it comes out any more, and its peer ends with an error.
#[test]
fn destroying_a_queue_pair_under_way() {
    for route in BOTH {
        for destroy_sender in [true, false] {
            let (mut world, a, b) = World::pair(Setup { retry_cnt: 1, ..Setup::new(route) });
            for n in 0..20 {
                world.recv(&b, n, &[b.at(0, 2 << 20)]);
                world.send(&a, n, send(), &[a.at(0, 200_000)]);
            }
            world.step_some(6);
            let (gone, left) = if destroy_sender { (a, b) } else { (b, a) };
            world.nics[gone.nic].destroy_qp(world.now, gone.qpn).unwrap();
            world.run();
            assert!(world.completions.iter().all(|(_, done)| done.qpn != gone.qpn), "{route:?}");
            if !destroy_sender {
                let sent = world.sent(&left);
                assert_eq!(sent.len(), 20);
                assert!(sent.iter().any(|done| done.status == Status::RetryExceededError), "{route:?}");
            }
            assert!(world.nics[gone.nic].query_qp(gone.qpn).is_err());
            if destroy_sender {
                assert_eq!(world.nics[gone.nic].poll_timeout(), None, "{route:?}: its timer went with it");
            }
        }
    }
}

/// A destroyed device takes all its objects along; the peer's retries run out.
#[test]
fn destroying_a_device_under_way() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup::new(route));
        world.send(&a, 1, read(&b, 0), &[a.at(0, 3 << 20)]);
        world.step_some(5);
        let now = world.now;
        world.nics[b.nic].destroy_device(now, b.device);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::RetryExceededError], "{route:?}");
        let core = &mut world.nics[b.nic];
        assert!(core.counters(b.device).is_none() && core.query_qp(b.qpn).is_err());
        assert_eq!(core.dereg_mr(b.mr.lkey), Err(ControlError::NotFound("region")));
        assert_eq!(core.dealloc_pd(b.pd), Err(ControlError::NotFound("protection domain")));
        core.destroy_device(now, b.device);
        assert_eq!(core.alloc_pd(b.device), Err(ControlError::NotFound("device")));
    }
}

/// A completion queue that overran: one event, its queue pairs in ERR, nothing else harmed, no completion of it any more.
#[test]
fn cq_overrun_stays_with_its_queue_pairs() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup::new(route));
        world.recv(&a, 5, &[a.at(0, 8)]);
        world.send(&a, 1, write(&b, 0), &[a.at(0, 8)]);
        let now = world.now;
        world.nics[a.nic].cq_overrun(now, a.send_cq);
        world.nics[a.nic].cq_overrun(now, a.send_cq);
        world.send(&a, 2, write(&b, 0), &[a.at(0, 8)]);
        world.run();
        assert_eq!(world.events, [AsyncEvent::CqError(a.send_cq), AsyncEvent::QpFatal(a.qpn)], "{route:?}");
        assert!(world.sent(&a).is_empty());
        assert_eq!(statuses(&world.received(&a)), [Status::FlushError], "the other queue works");
        assert_eq!((world.state(&a), world.state(&b)), (QpState::Err, QpState::Rts));
    }
}

/// ST-08: port down and up: events in order, queue pairs keep their state, traffic resumes if the retries last, and otherwise
/// ends with an error; queue pairs made afterwards work.
#[test]
fn st_08_port_down_and_up() {
    for route in BOTH {
        for outage_ms in [2, 60_000] {
            let (mut world, a, b) = World::pair(Setup::new(route));
            let down = |world: &mut World, port| {
                let now = world.now;
                world.nics[b.nic].set_port(now, b.device, port);
            };
            down(&mut world, None);
            down(&mut world, None);
            world.send(&a, 1, write(&b, 0), &[a.at(0, 9000)]);
            world.send(&b, 2, write(&a, 0x8000), &[b.at(0, 9000)]);
            world.send(&b, 3, read(&a, 0x8000), &[b.at(0x1_0000, 9000)]);
            world.run_for(std::time::Duration::from_millis(outage_ms));
            let is_short = outage_ms < 10;
            assert_eq!((world.state(&a) == QpState::Rts, world.state(&b) == QpState::Rts), (is_short, is_short), "{route:?}");
            down(&mut world, Some(Mtu::B4096));
            world.run();
            let events = [AsyncEvent::PortError(b.device), AsyncEvent::PortActive(b.device, Mtu::B4096)];
            assert_eq!(world.events, events, "{route:?}");
            let wanted = if is_short { Status::Success } else { Status::RetryExceededError };
            assert_eq!(statuses(&world.sent(&a)), [wanted], "{route:?} {outage_ms} ms");
            assert_eq!(world.sent(&b)[0].status, wanted);
            world.reconnect(&a, &b);
            world.send(&a, 9, write(&b, 0), &[a.at(0, 9000)]);
            world.run();
            assert_eq!(statuses(&world.sent(&a)), [Status::Success]);
        }
    }
}

/// HG-08: creating until refusal, failing on purpose and ending the device leaves nothing that a new device would notice.
#[test]
fn nothing_leaks_over_many_devices() {
    let mut core = Rnic::new(Config::default());
    for round in 0..50 {
        let device = core.create_device(DeviceInit { gids: vec![gid("192.0.2.1")], mtu: Mtu::B1024 }).unwrap();
        let pd = core.alloc_pd(device).unwrap();
        let cq = core.create_cq(device).unwrap();
        let init = QpInit {
            qp_type: QpType::Rc,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            caps: QpCaps { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
            all_signaled: true,
        };
        for _ in 0..200 {
            core.create_qp(pd, init).unwrap();
        }
        assert!(core.create_qp(pd, QpInit { recv_cq: CqId(1), ..init }).is_err());
        let runs = vec![emtt::Segment { owner: emtt::Owner::Host(emtt::MemId(1)), addr: 0, len: 10 }];
        let mr = core.reg_mr(pd, MrInit { iova: 0, access: Access::all(), runs }).unwrap();
        core.destroy_device(roce::Instant::ZERO, device);
        assert!(core.dereg_mr(mr.lkey).is_err(), "round {round}");
        assert!(core.poll_event().is_none() && core.poll_completion().is_none() && core.poll_timeout().is_none());
    }
}
