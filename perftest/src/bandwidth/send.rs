//! `send bw`: SEND into receives that the target keeps posting.

use anyhow::Result;

use super::{Bandwidth, Plan, stream};
use crate::exchange::{Answer, Ask};
use crate::initiator::Initiator;
use crate::verbs::Operation;

/// Measures; the time ends with the last completion here, and the target must have received everything too.
pub fn run(initiator: &mut Initiator, plan: Plan) -> Result<Bandwidth> {
    initiator.link.send(&Ask::Receive { count: plan.iterations, length: plan.size })?;
    initiator.link.expect(&Answer::Ready)?;
    let bandwidth = stream(initiator, Operation::Send, plan)?;
    initiator.link.expect(&Answer::Done)?;
    Ok(bandwidth)
}
