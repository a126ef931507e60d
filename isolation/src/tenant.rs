//! What a tenant is promised, and what it has had.

use crate::arbiter::Cost;
use crate::bucket::TokenBucket;
use crate::class::Class;
use alloc::collections::VecDeque;
use core::time::Duration;
use roce::{Instant, Qpn};

/// Weights: the least, the most, and what a tenant has that was given none.
pub const WEIGHTS: core::ops::RangeInclusive<u32> = 1..=10_000;

/// Weight of a tenant that was given none.
pub const DEFAULT_WEIGHT: u32 = 100;

/// A tenant of one arbiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TenantId(pub u32);

/// What a tenant is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Its part of what is scarce, against the weights of the others that want it. In [`WEIGHTS`].
    pub weight: u32,
    /// Goes before others until it has had this much, in bytes per second; 0: no guarantee. The guarantees of all tenants should
    /// not exceed what the link carries: then they are shared by weight.
    pub min_bytes_per_sec: u64,
    /// Never gets more than this, in bytes per second.
    pub max_bytes_per_sec: Option<u64>,
    /// How much it may send at once after a pause, in bytes, before the highest rate holds.
    pub burst_bytes: u64,
    /// Its queue pairs' class; found from what they post where there is none.
    pub class: Option<Class>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { weight: DEFAULT_WEIGHT, min_bytes_per_sec: 0, max_bytes_per_sec: None, burst_bytes: 256 << 10, class: None }
    }
}

/// Why settings are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Not in [`WEIGHTS`].
    #[error("a weight is {least} to {most}, not {0}", least = WEIGHTS.start(), most = WEIGHTS.end())]
    Weight(u32),
    /// A rate of nothing is no rate.
    #[error("a highest rate of 0 would stop the device; take its port down instead")]
    NoRate,
    /// What is guaranteed could not be had.
    #[error("the guaranteed rate of {min} bytes per second is above the highest rate of {max}")]
    MinAboveMax {
        /// The guarantee.
        min: u64,
        /// The highest rate.
        max: u64,
    },
}

impl Settings {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`SettingsError`], for the first that cannot be.
    pub fn check(&self) -> Result<(), SettingsError> {
        if !WEIGHTS.contains(&self.weight) {
            return Err(SettingsError::Weight(self.weight));
        }
        match self.max_bytes_per_sec {
            Some(0) => Err(SettingsError::NoRate),
            Some(max) if max < self.min_bytes_per_sec => Err(SettingsError::MinAboveMax { min: self.min_bytes_per_sec, max }),
            _ => Ok(()),
        }
    }
}

/// What a tenant has had in one class, since it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Usage {
    /// Turns.
    pub turns: u64,
    /// Bytes that were sent or copied.
    pub bytes: u64,
    /// Packets, or requests of the local path.
    pub packets: u64,
}

impl Usage {
    pub(crate) fn add(&mut self, cost: Cost) {
        self.turns += 1;
        self.bytes += cost.bytes;
        self.packets += cost.packets;
    }
}

/// A highest rate is kept over times as short as this, as far as single packets allow.
const SMOOTH: Duration = Duration::from_millis(1);

/// What tenants compete for: bytes of the link or of memory, and packets of the RNIC's processor time.
pub(crate) const RESOURCES: usize = 2;

/// In which of the arbiter's queues a tenant has an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Places {
    pub latency: bool,
    pub guaranteed: bool,
    pub shared: bool,
    pub paused: bool,
}

#[derive(Debug)]
pub(crate) struct Tenant {
    pub settings: Settings,
    /// 2^32 divided by the weight.
    per_weight: u32,
    /// What it has had of each resource, by weight: picoseconds of the whole resource, times [`Self::per_weight`].
    had: [u128; RESOURCES],
    /// Picoseconds of whichever resource each class used most.
    had_by_class: [u128; Class::ALL.len()],
    pub usage: [Usage; Class::ALL.len()],
    /// How often its highest rate made it wait.
    pub pauses: u64,
    /// Ready queue pairs by class, each in turn.
    ready: [VecDeque<Qpn>; Class::ALL.len()],
    pub cap: Option<TokenBucket>,
    pub guarantee: Option<TokenBucket>,
    pub places: Places,
}

impl Tenant {
    /// `clock`: what those who want something have had.
    pub fn new(settings: Settings, clock: u128, now: Instant) -> Self {
        let mut tenant = Tenant {
            settings,
            per_weight: 0,
            had: [clock; RESOURCES],
            had_by_class: [0; Class::ALL.len()],
            usage: Default::default(),
            pauses: 0,
            ready: Default::default(),
            cap: None,
            guarantee: None,
            places: Places::default(),
        };
        tenant.set(settings, now);
        tenant
    }

    pub fn set(&mut self, settings: Settings, now: Instant) {
        self.settings = settings;
        // Weights are 1 to 10000: the error is below a millionth; that of weight 1 is 2^-32.
        self.per_weight = u32::try_from((1u64 << 32) / u64::from(settings.weight)).unwrap_or(u32::MAX);
        let renew = |bucket: &mut Option<TokenBucket>, rate: Option<u64>| match (bucket.as_mut(), rate) {
            (Some(bucket), Some(rate)) => bucket.set(rate, settings.burst_bytes, now),
            (_, rate) => *bucket = rate.map(|rate| TokenBucket::new(rate, settings.burst_bytes, now)),
        };
        renew(&mut self.cap, settings.max_bytes_per_sec);
        renew(&mut self.guarantee, Some(settings.min_bytes_per_sec).filter(|&rate| rate > 0));
    }

    /// How long a turn may be, in bytes: what the highest rate allows in [`SMOOTH`].
    pub fn turn_bytes(&self) -> u32 {
        let per_turn = |rate: u64| u32::try_from(rate / (1_000_000_000 / SMOOTH.as_nanos() as u64)).unwrap_or(u32::MAX);
        self.settings.max_bytes_per_sec.map_or(u32::MAX, per_turn)
    }

    /// What decides who goes first: the resource it has had most of.
    pub fn key(&self) -> u128 {
        self.had[0].max(self.had[1])
    }

    /// Who had no work for a while is not owed what it did not want.
    pub fn catch_up(&mut self, clock: u128) {
        for had in &mut self.had {
            *had = (*had).max(clock);
        }
    }

    /// Counts what a turn cost; also in picoseconds of each resource.
    pub fn charge(&mut self, class: Class, ps: [u64; RESOURCES], cost: Cost, now: Instant) {
        self.usage[class as usize].add(cost);
        for (had, ps) in self.had.iter_mut().zip(ps) {
            *had += u128::from(ps) * u128::from(self.per_weight);
        }
        self.had_by_class[class as usize] += u128::from(ps[0].max(ps[1]));
        for bucket in [&mut self.cap, &mut self.guarantee].into_iter().flatten() {
            bucket.fill(now);
            bucket.take(cost.bytes);
        }
    }

    pub fn push(&mut self, class: Class, qpn: Qpn) {
        if !self.has(class) {
            // As between tenants: a class that was idle begins where the others are.
            let others = Class::ALL.into_iter().filter(|&other| self.has(other));
            if let Some(least) = others.map(|other| self.had_by_class[other as usize]).min() {
                let had = &mut self.had_by_class[class as usize];
                *had = (*had).max(least);
            }
        }
        self.ready[class as usize].push_back(qpn);
    }

    pub fn has(&self, class: Class) -> bool {
        !self.ready[class as usize].is_empty()
    }

    pub fn has_work(&self) -> bool {
        self.ready.iter().any(|queue| !queue.is_empty())
    }

    /// The next queue pair of this class.
    pub fn pop(&mut self, class: Class) -> Option<Qpn> {
        self.ready[class as usize].pop_front()
    }

    /// The class whose turn it is: of those with work the one that has had the least.
    pub fn class_in_turn(&self) -> Option<Class> {
        Class::ALL.into_iter().filter(|&class| self.has(class)).min_by_key(|&class| self.had_by_class[class as usize])
    }

    /// How many queue pairs are ready.
    pub fn ready(&self) -> usize {
        self.ready.iter().map(VecDeque::len).sum()
    }
}
