//! Hand-computed cases of the minimum completion time, and that its certificate holds.

use super::*;
use crate::allocation::add_load;
use crate::random::Random;
use crate::topology::{self, Known};
use proptest::prelude::*;

fn demand(wan: &Wan, src: &str, dst: &str, volume_gbit: f64) -> Demand {
    Demand { src: wan.site(src).unwrap(), dst: wan.site(dst).unwrap(), volume_gbit }
}

fn solve(wan: &Wan, demands: &[Demand], effort: Effort) -> MinCct {
    Solver::new(wan).solve(wan, &wan.capacities(), demands, effort).unwrap()
}

/// The answer is feasible, progresses equally, and lies above its own bound.
fn verify(wan: &Wan, capacity: &[f64], demands: &[Demand], answer: &MinCct) {
    let mut loads = vec![0.0; capacity.len()];
    add_load(&mut loads, &answer.rates, 1.0);
    for (load, capacity) in loads.iter().zip(capacity) {
        assert!(*load <= capacity * (1.0 + 1e-9) + 1e-12, "{load} on a link of {capacity}");
    }
    for (demand, paths) in demands.iter().zip(&answer.rates) {
        let sent = rate_of(paths) * answer.cct_s;
        assert!((sent - demand.volume_gbit).abs() <= 1e-6 * demand.volume_gbit, "{sent} of {}", demand.volume_gbit);
        assert!(paths.iter().all(|path| path.path.ends(wan) == (demand.src, demand.dst)));
    }
    let priced: f64 = demands.iter().zip(&answer.prices).map(|(demand, price)| demand.volume_gbit * price).sum();
    assert!((priced - answer.bound_s).abs() <= 1e-6 * answer.bound_s, "prices {priced} give the bound {}", answer.bound_s);
    assert!(answer.cct_s >= answer.bound_s * (1.0 - 1e-6), "{} below its bound {}", answer.cct_s, answer.bound_s);
}

#[test]
fn two_ways_out_of_hong_kong() {
    let wan = Known::Swan.wan();
    // HK has two links of 5.12, and both lead on to LA (the second over NY): 10.24 Gbit/s in all.
    let demands = [demand(&wan, "HK", "LA", 10.24)];
    let answer = solve(&wan, &demands, Effort::precise());
    verify(&wan, &wan.capacities(), &demands, &answer);
    assert!((answer.cct_s - 1.0).abs() < 1e-6, "{answer:?}");
    assert!(answer.gap() <= 0.01);
}

#[test]
fn groups_share_the_cut_around_their_source() {
    let wan = Known::Swan.wan();
    // Both leave HK, whose links carry 10.24 in all: 15.36 Gbit take 1.5 s. LA-NY lets the larger use both links.
    let demands = [demand(&wan, "HK", "LA", 10.24), demand(&wan, "HK", "NY", 5.12)];
    let answer = solve(&wan, &demands, Effort::precise());
    verify(&wan, &wan.capacities(), &demands, &answer);
    assert!((answer.cct_s - 1.5).abs() < 1e-6, "{answer:?}");
}

#[test]
fn the_dual_finds_the_bottleneck_of_two_crossing_groups() {
    // a-b-c in a line, 10 and 4 Gbit/s. a->c 4 Gbit and b->c 4 Gbit share b-c: 8 / 4 = 2 s, and no path helps.
    let mut wan = Wan::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| wan.add_site(name).unwrap());
    wan.add_edge(a, b, 10.0).unwrap();
    wan.add_edge(b, c, 4.0).unwrap();
    let demands = [demand(&wan, "a", "c", 4.0), demand(&wan, "b", "c", 4.0)];
    let answer = solve(&wan, &demands, Effort::precise());
    verify(&wan, &wan.capacities(), &demands, &answer);
    assert!((answer.cct_s - 2.0).abs() < 1e-6 && (answer.bound_s - 2.0).abs() < 0.02, "{answer:?}");
}

#[test]
fn detours_are_not_taken_for_nothing() {
    // With b->c as the bottleneck, a->b could take any of its ways; the direct hop leaves most to others.
    let mut wan = Wan::new();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| wan.add_site(name).unwrap());
    wan.add_edge(a, b, 10.0).unwrap();
    wan.add_edge(a, d, 10.0).unwrap();
    wan.add_edge(d, b, 10.0).unwrap();
    wan.add_edge(b, c, 1.0).unwrap();
    let demands = [demand(&wan, "a", "b", 8.0), demand(&wan, "b", "c", 1.0)];
    let answer = solve(&wan, &demands, Effort::precise());
    assert!((answer.cct_s - 1.0).abs() < 1e-6, "{answer:?}");
    assert_eq!(answer.rates[0].iter().map(|path| path.path.hops()).collect::<Vec<_>>(), [1], "{:?}", answer.rates[0]);
}

#[test]
fn nothing_to_send_takes_no_time() {
    let wan = Known::Swan.wan();
    let done = Demand { volume_gbit: 0.0, ..demand(&wan, "HK", "LA", 1.0) };
    assert_eq!(solve(&wan, &[], Effort::precise()).cct_s, 0.0);
    let answer = solve(&wan, &[done, demand(&wan, "BA", "HK", 1.0)], Effort::precise());
    assert!(answer.rates[0].is_empty() && !answer.rates[1].is_empty());
}

#[test]
fn a_cut_off_site_is_named() {
    let mut wan = Known::Swan.wan();
    let hk = wan.site("HK").unwrap();
    for link in wan.out(hk).to_vec() {
        wan.set_capacity(link, 0.0).unwrap();
    }
    let demands = [demand(&wan, "LA", "NY", 1.0), demand(&wan, "HK", "NY", 1.0)];
    let result = Solver::new(&wan).solve(&wan, &wan.capacities(), &demands, Effort::precise());
    assert_eq!(result, Err(NoPath { demand: 1, src: hk, dst: wan.site("NY").unwrap() }));
}

#[test]
fn volumes_of_very_different_size_are_served() {
    let wan = Known::Att.wan();
    let demands = [demand(&wan, "NY54", "SNFN", 1e6), demand(&wan, "SLKC", "DNVR", 1e-4), demand(&wan, "ORLD", "STTL", 3.0)];
    let answer = solve(&wan, &demands, Effort::precise());
    verify(&wan, &wan.capacities(), &demands, &answer);
    assert!(answer.gap() <= 0.01, "{}", answer.gap());
}

fn random_demands(wan: &Wan, groups: usize, random: &mut Random) -> Vec<Demand> {
    let sites = wan.sites().len() as u64;
    let mut demands: Vec<Demand> = Vec::new();
    while demands.len() < groups {
        let (src, dst) = (SiteId(random.below(sites) as u32), SiteId(random.below(sites) as u32));
        if src != dst && !demands.iter().any(|demand| (demand.src, demand.dst) == (src, dst)) {
            demands.push(Demand { src, dst, volume_gbit: random.log_normal(10.0, 2.0) });
        }
    }
    demands
}

#[test]
fn more_steps_never_break_the_certificate() {
    let wan = Known::Att.wan();
    let capacity = wan.capacities();
    for seed in 0..6 {
        let demands = random_demands(&wan, 8, &mut Random::new(seed));
        let optimum =
            Solver::new(&wan).solve(&wan, &capacity, &demands, Effort { target_gap: 1e-7, ..Effort::precise() }).unwrap();
        assert!(optimum.gap() < 1e-5, "seed {seed}: the LP is exact, gap {}", optimum.gap());
        for max_steps in [0, 1, 10, 50, 200, 1000, 4000] {
            let answer = Solver::new(&wan).solve(&wan, &capacity, &demands, Effort { max_steps, ..Effort::precise() }).unwrap();
            verify(&wan, &capacity, &demands, &answer);
            assert!(answer.bound_s <= optimum.cct_s * (1.0 + 1e-6), "seed {seed}, {max_steps} steps: bound {}", answer.bound_s);
            assert!(answer.cct_s >= optimum.bound_s * (1.0 - 1e-6), "seed {seed}, {max_steps} steps: {}", answer.cct_s);
        }
    }
}

#[test]
fn random_networks_and_left_over_capacities_are_solved() {
    for seed in 0..8 {
        let mut random = Random::new(seed);
        let wan = topology::random(12, 24, seed);
        let capacity: Vec<f64> =
            wan.capacities().iter().map(|c| if random.chance(0.1) { 0.0 } else { c * random.unit() }).collect();
        let demands = random_demands(&wan, 6, &mut random);
        let mut solver = Solver::new(&wan);
        let Ok(answer) = solver.solve(&wan, &capacity, &demands, Effort::precise()) else { continue };
        verify(&wan, &capacity, &demands, &answer);
        assert!(answer.gap() <= 0.011, "seed {seed}: gap {}", answer.gap());
    }
}

#[test]
fn prices_bound_other_volumes_too() {
    let wan = Known::GScale.wan();
    let mut random = Random::new(3);
    let demands = random_demands(&wan, 5, &mut random);
    let answer = solve(&wan, &demands, Effort::precise());
    for _ in 0..5 {
        let other: Vec<Demand> =
            demands.iter().map(|demand| Demand { volume_gbit: random.log_normal(5.0, 1.0), ..*demand }).collect();
        let bound: f64 = other.iter().zip(&answer.prices).map(|(demand, price)| demand.volume_gbit * price).sum();
        assert!(solve(&wan, &other, Effort::precise()).cct_s >= bound * (1.0 - 1e-9));
    }
}

#[test]
fn same_input_same_answer() {
    let wan = Known::Att.wan();
    let demands = random_demands(&wan, 20, &mut Random::new(9));
    assert_eq!(solve(&wan, &demands, Effort::precise()), solve(&wan, &demands, Effort::precise()));
}

#[test]
fn those_in_a_hurry_prove_their_gap_too() {
    let wan = Known::Att.wan();
    let mut random = Random::new(3);
    let (rushed, precise) = (Effort::rushed(), Effort::precise());
    let cases = [(10, rushed, 0.05), (60, rushed, 0.05), (200, rushed, 0.05), (60, precise, 0.01)];
    for (groups, effort, gap) in cases {
        for _ in 0..4 {
            let demands = random_demands(&wan, groups, &mut random);
            let answer = solve(&wan, &demands, effort);
            verify(&wan, &wan.capacities(), &demands, &answer);
            assert!(answer.gap() <= gap, "a gap of {} at {groups} groups", answer.gap());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever the network, what is left of it and the steps: the answer is feasible, and no bound is above the optimum.
    #[test]
    fn certificates_hold(seed in 0u64..1_000_000, sites in 5usize..14, groups in 1usize..20, max_steps in 0u64..3_000) {
        let mut random = Random::new(seed);
        let wan = topology::random(sites, 2 * sites, seed);
        let full = wan.capacities();
        let capacity: Vec<f64> = full.iter().map(|c| if random.chance(0.1) { 0.0 } else { c * random.unit() }).collect();
        let demands = random_demands(&wan, groups.min(sites * (sites - 1)), &mut random);
        let exact = Effort { target_gap: 1e-7, ..Effort::precise() };
        if let Ok(optimum) = Solver::new(&wan).solve(&wan, &capacity, &demands, exact) {
            for effort in [Effort::rushed(), Effort::precise(), Effort { max_steps, ..Effort::precise() }] {
                let answer = Solver::new(&wan).solve(&wan, &capacity, &demands, effort).unwrap();
                verify(&wan, &capacity, &demands, &answer);
                prop_assert!(answer.bound_s <= optimum.cct_s * (1.0 + 1e-6), "bound {} above {}", answer.bound_s, optimum.cct_s);
                prop_assert!(answer.gap() <= effort.target_gap + 1e-6 || effort.max_steps == max_steps, "gap {}", answer.gap());
            }
        }
    }
}
