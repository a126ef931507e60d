//! How long small messages take: one of many of the latency class is measured, from its post to its completion, so that a device's owner sees
//! what isolation is worth to it at this moment. A reference flow of its own would need queue pairs at every peer.

use crate::work::DeviceId;
use alloc::collections::VecDeque;
use core::time::Duration;
use roce::Instant;

/// Of so many messages one is measured.
const EVERY: u32 = 16;
/// Measurements that wait to be polled; those beyond are dropped.
const WAITING: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Latencies {
    passed: u32,
    measured: VecDeque<(DeviceId, Duration)>,
}

impl Latencies {
    /// A message is posted now: when, if it is one to be measured.
    #[inline]
    pub fn posted(&mut self, now: Instant) -> Option<Instant> {
        self.passed += 1;
        (self.passed >= EVERY).then(|| {
            self.passed = 0;
            now
        })
    }

    /// One that was posted at `posted` is complete.
    pub fn completed(&mut self, device: DeviceId, posted: Instant, now: Instant) {
        if self.measured.len() < WAITING {
            self.measured.push_back((device, now.saturating_since(posted)));
        }
    }

    pub fn poll(&mut self) -> Option<(DeviceId, Duration)> {
        self.measured.pop_front()
    }
}
