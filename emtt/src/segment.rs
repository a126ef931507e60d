//! Where bytes finally are: an owner and an address in that owner's space.

/// One memory space that the daemon can reach: the address space of one client process, one shared object that is mapped,
/// one queue's ring, one guest's memory, one window of a GPU. Given out by whoever fills the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemId(pub u32);

/// A GPU. Given out by whoever fills the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuId(pub u16);

/// Who owns the memory behind a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// Host memory of a tenant.
    Host(MemId),
    /// Memory of a GPU.
    Gpu {
        /// Whose memory.
        device: GpuId,
        /// The BAR window that it is reached through; addresses count from its first byte.
        window: MemId,
    },
}

impl Owner {
    /// The space that addresses are in. Who copies bytes needs no more; the kind of owner says which way they take.
    #[inline]
    pub const fn space(self) -> MemId {
        match self {
            Owner::Host(space) | Owner::Gpu { window: space, .. } => space,
        }
    }
}

/// A contiguous piece of memory at its final address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Whose memory.
    pub owner: Owner,
    /// First byte, in the owner's address space.
    pub addr: u64,
    /// Number of bytes; `addr + len` does not wrap.
    pub len: u64,
}

impl Segment {
    /// Whether `next` begins where this one ends.
    #[inline]
    pub(crate) fn is_continued_by(&self, next: &Segment) -> bool {
        self.owner == next.owner && self.addr + self.len == next.addr
    }
}

/// A protection domain: regions and queue pairs work together only within one (IBA 10.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PdId(pub u32);

/// Through which queue pair a peer reaches memory, and that queue pair's protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Via {
    /// The protection domain.
    pub pd: PdId,
    /// The queue pair; the same number is never given to two that are there at once.
    pub qp: u32,
}
