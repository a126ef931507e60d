//! Send and receive queues: rings of fixed entries with a flat array of buffers, allocated once.

use super::access::total_length;
use crate::error::PostError;
use crate::limits::MAX_MSG;
use crate::work::{LocalBuffer, RecvRequest, SendFlags, SendOp};
use alloc::boxed::Box;
use alloc::vec;
use roce::{Lkey, Psn, Srqn};

/// A posted send request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWqe {
    pub wr_id: u64,
    pub op: SendOp,
    /// Bytes of the message.
    pub length: u32,
    /// PSN of the first packet, once the request was begun.
    pub first_psn: Psn,
    /// PSNs that the message takes.
    pub packets: u32,
    pub flags: SendFlags,
    /// The peer's shared receive queue, of an extended reliable connection.
    pub srqn: Option<Srqn>,
}

impl SendWqe {
    const EMPTY: SendWqe = SendWqe {
        wr_id: 0,
        op: SendOp::Send { imm: None, invalidate: None },
        length: 0,
        first_psn: Psn::new(0),
        packets: 1,
        flags: SendFlags::empty(),
        srqn: None,
    };

    /// Whether it is answered by data: a READ or an atomic.
    #[inline]
    pub fn is_fetch(&self) -> bool {
        matches!(self.op, SendOp::Read { .. } | SendOp::Atomic { .. })
    }

    /// PSN of the last packet; valid once begun.
    #[inline]
    pub fn last_psn(&self) -> Psn {
        self.first_psn.plus(self.packets - 1)
    }
}

/// A posted receive request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvWqe {
    pub wr_id: u64,
    /// Its count in the queue that it was posted to.
    pub index: u32,
    /// Bytes that fit, capped to what a message can have.
    pub length: u32,
}

impl RecvWqe {
    const EMPTY: RecvWqe = RecvWqe { wr_id: 0, index: 0, length: 0 };

    /// What a request for this queue becomes.
    ///
    /// # Errors
    /// `Invalid` for too many buffers or one that is not `Keyed`.
    #[inline]
    pub fn new(request: &RecvRequest<'_>, queue: &Ring<RecvWqe>) -> Result<RecvWqe, PostError> {
        let keyed = request.buffers.iter().all(|buffer| matches!(buffer, LocalBuffer::Keyed { .. }));
        if request.buffers.len() > queue.max_sge() || !keyed {
            return Err(PostError::Invalid);
        }
        // A message is never longer than MAX_MSG, so more room than that is the same.
        let length = total_length(request.buffers).min(MAX_MSG) as u32;
        Ok(RecvWqe { wr_id: request.wr_id, index: queue.tail, length })
    }
}

/// A ring of requests. Requests are named by their count since RESET, modulo 2^32: `head` is the oldest that is held, `tail`
/// the next to be posted.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    entries: Box<[(T, u16)]>,
    buffers: Box<[LocalBuffer]>,
    capacity: u32,
    max_sge: u32,
    pub head: u32,
    pub tail: u32,
}

impl Ring<SendWqe> {
    pub fn for_sends(capacity: u32, max_sge: u32) -> Self {
        Ring::new(capacity, max_sge, SendWqe::EMPTY)
    }
}

impl Ring<RecvWqe> {
    pub fn for_receives(capacity: u32, max_sge: u32) -> Self {
        Ring::new(capacity, max_sge, RecvWqe::EMPTY)
    }
}

impl<T: Copy> Ring<T> {
    fn new(capacity: u32, max_sge: u32, empty: T) -> Self {
        let slots = capacity.next_power_of_two() as usize;
        let no_buffer = LocalBuffer::Keyed { lkey: Lkey(0), addr: 0, len: 0 };
        Ring {
            entries: vec![(empty, 0); slots].into_boxed_slice(),
            buffers: vec![no_buffer; slots * max_sge as usize].into_boxed_slice(),
            capacity,
            max_sge,
            head: 0,
            tail: 0,
        }
    }

    /// A ring of another capacity with the same requests under the same counts. They fit.
    pub fn resized(&self, capacity: u32) -> Self {
        assert!(self.len() <= capacity, "{} requests for a ring of {capacity}", self.len());
        let mut other = Ring::new(capacity, self.max_sge, self.entries[0].0);
        (other.head, other.tail) = (self.head, self.tail);
        for n in 0..self.len() {
            let index = self.head.wrapping_add(n);
            other.put(index, *self.get(index), self.buffers(index));
        }
        other
    }

    #[inline]
    fn slot(&self, index: u32) -> usize {
        index as usize & (self.entries.len() - 1)
    }

    pub fn max_sge(&self) -> usize {
        self.max_sge as usize
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.len() >= self.capacity
    }

    pub fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Puts a request that was taken from here back before all others. There is room: it left some.
    pub fn push_front(&mut self, entry: T, buffers: &[LocalBuffer]) {
        assert!(!self.is_full() && buffers.len() <= self.max_sge());
        self.head = self.head.wrapping_sub(1);
        self.put(self.head, entry, buffers);
    }

    /// Appends a request. The caller has checked that there is room and that there are not too many buffers.
    #[inline]
    pub fn push(&mut self, entry: T, buffers: &[LocalBuffer]) {
        assert!(!self.is_full() && buffers.len() <= self.max_sge());
        self.put(self.tail, entry, buffers);
        self.tail = self.tail.wrapping_add(1);
    }

    #[inline]
    fn put(&mut self, index: u32, entry: T, buffers: &[LocalBuffer]) {
        let slot = self.slot(index);
        self.entries[slot] = (entry, buffers.len() as u16);
        let start = slot * self.max_sge();
        self.buffers[start..start + buffers.len()].copy_from_slice(buffers);
    }

    #[inline]
    pub fn get(&self, index: u32) -> &T {
        &self.entries[self.slot(index)].0
    }

    #[inline]
    pub fn get_mut(&mut self, index: u32) -> &mut T {
        let slot = self.slot(index);
        &mut self.entries[slot].0
    }

    #[inline]
    pub fn buffers(&self, index: u32) -> &[LocalBuffer] {
        let slot = self.slot(index);
        let start = slot * self.max_sge();
        &self.buffers[start..start + self.entries[slot].1 as usize]
    }

    /// The oldest request.
    #[inline]
    pub fn front(&self) -> Option<&T> {
        if self.is_empty() { None } else { Some(self.get(self.head)) }
    }

    /// Lets go of the oldest request and returns its count.
    #[inline]
    pub fn pop(&mut self) -> u32 {
        let index = self.head;
        self.head = index.wrapping_add(1);
        index
    }

    pub fn clear(&mut self) {
        (self.head, self.tail) = (0, 0);
    }
}
