//! Completion queues and queue pairs: posting and polling.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use super::{CallError, Context, Mr, Pd, Port, sys};

/// A completion that reports a failure.
#[derive(Debug, thiserror::Error)]
#[error("request {wr_id} failed: {text} (status {status}, vendor error {vendor_err:#x})")]
pub struct CompletionError {
    /// The request.
    pub wr_id: u64,
    /// `enum ibv_wc_status`.
    pub status: u32,
    /// What that means.
    pub text: String,
    /// The device's finer cause.
    pub vendor_err: u32,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    context: Rc<Context>,
    raw: NonNull<sys::Cq>,
    poll: sys::PollCq,
}

/// Completions taken in one call at most.
pub const POLL_BATCH: usize = 32;

impl Cq {
    /// A queue for `depth` completions.
    pub fn new(context: &Rc<Context>, depth: u32) -> Result<Rc<Cq>, CallError> {
        let depth = i32::try_from(depth).unwrap_or(i32::MAX);
        let null = std::ptr::null_mut();
        // SAFETY: the context is open; no channel is wanted.
        let raw = unsafe { (context.library().create_cq)(context.raw().as_ptr(), depth, null, null, 0) };
        let raw = NonNull::new(raw).ok_or_else(|| CallError::last("ibv_create_cq"))?;
        // SAFETY: the context is open, and its operations are set before it is given to anybody.
        let poll = unsafe { (*context.raw().as_ptr()).poll_cq }.ok_or_else(|| missing("ibv_poll_cq"))?;
        Ok(Rc::new(Cq { context: context.clone(), raw, poll }))
    }

    /// Takes up to [`POLL_BATCH`] completions and gives each to `each`. Returns how many there were.
    pub fn poll(&self, mut each: impl FnMut(&sys::Wc)) -> anyhow::Result<usize> {
        let mut entries = [const { MaybeUninit::<sys::Wc>::uninit() }; POLL_BATCH];
        // SAFETY: the queue is alive and `entries` holds as many as are asked for.
        let count = unsafe { (self.poll)(self.raw.as_ptr(), POLL_BATCH as i32, entries.as_mut_ptr().cast()) };
        if count < 0 {
            return Err(CallError::last("ibv_poll_cq").into());
        }
        let entries = &entries[..count.unsigned_abs() as usize];
        for entry in entries {
            // SAFETY: the call has filled the first `count` entries.
            let entry = unsafe { entry.assume_init_ref() };
            if entry.status != 0 {
                return Err(self.failed(entry).into());
            }
            each(entry);
        }
        Ok(entries.len())
    }

    fn failed(&self, entry: &sys::Wc) -> CompletionError {
        // SAFETY: the function returns a constant string for any value.
        let text = unsafe { CStr::from_ptr((self.context.library().wc_status_str)(entry.status)) };
        let text = text.to_string_lossy().into_owned();
        CompletionError { wr_id: entry.wr_id, status: entry.status, text, vendor_err: entry.vendor_err }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold an `Rc` of their queues, so none is left.
        unsafe { (self.context.library().destroy_cq)(self.raw.as_ptr()) };
    }
}

fn missing(call: &'static str) -> CallError {
    CallError { call, source: std::io::Error::from_raw_os_error(libc::EOPNOTSUPP) }
}

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpSizes {
    /// Send requests that may be outstanding.
    pub send: u32,
    /// Receive requests that may be outstanding.
    pub receive: u32,
    /// Inline bytes per send request; the queue pair may have fewer if the device does.
    pub inline: u32,
}

/// What a peer must know to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Queue pair number.
    pub qpn: u32,
    /// First packet sequence number that it sends.
    pub psn: u32,
    /// Its address.
    pub gid: [u8; 16],
    /// Code of its path MTU.
    pub mtu: u32,
}

/// Memory of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remote {
    /// First byte.
    pub addr: u64,
    /// Number of bytes.
    pub length: u64,
    /// Key.
    pub rkey: u32,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// SEND.
    Send,
    /// Atomic fetch-and-add.
    FetchAdd,
    /// Atomic compare-and-swap.
    CompareSwap,
}

/// One send request on one local range.
#[derive(Clone, Copy, Debug)]
pub struct Send {
    /// What it does.
    pub operation: Operation,
    /// Returned in the completion.
    pub wr_id: u64,
    /// Offset of the local bytes in the region.
    pub offset: usize,
    /// Number of bytes.
    pub length: u32,
    /// Remote address; not used by SEND.
    pub remote_addr: u64,
    /// Gives a completion.
    pub signaled: bool,
}

/// A reliable connected queue pair with one completion queue for both directions.
#[derive(Debug)]
pub struct Qp {
    raw: NonNull<sys::Qp>,
    post_send: sys::PostSend,
    post_recv: sys::PostRecv,
    inline: u32,
    // Reused by every call: setting up a chain of 64 anew would cost as much as posting it.
    chain: Box<Chain>,
    cq: Rc<Cq>,
    pd: Rc<Pd>,
}

struct Chain {
    requests: [sys::SendWr; POST_BATCH],
    ranges: [sys::Sge; POST_BATCH],
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Chain")
    }
}

/// Requests that one call posts at most.
pub const POST_BATCH: usize = 64;
/// READs and atomics outstanding, each way. Every device that has them allows 16.
const RD_ATOMIC: u8 = 16;
/// 4.096 µs × 2^14 = 67 ms, perftest's own choice.
const TIMEOUT: u8 = 14;
/// Code of the RNR timer: 0.64 ms. A benchmark that meets it has posted too few receives.
const MIN_RNR_TIMER: u8 = 12;

impl Qp {
    /// A queue pair in RESET.
    pub fn new(pd: &Rc<Pd>, cq: &Rc<Cq>, sizes: QpSizes) -> Result<Qp, CallError> {
        let mut init = sys::QpInitAttr {
            qp_context: std::ptr::null_mut(),
            send_cq: cq.raw.as_ptr(),
            recv_cq: cq.raw.as_ptr(),
            srq: std::ptr::null_mut(),
            cap: sys::QpCap {
                max_send_wr: sizes.send,
                max_recv_wr: sizes.receive,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: sizes.inline,
            },
            qp_type: sys::QPT_RC,
            sq_sig_all: 0,
        };
        let library = pd.context().library();
        // SAFETY: domain and queue are alive; the call reads and updates `init`.
        let raw = unsafe { (library.create_qp)(pd.raw().as_ptr(), &mut init) };
        let raw = NonNull::new(raw).ok_or_else(|| CallError::last("ibv_create_qp"))?;
        // SAFETY: the context is open, and its operations are set before it is given to anybody.
        let (send, recv) = unsafe {
            let context = pd.context().raw().as_ptr();
            ((*context).post_send, (*context).post_recv)
        };
        let post_send = send.ok_or_else(|| missing("ibv_post_send"))?;
        let post_recv = recv.ok_or_else(|| missing("ibv_post_recv"))?;
        let chain = Box::new(Chain { requests: [sys::SendWr::EMPTY; POST_BATCH], ranges: [sys::Sge::default(); POST_BATCH] });
        Ok(Qp { raw, post_send, post_recv, inline: init.cap.max_inline_data, chain, cq: cq.clone(), pd: pd.clone() })
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        // SAFETY: the object is alive, and its number does not change.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    /// Where its completions go.
    pub fn cq(&self) -> &Rc<Cq> {
        &self.cq
    }

    /// RESET to INIT: receives may be posted.
    pub fn to_init(&self) -> Result<(), CallError> {
        let access = sys::ACCESS_REMOTE_WRITE | sys::ACCESS_REMOTE_READ | sys::ACCESS_REMOTE_ATOMIC;
        let attr = sys::QpAttr { qp_state: sys::QPS_INIT, port_num: 1, qp_access_flags: access, ..Default::default() };
        self.modify(attr, sys::QP_STATE | sys::QP_PKEY_INDEX | sys::QP_PORT | sys::QP_ACCESS_FLAGS)
    }

    /// INIT to RTS, connected to `peer`.
    pub fn connect(&self, port: &Port, own_psn: u32, peer: &Peer) -> Result<(), CallError> {
        let attr = sys::QpAttr {
            qp_state: sys::QPS_RTR,
            path_mtu: port.mtu.min(peer.mtu),
            dest_qp_num: peer.qpn,
            rq_psn: peer.psn,
            max_dest_rd_atomic: RD_ATOMIC,
            min_rnr_timer: MIN_RNR_TIMER,
            ah_attr: sys::AhAttr {
                dgid: sys::Gid(peer.gid),
                sgid_index: port.gid_index,
                hop_limit: 64,
                is_global: 1,
                port_num: 1,
                ..Default::default()
            },
            ..Default::default()
        };
        let path = sys::QP_AV | sys::QP_PATH_MTU | sys::QP_DEST_QPN | sys::QP_RQ_PSN;
        self.modify(attr, sys::QP_STATE | path | sys::QP_MAX_DEST_RD_ATOMIC | sys::QP_MIN_RNR_TIMER)?;
        let attr = sys::QpAttr {
            qp_state: sys::QPS_RTS,
            sq_psn: own_psn,
            timeout: TIMEOUT,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: RD_ATOMIC,
            ..Default::default()
        };
        let retries = sys::QP_TIMEOUT | sys::QP_RETRY_CNT | sys::QP_RNR_RETRY;
        self.modify(attr, sys::QP_STATE | retries | sys::QP_SQ_PSN | sys::QP_MAX_QP_RD_ATOMIC)
    }

    fn modify(&self, mut attr: sys::QpAttr, mask: i32) -> Result<(), CallError> {
        // SAFETY: the queue pair is alive and `attr` is whole.
        let result = unsafe { (self.pd.context().library().modify_qp)(self.raw.as_ptr(), &mut attr, mask) };
        CallError::check("ibv_modify_qp", result)
    }

    /// Posts `count` requests, at most [`POST_BATCH`], in one call; `request` makes them. All of their local ranges lie in `mr`.
    pub fn post(&mut self, mr: &Mr, rkey: u32, count: usize, mut request: impl FnMut(usize) -> Send) -> Result<(), CallError> {
        if count == 0 {
            return Ok(());
        }
        let Chain { requests, ranges } = &mut *self.chain;
        let (buffer, lkey) = (mr.buffer(), mr.lkey());
        for index in 0..count {
            let send = request(index);
            assert!(send.offset + send.length as usize <= buffer.size(), "{send:?} leaves the buffer");
            ranges[index] = sys::Sge { addr: buffer.address() + send.offset as u64, length: send.length, lkey };
            let (opcode, outgoing, rkey_or_compare_add) = match send.operation {
                Operation::Write => (sys::WR_RDMA_WRITE, true, u64::from(rkey)),
                Operation::Send => (sys::WR_SEND, true, 0),
                Operation::Read => (sys::WR_RDMA_READ, false, u64::from(rkey)),
                // Adds one, or swaps zero for one: the values do not matter here.
                Operation::FetchAdd => (sys::WR_ATOMIC_FETCH_AND_ADD, false, 1),
                Operation::CompareSwap => (sys::WR_ATOMIC_CMP_AND_SWP, false, 0),
            };
            // The processor copies inline data, and does not reach a GPU's.
            let can_inline = buffer.as_ptr().is_some() && send.length <= self.inline;
            let inline = if outgoing && can_inline { sys::SEND_INLINE } else { 0 };
            let signaled = if send.signaled { sys::SEND_SIGNALED } else { 0 };
            requests[index] = sys::SendWr {
                wr_id: send.wr_id,
                sg_list: &raw mut ranges[index],
                num_sge: 1,
                opcode,
                send_flags: inline | signaled,
                remote_addr: send.remote_addr,
                rkey_or_compare_add,
                swap: 1,
                atomic_rkey: rkey,
                ..sys::SendWr::EMPTY
            };
        }
        for index in 1..count {
            requests[index - 1].next = &raw mut requests[index];
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is alive; chain and ranges are ours and the call copies them. The bytes that they name stay
        // mapped and registered as long as `mr`, which an endpoint drops after its queue pair.
        CallError::check("ibv_post_send", unsafe { (self.post_send)(self.raw.as_ptr(), requests.as_mut_ptr(), &mut bad) })
    }

    /// Posts one receive of `length` bytes at `offset` of `mr`.
    pub fn post_receive(&self, mr: &Mr, wr_id: u64, offset: usize, length: u32) -> Result<(), CallError> {
        assert!(offset + length as usize <= mr.buffer().size(), "a receive leaves the buffer");
        let mut range = sys::Sge { addr: mr.buffer().address() + offset as u64, length, lkey: mr.lkey() };
        let mut wr = sys::RecvWr { wr_id, next: std::ptr::null_mut(), sg_list: &mut range, num_sge: 1 };
        let mut bad = std::ptr::null_mut();
        // SAFETY: as for sends.
        CallError::check("ibv_post_recv", unsafe { (self.post_recv)(self.raw.as_ptr(), &mut wr, &mut bad) })
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: the queue pair came from ibv_create_qp and nothing uses it after this.
        unsafe { (self.pd.context().library().destroy_qp)(self.raw.as_ptr()) };
    }
}
