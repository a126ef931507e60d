//! Programs and daemons that die in mid-transfer, and what must be left of them: nothing.

use nix::sys::signal::Signal;
use std::time::{Duration, Instant};
use tests::matrix::free_port;
use tests::{Daemon, NetnsPair, Streams, missing_program, need_root, one_at_a_time};

const CLIENT: &str = env!("CARGO_BIN_EXE_verbs-client");
/// The writer gives up after eight attempts of 67 ms to four times that; the rest is for a loaded machine.
const GIVE_UP: Duration = Duration::from_secs(20);
/// What a dead client left must be gone by then.
const CLEAN_UP: Duration = Duration::from_secs(5);

fn daemon_with(devices: &[&str]) -> Daemon {
    let mut daemon = Daemon::start();
    for (number, device) in devices.iter().enumerate() {
        daemon.add_device(device, &format!("203.0.113.{}", number + 1));
    }
    daemon
}

fn streams(daemon: &mut Daemon, lender: &str, writer: &str, options: &[&str]) -> Streams {
    Streams::start(CLIENT, (daemon, lender), (None, writer), "127.0.0.1", options)
}

/// The daemon holds as many descriptors and mappings as before.
fn is_clean(daemon: &Daemon, descriptors: usize, mappings: usize) {
    daemon.wait_until_descriptors(descriptors);
    // The allocator may keep a few mappings of its own.
    assert!(daemon.mappings() <= mappings + 8, "mappings {mappings} -> {}", daemon.mappings());
}

/// The writer has seen an error, then everything else flushed in order, and its queue pair in error.
fn writer_saw_the_end(streams: &mut Streams) {
    let output = streams.writer.succeed(GIVE_UP);
    // Remote access or operation refused (the region or the process is gone), or no answer.
    let expected = ["status 10 ", "status 11 ", "status 12 "];
    assert!(expected.iter().any(|status| output.contains(status)), "an error completion in:\n{output}");
    assert!(output.contains("flushed") && output.contains("end"), "{output}");
}

#[test]
fn a_killed_program_ends_its_peers_connection_and_nothing_else() {
    let _turn = one_at_a_time();
    let mut daemon = daemon_with(&["a", "b", "c", "d"]);
    let (descriptors, mappings) = (daemon.open_descriptors(), daemon.mappings());
    for memory in ["private", "shared"] {
        let mut doomed = streams(&mut daemon, "a", "b", &["--memory", memory]);
        let mut others = streams(&mut daemon, "c", "d", &["--count", "400", "--size", "65536"]);
        doomed.lender.kill();
        writer_saw_the_end(&mut doomed);
        others.writer.succeed(GIVE_UP);
        others.lender.succeed(GIVE_UP);
        for device in ["a", "b", "c", "d"] {
            daemon.wait_until_unused(device, CLEAN_UP);
        }
        is_clean(&daemon, descriptors, mappings);
    }
}

#[test]
fn a_killed_program_ends_its_peers_connection_on_the_wire() {
    let _turn = one_at_a_time();
    if missing_program(&["ip"]) || need_root("network namespaces") {
        return;
    }
    let pair = NetnsPair::new(9000);
    let [mut a, mut b] = pair.daemons();
    let mut doomed = Streams::start(CLIENT, (&mut a, "a"), (Some(&mut b), "b"), NetnsPair::IPV4[0], &[]);
    doomed.lender.kill();
    writer_saw_the_end(&mut doomed);
    a.wait_until_unused("a", CLEAN_UP);
    b.wait_until_unused("b", CLEAN_UP);
    // The whole daemon dies: no answer at all.
    let mut doomed = Streams::start(CLIENT, (&mut a, "a"), (Some(&mut b), "b"), NetnsPair::IPV4[0], &[]);
    a.process().kill();
    let output = doomed.writer.succeed(GIVE_UP);
    assert!(output.contains("status 12 ") && output.contains("flushed"), "retries are exceeded:\n{output}");
    // It comes back in the same place, and so does the traffic.
    drop(doomed);
    a.restart();
    a.add_device("a", NetnsPair::IPV4[0]);
    let mut again = Streams::start(CLIENT, (&mut a, "a"), (Some(&mut b), "b"), NetnsPair::IPV4[0], &["--count", "50"]);
    again.writer.succeed(GIVE_UP);
}

/// OS-04: a program with a hundred queue pairs under traffic is killed, 500 times; nothing of it stays.
#[test]
fn killed_programs_with_many_queue_pairs_leave_nothing_behind() {
    const ROUNDS: u32 = 500;
    let _turn = one_at_a_time();
    let mut daemon = daemon_with(&["a"]);
    let mut before = None;
    for round in 0..ROUNDS {
        let mut crowd = daemon.run("a", &[CLIENT, "crowd", "--queue-pairs", "100"]);
        crowd.wait_for_output("streaming", GIVE_UP);
        crowd.kill();
        daemon.wait_until_unused("a", CLEAN_UP);
        // The first rounds may fill caches of the allocator.
        if round == 20 {
            before = Some((daemon.open_descriptors(), daemon.mappings(), daemon.resident_bytes()));
        }
    }
    let (descriptors, mappings, resident) = before.expect("enough rounds");
    is_clean(&daemon, descriptors, mappings);
    let grown = daemon.resident_bytes().saturating_sub(resident);
    assert!(grown < 4 << 20, "the daemon grew by {grown} bytes in {ROUNDS} rounds");
}

/// ST-07: kill and connect again at once, many times.
#[test]
fn killing_and_connecting_again_leaves_nothing_behind() {
    let _turn = one_at_a_time();
    let mut daemon = daemon_with(&["a", "b"]);
    let mut before = None;
    for round in 0..100 {
        let mut pair = streams(&mut daemon, "a", "b", &["--size", "65536"]);
        if round % 2 == 0 {
            pair.lender.kill()
        } else {
            pair.writer.kill()
        }
        pair.lender.kill();
        pair.writer.kill();
        drop(pair);
        daemon.wait_until_unused("a", CLEAN_UP);
        daemon.wait_until_unused("b", CLEAN_UP);
        // The first rounds may fill caches of the allocator.
        if round == 5 {
            before = Some((daemon.open_descriptors(), daemon.mappings(), daemon.resident_bytes()));
        }
    }
    let (descriptors, mappings, resident) = before.expect("more than five rounds");
    is_clean(&daemon, descriptors, mappings);
    let grown = daemon.resident_bytes().saturating_sub(resident);
    assert!(grown < 4 << 20, "the daemon grew by {grown} bytes in 94 rounds");
}

#[test]
fn programs_learn_of_the_daemons_death_and_never_hang() {
    let _turn = one_at_a_time();
    let mut daemon = daemon_with(&["a", "b"]);
    let mut pair = streams(&mut daemon, "a", "b", &[]);
    daemon.process().kill();
    let output = pair.writer.succeed(GIVE_UP);
    assert!(output.contains("async event 8"), "a fatal event of the device in:\n{output}");
    for call in ["alloc_pd", "reg_mr", "create_cq", "modify_qp", "query_qp"] {
        assert!(output.contains(&format!("{call} error")), "{call} must fail in:\n{output}");
    }
    drop(pair);
    daemon.restart();
    daemon.add_device("a", "203.0.113.1");
    daemon.add_device("b", "203.0.113.2");
    streams(&mut daemon, "a", "b", &["--count", "20"]).writer.succeed(GIVE_UP);
}

#[test]
fn perftest_ends_when_the_daemon_dies() {
    let _turn = one_at_a_time();
    if missing_program(&["ib_write_bw"]) {
        return;
    }
    let mut daemon = daemon_with(&["a", "b"]);
    let port = free_port().to_string();
    let words = ["ib_write_bw", "-p", &port, "-n", "100000000", "-s", "65536"];
    let mut server = daemon.run("a", &words);
    tests::matrix::wait_until_listening(&mut server, &port);
    let mut client = daemon.run("b", &[&words[..], &["127.0.0.1"]].concat());
    let deadline = Instant::now() + GIVE_UP;
    while daemon.device("b")["clients"].as_array().is_none_or(Vec::is_empty) {
        assert!(Instant::now() < deadline && client.is_running(), "{}", client.output());
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(300));
    daemon.process().kill();
    let ended = client.end(GIVE_UP);
    assert!(!ended.status.success(), "a run that was cut off is a failure:\n{}", ended.output);
    server.kill();
}

/// DM-13: a device removed while it is in use ends its clients only.
#[test]
fn a_device_removed_in_use_ends_its_clients_only() {
    let _turn = one_at_a_time();
    let mut daemon = daemon_with(&["a", "b", "c", "d"]);
    let mut doomed = streams(&mut daemon, "a", "b", &[]);
    let mut others = streams(&mut daemon, "c", "d", &["--count", "400", "--size", "65536"]);
    let removed = daemon.cli(&["dev", "del", "a"]);
    assert!(removed.status.success(), "{}", removed.output);
    writer_saw_the_end(&mut doomed);
    others.writer.succeed(GIVE_UP);
    drop((doomed, others));
    daemon.add_device("a", "203.0.113.1");
    streams(&mut daemon, "a", "b", &["--count", "20"]).writer.succeed(GIVE_UP);
    // The writer's own device is removed: the program learns it.
    let mut doomed = streams(&mut daemon, "a", "b", &[]);
    let removed = daemon.cli(&["dev", "del", "b"]);
    assert!(removed.status.success(), "{}", removed.output);
    let output = doomed.writer.succeed(GIVE_UP);
    assert!(output.contains("async event 8"), "a fatal event of the device in:\n{output}");
}

/// DM-13: every order of ending both programs and both devices; then the daemon ends as it should.
#[test]
fn every_order_of_the_end_is_fine() {
    let _turn = one_at_a_time();
    let mut daemon = daemon_with(&["a", "b", "c", "d"]);
    let ends = ["lender", "writer", "a", "b"];
    for number in 0..24 {
        // The permutation with this number, by the factorial number system.
        let mut left = ends.to_vec();
        let order: Vec<&str> = [number / 6, number / 2 % 3, number % 2, 0].map(|at| left.remove(at)).into();
        let mut pair = streams(&mut daemon, "a", "b", &["--size", "65536"]);
        for end in &order {
            match *end {
                "lender" => pair.lender.kill(),
                "writer" => pair.writer.kill(),
                device => {
                    let (status, answer) = daemon.http("DELETE", &format!("/v1/devices/{device}"), "");
                    assert_eq!(status, 204, "{order:?}: {answer}");
                }
            }
        }
        assert!(daemon.process().is_running(), "{order:?}: {}", daemon.process().output());
        for (number, device) in ["a", "b"].into_iter().enumerate() {
            daemon.add_device(device, &format!("203.0.113.{}", number + 1));
        }
    }
    let mut pair = streams(&mut daemon, "c", "d", &["--count", "20", "--size", "65536"]);
    pair.writer.succeed(GIVE_UP);
    daemon.process().signal(Signal::SIGTERM);
    let ended = daemon.process().end(GIVE_UP);
    assert!(ended.status.success(), "{}\n{}", ended.status, ended.output);
}

/// OS-12: a daemon that is stopped for longer than all retries last goes on where it was: its own timers do not run out at once
/// for answers that came meanwhile.
#[test]
fn a_stopped_daemon_goes_on_where_it_was() {
    let _turn = one_at_a_time();
    if missing_program(&["ip"]) || need_root("network namespaces") {
        return;
    }
    let pair = NetnsPair::new(9000);
    let [mut a, mut b] = pair.daemons();
    let options = ["--count", "4000", "--size", "65536"];
    let mut streams = Streams::start(CLIENT, (&mut a, "a"), (Some(&mut b), "b"), NetnsPair::IPV4[0], &options);
    b.process().signal(Signal::SIGSTOP);
    // Eight attempts of up to 4 x 67 ms.
    std::thread::sleep(Duration::from_millis(2500));
    b.process().signal(Signal::SIGCONT);
    // The receiving one, for less than the retries last.
    a.process().signal(Signal::SIGSTOP);
    std::thread::sleep(Duration::from_millis(200));
    a.process().signal(Signal::SIGCONT);
    streams.writer.succeed(GIVE_UP);
}

/// DM-11: signals during work end the daemon soon, and its sockets with it.
#[test]
fn signals_end_the_daemon_cleanly() {
    let _turn = one_at_a_time();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut daemon = daemon_with(&["a", "b"]);
        let pair = streams(&mut daemon, "a", "b", &[]);
        let api = daemon.api_socket();
        let creating = std::thread::spawn(move || {
            for number in 0..200 {
                let body = format!(r#"{{"ips":["198.51.100.{number}"]}}"#);
                // The daemon may be gone at any moment.
                let _ = tests::http(&api, "PUT", &format!("/v1/devices/n{number}"), &body);
            }
        });
        std::thread::sleep(Duration::from_millis(20));
        daemon.process().signal(signal);
        std::thread::sleep(Duration::from_millis(5));
        // A second one changes nothing; the daemon may have ended already.
        if daemon.process().is_running() {
            daemon.process().signal(signal);
        }
        let ended = daemon.process().end(Duration::from_secs(5));
        assert!(ended.status.success(), "{signal}: {}\n{}", ended.status, ended.output);
        creating.join().expect("the creating thread ends well");
        assert!(!daemon.api_socket().exists(), "{signal}: the control socket stays");
        let sockets: Vec<_> = std::fs::read_dir(daemon.folder().join("dev")).into_iter().flatten().flatten().collect();
        assert!(sockets.is_empty(), "{signal}: device sockets stay: {sockets:?}");
        drop(pair);
    }
}
