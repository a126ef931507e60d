//! `read bw`: RDMA READ. The target takes no part; at most 16 READs are outstanding on the wire, whatever the window.

use anyhow::Result;

use super::{Bandwidth, Plan, stream};
use crate::initiator::Initiator;
use crate::verbs::Operation;

/// Measures.
pub fn run(initiator: &mut Initiator, plan: Plan) -> Result<Bandwidth> {
    stream(initiator, Operation::Read, plan)
}
