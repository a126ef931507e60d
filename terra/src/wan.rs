//! The wide-area network: sites, directed links and what each can carry now.

use crate::id::{LinkId, SiteId};
use std::collections::BTreeMap;
use thiserror::Error;

/// Most sites of one network.
pub const MAX_SITES: usize = 4096;
/// Most directed links of one network.
pub const MAX_LINKS: usize = 65_536;
/// Largest capacity of a link, Gbit/s.
pub const MAX_CAPACITY_GBPS: f64 = 1e6;
/// Least capacity of a working link, Gbit/s (1 kbit/s); less counts as failed.
pub const MIN_CAPACITY_GBPS: f64 = 1e-6;

/// One direction of a connection between two sites.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Where it starts.
    pub from: SiteId,
    /// Where it ends; never equal to `from`.
    pub to: SiteId,
    /// What it carries at most now, Gbit/s; 0 while it has failed.
    pub capacity_gbps: f64,
}

/// Why a network was refused.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum WanError {
    /// Two sites of one name.
    #[error("Site {0:?} appears twice")]
    DuplicateSite(String),
    /// A link or coflow names a site that does not exist.
    #[error("Unknown site {0:?}")]
    UnknownSite(String),
    /// A link index out of range.
    #[error("Unknown link {0}: there are {1} links")]
    UnknownLink(LinkId, usize),
    /// A link from a site to itself.
    #[error("Link from {0:?} to itself")]
    SelfLoop(String),
    /// A second link between the same two sites in the same direction.
    #[error("Second link from {0:?} to {1:?}: add the capacities up")]
    DuplicateLink(String, String),
    /// A capacity that is no number in range.
    #[error("Capacity {0} Gbit/s is outside {MIN_CAPACITY_GBPS} to {MAX_CAPACITY_GBPS}")]
    Capacity(f64),
    /// Too many sites or links.
    #[error("More than {MAX_SITES} sites or {MAX_LINKS} links")]
    TooLarge,
    /// Two sites between which nothing can be sent.
    #[error("No way from {0:?} to {1:?}")]
    Disconnected(String, String),
    /// There are fewer than two sites.
    #[error("A network needs at least two sites, this one has {0}")]
    TooSmall(usize),
}

/// Sites and directed links. Links are never removed: a failed one has capacity 0, so that ids stay valid.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wan {
    sites: Vec<String>,
    by_name: BTreeMap<String, SiteId>,
    links: Vec<Link>,
    by_ends: BTreeMap<(SiteId, SiteId), LinkId>,
    out: Vec<Vec<LinkId>>,
}

impl Wan {
    /// A network without sites.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a site.
    ///
    /// # Errors
    /// [`WanError::DuplicateSite`], [`WanError::TooLarge`].
    pub fn add_site(&mut self, name: &str) -> Result<SiteId, WanError> {
        if self.by_name.contains_key(name) {
            return Err(WanError::DuplicateSite(name.to_owned()));
        }
        if self.sites.len() >= MAX_SITES {
            return Err(WanError::TooLarge);
        }
        let id = SiteId(self.sites.len() as u32);
        self.sites.push(name.to_owned());
        self.by_name.insert(name.to_owned(), id);
        self.out.push(Vec::new());
        Ok(id)
    }

    /// Adds one direction.
    ///
    /// # Errors
    /// [`WanError::SelfLoop`], [`WanError::DuplicateLink`], [`WanError::Capacity`], [`WanError::TooLarge`].
    ///
    /// # Panics
    /// If a site id is not from this network.
    pub fn add_link(&mut self, from: SiteId, to: SiteId, capacity_gbps: f64) -> Result<LinkId, WanError> {
        if from == to {
            return Err(WanError::SelfLoop(self.name(from).to_owned()));
        }
        if self.by_ends.contains_key(&(from, to)) {
            return Err(WanError::DuplicateLink(self.name(from).to_owned(), self.name(to).to_owned()));
        }
        check_capacity(capacity_gbps)?;
        if self.links.len() >= MAX_LINKS {
            return Err(WanError::TooLarge);
        }
        let id = LinkId(self.links.len() as u32);
        assert!(to.index() < self.sites.len(), "site {to} is not of this network");
        self.links.push(Link { from, to, capacity_gbps });
        self.by_ends.insert((from, to), id);
        self.out[from.index()].push(id);
        Ok(id)
    }

    /// Adds both directions, each with the full capacity.
    ///
    /// # Errors
    /// As [`Wan::add_link`].
    ///
    /// # Panics
    /// If a site id is not from this network.
    pub fn add_edge(&mut self, a: SiteId, b: SiteId, capacity_gbps: f64) -> Result<(LinkId, LinkId), WanError> {
        Ok((self.add_link(a, b, capacity_gbps)?, self.add_link(b, a, capacity_gbps)?))
    }

    /// Sets what a link carries from now on; 0 means failed.
    ///
    /// # Errors
    /// [`WanError::UnknownLink`], [`WanError::Capacity`]; nothing is changed then.
    pub fn set_capacity(&mut self, link: LinkId, capacity_gbps: f64) -> Result<(), WanError> {
        if capacity_gbps != 0.0 {
            check_capacity(capacity_gbps)?;
        }
        let count = self.links.len();
        self.links.get_mut(link.index()).ok_or(WanError::UnknownLink(link, count))?.capacity_gbps = capacity_gbps;
        Ok(())
    }

    /// The names of the sites, by [`SiteId`].
    pub fn sites(&self) -> &[String] {
        &self.sites
    }

    /// The directed links, by [`LinkId`].
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// Links that leave a site, in the order they were added.
    pub fn out(&self, site: SiteId) -> &[LinkId] {
        &self.out[site.index()]
    }

    /// The name of a site.
    ///
    /// # Panics
    /// If the id is not from this network.
    pub fn name(&self, site: SiteId) -> &str {
        &self.sites[site.index()]
    }

    /// The site of that name.
    ///
    /// # Errors
    /// [`WanError::UnknownSite`].
    pub fn site(&self, name: &str) -> Result<SiteId, WanError> {
        self.by_name.get(name).copied().ok_or_else(|| WanError::UnknownSite(name.to_owned()))
    }

    /// The link from one site to another, if there is one (working or failed).
    pub fn link_between(&self, from: SiteId, to: SiteId) -> Option<LinkId> {
        self.by_ends.get(&(from, to)).copied()
    }

    /// What each link carries now, by [`LinkId`], Gbit/s.
    pub fn capacities(&self) -> Vec<f64> {
        self.links.iter().map(|link| link.capacity_gbps).collect()
    }

    /// Whether every site can send to every other one, with the capacities of now.
    ///
    /// # Errors
    /// [`WanError::Disconnected`] with the first pair found, [`WanError::TooSmall`].
    pub fn check_connected(&self) -> Result<(), WanError> {
        if self.sites.len() < 2 {
            return Err(WanError::TooSmall(self.sites.len()));
        }
        // Everybody reaches everybody if the first site reaches all, and all reach it.
        for backwards in [false, true] {
            if let Some(lost) = self.unreached_from_first(backwards) {
                let (a, b) = (self.sites[0].clone(), self.sites[lost].clone());
                return Err(if backwards { WanError::Disconnected(b, a) } else { WanError::Disconnected(a, b) });
            }
        }
        Ok(())
    }

    fn unreached_from_first(&self, backwards: bool) -> Option<usize> {
        let mut next: Vec<Vec<usize>> = vec![Vec::new(); self.sites.len()];
        for link in self.links.iter().filter(|link| link.capacity_gbps > 0.0) {
            let (from, to) = if backwards { (link.to, link.from) } else { (link.from, link.to) };
            next[from.index()].push(to.index());
        }
        let mut reached = vec![false; self.sites.len()];
        reached[0] = true;
        let mut todo = vec![0];
        while let Some(site) = todo.pop() {
            for &other in &next[site] {
                if !reached[other] {
                    reached[other] = true;
                    todo.push(other);
                }
            }
        }
        reached.iter().position(|reached| !reached)
    }
}

fn check_capacity(capacity_gbps: f64) -> Result<(), WanError> {
    // Written so that NaN fails too.
    if (MIN_CAPACITY_GBPS..=MAX_CAPACITY_GBPS).contains(&capacity_gbps) {
        Ok(())
    } else {
        Err(WanError::Capacity(capacity_gbps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_input_is_refused_and_changes_nothing() {
        let mut wan = Wan::new();
        let a = wan.add_site("a").unwrap();
        let b = wan.add_site("b").unwrap();
        let ab = wan.add_link(a, b, 10.0).unwrap();
        let before = wan.clone();
        assert_eq!(wan.add_site("a"), Err(WanError::DuplicateSite("a".into())));
        assert_eq!(wan.add_link(a, a, 1.0), Err(WanError::SelfLoop("a".into())));
        assert_eq!(wan.add_link(a, b, 1.0), Err(WanError::DuplicateLink("a".into(), "b".into())));
        for bad in [0.0, -1.0, f64::INFINITY, 1e7, 1e-7] {
            assert!(wan.add_link(b, a, bad).is_err());
            if bad != 0.0 {
                assert_eq!(wan.set_capacity(ab, bad), Err(WanError::Capacity(bad)));
            }
        }
        assert!(wan.set_capacity(ab, f64::NAN).is_err());
        assert_eq!(wan.set_capacity(LinkId(9), 1.0), Err(WanError::UnknownLink(LinkId(9), 1)));
        assert_eq!(wan.site("c"), Err(WanError::UnknownSite("c".into())));
        assert_eq!(wan, before);
    }

    #[test]
    fn connectivity_is_checked_in_both_directions() {
        let mut wan = Wan::new();
        let a = wan.add_site("a").unwrap();
        assert_eq!(wan.check_connected(), Err(WanError::TooSmall(1)));
        let b = wan.add_site("b").unwrap();
        wan.add_link(a, b, 1.0).unwrap();
        assert_eq!(wan.check_connected(), Err(WanError::Disconnected("b".into(), "a".into())));
        let ba = wan.add_link(b, a, 1.0).unwrap();
        wan.check_connected().unwrap();
        wan.set_capacity(ba, 0.0).unwrap();
        assert!(wan.check_connected().is_err(), "a failed link carries nothing");
    }
}
