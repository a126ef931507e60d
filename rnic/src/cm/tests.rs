//! Two connection managers over a network in virtual time that loses, doubles and delays datagrams.

mod single;

use super::*;
use alloc::vec;
use roce::wire::cm::reason;

const A: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 1));
const B: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 2));
const PORT: u16 = 7174;
const MS: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Default)]
struct Faults {
    /// Per cent.
    loss: u64,
    duplication: u64,
    /// Longest extra delay in milliseconds.
    jitter: u64,
}

/// What becomes of one message.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Lost,
    Doubled,
    /// By so much more than usual.
    Late(Duration),
}

struct Net {
    cms: [Cm; 2],
    now: Instant,
    faults: Faults,
    rng: Rng,
    queue: BTreeMap<(Instant, u64), Datagram>,
    sequence: u64,
    /// Sequence number of a datagram to be lost.
    lose: Option<u64>,
    /// Fates of the next messages with these attribute IDs (low bytes), in the order of the list.
    fates: Vec<(u8, Fate)>,
    log: [Vec<CmEvent>; 2],
}

impl Net {
    fn new(seed: u64, faults: Faults) -> Net {
        Net {
            cms: [Cm::new(1, seed), Cm::new(2, seed)],
            now: Instant::ZERO,
            faults,
            rng: Rng::new(seed),
            queue: BTreeMap::new(),
            sequence: 0,
            lose: None,
            fates: vec![],
            log: [vec![], vec![]],
        }
    }

    fn listener(&mut self, space: PortSpace, backlog: u32) -> EndpointId {
        let (id, port) = self.cms[1].bind(space, None, PORT, false).unwrap();
        assert_eq!(port, PORT);
        self.cms[1].listen(id, backlog).unwrap();
        id
    }

    fn connect(&mut self, space: PortSpace, offer: &Offer, private_data: &[u8]) -> EndpointId {
        let (id, _) = self.cms[0].bind(space, None, 0, false).unwrap();
        let to = ConnectTo {
            local: A,
            remote: B,
            port: PORT,
            transport: Transport::Rc,
            path_mtu: Mtu::B1024,
            ack_timeout: 16,
            traffic_class: 0,
            private_data,
        };
        self.cms[0].connect(self.now, id, &to, offer).unwrap();
        id
    }

    fn chance(&mut self, per_cent: u64) -> bool {
        self.rng.next_u64() % 100 < per_cent
    }

    fn take_outputs(&mut self) {
        for side in 0..2 {
            while let Some(datagram) = self.cms[side].poll_transmit() {
                assert_eq!(datagram.src, [A, B][side]);
                let planned = self.fates.iter().position(|(kind, _)| *kind == datagram.bytes[17]);
                let fate = planned.map(|at| self.fates.remove(at).1);
                let is_doubled = self.chance(self.faults.duplication) || matches!(fate, Some(Fate::Doubled));
                for _ in 0..if is_doubled { 2 } else { 1 } {
                    self.sequence += 1;
                    let is_lost = self.lose == Some(self.sequence) || matches!(fate, Some(Fate::Lost));
                    if self.chance(self.faults.loss) || is_lost {
                        continue;
                    }
                    let jitter = if self.faults.jitter > 0 { self.rng.next_u64() % self.faults.jitter } else { 0 };
                    let late = if let Some(Fate::Late(by)) = fate { by } else { Duration::ZERO };
                    let at = self.now + MS + MS * jitter as u32 + late;
                    self.queue.insert((at, self.sequence), datagram.clone());
                }
            }
            while let Some(event) = self.cms[side].poll_event() {
                self.log[side].push(event);
            }
        }
    }

    /// Goes on until `done`, or until nothing is to come before `limit` has passed.
    fn run(&mut self, limit: Duration, mut done: impl FnMut(&Net) -> bool) -> bool {
        let end = self.now + limit;
        loop {
            self.take_outputs();
            if done(self) {
                return true;
            }
            let arrival = self.queue.keys().next().map(|(at, _)| *at);
            let next = arrival.into_iter().chain(self.cms.iter().filter_map(Cm::poll_timeout)).min();
            let Some(next) = next.filter(|&next| next <= end) else {
                self.now = end;
                return false;
            };
            self.now = next;
            while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let datagram = entry.remove();
                let to = usize::from(datagram.dst == B);
                self.cms[to].handle_mad(self.now, datagram.src, datagram.dst, &datagram.bytes);
            }
            self.cms.iter_mut().for_each(|cm| cm.handle_timeout(self.now));
        }
    }

    fn settle(&mut self) {
        self.run(Duration::from_secs(400), |_| false);
    }

    /// Runs until the next event of a side, and takes it.
    fn next(&mut self, side: usize) -> CmEvent {
        assert!(self.run(Duration::from_secs(300), |net| !net.log[side].is_empty()), "no event of side {side}");
        self.log[side].remove(0)
    }

    fn next_request(&mut self) -> (EndpointId, ConnectRequest) {
        match self.next(1) {
            CmEvent { endpoint, kind: CmEventKind::ConnectRequest(request) } => (endpoint, *request),
            other => panic!("{other:?} instead of a request"),
        }
    }

    /// A connection, both ends known.
    fn connected(&mut self) -> [EndpointId; 2] {
        let active = self.connect(PortSpace::Tcp, &offer(0x11), b"hello");
        let (passive, _) = self.next_request();
        self.cms[1].accept(self.now, passive, &offer(0x22), b"welcome").unwrap();
        let response = self.next(0);
        assert!(matches!(response.kind, CmEventKind::ConnectResponse { .. }), "{response:?}");
        self.cms[0].establish(active).unwrap();
        assert_eq!(self.next(1), CmEvent { endpoint: passive, kind: CmEventKind::Established });
        [active, passive]
    }
}

fn offer(qpn: u32) -> Offer {
    Offer {
        qpn: Qpn::new(qpn),
        starting_psn: Psn::new(qpn + 1000),
        responder_resources: 3,
        initiator_depth: 4,
        flow_control: true,
        retry_count: 5,
        rnr_retry_count: 6,
        srq: false,
    }
}

fn kinds(log: &[CmEvent]) -> Vec<CmEventKind> {
    log.iter().map(|event| event.kind.clone()).collect()
}

#[test]
fn both_sides_learn_of_each_other_and_part() {
    let mut net = Net::new(1, Faults::default());
    let listener = net.listener(PortSpace::Tcp, 0);
    let active = net.connect(PortSpace::Tcp, &offer(0x11), b"hello");
    let (passive, request) = net.next_request();
    assert_eq!((request.listener, request.local, request.remote), (listener, B, A));
    assert_eq!((request.peer, request.path_mtu, request.ack_timeout), (offer(0x11), Mtu::B1024, 16));
    assert!(EPHEMERAL.contains(&request.remote_port));
    assert_eq!((&request.private_data[..5], request.private_data.len()), (&b"hello"[..], 56));
    assert!(request.private_data[5..].iter().all(|byte| *byte == 0));
    net.cms[1].accept(net.now, passive, &offer(0x22), &[7; 196]).unwrap();
    match net.next(0).kind {
        CmEventKind::ConnectResponse { peer, private_data } => {
            // A reply has no retry count.
            assert_eq!(peer, Offer { retry_count: 0, ..offer(0x22) });
            assert_eq!(private_data, [7; 196]);
        }
        other => panic!("{other:?}"),
    }
    net.cms[0].establish(active).unwrap();
    assert_eq!(net.next(1).kind, CmEventKind::Established);
    net.cms[1].disconnect(net.now, passive).unwrap();
    assert_eq!(net.next(0).kind, CmEventKind::Disconnected);
    net.cms[0].disconnect(net.now, active).expect("a program may always say so after the event");
    net.settle();
    assert_eq!(kinds(&net.log[0]), [CmEventKind::TimewaitExit]);
    assert_eq!(kinds(&net.log[1]), [CmEventKind::Disconnected, CmEventKind::TimewaitExit]);
    net.cms[0].destroy(net.now, active);
    net.cms[1].destroy(net.now, passive);
    net.cms[1].destroy(net.now, listener);
    assert_eq!((net.cms[0].endpoints(), net.cms[1].endpoints()), (0, 0));
    assert_eq!(net.cms.each_ref().map(Cm::poll_timeout), [None, None]);
}

#[test]
fn a_program_may_refuse_with_words() {
    let mut net = Net::new(2, Faults::default());
    net.listener(PortSpace::Tcp, 0);
    net.connect(PortSpace::Tcp, &offer(0x11), b"");
    let (passive, _) = net.next_request();
    let too_long = CmError::PrivateData { len: 149, limit: 148 };
    assert_eq!(net.cms[1].reject(net.now, passive, &[1; 149]), Err(too_long));
    net.cms[1].reject(net.now, passive, b"no").unwrap();
    match net.next(0).kind {
        CmEventKind::Rejected { reason, private_data } => {
            assert_eq!((reason, &private_data[..3], private_data.len()), (reason::CONSUMER, &b"no\0"[..], 148));
        }
        other => panic!("{other:?}"),
    }
    let state = net.cms[1].accept(net.now, passive, &offer(1), b"");
    assert!(matches!(state, Err(CmError::State(_))), "{state:?}");
}

#[test]
fn nobody_there_and_too_many_there() {
    let mut net = Net::new(3, Faults::default());
    net.connect(PortSpace::Tcp, &offer(0x11), b"");
    match net.next(0).kind {
        CmEventKind::Rejected { reason, .. } => assert_eq!(reason, reason::INVALID_SERVICE_ID),
        other => panic!("{other:?}"),
    }
    net.listener(PortSpace::Tcp, 2);
    for qpn in 0x20..0x23 {
        net.connect(PortSpace::Tcp, &offer(qpn), b"");
    }
    let (first, _) = net.next_request();
    net.next_request();
    match net.next(0).kind {
        CmEventKind::Rejected { reason, .. } => assert_eq!(reason, reason::NO_RESOURCES),
        other => panic!("{other:?}"),
    }
    net.cms[1].reject(net.now, first, b"").unwrap();
    net.connect(PortSpace::Tcp, &offer(0x30), b"");
    net.next_request();
}

#[test]
fn any_one_datagram_may_be_lost() {
    for lost in 1..=6 {
        let mut net = Net::new(4, Faults::default());
        net.listener(PortSpace::Tcp, 0);
        net.lose = Some(lost);
        let [active, _] = net.connected();
        net.cms[0].disconnect(net.now, active).unwrap();
        net.settle();
        for side in 0..2 {
            assert_eq!(kinds(&net.log[side]), [CmEventKind::Disconnected, CmEventKind::TimewaitExit], "{lost}, side {side}");
        }
    }
}

#[test]
fn a_dead_peer_is_unreachable_in_the_end() {
    let mut net = Net::new(5, Faults { loss: 100, ..Faults::default() });
    let active = net.connect(PortSpace::Tcp, &offer(0x11), b"");
    let started = net.now;
    assert_eq!(net.next(0), CmEvent { endpoint: active, kind: CmEventKind::Unreachable });
    assert_eq!(net.now - started, coded(RESPONSE_TIMEOUT, RESPONSE_TIMEOUT) * (u32::from(MAX_RETRIES) + 1));
    net.faults.loss = 0;
    net.listener(PortSpace::Tcp, 0);
    net.connect(PortSpace::Tcp, &offer(0x11), b"");
    let (passive, _) = net.next_request();
    net.faults.loss = 100;
    net.cms[1].accept(net.now, passive, &offer(0x22), b"").unwrap();
    assert_eq!(net.next(1), CmEvent { endpoint: passive, kind: CmEventKind::Unreachable });
}

#[test]
fn a_slow_program_is_waited_for() {
    let mut net = Net::new(6, Faults::default());
    net.listener(PortSpace::Tcp, 0);
    let active = net.connect(PortSpace::Tcp, &offer(0x11), b"");
    let (passive, _) = net.next_request();
    net.run(Duration::from_secs(60), |_| false);
    assert_eq!(net.log, [vec![], vec![]], "neither gives up, and the request comes once");
    net.cms[1].accept(net.now, passive, &offer(0x22), b"").unwrap();
    net.next(0);
    net.run(Duration::from_secs(60), |_| false);
    assert_eq!(net.log, [vec![], vec![]]);
    net.cms[0].establish(active).unwrap();
    assert_eq!(net.next(1).kind, CmEventKind::Established);
}

#[test]
fn a_late_copy_of_a_refused_request_is_not_a_new_one() {
    let mut net = Net::new(7, Faults::default());
    net.listener(PortSpace::Tcp, 0);
    net.connect(PortSpace::Tcp, &offer(0x11), b"");
    net.take_outputs();
    let copy = net.queue.values().next().expect("the request is on its way").clone();
    let (passive, _) = net.next_request();
    net.cms[1].reject(net.now, passive, b"").unwrap();
    net.cms[1].destroy(net.now, passive);
    net.next(0);
    net.cms[1].handle_mad(net.now, copy.src, copy.dst, &copy.bytes);
    net.run(Duration::from_secs(1), |_| false);
    assert_eq!(net.log, [vec![], vec![]]);
}

#[test]
fn a_peer_that_has_forgotten_its_connection_can_come_back() {
    let mut net = Net::new(8, Faults::default());
    net.listener(PortSpace::Tcp, 0);
    let [_, passive] = net.connected();
    net.cms[0] = Cm::new(1, 99);
    net.connect(PortSpace::Tcp, &offer(0x11), b"");
    match net.next(0).kind {
        CmEventKind::Rejected { reason, .. } => assert_eq!(reason, reason::STALE_CONNECTION),
        other => panic!("{other:?}"),
    }
    assert_eq!(net.next(1), CmEvent { endpoint: passive, kind: CmEventKind::Disconnected });
    net.connect(PortSpace::Tcp, &offer(0x11), b"");
    net.next_request();
}

#[test]
fn a_forgotten_connection_ends_at_once() {
    let mut net = Net::new(9, Faults::default());
    net.listener(PortSpace::Tcp, 0);
    let [_, passive] = net.connected();
    net.cms[0] = Cm::new(1, 99);
    let before = net.now;
    net.cms[1].disconnect(net.now, passive).unwrap();
    assert_eq!(net.next(1).kind, CmEventKind::Disconnected);
    assert!(net.now - before < Duration::from_secs(1), "the first DREQ is answered");
}

#[test]
fn datagram_services_answer() {
    let mut net = Net::new(10, Faults::default());
    let asked = net.connect(PortSpace::Udp, &offer(0), b"who");
    assert_eq!(net.next(0), CmEvent { endpoint: asked, kind: CmEventKind::NoService { status: 1 } });
    net.listener(PortSpace::Udp, 0);
    let asked = net.connect(PortSpace::Udp, &offer(0), b"who");
    let (passive, request) = net.next_request();
    assert_eq!((request.space, &request.private_data[..4], request.private_data.len()), (PortSpace::Udp, &b"who\0"[..], 180));
    // The answer is lost, the question repeated.
    net.lose = Some(net.sequence + 1);
    net.cms[1].serve(net.now, passive, &DatagramService { qpn: Qpn::new(5), qkey: 6 }, b"me").unwrap();
    match net.next(0) {
        CmEvent { endpoint, kind: CmEventKind::Resolved { qpn, qkey, private_data } } => {
            assert_eq!((endpoint, qpn, qkey, &private_data[..3]), (asked, Qpn::new(5), 6, &b"me\0"[..]));
        }
        other => panic!("{other:?}"),
    }
    let asked = net.connect(PortSpace::Udp, &offer(0), b"who");
    let (passive, _) = net.next_request();
    net.cms[1].reject(net.now, passive, b"").unwrap();
    assert_eq!(net.next(0), CmEvent { endpoint: asked, kind: CmEventKind::NoService { status: 2 } });
    net.settle();
    assert_eq!(net.log, [vec![], vec![]]);
}

#[test]
fn ports_are_taken_once_unless_shared() {
    let mut cm = Cm::new(1, 1);
    let (first, _) = cm.bind(PortSpace::Tcp, Some(A), PORT, false).unwrap();
    assert_eq!(cm.bind(PortSpace::Tcp, None, PORT, false), Err(CmError::PortInUse(PORT)));
    assert_eq!(cm.bind(PortSpace::Tcp, Some(A), PORT, true), Err(CmError::PortInUse(PORT)));
    cm.bind(PortSpace::Tcp, Some(B), PORT, false).expect("another address");
    cm.bind(PortSpace::Udp, None, PORT, false).expect("another space");
    cm.destroy(Instant::ZERO, first);
    let (shared, _) = cm.bind(PortSpace::Tcp, Some(A), PORT, true).unwrap();
    let (other, _) = cm.bind(PortSpace::Tcp, Some(A), PORT, true).unwrap();
    cm.listen(shared, 1).unwrap();
    assert_eq!(cm.listen(other, 1), Err(CmError::PortInUse(PORT)));
    assert_eq!(cm.bind(PortSpace::Tcp, Some(A), PORT, true), Err(CmError::PortInUse(PORT)), "somebody listens");
    let given: BTreeSet<u16> = (0..1000).map(|_| cm.bind(PortSpace::Tcp, None, 0, false).unwrap().1).collect();
    assert!(given.len() == 1000 && given.iter().all(|port| EPHEMERAL.contains(port)));
}

#[test]
fn whatever_the_network_does_connections_begin_and_end_once() {
    for seed in 0..300 {
        let faults = Faults { loss: 20, duplication: 20, jitter: 1500 };
        let mut net = Net::new(seed, faults);
        let listener = net.listener(PortSpace::Tcp, 0);
        let active = net.connect(PortSpace::Tcp, &offer(0x11), b"hello");
        let (passive, _) = net.next_request();
        net.cms[1].accept(net.now, passive, &offer(0x22), b"").unwrap();
        assert!(matches!(net.next(0).kind, CmEventKind::ConnectResponse { .. }), "seed {seed}");
        net.cms[0].establish(active).unwrap();
        assert_eq!(net.next(1).kind, CmEventKind::Established, "seed {seed}");
        let who = (seed % 2) as usize;
        net.cms[who].disconnect(net.now, [active, passive][who]).unwrap();
        if seed % 3 == 0 {
            net.cms[1 - who].disconnect(net.now, [passive, active][who]).unwrap();
        }
        net.settle();
        for side in 0..2 {
            let log = kinds(&net.log[side]);
            assert_eq!(log, [CmEventKind::Disconnected, CmEventKind::TimewaitExit], "seed {seed}, side {side}");
        }
        net.cms[0].destroy(net.now, active);
        net.cms[1].destroy(net.now, passive);
        net.cms[1].destroy(net.now, listener);
        assert_eq!((net.cms[0].endpoints(), net.cms[1].endpoints()), (0, 0), "seed {seed}");
    }
}

#[test]
fn giving_up_at_any_moment_leaves_nothing() {
    for seed in 0..200 {
        let mut net = Net::new(seed, Faults { loss: 10, duplication: 20, jitter: 50 });
        let listener = net.listener(PortSpace::Tcp, 0);
        let mut active = vec![];
        let mut passive = vec![];
        for step in 0..40 {
            if step % 4 == 0 {
                active.push(net.connect(PortSpace::Tcp, &offer(0x100 + step), b""));
            }
            let span = Duration::from_micros(net.rng.next_u64() % 3_000_000);
            net.run(span, |_| false);
            for event in core::mem::take(&mut net.log[1]) {
                if let CmEventKind::ConnectRequest(_) = event.kind {
                    passive.push(event.endpoint);
                    if net.chance(70) {
                        // The peer may have given up meanwhile.
                        let _ = net.cms[1].accept(net.now, event.endpoint, &offer(0x999), b"");
                    }
                }
            }
            for event in core::mem::take(&mut net.log[0]) {
                if matches!(event.kind, CmEventKind::ConnectResponse { .. }) && net.chance(70) {
                    // It may have been destroyed just now.
                    let _ = net.cms[0].establish(event.endpoint);
                }
            }
            for (side, ids) in [&mut active, &mut passive].into_iter().enumerate() {
                if !ids.is_empty() && net.rng.next_u64().is_multiple_of(3) {
                    let at = net.rng.next_u64() as usize % ids.len();
                    net.cms[side].destroy(net.now, ids.swap_remove(at));
                }
            }
        }
        active.into_iter().for_each(|id| net.cms[0].destroy(net.now, id));
        net.run(Duration::from_secs(30), |_| false);
        for event in core::mem::take(&mut net.log[1]) {
            if let CmEventKind::ConnectRequest(_) = event.kind {
                passive.push(event.endpoint);
            }
        }
        passive.into_iter().for_each(|id| net.cms[1].destroy(net.now, id));
        net.cms[1].destroy(net.now, listener);
        net.settle();
        assert_eq!((net.cms[0].endpoints(), net.cms[1].endpoints()), (0, 0), "seed {seed}");
        assert!(
            net.cms.iter().all(|cm| cm.requests.is_empty() && cm.peer_qps.is_empty() && cm.ports.is_empty()),
            "seed {seed}"
        );
    }
}

/// Any message at any time: nothing panics, and a peer makes endpoints only as the backlog allows.
#[test]
fn hostile_messages_do_no_harm() {
    let mut net = Net::new(11, Faults::default());
    net.listener(PortSpace::Tcp, 8);
    let [_, passive] = net.connected();
    net.connect(PortSpace::Tcp, &offer(0x31), b"");
    net.take_outputs();
    let seen: Vec<Datagram> = net.queue.values().cloned().collect();
    let mut rng = Rng::new(12);
    for round in 0..20_000 {
        let mut bytes = seen[0].bytes;
        bytes[17] = 0x10 + (rng.next_u64() % 9) as u8;
        for _ in 0..rng.next_u64() % 8 {
            bytes[24 + rng.next_u64() as usize % 232] = rng.next_u64() as u8;
        }
        if round % 2 == 0 {
            bytes[28..32].copy_from_slice(&passive.0.to_be_bytes());
        }
        net.cms[1].handle_mad(net.now, A, B, &bytes);
        while net.cms[1].poll_transmit().is_some() {}
        while let Some(event) = net.cms[1].poll_event() {
            // As programs do with what has ended; requests are left to wait.
            if !matches!(event.kind, CmEventKind::ConnectRequest(_)) {
                net.cms[1].destroy(net.now, event.endpoint);
            }
        }
    }
    assert!(net.cms[1].endpoints() <= 2 + 8, "{} endpoints", net.cms[1].endpoints());
}
