//! BTH opcodes: which exist, and what each demands (IBA 9.2.1, table 38; annex A14.3 for XRC, A17.9.2 for CNP).

use super::{AtomicEth, BTH_LEN, Deth, Reth, WireError};

/// Transport service of an opcode: its upper three bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
    /// Congestion notification, which belongs to no service.
    Cnp,
}

/// Operation of an opcode, whatever its place in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// SEND request.
    Send,
    /// RDMA WRITE request.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response.
    ReadResponse,
    /// Acknowledge, positive or negative.
    Ack,
    /// Acknowledge of an atomic, with the value before.
    AtomicAck,
    /// Compare-and-swap request.
    CompareSwap,
    /// Fetch-and-add request.
    FetchAdd,
    /// Congestion notification.
    Cnp,
}

/// Place of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// First of several.
    First,
    /// Neither first nor last.
    Middle,
    /// Last of several.
    Last,
    /// The only packet. Also READ requests, atomics, acknowledges and CNPs, which are never split.
    Only,
}

/// Extension headers, as a set of bits in the order in which they follow the BTH, but for the XRCETH, which comes first.
pub(super) mod ext {
    pub const DETH: u8 = 1;
    pub const RETH: u8 = 1 << 1;
    pub const AETH: u8 = 1 << 2;
    pub const ATOMIC: u8 = 1 << 3;
    pub const ATOMIC_ACK: u8 = 1 << 4;
    pub const IMM: u8 = 1 << 5;
    pub const IETH: u8 = 1 << 6;
    pub const XRC: u8 = 1 << 7;
    pub const NONE: u8 = 0;
}

/// Writes the table of opcodes once: enum, decoding and properties all come from it.
macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $code:literal: $kind:ident $position:ident $ext:expr;)*) => {
        /// The opcodes that are understood.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Opcode {
            $($(#[$doc])* $name = $code,)*
        }

        impl Opcode {
            /// All of them, in ascending order.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name),*];

            /// The opcode with this code, if it is understood.
            pub const fn from_code(code: u8) -> Option<Opcode> {
                match code {
                    $($code => Some(Opcode::$name),)*
                    _ => None,
                }
            }

            /// The operation.
            pub const fn kind(self) -> Kind {
                match self {
                    $(Opcode::$name => Kind::$kind,)*
                }
            }

            /// The place in the message.
            pub const fn position(self) -> Position {
                match self {
                    $(Opcode::$name => Position::$position,)*
                }
            }

            pub(super) const fn extensions(self) -> u8 {
                match self {
                    $(Opcode::$name => $ext,)*
                }
            }
        }
    };
}

opcodes! {
    /// RC SEND, first.
    RcSendFirst = 0x00: Send First ext::NONE;
    /// RC SEND, middle.
    RcSendMiddle = 0x01: Send Middle ext::NONE;
    /// RC SEND, last.
    RcSendLast = 0x02: Send Last ext::NONE;
    /// RC SEND, last, with immediate data.
    RcSendLastWithImm = 0x03: Send Last ext::IMM;
    /// RC SEND, only.
    RcSendOnly = 0x04: Send Only ext::NONE;
    /// RC SEND, only, with immediate data.
    RcSendOnlyWithImm = 0x05: Send Only ext::IMM;
    /// RC WRITE, first.
    RcWriteFirst = 0x06: Write First ext::RETH;
    /// RC WRITE, middle.
    RcWriteMiddle = 0x07: Write Middle ext::NONE;
    /// RC WRITE, last.
    RcWriteLast = 0x08: Write Last ext::NONE;
    /// RC WRITE, last, with immediate data.
    RcWriteLastWithImm = 0x09: Write Last ext::IMM;
    /// RC WRITE, only.
    RcWriteOnly = 0x0A: Write Only ext::RETH;
    /// RC WRITE, only, with immediate data.
    RcWriteOnlyWithImm = 0x0B: Write Only ext::RETH | ext::IMM;
    /// RC READ request.
    RcReadRequest = 0x0C: ReadRequest Only ext::RETH;
    /// RC READ response, first.
    RcReadResponseFirst = 0x0D: ReadResponse First ext::AETH;
    /// RC READ response, middle.
    RcReadResponseMiddle = 0x0E: ReadResponse Middle ext::NONE;
    /// RC READ response, last.
    RcReadResponseLast = 0x0F: ReadResponse Last ext::AETH;
    /// RC READ response, only.
    RcReadResponseOnly = 0x10: ReadResponse Only ext::AETH;
    /// RC acknowledge.
    RcAck = 0x11: Ack Only ext::AETH;
    /// RC acknowledge of an atomic.
    RcAtomicAck = 0x12: AtomicAck Only ext::AETH | ext::ATOMIC_ACK;
    /// RC compare-and-swap.
    RcCompareSwap = 0x13: CompareSwap Only ext::ATOMIC;
    /// RC fetch-and-add.
    RcFetchAdd = 0x14: FetchAdd Only ext::ATOMIC;
    /// RC SEND, last, with invalidate.
    RcSendLastWithInvalidate = 0x16: Send Last ext::IETH;
    /// RC SEND, only, with invalidate.
    RcSendOnlyWithInvalidate = 0x17: Send Only ext::IETH;
    /// UC SEND, first.
    UcSendFirst = 0x20: Send First ext::NONE;
    /// UC SEND, middle.
    UcSendMiddle = 0x21: Send Middle ext::NONE;
    /// UC SEND, last.
    UcSendLast = 0x22: Send Last ext::NONE;
    /// UC SEND, last, with immediate data.
    UcSendLastWithImm = 0x23: Send Last ext::IMM;
    /// UC SEND, only.
    UcSendOnly = 0x24: Send Only ext::NONE;
    /// UC SEND, only, with immediate data.
    UcSendOnlyWithImm = 0x25: Send Only ext::IMM;
    /// UC WRITE, first.
    UcWriteFirst = 0x26: Write First ext::RETH;
    /// UC WRITE, middle.
    UcWriteMiddle = 0x27: Write Middle ext::NONE;
    /// UC WRITE, last.
    UcWriteLast = 0x28: Write Last ext::NONE;
    /// UC WRITE, last, with immediate data.
    UcWriteLastWithImm = 0x29: Write Last ext::IMM;
    /// UC WRITE, only.
    UcWriteOnly = 0x2A: Write Only ext::RETH;
    /// UC WRITE, only, with immediate data.
    UcWriteOnlyWithImm = 0x2B: Write Only ext::RETH | ext::IMM;
    /// UD SEND.
    UdSendOnly = 0x64: Send Only ext::DETH;
    /// UD SEND with immediate data.
    UdSendOnlyWithImm = 0x65: Send Only ext::DETH | ext::IMM;
    /// Congestion notification packet; its payload is 16 reserved bytes.
    Cnp = 0x81: Cnp Only ext::NONE;
    /// XRC SEND, first.
    XrcSendFirst = 0xA0: Send First ext::XRC;
    /// XRC SEND, middle.
    XrcSendMiddle = 0xA1: Send Middle ext::XRC;
    /// XRC SEND, last.
    XrcSendLast = 0xA2: Send Last ext::XRC;
    /// XRC SEND, last, with immediate data.
    XrcSendLastWithImm = 0xA3: Send Last ext::XRC | ext::IMM;
    /// XRC SEND, only.
    XrcSendOnly = 0xA4: Send Only ext::XRC;
    /// XRC SEND, only, with immediate data.
    XrcSendOnlyWithImm = 0xA5: Send Only ext::XRC | ext::IMM;
    /// XRC WRITE, first.
    XrcWriteFirst = 0xA6: Write First ext::XRC | ext::RETH;
    /// XRC WRITE, middle.
    XrcWriteMiddle = 0xA7: Write Middle ext::XRC;
    /// XRC WRITE, last.
    XrcWriteLast = 0xA8: Write Last ext::XRC;
    /// XRC WRITE, last, with immediate data.
    XrcWriteLastWithImm = 0xA9: Write Last ext::XRC | ext::IMM;
    /// XRC WRITE, only.
    XrcWriteOnly = 0xAA: Write Only ext::XRC | ext::RETH;
    /// XRC WRITE, only, with immediate data.
    XrcWriteOnlyWithImm = 0xAB: Write Only ext::XRC | ext::RETH | ext::IMM;
    /// XRC READ request.
    XrcReadRequest = 0xAC: ReadRequest Only ext::XRC | ext::RETH;
    /// XRC READ response, first.
    XrcReadResponseFirst = 0xAD: ReadResponse First ext::AETH;
    /// XRC READ response, middle.
    XrcReadResponseMiddle = 0xAE: ReadResponse Middle ext::NONE;
    /// XRC READ response, last.
    XrcReadResponseLast = 0xAF: ReadResponse Last ext::AETH;
    /// XRC READ response, only.
    XrcReadResponseOnly = 0xB0: ReadResponse Only ext::AETH;
    /// XRC acknowledge.
    XrcAck = 0xB1: Ack Only ext::AETH;
    /// XRC acknowledge of an atomic.
    XrcAtomicAck = 0xB2: AtomicAck Only ext::AETH | ext::ATOMIC_ACK;
    /// XRC compare-and-swap.
    XrcCompareSwap = 0xB3: CompareSwap Only ext::XRC | ext::ATOMIC;
    /// XRC fetch-and-add.
    XrcFetchAdd = 0xB4: FetchAdd Only ext::XRC | ext::ATOMIC;
    /// XRC SEND, last, with invalidate.
    XrcSendLastWithInvalidate = 0xB6: Send Last ext::XRC | ext::IETH;
    /// XRC SEND, only, with invalidate.
    XrcSendOnlyWithInvalidate = 0xB7: Send Only ext::XRC | ext::IETH;
}

impl Opcode {
    /// The code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Like [`Opcode::from_code`], with the reason when there is none.
    pub(super) const fn decode(code: u8) -> Result<Opcode, WireError> {
        match Opcode::from_code(code) {
            Some(opcode) => Ok(opcode),
            // Upper three bits 010 are the reliable datagram service.
            None if code >> 5 == 0b010 => Err(WireError::UnsupportedService(code)),
            None => Err(WireError::UnknownOpcode(code)),
        }
    }

    /// The transport service.
    pub const fn service(self) -> Service {
        match self as u8 >> 5 {
            0b000 => Service::Rc,
            0b001 => Service::Uc,
            0b011 => Service::Ud,
            0b101 => Service::Xrc,
            _ => Service::Cnp,
        }
    }

    /// The operation of reliable connections, as another connected service has it.
    ///
    /// # Panics
    /// If the service has no such operation: a fault of the caller.
    pub fn of_service(self, service: Service) -> Opcode {
        let service = match service {
            Service::Uc => 0b001,
            Service::Xrc => 0b101,
            Service::Rc | Service::Ud | Service::Cnp => return self,
        };
        Opcode::from_code(self.code() | service << 5).expect("the service has it")
    }

    /// Whether this is the first of several packets.
    pub const fn is_first(self) -> bool {
        matches!(self.position(), Position::First)
    }

    /// Whether this is neither the first nor the last of several packets.
    pub const fn is_middle(self) -> bool {
        matches!(self.position(), Position::Middle)
    }

    /// Whether this is the last of several packets.
    pub const fn is_last(self) -> bool {
        matches!(self.position(), Position::Last)
    }

    /// Whether this is the only packet of its message, see [`Position::Only`].
    pub const fn is_only(self) -> bool {
        matches!(self.position(), Position::Only)
    }

    /// Whether this begins a message: first or only.
    pub const fn starts_message(self) -> bool {
        self.is_first() || self.is_only()
    }

    /// Whether this ends a message: last or only.
    pub const fn ends_message(self) -> bool {
        self.is_last() || self.is_only()
    }

    /// Whether a responder sends it: acknowledges and READ responses.
    pub const fn is_response(self) -> bool {
        matches!(self.kind(), Kind::ReadResponse | Kind::Ack | Kind::AtomicAck)
    }

    /// Whether payload may follow the headers.
    pub const fn has_payload(self) -> bool {
        matches!(self.kind(), Kind::Send | Kind::Write | Kind::ReadResponse | Kind::Cnp)
    }

    /// Whether an XRCETH follows, right behind the BTH.
    pub const fn has_xrceth(self) -> bool {
        self.extensions() & ext::XRC != 0
    }

    /// Whether a DETH follows.
    pub const fn has_deth(self) -> bool {
        self.extensions() & ext::DETH != 0
    }

    /// Whether a RETH follows.
    pub const fn has_reth(self) -> bool {
        self.extensions() & ext::RETH != 0
    }

    /// Whether an AETH follows.
    pub const fn has_aeth(self) -> bool {
        self.extensions() & ext::AETH != 0
    }

    /// Whether an AtomicETH follows.
    pub const fn has_atomic(self) -> bool {
        self.extensions() & ext::ATOMIC != 0
    }

    /// Whether an AtomicAckETH follows.
    pub const fn has_atomic_ack(self) -> bool {
        self.extensions() & ext::ATOMIC_ACK != 0
    }

    /// Whether immediate data follow.
    pub const fn has_imm(self) -> bool {
        self.extensions() & ext::IMM != 0
    }

    /// Whether an IETH, the key to invalidate, follows.
    pub const fn has_ieth(self) -> bool {
        self.extensions() & ext::IETH != 0
    }

    /// Bytes of BTH and extension headers.
    pub const fn headers_len(self) -> usize {
        let mut len = BTH_LEN;
        let set = self.extensions();
        // Not a loop over a table: these are constants, and the compiler turns the whole into a lookup by opcode.
        if set & ext::XRC != 0 {
            len += 4;
        }
        if set & ext::DETH != 0 {
            len += Deth::LEN;
        }
        if set & ext::RETH != 0 {
            len += Reth::LEN;
        }
        if set & ext::AETH != 0 {
            len += 4;
        }
        if set & ext::ATOMIC != 0 {
            len += AtomicEth::LEN;
        }
        if set & ext::ATOMIC_ACK != 0 {
            len += 8;
        }
        if set & ext::IMM != 0 {
            len += 4;
        }
        if set & ext::IETH != 0 {
            len += 4;
        }
        len
    }
}
