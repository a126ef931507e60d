//! From what a request names to final memory, with every check on the way. Both paths use these functions, so that the wire
//! and the local path can never differ in what they allow.

use super::Qp;
use crate::limits::MAX_MSG;
use crate::vendor_err;
use crate::work::{LocalBuffer, PdId, Status};
use emtt::{Access, Segment, Table, Via};
use roce::Rkey;
use roce::wire::NakCode;

/// Why a responder does not execute a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No receive is posted: try again later.
    NotReady,
    /// The request fails, and the responder's queue pair with it.
    Nak {
        code: NakCode,
        /// Status and finer cause for the receive that the message was filling.
        receive: Option<(Status, u32)>,
    },
}

impl Refusal {
    pub const INVALID: Refusal = Refusal::Nak { code: NakCode::InvalidRequest, receive: None };
    pub const ACCESS: Refusal = Refusal::Nak { code: NakCode::RemoteAccessError, receive: None };

    /// The responder's own memory or receive is bad.
    pub const fn operational(cause: u32) -> Refusal {
        Refusal::Nak { code: NakCode::RemoteOperationalError, receive: Some((Status::LocalProtectionError, cause)) }
    }
}

/// A local buffer is not a range of a region of this protection domain with the rights needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadBuffer;

/// Calls `f` with the memory behind bytes `offset..offset + len` of a scatter/gather list. Nothing, not even a key, is looked
/// at outside that range. Fails if a buffer is not what its key allows, or if the list is shorter than the range.
#[inline]
pub(crate) fn for_each_segment(
    table: &Table,
    pd: PdId,
    buffers: &[LocalBuffer],
    range: (u64, u64),
    needs: Access,
    mut f: impl FnMut(Segment),
) -> Result<(), BadBuffer> {
    let (mut offset, mut len) = range;
    for buffer in buffers {
        if len == 0 {
            return Ok(());
        }
        let available = length(buffer);
        if offset >= available {
            offset -= available;
            continue;
        }
        let take = len.min(available - offset);
        match *buffer {
            LocalBuffer::Keyed { lkey, addr, .. } => {
                let addr = addr.checked_add(offset).ok_or(BadBuffer)?;
                let segments = table.translate(lkey.0, pd, addr, take, needs).map_err(|_| BadBuffer)?;
                segments.for_each(&mut f);
            }
            LocalBuffer::Direct(segment) => f(Segment { owner: segment.owner, addr: segment.addr + offset, len: take }),
        }
        offset = 0;
        len -= take;
    }
    if len == 0 { Ok(()) } else { Err(BadBuffer) }
}

#[inline]
fn length(buffer: &LocalBuffer) -> u64 {
    match *buffer {
        LocalBuffer::Keyed { len, .. } => u64::from(len),
        LocalBuffer::Direct(segment) => segment.len,
    }
}

/// Bytes of a whole list.
#[inline]
pub(crate) fn total_length(buffers: &[LocalBuffer]) -> u64 {
    buffers.iter().fold(0, |sum: u64, buffer| sum.saturating_add(length(buffer)))
}

/// Remote memory that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    /// Protection domain that `rkey` counts in.
    pub pd: PdId,
    pub addr: u64,
    pub rkey: Rkey,
    pub len: u32,
}

impl Qp {
    /// How peers reach this side's memory.
    #[inline]
    pub fn via(&self) -> Via {
        self.via_pd(self.pd)
    }

    #[inline]
    fn via_pd(&self, pd: PdId) -> Via {
        Via { pd, qp: self.qpn.get() }
    }

    /// Memory that a request names now.
    #[inline]
    pub fn remote(&self, addr: u64, rkey: Rkey, len: u32) -> Remote {
        Remote { pd: self.pd, addr, rkey, len }
    }

    /// Whether the connection lets the peer do what `right` stands for, and to so many bytes.
    #[inline]
    pub fn check_connection(&self, right: Access, len: u32) -> Result<(), Refusal> {
        if self.attr.access.contains(right) && u64::from(len) <= MAX_MSG { Ok(()) } else { Err(Refusal::INVALID) }
    }

    /// Whether the region or window lets the peer do what `right` stands for to all of `remote`. Key and address of an empty range are not
    /// looked at (IBA 9.7.5.2.3: a zero-length request does not check the R_Key).
    #[inline]
    pub fn check_region(&self, table: &Table, right: Access, remote: Remote) -> Result<(), Refusal> {
        if remote.len == 0 {
            return Ok(());
        }
        let found = table.translate_remote(remote.rkey.0, self.via_pd(remote.pd), remote.addr, u64::from(remote.len), right);
        found.map(drop).map_err(|_| Refusal::ACCESS)
    }

    /// Calls `f` with the memory behind `remote`.
    #[inline]
    pub fn remote_segments(&self, table: &Table, right: Access, remote: Remote, f: impl FnMut(Segment)) -> Result<(), Refusal> {
        if remote.len == 0 {
            return Ok(());
        }
        let segments = table.translate_remote(remote.rkey.0, self.via_pd(remote.pd), remote.addr, u64::from(remote.len), right);
        segments.map_err(|_| Refusal::ACCESS)?.for_each(f);
        Ok(())
    }

    /// The word of an atomic, or why it may not be touched: it must be aligned, and atomics need a responder resource.
    pub fn atomic_target(&self, table: &Table, addr: u64, rkey: Rkey) -> Result<Segment, Refusal> {
        if !self.attr.access.contains(Access::REMOTE_ATOMIC) || self.attr.max_dest_rd_atomic == 0 || !addr.is_multiple_of(8) {
            return Err(Refusal::INVALID);
        }
        let mut found = None;
        self.remote_segments(table, Access::REMOTE_ATOMIC, self.remote(addr, rkey, 8), |segment| found = Some(segment))?;
        // A region may begin at any address of its owner, so an aligned remote address need not be an aligned word, and a word
        // may be cut in two runs. Neither can be done atomically.
        found.filter(|word| word.len == 8 && word.addr.is_multiple_of(8)).ok_or(Refusal::INVALID)
    }

    /// Whether the connection lets the peer READ so many bytes.
    pub fn begin_read(&self, len: u32) -> Result<(), Refusal> {
        if self.attr.max_dest_rd_atomic == 0 {
            return Err(Refusal::INVALID);
        }
        self.check_connection(Access::REMOTE_READ, len)
    }

    /// Whether the whole of the local buffers of send request `index` may be used as the request needs it.
    pub fn check_buffers(&self, table: &Table, index: u32) -> Result<(), BadBuffer> {
        let wqe = self.sq.get(index);
        for_each_segment(table, self.pd, self.sq.buffers(index), (0, u64::from(wqe.length)), local_right(wqe), |_| {})
    }
}

/// The right that a send request needs on its own buffers.
#[inline]
pub(crate) fn local_right(wqe: &super::SendWqe) -> Access {
    if wqe.is_fetch() { Access::LOCAL_WRITE } else { Access::empty() }
}

/// How a responder's NAK shows at the requester: status and finer cause.
pub(crate) fn nak_status(code: NakCode) -> (Status, u32) {
    match code {
        NakCode::InvalidRequest => (Status::RemoteInvalidRequestError, vendor_err::NAK_INVALID_REQUEST),
        NakCode::RemoteAccessError => (Status::RemoteAccessError, vendor_err::NAK_REMOTE_ACCESS),
        NakCode::RemoteOperationalError => (Status::RemoteOperationalError, vendor_err::NAK_REMOTE_OPERATIONAL),
        NakCode::PsnSequenceError | NakCode::InvalidRdRequest => (Status::RemoteOperationalError, vendor_err::NAK_UNKNOWN),
    }
}
