//! The table of unmodified programs that must run between two devices, and how one row is run and judged.
//!
//! The rows are Debian's pingpongs and perftest with the options people use.
//! They are short on purpose (few iterations): what is tested is that they run and end well, not how fast.

use crate::{Daemon, Program};
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// How long one program of a row may run. Rows take a second or two; the rest is for a loaded machine.
const ROW_LIMIT: Duration = Duration::from_secs(120);
/// How long a server may take until it listens.
const LISTEN_LIMIT: Duration = Duration::from_secs(15);
/// How long two programs may take until they meet.
const MEET_LIMIT: Duration = Duration::from_secs(60);

/// One row: the same program and options on both sides.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The program.
    pub program: &'static str,
    /// Options of both sides, separated by blanks.
    pub options: &'static str,
    /// What the client must report.
    pub report: Report,
}

/// What a client must print to have passed, beside ending with status 0.
#[derive(Clone, Copy, Debug)]
pub enum Report {
    /// A pingpong of libibverbs: its two summary lines.
    Pingpong,
    /// perftest: this many lines of results, each of them with figures above zero.
    Results {
        /// Message sizes measured.
        lines: usize,
    },
    /// A program without figures: this text.
    Prints {
        /// Part of what it prints when all went well.
        text: &'static str,
    },
}

impl Report {
    /// perftest, one message size.
    pub const ONE_SIZE: Report = Report::Results { lines: 1 };
    /// perftest with `-a`.
    pub const ALL_SIZES: Report = Report::Results { lines: ALL_SIZES };
    /// `rping -v -C 10`.
    pub const TEN_PINGS: Report = Report::Prints { text: "ping data: rdma-ping-9" };
}

/// Message sizes of perftest's `-a`: 2 B to 8 MiB.
pub const ALL_SIZES: usize = 23;

/// Makes one test function per row, each calling `$run(&Row)`.
#[macro_export]
macro_rules! test_each_row {
    ($run:path) => {
        $crate::test_each_row!(@rows $run,
            rc_pingpong: "ibv_rc_pingpong", "-g 0 -n 200", Pingpong;
            rc_pingpong_events: "ibv_rc_pingpong", "-g 0 -n 200 -e", Pingpong;
            rc_pingpong_checked: "ibv_rc_pingpong", "-g 0 -n 200 -c", Pingpong;
            uc_pingpong: "ibv_uc_pingpong", "-g 0 -n 200", Pingpong;
            uc_pingpong_events: "ibv_uc_pingpong", "-g 0 -n 200 -e", Pingpong;
            srq_pingpong: "ibv_srq_pingpong", "-g 0 -n 200", Pingpong;
            srq_pingpong_events: "ibv_srq_pingpong", "-g 0 -n 200 -e", Pingpong;
            xsrq_pingpong: "ibv_xsrq_pingpong", "-g 0 -m 1024 -n 200", Prints { text: "success" };
            xsrq_pingpong_events: "ibv_xsrq_pingpong", "-g 0 -m 1024 -n 200 -e", Prints { text: "success" };
            ud_pingpong: "ibv_ud_pingpong", "-g 0 -n 200", Pingpong;
            ud_pingpong_events: "ibv_ud_pingpong", "-g 0 -n 200 -e", Pingpong;
            write_bw_all_sizes: "ib_write_bw", "-a -n 40", Results { lines: $crate::matrix::ALL_SIZES };
            read_bw_all_sizes: "ib_read_bw", "-a -n 40", Results { lines: $crate::matrix::ALL_SIZES };
            send_bw_all_sizes: "ib_send_bw", "-a -n 40", Results { lines: $crate::matrix::ALL_SIZES };
            atomic_bw_fetch_add: "ib_atomic_bw", "-A FETCH_AND_ADD -n 500", Results { lines: 1 };
            atomic_bw_compare_swap: "ib_atomic_bw", "-A CMP_AND_SWAP -n 500", Results { lines: 1 };
            write_lat: "ib_write_lat", "-n 300", Results { lines: 1 };
            read_lat: "ib_read_lat", "-n 300", Results { lines: 1 };
            send_lat: "ib_send_lat", "-n 300", Results { lines: 1 };
            atomic_lat: "ib_atomic_lat", "-n 300", Results { lines: 1 };
            write_bw_4_qps: "ib_write_bw", "-q 4 -n 100", Results { lines: 1 };
            send_bw_4_qps: "ib_send_bw", "-q 4 -n 100", Results { lines: 1 };
            write_bw_both_ways: "ib_write_bw", "-b -n 100", Results { lines: 1 };
            read_bw_both_ways: "ib_read_bw", "-b -n 100", Results { lines: 1 };
            send_bw_both_ways: "ib_send_bw", "-b -n 100", Results { lines: 1 };
            read_bw_events: "ib_read_bw", "-e -n 100", Results { lines: 1 };
            send_bw_shared_receives: "ib_send_bw", "--use-srq -q 4 -n 100", Results { lines: 1 };
            write_bw_uc: "ib_write_bw", "-c UC -n 500", Results { lines: 1 };
            write_lat_uc: "ib_write_lat", "-c UC -n 300", Results { lines: 1 };
            send_bw_uc: "ib_send_bw", "-c UC -n 500", Results { lines: 1 };
            send_lat_uc: "ib_send_lat", "-c UC -n 300", Results { lines: 1 };
            send_bw_ud: "ib_send_bw", "-c UD -n 1000", Results { lines: 1 };
            send_bw_ud_both_ways: "ib_send_bw", "-c UD -b -n 100", Results { lines: 1 };
            send_lat_ud: "ib_send_lat", "-c UD -n 300", Results { lines: 1 };
            send_bw_events: "ib_send_bw", "-e -n 100", Results { lines: 1 };
            send_lat_events: "ib_send_lat", "-e -n 100", Results { lines: 1 };
            write_bw_post_list: "ib_write_bw", "-l 8 -n 200", Results { lines: 1 };
            send_bw_post_list: "ib_send_bw", "-l 8 -n 200", Results { lines: 1 };
            write_bw_inline: "ib_write_bw", "-I 64 -s 64 -n 500", Results { lines: 1 };
            send_lat_inline: "ib_send_lat", "-I 64 -s 64 -n 300", Results { lines: 1 };
            write_bw_for_a_time: "ib_write_bw", "-D 1 -q 4", Results { lines: 1 };
            write_bw_addressed: "ib_write_bw", "-x 0 -i 1 -m 1024 -n 100", Results { lines: 1 };
            write_bw_json: "ib_write_bw", "--out_json --out_json_file=report.json -n 100", Results { lines: 1 };
            write_bw_cpu_use: "ib_write_bw", "-D 1 --cpu_util", Results { lines: 1 };
            send_bw_events_both_ways: "ib_send_bw", "-e -b -n 100", Results { lines: 1 };
            read_bw_outstanding: "ib_read_bw", "-o 4 -q 2 -b -n 100", Results { lines: 1 };
            atomic_bw_events: "ib_atomic_bw", "-e -q 2 -n 200", Results { lines: 1 };
        );
    };
    (@rows $run:path, $($name:ident: $program:literal, $options:literal, $report:ident $({ $($field:tt)* })?;)*) => {
        $(
            #[test]
            fn $name() {
                $run(&$crate::matrix::Row {
                    program: $program,
                    options: $options,
                    report: $crate::matrix::Report::$report $({ $($field)* })?,
                });
            }
        )*
    };
}

/// Where one side of a row runs.
#[derive(Debug)]
pub struct Side<'a> {
    /// The daemon.
    pub daemon: &'a mut Daemon,
    /// The device.
    pub device: &'a str,
}

/// Runs a row. Without a `client` side of its own, the client uses the device `client_device` of the server's daemon.
/// `server_address` is where the client finds the server for the exchange of addresses over TCP.
pub fn run(row: &Row, server: Side<'_>, client_device: &str, client: Option<&mut Daemon>, server_address: &str) {
    run_clients(row, &[], 1, server, client_device, client, server_address);
}

/// Runs a row with so many clients of one server, which is told of them in words of its own.
pub fn run_clients(
    row: &Row,
    server_words: &[&str],
    clients: usize,
    server: Side<'_>,
    client_device: &str,
    client: Option<&mut Daemon>,
    server_address: &str,
) {
    let port = free_port().to_string();
    let options: Vec<&str> = [row.program].into_iter().chain(row.options.split(' ')).chain(["-p", &port]).collect();
    let mut server_program = server.daemon.run(server.device, &[&options, server_words].concat());
    wait_until_listening(&mut server_program, &port);
    let words: Vec<&str> = options.iter().copied().chain([server_address]).collect();
    let client_daemon = match client {
        Some(daemon) => daemon,
        None => server.daemon,
    };
    let programs: Vec<Program> = (0..clients).map(|_| client_daemon.run(client_device, &words)).collect();
    let reports: Vec<String> = programs.into_iter().map(|mut program| program.succeed(ROW_LIMIT)).collect();
    server_program.succeed(ROW_LIMIT);
    for report in reports {
        if let Err(complaint) = judge(row, &report) {
            panic!("{} {}: {complaint}; output:\n{report}", row.program, row.options);
        }
    }
}

/// Clients that a server serves with one shared receive queue, which their requests name, over connections of their own.
pub const XSRQ_PINGPONG: Row =
    Row { program: "ibv_xsrq_pingpong", options: "-g 0 -m 1024 -n 100", report: Report::Prints { text: "success" } };

/// What a client's report lacks to pass, if anything.
pub(crate) fn judge(row: &Row, report: &str) -> Result<(), String> {
    match row.report {
        Report::Pingpong => {
            for text in ["bytes in", "iters in"] {
                if !report.contains(text) {
                    return Err(format!("{text:?} is missing"));
                }
            }
        }
        Report::Prints { text } if !report.contains(text) => return Err(format!("{text:?} is missing")),
        Report::Prints { .. } => {}
        Report::Results { lines } => {
            let results = result_lines(report);
            if results.len() != lines {
                return Err(format!("{} lines of results instead of {lines}", results.len()));
            }
            // Next to the size and the count, one figure may be too small to be printed: the bandwidth of the smallest
            // messages in MB/s, or the rate of the largest ones in millions a second.
            let figureless = |columns: &&Vec<f64>| !columns.iter().skip(2).any(|figure| *figure > 0.0);
            if let Some(bad) = results.iter().find(figureless) {
                return Err(format!("no figure in {bad:?}"));
            }
        }
    }
    Ok(())
}

/// The lines of results of a perftest report: those that consist of numbers only, below the line of column names.
pub fn result_lines(report: &str) -> Vec<Vec<f64>> {
    let numbers = |line: &str| line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>().ok();
    report.lines().skip_while(|line| !line.contains("#bytes")).filter_map(numbers).filter(|columns| columns.len() > 1).collect()
}

/// A TCP port that was free a moment ago. Good enough: one test runs at a time.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it is bound").port()
}

/// Waits until a program, or a child of it, listens on a TCP port in its network namespace. What it prints is no help:
/// output into a file is buffered.
pub fn wait_until_listening(program: &mut Program, port: &str) {
    let deadline = Instant::now() + LISTEN_LIMIT;
    while !is_listening(program.pid(), port) {
        if !program.is_running() {
            panic!("the server ended before it listened:\n{}", program.output());
        }
        assert!(Instant::now() < deadline, "the server does not listen after {LISTEN_LIMIT:?}:\n{}", program.output());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// One of two programs that meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It listens.
    Server,
    /// It connects.
    Client,
}

/// Starts two programs that meet by `rdma_cm`, and returns the server, and what the client printed when it had ended well. That a
/// server listens shows only when it is connected to. perftest's also make a second connection, for which the server listens anew,
/// so that a client that is refused may leave its server halfway: both are started again, the client later each time.
pub fn meet(mut start: impl FnMut(End) -> Program) -> (Program, String) {
    let deadline = Instant::now() + MEET_LIMIT;
    let mut head_start = Duration::from_millis(50);
    loop {
        let mut server = start(End::Server);
        std::thread::sleep(head_start);
        let ended = start(End::Client).end(ROW_LIMIT);
        if ended.status.success() {
            return (server, ended.output);
        }
        let outputs = || format!("the client ended with {}:\n{}\nthe server:\n{}", ended.status, ended.output, server.output());
        assert!(Instant::now() < deadline, "the two do not meet; {}", outputs());
        server.kill();
        head_start *= 2;
    }
}

/// Whether anyone listens on a TCP port in the network namespace of a process.
pub(crate) fn is_listening(pid: u32, port: &str) -> bool {
    let port: u16 = port.parse().expect("a port number");
    let wanted = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|table| {
        let table = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        table.lines().skip(1).any(|line| {
            let mut columns = line.split_whitespace().skip(1);
            let local = columns.next().is_some_and(|local| local.ends_with(&wanted));
            local && columns.nth(1) == Some(LISTEN_STATE)
        })
    })
}

/// State column of a listening socket in `/proc/net/tcp`.
const LISTEN_STATE: &str = "0A";

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: Row = Row { program: "ib_write_bw", options: "", report: Report::Results { lines: 2 } };

    #[test]
    fn only_full_reports_pass() {
        let head = "local address: LID 0000 QPN 0x0011\n #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]\n";
        let good = format!("1 2 3 4\n{head} 2  40  1.5  1.4  0.7\n 4  40  3.0  2.9  0.7\n-----\n");
        assert_eq!(judge(&ROW, &good), Ok(()));
        assert!(judge(&ROW, &format!("{head} 2  40  1.5  1.4  0.7\n")).is_err());
        assert!(judge(&ROW, &format!("{head} 2  40  1.5  1.4  0.7\n 4  40  0.0  0.0  0.0\n")).is_err());
    }

    #[test]
    fn a_listening_port_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut command = std::process::Command::new("sleep");
        command.arg("5");
        let mut sleeper = Program::start("sleep", &std::env::temp_dir(), command);
        wait_until_listening(&mut sleeper, &port.to_string());
    }
}
