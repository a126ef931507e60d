//! What ours is compared with, behind the same interface: a card that knows of no tenants, and Justitia in front of one.

mod greedy;
pub mod justitia;

pub(crate) use greedy::Greedy;
pub(crate) use justitia::Justitia;

use crate::arbiter::Cost;
use crate::class::Class;
use crate::tenant::{Settings, Usage};

/// A tenant of either: what was asked for, and what it has had.
#[derive(Debug, Default)]
pub(crate) struct Account {
    pub settings: Settings,
    pub usage: [Usage; Class::ALL.len()],
}

impl Account {
    pub fn charge(&mut self, class: Class, cost: Cost) {
        self.usage[class as usize].add(cost);
    }
}
