//! The programs of `bench isolation`: Debian's perftest, one end on each host, and what they print.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::run;
use crate::stage::Hosts;

/// The latency tenant's program.
pub const LATENCY: &str = "ib_write_lat";
/// The bulk tenant's program.
pub const BULK: &str = "ib_write_bw";

/// Bytes of the latency tenant's messages, and of the bulk tenant's.
pub const SIZES: [u32; 2] = [16, 1 << 20];
/// Messages by which it is found how many fit the time; at least and at most so many then.
const MESSAGES: (u32, u32, u32) = (100, 300, 50_000);
/// Time for a server to listen, which it has no way to say; and for one run to end.
const LISTEN: Duration = Duration::from_secs(10);
const RUN: Duration = Duration::from_secs(120);
/// TCP ports on which the two programs find their peers.
const PORTS: [u16; 2] = [18515, 18516];
/// Starts a program that ends with this process, however that ends.
const TIED: [&str; 3] = ["setpriv", "--pdeathsig", "KILL"];

/// What `ib_write_lat` saw, in microseconds of half the way there and back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Mean.
    average_us: f64,
}

/// The command of one end.
fn command(hosts: &Hosts, end: usize, socket: &PathBuf, words: &[&str]) -> Result<Command> {
    let mut command = hosts.command(end, TIED[0]);
    command.args(&TIED[1..]).args(words).stdin(Stdio::null()).stderr(Stdio::piped());
    run::equip(&mut command, &OsString::from(socket))?;
    Ok(command)
}

/// A child process that is killed when it is no longer wanted.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended, which is as well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Killed {
    fn has_ended(&mut self) -> Result<bool> {
        Ok(self.0.try_wait()?.is_some())
    }
}

/// Measures latency for about `time`.
pub fn latency(hosts: &Hosts, sockets: &[PathBuf; 2], server: Ipv4Addr, time: Duration) -> Result<Latency> {
    let (first, least, most) = MESSAGES;
    let trial = latency_of(hosts, sockets, server, first)?;
    let fit = time.as_secs_f64() / (trial.average_us.max(0.1) * 2.0 / 1e6);
    latency_of(hosts, sockets, server, (fit as u32).clamp(least, most))
}

fn latency_of(hosts: &Hosts, sockets: &[PathBuf; 2], server: Ipv4Addr, messages: u32) -> Result<Latency> {
    let (messages, size, port) = (messages.to_string(), SIZES[0].to_string(), PORTS[0].to_string());
    let server = server.to_string();
    let mut words = vec![LATENCY, "-F", "-s", &size, "-n", &messages, "-p", &port];
    let start = |end: usize, words: &[&str], out: Stdio| {
        let mut command = command(hosts, end, &sockets[end], words)?;
        hosts.on_core_of(end, || Ok(Killed(command.stdout(out).spawn().with_context(|| format!("cannot start {LATENCY}"))?)))
    };
    let mut passive = start(1, &words, Stdio::null())?;
    words.push(&server);
    let output = connect(&mut passive, || start(0, &words, Stdio::piped()))?;
    parse(&String::from_utf8_lossy(&output.stdout), SIZES[0])
}

/// Starts the active end again and again until the passive one listens; then runs it to its end.
fn connect(passive: &mut Killed, mut start: impl FnMut() -> Result<Killed>) -> Result<Output> {
    let listen = Instant::now() + LISTEN;
    loop {
        let mut active = start()?;
        let deadline = Instant::now() + RUN;
        while !active.has_ended()? {
            ensure!(Instant::now() < deadline, "a run of {LATENCY} takes longer than {RUN:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        let output = collect(&mut active)?;
        if output.status.success() {
            return Ok(output);
        }
        let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        ensure!(Instant::now() < listen && !passive.has_ended()?, "{LATENCY} failed: {reason}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What a child that has ended has printed: less than a pipe holds.
fn collect(child: &mut Killed) -> Result<Output> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    if let Some(mut out) = child.0.stdout.take() {
        std::io::Read::read_to_end(&mut out, &mut stdout)?;
    }
    if let Some(mut err) = child.0.stderr.take() {
        std::io::Read::read_to_end(&mut err, &mut stderr)?;
    }
    Ok(Output { status: child.0.wait()?, stdout, stderr })
}

/// The line of results: size, messages, least, most, typical (the median), mean, deviation, 99th percentile, 99.9th.
fn parse(text: &str, size: u32) -> Result<Latency> {
    let size = size.to_string();
    let line =
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find(|words| words.first() == Some(&&*size));
    let number = |index: usize| line.as_ref()?.get(index)?.parse::<f64>().ok();
    match (number(4), number(5), number(7)) {
        (Some(p50_us), Some(average_us), Some(p99_us)) => Ok(Latency { p50_us, p99_us, average_us }),
        _ => bail!("{LATENCY} printed no table that is known: {text}"),
    }
}

/// A bulk transfer that goes on until this is dropped.
pub struct Bulk {
    active: Killed,
    _passive: Killed,
}

impl Bulk {
    /// Starts both ends.
    pub fn start(hosts: &Hosts, sockets: &[PathBuf; 2], server: Ipv4Addr) -> Result<Bulk> {
        let (size, port, server) = (SIZES[1].to_string(), PORTS[1].to_string(), server.to_string());
        let mut words = vec![BULK, "-F", "-s", &size, "-D", "100000", "-p", &port];
        let start = |end: usize, words: &[&str]| {
            let mut command = command(hosts, end, &sockets[end], words)?;
            command.stdout(Stdio::null());
            hosts.on_core_of(end, || Ok(Killed(command.spawn().with_context(|| format!("cannot start {BULK}"))?)))
        };
        let passive = start(1, &words)?;
        words.push(&server);
        let listen = Instant::now() + LISTEN;
        loop {
            let mut active = start(0, &words)?;
            // One that finds no server ends at once.
            std::thread::sleep(Duration::from_millis(500));
            if !active.has_ended()? {
                return Ok(Bulk { active, _passive: passive });
            }
            let reason = String::from_utf8_lossy(&collect(&mut active)?.stderr).trim().to_owned();
            ensure!(Instant::now() < listen, "{BULK} failed: {reason}");
        }
    }

    /// Whether it still goes on.
    ///
    /// # Errors
    /// It has ended, though nobody told it to.
    pub fn check(&mut self) -> Result<()> {
        if !self.active.has_ended()? {
            return Ok(());
        }
        bail!("{BULK} ended early: {}", String::from_utf8_lossy(&collect(&mut self.active)?.stderr).trim())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_perftest_is_read() {
        let text = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% \
                    percentile[usec]   99.9% percentile[usec]\n 16      2000          33.62          18002.19      2587.94  \t      \
                    4174.32     \t3230.74\t\t13996.43 \t\t17996.54\n";
        assert_eq!(parse(text, 16).unwrap(), Latency { p50_us: 2587.94, p99_us: 13996.43, average_us: 4174.32 });
        assert!(parse("Couldn't connect to 192.0.2.2:18515\n", 16).is_err());
    }
}
