//! Regions of many pages, from 4 KiB to 1 GiB, against a slow walk from page to page: what of each page is in a range, and where one
//! page continues the other.

use emtt::{Access, GpuId, MemId, Owner, PdId, RegionInit, Segment, Table};
use proptest::prelude::*;

const PD: PdId = PdId(1);
const IOVA: u64 = 0x7F00_0000_0123;

#[derive(Clone, Debug)]
struct Memory {
    owner: Owner,
    /// Bytes per page.
    size: u64,
    /// Which pages, in order; neighbours are likely.
    pages: Vec<u64>,
    /// Bytes of the first page before the region, and of the last one behind it.
    cut: (u64, u64),
}

impl Memory {
    /// The part of each page that is in bytes `from..to` of the region.
    fn pieces(&self, from: u64, to: u64) -> Vec<Segment> {
        let (from, to) = (from + self.cut.0, to + self.cut.0);
        let mut pieces: Vec<Segment> = Vec::new();
        for (n, page) in self.pages.iter().enumerate() {
            let start = n as u64 * self.size;
            let (first, end) = (from.max(start), to.min(start + self.size));
            if first >= end {
                continue;
            }
            let piece = Segment { owner: self.owner, addr: page * self.size + (first - start), len: end - first };
            match pieces.last_mut() {
                Some(last) if last.addr + last.len == piece.addr => last.len += piece.len,
                _ => pieces.push(piece),
            }
        }
        pieces
    }

    fn len(&self) -> u64 {
        self.pages.len() as u64 * self.size - self.cut.0 - self.cut.1
    }
}

fn memory() -> impl Strategy<Value = Memory> {
    let owner =
        prop_oneof![Just(Owner::Host(MemId(1))), (0_u16..2).prop_map(|n| Owner::Gpu { device: GpuId(n), window: MemId(2) }),];
    let shift = prop_oneof![Just(11_u32), Just(12), Just(16), Just(21), Just(30), Just(31)];
    // The top of the address space is page 2^(64 - shift) - 1, of which the last byte cannot be registered.
    let pages = prop::collection::vec(0_u64..12, 2..40);
    (owner, shift, pages, 0_u64..3, 0_u64..3).prop_map(|(owner, shift, pages, head, tail)| {
        let size = 1 << shift;
        Memory { owner, size, pages, cut: (head * (size / 3), tail * (size / 4)) }
    })
}

/// How whoever registers may bring the same memory: page by page, or pieces that are cut where nothing ends.
fn brought(memory: &Memory, cut: u64) -> Vec<Segment> {
    let mut runs = Vec::new();
    for piece in memory.pieces(0, memory.len()) {
        let first = cut.min(piece.len);
        runs.push(Segment { len: first, ..piece });
        runs.push(Segment { addr: piece.addr + first, len: piece.len - first, ..piece });
    }
    runs
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_range_is_the_walk(
        memory in memory(),
        cut in 1_u64..5000,
        ranges in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..20),
    ) {
        let mut table = Table::new(1);
        let runs = brought(&memory, cut);
        let key = table.insert(RegionInit { pd: PD, iova: IOVA, access: Access::empty(), runs }).expect("a good region");
        let len = memory.len();
        prop_assert_eq!(table.get(key).expect("it is there").len(), len);
        let at = |index: prop::sample::Index| index.index(usize::try_from(len + 1).expect("64 bits")) as u64;
        let whole = [(0, len), (0, 0), (len, len), (len - 1, len)];
        for (a, b) in whole.into_iter().chain(ranges.into_iter().map(|(a, b)| (at(a), at(b)))) {
            let (from, to) = (a.min(b), a.max(b));
            let found = || table.translate(key, PD, IOVA + from, to - from, Access::empty()).expect("it is within");
            let mut folded = Vec::new();
            found().for_each(|segment| folded.push(segment));
            prop_assert_eq!(&folded, &memory.pieces(from, to));
            let mut one_by_one = Vec::new();
            for segment in found() {
                one_by_one.push(segment);
            }
            prop_assert_eq!(one_by_one, folded);
        }
        let beyond = table.translate(key, PD, IOVA, len + 1, Access::empty());
        prop_assert!(beyond.is_err());
    }
}

/// Pages at the very end of the address space: only the last byte is out of reach.
#[test]
fn the_last_pages_of_the_space() {
    let owner = Owner::Host(MemId(1));
    let top = u64::MAX - 4095;
    let last = Segment { owner, addr: top, len: 4095 };
    let runs = vec![Segment { owner, addr: 0, len: 4096 }, Segment { owner, addr: 0x8000, len: 4096 }, last];
    let mut table = Table::new(1);
    let key = table.insert(RegionInit { pd: PD, iova: 0, access: Access::empty(), runs }).expect("a good region");
    let found = table.translate(key, PD, 8192, 4095, Access::empty()).map(Iterator::collect::<Vec<_>>);
    assert_eq!(found, Ok(vec![last]));
}
