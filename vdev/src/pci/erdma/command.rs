//! Commands of the guest's driver: from the bytes of a command queue entry to what is asked for.
//!
//! Pure. Only fields that the opcode defines are looked at: a slot keeps older bytes behind them, and drivers leave some of their
//! own fields unset. Numbers are checked against what the device reports; whether they name anything is for the executor.

use std::net::IpAddr;

use rnic::QpState;
use roce::Gid;

use super::layout::{
    BLOCK, CONTEXT_PAGES, CONTEXTS, CQS, Context, EVENT_QUEUES, FAST_PAGES, LOG_AHS, LOG_CQE, LOG_GIDS, LOG_RECV_WR,
    LOG_SEND_BLOCKS, MRS, PDS, QPS, depth,
};
use super::pages::PageList;
use crate::pci::bytes::{u16_at, u32_at, u64_at};

/// Bytes of the longest command.
pub const MAX_BYTES: usize = 8 * BLOCK as usize;

/// Why a command is refused. The guest sees an I/O error; this is for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Failed(pub String);

/// A refusal.
pub fn failed(reason: impl std::fmt::Display) -> Failed {
    Failed(reason.to_string())
}

/// A queue in guest memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueMemory {
    /// Its pages.
    pub pages: PageList,
    /// Entries, or blocks of a send queue; a power of two.
    pub depth: u32,
    /// Guest address of its doorbell record.
    pub record: u64,
}

/// The way to a peer, as the guest names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// Index in the guest's GID table.
    pub sgid_index: u16,
    /// The peer.
    pub dgid: Gid,
    /// DSCP and ECN field.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label.
    pub flow_label: u32,
    /// Service level.
    pub service_level: u8,
}

/// Transport of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairKind {
    /// Reliable connection.
    Rc,
    /// Datagrams.
    Ud,
}

/// CREATE_QP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateQp {
    /// Its number.
    pub qpn: u32,
    /// Protection domain.
    pub pdn: u32,
    /// Transport.
    pub kind: QueuePairKind,
    /// Completion queue of sends.
    pub send_cqn: u32,
    /// Completion queue of receives.
    pub recv_cqn: u32,
    /// Send queue.
    pub send: QueueMemory,
    /// Receive queue.
    pub recv: QueueMemory,
    /// Who rings its doorbells.
    pub context: Context,
    /// Made by the guest's kernel for itself.
    pub is_kernel: bool,
}

/// MODIFY_QP. What is `None` is not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModifyQp {
    /// Its number.
    pub qpn: u32,
    /// State to go to.
    pub state: QpState,
    /// Key of datagrams.
    pub qkey: Option<u32>,
    /// The way to the peer.
    pub address: Option<AddressVector>,
    /// First PSN sent.
    pub sq_psn: Option<u32>,
    /// First PSN expected.
    pub rq_psn: Option<u32>,
    /// The peer's queue pair.
    pub dest_qpn: Option<u32>,
}

/// CREATE_CQ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateCq {
    /// Its number.
    pub cqn: u32,
    /// Event queue, 1 or more.
    pub eqn: usize,
    /// Its ring.
    pub queue: QueueMemory,
    /// Who rings its doorbell.
    pub context: Context,
}

/// What a region is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MrKind {
    /// These bytes.
    Normal {
        /// Address of the first byte as requests name it.
        iova: u64,
        /// Its pages, which hold all of it.
        pages: PageList,
    },
    /// Memory that requests of the guest's kernel will name.
    Fast {
        /// Guest address of the array of pages that they may refer to.
        list: u64,
        /// Its entries.
        capacity: u32,
        /// log2 of the bytes of a page.
        shift: u32,
    },
    /// All of the guest's memory, by guest-physical address.
    Dma,
}

/// REG_MR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegMr {
    /// Index, from which the key is made.
    pub index: u32,
    /// Local and remote key.
    pub key: u32,
    /// Protection domain.
    pub pdn: u32,
    /// Rights.
    pub access: emtt::Access,
    /// Its memory.
    pub kind: MrKind,
}

impl RegMr {
    /// Bytes of memory that it names.
    pub fn bytes(&self) -> u64 {
        match &self.kind {
            MrKind::Normal { pages, .. } => pages.bytes(),
            MrKind::Dma | MrKind::Fast { .. } => 0,
        }
    }

    /// What its memory must allow the device.
    pub fn need(&self) -> pvdma::Protection {
        let writable = self.access.contains(emtt::Access::LOCAL_WRITE);
        pvdma::Protection::READ | if writable { pvdma::Protection::WRITE } else { pvdma::Protection::empty() }
    }
}

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// What the device can do.
    QueryDevice,
    /// New queue pair.
    CreateQp(Box<CreateQp>),
    /// Queue pair ends.
    DestroyQp(u32),
    /// Queue pair changes.
    ModifyQp(ModifyQp),
    /// New completion queue.
    CreateCq(CreateCq),
    /// Completion queue ends.
    DestroyCq(u32),
    /// What a kernel queue pair in error has posted up to these indices is to be flushed.
    Reflush {
        /// Queue pair.
        qpn: u32,
        /// Producer index of the send queue.
        send: u16,
        /// Producer index of the receive queue.
        recv: u16,
    },
    /// New region.
    RegMr(RegMr),
    /// Region ends.
    DeregMr {
        /// Index.
        index: u32,
    },
    /// An entry of the GID table changes.
    SetGid {
        /// Which.
        index: usize,
        /// To what; `None` empties it.
        gid: Option<Gid>,
    },
    /// New address handle.
    CreateAh {
        /// Protection domain.
        pdn: u32,
        /// Its number.
        ahn: u32,
        /// What it stands for.
        address: AddressVector,
    },
    /// Address handle ends.
    DestroyAh {
        /// Protection domain.
        pdn: u32,
        /// Its number.
        ahn: u32,
    },
    /// State and sequence numbers of a queue pair.
    QueryQp(u32),
    /// New event queue of completions.
    CreateEq {
        /// Its number and interrupt vector, 1 or more.
        eqn: usize,
        /// Guest address of its ring.
        address: u64,
        /// Entries.
        depth: u32,
    },
    /// Event queue ends.
    DestroyEq {
        /// Its number.
        eqn: usize,
    },
    /// Version of the firmware.
    QueryFirmware,
    /// The MTU of the guest's network device has changed.
    ConfMtu(u32),
    /// Statistics, to be written to guest memory.
    GetStats {
        /// Where.
        address: u64,
        /// Bytes that fit there.
        len: u32,
    },
    /// Page size of the guest.
    ConfDevice {
        /// log2, if it is given.
        page_shift: Option<u32>,
    },
    /// Doorbell pages for a process.
    AllocDb,
    /// They are given back; the page of send queues names them.
    FreeDb(Context),
}

fn bits(word: u32, from: u32, count: u32) -> u32 {
    word >> from & ((1u64 << count) - 1) as u32
}

fn number(what: &str, value: u32, from: u32, below: u32) -> Result<u32, Failed> {
    if (from..below).contains(&value) {
        Ok(value)
    } else {
        Err(failed(format_args!("{what} {value:#x} is not {from} to {}", below - 1)))
    }
}

fn qpn(value: u32) -> Result<u32, Failed> {
    number("queue pair number", bits(value, 0, 20), 1, QPS)
}

fn cqn(value: u32) -> Result<u32, Failed> {
    number("completion queue number", value, 1, CQS)
}

fn pdn(value: u32) -> Result<u32, Failed> {
    number("protection domain number", value, 0, PDS)
}

fn eqn(value: u32) -> Result<usize, Failed> {
    number("event queue number", value, 1, EVENT_QUEUES as u32).map(|eqn| eqn as usize)
}

fn record(address: u64) -> Result<u64, Failed> {
    if address.is_multiple_of(8) { Ok(address) } else { Err(failed(format_args!("a doorbell record at {address:#x}"))) }
}

/// The command in an entry of this many bytes (whole blocks). `module` and `opcode` are from its first word.
///
/// # Errors
/// [`Failed`].
pub fn parse(module: u8, opcode: u8, bytes: &[u8]) -> Result<Command, Failed> {
    let has = |len: usize| {
        let short = || failed(format_args!("command {module}.{opcode} has {} bytes, not {len}", bytes.len()));
        if bytes.len() < len { Err(short()) } else { Ok(()) }
    };
    has(BLOCK as usize)?;
    match (module, opcode) {
        (0, 0) => Ok(Command::QueryDevice),
        // The shorter form has no doorbell pages and no type.
        (0, 1) => has(64).and_then(|()| create_qp(bytes)).map(|create| Command::CreateQp(Box::new(create))),
        (0, 2) => Ok(Command::DestroyQp(qpn(u32_at(bytes, 8))?)),
        (0, 3) => has(72).and_then(|()| modify_qp(bytes)).map(Command::ModifyQp),
        (0, 4) => has(40).and_then(|()| create_cq(bytes)).map(Command::CreateCq),
        (0, 5) => Ok(Command::DestroyCq(cqn(u32_at(bytes, 8))?)),
        (0, 6) => {
            let (send, recv) = (u16_at(bytes, 12), u16_at(bytes, 16));
            Ok(Command::Reflush { qpn: qpn(u32_at(bytes, 8))?, send, recv })
        }
        (0, 8) => has(64).and_then(|()| reg_mr(bytes)).map(Command::RegMr),
        (0, 9) => Ok(Command::DeregMr { index: number("region", bits(u32_at(bytes, 8), 0, 20), 0, MRS)? }),
        (0, 14) => {
            let word = u32_at(bytes, 8);
            let index = number("GID index", bits(word, 0, 16), 0, 1 << LOG_GIDS)? as usize;
            let gid = if bits(word, 31, 1) == 1 { None } else { Some(gid(bytes, 12)) };
            Ok(Command::SetGid { index, gid })
        }
        (0, 15) => {
            has(56)?;
            let (pdn, ahn) = address_handle(bytes)?;
            Ok(Command::CreateAh { pdn, ahn, address: address_vector(bytes, 16)? })
        }
        (0, 16) => address_handle(bytes).map(|(pdn, ahn)| Command::DestroyAh { pdn, ahn }),
        (0, 17) => Ok(Command::QueryQp(qpn(u32_at(bytes, 8))?)),
        (1, 0) => {
            let depth = depth(bytes[18].into(), 16).ok_or_else(|| failed(format_args!("an event queue of 2^{}", bytes[18])))?;
            if bytes[19] != 1 || bytes[16] != bytes[17] {
                return Err(failed("an event queue that is not for completions, or shares its vector"));
            }
            Ok(Command::CreateEq { eqn: eqn(bytes[17].into())?, address: u64_at(bytes, 8), depth })
        }
        (1, 1) => Ok(Command::DestroyEq { eqn: eqn(bytes[17].into())? }),
        (1, 2) => Ok(Command::QueryFirmware),
        (1, 3) => Ok(Command::ConfMtu(u32_at(bytes, 8))),
        (1, 4) => Ok(Command::GetStats { address: u64_at(bytes, 16), len: u32_at(bytes, 24) }),
        (1, 5) => {
            let word = u32_at(bytes, 8);
            Ok(Command::ConfDevice { page_shift: (bits(word, 31, 1) == 1).then(|| bits(word, 0, 5)) })
        }
        (1, 8) => Ok(Command::AllocDb),
        (1, 9) => Ok(Command::FreeDb(context(u16_at(bytes, 14), 0)?)),
        _ => Err(failed(format_args!("there is no command {module}.{opcode}"))),
    }
}

/// The process that owns this doorbell page, one of kind `kind` of [`CONTEXT_PAGES`].
fn context(page: u16, kind: usize) -> Result<Context, Failed> {
    let index = page.checked_sub(CONTEXT_PAGES[kind]).filter(|&index| index < CONTEXTS);
    index.map(|index| Context(index + 1)).ok_or_else(|| failed(format_args!("doorbell page {page} belongs to no process")))
}

fn gid(bytes: &[u8], at: usize) -> Gid {
    Gid(bytes[at..at + 16].try_into().expect("sixteen bytes"))
}

fn address_handle(bytes: &[u8]) -> Result<(u32, u32), Failed> {
    Ok((pdn(u32_at(bytes, 8))?, number("address handle", u32_at(bytes, 12), 0, 1 << LOG_AHS)?))
}

fn address_vector(bytes: &[u8], at: usize) -> Result<AddressVector, Failed> {
    let bytes = &bytes[at..at + 36];
    let (word, dgid) = (u32_at(bytes, 0), gid(bytes, 20));
    if matches!(dgid.ip(), IpAddr::V6(_)) != (bits(word, 20, 1) == 1) {
        return Err(failed(format_args!("an address vector to {} of the other address family", dgid.ip())));
    }
    Ok(AddressVector {
        sgid_index: u16_at(bytes, 10),
        dgid,
        traffic_class: bytes[4],
        hop_limit: bytes[5],
        flow_label: bits(word, 0, 20),
        service_level: bytes[6],
    })
}

fn create_qp(bytes: &[u8]) -> Result<CreateQp, Failed> {
    let [number, pd, send_cq, recv_cq] = [8, 12, 16, 20].map(|at| u32_at(bytes, at));
    let queue = |what: &str, log2: u32, most: u32, config: u32, address: usize, mtt: usize, record_at: usize, more: usize| {
        let depth = depth(log2, most).ok_or_else(|| failed(format_args!("a {what} queue of 2^{log2} entries")))?;
        let mtt = u32_at(bytes, mtt);
        let mut inline = [u64_at(bytes, address), 0, 0, 0];
        // Not in the shorter form, which has no more than one page in line.
        for (n, page) in inline.iter_mut().enumerate().skip(1).filter(|_| bytes.len() >= 112) {
            *page = u64_at(bytes, more + 8 * (n - 1));
        }
        let pages = PageList::new(bits(mtt, 0, 1), inline, bits(mtt, 1, 11), 12 + bits(config, 28, 4))?;
        let pages = pages.holding(u64::from(mtt & !0xFFF), u64::from(depth) * BLOCK)?;
        Ok::<_, Failed>(QueueMemory { pages, depth, record: record(u64_at(bytes, record_at))? })
    };
    // The kernel's queues are one buffer, which it declares as one page of a size that processes never have.
    let is_kernel = bits(send_cq, 28, 4) == 8;
    let has_pages = bits(send_cq, 25, 1) == 1 && bytes.len() >= 120;
    let context = match has_pages {
        true => context(bits(u32_at(bytes, 112), 16, 16) as u16, 0)?,
        false => Context::KERNEL,
    };
    // Drivers before RoCEv2 was complete leave this unset, and offer only RC. Processes have nothing else to this day.
    let kind = match is_kernel && bytes.len() >= 120 && bits(u32_at(bytes, 116), 0, 4) == 1 {
        true => QueuePairKind::Ud,
        false => QueuePairKind::Rc,
    };
    Ok(CreateQp {
        qpn: qpn(number)?,
        pdn: pdn(bits(pd, 0, 20))?,
        kind,
        send_cqn: cqn(bits(send_cq, 0, 24))?,
        recv_cqn: cqn(bits(recv_cq, 0, 24))?,
        send: queue("send", bits(number, 20, 12), LOG_SEND_BLOCKS, send_cq, 24, 40, 48, 64)?,
        recv: queue("receive", bits(pd, 20, 12), LOG_RECV_WR, recv_cq, 32, 44, 56, 88)?,
        context,
        is_kernel,
    })
}

fn modify_qp(bytes: &[u8]) -> Result<ModifyQp, Failed> {
    let (word, mask) = (u32_at(bytes, 8), u32_at(bytes, 16));
    let code = bits(word, 24, 8);
    let state = QpState::from_code(code).ok_or_else(|| failed(format_args!("a queue pair state {code}")))?;
    if mask & 1 == 0 || mask >= 1 << 6 {
        return Err(failed(format_args!("a change of a queue pair with attribute mask {mask:#x}")));
    }
    let named = |bit: u32, at: usize| (mask >> bit & 1 == 1).then(|| u32_at(bytes, at));
    let address = if mask >> 2 & 1 == 1 { Some(address_vector(bytes, 32)?) } else { None };
    Ok(ModifyQp {
        qpn: qpn(word)?,
        state,
        qkey: named(1, 20),
        address,
        sq_psn: named(3, 28),
        rq_psn: named(4, 24),
        dest_qpn: named(5, 12).map(|word| bits(word, 0, 20)),
    })
}

fn create_cq(bytes: &[u8]) -> Result<CreateCq, Failed> {
    let (word, config) = (u32_at(bytes, 8), u32_at(bytes, 20));
    let log2 = bits(word, 24, 8);
    let depth = depth(log2, LOG_CQE).ok_or_else(|| failed(format_args!("a completion queue of 2^{log2} entries")))?;
    let pages = PageList::new(bits(config, 15, 1), [u64_at(bytes, 12), 0, 0, 0], bits(config, 16, 16), 12 + bits(word, 20, 4))?;
    let offset = u64::from(u32_at(bytes, 32));
    if !offset.is_multiple_of(BLOCK) {
        return Err(failed(format_args!("a completion ring at offset {offset:#x}")));
    }
    let pages = pages.holding(offset, u64::from(depth) * BLOCK)?;
    let context = match bits(config, 11, 1) == 1 {
        // The page that the driver names here is the one that it uses for receive queues.
        true => context(u16_at(bytes, 36), 1).or_else(|_| context(u16_at(bytes, 36), 2))?,
        false => Context::KERNEL,
    };
    let queue = QueueMemory { pages, depth, record: record(u64_at(bytes, 24))? };
    Ok(CreateCq { cqn: cqn(bits(word, 0, 20))?, eqn: eqn(bits(config, 0, 10))?, queue, context })
}

/// The rights in bits 1 to 5 of a word. Reading by this side needs none.
pub fn access(word: u32) -> emtt::Access {
    let mut access = emtt::Access::empty();
    for (bit, right) in [
        (1, emtt::Access::REMOTE_ATOMIC),
        (3, emtt::Access::LOCAL_WRITE),
        (4, emtt::Access::REMOTE_READ),
        (5, emtt::Access::REMOTE_WRITE),
    ] {
        access.set(right, bits(word, bit, 1) == 1);
    }
    access
}

fn reg_mr(bytes: &[u8]) -> Result<RegMr, Failed> {
    let [word, rights, geometry] = [8, 12, 28].map(|at| u32_at(bytes, at));
    let index = number("region", bits(word, 0, 20), 0, MRS)?;
    let access = access(rights);
    let kind = match bits(rights, 6, 2) {
        0 => {
            if bits(word, 31, 1) == 0 {
                return Err(failed("a region that is not valid from the start"));
            }
            normal_region(bytes, word, geometry)?
        }
        1 => {
            let (list, capacity, shift) = (u64_at(bytes, 32), bits(geometry, 0, 20), bits(geometry, 27, 5));
            // Its bounds are those of any list.
            PageList::new(1, [list, 0, 0, 0], capacity, shift)?;
            if capacity > FAST_PAGES {
                return Err(failed(format_args!("a region of {capacity} pages for fast registration")));
            }
            MrKind::Fast { list, capacity, shift }
        }
        2 => MrKind::Dma,
        other => return Err(failed(format_args!("a region of type {other}"))),
    };
    Ok(RegMr { index, key: index << 8 | bits(word, 20, 8), pdn: pdn(bits(rights, 12, 20))?, access, kind })
}

fn normal_region(bytes: &[u8], word: u32, geometry: u32) -> Result<MrKind, Failed> {
    let (iova, level, shift) = (u64_at(bytes, 16), bits(geometry, 20, 2), bits(geometry, 27, 5));
    if bits(geometry, 24, 3) != 0 {
        return Err(failed("page lists in pages of another size than 4096"));
    }
    let (mut len, mut count) = (u64::from(u32_at(bytes, 24)), bits(geometry, 0, 20));
    let has_high = bits(word, 28, 3) == 1;
    if has_high {
        len |= u64::from(u32_at(bytes, 40)) << 32;
        count |= bits(u32_at(bytes, 44), 20, 12) << 20;
    }
    let mut inline = [32, 40, 48, 56].map(|at| u64_at(bytes, at));
    if level > 0 {
        inline = [inline[0], 0, 0, 0];
    }
    let pages = PageList::new(level, inline, count, shift)?;
    let offset = iova & (pages.page_len() - 1);
    if !has_high {
        // Only the low half of the length is sent, though more fits: it is the longest with this half that does.
        let room = pages.room().checked_sub(offset).ok_or_else(|| failed("a region of no pages"))?;
        let above = room.checked_sub(len).ok_or_else(|| failed(format_args!("{len:#x} bytes in pages for {room:#x}")))?;
        len += above >> 32 << 32;
    }
    Ok(MrKind::Normal { iova, pages: pages.holding(offset, len)? })
}

#[cfg(test)]
mod tests;
