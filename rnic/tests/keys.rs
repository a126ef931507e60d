//! Remote keys, rights, ranges and alignment (MR-01 to MR-15), and messages without bytes (RC-01), on both paths.

mod harness;

use emtt::Access;
use harness::*;
use rnic::*;
use roce::{Lkey, Rkey};

/// Runs one request that must fail at the responder.
fn refused(
    route: Route,
    access: Access,
    make: impl Fn(&mut World, &End, &End) -> (SendOp, Vec<LocalBuffer>),
) -> (Status, World, End) {
    let (mut world, a, b) = World::pair(Setup { access, ..Setup::new(route) });
    let before = world.bytes(&b, 0, MEMORY);
    let (op, buffers) = make(&mut world, &a, &b);
    world.send(&a, 1, op, &buffers);
    world.send(&a, 2, write(&b, 0), &[a.at(0, 8)]);
    world.run();
    let sent = world.sent(&a);
    assert_eq!(ids(&sent), [1, 2]);
    assert_eq!(sent[1].status, Status::FlushError);
    assert_eq!((world.state(&a), world.state(&b)), (QpState::Err, QpState::Err), "{route:?}");
    assert_bytes(&world.bytes(&b, 0, MEMORY), &before);
    (sent[0].status, world, b)
}

/// MR-01: a WRITE or READ of several packets that ends one byte past the region is refused before its first byte moves.
#[test]
fn mr_01_the_whole_range_is_checked_first() {
    for route in BOTH {
        for is_write in [true, false] {
            let (status, world, b) = refused(route, Access::all(), |_, a, b| {
                let offset = MEMORY as u64 - 2999;
                let op = if is_write { write(b, offset) } else { read(b, offset) };
                (op, vec![a.at(0, 3000)])
            });
            assert_eq!(status, Status::RemoteAccessError, "{route:?}");
            assert!(world.events.contains(&AsyncEvent::QpAccessError(b.qpn)));
        }
    }
}

/// MR-06: every combination of rights of the region against every operation.
#[test]
fn mr_06_rights_of_the_region() {
    for route in BOTH {
        for bits in 0..16 {
            let access = Access::from_bits(bits).unwrap();
            let (mut world, a, b) = World::pair(Setup::new(route));
            let init = MrInit { iova: BASE, access, runs: runs(b.memory, MEMORY) };
            let Ok(mr) = world.nics[b.nic].reg_mr(b.pd, init) else {
                assert!(access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC));
                assert!(!access.contains(Access::LOCAL_WRITE));
                continue;
            };
            let b = End { mr, ..b };
            let ops = [
                (write(&b, 0), Access::REMOTE_WRITE),
                (read(&b, 0), Access::REMOTE_READ),
                (fetch_add(&b, 0, 1), Access::REMOTE_ATOMIC),
                (compare_swap(&b, 0, 1, 2), Access::REMOTE_ATOMIC),
            ];
            for (op, right) in ops {
                world.reconnect(&a, &b);
                world.send(&a, 1, op, &[a.at(0, 8)]);
                world.run();
                let wanted = if access.contains(right) { Status::Success } else { Status::RemoteAccessError };
                assert_eq!(statuses(&world.sent(&a)), [wanted], "{route:?} {access:?} {op:?}");
            }
        }
    }
}

/// Rights of the connection come before those of the region: what the queue pair does not allow is an invalid request.
#[test]
fn rights_of_the_queue_pair() {
    type Make = fn(&mut World, &End, &End) -> (SendOp, Vec<LocalBuffer>);
    let cases: [(Access, Make); 3] = [
        (Access::REMOTE_WRITE, |_, a, b| (write(b, 0), vec![a.at(0, 8)])),
        (Access::REMOTE_READ, |_, a, b| (read(b, 0), vec![a.at(0, 8)])),
        (Access::REMOTE_ATOMIC, |_, a, b| (fetch_add(b, 0, 1), vec![a.at(0, 8)])),
    ];
    for route in BOTH {
        for (right, make) in cases {
            let (status, world, b) = refused(route, Access::all() - right, make);
            assert_eq!(status, Status::RemoteInvalidRequestError, "{route:?} {right:?}");
            assert!(world.events.contains(&AsyncEvent::QpRequestError(b.qpn)));
        }
    }
}

/// MR-08: a key of another protection domain of the same device. MR-04: a key that was deregistered, also when the same memory
/// is registered anew.
#[test]
fn mr_08_and_mr_04_foreign_and_stale_keys() {
    for route in BOTH {
        let (status, ..) = refused(route, Access::all(), |world, a, b| {
            let pd = world.nics[b.nic].alloc_pd(b.device).unwrap();
            let init = MrInit { iova: BASE, access: Access::all(), runs: runs(b.memory, MEMORY) };
            let mr = world.nics[b.nic].reg_mr(pd, init).unwrap();
            (write(&End { mr, ..*b }, 0), vec![a.at(0, 8)])
        });
        assert_eq!(status, Status::RemoteAccessError);
        let (status, ..) = refused(route, Access::all(), |world, a, b| {
            let init = MrInit { iova: BASE, access: Access::all(), runs: runs(b.memory, MEMORY) };
            let old = world.nics[b.nic].reg_mr(b.pd, init.clone()).unwrap();
            world.nics[b.nic].dereg_mr(old.lkey).unwrap();
            let new = world.nics[b.nic].reg_mr(b.pd, init).unwrap();
            assert_ne!(new, old);
            (write(&End { mr: old, ..*b }, 0), vec![a.at(0, 8)])
        });
        assert_eq!(status, Status::RemoteAccessError);
    }
}

/// MR-04: a freed key names nothing for thousands of registrations, and keys are not in a row.
#[test]
fn mr_04_keys_do_not_come_back() {
    let (mut world, _, b) = World::pair(Setup::new(Route::Local));
    let core = &mut world.nics[b.nic];
    let mut seen = std::collections::BTreeSet::new();
    let mut last = 0;
    let mut in_a_row = 0;
    for _ in 0..10_000 {
        let init = MrInit { iova: 0, access: Access::all(), runs: runs(b.memory, MEMORY) };
        let mr = core.reg_mr(b.pd, init).unwrap();
        assert!(seen.insert(mr.rkey.0), "{:#x} came back", mr.rkey.0);
        in_a_row += usize::from(mr.rkey.0 == last + 1);
        last = mr.rkey.0;
        core.dereg_mr(mr.lkey).unwrap();
        assert_eq!(core.dereg_mr(mr.lkey), Err(ControlError::NotFound("region")));
    }
    assert!(in_a_row < 100);
}

/// MR-11: an atomic whose address is not a multiple of 8, by remote address or by where the region begins.
#[test]
fn mr_11_atomics_are_aligned() {
    for route in BOTH {
        for offset in [1, 4] {
            let (status, ..) = refused(route, Access::all(), |_, a, b| (fetch_add(b, 64 + offset, 1), vec![a.at(0, 8)]));
            assert_eq!(status, Status::RemoteInvalidRequestError, "{route:?}");
        }
        let (status, ..) = refused(route, Access::all(), |world, a, b| {
            let mut part = runs(b.memory, MEMORY)[1];
            part.addr += 4;
            part.len -= 4;
            let init = MrInit { iova: BASE, access: Access::all(), runs: vec![part] };
            let mr = world.nics[b.nic].reg_mr(b.pd, init).unwrap();
            (fetch_add(&End { mr, ..*b }, 64, 1), vec![a.at(0, 8)])
        });
        assert_eq!(status, Status::RemoteInvalidRequestError, "{route:?}: aligned name, unaligned memory");
    }
}

/// MR-15: addresses count from the region's iova, and bounds are exact to the byte.
#[test]
fn mr_15_iova_and_exact_bounds() {
    for route in BOTH {
        for iova in [0, 0x1003, u64::MAX - 99] {
            let (mut world, a, b) = World::pair(Setup::new(route));
            let init = MrInit { iova, access: Access::all(), runs: runs(b.memory, 12 << 10)[..1].to_vec() };
            let mut init = init;
            init.runs[0].len = 100;
            let mr = world.nics[b.nic].reg_mr(b.pd, init).unwrap();
            let to = |offset: u64| SendOp::Write { remote_addr: iova.wrapping_add(offset), rkey: mr.rkey, imm: None };
            for (offset, len, good) in [(0, 100, true), (99, 1, true), (100, 1, false), (0, 101, false), (u64::MAX, 1, false)] {
                world.reconnect(&a, &b);
                world.send(&a, 1, to(offset), &[a.at(7, len)]);
                world.run();
                let wanted = if good { Status::Success } else { Status::RemoteAccessError };
                assert_eq!(statuses(&world.sent(&a)), [wanted], "{route:?} iova {iova:#x} {offset}+{len}");
            }
            assert_eq!(world.bytes(&b, 99, 1), world.bytes(&a, 7, 1));
        }
    }
}

/// RC-01: messages without bytes look at no key, but at the connection's rights, and take one packet sequence number.
#[test]
fn rc_01_messages_without_bytes() {
    let key = Rkey(0xDEAD_BEEF);
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup::new(route));
        world.recv(&b, 100, &[]);
        world.recv(&b, 101, &[LocalBuffer::Keyed { lkey: Lkey(1), addr: 0, len: 10 }]);
        world.send(&a, 1, SendOp::Read { remote_addr: 1, rkey: key }, &[]);
        world.send(&a, 2, SendOp::Write { remote_addr: 1, rkey: key, imm: None }, &[a.at(0, 0)]);
        world.send(&a, 3, SendOp::Write { remote_addr: 1, rkey: key, imm: Some([1; 4]) }, &[]);
        world.send(&a, 4, send(), &[]);
        world.run();
        let sent = world.sent(&a);
        assert_eq!(statuses(&sent), [Status::Success; 4], "{route:?}");
        assert!(sent.iter().all(|done| done.byte_len == 0));
        assert_eq!(ids(&world.received(&b)), [100, 101]);
        let psn = world.nics[b.nic].query_qp(b.qpn).unwrap().rq_psn;
        assert_eq!(psn.get(), 1004, "{route:?}: one PSN each");
        let (status, ..) = refused(route, Access::empty(), |_, _, _| (SendOp::Read { remote_addr: 1, rkey: key }, vec![]));
        assert_eq!(status, Status::RemoteInvalidRequestError);
    }
}

/// A region that is deregistered while a long WRITE and a long READ are under way ends them with a remote access error.
#[test]
fn key_revoked_under_way() {
    for route in BOTH {
        for is_write in [true, false] {
            let (mut world, a, b) = World::pair(Setup::new(route));
            let op = if is_write { write(&b, 0) } else { read(&b, 0) };
            world.send(&a, 1, op, &[a.at(0, 3 << 20)]);
            world.step_some(5);
            world.nics[b.nic].dereg_mr(b.mr.lkey).unwrap();
            world.run();
            assert_eq!(statuses(&world.sent(&a)), [Status::RemoteAccessError], "{route:?} write: {is_write}");
            assert_eq!(world.state(&b), QpState::Err);
        }
    }
}
