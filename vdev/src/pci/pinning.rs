//! Pinning that takes long, beside the thread that serves the VMM's messages.
//!
//! A VMM gives a message a few seconds, and a large registration may take longer than that. It gets a thread of its own, which
//! ends with it, one at a time per device: idle devices have none. The thread pins in pieces, so that an unmap, which waits for the
//! piece that is being pinned, is held up for milliseconds, and so is a device that goes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use nix::sys::eventfd::{EfdFlags, EventFd};
use pvdma::{GpaRange, MapCache, Protection};

use super::memory::{BadMemory, Pins, Run, pin};

/// What pinning ends with.
pub type Outcome = Result<(Pins, Vec<Run>), BadMemory>;

/// At most one run of pinning in progress.
#[derive(Debug)]
pub struct Pinning {
    /// Readable once the run has ended.
    done: Arc<EventFd>,
    run: Option<InProgress>,
}

#[derive(Debug)]
struct InProgress {
    cancelled: Arc<AtomicBool>,
    outcome: Receiver<Outcome>,
}

impl Pinning {
    /// None in progress.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Pinning> {
        let done = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        Ok(Pinning { done, run: None })
    }

    /// Whether there is a run in progress.
    pub fn is_busy(&self) -> bool {
        self.run.is_some()
    }

    /// Starts a run; there is none in progress.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(&mut self, cache: &MapCache, ranges: Vec<GpaRange>, need: Protection) -> io::Result<()> {
        assert!(!self.is_busy(), "one run at a time");
        let cancelled = Arc::new(AtomicBool::new(false));
        let (send, outcome) = channel();
        let (cache, done, stop) = (cache.clone(), self.done.clone(), cancelled.clone());
        std::thread::Builder::new().name("pin".into()).spawn(move || {
            let pinned = pin(&cache, &ranges, need, || stop.load(Ordering::Relaxed));
            // One that was cancelled is awaited by nobody: what it holds is let go here.
            let _ = send.send(pinned);
            // The counter cannot overflow.
            let _ = done.write(1);
        })?;
        self.run = Some(InProgress { cancelled, outcome });
        Ok(())
    }

    /// The outcome of a run that has ended, once.
    pub fn take(&mut self) -> Option<Outcome> {
        // Also of a run that was cancelled meanwhile: then there is nothing to take.
        let _ = self.done.read();
        let outcome = match self.run.as_ref()?.outcome.try_recv() {
            Ok(outcome) => outcome,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err(BadMemory("the thread that pins has failed".into())),
        };
        self.run = None;
        Some(outcome)
    }

    /// Gives a run up. Its thread ends soon, and lets go of what it has pinned.
    pub fn cancel(&mut self) {
        if let Some(run) = self.run.take() {
            run.cancelled.store(true, Ordering::Relaxed);
        }
    }
}

impl AsFd for Pinning {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }
}

impl Drop for Pinning {
    fn drop(&mut self) {
        self.cancel();
    }
}
