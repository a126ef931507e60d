//! A RoCEv2 peer made by hand: one UDP socket in a network namespace, packets as a test builds them.

use roce::wire::{Aeth, Bth, Headers, Opcode, Reth, UDP_PORT, icrc};
use roce::{Psn, Qpn, Rkey};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// How long an answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long to listen before it is certain that nothing is answered.
const SILENCE: Duration = Duration::from_millis(60);

/// The peer.
#[derive(Debug)]
pub struct RawPeer {
    socket: UdpSocket,
    flow: icrc::Flow,
    /// The device's queue pair that packets go to.
    pub dest_qpn: u32,
}

impl RawPeer {
    /// A socket on port 4791 of `own` in a network namespace, speaking to the device at `device`.
    pub fn new(netns: &str, own: &str, device: &str) -> RawPeer {
        let (src, dst): (IpAddr, IpAddr) = (own.parse().expect("an address"), device.parse().expect("an address"));
        let netns = std::fs::File::open(format!("/run/netns/{netns}")).expect("the namespace exists");
        // A thread may change its namespace alone; the socket keeps it.
        let bound = std::thread::spawn(move || {
            // SAFETY: setns affects only this thread, which ends here.
            let entered = unsafe { libc::setns(netns.as_raw_fd(), libc::CLONE_NEWNET) };
            assert_eq!(entered, 0, "setns: {}", io::Error::last_os_error());
            UdpSocket::bind(SocketAddr::new(src, UDP_PORT))
        });
        let socket = bound.join().expect("the thread ends well").expect("the address can be bound");
        let with_df = libc::IP_PMTUDISC_DO;
        // SAFETY: the option's value is an int.
        let set = unsafe {
            let (value, len) = ((&raw const with_df).cast(), size_of_val(&with_df) as libc::socklen_t);
            libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, value, len)
        };
        assert_eq!(set, 0, "IP_MTU_DISCOVER: {}", io::Error::last_os_error());
        RawPeer { socket, flow: icrc::Flow { src, dst, src_port: UDP_PORT }, dest_qpn: 0 }
    }

    /// The socket, for IP options.
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// A base transport header with everything as usual.
    pub fn bth(&self, opcode: Opcode, psn: u32) -> Bth {
        Bth { ack_req: true, ..Bth::new(opcode, Qpn::new(self.dest_qpn), Psn::new(psn)) }
    }

    /// A packet from headers and payload (a multiple of four bytes), ICRC included.
    pub fn packet(&self, headers: &Headers, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; headers.len()];
        headers.emit(&mut bytes);
        bytes.extend_from_slice(payload);
        self.seal(bytes)
    }

    /// Appends the ICRC to the bytes of a packet, whatever they are.
    pub fn seal(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        let crc = icrc::compute(&self.flow, 0, &bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// A WRITE in one packet.
    pub fn write_only(&self, psn: u32, va: u64, rkey: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("a packet is short");
        let reth = Some(Reth { va, rkey: Rkey(rkey), length });
        self.packet(&Headers { reth, ..headers(self.bth(Opcode::RcWriteOnly, psn)) }, payload)
    }

    /// Sends bytes as they are.
    pub fn send(&self, packet: &[u8]) {
        let to = SocketAddr::new(self.flow.dst, UDP_PORT);
        let sent = self.socket.send_to(packet, to).expect("the packet can be sent");
        assert_eq!(sent, packet.len());
    }

    /// The next packet from the device, checked.
    pub fn answer(&self) -> Headers {
        self.receive(ANSWER_LIMIT).unwrap_or_else(|| panic!("no answer in {ANSWER_LIMIT:?}"))
    }

    /// The AETH of the next packet from the device, and its PSN.
    pub fn aeth(&self) -> (Aeth, u32) {
        let headers = self.answer();
        (headers.aeth.unwrap_or_else(|| panic!("an AETH in {headers:?}")), headers.bth.psn.get())
    }

    /// Asserts that nothing comes.
    pub fn silence(&self, about: &str) {
        if let Some(headers) = self.receive(SILENCE) {
            panic!("{about}: must be dropped silently, was answered with {headers:?}");
        }
    }

    fn receive(&self, limit: Duration) -> Option<Headers> {
        self.socket.set_read_timeout(Some(limit)).expect("a timeout can be set");
        let mut bytes = [0; 9000];
        let (len, from) = match self.socket.recv_from(&mut bytes) {
            Ok(received) => received,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => return None,
            Err(error) => panic!("receiving: {error}"),
        };
        let flow = icrc::Flow { src: self.flow.dst, dst: self.flow.src, src_port: from.port() };
        icrc::check(&flow, &bytes[..len]).unwrap_or_else(|error| panic!("the device sent a bad packet: {error}"));
        let (headers, _) =
            Headers::parse(&bytes[..len]).unwrap_or_else(|error| panic!("the device sent a bad packet: {error}"));
        Some(headers)
    }
}

/// Headers with nothing but the base transport header.
pub fn headers(bth: Bth) -> Headers {
    Headers::new(bth)
}
