//! The cache against a slow and obvious model: random maps, unmaps, pins, ends of registrations, time, pressure and
//! failures. Every call of the pinner must be the model's, in the model's order, and so must all figures.

mod guest;

use guest::{BLOCK, Guest, READ_WRITE, range};
use nix::errno::Errno;
use proptest::prelude::*;
use pvdma::{Call, Config, FakePinner, GpaRange, Instant, MapCache, PinGuard, PinnerError, Stats};
use std::sync::Arc;
use std::time::Duration;

const PAGE: u64 = 4096;
/// The guest's address space: small, so that operations meet.
const SPACE: u64 = 8 * BLOCK;
const BUDGET: u64 = 4 * BLOCK;
const MAX_IDLE: u64 = 100;

#[derive(Clone, Debug)]
enum Op {
    Map {
        start: u64,
        pages: u64,
    },
    Unmap {
        start: u64,
        pages: u64,
    },
    UnmapAll,
    Pin {
        start: u64,
        len: u64,
    },
    /// Ends one of the registrations.
    LetGo(usize),
    Pass(u64),
    ReleaseIdle,
    Shrink(u64),
    /// The next pin fails: at a limit, or for good.
    FailPin {
        limit: bool,
    },
    FailUnpin,
}

fn page() -> impl Strategy<Value = u64> {
    // Edges of blocks more often than not.
    let near = (0..=SPACE / BLOCK, -1i64..=1).prop_map(|(block, by)| (block * (BLOCK / PAGE)).saturating_add_signed(by));
    prop_oneof![near, 0..SPACE / PAGE]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (page(), page()).prop_map(|(a, b)| Op::Map { start: a.min(b) * PAGE, pages: a.abs_diff(b) }),
        2 => (page(), page()).prop_map(|(a, b)| Op::Unmap { start: a.min(b) * PAGE, pages: a.abs_diff(b) }),
        1 => Just(Op::UnmapAll),
        12 => (page(), 0..PAGE, prop_oneof![1..3 * PAGE, 1..3 * BLOCK])
            .prop_map(|(page, at, len)| Op::Pin { start: page * PAGE + at, len }),
        8 => any::<usize>().prop_map(Op::LetGo),
        4 => (0..60u64).prop_map(Op::Pass),
        3 => Just(Op::ReleaseIdle),
        1 => (0..5u64).prop_map(|blocks| Op::Shrink(blocks * BLOCK)),
        1 => any::<bool>().prop_map(|limit| Op::FailPin { limit }),
        1 => Just(Op::FailUnpin),
    ]
}

/// A pinned block.
#[derive(Clone, Debug)]
struct Pinned {
    region: u64,
    part: GpaRange,
    refs: u64,
    /// Order and moment of becoming idle.
    idle: (u64, u64),
    /// Could not be unpinned: not tried again before its next use.
    stuck: bool,
}

#[derive(Clone, Debug)]
struct Held {
    /// Region, part of it.
    pieces: Vec<(u64, GpaRange)>,
}

#[derive(Default)]
struct Model {
    now: u64,
    order: u64,
    next_region: u64,
    regions: Vec<(u64, GpaRange)>,
    pinned: Vec<Pinned>,
    held: Vec<Held>,
    fail_pin: Vec<bool>,
    fail_unpin: usize,
    calls: Vec<Call>,
    stats: Stats,
}

fn blocks_of(region: GpaRange, part: GpaRange) -> Vec<GpaRange> {
    let (first, last) = (part.start().0 / BLOCK, (part.end().0 - 1) / BLOCK);
    (first..=last).map(|block| range(block * BLOCK, BLOCK).common(&region).expect("part of it")).collect()
}

impl Model {
    fn map(&mut self, start: u64, len: u64) -> Option<u64> {
        let range = GpaRange::new(pvdma::Gpa(start), len).ok()?;
        if self.regions.iter().any(|(_, other)| other.common(&range).is_some()) {
            return None;
        }
        self.next_region += 1;
        self.regions.push((self.next_region, range));
        self.regions.sort_by_key(|(_, range)| range.start());
        Some(self.next_region)
    }

    fn unmap(&mut self, start: u64, len: u64) -> Option<(Vec<u64>, bool)> {
        let range = GpaRange::new(pvdma::Gpa(start), len).ok()?;
        let touched: Vec<_> = self.regions.iter().filter(|(_, other)| other.common(&range).is_some()).copied().collect();
        if touched.is_empty() || touched.iter().any(|(_, other)| !range.contains(other)) {
            return None;
        }
        Some(self.end(touched))
    }

    /// The regions ended, and whether all was unpinned.
    fn end(&mut self, regions: Vec<(u64, GpaRange)>) -> (Vec<u64>, bool) {
        let mut clean = true;
        for (number, _) in &regions {
            let mut gone: Vec<_> = self.pinned.iter().filter(|block| block.region == *number).cloned().collect();
            gone.sort_by_key(|block| block.part.start());
            for block in gone {
                clean &= self.unpin(&block);
            }
            self.pinned.retain(|block| block.region != *number);
        }
        self.regions.retain(|region| !regions.contains(region));
        (regions.iter().map(|(number, _)| *number).collect(), clean)
    }

    fn unpin(&mut self, block: &Pinned) -> bool {
        self.calls.push(Call::Unpin(block.part));
        let fails = self.fail_unpin > 0;
        self.fail_unpin -= usize::from(fails);
        self.stats.unpin_failures += u64::from(fails);
        !fails
    }

    fn bytes(&self) -> u64 {
        self.pinned.iter().map(|block| block.part.len()).sum()
    }

    /// Releases the oldest idle block that became idle at `before` or earlier. `None`: there is none.
    fn release_oldest(&mut self, before: u64) -> Option<u64> {
        let idle = self.pinned.iter().filter(|block| block.refs == 0 && !block.stuck && block.idle.1 <= before);
        let oldest = idle.min_by_key(|block| block.idle)?.clone();
        let unpinned = self.unpin(&oldest);
        let at = self.pinned.iter().position(|block| block.idle == oldest.idle && block.refs == 0).expect("just seen");
        if unpinned {
            self.pinned.remove(at);
            return Some(oldest.part.len());
        }
        self.pinned[at].stuck = true;
        Some(0)
    }

    fn make_room(&mut self) -> bool {
        while let Some(bytes) = self.release_oldest(u64::MAX) {
            if bytes > 0 {
                self.stats.evictions_room += 1;
                return true;
            }
        }
        false
    }

    fn pin_block(&mut self, region: u64, part: GpaRange) -> bool {
        if let Some(block) = self.pinned.iter_mut().find(|block| block.region == region && block.part == part) {
            block.refs += 1;
            block.stuck = false;
            self.stats.hits += 1;
            return true;
        }
        self.stats.misses += 1;
        while self.bytes() + part.len() > BUDGET {
            if !self.make_room() {
                return false;
            }
        }
        loop {
            self.calls.push(Call::Pin(part));
            if self.fail_pin.is_empty() {
                break;
            }
            let limit = self.fail_pin.remove(0);
            if !(limit && self.make_room()) {
                self.stats.pin_failures += 1;
                return false;
            }
        }
        self.pinned.push(Pinned { region, part, refs: 1, idle: (0, 0), stuck: false });
        true
    }

    fn let_go(&mut self, region: u64, parts: &[GpaRange]) {
        for part in parts {
            // Not if the region was unmapped.
            if let Some(block) = self.pinned.iter_mut().find(|block| block.region == region && block.part == *part) {
                block.refs -= 1;
                if block.refs == 0 {
                    block.idle = (self.order, self.now);
                    self.order += 1;
                }
            }
        }
    }

    fn pin(&mut self, start: u64, len: u64) -> bool {
        let Ok(wanted) = GpaRange::new(pvdma::Gpa(start), len) else { return false };
        let pieces: Vec<_> =
            self.regions.iter().filter_map(|(number, region)| Some((*number, *region, region.common(&wanted)?))).collect();
        if pieces.iter().map(|(_, _, part)| part.len()).sum::<u64>() != len {
            return false;
        }
        let mut done: Vec<(u64, Vec<GpaRange>)> = Vec::new();
        for (number, region, part) in &pieces {
            let mut parts = Vec::new();
            for block in blocks_of(*region, *part) {
                if !self.pin_block(*number, block) {
                    // The piece begun is let go before those that were complete.
                    self.let_go(*number, &parts);
                    for (number, parts) in done {
                        self.let_go(number, &parts);
                    }
                    return false;
                }
                parts.push(block);
            }
            done.push((*number, parts));
        }
        self.held.push(Held { pieces: pieces.iter().map(|(number, _, part)| (*number, *part)).collect() });
        true
    }

    fn end_registration(&mut self, at: usize) {
        let held = self.held.remove(at);
        for (number, part) in held.pieces {
            if let Some((_, region)) = self.regions.iter().find(|(other, _)| *other == number) {
                let parts = blocks_of(*region, part);
                self.let_go(number, &parts);
            }
        }
    }

    fn figures(&self) -> Stats {
        let alive = |number: u64| self.regions.iter().any(|(other, _)| *other == number);
        let held = self.held.iter().flat_map(|held| &held.pieces);
        Stats {
            regions: self.regions.len() as u64,
            mapped_bytes: self.regions.iter().map(|(_, range)| range.len()).sum(),
            pinned_bytes: self.bytes(),
            idle_bytes: self.pinned.iter().filter(|block| block.refs == 0).map(|block| block.part.len()).sum(),
            registered_bytes: held.filter(|(number, _)| alive(*number)).map(|(_, part)| part.len()).sum(),
            ..self.stats
        }
    }
}

fn failure(limit: bool) -> PinnerError {
    PinnerError { errno: Errno::ENOMEM, limit, hint: "told to".to_owned() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_cache_does_what_the_model_does(ops in prop::collection::vec(op(), 1..120)) {
        let guest = Guest::new(2 * SPACE);
        let pinner = Arc::new(FakePinner::new());
        let config = Config { budget_bytes: BUDGET, max_idle: Duration::from_nanos(MAX_IDLE), ..Config::default() };
        let cache = MapCache::new(config, pinner.clone());
        let mut model = Model::default();
        let mut guards: Vec<PinGuard> = Vec::new();
        for op in ops {
            let now = Instant::from_nanos(model.now);
            match op {
                Op::Map { start, pages } => {
                    let len = pages * PAGE;
                    // One byte of the object may lie at several addresses: all that matters is that it exists.
                    let mapped = cache.map(guest.at(start, 0, len)).ok().map(|region| region.generation());
                    match model.map(start, len) {
                        None => prop_assert!(mapped.is_none()),
                        Some(_) => prop_assert!(mapped.is_some()),
                    }
                }
                Op::Unmap { start, pages } => {
                    let range = GpaRange::new(pvdma::Gpa(start), pages * PAGE);
                    let unmapped = range.ok().map(|range| cache.unmap(range));
                    match model.unmap(start, pages * PAGE) {
                        Some((regions, true)) => {
                            let unmapped = unmapped.expect("a range").expect("regions lie in it");
                            prop_assert_eq!(unmapped.len(), regions.len());
                        }
                        Some((_, false)) => {
                            let error = unmapped.expect("a range").expect_err("the pinner failed");
                            prop_assert_eq!(error.errno(), libc::EIO);
                        }
                        None => prop_assert!(unmapped.is_none_or(|result| result.is_err_and(|error| error.errno() != libc::EIO))),
                    }
                }
                Op::UnmapAll => {
                    let all = model.regions.clone();
                    let (_, clean) = model.end(all);
                    prop_assert_eq!(cache.unmap_all().is_ok(), clean);
                }
                Op::Pin { start, len } => {
                    let pinned = cache.pin(now, range(start, len), READ_WRITE);
                    prop_assert_eq!(pinned.is_ok(), model.pin(start, len), "{:?}", pinned);
                    guards.extend(pinned);
                }
                Op::LetGo(which) if !guards.is_empty() => {
                    let at = which % guards.len();
                    model.end_registration(at);
                    drop(guards.remove(at));
                }
                Op::LetGo(_) => (),
                Op::Pass(ns) => {
                    model.now += ns;
                    // A pin of nothing that is mapped: it tells the time.
                    prop_assert!(cache.pin(Instant::from_nanos(model.now), range(1 << 50, 1), READ_WRITE).is_err());
                }
                Op::ReleaseIdle => {
                    let mut bytes = 0;
                    if let Some(before) = model.now.checked_sub(MAX_IDLE) {
                        while let Some(released) = model.release_oldest(before) {
                            bytes += released;
                            model.stats.evictions_age += u64::from(released > 0);
                        }
                    }
                    prop_assert_eq!(cache.release_idle(now), bytes);
                }
                Op::Shrink(keep) => {
                    let mut bytes = 0;
                    while model.bytes() > keep {
                        let Some(released) = model.release_oldest(u64::MAX) else { break };
                        bytes += released;
                        model.stats.evictions_room += u64::from(released > 0);
                    }
                    prop_assert_eq!(cache.shrink(keep), bytes);
                }
                Op::FailPin { limit } => {
                    pinner.fail_pin(failure(limit));
                    model.fail_pin.push(limit);
                }
                Op::FailUnpin => {
                    pinner.fail_unpin(failure(false));
                    model.fail_unpin += 1;
                }
            }
            prop_assert_eq!(pinner.take_calls(), std::mem::take(&mut model.calls));
            prop_assert_eq!(cache.stats(), model.figures());
            for (guard, held) in guards.iter().zip(&model.held) {
                let segments: Vec<_> = guard.segments().map(|part| (part.gpa.0, part.len)).collect();
                let parts: Vec<_> = held.pieces.iter().map(|(_, part)| (part.start().0, part.len())).collect();
                prop_assert_eq!(segments, parts);
                let stale = held.pieces.iter().any(|(number, _)| !model.regions.iter().any(|(other, _)| other == number));
                prop_assert_eq!(guard.is_stale(), stale);
            }
            // Whenever something idle is due, the owner is woken for it in time.
            let due = model.pinned.iter().filter(|block| block.refs == 0 && !block.stuck).map(|block| block.idle.1 + MAX_IDLE).min();
            if let Some(due) = due {
                prop_assert!(cache.next_release().is_some_and(|at| at.as_nanos() <= due));
            }
        }
    }
}
