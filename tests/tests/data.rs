//! Data checked end to end: random sizes from 0 B to 64 MiB, offsets, buffer lists, all operations, private and shared memory;
//! contents and surroundings compared. On the local path, on the wire with both path MTUs, and with faults injected in the port.

use std::time::{Duration, Instant};
use tests::matrix::{self, Report, Row, Side, free_port, wait_until_listening};
use tests::{Daemon, DaemonOptions, NetnsPair, missing_program, need_root, one_at_a_time};

const CLIENT: &str = env!("CARGO_BIN_EXE_verbs-client");
const LIMIT: Duration = Duration::from_secs(240);

/// What the two programs do.
struct Plan {
    rounds: u32,
    max_bytes: u64,
    /// `enum ibv_mtu`.
    mtu_code: u32,
}

/// A fresh seed each time, printed by the program when something fails; `VRDMA_TEST_SEED` repeats a run.
fn seed() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    std::env::var("VRDMA_TEST_SEED").unwrap_or_else(|_| now.as_micros().to_string())
}

fn compare(server: &mut Daemon, client: Option<&mut Daemon>, address: &str, plan: &Plan) {
    compare_while(server, client, address, plan, || ());
}

/// The same, and something happens `meanwhile`.
fn compare_while(server: &mut Daemon, client: Option<&mut Daemon>, address: &str, plan: &Plan, meanwhile: impl FnOnce()) {
    let port = free_port().to_string();
    let (rounds, max, mtu) = (plan.rounds.to_string(), plan.max_bytes.to_string(), plan.mtu_code.to_string());
    let seed = seed();
    let options = ["data", "--seed", &seed, "--rounds", &rounds, "--max", &max, "--mtu-code", &mtu];
    let mut listening = server.run("a", &[&[CLIENT], &options[..], &["--listen", &port]].concat());
    wait_until_listening(&mut listening, &port);
    let at = format!("{address}:{port}");
    let daemon = client.unwrap_or(server);
    let mut connecting = daemon.run("b", &[&[CLIENT], &options[..], &["--connect", &at]].concat());
    meanwhile();
    let ended = connecting.end(LIMIT);
    let other = listening.end(LIMIT);
    let (ours, theirs) = (&ended.output, &other.output);
    assert!(ended.status.success() && other.status.success(), "seed {seed}\nclient: {ours}\nserver: {theirs}");
    assert!(ended.output.contains("OK "), "{ours}");
}

#[test]
fn local_path() {
    let _turn = one_at_a_time();
    let mut daemon = Daemon::start();
    daemon.add_device("a", "203.0.113.1");
    daemon.add_device("b", "203.0.113.2");
    compare(&mut daemon, None, "127.0.0.1", &Plan { rounds: 600, max_bytes: 64 << 20, mtu_code: 3 });
}

/// Two daemons over veth, with faults in their ports.
fn wire(ethernet_mtu: u32, faults: Option<&str>, plan: &Plan) {
    let _turn = one_at_a_time();
    if missing_program(&["ip"]) || need_root("network namespaces") {
        return;
    }
    let pair = NetnsPair::new(ethernet_mtu);
    let options = [0, 1].map(|end| {
        let env = faults.map(|faults| ("VRDMA_FAULTS".to_owned(), format!("{faults},seed={}", end + 1)));
        DaemonOptions { env: env.into_iter().collect(), ..DaemonOptions::default() }
    });
    let [mut server, mut client] = pair.daemons_with(options);
    compare(&mut server, Some(&mut client), NetnsPair::IPV4[0], plan);
    let counters: Vec<String> =
        [(&server, "a"), (&client, "b")].map(|(daemon, device)| daemon.device(device)["counters"].to_string()).into();
    println!("counters: {counters:?}");
    if faults.is_some() {
        for (daemon, device) in [(&server, "a"), (&client, "b")] {
            let counters = daemon.device(device)["counters"].clone();
            let seen = ["out_of_seq_request", "duplicate_request", "completer_retry_err", "rcvd_seq_err", "implied_nak_err"];
            let sum: u64 = seen.iter().filter_map(|name| counters[*name].as_u64()).sum();
            assert!(sum > 0, "faults were injected, yet none was noticed: {counters}");
        }
    }
}

#[test]
fn wire_mtu_1024() {
    wire(1500, None, &Plan { rounds: 300, max_bytes: 64 << 20, mtu_code: 3 });
}

#[test]
fn wire_mtu_4096() {
    wire(9000, None, &Plan { rounds: 300, max_bytes: 64 << 20, mtu_code: 5 });
}

const FAULTS: &str = "loss=0.01,reorder=0.01,duplicate=0.01";

#[test]
fn wire_mtu_1024_with_loss_reordering_and_duplication() {
    wire(1500, Some(FAULTS), &Plan { rounds: 120, max_bytes: 64 << 20, mtu_code: 3 });
}

#[test]
fn wire_mtu_4096_with_loss_reordering_and_duplication() {
    wire(9000, Some(FAULTS), &Plan { rounds: 120, max_bytes: 64 << 20, mtu_code: 5 });
}

/// Packets over a link from which on data has gone over it, and not just what hosts say to find each other.
const IN_USE: u64 = 100;
const LINKS: usize = 4;

fn links_in_use(pair: &NetnsPair, end: usize) -> Vec<usize> {
    let sent = pair.sent_over_links(end);
    (0..LINKS).filter(|&link| sent[link] > IN_USE).collect()
}

/// Four links between the daemons, of which one goes dead, and tells nobody, when so many have carried data.
fn links(paths: [&str; 2], used: usize) {
    let _turn = one_at_a_time();
    if missing_program(&["ip", "sysctl"]) || need_root("network namespaces") {
        return;
    }
    let pair = NetnsPair::with_links(9000, LINKS);
    let options = paths.map(|paths| DaemonOptions { words: vec!["--paths".into(), paths.into()], ..DaemonOptions::default() });
    let [mut server, mut client] = pair.daemons_with(options);
    let in_use = || links_in_use(&pair, 1);
    let plan = Plan { rounds: 300, max_bytes: 16 << 20, mtu_code: 5 };
    // The programs' own connection is not to die with the link.
    compare_while(&mut server, Some(&mut client), NetnsPair::ASIDE, &plan, || {
        let deadline = Instant::now() + LIMIT;
        while in_use().len() < used {
            assert!(Instant::now() < deadline, "data goes over the links {:?}", in_use());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(used > 1 || in_use().len() == 1, "one path, and data goes over the links {:?}", in_use());
        let dead = in_use()[0];
        pair.lose_silently(dead);
        println!("a link of {used} died: no data for {:?} at most in the second after it", longest_pause(&pair, dead));
    });
    assert!(in_use().len() > 1, "data went over the links {:?} only", in_use());
    for (daemon, device) in [(&server, "a"), (&client, "b")] {
        let counters = daemon.device(device)["counters"].clone();
        println!("counters: {counters}");
        assert_eq!(counters["sent_spray_pkts"] != 0, paths == ["64", "64"], "{device} with {paths:?} paths: {counters}");
    }
}

/// The longest time within the next second in which the links that are left carried nothing, if they
/// did carry something after it.
fn longest_pause(pair: &NetnsPair, dead: usize) -> Duration {
    let sent = || {
        pair.sent_over_links(1)[..LINKS].iter().enumerate().filter(|&(link, _)| link != dead).map(|(_, sent)| sent).sum::<u64>()
    };
    let until = Instant::now() + Duration::from_secs(1);
    let (mut longest, mut moved_at, mut before) = (Duration::ZERO, Instant::now(), sent());
    while Instant::now() < until {
        let now = sent();
        if now > before {
            longest = longest.max(moved_at.elapsed());
            (moved_at, before) = (Instant::now(), now);
        }
    }
    longest
}

#[test]
fn many_paths_over_four_links_of_which_one_dies() {
    links(["64", "64"], LINKS);
}

#[test]
fn one_path_that_dies() {
    links(["1", "1"], 1);
}

/// Unmodified programs, each operation on many paths: most of what the one sends that has the data is of the extension, and several links carry it.
#[test]
fn programs_on_many_paths() {
    let _turn = one_at_a_time();
    let rows = [
        ("ib_write_bw", "-m 4096 -n 400"),
        ("ib_read_bw", "-m 4096 -n 400"),
        ("ib_send_bw", "-m 4096 -n 400"),
        ("ib_atomic_bw", "-A FETCH_AND_ADD -n 5000"),
        ("ib_atomic_bw", "-A CMP_AND_SWAP -n 5000"),
    ];
    if missing_program(&["ip", "sysctl", "ib_write_bw"]) || need_root("network namespaces") {
        return;
    }
    for (program, options) in rows {
        let pair = NetnsPair::with_links(9000, LINKS);
        let options_of = || DaemonOptions { words: vec!["--paths".into(), "64".into()], ..DaemonOptions::default() };
        let [mut server, mut client] = pair.daemons_with([options_of(), options_of()]);
        let side = Side { daemon: &mut server, device: "a" };
        let row = Row { program, options, report: Report::ONE_SIZE };
        matrix::run(&row, side, "b", Some(&mut client), NetnsPair::ASIDE);
        for (end, (daemon, device)) in [(&server, "a"), (&client, "b")].into_iter().enumerate() {
            let counters = daemon.device(device)["counters"].clone();
            let [sent, sprayed] = ["sent_pkts", "sent_spray_pkts"].map(|name| counters[name].as_u64().expect("a count"));
            println!("{program} {device}: {counters}");
            let is_heavy = end == usize::from(program != "ib_read_bw");
            assert!(!is_heavy || sprayed * 2 > sent, "{program} {options}, {device}: {sprayed} of {sent} packets");
            // Paths that do well are used again and again; they need not lie on all links.
            let used = links_in_use(&pair, end).len();
            assert!(!is_heavy || used > 1, "{program} {options}: {used} links with data");
        }
    }
}

/// A peer that keeps to one path has the other one do so too.
#[test]
fn one_path_that_dies_on_the_way_to_one_that_offers_more() {
    links(["1", "64"], 1);
    links(["64", "1"], 1);
}
