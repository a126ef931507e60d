//! Pinning for a real device behind an IOMMU: the kernel pins the block and maps it at its guest-physical address.
//!
//! For VFIO containers (type 1). The map of a block is what keeps its pages in place, and at the same time all of guest
//! memory that the device can reach: what is not pinned is out of its reach.

use super::{Block, Pinner, PinnerError};
use crate::protection::Protection;
use core::fmt;
use core::ptr::without_provenance_mut;
use nix::errno::Errno;
use std::sync::Arc;
use vfio_ioctls::{VfioError, VfioOps};

/// Maps blocks into the address space of the devices of a VFIO container.
pub struct VfioPinner {
    container: Arc<dyn VfioOps>,
}

impl VfioPinner {
    /// For the devices of `container`, whose address space nobody else maps anything into.
    pub fn new(container: Arc<dyn VfioOps>) -> VfioPinner {
        VfioPinner { container }
    }
}

impl fmt::Debug for VfioPinner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VfioPinner").finish_non_exhaustive()
    }
}

impl Pinner for VfioPinner {
    fn pin(&self, block: &Block) -> Result<(), PinnerError> {
        if !block.protection().contains(Protection::READ | Protection::WRITE) {
            // The crate behind this knows no other maps, and a device must not get more than the guest allowed.
            let hint = format!("{} are not both readable and writable: VFIO maps only what is", block.range());
            return Err(PinnerError { errno: Errno::EACCES, limit: false, hint });
        }
        let (iova, len) = (block.range().start().0, block.range().len() as usize);
        let start = without_provenance_mut(block.hva().0 as usize);
        // SAFETY: a block is mapped from before it is pinned until after it is unpinned, or else unmapped by munmap; no
        // reference to guest memory is ever made, all access to it is volatile.
        unsafe { self.container.vfio_dma_map(iova, len, start) }.map_err(|error| explain(&error, block))
    }

    fn unpin(&self, block: &Block) -> Result<(), PinnerError> {
        let unmapped = self.container.vfio_dma_unmap(block.range().start().0, block.range().len() as usize);
        unmapped.map_err(|error| explain(&error, block))
    }
}

fn explain(error: &VfioError, block: &Block) -> PinnerError {
    let errno = match error {
        VfioError::IommuDmaMap(error) | VfioError::IommuDmaUnmap(error) => Errno::from_raw(error.errno()),
        _ => Errno::EIO,
    };
    let (why, limit) = match errno {
        Errno::ENOSPC => ("the container has no map left: raise dma_entry_limit of module vfio_iommu_type1", true),
        Errno::ENOMEM => ("out of memory, or over RLIMIT_MEMLOCK: raise it (ulimit -l, LimitMEMLOCK=)", true),
        Errno::EEXIST => ("something is mapped there already", false),
        Errno::EFAULT => ("its object has become shorter than its map", false),
        Errno::EINVAL => ("the address may lie outside of what the IOMMU translates", false),
        _ => ("the kernel refuses", false),
    };
    PinnerError { errno, limit, hint: format!("VFIO, {}: {error}: {why}", block.range()) }
}
