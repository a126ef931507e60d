//! Tenants that try to get more than their part, beside one with a bulk transfer and one that is after latency, all of the same weight.
//! What the daemon's core gives them is what it gives everybody.

use fabric::sharing::card::Card;
use fabric::sharing::lab::{Lab, Setup};
use fabric::sharing::load::{Got, Load, Op, Receives};
use isolation::{Class, Policy, Settings};
use std::time::Duration;

const TIMES: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(2));

fn run(policy: Policy, loads: &[Load]) -> Vec<Got> {
    Lab::run(&Setup::new(Card::IB56), policy, loads, TIMES)
}

fn bulk() -> Load {
    Load::bulk("bulk", 1 << 20)
}

/// Runs a tenant beside an honest one and one that is after latency; the part of its rate alone that it gets. The honest one gets half
/// of its own at least, and small messages take no more than twice as long as alone.
fn part_of(adversary: &Load) -> f64 {
    let quick = Load::latency("quick", 16);
    let alone = |load: &Load| run(Policy::Shares, std::slice::from_ref(load)).remove(0);
    let [adversary_alone, bulk_alone, quick_alone] = [adversary, &bulk(), &quick].map(alone);
    let [adversary, bulk, quick] = <[Got; 3]>::try_from(run(Policy::Shares, &[adversary.clone(), bulk(), quick])).unwrap();
    let kept = bulk.gbps() / bulk_alone.gbps();
    assert!(kept >= 0.48, "the honest tenant keeps {kept} of what it has alone");
    let slowed = quick.percentile(99.0) / quick_alone.percentile(99.0);
    assert!(slowed <= 2.0, "small messages take {slowed} times as long as alone");
    adversary.gbps() / adversary_alone.gbps()
}

#[test]
fn claiming_the_latency_class_gains_nothing() {
    let settings = Settings { class: Some(Class::Latency), ..Settings::default() };
    let liar = Load { settings, claims: true, ..bulk() };
    let part = part_of(&liar);
    assert!((0.45..=0.52).contains(&part), "{part}");
    // In messages of 4 KiB, which could be of that class.
    let part = part_of(&Load { bytes: 4096, qps: 16, ..liar });
    assert!((0.45..=0.52).contains(&part), "{part}");
}

#[test]
fn claiming_the_latency_class_pays_under_a_policy_that_believes_it() {
    let settings = Settings { class: Some(Class::Latency), ..Settings::default() };
    let liar = Load { settings, claims: true, ..bulk() };
    let got = run(Policy::Justitia(isolation::baseline::justitia::Parameters::default()), &[liar, bulk()]);
    assert!(got[0].gbps() > 1.8 * got[1].gbps(), "{} and {}", got[0].gbps(), got[1].gbps());
}

#[test]
fn many_queue_pairs_gain_nothing() {
    let part = part_of(&Load { qps: 256, ..bulk() });
    assert!((0.45..=0.52).contains(&part), "{part}");
    let got = run(Policy::Greedy, &[Load { qps: 256, ..bulk() }, bulk()]);
    assert!(got[0].gbps() > 20.0 * got[1].gbps(), "without isolation they do");
}

#[test]
fn a_flood_of_tiny_messages_gains_nothing() {
    let flood = Load { bytes: 8, batch: 8, qps: 64, ..Load::rate("flood") };
    let part = part_of(&flood);
    assert!(part <= 0.54, "{part} of the card's packets");
    let part = part_of(&flood.backwards());
    assert!(part <= 1.0, "the other way it is in nobody's: {part}");
}

#[test]
fn provoking_receiver_not_ready_for_ever_gains_nothing() {
    for code in [0, 1] {
        let unready = Load { op: Op::Send, receives: Receives::Missing(code), bytes: 4096, qps: 64, batch: 64, ..bulk() };
        let part = part_of(&unready);
        // With the longest one nothing at all is sent again in that time.
        assert!(part.is_nan() || part <= 1.0, "RNR timer code {code}: {part}");
    }
}
