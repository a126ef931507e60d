//! Paths against slow, obvious models: who is set aside and probed under any evidence, and what each policy picks.

use core::time::Duration;
use proptest::prelude::*;
use roce::Instant;
use spray::{Evidence, PathId, PathSet, Policy};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const GOOD: Evidence = Evidence::Delivered { marked: false, behind: 0 };
const MARKED: Evidence = Evidence::Delivered { marked: true, behind: 0 };

fn at(us: u64) -> Instant {
    Instant::from_nanos(us * 1000)
}

fn policy() -> impl Strategy<Value = Policy> {
    prop::sample::select(Policy::ALL.to_vec())
}

fn evidence() -> impl Strategy<Value = Evidence> {
    let rtt = prop::option::of((1_u64..5000).prop_map(Duration::from_micros));
    prop_oneof![
        rtt.prop_map(|rtt| Evidence::Arrived { rtt }),
        (any::<bool>(), 0_u32..200).prop_map(|(marked, behind)| Evidence::Delivered { marked, behind }),
        Just(Evidence::Refused),
        Just(Evidence::Missing),
        Just(Evidence::TimedOut),
    ]
}

/// A path as the rules describe it.
#[derive(Clone, Copy, Default)]
struct Path {
    losses: u32,
    /// Set aside until then, and whether a probe is under way, and after how many unanswered ones.
    aside: Option<(Instant, bool)>,
    unanswered: u32,
}

fn pause(unanswered: u32) -> Duration {
    Duration::from_millis(1) * (1 << unanswered.min(10))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn paths_are_set_aside_and_come_back(
        policy in policy(), paths in prop_oneof![Just(1_u16), Just(2), Just(3), Just(16), Just(256)], seed: u64,
        steps in proptest::collection::vec((any::<prop::sample::Index>(), evidence(), 0_u64..3000, any::<bool>()), 1..300),
    ) {
        let mut set = PathSet::new(policy, paths, 0xC000, seed);
        let mut model = vec![Path::default(); usize::from(paths)];
        let mut now = Instant::ZERO;
        for (path, evidence, later, probe) in steps {
            now = now + Duration::from_micros(later);
            let index = path.index(usize::from(paths.min(5)));
            set.note(now, PathId(index as u8), evidence);
            let usable = model.iter().filter(|path| path.aside.is_none()).count();
            let path = &mut model[index];
            match evidence {
                Evidence::Arrived { .. } | Evidence::Delivered { .. } => *path = Path::default(),
                Evidence::Refused => {}
                Evidence::Missing | Evidence::TimedOut => {
                    path.losses += 1;
                    if path.losses >= 3 && path.aside.is_none() && usable > usize::from(paths.div_ceil(4)) {
                        path.aside = Some((now + pause(path.unanswered), false));
                    }
                }
            }
            let wake = model.iter().filter_map(|path| path.aside).map(|(until, _)| until).min();
            prop_assert_eq!(set.poll_timeout(), wake);
            if probe {
                let due = model.iter().position(|path| path.aside.is_some_and(|(until, _)| until <= now));
                prop_assert_eq!(set.poll_probe(now), due.map(|index| PathId(index as u8)));
                if let Some(path) = due.map(|index| &mut model[index]) {
                    path.unanswered += u32::from(path.aside.is_some_and(|(_, probed)| probed));
                    path.aside = Some((now + pause(path.unanswered), true));
                }
            }
            let usable: BTreeSet<u8> = (0..paths).map(|path| path as u8).filter(|path| model[usize::from(*path)].aside.is_none()).collect();
            prop_assert_eq!(usize::from(set.usable()), usable.len());
            let picked = set.pick(now, 1000, None);
            prop_assert!(policy == Policy::Single || usable.contains(&picked.0), "{picked:?} of {usable:?}");
            let other = set.pick(now, 1000, Some(picked));
            prop_assert!(usable.len() < 2 || other != picked, "{other:?} again, of {usable:?}");
        }
    }

    /// Recycled entropies: the fresh ones, at most 8, oldest first, once each.
    #[test]
    fn reps_reuses_the_oldest_fresh_path(seed: u64, steps in proptest::collection::vec((any::<bool>(), 0_u8..64, any::<bool>()), 1..400)) {
        let mut set = PathSet::new(Policy::Reps, 64, 0xC000, seed);
        let mut fresh = VecDeque::new();
        for (acks, path, marked) in steps {
            if acks {
                set.note(at(0), PathId(path), if marked { MARKED } else { GOOD });
                if !marked {
                    fresh.push_back(PathId(path));
                    if fresh.len() > 8 {
                        fresh.pop_front();
                    }
                }
            } else if let Some(expected) = fresh.pop_front() {
                prop_assert_eq!(set.pick(at(0), 1000, None), expected);
            } else {
                set.pick(at(0), 1000, None);
            }
        }
    }

    /// A path with penalty p is passed over p times: among the laps that follow it misses p of its turns.
    #[test]
    fn bitmap_serves_each_penalty(seed: u64, notes in proptest::collection::vec((0_u8..16, 0_u8..3), 0..12)) {
        let mut set = PathSet::new(Policy::Bitmap, 16, 0xC000, seed);
        let mut penalty = BTreeMap::new();
        for (path, kind) in notes {
            let (evidence, cost) = [(MARKED, 1), (Evidence::Refused, 4), (Evidence::TimedOut, 15)][usize::from(kind)];
            set.note(at(0), PathId(path), evidence);
            let penalty = penalty.entry(path).or_insert(0_u32);
            *penalty = (*penalty + cost).min(15);
            // A delivery, so that time-outs do not set it aside.
            set.note(at(0), PathId(path), Evidence::Arrived { rtt: None });
        }
        let skipped: u32 = penalty.values().sum();
        let mut picked = [0_u32; 16];
        // Turns are picks and skips; these are whole laps.
        let laps = 64;
        for _ in 0..laps * 16 - skipped {
            picked[set.pick(at(0), 1000, None).index()] += 1;
        }
        for path in 0..16 {
            let expected = laps - penalty.get(&path).copied().unwrap_or(0);
            prop_assert_eq!(picked[usize::from(path)], expected, "path {}", path);
        }
    }
}

#[test]
fn a_lap_of_oblivious_visits_every_path_once_in_changing_order() {
    for paths in [1_u16, 2, 16, 128, 256] {
        let mut set = PathSet::new(Policy::Oblivious, paths, 0xC000, 7);
        let laps: Vec<Vec<PathId>> = (0..20).map(|_| (0..paths).map(|_| set.pick(at(0), 1000, None)).collect()).collect();
        for lap in &laps {
            assert_eq!(lap.iter().collect::<BTreeSet<_>>().len(), usize::from(paths));
        }
        let orders: BTreeSet<_> = laps.iter().collect();
        assert!(paths < 16 || orders.len() == laps.len(), "orders repeat");
    }
}

/// How often each path of 16 is picked in 16 000 packets after `set` was told about them.
fn shares(set: &mut PathSet) -> Vec<u32> {
    let mut picked = vec![0; 16];
    for _ in 0..16_000 {
        picked[set.pick(at(0), 1000, None).index()] += 1;
    }
    picked
}

#[test]
fn dwrr_gives_by_speed() {
    let mut set = PathSet::new(Policy::Dwrr, 16, 0xC000, 3);
    for path in 0..16 {
        let rtt = Duration::from_micros(if path < 4 { 40 } else { 10 });
        set.note(at(0), PathId(path), Evidence::Arrived { rtt: Some(rtt) });
    }
    let picked = shares(&mut set);
    let (slow, fast) = (picked[..4].iter().sum::<u32>() / 4, picked[4..].iter().sum::<u32>() / 12);
    assert!((slow * 4).abs_diff(fast) <= fast / 20, "{slow} packets on a slow path, {fast} on a fast one");
}

#[test]
fn best_rtt_stays_with_the_fastest_and_looks_around() {
    let mut set = PathSet::new(Policy::BestRtt, 16, 0xC000, 3);
    for path in 0..16 {
        let rtt = Duration::from_micros(if path == 9 { 10 } else { 20 });
        set.note(at(0), PathId(path), Evidence::Arrived { rtt: Some(rtt) });
    }
    let picked = shares(&mut set);
    assert!(picked[9] > 15_500, "{picked:?}");
    assert!(picked.iter().all(|&count| count > 0), "{picked:?}");
}

#[test]
fn mp_rdma_follows_acknowledgements_and_halves_for_marks() {
    let mut set = PathSet::new(Policy::MpRdma, 128, 0xC000, 3);
    for path in 0..32 {
        set.note(at(0), PathId(path), GOOD);
        set.note(at(0), PathId(64 + path % 8), MARKED);
        set.note(at(0), PathId(100), Evidence::Delivered { marked: false, behind: 1000 });
    }
    let picked: Vec<u8> = (0..48).map(|_| set.pick(at(0), 1000, None).0).collect();
    assert_eq!(picked.iter().filter(|path| **path < 32).count(), 32, "one for each that delivered: {picked:?}");
    assert_eq!(picked.iter().filter(|path| (64..72).contains(*path)).count(), 16, "half for marked ones: {picked:?}");
    assert!(!picked.contains(&100), "none for one far behind");
}

#[test]
fn mixed_recycles_and_then_skips_what_is_punished() {
    let mut set = PathSet::new(Policy::Mixed, 8, 0xC000, 3);
    for path in [3, 5] {
        set.note(at(0), PathId(path), GOOD);
    }
    set.note(at(0), PathId(0), Evidence::TimedOut);
    assert_eq!([set.pick(at(0), 1000, None), set.pick(at(0), 1000, None)], [PathId(3), PathId(5)]);
    for _ in 0..7 * 8 {
        assert_ne!(set.pick(at(0), 1000, None), PathId(0), "it sits out 15 laps");
    }
}

/// After a time-out only the last good paths are used for 10 ms, and then 16 packets go anywhere.
#[test]
fn reps_freezes_and_explores() {
    let mut set = PathSet::new(Policy::Reps, 128, 0xC000, 3);
    for path in 0..8 {
        set.note(at(0), PathId(path), GOOD);
        assert_eq!(set.pick(at(0), 1000, None), PathId(path));
    }
    set.note(at(0), PathId(50), Evidence::TimedOut);
    for us in 0..9_000 {
        let picked = set.pick(at(us), 1000, None);
        assert!(picked.0 < 8, "{picked:?} while frozen");
    }
    let anywhere: BTreeSet<_> = (0..16).map(|_| set.pick(at(10_000), 1000, None)).collect();
    assert!(anywhere.len() > 8, "{anywhere:?}");
}

/// The failure of most paths at once is not a matter of paths.
#[test]
fn a_quarter_of_the_paths_stays() {
    let mut set = PathSet::new(Policy::Oblivious, 128, 0xC000, 3);
    for _ in 0..5 {
        (0..128).for_each(|path| set.note(at(0), PathId(path), Evidence::TimedOut));
    }
    assert_eq!(set.usable(), 32);
}
