//! What devices are promised, seen by programs: a highest rate is kept, on both paths, and taken away in mid-transfer.

use std::time::{Duration, Instant};
use tests::{Daemon, NetnsPair, Program, missing_program, need_root, one_at_a_time};

const LIMIT: Duration = Duration::from_secs(120);
/// 100 Mbit/s.
const BYTES_PER_SEC: u64 = 12_500_000;
const BURST: u64 = 64_000;
const MESSAGE: u64 = 65_536;

fn perftest() -> String {
    tests::binary().with_file_name("perftest").display().to_string()
}

/// The end that is written to, ready.
fn target(daemon: &mut Daemon) -> Program {
    let mut target = daemon.run("b", &[&perftest(), "write", "bw"]);
    target.wait_for_output("Waiting", LIMIT);
    target
}

/// Starts WRITEs from device a.
fn writes(daemon: &mut Daemon, to: &str, messages: u64) -> Program {
    let (count, size) = (messages.to_string(), MESSAGE.to_string());
    daemon.run("a", &[&perftest(), "write", "bw", "--iters", &count, "--size", &size, to])
}

fn slow_down(daemon: &mut Daemon) {
    let set = daemon.cli(&["dev", "set", "a", "--rate", "100M", "--burst", &BURST.to_string()]);
    assert!(set.status.success(), "{}", set.output);
}

/// That so many messages took as long as the highest rate demands: that they took longer says nothing.
#[track_caller]
fn assert_kept(daemon: &Daemon, took: Duration, messages: u64) {
    let least = (messages * MESSAGE - BURST) as f64 / BYTES_PER_SEC as f64;
    assert!(took.as_secs_f64() > least * 0.99, "{took:?} for what takes {least} s");
    let pauses = daemon.device("a")["counters"]["rate_pauses"].as_u64().unwrap();
    assert!(pauses > 0, "it was the rate that held it up");
}

#[test]
fn a_highest_rate_is_kept_between_devices_of_one_daemon() {
    let _turn = one_at_a_time();
    let mut daemon = Daemon::start();
    daemon.add_device("a", "203.0.113.1");
    daemon.add_device("b", "203.0.113.2");
    slow_down(&mut daemon);
    let _target = target(&mut daemon);
    let started = Instant::now();
    writes(&mut daemon, "127.0.0.1", 200).succeed(LIMIT);
    assert_kept(&daemon, started.elapsed(), 200);
}

#[test]
fn a_highest_rate_is_kept_on_the_wire() {
    let _turn = one_at_a_time();
    if missing_program(&["ip"]) || need_root("network namespaces") {
        return;
    }
    let pair = NetnsPair::new(9000);
    let [mut a, mut b] = pair.daemons();
    slow_down(&mut a);
    let _target = target(&mut b);
    let started = Instant::now();
    writes(&mut a, NetnsPair::IPV4[1], 200).succeed(LIMIT);
    assert_kept(&a, started.elapsed(), 200);
}

/// At 8 kbit/s the transfer would take half an hour.
#[test]
fn a_rate_that_is_taken_away_holds_nothing_up() {
    let _turn = one_at_a_time();
    let mut daemon = Daemon::start();
    daemon.add_device("a", "203.0.113.1");
    daemon.add_device("b", "203.0.113.2");
    let set = daemon.cli(&["dev", "set", "a", "--rate", "8k"]);
    assert!(set.status.success(), "{}", set.output);
    let _target = target(&mut daemon);
    let mut client = writes(&mut daemon, "127.0.0.1", 50);
    let begun = Instant::now();
    while daemon.device("a")["counters"]["rate_pauses"].as_u64() == Some(0) {
        assert!(begun.elapsed() < LIMIT && client.is_running(), "it comes to a stop: {}", client.output());
        std::thread::sleep(Duration::from_millis(10));
    }
    let set = daemon.cli(&["dev", "set", "a", "--rate", "none"]);
    assert!(set.status.success(), "{}", set.output);
    client.succeed(LIMIT);
}
