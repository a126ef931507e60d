//! A network card without isolation: queue pairs with work in a queue, and each message to its end before the next one's first byte. One
//! with hardware priorities has two such queues, and looks after each packet whether the first has anything.

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
    /// The second is for all, the first for those that have declared to be after latency, where there are priorities.
    ready: [VecDeque<(Qpn, TenantId, Class)>; 2],
    has_priorities: bool,
}

impl Greedy {
    pub fn new(has_priorities: bool) -> Self {
        Greedy { has_priorities, ..Greedy::default() }
    }

    /// The queue that a tenant's queue pairs wait in.
    fn queue_of(&mut self, id: TenantId) -> &mut VecDeque<(Qpn, TenantId, Class)> {
        let class = self.tenants.get(id).and_then(|tenant| tenant.settings.class);
        let is_first = self.has_priorities && class == Some(Class::Latency);
        &mut self.ready[usize::from(!is_first)]
    }

    pub fn add_tenant(&mut self, settings: Settings, _now: Instant) -> TenantId {
        self.tenants.insert(Account { settings, ..Account::default() })
    }

    pub fn remove_tenant(&mut self, id: TenantId) {
        self.tenants.remove(id);
        for queue in &mut self.ready {
            queue.retain(|&(_, tenant, _)| tenant != id);
        }
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
        let class = tenant.settings.class.unwrap_or(flow.classifier.class());
        self.queue_of(flow.tenant).push_back((qpn, flow.tenant, class));
        true
    }

    pub fn take(&mut self, _now: Instant) -> Option<Grant> {
        let (qpn, tenant, class) = self.ready.iter_mut().find_map(VecDeque::pop_front)?;
        let max_packets = if self.has_priorities { 1 } else { u32::MAX };
        Some(Grant { qpn, tenant, class, max_bytes: u32::MAX, max_packets, lane: false })
    }

    pub fn charge(&mut self, grant: &Grant, cost: Cost, _now: Instant) {
        if let Some(tenant) = self.tenants.get_mut(grant.tenant) {
            tenant.charge(grant.class, cost);
        }
        // A turn is shorter than a long message; the next one is its turn too.
        let queue = self.queue_of(grant.tenant);
        if cost.within_message
            && let Some(at) = queue.iter().rposition(|&(qpn, ..)| qpn == grant.qpn)
            && let Some(rest) = queue.remove(at)
        {
            queue.push_front(rest);
        }
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Whether any queue pair waits.
    pub fn is_waited_for(&self) -> bool {
        !self.ready.is_empty()
    }
}
