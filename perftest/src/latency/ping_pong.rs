//! Ping-pong: the messages of two sides, taking turns, whatever carries them.

use std::time::Instant;

use anyhow::Result;

use super::{Latency, warm_up};
use crate::exchange::{Answer, Ask, Link};
use crate::verbs::Operation;

/// One side.
pub(super) trait Side {
    /// Sends message `index`.
    fn send(&mut self, index: u64) -> Result<()>;

    /// Waits for message `index` of the other side.
    fn await_message(&mut self, index: u64) -> Result<()>;

    /// Waits until everything that was sent is complete.
    fn drain(&mut self) -> Result<()>;
}

/// Messages of a run, those before measuring starts included.
pub(super) fn messages(iterations: u64) -> u64 {
    warm_up(iterations) + iterations
}

/// Plays the initiator, and times half of each round trip.
pub(super) fn measure(
    side: &mut impl Side,
    link: &mut Link,
    operation: Operation,
    size: u32,
    iterations: u64,
) -> Result<Latency> {
    link.send(&Ask::PingPong { operation, length: size, count: messages(iterations) })?;
    link.expect(&Answer::Ready)?;
    let mut latency = Latency::new(size)?;
    let mut start = Instant::now();
    for index in 0..messages(iterations) {
        side.send(index)?;
        side.await_message(index)?;
        let now = Instant::now();
        if index >= warm_up(iterations) {
            latency.record((now - start) / 2);
        }
        start = now;
    }
    side.drain()?;
    link.expect(&Answer::Done)?;
    Ok(latency)
}

/// Plays the target, for `count` messages.
pub(super) fn answer(side: &mut impl Side, link: &mut Link, count: u64) -> Result<()> {
    link.send(&Answer::Ready)?;
    for index in 0..count {
        side.await_message(index)?;
        side.send(index)?;
    }
    side.drain()
}
