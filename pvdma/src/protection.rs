//! What the guest lets its devices do with a region.

use bitflags::bitflags;

bitflags! {
    /// Rights of a device on guest memory, with the bits of a vfio-user DMA_MAP message. Use `from_bits` on what came from
    /// outside: it refuses unknown bits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Protection: u32 {
        /// The device may read.
        const READ = 1;
        /// The device may write.
        const WRITE = 2;
    }
}
