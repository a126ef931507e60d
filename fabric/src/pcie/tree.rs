//! The tree of switches below a root complex, and which way a memory request takes through it.
//!
//! At each downstream port that a request enters on its way up, its address type and the port's Access Control Services (ACS) decide
//! whether it is blocked, goes straight to a peer behind the same switch, or on up (PCIe 7.0, 6.12). At the root complex an untranslated
//! address is translated by the IOMMU; in this model to itself.

use emtt::Owner;
use std::ops::Range;

/// The address type of a request (AT field).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressType {
    /// 00.
    Untranslated,
    /// 01: a question to the IOMMU.
    TranslationRequest,
    /// 10.
    Translated,
}

impl AddressType {
    /// Of a request to memory of this owner whose final address the NIC knows. Host memory stays the IOMMU's to guard.
    pub fn to(owner: Owner) -> AddressType {
        match owner {
            Owner::Host(_) => AddressType::Untranslated,
            Owner::Gpu { .. } => AddressType::Translated,
        }
    }
}

/// Access Control Services of a downstream port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acs {
    /// Translated requests are blocked.
    pub translation_blocking: bool,
    /// Translated requests may go straight to a peer.
    pub direct_translated: bool,
    /// Other requests to peers go up instead.
    pub request_redirect: bool,
}

/// A node of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeId(usize);

/// The root complex of every tree.
pub const ROOT: NodeId = NodeId(0);

#[derive(Debug)]
struct Node {
    parent: NodeId,
    /// Of the port above it.
    acs: Acs,
    /// Addresses that are its own; a switch has none.
    bar: Range<u64>,
}

/// Where a request ended, and how it came there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The function, or [`ROOT`]: host memory, or the IOMMU that was asked.
    pub end: NodeId,
    /// Links that it went through.
    pub links: u64,
    /// Of these, on the way up.
    pub up: u64,
    /// Whether it came to the IOMMU.
    pub iommu: bool,
}

/// A request that a port did not let pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The node below the port.
    pub below: NodeId,
}

/// A root complex and what is below it.
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
}

impl Default for Tree {
    fn default() -> Tree {
        Tree { nodes: vec![Node { parent: ROOT, acs: Acs::default(), bar: 0..0 }] }
    }
}

impl Tree {
    /// Adds a switch, or a function with the addresses of its BAR, below a port with these services.
    pub fn add(&mut self, parent: NodeId, acs: Acs, bar: Range<u64>) -> NodeId {
        self.nodes.push(Node { parent, acs, bar });
        NodeId(self.nodes.len() - 1)
    }

    /// The way of a request of a function to an address.
    ///
    /// # Errors
    /// A port blocks it.
    pub fn route(&self, from: NodeId, kind: AddressType, addr: u64) -> Result<Route, Blocked> {
        let owner = self.nodes.iter().position(|node| node.bar.contains(&addr)).map(NodeId);
        // A question is for the IOMMU whatever it asks about.
        let owner = owner.filter(|_| kind != AddressType::TranslationRequest);
        let (mut at, mut up) = (from, 0);
        while at != ROOT {
            let Node { parent, acs, .. } = &self.nodes[at.0];
            if kind == AddressType::Translated && acs.translation_blocking {
                return Err(Blocked { below: at });
            }
            up += 1;
            if *parent != ROOT
                && let Some((owner, down)) = owner.and_then(|owner| Some((owner, self.depth_below(owner, *parent)?)))
            {
                let straight = !acs.request_redirect || (kind == AddressType::Translated && acs.direct_translated);
                if straight {
                    return Ok(Route { end: owner, links: up + down, up, iommu: false });
                }
            }
            at = *parent;
        }
        let down = owner.and_then(|owner| self.depth_below(owner, ROOT)).unwrap_or(0);
        Ok(Route { end: owner.unwrap_or(ROOT), links: up + down, up, iommu: kind != AddressType::Translated })
    }

    /// Links from `above` down to a node; `None` if it is not below.
    fn depth_below(&self, node: NodeId, above: NodeId) -> Option<u64> {
        let (mut at, mut links) = (node, 0);
        while at != above {
            if at == ROOT {
                return None;
            }
            at = self.nodes[at.0].parent;
            links += 1;
        }
        Some(links)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use emtt::{GpuId, MemId};

    const GPU: u64 = 0x1000;
    const OTHER: u64 = 0x2000;
    const HOST: u64 = 0x9000;

    /// Two switches, the first with the NIC and a GPU, the second with another GPU.
    fn tree(acs: Acs) -> (Tree, NodeId, [NodeId; 2]) {
        let mut tree = Tree::default();
        let [near, far] = [0, 1].map(|_| tree.add(ROOT, Acs::default(), 0..0));
        let nic = tree.add(near, acs, 0..0);
        let gpus = [(near, GPU), (far, OTHER)].map(|(below, bar)| tree.add(below, acs, bar..bar + 0x1000));
        (tree, nic, gpus)
    }

    fn all_acs() -> impl Iterator<Item = Acs> {
        (0..8).map(|bits| Acs {
            translation_blocking: bits & 1 != 0,
            direct_translated: bits & 2 != 0,
            request_redirect: bits & 4 != 0,
        })
    }

    /// The table of PCIe 7.0, 6.12, for a peer behind the same switch: all of its lines.
    #[test]
    fn peers_are_reached_as_the_table_says() {
        for acs in all_acs() {
            let (tree, nic, [gpu, _]) = tree(acs);
            let straight = Ok(Route { end: gpu, links: 2, up: 1, iommu: false });
            let by_the_root = |iommu| Ok(Route { end: gpu, links: 4, up: 2, iommu });
            let translated = match acs {
                Acs { translation_blocking: true, .. } => Err(Blocked { below: nic }),
                Acs { direct_translated: true, .. } => straight,
                Acs { request_redirect: true, .. } => by_the_root(false),
                _ => straight,
            };
            assert_eq!(tree.route(nic, AddressType::Translated, GPU), translated, "{acs:?}");
            let untranslated = if acs.request_redirect { by_the_root(true) } else { straight };
            assert_eq!(tree.route(nic, AddressType::Untranslated, GPU), untranslated, "{acs:?}");
            let asked = Ok(Route { end: ROOT, links: 2, up: 2, iommu: true });
            assert_eq!(tree.route(nic, AddressType::TranslationRequest, GPU), asked, "{acs:?}");
        }
    }

    #[test]
    fn host_memory_and_other_switches_are_behind_the_root() {
        for acs in all_acs().filter(|acs| !acs.translation_blocking) {
            let (tree, nic, [_, other]) = tree(acs);
            for (kind, iommu) in [(AddressType::Untranslated, true), (AddressType::Translated, false)] {
                assert_eq!(tree.route(nic, kind, HOST), Ok(Route { end: ROOT, links: 2, up: 2, iommu }));
                assert_eq!(tree.route(nic, kind, OTHER), Ok(Route { end: other, links: 4, up: 2, iommu }));
            }
        }
    }

    /// A translated request is blocked wherever on its way up a port does that, also above its own switch.
    #[test]
    fn blocked_on_the_way() {
        let mut tree = Tree::default();
        let upper = tree.add(ROOT, Acs::default(), 0..0);
        let lower = tree.add(upper, Acs { translation_blocking: true, ..Acs::default() }, 0..0);
        let nic = tree.add(lower, Acs::default(), 0..0);
        let gpu = tree.add(upper, Acs::default(), GPU..GPU + 1);
        assert_eq!(tree.route(nic, AddressType::Translated, GPU), Err(Blocked { below: lower }));
        assert_eq!(tree.route(nic, AddressType::Untranslated, GPU), Ok(Route { end: gpu, links: 3, up: 2, iommu: false }));
    }

    #[test]
    fn only_memory_of_gpus_is_sent_to_as_translated() {
        assert_eq!(AddressType::to(Owner::Host(MemId(1))), AddressType::Untranslated);
        let gpu = Owner::Gpu { device: GpuId(0), window: MemId(1) };
        assert_eq!(AddressType::to(gpu), AddressType::Translated);
    }
}
