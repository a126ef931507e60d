//! One program on both sides of a connection, wherever they run: started one after the other, waited for, and judged.

use super::Job;
use crate::container::Container;
use crate::matrix::{End, Row, is_listening, judge, result_lines};
use crate::{Ended, Program};
use std::time::{Duration, Instant};

/// How long one run may take. Most take a few seconds; emulation on a loaded machine is slow, and so is recovery from loss.
const RUN_LIMIT: Duration = Duration::from_secs(300);
/// How long a server may take until it listens, and how long after the end of one side the other may go on.
const MEET_LIMIT: Duration = Duration::from_secs(120);
/// How often a client that is refused tries again, a second apart: that a server of rdma_cm listens on vrdma shows only so.
const TRIES: u32 = 20;
/// What a client prints that was refused because nobody listens.
const REFUSALS: &[&str] = &["RDMA_CM_EVENT_REJECTED", "Unexpected CM event bl blka 8", "Connection refused"];
/// What perftest prints when `-R` lets it connect before the other side listens for its second connection. perftest before 26.04 goes
/// on with ids that it has freed, and crashes; such a run tells nothing of either side.
const LOST_RACE: &str = "RDMA_CM_EVENT_REJECTED; error: 8";
/// How long a client may go on after a server that has ended well: what is still under way then is lost, and the server's last answer
/// with it.
const FAREWELL_LIMIT: Duration = Duration::from_secs(30);
/// How often a client is looked at while it runs.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often a server on the host is looked at until it listens.
const LOOK_FOR_SERVER: Duration = Duration::from_millis(5);

/// A program that runs on one side.
#[derive(Debug)]
pub enum Running {
    /// On the host.
    Host(Box<Program>),
    /// On the host, in a container.
    Container(Box<Container>),
    /// In a guest.
    Guest(Job),
}

impl Running {
    fn wait(&mut self, limit: Duration) -> Option<Ended> {
        match self {
            Running::Host(program) => program.wait(limit),
            Running::Container(container) => container.program.wait(limit),
            Running::Guest(job) => job.wait(limit),
        }
    }

    /// What it printed so far.
    pub fn output(&self) -> String {
        match self {
            Running::Host(program) => program.output(),
            Running::Container(container) => container.program.output(),
            Running::Guest(job) => job.output(),
        }
    }

    /// Waits until a server listens, where that can be seen: not on vrdma's rdma_cm.
    fn wait_until_listening(&mut self, row: &Row, port: &str) -> Result<(), String> {
        if let Running::Guest(job) = self {
            let look = if is_by_cm(row) {
                format!("rdma resource show cm_id | grep LISTEN | grep -q ':{port} '")
            } else {
                format!("ss -Hltn sport = :{port} | grep -q .")
            };
            let looking = job.beside(&format!("until {look}; do sleep 0.05; done"));
            let listens = looking.is_ok_and(|job| job.wait(MEET_LIMIT).is_some());
            return if listens { Ok(()) } else { Err(self.does_not_listen()) };
        }
        if is_by_cm(row) {
            return Ok(());
        }
        let deadline = Instant::now() + MEET_LIMIT;
        while !self.pid().is_some_and(|pid| is_listening(pid, port)) {
            if self.wait(LOOK_FOR_SERVER).is_some() || Instant::now() > deadline {
                return Err(self.does_not_listen());
            }
        }
        Ok(())
    }

    /// Its process on the host, if it has one there.
    fn pid(&self) -> Option<u32> {
        match self {
            Running::Host(program) => Some(program.pid()),
            Running::Container(container) => container.pid(),
            Running::Guest(_) => None,
        }
    }

    fn does_not_listen(&self) -> String {
        format!("the server does not listen: {}", one_line(&self.output()))
    }
}

/// Both sides of a run that has ended, or hangs.
#[derive(Debug)]
pub struct Pair {
    server: Running,
    client: Option<Running>,
    /// The server has ended well, and the client goes on.
    is_deserted: bool,
    /// What the client measured; or, in one line, what went wrong, with the end of both outputs.
    pub result: Result<String, String>,
}

impl Pair {
    /// Runs a program on both sides to its end. `start` starts either; a client that is refused because a server of rdma_cm does
    /// not listen yet is started again.
    pub fn run(row: &Row, port: &str, mut start: impl FnMut(End) -> Running) -> Pair {
        let mut server = start(End::Server);
        if let Err(reason) = server.wait_until_listening(row, port) {
            return Pair { server, client: None, is_deserted: false, result: Err(reason) };
        }
        let seen_listening = !is_by_cm(row) || matches!(server, Running::Guest(_));
        let mut client = start(End::Client);
        let mut ended = wait_for_client(row, &mut client, &mut server);
        for _ in 1..TRIES {
            let refused = |ended: &Ended| !ended.status.success() && REFUSALS.iter().any(|text| ended.output.contains(text));
            let again = !seen_listening && ended.as_ref().is_some_and(refused);
            if !again || server.wait(Duration::from_secs(1)).is_some() {
                break;
            }
            client = start(End::Client);
            ended = wait_for_client(row, &mut client, &mut server);
        }
        let is_deserted = ended.is_none() && server.wait(Duration::ZERO).is_some_and(|ended| ended.status.success());
        let report = client.output();
        // Whom perftest has left halfway waits for ever.
        let well = ended.as_ref().is_some_and(|ended| ended.status.success());
        let halfway = !well && by_perftest(row) && report.contains(LOST_RACE);
        let server_ended = ended.as_ref().filter(|_| !halfway).and_then(|_| server.wait(MEET_LIMIT));
        let judged = match (&ended, &server_ended) {
            (None, _) if halfway => Err("the client was refused, and goes on all the same".into()),
            (None, _) if is_deserted => Err(format!("the client still ran {FAREWELL_LIMIT:?} after the server's end")),
            (None, _) => Err(format!("the client still ran after {RUN_LIMIT:?}")),
            (Some(ended), _) if !ended.status.success() => Err(format!("client: {}", ended.status)),
            (_, None) => Err(format!("the server still ran {MEET_LIMIT:?} after the client")),
            (_, Some(ended)) if !ended.status.success() => Err(format!("server: {}", ended.status)),
            _ => judge(row, &report),
        };
        let result = match judged {
            Ok(()) => Ok(figure(&report)),
            Err(reason) => Err(format!("{reason}; client: {}; server: {}", one_line(&report), one_line(&server.output()))),
        };
        Pair { server, client: Some(client), is_deserted, result }
    }

    /// What each side printed.
    pub fn outputs(&self) -> Vec<String> {
        [self.client.as_ref(), Some(&self.server)].into_iter().flatten().map(Running::output).collect()
    }

    /// Whether the programs have spoiled the run: perftest by connecting before the other side listened; a pingpong because its server
    /// ends at its last receive, and on a path with `loss` its acknowledgement may never come. soft-RoCE then sends again for ever, as
    /// it takes 7 retries for endless ones.
    pub fn is_spoiled(&self, row: &Row, loss: bool) -> bool {
        let lost_race = || by_perftest(row) && self.outputs().iter().any(|output| output.contains(LOST_RACE));
        let deserted = loss && self.is_deserted && row.program.ends_with("_pingpong");
        self.result.is_err() && (deserted || lost_race())
    }
}

/// Program and options of one side: that at `own`, which listens if it has no peer.
pub(crate) fn words(row: &Row, port: &str, own: &str, gid_index: u32, path_mtu: u32, peer: Option<&str>) -> Vec<String> {
    let options = row.options;
    let all = match (row.program, peer) {
        ("rping", None) => format!("rping -s -a {own} -p {port} {options}"),
        ("rping", Some(peer)) => format!("rping -c -a {peer} -p {port} {options}"),
        ("rdma_client", None) => format!("rdma_server -p {port} {options}"),
        ("rdma_client", Some(peer)) => format!("rdma_client -s {peer} -p {port} {options}"),
        (program, peer) => {
            let pingpong = program.starts_with("ibv_");
            let gid = format!("{} {gid_index}", if pingpong { "-g" } else { "-x" });
            // perftest agrees on the smaller of both ends' MTUs; the pingpongs must be told.
            let told = pingpong && program != "ibv_ud_pingpong";
            let mtu = if told { format!("-m {path_mtu}") } else { String::new() };
            format!("{program} {options} -p {port} {gid} {mtu} {}", peer.unwrap_or_default())
        }
    };
    all.split_whitespace().map(str::to_owned).collect()
}

/// Whether perftest connects through rdma_cm.
fn by_perftest(row: &Row) -> bool {
    row.options.split(' ').any(|word| word == "-R")
}

/// Whether the two sides meet through rdma_cm rather than over TCP.
pub(crate) fn is_by_cm(row: &Row) -> bool {
    matches!(row.program, "rping" | "rdma_client") || by_perftest(row)
}

/// Waits for the end of a client; `None` if it hangs.
fn wait_for_client(row: &Row, client: &mut Running, server: &mut Running) -> Option<Ended> {
    let mut deadline = Instant::now() + RUN_LIMIT;
    loop {
        let ended = client.wait(LOOK_EVERY);
        if server.wait(Duration::ZERO).is_some_and(|ended| ended.status.success()) {
            deadline = deadline.min(Instant::now() + FAREWELL_LIMIT);
        }
        let hangs = Instant::now() >= deadline || (by_perftest(row) && client.output().contains(LOST_RACE));
        if ended.is_some() || hangs {
            return ended;
        }
    }
}

/// The figure of a report that people compare: perftest's average bandwidth or typical latency, else the last line.
fn figure(report: &str) -> String {
    let lines = result_lines(report);
    let last = lines.last();
    match last {
        Some(columns) if report.contains("t_typical") => format!("{} µs at {} B", columns[4], columns[0]),
        // Megabytes with two digits are too coarse for the smallest messages.
        Some(columns) if columns[3] < 0.1 => format!("{} million/s of {} B", columns[4], columns[0]),
        Some(columns) => format!("{} MB/s at {} B", columns[3], columns[0]),
        None => report.lines().last().unwrap_or_default().trim().to_owned(),
    }
}

/// The end of an output as one line.
fn one_line(output: &str) -> String {
    let dashes = |line: &&str| !line.trim().is_empty() && !line.contains("-----");
    let lines: Vec<&str> = output.lines().filter(dashes).map(str::trim).collect();
    lines[lines.len().saturating_sub(3)..].join(" / ")
}
