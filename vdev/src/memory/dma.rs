//! The core's way to memory, [`Dma`]: around every access the drivers hear of it whose devices' memory is touched, and a window that
//! turns out to have lost memory is remembered, for its registrations to be revoked.

use super::dmabuf::Moment;
use super::process::Direction;
use super::transfer::Memories;
use emtt::{MemId, Owner, Segment};
use rnic::{AtomicOp, Dma, DmaError, Piece};

impl Memories {
    /// Tells the drivers of devices whose memory is among `segments`. What is in host memory needs nobody to hear of it.
    fn tell(&self, moment: Moment, segments: impl Iterator<Item = Segment>, writes: bool) -> Result<(), DmaError> {
        let mut told = None;
        for segment in segments {
            if let Owner::Gpu { window, .. } = segment.owner
                && told.replace(window) != Some(window)
                && let Some(driver) = self.slab.driver(window)
            {
                driver.tell(moment, writes).map_err(|_| DmaError(segment))?;
            }
        }
        Ok(())
    }

    /// Does what moves bytes between `from` and `to`, of which one may be nowhere in memory, and remembers if a device's memory was
    /// found to be gone.
    fn between(
        &mut self,
        from: impl Iterator<Item = Segment> + Clone,
        to: impl Iterator<Item = Segment> + Clone,
        access: impl FnOnce(&mut Memories) -> Result<(), DmaError>,
    ) -> Result<(), DmaError> {
        let done = if self.slab.has_drivers() {
            let started =
                self.tell(Moment::Start, from.clone(), false).and_then(|()| self.tell(Moment::Start, to.clone(), true));
            let done = started.and_then(|()| access(self));
            let ended = self.tell(Moment::End, from, false).and(self.tell(Moment::End, to, true));
            done.and(ended)
        } else {
            access(self)
        };
        if let Err(DmaError(Segment { owner: Owner::Gpu { window, .. }, .. })) = done {
            self.lost.push(window);
        }
        done
    }

    /// A window of a device, memory of which was found not to be there any more since the last call, if there is one.
    pub fn take_lost(&mut self) -> Option<MemId> {
        self.lost.pop()
    }
}

impl Dma for Memories {
    fn gather(&mut self, pieces: &[Piece], buf: &mut [u8]) -> Result<(), DmaError> {
        let segments = pieces.iter().map(|piece| piece.segment);
        self.between(segments, core::iter::empty(), |memories| {
            // SAFETY: `buf` is ours to write.
            unsafe { memories.walk(Direction::Read, pieces, buf.as_mut_ptr(), buf.len()) }
        })
    }

    fn scatter(&mut self, pieces: &[Piece], buf: &[u8]) -> Result<(), DmaError> {
        let segments = pieces.iter().map(|piece| piece.segment);
        self.between(core::iter::empty(), segments, |memories| {
            // SAFETY: `buf` is readable, and a scatter only reads it.
            unsafe { memories.walk(Direction::Write, pieces, buf.as_ptr().cast_mut(), buf.len()) }
        })
    }

    fn copy(&mut self, from: &[Segment], to: &[Segment]) -> Result<(), DmaError> {
        self.between(from.iter().copied(), to.iter().copied(), |memories| memories.copy_segments(from, to))
    }

    fn atomic(&mut self, at: Segment, op: AtomicOp) -> Result<u64, DmaError> {
        let mut before = 0;
        self.between(core::iter::once(at), core::iter::once(at), |memories| {
            before = memories.atomic_at(at, op)?;
            Ok(())
        })?;
        Ok(before)
    }
}
