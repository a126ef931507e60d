//! `vrdma run --shape` on soft-RoCE: a guest with two devices joined by a wire, programs on both ends that know nothing of it.
//! A bandwidth test keeps the rate that it was given; a latency test beside it, with and without; what was written is what arrives.

use clap::Args;
use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;
use tests::matrix::result_lines;
use tests::vm::{Guest, GuestOptions, Image};

use crate::side_by_side::{Kind, lay_wire};

/// How long one measurement may take.
const LIMIT: Duration = Duration::from_secs(180);
/// What perftest prints when it could not measure the speed of its clock, as on a busy machine; its figures are of no use then.
const BAD_CLOCK: &str = "Correlation coefficient";
/// How often such a measurement is made again.
const TRIES: u32 = 10;
/// Name of the kept table.
const NAME: &str = "shape.md";
/// How far from the rate asked for a bandwidth test may be.
const TOLERANCE: f64 = 0.05;

/// Rates asked for, in Mbit/s, and what is run. The guest reaches some 100 Mbit/s on a busy host, and 400 on an idle one.
const CAPPED: &[(u32, &str)] = &[
    (20, "ib_write_bw -s 1048576 -n 15 -t 16"),
    (40, "ib_write_bw -s 1048576 -n 30 -t 16"),
    (40, "ib_write_bw -s 65536 -n 400"),
    (40, "ib_read_bw -s 1048576 -n 30 -t 16"),
    (40, "ib_send_bw -s 65536 -n 400 -e"),
    (40, "ib_write_bw -s 16384 -n 400 -q 4"),
];
/// What a guest without hardware virtualisation misses while it pauses, for tens of milliseconds, it may send afterwards.
const BURST: &str = "burst=256k";
/// Rate in Mbit/s, and other members.
type Shape = Option<(u32, &'static str)>;
/// Beside the latency test.
const BULK: &str = "ib_write_bw -s 1048576 -D 12 -t 16 -p 18600";
const LATENCY: &str = "ib_write_lat -s 8 -n 500";
/// How bulk and latency test are shaped beside each other: what is under way at once waits before the small messages.
const BESIDE_RATE: u32 = 40;
const BESIDE_MORE: &str = "burst=16k,piece=8k";
const BESIDE: Shape = Some((BESIDE_RATE, BESIDE_MORE));
/// Their wire is the bottleneck then, with a queue as behind a card: Mbit/s.
const WIRE: u32 = 50;
/// Programs that check what arrives.
const CHECKED: &[&str] = &["ibv_rc_pingpong -g 1 -c -s 1000000 -n 10", "ibv_rc_pingpong -g 1 -c -e -N -s 300000 -n 10"];

/// How long to measure.
#[derive(Args)]
pub struct Options {
    /// Measurements of each kind, of which the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// Runs all and keeps the table.
pub fn run(image: &Image, options: &Options) -> ExitCode {
    let bin = tests::binary().parent().map(ToOwned::to_owned);
    let guest = Guest::boot(image, None, &GuestOptions { bin, cpus: 2, ..GuestOptions::default() });
    guest.succeed("modprobe -a rdma_rxe ib_uverbs veth");
    lay_wire(&guest, Kind::Rxe);
    let mut text = String::from("# `vrdma run --shape` on soft-RoCE\n\n");
    let _ = writeln!(text, "Written by `tests/vm/run shape` on {}: {}.\n", crate::today(), crate::circumstances(image));
    let _ = writeln!(
        text,
        "One guest with two emulated processors; two soft-RoCE devices in two network namespaces, joined by a veth pair of MTU 9000;\n\
         unmodified programs, the client shaped. Medians of {} rounds.\n",
        options.rounds
    );
    text.push_str("| program | rate asked for, Mbit/s | seen, Mbit/s | unshaped | |\n|---|---|---|---|---|\n");
    let mut passed = true;
    for &(rate, words) in CAPPED {
        let measure = |shape: Shape| median((0..options.rounds).map(|_| take(&guest, words, shape, 2)).collect());
        let (seen, without) = (measure(Some((rate, BURST))) * 8.0, measure(None) * 8.0);
        let is_near = (seen / f64::from(rate) - 1.0).abs() <= TOLERANCE;
        passed &= is_near;
        let verdict = if is_near { "passed" } else { "FAILED" };
        let _ = writeln!(text, "| `{words}` | {rate} | {seen:.1} | {without:.1} | {verdict} |");
        println!("{words} at {rate}: {seen:.1}, unshaped {without:.1}: {verdict}");
    }
    guest.succeed(&format!(
        "modprobe sch_tbf && ip netns exec n2 tc qdisc add dev wire root tbf rate {WIRE}mbit burst 32k latency 500ms"
    ));
    let _ = writeln!(text, "\nOn a wire of {WIRE} Mbit/s, beside `{BULK}`; shaped with rate={}M,{}:", BESIDE_RATE, BESIDE_MORE);
    text.push_str("\n| latency test (`ib_write_lat -s 8`) | median, µs | 99th percentile, µs |\n|---|---|---|\n");
    for (name, shape, beside) in [
        ("alone", None, false),
        ("alone, shaped", BESIDE, false),
        ("beside bulk, neither shaped", None, true),
        ("beside bulk, both shaped", BESIDE, true),
    ] {
        let rounds: Vec<[f64; 2]> = (0..options.rounds).map(|_| latency(&guest, shape, beside)).collect();
        let [middle, tail] = [0, 1].map(|n| median(rounds.iter().map(|round| round[n]).collect()));
        let _ = writeln!(text, "| {name} | {middle:.0} | {tail:.0} |");
        println!("{name}: {middle:.0} {tail:.0}");
    }
    text.push_str("\n| what arrives is checked | |\n|---|---|\n");
    for words in CHECKED {
        let ended = guest.run(&pair(words, BESIDE, "").replace(" -- ", " --stats -- "), LIMIT);
        let is_shaped = ended.output.contains("{\"shaped\":{\"requests\":10,\"");
        let is_intact =
            ended.status.success() && is_shaped && ended.output.contains("iters in") && !ended.output.contains("invalid data");
        passed &= is_intact;
        let verdict = if is_intact { "passed" } else { "FAILED" };
        let _ = writeln!(text, "| `{words}` | {verdict} |");
        println!("{words}: {verdict}");
        if !is_intact {
            println!("{}", ended.output);
        }
    }
    print!("{text}");
    crate::keep(NAME, &text);
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The words that shape a program.
fn shaped(shape: Shape) -> String {
    shape.map_or_else(String::new, |(rate, more)| format!("/mnt/bin/vrdma run --shape rate={rate}M,{more} -- "))
}

/// A script that runs a program on both ends, the client shaped.
fn pair(words: &str, shape: Shape, more: &str) -> String {
    let shaped = shaped(shape);
    format!(
        "ip netns exec n1 {words} {more} -d rxe1 >/tmp/server 2>&1 &
        until ip netns exec n1 ss -Hltn sport = :18515 | grep -q .; do
            kill -0 $! || {{ cat /tmp/server; exit 1; }}
            sleep 0.1
        done
        ip netns exec n2 {shaped}{words} {more} -d rxe2 192.0.2.1
        ended=$?
        wait
        [ $ended = 0 ] || cat /tmp/server
        exit $ended"
    )
}

/// A column of the last line of perftest's report, counted from its end, as MB/s or µs.
fn take(guest: &Guest, words: &str, shape: Shape, column: usize) -> f64 {
    for _ in 0..TRIES {
        let report = guest.run(&pair(words, shape, "-m 4096 -x 1"), LIMIT).output;
        if report.contains(BAD_CLOCK) {
            continue;
        }
        let columns = result_lines(&report).pop().unwrap_or_else(|| panic!("{words}, {shape:?} failed:\n{report}"));
        // perftest's MB are 2^20 bytes.
        return columns[columns.len() - column] * 1.048_576;
    }
    panic!("{words}: perftest failed {TRIES} times to measure the speed of its clock: is this machine that busy?")
}

/// Median and 99th percentile in µs.
fn latency(guest: &Guest, shape: Shape, beside: bool) -> [f64; 2] {
    let around = |client: &str| {
        if !beside {
            return client.to_owned();
        }
        format!(
            "ip netns exec n1 {BULK} -m 4096 -d rxe1 -x 1 >/tmp/bulk1 2>&1 &
            until ip netns exec n1 ss -Hltn sport = :18600 | grep -q .; do sleep 0.1; done
            (ip netns exec n2 {}{BULK} -m 4096 -d rxe2 -x 1 192.0.2.1 >/tmp/bulk2 2>&1 &)
            sleep 3
            ({client})
            ended=$?
            wait
            exit $ended",
            shaped(shape)
        )
    };
    let script = around(&pair(LATENCY, shape, "-m 4096 -x 1"));
    for _ in 0..TRIES {
        let report = guest.run(&script, LIMIT).output;
        if report.contains(BAD_CLOCK) {
            continue;
        }
        // #bytes #iterations t_min t_max t_typical t_avg t_stdev 99% 99.9%
        let columns = result_lines(&report).pop().unwrap_or_else(|| panic!("{LATENCY}, {shape:?} failed:\n{report}"));
        return [columns[columns.len() - 5], columns[columns.len() - 2]];
    }
    panic!("{LATENCY}: perftest failed {TRIES} times to measure the speed of its clock: is this machine that busy?")
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
