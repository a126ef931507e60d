//! Packets of the spray extension: parsing gives back what was emitted, refuses what is not well formed, and never panics; and the
//! bytes are those of `spray/WIRE.md`.

use proptest::prelude::*;
use roce::wire::spray_ext::{
    Code, Data, Ext, FIRST_OPCODE, MAP_WORDS, MAX_WINDOW, Nack, Offer, Packet, Reason, Sack, SackMap, Stamp, hello_msn,
    hello_psn, is_extension, is_hello, parse_trimmed,
};
use roce::wire::{AtomicEth, Bth, Headers, ICRC_LEN, Reth, WireError};
use roce::{Psn, Qpn, Rkey};

fn reason() -> impl Strategy<Value = Reason> {
    prop_oneof![
        Just(Reason::Trimmed),
        Just(Reason::OutsideWindow),
        (0_u8..32).prop_map(Reason::NotReady),
        Just(Reason::NoBuffer),
        Just(Reason::InvalidRequest),
        Just(Reason::RemoteAccessError),
        Just(Reason::RemoteOperationalError),
    ]
}

fn map() -> impl Strategy<Value = SackMap> {
    (0..=MAP_WORDS).prop_flat_map(|words| {
        let offsets = 0..=MAX_WINDOW - words as u16 * 64;
        (offsets, proptest::collection::vec(any::<u64>(), words)).prop_map(|(offset, words)| SackMap::new(offset, &words))
    })
}

prop_compose! {
    fn sack()(stamp in stamp(), numbers: [u16; 5], flags: [bool; 2], rate in 0_u32..1 << 24, map in map()) -> Sack {
        let [port, window, received, received_marked, duplicates] = numbers;
        Sack { stamp, port, marked: flags[0], answers_probe: flags[1], window, received, received_marked, duplicates, rate, map }
    }
}

fn stamp() -> impl Strategy<Value = Stamp> {
    (0_u32..1 << 24, any::<u32>()).prop_map(|(msn, time)| Stamp { msn, time })
}

prop_compose! {
    /// Headers for any opcode, and a payload that it may carry.
    fn packet()(
        opcode in prop::sample::select(Code::ALL.to_vec()),
        flags: [bool; 5], pkey: u16, dest_qpn: u32, psn: u32,
        stamp in stamp(), sack in sack(), reason in reason(),
        va: u64, key: u32, length: u32, offset: u32, rsn in 0_u32..1 << 24, word: [u8; 4], first: u64, second: u64,
        versions: [u8; 2], numbers: [u16; 3], window in 1..=MAX_WINDOW,
        payload in proptest::collection::vec(any::<u8>(), 0..200),
    ) -> (Packet, Vec<u8>) {
        let payload = if opcode.has_payload() { payload } else { vec![] };
        let bth = Bth { solicited: flags[0], mig_req: flags[1], pad: Bth::pad_for(payload.len()), pkey, fecn: flags[2], becn: flags[3], ack_req: flags[4], ..Bth::new(opcode, Qpn::new(dest_qpn), Psn::new(psn)) };
        let [features, ack_delay_us, port] = numbers;
        let ext = match opcode {
            Code::Offer => Ext::Offer(Offer {
                lowest: versions[0].min(versions[1]),
                highest: versions[0].max(versions[1]),
                features,
                window,
                ack_delay_us,
            }),
            Code::ReadResponse | Code::Probe => Ext::Stamp(stamp),
            Code::CompareSwap | Code::FetchAdd => {
                Ext::Atomic(stamp, AtomicEth { va, rkey: Rkey(key), swap_add: first, compare: second })
            }
            Code::AtomicResponse => Ext::AtomicResponse(stamp, first),
            Code::Sack => Ext::Sack(sack),
            Code::Nack => Ext::Nack(Nack { stamp, port, reason, cumulative: Psn::new(key) }),
            _ => Ext::Data(Data {
                stamp,
                reth: Reth { va, rkey: Rkey(key), length },
                offset,
                rsn,
                word: opcode.has_word().then_some(word),
            }),
        };
        (Packet { bth, ext }, payload)
    }
}

fn emit(packet: &Packet, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xEE; packet.headers_len()];
    assert_eq!(packet.emit(&mut bytes), packet.headers_len());
    bytes.extend(payload);
    bytes.resize(bytes.len() + usize::from(packet.bth.pad) + ICRC_LEN, 0);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn parse_gives_back_what_was_emitted((packet, payload) in packet()) {
        let bytes = emit(&packet, &payload);
        let (parsed, range) = Packet::parse(&bytes).expect("well formed");
        prop_assert_eq!(parsed, packet);
        prop_assert_eq!(&bytes[range], &payload[..]);
        prop_assert!(is_extension(&bytes));
        // A plain receiver does not know what it is.
        prop_assert_eq!(Headers::parse(&bytes), Err(WireError::UnknownOpcode(bytes[0])));
    }

    #[test]
    fn every_truncation_is_an_error((packet, payload) in packet()) {
        let bytes = emit(&packet, &payload);
        for len in 0..packet.headers_len() + usize::from(packet.bth.pad) + ICRC_LEN {
            let truncated = Packet::parse(&bytes[..len]);
            // Cutting a map off leaves a packet of another length than its header says.
            let refused = matches!(truncated, Err(WireError::Truncated { .. } | WireError::Unaligned(_)));
            prop_assert!(refused, "{len} bytes: {truncated:?}");
        }
    }

    /// Whatever parses lies within the packet and means the same when emitted again.
    #[test]
    fn no_panic_on_any_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..220), plausible: bool, code: prop::sample::Index) {
        if plausible && bytes.len() >= 20 {
            bytes[0] = Code::ALL[code.index(Code::ALL.len())] as u8;
            bytes[1] &= 0xF0;
            bytes[12] = 0x10 | bytes[12] & 0xF;
            if bytes[0] == Code::Offer as u8 {
                bytes[12..16].copy_from_slice(b"VSPR");
            }
            bytes.truncate(bytes.len() / 4 * 4);
        }
        let _ = parse_trimmed(&bytes);
        if let Ok((packet, range)) = Packet::parse(&bytes) {
            prop_assert!(range.start == packet.headers_len());
            prop_assert!(range.end + usize::from(packet.bth.pad) + ICRC_LEN == bytes.len());
            prop_assert_eq!(Packet::parse(&emit(&packet, &bytes[range])).expect("emitted").0, packet);
        }
    }

    /// The distances of a map are those of its bits.
    #[test]
    fn a_map_tells_its_bits(map in map()) {
        let slow: Vec<u32> = (0..map.words().len() * 64)
            .filter(|bit| map.words()[bit / 64] >> (bit % 64) & 1 == 1)
            .map(|bit| u32::from(map.offset()) + bit as u32 + 1)
            .collect();
        prop_assert_eq!(map.received().collect::<Vec<_>>(), slow);
    }

    /// Only a hello is one: no acknowledgement that a peer may send, however old, and none between other queue pairs.
    #[test]
    fn a_hello_is_nothing_else(expected: u32, ahead in 0_u32..1 << 20, from in 2_u32..1 << 24, to in 2_u32..1 << 24, msn in 0_u32..1 << 24) {
        let (expected, from, to) = (Psn::new(expected), Qpn::new(from), Qpn::new(to));
        let psn = hello_psn(expected);
        let good = hello_msn(psn, from, to);
        prop_assert!(good < 1 << 24);
        // The peer may have sent more, or less than we think when its packets are repeated.
        prop_assert!(is_hello(psn, good, Some(expected.plus(ahead)), from, to));
        prop_assert!(is_hello(psn, good, Some(expected.minus(ahead)), from, to));
        // To a peer that does not know, it is older than anything outstanding.
        prop_assert!(psn.is_before(expected.minus(ahead)) && psn.is_before(expected.plus(ahead)));
        // Real acknowledgements do not lie there.
        let real = expected.minus(ahead);
        prop_assert!(is_hello(psn, good, None, from, to), "from one that cannot send yet");
        prop_assert!(!is_hello(real, hello_msn(real, from, to), Some(expected), from, to));
        prop_assert!(msn == good || !is_hello(psn, msn, Some(expected), from, to));
        prop_assert!(from == to || !is_hello(psn, good, Some(expected), to, from));
    }
}

fn bth(opcode: Code) -> Bth<Code> {
    Bth { ack_req: true, ..Bth::new(opcode, Qpn::new(0x12_3456), Psn::new(0x00_ABCD)) }
}

/// The examples of `spray/WIRE.md`, byte by byte, composed by hand.
#[test]
fn the_bytes_are_those_of_the_document() {
    let stamp = Stamp { msn: 7, time: 0x0102_0304 };
    let write = Data {
        stamp,
        reth: Reth { va: 0x1122_3344_5566_7788, rkey: Rkey(0x99AA_BBCC), length: 10_000 },
        offset: 4096,
        rsn: 3,
        word: None,
    };
    let bytes = emit(&Packet { bth: bth(Code::Write), ext: Ext::Data(write) }, &[]);
    let expected = [
        0xE1, 0x40, 0xFF, 0xFF, 0x00, 0x12, 0x34, 0x56, 0x80, 0x00, 0xAB, 0xCD, // BTH
        0x10, 0x00, 0x00, 0x07, 0x01, 0x02, 0x03, 0x04, // stamp
        0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xAA, 0xBB, 0xCC, 0x00, 0x00, 0x27, 0x10, // RETH
        0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x03, // offset, RSN
        0x00, 0x00, 0x00, 0x00, // ICRC
    ];
    assert_eq!(bytes, expected);

    let sack = Sack {
        stamp,
        port: 0xC123,
        marked: true,
        answers_probe: false,
        window: 512,
        received: 100,
        received_marked: 2,
        duplicates: 1,
        rate: 0x01_0203,
        map: SackMap::new(64, &[0x8000_0000_0000_0001]),
    };
    let bytes = emit(&Packet { bth: bth(Code::Sack), ext: Ext::Sack(sack) }, &[]);
    let expected = [
        0x11, 0x00, 0x00, 0x07, 0x01, 0x02, 0x03, 0x04, // stamp with the mark
        0xC1, 0x23, 0x02, 0x00, 0x00, 0x64, 0x00, 0x02, 0x00, 0x01, 0x00, 0x40, 0x01, 0x01, 0x02, 0x03, // numbers
        0x80, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, // one word
    ];
    assert_eq!(bytes[12..bytes.len() - 4], expected);
    assert_eq!(sack.map.received().collect::<Vec<_>>(), [65, 128]);

    let offer = Offer { lowest: 1, highest: 1, features: 3, window: 4096, ack_delay_us: 20 };
    let bytes = emit(&Packet { bth: bth(Code::Offer), ext: Ext::Offer(offer) }, &[]);
    assert_eq!(bytes[12..24], [b'V', b'S', b'P', b'R', 1, 1, 0, 3, 0x10, 0x00, 0, 20]);

    let nack = Nack { stamp, port: 0xC123, reason: Reason::NotReady(12), cumulative: Psn::new(0x00_ABC0) };
    let bytes = emit(&Packet { bth: bth(Code::Nack), ext: Ext::Nack(nack) }, &[]);
    assert_eq!(bytes[20..28], [0xC1, 0x23, 3, 12, 0, 0, 0xAB, 0xC0]);
}

/// What no correct peer sends is refused, each for its own reason.
#[test]
fn impossible_values_are_refused() {
    let parse = |code: Code, ext: Ext, at: usize, value: u8| {
        let mut bytes = emit(&Packet { bth: bth(code), ext }, &[]);
        bytes[at] = value;
        Packet::parse(&bytes).map(|_| ())
    };
    let stamp = Stamp::default();
    let offer = Ext::Offer(Offer { lowest: 1, highest: 1, features: 0, window: 64, ack_delay_us: 0 });
    let nack = Ext::Nack(Nack { stamp, port: 0, reason: Reason::NoBuffer, cumulative: Psn::new(0) });
    let sack = Sack {
        stamp,
        port: 0,
        marked: false,
        answers_probe: false,
        window: 64,
        received: 0,
        received_marked: 0,
        duplicates: 0,
        rate: 0,
        map: SackMap::EMPTY,
    };
    let field = |name| Err(WireError::Extension(name));
    assert_eq!(parse(Code::Probe, Ext::Stamp(stamp), 12, 0x20), field("version"));
    assert_eq!(parse(Code::Offer, offer, 12, b'X'), field("magic"));
    assert_eq!(parse(Code::Offer, offer, 16, 2), field("version"));
    assert_eq!(parse(Code::Offer, offer, 20, 0x11), field("window"));
    assert_eq!(parse(Code::Offer, offer, 21, 0), field("window"));
    assert_eq!(parse(Code::Nack, nack, 22, 9), field("reason"));
    assert_eq!(parse(Code::Sack, Ext::Sack(sack), 32, 17), field("map"));
    assert_eq!(parse(Code::Probe, Ext::Stamp(stamp), 0, FIRST_OPCODE + 14), Err(WireError::UnknownOpcode(0xEE)));
    let mut long = emit(&Packet { bth: bth(Code::Probe), ext: Ext::Stamp(stamp) }, &[]);
    long.extend([0; 4]);
    assert_eq!(Packet::parse(&long).map(|_| ()), field("length"));
}

/// A switch leaves the beginning of a data packet; nothing else is taken for one.
#[test]
fn trimmed_packets_name_their_psn() {
    let stamp = Stamp { msn: 1, time: 5 };
    let data = Data { stamp, reth: Reth { va: 0, rkey: Rkey(0), length: 4096 }, offset: 0, rsn: 0, word: None };
    let bytes = emit(&Packet { bth: bth(Code::Send), ext: Ext::Data(data) }, &[7; 4096]);
    let (trimmed, at) = parse_trimmed(&bytes[..20]).expect("BTH and stamp are left");
    assert_eq!((trimmed.psn, at), (Psn::new(0x00_ABCD), stamp));
    assert_eq!(parse_trimmed(&bytes[..19]), None);
    assert_eq!(parse_trimmed(&emit(&Packet { bth: bth(Code::Probe), ext: Ext::Stamp(stamp) }, &[])), None);
}
