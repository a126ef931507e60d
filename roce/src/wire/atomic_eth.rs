//! Atomic extended transport header (IBA 9.3.4).

use crate::Rkey;

/// Operands of an atomic request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Address of the 64-bit word; whether it is a multiple of 8 is for the responder to check.
    pub va: u64,
    /// The region.
    pub rkey: Rkey,
    /// Value to store (compare-and-swap) or to add (fetch-and-add).
    pub swap_add: u64,
    /// Value to compare with; not used by fetch-and-add.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub(super) const LEN: usize = 28;

    pub(super) fn emit(&self, out: &mut [u8; Self::LEN]) {
        out[..8].copy_from_slice(&self.va.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        out[12..20].copy_from_slice(&self.swap_add.to_be_bytes());
        out[20..].copy_from_slice(&self.compare.to_be_bytes());
    }

    pub(super) fn parse(bytes: &[u8; Self::LEN]) -> AtomicEth {
        let u64_at = |at: usize| {
            let mut field = [0; 8];
            field.copy_from_slice(&bytes[at..at + 8]);
            u64::from_be_bytes(field)
        };
        let rkey = Rkey(u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]));
        AtomicEth { va: u64_at(0), rkey, swap_add: u64_at(12), compare: u64_at(20) }
    }
}
