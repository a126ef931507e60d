//! The command queue: a ring of commands, a ring of completions, and the event queue that tells of these.
//!
//! All three lie in guest memory at addresses that registers gave. Owned by the thread that serves the VMM's messages, which
//! executes commands one after the other. Owns indices and arming. What a command means is for `function`.

use super::command::MAX_BYTES;
use super::completion::{Entry, owner};
use super::layout::{BLOCK, EQE};
use crate::pci::Interrupts;
use crate::pci::memory::{BadMemory, GuestMemory};

/// Vector of the command event queue.
const VECTOR: usize = 0;
/// Most entries of any of the rings.
const MAX_DEPTH: u32 = 1 << 15;

/// Where the rings lie, as the registers say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rings {
    /// Commands.
    pub sq: u64,
    /// Their completions.
    pub cq: u64,
    /// Events.
    pub eq: u64,
    /// Blocks of the one, entries of the other.
    pub depth: u32,
    /// Entries.
    pub eq_depth: u32,
}

/// A command as it was found.
#[derive(Debug)]
pub struct Fetched {
    /// Sub-module.
    pub module: u8,
    /// Opcode.
    pub opcode: u8,
    /// Its blocks.
    pub bytes: Vec<u8>,
    /// Index of its first block.
    index: u16,
}

/// Why the queue has stopped: nothing that the guest puts there is executed any more until it initialises the device again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The producer index is further ahead than the ring is long.
    #[error("{0} blocks of commands in a smaller ring")]
    TooMany(u16),
    /// An entry that is longer than what there is.
    #[error("a command of {blocks} blocks of {pending}")]
    Cut {
        /// What it says.
        blocks: u16,
        /// What there is.
        pending: u16,
    },
    /// A ring is not in memory.
    #[error("the command queue's memory: {0}")]
    Memory(#[from] BadMemory),
}

/// The queue.
#[derive(Debug)]
pub struct CommandQueue {
    rings: Rings,
    /// As the doorbell said, and what was taken; modulo 2^16.
    sq_pi: u16,
    sq_ci: u16,
    cq_pi: u32,
    cq_armed: bool,
    eq_pi: u32,
    eq_armed: bool,
}

impl CommandQueue {
    /// An empty queue; `None` for depths that no ring has. Its event queue starts armed.
    pub fn new(rings: Rings) -> Option<CommandQueue> {
        let good = |depth: u32| depth.is_power_of_two() && depth <= MAX_DEPTH;
        let aligned = [rings.sq, rings.cq, rings.eq].iter().all(|address| address.is_multiple_of(BLOCK));
        (good(rings.depth) && good(rings.eq_depth) && aligned).then_some(CommandQueue {
            rings,
            sq_pi: 0,
            sq_ci: 0,
            cq_pi: 0,
            cq_armed: false,
            eq_pi: 0,
            eq_armed: true,
        })
    }

    /// The producer's doorbell.
    pub fn ring(&mut self, value: u64) {
        self.sq_pi = value as u16;
    }

    /// Whether there may be a next command.
    pub fn has_pending(&self) -> bool {
        self.sq_pi != self.sq_ci
    }

    /// The next command.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn fetch(&mut self, memory: &GuestMemory) -> Result<Option<Fetched>, Broken> {
        let pending = self.sq_pi.wrapping_sub(self.sq_ci);
        if pending == 0 {
            return Ok(None);
        }
        if u32::from(pending) > self.rings.depth {
            return Err(Broken::TooMany(pending));
        }
        let mut bytes = vec![0; MAX_BYTES];
        self.read_block(memory, self.sq_ci, &mut bytes[..BLOCK as usize])?;
        let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        let blocks = (header >> 52 & 7) as u16 + 1;
        if blocks > pending {
            return Err(Broken::Cut { blocks, pending });
        }
        for (n, block) in bytes.chunks_exact_mut(BLOCK as usize).enumerate().take(blocks.into()).skip(1) {
            self.read_block(memory, self.sq_ci.wrapping_add(n as u16), block)?;
        }
        bytes.truncate(usize::from(blocks) * BLOCK as usize);
        let index = self.sq_ci;
        self.sq_ci = self.sq_ci.wrapping_add(blocks);
        Ok(Some(Fetched { module: (header >> 24 & 3) as u8, opcode: (header >> 16) as u8, bytes, index }))
    }

    fn read_block(&self, memory: &GuestMemory, index: u16, to: &mut [u8]) -> Result<(), BadMemory> {
        memory.read(in_ring(self.rings.sq, index.into(), self.rings.depth, BLOCK), to)
    }

    /// Completes a command with its response, or as failed.
    ///
    /// # Errors
    /// [`Broken::Memory`].
    pub fn complete(
        &mut self,
        memory: &GuestMemory,
        interrupts: &Interrupts,
        fetched: &Fetched,
        outcome: Option<[u64; 2]>,
    ) -> Result<(), Broken> {
        let depth = self.rings.depth;
        let (status, quads) = outcome.map_or((1, [0; 2]), |quads| (0, quads));
        let Entry(bytes) = Entry::of_command(fetched.opcode, fetched.index, status, quads, owner(self.cq_pi, depth));
        let at = in_ring(self.rings.cq, self.cq_pi, depth, BLOCK);
        write_entry(memory, at, &bytes, 4)?;
        self.cq_pi = self.cq_pi.wrapping_add(1);
        if std::mem::take(&mut self.cq_armed) {
            self.event(memory, interrupts)?;
        }
        Ok(())
    }

    /// The completions' doorbell: the guest has read up to an index and wants to be told of more.
    ///
    /// # Errors
    /// [`Broken::Memory`].
    pub fn arm(&mut self, memory: &GuestMemory, interrupts: &Interrupts, value: u64) -> Result<(), Broken> {
        if value >> 31 & 1 == 0 {
            return Ok(());
        }
        // Completions that it has not read count at once.
        self.cq_armed = self.cq_pi.wrapping_sub(value as u32) & 0xFF_FFFF == 0;
        if self.cq_armed { Ok(()) } else { self.event(memory, interrupts) }
    }

    /// The event queue's doorbell.
    pub fn arm_events(&mut self, interrupts: &Interrupts, value: u64) {
        if value >> 31 & 1 == 0 {
            return;
        }
        self.eq_armed = self.eq_pi.wrapping_sub(value as u32) & 0xFFFF == 0;
        if !self.eq_armed {
            interrupts.raise(VECTOR);
        }
    }

    /// One entry, of which the driver looks at the owner bit alone.
    fn event(&mut self, memory: &GuestMemory, interrupts: &Interrupts) -> Result<(), Broken> {
        let depth = self.rings.eq_depth;
        let mut bytes = [0; EQE as usize];
        bytes[..8].copy_from_slice(&(u64::from(owner(self.eq_pi, depth)) << 31).to_le_bytes());
        write_entry(memory, in_ring(self.rings.eq, self.eq_pi, depth, EQE), &bytes, 8)?;
        self.eq_pi = self.eq_pi.wrapping_add(1);
        if std::mem::take(&mut self.eq_armed) {
            interrupts.raise(VECTOR);
        }
        Ok(())
    }
}

/// Address of an entry. One that wraps is not mapped.
fn in_ring(base: u64, index: u32, depth: u32, entry: u64) -> u64 {
    base.saturating_add(u64::from(index & (depth - 1)) * entry)
}

/// Stores an entry, its first bytes last: they hold the owner bit.
fn write_entry(memory: &GuestMemory, at: u64, bytes: &[u8], first: usize) -> Result<(), BadMemory> {
    memory.write(at.saturating_add(first as u64), &bytes[first..])?;
    std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
    memory.write(at, &bytes[..first])
}
