//! Bandwidth and message rate: a window of requests kept full, timed from the first post to the last completion.

pub mod atomic;
pub mod read;
pub mod send;
pub mod write;

use std::time::Instant;

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::endpoint::offset;
use crate::initiator::Initiator;
use crate::verbs::{Operation, Send};
use crate::wait::Wait;

/// How a measurement is made.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Bytes per message.
    pub size: u32,
    /// Messages.
    pub iterations: u64,
    /// Requests outstanding at most; no more than the queue pair has.
    pub window: u32,
    /// Requests posted by one call.
    pub list: u32,
    /// Whether to sleep for a moment between looks for completions. For long messages where cores are few: the thread is out of
    /// the way, and the daemons of both ends have a core each.
    pub naps: bool,
}

impl Plan {
    /// One request per call and as many outstanding as make `bytes` in flight, 2 to `depth`.
    pub fn streaming(size: u32, iterations: u64, depth: u32, bytes: usize) -> Plan {
        let fit = u32::try_from(bytes / (size as usize).max(1)).unwrap_or(u32::MAX);
        Plan { size, iterations, window: fit.clamp(2, depth.max(2)), list: 1, naps: false }
    }
}

/// What was measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Bandwidth {
    /// Bytes per message.
    pub size: u32,
    /// Messages.
    pub iterations: u64,
    /// Time for all of them.
    pub seconds: f64,
    /// Best rate of a sixteenth of the run, in messages per second; the average when the run is too short to divide.
    pub peak_per_sec: f64,
}

impl Bandwidth {
    /// Messages per second.
    pub fn messages_per_sec(&self) -> f64 {
        self.iterations as f64 / self.seconds
    }

    /// Payload bytes per second.
    pub fn bytes_per_sec(&self) -> f64 {
        self.messages_per_sec() * f64::from(self.size)
    }
}

/// Runs the benchmark of an operation.
pub fn run(initiator: &mut Initiator, operation: Operation, plan: Plan) -> Result<Bandwidth> {
    match operation {
        Operation::Write => write::run(initiator, plan),
        Operation::Read => read::run(initiator, plan),
        Operation::Send => send::run(initiator, plan),
        Operation::FetchAdd | Operation::CompareSwap => atomic::run(initiator, operation, plan),
    }
}

/// Keeps the window full until all requests have completed.
fn stream(initiator: &mut Initiator, operation: Operation, plan: Plan) -> Result<Bandwidth> {
    let Plan { size, iterations, .. } = plan;
    let shape = initiator.endpoint.shape();
    let remote = initiator.remote;
    ensure!(iterations > 0, "a run of no messages");
    ensure!(size as usize <= shape.working_set, "a message of {size} bytes does not fit into {} bytes", shape.working_set);
    ensure!(size as u64 <= remote.length, "a message of {size} bytes does not fit into the peer's memory");
    let window = u64::from(plan.window.min(shape.send_depth).max(1));
    let list = u64::from(plan.list).clamp(1, window.min(crate::verbs::POST_BATCH as u64));
    // Completions in groups cost less, and four groups per window keep it full.
    let group = (window / 4).max(1);
    let (qp, mr) = initiator.endpoint.parts();
    let cq = qp.cq().clone();
    let remote_set = usize::try_from(remote.length).unwrap_or(usize::MAX);
    let mut wait = if plan.naps { Wait::with_naps() } else { Wait::for_completions() };
    let mut peak = Peak::new(iterations);
    let (mut posted, mut completed) = (0, 0);
    let start = Instant::now();
    while completed < iterations {
        while posted < iterations && window - (posted - completed) >= list.min(iterations - posted) {
            let count = list.min(iterations - posted);
            qp.post(mr, remote.rkey, count as usize, |index| {
                let index = posted + index as u64;
                Send {
                    operation,
                    // Of all requests up to a completion, the count: that is all that matters here.
                    wr_id: index + 1,
                    offset: offset(index, size as usize, shape.working_set),
                    length: size,
                    remote_addr: remote.addr + offset(index, size as usize, remote_set) as u64,
                    signaled: (index + 1).is_multiple_of(group) || index + 1 == iterations,
                }
            })?;
            posted += count;
        }
        if cq.poll(|completion| completed = completion.wr_id)? == 0 {
            wait.nothing()?;
        } else {
            wait.found();
            peak.note(completed, start);
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(Bandwidth { size, iterations, seconds, peak_per_sec: peak.rate.max(iterations as f64 / seconds) })
}

/// The best rate over parts of a run.
struct Peak {
    part: u64,
    completed: u64,
    seconds: f64,
    rate: f64,
}

impl Peak {
    fn new(iterations: u64) -> Peak {
        Peak { part: (iterations / 16).max(1), completed: 0, seconds: 0.0, rate: 0.0 }
    }

    fn note(&mut self, completed: u64, start: Instant) {
        if completed - self.completed >= self.part {
            let seconds = start.elapsed().as_secs_f64();
            // The first part has the start-up in it, and time too short to tell is no rate.
            if self.completed > 0 && seconds > self.seconds {
                self.rate = self.rate.max((completed - self.completed) as f64 / (seconds - self.seconds));
            }
            (self.completed, self.seconds) = (completed, seconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_hold_the_bytes_in_flight() {
        assert_eq!(Plan::streaming(1 << 20, 1, 128, 4 << 20).window, 4);
        assert_eq!(Plan::streaming(4096, 1, 128, 4 << 20).window, 128);
        assert_eq!(Plan::streaming(64 << 20, 1, 128, 4 << 20).window, 2);
        assert_eq!(Plan::streaming(0, 1, 16, 4 << 20).window, 16);
    }
}
