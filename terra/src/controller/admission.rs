//! What people tell the controller: jobs to take in or to end, and how the network has changed.

use super::{Controller, Held, MAX_JOBS, Refused};
use crate::coflow::CoflowError;
use crate::id::{JobId, LinkId};
use crate::policy::Event;
use crate::wan::Wan;
use crate::workload::{Job, Workload, WorkloadError};
use std::collections::BTreeSet;

impl Controller {
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

    pub(super) fn hold(&mut self, held: Held) {
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
            self.stuck.remove(&coflow);
            // A paused one may have a promise.
            if self.running.remove(&coflow).or_else(|| self.paused.remove(&coflow)).is_some() {
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
        self.wan.clone().set_capacity(link, capacity_gbps)?;
        self.carries_gbps[link.index()] = capacity_gbps;
        self.apply_silence();
        self.decide();
        Ok(())
    }

    /// Gives every link what it carries if both its ends hear each other, and nothing otherwise.
    pub(super) fn apply_silence(&mut self) {
        for (index, &carries_gbps) in self.carries_gbps.iter().enumerate() {
            let link = LinkId(index as u32);
            let (from, to, before_gbps) = {
                let link = &self.wan.links()[index];
                (link.from, link.to, link.capacity_gbps)
            };
            let hears = |a, b| !self.silent.get(&a).is_some_and(|silent| silent.contains(&b));
            let now_gbps = if hears(from, to) && hears(to, from) { carries_gbps } else { 0.0 };
            if now_gbps != before_gbps {
                self.wan.set_capacity(link, now_gbps).expect("it was checked when it was set");
                self.events.push(Event::Capacity { link, before_gbps });
            }
        }
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
        self.carries_gbps = wan.capacities();
        if same_size {
            self.apply_silence();
        } else {
            self.wan = wan;
            self.apply_silence();
            self.policy.grow_network();
            self.events.push(Event::Wake);
        }
        self.decide();
        Ok(())
    }
}
