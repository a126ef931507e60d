//! `atomic bw`: fetch-and-add or compare-and-swap on 8 bytes. The target takes no part.

use anyhow::Result;

use super::{Bandwidth, Plan, stream};
use crate::initiator::Initiator;
use crate::verbs::Operation;

/// Bytes that an atomic works on.
pub const SIZE: u32 = 8;

/// Measures; the size of the plan is that of atomics, whatever it says.
pub fn run(initiator: &mut Initiator, operation: Operation, plan: Plan) -> Result<Bandwidth> {
    stream(initiator, operation, Plan { size: SIZE, ..plan })
}
