//! Regions of a guest's driver at their edges: the first and last byte and the one beyond, ranges that wrap, ranges without bytes, and
//! every combination of rights against every operation.

use super::driver::{ALL_RIGHTS, CE, Region, Sge, write_body};
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
    let last = IOVA + LEN - 1;
    // First byte and number of bytes, of one side's region.
    let cases = [
        ("all of it", IOVA, LEN as u32, true),
        ("the first byte", IOVA, 1, true),
        ("the last byte", last, 1, true),
        ("one byte early", IOVA - 1, 2, false),
        ("the byte before", IOVA - 1, 1, false),
        ("one byte late", last, 2, false),
        ("the byte behind", last + 1, 1, false),
        ("all and one more", IOVA, LEN as u32 + 1, false),
        ("the start of memory", 0, 8, false),
        ("wraps", u64::MAX - 3, 8, false),
        ("up to the last address", u64::MAX - 7, 8, false),
    ];
    for (what, addr, len, is_good) in cases {
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
    for (addr, key) in [(IOVA, key), (IOVA + LEN, key), (IOVA + LEN + 1, key), (u64::MAX, key), (IOVA, 0x7700), (0, 0)] {
        for opcode in [WRITE, READ] {
            assert_eq!(outcome(&mut a, &mut b, opcode, own, Sge(addr, 0, key)), SUCCESS, "{addr:#x} {key:#x} {opcode}");
        }
    }
}

/// Bits of REG_MR: 1 remote atomic, 2 local read, 3 local write, 4 remote read, 5 remote write.
#[test]
fn rights_are_those_of_the_region() {
    let place = Place::new();
    let (mut a, mut b) = pair(&place, LEN);
    let aligned = IOVA.next_multiple_of(8);
    for rights in (0..=ALL_RIGHTS).step_by(2) {
        let region = Region::scattered(&b.driver, IOVA, LEN);
        let body = b.driver.reg_mr(3, 5, &region).u32(12, rights | 5 << 12);
        let registered = b.driver.command(0, 8, body);
        let changes_unasked = rights & (1 << 1 | 1 << 5) != 0 && rights & 1 << 3 == 0;
        assert_eq!(registered.is_err(), changes_unasked, "{rights:#x}");
        if changes_unasked {
            continue;
        }
        for (opcode, right) in [(WRITE, 1 << 5), (READ, 1 << 4), (FAA, 1 << 1)] {
            let own = Sge(aligned, 8, a.key);
            let status = outcome(&mut a, &mut b, opcode, own, Sge(aligned, 8, 3 << 8));
            let wanted = if rights & right != 0 { SUCCESS } else { REMOTE_ACCESS };
            assert_eq!(status, wanted, "rights {rights:#x}, opcode {opcode}");
        }
        b.driver.command(0, 9, super::driver::Body::new().u32(8, 3)).unwrap();
    }
}
