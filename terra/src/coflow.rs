//! Coflows: flows of one purpose, which are done when the last of them is done, merged to one FlowGroup per pair of sites.

use crate::id::{CoflowId, SiteId};
use crate::wan::Wan;
use std::collections::BTreeMap;
use thiserror::Error;

/// Most FlowGroups of one coflow.
pub const MAX_GROUPS: usize = 65_536;
/// Largest volume of one flow, Gbit (125 PB).
pub const MAX_VOLUME_GBIT: f64 = 1e9;

/// One transfer as an application sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow {
    /// Sending site.
    pub src: SiteId,
    /// Receiving site.
    pub dst: SiteId,
    /// Volume, Gbit.
    pub volume_gbit: f64,
}

/// All flows of one coflow between one pair of sites.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowGroup {
    /// Sending site.
    pub src: SiteId,
    /// Receiving site, another one than `src`.
    pub dst: SiteId,
    /// Sum of the volumes, Gbit; above 0.
    pub volume_gbit: f64,
    /// How many flows were merged: the share of a group under per-flow fairness.
    pub flows: u32,
}

/// Why a coflow was refused.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum CoflowError {
    /// A volume that is no number above 0 and within range.
    #[error("Coflow {0}: volume {1} Gbit is not above 0 and at most {MAX_VOLUME_GBIT}")]
    Volume(CoflowId, f64),
    /// A weight that is not positive and finite.
    #[error("Coflow {0}: weight {1} is not a positive finite number")]
    Weight(CoflowId, f64),
    /// A release time below 0 or not finite.
    #[error("Coflow {0}: release time {1} s is not a finite number of at least 0")]
    Release(CoflowId, f64),
    /// A deadline that is not positive and finite.
    #[error("Coflow {0}: deadline {1} s after release is not a positive finite number")]
    Deadline(CoflowId, f64),
    /// A site that the network lacks.
    #[error("Coflow {0}: unknown site {1}")]
    UnknownSite(CoflowId, SiteId),
    /// More FlowGroups than [`MAX_GROUPS`].
    #[error("Coflow {0}: more than {MAX_GROUPS} pairs of sites")]
    TooLarge(CoflowId),
    /// The id is in use.
    #[error("Coflow {0} exists already")]
    Duplicate(CoflowId),
}

/// FlowGroups that count as done together.
#[derive(Clone, Debug, PartialEq)]
pub struct Coflow {
    /// Who it is.
    pub id: CoflowId,
    /// One entry per pair of sites, sorted by pair. Empty if all flows were local: then it is done when released.
    pub groups: Vec<FlowGroup>,
    /// Importance, 1 by default: a coflow of weight 2 is worth twice the waiting.
    pub weight: f64,
    /// When it may start at the earliest, seconds. In a job, not before what it depends on is done.
    pub release_s: f64,
    /// Seconds after the true release by which it should be done.
    pub deadline_s: Option<f64>,
}

impl Coflow {
    /// Merges flows to FlowGroups; flows within one site need no network and are dropped.
    ///
    /// # Errors
    /// [`CoflowError::Volume`], [`CoflowError::TooLarge`].
    pub fn new(id: CoflowId, flows: impl IntoIterator<Item = Flow>) -> Result<Self, CoflowError> {
        Self::from_groups(
            id,
            flows.into_iter().map(|Flow { src, dst, volume_gbit }| FlowGroup { src, dst, volume_gbit, flows: 1 }),
        )
    }

    /// The same from parts that hold several flows each, for inputs that list tasks and not flows.
    ///
    /// # Errors
    /// [`CoflowError::Volume`], [`CoflowError::TooLarge`].
    pub fn from_groups(id: CoflowId, parts: impl IntoIterator<Item = FlowGroup>) -> Result<Self, CoflowError> {
        let mut pairs: BTreeMap<(SiteId, SiteId), (f64, u32)> = BTreeMap::new();
        for part in parts {
            if !(part.volume_gbit > 0.0 && part.volume_gbit <= MAX_VOLUME_GBIT) {
                return Err(CoflowError::Volume(id, part.volume_gbit));
            }
            if part.src != part.dst {
                let sum = pairs.entry((part.src, part.dst)).or_default();
                sum.0 += part.volume_gbit;
                sum.1 = sum.1.saturating_add(part.flows);
            }
            if pairs.len() > MAX_GROUPS {
                return Err(CoflowError::TooLarge(id));
            }
        }
        let groups =
            pairs.into_iter().map(|((src, dst), (volume_gbit, flows))| FlowGroup { src, dst, volume_gbit, flows }).collect();
        Ok(Self { id, groups, weight: 1.0, release_s: 0.0, deadline_s: None })
    }

    /// The same coflow with another weight.
    ///
    /// # Errors
    /// [`CoflowError::Weight`].
    pub fn with_weight(mut self, weight: f64) -> Result<Self, CoflowError> {
        if !(weight > 0.0 && weight.is_finite()) {
            return Err(CoflowError::Weight(self.id, weight));
        }
        self.weight = weight;
        Ok(self)
    }

    /// The same coflow, released at a later time.
    ///
    /// # Errors
    /// [`CoflowError::Release`].
    pub fn with_release(mut self, release_s: f64) -> Result<Self, CoflowError> {
        if !(release_s >= 0.0 && release_s.is_finite()) {
            return Err(CoflowError::Release(self.id, release_s));
        }
        self.release_s = release_s;
        Ok(self)
    }

    /// The same coflow with a deadline, in seconds after its release.
    ///
    /// # Errors
    /// [`CoflowError::Deadline`].
    pub fn with_deadline(mut self, deadline_s: f64) -> Result<Self, CoflowError> {
        if !(deadline_s > 0.0 && deadline_s.is_finite()) {
            return Err(CoflowError::Deadline(self.id, deadline_s));
        }
        self.deadline_s = Some(deadline_s);
        Ok(self)
    }

    /// Whether the network has all its sites.
    ///
    /// # Errors
    /// [`CoflowError::UnknownSite`].
    pub fn check_sites(&self, wan: &Wan) -> Result<(), CoflowError> {
        let unknown = |site: &SiteId| site.index() >= wan.sites().len();
        match self.groups.iter().flat_map(|group| [group.src, group.dst]).find(unknown) {
            Some(site) => Err(CoflowError::UnknownSite(self.id, site)),
            None => Ok(()),
        }
    }

    /// Sum of the volumes, Gbit.
    pub fn volume_gbit(&self) -> f64 {
        self.groups.iter().map(|group| group.volume_gbit).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(src: u32, dst: u32, volume_gbit: f64) -> Flow {
        Flow { src: SiteId(src), dst: SiteId(dst), volume_gbit }
    }

    #[test]
    fn flows_merge_by_pair_and_local_ones_vanish() {
        let coflow = Coflow::new(CoflowId(1), [flow(1, 0, 2.0), flow(0, 1, 1.0), flow(1, 0, 3.0), flow(2, 2, 9.0)]).unwrap();
        let pairs: Vec<_> = coflow.groups.iter().map(|g| (g.src.0, g.dst.0, g.volume_gbit, g.flows)).collect();
        assert_eq!(pairs, [(0, 1, 1.0, 1), (1, 0, 5.0, 2)]);
        assert_eq!(coflow.volume_gbit(), 6.0);
        assert!(Coflow::new(CoflowId(1), [flow(3, 3, 1.0)]).unwrap().groups.is_empty());
    }

    #[test]
    fn bad_numbers_are_refused() {
        let id = CoflowId(7);
        for volume in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(Coflow::new(id, [flow(0, 1, volume)]), Err(CoflowError::Volume(..))));
        }
        let good = Coflow::new(id, [flow(0, 1, 1.0)]).unwrap();
        assert_eq!(good.clone().with_weight(0.0), Err(CoflowError::Weight(id, 0.0)));
        assert_eq!(good.clone().with_deadline(0.0), Err(CoflowError::Deadline(id, 0.0)));
        assert_eq!(good.clone().with_release(-1.0), Err(CoflowError::Release(id, -1.0)));
        assert_eq!(good.check_sites(&Wan::new()), Err(CoflowError::UnknownSite(id, SiteId(0))));
    }
}
