//! What small messages of each device took lately, for people: percentiles of the last half a minute to a minute.

use std::time::Duration;

use hdrhistogram::Histogram;
use rnic::DeviceId;
use roce::Instant;

use super::IdMap;

/// What was measured in one is forgotten at the end of the next.
const EPOCH: Duration = Duration::from_secs(30);
/// Longest time that is told apart, in nanoseconds; longer ones count as that.
const LONGEST_NS: u64 = 10_000_000_000;

/// Percentiles of the latency of small messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percentiles {
    /// Messages that were measured.
    pub measured: u64,
    /// Half took at most so long, in µs.
    pub p50_us: f64,
    /// 99 of 100 took at most so long, in µs.
    pub p99_us: f64,
}

/// All devices that have sent small messages.
#[derive(Debug, Default)]
pub(super) struct Latencies {
    recent: IdMap<DeviceId, Recent>,
}

#[derive(Debug)]
struct Recent {
    since: Instant,
    current: Histogram<u32>,
    before: Histogram<u32>,
}

impl Recent {
    fn new(now: Instant) -> Recent {
        // Two digits: 1 % is enough for people, and a histogram takes some 20 KiB.
        let histogram = || Histogram::new_with_bounds(1, LONGEST_NS, 2).expect("bounds that can be");
        Recent { since: now, current: histogram(), before: histogram() }
    }

    fn turn_over(&mut self, now: Instant) {
        let passed = now.saturating_since(self.since);
        if passed < EPOCH {
            return;
        }
        std::mem::swap(&mut self.current, &mut self.before);
        self.current.reset();
        if passed >= 2 * EPOCH {
            self.before.reset();
        }
        self.since = now;
    }
}

impl Latencies {
    /// A message of a device took so long.
    pub fn note(&mut self, now: Instant, device: DeviceId, took: Duration) {
        let recent = self.recent.entry(device).or_insert_with(|| Recent::new(now));
        recent.turn_over(now);
        let ns = u64::try_from(took.as_nanos()).unwrap_or(LONGEST_NS).clamp(1, LONGEST_NS);
        recent.current.saturating_record(ns);
    }

    /// What a device's messages took; `None` if none was measured lately.
    pub fn of(&mut self, now: Instant, device: DeviceId) -> Option<Percentiles> {
        let recent = self.recent.get_mut(&device)?;
        recent.turn_over(now);
        let mut all = recent.current.clone();
        all.add(&recent.before).expect("of the same bounds");
        let us = |percent| all.value_at_percentile(percent) as f64 / 1000.0;
        (!all.is_empty()).then(|| Percentiles { measured: all.len(), p50_us: us(50.0), p99_us: us(99.0) })
    }

    /// A device is gone.
    pub fn forget(&mut self, device: DeviceId) {
        self.recent.remove(&device);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_last_while() {
        let rnic = &mut rnic::Rnic::new(rnic::Config::default());
        let ip: std::net::IpAddr = "192.0.2.1".parse().unwrap();
        let init = rnic::DeviceInit { gids: vec![roce::Gid::from(ip)], mtu: roce::Mtu::B1024 };
        let device = rnic.create_device(init).unwrap();
        let mut latencies = Latencies::default();
        let at = |seconds: u64| Instant::ZERO + Duration::from_secs(seconds);
        assert_eq!(latencies.of(at(0), device), None);
        for n in 1..=100 {
            latencies.note(at(1), device, Duration::from_micros(n));
        }
        let found = latencies.of(at(2), device).unwrap();
        assert_eq!(found.measured, 100);
        assert!((49.0..=51.0).contains(&found.p50_us) && (98.0..=100.0).contains(&found.p99_us), "{found:?}");
        latencies.note(at(40), device, Duration::from_secs(1000));
        assert_eq!(latencies.of(at(41), device).unwrap().measured, 101, "those of the time before count still");
        assert_eq!(latencies.of(at(71), device).unwrap().measured, 1);
        assert_eq!(latencies.of(at(200), device), None, "they are long ago");
        latencies.note(at(201), device, Duration::ZERO);
        latencies.forget(device);
        assert_eq!(latencies.of(at(201), device), None);
    }
}
