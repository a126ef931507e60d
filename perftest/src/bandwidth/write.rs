//! `write bw`: RDMA WRITE. The target takes no part.

use anyhow::Result;

use super::{Bandwidth, Plan, stream};
use crate::initiator::Initiator;
use crate::verbs::Operation;

/// Measures.
pub fn run(initiator: &mut Initiator, plan: Plan) -> Result<Bandwidth> {
    stream(initiator, Operation::Write, plan)
}
