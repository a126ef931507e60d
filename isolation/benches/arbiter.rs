//! What the arbiter costs per turn: a queue pair is added, taken and charged, among few and many tenants with work.

use criterion::{Criterion, criterion_group, criterion_main};
use isolation::{Arbiter, Config, Cost, Flow, Settings};
use roce::{Instant, Qpn};
use std::hint::black_box;
use std::time::Duration;

fn turns(c: &mut Criterion) {
    let mut group = c.benchmark_group("turn");
    for tenants in [1u32, 10, 1000] {
        let mut arbiter = Arbiter::new(Config::default());
        let mut now = Instant::ZERO;
        let mut flows: Vec<Flow> = (0..tenants)
            .map(|n| {
                let mut flow = Flow::new(arbiter.add_tenant(Settings::default(), now).unwrap());
                arbiter.add(Qpn::new(n), &mut flow, now);
                flow
            })
            .collect();
        group.bench_function(format!("{tenants} tenants"), |b| {
            b.iter(|| {
                now = now + Duration::from_nanos(1000);
                let grant = arbiter.take(black_box(now)).unwrap();
                let flow = &mut flows[grant.qpn.get() as usize];
                flow.begin_turn();
                arbiter.add(grant.qpn, flow, now);
                arbiter.charge(&grant, Cost { bytes: 4096, packets: 1, within_message: false }, now);
            })
        });
    }
    group.finish();
}

criterion_group!(benches, turns);
criterion_main!(benches);
