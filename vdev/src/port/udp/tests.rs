//! Bursts over loopback, and the ways sending can fail.

use super::*;
use crate::port::{Faults, FaultyPort};
use rnic::DeviceId;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

/// Tests run at once: each takes addresses of its own from 127.0.0.0/8.
fn address(test: u8, host: u8) -> IpAddr {
    Ipv4Addr::new(127, 47, test, host).into()
}

fn transmit(src: IpAddr, dst: IpAddr, len: usize, segment_len: usize) -> Transmit {
    Transmit {
        device: DeviceId(0),
        src,
        dst,
        src_port: 0xC123,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        len,
        segment_len,
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 31 + n / 256 + seed) as u8).collect()
}

/// Everything that arrives until `bytes` bytes are there, as packets.
fn receive(port: &mut dyn Port, bytes: usize) -> Vec<(Arrival, Vec<u8>)> {
    let (mut buffers, mut packets, mut got) = (ReceiveBuffers::new(), Vec::new(), 0);
    let deadline = Instant::now() + Duration::from_secs(10);
    while got < bytes && Instant::now() < deadline {
        port.receive(&mut buffers, &mut |arrival, bytes| {
            got += bytes.len();
            packets.extend(bytes.chunks(arrival.segment_len).map(|packet| (*arrival, packet.to_vec())));
        });
    }
    packets
}

#[test]
fn bursts_arrive_as_they_were_cut() {
    let (a, b) = (address(1, 1), address(1, 2));
    let (mut sender, mut receiver) = (UdpPort::open(a).unwrap(), UdpPort::open(b).unwrap());
    let mut sent = 0;
    for (len, segment_len) in [(48, 48), (20, 48), (4112, 4112), (61_700, 4112), (65_507, 1068), (64 * 16, 16), (3000, 1068)] {
        let bytes = pattern(len, segment_len);
        sender.send(&[Burst { transmit: &transmit(a, b, len, segment_len), bytes: &bytes }]);
        let packets = receive(&mut receiver, len);
        let cut: Vec<_> = bytes.chunks(segment_len).map(<[u8]>::to_vec).collect();
        assert_eq!(packets.iter().map(|(_, packet)| packet.clone()).collect::<Vec<_>>(), cut, "{len} by {segment_len}");
        assert!(packets.iter().all(|(arrival, _)| (arrival.src, arrival.src_port) == (a, 0xC123)));
        sent += cut.len() as u64;
    }
    let (out, back) = (sender.counters(), receiver.counters());
    assert_eq!((out.sent_packets, back.received_packets, back.receive_overflow), (sent, sent, 0));
    assert_eq!(out.sent_bytes, back.received_bytes);
    assert_eq!(sender.senders.len(), 1);
}

/// A mark of congestion, which routers set in packets whose sender asks for it, is told with the packets.
#[test]
fn marks_of_congestion_are_told() {
    let ip = address(8, 1);
    let ports = [Some((ip, UdpPort::open(ip).unwrap())), open_ipv6()];
    for (ip, mut port) in ports.into_iter().flatten() {
        for (traffic_class, marked) in [(0, false), (1, false), (2, false), (3, true), (0xFF, true), (0xFC, false)] {
            let transmit = Transmit { traffic_class, ..transmit(ip, ip, 3000, 1000) };
            port.send(&[Burst { transmit: &transmit, bytes: &pattern(3000, 0) }]);
            let packets = receive(&mut port, 3000);
            assert_eq!(packets.len(), 3);
            assert!(packets.iter().all(|(arrival, _)| arrival.congested == marked), "{traffic_class:#x} from {ip}");
        }
    }
}

#[test]
fn several_bursts_in_one_call() {
    let (a, b) = (address(2, 1), address(2, 2));
    let (mut sender, mut receiver) = (UdpPort::open(a).unwrap(), UdpPort::open(b).unwrap());
    let transmits: Vec<Transmit> = (0..40)
        .map(|n| Transmit { src_port: 0xC000 + n / 20, traffic_class: (n / 30 * 4) as u8, ..transmit(a, b, 2000, 500) })
        .collect();
    let contents: Vec<_> = (0..40).map(|n| pattern(2000, n)).collect();
    let bursts: Vec<_> = transmits.iter().zip(&contents).map(|(transmit, bytes)| Burst { transmit, bytes }).collect();
    sender.send(&bursts);
    let mut expected: Vec<_> = contents.iter().flat_map(|bytes| bytes.chunks(500)).map(<[u8]>::to_vec).collect();
    let mut arrived: Vec<_> = receive(&mut receiver, 80_000).into_iter().map(|(_, packet)| packet).collect();
    expected.sort();
    arrived.sort();
    assert_eq!(arrived, expected);
    assert_eq!(sender.senders.len(), 2);
}

/// The one IPv6 address that every machine with IPv6 has; tests wait for each other.
fn open_ipv6() -> Option<(IpAddr, UdpPort)> {
    let ip: IpAddr = "::1".parse().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match UdpPort::open(ip) {
            Ok(port) => return Some((ip, port)),
            Err(PortError::InUse(_)) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            Err(PortError::InUse(ip)) => panic!("{ip} is in use"),
            Err(error) => {
                skip::skip(&format!("no IPv6 here: {error}"));
                return None;
            }
        }
    }
}

#[test]
fn ipv6_works_alike() {
    let Some((ip, mut port)) = open_ipv6() else { return };
    let bytes = pattern(10_000, 0);
    let burst = Transmit { traffic_class: 0x68, hop_limit: 3, ..transmit(ip, ip, bytes.len(), 4000) };
    port.send(&[Burst { transmit: &burst, bytes: &bytes }]);
    let packets = receive(&mut port, bytes.len());
    assert_eq!(packets.iter().map(|(_, packet)| packet.len()).collect::<Vec<_>>(), [4000, 4000, 2000]);
    assert_eq!(packets.into_iter().flat_map(|(_, packet)| packet).collect::<Vec<_>>(), bytes);
}

/// Linux soft-RoCE and hardware send over IPv6 without a UDP checksum, which a socket drops unless told otherwise.
#[test]
fn ipv6_packets_without_a_checksum_are_taken() {
    let Some((ip, mut port)) = open_ipv6() else { return };
    let sender = UdpSocket::bind((ip, 0)).unwrap();
    const UDP_NO_CHECK6_TX: i32 = 101;
    let sender = OwnedFd::from(sender);
    crate::port::sockets::set_option(&sender, libc::SOL_UDP, UDP_NO_CHECK6_TX, 1).unwrap();
    let sender = UdpSocket::from(sender);
    sender.send_to(b"no checksum", (ip, UDP_PORT)).unwrap();
    let packets = receive(&mut port, 11);
    assert_eq!(packets.len(), 1);
    assert_eq!(packets[0].1, b"no checksum");
}

#[test]
fn addresses_that_cannot_be_opened() {
    let elsewhere: IpAddr = "203.0.113.77".parse().unwrap();
    assert!(matches!(UdpPort::open(elsewhere), Err(PortError::NotLocal(ip)) if ip == elsewhere));
    let taken = address(3, 1);
    let _first = UdpPort::open(taken).unwrap();
    let error = UdpPort::open(taken).unwrap_err();
    assert!(matches!(error, PortError::InUse(ip) if ip == taken));
    assert!(error.to_string().contains("4791"), "{error}");
}

/// A packet as the core makes one: the ICRC is right for source port `src_port` and identification `id`.
fn sealed(flow: &icrc::Flow, id: u16, len: usize) -> Vec<u8> {
    let mut packet = pattern(len - ICRC_LEN, id.into());
    let icrc = icrc::compute(flow, id, &packet);
    packet.extend(icrc.to_le_bytes());
    packet
}

#[test]
fn a_taken_source_port_is_replaced_and_packets_still_fit_their_flow() {
    let (a, b) = (address(4, 1), address(4, 2));
    let _thief = UdpSocket::bind((a, 0xC123)).unwrap();
    let (mut sender, mut receiver) = (UdpPort::open(a).unwrap(), UdpPort::open(b).unwrap());
    let planned = icrc::Flow { src: a, dst: b, src_port: 0xC123 };
    let bytes: Vec<u8> = (0..5).flat_map(|id| sealed(&planned, id, 1060)).collect();
    for segmentation in [true, false] {
        sender.segmentation = segmentation;
        sender.send(&[Burst { transmit: &transmit(a, b, bytes.len(), 1060), bytes: &bytes }]);
        let packets = receive(&mut receiver, bytes.len());
        assert_eq!(packets.len(), 5);
        for (n, (arrival, packet)) in packets.iter().enumerate() {
            assert_eq!(arrival.src_port, 0xC124);
            let flow = icrc::Flow { src_port: arrival.src_port, ..planned };
            let id = if segmentation { n as u16 } else { 0 };
            assert_eq!(*packet, {
                let mut expected = bytes[n * 1060..][..1056].to_vec();
                let icrc = icrc::compute(&flow, id, &expected);
                expected.extend(icrc.to_le_bytes());
                expected
            });
        }
    }
}

#[test]
fn the_pool_of_source_ports_is_bounded() {
    let (a, b) = (address(5, 1), address(5, 2));
    let mut sender = UdpPort::open(a).unwrap();
    for n in 0..400 {
        sender.send(&[Burst { transmit: &Transmit { src_port: 0xC000 + n, ..transmit(a, b, 100, 100) }, bytes: &[0; 100] }]);
    }
    assert_eq!(sender.senders.len(), 256);
    assert_eq!(sender.counters().sent_packets, 400);
}

#[test]
fn failures_are_counted_and_the_rest_is_sent() {
    let (a, b) = (address(6, 1), address(6, 2));
    let (mut sender, mut receiver) = (UdpPort::open(a).unwrap(), UdpPort::open(b).unwrap());
    // No route leads from a loopback address to the world; segments longer than the interface are refused.
    let nowhere = transmit(a, "203.0.113.77".parse().unwrap(), 100, 100);
    let good = transmit(a, b, 100, 100);
    let bytes = pattern(100, 0);
    sender.send(&[Burst { transmit: &nowhere, bytes: &bytes }, Burst { transmit: &good, bytes: &bytes }]);
    assert_eq!(receive(&mut receiver, 100).len(), 1);
    let counters = sender.counters();
    assert_eq!(counters.send_unreachable + counters.send_too_long, 1, "{counters:?}");
    assert_eq!(counters.sent_packets, 1);
}

#[test]
fn a_faulty_port_loses_and_repeats() {
    let (a, b) = (address(7, 1), address(7, 2));
    let faults = Faults { duplicate: 1.0, seed: 1, ..Faults::default() };
    let (mut sender, receiver) = (UdpPort::open(a).unwrap(), UdpPort::open(b).unwrap());
    let mut receiver = FaultyPort::new(receiver, faults);
    let bytes = pattern(2500, 0);
    sender.send(&[Burst { transmit: &transmit(a, b, 2500, 1000), bytes: &bytes }]);
    let lens: Vec<_> = receive(&mut receiver, 5000).iter().map(|(_, packet)| packet.len()).collect();
    assert_eq!(lens, [1000, 1000, 1000, 1000, 500, 500]);
}
