//! What a doorbell of a virtual machine costs, and what not trapping it would cost.
//!
//! A trapped doorbell is a message of the VMM; measured with and without waiting for the reply (QEMU does not wait), without the
//! exit of the guest's processor, which comes on top. A doorbell page that the guest maps costs the guest a store and tells nobody:
//! no VMM makes it wake a process, and a VMM that has mapped a page cannot be told to trap it again. So somebody has to look:
//! all the time, or at intervals, of which the cost to an idle machine and the delay are measured too.

#![allow(dead_code, missing_docs, reason = "the mock driver is that of the tests, which use all of it")]

#[path = "../tests/guest/driver.rs"]
mod driver;
#[path = "../tests/daemon/place.rs"]
mod place;
#[path = "../tests/guest/vmm.rs"]
mod vmm;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use driver::{CE, Driver, Region, Sge, write_body};
use nix::sys::resource::{UsageWho, getrusage};
use place::Place;
use vmm::{PAGE, add};

const ROUNDS: usize = 2000;
const IOVA: u64 = 0x10_0000;

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6
}

fn timed(mut each: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        each();
        start.elapsed()
    };
    median((0..ROUNDS).map(time).collect())
}

/// Microseconds per doorbell when the VMM does not wait, in bursts that end with a message that is answered: of the sender, and of all.
fn posted(socket: &Path) -> (f64, f64) {
    const BURST: u32 = 200;
    let message = |command: u16, flags: u32, body: &[u8]| {
        let mut bytes = [[1, 0], command.to_le_bytes()].concat();
        bytes.extend((16 + body.len() as u32).to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(body);
        bytes
    };
    let mut stream = UnixStream::connect(socket).expect("the device's socket");
    let mut answer = [0; 4096];
    stream.write_all(&message(1, 0, &[0; 4])).expect("VERSION");
    assert!(stream.read(&mut answer).expect("its reply") > 16);
    let access = |offset: u64, data: &[u8]| {
        let mut body = offset.to_le_bytes().to_vec();
        body.extend([0u32.to_le_bytes(), 8u32.to_le_bytes()].concat());
        body.extend(data);
        body
    };
    // A send queue's doorbell, on a page of the first process.
    let doorbell = message(10, 1 << 4, &access(128 * PAGE, &(7u64 << 32).to_le_bytes()));
    let read = message(9, 0, &access(0, &[]));
    let (mut sent, mut whole) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS / 20 {
        let start = Instant::now();
        for _ in 0..BURST {
            stream.write_all(&doorbell).expect("a doorbell");
        }
        sent.push(start.elapsed() / BURST);
        stream.write_all(&read).expect("a read");
        assert!(stream.read(&mut answer).expect("its reply") >= 16);
        whole.push(start.elapsed() / BURST);
    }
    (median(sent), median(whole))
}

/// Looks at a word every `pause`: share of a CPU that this takes, and the median delay until a change is seen, in microseconds.
fn watched(pause: Duration) -> (f64, f64) {
    let (word, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (seen, end) = (word.clone(), stop.clone());
    let start = Instant::now();
    let watcher = std::thread::spawn(move || {
        let (mut last, mut delays) = (0, Vec::new());
        while !end.load(Ordering::Relaxed) {
            if pause.is_zero() {
                std::hint::spin_loop()
            } else {
                std::thread::sleep(pause)
            }
            let now = seen.load(Ordering::Acquire);
            if now != last {
                last = now;
                delays.push(start.elapsed() - Duration::from_nanos(now));
            }
        }
        let used = getrusage(UsageWho::RUSAGE_THREAD).expect("a thread's time");
        let cpu = [used.user_time(), used.system_time()].map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 * 1e-6);
        (cpu.iter().sum::<f64>() / start.elapsed().as_secs_f64(), delays)
    });
    for n in 0..200 {
        // At no certain moment between two looks.
        std::thread::sleep(Duration::from_micros(7000 + n * 377 % 1000));
        word.store(start.elapsed().as_nanos() as u64, Ordering::Release);
    }
    stop.store(true, Ordering::Relaxed);
    let (share, delays) = watcher.join().expect("the watcher ends");
    (share * 100.0, median(delays))
}

fn main() {
    let place = Place::new();
    let socket = add(&place, "vm", "203.0.113.1");
    let mut guest = Driver::start(&socket, 16 << 20);
    let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 203, 0, 113, 1];
    guest.set_gid(1, gid);
    let region = Region::scattered(&guest, IOVA, PAGE);
    guest.register(1, 5, &region).expect("a region");
    let mut cq = guest.create_cq(1, 1, 6);
    let mut qp = guest.create_qp(7, 5, 1);
    guest.connect(7, 7, gid);

    let idle = timed(|| guest.ring_send(&qp));
    println!("doorbell, trapped, the VMM waits for the reply      {idle:8.2} us");
    let body = write_body([0; 4], (IOVA, 1 << 8), &[Sge(IOVA + 64, 8, 1 << 8)]);
    let write = timed(|| {
        guest.post_send(&mut qp, 0, CE, 1, &body);
        while guest.poll(&mut cq).is_none() {
            std::thread::yield_now();
        }
    });
    println!("WRITE of 8 bytes, from doorbell to completion       {write:8.2} us");
    drop(guest);
    let (sent, whole) = posted(&socket);
    println!("doorbell, trapped, not awaited: cost to the VMM     {sent:8.2} us");
    println!("                                until it is handled {whole:8.2} us");
    let word = AtomicU64::new(0);
    let store = timed(|| (0..1000).for_each(|n| word.store(n, Ordering::Release))) / 1000.0;
    println!("doorbell, mapped: cost to the guest                 {store:8.4} us");
    for (name, pause) in [("all the time", 0), ("every 50 us ", 50), ("every 1 ms  ", 1000)] {
        let (share, delay) = watched(Duration::from_micros(pause));
        println!("    and somebody looks {name}: {share:5.1} % of a CPU for ever, seen after {delay:8.2} us");
    }
}
