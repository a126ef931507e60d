//! Guests with the mainline `erdma` driver: all programs between two of them, with the host, with containers, and with soft-RoCE;
//! then drivers that are reloaded, guests that restart, and a device that is plugged in and out.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tests::container;
use tests::erdma::{Bed, End, Second, device_name, make_module};
use tests::matrix::{Report, Row};
use tests::vm::Image;

/// Between two guests of one daemon.
const GUESTS: &[(&str, &str, Report)] = &[
    ("ibv_rc_pingpong", "-c -n 100", Report::Pingpong),
    ("ibv_rc_pingpong", "-c -e -n 100", Report::Pingpong),
    ("ib_write_bw", "-a -n 5", Report::ALL_SIZES),
    ("ib_write_lat", "-n 100", Report::ONE_SIZE),
    ("ib_read_bw", "-a -n 5", Report::ALL_SIZES),
    ("ib_read_lat", "-n 100", Report::ONE_SIZE),
    ("ib_send_bw", "-a -n 5", Report::ALL_SIZES),
    ("ib_send_bw", "-e -n 100", Report::ONE_SIZE),
    ("ib_send_lat", "-n 100", Report::ONE_SIZE),
    ("ib_atomic_bw", "-A FETCH_AND_ADD -n 100", Report::ONE_SIZE),
    ("ib_atomic_bw", "-A CMP_AND_SWAP -n 100", Report::ONE_SIZE),
    ("ib_atomic_lat", "-n 100", Report::ONE_SIZE),
    ("ib_write_bw", "-q 4 -b -n 100", Report::ONE_SIZE),
    ("rping", "-v -C 10", Report::TEN_PINGS),
    ("ib_write_bw", "-R -n 100", Report::ONE_SIZE),
    ("ib_send_lat", "-R -n 100", Report::ONE_SIZE),
];

/// With a program on the host, either way.
const HOST: &[(&str, &str, Report)] = &[
    ("ibv_rc_pingpong", "-c -n 100", Report::Pingpong),
    ("ib_write_bw", "-n 100", Report::ONE_SIZE),
    ("ib_read_bw", "-n 100 -o 16", Report::ONE_SIZE),
    ("ib_send_lat", "-n 100", Report::ONE_SIZE),
    ("ib_atomic_lat", "-n 100 -o 16", Report::ONE_SIZE),
    ("rping", "-v -C 10", Report::TEN_PINGS),
];

/// With a program in a container on the host, either way.
const CONTAINER: &[(&str, &str, Report)] = &[
    ("ibv_rc_pingpong", "-c -n 100", Report::Pingpong),
    ("ib_write_bw", "-n 100", Report::ONE_SIZE),
    ("ib_read_bw", "-n 100 -o 16", Report::ONE_SIZE),
    ("rping", "-v -C 10", Report::TEN_PINGS),
];

/// With soft-RoCE over the network, either way.
const RXE: &[(&str, &str, Report)] = &[
    ("ibv_rc_pingpong", "-c -n 100", Report::Pingpong),
    ("ib_write_bw", "-n 50", Report::ONE_SIZE),
    ("ib_read_bw", "-n 50 -o 16", Report::ONE_SIZE),
    ("ib_send_bw", "-n 50", Report::ONE_SIZE),
    ("ib_send_lat", "-n 100", Report::ONE_SIZE),
    ("ib_atomic_lat", "-n 100 -o 16", Report::ONE_SIZE),
    ("rping", "-v -C 10", Report::TEN_PINGS),
];

const GUESTS_ENDS: &str = "guest to guest";
const HOST_ENDS: [&str; 2] = ["guest to program on the host", "program on the host to guest"];
const CONTAINER_ENDS: [&str; 2] = ["guest to container", "container to guest"];
const RXE_ENDS: [&str; 2] = ["guest to rxe", "rxe to guest"];
const DEVINFO: &str = "`ibv_devinfo -v`";
const RELOAD: &str = "driver unloaded and loaded ten times";
const RESTART: &str = "guest restarts while its peer writes";
const PLUG: &str = "device plugged into a running guest";
const UNPLUG: &str = "device plugged out, and in again";

/// With what QEMU 11.1.3 ends when any vfio-user device with MSI-X is taken out: when it drops the device it takes the pending bits
/// out of a BAR that they are no longer in.
const QEMU_BUG: &str = "memory_region_del_subregion: Assertion `subregion->container == mr' failed";

/// How long a program may take to notice that its peer has gone.
const NOTICE: Duration = Duration::from_secs(120);
/// How long the daemon may take to forget what a guest had.
const FORGET: Duration = Duration::from_secs(30);

/// How a line ended.
enum Verdict {
    Ran(Result<String, String>),
    /// It cannot be told here, and why.
    Skipped(String),
}

/// One line of the table.
struct Line {
    what: String,
    ends: &'static str,
    result: Verdict,
}

struct Run<'a> {
    words: &'a [String],
    lines: Vec<Line>,
}

impl Run<'_> {
    fn wants(&self, name: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| name.contains(word.as_str()))
    }

    fn wants_any(&self, rows: &[(&str, &str, Report)], ends: &str) -> bool {
        rows.iter().any(|(program, options, _)| self.wants(&format!("{} {ends}", name(program, options))))
    }

    fn add(&mut self, what: String, ends: &'static str, result: Result<String, String>) {
        self.enter(Line { what, ends, result: Verdict::Ran(result) });
    }

    fn enter(&mut self, line: Line) {
        println!("{}", line.text());
        self.lines.push(line);
    }

    fn rows(
        &mut self,
        bed: &mut Bed,
        rows: &[(&'static str, &'static str, Report)],
        ends: &'static str,
        server: End,
        client: End,
    ) {
        for &(program, options, report) in rows {
            let what = name(program, options);
            if self.wants(&format!("{what} {ends}")) {
                let result = bed.run(&Row { program, options, report }, server, client);
                self.add(what, ends, result);
            }
        }
    }
}

/// How a line begins.
fn name(program: &str, options: &str) -> String {
    format!("`{program} {options}`")
}

impl Line {
    fn text(&self) -> String {
        let result = match &self.result {
            Verdict::Skipped(reason) => format!("skipped: {reason}"),
            Verdict::Ran(Ok(figure)) => format!("passed: {figure}"),
            Verdict::Ran(Err(reason)) => format!("FAILED: {}", reason.replace('|', "/").replace('\n', " / ")),
        };
        format!("| {} | {} | {result} |", self.what, self.ends)
    }
}

/// Runs the rows that hold one of the words, all if there are none, and keeps the table of a full run.
pub fn run(image: &Image, words: &[String]) -> ExitCode {
    let Some(module) = make_module() else {
        println!("SKIP erdma: the module could not be built (tests/vm/erdma says why)");
        return ExitCode::from(crate::SKIPPED);
    };
    let mut run = Run { words, lines: Vec::new() };
    let (first, second) = (End::Guest(0), End::Guest(1));
    let groups = [
        (GUESTS, GUESTS_ENDS),
        (HOST, HOST_ENDS[0]),
        (HOST, HOST_ENDS[1]),
        (CONTAINER, CONTAINER_ENDS[0]),
        (CONTAINER, CONTAINER_ENDS[1]),
    ];
    let wanted = groups.iter().any(|(rows, ends)| run.wants_any(rows, ends))
        || [DEVINFO, RELOAD, RESTART].iter().any(|name| run.wants(name));
    if wanted {
        let mut bed = Bed::new(image, &module, Second::Erdma);
        if run.wants(DEVINFO) {
            let found = bed.guest(0).run("ibv_devinfo -v", Duration::from_secs(60));
            let line = found.output.lines().find(|line| line.contains("active_mtu")).unwrap_or("no port");
            let port = line.split_whitespace().collect::<Vec<_>>().join(" ");
            run.add(DEVINFO.into(), "one guest", if found.status.success() { Ok(port) } else { Err(found.output) });
        }
        run.rows(&mut bed, GUESTS, GUESTS_ENDS, first, second);
        run.rows(&mut bed, HOST, HOST_ENDS[0], End::Host, first);
        run.rows(&mut bed, HOST, HOST_ENDS[1], first, End::Host);
        containers(&mut run, &mut bed);
        lifecycle(&mut run, &mut bed);
    }
    if RXE_ENDS.iter().any(|ends| run.wants_any(RXE, ends)) {
        let mut bed = Bed::new(image, &module, Second::Rxe);
        run.rows(&mut bed, RXE, RXE_ENDS[0], second, first);
        run.rows(&mut bed, RXE, RXE_ENDS[1], first, second);
    }
    if run.wants(PLUG) || run.wants(UNPLUG) {
        plug(&mut run, image, &module);
    }
    let count = |of: fn(&Line) -> bool| run.lines.iter().filter(|line| of(line)).count();
    let failed = count(|line| matches!(line.result, Verdict::Ran(Err(_))));
    let skipped = count(|line| matches!(line.result, Verdict::Skipped(_)));
    if words.is_empty() {
        crate::keep("erdma.md", &table(image, &run.lines));
    }
    println!("{} passed, {failed} failed, {skipped} skipped", run.lines.len() - failed - skipped);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Objects that the daemon holds for a guest once its driver is loaded: those of its QP1.
fn objects(bed: &Bed, n: usize) -> [u64; 3] {
    let view = bed.daemon().device(&device_name(n))["vm"].clone();
    ["qps", "cqs", "mrs"].map(|name| view[name].as_u64().unwrap_or(u64::MAX))
}

fn containers(run: &mut Run<'_>, bed: &mut Bed) {
    if !CONTAINER_ENDS.iter().any(|ends| run.wants_any(CONTAINER, ends)) {
        return;
    }
    let guest = End::Guest(0);
    if let Some(root) = container::root() {
        bed.open_to_containers(root);
        run.rows(bed, CONTAINER, CONTAINER_ENDS[0], End::Container, guest);
        run.rows(bed, CONTAINER, CONTAINER_ENDS[1], guest, End::Container);
        return;
    }
    for ends in CONTAINER_ENDS {
        for (program, options, _) in CONTAINER {
            run.enter(Line { what: name(program, options), ends, result: Verdict::Skipped("no containers here".into()) });
        }
    }
}

fn lifecycle(run: &mut Run<'_>, bed: &mut Bed) {
    const ENDS: &str = "guest, with another";
    let pingpong = Row { program: "ibv_rc_pingpong", options: "-c -n 20", report: Report::Pingpong };
    let (first, second) = (End::Guest(0), End::Guest(1));
    if run.wants(RELOAD) {
        let before = objects(bed, 0);
        let rounds = "for n in $(seq 10); do rmmod erdma && insmod /mnt/job/erdma.ko || exit 1
            until ibv_devinfo | grep -q PORT_ACTIVE; do sleep 0.1; done; done";
        let ended = bed.guest(0).run(rounds, Duration::from_secs(300));
        let result = if ended.status.success() { bed.run(&pingpong, second, first) } else { Err(ended.output) };
        let result = result.and_then(|_| match objects(bed, 0) {
            after if after == before => Ok(format!("queue pairs, completion queues, regions as before: {after:?}")),
            after => Err(format!("{after:?} objects instead of {before:?}")),
        });
        run.add(RELOAD.into(), ENDS, result);
    }
    if run.wants(RESTART) {
        let result = restart_under_traffic(bed).and_then(|noticed| {
            bed.run(&pingpong, second, first).map(|again| format!("the peer noticed: {noticed}; afterwards {again}"))
        });
        run.add(RESTART.into(), ENDS, result);
    }
}

/// Plugs the device into a running guest, and once more after it was taken out.
fn plug(run: &mut Run<'_>, image: &Image, module: &Path) {
    const ENDS: &str = "guest, with itself";
    let itself = End::Guest(0);
    let pingpong = Row { program: "ibv_rc_pingpong", options: "-c -n 20", report: Report::Pingpong };
    let mut bed = Bed::new(image, module, Second::Absent);
    let plugged = bed.plug().and_then(|()| bed.run(&pingpong, itself, itself));
    let is_in = plugged.is_ok();
    run.add(PLUG.into(), ENDS, plugged);
    if !is_in {
        return;
    }
    let result = match bed.unplug() {
        Err(reason) if reason.contains(QEMU_BUG) => Verdict::Skipped(format!("QEMU ended: {QEMU_BUG}")),
        Err(reason) => Verdict::Ran(Err(reason)),
        Ok(()) => Verdict::Ran(bed.plug().and_then(|()| bed.run(&pingpong, itself, itself))),
    };
    run.enter(Line { what: UNPLUG.into(), ends: ENDS, result });
}

/// Restarts the second guest while the first writes to it: how the writer ended.
fn restart_under_traffic(bed: &mut Bed) -> Result<String, String> {
    let server = format!("exec ib_write_bw -x {} -p 18600 --run_infinitely", bed.gid_index(1));
    let _server = bed.guest(1).start(&server);
    bed.guest(1).run("until ss -Hltn sport = :18600 | grep -q .; do sleep 0.05; done", NOTICE);
    let client = format!("exec ib_write_bw -x {} -p 18600 --run_infinitely {}", bed.gid_index(0), bed.guest_address(1));
    let client = bed.guest(0).start(&client);
    let writes = |bed: &Bed| bed.daemon().device(&device_name(0))["counters"]["local_messages"].as_u64().unwrap_or(0);
    let (before, deadline) = (writes(bed), Instant::now() + NOTICE);
    while writes(bed) < before + 200 {
        if Instant::now() > deadline {
            return Err(format!("no traffic: {}", client.output()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bed.reboot(1);
    let ended = client.wait(NOTICE).ok_or_else(|| format!("the writer never noticed: {}", client.output()))?;
    let said =
        ended.output.lines().filter(|line| line.contains("status") || line.contains("error")).collect::<Vec<_>>().join(" / ");
    let deadline = Instant::now() + FORGET;
    while objects(bed, 0)[0] > 1 {
        if Instant::now() > deadline {
            return Err(format!("objects are left: {:?}", objects(bed, 0)));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    if ended.status.success() { Err(format!("the writer ended well: {said}")) } else { Ok(said) }
}

fn table(image: &Image, lines: &[Line]) -> String {
    let mut text = String::from("# Guests with the mainline erdma driver\n\n");
    let _ = writeln!(text, "Written by `tests/vm/run erdma` on {}. {}.\n", crate::today(), crate::circumstances(image));
    text.push_str(
        "Each row is one run of unmodified programs; in the guests the driver is Debian's source of that kernel, unmodified. Figures say\n\
         that it ran; under emulation, on a machine shared with others, they say nothing about speed.\n\n",
    );
    text.push_str("| program | ends | result |\n|---|---|---|\n");
    for line in lines {
        let _ = writeln!(text, "{}", line.text());
    }
    text
}
