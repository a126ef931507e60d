//! Windows of devices: memory of GPUs that clients have registered, whose it is, and what happens when it is taken back.
//!
//! A window is the daemon's mapping of one buffer that a driver has exported; registrations in it have [`Owner::Gpu`]. It ends under
//! them when the client says so, or when an access finds that memory of it is gone. Then all of them are revoked together, and the
//! daemon lets go of the buffer; the registrations stay, without memory, until the client ends them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use emtt::{GpuId, MemId, Owner};

use super::Datapath;
use super::calls::Answer;
use super::clients::{ClientId, Region};
use crate::memory::SharedMapping;

/// All windows of all clients, and the drivers they are of.
#[derive(Debug, Default)]
pub(super) struct Windows {
    /// Names of drivers, by number.
    exporters: Vec<Arc<str>>,
    live: BTreeMap<MemId, Window>,
}

#[derive(Debug)]
struct Window {
    client: ClientId,
    exporter: Arc<str>,
    /// Indices of the client's regions that lie in it.
    regions: BTreeSet<u32>,
}

impl Windows {
    /// Who owns the memory of a mapping that is known as `space`. The kernel tells the driver behind a buffer, and not which of its
    /// devices: all of one driver's have one number.
    pub fn owner(&mut self, space: MemId, mapping: &SharedMapping) -> Owner {
        let Some(exporter) = mapping.exporter() else { return Owner::Host(space) };
        let known = self.exporters.iter().position(|known| known == exporter).unwrap_or_else(|| {
            self.exporters.push(exporter.clone());
            self.exporters.len() - 1
        });
        let device = GpuId(u16::try_from(known).expect("the kernel has fewer than 2^16 drivers"));
        Owner::Gpu { device, window: space }
    }

    /// A region of `client` lies in those of these mappings that are windows.
    pub fn enter(&mut self, client: ClientId, region: u32, mappings: &[(MemId, Arc<SharedMapping>)]) {
        for (space, mapping) in mappings {
            if let Some(exporter) = mapping.exporter() {
                let new = || Window { client, exporter: exporter.clone(), regions: BTreeSet::new() };
                self.live.entry(*space).or_insert_with(new).regions.insert(region);
            }
        }
    }

    /// A region lies in them no more.
    pub fn leave(&mut self, region: u32, mappings: &[(MemId, Arc<SharedMapping>)]) {
        for (space, _) in mappings {
            if let Some(window) = self.live.get_mut(space) {
                window.regions.remove(&region);
                if window.regions.is_empty() {
                    self.live.remove(space);
                }
            }
        }
    }

    /// How many regions of a client lie in windows, by driver.
    pub fn regions_of(&self, client: ClientId) -> BTreeMap<String, usize> {
        let mut regions = BTreeMap::new();
        for window in self.live.values().filter(|window| window.client == client) {
            *regions.entry(window.exporter.to_string()).or_insert(0) += window.regions.len();
        }
        regions
    }
}

impl Region {
    /// Gives up its part in a window; what it held stays until it ends, or is taken by the caller.
    fn lose(&mut self, window: MemId) {
        let (lost, kept) = std::mem::take(&mut self.mappings).into_iter().partition(|(space, _)| *space == window);
        self.mappings = kept;
        let lost: Vec<_> = lost;
        self.lost.extend(lost.into_iter().map(|(_, mapping)| mapping));
    }
}

impl Datapath {
    /// The client takes the memory behind these mappings of a buffer back. When this returns, nothing reads or writes it any more. How
    /// many of its regions have lost memory, and what they held of it, to be let go of outside the datapath.
    pub fn revoke_buffer(&mut self, id: ClientId, mappings: &[Arc<SharedMapping>]) -> Answer<(u32, impl Send + use<>)> {
        self.with_client(id)?;
        let mut revoked = 0;
        let mut held = Vec::new();
        for mapping in mappings {
            let Some(space) = self.memories.id_of(mapping) else { continue };
            for region in self.end_window(space) {
                let client = self.client(id).expect("found above");
                held.append(&mut client.regions.at_mut(region).expect("its region").lost);
                revoked += 1;
            }
        }
        Ok((revoked, held))
    }

    /// Revokes what lies in windows of which an access has found memory to be gone.
    pub(super) fn end_lost_windows(&mut self) {
        while let Some(space) = self.memories.take_lost() {
            self.end_window(space);
        }
    }

    /// Revokes all regions in a window; returns their indices.
    fn end_window(&mut self, space: MemId) -> Vec<u32> {
        let Some(Window { client: id, exporter, regions }) = self.windows.live.remove(&space) else { return Vec::new() };
        let client = self.clients[id.index as usize].as_deref_mut().expect("windows end before their client");
        tracing::info!(pid = client.pid, %exporter, regions = regions.len(), "memory of a device is gone under its registrations");
        for &index in &regions {
            let region = client.regions.at_mut(index).expect("regions leave a window before they end");
            if let Err(error) = self.rnic.revoke_mr(region.lkey) {
                tracing::error!(%error, "a region was unknown to the core");
            }
            region.lose(space);
            self.memories.remove(space);
        }
        regions.into_iter().collect()
    }
}
