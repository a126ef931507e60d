//! No translation reaches memory that is not the tenant's own and registered at that moment: what is sent to as final addresses, past
//! any IOMMU, must be right at any point of any history of registering, replacing, removing, resets, and memory that is freed.
//!
//! Whose memory is whose is kept apart from the table, page by page.

use emtt::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const TENANTS: u32 = 3;
/// Pages of each owner's memory.
const PAGES: u64 = 8;
const PAGE: u64 = 4096;

#[derive(Clone, Debug)]
enum Op {
    /// A tenant registers pages of its own memory, or of its part of a GPU, from an offset in the first on.
    Register {
        tenant: u32,
        gpu: bool,
        pages: Vec<u64>,
        skip: u64,
        name: Option<u32>,
    },
    /// Other pages under the same key.
    Remap {
        region: prop::sample::Index,
        gpu: bool,
        pages: Vec<u64>,
    },
    Deregister(prop::sample::Index),
    Bind {
        region: prop::sample::Index,
        kind: WindowKind,
        from: u64,
        len: u64,
    },
    Unbind(prop::sample::Index),
    /// A tenant's device is reset: all that it had is gone.
    Reset(u32),
    /// A tenant's part of the GPU is freed, below whatever is registered.
    FreeGpu(u32),
    /// Any tenant tries any key that there ever was, or one beside it.
    Access {
        tenant: u32,
        key: prop::sample::Index,
        guess: u32,
        at: u64,
        len: u64,
        needs: Access,
    },
}

struct Region {
    key: u32,
    tenant: u32,
    name: Option<u32>,
    gpu: bool,
    revoked: bool,
    /// All its bytes are in these.
    pages: BTreeSet<(Owner, u64)>,
    windows: Vec<u32>,
}

#[derive(Default)]
struct World {
    regions: Vec<Region>,
    /// Every key and name that anybody was ever given.
    keys: Vec<u32>,
}

fn owner(tenant: u32, gpu: bool) -> Owner {
    if gpu { Owner::Gpu { device: GpuId(0), window: MemId(100 + tenant) } } else { Owner::Host(MemId(tenant)) }
}

fn init(tenant: u32, gpu: bool, pages: &[u64], skip: u64) -> RegionInit {
    let owner = owner(tenant, gpu);
    let mut runs: Vec<Segment> = pages.iter().map(|page| Segment { owner, addr: page * PAGE, len: PAGE }).collect();
    runs[0].addr += skip;
    runs[0].len -= skip;
    RegionInit { pd: PdId(tenant), iova: 0, access: Access::all(), runs }
}

impl World {
    /// What a tenant may reach: pages of its regions that nobody has taken back.
    fn allowed(&self, tenant: u32) -> BTreeSet<(Owner, u64)> {
        let live = self.regions.iter().filter(|region| region.tenant == tenant && !region.revoked);
        live.flat_map(|region| region.pages.iter().copied()).collect()
    }

    fn end(&mut self, table: &mut Table, index: usize) {
        let region = self.regions.swap_remove(index);
        for window in region.windows {
            table.dealloc_window(window).expect("it is there");
        }
        table.remove(region.key).expect("it is there");
    }

    fn apply(&mut self, table: &mut Table, op: &Op) {
        let pages_of = |tenant, gpu, pages: &[u64]| pages.iter().map(|page| (owner(tenant, gpu), *page)).collect();
        let some = |index: &prop::sample::Index, len: usize| (len > 0).then(|| index.index(len));
        match op {
            Op::Register { tenant, gpu, pages, skip, name } => {
                let init = init(*tenant, *gpu, pages, *skip);
                let key = match name {
                    None => table.insert(init),
                    Some(name) => table.insert_named(init, *name),
                };
                if let Ok(key) = key {
                    self.keys.extend(Some(key).into_iter().chain(*name));
                    let pages = pages_of(*tenant, *gpu, pages);
                    let (tenant, name, gpu) = (*tenant, *name, *gpu);
                    self.regions.push(Region { key, tenant, name, gpu, revoked: false, pages, windows: vec![] });
                }
            }
            Op::Remap { region, gpu, pages } => {
                let Some(at) = some(region, self.regions.len()) else { return };
                let region = &mut self.regions[at];
                let replaced = table.replace(region.key, init(region.tenant, *gpu, pages, 0));
                let plain = region.name.is_none() && region.windows.is_empty();
                assert!(replaced.is_ok() || !plain, "{replaced:?}");
                if replaced.is_ok() {
                    region.pages = pages_of(region.tenant, *gpu, pages);
                    (region.gpu, region.revoked) = (*gpu, false);
                }
            }
            Op::Deregister(region) => {
                if let Some(at) = some(region, self.regions.len()) {
                    self.end(table, at);
                }
            }
            Op::Bind { region, kind, from, len } => {
                let Some(at) = some(region, self.regions.len()) else { return };
                let region = &mut self.regions[at];
                let window = table.alloc_window(PdId(region.tenant), *kind).expect("room for it");
                let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
                let named = region.name.unwrap_or(region.key);
                let binding =
                    Binding { window, key: window ^ 3, region: named, addr: *from, len: *len, access, zero_based: false };
                let bound = table.bind_window(Via { pd: PdId(region.tenant), qp: 1 }, &binding);
                assert!(bound.is_err() || !region.revoked, "nothing is bound to memory that is gone");
                self.keys.extend([window, window ^ 3]);
                region.windows.push(window);
            }
            Op::Unbind(region) => {
                if let Some(at) = some(region, self.regions.len())
                    && let Some(window) = self.regions[at].windows.pop()
                {
                    table.dealloc_window(window).expect("it is there");
                }
            }
            Op::Reset(tenant) => {
                while let Some(at) = self.regions.iter().position(|region| region.tenant == *tenant) {
                    self.end(table, at);
                }
            }
            Op::FreeGpu(tenant) => {
                for region in self.regions.iter_mut().filter(|region| region.tenant == *tenant && region.gpu) {
                    table.revoke(region.key).expect("it is there");
                    region.revoked = true;
                }
            }
            Op::Access { tenant, key, guess, at, len, needs } => {
                let Some(key) = some(key, self.keys.len()).map(|n| self.keys[n] ^ guess) else { return };
                self.check_access(table, *tenant, &self.allowed(*tenant), key, (*at, *len), *needs);
            }
        }
    }

    /// What a tenant reaches with a key is its own.
    fn check_access(
        &self,
        table: &Table,
        tenant: u32,
        allowed: &BTreeSet<(Owner, u64)>,
        key: u32,
        range: (u64, u64),
        needs: Access,
    ) {
        let via = Via { pd: PdId(tenant), qp: 1 };
        let own = table.translate(key, via.pd, range.0, range.1, needs);
        for found in [own, table.translate_remote(key, via, range.0, range.1, needs)].into_iter().flatten() {
            for Segment { owner, addr, len } in found {
                let mut pages = addr / PAGE..=(addr + len - 1) / PAGE;
                assert!(pages.all(|page| allowed.contains(&(owner, page))), "{owner:?} {addr:#x} {len}, {tenant}");
            }
        }
    }

    /// Every tenant tries every key that anybody ever had, all over.
    fn check_all(&self, table: &Table) {
        for tenant in 0..TENANTS {
            let allowed = self.allowed(tenant);
            for key in &self.keys {
                for at in 0..12 {
                    self.check_access(table, tenant, &allowed, *key, (at * PAGE / 2, 1), Access::empty());
                }
            }
        }
    }

    /// What is registered and not taken back can be reached, by its owner: a table that refuses everything is not safe but useless.
    fn check_live(&self, table: &Table) {
        for Region { key, tenant, name, revoked, pages, .. } in &self.regions {
            let found = table.translate(name.unwrap_or(*key), PdId(*tenant), 0, 1, Access::REMOTE_WRITE);
            match revoked {
                true => assert_eq!(found.map(drop), Err(TranslateError::Revoked)),
                false => {
                    let first = found.expect("it is live").next().expect("a byte");
                    assert!(pages.contains(&(first.owner, first.addr / PAGE)));
                }
            }
        }
    }
}

fn op() -> impl Strategy<Value = Op> {
    let pages = || prop::collection::vec(0..PAGES, 1..6);
    let index = any::<prop::sample::Index>;
    let kind = prop_oneof![Just(WindowKind::One), Just(WindowKind::Two)];
    let name = prop::option::weighted(0.3, 1_u32..6);
    prop_oneof![
        4 => (0..TENANTS, any::<bool>(), pages(), 0..PAGE, name)
            .prop_map(|(tenant, gpu, pages, skip, name)| Op::Register { tenant, gpu, pages, skip, name }),
        2 => (index(), any::<bool>(), pages()).prop_map(|(region, gpu, pages)| Op::Remap { region, gpu, pages }),
        2 => index().prop_map(Op::Deregister),
        2 => (index(), kind, 0..PAGE, 1..2 * PAGE).prop_map(|(region, kind, from, len)| Op::Bind { region, kind, from, len }),
        1 => index().prop_map(Op::Unbind),
        1 => (0..TENANTS).prop_map(Op::Reset),
        1 => (0..TENANTS).prop_map(Op::FreeGpu),
        12 => (0..TENANTS, index(), prop_oneof![4 => Just(0), 1 => 0_u32..0x2000], 0..7 * PAGE, 0..7 * PAGE, 0_u32..16).prop_map(
            |(tenant, key, guess, at, len, needs)| {
                Op::Access { tenant, key, guess, at, len, needs: Access::from_bits_truncate(needs) }
            }
        ),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn nothing_but_ones_own_live_memory_is_reached(seed: u64, ops in prop::collection::vec(op(), 1..80)) {
        let (mut table, mut world) = (Table::new(seed), World::default());
        for op in &ops {
            world.apply(&mut table, op);
            world.check_live(&table);
        }
        world.check_all(&table);
    }
}

#[test]
fn a_revoked_region_keeps_its_key_until_it_is_removed_or_replaced() {
    let mut table = Table::new(1);
    let key = table.insert(init(1, true, &[1, 3], 0)).expect("a good region");
    let window = table.alloc_window(PdId(1), WindowKind::One).expect("room for it");
    let via = Via { pd: PdId(1), qp: 1 };
    let access = Access::REMOTE_READ;
    let binding = Binding { window, key: window, region: key, addr: 0, len: 8, access, zero_based: false };
    table.bind_window(via, &binding).expect("it may be bound");
    table.revoke(key).expect("it is there");
    for (key, len) in [(key, 1), (key, 0), (window, 1)] {
        let found = table.translate_remote(key, via, 0, len, Access::empty()).map(drop);
        assert_eq!(found, Err(TranslateError::Revoked));
    }
    assert_eq!(table.get(key).map(|region| (region.len(), region.access())), Some((2 * PAGE, Access::empty())));
    let again = Binding { window, ..binding };
    assert_eq!(table.bind_window(via, &again), Err(BindError::Access));
    assert_eq!(table.remove(key), Err(TableError::Bound(1)));
    table.dealloc_window(window).expect("it is there");
    table.replace(key, init(1, true, &[5], 0)).expect("other memory");
    assert!(table.translate(key, PdId(1), 0, 1, Access::REMOTE_WRITE).is_ok());
    table.revoke(key).expect("it is there");
    table.remove(key).expect("it is there");
    assert_eq!(table.revoke(key), Err(TableError::NotFound(key)));
}
