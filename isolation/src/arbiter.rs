//! The arbiter: who is next, and for how much.

use crate::bucket::TokenBucket;
use crate::class::{Class, Classifier};
use crate::tenant::{RESOURCES, Settings, SettingsError, Tenant, TenantId, Usage};
use crate::waiting::Waiting;
use alloc::vec::Vec;
use core::time::Duration;
use roce::{Instant, Qpn};

/// Picoseconds of a second: what a resource offers per second, and the unit of everything that is counted.
const PS_PER_SEC: u64 = 1_000_000_000_000;

/// Turns stay short for so long after a queue pair of the latency class was seen: the next message comes while another's turn lasts.
const EXPECT_LATENCY: Duration = Duration::from_millis(1);

/// The latency lane may fall behind and catch up by this much of the scarcest resource: 50 µs.
const LANE_BURST_PS: u64 = 50_000_000;

/// What there is to share, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes per second that can be moved, as a measure against packets: what 1 byte costs.
    pub bytes_per_sec: u64,
    /// Packets per second that can be made, as a measure against bytes: what 1 packet costs.
    pub packets_per_sec: u64,
    /// Longest turn while somebody else waits, in bytes.
    pub quantum_bytes: u32,
    /// Longest turn while there is traffic of the latency class, in bytes.
    pub short_quantum_bytes: u32,
    /// Part of everything that may go ahead of the shares as the latency class, in percent.
    pub lane_percent: u8,
    /// What all tenants together may send, in bytes per second, where the link is slower than the RNIC.
    pub link_bytes_per_sec: Option<u64>,
}

impl Default for Config {
    /// What one core of an ordinary machine moves.
    fn default() -> Self {
        Config {
            bytes_per_sec: 5_000_000_000,
            packets_per_sec: 2_000_000,
            quantum_bytes: 64 << 10,
            short_quantum_bytes: 16 << 10,
            lane_percent: 10,
            link_bytes_per_sec: None,
        }
    }
}

/// What is known about one queue pair; kept by its owner.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flow {
    /// Who pays.
    pub tenant: TenantId,
    /// Finds its class.
    pub classifier: Classifier,
    queued: bool,
}

impl Flow {
    /// A queue pair of this tenant.
    pub fn new(tenant: TenantId) -> Self {
        Flow { tenant, ..Flow::default() }
    }

    /// Whether it waits for its turn.
    pub fn is_queued(&self) -> bool {
        self.queued
    }

    /// Its turn has come: [`Arbiter::take`] gave its number.
    pub fn begin_turn(&mut self) {
        self.queued = false;
    }
}

/// A turn. What it cost is told with [`Arbiter::charge`] before the next one is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The queue pair; it may be gone by now.
    pub qpn: Qpn,
    /// Who pays.
    pub tenant: TenantId,
    /// The class that it was queued in.
    pub class: Class,
    /// How many bytes the turn may last; one packet is always allowed.
    pub max_bytes: u32,
    lane: bool,
}

/// What a turn cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cost {
    /// Bytes that were sent or copied, headers included.
    pub bytes: u64,
    /// Packets, or requests of the local path.
    pub packets: u64,
}

/// Decides who is next.
#[derive(Debug)]
pub struct Arbiter {
    config: Config,
    /// What a byte and what a packet cost, in picoseconds.
    price_ps: [u64; RESOURCES],
    tenants: Vec<Option<Tenant>>,
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
    link: Option<TokenBucket>,
    /// Queue pairs that wait.
    ready: usize,
    latency_seen: Option<Instant>,
}

impl Arbiter {
    /// An arbiter without tenants.
    pub fn new(config: Config) -> Self {
        let lane = TokenBucket::new(PS_PER_SEC / 100 * u64::from(config.lane_percent), LANE_BURST_PS, Instant::ZERO);
        let price = |per_sec: u64| PS_PER_SEC / per_sec.clamp(1, PS_PER_SEC);
        let mut arbiter = Arbiter {
            config,
            price_ps: [price(config.bytes_per_sec), price(config.packets_per_sec)],
            tenants: Vec::new(),
            latency: Waiting::default(),
            guaranteed: Waiting::default(),
            shared: Waiting::default(),
            paused: Waiting::default(),
            clock: 0,
            lane,
            link: None,
            ready: 0,
            latency_seen: None,
        };
        arbiter.set_link(config.link_bytes_per_sec, Instant::ZERO);
        arbiter
    }

    /// Changes what all tenants together may send.
    pub fn set_link(&mut self, bytes_per_sec: Option<u64>, now: Instant) {
        // What lies between the arbiter and the link holds two turns at most.
        self.link = bytes_per_sec.map(|rate| TokenBucket::new(rate, 2 * u64::from(self.config.quantum_bytes), now));
    }

    /// A new tenant.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn add_tenant(&mut self, settings: Settings, now: Instant) -> Result<TenantId, SettingsError> {
        settings.check()?;
        let free = self.tenants.iter().position(Option::is_none).unwrap_or(self.tenants.len());
        let tenant = Some(Tenant::new(settings, self.clock, now));
        match self.tenants.get_mut(free) {
            Some(slot) => *slot = tenant,
            None => self.tenants.push(tenant),
        }
        Ok(TenantId(free as u32))
    }

    /// Ends a tenant; queue pairs of it that wait are forgotten.
    pub fn remove_tenant(&mut self, id: TenantId) {
        let Some(tenant) = self.tenants.get_mut(id.0 as usize).and_then(Option::take) else { return };
        self.ready -= tenant.ready();
        self.latency.remove(id);
        self.guaranteed.remove(id);
        self.shared.remove(id);
        self.paused.remove(id);
    }

    /// Changes what a tenant is promised, from the next turn on.
    ///
    /// # Errors
    /// [`SettingsError`]; nothing has changed then.
    pub fn set_tenant(&mut self, id: TenantId, settings: Settings, now: Instant) -> Result<(), SettingsError> {
        settings.check()?;
        if let Some(tenant) = self.tenants.get_mut(id.0 as usize).and_then(Option::as_mut) {
            tenant.set(settings, now);
            if core::mem::take(&mut tenant.places.paused) {
                self.paused.remove(id);
            }
            self.file(id, now);
        }
        Ok(())
    }

    /// What a tenant is promised.
    pub fn settings(&self, id: TenantId) -> Option<&Settings> {
        Some(&self.tenants.get(id.0 as usize)?.as_ref()?.settings)
    }

    /// What a tenant has had by class, in the order of [`Class::ALL`], and how often its highest rate made it wait.
    pub fn usage(&self, id: TenantId) -> Option<([Usage; Class::ALL.len()], u64)> {
        self.tenants.get(id.0 as usize)?.as_ref().map(|tenant| (tenant.usage, tenant.pauses))
    }

    /// A queue pair has something to do; it waits for its turn, unless it does already.
    #[inline]
    pub fn add(&mut self, qpn: Qpn, flow: &mut Flow, now: Instant) {
        if flow.queued {
            return;
        }
        let Some(tenant) = self.tenants.get_mut(flow.tenant.0 as usize).and_then(Option::as_mut) else { return };
        flow.queued = true;
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
    }

    /// The next turn: first the latency class within its budget, then guarantees that are due, then who has had least.
    pub fn take(&mut self, now: Instant) -> Option<Grant> {
        if self.ready == 0 {
            return None;
        }
        self.release(now);
        if let Some(link) = &mut self.link {
            link.fill(now);
            if !link.is_open() {
                return None;
            }
        }
        let in_lane = self.first_for_latency(now);
        let id = in_lane.or_else(|| self.first_guaranteed(now)).or_else(|| self.first_in_shares())?;
        let tenant = self.tenants[id.0 as usize].as_mut()?;
        let class = if in_lane.is_some() { Class::Latency } else { tenant.class_in_turn()? };
        if in_lane.is_none() {
            self.clock = self.clock.max(tenant.key());
        }
        let qpn = tenant.pop(class)?;
        let longest = tenant.turn_bytes();
        self.ready -= 1;
        let expects_latency = self.latency_seen.is_some_and(|at| now.saturating_since(at) < EXPECT_LATENCY);
        let max_bytes = match (expects_latency, self.ready) {
            (true, _) => self.config.short_quantum_bytes,
            (false, 0) => u32::MAX,
            (false, _) => self.config.quantum_bytes,
        };
        Some(Grant { qpn, tenant: id, class, max_bytes: max_bytes.min(longest), lane: in_lane.is_some() })
    }

    /// What the turn cost.
    pub fn charge(&mut self, grant: &Grant, cost: Cost, now: Instant) {
        let [byte, packet] = self.price_ps;
        let ps = [cost.bytes.saturating_mul(byte), cost.packets.saturating_mul(packet)];
        if grant.lane {
            self.lane.take(ps[0].max(ps[1]));
        }
        if let Some(link) = &mut self.link {
            link.take(cost.bytes);
        }
        if let Some(tenant) = self.tenants.get_mut(grant.tenant.0 as usize).and_then(Option::as_mut) {
            tenant.charge(grant.class, ps, cost, now);
            self.file(grant.tenant, now);
        }
    }

    /// When there may be a turn again, if [`Self::take`] had none though somebody waits.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.ready == 0 {
            return None;
        }
        let link = self.link.as_ref().filter(|link| !link.is_open()).map(TokenBucket::opens_at);
        match (self.shared.first(), self.paused.first()) {
            // Somebody could go now, but for the link.
            (Some(_), _) => link,
            (None, Some((at, _))) => Some(link.map_or(at, |link| link.max(at))),
            (None, None) => None,
        }
    }

    /// Gives a tenant its entries in the queues it belongs to.
    fn file(&mut self, id: TenantId, now: Instant) {
        let Some(tenant) = self.tenants[id.0 as usize].as_mut() else { return };
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
            if let Some(tenant) = self.tenants[id.0 as usize].as_mut() {
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
            let tenant = self.tenants[id.0 as usize].as_mut()?;
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
            let tenant = self.tenants[id.0 as usize].as_mut()?;
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
            let tenant = self.tenants[id.0 as usize].as_mut()?;
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
