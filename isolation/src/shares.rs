//! Our policy: tenants by weight of what they use most, rates, and a lane for small sparse messages. See the crate's documentation.

use crate::arbiter::{Config, Cost, Flow, Grant};
use crate::bucket::TokenBucket;
use crate::class::Class;
use crate::table::Table;
use crate::tenant::{RESOURCES, Settings, Tenant, TenantId, Usage};
use crate::waiting::Waiting;
use core::time::Duration;
use roce::{Instant, Qpn};

/// Picoseconds of a second: what a resource offers per second, and the unit of everything that is counted.
const PS_PER_SEC: u64 = 1_000_000_000_000;

/// Turns stay short for so long after a queue pair of the latency class was seen: the next message comes while another's turn lasts.
const EXPECT_LATENCY: Duration = Duration::from_millis(1);

/// The latency lane may fall behind and catch up by this much of the scarcest resource: 50 µs.
const LANE_BURST_PS: u64 = 50_000_000;

/// See the module.
#[derive(Debug)]
pub(crate) struct Shares {
    config: Config,
    /// What a byte and what a packet cost, in picoseconds.
    price_ps: [u64; RESOURCES],
    tenants: Table<Tenant>,
    /// With work of the latency class, by what they have had.
    latency: Waiting<u128>,
    /// With work and a guarantee, by when it is due.
    guaranteed: Waiting<Instant>,
    /// With work, by what they have had.
    shared: Waiting<u128>,
    /// Beyond their highest rate, by when they may go on.
    paused: Waiting<Instant>,
    /// What the tenant of the last turn had had before it.
    clock: u128,
    lane: TokenBucket,
    /// Queue pairs that wait.
    ready: usize,
    latency_seen: Option<Instant>,
}

impl Shares {
    pub fn new(config: Config) -> Self {
        let lane = TokenBucket::new(PS_PER_SEC / 100 * u64::from(config.lane_percent), LANE_BURST_PS, Instant::ZERO);
        let price = |per_sec: u64| PS_PER_SEC / per_sec.clamp(1, PS_PER_SEC);
        Shares {
            config,
            price_ps: [price(config.bytes_per_sec), price(config.packets_per_sec)],
            tenants: Table::default(),
            latency: Waiting::default(),
            guaranteed: Waiting::default(),
            shared: Waiting::default(),
            paused: Waiting::default(),
            clock: 0,
            lane,
            ready: 0,
            latency_seen: None,
        }
    }

    pub fn add_tenant(&mut self, settings: Settings, now: Instant) -> TenantId {
        self.tenants.insert(Tenant::new(settings, self.clock, now))
    }

    pub fn remove_tenant(&mut self, id: TenantId) {
        let Some(tenant) = self.tenants.remove(id) else { return };
        self.ready -= tenant.ready();
        self.latency.remove(id);
        self.guaranteed.remove(id);
        self.shared.remove(id);
        self.paused.remove(id);
    }

    pub fn set_tenant(&mut self, id: TenantId, settings: Settings, now: Instant) {
        if let Some(tenant) = self.tenants.get_mut(id) {
            tenant.set(settings, now);
            if core::mem::take(&mut tenant.places.paused) {
                self.paused.remove(id);
            }
            self.file(id, now);
        }
    }

    pub fn settings(&self, id: TenantId) -> Option<&Settings> {
        Some(&self.tenants.get(id)?.settings)
    }

    pub fn usage(&self, id: TenantId) -> Option<([Usage; Class::ALL.len()], u64)> {
        self.tenants.get(id).map(|tenant| (tenant.usage, tenant.pauses))
    }

    /// False if its tenant is gone.
    #[inline]
    pub fn add(&mut self, qpn: Qpn, flow: &Flow, now: Instant) -> bool {
        let Some(tenant) = self.tenants.get_mut(flow.tenant) else { return false };
        let class = tenant.settings.class.unwrap_or(flow.classifier.class());
        if !tenant.has_work() {
            tenant.catch_up(self.clock);
        }
        tenant.push(class, qpn);
        self.ready += 1;
        if class == Class::Latency {
            self.latency_seen = Some(now);
        }
        self.file(flow.tenant, now);
        true
    }

    /// The next turn: first the latency class within its budget, then guarantees that are due, then who has had least.
    pub fn take(&mut self, now: Instant) -> Option<Grant> {
        if self.ready == 0 {
            return None;
        }
        self.release(now);
        let in_lane = self.first_for_latency(now);
        let id = in_lane.or_else(|| self.first_guaranteed(now)).or_else(|| self.first_in_shares())?;
        let tenant = self.tenants.get_mut(id)?;
        let class = if in_lane.is_some() { Class::Latency } else { tenant.class_in_turn()? };
        if in_lane.is_none() {
            self.clock = self.clock.max(tenant.key());
        }
        let qpn = tenant.pop(class)?;
        let longest = tenant.turn_bytes();
        self.ready -= 1;
        let expects_latency = self.latency_seen.is_some_and(|at| now.saturating_since(at) < EXPECT_LATENCY);
        let (max_bytes, max_packets) = match (expects_latency, self.ready) {
            (true, _) => (self.config.short_quantum_bytes, self.config.short_quantum_packets.max(1)),
            (false, 0) => (u32::MAX, u32::MAX),
            (false, _) => (self.config.quantum_bytes, u32::MAX),
        };
        Some(Grant { qpn, tenant: id, class, max_bytes: max_bytes.min(longest), max_packets, lane: in_lane.is_some() })
    }

    pub fn charge(&mut self, grant: &Grant, cost: Cost, now: Instant) {
        let [byte, packet] = self.price_ps;
        let ps = [cost.bytes.saturating_mul(byte), cost.packets.saturating_mul(packet)];
        if grant.lane {
            self.lane.take(ps[0].max(ps[1]));
        }
        if let Some(tenant) = self.tenants.get_mut(grant.tenant) {
            tenant.charge(grant.class, ps, cost, now);
            self.file(grant.tenant, now);
        }
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.ready == 0 {
            return None;
        }
        match (self.shared.first(), self.paused.first()) {
            // Somebody could go now.
            (Some(_), _) => None,
            (None, paused) => paused.map(|(at, _)| at),
        }
    }

    /// Whether any queue pair waits.
    pub fn is_waited_for(&self) -> bool {
        self.ready > 0
    }

    /// Gives a tenant its entries in the queues it belongs to.
    fn file(&mut self, id: TenantId, now: Instant) {
        let Some(tenant) = self.tenants.get_mut(id) else { return };
        if tenant.places.paused || !tenant.has_work() {
            return;
        }
        if let Some(cap) = &mut tenant.cap {
            cap.fill(now);
            if !cap.is_open() {
                tenant.places.paused = true;
                tenant.pauses += 1;
                self.paused.push(cap.opens_at(), id);
                return;
            }
        }
        let key = tenant.key();
        if tenant.has(Class::Latency) && !core::mem::replace(&mut tenant.places.latency, true) {
            self.latency.push(key, id);
        }
        if let Some(guarantee) = &tenant.guarantee
            && !core::mem::replace(&mut tenant.places.guaranteed, true)
        {
            self.guaranteed.push(guarantee.opens_at(), id);
        }
        if !core::mem::replace(&mut tenant.places.shared, true) {
            self.shared.push(key, id);
        }
    }

    /// Those whose pause is over wait again.
    fn release(&mut self, now: Instant) {
        while let Some((at, id)) = self.paused.first()
            && at <= now
        {
            self.paused.pop();
            if let Some(tenant) = self.tenants.get_mut(id) {
                tenant.places.paused = false;
            }
            self.file(id, now);
        }
    }

    fn first_for_latency(&mut self, now: Instant) -> Option<TenantId> {
        self.latency.first()?;
        self.lane.fill(now);
        if !self.lane.is_open() {
            return None;
        }
        while let Some((key, id)) = self.latency.first() {
            let tenant = self.tenants.get_mut(id)?;
            self.latency.pop();
            if tenant.places.paused || !tenant.has(Class::Latency) {
                tenant.places.latency = false;
            } else if tenant.key() > key {
                self.latency.push(tenant.key(), id);
            } else {
                tenant.places.latency = false;
                return Some(id);
            }
        }
        None
    }

    fn first_guaranteed(&mut self, now: Instant) -> Option<TenantId> {
        while let Some((at, id)) = self.guaranteed.first()
            && at <= now
        {
            let tenant = self.tenants.get_mut(id)?;
            self.guaranteed.pop();
            tenant.places.guaranteed = false;
            let has_work = tenant.has_work();
            let Some(guarantee) = &mut tenant.guarantee else { continue };
            if tenant.places.paused || !has_work {
                continue;
            }
            guarantee.fill(now);
            if guarantee.is_open() {
                return Some(id);
            }
            tenant.places.guaranteed = true;
            self.guaranteed.push(guarantee.opens_at(), id);
        }
        None
    }

    fn first_in_shares(&mut self) -> Option<TenantId> {
        while let Some((key, id)) = self.shared.first() {
            let tenant = self.tenants.get_mut(id)?;
            self.shared.pop();
            if tenant.places.paused || !tenant.has_work() {
                tenant.places.shared = false;
            } else if tenant.key() > key {
                self.shared.push(tenant.key(), id);
            } else {
                tenant.places.shared = false;
                return Some(id);
            }
        }
        None
    }
}
