//! A better bound for a known answer: mirror ascent on link lengths. Far cheaper than the dual LP, since each round is only one
//! search per source, and most often near enough.
//!
//! With lengths scaled such that the capacities weigh 1 in all, the bound is the sum of volume times distance, which is concave in
//! the shares `c_e l_e`; where everything sent on shortest paths loads a link more than others, its share has to grow. How far
//! the bound can rise is known from the answer, and sets the step (Polyak's rule in the norm of the shares).

use super::{Certificate, Instance};
use crate::allocation::{GroupRates, add_load};
use crate::path::Tree;

/// Most rounds.
const MAX_ROUNDS: u64 = 64;
/// Links that an answer of the LP leaves less full than this cannot matter much for the bound, by complementary slackness.
const FULL: f64 = 0.999;
/// What remains of the share of the others.
const FADED: f64 = 0.02;
/// Shares below this are raised to it once: zero could never grow again.
const LEAST_SHARE: f64 = 1e-9;

/// Raises the bound that `proof` gives until it is within `gap` of the answer (`alpha`, `rates`, and whether these are from the
/// LP), as far as the steps last. Returns the best certificate found, or `None` if none is better.
pub(super) fn run(
    instance: &Instance,
    tree: &mut Tree,
    proof: &Certificate,
    (alpha, rates, is_exact): (f64, &GroupRates, bool),
    (gap, max_steps): (f64, u64),
    steps: &mut u64,
) -> Option<Certificate> {
    let links = instance.capacity.len();
    let mut loads = vec![0.0; links];
    add_load(&mut loads, rates, 1.0);
    let share = |link: usize| match instance.usable(link) {
        false => 0.0,
        true if !is_exact || loads[link] >= FULL * instance.capacity[link] => instance.capacity[link] * proof.lengths[link],
        true => FADED * instance.capacity[link] * proof.lengths[link],
    };
    let mut shares: Vec<f64> = (0..links).map(share).collect();
    scale(&mut shares);
    shares.iter_mut().enumerate().filter(|(link, _)| instance.usable(*link)).for_each(|(_, share)| {
        *share = share.max(LEAST_SHARE);
    });
    let mut lengths = vec![f64::INFINITY; links];
    let mut best: Option<Certificate> = None;
    let mut known_alpha = proof.alpha;
    for _ in 0..MAX_ROUNDS {
        if *steps >= max_steps || known_alpha <= alpha * (1.0 + gap) {
            break;
        }
        scale(&mut shares);
        for (link, length) in lengths.iter_mut().enumerate().filter(|(link, _)| instance.usable(*link)) {
            *length = shares[link] / instance.capacity[link];
        }
        let (bound_s, prices) = shortest(instance, tree, &lengths, &mut loads, steps);
        if 1.0 / bound_s < known_alpha {
            known_alpha = 1.0 / bound_s;
            best = Some(Certificate { alpha: known_alpha, prices, lengths: lengths.clone() });
        }
        // In seconds: how long each link would be busy. Their mean by share is the bound itself.
        let busy_s = |link: usize| loads[link] / instance.capacity[link] - bound_s;
        let used = || (0..links).filter(|&link| instance.usable(link));
        let variance: f64 = used().map(|link| shares[link] * busy_s(link).powi(2)).sum();
        let most_s = used().map(busy_s).fold(0.0, f64::max);
        let step = ((1.0 / alpha - bound_s) / variance).min(1.0 / most_s);
        if !(step > 0.0 && step.is_finite()) {
            break;
        }
        used().for_each(|link| shares[link] *= (step * busy_s(link)).exp());
    }
    best
}

/// Scales to a sum of 1.
fn scale(shares: &mut [f64]) {
    let sum: f64 = shares.iter().sum();
    shares.iter_mut().for_each(|share| *share /= sum);
}

/// Sum of volume times distance, the distances, and in `loads` what each link carries if all goes the shortest way.
fn shortest(instance: &Instance, tree: &mut Tree, lengths: &[f64], loads: &mut [f64], steps: &mut u64) -> (f64, Vec<f64>) {
    loads.fill(0.0);
    let mut total = 0.0;
    let mut source = None;
    let price = |demand: &super::Demand| {
        if source != Some(demand.src) {
            source = Some(demand.src);
            *steps += 1;
            tree.shortest(instance.wan, demand.src, |link| lengths[link.index()]);
        }
        tree.backwards(instance.wan, demand.dst).for_each(|link| loads[link.index()] += demand.volume_gbit);
        total += demand.volume_gbit * tree.distance(demand.dst);
        tree.distance(demand.dst)
    };
    let prices = instance.demands.iter().map(price).collect();
    (total, prices)
}
