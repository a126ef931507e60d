//! `atomic lat`: fetch-and-add or compare-and-swap, post to completion. The target takes no part.

use anyhow::Result;

use super::{Latency, round_trips};
use crate::bandwidth::atomic::SIZE;
use crate::initiator::Initiator;
use crate::verbs::Operation;

/// Measures.
pub fn run(initiator: &mut Initiator, operation: Operation, iterations: u64) -> Result<Latency> {
    round_trips(initiator, operation, SIZE, iterations)
}
