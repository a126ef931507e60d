//! Regions of a guest's driver at their edges: the first and last byte and the one beyond, ranges that wrap, ranges without bytes, and
//! every combination of rights against every operation. Windows and re-registration are calls that this driver interface does not have;
//! keys that are given other memory are in `fast`.

use super::driver::{CE, Region, Sge, write_body};
use super::edges::{self, Rights};
use super::place::Place;
use super::verbs::{IOVA, Side, gid, pair};

const WRITE: u8 = 0;
const READ: u8 = 1;
const FAA: u8 = 18;
/// Bytes of each region, neither at the start nor at the end of a page.
const LEN: u64 = 20_001;
/// What a completion says.
const SUCCESS: u8 = 0;
const LOCAL_ACCESS: u8 = 12;
const REMOTE_ACCESS: u8 = 5;

/// Connects both anew, whatever has become of them.
fn anew(a: &mut Side, b: &mut Side) {
    for (side, peer) in [(&mut *a, "203.0.113.2"), (&mut *b, "203.0.113.1")] {
        side.driver.set_state(7, 0).unwrap();
        while side.driver.poll(&mut side.cq).is_some() {}
        side.driver.connect(7, 7, gid(peer));
    }
}

/// The body of an operation between a local and a remote buffer.
fn body(opcode: u8, local: Sge, remote: Sge) -> Vec<u8> {
    match opcode {
        WRITE => write_body([0; 4], (remote.0, remote.2), &[local]),
        READ => {
            let words = [0xAAAA_AAAA, local.1, local.2, local.0 as u32, (local.0 >> 32) as u32, 0xAAAA_AAAA];
            [words.map(u32::to_le_bytes).concat(), remote.bytes()].concat()
        }
        _ => [vec![0xAA; 8], 1_u64.to_le_bytes().to_vec(), vec![0; 8], remote.bytes(), local.bytes()].concat(),
    }
}

/// Posts it on a new connection; the status that it ends with.
fn outcome(a: &mut Side, b: &mut Side, opcode: u8, local: Sge, remote: Sge) -> u8 {
    anew(a, b);
    let count = if opcode == WRITE { 1 } else { 0 };
    a.send(opcode, CE, count, &body(opcode, local, remote));
    let done = a.wait();
    assert_eq!(done.opcode, opcode);
    done.status
}

#[test]
fn ranges_are_exact_to_the_byte() {
    let place = Place::new();
    let (mut a, mut b) = pair(&place, LEN);
    for edges::Range { what, addr, len, is_good } in edges::ranges(IOVA, LEN as u32) {
        for opcode in [WRITE, READ] {
            // The other side has a region as long as any of these.
            let wide = |side: &mut Side| {
                let region = Region::scattered(&side.driver, IOVA, LEN + 8);
                side.driver.register(2, 5, &region).unwrap();
                Sge(IOVA, len, 2 << 8)
            };
            let (own, peer) = (wide(&mut a), wide(&mut b));
            let (key_a, key_b) = (a.key, b.key);
            let remote = outcome(&mut a, &mut b, opcode, own, Sge(addr, len, key_b));
            assert_eq!(remote, if is_good { SUCCESS } else { REMOTE_ACCESS }, "remote, {what}, opcode {opcode}");
            let local = outcome(&mut a, &mut b, opcode, Sge(addr, len, key_a), peer);
            assert_eq!(local, if is_good { SUCCESS } else { LOCAL_ACCESS }, "local, {what}, opcode {opcode}");
            for side in [&mut a, &mut b] {
                side.driver.command(0, 9, super::driver::Body::new().u32(8, 2)).unwrap();
            }
        }
    }
}

/// Neither key nor address of a range without bytes is looked at on the remote side.
#[test]
fn ranges_without_bytes_touch_nothing() {
    let place = Place::new();
    let (mut a, mut b) = pair(&place, LEN);
    let (own, key) = (Sge(IOVA, 0, a.key), b.key);
    for (addr, key) in edges::without_bytes(IOVA, LEN as u32, key) {
        for opcode in [WRITE, READ] {
            assert_eq!(outcome(&mut a, &mut b, opcode, own, Sge(addr, 0, key)), SUCCESS, "{addr:#x} {key:#x} {opcode}");
        }
    }
}

/// As REG_MR has them: 1 remote atomic, 2 local read, 3 local write, 4 remote read, 5 remote write.
fn bits(rights: Rights, local_read: bool) -> u32 {
    let Rights { local_write, remote_write, remote_read, remote_atomic } = rights;
    let bits = [(remote_atomic, 1), (local_read, 2), (local_write, 3), (remote_read, 4), (remote_write, 5)];
    bits.into_iter().map(|(has, bit)| u32::from(has) << bit).sum()
}

#[test]
fn rights_are_those_of_the_region() {
    let place = Place::new();
    let (mut a, mut b) = pair(&place, LEN);
    let aligned = IOVA.next_multiple_of(8);
    for (rights, local_read) in Rights::all().flat_map(|rights| [(rights, false), (rights, true)]) {
        let region = Region::scattered(&b.driver, IOVA, LEN);
        let body = b.driver.reg_mr(3, 5, &region).u32(12, bits(rights, local_read) | 5 << 12);
        let registered = b.driver.command(0, 8, body);
        assert_eq!(registered.is_ok(), rights.can_be(), "{rights:?}");
        if !rights.can_be() {
            continue;
        }
        for (opcode, right) in [(WRITE, rights.remote_write), (READ, rights.remote_read), (FAA, rights.remote_atomic)] {
            let own = Sge(aligned, 8, a.key);
            let status = outcome(&mut a, &mut b, opcode, own, Sge(aligned, 8, 3 << 8));
            let wanted = if right { SUCCESS } else { REMOTE_ACCESS };
            assert_eq!(status, wanted, "{rights:?}, opcode {opcode}");
        }
        b.driver.command(0, 9, super::driver::Body::new().u32(8, 3)).unwrap();
    }
}
