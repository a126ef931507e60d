//! What must hold in every run, whatever the faults: the list of what did not.

use crate::time::Time;

/// Violations that are kept; the others are counted.
const KEPT: usize = 50;

/// Something that must never happen, and did.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Bytes were written where no transfer puts any.
    #[error("{len} bytes at offset {offset} of memory {space} were written, which belong to no transfer")]
    Outside {
        /// Memory space.
        space: u32,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Bytes were written a second time.
    #[error("transfer {transfer}: bytes from {offset} on were placed twice")]
    PlacedTwice {
        /// Transfer.
        transfer: u32,
        /// Offset in the transfer.
        offset: u64,
    },
    /// Bytes that belong elsewhere.
    #[error("transfer {transfer}: wrong bytes at {offset}")]
    WrongBytes {
        /// Transfer.
        transfer: u32,
        /// Offset in the transfer.
        offset: u64,
    },
    /// A completion promised bytes that were not there.
    #[error("transfer {transfer} is complete, and not all of its bytes are")]
    Incomplete {
        /// Transfer.
        transfer: u32,
    },
    /// A completion came before an earlier one of the same queue, or was not expected at all.
    #[error("host {host}: completion of transfer {transfer} out of order")]
    Order {
        /// Host.
        host: u32,
        /// What the completion says.
        transfer: u64,
    },
    /// A transfer never ended.
    #[error("transfer {transfer} did not end by {at:?}")]
    Unfinished {
        /// Transfer.
        transfer: u32,
        /// When the run ended.
        at: Time,
    },
    /// Packets came from nowhere, or vanished.
    #[error("{sent} packets sent are not {received} received, {dropped} dropped and {queued} under way")]
    Conservation {
        /// By hosts.
        sent: u64,
        /// By hosts.
        received: u64,
        /// By links and switches.
        dropped: u64,
        /// In queues and on wires.
        queued: u64,
    },
    /// A port stood still although packets waited for it.
    #[error("wire {wire} stood still at {at:?} although packets waited")]
    Idle {
        /// Wire.
        wire: u32,
        /// When.
        at: Time,
    },
    /// A host refused a call that is right.
    #[error("host {host} refused a call: {error}")]
    Refused {
        /// Host.
        host: u32,
        /// Why.
        error: String,
    },
}

/// The violations of one run.
#[derive(Clone, Debug, Default)]
pub struct Checker {
    kept: Vec<Violation>,
    count: u64,
}

impl Checker {
    /// Notes one.
    #[cold]
    pub fn note(&mut self, violation: Violation) {
        self.count += 1;
        if self.kept.len() < KEPT {
            self.kept.push(violation);
        }
    }

    /// The first ones.
    pub fn violations(&self) -> &[Violation] {
        &self.kept
    }

    /// All of them.
    pub fn count(&self) -> u64 {
        self.count
    }
}
