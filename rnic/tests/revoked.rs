//! Memory that is taken back under a live registration, as a GPU's is when its owner frees it: what touches it ends with an access or
//! protection error, at once or in the middle, its connection with it, and nothing else is hurt. And keys that others try.

mod harness;

use emtt::{Access, GpuId, Owner, Segment};
use harness::*;
use rnic::*;
use roce::{Lkey, Rkey};

/// Long enough to be under way for some steps.
const LEN: u32 = 1 << 20;

/// Registers all memory of an end once more, as a GPU's.
fn gpu_region(world: &mut World, end: &End) -> End {
    let owner = Owner::Gpu { device: GpuId(0), window: end.memory };
    let runs = vec![Segment { owner, addr: 0, len: MEMORY as u64 }];
    let mr = world.nics[end.nic].reg_mr(end.pd, MrInit { iova: BASE, access: Access::all(), runs }).unwrap();
    End { mr, ..*end }
}

#[test]
fn memory_that_is_revoked_ends_the_operation_and_its_connection_alone() {
    type Make = fn(&End) -> SendOp;
    let ops: [(&str, Make); 2] = [("write", |b| write(b, 0)), ("read", |b| read(b, 0))];
    for route in BOTH {
        for (name, op) in ops {
            for whose in ["peer", "own"] {
                for under_way in [false, true] {
                    let case = format!("{route:?}, {name}, {whose}, under way: {under_way}");
                    let (mut world, a, b) = World::pair(Setup::new(route));
                    // Another connection of the same devices, with the memory that stays.
                    let (a2, b2) = (End { qpn: world.queue_pair(&a), ..a }, End { qpn: world.queue_pair(&b), ..b });
                    world.connect(&a2, &b2);
                    let (ours, theirs) = (gpu_region(&mut world, &a), gpu_region(&mut world, &b));
                    let victim = if whose == "peer" { theirs } else { ours };
                    world.send(&ours, 1, op(&theirs), &[ours.at(0, LEN)]);
                    if under_way {
                        world.step_some(3);
                        assert!(world.sent(&a).is_empty(), "{case}: not over yet");
                    }
                    world.nics[victim.nic].revoke_mr(victim.mr.lkey).unwrap();
                    world.run();
                    let wanted = if whose == "peer" { Status::RemoteAccessError } else { Status::LocalProtectionError };
                    assert_eq!(statuses(&world.sent(&a)), [wanted], "{case}");
                    assert_eq!(world.state(&a), QpState::Err, "{case}");
                    if whose == "peer" {
                        assert_eq!(world.state(&b), QpState::Err, "{case}");
                        assert!(world.events.contains(&AsyncEvent::QpAccessError(b.qpn)), "{case}");
                        assert_eq!(world.counters(&b).access_refused, 1, "{case}");
                    }
                    world.send(&a2, 2, write(&b2, 64), &[a2.at(64, 8192)]);
                    world.run();
                    assert_eq!(statuses(&world.sent(&a2)), [Status::Success], "{case}");
                    assert_eq!((world.state(&a2), world.state(&b2)), (QpState::Rts, QpState::Rts), "{case}");
                    // The registration is still there, to be given other memory or to be ended.
                    let init = MrInit { iova: BASE, access: Access::all(), runs: runs(victim.memory, MEMORY) };
                    world.nics[victim.nic].rereg_mr(victim.mr.lkey, victim.pd, init).unwrap();
                    world.send(&a2, 3, write(&theirs, 64), &[ours.at(64, 8192)]);
                    world.run();
                    assert_eq!(statuses(&world.sent(&a2)), [Status::Success], "{case}");
                    world.nics[victim.nic].dereg_mr(victim.mr.lkey).unwrap();
                }
            }
        }
    }
}

/// A receive into memory that is gone: the sender hears that the other side could not take it, the receiver why.
#[test]
fn a_receive_into_memory_that_is_revoked() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup::new(route));
        let gpu = gpu_region(&mut world, &b);
        world.recv(&gpu, 7, &[gpu.at(0, 4096)]);
        world.nics[gpu.nic].revoke_mr(gpu.mr.lkey).unwrap();
        world.send(&a, 1, send(), &[a.at(0, 4096)]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::RemoteOperationalError], "{route:?}");
        assert_eq!(statuses(&world.received(&b)), [Status::LocalProtectionError], "{route:?}");
        assert_eq!(world.counters(&b).access_refused, 0, "it was no key of the peer's");
    }
}

/// A tenant tries the good key of another one on the same host, and keys around it: each is refused and counted where it arrived.
#[test]
fn keys_of_other_tenants_are_refused_and_counted() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup::new(route));
        let victim = world.end();
        let victim = End { nic: b.nic, ..victim };
        let init = MrInit { iova: BASE, access: Access::all(), runs: runs(victim.memory, MEMORY) };
        // Another protection domain of the peer's card.
        let pd = world.nics[b.nic].alloc_pd(b.device).unwrap();
        let theirs = world.nics[b.nic].reg_mr(pd, init).unwrap();
        let before = world.bytes(&victim, 0, MEMORY);
        for (tries, guess) in [0, 1, 2, 0x800, 0x1000, 0x2000].into_iter().enumerate() {
            world.reconnect(&a, &b);
            let key = theirs.rkey.0 ^ guess;
            let mr = Mr { lkey: Lkey(key), rkey: Rkey(key) };
            assert_ne!(mr, b.mr, "a key of its own is no guess");
            world.send(&a, 1, write(&End { mr, ..b }, 0), &[a.at(0, 64)]);
            world.run();
            assert_eq!(statuses(&world.sent(&a)), [Status::RemoteAccessError], "{route:?} {guess:#x}");
            assert_eq!(world.counters(&b).access_refused, tries as u64 + 1, "{route:?} {guess:#x}");
        }
        assert_bytes(&world.bytes(&victim, 0, MEMORY), &before);
    }
}
