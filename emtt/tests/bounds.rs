//! Bounds are exact to the byte, wherever a region starts (case MR-15), and nothing wraps.

use emtt::{Access, MemId, Owner, PdId, RegionInit, Segment, Table, TableError, TranslateError};

const PD: PdId = PdId(1);
const MEMORY: u64 = 0x7F00_0000_0123;

fn segment(addr: u64, len: u64) -> Segment {
    Segment { owner: Owner::Host(MemId(1)), addr, len }
}

fn table(iova: u64, runs: Vec<Segment>) -> (Table, u32) {
    let mut table = Table::new(1);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let key = table.insert(RegionInit { pd: PD, iova, access, runs }).expect("a good region");
    (table, key)
}

#[test]
fn exact_to_the_byte() {
    const LEN: u64 = 8192;
    // Zero-based; misaligned; the usual virtual address; up to the last byte of the address space.
    for iova in [0, 0x1003, MEMORY, u64::MAX - LEN + 1] {
        let (table, key) = table(iova, vec![segment(MEMORY, LEN)]);
        let at = |offset: i64, len: u64| -> Result<Vec<Segment>, TranslateError> {
            table.translate(key, PD, iova.wrapping_add_signed(offset), len, Access::REMOTE_WRITE).map(Iterator::collect)
        };
        let last = LEN as i64 - 1;
        assert_eq!(at(0, 1), Ok(vec![segment(MEMORY, 1)]));
        assert_eq!(at(last, 1), Ok(vec![segment(MEMORY + LEN - 1, 1)]));
        assert_eq!(at(0, LEN), Ok(vec![segment(MEMORY, LEN)]));
        assert_eq!(at(5, LEN - 5), Ok(vec![segment(MEMORY + 5, LEN - 5)]));
        for (offset, len) in
            [(-1, 1), (-1, 2), (last, 2), (last + 1, 1), (0, LEN + 1), (1, LEN), (0, u64::MAX), (5, u64::MAX - 2)]
        {
            let addr = iova.wrapping_add_signed(offset);
            assert_eq!(at(offset, len), Err(TranslateError::Bounds { addr, len }), "iova {iova:#x}, offset {offset}");
        }
    }
}

#[test]
fn zero_bytes_have_no_segments_but_are_checked() {
    let (table, key) = table(0x1000, vec![segment(MEMORY, 16)]);
    let count = |key, pd, addr, needs| table.translate(key, pd, addr, 0, needs).map(Iterator::count);
    assert_eq!(count(key, PD, 0x1000, Access::empty()), Ok(0));
    assert_eq!(count(key, PD, 0x1010, Access::empty()), Ok(0));
    let outside = |addr| Err(TranslateError::Bounds { addr, len: 0 });
    assert_eq!(count(key, PD, 0x1011, Access::empty()), outside(0x1011));
    assert_eq!(count(key, PD, 0xFFF, Access::empty()), outside(0xFFF));
    assert_eq!(count(key ^ 1, PD, 0x1000, Access::empty()), Err(TranslateError::Key(key ^ 1)));
    assert_eq!(count(key, PdId(2), 0x1000, Access::empty()), Err(TranslateError::Pd(PD)));
    assert_eq!(count(key, PD, 0x1000, Access::REMOTE_READ), Err(TranslateError::Access(Access::REMOTE_READ)));
}

#[test]
fn ranges_cross_runs() {
    let (table, key) = table(0, vec![segment(100, 10), segment(0, 0), segment(200, 10), segment(210, 5), segment(50, 1)]);
    let range = |addr, len| table.translate(key, PD, addr, len, Access::empty()).map(Iterator::collect::<Vec<_>>);
    assert_eq!(range(0, 26), Ok(vec![segment(100, 10), segment(200, 15), segment(50, 1)]));
    assert_eq!(range(9, 2), Ok(vec![segment(109, 1), segment(200, 1)]));
    assert_eq!(range(10, 15), Ok(vec![segment(200, 15)]));
    assert_eq!(range(25, 1), Ok(vec![segment(50, 1)]));
}

#[test]
fn other_owners_are_not_merged() {
    let other = Segment { owner: Owner::Host(MemId(2)), addr: 110, len: 10 };
    let (table, key) = table(0, vec![segment(100, 10), other]);
    let all = table.translate(key, PD, 0, 20, Access::empty()).map(Iterator::collect::<Vec<_>>);
    assert_eq!(all, Ok(vec![segment(100, 10), other]));
}

#[test]
fn impossible_regions_are_refused() {
    let insert = |iova, access, runs| Table::new(1).insert(RegionInit { pd: PD, iova, access, runs });
    let none = Access::empty();
    assert_eq!(insert(0, none, vec![]), Err(TableError::Empty));
    assert_eq!(insert(0, none, vec![segment(1, 0)]), Err(TableError::Empty));
    assert_eq!(insert(0, none, vec![segment(u64::MAX, 1)]), Err(TableError::Wraps));
    assert_eq!(insert(u64::MAX, none, vec![segment(0, 2)]), Err(TableError::Wraps));
    assert_eq!(insert(0, none, vec![segment(0, u64::MAX), segment(0, 2)]), Err(TableError::Wraps));
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::REMOTE_READ | Access::REMOTE_WRITE] {
        assert_eq!(insert(0, access, vec![segment(0, 8)]), Err(TableError::Access));
    }
}
