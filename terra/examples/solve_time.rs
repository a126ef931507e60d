//! Solve times and proven gaps of the minimum-CCT solver on random coflows: `cargo run --release --example solve_time`.
//!
//! Times are CPU times (Linux only), so that a busy machine does not change them much.

use terra::min_cct::{Demand, Effort, Solver};
use terra::random::Random;
use terra::topology::{self, Known};
use terra::{SiteId, Wan};

fn coflow(wan: &Wan, groups: usize, random: &mut Random) -> Vec<Demand> {
    let sites = wan.sites().len() as u64;
    let mut demands: Vec<Demand> = Vec::new();
    while demands.len() < groups.min((sites * (sites - 1)) as usize) {
        let (src, dst) = (SiteId(random.below(sites) as u32), SiteId(random.below(sites) as u32));
        if src != dst && !demands.iter().any(|demand| (demand.src, demand.dst) == (src, dst)) {
            demands.push(Demand { src, dst, volume_gbit: random.log_normal(10.0, 1.0) });
        }
    }
    demands
}

/// CPU time of this process so far, milliseconds.
fn cpu_ms() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").expect("Linux tells CPU times");
    text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok()).expect("nanoseconds") / 1e6
}

fn main() {
    println!(
        "{:<12} {:>4} {:>8}  {:>8} {:>8} {:>8}  {:>8} {:>8}",
        "network", "FG", "effort", "p50 ms", "p95 ms", "steps", "gap %", "worst %"
    );
    let networks = [
        ("swan", Known::Swan.wan(), vec![4, 20]),
        ("gscale", Known::GScale.wan(), vec![10, 60, 132]),
        ("att", Known::Att.wan(), vec![5, 10, 20, 60, 200]),
        ("random100", topology::random(100, 250, 1), vec![20, 200]),
    ];
    for (name, wan, sizes) in networks {
        for groups in sizes {
            for (effort_name, effort) in
                [("precise", Effort::precise()), ("rushed", Effort::rushed()), ("rough", Effort::rough())]
            {
                let mut random = Random::new(groups as u64);
                let mut results: Vec<(f64, f64, u64)> = Vec::new();
                for _ in 0..20 {
                    let demands = coflow(&wan, groups, &mut random);
                    let start = cpu_ms();
                    let mut solver = Solver::new(&wan);
                    let answer = solver.solve(&wan, &wan.capacities(), &demands, effort).expect("connected");
                    results.push((cpu_ms() - start, answer.gap() * 100.0, answer.steps));
                }
                let column = |of: fn(&(f64, f64, u64)) -> f64, at: usize| {
                    let mut values: Vec<f64> = results.iter().map(of).collect();
                    values.sort_by(f64::total_cmp);
                    values[at]
                };
                println!(
                    "{name:<12} {groups:>4} {effort_name:>8}  {:>8.2} {:>8.2} {:>8}  {:>8.2} {:>8.2}",
                    column(|r| r.0, 10),
                    column(|r| r.0, 18),
                    column(|r| r.2 as f64, 10),
                    column(|r| r.1, 10),
                    column(|r| r.1, 19),
                );
            }
        }
    }
}
