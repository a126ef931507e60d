//! Tenants that share a host: without isolation the published anomalies are there, and ours reaches what it has to.

use fabric::sharing::experiments::{Experiment, Metric, all};

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
fn who_comes_later_changes_nothing() {
    run("1 L, 1 B, then 3 B more one after the other");
}

#[test]
fn the_same_experiment_gives_the_same() {
    let experiment = experiment("1 L, 2 B");
    let figures = || experiment.run().into_iter().map(|(_, figures)| figures.map(f64::to_bits)).collect::<Vec<_>>();
    assert_eq!(figures(), figures());
}
