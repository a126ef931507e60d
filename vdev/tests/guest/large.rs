//! Large registrations: what the VMM and the guest's other processors want meanwhile does not wait for them.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use super::driver::{ALL_RIGHTS, Body, CE, Driver, Sge, write_body};
use super::place::{Place, wait_until};
use super::verbs::{IOVA, Side, pair};
use super::vmm::{Memory, PAGE, Vmm, add};

const HUGE: u64 = 2 << 20;
const WRITE: u8 = 0;
/// Where the memory lies that is registered at once, and its key.
const BASE: u64 = 1 << 40;
const KEY: u32 = 50 << 8;
/// Attempts to do something while memory is pinned. One is enough unless the machine does something else just then.
const ATTEMPTS: usize = 50;

/// Bytes that are registered at once: 4 GiB with `VRDMA_LONG` set, as it takes seconds and that much memory.
fn large() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free =
        meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    match std::env::var_os("VRDMA_LONG") {
        Some(_) if free.is_some_and(|kib| kib > 6 << 20) => 4 << 30,
        Some(_) => {
            skip::skip("a registration of 4 GiB needs 6 GiB of free memory");
            128 << 20
        }
        None => 128 << 20,
    }
}

fn map(driver: &mut Driver, memory: &Memory) {
    driver.vmm.client.dma_map(0, BASE, memory.len, memory.fd.as_raw_fd()).unwrap();
}

/// REG_MR of all of it at address 0, in pages of 2 MiB.
fn reg_mr(driver: &Driver, len: u64) -> Body {
    let pages: Vec<u64> = (0..len / HUGE).map(|n| BASE + n * HUGE).collect();
    let list = |words: &[u64]| {
        let at = driver.vmm.memory.pages((words.len() as u64 * 8).div_ceil(PAGE));
        words.iter().zip(0..).for_each(|(&word, n)| driver.vmm.memory.word(at + 8 * n).store(word, Ordering::Relaxed));
        at
    };
    // The same tree for any length: a page of pages.
    let root = list(&pages.chunks(512).map(list).collect::<Vec<_>>());
    Body::new()
        .u32(8, KEY >> 8 | 1 << 28 | 1 << 31)
        .u32(12, ALL_RIGHTS | 5 << 12)
        .u64(16, 0)
        .u32(24, len as u32)
        .u32(28, pages.len() as u32 | 2 << 20 | 21 << 27)
        .u64(32, root)
        .u32(40, (len >> 32) as u32)
        .u32(44, 0)
}

fn works(a: &mut Side, b: &Side, memory: &Memory) {
    let at = memory.len - 4;
    memory.write(at, b"last");
    a.send(WRITE, CE, 1, &write_body([0; 4], (IOVA, b.key), &[Sge(at, 4, KEY)]));
    assert_eq!((a.wait().status, b.region.read(&b.driver, 0, 4)), (0, b"last".to_vec()));
}

#[test]
fn messages_and_commands_are_answered_meanwhile() {
    let place = Place::new();
    let (mut a, b) = pair(&place, 64 << 10);
    for attempt in 1.. {
        let memory = Memory::new(large());
        map(&mut a.driver, &memory);
        let body = reg_mr(&a.driver, memory.len);
        a.driver.submit(0, 8, body);
        // A read that is answered while the completion is not there yet did not wait for it.
        let mut reads = 0;
        while !a.driver.has_completion() {
            assert_eq!(a.driver.vmm.register(0x14), 2);
            reads += u32::from(!a.driver.has_completion());
        }
        let (_, opcode, status, _) = a.driver.completion();
        assert_eq!((opcode, status), (8, 0));
        works(&mut a, &b, &memory);
        let pinned = place.device("a")["vm"]["memory"]["pinned_bytes"].as_u64().unwrap();
        assert!(pinned >= memory.len, "{pinned}");
        a.driver.command(0, 9, Body::new().u32(8, KEY >> 8)).unwrap();
        a.driver.vmm.client.dma_unmap(BASE, memory.len).unwrap();
        if reads > 0 {
            println!("{reads} reads while {} MiB were registered", memory.len >> 20);
            break;
        }
        assert!(attempt < ATTEMPTS, "no message was answered while memory was pinned");
    }
}

/// Commands of other processes overtake it; a second large one waits for the first.
#[test]
fn other_commands_overtake() {
    let place = Place::new();
    let mut driver = Driver::start(&add(&place, "vm", "203.0.113.1"), 16 << 20);
    for attempt in 1.. {
        let memory = Memory::new(64 << 20);
        map(&mut driver, &memory);
        let body = reg_mr(&driver, memory.len);
        driver.submit(0, 8, body.clone());
        // The same index again: refused, once its turn has come.
        driver.submit(0, 8, body);
        driver.submit(1, 2, Body::new());
        let done: Vec<(u8, u8)> = (0..3).map(|_| driver.completion()).map(|(_, opcode, status, _)| (opcode, status)).collect();
        driver.command(0, 9, Body::new().u32(8, KEY >> 8)).unwrap();
        driver.vmm.client.dma_unmap(BASE, memory.len).unwrap();
        let registrations: Vec<_> = done.iter().copied().filter(|done| done.0 == 8).collect();
        assert_eq!(registrations, [(8, 0), (8, 1)]);
        if done[0] == (2, 0) {
            break;
        }
        assert!(attempt < ATTEMPTS, "no command was executed while memory was pinned: {done:?}");
    }
}

/// Memory that is unmapped, a device that is reset, a VMM that goes, all while memory is pinned for a registration.
#[test]
fn what_is_no_longer_wanted_is_given_up() {
    let place = Place::new();
    let (mut a, b) = pair(&place, 64 << 10);
    let memory = Memory::new(128 << 20);
    map(&mut a.driver, &memory);
    let body = reg_mr(&a.driver, memory.len);
    a.driver.submit(0, 8, body.clone());
    a.driver.vmm.client.dma_unmap(BASE, memory.len).unwrap();
    let (_, opcode, status, _) = a.driver.completion();
    assert_eq!(opcode, 8);
    if status == 0 {
        // It was all pinned before the unmap; what it is of has gone all the same.
        a.send(WRITE, CE, 1, &write_body([0; 4], (IOVA, b.key), &[Sge(0, 4, KEY)]));
        assert_ne!(a.wait().status, 0);
    }
    map(&mut a.driver, &memory);
    a.driver.submit(0, 8, body);
    a.driver.vmm.set_register(0x10, 1);
    assert_eq!(a.driver.vmm.register(0x14), 0);
    a.driver.probe();
    let body = reg_mr(&a.driver, memory.len);
    a.driver.submit(0, 8, body);
    drop(a);
    wait_until("nothing is left of the VMM", || {
        let device = &place.device("a")["vm"];
        device["connected"] == false && device["memory"]["pinned_bytes"] == 0
    });
    let socket = place.folder.path().join("a.vm");
    assert_eq!(Vmm::connect(&socket, 1 << 20).register(0), 1);
}
