//! Completion times of all policies on generated workloads: `cargo run --release --example compare [JOBS [NETWORK [WORKLOAD [SLACK]]]]`.
//!
//! With SLACK, every fourth coflow or so gets a deadline of that many times its least completion time.

use std::time::Instant;
use terra::compare::{Plan, policies, run};
use terra::generate::Kind;
use terra::topology::Known;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let jobs: u64 = words.first().map_or(60, |word| word.parse().expect("JOBS is a number"));
    let networks = words.get(1).map_or(Known::ALL.to_vec(), |word| vec![Known::from_name(word).expect("a known network")]);
    let kinds = words.get(2).map_or(Kind::ALL.to_vec(), |word| vec![Kind::from_name(word).expect("a known workload")]);
    let deadlines = words.get(3).map(|word| (0.25, word.parse().expect("SLACK is a number")));
    for network in networks {
        for kind in &kinds {
            let plan = Plan { network, kind: *kind, jobs, seed: 1, deadlines };
            let mut base = None;
            for mut policy in policies() {
                let start = Instant::now();
                let row = match run(&plan, policy.as_mut()) {
                    Ok(row) => row,
                    Err(error) => {
                        println!("{:<8} {:<9} {:<12} {error}", network.name(), kind.name(), policy.name());
                        continue;
                    }
                };
                let base = *base.get_or_insert(row.mean_cct_s);
                println!(
                    "{:<8} {:<9} {:<12} mean {:>9.2} s  p95 {:>9.2} s  jobs {:>9.2} s  gain {:>5.2}  deadlines {:>4} of {:>4}  broken {}  {:>6} decisions in {:>6.2} s",
                    network.name(),
                    kind.name(),
                    row.policy,
                    row.mean_cct_s,
                    row.p95_cct_s,
                    row.mean_jct_s,
                    base / row.mean_cct_s,
                    row.deadlines_met,
                    row.deadlines,
                    row.promises_broken,
                    row.decisions,
                    start.elapsed().as_secs_f64(),
                );
            }
        }
    }
}
