//! `vrdma sim reference`: the configuration of a published simulator, run here, beside what that one gave.
//!
//! Times are simulated, and comparable. The speed was measured on another occasion for the one, and just now for the other.

use std::time::Instant;

use anyhow::{Result, ensure};
use fabric::reference::{FIGURES, PACKETS_PER_SEC, RUNS, Run};
use fabric::{Report, Sim};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::Serialize;

use crate::cores::on_all_cores;
use crate::output::{print, print_json, progress_bar, table};

/// The reference's fat tree has switches of 16 ports.
const K: u32 = 16;

/// Why there are differences.
const WHY: &str = "Why they differ: a packet that can go any way carries 40 bytes more here, which is 1 % of each time. Of a single path all depends on\n\
    which flows a hash puts together, and of slow links on where they lie: the permutation, the hash and the place of the links are\n\
    our own, and other seeds give other figures.";

/// The object that `sim reference --json` prints.
#[derive(Debug, Serialize)]
struct Reference {
    seed: u64,
    event_hash: String,
    rows: Vec<Row>,
    speed: Speed,
}

/// One figure of the completion times.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    ours_us: f64,
    reference_us: f64,
}

/// How fast it was simulated.
#[derive(Debug, Serialize)]
struct Speed {
    /// Packets of payload that the transfers consist of, without those sent again.
    data_packets: u64,
    wall_s: f64,
    /// Seconds of processor time: where a machine is shared, more telling than the other.
    cpu_s: f64,
    packets_per_sec: f64,
    reference_packets_per_sec: f64,
    events: u64,
    ns_per_event: f64,
    /// Of the whole process, in MiB.
    peak_memory_mib: f64,
}

/// Runs it and prints the comparison.
pub fn carry_out(seed: u64, as_json: bool) -> Result<()> {
    if !as_json {
        print(format!("seed {seed}\n"))?;
    }
    let bar = progress_bar(RUNS.len() as u64, "runs");
    let run = |run: &Run| {
        let report = simulate(run, seed)?;
        bar.inc(1);
        Ok(report)
    };
    // The first one alone, for the speed.
    let (timed, others) = RUNS.split_first().expect("there are runs");
    let (start, cpu_before) = (Instant::now(), cpu_s()?);
    let first = run(timed)?;
    let (wall_s, cpu_s) = (start.elapsed().as_secs_f64(), cpu_s()? - cpu_before);
    // The system counts in KiB.
    let peak_memory_mib = getrusage(UsageWho::RUSAGE_SELF)?.max_rss() as f64 / 1024.0;
    let mut reports = vec![first];
    reports.extend(on_all_cores(others, run)?);
    bar.finish_and_clear();
    let rows = RUNS.iter().zip(&reports).flat_map(|(run, report)| {
        let times = &report.completion_us;
        let ours = [times.min, times.p50, times.p99, times.max, times.mean];
        let figures = FIGURES.into_iter().zip(ours).zip(run.reference_us);
        figures.map(|((figure, ours_us), reference_us)| Row { name: format!("{}, {figure}", run.name), ours_us, reference_us })
    });
    let (hosts, events) = (reports[0].hosts, reports[0].events);
    let keys = timed.scenario(K, seed);
    let data_packets = u64::from(keys.workload.bytes.div_ceil(keys.transport.mtu)) * u64::from(hosts);
    let reference = Reference {
        seed,
        event_hash: reports[0].event_hash.clone(),
        rows: rows.collect(),
        speed: Speed {
            data_packets,
            wall_s,
            cpu_s,
            packets_per_sec: data_packets as f64 / wall_s,
            reference_packets_per_sec: PACKETS_PER_SEC,
            events,
            ns_per_event: wall_s * 1e9 / events as f64,
            peak_memory_mib,
        },
    };
    if as_json { print_json(&reference) } else { print(reference.text(hosts)) }
}

fn simulate(run: &Run, seed: u64) -> Result<Report> {
    let mut sim = Sim::new(&run.scenario(K, seed), None)?;
    sim.run();
    let report = sim.report();
    ensure!(report.violation_count == 0, "{}: violations of what must hold; the first: {}", run.name, report.violations[0]);
    let Report { succeeded, hosts, .. } = report;
    ensure!(succeeded == hosts as usize, "{}: {succeeded} transfers of {hosts} succeeded", run.name);
    Ok(report)
}

/// Processor time of this process so far.
fn cpu_s() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(micros as f64 / 1e6)
}

impl Reference {
    fn text(&self, hosts: u32) -> String {
        let mut text = format!(
            "{hosts} hosts in 3 tiers, 100 Gb/s, a permutation of 2 MB; the reference is the UEC transport simulator\n\n"
        );
        let rows = RUNS.iter().zip(self.rows.chunks(FIGURES.len())).map(|(run, rows)| {
            let mut cells = vec![run.name.to_owned()];
            cells.extend(rows.iter().map(|Row { ours_us, reference_us, .. }| {
                let deviation = 100.0 * (ours_us / reference_us - 1.0);
                format!("{ours_us:.1} / {reference_us:.1} ({deviation:+.0} %)")
            }));
            <[String; 6]>::try_from(cells).expect("a name and five figures")
        });
        let header = ["OURS / REFERENCE, µs", "min", "p50", "p99", "max", "mean"];
        text += &table(header, rows, &[1, 2, 3, 4, 5]);
        let Speed { data_packets, wall_s, cpu_s, packets_per_sec, events, ns_per_event, peak_memory_mib, .. } = self.speed;
        text += &format!(
            "\n{WHY}\n\n\
             {data_packets} data packets in {wall_s:.2} s ({cpu_s:.2} s of processor time): {packets_per_sec:.0} per second,\n\
             {:.1} times the reference's {PACKETS_PER_SEC:.0} (recorded on another occasion); {events} events, {ns_per_event:.0} ns each; {peak_memory_mib:.0} MiB.\n",
            packets_per_sec / PACKETS_PER_SEC
        );
        text
    }
}
