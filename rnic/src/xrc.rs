//! Extended reliable connections (IBA annex A14): their domains, and the shared receive queues and queue pairs that belong to one.
//!
//! The end that sends, the initiator, is a queue pair without receives, each of whose requests names a shared receive queue of the
//! peer by its number. The end that receives, the target, has no queues, no completion queues and no protection domain: the queue
//! that a request names lends it its own for that request, if it is of the target's domain ([`crate::qp::extended`]).

use crate::attr::{QpCaps, QpInit, QpType};
use crate::error::ControlError;
use crate::limits;
use crate::qp::Qp;
use crate::rnic::Rnic;
use crate::srq::SrqAttr;
use crate::work::{CqId, DeviceId, PdId, SrqId, XrcdId};
use alloc::boxed::Box;
use alloc::vec::Vec;
use roce::Qpn;

/// A domain of extended reliable connections.
#[derive(Debug)]
pub(crate) struct Xrcd {
    device: DeviceId,
    /// Its shared receive queues and targets.
    users: u32,
}

/// What a shared receive queue has that requests can name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extension {
    pub xrcd: XrcdId,
    /// Where its receives complete.
    pub cq: CqId,
}

/// What a target has before a request lends it anything: identifiers that name nothing, as no identifier is 0.
pub(crate) const NO_PD: PdId = PdId(0);
pub(crate) const NO_CQ: CqId = CqId(0);

impl Rnic {
    /// Makes a domain of extended reliable connections.
    ///
    /// # Errors
    /// `NotFound` for the device, `Limit`.
    pub fn alloc_xrcd(&mut self, device: DeviceId) -> Result<XrcdId, ControlError> {
        if self.shared.devices.get(device.0).is_none() {
            return Err(ControlError::NotFound("device"));
        }
        let xrcd = Xrcd { device, users: 0 };
        self.shared.xrcds.insert_with(|_| xrcd).map(XrcdId).ok_or(ControlError::Limit("domains of extended connections"))
    }

    /// Ends a domain of extended reliable connections.
    ///
    /// # Errors
    /// `NotFound`; `Busy` while it has shared receive queues or targets.
    pub fn dealloc_xrcd(&mut self, xrcd: XrcdId) -> Result<(), ControlError> {
        match self.shared.xrcds.get(xrcd.0) {
            None => Err(NO_DOMAIN),
            Some(entry) if entry.users > 0 => Err(ControlError::Busy("the domain of extended connections")),
            Some(_) => {
                self.shared.xrcds.remove(xrcd.0);
                Ok(())
            }
        }
    }

    /// Makes a shared receive queue that requests name by [`SrqId::number`]. Its receives complete in `cq`.
    ///
    /// # Errors
    /// `NotFound` for a domain or completion queue that is not of the PD's device; else as [`Self::create_srq`].
    pub fn create_xrc_srq(&mut self, pd: PdId, attr: SrqAttr, xrcd: XrcdId, cq: CqId) -> Result<SrqId, ControlError> {
        let device = crate::device::device_of(self, pd)?;
        if self.shared.xrcds.get(xrcd.0).is_none_or(|entry| entry.device != device) {
            return Err(NO_DOMAIN);
        }
        if self.shared.cqs.get(cq.0).is_none_or(|entry| entry.device != device) {
            return Err(ControlError::NotFound("completion queue"));
        }
        let srq = self.create_srq_with(pd, attr, Some(Extension { xrcd, cq }))?;
        self.shared.xrcds.get_mut(xrcd.0).expect("looked up above").users += 1;
        self.shared.cqs.get_mut(cq.0).expect("looked up above").users += 1;
        Ok(srq)
    }

    /// A shared receive queue is gone: nothing completes in its completion queue any more, and targets that filled a receive of it
    /// have none.
    pub(crate) fn end_extension(&mut self, srq: SrqId, extension: &Extension) {
        if let Some(xrcd) = self.shared.xrcds.get_mut(extension.xrcd.0) {
            xrcd.users -= 1;
        }
        if let Some(cq) = self.shared.cqs.get_mut(extension.cq.0) {
            cq.users -= 1;
        }
        self.shared.completions.forget_srq(srq);
        let targets: Vec<u32> = self.qps.iter().filter(|(_, qp)| qp.srq == Some(srq)).map(|(qpn, _)| qpn).collect();
        for qpn in targets {
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.lose_shared_queue();
            }
        }
    }

    /// Makes the end of an extended reliable connection that receives, in state RESET.
    ///
    /// # Errors
    /// `NotFound` for the domain; `Limit`.
    pub fn create_xrc_target(&mut self, xrcd: XrcdId) -> Result<Qpn, ControlError> {
        let device = self.shared.xrcds.get(xrcd.0).ok_or(NO_DOMAIN)?.device;
        let tenant = self.shared.devices.get(device.0).ok_or(ControlError::NotFound("device"))?.tenant;
        // The receive in hand, which may be one of any queue.
        let caps = QpCaps { max_recv_wr: 1, max_recv_sge: limits::MAX_SGE, ..QpCaps::default() };
        let (qp_type, send_cq, recv_cq) = (QpType::XrcRecv, NO_CQ, NO_CQ);
        let init = QpInit { qp_type, send_cq, recv_cq, srq: None, caps, all_signaled: false };
        let target = |qpn| {
            let mut qp = Qp::new(Qpn::new(qpn), (device, tenant), NO_PD, &init, None);
            qp.attr.caps = QpCaps::default();
            qp.xrcd = Some(xrcd);
            Box::new(qp)
        };
        let qpn = self.qps.insert_with(target).ok_or(ControlError::Limit("queue pairs"))?;
        self.shared.xrcds.get_mut(xrcd.0).expect("looked up above").users += 1;
        Ok(Qpn::new(qpn))
    }

    /// A target is gone. What it has completed stays, as that is its shared receive queues'.
    pub(crate) fn end_target(&mut self, qp: &Qp) {
        if let Some(xrcd) = qp.xrcd.and_then(|xrcd| self.shared.xrcds.get_mut(xrcd.0)) {
            xrcd.users -= 1;
        }
    }

    /// The domains of a device.
    pub(crate) fn xrcds_of(&self, device: DeviceId) -> Vec<XrcdId> {
        self.shared.xrcds.iter().filter(|(_, xrcd)| xrcd.device == device).map(|(id, _)| XrcdId(id)).collect()
    }
}

const NO_DOMAIN: ControlError = ControlError::NotFound("domain of extended connections");
