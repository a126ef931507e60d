//! Packets under way, and the pool that they come from and go back to.
//!
//! A packet holds its bytes from BTH to ICRC as the sender's core made them, but for a run of zeros that is left out: at scale
//! payload is a tag and zeros behind it (see [`crate::memory`]). [`Packet::write_to`] puts them back, and the receiver's core
//! checks the ICRC over all of it.

use crate::ecmp::FlowHash;
use crate::time::Time;
use roce::wire::{ICRC_LEN, Opcode, spray_ext};

/// End of a list of packets.
pub const NONE: u32 = u32::MAX;

/// Bytes of a frame besides the RoCEv2 packet: Ethernet header and FCS, IP header (IPv4; IPv6 has 20 more), UDP header.
pub const FRAME_OVERHEAD_IPV4: u32 = 14 + 4 + 20 + 8;
/// Bytes of the smallest Ethernet frame.
const LEAST_FRAME: u32 = 64;

/// Bytes of a frame that carries so many bytes of RoCEv2 packet.
pub fn frame_len(ipv6: bool, packet: usize) -> u32 {
    let overhead = FRAME_OVERHEAD_IPV4 + if ipv6 { 20 } else { 0 };
    // A packet is shorter than 64 KiB.
    (packet as u32 + overhead).max(LEAST_FRAME)
}

/// Bytes of BTH and extension headers of a packet that a core has made.
pub fn header_len(bytes: &[u8]) -> usize {
    match Opcode::from_code(bytes[0]) {
        Some(opcode) => opcode.headers_len(),
        None => spray_ext::Packet::parse(bytes).map_or(bytes.len() - ICRC_LEN, |(_, payload)| payload.start),
    }
}

/// A packet under way.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Its bytes, without the zeros left out.
    bytes: Vec<u8>,
    /// Where zeros are left out of `bytes`, and how many.
    cut: u32,
    zeros: u32,
    /// Bytes of BTH and extension headers.
    pub header_len: u32,
    /// Bytes on the wire, Ethernet header to FCS.
    pub frame_len: u32,
    /// Sending host.
    pub src: u32,
    /// Receiving host.
    pub dst: u32,
    /// UDP source port.
    pub src_port: u16,
    /// Hash of addresses and ports.
    pub hash: FlowHash,
    /// The IP header says that the sender understands congestion marks (ECT).
    pub ecn_capable: bool,
    /// Marked by a switch (CE).
    pub marked: bool,
    /// Cut to its headers by a switch.
    pub trimmed: bool,
    /// It carries no payload: acknowledgements, READ requests, and what was trimmed.
    pub is_control: bool,
    /// When its last transmission began.
    pub sent_at: Time,
    /// The link it came by to where it is queued.
    pub ingress: u32,
    /// The next one in a queue.
    pub next: u32,
}

impl Packet {
    /// Bytes from BTH to ICRC.
    pub fn len(&self) -> usize {
        self.bytes.len() + self.zeros as usize
    }

    /// Whether there are no bytes; only true in the pool.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of payload, padding included.
    pub fn payload_len(&self) -> u32 {
        (self.len() as u32).saturating_sub(self.header_len + roce::wire::ICRC_LEN as u32)
    }

    /// The bytes that are kept.
    pub fn kept(&self) -> &[u8] {
        &self.bytes
    }

    /// Takes these bytes, and leaves `zeros` zeros from `cut` on out.
    ///
    /// # Panics
    /// In debug builds, if there is something else than zeros.
    pub fn fill(&mut self, bytes: &[u8], cut: usize, zeros: usize) {
        debug_assert!(bytes[cut..cut + zeros].iter().all(|&byte| byte == 0), "only zeros are left out");
        self.bytes.clear();
        self.bytes.extend_from_slice(&bytes[..cut]);
        self.bytes.extend_from_slice(&bytes[cut + zeros..]);
        (self.cut, self.zeros) = (cut as u32, zeros as u32);
    }

    /// Writes all bytes to the start of `buf`, which is long enough, and returns how many.
    pub fn write_to(&self, buf: &mut [u8]) -> usize {
        let (cut, zeros) = (self.cut as usize, self.zeros as usize);
        let (head, tail) = self.bytes.split_at(cut);
        buf[..cut].copy_from_slice(head);
        buf[cut..cut + zeros].fill(0);
        let len = self.len();
        buf[cut + zeros..len].copy_from_slice(tail);
        len
    }

    /// Cuts it to its headers, as a switch that trims does.
    pub fn trim(&mut self, ipv6: bool) {
        self.bytes.truncate(self.header_len as usize);
        (self.cut, self.zeros) = (self.header_len, 0);
        self.frame_len = frame_len(ipv6, self.header_len as usize);
        (self.trimmed, self.is_control) = (true, true);
    }

    /// Flips one bit of those kept.
    pub fn corrupt(&mut self, random: u64) {
        let bit = random as usize % (self.bytes.len() * 8);
        self.bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

/// All packets under way, by number. Packets that are given back keep their buffers for the next.
#[derive(Debug, Default)]
pub struct Pool {
    packets: Vec<Packet>,
    free: Vec<u32>,
}

impl Pool {
    /// A packet to be filled.
    pub fn take(&mut self) -> u32 {
        if let Some(id) = self.free.pop() {
            return id;
        }
        self.packets.push(Packet {
            bytes: Vec::new(),
            cut: 0,
            zeros: 0,
            header_len: 0,
            frame_len: 0,
            src: 0,
            dst: 0,
            src_port: 0,
            hash: FlowHash::new([0; 4].into(), [0; 4].into(), 0),
            ecn_capable: false,
            marked: false,
            trimmed: false,
            is_control: false,
            sent_at: Time::ZERO,
            ingress: NONE,
            next: NONE,
        });
        // Each takes a hundred bytes and more: there is no memory for 2^32 of them.
        (self.packets.len() - 1) as u32
    }

    /// Gives a packet back.
    pub fn give_back(&mut self, id: u32) {
        self.free.push(id);
    }

    /// Packets that were taken and not given back.
    pub fn in_use(&self) -> usize {
        self.packets.len() - self.free.len()
    }
}

impl std::ops::Index<u32> for Pool {
    type Output = Packet;

    #[inline]
    fn index(&self, id: u32) -> &Packet {
        &self.packets[id as usize]
    }
}

impl std::ops::IndexMut<u32> for Pool {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut Packet {
        &mut self.packets[id as usize]
    }
}
