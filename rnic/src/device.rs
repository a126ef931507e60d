//! Virtual devices: a few table entries each.

use crate::attr::DeviceInit;
use crate::counters::Counters;
use crate::error::ControlError;
use crate::event::AsyncEvent;
use crate::limits;
use crate::rnic::Rnic;
use crate::shared::Shared;
use crate::work::{CqId, DeviceId, PdId, SrqId};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use isolation::{Settings, TenantId, Usage};
use roce::{Gid, Instant, Mtu, Qpn};

/// A virtual device.
#[derive(Debug)]
pub(crate) struct Device {
    pub gids: Vec<Gid>,
    /// The port's largest path MTU; `None` while the port is down.
    pub port: Option<Mtu>,
    pub counters: Counters,
    /// Who pays for what it does.
    pub tenant: TenantId,
    /// Queue pairs whose numbers the device's driver chose, by these numbers.
    pub qp_numbers: BTreeMap<Qpn, Qpn>,
}

impl Rnic {
    /// Creates a device, its port up.
    ///
    /// # Errors
    /// `Invalid` if there is no GID, too many, an unusable one, or one that another device has; `Limit` if there are too many
    /// devices.
    pub fn create_device(&mut self, init: DeviceInit) -> Result<DeviceId, ControlError> {
        if init.gids.is_empty() || init.gids.len() > limits::MAX_GIDS {
            return Err(ControlError::Invalid("a device needs 1 to 16 GIDs"));
        }
        for (n, &gid) in init.gids.iter().enumerate() {
            if gid.ip().is_unspecified() || gid.ip().is_multicast() {
                return Err(ControlError::Invalid("a GID is not a unicast address"));
            }
            if init.gids[..n].contains(&gid) || self.shared.gids.contains_key(&gid) {
                return Err(ControlError::Invalid("a GID is already in use"));
            }
        }
        let gids = init.gids.clone();
        let Shared { devices, schedule, .. } = &mut self.shared;
        let (arbiter, now) = (&mut schedule.arbiter, schedule.now);
        let device = |_| Device {
            gids: init.gids,
            port: Some(init.mtu),
            counters: Counters::default(),
            tenant: arbiter.add_tenant(Settings::default(), now).expect("what is default is allowed"),
            qp_numbers: BTreeMap::new(),
        };
        let id = devices.insert_with(device).ok_or(ControlError::Limit("devices"))?;
        self.shared.gids.extend(gids.into_iter().map(|gid| (gid, DeviceId(id))));
        Ok(DeviceId(id))
    }

    /// Ends a device and everything that belongs to it. Unknown identifiers are ignored.
    pub fn destroy_device(&mut self, now: Instant, device: DeviceId) {
        if self.shared.devices.get(device.0).is_none() {
            return;
        }
        let qps: Vec<u32> = self.qps.iter().filter(|(_, qp)| qp.device == device).map(|(id, _)| id).collect();
        for qpn in qps {
            // It exists: it was listed just now.
            let _ = self.destroy_qp(now, Qpn::new(qpn));
        }
        let srqs: Vec<u32> = self.shared.srqs.iter().filter(|(_, srq)| srq.device == device).map(|(id, _)| id).collect();
        for srq in srqs {
            // Its queue pairs are gone, so nothing uses it.
            let _ = self.destroy_srq(SrqId(srq));
        }
        let cqs: Vec<u32> = self.shared.cqs.iter().filter(|(_, cq)| cq.device == device).map(|(id, _)| id).collect();
        for cq in cqs {
            // As above.
            let _ = self.destroy_cq(CqId(cq));
        }
        let pds: Vec<u32> = self.shared.pds.iter().filter(|(_, pd)| pd.device == device).map(|(id, _)| id).collect();
        for xrcd in self.xrcds_of(device) {
            // As above.
            let _ = self.dealloc_xrcd(xrcd);
        }
        for pd in pds {
            let Some(pd) = self.shared.pds.remove(pd) else { continue };
            for window in pd.windows {
                let removed = self.shared.table.dealloc_window(window);
                debug_assert!(removed.is_ok(), "a protection domain knows its windows");
            }
            for key in pd.regions {
                let removed = self.shared.table.remove(key);
                debug_assert!(removed.is_ok(), "a protection domain knows its regions");
            }
        }
        if let Some(entry) = self.shared.devices.remove(device.0) {
            self.shared.schedule.arbiter.remove_tenant(entry.tenant);
        }
        self.shared.gids.retain(|_, owner| *owner != device);
        self.shared.mads.forget(device);
        self.shared
            .events
            .retain(|event| !matches!(event, AsyncEvent::PortActive(d, _) | AsyncEvent::PortError(d) if *d == device));
    }

    /// Changes what the device is promised against the others, from the next turn on.
    ///
    /// # Errors
    /// `NotFound`; `Shares` for settings that cannot be.
    pub fn set_shares(&mut self, now: Instant, device: DeviceId, settings: Settings) -> Result<(), ControlError> {
        let tenant = self.shared.devices.get(device.0).ok_or(ControlError::NotFound("device"))?.tenant;
        Ok(self.shared.schedule.arbiter.set_tenant(tenant, settings, now)?)
    }

    /// What the device is promised against the others; `None` if there is no such device.
    pub fn shares(&self, device: DeviceId) -> Option<&Settings> {
        self.shared.schedule.arbiter.settings(self.shared.devices.get(device.0)?.tenant)
    }

    /// What the device has had by class, in the order of [`isolation::Class::ALL`], and how often its highest rate made it wait.
    pub fn usage(&self, device: DeviceId) -> Option<([Usage; 3], u64)> {
        self.shared.schedule.arbiter.usage(self.shared.devices.get(device.0)?.tenant)
    }

    /// A probe of Justitia's took so long; for comparisons, see [`isolation::Policy`].
    pub fn note_latency(&mut self, latency: core::time::Duration) {
        self.shared.schedule.arbiter.note_latency(latency);
    }

    /// Sets the port's state: `None` is down. Queue pairs keep their state; while the port is down nothing of theirs is sent or
    /// received, so that retries run out as on a dead link. Unknown devices are ignored.
    pub fn set_port(&mut self, _now: Instant, device: DeviceId, port: Option<Mtu>) {
        let Some(entry) = self.shared.devices.get_mut(device.0) else { return };
        let before = core::mem::replace(&mut entry.port, port);
        match (before, port) {
            (before, Some(mtu)) if before != port => self.shared.events.push_back(AsyncEvent::PortActive(device, mtu)),
            (Some(_), None) => self.shared.events.push_back(AsyncEvent::PortError(device)),
            _ => {}
        }
    }

    /// The port's largest path MTU; `None` while it is down, or without such a device.
    pub fn port_mtu(&self, device: DeviceId) -> Option<Mtu> {
        self.shared.devices.get(device.0)?.port
    }

    /// What the device counted; `None` if there is no such device.
    pub fn counters(&self, device: DeviceId) -> Option<&Counters> {
        self.shared.devices.get(device.0).map(|device| &device.counters)
    }
}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    pub device: DeviceId,
    /// Keys of its regions.
    pub regions: BTreeSet<u32>,
    /// Its windows, each by the key that it was made with.
    pub windows: BTreeSet<u32>,
    /// Its queue pairs.
    pub qps: u32,
    /// Its shared receive queues.
    pub srqs: u32,
}

impl Pd {
    pub fn new(device: DeviceId) -> Self {
        Pd { device, regions: BTreeSet::new(), windows: BTreeSet::new(), qps: 0, srqs: 0 }
    }

    pub fn is_used(&self) -> bool {
        self.qps > 0 || self.srqs > 0 || !self.regions.is_empty() || !self.windows.is_empty()
    }
}

/// Which device a protection domain belongs to.
pub(crate) fn device_of(rnic: &Rnic, pd: PdId) -> Result<DeviceId, ControlError> {
    rnic.shared.pds.get(pd.0).map(|pd| pd.device).ok_or(ControlError::NotFound("protection domain"))
}
