//! The live scheduler as a state machine: jobs, changes of the network and reports of agents in; orders to agents out. It has no
//! sockets, clocks or threads; whoever runs it says what time it is.
//!
//! There is one agent per site, which sends that site's data. It asks again and again ([`Controller::exchange`]): says which orders
//! it follows and what it has sent in all, and is told what to do from now on. Orders carry epochs; `grants` sees to it that rates
//! are lowered before others are raised. An agent that was not heard for [`Config::lease_s`] is lost, and must have stopped
//! sending by itself: coflows that need it are paused, and go on with what they have left when it is back.
//!
//! [`Controller::save`] gives all that has to survive, [`Controller::restore`] goes on from there; agents then join again.

mod grants;
mod saved;
mod status;

use crate::allocation::{PathRate, check};
use crate::coflow::CoflowError;
use crate::id::{CoflowId, Epoch, JobId, LinkId, SiteId};
use crate::policy::terra::{self, Terra};
use crate::policy::{Active, Event, Policy, State};
use crate::release::Releases;
use crate::wan::{Wan, WanError};
use crate::workload::{Job, Workload, WorkloadError};
use grants::Grants;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use thiserror::Error;

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

/// What an agent says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The orders that it follows.
    pub epoch: Epoch,
    /// What it has sent of some FlowGroups since their coflow began, Gbit. What is less than it said before is no news.
    pub sent: Vec<(CoflowId, usize, f64)>,
}

/// What an agent is to do: send these FlowGroups, and no others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Orders {
    /// Which orders these are.
    pub epoch: Epoch,
    /// What to send.
    pub groups: Vec<GroupOrder>,
}

/// What to send of one FlowGroup.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupOrder {
    /// The coflow.
    pub coflow: CoflowId,
    /// The FlowGroup.
    pub group: usize,
    /// Where to.
    pub dst: SiteId,
    /// All of it, Gbit.
    pub volume_gbit: f64,
    /// What of it is known to have been sent, Gbit.
    pub sent_gbit: f64,
    /// Ways and rates.
    pub paths: Vec<PathRate>,
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
    /// When each agent was last heard, seconds.
    heard_s: BTreeMap<SiteId, f64>,
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
            wan,
            policy: Terra::new(config.policy),
            jobs: BTreeMap::new(),
            releases: Releases::default(),
            owner: BTreeMap::new(),
            running: BTreeMap::new(),
            paused: BTreeMap::new(),
            heard_s: BTreeMap::new(),
            grants: Grants::default(),
            next_job: 1,
            wake_at_s: None,
            events: Vec::new(),
            refused: BTreeSet::new(),
            finished: VecDeque::new(),
        }
    }

    /// The network as it is now.
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

    /// Takes a job in; it arrives now.
    ///
    /// # Errors
    /// [`Refused::Job`] for unknown sites, ids in use and stages that wait for each other, [`Refused::TooManyJobs`].
    pub fn submit(&mut self, now_s: f64, job: Job) -> Result<(), Refused> {
        self.step(now_s);
        let job = Job { arrival_s: self.now_s, ..job };
        let alone = Workload { jobs: vec![job.clone()] };
        alone.check(&self.wan)?;
        if self.jobs.contains_key(&job.id) {
            return Err(WorkloadError::DuplicateJob(job.id).into());
        }
        if let Some(stage) = job.stages.iter().find(|stage| self.owner.contains_key(&stage.coflow.id)) {
            return Err(CoflowError::Duplicate(stage.coflow.id).into());
        }
        if self.jobs.len() >= MAX_JOBS {
            return Err(Refused::TooManyJobs);
        }
        if !job.stages.is_empty() {
            self.hold(Held { job, done: BTreeSet::new() });
            self.decide();
        }
        Ok(())
    }

    fn hold(&mut self, held: Held) {
        let id = held.job.id;
        self.next_job = self.next_job.max(id.0.saturating_add(1));
        self.releases.add(id, &held.job, &held.done);
        for (index, stage) in held.job.stages.iter().enumerate() {
            self.owner.insert(stage.coflow.id, (id, index));
        }
        self.jobs.insert(id, held);
    }

    /// Ends a job, whatever it has sent.
    ///
    /// # Errors
    /// [`Refused::UnknownJob`].
    pub fn cancel(&mut self, now_s: f64, id: JobId) -> Result<(), Refused> {
        self.step(now_s);
        let held = self.jobs.remove(&id).ok_or(Refused::UnknownJob(id))?;
        self.releases.remove(id);
        for stage in &held.job.stages {
            let coflow = stage.coflow.id;
            self.owner.remove(&coflow);
            self.refused.remove(&coflow);
            self.paused.remove(&coflow);
            if self.running.remove(&coflow).is_some() {
                self.events.push(Event::CoflowDone(coflow));
            }
        }
        self.decide();
        Ok(())
    }

    /// A link carries so much from now on, Gbit/s; 0 if it has failed.
    ///
    /// # Errors
    /// [`Refused::Wan`].
    pub fn set_capacity(&mut self, now_s: f64, link: LinkId, capacity_gbps: f64) -> Result<(), Refused> {
        self.step(now_s);
        let before_gbps = self.wan.links().get(link.index()).map(|link| link.capacity_gbps);
        self.wan.set_capacity(link, capacity_gbps)?;
        if let Some(before_gbps) = before_gbps.filter(|before_gbps| *before_gbps != capacity_gbps) {
            self.events.push(Event::Capacity { link, before_gbps });
            self.decide();
        }
        Ok(())
    }

    /// The network is another one from now on: its sites and links are added if they are new, and links that it lacks have failed.
    ///
    /// # Errors
    /// [`Refused::Wan`].
    pub fn set_network(&mut self, now_s: f64, network: &Wan) -> Result<(), Refused> {
        self.step(now_s);
        let mut wan = self.wan.clone();
        for link in 0..wan.links().len() {
            wan.set_capacity(LinkId(link as u32), 0.0)?;
        }
        for name in network.sites() {
            if wan.site(name).is_err() {
                wan.add_site(name)?;
            }
        }
        for link in network.links() {
            let (from, to) = (wan.site(network.name(link.from))?, wan.site(network.name(link.to))?);
            match wan.link_between(from, to) {
                Some(known) => wan.set_capacity(known, link.capacity_gbps)?,
                None => drop(wan.add_link(from, to, link.capacity_gbps)?),
            }
        }
        let same_size = wan.sites().len() == self.wan.sites().len() && wan.links().len() == self.wan.links().len();
        let before = std::mem::replace(&mut self.wan, wan);
        if same_size {
            let links = self.wan.links().iter().zip(before.links()).enumerate();
            let changed = links.filter(|(_, (now, before))| now.capacity_gbps != before.capacity_gbps);
            self.events.extend(
                changed.map(|(link, (_, before))| Event::Capacity {
                    link: LinkId(link as u32),
                    before_gbps: before.capacity_gbps,
                }),
            );
        } else {
            // What the schedule remembers is about a smaller network.
            self.policy = Terra::new(self.config.policy);
            self.events = self.running.keys().map(|id| Event::Arrival(*id)).collect();
        }
        self.decide();
        Ok(())
    }

    /// The agent of a site is there, for the first time or again, and sends nothing yet.
    ///
    /// # Errors
    /// [`Refused::Wan`].
    pub fn join(&mut self, now_s: f64, site: SiteId) -> Result<Orders, Refused> {
        self.step(now_s);
        self.check_site(site)?;
        self.heard_s.insert(site, self.now_s);
        self.grants.join(site, &self.wan);
        let all_there = |active: &Active| waits_for(active, &self.heard_s).is_none();
        let back: Vec<CoflowId> = self.paused.iter().filter(|(_, active)| all_there(active)).map(|(id, _)| *id).collect();
        for id in back {
            let active = self.paused.remove(&id).expect("found there");
            self.running.insert(id, active);
            self.events.push(Event::Arrival(id));
        }
        self.decide();
        self.orders(site)
    }

    /// The agent of a site says what it does and has done, and is told what to do.
    ///
    /// # Errors
    /// [`Refused::Wan`] for an unknown site, [`Refused::NotJoined`], [`Refused::StaleEpoch`], [`Refused::Report`].
    pub fn exchange(&mut self, now_s: f64, site: SiteId, report: &Report) -> Result<Orders, Refused> {
        self.step(now_s);
        self.check_site(site)?;
        let name = || self.wan.name(site).to_owned();
        let window = self.grants.window(site).ok_or_else(|| Refused::NotJoined(name()))?;
        if !window.contains(&report.epoch) {
            let (oldest, newest) = window.into_inner();
            return Err(Refused::StaleEpoch { site: name(), epoch: report.epoch, oldest, newest });
        }
        for &(coflow, group, sent_gbit) in &report.sent {
            // One that is done or cancelled may still be reported.
            let Some(active) = self.running.get(&coflow).or_else(|| self.paused.get(&coflow)) else { continue };
            let own = active.coflow.groups.get(group).is_some_and(|group| group.src == site);
            let is_volume = (0.0..f64::INFINITY).contains(&sent_gbit);
            if !(own && is_volume) {
                return Err(Refused::Report { site: name(), coflow, group, sent_gbit });
            }
        }
        self.heard_s.insert(site, self.now_s);
        self.grants.acknowledge(site, report.epoch, &self.wan);
        for &(coflow, group, sent_gbit) in &report.sent {
            self.note_sent(coflow, group, sent_gbit);
        }
        self.decide();
        self.orders(site)
    }

    /// The agent of a site has stopped sending and is gone, or is known to be dead.
    ///
    /// # Errors
    /// [`Refused::Wan`].
    pub fn leave(&mut self, now_s: f64, site: SiteId) -> Result<(), Refused> {
        self.step(now_s);
        self.check_site(site)?;
        self.lose(site);
        self.decide();
        Ok(())
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

    fn lose(&mut self, site: SiteId) {
        if self.heard_s.remove(&site).is_none() {
            return;
        }
        self.grants.leave(site, &self.wan);
        let needs = |active: &Active| waits_for(active, &self.heard_s).is_some();
        let stopped: Vec<CoflowId> = self.running.iter().filter(|(_, active)| needs(active)).map(|(id, _)| *id).collect();
        for id in stopped {
            let active = self.running.remove(&id).expect("found there");
            self.paused.insert(id, active);
            // For the schedule it is gone; it will arrive again.
            self.events.push(Event::CoflowDone(id));
        }
    }

    fn note_sent(&mut self, id: CoflowId, group: usize, sent_gbit: f64) {
        let map = if self.running.contains_key(&id) { &mut self.running } else { &mut self.paused };
        let Some(active) = map.get_mut(&id) else { return };
        let volume_gbit = active.coflow.groups[group].volume_gbit;
        let left_gbit = volume_gbit - sent_gbit;
        let left_gbit = if left_gbit <= volume_gbit * DONE { 0.0 } else { left_gbit };
        if left_gbit >= active.remaining_gbit[group] {
            return;
        }
        active.remaining_gbit[group] = left_gbit;
        if active.left_gbit() == 0.0 {
            let active = map.remove(&id).expect("found there");
            self.events.retain(|event| !matches!(event, Event::GroupDone(other, _) if *other == id));
            self.events.push(Event::CoflowDone(id));
            self.finish(id, active.arrived_s);
        } else if left_gbit == 0.0 {
            self.events.push(Event::GroupDone(id, group));
        }
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

    fn orders(&self, site: SiteId) -> Result<Orders, Refused> {
        let (epoch, rates) = self.grants.told(site).ok_or_else(|| Refused::NotJoined(self.wan.name(site).to_owned()))?;
        let mut groups: Vec<GroupOrder> = Vec::new();
        for ((coflow, group, path), &rate_gbps) in rates {
            // A rate may outlive its coflow until the next orders; there is nothing to send for it.
            let Some(active) = self.running.get(coflow) else { continue };
            let path = PathRate { path: path.clone(), rate_gbps };
            match groups.last_mut().filter(|last| (last.coflow, last.group) == (*coflow, *group)) {
                Some(last) => last.paths.push(path),
                None => {
                    let ends = &active.coflow.groups[*group];
                    let (dst, volume_gbit) = (ends.dst, ends.volume_gbit);
                    let sent_gbit = volume_gbit - active.remaining_gbit[*group];
                    groups.push(GroupOrder { coflow: *coflow, group: *group, dst, volume_gbit, sent_gbit, paths: vec![path] });
                }
            }
        }
        Ok(Orders { epoch, groups })
    }

    fn check_site(&self, site: SiteId) -> Result<(), Refused> {
        if site.index() < self.wan.sites().len() { Ok(()) } else { Err(WanError::UnknownSite(site.to_string()).into()) }
    }
}

/// The first site that a coflow has something to send from and whose agent is not there.
fn waits_for(active: &Active, heard_s: &BTreeMap<SiteId, f64>) -> Option<SiteId> {
    let open = active.coflow.groups.iter().zip(&active.remaining_gbit).filter(|(_, left)| **left > 0.0);
    open.map(|(group, _)| group.src).find(|site| !heard_s.contains_key(site))
}
