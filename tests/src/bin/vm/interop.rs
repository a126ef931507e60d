//! vrdma against rxe: every row on every path, as server and as client.

mod table;

use clap::Args;
use std::path::Path as FilePath;
use std::process::ExitCode;
use std::time::Instant;
use table::{Plan, Table};
use tests::interop::{Bed, Failure, Path, Role};
use tests::matrix::{Report, Row};
use tests::vm::Image;

/// Run over plain IPv4.
const BASE: &[(&str, &str, Report)] = &[
    ("ibv_rc_pingpong", "-c -n 100", Report::Pingpong),
    ("ibv_rc_pingpong", "-e -n 100", Report::Pingpong),
    ("ib_write_bw", "-s 1 -n 100", Report::ONE_SIZE),
    ("ib_write_bw", "-a -n 5", Report::ALL_SIZES),
    ("ib_write_lat", "-s 1 -n 100", Report::ONE_SIZE),
    ("ib_write_lat", "-s 1048576 -n 5", Report::ONE_SIZE),
    ("ib_read_bw", "-s 1 -n 100 -o 16", Report::ONE_SIZE),
    ("ib_read_bw", "-s 1048576 -n 5 -o 16", Report::ONE_SIZE),
    ("ib_read_lat", "-s 1 -n 100 -o 16", Report::ONE_SIZE),
    ("ib_read_lat", "-s 1048576 -n 5 -o 16", Report::ONE_SIZE),
    ("ib_send_bw", "-s 1 -n 100", Report::ONE_SIZE),
    ("ib_send_bw", "-s 1048576 -n 5", Report::ONE_SIZE),
    ("ib_send_bw", "-e -s 4096 -n 100", Report::ONE_SIZE),
    ("ib_send_lat", "-s 1 -n 100", Report::ONE_SIZE),
    ("ib_send_lat", "-s 1048576 -n 5", Report::ONE_SIZE),
    ("ib_atomic_bw", "-A FETCH_AND_ADD -n 100 -o 16", Report::ONE_SIZE),
    ("ib_atomic_bw", "-A CMP_AND_SWAP -n 100 -o 16", Report::ONE_SIZE),
    ("ib_atomic_lat", "-A FETCH_AND_ADD -n 100 -o 16", Report::ONE_SIZE),
    ("ib_atomic_lat", "-A CMP_AND_SWAP -n 100 -o 16", Report::ONE_SIZE),
    ("ibv_uc_pingpong", "-c -n 100", Report::Pingpong),
    ("ibv_ud_pingpong", "-c -n 100 -s 1000", Report::Pingpong),
    ("ibv_srq_pingpong", "-c -n 100", Report::Pingpong),
    ("rping", "-v -C 10", Report::TEN_PINGS),
    ("rdma_client", "", Report::Prints { text: "end 0" }),
    ("ib_write_bw", "-R -s 65536 -n 50", Report::ONE_SIZE),
    ("ib_send_lat", "-R -n 100", Report::ONE_SIZE),
];

/// Run over each other path. Nothing but reliable connections survives a loss.
const SHORT: &[(&str, &str, Report)] = &[
    ("ibv_rc_pingpong", "-c -n 100", Report::Pingpong),
    ("ib_write_bw", "-s 65536 -n 50", Report::ONE_SIZE),
    ("ib_read_bw", "-s 65536 -n 50 -o 16", Report::ONE_SIZE),
    ("ib_send_bw", "-s 65536 -n 50", Report::ONE_SIZE),
    ("ib_atomic_lat", "-n 100 -o 16", Report::ONE_SIZE),
    ("rping", "-v -C 10", Report::TEN_PINGS),
];

/// Run over paths without loss.
const LOSSLESS: &[(&str, &str, Report)] = &[
    ("ibv_uc_pingpong", "-c -n 100", Report::Pingpong),
    ("ibv_ud_pingpong", "-c -n 100 -s 1000", Report::Pingpong),
    ("ibv_srq_pingpong", "-c -n 100", Report::Pingpong),
];

const OTHER_PATHS: &[Path] = &[
    Path { ethernet_mtu: 9000, ..Path::PLAIN },
    Path { ipv6: true, ..Path::PLAIN },
    Path { ipv6: true, ethernet_mtu: 9000, ..Path::PLAIN },
    Path { loss_per_mille: 10, ..Path::PLAIN },
    Path { ethernet_mtu: 9000, loss_per_mille: 10, ..Path::PLAIN },
    Path { ipv6: true, loss_per_mille: 10, ..Path::PLAIN },
];

/// What to run, and what to do with the table.
#[derive(Args)]
pub struct Options {
    /// Only rows that hold one of these words; the kept table stays as it is, unless --resume is given.
    #[arg(value_name = "PART OF A ROW")]
    parts: Vec<String>,
    /// Go on with a table that was not finished: rows that have a result, passed or failed, are not run again.
    #[arg(long)]
    resume: bool,
    /// How often such a row is run, to find what fails now and then.
    #[arg(long, default_value_t = 1, requires = "parts", conflicts_with = "resume")]
    times: u32,
}

/// Runs the rows, and keeps the table after each of them unless only some were asked for.
pub fn run(image: &Image, options: &Options) -> ExitCode {
    let all = all();
    let wanted = |plan: &&Plan| options.parts.is_empty() || options.parts.iter().any(|part| plan.key().contains(part.as_str()));
    let plans: Vec<&Plan> = all.iter().filter(wanted).collect();
    let is_kept = options.resume || options.parts.is_empty();
    let mut table = Table::new(crate::circumstances(image), &all);
    if options.resume {
        match std::fs::read_to_string(crate::place(table::NAME)) {
            Ok(kept) => table.resume(&kept),
            Err(error) => println!("nothing to go on with ({error})"),
        }
    }
    let start = Instant::now();
    let mut bed = None;
    let (mut runs, mut failed) = (0, 0);
    for plan in plans.iter().flat_map(|plan| std::iter::repeat_n(*plan, options.times as usize)) {
        if is_kept && table.is_done(plan) {
            continue;
        }
        runs += 1;
        let bed_now = bed.get_or_insert_with(|| Bed::new(image, &[]));
        bed_now.set_path(plan.path);
        let outcome = bed_now.run(&plan.row, plan.vrdma);
        println!("{} ({} s so far)", table.enter(plan, &outcome), start.elapsed().as_secs());
        if let Err(failure) = &outcome.result {
            failed += 1;
            keep_evidence(plan, failure);
            // What a failed run leaves behind in the guest must not spoil the next.
            bed = None;
        }
        if is_kept {
            crate::keep(table::NAME, &table.text());
        }
    }
    println!("{runs} runs in {} s, {failed} failed; of all rows {}", start.elapsed().as_secs(), table.count());
    if failed == 0 && (!is_kept || table.all_passed()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn all() -> Vec<Plan> {
    let mut plans = Vec::new();
    let mut add = |path: &Path, rows: &[(&'static str, &'static str, Report)]| {
        for &(program, options, report) in rows {
            let row = Row { program, options, report };
            plans.extend([Role::Server, Role::Client].map(|vrdma| Plan { row, vrdma, path: *path }));
        }
    };
    add(&Path::PLAIN, BASE);
    for path in OTHER_PATHS {
        add(path, SHORT);
        if path.loss_per_mille == 0 {
            add(path, LOSSLESS);
        }
    }
    plans
}

/// Keeps the capture and the state of both sides below the build folder, and says where.
fn keep_evidence(plan: &Plan, failure: &Failure) {
    let folder = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| FilePath::new(env!("CARGO_MANIFEST_DIR")).join("../target"), Into::into)
        .join("interop");
    let name: String = plan.key().chars().filter(|c| c.is_ascii_alphanumeric() || *c == ' ').collect();
    let name = name.split_whitespace().collect::<Vec<_>>().join("-");
    let kept = std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(folder.join(format!("{name}.txt")), &failure.state))
        .and_then(|()| std::fs::copy(&failure.capture, folder.join(format!("{name}.pcap"))));
    match kept {
        Ok(_) => println!("capture and state of both sides: {}/{name}.*", folder.display()),
        Err(error) => println!("capture and state cannot be kept in {}: {error}", folder.display()),
    }
}
