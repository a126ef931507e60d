//! A network card without isolation: one queue of queue pairs with work, and each message to its end before the next one's first byte.

use super::Account;
use crate::arbiter::{Cost, Flow, Grant};
use crate::class::Class;
use crate::table::Table;
use crate::tenant::{Settings, TenantId, Usage};
use alloc::collections::VecDeque;
use roce::{Instant, Qpn};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Greedy {
    tenants: Table<Account>,
    ready: VecDeque<(Qpn, TenantId, Class)>,
}

impl Greedy {
    pub fn add_tenant(&mut self, settings: Settings, _now: Instant) -> TenantId {
        self.tenants.insert(Account { settings, ..Account::default() })
    }

    pub fn remove_tenant(&mut self, id: TenantId) {
        self.tenants.remove(id);
        self.ready.retain(|&(_, tenant, _)| tenant != id);
    }

    pub fn set_tenant(&mut self, id: TenantId, settings: Settings, _now: Instant) {
        if let Some(tenant) = self.tenants.get_mut(id) {
            tenant.settings = settings;
        }
    }

    pub fn settings(&self, id: TenantId) -> Option<&Settings> {
        self.tenants.get(id).map(|tenant| &tenant.settings)
    }

    pub fn usage(&self, id: TenantId) -> Option<([Usage; Class::ALL.len()], u64)> {
        self.tenants.get(id).map(|tenant| (tenant.usage, 0))
    }

    pub fn add(&mut self, qpn: Qpn, flow: &Flow, _now: Instant) -> bool {
        let Some(tenant) = self.tenants.get(flow.tenant) else { return false };
        self.ready.push_back((qpn, flow.tenant, tenant.settings.class.unwrap_or(flow.classifier.class())));
        true
    }

    pub fn take(&mut self, _now: Instant) -> Option<Grant> {
        let (qpn, tenant, class) = self.ready.pop_front()?;
        Some(Grant { qpn, tenant, class, max_bytes: u32::MAX, max_packets: u32::MAX, lane: false })
    }

    pub fn charge(&mut self, grant: &Grant, cost: Cost, _now: Instant) {
        if let Some(tenant) = self.tenants.get_mut(grant.tenant) {
            tenant.charge(grant.class, cost);
        }
        // A turn is shorter than a long message; the next one is its turn too.
        if cost.within_message
            && let Some(at) = self.ready.iter().rposition(|&(qpn, ..)| qpn == grant.qpn)
            && let Some(rest) = self.ready.remove(at)
        {
            self.ready.push_front(rest);
        }
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}
