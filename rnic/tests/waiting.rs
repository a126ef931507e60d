//! Receivers that are not ready, and peers that are gone (RN-01, RN-02, RN-03, RN-06, RN-08), on both paths.

mod harness;

use harness::*;
use rnic::*;
use roce::wire::{Kind, Syndrome};
use std::time::Duration;

/// The waiting times of table 45 in microseconds, by code.
const RNR_US: [u64; 32] = [
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560, 3840, 5120, 7680, 10_240, 15_360,
    20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840, 245_760, 327_680, 491_520,
];

/// RN-01: a SEND into an empty receive queue is delivered once after a receive comes; on the wire the NAK carries the
/// responder's timer code and the packet's PSN.
#[test]
fn rn_01_receive_comes_late() {
    for route in BOTH {
        for op in ["send", "long send", "write with immediate", "long write with immediate"] {
            let (mut world, a, b) = World::pair(Setup { min_rnr_timer: 14, ..Setup::new(route) });
            world.link.record = Some(Vec::new());
            let len = if op.starts_with("long") { 5000 } else { 50 };
            let request = if op.ends_with("send") { send() } else { write_imm(&b, 0x1000, [3; 4]) };
            world.send(&a, 1, request, &[a.at(0, len)]);
            world.send(&a, 2, write(&b, 0x9000), &[a.at(0, 10)]);
            world.run_for(Duration::from_millis(200));
            assert!(world.sent(&a).is_empty() && world.received(&b).is_empty(), "{route:?} {op}");
            if route == Route::Wire {
                let record = world.link.record.as_ref().unwrap();
                let nak = record.iter().map(|packet| packet.headers()).find(|headers| headers.bth.opcode.kind() == Kind::Ack);
                let nak = nak.unwrap();
                assert_eq!(nak.aeth.unwrap().syndrome, Syndrome::RnrNak { timer: 14 });
                let last = if op.starts_with("long write") { 1004 } else { 1000 };
                assert_eq!(nak.bth.psn.get(), last, "{op}");
            }
            world.recv(&b, 7, &[b.at(0x1000, 5000)]);
            world.run();
            assert_eq!(statuses(&world.sent(&a)), [Status::Success; 2], "{route:?} {op}");
            assert_eq!(ids(&world.received(&b)), [7]);
            let source = world.bytes(&a, 0, len as usize);
            assert_bytes(&world.bytes(&b, 0x1000, len as usize), &source);
        }
    }
}

/// RN-02: every timer code: the request is repeated no earlier than the coded time after the NAK, and within 20 ms of it.
#[test]
fn rn_02_timer_codes() {
    for code in 0..32 {
        let (mut world, a, b) =
            World::pair(Setup { min_rnr_timer: code, rnr_retry: 1, timeout: 20, ..Setup::new(Route::Wire) });
        world.send(&a, 1, send(), &[a.at(0, 8)]);
        let start = world.now;
        world.run();
        // The first NAK is followed by one repetition, whose NAK ends the budget.
        assert_eq!(statuses(&world.sent(&a)), [Status::RnrRetryExceededError]);
        let wait = world.completed_at - start;
        let coded = Duration::from_micros(RNR_US[usize::from(code)]);
        assert!(wait >= coded && wait < coded + Duration::from_millis(20), "code {code}: {wait:?}");
        assert_eq!((world.counters(&a).rcvd_rnr_err, world.counters(&b).send_rnr_err), (2, 2));
    }
}

/// RN-02, local path: the wait is the coded time when nobody posts a receive, and ends at once when somebody does.
#[test]
fn rn_02_local_wait_ends_early() {
    let (mut world, a, b) = World::pair(Setup { min_rnr_timer: 0, rnr_retry: 1, ..Setup::new(Route::Local) });
    world.send(&a, 1, send(), &[a.at(0, 8)]);
    world.run_for(Duration::from_millis(10));
    let posted = world.now;
    world.recv(&b, 1, &[b.at(0, 8)]);
    world.run_for(Duration::ZERO);
    assert_eq!((statuses(&world.sent(&a)), world.now), (vec![Status::Success], posted));
    world.send(&a, 2, send(), &[a.at(0, 8)]);
    let start = world.now;
    world.run();
    assert_eq!(statuses(&world.sent(&a)), [Status::RnrRetryExceededError]);
    assert_eq!(world.completed_at - start, Duration::from_micros(RNR_US[0]));
}

/// RN-03: retry count 7 waits for ever: a receive that comes a minute late is found.
#[test]
fn rn_03_retry_7_is_for_ever() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup { min_rnr_timer: 12, rnr_retry: 7, retry_cnt: 0, ..Setup::new(route) });
        world.send(&a, 1, send(), &[a.at(0, 8)]);
        world.run_for(Duration::from_secs(59));
        assert!(world.sent(&a).is_empty());
        world.recv(&b, 1, &[b.at(0, 8)]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::Success], "{route:?}");
    }
}

/// The RNR budget counts, begins anew with each delivered message, and its end flushes what follows.
#[test]
fn rnr_budget() {
    for route in BOTH {
        for rnr_retry in [0, 1, 3] {
            let (mut world, a, b) = World::pair(Setup { min_rnr_timer: 12, rnr_retry, ..Setup::new(route) });
            world.recv(&b, 1, &[b.at(0, 8)]);
            for n in 1..4 {
                world.send(&a, n, send(), &[a.at(0, 8)]);
            }
            world.run();
            let sent = world.sent(&a);
            use Status::*;
            assert_eq!(statuses(&sent), [Success, RnrRetryExceededError, FlushError], "{route:?} {rnr_retry}");
            assert_eq!(sent[1].vendor_err, vendor_err::RECEIVER_NOT_READY);
            assert_eq!(world.counters(&a).rcvd_rnr_err, u64::from(rnr_retry) + 1, "{route:?}");
            assert_eq!(world.state(&b), QpState::Rts, "the receiver is not harmed");
        }
    }
}

/// RN-06: a peer that is gone: retry-exceeded after (retry count + 1) timeouts of T to 4T each, the rest flushed.
#[test]
fn rn_06_peer_gone() {
    for route in BOTH {
        for (timeout, retry_cnt) in [(14, 7), (10, 0), (8, 3)] {
            let (mut world, a, b) = World::pair(Setup { timeout, retry_cnt, ..Setup::new(route) });
            let now = world.now;
            world.nics[b.nic].destroy_qp(now, b.qpn).unwrap();
            world.send(&a, 1, write(&b, 0), &[a.at(0, 8)]);
            world.send(&a, 2, read(&b, 0), &[a.at(0, 8)]);
            world.run();
            let sent = world.sent(&a);
            assert_eq!(statuses(&sent), [Status::RetryExceededError, Status::FlushError], "{route:?}");
            let cause = if route == Route::Local { vendor_err::LOCAL_PEER } else { vendor_err::TIMEOUT };
            assert_eq!(sent[0].vendor_err, cause);
            let least = Duration::from_nanos(4096 << timeout) * (u32::from(retry_cnt) + 1);
            let took = world.completed_at - now;
            assert!(took >= least && took <= least * 4, "{route:?} timeout {timeout} retries {retry_cnt}: {took:?}");
            if (timeout, retry_cnt) == (14, 7) {
                assert!(took >= Duration::from_millis(500) && took <= Duration::from_millis(2200), "{took:?}");
            }
        }
    }
}

/// Timeout 0: the requester waits for ever, and nothing keeps running meanwhile.
#[test]
fn timeout_0_never_ends() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup { timeout: 0, ..Setup::new(route) });
        let now = world.now;
        world.nics[b.nic].destroy_qp(now, b.qpn).unwrap();
        world.send(&a, 1, write(&b, 0), &[a.at(0, 8)]);
        world.run();
        assert!(world.sent(&a).is_empty());
        assert!(world.nics.iter().all(|nic| nic.poll_timeout().is_none()), "{route:?}");
        world.set_state(&a, QpState::Err);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::FlushError]);
    }
}

/// A peer that is not yet ready, or not connected back, is silent at first; requests go through when it is there in time.
#[test]
fn peer_becomes_ready_in_time() {
    for route in BOTH {
        let mut world = World::new(Setup { timeout: 10, ..Setup::new(route) });
        let (a, b, other) = (world.end(), world.end(), world.end());
        world.connect_one(&a, &b);
        world.connect_one(&b, &other);
        world.send(&a, 1, write(&b, 0x1000), &[a.at(0, 8)]);
        world.run_for(Duration::from_millis(10));
        assert!(world.sent(&a).is_empty(), "{route:?}");
        world.set_state(&b, QpState::Reset);
        world.run_for(Duration::from_millis(5));
        world.connect_one(&b, &a);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::Success], "{route:?}");
        assert_eq!(world.bytes(&b, 0x1000, 8), world.bytes(&a, 0, 8));
    }
}

/// A responder that expects another PSN than the requester begins with does not execute anything.
#[test]
fn psn_mismatch_ends_in_retries() {
    for route in BOTH {
        let mut world = World::new(Setup { retry_cnt: 2, ..Setup::new(route) });
        let (a, b) = (world.end(), world.end());
        world.setup.psn = 2000;
        world.connect_one(&a, &b);
        world.setup.psn = 1000;
        world.connect_one(&b, &a);
        let before = world.bytes(&b, 0, 100);
        world.send(&a, 1, write(&b, 0), &[a.at(5, 100)]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::RetryExceededError], "{route:?}");
        assert_bytes(&world.bytes(&b, 0, 100), &before);
    }
}

/// RN-08: a starved queue pair does not hold up another one of the same device.
#[test]
fn rn_08_only_the_starved_queue_pair_waits() {
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup { min_rnr_timer: 0, ..Setup::new(route) });
        let a2 = End { qpn: world.queue_pair(&a), ..a };
        let b2 = End { qpn: world.queue_pair(&b), ..b };
        world.connect(&a2, &b2);
        world.send(&a, 1, send(), &[a.at(0, 8)]);
        let start = world.now;
        for n in 0..50 {
            world.send(&a2, n, write(&b, 0), &[a.at(0, 60_000)]);
        }
        world.run_for(Duration::from_millis(100));
        assert_eq!(world.sent(&a2).len(), 50, "{route:?}");
        assert!(world.sent(&a).is_empty());
        assert_eq!(world.counters(&a).ack_timeout, 0, "since {start:?}");
    }
}
