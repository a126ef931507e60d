//! Whether two neighbours in the order should change places.
//!
//! Least remaining time first is best for the sum of completion times when all share one bottleneck. On a network the shorter one
//! may take, on its detours, the little that a longer one needs everywhere for its whole time. So the ends of both are
//! estimated for either order: the first at its rates on what is free, the second on what that leaves until the first is done,
//! and at its rates alone from then on.

use super::{Active, Effort, MinCct, NoPath, Solver, demands, remaining_s, rounded};
use crate::allocation::{Allocation, add_load};
use crate::share::{Sharer, fill_network};
use crate::wan::Wan;

/// An exchange must lower the weighted sum of both ends to below this fraction, or it is not worth its uncertainty.
const WORTH: f64 = 0.99;
/// A second one whose end is within this factor of its least time is not held up by the first.
const UNHINDERED: f64 = 1.05;

/// One of the two: itself, its prices, and its answer on what is free.
#[derive(Clone, Copy)]
pub(super) struct One<'a> {
    pub active: &'a Active,
    pub prices: &'a [f64],
}

/// What the comparison has found out.
pub(super) enum Outcome {
    /// The order is right; the second has this answer on what the first leaves.
    Keep(Result<MinCct, NoPath>),
    /// The second goes first, with this answer on what is free.
    Exchange(MinCct),
}

pub(super) struct Neighbours<'a> {
    pub wan: &'a Wan,
    /// What is free on each link for both, Gbit/s.
    pub free: &'a [f64],
    pub effort: Effort,
}

impl Neighbours<'_> {
    /// Compares both orders; `first_answer` is that of the first on what is free. Counts the steps of all solves.
    pub fn compare(&self, solver: &mut Solver, first: One, first_answer: &MinCct, second: One, steps: &mut u64) -> Outcome {
        let (after, left) = self.after(solver, first_answer, second, steps);
        let least_s = remaining_s(second.active, second.prices);
        let second_s = self.end_s(first_answer.cct_s, &after, &left, second, least_s);
        if second_s <= UNHINDERED * least_s {
            return Outcome::Keep(after);
        }
        let alone = self.solve(solver, self.free, second, steps);
        let Ok(alone) = alone else { return Outcome::Keep(after) };
        // Now that its time alone is known, not only a bound.
        let second_s = self.end_s(first_answer.cct_s, &after, &left, second, alone.cct_s);
        let (first_after, first_left) = self.after(solver, &alone, first, steps);
        let first_s = self.end_s(alone.cct_s, &first_after, &first_left, first, first_answer.cct_s);
        let sum = |first_s: f64, second_s: f64| first.active.coflow.weight * first_s + second.active.coflow.weight * second_s;
        if sum(first_s, alone.cct_s) < WORTH * sum(first_answer.cct_s, second_s) {
            Outcome::Exchange(alone)
        } else {
            Outcome::Keep(after)
        }
    }

    fn solve(&self, solver: &mut Solver, free: &[f64], one: One, steps: &mut u64) -> Result<MinCct, NoPath> {
        let answer = solver.solve(self.wan, free, &demands(&one.active.coflow, &one.active.remaining_gbit), self.effort);
        *steps += answer.as_ref().map_or(0, |answer| answer.steps);
        answer
    }

    /// The answer of one on what another leaves, and what that is.
    fn after(&self, solver: &mut Solver, before: &MinCct, one: One, steps: &mut u64) -> (Result<MinCct, NoPath>, Vec<f64>) {
        let mut left = self.free.to_vec();
        add_load(&mut left, &before.rates, -1.0);
        let left = rounded(self.wan, &left);
        (self.solve(solver, &left, one, steps), left)
    }

    /// When one ends that has `answer` on what is `left` until `until_s`, and would take `alone_s` for all of it alone.
    fn end_s(&self, until_s: f64, answer: &Result<MinCct, NoPath>, left: &[f64], one: One, alone_s: f64) -> f64 {
        let part = match answer {
            Ok(answer) if answer.cct_s <= until_s => return answer.cct_s,
            Ok(answer) => until_s / answer.cct_s,
            Err(_) => self.part_aside(until_s, left, one),
        };
        until_s + (1.0 - part) * alone_s
    }

    /// The part of its remaining time that one saves until `until_s` if it only shares what is left.
    fn part_aside(&self, until_s: f64, left: &[f64], one: One) -> f64 {
        let mut allocation = Allocation::default();
        let sharers: Vec<Sharer> = one.active.sharers(|_| 1.0).collect();
        fill_network(self.wan, &mut left.to_vec(), &sharers, &mut allocation);
        let sent = |group: usize, left_gbit: f64| (until_s * allocation.group_rate(one.active.coflow.id, group)).min(left_gbit);
        let groups = one.active.remaining_gbit.iter().enumerate();
        let saved_s: f64 = groups.map(|(group, left_gbit)| sent(group, *left_gbit) * one.prices[group]).sum();
        saved_s / remaining_s(one.active, one.prices)
    }
}
