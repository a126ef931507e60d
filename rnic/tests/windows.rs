//! Memory windows and invalidation, on both paths (IBA 10.6.7, `ibv_bind_mw(3)`, `ibv_post_send(3)`).

mod harness;

use emtt::Access;
use harness::link::Faults;
use harness::*;
use rnic::*;
use roce::Rkey;

const START: u64 = BASE + 0x1000;
const LEN: u64 = 8192;

/// What the owner's next key for a window is, as `ibv_inc_rkey` has it.
fn next(key: Rkey) -> Rkey {
    Rkey(key.0 & !0xFF | key.0.wrapping_add(1) & 0xFF)
}

fn window(world: &mut World, end: &End, kind: WindowKind) -> Rkey {
    world.nics[end.nic].alloc_mw(end.pd, kind).unwrap()
}

/// Eight KiB of the end's memory, for peers to write.
fn binding(end: &End, window: Rkey) -> BindWindow {
    let (rkey, lkey, access) = (next(window), end.mr.lkey, Access::REMOTE_WRITE);
    BindWindow { window, rkey, lkey, addr: START, len: LEN, access, zero_based: false }
}

fn bind(world: &mut World, end: &End, binding: BindWindow) -> Completion {
    world.send(end, 50, SendOp::BindWindow(binding), &[]);
    world.run();
    let sent = world.sent(end);
    assert_eq!((ids(&sent), sent[0].opcode, sent[0].byte_len), (vec![50], Opcode::BindWindow, 0));
    sent[0]
}

fn write_to(rkey: Rkey, addr: u64) -> SendOp {
    SendOp::Write { remote_addr: addr, rkey, imm: None }
}

/// One request from `a`, and its status; the pair is connected anew before it.
fn attempt(world: &mut World, (a, b): (&End, &End), op: SendOp, len: u32) -> Status {
    world.reconnect(a, b);
    world.recv(b, 9, &[b.at(0, 100)]);
    world.send(a, 1, op, &[a.at(0, len)]);
    world.run();
    world.received(b);
    world.sent(a)[0].status
}

#[test]
fn a_bound_window_is_reached_by_its_key_and_no_further() {
    use Status::*;
    for route in BOTH {
        for kind in [WindowKind::One, WindowKind::Two] {
            let (mut world, a, b) = World::pair(Setup::new(route));
            let key = window(&mut world, &b, kind);
            assert_eq!(attempt(&mut world, (&a, &b), write_to(key, START), 1), RemoteAccessError, "bound to nothing");
            world.reconnect(&a, &b);
            let good = binding(&b, key);
            assert_eq!(bind(&mut world, &b, good).status, Success, "{route:?} {kind:?}");
            for (op, len, wanted) in [
                (write_to(good.rkey, START), LEN as u32, Success),
                (write_to(good.rkey, START + LEN - 1), 1, Success),
                (write_to(good.rkey, START - 1), 1, RemoteAccessError),
                (write_to(good.rkey, START), LEN as u32 + 1, RemoteAccessError),
                (write_to(key, START), 1, RemoteAccessError),
                (SendOp::Read { remote_addr: START, rkey: good.rkey }, 1, RemoteAccessError),
                (
                    SendOp::Atomic { remote_addr: START, rkey: good.rkey, op: AtomicOp::FetchAdd { add: 1 } },
                    8,
                    RemoteAccessError,
                ),
            ] {
                assert_eq!(attempt(&mut world, (&a, &b), op, len), wanted, "{route:?} {kind:?} {op:?}");
            }
            let source = world.bytes(&a, 1, LEN as usize - 1);
            assert_bytes(&world.bytes(&b, 0x1001, LEN as usize - 1)[..source.len() - 1], &source[..source.len() - 1]);
        }
    }
}

/// A window of type 2 belongs to the queue pair that bound it, one of type 1 to the domain; neither is a local key.
#[test]
fn who_reaches_a_window() {
    for route in BOTH {
        for (kind, wanted) in [(WindowKind::One, Status::Success), (WindowKind::Two, Status::RemoteAccessError)] {
            let (mut world, a, b) = World::pair(Setup::new(route));
            let key = window(&mut world, &b, kind);
            let good = binding(&b, key);
            bind(&mut world, &b, good);
            let local = LocalBuffer::Keyed { lkey: roce::Lkey(good.rkey.0), addr: START, len: 8 };
            let (a2, b2) = (End { qpn: world.queue_pair(&a), ..a }, End { qpn: world.queue_pair(&b), ..b });
            world.connect(&a2, &b2);
            world.send(&a2, 1, write_to(good.rkey, START), &[a.at(0, 8)]);
            world.run();
            assert_eq!(statuses(&world.sent(&a2)), [wanted], "{route:?} {kind:?}");
            world.send(&b, 2, write(&a, 0), &[local]);
            world.run();
            assert_eq!(statuses(&world.sent(&b)), [Status::LocalProtectionError], "{route:?} {kind:?}");
            // It ends with its queue pair, if it is of type 2.
            world.nics[b.nic].destroy_qp(world.now, b.qpn).unwrap();
            let dereg = world.nics[b.nic].dereg_mr(b.mr.lkey);
            assert_eq!(dereg.is_ok(), kind == WindowKind::Two, "{route:?} {kind:?} {dereg:?}");
        }
    }
}

#[test]
fn a_region_lives_as_long_as_windows_are_bound_to_it() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup::new(route));
        let key = window(&mut world, &b, WindowKind::One);
        let good = binding(&b, key);
        bind(&mut world, &b, good);
        let init = MrInit { iova: BASE, access: Access::all(), runs: runs(b.memory, MEMORY) };
        let core = &mut world.nics[b.nic];
        assert!(matches!(core.dereg_mr(b.mr.lkey), Err(ControlError::Busy(_))));
        assert!(matches!(core.rereg_mr(b.mr.lkey, b.pd, init), Err(ControlError::Busy(_))));
        assert!(matches!(core.dealloc_pd(b.pd), Err(ControlError::Busy(_))));
        assert!(matches!(core.dealloc_mw(b.pd, good.rkey), Err(ControlError::NotFound(_))), "it is named by its first key");
        assert_eq!(attempt(&mut world, (&a, &b), write_to(good.rkey, START), 8), Status::Success);
        world.nics[b.nic].dealloc_mw(b.pd, key).unwrap();
        assert_eq!(attempt(&mut world, (&a, &b), write_to(good.rkey, START), 8), Status::RemoteAccessError);
        world.nics[b.nic].dereg_mr(b.mr.lkey).unwrap();
        // Type 1 is unbound by binding it to nothing.
        let (mut world, a, b) = World::pair(Setup::new(route));
        let key = window(&mut world, &b, WindowKind::One);
        bind(&mut world, &b, binding(&b, key));
        assert_eq!(bind(&mut world, &b, BindWindow { len: 0, ..binding(&b, next(key)) }).status, Status::Success);
        assert_eq!(attempt(&mut world, (&a, &b), write_to(next(next(key)), START), 8), Status::RemoteAccessError);
        world.nics[b.nic].dereg_mr(b.mr.lkey).unwrap();
        // A device ends with all of it.
        bind_all_and_destroy(route);
    }
}

fn bind_all_and_destroy(route: Route) {
    let (mut world, a, b) = World::pair(Setup::new(route));
    for kind in [WindowKind::One, WindowKind::Two] {
        let key = window(&mut world, &b, kind);
        bind(&mut world, &b, binding(&b, key));
    }
    world.nics[b.nic].destroy_device(world.now, b.device);
    assert!(world.nics[b.nic].query_qp(b.qpn).is_err() && world.nics[a.nic].query_qp(a.qpn).is_ok());
}

/// What cannot be bound fails the request and its queue pair; what was bound stays.
#[test]
fn wrong_bindings_fail() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup::new(route));
        let (one, two) = (window(&mut world, &b, WindowKind::One), window(&mut world, &b, WindowKind::Two));
        let pd = world.nics[b.nic].alloc_pd(b.device).unwrap();
        let foreign = world.nics[b.nic].alloc_mw(pd, WindowKind::One).unwrap();
        bind(&mut world, &b, binding(&b, one));
        bind(&mut world, &b, binding(&b, two));
        for wrong in [
            binding(&b, foreign),
            binding(&b, two),
            BindWindow { rkey: Rkey(one.0 ^ 0x100), ..binding(&b, one) },
            BindWindow { lkey: roce::Lkey(b.mr.lkey.0 ^ 1), ..binding(&b, one) },
            BindWindow { len: MEMORY as u64, ..binding(&b, one) },
            BindWindow { addr: BASE - 1, ..binding(&b, one) },
            BindWindow { zero_based: true, ..binding(&b, one) },
            BindWindow { access: Access::LOCAL_WRITE, ..binding(&b, one) },
        ] {
            world.reconnect(&a, &b);
            world.send(&b, 1, write(&a, 0), &[b.at(0, 3000)]);
            world.send(&b, 2, SendOp::BindWindow(wrong), &[]);
            world.send(&b, 3, write(&a, 0), &[b.at(0, 8)]);
            world.run();
            let sent = world.sent(&b);
            assert_eq!(statuses(&sent), [Status::Success, Status::MwBindError, Status::FlushError], "{route:?} {wrong:?}");
            assert_eq!((sent[1].opcode, sent[1].vendor_err), (Opcode::BindWindow, vendor_err::BIND_WINDOW));
            for key in [one, two] {
                assert_eq!(
                    attempt(&mut world, (&a, &b), write_to(next(key), START), 8),
                    Status::Success,
                    "{route:?} {wrong:?}"
                );
            }
        }
        let counters = world.counters(&b);
        assert_eq!(counters.send_err, 8);
        let buffers = world.try_send(&b, 9, SendOp::BindWindow(binding(&b, one)), &[b.at(0, 8)]);
        assert_eq!(buffers, Err(PostError::Invalid), "there is nothing to send");
    }
}

/// Whoever gets a key in a message can use it at once, and messages around it keep their order, also when packets are lost.
#[test]
fn a_key_may_be_sent_right_behind_its_binding() {
    for route in BOTH {
        for loss in [0.0, 0.1] {
            let (mut world, a, b) = World::pair(Setup::new(route));
            world.faults(Faults { loss, ..Faults::default() });
            let key = window(&mut world, &b, WindowKind::One);
            let mut latest = key;
            for round in 0..5 {
                world.recv(&a, 100 + round, &[a.at(0, 3000)]);
                world.send(&b, 10 * round, read(&a, 0x8000), &[b.at(0x10_0000, 5000)]);
                let bound = binding(&b, latest);
                world.send(&b, 10 * round + 1, SendOp::BindWindow(bound), &[]);
                world.send(&b, 10 * round + 2, send(), &[b.at(0, 3000)]);
                latest = bound.rkey;
            }
            let mut received = Vec::new();
            while received.len() < 5 {
                world.run_for(std::time::Duration::from_micros(20));
                received.extend(world.received(&a));
            }
            world.send(&a, 1, write_to(latest, START), &[a.at(0x2000, 8)]);
            world.run();
            let sent = world.sent(&b);
            let wanted: Vec<u64> = (0..5).flat_map(|round| (0..3).map(move |n| 10 * round + n)).collect();
            assert_eq!(ids(&sent), wanted, "{route:?} {loss}");
            assert!(sent.iter().all(|done| done.status == Status::Success));
            assert_eq!(statuses(&world.sent(&a)), [Status::Success], "{route:?} {loss}");
        }
    }
}

/// The owner or its peer takes back what a window of type 2 gives. It can be bound anew then.
#[test]
fn windows_of_type_2_are_invalidated_from_both_sides() {
    for route in BOTH {
        for by_peer in [false, true] {
            let (mut world, a, b) = World::pair(Setup::new(route));
            let mut key = window(&mut world, &b, WindowKind::Two);
            for round in 0..3 {
                let good = binding(&b, key);
                key = good.rkey;
                world.reconnect(&a, &b);
                assert_eq!(bind(&mut world, &b, good).status, Status::Success, "{route:?} round {round}");
                world.send(&a, 1, write_to(key, START), &[a.at(0, 8)]);
                world.recv(&b, 7, &[b.at(0, 100)]);
                if by_peer {
                    world.send(&a, 2, SendOp::Send { imm: None, invalidate: Some(key) }, &[a.at(0, 60)]);
                    world.run();
                    let got = world.received(&b)[0];
                    let wanted = (Status::Success, CompletionFlags::WITH_INV, key.0.to_be_bytes(), 60);
                    assert_eq!((got.status, got.flags, got.imm, got.byte_len), wanted, "{route:?}");
                } else {
                    world.run();
                    world.send(&b, 2, write(&a, 0), &[b.at(0, 5000)]);
                    world.send(&b, 3, SendOp::LocalInvalidate { key }, &[]);
                    world.run();
                    let sent = world.sent(&b);
                    assert_eq!(statuses(&sent), [Status::Success; 2], "{route:?}");
                    assert_eq!(sent[1].opcode, Opcode::LocalInvalidate);
                }
                assert!(world.sent(&a).iter().all(|done| done.status == Status::Success), "{route:?}");
                assert_eq!(attempt(&mut world, (&a, &b), write_to(key, START), 8), Status::RemoteAccessError, "{route:?}");
            }
            world.nics[b.nic].dereg_mr(b.mr.lkey).unwrap();
        }
    }
}

/// Keys that cannot be taken back: of a region, of a window of type 1, of another queue pair's or domain's window, of nothing.
#[test]
fn what_cannot_be_invalidated() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup::new(route));
        let one = window(&mut world, &b, WindowKind::One);
        bind(&mut world, &b, binding(&b, one));
        let others = window(&mut world, &b, WindowKind::Two);
        let (a2, b2) = (End { qpn: world.queue_pair(&a), ..a }, End { qpn: world.queue_pair(&b), ..b });
        world.connect(&a2, &b2);
        bind(&mut world, &b2, binding(&b, others));
        let unbound = window(&mut world, &b, WindowKind::Two);
        for key in [b.mr.rkey, next(one), next(others), unbound, bad_rkey(&b), Rkey(0)] {
            let by_peer = SendOp::Send { imm: None, invalidate: Some(key) };
            world.reconnect(&a, &b);
            world.recv(&b, 7, &[b.at(0, 100)]);
            world.send(&a, 1, by_peer, &[a.at(0, 60)]);
            world.run();
            assert_eq!(statuses(&world.sent(&a)), [Status::RemoteAccessError], "{route:?} {key:?}");
            let got = world.received(&b)[0];
            assert_eq!((got.status, got.vendor_err), (Status::LocalProtectionError, vendor_err::INVALIDATE), "{route:?}");
            world.reconnect(&a, &b);
            world.send(&b, 1, SendOp::LocalInvalidate { key }, &[]);
            world.run();
            let sent = world.sent(&b);
            assert_eq!(
                (sent[0].status, sent[0].vendor_err),
                (Status::LocalQpOperationError, vendor_err::INVALIDATE),
                "{route:?}"
            );
            assert_eq!(world.state(&b), QpState::Err);
        }
        assert_eq!(attempt(&mut world, (&a, &b), write(&b, 0), 8), Status::Success, "the region lives");
        assert_eq!(attempt(&mut world, (&a, &b), write_to(next(one), START), 8), Status::Success, "the window lives");
    }
}

/// A region that its driver named is invalidated by its owner, unless a window is bound to it, once what was posted before has
/// completed: here, data that have to be sent again.
#[test]
fn named_regions_are_invalidated_behind_what_uses_them() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup::new(route));
        world.faults(Faults { loss: 0.2, ..Faults::default() });
        let name = Rkey(0x200);
        let init = MrInit { iova: BASE, access: Access::all(), runs: runs(a.memory, MEMORY) };
        let mr = world.nics[a.nic].reg_mr_named(a.pd, init, name).unwrap();
        let key = window(&mut world, &a, WindowKind::Two);
        bind(&mut world, &a, BindWindow { lkey: roce::Lkey(name.0), ..binding(&a, key) });
        let source = LocalBuffer::Keyed { lkey: roce::Lkey(name.0), addr: BASE, len: 50_000 };
        world.send(&a, 1, write(&b, 0), &[source]);
        world.send(&a, 2, SendOp::LocalInvalidate { key: next(key) }, &[]);
        world.send(&a, 3, SendOp::LocalInvalidate { key: name }, &[]);
        world.send(&a, 4, write(&b, 0), &[source]);
        world.run();
        use Status::*;
        assert_eq!(statuses(&world.sent(&a)), [Success, Success, Success, LocalProtectionError], "{route:?}");
        assert!(world.nics[a.nic].dereg_mr(mr.lkey).is_err(), "{route:?}: it is gone");

        let (mut world, a, _) = World::pair(Setup::new(route));
        let init = MrInit { iova: BASE, access: Access::all(), runs: runs(a.memory, MEMORY) };
        let mr = world.nics[a.nic].reg_mr_named(a.pd, init, name).unwrap();
        let key = window(&mut world, &a, WindowKind::One);
        bind(&mut world, &a, BindWindow { lkey: roce::Lkey(name.0), ..binding(&a, key) });
        world.send(&a, 1, SendOp::LocalInvalidate { key: name }, &[]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [LocalQpOperationError], "{route:?}: a window is bound to it");
        world.nics[a.nic].dealloc_mw(a.pd, key).unwrap();
        world.nics[a.nic].dereg_mr(mr.lkey).unwrap();
    }
}

/// Unreliable connections bind too, and complete in order; a wrong binding fails their send queue alone. Datagrams have no windows.
#[test]
fn unreliable_services() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup { qp_type: QpType::Uc, ..Setup::new(route) });
        let key = window(&mut world, &b, WindowKind::Two);
        world.send(&b, 1, write(&a, 0), &[b.at(0, 3000)]);
        world.send(&b, 2, SendOp::BindWindow(binding(&b, key)), &[]);
        world.send(&b, 3, write(&a, 0), &[b.at(0, 3000)]);
        world.run();
        assert_eq!((ids(&world.sent(&b)), world.state(&b)), (vec![1, 2, 3], QpState::Rts), "{route:?}");
        let wanted = world.bytes(&a, 0x100, 4000);
        world.send(&a, 1, write_to(next(key), START), &[a.at(0x100, 4000)]);
        world.run();
        assert_bytes(&world.bytes(&b, 0x1000, 4000), &wanted);
        world.send(&b, 4, SendOp::LocalInvalidate { key: next(key) }, &[]);
        world.send(&b, 5, SendOp::LocalInvalidate { key: next(key) }, &[]);
        world.run();
        assert_eq!(statuses(&world.sent(&b)), [Status::Success, Status::LocalQpOperationError], "{route:?}");
        assert_eq!(world.state(&b), QpState::Sqe, "{route:?}");

        let (mut world, a, _) = World::datagram_pair(route);
        let key = window(&mut world, &a, WindowKind::One);
        for op in [SendOp::BindWindow(binding(&a, key)), SendOp::LocalInvalidate { key }] {
            assert_eq!(world.try_send(&a, 1, op, &[]), Err(PostError::Invalid));
        }
    }
}
