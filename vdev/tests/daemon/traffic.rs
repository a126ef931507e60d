//! Work through the rings, from one client to another.

use std::os::fd::AsRawFd;

use vdev_abi::control::{QpAttr, Reply, Request};
use vdev_abi::copy::Copier;
use vdev_abi::layout::{STAGING_BYTES, STAGING_LKEY, SendEntry, Sge};
use vdev_abi::mapping::Mapping;
use vdev_abi::queue::FLAG_INLINE;

use super::place::Place;
use super::raw::{CAPS, End, OP_FETCH_ADD, OP_READ, OP_SEND, OP_WRITE, OP_WRITE_IMM, Raw, SIGNALED};

fn pair(place: &Place, bytes: usize) -> (End, End) {
    End::pair(&place.socket("a"), &place.socket("b"), bytes)
}

fn write(to: &End, offset: usize) -> SendEntry {
    SendEntry { opcode: OP_WRITE, flags: SIGNALED, remote_addr: to.at(offset), rkey: to.key, ..SendEntry::default() }
}

#[test]
fn writes_of_many_sizes_arrive() {
    let place = Place::with_two_devices();
    let (mut a, b) = pair(&place, 1 << 20);
    for (n, byte) in a.memory.iter_mut().enumerate() {
        *byte = (n * 7 + n / 251) as u8;
    }
    for (wr_id, len) in [0usize, 1, 7, 4096, 65_537, 1 << 20].into_iter().enumerate() {
        let sge = a.sge(0, len as u32);
        a.send(SendEntry { wr_id: wr_id as u64, ..write(&b, 0) }, &[sge]);
        let done = a.cq.wait();
        assert_eq!((done.wr_id, done.status, done.opcode, done.qpn, done.slot), (wr_id as u64, 0, 1, a.qp.qpn, a.qp.slot));
        assert_eq!(done.queue_index, wr_id as u32);
        // Reading what the daemon wrote behind the compiler's back.
        let got = unsafe_copy(&b.memory[..len]);
        assert!(got == a.memory[..len], "{len} bytes differ");
    }
}

/// A copy of memory that the daemon has written to through the kernel.
fn unsafe_copy(memory: &[u8]) -> Vec<u8> {
    // SAFETY: reads within a live slice; volatile, as it was changed by other means than this program's code.
    memory.iter().map(|byte| unsafe { std::ptr::read_volatile(byte) }).collect()
}

#[test]
fn read_and_atomic_bring_the_peers_bytes() {
    let place = Place::with_two_devices();
    let (mut a, mut b) = pair(&place, 8192);
    b.memory[..5].copy_from_slice(b"hello");
    b.memory[4096..4104].copy_from_slice(&41u64.to_ne_bytes());
    let sge = a.sge(100, 5);
    a.send(SendEntry { opcode: OP_READ, ..write(&b, 0) }, &[sge]);
    assert_eq!(a.cq.wait().status, 0);
    assert_eq!(unsafe_copy(&a.memory[100..105]), b"hello");
    let sge = a.sge(200, 8);
    a.send(SendEntry { opcode: OP_FETCH_ADD, compare_add: 1, ..write(&b, 4096) }, &[sge]);
    assert_eq!(a.cq.wait().status, 0);
    assert_eq!(unsafe_copy(&a.memory[200..208]), 41u64.to_ne_bytes());
    assert_eq!(unsafe_copy(&b.memory[4096..4104]), 42u64.to_ne_bytes());
}

#[test]
fn inline_and_staged_data_need_no_region() {
    let place = Place::with_two_devices();
    let (mut a, b) = pair(&place, 4096);
    let entry = SendEntry { flags: SIGNALED | FLAG_INLINE, inline_len: 5, ..write(&b, 10) };
    let at = a.qp.send.push_send(&a.qp.memory, &entry, std::iter::empty());
    // SAFETY: the source is a live array elsewhere.
    unsafe { a.qp.memory.copy_in(Copier::new(), at, b"quick".as_ptr(), 5) }.unwrap();
    a.qp.send.publish(&a.qp.memory);
    a.raw.ring(a.qp.slot);
    assert_eq!(a.cq.wait().status, 0);
    assert_eq!(unsafe_copy(&b.memory[10..15]), b"quick");

    let (reply, fds) = a.raw.call_with(&Request::CreateStaging, &[]).unwrap();
    assert_eq!(reply, Reply::Staging);
    let staging = Mapping::map(std::os::fd::AsFd::as_fd(&fds[0]), STAGING_BYTES).unwrap();
    // SAFETY: as above.
    unsafe { staging.copy_in(Copier::new(), STAGING_BYTES - 6, b"staged".as_ptr(), 6) }.unwrap();
    let sge = Sge { addr: STAGING_BYTES as u64 - 6, length: 6, lkey: STAGING_LKEY };
    a.send(write(&b, 20), &[sge]);
    assert_eq!(a.cq.wait().status, 0);
    assert_eq!(unsafe_copy(&b.memory[20..26]), b"staged");
    // A queue pair made later knows the buffer too.
    assert_eq!(a.raw.errno(&Request::CreateStaging), libc::EEXIST);
}

#[test]
fn a_receive_posted_before_the_send_is_always_found() {
    let place = Place::with_two_devices();
    let (mut a, mut b) = pair(&place, 4096);
    for round in 0..2000u64 {
        let sge = b.sge(0, 64);
        b.raw.post_recv(&mut b.qp, round, &[sge]);
        // Sometimes after both clients have been quiet for long enough to be armed.
        if round % 500 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let sge = a.sge(0, 8);
        a.send(SendEntry { wr_id: round, opcode: OP_SEND, ..write(&b, 0) }, &[sge]);
        assert_eq!(a.cq.wait().status, 0);
        let got = b.cq.wait();
        assert_eq!((got.wr_id, got.status, got.is_recv, got.byte_len), (round, 0, 1, 8));
    }
    assert_eq!(place.device("a")["counters"]["rcvd_rnr_err"], 0);
    assert_eq!(place.device("b")["counters"]["send_rnr_err"], 0);
    let latency = place.device("a")["latency"].clone();
    let of = |name: &str| latency[name].as_f64().unwrap_or_else(|| panic!("{latency}"));
    assert!(of("measured") >= 100.0 && of("p50_us") > 0.0 && of("p99_us") >= of("p50_us"), "{latency}");
    assert!(place.http("GET", "/metrics", "").1.contains("vrdma_message_latency_seconds{device=\"a\",quantile=\"0.99\"}"));
    assert_eq!(place.device("b").get("latency"), None, "it has sent nothing");
}

#[test]
fn immediate_data_and_a_local_error_are_reported() {
    let place = Place::with_two_devices();
    let (mut a, mut b) = pair(&place, 4096);
    b.raw.post_recv(&mut b.qp, 5, &[]);
    let sge = a.sge(0, 16);
    a.send(SendEntry { opcode: OP_WRITE_IMM, imm: [1, 2, 3, 4], ..write(&b, 0) }, &[sge]);
    let got = b.cq.wait();
    assert_eq!((got.status, got.imm, got.flags & 2, got.byte_len), (0, [1, 2, 3, 4], 2, 16));
    assert_eq!(a.cq.wait().status, 0);
    // A key of the peer is not ours: local protection error, then everything is flushed.
    let foreign = Sge { lkey: b.key, ..a.sge(0, 16) };
    a.send(SendEntry { wr_id: 8, ..write(&b, 0) }, &[foreign]);
    a.send(SendEntry { wr_id: 9, flags: 0, ..write(&b, 0) }, &[sge]);
    let (first, second) = (a.cq.wait(), a.cq.wait());
    assert_eq!((first.wr_id, first.status, first.byte_len), (8, 4, 0));
    assert_eq!((second.wr_id, second.status), (9, 5));
    assert_eq!(query(&a).qp_state, 6);
}

fn query(end: &End) -> QpAttr {
    match end.raw.call(&Request::QueryQp { qp: end.qp.handle }) {
        Ok(Reply::QpAttr(attr)) => attr,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_was_posted_before_a_change_of_state_is_flushed_or_forgotten() {
    let place = Place::with_two_devices();
    let (mut a, _b) = pair(&place, 4096);
    let sge = a.sge(0, 8);
    for wr_id in 0..3 {
        a.raw.post_recv(&mut a.qp, wr_id, &[sge]);
    }
    let attr = QpAttr { qp_state: 6, ..QpAttr::default() };
    a.raw.call(&Request::ModifyQp { qp: a.qp.handle, mask: 1, attr }).unwrap();
    for wr_id in 0..3 {
        let flushed = a.cq.wait();
        assert_eq!((flushed.wr_id, flushed.status, flushed.is_recv), (wr_id, 5, 1));
    }
    // Posting in ERR is flushed as well.
    a.raw.post_recv(&mut a.qp, 3, &[sge]);
    assert_eq!(a.cq.wait().wr_id, 3);
    // In RESET nothing comes of it.
    let attr = QpAttr { qp_state: 0, ..QpAttr::default() };
    a.raw.call(&Request::ModifyQp { qp: a.qp.handle, mask: 1, attr }).unwrap();
    a.raw.post_recv(&mut a.qp, 4, &[sge]);
    a.raw.call(&Request::ModifyQp { qp: a.qp.handle, mask: 1, attr }).unwrap();
    assert!(a.cq.poll().is_none());
    // The rings go on where they were.
    let attr = QpAttr { qp_state: 1, access: 15, port: 1, ..QpAttr::default() };
    a.raw.call(&Request::ModifyQp { qp: a.qp.handle, mask: 0x39, attr }).unwrap();
    a.raw.post_recv(&mut a.qp, 5, &[sge]);
    let attr = QpAttr { qp_state: 6, ..QpAttr::default() };
    a.raw.call(&Request::ModifyQp { qp: a.qp.handle, mask: 1, attr }).unwrap();
    let flushed = a.cq.wait();
    assert_eq!((flushed.wr_id, flushed.queue_index), (5, 0));
}

/// One event per arming, and none lost between arming and polling.
#[test]
fn armed_queue_gives_one_event_for_each_arming() {
    let place = Place::with_two_devices();
    let (a, b) = pair(&place, 4096);
    let (reply, fds) = a.raw.call_with(&Request::CreateChannel, &[]).unwrap();
    let Reply::Channel(channel) = reply else { panic!("{reply:?}") };
    let mut cq = a.raw.cq(64, Some(channel), 0xABCD);
    let mut qp = a.raw.qp(a.pd, cq.handle, CAPS);
    let peer = b.raw.qp(b.pd, b.cq.handle, CAPS);
    a.raw.connect_qp(&qp, peer.qpn, b.raw.info.gids[0]);
    b.raw.connect_qp(&peer, qp.qpn, a.raw.info.gids[0]);
    for round in 0..500 {
        cq.consumer.arm(&cq.ring, false);
        // Two completions, one event.
        let sge = a.sge(0, 8);
        for _ in 0..2 {
            a.raw.post_send(&mut qp, write(&b, 0), &[sge]);
        }
        let mut event = [0; 64];
        let len = nix::unistd::read(&fds[0], &mut event).unwrap();
        assert_eq!(event[..len], 0xABCDu64.to_ne_bytes(), "round {round}");
        cq.wait();
        cq.wait();
    }
    assert_eq!(a.raw.errno(&Request::DestroyChannel { channel }), libc::EBUSY);
    a.raw.call(&Request::DestroyQp { qp: qp.handle }).unwrap();
    a.raw.call(&Request::DestroyCq { cq: cq.handle }).unwrap();
    a.raw.call(&Request::DestroyChannel { channel }).unwrap();
    // The daemon has let go of the pipe.
    assert_eq!(nix::unistd::read(&fds[0], &mut [0; 8]).unwrap(), 0);
}

/// A channel that is not read holds back only its own events, and gives them once it is read.
#[test]
fn full_channel_delivers_later() {
    let place = Place::with_two_devices();
    let (a, b) = pair(&place, 4096);
    let (reply, fds) = a.raw.call_with(&Request::CreateChannel, &[]).unwrap();
    let Reply::Channel(channel) = reply else { panic!("{reply:?}") };
    // The smallest pipe: one page, 512 events.
    // SAFETY: plain system call.
    assert!(unsafe { libc::fcntl(fds[0].as_raw_fd(), libc::F_SETPIPE_SZ, 4096) } >= 4096);
    let mut cq = a.raw.cq(64, Some(channel), 1);
    let mut qp = a.raw.qp(a.pd, cq.handle, CAPS);
    let peer = b.raw.qp(b.pd, b.cq.handle, CAPS);
    a.raw.connect_qp(&qp, peer.qpn, b.raw.info.gids[0]);
    b.raw.connect_qp(&peer, qp.qpn, a.raw.info.gids[0]);
    let sge = a.sge(0, 8);
    for _ in 0..600 {
        cq.consumer.arm(&cq.ring, false);
        a.raw.post_send(&mut qp, write(&b, 0), &[sge]);
        cq.wait();
    }
    // 512 lie in the pipe, one waits for the others' sake.
    let mut events = 0;
    while events < 513 {
        let mut buf = [0; 4096];
        events += nix::unistd::read(&fds[0], &mut buf).unwrap() / 8;
    }
    assert_eq!(events, 513);
    // Work for others went on meanwhile, and the channel works again.
    cq.consumer.arm(&cq.ring, false);
    a.raw.post_send(&mut qp, write(&b, 0), &[sge]);
    assert_eq!(nix::unistd::read(&fds[0], &mut [0; 8]).unwrap(), 8);
}

/// Overrun hits the queue and its queue pairs, and is told once.
#[test]
fn overrun_is_an_event_of_its_queue_alone() {
    let place = Place::with_two_devices();
    let (mut a, b) = pair(&place, 4096);
    let raw = Raw::connect(&place.socket("a"));
    let pd = raw.pd();
    let mut cq = raw.cq(2, None, 0xC0);
    let mut qp = raw.qp(pd, cq.handle, CAPS);
    let peer = b.raw.qp(b.pd, b.cq.handle, CAPS);
    raw.connect_qp(&qp, peer.qpn, b.raw.info.gids[0]);
    b.raw.connect_qp(&peer, qp.qpn, raw.info.gids[0]);
    for _ in 0..5 {
        raw.post_send(&mut qp, write(&b, 0), &[]);
    }
    // IBV_EVENT_CQ_ERR with the queue's cookie, IBV_EVENT_QP_FATAL with the queue pair's, and nothing more.
    let mut events = Vec::new();
    while events.len() < 32 {
        let mut record = [0; 64];
        let len = nix::unistd::read(&raw.events, &mut record).unwrap();
        events.extend_from_slice(&record[..len]);
    }
    let fields: Vec<u64> = events.chunks(8).map(|field| u64::from_ne_bytes(field.try_into().unwrap())).collect();
    assert_eq!(fields, [0, 0xC0, 1, 77]);
    assert_eq!(cq.wait().status, 0);
    assert_eq!(cq.wait().status, 0);
    assert!(cq.poll().is_none());
    let sge = a.sge(0, 8);
    a.send(write(&b, 0), &[sge]);
    assert_eq!(a.cq.wait().status, 0);
}

/// What was posted before a completion queue is resized, though nobody rang for it, has completed before: the queue is not made too
/// small for it, and nothing is lost.
#[test]
fn requests_posted_without_a_ring_come_before_a_resize() {
    let place = Place::with_two_devices();
    let (mut a, b) = pair(&place, 4096);
    let sge = a.sge(0, 8);
    for wr_id in 0..4 {
        a.qp.send.push_send(&a.qp.memory, &SendEntry { wr_id, ..write(&b, 0) }, [sge].into_iter());
    }
    a.qp.send.publish(&a.qp.memory);
    assert_eq!(a.raw.errno(&Request::ResizeCq { cq: a.cq.handle, depth: 2 }), libc::EINVAL);
    a.cq = a.raw.resized(&a.cq, 4);
    let done: Vec<(u64, u8)> = std::iter::from_fn(|| a.cq.poll()).map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(done, [(0, 0), (1, 0), (2, 0), (3, 0)]);
}
