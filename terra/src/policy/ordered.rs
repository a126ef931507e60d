//! Comparators that serve coflows in an order on fixed shortest paths: Varys (smallest bottleneck first, with its deadline
//! mode), Aalo (priority queues by what was sent, no sizes known) and Sincronia (bottleneck-scaled ordering).

use super::fair::on_shortest_paths;
use super::{Active, Decision, Event, Policy, State};
use crate::RATE_FLOOR_GBPS;
use crate::allocation::Allocation;
use crate::id::CoflowId;
use crate::path::Path;
use crate::share::{Sharer, fill_paths, take_path};
use std::collections::{BTreeMap, BTreeSet};

/// The FlowGroups of one coflow, each on its path.
type Placed = Vec<(Sharer, Path)>;

/// All active coflows on the paths of fewest hops; groups that are cut off are left out.
fn placed(state: &State, weight: impl Fn(&Active, usize) -> f64 + Copy) -> BTreeMap<CoflowId, Placed> {
    let sharers =
        state.active.values().flat_map(|active| active.sharers(move |group| weight(active, group)).collect::<Vec<_>>());
    let mut all: BTreeMap<CoflowId, Placed> = BTreeMap::new();
    for (sharer, path) in on_shortest_paths(state, sharers.collect()) {
        all.entry(sharer.coflow).or_default().push((sharer, path));
    }
    all
}

/// Time to send all groups at `left` Gbit/s per link, seconds: the busiest link decides.
fn bottleneck_s(active: &Active, groups: &Placed, left: &[f64]) -> f64 {
    let mut volume: BTreeMap<usize, f64> = BTreeMap::new();
    for (sharer, path) in groups {
        for link in path.links() {
            *volume.entry(link.index()).or_default() += active.remaining_gbit[sharer.group];
        }
    }
    let time = |(link, volume): (usize, f64)| if left[link] > RATE_FLOOR_GBPS { volume / left[link] } else { f64::INFINITY };
    volume.into_iter().map(time).fold(0.0, f64::max)
}

/// Gives every group its remaining volume over `time_s`, so that all end together.
fn send_in(active: &Active, groups: &Placed, time_s: f64, left: &mut [f64], allocation: &mut Allocation) {
    for (sharer, path) in groups {
        // Rounding may leave a link a little short of what the time asks for.
        if let Some(rate) = take_path(left, path, active.remaining_gbit[sharer.group] / time_s) {
            allocation.add(sharer.coflow, sharer.groups, sharer.group, &rate.path, rate.rate_gbps);
        }
    }
}

/// Varys: smallest effective bottleneck first, and rates such that all flows of a coflow end together. Deadlines: a coflow is
/// admitted if its bottleneck, with a tenth to spare, allows it beside those admitted; it then gets volume over deadline.
#[derive(Clone, Debug, Default)]
pub struct Varys {
    admitted: BTreeSet<CoflowId>,
}

/// What Varys adds to the bottleneck time before it admits.
const VARYS_SPARE: f64 = 1.1;
/// Deadlines below this many seconds are not admitted by Varys.
const VARYS_LEAST_S: f64 = 0.2;

impl Policy for Varys {
    fn name(&self) -> &'static str {
        "varys"
    }

    fn schedule(&mut self, state: &State, events: &[Event]) -> Decision {
        self.admitted.retain(|id| state.active.contains_key(id));
        let all = placed(state, |_, _| 1.0);
        let mut left = state.wan.capacities();
        let mut decision = Decision::default();
        let complete = |id: &CoflowId| {
            let waiting = state.active[id].remaining_gbit.iter().filter(|left| **left > 0.0).count();
            all.get(id).is_some_and(|groups| groups.len() == waiting)
        };
        // Reservations of those admitted earlier come first, then this event's newcomers are tried on what is left.
        let new: BTreeSet<CoflowId> =
            events.iter().filter_map(|event| if let Event::Arrival(id) = event { Some(*id) } else { None }).collect();
        let (old, fresh): (Vec<CoflowId>, Vec<CoflowId>) =
            state.active.keys().filter(|id| state.active[id].coflow.deadline_s.is_some()).partition(|id| !new.contains(id));
        for id in old.into_iter().filter(|id| self.admitted.contains(id)).collect::<Vec<_>>() {
            let active = &state.active[&id];
            let time_s = active.deadline_at_s().unwrap_or(f64::INFINITY) - state.now_s;
            if complete(&id) && time_s > 0.0 && bottleneck_s(active, &all[&id], &left) <= time_s * (1.0 + 1e-9) {
                send_in(active, &all[&id], time_s, &mut left, &mut decision.allocation);
            } else {
                self.admitted.remove(&id);
                decision.refused.push(id);
            }
        }
        for id in fresh {
            let active = &state.active[&id];
            let time_s = active.coflow.deadline_s.unwrap_or(f64::INFINITY);
            let needed_s = |left: &[f64]| (bottleneck_s(active, &all[&id], left) * VARYS_SPARE).max(VARYS_LEAST_S);
            if complete(&id) && needed_s(&left) <= time_s {
                self.admitted.insert(id);
                send_in(active, &all[&id], time_s, &mut left, &mut decision.allocation);
            } else {
                decision.refused.push(id);
            }
        }
        let capacity = state.wan.capacities();
        let mut order: Vec<(f64, CoflowId)> = all
            .iter()
            .filter(|(id, _)| !self.admitted.contains(id))
            .map(|(id, groups)| (bottleneck_s(&state.active[id], groups, &capacity) / state.active[id].coflow.weight, *id))
            .collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut skipped: Placed = Vec::new();
        for (_, id) in &order {
            let time_s = bottleneck_s(&state.active[id], &all[id], &left);
            if time_s.is_finite() {
                send_in(&state.active[id], &all[id], time_s, &mut left, &mut decision.allocation);
            } else {
                skipped.extend(all[id].iter().cloned());
            }
        }
        fill_paths(&mut left, &skipped, &mut decision.allocation);
        // What is left goes to flows in the same order, admitted ones last: they end in time anyhow.
        let last = self.admitted.iter().filter_map(|id| all.get(id));
        for (sharer, path) in order.iter().map(|(_, id)| &all[id]).chain(last).flatten() {
            if let Some(rate) = take_path(&mut left, path, f64::INFINITY) {
                decision.allocation.add(sharer.coflow, sharer.groups, sharer.group, &rate.path, rate.rate_gbps);
            }
        }
        decision
    }
}

/// Aalo: coflows move to lower queues as they send; strict priority between queues, first come first served inside. It
/// knows no sizes, so within a coflow all flows share equally.
#[derive(Clone, Debug, Default)]
pub struct Aalo;

/// Queues of Aalo.
const AALO_QUEUES: i32 = 10;
/// What a coflow sends in the first queue, Gbit (10 MB).
const AALO_FIRST_GBIT: f64 = 0.08;
/// Each queue takes this many times the one before.
const AALO_FACTOR: f64 = 10.0;

/// The queue of a coflow that has sent so much, and how much it may send in all before it leaves that queue.
fn aalo_queue(sent_gbit: f64) -> (i32, f64) {
    let mut limit = AALO_FIRST_GBIT;
    for queue in 0..AALO_QUEUES - 1 {
        if sent_gbit < limit * (1.0 - 1e-9) {
            return (queue, limit);
        }
        limit *= AALO_FACTOR;
    }
    (AALO_QUEUES - 1, f64::INFINITY)
}

impl Policy for Aalo {
    fn name(&self) -> &'static str {
        "aalo"
    }

    fn schedule(&mut self, state: &State, _events: &[Event]) -> Decision {
        let all = placed(state, |active, group| f64::from(active.coflow.groups[group].flows));
        let sent = |active: &Active| active.coflow.volume_gbit() - active.left_gbit();
        let mut order: Vec<(i32, f64, CoflowId)> =
            state.active.values().map(|active| (aalo_queue(sent(active)).0, active.arrived_s, active.coflow.id)).collect();
        order.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
        let mut left = state.wan.capacities();
        let mut decision = Decision::default();
        for (_, _, id) in &order {
            let Some(groups) = all.get(id) else { continue };
            fill_paths(&mut left, groups, &mut decision.allocation);
            let rate: f64 = groups.iter().map(|(sharer, _)| decision.allocation.group_rate(*id, sharer.group)).sum();
            let sent = sent(&state.active[id]);
            let leaves_s = state.now_s + (aalo_queue(sent).1 - sent) / rate;
            if leaves_s.is_finite() && decision.wake_at_s.is_none_or(|wake_s| leaves_s < wake_s) {
                decision.wake_at_s = Some(leaves_s);
            }
        }
        decision
    }
}

/// Sincronia: an order from the most loaded link backwards (bottleneck, select, scale, iterate), then strict priority in that
/// order; within a coflow flows share by what they have left.
#[derive(Clone, Debug, Default)]
pub struct Sincronia;

impl Policy for Sincronia {
    fn name(&self) -> &'static str {
        "sincronia"
    }

    fn schedule(&mut self, state: &State, _events: &[Event]) -> Decision {
        let all = placed(state, |active, group| (active.remaining_gbit[group] / active.left_gbit()).max(1e-6));
        let mut left = state.wan.capacities();
        let mut decision = Decision::default();
        for id in sincronia_order(state, &all) {
            fill_paths(&mut left, &all[&id], &mut decision.allocation);
        }
        decision
    }
}

/// First to be served first.
fn sincronia_order(state: &State, all: &BTreeMap<CoflowId, Placed>) -> Vec<CoflowId> {
    let capacity = state.wan.capacities();
    // Seconds of each link that each coflow needs.
    let mut demand: BTreeMap<CoflowId, Vec<f64>> = BTreeMap::new();
    for (id, groups) in all {
        let row = demand.entry(*id).or_insert_with(|| vec![0.0; capacity.len()]);
        for (sharer, path) in groups {
            for link in path.links() {
                row[link.index()] += state.active[id].remaining_gbit[sharer.group] / capacity[link.index()];
            }
        }
    }
    let mut weight: BTreeMap<CoflowId, f64> = all.keys().map(|id| (*id, state.active[id].coflow.weight)).collect();
    let mut total = vec![0.0; capacity.len()];
    demand.values().for_each(|row| total.iter_mut().zip(row).for_each(|(total, own)| *total += own));
    let mut backwards = Vec::with_capacity(all.len());
    while !weight.is_empty() {
        let busiest = (0..total.len()).max_by(|&a, &b| total[a].total_cmp(&total[b]).then(b.cmp(&a))).unwrap_or(0);
        let per_time = |id: &CoflowId| weight[id] / demand[id][busiest];
        let users = weight.keys().filter(|id| demand[*id][busiest] > 0.0);
        let chosen = users.min_by(|a, b| per_time(a).total_cmp(&per_time(b)).then(b.cmp(a))).copied();
        // Rounding can leave a remnant of load on a link that nobody uses any more.
        let Some(chosen) = chosen else {
            if total[busiest] <= 0.0 {
                backwards.extend(weight.keys().rev());
                break;
            }
            total[busiest] = 0.0;
            continue;
        };
        let (own_weight, own) = (weight[&chosen], demand[&chosen][busiest]);
        weight.remove(&chosen);
        for (id, weight) in &mut weight {
            *weight -= own_weight * demand[id][busiest] / own;
        }
        total.iter_mut().zip(&demand[&chosen]).for_each(|(total, own)| *total -= own);
        backwards.push(chosen);
    }
    backwards.reverse();
    backwards
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coflow::{Coflow, Flow};
    use crate::wan::Wan;

    /// A line a-b-c of 1 Gbit/s, and coflows of (src, dst, volume) flows.
    fn state(coflows: &[&[(u32, u32, f64)]]) -> (Wan, BTreeMap<CoflowId, Active>) {
        let mut wan = Wan::new();
        let s = ["a", "b", "c"].map(|name| wan.add_site(name).unwrap());
        wan.add_edge(s[0], s[1], 1.0).unwrap();
        wan.add_edge(s[1], s[2], 1.0).unwrap();
        let coflow = |(index, flows): (usize, &&[(u32, u32, f64)])| {
            let id = CoflowId(index as u64);
            let flow =
                |&(src, dst, volume_gbit): &(u32, u32, f64)| Flow { src: s[src as usize], dst: s[dst as usize], volume_gbit };
            (id, Active::new(Coflow::new(id, flows.iter().map(flow)).unwrap(), index as f64))
        };
        let active = coflows.iter().enumerate().map(coflow).collect();
        (wan, active)
    }

    fn rates(policy: &mut dyn Policy, wan: &Wan, active: &BTreeMap<CoflowId, Active>) -> Vec<Vec<f64>> {
        let decision = policy.schedule(&State { now_s: 10.0, wan, active }, &[]);
        let of = |(id, active): (&CoflowId, &Active)| {
            (0..active.coflow.groups.len())
                .map(|group| (decision.allocation.group_rate(*id, group) * 1e6).round() / 1e6)
                .collect()
        };
        active.iter().map(of).collect()
    }

    #[test]
    fn varys_serves_the_smallest_bottleneck_and_ends_flows_together() {
        // Coflow 0: a->b 4, b->c 2: bottleneck 4 s. Coflow 1: a->b 8. So 0 goes first with 1 and 0.5; 1 gets nothing of a->b,
        // and the rest of b->c tops coflow 0 up to 1.
        let (wan, active) = state(&[&[(0, 1, 4.0), (1, 2, 2.0)], &[(0, 1, 8.0)]]);
        assert_eq!(rates(&mut Varys::default(), &wan, &active), [vec![1.0, 1.0], vec![0.0]]);
        // With something else to do on b->c, that gets the half that coflow 0 does not need.
        let (wan, active) = state(&[&[(0, 1, 4.0), (1, 2, 2.0)], &[(1, 2, 8.0)]]);
        assert_eq!(rates(&mut Varys::default(), &wan, &active), [vec![1.0, 0.5], vec![0.5]]);
    }

    #[test]
    fn aalo_prefers_who_has_sent_least() {
        let (wan, mut active) = state(&[&[(0, 1, 40.0)], &[(0, 1, 30.0)]]);
        // Both fresh: first come first served.
        assert_eq!(rates(&mut Aalo, &wan, &active), [vec![1.0], vec![0.0]]);
        // Coflow 0 has sent 10 Gbit: it is in a lower queue than coflow 1.
        active.get_mut(&CoflowId(0)).unwrap().remaining_gbit = vec![30.0];
        assert_eq!(rates(&mut Aalo, &wan, &active), [vec![0.0], vec![1.0]]);
        assert_eq!((aalo_queue(0.0), aalo_queue(0.08).0, aalo_queue(0.79).0), ((0, 0.08), 1, 1));
    }

    #[test]
    fn sincronia_puts_the_costly_one_last() {
        // b->c is busiest (9 s): of its users, coflow 0 needs 6 s and 1 needs 3 s, so 0 has the least weight per time and
        // goes last. Its weight per second, 1/6, takes 3/6 off coflow 1. Left: a->b with coflow 1 (1 s) and 2 (2 s):
        // weights 0.5/1 against 1/2: equal, the younger goes last. Order 1, 2, 0.
        let (wan, active) = state(&[&[(1, 2, 6.0)], &[(1, 2, 3.0), (0, 1, 1.0)], &[(0, 1, 2.0)]]);
        let now = State { now_s: 0.0, wan: &wan, active: &active };
        let order = sincronia_order(&now, &placed(&now, |_, _| 1.0));
        assert_eq!(order, [1, 2, 0].map(CoflowId));
    }
}
