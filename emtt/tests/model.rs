//! The table against a slow, obvious model: a list of regions whose bytes are looked up one by one.

use emtt::{Access, GpuId, MemId, Owner, PdId, RegionInit, Segment, Table, TableError, TranslateError};
use proptest::prelude::*;

/// What the model knows of a region: each byte's owner and address.
struct ModelRegion {
    key: u32,
    pd: PdId,
    iova: u64,
    access: Access,
    bytes: Vec<(Owner, u64)>,
}

#[derive(Default)]
struct Model {
    regions: Vec<ModelRegion>,
    removed: Vec<u32>,
}

impl Model {
    fn translate(&self, key: u32, pd: PdId, addr: u64, len: u64, needs: Access) -> Result<Vec<(Owner, u64)>, TranslateError> {
        let region = self.regions.iter().find(|region| region.key == key).ok_or(TranslateError::Key(key))?;
        if region.pd != pd {
            return Err(TranslateError::Pd(region.pd));
        }
        let missing = needs - region.access;
        if !missing.is_empty() {
            return Err(TranslateError::Access(missing));
        }
        let (addr, len, iova) = (i128::from(addr), i128::from(len), i128::from(region.iova));
        let range = addr - iova..addr - iova + len;
        if range.start < 0 || range.end > region.bytes.len() as i128 {
            return Err(TranslateError::Bounds { addr: addr as u64, len: len as u64 });
        }
        Ok(region.bytes[range.start as usize..range.end as usize].to_vec())
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert { pd: u32, iova: u64, access: Access, runs: Vec<Segment> },
    Remove(prop::sample::Index),
    RemoveAgain(prop::sample::Index),
    Translate { region: prop::sample::Index, pd: u32, at: i64, len: u64, needs: Access },
    TranslateRemoved(prop::sample::Index),
}

fn access() -> impl Strategy<Value = Access> {
    (0_u32..16).prop_map(Access::from_bits_truncate)
}

/// Mostly short runs in a small space, so that they often continue each other.
fn run() -> impl Strategy<Value = Segment> {
    let run = (0_u32..2, 0_u64..4, 0_u64..3).prop_map(|(owner, addr, len)| (owner, addr * 8, len * 8));
    let odd = (0_u32..2, 0_u64..64, 0_u64..20);
    let end = (0_u32..2, u64::MAX - 8..=u64::MAX, 0_u64..10);
    prop_oneof![6 => run, 3 => odd, 1 => end].prop_map(|(owner, addr, len)| Segment {
        owner: if owner == 0 { Owner::Host(MemId(7)) } else { Owner::Gpu { device: GpuId(1), window: MemId(7) } },
        addr,
        len,
    })
}

fn op() -> impl Strategy<Value = Op> {
    let iova = prop_oneof![Just(0), Just(0x1003), any::<u64>(), u64::MAX - 64..=u64::MAX];
    let len = prop_oneof![4 => 0_u64..40, 1 => any::<u64>()];
    prop_oneof![
        3 => (0_u32..2, iova, access(), proptest::collection::vec(run(), 0..8))
            .prop_map(|(pd, iova, access, runs)| Op::Insert { pd, iova, access, runs }),
        1 => any::<prop::sample::Index>().prop_map(Op::Remove),
        1 => any::<prop::sample::Index>().prop_map(Op::RemoveAgain),
        8 => (any::<prop::sample::Index>(), 0_u32..2, -3_i64..40, len, access())
            .prop_map(|(region, pd, at, len, needs)| Op::Translate { region, pd, at, len, needs }),
        1 => any::<prop::sample::Index>().prop_map(Op::TranslateRemoved),
    ]
}

fn insert(table: &mut Table, model: &mut Model, pd: PdId, iova: u64, access: Access, runs: Vec<Segment>) {
    let len: u128 = runs.iter().map(|run| u128::from(run.len)).sum();
    let wraps = |start: u64, len: u128| u128::from(start) + len > 1 << 64;
    let run_wraps = runs.iter().any(|run| run.len > 0 && u128::from(run.addr) + u128::from(run.len) >= 1 << 64);
    let change = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    let expected = if change && !access.contains(Access::LOCAL_WRITE) {
        Some(TableError::Access)
    } else if run_wraps {
        Some(TableError::Wraps)
    } else if len == 0 {
        Some(TableError::Empty)
    } else if wraps(iova, len) {
        Some(TableError::Wraps)
    } else {
        None
    };
    let bytes = runs.iter().flat_map(|run| (0..run.len).map(|i| (run.owner, run.addr.wrapping_add(i)))).collect();
    match table.insert(RegionInit { pd, iova, access, runs }) {
        Ok(key) => {
            assert_eq!(expected, None);
            assert!(key != 0 && key != 0xFFFF_FF00 && !model.removed.contains(&key));
            assert!(model.regions.iter().all(|region| region.key != key));
            model.regions.push(ModelRegion { key, pd, iova, access, bytes });
        }
        Err(error) => assert_eq!(Some(error), expected),
    }
}

fn check(table: &Table, model: &Model, key: u32, pd: PdId, addr: u64, len: u64, needs: Access) {
    let expected = model.translate(key, pd, addr, len, needs);
    let found = table.translate(key, pd, addr, len, needs).map(|segments| {
        assert_eq!(segments.bytes(), len);
        let mut folded = Vec::new();
        segments.clone().for_each(|segment| folded.push(segment));
        let mut one_by_one = Vec::new();
        for segment in segments {
            one_by_one.push(segment);
        }
        assert_eq!(folded, one_by_one);
        let segments = folded;
        assert!(segments.iter().all(|segment| segment.len > 0));
        let mergeable = |pair: &[Segment]| pair[0].owner == pair[1].owner && pair[0].addr + pair[0].len == pair[1].addr;
        assert!(!segments.windows(2).any(mergeable), "runs that continue each other were not merged: {segments:?}");
        segments.iter().flat_map(|run| (0..run.len).map(|i| (run.owner, run.addr + i))).collect::<Vec<_>>()
    });
    assert_eq!(found, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn table_is_the_model(seed: u64, ops in proptest::collection::vec(op(), 1..60)) {
        let mut table = Table::new(seed);
        let mut model = Model::default();
        for op in ops {
            match op {
                Op::Insert { pd, iova, access, runs } => insert(&mut table, &mut model, PdId(pd), iova, access, runs),
                Op::Remove(region) if !model.regions.is_empty() => {
                    let region = model.regions.swap_remove(region.index(model.regions.len()));
                    assert_eq!(table.remove(region.key), Ok(()));
                    model.removed.push(region.key);
                }
                Op::RemoveAgain(key) if !model.removed.is_empty() => {
                    let key = model.removed[key.index(model.removed.len())];
                    assert_eq!(table.remove(key), Err(TableError::NotFound(key)));
                }
                Op::Translate { region, pd, at, len, needs } if !model.regions.is_empty() => {
                    let region = &model.regions[region.index(model.regions.len())];
                    check(&table, &model, region.key, PdId(pd), region.iova.wrapping_add_signed(at), len, needs);
                }
                Op::TranslateRemoved(key) if !model.removed.is_empty() => {
                    let key = model.removed[key.index(model.removed.len())];
                    check(&table, &model, key, PdId(0), 0, 0, Access::empty());
                    assert!(table.get(key).is_none());
                }
                _ => {}
            }
            assert_eq!(table.len(), model.regions.len());
            for region in &model.regions {
                let found = table.get(region.key).expect("a region of the model");
                assert_eq!((found.pd(), found.iova(), found.access()), (region.pd, region.iova, region.access));
                assert_eq!(found.len(), region.bytes.len() as u64);
            }
        }
    }
}
