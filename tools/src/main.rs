//! `vrdma`: the one binary of the project.
//!
//! Owns: what the user typed, what it means, and what is printed. Never: any work of the daemon; apart from `daemon` itself,
//! `bench`, `sim` and `wan` everything goes through the daemon's control API, so that what the command line can do, any program can.
//!
//! Exit codes: 0 done, 1 the operation failed, 2 the command line is wrong. A reader that closes our output early (`| head`)
//! is no failure.

mod api;
mod args;
mod bench;
mod cdi;
mod cores;
mod daemon;
mod demo;
mod dev;
mod draw;
mod input;
mod library;
mod output;
mod place;
mod run;
mod sim;
mod stage;
mod view;
mod wan;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::args::{Args, Command};
use crate::place::Place;

fn main() -> ExitCode {
    let args = Args::parse();
    start_log();
    match carry_out(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<output::ReaderGone>() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vrdma: {}", output::sentence(&error));
            ExitCode::FAILURE
        }
    }
}

fn carry_out(args: Args) -> Result<()> {
    let place = || Place::find(args.dir.as_deref());
    match args.command {
        Command::Demo(options) => demo::carry_out(&options, args.json),
        Command::Bench(command) => bench::carry_out(&command, args.json),
        Command::DemoSide { side } => demo::carry_out_side(side),
        Command::Daemon(options) => daemon::carry_out(&place()?, &options),
        Command::Dev(command) => dev::carry_out(&api::Client::new(place()?)?, command, args.json),
        Command::Cdi(command) => cdi::carry_out(&place()?, command, args.json),
        Command::Run(options) => run::carry_out(&place()?, options),
        Command::Sim(command) => sim::carry_out(&command, args.json),
        Command::Wan(command) => wan::carry_out(place, &command, args.json),
    }
}

/// Logs go to standard error; `VRDMA_LOG`, else `RUST_LOG`, says what is logged, and warnings are by default.
fn start_log() {
    let mut filter = EnvFilter::new("warn");
    for variable in ["VRDMA_LOG", "RUST_LOG"] {
        match std::env::var(variable).map(EnvFilter::try_new) {
            Ok(Ok(wanted)) => filter = wanted,
            Ok(Err(error)) => eprintln!("vrdma: {variable} is ignored: {error}"),
            Err(_) => continue,
        }
        break;
    }
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
}
