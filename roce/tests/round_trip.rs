//! Parsing gives back what was emitted, refuses what is not well formed, and never panics.

use proptest::prelude::*;
use roce::wire::{
    Aeth, AtomicEth, BTH_LEN, Bth, Deth, Headers, ICRC_LEN, Kind, NakCode, Opcode, Reth, Service, Syndrome, WireError,
};
use roce::{Psn, Qpn, Rkey, Srqn};

fn syndrome() -> impl Strategy<Value = Syndrome> {
    prop_oneof![
        (0_u8..32).prop_map(|credits| Syndrome::Ack { credits }),
        (0_u8..32).prop_map(|timer| Syndrome::RnrNak { timer }),
        prop::sample::select(vec![
            NakCode::PsnSequenceError,
            NakCode::InvalidRequest,
            NakCode::RemoteAccessError,
            NakCode::RemoteOperationalError,
            NakCode::InvalidRdRequest,
        ])
        .prop_map(Syndrome::Nak),
    ]
}

prop_compose! {
    /// Headers for any opcode, and a payload that it may carry.
    fn packet()(
        opcode in prop::sample::select(Opcode::ALL),
        flags: [bool; 5], pkey: u16, dest_qpn: u32, psn: u32,
        va: u64, key: u32, length: u32,
        syndrome in syndrome(), msn in 0_u32..1 << 24,
        first: u64, second: u64, imm: [u8; 4], src_qpn: u32,
        payload in proptest::collection::vec(any::<u8>(), 0..200),
    ) -> (Headers, Vec<u8>) {
        let payload = if opcode.has_payload() { payload } else { vec![] };
        let bth = Bth { solicited: flags[0], mig_req: flags[1], pad: Bth::pad_for(payload.len()), pkey, fecn: flags[2], becn: flags[3], ack_req: flags[4], ..Bth::new(opcode, Qpn::new(dest_qpn), Psn::new(psn)) };
        let headers = Headers {
            bth,
            xrceth: opcode.has_xrceth().then_some(Srqn::new(length)),
            reth: opcode.has_reth().then_some(Reth { va, rkey: Rkey(key), length }),
            aeth: opcode.has_aeth().then_some(Aeth { syndrome, msn }),
            atomic: opcode.has_atomic().then_some(AtomicEth { va, rkey: Rkey(key), swap_add: first, compare: second }),
            atomic_ack: opcode.has_atomic_ack().then_some(first),
            imm: opcode.has_imm().then_some(imm),
            ieth: opcode.has_ieth().then_some(Rkey(key)),
            deth: opcode.has_deth().then_some(Deth { qkey: key, src_qpn: Qpn::new(src_qpn) }),
        };
        (headers, payload)
    }
}

fn emit(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xEE; headers.len()];
    assert_eq!(headers.emit(&mut bytes), headers.len());
    bytes.extend(payload);
    bytes.resize(bytes.len() + usize::from(headers.bth.pad) + ICRC_LEN, 0);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn parse_gives_back_what_was_emitted((headers, payload) in packet()) {
        let bytes = emit(&headers, &payload);
        let (parsed, range) = Headers::parse(&bytes).expect("well formed");
        prop_assert_eq!(parsed, headers);
        prop_assert_eq!(&bytes[range], &payload[..]);
    }

    #[test]
    fn reserved_bits_are_not_looked_at((headers, payload) in packet()) {
        let mut bytes = emit(&headers, &payload);
        bytes[4] |= 0x3F;
        bytes[8] |= 0x7F;
        prop_assert_eq!(Headers::parse(&bytes).expect("well formed").0, headers);
    }

    #[test]
    fn every_truncation_is_an_error((headers, payload) in packet()) {
        let bytes = emit(&headers, &payload);
        for len in 0..headers.len() + usize::from(headers.bth.pad) + ICRC_LEN {
            let truncated = Headers::parse(&bytes[..len]);
            prop_assert!(matches!(truncated, Err(WireError::Truncated { .. })), "{len} bytes: {truncated:?}");
        }
    }

    /// Whatever parses lies within the packet and comes out the same when emitted again.
    #[test]
    fn no_panic_on_any_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..120), plausible: bool, code: prop::sample::Index) {
        if plausible && bytes.len() >= BTH_LEN {
            bytes[0] = Opcode::ALL[code.index(Opcode::ALL.len())].code();
            bytes[1] &= 0xF0;
        }
        if let Ok((headers, range)) = Headers::parse(&bytes) {
            prop_assert!(range.start == headers.len() && range.end + usize::from(headers.bth.pad) + ICRC_LEN == bytes.len());
            let mut again = [0; 64];
            let len = headers.emit(&mut again);
            prop_assert_eq!(Headers::parse(&emit(&headers, &bytes[range])).expect("emitted").0, headers);
            // All but the reserved bits.
            bytes[4] &= 0xC0;
            bytes[8] &= 0x80;
            if headers.xrceth.is_some() {
                bytes[BTH_LEN] = 0;
            }
            if headers.deth.is_some() {
                bytes[BTH_LEN + 4] = 0;
            }
            prop_assert_eq!(&again[..len], &bytes[..len]);
        }
    }
}

fn bth(opcode: Opcode) -> Bth {
    Bth { mig_req: false, ..Bth::new(opcode, Qpn::new(1), Psn::new(1)) }
}

/// Lengths of the headers as the architecture draws them (IBA table 38), by code.
#[test]
fn header_lengths() {
    let lengths = [
        // RC SEND
        (0x00, 12),
        (0x01, 12),
        (0x02, 12),
        (0x03, 16),
        (0x04, 12),
        (0x05, 16),
        (0x16, 16),
        (0x17, 16),
        // RC WRITE
        (0x06, 28),
        (0x07, 12),
        (0x08, 12),
        (0x09, 16),
        (0x0A, 28),
        (0x0B, 32),
        // RC READ, acknowledges, atomics
        (0x0C, 28),
        (0x0D, 16),
        (0x0E, 12),
        (0x0F, 16),
        (0x10, 16),
        (0x11, 16),
        (0x12, 24),
        (0x13, 40),
        (0x14, 40),
        // UC
        (0x20, 12),
        (0x21, 12),
        (0x22, 12),
        (0x23, 16),
        (0x24, 12),
        (0x25, 16),
        (0x26, 28),
        (0x27, 12),
        (0x28, 12),
        (0x29, 16),
        (0x2A, 28),
        (0x2B, 32),
        // UD, CNP
        (0x64, 20),
        (0x65, 24),
        (0x81, 12),
        // XRC: requests are 4 bytes longer than those of RC
        (0xA0, 16),
        (0xA1, 16),
        (0xA2, 16),
        (0xA3, 20),
        (0xA4, 16),
        (0xA5, 20),
        (0xB6, 20),
        (0xB7, 20),
        (0xA6, 32),
        (0xA7, 16),
        (0xA8, 16),
        (0xA9, 20),
        (0xAA, 32),
        (0xAB, 36),
        (0xAC, 32),
        (0xAD, 16),
        (0xAE, 12),
        (0xAF, 16),
        (0xB0, 16),
        (0xB1, 16),
        (0xB2, 24),
        (0xB3, 44),
        (0xB4, 44),
    ];
    assert_eq!(Opcode::ALL.len(), lengths.len());
    for (code, len) in lengths {
        let opcode = Opcode::from_code(code).expect("known");
        assert_eq!((opcode.code(), opcode.headers_len()), (code, len), "{opcode:?}");
    }
}

/// Case AD-11: other services and unknown opcodes are told apart, so that a receiver can count them apart.
#[test]
fn other_opcodes_are_refused() {
    for code in (0..=u8::MAX).filter(|&code| Opcode::from_code(code).is_none()) {
        let mut bytes = emit(&Headers::new(bth(Opcode::RcSendOnly)), &[0; 64]);
        bytes[0] = code;
        let expected = match code {
            0x40..=0x5F => WireError::UnsupportedService(code),
            _ => WireError::UnknownOpcode(code),
        };
        assert_eq!(Headers::parse(&bytes), Err(expected));
    }
}

#[test]
fn other_versions_are_refused() {
    for version in 1..16 {
        let mut bytes = emit(&Headers::new(bth(Opcode::RcSendOnly)), &[]);
        bytes[1] |= version;
        assert_eq!(Headers::parse(&bytes), Err(WireError::Version(version)));
    }
}

#[test]
fn wrong_lengths_are_refused() {
    let send = emit(&Headers::new(bth(Opcode::RcSendOnly)), &[1, 2, 3, 4]);
    assert_eq!(Headers::parse(&send[..19]), Err(WireError::Unaligned(19)));
    // Padding that reaches into the headers.
    let mut empty = emit(&Headers::new(bth(Opcode::RcSendOnly)), &[]);
    empty[1] |= 0x10;
    assert_eq!(Headers::parse(&empty), Err(WireError::Truncated { len: 16, need: 17 }));
    // Payload behind an acknowledge.
    let aeth = Some(Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 0 });
    let ack = emit(&Headers { aeth, ..Headers::new(bth(Opcode::RcAck)) }, &[0; 4]);
    assert_eq!(Headers::parse(&ack), Err(WireError::UnexpectedPayload(Opcode::RcAck, 4)));
}

#[test]
fn reserved_syndromes_are_refused() {
    for code in 0..=u8::MAX {
        let expected = match code {
            0x00..=0x3F | 0x60..=0x64 => Ok(code),
            _ => Err(WireError::Syndrome(code)),
        };
        assert_eq!(Syndrome::from_code(code).map(Syndrome::code), expected);
    }
}

#[test]
fn opcode_properties() {
    for &opcode in Opcode::ALL {
        let name = format!("{opcode:?}");
        let service = match opcode.service() {
            Service::Rc => "Rc",
            Service::Uc => "Uc",
            Service::Ud => "Ud",
            Service::Xrc => "Xrc",
            Service::Cnp => "Cnp",
        };
        assert!(name.starts_with(service), "{name}");
        assert_eq!(opcode.is_first(), name.contains("First"), "{name}");
        assert_eq!(opcode.is_middle(), name.contains("Middle"), "{name}");
        assert_eq!(opcode.is_last(), name.contains("Last"), "{name}");
        assert_eq!(opcode.is_only(), !opcode.is_first() && !opcode.is_middle() && !opcode.is_last(), "{name}");
        assert_eq!(opcode.has_imm(), name.contains("WithImm"), "{name}");
        assert_eq!(opcode.has_ieth(), name.contains("Invalidate"), "{name}");
        assert_eq!(opcode.is_response(), name.contains("Response") || name.contains("Ack"), "{name}");
        assert_eq!(opcode.kind() == Kind::Write, name.contains("Write"), "{name}");
        assert_eq!(opcode.has_xrceth(), service == "Xrc" && !opcode.is_response(), "{name}");
        if service == "Rc" {
            let extended = opcode.of_service(Service::Xrc);
            assert_eq!(format!("{extended:?}"), format!("X{}", name.to_lowercase().split_at(1).0) + &name[1..], "{name}");
            assert_eq!((extended.kind(), extended.position()), (opcode.kind(), opcode.position()), "{name}");
        }
    }
}

#[test]
#[should_panic(expected = "do not match")]
fn emitting_without_a_demanded_header_is_a_fault() {
    Headers::new(bth(Opcode::RcAck)).emit(&mut [0; 64]);
}

#[test]
#[should_panic(expected = "do not match")]
fn emitting_with_a_header_too_many_is_a_fault() {
    Headers { imm: Some([0; 4]), ..Headers::new(bth(Opcode::RcSendOnly)) }.emit(&mut [0; 64]);
}

#[test]
#[should_panic]
fn emitting_into_a_short_buffer_is_a_fault() {
    Headers::new(bth(Opcode::RcSendOnly)).emit(&mut [0; BTH_LEN - 1]);
}
