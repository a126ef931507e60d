//! Multicast groups: which datagram queue pairs of which device have joined (`ibv_attach_mcast(3)`, IBA 10.5).
//!
//! A datagram to a group reaches each of its queue pairs on this host once, the sender's own among them if it has joined, as Linux's
//! soft-RoCE has it. Groups of other hosts are not joined: nothing is sent to the wire, and nothing of it taken.

use crate::attr::QpType;
use crate::error::ControlError;
use crate::limits;
use crate::rnic::Rnic;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use roce::{Gid, Qpn};

/// All groups that somebody has joined.
#[derive(Debug, Default)]
pub(crate) struct Groups(BTreeMap<Gid, Vec<Qpn>>);

impl Groups {
    /// The queue pairs of a group, in the order in which they joined.
    pub fn members(&self, group: Gid) -> &[Qpn] {
        self.0.get(&group).map_or(&[], Vec::as_slice)
    }

    /// A queue pair leaves a group. False if it was not in it.
    fn leave(&mut self, group: Gid, qpn: Qpn) -> bool {
        let Some(members) = self.0.get_mut(&group) else { return false };
        let before = members.len();
        members.retain(|&member| member != qpn);
        let left = members.len() < before;
        if members.is_empty() {
            self.0.remove(&group);
        }
        left
    }

    /// A queue pair is gone.
    pub fn forget(&mut self, qpn: Qpn) {
        self.0.retain(|_, members| {
            members.retain(|&member| member != qpn);
            !members.is_empty()
        });
    }
}

impl Rnic {
    /// Lets a queue pair receive what is sent to a group. One that has joined already stays as it is.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for a queue pair of another type than UD, or a GID that is no multicast address; `Limit` if the group has
    /// [`limits::MAX_GROUP_QPS`] queue pairs, or there are [`limits::MAX_GROUPS`] groups.
    pub fn attach_multicast(&mut self, qpn: Qpn, group: Gid) -> Result<(), ControlError> {
        self.check_member(qpn, group)?;
        let groups = &mut self.shared.groups.0;
        if groups.len() >= limits::MAX_GROUPS && !groups.contains_key(&group) {
            return Err(ControlError::Limit("multicast groups"));
        }
        let members = groups.entry(group).or_default();
        if members.contains(&qpn) {
            return Ok(());
        }
        if members.len() >= limits::MAX_GROUP_QPS {
            return Err(ControlError::Limit("queue pairs of a multicast group"));
        }
        members.push(qpn);
        Ok(())
    }

    /// Lets a queue pair leave a group.
    ///
    /// # Errors
    /// As [`Self::attach_multicast`]; `NotFound` if it is not in the group.
    pub fn detach_multicast(&mut self, qpn: Qpn, group: Gid) -> Result<(), ControlError> {
        self.check_member(qpn, group)?;
        if self.shared.groups.leave(group, qpn) { Ok(()) } else { Err(ControlError::NotFound("member of the multicast group")) }
    }

    fn check_member(&self, qpn: Qpn, group: Gid) -> Result<(), ControlError> {
        let qp = self.qps.get(qpn.get()).ok_or(ControlError::NotFound("queue pair"))?;
        if qp.qp_type != QpType::Ud {
            return Err(ControlError::Invalid("only datagram queue pairs can join multicast groups"));
        }
        if !group.ip().is_multicast() {
            return Err(ControlError::Invalid("the GID is not a multicast address"));
        }
        Ok(())
    }
}
