//! Registers and frees random ranges many times: nothing may be left behind in this process.

use crate::{Outcome, Words, say};
use tests::verbs::{Buffer, Region, Session, access};

/// `--count N` registrations of random ranges, 16 alive at a time.
pub fn run(words: &Words) -> Outcome<()> {
    let count = words.number("count", 20_000)?;
    let session = Session::open(None)?;
    let memory = Buffer::private(4 << 20)?;
    // The first registrations may set things up once.
    for _ in 0..16 {
        Region::new(&session, &memory, 4096, access::ALL)?;
    }
    let (maps, descriptors) = (mappings()?, descriptors()?);
    let mut alive = std::collections::VecDeque::new();
    let mut seed = 1u64;
    for _ in 0..count {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let len = 1 + usize::try_from(seed >> 33)? % memory.len();
        alive.push_back(Region::new(&session, &memory, len, access::ALL)?);
        if alive.len() > 16 {
            alive.pop_front();
        }
    }
    alive.clear();
    let (maps_after, descriptors_after) = (mappings()?, self::descriptors()?);
    if maps_after > maps + 2 || descriptors_after != descriptors {
        return Err(format!("mappings {maps} -> {maps_after}, descriptors {descriptors} -> {descriptors_after}").into());
    }
    say("OK");
    Ok(())
}

fn mappings() -> Outcome<usize> {
    Ok(std::fs::read_to_string("/proc/self/maps")?.lines().count())
}

fn descriptors() -> Outcome<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}
