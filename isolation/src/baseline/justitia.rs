//! Justitia (Zhang et al., NSDI 2022), as its paper describes it, in front of a card that executes what it is given in order.
//!
//! Who declares itself to be after latency is given to the card at once. All others need tokens: of so many bytes for those after
//! bandwidth, whose messages are cut to that, and of so many requests for those after a message rate. Tokens come at a rate that a
//! probe decides: halved while the 99th percentile of its latency is above a target, and raised step by step while it is not, between
//! the least that is fair and all that the card can do. Without anybody after latency there are large tokens at full rate.

use super::Account;
use crate::arbiter::{Cost, Flow, Grant};
use crate::class::Class;
use crate::table::Table;
use crate::tenant::{Settings, TenantId, Usage};
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;
use roce::{Instant, Qpn};

/// What the paper sets, by the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Bytes per second that the card can do.
    pub max_bytes_per_sec: u64,
    /// Requests that take as long as [`Self::large_token`] bytes.
    pub token_ops: u32,
    /// Bytes of a token without anybody after latency.
    pub large_token: u32,
    /// The same with somebody: the smallest that still fills the link.
    pub small_token: u32,
    /// Target of the probe's 99th percentile.
    pub target: Duration,
    /// Bytes per second that a good probe adds.
    pub step: u64,
    /// The card has a queue of its own for those after latency, and serves it first.
    pub has_priorities: bool,
    /// What a receiver reports to those who send to it while somebody after latency is among them: how many others there are.
    pub reported: Option<u32>,
}

impl Default for Parameters {
    /// Those of a card of 56 Gbit/s.
    fn default() -> Self {
        Parameters {
            max_bytes_per_sec: 6_000_000_000,
            token_ops: 5000,
            large_token: 1 << 20,
            small_token: 5000,
            target: Duration::from_micros(2),
            step: 1_000_000,
            has_priorities: false,
            reported: None,
        }
    }
}

/// Probes that the percentile is taken over.
const PROBES: usize = 10_000;
/// Steps of the histogram, and their number: 50 ns up to 0.2 ms.
const STEP_NS: u64 = 50;
const STEPS: usize = 4096;
/// Tokens that wait to be taken, at most.
const MAX_TOKENS: u64 = 5;

/// The 99th percentile of the last [`PROBES`] probes.
#[derive(Debug)]
struct Percentile {
    recent: VecDeque<u16>,
    counts: Vec<u16>,
}

impl Percentile {
    fn new() -> Self {
        Percentile { recent: VecDeque::new(), counts: vec![0; STEPS] }
    }

    fn note(&mut self, latency: Duration) {
        let step = (latency.as_nanos() as u64 / STEP_NS).min(STEPS as u64 - 1) as u16;
        if self.recent.len() == PROBES
            && let Some(oldest) = self.recent.pop_front()
        {
            self.counts[usize::from(oldest)] -= 1;
        }
        self.recent.push_back(step);
        self.counts[usize::from(step)] += 1;
    }

    fn value(&self) -> Duration {
        let above = self.recent.len() / 100;
        let mut seen = 0;
        for (step, &count) in self.counts.iter().enumerate().rev() {
            seen += usize::from(count);
            if seen > above {
                return Duration::from_nanos(step as u64 * STEP_NS);
            }
        }
        Duration::ZERO
    }
}

#[derive(Debug, Default)]
struct Entity {
    account: Account,
    /// Queue pairs that wait for a token.
    pending: VecDeque<Qpn>,
    /// Bytes, or requests, left of its tokens; more may have been used than there were.
    left: i64,
    /// Tokens that it had, by weight.
    had: u64,
}

impl Entity {
    /// What is not declared is after bandwidth.
    fn class(&self) -> Class {
        self.account.settings.class.unwrap_or(Class::Bandwidth)
    }

    /// What the card may do of it at once: of those after bandwidth all that is left, which no other queue pair of theirs has then.
    fn reserve(&mut self) -> u32 {
        if self.class() != Class::Bandwidth {
            return u32::MAX;
        }
        let reserved = u32::try_from(self.left.max(0)).unwrap_or(u32::MAX);
        self.left -= i64::from(reserved);
        reserved
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Justitia {
    parameters: Parameters,
    tenants: Table<Entity>,
    /// What the card was given: queue pair, whose, its class, bytes. The second queue is for all, the first for those after
    /// latency, where there are priorities.
    given: [VecDeque<(Qpn, TenantId, Class, u32)>; 2],
    /// What the one that got the last token had had before.
    clock: u64,
    /// Bytes per second that tokens come at.
    rate: u64,
    tokens: u64,
    /// When the last token came.
    last_token: Instant,
    probes: Percentile,
}

impl Justitia {
    pub fn new(parameters: Parameters) -> Self {
        Justitia {
            parameters,
            tenants: Table::default(),
            given: [VecDeque::new(), VecDeque::new()],
            clock: 0,
            rate: parameters.max_bytes_per_sec,
            tokens: MAX_TOKENS,
            last_token: Instant::ZERO,
            probes: Percentile::new(),
        }
    }

    pub fn add_tenant(&mut self, settings: Settings, _now: Instant) -> TenantId {
        self.tenants.insert(Entity { account: Account { settings, ..Account::default() }, ..Entity::default() })
    }

    pub fn remove_tenant(&mut self, id: TenantId) {
        self.tenants.remove(id);
        for queue in &mut self.given {
            queue.retain(|&(_, tenant, ..)| tenant != id);
        }
    }

    /// The card's queue for a class.
    fn queue_of(&mut self, class: Class) -> &mut VecDeque<(Qpn, TenantId, Class, u32)> {
        let is_first = self.parameters.has_priorities && class == Class::Latency;
        &mut self.given[usize::from(!is_first)]
    }

    pub fn set_tenant(&mut self, id: TenantId, settings: Settings, _now: Instant) {
        if let Some(tenant) = self.tenants.get_mut(id) {
            tenant.account.settings = settings;
        }
    }

    pub fn settings(&self, id: TenantId) -> Option<&Settings> {
        self.tenants.get(id).map(|tenant| &tenant.account.settings)
    }

    pub fn usage(&self, id: TenantId) -> Option<([Usage; Class::ALL.len()], u64)> {
        self.tenants.get(id).map(|tenant| (tenant.account.usage, 0))
    }

    pub fn add(&mut self, qpn: Qpn, flow: &Flow, _now: Instant) -> bool {
        let Some(tenant) = self.tenants.get_mut(flow.tenant) else { return false };
        let class = tenant.class();
        if class == Class::Latency || tenant.left > 0 {
            let reserved = tenant.reserve();
            self.queue_of(class).push_back((qpn, flow.tenant, class, reserved));
            return true;
        }
        if tenant.pending.is_empty() {
            tenant.had = tenant.had.max(self.clock);
        }
        tenant.pending.push_back(qpn);
        true
    }

    pub fn take(&mut self, now: Instant) -> Option<Grant> {
        self.hand_out(now);
        let (qpn, tenant, class, max_bytes) = self.given.iter_mut().find_map(VecDeque::pop_front)?;
        let max_packets = if self.parameters.has_priorities { 1 } else { u32::MAX };
        Some(Grant { qpn, tenant, class, max_bytes, max_packets, lane: false })
    }

    pub fn charge(&mut self, grant: &Grant, cost: Cost, _now: Instant) {
        let token = self.token();
        if let Some(tenant) = self.tenants.get_mut(grant.tenant) {
            tenant.account.charge(grant.class, cost);
            if grant.class != Class::Bandwidth {
                tenant.left -= cost.packets as i64;
                return;
            }
            tenant.left += i64::from(grant.max_bytes) - cost.bytes as i64;
            // A turn is shorter than a large token: the same message goes on with what is left of it. And an acknowledgement, which
            // the card makes by itself, does not use a token up.
            let goes_on = if cost.within_message { tenant.left > 0 } else { tenant.left > i64::from(token / 2) };
            if goes_on && tenant.pending.back() == Some(&grant.qpn) {
                tenant.pending.pop_back();
                let rest = (grant.qpn, grant.tenant, grant.class, tenant.reserve());
                let queue = self.queue_of(grant.class);
                if cost.within_message { queue.push_front(rest) } else { queue.push_back(rest) }
            }
        }
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        let waits = self.tenants.iter().any(|tenant| !tenant.pending.is_empty());
        (waits && self.given.iter().all(VecDeque::is_empty)).then(|| self.last_token + self.token_time())
    }

    /// Whether the card was given anything.
    pub fn is_waited_for(&self) -> bool {
        !self.given.is_empty()
    }

    /// What a probe took: decides the rate of tokens.
    pub fn note_latency(&mut self, latency: Duration) {
        self.probes.note(latency);
        let (max, weights) = (self.parameters.max_bytes_per_sec, self.weights());
        self.rate = match weights {
            Some((others, all)) if self.probes.value() > self.parameters.target => (self.rate / 2).max(max / all * others),
            Some(_) => (self.rate + self.parameters.step).min(max),
            None => max,
        };
    }

    /// Weight of those who need tokens, and of all; all after latency count as one. `None` unless there are both kinds.
    fn weights(&self) -> Option<(u64, u64)> {
        let is_quick = |tenant: &&Entity| tenant.class() == Class::Latency;
        let others: u64 =
            self.tenants.iter().filter(|tenant| !is_quick(tenant)).map(|t| u64::from(t.account.settings.weight)).sum();
        let quick = u64::from(crate::tenant::DEFAULT_WEIGHT);
        if let Some(everywhere) = self.parameters.reported {
            return (others > 0).then_some((others, quick * (u64::from(everywhere) + 1)));
        }
        (others > 0 && self.tenants.iter().any(|tenant| is_quick(&tenant))).then_some((others, others + quick))
    }

    fn token(&self) -> u32 {
        if self.weights().is_some() { self.parameters.small_token } else { self.parameters.large_token }
    }

    fn token_time(&self) -> Duration {
        Duration::from_nanos(u64::from(self.token()) * 1_000_000_000 / self.rate.max(1))
    }

    /// Gives the tokens that have come to those who wait, in turn; a heavier one gets more of them.
    fn hand_out(&mut self, now: Instant) {
        let (token, every) = (self.token(), self.token_time().max(Duration::from_nanos(1)));
        let come = (now.saturating_since(self.last_token).as_nanos() / every.as_nanos()) as u64;
        if come > 0 {
            self.tokens = (self.tokens + come).min(MAX_TOKENS);
            self.last_token = self.last_token + every * u32::try_from(come).unwrap_or(u32::MAX);
        }
        while self.tokens > 0 {
            let ids = (0..self.tenants.end()).map(TenantId);
            let waiting = ids.filter_map(|id| Some((self.tenants.get(id).filter(|t| !t.pending.is_empty())?.had, id)));
            let Some((had, id)) = waiting.min() else { return };
            let Some(tenant) = self.tenants.get_mut(id) else { return };
            self.clock = had;
            self.tokens -= 1;
            tenant.had += (1 << 32) / u64::from(tenant.account.settings.weight);
            let class = tenant.class();
            let worth = match class {
                Class::Bandwidth => u64::from(token),
                _ => u64::from(self.parameters.token_ops) * u64::from(token) / u64::from(self.parameters.large_token),
            };
            let worth = worth.max(1) as i64;
            // What is left of earlier tokens is not lost, but it is no stock either.
            tenant.left = (tenant.left + worth).min(2 * worth);
            if tenant.left > 0
                && let Some(qpn) = tenant.pending.pop_front()
            {
                let reserved = tenant.reserve();
                self.queue_of(class).push_back((qpn, id, class, reserved));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_percentile_is_of_the_last_probes() {
        let mut probes = Percentile::new();
        assert_eq!(probes.value(), Duration::ZERO);
        for n in 0..PROBES {
            probes.note(Duration::from_micros(if n % 100 < 2 { 30 } else { 1 }));
        }
        assert_eq!(probes.value(), Duration::from_micros(30));
        for _ in 0..PROBES / 2 + PROBES / 100 {
            probes.note(Duration::from_micros(1));
        }
        assert_eq!(probes.value(), Duration::from_micros(1));
        probes.note(Duration::from_secs(9));
    }

    fn with(parameters: Parameters, classes: &[Class]) -> Justitia {
        let mut justitia = Justitia::new(parameters);
        for &class in classes {
            justitia.add_tenant(Settings { class: Some(class), ..Settings::default() }, Instant::ZERO);
        }
        justitia
    }

    #[test]
    fn the_rate_falls_to_what_is_fair_and_rises_again() {
        let parameters = Parameters::default();
        let mut both = with(parameters, &[Class::Latency, Class::Bandwidth, Class::Bandwidth, Class::MessageRate]);
        for _ in 0..10 {
            both.note_latency(Duration::from_micros(3));
        }
        assert_eq!(both.rate, parameters.max_bytes_per_sec / 4 * 3);
        for _ in 0..PROBES {
            both.note_latency(Duration::from_micros(1));
        }
        assert!(both.rate > parameters.max_bytes_per_sec / 4 * 3);
        let mut alone = with(parameters, &[Class::Bandwidth]);
        alone.note_latency(Duration::from_micros(100));
        assert_eq!(alone.rate, parameters.max_bytes_per_sec);
    }

    #[test]
    fn tokens_come_at_the_rate_and_latency_needs_none() {
        let parameters = Parameters { max_bytes_per_sec: 1_000_000_000, small_token: 5000, ..Parameters::default() };
        let mut justitia = with(parameters, &[Class::Latency, Class::Bandwidth]);
        let (quick, bulk) = (Flow::new(TenantId(0)), Flow::new(TenantId(1)));
        let mut got = 0u64;
        for us in 0..1000u64 {
            let now = Instant::from_nanos(us * 1000);
            justitia.add(Qpn::new(1), &quick, now);
            assert_eq!(justitia.take(now).unwrap().qpn, Qpn::new(1), "at once");
            if us == 0 || got > 0 {
                justitia.add(Qpn::new(2), &bulk, now);
            }
            while let Some(grant) = justitia.take(now) {
                assert_eq!((grant.qpn, grant.max_bytes), (Qpn::new(2), 5000));
                got += u64::from(grant.max_bytes);
                let cost = Cost { bytes: u64::from(grant.max_bytes), packets: 1, within_message: true };
                justitia.charge(&grant, cost, now);
            }
        }
        assert!((950_000..=1_050_000).contains(&got), "{got} bytes in a millisecond at 1 GB/s");
    }
}
