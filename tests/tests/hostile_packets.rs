//! Packets from outside against a live daemon, made by hand: what is wrong is dropped and counted, what breaks the protocol of
//! a connection is answered as the architecture says, and neither harms anything else.

use roce::wire::{AtomicEth, Bth, Headers, NakCode, Opcode, Reth, Syndrome};
use roce::{Gid, Rkey};
use std::net::IpAddr;
use tests::verbs::{Buffer, state};
use tests::{
    ControlClient, Daemon, DaemonOptions, HandQp, NetnsPair, RawPeer, headers, missing_program, need_root, one_at_a_time,
};
use vdev_abi::control::QpCaps;

/// First PSN of both directions.
const PSN: u32 = 0xFF_FFFE;
/// What the peer says is its queue pair.
const PEER_QPN: u32 = 0x1234;
const MEMORY: usize = 64 << 10;

/// One device whose queue pair is connected to a peer made by hand, on the other end of a veth pair.
struct Scene {
    peer: RawPeer,
    client: ControlClient,
    qp: HandQp,
    rkey: u32,
    memory: Buffer,
    daemon: Daemon,
    pd: u32,
    cq: u32,
    netns: NetnsPair,
}

fn scene() -> Option<Scene> {
    if missing_program(&["ip"]) || need_root("network namespaces") {
        return None;
    }
    let netns = NetnsPair::new(1500);
    let options = DaemonOptions { netns: Some(netns.name(1).to_owned()), ..DaemonOptions::default() };
    let mut daemon = Daemon::start_with(options);
    daemon.add_device("b", NetnsPair::IPV4[1]);
    let (client, _fds) = ControlClient::open(&daemon.device_socket("b")).expect("the device can be opened");
    let memory = Buffer::shared(MEMORY).expect("memory");
    let pd = client.alloc_pd();
    let (_, _, rkey) = client.reg_mr(pd, memory.addr(0), MEMORY as u64);
    let (cq, _, _) = client.create_cq(64);
    let peer = RawPeer::new(netns.name(0), NetnsPair::IPV4[0], NetnsPair::IPV4[1]);
    let qp = connected(&client, pd, cq);
    let mut scene = Scene { peer, client, qp, rkey, memory, daemon, pd, cq, netns };
    scene.peer.dest_qpn = scene.qp.qpn;
    Some(scene)
}

fn connected(client: &ControlClient, pd: u32, cq: u32) -> HandQp {
    let caps = QpCaps { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 0 };
    let qp = client.create_qp(pd, cq, caps);
    let peer: IpAddr = NetnsPair::IPV4[0].parse().expect("an address");
    client.connect_qp(qp.handle, Gid::from(peer).0, PEER_QPN, PSN);
    qp
}

impl Scene {
    /// A fresh connection, after one that went to error.
    fn reconnect(&mut self) {
        self.qp = connected(&self.client, self.pd, self.cq);
        self.peer.dest_qpn = self.qp.qpn;
    }

    fn write_only(&self, psn: u32, payload: &[u8]) -> Vec<u8> {
        self.peer.write_only(psn, self.memory.addr(0), self.rkey, payload)
    }

    /// Sends a WRITE that must be executed and acknowledged.
    fn write_works(&self, psn: u32, fill: u8) {
        self.peer.send(&self.write_only(psn, &[fill; 64]));
        let (aeth, answered) = self.peer.aeth();
        assert!(matches!(aeth.syndrome, Syndrome::Ack { .. }), "{aeth:?}");
        assert_eq!((answered, self.memory.read(0, 64)), (psn & 0xFF_FFFF, vec![fill; 64]));
    }

    /// Packets dropped so far, of all reasons.
    fn dropped(&self) -> u64 {
        let (status, text) = self.daemon.http("GET", "/metrics", "");
        assert_eq!(status, 200);
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#') && line.contains("drop")).collect();
        assert!(!lines.is_empty(), "the metrics count dropped packets:\n{text}");
        let value = |line: &&str| line.rsplit(' ').next().and_then(|word| word.parse::<f64>().ok()).expect("a number");
        lines.iter().map(|line| value(line) as u64).sum()
    }

    fn is_dropped(&self, about: &str, packet: &[u8]) {
        let before = self.dropped();
        self.peer.send(packet);
        self.peer.silence(about);
        assert_eq!(self.dropped(), before + 1, "{about}: must be counted as dropped");
        assert_eq!(self.client.qp_state(self.qp.handle), state::RTS, "{about}: must not touch the queue pair");
    }
}

fn nak(scene: &Scene, about: &str) -> NakCode {
    match scene.peer.aeth().0.syndrome {
        Syndrome::Nak(code) => code,
        other => panic!("{about}: a NAK is due, got {other:?}"),
    }
}

/// AD-11: wrong version, partition, opcode, queue pair, lengths.
#[test]
fn packets_that_make_no_sense_are_dropped_and_counted() {
    let _turn = one_at_a_time();
    let Some(scene) = scene() else { return };
    scene.write_works(PSN, 1);
    let good = scene.write_only(PSN + 1, &[9; 64]);
    let varied = |at: usize, value: u8| {
        let mut bytes = good[..good.len() - 4].to_vec();
        bytes[at] = value;
        scene.peer.seal(bytes)
    };
    scene.is_dropped("transport version 1", &varied(1, good[1] | 1));
    scene.is_dropped("partition 0x7FFE", &varied(3, 0xFE));
    for opcode in [0x1F, 0x40, 0xBF, 0xC0, 0xFF] {
        scene.is_dropped(&format!("opcode {opcode:#x} of a service that is not there"), &varied(0, opcode));
    }
    scene.is_dropped("an opcode of UC on an RC queue pair", &varied(0, 0x2A));
    scene.is_dropped("an opcode of XRC on an RC queue pair", &varied(0, 0xAA));
    scene.is_dropped("an unknown queue pair", &varied(6, good[6] ^ 0x55));
    scene.is_dropped(
        "an ICRC that is wrong",
        &varied(20, 0)[..good.len() - 4].iter().copied().chain([1, 2, 3, 4]).collect::<Vec<_>>(),
    );
    for len in [1, 11, 12, 15, 16, 24, 27, 30] {
        let cut = good[..len].to_vec();
        // Where there is room for one, the ICRC is right.
        let has_icrc = len >= 12 && len % 4 == 0;
        scene.peer.send(&if has_icrc { scene.peer.seal(cut) } else { cut });
        scene.peer.silence("a packet that is cut");
    }
    scene.write_works(PSN + 1, 2);
}

/// AD-05: the ICRC covers all but what routers change.
#[test]
fn a_changed_byte_is_dropped_and_what_routers_change_is_accepted() {
    use std::os::fd::AsRawFd;
    let _turn = one_at_a_time();
    let Some(scene) = scene() else { return };
    let good = scene.write_only(PSN, &[7; 64]);
    // Offset 4 holds the congestion bits, which routers set: a flip there may pass.
    for at in (0..good.len()).filter(|&at| at != 4) {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        scene.peer.send(&bad);
    }
    scene.peer.silence("a packet with a flipped bit");
    assert_eq!(scene.memory.read(0, 64), [0; 64], "no packet with a flipped bit was executed");
    let set = |level: i32, option: i32, value: i32| {
        let len = size_of_val(&value) as libc::socklen_t;
        // SAFETY: the option's value is an int.
        let set = unsafe { libc::setsockopt(scene.peer.socket().as_raw_fd(), level, option, (&raw const value).cast(), len) };
        assert_eq!(set, 0, "setsockopt {option}");
    };
    set(libc::IPPROTO_IP, libc::IP_TOS, 0x68 | 1);
    set(libc::IPPROTO_IP, libc::IP_TTL, 7);
    scene.write_works(PSN, 3);
    let mut marked = scene.write_only(PSN + 1, &[4; 64]);
    marked[4] = 0xC0;
    scene.peer.send(&marked);
    assert!(matches!(scene.peer.aeth().0.syndrome, Syndrome::Ack { .. }), "congestion bits are not covered");
}

/// RC-17 and RC-19: both values of the migration bit; congestion notifications, also to nobody.
#[test]
fn migration_bits_and_congestion_notifications_do_no_harm() {
    let _turn = one_at_a_time();
    let Some(scene) = scene() else { return };
    for (step, mig_req) in [true, false].into_iter().enumerate() {
        let psn = PSN + step as u32;
        let reth = Some(Reth { va: scene.memory.addr(0), rkey: Rkey(scene.rkey), length: 4 });
        let bth = Bth { mig_req, ..scene.peer.bth(Opcode::RcWriteOnly, psn) };
        scene.peer.send(&scene.peer.packet(&Headers { reth, ..headers(bth) }, &[5; 4]));
        assert!(matches!(scene.peer.aeth().0.syndrome, Syndrome::Ack { .. }), "migration bit {mig_req}");
    }
    for qpn in [scene.qp.qpn, scene.qp.qpn ^ 0x55] {
        let bth = Bth { dest_qpn: roce::Qpn::new(qpn), ack_req: false, ..scene.peer.bth(Opcode::Cnp, 0) };
        scene.peer.send(&scene.peer.packet(&headers(bth), &[0; 16]));
    }
    scene.peer.silence("a congestion notification");
    scene.write_works(PSN + 2, 6);
}

/// RC-12: pieces of messages in an order that cannot be.
#[test]
fn pieces_out_of_order_end_the_connection_with_a_nak() {
    let _turn = one_at_a_time();
    let Some(mut scene) = scene() else { return };
    // What is sent before, and the piece that does not follow.
    let cases = [
        (None, Opcode::RcSendMiddle),
        (None, Opcode::RcSendLast),
        (None, Opcode::RcWriteMiddle),
        (None, Opcode::RcWriteLast),
        (Some(Opcode::RcWriteFirst), Opcode::RcSendMiddle),
        (Some(Opcode::RcWriteFirst), Opcode::RcSendLast),
        (Some(Opcode::RcWriteFirst), Opcode::RcSendOnly),
        (Some(Opcode::RcWriteFirst), Opcode::RcWriteOnly),
        (Some(Opcode::RcWriteFirst), Opcode::RcWriteFirst),
        (Some(Opcode::RcWriteFirst), Opcode::RcReadRequest),
    ];
    for (before, piece) in cases {
        let about = format!("{piece:?} after {before:?}");
        let reth = Reth { va: scene.memory.addr(0), rkey: Rkey(scene.rkey), length: 2048 };
        let packet = |opcode: Opcode, psn: u32| {
            let reth = opcode.has_reth().then_some(reth);
            let payload: &[u8] = if opcode == Opcode::RcReadRequest { &[] } else { &[8; 1024] };
            scene.peer.packet(&Headers { reth, ..headers(scene.peer.bth(opcode, psn)) }, payload)
        };
        let mut psn = PSN;
        if let Some(before) = before {
            let mut bth = scene.peer.bth(before, psn);
            bth.ack_req = false;
            scene.peer.send(&scene.peer.packet(&Headers { reth: Some(reth), ..headers(bth) }, &[8; 1024]));
            psn += 1;
        }
        scene.peer.send(&packet(piece, psn));
        assert_eq!(nak(&scene, &about), NakCode::InvalidRequest, "{about}");
        assert_eq!(scene.client.qp_state(scene.qp.handle), state::ERR, "{about}");
        scene.reconnect();
    }
    scene.write_works(PSN, 7);
}

/// RC-14, MR-01, MR-08: what a RETH may not ask for.
#[test]
fn requests_beyond_the_rights_are_refused_with_a_nak() {
    let _turn = one_at_a_time();
    let Some(mut scene) = scene() else { return };
    let end = scene.memory.addr(0) + MEMORY as u64;
    let rkey = scene.rkey;
    let other_pd = scene.client.alloc_pd();
    let (_, _, other_rkey) = scene.client.reg_mr(other_pd, scene.memory.addr(0), MEMORY as u64);
    let first = scene.memory.addr(0);
    let cases = [
        (
            "2^31 + 1 bytes",
            Opcode::RcReadRequest,
            Reth { va: first, rkey: Rkey(rkey), length: (1 << 31) + 1 },
            NakCode::InvalidRequest,
        ),
        ("one byte late", Opcode::RcWriteOnly, Reth { va: end - 3, rkey: Rkey(rkey), length: 4 }, NakCode::RemoteAccessError),
        ("an unknown key", Opcode::RcWriteOnly, Reth { va: first, rkey: Rkey(!rkey), length: 4 }, NakCode::RemoteAccessError),
        (
            "another domain",
            Opcode::RcWriteOnly,
            Reth { va: first, rkey: Rkey(other_rkey), length: 4 },
            NakCode::RemoteAccessError,
        ),
        (
            "a wrapping range",
            Opcode::RcReadRequest,
            Reth { va: u64::MAX - 3, rkey: Rkey(rkey), length: 16 },
            NakCode::RemoteAccessError,
        ),
        (
            "a length that the packet has not",
            Opcode::RcWriteOnly,
            Reth { va: first, rkey: Rkey(rkey), length: 8 },
            NakCode::InvalidRequest,
        ),
    ];
    for (about, opcode, reth, expected) in cases {
        let payload: &[u8] = if opcode == Opcode::RcReadRequest { &[] } else { &[1; 4] };
        let bth = scene.peer.bth(opcode, PSN);
        scene.peer.send(&scene.peer.packet(&Headers { reth: Some(reth), ..headers(bth) }, payload));
        assert_eq!(nak(&scene, about), expected, "{about}");
        assert_eq!(scene.client.qp_state(scene.qp.handle), state::ERR, "{about}");
        assert!(scene.memory.read(0, MEMORY).iter().all(|&byte| byte == 0), "{about}: nothing is written");
        scene.reconnect();
    }
    scene.write_works(PSN, 8);
}

/// RC-10: one NAK per gap; the packet that fills it is taken, and a duplicate is acknowledged but not executed again.
#[test]
fn a_gap_gives_one_nak_and_a_duplicate_one_acknowledgement() {
    let _turn = one_at_a_time();
    let Some(scene) = scene() else { return };
    for late in [PSN + 2, PSN + 3, PSN + 4] {
        scene.peer.send(&scene.write_only(late, &[1; 64]));
    }
    let (aeth, psn) = scene.peer.aeth();
    assert_eq!((aeth.syndrome, psn), (Syndrome::Nak(NakCode::PsnSequenceError), PSN));
    scene.peer.silence("the rest beyond a gap");
    scene.write_works(PSN, 2);
    scene.memory.write(0, &[0x77; 64]);
    scene.peer.send(&scene.write_only(PSN, &[2; 64]));
    assert!(matches!(scene.peer.aeth().0.syndrome, Syndrome::Ack { .. }));
    assert_eq!(scene.memory.read(0, 64), [0x77; 64], "a duplicate WRITE is not executed again");
    scene.write_works(PSN + 1, 3);
}

/// RC-07 and RC-08: a repeated atomic is answered with the value of its first execution as long as the responder remembers it,
/// and not at all after that; either way memory changes once per request.
#[test]
fn repeated_atomics_are_executed_once() {
    /// What the queue pair remembers at most, by `max_dest_rd_atomic`.
    const REMEMBERED: u32 = 4;
    let _turn = one_at_a_time();
    let Some(scene) = scene() else { return };
    let add = |n: u32| {
        let atomic = Some(AtomicEth { va: scene.memory.addr(0), rkey: Rkey(scene.rkey), swap_add: 1 << (8 * n), compare: 0 });
        scene.peer.packet(&Headers { atomic, ..headers(scene.peer.bth(Opcode::RcFetchAdd, PSN + n)) }, &[])
    };
    // Request `n` raises byte `n` of the word; this is the word after `n` requests.
    let after = |n: u32| u64::from_le_bytes(std::array::from_fn(|byte| u8::from((byte as u32) < n)));
    let word = || u64::from_ne_bytes(scene.memory.read(0, 8).try_into().expect("8 bytes"));
    for n in 0..=REMEMBERED {
        scene.peer.send(&add(n));
        assert_eq!(scene.peer.answer().atomic_ack, Some(after(n)), "request {n}");
    }
    for n in 1..=REMEMBERED {
        scene.peer.send(&add(n));
        assert_eq!(scene.peer.answer().atomic_ack, Some(after(n)), "request {n} again");
    }
    scene.peer.send(&add(0));
    scene.peer.silence("an atomic that is too old to be remembered");
    assert_eq!(word(), after(REMEMBERED + 1));
    assert_eq!(scene.client.qp_state(scene.qp.handle), state::RTS);
    scene.write_works(PSN + REMEMBERED + 1, 5);
}

/// A stranger's packets with the right numbers but another address do not reach the connection.
#[test]
fn a_stranger_cannot_write_into_a_connection() {
    let _turn = one_at_a_time();
    let Some(scene) = scene() else { return };
    let stranger_ip = "192.0.2.77";
    scene.netns.ip(0, &format!("addr add {stranger_ip}/24 dev wire"));
    let mut stranger = RawPeer::new(scene.netns.name(0), stranger_ip, NetnsPair::IPV4[1]);
    stranger.dest_qpn = scene.qp.qpn;
    let before = scene.dropped();
    stranger.send(&stranger.write_only(PSN, scene.memory.addr(0), scene.rkey, &[9; 64]));
    stranger.silence("a packet of a stranger");
    assert_eq!(scene.dropped(), before + 1);
    assert_eq!(scene.memory.read(0, 64), [0; 64]);
    scene.write_works(PSN, 4);
}
