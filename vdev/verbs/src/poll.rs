//! `ibv_poll_cq`: takes completions out of the ring, and knows what to do when there are none.
//!
//! An empty poll costs one cache line read. After many in a row it gives up the processor, soon where processors are scarce (the
//! daemon that is to produce the completion may need this very one), and from time to time it looks whether the daemon still lives.

use crate::abi::codes::WC_GRH;
use crate::abi::object::ibv_cq;
use crate::abi::work::ibv_wc;
use crate::context::{Context, lock};
use crate::cq::{Cq, CqState, WITHDRAWN};
use core::ffi::c_int;
use std::sync::MutexGuard;
use vdev_abi::layout::CompletionEntry;

/// Empty polls before the processor is given up, where there are at most [`SCARCE_CPUS`].
const SPINS_SCARCE: u32 = 16;
/// Empty polls before the processor is given up elsewhere.
const SPINS: u32 = 4096;
/// A program, its peer and the daemon may all be polling; with more processors each has its own.
const SCARCE_CPUS: u32 = 3;
/// Empty polls between two looks at the socket.
const LOOK_EVERY: u32 = 4096;

/// Takes up to `count` completions; called through the context. Negative when the daemon is gone and nothing is left to take.
///
/// # Safety
/// The queue is live and ours, and `wc` has room for `count` entries.
pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: per contract.
    let (ours, context) = unsafe { (Cq::of(cq), Context::of((*cq).context)) };
    let wanted = usize::try_from(count).unwrap_or(0);
    let mut state = lock(ours.state());
    let mut seen = 0;
    let mut given = 0;
    while given < wanted {
        let Some(entry) = state.peek(seen) else { break };
        seen += 1;
        if let Some(completion) = accept(context, &entry) {
            // SAFETY: the caller has room for `count` entries.
            unsafe { wc.add(given).write(completion) };
            given += 1;
        }
    }
    if seen > 0 {
        state.advance(seen);
        return c_int::try_from(given).unwrap_or(c_int::MAX);
    }
    if wanted == 0 { 0 } else { found_nothing(context, state) }
}

/// Takes one completion, and when the daemon wrote it.
pub fn take_one(context: &Context, state: &mut CqState) -> Option<(ibv_wc, u64)> {
    loop {
        let entry = state.peek(0)?;
        let completion = accept(context, &entry);
        state.advance(1);
        if let Some(completion) = completion {
            return Some((completion, entry.timestamp_ns));
        }
    }
}

/// What to do after a poll without a completion. Negative when the daemon is gone.
pub fn found_nothing(context: &Context, mut state: MutexGuard<'_, CqState>) -> c_int {
    state.empty_polls = state.empty_polls.wrapping_add(1);
    let empty = state.empty_polls;
    drop(state);
    nothing_there(context, empty)
}

#[cold]
#[inline(never)]
fn nothing_there(context: &Context, empty: u32) -> c_int {
    if empty.is_multiple_of(LOOK_EVERY) && context.check().is_ok() {
        context.connection.look();
    }
    if context.check().is_err() {
        return -1;
    }
    let spins = if context.cpus <= SCARCE_CPUS { SPINS_SCARCE } else { SPINS };
    if empty.is_multiple_of(spins) {
        // SAFETY: a plain system call.
        unsafe { libc::sched_yield() };
    } else {
        core::hint::spin_loop();
    }
    0
}

/// The completion for the program, after its queue has got its slots back. `None` when the queue is gone or was reset.
fn accept(context: &Context, entry: &CompletionEntry) -> Option<ibv_wc> {
    if entry.slot == WITHDRAWN {
        return None;
    }
    if entry.srqn != 0 {
        // The queue pair that took it may be another process's.
        context.srq_in_slot(entry.slot, entry.srqn)?.retire(1);
    } else {
        context.qp_in_slot(entry.slot, entry.qpn)?.retire(context, entry.is_recv != 0, entry.queue_index);
    }
    Some(ibv_wc {
        wr_id: entry.wr_id,
        status: u32::from(entry.status),
        opcode: u32::from(entry.opcode),
        vendor_err: entry.vendor_err,
        byte_len: entry.byte_len,
        imm: entry.imm,
        qp_num: entry.qpn,
        src_qp: entry.src_qp,
        wc_flags: u32::from(entry.flags),
        pkey_index: 0,
        slid: 0,
        sl: if u32::from(entry.flags) & WC_GRH != 0 { context.datagram_sl } else { 0 },
        dlid_path_bits: 0,
    })
}
