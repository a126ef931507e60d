//! Event-driven simulation of a policy: between two events all rates are constant, so ends are computed, not stepped to.

use crate::allocation::{Allocation, Fault, check};
use crate::coflow::Coflow;
use crate::id::{CoflowId, JobId, LinkId};
use crate::policy::{Active, Event, Policy, State};
use crate::release::Releases;
use crate::report::{CoflowRecord, JobRecord, Report};
use crate::wan::{Wan, WanError};
use crate::workload::{Workload, WorkloadError};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// A FlowGroup with less than this fraction of its volume left is done.
const DONE: f64 = 1e-9;
/// So is one that would be done in this many seconds: ends that near are one event.
const INSTANT_S: f64 = 1e-7;

/// A link changes during a simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CapacityChange {
    /// When, seconds.
    pub at_s: f64,
    /// Which link.
    pub link: LinkId,
    /// What it carries from then on, Gbit/s; 0 is a failure.
    pub capacity_gbps: f64,
}

/// Why a simulation ended early.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SimError {
    /// The workload does not fit the network.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A capacity change does not fit the network.
    #[error(transparent)]
    Wan(#[from] WanError),
    /// The policy broke the rules.
    #[error("{policy} at {at_s} s: {fault}")]
    Policy {
        /// Which policy.
        policy: &'static str,
        /// When.
        at_s: f64,
        /// What it did.
        fault: Fault,
    },
    /// Nothing will ever happen again, yet coflows are left.
    #[error("Nothing moves any more at {at_s} s, but {left} coflows are not done (first: {first})")]
    Stalled {
        /// When.
        at_s: f64,
        /// How many are left.
        left: usize,
        /// One of them.
        first: CoflowId,
    },
    /// More decisions than allowed.
    #[error("More than {0} decisions: the policy asks for too many wake-ups, or the input is too large")]
    TooLong(u64),
}

/// One run: a network, a workload, changes of the network, and a policy.
pub struct Simulation<'a> {
    wan: Wan,
    workload: &'a Workload,
    changes: Vec<CapacityChange>,
    max_decisions: u64,
    progress: Option<Box<dyn FnMut(usize, usize) + 'a>>,
}

struct Run<'a> {
    wan: Wan,
    workload: &'a Workload,
    now_s: f64,
    active: BTreeMap<CoflowId, Active>,
    rates: BTreeMap<CoflowId, Vec<f64>>,
    /// Of jobs by their index.
    releases: Releases<usize>,
    owner: BTreeMap<CoflowId, (usize, usize)>,
    events: Vec<Event>,
    report: Report,
}

impl<'a> Simulation<'a> {
    /// A run of this workload on this network.
    ///
    /// # Errors
    /// [`SimError::Workload`] if the workload is no good or does not fit the network.
    pub fn new(wan: &Wan, workload: &'a Workload) -> Result<Self, SimError> {
        workload.check(wan)?;
        Ok(Self { wan: wan.clone(), workload, changes: Vec::new(), max_decisions: 10_000_000, progress: None })
    }

    /// The same run, with changes of the network.
    ///
    /// # Errors
    /// [`SimError::Wan`] if a change names an unknown link or no proper capacity.
    pub fn with_changes(mut self, mut changes: Vec<CapacityChange>) -> Result<Self, SimError> {
        let mut trial = self.wan.clone();
        for change in &changes {
            trial.set_capacity(change.link, change.capacity_gbps)?;
        }
        changes.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        self.changes = changes;
        Ok(self)
    }

    /// The same run, calling back with the number of coflows done and of all, each time one is done.
    pub fn with_progress(mut self, progress: impl FnMut(usize, usize) + 'a) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Runs to the end: all coflows done. Every decision of the policy is checked.
    ///
    /// # Errors
    /// [`SimError`] if the policy breaks the rules or nothing moves any more.
    pub fn run(mut self, policy: &mut dyn Policy) -> Result<Report, SimError> {
        let total = self.workload.coflows().count();
        let mut run = Run::new(self.wan, self.workload, policy.name());
        let mut changes = self.changes.into_iter().peekable();
        let mut wake: Option<f64> = None;
        let mut said = 0;
        for _ in 0..self.max_decisions {
            let next_change = changes.peek().map(|change| change.at_s);
            let next = [run.releases.next_s(), next_change, wake, run.next_end()].into_iter().flatten().min_by(f64::total_cmp);
            let Some(next) = next else {
                let first = run.active.keys().next().copied();
                return match first {
                    Some(first) => Err(SimError::Stalled { at_s: run.now_s, left: run.active.len(), first }),
                    None => Ok(run.report),
                };
            };
            run.advance(next.max(run.now_s));
            while changes.peek().is_some_and(|change| change.at_s <= run.now_s) {
                let change = changes.next().expect("peeked");
                run.change(change);
            }
            run.release_due();
            if wake.is_some_and(|at_s| at_s <= run.now_s) {
                wake = None;
                run.events.push(Event::Wake);
            }
            if let Some(progress) = &mut self.progress
                && run.report.coflows.len() > said
            {
                said = run.report.coflows.len();
                progress(said, total);
            }
            if run.events.is_empty() {
                continue;
            }
            let events = std::mem::take(&mut run.events);
            let state = State { now_s: run.now_s, wan: &run.wan, active: &run.active };
            let decision = policy.schedule(&state, &events);
            wake = decision.wake_at_s.filter(|at_s| *at_s > run.now_s && !run.active.is_empty());
            run.report.refused.extend(decision.refused);
            run.apply(&decision.allocation).map_err(|fault| SimError::Policy {
                policy: policy.name(),
                at_s: run.now_s,
                fault,
            })?;
        }
        Err(SimError::TooLong(self.max_decisions))
    }
}

impl<'a> Run<'a> {
    fn new(wan: Wan, workload: &'a Workload, policy: &str) -> Self {
        let mut run = Self {
            wan,
            workload,
            now_s: 0.0,
            active: BTreeMap::new(),
            rates: BTreeMap::new(),
            releases: Releases::default(),
            owner: BTreeMap::new(),
            events: Vec::new(),
            report: Report::new(policy),
        };
        for (index, job) in workload.jobs.iter().enumerate() {
            run.releases.add(index, job, &BTreeSet::new());
            for (stage, entry) in job.stages.iter().enumerate() {
                run.owner.insert(entry.coflow.id, (index, stage));
            }
        }
        run
    }

    fn next_end(&self) -> Option<f64> {
        let ends = self.rates.iter().flat_map(|(id, rates)| {
            let left = &self.active[id].remaining_gbit;
            rates.iter().zip(left).filter(|(rate, left)| **rate > 0.0 && **left > 0.0).map(|(rate, left)| left / rate)
        });
        ends.min_by(f64::total_cmp).map(|after_s| self.now_s + after_s)
    }

    /// Moves time on: sends at the rates of now, and notes what is done.
    fn advance(&mut self, to_s: f64) {
        let dt = to_s - self.now_s;
        self.now_s = to_s;
        let mut done = Vec::new();
        for (id, rates) in &mut self.rates {
            let active = self.active.get_mut(id).expect("rates of active coflows only");
            for (group, rate) in rates.iter_mut().enumerate().filter(|(_, rate)| **rate > 0.0) {
                let left = &mut active.remaining_gbit[group];
                let before = *left;
                *left -= *rate * dt;
                if *left <= (active.coflow.groups[group].volume_gbit * DONE).max(*rate * INSTANT_S) {
                    *left = 0.0;
                    *rate = 0.0;
                    self.events.push(Event::GroupDone(*id, group));
                }
                self.report.sent_gbit += before - *left;
            }
            if active.remaining_gbit.iter().all(|left| *left == 0.0) {
                done.push(*id);
            }
        }
        for id in done {
            self.rates.remove(&id);
            let active = self.active.remove(&id).expect("it was active");
            self.events.retain(|event| !matches!(event, Event::GroupDone(other, _) if *other == id));
            self.events.push(Event::CoflowDone(id));
            self.finish(&active.coflow, active.arrived_s);
        }
    }

    /// Books a coflow as done now, and makes due what waited for it.
    fn finish(&mut self, coflow: &Coflow, arrived_s: f64) {
        let (index, stage) = self.owner[&coflow.id];
        let job = &self.workload.jobs[index];
        self.report.coflows.push(CoflowRecord {
            id: coflow.id,
            job: job.id,
            stage: job.stages[stage].name.clone(),
            arrived_s,
            done_s: self.now_s,
            volume_gbit: coflow.volume_gbit(),
            weight: coflow.weight,
            deadline_s: coflow.deadline_s,
        });
        if self.releases.done(self.now_s, index, job, stage) {
            self.report.jobs.push(JobRecord { id: JobId(job.id.0), arrived_s: job.arrival_s, done_s: self.now_s });
        }
    }

    /// Releases what is due; coflows without any flow are done at once, which may make others due.
    fn release_due(&mut self) {
        while let Some((index, stage)) = self.releases.pop_due(self.now_s) {
            let coflow = self.workload.jobs[index].stages[stage].coflow.clone();
            if coflow.groups.is_empty() {
                self.finish(&coflow, self.now_s);
            } else {
                self.events.push(Event::Arrival(coflow.id));
                self.active.insert(coflow.id, Active::new(coflow, self.now_s));
            }
        }
    }

    fn change(&mut self, change: CapacityChange) {
        let before_gbps = self.wan.links()[change.link.index()].capacity_gbps;
        self.wan.set_capacity(change.link, change.capacity_gbps).expect("checked before the run");
        self.events.push(Event::Capacity { link: change.link, before_gbps });
    }

    fn apply(&mut self, allocation: &Allocation) -> Result<(), Fault> {
        self.report.decisions += 1;
        check(&self.wan, self.active.values().map(|active| &active.coflow), allocation)?;
        self.rates.clear();
        for id in allocation.coflows.keys() {
            let rate = |(group, left): (usize, &f64)| if *left > 0.0 { allocation.group_rate(*id, group) } else { 0.0 };
            self.rates.insert(*id, self.active[id].remaining_gbit.iter().enumerate().map(rate).collect());
        }
        Ok(())
    }
}
