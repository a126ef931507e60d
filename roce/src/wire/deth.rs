//! Datagram extended transport header (IBA 9.3.2).

use crate::Qpn;

/// Who sends a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Queue key, to be compared with that of the receiving queue pair.
    pub qkey: u32,
    /// Queue pair of the sender.
    pub src_qpn: Qpn,
}

impl Deth {
    /// Bytes on the wire.
    pub(super) const LEN: usize = 8;

    pub(super) fn emit(&self, out: &mut [u8; Self::LEN]) {
        out[..4].copy_from_slice(&self.qkey.to_be_bytes());
        out[4..].copy_from_slice(&self.src_qpn.get().to_be_bytes());
    }

    pub(super) fn parse(bytes: &[u8; Self::LEN]) -> Deth {
        let word = u64::from_be_bytes(*bytes);
        Deth { qkey: (word >> 32) as u32, src_qpn: Qpn::new(word as u32) }
    }
}
