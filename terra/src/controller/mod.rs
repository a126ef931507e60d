//! The live scheduler as a state machine: jobs, changes of the network and reports of agents in; orders to agents out. It has no
//! sockets, clocks or threads; whoever runs it says what time it is.
//!
//! There is one agent per site, which sends that site's data. It asks again and again ([`Controller::exchange`]): says which orders
//! it follows and what it has sent in all, and is told what to do from now on. Orders carry epochs; `grants` sees to it that rates
//! are lowered before others are raised. An agent that was not heard for [`Config::lease_s`] is lost, and must have stopped
//! sending by itself: coflows that need it are paused, and go on with what they have left when it is back.
//!
//! [`Controller::save`] gives all that has to survive, [`Controller::restore`] goes on from there; agents then join again.

mod admission;
mod agents;
mod grants;
mod saved;
mod status;

use crate::allocation::check;
use crate::coflow::CoflowError;
use crate::id::{CoflowId, Epoch, JobId, SiteId};
use crate::policy::terra::{self, Terra};
use crate::policy::{Active, Event, Policy, State};
use crate::release::Releases;
use crate::wan::{Wan, WanError};
use crate::workload::{Job, WorkloadError};
use agents::waits_for;
use grants::Grants;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use thiserror::Error;

pub use agents::{GroupOrder, Orders, Report};
pub use saved::Saved;
pub use status::{CoflowState, CoflowStatus, Finished, Status};

/// Most jobs that are not done.
pub const MAX_JOBS: usize = 10_000;
/// Coflows that are done and still known.
pub const MAX_FINISHED: usize = 1_000;
/// A FlowGroup with less than this fraction of its volume left is done.
const DONE: f64 = 1e-9;

/// Settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Of the schedule.
    pub policy: terra::Config,
    /// An agent that was not heard for so long, seconds, is lost, and sends nothing any more.
    pub lease_s: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { policy: terra::Config::default(), lease_s: 3.0 }
    }
}

/// Why something was refused. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Refused {
    /// A job is no good.
    #[error(transparent)]
    Job(#[from] WorkloadError),
    /// A site, a link or a capacity is no good.
    #[error(transparent)]
    Wan(#[from] WanError),
    /// There are too many jobs.
    #[error("There are {MAX_JOBS} jobs already: wait for some to end, or cancel them")]
    TooManyJobs,
    /// There is no such job, or no longer.
    #[error("No job {0} is waiting or running")]
    UnknownJob(JobId),
    /// An agent that has not joined, or was lost since.
    #[error("The agent of site {0:?} has not joined, or was not heard for too long: it must stop sending and join")]
    NotJoined(String),
    /// An agent follows orders that it cannot have, or that it has said to have left behind.
    #[error("The agent of site {site:?} is at epoch {epoch}, which is not within {oldest} to {newest}")]
    StaleEpoch {
        /// The agent's site.
        site: String,
        /// What it said.
        epoch: Epoch,
        /// What it said before.
        oldest: Epoch,
        /// What it was told last.
        newest: Epoch,
    },
    /// An agent reports on something that is not its own, or no number.
    #[error("The agent of site {site:?} cannot have sent {sent_gbit} Gbit of group {group} of coflow {coflow}")]
    Report {
        /// The agent's site.
        site: String,
        /// The coflow.
        coflow: CoflowId,
        /// The FlowGroup.
        group: usize,
        /// What it said.
        sent_gbit: f64,
    },
    /// What was saved is no good.
    #[error("The saved state cannot be used: {0}")]
    Saved(String),
}

impl From<CoflowError> for Refused {
    fn from(error: CoflowError) -> Self {
        Self::Job(error.into())
    }
}

/// A job that is not done.
#[derive(Clone, Debug)]
struct Held {
    job: Job,
    done: BTreeSet<usize>,
}

/// The controller.
#[derive(Clone, Debug)]
pub struct Controller {
    config: Config,
    now_s: f64,
    wan: Wan,
    policy: Terra,
    jobs: BTreeMap<JobId, Held>,
    releases: Releases<JobId>,
    owner: BTreeMap<CoflowId, (JobId, usize)>,
    /// Coflows whose agents are all there, and the others that were released.
    running: BTreeMap<CoflowId, Active>,
    paused: BTreeMap<CoflowId, Active>,
    /// Of the paused ones, those of which an agent cannot send something, and that agent's site.
    stuck: BTreeMap<CoflowId, SiteId>,
    /// When each agent was last heard, seconds.
    heard_s: BTreeMap<SiteId, f64>,
    /// What each link carries as long as its ends hear each other, Gbit/s, and whom each agent does not hear.
    carries_gbps: Vec<f64>,
    silent: BTreeMap<SiteId, BTreeSet<SiteId>>,
    grants: Grants,
    /// Above the ids of all jobs so far.
    next_job: u64,
    wake_at_s: Option<f64>,
    /// What the policy has not been told yet.
    events: Vec<Event>,
    /// Coflows whose deadline is not promised.
    refused: BTreeSet<CoflowId>,
    finished: VecDeque<Finished>,
}

impl Controller {
    /// A controller without jobs, at the time `now_s` in seconds.
    pub fn new(wan: Wan, config: Config, now_s: f64) -> Self {
        Self {
            config,
            now_s,
            carries_gbps: wan.capacities(),
            silent: BTreeMap::new(),
            wan,
            policy: Terra::new(config.policy),
            jobs: BTreeMap::new(),
            releases: Releases::default(),
            owner: BTreeMap::new(),
            running: BTreeMap::new(),
            paused: BTreeMap::new(),
            stuck: BTreeMap::new(),
            heard_s: BTreeMap::new(),
            grants: Grants::default(),
            next_job: 1,
            wake_at_s: None,
            events: Vec::new(),
            refused: BTreeSet::new(),
            finished: VecDeque::new(),
        }
    }

    /// The network as it is now: links whose ends do not hear each other carry nothing.
    pub fn wan(&self) -> &Wan {
        &self.wan
    }

    /// An id that no job has or had.
    pub fn free_job_id(&self) -> JobId {
        JobId(self.next_job)
    }

    /// The last epoch that was issued.
    pub fn last_epoch(&self) -> Epoch {
        self.grants.last()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now_s: f64) {
        self.step(now_s);
    }

    /// When [`Controller::handle_timeout`] is to be called at the latest, seconds.
    pub fn poll_timeout(&self) -> Option<f64> {
        let lost_s = self.heard_s.values().map(|heard_s| heard_s + self.config.lease_s).min_by(f64::total_cmp);
        [lost_s, self.wake_at_s, self.releases.next_s()].into_iter().flatten().min_by(f64::total_cmp)
    }

    /// Whether every agent that is there does what the schedule wants.
    pub fn settled(&self) -> bool {
        self.grants.settled()
    }

    /// The most that agents may be sending on each link, Gbit/s.
    pub fn most_gbps(&self) -> Vec<f64> {
        self.grants.most(&self.wan)
    }

    /// Moves time on, never back: loses agents that were not heard, and wakes the schedule.
    fn step(&mut self, now_s: f64) {
        self.now_s = self.now_s.max(now_s);
        let late = |heard_s: &f64| heard_s + self.config.lease_s <= self.now_s;
        let lost: Vec<SiteId> = self.heard_s.iter().filter(|(_, heard_s)| late(heard_s)).map(|(site, _)| *site).collect();
        lost.into_iter().for_each(|site| self.lose(site));
        if self.wake_at_s.is_some_and(|at_s| at_s <= self.now_s) {
            self.events.push(Event::Wake);
        }
        self.decide();
    }

    /// Books a coflow as done now.
    fn finish(&mut self, id: CoflowId, arrived_s: f64) {
        let (job, stage) = self.owner[&id];
        let held = self.jobs.get_mut(&job).expect("a coflow belongs to a job");
        held.done.insert(stage);
        let ended = self.releases.done(self.now_s, job, &held.job, stage);
        let entry = &held.job.stages[stage];
        self.finished.push_back(Finished {
            job,
            coflow: id,
            stage: entry.name.clone(),
            volume_gbit: entry.coflow.volume_gbit(),
            arrived_s,
            done_s: self.now_s,
            deadline_s: entry.coflow.deadline_s,
        });
        if self.finished.len() > MAX_FINISHED {
            self.finished.pop_front();
        }
        self.refused.remove(&id);
        self.stuck.remove(&id);
        if ended {
            let held = self.jobs.remove(&job).expect("seen just before");
            self.releases.remove(job);
            for stage in &held.job.stages {
                self.owner.remove(&stage.coflow.id);
            }
        }
    }

    /// Releases what is due, and asks the schedule if anything has happened.
    fn decide(&mut self) {
        while let Some((job, stage)) = self.releases.pop_due(self.now_s) {
            let coflow = self.jobs[&job].job.stages[stage].coflow.clone();
            let id = coflow.id;
            if coflow.groups.is_empty() {
                self.finish(id, self.now_s);
                continue;
            }
            let active = Active::new(coflow, self.now_s);
            if waits_for(&active, &self.heard_s).is_some() {
                self.paused.insert(id, active);
            } else {
                self.running.insert(id, active);
                self.events.push(Event::Arrival(id));
            }
        }
        if self.events.is_empty() {
            return;
        }
        let events = std::mem::take(&mut self.events);
        let state = State { now_s: self.now_s, wan: &self.wan, active: &self.running };
        let decision = self.policy.schedule(&state, &events);
        let fault = check(&self.wan, self.running.values().map(|active| &active.coflow), &decision.allocation).err();
        assert_eq!(fault, None, "the schedule keeps to the capacities");
        for event in &events {
            if let Event::Arrival(id) = event {
                self.refused.remove(id);
            }
        }
        self.refused.extend(decision.refused);
        self.wake_at_s = decision.wake_at_s;
        self.grants.want(&decision.allocation, &self.running, &self.wan);
    }
}
