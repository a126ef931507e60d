//! Completion times of all policies on generated workloads: `cargo run --release --example compare [JOBS [NETWORK [WORKLOAD]]]`.

use std::time::Instant;
use terra::compare::{Plan, policies, run};
use terra::generate::Kind;
use terra::topology::Known;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let jobs: u64 = words.first().map_or(60, |word| word.parse().expect("JOBS is a number"));
    let networks = words.get(1).map_or(Known::ALL.to_vec(), |word| vec![Known::from_name(word).expect("a known network")]);
    let kinds = words.get(2).map_or(Kind::ALL.to_vec(), |word| vec![Kind::from_name(word).expect("a known workload")]);
    for network in networks {
        for kind in &kinds {
            let plan = Plan { network, kind: *kind, jobs, seed: 1, deadlines: None };
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
                    "{:<8} {:<9} {:<12} mean {:>9.2} s  p95 {:>9.2} s  jobs {:>9.2} s  gain {:>5.2}  {:>6} decisions in {:>6.2} s",
                    network.name(),
                    kind.name(),
                    row.policy,
                    row.mean_cct_s,
                    row.p95_cct_s,
                    row.mean_jct_s,
                    base / row.mean_cct_s,
                    row.decisions,
                    start.elapsed().as_secs_f64(),
                );
            }
        }
    }
}
