//! A pinner that pins nothing: it keeps a log, checks the order of calls, and fails when told to.

use super::{Block, Pinner, PinnerError};
use crate::address::{Gpa, GpaRange};
use nix::errno::Errno;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A block was to be pinned.
    Pin(GpaRange),
    /// A block was to be unpinned.
    Unpin(GpaRange),
}

#[derive(Debug, Default)]
struct Log {
    calls: Vec<Call>,
    pinned: BTreeMap<Gpa, GpaRange>,
    /// Those of them whose unpinning failed last: after that their region may be gone and another one in its place.
    stuck: BTreeSet<Gpa>,
    pin_failures: VecDeque<PinnerError>,
    unpin_failures: VecDeque<PinnerError>,
    most_blocks: Option<usize>,
}

type Hook = Box<dyn Fn(Call) + Send + Sync>;

/// The pinner of tests.
#[derive(Default)]
pub struct FakePinner {
    log: Mutex<Log>,
    hook: Option<Hook>,
}

impl fmt::Debug for FakePinner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakePinner").field("log", &self.log).finish_non_exhaustive()
    }
}

impl FakePinner {
    /// One that never fails.
    pub fn new() -> FakePinner {
        FakePinner::default()
    }

    /// One that runs `hook` in every call before the call takes effect; it may block.
    pub fn with_hook(hook: impl Fn(Call) + Send + Sync + 'static) -> FakePinner {
        FakePinner { hook: Some(Box::new(hook)), ..FakePinner::default() }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets no more than `blocks` be pinned at a time, as a limit of the system does.
    pub fn limit(&self, blocks: usize) {
        self.log().most_blocks = Some(blocks);
    }

    /// The next `pin` fails with `error`; several are used up in order.
    pub fn fail_pin(&self, error: PinnerError) {
        self.log().pin_failures.push_back(error);
    }

    /// The next `unpin` fails with `error`; several are used up in order.
    pub fn fail_unpin(&self, error: PinnerError) {
        self.log().unpin_failures.push_back(error);
    }

    /// The calls since the last time, those that failed among them.
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.log().calls)
    }

    /// What is pinned, in ascending order.
    pub fn pinned(&self) -> Vec<GpaRange> {
        self.log().pinned.values().copied().collect()
    }

    fn called(&self, call: Call) -> MutexGuard<'_, Log> {
        if let Some(hook) = &self.hook {
            hook(call);
        }
        let mut log = self.log();
        log.calls.push(call);
        log
    }
}

impl Pinner for FakePinner {
    fn pin(&self, block: &Block) -> Result<(), PinnerError> {
        let mut log = self.called(Call::Pin(block.range()));
        if let Some(error) = log.pin_failures.pop_front() {
            return Err(error);
        }
        if log.most_blocks.is_some_and(|most| log.pinned.len() >= most) {
            return Err(PinnerError {
                errno: Errno::ENOSPC,
                limit: true,
                hint: format!("{} blocks are pinned", log.pinned.len()),
            });
        }
        let before = log.pinned.insert(block.range().start(), block.range());
        assert!(before.is_none() || log.stuck.remove(&block.range().start()), "{block:?} is pinned already");
        Ok(())
    }

    fn unpin(&self, block: &Block) -> Result<(), PinnerError> {
        let mut log = self.called(Call::Unpin(block.range()));
        if let Some(error) = log.unpin_failures.pop_front() {
            log.stuck.insert(block.range().start());
            return Err(error);
        }
        log.stuck.remove(&block.range().start());
        let before = log.pinned.remove(&block.range().start());
        assert_eq!(before, Some(block.range()), "unpinned although it was not pinned");
        Ok(())
    }
}
