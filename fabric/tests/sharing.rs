//! Tenants that share a host: without isolation the published anomalies are there, and ours reaches what it has to.

use fabric::sharing::card::Card;
use fabric::sharing::experiments::Experiment;
use fabric::sharing::husky;
use fabric::sharing::lab::{Lab, Setup};
use fabric::sharing::load::Load;
use fabric::sharing::paper::all;
use fabric::sharing::question::Metric;
use fabric::sharing::search::Case;
use isolation::{Policy, Settings};
use std::time::Duration;

fn experiment(what: &str) -> Experiment {
    all().into_iter().find(|experiment| experiment.what == what).unwrap_or_else(|| panic!("there is no {what:?}"))
}

/// Runs it; checks that every bar is met; returns what there is without isolation and under Justitia.
fn run(what: &str) -> Vec<(Metric, f64, f64)> {
    let outcome = experiment(what).run();
    let found = outcome.into_iter().map(|(question, [_, off, justitia, ours])| {
        assert!(question.bar.is_met(ours), "{what}: {:?} is {ours}, not {}", question.metric, question.bar);
        (question.metric, off, justitia)
    });
    found.collect()
}

#[test]
fn a_bulk_transfer_does_not_hold_small_messages_up() {
    let found = run("1 L, 1 B");
    let [(Metric::Latency99, off, justitia), (Metric::Bandwidth, bulk_off, bulk_justitia)] = found[..] else {
        panic!("{found:?}")
    };
    assert!(off > 2.0 && bulk_off > 0.95, "the anomaly: {off} times the latency, {bulk_off} of the bandwidth");
    assert!(justitia < 2.0 && bulk_justitia < 0.6, "Justitia gives half the link away: {justitia}, {bulk_justitia}");
}

#[test]
fn long_messages_gain_nothing_over_shorter_ones() {
    let found = run("B of 1 MB, B of 1 GB");
    assert!(found[0].1 < 0.7, "the anomaly: {}", found[0].1);
}

#[test]
fn connections_gain_nothing() {
    let found = run("B with 1 connection, B with 16");
    assert!(found[0].1 < 0.2, "the anomaly: {}", found[0].1);
}

#[test]
fn small_reads_are_answered_ahead_of_a_bulk_transfer() {
    let found = run("L reads from the host that B writes from");
    assert!(found[0].1 > 2.0, "the anomaly: {}", found[0].1);
}

#[test]
fn small_messages_to_a_host_that_many_send_to_wait_for_few() {
    let found = run("32 B and 1 L to one host, congestion control on");
    assert_eq!(found.iter().map(|&(metric, ..)| metric).collect::<Vec<_>>(), [Metric::Gain99, Metric::Kept]);
}

#[test]
fn who_comes_later_changes_nothing() {
    run("1 L, 1 B, then 3 B more one after the other");
}

#[test]
fn the_same_experiment_gives_the_same() {
    let experiment = experiment("1 L, 2 B");
    let figures = || experiment.run().into_iter().map(|(_, figures)| figures.map(f64::to_bits)).collect::<Vec<_>>();
    assert_eq!(figures(), figures());
}

#[test]
fn a_highest_rate_is_kept_to_a_percent_over_a_second() {
    for (rate, load) in [
        (1_250_000, Load::bulk("10 Mb/s", 1 << 20)),
        (1_250_000, Load { qps: 4, ..Load::rate("10 Mb/s") }),
        (125_000_000, Load::bulk("1 Gb/s", 1 << 20)),
    ] {
        let settings = Settings { max_bytes_per_sec: Some(rate), ..load.settings };
        // What may go at once has gone before it is measured.
        let times = (Duration::from_millis(300), Duration::from_secs(1));
        let got = Lab::run(&Setup::new(Card::IB56), Policy::Shares, &[Load { settings, ..load }], times).remove(0);
        let error = got.bytes as f64 / rate as f64 - 1.0;
        assert!(error.abs() <= 0.01, "{error} at {rate} bytes per second");
    }
}

#[test]
fn messages_of_other_tenants_do_not_collapse_beside_a_bulk_transfer() {
    let found = run("1 T, 1 B");
    assert!(found[0].1 < 0.5, "the anomaly: {}", found[0].1);
}

#[test]
fn congestion_control_alone_does_not_isolate() {
    run("1 L, 1 B, congestion control on");
    run("1 T, 1 B, congestion control on");
}

#[test]
fn one_uplink_is_shared_by_connections_and_small_messages_leave_first() {
    run("1 L, 8 B of one host, 24 B of others over one uplink");
}

#[test]
fn an_echo_is_as_quick_beside_a_blob_store() {
    let found = run("RPC echo one at a time in 2 threads, blob store of 1 MB");
    assert!(found[2].1 > 40.0, "the anomaly: {}", found[2].1);
}

/// Of Husky's matrix, a column and the attackers that take most different ways.
#[test]
fn attackers_leave_victims_their_part() {
    let victims: Vec<husky::Entry> = husky::victims();
    let attackers = husky::attackers();
    let apply = attackers.iter().filter(|attacker| attacker.load.is_ok()).count();
    assert_eq!((attackers.len(), apply, victims.len()), (52, 40, 22));
    let named = |entries: &[husky::Entry], name: &str| {
        let found = entries.iter().find(|entry| entry.name == name);
        found.and_then(|entry| entry.load.clone().ok()).unwrap_or_else(|| panic!("there is no {name:?}"))
    };
    for victim in ["WRITE 64 KiB, 1 QPs", "WRITE 16 B, one at a time"] {
        let victim = named(&victims, victim);
        let alone = husky::Alone::run(&husky::setup(), Policy::Shares, &victim);
        for attacker in [
            "READ 1 MiB, 16 QPs",
            "loopback WRITE 1 MiB, 8 QPs, at the receiver",
            "SEND without receives, RC, shortest RNR timer",
            "SEND without receives, UD",
            "CAS 8 B, 64 QPs, backward",
        ] {
            let fares = alone.beside(&husky::setup(), Policy::Shares, &victim, &[named(&attackers, attacker)]);
            assert!(fares.meets_bar, "{attacker} leaves {}", fares.value);
        }
    }
}

#[test]
fn cases_are_made_of_their_seeds_alone() {
    for seed in 1..4 {
        let case = Case::draw(seed);
        assert_eq!(case, Case::draw(seed));
        assert!((3..=5).contains(&case.others.len()));
    }
    assert_ne!(Case::draw(1).describe(), Case::draw(2).describe());
    let case = Case::draw(3);
    let fares = case.run(Policy::Shares);
    assert!(fares.meets_bar, "{fares:?}: {}", case.describe());
    assert_eq!(case.run(Policy::Shares), fares);
}
