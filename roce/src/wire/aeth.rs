//! ACK extended transport header (IBA 9.3.5, 9.7.5.2).

use super::WireError;

/// Why a responder refuses a request (IBA table 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// Packets are missing before this one.
    PsnSequenceError = 0,
    /// The request makes no sense here.
    InvalidRequest = 1,
    /// Key, range or rights are wrong.
    RemoteAccessError = 2,
    /// The responder cannot go on.
    RemoteOperationalError = 3,
    /// Reliable datagram only.
    InvalidRdRequest = 4,
}

/// The syndrome byte: two bits of type, five of value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Everything up to the PSN of the packet arrived.
    Ack {
        /// Credit count code, 0 to 31; 31 stands for "no limit given".
        credits: u8,
    },
    /// The receiver has no receive posted.
    RnrNak {
        /// Code of the time to wait, 0 to 31 (IBA table 45).
        timer: u8,
    },
    /// Refused.
    Nak(NakCode),
}

impl Syndrome {
    /// The byte on the wire.
    ///
    /// # Panics
    /// If a credit or timer code is above 31.
    pub const fn code(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => {
                assert!(credits < 32, "credit code above 31");
                credits
            }
            Syndrome::RnrNak { timer } => {
                assert!(timer < 32, "RNR timer code above 31");
                0x20 | timer
            }
            Syndrome::Nak(code) => 0x60 | code as u8,
        }
    }

    /// The syndrome with this code.
    ///
    /// # Errors
    /// [`WireError::Syndrome`] for reserved types and NAK codes.
    pub const fn from_code(code: u8) -> Result<Syndrome, WireError> {
        let value = code & 0x1F;
        match code >> 5 {
            0b000 => Ok(Syndrome::Ack { credits: value }),
            0b001 => Ok(Syndrome::RnrNak { timer: value }),
            0b011 => match value {
                0 => Ok(Syndrome::Nak(NakCode::PsnSequenceError)),
                1 => Ok(Syndrome::Nak(NakCode::InvalidRequest)),
                2 => Ok(Syndrome::Nak(NakCode::RemoteAccessError)),
                3 => Ok(Syndrome::Nak(NakCode::RemoteOperationalError)),
                4 => Ok(Syndrome::Nak(NakCode::InvalidRdRequest)),
                _ => Err(WireError::Syndrome(code)),
            },
            _ => Err(WireError::Syndrome(code)),
        }
    }
}

/// The acknowledge header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Outcome.
    pub syndrome: Syndrome,
    /// Message sequence number: count of messages completed by the responder, modulo 2^24. Higher bits are not sent.
    pub msn: u32,
}

impl Aeth {
    /// Bytes on the wire.
    pub(super) const LEN: usize = 4;

    pub(super) fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = self.msn.to_be_bytes();
        out[0] = self.syndrome.code();
    }

    pub(super) fn parse(bytes: &[u8; Self::LEN]) -> Result<Aeth, WireError> {
        let [syndrome, msn0, msn1, msn2] = *bytes;
        Ok(Aeth { syndrome: Syndrome::from_code(syndrome)?, msn: u32::from_be_bytes([0, msn0, msn1, msn2]) })
    }
}
