//! Small SENDs, WRITEs and READs behind one another: copied together on the local path, and to the program as if each went by itself, on both.

mod harness;

use harness::*;
use rnic::*;

use roce::Rkey;
use std::time::Duration;

const MESSAGES: u64 = 50;

/// Where the n-th message comes from and goes to, and its length: no two are alike, and some have no bytes.
fn message(n: u64) -> (u64, u64, u32) {
    (n * 100, 0x10_0000 + (MESSAGES - n) * 128, (n % 9 * 7) as u32)
}

fn post(world: &mut World, a: &End, b: &End) {
    for n in 0..MESSAGES {
        let (from, to, len) = message(n);
        // More than one buffer, so that buffers and messages do not end at the same places.
        let half = len / 2;
        world.send(a, n, write(b, to), &[a.at(from, half), a.at(from + u64::from(half), len - half)]);
    }
}

fn arrived(world: &mut World, a: &End, b: &End, n: u64) -> bool {
    let (from, to, len) = message(n);
    world.bytes(a, from as usize, len as usize) == world.bytes(b, to as usize, len as usize)
}

#[test]
fn all_arrive_and_complete_in_order() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup::new(route));
        post(&mut world, &a, &b);
        world.run();
        let sent = world.sent(&a);
        assert_eq!(ids(&sent), (0..MESSAGES).collect::<Vec<_>>(), "{route:?}");
        for (n, done) in sent.iter().enumerate() {
            assert_eq!((done.status, done.opcode, done.queue_index), (Status::Success, Opcode::Write, n as u32));
            assert_eq!(done.byte_len, message(n as u64).2);
            assert!(arrived(&mut world, &a, &b, n as u64), "{route:?} message {n}");
        }
        // The connection goes on where it should.
        world.recv(&b, 1, &[]);
        world.send(&a, 99, send(), &[]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::Success]);
    }
}

#[test]
fn all_reads_arrive_and_complete_in_order() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup::new(route));
        for n in 0..MESSAGES {
            let (to, from, len) = message(n);
            world.send(&a, n, read(&b, from), &[a.at(to, len / 2), a.at(to + u64::from(len / 2), len - len / 2)]);
        }
        world.run();
        let sent = world.sent(&a);
        assert_eq!(ids(&sent), (0..MESSAGES).collect::<Vec<_>>(), "{route:?}");
        assert!(sent.iter().all(|done| (done.status, done.opcode) == (Status::Success, Opcode::Read)));
        for n in 0..MESSAGES {
            assert!(arrived(&mut world, &a, &b, n), "{route:?} message {n}");
        }
        if route == Route::Local {
            assert!(world.memory.calls[2] <= 3, "{} copies", world.memory.calls[2]);
        }
    }
}

#[test]
fn the_local_path_copies_them_together() {
    let (mut world, a, b) = World::pair(Setup::new(Route::Local));
    post(&mut world, &a, &b);
    world.run();
    assert_eq!(world.sent(&a).len(), MESSAGES as usize);
    let copies = world.memory.calls[2];
    assert!(copies <= 3, "{copies} copies for {MESSAGES} messages of a few bytes");
}

/// Posts the receive for the n-th message where a WRITE would put it, with a byte to spare.
fn post_receive(world: &mut World, b: &End, n: u64) {
    let (_, to, len) = message(n);
    let half = len / 3;
    world.recv(b, 1000 + n, &[b.at(to, half), b.at(to + u64::from(half), len - half + 1)]);
}

fn post_sends(world: &mut World, a: &End) {
    for n in 0..MESSAGES {
        let (from, _, len) = message(n);
        let op = if n % 4 == 3 { send_imm([n as u8; 4]) } else { send() };
        let flags = if n % 5 == 0 { SendFlags::SOLICITED } else { SendFlags::empty() };
        world.try_send_flags(a, n, op, &[a.at(from, len / 2), a.at(from + u64::from(len / 2), len - len / 2)], flags).unwrap();
    }
}

fn assert_received(world: &mut World, a: &End, b: &End, route: Route) {
    let received = world.received(b);
    assert_eq!(ids(&received), (1000..1000 + MESSAGES).collect::<Vec<_>>(), "{route:?}");
    for (n, done) in received.iter().enumerate() {
        let len = message(n as u64).2;
        assert_eq!((done.status, done.opcode, done.byte_len, done.queue_index), (Status::Success, Opcode::Recv, len, n as u32));
        assert_eq!(done.solicited, n % 5 == 0, "{route:?} message {n}");
        let imm = (n % 4 == 3).then_some([n as u8; 4]);
        assert_eq!(done.flags.contains(CompletionFlags::WITH_IMM).then_some(done.imm), imm, "{route:?} message {n}");
        assert!(arrived(world, a, b, n as u64), "{route:?} message {n}");
    }
    let sent = world.sent(a);
    assert_eq!(ids(&sent), (0..MESSAGES).collect::<Vec<_>>(), "{route:?}");
    assert!(sent.iter().all(|done| (done.status, done.opcode) == (Status::Success, Opcode::Send)));
}

#[test]
fn all_sends_arrive_in_the_receives_in_order() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup::new(route));
        (0..MESSAGES).for_each(|n| post_receive(&mut world, &b, n));
        post_sends(&mut world, &a);
        world.run();
        assert_received(&mut world, &a, &b, route);
        if route == Route::Local {
            assert!(world.memory.calls[2] <= 3, "{} copies", world.memory.calls[2]);
        }
    }
}

/// However many receives there are at a time, the next SEND waits for the next one.
#[test]
fn sends_wait_for_receives_wherever_these_run_out() {
    for route in BOTH {
        for at_once in [1, 2, 7, 33] {
            let (mut world, a, b) = World::pair(Setup::new(route));
            post_sends(&mut world, &a);
            let mut posted = 0;
            while posted < MESSAGES {
                world.run_for(Duration::from_millis(1));
                for n in posted..MESSAGES.min(posted + at_once) {
                    post_receive(&mut world, &b, n);
                }
                posted += at_once;
            }
            world.run();
            assert_received(&mut world, &a, &b, route);
        }
    }
}

#[test]
fn sends_take_from_a_shared_receive_queue_one_by_one() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup { srq: true, ..Setup::new(route) });
        (0..MESSAGES).for_each(|n| post_receive(&mut world, &b, n));
        post_sends(&mut world, &a);
        world.run();
        assert_received(&mut world, &a, &b, route);
    }
}

/// A receive that is too short, or whose memory is none, fails with the SEND that it is for; those before are done.
#[test]
fn a_bad_receive_fails_its_own_send() {
    for route in BOTH {
        for bad in [0, 1, 20, MESSAGES - 1] {
            for is_short in [true, false] {
                let (mut world, a, b) = World::pair(Setup::new(route));
                for n in 0..MESSAGES {
                    let (from, to, _) = message(n);
                    let room = match (n == bad, is_short) {
                        (false, _) => b.at(to, 16),
                        (true, true) => b.at(to, 15),
                        (true, false) => match bad_lkey(&b) {
                            LocalBuffer::Keyed { lkey, addr, .. } => LocalBuffer::Keyed { lkey, addr, len: 16 },
                            direct => direct,
                        },
                    };
                    world.recv(&b, 1000 + n, &[room]);
                    world.send(&a, n, send(), &[a.at(from, 16)]);
                }
                world.run();
                let (sent, received) = (world.sent(&a), world.received(&b));
                let blame = match is_short {
                    true => [Status::RemoteInvalidRequestError, Status::LocalLengthError],
                    false => [Status::RemoteOperationalError, Status::LocalProtectionError],
                };
                for (done, blame) in [(&sent, blame[0]), (&received, blame[1])] {
                    assert_eq!(done.len(), MESSAGES as usize);
                    for (n, done) in done.iter().enumerate() {
                        let wanted = match (n as u64).cmp(&bad) {
                            std::cmp::Ordering::Less => Status::Success,
                            std::cmp::Ordering::Equal => blame,
                            std::cmp::Ordering::Greater => Status::FlushError,
                        };
                        assert_eq!(done.status, wanted, "{route:?} bad {bad}, short {is_short}: {done:?}");
                    }
                }
            }
        }
    }
}

/// What is not a small WRITE keeps its place among those that are.
#[test]
fn other_requests_keep_their_place() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup::new(route));
        world.recv(&b, 1, &[b.at(0x20_0000, 8)]);
        world.send(&a, 0, write(&b, 0x20_0000), &[a.at(0, 8)]);
        world.send(&a, 1, write(&b, 0x20_0000), &[a.at(8, 8)]);
        world.send(&a, 2, read(&b, 0x20_0000), &[a.at(0x1000, 8)]);
        // Without a fence a READ may see what comes after it (IBA 10.8.3.3).
        world.try_send_flags(&a, 3, write(&b, 0x20_0000), &[a.at(16, 8)], SendFlags::FENCE).unwrap();
        world.send(&a, 4, write(&b, 0x20_0000), &[a.at(24, 8)]);
        world.send(&a, 5, fetch_add(&b, 0x20_0000, 1), &[a.at(0x1008, 8)]);
        world.send(&a, 6, write(&b, 0x20_0008), &[a.at(32, 8)]);
        world.send(&a, 7, write_imm(&b, 0x20_0008, [0; 4]), &[a.at(40, 8)]);
        let words: Vec<u64> = (0..6).map(|n| world.word(&a, n * 8)).collect();
        world.run();
        assert_eq!(ids(&world.sent(&a)), [0, 1, 2, 3, 4, 5, 6, 7], "{route:?}");
        assert_eq!((world.word(&a, 0x1000), world.word(&a, 0x1008)), (words[1], words[3]), "{route:?}");
        assert_eq!(world.word(&b, 0x20_0000), words[3].wrapping_add(1));
        assert_eq!(world.word(&b, 0x20_0008), words[5]);
    }
}

/// The one with a wrong key, range, right or buffer fails; those before it are done, those behind it flushed.
#[test]
fn one_that_is_refused_is_the_one_that_fails() {
    for route in BOTH {
        for bad in [0, 1, 20, MESSAGES - 1] {
            for (fault, is_read) in [("rkey", false), ("range", false), ("lkey", false), ("rkey", true), ("lkey", true)] {
                let (mut world, a, b) = World::pair(Setup::new(route));
                let before = world.bytes(&b, 0x10_0000, 0x4000);
                for n in 0..MESSAGES {
                    let (from, to, _) = message(n);
                    let (mut op, mut buffer) = (if is_read { read(&b, to) } else { write(&b, to) }, a.at(from, 16));
                    match (n == bad, fault, &mut op, &mut buffer) {
                        (false, ..) => {}
                        (true, "rkey", SendOp::Write { rkey, .. } | SendOp::Read { rkey, .. }, _) => *rkey = Rkey(rkey.0 ^ 1),
                        (true, "range", SendOp::Write { remote_addr, .. }, _) => *remote_addr = BASE + MEMORY as u64 - 15,
                        (true, _, _, buffer) => *buffer = a.at(MEMORY as u64 - 15, 16),
                    }
                    world.send(&a, n, op, &[buffer]);
                }
                world.run();
                let sent = world.sent(&a);
                assert_eq!(ids(&sent), (0..MESSAGES).collect::<Vec<_>>());
                let blame = if fault == "lkey" { Status::LocalProtectionError } else { Status::RemoteAccessError };
                for done in &sent {
                    let wanted = match done.wr_id.cmp(&bad) {
                        std::cmp::Ordering::Less => Status::Success,
                        std::cmp::Ordering::Equal => blame,
                        std::cmp::Ordering::Greater => Status::FlushError,
                    };
                    assert_eq!(done.status, wanted, "{route:?} {fault} at {bad}: {done:?}");
                    let (from, to, _) = message(done.wr_id);
                    let there = world.bytes(&b, to as usize, 16);
                    let source = world.bytes(&a, from as usize, 16);
                    let kept = &before[to as usize - 0x10_0000..][..16];
                    assert_bytes(&there, if done.status == Status::Success && !is_read { &source } else { kept });
                    assert!(!is_read || (source == kept) == (done.status == Status::Success));
                }
            }
        }
    }
}

/// Memory that is gone although its key is good: the first request fails, as by itself.
#[test]
fn memory_that_is_gone_fails_the_first() {
    for route in BOTH {
        for whose in ["peer", "own"] {
            let (mut world, a, b) = World::pair(Setup::new(route));
            for n in 0..MESSAGES {
                world.send(&a, n, write(&b, n * 8), &[a.at(n * 8, 8)]);
            }
            world.memory.take_away(if whose == "peer" { b.memory } else { a.memory });
            world.run();
            let sent = world.sent(&a);
            let blame = if whose == "peer" { Status::RemoteOperationalError } else { Status::LocalProtectionError };
            assert_eq!(sent[0].status, blame, "{route:?} {whose}");
            assert!(sent[1..].iter().all(|done| done.status == Status::FlushError), "{route:?} {whose}");
            assert_eq!(sent.len(), MESSAGES as usize);
        }
    }
}
