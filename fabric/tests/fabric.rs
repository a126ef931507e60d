//! Whole fabrics whose outcome can be worked out by hand, and what each mechanism is for.

use fabric::{Report, Scenario, Sim};

fn run_with(text: &str, trace: Option<&str>) -> Report {
    let mut sim = Sim::new(&Scenario::parse(text).unwrap(), trace).unwrap();
    sim.run();
    let report = sim.report();
    assert_eq!(report.violations, Vec::<String>::new(), "{text}");
    report
}

fn run(text: &str) -> Report {
    run_with(text, None)
}

fn two_tiers(leaves: u32, spines: u32, hosts_per_leaf: u32) -> String {
    format!("topology.leaves = {leaves}\ntopology.spines = {spines}\ntopology.hosts_per_leaf = {hosts_per_leaf}\n")
}

const TRACE: &str = "workload.pattern = \"trace\"\nworkload.file = \"given\"\n";

/// One packet over two links there and its acknowledgement back: every term of the time is known.
#[test]
fn an_idle_network_takes_as_long_as_its_links_do() {
    let text = format!("{}{TRACE}topology.rate_gbps = 100\ntopology.delay_us = 1\n", two_tiers(1, 1, 2));
    let report = run_with(&text, Some("0,0,1,4096"));
    // BTH, RETH and immediate data; ICRC; Ethernet, IP and UDP around them. The acknowledgement has an AETH, and is padded to the
    // shortest frame.
    let (data, ack) = (4096 + 12 + 16 + 4 + 4 + 46, 16 + 4 + 46);
    let wanted_us = 2.0 * f64::from(data + ack) * 80e-6 + 4.0;
    assert!((report.completion_us.max - wanted_us).abs() < 1e-9, "{} instead of {wanted_us}", report.completion_us.max);
    assert_eq!((report.packets.sent, report.packets.received, report.packets.received_data), (2, 2, 1));
}

#[test]
fn a_long_transfer_fills_its_link() {
    let text = format!("{}{TRACE}", two_tiers(1, 1, 2));
    let report = run_with(&text, Some("0,0,1,20000000"));
    let rate = 20e6 * 8.0 / (report.completion_us.max * 1000.0);
    assert!(rate > 96.0, "{rate} Gb/s of payload over a link of 100");
    assert_eq!(report.packets.dropped(), 0);
}

#[test]
fn what_is_sent_to_one_shares_its_link() {
    let text = format!("{}workload.pattern = \"incast\"\nworkload.bytes = 1000000\n", two_tiers(2, 2, 4));
    let report = run(&text);
    assert_eq!(report.succeeded, 7);
    let least_us = 7.0 * 1e6 * 80e-6;
    assert!(report.all_done_us > least_us, "{} us for what takes {least_us}", report.all_done_us);
    assert!(report.packets.dropped_full > 0);
}

#[test]
fn trimming_cuts_where_else_is_dropped() {
    let text = format!("{}workload.pattern = \"incast\"\nworkload.bytes = 500000\nqueue.trim = true\n", two_tiers(2, 2, 4));
    let report = run(&text);
    assert_eq!((report.succeeded, report.packets.dropped_full), (7, 0));
    assert!(report.packets.trimmed > 0);
    assert_eq!(report.cores.malformed, report.packets.trimmed, "a core without spray drops what is left of them");
}

#[test]
fn with_pauses_nothing_is_dropped() {
    let text = format!(
        "{}workload.pattern = \"incast\"\nworkload.bytes = 500000\nqueue.pfc_pause_bytes = 40000\ntransport.ack_timeout = 10\n",
        two_tiers(2, 2, 4)
    );
    let report = run(&text);
    assert_eq!((report.succeeded, report.packets.dropped()), (7, 0));
    assert!(report.packets.pauses > 0);
    assert_eq!(report.packets.sent, report.packets.received);
}

#[test]
fn marks_come_before_drops() {
    let marks = "queue.mark_low_bytes = 20000\nqueue.mark_high_bytes = 60000\nqueue.limit_bytes = 100000000\n";
    let text = format!(
        "{}workload.pattern = \"incast\"\nworkload.bytes = 500000\n{marks}transport.ack_timeout = 10\n",
        two_tiers(2, 2, 4)
    );
    let report = run(&text);
    assert_eq!(report.packets.dropped(), 0);
    assert!(report.packets.marked > 0);
}

#[test]
fn a_dead_link_is_left_out_by_the_switches_that_know() {
    let down = "[[faults.link]]\nbetween = [\"leaf0\", \"spine1\"]\n";
    let trace: String = (0..4).map(|n| format!("0,{n},{},20000\n", n + 4)).collect();
    // Requests leave by a leaf that knows. Acknowledgements come from one that does not, and some choose the dead way.
    let report = run_with(&format!("{}{TRACE}{down}", two_tiers(2, 2, 4)), Some(&trace));
    let packets = report.packets;
    assert!(packets.dropped_no_route > 0 && packets.dropped_no_route == packets.dropped(), "{packets:?}");
    assert_eq!(report.succeeded + report.failed, 4);
    // When everybody knows, nothing is lost.
    let report = run_with(&format!("{}{TRACE}faults.reroute_us = 0\n{down}", two_tiers(2, 2, 4)), Some(&trace));
    assert_eq!((report.succeeded, report.packets.dropped()), (4, 0));
}

#[test]
fn a_host_that_is_cut_off_fails_its_transfers_and_no_others() {
    let text = format!("{}{TRACE}faults.switch = [{{ name = \"leaf1\", at_us = 5 }}]\n", two_tiers(3, 2, 2));
    let report = run_with(&text, Some("0,0,2,1000000\n0,0,4,1000000\n0,2,0,5000,0\n"));
    assert_eq!((report.succeeded, report.failed, report.cancelled), (1, 1, 1));
}

#[test]
fn two_planes_carry_more_than_one() {
    let text = |planes| {
        format!(
            "{}topology.planes = {planes}\nworkload.pattern = \"all-to-all\"\nworkload.bytes = 200000\n",
            two_tiers(2, 2, 4)
        )
    };
    let (one, two) = (run(&text(1)), run(&text(2)));
    assert_eq!(two.switches, 2 * one.switches);
    assert!(two.all_done_us < one.all_done_us, "{} and {} us", two.all_done_us, one.all_done_us);
}

#[test]
fn what_waits_for_others_starts_after_them() {
    let text = format!("{}{TRACE}", two_tiers(1, 1, 4));
    let report = run_with(&text, Some("0,0,1,1000\n0,1,2,1000,0\n100,2,3,0,1\n"));
    assert_eq!(report.succeeded, 3);
    assert!(report.all_done_us > 100.0 && report.completion_us.max < 10.0, "{report:?}");
}

#[test]
fn real_and_synthetic_payload_take_the_same_time() {
    for operation in ["write", "send", "read"] {
        let text = |real| {
            format!(
                "{}workload.bytes = 100001\nworkload.operation = \"{operation}\"\nreal_payload = {real}\nfaults.loss = 0.001\n",
                two_tiers(2, 2, 2)
            )
        };
        let (real, synthetic) = (run(&text(true)), run(&text(false)));
        assert_eq!(real.completion_us, synthetic.completion_us, "{operation}");
        assert_eq!(real.packets, synthetic.packets, "{operation}");
    }
}

/// A flag that is written after data over paths that reorder: it never arrives before them. That bytes are all there when a
/// completion says so, and completions in order, is checked in every run.
#[test]
fn what_is_written_later_arrives_later_over_paths_that_reorder() {
    let text =
        format!("{}{TRACE}faults.delay = 0.2\nfaults.delay_max_us = 20\ntransport.ack_timeout = 8\n", two_tiers(2, 4, 2));
    let trace: String = (0..200).map(|_| "0,0,2,6000\n0,0,2,8\n").collect();
    let report = run_with(&text, Some(&trace));
    assert_eq!(report.succeeded, 400);
    assert!(report.packets.delayed > 100 && report.cores.out_of_sequence > 10, "{:?}", report.packets);
}

/// The configuration that is compared with a published simulator, with 16 hosts: a flow that meets no other takes as long as there.
#[test]
fn a_flow_of_the_reference_takes_as_long_as_there() {
    let mut sim = Sim::new(&fabric::reference::scenario(4, 1), None).unwrap();
    sim.run();
    let report = sim.report();
    assert_eq!((report.violation_count, report.succeeded), (0, 16));
    let [_, single_path, ..] = fabric::reference::RUNS;
    let reference = single_path.reference_us[0];
    let ratio = report.completion_us.min / reference;
    assert!((0.98..1.02).contains(&ratio), "{} and {reference} us", report.completion_us.min);
}

/// On many paths a permutation ends in less than half the time that it takes on one each, with shorter queues between the switches.
#[test]
fn many_paths_beat_one() {
    let [oblivious, single_path, ..] = fabric::reference::RUNS;
    let run = |run: fabric::reference::Run| {
        let mut sim = Sim::new(&run.scenario(8, 3), None).unwrap();
        sim.run();
        let report = sim.report();
        assert_eq!((report.violation_count, report.succeeded), (0, 128), "{:?}", report.violations);
        report
    };
    let (many, one) = (run(oblivious), run(single_path));
    let (many_us, one_us) = (many.completion_us.max, one.completion_us.max);
    assert!(many_us * 2.0 < one_us, "{many_us} and {one_us} us");
    assert!(many.packets.trimmed < one.packets.trimmed, "{} and {}", many.packets.trimmed, one.packets.trimmed);
    assert_eq!(run(oblivious).event_hash, many.event_hash, "the same again");
}

/// The same with a link down in the middle of it: what was on it is sent again another way.
#[test]
fn a_dead_link_costs_little_on_many_paths() {
    let [oblivious, ..] = fabric::reference::RUNS;
    let healthy = oblivious.scenario(8, 3);
    let mut broken = healthy.clone();
    broken.faults.link.push(fabric::fault::LinkFault {
        between: ["agg0".to_owned(), "core0".to_owned()],
        from_us: 50.0,
        to_us: None,
        rate: None,
        times: None,
        every_us: None,
    });
    let run = |scenario: &Scenario| {
        let mut sim = Sim::new(scenario, None).unwrap();
        sim.run();
        let report = sim.report();
        assert_eq!((report.violation_count, report.succeeded), (0, 128), "{:?}", report.violations);
        report.completion_us
    };
    let (healthy, broken) = (run(&healthy), run(&broken));
    assert!(broken.p50 < healthy.p50 * 1.1, "{} and {} us", broken.p50, healthy.p50);
}
