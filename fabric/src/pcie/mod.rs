//! A model of the way from a NIC to the memory of a GPU: PCIe switches, a root complex with an IOMMU, and three ways to find out where
//! the bytes go. It answers what pre-translated addresses in the NIC's own table are worth, and everything it says is modelled.
//!
//! [`tree`] routes requests by their address type and the switches' settings. [`Scheme`] is how the NIC comes to its addresses; with the
//! last of them it asks the very [`emtt::Table`] of the core. [`dma`] moves messages through the links, caches and page walkers of one
//! host, and [`sweep`] does so over working sets, message sizes and numbers of devices. [`params`] is the file that says how large
//! everything is.

pub mod dma;
pub mod params;
pub mod sweep;
pub mod tree;

use serde::Serialize;

/// How the NIC comes to the address that it sends a request to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// It does not: requests are untranslated, go up to the root complex and its IOMMU, and down again.
    HostBounce,
    /// It asks the IOMMU (ATS), and keeps what it was told in a cache (ATC). Every device is a function with an entry in the switch's
    /// table; one that finds no room there goes the way of [`Scheme::HostBounce`].
    Ats,
    /// Its translation table has final addresses and their owners. All devices are one function.
    Emtt,
}

impl Scheme {
    /// All, in the order of tables.
    pub const ALL: [Scheme; 3] = [Scheme::HostBounce, Scheme::Ats, Scheme::Emtt];

    /// As tables name it.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::HostBounce => "host bounce",
            Scheme::Ats => "ATS with ATC",
            Scheme::Emtt => "eMTT",
        }
    }
}
