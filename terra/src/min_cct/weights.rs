//! Maximum concurrent flow by multiplicative weights, after Garg and Könemann and Fleischer: lengths grow on what is used, and
//! flow goes where the lengths are small. Gives feasible rates, lengths that prove a bound, and every path worth a look.

use super::{Certificate, Instance, settle};
use crate::allocation::{GroupRates, PathRate};
use crate::id::LinkId;
use crate::path::{Path, Tree};

/// By how much, at most, one chunk of flow lengthens its tightest link.
const STEP: f64 = 0.2;
/// Most rounds; in each, every demand is routed once. More would find thousands of paths, and make the LP slow; the few that
/// are still missing are found by the dual LP.
const MAX_ROUNDS: u64 = 64;
/// Rounds between two looks at the gap.
const LOOK: u64 = 4;
/// Most chunks into which one demand is cut in one round.
const MAX_CHUNKS: u32 = 64;
/// Above this, all lengths are scaled down: only their ratios mean anything.
const HUGE: f64 = 1e100;

pub(super) struct Harvest {
    pub alpha: f64,
    pub rates: GroupRates,
    pub certificate: Certificate,
    /// Every path that was ever used, by demand.
    pub paths: Vec<Vec<Path>>,
}

struct Flow {
    path: Path,
    amount: f64,
}

struct State<'a, 'b> {
    instance: &'a Instance<'a>,
    tree: &'b mut Tree,
    lengths: Vec<f64>,
    loads: Vec<f64>,
    flows: Vec<Vec<Flow>>,
    links: Vec<LinkId>,
}

pub(super) fn run(instance: &Instance, tree: &mut Tree, gap: f64, max_steps: u64, steps: &mut u64) -> Harvest {
    let first = |e: usize| if instance.usable(e) { 1.0 / instance.capacity[e] } else { f64::INFINITY };
    let lengths: Vec<f64> = (0..instance.capacity.len()).map(first).collect();
    let (mut certificate, shortest) = instance.certify(tree, &lengths, steps);
    let flows = |(_, path): &(f64, Path)| vec![Flow { path: path.clone(), amount: 1.0 }];
    let flows: Vec<Vec<Flow>> = shortest.iter().map(flows).collect();
    let mut state = State { instance, tree, loads: vec![0.0; lengths.len()], lengths, flows, links: Vec::new() };
    // All on the first path found is feasible already, and tells how much a round should route.
    let (mut alpha, mut rates) = state.rates();
    let mut scale = alpha.max(certificate.alpha / 64.0);
    let mut round = 0;
    while round < MAX_ROUNDS && *steps < max_steps && certificate.alpha > alpha * (1.0 + gap) {
        if round.is_power_of_two() || round == 0 {
            // What was routed with the lengths of the beginning is no good: count from here again, keep the paths.
            state.flows.iter_mut().flatten().for_each(|flow| flow.amount = 0.0);
        }
        state.round(scale, steps);
        round += 1;
        if round % LOOK == 0 || *steps >= max_steps {
            let (now, found) = state.rates();
            if now > alpha {
                (alpha, rates) = (now, found);
                scale = now;
            }
            let (proof, _) = instance.certify(state.tree, &state.lengths, steps);
            if proof.alpha < certificate.alpha {
                certificate = proof;
            }
        }
    }
    let paths = state.flows.into_iter().map(|flows| flows.into_iter().map(|flow| flow.path).collect()).collect();
    Harvest { alpha, rates, certificate, paths }
}

impl State<'_, '_> {
    /// Routes `scale` times the volume of every demand, in chunks no larger than the tightest link of their path.
    fn round(&mut self, scale: f64, steps: &mut u64) {
        let demands = &self.instance.demands;
        let mut from = 0;
        while from < demands.len() {
            let src = demands[from].src;
            let to = from + demands[from..].iter().take_while(|demand| demand.src == src).count();
            let mut left: Vec<(usize, f64)> = (from..to).map(|group| (group, scale * demands[group].volume_gbit)).collect();
            let mut chunks = 0;
            while !left.is_empty() {
                *steps += 1;
                let lengths = &self.lengths;
                self.tree.shortest(self.instance.wan, src, |link| lengths[link.index()]);
                chunks += 1;
                left.retain_mut(|(group, amount)| {
                    let sent = self.send(*group, if chunks < MAX_CHUNKS { *amount } else { f64::NAN }, *amount);
                    *amount -= sent;
                    *amount > 1e-9 * sent
                });
            }
            from = to;
        }
        if self.lengths.iter().any(|length| *length > HUGE && length.is_finite()) {
            self.lengths.iter_mut().for_each(|length| *length /= HUGE);
        }
    }

    /// Sends one chunk of a demand along the tree. `wanted` is NaN for all of `amount` whatever the capacity.
    fn send(&mut self, group: usize, wanted: f64, amount: f64) -> f64 {
        let Self { instance, tree, lengths, flows, links, .. } = self;
        links.clear();
        links.extend(tree.backwards(instance.wan, instance.demands[group].dst));
        let tightest = links.iter().map(|link| instance.capacity[link.index()]).fold(f64::INFINITY, f64::min);
        let sent = if wanted.is_nan() { amount } else { wanted.min(tightest) };
        for link in links.iter() {
            lengths[link.index()] *= 1.0 + STEP * (sent / instance.capacity[link.index()]).min(1.0);
        }
        let backwards = |path: &Path| path.links().iter().rev().eq(links.iter());
        match flows[group].iter_mut().find(|flow| backwards(&flow.path)) {
            Some(flow) => flow.amount += sent,
            None => {
                let path = tree.path(instance.wan, instance.demands[group].dst).expect("the tree reaches every demand");
                flows[group].push(Flow { path, amount: sent });
            }
        }
        sent
    }

    /// The flows as feasible rates of equal progress.
    fn rates(&mut self) -> (f64, GroupRates) {
        let rate = |flow: &Flow| PathRate { path: flow.path.clone(), rate_gbps: flow.amount };
        let used = |flows: &Vec<Flow>| flows.iter().filter(|flow| flow.amount > 0.0).map(rate).collect();
        let mut rates: GroupRates = self.flows.iter().map(used).collect();
        // Flows are amounts, not rates: bring them within the capacities first, so that `settle` sees no overload.
        self.loads.fill(0.0);
        crate::allocation::add_load(&mut self.loads, &rates, 1.0);
        let over = self.loads.iter().zip(self.instance.capacity).filter(|(load, _)| **load > 0.0).map(|(load, c)| load / c);
        let over = over.fold(0.0, f64::max);
        rates.iter_mut().flatten().for_each(|path| path.rate_gbps /= over);
        let alpha = settle(self.instance, &mut rates);
        (alpha, rates)
    }
}
