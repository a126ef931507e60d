//! Extended queue pairs: `ibv_create_qp_ex`, and posting by function calls.
//!
//! From `ibv_wr_start` to `ibv_wr_complete` one thread holds the queue pair and collects requests as `ibv_post_send` takes them;
//! completing posts them together or not at all. Every queue pair of ours has the functions, but only one that was made with the
//! operations it is to have tells of them (`ibv_qp_to_qp_ex`).

use crate::abi::codes::{QPT_RC, QPT_UC, QPT_UD, QPT_XRC_RECV, QPT_XRC_SEND, send_flags, wr as opcode};
use crate::abi::device::ibv_context;
use crate::abi::extended::{ibv_data_buf, ibv_qp_ex, ibv_qp_init_attr_ex, qp_init, send_ops};
use crate::abi::object::{ibv_mw, ibv_qp};
use crate::abi::work::{ibv_mw_bind_info, ibv_send_wr, ibv_sge};
use crate::connection::Errno;
use crate::context::Context;
use crate::foreign::{code, null, own_object, pointer, verbs};
use crate::post::post_together;
use crate::qp::{self, Qp};
use core::ffi::{c_int, c_void};
use core::ops::Range;
use core::{ptr, slice};

/// Requests between `ibv_wr_start` and `ibv_wr_complete`. Buffers and inline bytes of all lie in one list each.
#[derive(Default)]
pub struct Batch {
    requests: Vec<Collected>,
    buffers: Vec<ibv_sge>,
    bytes: Vec<u8>,
    /// The first mistake, which completing reports.
    mistake: Option<Errno>,
}

// SAFETY: the addresses in the requests are the program's, and are followed only when it completes them.
unsafe impl Send for Batch {}

struct Collected {
    request: ibv_send_wr,
    buffers: Range<usize>,
    /// The payload in `bytes`, instead of buffers.
    inline: Option<Range<usize>>,
}

impl Batch {
    /// Nothing is collected.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.buffers.clear();
        self.bytes.clear();
        self.mistake = None;
    }

    fn push(&mut self, request: ibv_send_wr) {
        self.requests.push(Collected { request, buffers: 0..0, inline: None });
    }

    /// The request that was started last; none is a mistake.
    fn last(&mut self) -> Option<&mut Collected> {
        if self.requests.is_empty() {
            self.mistake.get_or_insert(Errno(libc::EINVAL));
        }
        self.requests.last_mut()
    }

    fn set_buffers(&mut self, list: impl Iterator<Item = ibv_sge>) {
        let start = self.buffers.len();
        self.buffers.extend(list);
        let buffers = start..self.buffers.len();
        if let Some(last) = self.last() {
            last.buffers = buffers;
            last.inline = None;
            last.request.send_flags &= !send_flags::INLINE;
        }
    }

    /// Inline data are copied now: the program may change them as soon as the call returns.
    fn set_inline<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) {
        let start = self.bytes.len();
        for piece in pieces {
            self.bytes.extend_from_slice(piece);
        }
        let inline = start..self.bytes.len();
        if let Some(last) = self.last() {
            last.inline = Some(inline);
            last.request.send_flags |= send_flags::INLINE;
        }
    }

    /// The requests as a chain, which lives as long as the batch is left alone.
    pub fn chain(&mut self) -> Result<*mut ibv_send_wr, Errno> {
        if let Some(mistake) = self.mistake {
            return Err(mistake);
        }
        let too_long = |_| Errno(libc::EINVAL);
        for collected in &mut self.requests {
            if let Some(inline) = &collected.inline {
                let start = self.buffers.len();
                let addr = self.bytes[inline.clone()].as_ptr() as u64;
                let length = u32::try_from(inline.len()).map_err(too_long)?;
                self.buffers.push(ibv_sge { addr, length, lkey: 0 });
                collected.buffers = start..start + 1;
            }
        }
        let mut next = ptr::null_mut();
        for collected in self.requests.iter_mut().rev() {
            let buffers = &self.buffers[collected.buffers.clone()];
            collected.request.sg_list = buffers.as_ptr();
            collected.request.num_sge = c_int::try_from(buffers.len()).map_err(too_long)?;
            collected.request.next = next;
            next = &raw mut collected.request;
        }
        Ok(next)
    }
}

/// The operations that a queue pair of this type can be made for.
fn possible(qp_type: u32) -> u64 {
    let one_way = send_ops::RDMA_WRITE | send_ops::RDMA_WRITE_WITH_IMM | send_ops::SEND | send_ops::SEND_WITH_IMM;
    let fetching = send_ops::RDMA_READ | send_ops::ATOMIC_CMP_AND_SWP | send_ops::ATOMIC_FETCH_AND_ADD;
    let keys = send_ops::BIND_MW | send_ops::LOCAL_INV;
    match qp_type {
        QPT_RC | QPT_XRC_SEND => one_way | fetching | keys | send_ops::SEND_WITH_INV,
        QPT_UC => one_way | keys,
        QPT_UD => send_ops::SEND | send_ops::SEND_WITH_IMM,
        _ => 0,
    }
}

/// # Safety
/// The context is live and ours, and the attributes' objects are live.
unsafe fn create(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: per contract.
    let wanted = unsafe { &*attr };
    let mask = wanted.comp_mask;
    if wanted.qp_type == QPT_XRC_RECV && mask & qp_init::XRCD != 0 {
        if mask & !(qp_init::XRCD | qp_init::PD) != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        // SAFETY: per contract.
        return unsafe { crate::xrc::create_target(context, wanted) };
    }
    // SAFETY: per contract.
    if mask & qp_init::PD == 0 || !unsafe { own_object(wanted.pd) && (*wanted.pd).context == context } {
        return Err(Errno(libc::EINVAL));
    }
    if mask & !(qp_init::PD | qp_init::CREATE_FLAGS | qp_init::SEND_OPS_FLAGS) != 0
        || (mask & qp_init::CREATE_FLAGS != 0 && wanted.create_flags != 0)
    {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let is_extended = mask & qp_init::SEND_OPS_FLAGS != 0;
    if is_extended && wanted.send_ops_flags & !possible(wanted.qp_type) != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    // SAFETY: per contract; the attributes begin as the plain ones do.
    unsafe { qp::create(wanted.pd, attr.cast(), is_extended) }
}

/// `ibv_create_qp_ex`, called through the context.
///
/// # Safety
/// The context is live and ours, and the attributes valid.
pub unsafe extern "C" fn create_qp_ex(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    if attr.is_null() {
        return null(libc::EINVAL);
    }
    // SAFETY: per contract.
    pointer(unsafe { create(context, attr) })
}

/// The functions by which programs post.
pub fn extend(qp_base: ibv_qp) -> ibv_qp_ex {
    ibv_qp_ex {
        qp_base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp,
        wr_atomic_fetch_add,
        wr_bind_mw,
        wr_local_inv,
        wr_rdma_read,
        wr_rdma_write,
        wr_rdma_write_imm,
        wr_send,
        wr_send_imm,
        wr_send_inv,
        wr_send_tso: ptr::null(),
        wr_set_ud_addr,
        wr_set_xrc_srqn,
        wr_set_inline_data,
        wr_set_inline_data_list,
        wr_set_sge,
        wr_set_sge_list,
        wr_start,
        wr_complete,
        wr_abort,
        none: [ptr::null(); 2],
    }
}

/// The batch of a queue pair.
///
/// # Safety
/// The queue pair is live and ours, or [`collect_in`] was told of it, and this thread has started a batch.
unsafe fn batch<'a>(qp: *mut ibv_qp_ex) -> &'a mut Batch {
    // SAFETY: per contract.
    unsafe {
        #[cfg(not(versioned))]
        if !own_object(qp)
            && let Some(batch) = crate::shape::batch(qp)
        {
            return batch.get();
        }
        Qp::of(qp.cast()).batch().get()
    }
}

/// Lets a queue pair of a foreign device collect requests as ours do; three functions are its own.
///
/// # Safety
/// A live extended queue pair that nobody posts to yet. Its struct may be of an older version, and functions may be missing.
#[cfg(not(versioned))]
pub unsafe fn collect_in(
    qp: *mut ibv_qp_ex,
    wr_start: unsafe extern "C" fn(*mut ibv_qp_ex),
    wr_complete: unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int,
    wr_abort: unsafe extern "C" fn(*mut ibv_qp_ex),
) {
    // SAFETY: per contract; all versions have these fields.
    unsafe {
        (*qp).wr_atomic_cmp_swp = wr_atomic_cmp_swp;
        (*qp).wr_atomic_fetch_add = wr_atomic_fetch_add;
        (*qp).wr_bind_mw = wr_bind_mw;
        (*qp).wr_local_inv = wr_local_inv;
        (*qp).wr_rdma_read = wr_rdma_read;
        (*qp).wr_rdma_write = wr_rdma_write;
        (*qp).wr_rdma_write_imm = wr_rdma_write_imm;
        (*qp).wr_send = wr_send;
        (*qp).wr_send_imm = wr_send_imm;
        (*qp).wr_send_inv = wr_send_inv;
        (*qp).wr_set_ud_addr = wr_set_ud_addr;
        (*qp).wr_set_xrc_srqn = wr_set_xrc_srqn;
        (*qp).wr_set_inline_data = wr_set_inline_data;
        (*qp).wr_set_inline_data_list = wr_set_inline_data_list;
        (*qp).wr_set_sge = wr_set_sge;
        (*qp).wr_set_sge_list = wr_set_sge_list;
        (*qp).wr_start = wr_start;
        (*qp).wr_complete = wr_complete;
        (*qp).wr_abort = wr_abort;
    }
}

/// # Safety
/// The queue pair is live and ours.
unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: per contract.
    unsafe { Qp::of(qp.cast()) }.batch().take();
    // SAFETY: just taken.
    unsafe { batch(qp) }.clear();
}

/// # Safety
/// The queue pair is live and ours, and this thread has started a batch.
unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: per contract.
    let (ours, context, batch) = unsafe { (Qp::of(qp.cast()), Context::of((*qp).qp_base.context), batch(qp)) };
    // SAFETY: the program vouches for the buffers that it named.
    let result = batch.chain().and_then(|first| unsafe { post_together(context, ours, first) });
    ours.batch().give_back();
    code(result)
}

/// # Safety
/// The queue pair is live and ours, and this thread has started a batch.
unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: per contract.
    unsafe { Qp::of(qp.cast()) }.batch().give_back();
}

/// Starts a request, with the number and flags that the program has put into the queue pair.
///
/// # Safety
/// The queue pair is live and ours, and this thread has started a batch.
unsafe fn start(qp: *mut ibv_qp_ex, opcode: u32, fill: impl FnOnce(&mut ibv_send_wr)) {
    // SAFETY: per contract; the program writes these two fields itself, in this thread.
    let (wr_id, send_flags) = unsafe { ((&raw const (*qp).wr_id).read(), (&raw const (*qp).wr_flags).read()) };
    // The flag says how a program hands data over, which here the setters say.
    let mut request = ibv_send_wr { wr_id, opcode, send_flags: send_flags & !send_flags::INLINE, ..ibv_send_wr::default() };
    fill(&mut request);
    // SAFETY: per contract.
    unsafe { batch(qp) }.push(request);
}

/// Two 32-bit words as they lie in memory.
fn two_words(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// Defines functions that start a request.
macro_rules! starters {
    ($($name:ident($($arg:ident: $type:ty),*) = $opcode:expr, |$request:ident| $fill:block;)*) => {
        $(
            /// # Safety
            /// The queue pair is live and ours, and this thread has started a batch.
            unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: $type)*) {
                // SAFETY: per contract.
                unsafe { start(qp, $opcode, |$request| $fill) };
            }
        )*
    };
}

starters! {
    wr_send() = opcode::SEND, |_request| {};
    wr_send_imm(imm: u32) = opcode::SEND_WITH_IMM, |request| { request.imm = imm.to_ne_bytes(); };
    wr_send_inv(rkey: u32) = opcode::SEND_WITH_INV, |request| { request.imm = rkey.to_ne_bytes(); };
    wr_local_inv(rkey: u32) = opcode::LOCAL_INV, |request| { request.imm = rkey.to_ne_bytes(); };
    wr_rdma_write(rkey: u32, remote_addr: u64) = opcode::RDMA_WRITE, |request| {
        request.remote_addr = remote_addr;
        request.rkey_or_compare_add = two_words(rkey, 0);
    };
    wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm: u32) = opcode::RDMA_WRITE_WITH_IMM, |request| {
        request.remote_addr = remote_addr;
        request.rkey_or_compare_add = two_words(rkey, 0);
        request.imm = imm.to_ne_bytes();
    };
    wr_rdma_read(rkey: u32, remote_addr: u64) = opcode::RDMA_READ, |request| {
        request.remote_addr = remote_addr;
        request.rkey_or_compare_add = two_words(rkey, 0);
    };
    wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64) = opcode::ATOMIC_CMP_AND_SWP, |request| {
        request.remote_addr = remote_addr;
        request.rkey_or_compare_add = compare;
        request.swap = swap;
        request.atomic_rkey = rkey;
    };
    wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64) = opcode::ATOMIC_FETCH_AND_ADD, |request| {
        request.remote_addr = remote_addr;
        request.rkey_or_compare_add = add;
        request.atomic_rkey = rkey;
    };
    wr_bind_mw(window: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) = opcode::BIND_MW, |request| {
        request.mw = window;
        request.mw_rkey = rkey;
        request.bind_info = *info;
    };
}

/// # Safety
/// The queue pair is live and ours, and this thread has started a request.
unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut c_void, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: per contract.
    if let Some(last) = unsafe { batch(qp) }.last() {
        last.request.remote_addr = ah as u64;
        last.request.rkey_or_compare_add = two_words(remote_qpn, remote_qkey);
    }
}

/// # Safety
/// The queue pair is live and ours, and this thread has started a request.
unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: per contract.
    if let Some(last) = unsafe { batch(qp) }.last() {
        last.request.remote_srqn = remote_srqn;
    }
}

/// # Safety
/// The queue pair is live and ours, and this thread has started a request.
unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: per contract.
    unsafe { batch(qp) }.set_buffers([ibv_sge { addr, length, lkey }].into_iter());
}

/// A list of the program's.
///
/// # Safety
/// There are `count` entries at `list`.
unsafe fn list<'a, T>(list: *const T, count: usize) -> &'a [T] {
    // SAFETY: per contract; a list without entries may be anywhere.
    if count == 0 { &[] } else { unsafe { slice::from_raw_parts(list, count) } }
}

/// # Safety
/// The queue pair is live and ours, this thread has started a request, and the list has this many entries.
unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, buffers: *const ibv_sge) {
    // SAFETY: per contract.
    unsafe { batch(qp).set_buffers(list(buffers, count).iter().copied()) };
}

/// # Safety
/// The queue pair is live and ours, this thread has started a request, and the data are readable.
unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *const c_void, length: usize) {
    // SAFETY: per contract.
    unsafe { batch(qp).set_inline([list(addr.cast(), length)].into_iter()) };
}

/// # Safety
/// The queue pair is live and ours, this thread has started a request, and the list and its data are readable.
unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, pieces: *const ibv_data_buf) {
    // SAFETY: per contract.
    unsafe { batch(qp).set_inline(list(pieces, count).iter().map(|piece| list(piece.addr.cast(), piece.length))) };
}

verbs! {
    /// The extended posting interface, of a queue pair that was made with one.
    fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex,
        if own_object(qp) => { if Qp::of(qp).is_extended() { qp.cast() } else { ptr::null_mut() } } else null(libc::EINVAL);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(wr_id: u64) -> ibv_send_wr {
        ibv_send_wr { wr_id, ..ibv_send_wr::default() }
    }

    #[test]
    fn a_chain_names_the_buffers_of_each_request() {
        let mut batch = Batch::default();
        batch.push(request(1));
        batch.set_buffers([1, 2].into_iter().map(|addr| ibv_sge { addr, length: 3, lkey: 4 }));
        batch.push(request(2));
        batch.set_inline([b"ab".as_slice(), b"c"].into_iter());
        batch.push(request(3));
        let first = batch.chain().unwrap();
        // SAFETY: the chain of a batch that is left alone.
        unsafe {
            assert_eq!(((*first).wr_id, (*first).num_sge, (*(*first).sg_list.add(1)).addr), (1, 2, 2));
            let second = (*first).next;
            assert_eq!(((*second).wr_id, (*second).send_flags, (*(*second).sg_list).length), (2, send_flags::INLINE, 3));
            assert_eq!(slice::from_raw_parts((*(*second).sg_list).addr as *const u8, 3), b"abc");
            let third = (*second).next;
            assert_eq!(((*third).wr_id, (*third).num_sge), (3, 0));
            assert!((*third).next.is_null());
        }
    }

    #[test]
    fn buffers_without_a_request_are_a_mistake() {
        let mut batch = Batch::default();
        batch.set_inline([b"x".as_slice()].into_iter());
        batch.push(request(1));
        assert_eq!(batch.chain(), Err(Errno(libc::EINVAL)));
        batch.clear();
        assert_eq!(batch.chain(), Ok(ptr::null_mut()));
    }
}
