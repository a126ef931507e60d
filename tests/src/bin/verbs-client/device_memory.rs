//! Memory of a device as memory of RDMA: moved from and to, and taken back under live registrations, by the program that frees it and
//! by the exporter behind its back. Two queue pairs of this process are connected for each case, and two more that nothing may hurt.

use crate::connection::Connection;
use crate::refused::status;
use crate::{Outcome, Words, completion, say};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::rc::Rc;
use tests::exporter::Exporter;
use tests::verbs::{Buffer, Region, Session, Sge, Wc, Work, access, opcode, send_flag, state};

const LEN: usize = 4 << 20;
/// Where regions begin in their buffers, and by which address.
const OFFSET: usize = 8192;
const IOVA: u64 = 0x7000_0000_2000;
const BYTES: u32 = (LEN - OFFSET) as u32;

/// Memory with a registration, and where its first byte is in its view.
struct Memory {
    region: Region,
    iova: u64,
}

fn host(session: &Rc<Session>) -> Outcome<(Buffer, Memory)> {
    let buffer = Buffer::private(LEN)?;
    let region = Region::new(session, &buffer, LEN, access::ALL)?;
    let iova = buffer.addr(0);
    Ok((buffer, Memory { region, iova }))
}

fn device(session: &Rc<Session>, exporter: &Exporter) -> Outcome<Memory> {
    let place = (OFFSET as u64, BYTES as usize);
    Ok(Memory { region: Region::of_buffer(session, exporter.buffer(), place, IOVA, access::ALL)?, iova: IOVA })
}

/// `--daemon PID`: whose mappings are looked at.
pub fn run(words: &Words) -> Outcome<()> {
    let session = Session::open(None)?;
    let exporter = Exporter::new(LEN)?;
    say(&format!("exporter {}", exporter.name()));
    edges(&session, &exporter)?;
    data(&session, &exporter)?;
    let daemon = words.number("daemon", 0)?;
    for (name, opcode) in [("WRITE", opcode::WRITE), ("READ", opcode::READ)] {
        for whose in ["peer", "own"] {
            for under_way in [false, true] {
                let case = format!("{name}, {whose} memory, under way: {under_way}");
                freed(&session, &exporter, opcode, whose == "peer", under_way, daemon).map_err(|e| format!("{case}: {e}"))?;
                say(&format!("freed {case}"));
            }
            let case = format!("{name}, {whose} memory");
            if taken_away(&session, &exporter, opcode, whose == "peer").map_err(|e| format!("taken away, {case}: {e}"))? {
                say(&format!("taken away {case}"));
            } else {
                say(&format!("not taken away: {} keeps what it has exported", exporter.name()));
            }
        }
    }
    say("OK");
    Ok(())
}

fn check(what: &str, is_so: bool) -> Outcome<()> {
    if is_so { Ok(()) } else { Err(what.to_owned().into()) }
}

impl Connection {
    /// Posts a request and waits for it.
    fn carry_out(&self, opcode: u32, ours: &Memory, theirs: &Memory, len: u32) -> Outcome<Wc> {
        self.post(opcode, ours, theirs, len)?;
        completion(&self.cqs[0])
    }

    fn post(&self, opcode: u32, ours: &Memory, theirs: &Memory, len: u32) -> Outcome<()> {
        let sges = vec![Sge { addr: ours.iova, length: len, lkey: ours.region.lkey() }];
        let (remote_addr, rkey) = (theirs.iova, theirs.region.rkey());
        let work = Work { opcode, flags: send_flag::SIGNALED, remote_addr, rkey, sges, compare_add: 5, ..Work::default() };
        Ok(self.qps[0].post_send(&[work])?)
    }
}

/// What can be registered of a buffer, and what not.
fn edges(session: &Rc<Session>, exporter: &Exporter) -> Outcome<()> {
    let end = LEN as u64;
    for (what, place, good) in [
        ("all of it", (0, LEN), true),
        ("the last byte", (end - 1, 1), true),
        ("one byte too many", (0, LEN + 1), false),
        ("the byte behind", (end, 1), false),
        ("a range that wraps", (u64::MAX, 2), false),
        ("no bytes", (0, 0), false),
    ] {
        let made = Region::of_buffer(session, exporter.buffer(), place, 0, access::ALL);
        check(&format!("{what}: {made:?}"), made.is_ok() == good)?;
        check(what, made.err().is_none_or(|error| error.raw_os_error() == Some(libc::EINVAL)))?;
    }
    if exporter.name() == "memfd" {
        let read_only = std::fs::File::open(format!("/proc/self/fd/{}", exporter.buffer().as_raw_fd()))?.into();
        let refused = Region::of_buffer(session, &read_only, (0, LEN), 0, access::ALL).err();
        check(&format!("a read-only descriptor: {refused:?}"), errno(refused) == Some(libc::EACCES))?;
        drop(Region::of_buffer(session, &read_only, (0, LEN), 0, access::REMOTE_READ)?);
    }
    let file = std::fs::File::open("/proc/self/exe")?;
    let refused = Region::of_buffer(session, &file.into(), (0, 4096), 0, 0).err();
    check(&format!("a file: {refused:?}"), errno(refused) == Some(libc::EOPNOTSUPP))
}

fn errno(error: Option<std::io::Error>) -> Option<i32> {
    error?.raw_os_error()
}

/// From host to device, on to another device, and back; and an atomic.
fn data(session: &Rc<Session>, exporter: &Exporter) -> Outcome<()> {
    let other = Exporter::new(LEN)?;
    let (first, second) = (device(session, exporter)?, device(session, &other)?);
    check("the daemon does not say whose memory it is", shown(exporter.name())? == 2)?;
    let (buffer, memory) = host(session)?;
    let bytes: Vec<u8> = (0..BYTES).map(|n| (n * 31 + n / 251) as u8).collect();
    buffer.write(0, &bytes);
    let connection = Connection::new(session)?;
    let moves = |what: &str, opcode, ours, theirs, target: &Buffer, at| {
        let wc = connection.carry_out(opcode, ours, theirs, BYTES)?;
        check(&format!("{what}: {wc:?}"), wc.status == status::SUCCESS && target.read(at, bytes.len()) == bytes)
    };
    moves("WRITE from host to device", opcode::WRITE, &memory, &first, exporter.view(), OFFSET)?;
    moves("READ from device to device", opcode::READ, &second, &first, other.view(), OFFSET)?;
    buffer.write(0, &[0; LEN]);
    moves("WRITE from device to host", opcode::WRITE, &second, &memory, &buffer, 0)?;
    check("bytes before the region", exporter.view().read(0, OFFSET).iter().all(|&byte| byte == 0))?;
    let before = exporter.view().read(OFFSET, 8);
    let wc = connection.carry_out(opcode::FETCH_ADD, &memory, &first, 8)?;
    check(&format!("an atomic: {wc:?}"), wc.status == status::SUCCESS && buffer.read(0, 8) == before)?;
    let sum = |bytes: Vec<u8>| u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
    check("its sum", sum(exporter.view().read(OFFSET, 8)) == sum(before).wrapping_add(5))
}

/// How many regions of a driver this program has, as the daemon shows it.
fn shown(driver: &str) -> Outcome<u64> {
    let socket = std::env::var("VRDMA_SOCKET")?;
    let folder = Path::new(&socket).parent().ok_or("a socket is in a folder")?;
    let (device, api) = (folder.file_name().ok_or("it has a name")?, folder.join("../../api.sock"));
    let (_, answer) = tests::http(&api, "GET", &format!("/v1/devices/{}", device.display()), "")?;
    let answer: serde_json::Value = serde_json::from_str(&answer)?;
    Ok(answer["clients"][0]["device_mrs"][driver].as_u64().unwrap_or(0))
}

/// Whether the daemon has any device's memory mapped.
fn is_mapped(daemon: u64) -> Outcome<bool> {
    let maps = std::fs::read_to_string(format!("/proc/{daemon}/maps"))?;
    Ok(maps.lines().any(|line| line.contains("/memfd:device-memory") || line.contains("/dmabuf:")))
}

/// The program takes the memory back: what touches it fails, and nothing else.
fn freed(session: &Rc<Session>, exporter: &Exporter, opcode: u32, is_peers: bool, under_way: bool, daemon: u64) -> Outcome<()> {
    let (gone, another) = (device(session, exporter)?, device(session, exporter)?);
    let (_buffer, stays) = host(session)?;
    let (ours, theirs) = if is_peers { (&stays, &gone) } else { (&gone, &stays) };
    let (connection, bystander) = (Connection::new(session)?, Connection::new(session)?);
    check("the daemon has mapped the buffer", is_mapped(daemon)?)?;
    let posted = if under_way { 32 } else { 0 };
    for _ in 0..posted {
        connection.post(opcode, ours, theirs, BYTES)?;
    }
    let revoked = session.revoke_buffer(exporter.buffer())?;
    check(&format!("{revoked} regions revoked"), revoked == 2)?;
    check("the daemon has the buffer mapped still", !is_mapped(daemon)?)?;
    let bytes = exporter.view().read(0, LEN);
    connection.post(opcode, ours, theirs, 8)?;
    let mut statuses = Vec::new();
    for _ in 0..=posted {
        statuses.push(completion(&connection.cqs[0])?.status);
    }
    let failed = if is_peers { status::REMOTE_ACCESS } else { status::LOCAL_PROTECTION };
    let first_bad = statuses.iter().position(|&found| found != status::SUCCESS).ok_or("nothing failed")?;
    let flushed = statuses[first_bad + 1..].iter().all(|&found| found == status::FLUSH);
    check(&format!("{statuses:?}"), statuses[first_bad] == failed && flushed)?;
    check("memory was written to after it was taken back", exporter.view().read(0, LEN) == bytes)?;
    let wanted = if is_peers { connection.is_in(state::ERR)? } else { connection.qps[0].state()? == state::ERR };
    check("the state of the queue pairs", wanted)?;
    // Other memory, and another connection, are as before.
    let (_buffer, other) = host(session)?;
    let wc = bystander.carry_out(opcode, &stays, &other, BYTES)?;
    check(&format!("another connection: {wc:?}"), wc.status == status::SUCCESS && bystander.is_in(state::RTS)?)?;
    check("a region of the same buffer", bystander.carry_out(opcode, &another, &other, 8)?.status == status::LOCAL_PROTECTION)?;
    // What is registered anew is memory again.
    check("the second time there is nothing", session.revoke_buffer(exporter.buffer())? == 0)?;
    drop((gone, another));
    let again = device(session, exporter)?;
    let wc = Connection::new(session)?.carry_out(opcode, &again, &other, BYTES)?;
    check(&format!("after all: {wc:?}"), wc.status == status::SUCCESS)
}

/// The exporter takes the memory away: the request that finds out fails, and from there on the memory is not reached any more even if
/// there is some again.
fn taken_away(session: &Rc<Session>, exporter: &Exporter, opcode: u32, is_peers: bool) -> Outcome<bool> {
    let gone = device(session, exporter)?;
    let (_buffer, stays) = host(session)?;
    let (ours, theirs) = if is_peers { (&stays, &gone) } else { (&gone, &stays) };
    let (connection, bystander) = (Connection::new(session)?, Connection::new(session)?);
    if !exporter.take_away()? {
        return Ok(false);
    }
    let wc = connection.carry_out(opcode, ours, theirs, BYTES)?;
    let failed = if is_peers { status::REMOTE_OPERATION } else { status::LOCAL_PROTECTION };
    check(&format!("the first to find out: {wc:?}"), wc.status == failed)?;
    exporter.bring_back()?;
    let wc = Connection::new(session)?.carry_out(opcode, ours, theirs, BYTES)?;
    let failed = if is_peers { status::REMOTE_ACCESS } else { status::LOCAL_PROTECTION };
    check(&format!("the next one: {wc:?}"), wc.status == failed)?;
    check("new memory was written to", exporter.view().read(0, LEN).iter().all(|&byte| byte == 0))?;
    check("the daemon says that it is registered memory still", shown(exporter.name())? == 0)?;
    let (_buffer, other) = host(session)?;
    let wc = bystander.carry_out(opcode, &stays, &other, BYTES)?;
    check(&format!("another connection: {wc:?}"), wc.status == status::SUCCESS && bystander.is_in(state::RTS)?)?;
    Ok(true)
}
