//! What a program sends through devices that are not ours, hardware or soft-RoCE, shaped.
//!
//! `VRDMA_SHAPE` asks for it (`vrdma run --shape`). What the program posts then waits in this library for its turn, which the daemon's
//! own arbiter gives ([`engine`]): a highest rate holds for all of this process together, and small sparse messages of one queue pair
//! go before large ones of another. Long WRITEs and READs of reliable connections go in pieces ([`pieces`]), so that messages of other
//! programs get in between. A post never waits: what is not due is handed to the device by a later post or poll of the program, or
//! by a thread that sleeps until then, whichever comes first.
//!
//! Owns: functions in the place of the device's in the tables through which the C header calls them ([`extended`] for the newer ones),
//! and in the place of the real library's that make, change and end queues ([`stand_in`]). Never in the way of devices of ours, which
//! the daemon shapes. Other processes are not known here: each keeps its own rate.
//!
//! Not shaped: queue pairs made by a vendor's own functions, of imported devices, with segmentation offload, atomic write or flush,
//! and receive sides of XRC. SENDs, WRITEs with immediate (their length is told to the receiver), atomics and all of unreliable queue
//! pairs are paced, but never split.

mod engine;
mod extended;
mod pieces;
mod stand_in;

use core::ffi::{CStr, c_int};
use core::{ptr, slice};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, Once, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use roce::Instant;

use crate::abi::device::ibv_context;
use crate::abi::object::{ibv_cq, ibv_mw, ibv_qp};
use crate::abi::work::{ibv_mw_bind, ibv_send_wr, ibv_wc};
use crate::context::lock;
use crate::device::complain;
use crate::foreign::set_errno;
use engine::{Engine, PostSend, Verdict};
pub use extended::batch;
pub use stand_in::stand_in;

/// Says how, as `rate=BITS_PER_SEC[,burst=BYTES][,piece=BYTES][,device=NAME][,stats]`.
const VARIABLE: &str = "VRDMA_SHAPE";
/// Longest piece, and least burst, unless they are given: a turn of the daemon's arbiter.
const DEFAULT_BYTES: u64 = 64 << 10;
/// Shortest piece: a packet.
const LEAST_PIECE: u32 = 4096;
/// Numbers of queues for polls: see [`Shaper::polls`].
const POLLS: usize = 64;
/// Nothing waits.
const NEVER: u64 = u64::MAX;
/// Lowest state in which requests are sent: `IBV_QPS_RTS`.
const READY: u32 = crate::abi::codes::qp_state::RTS;

/// How what a program sends is shaped.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shape {
    /// What all its foreign devices together may send, without headers.
    bytes_per_sec: u64,
    /// What they may send at once after a pause.
    burst_bytes: u64,
    /// Longest piece of a WRITE or READ.
    piece_bytes: u32,
    /// The only device that is shaped; all, if there is none.
    device: Option<String>,
    /// Prints what was done when the program ends.
    stats: bool,
}

impl Shape {
    /// From the value of the variable. `None` for one that is wrong.
    fn parse(text: &str) -> Option<Shape> {
        let (mut rate, mut burst, mut piece, mut device, mut stats) = (0, None, DEFAULT_BYTES, None, false);
        for member in text.split(',') {
            match member.split_once('=') {
                Some(("rate", value)) => rate = value.parse::<u64>().ok()? / 8,
                Some(("burst", value)) => burst = Some(value.parse().ok()?),
                Some(("piece", value)) => piece = value.parse().ok()?,
                Some(("device", value)) if !value.is_empty() => device = Some(value.to_owned()),
                None if member == "stats" => stats = true,
                _ => return None,
            }
        }
        Some(Shape {
            bytes_per_sec: Some(rate).filter(|&rate| rate > 0)?,
            // The thread that sleeps may wake up a little late; what it missed must not be lost.
            burst_bytes: burst.unwrap_or(DEFAULT_BYTES.max(rate / 1000)),
            piece_bytes: u32::try_from(piece).ok()?.max(LEAST_PIECE).next_multiple_of(LEAST_PIECE),
            device,
            stats,
        })
    }
}

type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
type BindMw = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int;

/// The functions of a device that ours stand in for.
#[derive(Clone, Copy)]
struct Provider {
    post_send: PostSend,
    poll_cq: PollCq,
    bind_mw: BindMw,
    newer: extended::Newer,
}

/// Everything of a process that is shaped.
struct Shaper {
    shape: Shape,
    tag: u32,
    engine: Mutex<Engine>,
    /// Wakes the thread that sleeps until something is due.
    wake: Condvar,
    thread: Once,
    /// When that is, in nanoseconds of the clock.
    due: AtomicU64,
    providers: RwLock<HashMap<usize, Provider>>,
    extended: extended::Objects,
    /// Completions of a queue have to be settled in the order in which the device gave them, so one thread polls it at a time, as in
    /// the device's own library. Queues share these by their addresses.
    polls: [Mutex<()>; POLLS],
}

fn now() -> Instant {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a writable struct; every Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Instant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

impl Shaper {
    fn new(shape: Shape) -> Shaper {
        // No address that a program could use as its number begins so: those have the upper bits alike.
        let tag = 0x80_0000 | (RandomState::new().hash_one(std::process::id()) as u32 & 0x3F_FFFF);
        Shaper {
            engine: Mutex::new(Engine::new(&shape, tag, now())),
            shape,
            tag,
            wake: Condvar::new(),
            thread: Once::new(),
            due: AtomicU64::new(NEVER),
            providers: RwLock::default(),
            extended: extended::Objects::default(),
            polls: [const { Mutex::new(()) }; POLLS],
        }
    }

    fn provider(&self, context: *mut ibv_context) -> Option<Provider> {
        self.providers.read().unwrap_or_else(PoisonError::into_inner).get(&(context as usize)).copied()
    }

    fn poll_turn(&self, cq: *mut ibv_cq) -> &Mutex<()> {
        &self.polls[(cq as usize >> 6) % POLLS]
    }

    /// Something was posted, handed on or settled: sees to it that what still waits gets its turn.
    fn plan(&'static self, engine: &MutexGuard<'_, Engine>) {
        let due = engine.due().map_or(NEVER, Instant::as_nanos);
        let before = self.due.swap(due, Ordering::Relaxed);
        if due < before {
            self.thread.call_once(|| self.start());
            self.wake.notify_one();
        }
    }

    /// Hands on what is due.
    fn catch_up(&'static self) {
        let due = self.due.load(Ordering::Relaxed);
        if due == NEVER || now().as_nanos() < due {
            return;
        }
        let mut engine = lock(&self.engine);
        let _ = engine.pump(now(), None);
        self.plan(&engine);
    }

    /// Starts the thread that hands on what no call of the program does in time. It takes none of the program's signals.
    fn start(&'static self) {
        // SAFETY: plain values, filled before they are read.
        unsafe {
            let mut all: libc::sigset_t = core::mem::zeroed();
            let mut before: libc::sigset_t = core::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            let started = std::thread::Builder::new().name("vrdma-shape".to_owned()).spawn(|| self.sleep_and_hand_on());
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut());
            if let Err(error) = started {
                complain(format_args!(
                    "no thread for what is to be sent later: {error}; it goes when the program polls or posts"
                ));
            }
        }
    }

    fn sleep_and_hand_on(&'static self) {
        let mut engine = lock(&self.engine);
        loop {
            let time = now();
            let _ = engine.pump(time, None);
            let due = engine.due();
            self.due.store(due.map_or(NEVER, Instant::as_nanos), Ordering::Relaxed);
            let pause = due.map_or(Duration::from_secs(3600), |at| at.saturating_since(time));
            engine = self.wake.wait_timeout(engine, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Posts a chain; as many as there is room for, or none but all.
    ///
    /// # Safety
    /// A live queue pair, and a valid chain.
    unsafe fn post(
        &'static self,
        qp: *mut ibv_qp,
        first: *mut ibv_send_wr,
        together: bool,
    ) -> Result<(), (*mut ibv_send_wr, c_int)> {
        let mut engine = lock(&self.engine);
        let mut next = first;
        if together {
            let mut count = 0;
            // SAFETY: per contract.
            while let Some(request) = unsafe { next.as_ref() } {
                count += 1;
                next = request.next;
            }
            if count > engine.room(qp) {
                return Err((first, libc::ENOMEM));
            }
            next = first;
        }
        let mut posted = Ok(());
        // SAFETY: per contract.
        while let Some(request) = unsafe { next.as_ref() } {
            // SAFETY: per contract.
            posted = unsafe { engine.post(qp, request, now()) }.map_err(|code| (next, code));
            if posted.is_err() {
                break;
            }
            next = request.next;
        }
        self.plan(&engine);
        posted
    }

    /// Makes completions the program's own. How many are left.
    fn settle(&'static self, completions: &mut [ibv_wc]) -> usize {
        if !completions.iter().any(|wc| Engine::is_tagged(self.tag, wc.wr_id)) {
            return completions.len();
        }
        let mut engine = lock(&self.engine);
        let mut told = 0;
        for n in 0..completions.len() {
            let mut wc = completions[n];
            match engine.settle(wc.wr_id, wc.status) {
                Verdict::Hidden => continue,
                Verdict::Foreign => {}
                Verdict::Told { wr_id, read_bytes } => {
                    wc.wr_id = wr_id;
                    wc.byte_len = read_bytes.unwrap_or(wc.byte_len);
                }
            }
            completions[told] = wc;
            told += 1;
        }
        self.plan(&engine);
        told
    }

    /// Polls the device until there is something for the program, or nothing at all.
    ///
    /// # Safety
    /// The device's own function with its live queue, and room for `count` completions.
    unsafe fn poll(&'static self, device: PollCq, cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
        self.catch_up();
        let _turn = lock(self.poll_turn(cq));
        loop {
            // SAFETY: per contract.
            let polled = unsafe { device(cq, count, wc) };
            if polled <= 0 {
                return polled;
            }
            // SAFETY: the device has written so many.
            let told = self.settle(unsafe { slice::from_raw_parts_mut(wc, polled as usize) });
            if told > 0 {
                return told as c_int;
            }
            // All were pieces: there may be more.
        }
    }
}

/// The shaper of this process, if it was asked for one.
fn shaper() -> Option<&'static Shaper> {
    static SHAPER: OnceLock<Option<Shaper>> = OnceLock::new();
    let make = || {
        let text = std::env::var(VARIABLE).ok()?;
        let shape = Shape::parse(&text);
        if shape.is_none() {
            complain(format_args!(
                "{VARIABLE} is ignored: {text:?} is not rate=BITS_PER_SEC[,burst=BYTES][,piece=BYTES][,device=NAME][,stats]"
            ));
        }
        let shape = shape?;
        if shape.stats {
            // SAFETY: a function without arguments.
            unsafe { libc::atexit(report) };
        }
        Some(Shaper::new(shape))
    };
    SHAPER.get_or_init(make).as_ref()
}

/// Says what was done, as a line of JSON on standard error.
extern "C" fn report() {
    let Some(engine) = shaper().and_then(|shaper| shaper.engine.try_lock().ok()) else { return };
    let engine::Counts { requests, bytes, pieces, delayed } = engine.counts;
    eprintln!(
        "{{\"shaped\":{{\"requests\":{requests},\"pieces\":{pieces},\"bytes\":{bytes},\"delayed_requests\":{delayed}}}}}"
    );
}

/// In the place of the device's `post_send`.
///
/// # Safety
/// As the C interface demands.
unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the C interface demands a live queue pair; only devices that were adopted lead here.
    let (context, state) = unsafe { ((*qp).context, (*qp).state) };
    let Some((shaper, provider)) = shaper().and_then(|shaper| Some((shaper, shaper.provider(context)?))) else {
        return libc::EINVAL;
    };
    if state < READY || lock(&shaper.engine).made(qp).is_none() {
        // SAFETY: the device's own function, with the caller's arguments.
        return unsafe { (provider.post_send)(qp, wr, bad_wr) };
    }
    // SAFETY: per contract.
    match unsafe { shaper.post(qp, wr, false) } {
        Ok(()) => 0,
        Err((bad, code)) => {
            // SAFETY: writable, as the interface demands.
            unsafe { *bad_wr = bad };
            set_errno(code);
            code
        }
    }
}

/// In the place of the device's `poll_cq`.
///
/// # Safety
/// As the C interface demands.
unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the C interface demands a live queue; only devices that were adopted lead here.
    let provider = shaper().and_then(|shaper| Some((shaper, shaper.provider(unsafe { (*cq).context })?)));
    let Some((shaper, provider)) = provider else { return -1 };
    // SAFETY: the device's own function, with the caller's arguments.
    unsafe { shaper.poll(provider.poll_cq, cq, count, wc) }
}

/// In the place of the device's `bind_mw`, which posts on its own: what waits goes before it.
///
/// # Safety
/// As the C interface demands.
unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the C interface demands a live queue pair; only devices that were adopted lead here.
    let provider = shaper().and_then(|shaper| Some((shaper, shaper.provider(unsafe { (*qp).context })?)));
    let Some((shaper, provider)) = provider else { return libc::EINVAL };
    let mut engine = lock(&shaper.engine);
    engine.push_through(qp, false);
    // SAFETY: the device's own function, with the caller's arguments.
    unsafe { (provider.bind_mw)(qp, mw, bind) }
}

/// The function that stands in for the real library's, if shaping is wanted and there is one.
pub fn instead(name: &CStr) -> Option<*mut core::ffi::c_void> {
    shaper()?;
    stand_in(name)
}

#[cfg(test)]
mod tests;
