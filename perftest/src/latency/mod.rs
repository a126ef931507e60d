//! Latency: one message at a time, each timed, in a histogram.
//!
//! WRITE and SEND are ping-pongs, and half of the round trip is one way. READ and atomics end at the initiator, and the whole
//! time counts. That is how perftest counts too.

pub mod atomic;
mod ping_pong;
pub mod read;
pub mod send;
pub mod write;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;

use crate::endpoint::Endpoint;
use crate::initiator::Initiator;
use crate::verbs::{Operation, Remote, Send};
use crate::wait::Wait;

/// Part of the messages that are sent before measuring starts: one in eight.
const WARM_UP_PART: u64 = 8;
/// Longest time that the histogram tells apart: 10 s.
const LONGEST_NS: u64 = 10_000_000_000;

/// Times of single messages, in nanoseconds.
#[derive(Clone, Debug)]
pub struct Latency {
    /// Bytes per message.
    pub size: u32,
    /// The times, to three digits.
    pub histogram: Histogram<u64>,
}

impl Latency {
    fn new(size: u32) -> Result<Latency> {
        Ok(Latency { size, histogram: Histogram::new_with_bounds(1, LONGEST_NS, 3)? })
    }

    fn record(&mut self, time: Duration) {
        self.histogram.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The time in microseconds that a part (0 to 1) of all messages did not exceed.
    pub fn quantile_us(&self, part: f64) -> f64 {
        self.histogram.value_at_quantile(part) as f64 / 1000.0
    }
}

/// Runs the benchmark of an operation.
pub fn run(initiator: &mut Initiator, operation: Operation, size: u32, iterations: u64) -> Result<Latency> {
    ensure!(iterations > 0, "a run of no messages");
    match operation {
        Operation::Write => write::run(initiator, size, iterations),
        Operation::Read => read::run(initiator, size, iterations),
        Operation::Send => send::run(initiator, size, iterations),
        Operation::FetchAdd | Operation::CompareSwap => atomic::run(initiator, operation, iterations),
    }
}

fn warm_up(iterations: u64) -> u64 {
    iterations / WARM_UP_PART
}

/// Times requests that end here: post one, wait for its completion.
fn round_trips(initiator: &mut Initiator, operation: Operation, size: u32, iterations: u64) -> Result<Latency> {
    check_size(&initiator.endpoint, &initiator.remote, size)?;
    let remote = initiator.remote;
    let (qp, mr) = initiator.endpoint.parts();
    let cq = qp.cq().clone();
    let mut latency = Latency::new(size)?;
    let mut wait = Wait::for_completions();
    for index in 0..warm_up(iterations) + iterations {
        let start = Instant::now();
        let request = Send { operation, wr_id: index, offset: 0, length: size, remote_addr: remote.addr, signaled: true };
        qp.post(mr, remote.rkey, 1, |_| request)?;
        while cq.poll(|_| ())? == 0 {
            wait.nothing()?;
        }
        wait.found();
        if index >= warm_up(iterations) {
            latency.record(start.elapsed());
        }
    }
    Ok(latency)
}

/// A message and its answer must have distinct places in each buffer.
fn check_size(endpoint: &Endpoint, remote: &Remote, size: u32) -> Result<()> {
    let room = (endpoint.shape().working_set as u64).min(remote.length);
    ensure!(size > 0, "latency of messages without a byte cannot be seen in memory: use 1 byte or more");
    ensure!(
        second_place(size) as u64 + u64::from(size) <= room,
        "messages of {size} bytes need a larger working set than {room}"
    );
    Ok(())
}

/// Incoming messages lie at offset 0, outgoing ones here.
fn second_place(size: u32) -> usize {
    (size as usize).next_multiple_of(64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_in_microseconds() {
        let mut latency = Latency::new(8).unwrap();
        for us in 1..=100 {
            latency.record(Duration::from_micros(us));
        }
        latency.record(Duration::from_secs(100));
        assert!((latency.quantile_us(0.5) - 51.0).abs() < 0.1);
        assert!(latency.quantile_us(1.0) >= 1e7);
    }
}
