//! Tenants that try to get more than their weight: by registering without end, by many queue pairs, by floods of small messages. What the
//! others get is counted, not timed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tests::matrix::{free_port, wait_until_listening};
use tests::{ControlClient, Daemon, DaemonOptions, NetnsPair, Program, Streams, missing_program, need_root, one_at_a_time};
use vdev_abi::control::Request;

const CLIENT: &str = env!("CARGO_BIN_EXE_verbs-client");
const LIMIT: Duration = Duration::from_secs(120);
/// Connections of a tenant that registers without end.
const CHURNERS: usize = 16;
/// What the link carries: little enough for any machine.
const LINK: &str = "200M";
/// Bytes that the honest tenant is to get while it is watched.
const ENOUGH: u64 = 20_000_000;

#[test]
fn registrations_without_end_leave_others_their_calls_and_their_data() {
    let _turn = one_at_a_time();
    let mut daemon = Daemon::start();
    for (number, device) in ["churner", "a", "b"].into_iter().enumerate() {
        daemon.add_device(device, &format!("203.0.113.{}", number + 1));
    }
    let memory = vec![0u8; 1 << 20];
    let (stop, churned) = (AtomicBool::new(false), AtomicU64::new(0));
    let churners: Vec<_> = (0..CHURNERS)
        .map(|_| ControlClient::open(&daemon.device_socket("churner")).expect("the device can be opened"))
        .collect();
    std::thread::scope(|scope| {
        for (client, _fds) in &churners {
            scope.spawn(|| {
                let pd = client.alloc_pd();
                while !stop.load(Ordering::Relaxed) {
                    let (mr, ..) = client.reg_mr(pd, memory.as_ptr() as u64, memory.len() as u64);
                    client.granted(&Request::DeregMr { mr });
                    churned.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let before = churned.load(Ordering::Relaxed);
        let (honest, _fds) = ControlClient::open(&daemon.device_socket("a")).expect("the device can be opened");
        for _ in 0..200 {
            let pd = honest.alloc_pd();
            honest.granted(&Request::DeallocPd { pd });
        }
        let options = ["--count", "200", "--size", "65536"];
        let mut pair = Streams::start(CLIENT, (&mut daemon, "a"), (None, "b"), "127.0.0.1", &options);
        pair.writer.succeed(LIMIT);
        pair.lender.succeed(LIMIT);
        let meanwhile = churned.load(Ordering::Relaxed) - before;
        stop.store(true, Ordering::Relaxed);
        assert!(meanwhile > 0, "it went on all the time");
    });
    let counters = daemon.device("churner")["counters"].clone();
    let count = |name: &str| counters[name].as_u64().unwrap_or_else(|| panic!("no counter {name}"));
    assert!(count("control_calls") > 2 * churned.load(Ordering::Relaxed), "{counters}");
    assert!(count("control_waits") > 0 && count("control_us") > 0, "it waited for its turn: {counters}");
    assert_eq!(daemon.device("b")["counters"]["control_calls"].as_u64().map(|calls| calls > 0), Some(true));
}

/// A greedy and an honest tenant on one host, with their peers on another.
struct Rivals {
    _pair: NetnsPair,
    here: Daemon,
    there: Daemon,
}

impl Rivals {
    const ADDRESSES: [[&str; 2]; 2] = [["192.0.2.1", "192.0.2.2"], ["192.0.2.11", "192.0.2.12"]];
    const DEVICES: [&str; 2] = ["honest", "greedy"];

    fn new() -> Rivals {
        let pair = NetnsPair::new(9000);
        let mut daemons = [0, 1].map(|end| {
            pair.ip(end, &format!("addr add {}/24 dev wire", Self::ADDRESSES[1][end]));
            let words = ["--link-rate".to_owned(), LINK.to_owned()].to_vec();
            let mut daemon = pair.daemon_with(end, DaemonOptions { words, ..DaemonOptions::default() });
            for (device, addresses) in Self::DEVICES.into_iter().zip(Self::ADDRESSES) {
                daemon.add_device(device, addresses[end]);
            }
            daemon
        });
        daemons.reverse();
        let [there, here] = daemons;
        Rivals { _pair: pair, here, there }
    }

    /// Both ends of a transfer that does not end.
    fn transfer(&mut self, tenant: usize, words: &[&str]) -> [Program; 2] {
        let port = (18600 + tenant).to_string();
        let words = [&["ib_write_bw", "-F", "-D", "1000", "-p", &port], words].concat();
        let passive = self.there.run(Self::DEVICES[tenant], &words);
        let words = [&words[..], &[Self::ADDRESSES[tenant][1]]].concat();
        let deadline = Instant::now() + LIMIT;
        loop {
            let mut active = self.here.run(Self::DEVICES[tenant], &words);
            // One that finds no server ends at once.
            if active.wait(Duration::from_secs(1)).is_none() {
                return [passive, active];
            }
            assert!(Instant::now() < deadline, "no server: {}", active.output());
        }
    }

    /// Bytes that both have sent.
    fn sent(&self) -> [u64; 2] {
        Self::DEVICES.map(|device| {
            let counters = self.here.device(device)["counters"].clone();
            let names = ["latency_bytes", "message_rate_bytes", "bandwidth_bytes"];
            names.iter().map(|name| counters[name].as_u64().expect("a count")).sum()
        })
    }

    /// Both ends of connections whose receiver is never ready.
    fn starve(&mut self) -> [Program; 2] {
        let port = free_port().to_string();
        let device = Self::DEVICES[1];
        let mut passive = self.there.run(device, &[CLIENT, "starved", "--listen", &port]);
        wait_until_listening(&mut passive, &port);
        let mut active = self.here.run(device, &[CLIENT, "starved", "--connect", &format!("{}:{port}", Self::ADDRESSES[1][1])]);
        active.wait_for_output("starving", LIMIT);
        [passive, active]
    }

    /// Bytes of the greedy tenant for each of the honest one, once the honest one has had enough; both want more all the time.
    fn ratio(&mut self, greedy: &[&str]) -> f64 {
        let _greedy = self.transfer(1, greedy);
        self.ratio_to_running()
    }

    fn ratio_to_running(&mut self) -> f64 {
        let _honest = self.transfer(0, &["-s", "65536"]);
        let deadline = Instant::now() + LIMIT;
        let wait_for = |what: &dyn Fn([u64; 2]) -> bool| {
            loop {
                let sent = self.sent();
                if what(sent) {
                    return sent;
                }
                assert!(Instant::now() < deadline, "nothing moves after {sent:?}");
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        let begun = self.sent();
        let start = wait_for(&|sent| (0..2).all(|n| sent[n] > begun[n] + 100_000));
        let end = wait_for(&|sent| sent[0] > start[0] + ENOUGH);
        (end[1] - start[1]) as f64 / (end[0] - start[0]) as f64
    }
}

fn cannot_be_done() -> bool {
    missing_program(&["ip", "ib_write_bw"]) || need_root("network namespaces")
}

#[test]
fn many_queue_pairs_get_no_more_than_one() {
    let _turn = one_at_a_time();
    if cannot_be_done() {
        return;
    }
    let ratio = Rivals::new().ratio(&["-s", "65536", "-q", "256", "-t", "16"]);
    assert!((0.5..2.0).contains(&ratio), "{ratio}");
}

#[test]
fn a_flood_of_small_messages_gets_no_more_than_its_weight() {
    let _turn = one_at_a_time();
    if cannot_be_done() {
        return;
    }
    let ratio = Rivals::new().ratio(&["-s", "8", "-q", "8", "-l", "16"]);
    assert!(ratio < 1.5, "{ratio}");
}

#[test]
fn weights_are_kept_on_the_wire() {
    let _turn = one_at_a_time();
    if cannot_be_done() {
        return;
    }
    let mut rivals = Rivals::new();
    let set = rivals.here.cli(&["dev", "set", "greedy", "--weight", "300"]);
    assert!(set.status.success(), "{}", set.output);
    let ratio = rivals.ratio(&["-s", "65536"]);
    assert!((2.0..4.5).contains(&ratio), "{ratio}");
    // Who claims to be after latency is held to the lane's part, and pays for it.
    let set = rivals.here.cli(&["dev", "set", "greedy", "--weight", "100", "--class", "latency"]);
    assert!(set.status.success(), "{}", set.output);
    let ratio = rivals.ratio(&["-s", "65536"]);
    assert!((0.5..2.0).contains(&ratio), "a claim changes nothing: {ratio}");
}

#[test]
fn a_receiver_that_is_never_ready_takes_nothing_from_others() {
    let _turn = one_at_a_time();
    if cannot_be_done() {
        return;
    }
    let mut rivals = Rivals::new();
    let _starved = rivals.starve();
    let refused = |rivals: &Rivals| rivals.here.device("greedy")["counters"]["rcvd_rnr_err"].as_u64().expect("a count");
    let before = refused(&rivals);
    let ratio = rivals.ratio_to_running();
    let after = refused(&rivals);
    assert!(after > before + 100, "it tries all the time: {before} and {after} refusals");
    assert!(ratio < 1.5, "{ratio}");
}
