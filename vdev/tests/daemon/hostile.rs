//! What the library would never say: each is answered or ends that client alone.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use vdev_abi::control::{ABI_VERSION, MAX_MESSAGE, QpAttr, QpCaps, Reply, Request, SharedRange, encode_request};
use vdev_abi::layout::{ContextPage, CqLayout, QpLayout, STAGING_BYTES, STAGING_LKEY, SendEntry, Sge};
use vdev_abi::queue::FLAG_INLINE;

use super::place::Place;
use super::raw::{ALL_ACCESS, CAPS, End, OP_BIND_WINDOW, OP_READ, OP_SEND, OP_WRITE, Raw, SIGNALED, dial, receive, send_bytes};

/// A pair that must not notice anything.
struct Bystanders(End, End);

impl Bystanders {
    fn new(place: &Place) -> Bystanders {
        let (a, b) = End::pair(&place.socket("a"), &place.socket("b"), 4096);
        Bystanders(a, b)
    }

    fn check(&mut self) {
        let Bystanders(a, b) = self;
        let sge = a.sge(0, 64);
        a.send(
            SendEntry { opcode: OP_WRITE, flags: SIGNALED, remote_addr: b.at(0), rkey: b.key, ..Default::default() },
            &[sge],
        );
        assert_eq!(a.cq.wait().status, 0);
    }
}

fn hello() -> Vec<u8> {
    encode_request(&Request::Hello { abi: ABI_VERSION, program: "x".into() }).unwrap()
}

#[test]
fn broken_messages_end_the_connection() {
    let place = Place::with_two_devices();
    let mut bystanders = Bystanders::new(&place);
    let mut cut =
        encode_request(&Request::RegMr { pd: 1, addr: 2, length: 3, iova: 4, access: 5, shared: Vec::new() }).unwrap();
    cut.pop();
    let mut long = hello();
    long.push(0);
    for message in [vec![0xFF; 10], cut, long, vec![7; MAX_MESSAGE], vec![0; MAX_MESSAGE + 1], vec![1; 100_000]] {
        for greeted in [false, true] {
            let socket = dial(&place.socket("a"));
            if greeted {
                send_bytes(&socket, &hello(), &[]).unwrap();
                assert!(matches!(receive(&socket), Some((Ok(Reply::Device(_)), _))));
            }
            send_bytes(&socket, &message, &[]).unwrap();
            assert!(receive(&socket).is_none(), "{} bytes", message.len());
        }
    }
    bystanders.check();
    place.wait_for_clients("a", 1);
}

#[test]
fn unwanted_descriptors_are_closed_and_too_many_end_the_connection() {
    let place = Place::with_two_devices();
    let raw = Raw::connect(&place.socket("a"));
    let (read, write) = nix::unistd::pipe().unwrap();
    let fds = vec![write.as_fd(); 16];
    raw.call_with(&Request::QueryPort, &fds).unwrap();
    let too_many = vec![write.as_fd(); 17];
    send_bytes(&raw.socket, &encode_request(&Request::QueryPort).unwrap(), &too_many).unwrap();
    assert!(raw.is_ended());
    drop((fds, too_many));
    drop(write);
    // All copies are closed.
    assert_eq!(nix::unistd::read(&read, &mut [0]).unwrap(), 0);
}

#[test]
fn first_message_has_to_be_hello_of_this_version() {
    let place = Place::with_two_devices();
    let socket = dial(&place.socket("a"));
    send_bytes(&socket, &encode_request(&Request::AllocPd).unwrap(), &[]).unwrap();
    assert_eq!(receive(&socket).unwrap().0.unwrap_err().errno, libc::EPROTO);
    let other = Request::Hello { abi: ABI_VERSION + 1, program: String::new() };
    send_bytes(&socket, &encode_request(&other).unwrap(), &[]).unwrap();
    let refusal = receive(&socket).unwrap().0.unwrap_err();
    assert_eq!(refusal.errno, libc::EPROTO);
    assert!(refusal.message.contains(&(ABI_VERSION + 1).to_string()), "{refusal}");
    send_bytes(&socket, &hello(), &[]).unwrap();
    assert!(receive(&socket).unwrap().0.is_ok());
    send_bytes(&socket, &hello(), &[]).unwrap();
    assert_eq!(receive(&socket).unwrap().0.unwrap_err().errno, libc::EPROTO);
}

#[test]
fn client_that_leaves_during_its_hello_leaves_nothing() {
    let place = Place::with_two_devices();
    for _ in 0..500 {
        let socket = dial(&place.socket("a"));
        send_bytes(&socket, &hello(), &[]).unwrap();
    }
    // Context pages mapped by the daemon; other tests of this process have a few of their own.
    super::place::wait_until("the context pages are gone", || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains("vrdma-context")).count() < 150
    });
    Raw::connect(&place.socket("a"));
}

#[test]
fn client_that_does_not_read_its_answers_is_ended() {
    let place = Place::with_two_devices();
    let mut bystanders = Bystanders::new(&place);
    let socket = dial(&place.socket("a"));
    send_bytes(&socket, &hello(), &[]).unwrap();
    let request = encode_request(&Request::QueryPort).unwrap();
    // Ends when the daemon has closed the connection.
    while send_bytes(&socket, &request, &[]).is_ok() {}
    bystanders.check();
    place.wait_for_clients("a", 1);
}

#[test]
fn handles_of_others_freed_and_guessed_name_nothing() {
    let place = Place::with_two_devices();
    let mut bystanders = Bystanders::new(&place);
    let owner = &bystanders.0;
    let raw = Raw::connect(&place.socket("a"));
    let freed = raw.pd();
    raw.call(&Request::DeallocPd { pd: freed }).unwrap();
    let (pd, cq, qp, mr) = (owner.pd, owner.cq.handle, owner.qp.handle, owner.mr);
    let reg = |pd| Request::RegMr { pd, addr: 0, length: 0, iova: 0, access: 0, shared: Vec::new() };
    let create = |pd, cq| Request::CreateQp {
        pd,
        qp_type: 2,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        caps: CAPS,
        all_signaled: false,
        cookie: 0,
    };
    let attr = QpAttr { qp_state: 1, ..QpAttr::default() };
    let mine = raw.pd();
    for request in [
        Request::DeallocPd { pd: freed },
        Request::DeregMr { mr },
        Request::DestroyCq { cq },
        Request::DestroyQp { qp },
        Request::QueryQp { qp },
        Request::ModifyQp { qp, mask: 1, attr },
        Request::QueryQp { qp: u32::MAX },
        Request::DestroyChannel { channel: 0 },
        Request::DestroyCq { cq: 1 << 31 },
        reg(freed),
        create(mine, cq),
        create(freed, cq),
        Request::CreateCq { depth: 4, channel: Some(3), cookie: 0 },
    ] {
        assert_eq!(raw.errno(&request), libc::EINVAL, "{request:?}");
    }
    let _ = pd;
    bystanders.check();
}

#[test]
fn sizes_beyond_the_limits_are_refused_and_cost_nothing() {
    let place = Place::with_two_devices();
    let raw = Raw::connect(&place.socket("a"));
    let pd = raw.pd();
    let cq = raw.cq(1, None, 0).handle;
    for depth in [0, raw.info.max_cqe + 1, u32::MAX] {
        assert_eq!(raw.errno(&Request::CreateCq { depth, channel: None, cookie: 0 }), libc::EINVAL, "{depth}");
    }
    raw.cq(raw.info.max_cqe, None, 0);
    let create = |qp_type, caps| Request::CreateQp {
        pd,
        qp_type,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        caps,
        all_signaled: false,
        cookie: 0,
    };
    let limit = raw.info.max_qp_wr;
    for caps in [
        QpCaps { max_send_wr: limit + 1, ..CAPS },
        QpCaps { max_recv_wr: u32::MAX, ..CAPS },
        QpCaps { max_send_sge: 17, ..CAPS },
        QpCaps { max_inline_data: u32::MAX, ..CAPS },
    ] {
        assert_eq!(raw.errno(&create(2, caps)), libc::EINVAL, "{caps:?}");
    }
    assert_eq!(raw.errno(&create(8, CAPS)), libc::EOPNOTSUPP);
    let most = QpCaps { max_send_wr: limit, max_recv_wr: limit, ..CAPS };
    // Rings are bounded per connection: the largest queue pairs come to an end, with a number that says why.
    let mut made = 0;
    let errno = loop {
        match raw.call(&create(2, most)) {
            Ok(_) => made += 1,
            Err(refusal) => break refusal.errno,
        }
        assert!(made < 4096);
    };
    assert_eq!(errno, libc::ENOMEM);
    assert!(made > 50, "{made}");
}

#[test]
fn regions_that_wrap_or_lack_rights_are_refused() {
    let place = Place::with_two_devices();
    let raw = Raw::connect(&place.socket("a"));
    let pd = raw.pd();
    let memory = vec![0u8; 4096];
    let addr = memory.as_ptr().addr() as u64;
    let reg = |addr, length, access, shared| Request::RegMr { pd, addr, length, iova: addr, access, shared };
    assert_eq!(raw.errno(&reg(u64::MAX - 10, 100, ALL_ACCESS, Vec::new())), libc::EINVAL);
    assert_eq!(raw.errno(&reg(addr, u64::MAX, ALL_ACCESS, Vec::new())), libc::EINVAL);
    // Remote write without local write.
    assert_eq!(raw.errno(&reg(addr, 4096, 2, Vec::new())), libc::EINVAL);
    assert_eq!(raw.errno(&reg(addr, 4096, 1 << 10, Vec::new())), libc::EINVAL);
    assert_eq!(raw.errno(&reg(addr, 1 << 46, ALL_ACCESS, Vec::new())), libc::EFAULT);
    // A shared range without its descriptor.
    let range = SharedRange { addr, length: 4096, offset: 0 };
    assert_eq!(raw.errno(&reg(addr, 4096, ALL_ACCESS, vec![range])), libc::EINVAL);
    // A descriptor of something else is no way into it: the memory is reached as what it is.
    let null = std::fs::File::open("/dev/null").unwrap();
    let (reply, _) = raw.call_with(&reg(addr, 4096, ALL_ACCESS, vec![range]), &[null.as_fd()]).unwrap();
    assert!(matches!(reply, Reply::Region { mapped: false, .. }), "{reply:?}");
}

/// A connected end on device a whose rings a test spoils.
fn spoiled(place: &Place, spoil: impl FnOnce(&mut End, &End)) {
    let mut bystanders = Bystanders::new(place);
    let (mut a, b) = End::pair(&place.socket("a"), &place.socket("b"), 4096);
    spoil(&mut a, &b);
    a.raw.ring(a.qp.slot);
    assert!(a.raw.is_ended());
    bystanders.check();
    // Its objects are gone although it still holds its rings.
    place.wait_for_clients("a", 1);
    assert_eq!(nix::unistd::read(&a.raw.events, &mut [0; 16]).unwrap(), 0);
}

#[test]
fn impossible_indices_end_the_client() {
    let place = Place::with_two_devices();
    for value in [17, u32::MAX, 1 << 31] {
        spoiled(&place, |a, _| a.qp.memory.u32_at(QpLayout::SQ_PRODUCER).store(value, Ordering::Release));
        spoiled(&place, |a, _| a.qp.memory.u32_at(QpLayout::RQ_PRODUCER).store(value, Ordering::Release));
    }
}

#[test]
fn impossible_consumer_index_ends_the_client_when_the_ring_is_full() {
    let place = Place::with_two_devices();
    spoiled(&place, |a, b| {
        a.cq.ring.u32_at(CqLayout::CONSUMER).store(1 << 31, Ordering::Release);
        let write = SendEntry { opcode: OP_WRITE, flags: SIGNALED, remote_addr: b.at(0), rkey: b.key, ..Default::default() };
        // The ring has 64 entries and the queue 16, so some wait for others; the daemon may end the client at any of them.
        for n in 0..65u32 {
            a.raw.post_send(&mut a.qp, write, &[]);
            let mut waited = 0;
            while n < 64 && a.cq.consumer.peek(&a.cq.ring, n).is_none() && waited < 10_000 {
                waited += 1;
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    });
}

#[test]
fn entries_without_meaning_end_the_client() {
    let place = Place::with_two_devices();
    let base = SendEntry { flags: SIGNALED, ..Default::default() };
    let staging = |addr, length| Sge { addr, length, lkey: STAGING_LKEY };
    let cases: Vec<(SendEntry, Option<Sge>)> = vec![
        (SendEntry { opcode: 10, ..base }, None),
        // A window bound with rights that none has; a request without a message, with a buffer.
        (SendEntry { opcode: OP_BIND_WINDOW, swap: 1 << 48, ..base }, None),
        (SendEntry { opcode: OP_BIND_WINDOW, ..base }, Some(Sge { addr: 0, length: 1, lkey: 1 })),
        (SendEntry { opcode: 255, ..base }, None),
        (SendEntry { opcode: OP_SEND, flags: 0x80, ..base }, None),
        (SendEntry { opcode: OP_WRITE, flags: FLAG_INLINE, inline_len: 65, ..base }, None),
        (SendEntry { opcode: OP_WRITE, flags: FLAG_INLINE, inline_len: u32::MAX, ..base }, None),
        (SendEntry { opcode: OP_READ, flags: FLAG_INLINE, inline_len: 8, ..base }, None),
        // There is no staging buffer yet.
        (SendEntry { opcode: OP_SEND, ..base }, Some(staging(0, 1))),
    ];
    for (entry, sge) in cases {
        spoiled(&place, |a, _| {
            a.qp.send.push_send(&a.qp.memory, &SendEntry { num_sge: u16::from(sge.is_some()), ..entry }, sge.into_iter());
            a.qp.send.publish(&a.qp.memory);
        });
    }
    for (addr, length) in [(STAGING_BYTES as u64, 1), (STAGING_BYTES as u64 - 1, 2), (u64::MAX, 1), (0, u32::MAX)] {
        spoiled(&place, |a, _| {
            a.raw.call(&Request::CreateStaging).unwrap();
            a.send(SendEntry { opcode: OP_SEND, ..base }, &[staging(addr, length)]);
        });
    }
    // More buffers than the queue pair has, in either ring.
    spoiled(&place, |a, _| {
        a.qp.send.push_send(&a.qp.memory, &SendEntry { opcode: OP_SEND, num_sge: 5, ..base }, std::iter::empty());
        a.qp.send.publish(&a.qp.memory);
    });
    spoiled(&place, |a, _| {
        let entry = vdev_abi::layout::RecvEntry { wr_id: 0, num_sge: u32::MAX, reserved: 0 };
        a.qp.recv.push_recv(&a.qp.memory, &entry, std::iter::empty());
        a.qp.recv.publish(&a.qp.memory);
    });
}

#[test]
fn random_bytes_over_all_shared_memory_hurt_nobody_else() {
    let place = Place::with_two_devices();
    let mut bystanders = Bystanders::new(&place);
    let mut state = 0x1234_5678_9ABC_DEF1u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..20 {
        let (a, _b) = End::pair(&place.socket("a"), &place.socket("b"), 4096);
        for _ in 0..300 {
            for (memory, len) in
                [(&a.raw.page, ContextPage::BYTES), (&a.qp.memory, a.qp.memory.len()), (&a.cq.ring, a.cq.ring.len())]
            {
                let at = random() as usize % (len / 8) * 8;
                memory.u64_at(at).store(random(), Ordering::Relaxed);
            }
            a.qp.memory.u32_at(QpLayout::SQ_PRODUCER).store(random() as u32 % 20, Ordering::Release);
            let _ = nix::unistd::write(&a.raw.bell, &1u64.to_ne_bytes());
        }
        bystanders.check();
    }
    drop(bystanders);
    place.wait_for_clients("a", 0);
    place.wait_for_clients("b", 0);
}

/// The doorbell's eventfd is shared: the daemon must not depend on how the client left it.
#[test]
fn doorbell_made_blocking_and_emptied_stops_nobody() {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let place = Place::with_two_devices();
    let mut bystanders = Bystanders::new(&place);
    let raw = Raw::connect(&place.socket("a"));
    fcntl(&raw.bell, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    for _ in 0..200 {
        nix::unistd::write(&raw.bell, &1u64.to_ne_bytes()).unwrap();
        nix::unistd::read(&raw.bell, &mut [0; 8]).unwrap();
        bystanders.check();
    }
    raw.pd();
}
