//! The UDP source ports of a connection: entropy values, 0xC000 to 0xFFFF (annex A17.4.5.2: dynamic ports).
//!
//! Ports are a keyed permutation of the 2^14 values, so that a table is needed neither to find a path's port nor, for the echo
//! in an acknowledgement, a port's path.

use crate::PathId;
use roce::rng::Rng;

const BITS: u32 = 14;
const MASK: u16 = (1 << BITS) - 1;
const FIRST: u16 = 0xC000;

/// The ports of the paths of one connection; all differ.
#[derive(Clone, Debug)]
pub struct Ports {
    paths: u16,
    first: u16,
    factors: [u16; 2],
    inverses: [u16; 2],
}

impl Ports {
    /// `paths` ports, drawn with `seed`. The first path's is `first`, the port of the connection before it had several.
    pub fn new(paths: u16, first: u16, seed: u64) -> Ports {
        let mut rng = Rng::new(seed);
        // Odd numbers are invertible modulo a power of two.
        let factors = [(); 2].map(|()| (rng.next_u64() as u16) | 1);
        Ports { paths, first: first & MASK, factors, inverses: factors.map(inverse) }
    }

    /// How many there are.
    pub fn len(&self) -> u16 {
        self.paths
    }

    /// Never true of a connection's ports.
    pub fn is_empty(&self) -> bool {
        self.paths == 0
    }

    /// The port of a path.
    pub fn port(&self, path: PathId) -> u16 {
        let [outer, inner] = self.factors;
        let mixed = fold(u16::from(path.0).wrapping_mul(inner) & MASK).wrapping_mul(outer);
        FIRST | (mixed.wrapping_add(self.first) & MASK)
    }

    /// The path that has this port.
    pub fn path(&self, port: u16) -> Option<PathId> {
        if port < FIRST {
            return None;
        }
        let [outer, inner] = self.inverses;
        let mixed = (port & MASK).wrapping_sub(self.first).wrapping_mul(outer) & MASK;
        let index = fold(mixed).wrapping_mul(inner) & MASK;
        u8::try_from(index).ok().filter(|_| index < self.paths).map(PathId)
    }
}

/// Mixes the upper half into the lower. It is its own inverse.
fn fold(value: u16) -> u16 {
    value ^ value >> (BITS / 2)
}

/// The inverse of an odd number modulo 2^16, by Newton's iteration: each step doubles the good bits.
fn inverse(odd: u16) -> u16 {
    (0..4).fold(odd, |x, _| x.wrapping_mul(2_u16.wrapping_sub(odd.wrapping_mul(x))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn ports_differ_and_lead_back() {
        for seed in 0..200 {
            let ports = Ports::new(256, 0xC123, seed);
            assert_eq!(ports.port(PathId(0)), 0xC123);
            let all: BTreeSet<u16> = (0..=255).map(|path| ports.port(PathId(path))).collect();
            assert_eq!(all.len(), 256);
            for port in 0..=u16::MAX {
                let path = ports.path(port);
                assert_eq!(path.is_some(), all.contains(&port), "{port:#x}");
                assert!(path.is_none_or(|path| ports.port(path) == port));
            }
        }
    }

    #[test]
    fn seeds_give_different_ports() {
        let ports = |seed| (1..64).map(|path| Ports::new(64, 0xC000, seed).port(PathId(path))).collect::<BTreeSet<_>>();
        assert!(ports(1).intersection(&ports(2)).count() < 8);
    }

    #[test]
    fn paths_beyond_the_count_have_no_port() {
        let (few, many) = (Ports::new(4, 0xFFFF, 7), Ports::new(256, 0xFFFF, 7));
        assert_eq!(few.path(many.port(PathId(3))), Some(PathId(3)));
        assert_eq!(few.path(many.port(PathId(4))), None);
    }
}
