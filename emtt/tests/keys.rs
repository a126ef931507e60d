//! Keys: none is foreseeable, and an old one stays dead (case MR-04).

use emtt::{Access, MAX_REGIONS, MemId, Owner, PdId, RegionInit, Segment, Table, TableError, TranslateError};
use std::collections::{HashMap, HashSet};

fn region() -> RegionInit {
    let runs = vec![Segment { owner: Owner::Host(MemId(1)), addr: 0x1000, len: 64 }];
    RegionInit { pd: PdId(1), iova: 0x1000, access: Access::all(), runs }
}

fn insert(table: &mut Table) -> u32 {
    table.insert(region()).expect("room for it")
}

/// One buffer registered and removed again and again: the worst case, since one slot would do.
#[test]
fn a_removed_key_stays_dead() {
    let mut table = Table::new(7);
    let mut last_seen = HashMap::new();
    let mut recent = std::collections::VecDeque::new();
    for round in 0..600_000_u32 {
        let key = insert(&mut table);
        if let Some(before) = last_seen.insert(key, round) {
            assert!(round - before >= 200_000, "key {key:#x} came back after {} registrations", round - before);
        }
        table.remove(key).expect("just inserted");
        recent.push_back(key);
        if recent.len() > 256 {
            recent.pop_front();
        }
        if round % 10_000 == 0 {
            for &old in &recent {
                let translated = table.translate(old, PdId(1), 0x1000, 1, Access::REMOTE_READ).map(drop);
                assert_eq!(translated, Err(TranslateError::Key(old)));
            }
        }
    }
    assert!(last_seen.len() > 200_000);
    assert!(table.is_empty());
}

#[test]
fn a_replaced_region_keeps_its_key() {
    let mut table = Table::new(7);
    let key = insert(&mut table);
    let other = RegionInit { pd: PdId(2), access: Access::LOCAL_WRITE, iova: 0x9000, ..region() };
    assert_eq!(table.replace(key, RegionInit { runs: vec![], ..region() }), Err(TableError::Empty));
    assert!(table.translate(key, PdId(1), 0x1000, 64, Access::REMOTE_READ).is_ok(), "an error changes nothing");
    assert_eq!(table.replace(key, other), Ok(()));
    assert_eq!(table.translate(key, PdId(1), 0x1000, 1, Access::empty()).map(drop), Err(TranslateError::Pd(PdId(2))));
    assert!(table.translate(key, PdId(2), 0x9000, 64, Access::LOCAL_WRITE).is_ok());
    assert!(table.translate(key, PdId(2), 0x9000, 64, Access::REMOTE_READ).is_err());
    table.remove(key).expect("it is there");
    assert_eq!(table.replace(key, region()), Err(TableError::NotFound(key)));
}

#[test]
fn keys_do_not_count_up() {
    let mut table = Table::new(7);
    let keys: Vec<u32> = (0..1000).map(|_| insert(&mut table)).collect();
    let steps: HashSet<u32> = keys.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    assert!(steps.len() > 800, "only {} different steps between 1000 keys", steps.len());
    // Nor does the same buffer registered again show the way.
    let mut again = Vec::new();
    for _ in 0..1000 {
        let key = insert(&mut table);
        table.remove(key).expect("just inserted");
        again.push(key);
    }
    let steps: HashSet<u32> = again.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    assert!(steps.len() > 100, "only {} different steps between 1000 keys", steps.len());
}

#[test]
fn keys_depend_on_the_seed_alone() {
    let keys = |seed| {
        let mut table = Table::new(seed);
        (0..100).map(|_| insert(&mut table)).collect::<Vec<_>>()
    };
    assert_eq!(keys(1), keys(1));
    let (first, second) = (keys(1), keys(2));
    assert!(first.iter().zip(&second).filter(|(a, b)| a == b).count() < 5);
}

/// A full table gives out every slot and every variant, but no reserved key; and it works on when it is full.
#[test]
fn full_table() {
    let mut table = Table::new(3);
    let keys: HashSet<u32> = (0..MAX_REGIONS).map(|_| insert(&mut table)).collect();
    assert_eq!(keys.len(), MAX_REGIONS);
    assert_eq!(table.insert(region()), Err(TableError::Full));
    assert_eq!(table.len(), MAX_REGIONS);
    let reserved = [0, 0xFFFF_FF00];
    assert!(reserved.iter().all(|key| !keys.contains(key)));
    // Slots 0 and the last are those with a reserved variant; go through all variants of both.
    for slot in [0, (MAX_REGIONS - 1) as u32] {
        let mut key = *keys.iter().find(|&&key| key >> 12 == slot).expect("all slots are in use");
        let mut seen = HashSet::from([key]);
        for _ in 0..4094 {
            table.remove(key).expect("in use");
            key = insert(&mut table);
            assert!(key >> 12 == slot && !reserved.contains(&key), "{key:#x}");
            assert!(seen.insert(key), "{key:#x} came back early");
        }
    }
}
