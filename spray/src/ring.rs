//! A bounded queue of paths that forgets the oldest when it is full.

use crate::PathId;
use alloc::boxed::Box;
use alloc::vec;

/// Paths, oldest first.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    entries: Box<[PathId]>,
    first: usize,
    len: usize,
}

impl Ring {
    pub fn new(capacity: usize) -> Ring {
        Ring { entries: vec![PathId(0); capacity].into_boxed_slice(), first: 0, len: 0 }
    }

    pub const fn heap_bytes(capacity: usize) -> usize {
        capacity * size_of::<PathId>()
    }

    pub fn push(&mut self, path: PathId) {
        let capacity = self.entries.len();
        if self.len == capacity {
            self.pop();
        }
        self.entries[(self.first + self.len) % capacity] = path;
        self.len += 1;
    }

    pub fn pop(&mut self) -> Option<PathId> {
        if self.len == 0 {
            return None;
        }
        let path = self.entries[self.first];
        self.first = (self.first + 1) % self.entries.len();
        self.len -= 1;
        Some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_in_first_out_and_the_oldest_goes_when_full() {
        let mut ring = Ring::new(3);
        assert_eq!(ring.pop(), None);
        for path in 0..5 {
            ring.push(PathId(path));
        }
        assert_eq!([ring.pop(), ring.pop(), ring.pop(), ring.pop()], [Some(PathId(2)), Some(PathId(3)), Some(PathId(4)), None]);
    }
}
