//! `ibv_post_send` and `ibv_post_recv`: check, write ring entries, publish, ring.
//!
//! What is refused here is what the interface says a post refuses: a wrong state, a full queue, too many buffers, too much inline
//! data. Keys and bounds are checked by the device when the request runs. Inline data are copied before the post returns.

use crate::abi::codes::{send_flags, wr as opcode};
use crate::abi::object::ibv_qp;
use crate::abi::work::{ibv_recv_wr, ibv_send_wr, ibv_sge};
use crate::connection::Errno;
use crate::context::{Context, lock};
use crate::foreign::set_errno;
use crate::memory::Sources;
use crate::qp::Qp;
use crate::srq::{SharedRing, Srq};
use core::ffi::c_int;
use core::{iter, slice};
use std::sync::Mutex;
use vdev_abi::copy::Fault;
use vdev_abi::layout::{RecvEntry, STAGING_LKEY, SendEntry, Sge};
use vdev_abi::mapping::Mapping;
use vdev_abi::queue::{FLAG_INLINE, RingProducer};

const INVALID: Errno = Errno(libc::EINVAL);

/// Posts a chain of send requests; called through the context.
///
/// # Safety
/// The queue pair is live and ours, the chain valid, and `bad_wr` writable.
pub unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: per contract.
    let (ours, context) = unsafe { (Qp::of(qp), Context::of((*qp).context)) };
    let allowed = context.check().and(if ours.may_send() { Ok(()) } else { Err(INVALID) });
    let push = |ring: &mut RingProducer, request: &ibv_send_wr| {
        // SAFETY: per contract, the chain is valid.
        unsafe { push_send(context, ours, ring, request) }.map(|()| request.next)
    };
    let target = Target {
        ring: &ours.send().ring,
        produced: RingProducer::produced,
        publish: &|ring| ring.publish(ours.map()),
        tell: &|| context.ring(ours.slot()),
    };
    // SAFETY: per contract.
    unsafe { post_chain(target, allowed, wr, bad_wr, push) }
}

/// Posts a chain of receive requests; called through the context.
///
/// # Safety
/// The queue pair is live and ours, the chain valid, and `bad_wr` writable.
pub unsafe extern "C" fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: per contract.
    let (ours, context) = unsafe { (Qp::of(qp), Context::of((*qp).context)) };
    let allowed = context.check().and(if ours.may_receive() && ours.srq().is_none() { Ok(()) } else { Err(INVALID) });
    let push = |ring: &mut RingProducer, request: &ibv_recv_wr| {
        let has_room = ours.recv().outstanding(ring.produced()) < ours.caps().max_recv_wr;
        // SAFETY: per contract, the chain is valid.
        unsafe { push_recv(ours.map(), has_room, ours.caps().max_recv_sge, ring, request) }.map(|()| request.next)
    };
    let target = Target {
        ring: &ours.recv().ring,
        produced: RingProducer::produced,
        publish: &|ring| ring.publish(ours.map()),
        tell: &|| context.ring(ours.slot()),
    };
    // SAFETY: per contract.
    unsafe { post_chain(target, allowed, wr, bad_wr, push) }
}

/// Posts a chain of receive requests to a shared receive queue.
///
/// # Safety
/// The chain is valid, and `bad_wr` writable.
pub unsafe fn post_shared(context: &Context, srq: &Srq, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    let push = |ring: &mut SharedRing, request: &ibv_recv_wr| {
        let has_room = srq.has_room(ring.producer.produced());
        // SAFETY: per contract, the chain is valid.
        unsafe { push_recv(&ring.map, has_room, srq.max_sge(), &mut ring.producer, request) }.map(|()| request.next)
    };
    let target = Target {
        ring: srq.ring(),
        produced: |ring| ring.producer.produced(),
        publish: &|ring| ring.producer.publish(&ring.map),
        tell: &|| srq.ring_doorbell(context),
    };
    // SAFETY: per contract.
    unsafe { post_chain(target, context.check(), wr, bad_wr, push) }
}

/// Where a chain of requests goes.
struct Target<'a, Ring> {
    ring: &'a Mutex<Ring>,
    /// Entries written so far.
    produced: fn(&Ring) -> u32,
    /// Shows the daemon the entries written.
    publish: &'a dyn Fn(&Ring),
    /// Tells the daemon.
    tell: &'a dyn Fn(),
}

/// Writes the requests of a chain to a ring until one is refused, and shows the daemon those written. `push` writes one and
/// returns the next.
///
/// # Safety
/// The chain that starts at `next` is valid, and `bad_wr` writable.
unsafe fn post_chain<Ring, Request>(
    target: Target<'_, Ring>,
    allowed: Result<(), Errno>,
    mut next: *mut Request,
    bad_wr: *mut *mut Request,
    push: impl Fn(&mut Ring, &Request) -> Result<*mut Request, Errno>,
) -> c_int {
    let mut result = allowed;
    if result.is_ok() {
        let mut ring = lock(target.ring);
        let before = (target.produced)(&ring);
        // SAFETY: per contract, the chain is valid.
        while let Some(request) = unsafe { next.as_ref() } {
            match push(&mut ring, request) {
                Ok(following) => next = following,
                Err(errno) => {
                    result = Err(errno);
                    break;
                }
            }
        }
        if (target.produced)(&ring) != before {
            (target.publish)(&ring);
            drop(ring);
            (target.tell)();
        }
    }
    match result {
        Ok(()) => 0,
        Err(Errno(errno)) => {
            // SAFETY: per contract.
            unsafe { bad_wr.write(next) };
            set_errno(errno);
            errno
        }
    }
}

/// Posts a chain of send requests together or not at all.
///
/// # Safety
/// The chain is valid.
pub unsafe fn post_together(context: &Context, qp: &Qp, mut next: *mut ibv_send_wr) -> Result<(), Errno> {
    context.check()?;
    if !qp.may_send() {
        return Err(INVALID);
    }
    let mut ring = lock(&qp.send().ring);
    let before = ring.produced();
    // SAFETY: per contract, the chain is valid.
    while let Some(request) = unsafe { next.as_ref() } {
        // SAFETY: as above.
        if let Err(error) = unsafe { push_send(context, qp, &mut ring, request) } {
            ring.rewind(before);
            qp.forget_staged(context, before);
            return Err(error);
        }
        next = request.next;
    }
    if ring.produced() != before {
        ring.publish(qp.map());
        drop(ring);
        context.ring(qp.slot());
    }
    Ok(())
}

/// The buffers of a request, if there are not too many.
///
/// # Safety
/// `list` holds `count` entries.
unsafe fn buffers<'a>(list: *const ibv_sge, count: c_int, max: u32) -> Result<&'a [ibv_sge], Errno> {
    let count = u32::try_from(count).ok().filter(|&count| count <= max).ok_or(INVALID)?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: per contract.
    Ok(unsafe { slice::from_raw_parts(list, count as usize) })
}

/// The staging key means something only between this library and the daemon, which takes it elsewhere for a broken client. From a
/// program it is a key of nothing, and becomes one: the request then ends with a protection error, as for any wrong key.
fn sge(buffer: &ibv_sge) -> Sge {
    let lkey = if buffer.lkey == STAGING_LKEY { 0 } else { buffer.lkey };
    Sge { addr: buffer.addr, length: buffer.length, lkey }
}

/// # Safety
/// The request is valid, and inline data readable.
unsafe fn push_send(context: &Context, qp: &Qp, ring: &mut RingProducer, request: &ibv_send_wr) -> Result<(), Errno> {
    if qp.send().outstanding(ring.produced()) >= qp.caps().max_send_wr {
        return Err(Errno(libc::ENOMEM));
    }
    if request.send_flags & !send_flags::KNOWN != 0 {
        return Err(INVALID);
    }
    let mut entry = head(request)?;
    if !qp.is_reliable() && (is_response_op(request.opcode) || request.opcode == opcode::SEND_WITH_INV) {
        return Err(INVALID);
    }
    if qp.is_datagram() {
        // SAFETY: the program vouches for its address handle.
        unsafe { crate::ah::address(request, &mut entry) }?;
    }
    if is_own_op(request.opcode) {
        if request.send_flags & send_flags::INLINE != 0 {
            return Err(INVALID);
        }
        if request.opcode == opcode::BIND_MW {
            // SAFETY: the program vouches for its window and region.
            entry.set_binding(&unsafe { crate::window::binding(context, request) }?);
        }
        ring.push_send(qp.map(), &entry, iter::empty());
        return Ok(());
    }
    if qp.names_queues() {
        entry.set_srqn(request.remote_srqn);
    }
    // An inline list is not limited by the number of buffers, as it is copied; it is by the length.
    let inline = request.send_flags & send_flags::INLINE != 0;
    let max_sge = if inline { context.info.max_sge } else { qp.caps().max_send_sge };
    // SAFETY: per contract.
    let list = unsafe { buffers(request.sg_list, request.num_sge, max_sge) }?;
    let total: u64 = list.iter().map(|buffer| u64::from(buffer.length)).sum();
    if total > u64::from(context.info.max_msg_size) {
        return Err(INVALID);
    }
    if inline {
        if total > u64::from(qp.caps().max_inline_data) || is_response_op(request.opcode) {
            return Err(INVALID);
        }
        let sources = list.iter().map(|buffer| buffer.addr as *const u8);
        // SAFETY: the program vouches for its buffers.
        return unsafe { push_inline(context, qp, ring, entry, list, sources) }.map_err(|Fault| Errno(libc::EFAULT));
    }
    // Memory that the daemon reaches only through the kernel: small payloads go along in the entry, larger ones by staging.
    if !is_response_op(request.opcode) {
        if total <= u64::from(qp.caps().max_inline_data) {
            let mut sources = Sources::default();
            if context.regions.locate(qp.pd_handle(), list, &mut sources).is_some() {
                let inline = SendEntry { flags: entry.flags | FLAG_INLINE, ..entry };
                // SAFETY: the buffers lie in regions that the program registered.
                if unsafe { push_inline(context, qp, ring, inline, list, sources.into_iter()) }.is_ok() {
                    return Ok(());
                }
                // Unmapped while registered: the device finds that out, and the request ends as it says.
            }
        } else if let Some((slots, staged)) = context.staging.stage(context, qp.pd_handle(), list, total) {
            qp.note_staged(ring.produced(), slots);
            entry.num_sge = 1;
            ring.push_send(qp.map(), &entry, iter::once(staged));
            return Ok(());
        }
    }
    entry.num_sge = u16::try_from(list.len()).map_err(|_| INVALID)?;
    ring.push_send(qp.map(), &entry, list.iter().map(sge));
    Ok(())
}

/// Writes an entry with its payload; none if a buffer is not there.
///
/// # Safety
/// The buffers lie in memory of the program at `sources`, and together fit into an entry.
unsafe fn push_inline(
    context: &Context,
    qp: &Qp,
    ring: &mut RingProducer,
    mut entry: SendEntry,
    list: &[ibv_sge],
    sources: impl Iterator<Item = *const u8>,
) -> Result<(), Fault> {
    entry.inline_len = list.iter().map(|buffer| buffer.length).sum();
    let before = ring.produced();
    let mut at = ring.push_send(qp.map(), &entry, iter::empty());
    for (buffer, source) in list.iter().zip(sources) {
        // SAFETY: per contract.
        if let Err(fault) = unsafe { qp.map().copy_in(context.copier, at, source, buffer.length as usize) } {
            ring.rewind(before);
            return Err(fault);
        }
        at += buffer.length as usize;
    }
    Ok(())
}

/// Whether the buffers are where a response goes.
fn is_response_op(code: u32) -> bool {
    matches!(code, opcode::RDMA_READ | opcode::ATOMIC_CMP_AND_SWP | opcode::ATOMIC_FETCH_AND_ADD)
}

/// Whether nothing is sent to the peer, so that there are no buffers.
fn is_own_op(code: u32) -> bool {
    matches!(code, opcode::BIND_MW | opcode::LOCAL_INV)
}

/// The head of an entry, without the counts.
fn head(request: &ibv_send_wr) -> Result<SendEntry, Errno> {
    let mut entry = SendEntry {
        wr_id: request.wr_id,
        opcode: u8::try_from(request.opcode).map_err(|_| INVALID)?,
        flags: u8::try_from(request.send_flags).map_err(|_| INVALID)?,
        imm: request.imm,
        ..SendEntry::default()
    };
    match request.opcode {
        opcode::SEND | opcode::SEND_WITH_IMM | opcode::SEND_WITH_INV | opcode::LOCAL_INV | opcode::BIND_MW => {}
        opcode::RDMA_WRITE | opcode::RDMA_WRITE_WITH_IMM | opcode::RDMA_READ => {
            let [a, b, c, d, ..] = request.rkey_or_compare_add.to_ne_bytes();
            entry.remote_addr = request.remote_addr;
            entry.rkey = u32::from_ne_bytes([a, b, c, d]);
        }
        opcode::ATOMIC_CMP_AND_SWP | opcode::ATOMIC_FETCH_AND_ADD => {
            entry.remote_addr = request.remote_addr;
            entry.rkey = request.atomic_rkey;
            entry.compare_add = request.rkey_or_compare_add;
            entry.swap = request.swap;
        }
        _ => return Err(INVALID),
    }
    Ok(entry)
}

/// # Safety
/// The request is valid.
unsafe fn push_recv(
    map: &Mapping,
    has_room: bool,
    max_sge: u32,
    ring: &mut RingProducer,
    request: &ibv_recv_wr,
) -> Result<(), Errno> {
    if !has_room {
        return Err(Errno(libc::ENOMEM));
    }
    // SAFETY: per contract.
    let list = unsafe { buffers(request.sg_list, request.num_sge, max_sge) }?;
    let num_sge = u32::try_from(list.len()).map_err(|_| INVALID)?;
    let entry = RecvEntry { wr_id: request.wr_id, num_sge, reserved: 0 };
    ring.push_recv(map, &entry, list.iter().map(sge));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr;

    fn request(opcode: u32) -> ibv_send_wr {
        ibv_send_wr {
            wr_id: 5,
            opcode,
            send_flags: 2,
            imm: [1, 2, 3, 4],
            remote_addr: 0x1000,
            rkey_or_compare_add: u64::from_ne_bytes([7, 0, 0, 0, 9, 9, 9, 9]),
            swap: 11,
            atomic_rkey: 13,
            ..ibv_send_wr::default()
        }
    }

    #[test]
    fn programs_cannot_name_the_staging_buffer() {
        let of = |lkey| sge(&ibv_sge { addr: 1, length: 2, lkey }).lkey;
        assert_eq!((of(STAGING_LKEY), of(STAGING_LKEY - 1)), (0, STAGING_LKEY - 1));
    }

    #[test]
    fn heads_take_the_right_part_of_the_union() {
        let write = head(&request(opcode::RDMA_WRITE_WITH_IMM)).unwrap();
        assert_eq!((write.remote_addr, write.rkey, write.imm), (0x1000, u32::from_ne_bytes([7, 0, 0, 0]), [1, 2, 3, 4]));
        let atomic = head(&request(opcode::ATOMIC_CMP_AND_SWP)).unwrap();
        assert_eq!((atomic.rkey, atomic.swap, atomic.compare_add), (13, 11, request(0).rkey_or_compare_add));
        let send = head(&request(opcode::SEND)).unwrap();
        assert_eq!((send.remote_addr, send.rkey, send.flags), (0, 0, 2));
    }

    #[test]
    fn unknown_opcodes_are_refused() {
        for code in [10, 11, 255, 256, u32::MAX] {
            assert_eq!(head(&request(code)).err(), Some(INVALID), "{code}");
        }
    }

    #[test]
    fn lists_are_bounded() {
        // SAFETY: nothing is read when the count is refused or zero.
        unsafe {
            assert!(buffers(ptr::null(), 0, 4).unwrap().is_empty());
            assert!(buffers(ptr::null(), -1, 4).is_err());
            assert!(buffers(ptr::null(), 5, 4).is_err());
        }
    }
}
