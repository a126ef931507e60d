//! Which chunks of a FlowGroup are in place: a set of small numbers.

use super::CHUNK_BYTES;

/// Longest FlowGroup that agents move, bytes (1 PiB).
pub const MAX_GROUP_BYTES: u64 = 1 << 50;

/// Chunks of one FlowGroup, of which each is in place or not. All have [`CHUNK_BYTES`] but the last, which may have fewer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunks {
    bytes: u64,
    words: Vec<u64>,
    held_bytes: u64,
}

impl Chunks {
    /// None of them is in place. `None` if the group is longer than [`MAX_GROUP_BYTES`].
    pub fn none(bytes: u64) -> Option<Self> {
        (bytes <= MAX_GROUP_BYTES).then_some(Self { bytes, words: Vec::new(), held_bytes: 0 })
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.bytes.div_ceil(CHUNK_BYTES)
    }

    /// Length of one, bytes; 0 if there is no such chunk.
    pub fn length(&self, chunk: u64) -> u64 {
        chunk.checked_mul(CHUNK_BYTES).map_or(0, |start| self.bytes.saturating_sub(start).min(CHUNK_BYTES))
    }

    /// Whether one is in place.
    pub fn has(&self, chunk: u64) -> bool {
        self.words.get((chunk / 64) as usize).is_some_and(|word| word >> (chunk % 64) & 1 == 1)
    }

    /// One is in place. Whether that is news; a chunk that does not exist never is.
    pub fn add(&mut self, chunk: u64) -> bool {
        if chunk >= self.count() || self.has(chunk) {
            return false;
        }
        let word = (chunk / 64) as usize;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (chunk % 64);
        self.held_bytes += self.length(chunk);
        true
    }

    /// Bytes that are in place.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether all are in place.
    pub fn is_whole(&self) -> bool {
        self.held_bytes == self.bytes
    }

    /// The chunks that are in place as ranges of first and number.
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for chunk in (0..self.words.len() as u64 * 64).filter(|chunk| self.has(*chunk)) {
            match ranges.last_mut() {
                Some((first, count)) if *first + *count == chunk => *count += 1,
                _ => ranges.push((chunk, 1)),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_hold() {
        let mut chunks = Chunks::none(CHUNK_BYTES * 66 + 5).unwrap();
        assert_eq!((chunks.count(), chunks.length(66), chunks.length(67), chunks.length(u64::MAX)), (67, 5, 0, 0));
        assert!(chunks.add(66) && !chunks.add(66) && !chunks.add(67) && chunks.add(0) && chunks.add(65));
        assert_eq!((chunks.held_bytes(), chunks.ranges()), (2 * CHUNK_BYTES + 5, vec![(0, 1), (65, 2)]));
        (0..67).for_each(|chunk| _ = chunks.add(chunk));
        assert!(chunks.is_whole());
        assert_eq!(chunks.ranges(), [(0, 67)]);
        let empty = Chunks::none(0).unwrap();
        assert!(empty.is_whole() && empty.count() == 0);
        assert_eq!(Chunks::none(MAX_GROUP_BYTES + 1), None);
    }
}
