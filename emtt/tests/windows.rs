//! Memory windows: what they give to whom, what binding checks, and what an unbound or old one gives (IBA 10.6.7).

use emtt::*;

const PD: PdId = PdId(1);
const MEMORY: u64 = 0x7F00_0000_0100;
const IOVA: u64 = 0x1000;
const LEN: u64 = 4096;
const OURS: Via = Via { pd: PD, qp: 7 };
const OTHER_QP: Via = Via { pd: PD, qp: 8 };
const OTHER_PD: Via = Via { pd: PdId(2), qp: 7 };

fn table(access: Access) -> (Table, u32) {
    let mut table = Table::new(1);
    let runs = vec![Segment { owner: Owner::Host(MemId(1)), addr: MEMORY, len: LEN }];
    let region = table.insert(RegionInit { pd: PD, iova: IOVA, access, runs }).expect("a good region");
    (table, region)
}

/// The last 512 bytes of the region but 256, under another key.
fn binding(window: u32, region: u32) -> Binding {
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    Binding { window, key: window ^ 1, region, addr: IOVA + LEN - 768, len: 512, access, zero_based: false }
}

fn reach(table: &Table, key: u32, via: Via, addr: u64, len: u64) -> Result<Vec<u64>, TranslateError> {
    table.translate_remote(key, via, addr, len, Access::REMOTE_READ).map(|found| found.map(|segment| segment.addr).collect())
}

#[test]
fn a_window_gives_its_range_and_its_rights() {
    for (kind, other_qp) in [(WindowKind::One, true), (WindowKind::Two, false)] {
        let (mut table, region) = table(Access::all());
        let window = table.alloc_window(PD, kind).unwrap();
        assert_eq!(reach(&table, window, OURS, IOVA, 1), Err(TranslateError::Key(window)), "bound to nothing");
        let bind = binding(window, region);
        table.bind_window(OURS, &bind).unwrap();
        let (key, start) = (bind.key, bind.addr);
        assert_eq!(reach(&table, key, OURS, start, 512), Ok(vec![MEMORY + LEN - 768]));
        assert_eq!(reach(&table, key, OURS, start + 511, 1), Ok(vec![MEMORY + LEN - 257]));
        for (addr, len) in
            [(start - 1, 1), (start, 513), (start + 511, 2), (start + 512, 1), (0, 1), (u64::MAX, 1), (start, u64::MAX)]
        {
            assert_eq!(reach(&table, key, OURS, addr, len), Err(TranslateError::Bounds { addr, len }), "{kind:?}");
        }
        assert_eq!(reach(&table, window, OURS, start, 1), Err(TranslateError::Key(window)), "the key before");
        assert_eq!(reach(&table, key, OTHER_PD, start, 1), Err(TranslateError::Pd(PD)));
        assert_eq!(reach(&table, key, OTHER_QP, start, 1).is_ok(), other_qp, "{kind:?}");
        let atomic = table.translate_remote(key, OURS, start, 8, Access::REMOTE_ATOMIC).map(drop);
        assert_eq!(atomic, Err(TranslateError::Access(Access::REMOTE_ATOMIC)), "the region has the right, the window has not");
        let local = table.translate(key, PD, start, 1, Access::empty()).map(drop);
        assert_eq!(local, Err(TranslateError::Key(key)), "it is no local key");
        assert!(reach(&table, region, OURS, IOVA, 1).is_ok(), "the region is reached as before");
    }
}

#[test]
fn zero_based_windows_count_from_their_first_byte() {
    let (mut table, region) = table(Access::all());
    let window = table.alloc_window(PD, WindowKind::Two).unwrap();
    let bind = Binding { zero_based: true, ..binding(window, region) };
    table.bind_window(OURS, &bind).unwrap();
    assert_eq!(reach(&table, bind.key, OURS, 0, 512), Ok(vec![MEMORY + LEN - 768]));
    assert_eq!(reach(&table, bind.key, OURS, bind.addr, 1), Err(TranslateError::Bounds { addr: bind.addr, len: 1 }));
    let first = table.alloc_window(PD, WindowKind::One).unwrap();
    let bind = Binding { zero_based: true, ..binding(first, region) };
    assert_eq!(table.bind_window(OURS, &bind), Err(BindError::State), "not for type 1");
}

#[test]
fn binding_checks_everything_and_changes_nothing_if_it_fails() {
    let (mut table, region) = table(Access::all());
    let runs = vec![Segment { owner: Owner::Host(MemId(1)), addr: MEMORY, len: LEN }];
    let mut more = |pd, access| table.insert(RegionInit { pd, iova: IOVA, access, runs: runs.clone() }).unwrap();
    let (foreign, closed) = (more(PdId(2), Access::all()), more(PD, Access::all() - Access::BIND_WINDOW));
    let read_only = more(PD, Access::BIND_WINDOW | Access::REMOTE_READ);
    let window = table.alloc_window(PD, WindowKind::One).unwrap();
    let good = binding(window, region);
    table.bind_window(OURS, &good).unwrap();
    let free = table.alloc_window(PD, WindowKind::Two).unwrap();
    let again = binding(free, region);
    for (wrong, error) in [
        (Binding { window: region, ..good }, BindError::Window(region)),
        (Binding { window: window ^ 0x1000, ..good }, BindError::Window(window ^ 0x1000)),
        (Binding { key: window ^ 0x100, ..good }, BindError::Key(window ^ 0x100)),
        (Binding { region: foreign, ..good }, BindError::Region(foreign)),
        (Binding { region: good.key, ..good }, BindError::Region(good.key)),
        (Binding { region: closed, ..good }, BindError::Access),
        (Binding { region: read_only, ..good }, BindError::Access),
        (Binding { access: Access::LOCAL_WRITE, ..good }, BindError::Access),
        (Binding { addr: IOVA - 1, ..good }, BindError::Bounds),
        (Binding { len: 769, ..good }, BindError::Bounds),
        (Binding { addr: u64::MAX, len: 2, ..good }, BindError::Bounds),
        (Binding { len: 0, ..again }, BindError::State),
    ] {
        assert_eq!(table.bind_window(OURS, &wrong), Err(error), "{wrong:?}");
        assert!(reach(&table, good.key, OURS, good.addr, 512).is_ok(), "{wrong:?}");
    }
    assert_eq!(table.bind_window(OTHER_PD, &good), Err(BindError::Window(window)));
    let reads = Binding { region: read_only, access: Access::REMOTE_READ, ..again };
    assert_eq!(table.bind_window(OURS, &reads), Ok(()), "reading needs no local right");
}

#[test]
fn a_region_stays_while_windows_are_bound_to_it() {
    let (mut table, region) = table(Access::all());
    let windows = [WindowKind::One, WindowKind::Two].map(|kind| table.alloc_window(PD, kind).unwrap());
    for window in windows {
        table.bind_window(OURS, &binding(window, region)).unwrap();
    }
    let init = RegionInit { pd: PD, iova: 0, access: Access::all(), runs: vec![] };
    assert_eq!(table.remove(region), Err(TableError::Bound(2)));
    assert_eq!(table.replace(region, init), Err(TableError::Bound(2)));
    // The one is bound to nothing, the other is invalidated.
    table.bind_window(OURS, &Binding { len: 0, region: 0, ..binding(windows[0], region) }).unwrap();
    assert_eq!(table.remove(region), Err(TableError::Bound(1)));
    table.invalidate_window(OURS, windows[1] ^ 1).unwrap();
    assert_eq!(table.remove(region), Ok(()));
    assert!(windows.iter().all(|window| reach(&table, window ^ 1, OURS, IOVA, 1).is_err()));
}

#[test]
fn only_type_2_is_invalidated_and_only_by_its_queue_pair() {
    let (mut table, region) = table(Access::all());
    let [one, two] = [WindowKind::One, WindowKind::Two].map(|kind| table.alloc_window(PD, kind).unwrap());
    for window in [one, two] {
        table.bind_window(OURS, &binding(window, region)).unwrap();
    }
    assert_eq!(table.invalidate_window(OURS, one ^ 1), Err(BindError::State));
    assert_eq!(table.invalidate_window(OTHER_QP, two ^ 1), Err(BindError::State));
    assert_eq!(table.invalidate_window(OTHER_PD, two ^ 1), Err(BindError::Window(two ^ 1)));
    assert_eq!(table.invalidate_window(OURS, two), Err(BindError::Window(two)), "an old key");
    assert_eq!(table.bind_window(OURS, &binding(two, region)), Err(BindError::State), "it is bound");
    table.invalidate_window(OURS, two ^ 1).unwrap();
    assert_eq!(table.invalidate_window(OURS, two ^ 1), Err(BindError::State), "it is bound to nothing");
    table.bind_window(OTHER_QP, &binding(two, region)).unwrap();
    table.forget_queue_pair(two, OURS.qp);
    assert!(reach(&table, two ^ 1, OTHER_QP, IOVA + LEN - 768, 1).is_ok());
    table.forget_queue_pair(two, OTHER_QP.qp);
    assert!(reach(&table, two ^ 1, OTHER_QP, IOVA + LEN - 768, 1).is_err());
}

/// An owner may have told a peer all 256 keys of a window; none of them names what comes after it.
#[test]
fn keys_of_a_window_that_ended_stay_dead() {
    let (mut table, region) = table(Access::all());
    let mut ended = Vec::new();
    for round in 0..2000 {
        let window = table.alloc_window(PD, WindowKind::One).unwrap();
        table.bind_window(OURS, &binding(window, region)).unwrap();
        let at = IOVA + LEN - 768;
        assert!(reach(&table, window ^ 1, OURS, at, 1).is_ok());
        for &old in ended.iter().rev().take(300) {
            assert_eq!(reach(&table, old, OURS, at, 1), Err(TranslateError::Key(old)), "round {round}");
        }
        table.dealloc_window(window).unwrap();
        assert_eq!(table.dealloc_window(window), Err(TableError::NotFound(window)));
        ended.push(window ^ 1);
    }
    assert_eq!(table.remove(region), Ok(()), "nothing is bound to it any more");
}
