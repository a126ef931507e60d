//! A peer that lies: whatever acknowledgements and refusals come, nothing panics, no packet that was never sent is acknowledged,
//! and the window stays within its bounds. And the memory that a connection takes is what is said of it.

use core::time::Duration;
use proptest::prelude::*;
use roce::wire::spray_ext::{MAX_WINDOW, Nack, Reason, Sack, SackMap, Stamp};
use roce::{Instant, Psn};
use spray::{
    Arrived, Law, LossLimits, PathId, PathSet, Policy, Receiver, RxWindow, Scoreboard, Sender, SenderConfig, WindowLimits,
};

const FIRST: Psn = Psn::new(0xFF_FFC0);

fn sender(policy: Policy, law: Law) -> Sender {
    Sender::new(&SenderConfig {
        policy,
        paths: 8,
        first_port: 0xC000,
        seed: 9,
        window: 256,
        first_psn: FIRST,
        law,
        limits: WindowLimits::for_software(4096, 256, Duration::from_micros(50)),
        loss: LossLimits::default(),
    })
}

prop_compose! {
    fn sack()(
        near in -300_i32..300, far: u32, is_near in prop::bool::weighted(0.9), time: u32, now in prop::bool::weighted(0.5),
        port in prop_oneof![0xC000_u16..0xC010, any::<u16>()], numbers: [u16; 4], marked: bool,
        offset in 0_u16..512, words in proptest::collection::vec(any::<u64>(), 0..4), rate in 0_u32..1 << 24,
    ) -> (Psn, bool, Sack) {
        let psn = if is_near { FIRST.plus(1000).plus(near as u32) } else { Psn::new(far) };
        let [window, received, received_marked, duplicates] = numbers;
        let map = SackMap::new(offset, &words);
        let stamp = Stamp { msn: 0, time };
        (psn, now, Sack { stamp, port, marked, answers_probe: false, window, received, received_marked, duplicates, rate, map })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn lies_do_no_harm(
        policy in prop::sample::select(Policy::ALL.to_vec()), nscc: bool,
        steps in proptest::collection::vec((sack(), 0_u32..80, 0_u64..400, 0_u8..3), 1..80),
    ) {
        let mut sender = sender(policy, if nscc { Law::Nscc } else { Law::Proportional });
        let limits = WindowLimits::for_software(4096, 256, Duration::from_micros(50));
        let (mut now, mut sent) = (Instant::from_nanos(1 << 40), 0_u32);
        for ((psn, is_now, mut sack), sends, later, kind) in steps {
            for _ in 0..sends {
                if sender.resend(now).is_none() && sender.may_send(4096) {
                    prop_assert_eq!(sender.send(now, 4096).psn, FIRST.plus(sent));
                    sent += 1;
                }
            }
            now = now + Duration::from_micros(later);
            // The near ones are near what is really under way.
            let psn = psn.minus(1000).plus(sender.board().oldest().distance_from(FIRST) as u32);
            if is_now {
                sack.stamp.time = (now.as_nanos() as u32).wrapping_sub(30_000);
            }
            let under_way = sender.board().next().distance_from(sender.board().oldest()) as u64;
            match kind {
                0 => {
                    let nack = Nack { stamp: sack.stamp, port: sack.port, reason: Reason::Trimmed, cumulative: psn };
                    sender.on_nack(now, psn, &nack);
                }
                _ => {
                    let bytes = sender.on_sack(now, psn, &sack);
                    prop_assert!(bytes <= under_way * 4096);
                }
            }
            if sender.poll_timeout().is_some_and(|at| at <= now) {
                sender.on_timeout(now);
                sender.poll_probe(now);
            }
            let board = sender.board();
            let window = sender.congestion().window();
            prop_assert!(window >= limits.floor && window <= limits.ceiling);
            prop_assert_eq!(board.next(), FIRST.plus(sent));
            prop_assert!((0..=256).contains(&board.next().distance_from(board.oldest())));
            prop_assert!(board.in_flight() <= 256 * 4096);
            prop_assert!(sender.counters().spurious <= sender.counters().resent);
        }
    }

    /// The receiver takes each PSN of its window once, and its acknowledgements tell no packet that did not come.
    #[test]
    fn any_psn_may_come(packets in prop_oneof![Just(64_u16), Just(MAX_WINDOW)], psns in proptest::collection::vec((any::<u32>(), 0_u32..300, any::<bool>()), 1..300)) {
        let mut receiver = Receiver::new(packets, FIRST, 4, Duration::from_micros(10));
        let arrived = Arrived { port: 0xC000, time: 1, marked: false, ack_req: true };
        for (far, near, is_near) in psns {
            let psn = if is_near { receiver.window().expected().plus(near) } else { Psn::new(far) };
            let _ = receiver.on_packet(Instant::ZERO, psn, 1, arrived);
            receiver.advance();
            if let Some((cumulative, sack)) = receiver.poll_sack(Instant::ZERO, 0) {
                prop_assert_eq!(cumulative, receiver.window().cumulative());
                for distance in sack.map.received() {
                    prop_assert!(distance > 1, "the expected PSN has not arrived");
                    prop_assert!(distance <= receiver.window().capacity());
                }
            }
        }
    }
}

/// Where PSNs turn from "ahead" to "behind", as seen from either end of the window: nothing is acknowledged, and it ends.
#[test]
fn an_acknowledgement_from_the_far_side_of_the_circle_is_no_news() {
    let mut sender = sender(Policy::Oblivious, Law::Proportional);
    let now = Instant::from_nanos(1_000_000);
    let mut sack = Sack {
        stamp: Stamp { msn: 0, time: 0 },
        port: 0,
        marked: false,
        answers_probe: false,
        window: 256,
        received: 0,
        received_marked: 0,
        duplicates: 0,
        rate: 0,
        map: SackMap::EMPTY,
    };
    for sent in 0..20 {
        for around in 0..60 {
            let cumulative = FIRST.plus((1 << 23) + around).minus(30);
            sack.map = if around % 2 == 0 { SackMap::EMPTY } else { SackMap::new(0, &[u64::MAX]) };
            assert_eq!(sender.on_sack(now, cumulative, &sack), 0, "{cumulative:?} with {sent} packets under way");
        }
        sender.send(now, 1000);
    }
    assert_eq!(sender.board().in_flight(), 20_000);
}

/// Twice the same answer: the second changes nothing.
#[test]
fn an_acknowledgement_told_twice_is_no_news() {
    let mut sender = sender(Policy::Oblivious, Law::Proportional);
    let now = Instant::from_nanos(1_000_000);
    for _ in 0..10 {
        sender.send(now, 1000);
    }
    let mut sack = Sack {
        stamp: Stamp { msn: 0, time: now.as_nanos() as u32 },
        port: 0xC000,
        marked: false,
        answers_probe: false,
        window: 256,
        received: 5,
        received_marked: 0,
        duplicates: 0,
        rate: 0,
        map: SackMap::new(0, &[0b10100]),
    };
    let later = now + Duration::from_micros(30);
    assert_eq!(sender.on_sack(later, FIRST.plus(2), &sack), 5000);
    assert_eq!(sender.on_sack(later, FIRST.plus(2), &sack), 0);
    sack.map = SackMap::EMPTY;
    assert_eq!(sender.on_sack(later, FIRST.plus(1), &sack), 0, "an older one");
    assert_eq!(sender.board().in_flight(), 5000);
}

/// What one connection takes, by the functions that say so.
#[test]
fn memory_is_what_is_said() {
    assert_eq!(RxWindow::heap_bytes(4096), 512, "a bit per packet");
    assert_eq!(RxWindow::heap_bytes(1), 8);
    assert_eq!(Scoreboard::heap_bytes(512, 128), 512 * 16 + 128 * 4 + 2 * 512 / 8);
    assert_eq!(PathSet::heap_bytes(Policy::Single, 1), 16);
    assert_eq!(PathSet::heap_bytes(Policy::Oblivious, 128), 128 * 16 + 128);
    let software = spray::memory_per_connection(Policy::Oblivious, 128, 512);
    assert_eq!(software, 11_072, "as the documentation of the crate says");
    let most = spray::memory_per_connection(Policy::Dwrr, 256, MAX_WINDOW);
    assert!(most < 80 << 10, "{most} bytes");
    assert!(size_of::<Sender>() < 768 && size_of::<Receiver>() < 224, "{} and {}", size_of::<Sender>(), size_of::<Receiver>());
    // Nothing else is on the heap: a path's number is a byte.
    assert_eq!(size_of::<PathId>(), 1);
}
