//! The spray extension: what the two ends of a reliable connection send each other once they agreed to use many paths.
//!
//! Every packet is a UDP datagram to port 4791 with a BTH, an opcode of the manufacturer's range and an ICRC. All but the offer
//! begin with a [`Stamp`]; data packets carry an address each, so that they can be placed in any order. [`hello_psn`] and
//! [`hello_msn`] make the acknowledgement by which an end shows, to a peer that knows, that it speaks the extension.
//!
//! The format byte by byte, its negotiation and its limits are in `spray/WIRE.md`.

use super::headers::{take, take_mut};
use super::{AtomicEth, BTH_LEN, Bth, ICRC_LEN, Reth, WireError};
use crate::rng::mix;
use crate::{Psn, Qpn};
use core::ops::Range;

/// The version of the format that is spoken.
pub const VERSION: u8 = 1;
/// Largest receive window in packets.
pub const MAX_WINDOW: u16 = 4096;
/// Most words of a selective-acknowledgement map in one packet: it fits the smallest path MTU.
pub const MAP_WORDS: usize = 16;
/// First opcode of the extension; all from here to 0xFF belong to it.
pub const FIRST_OPCODE: u8 = 0xE0;

/// "VSPR", the first bytes of an offer.
const MAGIC: [u8; 4] = *b"VSPR";
const STAMP_LEN: usize = 8;
const OFFER_LEN: usize = 12;
const DATA_LEN: usize = STAMP_LEN + Reth::LEN + 8;
const SACK_LEN: usize = STAMP_LEN + 16;
const NACK_LEN: usize = STAMP_LEN + 8;
const MARKED: u8 = 1;
const ANSWERS_PROBE: u8 = 2;

/// Features that an offer can name.
pub mod feature {
    /// READs and atomics may be sent as extension packets.
    pub const FETCH: u16 = 1;
    /// Packets whose payload a switch has cut off are reported.
    pub const TRIMMED: u16 = 2;
}

/// Opcodes of the extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Code {
    /// What the sender of the packet, as a receiver, can do.
    Offer = 0xE0,
    /// A packet of a WRITE.
    Write = 0xE1,
    /// The last packet of a WRITE with immediate data.
    WriteWithImm = 0xE2,
    /// A packet of a SEND.
    Send = 0xE3,
    /// The last packet of a SEND with immediate data.
    SendWithImm = 0xE4,
    /// The last packet of a SEND that invalidates a key.
    SendWithInvalidate = 0xE5,
    /// READ request.
    ReadRequest = 0xE6,
    /// READ response.
    ReadResponse = 0xE7,
    /// Compare-and-swap request.
    CompareSwap = 0xE8,
    /// Fetch-and-add request.
    FetchAdd = 0xE9,
    /// Response of an atomic: the value before.
    AtomicResponse = 0xEA,
    /// Selective acknowledgement.
    Sack = 0xEB,
    /// One packet is refused.
    Nack = 0xEC,
    /// Asks for a [`Code::Sack`] and moves nothing.
    Probe = 0xED,
}

impl Code {
    /// All of them, in ascending order.
    pub const ALL: [Code; 14] = [
        Code::Offer,
        Code::Write,
        Code::WriteWithImm,
        Code::Send,
        Code::SendWithImm,
        Code::SendWithInvalidate,
        Code::ReadRequest,
        Code::ReadResponse,
        Code::CompareSwap,
        Code::FetchAdd,
        Code::AtomicResponse,
        Code::Sack,
        Code::Nack,
        Code::Probe,
    ];

    fn decode(code: u8) -> Result<Code, WireError> {
        let index = usize::from(code.wrapping_sub(FIRST_OPCODE));
        Code::ALL.get(index).copied().ok_or(WireError::UnknownOpcode(code))
    }

    /// Whether payload may follow the headers.
    pub const fn has_payload(self) -> bool {
        self.is_write_or_send() || matches!(self, Code::ReadResponse)
    }

    /// Whether it is a packet of a WRITE or a SEND.
    pub const fn is_write_or_send(self) -> bool {
        matches!(self, Code::Write | Code::Send) || self.has_word()
    }

    /// Whether immediate data or a key to invalidate follow the address.
    pub const fn has_word(self) -> bool {
        matches!(self, Code::WriteWithImm | Code::SendWithImm | Code::SendWithInvalidate)
    }

    /// Bytes of BTH and extension headers, without the words of a map.
    pub const fn headers_len(self) -> usize {
        BTH_LEN
            + match self {
                Code::Offer => OFFER_LEN,
                Code::Write | Code::Send | Code::ReadRequest => DATA_LEN,
                Code::WriteWithImm | Code::SendWithImm | Code::SendWithInvalidate => DATA_LEN + 4,
                Code::ReadResponse | Code::Probe => STAMP_LEN,
                Code::CompareSwap | Code::FetchAdd => STAMP_LEN + AtomicEth::LEN,
                Code::AtomicResponse => STAMP_LEN + 8,
                Code::Sack => SACK_LEN,
                Code::Nack => NACK_LEN,
            }
    }
}

/// What every packet but the offer begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Message sequence number, 24 bits: in requests the count of messages begun before this one, in answers the count of
    /// messages whose effects are complete.
    pub msn: u32,
    /// In requests and probes the sender's clock in nanoseconds, modulo 2^32; in answers the time of the packet that caused the
    /// answer.
    pub time: u32,
}

/// Where a receiver stands, told to the sender it would like to hear from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Oldest version that it understands.
    pub lowest: u8,
    /// Newest version that it understands.
    pub highest: u8,
    /// What it can do, see [`feature`]; unknown bits mean nothing.
    pub features: u16,
    /// Packets from the expected PSN on that it takes, 1 to [`MAX_WINDOW`].
    pub window: u16,
    /// Longest time in microseconds that it holds an acknowledgement back.
    pub ack_delay_us: u16,
}

/// The address of one packet of a WRITE or SEND, or of a READ request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Sequence and time.
    pub stamp: Stamp,
    /// The whole message, as in the RETH of its first packet; address and key are zero for a SEND.
    pub reth: Reth,
    /// First byte of this packet within the message, or first byte that a READ request asks for.
    pub offset: u32,
    /// Receive sequence number, 24 bits: messages that consume a receive, before this one. Of a READ request: packets that it asks for.
    pub rsn: u32,
    /// Immediate data or the key to invalidate, where the opcode has it.
    pub word: Option<[u8; 4]>,
}

/// What [`Sack::rate`] counts, in bytes per second.
pub const RATE_UNIT: u64 = 4096;

/// A selective acknowledgement. The BTH's PSN is the newest before which none is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sack {
    /// Completed messages, and the time of the packet that is echoed.
    pub stamp: Stamp,
    /// UDP source port of the packet that is echoed.
    pub port: u16,
    /// The echoed packet carried a congestion mark.
    pub marked: bool,
    /// The echoed packet is a probe.
    pub answers_probe: bool,
    /// Packets beyond the BTH's PSN that the receiver takes.
    pub window: u16,
    /// Data packets received, modulo 2^16.
    pub received: u16,
    /// Those of them that carried a congestion mark, modulo 2^16.
    pub received_marked: u16,
    /// Those of them that had been received before, modulo 2^16.
    pub duplicates: u16,
    /// What the sender is asked to keep to, in units of [`RATE_UNIT`] bytes per second with all headers of its frames, below 2^24;
    /// 0: nothing is asked.
    pub rate: u32,
    /// What was received beyond the BTH's PSN.
    pub map: SackMap,
}

/// Which packets beyond the cumulative PSN have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SackMap {
    offset: u16,
    len: u8,
    words: [u64; MAP_WORDS],
}

impl SackMap {
    /// Nothing is told.
    pub const EMPTY: SackMap = SackMap { offset: 0, len: 0, words: [0; MAP_WORDS] };

    /// A map whose first bit, the lowest of the first word, stands for the PSN `offset` + 1 after the cumulative one.
    ///
    /// # Panics
    /// With more than [`MAP_WORDS`] words, or one that goes beyond [`MAX_WINDOW`].
    pub fn new(offset: u16, words: &[u64]) -> SackMap {
        assert!(usize::from(offset) + words.len() * 64 <= usize::from(MAX_WINDOW), "a map beyond the largest window");
        let mut map = SackMap { offset, len: words.len() as u8, ..SackMap::EMPTY };
        map.words[..words.len()].copy_from_slice(words);
        map
    }

    /// Distance of the first bit, see [`SackMap::new`].
    pub fn offset(&self) -> u16 {
        self.offset
    }

    /// The words.
    pub fn words(&self) -> &[u64] {
        &self.words[..usize::from(self.len)]
    }

    /// Distances after the cumulative PSN, from 1 on, of the packets that have arrived.
    pub fn received(&self) -> impl Iterator<Item = u32> + '_ {
        let first = u32::from(self.offset) + 1;
        self.words().iter().enumerate().flat_map(move |(n, &word)| {
            let mut left = word;
            core::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(first + n as u32 * 64 + bit)
            })
        })
    }
}

/// Why a packet is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A switch has cut its payload off.
    Trimmed,
    /// Its PSN lies beyond the receive window.
    OutsideWindow,
    /// No receive is posted for its message: come again after the time of this RNR code (5 bits).
    NotReady(u8),
    /// The receiver has no room for it now.
    NoBuffer,
    /// The request is invalid; the connection has failed.
    InvalidRequest,
    /// The memory may not be used so; the connection has failed.
    RemoteAccessError,
    /// The receiver could not carry it out; the connection has failed.
    RemoteOperationalError,
}

impl Reason {
    /// Whether the connection has failed with it.
    pub fn is_fatal(self) -> bool {
        self.code().0 & 0x80 != 0
    }

    fn code(self) -> (u8, u8) {
        match self {
            Reason::Trimmed => (1, 0),
            Reason::OutsideWindow => (2, 0),
            Reason::NotReady(timer) => (3, timer),
            Reason::NoBuffer => (4, 0),
            Reason::InvalidRequest => (0x81, 0),
            Reason::RemoteAccessError => (0x82, 0),
            Reason::RemoteOperationalError => (0x83, 0),
        }
    }

    fn decode(code: u8, detail: u8) -> Result<Reason, WireError> {
        Ok(match code {
            1 => Reason::Trimmed,
            2 => Reason::OutsideWindow,
            3 => Reason::NotReady(detail & 0x1F),
            4 => Reason::NoBuffer,
            0x81 => Reason::InvalidRequest,
            0x82 => Reason::RemoteAccessError,
            0x83 => Reason::RemoteOperationalError,
            _ => return Err(WireError::Extension("reason")),
        })
    }
}

/// A refusal. The BTH's PSN is that of the packet that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nack {
    /// Completed messages, and the time of the packet that is refused.
    pub stamp: Stamp,
    /// Its UDP source port.
    pub port: u16,
    /// Why.
    pub reason: Reason,
    /// The newest PSN before which none is missing.
    pub cumulative: Psn,
}

/// The extension headers, by kind of opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ext {
    /// [`Code::Offer`].
    Offer(Offer),
    /// Packets of WRITEs and SENDs, and [`Code::ReadRequest`].
    Data(Data),
    /// [`Code::ReadResponse`] and [`Code::Probe`].
    Stamp(Stamp),
    /// [`Code::CompareSwap`] and [`Code::FetchAdd`].
    Atomic(Stamp, AtomicEth),
    /// [`Code::AtomicResponse`]: the value before.
    AtomicResponse(Stamp, u64),
    /// [`Code::Sack`].
    Sack(Sack),
    /// [`Code::Nack`].
    Nack(Nack),
}

/// The headers of a packet of the extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Base transport header.
    pub bth: Bth<Code>,
    /// What follows it.
    pub ext: Ext,
}

impl Packet {
    /// Bytes that [`Packet::emit`] writes: BTH and extension headers.
    pub fn headers_len(&self) -> usize {
        let map = match &self.ext {
            Ext::Sack(sack) => sack.map.words().len() * 8,
            _ => 0,
        };
        self.bth.opcode.headers_len() + map
    }

    /// Writes the headers to the start of `buf` and returns how many bytes that took. Numbers of 24 bits are cut to that.
    ///
    /// # Panics
    /// If `buf` is too short, if the headers are not those of the opcode, or if an RNR code, the pad count or a map does not fit
    /// its field: all faults of the caller.
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let len = self.headers_len();
        let code = self.bth.opcode;
        let mut rest = &mut buf[..len];
        self.bth.emit(code as u8, take_mut(&mut rest));
        match (self.ext, code) {
            (Ext::Offer(offer), Code::Offer) => offer.emit(take_mut(&mut rest)),
            (Ext::Data(data), _) if code.is_write_or_send() || code == Code::ReadRequest => {
                assert!(data.word.is_some() == code.has_word(), "{code:?} with {:?}", data.word);
                data.stamp.emit(0, take_mut(&mut rest));
                data.reth.emit(take_mut(&mut rest));
                *take_mut(&mut rest) = data.offset.to_be_bytes();
                *take_mut(&mut rest) = (data.rsn & 0xFF_FFFF).to_be_bytes();
                if let Some(word) = data.word {
                    *take_mut(&mut rest) = word;
                }
            }
            (Ext::Stamp(stamp), Code::ReadResponse | Code::Probe) => stamp.emit(0, take_mut(&mut rest)),
            (Ext::Atomic(stamp, atomic), Code::CompareSwap | Code::FetchAdd) => {
                stamp.emit(0, take_mut(&mut rest));
                atomic.emit(take_mut(&mut rest));
            }
            (Ext::AtomicResponse(stamp, before), Code::AtomicResponse) => {
                stamp.emit(0, take_mut(&mut rest));
                *take_mut(&mut rest) = before.to_be_bytes();
            }
            (Ext::Sack(sack), Code::Sack) => {
                sack.emit(take_mut(&mut rest));
                for word in sack.map.words() {
                    *take_mut(&mut rest) = word.to_be_bytes();
                }
            }
            (Ext::Nack(nack), Code::Nack) => nack.emit(take_mut(&mut rest)),
            (ext, code) => panic!("{code:?} does not go with {ext:?}"),
        }
        len
    }

    /// Parses a UDP payload: from BTH to ICRC. The range is that of the payload, without padding and ICRC. The ICRC itself is not
    /// checked, see [`super::icrc::check`].
    ///
    /// # Errors
    /// If the packet is not well formed: see [`WireError`].
    pub fn parse(udp_payload: &[u8]) -> Result<(Packet, Range<usize>), WireError> {
        let len = udp_payload.len();
        let truncated = |need| WireError::Truncated { len, need };
        let Some((bth, mut rest)) = udp_payload.split_first_chunk::<BTH_LEN>() else {
            return Err(truncated(BTH_LEN + ICRC_LEN));
        };
        let bth = Bth::parse(bth, Code::decode)?;
        let code = bth.opcode;
        let trailer = usize::from(bth.pad) + ICRC_LEN;
        let short = truncated(code.headers_len() + trailer);
        if len < code.headers_len() + trailer {
            return Err(short);
        }
        if !len.is_multiple_of(4) {
            return Err(WireError::Unaligned(len));
        }
        let ext = match code {
            Code::Offer => Ext::Offer(Offer::parse(take(&mut rest).ok_or(short)?)?),
            Code::ReadResponse | Code::Probe => Ext::Stamp(Stamp::parse(take(&mut rest).ok_or(short)?)?.0),
            Code::CompareSwap | Code::FetchAdd => {
                let (stamp, _) = Stamp::parse(take(&mut rest).ok_or(short)?)?;
                Ext::Atomic(stamp, AtomicEth::parse(take(&mut rest).ok_or(short)?))
            }
            Code::AtomicResponse => {
                let (stamp, _) = Stamp::parse(take(&mut rest).ok_or(short)?)?;
                Ext::AtomicResponse(stamp, u64::from_be_bytes(*take(&mut rest).ok_or(short)?))
            }
            Code::Sack => {
                let (mut sack, words) = Sack::parse(take(&mut rest).ok_or(short)?)?;
                for word in &mut sack.map.words[..words] {
                    *word = u64::from_be_bytes(*take(&mut rest).ok_or(truncated(SACK_LEN + words * 8 + trailer))?);
                }
                Ext::Sack(sack)
            }
            Code::Nack => Ext::Nack(Nack::parse(take(&mut rest).ok_or(short)?)?),
            _ => {
                let (stamp, _) = Stamp::parse(take(&mut rest).ok_or(short)?)?;
                let reth = Reth::parse(take(&mut rest).ok_or(short)?);
                let offset = u32::from_be_bytes(*take(&mut rest).ok_or(short)?);
                let rsn = u32::from_be_bytes(*take(&mut rest).ok_or(short)?) & 0xFF_FFFF;
                let word = if code.has_word() { Some(*take(&mut rest).ok_or(short)?) } else { None };
                Ext::Data(Data { stamp, reth, offset, rsn, word })
            }
        };
        let packet = Packet { bth, ext };
        let (start, end) = (packet.headers_len(), len - trailer);
        if start > end {
            return Err(truncated(start + trailer));
        }
        if !code.has_payload() && start + ICRC_LEN != len {
            return Err(WireError::Extension("length"));
        }
        Ok((packet, start..end))
    }
}

/// Whether a UDP payload claims to be of the extension.
pub fn is_extension(udp_payload: &[u8]) -> bool {
    udp_payload.first().is_some_and(|&code| code >= FIRST_OPCODE)
}

/// What is left of a data packet whose payload a switch has cut off: BTH and stamp. There is no ICRC, so nothing of it is certain;
/// `None` if it is no data packet.
pub fn parse_trimmed(udp_payload: &[u8]) -> Option<(Bth<Code>, Stamp)> {
    let (bth, rest) = udp_payload.split_first_chunk::<BTH_LEN>()?;
    let bth = Bth::parse(bth, Code::decode).ok().filter(|bth| bth.opcode.has_payload())?;
    let (stamp, _) = Stamp::parse(rest.first_chunk()?).ok()?;
    Some((bth, stamp))
}

/// The PSN of a hello to a peer from which `expected` is awaited next: far behind everything that it can have outstanding.
pub fn hello_psn(expected: Psn) -> Psn {
    expected.minus(1 << 22)
}

/// The MSN that makes a stale acknowledgement a hello: a check over its PSN and both queue pairs.
pub fn hello_msn(psn: Psn, from: Qpn, to: Qpn) -> u32 {
    let parts = u64::from(psn.get()) << 40 ^ u64::from(from.get()) << 20 ^ u64::from(to.get());
    (mix(parts ^ mix(u64::from(u32::from_be_bytes(MAGIC)))) >> 40) as u32
}

/// Whether an acknowledgement from queue pair `from` to `to` is a hello. `oldest` is the oldest PSN that `to` has not had
/// acknowledged: a real acknowledgement never lies where a hello does. Without one `to` cannot send yet, and there is nothing to
/// acknowledge.
pub fn is_hello(psn: Psn, msn: u32, oldest: Option<Psn>, from: Qpn, to: Qpn) -> bool {
    let is_stale = oldest.is_none_or(|oldest| (1 << 21..3 << 21).contains(&oldest.distance_from(psn)));
    is_stale && msn == hello_msn(psn, from, to)
}

impl Stamp {
    fn emit(&self, flags: u8, out: &mut [u8; STAMP_LEN]) {
        out[..4].copy_from_slice(&(self.msn & 0xFF_FFFF).to_be_bytes());
        out[0] = VERSION << 4 | flags;
        out[4..].copy_from_slice(&self.time.to_be_bytes());
    }

    /// The stamp, and the flags beside the version.
    fn parse(bytes: &[u8; STAMP_LEN]) -> Result<(Stamp, u8), WireError> {
        let [head, m0, m1, m2, t0, t1, t2, t3] = *bytes;
        if head >> 4 != VERSION {
            return Err(WireError::Extension("version"));
        }
        let msn = u32::from_be_bytes([0, m0, m1, m2]);
        Ok((Stamp { msn, time: u32::from_be_bytes([t0, t1, t2, t3]) }, head & 0xF))
    }
}

impl Offer {
    fn emit(&self, out: &mut [u8; OFFER_LEN]) {
        out[..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&[self.lowest, self.highest]);
        out[6..8].copy_from_slice(&self.features.to_be_bytes());
        out[8..10].copy_from_slice(&self.window.to_be_bytes());
        out[10..].copy_from_slice(&self.ack_delay_us.to_be_bytes());
    }

    fn parse(bytes: &[u8; OFFER_LEN]) -> Result<Offer, WireError> {
        let [m0, m1, m2, m3, lowest, highest, f0, f1, w0, w1, d0, d1] = *bytes;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(WireError::Extension("magic"));
        }
        let window = u16::from_be_bytes([w0, w1]);
        if window == 0 || window > MAX_WINDOW {
            return Err(WireError::Extension("window"));
        }
        if lowest > highest {
            return Err(WireError::Extension("version"));
        }
        Ok(Offer {
            lowest,
            highest,
            features: u16::from_be_bytes([f0, f1]),
            window,
            ack_delay_us: u16::from_be_bytes([d0, d1]),
        })
    }
}

impl Sack {
    fn emit(&self, out: &mut [u8; SACK_LEN]) {
        let flag = |set, bit| if set { bit } else { 0 };
        let (stamp, rest) = out.split_first_chunk_mut().expect("longer than a stamp");
        self.stamp.emit(flag(self.marked, MARKED) | flag(self.answers_probe, ANSWERS_PROBE), stamp);
        let numbers = [self.port, self.window, self.received, self.received_marked, self.duplicates, self.map.offset];
        for (field, number) in rest.chunks_exact_mut(2).zip(numbers) {
            field.copy_from_slice(&number.to_be_bytes());
        }
        let [_, r0, r1, r2] = self.rate.min((1 << 24) - 1).to_be_bytes();
        rest[12..].copy_from_slice(&[self.map.len, r0, r1, r2]);
    }

    /// The acknowledgement with a map of zeros, and how many words of it follow.
    fn parse(bytes: &[u8; SACK_LEN]) -> Result<(Sack, usize), WireError> {
        let (stamp, rest) = bytes.split_first_chunk().expect("longer than a stamp");
        let (stamp, flags) = Stamp::parse(stamp)?;
        let number = |n: usize| u16::from_be_bytes([rest[n * 2], rest[n * 2 + 1]]);
        let (offset, words) = (number(5), usize::from(rest[12]));
        if words > MAP_WORDS || usize::from(offset) + words * 64 > usize::from(MAX_WINDOW) {
            return Err(WireError::Extension("map"));
        }
        let sack = Sack {
            stamp,
            port: number(0),
            marked: flags & MARKED != 0,
            answers_probe: flags & ANSWERS_PROBE != 0,
            window: number(1),
            received: number(2),
            received_marked: number(3),
            duplicates: number(4),
            rate: u32::from_be_bytes([0, rest[13], rest[14], rest[15]]),
            map: SackMap { offset, len: words as u8, ..SackMap::EMPTY },
        };
        Ok((sack, words))
    }
}

impl Nack {
    fn emit(&self, out: &mut [u8; NACK_LEN]) {
        let (stamp, rest) = out.split_first_chunk_mut().expect("longer than a stamp");
        self.stamp.emit(0, stamp);
        let (reason, detail) = self.reason.code();
        assert!(detail < 32, "RNR code {detail} is above 31");
        rest[..2].copy_from_slice(&self.port.to_be_bytes());
        rest[2..4].copy_from_slice(&[reason, detail]);
        rest[4..].copy_from_slice(&self.cumulative.get().to_be_bytes());
    }

    fn parse(bytes: &[u8; NACK_LEN]) -> Result<Nack, WireError> {
        let (stamp, rest) = bytes.split_first_chunk().expect("longer than a stamp");
        let (stamp, _) = Stamp::parse(stamp)?;
        let reason = Reason::decode(rest[2], rest[3])?;
        let cumulative = Psn::new(u32::from_be_bytes([0, rest[5], rest[6], rest[7]]));
        Ok(Nack { stamp, port: u16::from_be_bytes([rest[0], rest[1]]), reason, cumulative })
    }
}
