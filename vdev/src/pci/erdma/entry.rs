//! Entries of send and receive queues, as the guest's driver writes them, into work requests.
//!
//! Input: copies of entries; the guest may have changed the ring meanwhile, which no longer matters. Owns opcodes, field
//! positions and the check that an entry holds what it says. Keys and addresses are not looked at: a bad one is a completion with
//! an error, which is the core's to give. No immediate data is turned around: what the driver stores is what goes on the wire.

use emtt::Segment;
use rnic::{AddressVector, AtomicOp, Destination, LocalBuffer, RecvRequest, SendFlags, SendOp, SendRequest};
use roce::{Lkey, Qpn, Rkey};

use super::layout::{BLOCK, INLINE, SEND_BLOCKS, SEND_SGE};
use crate::pci::bytes::{u32_at, u64_at};
use crate::sq::Buffers;

/// Bytes of the longest send entry.
pub const SEND_BYTES: usize = SEND_BLOCKS * BLOCK as usize;

/// Opcodes of send entries and completions.
pub mod opcode {
    /// WRITE.
    pub const WRITE: u8 = 0;
    /// READ.
    pub const READ: u8 = 1;
    /// SEND.
    pub const SEND: u8 = 2;
    /// SEND with immediate data.
    pub const SEND_IMM: u8 = 3;
    /// Completion of a receive by SEND.
    pub const RECEIVE: u8 = 4;
    /// Completion of a receive by WRITE with immediate data.
    pub const RECV_IMM: u8 = 5;
    /// Completion of a receive by SEND with invalidate.
    pub const RECV_INV: u8 = 6;
    /// WRITE with immediate data.
    pub const WRITE_IMM: u8 = 9;
    /// Completion of a receive by SEND with immediate data.
    pub const RECV_SEND_IMM: u8 = 12;
    /// SEND with invalidate.
    pub const SEND_INV: u8 = 13;
    /// Fast registration.
    pub const REG_MR: u8 = 14;
    /// A key is taken back.
    pub const LOCAL_INV: u8 = 15;
    /// Compare and swap.
    pub const CAS: u8 = 17;
    /// Fetch and add.
    pub const FAA: u8 = 18;
}

/// The first word of a send entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendHeader(pub u64);

impl SendHeader {
    fn bits(self, from: u32, count: u32) -> u64 {
        self.0 >> from & ((1 << count) - 1)
    }

    /// Blocks of the entry, 1 to 8; more than 4 is an error.
    pub fn blocks(self) -> usize {
        self.bits(52, 3) as usize + 1
    }

    /// Opcode.
    pub fn opcode(self) -> u8 {
        self.bits(27, 5) as u8
    }

    /// The queue pair that it says it is for.
    pub fn qpn(self) -> u32 {
        self.bits(32, 20) as u32
    }

    fn is_inline(self) -> bool {
        self.bits(25, 1) == 1
    }

    fn count(self) -> usize {
        self.bits(56, 8) as usize
    }

    fn flags(self) -> SendFlags {
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, self.bits(22, 1) == 1);
        flags.set(SendFlags::SOLICITED, self.bits(23, 1) == 1);
        flags.set(SendFlags::FENCE, self.bits(24, 1) == 1);
        flags
    }
}

/// An entry that makes no sense: it completes with an error, and its queue pair fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEntry {
    /// More blocks than an entry has.
    #[error("a send entry of {0} blocks")]
    Blocks(usize),
    /// No such address handle.
    #[error("a datagram to address handle {0}")]
    AddressHandle(u32),
    /// Unknown, not offered, or not for this kind of queue pair.
    #[error("a send entry with opcode {0}")]
    Opcode(u8),
    /// More buffers or inline data than fit.
    #[error("a send entry of {blocks} blocks with {count} buffers or inline bytes")]
    Count {
        /// Its blocks.
        blocks: usize,
        /// What it says to hold.
        count: usize,
    },
}

/// What a completion needs to know of its request: where the entry began, and its opcode. Travels as the request's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Running index of the first block, or of the receive entry.
    pub index: u16,
    /// Opcode of a send entry.
    pub opcode: u8,
}

impl Ticket {
    /// As a request id.
    pub fn id(self) -> u64 {
        u64::from(self.opcode) << 16 | u64::from(self.index)
    }

    /// Back from a request id.
    pub fn of(id: u64) -> Ticket {
        Ticket { index: id as u16, opcode: (id >> 16) as u8 }
    }
}

fn buffer(sge: &[u8]) -> LocalBuffer {
    LocalBuffer::Keyed { addr: u64_at(sge, 0), len: u32_at(sge, 8), lkey: Lkey(u32_at(sge, 12)) }
}

/// What a queue pair's transport makes of its entries.
#[derive(Clone, Copy)]
pub enum Transport<'a> {
    /// Reliable connection.
    Rc,
    /// Reliable connection of the guest's kernel, which registers memory by requests. Nobody else may: page lists name any memory.
    KernelRc,
    /// Datagrams, to what an address handle stands for.
    Ud(&'a dyn Fn(u32) -> Option<AddressVector>),
}

/// The request in a send entry that begins at block `index`. `ring` gives the memory of bytes of the entry itself, for inline
/// data, in at most four pieces.
///
/// # Errors
/// [`BadEntry`].
pub fn send_request<'a>(
    bytes: &[u8; SEND_BYTES],
    index: u16,
    transport: Transport<'_>,
    ring: impl FnOnce(usize, usize, &mut Buffers) -> usize,
    buffers: &'a mut Buffers,
) -> Result<SendRequest<'a>, BadEntry> {
    let header = SendHeader(u64_at(bytes, 0));
    let (blocks, opcode, count) = (header.blocks(), header.opcode(), header.count());
    if blocks > SEND_BLOCKS {
        return Err(BadEntry::Blocks(blocks));
    }
    let bad_count = BadEntry::Count { blocks, count };
    let room = blocks * BLOCK as usize;
    let needs = |bytes: usize| if room < bytes { Err(bad_count) } else { Ok(()) };
    let imm: [u8; 4] = bytes[8..12].try_into().expect("four bytes");
    let (op, data_at) = match opcode {
        opcode::SEND | opcode::SEND_IMM if let Transport::Ud(address) = transport => {
            needs(32)?;
            let (qkey, qpn, handle) = (u32_at(bytes, 16), Qpn::new(u32_at(bytes, 20)), u32_at(bytes, 24));
            let address = address(handle).ok_or(BadEntry::AddressHandle(handle))?;
            let imm = (opcode == opcode::SEND_IMM).then_some(imm);
            (SendOp::Datagram { to: Destination { address, qpn, qkey }, imm }, 32)
        }
        _ if matches!(transport, Transport::Ud(_)) => return Err(BadEntry::Opcode(opcode)),
        opcode::SEND => (SendOp::Send { imm: None, invalidate: None }, 16),
        opcode::SEND_IMM => (SendOp::Send { imm: Some(imm), invalidate: None }, 16),
        opcode::SEND_INV => (SendOp::Send { imm: None, invalidate: Some(Rkey(u32::from_le_bytes(imm))) }, 16),
        opcode::WRITE | opcode::WRITE_IMM => {
            let imm = (opcode == opcode::WRITE_IMM).then_some(imm);
            (SendOp::Write { remote_addr: u64_at(bytes, 20), rkey: Rkey(u32_at(bytes, 16)), imm }, 32)
        }
        // The caller registers the memory; see [`fast_registration`].
        opcode::REG_MR if matches!(transport, Transport::KernelRc) => {
            return Ok(request(header, index, SendOp::Nothing, &[]));
        }
        opcode::LOCAL_INV if matches!(transport, Transport::KernelRc) => {
            let key = Rkey(u32_at(bytes, 20));
            return Ok(request(header, index, SendOp::LocalInvalidate { key }, &[]));
        }
        opcode::READ => {
            needs(48)?;
            let remote = &bytes[32..48];
            buffers[0] = LocalBuffer::Keyed { lkey: Lkey(u32_at(bytes, 16)), addr: u64_at(bytes, 20), len: u32_at(bytes, 12) };
            let op = SendOp::Read { remote_addr: u64_at(remote, 0), rkey: Rkey(u32_at(remote, 12)) };
            return Ok(request(header, index, op, &buffers[..1]));
        }
        opcode::CAS | opcode::FAA => {
            needs(64)?;
            let (operand, compare, remote) = (u64_at(bytes, 16), u64_at(bytes, 24), &bytes[32..48]);
            let op = match opcode {
                opcode::CAS => AtomicOp::CompareSwap { compare, swap: operand },
                _ => AtomicOp::FetchAdd { add: operand },
            };
            buffers[0] = buffer(&bytes[48..64]);
            let op = SendOp::Atomic { remote_addr: u64_at(remote, 0), rkey: Rkey(u32_at(remote, 12)), op };
            return Ok(request(header, index, op, &buffers[..1]));
        }
        other => return Err(BadEntry::Opcode(other)),
    };
    let used = if header.is_inline() {
        if count > INLINE || data_at + count > room {
            return Err(bad_count);
        }
        ring(data_at, count, buffers)
    } else {
        if count > SEND_SGE as usize || data_at + 16 * count > room {
            return Err(bad_count);
        }
        for (to, sge) in buffers.iter_mut().zip(bytes[data_at..].chunks_exact(16)).take(count) {
            *to = buffer(sge);
        }
        count
    };
    Ok(request(header, index, op, &buffers[..used]))
}

fn request(header: SendHeader, index: u16, op: SendOp, buffers: &[LocalBuffer]) -> SendRequest<'_> {
    let wr_id = Ticket { index, opcode: header.opcode() }.id();
    SendRequest { wr_id, op, flags: header.flags(), buffers, srqn: None }
}

/// What a fast registration asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastRegistration {
    /// The key, whose upper 24 bits are the region's index.
    pub key: u32,
    /// Address of the first byte as requests name it.
    pub iova: u64,
    /// Bytes.
    pub len: u32,
    /// Rights.
    pub access: emtt::Access,
    /// Pages.
    pub count: u32,
    /// The pages themselves; if absent, the region's own list has them.
    pub inline: Option<[u64; 4]>,
}

/// The fast registration in a send entry.
///
/// # Errors
/// [`BadEntry::Count`]: more pages in line than fit. Whether the region's list has as many is for the caller.
pub fn fast_registration(bytes: &[u8; SEND_BYTES]) -> Result<FastRegistration, BadEntry> {
    let (blocks, word) = (SendHeader(u64_at(bytes, 0)).blocks(), u32_at(bytes, 24));
    let count = word >> 12;
    let inline = match word >> 6 & 3 {
        0 if blocks == 2 && count <= 4 => Some([32, 40, 48, 56].map(|at| u64_at(bytes, at))),
        1 => None,
        _ => return Err(BadEntry::Count { blocks, count: count as usize }),
    };
    let access = super::command::access(word);
    Ok(FastRegistration { key: u32_at(bytes, 20), iova: u64_at(bytes, 8), len: u32_at(bytes, 16), access, count, inline })
}

/// The request in a receive entry with this running index. An entry without bytes has no buffer: its key is stale.
pub fn recv_request<'a>(bytes: &[u8; BLOCK as usize], index: u16, buffers: &'a mut Buffers) -> RecvRequest<'a> {
    buffers[0] = buffer(&bytes[16..32]);
    let used = usize::from(u32_at(bytes, 24) > 0);
    RecvRequest { wr_id: Ticket { index, opcode: 0 }.id(), buffers: &buffers[..used] }
}

/// Puts memory of the ring itself into a request's buffers, neighbours merged; returns how many there are.
pub fn inline_buffers(segments: impl Iterator<Item = Segment>, buffers: &mut Buffers) -> usize {
    let mut used = 0_usize;
    for segment in segments {
        if let Some(LocalBuffer::Direct(last)) = used.checked_sub(1).map(|last: usize| &mut buffers[last])
            && last.owner == segment.owner
            && last.addr + last.len == segment.addr
        {
            last.len += segment.len;
            continue;
        }
        buffers[used] = LocalBuffer::Direct(segment);
        used += 1;
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sq::NO_BUFFER;

    const ROOM: usize = rnic::limits::MAX_SGE as usize;

    fn entry(opcode: u8, blocks: u64, count: u64, inline: bool) -> [u8; SEND_BYTES] {
        let mut bytes: [u8; SEND_BYTES] = core::array::from_fn(|n| n as u8);
        let header = 0x1234 | 1 << 22 | u64::from(inline) << 25 | u64::from(opcode) << 27 | 7 << 32 | (blocks - 1) << 52;
        bytes[..8].copy_from_slice(&(header | count << 56).to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; SEND_BYTES]) -> Result<(SendOp, Vec<LocalBuffer>, u64), BadEntry> {
        decode_as(Transport::Rc, bytes)
    }

    fn decode_as(transport: Transport<'_>, bytes: &[u8; SEND_BYTES]) -> Result<(SendOp, Vec<LocalBuffer>, u64), BadEntry> {
        let mut buffers = [NO_BUFFER; ROOM];
        let ring = |at: usize, len: usize, buffers: &mut Buffers| {
            let owner = emtt::Owner::Host(emtt::MemId(1));
            inline_buffers([Segment { owner, addr: at as u64, len: len as u64 }].into_iter().filter(|s| s.len > 0), buffers)
        };
        let request = send_request(bytes, 0x1230, transport, ring, &mut buffers)?;
        assert_eq!(request.flags, SendFlags::SIGNALED);
        Ok((request.op, request.buffers.to_vec(), request.wr_id))
    }

    fn keyed(at: u8) -> LocalBuffer {
        let bytes: Vec<u8> = (at..at + 16).collect();
        buffer(&bytes)
    }

    #[test]
    fn fields_lie_where_the_driver_puts_them() {
        let (op, buffers, id) = decode(&entry(opcode::SEND, 1, 1, false)).unwrap();
        assert_eq!((op, buffers), (SendOp::Send { imm: None, invalidate: None }, vec![keyed(16)]));
        assert_eq!(Ticket::of(id), Ticket { index: 0x1230, opcode: opcode::SEND });
        let rkey = Rkey(0x1312_1110);
        let (remote_addr, imm) = (0x1B1A_1918_1716_1514, Some([8, 9, 10, 11]));
        let (op, buffers, _) = decode(&entry(opcode::WRITE_IMM, 4, 6, false)).unwrap();
        assert_eq!(op, SendOp::Write { remote_addr, rkey, imm });
        assert_eq!(buffers, [32, 48, 64, 80, 96, 112].map(keyed));
        let (op, buffers, _) = decode(&entry(opcode::READ, 2, 0, false)).unwrap();
        assert_eq!(op, SendOp::Read { remote_addr: 0x2726_2524_2322_2120, rkey: Rkey(0x2F2E_2D2C) });
        assert_eq!(buffers, [LocalBuffer::Keyed { lkey: Lkey(rkey.0), addr: remote_addr, len: 0x0F0E_0D0C }]);
        let (op, buffers, _) = decode(&entry(opcode::CAS, 2, 0, false)).unwrap();
        let atomic = AtomicOp::CompareSwap { compare: 0x1F1E_1D1C_1B1A_1918, swap: 0x1716_1514_1312_1110 };
        assert_eq!(op, SendOp::Atomic { remote_addr: 0x2726_2524_2322_2120, rkey: Rkey(0x2F2E_2D2C), op: atomic });
        assert_eq!(buffers, [keyed(48)]);
        let (op, _, _) = decode(&entry(opcode::SEND_INV, 1, 0, false)).unwrap();
        assert_eq!(op, SendOp::Send { imm: None, invalidate: Some(Rkey(0x0B0A_0908)) });
    }

    #[test]
    fn datagrams_name_an_address_handle() {
        let known = AddressVector { port: 1, ..AddressVector::default() };
        let find = |handle| (handle == 0x1B1A_1918).then_some(known);
        let to = Destination { address: known, qpn: Qpn::new(0x16_1514), qkey: 0x1312_1110 };
        let (op, buffers, _) = decode_as(Transport::Ud(&find), &entry(opcode::SEND_IMM, 3, 2, false)).unwrap();
        assert_eq!(op, SendOp::Datagram { to, imm: Some([8, 9, 10, 11]) });
        assert_eq!(buffers, [32, 48].map(keyed));
        let unknown = decode_as(Transport::Ud(&|_| None), &entry(opcode::SEND, 2, 0, false));
        assert_eq!(unknown, Err(BadEntry::AddressHandle(0x1B1A_1918)));
        let write = decode_as(Transport::Ud(&find), &entry(opcode::WRITE, 2, 0, false));
        assert_eq!(write, Err(BadEntry::Opcode(opcode::WRITE)));
        assert!(decode_as(Transport::Ud(&find), &entry(opcode::SEND, 1, 1, false)).is_err());
    }

    #[test]
    fn inline_data_stay_in_the_ring() {
        for (code, at) in [(opcode::SEND, 16), (opcode::WRITE, 32)] {
            let (_, buffers, _) = decode(&entry(code, 4, 96, true)).unwrap();
            let [LocalBuffer::Direct(segment)] = buffers[..] else { panic!("{buffers:?}") };
            assert_eq!((segment.addr, segment.len), (at, 96));
            assert!(decode(&entry(code, 1, 0, true)).unwrap().1.is_empty());
        }
    }

    /// HG-05, and every other way in which an entry can say more than it holds.
    #[test]
    fn an_entry_cannot_say_more_than_it_holds() {
        for (code, blocks, count, inline) in [
            (opcode::SEND, 1, 2, false),
            (opcode::SEND, 4, 7, false),
            (opcode::SEND, 4, 255, false),
            (opcode::WRITE, 1, 1, false),
            (opcode::WRITE, 2, 3, false),
            (opcode::SEND, 1, 17, true),
            (opcode::WRITE, 3, 65, true),
            (opcode::SEND, 4, 97, true),
            (opcode::READ, 1, 0, false),
            (opcode::CAS, 1, 0, false),
        ] {
            let expected = BadEntry::Count { blocks: blocks as usize, count: count as usize };
            assert_eq!(decode(&entry(code, blocks, count, inline)), Err(expected), "opcode {code}");
        }
        assert_eq!(decode(&entry(opcode::SEND, 5, 1, false)), Err(BadEntry::Blocks(5)));
        for code in [4, 5, 6, 7, 8, 10, 11, 12, 14, 15, 16, 19, 31] {
            assert_eq!(decode(&entry(code, 4, 0, false)), Err(BadEntry::Opcode(code)));
        }
    }

    #[test]
    fn the_kernel_registers_and_takes_back_by_requests() {
        let (op, buffers, _) = decode_as(Transport::KernelRc, &entry(opcode::LOCAL_INV, 1, 0, false)).unwrap();
        assert_eq!((op, buffers), (SendOp::LocalInvalidate { key: Rkey(0x1716_1514) }, vec![]));
        let mut bytes = entry(opcode::REG_MR, 2, 0, false);
        assert_eq!(decode_as(Transport::KernelRc, &bytes).unwrap().0, SendOp::Nothing);
        bytes[24..28].copy_from_slice(&(3u32 << 12 | 1 << 3 | 1 << 5).to_le_bytes());
        let found = fast_registration(&bytes).unwrap();
        let access = emtt::Access::LOCAL_WRITE | emtt::Access::REMOTE_WRITE;
        assert_eq!((found.key, found.iova, found.len), (0x1716_1514, 0x0F0E_0D0C_0B0A_0908, 0x1312_1110));
        assert_eq!((found.count, found.access, found.inline.unwrap()[0]), (3, access, 0x2726_2524_2322_2120));
        bytes[24..28].copy_from_slice(&(512u32 << 12 | 1 << 6).to_le_bytes());
        let found = fast_registration(&bytes).unwrap();
        assert_eq!((found.count, found.access, found.inline), (512, emtt::Access::empty(), None));
        // More in line than there is room for, and a form that does not exist.
        for word in [5u32 << 12, 1 << 12 | 2 << 6] {
            bytes[24..28].copy_from_slice(&word.to_le_bytes());
            assert!(fast_registration(&bytes).is_err());
        }
    }

    #[test]
    fn receives_without_bytes_have_no_buffer() {
        let mut buffers = [NO_BUFFER; ROOM];
        let mut bytes: [u8; 32] = core::array::from_fn(|n| n as u8);
        let request = recv_request(&bytes, 0xFFFF, &mut buffers);
        assert_eq!((request.wr_id, request.buffers), (0xFFFF, &[keyed(16)][..]));
        bytes[24..28].fill(0);
        assert!(recv_request(&bytes, 0, &mut buffers).buffers.is_empty());
    }
}
