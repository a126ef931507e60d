//! What any VMM may say: regions, configuration space, interrupts, memory; and what it may not.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use vfio_user::Client;

use super::driver::{Body, Driver, Region};
use super::place::{Place, wait_until};
use super::vmm::{CONFIG, Memory, PAGE, Vmm, add};

const MIB: u64 = 1 << 20;

/// A message as bytes.
fn message(command: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = [7u16.to_le_bytes(), command.to_le_bytes()].concat();
    bytes.extend((16 + body.len() as u32).to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend(body);
    bytes
}

/// A connection that speaks by hand.
struct Hand(UnixStream);

impl Hand {
    fn dial(socket: &std::path::Path) -> Hand {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Hand(stream)
    }

    /// After VERSION.
    fn open(socket: &std::path::Path) -> Hand {
        let mut hand = Hand::dial(socket);
        assert_eq!(hand.ask(1, &[0, 0, 0, 0]).0, 0);
        hand
    }

    /// The error number and body of the reply.
    fn ask(&mut self, command: u16, body: &[u8]) -> (u32, Vec<u8>) {
        self.0.write_all(&message(command, body)).unwrap();
        self.reply(command)
    }

    fn ask_with(&mut self, command: u16, body: &[u8], fds: &[i32]) -> (u32, Vec<u8>) {
        let bytes = message(command, body);
        let iov = [std::io::IoSlice::new(&bytes)];
        sendmsg::<()>(self.0.as_raw_fd(), &iov, &[ControlMessage::ScmRights(fds)], MsgFlags::empty(), None).unwrap();
        self.reply(command)
    }

    fn reply(&mut self, command: u16) -> (u32, Vec<u8>) {
        let mut header = [0; 16];
        self.0.read_exact(&mut header).unwrap();
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!((word(0) as u16, (word(0) >> 16) as u16), (7, command));
        let mut body = vec![0; word(4) as usize - 16];
        self.0.read_exact(&mut body).unwrap();
        let is_error = word(8) & 0x20 != 0;
        assert_eq!((word(8) & 0xF, is_error), (1, word(12) != 0), "a reply");
        assert!(!is_error || body.is_empty(), "an error is a header alone");
        (word(12), body)
    }

    fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        // What was not read any more makes the end a reset.
        let read = self.0.read_to_end(&mut rest);
        read.map_or_else(|error| error.kind() == std::io::ErrorKind::ConnectionReset, |_| true)
    }
}

fn dma(rights: u32, offset: u64, address: u64, size: u64) -> Vec<u8> {
    let mut body = [32u32.to_le_bytes(), rights.to_le_bytes()].concat();
    for value in [offset, address, size] {
        body.extend(value.to_le_bytes());
    }
    body
}

fn works(socket: &std::path::Path) {
    assert_eq!(Vmm::connect(socket, MIB).config(0), 0x107f_1ded);
}

#[test]
fn a_pci_function_is_found() {
    let place = Place::new();
    let mut vmm = Vmm::connect(&add(&place, "vm", "203.0.113.1"), MIB);
    let sizes: Vec<u64> = (0..9).map(|index| vmm.client.region(index).unwrap().size).collect();
    assert_eq!(sizes, [4 << 20, 0, 8192, 0, 0, 0, 0, 256, 0]);
    // Class, revision; header type; the capability list leads to MSI-X.
    assert_eq!(vmm.config(8) >> 8, 0x02_0700);
    let capability = u64::from(vmm.config(0x34));
    assert_eq!(vmm.config(capability), 0x001F_0011);
    // As Cloud Hypervisor sizes BARs; absent ones read as zero.
    for (at, expected) in [(0x10, 0xFFC0_0004u32), (0x18, 0xFFFF_E004), (0x20, 0)] {
        vmm.set_config(at, u32::MAX);
        assert_eq!(vmm.config(at), expected);
    }
    // As QEMU reads it: in one piece. And whatever it asks for from the MSI-X table is nothing.
    let mut whole = [1; 256];
    vmm.client.region_read(CONFIG, 0, &mut whole).unwrap();
    assert_eq!(whole[..4], [0xed, 0x1d, 0x7f, 0x10]);
    let mut table = [1; 4096];
    vmm.client.region_read(2, 4096, &mut table).unwrap();
    assert_eq!(table, [0; 4096]);
    assert!(place.device("vm")["vm"]["connected"].as_bool().unwrap());
}

/// VU-01: nothing that a header says is believed further than a message can go.
#[test]
fn sizes_that_no_message_has_end_the_connection() {
    let place = Place::new();
    let socket = add(&place, "vm", "203.0.113.1");
    for size in [0u32, 15, 1 << 20, u32::MAX] {
        let mut hand = Hand::open(&socket);
        let mut bytes = message(4, &[0; 16]);
        bytes[4..8].copy_from_slice(&size.to_le_bytes());
        hand.0.write_all(&bytes).unwrap();
        assert!(hand.is_closed(), "size {size}");
    }
    // Half a message, and the client is gone.
    let mut hand = Hand::open(&socket);
    hand.0.write_all(&message(10, &[0; 100])[..50]).unwrap();
    drop(hand);
    // Byte by byte is a message too.
    let mut hand = Hand::open(&socket);
    for byte in message(4, &[0; 16]) {
        hand.0.write_all(&[byte]).unwrap();
    }
    assert_eq!(hand.reply(4).1.len(), 16);
    drop(hand);
    works(&socket);
}

/// VU-03.
#[test]
fn version_comes_first_and_once() {
    let place = Place::new();
    let socket = add(&place, "vm", "203.0.113.1");
    for body in [&b"\x63\0\0\0"[..], b"\0\0\0\0{", b"\0\0\0\0[]\0", b"\0\0\0\0{\"capabilities\":", b""] {
        let mut hand = Hand::dial(&socket);
        assert_ne!(hand.ask(1, body).0, 0, "{body:?}");
        assert!(hand.is_closed(), "{body:?}");
    }
    let mut hand = Hand::dial(&socket);
    assert_eq!(hand.ask(4, &[0; 16]).0, libc::EINVAL as u32);
    assert!(hand.is_closed());
    let mut hand = Hand::dial(&socket);
    let (_, body) = hand.ask(1, b"\0\0\x01\0{\"capabilities\":{\"max_msg_fds\":8}}\0");
    assert_eq!(body[..4], [0, 0, 1, 0]);
    let json: serde_json::Value = serde_json::from_slice(&body[4..body.len() - 1]).unwrap();
    assert_eq!(json["capabilities"]["max_msg_fds"], 16);
    assert_eq!(hand.ask(1, &[0, 0, 0, 0]).0, libc::EINVAL as u32);
    assert_eq!(hand.ask(4, &[0; 16]).0, 0, "the conversation goes on");
}

/// Migration, dirty pages and what else is not offered is refused and harms nothing.
#[test]
fn what_is_not_offered_is_refused() {
    let place = Place::new();
    let mut hand = Hand::open(&add(&place, "vm", "203.0.113.1"));
    for command in [0, 6, 11, 12, 14, 15, 16, 17, 18, 200] {
        assert_eq!(hand.ask(command, &[0; 32]).0, libc::ENOTSUP as u32, "command {command}");
    }
    let access = |offset: u64, region: u32, count: u32| {
        [&offset.to_le_bytes()[..], &region.to_le_bytes(), &count.to_le_bytes()].concat()
    };
    // Regions that are not there, or not so long.
    for (offset, region, count) in
        [(0, 9, 4), (0, 1, 4), (4 << 20, 0, 4), (u64::MAX, 0, 8), ((4 << 20) - 4, 0, 8), (0, 7, 70_000)]
    {
        assert_eq!(hand.ask(9, &access(offset, region, count)).0, libc::EINVAL as u32);
    }
    // Accesses of odd sizes do nothing.
    for len in [1, 2, 3, 5, 16, 4096] {
        let body = [access(0x200, 0, len), vec![0xFF; len as usize]].concat();
        assert_eq!(hand.ask(10, &body).0, 0);
    }
    let (_, body) = hand.ask(9, &access(0, 0, 4096));
    assert_eq!(body[16..20], [1, 0, 0, 0]);
    assert!(body[16 + 0x20..].iter().all(|&byte| byte == 0), "HG-15: what has no meaning reads as zero");
    // A descriptor where none belongs.
    assert_eq!(hand.ask_with(4, &[0; 16], &[0]).0, libc::EINVAL as u32);
}

/// VU-07.
#[test]
fn maps_of_memory_are_checked_and_leave_others_intact() {
    let place = Place::new();
    let mut hand = Hand::open(&add(&place, "vm", "203.0.113.1"));
    let memory = Memory::new(4 * MIB);
    let fd = [memory.fd.as_raw_fd()];
    assert_eq!(hand.ask_with(2, &dma(3, 0, MIB, MIB), &fd).0, 0);
    let (invalid, exists) = (libc::EINVAL as u32, libc::EEXIST as u32);
    for (rights, offset, address, size, errno) in [
        (3, 0, 8 * MIB, 0, invalid),
        (3, 0, 8 * MIB + 1, PAGE, invalid),
        (3, 0, 8 * MIB, PAGE + 1, invalid),
        (3, 0, u64::MAX - PAGE + 1, 2 * PAGE, invalid),
        (3, 1, 8 * MIB, PAGE, invalid),
        (3, 4 * MIB, 8 * MIB, PAGE, invalid),
        (0, 0, 8 * MIB, PAGE, invalid),
        (7, 0, 8 * MIB, PAGE, invalid),
        (3, 0, MIB, MIB, exists),
        (3, 0, MIB + PAGE, PAGE, exists),
        (3, 0, 0, 4 * MIB, exists),
    ] {
        assert_eq!(
            hand.ask_with(2, &dma(rights, offset, address, size), &fd).0,
            errno,
            "{rights} {offset} {address:#x} {size:#x}"
        );
    }
    assert_eq!(hand.ask_with(2, &dma(3, 0, 8 * MIB, PAGE), &[fd[0], fd[0]]).0, invalid);
    // A file that does not live in memory.
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert_ne!(hand.ask_with(2, &dma(1, 0, 8 * MIB, PAGE), &[file.as_raw_fd()]).0, 0);
    // Memory without a descriptor is known, and not usable.
    assert_eq!(hand.ask(2, &dma(1, 0, 16 * MIB, MIB)).0, 0);
    assert_eq!(place.device("vm")["vm"]["memory"]["mapped_bytes"], 2 * MIB);
    // A part of a region cannot be unmapped; all of it can, once.
    assert_eq!(hand.ask(3, &dma(0, MIB, PAGE, 0)[..24]).0, invalid);
    assert_eq!(hand.ask(3, &dma(0, MIB, MIB, 0)[..24]).0, 0);
    assert_eq!(hand.ask(3, &dma(0, MIB, MIB, 0)[..24]).0, libc::ENOENT as u32);
    // As many as there may be, and one more.
    let mut refused = 0;
    for n in 0..4200 {
        refused += u32::from(hand.ask(2, &dma(1, 0, (1 << 30) + n * PAGE, PAGE)).0 != 0);
    }
    assert_eq!(refused, 4200 - 4095, "the limit of regions");
    assert_eq!(hand.ask(3, &[[24, 0, 0, 0, 2, 0, 0, 0].as_slice(), &[0; 16]].concat()).0, 0);
    assert_eq!(place.device("vm")["vm"]["memory"]["mapped_bytes"], 0);
}

#[test]
fn interrupts_are_eventfds_of_vectors_that_exist() {
    let place = Place::new();
    let socket = add(&place, "vm", "203.0.113.1");
    let mut vmm = Vmm::connect(&socket, MIB);
    vmm.set_config(4, 0x6);
    // Triggered by the VMM itself: none, and one per byte.
    vmm.client.set_irqs(2, 1 | 32, 5, 1, &[]).unwrap();
    vmm.wait_for(5);
    drop(vmm);
    let mut hand = Hand::open(&socket);
    let irqs = |flags: u32, index: u32, start: u32, count: u32| {
        [20, flags, index, start, count].iter().flat_map(|word: &u32| word.to_le_bytes()).collect::<Vec<u8>>()
    };
    let event = nix::sys::eventfd::EventFd::new().unwrap();
    let fd = event.as_fd().as_raw_fd();
    assert_eq!(hand.ask_with(8, &irqs(36, 2, 31, 1), &[fd]).0, 0);
    let (read, _write) = nix::unistd::pipe().unwrap();
    for (body, fds) in [
        (irqs(36, 2, 32, 1), vec![fd]),
        (irqs(36, 2, u32::MAX, 2), vec![fd]),
        (irqs(36, 2, 0, 2), vec![fd]),
        (irqs(36, 2, 0, 1), vec![read.as_raw_fd()]),
        (irqs(36, 0, 0, 1), vec![fd]),
        (irqs(36, 9, 0, 1), vec![fd]),
        (irqs(12, 2, 0, 1), vec![fd]),
        (irqs(0, 2, 0, 1), vec![fd]),
    ] {
        assert_eq!(hand.ask_with(8, &body, &fds).0, libc::EINVAL as u32, "{body:?}");
    }
    for (index, count) in [(0, 0), (1, 0), (2, 32), (3, 0), (4, 0)] {
        let (errno, body) = hand.ask(7, &[[16, 0, index, 0].map(u32::to_le_bytes).concat()].concat());
        assert_eq!((errno, u32::from_le_bytes(body[12..16].try_into().unwrap())), (0, count));
    }
    assert_eq!(hand.ask(7, &[5; 16]).0, libc::EINVAL as u32);
    assert_eq!(hand.ask(8, &irqs(33, 2, 0, 0)).0, 0, "all are switched off");
}

/// VU-15: the second VMM has to wait, and disturbs nobody.
#[test]
fn a_second_vmm_waits_for_the_first_to_go() {
    let place = Place::new();
    let socket = add(&place, "vm", "203.0.113.1");
    let mut first = Vmm::connect(&socket, MIB);
    let later = socket.clone();
    let second = std::thread::spawn(move || Vmm::connect(&later, MIB).config(0));
    for _ in 0..50 {
        assert_eq!(first.config(0), 0x107f_1ded);
    }
    assert!(!second.is_finished(), "the first is still there");
    drop(first);
    assert_eq!(second.join().unwrap(), 0x107f_1ded);
}

/// VU-11: VMMs come and go, and nothing of them stays.
#[test]
fn many_vmms_leave_nothing_behind() {
    let place = Place::new();
    let socket = add(&place, "vm", "203.0.113.1");
    let round = || {
        let mut driver = Driver::start(&socket, 4 * MIB);
        let region = Region::scattered(&driver, 0x7000, 3 * PAGE);
        driver.register(1, 0, &region).unwrap();
        driver.create_cq(1, 1, 6);
        driver.create_qp(2, 0, 1);
    };
    let gone = || {
        wait_until("nothing is left", || {
            let vm = &place.device("vm")["vm"];
            !vm["connected"].as_bool().unwrap()
                && vm["memory"]["pinned_bytes"] == 0
                && vm["memory"]["mapped_bytes"] == 0
                && vm["qps"] == 0
        });
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    };
    round();
    let before = gone();
    for _ in 0..40 {
        round();
    }
    // Other tests of this process open descriptors too, some dozens at a time, but not one for each of thousands.
    let after = gone();
    assert!(after < before + 400, "{before} descriptors became {after}");
}

/// VU-13: bus master off ends DMA and interrupts before the reply, and the driver can probe again.
#[test]
fn bus_master_off_and_reset_stop_the_device() {
    let place = Place::new();
    let mut driver = Driver::start(&add(&place, "vm", "203.0.113.1"), 4 * MIB);
    driver.create_cq(1, 1, 6);
    driver.vmm.set_config(4, 0x2);
    assert_eq!(driver.vmm.register(0x14), 0, "not initialised any more");
    assert_eq!(place.device("vm")["vm"]["cqs"], 0);
    // An eventfd is emptied by one read.
    let told = |driver: &Driver| (0..32).filter(|&vector| driver.vmm.has_interrupt(vector)).count();
    told(&driver);
    // Without the right to DMA nothing can be initialised, and no doorbell has an effect.
    driver.vmm.set_register(0x10, 2);
    assert_eq!(driver.vmm.register(0x14), 0);
    driver.submit(0, 0, Body::new());
    assert_eq!((driver.vmm.register(0x14), told(&driver)), (0, 0));
    driver.probe();
    driver.create_cq(1, 1, 6);
    // The VMM's reset: the client of the crate wants a reply, and the function is as after power-on.
    driver.vmm.client.reset().unwrap();
    assert_eq!((driver.vmm.config(4) & 6, driver.vmm.register(0x14)), (0, 0));
    assert_eq!(place.device("vm")["vm"]["cqs"], 0);
}

#[test]
fn a_device_goes_while_its_vmm_is_connected() {
    let place = Place::new();
    let socket = add(&place, "vm", "203.0.113.1");
    let driver = Driver::start(&socket, 4 * MIB);
    assert_eq!(place.http("DELETE", "/v1/devices/vm", "").0, 204);
    assert!(!socket.exists());
    drop(driver);
    // Its address and its socket are free again.
    works(&add(&place, "vm", "203.0.113.1"));
}

#[test]
fn a_socket_that_nobody_serves_is_taken_over() {
    let place = Place::new();
    let path = place.folder.path().join("vm.vm");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    works(&add(&place, "vm", "203.0.113.1"));
    // A file that is no socket is nobody's to remove.
    let file = place.folder.path().join("other.vm");
    std::fs::write(&file, "data").unwrap();
    let body = format!("{{\"ips\":[\"203.0.113.2\"],\"vfio_user\":{:?}}}", file.to_str().unwrap());
    assert_eq!(place.http("PUT", "/v1/devices/other", &body).0, 500);
    assert_eq!(std::fs::read(&file).unwrap(), b"data");
    // A running daemon's socket is not taken over.
    let body = format!("{{\"ips\":[\"203.0.113.3\"],\"vfio_user\":{:?}}}", path.to_str().unwrap());
    assert_eq!(place.http("PUT", "/v1/devices/third", &body).0, 500);
    assert!(Client::new(&path).is_ok());
}

/// HG-17: inits, resets, doorbells, maps and unmaps on top of one another, as many processors of a guest and a VMM that waits for
/// no reply would send them.
#[test]
fn resets_on_top_of_one_another_are_taken_in_order() {
    let place = Place::new();
    let socket = add(&place, "vm", "203.0.113.1");
    let mut hand = Hand::open(&socket);
    let memory = Memory::new(4 * MIB);
    let write = |region: u32, offset: u64, value: u64, len: usize| {
        let head = [&offset.to_le_bytes()[..], &region.to_le_bytes(), &(len as u32).to_le_bytes()].concat();
        message(10, &[head, value.to_le_bytes()[..len].to_vec()].concat())
    };
    assert_eq!(hand.ask_with(2, &dma(3, 0, 0, 4 * MIB), &[memory.fd.as_raw_fd()]).0, 0);
    let mut round = Vec::new();
    let queues = [(0x20, 0x1000), (0x28, 0x5000), (0x38, 0x9000), (0x40, 0x10000), (0x30, 512), (0x34, 128), (0x48, 4096)];
    round.push(write(7, 4, 6, 2));
    round.extend(queues.map(|(at, value)| write(0, at, value, 4)));
    for (at, value, len) in [(0x10, 2, 4), (0x200, 4, 8), (0x10, 2, 4), (0x200, 8, 8), (0x300, 1 << 31, 8), (0x10, 1, 4)] {
        round.push(write(0, at, value, len));
    }
    round.extend([write(0, 0x10, 2, 4), write(7, 4, 0, 2), message(13, &[]), message(13, &[])]);
    // A thread reads the replies, so that neither side waits for the other.
    let expected = 100 * round.len();
    let mut replies = hand.0.try_clone().unwrap();
    let reader = std::thread::spawn(move || {
        for _ in 0..expected {
            let mut header = [0; 16];
            replies.read_exact(&mut header).unwrap();
            assert_eq!(u32::from_le_bytes(header[12..].try_into().unwrap()), 0, "no error");
            let mut body = vec![0; u32::from_le_bytes(header[4..8].try_into().unwrap()) as usize - 16];
            replies.read_exact(&mut body).unwrap();
        }
    });
    for _ in 0..100 {
        hand.0.write_all(&round.concat()).unwrap();
    }
    reader.join().unwrap();
    drop(hand);
    works(&socket);
}
