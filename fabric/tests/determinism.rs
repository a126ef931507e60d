//! The same scenario twice gives the same events; another seed gives others.

use fabric::{Report, Scenario, Sim, swarm};

fn run(scenario: &Scenario) -> Report {
    let mut sim = Sim::new(scenario, None).unwrap();
    sim.run();
    sim.report()
}

#[test]
fn same_scenario_same_events() {
    for seed in 1000..1060 {
        let scenario = swarm::scenario(seed);
        let (first, second) = (run(&scenario), run(&scenario));
        assert_eq!(first.event_hash, second.event_hash, "seed {seed}");
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn in_small_steps_the_same_happens() {
    let scenario = swarm::scenario(7);
    let whole = run(&scenario);
    let mut sim = Sim::new(&scenario, None).unwrap();
    let mut steps = 0;
    while sim.step(13) {
        steps += 1;
    }
    assert!(steps > 10);
    assert_eq!(sim.report(), whole);
    assert!(!sim.step(1), "it stays over");
}

#[test]
fn the_seed_matters() {
    let text = "[topology]\nkind = \"fat-tree\"\nk = 4\n[workload]\nbytes = 50000\n";
    let scenario = Scenario::parse(text).unwrap();
    let other = Scenario { seed: scenario.seed + 1, ..scenario.clone() };
    assert_ne!(run(&scenario).event_hash, run(&other).event_hash);
}
