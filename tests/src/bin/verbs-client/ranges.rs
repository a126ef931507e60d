//! Regions and windows at their edges, as a verbs program sees them: the table that a guest's driver is held to as well, and what only
//! verbs have, windows and registering anew. A connection is made for each case, as the refused ones end theirs.

#[path = "../../../../vdev/tests/guest/edges.rs"]
mod edges;

use crate::connection::Connection;
use crate::refused::status;
use crate::{Outcome, completion, say};
use edges::Rights;
use std::rc::Rc;
use tests::verbs::{Buffer, Region, Session, Sge, Window, Work, access, opcode, send_flag};

/// Bytes of regions: they end within a page.
const LEN: u32 = 20_001;
/// Where they begin by name: at another place of a page than in memory.
const IOVA: u64 = 0x7000_0000_1008;
const BUFFER: usize = 1 << 16;

/// A part of memory, and its key.
#[derive(Clone, Copy, Debug)]
struct Place {
    addr: u64,
    len: u32,
    key: u32,
}

/// Memory of both sides.
struct Sides {
    session: Rc<Session>,
    buffer: Buffer,
    region: Region,
    /// At the other side: as long as any range of the table.
    wide: (Buffer, Region),
}

/// Runs all.
pub fn run() -> Outcome<()> {
    let session = Session::open(None)?;
    let (buffer, other) = (Buffer::private(BUFFER)?, Buffer::private(BUFFER)?);
    let region = Region::in_pd(&session, session.pd(), &buffer, LEN as usize, IOVA, access::ALL | access::MW_BIND)?;
    let wide = Region::in_pd(&session, session.pd(), &other, BUFFER, IOVA, access::ALL)?;
    let sides = Sides { session, buffer, region, wide: (other, wide) };
    for opcode in [opcode::WRITE, opcode::READ] {
        sides.ranges(opcode)?;
        sides.without_bytes(opcode)?;
        sides.windows(opcode)?;
        sides.registered_anew(opcode)?;
    }
    sides.rights()?;
    sides.rights_of_windows()?;
    say("OK");
    Ok(())
}

fn expect(case: &str, found: u32, wanted: u32) -> Outcome<()> {
    say(&format!("case {case}"));
    if found == wanted { Ok(()) } else { Err(format!("{case}: status {found} instead of {wanted}").into()) }
}

/// The status of a request on this connection.
fn post(connection: &Connection, opcode: u32, local: Place, remote: Place) -> Outcome<u32> {
    let sges = if local.len == 0 { vec![] } else { vec![Sge { addr: local.addr, length: local.len, lkey: local.key }] };
    let (flags, remote_addr, rkey) = (send_flag::SIGNALED, remote.addr, remote.key);
    connection.qps[0].post_send(&[Work { opcode, flags, remote_addr, rkey, sges, ..Work::default() }])?;
    Ok(completion(&connection.cqs[0])?.status)
}

impl Sides {
    fn wide(&self, len: u32) -> Place {
        Place { addr: IOVA, len, key: self.wide.1.rkey() }
    }

    /// The status of a request on a new connection.
    fn outcome(&self, opcode: u32, local: Place, remote: Place) -> Outcome<u32> {
        post(&Connection::new(&self.session)?, opcode, local, remote)
    }

    fn ranges(&self, opcode: u32) -> Outcome<()> {
        for edges::Range { what, addr, len, is_good } in edges::ranges(IOVA, LEN) {
            let place = Place { addr, len, key: self.region.rkey() };
            let refused = |why| if is_good { status::SUCCESS } else { why };
            let found = self.outcome(opcode, self.wide(len), place)?;
            expect(&format!("remote range, {what}, opcode {opcode}"), found, refused(status::REMOTE_ACCESS))?;
            let found = self.outcome(opcode, Place { key: self.region.lkey(), ..place }, self.wide(len))?;
            expect(&format!("local range, {what}, opcode {opcode}"), found, refused(status::LOCAL_PROTECTION))?;
        }
        Ok(())
    }

    fn without_bytes(&self, opcode: u32) -> Outcome<()> {
        for (addr, key) in edges::without_bytes(IOVA, LEN, self.region.rkey()) {
            let found = self.outcome(opcode, self.wide(0), Place { addr, len: 0, key })?;
            expect(&format!("no bytes at {addr:#x}, opcode {opcode}"), found, status::SUCCESS)?;
        }
        Ok(())
    }

    /// The same edges, of a window within the region.
    fn windows(&self, opcode: u32) -> Outcome<()> {
        let (first, len) = (IOVA + 4001, 8190);
        for edges::Range { what, addr, len, is_good } in edges::ranges(first, len) {
            let connection = Connection::new(&self.session)?;
            let region = Region::in_pd(
                &self.session,
                self.session.pd(),
                &self.buffer,
                LEN as usize,
                IOVA,
                access::ALL | access::MW_BIND,
            )?;
            let window = Window::new(&self.session, region)?;
            let part = window.part(first, 8190, access::REMOTE_WRITE | access::REMOTE_READ);
            // A window of type 2 belongs to the queue pair that bound it, which is the one that peers reach.
            connection.qps[1].post_send(&[Work { bind: Some(part), ..window.bind(7) }])?;
            expect(&format!("binding, {what}"), completion(&connection.cqs[1])?.status, status::SUCCESS)?;
            let found = post(&connection, opcode, self.wide(len), Place { addr, len, key: window.rkey() })?;
            let wanted = if is_good { status::SUCCESS } else { status::REMOTE_ACCESS };
            expect(&format!("window, {what}, opcode {opcode}"), found, wanted)?;
        }
        Ok(())
    }

    /// Other memory, and other rights, under the same key: what held before holds no more.
    fn registered_anew(&self, opcode: u32) -> Outcome<()> {
        let (session, pd) = (&self.session, self.session.pd());
        let (before, after) = (Buffer::private(BUFFER)?, Buffer::private(BUFFER)?);
        let region = Region::in_pd(session, pd, &before, LEN as usize, IOVA, access::ALL)?;
        let key = region.rkey();
        region.change(Some((&after, LEN as usize)), None)?;
        if region.rkey() != key {
            return Err("the key has changed".into());
        }
        let place = |addr, len| Place { addr, len, key };
        let found = self.outcome(opcode, self.wide(8), place(IOVA, 8))?;
        expect(&format!("the addresses before, opcode {opcode}"), found, status::REMOTE_ACCESS)?;
        for edges::Range { what, addr, len, is_good } in edges::ranges(after.addr(0), LEN) {
            let found = self.outcome(opcode, self.wide(len), place(addr, len))?;
            let wanted = if is_good { status::SUCCESS } else { status::REMOTE_ACCESS };
            expect(&format!("registered anew, {what}, opcode {opcode}"), found, wanted)?;
        }
        region.change(None, Some(access::LOCAL_WRITE))?;
        let found = self.outcome(opcode, self.wide(8), place(after.addr(0), 8))?;
        expect(&format!("rights taken away, opcode {opcode}"), found, status::REMOTE_ACCESS)?;
        if region.change(None, Some(access::REMOTE_WRITE)).is_ok() {
            return Err("remote WRITE without local WRITE was granted".into());
        }
        region.change(None, Some(access::ALL))?;
        let found = self.outcome(opcode, self.wide(8), place(after.addr(0), 8))?;
        expect(&format!("rights given back, opcode {opcode}"), found, status::SUCCESS)
    }

    /// All rights against all operations.
    fn rights(&self) -> Outcome<()> {
        for rights in Rights::all() {
            let made = Region::in_pd(&self.session, self.session.pd(), &self.buffer, LEN as usize, IOVA, flags(rights));
            if made.is_ok() != rights.can_be() {
                return Err(format!("{rights:?}: {made:?}").into());
            }
            let Ok(region) = made else { continue };
            for (opcode, may) in operations(rights) {
                let found = self.outcome(opcode, self.wide(8), Place { addr: IOVA, len: 8, key: region.rkey() })?;
                let wanted = if may { status::SUCCESS } else { status::REMOTE_ACCESS };
                expect(&format!("{rights:?}, opcode {opcode}"), found, wanted)?;
            }
        }
        Ok(())
    }

    /// Windows may have what their region does not give to peers; only changing takes the owner's right to have it changed.
    fn rights_of_windows(&self) -> Outcome<()> {
        for rights in Rights::all() {
            for owner_writes in [false, true] {
                let own = access::MW_BIND | if owner_writes { access::LOCAL_WRITE } else { 0 };
                let region = Region::in_pd(&self.session, self.session.pd(), &self.buffer, LEN as usize, IOVA, own)?;
                let connection = Connection::new(&self.session)?;
                let window = Window::new(&self.session, region)?;
                let given = flags(Rights { local_write: false, ..rights });
                let part = window.part(IOVA, LEN.into(), given);
                connection.qps[1].post_send(&[Work { bind: Some(part), ..window.bind(7) }])?;
                let bound = completion(&connection.cqs[1])?.status;
                let can_be = Rights { local_write: owner_writes, ..rights }.can_be();
                expect(
                    &format!("window with {rights:?}, the owner writes: {owner_writes}"),
                    bound,
                    if can_be { status::SUCCESS } else { status::BIND },
                )?;
                // The first that is refused ends the connection, and the binding with it.
                let Some((opcode, may)) = operations(rights).into_iter().max_by_key(|(_, may)| *may).filter(|_| can_be) else {
                    continue;
                };
                let found = post(&connection, opcode, self.wide(8), Place { addr: IOVA, len: 8, key: window.rkey() })?;
                let wanted = if may { status::SUCCESS } else { status::REMOTE_ACCESS };
                expect(&format!("window with {rights:?}, opcode {opcode}"), found, wanted)?;
            }
        }
        Ok(())
    }
}

fn flags(rights: Rights) -> u32 {
    let Rights { local_write, remote_write, remote_read, remote_atomic } = rights;
    [
        (local_write, access::LOCAL_WRITE),
        (remote_write, access::REMOTE_WRITE),
        (remote_read, access::REMOTE_READ),
        (remote_atomic, access::REMOTE_ATOMIC),
    ]
    .into_iter()
    .filter(|(has, _)| *has)
    .fold(0, |flags, (_, flag)| flags | flag)
}

/// Operations, and whether these rights allow them.
fn operations(rights: Rights) -> [(u32, bool); 3] {
    [(opcode::WRITE, rights.remote_write), (opcode::READ, rights.remote_read), (opcode::FETCH_ADD, rights.remote_atomic)]
}
