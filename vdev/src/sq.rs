//! Ring entries to work requests.
//!
//! Input: copies of entries that the ring code has bounded. Owns the meaning of opcodes, flags and the staging key. What is
//! wrong here cannot come from the verbs library, so it ends the client. Keys and addresses are not looked at: a bad one is a
//! completion with an error, which is the core's to give.

use emtt::{Access, MemId, Owner, Segment};
use rnic::{
    AddressVector, AtomicOp, BindWindow, Destination, LocalBuffer, QpType, RecvRequest, SendFlags, SendOp, SendRequest,
    limits::MAX_SGE,
};
use roce::{Gid, Lkey, Qpn, Rkey, Srqn};
use vdev_abi::layout::{self, RecvEntry, STAGING_LKEY, Sge};
use vdev_abi::queue::{FLAG_INLINE, TakenSend};

/// Room for the buffers of one request, reused.
pub type Buffers = [LocalBuffer; MAX_SGE as usize];

/// What an unused place in [`Buffers`] holds.
pub const NO_BUFFER: LocalBuffer = LocalBuffer::Keyed { lkey: Lkey(0), addr: 0, len: 0 };

/// Memory that requests of one queue pair may use without a key.
#[derive(Clone, Copy, Debug)]
pub struct Unkeyed {
    /// The queue pair's own memory, where inline data lie.
    pub ring: MemId,
    /// The connection's staging buffer and its length in bytes.
    pub staging: Option<(MemId, u64)>,
}

/// An entry that the library would never write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEntry {
    /// No such opcode.
    #[error("a send entry has unknown opcode {0}")]
    Opcode(u8),
    /// No such flag.
    #[error("a send entry has unknown flags {0:#x}")]
    Flags(u8),
    /// A READ or an atomic has no data of its own to send, nor has a request without a message.
    #[error("a send entry with opcode {0} has inline data or a staging buffer, but sends none")]
    NotASource(u8),
    /// Outside the staging buffer, or there is none.
    #[error("a send entry names {len} bytes at {addr:#x} of a staging buffer of {size} bytes")]
    Staging {
        /// Offset.
        addr: u64,
        /// Bytes.
        len: u32,
        /// Bytes of the buffer, 0 when there is none.
        size: u64,
    },
    /// More buffers than any request may have.
    #[error("an entry names {0} buffers")]
    Buffers(usize),
    /// Rights that no window has.
    #[error("a send entry binds a window with access flags {0:#x}")]
    Access(u32),
}

/// The request in a send entry of a queue pair of this type. `sges` are the buffers that go with it, empty for inline data.
///
/// # Errors
/// [`BadEntry`].
pub fn send_request<'a>(
    qp_type: QpType,
    taken: &TakenSend,
    sges: &[Sge],
    memory: &Unkeyed,
    buffers: &'a mut Buffers,
) -> Result<SendRequest<'a>, BadEntry> {
    let entry = &taken.entry;
    let (remote_addr, rkey) = (entry.remote_addr, Rkey(entry.rkey));
    let op = match entry.opcode {
        2 if qp_type == QpType::Ud => SendOp::Datagram { to: destination(&entry.destination()), imm: None },
        3 if qp_type == QpType::Ud => SendOp::Datagram { to: destination(&entry.destination()), imm: Some(entry.imm) },
        0 => SendOp::Write { remote_addr, rkey, imm: None },
        1 => SendOp::Write { remote_addr, rkey, imm: Some(entry.imm) },
        2 => SendOp::Send { imm: None, invalidate: None },
        3 => SendOp::Send { imm: Some(entry.imm), invalidate: None },
        4 => SendOp::Read { remote_addr, rkey },
        5 => {
            let op = AtomicOp::CompareSwap { compare: entry.compare_add, swap: entry.swap };
            SendOp::Atomic { remote_addr, rkey, op }
        }
        6 => SendOp::Atomic { remote_addr, rkey, op: AtomicOp::FetchAdd { add: entry.compare_add } },
        7 => SendOp::LocalInvalidate { key: Rkey(u32::from_ne_bytes(entry.imm)) },
        8 => SendOp::BindWindow(binding(&entry.binding())?),
        9 => SendOp::Send { imm: None, invalidate: Some(Rkey(u32::from_ne_bytes(entry.imm))) },
        other => return Err(BadEntry::Opcode(other)),
    };
    let is_source = matches!(op, SendOp::Send { .. } | SendOp::Write { .. } | SendOp::Datagram { .. });
    let flags = SendFlags::from_bits(entry.flags & !FLAG_INLINE).ok_or(BadEntry::Flags(entry.flags))?;
    let mut count = 0;
    if let Some(range) = &taken.inline {
        if !is_source {
            return Err(BadEntry::NotASource(entry.opcode));
        }
        if !range.is_empty() {
            let owner = Owner::Host(memory.ring);
            buffers[0] = LocalBuffer::Direct(Segment { owner, addr: range.start as u64, len: range.len() as u64 });
            count = 1;
        }
    } else {
        if sges.len() > buffers.len() {
            return Err(BadEntry::Buffers(sges.len()));
        }
        for (buffer, sge) in buffers.iter_mut().zip(sges) {
            *buffer = match sge.lkey {
                STAGING_LKEY if !is_source => return Err(BadEntry::NotASource(entry.opcode)),
                STAGING_LKEY => staged(sge, memory)?,
                lkey => LocalBuffer::Keyed { lkey: Lkey(lkey), addr: sge.addr, len: sge.length },
            };
        }
        count = sges.len();
    }
    let is_message = is_source || matches!(op, SendOp::Read { .. } | SendOp::Atomic { .. });
    let srqn = (qp_type == QpType::XrcSend && is_message).then(|| Srqn::new(entry.srqn()));
    Ok(SendRequest { wr_id: entry.wr_id, op, flags, buffers: &buffers[..count], srqn })
}

/// `IBV_ACCESS_ZERO_BASED` of `enum ibv_access_flags`.
const IBV_ACCESS_ZERO_BASED: u32 = 1 << 5;

fn binding(binding: &layout::WindowBinding) -> Result<BindWindow, BadEntry> {
    let &layout::WindowBinding { window, rkey, lkey, access, addr, length } = binding;
    let rights = Access::from_bits(access & !IBV_ACCESS_ZERO_BASED).ok_or(BadEntry::Access(access))?;
    let zero_based = access & IBV_ACCESS_ZERO_BASED != 0;
    Ok(BindWindow { window: Rkey(window), rkey: Rkey(rkey), lkey: Lkey(lkey), addr, len: length, access: rights, zero_based })
}

fn destination(to: &layout::Destination) -> Destination {
    let address = AddressVector {
        dgid: Gid(to.dgid),
        sgid_index: to.sgid_index,
        traffic_class: to.traffic_class,
        hop_limit: to.hop_limit,
        flow_label: to.flow_label,
        service_level: to.service_level,
        port: 1,
    };
    Destination { address, qpn: Qpn::new(to.qpn), qkey: to.qkey }
}

fn staged(sge: &Sge, memory: &Unkeyed) -> Result<LocalBuffer, BadEntry> {
    let (len, addr) = (u64::from(sge.length), sge.addr);
    match memory.staging {
        Some((staging, size)) if addr.checked_add(len).is_some_and(|end| end <= size) => {
            Ok(LocalBuffer::Direct(Segment { owner: Owner::Host(staging), addr, len }))
        }
        other => Err(BadEntry::Staging { addr, len: sge.length, size: other.map_or(0, |(_, size)| size) }),
    }
}

/// The request in a receive entry. `sges` are the buffers that go with it.
///
/// # Errors
/// [`BadEntry::Buffers`].
pub fn recv_request<'a>(entry: &RecvEntry, sges: &[Sge], buffers: &'a mut Buffers) -> Result<RecvRequest<'a>, BadEntry> {
    if sges.len() > buffers.len() {
        return Err(BadEntry::Buffers(sges.len()));
    }
    for (buffer, sge) in buffers.iter_mut().zip(sges) {
        // The staging key is given to no region, so that here it fails as any unknown key does.
        *buffer = LocalBuffer::Keyed { lkey: Lkey(sge.lkey), addr: sge.addr, len: sge.length };
    }
    Ok(RecvRequest { wr_id: entry.wr_id, buffers: &buffers[..sges.len()] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vdev_abi::layout::SendEntry;

    const MEMORY: Unkeyed = Unkeyed { ring: MemId(3), staging: Some((MemId(4), 1000)) };

    fn entry(opcode: u8, flags: u8) -> SendEntry {
        let imm = 0x0102_0304u32.to_ne_bytes();
        SendEntry { wr_id: 9, opcode, flags, imm, remote_addr: 50, rkey: 60, compare_add: 7, swap: 8, ..Default::default() }
    }

    fn decode(entry: SendEntry, sges: &[Sge]) -> Result<(SendOp, Vec<LocalBuffer>), BadEntry> {
        let mut buffers = [NO_BUFFER; MAX_SGE as usize];
        let request = send_request(QpType::Rc, &TakenSend { entry, inline: None }, sges, &MEMORY, &mut buffers)?;
        Ok((request.op, request.buffers.to_vec()))
    }

    #[test]
    fn every_opcode_means_what_verbs_say() {
        let imm = 0x0102_0304u32.to_ne_bytes();
        let (remote_addr, rkey) = (50, Rkey(60));
        for (opcode, op) in [
            (0, SendOp::Write { remote_addr, rkey, imm: None }),
            (1, SendOp::Write { remote_addr, rkey, imm: Some(imm) }),
            (2, SendOp::Send { imm: None, invalidate: None }),
            (3, SendOp::Send { imm: Some(imm), invalidate: None }),
            (4, SendOp::Read { remote_addr, rkey }),
            (5, SendOp::Atomic { remote_addr, rkey, op: AtomicOp::CompareSwap { compare: 7, swap: 8 } }),
            (6, SendOp::Atomic { remote_addr, rkey, op: AtomicOp::FetchAdd { add: 7 } }),
            (7, SendOp::LocalInvalidate { key: Rkey(0x0102_0304) }),
            (9, SendOp::Send { imm: None, invalidate: Some(Rkey(0x0102_0304)) }),
        ] {
            assert_eq!(decode(entry(opcode, 2), &[]).unwrap().0, op);
        }
        for opcode in [10, 11, 255] {
            assert_eq!(decode(entry(opcode, 0), &[]), Err(BadEntry::Opcode(opcode)));
        }
        assert_eq!(decode(entry(0, 0x10), &[]), Err(BadEntry::Flags(0x10)));
    }

    #[test]
    fn windows_are_bound_with_rights_that_windows_have() {
        let bound = |access| {
            let mut entry = SendEntry { opcode: 8, ..Default::default() };
            entry.set_binding(&layout::WindowBinding { window: 1, rkey: 2, lkey: 3, access, addr: 4, length: 5 });
            decode(entry, &[]).map(|(op, _)| op)
        };
        let (window, rkey, lkey) = (Rkey(1), Rkey(2), Lkey(3));
        let access = Access::REMOTE_READ;
        let wanted = BindWindow { window, rkey, lkey, addr: 4, len: 5, access, zero_based: true };
        assert_eq!(bound(0x24), Ok(SendOp::BindWindow(wanted)));
        assert_eq!(bound(0x104), Err(BadEntry::Access(0x104)));
    }

    #[test]
    fn sends_of_datagram_queue_pairs_have_a_destination() {
        let to = layout::Destination { dgid: [9; 16], qpn: 0x1234, qkey: 77, hop_limit: 5, ..Default::default() };
        for (opcode, imm) in [(2, None), (3, Some(0x0102_0304u32.to_ne_bytes()))] {
            let mut entry = entry(opcode, 2);
            entry.set_destination(&to);
            let mut buffers = [NO_BUFFER; MAX_SGE as usize];
            let taken = TakenSend { entry, inline: None };
            let request = send_request(QpType::Ud, &taken, &[], &MEMORY, &mut buffers).unwrap();
            let address = AddressVector { dgid: Gid([9; 16]), hop_limit: 5, port: 1, ..Default::default() };
            assert_eq!(request.op, SendOp::Datagram { to: Destination { address, qpn: Qpn::new(0x1234), qkey: 77 }, imm });
        }
    }

    #[test]
    fn messages_of_extended_connections_name_a_queue() {
        let named = |qp_type, opcode| {
            let mut entry = entry(opcode, 2);
            entry.set_srqn(0x1234);
            let mut buffers = [NO_BUFFER; MAX_SGE as usize];
            send_request(qp_type, &TakenSend { entry, inline: None }, &[], &MEMORY, &mut buffers).unwrap().srqn
        };
        for opcode in [0, 1, 2, 3, 4, 5, 6, 9] {
            assert_eq!(named(QpType::XrcSend, opcode), Some(Srqn::new(0x1234)), "{opcode}");
            assert_eq!(named(QpType::Rc, opcode), None, "{opcode}");
        }
        assert_eq!(named(QpType::XrcSend, 7), None);
    }

    #[test]
    fn staging_is_bounded_and_only_a_source() {
        let staged = |addr, length| [Sge { addr, length, lkey: STAGING_LKEY }];
        let segment = Segment { owner: Owner::Host(MemId(4)), addr: 990, len: 10 };
        assert_eq!(decode(entry(2, 0), &staged(990, 10)).unwrap().1, [LocalBuffer::Direct(segment)]);
        for (addr, len) in [(990, 11), (1001, 0), (u64::MAX, 1), (0, u32::MAX)] {
            assert_eq!(decode(entry(2, 0), &staged(addr, len)), Err(BadEntry::Staging { addr, len, size: 1000 }));
        }
        assert_eq!(decode(entry(4, 0), &staged(0, 8)), Err(BadEntry::NotASource(4)));
        assert_eq!(decode(entry(6, 0), &staged(0, 8)), Err(BadEntry::NotASource(6)));
        let mut buffers = [NO_BUFFER; MAX_SGE as usize];
        let without = Unkeyed { staging: None, ..MEMORY };
        let taken = TakenSend { entry: entry(2, 0), inline: None };
        let error = send_request(QpType::Rc, &taken, &staged(0, 1), &without, &mut buffers).unwrap_err();
        assert_eq!(error, BadEntry::Staging { addr: 0, len: 1, size: 0 });
    }

    #[test]
    fn inline_data_lie_in_the_ring() {
        let mut buffers = [NO_BUFFER; MAX_SGE as usize];
        let taken = TakenSend { entry: entry(0, FLAG_INLINE), inline: Some(4160..4170) };
        let request = send_request(QpType::Rc, &taken, &[], &MEMORY, &mut buffers).unwrap();
        let segment = Segment { owner: Owner::Host(MemId(3)), addr: 4160, len: 10 };
        assert_eq!(request.buffers, [LocalBuffer::Direct(segment)]);
        let empty = TakenSend { entry: entry(0, FLAG_INLINE), inline: Some(4160..4160) };
        assert!(send_request(QpType::Rc, &empty, &[], &MEMORY, &mut buffers).unwrap().buffers.is_empty());
        let read = TakenSend { entry: entry(4, FLAG_INLINE), inline: Some(4160..4170) };
        assert_eq!(send_request(QpType::Rc, &read, &[], &MEMORY, &mut buffers).unwrap_err(), BadEntry::NotASource(4));
    }

    #[test]
    fn receive_buffers_are_keyed() {
        let mut buffers = [NO_BUFFER; MAX_SGE as usize];
        let entry = RecvEntry { wr_id: 5, num_sge: 1, reserved: 0 };
        let sge = Sge { addr: 1, length: 2, lkey: STAGING_LKEY };
        let request = recv_request(&entry, &[sge], &mut buffers).unwrap();
        assert_eq!(request.buffers, [LocalBuffer::Keyed { lkey: Lkey(STAGING_LKEY), addr: 1, len: 2 }]);
        assert!(recv_request(&entry, &[sge; 17], &mut buffers).is_err());
    }
}
