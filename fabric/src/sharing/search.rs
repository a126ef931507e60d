//! A search for workloads under which a victim falls under its bar: tenants drawn at random from the space that Collie (NSDI 2022) searches,
//! beside a victim. Every case is made of its seed alone.

use super::card::Card;
use super::husky::{Alone, Fares};
use super::lab::Setup;
use super::load::{Load, Op};
use isolation::Policy;
use rnic::QpType;
use roce::Mtu;
use roce::rng::Rng;

/// A victim, what goes on beside it, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// What all of it was drawn from.
    pub seed: u64,
    /// Hosts and network.
    pub setup: Setup,
    /// Who has to get its part.
    pub victim: Load,
    /// Everybody else, 3 to 5 tenants.
    pub others: Vec<Load>,
}

impl Case {
    /// The case of a seed.
    pub fn draw(seed: u64) -> Case {
        let rng = &mut Rng::new(seed);
        let mtu = [Mtu::B1024, Mtu::B2048, Mtu::B4096][rng.below(3) as usize];
        let setup = Setup::new(Card { mtu, ..Card::IB56 });
        let victim = match rng.below(4) {
            0 | 1 => Load::latency("victim", 1 << (4 + rng.below(7))),
            2 => Load { qps: 1 + rng.below(4) as u32, ..Load::rate("victim") },
            _ => Load { qps: 1 + rng.below(4) as u32, ..Load::bulk("victim", 1 << (16 + rng.below(5))) },
        };
        let others = (0..3 + rng.below(3)).map(|_| tenant(rng, mtu)).collect();
        Case { seed, setup, victim, others }
    }

    /// How the victim fares under a policy.
    pub fn run(&self, policy: Policy) -> Fares {
        Alone::run(&self.setup, policy, &self.victim).beside(&self.setup, policy, &self.victim, &self.others)
    }

    /// The case in words.
    pub fn describe(&self) -> String {
        let tenant = |load: &Load| {
            let Load { op, service, qps, regions, batch, depth, bytes, sizes, buffers, from, .. } = load;
            let sizes = if sizes.is_empty() { vec![*bytes] } else { sizes.clone() };
            let way = if *from == 0 { "" } else { ", backward" };
            format!(
                "{op:?} {service:?} of {sizes:?} bytes in {buffers} buffers, {qps} QPs, {batch} × {depth} posted, {regions} regions{way}"
            )
        };
        let others: Vec<String> = self.others.iter().map(tenant).collect();
        format!("MTU {}; victim: {}; others: {}", self.setup.card.mtu.bytes(), tenant(&self.victim), others.join("; "))
    }
}

/// A tenant of Collie's space: a service, a verb that it has, 1 to 4 queue pairs, regions and buffers, 1 to 8 sizes in turn, and
/// how much is posted at once and under way.
fn tenant(rng: &mut Rng, mtu: Mtu) -> Load {
    let mut below = |bound: u64| rng.below(bound) as u32;
    let service = [QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud][below(4) as usize];
    let op = match service {
        QpType::Ud => Op::Send,
        QpType::Uc => [Op::Write, Op::Send][below(2) as usize],
        _ => [Op::Write, Op::Read, Op::Send][below(3) as usize],
    };
    let longest = if service == QpType::Ud { mtu.bytes() as u32 } else { 128 << 10 };
    // 32 bytes to 128 KiB, all powers of two as likely.
    let sizes: Vec<u32> = (0..1 + below(8)).map(|_| (32u32 << below(13)).min(longest)).collect();
    let batch = 1 << below(7);
    let depth = (1u32 << below(11)).div_ceil(batch);
    let load = Load {
        op,
        service,
        bytes: sizes.iter().copied().max().unwrap_or_default(),
        sizes,
        buffers: 1 + below(4),
        regions: 1 + below(4),
        qps: 1 + below(4),
        batch,
        depth,
        ..Load::bulk("other", 0)
    };
    if below(2) == 0 { load } else { load.backwards() }
}
