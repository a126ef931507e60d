//! Connection management between clients: what a program says and what becomes of its peer, also when it dies or lies.

use std::os::fd::OwnedFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use vdev_abi::cm::{CmEvent, CmEventKind, CmReply, CmRequest, Offer, Peer};
use vdev_abi::control::{Handle, Reply, Request};

use super::place::Place;
use super::raw::Raw;

const TCP: u16 = 0x106;
const PORT: u16 = 7174;

/// A client with an event channel.
struct Program {
    raw: Raw,
    channel: Handle,
    pipe: OwnedFd,
}

impl Program {
    fn new(place: &Place, device: &str) -> Program {
        let raw = Raw::connect(&place.socket(device));
        let (reply, mut fds) = raw.call_with(&Request::Cm(CmRequest::CreateChannel), &[]).unwrap();
        let Reply::Cm(CmReply::Channel(channel)) = reply else { panic!("{reply:?}") };
        Program { raw, channel, pipe: fds.pop().unwrap() }
    }

    fn call(&self, request: CmRequest) -> CmReply {
        match self.raw.call(&Request::Cm(request)) {
            Ok(Reply::Cm(reply)) => reply,
            other => panic!("{other:?}"),
        }
    }

    fn errno(&self, request: CmRequest) -> i32 {
        self.raw.errno(&Request::Cm(request))
    }

    fn bind(&self, port: u16) -> Handle {
        let bind = CmRequest::Bind { channel: self.channel, space: TCP, address: None, port, reuse: false };
        let CmReply::Endpoint { endpoint, .. } = self.call(bind) else { panic!() };
        endpoint
    }

    fn listen(&self) -> Handle {
        let endpoint = self.bind(PORT);
        self.call(CmRequest::Listen { endpoint, backlog: 0 });
        endpoint
    }

    fn connect(&self, to: [u8; 16]) -> Handle {
        let endpoint = self.bind(0);
        self.call(CmRequest::Connect { endpoint, to: self.peer(to), offer: offer(0x11), private_data: b"hello".to_vec() });
        endpoint
    }

    fn peer(&self, remote: [u8; 16]) -> Peer {
        let local = self.raw.info.gids[0];
        Peer { local, remote, port: PORT, unreliable: false, path_mtu: 3, ack_timeout: 1, traffic_class: 0 }
    }

    /// The next event, waiting for it as a program does.
    fn next(&self) -> CmEvent {
        use std::os::fd::AsFd;
        loop {
            if let CmReply::Event(Some(event)) = self.call(CmRequest::NextEvent { channel: self.channel }) {
                return event;
            }
            let ready = poll(&mut [PollFd::new(self.pipe.as_fd(), PollFlags::POLLIN)], PollTimeout::from(20_000_u16)).unwrap();
            assert_eq!(ready, 1, "no event came");
            let mut tick = [0];
            nix::unistd::read(&self.pipe, &mut tick).unwrap();
        }
    }

    /// The endpoint of the next request.
    fn next_request(&self) -> Handle {
        let event = self.next();
        assert!(matches!(event.kind, CmEventKind::ConnectRequest { .. }), "{event:?}");
        event.endpoint
    }
}

fn offer(qpn: u32) -> Offer {
    Offer { qpn, starting_psn: 5, retry_count: 7, rnr_retry_count: 7, ..Offer::default() }
}

fn connected(server: &Program, client: &Program) -> [Handle; 2] {
    let active = client.connect(server.raw.info.gids[0]);
    let passive = server.next_request();
    server.call(CmRequest::Accept { endpoint: passive, offer: offer(0x22), private_data: Vec::new() });
    let event = client.next();
    assert!(matches!(event.kind, CmEventKind::ConnectResponse { offer, .. } if offer.qpn == 0x22), "{event:?}");
    client.call(CmRequest::Establish { endpoint: active });
    assert_eq!(server.next(), CmEvent { endpoint: passive, kind: CmEventKind::Established });
    [passive, active]
}

#[test]
fn a_peer_that_dies_disconnects_at_once() {
    let place = Place::with_two_devices();
    let server = Program::new(&place, "a");
    server.listen();
    // With the same queue pair number each time: nothing of the earlier connection is in the way of the next.
    for _ in 0..20 {
        let client = Program::new(&place, "b");
        let [passive, _] = connected(&server, &client);
        drop(client);
        assert_eq!(server.next(), CmEvent { endpoint: passive, kind: CmEventKind::Disconnected });
        server.call(CmRequest::Destroy { endpoint: passive });
    }
}

#[test]
fn a_listener_that_dies_refuses_what_waits() {
    let place = Place::with_two_devices();
    let server = Program::new(&place, "a");
    server.listen();
    let client = Program::new(&place, "b");
    // One that the server has seen, and one that it has not.
    let first = client.connect(server.raw.info.gids[0]);
    server.next_request();
    let second = client.connect(server.raw.info.gids[0]);
    let to = server.raw.info.gids[0];
    drop(server);
    let mut refused: Vec<Handle> = [client.next(), client.next()]
        .into_iter()
        .map(|event| {
            assert!(matches!(event.kind, CmEventKind::Rejected { .. }), "{event:?}");
            event.endpoint
        })
        .collect();
    refused.sort_unstable();
    let mut expected = [first, second];
    expected.sort_unstable();
    assert_eq!(refused, expected);
    client.connect(to);
    assert!(matches!(client.next().kind, CmEventKind::Rejected { reason: 8, .. }), "nobody listens any more");
    // The port is free again.
    Program::new(&place, "a").listen();
}

#[test]
fn ending_a_listener_refuses_what_was_not_seen() {
    let place = Place::with_two_devices();
    let server = Program::new(&place, "a");
    let listener = server.listen();
    let client = Program::new(&place, "b");
    let active = client.connect(server.raw.info.gids[0]);
    server.call(CmRequest::Destroy { endpoint: listener });
    let event = client.next();
    assert_eq!(event.endpoint, active);
    assert!(matches!(event.kind, CmEventKind::Rejected { .. }), "{event:?}");
    assert_eq!(server.call(CmRequest::NextEvent { channel: server.channel }), CmReply::Event(None));
    server.call(CmRequest::DestroyChannel { channel: server.channel });
}

#[test]
fn lies_are_refused() {
    let place = Place::with_two_devices();
    let server = Program::new(&place, "a");
    server.listen();
    let client = Program::new(&place, "b");
    let to = client.peer(server.raw.info.gids[0]);
    let (channel, endpoint) = (client.channel, client.bind(0));
    let connect = |to: Peer, len: usize| CmRequest::Connect { endpoint, to, offer: offer(1), private_data: vec![0; len] };
    let foreign = server.raw.info.gids[0];
    for (errno, request) in [
        (libc::EADDRNOTAVAIL, connect(Peer { local: foreign, ..to }, 0)),
        (libc::EINVAL, connect(Peer { remote: [0; 16], ..to }, 0)),
        (libc::EINVAL, connect(Peer { remote: [0xFF; 16], ..to }, 0)),
        (libc::EINVAL, connect(Peer { path_mtu: 9, ..to }, 0)),
        (libc::EINVAL, connect(to, 57)),
        (libc::EINVAL, CmRequest::Accept { endpoint, offer: offer(1), private_data: Vec::new() }),
        (libc::EINVAL, CmRequest::Serve { endpoint, qpn: 1, qkey: 1, private_data: Vec::new() }),
        (libc::EINVAL, CmRequest::Establish { endpoint }),
        (libc::EINVAL, CmRequest::Disconnect { endpoint }),
        (libc::EINVAL, CmRequest::Reject { endpoint, private_data: Vec::new() }),
        (libc::EINVAL, CmRequest::Listen { endpoint: endpoint ^ 1, backlog: 1 }),
        (libc::EINVAL, CmRequest::Move { endpoint, channel: channel ^ 1 }),
        (libc::EINVAL, CmRequest::NextEvent { channel: u32::MAX }),
        (libc::EINVAL, CmRequest::Destroy { endpoint: u32::MAX }),
        (libc::EBUSY, CmRequest::DestroyChannel { channel }),
        (libc::EPROTONOSUPPORT, CmRequest::Bind { channel, space: 2, address: None, port: 0, reuse: false }),
        (libc::EADDRNOTAVAIL, CmRequest::Bind { channel, space: TCP, address: Some(foreign), port: 0, reuse: false }),
    ] {
        assert_eq!(client.errno(request.clone()), errno, "{request:?}");
    }
    // None of it has done harm.
    connected(&server, &client);
}

#[test]
fn endpoints_are_bounded() {
    let place = Place::with_two_devices();
    let program = Program::new(&place, "a");
    let bind = CmRequest::Bind { channel: program.channel, space: TCP, address: None, port: 0, reuse: false };
    let mut made = 0;
    while program.raw.call(&Request::Cm(bind.clone())).is_ok() {
        made += 1;
        assert!(made <= 1 << 16, "no bound is felt");
    }
    assert_eq!(program.errno(bind), libc::ENOMEM);
    // Another client has its own.
    Program::new(&place, "a").bind(0);
}
