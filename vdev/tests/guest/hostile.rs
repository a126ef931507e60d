//! Guests that do what no driver does: commands, rings, page lists and doorbells that make no sense. Each costs the guest its own
//! objects and nobody else anything.

use std::os::fd::AsRawFd;

use super::driver::{Body, CE, Driver, Region, Sge, write_body};
use super::place::Place;
use super::verbs::{IOVA, Side, gid, pair, side};
use super::vmm::{PAGE, add};

const MIB: u64 = 1 << 20;
const WRITE: u8 = 0;

/// A WRITE that has to work.
fn works(a: &mut Side, b: &Side) {
    a.region.write(&a.driver, 0, b"it works");
    a.send(WRITE, CE, 1, &write_body([0; 4], (IOVA + 100, b.key), &[a.sge(0, 8)]));
    assert_eq!(a.wait().status, 0);
    assert_eq!(b.region.read(&b.driver, 100, 8), b"it works");
}

/// HG-12 and more: every command with numbers that name nothing, with nothing but stale bytes, and each of the others.
#[test]
fn commands_that_name_nothing_are_refused() {
    let place = Place::new();
    let (mut a, b) = pair(&place, 64 << 10);
    for module in 0..4 {
        for opcode in (0..=24).chain([0x80, 0xFF]) {
            // These have no arguments, or take anything.
            if matches!((module, opcode), (0, 0) | (1, 2) | (1, 3) | (1, 8)) {
                continue;
            }
            assert!(a.driver.command(module, opcode, Body::new()).is_err(), "{module}.{opcode}");
        }
    }
    let mut refused = |opcode: u8, value: u32| {
        assert!(a.driver.command(0, opcode, Body::new().u32(8, value)).is_err(), "{opcode}: {value:#x}");
    };
    for value in [0, 3, 0x3FFF, 0xF_FFFF, u32::MAX] {
        refused(2, value);
        refused(5, value);
        refused(17, value);
        refused(6, value);
    }
    // In use.
    refused(5, 1);
    for value in [0, 2, 0x7FFF, u32::MAX] {
        refused(9, value);
    }
    works(&mut a, &b);
}

/// Of ten thousand random commands, none does harm; their answers hold nothing but zeros.
#[test]
fn random_commands_harm_nobody() {
    let place = Place::new();
    let (mut a, b) = pair(&place, 64 << 10);
    let mut hostile = side(&place, "c", "203.0.113.3", 64 << 10);
    let mut state = 0x1234_5678_9ABC_DEF0u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    for _ in 0..2000 {
        let mut body = Body::new();
        for at in (8..128).step_by(4) {
            // Small numbers name something more often.
            let value = match random() % 4 {
                0 => random() % 16,
                1 => (random() % 4096) << 12,
                2 => 0,
                _ => random() ^ random() << 1,
            };
            body = body.u32(at, value);
        }
        let (module, opcode) = ((random() % 2) as u8, (random() % 18) as u8);
        hostile.driver.submit(module, opcode, body);
        let (_, completed, status, quads) = hostile.driver.completion();
        assert_eq!(completed, opcode);
        assert!(status == 0 || quads == [0; 2]);
    }
    works(&mut a, &b);
}

/// HG-01, HG-09: page lists and rings that are not in memory, lie across a hole, or wrap.
#[test]
fn memory_that_is_not_the_guests_is_refused() {
    let place = Place::new();
    let mut driver = Driver::start(&add(&place, "vm", "203.0.113.1"), 8 * MIB);
    let refused = |driver: &mut Driver, region: &Region| {
        assert!(driver.register(1, 0, region).is_err(), "{:x?}", region.pages);
    };
    let page = driver.vmm.memory.pages(1);
    for pages in
        [vec![8 * MIB], vec![page, 9 * MIB], vec![page, u64::MAX - PAGE + 1], vec![u64::MAX], vec![page + 1], vec![1 << 63]]
    {
        let len = pages.len() as u64 * PAGE;
        refused(&mut driver, &Region { iova: 0, len, pages });
    }
    // The same in an array and in a tree, one bad entry at the end of many good ones.
    for count in [6, 513, 700] {
        let mut pages = vec![page; count];
        pages[count - 1] = 9 * MIB;
        let len = count as u64 * PAGE;
        refused(&mut driver, &Region { iova: 0, len, pages: pages.clone() });
        pages[count - 1] = page;
        let good = Region { iova: 0, len, pages };
        driver.register(1, 0, &good).unwrap();
        driver.command(0, 9, Body::new().u32(8, 1)).unwrap();
        // The list itself is not in memory.
        let body = driver.reg_mr(1, 0, &good).u64(32, 9 * MIB);
        assert!(driver.command(0, 8, body).is_err());
    }
    // Longer than its pages, or longer than any address space.
    for (iova, len) in [(0, 2 * PAGE + 1), (1, 2 * PAGE), (0, 0)] {
        refused(&mut driver, &Region { iova, len, pages: vec![page, page] });
    }
    // Rings: of a completion queue and a queue pair, anywhere but in memory.
    for at in [8 * MIB, 9 * MIB, u64::MAX - 4095, 8 * MIB - 4096 + 1] {
        let cq = Body::new().u32(8, 3 | 7 << 24).u64(12, at).u32(20, 1 | 1 << 11 | 1 << 16).u64(24, page).u32(32, 0);
        assert!(driver.command(0, 4, cq.u32(36, 384)).is_err(), "{at:#x}");
    }
    driver.create_cq(1, 1, 6);
    for (offset, value) in [(24, 9 * MIB), (32, 9 * MIB), (48, 9 * MIB), (56, u64::MAX - 7), (48, page + 4)] {
        let (body, _) = driver.qp(3, 0, 1);
        assert!(driver.command(0, 1, body.u64(offset, value)).is_err(), "{offset}: {value:#x}");
    }
    // HG-03: depths.
    for (offset, value) in
        [(8, 3 | 16 << 20), (8, 3 | 0xFFF << 20), (12, 14 << 20), (12, 0xFFF << 20), (40, 0), (44, 0), (40, 5 << 1)]
    {
        let (body, _) = driver.qp(3, 0, 1);
        assert!(driver.command(0, 1, body.u32(offset, value)).is_err(), "{offset}: {value:#x}");
    }
    driver.create_qp(3, 0, 1);
}

/// HG-05, HG-13 and others: send entries and indices that make no sense cost their queue pair, after what came before them.
#[test]
fn bad_entries_cost_their_queue_pair() {
    let place = Place::new();
    let (mut a, mut b) = pair(&place, 64 << 10);
    let cases: [(&str, u8, u8, usize); 8] = [
        ("unknown opcode", 7, 0, 1),
        ("fast registration", 14, 0, 2),
        ("invalidation", 15, 0, 1),
        ("too many buffers", WRITE, 7, 2),
        ("buffers beyond the entry", WRITE, 3, 2),
        ("255 buffers", 2, 255, 4),
        ("a READ without its remote buffer", 1, 0, 1),
        ("an atomic without its result buffer", 17, 0, 1),
    ];
    for (what, opcode, count, blocks) in cases {
        works(&mut a, &b);
        let at = u32::from(a.qp.sq_pi);
        a.send(WRITE, 0, 1, &write_body([0; 4], (IOVA, b.key), &[a.sge(0, 8)]));
        a.send(opcode, 0, count, &vec![0x11; blocks * 32 - 8]);
        a.send(WRITE, 0, 1, &write_body([0; 4], (IOVA, b.key), &[a.sge(0, 8)]));
        // The one before may still be under way when the bad one is found; then it is flushed.
        let mut done = a.wait();
        if done.index == at {
            assert_eq!(done.status, 15, "{what}");
            done = a.wait();
        }
        assert_eq!((done.index, done.status, done.opcode), (at + 2, 8, opcode), "{what}");
        assert_eq!(a.wait().status, 15, "{what}");
        reconnect(&mut a, &mut b);
    }
    // An entry for another queue pair, and one that is longer than what was posted.
    for header in [8u64 << 32, 7 << 32 | 3 << 52] {
        let start = a.qp.sq_pi;
        let bytes = (header | u64::from(start + 1) | CE).to_le_bytes();
        a.driver.vmm.memory.write(a.qp.sq + u64::from(start) % 64 * 32, &bytes);
        a.qp.sq_pi += 1;
        a.driver.ring_send(&a.qp);
        assert_eq!(a.wait().status, 8, "{header:#x}");
        reconnect(&mut a, &mut b);
    }
    // An index further ahead than the queue is long: no entry is to blame, so an event tells.
    for (record, pages) in [(a.qp.record, a.qp.pages[0]), (a.qp.record + 8, a.qp.pages[1])] {
        a.driver.async_events();
        let index = if record == a.qp.record { a.qp.sq_pi } else { a.qp.rq_pi };
        let bad = u64::from(index.wrapping_add(1000)) | 7 << 32;
        a.driver.vmm.memory.word(record).store(bad, std::sync::atomic::Ordering::Release);
        a.driver.vmm.doorbell(pages * PAGE, bad);
        super::place::wait_until("the queue pair has failed", || a.driver.async_events().contains(&(0, 7)));
        let good = u64::from(index) | 7 << 32;
        a.driver.vmm.memory.word(record).store(good, std::sync::atomic::Ordering::Release);
        reconnect(&mut a, &mut b);
    }
    works(&mut a, &b);
}

/// Connects `a` anew to a peer that never noticed, with the sequence number that it expects.
fn reconnect(a: &mut Side, b: &mut Side) {
    a.driver.set_state(7, 6).unwrap();
    a.driver.set_state(7, 0).unwrap();
    while a.driver.poll(&mut a.cq).is_some() {}
    let [first, _] = b.driver.command(0, 17, Body::new().u32(8, 7)).unwrap();
    let expected = (first >> 24) as u32 & 0xFF_FFFF;
    a.driver.connect_from(7, 7, gid("203.0.113.2"), expected);
}

/// VU-09: memory that the VMM takes away while a guest uses it: its requests fail, the reply says that it is not accessed any
/// more, and other memory at the same address is not reached by the old registration.
#[test]
fn memory_goes_while_it_is_registered() {
    let place = Place::new();
    let (mut a, mut b) = pair(&place, 64 << 10);
    const BASE: u64 = 1 << 30;
    let extra = super::vmm::Memory::new(4 * MIB);
    a.driver.vmm.client.dma_map(0, BASE, 4 * MIB, extra.fd.as_raw_fd()).unwrap();
    let region = Region { iova: 0x5000, len: 2 * MIB, pages: (0..512).map(|n| BASE + n * PAGE).collect() };
    a.driver.register(2, 5, &region).unwrap();
    extra.write(0, b"first");
    let body = write_body([0; 4], (IOVA, b.key), &[Sge(0x5000, 5, 2 << 8)]);
    a.send(WRITE, CE, 1, &body);
    assert_eq!((a.wait().status, b.region.read(&b.driver, 0, 5)), (0, b"first".to_vec()));
    a.driver.vmm.client.dma_unmap(BASE, 4 * MIB).unwrap();
    let memory = &place.device("a")["vm"]["memory"];
    assert_eq!(memory["mapped_bytes"], 16 * MIB);
    // Local access error.
    a.send(WRITE, CE, 1, &body);
    assert_eq!(a.wait().status, 12);
    reconnect(&mut a, &mut b);
    // The peer may not reach it either.
    let other = super::vmm::Memory::new(4 * MIB);
    other.write(0, b"secret");
    a.driver.vmm.client.dma_map(0, BASE, 4 * MIB, other.fd.as_raw_fd()).unwrap();
    a.send(WRITE, CE, 1, &body);
    assert_eq!(a.wait().status, 12, "the registration is of memory that has gone");
    reconnect(&mut a, &mut b);
    a.driver.command(0, 9, Body::new().u32(8, 2)).unwrap();
    a.driver.register(2, 5, &region).unwrap();
    a.send(WRITE, CE, 1, &body);
    assert_eq!((a.wait().status, b.region.read(&b.driver, 0, 5)), (0, b"secre".to_vec()));
}

/// A VMM that makes its guest's memory shorter behind the daemon's back: the daemon does not fall.
#[test]
fn memory_that_is_cut_off_harms_nobody() {
    let place = Place::new();
    let (mut a, b) = pair(&place, 64 << 10);
    let mut hostile = side(&place, "c", "203.0.113.3", 64 << 10);
    nix::unistd::ftruncate(&hostile.driver.vmm.memory.fd, 0).unwrap();
    // Rings, records and command queue are all gone.
    hostile.driver.vmm.doorbell(hostile.qp.pages[0] * PAGE, 7 << 32 | 2);
    hostile.driver.vmm.doorbell(0x200, 400);
    hostile.driver.vmm.doorbell(0x300, 1 << 31);
    super::place::wait_until("the command queue has stopped", || hostile.driver.vmm.register(0x14) == 0);
    works(&mut a, &b);
}

/// HG-08: objects until the daemon refuses, creations that fail, resets: nothing adds up.
#[test]
fn creations_and_resets_leave_nothing_behind() {
    let place = Place::new();
    let mut driver = Driver::start(&add(&place, "vm", "203.0.113.1"), 64 << 20);
    let region = Region::scattered(&driver, IOVA, PAGE);
    let ring = driver.vmm.memory.pages(1);
    for round in 0..20 {
        for n in 1..=30 {
            let cq = Body::new().u32(8, n | 6 << 24).u64(12, ring).u32(20, 1 | 1 << 11 | 1 << 16).u64(24, ring).u32(32, 0);
            driver.command(0, 4, cq.u32(36, 384)).unwrap();
            let (qp, _) = driver.qp(n, n, n);
            let good = qp.u64(24, ring).u64(32, ring).u64(48, ring).u64(56, ring);
            // Another queue pair's number, a completion queue that does not exist.
            assert!(driver.command(0, 1, good.clone().u32(20, 31)).is_err());
            driver.command(0, 1, good.clone()).unwrap();
            assert!(driver.command(0, 1, good).is_err());
            let reg = driver.reg_mr(n, n, &region);
            driver.command(0, 8, reg.clone()).unwrap();
            assert!(driver.command(0, 8, reg).is_err());
        }
        let vm = &place.device("vm")["vm"];
        assert_eq!((&vm["qps"], &vm["cqs"], &vm["mrs"]), (&30.into(), &30.into(), &30.into()), "round {round}");
        if round % 2 == 0 {
            driver.vmm.set_register(0x10, 1)
        } else {
            driver.vmm.client.reset().unwrap()
        }
        let vm = &place.device("vm")["vm"];
        assert_eq!((&vm["qps"], &vm["cqs"], &vm["mrs"]), (&0.into(), &0.into(), &0.into()), "round {round}");
        assert_eq!(vm["memory"]["registered_bytes"], 0, "round {round}");
        driver.probe();
    }
}

/// Doorbells of another process's queues, of queues that do not exist, on pages that nobody has.
#[test]
fn doorbells_reach_only_what_belongs_to_their_page() {
    let place = Place::new();
    let (mut a, b) = pair(&place, 64 << 10);
    let [pages, _] = a.driver.command(1, 8, Body::new().u32(8, 7)).unwrap();
    let other = [pages & 0xFFFF, pages >> 32 & 0xFFFF, pages >> 48];
    assert!(other.iter().all(|page| !a.driver.pages.contains(page)));
    for page in other.into_iter().chain([1, 95, 97, 121, 127, 500, 900, 1023]) {
        for value in [7u64 << 32 | 1000, u64::MAX, 1 << 32 | 3 << 30, 0] {
            a.driver.vmm.doorbell(page * PAGE + 8, value);
        }
    }
    // A second process's page asked for an event of the first one's queue: it has none.
    a.send(WRITE, CE, 1, &write_body([0; 4], (IOVA, b.key), &[a.sge(0, 8)]));
    assert_eq!(a.wait().status, 0);
    assert_eq!(a.driver.completion_events(1, 16), [0u32; 0]);
    // Event queues that nobody made, command doorbells that mean nothing.
    for eqn in [0u64, 3, 31] {
        a.driver.vmm.doorbell(0x100 + 8 * eqn, u64::MAX);
    }
    works(&mut a, &b);
}

/// A producer index of the command queue that is too far ahead stops it until the next init, as does a command that is cut off.
#[test]
fn a_broken_command_queue_is_stopped_and_started_anew() {
    let place = Place::new();
    let mut driver = Driver::start(&add(&place, "vm", "203.0.113.1"), 8 * MIB);
    for value in [20_000u64, 65_535] {
        driver.vmm.doorbell(0x200, value);
        assert_eq!(driver.vmm.register(0x14), 0);
        driver.vmm.set_register(0x10, 1);
        driver.probe();
    }
    // Depths and addresses that no queue has.
    for (at, value) in
        [(0x30, 0), (0x30, 500), (0x30, 1 << 31), (0x34, 3), (0x48, 7), (0x24, u32::MAX), (0x20, 1), (0x44, u32::MAX)]
    {
        driver.initialise();
        let before = driver.vmm.register(0x14);
        driver.vmm.set_register(at, value);
        driver.vmm.set_register(0x10, 2);
        let after = driver.vmm.register(0x14);
        // An address that is not in memory shows at the first command.
        let late = matches!(at, 0x24) && after == 2;
        assert!(before == 2 && (after == 0 || late), "{at:#x} = {value:#x}");
    }
    driver.probe();
}
