//! Known answers. `vectors/packets.txt` was built by the roce layer of scapy (`vectors/generate.py` says how), so headers
//! and ICRCs come from an implementation that is not ours; the field values expected here are those given to scapy.
//! `vectors/rxe.txt` holds packets that Linux soft-RoCE sent; their field values are those that Wireshark shows.

mod ip;

use ip::IpPacket;
use roce::wire::icrc::{self, Ipv4Fields, Prefix};
use roce::wire::{Aeth, AtomicEth, Bth, Deth, Headers, ICRC_LEN, Opcode, Reth, Syndrome};
use roce::{Psn, Qpn, Rkey, Srqn};

fn packets() -> Vec<(&'static str, IpPacket)> {
    let files = [include_str!("vectors/packets.txt"), include_str!("vectors/rxe.txt")];
    let lines = files.into_iter().flat_map(str::lines).filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, hex) = line.split_once(' ').expect("name and packet");
            let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
            (name, IpPacket((0..hex.len()).step_by(2).map(byte).collect()))
        })
        .collect()
}

fn bth(opcode: Opcode, dest_qpn: u32, psn: u32) -> Bth {
    Bth { mig_req: false, ..Bth::new(opcode, Qpn::new(dest_qpn), Psn::new(psn)) }
}

/// The values given to scapy, and those that Wireshark shows, by name of the packet.
fn expected(name: &str) -> (Headers, Vec<u8>) {
    let rxe_aeth = Some(Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 1 });
    match name {
        "rxe_v4_ack" => (Headers { aeth: rxe_aeth, ..Headers::new(bth(Opcode::RcAck, 0x4D_000A, 10_348_199)) }, vec![]),
        "rxe_v4_atomic_ack" => {
            let bth = bth(Opcode::RcAtomicAck, 0x07_0014, 10_291_632);
            (Headers { aeth: rxe_aeth, atomic_ack: Some(9_781_661_350_940_888_061), ..Headers::new(bth) }, vec![])
        }
        "rxe_v4_compare_swap" => {
            let bth = Bth { ack_req: true, ..bth(Opcode::RcCompareSwap, 0x0F_0015, 2_288_263) };
            let atomic = Some(AtomicEth { va: 0x5555_8CDF_5000, rkey: Rkey(0x0001_4722), swap_add: 0, compare: 0 });
            (Headers { atomic, ..Headers::new(bth) }, vec![])
        }
        "rxe_v4_fetch_add" => {
            let bth = Bth { ack_req: true, ..bth(Opcode::RcFetchAdd, 0x07_0013, 11_800_841) };
            let atomic = Some(AtomicEth { va: 0x5555_56D6_D000, rkey: Rkey(0x0001_2125), swap_add: 1, compare: 0 });
            (Headers { atomic, ..Headers::new(bth) }, vec![])
        }
        "rxe_v4_read_request" => {
            let bth = Bth { ack_req: true, ..bth(Opcode::RcReadRequest, 0x0F_0009, 14_583_926) };
            let reth = Some(Reth { va: 0x5555_64F8_B000, rkey: Rkey(0x8C47), length: 1 });
            (Headers { reth, ..Headers::new(bth) }, vec![])
        }
        "rxe_v4_read_response_only" => {
            let bth = Bth { pad: 3, ..bth(Opcode::RcReadResponseOnly, 0x05_000A, 9_773_043) };
            (Headers { aeth: rxe_aeth, ..Headers::new(bth) }, vec![0xE6])
        }
        "rxe_v4_send_only" => {
            let bth = Bth { pad: 3, ack_req: true, ..bth(Opcode::RcSendOnly, 0x0B_000D, 9_449_498) };
            (Headers::new(bth), vec![0x53])
        }
        "rxe_v4_write_only" => {
            let bth = Bth { pad: 3, ack_req: true, ..bth(Opcode::RcWriteOnly, 0x4D_000A, 134_294) };
            let reth = Some(Reth { va: 0x5555_8F84_E000, rkey: Rkey(0x9039), length: 1 });
            (Headers { reth, ..Headers::new(bth) }, vec![0x01])
        }
        "v4_send_only" => {
            let bth = bth(Opcode::RcSendOnly, 0x12345, 0xFF_FFFF);
            (Headers::new(Bth { pad: 3, ack_req: true, solicited: true, ..bth }), b"hello".to_vec())
        }
        "v4_send_middle_1024" => {
            let payload = (0..1024_u32).map(|i| (i * i % 256) as u8).collect();
            (Headers::new(bth(Opcode::RcSendMiddle, 0x1234, 4)), payload)
        }
        "v4_write_only_with_imm" => {
            let bth = Bth { mig_req: true, ..bth(Opcode::RcWriteOnlyWithImm, 0xFF_FFFE, 1) };
            let reth = Some(Reth { va: 0x7F00_1122_3344, rkey: Rkey(0x0102_0304), length: 8 });
            (Headers { reth, imm: Some([0xDE, 0xAD, 0xBE, 0xEF]), ..Headers::new(bth) }, (0..8).collect())
        }
        "v4_read_request" => {
            let bth = Bth { ack_req: true, ..bth(Opcode::RcReadRequest, 0x42, 0x100) };
            let reth = Some(Reth { va: 0_u64.wrapping_sub(4096), rkey: Rkey(u32::MAX), length: 1 << 31 });
            (Headers { reth, ..Headers::new(bth) }, vec![])
        }
        "v4_ack_may_fragment" => {
            let bth = Bth { fecn: true, ..bth(Opcode::RcAck, 0x11, 0x77_7777) };
            let aeth = Some(Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 5 });
            (Headers { aeth, ..Headers::new(bth) }, vec![])
        }
        "v4_atomic_ack" => {
            let bth = bth(Opcode::RcAtomicAck, 0x12, 0x10);
            let aeth = Some(Aeth { syndrome: Syndrome::Ack { credits: 0 }, msn: 0x01_0203 });
            (Headers { aeth, atomic_ack: Some(0x0123_4567_89AB_CDEF), ..Headers::new(bth) }, vec![])
        }
        "v4_cnp" => (Headers::new(Bth { becn: true, ..bth(Opcode::Cnp, 0xABC, 0) }), vec![0; 16]),
        "v6_compare_swap" => {
            let atomic = Some(AtomicEth {
                va: 0x1000,
                rkey: Rkey(0xAABB_CCDD),
                swap_add: 0x1122_3344_5566_7788,
                compare: 0x99AA_BBCC_DDEE_FF00,
            });
            (Headers { atomic, ..Headers::new(bth(Opcode::RcCompareSwap, 0x99, 0x80_0000)) }, vec![])
        }
        "v6_ud_send_only_with_imm" => {
            let bth = Bth { pad: 1, becn: true, ..bth(Opcode::UdSendOnlyWithImm, 1, 2) };
            let deth = Some(Deth { qkey: 0x8001_0000, src_qpn: Qpn::GSI });
            (Headers { deth, imm: Some([1, 2, 3, 4]), ..Headers::new(bth) }, b"abc".to_vec())
        }
        "v6_send_only_with_invalidate" => {
            let bth = Bth { ack_req: true, ..bth(Opcode::RcSendOnlyWithInvalidate, 0x1234, 9) };
            (Headers { ieth: Some(Rkey(0xCAFE_F00D)), ..Headers::new(bth) }, b"data".to_vec())
        }
        "v6_uc_write_middle_256" => {
            let payload = (0..256_u32).map(|i| ((7 * i + 3) % 256) as u8).collect();
            (Headers::new(bth(Opcode::UcWriteMiddle, 0x1234, 3)), payload)
        }
        "v4_xrc_send_first_256" => {
            let payload = (0..=255_u8).map(|i| i ^ 0x55).collect();
            let bth = bth(Opcode::XrcSendFirst, 0x1234, 5);
            (Headers { xrceth: Some(Srqn::new(0xAB_CDEF)), ..Headers::new(bth) }, payload)
        }
        "v4_xrc_write_only_with_imm" => {
            let bth = Bth { ack_req: true, ..bth(Opcode::XrcWriteOnlyWithImm, 0x1234, 6) };
            let reth = Some(Reth { va: 0x7F00_1122_3344, rkey: Rkey(0x0102_0304), length: 8 });
            let xrceth = Some(Srqn::new(0x12));
            (Headers { xrceth, reth, imm: Some([1, 2, 3, 4]), ..Headers::new(bth) }, (0..8).collect())
        }
        "v6_xrc_fetch_add" => {
            let bth = Bth { ack_req: true, ..bth(Opcode::XrcFetchAdd, 0x1234, 7) };
            let atomic = Some(AtomicEth { va: 0x2000, rkey: Rkey(0xAABB_CCDD), swap_add: 1, compare: 0 });
            (Headers { xrceth: Some(Srqn::new(0xFF_FFFE)), atomic, ..Headers::new(bth) }, vec![])
        }
        "v6_xrc_ack" => {
            let aeth = Some(Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 9 });
            (Headers { aeth, ..Headers::new(bth(Opcode::XrcAck, 0x1234, 8)) }, vec![])
        }
        _ => panic!("no expectation for {name}"),
    }
}

#[test]
fn headers_and_payload() {
    let packets = packets();
    assert_eq!(packets.len(), 23);
    for (name, packet) in packets {
        let (headers, payload) = expected(name);
        let bytes = packet.udp_payload();
        let (parsed, range) = Headers::parse(bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(parsed, headers, "{name}");
        assert_eq!(bytes[range], payload, "{name}");
        let mut emitted = [0; roce::wire::MAX_HEADERS_LEN];
        let len = headers.emit(&mut emitted);
        assert_eq!(emitted[..len], bytes[..len], "{name}");
    }
}

#[test]
fn icrc() {
    for (name, packet) in packets() {
        let (flow, udp_payload) = packet.receive().unwrap_or_else(|| panic!("{name}: a socket would not get this"));
        let (covered, stored) = udp_payload.split_last_chunk::<ICRC_LEN>().expect("an ICRC");
        assert_eq!(packet.reference_icrc(), u32::from_le_bytes(*stored), "{name}: the reference of these tests");
        assert_eq!(icrc::check(&flow, udp_payload), Ok(()), "{name}");

        let fields = Prefix::new(&flow, udp_payload.len()).and_then(|prefix| prefix.identify(7, udp_payload));
        if packet.is_ipv4() {
            let id = u16::from_be_bytes([packet.0[4], packet.0[5]]);
            let dont_fragment = packet.0[6] & 0x40 != 0;
            assert_eq!(fields, Ok(Some(Ipv4Fields { id, dont_fragment })), "{name}");
            if dont_fragment {
                assert_eq!(icrc::compute(&flow, id, covered), u32::from_le_bytes(*stored), "{name}");
            }
        } else {
            assert_eq!(fields, Ok(None), "{name}");
            assert_eq!(icrc::compute(&flow, 0, covered), u32::from_le_bytes(*stored), "{name}");
        }
    }
}
