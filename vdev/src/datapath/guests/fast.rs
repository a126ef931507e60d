//! Fast registration: regions that requests of the guest's kernel fill, each time with other pages.
//!
//! Carried out when the request is taken from its ring, which is before anything that may use the key, and completed in the request's
//! turn. The pages are not pinned: the guest's kernel names them by guest-physical address, as it does with its key to all memory, and
//! its memory is mapped as long as the VMM lets it be. A key is taken back by the core, when a request or a peer asks for that.

use std::sync::Arc;

use pvdma::Region;
use rnic::MrInit;
use roce::{Lkey, Rkey};

use super::{Adopted, GuestId, RingMemory};
use crate::datapath::Datapath;
use crate::pci::Run;
use crate::pci::erdma::command::{Failed, failed};
use crate::pci::erdma::entry::{FastRegistration, SEND_BYTES, fast_registration};
use crate::pci::erdma::layout::PAGE;

/// A region to be made.
#[derive(Debug)]
pub struct NewFastRegion {
    /// Index.
    pub index: u32,
    /// Protection domain.
    pub pdn: u32,
    /// Entries of its list.
    pub capacity: u32,
    /// log2 of the bytes of a page.
    pub shift: u32,
    /// Memory of its list.
    pub list: Vec<Run>,
}

/// A region for fast registration.
#[derive(Debug)]
pub struct FastRegion {
    pub(super) pdn: u32,
    capacity: u32,
    shift: u32,
    list: RingMemory,
    /// What it was filled with last. The core may know no more of it.
    filled: Option<(Lkey, Adopted)>,
}

impl Datapath {
    /// Makes a region for fast registration, which holds nothing yet.
    ///
    /// # Errors
    /// Why not; nothing was changed.
    pub fn guest_reg_fast(&mut self, id: GuestId, new: NewFastRegion) -> Result<(), Failed> {
        let NewFastRegion { index, pdn, capacity, shift, list } = new;
        let guest = self.guest(id)?;
        if guest.mrs.contains_key(&index) || guest.fast.contains_key(&index) {
            return Err(failed(format_args!("region {index} exists")));
        }
        self.enter_pd(id, pdn)?;
        let list = RingMemory::new(self.adopt(list));
        self.guest(id)?.fast.insert(index, FastRegion { pdn, capacity, shift, list, filled: None });
        Ok(())
    }

    /// The region is no more.
    pub(super) fn end_fast(&mut self, region: FastRegion) {
        self.empty(region.filled);
        self.release(region.list.adopted);
    }

    fn empty(&mut self, filled: Option<(Lkey, Adopted)>) {
        if let Some((lkey, memory)) = filled {
            // It may have been taken back already.
            let _ = self.rnic.dereg_mr(lkey);
            self.release(memory);
        }
    }

    /// Does what a request for fast registration asks for, within the protection domain of its queue pair.
    ///
    /// # Errors
    /// It makes no sense.
    pub(super) fn fast_register(&mut self, guest: u32, pdn: u32, entry: &[u8; SEND_BYTES]) -> Result<(), Failed> {
        let asked = fast_registration(entry).map_err(failed)?;
        let index = asked.key >> 8;
        let owner = self.guests.at(guest).ok_or_else(|| failed("the guest has gone"))?;
        let pd = owner.pds.get(&pdn).map(|pd| pd.id).ok_or_else(|| failed("no such protection domain"))?;
        let region = owner.fast.get_mut(&index).filter(|region| region.pdn == pdn);
        let region = region.ok_or_else(|| failed(format_args!("no region {index} for fast registration")))?;
        let mut pages = asked.inline.unwrap_or_default().to_vec();
        if asked.inline.is_none() && asked.count <= region.capacity {
            let mut bytes = vec![0; 8 * asked.count as usize];
            let at = region.list.at(0, bytes.len() as u64).ok_or_else(|| failed("a list that is not in one piece"))?;
            self.memories.read(at, &mut bytes).map_err(|_| failed("its list is gone"))?;
            pages = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect();
        }
        let runs = runs(&owner.memory, &asked, region.shift, &pages)?;
        // What it held before was taken back, or nobody uses it any more.
        let before = region.filled.take();
        self.empty(before);
        let mut memory = self.adopt(runs);
        let init = MrInit { iova: asked.iova, access: asked.access, runs: std::mem::take(&mut memory.segments) };
        match self.rnic.reg_mr_named(pd, init, Rkey(asked.key)) {
            Ok(mr) => {
                let region = self.guests.at(guest).and_then(|guest| guest.fast.get_mut(&index));
                region.expect("found above").filled = Some((mr.lkey, memory));
                Ok(())
            }
            Err(error) => {
                self.release(memory);
                Err(failed(error))
            }
        }
    }
}

/// Where the bytes lie that are asked for, neighbours merged.
fn runs(memory: &[Arc<Region>], asked: &FastRegistration, shift: u32, pages: &[u64]) -> Result<Vec<Run>, Failed> {
    let page_len = 1u64 << shift;
    let skip = asked.iova & (page_len - 1);
    let needed = (skip + u64::from(asked.len)).div_ceil(page_len);
    let count = u64::from(asked.count);
    if asked.len == 0 || needed > count || count > pages.len() as u64 {
        return Err(failed(format_args!("{} bytes in {count} pages of 2^{shift} bytes", asked.len)));
    }
    let (mut runs, mut skip, mut left) = (Vec::<Run>::new(), skip, u64::from(asked.len));
    for &page in &pages[..needed as usize] {
        let len = (page_len - skip).min(left);
        let not_memory = || failed(format_args!("a page at {page:#x}"));
        let (start, end) = (page.checked_add(skip), page.checked_add(skip + len));
        let (Some(start), Some(end), true) = (start, end, page.is_multiple_of(PAGE)) else { return Err(not_memory()) };
        let at = memory.partition_point(|region| region.range().start().0 <= start).checked_sub(1).ok_or_else(not_memory)?;
        let region = &memory[at];
        if end > region.range().end().0 {
            return Err(not_memory());
        }
        let offset = start - region.range().start().0;
        match runs.last_mut() {
            Some(last) if Arc::ptr_eq(&last.region, region) && last.offset + last.len == offset => last.len += len,
            _ => runs.push(Run { region: region.clone(), offset, len }),
        }
        left -= len;
        skip = 0;
    }
    Ok(runs)
}
