//! Traffic of guests: with each other, with containers, and the interrupts that tell of it. Every byte is compared.

use super::driver::{Body, CE, Cqe, Driver, INLINE, Qp, Region, SE, Sge, mad_body, send_body, write_body};
use super::place::Place;
use super::raw::{self, End};
use super::vmm::{PAGE, add};
use vdev_abi::layout::SendEntry;

const MIB: u64 = 1 << 20;
const WRITE: u8 = 0;
const READ: u8 = 1;
const SEND: u8 = 2;
const SEND_IMM: u8 = 3;
const WRITE_IMM: u8 = 9;
const SEND_INV: u8 = 13;
const CAS: u8 = 17;
const FAA: u8 = 18;

pub fn gid(ip: &str) -> [u8; 16] {
    let octets = ip.parse::<std::net::Ipv4Addr>().unwrap().octets();
    let mut gid = [0; 16];
    gid[10..12].fill(0xFF);
    gid[12..].copy_from_slice(&octets);
    gid
}

/// A guest with a region, a completion queue and a queue pair.
pub struct Side {
    pub driver: Driver,
    pub cq: super::driver::Cq,
    pub qp: Qp,
    pub region: Region,
    pub key: u32,
}

/// Address of the first byte of each region; not at the start of a page.
pub const IOVA: u64 = 0x7f12_3456_7890;

pub fn side(place: &Place, name: &str, ip: &str, bytes: u64) -> Side {
    let socket = add(place, name, ip);
    let mut driver = Driver::start(&socket, 16 * MIB);
    driver.set_gid(0, [0xFE; 16]);
    driver.set_gid(1, gid(ip));
    let region = Region::scattered(&driver, IOVA, bytes);
    driver.register(1, 5, &region).unwrap();
    let cq = driver.create_cq(1, 1, 6);
    // Both guests call it 7.
    let qp = driver.create_qp(7, 5, 1);
    Side { driver, cq, qp, region, key: 1 << 8 }
}

/// Two guests, connected.
pub fn pair(place: &Place, bytes: u64) -> (Side, Side) {
    let (ip_a, ip_b) = ("203.0.113.1", "203.0.113.2");
    let (mut a, mut b) = (side(place, "a", ip_a, bytes), side(place, "b", ip_b, bytes));
    a.driver.connect(7, 7, gid(ip_b));
    b.driver.connect(7, 7, gid(ip_a));
    (a, b)
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 251 + seed * 13) as u8).collect()
}

impl Side {
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge(IOVA + offset, len, self.key)
    }

    pub fn send(&mut self, opcode: u8, flags: u64, count: u8, body: &[u8]) {
        self.driver.post_send(&mut self.qp, opcode, flags, count, body);
    }

    pub fn wait(&mut self) -> Cqe {
        self.driver.wait(&mut self.cq)
    }

    fn fill(&self, offset: u64, bytes: &[u8]) {
        self.region.write(&self.driver, offset, bytes);
    }

    fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        self.region.read(&self.driver, offset, len)
    }
}

#[test]
fn writes_of_many_sizes_arrive() {
    let place = Place::new();
    let (mut a, b) = pair(&place, 3 * MIB);
    let bytes = pattern(3 << 20, 1);
    a.fill(0, &bytes);
    let mut index = 0;
    for len in [0usize, 1, 7, 4096, 65_537, 3 << 20] {
        let body = write_body([0; 4], (IOVA, b.key), &[a.sge(0, len as u32)]);
        a.send(WRITE, CE, 1, &body);
        let done = a.wait();
        let expected = Cqe { opcode: WRITE, receive: false, status: 0, index, qpn: 7, imm: 0, len: len as u32, sender: 0 };
        assert_eq!(done, expected);
        // The index is that of the first block: a WRITE with one buffer has two.
        index += 2;
        assert!(b.bytes(0, len) == bytes[..len], "{len} bytes differ");
    }
    assert_eq!(place.device("a")["counters"]["local_messages"], 6);
}

#[test]
fn every_operation_does_what_it_says() {
    let place = Place::new();
    let (mut a, mut b) = pair(&place, 64 << 10);
    a.fill(0, &pattern(16 << 10, 2));
    // SEND, with immediate data, with invalidation; WRITE with immediate data. Receives are taken in order.
    for n in 0..4 {
        b.driver.post_recv(&mut b.qp, Sge(IOVA + n * 4096, 4096, 1 << 8));
    }
    let extra = Region::scattered(&b.driver, 0x1000, PAGE);
    b.driver.register(9, 5, &extra).unwrap();
    let gather = [a.sge(0, 100), a.sge(1000, 200), a.sge(5000, 300)];
    a.send(SEND, CE | SE, 3, &send_body([0; 4], &gather));
    a.send(SEND_IMM, CE, 1, &send_body([1, 2, 3, 4], &[a.sge(0, 10)]));
    a.send(SEND_INV, CE, 1, &send_body((9u32 << 8).to_le_bytes(), &[a.sge(0, 20)]));
    let body = write_body([5, 6, 7, 8], (IOVA + 0x8000, b.key), &[a.sge(0, 30)]);
    a.send(WRITE_IMM, CE, 1, &body);
    for (n, (opcode, index)) in [(SEND, 0), (SEND_IMM, 2), (SEND_INV, 3), (WRITE_IMM, 4)].into_iter().enumerate() {
        let done = a.wait();
        assert_eq!((done.opcode, done.index, done.status), (opcode, index, 0), "completion {n}");
    }
    let receive = |opcode, index, imm, len| Cqe { opcode, receive: true, status: 0, index, qpn: 7, imm, len, sender: 0 };
    assert_eq!(b.wait(), receive(4, 0, 0, 600));
    assert_eq!(b.wait(), receive(12, 1, 0x0102_0304, 10));
    // The key that was invalidated comes big-endian, hence swapped here.
    assert_eq!(b.wait(), receive(6, 2, (9u32 << 8).swap_bytes(), 20));
    assert_eq!(b.wait(), receive(5, 3, 0x0506_0708, 30));
    let sent = pattern(16 << 10, 2);
    assert_eq!(b.bytes(0, 600), [&sent[..100], &sent[1000..1200], &sent[5000..5300]].concat());
    assert_eq!(b.bytes(0x8000, 30), sent[..30]);
    // READ.
    b.fill(0x4000, &pattern(9000, 3));
    let mut body = vec![0xAA; 4];
    body.extend(9000u32.to_le_bytes());
    body.extend(a.key.to_le_bytes());
    body.extend((IOVA + 0x6000).to_le_bytes());
    body.extend([0xAA; 4]);
    body.extend(Sge(IOVA + 0x4000, 9000, b.key).bytes());
    a.send(READ, CE, 0, &body);
    assert_eq!((a.wait().status, a.bytes(0x6000, 9000)), (0, pattern(9000, 3)));
    // Atomics, at a multiple of 8.
    let (at, result) = (IOVA / 8 * 8 + 0x100, IOVA / 8 * 8 + 0x200);
    b.fill(at - IOVA, &41u64.to_le_bytes());
    for (opcode, operand, compare, before, after) in [(FAA, 1, 0x55, 41, 42), (CAS, 100, 42, 42, 100), (CAS, 7, 1, 100, 100u64)]
    {
        let mut body = vec![0xAA; 8];
        body.extend((operand as u64).to_le_bytes());
        body.extend((compare as u64).to_le_bytes());
        body.extend(Sge(at, 0xAAAA, b.key).bytes());
        body.extend(Sge(result, 8, a.key).bytes());
        a.send(opcode, CE, 0, &body);
        let done = a.wait();
        assert_eq!((done.opcode, done.status), (opcode, 0));
        assert_eq!(a.bytes(result - IOVA, 8), (before as u64).to_le_bytes());
        assert_eq!(b.bytes(at - IOVA, 8), after.to_le_bytes());
    }
}

/// Inline data of every length, through many turns of the ring, so that entries lie across its end.
#[test]
fn inline_data_and_unsignalled_requests_survive_the_turn_of_the_ring() {
    let place = Place::new();
    let (mut a, b) = pair(&place, 64 << 10);
    for round in 0..300usize {
        let len = round % 97;
        let data = pattern(len, round);
        let mut body = write_body([0; 4], (IOVA + 64 * (round as u64 % 100), b.key), &[]);
        body[4..8].copy_from_slice(&(len as u32).to_le_bytes());
        body.extend(&data);
        let signalled = round % 3 == 2;
        a.send(WRITE, INLINE | if signalled { CE } else { 0 }, len as u8, &body);
        if signalled {
            let done = a.wait();
            assert_eq!((done.status, done.opcode), (0, WRITE), "round {round}");
            assert_eq!(b.bytes(64 * (round as u64 % 100), len), data, "round {round}");
        }
    }
}

#[test]
fn a_receive_posted_before_the_send_is_always_found() {
    let place = Place::new();
    let (mut a, mut b) = pair(&place, 64 << 10);
    for round in 0..200u32 {
        b.driver.post_recv(&mut b.qp, Sge(IOVA, 64, 1 << 8));
        a.send(SEND, CE, 1, &send_body([0; 4], &[a.sge(0, 8)]));
        assert_eq!(a.wait().status, 0);
        let got = b.wait();
        assert_eq!((got.status, got.receive, got.index & 0xFFFF, got.len), (0, true, round, 8));
    }
    assert_eq!(place.device("b")["counters"]["send_rnr_err"], 0);
}

/// A guest and a container of the same daemon, both ways.
#[test]
fn a_guest_and_a_container_talk() {
    let place = Place::new();
    place.add("c", "203.0.113.9");
    let mut guest = side(&place, "vm", "203.0.113.1", 64 << 10);
    let mut end = End::new(&place.socket("c"), 64 << 10);
    guest.driver.connect(7, end.qp.qpn, end.raw.info.gids[0]);
    // The container's PSN is 0, the guest's 77: connected by hand.
    let attr = |state| vdev_abi::control::QpAttr { qp_state: state, ..Default::default() };
    let mut rtr = vdev_abi::control::QpAttr { access: raw::ALL_ACCESS, port: 1, ..attr(1) };
    let modify = |mask, attr| vdev_abi::control::Request::ModifyQp { qp: end.qp.handle, mask, attr };
    end.raw.call(&modify(0x39, rtr)).unwrap();
    rtr = vdev_abi::control::QpAttr {
        qp_state: 2,
        path_mtu: 3,
        dest_qpn: 7,
        rq_psn: 77,
        ah_dgid: gid("203.0.113.1"),
        ah_is_global: true,
        ah_hop_limit: 64,
        ah_port: 1,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
        ..rtr
    };
    end.raw.call(&modify(0x12_9181, rtr)).unwrap();
    let rts =
        vdev_abi::control::QpAttr { qp_state: 3, sq_psn: 77, timeout: 14, retry_cnt: 2, rnr_retry: 2, max_rd_atomic: 4, ..rtr };
    end.raw.call(&modify(0x1_2E01, rts)).unwrap();

    guest.fill(0, &pattern(20_000, 4));
    let body = write_body([0; 4], (end.at(100), end.key), &[guest.sge(0, 20_000)]);
    guest.send(WRITE, CE, 1, &body);
    assert_eq!(guest.wait().status, 0);
    // SAFETY: reads within a live slice; volatile, as the daemon wrote there.
    let got: Vec<u8> = end.memory[100..20_100].iter().map(|byte| unsafe { std::ptr::read_volatile(byte) }).collect();
    assert!(got == pattern(20_000, 4));

    end.memory[..9000].copy_from_slice(&pattern(9000, 5));
    let sge = end.sge(0, 9000);
    let entry = SendEntry {
        opcode: raw::OP_WRITE,
        flags: raw::SIGNALED,
        remote_addr: IOVA + 77,
        rkey: guest.key,
        ..SendEntry::default()
    };
    end.send(entry, &[sge]);
    assert_eq!(end.cq.wait().status, 0);
    assert!(guest.bytes(77, 9000) == pattern(9000, 5));

    guest.driver.post_recv(&mut guest.qp, Sge(IOVA + 0x8000, 100, guest.key));
    let sge = end.sge(0, 50);
    end.send(SendEntry { opcode: raw::OP_SEND, flags: raw::SIGNALED, ..SendEntry::default() }, &[sge]);
    assert_eq!((end.cq.wait().status, guest.wait().len), (0, 50));
    assert_eq!(guest.bytes(0x8000, 50), pattern(9000, 5)[..50]);
}

#[test]
fn a_command_interrupts_when_it_was_asked_to() {
    let place = Place::new();
    let mut driver = Driver::start(&add(&place, "vm", "203.0.113.1"), 4 << 20);
    // Armed by the probe, and the commands since have used it up: one entry, one interrupt.
    driver.vmm.wait_for(0);
    assert_eq!(driver.command_events(), 1);
    driver.command(1, 2, Body::new()).unwrap();
    assert!(!driver.vmm.has_interrupt(0), "not asked for");
    driver.arm_commands();
    driver.command(1, 2, Body::new()).unwrap();
    driver.vmm.wait_for(0);
    // The handler re-arms completions before events: one that it has not read interrupts at once.
    assert_eq!(driver.command_events(), 1);
    driver.submit(1, 2, Body::new());
    super::place::wait_until("it has been executed", || driver.vmm.register(0x14) == 2);
    driver.arm_commands();
    driver.vmm.wait_for(0);
    assert_eq!(driver.completion().2, 0);
    assert_eq!(driver.command_events(), 1);
}

/// Events of completion queues: plain and solicited, at once when there is something unread, once per arming.
#[test]
fn completion_queues_tell_when_they_are_asked_to() {
    let place = Place::new();
    let (mut a, mut b) = pair(&place, 64 << 10);
    for n in 0..8 {
        b.driver.post_recv(&mut b.qp, Sge(IOVA + n * 4096, 4096, 1 << 8));
    }
    let mut send = |flags| {
        a.send(SEND, CE | flags, 1, &send_body([0; 4], &[Sge(IOVA, 8, 1 << 8)]));
        assert_eq!(a.wait().status, 0);
    };
    b.driver.arm(&b.cq, false);
    send(0);
    b.driver.vmm.wait_for(1);
    assert_eq!(b.driver.completion_events(1, 16), [1]);
    send(0);
    assert_eq!(b.driver.completion_events(1, 16), [0u32; 0], "one event for one arming");
    // The second is unread: an event at once.
    b.wait();
    b.driver.arm(&b.cq, false);
    b.driver.vmm.wait_for(1);
    assert_eq!(b.driver.completion_events(1, 16), [1]);
    b.wait();
    // Solicited ones only.
    b.driver.arm(&b.cq, true);
    send(0);
    assert_eq!(b.driver.completion_events(1, 16), [0u32; 0]);
    send(SE);
    b.driver.vmm.wait_for(1);
    assert_eq!(b.driver.completion_events(1, 16), [1]);
    b.wait();
    // One that is solicited and unread counts at once.
    b.driver.arm(&b.cq, true);
    b.driver.vmm.wait_for(1);
    assert_eq!(b.driver.completion_events(1, 16), [1]);
}

/// Handlers stop after some entries: what they leave has to interrupt again.
#[test]
fn events_left_unread_interrupt_again() {
    let place = Place::new();
    let mut driver = Driver::start(&add(&place, "vm", "203.0.113.1"), 16 << 20);
    driver.set_gid(1, gid("203.0.113.1"));
    let region = Region::scattered(&driver, IOVA, PAGE);
    driver.register(1, 0, &region).unwrap();
    // Queue pairs connected to themselves, each with a queue of its own.
    let mut cqs = Vec::new();
    for n in 1..=20u32 {
        let cq = driver.create_cq(n, 2, 6);
        let mut qp = driver.create_qp(n, 0, n);
        driver.connect(n, n, gid("203.0.113.1"));
        driver.arm(&cq, false);
        driver.post_send(&mut qp, WRITE, CE, 1, &write_body([0; 4], (IOVA, 1 << 8), &[Sge(IOVA, 8, 1 << 8)]));
        assert_eq!(driver.wait(&mut { cq }).status, 0);
        cqs.push(n);
    }
    let mut told = Vec::new();
    while told.len() < cqs.len() {
        driver.vmm.wait_for(2);
        told.extend(driver.completion_events(2, 16));
    }
    assert_eq!(told, cqs);
}

#[test]
fn errors_are_told_and_everything_is_flushed() {
    let place = Place::new();
    let (mut a, mut b) = pair(&place, 64 << 10);
    a.driver.post_recv(&mut a.qp, Sge(IOVA, 64, 1 << 8));
    // Good, bad (a key that the peer does not have), and two behind it.
    for (key, flags) in [(b.key, 0), (0x7700, 0), (b.key, 0), (b.key, CE)] {
        let body = write_body([0; 4], (IOVA, key), &[a.sge(0, 16)]);
        a.send(WRITE, flags, 1, &body);
    }
    let completions: Vec<_> = (0..4).map(|_| a.wait()).map(|done| (done.receive, done.index, done.status)).collect();
    // The first was not signalled. 5: remote access error, 15: flushed, though nobody asked for a completion.
    let mut sends: Vec<_> = completions.iter().filter(|done| !done.0).map(|done| (done.1, done.2)).collect();
    sends.sort();
    assert_eq!(sends, [(2, 5), (4, 15), (6, 15)]);
    assert_eq!(completions.iter().filter(|done| done.0).map(|done| done.2).collect::<Vec<_>>(), [15]);
    // What is posted later is flushed too.
    a.send(WRITE, 0, 1, &write_body([0; 4], (IOVA, b.key), &[a.sge(0, 16)]));
    assert_eq!(a.wait().status, 15);
    // The peer was told of the violation.
    super::place::wait_until("the peer hears of it", || b.driver.async_events().contains(&(2, 7)));
    // And people may ask about both.
    for (device, cause) in [("a", "RemoteAccessError"), ("b", "a request of the peer had no right")] {
        let (_, told) = place.http("GET", &format!("/v1/devices/{device}/failures"), "");
        assert!(told.contains(cause) && told.contains("a virtual machine"), "{told}");
    }
    // QUERY_QP tells the state.
    let [first, _] = a.driver.command(0, 17, Body::new().u32(8, 7)).unwrap();
    assert_eq!(first >> 48 & 0xFF, 6);
    // After RESET a process goes on counting where it was.
    a.driver.set_state(7, 0).unwrap();
    b.driver.set_state(7, 0).unwrap();
    a.driver.connect(7, 7, gid("203.0.113.2"));
    b.driver.connect(7, 7, gid("203.0.113.1"));
    a.fill(0, b"again");
    a.send(WRITE, CE, 1, &write_body([0; 4], (IOVA, b.key), &[a.sge(0, 5)]));
    let done = a.wait();
    assert_eq!((done.status, done.index, b.bytes(0, 5)), (0, 10, b"again".to_vec()));
}

/// What a guest registers is pinned, and nothing else; it is given back as idle memory.
#[test]
fn memory_is_pinned_when_it_is_registered() {
    let place = Place::new();
    let mut driver = Driver::start(&add(&place, "vm", "203.0.113.1"), 64 << 20);
    let memory = |place: &Place| place.device("vm")["vm"]["memory"].clone();
    let before = memory(&place);
    assert_eq!(before["mapped_bytes"], 64 << 20);
    let region = Region::scattered(&driver, IOVA, 5 * MIB);
    assert!(before["pinned_bytes"].as_u64().unwrap() <= 4 << 20, "queues only: {before}");
    driver.register(3, 0, &region).unwrap();
    let during = memory(&place);
    let more = during["pinned_bytes"].as_u64().unwrap() - before["pinned_bytes"].as_u64().unwrap();
    assert!((4 * MIB..=10 * MIB).contains(&more), "{during}");
    assert!(during["registered_bytes"].as_u64().unwrap() >= 5 * MIB && during["hits"].as_u64().unwrap() > 1000, "{during}");
    driver.command(0, 9, Body::new().u32(8, 3)).unwrap();
    let after = memory(&place);
    assert_eq!(after["pinned_bytes"], during["pinned_bytes"], "kept for the next registration");
    assert!(after["idle_bytes"].as_u64().unwrap() >= 4 * MIB, "{after}");
    // Statistics are asked for once at registration of the device, and have to be recognisable.
    let at = driver.vmm.memory.pages(1);
    driver.command(1, 4, Body::new().u64(16, at).u32(24, 256)).unwrap();
    assert_eq!(driver.vmm.memory.read(at, 2), 0x5566u16.to_le_bytes());
}

/// The key by which a guest's kernel, and nobody else, reaches all of its memory.
const LOCAL_DMA_LKEY: u32 = 0xFFFF_FF00;

/// What the guests' connection managers say to each other: datagrams of QP1, whose buffers are given by guest-physical address.
#[test]
fn management_datagrams_travel_between_guests() {
    let place = Place::new();
    let mut guests = ["203.0.113.1", "203.0.113.2"].map(|ip| {
        let mut driver = Driver::start(&add(&place, &format!("vm{}", ip.len() + ip.as_bytes()[10] as usize), ip), 16 * MIB);
        driver.set_gid(1, gid(ip));
        let cq = driver.create_kernel_cq(9);
        let qp = driver.create_kernel_qp(1, 0, 9, true);
        (driver, cq, qp)
    });
    let [(a, a_cq, a_qp), (b, b_cq, b_qp)] = &mut guests;
    assert!(a.create_ah(0, 3, [0; 16]).is_err(), "to nowhere");
    a.create_ah(0, 3, gid("203.0.113.2")).unwrap();
    for round in 0..100u8 {
        let (from, to) = (a.vmm.memory.pages(1) + 0x123, b.vmm.memory.pages(1) + 0x77);
        b.post_recv(b_qp, Sge(to, 40 + 256, LOCAL_DMA_LKEY));
        let mad = pattern(256, round.into());
        a.vmm.memory.write(from, &mad);
        a.post_send(a_qp, SEND, CE, 1, &mad_body(3, Sge(from, 256, LOCAL_DMA_LKEY)));
        assert_eq!(a.wait(a_cq).status, 0);
        let got = b.wait(b_cq);
        assert_eq!((got.status, got.opcode, got.qpn, got.sender, got.len), (0, 4, 1, 1, 296), "round {round}");
        let bytes = b.vmm.memory.read(to, 296);
        // The IPv4 header ends the room for the GRH.
        assert_eq!((bytes[20], &bytes[32..36], &bytes[36..40]), (0x45, &[203, 0, 113, 1][..], &[203, 0, 113, 2][..]));
        assert!(bytes[40..] == mad, "round {round}");
    }
    // After a reset the kernel counts from 0 again, though its records say otherwise.
    a.set_state(1, 6).unwrap();
    a.set_state(1, 0).unwrap();
    a_qp.sq_pi = 0;
    a.command(0, 3, Body::new().u32(8, 1 | 1 << 24).u32(16, 0b11).u32(20, 0x8001_0000)).unwrap();
    a.set_state(1, 2).unwrap();
    a.command(0, 3, Body::new().u32(8, 1 | 3 << 24).u32(16, 0b1001).u32(28, 0)).unwrap();
    let (from, to) = (a.vmm.memory.pages(1), b.vmm.memory.pages(1));
    b.post_recv(b_qp, Sge(to, 296, LOCAL_DMA_LKEY));
    a.vmm.memory.write(from, &pattern(256, 200));
    a.post_send(a_qp, SEND, CE, 1, &mad_body(3, Sge(from, 256, LOCAL_DMA_LKEY)));
    assert_eq!((a.wait(a_cq).status, b.wait(b_cq).status), (0, 0));
    assert!(b.vmm.memory.read(to + 40, 256) == pattern(256, 200));
    // A datagram to a handle that was destroyed fails as any bad entry does.
    a.command(0, 16, Body::new().u32(8, 0).u32(12, 3)).unwrap();
    assert!(a.command(0, 16, Body::new().u32(8, 0).u32(12, 3)).is_err());
    a.post_send(a_qp, SEND, CE, 1, &mad_body(3, Sge(from, 256, LOCAL_DMA_LKEY)));
    assert_eq!(a.wait(a_cq).status, 8);
}

/// Trap: the kernel's key is refused to processes, and goes with the kernel's last queue pair in a protection domain.
#[test]
fn only_the_kernel_reaches_all_memory() {
    let place = Place::new();
    let (mut a, b) = pair(&place, 64 << 10);
    let page = a.driver.vmm.memory.pages(1);
    a.driver.vmm.memory.write(page, b"kernel");
    let body = write_body([0; 4], (IOVA, b.key), &[Sge(page, 6, LOCAL_DMA_LKEY)]);
    a.send(WRITE, CE, 1, &body);
    // Local access error.
    assert_eq!(a.wait().status, 12);
    // A kernel queue pair in the very same domain opens it, and its end closes it.
    let mut cq = a.driver.create_kernel_cq(9);
    let mut qp = a.driver.create_kernel_qp(8, 5, 9, false);
    a.driver.connect(8, 8, gid("203.0.113.1"));
    a.driver.post_send(&mut qp, WRITE, CE, 1, &write_body([0; 4], (IOVA, a.key), &[Sge(page, 6, LOCAL_DMA_LKEY)]));
    assert_eq!((a.driver.wait(&mut cq).status, a.bytes(0, 6)), (0, b"kernel".to_vec()));
    a.driver.set_state(8, 6).unwrap();
    a.driver.command(0, 2, Body::new().u32(8, 8)).unwrap();
    let mut user = a.driver.create_qp(10, 5, 1);
    a.driver.connect(10, 10, gid("203.0.113.1"));
    a.driver.post_send(&mut user, WRITE, CE, 1, &write_body([0; 4], (IOVA, a.key), &[Sge(page, 6, LOCAL_DMA_LKEY)]));
    assert_eq!(a.wait().status, 12);
    // A region of all memory that the guest's kernel registers under a key of its own, type 2.
    let all = Body::new().u32(8, 77 | 1 << 31).u32(12, super::driver::ALL_RIGHTS | 2 << 6 | 5 << 12);
    a.driver.command(0, 8, all).unwrap();
    let mut qp = a.driver.create_qp(11, 5, 1);
    a.driver.connect(11, 11, gid("203.0.113.1"));
    a.driver.post_send(&mut qp, WRITE, CE, 1, &write_body([0; 4], (IOVA + 50, a.key), &[Sge(page, 6, 77 << 8)]));
    assert_eq!((a.wait().status, a.bytes(50, 6)), (0, b"kernel".to_vec()));
    // Between and behind its memory there is none.
    a.driver.post_send(&mut qp, WRITE, CE, 1, &write_body([0; 4], (IOVA, a.key), &[Sge(1 << 40, 6, 77 << 8)]));
    assert_eq!(a.wait().status, 12);
}
