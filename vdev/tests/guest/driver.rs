//! The guest's driver and its processes, played: what the mainline driver and provider do, as far as the device can see it.

use std::path::Path;
use std::sync::atomic::Ordering;

use super::place::wait_until;
use super::vmm::{PAGE, Vmm};

/// Rights in REG_MR: all of them.
pub const ALL_RIGHTS: u32 = 0x3E;
/// Command queue depths.
const DEPTH: u32 = 512;
const EQ_DEPTH: u32 = 128;
const AEQ_DEPTH: u32 = 4096;
const CEQ_LOG: u32 = 12;
/// Completion event queues that the driver makes.
pub const CEQS: u64 = 2;
/// Bytes of a command.
pub const COMMAND: usize = 128;

/// A command's body in the making.
#[derive(Clone)]
pub struct Body(pub [u8; COMMAND]);

impl Body {
    pub fn new() -> Body {
        // What a driver leaves unset holds anything.
        Body([0xAA; COMMAND])
    }

    pub fn u32(mut self, at: usize, value: u32) -> Body {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    pub fn u64(mut self, at: usize, value: u64) -> Body {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
        self
    }

    pub fn bytes(mut self, at: usize, bytes: &[u8]) -> Body {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }
}

/// A driver that has probed.
pub struct Driver {
    pub vmm: Vmm,
    sq: u64,
    cq: u64,
    eq: u64,
    records: u64,
    sq_pi: u16,
    cq_ci: u32,
    eq_ci: u32,
    aeq: u64,
    aeq_ci: u32,
    ceqs: Vec<(u64, u32)>,
    /// Page index of the process's doorbell pages: send, receive, completion queues.
    pub pages: [u64; 3],
}

fn new_entry(owner: bool, ci: u32, depth: u32) -> bool {
    owner != (ci & depth != 0)
}

impl Driver {
    /// Connects as a VMM and probes, up to an open device context.
    pub fn start(socket: &Path, bytes: u64) -> Driver {
        let mut driver = Driver::unprobed(socket, bytes);
        driver.probe();
        driver
    }

    pub fn unprobed(socket: &Path, bytes: u64) -> Driver {
        let vmm = Vmm::connect(socket, bytes);
        let pages = |count| vmm.memory.pages(count);
        let (sq, cq, eq, aeq, records) = (pages(4), pages(4), pages(1), pages(16), pages(1));
        let ceqs = (0..CEQS).map(|_| (pages(16), 0)).collect();
        let (sq_pi, cq_ci, eq_ci, aeq_ci) = (0, 0, 0, 0);
        Driver { vmm, sq, cq, eq, records, sq_pi, cq_ci, eq_ci, aeq, aeq_ci, ceqs, pages: [0; 3] }
    }

    /// As the driver's probe does, and one process that opens the device.
    pub fn probe(&mut self) {
        self.initialise();
        for eqn in 1..=CEQS {
            let ring = self.ceqs[eqn as usize - 1].0;
            let body = Body::new().u64(8, ring).bytes(16, &[eqn as u8, eqn as u8, CEQ_LOG as u8, 1]).u32(20, 0).u32(24, 0);
            self.command(1, 0, body).unwrap();
        }
        self.arm_commands();
        let [first, second] = self.command(0, 0, Body::new()).unwrap();
        assert_eq!(first >> 24 & 0xFF, 0xA8, "atomics, scattered lists, doorbell pages");
        assert_eq!((second >> 16 & 0xFFF, second >> 32), (16, 0xFFFF_FF00));
        self.command(1, 5, Body::new().u32(8, 1 << 31 | 12)).unwrap();
        let [pages, _] = self.command(1, 8, Body::new().u32(8, 7)).unwrap();
        // The driver maps the page in the upper bits for completion queues.
        self.pages = [pages & 0xFFFF, pages >> 32 & 0xFFFF, pages >> 48];
    }

    /// Registers up to init.
    pub fn initialise(&mut self) {
        let vmm = &mut self.vmm;
        assert_eq!(vmm.config(0), 0x107f_1ded);
        vmm.set_config(4, 0x6);
        assert_ne!(vmm.register(0), 0, "version");
        assert_eq!(vmm.register(0x0C), 1, "RoCEv2");
        assert_eq!((vmm.register(0x18), vmm.register(0x1C)), (0x0000_0001, 0x5254), "MAC address");
        for (ring, pages) in [(self.sq, 4), (self.cq, 4), (self.eq, 1), (self.aeq, 16), (self.records, 1)] {
            vmm.memory.write(ring, &vec![0; pages * PAGE as usize]);
        }
        for (ring, _) in &self.ceqs {
            vmm.memory.write(*ring, &vec![0; 16 * PAGE as usize]);
        }
        for (at, address) in [(0x40, self.aeq), (0x20, self.sq), (0x28, self.cq), (0x38, self.eq)] {
            vmm.set_register(at + 4, (address >> 32) as u32);
            vmm.set_register(at, address as u32);
        }
        vmm.set_register(0x48, AEQ_DEPTH);
        vmm.set_register(0x30, DEPTH);
        vmm.set_register(0x34, EQ_DEPTH);
        for (n, at) in [0x60, 0x68, 0x70, 0x78].into_iter().enumerate() {
            vmm.doorbell(at, self.records + 8 * n as u64);
        }
        vmm.set_register(0x10, 2);
        assert_eq!(vmm.register(0x14) & 2, 2, "init is done at once");
        (self.sq_pi, self.cq_ci, self.eq_ci, self.aeq_ci) = (0, 0, 0, 0);
        self.ceqs.iter_mut().for_each(|(_, ci)| *ci = 0);
    }

    /// Asks for an interrupt at the next completion of a command.
    pub fn arm_commands(&mut self) {
        self.vmm.doorbell(0x300, u64::from(self.cq_ci & 0xFF_FFFF) | 1 << 31);
    }

    /// Puts a command into the ring and rings.
    pub fn submit(&mut self, module: u8, opcode: u8, mut body: Body) {
        let blocks = (COMMAND / 32) as u16;
        let start = self.sq_pi;
        self.sq_pi = self.sq_pi.wrapping_add(blocks);
        let header = u64::from(self.sq_pi)
            | u64::from(opcode) << 16
            | u64::from(module) << 24
            | 0x77 << 32
            | u64::from(blocks - 1) << 52;
        body.0[..8].copy_from_slice(&header.to_le_bytes());
        for (n, block) in body.0.chunks(32).enumerate() {
            let at = u64::from(start.wrapping_add(n as u16)) % u64::from(DEPTH) * 32;
            self.vmm.memory.write(self.sq + at, block);
        }
        self.vmm.doorbell(0x200, self.sq_pi.into());
    }

    /// Whether a command has completed.
    pub fn has_completion(&self) -> bool {
        let at = self.cq + u64::from(self.cq_ci % DEPTH) * 32;
        let first = self.vmm.memory.word(at).load(Ordering::Acquire) as u32;
        new_entry(first.to_be() >> 31 == 1, self.cq_ci, DEPTH)
    }

    /// The next completion of a command: index, opcode, status, response.
    pub fn completion(&mut self) -> (u32, u8, u8, [u64; 2]) {
        let at = self.cq + u64::from(self.cq_ci % DEPTH) * 32;
        wait_until("a command completes", || self.has_completion());
        self.cq_ci += 1;
        let entry = self.vmm.memory.read(at, 32);
        let word = |n: usize| u32::from_be_bytes(entry[4 * n..4 * n + 4].try_into().unwrap());
        assert_eq!(word(0) >> 8 & 0xFF, 2, "a command's completion");
        let quads = [u64::from(word(3)) << 32 | u64::from(word(2)), u64::from(word(5)) << 32 | u64::from(word(4))];
        (word(1), (word(0) >> 16) as u8, word(0) as u8, quads)
    }

    /// Executes a command; the error is its status.
    pub fn command(&mut self, module: u8, opcode: u8, body: Body) -> Result<[u64; 2], u8> {
        let start = self.sq_pi;
        self.submit(module, opcode, body);
        let (index, completed, status, quads) = self.completion();
        assert_eq!((index, completed), (start.into(), opcode));
        if status == 0 { Ok(quads) } else { Err(status) }
    }

    /// Takes the entries of the command event queue, as the interrupt handler does, and arms it again.
    pub fn command_events(&mut self) -> u32 {
        let before = self.eq_ci;
        loop {
            let at = self.eq + u64::from(self.eq_ci % EQ_DEPTH) * 16;
            if !new_entry(self.vmm.memory.word(at).load(Ordering::Acquire) >> 31 & 1 == 1, self.eq_ci, EQ_DEPTH) {
                break;
            }
            self.eq_ci += 1;
        }
        self.vmm.doorbell(0x100, u64::from(self.eq_ci) | 1 << 31);
        self.eq_ci - before
    }

    /// At most `most` completion queue numbers from an event queue, which is then armed again.
    pub fn completion_events(&mut self, eqn: usize, most: usize) -> Vec<u32> {
        let (ring, mut ci) = self.ceqs[eqn - 1];
        let mut found = Vec::new();
        while found.len() < most {
            let word = self.vmm.memory.word(ring + u64::from(ci % (1 << CEQ_LOG)) * 16).load(Ordering::Acquire);
            if !new_entry(word >> 31 & 1 == 1, ci, 1 << CEQ_LOG) {
                break;
            }
            ci += 1;
            found.push(word as u32 & 0xF_FFFF);
        }
        self.ceqs[eqn - 1].1 = ci;
        self.vmm.doorbell(0x100 + 8 * eqn as u64, u64::from(ci & 0xFFFF) | 1 << 31);
        found
    }

    /// Asynchronous events so far: type and number.
    pub fn async_events(&mut self) -> Vec<(u8, u32)> {
        let mut found = Vec::new();
        loop {
            let word = self.vmm.memory.word(self.aeq + u64::from(self.aeq_ci % AEQ_DEPTH) * 16).load(Ordering::Acquire);
            if !new_entry(word >> 31 & 1 == 1, self.aeq_ci, AEQ_DEPTH) {
                break;
            }
            self.aeq_ci += 1;
            found.push(((word >> 16) as u8, (word >> 32) as u32));
        }
        self.vmm.doorbell(0x50, u64::from(self.aeq_ci) | 1 << 31);
        found
    }

    pub fn set_gid(&mut self, index: u32, gid: [u8; 16]) {
        self.command(0, 14, Body::new().u32(8, index).bytes(12, &gid)).unwrap();
    }

    /// REG_MR over scattered pages; the list's form follows from their number, as in the driver.
    pub fn register(&mut self, index: u32, pdn: u32, region: &Region) -> Result<[u64; 2], u8> {
        let body = self.reg_mr(index, pdn, region);
        self.command(0, 8, body)
    }

    pub fn reg_mr(&mut self, index: u32, pdn: u32, region: &Region) -> Body {
        let pages = &region.pages;
        let list = |pages: &[u64]| {
            let at = self.vmm.memory.pages((pages.len() as u64 * 8).div_ceil(PAGE));
            let bytes: Vec<u8> = pages.iter().flat_map(|page| page.to_le_bytes()).collect();
            self.vmm.memory.write(at, &bytes);
            at
        };
        let (level, first) = match pages.len() {
            0..=4 => (0, 0),
            5..=512 => (1, list(pages)),
            _ => (2, list(&pages.chunks(512).map(list).collect::<Vec<_>>())),
        };
        let version = u32::from(level == 2);
        let mut body = Body::new()
            .u32(8, index | version << 28 | 1 << 31)
            .u32(12, ALL_RIGHTS | pdn << 12)
            .u64(16, region.iova)
            .u32(24, region.len as u32)
            .u32(28, pages.len() as u32 | level << 20 | 12 << 27)
            .u64(32, first);
        if level == 0 {
            for (n, page) in pages.iter().enumerate() {
                body = body.u64(32 + 8 * n, *page);
            }
        } else if level == 2 {
            body = body.u32(40, (region.len >> 32) as u32).u32(44, 0);
        }
        body
    }

    pub fn create_cq(&mut self, cqn: u32, eqn: u32, log_depth: u32) -> Cq {
        let pages = (32u64 << log_depth).div_ceil(PAGE);
        let ring = self.vmm.memory.pages(pages);
        let record = self.vmm.memory.pages(1);
        // One page as large as the ring: it is in one piece here.
        let shift = pages.next_power_of_two().trailing_zeros();
        let body = Body::new()
            .u32(8, cqn | shift << 20 | log_depth << 24)
            .u64(12, ring)
            .u32(20, eqn | 1 << 11 | 1 << 16)
            .u64(24, record)
            .u32(32, 0)
            .u32(36, self.pages[1] as u32);
        self.command(0, 4, body).unwrap();
        Cq { cqn, ring, depth: 1 << log_depth, ci: 0, record, page: self.pages[2] }
    }

    /// The body of CREATE_QP for rings of one page each, and the queue pair that it makes.
    pub fn qp(&self, qpn: u32, pdn: u32, cqn: u32) -> (Body, Qp) {
        let pages = |count| self.vmm.memory.pages(count);
        let (sq, rq, record) = (pages(1), pages(1), pages(1));
        let body = Body::new()
            .u32(8, qpn | Qp::LOG_SEND << 20)
            .u32(12, pdn | Qp::LOG_RECV << 20)
            .u32(16, cqn | 1 << 25)
            .u32(20, cqn)
            .u64(24, sq)
            .u64(32, rq)
            .u32(40, 1 << 1)
            .u32(44, 1 << 1)
            .u64(48, record)
            .u64(56, record + 8)
            .u32(112, (self.pages[0] as u32) << 16 | self.pages[2] as u32)
            .u32(116, 0);
        (body, Qp { qpn, sq, rq, record, sq_pi: 0, rq_pi: 0, pages: [self.pages[0], self.pages[1]] })
    }

    pub fn create_qp(&mut self, qpn: u32, pdn: u32, cqn: u32) -> Qp {
        let (body, qp) = self.qp(qpn, pdn, cqn);
        self.command(0, 1, body).unwrap();
        qp
    }

    /// A completion queue of the guest's kernel: one piece of memory, the doorbell page that all of the kernel's share.
    pub fn create_kernel_cq(&mut self, cqn: u32) -> Cq {
        let (ring, record) = (self.vmm.memory.pages(8), self.vmm.memory.pages(1));
        let body = Body::new().u32(8, cqn | 13 << 20 | 10 << 24).u64(12, ring).u32(20, 1 | 1 << 16).u64(24, record);
        self.command(0, 4, body.u32(32, 0)).unwrap();
        Cq { cqn, ring, depth: 1024, ci: 0, record, page: 121 }
    }

    /// A queue pair of the guest's kernel, in RTS if it is for datagrams.
    pub fn create_kernel_qp(&mut self, qpn: u32, pdn: u32, cqn: u32, is_ud: bool) -> Qp {
        let (body, mut qp) = self.qp(qpn, pdn, cqn);
        qp.pages = [95, 97];
        let body = body.u32(16, cqn | 8 << 28).u32(20, cqn | 8 << 28).u32(116, u32::from(is_ud));
        self.command(0, 1, body).unwrap();
        if is_ud {
            self.command(0, 3, Body::new().u32(8, qpn | 1 << 24).u32(16, 0b11).u32(20, 0x8001_0000)).unwrap();
            self.set_state(qpn, 2).unwrap();
            self.command(0, 3, Body::new().u32(8, qpn | 3 << 24).u32(16, 0b1001).u32(28, 0)).unwrap();
        }
        qp
    }

    /// CREATE_AH towards `gid` (v4-mapped), from the address at index 1.
    pub fn create_ah(&mut self, pdn: u32, ahn: u32, gid: [u8; 16]) -> Result<[u64; 2], u8> {
        let body = Body::new().u32(8, pdn).u32(12, ahn).u32(16, 0).bytes(20, &[0, 64, 0]).bytes(24, &[1, 0xC0, 1, 0]);
        self.command(0, 15, body.bytes(36, &gid))
    }

    /// MODIFY_QP to a state, with nothing else.
    pub fn set_state(&mut self, qpn: u32, state: u32) -> Result<[u64; 2], u8> {
        self.command(0, 3, Body::new().u32(8, qpn | state << 24).u32(16, 1))
    }

    /// INIT, RTR, RTS towards `peer` at `gid` (v4-mapped), from the address at index 1.
    pub fn connect(&mut self, qpn: u32, peer: u32, gid: [u8; 16]) {
        self.connect_from(qpn, peer, gid, 77);
    }

    /// The same with the first sequence number that is sent.
    pub fn connect_from(&mut self, qpn: u32, peer: u32, gid: [u8; 16], psn: u32) {
        self.set_state(qpn, 1).unwrap();
        // STATE, AV, RQ_PSN, DST_QPN.
        let rtr = Body::new().u32(8, qpn | 2 << 24).u32(12, peer).u32(16, 0b11_0101).u32(24, 77);
        let rtr = rtr.u32(32, 0).bytes(36, &[0, 64, 0]).bytes(40, &[1, 0xC0, 1, 0]).bytes(52, &gid);
        self.command(0, 3, rtr).unwrap();
        self.command(0, 3, Body::new().u32(8, qpn | 3 << 24).u32(16, 0b1001).u32(28, psn)).unwrap();
    }

    /// Stores a send entry, its record and its doorbell. `words` are the entry behind its header.
    pub fn post_send(&mut self, qp: &mut Qp, opcode: u8, flags: u64, count: u8, body: &[u8]) {
        let blocks = (8 + body.len()).div_ceil(32) as u16;
        let start = qp.sq_pi;
        qp.sq_pi = qp.sq_pi.wrapping_add(blocks);
        let header = u64::from(qp.sq_pi)
            | flags
            | u64::from(opcode) << 27
            | u64::from(qp.qpn) << 32
            | u64::from(blocks - 1) << 52
            | u64::from(count) << 56;
        let mut entry = header.to_le_bytes().to_vec();
        entry.extend(body);
        entry.resize(usize::from(blocks) * 32, 0xAA);
        for (n, block) in entry.chunks(32).enumerate() {
            let index = u64::from(start.wrapping_add(n as u16)) % (1 << Qp::LOG_SEND);
            self.vmm.memory.write(qp.sq + index * 32, block);
        }
        self.ring_send(qp);
    }

    pub fn ring_send(&mut self, qp: &Qp) {
        let value = u64::from(qp.sq_pi) | u64::from(qp.qpn) << 32;
        self.vmm.memory.word(qp.record).store(value, Ordering::Release);
        self.vmm.doorbell(qp.pages[0] * PAGE + 128 * u64::from(qp.qpn & 31), value);
    }

    pub fn post_recv(&mut self, qp: &mut Qp, sge: Sge) {
        let at = qp.rq + u64::from(qp.rq_pi) % (1 << Qp::LOG_RECV) * 32;
        qp.rq_pi = qp.rq_pi.wrapping_add(1);
        let first = u64::from(qp.rq_pi) | 0x5555 << 16 | u64::from(qp.qpn) << 32;
        self.vmm.memory.write(at, &first.to_le_bytes());
        self.vmm.memory.write(at + 16, &sge.bytes());
        self.vmm.memory.word(qp.record + 8).store(first, Ordering::Release);
        self.vmm.doorbell(qp.pages[1] * PAGE + 32 * u64::from(qp.qpn & 127), first);
    }

    /// Asks for an event, of any entry or of solicited ones.
    pub fn arm(&mut self, cq: &Cq, solicited: bool) {
        let value = u64::from(cq.ci & 0xFF_FFFF) | u64::from(solicited) << 30 | 1 << 31 | u64::from(cq.cqn) << 32;
        self.vmm.memory.word(cq.record).store(value, Ordering::Release);
        self.vmm.doorbell(cq.page * PAGE + 8 * u64::from(cq.cqn & 511), value);
    }

    pub fn poll(&mut self, cq: &mut Cq) -> Option<Cqe> {
        let at = cq.ring + u64::from(cq.ci % cq.depth) * 32;
        let first = (self.vmm.memory.word(at).load(Ordering::Acquire) as u32).to_be();
        if !new_entry(first >> 31 == 1, cq.ci, cq.depth) {
            return None;
        }
        cq.ci += 1;
        let entry = self.vmm.memory.read(at, 32);
        let word = |n: usize| u32::from_be_bytes(entry[4 * n..4 * n + 4].try_into().unwrap());
        assert_eq!(entry[20..28], [0; 8], "nothing is told that is not meant");
        Some(Cqe {
            opcode: (first >> 16) as u8,
            receive: first >> 8 & 0xFF == 1,
            status: first as u8,
            index: word(1),
            qpn: word(2),
            imm: word(3).swap_bytes(),
            len: word(4),
            sender: word(7),
        })
    }

    pub fn wait(&mut self, cq: &mut Cq) -> Cqe {
        let mut found = None;
        wait_until("a completion comes", || {
            found = self.poll(cq);
            found.is_some()
        });
        found.unwrap()
    }
}

/// A buffer entry.
#[derive(Clone, Copy)]
pub struct Sge(pub u64, pub u32, pub u32);

impl Sge {
    pub fn bytes(self) -> Vec<u8> {
        let Sge(addr, len, key) = self;
        [&addr.to_le_bytes()[..], &len.to_le_bytes(), &key.to_le_bytes()].concat()
    }
}

/// What follows the header of a WRITE: immediate data, length, key, address, buffers.
pub fn write_body(imm: [u8; 4], remote: (u64, u32), sges: &[Sge]) -> Vec<u8> {
    let len: u32 = sges.iter().map(|sge| sge.1).sum();
    let mut body = imm.to_vec();
    body.extend(len.to_le_bytes());
    body.extend(remote.1.to_le_bytes());
    body.extend(remote.0.to_le_bytes());
    body.extend([0xAA; 4]);
    sges.iter().for_each(|sge| body.extend(sge.bytes()));
    body
}

/// The same of a SEND.
pub fn send_body(imm: [u8; 4], sges: &[Sge]) -> Vec<u8> {
    let len: u32 = sges.iter().map(|sge| sge.1).sum();
    let mut body = imm.to_vec();
    body.extend(len.to_le_bytes());
    sges.iter().for_each(|sge| body.extend(sge.bytes()));
    body
}

/// The same of a datagram to QP1 behind an address handle.
pub fn mad_body(ahn: u32, sge: Sge) -> Vec<u8> {
    let mut body = vec![0xAA; 4];
    [sge.1, 0x8001_0000, 1, ahn, 0xAAAA_AAAA].iter().for_each(|word| body.extend(word.to_le_bytes()));
    body.extend(sge.bytes());
    body
}

/// Flags of send entries: completion wanted; solicited; inline data.
pub const CE: u64 = 1 << 22;
pub const SE: u64 = 1 << 23;
pub const INLINE: u64 = 1 << 25;

/// Memory of a process, in pages that lie anywhere.
pub struct Region {
    pub iova: u64,
    pub len: u64,
    pub pages: Vec<u64>,
}

impl Region {
    /// So many bytes whose pages lie in descending order, so that nothing is contiguous by chance.
    pub fn scattered(driver: &Driver, iova: u64, len: u64) -> Region {
        let count = (iova % PAGE + len).div_ceil(PAGE);
        let base = driver.vmm.memory.pages(count);
        Region { iova, len, pages: (0..count).rev().map(|n| base + n * PAGE).collect() }
    }

    fn each(&self, offset: u64, len: usize, mut each: impl FnMut(u64, usize, usize)) {
        let mut done = 0;
        while done < len {
            let at = self.iova % PAGE + offset + done as u64;
            let part = (len - done).min((PAGE - at % PAGE) as usize);
            each(self.pages[(at / PAGE) as usize] + at % PAGE, done, part);
            done += part;
        }
    }

    pub fn write(&self, driver: &Driver, offset: u64, bytes: &[u8]) {
        self.each(offset, bytes.len(), |gpa, from, len| driver.vmm.memory.write(gpa, &bytes[from..from + len]));
    }

    pub fn read(&self, driver: &Driver, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.each(offset, len, |gpa, _, len| bytes.extend(driver.vmm.memory.read(gpa, len)));
        bytes
    }
}

/// A completion queue.
pub struct Cq {
    pub cqn: u32,
    ring: u64,
    depth: u32,
    pub ci: u32,
    record: u64,
    page: u64,
}

/// A queue pair.
pub struct Qp {
    pub qpn: u32,
    pub sq: u64,
    pub rq: u64,
    pub record: u64,
    pub sq_pi: u16,
    pub rq_pi: u16,
    pub pages: [u64; 2],
}

impl Qp {
    /// log2 of blocks of the send queue and entries of the receive queue.
    pub const LOG_SEND: u32 = 6;
    pub const LOG_RECV: u32 = 5;
}

/// A completion, with immediate data as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cqe {
    pub opcode: u8,
    pub receive: bool,
    pub status: u8,
    pub index: u32,
    pub qpn: u32,
    pub imm: u32,
    pub len: u32,
    /// Datagrams only: family and queue pair of the sender.
    pub sender: u32,
}
