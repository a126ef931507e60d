//! Base transport header (IBA 9.2).

use super::{BTH_LEN, Opcode, WireError};
use crate::{Psn, Qpn};

/// The base transport header. Reserved bits are sent as zero and not looked at on receipt; the version is always 0. Opcodes are
/// those of the architecture, or of an extension in the manufacturer's range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth<O = Opcode> {
    /// What the packet is.
    pub opcode: O,
    /// Solicited event: the receiver's completion shall raise an event even if it waits for solicited ones only.
    pub solicited: bool,
    /// Path migration state of the sender; peers send either value.
    pub mig_req: bool,
    /// Bytes of padding between payload and ICRC, 0 to 3.
    pub pad: u8,
    /// Partition key.
    pub pkey: u16,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// Queue pair of the receiver.
    pub dest_qpn: Qpn,
    /// The receiver shall acknowledge this packet.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// The pad count for a payload of `len` bytes: what is missing to a multiple of 4.
    pub const fn pad_for(len: usize) -> u8 {
        (len.wrapping_neg() & 3) as u8
    }
}

impl<O> Bth<O> {
    /// The header of an ordinary packet of the default partition: nothing is asked for, and nothing marked. The pad count is still to
    /// be set.
    pub const fn new(opcode: O, dest_qpn: Qpn, psn: Psn) -> Self {
        Bth {
            opcode,
            solicited: false,
            mig_req: true,
            pad: 0,
            pkey: 0xFFFF,
            fecn: false,
            becn: false,
            dest_qpn,
            ack_req: false,
            psn,
        }
    }

    pub(super) const SOLICITED: u8 = 1 << 7;
    pub(super) const MIG_REQ: u8 = 1 << 6;
    pub(super) const FECN: u8 = 1 << 7;
    pub(super) const BECN: u8 = 1 << 6;
    pub(super) const ACK_REQ: u8 = 1 << 7;

    /// Writes the header, with the opcode's `code`.
    ///
    /// # Panics
    /// If the pad count is above 3.
    pub(super) fn emit(&self, code: u8, out: &mut [u8; BTH_LEN]) {
        assert!(self.pad < 4, "pad count {} is above 3", self.pad);
        let flag = |set, bit| if set { bit } else { 0 };
        out[0] = code;
        out[1] = flag(self.solicited, Self::SOLICITED) | flag(self.mig_req, Self::MIG_REQ) | self.pad << 4;
        out[2..4].copy_from_slice(&self.pkey.to_be_bytes());
        out[4..8].copy_from_slice(&self.dest_qpn.get().to_be_bytes());
        out[4] = flag(self.fecn, Self::FECN) | flag(self.becn, Self::BECN);
        out[8..12].copy_from_slice(&self.psn.get().to_be_bytes());
        out[8] = flag(self.ack_req, Self::ACK_REQ);
    }

    pub(super) fn parse(bytes: &[u8; BTH_LEN], decode: fn(u8) -> Result<O, WireError>) -> Result<Bth<O>, WireError> {
        let [code, flags, pkey0, pkey1, congestion, qp0, qp1, qp2, ack, psn0, psn1, psn2] = *bytes;
        let version = flags & 0x0F;
        if version != 0 {
            return Err(WireError::Version(version));
        }
        Ok(Bth {
            opcode: decode(code)?,
            solicited: flags & Self::SOLICITED != 0,
            mig_req: flags & Self::MIG_REQ != 0,
            pad: flags >> 4 & 0x3,
            pkey: u16::from_be_bytes([pkey0, pkey1]),
            fecn: congestion & Self::FECN != 0,
            becn: congestion & Self::BECN != 0,
            dest_qpn: Qpn::new(u32::from_be_bytes([0, qp0, qp1, qp2])),
            ack_req: ack & Self::ACK_REQ != 0,
            psn: Psn::new(u32::from_be_bytes([0, psn0, psn1, psn2])),
        })
    }
}
