//! Simulated memory: one byte vector per memory space, any of which can be taken away.

use emtt::{MemId, Segment};
use rnic::{AtomicOp, Dma, DmaError, Piece};
use std::collections::BTreeMap;

/// Memory spaces by number; the address in a segment is the index into the vector.
#[derive(Default)]
pub struct SimMemory {
    pub spaces: BTreeMap<u32, Vec<u8>>,
    /// Calls of each kind: gather, scatter, copy, atomic.
    pub calls: [u64; 4],
}

impl SimMemory {
    pub fn add(&mut self, bytes: usize) -> MemId {
        let id = self.spaces.len() as u32 + 1;
        self.spaces.insert(id, vec![0; bytes]);
        MemId(id)
    }

    /// Makes a space unreachable, as when its process has ended.
    pub fn take_away(&mut self, id: MemId) {
        self.spaces.get_mut(&id.0).unwrap().clear();
    }

    pub fn space(&mut self, id: MemId) -> &mut Vec<u8> {
        self.spaces.get_mut(&id.0).unwrap()
    }

    fn slice(&mut self, segment: Segment) -> Result<&mut [u8], DmaError> {
        let id = segment.owner.space();
        let (start, len) = (segment.addr as usize, segment.len as usize);
        self.spaces.get_mut(&id.0).and_then(|space| space.get_mut(start..start + len)).ok_or(DmaError(segment))
    }
}

impl Dma for SimMemory {
    fn gather(&mut self, pieces: &[Piece], buf: &mut [u8]) -> Result<(), DmaError> {
        self.calls[0] += 1;
        for piece in pieces {
            let source = self.slice(piece.segment)?;
            buf[piece.at..piece.at + source.len()].copy_from_slice(source);
        }
        Ok(())
    }

    fn scatter(&mut self, pieces: &[Piece], buf: &[u8]) -> Result<(), DmaError> {
        self.calls[1] += 1;
        for piece in pieces {
            let target = self.slice(piece.segment)?;
            target.copy_from_slice(&buf[piece.at..piece.at + target.len()]);
        }
        Ok(())
    }

    fn copy(&mut self, from: &[Segment], to: &[Segment]) -> Result<(), DmaError> {
        self.calls[2] += 1;
        let mut bytes = Vec::new();
        for &segment in from {
            bytes.extend_from_slice(self.slice(segment)?);
        }
        assert_eq!(bytes.len() as u64, to.iter().map(|segment| segment.len).sum::<u64>(), "both sides are equally long");
        let mut rest = &bytes[..];
        for &segment in to {
            let target = self.slice(segment)?;
            let (head, tail) = rest.split_at(target.len());
            target.copy_from_slice(head);
            rest = tail;
        }
        Ok(())
    }

    fn atomic(&mut self, at: Segment, op: AtomicOp) -> Result<u64, DmaError> {
        self.calls[3] += 1;
        assert!(at.len == 8 && at.addr.is_multiple_of(8), "{at:?} is not an aligned word");
        let word: &mut [u8; 8] = self.slice(at)?.try_into().unwrap();
        let before = u64::from_ne_bytes(*word);
        let after = match op {
            AtomicOp::CompareSwap { compare, swap } if before == compare => swap,
            AtomicOp::CompareSwap { .. } => before,
            AtomicOp::FetchAdd { add } => before.wrapping_add(add),
        };
        *word = after.to_ne_bytes();
        Ok(before)
    }
}
