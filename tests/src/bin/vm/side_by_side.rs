//! vrdma and rxe side by side in one guest: two network namespaces joined by a veth pair, the same programs on both, measured in
//! turns. Only the ratios mean anything.

use clap::Args;
use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;
use tests::matrix::result_lines;
use tests::vm::{Guest, GuestOptions, Image};

/// How long one measurement may take.
const LIMIT: Duration = Duration::from_secs(240);
/// What perftest prints when it could not measure the speed of its clock, as on a busy machine; its figures are of no use then.
const BAD_CLOCK: &str = "Correlation coefficient";
/// How often such a measurement is made again.
const TRIES: u32 = 10;
/// Name of the kept table.
const NAME: &str = "side-by-side.md";

/// What both ends of the wire are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A daemon in each namespace.
    Vrdma,
    /// A device of soft-RoCE in each.
    Rxe,
}

const KINDS: [Kind; 2] = [Kind::Vrdma, Kind::Rxe];

/// One kind of measurement.
struct Measure {
    name: &'static str,
    words: &'static str,
    /// Column of the report, counted from its end.
    column: usize,
    /// From the report's unit to that of the table.
    factor: f64,
}

/// Long enough that starting the programs is a small part of the processor time, at the rate of either kind.
const MEASURES: &[Measure] = &[
    Measure { name: "WRITE bandwidth at 64 KiB, MB/s", words: "ib_write_bw -s 65536 -n 1000", column: 2, factor: 1.0 },
    Measure {
        name: "SEND bandwidth at 64 KiB, waiting for events, MB/s",
        words: "ib_send_bw -e -s 65536 -n 1000",
        column: 2,
        factor: 1.0,
    },
    Measure { name: "WRITE latency at 8 B, polling memory, µs", words: "ib_write_lat -s 8 -n 500", column: 5, factor: 1.0 },
    Measure { name: "SEND latency at 8 B, polling, µs", words: "ib_send_lat -s 8 -n 500", column: 5, factor: 1.0 },
    Measure {
        name: "SEND latency at 8 B, waiting for events, µs",
        words: "ib_send_lat -e -s 8 -n 500",
        column: 5,
        factor: 1.0,
    },
    Measure { name: "WRITE messages of 8 B, thousands/s", words: "ib_write_bw -s 8 -n 5000", column: 1, factor: 1000.0 },
];

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Figure {
    value: f64,
    /// What all processors of the guest spent on it.
    cpu_seconds: f64,
}

/// How long to measure.
#[derive(Args)]
pub struct Options {
    /// Measurements of each kind, of which the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// Measures all and keeps the table.
pub fn run(image: &Image, options: &Options) -> ExitCode {
    let bin = tests::binary().parent().map(ToOwned::to_owned);
    let guest = Guest::boot(image, None, &GuestOptions { bin, cpus: 2, ..GuestOptions::default() });
    guest.succeed("modprobe -a rdma_rxe ib_uverbs veth");
    let mut found = vec![[Vec::new(), Vec::new()]; MEASURES.len()];
    for round in 1..=options.rounds {
        for (n, kind) in KINDS.into_iter().enumerate() {
            lay_wire(&guest, kind);
            for (found, measure) in found.iter_mut().zip(MEASURES) {
                let figure = take(&guest, kind, measure);
                println!(
                    "round {round}, {kind:?}, {}: {:.2}, {:.2} s of processors",
                    measure.name, figure.value, figure.cpu_seconds
                );
                found[n].push(figure);
            }
        }
    }
    let text = table(image, options.rounds, &found);
    print!("{text}");
    crate::keep(NAME, &text);
    ExitCode::SUCCESS
}

/// Two namespaces, each with one end of a wire and one device on it; what was there before goes.
pub fn lay_wire(guest: &Guest, kind: Kind) {
    let device = match kind {
        Kind::Vrdma => {
            "export VRDMA_DIR=/run/vrdma$end
            ip netns exec n$end setsid /mnt/bin/vrdma daemon >/run/log$end 2>&1 &
            until [ -S $VRDMA_DIR/api.sock ]; do sleep 0.1; done
            ip netns exec n$end /mnt/bin/vrdma dev add d --ip 192.0.2.$end"
        }
        Kind::Rxe => {
            "ip netns exec n$end rdma link add rxe$end type rxe netdev wire
            until grep -q :ffff:c000:020$end /sys/class/infiniband/rxe$end/ports/1/gids/1; do sleep 0.1; done"
        }
    };
    guest.succeed(&format!(
        "killall -q -w vrdma
        set -e
        rm -rf /run/vrdma1 /run/vrdma2
        for end in 1 2; do
            if [ -e /sys/class/infiniband/rxe$end ]; then rdma link del rxe$end; fi
        done
        for end in 1 2; do
            if [ -e /run/netns/n$end ]; then ip netns del n$end; fi
        done
        ip netns add n1; ip netns add n2
        ip -n n1 link add wire mtu 9000 type veth peer name wire mtu 9000 netns n2
        for end in 1 2; do
            ip -n n$end link set lo up
            ip -n n$end addr add 192.0.2.$end/24 dev wire
            ip -n n$end link set wire up
        done
        for end in 1 2; do
            {device}
        done"
    ));
}

fn take(guest: &Guest, kind: Kind, measure: &Measure) -> Figure {
    let words = measure.words;
    let program = |end: u32| match kind {
        Kind::Vrdma => format!("VRDMA_DIR=/run/vrdma{end} ip netns exec n{end} /mnt/bin/vrdma run --dev d -- {words} -m 4096"),
        Kind::Rxe => format!("ip netns exec n{end} {words} -m 4096 -d rxe{end} -x 1"),
    };
    let script = format!(
        "busy() {{ awk '/^cpu / {{ print $2 + $3 + $4 + $7 + $8 }}' /proc/stat; }}
        {} >/tmp/server 2>&1 &
        until ip netns exec n1 ss -Hltn sport = :18515 | grep -q .; do
            kill -0 $! || {{ cat /tmp/server; exit 1; }}
            sleep 0.1
        done
        before=$(busy)
        {} 192.0.2.1 || {{ cat /tmp/server; exit 1; }}
        echo busy $(($(busy) - before))
        wait",
        program(1),
        program(2)
    );
    for _ in 0..TRIES {
        let ended = guest.run(&script, LIMIT);
        let report = &ended.output;
        if report.contains(BAD_CLOCK) {
            continue;
        }
        let columns = result_lines(report).pop();
        let ticks = report.lines().find_map(|line| line.strip_prefix("busy ")?.parse::<f64>().ok());
        let (Some(columns), Some(ticks)) = (columns, ticks) else { panic!("{kind:?}, {words} failed:\n{report}") };
        // The kernel counts in hundredths of a second.
        return Figure { value: columns[columns.len() - measure.column] * measure.factor, cpu_seconds: ticks / 100.0 };
    }
    panic!("{kind:?}, {words}: perftest failed {TRIES} times to measure the speed of its clock: is this machine that busy?")
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// What the host has to do, as it counts it: programs that run or want to, over the last minute.
fn load() -> String {
    let loads = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    loads.split(' ').next().unwrap_or_default().to_owned()
}

fn table(image: &Image, rounds: u32, found: &[[Vec<Figure>; 2]]) -> String {
    let mut text = String::from("# vrdma and Linux soft-RoCE side by side\n\n");
    let _ = writeln!(text, "Written by `tests/vm/run side-by-side` on {}: {}.\n", crate::today(), crate::circumstances(image));
    let _ = writeln!(
        text,
        "One guest with two emulated processors; two network namespaces joined by a veth pair of MTU 9000 (path MTU 4096); in each of\n\
         them a daemon of vrdma with one device, or one device of soft-RoCE; the same program on both ends. Medians of {rounds} rounds,\n\
         vrdma and soft-RoCE in turns; ratios are those of the medians, with the smallest and the largest ratio of one round. Processor\n\
         time is what all of the guest spent from the client's start to its end, starting the program included. Under emulation, on a\n\
         host with {} processors and a load of {} at the end (1 is the guest's own, or 2), only the ratios mean anything, and the less the\n\
         busier the host is: each message wakes more processes of vrdma than of soft-RoCE, and each waits for its turn on the host.\n",
        std::thread::available_parallelism().map_or(0, usize::from),
        load(),
    );
    text.push_str("| | vrdma | soft-RoCE | ratio | spread | processor time, ratio |\n|---|---|---|---|---|---|\n");
    for (measure, [vrdma, rxe]) in MEASURES.iter().zip(found) {
        let values = |figures: &[Figure]| median(figures.iter().map(|figure| figure.value));
        let cpu = |figures: &[Figure]| median(figures.iter().map(|figure| figure.cpu_seconds));
        let ratios = vrdma.iter().zip(rxe).map(|(a, b)| a.value / b.value);
        let (least, most) = ratios.fold((f64::MAX, 0.0_f64), |(least, most), ratio| (least.min(ratio), most.max(ratio)));
        let _ = writeln!(
            text,
            "| {} (`{}`) | {:.1} | {:.1} | {:.2} | {least:.2} to {most:.2} | {:.2} |",
            measure.name,
            measure.words,
            values(vrdma),
            values(rxe),
            values(vrdma) / values(rxe),
            cpu(vrdma) / cpu(rxe),
        );
    }
    text
}
