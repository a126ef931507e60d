//! What the initiator measures, and in which order.
//!
//! Machines that others use too give noisy times. Therefore everything that is compared runs in the same round, a few
//! milliseconds apart, rounds are repeated, and medians are reported: of the rates, and of the ratios within each round.

use std::time::{Duration, Instant};

use anyhow::Result;
use perftest::bandwidth::{self, Plan};
use perftest::verbs::{Buffer, DeviceChoice, Operation, Placement};
use perftest::{Initiator, Link, Shape, baseline, latency};

use super::report::{BandwidthRow, LatencyRow, Method, RateRow, Report};
use super::side::Event;

/// Bytes that messages cycle over on each side: far more than the fast caches hold, so that bytes come from where large transfers
/// have them, yet less than the last level of a server's cache.
const WORKING_SET: usize = 16 << 20;
/// Payload in flight at most: half of what the library can stage for the daemon. Less leaves one of the two waiting at 1 MiB.
const IN_FLIGHT: usize = 4 << 20;
/// Requests outstanding at most, perftest's own default.
const DEPTH: u32 = 128;
const RECEIVE_DEPTH: u32 = 1024;
const ROUNDS: usize = 7;
/// Rounds at least; the rest is left out when a step takes longer than [`STEP`], as it does on a machine that is busy.
const ROUNDS_LEAST: usize = 3;
/// Time after which a step ends early, so that the whole ends within a minute even there.
const STEP: Duration = Duration::from_secs(2);
/// Time of one measurement in a round.
const SLICE: Duration = Duration::from_millis(20);

const OPERATIONS: [Operation; 3] = [Operation::Write, Operation::Read, Operation::Send];
const MEMORIES: [Placement; 2] = [Placement::Heap, Placement::Shared];
const SIZES: [u32; 3] = [4 << 10, 64 << 10, 1 << 20];

const LATENCY_SIZES: [u32; 2] = [8, 4 << 10];
/// Messages per run: at most, and to begin with.
const LATENCY_MESSAGES: (u64, u64) = (8_000, 32);
/// Time that one run is to take at most.
const LATENCY_SLICE: Duration = Duration::from_millis(300);
const LATENCY_ROUNDS: usize = 3;

const RATE_SIZE: u32 = 8;
const RATE_LIST: u32 = 16;
const RATE_DEPTH: u32 = 512;
const RATE_ROUNDS: usize = 5;

const INLINE: u32 = 64;

/// Messages over the wire of the test, in flight at a time, and the memory that they come from and go to: as much as `ib_write_bw`
/// would use. It stays in the cache, as do the bytes of the plain UDP that it is compared with.
const STREAM_SIZE: u32 = 1 << 20;
const STREAM_IN_FLIGHT: usize = 16 << 20;
const STREAM_WORKING_SET: usize = 2 << 20;
/// Length of that run in slices.
const STREAM_SLICES: u64 = 20;

/// Measures everything; `tell` hears of the progress.
pub fn run(link: Link, choice: &DeviceChoice, mut tell: impl FnMut(Event) -> Result<()>) -> Result<Report> {
    let shape = |placement, send_depth| Shape {
        working_set: WORKING_SET,
        placement,
        send_depth,
        receive_depth: RECEIVE_DEPTH,
        inline: INLINE,
    };
    let mut initiator = Initiator::start(link, choice, shape(MEMORIES[0], DEPTH))?;
    // The parent knows the rest.
    let method = Method { working_set_bytes: WORKING_SET, rounds: ROUNDS, ..Method::default() };
    let mut report = Report { method, ..Report::default() };
    let total = MEMORIES.len() * SIZES.len() + LATENCY_SIZES.len() * OPERATIONS.len() + OPERATIONS.len();
    let mut done = 0;
    let mut step = |next: String| {
        done += 1;
        tell(Event::Progress { done: done - 1, total, next })
    };

    for placement in MEMORIES {
        initiator.reshape(shape(placement, DEPTH))?;
        let other = Buffer::new(WORKING_SET, placement)?;
        for size in SIZES {
            step(format!("bandwidth, {} bytes, {placement:?} memory", size))?;
            let rounds = bandwidth_rows(&mut initiator, &other, placement, size, &mut report.bandwidth)?;
            report.method.rounds = report.method.rounds.min(rounds);
        }
    }
    initiator.reshape(shape(Placement::Heap, DEPTH))?;
    for size_bytes in LATENCY_SIZES {
        for op in OPERATIONS {
            step(format!("latency, {size_bytes} bytes"))?;
            let messages = latency_messages(&mut initiator, op, size_bytes)?;
            let start = Instant::now();
            let mut all = latency::run(&mut initiator, op, size_bytes, messages)?;
            for _ in 1..LATENCY_ROUNDS {
                if start.elapsed() < STEP {
                    all.histogram.add(&latency::run(&mut initiator, op, size_bytes, messages)?.histogram)?;
                }
            }
            report.latency.push(LatencyRow { op, size_bytes, p50_us: all.quantile_us(0.5), p99_us: all.quantile_us(0.99) });
        }
    }
    initiator.reshape(shape(Placement::Heap, RATE_DEPTH))?;
    for op in OPERATIONS {
        step("message rate".to_owned())?;
        let plan = Plan { size: RATE_SIZE, iterations: 0, window: RATE_DEPTH, list: RATE_LIST, naps: false };
        let plan = calibrate(&mut initiator, op, plan)?;
        let mut rates = Vec::new();
        for _ in 0..RATE_ROUNDS {
            rates.push(bandwidth::run(&mut initiator, op, plan)?.messages_per_sec() / 1e6);
        }
        report.message_rate.push(RateRow { op, size_bytes: RATE_SIZE, million_per_sec: median(&mut rates) });
    }
    Ok(report)
}

/// WRITE of 1 MiB messages as fast as they go: message size, path MTU, bytes per second.
pub fn stream_write(link: Link, choice: &DeviceChoice, placement: Placement) -> Result<(u32, u32, f64)> {
    let shape =
        Shape { working_set: STREAM_WORKING_SET, placement, send_depth: DEPTH, receive_depth: RECEIVE_DEPTH, inline: 0 };
    let mut initiator = Initiator::start(link, choice, shape)?;
    let plan = calibrate(&mut initiator, Operation::Write, Plan::streaming(STREAM_SIZE, 0, DEPTH, STREAM_IN_FLIGHT))?;
    let plan = Plan { iterations: plan.iterations * STREAM_SLICES, naps: perftest::cores_are_few(), ..plan };
    let result = bandwidth::run(&mut initiator, Operation::Write, plan)?;
    Ok((STREAM_SIZE, 128 << initiator.endpoint.mtu(), result.bytes_per_sec()))
}

/// All operations at one size, and the copies. Returns the number of rounds.
fn bandwidth_rows(
    initiator: &mut Initiator,
    other: &Buffer,
    memory: Placement,
    size: u32,
    rows: &mut Vec<BandwidthRow>,
) -> Result<usize> {
    let mut plans = Vec::new();
    for op in OPERATIONS {
        plans.push((op, calibrate(initiator, op, Plan::streaming(size, 0, DEPTH, IN_FLIGHT))?));
    }
    let (remote, pid) = (initiator.remote, initiator.target_pid);
    let mut rates = vec![Vec::new(); plans.len()];
    let (mut copies, mut calls) = (Vec::new(), Vec::new());
    let start = Instant::now();
    while copies.len() < ROUNDS && (copies.len() < ROUNDS_LEAST || start.elapsed() < STEP) {
        // The copies of the last round have used other memory and let the daemon sleep: the first operation must not pay for that.
        bandwidth::run(initiator, plans[0].0, plans[0].1)?;
        for ((op, plan), rates) in plans.iter().zip(&mut rates) {
            rates.push(bandwidth::run(initiator, *op, *plan)?.bytes_per_sec());
        }
        let own = initiator.endpoint.mr().buffer();
        copies.push(baseline::memcpy(own, other, size as usize, SLICE)?);
        calls.push(baseline::process_vm(own, pid, &remote, size as usize, SLICE).ok());
    }
    for ((op, plan), mut rates) in plans.into_iter().zip(rates) {
        let mut of_copy: Vec<f64> = rates.iter().zip(&copies).map(|(rate, copy)| rate / copy).collect();
        let of_call: Option<Vec<f64>> = rates.iter().zip(&calls).map(|(rate, call)| call.map(|call| rate / call)).collect();
        rows.push(BandwidthRow {
            op,
            memory,
            size_bytes: plan.size,
            gbytes_per_sec: median(&mut rates) / 1e9,
            ratio_memcpy: median(&mut of_copy),
            ratio_process_vm: of_call.map(|mut ratios| median(&mut ratios)),
        });
    }
    Ok(copies.len())
}

/// The number of messages for one run of a latency benchmark, from a short one.
fn latency_messages(initiator: &mut Initiator, operation: Operation, size: u32) -> Result<u64> {
    let (most, first) = LATENCY_MESSAGES;
    let start = Instant::now();
    latency::run(initiator, operation, size, first)?;
    let fit = LATENCY_SLICE.as_secs_f64() / start.elapsed().as_secs_f64().max(1e-9) * first as f64;
    Ok((fit as u64).clamp(first, most))
}

/// The number of messages that takes one slice, found by trying longer and longer runs.
fn calibrate(initiator: &mut Initiator, operation: Operation, plan: Plan) -> Result<Plan> {
    let mut plan = Plan { iterations: u64::from(plan.window.max(8)), ..plan };
    loop {
        let trial = bandwidth::run(initiator, operation, plan)?;
        if trial.seconds >= SLICE.as_secs_f64() / 4.0 {
            plan.iterations = ((trial.messages_per_sec() * SLICE.as_secs_f64()) as u64).max(u64::from(plan.window));
            return Ok(plan);
        }
        plan.iterations *= 4;
    }
}

/// The middle value; of an even number of values the upper one of the two. At least one value.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [1.0]), 1.0);
    }
}
