//! The same programs on a device of the test's own, shaped and unshaped: same completions, same order, same bytes.

use super::engine::Made;
use super::*;
use crate::abi::codes::{send_flags, wr};
use crate::abi::work::ibv_sge;
use std::collections::VecDeque;

const REFUSED: u32 = 10;
const FLUSHED: u32 = 5;
const GOOD_KEY: u64 = 1;
const BAD_KEY: u64 = 2;
/// What a program may have under way.
const DEPTH: usize = 16;
const MEMORY: usize = 1 << 20;

/// A send queue of the device, and its completions. A place is free again when a completion behind it was polled, as in hardware.
#[derive(Default)]
struct Device {
    depth: usize,
    used: usize,
    failed: bool,
    queue: VecDeque<Posted>,
    completions: VecDeque<(ibv_wc, usize)>,
    /// Places of requests that completed silently.
    silent: usize,
    lengths: Vec<u64>,
}

struct Posted {
    wr: ibv_send_wr,
    buffers: Vec<(u64, u32)>,
    inline: Vec<u8>,
}

// SAFETY: the addresses are those of the test's memory.
unsafe impl Send for Device {}

static DEVICES: Mutex<Option<HashMap<usize, Device>>> = Mutex::new(None);

fn with<T>(qp: usize, action: impl FnOnce(&mut Device) -> T) -> T {
    action(lock(&DEVICES).get_or_insert_default().entry(qp).or_default())
}

unsafe extern "C" fn device_post(qp: *mut ibv_qp, first: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    let mut next = first;
    // SAFETY: the chain and its lists are valid.
    unsafe {
        while let Some(request) = next.as_ref() {
            let code = with(qp as usize, |device| {
                if device.used == device.depth {
                    return libc::ENOMEM;
                }
                if request.opcode > wr::SEND_WITH_INV {
                    return libc::EINVAL;
                }
                device.used += 1;
                let mut posted = Posted { wr: ptr::read(request), buffers: Vec::new(), inline: Vec::new() };
                for n in 0..request.num_sge as usize {
                    let ibv_sge { addr, length, .. } = *request.sg_list.add(n);
                    if request.send_flags & send_flags::INLINE != 0 {
                        posted.inline.extend_from_slice(slice::from_raw_parts(addr as *const u8, length as usize));
                    }
                    posted.buffers.push((addr, length));
                }
                device.lengths.push(posted.buffers.iter().map(|(_, length)| u64::from(*length)).sum());
                device.queue.push_back(posted);
                0
            });
            if code != 0 {
                *bad = next;
                return code;
            }
            next = request.next;
        }
    }
    0
}

unsafe extern "C" fn device_poll(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    with(cq as usize, |device| {
        let mut given = 0;
        while given < count {
            let Some((completion, places)) = device.completions.pop_front() else { break };
            device.used -= places;
            // SAFETY: the caller has room for so many.
            unsafe { wc.add(given as usize).write(completion) };
            given += 1;
        }
        given
    })
}

unsafe fn device_fail(qp: *mut ibv_qp) {
    with(qp as usize, |device| device.failed = true);
}

/// The device carries out so many requests.
fn deliver(qp: usize, count: usize) {
    with(qp, |device| {
        for _ in 0..count {
            let Some(Posted { wr, buffers, inline }) = device.queue.pop_front() else { return };
            let bytes: u64 = buffers.iter().map(|(_, length)| u64::from(*length)).sum();
            let mut wc = ibv_wc { wr_id: wr.wr_id, opcode: wr.opcode, ..ibv_wc::default() };
            if device.failed {
                wc.status = FLUSHED;
            } else if wr.rkey_or_compare_add == BAD_KEY {
                (wc.status, device.failed) = (REFUSED, true);
            } else {
                let mut at = wr.remote_addr;
                for (addr, length) in buffers {
                    // SAFETY: the test's memory, on which nothing else works meanwhile.
                    unsafe {
                        match wr.opcode {
                            wr::RDMA_READ => ptr::copy(at as *const u8, addr as *mut u8, length as usize),
                            wr::RDMA_WRITE if wr.send_flags & send_flags::INLINE == 0 => {
                                ptr::copy(addr as *const u8, at as *mut u8, length as usize);
                            }
                            _ => {}
                        }
                    }
                    at += u64::from(length);
                }
                if !inline.is_empty() {
                    // SAFETY: as above.
                    unsafe { ptr::copy(inline.as_ptr(), wr.remote_addr as *mut u8, inline.len()) };
                }
                wc.byte_len = if wr.opcode == wr::RDMA_READ { bytes as u32 } else { 0 };
            }
            device.silent += 1;
            if wc.status != 0 || wr.send_flags & send_flags::SIGNALED != 0 {
                let places = core::mem::take(&mut device.silent);
                device.completions.push_back((wc, places));
            }
        }
    });
}

/// Numbers that look random and are the same in each run with a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A request of a program, with offsets into its memory instead of addresses.
#[derive(Clone, Debug)]
struct Step {
    opcode: u32,
    flags: u32,
    key: u64,
    remote: u64,
    buffers: Vec<(u64, u32)>,
}

fn program(seed: u64, failing: bool) -> Vec<Step> {
    let mut numbers = Numbers(seed);
    let count = 20 + numbers.below(40);
    let bad = numbers.below(count);
    let step = |n| {
        let opcode =
            [wr::RDMA_WRITE, wr::RDMA_WRITE, wr::RDMA_READ, wr::SEND, wr::RDMA_WRITE_WITH_IMM][numbers.below(5) as usize];
        let is_inline = opcode == wr::RDMA_WRITE && numbers.below(4) == 0;
        // Every fourth at least completes visibly, so that the queue never stands still.
        let is_signaled = n % 4 == 3 || n + 1 == count || numbers.below(2) == 0;
        let flags = if is_inline { send_flags::INLINE } else { 0 } | if is_signaled { send_flags::SIGNALED } else { 0 };
        let longest = if is_inline { 16 } else { [64, 5000, 70_000][numbers.below(3) as usize] };
        // What an inline request brings along is read when it is posted, at times that differ: nothing may have changed it.
        let first = if is_inline { MEMORY as u64 / 16 * 15 } else { 0 };
        let places = if is_inline { MEMORY as u64 / 32 } else { MEMORY as u64 / 4 };
        let buffers = (0..numbers.below(4)).map(|_| (first + numbers.below(places), numbers.below(longest) as u32)).collect();
        let key = if failing && n == bad { BAD_KEY } else { GOOD_KEY };
        Step { opcode, flags, key, remote: MEMORY as u64 / 2 + numbers.below(MEMORY as u64 / 8), buffers }
    };
    (0..count).map(step).collect()
}

/// What a program has seen: numbers, statuses and lengths of its completions.
type Seen = Vec<(u64, u32, u32)>;

/// Runs a program to its end. Its memory is what the device reads and writes.
fn carry_out(steps: &[Step], qp: usize, shaper: Option<&'static Shaper>, seed: u64) -> (Seen, Vec<u8>) {
    let mut numbers = Numbers(seed);
    let mut memory: Vec<u8> = (0..MEMORY).map(|_| numbers.below(256) as u8).collect();
    let base = memory.as_mut_ptr() as u64;
    let (mut seen, mut next, mut oldest) = (Seen::new(), 0, 0);
    let given_up = std::time::Instant::now() + Duration::from_secs(60);
    while seen.last().is_none_or(|(number, ..)| *number != steps.len() as u64 - 1) {
        assert!(std::time::Instant::now() < given_up, "{} of {} completed: {seen:?}", oldest, steps.len());
        while next < steps.len() && next - oldest < DEPTH && numbers.below(8) > 0 {
            let Step { opcode, flags, key, remote, ref buffers } = steps[next];
            let mut list: Vec<ibv_sge> =
                buffers.iter().map(|&(at, length)| ibv_sge { addr: base + at, length, lkey: 7 }).collect();
            let mut request = ibv_send_wr {
                wr_id: next as u64,
                sg_list: list.as_ptr(),
                num_sge: list.len() as c_int,
                opcode,
                send_flags: flags,
                remote_addr: base + remote,
                rkey_or_compare_add: key,
                ..ibv_send_wr::default()
            };
            let mut bad = ptr::null_mut();
            // SAFETY: a device of the test, and a valid request.
            let posted = unsafe {
                match shaper {
                    Some(shaper) => shaper.post(qp as *mut ibv_qp, &mut request, false).is_ok(),
                    None => device_post(qp as *mut ibv_qp, &mut request, &mut bad) == 0,
                }
            };
            assert!(posted, "request {next} of {steps:?}");
            // The lists are the program's again.
            list.fill(ibv_sge { addr: 0, length: u32::MAX, lkey: 0 });
            next += 1;
        }
        deliver(qp, numbers.below(6) as usize);
        let mut room = [ibv_wc::default(); 3];
        let (count, cq) = (1 + numbers.below(3) as c_int, qp as *mut ibv_cq);
        // SAFETY: there is room for so many.
        let polled = unsafe {
            match shaper {
                Some(shaper) => shaper.poll(device_poll, cq, count, room.as_mut_ptr()),
                None => device_poll(cq, count, room.as_mut_ptr()),
            }
        };
        for wc in &room[..polled as usize] {
            oldest = wc.wr_id as usize + 1;
            seen.push((wc.wr_id, wc.status, wc.byte_len));
        }
    }
    (seen, memory)
}

/// A queue pair of the device, known by a number of the test's.
fn open(qp: usize, shaper: Option<&'static Shaper>, further: u32) {
    with(qp, |device| device.depth = DEPTH + further as usize);
    let Some(shaper) = shaper else { return };
    let made = Made {
        post: device_post,
        fail: device_fail,
        cq: qp,
        depth: DEPTH as u32,
        further,
        max_sge: 4,
        max_inline: 64,
        splits: true,
        signals_all: false,
    };
    let mut engine = lock(&shaper.engine);
    engine.add_cq(qp, further);
    assert!(engine.add_queue(qp as *mut ibv_qp, made));
}

fn shaper(text: &str) -> &'static Shaper {
    Box::leak(Box::new(Shaper::new(Shape::parse(text).unwrap())))
}

#[test]
fn programs_see_what_they_would_see_unshaped() {
    for seed in 0..60 {
        let steps = program(seed, false);
        let further = [0, 3, 100][seed as usize % 3];
        // At once, or most of it later.
        let shaper = shaper(["rate=1000000000000,piece=4096", "rate=4000000000,burst=1,piece=8192"][seed as usize % 2]);
        let (plain, shaped) = (0x10_0000 + seed as usize * 256, 0x10_0080 + seed as usize * 256);
        open(plain, None, 0);
        open(shaped, Some(shaper), further);
        let (expected, memory) = carry_out(&steps, plain, None, seed);
        let (seen, written) = carry_out(&steps, shaped, Some(shaper), seed);
        assert_eq!(seen, expected, "seed {seed}");
        assert!(written == memory, "seed {seed}: the bytes differ");
        let pieces = with(shaped, |device| device.lengths.len());
        assert!(pieces >= steps.len() && pieces <= steps.len() * (1 + further as usize), "seed {seed}");
        assert_eq!(lock(&shaper.engine).room(shaped as *mut ibv_qp), DEPTH, "seed {seed}: all is settled");
        if further == 100 {
            assert!(pieces > steps.len(), "seed {seed}: something was split");
        }
    }
}

#[test]
fn failures_are_told_once_and_flush_what_follows() {
    for seed in 0..60 {
        // All of it is under way when it fails, so that what is flushed does not depend on time.
        let steps: Vec<Step> = program(seed, true).into_iter().take(DEPTH).collect();
        let mut steps = steps;
        steps.last_mut().unwrap().flags |= send_flags::SIGNALED;
        let shaper = shaper("rate=8000000000,burst=1,piece=4096");
        let (plain, shaped) = (0x20_0000 + seed as usize * 256, 0x20_0080 + seed as usize * 256);
        open(plain, None, 0);
        open(shaped, Some(shaper), 40);
        let (expected, _) = carry_out(&steps, plain, None, seed);
        let (seen, _) = carry_out(&steps, shaped, Some(shaper), seed);
        assert_eq!(seen, expected, "seed {seed}");
    }
}

fn send(wr_id: u64, opcode: u32) -> ibv_send_wr {
    ibv_send_wr { wr_id, opcode, rkey_or_compare_add: GOOD_KEY, send_flags: send_flags::SIGNALED, ..ibv_send_wr::default() }
}

#[test]
fn a_full_queue_and_a_refused_request_are_told_at_the_post() {
    let shaper = shaper("rate=1000000000000");
    open(0x30_0000, Some(shaper), 100);
    let qp = 0x30_0000 as *mut ibv_qp;
    let mut chain: Vec<ibv_send_wr> = (0..DEPTH as u64 + 2).map(|n| send(n, wr::SEND)).collect();
    for n in (1..chain.len()).rev() {
        chain[n - 1].next = &raw mut chain[n];
    }
    let first = &raw mut chain[0];
    // SAFETY: a valid chain; nothing is posted together that does not fit.
    let (bad, code) = unsafe {
        assert_eq!(shaper.post(qp, first, true), Err((first, libc::ENOMEM)));
        shaper.post(qp, first, false).unwrap_err()
    };
    assert_eq!((bad, code), (&raw mut chain[DEPTH], libc::ENOMEM));
    deliver(0x30_0000, DEPTH);
    let mut room = [ibv_wc::default(); 32];
    // SAFETY: there is room for so many; a valid request, which the device does not know.
    unsafe {
        assert_eq!(shaper.poll(device_poll, qp.cast(), 32, room.as_mut_ptr()), DEPTH as c_int);
        let mut unknown = send(1, 77);
        assert_eq!(shaper.post(qp, &mut unknown, false), Err((&raw mut unknown, libc::EINVAL)));
        let mut known = send(2, wr::SEND);
        assert_eq!(shaper.post(qp, &mut known, false), Ok(()));
    }
    assert_eq!(lock(&shaper.engine).room(qp), DEPTH - 1);
}

#[test]
fn what_the_device_refuses_too_late_fails_the_queue_pair() {
    let shaper = shaper("rate=80000,burst=1");
    open(0x31_0000, Some(shaper), 0);
    let qp = 0x31_0000 as *mut ibv_qp;
    let bytes = [0u8; 64];
    let buffer = ibv_sge { addr: bytes.as_ptr() as u64, length: 64, lkey: 0 };
    for (n, opcode) in [wr::SEND, 77, wr::SEND].into_iter().enumerate() {
        let mut request = ibv_send_wr { sg_list: &buffer, num_sge: 1, ..send(n as u64, opcode) };
        // SAFETY: a valid request.
        assert_eq!(unsafe { shaper.post(qp, &mut request, false) }, Ok(()));
    }
    lock(&shaper.engine).push_through(qp, false);
    deliver(0x31_0000, 3);
    let mut room = [ibv_wc::default(); 4];
    // SAFETY: there is room for so many.
    let polled = unsafe { shaper.poll(device_poll, qp.cast(), 4, room.as_mut_ptr()) };
    let seen: Vec<_> = room[..polled as usize].iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(seen, [(0, FLUSHED), (1, FLUSHED), (2, FLUSHED)]);
}

#[test]
fn the_rate_holds_and_nobody_has_to_poll() {
    let shaper = shaper("rate=160000000,burst=65536,piece=65536");
    open(0x32_0000, Some(shaper), 100);
    let qp = 0x32_0000 as *mut ibv_qp;
    let memory = vec![0u8; MEMORY];
    let buffer = ibv_sge { addr: memory.as_ptr() as u64, length: MEMORY as u32, lkey: 0 };
    let begun = std::time::Instant::now();
    let mut request = ibv_send_wr { sg_list: &buffer, num_sge: 1, ..send(5, wr::RDMA_READ) };
    // SAFETY: a valid request.
    assert_eq!(unsafe { shaper.post(qp, &mut request, false) }, Ok(()));
    let handed = || with(0x32_0000, |device| device.lengths.iter().sum::<u64>());
    while handed() < MEMORY as u64 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} bytes went", handed());
        std::thread::sleep(Duration::from_millis(1));
    }
    // 1 MiB at 20 MB/s, of which a burst and a piece go at once; that it took longer says nothing.
    assert!(begun.elapsed() > Duration::from_millis(40), "{:?}", begun.elapsed());
    assert!(with(0x32_0000, |device| device.lengths.iter().all(|&length| length == 65536)));
}

#[test]
fn a_reset_queue_pair_forgets_and_hides_what_was_under_way() {
    let shaper = shaper("rate=1000000000000");
    open(0x33_0000, Some(shaper), 4);
    let qp = 0x33_0000 as *mut ibv_qp;
    let mut request = send(5, wr::SEND);
    // SAFETY: a valid request.
    assert_eq!(unsafe { shaper.post(qp, &mut request, false) }, Ok(()));
    deliver(0x33_0000, 1);
    lock(&shaper.engine).reset(qp);
    let mut room = [ibv_wc::default(); 4];
    // SAFETY: there is room for so many.
    assert_eq!(unsafe { shaper.poll(device_poll, qp.cast(), 4, room.as_mut_ptr()) }, 0);
    assert_eq!(lock(&shaper.engine).room(qp), DEPTH);
    // A completion of anything else passes.
    let mut own = [ibv_wc { wr_id: 99, ..ibv_wc::default() }];
    assert_eq!((shaper.settle(&mut own), own[0].wr_id), (1, 99));
}

#[test]
fn members_are_read_and_mistakes_refused() {
    let shape = Shape::parse("rate=8000000,device=rxe0,stats").unwrap();
    assert_eq!((shape.bytes_per_sec, shape.burst_bytes, shape.piece_bytes), (1_000_000, 65536, 65536));
    assert_eq!((shape.device.as_deref(), shape.stats), (Some("rxe0"), true));
    assert_eq!(
        Shape::parse("rate=80000000000,piece=5000").map(|shape| (shape.burst_bytes, shape.piece_bytes)),
        Some((10_000_000, 8192))
    );
    for wrong in
        ["", "rate=", "rate=0", "rate=1G", "burst=3", "rate=800,device=", "rate=800,weight=3", "rate=800,piece=99999999999"]
    {
        assert_eq!(Shape::parse(wrong), None, "{wrong}");
    }
}
