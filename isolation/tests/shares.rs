//! What tenants get, in virtual time: a resource that serves one turn after another, and queue pairs that always have more.

use isolation::{Arbiter, Class, Config, Cost, Flow, Policy, Settings, SettingsError, TenantId};
use roce::{Instant, Qpn};
use std::collections::BTreeMap;
use std::time::Duration;

/// 1 GB/s, packets free: one byte a nanosecond.
const CONFIG: Config = Config {
    policy: Policy::Shares,
    bytes_per_sec: 1_000_000_000,
    packets_per_sec: 1_000_000_000_000,
    quantum_bytes: 4096,
    short_quantum_bytes: 4096,
    short_quantum_packets: 1,
    lane_percent: 10,
    link_bytes_per_sec: None,
    receive_bytes_per_sec: None,
};

/// A queue pair that wants turns of `bytes` in `packets`, one after another without end.
#[derive(Clone, Copy)]
struct Load {
    bytes: u64,
    packets: u64,
}

struct Bench {
    arbiter: Arbiter,
    config: Config,
    now: Instant,
    flows: BTreeMap<Qpn, (Flow, Load)>,
    /// Bytes by tenant.
    served: BTreeMap<TenantId, u64>,
    packets: BTreeMap<TenantId, u64>,
}

impl Bench {
    fn new(config: Config) -> Self {
        Bench {
            arbiter: Arbiter::new(config),
            config,
            now: Instant::ZERO,
            flows: BTreeMap::new(),
            served: BTreeMap::new(),
            packets: BTreeMap::new(),
        }
    }

    fn tenant(&mut self, settings: Settings) -> TenantId {
        self.arbiter.add_tenant(settings, self.now).unwrap()
    }

    fn weighted(&mut self, weight: u32) -> TenantId {
        self.tenant(Settings { weight, ..Settings::default() })
    }

    /// `count` more queue pairs of a tenant.
    fn load(&mut self, tenant: TenantId, count: usize, bytes: u64, packets: u64) {
        for _ in 0..count {
            let qpn = Qpn::new(self.flows.len() as u32 + 1);
            let mut flow = Flow::new(tenant);
            self.arbiter.add(qpn, &mut flow, self.now);
            self.flows.insert(qpn, (flow, Load { bytes, packets }));
        }
    }

    /// One turn, or a wait for one; false when nobody will ever come.
    fn step(&mut self) -> bool {
        let Some(grant) = self.arbiter.take(self.now) else {
            let Some(at) = self.arbiter.poll_timeout() else { return false };
            assert!(at > self.now, "a time to wait for lies ahead");
            self.now = at;
            return true;
        };
        let (flow, load) = self.flows.get_mut(&grant.qpn).unwrap();
        assert_eq!(flow.tenant, grant.tenant);
        flow.begin_turn();
        let turns = (u64::from(grant.max_bytes) / load.bytes.max(1)).clamp(1, 16);
        let cost = Cost { bytes: load.bytes * turns, packets: load.packets * turns, within_message: false };
        let ns = (cost.bytes * 1_000_000_000 / self.config.bytes_per_sec)
            .max(cost.packets * 1_000_000_000 / self.config.packets_per_sec);
        self.now = self.now + Duration::from_nanos(ns);
        self.arbiter.add(grant.qpn, flow, self.now);
        self.arbiter.charge(&grant, cost, self.now);
        self.arbiter.note_sent(cost.bytes);
        *self.served.entry(grant.tenant).or_default() += cost.bytes;
        *self.packets.entry(grant.tenant).or_default() += cost.packets;
        true
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end && self.step() {}
    }

    /// Bytes that a tenant got, for each byte of another.
    fn ratio(&self, one: TenantId, other: TenantId) -> f64 {
        self.served[&one] as f64 / self.served[&other] as f64
    }
}

#[track_caller]
fn assert_near(value: f64, expected: f64, tolerance: f64) {
    assert!((value / expected - 1.0).abs() <= tolerance, "{value} is not {expected} within {tolerance}");
}

#[test]
fn equal_tenants_get_the_same_whatever_they_send() {
    let mut bench = Bench::new(CONFIG);
    let (small, large, many) = (bench.weighted(100), bench.weighted(100), bench.weighted(100));
    bench.load(small, 1, 100, 1);
    bench.load(large, 1, 4096, 1);
    bench.load(many, 256, 4096, 1);
    bench.run(Duration::from_millis(100));
    assert_near(bench.ratio(small, large), 1.0, 0.02);
    assert_near(bench.ratio(many, large), 1.0, 0.02);
}

#[test]
fn weights_are_shares() {
    let mut bench = Bench::new(CONFIG);
    let (one, three, heavy) = (bench.weighted(1), bench.weighted(3), bench.weighted(10));
    for tenant in [one, three, heavy] {
        bench.load(tenant, 2, 4096, 1);
    }
    bench.run(Duration::from_millis(100));
    assert_near(bench.ratio(three, one), 3.0, 0.02);
    assert_near(bench.ratio(heavy, one), 10.0, 0.02);
}

#[test]
fn shares_are_of_what_each_uses_most() {
    // Half of all packets cost as much as half of all bytes: 4096 bytes a packet at 1 GB/s against 1 M packets/s.
    let mut bench = Bench::new(Config { packets_per_sec: 1_000_000, ..CONFIG });
    let (bytes, messages) = (bench.weighted(100), bench.weighted(100));
    bench.load(bytes, 1, 4096, 1);
    bench.load(messages, 8, 16, 1);
    bench.run(Duration::from_millis(100));
    // In time: a 4096 byte packet takes 4096 ns, a small one 1000.
    let time = bench.packets[&messages] as f64 * 1000.0 / (bench.served[&bytes] as f64);
    assert_near(time, 1.0, 0.02);
}

#[test]
fn who_comes_back_is_not_owed_the_past() {
    let mut bench = Bench::new(CONFIG);
    let (steady, late) = (bench.weighted(100), bench.weighted(100));
    bench.load(steady, 1, 4096, 1);
    bench.run(Duration::from_millis(50));
    let before = bench.served[&steady];
    bench.load(late, 1, 4096, 1);
    bench.run(Duration::from_millis(50));
    assert_near((bench.served[&steady] - before) as f64, bench.served[&late] as f64, 0.02);
}

#[test]
fn the_highest_rate_holds_and_the_rest_goes_to_others() {
    let mut bench = Bench::new(CONFIG);
    let capped = bench.tenant(Settings { max_bytes_per_sec: Some(1_250_000), burst_bytes: 4096, ..Settings::default() });
    let free = bench.weighted(1);
    bench.load(capped, 4, 4096, 1);
    bench.load(free, 1, 4096, 1);
    bench.run(Duration::from_secs(1));
    assert_near(bench.served[&capped] as f64, 1_250_000.0, 0.01);
    assert_near(bench.served[&free] as f64, 998_750_000.0, 0.01);
    // Alone, it waits in between.
    let mut bench = Bench::new(CONFIG);
    let capped = bench.tenant(Settings { max_bytes_per_sec: Some(125_000_000), burst_bytes: 4096, ..Settings::default() });
    bench.load(capped, 4, 4096, 1);
    bench.run(Duration::from_secs(1));
    assert_near(bench.served[&capped] as f64, 125_000_000.0, 0.01);
}

#[test]
fn a_guarantee_comes_before_weights() {
    let mut bench = Bench::new(CONFIG);
    let sure = bench.tenant(Settings { weight: 1, min_bytes_per_sec: 300_000_000, burst_bytes: 4096, ..Settings::default() });
    bench.load(sure, 1, 4096, 1);
    for _ in 0..9 {
        let other = bench.weighted(100);
        bench.load(other, 1, 4096, 1);
    }
    bench.run(Duration::from_millis(200));
    assert_near(bench.served[&sure] as f64, 60_000_000.0, 0.03);
}

#[test]
fn a_link_that_is_slower_than_all_is_shared() {
    // A card without isolation knows no weights, but its link is no faster.
    for (policy, ratio) in [(Policy::Shares, 2.0), (Policy::Greedy, 1.0)] {
        let mut bench = Bench::new(Config { policy, link_bytes_per_sec: Some(250_000_000), ..CONFIG });
        let (one, two) = (bench.weighted(100), bench.weighted(200));
        bench.load(one, 1, 4096, 1);
        bench.load(two, 1, 4096, 1);
        bench.run(Duration::from_millis(200));
        assert_near((bench.served[&one] + bench.served[&two]) as f64, 50_000_000.0, 0.01);
        assert_near(bench.ratio(two, one), ratio, 0.02);
    }
}

#[test]
fn slow_rates_are_kept_over_milliseconds() {
    for rate in [125_000, 1_250_000, 125_000_000u64] {
        let mut bench = Bench::new(CONFIG);
        let slow = bench.tenant(Settings { max_bytes_per_sec: Some(rate), burst_bytes: 1000, ..Settings::default() });
        bench.load(slow, 4, 100, 1);
        bench.run(Duration::from_millis(100));
        assert_near(bench.served[&slow] as f64, rate as f64 / 10.0, 0.15);
        let before = bench.served[&slow];
        bench.run(Duration::from_secs(1));
        assert_near((bench.served[&slow] - before) as f64, rate as f64, 0.01);
    }
}

/// How long a queue pair waits that posts 16 bytes now and then, while others always have more: the worst wait, in nanoseconds.
fn worst_wait(bench: &mut Bench, tenant: TenantId) -> u64 {
    let qpn = Qpn::new(0xF0_0000);
    let mut flow = Flow::new(tenant);
    for _ in 0..100 {
        flow.classifier.note(16, 1);
    }
    bench.flows.insert(qpn, (flow, Load { bytes: 16, packets: 1 }));
    let mut worst = 0;
    for _ in 0..2000 {
        bench.run(Duration::from_nanos(9973));
        let posted = bench.now;
        let (mut flow, _) = bench.flows[&qpn];
        bench.arbiter.add(qpn, &mut flow, posted);
        loop {
            let grant = bench.arbiter.take(bench.now).expect("somebody waits");
            if grant.qpn == qpn {
                assert_eq!(grant.class, Class::Latency);
                bench.arbiter.charge(&grant, Cost { bytes: 16, packets: 1, within_message: false }, bench.now);
                break;
            }
            let (other, load) = bench.flows.get_mut(&grant.qpn).unwrap();
            other.begin_turn();
            bench.now = bench.now + Duration::from_nanos(load.bytes);
            bench.arbiter.add(grant.qpn, other, bench.now);
            bench.arbiter.charge(&grant, Cost { bytes: load.bytes, packets: load.packets, within_message: false }, bench.now);
        }
        worst = worst.max(bench.now.saturating_since(posted).as_nanos() as u64);
    }
    worst
}

#[test]
fn a_small_message_waits_for_one_turn_at_most_however_many_compete() {
    for count in [1, 4, 16, 64] {
        let mut bench = Bench::new(CONFIG);
        let quick = bench.weighted(100);
        for _ in 0..count {
            let bulk = bench.weighted(100);
            bench.load(bulk, 4, 4096, 1);
        }
        let worst = worst_wait(&mut bench, quick);
        assert!(worst <= 4096, "{worst} ns with {count} bulk tenants");
    }
}

#[test]
fn who_claims_the_latency_class_gains_nothing_over_its_weight() {
    let mut bench = Bench::new(CONFIG);
    let honest = bench.weighted(100);
    let liar = bench.tenant(Settings { class: Some(Class::Latency), ..Settings::default() });
    bench.load(honest, 1, 4096, 1);
    bench.load(liar, 64, 4096, 1);
    bench.run(Duration::from_millis(100));
    assert_near(bench.ratio(liar, honest), 1.0, 0.02);
    // And does not take the lane from those who are small and sparse.
    let quick = bench.weighted(100);
    let worst = worst_wait(&mut bench, quick);
    assert!(worst <= 2 * 4096, "{worst} ns");
}

#[test]
fn turns_are_long_only_when_nobody_waits() {
    let mut arbiter = Arbiter::new(CONFIG);
    let tenant = arbiter.add_tenant(Settings::default(), Instant::ZERO).unwrap();
    let (mut one, mut two) = (Flow::new(tenant), Flow::new(tenant));
    arbiter.add(Qpn::new(1), &mut one, Instant::ZERO);
    arbiter.add(Qpn::new(2), &mut two, Instant::ZERO);
    let grant = arbiter.take(Instant::ZERO).unwrap();
    assert_eq!((grant.qpn, grant.max_bytes), (Qpn::new(1), 4096));
    arbiter.charge(&grant, Cost::default(), Instant::ZERO);
    let grant = arbiter.take(Instant::ZERO).unwrap();
    assert_eq!((grant.qpn, grant.max_bytes), (Qpn::new(2), u32::MAX));
    arbiter.charge(&grant, Cost::default(), Instant::ZERO);
    assert_eq!((arbiter.take(Instant::ZERO), arbiter.poll_timeout()), (None, None));
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let mut arbiter = Arbiter::new(CONFIG);
    let bad = |change: fn(&mut Settings)| {
        let mut settings = Settings::default();
        change(&mut settings);
        settings
    };
    let refused = [
        (bad(|s| s.weight = 0), SettingsError::Weight(0)),
        (bad(|s| s.weight = 10_001), SettingsError::Weight(10_001)),
        (bad(|s| s.max_bytes_per_sec = Some(0)), SettingsError::NoRate),
        (bad(|s| (s.min_bytes_per_sec, s.max_bytes_per_sec) = (2, Some(1))), SettingsError::MinAboveMax { min: 2, max: 1 }),
    ];
    let tenant = arbiter.add_tenant(Settings::default(), Instant::ZERO).unwrap();
    for (settings, error) in refused {
        assert_eq!(arbiter.add_tenant(settings, Instant::ZERO), Err(error));
        assert_eq!(arbiter.set_tenant(tenant, settings, Instant::ZERO), Err(error));
        assert_eq!(arbiter.settings(tenant), Some(&Settings::default()), "nothing changed");
    }
}
