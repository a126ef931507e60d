//! What devices of one core get of it: shares by weight, rates, and small messages ahead of large ones.

mod harness;

use harness::*;
use isolation::{Class, Settings};
use rnic::*;
use roce::Instant;
use std::time::Duration;

const LONG: u32 = 1 << 20;

/// One core with a device that takes everything, and devices that write to it.
struct Bench {
    world: World,
    sink: End,
    buf: Vec<u8>,
}

/// A device with some connections to the sink.
struct Writer {
    device: DeviceId,
    ends: Vec<End>,
    sink: End,
}

impl Bench {
    fn new() -> Self {
        let mut world = World::new(Setup { depth: 4, all_signaled: false, ..Setup::new(Route::Local) });
        let sink = world.end();
        Bench { world, sink, buf: vec![0; 60 << 10] }
    }

    fn writer(&mut self, connections: usize) -> Writer {
        let first = self.world.end();
        let ends = (0..connections).map(|_| {
            let end = End { qpn: self.world.queue_pair(&first), ..first };
            let peer = End { qpn: self.world.queue_pair(&self.sink), ..self.sink };
            self.world.connect(&end, &peer);
            end
        });
        Writer { device: first.device, ends: ends.collect(), sink: self.sink }
    }

    fn set(&mut self, writer: &Writer, settings: Settings) {
        self.world.nics[0].set_shares(self.world.now, writer.device, settings).unwrap();
    }

    /// Keeps two requests of `len` bytes posted on each connection.
    fn feed(&mut self, writer: &Writer, len: u32) {
        for end in &writer.ends {
            while self.world.try_send(end, 1, write(&writer.sink, 0), &[end.at(0, len)]).is_ok() {}
        }
    }

    /// One turn; false if nobody may go. A byte takes a nanosecond.
    fn turn(&mut self) -> bool {
        let World { now, nics, memory, .. } = &mut self.world;
        nics[0].handle_timeout(*now);
        match nics[0].poll_transmit(*now, memory, &mut self.buf) {
            Some(Work::Copied { bytes, .. }) => *now = *now + Duration::from_nanos(bytes.max(100)),
            Some(Work::Packets(_)) => panic!("packets on the local path"),
            None => match nics[0].poll_timeout().filter(|at| at > now) {
                Some(at) => *now = at,
                None => return false,
            },
        }
        while nics[0].poll_completion().is_some() {}
        true
    }

    /// Turns for so long, while all writers have 1 MiB requests without end.
    fn run(&mut self, writers: &[&Writer], time: Duration) {
        let end = self.world.now + time;
        while self.world.now < end {
            for writer in writers {
                self.feed(writer, LONG);
            }
            assert!(self.turn());
        }
    }

    fn moved(&self, writer: &Writer) -> u64 {
        self.world.nics[0].counters(writer.device).unwrap().local_bytes
    }
}

#[track_caller]
fn assert_near(value: f64, expected: f64) {
    assert!((value / expected - 1.0).abs() < 0.05, "{value} is not about {expected}");
}

#[test]
fn more_connections_give_no_more() {
    let mut bench = Bench::new();
    let (one, many) = (bench.writer(1), bench.writer(16));
    bench.run(&[&one, &many], Duration::from_millis(100));
    assert_near(bench.moved(&many) as f64 / bench.moved(&one) as f64, 1.0);
}

#[test]
fn weights_are_shares_at_once() {
    let mut bench = Bench::new();
    let (light, heavy) = (bench.writer(2), bench.writer(1));
    bench.set(&heavy, Settings { weight: 300, ..Settings::default() });
    bench.run(&[&light, &heavy], Duration::from_millis(100));
    assert_near(bench.moved(&heavy) as f64 / bench.moved(&light) as f64, 3.0);
    let before = (bench.moved(&light), bench.moved(&heavy));
    bench.set(&heavy, Settings::default());
    bench.run(&[&light, &heavy], Duration::from_millis(100));
    let got = (bench.moved(&light) - before.0, bench.moved(&heavy) - before.1);
    assert_near(got.1 as f64 / got.0 as f64, 1.0);
}

#[test]
fn a_highest_rate_is_kept_and_nobody_waits_for_ever() {
    let mut bench = Bench::new();
    let slow = bench.writer(4);
    bench.set(&slow, Settings { max_bytes_per_sec: Some(10_000_000), burst_bytes: 1 << 16, ..Settings::default() });
    bench.run(&[&slow], Duration::from_secs(2));
    assert_near(bench.moved(&slow) as f64, 20_000_000.0);
}

#[test]
fn the_slowest_rate_still_moves() {
    let mut bench = Bench::new();
    let slow = bench.writer(1);
    bench.set(&slow, Settings { max_bytes_per_sec: Some(1), burst_bytes: 1, ..Settings::default() });
    bench.run(&[&slow], Duration::from_secs(3600 * 24));
    let moved = bench.moved(&slow);
    // A packet's worth at once, and then a byte each second.
    assert!((3600 * 24..3600 * 24 + 5000).contains(&moved), "{moved}");
}

#[test]
fn small_messages_go_ahead_of_long_ones() {
    let mut bench = Bench::new();
    let (bulk, quick) = (bench.writer(16), bench.writer(1));
    let end = quick.ends[0];
    let mut waits = Vec::new();
    for n in 0..200 {
        bench.feed(&bulk, LONG);
        for _ in 0..3 {
            assert!(bench.turn());
        }
        let posted = bench.world.now;
        bench.world.send(&end, n, write(&quick.sink, 64), &[end.at(0, 8)]);
        let before = bench.moved(&quick);
        while bench.moved(&quick) == before {
            assert!(bench.turn());
        }
        waits.push(bench.world.now.saturating_since(posted));
    }
    // The first ones are not known to be small and sparse yet. Later ones wait for no turn but their own.
    let worst = waits[isolation::class::STEADY.into()..].iter().max().unwrap();
    assert!(*worst <= Duration::from_nanos(100), "{worst:?}");
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut bench = Bench::new();
    let writer = bench.writer(1);
    let core = &mut bench.world.nics[0];
    let settings = Settings { weight: 0, class: Some(Class::Latency), ..Settings::default() };
    let error = core.set_shares(Instant::ZERO, writer.device, settings).unwrap_err();
    assert!(error.to_string().contains("1 to 10000, not 0"), "{error}");
    assert_eq!(core.shares(writer.device), Some(&Settings::default()));
    core.destroy_device(Instant::ZERO, writer.device);
    assert!(matches!(core.set_shares(Instant::ZERO, writer.device, settings), Err(ControlError::NotFound(_))));
}

/// One message of many is measured, from the post to the completion; bulk transfers are not, and what fails has no latency.
#[test]
fn what_small_messages_take_is_measured() {
    let (mut world, a, b) = World::pair(Setup::new(Route::Wire));
    world.send(&a, 0, write(&b, 0), &[a.at(0, LONG)]);
    world.run();
    let mut times = Vec::new();
    for n in 0..200 {
        let posted = world.now;
        world.send(&a, n, write(&b, 0), &[a.at(0, 8)]);
        while world.sent(&a).last().is_none_or(|done| done.wr_id != n) {
            world.run_for(Duration::from_nanos(500));
        }
        times.push(world.now.saturating_since(posted));
    }
    let nic = &mut world.nics[a.nic];
    let measured: Vec<_> = std::iter::from_fn(|| nic.poll_latency()).collect();
    assert!((10..=13).contains(&measured.len()), "{measured:?}");
    let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
    for (device, took) in measured {
        assert_eq!(device, a.device);
        assert!(took <= *most && took * 4 >= *least, "{took:?}, and all took {least:?} to {most:?}");
    }
    for n in 0..32 {
        world.send(&a, n, SendOp::Write { remote_addr: 0, rkey: bad_rkey(&b), imm: None }, &[a.at(0, 8)]);
        world.run();
        world.sent(&a);
        world.reconnect(&a, &b);
    }
    assert_eq!(world.nics[a.nic].poll_latency(), None);
}
