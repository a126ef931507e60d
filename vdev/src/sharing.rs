//! How a daemon's tenants share it: the arbiter's settings, from what the daemon is started with.
//!
//! Owns: turns that fit the link, and the two policies that ours is compared with. They are complete, and have the daemon to themselves as
//! ours has, but are no protection: only ours keeps promises made with `vrdma dev set`.

use std::time::Duration;

use isolation::baseline::justitia::Parameters;
use isolation::{Config, Policy};

/// Who goes next, when more than one tenant has something to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// By weights and rates, small sparse messages ahead.
    #[default]
    Vrdma,
    /// Message by message, each to its end, as a card without isolation. For comparison.
    Off,
    /// As Justitia (NSDI 2022) in front of such a card. For comparison. Whoever is after latency has to be declared so
    /// (`vrdma dev set NAME --class latency`). Its reference flow is made of the declared tenants' own messages, one at a time, so that it
    /// needs no queue pair at each peer.
    Justitia {
        /// What the 99th percentile of a message's latency should be, from the post to the completion.
        target: Duration,
    },
}

/// How long a turn may last on a link of known rate while somebody else waits, and while there is traffic after latency.
const TURNS: [Duration; 2] = [Duration::from_micros(100), Duration::from_micros(20)];
/// Percent of the link's rate that is used, so that a queue below the arbiter, once there is one, drains.
const LINK_PERCENT: u64 = 99;
/// Rate of the card that [`Parameters::default`] are for; its step is in proportion.
const PAPER_BYTES_PER_SEC: u64 = 6_000_000_000;

/// The arbiter's settings, with a link of so many bytes per second if it is slower than the daemon.
pub(crate) fn sharing(isolation: Isolation, link_bytes_per_sec: Option<u64>) -> Config {
    let mut config = Config::default();
    if let Some(rate) = link_bytes_per_sec {
        let turn = |time: Duration, most: u32| {
            let bytes = u128::from(rate) * time.as_nanos() / Duration::from_secs(1).as_nanos();
            u32::try_from(bytes).unwrap_or(u32::MAX).clamp(rnic::limits::MAX_PACKET, most)
        };
        config.quantum_bytes = turn(TURNS[0], config.quantum_bytes);
        config.short_quantum_bytes = turn(TURNS[1], config.short_quantum_bytes);
        // What goes ahead is a part of what there is: of the link.
        config.bytes_per_sec = config.bytes_per_sec.min(rate.max(1));
        config.link_bytes_per_sec = Some((rate / 100 * LINK_PERCENT).max(1));
    }
    if isolation == Isolation::Vrdma {
        config.receive_bytes_per_sec = link_bytes_per_sec;
    }
    config.policy = match isolation {
        Isolation::Vrdma => Policy::Shares,
        Isolation::Off => Policy::Greedy,
        Isolation::Justitia { target } => {
            let max_bytes_per_sec = config.link_bytes_per_sec.unwrap_or(config.bytes_per_sec);
            let paper = Parameters::default();
            let token_ops = u64::from(paper.large_token) * config.packets_per_sec / max_bytes_per_sec;
            let step = u128::from(paper.step) * u128::from(max_bytes_per_sec) / u128::from(PAPER_BYTES_PER_SEC);
            Policy::Justitia(Parameters {
                max_bytes_per_sec,
                token_ops: u32::try_from(token_ops).unwrap_or(u32::MAX).max(1),
                target,
                step: u64::try_from(step).unwrap_or(u64::MAX).max(1),
                ..paper
            })
        }
    };
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_fit_the_link() {
        assert_eq!(sharing(Isolation::Vrdma, None), Config::default());
        let slow = sharing(Isolation::Vrdma, Some(250_000_000));
        assert_eq!((slow.quantum_bytes, slow.short_quantum_bytes), (25_000, 5_000));
        assert_eq!((slow.link_bytes_per_sec, slow.bytes_per_sec), (Some(247_500_000), 250_000_000));
        assert_eq!(slow.receive_bytes_per_sec, Some(250_000_000));
        assert_eq!(sharing(Isolation::Off, Some(250_000_000)).receive_bytes_per_sec, None);
        let slowest = sharing(Isolation::Vrdma, Some(1));
        let packet = rnic::limits::MAX_PACKET;
        assert_eq!((slowest.quantum_bytes, slowest.short_quantum_bytes), (packet, packet), "one packet always");
        assert_eq!(slowest.link_bytes_per_sec, Some(1));
        let fast = sharing(Isolation::Vrdma, Some(u64::MAX));
        assert_eq!(fast.quantum_bytes, Config::default().quantum_bytes);
    }

    #[test]
    fn justitia_knows_the_card_by_the_link() {
        let target = Duration::from_micros(50);
        let Policy::Justitia(parameters) = sharing(Isolation::Justitia { target }, Some(250_000_000)).policy else {
            panic!("another policy")
        };
        assert_eq!((parameters.max_bytes_per_sec, parameters.target), (247_500_000, target));
        // 1 MiB takes 4.2 ms, in which the card makes 8473 packets.
        assert_eq!((parameters.token_ops, parameters.step), (8473, 41_250));
        for link in [None, Some(1), Some(u64::MAX)] {
            let Policy::Justitia(parameters) = sharing(Isolation::Justitia { target }, link).policy else { panic!("another") };
            assert!(parameters.token_ops > 0 && parameters.step > 0 && parameters.max_bytes_per_sec > 0);
        }
    }
}
