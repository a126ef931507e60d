//! Both ends send and receive at the same time: what one end reads for its packets must not mix with what it writes from the
//! other's.

mod harness;

use harness::*;
use rnic::*;

const LEN: u32 = 300_000;
const TO: usize = 1 << 20;
const BACK: usize = 2 << 20;

#[test]
fn messages_of_every_kind_cross() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup::new(route));
        let before = [a, b].map(|end| world.bytes(&end, 0, LEN as usize));
        let old_word = [a, b].map(|end| world.word(&end, 3 << 20));
        for (own, peer) in [(&a, &b), (&b, &a)] {
            world.send(own, 1, write(peer, TO as u64), &[own.at(0, LEN)]);
            world.send(own, 2, read(peer, 0), &[own.at(BACK as u64, LEN)]);
            world.send(own, 3, fetch_add(peer, 3 << 20, 5), &[own.at((3 << 20) + 64, 8)]);
            world.recv(own, 9, &[own.at((TO + LEN as usize) as u64, 5000)]);
            world.send(own, 4, send(), &[own.at(100, 5000)]);
        }
        // One burst at a time, so that packets are taken between two bursts of the same end.
        world.step_some(200);
        world.run();
        for (n, end) in [a, b].iter().enumerate() {
            assert_eq!(statuses(&world.sent(end)), [Status::Success; 4], "{route:?}");
            assert_eq!(statuses(&world.received(end)), [Status::Success], "{route:?}");
            let (own, peer) = (&before[n], &before[1 - n]);
            assert_bytes(&world.bytes(end, 0, LEN as usize), own);
            assert_bytes(&world.bytes(end, TO, LEN as usize), peer);
            assert_bytes(&world.bytes(end, BACK, LEN as usize), peer);
            assert_bytes(&world.bytes(end, TO + LEN as usize, 5000), &peer[100..5100]);
            assert_eq!(world.word(end, 3 << 20), old_word[n].wrapping_add(5));
            assert_eq!(world.word(end, (3 << 20) + 64), old_word[1 - n]);
        }
    }
}
