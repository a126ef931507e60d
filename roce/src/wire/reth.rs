//! RDMA extended transport header (IBA 9.3.3).

use crate::Rkey;

/// Where a WRITE goes to, or a READ comes from. It covers the whole message, not one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Address of the first byte, in the region's address space.
    pub va: u64,
    /// The region.
    pub rkey: Rkey,
    /// Bytes of the message. The architecture allows 0 to 2^31; the field holds more, and nothing here checks it.
    pub length: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub(super) const LEN: usize = 16;

    pub(super) fn emit(&self, out: &mut [u8; Self::LEN]) {
        out[..8].copy_from_slice(&self.va.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        out[12..].copy_from_slice(&self.length.to_be_bytes());
    }

    pub(super) fn parse(bytes: &[u8; Self::LEN]) -> Reth {
        // One 128-bit load holds all fields in order.
        let word = u128::from_be_bytes(*bytes);
        Reth { va: (word >> 64) as u64, rkey: Rkey((word >> 32) as u32), length: word as u32 }
    }
}
