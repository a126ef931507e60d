//! PCI configuration space: a type 0 header with two memory BARs and MSI-X, as bytes with a mask of those that can be written.
//!
//! BARs are sized in the standard way: their address bits below the size cannot be written, so that all ones read back as the
//! size. Where the BARs lie is the VMM's business. Source: PCI 3.0 chapter 6.

/// Bytes.
pub const LEN: usize = 256;

/// MSI-X vectors of the function.
pub const VECTORS: u16 = 32;
/// BAR of the MSI-X table and pending bits, and its length in bytes.
pub const MSIX_BAR: (usize, u64) = (2, 8192);

const COMMAND: usize = 0x04;
const BUS_MASTER: u8 = 1 << 2;
const BAR0: usize = 0x10;
const MSIX: usize = 0x40;

/// What distinguishes one function from another.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Vendor and device, as drivers look for them.
    pub id: (u16, u16),
    /// Base class, subclass, programming interface in the low three bytes.
    pub class: u32,
    /// Subsystem vendor and device: ours, so that the function can be told from the one that it behaves like.
    pub subsystem: (u16, u16),
    /// Bytes of BAR 0, a power of two.
    pub bar0: u64,
}

/// The configuration space of one function.
#[derive(Clone, Debug)]
pub struct ConfigSpace {
    bytes: [u8; LEN],
    writable: [u8; LEN],
    identity: Identity,
}

impl ConfigSpace {
    /// As after power-on.
    pub fn new(identity: Identity) -> ConfigSpace {
        let mut space = ConfigSpace { bytes: [0; LEN], writable: [0; LEN], identity };
        space.set16(0x00, identity.id.0);
        space.set16(0x02, identity.id.1);
        // Memory decode, bus master, interrupt disable.
        space.allow(COMMAND, &0x0406u16.to_le_bytes());
        // There is a capability list.
        space.set16(0x06, 0x0010);
        space.bytes[0x08] = 1;
        space.bytes[0x09..0x0C].copy_from_slice(&identity.class.to_le_bytes()[..3]);
        space.allow(0x0C, &[0xFF]);
        for (index, len) in [(0, identity.bar0), MSIX_BAR] {
            // 64-bit memory, not prefetchable.
            space.bytes[BAR0 + 4 * index] = 0b100;
            space.allow(BAR0 + 4 * index, &(!(len - 1)).to_le_bytes());
        }
        space.set16(0x2C, identity.subsystem.0);
        space.set16(0x2E, identity.subsystem.1);
        space.bytes[0x34] = MSIX as u8;
        space.allow(0x3C, &[0xFF]);
        // MSI-X: enable and function mask can be written; table at offset 0 and pending bits at 4096 of its BAR.
        space.bytes[MSIX] = 0x11;
        space.set16(MSIX + 2, VECTORS - 1);
        space.allow(MSIX + 3, &[0xC0]);
        let bar = MSIX_BAR.0 as u32;
        space.bytes[MSIX + 4..MSIX + 8].copy_from_slice(&bar.to_le_bytes());
        space.bytes[MSIX + 8..MSIX + 12].copy_from_slice(&(0x1000 | bar).to_le_bytes());
        space
    }

    fn set16(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn allow(&mut self, at: usize, mask: &[u8]) {
        self.writable[at..at + mask.len()].copy_from_slice(mask);
    }

    /// Back to power-on.
    pub fn reset(&mut self) {
        *self = ConfigSpace::new(self.identity);
    }

    /// Reads any number of bytes; what lies behind the end is zero.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        let Some(bytes) = usize::try_from(offset).ok().and_then(|offset| self.bytes.get(offset..)) else { return };
        let len = data.len().min(bytes.len());
        data[..len].copy_from_slice(&bytes[..len]);
    }

    /// Writes what can be written.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let Ok(offset) = usize::try_from(offset) else { return };
        for (at, &byte) in (offset..LEN).zip(data) {
            self.bytes[at] = self.bytes[at] & !self.writable[at] | byte & self.writable[at];
        }
    }

    /// Whether the function may do DMA and interrupt.
    pub fn is_bus_master(&self) -> bool {
        self.bytes[COMMAND] & BUS_MASTER != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> ConfigSpace {
        ConfigSpace::new(Identity { id: (0x1ded, 0x107f), class: 0x02_0700, subsystem: (1, 2), bar0: 4 << 20 })
    }

    fn word(space: &ConfigSpace, at: u64) -> u32 {
        let mut data = [0; 4];
        space.read(at, &mut data);
        u32::from_le_bytes(data)
    }

    #[test]
    fn header_reads_as_a_driver_expects() {
        let space = space();
        assert_eq!((word(&space, 0), word(&space, 8) >> 8), (0x107f_1ded, 0x02_0700));
        assert_eq!(word(&space, 0x34), 0x40);
        assert_eq!((word(&space, 0x40), word(&space, 0x44), word(&space, 0x48)), (0x001F_0011, 2, 0x1002));
        // A read of any length, also across the end.
        let mut all = [0xAA; 4096];
        space.read(0, &mut all);
        assert_eq!((all[0], all[255], all[256], all[4095]), (0xED, 0, 0, 0));
        let mut beyond = [1; 8];
        space.read(u64::MAX, &mut beyond);
        assert_eq!(beyond, [0; 8]);
    }

    #[test]
    fn bars_are_sized_by_writing_ones() {
        let mut space = space();
        for (at, expected) in
            [(0x10, 0xFFC0_0004), (0x14, !0), (0x18, 0xFFFF_E004), (0x1C, !0), (0x20, 0), (0x24, 0), (0x30, 0)]
        {
            space.write(at, &[0xFF; 4]);
            assert_eq!(word(&space, at), expected, "at {at:#x}");
        }
        space.write(0x10, &0xE040_0000u32.to_le_bytes());
        assert_eq!(word(&space, 0x10), 0xE040_0004);
        space.reset();
        assert_eq!(word(&space, 0x10), 4);
    }

    #[test]
    fn only_what_is_writable_changes() {
        let mut space = space();
        let before = word(&space, 0);
        space.write(0, &[0xFF; LEN]);
        assert_eq!(word(&space, 0), before);
        assert_eq!(word(&space, 4), 0x0010_0406);
        assert!(space.is_bus_master());
        assert_eq!(word(&space, 0x40), 0xC01F_0011);
        space.write(4, &[0]);
        assert!(!space.is_bus_master());
        space.write(255, &[1, 2, 3]);
        space.write(u64::MAX, &[1]);
    }
}
