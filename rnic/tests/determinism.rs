//! The same seed twice gives the same packets, completions and events, byte for byte and in the same order.

mod harness;

use harness::link::Faults;
use harness::*;
use std::collections::hash_map::DefaultHasher;
use std::fmt::Write;
use std::hash::Hasher;

/// A hash over everything that came out of a run with faults.
fn history(seed: u64, route: Route) -> (u64, usize) {
    let (mut world, a, b) = World::pair(Setup { seed, ..Setup::new(route) });
    world.link.record = Some(Vec::new());
    world.faults(Faults { loss: 0.02, duplication: 0.02, reordering: 0.02, corruption: 0.01, ..Faults::default() });
    let mut text = String::new();
    for n in 0..60 {
        let from = if n % 2 == 0 { (&a, &b) } else { (&b, &a) };
        world.recv(from.1, n, &[from.1.at(0x10_0000, 9000)]);
        let op = match n % 5 {
            0 => write(from.1, n * 100),
            1 => send(),
            2 => read(from.1, 0x20_0000),
            3 => fetch_add(from.1, 0x30_0000, n),
            _ => send_imm([n as u8; 4]),
        };
        world.send(from.0, n, op, &[from.0.at(0x8_0000, 8 + (n as u32 % 7) * 1000)]);
        if n % 10 == 9 {
            world.run();
        }
    }
    write!(text, "{:?} {:?} {:?}", world.completions, world.events, world.now).unwrap();
    let mut hash = DefaultHasher::new();
    hash.write(text.as_bytes());
    for packet in world.link.record.take().unwrap() {
        hash.write(&packet.bytes);
    }
    (hash.finish(), world.completions.len())
}

#[test]
fn same_seed_same_history() {
    for route in BOTH {
        for seed in [1, 2, 3] {
            let (first, completions) = history(seed, route);
            assert!(completions > 60);
            assert_eq!(history(seed, route).0, first, "{route:?} seed {seed}");
        }
        assert_ne!(history(1, route).0, history(2, route).0, "{route:?}: the seed matters");
    }
}
