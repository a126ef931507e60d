//! What waits, what is under way, and whose turn it is: the daemon's own arbiter, with this process as its tenant.
//!
//! Each shaped queue pair has its requests in order, from the oldest whose completion the program has not seen to the newest that it
//! posted. Those in front were handed to the device, the others wait for their turns. A request in pieces takes more places of its
//! send queue, and may give more completions when it fails, than the program knows: queues are made longer than it asked for, and
//! only what they are longer by is used for further pieces, as far as it goes. So the program's own places are never taken.
//!
//! Requests carry numbers of ours to the device in the place of the program's, to know them again when they complete. Pieces but the
//! last ask for no completion; a failure of any is told once, with the program's number.

use core::ffi::c_int;
use core::{ptr, slice};
use std::collections::{HashMap, VecDeque};

use isolation::{Arbiter, Config, Cost, Flow, Settings, TenantId};
use roce::{Instant, Qpn};

use super::{Shape, pieces};
use crate::abi::codes::{send_flags, wr};
use crate::abi::object::ibv_qp;
use crate::abi::work::{ibv_send_wr, ibv_sge};

/// Bytes of the packets that costs are counted in, and that pieces are made of: the largest that RoCE has.
const PACKET: u64 = 4096;
/// Numbers of requests are counted in so many bits: far more than any send queue is deep.
const NUMBER_BITS: u32 = 23;
const NUMBERS: u32 = 1 << NUMBER_BITS;

/// The device's own function.
pub type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;

/// What is known about a queue pair when it is made.
#[derive(Clone, Copy)]
pub struct Made {
    /// How the device is posted to.
    pub post: PostSend,
    /// Moves a queue pair to the error state.
    pub fail: unsafe fn(*mut ibv_qp),
    /// Where its completions go.
    pub cq: usize,
    /// Requests that may be under way, as promised to the program.
    pub depth: u32,
    /// Places of the send queue beyond those.
    pub further: u32,
    /// Buffers of a request.
    pub max_sge: u32,
    /// Bytes of a request that brings its data along.
    pub max_inline: u32,
    /// Whether long WRITEs and READs can be split: reliable connections.
    pub splits: bool,
    /// All requests are to complete visibly.
    pub signals_all: bool,
}

/// What there was to do, for whoever asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests taken from the program.
    pub requests: u64,
    /// Bytes handed to devices.
    pub bytes: u64,
    /// Requests handed to devices, each piece for itself.
    pub pieces: u64,
    /// Requests of which something had to wait.
    pub delayed: u64,
}

/// What a completion means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// None of a shaped request.
    Foreign,
    /// None of the program's business.
    Hidden,
    /// That of a request with this number; of a READ of so many bytes.
    Told { wr_id: u64, read_bytes: Option<u32> },
}

/// A request of the program's that has not completed yet.
struct Request {
    wr: ibv_send_wr,
    buffers: Vec<ibv_sge>,
    /// Data that it brought along.
    inline: Vec<u8>,
    bytes: u64,
    /// Handed to the device.
    posted: u64,
    /// Length of its pieces but the last.
    piece: u64,
    /// Pieces beyond the first, at most.
    further: u32,
    /// The program has its completion.
    told: bool,
}

/// A shaped queue pair. See the module.
pub struct Queue {
    made: Made,
    qp: *mut ibv_qp,
    flow: Flow,
    /// Places for further pieces that are free.
    further: u32,
    requests: VecDeque<Request>,
    /// Number of the first of them.
    first: u32,
    /// Of how many of them everything was handed to the device.
    handed: usize,
    /// In the error state: whatever is posted is flushed, and need not wait.
    failed: bool,
}

impl Queue {
    fn waits(&self) -> bool {
        self.handed < self.requests.len()
    }

    /// Length of the next piece.
    fn next_len(&self) -> u64 {
        self.requests.get(self.handed).map_or(0, |request| request.piece.min(request.bytes - request.posted))
    }

    /// Hands the next piece to the device. Its length.
    fn hand_on(&mut self, id: impl Fn(u32, bool) -> u64) -> Result<u64, c_int> {
        let len = self.next_len();
        let number = self.first.wrapping_add(self.handed as u32) % NUMBERS;
        let Some(request) = self.requests.get_mut(self.handed) else { return Ok(0) };
        let is_last = request.posted + len == request.bytes;
        let mut part = Vec::new();
        // SAFETY: plain data; what it points to is replaced below.
        let mut wr = unsafe { ptr::read(&request.wr) };
        wr.wr_id = id(number, is_last);
        if request.further == 0 {
            part.clone_from(&request.buffers);
        } else {
            pieces::part(&request.buffers, request.posted, len, &mut part);
            wr.remote_addr = wr.remote_addr.wrapping_add(request.posted);
            // What a fence waits for lies before the first piece.
            let fence = if request.posted > 0 { send_flags::FENCE } else { 0 };
            let signal = if is_last { 0 } else { send_flags::SIGNALED };
            wr.send_flags &= !(fence | signal);
        }
        if request.wr.send_flags & send_flags::INLINE != 0 {
            part = vec![ibv_sge { addr: request.inline.as_ptr() as u64, length: request.inline.len() as u32, lkey: 0 }];
        }
        wr.sg_list = part.as_ptr();
        wr.num_sge = part.len() as c_int;
        let mut bad = ptr::null_mut();
        // SAFETY: the device's own function with its live queue pair, and a request whose lists live for the call.
        match unsafe { (self.made.post)(self.qp, &mut wr, &mut bad) } {
            0 => {
                request.posted += len;
                self.handed += usize::from(is_last);
                Ok(len)
            }
            code => Err(code),
        }
    }

    /// The device refuses what it should have taken, too late to say so to the program: the queue pair fails, and a request that is
    /// flushed takes the place of this one.
    fn fail(&mut self, id: impl Fn(u32, bool) -> u64) {
        // SAFETY: a live queue pair.
        unsafe { (self.made.fail)(self.qp) };
        self.failed = true;
        let number = self.first.wrapping_add(self.handed as u32) % NUMBERS;
        let Some(request) = self.requests.get_mut(self.handed) else { return };
        // SAFETY: plain data; it names no buffers.
        let mut wr = unsafe { ptr::read(&request.wr) };
        wr.wr_id = id(number, true);
        (wr.opcode, wr.send_flags, wr.sg_list, wr.num_sge) = (wr::SEND, send_flags::SIGNALED, ptr::null(), 0);
        let mut bad = ptr::null_mut();
        // SAFETY: as for any request.
        unsafe { (self.made.post)(self.qp, &mut wr, &mut bad) };
        request.posted = request.bytes;
        self.handed += 1;
    }

    /// Takes a request from the program.
    ///
    /// # Safety
    /// The request's lists are valid.
    unsafe fn take(&mut self, wr: &ibv_send_wr, piece: u64, places: &mut u32) -> Result<(), c_int> {
        if self.requests.len() >= self.made.depth as usize {
            return Err(libc::ENOMEM);
        }
        let count = usize::try_from(wr.num_sge).map_err(|_| libc::EINVAL)?;
        if count > self.made.max_sge as usize && wr.send_flags & send_flags::INLINE == 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: per contract; a list without entries may be anywhere.
        let buffers = if count == 0 { &[] } else { unsafe { slice::from_raw_parts(wr.sg_list, count) } };
        let bytes = pieces::length(buffers);
        let mut inline = Vec::new();
        if wr.send_flags & send_flags::INLINE != 0 {
            if bytes > u64::from(self.made.max_inline) {
                return Err(libc::EINVAL);
            }
            for buffer in buffers.iter().filter(|buffer| buffer.length > 0) {
                // SAFETY: per contract, the program's data, which it may change as soon as the call returns.
                inline.extend_from_slice(unsafe { slice::from_raw_parts(buffer.addr as *const u8, buffer.length as usize) });
            }
        }
        let is_long = matches!(wr.opcode, wr::RDMA_WRITE | wr::RDMA_READ) && wr.send_flags & send_flags::INLINE == 0;
        let wanted = if self.made.splits && is_long { bytes.div_ceil(piece).saturating_sub(1) } else { 0 };
        let further = u32::try_from(wanted).unwrap_or(u32::MAX).min(self.further).min(*places);
        self.further -= further;
        *places -= further;
        // With fewer places than wanted the pieces are longer.
        let piece = if further == 0 { bytes } else { bytes.div_ceil(u64::from(further) + 1).next_multiple_of(PACKET) };
        // SAFETY: plain data; what it points to is copied beside it.
        let mut wr = unsafe { ptr::read(wr) };
        wr.next = ptr::null_mut();
        if self.made.signals_all {
            wr.send_flags |= send_flags::SIGNALED;
        }
        self.requests.push_back(Request {
            wr,
            buffers: buffers.to_vec(),
            inline,
            bytes,
            posted: 0,
            piece,
            further,
            told: false,
        });
        Ok(())
    }

    /// Forgets so many requests from the oldest on.
    fn retire(&mut self, count: usize) -> u32 {
        let given_back = self.requests.drain(..count).map(|request| request.further).sum();
        self.first = self.first.wrapping_add(count as u32) % NUMBERS;
        self.handed = self.handed.saturating_sub(count);
        self.further += given_back;
        given_back
    }
}

/// See the module.
pub struct Engine {
    piece: u64,
    arbiter: Arbiter,
    tenant: TenantId,
    /// The upper bits of our numbers.
    tag: u64,
    next_flow: u16,
    queues: HashMap<u16, Queue>,
    flows: HashMap<usize, u16>,
    /// Places of completion queues that are free for further pieces.
    places: HashMap<usize, u32>,
    /// See [`Counts`].
    pub counts: Counts,
}

// SAFETY: the addresses in it are the program's and the device's, and are followed under the lock that holds it.
unsafe impl Send for Engine {}

impl Engine {
    /// Nothing is under way. `tag`: 24 bits that no number of the program's begins with.
    pub fn new(shape: &Shape, tag: u32, now: Instant) -> Engine {
        let mut arbiter = Arbiter::new(Config { quantum_bytes: shape.piece_bytes, ..Config::default() });
        let settings = Settings {
            max_bytes_per_sec: Some(shape.bytes_per_sec.max(1)),
            burst_bytes: shape.burst_bytes,
            ..Settings::default()
        };
        let tenant = arbiter.add_tenant(settings, now).expect("a rate above 0 and no guarantee are sound");
        Engine {
            piece: u64::from(shape.piece_bytes),
            arbiter,
            tenant,
            tag: u64::from(tag) << 40,
            next_flow: 0,
            queues: HashMap::new(),
            flows: HashMap::new(),
            places: HashMap::new(),
            counts: Counts::default(),
        }
    }

    /// A completion queue that is longer than the program asked for, by so much.
    pub fn add_cq(&mut self, cq: usize, further: u32) {
        self.places.insert(cq, further);
    }

    /// It has gone, or is no longer than the program asked for.
    pub fn remove_cq(&mut self, cq: usize) {
        self.places.remove(&cq);
    }

    /// Whether completions that go there are seen by us.
    pub fn knows_cq(&self, cq: usize) -> bool {
        self.places.contains_key(&cq)
    }

    /// A new queue pair. False if there are too many.
    pub fn add_queue(&mut self, qp: *mut ibv_qp, made: Made) -> bool {
        let free = (0..=u16::MAX).map(|n| self.next_flow.wrapping_add(n)).find(|flow| !self.queues.contains_key(flow));
        let Some(flow) = free else { return false };
        self.next_flow = flow.wrapping_add(1);
        // Completions of an earlier one with this number must not be taken for its own.
        let first = (self.counts.requests as u32).wrapping_mul(2) % NUMBERS;
        let queue = Queue {
            made,
            qp,
            flow: Flow::new(self.tenant),
            further: made.further,
            requests: VecDeque::new(),
            first,
            handed: 0,
            failed: false,
        };
        self.queues.insert(flow, queue);
        self.flows.insert(qp as usize, flow);
        true
    }

    /// A queue pair is about to go, and what is under way with it.
    pub fn remove_queue(&mut self, qp: *mut ibv_qp) -> Option<Made> {
        self.reset(qp);
        let flow = self.flows.remove(&(qp as usize))?;
        self.queues.remove(&flow).map(|queue| queue.made)
    }

    /// What a queue pair was made with, if it is shaped.
    pub fn made(&self, qp: *mut ibv_qp) -> Option<Made> {
        self.queues.get(self.flows.get(&(qp as usize))?).map(|queue| queue.made)
    }

    /// It was reset: nothing of it is under way any more.
    pub fn reset(&mut self, qp: *mut ibv_qp) {
        let Some(queue) = self.flows.get(&(qp as usize)).and_then(|flow| self.queues.get_mut(flow)) else { return };
        queue.failed = false;
        let given_back = queue.retire(queue.requests.len());
        if let Some(places) = self.places.get_mut(&queue.made.cq) {
            *places += given_back;
        }
    }

    /// It works again.
    pub fn recover(&mut self, qp: *mut ibv_qp) {
        if let Some(queue) = self.flows.get(&(qp as usize)).and_then(|flow| self.queues.get_mut(flow)) {
            queue.failed = false;
        }
    }

    /// Hands everything that waits of a queue pair to the device at once: one in the error state, or that something unshaped is
    /// to follow.
    pub fn push_through(&mut self, qp: *mut ibv_qp, failed: bool) {
        let Some(&flow) = self.flows.get(&(qp as usize)) else { return };
        if let Some(queue) = self.queues.get_mut(&flow) {
            queue.failed |= failed;
        }
        self.drain(flow);
    }

    fn drain(&mut self, flow: u16) {
        let tag = self.tag;
        let Some(queue) = self.queues.get_mut(&flow) else { return };
        while queue.waits() {
            if queue.hand_on(|number, is_last| id(tag, flow, number, is_last)).is_err() {
                queue.fail(|number, is_last| id(tag, flow, number, is_last));
            }
        }
    }

    /// How many requests a queue pair has room for.
    pub fn room(&self, qp: *mut ibv_qp) -> usize {
        let queue = self.flows.get(&(qp as usize)).and_then(|flow| self.queues.get(flow));
        queue.map_or(0, |queue| (queue.made.depth as usize).saturating_sub(queue.requests.len()))
    }

    /// Takes a request from the program, and hands on what may go by now.
    ///
    /// # Errors
    /// What the device says, if the request could go at once; `ENOMEM` if there is no room, and `EINVAL` for one that could never go.
    ///
    /// # Safety
    /// A live queue pair, and a request whose lists are valid.
    pub unsafe fn post(&mut self, qp: *mut ibv_qp, wr: &ibv_send_wr, now: Instant) -> Result<(), c_int> {
        let flow = *self.flows.get(&(qp as usize)).ok_or(libc::EINVAL)?;
        let queue = self.queues.get_mut(&flow).ok_or(libc::EINVAL)?;
        let mut none = 0;
        let places = self.places.get_mut(&queue.made.cq).unwrap_or(&mut none);
        // SAFETY: per contract.
        unsafe { queue.take(wr, self.piece, places) }?;
        self.counts.requests += 1;
        if queue.failed {
            self.drain(flow);
            return Ok(());
        }
        let outstanding = u32::try_from(queue.requests.len()).unwrap_or(u32::MAX);
        let bytes = queue.requests.back().map_or(0, |request| u32::try_from(request.bytes).unwrap_or(u32::MAX));
        queue.flow.classifier.note(bytes, outstanding);
        self.arbiter.add(Qpn::new(u32::from(flow)), &mut queue.flow, now);
        self.pump(now, Some(flow))?;
        let waits = self.queues.get(&flow).is_some_and(Queue::waits);
        self.counts.delayed += u64::from(waits);
        Ok(())
    }

    /// Hands on what may go by now. Fails for the newest request of `caller`, if the device refuses that.
    pub fn pump(&mut self, now: Instant, caller: Option<u16>) -> Result<(), c_int> {
        let mut refused = Ok(());
        let tag = self.tag;
        while let Some(grant) = self.arbiter.take(now) {
            let flow = grant.qpn.get() as u16;
            let mut cost = Cost::default();
            if let Some(queue) = self.queues.get_mut(&flow) {
                queue.flow.begin_turn();
                let name = |number, is_last| id(tag, flow, number, is_last);
                while queue.waits() {
                    let len = queue.next_len();
                    let packets = len.div_ceil(PACKET).max(1);
                    let fits = cost.bytes + len <= u64::from(grant.max_bytes)
                        && cost.packets + packets <= u64::from(grant.max_packets);
                    if cost.packets > 0 && !fits {
                        break;
                    }
                    match queue.hand_on(name) {
                        Ok(len) => {
                            cost.bytes += len;
                            cost.packets += packets;
                            self.counts.pieces += 1;
                            self.counts.bytes += len;
                        }
                        Err(code) => {
                            let is_newest = queue.handed + 1 == queue.requests.len();
                            let untouched = queue.requests.back().is_some_and(|newest| newest.posted == 0);
                            if caller == Some(flow) && is_newest && untouched {
                                refused = Err(code);
                                let further = queue.requests.pop_back().map_or(0, |request| request.further);
                                queue.further += further;
                                if let Some(places) = self.places.get_mut(&queue.made.cq) {
                                    *places += further;
                                }
                            } else {
                                queue.fail(name);
                            }
                        }
                    }
                }
                cost.within_message = queue.requests.get(queue.handed).is_some_and(|request| request.posted > 0);
            }
            self.arbiter.charge(&grant, cost, now);
            if let Some(queue) = self.queues.get_mut(&flow)
                && queue.waits()
            {
                self.arbiter.add(Qpn::new(u32::from(flow)), &mut queue.flow, now);
            }
        }
        refused
    }

    /// When [`Self::pump`] has something to do again.
    pub fn due(&self) -> Option<Instant> {
        self.arbiter.poll_timeout()
    }

    /// Whether a number of a completion is one of ours.
    pub fn is_tagged(tag: u32, wr_id: u64) -> bool {
        wr_id >> 40 == u64::from(tag)
    }

    /// Says what a completion means. They must be given in the order in which the device gave them.
    pub fn settle(&mut self, wr_id: u64, status: u32) -> Verdict {
        if wr_id >> 40 != self.tag >> 40 {
            return Verdict::Foreign;
        }
        let (flow, is_last) = ((wr_id >> 24) as u16, wr_id & 1 == 1);
        let number = (wr_id as u32 >> 1) % NUMBERS;
        // Without a record its queue pair was reset or has gone.
        let Some(queue) = self.queues.get_mut(&flow) else { return Verdict::Hidden };
        let index = (number.wrapping_sub(queue.first) % NUMBERS) as usize;
        let Some(request) = queue.requests.get_mut(index) else { return Verdict::Hidden };
        let failed = status != 0;
        let tell = (is_last || failed) && !request.told;
        request.told |= tell;
        let read_bytes = (!failed && request.wr.opcode == wr::RDMA_READ).then_some(request.bytes as u32);
        let verdict = if tell { Verdict::Told { wr_id: request.wr.wr_id, read_bytes } } else { Verdict::Hidden };
        // A completion says that those before it are done.
        let given_back = queue.retire(index + usize::from(is_last));
        if let Some(places) = self.places.get_mut(&queue.made.cq) {
            *places += given_back;
        }
        if failed && !queue.failed {
            queue.failed = true;
            self.drain(flow);
        }
        verdict
    }
}

fn id(tag: u64, flow: u16, number: u32, is_last: bool) -> u64 {
    tag | u64::from(flow) << 24 | u64::from(number) << 1 | u64::from(is_last)
}
