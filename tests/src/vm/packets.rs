//! What captured packets say: their ICRCs checked, and, for runs that failed, the story of a capture in one line.

use roce::Qpn;
use roce::wire::cm::Message;
use roce::wire::icrc::{Flow, Ipv4Fields, Prefix};
use roce::wire::{Headers, Syndrome};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// Most messages of the connection manager that a story tells; a run has a dozen.
const TOLD_MESSAGES: usize = 24;

/// A captured packet.
#[derive(Clone, Debug)]
pub struct Packet {
    /// When, counted from the first of the capture.
    pub at: Duration,
    /// From the IP header on.
    pub bytes: Vec<u8>,
}

/// A packet whose IP and UDP headers are plain.
struct Opened<'a> {
    flow: Flow,
    /// Identification and flags as the IPv4 header has them.
    ipv4: Option<Ipv4Fields>,
    /// From BTH to ICRC.
    payload: &'a [u8],
}

fn open(packet: &[u8]) -> Result<Opened<'_>, String> {
    let short = || format!("too short: {packet:02x?}");
    let be16 = |at: usize| packet.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]])).ok_or_else(short);
    let address = |at: usize, len: usize| packet.get(at..at + len).ok_or_else(short);
    let (src, dst, udp, ipv4): (IpAddr, IpAddr, usize, _) = match packet.first() {
        Some(0x45) => {
            let ip = |at| address(at, 4).map(|octets| <[u8; 4]>::try_from(octets).expect("4 bytes"));
            let dont_fragment = be16(6)? & 0x4000 != 0;
            let fields = Ipv4Fields { id: be16(4)?, dont_fragment };
            (Ipv4Addr::from(ip(12)?).into(), Ipv4Addr::from(ip(16)?).into(), 20, Some(fields))
        }
        Some(0x60..=0x6F) => {
            let ip = |at| address(at, 16).map(|octets| <[u8; 16]>::try_from(octets).expect("16 bytes"));
            (Ipv6Addr::from(ip(8)?).into(), Ipv6Addr::from(ip(24)?).into(), 40, None)
        }
        _ => return Err(format!("no plain IP header: {:02x?}", &packet[..packet.len().min(20)])),
    };
    // A short frame is padded by Ethernet; the UDP length tells where the packet ends.
    let end = udp + usize::from(be16(udp + 4)?);
    let payload = packet.get(udp + 8..end).ok_or_else(short)?;
    Ok(Opened { flow: Flow { src, dst, src_port: be16(udp)? }, ipv4, payload })
}

impl Packet {
    /// Checks the ICRC, with IPv4's identification and flags as the header has them.
    pub(super) fn check_icrc(&self) -> Result<(), String> {
        let Opened { flow, ipv4, payload } = open(&self.bytes)?;
        let found =
            Prefix::new(&flow, payload.len()).and_then(|prefix| prefix.identify(0, payload)).map_err(|e| e.to_string())?;
        if found == ipv4 { Ok(()) } else { Err(format!("the ICRC stands for {found:?}, the header says {ipv4:?}")) }
    }
}

/// The packets of a pcap file of Ethernet frames in this machine's byte order, without their Ethernet headers.
pub(super) fn read_pcap(bytes: &[u8]) -> Vec<Packet> {
    const FILE_HEADER: usize = 24;
    const RECORD_HEADER: usize = 16;
    const ETHERNET: usize = 14;
    let mut packets = Vec::new();
    let mut first = None;
    let mut rest = bytes.get(FILE_HEADER..).unwrap_or_default();
    while let Some((header, after)) = rest.split_at_checked(RECORD_HEADER) {
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        let time = Duration::new(word(0).into(), 0) + Duration::from_micros(word(4).into());
        let Some((frame, next)) = after.split_at_checked(word(8) as usize) else { break };
        let at = time.saturating_sub(*first.get_or_insert(time));
        packets.push(Packet { at, bytes: frame.get(ETHERNET..).unwrap_or_default().to_vec() });
        rest = next;
    }
    packets
}

/// The connection manager's messages, each with its time and sender, then how many packets of each kind went to which queue pair,
/// and when the last one passed.
pub(super) fn story(packets: &[Packet]) -> String {
    let mut messages = Vec::new();
    let mut counts = BTreeMap::<(String, IpAddr, Qpn), u32>::new();
    for packet in packets {
        let Ok(Opened { flow, payload, .. }) = open(&packet.bytes) else { continue };
        let Ok((headers, data)) = Headers::parse(payload) else { continue };
        let bth = headers.bth;
        if bth.dest_qpn == Qpn::GSI {
            let name = Message::parse(&payload[data]).map_or_else(|error| error.to_string(), |(_, message)| name(&message));
            messages.push(format!("{name} of {} at {:.3} s", flow.src, packet.at.as_secs_f64()));
            continue;
        }
        let kind = match headers.aeth.map(|aeth| aeth.syndrome) {
            Some(Syndrome::RnrNak { .. }) => "RnrNak".into(),
            Some(Syndrome::Nak(code)) => format!("Nak {code:?}"),
            _ => format!("{:?}", bth.opcode),
        };
        *counts.entry((kind, flow.dst, bth.dest_qpn)).or_default() += 1;
    }
    let left_out = messages.len().saturating_sub(TOLD_MESSAGES);
    messages.truncate(TOLD_MESSAGES);
    if left_out > 0 {
        messages.push(format!("{left_out} more"));
    }
    let counts = counts.iter().map(|((kind, to, qpn), n)| format!("{n} {kind} to {to} QP {:#x}", qpn.get()));
    let last = packets.last().map_or(0.0, |packet| packet.at.as_secs_f64());
    let told: Vec<String> = messages.into_iter().chain(counts).collect();
    format!("{}; last packet at {last:.3} s", told.join(", "))
}

fn name(message: &Message) -> String {
    match message {
        Message::Rej(rej) => format!("REJ {} ({:?})", rej.reason, rej.answered),
        Message::Req(_) => "REQ".into(),
        Message::Rep(_) => "REP".into(),
        Message::Rtu { .. } => "RTU".into(),
        Message::Mra { .. } => "MRA".into(),
        Message::Dreq { .. } => "DREQ".into(),
        Message::Drep { .. } => "DREP".into(),
        Message::SidrReq(_) => "SIDR_REQ".into(),
        Message::SidrRep(_) => "SIDR_REP".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roce::Psn;
    use roce::wire::mad::MAD_LEN;
    use roce::wire::{Aeth, Bth, Deth, Opcode, icrc};

    const A: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const B: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);

    fn packet(millis: u64, src: Ipv4Addr, dst: Ipv4Addr, headers: &Headers, payload: &[u8]) -> Packet {
        let mut body = vec![0; headers.len()];
        headers.emit(&mut body);
        body.extend_from_slice(payload);
        let crc = icrc::compute(&Flow { src: src.into(), dst: dst.into(), src_port: 50000 }, 0, &body);
        body.extend_from_slice(&crc.to_le_bytes());
        let udp_len = u16::try_from(body.len() + 8).unwrap();
        let mut bytes = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0];
        bytes[2..4].copy_from_slice(&(udp_len + 20).to_be_bytes());
        bytes.extend(src.octets().into_iter().chain(dst.octets()));
        bytes.extend([50000_u16, 4791, udp_len, 0].into_iter().flat_map(u16::to_be_bytes));
        bytes.extend(body);
        Packet { at: Duration::from_millis(millis), bytes }
    }

    fn bth(opcode: Opcode, qpn: Qpn) -> Bth {
        Bth { ack_req: true, ..Bth::new(opcode, qpn, Psn::new(7)) }
    }

    #[test]
    fn a_stall_is_told() {
        let mut rtu = [0; MAD_LEN];
        Message::Rtu { local_comm_id: 1, remote_comm_id: 2 }.emit(3, &mut rtu);
        let deth = Some(Deth { qkey: 0x8001_0000, src_qpn: Qpn::GSI });
        let cm = Headers { deth, ..Headers::new(bth(Opcode::UdSendOnly, Qpn::GSI)) };
        let send = Headers::new(bth(Opcode::RcSendOnly, Qpn::new(0x12)));
        let aeth = Some(Aeth { syndrome: Syndrome::RnrNak { timer: 12 }, msn: 0 });
        let nak = Headers { aeth, ..Headers::new(bth(Opcode::RcAck, Qpn::new(0x34))) };
        let packets = [
            packet(0, A, B, &cm, &rtu),
            packet(1, A, B, &send, &[0; 8]),
            packet(2, B, A, &nak, &[]),
            packet(500, B, A, &nak, &[]),
        ];
        assert!(packets.iter().all(|packet| packet.check_icrc().is_ok()));
        assert_eq!(
            story(&packets),
            "RTU of 192.0.2.1 at 0.000 s, 1 RcSendOnly to 192.0.2.10 QP 0x12, 2 RnrNak to 192.0.2.1 QP 0x34; \
             last packet at 0.500 s"
        );
    }

    #[test]
    fn a_wrong_icrc_is_noticed() {
        let send = Headers::new(bth(Opcode::RcSendOnly, Qpn::new(0x12)));
        let mut damaged = packet(0, A, B, &send, &[0; 8]);
        damaged.bytes[50] ^= 1;
        assert!(damaged.check_icrc().is_err());
    }
}
