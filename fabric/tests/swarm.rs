//! Small fabrics with faults by chance: whatever goes wrong, every transfer ends, every byte is placed once and where it
//! belongs, completions keep their order, and no packet is unaccounted for.
//!
//! `VRDMA_SEED=n` runs one seed; `VRDMA_SEEDS=n` runs the first n instead of some hundred.

use fabric::{Sim, swarm};
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs without variables.
const FEW: u64 = 200;

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, not a number")))
}

/// Runs a seed; what was wrong with it, if anything was.
fn run(seed: u64) -> Option<String> {
    let outcome = std::panic::catch_unwind(|| {
        let mut sim = Sim::new(&swarm::scenario(seed), None).expect("a scenario within bounds");
        sim.run();
        sim.report()
    });
    let wrong = match outcome {
        Ok(report) if report.violation_count == 0 => return None,
        Ok(report) => format!("{} violations: {}", report.violation_count, report.violations.join("; ")),
        Err(_) => "it panicked, see above".to_owned(),
    };
    let command = format!("VRDMA_SEED={seed} cargo test --release -p fabric --test swarm");
    Some(format!("seed {seed}: {wrong}\n  again: {command}"))
}

#[test]
fn whatever_goes_wrong_the_rules_hold() {
    if let Some(seed) = variable("VRDMA_SEED") {
        println!("seed {seed}: {:#?}", swarm::scenario(seed));
        assert_eq!(run(seed), None);
        return;
    }
    let seeds = variable("VRDMA_SEEDS").unwrap_or(FEW);
    println!("seeds 0 to {}", seeds.saturating_sub(1));
    let next = AtomicU64::new(0);
    let work = || {
        let seeds = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed)).take_while(|&seed| seed < seeds);
        seeds.filter_map(run).collect::<Vec<String>>()
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("panics are caught")).collect()
    });
    assert!(wrong.is_empty(), "{} of {seeds} seeds failed:\n{}", wrong.len(), wrong.join("\n"));
}
