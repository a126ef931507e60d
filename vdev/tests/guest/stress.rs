//! Guest memory that comes and goes under registrations and transfers, at random.
//!
//! A model knows every byte of all memory that takes part, by object and offset, and which object is mapped where. Each transfer
//! changes the model as the interface says it must; then all memory is compared with it, so that a single byte that was written
//! anywhere else, or read from anywhere else, is seen. Three seconds, or a minute with `VRDMA_LONG` set; `VRDMA_SEED` repeats a run.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::driver::{Body, CE, Region, Sge, write_body};
use super::place::Place;
use super::verbs::{IOVA, Side, gid, pair};
use super::vmm::PAGE;

const WRITE: u8 = 0;
const READ: u8 = 1;
/// Where windows lie in the guest's addresses, and how far apart: not on blocks of 2 MiB.
const BASE: u64 = 1 << 30;
const STRIDE: u64 = 8 << 20;
const WINDOWS: usize = 5;
const WINDOW_PAGES: u64 = 600;
const OBJECTS: usize = 3;
const OBJECT_PAGES: u64 = 1800;
const REGIONS: usize = 12;
/// Most pages of a registration.
const REGION_PAGES: u64 = 150;
/// The peer's memory.
const PEER_LEN: u64 = 512 << 10;
/// Everything is compared after so many steps.
const COMPARE_EVERY: u64 = 40;

/// Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let words = (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes());
        words.take(len).collect()
    }
}

/// Memory that windows show parts of, and what must be in it.
struct Object {
    file: File,
    model: Vec<u8>,
}

impl Object {
    fn new(random: &mut Random) -> Object {
        let file = File::from(memfd_create("window", MFdFlags::MFD_CLOEXEC).unwrap());
        let model = random.bytes((OBJECT_PAGES * PAGE) as usize);
        file.write_all_at(&model, 0).unwrap();
        Object { file, model }
    }

    fn actual(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }
}

/// A part of the guest's addresses.
#[derive(Clone, Copy, Default)]
struct Window {
    /// Object, and its first page there.
    shows: Option<(usize, u64)>,
    /// Counts maps.
    generation: u64,
}

/// A page of a registration: in which window and since which map, and where its bytes are.
#[derive(Clone, Copy)]
struct Place4k {
    window: usize,
    generation: u64,
    object: usize,
    offset: u64,
}

/// A registration of the guest.
#[derive(Clone)]
struct Mr {
    iova: u64,
    len: u64,
    pages: Vec<Place4k>,
}

impl Mr {
    /// The parts of memory that `len` bytes from `at` on are in: page, offset in its object, bytes.
    fn parts(&self, at: u64, len: u64) -> Vec<(Place4k, u64, usize)> {
        let (mut from, end) = (self.iova % PAGE + at, self.iova % PAGE + at + len);
        let mut parts = Vec::new();
        while from < end {
            let page = self.pages[(from / PAGE) as usize];
            let part = (PAGE - from % PAGE).min(end - from);
            parts.push((page, page.offset + from % PAGE, part as usize));
            from += part;
        }
        parts
    }
}

/// A transfer between a registration and the peer's memory.
struct Transfer {
    index: usize,
    at: u64,
    peer_at: u64,
    len: u64,
    /// Into the peer's memory.
    to_peer: bool,
    /// Posted by the guest, else by its peer.
    by_guest: bool,
}

struct Stress {
    random: Random,
    a: Side,
    b: Side,
    peer: Vec<u8>,
    objects: Vec<Object>,
    windows: [Window; WINDOWS],
    mrs: Vec<Option<Mr>>,
    /// Steps, transfers that had to succeed, that had to fail, and that memory went away under.
    counts: [u64; 4],
}

/// The object of windows is not memory of the mock's own: its address for the guest.
fn window_at(window: usize) -> u64 {
    BASE + window as u64 * STRIDE
}

impl Stress {
    fn new(place: &Place, seed: u64) -> Stress {
        let mut random = Random(seed | 1);
        let (a, b) = pair(place, PEER_LEN);
        let peer = random.bytes(PEER_LEN as usize);
        b.region.write(&b.driver, 0, &peer);
        let objects = (0..OBJECTS).map(|_| Object::new(&mut random)).collect();
        let mrs = vec![None; REGIONS];
        Stress { random, a, b, peer, objects, windows: [Window::default(); WINDOWS], mrs, counts: [0; 4] }
    }

    fn step(&mut self) {
        self.counts[0] += 1;
        match self.random.below(10) {
            0 => self.map(),
            1 => self.unmap(),
            2 | 3 => self.register(),
            4 => self.deregister(),
            _ => self.transfer(),
        }
    }

    /// Shows memory that no other window shows, at an address where other memory may have been before.
    fn map(&mut self) {
        let window = self.random.below(WINDOWS as u64) as usize;
        let (object, first) = (self.random.below(OBJECTS as u64) as usize, self.random.below(OBJECT_PAGES - WINDOW_PAGES));
        let overlaps = |shown: &Window| shown.shows.is_some_and(|(o, f)| o == object && f.abs_diff(first) < WINDOW_PAGES);
        if self.windows[window].shows.is_some() || self.windows.iter().any(overlaps) {
            return;
        }
        let fd = self.objects[object].file.as_raw_fd();
        let client = &mut self.a.driver.vmm.client;
        client.dma_map(first * PAGE, window_at(window), WINDOW_PAGES * PAGE, fd).unwrap();
        let generation = self.windows[window].generation + 1;
        self.windows[window] = Window { shows: Some((object, first)), generation };
    }

    fn unmap(&mut self) {
        let window = self.random.below(WINDOWS as u64) as usize;
        self.unmap_window(window);
    }

    fn unmap_window(&mut self, window: usize) {
        if self.windows[window].shows.take().is_some() {
            self.a.driver.vmm.client.dma_unmap(window_at(window), WINDOW_PAGES * PAGE).unwrap();
        }
    }

    fn is_live(&self, page: &Place4k) -> bool {
        let window = self.windows[page.window];
        window.shows.is_some() && window.generation == page.generation
    }

    /// Registers pages of several windows in any order, each once.
    fn register(&mut self) {
        let index = self.random.below(REGIONS as u64) as usize;
        let shown: Vec<usize> = (0..WINDOWS).filter(|&window| self.windows[window].shows.is_some()).collect();
        if self.mrs[index].is_some() || shown.is_empty() {
            return;
        }
        let count = 1 + self.random.below(REGION_PAGES);
        let (mut pages, mut gpas) = (Vec::<Place4k>::new(), Vec::new());
        while (pages.len() as u64) < count {
            let window = shown[self.random.below(shown.len() as u64) as usize];
            let (object, first) = self.windows[window].shows.expect("shown");
            // Runs of neighbours, as real page lists have them.
            let (start, run) = (self.random.below(WINDOW_PAGES), 1 + self.random.below(40));
            for page in start..(start + run).min(WINDOW_PAGES) {
                let (generation, offset) = (self.windows[window].generation, (first + page) * PAGE);
                let taken = pages.iter().any(|other| other.object == object && other.offset == offset);
                if !taken && (pages.len() as u64) < count {
                    pages.push(Place4k { window, generation, object, offset });
                    gpas.push(window_at(window) + page * PAGE);
                }
            }
        }
        let skip = self.random.below(PAGE);
        let len = 1 + self.random.below(count * PAGE - skip);
        let needed = (skip + len).div_ceil(PAGE) as usize;
        pages.truncate(needed);
        gpas.truncate(needed);
        let iova = (self.random.below(1 << 30) << 12) + skip;
        let list = self.a.driver.vmm.memory.mark();
        self.a.driver.register(number(index), 5, &Region { iova, len, pages: gpas }).unwrap();
        // The list was read; nothing may depend on it any more.
        self.a.driver.vmm.memory.rewind(list);
        self.mrs[index] = Some(Mr { iova, len, pages });
    }

    fn deregister(&mut self) {
        let index = self.random.below(REGIONS as u64) as usize;
        if self.mrs[index].take().is_some() {
            self.a.driver.command(0, 9, Body::new().u32(8, number(index))).unwrap();
        }
    }

    fn transfer(&mut self) {
        let registered: Vec<usize> = (0..REGIONS).filter(|&index| self.mrs[index].is_some()).collect();
        if registered.is_empty() {
            return;
        }
        let index = registered[self.random.below(registered.len() as u64) as usize];
        let mr = self.mrs[index].clone().expect("registered");
        let most = if self.random.below(2) == 0 { 100 } else { PEER_LEN };
        let len = (1 + self.random.below(most)).min(mr.len);
        let (at, peer_at) = (self.random.below(mr.len - len + 1), self.random.below(PEER_LEN - len + 1));
        let (to_peer, by_guest) = (self.random.below(2) == 0, self.random.below(2) == 0);
        let transfer = Transfer { index, at, peer_at, len, to_peer, by_guest };
        let parts = mr.parts(at, len);
        self.refresh(&transfer, &parts);
        let started_live: Vec<bool> = parts.iter().map(|(page, ..)| self.is_live(page)).collect();
        let start = self.post(&transfer, &mr);
        // Sometimes memory goes while it is under way.
        let mut gone = Vec::new();
        if self.random.below(4) == 0 {
            let window = parts[self.random.below(parts.len() as u64) as usize].0.window;
            self.unmap_window(window);
            gone = self.bytes_of(&parts).into_iter().zip(&parts).filter(|(_, part)| part.0.window == window).collect();
            self.counts[3] += 1;
        }
        let status = self.wait(transfer.by_guest, start);
        for (bytes, (page, offset, len)) in gone {
            let now = self.objects[page.object].actual(*offset, *len);
            assert!(now == bytes, "memory changed after the VMM was told that nobody uses it");
        }
        let all_live_now = parts.iter().all(|(page, ..)| self.is_live(page));
        if started_live.iter().all(|&live| live) {
            // What was whole to the end had to succeed; what went while it was under way may have been done before.
            assert!(status == 0 || !all_live_now, "status {status} though all of its memory was there");
        } else {
            assert_ne!(status, 0, "a transfer over memory that has gone");
        }
        self.account(&transfer, &parts, &started_live, status == 0);
        if status == 0 {
            self.counts[1] += 1;
        } else {
            self.counts[2] += 1;
            self.reconnect();
        }
    }

    /// New bytes at the source, so that no two places ever hold the same.
    fn refresh(&mut self, transfer: &Transfer, parts: &[(Place4k, u64, usize)]) {
        let bytes = self.random.bytes(transfer.len as usize);
        if !transfer.to_peer {
            self.b.region.write(&self.b.driver, transfer.peer_at, &bytes);
            self.peer[transfer.peer_at as usize..][..bytes.len()].copy_from_slice(&bytes);
            return;
        }
        let mut done = 0;
        for (page, offset, len) in parts {
            let object = &mut self.objects[page.object];
            object.file.write_all_at(&bytes[done..done + len], *offset).unwrap();
            object.model[*offset as usize..][..*len].copy_from_slice(&bytes[done..done + len]);
            done += len;
        }
    }

    /// Posts it; returns the index of its completion.
    fn post(&mut self, transfer: &Transfer, mr: &Mr) -> u32 {
        let key = number(transfer.index) << 8;
        let guest = Sge(mr.iova + transfer.at, transfer.len as u32, key);
        let peer = Sge(IOVA + transfer.peer_at, transfer.len as u32, self.b.key);
        let (side, local, remote) = if transfer.by_guest { (&mut self.a, guest, peer) } else { (&mut self.b, peer, guest) };
        let start = side.qp.sq_pi;
        if transfer.by_guest == transfer.to_peer {
            side.send(WRITE, CE, 1, &write_body([0; 4], (remote.0, remote.2), &[local]));
        } else {
            let mut body = vec![0xAA; 4];
            body.extend(local.1.to_le_bytes());
            body.extend(local.2.to_le_bytes());
            body.extend(local.0.to_le_bytes());
            body.extend([0xAA; 4]);
            body.extend(remote.bytes());
            side.send(READ, CE, 0, &body);
        }
        start.into()
    }

    fn wait(&mut self, by_guest: bool, start: u32) -> u8 {
        let side = if by_guest { &mut self.a } else { &mut self.b };
        loop {
            let done = side.wait();
            if done.index == start {
                return done.status;
            }
        }
    }

    fn bytes_of(&self, parts: &[(Place4k, u64, usize)]) -> Vec<Vec<u8>> {
        parts.iter().map(|(page, offset, len)| self.objects[page.object].actual(*offset, *len)).collect()
    }

    /// Brings the model to what must be there now; of a transfer that failed, any part may have arrived, but only that.
    fn account(&mut self, transfer: &Transfer, parts: &[(Place4k, u64, usize)], started_live: &[bool], succeeded: bool) {
        let peer_at = transfer.peer_at as usize;
        let source: Vec<u8> = match transfer.to_peer {
            true => parts
                .iter()
                .flat_map(|(page, offset, len)| self.objects[page.object].model[*offset as usize..][..*len].to_vec())
                .collect(),
            false => self.peer[peer_at..peer_at + transfer.len as usize].to_vec(),
        };
        if transfer.to_peer {
            let actual = self.b.region.read(&self.b.driver, transfer.peer_at, source.len());
            let model = &mut self.peer[peer_at..][..source.len()];
            let mut live = Vec::with_capacity(source.len());
            parts.iter().zip(started_live).for_each(|((_, _, len), &is)| live.extend(std::iter::repeat_n(is, *len)));
            settle(model, &actual, &source, &live, succeeded);
            return;
        }
        let mut done = 0;
        for ((page, offset, len), &live) in parts.iter().zip(started_live) {
            let object = &mut self.objects[page.object];
            let actual = object.actual(*offset, *len);
            let model = &mut object.model[*offset as usize..][..*len];
            settle(model, &actual, &source[done..done + len], &vec![live; *len], succeeded);
            done += len;
        }
    }

    /// Both ends anew, after a failure that either may have noticed.
    fn reconnect(&mut self) {
        for side in [&mut self.a, &mut self.b] {
            side.driver.set_state(7, 6).unwrap();
            side.driver.set_state(7, 0).unwrap();
            while side.driver.poll(&mut side.cq).is_some() {}
            // Nobody reads these here, and their queue is as long as it is.
            side.driver.async_events();
        }
        self.a.driver.connect(7, 7, gid("203.0.113.2"));
        self.b.driver.connect(7, 7, gid("203.0.113.1"));
    }

    /// Every byte of all memory.
    fn compare(&self) {
        for (n, object) in self.objects.iter().enumerate() {
            let actual = object.actual(0, object.model.len());
            let wrong = actual.iter().zip(&object.model).position(|(actual, model)| actual != model);
            assert_eq!(wrong, None, "a byte of object {n} is not what it must be");
        }
        let actual = self.b.region.read(&self.b.driver, 0, self.peer.len());
        let wrong = actual.iter().zip(&self.peer).position(|(actual, model)| actual != model);
        assert_eq!(wrong, None, "a byte of the peer's memory is not what it must be");
    }
}

/// The guest's number of a registration: 1 is the one that it begins with.
fn number(index: usize) -> u32 {
    index as u32 + 2
}

/// Takes what arrived into the model: `source`, all of it if it succeeded; else each byte of it or what was there before, and
/// nothing of it where the guest's memory had gone before.
fn settle(model: &mut [u8], actual: &[u8], source: &[u8], live: &[bool], succeeded: bool) {
    for (at, byte) in model.iter_mut().enumerate() {
        let arrived = actual[at] == source[at] && live[at];
        let kept = actual[at] == *byte && !succeeded;
        assert!(arrived || kept, "byte {at}: {:#x} is neither {:#x} nor {:#x}", actual[at], source[at], *byte);
        *byte = actual[at];
    }
}

#[test]
fn memory_comes_and_goes_under_transfers_and_no_byte_is_misplaced() {
    let clock = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = std::env::var("VRDMA_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(clock);
    println!("VRDMA_SEED={seed}");
    let long = std::env::var_os("VRDMA_LONG").is_some();
    let end = Instant::now() + Duration::from_secs(if long { 60 } else { 3 });
    let place = Place::new();
    let mut stress = Stress::new(&place, seed);
    // However slow the machine is, all kinds of steps happen.
    while Instant::now() < end || stress.counts[0] < 400 {
        stress.step();
        if stress.counts[0].is_multiple_of(COMPARE_EVERY) {
            stress.compare();
        }
    }
    stress.compare();
    let [steps, succeeded, failed, raced] = stress.counts;
    println!("{steps} steps: {succeeded} transfers succeeded, {failed} failed, memory went away under {raced}");
    assert!(succeeded > 10 && failed > 2 && raced > 2, "the run does not test what it is to test");
}

/// The checker itself: one byte at a wrong place is seen.
#[test]
#[should_panic(expected = "a byte of object 1 is not what it must be")]
fn one_misplaced_byte_is_seen() {
    let place = Place::new();
    let stress = Stress::new(&place, 1);
    stress.compare();
    let at = 12_345;
    stress.objects[1].file.write_all_at(&[!stress.objects[1].model[at as usize]], at).unwrap();
    stress.compare();
}
