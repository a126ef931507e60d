//! `read lat`: RDMA READ, post to completion. The target takes no part.

use anyhow::Result;

use super::{Latency, round_trips};
use crate::initiator::Initiator;
use crate::verbs::Operation;

/// Measures.
pub fn run(initiator: &mut Initiator, size: u32, iterations: u64) -> Result<Latency> {
    round_trips(initiator, Operation::Read, size, iterations)
}
