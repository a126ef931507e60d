//! All transport headers of one packet together.

use super::opcode::ext;
use super::{Aeth, AtomicEth, BTH_LEN, Bth, Deth, ICRC_LEN, Opcode, Reth, WireError};
use crate::{Rkey, Srqn};
use core::ops::Range;

/// The headers between UDP and payload: BTH and whatever extension headers its opcode demands. A field is `Some` exactly
/// if the opcode demands that header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Base transport header.
    pub bth: Bth,
    /// XRCETH: the shared receive queue that a request of an extended reliable connection names.
    pub xrceth: Option<Srqn>,
    /// WRITE first and only, READ request.
    pub reth: Option<Reth>,
    /// Acknowledges, and READ responses except middle ones.
    pub aeth: Option<Aeth>,
    /// Compare-and-swap, fetch-and-add.
    pub atomic: Option<AtomicEth>,
    /// Atomic acknowledge: the value before the operation.
    pub atomic_ack: Option<u64>,
    /// Immediate data, the four bytes as on the wire.
    pub imm: Option<[u8; 4]>,
    /// The key that a SEND with invalidate names.
    pub ieth: Option<Rkey>,
    /// Datagrams.
    pub deth: Option<Deth>,
}

impl Headers {
    /// A BTH without extension headers; to be completed with those that the opcode demands.
    pub const fn new(bth: Bth) -> Headers {
        Headers { bth, xrceth: None, reth: None, aeth: None, atomic: None, atomic_ack: None, imm: None, ieth: None, deth: None }
    }

    /// Bytes that [`Headers::emit`] writes.
    pub fn len(&self) -> usize {
        self.bth.opcode.headers_len()
    }

    /// Never true: there is always a BTH.
    pub fn is_empty(&self) -> bool {
        false
    }

    fn extensions(&self) -> u8 {
        let bit = |present, bit| if present { bit } else { 0 };
        bit(self.xrceth.is_some(), ext::XRC)
            | bit(self.deth.is_some(), ext::DETH)
            | bit(self.reth.is_some(), ext::RETH)
            | bit(self.aeth.is_some(), ext::AETH)
            | bit(self.atomic.is_some(), ext::ATOMIC)
            | bit(self.atomic_ack.is_some(), ext::ATOMIC_ACK)
            | bit(self.imm.is_some(), ext::IMM)
            | bit(self.ieth.is_some(), ext::IETH)
    }

    /// Writes the headers to the start of `buf` and returns how many bytes that took ([`Headers::len`]).
    ///
    /// # Panics
    /// If `buf` is too short, if the extension headers are not those that the opcode demands, or if a value does not fit
    /// its field ([`Bth::pad`], [`super::Syndrome`]): all faults of the caller.
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let opcode = self.bth.opcode;
        assert!(
            self.extensions() == opcode.extensions(),
            "extension headers {:#04x} do not match {opcode:?}, which demands {:#04x}",
            self.extensions(),
            opcode.extensions()
        );
        let len = self.len();
        let mut rest = &mut buf[..len];
        self.bth.emit(opcode.code(), take_mut(&mut rest));
        if let Some(srqn) = self.xrceth {
            *take_mut(&mut rest) = srqn.get().to_be_bytes();
        }
        if let Some(deth) = &self.deth {
            deth.emit(take_mut(&mut rest));
        }
        if let Some(reth) = &self.reth {
            reth.emit(take_mut(&mut rest));
        }
        if let Some(aeth) = &self.aeth {
            aeth.emit(take_mut(&mut rest));
        }
        if let Some(atomic) = &self.atomic {
            atomic.emit(take_mut(&mut rest));
        }
        if let Some(value) = self.atomic_ack {
            *take_mut(&mut rest) = value.to_be_bytes();
        }
        if let Some(imm) = self.imm {
            *take_mut(&mut rest) = imm;
        }
        if let Some(rkey) = self.ieth {
            *take_mut(&mut rest) = rkey.0.to_be_bytes();
        }
        len
    }

    /// Parses a UDP payload: from BTH to ICRC. The range is that of the payload, without padding and ICRC.
    ///
    /// The ICRC itself is not checked, see [`super::icrc::check`].
    ///
    /// # Errors
    /// If the packet is not well formed: see [`WireError`].
    pub fn parse(udp_payload: &[u8]) -> Result<(Headers, Range<usize>), WireError> {
        let len = udp_payload.len();
        let truncated = |need| WireError::Truncated { len, need };
        let Some((bth, mut rest)) = udp_payload.split_first_chunk::<BTH_LEN>() else {
            return Err(truncated(BTH_LEN + ICRC_LEN));
        };
        let bth = Bth::parse(bth, Opcode::decode)?;
        let opcode = bth.opcode;
        let start = opcode.headers_len();
        let trailer = usize::from(bth.pad) + ICRC_LEN;
        // Headers and ICRC are multiples of 4, so that this is also a statement about payload and padding.
        let end = match len.checked_sub(trailer) {
            Some(end) if end >= start => end,
            _ => return Err(truncated(start + trailer)),
        };
        if !len.is_multiple_of(4) {
            return Err(WireError::Unaligned(len));
        }
        if !opcode.has_payload() && start + ICRC_LEN != len {
            return Err(WireError::UnexpectedPayload(opcode, len - start - ICRC_LEN));
        }
        let mut headers = Headers::new(bth);
        let set = opcode.extensions();
        let short = truncated(start + trailer);
        if set & ext::XRC != 0 {
            headers.xrceth = Some(Srqn::new(u32::from_be_bytes(*take(&mut rest).ok_or(short)?)));
        }
        if set & ext::DETH != 0 {
            headers.deth = Some(Deth::parse(take(&mut rest).ok_or(short)?));
        }
        if set & ext::RETH != 0 {
            headers.reth = Some(Reth::parse(take(&mut rest).ok_or(short)?));
        }
        if set & ext::AETH != 0 {
            headers.aeth = Some(Aeth::parse(take(&mut rest).ok_or(short)?)?);
        }
        if set & ext::ATOMIC != 0 {
            headers.atomic = Some(AtomicEth::parse(take(&mut rest).ok_or(short)?));
        }
        if set & ext::ATOMIC_ACK != 0 {
            headers.atomic_ack = Some(u64::from_be_bytes(*take(&mut rest).ok_or(short)?));
        }
        if set & ext::IMM != 0 {
            headers.imm = Some(*take(&mut rest).ok_or(short)?);
        }
        if set & ext::IETH != 0 {
            headers.ieth = Some(Rkey(u32::from_be_bytes(*take(&mut rest).ok_or(short)?)));
        }
        Ok((headers, start..end))
    }
}

impl From<Bth> for Headers {
    fn from(bth: Bth) -> Headers {
        Headers::new(bth)
    }
}

/// Splits the next `N` bytes off.
pub(super) fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(head)
}

/// Splits the next `N` bytes off a buffer that was cut to the right length before.
pub(super) fn take_mut<'a, const N: usize>(rest: &mut &'a mut [u8]) -> &'a mut [u8; N] {
    let (head, tail) = core::mem::take(rest).split_first_chunk_mut::<N>().expect("length comes from the opcode");
    *rest = tail;
    head
}
