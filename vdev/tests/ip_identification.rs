//! What the kernel writes into the IPv4 header of packets that a port sends. The sender's ICRC covers the identification and the
//! don't-fragment flag: a single packet must carry 0, those of a segmented burst 0, 1, 2, …, all with DF.

use nix::sched::{CloneFlags, unshare};
use rnic::{DeviceId, Transmit};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};
use vdev::port::{Burst, Port, UdpPort};

const IP: Ipv4Addr = Ipv4Addr::LOCALHOST;

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr))) }
}

/// Sees every packet of the loopback interface of this thread's network namespace.
struct Capture(OwnedFd);

impl Capture {
    fn new() -> Capture {
        let protocol = (libc::ETH_P_IP as u16).to_be();
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, protocol.into()) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: new and ours.
        Capture(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// The next `count` packets that arrive, from the IP header on.
    fn next(&self, count: usize) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(10);
        while packets.len() < count && Instant::now() < deadline {
            let mut bytes = vec![0u8; 65536];
            // SAFETY: the buffer is writable with the length given.
            let got = unsafe { libc::recv(self.0.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
            let Ok(got) = usize::try_from(got) else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            bytes.truncate(got);
            packets.push(bytes);
        }
        packets
    }
}

/// In a namespace of its own, whose loopback does not segment: so the kernel does, before packets leave.
fn prepare() -> Result<(), String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("needs root".into());
    }
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| format!("no new network namespace: {errno}"))?;
    run("ip", &["link", "set", "lo", "up", "mtu", "9000"])?;
    run("ethtool", &["-K", "lo", "tx-udp-segmentation", "off", "gso", "on"])
}

#[test]
fn identification_counts_up_within_a_burst() {
    // A thread has its own network namespace; the rest of this process keeps its own.
    std::thread::spawn(|| {
        if let Err(reason) = prepare() {
            skip::skip(&format!("identification of IPv4 packets: {reason}"));
            return;
        }
        let capture = Capture::new();
        let mut port = UdpPort::open(IpAddr::V4(IP)).unwrap();
        for (len, segment_len) in [(100, 100), (20 * 1068, 1068), (100, 100), (15 * 4112 - 40, 4112), (60, 60)] {
            let transmit = Transmit {
                device: DeviceId(0),
                src: IP.into(),
                dst: IP.into(),
                src_port: 0xC001,
                traffic_class: 0x69,
                hop_limit: 17,
                flow_label: 0,
                len,
                segment_len,
            };
            port.send(&[Burst { transmit: &transmit, bytes: &vec![7; len] }]);
            let packets = capture.next(len.div_ceil(segment_len));
            let lens: Vec<_> = packets.iter().map(|packet| packet.len() - 28).collect();
            let cut: Vec<_> = vec![0; len].chunks(segment_len).map(<[u8]>::len).collect();
            assert_eq!(lens, cut);
            for (n, packet) in packets.iter().enumerate() {
                assert_eq!(packet[0], 0x45);
                assert_eq!(packet[1], 0x69, "type of service");
                assert_eq!(u16::from_be_bytes([packet[4], packet[5]]), n as u16, "identification of packet {n} of {len} bytes");
                assert_eq!([packet[6], packet[7]], [0x40, 0], "flags of packet {n} of {len} bytes");
                assert_eq!(packet[8], 17, "time to live");
            }
        }
        assert_eq!(port.counters().sent_packets, 1 + 20 + 1 + 15 + 1);
    })
    .join()
    .unwrap();
}
