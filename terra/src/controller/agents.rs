//! What agents tell the controller and are told: they join, report what they have sent, get orders, leave or are lost.

use super::{Controller, DONE, Refused};
use crate::allocation::PathRate;
use crate::id::{CoflowId, Epoch, SiteId};
use crate::policy::{Active, Event};
use crate::wan::WanError;
use std::collections::{BTreeMap, BTreeSet};

/// What an agent says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The orders that it follows.
    pub epoch: Epoch,
    /// What it has sent of some FlowGroups since their coflow began, Gbit. What is less than it said before is no news.
    pub sent: Vec<(CoflowId, usize, f64)>,
    /// Sites at the other end of its links from which nothing comes back: these links carry nothing, in either direction, until it
    /// says otherwise.
    pub silent: BTreeSet<SiteId>,
    /// Coflows of which it cannot send something: they get no rates until it joins again.
    pub stuck: BTreeSet<CoflowId>,
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

impl Controller {
    /// The agent of a site is there, for the first time or again, and sends nothing yet.
    ///
    /// # Errors
    /// [`Refused::Wan`].
    pub fn join(&mut self, now_s: f64, site: SiteId) -> Result<Orders, Refused> {
        self.step(now_s);
        self.check_site(site)?;
        self.heard_s.insert(site, self.now_s);
        self.grants.join(site, &self.wan);
        self.stuck.retain(|_, at| *at != site);
        let all_there =
            |active: &Active| waits_for(active, &self.heard_s).is_none() && !self.stuck.contains_key(&active.coflow.id);
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
        let newest = *window.end();
        for &(coflow, group, sent_gbit) in &report.sent {
            // One that is done or cancelled may still be reported.
            let Some(active) = self.running.get(&coflow).or_else(|| self.paused.get(&coflow)) else { continue };
            let own = active.coflow.groups.get(group).is_some_and(|group| group.src == site);
            let is_volume = (0.0..f64::INFINITY).contains(&sent_gbit);
            if !(own && is_volume) {
                return Err(Refused::Report { site: name(), coflow, group, sent_gbit });
            }
        }
        report.silent.iter().try_for_each(|other| self.check_site(*other))?;
        self.heard_s.insert(site, self.now_s);
        if self.silent.get(&site).map_or(!report.silent.is_empty(), |known| *known != report.silent) {
            self.silent.insert(site, report.silent.clone());
            self.apply_silence();
        }
        self.grants.acknowledge(site, report.epoch, &self.wan);
        for &(coflow, group, sent_gbit) in &report.sent {
            self.note_sent(coflow, group, sent_gbit);
        }
        // One that is behind may speak of an earlier job of the same number.
        if report.epoch == newest {
            report.stuck.iter().for_each(|id| self.hold_up(*id, site));
        }
        self.decide();
        self.orders(site)
    }

    /// A coflow stands in nobody's way as long as the agent of this site, from which it has something to send, cannot send that.
    fn hold_up(&mut self, id: CoflowId, site: SiteId) {
        let own = |active: &&mut Active| active.coflow.groups.iter().any(|group| group.src == site);
        if self.running.get_mut(&id).filter(own).is_some() {
            let active = self.running.remove(&id).expect("found there");
            self.paused.insert(id, active);
            self.stuck.insert(id, site);
            // For the schedule it is gone, with what it was promised; it may arrive again.
            self.events.push(Event::CoflowDone(id));
        }
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

    pub(super) fn lose(&mut self, site: SiteId) {
        if self.heard_s.remove(&site).is_none() {
            return;
        }
        self.grants.leave(site, &self.wan);
        // What it said of its links is not known any more.
        if self.silent.remove(&site).is_some_and(|silent| !silent.is_empty()) {
            self.apply_silence();
        }
        let needs = |active: &Active| waits_for(active, &self.heard_s).is_some();
        let stopped: Vec<CoflowId> = self.running.iter().filter(|(_, active)| needs(active)).map(|(id, _)| *id).collect();
        for id in stopped {
            let active = self.running.remove(&id).expect("found there");
            self.paused.insert(id, active);
            self.events.push(Event::Paused(id));
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
pub(super) fn waits_for(active: &Active, heard_s: &BTreeMap<SiteId, f64>) -> Option<SiteId> {
    let open = active.coflow.groups.iter().zip(&active.remaining_gbit).filter(|(_, left)| **left > 0.0);
    open.map(|(group, _)| group.src).find(|site| !heard_s.contains_key(site))
}
