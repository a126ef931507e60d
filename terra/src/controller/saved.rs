//! The controller's state as it survives a restart: plain values with names, checked like any other input when they come back.

use super::{Config, Controller, Finished, Held, Refused};
use crate::allocation::{Allocation, GroupRates, PathRate, check};
use crate::coflow::{Coflow, FlowGroup};
use crate::id::{CoflowId, Epoch, JobId};
use crate::path::Path;
use crate::policy::Active;
use crate::wan::{MIN_CAPACITY_GBPS, Wan};
use crate::workload::{Job, Stage, Workload};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Number of this format.
const FORMAT: u32 = 1;

/// All that has to survive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Saved {
    format: u32,
    epoch: u64,
    next_job: u64,
    now_s: f64,
    sites: Vec<String>,
    links: Vec<SavedLink>,
    jobs: Vec<SavedJob>,
    finished: Vec<Finished>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedLink {
    from: String,
    to: String,
    gbps: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedJob {
    id: u64,
    arrival_s: f64,
    stages: Vec<SavedStage>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedStage {
    coflow: u64,
    name: String,
    after: Vec<usize>,
    weight: f64,
    release_s: f64,
    deadline_s: Option<f64>,
    done: bool,
    /// When it was released, seconds; `None` if it waits or is done.
    arrived_s: Option<f64>,
    groups: Vec<SavedGroup>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedGroup {
    from: String,
    to: String,
    volume_gbit: f64,
    flows: u32,
    left_gbit: f64,
    /// Paths and rates that are set aside for the deadline of its coflow, if that is promised.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    promised: Vec<SavedLane>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedLane {
    sites: Vec<String>,
    gbps: f64,
}

fn bad(error: impl ToString) -> Refused {
    Refused::Saved(error.to_string())
}

impl Controller {
    /// What has to survive, as it is now.
    pub fn save(&self) -> Saved {
        let name = |site| self.wan.name(site).to_owned();
        let links = self.wan.links().iter().zip(&self.carries_gbps);
        let links = links.map(|(link, &gbps)| SavedLink { from: name(link.from), to: name(link.to), gbps });
        let stage = |held: &Held, index: usize, stage: &Stage| {
            let active = self.running.get(&stage.coflow.id).or_else(|| self.paused.get(&stage.coflow.id));
            let promise = self.policy.promise(stage.coflow.id).filter(|_| active.is_some());
            let lane = |rate: &PathRate| SavedLane {
                sites: rate.path.sites(&self.wan).into_iter().map(name).collect(),
                gbps: rate.rate_gbps,
            };
            let group = |(index, group): (usize, &FlowGroup)| SavedGroup {
                from: name(group.src),
                to: name(group.dst),
                volume_gbit: group.volume_gbit,
                flows: group.flows,
                left_gbit: active.map_or(group.volume_gbit, |active| active.remaining_gbit[index]),
                promised: promise.map_or_else(Vec::new, |rates| rates[index].iter().map(lane).collect()),
            };
            SavedStage {
                coflow: stage.coflow.id.0,
                name: stage.name.clone(),
                after: stage.after.clone(),
                weight: stage.coflow.weight,
                release_s: stage.coflow.release_s,
                deadline_s: stage.coflow.deadline_s,
                done: held.done.contains(&index),
                arrived_s: active.map(|active| active.arrived_s),
                groups: stage.coflow.groups.iter().enumerate().map(group).collect(),
            }
        };
        let job = |held: &Held| SavedJob {
            id: held.job.id.0,
            arrival_s: held.job.arrival_s,
            stages: held.job.stages.iter().enumerate().map(|(index, entry)| stage(held, index, entry)).collect(),
        };
        Saved {
            format: FORMAT,
            epoch: self.grants.last().0,
            next_job: self.next_job,
            now_s: self.now_s,
            sites: self.wan.sites().to_vec(),
            links: links.collect(),
            jobs: self.jobs.values().map(job).collect(),
            finished: self.finished.iter().cloned().collect(),
        }
    }

    /// Goes on from what was saved, at the time `now_s`. Coflows that were released are paused until their agents join again.
    /// Agents that still follow earlier orders learn with their next report that they have to.
    ///
    /// # Errors
    /// [`Refused::Saved`] if it is not what a controller has saved.
    pub fn restore(saved: &Saved, config: Config, now_s: f64) -> Result<Self, Refused> {
        if saved.format != FORMAT {
            return Err(bad(format!("its format is {}, not {FORMAT}", saved.format)));
        }
        if !(saved.now_s >= 0.0 && saved.now_s.is_finite()) {
            return Err(bad(format!("its time is {}", saved.now_s)));
        }
        let mut controller = Self::new(network(saved)?, config, saved.now_s.max(now_s));
        controller.grants = super::Grants::new(Epoch(saved.epoch));
        controller.next_job = saved.next_job;
        controller.finished = saved.finished.iter().take(super::MAX_FINISHED).cloned().collect();
        let jobs: Vec<Job> = saved.jobs.iter().map(|saved| job(&controller.wan, saved)).collect::<Result<_, _>>()?;
        let workload = Workload { jobs };
        workload.check(&controller.wan).map_err(bad)?;
        for (job, saved) in workload.jobs.into_iter().zip(&saved.jobs) {
            controller.go_on(job, saved)?;
        }
        controller.check_promises()?;
        controller.decide();
        Ok(controller)
    }

    fn go_on(&mut self, job: Job, saved: &SavedJob) -> Result<(), Refused> {
        let done: BTreeSet<usize> = saved.stages.iter().enumerate().filter(|(_, stage)| stage.done).map(|(at, _)| at).collect();
        if done.len() == job.stages.len() {
            return Err(bad(format!("job {} is done and held", job.id)));
        }
        for (index, stage) in saved.stages.iter().enumerate() {
            let early = job.stages[index].after.iter().any(|before| !done.contains(before));
            if early && (stage.done || stage.arrived_s.is_some()) {
                return Err(bad(format!("stage {index} of job {} began before those it waits for were done", job.id)));
            }
        }
        let id = job.id;
        self.hold(Held { job, done });
        for (index, stage) in saved.stages.iter().enumerate() {
            let Some(arrived_s) = stage.arrived_s else { continue };
            if stage.done || !(arrived_s >= 0.0 && arrived_s <= self.now_s) {
                return Err(bad(format!("stage {index} of job {id} was released at {arrived_s} s")));
            }
            self.releases.start(id, index);
            let mut active = Active::new(self.jobs[&id].job.stages[index].coflow.clone(), arrived_s);
            active.remaining_gbit = remaining(&active.coflow, &stage.groups)?;
            if stage.groups.iter().any(|group| !group.promised.is_empty()) {
                let at_s = active.deadline_at_s();
                let at_s = at_s.ok_or_else(|| bad(format!("coflow {} is promised no deadline", active.coflow.id)))?;
                self.policy.resume_promise(active.coflow.id, at_s, promised(&self.wan, &active.coflow, &stage.groups)?);
            }
            self.paused.insert(active.coflow.id, active);
        }
        Ok(())
    }

    /// What all promises set aside must fit the links.
    fn check_promises(&self) -> Result<(), Refused> {
        let coflows = || self.paused.values().map(|active| &active.coflow);
        let of = |coflow: &Coflow| Some((coflow.id, self.policy.promise(coflow.id)?.clone()));
        let all = Allocation { coflows: coflows().filter_map(of).collect() };
        check(&self.wan, coflows(), &all).map_err(|fault| bad(format!("what is promised does not fit: {fault}")))
    }
}

fn network(saved: &Saved) -> Result<Wan, Refused> {
    let mut wan = Wan::new();
    for site in &saved.sites {
        wan.add_site(site).map_err(bad)?;
    }
    for link in &saved.links {
        let (from, to) = (wan.site(&link.from).map_err(bad)?, wan.site(&link.to).map_err(bad)?);
        // A failed link is one that was added with some capacity and lost it.
        let known = wan.add_link(from, to, if link.gbps == 0.0 { MIN_CAPACITY_GBPS } else { link.gbps }).map_err(bad)?;
        wan.set_capacity(known, link.gbps).map_err(bad)?;
    }
    Ok(wan)
}

fn job(wan: &Wan, saved: &SavedJob) -> Result<Job, Refused> {
    let stages = saved.stages.iter().map(|stage| {
        let group = |group: &SavedGroup| {
            let (src, dst) = (wan.site(&group.from).map_err(bad)?, wan.site(&group.to).map_err(bad)?);
            Ok(FlowGroup { src, dst, volume_gbit: group.volume_gbit, flows: group.flows })
        };
        let groups: Vec<FlowGroup> = stage.groups.iter().map(group).collect::<Result<_, Refused>>()?;
        let mut coflow = Coflow::from_groups(CoflowId(stage.coflow), groups.iter().copied())
            .and_then(|coflow| coflow.with_weight(stage.weight))
            .and_then(|coflow| coflow.with_release(stage.release_s))
            .map_err(bad)?;
        if let Some(deadline_s) = stage.deadline_s {
            coflow = coflow.with_deadline(deadline_s).map_err(bad)?;
        }
        if coflow.groups != groups {
            return Err(bad(format!("the FlowGroups of coflow {} are not one per pair of sites, in order", coflow.id)));
        }
        Ok(Stage { coflow, name: stage.name.clone(), after: stage.after.clone() })
    });
    Ok(Job { id: JobId(saved.id), arrival_s: saved.arrival_s, stages: stages.collect::<Result<_, Refused>>()? })
}

/// The rates that are set aside for a promised coflow; whether they fit it and the links is still to be checked.
fn promised(wan: &Wan, coflow: &Coflow, saved: &[SavedGroup]) -> Result<GroupRates, Refused> {
    let lane = |lane: &SavedLane| {
        let sites: Vec<_> = lane.sites.iter().map(|site| wan.site(site)).collect::<Result<_, _>>().map_err(bad)?;
        let links: Option<Vec<_>> = sites.windows(2).map(|ends| wan.link_between(ends[0], ends[1])).collect();
        let path = links.and_then(|links| Path::from_links(wan, &links));
        let path = path.ok_or_else(|| bad(format!("coflow {} cannot go over {:?}", coflow.id, lane.sites)))?;
        Ok(PathRate { path, rate_gbps: lane.gbps })
    };
    saved.iter().map(|group| group.promised.iter().map(lane).collect()).collect()
}

/// What the FlowGroups of a released coflow still have to send.
fn remaining(coflow: &Coflow, saved: &[SavedGroup]) -> Result<Vec<f64>, Refused> {
    let left: Vec<f64> = saved.iter().map(|group| group.left_gbit).collect();
    let fits = coflow.groups.iter().zip(&left).all(|(group, left)| (0.0..=group.volume_gbit).contains(left));
    if fits && left.iter().any(|left| *left > 0.0) {
        Ok(left)
    } else {
        Err(bad(format!("coflow {} cannot have {left:?} Gbit left", coflow.id)))
    }
}
