//! Control calls: protection domains, regions, completion queues and queue pairs. Every call either succeeds or changes nothing.

use crate::attr::{QpAttr, QpAttrMask, QpCaps, QpInit, QpState, QpType};
use crate::cq::Cq;
use crate::device::{Pd, device_of};
use crate::error::ControlError;
use crate::event::AsyncEvent;
use crate::limits;
use crate::qp::{Path, Qp, state};
use crate::rnic::Rnic;
use crate::work::{CqId, Destination, DeviceId, PdId};
use alloc::boxed::Box;
use alloc::vec::Vec;
use emtt::{Access, RegionInit, Segment, TableError, WindowKind};
use roce::{Instant, Lkey, Qpn, Rkey};

/// What a new region is made of.
#[derive(Clone, Debug)]
pub struct MrInit {
    /// Address of the first byte as work requests and peers name it.
    pub iova: u64,
    /// Rights.
    pub access: Access,
    /// The memory, in order.
    pub runs: Vec<Segment>,
}

/// The keys of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mr {
    /// For the owner's own work requests.
    pub lkey: Lkey,
    /// For peers.
    pub rkey: Rkey,
}

impl Rnic {
    /// Makes a protection domain.
    ///
    /// # Errors
    /// `NotFound` for the device, `Limit`.
    pub fn alloc_pd(&mut self, device: DeviceId) -> Result<PdId, ControlError> {
        if self.shared.devices.get(device.0).is_none() {
            return Err(ControlError::NotFound("device"));
        }
        self.shared.pds.insert_with(|_| Pd::new(device)).map(PdId).ok_or(ControlError::Limit("protection domains"))
    }

    /// Ends a protection domain.
    ///
    /// # Errors
    /// `NotFound`; `Busy` while it has regions, windows, queue pairs or shared receive queues.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), ControlError> {
        match self.shared.pds.get(pd.0) {
            None => Err(ControlError::NotFound("protection domain")),
            Some(entry) if entry.is_used() => Err(ControlError::Busy("protection domain")),
            Some(_) => {
                self.shared.pds.remove(pd.0);
                Ok(())
            }
        }
    }

    /// Registers memory.
    ///
    /// # Errors
    /// `NotFound` for the PD; `Invalid` for remote write or atomic access without local write, for no bytes, or for a range that
    /// wraps; `Limit`.
    pub fn reg_mr(&mut self, pd: PdId, init: MrInit) -> Result<Mr, ControlError> {
        self.reg_mr_with(pd, init, None)
    }

    /// Registers memory under a key that the device's driver has chosen; it counts within the PD alone. Such a region, and no other,
    /// can be invalidated by requests. The keys returned are for [`Self::dereg_mr`] only.
    ///
    /// # Errors
    /// As [`Self::reg_mr`]; `Invalid` if the PD has a region with this key.
    pub fn reg_mr_named(&mut self, pd: PdId, init: MrInit, key: Rkey) -> Result<Mr, ControlError> {
        self.reg_mr_with(pd, init, Some(key))
    }

    fn reg_mr_with(&mut self, pd: PdId, init: MrInit, name: Option<Rkey>) -> Result<Mr, ControlError> {
        let entry = self.shared.pds.get_mut(pd.0).ok_or(ControlError::NotFound("protection domain"))?;
        let region = RegionInit { pd, iova: init.iova, access: init.access, runs: init.runs };
        let table = &mut self.shared.table;
        let inserted = match name {
            None => table.insert(region),
            Some(name) => table.insert_named(region, name.0),
        };
        let key = inserted.map_err(table_error)?;
        entry.regions.insert(key);
        Ok(Mr { lkey: Lkey(key), rkey: Rkey(key) })
    }

    /// Registers other memory, with other rights or in another PD, under the keys of an earlier registration. Requests that are
    /// under way meet the one or the other.
    ///
    /// # Errors
    /// `NotFound` for the region, also if it was invalidated, and for a PD that is not one of the same device; `Busy` while windows
    /// are bound to it; else as [`Self::reg_mr`]. The earlier registration then stays.
    pub fn rereg_mr(&mut self, lkey: Lkey, pd: PdId, init: MrInit) -> Result<(), ControlError> {
        let before = self.shared.table.get(lkey.0).map(|region| region.pd()).ok_or(ControlError::NotFound("region"))?;
        if device_of(self, pd)? != device_of(self, before)? {
            return Err(ControlError::NotFound("protection domain"));
        }
        let region = RegionInit { pd, iova: init.iova, access: init.access, runs: init.runs };
        self.shared.table.replace(lkey.0, region).map_err(table_error)?;
        self.shared.pds.get_mut(before.0).expect("looked up above").regions.remove(&lkey.0);
        self.shared.pds.get_mut(pd.0).expect("looked up above").regions.insert(lkey.0);
        Ok(())
    }

    /// The memory behind a registration is gone, as when a GPU's is freed: requests that touch it, also those under way, end with an
    /// access or protection error, and the queue pair with them. The registration stays until [`Self::dereg_mr`], or until
    /// [`Self::rereg_mr`] gives it other memory.
    ///
    /// # Errors
    /// `NotFound`, also if it was invalidated.
    pub fn revoke_mr(&mut self, lkey: Lkey) -> Result<(), ControlError> {
        let pd = self.shared.table.get(lkey.0).map(|region| region.pd()).ok_or(ControlError::NotFound("region"))?;
        let device = device_of(self, pd)?;
        self.shared.table.revoke(lkey.0).map_err(table_error)?;
        self.shared.count(device, |counters| counters.revoked_regions += 1);
        Ok(())
    }

    /// Ends a registration; its keys are invalid when this returns.
    ///
    /// # Errors
    /// `NotFound`, also if it was invalidated; `Busy` while windows are bound to it.
    pub fn dereg_mr(&mut self, lkey: Lkey) -> Result<(), ControlError> {
        let pd = self.shared.table.get(lkey.0).map(|region| region.pd()).ok_or(ControlError::NotFound("region"))?;
        self.shared.remove_region(pd, lkey.0).map_err(table_error)
    }

    /// Makes a memory window, bound to nothing. The key returned names it in [`SendOp::BindWindow`](crate::SendOp::BindWindow) and
    /// in [`Self::dealloc_mw`], whatever it is bound to; its first 24 bits stay for its life.
    ///
    /// # Errors
    /// `NotFound` for the PD; `Limit`.
    pub fn alloc_mw(&mut self, pd: PdId, kind: WindowKind) -> Result<Rkey, ControlError> {
        let entry = self.shared.pds.get_mut(pd.0).ok_or(ControlError::NotFound("protection domain"))?;
        let key = self.shared.table.alloc_window(pd, kind).map_err(table_error)?;
        entry.windows.insert(key);
        Ok(Rkey(key))
    }

    /// Ends a memory window by the key that it was made with, and with it what it gives.
    ///
    /// # Errors
    /// `NotFound`, also for a PD that it is not of.
    pub fn dealloc_mw(&mut self, pd: PdId, window: Rkey) -> Result<(), ControlError> {
        let entry = self.shared.pds.get_mut(pd.0).ok_or(ControlError::NotFound("protection domain"))?;
        if !entry.windows.remove(&window.0) {
            return Err(ControlError::NotFound("memory window"));
        }
        self.shared.table.dealloc_window(window.0).map_err(table_error)
    }

    /// Makes a completion queue.
    ///
    /// # Errors
    /// `NotFound` for the device, `Limit`.
    pub fn create_cq(&mut self, device: DeviceId) -> Result<CqId, ControlError> {
        if self.shared.devices.get(device.0).is_none() {
            return Err(ControlError::NotFound("device"));
        }
        let cq = Cq { device, error: false, users: 0 };
        self.shared.cqs.insert_with(|_| cq).map(CqId).ok_or(ControlError::Limit("completion queues"))
    }

    /// Ends a completion queue; completions of it that were not polled are dropped.
    ///
    /// # Errors
    /// `NotFound`; `Busy` while queue pairs or shared receive queues complete to it.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), ControlError> {
        match self.shared.cqs.get(cq.0) {
            None => Err(ControlError::NotFound("completion queue")),
            Some(entry) if entry.users > 0 => Err(ControlError::Busy("completion queue")),
            Some(_) => {
                self.shared.cqs.remove(cq.0);
                self.shared.completions.forget_cq(cq);
                self.shared.events.retain(|event| *event != AsyncEvent::CqError(cq));
                Ok(())
            }
        }
    }

    /// The front end found no room for a completion: the queue goes to error, once. Its queue pairs go to ERR, and no completion
    /// of the queue will be polled any more.
    pub fn cq_overrun(&mut self, _now: Instant, cq: CqId) {
        let Some(entry) = self.shared.cqs.get_mut(cq.0) else { return };
        if core::mem::replace(&mut entry.error, true) {
            return;
        }
        self.shared.completions.forget_cq(cq);
        self.shared.events.push_back(AsyncEvent::CqError(cq));
        let users: Vec<u32> =
            self.qps.iter().filter(|(_, qp)| qp.send_cq == cq || qp.recv_cq == cq).map(|(qpn, _)| qpn).collect();
        for qpn in users {
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.fail_silently(&mut self.shared);
            }
        }
    }

    /// Makes a queue pair, in state RESET.
    ///
    /// # Errors
    /// `NotFound` for PD, CQ or SRQ, also if they are of different devices; `Invalid` for sizes above the limits, a type that is not made
    /// here or has no receives, and a shared receive queue that only requests can name; `Limit`.
    pub fn create_qp(&mut self, pd: PdId, init: QpInit) -> Result<Qpn, ControlError> {
        let device = device_of(self, pd)?;
        let tenant = self.shared.devices.get(device.0).ok_or(ControlError::NotFound("device"))?.tenant;
        check_caps(&init.caps)?;
        let takes_receives = match init.qp_type {
            QpType::Rc | QpType::Uc | QpType::Ud => true,
            QpType::XrcSend => false,
            QpType::XrcRecv => return Err(ControlError::Invalid("a target is of a domain, not of a protection domain")),
        };
        if !takes_receives && (init.srq.is_some() || init.caps.max_recv_wr > 0) {
            return Err(ControlError::Invalid("an initiator has no receives"));
        }
        let srq = match init.srq {
            None => None,
            Some(id) => {
                let srq = self.shared.srqs.get(id.0).filter(|srq| srq.device == device);
                let srq = srq.ok_or(ControlError::NotFound("shared receive queue"))?;
                if srq.extension.is_some() {
                    return Err(ControlError::Invalid("the shared receive queue is for those whose requests name it"));
                }
                Some(srq)
            }
        };
        for cq in [init.send_cq, init.recv_cq] {
            if self.shared.cqs.get(cq.0).is_none_or(|entry| entry.device != device) {
                return Err(ControlError::NotFound("completion queue"));
            }
        }
        let qpn = self.qps.insert_with(|qpn| Box::new(Qp::new(Qpn::new(qpn), (device, tenant), pd, &init, srq)));
        let qpn = qpn.ok_or(ControlError::Limit("queue pairs"))?;
        for cq in [init.send_cq, init.recv_cq] {
            self.shared.cqs.get_mut(cq.0).expect("looked up above").users += 1;
        }
        if let Some(srq) = init.srq {
            self.shared.srq(srq).users += 1;
        }
        self.shared.pds.get_mut(pd.0).expect("looked up above").qps += 1;
        Ok(Qpn::new(qpn))
    }

    /// Gives a queue pair the number by which peers, and this device's packets, call it from now on: for a driver that chooses
    /// numbers itself. Calls of this core go on to use `qpn`.
    ///
    /// # Errors
    /// `NotFound`; `Busy` if the queue pair has left RESET, has a number already, or another one of the device has this number.
    pub fn number_qp(&mut self, qpn: Qpn, number: Qpn) -> Result<(), ControlError> {
        let qp = self.qps.get_mut(qpn.get()).ok_or(ControlError::NotFound("queue pair"))?;
        let device = self.shared.devices.get_mut(qp.device.0).ok_or(ControlError::NotFound("device"))?;
        if qp.state != QpState::Reset || qp.number != qpn || device.qp_numbers.contains_key(&number) {
            return Err(ControlError::Busy("the queue pair number"));
        }
        device.qp_numbers.insert(number, qpn);
        qp.number = number;
        Ok(())
    }

    /// The queue pair of this core to which requests of `qpn` go by the local path.
    pub fn local_peer(&self, qpn: Qpn) -> Option<Qpn> {
        let qp = self.qps.get(qpn.get())?;
        match qp.path {
            Path::Local(device) => Some(self.shared.queue_pair(device, qp.attr.dest_qpn)),
            _ => None,
        }
    }

    /// The queue pairs of this core that a datagram of `qpn` goes to by the local path.
    pub fn local_receivers(&self, qpn: Qpn, to: &Destination) -> impl Iterator<Item = Qpn> {
        let one = self.qps.get(qpn.get()).and_then(|qp| match qp.route(&self.shared, &to.address, to.qpn) {
            Path::Local(device) => self.queue_pair(device, to.qpn),
            _ => None,
        });
        one.into_iter().chain(self.shared.groups.members(to.address.dgid).iter().copied())
    }

    /// The queue pair that packets to a device call `number`, if there is one.
    pub fn queue_pair(&self, device: DeviceId, number: Qpn) -> Option<Qpn> {
        let qpn = self.shared.queue_pair(device, number);
        self.qps.get(qpn.get()).filter(|qp| qp.device == device && qp.number == number).map(|_| qpn)
    }

    /// Changes attributes and state, as `ibv_modify_qp(3)`: on an error nothing was changed.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for a change of state that does not exist, for attributes missing or not allowed, or for values out
    /// of range; `Unsupported` for alternate paths.
    pub fn modify_qp(&mut self, now: Instant, qpn: Qpn, mask: QpAttrMask, attr: &QpAttr) -> Result<(), ControlError> {
        self.shared.schedule.now = now;
        let qp = self.qps.get_mut(qpn.get()).ok_or(ControlError::NotFound("queue pair"))?;
        let device = self.shared.devices.get(qp.device.0).ok_or(ControlError::NotFound("device"))?;
        let to = state::check(qp.qp_type, qp.state, mask, attr, device)?;
        qp.modify(&mut self.shared, mask, attr, to);
        Ok(())
    }

    /// Attributes and state.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn query_qp(&self, qpn: Qpn) -> Result<QpAttr, ControlError> {
        self.qps.get(qpn.get()).map(|qp| qp.attributes()).ok_or(ControlError::NotFound("queue pair"))
    }

    /// Ends a queue pair. Nothing of it comes out any more: neither packets nor completions nor events.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn destroy_qp(&mut self, _now: Instant, qpn: Qpn) -> Result<(), ControlError> {
        let mut qp = self.qps.remove(qpn.get()).ok_or(ControlError::NotFound("queue pair"))?;
        self.shared.timers.forget(qpn, &mut qp.timer);
        self.shared.events.retain(|event| event.queue_pair() != Some(qpn));
        if qp.number != qpn
            && let Some(device) = self.shared.devices.get_mut(qp.device.0)
        {
            device.qp_numbers.remove(&qp.number);
        }
        qp.give_receive_back(&mut self.shared);
        if qp.qp_type == QpType::XrcRecv {
            self.end_target(&qp);
            return Ok(());
        }
        if let Some(srq) = qp.srq {
            self.shared.srq(srq).users -= 1;
        }
        for cq in [qp.send_cq, qp.recv_cq] {
            if let Some(entry) = self.shared.cqs.get_mut(cq.0) {
                entry.users -= 1;
            }
        }
        self.shared.groups.forget(qpn);
        self.shared.completions.forget_qp(qpn);
        if let Some(entry) = self.shared.pds.get_mut(qp.pd.0) {
            entry.qps -= 1;
            for &window in &entry.windows {
                self.shared.table.forget_queue_pair(window, qpn.get());
            }
        }
        Ok(())
    }
}

fn table_error(error: TableError) -> ControlError {
    match error {
        TableError::Access => ControlError::Invalid("remote write or atomic access needs local write access"),
        TableError::Empty => ControlError::Invalid("a region of 0 bytes cannot be registered"),
        TableError::Wraps => ControlError::Invalid("the region wraps around the end of its address space"),
        TableError::Full => ControlError::Limit("regions"),
        TableError::NotFound(_) => ControlError::NotFound("region"),
        TableError::Bound(_) => ControlError::Busy("the region, by windows bound to it,"),
        TableError::NameTaken(_) => ControlError::Invalid("the protection domain has a region with this key"),
    }
}

fn check_caps(caps: &QpCaps) -> Result<(), ControlError> {
    if caps.max_send_wr > limits::MAX_QP_WR || caps.max_recv_wr > limits::MAX_QP_WR {
        return Err(ControlError::Invalid("more work requests than a queue can hold"));
    }
    if caps.max_send_sge > limits::MAX_SGE || caps.max_recv_sge > limits::MAX_SGE {
        return Err(ControlError::Invalid("more buffers than a work request can have"));
    }
    if caps.max_inline_data > limits::MAX_INLINE {
        return Err(ControlError::Invalid("more inline data than a work request can have"));
    }
    Ok(())
}
