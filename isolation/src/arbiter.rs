//! The arbiter: who is next, and for how much.

use crate::baseline::{Greedy, Justitia, justitia};
use crate::bucket::TokenBucket;
use crate::class::{Class, Classifier};
use crate::shares::Shares;
use crate::tenant::{Settings, SettingsError, TenantId, Usage};
use roce::{Instant, Qpn};

/// What there is to share, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How turns are given.
    pub policy: Policy,
    /// Bytes per second that can be moved, as a measure against packets: what 1 byte costs.
    pub bytes_per_sec: u64,
    /// Packets per second that can be made, as a measure against bytes: what 1 packet costs.
    pub packets_per_sec: u64,
    /// Longest turn while somebody else waits, in bytes.
    pub quantum_bytes: u32,
    /// Longest turn while there is traffic of the latency class, in bytes.
    pub short_quantum_bytes: u32,
    /// The same in packets, or requests of the local path.
    pub short_quantum_packets: u32,
    /// Part of everything that may go ahead of the shares as the latency class, in percent.
    pub lane_percent: u8,
    /// What all tenants together may send, in bytes per second, where the link is slower than the RNIC: as told by
    /// [`Arbiter::note_sent`]. Holds under every policy.
    pub link_bytes_per_sec: Option<u64>,
    /// What the link brings at most, in bytes per second, if senders are to be asked to share it evenly: see [`crate::incast`].
    pub receive_bytes_per_sec: Option<u64>,
}

impl Default for Config {
    /// What one core of an ordinary machine moves.
    fn default() -> Self {
        Config {
            policy: Policy::Shares,
            bytes_per_sec: 5_000_000_000,
            packets_per_sec: 2_000_000,
            quantum_bytes: 64 << 10,
            short_quantum_bytes: 16 << 10,
            short_quantum_packets: 16,
            lane_percent: 10,
            link_bytes_per_sec: None,
            receive_bytes_per_sec: None,
        }
    }
}

/// How turns are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Policy {
    /// Ours: see the crate's documentation.
    #[default]
    Shares,
    /// Message by message, each to its end, as a network card without isolation; for comparisons.
    Greedy,
    /// The same with two hardware priorities: tenants that declare the latency class go first, packet by packet; for comparisons.
    Priorities,
    /// Justitia (NSDI 2022) in front of such a card; for comparisons.
    Justitia(justitia::Parameters),
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
    /// How many packets, or requests of the local path, the turn may last; at least 1.
    pub max_packets: u32,
    pub(crate) lane: bool,
}

/// What a turn cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cost {
    /// Bytes that were sent or copied, headers included.
    pub bytes: u64,
    /// Packets, or requests of the local path.
    pub packets: u64,
    /// The turn ended within a message.
    pub within_message: bool,
}

/// Decides who is next.
#[derive(Debug)]
pub struct Arbiter {
    kind: Kind,
    link: Option<TokenBucket>,
}

#[derive(Debug)]
enum Kind {
    Shares(Shares),
    Greedy(Greedy),
    Justitia(Justitia),
}

/// Calls the same function of whichever policy it is.
macro_rules! each {
    ($arbiter:expr, $policy:ident => $call:expr) => {
        match $arbiter {
            Kind::Shares($policy) => $call,
            Kind::Greedy($policy) => $call,
            Kind::Justitia($policy) => $call,
        }
    };
}

impl Arbiter {
    /// An arbiter without tenants.
    pub fn new(config: Config) -> Self {
        let kind = match config.policy {
            Policy::Shares => Kind::Shares(Shares::new(config)),
            Policy::Greedy => Kind::Greedy(Greedy::new(false)),
            Policy::Priorities => Kind::Greedy(Greedy::new(true)),
            Policy::Justitia(parameters) => Kind::Justitia(Justitia::new(parameters)),
        };
        // What lies between the arbiter and the link holds two turns at most.
        let ahead = 2 * u64::from(config.quantum_bytes);
        let link = config.link_bytes_per_sec.map(|rate| TokenBucket::new(rate, ahead, Instant::ZERO));
        Arbiter { kind, link }
    }

    /// A new tenant.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn add_tenant(&mut self, settings: Settings, now: Instant) -> Result<TenantId, SettingsError> {
        settings.check()?;
        Ok(each!(&mut self.kind, policy => policy.add_tenant(settings, now)))
    }

    /// Ends a tenant; queue pairs of it that wait are forgotten.
    pub fn remove_tenant(&mut self, id: TenantId) {
        each!(&mut self.kind, policy => policy.remove_tenant(id));
    }

    /// Changes what a tenant is promised, from the next turn on.
    ///
    /// # Errors
    /// [`SettingsError`]; nothing has changed then.
    pub fn set_tenant(&mut self, id: TenantId, settings: Settings, now: Instant) -> Result<(), SettingsError> {
        settings.check()?;
        each!(&mut self.kind, policy => policy.set_tenant(id, settings, now));
        Ok(())
    }

    /// What a tenant is promised.
    pub fn settings(&self, id: TenantId) -> Option<&Settings> {
        each!(&self.kind, policy => policy.settings(id))
    }

    /// What a tenant has had by class, in the order of [`Class::ALL`], and how often its highest rate made it wait.
    pub fn usage(&self, id: TenantId) -> Option<([Usage; Class::ALL.len()], u64)> {
        each!(&self.kind, policy => policy.usage(id))
    }

    /// A queue pair has something to do; it waits for its turn, unless it does already.
    #[inline]
    pub fn add(&mut self, qpn: Qpn, flow: &mut Flow, now: Instant) {
        if !flow.queued {
            flow.queued = each!(&mut self.kind, policy => policy.add(qpn, flow, now));
        }
    }

    /// The next turn.
    #[inline]
    pub fn take(&mut self, now: Instant) -> Option<Grant> {
        if let Some(link) = &mut self.link {
            link.fill(now);
            if !link.is_open() {
                return None;
            }
        }
        each!(&mut self.kind, policy => policy.take(now))
    }

    /// What the turn cost.
    #[inline]
    pub fn charge(&mut self, grant: &Grant, cost: Cost, now: Instant) {
        each!(&mut self.kind, policy => policy.charge(grant, cost, now));
    }

    /// So many bytes went to the link, with whatever it adds to them. What a turn copied within the host did not.
    #[inline]
    pub fn note_sent(&mut self, bytes: u64) {
        if let Some(link) = &mut self.link {
            link.take(bytes);
        }
    }

    /// When there may be a turn again, if [`Self::take`] had none though somebody waits.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let policy = each!(&self.kind, policy => policy.poll_timeout());
        let link = self.link.as_ref().filter(|link| !link.is_open()).map(TokenBucket::opens_at);
        match (policy, link) {
            (Some(policy), Some(link)) => Some(policy.max(link)),
            (Some(policy), None) => Some(policy),
            // Somebody could go now, but for the link.
            (None, link) => link.filter(|_| each!(&self.kind, policy => policy.is_waited_for())),
        }
    }

    /// A probe of Justitia's took so long; other policies need none.
    pub fn note_latency(&mut self, latency: core::time::Duration) {
        if let Kind::Justitia(justitia) = &mut self.kind {
            justitia.note_latency(latency);
        }
    }
}
