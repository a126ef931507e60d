//! The policies: what each keeps, how it picks, and what it learns from evidence.

use super::health::Health;
use super::lap::Lap;
use super::reps::Reps;
use super::{Evidence, PathId, Policy};
use crate::ring::Ring;
use alloc::boxed::Box;
use alloc::vec;
use roce::Instant;
use roce::rng::Rng;

/// Packets between two that [`Policy::BestRtt`] sends anywhere.
const EXPLORE_EVERY: u8 = 64;
/// Packets between two looks at all paths under the same.
const RESCAN_EVERY: u8 = 16;
/// A path that is further behind than this many packets earns no packet under [`Policy::MpRdma`].
const MAX_BEHIND: u32 = 64;

/// A policy with its state.
#[derive(Clone, Debug)]
pub(super) enum Chooser {
    Single,
    Oblivious(Lap),
    Dwrr {
        lap: Lap,
        current: PathId,
        /// The least round-trip time, as of the beginning of this lap.
        best_ns: u32,
        /// Bytes that each path may still send in this lap.
        deficits: Box<[i32]>,
    },
    BestRtt {
        /// Paths from this one on were never tried.
        untried: u16,
        best: PathId,
        since_explored: u8,
    },
    MpRdma {
        credits: Ring,
        /// Paths that have earned half a packet.
        halves: Box<[bool]>,
    },
    Bitmap(Lap),
    Reps(Reps),
    Mixed {
        recycle: Ring,
        lap: Lap,
    },
}

impl Chooser {
    pub fn new(policy: Policy, paths: u16) -> Chooser {
        let lap = Lap::new(paths);
        match policy {
            Policy::Single => Chooser::Single,
            Policy::Oblivious => Chooser::Oblivious(lap),
            Policy::Dwrr => {
                let deficits = vec![0; usize::from(paths)].into_boxed_slice();
                Chooser::Dwrr { lap, current: PathId(0), best_ns: 0, deficits }
            }
            Policy::BestRtt => Chooser::BestRtt { untried: 0, best: PathId(0), since_explored: 0 },
            Policy::MpRdma => {
                let halves = vec![false; usize::from(paths)].into_boxed_slice();
                Chooser::MpRdma { credits: Ring::new(recycled(paths)), halves }
            }
            Policy::Bitmap => Chooser::Bitmap(lap),
            Policy::Reps => Chooser::Reps(Reps::new()),
            Policy::Mixed => Chooser::Mixed { recycle: Ring::new(recycled(paths)), lap },
        }
    }

    pub const fn heap_bytes(policy: Policy, paths: u16) -> usize {
        match policy {
            Policy::Single | Policy::BestRtt | Policy::Reps => 0,
            Policy::Oblivious | Policy::Bitmap => Lap::heap_bytes(paths),
            Policy::Dwrr => Lap::heap_bytes(paths) + paths as usize * size_of::<i32>(),
            Policy::MpRdma => Ring::heap_bytes(recycled(paths)) + paths as usize,
            Policy::Mixed => Lap::heap_bytes(paths) + Ring::heap_bytes(recycled(paths)),
        }
    }

    pub fn pick(&mut self, now: Instant, bytes: u32, health: &mut Health, rng: &mut Rng) -> PathId {
        match self {
            Chooser::Single => PathId(0),
            Chooser::Oblivious(lap) => next_usable(lap, health, rng),
            Chooser::Dwrr { lap, current, best_ns, deficits } => {
                let bytes = i32::try_from(bytes).unwrap_or(i32::MAX / 2).max(1);
                // A path at full weight gets one packet a lap; none gets less than one in 16 laps.
                for _ in 0..16 * deficits.len() {
                    if deficits[current.index()] >= bytes && health.is_usable(*current) {
                        break;
                    }
                    if lap.begins() {
                        *best_ns = health.rtt_ns(least_rtt(health, PathId(0)));
                    }
                    *current = lap.next(rng);
                    let deficit = &mut deficits[current.index()];
                    *deficit = (*deficit).saturating_add(share(bytes, *current, *best_ns, health)).min(bytes.saturating_mul(2));
                }
                deficits[current.index()] -= bytes;
                *current
            }
            Chooser::BestRtt { untried, best, since_explored } => {
                if *untried < health.len() {
                    *untried += 1;
                    return PathId((*untried - 1) as u8);
                }
                *since_explored += 1;
                if *since_explored == EXPLORE_EVERY {
                    *since_explored = 0;
                    return any_usable(health, rng);
                }
                if *since_explored % RESCAN_EVERY == 0 || !health.is_usable(*best) {
                    *best = least_rtt(health, *best);
                }
                *best
            }
            Chooser::MpRdma { credits, .. } => earned(credits, health).unwrap_or_else(|| any_usable(health, rng)),
            Chooser::Bitmap(lap) => next_unpunished(lap, health, rng),
            Chooser::Reps(reps) => match reps.pick(now) {
                Some(path) if health.is_usable(path) => path,
                _ => any_usable(health, rng),
            },
            Chooser::Mixed { recycle, lap } => earned(recycle, health).unwrap_or_else(|| next_unpunished(lap, health, rng)),
        }
    }

    pub fn note(&mut self, now: Instant, path: PathId, evidence: Evidence) {
        match self {
            Chooser::MpRdma { credits, halves } => {
                let Evidence::Delivered { marked, behind } = evidence else { return };
                let half = &mut halves[path.index()];
                let is_whole = !marked || *half;
                *half ^= marked;
                if is_whole && behind <= MAX_BEHIND {
                    credits.push(path);
                }
            }
            Chooser::Reps(reps) => reps.note(now, path, evidence),
            Chooser::Mixed { recycle, .. } => {
                if matches!(evidence, Evidence::Delivered { marked: false, .. }) {
                    recycle.push(path);
                }
            }
            _ => {}
        }
    }
}

/// Paths that may wait to be used again.
const fn recycled(paths: u16) -> usize {
    paths as usize * 2
}

/// The next path of the round that is not set aside. Two laps hold every path at least once.
fn next_usable(lap: &mut Lap, health: &Health, rng: &mut Rng) -> PathId {
    let mut path = lap.next(rng);
    for _ in 0..2 * health.len() {
        if health.is_usable(path) {
            break;
        }
        path = lap.next(rng);
    }
    path
}

/// The next path of the round without a penalty; each that is passed over has served one of its own. Gives in after a lap.
fn next_unpunished(lap: &mut Lap, health: &mut Health, rng: &mut Rng) -> PathId {
    let mut path = next_usable(lap, health, rng);
    for _ in 0..health.len() {
        if !health.serve_penalty(path) {
            break;
        }
        path = next_usable(lap, health, rng);
    }
    path
}

/// The oldest path that earned a packet and is not set aside.
fn earned(earned: &mut Ring, health: &Health) -> Option<PathId> {
    core::iter::from_fn(|| earned.pop()).find(|&path| health.is_usable(path))
}

/// A random path that is not set aside: the next after a random one.
fn any_usable(health: &Health, rng: &mut Rng) -> PathId {
    let start = rng.below(u64::from(health.len())) as u16;
    let mut all = (0..health.len()).map(|n| PathId(((start + n) % health.len()) as u8));
    all.find(|&path| health.is_usable(path)).unwrap_or(PathId(start as u8))
}

/// The usable path with the least round-trip time, `current` if none is better.
fn least_rtt(health: &Health, current: PathId) -> PathId {
    let measure = |path: PathId| match health.rtt_ns(path) {
        0 => u32::MAX,
        ns => ns,
    };
    let paths = (0..health.len()).map(|path| PathId(path as u8)).filter(|&path| health.is_usable(path));
    let best = paths.min_by_key(|&path| measure(path));
    match best {
        Some(best) if !health.is_usable(current) || measure(best) < measure(current) => best,
        _ => current,
    }
}

/// What a path gets per lap for a packet of `bytes`: in proportion to how fast it answers, halved per penalty, of which it serves
/// one.
fn share(bytes: i32, path: PathId, best_ns: u32, health: &mut Health) -> i32 {
    let weight = match health.rtt_ns(path) {
        0 => 256,
        ns => (u64::from(best_ns) * 256 / u64::from(ns)).clamp(16, 256),
    };
    let weight = (weight >> health.penalty(path).min(4)).max(16);
    health.serve_penalty(path);
    ((i64::from(bytes) * weight as i64).div_euclid(256)).max(1) as i32
}
