//! Paths and how they are found: shortest by any length, hop-shortest, widest, k shortest.
//!
//! Every search breaks ties in the same way (fewer hops, then lower site index), so that equal inputs give equal paths.

use crate::id::{LinkId, SiteId};
use crate::wan::Wan;
use std::cmp::Ordering;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;

/// Consecutive links without a site visited twice. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(Arc<[LinkId]>);

impl Path {
    /// The links, from source to destination; never empty.
    pub fn links(&self) -> &[LinkId] {
        &self.0
    }

    /// Number of links.
    pub fn hops(&self) -> usize {
        self.0.len()
    }

    /// Where it begins and ends.
    pub fn ends(&self, wan: &Wan) -> (SiteId, SiteId) {
        let (first, last) = (self.0[0], self.0[self.0.len() - 1]);
        (wan.links()[first.index()].from, wan.links()[last.index()].to)
    }

    /// The sites on the way, both ends included.
    pub fn sites(&self, wan: &Wan) -> Vec<SiteId> {
        let first = wan.links()[self.0[0].index()].from;
        std::iter::once(first).chain(self.0.iter().map(|link| wan.links()[link.index()].to)).collect()
    }

    /// Takes links as a path if they are one: not empty, connected, no site twice, all known.
    pub fn from_links(wan: &Wan, links: &[LinkId]) -> Option<Self> {
        let mut seen = BTreeSet::new();
        let mut at = wan.links().get(links.first()?.index())?.from;
        seen.insert(at);
        for link in links {
            let link = wan.links().get(link.index())?;
            if link.from != at || !seen.insert(link.to) {
                return None;
            }
            at = link.to;
        }
        Some(Self(links.into()))
    }

    /// The least value over its links, for example what is left on the path.
    pub fn bottleneck(&self, of_link: &[f64]) -> f64 {
        self.0.iter().map(|link| of_link[link.index()]).fold(f64::INFINITY, f64::min)
    }

    /// The sum of a value over its links.
    pub fn length(&self, of_link: &[f64]) -> f64 {
        self.0.iter().map(|link| of_link[link.index()]).sum()
    }
}

#[derive(Clone, Copy, PartialEq)]
struct Reached {
    cost: f64,
    hops: u32,
    site: u32,
}

impl Eq for Reached {}
impl PartialOrd for Reached {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Reached {
    /// Reversed: the heap hands out its greatest, and the least cost comes first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.cost.total_cmp(&self.cost).then(other.hops.cmp(&self.hops)).then(other.site.cmp(&self.site))
    }
}

/// A tree of best paths from one site, with the memory to compute the next one.
#[derive(Clone, Debug)]
pub struct Tree {
    cost: Vec<f64>,
    hops: Vec<u32>,
    via: Vec<Option<LinkId>>,
    heap: BinaryHeap<Reached>,
}

impl std::fmt::Debug for Reached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {}", self.site, self.cost)
    }
}

impl Tree {
    /// Memory for a network of that many sites.
    pub fn new(wan: &Wan) -> Self {
        let sites = wan.sites().len();
        Self { cost: vec![f64::INFINITY; sites], hops: vec![0; sites], via: vec![None; sites], heap: BinaryHeap::new() }
    }

    /// Shortest paths from `from` by the sum of `length`; a link of infinite length is not used.
    pub fn shortest(&mut self, wan: &Wan, from: SiteId, length: impl Fn(LinkId) -> f64) {
        self.search(wan, from, 0.0, |cost, link| cost + length(link));
    }

    /// Widest paths from `from`: the greatest least `width`; a link of width 0 is not used.
    pub fn widest(&mut self, wan: &Wan, from: SiteId, width: impl Fn(LinkId) -> f64) {
        // Cost is the negated width, so that the best is still the least.
        self.search(wan, from, f64::NEG_INFINITY, |cost, link| {
            let width = width(link);
            if width > 0.0 { cost.max(-width) } else { f64::INFINITY }
        });
    }

    fn search(&mut self, wan: &Wan, from: SiteId, start: f64, extend: impl Fn(f64, LinkId) -> f64) {
        self.cost.fill(f64::INFINITY);
        self.via.fill(None);
        self.heap.clear();
        self.cost[from.index()] = start;
        self.hops[from.index()] = 0;
        self.heap.push(Reached { cost: start, hops: 0, site: from.0 });
        while let Some(at) = self.heap.pop() {
            let here = at.site as usize;
            if at.cost > self.cost[here] || at.hops > self.hops[here] {
                continue;
            }
            for &id in wan.out(SiteId(at.site)) {
                let cost = extend(at.cost, id);
                let (to, hops) = (wan.links()[id.index()].to, at.hops + 1);
                let known = self.cost[to.index()];
                if cost < known || (cost == known && cost < f64::INFINITY && hops < self.hops[to.index()]) {
                    self.cost[to.index()] = cost;
                    self.hops[to.index()] = hops;
                    self.via[to.index()] = Some(id);
                    self.heap.push(Reached { cost, hops, site: to.0 });
                }
            }
        }
    }

    /// Length of the shortest path found to `to`; infinite if there is none.
    pub fn distance(&self, to: SiteId) -> f64 {
        self.cost[to.index()]
    }

    /// The path found to `to`, last link first; empty if there is none.
    pub fn backwards<'a>(&'a self, wan: &'a Wan, to: SiteId) -> impl Iterator<Item = LinkId> + 'a {
        let mut at = to;
        std::iter::from_fn(move || {
            let id = self.via[at.index()]?;
            at = wan.links()[id.index()].from;
            Some(id)
        })
    }

    /// The path found to `to`.
    pub fn path(&self, wan: &Wan, to: SiteId) -> Option<Path> {
        let mut links: Vec<LinkId> = self.backwards(wan, to).collect();
        links.reverse();
        (!links.is_empty()).then(|| Path(links.into()))
    }
}

/// The path of fewest hops over links that have more than [`crate::RATE_FLOOR_GBPS`] of `capacity`.
pub fn fewest_hops(wan: &Wan, capacity: &[f64], src: SiteId, dst: SiteId) -> Option<Path> {
    let mut tree = Tree::new(wan);
    tree.shortest(wan, src, |link| if capacity[link.index()] > crate::RATE_FLOOR_GBPS { 1.0 } else { f64::INFINITY });
    tree.path(wan, dst)
}

/// The `k` shortest simple paths by the sum of `length` (Yen), shortest first; fewer if there are fewer.
pub fn k_shortest(wan: &Wan, src: SiteId, dst: SiteId, k: usize, length: &[f64]) -> Vec<Path> {
    let mut tree = Tree::new(wan);
    tree.shortest(wan, src, |link| length[link.index()]);
    let Some(first) = tree.path(wan, dst) else { return Vec::new() };
    let mut found = vec![first];
    // Ordered by length, then hops, then links: ties are decided the same way every time.
    let mut candidates: Vec<(f64, Path)> = Vec::new();
    while found.len() < k {
        let last = found[found.len() - 1].clone();
        let sites = last.sites(wan);
        for spur in 0..last.hops() {
            let root = &last.links()[..spur];
            let banned: BTreeSet<LinkId> = found
                .iter()
                .filter(|path| path.links().starts_with(root))
                .filter_map(|path| path.links().get(spur).copied())
                .collect();
            let visited = &sites[..spur];
            tree.shortest(wan, sites[spur], |link| {
                let usable = !banned.contains(&link) && !visited.contains(&wan.links()[link.index()].to);
                if usable { length[link.index()] } else { f64::INFINITY }
            });
            let Some(rest) = tree.path(wan, dst) else { continue };
            let path = Path([root, rest.links()].concat().into());
            if !found.contains(&path) && !candidates.iter().any(|(_, other)| *other == path) {
                candidates.push((path.length(length), path));
            }
        }
        let best = candidates
            .iter()
            .enumerate()
            .min_by(|(_, a), (_, b)| a.0.total_cmp(&b.0).then(a.1.hops().cmp(&b.1.hops())).then(a.1.cmp(&b.1)))
            .map(|(index, _)| index);
        match best {
            Some(index) => found.push(candidates.swap_remove(index).1),
            None => break,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// a-b-d and a-c-d, and the long way a-e-f-d; b-c joins the middle.
    fn diamond() -> (Wan, Vec<SiteId>) {
        let mut wan = Wan::new();
        let s: Vec<SiteId> = ["a", "b", "c", "d", "e", "f"].iter().map(|name| wan.add_site(name).unwrap()).collect();
        for (a, b, capacity) in
            [(0, 1, 5.0), (1, 3, 5.0), (0, 2, 3.0), (2, 3, 9.0), (1, 2, 4.0), (0, 4, 8.0), (4, 5, 8.0), (5, 3, 8.0)]
        {
            wan.add_edge(s[a], s[b], capacity).unwrap();
        }
        (wan, s)
    }

    fn names(wan: &Wan, path: &Path) -> String {
        path.sites(wan).iter().map(|site| wan.name(*site)).collect()
    }

    #[test]
    fn yen_finds_all_simple_paths_in_order() {
        let (wan, s) = diamond();
        let ones = vec![1.0; wan.links().len()];
        let paths: Vec<String> = k_shortest(&wan, s[0], s[3], 10, &ones).iter().map(|path| names(&wan, path)).collect();
        // Two of two hops, three of three, and no other simple path from a to d exists: from e only f leads on.
        assert_eq!(paths, ["abd", "acd", "abcd", "acbd", "aefd"]);
        assert_eq!(k_shortest(&wan, s[0], s[3], 2, &ones).len(), 2);
    }

    #[test]
    fn widest_path_is_not_the_shortest() {
        let (wan, s) = diamond();
        let capacity = wan.capacities();
        assert_eq!(names(&wan, &fewest_hops(&wan, &capacity, s[0], s[3]).unwrap()), "abd");
        let mut tree = Tree::new(&wan);
        tree.widest(&wan, s[0], |link| capacity[link.index()]);
        let widest = tree.path(&wan, s[3]).unwrap();
        assert_eq!((names(&wan, &widest).as_str(), widest.bottleneck(&capacity)), ("aefd", 8.0));
    }

    #[test]
    fn no_path_over_failed_links() {
        let (mut wan, s) = diamond();
        for (from, to) in [(0, 1), (0, 2), (0, 4)] {
            let link = wan.link_between(s[from], s[to]).unwrap();
            wan.set_capacity(link, 0.0).unwrap();
        }
        assert_eq!(fewest_hops(&wan, &wan.capacities(), s[0], s[3]), None);
    }

    #[test]
    fn only_simple_paths_are_accepted() {
        let (wan, s) = diamond();
        let link = |a: usize, b: usize| wan.link_between(s[a], s[b]).unwrap();
        assert!(Path::from_links(&wan, &[link(0, 1), link(1, 3)]).is_some());
        assert!(Path::from_links(&wan, &[]).is_none());
        assert!(Path::from_links(&wan, &[link(0, 1), link(2, 3)]).is_none(), "not connected");
        assert!(Path::from_links(&wan, &[link(0, 1), link(1, 2), link(2, 0)]).is_none(), "a site twice");
        assert!(Path::from_links(&wan, &[LinkId(99)]).is_none(), "unknown link");
    }
}
