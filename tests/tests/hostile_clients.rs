//! Hostile clients of a device socket: messages that cannot be, rings that cannot be, keys and handles of others. Each costs at
//! most its own connection; other clients go on, and nothing stays behind.

use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};
use tests::verbs::Buffer;
use tests::{ControlClient, Daemon, HandQp, Program, Streams, need_root, one_at_a_time};
use vdev_abi::control::{ABI_VERSION, MAX_FDS, MAX_MESSAGE, QpCaps, Reply, Request, SharedRange, encode_request};
use vdev_abi::layout::{ContextPage, CqLayout, QpLayout, STAGING_LKEY, SendEntry, Sge};
use vdev_abi::mapping::Mapping;

const CLIENT: &str = env!("CARGO_BIN_EXE_verbs-client");
const LIMIT: Duration = Duration::from_secs(30);
const CAPS: QpCaps = QpCaps { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 };

fn daemon() -> Daemon {
    let mut daemon = Daemon::start();
    for (number, device) in ["a", "b", "c"].into_iter().enumerate() {
        daemon.add_device(device, &format!("203.0.113.{}", number + 1));
    }
    daemon
}

/// A pair of programs still works.
fn others_work(daemon: &mut Daemon) {
    let mut pair = Streams::start(CLIENT, (daemon, "b"), (None, "c"), "127.0.0.1", &["--count", "20", "--size", "65536"]);
    pair.writer.succeed(LIMIT);
    pair.lender.succeed(LIMIT);
}

fn hello() -> Vec<u8> {
    encode_request(&Request::Hello { abi: ABI_VERSION, program: "hostile".into() }).expect("it is short")
}

#[test]
fn impossible_messages_end_their_connection_only() {
    let _turn = one_at_a_time();
    let mut daemon = daemon();
    let socket = daemon.device_socket("a");
    let (_bystander, _fds) = ControlClient::open(&socket).expect("the device can be opened");
    let before = daemon.open_descriptors();
    let mut first_messages = vec![vec![0xFF; 40], vec![0; MAX_MESSAGE + 1], vec![0x55; 100_000]];
    first_messages.extend((1..hello().len()).map(|len| hello()[..len].to_vec()));
    let mut trailing = hello();
    trailing.push(0);
    first_messages.push(trailing);
    for message in first_messages {
        let client = ControlClient::connect(&socket).expect("the socket accepts");
        client.send(&message, &[]).expect("it can be sent");
        assert!(client.is_ended(), "a first message of {} bytes ends the connection", message.len());
    }
    for message in [vec![0xFF; 3], vec![0; MAX_MESSAGE + 1], hello()[..3].to_vec()] {
        let (client, _fds) = ControlClient::open(&socket).expect("the device can be opened");
        client.send(&message, &[]).expect("it can be sent");
        assert!(client.is_ended(), "a later message of {} bytes ends the connection", message.len());
    }
    // Silence and a half-open connection cost nothing either.
    drop(ControlClient::connect(&socket).expect("the socket accepts"));
    daemon.wait_until_descriptors(before);
    others_work(&mut daemon);
}

#[test]
fn calls_out_of_turn_are_refused_with_a_reason() {
    let _turn = one_at_a_time();
    let mut daemon = daemon();
    let socket = daemon.device_socket("a");
    let client = ControlClient::connect(&socket).expect("the socket accepts");
    // Nothing is granted before the greeting: refused or ended, both are right.
    match client.call(&Request::AllocPd, &[]) {
        Ok((Ok(reply), _)) => panic!("granted before the greeting: {reply:?}"),
        Ok((Err(_), _)) | Err(_) => {}
    }
    let client = ControlClient::connect(&socket).expect("the socket accepts");
    let request = Request::Hello { abi: ABI_VERSION + 1, program: "too new".into() };
    match client.call(&request, &[]) {
        Ok((Err(refusal), _)) => assert!(refusal.message.contains(&ABI_VERSION.to_string()), "{refusal:?}"),
        other => panic!("another version must be refused with a reason, got {other:?}"),
    }
    let (client, _fds) = ControlClient::open(&socket).expect("the device can be opened");
    match client.call(&Request::Hello { abi: ABI_VERSION, program: "again".into() }, &[]) {
        Ok((Ok(reply), _)) => panic!("a second greeting was granted: {reply:?}"),
        Ok((Err(_), _)) | Err(_) => {}
    }
    others_work(&mut daemon);
}

#[test]
fn descriptors_that_nobody_asked_for_are_closed() {
    let _turn = one_at_a_time();
    let mut daemon = daemon();
    let socket = daemon.device_socket("a");
    let before = daemon.open_descriptors();
    let file = std::fs::File::open("/dev/null").expect("/dev/null");
    for count in [1, MAX_FDS, MAX_FDS + 1, 200] {
        let (client, _fds) = ControlClient::open(&socket).expect("the device can be opened");
        let message = encode_request(&Request::AllocPd).expect("it is short");
        client.send(&message, &vec![file.as_raw_fd(); count]).expect("it can be sent");
        let _ = client.receive();
    }
    daemon.wait_until_descriptors(before);
    others_work(&mut daemon);
}

#[test]
fn handles_and_sizes_that_cannot_be_are_refused() {
    let _turn = one_at_a_time();
    let mut daemon = daemon();
    let socket = daemon.device_socket("a");
    let (client, _fds) = ControlClient::open(&socket).expect("the device can be opened");
    let (other, _other_fds) = ControlClient::open(&socket).expect("the device can be opened");
    // Many domains, so that the other's handle has a number of its own.
    let theirs = std::array::from_fn::<_, 9, _>(|_| other.alloc_pd())[8];
    let pd = client.alloc_pd();
    let (cq, _, _memory) = client.create_cq(16);
    let qp = client.create_qp(pd, cq, CAPS);
    let [xrcd, private] = [0, 1].map(|_| match client.granted(&Request::OpenXrcd { create: true, exclusive: false }) {
        (Reply::Handle(xrcd), _) => xrcd,
        other => panic!("OpenXrcd gave {other:?}"),
    });
    let (target, target_qpn) = match client.granted(&Request::CreateXrcTarget { xrcd, cookie: 0 }) {
        (Reply::Qp { qp, qpn, .. }, _) => (qp, qpn),
        other => panic!("CreateXrcTarget gave {other:?}"),
    };
    for handle in [theirs, pd ^ 0x55, u32::MAX, 1 << 31] {
        assert_eq!(client.refused(&Request::DeallocPd { pd: handle }), libc::EINVAL);
        assert_eq!(client.refused(&Request::DestroyCq { cq: handle }), libc::EINVAL);
        assert_eq!(client.refused(&Request::DestroyQp { qp: handle }), libc::EINVAL);
        assert_eq!(client.refused(&Request::QueryQp { qp: handle }), libc::EINVAL);
        assert_eq!(client.refused(&Request::DeregMr { mr: handle }), libc::EINVAL);
        assert_eq!(client.refused(&Request::DestroyChannel { channel: handle }), libc::EINVAL);
        assert_eq!(client.refused(&Request::DestroySrq { srq: handle }), libc::EINVAL);
        assert_eq!(client.refused(&Request::CloseXrcd { xrcd: handle }), libc::EINVAL);
        for (pd, xrcd, cq) in [(handle, xrcd, cq), (pd, handle, cq), (pd, xrcd, handle)] {
            let create = Request::CreateXrcSrq { pd, xrcd, cq, max_wr: 4, max_sge: 1, cookie: 0 };
            assert_eq!(client.refused(&create), libc::EINVAL);
        }
        assert_eq!(client.refused(&Request::CreateXrcTarget { xrcd: handle, cookie: 0 }), libc::EINVAL);
        for (xrcd, qpn) in [(handle, target_qpn), (xrcd, handle), (xrcd, qp.qpn), (private, target_qpn)] {
            assert_eq!(client.refused(&Request::OpenXrcTarget { xrcd, qpn, cookie: 0 }), libc::EINVAL);
        }
        let create = Request::CreateCq { depth: 16, channel: Some(handle), cookie: 0 };
        assert_eq!(client.refused(&create), libc::EINVAL);
        let (pd, send_cq, recv_cq) = (handle, cq, cq);
        let create =
            Request::CreateQp { pd, qp_type: 2, send_cq, recv_cq, srq: None, caps: CAPS, all_signaled: true, cookie: 0 };
        assert_eq!(client.refused(&create), libc::EINVAL);
    }
    for depth in [0, u32::MAX, 1 << 31] {
        assert_eq!(client.refused(&Request::CreateCq { depth, channel: None, cookie: 0 }), libc::EINVAL);
    }
    let impossible: [fn(&mut QpCaps); 5] = [
        |caps| caps.max_send_wr = u32::MAX,
        |caps| caps.max_recv_wr = 1 << 31,
        |caps| caps.max_send_sge = 65536,
        |caps| caps.max_recv_sge = u32::MAX,
        |caps| caps.max_inline_data = u32::MAX,
    ];
    for change in impossible {
        let mut caps = CAPS;
        change(&mut caps);
        let create =
            Request::CreateQp { pd, qp_type: 2, send_cq: cq, recv_cq: cq, srq: None, caps, all_signaled: true, cookie: 0 };
        assert_eq!(client.refused(&create), libc::EINVAL, "{caps:?}");
    }
    // A target is no initiator, and is made of a domain.
    let (send_cq, recv_cq) = (cq, cq);
    let create = Request::CreateQp { pd, qp_type: 10, send_cq, recv_cq, srq: None, caps: CAPS, all_signaled: true, cookie: 0 };
    assert_eq!(client.refused(&create), libc::EOPNOTSUPP);
    let create = Request::CreateQp { pd, qp_type: 9, send_cq, recv_cq, srq: None, caps: CAPS, all_signaled: true, cookie: 0 };
    assert_eq!(client.refused(&create), libc::EINVAL, "an initiator with receives");
    // What is in use stays.
    assert_eq!(client.refused(&Request::CloseXrcd { xrcd }), libc::EBUSY);
    client.granted(&Request::DestroyQp { qp: target });
    client.granted(&Request::CloseXrcd { xrcd });
    assert_eq!(client.refused(&Request::DestroyCq { cq }), libc::EBUSY);
    assert_eq!(client.refused(&Request::DeallocPd { pd }), libc::EBUSY);
    client.granted(&Request::DestroyQp { qp: qp.handle });
    client.granted(&Request::DestroyCq { cq });
    others_work(&mut daemon);
}

#[test]
fn registrations_that_cannot_be_are_refused() {
    let _turn = one_at_a_time();
    let mut daemon = daemon();
    let (client, _fds) = ControlClient::open(&daemon.device_socket("a")).expect("the device can be opened");
    let pd = client.alloc_pd();
    let memory = Buffer::shared(1 << 16).expect("memory");
    let addr = memory.addr(0);
    let plain = |addr, length, iova| Request::RegMr { pd, addr, length, iova, access: 15, shared: Vec::new() };
    let refused = [
        plain(u64::MAX - 100, 4096, addr),
        plain(addr, 4096, u64::MAX - 100),
        plain(addr, u64::MAX, addr),
        plain(0x1000, 4096, 0x1000),
        plain(u64::MAX - 4095, 4096, 0),
        Request::RegMr { pd, addr, length: 4096, iova: addr, access: 2, shared: Vec::new() },
        Request::RegMr { pd, addr, length: 4096, iova: addr, access: 1 << 31, shared: Vec::new() },
    ];
    for request in refused {
        let errno = client.refused(&request);
        assert!([libc::EINVAL, libc::EFAULT, libc::ENOMEM, libc::EOPNOTSUPP].contains(&errno), "{request:?}: {errno}");
    }
    // Buffers of devices: none, two, no such buffer, of nothing, and regions of others.
    let object = nix::sys::memfd::memfd_create(c"buffer", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).expect("memfd");
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    let buffer = |mr, offset, length| Request::RegDmabufMr { mr, pd, offset, length, iova: 0, access: 15 };
    let (fd, null) = (object.as_raw_fd(), null.as_raw_fd());
    for (request, fds, errno) in [
        (buffer(None, 0, 1), vec![], libc::EINVAL),
        (buffer(None, 0, 1), vec![fd, fd], libc::EINVAL),
        (buffer(None, 0, 1), vec![null], libc::EOPNOTSUPP),
        (buffer(None, 0, 1), vec![fd], libc::EINVAL),
        (buffer(None, u64::MAX, u64::MAX), vec![fd], libc::EINVAL),
        (Request::RevokeDmabuf, vec![], libc::EINVAL),
        (Request::RevokeDmabuf, vec![fd, fd], libc::EINVAL),
        (Request::RevokeDmabuf, vec![null], libc::EOPNOTSUPP),
    ] {
        let (answer, _) = client.call(&request, &fds).expect("an answer");
        assert_eq!(answer.expect_err("it is refused").errno, errno, "{request:?} with {fds:?}");
    }
    nix::unistd::ftruncate(&object, 4096).expect("ftruncate");
    let (answer, _) = client.call(&buffer(Some(77), 0, 1), &[fd]).expect("an answer");
    assert_eq!(answer.expect_err("no such region").errno, libc::EINVAL);
    // Longer than any address space: the daemon maps nothing of that kind.
    nix::unistd::ftruncate(&object, 1 << 62).expect("ftruncate");
    let (answer, _) = client.call(&buffer(None, 0, 1), &[fd]).expect("an answer");
    assert_eq!(answer.expect_err("it is too long").errno, libc::ENOMEM);
    // A range of an object that is shorter than it says, and one without the descriptor: no fault may reach the daemon.
    let object = nix::sys::memfd::memfd_create(c"short", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).expect("memfd");
    nix::unistd::ftruncate(&object, 4096).expect("ftruncate");
    for (length, offset) in [(1 << 16, 0), (4096, 1 << 40), (4096, u64::MAX - 10)] {
        let shared = vec![SharedRange { addr, length, offset }];
        let request = Request::RegMr { pd, addr, length, iova: addr, access: 15, shared };
        let message = encode_request(&request).expect("it is short");
        client.send(&message, &[object.as_raw_fd()]).expect("it can be sent");
        // Refused, or taken as ordinary memory of the process: both are safe.
        let _ = client.receive().expect("an answer");
    }
    others_work(&mut daemon);
}

/// HG-08: everything up to the quota, many times; nothing grows.
#[test]
fn quotas_hold_and_nothing_stays() {
    let _turn = one_at_a_time();
    let mut daemon = daemon();
    let socket = daemon.device_socket("a");
    let descriptors = daemon.open_descriptors();
    let mut resident = 0;
    for round in 0..6 {
        let (client, _fds) = ControlClient::open(&socket).expect("the device can be opened");
        let mut pds = 0;
        let refusal = loop {
            match client.call(&Request::AllocPd, &[]).expect("an answer").0 {
                Ok(_) => pds += 1,
                Err(refusal) => break refusal,
            }
            assert!(pds <= 1 << 17, "there is no quota of protection domains");
        };
        assert_eq!(refusal.errno, libc::ENOMEM, "{refusal:?}");
        drop(client);
        let (client, _fds) = ControlClient::open(&socket).expect("the device can be opened");
        let mut cqs = Vec::new();
        while let (Ok(_), fds) = client.call(&Request::CreateCq { depth: 1, channel: None, cookie: 0 }, &[]).expect("an answer")
        {
            cqs.extend(fds);
            if cqs.len() == 200 {
                break;
            }
        }
        drop((client, cqs));
        daemon.wait_until_unused("a", Duration::from_secs(10));
        daemon.wait_until_descriptors(descriptors);
        if round == 2 {
            resident = daemon.resident_bytes();
        }
    }
    let grown = daemon.resident_bytes().saturating_sub(resident);
    assert!(grown < 4 << 20, "the daemon grew by {grown} bytes in 3 rounds");
    others_work(&mut daemon);
}

/// A client that has mapped what it shares with the daemon and may write anything into it.
struct Scribbler {
    client: ControlClient,
    context: Mapping,
    doorbell: std::fs::File,
    rings: Mapping,
    layout: QpLayout,
    completions: Mapping,
    qp: HandQp,
    lkey: u32,
    memory: Buffer,
}

impl Scribbler {
    /// A queue pair connected with itself.
    fn new(daemon: &Daemon) -> Scribbler {
        let (client, mut fds) = ControlClient::open(&daemon.device_socket("a")).expect("the device can be opened");
        let context = Mapping::map(fds[0].as_fd(), ContextPage::BYTES).expect("the context page");
        let doorbell = std::fs::File::from(fds.remove(1));
        let memory = Buffer::private(1 << 16).expect("memory");
        let pd = client.alloc_pd();
        let (_, lkey, _) = client.reg_mr(pd, memory.addr(0), memory.len() as u64);
        let (cq, depth, cq_memory) = client.create_cq(64);
        let completions =
            Mapping::map(cq_memory.as_fd(), CqLayout::new(depth).expect("a depth").bytes).expect("the CQ's memory");
        let qp = client.create_qp(pd, cq, CAPS);
        let layout = QpLayout::new(&qp.caps).expect("sizes");
        let rings = Mapping::map(qp.memory.as_fd(), layout.bytes).expect("the QP's memory");
        let gid = roce::Gid::from("203.0.113.1".parse::<std::net::IpAddr>().expect("an address")).0;
        client.connect_qp(qp.handle, gid, qp.qpn, 0);
        Scribbler { client, context, doorbell, rings, layout, completions, qp, lkey, memory }
    }

    /// Tells the daemon to look.
    fn ring(&self) {
        use std::io::Write;
        // Whether the daemon sleeps is not asked: it may be woken for nothing.
        let _ = vdev_abi::doorbell::Doorbell::of(&self.context).ring(self.qp.doorbell);
        let _ = (&self.doorbell).write_all(&1u64.to_ne_bytes());
    }

    /// Writes one send entry and says that there are so many.
    fn post(&self, entry: &SendEntry, sges: &[Sge], producer: u32) {
        self.rings.write(self.layout.sq_offset, entry);
        for (number, sge) in sges.iter().enumerate() {
            self.rings.write(self.layout.sq_offset + size_of::<SendEntry>() + number * size_of::<Sge>(), sge);
        }
        self.rings.u32_at(QpLayout::SQ_PRODUCER).store(producer, std::sync::atomic::Ordering::Release);
        self.ring();
    }

    /// Waits until the daemon has ended the connection, or the queue pair is in error.
    fn is_stopped(&self, about: &str) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match self.client.call(&Request::QueryQp { qp: self.qp.handle }, &[]) {
                Err(_) => return,
                Ok((Ok(vdev_abi::control::Reply::QpAttr(attr)), _)) if attr.qp_state == tests::verbs::state::ERR => return,
                Ok(_) => {}
            }
            assert!(Instant::now() < deadline, "{about}: the daemon goes on as if nothing were wrong");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn impossible_ring_entries_stop_their_queue_only() {
    let _turn = one_at_a_time();
    let mut daemon = daemon();
    let good = Sge { addr: 0, length: 8, lkey: 0 };
    let write = SendEntry { num_sge: 1, flags: 2, ..SendEntry::default() };
    let cases: [(&str, SendEntry, &[Sge], u32); 8] = [
        ("an index beyond the ring", write, &[good], 17),
        ("an index far beyond", write, &[good], u32::MAX),
        ("an unknown opcode", SendEntry { opcode: 0x7F, ..write }, &[good], 1),
        ("more buffers than fit", SendEntry { num_sge: u16::MAX, ..write }, &[good], 1),
        ("more inline bytes than fit", SendEntry { flags: 8 | 2, inline_len: u32::MAX, ..write }, &[], 1),
        ("an unknown key", write, &[Sge { lkey: 0xDEAD_BEEF, ..good }], 1),
        ("the staging key without a staging buffer", write, &[Sge { lkey: STAGING_LKEY, ..good }], 1),
        ("a message over 2^31 bytes", SendEntry { num_sge: 4, ..write }, &[Sge { length: u32::MAX, ..good }; 4], 1),
    ];
    for (about, entry, sges, producer) in cases {
        let scribbler = Scribbler::new(&daemon);
        let mine = |sge: &Sge| match sge.lkey {
            0 => Sge { addr: scribbler.memory.addr(0), lkey: scribbler.lkey, ..*sge },
            _ => *sge,
        };
        let sges: Vec<Sge> = sges.iter().map(mine).collect();
        scribbler.post(&entry, &sges, producer);
        scribbler.is_stopped(about);
        others_work(&mut daemon);
    }
}

/// DM-08: random bytes over everything that is shared, while another pair of programs runs.
#[test]
fn random_writes_over_shared_memory_harm_nobody_else() {
    let _turn = one_at_a_time();
    let mut daemon = daemon();
    let descriptors = daemon.open_descriptors();
    let mut pair =
        Streams::start(CLIENT, (&mut daemon, "b"), (None, "c"), "127.0.0.1", &["--count", "3000", "--size", "65536"]);
    let mut seed = 0x5EED_u64;
    println!("seed {seed:#x}");
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as u32
    };
    for _ in 0..40 {
        let scribbler = Scribbler::new(&daemon);
        for _ in 0..200 {
            for map in [&scribbler.rings, &scribbler.completions, &scribbler.context] {
                for _ in 0..64 {
                    let at = random() as usize % (map.len() / 4) * 4;
                    map.u32_at(at).store(random(), std::sync::atomic::Ordering::Relaxed);
                }
            }
            // Now and then an index that is possible, so that entries are looked at.
            let produced = scribbler.rings.u32_at(QpLayout::SQ_PRODUCER);
            produced.store(random() % 17, std::sync::atomic::Ordering::Release);
            scribbler.ring();
        }
    }
    pair.writer.succeed(LIMIT);
    pair.lender.succeed(LIMIT);
    daemon.wait_until_unused("a", Duration::from_secs(5));
    drop(pair);
    daemon.wait_until_descriptors(descriptors);
    others_work(&mut daemon);
}

/// Keys of another tenant, ranges that wrap or end too late, missing rights, and all the refusals of verbs calls.
#[test]
fn what_verbs_programs_may_not_do_is_refused() {
    let _turn = one_at_a_time();
    let mut daemon = daemon();
    let mut victim: Program = daemon.run("c", &[CLIENT, "victim"]);
    victim.wait_for_output("keys ", LIMIT);
    let output = victim.output();
    let keys: Vec<&str> = output.trim().split(' ').skip(1).collect();
    let words = ["--foreign-lkey", keys[0], "--foreign-rkey", keys[1], "--foreign-addr", keys[2]];
    let output = daemon.run("a", &[&[CLIENT, "refused"], &words[..]].concat()).succeed(LIMIT);
    assert!(output.contains("of another tenant"), "{output}");
    victim.signal(nix::sys::signal::Signal::SIGTERM);
    let output = victim.succeed(LIMIT);
    assert!(output.contains("OK"), "{output}");
}

/// Memory whose pages never come holds the data path up, as the kernel makes the copy wait; the daemon says for whom, and goes on
/// when that program is gone.
#[test]
fn memory_that_never_comes_is_named() {
    let _turn = one_at_a_time();
    if need_root("userfaultfd") {
        return;
    }
    let mut daemon = daemon();
    let port = tests::matrix::free_port().to_string();
    let mut lender = daemon.run("a", &[CLIENT, "stream", "--listen", &port, "--memory", "stuck"]);
    tests::matrix::wait_until_listening(&mut lender, &port);
    let mut writer = daemon.run("b", &[CLIENT, "stream", "--connect", &format!("127.0.0.1:{port}")]);
    lender.wait_for_output("lending", LIMIT);
    // The first WRITE may still be under way.
    let deadline = Instant::now() + LIMIT;
    let told = loop {
        let listed = daemon.cli(&["dev", "list"]);
        if !listed.status.success() {
            break listed.output;
        }
        assert!(Instant::now() < deadline && lender.is_running(), "nothing is held up: {}", lender.output());
    };
    assert!(told.contains(&format!("process {}", lender.pid())), "the program is named: {told}");
    lender.kill();
    let _ = writer.end(LIMIT);
    others_work(&mut daemon);
}

/// OS-03: registering and freeing many ranges leaves no mapping and no descriptor, here or in the daemon.
#[test]
fn registrations_leave_no_mappings() {
    let _turn = one_at_a_time();
    let mut daemon = daemon();
    let (descriptors, mappings) = (daemon.open_descriptors(), daemon.mappings());
    daemon.run("a", &[CLIENT, "registration", "--count", "4000"]).succeed(Duration::from_secs(300));
    daemon.wait_until_unused("a", Duration::from_secs(5));
    daemon.wait_until_descriptors(descriptors);
    assert!(daemon.mappings() <= mappings + 8, "mappings {mappings} -> {}", daemon.mappings());
}
