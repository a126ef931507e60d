//! Numbers of the `erdma` interface: registers, sizes that the device reports, codes. Offsets are bytes, in BAR 0 where it says
//! nothing else.

/// Vendor and device.
pub const PCI_ID: (u16, u16) = (0x1ded, 0x107f);
/// Base class network, InfiniBand controller.
pub const PCI_CLASS: u32 = 0x02_0700;
/// Our own subsystem, by which the function can be told from the one that it behaves like.
pub const SUBSYSTEM: (u16, u16) = (0x7672, 0x0001);
/// Bytes of BAR 0.
pub const BAR0: u64 = 4 << 20;
/// Bytes of a page of the guest, and of a doorbell page.
pub const PAGE: u64 = 4096;

/// Registers of page 0.
pub mod reg {
    /// Non-zero: the device works.
    pub const VERSION: u64 = 0x00;
    /// 1: RoCEv2.
    pub const PROTOCOL: u64 = 0x0C;
    /// Bit 0 reset, bit 1 init.
    pub const CONTROL: u64 = 0x10;
    /// Bit 0 reset done, bit 1 init done.
    pub const STATUS: u64 = 0x14;
    /// Octets 2 to 5 of the MAC address, octet 2 in the top byte.
    pub const MAC_LOW: u64 = 0x18;
    /// Octets 0 and 1, octet 0 in bits 15:8.
    pub const MAC_HIGH: u64 = 0x1C;
    /// Command queue.
    pub const CMD_SQ_ADDR: u64 = 0x20;
    /// Its completions.
    pub const CMD_CQ_ADDR: u64 = 0x28;
    /// Blocks of the one, entries of the other.
    pub const CMD_DEPTH: u64 = 0x30;
    /// Entries of its event queue.
    pub const CMD_EQ_DEPTH: u64 = 0x34;
    /// Its event queue.
    pub const CMD_EQ_ADDR: u64 = 0x38;
    /// Asynchronous event queue.
    pub const AEQ_ADDR: u64 = 0x40;
    /// Its entries.
    pub const AEQ_DEPTH: u64 = 0x48;
    /// Its doorbell, 64 bits.
    pub const AEQ_DB: u64 = 0x50;
    /// Doorbells of event queues 0 (commands) to 31, 64 bits each.
    pub const EQ_DB: u64 = 0x100;
    /// Producer index of the command queue, 64 bits.
    pub const CMD_SQ_DB: u64 = 0x200;
    /// Arms the completions of commands, 64 bits.
    pub const CMD_CQ_DB: u64 = 0x300;
}

/// Bits of [`reg::CONTROL`].
pub mod control {
    /// Reset.
    pub const RESET: u32 = 1;
    /// Initialise.
    pub const INIT: u32 = 2;
}

/// Event queues, the one of the commands included; also the number of vectors.
pub const EVENT_QUEUES: usize = 32;
/// log2 of the longest region in bytes.
pub const LOG_MR_SIZE: u32 = 40;
/// log2 of address handles.
pub const LOG_AHS: u32 = 12;
/// log2 of receive requests per queue pair.
pub const LOG_RECV_WR: u32 = 13;
/// log2 of send blocks per queue pair.
pub const LOG_SEND_BLOCKS: u32 = 15;
/// log2 of entries per completion queue.
pub const LOG_CQE: u32 = 20;
/// log2 of the GID table's length.
pub const LOG_GIDS: u32 = 6;
/// Queue pairs, in units of 1024.
pub const QBLOCK: u32 = 16;
/// Queue pair numbers, from 1.
pub const QPS: u32 = 1024 * QBLOCK;
/// Completion queue numbers, from 1.
pub const CQS: u32 = 2 * QPS;
/// Region indices.
pub const MRS: u32 = 2 * QPS;
/// Protection domain numbers: fixed in the driver.
pub const PDS: u32 = 131_072;
/// Atomics, scattered page lists, doorbell pages per process.
pub const FLAGS: u32 = 0x80 | 0x20 | 0x08;
/// The key with which the guest's kernel, and nobody else, reaches all memory.
pub const LOCAL_DMA_LKEY: u32 = 0xFFFF_FF00;
/// Most pages of a fast registration: fixed in the driver.
pub const FAST_PAGES: u32 = 512;
/// Bytes of a block of the command and send queues, and of a receive or completion entry.
pub const BLOCK: u64 = 32;
/// Bytes of an event queue entry.
pub const EQE: u64 = 16;
/// Most blocks of one send entry.
pub const SEND_BLOCKS: usize = 4;
/// Most bytes of inline data.
pub const INLINE: usize = 96;
/// Buffers per send request.
pub const SEND_SGE: u32 = 6;

/// Processes that can have the device open, each with three doorbell pages.
pub const CONTEXTS: u16 = 256;
/// First doorbell page of processes for send queues, receive queues, completion queues.
pub const CONTEXT_PAGES: [u16; 3] = [128, 384, 640];

/// What a doorbell page is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorbellPage {
    /// Send queues of the owner.
    Send(Context),
    /// Receive queues of the owner, or its completion queues: drivers differ in which of the two pages they use for what.
    RecvOrCq(Context),
    /// Receive queues of the kernel.
    KernelRecv,
    /// Completion queues of the kernel.
    KernelCq,
}

/// Who owns a queue or a doorbell page: 0 is the guest's kernel, others are processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Context(pub u16);

impl Context {
    /// The guest's kernel, and processes without pages of their own.
    pub const KERNEL: Context = Context(0);
}

/// What the doorbell page with this number is for.
pub fn doorbell_page(page: u64) -> Option<DoorbellPage> {
    let page = u16::try_from(page).ok()?;
    match page {
        1..=96 => return Some(DoorbellPage::Send(Context::KERNEL)),
        97..=120 => return Some(DoorbellPage::KernelRecv),
        121..=127 => return Some(DoorbellPage::KernelCq),
        _ => {}
    }
    let context = |first: u16| page.checked_sub(first).filter(|&index| index < CONTEXTS).map(|index| Context(index + 1));
    let [send, recv, cq] = CONTEXT_PAGES;
    context(send).map(DoorbellPage::Send).or_else(|| context(recv).or_else(|| context(cq)).map(DoorbellPage::RecvOrCq))
}

/// `log2` of a ring's entries as a number, if it is at most `most`.
pub fn depth(log2: u32, most: u32) -> Option<u32> {
    (log2 <= most).then(|| 1 << log2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_one_owner() {
        assert_eq!(doorbell_page(0), None);
        assert_eq!(doorbell_page(95), Some(DoorbellPage::Send(Context::KERNEL)));
        assert_eq!(doorbell_page(97), Some(DoorbellPage::KernelRecv));
        assert_eq!(doorbell_page(121), Some(DoorbellPage::KernelCq));
        assert_eq!(doorbell_page(128), Some(DoorbellPage::Send(Context(1))));
        assert_eq!(doorbell_page(383), Some(DoorbellPage::Send(Context(256))));
        assert_eq!(doorbell_page(384), Some(DoorbellPage::RecvOrCq(Context(1))));
        assert_eq!(doorbell_page(640), Some(DoorbellPage::RecvOrCq(Context(1))));
        assert_eq!(doorbell_page(895), Some(DoorbellPage::RecvOrCq(Context(256))));
        assert_eq!(doorbell_page(896), None);
        assert_eq!(doorbell_page(u64::MAX), None);
        assert!(u64::from(CONTEXT_PAGES[2] + CONTEXTS) * PAGE <= BAR0);
    }
}
