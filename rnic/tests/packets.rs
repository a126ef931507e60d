//! Packets that a peer should not send, or may send in more than one way: illegal sequences (RC-12), bad lengths (RC-14), too
//! many READs (RC-15), old replays (RC-08), and what is dropped silently (AD-05, AD-08, AD-09, AD-11, RC-17, RC-19).

mod harness;

use emtt::Access;
use harness::*;
use rnic::*;
use roce::wire::{AtomicEth, Bth, Headers, NakCode, Opcode as Wire, Reth, Syndrome};
use roce::{Psn, Qpn, Rkey, Srqn};

fn bth(opcode: Wire, psn: u32, to: &End) -> Headers {
    Headers::new(Bth { ack_req: true, ..Bth::new(opcode, to.qpn, Psn::new(psn)) })
}

/// A request packet with whatever extension headers its opcode needs, for a message of `length` bytes to the start of memory.
fn request(opcode: Wire, psn: u32, to: &End, length: u32) -> Headers {
    let mut headers = bth(opcode, psn, to);
    headers.reth = opcode.has_reth().then_some(Reth { va: BASE, rkey: to.mr.rkey, length });
    let atomic = AtomicEth { va: BASE, rkey: to.mr.rkey, swap_add: 1, compare: 0 };
    headers.atomic = opcode.has_atomic().then_some(atomic);
    headers.imm = opcode.has_imm().then_some([0; 4]);
    headers.ieth = opcode.has_ieth().then_some(Rkey(1));
    headers
}

/// What the responder answered: PSN and syndrome of each acknowledgement.
fn answers(world: &mut World) -> Vec<(u32, Syndrome)> {
    world.link.record = Some(Vec::new());
    world.run();
    let record = world.link.record.take().unwrap();
    let headers = record.iter().map(|packet| packet.headers());
    headers.filter_map(|headers| Some((headers.bth.psn.get(), headers.aeth?.syndrome))).collect()
}

fn responder() -> (World, End, End) {
    let (mut world, a, b) = World::pair(Setup::new(Route::Wire));
    for n in 0..4 {
        world.recv(&b, n, &[b.at(0x10_0000, 100_000)]);
    }
    (world, a, b)
}

fn invalid(psn: u32) -> Vec<(u32, Syndrome)> {
    vec![(psn, Syndrome::Nak(NakCode::InvalidRequest))]
}

/// RC-12: every opcode that may not follow another inside or outside a message.
#[test]
fn rc_12_illegal_sequences() {
    use Wire::*;
    let sends = [RcSendMiddle, RcSendLast, RcSendLastWithImm, RcSendLastWithInvalidate];
    let writes = [RcWriteMiddle, RcWriteLast, RcWriteLastWithImm];
    let starts = [
        RcSendFirst,
        RcSendOnly,
        RcSendOnlyWithImm,
        RcSendOnlyWithInvalidate,
        RcWriteFirst,
        RcWriteOnly,
        RcWriteOnlyWithImm,
        RcReadRequest,
        RcCompareSwap,
        RcFetchAdd,
    ];
    let mut cases: Vec<(Option<Wire>, Wire)> = Vec::new();
    cases.extend(sends.iter().chain(&writes).map(|&opcode| (None, opcode)));
    for open in [RcSendFirst, RcWriteFirst] {
        cases.extend(starts.iter().map(|&opcode| (Some(open), opcode)));
        let others: &[Wire] = if open == RcSendFirst { &writes } else { &sends };
        cases.extend(others.iter().map(|&opcode| (Some(open), opcode)));
    }
    for (open, opcode) in cases {
        let (mut world, a, b) = responder();
        let before = world.bytes(&b, 0x2000, 1024);
        let mut psn = 1000;
        if let Some(open) = open {
            world.inject(&a, &b, &request(open, psn, &b, 3000), &[7; 1024]);
            psn += 1;
        }
        let is_middle_or_first = opcode.is_first() || opcode.is_middle();
        let payload = if !opcode.has_payload() {
            0
        } else if is_middle_or_first {
            1024
        } else {
            500
        };
        world.inject(&a, &b, &request(opcode, psn, &b, 500), &vec![9; payload]);
        let answers = answers(&mut world);
        assert_eq!(answers, invalid(psn), "{opcode:?} after {open:?}");
        assert_eq!(world.state(&b), QpState::Err);
        assert!(world.events.contains(&AsyncEvent::QpRequestError(b.qpn)), "{opcode:?} after {open:?}");
        assert_eq!(statuses(&world.received(&b)), [Status::FlushError; 4]);
        assert_bytes(&world.bytes(&b, 0x2000, 1024), &before);
    }
}

/// Payload lengths that do not fit the opcode, the path MTU or the RETH.
#[test]
fn payload_lengths_must_fit() {
    use Wire::*;
    let single = [
        (RcSendFirst, 0, 1023),
        (RcSendFirst, 0, 1025),
        (RcSendOnly, 0, 1025),
        (RcSendFirst, 0, 0),
        (RcWriteFirst, 2000, 1000),
        (RcWriteFirst, 1024, 1024),
        (RcWriteOnly, 100, 99),
        (RcWriteOnly, 100, 101),
        (RcWriteOnly, 0, 1),
        (RcWriteOnly, 2000, 1024),
        (RcWriteOnlyWithImm, 5, 6),
    ];
    for (opcode, length, payload) in single {
        let (mut world, a, b) = responder();
        world.inject(&a, &b, &request(opcode, 1000, &b, length), &vec![0; payload]);
        assert_eq!(answers(&mut world), invalid(1000), "{opcode:?} {length} {payload}");
    }
    let second = [
        (RcSendFirst, RcSendMiddle, 0, 1000),
        (RcSendFirst, RcSendLast, 0, 0),
        (RcSendFirst, RcSendLast, 0, 1025),
        (RcWriteFirst, RcWriteMiddle, 2048, 1024),
        (RcWriteFirst, RcWriteLast, 2000, 975),
        (RcWriteFirst, RcWriteLast, 2000, 977),
        (RcWriteFirst, RcWriteLast, 4096, 1024),
        (RcWriteFirst, RcWriteLastWithImm, 2000, 0),
    ];
    for (open, opcode, length, payload) in second {
        let (mut world, a, b) = responder();
        world.inject(&a, &b, &request(open, 1000, &b, length), &[0; 1024]);
        world.inject(&a, &b, &request(opcode, 1001, &b, 0), &vec![0; payload]);
        assert_eq!(answers(&mut world), invalid(1001), "{opcode:?} {length} {payload}");
    }
}

/// RC-14: a message of more than 2^31 bytes is refused at its first packet.
#[test]
fn rc_14_too_long_messages() {
    for opcode in [Wire::RcWriteFirst, Wire::RcReadRequest] {
        for length in [(1 << 31) + 1, u32::MAX] {
            let (mut world, a, b) = responder();
            let payload = if opcode.has_payload() { 1024 } else { 0 };
            world.inject(&a, &b, &request(opcode, 1000, &b, length), &vec![0; payload]);
            assert_eq!(answers(&mut world), invalid(1000), "{opcode:?} {length}");
        }
    }
}

/// RC-15: one READ more than agreed is refused; with a depth of 0 the first one is. Atomics count too.
#[test]
fn rc_15_too_many_reads() {
    for opcode in [Wire::RcReadRequest, Wire::RcFetchAdd] {
        for depth in [0, 1, 4, 16] {
            let (mut world, a, b) = World::pair(Setup { max_dest_rd_atomic: depth, ..Setup::new(Route::Wire) });
            for n in 0..=u32::from(depth) {
                world.inject(&a, &b, &request(opcode, 1000 + n, &b, 8), &[]);
            }
            let answers = answers(&mut world);
            assert_eq!(answers.len(), usize::from(depth) + 1, "those within the depth are answered");
            assert_eq!(answers.last(), invalid(1000 + u32::from(depth)).last(), "{opcode:?} depth {depth}");
            assert_eq!(world.state(&b), QpState::Err);
        }
    }
}

/// RC-15: a requester never has more READs and atomics under way than its limit, whatever the queue holds.
#[test]
fn rc_15_requester_keeps_its_limit() {
    for limit in [1, 2, 16] {
        let (mut world, a, b) =
            World::pair(Setup { max_rd_atomic: limit, max_dest_rd_atomic: limit, ..Setup::new(Route::Wire) });
        for n in 0..60 {
            let op = if n % 3 == 0 { fetch_add(&b, 0, 1) } else { read(&b, 0) };
            world.send(&a, n, op, &[a.at(0x1000, 8 + (n as u32 % 3) * 40_000)]);
        }
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::Success; 60], "limit {limit}");
        assert_eq!(world.counters(&b).send_nak_err, 0);
    }
    for route in BOTH {
        let (mut world, a, b) = World::pair(Setup { max_rd_atomic: 0, ..Setup::new(route) });
        world.send(&a, 1, read(&b, 0), &[a.at(0, 8)]);
        world.run();
        let sent = world.sent(&a);
        assert_eq!((sent[0].status, sent[0].vendor_err), (Status::LocalQpOperationError, vendor_err::NO_READ_DEPTH));
        let (mut world, a, b) = World::pair(Setup { max_dest_rd_atomic: 0, ..Setup::new(route) });
        world.send(&a, 1, read(&b, 0), &[a.at(0, 8)]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::RemoteInvalidRequestError], "{route:?}");
    }
}

/// RC-08: a replay of an atomic older than the responder's resources is dropped; one that is remembered is answered with the
/// old value. Neither is executed again.
#[test]
fn rc_08_old_replays() {
    let (mut world, a, b) = World::pair(Setup { max_dest_rd_atomic: 1, ..Setup::new(Route::Wire) });
    world.memory.space(b.memory)[..8].fill(0);
    for psn in [1000, 1001] {
        world.inject(&a, &b, &request(Wire::RcFetchAdd, psn, &b, 0), &[]);
        assert_eq!(answers(&mut world).len(), 1);
    }
    world.inject(&a, &b, &request(Wire::RcFetchAdd, 1000, &b, 0), &[]);
    assert_eq!(answers(&mut world), [], "forgotten: dropped");
    assert_eq!(world.counters(&b).lost_resource, 1);
    world.inject(&a, &b, &request(Wire::RcFetchAdd, 1001, &b, 0), &[]);
    world.link.record = Some(Vec::new());
    world.run();
    let replayed = world.link.record.take().unwrap();
    assert_eq!((replayed.len(), replayed[0].headers().atomic_ack), (1, Some(1)));
    assert_eq!(world.word(&b, 0), 2, "executed twice in all");
    assert_eq!(world.state(&b), QpState::Rts);
}

/// A replayed READ must be one that was asked for before, or its tail: other ranges and keys are not read.
#[test]
fn replayed_reads_are_checked() {
    let (mut world, a, b) = responder();
    world.inject(&a, &b, &request(Wire::RcReadRequest, 1000, &b, 5000), &[]);
    assert_eq!(answers(&mut world).len(), 2, "FIRST and LAST carry an AETH");
    let replay = |psn: u32, va: u64, rkey: Rkey, length: u32| {
        let mut headers = request(Wire::RcReadRequest, psn, &b, length);
        headers.reth = Some(Reth { va, rkey, length });
        headers
    };
    let key = b.mr.rkey;
    for (psn, va, rkey, length, packets) in [
        (1000, BASE, key, 5000, 5),
        (1003, BASE + 3 * 1024, key, 5000 - 3 * 1024, 2),
        (1003, BASE + 3 * 1024, key, 1024, 1),
        (1003, BASE + 3 * 1024, key, 5000, 0),
        (1003, BASE, key, 100, 0),
        (1000, BASE, Rkey(key.0 ^ 1), 5000, 0),
        (1000, BASE, key, u32::MAX, 0),
        (999, BASE, key, 10, 0),
    ] {
        world.inject(&a, &b, &replay(psn, va, rkey, length), &[]);
        let before = world.link.sent;
        world.run();
        assert_eq!(world.link.sent - before, packets, "psn {psn} length {length}");
    }
    assert_eq!(world.state(&b), QpState::Rts);
}

/// A peer that repeats READ requests over and over cannot make the responder queue without bound.
#[test]
fn a_storm_of_replays_is_bounded() {
    let (mut world, a, b) = responder();
    world.inject(&a, &b, &request(Wire::RcReadRequest, 1000, &b, 5000), &[]);
    world.run();
    for n in 0..10_000 {
        let mut headers = request(Wire::RcReadRequest, 1000 + n % 5, &b, 100);
        headers.reth = Some(Reth { va: BASE + u64::from(n % 5) * 1024, rkey: b.mr.rkey, length: 100 });
        world.inject(&a, &b, &headers, &[]);
    }
    let before = world.link.sent;
    world.run();
    assert!(world.link.sent - before <= 8, "{} replies", world.link.sent - before);
}

/// AD-11, AD-05: what is dropped without an answer and without harm, and which counter tells.
#[test]
fn ad_11_silent_drops() {
    let (mut world, a, b) = responder();
    let good = request(Wire::RcWriteOnly, 1000, &b, 4);
    let mut dropped = |name: &str, counter: &str, act: &dyn Fn(&mut World)| {
        let value = |world: &World| world.nics[1].drop_counters().iter().find(|(name, _)| *name == counter).unwrap().1;
        let (before, sent) = (value(&world), world.link.sent);
        act(&mut world);
        world.run();
        assert_eq!(value(&world) - before, 1, "{name}");
        assert_eq!(world.link.sent, sent, "{name}: no answer");
        assert_eq!(world.nics[1].query_qp(b.qpn).unwrap().rq_psn.get(), 1000, "{name}");
    };
    let with = |change: fn(&mut Headers)| {
        let mut headers = good;
        change(&mut headers);
        headers
    };
    let bad_pkey = with(|headers| headers.bth.pkey = 0x1234);
    dropped("P_Key", "bad_pkey", &|world| world.inject(&a, &b, &bad_pkey, &[0; 4]));
    let unknown = with(|headers| headers.bth.dest_qpn = Qpn::new(headers.bth.dest_qpn.get() ^ 0x10_0000));
    dropped("QPN", "unknown_qp", &|world| world.inject(&a, &b, &unknown, &[0; 4]));
    for (qpn, counter) in [(Qpn::new(0), "unknown_qp"), (Qpn::GSI, "bad_service"), (Qpn::MULTICAST, "unknown_qp")] {
        let mut headers = good;
        headers.bth.dest_qpn = qpn;
        dropped("special QPN", counter, &|world| world.inject(&a, &b, &headers, &[0; 4]));
    }
    let uc = request(Wire::UcSendOnly, 1000, &b, 4);
    dropped("UC opcode", "bad_service", &|world| world.inject(&a, &b, &uc, &[0; 4]));
    let stranger = End { ip: "192.0.2.77".parse().unwrap(), ..a };
    dropped("source address", "bad_address", &|world| world.inject(&stranger, &b, &good, &[0; 4]));
    dropped("short", "malformed", &|world| world.inject_bytes(&a, &b, &[0; 15]));
    dropped("RD opcode", "malformed", &|world| world.inject_bytes(&a, &b, &[0x40; 40]));
    let xrc = Headers { xrceth: Some(Srqn::new(1)), ..request(Wire::XrcSendOnly, 1000, &b, 4) };
    dropped("XRC opcode", "bad_service", &|world| world.inject(&a, &b, &xrc, &[0; 4]));
    dropped("unknown opcode", "malformed", &|world| {
        let mut bytes = [0; 40];
        bytes[0] = 0x1F;
        world.inject_bytes(&a, &b, &bytes);
    });
    dropped("transport version", "malformed", &|world| {
        let mut bytes = [0; 16];
        (bytes[0], bytes[1]) = (0x04, 0x01);
        world.inject_bytes(&a, &b, &bytes);
    });
    dropped("ICRC", "icrc", &|world| {
        let mut bytes = [0; 16];
        bytes[0] = 0x04;
        world.inject_bytes(&a, &b, &bytes);
    });
    let state = world.state(&b);
    assert_eq!(state, QpState::Rts);
}

/// AD-11: a queue pair that is not ready to receive, or in error, does not answer.
#[test]
fn ad_11_not_ready_to_receive() {
    let (mut world, a, b) = responder();
    let good = request(Wire::RcWriteOnly, 1000, &b, 4);
    for state in [QpState::Err, QpState::Reset] {
        world.set_state(&b, state);
        let sent = world.link.sent;
        world.inject(&a, &b, &good, &[0; 4]);
        world.run();
        assert_eq!(world.link.sent, sent);
    }
    assert_eq!(world.nics[1].drop_counters().bad_state, 2);
}

/// RC-17, RC-19: either value of MigReq, congestion marks and partition membership are accepted; CNPs are counted.
#[test]
fn rc_17_and_rc_19_tolerance() {
    let (mut world, a, b) = responder();
    let mut headers = request(Wire::RcWriteOnly, 1000, &b, 4);
    headers.bth.mig_req = false;
    world.inject(&a, &b, &headers, &[1; 4]);
    headers.bth.psn = Psn::new(1001);
    (headers.bth.fecn, headers.bth.becn, headers.bth.pkey) = (true, true, 0x7FFF);
    world.inject(&a, &b, &headers, &[2; 4]);
    world.inject(&a, &b, &bth(Wire::Cnp, 0, &b), &[0; 16]);
    let answers = answers(&mut world);
    assert_eq!(answers, [(1001, Syndrome::Ack { credits: 31 })], "one cumulative acknowledgement");
    assert_eq!(world.bytes(&b, 0, 4), [2; 4]);
    let counters = world.counters(&b);
    assert_eq!((counters.rcvd_cnp, counters.rcvd_ecn), (1, 1));
}

/// Answers to nothing: acknowledgements, NAKs and responses for PSNs that are not outstanding change nothing.
#[test]
fn stray_responses_are_ignored() {
    let (mut world, a, b) = World::pair(Setup::new(Route::Wire));
    for psn in [0, 999, 1000, 1001, 5000, 0x80_0000] {
        for syndrome in [
            Syndrome::Ack { credits: 31 },
            Syndrome::RnrNak { timer: 1 },
            Syndrome::Nak(NakCode::PsnSequenceError),
            Syndrome::Nak(NakCode::RemoteAccessError),
        ] {
            let mut headers = bth(Wire::RcAck, psn, &a);
            headers.aeth = Some(roce::wire::Aeth { syndrome, msn: 0 });
            world.inject(&b, &a, &headers, &[]);
        }
        let mut headers = bth(Wire::RcReadResponseOnly, psn, &a);
        headers.aeth = Some(roce::wire::Aeth { syndrome: Syndrome::Ack { credits: 0 }, msn: 0 });
        world.inject(&b, &a, &headers, &[1; 8]);
    }
    assert_eq!(world.state(&a), QpState::Rts);
    assert_eq!(world.counters(&a).stray_response, 30);
    world.send(&a, 1, write(&b, 0), &[a.at(0, 8)]);
    world.run();
    assert_eq!(statuses(&world.sent(&a)), [Status::Success]);
}

/// A response that does not fit its READ is a bad response, and writes nothing beyond the READ's buffers.
#[test]
fn responses_that_do_not_fit() {
    for (opcode, payload) in [
        (Wire::RcReadResponseOnly, 101),
        (Wire::RcReadResponseOnly, 99),
        (Wire::RcReadResponseFirst, 100),
        (Wire::RcReadResponseMiddle, 100),
        (Wire::RcAtomicAck, 0),
    ] {
        let (mut world, a, b) = World::pair(Setup::new(Route::Wire));
        world.link.filter = Some(Box::new(|_| false));
        world.send(&a, 1, read(&b, 0), &[a.at(0, 100)]);
        world.step_some(1);
        let before = world.bytes(&a, 0, 200);
        let mut headers = bth(opcode, 1000, &a);
        let aeth = roce::wire::Aeth { syndrome: Syndrome::Ack { credits: 0 }, msn: 0 };
        headers.aeth = opcode.has_aeth().then_some(aeth);
        headers.atomic_ack = opcode.has_atomic_ack().then_some(7);
        world.inject(&b, &a, &headers, &vec![0xEE; payload]);
        world.run();
        assert_eq!(statuses(&world.sent(&a)), [Status::BadResponseError], "{opcode:?} {payload}");
        assert_bytes(&world.bytes(&a, 0, 200), &before);
    }
}

/// AD-09: source ports are stable per queue pair, spread over queue pairs, and within 0xC000 to 0xFFFF.
#[test]
fn ad_09_source_ports() {
    let (mut world, a, b) = World::pair(Setup::new(Route::Wire));
    world.link.record = Some(Vec::new());
    let mut pairs = vec![(a, b)];
    for _ in 0..63 {
        let (a2, b2) = (End { qpn: world.queue_pair(&a), ..a }, End { qpn: world.queue_pair(&b), ..b });
        world.connect(&a2, &b2);
        pairs.push((a2, b2));
    }
    for (a, b) in &pairs {
        for n in 0..3 {
            world.send(a, n, write(b, 0), &[a.at(0, 3000)]);
        }
    }
    world.run();
    let mut ports = std::collections::BTreeMap::new();
    for packet in world.link.record.take().unwrap() {
        if packet.src == a.ip {
            assert!(packet.src_port >= 0xC000);
            let port = *ports.entry(packet.headers().bth.dest_qpn.get()).or_insert(packet.src_port);
            assert_eq!(port, packet.src_port, "stable");
        }
    }
    let distinct: std::collections::BTreeSet<_> = ports.values().collect();
    assert!(distinct.len() >= 48, "{} distinct ports of 64", distinct.len());
}

/// A queue pair on the local path takes no packets from the wire: a forged source address does not help.
#[test]
fn forged_packets_for_a_local_queue_pair() {
    let (mut world, a, b) = World::pair(Setup { access: Access::all(), ..Setup::new(Route::Local) });
    let before = world.bytes(&b, 0, 16);
    world.inject(&a, &b, &request(Wire::RcWriteOnly, 1000, &b, 4), &[0xFF; 4]);
    world.run();
    assert_bytes(&world.bytes(&b, 0, 16), &before);
    assert_eq!(world.nics[0].drop_counters().bad_address, 1);
}
