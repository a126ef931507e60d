//! Object tables: from an identifier to an object in one indexed load, without hashing.
//!
//! An identifier is a slot index in the low bits and the slot's generation above it. The generation starts at a random value
//! and changes at every reuse, and a freed slot rests in a queue before it is used again, so a stale identifier names nothing
//! for a long time instead of a stranger's object.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use roce::rng::Rng;

/// Freed slots that rest before the oldest of them is used again.
const RESTING_SLOTS: usize = 256;

#[derive(Debug)]
struct Slot<T> {
    id: u32,
    object: Option<T>,
}

/// A table of at most `2^index_bits - 2` objects with identifiers of `id_bits` bits.
///
/// Index 0 and the highest index are never used and no generation is 0, so no identifier is 0, 1 or all ones.
#[derive(Debug)]
pub(crate) struct IdTable<T> {
    slots: Vec<Slot<T>>,
    resting: VecDeque<u32>,
    index_bits: u32,
    id_bits: u32,
    limit: u32,
    len: u32,
    rng: Rng,
}

impl<T> IdTable<T> {
    /// A table of up to `limit` objects (less two reserved slots).
    pub fn new(limit: u32, id_bits: u32, seed: u64) -> Self {
        let index_bits = limit.next_power_of_two().trailing_zeros();
        assert!(index_bits < id_bits && id_bits <= 32);
        let slots = alloc::vec![Slot { id: 0, object: None }];
        IdTable { slots, resting: VecDeque::new(), index_bits, id_bits, limit, len: 0, rng: Rng::new(seed) }
    }

    fn index(&self, id: u32) -> usize {
        (id & ((1 << self.index_bits) - 1)) as usize
    }

    fn generations(&self) -> u32 {
        1 << (self.id_bits - self.index_bits)
    }

    /// Puts the object that `make` builds from its new identifier into the table; `None` when it is full.
    pub fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> Option<u32> {
        let fresh = (self.slots.len() as u32) < self.limit - 1;
        let index = if self.resting.len() > RESTING_SLOTS || !fresh {
            self.resting.pop_front()?
        } else {
            let index = self.slots.len() as u32;
            let generation = (self.rng.next_u64() >> 32) as u32 % (self.generations() - 1) + 1;
            self.slots.push(Slot { id: generation << self.index_bits | index, object: None });
            index
        };
        let slot = &mut self.slots[index as usize];
        slot.object = Some(make(slot.id));
        self.len += 1;
        Some(slot.id)
    }

    pub fn remove(&mut self, id: u32) -> Option<T> {
        let index = self.index(id);
        let generations = self.generations();
        let slot = self.slots.get_mut(index).filter(|slot| slot.id == id)?;
        let object = slot.object.take()?;
        let generation = (id >> self.index_bits) % (generations - 1) + 1;
        slot.id = generation << self.index_bits | index as u32;
        self.resting.push_back(index as u32);
        self.len -= 1;
        Some(object)
    }

    #[inline]
    pub fn get(&self, id: u32) -> Option<&T> {
        let slot = self.slots.get(self.index(id))?;
        if slot.id == id { slot.object.as_ref() } else { None }
    }

    #[inline]
    pub fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let index = self.index(id);
        let slot = self.slots.get_mut(index)?;
        if slot.id == id { slot.object.as_mut() } else { None }
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().filter_map(|slot| slot.object.as_ref().map(|object| (slot.id, object)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> IdTable<u32> {
        IdTable::new(1 << 16, 24, 7)
    }

    #[test]
    fn freed_identifiers_name_nothing_and_do_not_come_back_soon() {
        let mut table = table();
        let first = table.insert_with(|id| id).unwrap();
        assert_eq!(table.get(first), Some(&first));
        assert_eq!(table.remove(first), Some(first));
        for _ in 0..5000 {
            let id = table.insert_with(|id| id).unwrap();
            assert_ne!(id, first);
            assert_eq!(table.get(first), None);
            table.remove(id);
            assert_eq!(table.remove(id), None);
        }
    }

    #[test]
    fn identifiers_avoid_reserved_values_and_are_not_in_a_row() {
        let mut table = table();
        let ids: Vec<u32> = core::iter::from_fn(|| table.insert_with(|id| id)).collect();
        assert_eq!(ids.len(), (1 << 16) - 2);
        assert!(ids.iter().all(|&id| id > 1 && id < 0xFF_FFFF));
        let in_a_row = ids.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!(in_a_row < ids.len() / 100, "{in_a_row} identifiers follow their predecessor");
    }

    #[test]
    fn a_full_table_takes_new_objects_after_one_leaves() {
        let mut table: IdTable<u32> = IdTable::new(4, 24, 7);
        let a = table.insert_with(|id| id).unwrap();
        let b = table.insert_with(|id| id).unwrap();
        assert_eq!(table.insert_with(|id| id), None);
        table.remove(a);
        let c = table.insert_with(|id| id).unwrap();
        assert_ne!(c, a);
        assert_eq!(table.iter().map(|(id, _)| id).collect::<Vec<_>>(), [c, b]);
    }
}
