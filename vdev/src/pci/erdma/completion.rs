//! Completion and event entries, as the guest's driver reads them.
//!
//! Pure: the bytes of an entry, and the order in which they are to be stored, which is the word with the owner bit last.

use rnic::{Completion, CompletionFlags, Opcode, Status};

use super::entry::{Ticket, opcode};
use super::layout::BLOCK;

/// Status codes of completions.
pub mod status {
    /// Done.
    pub const SUCCESS: u8 = 0;
    /// Something failed that has no code of its own.
    pub const GENERAL: u8 = 1;
    /// The peer may not, or a receive's memory may not be written.
    pub const REMOTE_ACCESS: u8 = 5;
    /// A send entry that makes no sense.
    pub const LOCAL_OPERATION: u8 = 8;
    /// The requester's own memory may not be accessed.
    pub const LOCAL_ACCESS: u8 = 12;
    /// The queue pair failed before.
    pub const FLUSHED: u8 = 15;
    /// No answer, or no receive at the peer.
    pub const RETRY_EXCEEDED: u8 = 16;
}

/// Types of asynchronous events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncKind {
    /// A queue pair failed.
    QpFatal = 0,
    /// A peer asked for what makes no sense.
    QpRequest = 1,
    /// A peer violated rights.
    QpAccess = 2,
    /// A completion queue failed.
    CqError = 3,
}

/// The owner bit of an entry with running index `pi` in a ring of `depth` entries.
pub fn owner(pi: u32, depth: u32) -> bool {
    (pi / depth) & 1 == 0
}

fn status_code(status: Status) -> u8 {
    match status {
        Status::Success => status::SUCCESS,
        Status::LocalQpOperationError => status::LOCAL_OPERATION,
        Status::LocalProtectionError => status::LOCAL_ACCESS,
        Status::FlushError => status::FLUSHED,
        Status::RemoteAccessError => status::REMOTE_ACCESS,
        Status::RetryExceededError | Status::RnrRetryExceededError => status::RETRY_EXCEEDED,
        _ => status::GENERAL,
    }
}

/// An entry of a completion queue. Its first word, stored last, holds the owner bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(pub [u8; BLOCK as usize]);

impl Entry {
    fn new(owner: bool, opcode: u8, receive: bool, status: u8, index: u16, number: u32) -> Entry {
        let mut bytes = [0; BLOCK as usize];
        let first = u32::from(owner) << 31 | u32::from(opcode) << 16 | u32::from(receive) << 8 | u32::from(status);
        bytes[..4].copy_from_slice(&first.to_be_bytes());
        bytes[4..8].copy_from_slice(&u32::from(index).to_be_bytes());
        bytes[8..12].copy_from_slice(&number.to_be_bytes());
        Entry(bytes)
    }

    /// For a completion of the queue pair that the guest calls `number`. `ipv6` is the family of datagrams.
    pub fn of(completion: &Completion, number: u32, ipv6: bool, owner: bool) -> Entry {
        let ticket = Ticket::of(completion.wr_id);
        let has = |flag| completion.flags.contains(flag);
        let (code, receive) = match completion.opcode {
            Opcode::Recv if has(CompletionFlags::WITH_IMM) => (opcode::RECV_SEND_IMM, true),
            Opcode::Recv if has(CompletionFlags::WITH_INV) => (opcode::RECV_INV, true),
            Opcode::Recv => (opcode::RECEIVE, true),
            Opcode::RecvWriteWithImm => (opcode::RECV_IMM, true),
            _ => (ticket.opcode, false),
        };
        let mut entry = Entry::new(owner, code, receive, status_code(completion.status), ticket.index, number);
        if has(CompletionFlags::WITH_IMM) {
            // The driver wants the number little-endian; the wire has it big-endian.
            let mut imm = completion.imm;
            imm.reverse();
            entry.0[12..16].copy_from_slice(&imm);
        } else if has(CompletionFlags::WITH_INV) {
            entry.0[12..16].copy_from_slice(&completion.imm);
        }
        entry.0[16..20].copy_from_slice(&completion.byte_len.to_be_bytes());
        if has(CompletionFlags::GRH) {
            let word = u32::from(ipv6) << 31 | completion.src_qpn.get() & 0xF_FFFF;
            entry.0[28..32].copy_from_slice(&word.to_be_bytes());
        }
        entry
    }

    /// For a send entry that makes no sense.
    pub fn of_bad_send(ticket: Ticket, number: u32, owner: bool) -> Entry {
        Entry::new(owner, ticket.opcode, false, status::LOCAL_OPERATION, ticket.index, number)
    }

    /// For a command: `status` 0 is success, `quads` the response.
    pub fn of_command(opcode: u8, index: u16, status: u8, quads: [u64; 2], owner: bool) -> Entry {
        let mut entry = Entry::new(owner, opcode, false, status, index, 0);
        // Queue type: commands.
        entry.0[2] = 2;
        entry.0[8..].fill(0);
        for (n, quad) in quads.into_iter().enumerate() {
            entry.0[8 + 8 * n..12 + 8 * n].copy_from_slice(&(quad as u32).to_be_bytes());
            entry.0[12 + 8 * n..16 + 8 * n].copy_from_slice(&((quad >> 32) as u32).to_be_bytes());
        }
        entry
    }
}

/// First word, stored last, of an entry of a completion event queue.
pub fn completion_event(cqn: u32, pi: u32, owner: bool) -> u64 {
    u64::from(cqn & 0xF_FFFF) | u64::from(owner) << 31 | u64::from(pi & 0xFF_FFFF) << 32
}

/// The same of an entry of the asynchronous event queue: `number` is the queue pair's or completion queue's.
pub fn async_event(kind: AsyncKind, number: u32, owner: bool) -> u64 {
    (kind as u64) << 16 | u64::from(owner) << 31 | u64::from(number) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion() -> Completion {
        Completion {
            wr_id: Ticket { index: 0xFFFE, opcode: opcode::WRITE_IMM }.id(),
            status: Status::Success,
            opcode: Opcode::Write,
            qpn: roce::Qpn::new(9),
            src_qpn: roce::Qpn::new(0),
            byte_len: 0x0102_0304,
            imm: [1, 2, 3, 4],
            flags: CompletionFlags::empty(),
            solicited: false,
            vendor_err: 0,
            queue_index: 0,
            srq: None,
        }
    }

    #[test]
    fn owner_changes_with_each_pass() {
        assert_eq!([0, 7, 8, 15, 16].map(|pi| owner(pi, 8)), [true, true, false, false, true]);
        assert!(!owner(u32::MAX, 8));
    }

    #[test]
    fn a_send_names_its_first_block_and_opcode() {
        let entry = Entry::of(&completion(), 5, false, true).0;
        assert_eq!(entry[..12], [0x80, 9, 0, 0, 0, 0, 0xFF, 0xFE, 0, 0, 0, 5]);
        assert_eq!(entry[12..20], [0, 0, 0, 0, 1, 2, 3, 4]);
        assert_eq!(entry[20..], [0; 12]);
    }

    /// Trap: a receive has its immediate data little-endian.
    #[test]
    fn receives_carry_opcode_and_immediate_data() {
        let receive = |opcode, flags| Entry::of(&Completion { opcode, flags, ..completion() }, 5, false, false).0;
        let entry = receive(Opcode::RecvWriteWithImm, CompletionFlags::WITH_IMM);
        assert_eq!((entry[..4].to_vec(), entry[12..16].to_vec()), (vec![0, 5, 1, 0], vec![4, 3, 2, 1]));
        assert_eq!(receive(Opcode::Recv, CompletionFlags::empty())[1], 4);
        assert_eq!(receive(Opcode::Recv, CompletionFlags::WITH_IMM)[1], 12);
        let inv = receive(Opcode::Recv, CompletionFlags::WITH_INV);
        assert_eq!((inv[1], inv[12..16].to_vec()), (6, vec![1, 2, 3, 4]));
    }

    #[test]
    fn datagrams_tell_their_sender() {
        let (opcode, flags, src_qpn) = (Opcode::Recv, CompletionFlags::GRH, roce::Qpn::new(0x12345));
        let datagram = |ipv6| Entry::of(&Completion { opcode, flags, src_qpn, ..completion() }, 1, ipv6, false).0;
        assert_eq!(datagram(false)[28..], [0, 1, 0x23, 0x45]);
        assert_eq!(datagram(true)[28..], [0x80, 1, 0x23, 0x45]);
    }

    #[test]
    fn responses_are_two_quads_of_big_endian_halves() {
        let entry = Entry::of_command(8, 12, 1, [0x1122_3344_5566_7788, 0x99], false).0;
        assert_eq!(entry[..8], [0, 8, 2, 1, 0, 0, 0, 12]);
        assert_eq!(entry[8..16], [0x55, 0x66, 0x77, 0x88, 0x11, 0x22, 0x33, 0x44]);
        assert_eq!(entry[16..], [0, 0, 0, 0x99, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
