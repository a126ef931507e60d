//! `vrdma sim reference`: the configuration of a published simulator, run here, beside what that one gave.
//!
//! Times are simulated, and comparable. The speed was measured on another occasion for the one, and just now for the other.

use std::time::Instant;

use anyhow::{Result, ensure};
use fabric::Sim;
use fabric::reference::{PACKETS_PER_SEC, SINGLE_PATH_US, scenario};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::Serialize;

use crate::output::{print, print_json, table};

/// The reference's fat tree has switches of 16 ports.
const K: u32 = 16;

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
    let scenario = scenario(K, seed);
    let (start, cpu_before) = (Instant::now(), cpu_s()?);
    let mut sim = Sim::new(&scenario, None)?;
    sim.run();
    let (wall_s, cpu_used) = (start.elapsed().as_secs_f64(), cpu_s()? - cpu_before);
    let report = sim.report();
    ensure!(report.violation_count == 0, "violations of what must hold; the first: {}", report.violations[0]);
    ensure!(report.succeeded == report.hosts as usize, "{} transfers of {} succeeded", report.succeeded, report.hosts);
    let times = &report.completion_us;
    let ours = [times.min, times.p50, times.p99, times.max, times.mean];
    let rows = SINGLE_PATH_US.iter().zip(ours);
    let rows = rows.map(|(&(name, reference_us), ours_us)| Row { name: format!("single path, {name}"), ours_us, reference_us });
    let packets = scenario.workload.bytes.div_ceil(scenario.transport.mtu);
    let data_packets = u64::from(packets) * u64::from(report.hosts);
    // The system counts in KiB.
    let peak_memory_mib = getrusage(UsageWho::RUSAGE_SELF)?.max_rss() as f64 / 1024.0;
    let reference = Reference {
        seed,
        event_hash: report.event_hash.clone(),
        rows: rows.collect(),
        speed: Speed {
            data_packets,
            wall_s,
            cpu_s: cpu_used,
            packets_per_sec: data_packets as f64 / wall_s,
            reference_packets_per_sec: PACKETS_PER_SEC,
            events: report.events,
            ns_per_event: wall_s * 1e9 / report.events as f64,
            peak_memory_mib,
        },
    };
    if as_json { print_json(&reference) } else { print(reference.text(report.hosts)) }
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
        let rows = self.rows.iter().map(|row| {
            let ratio = row.ours_us / row.reference_us;
            [row.name.clone(), format!("{:.1}", row.ours_us), format!("{:.1}", row.reference_us), format!("{ratio:.2}")]
        });
        text += &table(["COMPLETION TIME", "ours[usec]", "reference[usec]", "ratio"], rows, &[1, 2, 3]);
        let Speed { data_packets, wall_s, cpu_s, packets_per_sec, events, ns_per_event, peak_memory_mib, .. } = self.speed;
        text += &format!(
            "\nSingle path here is the core's go-back-N with a window that halves on loss; the reference's sender has selective\n\
             repeat and its congestion control.\n\n\
             {data_packets} data packets in {wall_s:.2} s ({cpu_s:.2} s of processor time): {packets_per_sec:.0} per second,\n\
             {:.1} times the reference's {PACKETS_PER_SEC:.0} (recorded on another occasion); {events} events, {ns_per_event:.0} ns each; {peak_memory_mib:.0} MiB.\n",
            packets_per_sec / PACKETS_PER_SEC
        );
        text
    }
}
