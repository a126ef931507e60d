//! Sender and receiver over a small model of a network in virtual time: what is taken for loss and what is not, what a dead path
//! costs, and how the time-out follows the network.

mod pipe;

use core::time::Duration;
use pipe::{PACKET, Path, Pipe, at, config, us};
use spray::{Law, Policy};

const TOTAL: u64 = 20_000;

fn sixteen(delay_us: u64) -> Vec<Path> {
    vec![Path::new(delay_us); 16]
}

/// Policies that use several paths.
fn spraying() -> impl Iterator<Item = Policy> {
    Policy::ALL.into_iter().filter(|policy| *policy != Policy::Single)
}

/// Paths between 10 and 85 µs: packets overtake each other all the time, and none is sent twice that was not dropped by a queue
/// (which happens to policies that crowd one path), but for a path's first packet: until a path has been measured it is taken for one
/// like the others.
#[test]
fn reordering_alone_causes_no_retransmission() {
    for policy in spraying() {
        let paths = (0..16).map(|n| Path::new(10 + 5 * n)).collect();
        let mut pipe = Pipe::new(&config(policy, 16), paths, 4);
        pipe.run(TOTAL);
        let counters = pipe.sender.counters();
        assert_eq!((counters.sent, counters.resent), (TOTAL, pipe.dropped + counters.spurious), "{policy:?}: {counters:?}");
        assert!(pipe.dropped == 0 || policy == Policy::BestRtt, "{policy:?} {}", pipe.dropped);
        assert!(counters.spurious <= 16, "{policy:?}: {counters:?}");
        assert!(policy == Policy::BestRtt || pipe.held_most > 16, "{policy:?} reorders: {}", pipe.held_most);
    }
}

/// One path 20 ms late. Before it has answered once, its packets are given the first time-out; then its own time.
#[test]
fn a_very_slow_path_is_given_its_own_time() {
    let mut paths = sixteen(20);
    paths[5] = Path::new(10_000);
    let mut config = config(Policy::Oblivious, 16);
    config.loss.rto_start = Duration::from_millis(50);
    let mut pipe = Pipe::new(&config, paths, 4);
    pipe.run(TOTAL);
    let counters = pipe.sender.counters();
    assert!(counters.resent * 50 < TOTAL, "{counters:?}");
    assert!(pipe.held_most <= 1024, "the receiver is never asked for more than its window");
}

/// Reordering within a path looks like loss at first. It is found out, and patience grows: in the end hardly any is sent twice.
#[test]
fn reordering_within_paths_is_learned() {
    let mut paths = sixteen(20);
    paths.iter_mut().for_each(|path| path.jitter = us(100));
    let mut pipe = Pipe::new(&config(Policy::Oblivious, 16), paths, 4);
    pipe.run(TOTAL);
    let early = *pipe.sender.counters();
    assert_eq!(early.spurious, early.resent, "nothing was lost, and the receiver says so: {early:?}");
    assert!(early.resent * 20 < TOTAL, "{early:?}");
}

/// How long `TOTAL` packets take, with path 3 dead from 200 µs on, or alive.
fn with_dead_path(policy: Policy, dead: bool, law: Law) -> (Pipe, Duration) {
    let mut paths = sixteen(20);
    if dead {
        paths[3].dead = at(200)..at(u64::MAX / 2000);
    }
    let mut config = config(policy, 16);
    config.law = law;
    config.limits.bdp = Some(config.limits.ceiling / 4);
    // Those that live on echoes get one for each packet.
    let every = if matches!(policy, Policy::MpRdma | Policy::Reps | Policy::Mixed) { 1 } else { 4 };
    let mut pipe = Pipe::new(&config, paths, every);
    let took = pipe.run(TOTAL);
    (pipe, took)
}

#[test]
fn a_dead_path_costs_little() {
    for law in [Law::Proportional, Law::Nscc] {
        // One that crowds a single path is not the subject here.
        for policy in spraying().filter(|policy| *policy != Policy::BestRtt) {
            let (healthy, before) = with_dead_path(policy, false, law);
            let (pipe, after) = with_dead_path(policy, true, law);
            let counters = pipe.sender.counters();
            println!("{law:?} {policy:?}: {before:?} healthy ({:?}), {after:?}: {counters:?}", healthy.sender.counters());
            let resent = healthy.sender.counters().resent;
            assert!(resent - healthy.dropped <= resent / 100, "{policy:?}: {resent} for {}", healthy.dropped);
            // A sixteenth of the capacity is gone; the rest is the price of finding out.
            assert!(after < before * 5 / 4 + us(1000), "{policy:?} {law:?}: {before:?} became {after:?}, {counters:?}");
            assert!(counters.resent * 40 < TOTAL, "{policy:?} {law:?}: {counters:?}");
            // Recycling may have left it before it was known to be dead.
            assert!(!pipe.sender.paths().is_usable(spray::PathId(3)) || policy == Policy::Reps, "{policy:?}");
        }
    }
}

/// A path that comes back is found by a probe, and used again.
#[test]
fn a_path_that_recovers_is_used_again() {
    let mut paths = sixteen(20);
    paths[3].dead = at(200)..at(3000);
    let mut pipe = Pipe::new(&config(Policy::Oblivious, 16), paths, 4);
    pipe.run(TOTAL);
    assert!(pipe.probes > 0);
    assert_eq!(pipe.sender.paths().usable(), 16);
}

/// All paths dead for 5 ms: the time-out backs off, nothing is lost for good, and the connection goes on.
#[test]
fn an_outage_of_everything_is_survived() {
    for law in [Law::Proportional, Law::Nscc] {
        let mut paths = sixteen(20);
        paths.iter_mut().for_each(|path| path.dead = at(500)..at(5500));
        let mut config = config(Policy::Oblivious, 16);
        config.law = law;
        config.limits.bdp = Some(config.limits.ceiling / 4);
        let mut pipe = Pipe::new(&config, paths, 4);
        let took = pipe.run(TOTAL);
        let counters = pipe.sender.counters();
        assert!(counters.timed_out > 0, "{counters:?}");
        assert!(took < Duration::from_millis(60), "{law:?}: {took:?} {counters:?}");
    }
}

/// Random loss on every path is repaired on others, without time-outs except at the end.
#[test]
fn random_loss_is_repaired_without_time_outs() {
    for policy in spraying() {
        let mut paths = sixteen(20);
        paths.iter_mut().for_each(|path| path.loss_ppm = 5_000);
        let mut pipe = Pipe::new(&config(policy, 16), paths, 1);
        pipe.run(TOTAL);
        let counters = pipe.sender.counters();
        assert!(counters.resent >= TOTAL / 400, "{policy:?} {counters:?}");
        assert!(counters.timed_out * 10 <= counters.resent, "{policy:?} {counters:?}");
        assert!(counters.spurious * 10 <= counters.resent, "{policy:?} {counters:?}");
    }
}

/// The time-out is a little above twice the round-trip time, follows it up and down, and keeps its floor.
#[test]
fn the_time_out_follows_the_network() {
    let mut fast = Pipe::new(&config(Policy::Oblivious, 16), sixteen(20), 4);
    assert_eq!(fast.sender.loss().rto(), Duration::from_millis(10), "nothing is known yet");
    fast.run(TOTAL);
    assert!(fast.sender.loss().rto() <= us(400), "{:?}", fast.sender.loss().rto());
    assert!(fast.sender.loss().rto() >= us(250), "the floor");

    let mut slow = Pipe::new(&config(Policy::Oblivious, 16), sixteen(2000), 4);
    slow.run(TOTAL);
    let rto = slow.sender.loss().rto();
    assert!(rto > us(4000) && rto < us(16_000), "{rto:?}");
    assert_eq!(slow.sender.counters().resent, slow.dropped, "{:?}", slow.sender.counters());
}

/// One path at a tenth of the rate. Policies that learn keep the goodput of the others; the window of the receiver bounds all.
#[test]
fn a_crowded_path_is_avoided_by_those_that_learn() {
    let slow_share = |policy| {
        let mut paths = sixteen(20);
        paths[7].per_packet = Duration::from_nanos(50_000);
        let mut pipe = Pipe::new(&config(policy, 16), paths, 1);
        let took = pipe.run(TOTAL);
        println!("{policy:?}: {took:?} {:?}", pipe.sender.counters());
        (took, pipe.dropped)
    };
    let (oblivious, dropped_by_oblivious) = slow_share(Policy::Oblivious);
    for policy in [Policy::Bitmap, Policy::Mixed, Policy::Reps] {
        let (took, dropped) = slow_share(policy);
        assert!(took < oblivious, "{policy:?} takes {took:?}, oblivious {oblivious:?}");
        assert!(dropped * 4 < dropped_by_oblivious * 3, "{policy:?} loses {dropped}, oblivious {dropped_by_oblivious}");
    }
}

/// The window settles where the queues are short: near what the paths carry, without loss.
#[test]
fn both_laws_fill_the_paths_without_loss() {
    for law in [Law::Proportional, Law::Nscc] {
        for policy in [Policy::Oblivious, Policy::Bitmap, Policy::Mixed] {
            let mut config = config(policy, 16);
            config.law = law;
            config.limits.bdp = Some(16 * u64::from(PACKET) * 45 / 5);
            let mut pipe = Pipe::new(&config, sixteen(20), if policy == Policy::Mixed { 1 } else { 4 });
            pipe.host_gap = Duration::from_nanos(200);
            let took = pipe.run(TOTAL);
            // 16 paths at 5 µs per packet.
            let least = Duration::from_nanos(TOTAL * 5000 / 16);
            println!(
                "{law:?} {policy:?}: {took:?} of {least:?}, window {}",
                pipe.sender.congestion().window() / u64::from(PACKET)
            );
            // Recycling alone does not even out how much is under way on each path.
            let most = if policy == Policy::Mixed { least * 7 / 4 } else { least * 5 / 4 };
            assert!(took < most, "{law:?} {policy:?}: {took:?} of at least {least:?}");
            let counters = pipe.sender.counters();
            assert!(counters.resent * 100 < TOTAL, "{law:?} {policy:?}: {counters:?}");
        }
    }
}

/// The same seed, the same run.
#[test]
fn runs_repeat() {
    let run = || {
        let mut paths = sixteen(20);
        paths.iter_mut().for_each(|path| (path.loss_ppm, path.jitter) = (10_000, us(10)));
        let mut pipe = Pipe::new(&config(Policy::Mixed, 16), paths, 1);
        let took = pipe.run(2000);
        (took, *pipe.sender.counters(), pipe.completed.clone())
    };
    assert_eq!(run(), run());
}
