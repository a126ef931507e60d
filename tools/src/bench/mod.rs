//! `vrdma bench`: measurements of parts of the daemon on this machine.

mod isolation;
pub mod pin;

use anyhow::Result;

use crate::args::BenchCommand;

/// Measures, and prints.
pub fn carry_out(command: &BenchCommand, json: bool) -> Result<()> {
    match command {
        BenchCommand::Pin { guest_gib } => pin::carry_out(guest_gib, json),
        BenchCommand::Isolation(options) => isolation::carry_out(options, json),
    }
}
