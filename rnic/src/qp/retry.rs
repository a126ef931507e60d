//! How long to wait, and how often: acknowledgement timeouts and RNR waits (IBA 9.7.5.2.8, 9.7.6.1.3, table 45).

use core::time::Duration;

/// RNR wait times in units of 10 µs, by code.
const RNR_WAIT_10US: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
    8192, 12288, 16384, 24576, 32768, 49152,
];

/// The time that an RNR NAK with this 5-bit code asks to wait at least.
pub(crate) fn rnr_wait(code: u8) -> Duration {
    Duration::from_micros(u64::from(RNR_WAIT_10US[usize::from(code & 31)]) * 10)
}

/// The time to the next acknowledgement timeout: T = 4.096 µs x 2^code at first, then twice and four times that, the most
/// that the architecture allows. `None` for code 0: never.
pub(crate) fn ack_timeout(code: u8, retries: u8) -> Option<Duration> {
    if code == 0 {
        return None;
    }
    Some(Duration::from_nanos(4096_u64 << (code & 31) << retries.min(2)))
}

/// Whether another try is allowed after `done` RNR NAKs; the limit 7 stands for ever.
pub(crate) fn rnr_retry_allowed(limit: u8, done: u8) -> bool {
    limit == 7 || done < limit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rnr_codes_are_those_of_the_table() {
        assert_eq!(rnr_wait(0), Duration::from_micros(655_360));
        assert_eq!(rnr_wait(1), Duration::from_micros(10));
        assert_eq!(rnr_wait(12), Duration::from_micros(640));
        assert_eq!(rnr_wait(31), Duration::from_micros(491_520));
        for code in 1..31 {
            assert!(rnr_wait(code) < rnr_wait(code + 1));
        }
    }

    #[test]
    fn timeouts_lie_between_t_and_4t() {
        assert_eq!(ack_timeout(0, 0), None);
        for retries in 0..8 {
            let timeout = ack_timeout(14, retries).unwrap();
            assert!(timeout >= Duration::from_nanos(4096 << 14) && timeout <= Duration::from_nanos((4 * 4096) << 14));
        }
        assert!(ack_timeout(31, 7).is_some());
    }
}
