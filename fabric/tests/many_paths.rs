//! What many paths are worth when something breaks: the trials that `vrdma sim spray` judges.

use fabric::many_paths::{Mishap, Paths, Trial, crossing, recovery};
use fabric::{Report, Sim};

fn run(trial: &Trial) -> Report {
    let mut sim = Sim::new(&trial.scenario, trial.trace.as_deref()).unwrap();
    sim.run();
    let report = sim.report();
    assert_eq!((report.violation_count, report.succeeded), (0, 32), "{:?}", report.violations);
    report
}

#[test]
fn a_dead_uplink_of_sixteen_costs_little_more_than_itself() {
    let dead = run(&crossing(Paths::Many, Mishap::DeadUplink, 1));
    assert!(dead.packets.dropped_down > 0, "the link died while nobody used it");
    let recovery = recovery(&dead, 0.92).expect("it recovers");
    assert!(recovery.after_us <= 100.0 && recovery.goodput <= 1.0, "{recovery:?}");
}

#[test]
fn a_lost_packet_in_a_hundred_costs_little_more_than_itself() {
    let [healthy, lossy] = [Mishap::None, Mishap::Loss].map(|mishap| run(&crossing(Paths::Many, mishap, 1)));
    let lost = lossy.packets.dropped_loss as f64 / lossy.packets.sent as f64;
    assert!((0.006..0.012).contains(&lost), "{lost}");
    assert!(healthy.completion_us.mean >= 0.9 * lossy.completion_us.mean, "{healthy:?} {lossy:?}");
}
