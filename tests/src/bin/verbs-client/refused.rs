//! What must be refused, with the status or error number that must come: foreign keys, ranges that end too late or wrap,
//! missing rights, messages that do not fit. Two queue pairs of this process are connected with each other for each case.

use crate::{Outcome, Words, completion, say};
use std::ffi::c_int;
use std::rc::Rc;
use tests::verbs::{Address, Buffer, Cq, Patience, Qp, Region, Session, Sge, Work, access, mask, opcode, send_flag, state};

const MEMORY: usize = 64 << 10;
const CANARY: u8 = 0x5A;

/// `enum ibv_wc_status`.
pub mod status {
    pub const SUCCESS: u32 = 0;
    pub const LOCAL_LENGTH: u32 = 1;
    pub const LOCAL_PROTECTION: u32 = 4;
    pub const FLUSH: u32 = 5;
    pub const BIND: u32 = 6;
    pub const REMOTE_INVALID_REQUEST: u32 = 9;
    pub const REMOTE_ACCESS: u32 = 10;
    pub const REMOTE_OPERATION: u32 = 11;
}

/// Registers memory, prints its keys and address, and checks when told to end that nobody touched it.
pub fn victim() -> Outcome<()> {
    let session = Session::open(None)?;
    let memory = Buffer::private(MEMORY)?;
    memory.write(0, &[CANARY; MEMORY]);
    let region = Region::new(&session, &memory, MEMORY, access::ALL)?;
    say(&format!("keys {} {} {}", region.lkey(), region.rkey(), memory.addr(0)));
    nix::sys::signal::SigSet::from(nix::sys::signal::Signal::SIGTERM).thread_block()?;
    nix::sys::signal::SigSet::from(nix::sys::signal::Signal::SIGTERM).wait()?;
    if memory.read(0, MEMORY) != [CANARY; MEMORY] {
        return Err("somebody wrote into the memory of another tenant".into());
    }
    say("OK");
    Ok(())
}

/// Two connected queue pairs, the memory of the requester and that of the responder.
struct Pair {
    session: Rc<Session>,
    local: Buffer,
    local_region: Region,
    remote: Buffer,
    remote_region: Region,
    cqs: [Rc<Cq>; 2],
    qps: [Qp; 2],
}

impl Pair {
    /// The responder's memory has these rights.
    fn new(session: &Rc<Session>, rights: u32) -> Outcome<Pair> {
        let (local, remote) = (Buffer::private(MEMORY)?, Buffer::private(MEMORY)?);
        remote.write(0, &[CANARY; MEMORY]);
        let local_region = Region::new(session, &local, MEMORY, access::ALL)?;
        // One page less than the buffer: what lies behind must stay.
        let remote_region = Region::new(session, &remote, MEMORY - 4096, rights)?;
        let cqs = [Cq::new(session, 64)?, Cq::new(session, 64)?];
        let qps = [Qp::new(session, &cqs[0], 16, access::ALL)?, Qp::new(session, &cqs[1], 16, access::ALL)?];
        let gid = session.gid()?;
        let patience = Patience { timeout: 10, retry_cnt: 3, rnr_retry: 3 };
        for (own, other) in [(0, 1), (1, 0)] {
            qps[own].connect(&Address { gid, qpn: qps[other].number(), psn: 3 }, 3, 3, patience)?;
        }
        Ok(Pair { session: session.clone(), local, local_region, remote, remote_region, cqs, qps })
    }

    /// A WRITE of `len` bytes to this offset of the responder's memory.
    fn write(&self, offset: u64, len: u32) -> Work {
        Work {
            wr_id: 1,
            opcode: opcode::WRITE,
            flags: send_flag::SIGNALED,
            remote_addr: self.remote.addr(0).wrapping_add(offset),
            rkey: self.remote_region.rkey(),
            sges: vec![Sge { addr: self.local.addr(0), length: len, lkey: self.local_region.lkey() }],
            ..Work::default()
        }
    }

    /// Posts the request and one behind it: the first must get this status, the second must be flushed if it is an error.
    fn expect(&self, name: &str, work: Work, expected: u32) -> Outcome<()> {
        let behind = Work { wr_id: 2, ..self.write(0, 8) };
        self.qps[0].post_send(&[work, behind])?;
        let first = completion(&self.cqs[0])?;
        if (first.wr_id, first.status) != (1, expected) {
            return Err(format!("{name}: expected status {expected}, got {first:?}").into());
        }
        let second = completion(&self.cqs[0])?;
        let then = if expected == status::SUCCESS { status::SUCCESS } else { status::FLUSH };
        if (second.wr_id, second.status) != (2, then) {
            return Err(format!("{name}: expected status {then} for the next request, got {second:?}").into());
        }
        let untouched = if expected == status::SUCCESS { MEMORY - 4096..MEMORY } else { 0..MEMORY };
        if self.remote.read(untouched.start, untouched.len()).iter().any(|&byte| byte != CANARY) {
            return Err(format!("{name}: memory was changed although the request was refused").into());
        }
        say(&format!("refused {name}"));
        Ok(())
    }
}

/// `--foreign-lkey`, `--foreign-rkey`, `--foreign-addr`: what [`victim`] printed.
pub fn run(words: &Words) -> Outcome<()> {
    let session = Session::open(None)?;
    remote_ranges_and_keys(&session)?;
    foreign_keys(&session, words)?;
    rights(&session)?;
    local_buffers(&session)?;
    memory_that_is_gone(&session)?;
    messages_that_do_not_fit(&session)?;
    queues(&session)?;
    calls(&session)?;
    say("OK");
    Ok(())
}

fn remote_ranges_and_keys(session: &Rc<Session>) -> Outcome<()> {
    let end = (MEMORY - 4096) as u64;
    let pair = || Pair::new(session, access::ALL);
    let p = pair()?;
    p.expect("nothing: a WRITE that just fits", p.write(end - 3000, 3000), status::SUCCESS)?;
    let p = pair()?;
    p.expect("WRITE of 3 packets ending one byte late", p.write(end - 2999, 3000), status::REMOTE_ACCESS)?;
    let p = pair()?;
    p.expect("WRITE starting one byte early", p.write(u64::MAX, 100), status::REMOTE_ACCESS)?;
    let p = pair()?;
    let wrapping = Work { remote_addr: u64::MAX - 10, ..p.write(0, 100) };
    p.expect("WRITE to an address that wraps", wrapping, status::REMOTE_ACCESS)?;
    let p = pair()?;
    let wrapping = Work { remote_addr: u64::MAX - 10, opcode: opcode::READ, ..p.write(0, 100) };
    p.expect("READ from an address that wraps", wrapping, status::REMOTE_ACCESS)?;
    let p = pair()?;
    let unknown = Work { rkey: 0xDEAD_BEEF, ..p.write(0, 100) };
    p.expect("WRITE with an unknown key", unknown, status::REMOTE_ACCESS)?;
    let p = pair()?;
    let stale = Region::new(session, &p.remote, MEMORY, access::ALL)?.rkey();
    p.expect("WRITE with a key that was freed", Work { rkey: stale, ..p.write(0, 100) }, status::REMOTE_ACCESS)?;
    let p = pair()?;
    let pd = p.session.another_pd()?;
    let other = Region::in_pd(session, pd, &p.remote, MEMORY, p.remote.addr(0), access::ALL)?;
    p.expect("WRITE with a key of another PD", Work { rkey: other.rkey(), ..p.write(0, 100) }, status::REMOTE_ACCESS)?;
    let p = pair()?;
    let zero = Work { opcode: opcode::READ, rkey: 0xDEAD_BEEF, sges: Vec::new(), ..p.write(0, 0) };
    p.expect("nothing: a READ of 0 bytes with an unknown key", zero, status::SUCCESS)?;
    let p = pair()?;
    let sges = vec![Sge { addr: p.local.addr(0), length: 8, lkey: p.local_region.lkey() }];
    let misaligned = Work { opcode: opcode::FETCH_ADD, compare_add: 1, remote_addr: p.remote.addr(4), sges, ..p.write(0, 8) };
    p.expect("an atomic on an address that is not aligned", misaligned, status::REMOTE_INVALID_REQUEST)
}

fn foreign_keys(session: &Rc<Session>, words: &Words) -> Outcome<()> {
    let Some(addr) = words.text("foreign-addr") else { return Ok(()) };
    let remote_addr: u64 = addr.parse()?;
    let rkey = u32::try_from(words.number("foreign-rkey", 0)?)?;
    let lkey = u32::try_from(words.number("foreign-lkey", 0)?)?;
    for (name, opcode) in [("WRITE", opcode::WRITE), ("READ", opcode::READ), ("FETCH_ADD", opcode::FETCH_ADD)] {
        let p = Pair::new(session, access::ALL)?;
        let work = Work { opcode, remote_addr, rkey, ..p.write(0, 8) };
        p.expect(&format!("{name} with a remote key of another tenant"), work, status::REMOTE_ACCESS)?;
    }
    let p = Pair::new(session, access::ALL)?;
    let sges = vec![Sge { addr: remote_addr, length: 8, lkey }];
    p.expect("a local key of another tenant", Work { sges, ..p.write(0, 8) }, status::LOCAL_PROTECTION)
}

fn rights(session: &Rc<Session>) -> Outcome<()> {
    let local = access::LOCAL_WRITE;
    let cases = [
        ("WRITE without the right", opcode::WRITE, local | access::REMOTE_READ | access::REMOTE_ATOMIC),
        ("READ without the right", opcode::READ, local | access::REMOTE_WRITE | access::REMOTE_ATOMIC),
        ("atomic without the right", opcode::FETCH_ADD, local | access::REMOTE_WRITE | access::REMOTE_READ),
    ];
    for (name, opcode, rights) in cases {
        let p = Pair::new(session, rights)?;
        p.expect(name, Work { opcode, ..p.write(0, 8) }, status::REMOTE_ACCESS)?;
    }
    Ok(())
}

/// Makes a local buffer that must not be accepted.
type BadSge = fn(&Pair) -> Sge;

fn local_buffers(session: &Rc<Session>) -> Outcome<()> {
    let cases: [(&str, BadSge); 3] = [
        ("an unknown local key", |p| Sge { addr: p.local.addr(0), length: 8, lkey: 0xDEAD_BEEF }),
        ("a local buffer that ends one byte late", |p| Sge {
            addr: p.local.addr(MEMORY - 7),
            length: 8,
            lkey: p.local_region.lkey(),
        }),
        ("a local buffer that wraps", |p| Sge { addr: u64::MAX - 3, length: 8, lkey: p.local_region.lkey() }),
    ];
    for (name, sge) in cases {
        let p = Pair::new(session, access::ALL)?;
        let work = Work { sges: vec![sge(&p)], ..p.write(0, 8) };
        p.expect(name, work, status::LOCAL_PROTECTION)?;
    }
    Ok(())
}

/// Memory that the program has unmapped while it is registered and names in a request: the request fails, the program lives.
/// The sizes take the ways in which the library and the daemon reach private memory.
fn memory_that_is_gone(session: &Rc<Session>) -> Outcome<()> {
    for length in [8, 4096, 60_000] {
        let p = Pair::new(session, access::ALL)?;
        p.local.take_away()?;
        let sges = vec![Sge { addr: p.local.addr(0), length, lkey: p.local_region.lkey() }];
        p.qps[0].post_send(&[Work { sges, ..p.write(0, length) }])?;
        let wc = completion(&p.cqs[0])?;
        if wc.status != status::LOCAL_PROTECTION {
            return Err(format!("a WRITE of {length} bytes from memory that is gone: {wc:?}").into());
        }
        say(&format!("refused a WRITE of {length} bytes from memory that is gone"));
    }
    let p = Pair::new(session, access::ALL)?;
    p.local.take_away()?;
    let inline = Work { flags: send_flag::INLINE | send_flag::SIGNALED, ..p.write(0, 8) };
    expect_errno("inline data from memory that is gone", p.qps[0].post_send(&[inline]), libc::EFAULT)?;
    // As the target of the peer: it is told, and so is its next request.
    let p = Pair::new(session, access::ALL)?;
    p.remote.take_away()?;
    p.qps[0].post_send(&[p.write(0, 4096)])?;
    let wc = completion(&p.cqs[0])?;
    if ![status::REMOTE_ACCESS, status::REMOTE_OPERATION].contains(&wc.status) {
        return Err(format!("a WRITE to memory that is gone: {wc:?}").into());
    }
    say("refused a WRITE to memory that is gone");
    Ok(())
}

fn messages_that_do_not_fit(session: &Rc<Session>) -> Outcome<()> {
    for len in [101, 5000] {
        let p = Pair::new(session, access::ALL)?;
        let sge = Sge { addr: p.remote.addr(0), length: 100, lkey: p.remote_region.lkey() };
        p.qps[1].post_recv(9, &[sge])?;
        p.qps[0].post_send(&[Work { opcode: opcode::SEND, ..p.write(0, len) }])?;
        let (sender, receiver) = (completion(&p.cqs[0])?, completion(&p.cqs[1])?);
        if (sender.status, receiver.status) != (status::REMOTE_INVALID_REQUEST, status::LOCAL_LENGTH) {
            return Err(format!("SEND of {len} bytes into 100: sender {sender:?}, receiver {receiver:?}").into());
        }
        if p.remote.read(100, MEMORY - 100).iter().any(|&byte| byte != CANARY) {
            return Err(format!("SEND of {len} bytes into 100 wrote behind the receive").into());
        }
        say(&format!("refused a SEND of {len} bytes into a receive of 100"));
    }
    Ok(())
}

/// Queue limits and the order of flushed requests.
fn queues(session: &Rc<Session>) -> Outcome<()> {
    let p = Pair::new(session, access::ALL)?;
    let attr = tests::verbs::QpAttr { qp_state: state::ERR, ..Default::default() };
    for number in 0..10 {
        p.qps[1].post_recv(number, &[])?;
    }
    p.qps[1].modify(attr, mask::STATE)?;
    // Posting in the error state works, and is flushed too.
    p.qps[1].post_recv(10, &[])?;
    p.qps[1].post_send(&[Work { wr_id: 11, ..p.write(0, 8) }])?;
    let mut receives = Vec::new();
    let mut sends = Vec::new();
    for _ in 0..12 {
        let wc = completion(&p.cqs[1])?;
        if wc.status != status::FLUSH {
            return Err(format!("expected a flushed request, got {wc:?}").into());
        }
        if wc.wr_id == 11 { sends.push(wc.wr_id) } else { receives.push(wc.wr_id) }
    }
    if receives != (0..=10).collect::<Vec<_>>() || sends != [11] {
        return Err(format!("flushed out of order: receives {receives:?}, sends {sends:?}").into());
    }
    say("refused nothing: all was flushed in order");
    let sge = Sge { addr: p.local.addr(0), length: 8, lkey: p.local_region.lkey() };
    let p = Pair::new(session, access::ALL)?;
    expect_errno(
        "a request with 17 buffers",
        p.qps[0].post_send(&[Work { sges: vec![sge; 17], ..p.write(0, 8) }]),
        libc::EINVAL,
    )?;
    expect_errno("a receive with 17 buffers", p.qps[0].post_recv(1, &[sge; 17]), libc::EINVAL)?;
    let inline = Work { flags: send_flag::INLINE | send_flag::SIGNALED, ..p.write(0, 4096) };
    expect_errno("4096 inline bytes", p.qps[0].post_send(&[inline]), libc::EINVAL)?;
    expect_errno("an unknown opcode", p.qps[0].post_send(&[Work { opcode: 77, ..p.write(0, 8) }]), libc::EINVAL)?;
    let too_many: std::io::Result<()> = (0..=16384).try_for_each(|number| p.qps[0].post_recv(number, &[]));
    expect_errno("more receives than the queue holds", too_many, libc::ENOMEM)
}

/// Control calls with values that cannot be.
fn calls(session: &Rc<Session>) -> Outcome<()> {
    let memory = Buffer::private(MEMORY)?;
    let pd = session.pd();
    let register = |len, iova, rights| Region::in_pd(session, pd, &memory, len, iova, rights).map(drop);
    expect_errno("remote WRITE without local WRITE", register(4096, memory.addr(0), access::REMOTE_WRITE), libc::EINVAL)?;
    expect_errno("a region whose addresses wrap", register(4096, u64::MAX - 100, access::ALL), libc::EINVAL)?;
    expect_errno("memory that is not there", register(1 << 40, memory.addr(0), access::ALL), libc::EFAULT)?;
    expect_errno("a CQ without entries", Cq::new(session, 0).map(drop), libc::EINVAL)?;
    expect_errno("a CQ of 2^31 - 1 entries", Cq::new(session, c_int::MAX).map(drop), libc::EINVAL)?;
    let cq = Cq::new(session, 16)?;
    let qp = Qp::new(session, &cq, 16, access::ALL)?;
    let early = qp.post_send(&[Work { opcode: opcode::SEND, ..Work::default() }]);
    expect_errno("a SEND in state INIT", early, libc::EINVAL)?;
    let peer = Address { gid: session.gid()?, qpn: qp.number(), psn: 0 };
    let patience = Patience { timeout: 14, retry_cnt: 7, rnr_retry: 7 };
    expect_errno("path MTU code 6", qp.connect(&peer, 0, 6, patience), libc::EINVAL)?;
    expect_errno("path MTU code 0", qp.connect(&peer, 0, 0, patience), libc::EINVAL)?;
    if qp.state()? != state::INIT {
        return Err("a refused ibv_modify_qp changed the state".into());
    }
    Ok(())
}

fn expect_errno(name: &str, result: std::io::Result<()>, errno: c_int) -> Outcome<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(errno) => {
            say(&format!("refused {name}"));
            Ok(())
        }
        other => Err(format!("{name}: expected error {errno}, got {other:?}").into()),
    }
}
