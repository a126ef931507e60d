//! The semantics that a verbs program sees, on both paths: each test runs on the local path and over the wire and compares
//! completions and bytes.

mod harness;

use harness::*;
use rnic::*;

/// Every operation moves its bytes and completes in order, with the fields that verbs promise.
#[test]
fn every_operation_moves_its_bytes() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup::new(route));
        world.recv(&b, 100, &[b.at(0x8000, 3000)]);
        world.recv(&b, 101, &[b.at(0x9000, 100), b.at(0xA000, 5000)]);
        world.recv(&b, 102, &[]);
        let word = world.word(&b, 0x4000);
        world.send(&a, 1, write(&b, 5), &[a.at(1, 5000)]);
        world.send(&a, 2, send(), &[a.at(11, 2500)]);
        world.send(&a, 3, read(&b, 0x2001), &[a.at(0x20001, 4097)]);
        world.send(&a, 4, send_imm([1, 2, 3, 4]), &[a.at(7, 60), a.at(9000, 4000)]);
        world.send(&a, 5, fetch_add(&b, 0x4000, 5), &[a.at(0x30000, 8)]);
        world.send(&a, 6, write_imm(&b, 0x7000, [9, 8, 7, 6]), &[a.at(100, 33)]);
        world.send(&a, 7, compare_swap(&b, 0x4000, word.wrapping_add(5), 77), &[a.at(0x30008, 8)]);
        world.send(&a, 8, write(&b, 0), &[]);
        let source = world.bytes(&a, 0, 16384);
        let remote = world.bytes(&b, 0, 16384 * 2);
        world.run();

        let sent = world.sent(&a);
        assert_eq!(ids(&sent), [1, 2, 3, 4, 5, 6, 7, 8], "{route:?}");
        assert!(sent.iter().all(|done| done.status == Status::Success && done.vendor_err == 0), "{route:?} {sent:?}");
        let opcodes: Vec<Opcode> = sent.iter().map(|done| done.opcode).collect();
        use Opcode::*;
        assert_eq!(opcodes, [Write, Send, Read, Send, FetchAdd, Write, CompareSwap, Write]);
        let lengths: Vec<u32> = sent.iter().map(|done| done.byte_len).collect();
        assert_eq!(lengths, [5000, 2500, 4097, 4060, 8, 33, 8, 0]);
        let indices: Vec<u32> = sent.iter().map(|done| done.queue_index).collect();
        assert_eq!(indices, [0, 1, 2, 3, 4, 5, 6, 7]);

        let received = world.received(&b);
        assert_eq!(ids(&received), [100, 101, 102]);
        assert_eq!((received[0].opcode, received[0].byte_len), (Recv, 2500));
        assert_eq!((received[1].opcode, received[1].byte_len, received[1].imm), (Recv, 4060, [1, 2, 3, 4]));
        assert_eq!(received[1].flags, CompletionFlags::WITH_IMM);
        assert_eq!((received[2].opcode, received[2].byte_len, received[2].imm), (RecvWriteWithImm, 33, [9, 8, 7, 6]));

        assert_bytes(&world.bytes(&b, 5, 5000), &source[1..5001]);
        assert_bytes(&world.bytes(&b, 0x8000, 2500), &source[11..2511]);
        assert_bytes(&world.bytes(&b, 0x9000, 60), &source[7..67]);
        assert_bytes(&world.bytes(&b, 0x9000 + 60, 40), &source[9000..9040]);
        assert_bytes(&world.bytes(&b, 0xA000, 3960), &source[9040..13000]);
        assert_bytes(&world.bytes(&a, 0x20001, 4097), &remote[0x2001..0x2001 + 4097]);
        assert_bytes(&world.bytes(&b, 0x7000, 33), &source[100..133]);
        assert_eq!(world.word(&a, 0x30000), word);
        assert_eq!(world.word(&a, 0x30008), word.wrapping_add(5));
        assert_eq!(world.word(&b, 0x4000), 77);
    }
}

/// Unsignaled requests complete silently, and their slots are told by the next completion's `queue_index`.
#[test]
fn unsignaled_requests_give_no_completion() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup { all_signaled: false, ..Setup::new(route) });
        for n in 0..5 {
            world.try_send_flags(&a, n, write(&b, 0), &[a.at(0, 8)], SendFlags::empty()).unwrap();
        }
        world.try_send_flags(&a, 5, read(&b, 0), &[a.at(64, 8)], SendFlags::SIGNALED).unwrap();
        world.run();
        let sent = world.sent(&a);
        assert_eq!((ids(&sent), sent[0].queue_index), (vec![5], 5), "{route:?}");
    }
}

/// MR-10: a bad buffer of a send request fails that request alone with a local protection error: what was posted before
/// completes, what was posted after is flushed, and nothing of it reaches the peer.
#[test]
fn mr_10_bad_local_buffer_of_a_send_request() {
    type Case = (&'static str, fn(&End, &End) -> (SendOp, Vec<LocalBuffer>));
    let cases: [Case; 6] = [
        ("unknown key", |a, b| (write(b, 0x100), vec![bad_lkey(a)])),
        ("past the end", |a, b| (write(b, 0x100), vec![a.at(MEMORY as u64 - 7, 8)])),
        ("second buffer", |a, _| (send(), vec![a.at(0, 10), bad_lkey(a)])),
        ("long message, last buffer", |a, b| (write(b, 0x100), vec![a.at(0, 9000), bad_lkey(a)])),
        ("READ", |a, b| (read(b, 0x100), vec![bad_lkey(a)])),
        ("atomic", |a, b| (fetch_add(b, 0x100, 1), vec![bad_lkey(a)])),
    ];
    for route in BOTH {
        for (name, case) in cases {
            let (mut world, a, b) = World::pair(Setup::new(route));
            world.recv(&b, 100, &[b.at(0x8000, 100)]);
            let before = world.bytes(&b, 0x100, 10_000);
            let (op, buffers) = case(&a, &b);
            world.send(&a, 1, write(&b, 0), &[a.at(0, 200)]);
            world.send(&a, 2, op, &buffers);
            world.send(&a, 3, write(&b, 0), &[a.at(0, 8)]);
            world.run();
            let sent = world.sent(&a);
            use Status::*;
            assert_eq!(statuses(&sent), [Success, LocalProtectionError, FlushError], "{route:?} {name}");
            assert_eq!((sent[1].vendor_err, sent[1].byte_len), (vendor_err::LOCAL_KEY, 0));
            assert_eq!((world.state(&a), world.state(&b)), (QpState::Err, QpState::Rts), "{route:?} {name}");
            assert_bytes(&world.bytes(&b, 0x100, 10_000), &before);
            assert!(world.received(&b).is_empty());
        }
    }
}

/// MR-10: a bad buffer of a receive fails the receive, and the sender learns of an operational error.
#[test]
fn mr_10_bad_buffer_of_a_receive() {
    for route in BOTH {
        for len in [8, 3000] {
            let (mut world, a, b) = World::pair(Setup::new(route));
            world.recv(&b, 100, &[b.at(0, 4), LocalBuffer::Keyed { lkey: roce::Lkey(5), addr: BASE, len: 5000 }]);
            world.recv(&b, 101, &[b.at(0, 100)]);
            world.send(&a, 1, send(), &[a.at(0, len)]);
            world.run();
            assert_eq!(statuses(&world.sent(&a)), [Status::RemoteOperationalError], "{route:?}");
            let received = world.received(&b);
            assert_eq!(statuses(&received), [Status::LocalProtectionError, Status::FlushError], "{route:?}");
            assert_eq!(received[0].vendor_err, vendor_err::LOCAL_KEY);
            assert_eq!((world.state(&a), world.state(&b)), (QpState::Err, QpState::Err));
        }
    }
}

/// QC-07: a SEND longer than the receive: length error at the receiver, invalid request at the sender, no byte beyond the
/// buffers. QC-11: failed completions carry the true opcode and no length.
#[test]
fn qc_07_send_longer_than_the_receive() {
    for route in BOTH {
        for len in [101, 5000] {
            let (mut world, a, b) = World::pair(Setup::new(route));
            let beyond = world.bytes(&b, 0x1000 + 100, 8000);
            world.recv(&b, 100, &[b.at(0x1000, 100)]);
            world.send(&a, 1, send(), &[a.at(0, len)]);
            world.run();
            let (sent, received) = (world.sent(&a), world.received(&b));
            assert_eq!(statuses(&sent), [Status::RemoteInvalidRequestError], "{route:?}");
            assert_eq!((sent[0].opcode, sent[0].byte_len), (Opcode::Send, 0));
            assert_eq!(sent[0].vendor_err, vendor_err::NAK_INVALID_REQUEST);
            assert_eq!(statuses(&received), [Status::LocalLengthError], "{route:?}");
            assert_eq!((received[0].opcode, received[0].byte_len), (Opcode::Recv, 0));
            assert_eq!(received[0].vendor_err, vendor_err::RECEIVE_TOO_SHORT);
            assert!(sent[0].solicited && received[0].solicited, "errors raise events");
            assert_eq!((world.state(&a), world.state(&b)), (QpState::Err, QpState::Err));
            assert_bytes(&world.bytes(&b, 0x1000 + 100, 8000), &beyond);
        }
    }
}

/// The solicited bit reaches the receiver for SEND and WRITE with immediate, whatever the length.
#[test]
fn solicited_bit_reaches_the_receiver() {
    for route in BOTH {
        for solicited in [false, true] {
            let (mut world, a, b) = World::pair(Setup::new(route));
            let flags = if solicited { SendFlags::SOLICITED } else { SendFlags::empty() };
            for n in 0..3 {
                world.recv(&b, n, &[b.at(0, 4000)]);
            }
            world.try_send_flags(&a, 1, send(), &[a.at(0, 10)], flags).unwrap();
            world.try_send_flags(&a, 2, send_imm([0; 4]), &[a.at(0, 4000)], flags).unwrap();
            world.try_send_flags(&a, 3, write_imm(&b, 0, [0; 4]), &[a.at(0, 2000)], flags).unwrap();
            world.run();
            let got: Vec<bool> = world.received(&b).iter().map(|done| done.solicited).collect();
            assert_eq!(got, [solicited; 3], "{route:?}");
        }
    }
}

/// A queue pair may be connected to itself.
#[test]
fn a_queue_pair_can_talk_to_itself() {
    let mut world = World::new(Setup::new(Route::Local));
    let a = world.end();
    world.connect_one(&a, &a);
    world.recv(&a, 9, &[a.at(0x2000, 100)]);
    world.send(&a, 1, write(&a, 0x1000), &[a.at(0, 100)]);
    world.send(&a, 2, send(), &[a.at(0, 100)]);
    world.send(&a, 3, SendOp::Write { remote_addr: BASE, rkey: bad_rkey(&a), imm: None }, &[a.at(0, 1)]);
    world.send(&a, 4, send(), &[]);
    world.run();
    let source = world.bytes(&a, 0, 100);
    assert_bytes(&world.bytes(&a, 0x1000, 100), &source);
    assert_eq!(ids(&world.received(&a)), [9]);
    let sent = world.sent(&a);
    assert_eq!(ids(&sent), [1, 2, 3, 4]);
    assert_eq!(sent[3].status, Status::FlushError);
    assert_eq!(world.state(&a), QpState::Err);
}

/// A fenced request starts only when earlier READs and atomics have completed: its bytes are the ones just read.
#[test]
fn a_fence_orders_a_request_behind_a_read() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup::new(route));
        world.send(&a, 1, read(&b, 0x10_0000), &[a.at(0, 100_000)]);
        world.try_send_flags(&a, 2, write(&b, 0x20_0000), &[a.at(0, 100_000)], SendFlags::FENCE).unwrap();
        world.send(&a, 3, fetch_add(&b, 0x30_0000, 3), &[a.at(0x30_0000, 8)]);
        world.try_send_flags(&a, 4, write(&b, 0x30_0100), &[a.at(0x30_0000, 8)], SendFlags::FENCE).unwrap();
        let wanted = world.bytes(&b, 0x10_0000, 100_000);
        let before = world.bytes(&b, 0x30_0000, 8);
        world.run();
        assert_eq!(ids(&world.sent(&a)), [1, 2, 3, 4]);
        assert_bytes(&world.bytes(&b, 0x20_0000, 100_000), &wanted);
        assert_bytes(&world.bytes(&b, 0x30_0100, 8), &before);
    }
}

/// Memory that goes away under a live registration fails the requests that need it, on the side that owns it, and nothing else.
#[test]
fn memory_that_goes_away() {
    for route in BOTH {
        for (op, mine) in [("write", true), ("write", false), ("send", true), ("send", false), ("read", true), ("read", false)]
        {
            let (mut world, a, b) = World::pair(Setup::new(route));
            world.recv(&b, 100, &[b.at(0, 100)]);
            world.memory.take_away(if mine { a.memory } else { b.memory });
            let (op_, name) = match op {
                "write" => (write(&b, 0), op),
                "send" => (send(), op),
                _ => (read(&b, 0), op),
            };
            world.send(&a, 1, op_, &[a.at(0, 50)]);
            world.run();
            let sent = world.sent(&a);
            let wanted = if mine { Status::LocalProtectionError } else { Status::RemoteOperationalError };
            assert_eq!(statuses(&sent), [wanted], "{route:?} {name} mine: {mine}");
            let b_failed = !mine;
            assert_eq!(world.state(&b) == QpState::Err, b_failed, "{route:?} {name} mine: {mine}");
            if b_failed {
                let receive = if op == "send" { Status::LocalProtectionError } else { Status::FlushError };
                assert_eq!(statuses(&world.received(&b)), [receive], "{route:?} {name}");
            }
        }
    }
}

/// Long messages of every kind, in many buffers, across the runs of a region.
#[test]
fn long_messages() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup::new(route));
        let len = 1_000_003;
        world.recv(&b, 7, &[b.at(0x10_0003, 400_000), b.at(0x20_0000, 700_000)]);
        let list = [a.at(1, 333_333), a.at(0x8_0000, 333_333), a.at(0x18_0001, 333_337)];
        let source = [world.bytes(&a, 1, 333_333), world.bytes(&a, 0x8_0000, 333_333), world.bytes(&a, 0x18_0001, 333_337)];
        let source = source.concat();
        let remote = world.bytes(&b, 0x30_0000, len);
        world.send(&a, 1, write(&b, 5), &list);
        world.send(&a, 2, send(), &list);
        world.send(&a, 3, read(&b, 0x30_0000), &[a.at(0x28_0000, 500_000), a.at(0x30_0000, 500_003)]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::Success; 3], "{route:?}");
        assert_bytes(&world.bytes(&b, 5, len), &source);
        assert_bytes(&world.bytes(&b, 0x10_0003, 400_000), &source[..400_000]);
        assert_bytes(&world.bytes(&b, 0x20_0000, 600_003), &source[400_000..]);
        assert_bytes(&world.bytes(&a, 0x28_0000, 500_000), &remote[..500_000]);
        assert_bytes(&world.bytes(&a, 0x30_0000, 500_003), &remote[500_000..]);
        assert_eq!(world.received(&b)[0].byte_len, len as u32);
    }
}
