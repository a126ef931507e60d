//! Networks to work on: three published ones, kept as link lists in this repository, and synthetic ones of any size.

use crate::id::SiteId;
use crate::random::Random;
use crate::read::links;
use crate::wan::Wan;

/// Decides the synthetic networks that have a name.
const SYNTHETIC_SEED: u64 = 1;

/// A network that comes with the crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Known {
    /// 5 sites, 7 edges of 5.12 Gbit/s.
    Swan,
    /// 12 sites, 19 edges of 1 to 7 Gbit/s.
    GScale,
    /// 25 sites, 56 edges of 1 to 100 Gbit/s.
    Att,
    /// Synthetic: 40 sites, 90 edges of 1 to 100 Gbit/s.
    Random40,
    /// Synthetic: 100 sites, 250 edges of 1 to 100 Gbit/s.
    Random100,
}

impl Known {
    /// Those of published evaluations, smallest first.
    pub const PUBLISHED: [Self; 3] = [Self::Swan, Self::GScale, Self::Att];
    /// All of them, smallest first.
    pub const ALL: [Self; 5] = [Self::Swan, Self::GScale, Self::Att, Self::Random40, Self::Random100];

    /// The name used in files and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Swan => "swan",
            Self::GScale => "gscale",
            Self::Att => "att",
            Self::Random40 => "random40",
            Self::Random100 => "random100",
        }
    }

    /// The network of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// Builds the network.
    pub fn wan(self) -> Wan {
        let text = match self {
            Self::Swan => include_str!("../topologies/swan.links"),
            Self::GScale => include_str!("../topologies/gscale.links"),
            Self::Att => include_str!("../topologies/att.links"),
            Self::Random40 => return random(40, 90, SYNTHETIC_SEED),
            Self::Random100 => return random(100, 250, SYNTHETIC_SEED),
        };
        links::parse(text).expect("the link lists of this repository are good")
    }
}

/// A random connected network: a ring through all sites, and chords between random pairs until there are `edges` edges.
/// Each edge has one of the capacities of common optical links, 1 to 100 Gbit/s.
///
/// # Panics
/// If `sites` is below 3, or `edges` is below `sites` or above the number of pairs.
pub fn random(sites: usize, edges: usize, seed: u64) -> Wan {
    assert!(sites >= 3 && edges >= sites && edges <= sites * (sites - 1) / 2, "{sites} sites cannot have {edges} edges");
    let mut random = Random::new(seed);
    let mut wan = Wan::new();
    let ids: Vec<SiteId> = (0..sites).map(|site| wan.add_site(&format!("s{site}")).expect("names differ")).collect();
    let capacity = |random: &mut Random| [1.0, 10.0, 40.0, 100.0][random.below(4) as usize];
    for site in 0..sites {
        let gbps = capacity(&mut random);
        wan.add_edge(ids[site], ids[(site + 1) % sites], gbps).expect("ring edges differ");
    }
    let mut left = edges - sites;
    while left > 0 {
        let (a, b) = (random.below(sites as u64) as usize, random.below(sites as u64) as usize);
        if a != b && wan.link_between(ids[a], ids[b]).is_none() {
            let gbps = capacity(&mut random);
            wan.add_edge(ids[a], ids[b], gbps).expect("checked just before");
            left -= 1;
        }
    }
    wan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_networks_have_the_published_sizes() {
        let sizes = Known::PUBLISHED.map(|known| {
            let wan = known.wan();
            wan.check_connected().unwrap();
            let one_way: f64 = wan.capacities().iter().sum::<f64>() / 2.0;
            (wan.sites().len(), wan.links().len() / 2, (one_way * 100.0).round() / 100.0)
        });
        assert_eq!(sizes, [(5, 7, 35.84), (12, 19, 43.0), (25, 56, 1322.0)]);
        assert_eq!(Known::from_name("att"), Some(Known::Att));
        assert_eq!(Known::from_name("nowhere"), None);
    }

    #[test]
    fn random_networks_are_connected_and_repeatable() {
        let wan = random(40, 90, 7);
        wan.check_connected().unwrap();
        assert_eq!(wan.links().len(), 180);
        assert_eq!(wan, random(40, 90, 7));
        assert_ne!(wan, random(40, 90, 8));
    }
}
