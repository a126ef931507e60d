//! `perftest`: the benchmarks from the command line, one end without and one with the name of the other.
//!
//! On our devices: `vrdma run --dev a -- perftest write bw`, then `vrdma run --dev b -- perftest write bw 127.0.0.1`.

use std::net::{Ipv6Addr, TcpListener};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use perftest::bandwidth::{self, Plan};
use perftest::report::Row;
use perftest::verbs::{DeviceChoice, Operation, Placement};
use perftest::{Initiator, Link, PORT, Shape, latency};

/// Bandwidth and latency of RDMA, on any device of the verbs API.
#[derive(Debug, Parser)]
#[command(name = "perftest", version, max_term_width = 100)]
#[command(after_help = "Start one end without HOST, then the other with the first one's host name. MB is 2^20 bytes.")]
struct Args {
    /// Operation
    operation: Verb,
    /// Bandwidth or latency
    metric: Metric,
    /// Host of the end that was started first; without it this is that end
    host: Option<String>,
    /// Bytes per message [default: 65536 for bandwidth, 8 for latency]
    #[arg(short, long, value_name = "BYTES")]
    size: Option<u32>,
    /// All sizes, powers of two from 2 to 8388608
    #[arg(short, long, conflicts_with = "size")]
    all: bool,
    /// Messages
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..))]
    iters: u64,
    /// Requests outstanding at most
    #[arg(short = 't', long, value_name = "REQUESTS", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=16384))]
    depth: u32,
    /// Requests posted by one call
    #[arg(short, long, value_name = "REQUESTS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    list: u32,
    /// Bytes that messages cycle over [default: two messages of the largest size, and 65536 at least]
    #[arg(short, long, value_name = "BYTES")]
    working_set: Option<usize>,
    /// Memory of both ends: heap, shared, cuda or cuda:N (of GPU N, on each end's host)
    #[arg(short, long, value_name = "MEMORY", default_value = "heap")]
    memory: Placement,
    /// Kind of atomic
    #[arg(long, value_enum, default_value = "fetch-add")]
    atomic: Atomic,
    /// Device [default: the first]
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
    /// GID index [default: the first IPv4 address]
    #[arg(short = 'x', long, value_name = "INDEX")]
    gid_index: Option<u8>,
    /// TCP port over which the ends find each other
    #[arg(short, long, default_value_t = PORT)]
    port: u16,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Verb {
    Write,
    Read,
    Send,
    Atomic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Metric {
    Bw,
    Lat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Atomic {
    FetchAdd,
    CompareSwap,
}

fn main() -> ExitCode {
    match carry_out(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("perftest: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn carry_out(args: &Args) -> Result<()> {
    let choice = DeviceChoice { name: args.device.clone(), gid_index: args.gid_index };
    match &args.host {
        None => {
            let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, args.port))
                .with_context(|| format!("cannot listen on TCP port {}: name another one with --port", args.port))?;
            eprintln!("Waiting for the other end on TCP port {}.", args.port);
            perftest::serve(Link::accept(&listener)?, &choice)
        }
        Some(host) => initiate(args, host, &choice),
    }
}

fn initiate(args: &Args, host: &str, choice: &DeviceChoice) -> Result<()> {
    let operation = match (args.operation, args.atomic) {
        (Verb::Write, _) => Operation::Write,
        (Verb::Read, _) => Operation::Read,
        (Verb::Send, _) => Operation::Send,
        (Verb::Atomic, Atomic::FetchAdd) => Operation::FetchAdd,
        (Verb::Atomic, Atomic::CompareSwap) => Operation::CompareSwap,
    };
    let sizes: Vec<u32> = match (args.operation, args.size, args.metric) {
        (Verb::Atomic, ..) => vec![bandwidth::atomic::SIZE],
        _ if args.all => (1..=23).map(|power| 1 << power).collect(),
        (_, Some(size), _) => vec![size],
        (_, None, Metric::Bw) => vec![65536],
        (_, None, Metric::Lat) => vec![8],
    };
    let largest = sizes.iter().copied().max().unwrap_or(0) as usize;
    let shape = Shape {
        working_set: args.working_set.unwrap_or((2 * largest.next_multiple_of(64)).max(65536)),
        placement: args.memory,
        send_depth: args.depth,
        receive_depth: (2 * args.depth).clamp(64, 16384),
        inline: if args.metric == Metric::Lat { 64 } else { 0 },
    };
    let link = Link::connect(host, args.port)
        .with_context(|| format!("no other end at {host} port {}: start it first, without a host name", args.port))?;
    let mut initiator = Initiator::start(link, choice, shape)?;
    let mut rows = Vec::new();
    for size in sizes {
        let row = match args.metric {
            Metric::Bw => {
                let plan = Plan { size, iterations: args.iters, window: args.depth, list: args.list, naps: false };
                Row::Bandwidth(bandwidth::run(&mut initiator, operation, plan)?)
            }
            Metric::Lat => Row::Latency(latency::run(&mut initiator, operation, size, args.iters)?),
        };
        if !args.json {
            if rows.is_empty() {
                println!("{}", row.header());
            }
            println!("{}", row.line());
        }
        rows.push(row);
    }
    if args.json {
        let results: Vec<_> = rows.iter().map(Row::json).collect();
        let report = serde_json::json!({ "device": initiator.device(), "operation": operation, "results": results });
        println!("{report:#}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn definition_is_sound() {
        Args::command().debug_assert();
    }
}
