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
