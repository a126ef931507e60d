//! Handles of one client: small numbers that name what it made, and nothing else.
//!
//! A handle is an index and a generation, so that one that was freed names nothing until its generation comes round again, and
//! a guessed one has to get both right. Owns the bound on how many there may be.

use vdev_abi::control::Handle;

const INDEX_BITS: u32 = 20;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
/// Most objects that one table can hold.
pub const MAX_HANDLES: usize = 1 << INDEX_BITS;

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

/// A bounded table of objects of one kind.
#[derive(Debug)]
pub struct Handles<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    limit: usize,
}

impl<T> Handles<T> {
    /// An empty table for at most `limit` objects.
    pub fn new(limit: usize) -> Self {
        assert!(limit <= MAX_HANDLES, "a table holds at most {MAX_HANDLES} objects");
        Handles { entries: Vec::new(), free: Vec::new(), limit }
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether one more object fits.
    pub fn has_room(&self) -> bool {
        self.len() < self.limit
    }

    /// Index that the next [`Self::insert`] will use.
    pub fn next_index(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.entries.len() as u32)
    }

    /// Adds an object; `None` gives it back when the table is full.
    pub fn insert(&mut self, value: T) -> Result<Handle, T> {
        if !self.has_room() {
            return Err(value);
        }
        let index = self.next_index();
        if self.free.pop().is_none() {
            self.entries.push(Entry { generation: 0, value: None });
        }
        let entry = &mut self.entries[index as usize];
        entry.value = Some(value);
        Ok(entry.generation << INDEX_BITS | index)
    }

    /// The object with this handle.
    pub fn get(&self, handle: Handle) -> Option<&T> {
        let entry = self.entries.get((handle & INDEX_MASK) as usize)?;
        if entry.generation == handle >> INDEX_BITS { entry.value.as_ref() } else { None }
    }

    /// The object with this handle.
    pub fn get_mut(&mut self, handle: Handle) -> Option<&mut T> {
        let entry = self.entries.get_mut((handle & INDEX_MASK) as usize)?;
        if entry.generation == handle >> INDEX_BITS { entry.value.as_mut() } else { None }
    }

    /// The object at this index, whatever its generation.
    pub fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.value.as_mut()
    }

    /// The object at this index, whatever its generation.
    pub fn at(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)?.value.as_ref()
    }

    /// Takes the object with this handle out; the handle names nothing from now on.
    pub fn remove(&mut self, handle: Handle) -> Option<T> {
        let index = handle & INDEX_MASK;
        let entry = self.entries.get_mut(index as usize)?;
        if entry.generation != handle >> INDEX_BITS {
            return None;
        }
        let value = entry.value.take()?;
        entry.generation = (entry.generation + 1) & (u32::MAX >> INDEX_BITS);
        self.free.push(index);
        Some(value)
    }

    /// All objects with their indices.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| Some((index as u32, entry.value.as_ref()?)))
    }

    /// Index of an object from its handle, whether or not it is live.
    pub fn index_of(handle: Handle) -> u32 {
        handle & INDEX_MASK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_handle_names_nothing_though_its_index_lives() {
        let mut table = Handles::new(2);
        let first = table.insert('a').unwrap();
        assert_eq!(table.remove(first), Some('a'));
        let second = table.insert('b').unwrap();
        assert_eq!(Handles::<char>::index_of(first), Handles::<char>::index_of(second));
        assert_eq!((table.get(first), table.get(second)), (None, Some(&'b')));
        assert_eq!(table.remove(first), None);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn limit_holds_and_no_number_panics() {
        let mut table = Handles::new(1);
        let handle = table.insert(1).unwrap();
        assert_eq!(table.insert(2), Err(2));
        for wrong in [handle + 1, u32::MAX, 1 << INDEX_BITS] {
            assert_eq!(table.get(wrong), None);
            assert_eq!(table.get_mut(wrong), None);
            assert_eq!(table.remove(wrong), None);
        }
    }
}
