//! Single messages of a connection's life lost, doubled or late: programs see nothing of it but time.

use super::Fate::{Doubled, Late, Lost};
use super::*;

/// Low bytes of the attribute IDs (IBA table 99).
const REQ: u8 = 0x10;
const REJ: u8 = 0x12;
const REP: u8 = 0x13;
const RTU: u8 = 0x14;
const DREQ: u8 = 0x15;
const DREP: u8 = 0x16;
const SIDR_REQ: u8 = 0x17;
const SIDR_REP: u8 = 0x18;

/// From sending to arrival and back, several times over.
const SLACK: Duration = Duration::from_millis(20);

/// What one repetition takes.
fn repetition() -> Duration {
    coded(RESPONSE_TIMEOUT, RESPONSE_TIMEOUT)
}

/// A connection from its first message to its last, ended by side `who`, in which `fates` befall its messages: every event comes
/// once, nothing stays. Returns how long both sides took to be connected, and then to be told of the end.
fn life(who: usize, fates: &[(u8, Fate)]) -> [Duration; 2] {
    let mut net = Net::new(20, Faults::default());
    net.fates = fates.to_vec();
    let listener = net.listener(PortSpace::Tcp, 0);
    let start = net.now;
    let ids = net.connected();
    let connected = net.now - start;
    // What is late arrives while the connection lives, or within its timewait: beyond that the network would have to keep a packet
    // for longer than it is said to.
    net.run(repetition() * 3, |_| false);
    let start = net.now;
    net.cms[who].disconnect(net.now, ids[who]).unwrap();
    let both_told = |net: &Net| net.log.iter().all(|log| kinds(log).contains(&CmEventKind::Disconnected));
    assert!(net.run(Duration::from_secs(60), both_told), "{fates:?}: {:?}", net.log);
    let parted = net.now - start;
    net.settle();
    for (side, &id) in ids.iter().enumerate() {
        assert_eq!(kinds(&net.log[side]), [CmEventKind::Disconnected, CmEventKind::TimewaitExit], "{fates:?}, side {side}");
        net.cms[side].destroy(net.now, id);
    }
    net.cms[1].destroy(net.now, listener);
    assert_eq!((net.cms[0].endpoints(), net.cms[1].endpoints()), (0, 0), "{fates:?}");
    assert!(net.fates.is_empty(), "{:?} befell nothing", net.fates);
    [connected, parted]
}

#[test]
fn what_is_lost_once_or_twice_is_said_again() {
    for who in 0..2 {
        for times in 1..=2 {
            let limit = repetition() * times + SLACK;
            for kind in [REQ, REP, RTU] {
                let [connected, parted] = life(who, &vec![(kind, Lost); times as usize]);
                assert!(connected <= limit && parted <= SLACK, "{kind:#x}: {connected:?}, {parted:?}");
            }
            for kind in [DREQ, DREP] {
                let [connected, parted] = life(who, &vec![(kind, Lost); times as usize]);
                assert!(connected <= SLACK && parted <= limit, "{kind:#x}: {connected:?}, {parted:?}");
            }
        }
    }
}

#[test]
fn what_comes_twice_counts_once() {
    for who in 0..2 {
        for kind in [REQ, REP, RTU, DREQ, DREP] {
            assert!(life(who, &[(kind, Doubled)]).iter().all(|took| *took <= SLACK), "{kind:#x}");
            // A copy from long ago.
            life(who, &[(kind, Lost), (kind, Doubled)]);
        }
    }
}

#[test]
fn what_comes_late_counts_once() {
    for who in 0..2 {
        for kind in [REQ, REP, RTU, DREQ, DREP] {
            for by in [repetition() / 2, repetition() + 10 * MS, repetition() * 2 + 10 * MS] {
                let took = life(who, &[(kind, Late(by))]);
                assert!(took.iter().all(|took| *took <= repetition() + SLACK), "{kind:#x} late by {by:?}: {took:?}");
            }
        }
    }
}

/// The peer's data may overtake the message that says that it is ready (IBA 12.9.8.1); that message changes nothing then.
#[test]
fn data_may_arrive_before_the_peer_says_that_it_is_ready() {
    for fate in [Late(5 * MS), Late(repetition() * 3), Lost] {
        let mut net = Net::new(21, Faults::default());
        net.listener(PortSpace::Tcp, 0);
        let active = net.connect(PortSpace::Tcp, &offer(0x11), b"");
        let (passive, _) = net.next_request();
        net.cms[1].accept(net.now, passive, &offer(0x22), b"").unwrap();
        net.next(0);
        net.fates = vec![(RTU, fate)];
        net.cms[0].establish(active).unwrap();
        net.run(2 * MS, |_| false);
        assert_eq!(net.log[1], []);
        net.cms[1].establish(passive).expect("the program was told of the data");
        assert_eq!(net.next(1), CmEvent { endpoint: passive, kind: CmEventKind::Established });
        net.settle();
        assert_eq!(net.log, [vec![], vec![]], "{fate:?}");
    }
}

/// A program that takes its time makes the peer wait longer; when it is ready after that and the message that says so is lost, the
/// peer asks soon all the same.
#[test]
fn a_lost_word_of_a_slow_program_is_asked_for() {
    let mut net = Net::new(22, Faults::default());
    net.listener(PortSpace::Tcp, 0);
    let active = net.connect(PortSpace::Tcp, &offer(0x11), b"");
    let (passive, _) = net.next_request();
    net.cms[1].accept(net.now, passive, &offer(0x22), b"").unwrap();
    net.next(0);
    net.run(repetition() * 2, |_| false);
    net.fates = vec![(RTU, Lost)];
    let ready = net.now;
    net.cms[0].establish(active).unwrap();
    assert_eq!(net.next(1).kind, CmEventKind::Established);
    assert!(net.now - ready <= Duration::from_secs(10), "{:?}", net.now - ready);
}

#[test]
fn a_lost_refusal_is_said_again() {
    for times in 1..=2 {
        // The passive side's.
        let mut net = Net::new(23, Faults::default());
        net.listener(PortSpace::Tcp, 0);
        net.fates = vec![(REJ, Lost); times];
        net.connect(PortSpace::Tcp, &offer(0x11), b"");
        let (passive, _) = net.next_request();
        net.cms[1].reject(net.now, passive, b"no").unwrap();
        net.cms[1].destroy(net.now, passive);
        match net.next(0).kind {
            CmEventKind::Rejected { reason, private_data } => {
                assert_eq!((reason, &private_data[..2]), (reason::CONSUMER, &b"no"[..]));
            }
            other => panic!("{other:?}"),
        }
        // The active side's: who has forgotten says so.
        let mut net = Net::new(24, Faults::default());
        net.listener(PortSpace::Tcp, 0);
        net.fates = vec![(REJ, Lost); times];
        let active = net.connect(PortSpace::Tcp, &offer(0x11), b"");
        let (passive, _) = net.next_request();
        net.cms[1].accept(net.now, passive, &offer(0x22), b"").unwrap();
        net.next(0);
        net.cms[0].reject(net.now, active, b"").unwrap();
        net.cms[0].destroy(net.now, active);
        let told = net.next(1);
        assert!(matches!(told.kind, CmEventKind::Rejected { reason: reason::INVALID_COMM_ID, .. }), "{told:?}");
        net.cms[1].destroy(net.now, passive);
        net.settle();
        assert_eq!(net.log, [vec![], vec![]]);
    }
}

#[test]
fn questions_for_datagram_services_are_repeated_and_answered_once() {
    for kind in [SIDR_REQ, SIDR_REP] {
        for fates in [vec![Lost], vec![Lost, Lost], vec![Doubled], vec![Late(repetition() * 2 + 10 * MS)]] {
            let mut net = Net::new(25, Faults::default());
            net.listener(PortSpace::Udp, 0);
            net.fates = fates.iter().map(|fate| (kind, *fate)).collect();
            net.connect(PortSpace::Udp, &offer(0), b"who");
            let (passive, _) = net.next_request();
            net.cms[1].serve(net.now, passive, &DatagramService { qpn: Qpn::new(5), qkey: 6 }, b"me").unwrap();
            let told = net.next(0);
            assert!(matches!(told.kind, CmEventKind::Resolved { .. }), "{kind:#x} {fates:?}: {told:?}");
            net.settle();
            assert_eq!(net.log, [vec![], vec![]], "{kind:#x} {fates:?}");
        }
    }
}
