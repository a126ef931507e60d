//! Fast registration: the guest's kernel registers memory, and takes keys back, by requests among others.

use super::driver::{Body, CE, Qp, Sge, send_body, write_body};
use super::place::Place;
use super::verbs::{IOVA, Side, gid, pair};
use super::vmm::PAGE;

const WRITE: u8 = 0;
const SEND_INV: u8 = 13;
const REG_MR: u8 = 14;
const LOCAL_INV: u8 = 15;
const INDEX: u32 = 60;
const LIST_PAGES: u32 = 512;
const REMOTE_WRITE: u32 = 1 << 3 | 1 << 5;
/// Address of the first byte as requests name it, not at the start of a page.
const FAST: u64 = 0x77_0000_0123;
const LEN: u32 = 2 * PAGE as u32;

/// A kernel's queue pair 8 in `a`, connected with a process's in `b`, and a region for fast registration with its list.
struct Bed {
    a: Side,
    b: Side,
    cq: super::driver::Cq,
    kernel: Qp,
    peer: Qp,
    list: u64,
    pages: Vec<u64>,
}

impl Bed {
    fn new(place: &Place) -> Bed {
        let (mut a, mut b) = pair(place, 64 << 10);
        let cq = a.driver.create_kernel_cq(9);
        let kernel = a.driver.create_kernel_qp(8, 5, 9, false);
        let peer = b.driver.create_qp(8, 5, 1);
        a.driver.connect(8, 8, gid("203.0.113.2"));
        b.driver.connect(8, 8, gid("203.0.113.1"));
        let list = a.driver.vmm.memory.pages(1);
        let first = a.driver.vmm.memory.pages(3);
        let pages = (0..3).rev().map(|n| first + n * PAGE).collect();
        let reg = Body::new().u32(8, INDEX).u32(12, 1 << 6 | 5 << 12).u32(28, LIST_PAGES | 1 << 20 | 12 << 27).u64(32, list);
        a.driver.command(0, 8, reg).unwrap();
        Bed { a, b, cq, kernel, peer, list, pages }
    }

    /// REG_MR of so many entries of the list, which it fills.
    fn register(&mut self, flags: u64, key: u32, pages: &[u64], count: u32) {
        for (page, n) in pages.iter().zip(0..) {
            self.a.driver.vmm.memory.write(self.list + 8 * n, &page.to_le_bytes());
        }
        let mut body = FAST.to_le_bytes().to_vec();
        for word in [LEN, key, REMOTE_WRITE | 1 << 6 | count << 12, 0xAAAA_AAAA] {
            body.extend(word.to_le_bytes());
        }
        self.a.driver.post_send(&mut self.kernel, REG_MR, flags, 0, &body);
    }

    fn take_back(&mut self, key: u32) {
        let mut body = vec![0xAA; 24];
        body[12..16].copy_from_slice(&key.to_le_bytes());
        self.a.driver.post_send(&mut self.kernel, LOCAL_INV, CE, 0, &body);
    }

    /// The peer writes across a page's end; status, and what arrived.
    fn write(&mut self, key: u32, text: &[u8; 16]) -> (u8, Vec<u8>) {
        let across = PAGE - FAST % PAGE - 8;
        self.b.region.write(&self.b.driver, 0, text);
        let body = write_body([0; 4], (FAST + across, key), &[Sge(IOVA, 16, self.b.key)]);
        self.b.driver.post_send(&mut self.peer, WRITE, CE, 1, &body);
        let done = self.b.driver.wait(&mut self.b.cq);
        let memory = &self.a.driver.vmm.memory;
        (done.status, [memory.read(self.pages[0] + PAGE - 8, 8), memory.read(self.pages[1], 8)].concat())
    }

    fn reconnect(&mut self) {
        self.a.driver.set_state(8, 6).unwrap();
        self.b.driver.set_state(8, 6).unwrap();
        self.a.driver.set_state(8, 0).unwrap();
        self.b.driver.set_state(8, 0).unwrap();
        while self.a.driver.poll(&mut self.cq).is_some() || self.b.driver.poll(&mut self.b.cq).is_some() {}
        // After a reset the kernel counts from 0.
        (self.kernel.sq_pi, self.kernel.rq_pi) = (0, 0);
        self.a.driver.connect(8, 8, gid("203.0.113.2"));
        self.b.driver.connect(8, 8, gid("203.0.113.1"));
    }
}

#[test]
fn memory_is_registered_and_taken_back_by_requests() {
    let place = Place::new();
    let mut bed = Bed::new(&place);
    let (first, second, third) = (INDEX << 8 | 0x33, INDEX << 8 | 0x34, INDEX << 8 | 0x35);
    let pages = bed.pages.clone();
    // Nobody asked for the first completion; the second comes in its turn.
    bed.register(0, first, &pages, 3);
    assert_eq!(bed.write(first, b"the first region"), (0, b"the first region".to_vec()));
    bed.take_back(first);
    let done = bed.a.driver.wait(&mut bed.cq);
    assert_eq!((done.opcode, done.status, done.index), (LOCAL_INV, 0, 1));
    bed.register(CE, second, &pages, 3);
    let done = bed.a.driver.wait(&mut bed.cq);
    assert_eq!((done.opcode, done.status, done.index), (REG_MR, 0, 2));
    assert_eq!(bed.write(second, b"second of several"[..16].try_into().unwrap()).0, 0);
    // The old key means nothing any more, though the region has another one.
    assert_ne!(bed.write(first, b"must not get in.").0, 0);
    bed.reconnect();
    assert_eq!(bed.write(second, b"and goes on here").1, b"and goes on here");
    // The peer takes it back with a SEND.
    let at = bed.a.driver.vmm.memory.pages(1);
    bed.a.driver.post_recv(&mut bed.kernel, Sge(at, 64, 0xFFFF_FF00));
    let body = send_body(second.to_le_bytes(), &[Sge(IOVA, 8, bed.b.key)]);
    bed.b.driver.post_send(&mut bed.peer, SEND_INV, CE, 1, &body);
    assert_eq!(bed.b.driver.wait(&mut bed.b.cq).status, 0);
    let got = bed.a.driver.wait(&mut bed.cq);
    assert_eq!((got.opcode, got.receive, got.imm.swap_bytes()), (6, true, second));
    assert_ne!(bed.write(second, b"must not get in.").0, 0);
    bed.reconnect();
    bed.register(0, third, &pages, 3);
    assert_eq!(bed.write(third, b"the third region"), (0, b"the third region".to_vec()));
    // Its end takes the key along.
    bed.a.driver.command(0, 9, Body::new().u32(8, INDEX)).unwrap();
    assert!(bed.a.driver.command(0, 9, Body::new().u32(8, INDEX)).is_err());
    assert_ne!(bed.write(third, b"must not get in.").0, 0);
}

#[test]
fn registrations_that_make_no_sense_cost_their_queue_pair() {
    let place = Place::new();
    let mut bed = Bed::new(&place);
    let key = INDEX << 8;
    let pages = bed.pages.clone();
    let nowhere = [pages[0], pages[1], 1 << 40];
    // Too few pages; more than the list has; a page that is no memory, or none at all; a key of no such region.
    for (key, pages, count) in [
        (key, &pages[..], 2),
        (key, &pages[..], LIST_PAGES + 1),
        (key, &nowhere[..], 3),
        (key, &[pages[0], pages[1] + 8, pages[2]][..], 3),
        (key, &[u64::MAX - 4095, pages[1], pages[2]][..], 3),
        (61 << 8, &pages[..], 3),
        (1 << 8, &pages[..], 3),
    ] {
        bed.register(0, key, pages, count);
        let done = bed.a.driver.wait(&mut bed.cq);
        assert_eq!((done.opcode, done.status), (REG_MR, 8), "{key:#x} {pages:x?} {count}");
        bed.reconnect();
    }
    // A key that is not there cannot be taken back.
    bed.take_back(key);
    assert_ne!(bed.a.driver.wait(&mut bed.cq).status, 0);
    bed.reconnect();
    bed.register(0, key, &pages, 3);
    assert_eq!(bed.write(key, b"and it goes on. "), (0, b"and it goes on. ".to_vec()));
}
