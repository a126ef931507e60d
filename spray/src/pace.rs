//! A rate that packets are spaced by, because the peer has asked for it.

use core::time::Duration;
use roce::Instant;

/// Who is late by so much may make up for it at once: timers of a software end are.
const CATCH_UP: Duration = Duration::from_micros(100);
/// The longest pause between two packets, however little is asked for: a peer may slow itself down, and not stop a connection for good.
const LONGEST: Duration = Duration::from_millis(10);

/// When the next packet may leave.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// In bytes per second, with all headers of a frame; 0: as fast as it can.
    rate: u64,
    free_at: Instant,
}

impl Pace {
    /// From now on this rate holds; 0: none.
    pub fn set(&mut self, bytes_per_sec: u64) {
        self.rate = bytes_per_sec;
    }

    /// When the next packet may leave, if not now.
    pub fn pause(&self, now: Instant) -> Option<Instant> {
        (self.rate != 0 && now < self.free_at).then_some(self.free_at)
    }

    /// So many bytes leave.
    pub fn take(&mut self, now: Instant, bytes: u64) {
        if self.rate == 0 {
            return;
        }
        let took = Duration::from_nanos((u128::from(bytes) * 1_000_000_000 / u128::from(self.rate)) as u64).min(LONGEST);
        let lost = now.saturating_since(self.free_at).saturating_sub(CATCH_UP);
        self.free_at = self.free_at + lost + took;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends packets of 1000 bytes whenever it may, and looks every `look`; returns how many in a second.
    fn sent_in_a_second(rate: u64, look: Duration) -> u32 {
        let (mut pace, mut now, mut sent) = (Pace::default(), Instant::from_nanos(5_000_000_000), 0);
        pace.set(rate);
        let end = now + Duration::from_secs(1);
        while now < end {
            match pace.pause(now) {
                Some(at) => now = at.max(now + look),
                None => {
                    pace.take(now, 1000);
                    sent += 1;
                }
            }
        }
        sent
    }

    #[test]
    fn packets_come_at_the_rate_though_timers_are_late() {
        for look in [Duration::ZERO, Duration::from_micros(7), Duration::from_micros(90)] {
            let sent = sent_in_a_second(50_000_000, look);
            assert!((49_900..=50_010).contains(&sent), "{sent} with looks every {look:?}");
        }
    }

    #[test]
    fn who_slept_makes_up_for_little_and_who_is_stopped_still_goes_on() {
        let sent = sent_in_a_second(50_000_000, Duration::from_millis(1));
        assert!((5_000..=6_000).contains(&sent), "{sent}: after each sleep one packet, and those of the time to make up for");
        let sent = sent_in_a_second(1, Duration::ZERO);
        assert!((100..=101).contains(&sent), "{sent}: one packet every 10 ms");
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let mut pace = Pace::default();
        pace.take(Instant::ZERO, u64::MAX);
        assert_eq!(pace.pause(Instant::ZERO), None);
        pace.set(1);
        pace.take(Instant::ZERO, u64::MAX);
        assert_eq!(pace.pause(Instant::ZERO), Some(Instant::ZERO + LONGEST));
        pace.set(0);
        assert_eq!(pace.pause(Instant::ZERO), None, "it is no longer asked for");
    }
}
